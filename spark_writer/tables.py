"""The lake tables of one start of the Spark writer: works on several in parallel, and keeps their errors apart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cutline.common.store.records import Work
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.quarantine import may_be_own
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndexes
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.table import LakeTable, table_dropped

logger = logging.getLogger("cutline.spark_writer")


class Tables:
    """The lake tables of one start, each loaded once; `begun` are those in which the start's branch may exist."""

    def __init__(
        self,
        lake: Lake,
        branch: str,
        pool: ThreadPoolExecutor,
        *,
        indexes: KeyIndexes,
        check_lake: Callable[[], None],
    ) -> None:
        """`check_lake` raises Unavailable if the lake does not accept a commit on a table of Cutline's own."""
        self._lake = lake
        self._indexes = indexes
        self._branch = branch
        self._pool = pool
        self._check_lake = check_lake
        self._loaded: dict[str, LakeTable] = {}
        self.begun: set[str] = set()

    def get(self, table_id: str, *, create: bool = False) -> LakeTable:
        """Return a lake table. If it does not exist, `create` makes it; without `create` TableFault is raised."""
        table = self._loaded.get(table_id)
        if table is None or table.rights.expire:
            table = self._lake.ensure(table_id) if create else self._lake.load(table_id)
            if table is None:
                raise table_dropped(table_id)
            table.index = self._indexes.find(table_id)
            self._loaded[table_id] = table
        return table

    def rewind(self, table_id: str, work: Work | None) -> None:
        """Set our branch of a table back to `work`, or drop it if `work` is elsewhere; the next `get` loads it anew."""
        self._loaded.pop(table_id, None)
        table = self._lake.load(table_id)
        if table is not None and table_id in self.begun:
            ours = work is not None and work.branch == self._branch
            table.rewind(self._branch, work.snapshot_id if work is not None and ours else None)

    def drop_branches(self, except_in: Collection[str]) -> None:
        """Drop our branch of every table but these; a branch that can't be dropped stays, with a warning."""

        def drop(table_id: str) -> None:
            try:
                table = self._lake.load(table_id)
                if table is not None:
                    table.rewind(self._branch, None)
            except Exception as error:
                logger.warning("branch %s of %s could not be dropped: %s", self._branch, table_id, first_line(error))

        self.each(self.begun - set(except_in), drop)

    def each(self, items: Iterable[Any], do: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        """Call `do` for each item, in parallel; return (item, result).

        The first error is raised at once: calls not yet begun are cancelled, but those under way go on.
        """

        def run(item: Any) -> Any:
            self._lake.activate()
            return do(item)

        items = list(items)
        if len(items) == 1:
            return [(items[0], run(items[0]))]
        return list(zip(items, self._pool.map(run, items), strict=True))

    def sparing(
        self,
        items: Collection[Any],
        do: Callable[[Any], Any],
        table_of: Callable[[Any], str],
        *,
        undo: Callable[[Any], None] = lambda item: None,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Exception]]]:
        """Call `do` for each table's item, in parallel; return (item, result) of each success, and (item, error) of
        each error that is the table's own.

        An error is a table's own if `may_be_own` allows it, if it comes again at a second try (after `undo`, with the
        table loaded anew), and if the lake accepts a commit on Cutline's own table between the two tries. Any other
        error is raised, as by `each`.
        """

        def tried(item: Any) -> Any:
            try:
                return do(item)
            except Exception as error:
                if not may_be_own(error):
                    raise
                return error

        def tried_again(item: Any) -> Any:
            try:
                undo(item)
                return do(item)
            except Exception as error:
                if not may_be_own(error):
                    raise
                return error

        results = self.each(items, tried)
        failing = [item for item, result in results if isinstance(result, Exception)]
        if not failing:
            return results, []
        self._check_lake()
        for item in failing:
            self._loaded.pop(table_of(item), None)
        good = [(item, result) for item, result in results if not isinstance(result, Exception)]
        results = good + self.each(failing, tried_again)
        failed = [(item, result) for item, result in results if isinstance(result, Exception)]
        for item, _ in failed:
            try:
                undo(item)
            except Exception as error:
                logger.warning(
                    "branch %s of %s could not be set back: %s", self._branch, table_of(item), first_line(error)
                )
            self._loaded.pop(table_of(item), None)
        return [(item, result) for item, result in results if not isinstance(result, Exception)], failed
