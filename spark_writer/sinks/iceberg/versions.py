"""How many earlier metadata files a table keeps: those that were current within the grace.

Each commit writes a metadata file and lists the one before it; Iceberg deletes those that fall off the list, whose
length is the table property `VERSIONS`. Readers that take a table by its metadata file (DuckDB; `cutline where` prints
it) need it for as long as the snapshots in it. So the length follows the pace of commits, with some room, and is set in
the commits that are made anyway. A length that another user has set stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

VERSIONS = "write.metadata.previous-versions-max"
LEAST = 100
"""As the table is made."""
MOST = 50_000
NOTED_VERSIONS = "cutline.metadata-versions"
"""The property with the number of metadata files that Cutline last let the table keep."""
ROOM = 32
"""The list must be this short of full for more commits before the next look."""


def is_due(listed: int, most: int) -> bool:
    """Whether the list is about to be full, so that files fall off it."""
    return listed >= most - ROOM


def young(made_ms: Sequence[int], since_ms: int) -> int:
    """How many of the listed files were still current after a moment; `made_ms`: when each was made, in order.

    A file is current until the next one is made. A file's time may cost a call, so only a few are looked at.
    """
    low, high = 0, len(made_ms)
    while low < high:
        middle = (low + high) // 2
        if middle + 1 == len(made_ms) or made_ms[middle + 1] > since_ms:
            high = middle
        else:
            low = middle + 1
    return len(made_ms) - low


def wanted(most: int, needed: int) -> int:
    """Return the length of the list for so many young files; `most`, the present one, if it is about right."""
    found = min(MOST, max(LEAST, needed + ROOM + max(ROOM, needed // 8)))
    return found if found > most or 4 * found < 3 * most else most


def kept_versions(base: Any, grace_began: float) -> dict[str, str]:
    """The properties that let a table with this metadata keep the metadata files of the grace, which began then, unless
    another user has set how many it keeps."""
    given, noted = base.property(VERSIONS, str(LEAST)), base.property(NOTED_VERSIONS, str(LEAST))
    if given != noted or not is_due(base.previous_file_count(), int(given)):
        return {}
    needed = young(_Times(base.previousFiles()), int(grace_began * 1000))
    most = str(wanted(int(given), needed))
    return {VERSIONS: most, NOTED_VERSIONS: most} if most != given else {}


class _Times(Sequence[int]):
    """When the earlier metadata files of a table were made, in ms since 1970; each costs a call to the JVM."""

    def __init__(self, listed: Any) -> None:
        self._listed = listed
        self._size = int(listed.size())

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: Any) -> Any:
        return int(self._listed.get(at).timestampMillis())
