"""The Iceberg sink: the lake tables of one pipeline, as one start of the Spark writer uses them (sinks/contract.py).

A start works on a branch of its own in each table, `staging_w`, which no other process writes and nobody reads. A
content is a snapshot, a place such a branch (works.py); `main` is what a table shows. Commits of others on `main`
(foreign.py) are looked for before a table is applied, again before its publication, and in the commit that moves
`main`. The files written to the lake and its catalogue are synced (durable.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from cutline.common import logs
from cutline.common.clock import Clock
from cutline.common.config.pipeline import RetentionConfig
from cutline.common.errors import ProtocolError
from cutline.common.journal.plan import Staged, TableStep
from cutline.common.journal.progress import Progress
from cutline.common.journal.view import JournalView
from cutline.common.schema import TableSchema
from cutline.common.store.records import Content, Publication, Work
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.contract import Earlier, Foreign, Made, Shaping, TableFault
from cutline.spark_writer.sinks.iceberg import deriving, local, on_spark
from cutline.spark_writer.sinks.iceberg.catalogue import network_volume_of
from cutline.spark_writer.sinks.iceberg.changes import append, replace_all, rewrite, upsert
from cutline.spark_writer.sinks.iceberg.columns import Layout, lay_out
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector
from cutline.spark_writer.sinks.iceberg.durable import sync_files
from cutline.spark_writer.sinks.iceberg.engine import AUTO, SPARK, choose_engine, choose_filling_engine
from cutline.spark_writer.sinks.iceberg.faults import may_be_own, not_taken_over, snapshot_lost
from cutline.spark_writer.sinks.iceberg.files import Change, remove_file
from cutline.spark_writer.sinks.iceberg.filling import filled, must_fill
from cutline.spark_writer.sinks.iceberg.foreign import OURS, foreign_of
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndexes
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.publications import Publications
from cutline.spark_writer.sinks.iceberg.reading import rows_with
from cutline.spark_writer.sinks.iceberg.staged import adopt
from cutline.spark_writer.sinks.iceberg.start import Start
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from cutline.spark_writer.sinks.iceberg.tables import Tables
from cutline.spark_writer.sinks.iceberg.taking_over import EarlierLost, rows_taken_over
from cutline.spark_writer.sinks.iceberg.upkeep import Upkeep
from cutline.spark_writer.sinks.iceberg.works import branch_of, living_rows, snapshot_of, tags_of, work_of
from cutline.spark_writer.sinks.side_by_side import SIDE_BY_SIDE, SideBySide

logger = logging.getLogger("cutline.spark_writer")
LIGHT_ROWS = 200_000
"""Tables of which so many rows must be read or written are as many at once as there are cores, for their memory."""


class IcebergSink:
    """The lake of one pipeline, for one start; the contract says what each method promises."""

    branch: str
    """Our branch in every lake table."""
    publications: Publications
    indexes: KeyIndexes
    tables: Tables
    upkeep: Upkeep
    _start: Start

    def __init__(
        self,
        store: PipelineStore,
        lake: Lake,
        shaping: Shaping,
        *,
        engine: str = AUTO,
        retention: RetentionConfig | None = None,
        clock: Clock = time,
    ) -> None:
        """`store` has the staged files and the key indexes; `engine` is the setting `sink.engine`."""
        self._store = store
        self._lake = lake
        self._shaping = shaping
        self.engine = engine
        self._spark = on_spark.OnSpark(lake.jvm)
        self._retention = retention or RetentionConfig()
        self._clock = clock
        noted = partial(logs.note, pipeline=store.name)
        self._files = ThreadPoolExecutor(4, thread_name_prefix="cutline-file", initializer=noted)
        self._heavy = threading.BoundedSemaphore(max(2, min(SIDE_BY_SIDE, os.cpu_count() or 2)))

    def check_holder(self) -> None:
        """See `Sink`."""
        Publications(self._lake, 0).check_holder()

    def begin(self, progress: Progress, journal: JournalView, side_by_side: SideBySide) -> Upkeep:
        """See `Sink`."""
        w, store, lake = progress.w, self._store, self._lake
        lake.w, self.branch = w, branch_of(w)
        self._shaping.begin(w)
        lake.grace_began = lambda: self._clock.time() - self._retention.grace_seconds
        self.publications = Publications(lake, w)
        shared = network_volume_of(Path(store.location("index"))) is not None
        self.indexes = KeyIndexes(store.index_files(copied=shared))
        self.tables = Tables(lake, self.branch, side_by_side, indexes=self.indexes)
        self._start = Start(
            store=store,
            lake=lake,
            branch=self.branch,
            progress=progress,
            journal=journal,
            tables=self.tables,
            publications=self.publications,
            side_by_side=side_by_side,
            indexes=self.indexes,
            retention=self._retention,
            clock=self._clock,
        )
        self.upkeep = Upkeep(self._start)
        return self.upkeep

    def enter(self) -> None:
        """See `Sink`."""
        self._lake.activate()

    # Applying

    def foreign(self, table_id: str, work: Work | None) -> Foreign | None:
        """See `Sink`."""
        table = self.tables.get(table_id, create=work is None)
        theirs = table.theirs(None if work is None else snapshot_of(work.content))
        return None if theirs is None else foreign_of(theirs)

    def apply(self, step: TableStep, done: Work | None, *, checkpoint: int) -> Work:
        """See `Sink`: the step's chunks or a TRUNCATE, then its changes, after the table's rule."""
        made = done
        for part in self._shaping.parts(step):
            with self._shaping.shaped(part, partial(self._known, part, made)) as shaped:
                made = self._apply(shaped, made, checkpoint=checkpoint)
        assert made is not None
        return made

    def _known(self, step: TableStep, done: Work | None, keys: pa.Table | None) -> Iterator[tuple[pa.Table, Any]]:
        """See `Known` of the contract: rows of `done`, which are none of an earlier generation."""
        if done is None or done.generation != step.generation:
            return iter(())
        table, head = self.tables.get(step.table_id), snapshot_of(done.content)
        if not table.has_snapshot(head):
            raise snapshot_lost(step.table_id)
        return rows_with(table, head, table.layout(self._shaping.lake_schema(step.schema), step.generation), keys)

    def _apply(self, step: TableStep, done: Work | None, *, checkpoint: int) -> Work:
        table = self.tables.get(step.table_id, create=done is None)
        table.check_writable()
        head = snapshot_of(done.content) if done is not None else None
        if head is not None and not table.has_snapshot(head):
            raise snapshot_lost(step.table_id)
        new_generation = done is None or done.generation != step.generation
        if new_generation:
            table.begin_generation(step.schema, step.generation)
        layout = table.layout(step.schema, step.generation)
        self._start.layouts[step.table_id] = layout
        truncated = step.truncated_at is not None
        chunks = [] if truncated else self._adopt(step, table, layout)
        changes = [
            staged
            for staged in step.changes
            if not truncated or (staged.record.seq_max or 0) > (step.truncated_at or 0)
        ]
        keep = str(done.place) if done is not None else None
        summary = {"cutline.checkpoint": str(checkpoint), OURS: str(self._lake.w)}

        def commit(change: Change, base: int | None) -> int:
            self.tables.begun.add(step.table_id)
            return table.commit(branch=self.branch, base=base, layout=layout, summary=summary, change=change, keep=keep)

        altered = done is not None and done.schema != step.schema.hash
        if done is not None and altered and not (new_generation or truncated):
            head = self._fill(table, done, layout, commit)
        if head is None or new_generation or truncated:
            head = commit(replace_all(table, chunks), head)
        elif chunks or not changes or altered:
            head = commit(append(table, head, chunks), head)
        if changes:
            added, deleted = self._changed(step, changes, table, layout, head, checkpoint)
            if added or deleted:
                head = commit(upsert(table, head, added, deleted), head)
        self.upkeep.note_applied(step.table_id)
        rows = living_rows(table.metadata().snapshot(head).summary())
        return work_of(head, self.branch, generation=step.generation, schema=step.schema.hash, rows=rows)

    def _changed(
        self,
        step: TableStep,
        changes: Sequence[Staged],
        table: LakeTable,
        layout: Layout,
        head: int,
        checkpoint: int,
    ) -> tuple[list[Any], list[Vector]]:
        """Make the files of `changes` to the snapshot `head`: the data files of new rows, the deletion vectors of old
        ones."""
        count = sum(staged.record.rows for staged in changes)
        to_scan = table.rows_to_scan(head, count) if layout.schema.key else 0
        choice = choose_engine(self.engine, changes=count, table_rows=to_scan, cores=self._lake.jvm.cores)
        self._start.engines[step.table_id] = checkpoint, choice
        changed = local.changed
        if choice.engine == SPARK:
            first = (self._start.progress.applied or 0) + 1
            numbers = f"checkpoint {checkpoint}" if first >= checkpoint else f"checkpoints {first} to {checkpoint}"
            changed = partial(self._spark.changed, about=f"{numbers} of {self._store.name}")
        with self._heavy if count + to_scan > LIGHT_ROWS else nullcontext():
            made = changed(self._store, table, layout, head, changes, step.truncated_at)
        if choice.engine == SPARK or self.engine != AUTO:
            about = {"table": step.table_id, "checkpoint": checkpoint}
            text = "%s: %s was applied by %s: %s"
            logger.info(text, self._store.name, step.table_id, choice.engine, choice.why, extra=about)
        return made

    def _fill(self, table: LakeTable, done: Work, layout: Layout, commit: Callable[[Change, int | None], int]) -> int:
        """Give the rows of `done` the defaults of columns that came since, if the files must have them; return the head
        of the branch.
        """
        head = snapshot_of(done.content)
        before: TableSchema | None = None
        if not layout.defaults:
            with suppress(ProtocolError):  # the sweep removed it; then the rows are written anew in any case
                before = self._shaping.lake_schema(self._store.schemas([done.schema])[done.schema])
        files = list(table.contents(head).files.values()) if must_fill(before, layout) else []
        if not files:
            return head
        rows = sum(file.rows for file in files)
        choice = choose_filling_engine(self.engine, rows=rows, cores=self._lake.jvm.cores)
        with self._heavy:
            if choice.engine == SPARK:
                added = on_spark.filled(table, head, layout)
            else:
                added = filled(table, head, layout)
        logger.info(
            "%s: the rows of %s were written anew by %s with the defaults of new columns: %s",
            self._store.name,
            table.table_id,
            choice.engine,
            choice.why,
        )
        return commit(rewrite(table, head, files, added), head)

    def _adopt(self, step: TableStep, table: LakeTable, layout: Layout) -> list[Any]:
        """Return Iceberg's DataFiles for the chunks of a step; if one fails, the files of the others are removed."""
        futures = [self._files.submit(adopt, self._store, staged, table, layout) for staged in step.chunks]
        wait(futures)
        if failed := next((error for future in futures if (error := future.exception()) is not None), None):
            for future in futures:
                if future.exception() is None:
                    for file in future.result():
                        with suppress(OSError):
                            remove_file(str(file.location()))
            raise failed
        found = [file for future in futures for file in future.result()]
        sync_files(str(file.location()) for file in found)
        return found

    def carry_over(self, schema: TableSchema, work: Work, earlier: Earlier, *, checkpoint: int) -> Work:
        """See `Sink`: one commit, of files that are made in this process."""
        table_id, head = schema.table_id, snapshot_of(work.content)
        table = self.tables.get(table_id)
        table.check_writable()
        layout = table.layout(self._shaping.lake_schema(schema), work.generation)
        made = self._carried(table, head, schema, layout, earlier)
        if isinstance(made, str):
            text = "%s: %s begins anew in the lake, without what its mode has kept until now: %s"
            logger.warning(text, self._store.name, table_id, made, extra={"table": table_id, "cause": made})
            return work
        if not any(made):
            return work
        self.tables.begun.add(table_id)
        head = table.commit(
            branch=self.branch,
            base=head,
            layout=layout,
            summary={"cutline.checkpoint": str(checkpoint), OURS: str(self._lake.w)},
            change=upsert(table, head, *made),
            keep=str(work.place),
        )
        rows = living_rows(table.metadata().snapshot(head).summary())
        return work_of(head, self.branch, generation=work.generation, schema=work.schema, rows=rows)

    def _carried(
        self, table: LakeTable, head: int, schema: TableSchema, layout: Layout, earlier: Earlier
    ) -> tuple[list[Any], list[Vector]] | str:
        """Make the files of `carry_over`, or say why there is nothing to carry over; TableFault if a file of the
        earlier content is gone, or its rule is refused by now: a person may mend that."""
        before = snapshot_of(earlier.content)
        if not table.has_snapshot(before):
            return first_line(snapshot_lost(table.table_id))
        try:
            lake = self._shaping.lake_schema(earlier.schema)
            theirs = lay_out(self._lake.jvm, table.metadata(), lake, earlier.generation)
            carried = self._shaping.carried(schema, layout.arrow, earlier, theirs.arrow)
            if isinstance(carried, str):
                return carried
            with self._heavy:
                return rows_taken_over(table, head, layout, before, theirs, carried)
        except (EarlierLost, TableFault) as error:
            raise not_taken_over(table.table_id, error) from error

    def rewind(self, table_id: str, work: Work | None) -> None:
        """See `Sink`."""
        self.tables.rewind(table_id, work)

    # Derived tables

    def reads(self, name: str, sql: str) -> list[str]:
        """See `Sink`."""
        return deriving.reads_of(self._lake.jvm, name, sql)

    def derive(
        self,
        name: str,
        sql: str,
        reads: Mapping[str, tuple[str, Content]],
        done: Work | None,
        *,
        since: Mapping[str, Content] | None,
        checkpoint: int,
        over: Callable[[], bool],
    ) -> Made:
        """See `Sink`."""
        made = deriving.derive(self._start, name, sql, reads, done, since, checkpoint, over)
        self.upkeep.note_derived(name)
        return made

    def same_rows(self, table_id: str, before: Content, now: Content) -> bool:
        """See `Sink`."""
        return deriving.same_rows(self.tables.get(table_id), before, now)

    # Publishing

    def make_durable(self) -> None:
        """See `Sink`: each commit is synced by itself, but for the catalogue's file."""
        self._lake.sync_catalogue()

    def show(self, record: Publication, table_id: str, allowed: Callable[[tuple[int, int]], bool]) -> bool:
        """See `Sink`: one commit moves `main`."""
        table = record.tables[table_id]
        assert table.main is not None
        return self.tables.get(table_id).show(
            snapshot_id=snapshot_of(table.main.content),
            w=self._lake.w,
            n=record.n,
            tag=record.kept and table.shown,
            work=None if table.work is None else str(table.work.place),
            allowed=allowed,
        )

    def keep(self, record: Publication, table_id: str) -> None:
        """See `Sink`: by tags."""
        if tags := tags_of(record, table_id):
            self.tables.get(table_id).tag(tags)

    def record(self, record: Publication, before: Publication | None, left_behind: Callable[[], Sequence[int]]) -> None:
        """See `Sink`: in `_cutline.publications`."""
        self.publications.write(record, before, left_behind() if before is None else ())

    # Errors and people

    def may_be_own(self, error: Exception) -> bool:
        """See `Sink`."""
        return may_be_own(error)

    def check(self, *, expected: bool) -> None:
        """See `Sink`."""
        self.publications.check(expected=expected)

    def forget(self, table_id: str) -> None:
        """See `Sink`."""
        self.tables.forget(table_id)

    def check_table(self, table_id: str) -> None:
        """See `Sink`."""
        self._lake.load(table_id)

    def choose(self, table_id: str, choice: str, seen: str) -> None:
        """See `Sink`: the lake table keeps the choice."""
        self.tables.get(table_id).choose(choice, seen)

    def abandon(self, newest: Publication | None) -> None:
        """See `Sink`: the branches go, unless the publication names them. If that fails they stay until the next start
        commits to their table."""
        tables = newest.tables if newest is not None else {}
        named = {table_id for table_id, table in tables.items() if table.work and table.work.place == self.branch}
        self.tables.drop_branches(except_in=named)

    def close(self) -> None:
        """See `Sink`."""
        self.upkeep.close()
        self._files.shutdown(wait=True, cancel_futures=True)
        self._shaping.close()
