"""Which change ends a row, and updates that are never torn from the row before them; no Spark."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.schema import FILE, OP, POS, SEQ, TS
from cutline.spark_writer.transform.history import OPEN, ends_of
from cutline.spark_writer.transform.modes import paired

Change = tuple[str, str | None, float | None]
"""Its operation and key."""


def table_of(changes: list[Change], numbers: list[int]) -> pa.Table:
    """Changes as `Versioned.keys` has them."""
    return pa.table(
        {
            "k0": pa.array([change[1] for change in changes], pa.string()),
            "k1": pa.array([change[2] for change in changes], pa.float64()),
            OP: pa.array([change[0] for change in changes], pa.string()),
            TS: pa.array(numbers, pa.timestamp("us", "UTC")),
            SEQ: pa.array(numbers, pa.int64()),
            FILE: pa.array(["b"] * len(changes), pa.string()),
            POS: pa.array(numbers, pa.int64()),
        }
    )


def drawn(draw: random.Random) -> list[Change]:
    made: list[Change] = []
    for _ in range(draw.randrange(12)):
        if draw.random() < 0.1:
            made.append(("t", None, None))
        else:
            made.append((draw.choice(["+I", "+U", "-D"]), draw.choice("ab"), draw.choice([0.5, 1.5])))
    return made


@pytest.mark.parametrize("seed", range(60))
def test_a_row_ends_with_the_next_change_of_its_key_or_a_truncate(seed: int) -> None:
    draw = random.Random(seed)
    changes = drawn(draw)
    numbers = sorted(draw.sample(range(100), len(changes)))
    mixed = draw.sample(range(len(changes)), len(changes))  # files come in any order
    ends = ends_of(table_of([changes[at] for at in mixed], [numbers[at] for at in mixed]))

    def follows(key: Any, after: int) -> int | None:
        found = (at for at in range(after + 1, len(changes)) if changes[at][0] == "t" or changes[at][1:] == key)
        return next(found, None)

    for at, change in enumerate(changes):
        if change[0] != "t":
            (place,) = ends.ending(pa.chunked_array([[numbers[at]]]))
            end = follows(change[1:], at)
            assert place == (-1 if end is None else end)
            _, seq, _, _ = ends.places(ends.ending(pa.chunked_array([[numbers[at]]])))
            assert seq.to_pylist() == [None if end is None else numbers[end]]
    keys = {change[1:]: None for change in changes if change[0] != "t"}
    found = list(map(tuple, (row.values() for row in ends.keys.to_pylist())))
    assert sorted(found) == sorted((*key, OPEN) for key in keys)
    for number, (*plain, _) in enumerate(found):
        key = tuple(plain)
        assert ends.firsts[number] == follows(key, -1)
        last = max(at for at, change in enumerate(changes) if change[1:] == key)
        assert ends.left[number] == (changes[last][0] != "-D" and follows(key, last) is None)
    cuts = [at for at, change in enumerate(changes) if change[0] == "t"]
    assert ends.truncate == (cuts[0] if cuts else None)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_group_ends_between_the_row_before_an_update_and_the_update(size: int) -> None:
    ops = ["+I", "-U", "+U", "-U", "+U", "-D", "-U", "+U", "+I"]
    whole = pa.table({OP: ops, SEQ: list(range(len(ops)))})
    groups = list(paired(whole.slice(first, size) for first in range(0, len(ops), size)))
    assert pa.concat_tables(groups) == whole
    assert all(group[OP][-1].as_py() != "-U" for group in groups if group.num_rows)
