"""A table's identity, the pair of its database and its name, as text (pure): the only file that joins and splits them.

Names may have dots, so `database.table` alone is ambiguous: `my.db.t` is table `t` of database `my.db`, or table
`db.t` of `my`. As in SQL, a name with a dot, or with a backtick at its beginning, is quoted by backticks, in which a
backtick is doubled: `` `my.db`.t `` and `` my.`db.t` ``; so is one that begins with `!`, which before a glob means an
exclusion. All others are plain, so nearly all ids are: `shop.orders`. An id is injective: two pairs never share one.
Records, messages, the API and the lake's properties have tables by it.

A glob on tables is written in the same way; wildcards work inside backticks too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from cutline.common.errors import ConfigError

_NAME = re.compile(r"`((?:[^`]|``)*)`|((?:[^`.][^.]*)?)", re.DOTALL)


def table_id_of(database: str, table: str) -> str:
    """The id of a table, for any two names."""
    return f"{_quoted(database)}.{_quoted(table)}"


@lru_cache(maxsize=65_536)
def split_table_id(table_id: str) -> tuple[str, str]:
    """Database and table of an id: the inverse of `table_id_of`.

    ConfigError for any other text.
    """
    try:
        names = split_names(table_id)
    except ValueError:
        names = ()
    if len(names) == 2 and table_id_of(*names) == table_id:
        return names[0], names[1]
    raise ConfigError(
        f"{table_id!r} is not the id of a table",
        "write it with its database, as shop.orders, and a name with a dot in backticks, as `my.db`.t",
    )


def split_names(text: str) -> tuple[str, ...]:
    """The names in a text, which dots outside of backticks separate; needless backticks are allowed. ValueError if a
    name in backticks has no end, or is followed by anything but a dot."""
    names, at = [], 0
    while True:
        found = _NAME.match(text, at)
        if found is None or (found.end() < len(text) and text[found.end()] != "."):
            raise ValueError(f"{text!r} has a backtick that does not enclose a whole name")
        names.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        at = found.end() + 1
        if at > len(text):
            return tuple(names)


def unquoted(table_id: str) -> str:
    """`database.table` without backticks, as others may spell it; not an id, since two tables may share it."""
    return ".".join(split_table_id(table_id))


def glob_of(table_id: str) -> str:
    """The glob that matches this table and no other, whatever characters its names have."""
    return table_id_of(*(escaped(name) for name in split_table_id(table_id)))


def escaped(name: str) -> str:
    """A half of a glob that matches this name and no other."""
    return re.sub(r"[*?[]", r"[\g<0>]", name)


def spellings(text: str) -> list[str]:
    """The ids, or globs, that a text with several dots outside of backticks may mean."""
    names = split_names(text)
    return [table_id_of(".".join(names[:at]), ".".join(names[at:])) for at in range(1, len(names))]


def meant(text: str, known: Iterable[str]) -> str:
    """The id that a person means by a text: itself, with needless backticks removed, or with more than one dot outside
    of backticks the only one of `known` that it can mean. ConfigError if it is not clear."""
    try:
        candidates = spellings(text)
    except ValueError as error:
        raise ConfigError(f"{error}", "write a table as shop.orders, or `my.db`.t") from error
    if not candidates:
        raise ConfigError(f"{text!r} is not a table", "write it with its database, as shop.orders")
    if len(candidates) > 1:
        existing = set(known)
        candidates = [each for each in candidates if each in existing] or candidates
    if len(candidates) > 1:
        raise ConfigError(f"{text} is ambiguous, since a name has a dot", f"write {' or '.join(candidates)}")
    return candidates[0]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`" if "." in name or name.startswith(("`", "!")) else name
