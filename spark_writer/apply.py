"""Applies completed checkpoints to the lake, in this order of durability:

1. claim a number w: everything is made on branches `staging_w`, which nobody else writes and nobody reads;
2. for each table, go on from `work` of the newest publication on the chain (common/store/chain.py);
3. apply the chain's later entries, several at once when behind: adopt chunk files, then delete and add what changed;
   what they leave in the lake and in its catalogue is synced (spark_writer/iceberg/durable.py);
4. publication N, put if absent: **the commit point**. Who is refused it starts again at 1;
5. from the publication's record alone, and again at each start: `main` of each live table, with the tag `checkpoint_N`
   of a kept cut in the same commit, then the rows of `_cutline.publications`.

So a crash anywhere leaves nothing but a branch that nobody reads; a zombie (an older w that goes on) is refused its
publication or repeats one that is right, and can't move `main` back. Any unclear answer of the catalogue is a crash.

**One table harms no other.** An error that is one table's own (`may_be_own` and `Incarnation._sparing` are the rule)
quarantines that table alone: the publication goes on without it, says its cause and up to which checkpoint it is
`applied`, and `main` stays. It is tried again by the next start, by a retry that a person asks for, and when its next
generation comes. Then the entries after `applied` are applied to it by themselves, up to the batch that goes on, so
nothing is lost and nothing comes twice. Nothing is kept for it longer than for others: once the store has swept one of
the files that it needs, or where the lake table itself is lost, it must be read again from the source, for which the
enumerator is asked (`read_again`). Chunks come back as copies, never adopted, so that the sweep may take a chunk that
was not adopted at the time without asking whether anybody has adopted it since.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.errors import CutlineError, ProtocolError, Unavailable
from cutline.common.schema import TableSchema
from cutline.common.store.chain import Batch, Chain, follow, may_show, next_batch, only, publication
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry, Publication, Quarantine, StagedFile, Work
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.iceberg.columns import Layout
from cutline.spark_writer.iceberg.files import FileLost
from cutline.spark_writer.iceberg.jvm import Refused
from cutline.spark_writer.iceberg.lake import Lake
from cutline.spark_writer.iceberg.maintenance import TIER, compact, drop_branches, expire
from cutline.spark_writer.iceberg.publications import Publications
from cutline.spark_writer.iceberg.table import Change, LakeTable, TableFault, snapshot_lost, table_dropped
from cutline.spark_writer.session import first_line
from cutline.spark_writer.staged import Staged, StagedLost, adopt, portions, reduce, write_live

logger = logging.getLogger("cutline.spark_writer")
BATCH_ENTRIES = 100
EXPIRE_SECONDS = 600.0
COMPACTION_REST = 4.0
"""Seconds of rest after each second of compaction."""
Clock = Callable[[], float]
Schemas = Callable[[Collection[str]], Mapping[str, TableSchema]]
_STANDS_STILL = ("waiting", "quarantined", "dropped")
_MACHINE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "ENOMEM", "EMFILE", "ENFILE", "EROFS")}
_MACHINE_IN_JAVA = re.compile(
    r"No space left on device|Disk quota exceeded|disk is full|Too many open files|java\.lang\.OutOfMemoryError"
    r"|SparkContext (was|has been) (shut down|stopped)|stopped SparkContext"
)


@dataclass(slots=True, kw_only=True)
class TableWork:
    """What a batch asks of one table: to hold generation `generation` with `schema` and these files' rows."""

    table_id: str
    generation: int
    schema: TableSchema
    chunks: list[Staged] = field(default_factory=list)
    changes: list[Staged] = field(default_factory=list)
    truncated_at: int | None = None


def table_work(batch: Batch, done: Mapping[str, Work], schemas: Schemas) -> list[TableWork]:
    """What a batch asks of the tables that `done` has otherwise; those that have nothing to hold yet are left out."""
    staged: dict[str, list[StagedFile]] = {}
    for entry in batch.entries:
        for file in entry.staged:
            if file.rows:
                staged.setdefault(file.table, []).append(file)
    wanted = {}
    for table_id, said in batch.entries[-1].tables.items():
        files = [file for file in staged.get(table_id, ()) if file.generation == said.generation]
        # A table that stands still may be of a kind that the lake can't hold: that is why it stands still.
        if said.schema is None or (said.phase in _STANDS_STILL and table_id not in staged):
            continue
        known = done.get(table_id)
        if known is None or known.generation != said.generation or known.schema != said.schema or files:
            wanted[table_id] = (said.generation, said.schema, files)
    there = schemas({name for _, schema, files in wanted.values() for name in (schema, *(f.schema for f in files))})
    found = []
    for table_id, (generation, schema, files) in wanted.items():
        work = TableWork(table_id=table_id, generation=generation, schema=there[schema])
        for file in files:
            if file.truncated_at is not None:
                work.truncated_at = max(file.truncated_at, work.truncated_at or 0)
            one = Staged(record=file, schema=there[file.schema])
            (work.chunks if file.kind == "chunk" else work.changes).append(one)
        found.append(work)
    return found


def may_be_own(error: Exception) -> bool:
    """Whether an error that came while one table was worked on may be that table's own: what Iceberg, Spark or our
    look at the lake table and its files says, and what its rows cause.

    It is not where something under all tables fails: the store (a staged file that is lost, too), the disk, the memory,
    Spark itself; nor where our own parts disagree, or another Spark writer has taken over. That the catalogue and the
    warehouse answer is tried (`Incarnation._sparing`).
    """
    if isinstance(error, OSError):
        return error.errno not in _MACHINE
    java = error.__cause__ if isinstance(error, Refused) else error
    if isinstance(java, Py4JError):
        return isinstance(java, Py4JJavaError) and _MACHINE_IN_JAVA.search(str(java)) is None
    if isinstance(error, Refused | TableFault):
        return _MACHINE_IN_JAVA.search(str(java)) is None
    return isinstance(error, FileLost) or not isinstance(error, CutlineError | MemoryError)


class Incarnation:
    """One start of the Spark writer for one pipeline: number w, its branches, and how far they are."""

    def __init__(
        self,
        store: PipelineStore,
        lake: Lake,
        *,
        reached: Callable[[str], None] = lambda step: None,
        retention: RetentionConfig | None = None,
        clock: Clock = time.time,
        threads: int | None = None,
    ) -> None:
        """Claim w and take up the newest publication on the chain. `reached` is told each step of the order above."""
        self._store = store
        self._lake = lake
        self._reached = reached
        self.retention = retention or RetentionConfig()
        self._clock = clock
        self._tables: dict[str, LakeTable] = {}
        self._publications = Publications(lake)
        self._pool = ThreadPoolExecutor(
            max_workers=threads or max(2, min(8, os.cpu_count() or 2)), thread_name_prefix="cutline-table"
        )
        self._files = ThreadPoolExecutor(max_workers=4, thread_name_prefix="cutline-file")
        self._entries: dict[int, Entry] = {}
        self.w = store.claim()
        self.branch = f"staging_{self.w}"
        self._kept_pending = False
        self._last_slot = store.last_slot()
        published = store.publication_numbers()
        self._chain = follow(self._last_slot, self._entry, published)
        newest = self._chain.newest(published)
        self.published = store.publication(newest) if newest is not None else None
        self.applied = newest or 0
        known = self.published.tables if self.published else {}
        self.work: dict[str, Work] = {table: said.work for table, said in known.items() if said.work is not None}
        self.quarantined = {table: said.held for table, said in known.items() if said.held is not None}
        self.view: Future[None] | None = None
        self.read_again: dict[str, int] = {}
        self._retried = set(self.quarantined)
        self._begun: set[str] = set()
        self._layouts: dict[str, Layout] = {}
        self._to_compact: dict[str, None] = {}
        self._to_expire: set[str] = set()
        self._expired_at = self._compact_at = clock()
        self._shown: Publication | None = None
        reached("claimed")
        if self.published is not None:
            self._show(self.published)

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self._pool, self._files):
            pool.shutdown(wait=True, cancel_futures=True)

    def abandon(self) -> None:
        """Drop the branches that this start has made and no publication names; call it when the start ends by an error.

        Where that can't be done they stay, until the next start goes on in their table.
        """
        try:
            numbers = self._store.publication_numbers()
            newest = follow(self._store.last_slot(), self._store.entry, numbers).newest(numbers)
            record = self._store.publication(newest) if newest is not None else None
        except CutlineError as error:
            logger.warning("pipeline %s: branches %s are left: %s", self._store.name, self.branch, error)
            return
        named = {
            table
            for table, said in (record.tables if record is not None else {}).items()
            if said.work is not None and said.work.branch == self.branch
        }

        def drop(table_id: str) -> None:
            try:
                table = self._lake.load(table_id)
                if table is not None:
                    table.rewind(self.branch, None)
            except Exception as error:
                logger.warning("%s of %s is left: %s", self.branch, table_id, first_line(error))

        self._each(self._begun - named, drop)

    def retry(self) -> None:
        """Try the quarantined tables again with the next checkpoint: a person has asked for it."""
        self._retried |= set(self.quarantined)

    def step(self) -> bool:
        """Apply and publish what there is to do next; False if there was nothing. Raises Unavailable to start again."""
        self._look()
        waiting = []
        for slot in self._chain.after(self.applied)[:BATCH_ENTRIES]:
            entry = self._entry(slot)
            if not isinstance(entry, CheckpointEntry):
                raise ProtocolError(f"checkpoint {slot} is missing in the journal; restore its entry from a backup")
            waiting.append(entry)
        batch = next_batch(
            waiting,
            kept_pending=self._kept_pending,
            generations={table: work.generation for table, work in self.work.items()},
        )
        if batch is None:
            return False
        self._apply(batch)
        self.applied, self._kept_pending = batch.last, batch.kept
        for slot in [slot for slot in self._entries if slot < self.applied]:
            del self._entries[slot]
        if batch.publish:
            self._publish(batch)
        return True

    def tend(self) -> None:
        """Do what can wait; call it between steps. Raises Unavailable to start again."""
        record = self.published
        if record is not None and self.view is None:
            self.view = self._pool.submit(self._make_view)
        now = self._clock()
        if record is not None and now - self._expired_at >= EXPIRE_SECONDS:
            self._expired_at = now
            since = now - self.retention.grace_seconds
            oldest = self._restorable(since)
            if oldest is not None:
                kept = self._kept(oldest.n, now)
                self._expire(record, oldest, int(since * 1000))
                self._pool.submit(self._sweep, oldest.n, kept)
        if now >= self._compact_at:
            self._compact(record, waiting=self._store.last_slot() != self._last_slot)
            self._compact_at = now + COMPACTION_REST * (self._clock() - now)

    def _compact(self, record: Publication | None, *, waiting: bool) -> None:
        """Do one round of compaction, of the first table where one is worth it; only where files came are looked at.

        With entries waiting, only where files have become very many; still more in a table whose snapshot goes on:
        that comes first, and nobody reads it yet.
        """
        for table_id in list(self._to_compact):
            work = self.work.get(table_id)
            if work is None or work.branch != self.branch or table_id in self.quarantined:
                del self._to_compact[table_id]
                continue
            live = record is not None and table_id in record.tables and record.tables[table_id].shown
            try:
                head = compact(
                    self._table(table_id),
                    branch=self.branch,
                    head=work.snapshot_id,
                    layout=self._layouts[table_id],
                    summary={"cutline.checkpoint": str(self.applied), "cutline.w": str(self.w)},
                    least=TIER ** (1 + waiting if live else 3),
                )
            except Exception as error:
                del self._to_compact[table_id]
                self._left_as_it_is(table_id, error)
                continue
            if head != work.snapshot_id:
                self.work[table_id] = replace(work, snapshot_id=head)
                self._to_expire.add(table_id)
                return
            if live and not waiting:
                del self._to_compact[table_id]

    def _left_as_it_is(self, table_id: str, error: Exception) -> None:
        """Say that a table's upkeep could not be done, which harms nobody; raise what is not that table's."""
        if not may_be_own(error):
            raise error
        logger.warning("pipeline %s: no upkeep of %s: %s", self._store.name, table_id, first_line(error))

    def _make_view(self) -> None:
        self._lake.activate()
        self._publications.make_view()

    def _restorable(self, before: float) -> Publication | None:
        """Return the newest publication of the chain made before that time: what it and later ones name must stay."""
        for n in reversed(self._store.publication_numbers()):
            record = self._store.publication(n) if n in self._chain else None
            if record is not None and record.published_at <= before:
                return record
        return None

    def _kept(self, n: int, now: float) -> set[int]:
        """Return the savepoints before publication `n` that are kept; the tags of all others are dropped."""
        numbers = self._store.publication_numbers()
        older = [record for at in numbers if at < n and (record := self._store.publication(at)) and record.kept]
        ours = sorted((record for record in older if record.n in self._chain), key=lambda record: -record.n)
        newer = sum(record.kept for at in numbers if at >= n and (record := self._store.publication(at)))
        days = self.retention.savepoint_days
        kept = {
            record.n
            for record in ours[: max(0, self.retention.savepoints - newer)]
            if days is None or record.published_at >= now - days * 86400
        }
        for record in older:
            if record.n not in kept:
                self._untag(record)
        return kept

    def _untag(self, record: Publication) -> None:
        """Let go of the snapshots that a savepoint holds."""

        def dropped(table_id: str) -> None:
            said = record.tables[table_id]
            try:
                table = self._lake.load(table_id)
                if table is not None and said.work is not None:
                    table.untag(
                        {f"checkpoint_{record.n}": said.work.snapshot_id, f"work_{record.n}": said.work.snapshot_id}
                    )
                    self._to_expire.add(table_id)
            except Exception as error:
                self._left_as_it_is(table_id, error)

        self._each([table_id for table_id, said in record.tables.items() if said.work is not None], dropped)

    def _sweep(self, n: int, kept: Collection[int]) -> None:
        """Remove what checkpoints up to publication `n` needed in the store, but for the savepoints `kept`."""
        try:
            self._store.retire(n, kept, left_out=self._left_out)
        except CutlineError as error:
            logger.warning("pipeline %s: nothing was swept: %s", self._store.name, error)

    def _left_out(self, slot: int) -> set[str]:
        """Return the tables that were quarantined when checkpoint `slot` was applied, so without what it staged."""
        n = next((n for n in self._store.publication_numbers(slot - 1) if n in self._chain), None)
        record = self._store.publication(n) if n is not None else None
        held = {table: said.held for table, said in (record.tables if record is not None else {}).items()}
        return {table for table, one in held.items() if one is not None and (one.applied is None or one.applied < slot)}

    def _expire(self, record: Publication, oldest: Publication, before_ms: int) -> None:
        """Drop what only older Spark writers, and publications before `oldest`, needed; `record` is the newest one."""
        spare: set[str] = set()
        for entry in self._store.journal_tail(after=record.n):
            if isinstance(entry, CheckpointEntry):
                spare.update(self._store.location(file.path) for file in entry.staged)

        def work_of(one: Publication, table_id: str) -> Work | None:
            said = one.tables.get(table_id)
            return None if said is None else said.work

        ours = [table for table in self._to_expire if (work := work_of(record, table)) and work.branch == self.branch]

        def expired(table_id: str) -> None:
            # What the oldest publication goes on from stays, and so does what the newest does: heads may be newer.
            works = (work_of(one, table_id) for one in (oldest, record))
            named = {work.snapshot_id for work in works if work}
            try:
                table = self._table(table_id)
                made_ms = [ms for snapshot in named if (ms := table.made_ms(snapshot)) is not None]
                drop_branches(table, ours=self.branch)
                expire(table, before_ms=min(before_ms, *made_ms), spare=spare)
            except Exception as error:
                self._left_as_it_is(table_id, error)
            if table_id in self.work and named == {self.work[table_id].snapshot_id}:  # nothing older is left to expire
                self._to_expire.discard(table_id)

        self._each(ours, expired)
        self._publications.tidy(record.n, before_ms)

    # Reading the journal

    def _entry(self, slot: int) -> Entry | None:
        if slot not in self._entries:
            found = self._store.entry(slot)
            if found is None:
                return None
            self._entries[slot] = found
        return self._entries[slot]

    def _look(self) -> None:
        """Take up new entries; a new epoch may have left our branch behind."""
        last = self._store.last_slot()
        if last == self._last_slot:
            return
        new = [
            self._store.entry(slot) for slot in range(self._last_slot + 1, last + 1)
        ]  # may be more than memory holds
        self._last_slot = last
        if self._chain.segments and all(isinstance(entry, CheckpointEntry) for entry in new):
            (epoch, _), *older = self._chain.segments
            self._chain = Chain(segments=((epoch, last), *older))
            return
        self._chain = follow(last, self._entry, [self.published.n] if self.published is not None else [])
        if self.applied and self.applied not in self._chain:
            raise Unavailable(f"checkpoint {self.applied} was applied but a new epoch left it out; starting again")
        if self.applied < self._chain.behind:
            raise Unavailable(f"what follows checkpoint {self.applied} was removed behind a newer one; starting again")

    # Applying

    def _apply(self, batch: Batch) -> None:
        plans = {one.table_id: [one] for one in table_work(batch, self.work, self._store.schemas)}
        tables, back = batch.entries[-1].tables, {}
        for table_id, held in self.quarantined.items():
            plans.pop(table_id, None)
            said = tables.get(table_id)
            if said is not None and (said.generation != held.generation or table_id in self._retried):
                back[table_id] = held
        for table_id, plan in self._histories(back, batch).items():
            if plan is None:
                self._ask_for(table_id)
            elif plan:
                plans[table_id] = plan
            if plan is None or plan:
                self._retried.discard(table_id)
        summary = {"cutline.checkpoint": str(batch.last), "cutline.w": str(self.w)}
        began = time.monotonic()
        self._reached("applying")

        def applied(plan: Sequence[TableWork]) -> Work | None:
            table_id = plan[0].table_id
            held, done = self.quarantined.get(table_id), self.work.get(table_id)
            try:
                for one in plan:
                    done = self._apply_table(one, done, summary, copy=held is not None)
            except StagedLost:
                if held is None or held.generation != plan[0].generation:
                    raise
                return None
            return done

        def rewound(plan: Sequence[TableWork]) -> None:
            """Take our branch back to where the table was before, as far as that can be done."""
            table_id = plan[0].table_id
            self._tables.pop(table_id, None)
            done, table = self.work.get(table_id), self._lake.load(table_id)
            if table is not None and table_id in self._begun:
                table.rewind(self.branch, done.snapshot_id if done is not None and done.branch == self.branch else None)

        good, bad = self._sparing(plans.values(), applied, lambda plan: plan[0].table_id, mend=rewound)
        for plan, made in good:
            table_id = plan[0].table_id
            if made is None:
                rewound(plan)
                self._ask_for(table_id)
                continue
            self.work[table_id] = made
            self.read_again.pop(table_id, None)
            self._to_compact[table_id] = None
            self._to_expire.add(table_id)
            if self.quarantined.pop(table_id, None) is not None:
                logger.warning("pipeline %s: %s is applied again", self._store.name, table_id)
        for plan, error in bad:
            known = self.quarantined.get(plan[0].table_id)
            same = known is not None and known.generation == plan[0].generation
            before = known.applied if known is not None and same else self.applied
            self._quarantine(plan[0].table_id, plan[0].generation, error, before)
            if same and isinstance(error, TableFault) and error.lost:
                self._ask_for(plan[0].table_id)
        rows = sum(staged.record.rows for plan, _ in good for one in plan for staged in (*one.chunks, *one.changes))
        logger.info(
            "%s: applied %d to %d: %d rows of %d tables in %.2f s",
            self._store.name,
            batch.entries[0].slot,
            batch.last,
            rows,
            len(good),
            time.monotonic() - began,
        )
        self._reached("applied")

    def _histories(self, back: Mapping[str, Quarantine], batch: Batch) -> dict[str, list[TableWork] | None]:
        """Return what brings each of these quarantined tables to the end of a batch; None if the journal or the lake
        has lost what it needs, an empty list if there is nothing to hold yet.

        That is what its newest generation staged after `applied`, in steps that may be applied together.
        """
        tables = batch.entries[-1].tables
        found: dict[str, list[TableWork] | None] = {}
        after: dict[str, int] = {}
        for table_id, held in back.items():
            if held.generation != tables[table_id].generation:
                after[table_id] = self.applied  # a generation is tried with the first of its rows
            elif held.applied is not None:
                after[table_id] = held.applied
            else:
                found[table_id] = None
        if not after:
            return found
        rest: dict[str, list[CheckpointEntry]] = {table_id: [] for table_id in after}
        try:
            first = min(after.values())
            for slot in follow(self._last_slot, self._store.entry, [first]).after(first):
                if slot > batch.last:
                    break
                entry = self._store.entry(slot)
                if not isinstance(entry, CheckpointEntry):
                    raise ProtocolError(f"journal entry {slot} is missing")
                for table_id in rest:
                    said = entry.tables.get(table_id) if slot > after[table_id] else None
                    if said is not None and said.generation == tables[table_id].generation:
                        rest[table_id].append(only(entry, table_id))
            for table_id, entries in rest.items():
                found[table_id] = self._plan(entries)
        except ProtocolError:  # the journal does not go back so far any more
            return found | dict.fromkeys(rest)
        return found

    def _plan(self, entries: list[CheckpointEntry]) -> list[TableWork]:
        """Sort what these entries ask of one table into steps that may each be applied together."""
        plan: list[TableWork] = []
        while entries:
            following = next_batch(entries)
            assert following is not None
            plan += table_work(following, {}, self._store.schemas)
            entries = entries[len(following.entries) :]
        return [one for one in plan[:-1] if one.chunks or one.changes or one.truncated_at is not None] + plan[-1:]

    def _ask_for(self, table_id: str) -> None:
        """Have a quarantined table read again from the source, as its next generation, if the lake has room for it."""
        held = self.quarantined[table_id]
        try:
            self._lake.load(table_id)
        except TableFault as error:
            self.quarantined[table_id] = replace(held, cause=str(error))
            return
        cause = f"what the lake lacks of {table_id} is no longer staged; it is being read again from the source"
        self.quarantined[table_id] = replace(held, cause=cause, applied=None)
        self.work.pop(table_id, None)
        self.read_again[table_id] = held.generation

    def _quarantine(self, table_id: str, generation: int, error: Exception, applied: int | None) -> None:
        """Leave a table out of what follows, for the cause that `error` tells."""
        if isinstance(error, TableFault) and error.lost:
            self.work.pop(table_id, None)
            applied = None
        if isinstance(error, CutlineError | OSError):
            cause = str(error).splitlines()[0]
        else:
            cause = f"{type(error).__name__}: {first_line(error)}"
        if not isinstance(error, TableFault):
            cause = f"{cause}; mend the lake table (or drop it, then it is read again) and retry it"
        known = self.quarantined.get(table_id)
        self.quarantined[table_id] = Quarantine(cause=cause, generation=generation, applied=applied)
        if known is None or known.cause != cause:
            logger.error(
                "pipeline %s: %s is quarantined: %s",
                self._store.name,
                table_id,
                cause,
                exc_info=None if isinstance(error, CutlineError) else error,
            )

    def _apply_table(self, one: TableWork, done: Work | None, summary: Mapping[str, str], *, copy: bool) -> Work:
        """Bring one table's branch from `done` to the end of a batch; chunks and emptiness first, then what changed."""
        table = self._table(one.table_id, make=done is None)
        table.check_writable()
        layout = table.layout(one.schema, one.generation)
        self._layouts[one.table_id] = layout
        head = done.snapshot_id if done is not None else None
        if head is not None and not table.has_snapshot(head):
            raise TableFault(snapshot_lost(one.table_id), lost=True)
        fresh = done is None or done.generation != one.generation
        truncated = one.truncated_at is not None
        chunks = []
        if not truncated:
            chunks = list(
                self._files.map(lambda staged: adopt(self._store, staged, table, layout, copy=copy), one.chunks)
            )
        changes = [
            staged for staged in one.changes if not truncated or (staged.record.seq_max or 0) > (one.truncated_at or 0)
        ]
        keep = done.branch if done is not None else None

        def commit(change: Change, base: int | None) -> int:
            self._begun.add(one.table_id)
            return table.commit(branch=self.branch, base=base, layout=layout, summary=summary, change=change, keep=keep)

        if head is None or fresh or truncated:
            head = commit(table.replace_all(chunks), head)
        elif chunks or not changes or (done is not None and done.schema != one.schema.hash):
            head = commit(table.append(head, chunks), head)
        for portion in portions(self._store, changes):
            reduced = reduce(self._store, portion, layout, one.truncated_at)
            deleted = table.positions(head, layout, reduced.keys) if reduced.keys is not None else {}
            added = write_live(self._store, portion, table, layout, reduced)
            if added or deleted:
                head = commit(table.upsert(head, added, deleted), head)
        return Work(snapshot_id=head, branch=self.branch, generation=one.generation, schema=one.schema.hash)

    def _table(self, table_id: str, *, make: bool = False) -> LakeTable:
        """Return a lake table that is there; only with `make` one that is not there is made."""
        table = self._tables.get(table_id)
        if table is None:
            table = self._lake.ensure(table_id) if make else self._lake.load(table_id)
            if table is None:
                raise TableFault(table_dropped(table_id), lost=True)
            self._tables[table_id] = table
        return table

    def _sparing(
        self,
        items: Collection[Any],
        do: Callable[[Any], Any],
        table_of: Callable[[Any], str],
        *,
        mend: Callable[[Any], None] = lambda item: None,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Exception]]]:
        """Do something for each table, side by side; return (item, result) of each, and (item, error) of tables whose
        own the error is.

        A table's own is an error of which `may_be_own` says so, that comes again at a second try (after `mend`, on what
        the catalogue has now), and that comes although the lake takes a commit on Cutline's own table in between.
        Any other is raised when all have ended.
        """

        def tried(item: Any) -> Any:
            try:
                return do(item)
            except Exception as error:
                if not may_be_own(error):
                    raise
                return error

        def again(item: Any) -> Any:
            try:
                mend(item)
                return do(item)
            except Exception as error:
                if not may_be_own(error):
                    raise
                return error

        done = self._each(items, tried)
        bad = [item for item, made in done if isinstance(made, Exception)]
        if not bad:
            return done, []
        self._publications.check(made=len(self._store.publication_numbers()) > 1)
        for item in bad:
            self._tables.pop(table_of(item), None)
        done = [one for one in done if not isinstance(one[1], Exception)] + self._each(bad, again)
        failed = [(item, made) for item, made in done if isinstance(made, Exception)]
        for item, _ in failed:
            try:
                mend(item)
            except Exception as error:
                logger.warning("%s of %s is left as it is: %s", self.branch, table_of(item), first_line(error))
            self._tables.pop(table_of(item), None)
        return [one for one in done if not isinstance(one[1], Exception)], failed

    def _each(self, items: Iterable[Any], do: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        """Do something for each table, side by side; the first error is raised when all have ended."""

        def run(item: Any) -> Any:
            self._lake.activate()
            return do(item)

        items = list(items)
        if len(items) == 1:
            return [(items[0], run(items[0]))]
        return list(zip(items, self._pool.map(run, items), strict=True))

    # Publishing

    def _publish(self, batch: Batch) -> None:
        record = publication(
            batch.entries[-1],
            w=self.w,
            kept=batch.kept,
            work=self.work,
            previous=self.published,
            published_at=self._clock(),
            quarantined=self.quarantined,
        )
        self._lake.sync_catalogue()
        before = self.published.n if self.published is not None else 0
        between = [slot for slot in self._chain.after(before) if slot < record.n]
        if any(self._store.publication(slot) is not None for slot in between):
            # What this one does not show at its own cut would be left where it was before those.
            raise Unavailable(f"another Spark writer has published up to {record.n}; starting again after it")
        if not self._store.publish(record):
            raise Unavailable(f"publication {record.n} was made by another Spark writer; starting again after it")
        self._reached("published")
        self.published, self._kept_pending = record, False
        self._show(record)

    def _show(self, record: Publication) -> None:
        """Do what follows a publication, from its record alone."""
        began = time.monotonic()
        self._look()
        n = record.n
        before = self._shown

        def chain_now(back: int) -> Chain:
            return follow(self._store.last_slot(), self._store.entry, [back])

        def changed(table_id: str) -> bool:
            main = record.tables[table_id].main
            if main is None:
                return False
            if before is None or record.kept or table_id not in before.tables:
                return True
            old = before.tables[table_id].main
            return old is None or old.snapshot_id != main.snapshot_id

        def show(table_id: str) -> bool:
            said = record.tables[table_id]
            assert said.main is not None
            moved = self._table(table_id).show(
                snapshot_id=said.main.snapshot_id,
                w=self.w,
                n=n,
                tag=record.kept and said.shown,
                work=None if said.work is None else said.work.branch,
                allowed=lambda there: may_show(there, w=self.w, n=n, own=said.shown, chain=chain_now),
            )
            return moved or not said.shown

        done, bad = self._sparing([table for table in record.tables if changed(table)], show, str)
        if record.kept:
            # A restore to this cut goes on from `work`, which no other ref may hold where a table is not live yet.
            waiting = [
                (table_id, said.work.snapshot_id)
                for table_id, said in record.tables.items()
                if said.work is not None and not said.shown
            ]
            _, untagged = self._sparing(
                waiting, lambda one: self._table(one[0]).tag(f"work_{n}", one[1]), lambda one: str(one[0])
            )
            bad += [(table_id, error) for (table_id, _), error in untagged]
        for table_id, error in bad:
            said = record.tables[table_id]
            if said.shown and table_id not in self.quarantined:
                self._quarantine(table_id, said.generation, error, n)
            else:  # what an older publication left may be gone by now
                logger.warning("pipeline %s: %s is not shown: %s", self._store.name, table_id, first_line(error))
        self._reached("shown")
        self._publications.write(record, before)
        self._reached("told")
        if not all(moved for _, moved in done):
            raise Unavailable(f"main was moved by another Spark writer than {self.w} meanwhile; starting again")
        self._shown = record
        took = time.monotonic() - began
        logger.info("%s: published %d, %d tables moved in %.2f s", self._store.name, n, len(done), took)


class PipelineApplier:
    """Serves one pipeline for ever: starts an incarnation, steps it, starts the next after an error."""

    POLL_SECONDS = 0.25
    AGAIN_SECONDS = (0.5, 60.0)
    """The pause after a first failure and the longest; it doubles with each start that publishes nothing."""

    def __init__(
        self,
        store: PipelineStore,
        open_lake: Callable[[], tuple[Lake, RetentionConfig]],
        *,
        tell: Callable[[Mapping[str, Any]], None] = lambda status: None,
        asked: Callable[[], bool] = lambda: False,
        clock: Clock = time.time,
    ) -> None:
        """`tell` gets a status (plain JSON) after each publication and each error; `asked` says whether a person has
        asked, since it was last called, that quarantined tables are tried again.
        """
        self._store = store
        self._open_lake = open_lake
        self._tell = tell
        self._asked = asked
        self._clock = clock

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop`; errors go to the status and the log, and the next incarnation begins after a while."""
        failures = 0
        while not stop.is_set():
            incarnation: Incarnation | None = None
            try:
                if not self._ready():
                    stop.wait(self.POLL_SECONDS)
                    continue
                lake, retention = self._open_lake()
                incarnation = Incarnation(self._store, lake, retention=retention, clock=self._clock)
                self._told(incarnation)
                began_at = incarnation.published
                while not stop.is_set():
                    if self._asked():
                        incarnation.retry()
                    busy = incarnation.step()
                    if busy:
                        self._told(incarnation)
                    if incarnation.published is not began_at:
                        failures = 0
                    incarnation.tend()
                    if not busy:
                        stop.wait(self.POLL_SECONDS)
            except Exception as error:
                shortest, longest = self.AGAIN_SECONDS
                pause = min(longest, shortest * 2.0 ** min(failures, 30))
                self._failed(error, pause, incarnation)
                failures += 1
                if incarnation is not None:
                    incarnation.abandon()
                stop.wait(pause)
            finally:
                if incarnation is not None:
                    incarnation.close()

    def _ready(self) -> bool:
        """Whether there is a checkpoint; before that there is nothing to claim a number for."""
        slot = self._store.last_slot()
        entry = self._store.entry(slot) if slot else None
        return entry is not None and not (isinstance(entry, EpochEntry) and entry.base is None)

    def _told(self, incarnation: Incarnation) -> None:
        record = incarnation.published
        self._tell(
            {
                "w": incarnation.w,
                "applied": incarnation.applied,
                "published": record and record.n,
                "published_at": record and record.published_at,
                "source_time": record and record.source_time,
                "quarantined": _quarantined(incarnation),
                "read_again": dict(incarnation.read_again),
                "at": self._clock(),
            }
        )

    def _failed(self, error: Exception, pause: float, incarnation: Incarnation | None) -> None:
        if isinstance(error, Unavailable):
            logger.warning("pipeline %s: %s; starting again in %g s", self._store.name, error, pause)
        elif isinstance(error, CutlineError):
            logger.error("pipeline %s: %s; starting again in %g s", self._store.name, error, pause)
        else:
            logger.exception("pipeline %s: unexpected error; starting again in %g s", self._store.name, pause)
        status = {"error": str(error), "kind": type(error).__name__, "again_seconds": pause}
        self._tell({**status, "quarantined": _quarantined(incarnation) if incarnation else {}, "at": self._clock()})


def _quarantined(incarnation: Incarnation) -> dict[str, Any]:
    return {
        table: {"cause": held.cause, "generation": held.generation} for table, held in incarnation.quarantined.items()
    }
