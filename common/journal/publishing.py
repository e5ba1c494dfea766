"""The content of a publication, and when it may be shown (pure).

Promises: a table that the follower has quarantined is left out, and its publication names the last checkpoint applied
to it, from which it continues later; no table shows an older cut than one that it has shown, unless that one has left
the chain.

Relies on: the works given are those of the follower's sink. Production (spark_writer/apply.py) and the simulation both
use it; change both together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from cutline.common.errors import ProtocolError
from cutline.common.store.chain import Chain
from cutline.common.store.origin import Origin
from cutline.common.store.records import CheckpointEntry, Main, Publication, PublishedTable, Quarantine, Work


def publication(
    entry: CheckpointEntry,
    *,
    w: int,
    kept: bool,
    work: Mapping[str, Work],
    previous: Publication | None,
    published_at: float,
    quarantined: Mapping[str, Quarantine] = MappingProxyType({}),
) -> Publication:
    """Return the record that checkpoint `entry` is applied, to be put if absent: the commit point.

    `work` has the applied state of each table in the lake; `previous` is the newest publication on the chain;
    `quarantined` are the tables that the Spark writer could not apply. A table goes to `main` if the entry has `show`
    and the table is not quarantined; otherwise `main` keeps its snapshot and position. Unchanged tables are the same
    objects in both records. ProtocolError for an `inside` cut, or a table to show that was not applied.
    """
    n = entry.slot
    if entry.inside:
        raise ProtocolError(f"checkpoint {n} is inside a transaction and can't be published")
    tables: dict[str, PublishedTable] = {}
    for table, at_cut in entry.tables.items():
        done, before = work.get(table), None if previous is None else previous.tables.get(table)
        held = quarantined.get(table)
        if at_cut.show and held is None:
            if done is None or done.generation != at_cut.generation:
                raise ProtocolError(f"table {table} is live in checkpoint {n} but its generation was never applied")
            main = Main(content=done.content, rows=done.rows)
        elif previous is None or before is None or before.main is None:
            main = None
        else:
            main = replace(before.main, position=previous.position_of(table), origin=origin_of(previous, table))
        state, generation = (at_cut.phase, at_cut.generation) if held is None else ("quarantined", held.generation)
        now = PublishedTable(state=state, generation=generation, main=main, work=done, held=held)
        tables[table] = now if before is None or now != before else before
    return Publication(
        n=n,
        epoch=entry.epoch,
        w=w,
        kept=kept,
        position=entry.position,
        source_time=entry.source_time,
        published_at=published_at,
        tables=tables,
    )


def origin_of(record: Publication, table: str) -> Origin | None:
    """What the content of a table's `main` was made of; None if it has none, or one of a derived table."""
    known = record.tables.get(table)
    if known is None or known.main is None:
        return None
    if not known.shown or known.work is None:
        return known.main.origin
    return Origin(known.work.generation, known.work.schema, record.source_time)


def may_show(shown: tuple[int, int], *, w: int, n: int, own: bool, chain: Callable[[int], Chain]) -> bool:
    """Whether Spark writer `w` may move `main` to publication `n`, where `main` shows `shown`, a (w, N).

    Never after a newer writer; replace an older cut of our own, else only one that left the chain. `own`: `n` shows the
    table at its own cut. If instead `n` only repeats an older publication's snapshot, `main` shows that one already, or
    a later one that `w` did not know, and may only replace one off the chain. `chain(back)` reads the journal, back to
    that checkpoint, *after* `shown` was read: an older view would lack the publications of other starts since then, and
    `main` would go back.
    """
    shown_w, shown_n = shown
    return shown_w <= w and ((own and shown_n <= n) or shown_n not in chain(min(shown_n, n)))
