"""Who owns a key of the lake after a step of changes, against a plain model; without Spark or a lake."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cutline.common.schema import META_FIELDS, OP, SEQ, Column, TableSchema
from cutline.spark_writer.transform.rekeyed import Rekeyed, rekeyed, with_meta
from cutline.spark_writer.transform.rule import RuleFault, plain_rule

COLUMNS = tuple(
    Column(name=name, field_id=number, mysql_type="int", nullable=name != "id")
    for number, name in enumerate(("id", "k", "v"), start=1)
)
SOURCE = TableSchema(table_id="shop.t", columns=COLUMNS, key=("id",), last_field_id=3)
Row = tuple[int, int | None, int]


def keyed() -> Rekeyed:
    return rekeyed(plain_rule(SOURCE), SOURCE, ("k",))


def rows(values: list[Row]) -> pa.Table:
    columns = [pa.array([row[at] for row in values], pa.int32()) for at in range(3)]
    return pa.Table.from_arrays(columns, schema=SOURCE.arrow)


def changes(made: list[tuple[str, Row | None]], first: int) -> pa.Table:
    table = rows([row or (0, None, 0) for _, row in made])
    meta = {field.name: pa.nulls(len(made), field.type) for field in META_FIELDS}
    meta |= {OP: pa.array([op for op, _ in made]), SEQ: pa.array(range(first, first + len(made)), pa.int64())}
    fields = [*SOURCE.arrow, *META_FIELDS]
    arrays = [*table.columns, *(meta[field.name].cast(field.type) for field in META_FIELDS)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


class Lake:
    """What a sink has of the table, by the key of the lake."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.asked: list[int] = []

    def known(self, keys: pa.Table | None) -> Iterator[tuple[pa.Table, Any]]:
        assert keys is not None
        self.asked = keys["k0"].to_pylist()
        found = [(at, self.rows[key]) for at, key in enumerate(self.asked) if key in self.rows]
        if found:
            yield rows([row for _, row in found]), np.array([at for at, _ in found])

    def step(self, chunk: list[Row], made: list[tuple[str, Row | None]], seq: int, truncated_at: int | None) -> None:
        """Apply a chunk and changes as a sink does: the chunk's rows are added, then the last change of a key."""
        table = keyed()
        parts = [*with_meta(iter([rows(chunk)]), "chunk", -(2**62)), changes(made, seq)]
        last = table.last(list(map(table.events, parts)), self.known, truncated_at)
        if truncated_at is not None:
            self.rows.clear()
        moved: list[pa.Table] = []
        for staying in table.staying(iter([last.among(parts[0])]), moved):
            for row in staying.to_pylist():
                assert row["k"] not in self.rows  # a sink does not look
                self.rows[row["k"]] = (row["id"], row["k"], row["v"])
        for each in [*moved, table.changes(last.among(parts[1]))]:
            for row in each.to_pylist():
                self.rows.pop(row["k"], None)
                if row[OP] != "-D":
                    self.rows[row["k"]] = (row["id"], row["k"], row["v"])


def test_the_lake_has_the_rows_of_the_source_after_each_step_while_keys_go_from_row_to_row() -> None:
    draw = random.Random(3)
    lake, source, seq = Lake(), dict[int, Row](), 0
    unread = list(range(60))
    for number in range(60):
        chunk = [source.get(key) for key in (unread.pop(0) for _ in range(min(4, len(unread))))]
        read = set(range(60)) - set(unread)
        made: list[tuple[str, Row | None]] = []
        truncated_at = None
        for _ in range(draw.choice([0, 3, 30])):
            key = draw.randrange(60)
            before = source.get(key)
            if draw.random() < 0.3 and before is not None:
                staged = [("-D", source.pop(key))]
            else:
                after = source[key] = (key, draw.choice([None, *range(40)]), seq + len(made))
                staged = [("+I", after)] if before is None else [("-U", before), ("+U", after)]
            made += staged if key in read else []  # what a chunk has later is not staged
        if number % 20 == 19:
            truncated_at = seq + len(made)
            made.append(("t", None))
            source.clear()
        owners: dict[int, int] = {}
        for key, row in list(source.items()):  # at the end of a step each key has one owner, and no row a null
            if row[1] is None or row[1] in owners:
                if key in read:
                    made.append(("-D", row))
                del source[key]
            else:
                owners[row[1]] = key
        lake.step([row for row in chunk if row is not None], made, seq, truncated_at)
        seq += len(made)
        assert lake.rows == {row[1]: row for key, row in source.items() if key in read}


def test_the_lake_is_asked_about_keys_that_come_alone() -> None:
    lake = Lake()
    lake.rows = {1: (1, 1, 0), 2: (2, 2, 0)}
    updated, passed = [("-U", (1, 1, 0)), ("+U", (1, 1, 5))], [("-D", (2, 2, 0)), ("+I", (3, 2, 7))]
    lake.step([], [*updated, *passed, ("+I", (4, 4, 1))], 0, None)
    assert lake.asked == [4]
    assert lake.rows == {1: (1, 1, 5), 2: (3, 2, 7), 4: (4, 4, 1)}


def test_a_chunks_row_that_takes_a_key_of_the_lake_replaces_what_had_it() -> None:
    lake = Lake()
    lake.rows = {1: (1, 1, 0)}
    lake.step([(9, 1, 0), (8, 8, 0)], [("-U", (1, 1, 0)), ("+U", (1, 2, 0))], 0, None)
    assert lake.rows == {1: (9, 1, 0), 2: (1, 2, 0), 8: (8, 8, 0)}


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ([("+I", (3, 1, 0))], "with id 1 and with id 3"),
        ([("+I", (3, 9, 0)), ("+I", (4, 9, 0))], "with id 3 and with id 4"),
        ([("-U", (2, 2, 0)), ("+U", (2, 1, 0))], "with id 1 and with id 2"),
        ([("+I", (3, None, 0))], "has a null in k, for the row with id 3"),
    ],
)
def test_two_owners_of_a_key_and_a_null_are_refused_by_name(made: list[tuple[str, Row | None]], named: str) -> None:
    lake = Lake()
    lake.rows = {1: (1, 1, 0), 2: (2, 2, 0)}
    with pytest.raises(RuleFault, match=named):
        lake.step([], made, 0, None)


def test_columns_that_can_be_no_key_are_refused() -> None:
    for key, sentence in ((("x",), "names x, which is no column"), (("v", "f"), "names f, which is of the type float")):
        source = replace(SOURCE, columns=(*COLUMNS, replace(COLUMNS[2], name="f", field_id=4, mysql_type="float")))
        with pytest.raises(RuleFault, match=sentence):
            rekeyed(plain_rule(source), source, key)
