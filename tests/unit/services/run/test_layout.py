"""Text that fits a terminal: what is wrapped, what shrinks, what is left out and counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from cutline.services.run.layout import GAP, Bar, Cell, Column, Items, elided, grid, shared, wrapped

SENTENCE = "The binlog after mysql-bin.000004:157 is purged; keep binlogs longer, then `cutline pipeline read-again`"


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("indent", [0, 2])
def test_a_paragraph_is_wrapped_and_no_word_of_it_is_lost(width: int, indent: int) -> None:
    lines = [line.plain for line in wrapped(SENTENCE, width, indent)]
    assert " ".join(" ".join(lines).split()) == SENTENCE
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(" " * indent + "The")
    assert all(line.startswith(" " * (indent + 2)) for line in lines[1:])


def test_a_word_that_is_longer_than_the_terminal_is_folded_and_not_cut() -> None:
    gtids = "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-77," * 5
    lines = [line.plain for line in wrapped(gtids, 60)]
    assert "".join(line.strip() for line in lines) == gtids
    assert max(map(len, lines)) <= 60


def test_elsewhere_than_in_a_terminal_a_paragraph_is_one_line() -> None:
    assert [line.plain for line in wrapped(SENTENCE * 3, None, 2)] == ["  " + SENTENCE * 3]


@pytest.mark.parametrize(
    ("name", "cells", "text"),
    [("shop.orders", 11, "shop.orders"), ("shop.order_items", 12, "shop.…_items"), ("shop.注文明細", 9, "shop…明細")],
)
def test_a_name_loses_its_middle(name: str, cells: int, text: str) -> None:
    assert elided(name, cells) == text


@given(st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=40), st.integers(4, 30))
def test_an_elided_name_fits(name: str, cells: int) -> None:
    assert Text(elided(name, cells)).cell_len <= cells


COLUMNS = (
    Column(heading="table", least=8),
    Column(heading="for", right=True, goes=1),
    Column(heading=""),
    Column(heading="rows", right=True),
)
ROWS: list[tuple[Cell, ...]] = [
    ("shop.a_table_with_a_long_name", "3:05", Bar(fraction=0.5, style="cyan"), "3,000,000"),
    ("shop.b", "", "", "12"),
]


def test_a_grid_with_room_shows_all() -> None:
    lines = [line.plain for line in grid(COLUMNS, ROWS, 100)]
    assert lines[0].split() == ["table", "for", "rows"]
    assert "shop.a_table_with_a_long_name" in lines[1]
    assert lines[1].count("━") == 24
    assert {len(line) for line in lines} == {29 + 4 + 24 + 9 + 3 * GAP}


@pytest.mark.parametrize("width", [60, 50, 40, 30, 20])
def test_a_narrow_grid_shortens_the_bar_then_the_name_then_leaves_columns_out_and_never_a_figure(width: int) -> None:
    lines = [line.plain for line in grid(COLUMNS, ROWS, width)]
    assert max(map(len, lines)) <= width
    assert lines[1].endswith("3,000,000")
    assert lines[2].endswith(" 12")
    assert ("…" in lines[1]) == (width < 46)
    assert ("3:05" in lines[1]) == (width >= 25)


def test_a_column_without_content_is_left_out() -> None:
    lines = [line.plain for line in grid(COLUMNS, [("shop.b", "", "", "12")], 80)]
    assert lines == ["table   rows", "shop.b    12"]


def listed(*heights: int, heading: int = 1) -> Items:
    """Items of these heights."""
    items = [[Text(f"{at}.{line}") for line in range(height)] for at, height in enumerate(heights)]
    more = Text("more")
    return Items(items=items, heading=[Text("heading")] * heading, more=lambda shown: Text(f"{more} than {shown}"))


def test_a_list_that_has_room_is_whole() -> None:
    assert [line.plain for line in listed(1, 2).lines(4)] == ["heading", "0.0", "1.0", "1.1"]
    assert listed().lines(4) == listed().lines(None) == []


def test_a_list_is_shortened_by_whole_items_and_counts_the_rest() -> None:
    assert [line.plain for line in listed(1, 2, 1).lines(4)] == ["heading", "0.0", "more than 1"]
    assert [line.plain for line in listed(3, 1).lines(2)] == ["more than 0"]
    assert listed(3, 1).lines(0) == []


def test_lists_share_the_height_and_none_gets_more_than_it_needs() -> None:
    lines = [line.plain for line in shared([listed(*[1] * 20), listed(1, 1), listed()], 12)]
    assert lines == ["heading", *(f"{at}.0" for at in range(7)), "more than 7", "heading", "0.0", "1.0"]


def test_where_lines_are_scarce_the_first_list_gets_them() -> None:
    assert [line.plain for line in shared([listed(1, 1), listed(1, 1)], 1)] == ["more than 0"]
    assert shared([listed(1), listed(1)], 0) == []


@given(st.lists(st.lists(st.integers(1, 4), max_size=6), max_size=4), st.integers(0, 40))
def test_lists_never_take_more_lines_than_there_are(heights: list[list[int]], height: int) -> None:
    lists = [listed(*each) for each in heights]
    shown = shared(lists, height)
    assert len(shown) <= height
    if sum(each.height for each in lists) <= height:
        assert len(shown) == sum(each.height for each in lists)
