"""A sample of `make fuzz` on the modules as they are installed, and what fuzzing has found, one test a finding."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cutline.common.errors import SourceLost
from cutline.services.sources.mysql.binlog.event_types import (
    GTID,
    HEADER_BYTES,
    MARIADB_GTID,
    ROTATE,
    ROWS_COMPRESSED,
    WRITE_ROWS,
    WRITE_ROWS_V1,
)
from tests.fuzz import record
from tests.fuzz.targets import Finding, Streams, Target, joined, targets
from tests.fuzz.worker import ROOT

SAMPLE = {"rows": 5000, "table_map": 300, "result": 1000, "stream": 300}
COMPARED = 40
TARGETS = targets()
RECORDINGS, RESULTS = record.load()


def inputs(target: Target, count: int, seed: int) -> list[bytes]:
    luck = random.Random(seed)
    made = []
    for _ in range(count):
        data = luck.choice(target.seeds)
        for _ in range(luck.choice((1, 1, 2, 4))):
            data = target.mutate(data, luck)
        made.append(data)
    return made


@pytest.mark.parametrize("name", SAMPLE)
def test_damaged_input_ends_in_rows_or_in_an_error_that_is_promised(name: str) -> None:
    target = TARGETS[name]
    for data in target.seeds + inputs(target, SAMPLE[name], 1):
        target.run(data)


def test_compiled_and_interpreted_make_the_same_of_damaged_input(tmp_path: Path) -> None:
    for name in SAMPLE:
        (tmp_path / name).mkdir()
        for number, data in enumerate(inputs(TARGETS[name], COMPARED, 2)):
            (tmp_path / name / f"{number}").write_bytes(data)
    outcomes = [
        subprocess.run(
            [sys.executable, "-m", "tests.fuzz.worker", "tell", modules, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for modules in ("-", "interpreted")
    ]
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == COMPARED * len(SAMPLE)


def test_a_contract_that_is_broken_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness sees an error without file and offset, and one that is not of our tree."""
    streams = Streams(RECORDINGS)
    data = next(seed for seed in streams.seeds if b"BEGIN" in seed).replace(b"BEGIN", b"XA ??")
    streams.run(data)
    for error, found in ((SourceLost("somewhere"), Finding), (KeyError("x"), KeyError)):

        def broken(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("cutline.services.sources.mysql.binlog.cursor.BinlogCursor.read", broken)
        with pytest.raises(found):
            streams.run(data)


# ---- findings --------------------------------------------------------------------------------------------------------


def recording(name: str, flavour: str) -> record.Recording:
    (found,) = (candidate for candidate in RECORDINGS if candidate.name == name and candidate.flavour == flavour)
    return found


def read(recorded: record.Recording, events: list[bytes]) -> str:
    """Everything that came of reading a dump with these events, as text."""
    streams = Streams([replace(recorded, events=tuple(events))])
    return repr(streams.run(b"\0\0" + joined([(0, event) for event in events]), tell=True))


def changed(recorded: record.Recording, kind: int, at: int, new: bytes, number: int = 0) -> list[bytes]:
    """The events, with bytes of the `number`th one of that type changed (from its header on)."""
    events = list(recorded.events)
    which = [i for i, event in enumerate(events) if event[4] == kind][number]
    events[which] = events[which][:at] + new + events[which][at + len(new) :]
    return events


@pytest.mark.parametrize("number", [0, -1, -(1 << 62)])
def test_a_gtid_event_with_an_impossible_number_is_damage(number: int) -> None:
    for flavour, kind, at in (("mysql", GTID, HEADER_BYTES + 17), ("mariadb", MARIADB_GTID, HEADER_BYTES)):
        if number or flavour == "mysql":
            recorded = recording("transaction", flavour)
            assert "a GTID event has the number" in read(
                recorded, changed(recorded, kind, at, struct.pack("<q", number))
            )


def test_an_event_that_says_it_ends_before_it_begins_is_damage() -> None:
    for flavour, kind in (("mysql", GTID), ("mariadb", MARIADB_GTID)):
        recorded = recording("transaction", flavour)
        assert "states that it ends at 5" in read(recorded, changed(recorded, kind, 13, struct.pack("<I", 5)))
        assert "does not state where it ends" in read(recorded, changed(recorded, kind, 13, struct.pack("<I", 0)))


@pytest.mark.parametrize("file", [b"x", b"binlog.000001"])
def test_a_rotation_to_a_binlog_of_another_name_or_back_is_damage(file: bytes) -> None:
    recorded = recording("statements", "mysql")
    assert "which is no later file of this binlog" in read(
        recorded, changed(recorded, ROTATE, HEADER_BYTES + 8, file, number=1)
    )


def test_a_rotation_to_an_offset_that_no_file_has_is_damage() -> None:
    recorded = recording("statements", "mysql")
    events = changed(recorded, ROTATE, HEADER_BYTES, struct.pack("<Q", 16861477004875137222), number=1)
    assert "names the offset 16861477004875137222, which no file has" in read(recorded, events)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_text_that_is_not_utf_8_stops_its_table_and_names_file_and_offset(flavour: str) -> None:
    recorded = recording("plain", flavour)
    at, event = next((at, event) for at, event in enumerate(recorded.events) if event[4] in (WRITE_ROWS_V1, WRITE_ROWS))
    start = int.from_bytes(event[13:17], "little") - len(event)
    events = [*recorded.events]
    events[at] = event.replace(b"one", b"o\xffe")
    file = recorded.events[0][27:40].decode()
    assert f"column b holds bytes that are not UTF-8 at {file}:{start}" in read(recorded, events)


def test_a_compressed_row_event_that_is_damaged_stops_its_table_only() -> None:
    recorded = recording("compressed", "mariadb")
    kind = next(event[4] for event in recorded.events if event[4] in ROWS_COMPRESSED)
    for place, new in ((40, b"\xff\xff\xff"), (HEADER_BYTES + 8 + 1 + 1, b"\x84\xff\xff\xff\xff")):
        outcome = read(recorded, changed(recorded, kind, place, new))
        assert "a row event that can't be read" in outcome
        assert "TableUnreadable" in outcome
