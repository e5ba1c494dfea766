"""One lake table: its branches, its contents, and the commits that Cutline makes to it.

Every commit is one swap of the table's metadata, made by Iceberg's table API from a base that we have read. If another
commit came in between, the swap is refused (`CommitFailedException`) and prepared again from the new metadata, a few
times. The caller handles any other answer. Nothing here uses Spark SQL's view of a table, for this reason:

**A new column is usable on staging before `main` shows it.** A snapshot carries the id of the schema it was made with,
and a table has one *current* schema, which readers of `main` get. So a staging commit runs in a transaction that makes
the new schema current, adds the snapshot, and makes the old schema current again; all three are one metadata file. Data
files carry field ids and are added with their metrics, so writing them does not need the current schema either. `main`
moves by one such swap too: the snapshot's schema becomes current, `main` names the snapshot, `cutline.published` is set
to [w, N, snapshot], and a kept cut gets its tag. So a rename, a dropped column or a generation with other types shows
at its own cut, never before, and no hidden column names are needed.

Python decides by the facts of the metadata (metadata.py); few calls to the JVM then do a commit (TableCalls.java).

`main` never moves over a commit of another user (foreign.py) that changed rows or columns, until a person chooses.

A change deletes by deletion vector (locating.py finds the positions of a batch's keys), in format version 2 by
position-delete file (position_deletes.py), and the new images of the rows are added in the same commit (`RowDelta`).
Each commit is followed by a sync (durable.py).
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError

from cutline.common.errors import ConfigError, Unavailable
from cutline.common.schema import TableSchema
from cutline.common.table_id import split_table_id
from cutline.spark_writer.sinks.contract import ACCEPT, TableFault
from cutline.spark_writer.sinks.iceberg.claiming import check_owner, marks_of, taken_over
from cutline.spark_writer.sinks.iceberg.columns import OFFSET, Layout, key_ids, lay_out, quoted
from cutline.spark_writer.sinks.iceberg.dead_rows import DeadRows, living
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, bitmap_of, of_java
from cutline.spark_writer.sinks.iceberg.durable import local_path, sync_above, sync_files
from cutline.spark_writer.sinks.iceberg.faults import foreign_commit, snapshot_lost
from cutline.spark_writer.sinks.iceberg.files import (
    Change,
    Contents,
    DataFile,
    Files,
    Lineage,
    entry_of,
    has_no_ids,
    planned,
)
from cutline.spark_writer.sinks.iceberg.foreign import CHOICE, PUBLISHED, Theirs, shown, theirs, undone
from cutline.spark_writer.sinks.iceberg.form import (
    COMMENTS,
    SORT_ORDER,
    SPEC,
    UNPARTITIONED,
    UNSORTED,
    check_files,
    check_partition,
    comments_of,
    divided_and_sorted,
    noted_comments,
    order_of,
    their_order,
    with_spec,
)
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, failing_as, is_conflict
from cutline.spark_writer.sinks.iceberg.key_index import Found, KeyIndex
from cutline.spark_writer.sinks.iceberg.leftovers import removed_after
from cutline.spark_writer.sinks.iceberg.lineage import NONE, row_ids_at
from cutline.spark_writer.sinks.iceberg.locating import locate, rows_to_scan
from cutline.spark_writer.sinks.iceberg.metadata import Metadata
from cutline.spark_writer.sinks.iceberg.naming import CATALOG, file_prefix
from cutline.spark_writer.sinks.iceberg.objects import Rights
from cutline.spark_writer.sinks.iceberg.owner import Owner, Relation
from cutline.spark_writer.sinks.iceberg.partitioning import PARTITION
from cutline.spark_writer.sinks.iceberg.position_deletes import write_deleted
from cutline.spark_writer.sinks.iceberg.refs import new_tags, older_branches
from cutline.spark_writer.sinks.iceberg.sorting import SORT, fitting
from cutline.spark_writer.sinks.iceberg.versions import kept_versions
from cutline.spark_writer.sinks.iceberg.works import branch_of

logger = logging.getLogger("cutline.spark_writer")
FORMAT_VERSION = 3
"""The format version of a table unless the settings say otherwise."""
VERSION = "cutline.format-version"
"""The table property with the format version that Cutline gave the table; older tables lack it."""
CONFLICTS = 5
"""The number of attempts at a commit while others commit to the table at the same time."""
PAUSE_SECONDS = 0.1
"""The pause before the third attempt is up to this long, before the fourth up to twice as long, and so on."""

Committed = TypeVar("Committed")
Changes = dict[str, Any]
"""Changes to a table's metadata, as `apply` in TableCalls.java takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the settings ask for: a table's format version, and the sort and partition of its next generation."""

    version: int = FORMAT_VERSION
    sort: Sequence[str] = ()
    partition: Sequence[str] = ()


class LakeTable:
    """One lake table. One thread at a time; `refresh` before reading what others may have changed.

    `index` is the table's key index, once a start of the Spark writer has set it.
    """

    def __init__(
        self,
        jvm: Jvm,
        owner: Owner,
        table_id: str,
        calls: Any,
        dead_rows: DeadRows | None = None,
        w: int = 0,
        wanted: Wanted = Wanted(),
        grace_began: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Take the table's `TableCalls`, and what the settings ask for; made by `Lake` for start `w`. `grace_began` as
        `Lake` has it.
        """
        self.table_id = table_id
        self.jvm = jvm
        self.calls = calls
        self._metadata: Metadata | None = None
        self.uuid = self.metadata().uuid()
        self._owner = owner
        self._file_prefix = file_prefix(owner.id, w, self.uuid)
        self._contents: Contents | None = None
        self._layout: Layout | None = None
        self._synced: frozenset[str] = frozenset()
        self._dead_rows = dead_rows or DeadRows()
        self.index: KeyIndex | None = None
        self.rights = Rights()
        self._wanted = wanted
        self._order_noticed = False
        self._grace_began = grace_began
        database, name = split_table_id(table_id)
        self.spark_name = ".".join(quoted(part) for part in (CATALOG, database, name))

    @cached_property
    def java(self) -> Any:
        """Iceberg's Table."""
        return self.calls.table()

    def refresh(self) -> None:
        """Read the table's current metadata."""
        self._metadata = Metadata(self.calls, self.calls.refresh())

    def check_owner(self) -> None:
        """Raise TableFault if the table, as last read, is not this pipeline's, or is another source table's."""
        check_owner(self.metadata(), self._owner, self.table_id)

    def claim(self) -> None:
        """Raise as `check_owner`; take the table over if it is another life's and this pipeline may (`taken_over`)."""

        def once() -> None:
            base = self.metadata()
            if self._owner.relation(*marks_of(base)) == Relation.ADOPTED:
                self._swap(taken_over(base, self._owner, self.table_id))

        if self._owner.relation(*marks_of(self.metadata())) == Relation.ADOPTED:
            self.committed(f"the lake table {self.table_id} could not be taken over", once)
            self._layout = None
        self.check_owner()

    def check_writable(self) -> None:
        """Read the table, and raise TableFault if Cutline can't add rows to it in its present form."""
        with failing_as(f"the lake table {self.table_id} could not be read"):
            self.refresh()
            self._check_form()

    def _check_form(self) -> None:
        self.check_owner()
        metadata = self.metadata()
        check_partition(metadata, self.table_id)
        made = metadata.property(VERSION, str(FORMAT_VERSION))
        if str(self.version) != made:
            raise TableFault(
                f"another user set the format version of the lake table {CATALOG}.{self.table_id} from {made} to"
                f" {self.version}",
                "drop the table, and it is read again",
            )

    @property
    def version(self) -> int:
        """The table's format version, as last read."""
        return self.metadata().formatVersion()

    def begin_generation(self, schema: TableSchema, generation: int) -> None:
        """Bring the table to the format version, the order of rows and the partition spec that the settings ask for,
        before the first rows of a generation come. The generation keeps its order and spec, whatever the settings
        become.

        A raise of the version shows at once, as Iceberg keeps one for all snapshots; the spec is not the default one
        until the generation is shown. TableFault if Iceberg can't do it.
        """

        def once() -> None:
            if self.version > self._wanted.version:
                raise TableFault(
                    f"the lake table {CATALOG}.{self.table_id} has format version {self.version} and can't go back to"
                    f" {self._wanted.version}, which format_version asks for",
                    "drop the table, and it is read again",
                )
            made = {VERSION: str(self._wanted.version)}
            self._swap({"format-version": self._wanted.version, "properties": made})

        if self.version != self._wanted.version:
            self.committed(f"the format version of {self.table_id} could not be raised", once)
            self._layout = None
        if self._wanted.partition and self.metadata().property(f"{PARTITION}{generation}", None) is None:
            self.committed(
                f"the partition spec of {self.table_id} could not be added",
                lambda: self._add_spec(schema, generation),
            )
            self._layout = None

    def _add_spec(self, schema: TableSchema, generation: int) -> None:
        """Add a generation's partition spec, with its columns, and note both in the table's properties."""
        layout, base = self.layout(schema, generation), self.metadata().java
        made = with_spec(self.jvm, self.metadata(), layout, self._wanted.partition)
        self.java.operations().commit(base, made)
        self.sync_metadata()

    def theirs(self, snapshot_id: int | None) -> Theirs | None:
        """Read the table; return the rewrite or the accepted commit of others on which work must go on instead of on
        `snapshot_id`, or None. ForeignCommit if a person must choose first.
        """
        with failing_as(f"the lake table {self.table_id} could not be read"):
            self.refresh()
            found = undone(self.metadata(), snapshot_id)
            if found is not None:
                if not found.rewrites and found.chosen != ACCEPT:
                    raise foreign_commit(self.table_id, found)
                check_files(self.jvm, self.java, self.table_id, found.main)
        return found

    def choose(self, choice: str, seen: str) -> None:
        """Keep a person's choice about the commits of others that were `seen`, in the table itself.

        ConfigError if nothing awaits a choice, if others committed since, or if that choice does not exist.
        """

        def once() -> None:
            found = theirs(self.metadata())
            if found is None or found.rewrites:
                raise ConfigError(f"no commit of others to the lake table {self.table_id} awaits a choice")
            if found.seen != seen:
                raise ConfigError(f"others committed to the lake table {self.table_id} again", "look, and choose again")
            if choice not in found.choices:
                raise ConfigError(f"{choice} is no choice for the lake table {self.table_id}")
            if choice == ACCEPT:
                check_files(self.jvm, self.java, self.table_id, found.main)
            self._swap({"properties": {CHOICE: json.dumps([choice, found.main, found.schema_id])}})

        self.committed(f"the choice about {self.table_id} could not be kept", once)

    def metadata(self) -> Metadata:
        """Return the table's metadata as last read."""
        if self._metadata is None:
            self._metadata = Metadata(self.calls, self.calls.read())
        return self._metadata

    def sync_metadata(self) -> None:
        """Make the metadata files of this and others' commits durable; call it after each commit, which it reads."""
        self._metadata = None
        folder = local_path(self.metadata().metadataFileLocation().rpartition("/")[0])
        if folder is None:
            return
        names = frozenset(name for name in os.listdir(folder) if not name.startswith("."))
        sync_files(os.path.join(folder, name) for name in names - self._synced)
        if not self._synced:  # the table's own folder and that of its schema may be new too
            sync_above(folder, 3)
        self._synced = names

    def head(self, ref: str) -> int | None:
        """Return the snapshot that a branch or tag names, or None."""
        found = self.metadata().ref(ref)
        return None if found is None else found.snapshotId()

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether a snapshot has not expired."""
        return self.metadata().snapshot(snapshot_id) is not None

    def made_ms(self, snapshot_id: int) -> int | None:
        """Return when a snapshot was made, in ms since 1970; None if it has expired."""
        snapshot = self.metadata().snapshot(snapshot_id)
        return None if snapshot is None else int(snapshot.timestampMillis())

    def layout(self, schema: TableSchema, generation: int) -> Layout:
        """Lay out `schema` in this table, as last read; the last layout is known. TableFault if it can't be sorted.

        The settings choose the order of a generation that has not begun yet.
        """
        metadata, known, comments = self.metadata(), self._layout, comments_of(self.metadata())
        begun = metadata.property(f"{OFFSET}{generation}", None)
        if (
            known is None
            or (known.schema.hash, known.generation) != (schema.hash, generation)
            or begun != str(known.offset)
            or comments != known.comments
        ):
            known = lay_out(self.jvm, metadata, schema, generation, comments)
            known = self._layout = divided_and_sorted(self.jvm, metadata, known, self._wanted.sort)
        return known

    @property
    def _may_be_divided(self) -> bool:
        """Whether the table has, or had, another partition spec than the one without fields with which it is made."""
        return self.metadata().spec_count() > 1

    # Files

    def new_file(self, name: str) -> str:
        """Return the full path for a new data file whose name ends with `name`."""
        return str(self.calls.newFile(f"{self._file_prefix}{name}"))

    def contents(self, snapshot_id: int) -> Contents:
        """Return the data files of a snapshot; planned by Iceberg once, then known from our own commits."""
        if self._contents is None or self._contents.snapshot_id != snapshot_id:
            with failing_as(f"the files of {self.table_id} could not be listed"):
                files = planned(self.java, snapshot_id, self._may_be_divided)
            self._contents = Contents(snapshot_id=snapshot_id, files=files)
        return self._contents

    def entries(self, added: Sequence[Any]) -> Files:
        """Return what is kept of Iceberg's DataFiles, by path."""
        divided = self._may_be_divided
        return {path: entry for file in added for path, entry in entry_of(file, divided).items()}

    def rows_to_scan(self, snapshot_id: int, keys: int) -> int:
        """Return how many rows locating so many keys may have to read."""
        return rows_to_scan(self.contents(snapshot_id).files, keys, self.index)

    def find(self, snapshot_id: int, layout: Layout, keys: pa.Table) -> dict[str, Found]:
        """Find the living rows of a snapshot that have one of `keys`, by the path of their data file.

        `keys` has the columns `k0`, `k1`, ... in the order of the identity key and in the lake's types, each key once.
        """
        contents = self.contents(snapshot_id)
        found = {}
        for path, rows in locate(contents.files, key_ids(layout), keys, self.index).items():
            remain = living(rows.positions, self._dead_rows.deleted(self.vector(contents.files[path])))
            if remain.any():
                found[path] = Found(rows.positions[remain], rows.keys[remain])
        return found

    def row_ids(self, snapshot_id: int, found: Mapping[str, Found], keys: int) -> Any:
        """Return the row id of each of `keys` keys as a numpy array, by the living rows that were found of them.

        NONE for a key that was not found. The array is None if no key has a row id.
        """
        files = self.contents(snapshot_id).files
        ids = np.full(keys, NONE, np.int64)
        for path, rows in found.items():
            ids[rows.keys] = row_ids_at(files[path], rows.positions)
        return ids if (ids != NONE).any() else None

    def dead_rows(self, file: DataFile) -> int:
        """Return how many rows of a file are deleted."""
        vector = self.vector(file)
        return 0 if vector is None else vector.rows

    def vector(self, file: DataFile) -> Vector | None:
        """Return the deletion vector (or position-delete file) of a file, None if none of its rows is deleted."""
        if file.dead is None and file.vector is not None:
            file.dead = of_java(file.vector, file.path)
        found: Vector | None = file.dead
        return found

    def key_columns(self, snapshot_id: int, layout: Layout) -> list[str]:
        """Return the key's columns by their names in a snapshot, quoted for Spark."""
        schema = self.metadata().schemasById().get(self.metadata().snapshot(snapshot_id).schemaId())
        return [quoted(str(schema.findColumnName(number))) for number in key_ids(layout)]

    def delete(self, snapshot_id: int, positions: Mapping[str, Any]) -> list[Vector]:
        """Write what deletes living rows (path -> positions) of a snapshot, with the rows deleted before."""
        files = self.contents(snapshot_id).files
        dead = {
            path: self._dead_rows.deleted(self.vector(files[path])) | bitmap_of(found)
            for path, found in positions.items()
        }
        vectors = write_deleted(self.version, lambda suffix: self.new_file(f"{uuid.uuid4().hex}.{suffix}"), dead)
        for vector in vectors:
            self._dead_rows.keep(vector, dead[vector.data_file])
        return vectors

    # Commits on staging

    def commit(
        self,
        *,
        branch: str,
        base: int | None,
        layout: Layout,
        summary: Mapping[str, str],
        change: Change,
        keep: str | None = None,
    ) -> int:
        """Make one snapshot on `branch` and return its id.

        `base` is the branch's head as we know it. If the branch does not exist, it begins at `base` (None: at nothing,
        or at `main`, so `change` must then empty it), and the branches that older starts have left are removed, except
        `keep`, which a publication names. `change` is the result of `replace_all`, `append`, `upsert` or `rewrite`.
        The snapshot has the schema of `layout`; the table's current schema changes only until the table is first shown,
        as do its partition spec and its sort order. A sort order or comments of other users stay.
        Raises Unavailable if the branch has moved since, Refused if others commit all the time.
        """

        def once() -> int:
            start, properties = self.metadata(), {}
            head = self.head(branch)
            if head is not None and head != base:
                raise Unavailable(
                    f"branch {branch} of {self.table_id} was moved by another process", "starting again on a new branch"
                )
            changes: Changes = {"last-column-id": max(start.lastColumnId(), layout.highest_id)}
            if head is None:
                changes["branches"] = {} if base is None else {branch: base}
                changes["removed-refs"] = [name for name in older_branches(start, branch) if name != keep]
            if start.property(f"{OFFSET}{layout.generation}", None) is None:
                properties[f"{OFFSET}{layout.generation}"] = str(layout.offset)
            if layout.sort and start.property(f"{SORT}{layout.generation}", None) is None:
                properties[f"{SORT}{layout.generation}"] = json.dumps(layout.sort)
            properties |= kept_versions(start, self._grace_began())
            if layout.comments and (noted := noted_comments(layout.comments)) != start.property(COMMENTS, None):
                properties[COMMENTS] = noted
            summary_of = dict(summary)
            if layout.spec is not None:
                changes["spec-id"] = int(layout.spec.specId())
                summary_of[SPEC] = str(changes["spec-id"])
            shown_before = start.ref("main") is not None or start.property(PUBLISHED, None) is not None
            transaction = self.calls.begin(
                json.dumps(changes | {"properties": properties}),
                layout.java,
                order_of(self.jvm, start, layout),
                their_order(start) is None,
                shown_before,
                SORT_ORDER,
            )
            update, files = change(transaction)
            self.calls.prepare(update, branch, json.dumps(summary_of), SORT_ORDER)
            with removed_after(self.calls):
                self.calls.swapIn()
            self.sync_metadata()
            made = json.loads(self.calls.made())
            for path, (first, sequence) in made["added"].items():
                files[path].lineage = Lineage(first_row_id=first, sequence=sequence)
            snapshot_id = int(made["snapshot-id"])
            self._contents = Contents(snapshot_id=snapshot_id, files=files)
            if made["format-version"] >= 3 and any(has_no_ids(file) for file in files.values()):
                self._contents = None  # the first commit after an upgrade has given ids to all rows
            return snapshot_id

        # `check_writable` has read the table. If it has changed since, the first attempt is refused.
        return self.committed(f"a commit on {branch} of the lake table {self.table_id} was refused", once, read=False)

    def committed(
        self, failure: str, once: Callable[[], Committed], *, read: bool = True, attempts: int = CONFLICTS
    ) -> Committed:
        """Read the table and call `once`, and repeat both if others committed meanwhile. Refused has the `failure`."""
        with failing_as(failure):
            for attempt in range(attempts):
                if read or attempt:
                    self.refresh()
                try:
                    return once()
                except Py4JJavaError as error:
                    if attempt == attempts - 1 or not is_conflict(error):
                        raise
                    time.sleep(random.uniform(0, PAUSE_SECONDS * attempt))
        raise AssertionError("the last attempt returns or raises")

    def _swap(self, changes: Changes, order: Any = None) -> None:
        """Change the table's metadata, as last read, in one swap, unless it is so already; `order`: a SortOrder."""
        if self.calls.swap(json.dumps(changes), order):
            self.sync_metadata()

    def rewind(self, branch: str, snapshot_id: int | None) -> None:
        """Set a branch of ours back to a snapshot; None: remove the branch."""

        def once() -> None:
            if snapshot_id is not None and self.has_snapshot(snapshot_id):
                self._swap({"branches": {branch: snapshot_id}})
            elif self.metadata().ref(branch) is not None:
                self._swap({"removed-refs": [branch]})

        self.committed(f"the branch {branch} of {self.table_id} could not be set back", once)
        self._contents = None

    # Commits that readers see

    def untag(self, tags: Mapping[str, int]) -> None:
        """Drop each of these tags that names the given snapshot; a tag of that name on another snapshot stays."""

        def once() -> None:
            refs = self.metadata().refs()
            known = {name: ref.snapshotId() for name, ref in refs.items() if ref.isTag()}
            self._swap({"removed-refs": [name for name, wanted in tags.items() if known.get(name) == wanted]})

        self.committed(f"old tags of {self.table_id} could not be dropped", once)

    def tag(self, tags: Mapping[str, int]) -> None:
        """Create tags (name -> snapshot), see `new_tags`. Raises Unavailable on a conflict."""

        def once() -> None:
            self._swap({"tags": new_tags(self.metadata(), tags, self.table_id)})

        self.committed(f"the tags {', '.join(tags)} of {self.table_id} could not be set", once)

    def show(
        self,
        *,
        snapshot_id: int,
        w: int,
        n: int,
        tag: bool,
        work: str | None,
        allowed: Callable[[tuple[int, int]], bool],
    ) -> bool:
        """Let `main` (and the tag `checkpoint_N` of a kept cut) name a publication's snapshot; True if it now does.

        One swap of the metadata: schema of the snapshot, `main`, `cutline.published` = [w, N, snapshot], tag. It also
        removes the branches that older starts have left, except `work`, which the publication names. It is refused
        (False) if `allowed` returns False for the (w, N) that `main` shows. Repeating it changes nothing, nor does it
        undo a rewrite that others made of what it has shown. A rewrite that came after the work on the snapshot is
        undone, with a warning. Raises Refused if others commit all the time, TableFault if the table belongs to another
        owner or has no such snapshot, ForeignCommit if a person must choose first.
        """

        def once() -> bool:
            base, changes, properties = self.metadata(), Changes(), {}
            self.check_owner()
            before, order = shown(base), None
            if not allowed((before.w, before.n)):
                return False
            snapshot = base.snapshot(snapshot_id)
            if snapshot is None:
                raise snapshot_lost(self.table_id)
            self._check_form()
            lost = undone(base, snapshot_id)
            if lost is not None and not lost.rewrites:
                raise foreign_commit(self.table_id, lost)
            gone = []
            if lost is None or before.snapshot_id != snapshot_id:
                if lost is not None:
                    logger.warning("%s: it is undone, no row changes", lost.describe(f"{CATALOG}.{self.table_id}"))
                comments, schema_id = comments_of(self.metadata()), int(snapshot.schemaId())
                changes["spec-id"] = int(snapshot.summary().get(SPEC) or UNPARTITIONED)
                changes["schema-id"], changes["branches"] = schema_id, {"main": snapshot_id}
                order = self._shown_order(base, schema_id)
                if order is None:
                    ours = str(snapshot.summary().get(SORT_ORDER) or UNSORTED)
                    changes["sort-order-id"] = int(ours)
                    if ours != base.property(SORT_ORDER, UNSORTED):
                        properties[SORT_ORDER] = ours
                if comments and (noted := noted_comments(comments)) != base.property(COMMENTS, None):
                    properties[COMMENTS] = noted  # the next commit gives them to the columns again
                if base.property(CHOICE, None) is not None:
                    gone.append(CHOICE)
            if (before.w, before.n, before.snapshot_id) != (w, n, snapshot_id):
                properties[PUBLISHED] = json.dumps([w, n, snapshot_id])
            properties |= kept_versions(base, self._grace_began())
            if tag:
                changes["tags"] = new_tags(base, {f"checkpoint_{n}": snapshot_id}, self.table_id)
            old = [name for name in older_branches(base, branch_of(w)) if name != work]
            self._swap({**changes, "properties": properties, "removed-properties": gone, "removed-refs": old}, order)
            return True

        return self.committed(f"main of {self.table_id} could not be moved to publication {n}", once)

    def _shown_order(self, base: Metadata, schema_id: int) -> Any:
        """The sort order that the table must have with the columns of a schema if another user has set one, else None:
        that stays, up to the first column that the schema lacks.
        """
        theirs = their_order(base)
        if theirs is None:
            return None
        if not self._order_noticed:
            self._order_noticed = True
            text = "another user set the sort order of the lake table %s.%s, so it stays theirs; sort in table_options"
            logger.warning(f"{text} still orders the rows of each file", CATALOG, self.table_id)
        return fitting(self.jvm, theirs, base.schemasById().get(schema_id))
