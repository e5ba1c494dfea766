"""The names of what Cutline writes into a warehouse: tables' folders, and the files in them.

A table's folder is made of the source's names, which may be anything: `..`, a path, control characters, 64 letters of 4
bytes. `folder_name` spells each as a name that file systems, object stores and addresses take as it is, and that is no
other name's. Ordinary names stay as they are.

A file's name says which start wrote it, for which table:
`cutline-{id}-{w}-{table}-{random}.{kind}`, where `{id}` is that of the pipeline's life (in files of versions without
ids: its name), and `{table}` is the end of the table's UUID in Iceberg: tables may share a folder, and a table that was
dropped and made anew is another one.
"""

from __future__ import annotations

import hashlib
import re

CATALOG = "lake"
"""The name of a pipeline's catalogue in its Spark session, and so in names and messages."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_ESCAPE = "!"
_LONGEST = 120
_KEPT = 80


def folder_name(name: str) -> str:
    """Spell a name as the name of a folder: letters, digits, `-`, `_` and inner dots stay, each other byte of its UTF-8
    becomes `!` and two hex digits. A long one ends in `!!` and a hash instead. Of two names the folders differ.
    """
    raw = name.encode("utf-8", "surrogatepass")
    last = len(raw) - 1
    spelled = "".join(
        chr(byte) if byte in _PLAIN or (byte == 0x2E and 0 < at < last) else f"{_ESCAPE}{byte:02x}"
        for at, byte in enumerate(raw)
    )
    if len(spelled) <= _LONGEST:
        return spelled or _ESCAPE
    return f"{spelled[:_KEPT]}{_ESCAPE}{_ESCAPE}{hashlib.sha256(raw).hexdigest()[:32]}"


def leads_elsewhere(name: str) -> bool:
    """Whether a folder of just this name may be another one than the name's own."""
    return not name.strip(". ") or any(letter in "/\\" or ord(letter) < 0x20 for letter in name)


def file_prefix(life: str, w: int, uuid: str) -> str:
    """Return how the names of the files begin that start `w` of a life writes for the table with this UUID."""
    return f"cutline-{life}-{w}-{uuid[-12:]}-"


def writer_of(name: str, uuid: str) -> tuple[str, int] | None:
    """Return who wrote a file of this name for this table: the id of the life, or the pipeline's name, and the number
    of the start. None: the name is not of ours, or for another table."""
    known = rf"cutline-([A-Za-z0-9][A-Za-z0-9_-]*)-(\d+)-{re.escape(uuid[-12:])}-[0-9a-f]{{32}}\.[a-z]+"
    match = re.fullmatch(known, name)
    return None if match is None else (match[1], int(match[2]))
