"""One start of the Spark writer on a lake: what its applies and its upkeep share."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutline.common.clock import Clock
from cutline.common.config.pipeline import RetentionConfig
from cutline.common.journal.progress import Progress
from cutline.common.journal.view import JournalView
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.engine import Engine
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndexes
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.publications import Publications
from cutline.spark_writer.sinks.iceberg.tables import Tables
from cutline.spark_writer.sinks.side_by_side import SideBySide


@dataclass(slots=True, kw_only=True, eq=False)
class Start:
    """A start; `branch` is its branch in every lake table.

    By table: `layouts` are the columns of those that this start has applied, `engines` who applied the last changes, in
    the batch up to that checkpoint.
    """

    store: PipelineStore
    lake: Lake
    branch: str
    progress: Progress
    journal: JournalView
    tables: Tables
    publications: Publications
    side_by_side: SideBySide
    indexes: KeyIndexes
    retention: RetentionConfig
    clock: Clock
    layouts: dict[str, Layout] = field(default_factory=dict)
    engines: dict[str, tuple[int, Engine]] = field(default_factory=dict)
