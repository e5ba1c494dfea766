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
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError

from cutline.common.errors import ConfigError, Unavailable
from cutline.common.file_metrics import COLUMNS
from cutline.common.schema import TableSchema
from cutline.common.table_id import split_table_id
from cutline.spark_writer.iceberg.columns import OFFSET, Layout, lay_out, quoted
from cutline.spark_writer.iceberg.dead_rows import DeadRows, living
from cutline.spark_writer.iceberg.deletion_vectors import Vector, bitmap_of, of_java, to_java
from cutline.spark_writer.iceberg.durable import local_path, sync_files
from cutline.spark_writer.iceberg.files import Contents, DataFile, Lineage, file_size
from cutline.spark_writer.iceberg.foreign import ACCEPT, CHOICE, PUBLISHED, Theirs, shown, theirs, undone
from cutline.spark_writer.iceberg.jvm import Jvm, failing_as, is_conflict, items
from cutline.spark_writer.iceberg.key_index import Found, KeyIndex
from cutline.spark_writer.iceberg.leftovers import removed_after
from cutline.spark_writer.iceberg.lineage import NONE, row_ids_at
from cutline.spark_writer.iceberg.locating import locate, rows_to_scan
from cutline.spark_writer.iceberg.metrics import footer_metrics, has_default_metrics
from cutline.spark_writer.iceberg.naming import file_prefix
from cutline.spark_writer.iceberg.objects import Rights
from cutline.spark_writer.iceberg.owner import EARLIER, ID, OWNER, Owner, Relation, earlier_of
from cutline.spark_writer.iceberg.partitioning import NOWHERE, PARTITION, write_files
from cutline.spark_writer.iceberg.partitioning import chosen as partition_fields
from cutline.spark_writer.iceberg.partitioning import recorded as partition_of
from cutline.spark_writer.iceberg.position_deletes import is_usable, write_deleted
from cutline.spark_writer.iceberg.position_deletes import to_java as position_deletes_to_java
from cutline.spark_writer.iceberg.sorting import SORT, chosen, fitting, recorded
from cutline.spark_writer.iceberg.sorting import to_java as sort_order_to_java
from cutline.spark_writer.iceberg.versions import LEAST, VERSIONS, is_due, wanted, young
from cutline.spark_writer.session import CATALOG

logger = logging.getLogger("cutline.spark_writer")
SOURCE = "cutline.table"
"""The table property with the table's id as the source spells it."""
RETRIES = "commit.retry.num-retries"
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
Change = Callable[[Any], tuple[Any, Files]]
"""Given Iceberg's Transaction, prepares an update in it; also returns the data files that the branch then has."""


class TableFault(ConfigError):
    """Another user changed a lake table so that Cutline can't go on with it; a person must mend it.

    `lost`: the rows that it held are gone too.
    """

    def __init__(self, cause: str, *, lost: bool = False) -> None:
        """Take the cause: one sentence with its remedy."""
        super().__init__(cause)
        self.lost = lost


class ForeignCommit(TableFault):
    """Other users committed `theirs` to `main`, and a person must choose whether that is kept."""

    def __init__(self, table_id: str, theirs: Theirs) -> None:
        """Describe it in one sentence."""
        super().__init__(f"{theirs.describe(f'{CATALOG}.{table_id}')}; {theirs.remedy}")
        self.theirs = theirs


class LakeTable:
    """One lake table. One thread at a time; `refresh` before reading what others may have changed.

    `index` is the table's key index, once a start of the Spark writer has set it.
    """

    def __init__(
        self,
        jvm: Jvm,
        owner: Owner,
        table_id: str,
        java: Any,
        rights: Rights | None = None,
        dead_rows: DeadRows | None = None,
        w: int = 0,
        wanted_version: int = FORMAT_VERSION,
        wanted_sort: Sequence[str] = (),
        wanted_partition: Sequence[str] = (),
        grace_began: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Take Iceberg's Table `java`, and the format version, sort and partition that the settings ask for; made by
        `Lake` for start `w`. `grace_began` as `Lake` has it.
        """
        self.table_id = table_id
        self.java = java
        self.jvm = jvm
        self.uuid = str(java.uuid())
        self._owner = owner
        self._file_prefix = file_prefix(owner.id, w, self.uuid)
        self._contents: Contents | None = None
        self._layout: Layout | None = None
        self._synced: frozenset[str] = frozenset()
        self._dead_rows = dead_rows or DeadRows()
        self.index: KeyIndex | None = None
        self.rights = rights or Rights()
        self._wanted_version = wanted_version
        self._wanted_sort = wanted_sort
        self._wanted_partition = wanted_partition
        self._order_noticed = False
        self._grace_began = grace_began
        database, name = split_table_id(table_id)
        self.spark_name = ".".join(quoted(part) for part in (CATALOG, database, name))

    def refresh(self) -> None:
        """Read the table's current metadata."""
        self.java.refresh()

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
                " table of its own; leave one of them out of tables, or use a catalogue that tells their names apart"
            )

    @staticmethod
    def _marks(metadata: Any) -> tuple[str | None, str | None, frozenset[str]]:
        """Name and id of the pipeline to which the table belongs, and the lives from which it was taken over."""
        return metadata.property(OWNER, None), metadata.property(ID, None), earlier_of(metadata.property(EARLIER, None))

    def claim(self) -> None:
        """Raise as `check_owner`; take the table over if it is another life's and this pipeline may.

        It then goes on showing what it shows, as if this pipeline had shown it in no publication. What the other life
        kept about its generations, and its staging branches, go; its savepoints' tags get its id behind their names.
        """

        def once() -> None:
            base = self.java.operations().current()
            name, life, earlier = self._marks(base)
            relation = self._owner.relation(name, life, earlier)
            if relation not in (Relation.UNMARKED, Relation.ADOPTED):
                return
            builder = self.jvm.iceberg.TableMetadata.buildFrom(base)
            properties = self._owner.properties
            if relation == Relation.ADOPTED:
                main = base.ref("main")
                at = None if main is None else int(main.snapshotId())
                left = " ".join(sorted(earlier | {life or str(name)}))
                properties = {**properties, PUBLISHED: json.dumps([0, 0, at]), EARLIER: left}
                kept = (OFFSET, PARTITION, SORT, CHOICE)
                gone = {str(key) for key in items(base.properties().keySet()) if str(key).startswith(kept)}
                if gone:
                    builder.removeProperties(gone)
                self._leave_refs(base, builder, life or "before")
                about = (self._owner.name, f"{CATALOG}.{self.table_id}", life, self._owner.id)
                logger.warning("pipeline %s: the lake table %s of its earlier life %s is taken over by %s", *about)
            builder.setProperties(properties)
            self._swap(base, builder)

        if self._owner.relation(*self._marks(self.metadata())) in (Relation.UNMARKED, Relation.ADOPTED):
            self.committed(f"the lake table {self.table_id} could not be taken over", once)
            self._layout = None
        self.check_owner()

    def _leave_refs(self, base: Any, builder: Any, life: str) -> None:
        """Remove the staging branches of an earlier life, and give its tags other names, so that ours are free."""
        for name in str(self.jvm.root.java.lang.String.join("\n", base.refs().keySet())).split("\n"):
            ref = base.ref(name)
            if STAGING.fullmatch(name) and ref.isBranch():
                builder.removeRef(name)
            elif TAGS.fullmatch(name) and ref.isTag():
                builder.removeRef(name)
                tag = self.jvm.iceberg.SnapshotRef.tagBuilder(ref.snapshotId()).build()
                builder.setRef(f"{name}_of_{life}", tag)

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
                f" {self.version}; drop the table, and it is read again"
            )

    def _check_partition(self, metadata: Any) -> None:
        """Raise TableFault if another user changed how the table is partitioned.

        A default spec that is one of Cutline's is set back when `main` moves: earlier versions left such.
        """
        default = int(metadata.defaultSpecId())
        made = int(self._shown_summary(metadata).get(SPEC) or UNPARTITIONED)
        if default == made:
            return
        properties = metadata.properties()
        ours = {
            json.loads(str(properties.get(key)))["spec-id"]
            for key in items(properties.keySet().stream().toList())
            if str(key).startswith(PARTITION)
        }
        if default in ours:
            return
        if made == UNPARTITIONED:
            fields = ", ".join(str(field.name()) for field in metadata.spec().fields())
            raise TableFault(
                f"another user partitioned the lake table {CATALOG}.{self.table_id} by {fields}, and Cutline can't"
                " write to partitions that it did not make; remove them by ALTER TABLE ... DROP PARTITION FIELD, then"
                " retry the table"
            )
        raise TableFault(
            f"another user changed the partitions of the lake table {CATALOG}.{self.table_id}, which Cutline divides;"
            " undo that by ALTER TABLE, then retry the table"
        )

    def _shown_summary(self, metadata: Any) -> Any:
        """The summary of the snapshot that Cutline last showed, {} without one."""
        known = shown(metadata).snapshot_id
        snapshot = None if known is None else metadata.snapshot(known)
        return {} if snapshot is None else snapshot.summary()

    @property
    def version(self) -> int:
        """The table's format version, as last read."""
        return int(self.metadata().formatVersion())

    def begin_generation(self, schema: TableSchema, generation: int) -> None:
        """Bring the table to the format version, the order of rows and the partition spec that the settings ask for,
        before the first rows of a generation come. The generation keeps its order and spec, whatever the settings
        become.

        A raise of the version shows at once, as Iceberg keeps one for all snapshots; the spec is not the default one
        until the generation is shown. TableFault if Iceberg can't do it.
        """

        def once() -> None:
            base = self.java.operations().current()
            if self.version > self._wanted_version:
                raise TableFault(
                    f"the lake table {CATALOG}.{self.table_id} has format version {self.version} and can't go back to"
                    f" {self._wanted_version}, which format_version asks for; drop the table, and it is read again"
                )
            builder = self.jvm.iceberg.TableMetadata.buildFrom(base).upgradeFormatVersion(self._wanted_version)
            builder.setProperties({VERSION: str(self._wanted_version)})
            self._swap(base, builder)

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
        base, iceberg = self.java.operations().current(), self.jvm.iceberg
        layout = self.layout(schema, generation)
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
        except ValueError as error:
            raise TableFault(str(error)) from error
        same = [number for number, spec in specs.items() if spec["fields"] == fields]
        spec = {"spec-id": same[0] if same else max(specs) + 1, "fields": fields}
        builder_of = iceberg.TableMetadata.buildFrom
        builder = self._with_layout(builder_of(base), base, replace(layout, spec=None))
        builder.setDefaultPartitionSpec(iceberg.PartitionSpecParser.fromJson(layout.java, json.dumps(spec)))
        properties = {f"{OFFSET}{generation}": str(layout.offset), f"{PARTITION}{generation}": json.dumps(spec)}
        if layout.sort:
            properties[f"{SORT}{generation}"] = json.dumps(layout.sort)
        self._swap(base, self._put_back(builder.setProperties(properties).build(), base))

    def _with_layout(self, builder: Any, base: Any, layout: Layout) -> Any:
        """Let a builder on `base` make the columns, the spec and the sort order of a layout the table's."""
        builder.setCurrentSchema(layout.java, max(int(base.lastColumnId()), layout.highest_id))
        if layout.spec is not None:
            builder.setDefaultPartitionSpec(int(layout.spec.specId()))
        theirs = self._their_order(base)
        if theirs is not None:
            builder.setDefaultSortOrder(fitting(self.jvm, theirs, layout.java))
        elif layout.sort or int(base.defaultSortOrderId()):
            builder.setDefaultSortOrder(sort_order_to_java(self.jvm, layout))
        return builder

    def _put_back(self, metadata: Any, start: Any) -> Any:
        """Return a builder on `metadata` that makes the columns, spec and sort order of `start` the table's again."""
        builder = self.jvm.iceberg.TableMetadata.buildFrom(metadata).setDefaultPartitionSpec(start.defaultSpecId())
        return builder.setCurrentSchema(start.currentSchemaId()).setDefaultSortOrder(start.defaultSortOrderId())

    def _their_order(self, metadata: Any) -> Any:
        """The table's sort order if another user has set it, else None."""
        ours = metadata.property(SORT_ORDER, None) or self._shown_summary(metadata).get(SORT_ORDER) or UNSORTED
        return metadata.sortOrder() if int(ours) != int(metadata.defaultSortOrderId()) else None

    def theirs(self, snapshot_id: int | None) -> Theirs | None:
        """Read the table; return the rewrite or the accepted commit of others on which work must go on instead of on
        `snapshot_id`, or None. ForeignCommit if a person must choose first.
        """
        with failing_as(f"the lake table {self.table_id} could not be read"):
            self.refresh()
            found = undone(self.metadata(), snapshot_id)
            if found is not None:
                if not found.rewrites and found.chosen != ACCEPT:
                    raise ForeignCommit(self.table_id, found)
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
                    f"another user wrote files to the lake table {CATALOG}.{self.table_id} in a form that Cutline can't"
                    " change; rewrite them by rewrite_data_files as Parquet without partitions, then retry the table"
                )
        planned.close()

    def choose(self, choice: str, seen: str) -> None:
        """Keep a person's choice about the commits of others that were `seen`, in the table itself.

        ConfigError if nothing awaits a choice, if others committed since, or if that choice does not exist.
        """

        def once() -> None:
            base = self.java.operations().current()
            found = theirs(base)
            if found is None or found.rewrites:
                raise ConfigError(f"no commit of others to the lake table {self.table_id} awaits a choice")
            if found.seen != seen:
                raise ConfigError(f"others committed to the lake table {self.table_id} again; look, and choose again")
            if choice not in found.choices:
                raise ConfigError(f"{choice} is no choice for the lake table {self.table_id}")
            if choice == ACCEPT:
                self._check_files(found.main)
            builder = self.jvm.iceberg.TableMetadata.buildFrom(base)
            builder.setProperties({CHOICE: json.dumps([choice, found.main, found.schema_id])})
            self._swap(base, builder)

        self.committed(f"the choice about {self.table_id} could not be kept", once)

    def metadata(self) -> Any:
        """Return Iceberg's TableMetadata as last read."""
        return self.java.operations().current()

    def sync_metadata(self) -> None:
        """Make the metadata files of this and others' commits durable; call it after each commit."""
        folder = local_path(str(self.metadata().metadataFileLocation()).rpartition("/")[0])
        if folder is None:
            return
        names = frozenset(name for name in os.listdir(folder) if not name.startswith("."))
        sync_files(os.path.join(folder, name) for name in names - self._synced)
        if not self._synced:  # the table's own folder and that of its schema may be new too
            above = os.path.dirname(folder)
            sync_files([folder, above, os.path.dirname(above)])
        self._synced = names

    def head(self, ref: str) -> int | None:
        """Return the snapshot that a branch or tag names, or None."""
        found = self.metadata().ref(ref)
        return None if found is None else int(found.snapshotId())

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
            except ValueError as error:
                raise TableFault(str(error)) from error
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
        if snapshot is None or int(snapshot.schemaId()) == int(metadata.currentSchemaId()):
            return noted
        before = _docs(metadata.schemasById().get(int(snapshot.schemaId())))
        now = _docs(metadata.schema())
        return noted | {number: text for number, text in now.items() if number in before and text != before[number]}

    @property
    def _may_be_divided(self) -> bool:
        """Whether the table has, or had, another partition spec than the one without fields with which it is made."""
        return int(self.metadata().specs().size()) > 1

    # Files

    def spec_of(self, layout: Layout | None) -> Any:
        """Iceberg's partition spec of the files of a layout (None: of a table that is not divided)."""
        return self.java.spec() if layout is None or layout.spec is None else layout.spec

    def new_file(self, name: str) -> str:
        """Return the full path for a new data file whose name ends with `name`."""
        return str(self.java.locationProvider().newDataLocation(f"{self._file_prefix}{name}"))

    def data_file(self, path: str, layout: Layout | None = None, partition: str = NOWHERE) -> Any:
        """Return Iceberg's DataFile of a Parquet file that carries the lake's field ids; metrics from its footer.

        `layout` and `partition` as `write_files` has them; a table without partitions needs neither.
        """
        iceberg = self.jvm.iceberg
        metrics, size = self._data_metrics(path, sorted_rows=layout is not None and bool(layout.sort))
        spec = self.spec_of(layout)
        builder = iceberg.DataFiles.builder(spec).withPath(path).withFormat("parquet")
        if layout is not None and layout.partition:
            builder = builder.withPartition(self._partition(spec, partition))
        return builder.withFileSizeInBytes(size).withMetrics(metrics).build()

    def _partition(self, spec: Any, values: str) -> Any:
        """Return Iceberg's form of a partition."""
        file = {"spec-id": spec.specId(), "content": "data", "file-path": "", "file-format": "parquet"}
        file |= {"partition": json.loads(values), "file-size-in-bytes": 1, "record-count": 1}
        return self.jvm.content_file(file, spec).partition()

    def _data_metrics(self, path: str, *, sorted_rows: bool) -> tuple[Any, int]:
        """Return Iceberg's Metrics of a data file that Cutline wrote, and the file's size.

        Iceberg reads the footer itself if the table chooses its metrics, by properties, or by a sort, whose columns
        have some even if they are not among the first. Its bounds are wrong if a row group lacks its own
        (file_metrics.py).
        """
        chosen = sorted_rows and self.java.schema().columns().size() > COLUMNS
        metrics = None
        if not chosen and has_default_metrics(self.jvm, self.java):
            metrics = footer_metrics(self.jvm, path)
        if metrics is None:
            return self._metrics(path, self.jvm.iceberg.MetricsConfig.forTable(self.java))
        return metrics, file_size(path)

    def _metrics(self, path: str, config: Any) -> tuple[Any, int]:
        """Return Iceberg's Metrics of a Parquet file by its MetricsConfig, and the file's size."""
        local = local_path(path)
        if local is not None:
            return self.jvm.metrics(path, config), os.path.getsize(local)
        source = self.java.io().newInputFile(path)
        return self.jvm.iceberg.parquet.ParquetUtil.fileMetrics(source, config), source.getLength()

    def _delete_file(self, spec: Any, file: DataFile, vector: Vector) -> Any:
        """Return Iceberg's DeleteFile for a vector of a data file."""
        if vector.length:
            return to_java(self.jvm, spec, file.partition, vector)
        metrics, _ = self._metrics(vector.path, self.jvm.iceberg.MetricsConfig.forPositionDelete())
        return position_deletes_to_java(self.jvm, spec, file.partition, vector, metrics)

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
            remain = living(rows.positions, self._dead_rows.of(self.vector(contents.files[path])))
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
            path: self._dead_rows.of(self.vector(files[path])) | bitmap_of(found) for path, found in positions.items()
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
            builder_of, operations = self.jvm.iceberg.TableMetadata.buildFrom, self.java.operations()
            start = operations.current()
            head = self.head(branch)
            if head is not None and head != base:
                raise Unavailable(
                    f"branch {branch} of {self.table_id} was moved by another process; starting again on a new branch"
                )
            transaction = self.java.newTransaction()
            inner = transaction.table().operations()
            builder = builder_of(start)
            if head is None:
                if base is not None:
                    builder.setBranchSnapshot(base, branch)
                for name in self.older_branches(branch):
                    if name != keep:
                        builder.removeRef(name)
            if start.property(f"{OFFSET}{layout.generation}", None) is None:
                builder.setProperties({f"{OFFSET}{layout.generation}": str(layout.offset)})
            if layout.sort and start.property(f"{SORT}{layout.generation}", None) is None:
                builder.setProperties({f"{SORT}{layout.generation}": json.dumps(layout.sort)})
            self._keep_versions(builder, start)
            if layout.comments and (noted := _noted(layout.comments)) != start.property(COMMENTS, None):
                builder.setProperties({COMMENTS: noted})
            prepared = self._with_layout(builder, start, layout).build()
            read = start.ref("main") is not None or start.property(PUBLISHED, None) is not None
            ours = self._their_order(start) is None
            order = str(prepared.defaultSortOrderId()) if ours else UNSORTED
            if ours and not read and order != start.property(SORT_ORDER, UNSORTED):
                prepared = builder_of(prepared).setProperties({SORT_ORDER: order}).build()
            if prepared.changes().size():
                inner.commit(inner.current(), prepared)
            update, files = change(transaction)
            update.toBranch(branch)
            for key, value in summary.items():
                update.set(key, value)
            if order != UNSORTED:
                update.set(SORT_ORDER, order)
            if layout.spec is not None:
                update.set(SPEC, str(layout.spec.specId()))
            update.commit()
            end = inner.current()
            if read and _look(end) != _look(start):
                end = self._put_back(end, start).build()
            snapshot_id = int(end.ref(branch).snapshotId())
            with removed_after(self.jvm, self.java.io(), transaction, end.snapshot(snapshot_id)):
                operations.commit(start, end)
            self.sync_metadata()
            self._note_lineage(end.snapshot(snapshot_id), files)
            self._contents = Contents(snapshot_id=snapshot_id, files=files)
            if int(end.formatVersion()) >= 3 and any(_has_no_ids(file) for file in files.values()):
                self._contents = None  # the first commit after an upgrade has given ids to all rows
            return snapshot_id

        # `check_writable` has read the table. If it has changed since, the first attempt is refused.
        return self.committed(f"a commit on {branch} of the lake table {self.table_id} was refused", once, read=False)

    def _note_lineage(self, snapshot: Any, files: Files) -> None:
        """Keep what Iceberg has assigned to the files that a snapshot added."""
        if all(file.lineage is not None for file in files.values()):
            return
        changes = self.jvm.iceberg.SnapshotChanges.builderFor(self.java).snapshot(snapshot).build()
        added = changes.addedDataFiles().iterator()
        while added.hasNext():
            file = added.next()
            files[str(file.location())].lineage = _lineage(file)

    def committed(
        self, failure: str, once: Callable[[], Committed], *, read: bool = True, attempts: int = CONFLICTS
    ) -> Committed:
        """Read the table and call `once`, and repeat both if others committed meanwhile. Refused has the `failure`."""
        with failing_as(failure):
            for attempt in range(attempts):
                if read or attempt:
                    self.java.refresh()
                try:
                    return once()
                except Py4JJavaError as error:
                    if attempt == attempts - 1 or not is_conflict(error):
                        raise
                    time.sleep(random.uniform(0, PAUSE_SECONDS * attempt))
        raise AssertionError("the last attempt returns or raises")

    def _swap(self, base: Any, builder: Any) -> None:
        """Replace the metadata `base` with that of `builder`, if they differ."""
        metadata = builder.build()
        if metadata.changes().size():
            self.java.operations().commit(base, metadata)
            self.sync_metadata()

    def _keep_versions(self, builder: Any, base: Any) -> None:
        """Let the table keep the metadata files of the grace, unless another user has set how many it keeps."""
        given, noted = base.property(VERSIONS, str(LEAST)), base.property(NOTED_VERSIONS, str(LEAST))
        listed = base.previousFiles()
        if given != noted or not is_due(int(listed.size()), int(given)):
            return
        needed = young(_Times(listed), int(self._grace_began() * 1000))
        most = str(wanted(int(given), needed))
        if most != given:
            builder.setProperties({VERSIONS: most, NOTED_VERSIONS: most})

    def older_branches(self, branch: str) -> list[str]:
        """Return the staging branches, as last read, of starts before the one that made `branch`."""
        ours = STAGING.fullmatch(branch)
        number, metadata = int(ours[1]) if ours else 0, self.metadata()
        found = []
        # One call for all names: a table may have hundreds of tags.
        for name in str(self.jvm.root.java.lang.String.join("\n", metadata.refs().keySet())).split("\n"):
            match = STAGING.fullmatch(name)
            ref = metadata.ref(name) if match is not None and int(match[1]) < number else None
            # A user's branch may have such a name; its head was not committed by that start.
            if ref is not None and match is not None:
                head = metadata.snapshot(ref.snapshotId())
                if head is not None and head.summary().get("cutline.w") == match[1]:
                    found.append(name)
        return found

    def rewind(self, branch: str, snapshot_id: int | None) -> None:
        """Set a branch of ours back to a snapshot; None: remove the branch."""

        def once() -> None:
            base = self.java.operations().current()
            builder = self.jvm.iceberg.TableMetadata.buildFrom(base)
            if snapshot_id is not None and self.has_snapshot(snapshot_id):
                builder.setBranchSnapshot(snapshot_id, branch)
            elif base.ref(branch) is not None:
                builder.removeRef(branch)
            self._swap(base, builder)

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
            delta, spec = transaction.newRowDelta().validateFromSnapshot(base), transaction.table().spec()
            for file in added:
                delta.addRows(file)
            for vector in deleted:
                old = files[vector.data_file]
                new = self._delete_file(spec, old, vector)
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
                entry.vector, entry.dead = self._delete_file(spec, entry, vector), vector
                rewrite.addFile(entry.vector)
            return rewrite, files

        return update

    # Commits that readers see

    def untag(self, tags: Mapping[str, int]) -> None:
        """Drop each of these tags that names the given snapshot; a tag of that name on another snapshot stays."""

        def once() -> None:
            base = self.java.operations().current()
            builder = self.jvm.iceberg.TableMetadata.buildFrom(base)
            for name, snapshot_id in tags.items():
                ref = base.ref(name)
                if ref is not None and ref.isTag() and ref.snapshotId() == snapshot_id:
                    builder.removeRef(name)
            self._swap(base, builder)

        self.committed(f"old tags of {self.table_id} could not be dropped", once)

    def tag(self, tags: Mapping[str, int]) -> None:
        """Create tags (name -> snapshot), see `_tag`. Raises Unavailable on a conflict."""

        def once() -> None:
            base = self.java.operations().current()
            builder = self.jvm.iceberg.TableMetadata.buildFrom(base)
            for name, snapshot_id in tags.items():
                self._tag(base, builder, name, snapshot_id)
            self._swap(base, builder)

        self.committed(f"the tags {', '.join(tags)} of {self.table_id} could not be set", once)

    def _tag(self, base: Any, builder: Any, name: str, snapshot_id: int) -> None:
        """Create a tag, unless another user has a tag or branch of that name: it stays, with a warning. The savepoint
        does not depend on its tag: retention keeps what its record names.
        """
        known = base.ref(name)
        if known is not None and (known.isBranch() or known.snapshotId() != snapshot_id):
            logger.warning(
                "the %s %s of the lake table %s.%s was set by another user, so the savepoint has no tag of that name;"
                " its snapshot is %d",
                "branch" if known.isBranch() else "tag",
                name,
                CATALOG,
                self.table_id,
                snapshot_id,
            )
        elif known is None and base.snapshot(snapshot_id) is not None:
            builder.setRef(name, self.jvm.iceberg.SnapshotRef.tagBuilder(snapshot_id).build())

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
            base = self.java.operations().current()
            self.check_owner()
            before = shown(base)
            if not allowed((before.w, before.n)):
                return False
            snapshot = base.snapshot(snapshot_id)
            if snapshot is None:
                raise TableFault(snapshot_lost(self.table_id), lost=True)
            self._check_form()
            lost = undone(base, snapshot_id)
            if lost is not None and not lost.rewrites:
                raise ForeignCommit(self.table_id, lost)
            builder = self.jvm.iceberg.TableMetadata.buildFrom(base)
            if lost is None or before.snapshot_id != snapshot_id:
                if lost is not None:
                    logger.warning("%s: it is undone, no row changes", lost.describe(f"{CATALOG}.{self.table_id}"))
                comments = self._comments()
                builder.setDefaultPartitionSpec(int(snapshot.summary().get(SPEC) or UNPARTITIONED))
                builder.setCurrentSchema(int(snapshot.schemaId()))
                self._show_order(base, builder, snapshot)
                builder.setBranchSnapshot(snapshot_id, "main")
                if comments and (noted := _noted(comments)) != base.property(COMMENTS, None):
                    builder.setProperties({COMMENTS: noted})  # the next commit gives them to the columns again
                if base.property(CHOICE, None) is not None:
                    builder.removeProperties({CHOICE})
            if not before.recorded and base.property(RETRIES, None) == "0":
                builder.removeProperties({RETRIES})  # which Cutline's first versions set on the table
            if not before.recorded or (before.w, before.n, before.snapshot_id) != (w, n, snapshot_id):
                builder.setProperties({PUBLISHED: json.dumps([w, n, snapshot_id])})
            self._keep_versions(builder, base)
            if tag:
                self._tag(base, builder, f"checkpoint_{n}", snapshot_id)
            for name in self.older_branches(f"staging_{w}"):
                if name != work:
                    builder.removeRef(name)
            self._swap(base, builder)
            return True

        return self.committed(f"main of {self.table_id} could not be moved to publication {n}", once)

    def _show_order(self, base: Any, builder: Any, snapshot: Any) -> None:
        """Let the table have the sort order of a snapshot, unless another user has set one: that stays, up to the first
        column that the snapshot lacks.
        """
        theirs = self._their_order(base)
        if theirs is None:
            order = str(snapshot.summary().get(SORT_ORDER) or UNSORTED)
            builder.setDefaultSortOrder(int(order))
            if order != base.property(SORT_ORDER, UNSORTED):
                builder.setProperties({SORT_ORDER: order})
            return
        builder.setDefaultSortOrder(fitting(self.jvm, theirs, base.schemasById().get(int(snapshot.schemaId()))))
        if not self._order_noticed:
            self._order_noticed = True
            logger.warning(
                "another user set the sort order of the lake table %s.%s, so it stays theirs; sort in table_options"
                " still orders the rows of each file",
                CATALOG,
                self.table_id,
            )


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


def table_dropped(table_id: str) -> str:
    """Return the cause to give when a lake table is gone."""
    return f"the lake table {CATALOG}.{table_id} was dropped by another user; retry the table to read it again"


def snapshot_lost(table_id: str) -> str:
    """Return the cause to give when a lake table lacks the snapshot from which Cutline continues."""
    return (
        f"the lake table {CATALOG}.{table_id} no longer has the snapshot from which Cutline continues, because another"
        " user expired or replaced it; retry the table to read it again"
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


def _look(metadata: Any) -> tuple[int, int, int]:
    """What readers get as the table's columns, partition spec and sort order."""
    return int(metadata.currentSchemaId()), int(metadata.defaultSpecId()), int(metadata.defaultSortOrderId())
