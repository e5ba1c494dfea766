"""The store on files of this machine and on objects (fsspec's memory)."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cutline.common import store
from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.store import PartRef, PipelineStore, Store, file_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def shop(url: str) -> PipelineStore:
    return Store(url).pipeline("shop")


@pytest.fixture
def files(tmp_path: Path) -> PipelineStore:
    return Store(f"file://{tmp_path}/store").pipeline("shop")


def epoch(slot: int, nonce: str = "n", base: int | None = None) -> dict[str, Any]:
    return {"kind": "epoch", "slot": slot, "nonce": nonce, "base": base}


def checkpoint(
    slot: int, of: int, staged: tuple[PartRef, ...] = (), *, adopted: PartRef | None = None, kept: bool = False,
    **parts: PartRef,
) -> dict[str, Any]:  # fmt: skip
    chunks = [] if adopted is None else [adopted.to_json() | {"kind": "chunk"}]
    return {
        "kind": "checkpoint",
        "slot": slot,
        "epoch": of,
        "kept": kept,
        "staged": [*chunks, *(ref.to_json() | {"kind": "changes"} for ref in staged)],
        "parts": {name.replace("_", "-"): ref.to_json() for name, ref in parts.items()},
    }


def staged(shop: PipelineStore, of: int, data: bytes = b"rows") -> PartRef:
    name = file_name("orders.parquet", epoch=of, incarnation="ab12")
    return shop.stage(name, lambda file: file.write(data))


def part(shop: PipelineStore, of: int) -> PartRef:
    return shop.put_part(file_name("reader-0", epoch=of, incarnation="ab12"), b"state")


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# The definition


def test_a_pipeline_is_defined_once_and_the_same_definition_again_is_no_fault(url: str) -> None:
    definition = {"tables": ["shop.*"], "snapshot": {"chunk_rows": 50000}, "stop": None}
    assert Store(url).pipeline("shop").define(definition)
    assert not Store(url).pipeline("shop").define(dict(reversed(definition.items())))
    assert Store(url).pipeline("shop").definition() == definition
    assert Store(url).pipelines() == ["shop"]


def test_a_name_in_use_with_another_content_is_refused_naming_what_differs(shop: PipelineStore) -> None:
    shop.define({"tables": ["shop.*"], "sink": {"warehouse": "a"}, "stop": None})
    with pytest.raises(ConfigError, match=r"'shop' is in use in this store with another sink, stop .*pipeline.json"):
        shop.define({"tables": ["shop.*"], "sink": {"warehouse": "b"}, "stop": {"gtid": "x"}})


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "ä", "x" * 64])
def test_a_name_that_could_leave_its_folder_names_no_pipeline(url: str, name: str) -> None:
    with pytest.raises(ConfigError, match="can't name a pipeline"):
        Store(url).pipeline(name)


def test_an_empty_store_has_nothing(shop: PipelineStore, url: str) -> None:
    assert Store(url).pipelines() == []
    assert shop.definition() is None
    assert shop.last_slot() == 0
    assert shop.journal_tail() == []
    assert shop.publications() == []
    assert shop.sweep() == []


def test_an_address_of_a_kind_without_put_if_absent_is_refused() -> None:
    with pytest.raises(ConfigError, match="can't trust with a journal"):
        Store("ftp://host/store")


def test_a_plain_folder_is_a_store_too(tmp_path: Path) -> None:
    Store(str(tmp_path / "store")).pipeline("shop").define({})
    assert Store(f"file://{tmp_path}/store").pipelines() == ["shop"]


def test_a_store_that_can_be_written_passes_and_keeps_nothing_of_the_look(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/store").prepare()
    assert everything(tmp_path) == set()


def test_a_store_that_can_not_be_written_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    with pytest.raises(ConfigError, match="file"):
        Store(f"file://{tmp_path}/file/store").prepare()
    with pytest.raises(ConfigError):
        Store("file:///proc/cutline").prepare()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody without rights")
def test_a_store_without_the_right_to_write_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"cutline-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o755)
    script = "import os, sys; from cutline.common.store import Store; os.setuid(65534); Store(sys.argv[1]).prepare()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, f"file://{folder}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        folder.rmdir()
    assert "ConfigError" in done.stderr
    assert "give Cutline the right to it" in done.stderr


# The journal


def test_a_slot_is_given_once(shop: PipelineStore) -> None:
    assert shop.put_entry(1, epoch(1, "mine"))
    assert not shop.put_entry(1, epoch(1, "another"))
    assert shop.entry(1) == epoch(1, "mine")
    assert shop.entry(2) is None


def test_a_slot_can_not_be_left_out(shop: PipelineStore) -> None:
    shop.put_entry(1, epoch(1))
    with pytest.raises(ProtocolError, match="slot 3 can't be written before slot 2"):
        shop.put_entry(3, checkpoint(3, 1))
    with pytest.raises(ProtocolError, match="slot 2 can't go into journal slot 3"):
        shop.put_entry(3, checkpoint(2, 1))


def test_the_tail_is_what_came_after_also_when_others_wrote_it(url: str) -> None:
    one, two = Store(url).pipeline("shop"), Store(url).pipeline("shop")
    one.put_entry(1, epoch(1))
    assert [entry["slot"] for entry in two.journal_tail()] == [1]
    for slot in range(2, 12):
        one.put_entry(slot, checkpoint(slot, 1))
    assert two.last_slot() == 11
    assert [entry["slot"] for entry in two.journal_tail(after=8)] == [9, 10, 11]


def test_the_order_of_keys_and_text_of_any_kind_come_back_as_written(shop: PipelineStore) -> None:
    body = {**epoch(1), "since_seq": {"z": 1, "a": 2}, "cause": "Zürich \ud83d \U0001f600 \x00"}
    shop.put_entry(1, body)
    assert json.dumps(shop.entry(1)) == json.dumps(body)


def test_an_entry_that_is_missing_in_between_stops_the_reader(files: PipelineStore) -> None:
    for slot in range(1, 4):
        files.put_entry(slot, checkpoint(slot, 1))
    os.unlink(files.location("journal/0000000002.json"))
    with pytest.raises(ProtocolError, match=r"journal/0000000002.json is missing; restore it from a backup"):
        files.journal_tail()


def test_an_entry_in_another_ones_place_stops_the_reader(files: PipelineStore) -> None:
    files.put_entry(1, epoch(1))
    os.rename(files.location("journal/0000000001.json"), files.location("journal/0000000002.json"))
    with pytest.raises(ProtocolError, match=r"0000000002.json holds the entry of slot 1; put it back"):
        files.entry(2)


def test_any_flipped_byte_of_an_entry_is_seen(files: PipelineStore) -> None:
    files.put_entry(1, {**epoch(1), "cause": "x"})
    location = Path(files.location("journal/0000000001.json"))
    whole = location.read_bytes()
    for at in range(len(whole)):
        location.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((ProtocolError, ConfigError), match=r"0000000001\.json"):
            files.entry(1)
    for length in range(len(whole)):
        location.write_bytes(whole[:length])
        with pytest.raises(ProtocolError, match=r"0000000001.json .* (restore|remove)"):
            files.entry(1)
    location.write_bytes(whole)
    assert files.entry(1) is not None


def test_a_file_of_a_newer_version_is_named_with_the_remedy(files: PipelineStore) -> None:
    files.define({"a": 1})
    location = Path(files.location("pipeline.json"))
    location.write_bytes(location.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(ConfigError, match=r"pipeline.json is of a newer Cutline \(format 2, known is 1\)"):
        files.define({"a": 1})


def test_somebody_elses_file_is_not_taken_for_ours(files: PipelineStore) -> None:
    files.define({"a": 1})
    Path(files.location("pipeline.json")).write_text('{"name": "somebody else\'s"}')
    with pytest.raises(ProtocolError, match=r"pipeline\.json is not an envelope of Cutline"):
        files.definition()


def race(url: str, me: int, start: Any, won: Any) -> None:
    """Try for every slot as fast as it goes; note those that were given to us."""
    shop = Store(url).pipeline("shop")
    start.wait()
    for slot in range(1, 101):
        if shop.put_entry(slot, {**epoch(slot, f"process {me}"), "padding": "x" * 10_000 * me}):
            won.put((slot, me))
    won.put(None)


def test_of_processes_that_race_for_a_slot_exactly_one_gets_it_and_it_is_its_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    url = f"file://{tmp_path}/store"
    start, won = context.Event(), context.Queue()
    racers = [context.Process(target=race, args=(url, me, start, won)) for me in range(3)]
    for racer in racers:
        racer.start()
    start.set()
    ended, given = 0, []
    while ended < len(racers):
        got = won.get(timeout=60)
        ended, given = (ended + 1, given) if got is None else (ended, [*given, got])
    for racer in racers:
        racer.join(timeout=60)
    assert sorted(slot for slot, _ in given) == list(range(1, 101))
    tail = Store(url).pipeline("shop").journal_tail()
    assert {entry["slot"]: entry["nonce"] for entry in tail} == {slot: f"process {me}" for slot, me in given}
    assert {name.rpartition("/")[0] for name in everything(tmp_path)} == {"store/shop/journal"}
    assert not [name for name in everything(tmp_path) if name.endswith(".tmp")]


def test_threads_that_race_for_claims_get_different_numbers_without_a_hole(url: str) -> None:
    claimed: list[int] = []
    threads = [
        threading.Thread(target=lambda: claimed.extend(Store(url).pipeline("shop").claim() for _ in range(20)))
        for _ in range(4 if url.startswith("file") else 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(1, len(threads) * 20 + 1))
    assert Store(url).pipeline("shop").claim() == len(claimed) + 1


class Torn(Exception):
    """The power failed."""


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_torn_write_leaves_no_entry_and_the_slot_free(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files.put_entry(1, epoch(1))

    def tear(*_: object) -> None:
        raise Torn

    with monkeypatch.context() as broken:
        broken.setattr(store.os, call, tear)
        broken.setattr(store._Files, "discard", lambda *_: None)
        with pytest.raises(Torn):
            files.put_entry(2, checkpoint(2, 1))
    assert any(name.endswith(".tmp") for name in os.listdir(files.location("journal")))
    fresh = PipelineStore(files._backend, "shop")
    assert fresh.last_slot() == 1
    assert fresh.put_entry(2, checkpoint(2, 1))
    assert [entry["slot"] for entry in fresh.journal_tail()] == [1, 2]


def test_an_error_on_the_way_leaves_no_temporary_file(files: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put_entry(1, epoch(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(store.os, "fsync", full)
        with pytest.raises(Unavailable, match=r"0000000002.json: No space left on device"):
            files.put_entry(2, checkpoint(2, 1))
    assert os.listdir(files.location("journal")) == ["0000000001.json"]


def test_a_file_system_without_hard_links_is_named_as_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(store.os, "link", refuse)
    with pytest.raises(ConfigError, match="without hard links"):
        Store(f"file://{tmp_path}/store").prepare()


def test_a_link_that_was_made_though_it_was_answered_as_refused_counts_as_ours(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def repeated(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(store.os, "link", repeated)
        assert files.put_entry(1, epoch(1, "mine"))
        assert not files.put_entry(1, epoch(1, "another"))
    assert files.entry(1) == epoch(1, "mine")


@pytest.mark.parametrize("arrived", [True, False])
def test_an_unclear_answer_of_the_object_store_is_cleared_by_a_look(
    monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    shop = Store(f"memory://{uuid.uuid4().hex}").pipeline("shop")
    filesystem = shop._backend._fs  # type: ignore[attr-defined]
    pipe = filesystem.pipe_file

    def unclear(path: str, data: bytes, mode: str) -> None:
        if arrived:
            pipe(path, data, mode=mode)
        raise TimeoutError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(filesystem, "pipe_file", unclear)
        if arrived:
            assert shop.put_entry(1, epoch(1, "mine"))
        else:
            with pytest.raises(Unavailable, match="no answer"):
                shop.put_entry(1, epoch(1, "mine"))
    assert shop.put_entry(1, epoch(1, "mine"))
    assert not shop.put_entry(1, epoch(1, "another"))


# Parts and staged files


def test_a_part_comes_back_as_it_was_saved(shop: PipelineStore) -> None:
    ref = part(shop, 1)
    assert shop.read_part(PartRef.from_json({**ref.to_json(), "rows": 5})) == b"state"
    assert (ref.path[:22], ref.size) == ("parts/0000000001.ab12.", 5)


def test_a_flipped_byte_or_a_missing_part_is_seen(files: PipelineStore) -> None:
    ref = part(files, 1)
    Path(files.location(ref.path)).write_bytes(b"stata")
    with pytest.raises(ProtocolError, match="is corrupt"):
        files.read_part(ref)
    with pytest.raises(ProtocolError, match="is corrupt"):
        files.verify(ref)
    os.unlink(files.location(ref.path))
    with pytest.raises(ProtocolError, match="is missing though an entry names it"):
        files.read_part(ref)
    with pytest.raises(ProtocolError, match="is missing though an entry names it"):
        files.verify(ref)


def test_parquet_written_bit_by_bit_into_a_staged_file_has_its_hash_without_a_second_reading(
    shop: PipelineStore,
) -> None:
    table = pa.table({"id": list(range(10_000)), "name": [f"row {i}" for i in range(10_000)]})
    file = shop.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for batch in table.to_batches(max_chunksize=1000):
            writer.write_batch(batch)
    ref = file.commit()
    shop.verify(ref)
    with shop._backend.open_read(f"shop/{ref.path}") as written:
        assert pq.read_table(written).equals(table)
        assert written.tell() <= ref.size


def test_a_staged_file_has_no_name_before_it_is_whole(files: PipelineStore) -> None:
    name = file_name("orders.parquet", epoch=1, incarnation="ab12")
    file = files.open_staged(name)
    file.write(b"half")
    assert not os.path.exists(files.location(f"staged/{name}"))
    file.write(b" and half")
    assert file.commit().path == f"staged/{name}"
    assert os.listdir(files.location("staged")) == [name]


@pytest.mark.parametrize("drop", [lambda file: file.discard(), lambda file: file.close()])
def test_a_staged_file_that_is_dropped_leaves_nothing(shop: PipelineStore, drop: Callable[[Any], None]) -> None:
    file = shop.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    file.write(b"half")
    drop(file)
    assert shop._backend.names("shop/staged") == []
    with pytest.raises(ValueError, match="is closed"):
        file.commit()


def test_a_writer_that_fails_leaves_nothing(shop: PipelineStore) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise Torn

    with pytest.raises(Torn):
        shop.stage(file_name("orders.parquet", epoch=1, incarnation="ab12"), fail)
    assert shop._backend.names("shop/staged") == []


def test_a_name_that_says_no_epoch_is_refused(shop: PipelineStore) -> None:
    for name in ("orders.parquet", "../0000000001.x", "0000000001.a/b"):
        with pytest.raises(ProtocolError, match=r"make it by store\.file_name"):
            shop.put_part(name, b"")


def test_two_names_for_the_same_thing_differ() -> None:
    assert len({file_name("orders.parquet", epoch=1, incarnation="ab12") for _ in range(100)}) == 100


# Publications


def test_a_publication_is_written_once_and_listed_in_order(shop: PipelineStore) -> None:
    assert shop.publish(12, {"n": 12, "w": 1})
    assert shop.publish(3, {"n": 3, "w": 1})
    assert not shop.publish(12, {"n": 12, "w": 2})
    assert shop.publication(12) == {"n": 12, "w": 1}
    assert shop.publication(4) is None
    assert shop.publication_numbers() == [3, 12]
    assert [publication.n for publication in shop.publications(after=3)] == [12]


# The sweep


def test_the_sweep_takes_what_dead_epochs_left_unnamed_and_nothing_else(files: PipelineStore) -> None:
    files.put_entry(1, epoch(1))
    named, part_named = staged(files, 1), part(files, 1)
    lost, part_lost, adopted = staged(files, 1), part(files, 1), staged(files, 1)
    files.put_entry(2, checkpoint(2, 1, (named,), adopted=adopted, reader_0=part_named))
    torn = files.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    assert files.sweep() == []

    files.put_entry(3, epoch(3, base=2))
    running, part_running = staged(files, 3), part(files, 3)
    growing = files.open_staged(file_name("orders.parquet", epoch=3, incarnation="ab12"))
    Path(files.location("staged/notes.txt")).write_text("somebody's")

    removed = files.sweep()
    assert {path for path in removed if not path.endswith(".tmp")} == {lost.path, part_lost.path}
    assert [path for path in removed if path.endswith(".tmp")] == [os.path.relpath(torn._temporary, files.location(""))]
    for ref in (named, adopted, part_named, running, part_running):
        files.verify(ref)
    growing.write(b"x")
    files.verify(growing.commit())
    assert os.path.exists(files.location("staged/notes.txt"))
    assert files.sweep() == []


def test_what_applied_checkpoints_needed_goes_but_adopted_chunks_and_the_parts_of_kept_ones(
    shop: PipelineStore, url: str
) -> None:
    shop.put_entry(1, epoch(1))
    changes, parts = [staged(shop, 1) for _ in range(4)], [part(shop, 1) for _ in range(4)]
    adopted, unnamed = staged(shop, 1), staged(shop, 1)
    for at, kept in enumerate((False, True, False, False)):
        chunk = adopted if at == 0 else None
        shop.put_entry(at + 2, checkpoint(at + 2, 1, (changes[at],), adopted=chunk, kept=kept, reader_0=parts[at]))

    def there(ref: PartRef) -> bool:
        try:
            shop.verify(ref)
        except ProtocolError:
            return False
        return True

    def left() -> list[list[int]]:
        return [[slot for slot, ref in enumerate(refs, start=2) if there(ref)] for refs in (changes, parts)]

    assert shop.sweep() == []
    shop.sweep_applied(4)
    assert left() == [[5], [3, 4, 5]]  # a restore begins at 4 or later, or at the kept one
    shop.sweep_applied(5)
    assert left() == [[], [3, 5]]
    Store(url).pipeline("shop").sweep_applied(5)
    assert left() == [[], [3, 5]]
    for ref in (adopted, unnamed):
        shop.verify(ref)


def test_temporary_names_in_the_journal_go_after_a_day(files: PipelineStore) -> None:
    files.put_entry(1, epoch(1))
    young, old = (Path(files.location(f"journal/.0000000002.json.{who}.tmp")) for who in ("young", "old"))
    young.write_bytes(b"{")
    old.write_bytes(b"{")
    os.utime(old, (0, 0))
    files.sweep()
    assert young.exists()
    assert not old.exists()
