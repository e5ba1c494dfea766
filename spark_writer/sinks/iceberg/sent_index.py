"""A table's key index (key_index.py) in the form in which Spark's executors get it.

Runs in the store are sent as their names, and an executor maps them itself; those that are only in the Spark writer's
memory are sent whole, since they are small. It is read only: the Spark writer adds what a table's new files need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cutline.common.errors import Unavailable
from cutline.common.store.index_files import IndexFiles
from cutline.spark_writer.sinks.iceberg.key_hash import KeyHash
from cutline.spark_writer.sinks.iceberg.key_index import Found, KeyIndex, Run, entries_in, find_in


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRun:
    """A run: its file's name in the store, or its entries; `files` and `owned` as `Run` has them."""

    name: str | None
    entries: Any = field(repr=False)
    files: Sequence[tuple[str, int]] = field(repr=False)
    owned: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentIndex:
    """An index of one table, for look-ups by another process."""

    table_id: str
    secret: bytes = field(repr=False)
    runs: Sequence[SentRun]
    files: IndexFiles = field(repr=False)
    covered: frozenset[str] = field(repr=False)

    def __contains__(self, path: str) -> bool:
        """Whether `find` answers for a data file."""
        return path in self.covered

    def find(self, columns: Sequence[pa.Array], files: Collection[str]) -> dict[str, Found]:
        """Do as `KeyIndex.find`. Unavailable if a run can't be read."""
        runs = [
            Run(self._entries(run) if run.name is not None else run.entries, list(run.files), run.name, dict(run.owned))
            for run in self.runs
        ]
        return find_in(runs, KeyHash(self.secret), columns, files)

    def _entries(self, run: SentRun) -> Any:
        content = self.files.map(run.name or "")
        if content is None:
            raise Unavailable(f"the key index of {self.table_id} lacks its file {run.name}", "starting again")
        return entries_in(memoryview(content), run.files)


def sent(index: KeyIndex) -> SentIndex:
    """Return an index, which is open, in this form."""
    runs = [
        SentRun(
            name=run.name,
            entries=run.entries if run.name is None else None,
            files=tuple(run.files),
            owned=dict(run.owned),
        )
        for run in index.runs
    ]
    covered = frozenset(path for run in runs for path in run.owned)
    return SentIndex(table_id=index.table_id, secret=index.secret, runs=runs, files=index.files, covered=covered)
