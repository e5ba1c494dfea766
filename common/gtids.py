"""Sets of GTIDs, MySQL's and MariaDB's (pure): which transactions of a history were taken.

They compare across servers, where files and offsets don't. A set is a value; `str` prints it as its server does.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import ClassVar

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
