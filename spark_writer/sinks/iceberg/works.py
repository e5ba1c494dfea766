"""Iceberg's works: the content of a table is a snapshot, its place the branch of the start that made it (pure).

In a record a content is the snapshot's id in decimal digits, and a place is the branch's name.
"""

from __future__ import annotations

from typing import Any

from cutline.common.store.records import Content, Place, Publication, Work


def branch_of(w: int) -> str:
    """The branch, in every lake table, that only start `w` writes and nobody reads."""
    return f"staging_{w}"


def content_of(snapshot_id: int) -> Content:
    """A snapshot as a record names it."""
    return Content(str(snapshot_id))


def snapshot_of(content: Content) -> int:
    """The id of the snapshot that a record names."""
    return int(content)


def work_of(snapshot_id: int, branch: str, *, generation: int, schema: str, rows: int | None = None) -> Work:
    """The work at the head of a branch; `schema` is its hash, `rows` its living rows."""
    return Work(content=content_of(snapshot_id), place=Place(branch), generation=generation, schema=schema, rows=rows)


def living_rows(summary: Any) -> int | None:
    """The rows of a snapshot, by its summary, a mapping of Python or of Java: those of its data files without the
    deleted ones; None if the summary does not tell."""
    records, deleted = summary.get("total-records"), summary.get("total-position-deletes")
    if records is None or int(summary.get("total-equality-deletes") or 0):
        return None
    return max(0, int(records) - int(deleted or 0))


def tags_of(record: Publication, table_id: str) -> dict[str, int]:
    """The tags that a savepoint has on a table, each with its snapshot: so other users who expire snapshots keep them.

    `checkpoint_N` is the cut, where `main` shows it. Else `main_N` is the older cut that `main` shows, and `work_N`
    what is ready of the next generation.
    """
    table, n = record.tables[table_id], record.n
    if table.shown:
        return {} if table.main is None else {f"checkpoint_{n}": snapshot_of(table.main.content)}
    found = {f"main_{n}": table.main, f"work_{n}": table.work}
    return {name: snapshot_of(named.content) for name, named in found.items() if named is not None}
