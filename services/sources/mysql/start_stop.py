"""Where a stream begins and ends: a pipeline's `start` and `stop` as places in the source's binlog.

A place is found by reading the one binlog file that holds it, without decoding a row; which file that is, is asked by
halving (the time in each file's first event, the GTIDs before each file).

| named by | begins | ends |
|---|---|---|
| file and position | there; it must lie between two transactions | there; a transaction that begins before it is in |
| GTID set | after just these transactions | after the transaction that completes the set |
| time T | before the first transaction in the log committed at T or later | the same place |

So a pipeline that stops at T and one that starts at T share no transaction and miss none. The time is what the server
that is read wrote into its binlog: on MySQL when the transaction was committed, in microseconds; on MariaDB, in whole
seconds, when its last statement began.

Change together with: `Stop` in common/positions.py, the gate in binlog/cursor.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime

from cutline.common.config.pipeline import PipelineConfig, Point
from cutline.common.errors import SourceLost
from cutline.common.positions import FilePosition, GtidSet, High, MariaGtid, Position, Stop, beyond
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.binlog.dump import greet, request_dump
from cutline.services.sources.mysql.connection import Connection, translate_errors
from cutline.services.sources.mysql.server import (
    FIRST_OFFSET,
    Server,
    binlog_gtid_pos,
    binlogs,
    clock,
    current_position,
    event_at,
    first_position,
    flushed_position,
    gtid_executed,
    identify,
    previous_gtids,
    verify_position,
)

_FORMAT = 15
_SECOND = 1_000_000
_WAIT_SECONDS = 5.0
_BETWEEN = frozenset(("Binlog_checkpoint", "Rotate", "Stop"))
"""Events between two transactions: what lies before them is the same place as what lies after them."""


class Places:
    """Finds places in one source's binlog; opens connections as it needs them. Synchronous.

    `server_id` is the pipeline's: what reads here takes another one that is far from it.
    """

    def __init__(self, connect: Callable[[], Connection], *, server_id: int) -> None:
        self._connect = connect
        self._server_id = (server_id + (1 << 31)) & 0xFFFFFFFF or 1

    def start(self, start: str | Point) -> Position | None:
        """Where the stream begins by a pipeline's `start`; None if it begins with a snapshot.

        SourceLost if that place is purged, yet to come, or no place between two transactions.
        """
        if not isinstance(start, Point) and start not in ("latest", "earliest"):
            return None
        with closing(self._connect()) as conn:
            of = identify(conn)
            if not isinstance(start, Point):
                return (current_position if start == "latest" else first_position)(conn, of)
            if start.gtid is not None:
                return self._after_gtids(conn, of, start.gtid)
            stop = named(of, start)
            place = self._find(conn, of, stop)
            if place is None:
                raise SourceLost(f"{stop} is yet to come at the source; name a place or time that it has passed")
            if start.file is None or place.file_position == (asked := FilePosition(stop.file, stop.offset)):
                return place
            if event_at(conn, asked) not in _BETWEEN:
                raise SourceLost(
                    f"{stop} is no place between two transactions, as {place.file_position} would be; name that one"
                )
            return replace(place, file=asked.file, offset=asked.offset)

    def stop(self, stop: Stop) -> Position | None:
        """The place of the stop, None if the source has not passed it yet. SourceLost if it can't be found any more."""
        with closing(self._connect()) as conn:
            return self._find(conn, identify(conn), stop)

    def faults(self, config: PipelineConfig) -> list[str]:
        """What is wrong with the `start` and the `stop` of a pipeline that begins now, each with its remedy."""
        begin = None
        try:
            begin = self.start(config.start)
        except SourceLost as error:
            return [f"start: {error.cause}"]
        if config.stop is None:
            return []
        with closing(self._connect()) as conn:
            of = identify(conn)
            end = flushed_position(conn, of)
            try:
                stop = named(of, config.stop)
                place = self._find(conn, of, stop)
            except SourceLost as error:
                return [f"stop: {error.cause}"]
        if place is not None and begin is None and place.file_position < end:
            return [
                f"stop: {stop} is passed already ({place.file_position}), and a snapshot begun now is later than that;"
                " name a later stop, or start at a place in the binlog"
            ]
        if place is not None and begin is not None and beyond(begin, place):
            return [f"stop: {stop} lies before the start, {begin.file_position}; name a later one"]
        return []

    # --- finding ---

    def _find(self, conn: Connection, of: Server, stop: Stop) -> Position | None:
        now = clock(conn)  # before the position: what is committed afterwards has a later time
        at = flushed_position(conn, of)
        end = High(server=of.identity, file=at.file, offset=at.offset)
        files = [one.file for one in binlogs(conn)]
        if stop.time_us is not None:
            if now < stop.time_us:
                return None
            first = bisect_right(files, stop.time_us, key=lambda file: (self._begun(file) + 1) * _SECOND) - 1
            if first < 0:
                begun = datetime.fromtimestamp(self._begun(files[0]), UTC).isoformat()
                raise SourceLost(
                    f"{stop} is purged: the oldest binlog file, {files[0]}, begins at {begun}; name a later time, or"
                    " use earliest (and keep binlogs longer: binlog_expire_logs_seconds)"
                )
        elif stop.file and stop.server == of.identity:
            if stop.file not in files:
                if FilePosition(stop.file, stop.offset) > at:
                    return None
                raise SourceLost(
                    f"The binlog file {stop.file} is purged; name a later place (and keep binlogs longer:"
                    " binlog_expire_logs_seconds)"
                )
            if FilePosition(stop.file, stop.offset) > at:
                return None
            first = files.index(stop.file)
        else:
            executed = str(gtid_executed(conn)) if of.mysql else binlog_gtid_pos(conn, at) or ""
            if not stop.met_by(Position(server=of.identity, file="", offset=0, gtids=executed)):
                return None
            first = bisect_right(files, False, key=lambda file: stop.met_by(self._file_start(conn, of, file))) - 1
            if first < 0:
                raise SourceLost(
                    f"The binlog at {stop} is purged; name a later set (and keep binlogs longer:"
                    " binlog_expire_logs_seconds)"
                )
        return self._scan(self._file_start(conn, of, files[first]), stop, end)

    def _scan(self, position: Position, stop: Stop, end: High) -> Position:
        """The place of the stop after `position`; the end, if the stop is not before it."""
        with closing(BinlogCursor(self._connect, server_id=self._server_id)) as cursor:
            while True:
                got = cursor.read(
                    position, {}, until=end, stop=stop, max_rows=1, max_bytes=1, wait_seconds=_WAIT_SECONDS
                )
                position = got.position
                if got.stopped or end.reached_by(position):
                    return position

    def _begun(self, file: str) -> int:
        """When the file was begun, in seconds since 1970, as its first event says."""
        connection = self._connect()
        try:
            with translate_errors(f"the binlog file {file}"):
                greet(connection, identify(connection), self._server_id, 1.0, None)
                request_dump(connection, self._server_id, file, FIRST_OFFSET)
                while True:
                    event = connection._read_packet().get_all_data()  # type: ignore[no-untyped-call]
                    if event[5] == _FORMAT:
                        return int.from_bytes(event[1:5], "little")
        finally:
            with suppress(Exception):
                connection._force_close()  # type: ignore[attr-defined]

    @staticmethod
    def _file_start(conn: Connection, of: Server, file: str) -> Position:
        at = FilePosition(file, FIRST_OFFSET)
        if of.mysql:
            gtids = previous_gtids(conn, file) if of.gtid else ""
        else:
            gtids = binlog_gtid_pos(conn, at) or ""
        return Position(server=of.identity, file=file, offset=FIRST_OFFSET, gtids=gtids)

    def _after_gtids(self, conn: Connection, of: Server, text: str) -> Position:
        """After exactly the transactions of that GTID set; the file is the oldest that may hold the next one."""
        gtids = _gtids(of, text)
        files = binlogs(conn)
        at = Position(server=of.identity, file=files[0].file, offset=FIRST_OFFSET, gtids=gtids)
        if of.mysql:
            verify_position(conn, of, at)
            return at
        wanted = MariaGtid.parse(gtids)
        if not MariaGtid.parse(binlog_gtid_pos(conn, at.file_position) or "") <= wanted:
            raise SourceLost(f"The binlog after {gtids} is purged; name a later position, or begin with a snapshot")
        if not wanted <= MariaGtid.parse(binlog_gtid_pos(conn, flushed_position(conn, of)) or ""):
            raise SourceLost(f"The server's binlog lacks transactions of {gtids}; name a position that it has passed")
        return at


def named(of: Server, point: Point) -> Stop:
    """The stop that a person named, at this server. SourceLost if it has no such GTIDs."""
    if point.timestamp is not None:
        whole = point.timestamp.astimezone(UTC) - datetime.fromtimestamp(0, UTC)
        return Stop(time_us=(whole.days * 86400 + whole.seconds) * _SECOND + whole.microseconds)
    if point.gtid is not None:
        return Stop(gtids=_gtids(of, point.gtid))
    return Stop(server=of.identity, file=point.file or "", offset=point.position or 0)


def _gtids(of: Server, text: str) -> str:
    if not of.gtid:
        raise SourceLost("the server has no GTIDs (gtid_mode is not ON); name a file and position")
    try:
        return str(GtidSet.parse(text)) if of.mysql else str(MariaGtid.parse(text))
    except ValueError as error:
        raise SourceLost(f"{error}") from error
