"""Where a stream begins and ends: a pipeline's `start` and `stop` as positions in the source's binlog.

A position is found by reading the one binlog file that holds it, without decoding a row; that file is found by binary
search (over the time in each file's first event, or the GTIDs before each file).

| given as | begins | ends |
|---|---|---|
| file and position | there; it must lie between two transactions | there; a transaction begun before is included |
| GTID set | after exactly these transactions | after the transaction that completes the set |
| time T | before the first transaction in the log that was committed at T or later | at the same position |

So a pipeline that stops at T and one that starts at T share no transaction and miss none. The time is the one that the
source wrote into its binlog: on MySQL the commit time, in microseconds; on MariaDB, in whole seconds, the time when the
transaction's last statement began.

Change together with: `Stop` in common/positions.py, the gate in binlog/cursor.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime

from cutline.common.causes import Cause, Code
from cutline.common.config.pipeline import PipelineConfig, Point
from cutline.common.errors import SourceLost
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import FilePosition, High, Position, Stop, beyond
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
"""Events between two transactions: the positions before and after such an event are equivalent."""


class PositionFinder:
    """Finds positions in one source's binlog; opens connections as it needs them. Synchronous.

    `server_id` is the pipeline's; the dumps here use another one, far from those that its readers use.
    """

    def __init__(self, connect: Callable[[], Connection], *, server_id: int) -> None:
        self._connect = connect
        self._server_id = (server_id + (1 << 31)) & 0xFFFFFFFF or 1

    def start(self, start: str | Point) -> Position | None:
        """The position at which the stream begins by a pipeline's `start`; None if it begins with a snapshot.

        SourceLost if that position is purged, not reached yet, or not between two transactions.
        """
        if not isinstance(start, Point) and start not in ("latest", "earliest"):
            return None
        with closing(self._connect()) as conn:
            server = identify(conn)
            if not isinstance(start, Point):
                return (current_position if start == "latest" else first_position)(conn, server)
            if start.gtid is not None:
                return self._after_gtids(conn, server, start.gtid)
            target = stop_at(server, start)
            found = self._find(conn, server, target)
            if found is None:
                raise _unusable(
                    f"The source has not reached {target} yet", "name a position or time that it has passed"
                )
            if start.file is None or found.file_position == (wanted := FilePosition(target.file, target.offset)):
                return found
            if event_at(conn, wanted) not in _BETWEEN:
                raise _unusable(
                    f"{target} is not between two transactions",
                    f"name {found.file_position}, the next position that is",
                )
            return replace(found, file=wanted.file, offset=wanted.offset)

    def stop(self, stop: Stop) -> Position | None:
        """The position of the stop, None if the source has not passed it yet. SourceLost if it is purged."""
        with closing(self._connect()) as conn:
            return self._find(conn, identify(conn), stop)

    def faults(self, config: PipelineConfig) -> list[Cause]:
        """The faults of the `start` and the `stop` of a pipeline that begins now."""
        begin = None
        try:
            begin = self.start(config.start)
        except SourceLost as error:
            return [error.cause.before("start: ")]
        if config.stop is None:
            return []
        with closing(self._connect()) as conn:
            server = identify(conn)
            now = flushed_position(conn, server)
            try:
                stop = stop_at(server, config.stop)
                end = self._find(conn, server, stop)
            except SourceLost as error:
                return [error.cause.before("stop: ")]
        if end is not None and begin is None and end.file_position < now:
            return [
                Cause(
                    Code.PLACE,
                    f"stop: the source has passed {stop} already ({end.file_position}), and a snapshot begun now is"
                    " later",
                    "name a later stop, or start at a position in the binlog",
                )
            ]
        if end is not None and begin is not None and beyond(begin, end):
            sentence = f"stop: {stop} lies before the start, {begin.file_position}"
            return [Cause(Code.PLACE, sentence, "name a later one")]
        return []

    # --- finding ---

    def _find(self, conn: Connection, server: Server, stop: Stop) -> Position | None:
        now = clock(conn)  # asked before the position: what is committed after that position has a later time
        at = flushed_position(conn, server)
        end = High(server=server.identity, file=at.file, offset=at.offset)
        files = [binlog.file for binlog in binlogs(conn)]
        if stop.time_us is not None:
            if now < stop.time_us:
                return None
            first = bisect_right(files, stop.time_us, key=lambda file: (self.begun(file) + 1) * _SECOND) - 1
            if first < 0:
                begun = datetime.fromtimestamp(self.begun(files[0]), UTC).isoformat()
                raise _unusable(
                    f"{stop} is purged: the oldest binlog file, {files[0]}, begins at {begun}",
                    "name a later time, or use earliest (and keep binlogs longer: binlog_expire_logs_seconds)",
                )
        elif stop.file and stop.server == server.identity:
            if stop.file not in files:
                if FilePosition(stop.file, stop.offset) > at:
                    return None
                raise _unusable(
                    f"The binlog file {stop.file} is purged",
                    "name a later position (and keep binlogs longer: binlog_expire_logs_seconds)",
                )
            if FilePosition(stop.file, stop.offset) > at:
                return None
            first = files.index(stop.file)
        else:
            executed = str(gtid_executed(conn)) if server.mysql else binlog_gtid_pos(conn, at) or ""
            if not stop.met_by(Position(server=server.identity, file="", offset=0, gtids=executed)):
                return None
            first = bisect_right(files, False, key=lambda file: stop.met_by(_start_of(conn, server, file))) - 1
            if first < 0:
                raise _unusable(
                    f"The binlog at {stop} is purged",
                    "name a later set (and keep binlogs longer: binlog_expire_logs_seconds)",
                )
        return self._scan(_start_of(conn, server, files[first]), stop, end)

    def _scan(self, position: Position, stop: Stop, end: High) -> Position:
        """Read from `position` on, up to the stop or the end, whichever comes first; the position there."""
        with closing(BinlogCursor(self._connect, server_id=self._server_id)) as cursor:
            while True:
                changes = cursor.read(
                    position, {}, until=end, stop=stop, max_rows=1, max_bytes=1, wait_seconds=_WAIT_SECONDS
                )
                position = changes.position
                if changes.stopped or end.reached_by(position):
                    return position

    def begun(self, file: str) -> int:
        """When the file was begun, in seconds since 1970, from its first event."""
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

    def _after_gtids(self, conn: Connection, server: Server, text: str) -> Position:
        """The position after exactly the transactions of a GTID set, in the oldest file: any may hold the next one."""
        gtids = _gtids(server, text)
        files = binlogs(conn)
        at = Position(server=server.identity, file=files[0].file, offset=FIRST_OFFSET, gtids=gtids)
        if server.mysql:
            verify_position(conn, server, at)
            return at
        wanted = MariaGtid.parse(gtids)
        if not MariaGtid.parse(binlog_gtid_pos(conn, at.file_position) or "") <= wanted:
            raise _unusable(f"The binlog after {gtids} is purged", "name a later position, or begin with a snapshot")
        if not wanted <= MariaGtid.parse(binlog_gtid_pos(conn, flushed_position(conn, server)) or ""):
            raise _unusable(
                f"The server's binlog lacks transactions of {gtids}", "name a position that it has passed"
            )
        return at


def _unusable(sentence: str, remedy: str) -> SourceLost:
    return SourceLost(Cause(Code.PLACE, sentence, remedy))


def stop_at(server: Server, point: Point) -> Stop:
    """The stop at a point that a pipeline file names, on this server. SourceLost if it has no such GTIDs."""
    if point.timestamp is not None:
        since_1970 = point.timestamp.astimezone(UTC) - datetime.fromtimestamp(0, UTC)
        return Stop(time_us=(since_1970.days * 86400 + since_1970.seconds) * _SECOND + since_1970.microseconds)
    if point.gtid is not None:
        return Stop(gtids=_gtids(server, point.gtid))
    return Stop(server=server.identity, file=point.file or "", offset=point.position or 0)


def _start_of(conn: Connection, server: Server, file: str) -> Position:
    """The position at the start of a binlog file."""
    at = FilePosition(file, FIRST_OFFSET)
    if server.mysql:
        gtids = previous_gtids(conn, file) if server.gtid else ""
    else:
        gtids = binlog_gtid_pos(conn, at) or ""
    return Position(server=server.identity, file=file, offset=FIRST_OFFSET, gtids=gtids)


def _gtids(server: Server, text: str) -> str:
    """A pipeline file's GTIDs in the server's own notation."""
    if not server.gtid:
        raise _unusable("the server has no GTIDs (gtid_mode is not ON)", "name a file and position")
    try:
        return str(GtidSet.parse(text) if server.mysql else MariaGtid.parse(text))
    except ValueError as error:
        raise _unusable(f"{error}", "correct it") from error
