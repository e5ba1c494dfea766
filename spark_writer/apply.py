"""Applies completed checkpoints to a sink, in this order of durability:

1. claim a number w: everything is made in places of that start, which no other process writes and nobody reads;
2. for each table, continue from `work` of the newest publication on the chain (common/journal/publishing.py);
3. apply the chain's later entries, several at once when behind: a table's chunks, then what changed; what the sink has
   made outlives the machine's crash (`Sink.make_durable`);
   A table's next generation, before it is shown for the first time, is given what the table's mode keeps of the one
   that readers see (`Sink.carry_over`): the record knows which that is, and a start that dies begins it again.
   Then the derived tables are computed of the contents that the publication will show (derived.py);
4. publication N, put if absent: **the commit point**. A start whose publication is refused ends, and the next begins;
5. from the publication's record alone, and again at each start: let readers see each live table's content, with the
   mark of a kept cut in the same step, then tell of the publication in the sink's own words (Iceberg: the rows of
   `_cutline.publications`). A start that another one has overtaken by then tells of none.

So a crash at any point leaves nothing but works that nobody reads. A zombie (an older w that goes on) is refused its
publication, or repeats a correct one, and can't let readers see an older cut. An unclear answer of the sink counts as a
crash. What a sink must promise for that is in sinks/contract.py; nothing here knows which one it is.

**One table harms no other.** An error that is one table's own (sparing.py has the rule) quarantines that table alone:
the publication goes on without it, names its cause and the checkpoint up to which it is `applied`, and readers see what
they saw. The table is tried again by the next start, by a retry that a person asks for, and when its next generation
comes. Then the entries after `applied` are applied to it alone, up to the batch in progress, so nothing
is lost and nothing comes twice. The store keeps no file longer for its sake: once a file that it needs is swept, or if
the table in the sink is lost, the table must be read again from the source, which the enumerator is asked to do
(`read_again`).

**Commits of others** to a table are looked for before it is applied, again before its publication, and in the step
that shows it. A table goes on from a commit that changed no row, or that a person accepted, as from what it showed
before: work made since is dropped, and the entries since are applied again. Any other commit quarantines the table,
with what it showed as its work and that publication as `applied`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from cutline.common import logs
from cutline.common.causes import Cause, Code
from cutline.common.clock import Clock
from cutline.common.derived import DerivedTable
from cutline.common.errors import Unavailable
from cutline.common.journal.batches import Batch, next_batch
from cutline.common.journal.plan import StagedLost, TableStep, catch_up_plans, table_steps
from cutline.common.journal.progress import Progress
from cutline.common.journal.publishing import may_show, origin_of, publication
from cutline.common.journal.view import JournalView
from cutline.common.store.chain import Chain, follow
from cutline.common.store.records import Content, Main, Publication, Quarantine, Work
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.derived import Derivations
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.quarantine import quarantine, read_again
from cutline.spark_writer.sinks.contract import ACCEPT, Earlier, Foreign, ForeignCommit, Sink, TableFault, Upkeep
from cutline.spark_writer.sinks.side_by_side import SIDE_BY_SIDE, SideBySide
from cutline.spark_writer.sparing import Sparing

logger = logging.getLogger("cutline.spark_writer")
BATCH_ENTRIES = 100
Plan = list[TableStep]
"""The steps of one table, in order; at least one."""

_LEFT_OUT = Cause(Code.FOREIGN_COMMIT, "others committed to the lake table")


class Incarnation:
    """One start of the Spark writer for one pipeline: it claims a number w, then applies and publishes."""

    def __init__(
        self,
        store: PipelineStore,
        sink: Sink,
        *,
        reached: Callable[[str], None] = lambda step: None,
        clock: Clock = time,
        pool: Callable[..., Executor] = ThreadPoolExecutor,
        derived: Sequence[DerivedTable] = (),
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Claim w and continue from the newest publication on the chain; `pool` makes the threads that work on tables,
        `derived` are the definition's derived tables. `over` tells, in a derived table's query, if the start is to end.

        `reached` is called with the name of each point reached in the order above: claimed, applying, applied,
        published, shown, recorded.
        """
        self._store = store
        self.sink = sink
        self._reached = reached
        self._clock = clock
        noted = partial(logs.note, pipeline=store.name)
        sink.check_holder()
        w = store.claim()
        self._journal = JournalView(store)
        newest = self._journal.newest_published
        published = store.publication(newest) if newest is not None else None
        self.progress = Progress.since(w, published)
        self.foreign: dict[str, Foreign] = {}
        """The commits of others about which a person must choose before the table goes on, by table."""
        self._theirs: dict[str, Content] = {}
        """What others have made of tables that go on from it, until they are shown."""
        self._pool = pool(SIDE_BY_SIDE, thread_name_prefix="cutline-table", initializer=noted)
        side_by_side = SideBySide(self._pool, sink.enter)
        self.upkeep: Upkeep = sink.begin(self.progress, self._journal, side_by_side)
        self._sparing = Sparing(sink, side_by_side, self._check_sink)
        self.derived = Derivations(derived, sink, self._sparing, clock=clock, pipeline=store.name, over=over)
        self._kept_pending = False
        self._publish_from = store.removal.retired()[0]
        self._shown: Publication | None = None
        reached("claimed")
        if published is not None:
            self._show(published)
        self._to_retry = set(self.progress.quarantined)

    def _check_sink(self) -> None:
        self.sink.check(expected=len(self._store.publication_numbers()) > 1)

    def close(self) -> None:
        """Stop the threads."""
        self.sink.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def abandon(self) -> None:
        """Drop what this start made and no publication names; call it when the start ends with an error."""
        try:
            numbers = self._store.publication_numbers()
            newest = follow(self._store.last_slot(), self._store.entry, numbers).newest(numbers)
            self.sink.abandon(self._store.publication(newest) if newest is not None else None)
        except Exception as error:  # of the store, or of a JVM that has ended
            text = "pipeline %s: what start %d began could not be dropped: %s"
            logger.warning(text, self._store.name, self.progress.w, error)

    def retry(self, table_id: str | None = None) -> None:
        """Try a quarantined table, or all of them, again with the next checkpoint, because a person asked for it."""
        self._to_retry |= set(self.progress.quarantined) if table_id is None else {table_id}
        self.derived.retry(table_id)

    @property
    def definition(self) -> int | None:
        """The version of the definition that the newest epoch uses; None if retention has removed the epoch's entry."""
        return self._journal.definition

    def choose(self, table_id: str, choice: str, seen: str) -> None:
        """Take a person's choice about the commits of others to a table that were `seen`; ConfigError if there is none.

        The sink keeps the choice. The table is tried again with the next checkpoint.
        """
        self.sink.choose(table_id, choice, seen)
        if table_id in self.foreign:
            self.foreign[table_id] = replace(self.foreign[table_id], chosen=choice)
        self._to_retry.add(table_id)
        self.derived.retry(table_id)

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
        self._journal.await_more(seconds, pause, self._clock.monotonic)

    def _refresh(self) -> None:
        published = self.progress.published
        self._journal.refresh(published=None if published is None else published.n, applied=self.progress.applied)

    # Applying

    def _apply(self, batch: Batch) -> None:
        plans = self._plans(batch)
        began = self._clock.monotonic()
        self._reached("applying")
        bases = self._bases(plans, batch)
        applied = self._apply_plans(plans.values(), bases, batch)
        first, seconds = batch.entries[0].slot, self._clock.monotonic() - began
        rows = sum(staged.record.rows for plan in applied for step in plan for staged in (*step.chunks, *step.changes))
        self.progress.applies.applied(first=first, last=batch.last, rows=rows, at=self._clock.time(), seconds=seconds)
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
        self._reached("applied")

    def _apply_plans(self, plans: Collection[Plan], bases: Mapping[str, Work], batch: Batch) -> Sequence[Plan]:
        """Apply the plans of a batch side by side, each on its table's work or on that in `bases`; return those that
        succeeded.
        """
        progress = self.progress

        def apply(plan: Plan) -> Work | None:
            """Return the table's new work; None if a staged file that a quarantined table needs is gone."""
            table_id = plan[0].table_id
            held, work = progress.quarantined.get(table_id), bases.get(table_id) or progress.work.get(table_id)
            began = self._clock.monotonic()
            try:
                for step in plan:
                    work = self.sink.apply(step, work, checkpoint=batch.last)
            except StagedLost:
                if held is None or held.generation != plan[0].generation:
                    raise
                return None
            finally:
                progress.applies.took(table_id, self._clock.monotonic() - began)
            return work

        def rewind(plan: Plan) -> None:
            self.sink.rewind(plan[0].table_id, progress.work.get(plan[0].table_id))

        good, failed = self._sparing.each(plans, apply, lambda plan: plan[0].table_id, undo=rewind)
        for plan, work in good:
            table_id = plan[0].table_id
            if work is None:
                rewind(plan)
                read_again(progress, self.sink, table_id)
                continue
            progress.work[table_id] = work
            progress.read_again.pop(table_id, None)
            if progress.quarantined.pop(table_id, None) is not None:
                self.foreign.pop(table_id, None)
                about = {"table": table_id}
                logger.warning("pipeline %s: %s left its quarantine", self._store.name, table_id, extra=about)
        for plan, error in failed:
            self._quarantine(plan[0].table_id, plan[0].generation, error)
        return [plan for plan, _ in good]

    def _quarantine(self, table_id: str, generation: int, error: Exception, applied: int | None = None) -> None:
        """Quarantine a table at the checkpoint that its work holds (None: the newest one applied, or that of its
        quarantine until now), or if others committed to it, that `main` shows."""
        progress = self.progress
        held = progress.quarantined.get(table_id)
        again = held is not None and held.generation == generation
        if applied is None:
            applied = held.applied if held is not None and again else progress.applied
        self.foreign.pop(table_id, None)
        if isinstance(error, ForeignCommit):
            self.foreign[table_id] = error.foreign
            if error.foreign.shown is not None:
                work, applied = self._shown_work(table_id, error.foreign)
                progress.work.pop(table_id, None)
                if work is not None:
                    progress.work[table_id] = work
                self._unpublish(table_id, error.foreign)
        name, now = self._store.name, self._clock.time()
        quarantine(progress, name, table_id, generation=generation, error=error, applied=applied, now=now)
        if again and isinstance(error, TableFault) and error.lost:
            read_again(progress, self.sink, table_id)

    def _unpublish(self, table_id: str, foreign: Foreign) -> None:
        """Take back that the newest publication shows a table, if `main` has another content: what comes next, and what
        it takes over, follows that content."""
        published, older = self.progress.published, self._store.publication(foreign.shown_n)
        table = None if published is None else published.tables.get(table_id)
        known = None if older is None else older.tables.get(table_id)
        if published is None or table is None or older is None or known is None or known.main is None:
            return
        if table.shown and known.main.content == foreign.shown and older.n < published.n:
            at, rows = older.position_of(table_id), known.main.rows
            main = Main(content=known.main.content, position=at, rows=rows, origin=origin_of(older, table_id))
            tables = {**published.tables, table_id: replace(table, main=main)}
            self.progress.published = replace(published, tables=tables)

    def _shown_work(self, table_id: str, foreign: Foreign) -> tuple[Work | None, int | None]:
        """Return the work that the table showed before commits of others, and the last checkpoint that it holds; (None,
        None) if no record knows it any more, or if that checkpoint has left the chain.
        """
        progress = self.progress
        held, work = progress.quarantined.get(table_id), progress.work.get(table_id)
        if held is not None and work is not None and work.content == foreign.shown:
            return work, held.applied
        for record in (progress.published, self._shown, self._store.publication(foreign.shown_n)):
            table = record.tables.get(table_id) if record is not None else None
            if record is None or table is None or table.main is None or record.n not in self._journal.chain:
                continue
            if table.shown and table.main.content == foreign.shown:
                return table.work, record.n
        return None, None

    def _bases(self, plans: dict[str, Plan], batch: Batch) -> dict[str, Work]:
        """Look for commits of others to the tables of `plans`; return the works that replace those tables' own.

        They are rewrites and accepted commits; the plans of their tables become those since what `main` showed before.
        A table whose commits await a choice is quarantined, and its plan is dropped.
        """
        progress, tables = self.progress, batch.entries[-1].tables

        def look(table_id: str) -> Foreign | None:
            return self.sink.foreign(table_id, progress.work.get(table_id))

        looked, failed = self._sparing.each(list(plans), look)
        for table_id, error in failed:
            del plans[table_id]
            self._quarantine(table_id, tables[table_id].generation, error)
        bases = {}
        for table_id, theirs in looked:
            if theirs is not None:
                self._theirs.pop(table_id, None)
                if theirs.content is not None and theirs.chosen in (None, ACCEPT):
                    self._theirs[table_id] = theirs.content
            work, n = self._shown_work(table_id, theirs) if theirs is not None else (None, None)
            if theirs is None or theirs.content is None or work is None:
                pass
            elif theirs.chosen == ACCEPT or work.generation == tables[table_id].generation:
                since = Quarantine(cause=_LEFT_OUT, generation=tables[table_id].generation, applied=n)
                plan = self._catch_up({table_id: since}, batch)[table_id]
                if plan:
                    plans[table_id], bases[table_id] = plan, replace(work, content=theirs.content)
            if table_id in bases or table_id in progress.quarantined:
                self.sink.rewind(table_id, bases.get(table_id) or progress.work.get(table_id))
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
                read_again(progress, self.sink, table_id)
            elif plan:
                plans[table_id] = plan
            if plan is None or plan:
                self._to_retry.discard(table_id)
        return plans

    # Publishing

    def _publish(self, batch: Batch) -> None:
        progress = self.progress
        self._settle(batch)
        self._carry_over(batch)
        record = publication(
            batch.entries[-1],
            w=progress.w,
            kept=batch.kept,
            work=progress.work,
            previous=progress.published,
            published_at=self._clock.time(),
            quarantined=progress.quarantined,
        )
        record = self.derived.extended(record, progress.published)
        self.sink.make_durable()
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

    def _carry_over(self, batch: Batch) -> None:
        """Give each generation that the publication will be the first to show what its table's mode keeps of the one
        that readers see now."""
        progress, entry, before = self.progress, batch.entries[-1], self.progress.published
        if before is None:
            return
        origins = {}
        for table_id, table in entry.tables.items():
            origin = origin_of(before, table_id) if table.show and table_id not in progress.quarantined else None
            if origin is not None and origin.generation != table.generation and table_id in progress.work:
                origins[table_id] = origin
        now = entry.source_time if entry.source_time is not None else self._clock.time()

        def carry_over(table_id: str) -> Work:
            work, origin, main = progress.work[table_id], origins[table_id], before.tables[table_id].main
            schema = self._store.schemas([work.schema])[work.schema]
            if schema.shape is None or schema.shape.mode == "mirror":
                return work
            assert main is not None
            earlier = Earlier(
                content=self._theirs.get(table_id, main.content),
                generation=origin.generation,
                schema=self._store.schemas([origin.schema])[origin.schema],
                position=before.position_of(table_id),
                until=_moment(now if origin.source_time is None else origin.source_time),
                noticed=_moment(now),
            )
            return self.sink.carry_over(schema, work, earlier, checkpoint=batch.last)

        def rewind(table_id: str) -> None:
            self.sink.rewind(table_id, progress.work.get(table_id))

        carried, failed = self._sparing.each(list(origins), carry_over, undo=rewind)
        progress.work |= dict(carried)
        for table_id, error in failed:
            # Its work becomes the published one, so that a retry has steps to apply even if no change comes.
            shown = before.tables[table_id]
            if shown.work is None:
                progress.work.pop(table_id, None)
            else:
                progress.work[table_id] = shown.work
            rewind(table_id)
            applied = before.n if shown.held is None or shown.held.applied is None else shown.held.applied
            self._quarantine(table_id, entry.tables[table_id].generation, error, applied)

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
        """Let readers see a publication, and tell of it, from its record alone."""
        began = self._clock.monotonic()
        self._refresh()
        n, before = record.n, self._shown

        def chain_now(back: int) -> Chain:
            return follow(self._store.last_slot(), self._store.entry, [back])

        def show(table_id: str) -> bool:
            own = record.tables[table_id].shown
            moved = self.sink.show(
                record,
                table_id,
                lambda current: may_show(current, w=self.progress.w, n=n, own=own, chain=chain_now),
            )
            return moved or not own

        moving = [table_id for table_id in record.tables if _moves(record, before, table_id)]
        shown, failed = self._sparing.each(moving, show)
        for table_id, _ in shown:
            if record.tables[table_id].shown:
                self._theirs.pop(table_id, None)
        if record.kept:
            # A restore to this cut shows what readers see now, and continues from `work`.
            waiting = [table_id for table_id, table in record.tables.items() if not table.shown]
            _, unkept = self._sparing.each(waiting, lambda table_id: self.sink.keep(record, table_id))
            failed += unkept
        for table_id, error in failed:
            self._not_shown(record, table_id, error)
        self._reached("shown")
        if not all(moved for _, moved in shown):
            w = self.progress.w
            raise Unavailable(f"another Spark writer moved main meanwhile (this one is {w})", "starting again")
        self.sink.record(record, before, self._left_behind)
        self._reached("recorded")
        self._shown = self.progress.published
        took = self._clock.monotonic() - began
        about, name = {"checkpoint": n}, self._store.name
        logger.info("%s: published %d: main of %d tables moved in %.2f s", name, n, len(shown), took, extra=about)

    def _not_shown(self, record: Publication, table_id: str, error: Exception) -> None:
        """Quarantine a table that could not be shown at its own cut; warn of one that shows an older one."""
        table = record.tables[table_id]
        if table.derived is not None:
            self.derived.not_shown(record, table_id, error)
            return
        if table.shown and table_id not in self.progress.quarantined:
            self._quarantine(table_id, table.generation, error)
            return
        cause = first_line(error)  # the content that an older publication left may be gone by now
        logger.warning(
            "pipeline %s: main of %s was not moved: %s",
            self._store.name,
            table_id,
            cause,
            extra={"table": table_id, "checkpoint": record.n, "cause": cause},
        )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _moves(record: Publication, before: Publication | None, table_id: str) -> bool:
    """Whether what readers see of a table, or the mark of a kept cut on it, changes since `before`."""
    main = record.tables[table_id].main
    if main is None:
        return False
    if before is None or record.kept or table_id not in before.tables:
        return True
    old = before.tables[table_id].main
    return old is None or old.content != main.content
