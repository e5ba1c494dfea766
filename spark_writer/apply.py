"""Applies completed checkpoints to the lake, in this order of durability:

1. claim a number w: everything is made on branches `staging_w`, which nobody else writes and nobody reads;
2. for each table, go on from `work` of the newest publication on the chain (spark_writer/chain.py);
3. apply the chain's later entries, several at once when behind: adopt chunk files, then delete and add what changed;
   what they leave in the lake and in its catalogue is synced (spark_writer/tables.py);
4. publication N, put if absent: **the commit point**. Who is refused it starts again at 1;
5. from the publication's record alone, and again at each start: `main` of each live table, with the tag `checkpoint_N`
   of a kept cut in the same commit, then the rows of `_cutline.publications`.

So a crash anywhere leaves nothing but a branch that nobody reads; a zombie (an older w that goes on) is refused its
publication or repeats one that is right, and can't move `main` back. Any unclear answer of the catalogue is a crash.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from cutline.common.errors import CutlineError, ProtocolError, Unavailable
from cutline.common.schema import TableSchema
from cutline.common.store import PipelineStore
from cutline.spark_writer.chain import Batch, Chain, Entry, Work, follow, may_show, next_batch, publication, shown
from cutline.spark_writer.maintenance import TIER, compact, drop_branches, expire
from cutline.spark_writer.publications import Publications
from cutline.spark_writer.staged import Staged, adopt, portions, reduce, write_live
from cutline.spark_writer.tables import Change, Lake, LakeTable, Layout

logger = logging.getLogger("cutline.spark_writer")
BATCH_ENTRIES = 100
EXPIRE_SECONDS = 600.0
GRACE_SECONDS = 3600.0
COMPACTION_REST = 4.0
"""Seconds of rest after each second of compaction."""
Clock = Callable[[], float]


@dataclass(slots=True, kw_only=True)
class TableWork:
    """What a batch asks of one table: to hold generation `generation` with `schema` and these files' rows."""

    table_id: str
    generation: int
    schema: TableSchema
    chunks: list[Staged] = field(default_factory=list)
    changes: list[Staged] = field(default_factory=list)
    truncated_at: int | None = None


def table_work(batch: Batch) -> list[TableWork]:
    """Sort a batch's files by table; tables that have nothing to hold yet are left out."""
    found: dict[str, TableWork] = {}
    schemas: dict[str, TableSchema] = {}
    for entry in batch.entries:
        schemas |= {name: TableSchema.from_json(body) for name, body in entry["schemas"].items()}
    for table_id, said in batch.entries[-1]["tables"].items():
        rows = any(record["table"] == table_id for entry in batch.entries for record in entry["staged"])
        # A table that stands still may be of a kind that the lake can't hold: that is why it stands still.
        if said["schema"] is not None and (rows or said["phase"] not in ("waiting", "quarantined", "paused")):
            found[table_id] = TableWork(
                table_id=table_id, generation=said["generation"], schema=schemas[said["schema"]]
            )
    for entry in batch.entries:
        for record in entry["staged"]:
            work = found.get(record["table"])
            if work is None or record["generation"] != work.generation or not record["rows"]:
                continue
            staged = Staged(record=record, schema=schemas[record["schema"]])
            if record["truncated_at"] is not None:
                work.truncated_at = max(record["truncated_at"], work.truncated_at or 0)
            (work.chunks if record["kind"] == "chunk" else work.changes).append(staged)
    return list(found.values())


class Incarnation:
    """One start of the Spark writer for one pipeline: number w, its branches, and how far they are."""

    def __init__(
        self,
        store: PipelineStore,
        lake: Lake,
        *,
        reached: Callable[[str], None] = lambda step: None,
        clock: Clock = time.time,
        threads: int | None = None,
    ) -> None:
        """Claim w and take up the newest publication on the chain. `reached` is told each step of the order above."""
        self._store = store
        self._lake = lake
        self._reached = reached
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
        self.published: Mapping[str, Any] | None = store.publication(newest) if newest is not None else None
        self.applied = newest or 0
        self.work: dict[str, Work] = {
            table: Work.from_json(said["work"])
            for table, said in (self.published["tables"] if self.published else {}).items()
            if said["work"] is not None
        }
        self.view: Future[None] | None = None
        self._layouts: dict[str, Layout] = {}
        self._expired_at = self._compact_at = clock()
        self._shown: Mapping[str, Any] | None = None
        reached("claimed")
        if self.published is not None:
            self._show(self.published)

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self._pool, self._files):
            pool.shutdown(wait=True, cancel_futures=True)

    def step(self) -> bool:
        """Apply and publish what there is to do next; False if there was nothing. Raises Unavailable to start again."""
        self._look()
        waiting = [self._entry(slot) for slot in self._chain.after(self.applied)[:BATCH_ENTRIES]]
        batch = next_batch(
            [entry for entry in waiting if entry is not None],
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
        if record is None or int(record["n"]) != self.applied:
            return
        if self.view is None:
            self.view = self._pool.submit(self._make_view)
        now = self._clock()
        if now - self._expired_at >= EXPIRE_SECONDS:
            # Before compaction: the branch's heads are still what the publication names.
            self._expired_at = now
            oldest = self._restorable(now - GRACE_SECONDS)
            if oldest is not None:
                self._expire(record, oldest, int((now - GRACE_SECONDS) * 1000))
                self._pool.submit(self._sweep, int(oldest["n"]))
        if now >= self._compact_at:
            self._compact(record, waiting=self._store.last_slot() != self._last_slot)
            self._compact_at = now + COMPACTION_REST * (self._clock() - now)

    def _compact(self, record: Mapping[str, Any], *, waiting: bool) -> None:
        """Do one round of compaction, of the first table where one is worth it.

        With entries waiting, only where files have become very many; still more in a table whose snapshot goes on:
        that comes first, and nobody reads it yet.
        """
        for table_id, layout in self._layouts.items():
            work = self.work[table_id]
            if work.branch != self.branch:
                continue
            head = compact(
                self._table(table_id),
                branch=self.branch,
                head=work.snapshot_id,
                layout=layout,
                summary={"cutline.checkpoint": str(self.applied), "cutline.w": str(self.w)},
                least=TIER ** (1 + waiting if shown(record, table_id) else 3),
            )
            if head != work.snapshot_id:
                self.work[table_id] = replace(work, snapshot_id=head)
                return

    def _make_view(self) -> None:
        self._lake.activate()
        self._publications.make_view()

    def _restorable(self, before: float) -> Mapping[str, Any] | None:
        """Return the newest publication of the chain made before that time: what it and later ones name must stay."""
        for n in reversed(self._store.publication_numbers()):
            record = self._store.publication(n) if n in self._chain else None
            if record is not None and record["published_at"] <= before:
                return record
        return None

    def _sweep(self, n: int) -> None:
        """Remove what checkpoints up to publication `n` needed in the store."""
        try:
            self._store.sweep_applied(n)
        except CutlineError as error:
            logger.warning("pipeline %s: nothing was swept: %s", self._store.name, error)

    def _expire(self, record: Mapping[str, Any], oldest: Mapping[str, Any], before_ms: int) -> None:
        """Drop what only older Spark writers, and publications before `oldest`, needed; `record` is the newest one."""
        spare: set[str] = set()
        for slot in range(int(record["n"]) + 1, self._store.last_slot() + 1):
            entry = self._store.entry(slot)
            if entry is not None and entry["kind"] == "checkpoint":
                spare.update(self._store.location(staged["path"]) for staged in entry["staged"])
        ours = [
            table_id
            for table_id, said in record["tables"].items()
            # A head that is newer than the publication's `work` would let that expire.
            if said["work"] is not None
            and said["work"]["branch"] == self.branch
            and said["work"]["snapshot_id"] == self.work[table_id].snapshot_id
        ]

        def expired(table_id: str) -> None:
            table = self._table(table_id)
            named = oldest["tables"].get(table_id, {}).get("work")
            made_ms = table.made_ms(named["snapshot_id"]) if named is not None else None
            drop_branches(table, ours=self.branch)
            expire(table, before_ms=min(before_ms, made_ms or before_ms), spare=spare)

        self._each(ours, expired)
        self._publications.tidy(int(record["n"]), before_ms)

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
        if self._chain.segments and all(entry is not None and entry["kind"] == "checkpoint" for entry in new):
            (epoch, _), *older = self._chain.segments
            self._chain = Chain(segments=((epoch, last), *older))
            return
        self._chain = follow(last, self._entry, [int(self.published["n"])] if self.published is not None else [])
        if self.applied and self.applied not in self._chain:
            raise Unavailable(f"checkpoint {self.applied} was applied but a new epoch left it out; starting again")

    # Applying

    def _apply(self, batch: Batch) -> None:
        work = [one for one in table_work(batch) if self._needed(one)]
        summary = {"cutline.checkpoint": str(batch.last), "cutline.w": str(self.w)}
        began = time.monotonic()
        self._reached("applying")
        for one, made in self._each(work, lambda one: self._apply_table(one, summary)):
            self.work[one.table_id] = made
        rows = sum(staged.record["rows"] for one in work for staged in (*one.chunks, *one.changes))
        logger.info(
            "%s: applied %d to %d: %d rows of %d tables in %.2f s",
            self._store.name,
            batch.entries[0]["slot"],
            batch.last,
            rows,
            len(work),
            time.monotonic() - began,
        )
        self._reached("applied")

    def _needed(self, one: TableWork) -> bool:
        """Whether a table's branch must change at all."""
        done = self.work.get(one.table_id)
        return (
            done is None
            or done.generation != one.generation
            or bool(one.chunks or one.changes)
            or done.schema != one.schema.hash
        )

    def _apply_table(self, one: TableWork, summary: Mapping[str, str]) -> Work:
        """Bring one table's branch to the end of a batch; chunks and emptiness first, then what changed."""
        table = self._table(one.table_id)
        layout = table.layout(one.schema, one.generation)
        self._layouts[one.table_id] = layout
        done = self.work.get(one.table_id)
        head = done.snapshot_id if done is not None else None
        if head is not None and not table.has_snapshot(head):
            raise ProtocolError(f"snapshot {head} of {one.table_id} has expired, though its publication is the newest")
        fresh = done is None or done.generation != one.generation
        truncated = one.truncated_at is not None
        chunks = []
        if not truncated:
            chunks = list(self._files.map(lambda staged: adopt(self._store, staged, table, layout), one.chunks))
        changes = [
            staged for staged in one.changes if not truncated or staged.record["seq_max"] > (one.truncated_at or 0)
        ]

        def commit(change: Change, base: int | None) -> int:
            return table.commit(branch=self.branch, base=base, layout=layout, summary=summary, change=change)

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

    def _table(self, table_id: str) -> LakeTable:
        table = self._tables.get(table_id)
        if table is None:
            table = self._tables[table_id] = self._lake.ensure(table_id)
        return table

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
        )
        self._lake.settle()
        before = int(self.published["n"]) if self.published is not None else 0
        between = [slot for slot in self._chain.after(before) if slot < record["n"]]
        if any(self._store.publication(slot) is not None for slot in between):
            # What this one does not show at its own cut would be left where it was before those.
            raise Unavailable(f"another Spark writer has published up to {record['n']}; starting again after it")
        if not self._store.publish(record["n"], record):
            raise Unavailable(f"publication {record['n']} was made by another Spark writer; starting again after it")
        self._reached("published")
        self.published, self._kept_pending = record, False
        self._show(record)

    def _show(self, record: Mapping[str, Any]) -> None:
        """Do what follows a publication, from its record alone."""
        began = time.monotonic()
        self._look()
        n = int(record["n"])
        before = self._shown

        def chain_now(back: int) -> Chain:
            return follow(self._store.last_slot(), self._store.entry, [back])

        def changed(table_id: str) -> bool:
            main = record["tables"][table_id]["main"]
            if main is None:
                return False
            if before is None or record["kept"]:
                return True
            old = before["tables"].get(table_id, {}).get("main")
            return old is None or old["snapshot_id"] != main["snapshot_id"]

        def show(table_id: str) -> bool:
            own = shown(record, table_id)
            moved = self._table(table_id).show(
                snapshot_id=record["tables"][table_id]["main"]["snapshot_id"],
                w=self.w,
                n=n,
                tag=record["kept"] and own,
                allowed=lambda there: may_show(there, w=self.w, n=n, own=own, chain=chain_now),
            )
            return moved or not own

        done = self._each([table for table in record["tables"] if changed(table)], show)
        if record["kept"]:
            # A restore to this cut goes on from `work`, which no other ref may hold where a table is not live yet.
            waiting = [
                (table_id, said["work"]["snapshot_id"])
                for table_id, said in record["tables"].items()
                if said["work"] is not None and not shown(record, table_id)
            ]
            self._each(waiting, lambda one: self._table(one[0]).tag(f"work_{n}", one[1]))
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
    AGAIN_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)

    def __init__(
        self,
        store: PipelineStore,
        open_lake: Callable[[], Lake],
        *,
        tell: Callable[[Mapping[str, Any]], None] = lambda status: None,
        clock: Clock = time.time,
    ) -> None:
        """`tell` gets a status (plain JSON) after each publication and each error."""
        self._store = store
        self._open_lake = open_lake
        self._tell = tell
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
                incarnation = Incarnation(self._store, self._open_lake(), clock=self._clock)
                self._told(incarnation)
                while not stop.is_set():
                    busy = incarnation.step()
                    if busy:
                        failures = 0
                        self._told(incarnation)
                    incarnation.tend()
                    if not busy:
                        stop.wait(self.POLL_SECONDS)
            except Exception as error:
                self._failed(error)
                pause = self.AGAIN_SECONDS[min(failures, len(self.AGAIN_SECONDS) - 1)]
                stop.wait(pause if isinstance(error, Unavailable) else self.AGAIN_SECONDS[-1])
                failures += 1
            finally:
                if incarnation is not None:
                    incarnation.close()

    def _ready(self) -> bool:
        """Whether there is a checkpoint; before that there is nothing to claim a number for."""
        slot = self._store.last_slot()
        entry = self._store.entry(slot) if slot else None
        return entry is not None and (entry["kind"] == "checkpoint" or entry["base"] is not None)

    def _told(self, incarnation: Incarnation) -> None:
        record = incarnation.published
        self._tell(
            {
                "w": incarnation.w,
                "applied": incarnation.applied,
                "published": record and record["n"],
                "published_at": record and record["published_at"],
                "source_time": record and record["source_time"],
                "at": self._clock(),
            }
        )

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Unavailable):
            logger.warning("pipeline %s: %s", self._store.name, error)
        elif isinstance(error, CutlineError):
            logger.error("pipeline %s: %s", self._store.name, error)
        else:
            logger.exception("pipeline %s: what nobody expected", self._store.name)
        self._tell({"error": str(error), "kind": type(error).__name__, "at": self._clock()})
