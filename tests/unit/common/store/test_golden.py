"""Golden files: the store, the messages' headers and the machines' parts keep their bytes, so that each version reads
what another one of the same `FORMAT` wrote.

`golden/` holds: `store/`, written through `Store` and `Parts`, with every field of every record; `messages.jsonl`,
written by `encode`; `machines.jsonl`, from checkpoints of the simulation's worlds, each with what the machine that was
restored from it would save next (`again`). Each test reads a golden file with the code of today, writes the same again,
and compares bytes. A deliberate change of the store's form raises `FORMAT` and writes these files again; a field that
may be absent is in files that are added to them (journal 6 and 7, publication 7), and the others stay.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.limits import Limits
from cutline.common.mesh.machine import State
from cutline.common.mesh.messages import Message, decode, encode
from cutline.common.mesh.parts import Parts, load_part
from cutline.common.mesh.presence import WIRE
from cutline.common.mesh.topology import Topology
from cutline.common.schema import TableSchema
from cutline.common.store.records import CheckpointEntry, EpochEntry, PartRef, TableEntry
from cutline.common.store.store import PipelineStore, Store
from cutline.services.enumerator.events import Plan
from cutline.services.enumerator.machine import Enumerator
from cutline.services.reader.machine import Reader
from tests.support import records

GOLDEN = Path(__file__).parents[2] / "golden"
FOLDER = GOLDEN / "store" / "shop"
JOURNAL = sorted(path.name for path in (FOLDER / "journal").iterdir())
PUBLICATIONS = sorted(path.name for path in (FOLDER / "publications").iterdir())
HEADERS = (GOLDEN / "messages.jsonl").read_text().splitlines()
MACHINES = (GOLDEN / "machines.jsonl").read_text().splitlines()


@pytest.fixture
def golden() -> PipelineStore:
    return opened("store")


@pytest.fixture
def fresh(tmp_path: Path) -> PipelineStore:
    return records.begun(f"file://{tmp_path}")


def opened(folder: str) -> PipelineStore:
    """A golden store, whose folder has no id in its name."""
    return Store(f"file://{GOLDEN}/{folder}").open(replace(records.LIFE, folder="shop"))


def compact(value: Any) -> str:
    """JSON as it is written everywhere."""
    return json.dumps(value, separators=(",", ":"))


def same_files(store: PipelineStore, folder: str, names: list[str]) -> None:
    """The store has exactly these files in the folder, with the bytes of the golden ones."""
    written = Path(store.location(folder))
    assert sorted(path.name for path in written.iterdir()) == names
    for name in names:
        assert (written / name).read_bytes() == (FOLDER / folder / name).read_bytes()


def test_the_journal_keeps_its_bytes(golden: PipelineStore, fresh: PipelineStore) -> None:
    entries = [golden.entry(slot) for slot in range(1, len(JOURNAL) + 1)]
    assert {type(entry) for entry in entries} == {EpochEntry, CheckpointEntry}
    for entry in entries:
        assert entry is not None
        assert fresh.put_entry(entry)
    same_files(fresh, "journal", JOURNAL)


def test_publications_keep_their_bytes(golden: PipelineStore, fresh: PipelineStore) -> None:
    for record in golden.publications():
        assert fresh.publish(record)
    same_files(fresh, "publications", PUBLICATIONS)


def test_schemas_keep_their_names_and_bytes(golden: PipelineStore, fresh: PipelineStore) -> None:
    names = sorted(path.name for path in (FOLDER / "schemas").iterdir())
    schemas = golden.schemas(name.split(".")[1] for name in names)
    assert all(schema.hash == name for name, schema in schemas.items())
    fresh.put_schemas(schemas.values(), epoch=1)
    same_files(fresh, "schemas", names)


def test_later_definitions_commands_and_outcomes_keep_their_bytes(
    golden: PipelineStore, fresh: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (about,) = golden.versions()[1:]
    definition, command, outcome = golden.definition(about.version), golden.commands.get(1), golden.commands.outcome(1)
    assert definition is not None
    assert command is not None
    assert outcome is not None
    arguments = dataclasses.asdict(about)
    assert fresh.put_definition(arguments.pop("version"), definition, **arguments)
    monkeypatch.setattr(secrets, "token_hex", lambda size: command.nonce)
    who = {"by": command.by, "now": command.at, "origin": command.origin, "key": command.key}
    assert fresh.commands.add(command.kind, command.arguments, **who) == command
    assert fresh.commands.put_outcome(outcome)
    same_files(fresh, "definitions", ["0000000002.json"])
    for folder in ("commands", "outcomes"):
        same_files(fresh, folder, ["0000000001.json"])


def test_a_definition_keeps_its_bytes(golden: PipelineStore, fresh: PipelineStore) -> None:
    definition = golden.definition(1)
    assert definition is not None
    again = PipelineConfig.from_definition(definition).definition()
    assert fresh.define(again)
    same_files(fresh, ".", ["pipeline.json"])


def test_claims_keep_their_bytes(fresh: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(path.name for path in (FOLDER / "spark").iterdir())
    for name in names:
        nonce = json.loads((FOLDER / "spark" / name).read_text())["body"]["nonce"]
        monkeypatch.setattr(secrets, "token_hex", lambda size, nonce=nonce: nonce)
        assert fresh.claim() == int(name.split(".")[0])
    same_files(fresh, "spark", names)


def part_refs(store: PipelineStore) -> Iterator[tuple[str, int, PartRef]]:
    """Every part that the golden journal names: its member, its checkpoint, where it is."""
    for slot in range(1, len(JOURNAL) + 1):
        entry = store.entry(slot)
        if isinstance(entry, CheckpointEntry):
            for member, ref in entry.parts.items():
                yield member, slot, ref


def test_parts_keep_their_names_and_bytes(golden: PipelineStore, fresh: PipelineStore) -> None:
    parts: dict[str, Parts] = {}
    written: dict[str, str] = {}
    for member, checkpoint, ref in part_refs(golden):
        of_member = parts.setdefault(member, Parts(fresh, member=member, epoch=1, incarnation=f"{member}-ab"))
        made = of_member.put(checkpoint, load_part(golden, ref))
        (stem, _, end), (old_stem, _, old_end) = (path.path.rpartition(".json.gz") for path in (made, ref))
        assert (stem.rpartition(".")[0], end) == (old_stem.rpartition(".")[0], old_end)  # all but the nonce
        assert gzip.decompress(fresh.read_part(made)) == gzip.decompress(golden.read_part(ref))
        assert (made.since and made.since.path) == (ref.since and written[ref.since.path])
        written[ref.path] = made.path


def test_other_messages_are_another_version_of_them() -> None:
    """Services of one `WIRE` take part in one mesh: if a message changed its form or is new, count it up, and note here
    what the messages are now."""
    # 2: the enumerator has a channel to each writer, and an epoch may begin anew. 4: CheckpointWanted.
    # 5: the remedy of SplitFailed, and causes as values. 6: staged files with their changes by operation.
    known = {
        1: "12acaf48b06d9198", 2: "12acaf48b06d9198", 3: "12acaf48b06d9198", 4: "80decbbff8599a6b",
        5: "3deb23d017c8e54e", 6: "b08930c4420c21cc",
    }  # fmt: skip
    assert hashlib.sha256((GOLDEN / "messages.jsonl").read_bytes()).hexdigest()[:16] == known[WIRE]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: json.loads(header)["type"])
def test_a_header_keeps_its_bytes(header: str) -> None:
    assert compact(encode(decode(json.loads(header)))) == header


def test_every_kind_of_message_is_among_the_headers() -> None:
    kinds = {json.loads(header)["type"] for header in HEADERS}
    assert kinds == {kind.__name__ for kind in Message.__subclasses__()}


def restored(saved: dict[str, Any]) -> Enumerator | Reader:
    """The machine that goes on from a part."""
    schemas = tuple(TableSchema.from_json(schema) for schema in saved["schemas"])
    state = State(head=saved["head"], values=saved["values"], schemas=schemas)
    if saved["machine"] == "reader":
        reader = Reader(name="reader-0", writers=("writer-0",), stream=True)
        reader.restore(state)
        return reader
    plan = dict(saved["plan"])
    plan["topology"] = Topology({"reader": len(plan.pop("readers")), "writer": len(plan.pop("writers"))})
    plan["quarantine_changed"] = plan.pop("halts")  # its name when the file was written; no part holds a plan
    entered = {name: TableEntry.from_json(entry) for name, entry in saved["entered"].items()}
    return Enumerator.restored(Plan(**plan | {"limits": Limits(**plan["limits"])}), state, entered)


@pytest.mark.parametrize("line", MACHINES, ids=lambda line: json.loads(line)["machine"])
def test_a_machine_goes_on_from_a_part_and_saves_the_same_again(line: str) -> None:
    saved = json.loads(line)
    state = restored(saved).snapshot()
    assert compact({"head": state.head, "values": state.values}) == compact(saved["again"])
