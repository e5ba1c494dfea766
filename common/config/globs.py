"""Globs on tables, as the pipeline file has them: what is one, and which tables a list of them chooses."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator

from cutline.common.config.faults import fault
from cutline.common.table_id import spellings, split_names, split_table_id

SYSTEM_SCHEMAS = frozenset({"mysql", "sys", "information_schema", "performance_schema"})


def glob_problem(pattern: object) -> tuple[str, str] | None:
    """The pattern with the reason why it is not a glob on tables, and what to write; None if it is one."""
    if isinstance(pattern, str):
        exclusion, glob = _halves(pattern)
        with suppress(ValueError):
            names = split_names(glob)
            if len(names) > 2 and all(names):
                written = " or ".join(repr(exclusion + each) for each in spellings(glob))
                return f"{pattern!r}, which is ambiguous since a name in it has a dot", f"write it as {written}"
            if len(names) == 2 and all(names) and not glob.startswith("!"):
                return None
    return (
        f'{pattern!r}, which is not a glob on db.table, as in "shop.*" or "!shop.tmp_*"',
        'a name with a dot, or with "!" at its beginning, is written in backticks, as in "`my.db`.*"',
    )


def _glob(pattern: str) -> str:
    if (problem := glob_problem(pattern)) is not None:
        raise fault(f"has {problem[0]}", problem[1])
    return pattern


def _halves(pattern: str) -> tuple[str, str]:
    """The `!` of an exclusion, or nothing, and the glob after it."""
    return ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)


TableGlob = Annotated[str, AfterValidator(_glob)]
"""A glob on tables, or one that excludes (`!`)."""


def select_tables(patterns: Iterable[str], tables: Iterable[str]) -> tuple[str, ...]:
    """Return those of `tables` (ids) that a glob includes and no `!` glob excludes, sorted.

    The two halves of a glob are compared with the database and the table, so `*` matches dots in a name and never the
    one between the names. An exclusion wins wherever it is in the list. Case matters; `_` and `%` have no special
    meaning. The server's own schemas (mysql, sys, ...) are never captured. The result may be empty: the caller decides
    whether that is an error.
    """
    includes: list[tuple[str, ...]] = []
    excludes: list[tuple[str, ...]] = []
    for pattern in patterns:
        exclusion, glob = _halves(pattern)
        (excludes if exclusion else includes).append(split_names(glob))

    def matches(globs: list[tuple[str, ...]], schema: str, table: str) -> bool:
        return any(fnmatchcase(schema, names[0]) and fnmatchcase(table, names[1]) for names in globs)

    chosen = set()
    for name in tables:
        schema, table = split_table_id(name)
        if (
            schema.lower() not in SYSTEM_SCHEMAS
            and matches(includes, schema, table)
            and not matches(excludes, schema, table)
        ):
            chosen.add(name)
    return tuple(sorted(chosen))
