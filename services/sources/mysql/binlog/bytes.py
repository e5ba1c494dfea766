"""The bytes of a binlog: who delivers them to a scanner, and which form they have.

They are the packets of a dump in the replication protocol of MySQL and MariaDB: one or more for each event, which
begins with its header. `BinlogBytes` is the contract between a cursor and whoever has them; a dump (dump.py) asks the
source.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import FilePosition, Position
from cutline.services.sources.mysql.binlog.event_types import (
    ARTIFICIAL_FLAG,
    HEADER_BYTES,
    QUERY,
    TABLE_MAP,
    WRITE_ROWS,
)
from cutline.services.sources.mysql.binlog.scanner import Scanner
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.server import Server

_POST_HEADERS = 57  # where a format description's post-header lengths begin
_CRC32 = 1  # the checksum algorithm


class BinlogBytes(Protocol):
    """One delivery of the binlog of `server`. Synchronous; one thread at a time.

    Call `begin` or `begin_at` once, first; then `receive` whenever the scanner needs bytes; at the end, and after any
    error, `close`. Errors of all methods: Unavailable (nothing is lost; a new delivery continues), SourceLost (bytes
    are missing or wrong), ConfigError (a missing right).
    """

    server: Server

    def begin(self, scanner: Scanner, after: Position) -> GtidSet | MariaGtid | None:
        """Place the scanner, and deliver everything that follows `after`. Returns the GTIDs taken until `after`, which
        may know more of them than `after` itself.

        The delivery may begin before `after`, with transactions that `after.executed` has or that the scanner is placed
        to discard. Where it chooses the file, it leaves the scanner without one: its first event names it. SourceLost
        also if something that follows `after` is gone. The typical mistake: to take `after.offset` for a place in the
        file of another server.
        """

    def begin_at(self, scanner: Scanner, at: FilePosition) -> None:
        """Place the scanner, and deliver the file from `at` to its present end. Then comes a packet that is no event
        and begins with 0xfe."""

    def receive(self, scanner: Scanner, seconds: float, *, leisurely: bool = False) -> bool:
        """Wait for bytes, at most `seconds`, and give them to the scanner; whether any came. Unavailable if the
        delivery has ended, or has been silent for too long. `leisurely`: may return a few ms later, to wake up less
        often."""

    def failure(self, scanner: Scanner) -> Exception:
        """The error for the packet at hand, which came instead of an event."""

    def check_end(self, position: Position) -> None:
        """SourceLost if the binlog no longer reaches `position`, because it was reset: a delivery only falls silent
        then. Call it when nothing has come for long; it never raises Unavailable."""

    def close(self) -> None:
        """End the delivery."""


def take_format(scanner: Scanner, event: bytes) -> None:
    """Take a format description, with header and checksum: it tells the form of the events that follow. Damaged if it
    can't be read, or tells a form that the scanner can't read."""
    body = event[HEADER_BYTES:]
    if len(body) < _POST_HEADERS + 30 or int.from_bytes(body[:2], "little") != 4 or body[56] != HEADER_BYTES:
        raise Damaged("the format description is not that of binlog version 4")
    lengths = body[_POST_HEADERS:-5]  # by event type
    if (
        lengths[TABLE_MAP - 1] != 8
        or lengths[QUERY - 1] != 13
        or (len(lengths) >= WRITE_ROWS and lengths[WRITE_ROWS - 1] != 10)
    ):
        raise Damaged("the format description's post-header lengths are not those of MySQL 5.6 or MariaDB 10 and later")
    if body[-5] > _CRC32:
        raise Damaged(f"the format description names checksum algorithm {body[-5]}")
    scanner.use_checksums(body[-5] == _CRC32)
    if scanner.checksum and zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
        raise Damaged("the checksum of a format description does not match")
    end = int.from_bytes(event[13:17], "little")
    if end and not scanner.event.flags & ARTIFICIAL_FLAG and not scanner.tx.open:
        scanner.move_to(end)
