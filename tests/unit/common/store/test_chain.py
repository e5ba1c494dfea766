"""What the Spark writer applies and publishes next, from a journal alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from cutline.common.errors import ProtocolError
from cutline.common.journal.batches import Batch, next_batch, only
from cutline.common.journal.publishing import may_show, origin_of, publication
from cutline.common.store.chain import Chain, follow
from cutline.common.store.deltas import changes
from cutline.common.store.origin import Origin
from cutline.common.store.records import (
    CheckpointEntry,
    Content,
    Entry,
    Main,
    Place,
    PublishedTable,
    Quarantine,
    Work,
)
from tests.support import records
from tests.support.causes import because
from tests.support.records import epoch

T = "shop.orders"


def checkpoint(
    slot: int,
    epoch: int = 1,
    *,
    generation: int = 1,
    rows: int = 0,
    truncated_at: int | None = None,
    show: bool = True,
    **other: Any,
) -> CheckpointEntry:
    file = records.staged(T, generation=generation, rows=rows, truncated_at=truncated_at)
    tables = {T: records.table(generation=generation, show=show)}
    return records.checkpoint(slot, epoch, staged=(file,) if rows else (), tables=tables, **other)


def chain_of(*entries: Entry, published: tuple[int, ...] = ()) -> Chain:
    by_slot = {entry.slot: entry for entry in entries}
    return follow(max(by_slot, default=0), by_slot.get, published)


def slots(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [entry.slot for entry in batch.entries]


def test_an_empty_journal_has_no_chain() -> None:
    assert chain_of().after(0) == []
    assert chain_of(epoch(1, None)).after(0) == []


def test_the_chain_goes_back_by_the_bases_and_leaves_out_what_they_leave_out() -> None:
    chain = chain_of(
        epoch(1, None),
        checkpoint(2),
        checkpoint(3),
        checkpoint(4),
        epoch(5, 3),
        checkpoint(6, 5),
        epoch(7, 6),
        epoch(8, 6),
        checkpoint(9, 8),
    )
    assert chain.after(0) == [2, 3, 6, 9]
    assert chain.after(3) == [6, 9]
    assert 4 not in chain
    assert chain.newest([2, 4]) == 2
    assert chain.newest([4]) is None


def test_an_epoch_without_a_base_begins_a_new_history() -> None:
    assert chain_of(epoch(1, None), checkpoint(2), epoch(3, None), checkpoint(4, 3)).after(0) == [4]


def test_older_entries_are_not_asked_for_once_a_publication_is_found() -> None:
    chain = chain_of(epoch(10, 8), checkpoint(11, 10), epoch(12, 11), checkpoint(13, 12), published=(11,))
    assert chain.after(11) == [13]


def test_what_was_before_the_entries_that_are_left_counts() -> None:
    """Older entries are removed, of epoch 5 the first ones too; a restore to 7 left out 8 and what came after it."""
    chain = chain_of(checkpoint(7, 5), checkpoint(8, 5), epoch(9, 7), checkpoint(10, 9))
    assert chain.after(7) == [10]
    assert [n for n in range(1, 11) if n in chain] == [1, 2, 3, 4, 5, 6, 7, 10]
    assert chain_of(checkpoint(7, 5), published=(7,)).newest([7]) == 7


def test_a_missing_entry_and_a_base_that_is_not_before_its_epoch_are_refused() -> None:
    with pytest.raises(ProtocolError, match="missing"):
        follow(6, {5: epoch(5, 3)}.get)
    with pytest.raises(ProtocolError, match="journal entry 3 is missing"):
        chain_of(epoch(5, 3), checkpoint(6, 5)).after(2)
    with pytest.raises(ProtocolError, match="not before"):
        chain_of(epoch(1, 4), checkpoint(2))


def test_checkpoints_are_applied_at_once_to_the_last_that_can_be_published() -> None:
    batch = next_batch([checkpoint(2), checkpoint(3, inside=True), checkpoint(4), checkpoint(5, inside=True)])
    assert slots(batch) == [2, 3, 4]
    assert batch is not None
    assert batch.publish


def test_a_cut_inside_a_transaction_is_applied_but_not_published() -> None:
    batch = next_batch([checkpoint(2, inside=True), checkpoint(3, inside=True)])
    assert batch == Batch(entries=batch.entries if batch else (), publish=False, kept=False)
    assert slots(batch) == [2, 3]


def test_a_kept_cut_ends_its_batch_and_an_inside_one_is_kept_at_the_next_that_can_be_published() -> None:
    assert slots(next_batch([checkpoint(2), checkpoint(3, kept=True), checkpoint(4)])) == [2, 3]
    late = next_batch([checkpoint(2, inside=True, kept=True), checkpoint(3), checkpoint(4)])
    assert slots(late) == [2, 3]
    assert late is not None
    assert late.kept
    pending = next_batch([checkpoint(4), checkpoint(5)], kept_pending=True)
    assert slots(pending) == [4]
    assert pending is not None
    assert pending.kept


def test_after_a_restore_to_before_what_retention_noted_the_first_cuts_are_applied_and_not_published() -> None:
    """The store takes no publication before that one any more, also where retention made way for the restore."""
    batch = next_batch([checkpoint(2), checkpoint(3, kept=True)], publish_from=7)
    assert (slots(batch), batch and batch.publish, batch and batch.kept) == ([2, 3], False, True)
    later = next_batch([checkpoint(3), checkpoint(11), checkpoint(12)], publish_from=7)
    assert (slots(later), later and later.publish) == ([3, 11, 12], True)


def test_nothing_is_applied_together_over_a_truncate_or_a_generation() -> None:
    assert slots(next_batch([checkpoint(2, rows=1), checkpoint(3, rows=2, truncated_at=7)])) == [2]
    assert slots(next_batch([checkpoint(3, rows=2, truncated_at=7), checkpoint(4)])) == [3, 4]
    assert slots(next_batch([checkpoint(2), checkpoint(3, generation=2)])) == [2]
    assert slots(next_batch([checkpoint(3, generation=2), checkpoint(4, generation=2)], generations={T: 1})) == [3, 4]


def test_a_batch_is_bounded_but_never_empty() -> None:
    assert slots(next_batch([checkpoint(2, rows=60), checkpoint(3, rows=60)], max_rows=100)) == [2]
    assert slots(next_batch([checkpoint(2, rows=500), checkpoint(3)], max_rows=100)) == [2]
    assert next_batch([]) is None


def test_any_journal_is_applied_whole_in_order_and_every_kept_cut_gets_its_publication() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        entries, generation = [], 1
        for slot in range(2, 2 + draw.randrange(1, 25)):
            generation += draw.random() < 0.1
            cut = checkpoint(
                slot,
                inside=draw.random() < 0.4,
                kept=draw.random() < 0.3,
                generation=generation,
                rows=draw.randrange(4),
                truncated_at=5 if draw.random() < 0.1 else None,
            )
            entries.append(cut)
        left, applied, pending, published = list(entries), [], False, []
        while batch := next_batch(left, kept_pending=pending, max_rows=10):
            applied += slots(batch)
            left = left[len(batch.entries) :]
            pending = batch.kept
            assert len({entry.tables[T].generation for entry in batch.entries}) == 1
            if batch.publish:
                assert not batch.entries[-1].inside
                published.append((batch.last, batch.kept))
                pending = False
        assert applied == [entry.slot for entry in entries]
        for entry in entries:
            if entry.kept:
                after = [(n, kept) for n, kept in published if n >= entry.slot]
                assert after[:1] == [(min((n for n, _ in after), default=0), True)][: len(after)]


def test_a_publication_shows_what_the_entry_shows_and_leaves_the_rest_as_it_was() -> None:
    work = {T: Work(content=Content("7"), place=Place("staging_3"), generation=1, schema="h", rows=5)}
    first = publication(checkpoint(2), w=3, kept=False, work=work, previous=None, published_at=1.0)
    assert first.tables[T].main == Main(content=Content("7"), rows=5)
    assert first.tables[T].shown
    later = {T: Work(content=Content("9"), place=Place("staging_3"), generation=2, schema="h")}
    second = publication(
        checkpoint(3, generation=2, show=False), w=3, kept=True, work=later, previous=first, published_at=2.0
    )
    origin = Origin(1, "h", first.source_time)
    assert second.tables[T].main == Main(content=Content("7"), position=records.place(2), rows=5, origin=origin)
    assert origin_of(first, T) == origin_of(second, T) == origin
    assert second.position_of(T) == first.position_of(T) == records.place(2)
    assert second.tables[T].work == later[T]
    assert not second.tables[T].shown
    third = publication(
        checkpoint(4, generation=2, show=False), w=3, kept=True, work=later, previous=second, published_at=2.0
    )
    assert third.tables[T] is second.tables[T]
    same = publication(checkpoint(4), w=3, kept=False, work=work, previous=None, published_at=2.0)
    assert changes(same.tables, first.tables) == {}


def test_a_quarantined_table_is_published_with_its_cause_and_how_far_it_is_and_main_stays() -> None:
    work = {T: Work(content=Content("7"), place=Place("staging_3"), generation=1, schema="h")}
    first = publication(checkpoint(2), w=3, kept=False, work=work, previous=None, published_at=1.0)
    held = {T: Quarantine(cause=because("it is a view", "drop it"), generation=1, applied=2)}
    later = {T: Work(content=Content("9"), place=Place("staging_3"), generation=1, schema="h")}
    second = publication(checkpoint(3), w=3, kept=False, work=later, previous=first, published_at=2.0, quarantined=held)
    table = second.tables[T]
    assert second.position_of(T) == first.position_of(T)
    assert (table.state, table.main and table.main.content, table.held, table.shown) == (
        "quarantined",
        "7",
        held[T],
        False,
    )
    assert table.to_json()["cause"] == because("it is a view", "drop it").to_json()
    assert PublishedTable.from_json(table.to_json()) == table
    lost = {T: Quarantine(cause=because("dropped"), generation=1, applied=None)}
    third = publication(checkpoint(4), w=3, kept=False, work={}, previous=second, published_at=3.0, quarantined=lost)
    assert third.position_of(T) == first.position_of(T)
    assert PublishedTable.from_json(third.tables[T].to_json()).held == lost[T]
    back = publication(checkpoint(5), w=3, kept=False, work=later, previous=third, published_at=4.0)
    assert back.tables[T].held is None
    assert back.tables[T].shown


def test_what_an_entry_says_of_one_table_is_its_files_and_its_state() -> None:
    entry = checkpoint(2, rows=3)
    other = {**entry.tables, "shop.other": entry.tables[T]}
    both = replace(entry, tables=other, staged=(*entry.staged, replace(entry.staged[0], table="shop.other")))
    assert only(both, T) == entry
    assert only(both, "shop.none") == replace(entry, tables={}, staged=())


def test_an_inside_cut_or_an_unapplied_table_is_not_published() -> None:
    with pytest.raises(ProtocolError, match="inside a transaction"):
        publication(checkpoint(2, inside=True), w=1, kept=False, work={}, previous=None, published_at=1.0)
    with pytest.raises(ProtocolError, match="never applied"):
        publication(checkpoint(2), w=1, kept=False, work={}, previous=None, published_at=1.0)


def test_main_goes_neither_back_nor_to_what_an_older_spark_writer_shows() -> None:
    def may(shown: tuple[int, int], *, w: int = 2, n: int = 6, own: bool = True) -> bool:
        journal = (
            epoch(1, None),
            *map(checkpoint, (2, 3, 4)),
            epoch(5, 3),
            checkpoint(6, epoch=5),
            checkpoint(7, epoch=5),
        )
        return may_show(shown, w=w, n=n, own=own, chain=lambda back: chain_of(*journal, published=(back,)))

    assert may((1, 3))
    assert may((2, 6))
    assert not may((3, 3))
    assert not may((1, 7))
    assert may((1, 4), n=3)  # left out by epoch 5
    # what 6 leaves where an older publication had put it: another Spark writer's 3 may be later than that one
    assert not may((1, 3), own=False)
    assert may((1, 4), own=False)
    assert may((0, 0), own=False)
