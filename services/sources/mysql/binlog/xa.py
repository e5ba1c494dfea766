"""XA transactions: their rows stand in the binlog at PREPARE, and count from COMMIT on.

What is prepared is kept in memory while it is small, and otherwise, or after a restart, read again from the binlog: on
a second connection, from its PREPARE, which is looked for backwards from the COMMIT, file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from cutline.common.errors import SourceLost
from cutline.common.positions import FilePosition
from cutline.services.sources.mysql.binlog.dump import Dump, take_format
from cutline.services.sources.mysql.binlog.event_bodies import (
    FORMAT,
    GTID_TAGGED,
    HEARTBEAT,
    HEARTBEAT_2,
    PAYLOAD,
    QUERY,
    QUERY_COMPRESSED,
    REFUSED,
    ROTATE,
    ROWS,
    ROWS_COMPRESSED,
    TABLE_MAP,
    XA_PREPARE,
    Body,
    Xid,
    described,
    inflated_rows,
    payload,
    payload_in,
    plain_kind,
    statement,
    tagged_gtid,
    without_checksum,
    xid_in,
    xid_of,
)
from cutline.services.sources.mysql.binlog.frames import EVENT, NEED, SAID, Frames, Plan
from cutline.services.sources.mysql.connection import Connection, translate_errors
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.rows import Place
from cutline.services.sources.mysql.server import FIRST_OFFSET, binlogs, identify

_HELD_BYTES = 8 << 20


@dataclass(slots=True)
class _Prepared:
    """An XA transaction that stands prepared: where, and its events while they are few."""

    at: FilePosition
    events: list[tuple[int, Body]] | None = field(default_factory=list)
    size: int = 0

    def keep(self, event_type: int, body: Body) -> None:
        self.size += len(body)
        if self.size > _HELD_BYTES:
            self.events = None
        elif self.events is not None:
            self.events.append((event_type, body))


class Prepared:
    """What one dump has seen prepared, by name, in bounded memory. Of an XA transaction come `begin`, each of its
    events by `keep`, `prepare`; at its COMMIT `events` gives them, and `forget` lets go of it.

    `connect` and `server_id` are for connections of its own, to read again what is not in memory.
    """

    def __init__(self, connect: Callable[[], Connection], *, server_id: int) -> None:
        self._connect, self._server_id = connect, server_id
        self._open: _Prepared | None = None
        self._prepared: dict[Xid, _Prepared] = {}

    def clear(self) -> None:
        """The dump is over."""
        self._open = None
        self._prepared.clear()

    def begin(self, at: FilePosition | None) -> None:
        """Another transaction begins, at that place; None if it is passed over."""
        self._open = None if at is None else _Prepared(at)

    def keep(self, event_type: int, body: Body) -> None:
        """A TABLE_MAP, a row event, or a return to a savepoint, of the transaction that is open, if one is."""
        if self._open is None:
            return
        if event_type in ROWS_COMPRESSED:
            event_type, body = plain_kind(event_type), inflated_rows(event_type, body)
        self._open.keep(event_type, body)

    def prepare(self, xid: Xid) -> None:
        """The transaction that is open stands prepared. Damaged if none is."""
        if self._open is None:
            raise Damaged("an XA PREPARE came without an XA START")
        self._prepared[xid], self._open = self._open, None
        while sum(one.size for one in self._prepared.values() if one.events) > 4 * _HELD_BYTES:
            next(one for one in self._prepared.values() if one.events).events = None

    def forget(self, xid: Xid) -> None:
        """It is committed, or rolled back."""
        self._prepared.pop(xid, None)

    def events(self, xid: Xid, before: FilePosition) -> Iterator[tuple[int, Body]]:
        """TABLE_MAP and row events of a transaction whose COMMIT is `before`, and the statements that were kept of it.
        SourceLost if its PREPARE is purged."""
        held = self._prepared.get(xid)
        if held is not None and held.events is not None:
            return iter(held.events)
        return self._read_again(xid, None if held is None else held.at, before)

    def _read_again(self, xid: Xid, at: FilePosition | None, before: FilePosition) -> Iterator[tuple[int, Body]]:
        if at is None:
            with closing(self._connect()) as connection:
                files = [file for file in binlogs(connection) if FilePosition(file.file, FIRST_OFFSET) < before]
            for file in reversed(files):
                with closing(self._scan(FilePosition(file.file, FIRST_OFFSET), before)) as scan:
                    at = scan.last_prepare(xid)
                if at is not None:
                    break
        if at is None:
            raise SourceLost(
                f"The XA transaction {xid} is committed at {before}, and its XA PREPARE is purged from the binlog; the"
                " tables must be read again from a new snapshot (with GRANT XA_RECOVER_ADMIN ON *.* to the user, which"
                " lets a snapshot on MySQL wait for such transactions)"
            )
        with closing(self._scan(at, None)) as scan:
            yield from scan.transaction()

    def _scan(self, at: FilePosition, before: FilePosition | None) -> _Scan:
        server_id = (self._server_id + (1 << 30)) & 0xFFFFFFFF or 1
        return _Scan(Dump(self._connect(), server_id=server_id), at, before)


class _Scan:
    """A short look at the binlog: from a place to the end of its file, or to a place in it, to find or to read one
    prepared XA transaction."""

    def __init__(self, dump: Dump, at: FilePosition, before: FilePosition | None) -> None:
        self._dump, self._at, self._before = dump, at, before

    def close(self) -> None:
        self._dump.close()

    def last_prepare(self, xid: Xid) -> FilePosition | None:
        """Where the last transaction that was prepared under this name begins, in this file."""
        found: FilePosition | None = None
        for kind, body, frames in self._walk():
            if kind == XA_PREPARE and xid_of(body) == xid and not body[0]:
                found = FilePosition(frames.file, frames.tx_start)
            elif kind in (QUERY, QUERY_COMPRESSED) and not frames.tx_begun:
                text = statement(kind, body)[1]
                if text[:9].upper() in ("XA COMMIT", "XA ROLLBA") and xid_in(text) == xid:
                    found = None
        return found

    def transaction(self) -> Iterator[tuple[int, Body]]:
        """TABLE_MAP and row events of the XA transaction that begins here, and where it went back to a savepoint."""
        for kind, body, _ in self._walk():
            if kind == XA_PREPARE:
                return
            undone = kind == QUERY and statement(kind, body)[1][:11].upper() == "ROLLBACK TO"
            if kind == TABLE_MAP or kind in ROWS or kind in REFUSED or undone:
                yield kind, body
        raise SourceLost(f"The XA transaction at {self._at} has no end in the binlog; the tables must be read again")

    def _walk(self) -> Iterator[tuple[int, Body, Frames]]:
        """The events of transactions, and the statements; what only leads to them is taken here."""
        for kind, body, frames in self._events():
            if kind == FORMAT:
                take_format(frames, body)
            elif kind == ROTATE:
                name = without_checksum(body)[27:].decode(errors="replace")
                if name != frames.file:
                    return
            elif kind in (HEARTBEAT, HEARTBEAT_2):
                continue
            elif kind == TABLE_MAP and not frames.hold:
                number, table_id = described(body)
                frames.plans[number] = Plan(table_id, body)
                frames.table_changed()
            elif kind == PAYLOAD:
                file, frames.spooled = frames.spooled, None
                frames.open_payload(payload(body) if file is None else payload_in(file))
            elif kind == GTID_TAGGED:
                frames.tagged(*tagged_gtid(body))
            elif kind in ROWS_COMPRESSED:
                yield plain_kind(kind), inflated_rows(kind, body), frames
            elif kind in (QUERY, QUERY_COMPRESSED):
                text = statement(kind, body)[1]
                if not frames.tx_open:
                    frames.start_anonymous(frames.event_start, 0)
                yield kind, body, frames
                if text[:8].upper() in ("XA START", "XA BEGIN"):
                    frames.tx_begun = frames.hold = True
                elif text == "BEGIN":
                    frames.tx_begun = True
                elif (
                    text in ("COMMIT", "ROLLBACK")
                    or not frames.tx_begun
                    or text[:9].upper() in ("XA COMMIT", "XA ROLLBA")
                ):
                    _end(frames)
            elif kind == XA_PREPARE:
                yield kind, body, frames
                _end(frames)
            else:
                yield kind, body, frames

    def _events(self) -> Iterator[tuple[int, bytes, Frames]]:
        """Every event that the frames don't take by themselves, those of XA transactions among them."""
        dump = self._dump
        server = identify(dump.connection)
        frames = Frames(Place(), mariadb=not server.mysql, judge=lambda _: False, taken=lambda *_: 0)
        frames.file, frames.pos = self._at.file, self._at.offset
        with translate_errors(f"the binlog at {self._at}"):
            dump.begin(server, frames, flags=1)
        while True:
            code = frames.scan()
            if code == NEED:
                dump.receive(frames, dump.silence)
            elif code == SAID:
                if frames.event_body[:1] == b"\xfe":
                    return
                raise dump.said(frames)
            elif code == EVENT:
                if frames.file != self._at.file or (
                    self._before is not None and FilePosition(frames.file, frames.event_start) >= self._before
                ):
                    return
                yield frames.event_type, frames.event_body, frames


def _end(frames: Frames) -> None:
    if frames.event_inner:
        frames.close_payload()
    else:
        frames.end_transaction()
