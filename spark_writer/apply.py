"""Applies completed checkpoints to the lake, in this order of durability:

1. claim a number w: everything is made on branches `staging_w`, which no other process writes and nobody reads;
2. for each table, continue from `work` of the newest publication on the chain (common/journal/publishing.py);
3. apply the chain's later entries, several at once when behind: adopt chunk files, then delete and add what changed;
   the files written to the lake and its catalogue are synced (sinks/iceberg/durable.py);
4. publication N, put if absent: **the commit point**. A start whose publication is refused ends, and the next begins;
5. from the publication's record alone, and again at each start: move `main` of each live table, with the tag
   `checkpoint_N` of a kept cut in the same commit, then write the rows of `_cutline.publications`. A start that another
   one has overtaken by then writes none.

So a crash at any point leaves nothing but a branch that nobody reads. A zombie (an older w that goes on) is refused its
publication, or repeats a correct one, and can't move `main` back. An unclear answer of the catalogue counts as a crash.

**One table harms no other.** An error that is one table's own (`may_be_own` and `Tables.sparing` are the rule)
quarantines that table alone: the publication goes on without it, names its cause and the checkpoint up to which it is
`applied`, and `main` stays. The table is tried again by the next start, by a retry that a person asks for, and when its
next generation comes. Then the entries after `applied` are applied to it alone, up to the batch in progress, so nothing
is lost and nothing comes twice. The store keeps no file longer for its sake: once a file that it needs is swept, or if
the lake table itself is lost, the table must be read again from the source, which the enumerator is asked to do
(`read_again`).

**Commits of others on `main`** (sinks/iceberg/foreign.py) are looked for before a table is applied, again before its
publication, and in the commit that moves `main`. A table goes on from a rewrite of others, or from a commit that a
person accepted, as from what `main` showed before: work made since is dropped, and the entries since are applied again.
Any other commit quarantines the table, with what `main` showed as its work and that publication as `applied`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cutline.common import logs
from cutline.common.causes import Cause, Code
from cutline.common.config.pipeline import RetentionConfig
from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.journal.batches import Batch, next_batch
from cutline.common.journal.plan import StagedLost, TableStep, catch_up_plans, table_steps
from cutline.common.journal.publishing import may_show, publication
from cutline.common.journal.view import JournalView
from cutline.common.schema import TableSchema
from cutline.common.store.chain import Chain, follow
from cutline.common.store.records import Publication, Quarantine, Work
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.progress import Progress
from cutline.spark_writer.quarantine import quarantine, read_again
from cutline.spark_writer.retention import tags_of
from cutline.spark_writer.sinks.iceberg import local, on_spark
from cutline.spark_writer.sinks.iceberg.catalogue import SIDE_BY_SIDE, network_volume_of
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.durable import sync_files
from cutline.spark_writer.sinks.iceberg.engine import AUTO, SPARK, choose_engine, choose_filling_engine
from cutline.spark_writer.sinks.iceberg.files import remove_file
from cutline.spark_writer.sinks.iceberg.filling import filled, must_fill
from cutline.spark_writer.sinks.iceberg.foreign import ACCEPT, OURS, Shown, Theirs
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndexes
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.publications import Publications
from cutline.spark_writer.sinks.iceberg.staged import adopt
from cutline.spark_writer.sinks.iceberg.table import Change, ForeignCommit, LakeTable, TableFault, snapshot_lost
from cutline.spark_writer.tables import Tables
from cutline.spark_writer.upkeep import Upkeep

logger = logging.getLogger("cutline.spark_writer")
BATCH_ENTRIES = 100
LIGHT_ROWS = 200_000
"""Tables of which so many rows must be read or written are as many at once as there are cores, for their memory."""
Plan = list[TableStep]
"""The steps of one table, in order; at least one."""

_LEFT_OUT = Cause(Code.FOREIGN_COMMIT, "others committed to the lake table")


class Incarnation:
    """One start of the Spark writer for one pipeline: it claims a number w, then applies and publishes."""

    def __init__(
        self,
        store: PipelineStore,
        lake: Lake,
        *,
        reached: Callable[[str], None] = lambda step: None,
        engine: str = AUTO,
        retention: RetentionConfig | None = None,
        clock: Callable[[], float] = time.time,
        threads: int | None = None,
    ) -> None:
        """Claim w and continue from the newest publication on the chain; `engine` is the setting `sink.engine`.

        `reached` is called with the name of each point reached in the order above: claimed, applying, applied,
        published, shown, recorded.
        """
        self._store = store
        self._lake = lake
        self._reached = reached
        self._engine = engine
        self._clock = clock
        noted = partial(logs.note, pipeline=store.name)
        self._pool = ThreadPoolExecutor(threads or SIDE_BY_SIDE, thread_name_prefix="cutline-table", initializer=noted)
        self._heavy = threading.BoundedSemaphore(max(2, min(SIDE_BY_SIDE, os.cpu_count() or 2)))
        self._files = ThreadPoolExecutor(4, thread_name_prefix="cutline-file", initializer=noted)
        Publications(lake, 0).check_holder()
        w = lake.w = store.claim()
        kept = retention or RetentionConfig()
        lake.grace_began = lambda: clock() - kept.grace_seconds
        self._journal = JournalView(store)
        newest = self._journal.newest_published
        published = store.publication(newest) if newest is not None else None
        tables = published.tables if published else {}
        self.progress = Progress(
            w=w,
            published=published,
            applied=newest or 0,
            work={table_id: table.work for table_id, table in tables.items() if table.work is not None},
            quarantined={table_id: table.held for table_id, table in tables.items() if table.held is not None},
        )
        self._publications = Publications(lake, w)
        shared = network_volume_of(Path(store.location("index"))) is not None
        self._indexes = KeyIndexes(store.index_files(copied=shared))
        self.tables = Tables(lake, self.progress.branch, self._pool, indexes=self._indexes, check_lake=self._check_lake)
        self.upkeep = Upkeep(
            store,
            lake,
            progress=self.progress,
            journal=self._journal,
            tables=self.tables,
            publications=self._publications,
            pool=self._pool,
            indexes=self._indexes,
            retention=retention,
            clock=clock,
        )
        self._kept_pending = False
        self._publish_from = store.removal.retired()[0]
        self._shown: Publication | None = None
        reached("claimed")
        if published is not None:
            self._show(published)
        self._to_retry = set(self.progress.quarantined)

    def _check_lake(self) -> None:
        self._publications.check(expected=len(self._store.publication_numbers()) > 1)

    def close(self) -> None:
        """Stop the threads."""
        self.upkeep.close()
        for pool in (self._pool, self._files):
            pool.shutdown(wait=True, cancel_futures=True)

    def abandon(self) -> None:
        """Drop the branches that this start made and no publication names; call it when the start ends with an error.

        If that fails they stay until the next start commits to their table.
        """
        branch = self.progress.branch
        try:
            numbers = self._store.publication_numbers()
            newest = follow(self._store.last_slot(), self._store.entry, numbers).newest(numbers)
            record = self._store.publication(newest) if newest is not None else None
            tables = record.tables if record is not None else {}
            named = {table_id for table_id, table in tables.items() if table.work and table.work.branch == branch}
            self.tables.drop_branches(except_in=named)
        except Exception as error:  # of the store, or of a JVM that has ended
            logger.warning("pipeline %s: branches %s could not be dropped: %s", self._store.name, branch, error)

    def retry(self, table_id: str | None = None) -> None:
        """Try a quarantined table, or all of them, again with the next checkpoint, because a person asked for it."""
        self._to_retry |= set(self.progress.quarantined) if table_id is None else {table_id}

    @property
    def definition(self) -> int | None:
        """The version of the definition that the newest epoch uses; None if retention has removed the epoch's entry."""
        return self._journal.definition

    def choose(self, table_id: str, choice: str, seen: str) -> None:
        """Take a person's choice about the commits of others to a table that were `seen`; ConfigError if there is none.

        The lake table keeps the choice. The table is tried again with the next checkpoint.
        """
        self.tables.get(table_id).choose(choice, seen)
        if table_id in self.progress.theirs:
            self.progress.theirs[table_id] = replace(self.progress.theirs[table_id], chosen=choice)
        self._to_retry.add(table_id)

    def step(self) -> bool:
        """Apply and publish the next batch; False if there was none. Unavailable if a new start must continue."""
        progress = self.progress
        self._refresh()
        batch = next_batch(
            self._journal.waiting(progress.applied, BATCH_ENTRIES),
            kept_pending=self._kept_pending,
            generations={table_id: work.generation for table_id, work in progress.work.items()},
            publish_from=self._publish_from,
        )
        if batch is None:
            return False
        self._apply(batch)
        progress.applied, self._kept_pending = batch.last, batch.kept
        self._journal.forget(before=batch.last)
        if batch.publish:
            self._publish(batch)
        return True

    def rest(self, seconds: float, pause: Callable[[float], bool]) -> None:
        """Wait until the journal may have more, but only about `seconds`, or until `pause` (a wait) returns True."""
        self._journal.await_more(seconds, pause)

    def _refresh(self) -> None:
        published = self.progress.published
        self._journal.refresh(published=None if published is None else published.n, applied=self.progress.applied)

    # Applying

    def _apply(self, batch: Batch) -> None:
        plans = self._plans(batch)
        began = time.monotonic()
        self.progress.engines.clear()
        self._reached("applying")
        bases = self._bases(plans, batch)
        applied = self._apply_plans(plans.values(), bases, batch)
        first, seconds = batch.entries[0].slot, time.monotonic() - began
        rows = sum(staged.record.rows for plan in applied for step in plan for staged in (*step.chunks, *step.changes))
        self.progress.applies.applied(first=first, last=batch.last, rows=rows, at=self._clock(), seconds=seconds)
        self.progress.measures.observe("apply", seconds)
        logger.info(
            "%s: applied checkpoints %d to %d: %d rows of %d tables in %.2f s",
            self._store.name,
            first,
            batch.last,
            rows,
            len(applied),
            seconds,
            extra={"checkpoint": batch.last},
        )
        for table_id, choice in self.progress.engines.items():
            if choice.engine == SPARK or self._engine != AUTO:
                about = {"table": table_id, "checkpoint": batch.last}
                logger.info(
                    "%s: %s was applied by %s: %s", self._store.name, table_id, choice.engine, choice.why, extra=about
                )
        self._reached("applied")

    def _apply_plans(self, plans: Collection[Plan], bases: Mapping[str, Work], batch: Batch) -> Sequence[Plan]:
        """Apply the plans of a batch side by side, each on its table's work or on that in `bases`; return those that
        succeeded.
        """
        progress = self.progress
        summary = {"cutline.checkpoint": str(batch.last), OURS: str(progress.w)}

        def apply(plan: Plan) -> Work | None:
            """Return the table's new work; None if a staged file that a quarantined table needs is gone."""
            table_id = plan[0].table_id
            held, work = progress.quarantined.get(table_id), bases.get(table_id) or progress.work.get(table_id)
            began = time.monotonic()
            try:
                for step in plan:
                    work = self._apply_step(step, work, summary)
            except StagedLost:
                if held is None or held.generation != plan[0].generation:
                    raise
                return None
            finally:
                progress.applies.took(table_id, time.monotonic() - began)
            return work

        def rewind(plan: Plan) -> None:
            self.tables.rewind(plan[0].table_id, progress.work.get(plan[0].table_id))

        good, failed = self.tables.sparing(plans, apply, lambda plan: plan[0].table_id, undo=rewind)
        for plan, work in good:
            table_id = plan[0].table_id
            if work is None:
                rewind(plan)
                read_again(progress, self._lake, table_id)
                continue
            progress.work[table_id] = work
            progress.read_again.pop(table_id, None)
            self.upkeep.note_applied(table_id)
            if progress.quarantined.pop(table_id, None) is not None:
                progress.theirs.pop(table_id, None)
                about = {"table": table_id}
                logger.warning("pipeline %s: %s left its quarantine", self._store.name, table_id, extra=about)
        for plan, error in failed:
            self._quarantine(plan[0].table_id, plan[0].generation, error)
        return [plan for plan, _ in good]

    def _quarantine(self, table_id: str, generation: int, error: Exception) -> None:
        """Quarantine a table at the checkpoint that its work holds, or if others committed to it, that `main` shows."""
        progress = self.progress
        held = progress.quarantined.get(table_id)
        again = held is not None and held.generation == generation
        applied = held.applied if held is not None and again else progress.applied
        progress.theirs.pop(table_id, None)
        if isinstance(error, ForeignCommit):
            progress.theirs[table_id] = error.theirs
            if error.theirs.shown.snapshot_id is not None:
                work, applied = self._shown_work(table_id, error.theirs.shown)
                progress.work.pop(table_id, None)
                if work is not None:
                    progress.work[table_id] = work
        quarantine(progress, self._store.name, table_id, generation=generation, error=error, applied=applied)
        if again and isinstance(error, TableFault) and error.lost:
            read_again(progress, self._lake, table_id)

    def _shown_work(self, table_id: str, shown: Shown) -> tuple[Work | None, int | None]:
        """Return the work that `main` showed by our last move, and the last checkpoint that it holds; (None, None) if
        no record knows it any more, or if that checkpoint has left the chain.
        """
        progress = self.progress
        held, work = progress.quarantined.get(table_id), progress.work.get(table_id)
        if held is not None and work is not None and work.snapshot_id == shown.snapshot_id:
            return work, held.applied
        for record in (progress.published, self._shown, self._store.publication(shown.n)):
            table = record.tables.get(table_id) if record is not None else None
            if record is None or table is None or table.main is None or record.n not in self._journal.chain:
                continue
            if table.shown and table.main.snapshot_id == shown.snapshot_id:
                return table.work, record.n
        return None, None

    def _bases(self, plans: dict[str, Plan], batch: Batch) -> dict[str, Work]:
        """Look for commits of others to the tables of `plans`; return the works that replace those tables' own.

        They are rewrites and accepted commits; the plans of their tables become those since what `main` showed before.
        A table whose commits await a choice is quarantined, and its plan is dropped.
        """
        progress, tables = self.progress, batch.entries[-1].tables

        def look(table_id: str) -> Theirs | None:
            work = progress.work.get(table_id)
            table = self.tables.get(table_id, create=work is None)
            return table.theirs(None if work is None else work.snapshot_id)

        looked, failed = self.tables.sparing(list(plans), look, str)
        for table_id, error in failed:
            del plans[table_id]
            self._quarantine(table_id, tables[table_id].generation, error)
        bases = {}
        for table_id, theirs in looked:
            work, n = self._shown_work(table_id, theirs.shown) if theirs is not None else (None, None)
            if theirs is None or theirs.main is None or work is None:
                pass
            elif theirs.chosen == ACCEPT or work.generation == tables[table_id].generation:
                since = Quarantine(cause=_LEFT_OUT, generation=tables[table_id].generation, applied=n)
                plan = self._catch_up({table_id: since}, batch)[table_id]
                if plan:
                    plans[table_id], bases[table_id] = plan, replace(work, snapshot_id=theirs.main)
            if table_id in bases or table_id in progress.quarantined:
                self.tables.rewind(table_id, bases.get(table_id) or progress.work.get(table_id))
        return bases

    def _catch_up(self, returning: Mapping[str, Quarantine], batch: Batch) -> dict[str, list[TableStep] | None]:
        return catch_up_plans(returning, batch, self.progress.applied, self._journal.history, self._store.schemas)

    def _plans(self, batch: Batch) -> dict[str, Plan]:
        """Return the steps of each table that a batch changes, and of the quarantined tables that are tried again."""
        progress = self.progress
        plans = {step.table_id: [step] for step in table_steps(batch, progress.work, self._store.schemas)}
        tables, returning = batch.entries[-1].tables, {}
        for table_id, held in progress.quarantined.items():
            plans.pop(table_id, None)
            table = tables.get(table_id)
            if table is not None and (table.generation != held.generation or table_id in self._to_retry):
                returning[table_id] = held
        for table_id, plan in self._catch_up(returning, batch).items():
            if plan is None:
                read_again(progress, self._lake, table_id)
            elif plan:
                plans[table_id] = plan
            if plan is None or plan:
                self._to_retry.discard(table_id)
        return plans

    def _apply_step(self, step: TableStep, done: Work | None, summary: Mapping[str, str]) -> Work:
        """Bring one table's branch from `done` to the end of a step: its chunks or a TRUNCATE, then its changes."""
        table = self.tables.get(step.table_id, create=done is None)
        table.check_writable()
        head = done.snapshot_id if done is not None else None
        if head is not None and not table.has_snapshot(head):
            raise snapshot_lost(step.table_id)
        new_generation = done is None or done.generation != step.generation
        if new_generation:
            table.begin_generation(step.schema, step.generation)
        layout = table.layout(step.schema, step.generation)
        self.progress.layouts[step.table_id] = layout
        truncated = step.truncated_at is not None
        chunks = [] if truncated else self._adopt(step, table, layout)
        changes = [
            staged
            for staged in step.changes
            if not truncated or (staged.record.seq_max or 0) > (step.truncated_at or 0)
        ]
        branch, keep = self.progress.branch, done.branch if done is not None else None

        def commit(change: Change, base: int | None) -> int:
            self.tables.begun.add(step.table_id)
            return table.commit(branch=branch, base=base, layout=layout, summary=summary, change=change, keep=keep)

        if done is not None and not (new_generation or truncated) and done.schema != step.schema.hash:
            head = self._fill(table, done, layout, commit)
        if head is None or new_generation or truncated:
            head = commit(table.replace_all(chunks), head)
        elif chunks or not changes or (done is not None and done.schema != step.schema.hash):
            head = commit(table.append(head, chunks), head)
        if changes:
            count = sum(staged.record.rows for staged in changes)
            to_scan = table.rows_to_scan(head, count) if layout.schema.key else 0
            cores = self._lake.jvm.cores
            choice = choose_engine(self._engine, changes=count, table_rows=to_scan, cores=cores)
            self.progress.engines[step.table_id] = choice
            changed = on_spark.changed if choice.engine == SPARK else local.changed
            with self._heavy if count + to_scan > LIGHT_ROWS else nullcontext():
                added, deleted = changed(self._store, table, layout, head, changes, step.truncated_at)
            if added or deleted:
                head = commit(table.upsert(head, added, deleted), head)
        return Work(snapshot_id=head, branch=branch, generation=step.generation, schema=step.schema.hash)

    def _fill(self, table: LakeTable, done: Work, layout: Layout, commit: Callable[[Change, int | None], int]) -> int:
        """Give the rows of `done` the defaults of columns that came since, if the files must have them; return the head
        of the branch.
        """
        head = done.snapshot_id
        before: TableSchema | None = None
        if not layout.defaults:
            with suppress(ProtocolError):  # the sweep removed it; then the rows are written anew in any case
                before = self._store.schemas([done.schema])[done.schema]
        files = list(table.contents(head).files.values()) if must_fill(before, layout) else []
        if not files:
            return head
        choice = choose_filling_engine(self._engine, rows=sum(file.rows for file in files), cores=self._lake.jvm.cores)
        with self._heavy:
            if choice.engine == SPARK:
                added = on_spark.filled(self._store, table, head, layout)
            else:
                added = filled(table, head, layout)
        logger.info(
            "%s: the rows of %s were written anew by %s with the defaults of new columns: %s",
            self._store.name,
            table.table_id,
            choice.engine,
            choice.why,
        )
        return commit(table.rewrite(head, files, added), head)

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

    # Publishing

    def _publish(self, batch: Batch) -> None:
        progress = self.progress
        self._settle(batch)
        record = publication(
            batch.entries[-1],
            w=progress.w,
            kept=batch.kept,
            work=progress.work,
            previous=progress.published,
            published_at=self._clock(),
            quarantined=progress.quarantined,
        )
        self._lake.sync_catalogue()
        before = progress.published.n if progress.published is not None else 0
        between = [slot for slot in self._journal.chain.after(before) if slot < record.n]
        if any(self._store.publication(slot) is not None for slot in between):
            # A table that this record does not show at its own cut would fall back behind those publications.
            raise Unavailable(f"another Spark writer has published up to {record.n}", "starting again after it")
        if self._store.deleting() or self._store.has_ended():
            raise Unavailable(f"pipeline {self._store.name} is deleted", f"publication {record.n} is not made")
        if not self._store.publish(record):
            raise Unavailable(f"publication {record.n} was made by another Spark writer", "starting again after it")
        self._reached("published")
        if record.source_time is not None:
            progress.measures.observe("commit_to_publication", max(0.0, record.published_at - record.source_time))
        progress.published, self._kept_pending = record, False
        progress.applies.published(record.n, record.published_at)
        self._show(record)

    def _left_behind(self) -> list[int]:
        """The publications that a restore has left behind."""
        numbers = self._store.publication_numbers()  # before the chain, which then has those of other starts too
        chain = follow(self._store.last_slot(), self._store.entry)
        return [n for n in numbers if n not in chain]

    def _settle(self, batch: Batch) -> None:
        """Look again for commits of others to the tables that are about to move; apply again on top of a rewrite."""
        progress, before = self.progress, self.progress.published
        moving: dict[str, Plan] = {}
        for table_id, table in batch.entries[-1].tables.items():
            work = progress.work.get(table_id) if table.show and table_id not in progress.quarantined else None
            old = before.tables.get(table_id) if before is not None else None
            if work is not None and (batch.kept or old is None or not old.shown or old.work != work):
                moving[table_id] = []
        bases = self._bases(moving, batch)
        if bases:
            self._apply_plans([moving[table_id] for table_id in bases], bases, batch)

    def _show(self, record: Publication) -> None:
        """Move `main` and write the rows of a publication, from its record alone."""
        began = time.monotonic()
        self._refresh()
        progress, n, before = self.progress, record.n, self._shown

        def chain_now(back: int) -> Chain:
            return follow(self._store.last_slot(), self._store.entry, [back])

        def has_moved(table_id: str) -> bool:
            main = record.tables[table_id].main
            if main is None:
                return False
            if before is None or record.kept or table_id not in before.tables:
                return True
            old = before.tables[table_id].main
            return old is None or old.snapshot_id != main.snapshot_id

        def show(table_id: str) -> bool:
            table = record.tables[table_id]
            assert table.main is not None
            moved = self.tables.get(table_id).show(
                snapshot_id=table.main.snapshot_id,
                w=progress.w,
                n=n,
                tag=record.kept and table.shown,
                work=None if table.work is None else table.work.branch,
                allowed=lambda current: may_show(current, w=progress.w, n=n, own=table.shown, chain=chain_now),
            )
            return moved or not table.shown

        shown, failed = self.tables.sparing([table for table in record.tables if has_moved(table)], show, str)
        if record.kept:
            # A restore to this cut shows what `main` shows now, and continues from `work`.
            waiting = [
                table_id for table_id, table in record.tables.items() if not table.shown and tags_of(record, table_id)
            ]
            _, untagged = self.tables.sparing(
                waiting, lambda table_id: self.tables.get(table_id).tag(tags_of(record, table_id)), str
            )
            failed += untagged
        for table_id, error in failed:
            table = record.tables[table_id]
            if table.shown and table_id not in progress.quarantined:
                self._quarantine(table_id, table.generation, error)
            else:  # the snapshot that an older publication left may be gone by now
                cause = first_line(error)
                logger.warning(
                    "pipeline %s: main of %s was not moved: %s",
                    self._store.name,
                    table_id,
                    cause,
                    extra={"table": table_id, "checkpoint": n, "cause": cause},
                )
        self._reached("shown")
        if not all(moved for _, moved in shown):
            raise Unavailable(f"another Spark writer moved main meanwhile (this one is {progress.w})", "starting again")
        self._publications.write(record, before, self._left_behind() if before is None else ())
        self._reached("recorded")
        self._shown = record
        took = time.monotonic() - began
        about, name = {"checkpoint": n}, self._store.name
        logger.info("%s: published %d: main of %d tables moved in %.2f s", name, n, len(shown), took, extra=about)
