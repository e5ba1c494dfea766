"""The names of the files that Cutline writes into a lake table: they say which start wrote them, for which table.

`cutline-{id}-{w}-{table}-{random}.{kind}`, where `{id}` is that of the pipeline's life (in files of versions without
ids: its name), and `{table}` is the end of the table's UUID in Iceberg: tables may share a folder, and a table that was
dropped and made anew is another one.
"""

from __future__ import annotations

import re


def file_prefix(life: str, w: int, uuid: str) -> str:
    """Return how the names of the files begin that start `w` of a life writes for the table with this UUID."""
    return f"cutline-{life}-{w}-{uuid[-12:]}-"


def writer_of(name: str, uuid: str) -> tuple[str, int] | None:
    """Return who wrote a file of this name for this table: the id of the life, or the pipeline's name, and the number
    of the start. None: the name is not of ours, or for another table."""
    known = rf"cutline-([A-Za-z0-9][A-Za-z0-9_-]*)-(\d+)-{re.escape(uuid[-12:])}-[0-9a-f]{{32}}\.[a-z]+"
    match = re.fullmatch(known, name)
    return None if match is None else (match[1], int(match[2]))
