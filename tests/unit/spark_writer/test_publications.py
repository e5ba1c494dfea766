"""The rows of publications that retention keeps give the same cuts as the rows of all."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cutline.common.positions import Position
from cutline.common.store.records import Main, Publication, PublishedTable
from cutline.spark_writer.sinks.iceberg.publications import publication_rows, retained_rows
from cutline.spark_writer.sinks.iceberg.works import content_of

Row = dict[str, Any]
TABLES = ("d.a", "d.b", "d.c")


def published(n: int, snapshots: dict[str, int]) -> Publication:
    """Publication `n`, by snapshots of tables; one that a table had before is shown at the cut of then."""
    tables = {}
    for table, snapshot in snapshots.items():
        main = Main(content=content_of(snapshot), position=None if snapshot == n else place(snapshot))
        tables[table] = PublishedTable(state="live", generation=1, main=main, work=None)
    return Publication(
        n=n, epoch=1, w=1, kept=False, position=place(n), source_time=1.0 * n, published_at=2.0 * n, tables=tables
    )


def place(offset: int) -> Position:
    return Position(server="s", file="binlog.000001", offset=offset)


def cuts(rows: list[Row]) -> dict[tuple[int, str], Row]:
    """What the view `_cutline.cuts` makes of rows: every table at every publication."""
    found = {}
    for cut in (row for row in rows if row["table"] is None):
        for table in TABLES:
            known = [row for row in rows if row["table"] == table and row["checkpoint"] <= cut["checkpoint"]]
            if known:
                newest = max(known, key=lambda row: row["checkpoint"])
                at = cut if newest["shown"] else newest
                found[cut["checkpoint"], table] = {
                    "snapshot": newest["snapshot_id"], "state": newest["state"], "position": at["position"],
                    "source_time": cut["source_time"], "published_at": cut["published_at"],
                }  # fmt: skip
    return found


@given(st.lists(st.sets(st.sampled_from(TABLES)), min_size=1, max_size=8), st.data())
def test_the_cuts_of_kept_publications_and_of_later_ones_stay(changed: list[set[str]], data: st.DataObject) -> None:
    records: list[Publication] = []
    snapshots: dict[str, int] = {}
    for n, tables in enumerate(changed, start=1):
        snapshots = {**snapshots, **dict.fromkeys(tables, n)}
        records.append(published(n, snapshots))
    rows = [
        row
        for at, record in enumerate(records)
        for row in publication_rows(record, records[at - 1] if at else None, "shop")
    ]
    oldest = data.draw(st.integers(1, len(records)))
    savepoints = data.draw(st.sets(st.integers(1, oldest)))
    kept = [record for record in records if record.n in savepoints | {oldest}]
    left = retained_rows(kept, "shop") + [row for row in rows if row["checkpoint"] > oldest]
    numbers = {record.n for record in kept} | {record.n for record in records if record.n > oldest}
    assert cuts(left) == {at: row for at, row in cuts(rows).items() if at[0] in numbers}
    assert len(left) <= len(rows) + len(TABLES) * len(kept)
