"""What other users have made of `main` of a lake table since Cutline last moved it.

The table's property `cutline.published` = [w, N, snapshot] names what Cutline last showed there. `main` names another
snapshot, or the table has other columns, only if somebody else committed: Cutline changes all of it in one swap.

- *A rewrite*: every commit since is Iceberg's operation `replace` (other files, equal rows). Cutline goes on from it.
- *Anything else* waits for a person, who accepts it (Cutline goes on from it) or overwrites it. The choice is the
  property `cutline.choice`, bound to the snapshot and the columns that the person saw: a later commit of others needs
  another choice.

`undone` is the one rule: whether moving `main` to a snapshot undoes something. Nothing here commits or waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cutline.spark_writer.sinks.contract import ACCEPT, OVERWRITE, Foreign
from cutline.spark_writer.sinks.iceberg.works import content_of

PUBLISHED = "cutline.published"
CHOICE = "cutline.choice"
OURS = "cutline.w"
"""The property in the summary of each snapshot that Cutline makes."""
_AUTHOR = ("engine-name", "engine-version", "app-id", "spark.app.id", "flink.job-id", "trino_query_id")
_ROWS = {
    "records added": ("added-records", None),
    "records deleted": ("deleted-records", None),
    "rows deleted by position": ("added-position-deletes", "removed-position-deletes"),
}
"""Unit -> the number in a snapshot's summary, and the one to subtract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What Cutline last showed by `main`: publication `n` of start `w` as `snapshot_id`; (0, 0, None): nothing."""

    w: int
    n: int
    snapshot_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One snapshot of `main` with its summary, made at `made_ms` (since 1970)."""

    snapshot_id: int
    operation: str
    made_ms: int
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """What other users made of `main`, where Cutline had `shown` another snapshot or other columns.

    `main` is its snapshot (None: they removed it), `head` that snapshot's commit, `moved_ms` the time since 1970 at
    which `main` was moved there. `commits` lead from the shown snapshot to `main`, newest first; () if `main` does not
    descend from it. `columns` are the differences of the columns, `schema_id` is the table's current schema. `chosen`
    is a person's choice about exactly this.
    """

    shown: Shown
    main: int | None
    schema_id: int
    head: Commit | None
    moved_ms: int
    commits: tuple[Commit, ...]
    columns: tuple[str, ...]
    chosen: str | None = None

    @property
    def rewrites(self) -> bool:
        """Whether only files changed, and no row or column."""
        kept = not self.columns and self.commits
        return bool(kept) and all(each.operation == "replace" and OURS not in each.summary for each in self.commits)

    @property
    def seen(self) -> str:
        """The state that a choice is about."""
        return f"{self.main}/{self.schema_id}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices that a person has. Columns are the source's, so a change of theirs can't be accepted."""
        can_accept = self.main is not None and not self.columns and self.shown.snapshot_id is not None
        return (ACCEPT, OVERWRITE) if can_accept else (OVERWRITE,)

    def describe(self, table: str) -> str:
        """Return who committed, when and what, as a clause."""
        who = "another user" if self.head is None else _author(self.head)
        if self.columns:
            return f"{who} changed the columns of the lake table {table} ({', '.join(self.columns)})"
        if self.head is None:
            return f"{who} removed all rows of the lake table {table}"
        when = _time(self.moved_ms)
        if not self.commits:
            snapshot = f"snapshot {self.head.snapshot_id} of {_time(self.head.made_ms)}"
            return f"another user set the lake table {table} at {when} to {snapshot}"
        more = f", the last of {len(self.commits)}" if len(self.commits) > 1 else ""
        return f"{who} committed to the lake table {table} at {when} ({_what(self.head)}{more})"

    @property
    def remedy(self) -> str:
        """What the person can do."""
        if ACCEPT in self.choices:
            return "keep that by `cutline lake accept`, or replace it by `cutline lake overwrite`"
        return "change that back and retry the table, or replace it by `cutline lake overwrite`"


def shown(metadata: Any) -> Shown:
    """Read what Cutline last showed, from Iceberg's TableMetadata."""
    w, n, snapshot_id = json.loads(metadata.property(PUBLISHED, "[0, 0, null]"))
    return Shown(w=w, n=n, snapshot_id=snapshot_id)


def theirs(metadata: Any) -> Theirs | None:
    """Return what others made of `main` since Cutline last moved it; None if nothing."""
    ours, main, schema_id = shown(metadata), _main(metadata), int(metadata.currentSchemaId())
    columns: tuple[str, ...] = ()
    known = metadata.snapshot(ours.snapshot_id) if ours.snapshot_id is not None else None
    if known is not None and int(known.schemaId()) != schema_id:
        columns = _columns(metadata.schemasById().get(int(known.schemaId())), metadata.schema())
    if main == ours.snapshot_id and not columns:
        return None
    head = None if main is None else _commit(metadata.snapshot(main))
    choice, *about = json.loads(metadata.property(CHOICE, "[null]"))
    return Theirs(
        shown=ours,
        main=main,
        schema_id=schema_id,
        head=head if main != ours.snapshot_id else None,
        moved_ms=_moved_ms(metadata),
        commits=_commits(metadata, main, ours.snapshot_id),
        columns=columns,
        chosen=choice if about == [main, schema_id] else None,
    )


def foreign_of(found: Theirs) -> Foreign:
    """What others made of `main`, as the contract of sinks has it."""
    shown_by_us = found.shown.snapshot_id
    return Foreign(
        shown_n=found.shown.n,
        shown=None if shown_by_us is None else content_of(shown_by_us),
        content=None if found.main is None else content_of(found.main),
        seen=found.seen,
        choices=found.choices,
        chosen=found.chosen,
    )


def undone(metadata: Any, snapshot_id: int | None) -> Theirs | None:
    """Return what of others a move of `main` to a snapshot (None: one made from nothing) would undo; None if nothing.

    A rewrite, and a commit that a person accepted, stay if the snapshot was made on top of them, so not by way of what
    Cutline had shown: after a rollback that leads to `main` too.
    """
    found = theirs(metadata)
    if found is None or found.chosen == OVERWRITE:
        return None
    if (found.rewrites or found.chosen == ACCEPT) and _on_top(metadata, snapshot_id, found):
        return None
    return found


def _main(metadata: Any) -> int | None:
    ref = metadata.ref("main")
    return None if ref is None else int(ref.snapshotId())


def _moved_ms(metadata: Any) -> int:
    log = metadata.snapshotLog()
    return int(log.get(log.size() - 1).timestampMillis()) if log.size() else 0


def _commit(snapshot: Any) -> Commit:
    return Commit(
        snapshot_id=int(snapshot.snapshotId()),
        operation=str(snapshot.operation()),
        made_ms=int(snapshot.timestampMillis()),
        summary=dict(snapshot.summary()),
    )


def _commits(metadata: Any, at: int | None, end: int | None) -> tuple[Commit, ...]:
    """Return the commits from snapshot `at` back to `end`, without it; () if they don't lead there."""
    found = []
    while at != end:
        snapshot = None if at is None else metadata.snapshot(at)
        if snapshot is None:
            return ()
        found.append(_commit(snapshot))
        at = snapshot.parentId()
    return tuple(found)


def _on_top(metadata: Any, at: int | None, found: Theirs) -> bool:
    while at not in (None, found.main, found.shown.snapshot_id):
        snapshot = metadata.snapshot(at)
        at = None if snapshot is None else snapshot.parentId()
    return at is not None and at == found.main


def _columns(before: Any, after: Any) -> tuple[str, ...]:
    """Describe how columns differ; () if at most in their comments, which other users may change (table.py)."""
    old, new = ({str(field.name()): field for field in schema.columns()} for schema in (before, after))
    found = [f"without {name}" for name in old if name not in new] + [f"with {name}" for name in new if name not in old]
    for name, field in new.items():
        was = old.get(name)
        if was is None:
            continue
        if str(was.type()) != str(field.type()):
            found.append(f"{name} is {field.type()} instead of {was.type()}")
        if bool(was.isOptional()) != bool(field.isOptional()):
            found.append(f"{name} {'may' if field.isOptional() else 'may not'} be null")
        if (was.writeDefault(), was.initialDefault()) != (field.writeDefault(), field.initialDefault()):
            found.append(f"{name} has another default")
        if was.fieldId() != field.fieldId():
            found.append(f"{name} is another column of that name")
    if not found and list(old) != list(new):
        found.append("in another order")
    return tuple(found)


def _author(commit: Commit) -> str:
    known = ", ".join(f"{name} {commit.summary[name]}" for name in _AUTHOR if name in commit.summary)
    return f"another user ({known})" if known else "another user"


def _what(commit: Commit) -> str:
    counts = {
        unit: int(commit.summary.get(more, 0)) - int(commit.summary.get(less or "", 0))
        for unit, (more, less) in _ROWS.items()
    }
    rows = [f"{count} {unit}" for unit, count in counts.items() if count > 0]
    return ", ".join([f"snapshot {commit.snapshot_id}", f"operation {commit.operation}", *rows])


def _time(made_ms: int) -> str:
    return f"{datetime.fromtimestamp(made_ms / 1000, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
