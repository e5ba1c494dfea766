"""Bodies of a pipeline's JSON files, in envelopes, and the numbers that name files.

Errors of `get`: ProtocolError if the bytes are corrupt, ConfigError for another version's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cutline.common.store.envelope import opened, sealed
from cutline.common.store.lives import Folder

_NUMBERED = re.compile(r"(\d{10})\.json")


def numbered(below: str, number: int) -> str:
    """The path of the file with this number in a folder below the pipeline's."""
    return f"{below}/{number:010d}.json"


def numbers(folder: Folder, below: str) -> list[int]:
    """The numbers of the files in a folder below, ascending. Costs a listing."""
    return sorted(int(match[1]) for name in folder.names(below) if (match := _NUMBERED.fullmatch(name)))


def get(folder: Folder, path: str) -> dict[str, Any] | None:
    """The body of a file; None if there is no such file."""
    data = folder.read(path)
    return None if data is None else opened(data, folder.location(path))


def put(folder: Folder, path: str, body: Mapping[str, Any]) -> bool:
    """Put a file if absent, durable on return; False if the name is taken."""
    return folder.create(path, sealed(body))
