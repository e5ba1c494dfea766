"""The names of the files that Cutline writes into a lake table: they say which start wrote them, for which table.

`cutline-{pipeline}-{w}-{table}-{random}.{kind}`, where `{table}` is the end of the table's UUID in Iceberg: tables may
share a folder, and a table that was dropped and made anew is another one.
"""

from __future__ import annotations

import re


def file_prefix(pipeline: str, w: int, uuid: str) -> str:
    """Return how the names of the files begin that start `w` writes for the table with this UUID."""
    return f"cutline-{pipeline}-{w}-{uuid[-12:]}-"


def start_of(name: str, pipeline: str, uuid: str) -> int | None:
    """Return the number of the start that wrote a file of this name for this pipeline and table; None: another did."""
    known = rf"cutline-{re.escape(pipeline)}-(\d+)-{re.escape(uuid[-12:])}-[0-9a-f]{{32}}\.[a-z]+"
    match = re.fullmatch(known, name)
    return None if match is None else int(match[1])
