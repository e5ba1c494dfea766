"""The rows and changes that make a table exact: the watermark logic of `replay` and `exact` (pure; Arrow in and out).

A chunk is read between two watermarks (DBLog, Andreakis and Papapanagiotou 2020; their form as log positions is Flink
CDC's, after FLIP-27). An event is in (low, high] if low does not cover it and it ends at or before high.

- **replay** (`fold`). Chunks go out as their SELECT saw them. A table's finished chunks fold into one lowest low and
  one highest high; the stream sends every change past the lowest low, in order. Full row images replayed over rows
  that were read at or after low give the exact table at every position from the highest high on: it is published no
  earlier. No key is compared.
- **exact** (`overlay`, `ChunkHighs`). DBLog's step: the changes of the chunk in (low, high] replace the rows that
  were read (insert and update put the after-image, delete removes), so that the chunk is as of its own high. The
  stream then sends a change of key k at x only if x is past the high of k's chunk. An update of the key is a delete
  and an insert, each decided on its own.

Relies on: safe lows and highs (chunk.py has the table of how each server gives them); chunks that cover the key space
without gap or overlap; MySQL being asked about keys whose order only it knows (text: collations; `Locate`).
Change together with: binlog/cursor.py (which filters changes), chunk.py, services/enumerator/splitter.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.causes import Cause, Code
from cutline.common.errors import NextGeneration, ProtocolError
from cutline.common.gtids import GtidSet
from cutline.common.keys import comparable
from cutline.common.mesh.messages import CompletedSplit, Key
from cutline.common.ops import Op, is_any
from cutline.common.positions import FilePosition, High, Low
from cutline.common.schema import FILE, OP, POS, SEQ, Column, parse_type

AGED_SECONDS = 60.0
COMMIT_SECONDS = 30.0

Locate = Callable[[Sequence[Key], Sequence[Key]], Sequence[int]]
"""(bounds, keys) -> for each key, how many of the ascending bounds are at or before it, as MySQL compares them."""

_BY_MYSQL = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid", "inet6", "inet4"))
_FILE_BITS = 40


def fold(chunks: Iterable[tuple[Low, High]]) -> tuple[Low, High]:
    """One pair of watermarks for a table's finished chunks: the lowest low and the highest high.

    ValueError if there is no chunk, NextGeneration if they are of different servers.
    """
    pairs = iter(chunks)
    try:
        low, high = next(pairs)
    except StopIteration:
        raise ValueError("a table without chunks has no watermarks") from None
    for other_low, other_high in pairs:
        low, high = low.fold(other_low), high.fold(other_high)
    return low, high


def overlay(rows: pa.Table, changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """The chunk as of its high watermark: `rows` as the SELECT saw them, changed by the chunk's changes in (low, high].

    `rows` has the table's columns, `changes` also `OP` and `SEQ`, and only keys of the chunk. Of each key only its last
    change by `_seq` counts: it puts the row, or removes it. The order of rows is not kept. No Python
    object is made of unchanged rows; without changes, `rows` itself is returned.
    """
    changes = changes.filter(pc.invert(is_any(changes[OP], Op.BEFORE)))
    if changes.num_rows == 0:
        return rows
    names = [f"k{at}" for at in range(len(key))]  # own names: the key's columns could be called "seq" or "row"
    keys = pa.table([*(comparable(changes[name]) for name in key), changes[SEQ]], names=[*names, "seq"])
    last = keys.group_by(names, use_threads=False).aggregate([("seq", "max")])
    changed = changes.filter(pc.is_in(changes[SEQ], value_set=last["seq_max"].combine_chunks()))
    numbered = pa.table([*(comparable(rows[name]) for name in key), np.arange(rows.num_rows)], names=[*names, "row"])
    kept = numbered.join(last.select(names), keys=names, join_type="left anti", use_threads=False)["row"]
    images = changed.filter(is_any(changed[OP], Op.INSERT, Op.UPDATE)).select(rows.schema.names)
    return pa.concat_tables([rows.take(kept), images.cast(rows.schema)])


class KeyRanges:
    """Consecutive ranges of one key space, separated by ascending bounds: range i is [bounds[i - 1], bounds[i]).

    Numbers, times and binary are compared here, as MySQL's index does; text is left to `Locate`. Bounds have the form
    of messages, keys are Arrow's values of the key's columns.
    """

    def __init__(self, columns: Sequence[Column], bounds: Sequence[Key]) -> None:
        self.columns = tuple(columns)
        self.bounds = tuple(bounds)
        bases = [parse_type(column.mysql_type).base for column in columns]
        self.asks = any(base in _BY_MYSQL for base in bases)
        self._sorted = [] if self.asks else [tuple(map(_of_text, self.columns, bound)) for bound in self.bounds]
        self._integers: npt.NDArray[np.int64] | None = None
        if bases in (["tinyint"], ["smallint"], ["mediumint"], ["int"], ["bigint"], ["year"]) and _fits(self._sorted):
            self._integers = np.array([bound[0] for bound in self._sorted], dtype=np.int64)

    def find(self, keys: pa.Table, locate: Locate | None) -> npt.NDArray[np.int64]:
        """The range of each row's key; `keys` has the key's columns, in the key's order. ProtocolError if MySQL must
        be asked and `locate` is None.
        """
        if not self.bounds:
            return np.zeros(keys.num_rows, dtype=np.int64)
        if self._integers is not None and pa.types.is_integer(keys.schema.field(0).type):
            values = keys.column(0).cast(pa.int64()).to_numpy()
            return np.asarray(np.searchsorted(self._integers, values, side="right"), dtype=np.int64)
        rows = zip(*(column.to_pylist() for column in keys.columns), strict=True)
        if not self.asks:
            found = [self.range_of(row) for row in rows]
        elif locate is None:
            raise ProtocolError("only MySQL can compare a text key, and no function to ask it was given")
        else:
            found = list(locate(self.bounds, [self.as_text(row) for row in rows]))
        return np.array(found, dtype=np.int64)

    def range_of(self, key: Sequence[Any]) -> int:
        """The range of one key (Arrow's values); not for text."""
        return bisect_right(self._sorted, tuple(map(_of_arrow, self.columns, key)))

    def as_text(self, key: Sequence[Any]) -> Key:
        """The key (Arrow's values) in the form of messages and `keys.literal`."""
        return tuple(map(key_text, self.columns, key))


def _fits(bounds: Sequence[tuple[Any, ...]]) -> bool:
    return all(-(2**63) <= bound[0] < 2**63 for bound in bounds)


class ChunkHighs:
    """The finished chunks of one table, each with its high watermark: the filter for changes in `exact`.

    ProtocolError unless the chunks cover the whole key space, each key once.
    """

    def __init__(self, columns: Sequence[Column], splits: Iterable[CompletedSplit]) -> None:
        by_start = {split.split_start and _hashable(split.split_start): split for split in splits}
        ordered: list[CompletedSplit] = []
        start: object = None
        while start in by_start:
            split = by_start.pop(start)
            ordered.append(split)
            if split.split_end is None:
                break
            start = _hashable(split.split_end)
        if by_start or not ordered or ordered[-1].split_end is not None:
            raise ProtocolError("the chunks of a table have gaps or overlap", "read the table again")
        self.highs = tuple(split.high for split in ordered)
        self.ranges = KeyRanges(columns, [split.split_end for split in ordered[:-1] if split.split_end is not None])
        self.highest = self.highs[0]
        for high in self.highs:
            self.highest = self.highest.fold(high)
        self._ranks = np.array([_rank(high.file, high.offset) for high in self.highs], dtype=np.int64)

    def kept(self, changes: pa.Table, *, server: str, locate: Locate | None) -> pa.Array:
        """For each change, whether it is past the high of its key's chunk, and so must be sent.

        NextGeneration if `server` is not the watermarks' server. `changes` has the key's columns and `FILE` and `POS`,
        where the row's event starts: a high watermark lies between two transactions, so an event that starts at or
        after it belongs to a transaction that ends past it.
        MySQL is asked at most once, and only about changes that are past some of the chunks' highs but not all.
        """
        self._verify_server(server)
        files = changes[FILE].combine_chunks()
        if not pa.types.is_dictionary(files.type):
            files = files.dictionary_encode()
        numbers = np.array([_rank(name, 0) for name in files.dictionary.to_pylist()], dtype=np.int64)
        starts = numbers[files.indices.to_numpy()] + changes[POS].to_numpy()
        lowest, highest = self._ranks.min(), self._ranks.max()
        keep = starts >= highest
        unclear = np.flatnonzero(~keep & (starts >= lowest))
        if len(unclear):
            keys = changes.select([column.name for column in self.ranges.columns]).take(pa.array(unclear))
            keep[unclear] = starts[unclear] >= self._ranks[self.ranges.find(keys, locate)]
        return pa.array(keep)

    def _verify_server(self, server: str) -> None:
        if server != self.highest.server:
            raise NextGeneration(
                Cause(
                    Code.OTHER_SERVER,
                    f"The source changed from server {self.highest.server} to {server}, whose positions can't be"
                    " compared with the table's watermarks, so the table is read again",
                )
            )


def _rank(file: str, offset: int) -> int:
    """File and offset as one number (offsets stay below 2**40)."""
    return int(file.rpartition(".")[2]) << _FILE_BITS | offset


def _hashable(key: Key) -> object:
    return tuple(tuple(value.items()) if isinstance(value, dict) else value for value in key)


def key_text(column: Column, value: Any) -> Any:
    """One value of a key (Arrow's) in the form of messages and `keys.literal`."""
    kind = parse_type(column.mysql_type)
    if kind.base == "enum":
        return str(kind.members.index(value) + 1 if value in kind.members else 0)
    if kind.base == "set":
        return str(sum(1 << kind.members.index(member) for member in value.split(",") if member))
    if kind.base == "bit":
        return str(int.from_bytes(value, "big") if isinstance(value, bytes) else int(value))
    if kind.base == "time":
        sign, rest = "-" if value < 0 else "", abs(value)
        hours, rest = divmod(rest, 3_600_000_000)
        minutes, rest = divmod(rest, 60_000_000)
        return f"{sign}{hours:02}:{minutes:02}:{rest // 1_000_000:02}.{rest % 1_000_000:06}"
    if kind.base in ("datetime", "timestamp"):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, Decimal):
        return format(value, "f")  # a number with an exponent is a double to MySQL, and not exact
    return repr(value) if isinstance(value, float) else str(value)


def _of_arrow(column: Column, value: Any) -> Any:
    """One value of a key as a Python value that sorts as MySQL's index does."""
    base = parse_type(column.mysql_type).base
    if base in ("enum", "set", "bit"):
        return int(key_text(column, value))
    if base == "decimal":
        return Decimal(value)  # over 38 digits it is text
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _of_text(column: Column, value: Any) -> Any:
    """The same as `_of_arrow`, from the form of messages."""
    base = parse_type(column.mysql_type).base
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    if base in ("datetime", "timestamp"):
        return datetime.fromisoformat(value)
    if base == "date":
        return date.fromisoformat(value)
    if base == "time":
        hours, minutes, seconds = value.lstrip("-").split(":")
        whole, _, part = seconds.partition(".")
        size = (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 1_000_000 + int(part.ljust(6, "0")[:6])
        return -size if value.startswith("-") else size
    if base in ("float", "double"):
        return float(value)
    return Decimal(value) if base == "decimal" else int(value)


class Commits:
    """Whether MySQL has committed the transactions that a cursor read from its dump; checked at each connect.

    A dump delivers a transaction once it is flushed; `@@gtid_executed` has it once the engine has committed it, which a
    semi-synchronous replica that doesn't answer delays (10 s by default). So a cursor that reconnects may be ahead of
    a server that lost nothing. A transaction that is still missing after COMMIT_SECONDS counts as lost.
    """

    def __init__(self) -> None:
        self._missing_since: float | None = None

    def awaited(self, taken: GtidSet, executed: GtidSet, *, now: float) -> bool:
        """Whether to connect again later; False if no transaction is missing, or one has been for too long."""
        if taken <= executed:
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since < COMMIT_SECONDS


class AgedPositions:
    """Flushed positions with the times at which they were seen, for the low watermark of MySQL without GTIDs.

    A flushed position runs ahead of what a SELECT sees (a commit may wait for a semi-synchronous replica, 10 s by
    default, between flush and engine commit); up to one that was seen `AGED_SECONDS` ago all is assumed to be committed
    (docs/limits.md states this assumption). A position of another server clears it. At most one position a second is
    kept.
    """

    def __init__(self, aged_seconds: float = AGED_SECONDS) -> None:
        self._aged_seconds = aged_seconds
        self._server = ""
        self._seen: deque[tuple[float, FilePosition]] = deque()

    def saw(self, server: str, position: FilePosition, *, now: float) -> None:
        """Remember that `position` was flushed at `now` (monotonic seconds)."""
        if server != self._server or (self._seen and (now < self._seen[-1][0] or position < self._seen[-1][1])):
            self._seen.clear()  # another history
        self._server = server
        if not self._seen or now >= self._seen[-1][0] + 1.0:
            self._seen.append((now, position))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._aged_seconds:
            self._seen.popleft()

    def aged(self, server: str, *, now: float) -> FilePosition | None:
        """The newest position that was flushed long enough ago; None if none is known."""
        if server != self._server:
            return None
        return next((at for seen, at in reversed(self._seen) if seen <= now - self._aged_seconds), None)
