"""The lake tables of one start of the Spark writer, and its branch in each of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from cutline.common.store.records import Work
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.iceberg.faults import table_dropped
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndexes
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from cutline.spark_writer.sinks.side_by_side import SideBySide

logger = logging.getLogger("cutline.spark_writer")


class Tables:
    """The lake tables of one start, each loaded once; `begun` are those in which the start's branch may exist."""

    def __init__(self, lake: Lake, branch: str, side_by_side: SideBySide, *, indexes: KeyIndexes) -> None:
        """Nothing is loaded yet."""
        self._lake = lake
        self._indexes = indexes
        self._branch = branch
        self.each: Callable[..., list[tuple[str, object]]] = side_by_side.each
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

    def forget(self, table_id: str) -> None:
        """The next `get` loads it anew."""
        self._loaded.pop(table_id, None)

    def rewind(self, table_id: str, work: Work | None) -> None:
        """Set our branch of a table back to `work`, or drop it if `work` is elsewhere; the next `get` loads it anew."""
        self.forget(table_id)
        table = self._lake.load(table_id)
        if table is not None and table_id in self.begun:
            ours = work is not None and work.place == self._branch
            table.rewind(self._branch, snapshot_of(work.content) if work is not None and ours else None)

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
