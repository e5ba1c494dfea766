"""The simulated lake and its Spark writers: snapshots of tables, a branch a start, publications, `main`.

Each key of a table has a list of rows, so that rows appended twice are seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cutline.common.journal.batches import Batch, next_batch
from cutline.common.journal.publishing import may_show, publication
from cutline.common.schema import TableSchema
from cutline.common.store.chain import Chain, follow
from cutline.common.store.records import CheckpointEntry, Entry, Publication, StagedFile, Work
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg.works import branch_of, snapshot_of, tags_of, work_of
from tests.simulation.checks.chain import chain
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.versions import no_key_goes_back
from tests.simulation.source.transactions import Row

Rows = dict[Row, list[tuple[str, Row]]]  # key -> (schema hash, row), more than one if doubled


@dataclass(slots=True)
class MainBranch:
    """The snapshot that a table shows, and the property that names the start which moved it there."""

    snapshot: int
    by: tuple[int, int]  # w, N


@dataclass(slots=True)
class SimulatedLake:
    """The lake, which outlives the Spark writers."""

    snapshots: dict[int, Rows] = field(default_factory=dict)
    main: dict[str, MainBranch] = field(default_factory=dict)
    schemas: dict[str, TableSchema] = field(default_factory=dict)
    made: dict[int, tuple[str, float]] = field(default_factory=dict)  # of each snapshot its table, and when
    branches: dict[str, dict[str, int]] = field(default_factory=dict)  # by table and name
    tags: dict[str, dict[str, int]] = field(default_factory=dict)
    numbers: int = 0

    def put(self, rows: Rows, table: str, branch: str, now: float) -> int:
        """Commit a snapshot to a branch of a table."""
        self.numbers += 1
        self.snapshots[self.numbers], self.made[self.numbers] = rows, (table, now)
        self.branches.setdefault(table, {})[branch] = self.numbers
        return self.numbers


def applied(
    rows: Rows, staged: list[StagedFile], files: Callable[[str], list[Any]], count: Counter[str], *, keyless: bool
) -> Rows:
    """`rows` with the files of one table and generation: chunks appended, changes merged by `_seq`, or appended too."""
    rows = dict(rows)
    cut = max((f.truncated_at for f in staged if f.truncated_at is not None), default=None)
    if cut is not None:
        rows = {}
        count["t applied"] += 1
    for file in staged:
        if file.kind == "chunk" and cut is None:
            for key, row in files(file.path):
                rows[key] = [*rows.get(key, []), (file.schema, row)]
    last: dict[Row, tuple[int, str, str, Row]] = {}
    for file in staged:
        if file.kind == "changes":
            for seq, op, key, row in files(file.path):
                if op == "t" or (cut is not None and seq <= cut):
                    continue
                if keyless:
                    assert op == "+I"
                    rows[key] = [*rows.get(key, []), (file.schema, row)]
                    count["inserts appended"] += 1
                elif key not in last or last[key][0] < seq:
                    last[key] = (seq, op, file.schema, row)
    for key, (_, op, schema, row) in last.items():
        if op == "-D":
            rows.pop(key, None)
        else:
            rows[key] = [(schema, row)] * max(1, len(rows.get(key, [])))  # a MERGE changes every row that matches
    return rows


class SparkWriter:
    """One start of the Spark writer: works on its own branch, publishes, moves `main`. The real common/journal
    decides what to apply next and composes publications; the order of steps is that of spark_writer/apply.py."""

    def __init__(self, world: Any, w: int) -> None:
        self.world, self.w = world, w
        self.work: dict[str, Work] = {}
        self.done = 0  # newest checkpoint applied
        self.kept_pending = False
        self.begun = False
        self.publish_from = 0
        self.published: Publication | None = None
        self.store: PipelineStore = world.store.open()
        self.entries: dict[int, Entry | None] = {}  # read so far
        self.pending: Batch | None = None  # applied, to be published
        self.overtaken = False  # by publications before that one, at the last look
        self.to_show: Publication | None = None
        self.upkeep = world.upkeeping.begun(self)

    def start(self) -> None:
        """Branch from the newest publication on the chain, and repeat the steps that follow from it."""
        self.begun = True
        self.publish_from = self.store.removal.retired()[0]
        numbers = self.store.publication_numbers()
        newest = self.chain(numbers).newest(numbers)
        self.chain(numbers).after(newest or 0)  # nothing that a start needs may be removed
        if newest is not None:
            self.done, self.published = newest, self.store.publication(newest)
            assert self.published is not None
            for table, published in self.published.tables.items():
                if published.work is not None:
                    self.work[table] = published.work
                    if snapshot_of(published.work.content) not in self.world.lake.snapshots:
                        raise Failure(f"publication {newest} goes on from a snapshot of {table} that is gone")
            self.to_show = self.published

    def chain(self, published: Any = ()) -> Chain:
        return follow(self.store.last_slot(), self.entry, published)

    def entry(self, slot: int) -> Entry | None:
        if self.entries.get(slot) is None:
            self.entries[slot] = self.store.entry(slot)
        return self.entries[slot]

    def back_to(self, checkpoint: int) -> Chain:
        return self.chain([checkpoint])

    def step(self) -> str:
        """One step: start, apply, publish or move. Returns "again" if this start must end and another begin."""
        if not self.begun:
            self.start()
            return "started"
        if self.to_show is not None:
            record, self.to_show = self.to_show, None
            return "moved" if self.move(record) else "again"
        if self.pending is not None:
            return self.publish(self.pending)
        return self.apply()

    def apply(self) -> str:
        world = self.world
        now = self.chain([self.published.n] if self.published else [])
        if self.done and self.done not in now:
            world.count["Spark writer: its work left the chain"] += 1
            return "again"
        if self.done < now.behind:
            world.count["Spark writer: what it was to apply is removed"] += 1  # so another is far ahead
            return "again"
        batch = next_batch(
            [entry for slot in now.after(self.done) if isinstance(entry := self.entry(slot), CheckpointEntry)],
            kept_pending=self.kept_pending,
            generations={table: work.generation for table, work in self.work.items()},
            publish_from=self.publish_from,
            max_rows=100,
        )
        if batch is None:
            return "idle"
        for entry in batch.entries:
            world.lake.schemas.update(self.store.schemas(entry.schemas - world.lake.schemas.keys()))
        files = [file.path for entry in batch.entries for file in entry.staged if file.rows]
        if self.done < world.seen.retired and not all(world.store.has(path) for path in files):
            world.count["Spark writer: what it was to apply is removed"] += 1  # so another is far ahead
            return "again"
        for table, entered in batch.entries[-1].tables.items():
            done = self.work.get(table)
            fresh = done is None or done.generation != entered.generation
            if done is not None and not fresh and snapshot_of(done.content) not in world.lake.snapshots:
                if self.w == world.store.claims:
                    raise Failure(f"the work of the newest start on {table} has expired")
                world.count["Spark writer: its work has expired"] += 1  # so another is far ahead
                return "again"
            rows: Rows = {} if fresh or done is None else world.lake.snapshots[snapshot_of(done.content)]
            staged = []
            for entry in batch.entries:
                for file in entry.staged:
                    if file.table == table and file.generation == entered.generation:
                        staged.append(file)
            if staged:
                keyless = not world.lake.schemas[entered.schema or ""].key
                rows = applied(rows, staged, world.store.rows, world.count, keyless=keyless)
            if staged or fresh or done is None:
                self.upkeep.note_applied(table)
                branch = branch_of(self.w)
                self.work[table] = work_of(
                    world.lake.put(rows, table, branch, world.now),
                    branch,
                    generation=entered.generation,
                    schema=entered.schema or "",
                )
        world.count["Spark writer applied several checkpoints at once"] += len(batch.entries) > 1
        self.done, self.kept_pending = batch.last, batch.kept
        if batch.publish:
            self.pending = batch
            between = now.after(self.published.n if self.published else 0)
            self.overtaken = any(slot in world.store.publications for slot in between if slot < batch.last)
        else:
            world.count["inside checkpoint applied, not published"] += 1
        return "applied"

    def publish(self, batch: Batch) -> str:
        world = self.world
        if self.overtaken:
            world.count["Spark writer: another has published on the way"] += 1
            return "again"
        record = publication(
            batch.entries[-1],
            w=self.w,
            kept=batch.kept,
            work=self.work,
            previous=self.published,
            published_at=world.now,
        )
        if not world.store.publish(self.store, record):
            world.count["publication refused"] += 1
            return "again"
        self.published, self.kept_pending, self.pending, self.to_show = record, False, None, record
        world.spark.on_publication(record)
        return "published"

    def move(self, record: Publication) -> bool:
        """Move `main` of each live table; refused if a newer start moved it, or if it shows a newer checkpoint of the
        chain."""
        world = self.world
        counts = chain(world.store.journal)
        moved = True
        for table, published in record.tables.items():
            if published.main is None:
                continue
            before, own = world.lake.main.get(table), published.shown
            if before is not None and not may_show(before.by, w=self.w, n=record.n, own=own, chain=self.back_to):
                world.count["main refused to a zombie Spark writer"] += own
                moved &= not own
                continue
            if before is not None and before.by[1] not in counts:  # an operator went back to an older checkpoint
                world.count["main goes back over an older restore"] += 1
                world.seen.versions.pop(table, None)
            snapshot = snapshot_of(published.main.content)
            if snapshot not in world.lake.snapshots:
                if own and self.w == world.store.claims:
                    raise Failure(f"publication {record.n} shows snapshot {snapshot} of {table}, which is gone")
                moved &= not own  # of an older publication, or of a start that others have left far behind
                continue
            if record.kept:
                world.lake.tags.setdefault(table, {}).update(tags_of(record, table))
            world.lake.main[table] = MainBranch(snapshot, (self.w, record.n))
            no_key_goes_back(world, table, record.n, world.lake.snapshots[snapshot])
        return moved
