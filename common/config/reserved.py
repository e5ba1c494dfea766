"""The names in the lake that are Cutline's own: no table of a source can have them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

NAMESPACE = "_cutline"
PUBLICATIONS, CUTS = "publications", "cuts"
_OWN = (f"{NAMESPACE}.{PUBLICATIONS}", f"{NAMESPACE}.{CUTS}")


def is_own(table_id: str) -> bool:
    """Whether a lake table is one of Cutline's own, which belongs to no pipeline."""
    return table_id in _OWN


def taken(tables: Iterable[str], *, folds_case: bool = False) -> Iterator[str]:
    """A fault for each of these tables of a source that the lake could not tell from one of Cutline's own;
    `folds_case`: it stores names in lower case."""
    for table_id in tables:
        if is_own(table_id.lower() if folds_case else table_id):
            yield (
                f"the lake has its publications in {NAMESPACE}, so {table_id} can't be copied there: exclude it by"
                f' "!{table_id}" in tables, or rename it at the source'
            )
