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
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.file_metrics import COLUMNS
from cutline.common.schema import TableSchema
from cutline.common.store.records import FileMetrics
from cutline.common.table_id import split_table_id
from cutline.spark_writer.sinks.contract import ACCEPT, ForeignCommit, TableFault
from cutline.spark_writer.sinks.iceberg.columns import OFFSET, Layout, Unsuitable, lay_out, quoted
from cutline.spark_writer.sinks.iceberg.dead_rows import DeadRows, living
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, bitmap_of, of_java, to_java
from cutline.spark_writer.sinks.iceberg.deletion_vectors import description as vector_description
from cutline.spark_writer.sinks.iceberg.durable import local_path, sync_above, sync_files
from cutline.spark_writer.sinks.iceberg.files import Contents, DataFile, Lineage, file_size
from cutline.spark_writer.sinks.iceberg.foreign import CHOICE, PUBLISHED, Theirs, foreign_of, shown, theirs, undone
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, failing_as, is_conflict, items
from cutline.spark_writer.sinks.iceberg.key_index import Found, KeyIndex
from cutline.spark_writer.sinks.iceberg.leftovers import removed_after
from cutline.spark_writer.sinks.iceberg.lineage import NONE, row_ids_at
from cutline.spark_writer.sinks.iceberg.locating import locate, rows_to_scan
from cutline.spark_writer.sinks.iceberg.metadata import Metadata
from cutline.spark_writer.sinks.iceberg.metrics import description, footer_metrics, has_default_metrics
from cutline.spark_writer.sinks.iceberg.naming import CATALOG, file_prefix
from cutline.spark_writer.sinks.iceberg.objects import Rights
from cutline.spark_writer.sinks.iceberg.owner import EARLIER, ID, OWNER, Owner, Relation, earlier_of, with_earlier
from cutline.spark_writer.sinks.iceberg.partitioning import NOWHERE, PARTITION, write_files
from cutline.spark_writer.sinks.iceberg.partitioning import chosen as partition_fields
from cutline.spark_writer.sinks.iceberg.partitioning import recorded as partition_of
from cutline.spark_writer.sinks.iceberg.position_deletes import is_usable, write_deleted
from cutline.spark_writer.sinks.iceberg.position_deletes import to_java as position_deletes_to_java
from cutline.spark_writer.sinks.iceberg.sorting import SORT, chosen, fitting, recorded
from cutline.spark_writer.sinks.iceberg.sorting import to_java as sort_order_to_java
from cutline.spark_writer.sinks.iceberg.versions import LEAST, VERSIONS, is_due, wanted, young

logger = logging.getLogger("cutline.spark_writer")
SOURCE = "cutline.table"
"""The table property with the table's id as the source spells it."""
FORMAT_VERSION = 3
"""The format version of a table unless the settings say otherwise."""
SORT_ORDER = "cutline.sort-order"
"""The property in a snapshot's summary with the id of Cutline's sort order from when `main` names the snapshot; as a
property of the table, the one that Cutline last set: another default one is another user's."""
SPEC = "cutline.partition-spec"
"""The same for the table's default partition spec, which is that of the snapshot's files."""
COMMENTS = "cutline.comments"
"""The table property with the comments of columns that other users wrote, by field id."""
UNPARTITIONED = 0
"""The id of the spec with which Cutline makes each table; it has no fields."""
UNSORTED = "0"
"""The id of Iceberg's sort order without fields."""
VERSION = "cutline.format-version"
"""The table property with the format version that Cutline gave the table; older tables lack it."""
STAGING = re.compile(r"staging_(\d+)")
TAGS = re.compile(r"(checkpoint|work)_\d+")
"""The tags of savepoints."""
CONFLICTS = 5
"""The number of attempts at a commit while others commit to the table at the same time."""
PAUSE_SECONDS = 0.1
"""The pause before the third attempt is up to this long, before the fourth up to twice as long, and so on."""

NOTED_VERSIONS = "cutline.metadata-versions"
"""The property with the number of metadata files that Cutline last let the table keep."""

Committed = TypeVar("Committed")
Files = dict[str, DataFile]
Changes = dict[str, Any]
"""Changes to a table's metadata, as `apply` in TableCalls.java takes them."""
Change = Callable[[Any], tuple[Any, Files]]
"""Given Iceberg's Transaction, prepares an update in it; also returns the data files that the branch then has."""


def foreign_commit(table_id: str, found: Theirs) -> ForeignCommit:
    """Return the error that others committed to `main`, and a person must choose whether that is kept."""
    return ForeignCommit(found.describe(f"{CATALOG}.{table_id}"), found.remedy, foreign_of(found))


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
        wanted_version: int = FORMAT_VERSION,
        wanted_sort: Sequence[str] = (),
        wanted_partition: Sequence[str] = (),
        grace_began: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Take the table's `TableCalls`, and the format version, sort and partition that the settings ask for; made by
        `Lake` for start `w`. `grace_began` as `Lake` has it.
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
        self._wanted_version = wanted_version
        self._wanted_sort = wanted_sort
        self._wanted_partition = wanted_partition
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
        """Raise TableFault if the table, as last read, does not belong to this pipeline, or is another source table's.

        A catalogue that ignores case returns the lake table `shop.Orders` for `shop.orders`.
        """
        marks = self._marks(self.metadata())
        if (refusal := self._owner.refusal(f"the lake table {CATALOG}.{self.table_id}", *marks)) is not None:
            raise TableFault(refusal)
        made_for = self.metadata().property(SOURCE, None)
        if made_for is not None and made_for != self.table_id:
            raise TableFault(
                f"the catalogue takes {self.table_id} and {made_for} for the same name, so {self.table_id} has no lake"
                " table of its own",
                "leave one of them out of tables, or use a catalogue that tells their names apart",
            )

    @staticmethod
    def _marks(metadata: Metadata) -> tuple[str | None, str | None, frozenset[str]]:
        """Name and id of the pipeline to which the table belongs, and the lives from which it was taken over."""
        return metadata.property(OWNER, None), metadata.property(ID, None), earlier_of(metadata.property(EARLIER, None))

    def claim(self) -> None:
        """Raise as `check_owner`; take the table over if it is another life's and this pipeline may.

        It then goes on showing what it shows, as if this pipeline had shown it in no publication. What the other life
        kept about its generations, and its staging branches, go; its savepoints' tags get its id behind their names.
        """

        def once() -> None:
            base = self.metadata()
            name, life, earlier = self._marks(base)
            relation = self._owner.relation(name, life, earlier)
            if relation != Relation.ADOPTED:
                return
            main = base.ref("main")
            at = None if main is None else int(main.snapshotId())
            left = with_earlier(earlier, name, life)
            properties = {**self._owner.properties, PUBLISHED: json.dumps([0, 0, at]), EARLIER: left}
            kept = (OFFSET, PARTITION, SORT, CHOICE)
            gone = [key for key in base.properties() if key.startswith(kept)]
            changes: Changes = {"removed-properties": gone, **self._left_refs(base, life or "before")}
            about = (self._owner.name, f"{CATALOG}.{self.table_id}", life, self._owner.id)
            logger.warning("pipeline %s: the lake table %s of its earlier life %s is taken over by %s", *about)
            self._swap({**changes, "properties": properties})

        if self._owner.relation(*self._marks(self.metadata())) == Relation.ADOPTED:
            self.committed(f"the lake table {self.table_id} could not be taken over", once)
            self._layout = None
        self.check_owner()

    @staticmethod
    def _left_refs(base: Metadata, life: str) -> Changes:
        """Remove the staging branches of an earlier life, and give its tags other names, so that ours are free."""
        refs = base.refs()
        tags = {name: ref.snapshotId() for name, ref in refs.items() if ref.isTag() and TAGS.fullmatch(name)}
        branches = [name for name, ref in refs.items() if ref.isBranch() and STAGING.fullmatch(name)]
        named = {f"{name}_of_{life}": snapshot_id for name, snapshot_id in tags.items()}
        return {"removed-refs": [*branches, *tags], "tags": named}

    def check_writable(self) -> None:
        """Read the table, and raise TableFault if Cutline can't add rows to it in its present form."""
        with failing_as(f"the lake table {self.table_id} could not be read"):
            self.refresh()
            self._check_form()

    def _check_form(self) -> None:
        self.check_owner()
        metadata = self.metadata()
        self._check_partition(metadata)
        made = metadata.property(VERSION, str(FORMAT_VERSION))
        if str(self.version) != made:
            raise TableFault(
                f"another user set the format version of the lake table {CATALOG}.{self.table_id} from {made} to"
                f" {self.version}",
                "drop the table, and it is read again",
            )

    def _check_partition(self, metadata: Metadata) -> None:
        """Raise TableFault if another user changed how the table is partitioned.

        A default spec that is one of Cutline's is set back when `main` moves: earlier versions left such.
        """
        default = int(metadata.defaultSpecId())
        made = int(self._shown_summary(metadata).get(SPEC) or UNPARTITIONED)
        if default == made:
            return
        kept = metadata.properties().items()
        ours = {json.loads(value)["spec-id"] for name, value in kept if name.startswith(PARTITION)}
        if default in ours:
            return
        if made == UNPARTITIONED:
            fields = ", ".join(str(field.name()) for field in metadata.spec().fields())
            raise TableFault(
                f"another user partitioned the lake table {CATALOG}.{self.table_id} by {fields}, and Cutline can't"
                " write to partitions that it did not make",
                "remove them by ALTER TABLE ... DROP PARTITION FIELD, then retry the table",
            )
        raise TableFault(
            f"another user changed the partitions of the lake table {CATALOG}.{self.table_id}, which Cutline divides",
            "undo that by ALTER TABLE, then retry the table",
        )

    def _shown_summary(self, metadata: Metadata) -> Any:
        """The summary of the snapshot that Cutline last showed, {} without one."""
        known = shown(metadata).snapshot_id
        snapshot = None if known is None else metadata.snapshot(known)
        return {} if snapshot is None else snapshot.summary()

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
            if self.version > self._wanted_version:
                raise TableFault(
                    f"the lake table {CATALOG}.{self.table_id} has format version {self.version} and can't go back to"
                    f" {self._wanted_version}, which format_version asks for",
                    "drop the table, and it is read again",
                )
            made = {VERSION: str(self._wanted_version)}
            self._swap({"format-version": self._wanted_version, "properties": made})

        if self.version != self._wanted_version:
            self.committed(f"the format version of {self.table_id} could not be raised", once)
            self._layout = None
        if self._wanted_partition and self.metadata().property(f"{PARTITION}{generation}", None) is None:
            self.committed(
                f"the partition spec of {self.table_id} could not be added",
                lambda: self._add_spec(schema, generation),
            )
            self._layout = None

    def _add_spec(self, schema: TableSchema, generation: int) -> None:
        """Add a generation's partition spec, with its columns, and note both in the table's properties."""
        metadata, iceberg = self.metadata(), self.jvm.iceberg
        base, layout = metadata.java, self.layout(schema, generation)
        specs = {
            int(spec.specId()): json.loads(str(iceberg.PartitionSpecParser.toJson(spec)))
            for spec in items(base.specs())
        }
        known = {
            (field["source-id"], field["transform"]): (field["field-id"], field["name"])
            for spec in specs.values()
            for field in spec["fields"]
        }
        try:
            fields = partition_fields(
                schema,
                layout.offset,
                self._wanted_partition,
                known=known,
                last=int(base.lastAssignedPartitionId()),
            )
        except Unsuitable as error:
            raise TableFault(error.cause) from error
        same = [number for number, spec in specs.items() if spec["fields"] == fields]
        spec = {"spec-id": same[0] if same else max(specs) + 1, "fields": fields}
        builder = iceberg.TableMetadata.buildFrom(base)
        builder.setCurrentSchema(layout.java, max(metadata.lastColumnId(), layout.highest_id))
        if (order := self._order(metadata, layout)) is not None:
            builder.setDefaultSortOrder(order)
        builder.setDefaultPartitionSpec(iceberg.PartitionSpecParser.fromJson(layout.java, json.dumps(spec)))
        properties = {f"{OFFSET}{generation}": str(layout.offset), f"{PARTITION}{generation}": json.dumps(spec)}
        if layout.sort:
            properties[f"{SORT}{generation}"] = json.dumps(layout.sort)
        again = iceberg.TableMetadata.buildFrom(builder.setProperties(properties).build())
        again.setDefaultPartitionSpec(base.defaultSpecId()).setCurrentSchema(base.currentSchemaId())
        self.java.operations().commit(base, again.setDefaultSortOrder(base.defaultSortOrderId()).build())
        self.sync_metadata()

    def _order(self, base: Metadata, layout: Layout) -> Any:
        """Iceberg's SortOrder that the table must get with the columns of a layout, None if it needs none."""
        theirs = self._their_order(base)
        if theirs is not None:
            return fitting(self.jvm, theirs, layout.java)
        return sort_order_to_java(self.jvm, layout) if layout.sort or base.defaultSortOrderId() else None

    def _their_order(self, metadata: Metadata) -> Any:
        """The table's sort order if another user has set it, else None."""
        ours = metadata.property(SORT_ORDER, None) or self._shown_summary(metadata).get(SORT_ORDER) or UNSORTED
        return metadata.sortOrder() if int(ours) != metadata.defaultSortOrderId() else None

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
                self._check_files(found.main)
        return found

    def _check_files(self, snapshot_id: int | None) -> None:
        """Raise TableFault if others have written files from which Cutline can't delete rows."""
        planned = self.java.newScan().useSnapshot(snapshot_id).planFiles()
        tasks = planned.iterator()
        while tasks.hasNext():
            task = tasks.next()
            file, deletes = task.file(), task.deletes()
            ours = str(file.format()) == "PARQUET" and file.specId() == self.java.spec().specId()
            if not ours or deletes.size() > 1 or not all(is_usable(self.jvm, each) for each in items(deletes)):
                raise TableFault(
                    Cause(
                        Code.FOREIGN_COMMIT,
                        f"another user wrote files to the lake table {CATALOG}.{self.table_id} in a form that Cutline"
                        " can't change",
                        "rewrite them by rewrite_data_files as Parquet without partitions, then retry the table",
                    )
                )
        planned.close()

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
                self._check_files(found.main)
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
        metadata, known, comments = self.metadata(), self._layout, self._comments()
        begun = metadata.property(f"{OFFSET}{generation}", None)
        if (
            known is None
            or (known.schema.hash, known.generation) != (schema.hash, generation)
            or begun != str(known.offset)
            or comments != known.comments
        ):
            known = lay_out(self.jvm, metadata, schema, generation, comments)
            sort = metadata.property(f"{SORT}{generation}", None)
            try:
                if sort is not None:
                    known = replace(known, sort=recorded(sort, known.arrow))
                elif begun is None:
                    known = replace(known, sort=chosen(schema, known.offset, self._wanted_sort))
                if (spec := metadata.property(f"{PARTITION}{generation}", None)) is not None:
                    java = self.jvm.iceberg.PartitionSpecParser.fromJson(known.java, spec)
                    known = replace(known, partition=partition_of(json.loads(spec), known.arrow), spec=java)
                elif self._may_be_divided:
                    known = replace(known, spec=metadata.spec(UNPARTITIONED))
            except Unsuitable as error:
                raise TableFault(error.cause) from error
            self._layout = known
        return known

    def _comments(self) -> Mapping[int, str]:
        """The comments that another user gave to columns, by the lake's field ids: those that the table has noted, and
        those of its current columns that differ from what Cutline showed.
        """
        metadata = self.metadata()
        noted = {int(number): text for number, text in json.loads(metadata.property(COMMENTS, "{}")).items()}
        known = shown(metadata).snapshot_id
        snapshot = None if known is None else metadata.snapshot(known)
        if snapshot is None or int(snapshot.schemaId()) == metadata.currentSchemaId():
            return noted
        before = _docs(metadata.schemasById().get(int(snapshot.schemaId())))
        now = _docs(metadata.schema())
        return noted | {number: text for number, text in now.items() if number in before and text != before[number]}

    @property
    def _may_be_divided(self) -> bool:
        """Whether the table has, or had, another partition spec than the one without fields with which it is made."""
        return self.metadata().spec_count() > 1

    # Files

    def spec_id_of(self, layout: Layout | None) -> int:
        """The id of the partition spec of the files of a layout (None: of a table that is not divided)."""
        if layout is None or layout.spec is None:
            return self.metadata().defaultSpecId()
        return int(layout.spec.specId())

    def new_file(self, name: str) -> str:
        """Return the full path for a new data file whose name ends with `name`."""
        return str(self.calls.newFile(f"{self._file_prefix}{name}"))

    def data_file(self, path: str, layout: Layout | None = None, partition: str = NOWHERE) -> Any:
        """Return Iceberg's DataFile of a Parquet file that carries the lake's field ids; metrics from its footer.

        `layout` and `partition` as `write_files` has them; a table without partitions needs neither.
        """
        divided = layout is not None and bool(layout.partition)
        # Iceberg reads the footer itself if the table chooses its metrics, by properties, or by a sort, whose columns
        # have some even if they are not among the first. Its bounds are wrong if a row group lacks its own
        # (file_metrics.py).
        sorted_rows = layout is not None and bool(layout.sort)
        chosen = sorted_rows and self.java.schema().columns().size() > COLUMNS
        known = footer_metrics(path) if not chosen and has_default_metrics(self.metadata()) else None
        if known is not None:
            rows, metrics = known
            within = json.loads(partition) if divided else None
            return self.described(layout, path, rows=rows, size=file_size(path), metrics=metrics, partition=within)
        iceberg = self.jvm.iceberg
        made, size = self._metrics(path, iceberg.MetricsConfig.forTable(self.java))
        spec = self.java.spec() if layout is None or layout.spec is None else layout.spec
        builder = iceberg.DataFiles.builder(spec).withPath(path).withFormat("parquet")
        if divided:
            file = {"spec-id": int(spec.specId()), "content": "data", "file-path": "", "file-format": "parquet"}
            file |= {"partition": json.loads(partition), "file-size-in-bytes": 1, "record-count": 1}
            builder = builder.withPartition(self.calls.file(json.dumps(file), spec).partition())
        return builder.withFileSizeInBytes(size).withMetrics(made).build()

    def described(
        self, layout: Layout | None, path: str, *, rows: int, size: int, metrics: FileMetrics, partition: Any = None
    ) -> Any:
        """Return Iceberg's DataFile of a Parquet file with these metrics, in a partition if the layout has some; the
        file is not looked at."""
        about = description(path, rows=rows, size=size, metrics=metrics, spec_id=self.spec_id_of(layout))
        spec = None if layout is None else layout.spec
        return self.calls.file(json.dumps(about if partition is None else about | {"partition": partition}), spec)

    def _metrics(self, path: str, config: Any) -> tuple[Any, int]:
        """Return Iceberg's Metrics of a Parquet file by its MetricsConfig, and the file's size."""
        local = local_path(path)
        if local is not None:
            return self.jvm.metrics(path, config), os.path.getsize(local)
        source = self.java.io().newInputFile(path)
        return self.jvm.iceberg.parquet.ParquetUtil.fileMetrics(source, config), source.getLength()

    def _delete_file(self, transaction: Any, file: DataFile, vector: Vector) -> Any:
        """Return Iceberg's DeleteFile for a vector of a data file."""
        if not vector.length:
            metrics, _ = self._metrics(vector.path, self.jvm.iceberg.MetricsConfig.forPositionDelete())
            return position_deletes_to_java(self.jvm, transaction.table().spec(), file.partition, vector, metrics)
        if file.partition is None:
            return self.calls.file(json.dumps(vector_description(vector, self.metadata().defaultSpecId())), None)
        return to_java(self.jvm, transaction.table().spec(), file.partition, vector)

    def contents(self, snapshot_id: int) -> Contents:
        """Return the data files of a snapshot; planned by Iceberg once, then known from our own commits."""
        if self._contents is None or self._contents.snapshot_id != snapshot_id:
            files: Files = {}
            divided = self._may_be_divided
            with failing_as(f"the files of {self.table_id} could not be listed"):
                planned = self.java.newScan().useSnapshot(snapshot_id).planFiles()
                tasks = planned.iterator()
                while tasks.hasNext():
                    task = tasks.next()
                    file, deletes = task.file(), task.deletes()
                    files |= self._entry(
                        file,
                        divided,
                        vector=None if deletes.isEmpty() else deletes.get(0),
                        lineage=_lineage(file),
                    )
                planned.close()
            self._contents = Contents(snapshot_id=snapshot_id, files=files)
        return self._contents

    def _entry(self, file: Any, divided: bool, **known: Any) -> Files:
        """Return what is kept of Iceberg's DataFile, by its path, with its partition if the table may be `divided`."""
        path, rows, size = str(file.location()), int(file.recordCount()), int(file.fileSizeInBytes())
        if divided:
            partition = file.partition()
            known |= {"partition": partition, "partition_name": str(partition.toString())}
        return {path: DataFile(path=path, rows=rows, size=size, **known)}

    def _entries(self, added: Sequence[Any]) -> Files:
        divided = self._may_be_divided
        return {path: entry for file in added for path, entry in self._entry(file, divided).items()}

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
                changes["removed-refs"] = [name for name in self.older_branches(branch) if name != keep]
            if start.property(f"{OFFSET}{layout.generation}", None) is None:
                properties[f"{OFFSET}{layout.generation}"] = str(layout.offset)
            if layout.sort and start.property(f"{SORT}{layout.generation}", None) is None:
                properties[f"{SORT}{layout.generation}"] = json.dumps(layout.sort)
            properties |= self._kept_versions(start)
            if layout.comments and (noted := _noted(layout.comments)) != start.property(COMMENTS, None):
                properties[COMMENTS] = noted
            summary_of = dict(summary)
            if layout.spec is not None:
                changes["spec-id"] = int(layout.spec.specId())
                summary_of[SPEC] = str(changes["spec-id"])
            shown_before = start.ref("main") is not None or start.property(PUBLISHED, None) is not None
            transaction = self.calls.begin(
                json.dumps(changes | {"properties": properties}),
                layout.java,
                self._order(start, layout),
                self._their_order(start) is None,
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
            if made["format-version"] >= 3 and any(_has_no_ids(file) for file in files.values()):
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

    def _kept_versions(self, base: Metadata) -> dict[str, str]:
        """The properties that let the table keep the metadata files of the grace, unless another user has set how many
        it keeps."""
        given, noted = base.property(VERSIONS, str(LEAST)), base.property(NOTED_VERSIONS, str(LEAST))
        if given != noted or not is_due(base.previous_file_count(), int(given)):
            return {}
        needed = young(_Times(base.previousFiles()), int(self._grace_began() * 1000))
        most = str(wanted(int(given), needed))
        return {VERSIONS: most, NOTED_VERSIONS: most} if most != given else {}

    def older_branches(self, branch: str) -> list[str]:
        """Return the staging branches, as last read, of starts before the one that made `branch`."""
        ours = STAGING.fullmatch(branch)
        number, metadata = int(ours[1]) if ours else 0, self.metadata()
        found = []
        for name, ref in metadata.refs().items():
            match = STAGING.fullmatch(name)
            # A user's branch may have such a name; its head was not committed by that start.
            if match is not None and int(match[1]) < number:
                head = metadata.snapshot(ref.snapshotId())
                if head is not None and head.summary().get("cutline.w") == match[1]:
                    found.append(name)
        return found

    def rewind(self, branch: str, snapshot_id: int | None) -> None:
        """Set a branch of ours back to a snapshot; None: remove the branch."""

        def once() -> None:
            if snapshot_id is not None and self.has_snapshot(snapshot_id):
                self._swap({"branches": {branch: snapshot_id}})
            elif self.metadata().ref(branch) is not None:
                self._swap({"removed-refs": [branch]})

        self.committed(f"the branch {branch} of {self.table_id} could not be set back", once)
        self._contents = None

    def replace_all(self, added: Sequence[Any]) -> Change:
        """Return the change that empties the branch and adds data files."""

        def update(transaction: Any) -> tuple[Any, Files]:
            all_rows = self.jvm.iceberg.expressions.Expressions.alwaysTrue()
            overwrite = transaction.newOverwrite().overwriteByRowFilter(all_rows)
            for file in added:
                overwrite.addFile(file)
            return overwrite, self._entries(added)

        return update

    def append(self, base: int, added: Sequence[Any]) -> Change:
        """Return the change that adds data files (maybe none) to those of snapshot `base`."""

        def update(transaction: Any) -> tuple[Any, Files]:
            append = transaction.newAppend()
            for file in added:
                append.appendFile(file)
            return append, {**self.contents(base).files, **self._entries(added)}

        return update

    def upsert(self, base: int, added: Sequence[Any], deleted: Sequence[Vector]) -> Change:
        """Return the change that adds data files to those of snapshot `base`, and gives others new deletion vectors."""

        def update(transaction: Any) -> tuple[Any, Files]:
            files = {**self.contents(base).files, **self._entries(added)}
            delta = transaction.newRowDelta().validateFromSnapshot(base)
            for file in added:
                delta.addRows(file)
            for vector in deleted:
                old = files[vector.data_file]
                new = self._delete_file(transaction, old, vector)
                if old.vector is not None:
                    delta.removeDeletes(old.vector)
                delta.addDeletes(new)
                files[vector.data_file] = replace(old, vector=new, dead=vector)
            return delta, files

        return update

    def rewrite(
        self, base: int, old: Sequence[DataFile], added: Sequence[Any], deleted: Sequence[Vector] = ()
    ) -> Change:
        """Return the change that replaces data files of snapshot `base` with others that have the same living rows.

        `deleted` are deletion vectors of the new files.
        """

        def update(transaction: Any) -> tuple[Any, Files]:
            files, spec = {**self.contents(base).files, **self._entries(added)}, transaction.table().spec()
            rewrite = transaction.newRewrite().validateFromSnapshot(base)
            for file in old:
                # Iceberg looks a file to remove up by its path, and takes all else from its manifest.
                known = self.jvm.iceberg.DataFiles.builder(spec).withPath(file.path).withFormat("parquet")
                if file.partition is not None:
                    known = known.withPartition(file.partition)
                rewrite.deleteFile(known.withFileSizeInBytes(file.size).withRecordCount(file.rows).build())
                if file.vector is not None:
                    rewrite.deleteFile(file.vector)
                del files[file.path]
            for file in added:
                rewrite.addFile(file)
            for vector in deleted:
                entry = files[vector.data_file]
                entry.vector, entry.dead = self._delete_file(transaction, entry, vector), vector
                rewrite.addFile(entry.vector)
            return rewrite, files

        return update

    # Commits that readers see

    def untag(self, tags: Mapping[str, int]) -> None:
        """Drop each of these tags that names the given snapshot; a tag of that name on another snapshot stays."""

        def once() -> None:
            refs = self.metadata().refs()
            known = {name: ref.snapshotId() for name, ref in refs.items() if ref.isTag()}
            self._swap({"removed-refs": [name for name, wanted in tags.items() if known.get(name) == wanted]})

        self.committed(f"old tags of {self.table_id} could not be dropped", once)

    def tag(self, tags: Mapping[str, int]) -> None:
        """Create tags (name -> snapshot), see `_new_tags`. Raises Unavailable on a conflict."""

        def once() -> None:
            self._swap({"tags": self._new_tags(self.metadata(), tags)})

        self.committed(f"the tags {', '.join(tags)} of {self.table_id} could not be set", once)

    def _new_tags(self, base: Metadata, tags: Mapping[str, int]) -> dict[str, int]:
        """Return the tags to create. Where another user has a tag or branch of that name it stays, with a warning. The
        savepoint does not depend on its tag: retention keeps what its record names.
        """
        found = {}
        for name, snapshot_id in tags.items():
            known = base.ref(name)
            if known is not None and (known.isBranch() or known.snapshotId() != snapshot_id):
                logger.warning(
                    "the %s %s of the lake table %s.%s was set by another user, so the savepoint has no tag of that"
                    " name; its snapshot is %d",
                    "branch" if known.isBranch() else "tag",
                    name,
                    CATALOG,
                    self.table_id,
                    snapshot_id,
                )
            elif known is None and base.snapshot(snapshot_id) is not None:
                found[name] = snapshot_id
        return found

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
                comments, schema_id = self._comments(), int(snapshot.schemaId())
                changes["spec-id"] = int(snapshot.summary().get(SPEC) or UNPARTITIONED)
                changes["schema-id"], changes["branches"] = schema_id, {"main": snapshot_id}
                order = self._shown_order(base, schema_id)
                if order is None:
                    ours = str(snapshot.summary().get(SORT_ORDER) or UNSORTED)
                    changes["sort-order-id"] = int(ours)
                    if ours != base.property(SORT_ORDER, UNSORTED):
                        properties[SORT_ORDER] = ours
                if comments and (noted := _noted(comments)) != base.property(COMMENTS, None):
                    properties[COMMENTS] = noted  # the next commit gives them to the columns again
                if base.property(CHOICE, None) is not None:
                    gone.append(CHOICE)
            if (before.w, before.n, before.snapshot_id) != (w, n, snapshot_id):
                properties[PUBLISHED] = json.dumps([w, n, snapshot_id])
            properties |= self._kept_versions(base)
            if tag:
                changes["tags"] = self._new_tags(base, {f"checkpoint_{n}": snapshot_id})
            old = [name for name in self.older_branches(f"staging_{w}") if name != work]
            self._swap({**changes, "properties": properties, "removed-properties": gone, "removed-refs": old}, order)
            return True

        return self.committed(f"main of {self.table_id} could not be moved to publication {n}", once)

    def _shown_order(self, base: Metadata, schema_id: int) -> Any:
        """The sort order that the table must have with the columns of a schema if another user has set one, else None:
        that stays, up to the first column that the schema lacks.
        """
        theirs = self._their_order(base)
        if theirs is None:
            return None
        if not self._order_noticed:
            self._order_noticed = True
            logger.warning(
                "another user set the sort order of the lake table %s.%s, so it stays theirs; sort in table_options"
                " still orders the rows of each file",
                CATALOG,
                self.table_id,
            )
        return fitting(self.jvm, theirs, base.schemasById().get(schema_id))


class _Times(Sequence[int]):
    """When the earlier metadata files of a table were made, in ms since 1970; each costs a call to the JVM."""

    def __init__(self, listed: Any) -> None:
        self._listed = listed
        self._size = int(listed.size())

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: Any) -> Any:
        return int(self._listed.get(at).timestampMillis())


def write_rows(table: LakeTable, layout: Layout, groups: Iterable[pa.Table]) -> list[Any]:
    """Write Arrow tables in a layout as durable data files, one for each partition; return Iceberg's DataFiles."""
    written = write_files(lambda: table.new_file(f"{uuid.uuid4().hex}.parquet"), groups, layout)
    return [table.data_file(path, layout, partition) for path, partition in written]


def table_dropped(table_id: str) -> TableFault:
    """Return the error for a lake table that is gone."""
    sentence = f"the lake table {CATALOG}.{table_id} was dropped by another user"
    return TableFault(sentence, "retry the table to read it again", lost=True)


def snapshot_lost(table_id: str) -> TableFault:
    """Return the error for a lake table that lacks the snapshot from which Cutline continues."""
    return TableFault(
        f"the lake table {CATALOG}.{table_id} no longer has the snapshot from which Cutline continues, because another"
        " user expired or replaced it",
        "retry the table to read it again",
        lost=True,
    )


def key_ids(layout: Layout) -> tuple[int, ...]:
    """The lake's field ids of the key's columns."""
    return tuple(column.field_id + layout.offset for column in layout.schema.key_columns)


def _lineage(file: Any) -> Lineage:
    """What Iceberg has assigned to a DataFile that it read from a manifest."""
    first = file.firstRowId()
    return Lineage(first_row_id=None if first is None else int(first), sequence=int(file.dataSequenceNumber()))


def _has_no_ids(file: DataFile) -> bool:
    return file.lineage is not None and file.lineage.first_row_id is None


def _docs(schema: Any) -> dict[int, str]:
    """The comments of a schema's columns, by field id."""
    return {int(field.fieldId()): str(field.doc() or "") for field in schema.columns()}


def _noted(comments: Mapping[int, str]) -> str:
    return json.dumps({str(number): text for number, text in sorted(comments.items())})
