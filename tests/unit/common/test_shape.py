"""Which columns of the source a rule may need."""

from __future__ import annotations

import pytest

from cutline.common.shape import Shape

COLUMNS = ("id", "name", "family name", "note", "A", "größe")
ODD = {"family name", "größe"}
"""Names that only a `*` or quotes can mean are never left out."""


@pytest.mark.parametrize(
    ("select", "where", "needed"),
    [
        (["*"], None, set(COLUMNS)),
        (["id"], None, {"id"} | ODD),
        (["id", "upper(NAME) AS n"], "a > 1", {"id", "name", "A"} | ODD),
        (["* EXCEPT (note, `A`)"], None, {"id", "name"} | ODD),
        (["* except(note)", "concat(note, 'x') AS n"], None, set(COLUMNS)),
        (["* EXCEPT (note)"], "note IS NULL", set(COLUMNS)),
        (["* EXCEPT (note)", "* EXCEPT (note, name)"], None, {"id", "name", "A"} | ODD),
        (["* EXCEPT (`family name`)"], None, set(COLUMNS)),
        (["id * 2 AS twice", "(id)* 3 AS thrice"], None, {"id"} | ODD),
        (["id", "struct(*) AS s"], None, set(COLUMNS)),
        (["id", "to_json(struct(ALL *)) AS s"], None, set(COLUMNS)),
        (["id", "hash(-- all of them\n*) AS s"], None, set(COLUMNS)),
        (["id", "struct(x.*) AS s"], None, set(COLUMNS)),
        (["id", "hash(id, *) AS s"], None, set(COLUMNS)),
        (["id AS `my id`"], None, {"id"} | ODD),
        (["id", "`n.*`"], None, set(COLUMNS)),
        (["id", "`(?i)NOTE`"], None, set(COLUMNS)),
        (["id", "IDENTIFIER('na' || 'me')"], None, set(COLUMNS)),
        (["id", "'note' AS n"], None, {"id", "note"} | ODD),
    ],
)
def test_a_column_is_left_out_only_if_no_part_of_the_rule_can_mean_it(
    select: list[str], where: str | None, needed: set[str]
) -> None:
    assert Shape(select=tuple(select), where=where).needs(COLUMNS) == needed


def test_the_columns_of_chunks_are_needed_too() -> None:
    assert "note" in Shape(select=("id",), chunk_by=("note",)).needs(COLUMNS)


def test_a_long_list_that_is_no_list_is_refused_quickly() -> None:
    assert Shape(select=("* EXCEPT (" + "a " * 5000 + "!",)).needs(COLUMNS) == set(COLUMNS)


def test_a_shape_is_read_as_it_was_written() -> None:
    for shape in (Shape(where="a > 1"), Shape(select=("id",), mask=("name",), mask_key="ab", chunk_by=("note",))):
        assert Shape.from_json(shape.to_json()) == shape
