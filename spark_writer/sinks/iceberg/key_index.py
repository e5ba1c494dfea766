"""Where the keys of a lake table are, in sorted files: so the cost of a look-up follows the keys, not the table.

An index is a set of *runs*. A run covers some data files completely: for each of their rows it has the hash of the key
(key_hash.py), the file and the position in it, sorted by hash. A data file never changes, so neither does what a run
says; it needs no transaction, and nothing in it can be out of date:

- rows that were deleted stay in it, and the deletion vectors of the snapshot that is read sort them out;
- files that a snapshot does not have are skipped, and files that no run covers are read by the caller (locating.py);
- a run that is missing, damaged, of another version or of another key is ignored, and its files are indexed again.

A start of the Spark writer that another one has overtaken does no harm either: names are unique, and what it writes is
as true as what it finds.

**Merging.** Runs are log-structured: `FAN_OUT` runs of about the same size become one, so a row is written again once
for each factor of `FAN_OUT` in the size of its table, and a look-up searches a few runs for each such factor. A run is
written anew once more than half of its rows are in files that the table no longer has. Runs of less than `STORED_ROWS`
rows are only kept in memory; after a restart their files are read again.

A stored run is its entries, of three 64-bit words each (upper 64 bits of the hash; lower 32 bits, number of the file;
position), then a header as compressed JSON, then its tail. The header has the secret of the hash, the key's columns,
the covered files with their rows, and a checksum of the entries. That is compared when the run is opened, since with a
wrong entry a row would be missed. Entries are mapped into memory, so the operating system keeps those in use.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.common.errors import CutlineError
from cutline.common.store.index_files import IndexFiles
from cutline.spark_writer.sinks.iceberg.files import FileLost
from cutline.spark_writer.sinks.iceberg.key_hash import SECRET_BYTES, KeyHash

logger = logging.getLogger("cutline.spark_writer")
FAN_OUT = 8
SMALLEST_TIER_ROWS = 4096
STORED_ROWS = 100_000
BUILD_ROWS = 1 << 22
"""Rows whose entries are sorted at once; a larger data file is sorted alone."""
SLICE_ROWS = 1 << 20
REST_SECONDS = 600.0
"""After an error of the store the index is not used for so long."""
WORDS = 3
_LARGE = threading.Lock()
"""Held while many entries are sorted: tables that are applied side by side would take that memory each."""
_TAIL = struct.Struct("<QI12s")
_MAGIC = b"cutline-keys"
_VERSION = 1
_BLOCK_BYTES = 16 << 20
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
Columns = list[list[Any]]
"""The key's columns as [field id, `kind_of` its type]."""


class IndexUnavailable(Exception):
    """The store could not write or read a run."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of one data file: their positions, sorted, and for each the number of its key among those looked for."""

    positions: Any
    keys: Any


@dataclass(slots=True, eq=False)
class Run:
    """Entries sorted by hash, an array of rows of `WORDS` words, and the files (path, rows) that they are of.

    `name` is that of its file in the store, None in memory. `owned` are the files for which this run answers.
    """

    entries: Any
    files: list[tuple[str, int]]
    name: str | None = None
    owned: dict[str, int] = field(default_factory=dict)

    @property
    def tier(self) -> int:
        """The size class."""
        return max(0, int(math.log(max(1, len(self.entries)) / SMALLEST_TIER_ROWS, FAN_OUT)))

    def find(self, high: Any, low: Any) -> tuple[Any, Any]:
        """Return the numbers of the entries that have one of the hashes, and the number of each one's hash."""
        column = self.entries[:, 0]
        at, active = first_at_least(column, high), np.arange(len(high))
        found, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while len(active):
            within = at < len(column)
            at, active = at[within], active[within]
            same = column[at] == high[active]
            at, active = at[same], active[same]
            equal = self.entries[at, 1] >> _HALF == low[active]
            found.append(at[equal])
            hashes.append(active[equal])
            at = at + 1  # the next entry is of the same key if that has been written several times
        return np.concatenate(found), np.concatenate(hashes)


def first_at_least(column: Any, wanted: Any) -> Any:
    """Return for each of `wanted` the first place of the sorted `column` that is not less; hashes are evenly spread, so
    nearly all are found close to where their value says."""
    rows = len(column)
    margin = 8 * math.isqrt(rows) + 8
    guess = (wanted / 2.0**64 * rows).astype(np.int64)
    low, high = np.clip(guess - margin, 0, rows), np.clip(guess + margin, 0, rows)
    if rows:
        low[column[np.minimum(low, rows - 1)] >= wanted] = 0
        high[column[np.maximum(high - 1, 0)] < wanted] = rows
    while (open_ := low < high).any():
        middle = (low + high) // 2
        less = open_.copy()
        less[open_] = column[middle[open_]] < wanted[open_]
        low = np.where(less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    return low


def find_in(runs: Sequence[Run], by: KeyHash, columns: Sequence[pa.Array], files: Collection[str]) -> dict[str, Found]:
    """Find the rows that have one of these distinct keys, as `KeyIndex.find`, in runs whose keys are hashed `by`."""
    if not runs:
        return {}
    high, low = by(columns)
    by_hash = np.argsort(high)
    high, low = high[by_hash], low[by_hash].astype(np.uint64)
    found = {}
    for run in runs:
        at, hashes = run.find(high, low)
        if not len(at):
            continue
        in_order = np.argsort(at)  # entries on a disk are read in their order
        entries, keys = run.entries[at[in_order]], by_hash[hashes[in_order]]
        numbers, positions = (entries[:, 1] & _LOW).astype(np.int64), entries[:, 2].astype(np.int64)
        order = np.lexsort((positions, numbers))
        numbers, positions, keys = numbers[order], positions[order], keys[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, end in itertools.pairwise([*starts, len(numbers)]):
            path, _ = run.files[numbers[start]]
            if path in run.owned and path in files:
                found[path] = Found(positions[start:end], keys[start:end])
    return found


class KeyIndex:
    """The index of one lake table. One thread at a time, as the table.

    `scanned_rows` counts the rows that locating keys has read because the index did not cover them.
    """

    def __init__(self, files: IndexFiles, table_id: str, found: Sequence[str] = ()) -> None:
        """Take the names that the store had for this table; they are opened by `open`."""
        self.table_id = table_id
        self.scanned_rows = 0
        self._store = files
        self._found = list(found)
        self._keys: Columns | None = None
        self._hash = KeyHash(secrets.token_bytes(SECRET_BYTES))
        self._runs: list[Run] = []
        self._owner: dict[str, Run] = {}
        self._rests_until = 0.0
        self.names: frozenset[str] | None = None
        """The names of its files in the store; None before `open`."""

    @property
    def rests(self) -> bool:
        """Whether the store has failed a short while ago, so that the index must not be used."""
        return time.monotonic() < self._rests_until

    @property
    def keys(self) -> Columns:
        """The columns that it indexes; none before `open`."""
        return self._keys or []

    @property
    def runs(self) -> Sequence[Run]:
        """The runs."""
        return self._runs

    @property
    def files(self) -> IndexFiles:
        """Where the store has its files."""
        return self._store

    @property
    def secret(self) -> bytes:
        """The secret of its hash."""
        return self._hash.secret

    def covers(self, path: str) -> bool:
        """Whether `find` answers for a data file."""
        return path in self._owner

    def open(self, keys: Columns) -> None:
        """Read what the store has, once, for this key; a table whose key has changed begins again without runs."""
        if self._keys == keys:
            return
        if self._keys is not None:
            self._found = [run.name for run in self._runs if run.name is not None]
            self._runs, self._owner = [], {}
        self._keys = keys
        with self._resting():
            read = [(name, opened(name, self._mapped(name), keys)) for name in self._found]
            by_secret: dict[bytes, list[Run]] = {}
            for _, found in read:
                if found is not None:
                    by_secret.setdefault(found[0], []).append(found[1])
            rows = {secret: sum(len(run.entries) for run in runs) for secret, runs in by_secret.items()}
            kept: list[Run] = []
            if rows:
                secret = max(rows, key=lambda each: rows[each])
                self._hash = KeyHash(secret)
                kept = [
                    run
                    for run in sorted(by_secret[secret], key=lambda run: -len(run.entries))
                    if self._own(run)  # else it was merged into a larger one, and its file was not removed any more
                ]
            names = {run.name for run in kept}
            self._runs = kept
            self.names = frozenset(name for name in names if name is not None)
            for name in self._found:
                if name not in names:
                    self._removed(name)
            self._found = []

    def find(self, columns: Sequence[pa.Array], files: Collection[str]) -> dict[str, Found]:
        """Find the rows that have one of these distinct keys in those of `files` that the index covers, by path.
        Deleted rows are included.
        """
        return find_in(self._runs, self._hash, columns, files)

    def add(self, read: Iterable[tuple[str, int, Iterator[Sequence[pa.Array]]]], files: Collection[str]) -> None:
        """Index data files: path, rows, and the key's columns in the lake's types by row group, in order.

        `files` are those that the table now has; runs of others are merged away.
        """
        waiting: list[tuple[str, int, Iterator[Sequence[pa.Array]]]] = []
        rows = 0
        for item in read:
            if waiting and rows + item[1] > BUILD_ROWS:
                with _LARGE:
                    self._build(waiting, files)
                waiting, rows = [], 0
            waiting.append(item)
            rows += item[1]
        if waiting:
            with _LARGE if rows >= STORED_ROWS else nullcontext():
                self._build(waiting, files)

    def _build(self, read: Sequence[tuple[str, int, Iterator[Sequence[pa.Array]]]], files: Collection[str]) -> None:
        entries = np.empty((sum(rows for _, rows, _ in read), WORDS), np.uint64)
        start = 0
        for number, (path, rows, groups) in enumerate(read):
            position = 0
            for columns in groups:
                part = entries[start + position : start + position + len(columns[0])]
                part[:, 0], low = self._hash(columns)
                part[:, 1] = low.astype(np.uint64) << _HALF | np.uint64(number)
                part[:, 2] = np.arange(position, position + len(part))
                position += len(part)
            if position != rows:
                raise FileLost(f"{path} has {position} rows, but the lake says {rows}", "restore it from a backup")
            start += rows
        covered = [(path, rows) for path, rows, _ in read]
        with self._resting():
            self._keep(covered, len(entries), [entries[np.argsort(entries[:, 0])]])
            self._merge(files)

    def _keep(self, covered: list[tuple[str, int]], rows: int, parts: Iterable[Any]) -> None:
        """Add a run of these sorted entries, in the store if it is large."""
        if rows < STORED_ROWS:
            run = Run(np.concatenate(list(parts)) if rows else np.empty((0, WORDS), np.uint64), covered)
        else:
            name = f"{table_part(self.table_id)}.{secrets.token_hex(8)}.keys"
            self.names = frozenset({*(self.names or ()), name})  # before it exists: the sweep removes unknown names
            self._store.write(name, _blocks(self._hash.secret, self._keys or [], covered, parts))
            found = opened(name, self._mapped(name), self._keys or [], checked=False)
            if found is None:
                raise IndexUnavailable(f"the file {name} was not as it was written")
            run = found[1]
        if self._own(run):
            self._runs.append(run)

    def _merge(self, files: Collection[str]) -> None:
        """Merge the runs of each tier that is full, and those of which more than half is gone."""
        for run in list(self._runs):
            left = sum(rows for path, rows in run.owned.items() if path in files)
            if 2 * left < len(run.entries):
                self._merge_runs([run], files)
        while True:
            tiers: dict[int, list[Run]] = {}
            for run in self._runs:
                tiers.setdefault(run.tier, []).append(run)
            full = [runs for runs in tiers.values() if len(runs) >= FAN_OUT]
            if not full:
                return
            self._merge_runs(full[0], files)

    def _merge_runs(self, runs: Sequence[Run], files: Collection[str]) -> None:
        """Replace runs by one, without the files that are gone."""
        covered: list[tuple[str, int]] = []
        numbers = []
        for run in runs:
            new = np.full(len(run.files), -1, np.int64)
            for number, (path, rows) in enumerate(run.files):
                if path in run.owned and path in files:
                    new[number] = len(covered)
                    covered.append((path, rows))
            numbers.append(new)
        for run in runs:
            self._runs.remove(run)
            for path in run.owned:
                del self._owner[path]
        if covered:
            self._keep(covered, sum(rows for _, rows in covered), _merged(runs, numbers))
        for run in runs:
            if run.name is not None:
                self._removed(run.name)

    def _own(self, run: Run) -> bool:
        """Let a run answer for those of its files that no other run has; False if there is none."""
        run.owned = {path: rows for path, rows in run.files if path not in self._owner}
        for path in run.owned:
            self._owner[path] = run
        return bool(run.owned)

    def _mapped(self, name: str) -> Any:
        found = self._store.map(name)
        return None if found is None else memoryview(found)

    def _removed(self, name: str) -> None:
        self._store.remove(name)
        self.names = (self.names or frozenset()) - {name}

    def rest(self) -> None:
        """Forget the index for a while; then its files are compared with their checksums again."""
        self._found = list(self.names or self._found)
        self._keys, self._runs, self._owner, self.names = None, [], {}, None
        self._rests_until = time.monotonic() + REST_SECONDS

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """Rest if the store fails inside, and raise IndexUnavailable."""
        try:
            yield
        except (CutlineError, OSError, IndexUnavailable) as error:
            self.rest()
            raise IndexUnavailable(str(error)) from error


class KeyIndexes:
    """The key indexes of a pipeline's tables; thread-safe, each index for one thread at a time."""

    def __init__(self, files: IndexFiles) -> None:
        """Take the store's folder of indexes; it is listed when the first index is asked for."""
        self._store = files
        self._lock = threading.Lock()
        self._found: dict[str, list[str]] | None = None
        self._known: dict[str, KeyIndex] = {}

    def find(self, table_id: str) -> KeyIndex:
        """Return a table's index, always the same one."""
        with self._lock:
            known = self._known.get(table_id)
            if known is None:
                known = self._known[table_id] = KeyIndex(
                    self._store, table_id, self._names().get(table_part(table_id), ())
                )
            return known

    def _names(self) -> Mapping[str, list[str]]:
        if self._found is None:
            self._found = {}
            try:
                for name in self._store.names():
                    self._found.setdefault(name.partition(".")[0], []).append(name)
            except CutlineError as error:
                logger.warning("the key indexes could not be listed, so they are made again: %s", error)
        return self._found

    def sweep(self, tables: Collection[str]) -> None:
        """Remove the files of tables other than `tables`, and those of an open index that it does not use.

        Raises Unavailable or ConfigError if the store fails.
        """
        parts = {table_part(table_id): table_id for table_id in tables}
        with self._lock:
            for table_id in self._known.keys() - set(tables):
                del self._known[table_id]
            known = dict(self._known)
        for name in self._store.names():
            index = known.get(parts.get(name.partition(".")[0], ""))
            used = None if index is None else index.names
            if name.partition(".")[0] not in parts or (used is not None and name not in used):
                self._store.remove(name)
        self._store.remove_stale()


def table_part(table_id: str) -> str:
    """Return the part of a file name that stands for a table, whose own name may have any character."""
    return hashlib.sha256(table_id.encode()).hexdigest()[:24]


# Files


def _blocks(
    secret: bytes, keys: Columns, covered: list[tuple[str, int]], parts: Iterable[Any]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a run's file."""
    checksum = 0
    for part in parts:
        data = np.ascontiguousarray(part, "<u8").reshape(-1).view(np.uint8).data
        checksum = zlib.crc32(data, checksum)
        yield data
    header = {
        "version": _VERSION,
        "secret": secret.hex(),
        "keys": keys,
        "files": covered,
        "checksum": checksum,
    }
    content = zlib.compress(json.dumps(header).encode())
    yield content
    yield _TAIL.pack(len(content), zlib.crc32(content), _MAGIC)


def opened(name: str, content: Any, keys: Columns, *, checked: bool = True) -> tuple[bytes, Run] | None:
    """Return a run and the secret of its hash, from the bytes of its file; None if they are not those of a run of this
    key. The entries are compared with their checksum if `checked`.
    """
    if content is None or len(content) < _TAIL.size:
        return None
    size, checksum, magic = _TAIL.unpack(content[-_TAIL.size :])
    end = len(content) - _TAIL.size
    if magic != _MAGIC or size > end or zlib.crc32(content[end - size : end]) != checksum:
        return None
    header = json.loads(zlib.decompress(content[end - size : end]))
    if header["version"] != _VERSION or header["keys"] != keys:
        return None
    files = [(path, rows) for path, rows in header["files"]]
    body = content[: end - size]
    if len(body) != 8 * WORDS * sum(rows for _, rows in files):
        return None
    if checked:
        found = 0
        for start in range(0, len(body), _BLOCK_BYTES):
            found = zlib.crc32(body[start : start + _BLOCK_BYTES], found)
        if found != header["checksum"]:
            return None
    return bytes.fromhex(header["secret"]), Run(np.frombuffer(body, "<u8").reshape(-1, WORDS), files, name)


def _merged(runs: Sequence[Run], numbers: Sequence[Any]) -> Iterator[Any]:
    """Yield the entries of several runs, sorted, a slice of the hashes at a time; `numbers` has for each run the new
    number of each of its files, -1 for those to leave out.
    """
    slices = math.ceil(sum(len(run.entries) for run in runs) / SLICE_ROWS)
    bounds = np.array([2**64 * at // slices for at in range(1, slices)], np.uint64)
    ends = [[0, *first_at_least(run.entries[:, 0], bounds), len(run.entries)] for run in runs]
    for at in range(slices):
        parts = []
        for run, new, places in zip(runs, numbers, ends, strict=True):
            part = run.entries[places[at] : places[at + 1]]
            file = new[(part[:, 1] & _LOW).astype(np.int64)]
            kept = file >= 0
            part = part[kept]
            part[:, 1] = part[:, 1] >> _HALF << _HALF | file[kept].astype(np.uint64)
            parts.append(part)
        entries = np.concatenate(parts)
        yield entries[np.argsort(entries[:, 0])]
