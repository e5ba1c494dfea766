"""What the store removes, and what it keeps for a restore."""

import os
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.store.chain import follow
from cutline.common.store.commands import Orders, Outcome
from cutline.common.store.records import CheckpointEntry, PartRef
from cutline.common.store.removal import Removal
from cutline.common.store.restoring import restorable
from cutline.common.store.store import PipelineStore, Store, file_name
from tests.support import records
from tests.support.records import epoch
from tests.support.shop_store import checkpoint, files, part, published, shop, staged, url

__all__ = ["files", "shop", "url"]  # the fixtures


# The sweep


def test_a_number_of_a_removed_claim_is_not_claimed_again(shop: PipelineStore, url: str) -> None:
    """1. Savepoint 2 is by start 1, publication 3 by start 4; retention keeps these claims. 2. A process that was
    suspended before it claimed number 2 goes on.
    """
    for at in range(4):
        assert shop.claim() == at + 1
    assert shop.publish(published(2, w=1, tables={"d.t": 1}))
    assert shop.publish(published(3, w=4, tables={"d.t": 2}))
    shop.removal.retire(3, kept={2})
    assert sorted(shop._numbers("spark")) == [1, 4]
    slow = Store(url).pipeline("shop")
    numbers = slow._numbers
    listed = iter([[1]])
    slow._numbers = lambda folder: next(listed, None) or numbers(folder)  # type: ignore[method-assign]
    assert slow.claim() == 5


def test_the_sweep_takes_what_dead_epochs_left_unnamed_and_nothing_else(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    named, part_named = staged(files, 1), part(files, 1)
    lost, part_lost, adopted = staged(files, 1), part(files, 1), staged(files, 1)
    files.put_entry(checkpoint(2, 1, (named,), adopted=adopted, reader_0=part_named))
    torn = files.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    assert files.removal.sweep() == []

    files.put_entry(epoch(3, base=2))
    running, part_running = staged(files, 3), part(files, 3)
    growing = files.open_staged(file_name("orders.parquet", epoch=3, incarnation="ab12"))
    Path(files.location("staged/notes.txt")).write_text("somebody's")

    removed = files.removal.sweep()
    assert {path for path in removed if not path.endswith(".tmp")} == {lost.path, part_lost.path}
    assert [path for path in removed if path.endswith(".tmp")] == [os.path.relpath(torn._temporary, files.location(""))]
    for ref in (named, adopted, part_named, running, part_running):
        files.verify(ref)
    growing.write(b"x")
    files.verify(growing.commit())
    assert os.path.exists(files.location("staged/notes.txt"))
    assert files.removal.sweep() == []


def test_what_only_a_restore_to_before_a_publication_needs_is_removed(shop: PipelineStore, url: str) -> None:
    """Checkpoints 2 to 5, of which 3 is kept; then what a restore to 4, or to 3, needs is left, then that of 5."""
    shop.put_entry(epoch(1))
    changes, parts = [staged(shop, 1) for _ in range(4)], [part(shop, 1) for _ in range(4)]
    adopted, unnamed = staged(shop, 1), staged(shop, 1)
    tables = {f"d.t{number}": records.table() for number in range(9)}
    for at, kept in enumerate((False, True, False, False)):
        chunk = adopted if at == 0 else None
        entry = checkpoint(at + 2, 1, (changes[at],), adopted=chunk, kept=kept, reader_0=parts[at], tables=tables)
        assert shop.put_entry(entry)
        assert shop.claim() == at + 1
        shop.publish(published(at + 2, w=at + 1, tables={"d.t": at}))

    def exists(ref: PartRef) -> bool:
        try:
            shop.verify(ref)
        except ProtocolError:
            return False
        return True

    def left() -> list[list[int]]:
        return [[slot for slot, ref in enumerate(refs, start=2) if exists(ref)] for refs in (changes, parts)]

    def numbers() -> list[list[int]]:
        return [shop._numbers(folder) for folder in ("journal", "publications", "spark")]

    assert shop.removal.sweep() == []
    shop.removal.retire(4, kept={3})
    assert left() == [[5], [3, 4, 5]]
    assert [sorted(some) for some in numbers()] == [[2, 3, 4, 5], [3, 4, 5], [2, 3, 4]]  # entry 2 has their tables
    shop.removal.retire(5)
    assert left() == [[], [5]]
    assert [sorted(some) for some in numbers()] == [[2, 5], [5], [4]]
    entry = Store(url).pipeline("shop").entry(5)
    assert isinstance(entry, CheckpointEntry)
    assert entry.tables == tables
    assert not exists(adopted)
    assert shop.claim() == 5
    shop.put_entry(epoch(6, base=5))
    assert shop.removal.sweep() == [unnamed.path]


def test_who_writes_a_slot_of_which_the_entry_is_gone_is_refused(shop: PipelineStore, url: str) -> None:
    """A leader's checkpoint 3 is slow; meanwhile others go on, and remove what they need no more."""
    slow = Store(url).pipeline("shop")
    slow.put_entry(epoch(1))
    slow.put_entry(checkpoint(2, 1))
    shop.put_entry(epoch(3, base=2))
    for slot in range(4, 9):
        shop.put_entry(checkpoint(slot, 3))
    shop.removal.retire(7)
    assert not slow.put_entry(checkpoint(3, 1))
    assert sorted(shop._numbers("journal")) == [4, 7, 8]


def test_a_publication_that_others_have_passed_long_ago_is_refused(shop: PipelineStore, url: str) -> None:
    """A start's publication 3 is slow; meanwhile others publish on, and retention removes what 3 builds on."""
    slow = Store(url).pipeline("shop")
    assert slow.publish(published(2, tables={"d.a": 1, "d.b": 1}))
    for n in range(3, 8):
        assert shop.publish(published(n, tables={"d.a": n, "d.b": n}))
    shop.removal.retire(7)
    assert not slow.publish(published(3, tables={"d.a": 1, "d.b": 1}))
    assert [record.n for record in shop.publications()] == [7]


def test_temporary_names_in_the_journal_go_after_a_day(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    young, old = (Path(files.location(f"journal/.0000000002.json.{age}.tmp")) for age in ("young", "old"))
    young.write_bytes(b"{")
    old.write_bytes(b"{")
    os.utime(old, (0, 0))
    files.removal.sweep()
    assert young.exists()
    assert not old.exists()


@pytest.mark.parametrize("how", ["asked", "ordered", "entered"])
def test_nothing_is_retired_that_a_restore_under_way_needs(shop: PipelineStore, how: str) -> None:
    """A restore to checkpoint 2 is commanded, a standing order, or has its epoch, while what is before 3 is to go."""
    shop.put_entry(records.epoch(1))
    for n in (2, 3):
        shop.put_entry(records.checkpoint(n))
    if how == "entered":
        shop.put_entry(records.epoch(4, base=2))
    else:
        shop.commands.add("restore", {"checkpoint": 2}, by="ann", now=1.0)
    if how == "ordered":
        orders = Orders(mode="paused", base=2, base_after=3)
        shop.commands.put_outcome(Outcome(n=1, state="done", at=1.0, orders=orders))
    shop.removal.retire(3)
    assert shop.entry(2) is not None
    assert shop.removal.retired() == (0, frozenset())  # it was in vain, so whatever could be restored still can
    shop.removal.retire(3, kept={2})
    assert shop.entry(2) is not None


def kept_until(shop: PipelineStore, last: int, *, kept: Collection[int] = ()) -> None:
    """Checkpoints 2 to `last` of one epoch, each published."""
    shop.put_entry(records.epoch(1))
    shop.claim()
    for n in range(2, last + 1):
        shop.put_entry(records.checkpoint(n, kept=n in kept))
        shop.publish(published(n))


def test_a_later_round_notes_that_it_keeps_fewer_savepoints_though_the_oldest_publication_is_the_same(
    shop: PipelineStore,
) -> None:
    kept_until(shop, 6, kept={2, 4})
    assert shop.removal.may_retire(6, {2, 4})
    assert restorable(shop, 2)
    assert shop.removal.may_retire(6, {4})
    assert (restorable(shop, 2), restorable(shop, 4)) == (False, True)
    shop.removal.retire(6, {4})
    assert len(shop._numbers("retired")) == 1


def test_after_a_restore_to_a_savepoint_from_before_the_last_note_that_note_stands_and_keeps_it(
    shop: PipelineStore,
) -> None:
    kept_until(shop, 6, kept={2})
    shop.removal.retire(6, {2})
    shop.put_entry(records.epoch(7, base=2))
    assert shop.removal.may_retire(2)
    assert shop.removal.retired() == (6, frozenset({2}))
    assert restorable(shop, 2)


def test_a_round_that_comes_late_makes_nothing_valid_that_a_later_one_removes(shop: PipelineStore) -> None:
    """1. A round notes its publication, and its sweep waits for a thread. 2. The next round notes a later one.
    3. The sweep of the first one begins."""
    kept_until(shop, 8)
    assert shop.removal.may_retire(5)
    assert shop.removal.may_retire(8)
    shop.removal.retire(5)
    assert shop.removal.retired() == (8, frozenset())
    assert not restorable(shop, 5)
    assert 4 in shop.slots()  # the next round's sweep removes it


def test_a_round_that_comes_late_in_a_pipeline_that_is_being_deleted_removes_nothing(shop: PipelineStore) -> None:
    kept_until(shop, 8)
    assert shop.removal.may_retire(8)

    def entry(slot: int) -> Any:
        return None if slot == 8 else shop.entry(slot)

    deleting = Removal(shop._folder, shop.commands, entry=entry, last_slot=shop.last_slot)
    assert not deleting.may_retire(5)


@pytest.mark.parametrize("n", [6, 7])
def test_a_savepoint_that_one_round_did_not_keep_is_kept_by_no_later_one(shop: PipelineStore, n: int) -> None:
    kept_until(shop, 7, kept={2, 4})
    assert shop.removal.may_retire(6, {4})
    assert shop.removal.may_retire(n, {2, 4})
    assert shop.removal.retired() == (n, frozenset({4}))
    assert not restorable(shop, 2)


def test_of_two_rounds_that_cross_at_any_call_the_later_publication_stays_noted() -> None:
    for at in range(1, 100):
        url = f"memory://{uuid.uuid4().hex}"
        shop = records.begun(url)
        kept_until(shop, 5)
        files = Store(url).open(shop.life)
        crossing = Crossing(files._folder, at, partial(shop.removal.may_retire, 5))
        files._folder = files.commands._folder = files.removal._folder = crossing  # type: ignore[assignment]
        files.removal.may_retire(3)
        if crossing.calls < at:
            break
        assert shop.removal.retired() == (5, frozenset()), f"the later round came before call {at}"
    assert at > 3


def test_another_starts_note_is_not_taken_back(shop: PipelineStore) -> None:
    kept_until(shop, 4)
    assert shop.removal.may_retire(3, w=1)
    shop.commands.add("restore", {"checkpoint": 2}, by="ann", now=1.0)
    assert not shop.removal.may_retire(3, w=2)
    assert shop.removal.retired() == (3, frozenset())


def test_a_sweep_that_is_cut_short_makes_no_savepoint_valid_that_a_restore_left_behind(shop: PipelineStore) -> None:
    """1. A restore leaves savepoint 4 behind. 2. A sweep keeps savepoint 2, and ends in the middle. 3. The next one
    finds 4 on no chain, as the first did."""
    kept_until(shop, 4, kept={2, 4})
    shop.put_entry(records.epoch(5, base=3))
    for n in (6, 7):
        shop.put_entry(records.checkpoint(n, 5))
        shop.publish(published(n))

    def ask() -> None:
        if 5 not in shop.slots():
            raise Unavailable("this start has ended")

    with suppress(Unavailable):
        shop.removal.retire(7, {2}, ask=ask)
    assert 4 not in follow(shop.last_slot(), shop.entry) or 4 not in shop.publication_numbers()


def test_a_savepoint_that_was_given_up_can_not_be_restored_once_only_savepoints_are_kept(shop: PipelineStore) -> None:
    kept_until(shop, 6, kept={2})
    assert shop.removal.may_retire(6, {2})
    assert shop.removal.release(2, 7)
    assert shop.removal.release(2, 7)  # repeated by the same command
    assert not shop.removal.release(2, 8)
    assert not restorable(shop, 2)


class Crossing:
    """The files of a store, before whose call `at` another process makes all of its calls."""

    def __init__(self, folder: Any, at: int, other: Callable[[], None]) -> None:
        self._folder, self._at, self._other, self.calls = folder, at, other, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("create", "names", "read", "exists"):
            self.calls += 1
            if self.calls == self._at:
                self._other()
        return getattr(self._folder, name)


@pytest.mark.parametrize("first", ["retention", "restore"])
def test_of_a_restore_and_a_retention_that_cross_at_any_call_one_gives_way(first: str) -> None:
    """1. A retention and a restore begin, one of them in the middle of the other. 2. Never does the restore find what
    it needs, and the retention remove it."""
    ways = set()
    for at in range(1, 100):
        url = f"memory://{uuid.uuid4().hex}"
        shop = records.begun(url)
        shop.put_entry(records.epoch(1))
        for n in (2, 3):
            shop.put_entry(records.checkpoint(n))
        found: dict[str, bool] = {}

        def retention(files: PipelineStore, found: dict[str, bool] = found) -> None:
            found["retention"] = files.removal.may_retire(3)

        def restore(files: PipelineStore, found: dict[str, bool] = found) -> None:
            files.commands.add("restore", {"checkpoint": 2}, by="ann", now=1.0)
            found["restore"] = restorable(files, 2)

        first_pass, other = (retention, restore) if first == "retention" else (restore, retention)
        files = Store(url).open(shop.life)
        crossing = Crossing(files._folder, at, lambda other=other, shop=shop: other(shop))
        files._folder = files.commands._folder = files.removal._folder = crossing  # type: ignore[assignment]
        first_pass(files)
        if crossing.calls < at:
            break
        assert not (found["retention"] and found["restore"]), f"the other came before call {at}"
        ways.add((found["retention"], found["restore"]))
    assert ways >= {(True, False), (False, True)}


def test_what_no_restore_needs_is_retired(shop: PipelineStore) -> None:
    shop.put_entry(records.epoch(1))
    for n in (2, 3):
        shop.put_entry(records.checkpoint(n))
    shop.commands.add("restore", {"checkpoint": 3}, by="ann", now=1.0)
    assert shop.removal.may_retire(3)
