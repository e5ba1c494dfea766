"""Where in a source's history something stands: GTID sets, file positions, and the watermarks made of them (pure).

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

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, total_ordering
from typing import Any, ClassVar

from cutline.common.causes import Cause, Code
from cutline.common.errors import NextGeneration, SourceLost

_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MARIA = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)")

_Sid = tuple[str, str]  # (uuid, tag), tag '' for none, so that the untagged ones sort first, as MySQL prints them
_Intervals = tuple[tuple[int, int], ...]  # closed, ascending, never touching


def _merged(intervals: Iterable[tuple[int, int]]) -> _Intervals:
    out: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1] + 1:
            if end > out[-1][1]:
                out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return tuple(out)


def _common(left: _Intervals, right: _Intervals) -> _Intervals:
    out: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start <= end:
            out.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def _has(intervals: _Intervals, number: int) -> bool:
    if not intervals:
        return False
    start, end = intervals[-1]
    if number >= start:
        return number <= end
    at = bisect_right(intervals, number, key=lambda interval: interval[0]) - 1
    return at >= 0 and number <= intervals[at][1]


def _uuid(text: str) -> str:
    uuid = text.strip().lower()
    if not _UUID.fullmatch(uuid):
        raise ValueError(f"{text!r} is not a server UUID; a GTID looks like 3e11fa47-71ca-11e1-9e33-c80aa9429562:23")
    if "-" not in uuid:
        uuid = f"{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
    return uuid


def _gtid(gtid: str) -> tuple[_Sid, int]:
    head, _, number = gtid.rpartition(":")
    uuid, _, tag = head.partition(":")
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{gtid!r} is not one GTID (uuid:number or uuid:tag:number)")
    return (uuid.lower(), tag.lower()), int(number)


class GtidSet:
    """A set of MySQL's GTIDs, with gaps and tags. Immutable and hashable.

    `str()` is canonical: equal sets print the same text, which `parse` reads back and MySQL accepts.
    """

    __slots__ = ("_sids",)
    EMPTY: ClassVar[GtidSet]

    def __init__(self, sids: Mapping[_Sid, _Intervals]) -> None:
        """For use by this file only; others call `parse`."""
        self._sids = sids

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Read MySQL's form, `uuid:1-3:5,uuid:tag:1-3`; white space is ignored, '' is the empty set. ValueError if
        invalid."""
        found: dict[_Sid, list[tuple[int, int]]] = {}
        for part in text.split(","):
            if not part.strip():
                continue
            head, *rest = part.split(":")
            uuid, tag = _uuid(head), ""
            if not rest:
                raise ValueError(f"{part.strip()!r} names a server but no transaction; write uuid:1-{{last}}")
            for item in rest:
                word = item.strip().lower()
                if interval := _INTERVAL.fullmatch(word):
                    start = int(interval[1])
                    end = int(interval[2] or start)
                    if not 1 <= start <= end:
                        raise ValueError(f"{word!r} in {part.strip()!r} is not an interval of transaction numbers")
                    found.setdefault((uuid, tag), []).append((start, end))
                elif _TAG.fullmatch(word):
                    tag = word
                else:
                    raise ValueError(f"{word!r} in {part.strip()!r} is neither an interval nor a tag")
        return cls({sid: _merged(intervals) for sid, intervals in found.items()})

    def add(self, gtid: str) -> GtidSet:
        """The set with one more GTID. Cheap for the next number of a server, however many gaps there are."""
        sid, number = _gtid(gtid)
        old = self._sids.get(sid, ())
        if _has(old, number):
            return self
        if old and old[-1][1] + 1 == number:
            new = (*old[:-1], (old[-1][0], number))
        elif not old or old[-1][1] < number:
            new = (*old, (number, number))
        else:
            new = _merged((*old, (number, number)))
        return GtidSet({**self._sids, sid: new})

    def contains(self, gtid: str) -> bool:
        """Whether the one GTID (`uuid:number` or `uuid:tag:number`) is in the set."""
        sid, number = _gtid(gtid)
        return _has(self._sids.get(sid, ()), number)

    def next_from(self, prefix: str, number: int) -> int:
        """The first number at or after `number` in the set, of `uuid` or `uuid:tag`; 0 if there is none."""
        uuid, _, tag = prefix.partition(":")
        intervals = self._sids.get((uuid, tag), ())
        at = bisect_right(intervals, number, key=lambda interval: interval[0]) - 1
        if at >= 0 and number <= intervals[at][1]:
            return number
        return intervals[at + 1][0] if at + 1 < len(intervals) else 0

    def lasts(self) -> set[tuple[str, int]]:
        """The last number of each interval, with `uuid` or `uuid:tag`."""
        return {
            (f"{uuid}:{tag}" if tag else uuid, end)
            for (uuid, tag), intervals in self._sids.items()
            for _, end in intervals
        }

    def __sub__(self, other: GtidSet) -> GtidSet:
        left: dict[_Sid, _Intervals] = {}
        for sid, intervals in self._sids.items():
            rest: list[tuple[int, int]] = []
            for start, end in intervals:
                for taken, last in _common(((start, end),), other._sids.get(sid, ())):
                    if taken > start:
                        rest.append((start, taken - 1))
                    start = last + 1
                if start <= end:
                    rest.append((start, end))
            if rest:
                left[sid] = tuple(rest)
        return GtidSet(left)

    def __or__(self, other: GtidSet) -> GtidSet:
        sids = dict(self._sids)
        for sid, intervals in other._sids.items():
            sids[sid] = _merged((*sids.get(sid, ()), *intervals))
        return GtidSet(sids)

    def __and__(self, other: GtidSet) -> GtidSet:
        both = {sid: _common(mine, other._sids.get(sid, ())) for sid, mine in self._sids.items()}
        return GtidSet({sid: intervals for sid, intervals in both.items() if intervals})

    def __le__(self, other: GtidSet) -> bool:
        return all(_common(mine, other._sids.get(sid, ())) == mine for sid, mine in self._sids.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and dict(self._sids) == dict(other._sids)

    def __hash__(self) -> int:
        return hash(frozenset(self._sids.items()))

    def __bool__(self) -> bool:
        return bool(self._sids)

    def __str__(self) -> str:
        servers: dict[str, str] = {}
        for (uuid, tag), intervals in sorted(self._sids.items()):
            numbers = ":".join(str(a) if a == b else f"{a}-{b}" for a, b in intervals)
            servers[uuid] = servers.get(uuid, uuid) + (f":{tag}:{numbers}" if tag else f":{numbers}")
        return ",".join(servers.values())

    def __repr__(self) -> str:
        return f"GtidSet.parse({str(self)!r})"


GtidSet.EMPTY = GtidSet({})


class MariaGtid:
    """A MariaDB GTID position: for each domain the last GTID, as (server, sequence number). Immutable and hashable.

    Within a domain the sequence number alone gives the order (gtid_strict_mode); the server is the one that wrote it.
    """

    __slots__ = ("_domains",)

    def __init__(self, domains: Mapping[int, tuple[int, int]]) -> None:
        """For use by this file only; others call `parse`."""
        self._domains = domains

    @classmethod
    def parse(cls, text: str) -> MariaGtid:
        """Read `0-1-100,1-2-5`; '' is the start. Of two GTIDs of a domain the last counts, as in a GTID list event."""
        domains: dict[int, tuple[int, int]] = {}
        for part in text.split(","):
            if not part.strip():
                continue
            found = _MARIA.fullmatch(part.strip())
            if not found:
                raise ValueError(f"{part.strip()!r} is not a MariaDB GTID (domain-server-sequence, as 0-1-100)")
            domains[int(found[1])] = (int(found[2]), int(found[3]))
        return cls(domains)

    def add(self, gtid: str) -> MariaGtid:
        """The position after that one GTID."""
        return MariaGtid({**self._domains, **MariaGtid.parse(gtid)._domains})

    def contains(self, gtid: str) -> bool:
        """Whether the one GTID is at or before this position."""
        return MariaGtid.parse(gtid) <= self

    def __le__(self, other: MariaGtid) -> bool:
        return all(d in other._domains and seq <= other._domains[d][1] for d, (_, seq) in self._domains.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariaGtid) and dict(self._domains) == dict(other._domains)

    def __hash__(self) -> int:
        return hash(frozenset(self._domains.items()))

    def __bool__(self) -> bool:
        return bool(self._domains)

    def __str__(self) -> str:
        return ",".join(f"{d}-{server}-{seq}" for d, (server, seq) in sorted(self._domains.items()))

    def __repr__(self) -> str:
        return f"MariaGtid.parse({str(self)!r})"


@lru_cache(maxsize=1024)
def parse_gtids(text: str) -> GtidSet | MariaGtid | None:
    """The GTID set in that text, MySQL's or MariaDB's; None for ''. ValueError if it is neither."""
    if not text.strip():
        return None
    return GtidSet.parse(text) if ":" in text else MariaGtid.parse(text)


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
                    "restore it, or read the tables again from a new snapshot",
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
                    "start the tables again from a new snapshot",
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
                "point the pipeline at the right server, or start the tables again",
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
