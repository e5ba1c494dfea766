"""Text that fits a terminal: wrapped paragraphs, grids whose columns shrink, lists that share its height.

A cause or a remedy is wrapped and never cut. In a grid only those columns shrink that say so: a name is elided in the
middle, where names differ least; a figure never is. What has no room is counted.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

GAP = 2
BAR_CELLS, FEWEST_BAR_CELLS = 24, 8
_WRAPPING = Console(file=io.StringIO(), width=80)


def wrapped(text: Text | str, width: int | None, indent: int = 0) -> list[Text]:
    """The lines of a paragraph, all but the first indented by `indent` + 2; in one line if `width` is None."""
    whole = Text(text) if isinstance(text, str) else text
    if width is None:
        return [_indented(whole, indent)]
    found: list[Text] = []
    for line in whole.wrap(_WRAPPING, max(20, width - indent - 2)):
        line.rstrip()
        found.append(_indented(line, indent + (2 if found else 0)))
    return found or [Text()]


def _indented(line: Text, cells: int) -> Text:
    return Text.assemble(" " * cells, line) if cells else line


def elided(name: str, cells: int) -> str:
    """A name in so many cells at most, without its middle if it is longer."""
    if cell_len(name) <= cells:
        return name
    front = max(1, (cells - 1) // 2)
    back = name
    while cell_len(back) > max(0, cells - 1 - front):
        back = back[1:]
    return f"{set_cell_size(name, front).rstrip()}…{back}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A progress bar as a cell; `fraction` is 0..1."""

    fraction: float
    style: str

    def text(self, cells: int) -> Text:
        """The bar in so many cells."""
        done = round(self.fraction * cells)
        return Text.assemble(("━" * done, self.style), ("━" * (cells - done), "bright_black"))


Cell = Text | str | Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a grid. `least`: it may shrink to so many cells; None: it never shrinks. Where even that is too much,
    the columns that may go do, the highest `goes` first; 0: it stays."""

    heading: str
    right: bool = False
    least: int | None = None
    goes: int = 0


def grid(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """The heading and a line for each row, in `width` cells if that is possible. A column without content is left out,
    and so are bars that would become too short."""
    widths = [_natural(column, [row[at] for row in rows]) for at, column in enumerate(columns)]
    bars = [at for at, column in enumerate(columns) if any(isinstance(row[at], Bar) for row in rows)]
    for at in bars:
        others = [cells for place, cells in enumerate(widths) if place != at and cells]
        room = min(BAR_CELLS, width - sum(others) - GAP * len(others))
        widths[at] = room if room >= FEWEST_BAR_CELLS else 0
    _shrink(widths, columns, width)
    lines = [_line(columns, widths, [Text(column.heading, style="bold") for column in columns])]
    lines += [_line(columns, widths, row) for row in rows]
    return lines


def _natural(column: Column, cells: Sequence[Cell]) -> int:
    texts = [cell_len(_plain(cell)) for cell in cells if not isinstance(cell, Bar)]
    return max(cell_len(column.heading), *texts) if any(texts) else 0


def _shrink(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Take cells from the widest column that may shrink until all fit, or none can give more; then whole columns."""
    while sum(widths) + GAP * (sum(1 for cells in widths if cells) - 1) > width:
        able = [at for at, column in enumerate(columns) if column.least is not None and widths[at] > column.least]
        going = [at for at, column in enumerate(columns) if column.goes and widths[at]]
        if able:
            widths[max(able, key=lambda at: widths[at])] -= 1
        elif going:
            widths[max(going, key=lambda at: columns[at].goes)] = 0
        else:
            return


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Cell]) -> Text:
    line = Text()
    for column, cells, cell in zip(columns, widths, row, strict=True):
        if not cells:
            continue
        if line:
            line.append(" " * GAP)
        if isinstance(cell, Bar):
            line.append_text(cell.text(cells))
            continue
        text = Text(cell) if isinstance(cell, str) else cell.copy()
        if text.cell_len > cells:
            text = Text(elided(text.plain, cells), style=text.style)
        padding = " " * (cells - text.cell_len)
        line.append_text(Text.assemble(padding, text) if column.right else Text.assemble(text, padding))
    line.rstrip()
    return line


def _plain(cell: Text | str) -> str:
    return cell if isinstance(cell, str) else cell.plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list that may be shortened: its heading, the lines of each item (the most important first), and the line that
    counts those left out, by the number of those that are shown."""

    items: Sequence[Sequence[Text]]
    more: Callable[[int], Text]
    heading: Sequence[Text] = ()

    @property
    def height(self) -> int:
        """How many lines it has."""
        return len(self.heading) + sum(map(len, self.items)) if self.items else 0

    def lines(self, height: int | None) -> list[Text]:
        """What fits into so many lines, one of which then counts the rest; all of it if `height` is None."""
        whole = [*self.heading, *(line for item in self.items for line in item)]
        if not self.items or height is None or self.height <= height:
            return whole if self.items else []
        room, shown = height - 1 - len(self.heading), 0
        for item in self.items:
            if len(item) > room:
                break
            room, shown = room - len(item), shown + 1
        kept = [line for item in self.items[:shown] for line in item]
        return [*(self.heading if shown else ()), *kept, self.more(shown)][: max(0, height)]


def shared(lists: Sequence[Items], height: int | None) -> list[Text]:
    """Several lists in so many lines: each gets what it needs, or an equal share of what the others leave."""
    if height is None:
        return [line for each in lists for line in each.lines(None)]
    shares, waiting, rest = [0] * len(lists), [at for at, each in enumerate(lists) if each.height], max(0, height)
    while waiting:
        share = rest // len(waiting)
        content = [at for at in waiting if lists[at].height <= share]
        for at in content or waiting:
            shares[at] = min(lists[at].height, share)
        rest -= sum(shares[at] for at in content or waiting)
        waiting = [at for at in waiting if at not in content] if content else []
    for at, each in enumerate(lists):  # what is left goes to the most important ones
        extra = min(rest, each.height - shares[at])
        shares[at], rest = shares[at] + extra, rest - extra
    return [line for at, each in enumerate(lists) for line in each.lines(shares[at])]
