"""Where in a source's history something stands: positions, and the watermarks made of them (pure).

Promises:

- **A position means "after the last item taken"**, everywhere.
- **Files and offsets compare only within one server history** (`server`: `Server.identity` of
  services/sources/mysql/server.py). Across servers only GTID sets compare. Where neither compares, `SourceLost` is
  raised; nothing is guessed.
- **File numbers are numbers**: `binlog.000999` < `binlog.001000` < `binlog.1000000`.

`Low` and `High` are the low and high watermark of DBLog (Andreakis and Papapanagiotou 2020) as log positions (Flink
CDC's form, after FLIP-27) instead of rows written into the source: a `Low` must never claim an event that a SELECT
after it can miss, a `High` must never lie before an event that a SELECT before it can have seen.
A low that is too early and a high that is too late are always safe.

Change together with: `services/sources/mysql/server.py` (takes watermarks), `services/sources/mysql/watermark.py`,
`services/sources/mysql/binlog/cursor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, total_ordering
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import NextGeneration, SourceLost
from cutline.common.gtids import GtidSet, MariaGtid, parse_gtids


@lru_cache(maxsize=1024)
def _numbered(file: str) -> tuple[str, int]:
    base, _, number = file.rpartition(".")
    if not base or not number.isdecimal():
        raise ValueError(f"{file!r} is not the name of a binlog file (base name, a dot, a number)")
    return base, int(number)


class Renamed(SourceLost, ValueError):
    """Two files of one server's binlog have different base names, so neither is known to be the later one."""


@total_ordering
@dataclass(frozen=True, slots=True)
class FilePosition:
    """A byte offset in a binlog file of one server history. Ordered; Renamed if the files' base names differ."""

    file: str
    offset: int

    def __lt__(self, other: FilePosition) -> bool:
        if self.file == other.file:
            return self.offset < other.offset
        (base, number), (other_base, other_number) = _numbered(self.file), _numbered(other.file)
        if base != other_base:
            raise Renamed(
                Cause(
                    Code.OTHER_SERVER,
                    f"{self.file} and {other.file} don't compare: the base name of the binlog (log_bin) changed",
                    "restore it, or read the tables again",
                )
            )
        return (number, self.offset) < (other_number, other.offset)

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """After the last item taken from the binlog.

    `file` and `offset` are the start of the current transaction, or, at a transaction's end, the offset after it;
    `gtids` is the executed set then (canonical text of `GtidSet` or `MariaGtid`, '' if the source has none); `rows`
    counts the row changes already taken inside the transaction that starts there, 0 at an end. A place known only by
    its GTIDs has `file` ''.
    """

    server: str
    file: str
    offset: int
    gtids: str = ""
    rows: int = 0

    @property
    def file_position(self) -> FilePosition:
        """File and offset, without the rows."""
        return FilePosition(self.file, self.offset)

    @property
    def executed(self) -> GtidSet | MariaGtid | None:
        """`gtids` parsed; None if the source has none."""
        return parse_gtids(self.gtids)

    @property
    def inside(self) -> bool:
        """Whether this is inside a transaction."""
        return self.rows > 0

    def same_place(self, other: Position) -> bool:
        """Whether two cursors may meet here: both between transactions, at equal GTID sets or equal file and offset."""
        if self.inside or other.inside:
            return False
        if self.server == other.server and self.file and self.file_position == other.file_position:
            return True
        return bool(self.gtids and other.gtids) and self.executed == other.executed

    def same_transaction(self, other: Position) -> bool:
        """Whether both are inside one transaction."""
        return (
            self.inside and other.inside and self.server == other.server and self.file_position == other.file_position
        )

    def boundary(self) -> Position:
        """This place if it is between two transactions, else the start of the transaction that it is inside of."""
        return replace(self, rows=0) if self.inside else self

    def past(self, other: Position) -> bool:
        """Whether this is between two transactions, and after `other` in the same server's files.

        The GTID sets don't count: a cursor's set may name transactions that it has not reached yet.
        """
        return not self.inside and self.server == other.server and self.file_position > other.file_position

    def distance(self, other: Position) -> int | None:
        """The bytes from `other` to here, negative if `other` is later; None if they are in two files."""
        return self.offset - other.offset if self.server == other.server and self.file == other.file else None

    def joined(self, other: Position) -> Position:
        """Where this cursor goes on once it has met `other` (see `same_place`) and takes over its tables.

        A cursor's set may name transactions that it has not read: it began as the set of a low watermark, whose tables
        don't need them. With equal sets the result is the later place: from the earlier one, changes that the other
        cursor sent would be sent again. At equal places the result has the GTIDs that are in both sets: with this set
        alone, a cursor that resumes on another server would skip transactions that the other's tables still need.
        """
        # An empty set (of a low before any transaction) has the same text as no set.
        mine, theirs = self.executed or GtidSet.EMPTY, other.executed or GtidSet.EMPTY
        if self.server != other.server or not isinstance(mine, GtidSet) or not isinstance(theirs, GtidSet):
            return self
        if mine == theirs:
            return other if other.past(self) else self
        return replace(self, gtids=str(mine & theirs))

    def not_before(self, other: Position) -> bool:
        """Whether every change taken at `other` is taken here too.

        Within one server by file, offset and rows; across servers by GTID sets. SourceLost if they don't compare.
        """
        if self.server == other.server and self.file and other.file:
            if self.file_position == other.file_position:
                return self.rows >= other.rows
            return self.file_position > other.file_position
        mine, theirs = self.executed, other.executed
        if mine is None or theirs is None:
            raise SourceLost(
                Cause(
                    Code.OTHER_SERVER,
                    f"The source changed from server {other.server} to {self.server} and their positions have no GTIDs"
                    " to compare by",
                    "read the tables again",
                )
            )
        if mine == theirs:
            return self.rows >= other.rows
        if _within(theirs, mine):
            return True
        if _within(mine, theirs):
            return False
        raise SourceLost(
            Cause(
                Code.OTHER_SERVER,
                f"The histories of servers {other.server} and {self.server} have parted: neither of {theirs} and {mine}"
                " contains the other",
                "point the pipeline at the right server and start it, or read the tables again",
            )
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {"server": self.server, "file": self.file, "offset": self.offset, "gtids": self.gtids, "rows": self.rows}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Position:
        """Read what `to_json` made."""
        return cls(
            server=body["server"], file=body["file"], offset=body["offset"], gtids=body["gtids"], rows=body["rows"]
        )

    def __str__(self) -> str:
        inside = f"+{self.rows}" if self.rows else ""
        return f"{self.file}:{self.offset}{inside}" + (f" ({self.gtids})" if self.gtids else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The end of a stream, between two transactions.

    - `file` and `offset`, in the history of `server`: includes the transactions that begin before them;
    - `gtids`: the transaction that completes the set is the last one included;
    - `time_us`, microseconds since 1970: excludes the first transaction in the log that was committed then or later,
      and all after it.

    If both a file and GTIDs are set, the GTIDs apply on other servers.
    """

    server: str = ""
    file: str = ""
    offset: int = 0
    gtids: str = ""
    time_us: int | None = None

    @classmethod
    def at(cls, place: Position) -> Stop:
        """The stop at a known place."""
        return cls(server=place.server, file=place.file, offset=place.offset, gtids=place.gtids)

    def met_by(self, position: Position) -> bool:
        """Whether every transaction before the stop is taken at `position`. False for `time_us`: only the next
        transaction shows that.

        Raises SourceLost if the stop is in a file of another server.
        """
        if position.inside:
            return False
        if self.file and position.server == self.server:
            return bool(position.file) and position.file_position >= FilePosition(self.file, self.offset)
        if self.gtids:
            wanted, taken = parse_gtids(self.gtids), position.executed
            return wanted is not None and taken is not None and _within(wanted, taken)
        if self.file:
            raise SourceLost(
                Cause(
                    Code.PLACE,
                    f"The stop is at {self.file}:{self.offset} of server {self.server}, and the source is now"
                    f" {position.server}",
                    "name the stop by GTIDs or by a timestamp",
                )
            )
        return False

    def __str__(self) -> str:
        if self.file:
            return f"{self.file}:{self.offset}"
        if self.time_us is not None:
            return datetime.fromtimestamp(self.time_us / 1e6, UTC).isoformat()
        return self.gtids


def beyond(position: Position, stop: Position) -> bool:
    """Whether `position` has taken, or names in its GTID set, a transaction after the place `stop`."""
    mine, theirs = position.executed, stop.executed
    if mine is not None and theirs is not None:
        return not _within(mine, theirs)
    return not stop.not_before(position)


def _within(inner: GtidSet | MariaGtid, outer: GtidSet | MariaGtid) -> bool:
    if isinstance(inner, GtidSet) and isinstance(outer, GtidSet):
        return inner <= outer
    if isinstance(inner, MariaGtid) and isinstance(outer, MariaGtid):
        return inner <= outer
    return False


def _one_history(mine: str, theirs: str) -> None:
    if mine != theirs:
        raise NextGeneration(
            Cause(
                Code.OTHER_SERVER,
                f"A watermark of server {mine} can't be compared with server {theirs}: the source changed, so the table"
                " starts its next generation",
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Low:
    """The low watermark: every event that it covers was visible to a SELECT that began after it was taken.

    With MySQL's GTIDs `gtids` alone decides; every event that is not covered lies after `file` and `offset` (never the
    flushed position itself). Without them file and offset decide, within one server history.
    """

    server: str
    file: str
    offset: int
    gtids: str = ""

    @classmethod
    def at(cls, place: Position) -> Low:
        """The low that covers what is taken at this place."""
        return cls(server=place.server, file=place.file, offset=place.offset, gtids=place.gtids)

    def folds_with(self, other: Low) -> bool:
        """Whether both are of one server's history."""
        return self.server == other.server

    def covers(self, *, server: str, end: FilePosition, gtid: str | None) -> bool:
        """Whether the event with that GTID, whose transaction ends at `end`, was surely visible, so must be skipped.

        An event or a low without GTID is judged by file and offset. Raises NextGeneration if these are of two servers.
        """
        executed = parse_gtids(self.gtids)
        if gtid is not None:
            if isinstance(executed, GtidSet):
                return executed.contains(gtid)
            # An event whose GTID the low lacks is not covered, even on the low's own server: its binlog may have been
            # reset since, so that file and offset don't compare.
            if isinstance(executed, MariaGtid):
                contained = executed.contains(gtid)
                if server != self.server or not contained:
                    return contained
        _one_history(self.server, server)
        return end <= FilePosition(self.file, self.offset)

    def fold(self, other: Low) -> Low:
        """The low that covers the events that both cover (the intersection). NextGeneration if they are of two
        servers."""
        _one_history(self.server, other.server)
        mine, theirs = FilePosition(self.file, self.offset), FilePosition(other.file, other.offset)
        first = self if mine <= theirs else other
        gtids = first.gtids
        left, right = parse_gtids(self.gtids), parse_gtids(other.gtids)
        if isinstance(left, GtidSet) or isinstance(right, GtidSet):
            gtids = str(left & right) if isinstance(left, GtidSet) and isinstance(right, GtidSet) else ""
        return Low(server=self.server, file=first.file, offset=first.offset, gtids=gtids)

    def start(self) -> Position:
        """Where a cursor must begin so as to read every event that this watermark does not cover.

        MariaDB's chunks leave `gtids` empty, since finding them costs the server a scan of its binlog file;
        `position_at` (server.py) finds them once for each cursor.
        """
        return Position(server=self.server, file=self.file, offset=self.offset, gtids=self.gtids)

    def passed_by(self, position: Position) -> bool:
        """Whether `position` has taken an event that this low does not cover, so that its table can't join there.

        With MySQL's GTIDs the sets alone decide: the flushed place runs ahead of the commits that a SELECT sees.
        """
        mine, theirs = parse_gtids(self.gtids), position.executed
        if isinstance(theirs, GtidSet) and not isinstance(mine, MariaGtid):  # an empty set has the text of no set
            return position.inside or not theirs <= (mine or GtidSet.EMPTY)
        return not self.start().not_before(position)

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {"server": self.server, "file": self.file, "offset": self.offset, "gtids": self.gtids}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Low:
        """Read what `to_json` made."""
        return cls(server=body["server"], file=body["file"], offset=body["offset"], gtids=body["gtids"])


@dataclass(frozen=True, slots=True, kw_only=True)
class High:
    """The high watermark: a SELECT that finished before it was taken can have seen no event that ends after it."""

    server: str
    file: str
    offset: int

    @property
    def file_position(self) -> FilePosition:
        """File and offset."""
        return FilePosition(self.file, self.offset)

    @classmethod
    def at(cls, place: Position) -> High:
        """The high that a cursor at this place has reached."""
        return cls(server=place.server, file=place.file, offset=place.offset)

    @property
    def history(self) -> tuple[str, str]:
        """The server, and the base name of its binlog files: highs compare only if both are equal."""
        return self.server, self.file.rpartition(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    def reached_by(self, position: Position) -> bool:
        """Whether every event up to this watermark is taken at `position`. NextGeneration if that is of another server.

        Inside a transaction `position` names its start, so a transaction across this watermark does not count as taken.
        """
        _one_history(self.server, position.server)
        return bool(position.file) and position.file_position >= self.file_position

    def fold(self, other: High) -> High:
        """The later of the two. NextGeneration if they are of two servers."""
        _one_history(self.server, other.server)
        return self if self.file_position >= other.file_position else other

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {"server": self.server, "file": self.file, "offset": self.offset}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> High:
        """Read what `to_json` made."""
        return cls(server=body["server"], file=body["file"], offset=body["offset"])
