"""The names in the lake that are Cutline's own: no table of a source can have them (pure).

They lie in one namespace, `sink.own_namespace` of a pipeline. Pipelines of one lake may share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cutline.common.causes import Cause, Code

NAMESPACE = "_cutline"
"""The namespace, unless a pipeline chooses another one."""
PUBLICATIONS, CUTS = "publications", "cuts"


def is_own(table_id: str, namespace: str) -> bool:
    """Whether a lake table is one of Cutline's own, which belongs to no pipeline."""
    return table_id in (f"{namespace}.{PUBLICATIONS}", f"{namespace}.{CUTS}")


def taken(tables: Iterable[str], namespace: str, *, folds_case: bool = False, begun: bool = True) -> Iterator[Cause]:
    """A fault for each of these tables of a source that the lake could not tell from one of Cutline's own;
    `folds_case`: it stores names in lower case. A pipeline that has not `begun` can still choose another namespace."""
    for table_id in tables:
        if is_own(table_id.lower() if folds_case else table_id, namespace):
            choice = "" if begun else ", set sink.own_namespace to another name"
            yield Cause(
                Code.NAME,
                f"the lake has its publications in {namespace}, so {table_id} can't be copied there",
                f'exclude it by "!{table_id}" in tables{choice}, or rename it at the source',
            )
