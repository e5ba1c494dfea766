"""Damage in a binlog file of a real server: told with file and offset, every time it is met, and nothing skipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cutline.common.causes import Code
from cutline.common.errors import SourceLost
from cutline.common.positions import High
from cutline.common.schema import TABLE
from tests.conftest import started
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.history import content, differences
from tests.support.mesh import Mesh
from tests.support.modelled_lake import cuts
from tests.support.operator import done
from tests.support.sources import here
from tests.support.streams import FollowingCursor, stream

KINDS = [MySQL, MariaDB]
DATABASE = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A row event in a binlog file: where it begins, and its size."""

    offset: int
    size: int
    table: str


def row_events(data: bytes) -> Iterator[Found]:
    """The row events of a binlog file."""
    at, table = 4, ""
    while at < len(data):
        kind, size = data[at + 4], int.from_bytes(data[at + 9 : at + 13], "little")
        if kind == 19:
            schema = data[at + 28 : at + 28 + data[at + 27]]
            name = at + 28 + len(schema) + 1
            table = data[name + 1 : name + 1 + data[name]].decode()
        elif kind in (23, 24, 25, 30, 31, 32):
            yield Found(offset=at, size=size, table=table)
        at += size


@contextmanager
def server_with(kind: type[Database], checksum: str) -> Iterator[Database]:
    server = kind(binlog_checksum=checksum)
    with started(server):
        server.execute(f"CREATE DATABASE {DATABASE}")
        for table in "ab":
            server.execute(f"CREATE TABLE {DATABASE}.{table} (id INT PRIMARY KEY, v VARCHAR(20))")
        yield server


def write(server: Database) -> str:
    """Rows of both tables, in a file of their own that the server has closed; the file's name."""
    server.execute("FLUSH BINARY LOGS")
    file = here(server).file
    for number in range(1, 6):
        for table in "ab":
            server.execute(f"INSERT INTO {DATABASE}.{table} VALUES ({number}, 'value {number}')")
    server.execute("FLUSH BINARY LOGS")
    server.execute(*(f"INSERT INTO {DATABASE}.{table} VALUES (99, 'in the next file')" for table in "ab"))
    return file


def damage(server: Database, file: str, change: Callable[[bytearray, Found], None]) -> Found:
    """Change the third row event of table a in the file."""
    assert server.folder is not None
    path: Path = server.folder / "data" / file
    data = bytearray(path.read_bytes())
    found = [event for event in row_events(bytes(data)) if event.table == "a"][2]
    change(data, found)
    with open(path, "r+b") as opened:  # in place: the server may have it open
        opened.write(data)
        opened.truncate(len(data))
    return found


def length_byte(data: bytearray, event: Found) -> None:
    """The length of v says 255."""
    at = data.index(b"\x07value 3", event.offset)
    data[at] = 0xFF


def text(data: bytearray, event: Found) -> None:
    """v is not UTF-8."""
    at = data.index(b"value 3", event.offset)
    data[at] = 0xFF


def size(data: bytearray, event: Found) -> None:
    """The event's header says another size."""
    data[event.offset + 9] += 7


def truncated(data: bytearray, event: Found) -> None:
    """The file ends inside the event."""
    del data[event.offset + event.size // 2 :]


def read_on(it: FollowingCursor, server: Database) -> None:
    end = here(server)
    high = High(server=end.server, file=end.file, offset=end.offset)
    for _ in range(50):
        if high.reached_by(it.position):
            return
        it.read(until=high)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [length_byte, text])
def test_a_damaged_row_event_stops_its_table_and_no_other(
    kind: type[Database], change: Callable[[bytearray, Found], None]
) -> None:
    with server_with(kind, "NONE") as server, stream(server, [f"{DATABASE}.{table}" for table in "ab"]) as it:
        file = write(server)
        event = damage(server, file, change)
        read_on(it, server)
        (fault,) = it.faults
        assert fault.table_id == f"{DATABASE}.a"
        assert f"{file}:{event.offset}" in str(fault.cause)
        assert [row["id"] for row in it.rows if row[TABLE].endswith(".b")] == [1, 2, 3, 4, 5, 99]
        assert [row["id"] for row in it.rows if row[TABLE].endswith(".a")] in ([], [1, 2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("checksum", "change"),
    [
        ("CRC32", length_byte),
        ("NONE", size),
        ("NONE", truncated),
        *(pytest.param("CRC32", change, marks=pytest.mark.full) for change in (text, size, truncated)),
    ],
)
def test_what_leaves_no_table_to_blame_stops_the_stream_each_time(
    kind: type[Database], checksum: str, change: Callable[[bytearray, Found], None]
) -> None:
    with server_with(kind, checksum) as server, stream(server, [f"{DATABASE}.{table}" for table in "ab"]) as it:
        file = write(server)
        event = damage(server, file, change)
        causes = []
        for _ in range(2):
            with pytest.raises(SourceLost) as raised:
                read_on(it, server)
            causes.append(str(raised.value.cause))
        assert causes[0] == causes[1]
        place = re.search(rf"{re.escape(file)}:(\d+)", causes[0])
        assert place is not None, causes[0]
        assert int(place[1]) <= event.offset
        assert f"after offset {event.offset}:" in causes[0] or change is size
        assert all(row["id"] < 3 for row in it.rows if row[TABLE].endswith(".a"))
        assert all(row["id"] != 99 for row in it.rows)


@pytest.mark.parametrize(("kind", "checksum"), [(MySQL, "CRC32"), (MariaDB, "NONE")])
def test_a_pipeline_halts_or_quarantines_at_the_damage_and_goes_on_once_it_is_read_again(
    kind: type[Database], checksum: str, tmp_path: Path
) -> None:
    """1. Both tables are live.  2. The reader is away while rows are written and one event is damaged.
    3. A checksum that does not match halts the pipeline; without checksums the table is quarantined, and b goes on.
    4. The remedy: all tables are read again, or the one is retried; then they equal the source.
    """
    with server_with(kind, checksum) as server, Mesh(tmp_path, readers=1, writers=1) as mesh:
        tables = [f"{DATABASE}.{table}" for table in "ab"]
        pipeline = mesh.pipeline("damaged", server, tables)
        pipeline.until(lambda: pipeline.shows(*tables), "both tables to be shown")
        for reader in mesh.running("reader"):
            mesh.kill(reader)
        file = write(server)
        event = damage(server, file, length_byte)
        mesh.start("reader")
        if checksum == "NONE":
            pipeline.until(lambda: pipeline.phase(tables[0]) == "quarantined", "the quarantine")
            pipeline.catches_up(tables[1])
            newest = pipeline.checkpoint()
            assert newest is not None
            cause = newest.tables[tables[0]].cause
            assert cause is not None
            assert f"{file}:{event.offset}" in cause.sentence
            assert (cause.code, cause.remedy) == (
                Code.UNREADABLE, "check the file with mysqlbinlog, then retry the table",
            )  # fmt: skip
            done(pipeline, "retry_table", table=tables[0])
        else:
            halted = pipeline.until(lambda: pipeline.status().enumerator.halted, "the halt")
            assert re.search(rf"{re.escape(file)}:\d+", halted.sentence), halted
            assert (halted.code, "cutline pipeline read-again damaged" in halted.remedy) == (Code.BINLOG, True)
            assert len(pipeline.epochs()) < 10
            done(pipeline, "read_again")
        slot = pipeline.catches_up(*tables).slot
        cut = next(cut for cut in cuts(pipeline) if cut.slot == slot)
        for table in tables:
            assert differences(cut.tables[table].content, content(server, table, ["id"])) == [], table
