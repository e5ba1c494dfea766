"""A table's key index (key_index.py) in the form in which Spark's executors get it.

Runs in the store are sent as their names, and an executor maps them itself; those that are only in the Spark writer's
memory are sent whole, since they are small. It is read only: the Spark writer adds what a table's new files need.

With a wrong entry a row would be missed, so a process compares a file with its checksum before it first uses it, and
with its length and header each time. From a folder of this machine a look-up then reads only the entries that it needs;
from an object store or a network volume each look-up copies the whole file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cutline.common.errors import Unavailable
from cutline.common.store.index_files import IndexFiles
from cutline.spark_writer.sinks.iceberg.key_hash import KeyHash
from cutline.spark_writer.sinks.iceberg.key_index import Columns, Found, KeyIndex, Run, find_in, opened

MOST_CHECKED = 100_000
_checked: set[str] = set()
"""The files, under unique names, that this process has compared with their checksums."""


class IndexDamaged(Unavailable):
    """A file of a table's key index is missing, or is not as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRun:
    """A run: its file's name in the store, or else its entries and `files`; these and `owned` as `Run` has them."""

    name: str | None
    entries: Any = field(repr=False)
    files: Sequence[tuple[str, int]] = field(repr=False)
    owned: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentIndex:
    """An index of one table, for look-ups by another process."""

    table_id: str
    secret: bytes = field(repr=False)
    keys: Columns
    runs: Sequence[SentRun]
    files: IndexFiles = field(repr=False)
    covered: frozenset[str] = field(repr=False)

    def __contains__(self, path: str) -> bool:
        """Whether `find` answers for a data file."""
        return path in self.covered

    def find(self, columns: Sequence[pa.Array], files: Collection[str]) -> dict[str, Found]:
        """Do as `KeyIndex.find`. IndexDamaged if a run's file can't be used, Unavailable if the store fails."""
        runs = [
            Run(run.entries, list(run.files), None, dict(run.owned)) if run.name is None else self._read(run.name, run)
            for run in self.runs
        ]
        return find_in(runs, KeyHash(self.secret), columns, files)

    def _read(self, name: str, run: SentRun) -> Run:
        content = self.files.map(name)
        found = None if content is None else opened(name, memoryview(content), self.keys, checked=name not in _checked)
        if found is None or found[0] != self.secret:
            state = "is missing" if content is None else "is not as it was written"
            raise IndexDamaged(f"the file {name} of the key index of {self.table_id} {state}", "starting again")
        if len(_checked) >= MOST_CHECKED:
            _checked.clear()
        _checked.add(name)
        found[1].owned = dict(run.owned)
        return found[1]


def sent(index: KeyIndex) -> SentIndex:
    """Return an index, which is open, in this form."""
    runs = [
        SentRun(
            name=run.name,
            entries=run.entries if run.name is None else None,
            files=tuple(run.files) if run.name is None else (),
            owned=dict(run.owned),
        )
        for run in index.runs
    ]
    covered = frozenset(path for run in runs for path in run.owned)
    return SentIndex(
        table_id=index.table_id,
        secret=index.secret,
        keys=index.keys,
        runs=runs,
        files=index.files,
        covered=covered,
    )
