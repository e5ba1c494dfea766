"""Whatever has happened: every publication that can be restored still has each snapshot that its record names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.journal.publishing import publication
from cutline.common.journal.retention import retained
from cutline.common.store.chain import follow
from cutline.common.store.records import Entry, Publication, Quarantine, Work
from cutline.spark_writer.sinks.iceberg.works import snapshot_of, tags_of, work_of
from tests.support import records
from tests.support.causes import because

TABLES = ("shop.orders", "shop.stock")
GRACE = 100.0
EVENTS = ("change", "change", "read again", "live", "hold", "release a table", "checkpoint", "checkpoint", "savepoint",
          "restore", "release", "expiry", "expiry", "pause")  # fmt: skip


@dataclass
class World:
    """A journal, publications, and the snapshots of a lake, each with the time at which it was made."""

    config: RetentionConfig
    now: float = 1000.0
    entries: dict[int, Entry] = field(default_factory=dict)
    published: dict[int, Publication] = field(default_factory=dict)
    lake: dict[str, dict[int, float]] = field(default_factory=lambda: {table: {} for table in TABLES})
    work: dict[str, Work] = field(default_factory=dict)
    live: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(TABLES, True))
    held: dict[str, Quarantine] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    retired: tuple[int, frozenset[int]] = (0, frozenset())
    made: int = 0

    def begin(self, base: int | None) -> None:
        self.epoch = max(self.entries, default=0) + 1
        self.entries[self.epoch] = records.epoch(self.epoch, base)

    def change(self, table: str, *, more: int = 0) -> None:
        self.made += 1
        self.lake[table][self.made] = self.now
        generation = self.work[table].generation if table in self.work else 1
        self.work[table] = work_of(self.made, "staging_1", generation=generation + more, schema="h")

    @property
    def chain(self) -> Any:
        return follow(max(self.entries), self.entries.get)

    def newest(self) -> Publication | None:
        n = self.chain.newest(self.published)
        return None if n is None else self.published[n]

    def checkpoint(self, *, kept: bool = False) -> None:
        n = max(self.entries) + 1
        tables = {
            table: records.table(generation=work.generation, phase="live" if self.live[table] else "snapshot",
                                 show=self.live[table])
            for table, work in self.work.items()
        }  # fmt: skip
        entry = records.checkpoint(n, self.epoch, kept=kept, tables=tables)
        before = self.newest()
        self.entries[n] = entry
        self.published[n] = publication(
            entry, w=1, kept=kept, work=self.work, previous=before, published_at=self.now, quarantined=self.held
        )

    def restorable(self) -> list[int]:
        oldest, kept = self.retired
        return [n for n in self.published if n in self.chain and (n >= oldest or n in kept)]

    def restore(self, n: int) -> None:
        self.begin(n)
        tables = self.published[n].tables
        self.work = {table: found.work for table, found in tables.items() if found.work is not None}
        self.held = {table: found.held for table, found in tables.items() if found.held is not None}
        self.live = {table: table not in tables or tables[table].state == "live" for table in TABLES}

    def expire(self) -> None:
        newest_first = (self.published[n] for n in sorted(self.published, reverse=True))
        chain = self.chain
        kept = retained(newest_first, chain=chain, now=self.now, settings=self.config, released=self.released)
        if kept is None:
            return
        for table, snapshots in self.lake.items():
            heads = {snapshot_of(self.work[table].content)} if table in self.work else set()
            stay = {*map(snapshot_of, kept.contents_of(table)), *heads}
            self.lake[table] = {
                number: at for number, at in snapshots.items() if number in stay or at > self.now - GRACE
            }
        savepoints = {record.n for record in kept.savepoints}
        assert not savepoints & {record.n for record in kept.released}
        self.retired = (kept.oldest.n, frozenset(savepoints))
        self.published = {n: record for n, record in self.published.items() if n >= kept.oldest.n or n in savepoints}

    def check(self) -> None:
        """Read every retained publication, and require that retention has kept what the settings promise."""
        for n, record in self.published.items():
            for table, found in record.tables.items():
                named = {snapshot_of(at.content) for at in (found.main, found.work) if at is not None}
                assert named <= self.lake[table].keys(), f"{table} at publication {n}"
                assert set(tags_of(record, table).values()) == named
        promised = {n for n, at in self.promised if at > self.now - GRACE}
        assert promised <= self.published.keys()

    promised: list[tuple[int, float]] = field(default_factory=list)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_retained_publication_can_be_read_after_any_history(data: st.DataObject) -> None:
    """1. A random history of changes, generations, quarantines, savepoints, restores, releases and expiries.
    2. After each step every retained publication is read; none within the grace is gone, and no kept savepoint.
    """
    config = RetentionConfig.model_construct(
        grace_seconds=GRACE,
        savepoints=data.draw(st.integers(0, 3), label="savepoints"),
        savepoint_days=data.draw(st.sampled_from([None, 500 / 86400]), label="savepoint_days"),
    )
    world = World(config)
    world.begin(None)
    for table in TABLES:
        world.change(table)
    world.checkpoint()
    for event in data.draw(st.lists(st.sampled_from(EVENTS), max_size=40), label="events"):
        table = data.draw(st.sampled_from(TABLES), label="table")
        if event == "change":
            if table not in world.held:
                world.change(table)
        elif event == "read again":
            world.held.pop(table, None)
            world.live[table] = False
            world.change(table, more=1)
        elif event == "live":
            world.live[table] = True
        elif event == "hold":
            world.held[table] = Quarantine(cause=because("c"), generation=world.work[table].generation, applied=None)
        elif event == "release a table":
            world.held.pop(table, None)
        elif event in ("checkpoint", "savepoint"):
            world.checkpoint(kept=event == "savepoint")
            world.promised.append((max(world.published), world.now))
        elif event == "restore" and (choices := world.restorable()):
            world.restore(data.draw(st.sampled_from(choices), label="restored"))
        elif event == "release":
            world.released |= set(data.draw(st.lists(st.sampled_from(sorted(world.published)), max_size=2)))
        elif event == "expiry":
            world.expire()
        world.now += data.draw(st.sampled_from([0.0, 1.0, 30.0, 90.0]), label="seconds") * (
            3 if event == "pause" else 1
        )
        world.check()


def test_a_savepoint_goes_by_number_by_age_or_if_it_was_given_up() -> None:
    world = World(RetentionConfig.model_construct(grace_seconds=GRACE, savepoints=3, savepoint_days=1.0))
    world.begin(None)
    world.change(TABLES[0])
    for seconds in (86_400.0, 300.0, 300.0, 300.0, 300.0):
        world.checkpoint(kept=True)
        world.now += seconds
    world.checkpoint()
    world.now += 200.0
    world.released = {3}
    newest_first = [world.published[n] for n in sorted(world.published, reverse=True)]
    found = retained(newest_first, chain=world.chain, now=world.now, settings=world.config, released=world.released)
    assert found is not None
    assert (found.oldest.n, [each.n for each in found.savepoints], [each.n for each in found.released]) == (
        7, [4, 5, 6], [3, 2],
    )  # fmt: skip


@pytest.mark.parametrize("why", ["a restore left it behind", "a person gave it up"])
def test_a_savepoint_within_the_grace_that_is_not_kept_takes_no_other_one_s_place(why: str) -> None:
    world = World(RetentionConfig.model_construct(grace_seconds=GRACE, savepoints=1, savepoint_days=None))
    world.begin(None)
    world.change(TABLES[0])
    for kept in (True, False):  # 2, 3
        world.checkpoint(kept=kept)
        world.now += 2 * GRACE
    world.checkpoint(kept=True)  # 4
    if why == "a restore left it behind":
        world.restore(3)
    else:
        world.released = {4}
    newest_first = [world.published[n] for n in sorted(world.published, reverse=True)]
    found = retained(newest_first, chain=world.chain, now=world.now, settings=world.config, released=world.released)
    assert found is not None
    assert (found.oldest.n, [each.n for each in found.savepoints]) == (3, [2])


def test_nothing_goes_while_all_publications_are_within_the_grace() -> None:
    world = World(RetentionConfig.model_construct(grace_seconds=GRACE, savepoints=0, savepoint_days=None))
    world.begin(None)
    world.change(TABLES[0])
    world.checkpoint()
    assert retained([world.published[2]], chain=world.chain, now=world.now, settings=world.config) is None


def test_a_publication_that_a_restore_left_behind_stays_within_the_grace() -> None:
    """1. Publication 3 shows what nothing else does. 2. A restore to 2 leaves it behind. 3. Its readers may still be at
    work: its snapshots stay until its grace is over."""
    world = World(RetentionConfig.model_construct(grace_seconds=GRACE, savepoints=0, savepoint_days=None))
    world.begin(None)
    world.change(TABLES[0])
    world.checkpoint()  # 2
    world.now += 2 * GRACE
    world.change(TABLES[0])
    world.checkpoint()  # 3
    left_behind = world.work[TABLES[0]].content
    world.restore(2)
    for seconds, stays in ((0.0, True), (0.9 * GRACE, True), (0.2 * GRACE, False)):
        world.now += seconds
        world.change(TABLES[0])
        world.checkpoint()
        found = retained(
            (world.published[n] for n in sorted(world.published, reverse=True)),
            chain=world.chain, now=world.now, settings=world.config,
        )  # fmt: skip
        assert found is not None
        assert (left_behind in found.contents_of(TABLES[0])) == stays
