"""What commands print: JSON for scripts, else plain columns and fields, with times, durations and sizes as such."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any, TypeVar

import click
import yaml
from pydantic import BaseModel

from cutline.services.run.figures import dated, duration, number, size

T = TypeVar("T")
Column = tuple[str, Callable[[Any], object]]
"""A heading, and the cell of an item."""
AS_IT_IS = frozenset({"definition", "arguments", "position", "labels"})
"""Fields whose content is somebody's own, which is shown as it was written."""
_TIMES = re.compile(r"(?:.*_)?(?:at|time|since|until|as_of)")
_SPANS = re.compile(r"(?:.*_)?seconds")
_SIZES = re.compile(r"(?:.*_)?bytes")
_NAMES = frozenset({
    "number", "version", "version_in_force", "epoch", "generation", "checkpoint", "publication", "command", "slot",
    "published_checkpoint", "since_checkpoint", "snapshot_id", "schema_id", "field_id", "pid", "first", "last",
})  # fmt: skip
"""Fields whose number names a thing, and counts nothing."""


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


def name_of(number: int | None) -> str:
    """A number that names a thing, as a cell: without separators between thousands."""
    return "" if number is None else str(number)


def print_json(found: Any) -> None:
    """Print an answer as JSON."""
    click.echo(json.dumps(plain(found), indent=1, ensure_ascii=False))


def print_columns(items: Sequence[Any], columns: Sequence[Column], *, none: str) -> None:
    """Print a line for each item below the headings; the sentence `none` without items.

    A number is a count; for one that names a thing there is `name_of`.
    """
    if not items:
        click.echo(none)
        return
    lines = [[heading for heading, _ in columns]] + [[_text(cell(item)) for _, cell in columns] for item in items]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_fields(found: BaseModel) -> None:
    """Print a line for each field of one thing; what a field has inside stands below it."""
    fields, now = plain(found), time.time()
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        if isinstance(value, dict | list) and value:
            click.echo(f"{name}\n{indent(_inside(name, value, now), '  ')}")
        else:
            text = "" if isinstance(value, dict | list) else _text(for_people(name, value, now))
            click.echo(f"{name.ljust(width)}  {text}".rstrip())


def _inside(name: str, value: Any, now: float) -> str:
    if name in AS_IT_IS:
        return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)).rstrip()
    return "\n".join(_outline(for_people(name, value, now)))


def _outline(value: Any) -> list[str]:
    """Lines of what people read, indented as in YAML."""
    if isinstance(value, dict):
        lines = []
        for key, each in value.items():
            nested = isinstance(each, dict | list) and each
            lines += [f"{key}:", *(f"  {line}" for line in _outline(each))] if nested else [f"{key}: {_text(each)}"]
        return [line.rstrip() for line in lines]
    if isinstance(value, list):
        items = [_outline(each) for each in value]
        return [("  " if at else "- ") + line for item in items for at, line in enumerate(item)]
    return [_text(value)]


def for_people(name: str, value: Any, now: float) -> Any:
    """The value of a field of this name as people read it: a time with its age, a duration, a size, a count."""
    if name in AS_IT_IS:
        return value
    if isinstance(value, dict):
        return {
            key: for_people("seconds" if name == "tables" and isinstance(each, float) else key, each, now)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [for_people(name, each, now) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if _TIMES.fullmatch(name):
        return dated(value, now)
    if _SPANS.fullmatch(name):
        return duration(value)
    if _SIZES.fullmatch(name):
        return size(value)
    return str(value) if name in _NAMES else number(value)


def _text(value: object) -> str:
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int) else str(value)
