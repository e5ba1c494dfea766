"""What commands print: JSON for scripts, else plain columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, TypeVar

import click
import yaml
from pydantic import BaseModel

from cutline.services.run.terminal import duration

T = TypeVar("T")
Column = tuple[str, Callable[[Any], object]]
"""A heading, and the cell of an item."""


def plain(found: Any) -> Any:
    """An answer of the API as JSON-able data, by the names of the API."""
    if isinstance(found, BaseModel):
        return found.model_dump(mode="json", by_alias=True)
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items()}
    return [plain(item) for item in found] if isinstance(found, list) else found


def because(found: Any) -> str:
    """The cause of an answer, and what to do about it; "" without one."""
    return "; ".join(filter(None, (found.cause, found.remedy)))


def print_json(found: Any) -> None:
    """Print an answer as JSON."""
    click.echo(json.dumps(plain(found), indent=1, ensure_ascii=False))


def print_columns(items: Sequence[Any], columns: Sequence[Column], *, none: str) -> None:
    """Print a line for each item below the headings; the sentence `none` without items."""
    if not items:
        click.echo(none)
        return
    lines = [[heading for heading, _ in columns]] + [[_text(cell(item)) for _, cell in columns] for item in items]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_fields(found: BaseModel) -> None:
    """Print a line for each field of one thing; what a field has inside stands below it, as YAML."""
    fields = plain(found)
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        if isinstance(value, dict | list) and value:
            inside = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
            click.echo(f"{name}\n{indent(inside.rstrip(), '  ')}")
        else:
            shown = "" if isinstance(value, dict | list) else _text(value)
            click.echo(f"{name.ljust(width)}  {shown}".rstrip())


def when(moment: float | None) -> str:
    """A time for people: UTC, to the second."""
    return "" if moment is None else f"{datetime.fromtimestamp(moment, tz=UTC):%Y-%m-%d %H:%M:%S}Z"


def span(seconds: float | None) -> str:
    """A duration for people."""
    return "" if seconds is None else duration(seconds)


def size(count: float | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
