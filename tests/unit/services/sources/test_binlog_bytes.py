"""A stream reads a binlog from whoever delivers its bytes, here from a log in memory."""

from __future__ import annotations

import struct
import time

import pytest

from cutline.common.errors import SourceLost, Unavailable
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import FilePosition, High, Low, Position
from cutline.services.sources.contract import Changes, Route
from cutline.services.sources.mysql.binlog.bytes import BinlogBytes
from cutline.services.sources.mysql.binlog.cursor import Stream
from cutline.services.sources.mysql.binlog.event_types import ARTIFICIAL_FLAG, ROTATE, TABLE_MAP, WRITE_ROWS, XID
from cutline.services.sources.mysql.binlog.scanner import Scanner
from cutline.services.sources.mysql.server import Server
from tests.support.binlog_log import MAPS, PREFIX, Log, T, inserted

FILE = "binlog.000001"
SERVER = Server(flavour="mysql", version=(9, 7), identity="s", gtid=True)


class KeptBytes:
    """A delivery of what a log has, a few bytes at a time. `chooses`: it chooses the file, and names it by a ROTATE."""

    def __init__(self, log: Log, *, chooses: bool = False) -> None:
        self.server, self.left, self.checksum, self.chooses = SERVER, log.bytes, log.checksum, chooses
        self.checked: list[Position] = []
        self.closed = False

    def begin(self, scanner: Scanner, after: Position) -> GtidSet | MariaGtid | None:
        scanner.start_at("" if self.chooses else after.file, 4 if self.chooses else after.offset, after.rows)
        scanner.use_checksums(self.checksum)
        return after.executed

    def begin_at(self, scanner: Scanner, at: FilePosition) -> None:
        scanner.start_at(at.file, at.offset)

    def receive(self, scanner: Scanner, seconds: float, *, leisurely: bool = False) -> bool:
        room = scanner.room()
        n = min(100, len(self.left), len(room))
        room[:n] = self.left[:n]
        room.release()
        self.left = self.left[n:]
        scanner.filled(n)
        return n > 0

    def failure(self, scanner: Scanner) -> Exception:
        return Unavailable("the log has ended")

    def check_end(self, position: Position) -> None:
        self.checked.append(position)
        raise SourceLost("the log was reset")

    def close(self) -> None:
        self.closed = True


def logged(log: Log, *numbers: int) -> Log:
    for number in numbers:
        log.begin(number).event(TABLE_MAP, MAPS["d.t"]).event(WRITE_ROWS, inserted("d.t", number))
        log.event(XID, struct.pack("<Q", number))
    return log


def opened(delivery: BinlogBytes, after: Position) -> Stream:
    stream = Stream(
        delivery,
        after,
        connect=lambda: pytest.fail("it connects"),
        server_id=1,
        schema_changes="evolve",
        source_time=None,
    )
    stream.open(after)
    return stream


def read(stream: Stream, until: int) -> Changes:
    """All changes of table t up to that offset."""
    low, high = Low(server="s", file=FILE, offset=4), High(server="s", file=FILE, offset=4)
    route = Route(table_id="d.t", generation=1, schema=T, low=low, high=high, live=True)
    stream.begin({"d.t": route}, High(server="s", file=FILE, offset=until), None)
    stream.scanner.begin(100, 1 << 20, False)
    return stream.changes(stream.pump(time.monotonic() + 30.0))


def ids(changes: Changes) -> list[int]:
    return [key for each in changes.batches for key in each.batch["id"].to_pylist()]


def test_rows_come_from_any_delivery_as_from_a_dump() -> None:
    log = logged(Log(), 1, 2, 3)
    delivery = KeptBytes(log)
    stream = opened(delivery, Position(server="s", file=FILE, offset=4))
    got = read(stream, log.at)
    assert ids(got) == [1, 2, 3]
    assert (got.position.offset, got.position.gtids) == (log.at, f"{PREFIX}:1-3")
    stream.close()
    assert delivery.closed


def test_a_delivery_that_chooses_the_file_may_leave_out_what_was_taken() -> None:
    """The position is never before the one that the stream began at, though the file is delivered from its start."""
    before = logged(Log(), 1, 2)
    log = Log(at=4)
    log.event(ROTATE, struct.pack("<Q", 4) + FILE.encode(), flags=ARTIFICIAL_FLAG)
    log.at = before.at
    logged(log, 3)
    after = Position(server="s", file=FILE, offset=before.at, gtids=f"{PREFIX}:1-2")
    stream = opened(KeptBytes(log, chooses=True), after)
    assert (stream.scanner.file, stream.progress.position()) == (FILE, after)
    got = read(stream, log.at)
    assert ids(got) == [3]
    assert got.position.gtids == f"{PREFIX}:1-3"


def test_a_delivery_that_has_nothing_for_long_is_asked_whether_the_binlog_was_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = logged(Log(), 1)
    delivery = KeptBytes(log)
    stream = opened(delivery, Position(server="s", file=FILE, offset=4))
    here = read(stream, log.at).position
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    stream.check_end()
    monkeypatch.setattr(time, "monotonic", lambda: 1100.0)
    with pytest.raises(SourceLost, match="reset"):
        stream.check_end()
    assert delivery.checked == [here]
