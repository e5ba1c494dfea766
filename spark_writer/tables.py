"""The lake's tables: their columns by field id, their branches, and the commits that Cutline makes on them.

Every commit is one swap of the table's metadata, made by the table API from a base that we have read: if anybody else
has committed in between it is refused (`CommitFailedException`), and made anew from what is there now, a few times.
Any other answer is not judged here. Nothing here goes through Spark SQL's view of a table, for one reason:

**A new column is usable on staging before `main` shows it.** A snapshot carries the id of the schema it was made with,
and a table has one *current* schema, which readers of `main` get. So a staging commit is made inside a transaction that
makes the new schema current, adds the snapshot, and makes the old schema current again; all three are one metadata
file. Data files carry field ids and are laid in by their metrics, so no writer needs the current schema either. `main`
moves by one such swap too: schema of the snapshot becomes current, `main` its branch, `cutline.published` = [w, N],
the tags of a kept cut. Hence a rename, a dropped column or a generation with other types is shown at its own cut,
never before; and no hidden names are needed.

Field ids: the lake's ids are the pipeline's (common/schema.py) plus an offset by generation, 0 unless a new generation
gives an id another meaning; the offsets are the properties `cutline.offset.<generation>`. A staged file whose ids and
types are the lake's is adopted as it is.

Iceberg syncs nothing that it writes to a folder of this machine, and a publication must not outlive what it names. So
each commit is followed by an fsync of what it wrote (`LakeTable.settle`), and before a publication the catalogue's own
file is synced (`Lake.settle`), which SQLite with `synchronous=NORMAL` leaves to us: in this order the catalogue durably
names only files that are durable. What can't be had from outside of the JVM is the sync *between* a metadata file and
the catalogue's row that names it: should the machine (not the process) die within those milliseconds, and the system
have written the row back first, that row must be set to the table's metadata file before it by hand. Object stores and
other catalogues are durable by themselves.

A change deletes by deletion vector (spark_writer/positions.py finds where the keys of a batch stand), and the rows' new
images are added in the same commit (`RowDelta`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.schema import FIELD_ID, Column, TableSchema, parse_type, split_table_id
from cutline.spark_writer.positions import (
    DRIVER_ROWS,
    Contents,
    DataFile,
    by_arrow,
    by_spark,
    decode,
    encode,
    local_path,
    merged,
    without,
)
from cutline.spark_writer.session import CATALOG, first_line

OWNER = "cutline.pipeline"
PUBLISHED = "cutline.published"
OFFSET = "cutline.offset."
STAGING = re.compile(r"staging_(\d+)")
CONFLICTS = 5
"""How often a commit is tried while others commit to the table at the same time."""
_SQLITE = "jdbc:sqlite:"
_EXACT = Context(prec=65)  # a DECIMAL's digits; Python's own context rounds to 28
NAMESPACE = "_cutline"
RESERVED = (
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
)
"""Names of Iceberg's metadata columns, which every table has in Spark."""
_PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "history.expire.min-snapshots-to-keep": "1",
    "commit.retry.num-retries": "0",
}

Committed = TypeVar("Committed")
Files = dict[str, DataFile]
Change = Callable[[Any], tuple[Any, Files]]
"""Given Iceberg's Transaction, prepares an update in it; also says which data files the branch then has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table's columns lie in the lake: `arrow` with the lake's field ids, `java` the Iceberg schema of it."""

    schema: TableSchema
    generation: int
    offset: int
    arrow: pa.Schema
    java: Any


class Refused(Unavailable):
    """Iceberg or Spark gave an error, which may come from one table or from all that they stand on."""


class TableFault(ConfigError):
    """A lake table is not as Cutline left it; a person must mend it. `lost`: what it held can't be gone on from."""

    def __init__(self, cause: str, *, lost: bool = False) -> None:
        """Take the cause, one sentence with its remedy."""
        super().__init__(cause)
        self.lost = lost


@contextmanager
def answered(what: str) -> Iterator[None]:
    """Turn an error of Iceberg or Spark inside into Refused; `what` says what was not done."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise Refused(f"{what}: {first_line(error)}") from error


def _conflict(error: Py4JJavaError) -> bool:
    """Whether a commit was refused because somebody else's came first; then nothing of it was done."""
    return str(error.java_exception.getClass().getName()).endswith(".CommitFailedException")


class Lake:
    """One pipeline's catalogue. Made with the pipeline's own Spark session; for any number of threads."""

    def __init__(self, session: SparkSession, pipeline: str) -> None:
        """Open the catalogue; ConfigError if it can't be."""
        self.session = session
        self.pipeline = pipeline
        jvm: Any = session._jvm
        self.jvm = jvm
        self.iceberg: Any = jvm.org.apache.iceberg
        uri = str(session.conf.get(f"spark.sql.catalog.{CATALOG}.uri", ""))
        self._sqlite = uri.removeprefix(_SQLITE).split("?")[0] if uri.startswith(_SQLITE) else None
        self.activate()
        try:
            self.catalog = self._open()
        except Py4JJavaError:  # two that make a new catalogue's tables at once: one is refused, and finds them made
            try:
                self.catalog = self._open()
            except Py4JJavaError as error:
                raise ConfigError(
                    f"the catalogue of pipeline {pipeline} can't be opened ({first_line(error)}); mend sink"
                ) from error

    def _open(self) -> Any:
        return self.iceberg.spark.Spark3Util.loadIcebergCatalog(self.session._jsparkSession, CATALOG)

    def activate(self) -> None:
        """Make the pipeline's session that of the calling thread; each thread must call it first."""
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.session._jsparkSession)

    def settle(self) -> None:
        """Make the catalogue's commits so far durable, if it is a file of this machine."""
        if self._sqlite is not None:
            settle([self._sqlite, f"{self._sqlite}-wal"])

    def identifier(self, namespace: str, name: str) -> Any:
        """Return Iceberg's TableIdentifier."""
        return self.iceberg.catalog.TableIdentifier.of(self._namespace(namespace), name)

    def _namespace(self, namespace: str) -> Any:
        gateway: Any = self.session.sparkContext._gateway
        levels = gateway.new_array(self.jvm.java.lang.String, 1)
        levels[0] = namespace
        return self.iceberg.catalog.Namespace.of(levels)

    def load(self, table_id: str) -> LakeTable | None:
        """Return the lake table of "db.table", or None. TableFault if something of another owner has its name."""
        identifier = self.identifier(*split_table_id(table_id))
        with answered(f"the table {CATALOG}.{table_id} could not be loaded"):
            if not self.catalog.tableExists(identifier):
                if self._has_view(identifier):
                    raise TableFault(
                        f"{CATALOG}.{table_id} is a view, so the table of that name can't be made; drop the view"
                    )
                return None
            found = LakeTable(self, table_id, self.catalog.loadTable(identifier))
            found.owned()
        return found

    def _has_view(self, identifier: Any) -> bool:
        views = self.jvm.java.lang.Class.forName("org.apache.iceberg.catalog.ViewCatalog")
        return bool(views.isInstance(self.catalog) and self.catalog.viewExists(identifier))

    def ensure(self, table_id: str) -> LakeTable:
        """Return the lake table of "db.table", made if it is not there. TableFault as `load`."""
        found = self.load(table_id)
        if found is not None:
            return found
        database, name = split_table_id(table_id)
        made = self.create(database, name, self.iceberg.Schema(self.jvm.java.util.ArrayList()), {OWNER: self.pipeline})
        table = LakeTable(self, table_id, made)
        table.owned()
        return table

    def create(self, namespace: str, name: str, schema: Any, properties: Mapping[str, str]) -> Any:
        """Make a table, or load the one that somebody else made first; return Iceberg's Table."""
        space, identifier = self._namespace(namespace), self.identifier(namespace, name)
        spec = self.iceberg.PartitionSpec.unpartitioned()
        with answered(f"the table {CATALOG}.{namespace}.{name} could not be made"):
            if not self.catalog.namespaceExists(space):
                with suppress(Py4JJavaError):  # another was first, or the next call tells
                    self.catalog.createNamespace(space, self.jvm.java.util.HashMap())
            if not self.catalog.tableExists(identifier):
                with suppress(Py4JJavaError):
                    return self.catalog.createTable(identifier, schema, spec, {**_PROPERTIES, **properties})
            return self.catalog.loadTable(identifier)


class LakeTable:
    """One lake table. One thread at a time; `refresh` before reading what others may have changed."""

    def __init__(self, lake: Lake, table_id: str, table: Any) -> None:
        """Made by `Lake`."""
        self.lake = lake
        self.driver_rows = DRIVER_ROWS
        self._contents: Contents | None = None
        self._settled: frozenset[str] = frozenset()
        self.table_id = table_id
        self.java = table
        self._jvm = lake.jvm
        self._iceberg = lake.iceberg
        database, name = split_table_id(table_id)
        self.spark_name = ".".join(quoted(part) for part in (CATALOG, database, name))

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties as last read."""
        return dict(self.java.properties())

    def refresh(self) -> None:
        """Read what is committed now."""
        self.java.refresh()

    def owned(self) -> None:
        """Raise TableFault if the table, as last read, belongs to another owner than its pipeline."""
        owner, pipeline = self.metadata().property(OWNER, None), self.lake.pipeline
        if owner != pipeline:
            whose = f"pipeline {owner}" if owner else "nobody that Cutline knows"
            raise TableFault(
                f"the lake table {CATALOG}.{self.table_id} belongs to {whose}, not to pipeline {pipeline}; "
                "choose another warehouse or remove that table"
            )

    def fit(self) -> None:
        """Read the table, and raise TableFault if rows can't be laid into it as it is now."""
        with answered(f"the lake table {self.table_id} could not be read"):
            self.refresh()
            self.owned()
            metadata = self.metadata()
            spec, version = metadata.spec(), int(metadata.formatVersion())
            if not spec.isUnpartitioned():
                fields = ", ".join(str(field.name()) for field in spec.fields())
                raise TableFault(
                    f"somebody gave the lake table {CATALOG}.{self.table_id} the partition fields {fields}, and Cutline"
                    " can't lay rows into partitions; ALTER TABLE ... DROP PARTITION FIELD them"
                )
            if version != int(_PROPERTIES["format-version"]):
                raise TableFault(
                    f"somebody gave the lake table {CATALOG}.{self.table_id} the format version {version}, which"
                    " Cutline can't write; drop the table, then it is read again"
                )

    def metadata(self) -> Any:
        """Return Iceberg's TableMetadata as last read."""
        return self.java.operations().current()

    def settle(self) -> None:
        """Make the metadata that this and other commits wrote durable; call it after each commit."""
        folder = local_path(str(self.metadata().metadataFileLocation()).rpartition("/")[0])
        if folder is None:
            return
        names = frozenset(name for name in os.listdir(folder) if not name.startswith("."))
        settle(os.path.join(folder, name) for name in names - self._settled)
        if not self._settled:  # the table may be new, and so its folder and that of its schema
            above = os.path.dirname(folder)
            settle([folder, above, os.path.dirname(above)])
        self._settled = names

    def head(self, ref: str) -> int | None:
        """Return the snapshot that a branch or tag names, or None."""
        found = self.metadata().ref(ref)
        return None if found is None else int(found.snapshotId())

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether a snapshot has not expired."""
        return self.metadata().snapshot(snapshot_id) is not None

    def made_ms(self, snapshot_id: int) -> int | None:
        """Return when a snapshot was made, in ms since the epoch; None if it has expired."""
        found = self.metadata().snapshot(snapshot_id)
        return None if found is None else int(found.timestampMillis())

    # Columns

    def layout(self, schema: TableSchema, generation: int) -> Layout:
        """Lay out `schema`; the offset of a generation is chosen when it is first seen and kept by its first commit."""
        known = self.properties.get(f"{OFFSET}{generation}")
        if known is not None:
            offset = int(known)
        else:
            offset = 0 if self._fits(schema) else int(self.metadata().lastColumnId())
        fields = [_shifted(field, offset) for field in _lake_fields(schema)]
        types = self._iceberg.types.Types
        java = self._jvm.java.util.ArrayList()
        for column, field in zip(schema.lake, fields, strict=True):
            kind = self._type(field)
            builder = types.NestedField.builder().asOptional().withName(field.name).withId(field_id(field)).ofType(kind)
            literal = self._literal(column, field.type, kind)
            if literal is not None:
                builder = builder.withInitialDefault(literal).withWriteDefault(literal)
            java.add(builder.build())
        return Layout(
            schema=schema,
            generation=generation,
            offset=offset,
            arrow=pa.schema(fields),
            java=self._iceberg.Schema(java),
        )

    def _fits(self, schema: TableSchema) -> bool:
        """Whether every field id of `schema` means in the lake what it means there, or nothing yet."""
        known: dict[int, tuple[str, str]] = {}
        for old in self.metadata().schemas():
            for field in old.columns():
                known[int(field.fieldId())] = (str(field.name()), str(field.type().toString()))
                if field.type().isListType():
                    known[int(field.type().elementId())] = ("element", "")
        if not known:
            return True
        for field in _lake_fields(schema):
            ids = {field_id(field): (field.name, str(self._type(field).toString()))}
            if pa.types.is_list(field.type):
                ids[field_id(field.type.value_field)] = ("element", "")
            if any(number in known and known[number] != meaning for number, meaning in ids.items()):
                return False
        return True

    def _type(self, field: pa.Field) -> Any:
        types, kind = self._iceberg.types.Types, field.type
        if pa.types.is_decimal(kind):
            return types.DecimalType.of(kind.precision, kind.scale)
        if pa.types.is_timestamp(kind):
            return types.TimestampType.withZone() if kind.tz else types.TimestampType.withoutZone()
        if pa.types.is_list(kind):
            return types.ListType.ofOptional(field_id(kind.value_field), types.FloatType.get())
        name = {
            pa.int32(): "IntegerType",
            pa.int64(): "LongType",
            pa.float32(): "FloatType",
            pa.float64(): "DoubleType",
            pa.bool_(): "BooleanType",
            pa.string(): "StringType",
            pa.binary(): "BinaryType",
            pa.date32(): "DateType",
        }[kind]
        return getattr(types, name).get()

    def _literal(self, column: Column, kind: pa.DataType, java: Any) -> Any:
        value = default_value(column, kind)
        if value is None:
            return None
        literal = self._iceberg.expressions.Literal
        if isinstance(value, bytes):
            return literal.of(bytearray(value))
        if isinstance(value, bool | float):
            return literal.of(value).to(java)
        if isinstance(value, int):
            made = literal.of(self._jvm.java.lang.Long.parseLong(str(value)))
            return made.to(java)
        if isinstance(value, Decimal):
            return literal.of(self._jvm.java.math.BigDecimal(format(value, "f")))
        if isinstance(value, datetime):
            return literal.of(value.isoformat(timespec="microseconds")).to(java)
        return literal.of(value.isoformat() if isinstance(value, date) else value).to(java)

    # Files

    def new_file(self, name: str) -> str:
        """Return the full path for a new data file."""
        return str(self.java.locationProvider().newDataLocation(name))

    def data_file(self, path: str) -> Any:
        """Describe a Parquet file that carries the lake's field ids, with metrics from its footer."""
        source = self.java.io().newInputFile(path)
        metrics = self._iceberg.parquet.ParquetUtil.fileMetrics(source, self._iceberg.MetricsConfig.forTable(self.java))
        files = self._iceberg.DataFiles.builder(self.java.spec()).withPath(path).withFormat("parquet")
        return files.withFileSizeInBytes(source.getLength()).withMetrics(metrics).build()

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

        `base` is the branch's head as we know it; if there is no such branch it begins there (None: at nothing, or at
        `main`, so `change` must then empty it), and those that older starts have left go, but for `keep`, which a
        publication names. `change` is one of `replace_all`, `append` and `upsert`.
        The snapshot has the schema of `layout`; the table's current schema changes only while there is no `main` that
        anybody could read.
        Raises Unavailable if the branch is not where we left it, Refused if others commit all the time.
        """

        def once() -> int:
            builder_of, operations = self._iceberg.TableMetadata.buildFrom, self.java.operations()
            start = operations.current()
            there = self.head(branch)
            if there is not None and there != base:
                raise Unavailable(
                    f"branch {branch} of {self.table_id} was moved by somebody else; starting again on another"
                )
            transaction = self.java.newTransaction()
            inner = transaction.table().operations()
            builder = builder_of(start)
            if there is None:
                if base is not None:
                    builder.setBranchSnapshot(base, branch)
                for name in self.left_by_older(branch):
                    if name != keep:
                        builder.removeRef(name)
            if f"{OFFSET}{layout.generation}" not in self.properties:
                builder.setProperties({f"{OFFSET}{layout.generation}": str(layout.offset)})
            highest = max([int(start.lastColumnId()), *(_highest(field) for field in layout.arrow)])
            prepared = builder.setCurrentSchema(layout.java, highest).build()
            if prepared.changes().size():
                inner.commit(inner.current(), prepared)
            update, files = change(transaction)
            update.toBranch(branch)
            for key, value in summary.items():
                update.set(key, value)
            update.commit()
            end = inner.current()
            if start.ref("main") is not None and end.currentSchemaId() != start.currentSchemaId():
                end = builder_of(end).setCurrentSchema(start.currentSchemaId()).build()
            made = int(end.ref(branch).snapshotId())
            operations.commit(start, end)
            self.settle()
            self._contents = Contents(snapshot_id=made, files=files)
            return made

        # `fit` has read the table: if it is another by now, the first attempt is refused.
        return self._committed(f"the lake table {self.table_id} refused a commit on {branch}", once, read=False)

    def _committed(self, what: str, once: Callable[[], Committed], *, read: bool = True) -> Committed:
        """Read the table and do `once`, again while others commit in between; Refused says `what` was not done."""
        with answered(what):
            for attempt in range(CONFLICTS):
                if read or attempt:
                    self.java.refresh()
                try:
                    return once()
                except Py4JJavaError as error:
                    if attempt == CONFLICTS - 1 or not _conflict(error):
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _swap(self, base: Any, builder: Any) -> None:
        """Commit what `builder` made of the metadata `base`, if that is anything."""
        made = builder.build()
        if made.changes().size():
            self.java.operations().commit(base, made)
            self.settle()

    def left_by_older(self, branch: str) -> list[str]:
        """Return the staging branches, as last read, that starts before the one of `branch` have made."""
        ours = STAGING.fullmatch(branch)
        number, metadata = int(ours[1]) if ours else 0, self.metadata()
        found = []
        # One call for all names: a table may have hundreds of tags.
        for name in str(self._jvm.java.lang.String.join("\n", metadata.refs().keySet())).split("\n"):
            match = STAGING.fullmatch(name)
            ref = metadata.ref(name) if match is not None and int(match[1]) < number else None
            # A user's branch may be called so too; its head is no commit of that start.
            if ref is not None and match is not None:
                head = metadata.snapshot(ref.snapshotId())
                if head is not None and head.summary().get("cutline.w") == match[1]:
                    found.append(name)
        return found

    def rewind(self, branch: str, snapshot_id: int | None) -> None:
        """Take a branch of ours back to a snapshot, None: remove it."""

        def once() -> None:
            operations = self.java.operations()
            base = operations.current()
            builder = self._iceberg.TableMetadata.buildFrom(base)
            if snapshot_id is not None and self.has_snapshot(snapshot_id):
                builder.setBranchSnapshot(snapshot_id, branch)
            elif base.ref(branch) is not None:
                builder.removeRef(branch)
            self._swap(base, builder)

        self._committed(f"the branch {branch} of {self.table_id} could not be taken back", once)
        self._contents = None

    def replace_all(self, added: Sequence[Any]) -> Change:
        """Make the change that empties the branch and adds data files."""

        def update(transaction: Any) -> tuple[Any, Files]:
            overwrite = transaction.newOverwrite().overwriteByRowFilter(
                self._iceberg.expressions.Expressions.alwaysTrue()
            )
            for file in added:
                overwrite.addFile(file)
            return overwrite, _described(added)

        return update

    def append(self, base: int, added: Sequence[Any]) -> Change:
        """Make the change that adds data files to those of snapshot `base`; they may be none."""

        def update(transaction: Any) -> tuple[Any, Files]:
            append = transaction.newAppend()
            for file in added:
                append.appendFile(file)
            return append, {**self.contents(base).files, **_described(added)}

        return update

    def upsert(self, base: int, added: Sequence[Any], deleted: Mapping[str, Any]) -> Change:
        """Make the change that deletes living rows of snapshot `base` (path -> positions) and adds data files."""

        def update(transaction: Any) -> tuple[Any, Files]:
            files = {**self.contents(base).files, **_described(added)}
            delta = transaction.newRowDelta().validateFromSnapshot(base)
            for file in added:
                delta.addRows(file)
            dead = {path: merged(self.dead(files[path]), places) for path, places in deleted.items()}
            for path, vector in (self._write_vectors(dead) if dead else {}).items():
                old = files[path]
                if old.vector is not None:
                    delta.removeDeletes(old.vector)
                delta.addDeletes(vector)
                files[path] = replace(old, vector=vector, dead=dead[path])
            return delta, files

        return update

    def rewrite(self, base: int, old: Sequence[DataFile], added: Sequence[Any]) -> Change:
        """Make the change that replaces data files of snapshot `base` by others with the same living rows."""

        def update(transaction: Any) -> tuple[Any, Files]:
            files = dict(self.contents(base).files)
            rewrite = transaction.newRewrite().validateFromSnapshot(base)
            for file, vector in self._planned(base, {one.path for one in old}):
                rewrite.deleteFile(file)
                if vector is not None:
                    rewrite.deleteFile(vector)
                del files[str(file.location())]
            for file in added:
                rewrite.addFile(file)
            return rewrite, {**files, **_described(added)}

        return update

    def _planned(self, snapshot_id: int, paths: Collection[str] | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield Iceberg's DataFile and DeleteFile (or None) of a snapshot's files, or of those in `paths`."""
        planned = self.java.newScan().useSnapshot(snapshot_id).planFiles()
        tasks = planned.iterator()
        while tasks.hasNext():
            task = tasks.next()
            file, deletes = task.file(), task.deletes()
            if paths is None or str(file.location()) in paths:
                yield file, None if deletes.isEmpty() else deletes.get(0)
        planned.close()

    def contents(self, snapshot_id: int) -> Contents:
        """Return the data files of a snapshot; planned by Iceberg once, then known from our own commits."""
        if self._contents is None or self._contents.snapshot_id != snapshot_id:
            files: dict[str, DataFile] = {}
            with answered(f"the files of {self.table_id} could not be listed"):
                for file, vector in self._planned(snapshot_id):
                    path = str(file.location())
                    files[path] = DataFile(
                        path=path, rows=int(file.recordCount()), size=int(file.fileSizeInBytes()), vector=vector
                    )
            self._contents = Contents(snapshot_id=snapshot_id, files=files)
        return self._contents

    def positions(self, snapshot_id: int, layout: Layout, keys: pa.Table) -> dict[str, Any]:
        """Find the living rows of a snapshot that have one of `keys`: path -> sorted numpy array of positions.

        `keys` has the columns `k0`, `k1`, ... in the order of the identity key and in the lake's types, each key once.
        """
        contents = self.contents(snapshot_id)
        ids = tuple(column.field_id + layout.offset for column in layout.schema.key_columns)
        if sum(file.rows for file in contents.files.values()) <= self.driver_rows:
            found = by_arrow(contents, ids, keys)
        else:
            there = self.metadata().schemasById().get(self.metadata().snapshot(snapshot_id).schemaId())
            names = tuple(quoted(str(there.findColumnName(number))) for number in ids)
            with answered(f"the rows of {self.table_id} that changed could not be found"):
                found = by_spark(self.lake.session, self.spark_name, snapshot_id, names, keys)
        living = {}
        for path, places in found.items():
            fresh = without(places, self.dead(contents.files[path]))
            if len(fresh):
                living[path] = fresh
        return living

    def dead_rows(self, file: DataFile) -> int:
        """Return how many rows of a file are dead."""
        return 0 if file.vector is None else int(file.vector.recordCount())

    def dead(self, file: DataFile) -> Any:
        """Return the positions of a file's dead rows, sorted."""
        if file.dead is None:
            if file.vector is None:
                file.dead = np.empty(0, np.int64)
            else:
                with answered(f"the deletion vector of {file.path} could not be read"):
                    stream = self.java.io().newInputFile(file.vector.location()).newStream()
                    try:
                        stream.seek(file.vector.contentOffset())
                        file.dead = decode(bytes(stream.readNBytes(int(file.vector.contentSizeInBytes()))))
                    finally:
                        stream.close()
        return file.dead

    def _write_vectors(self, dead: Mapping[str, Any]) -> dict[str, Any]:
        """Write one deletion vector a data file (path -> sorted positions); return path -> Iceberg's DeleteFile."""
        deletes, scala = self._iceberg.deletes, self._jvm.scala.jdk.javaapi
        nothing = scala.CollectionConverters.asScala(self._jvm.java.util.HashMap()).withDefaultValue(None)
        known = scala.FunctionConverters.asJavaFunction(nothing)
        output = self._iceberg.io.OutputFileFactory.builderFor(self.java, 0, 0).format(self._iceberg.FileFormat.PUFFIN)
        writer = deletes.BaseDVFileWriter(output.build(), known)
        for path, places in dead.items():
            vector = encode(places)
            described = self._iceberg.FileMetadata.deleteFileBuilder(self.java.spec()).ofPositionDeletes()
            described = described.withFormat("puffin").withPath(path).withFileSizeInBytes(len(vector))
            described = described.withReferencedDataFile(path).withContentOffset(0).withContentSizeInBytes(len(vector))
            index = deletes.PositionDeleteIndex.deserialize(vector, described.withRecordCount(len(places)).build())
            writer.delete(path, index, self.java.spec(), None)
        writer.close()
        written = writer.result().deleteFiles()
        settle({str(file.location()) for file in written})
        return {str(file.referencedDataFile()): file for file in written}

    # Commits that readers see

    def untag(self, tags: Mapping[str, int]) -> None:
        """Drop those of these tags that are there and hold the snapshot named; another one's tag stays."""

        def once() -> None:
            base = self.java.operations().current()
            builder = self._iceberg.TableMetadata.buildFrom(base)
            for name, snapshot_id in tags.items():
                ref = base.ref(name)
                if ref is not None and ref.isTag() and ref.snapshotId() == snapshot_id:
                    builder.removeRef(name)
            self._swap(base, builder)

        self._committed(f"old tags of {self.table_id} could not be dropped", once)

    def tag(self, name: str, snapshot_id: int) -> None:
        """Let a tag hold a snapshot (create or replace). Raises Unavailable on a conflict."""

        def once() -> None:
            base = self.java.operations().current()
            builder = self._iceberg.TableMetadata.buildFrom(base)
            builder.setRef(name, self._iceberg.SnapshotRef.tagBuilder(snapshot_id).build())
            self._swap(base, builder)

        self._committed(f"the tag {name} of {self.table_id} could not be set", once)

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

        One swap of the metadata: schema of the snapshot, `main`, `cutline.published` = [w, N], tag; the branches that
        older starts have left go, but for `work`, which the publication names. Refused (False) if `allowed` says so of
        the (w, N) that is shown, once it was read. Doing it again changes nothing. Raises Refused if others commit all
        the time, TableFault if the table is another's or has no such snapshot.
        """

        def once() -> bool:
            operations = self.java.operations()
            base = operations.current()
            self.owned()
            shown_w, shown_n = json.loads(self.properties.get(PUBLISHED, "[0, 0]"))
            if not allowed((shown_w, shown_n)):
                return False
            snapshot = base.snapshot(snapshot_id)
            if snapshot is None:
                raise TableFault(gone(self.table_id), lost=True)
            builder = self._iceberg.TableMetadata.buildFrom(base)
            builder.setCurrentSchema(int(snapshot.schemaId()))
            builder.setBranchSnapshot(snapshot_id, "main")
            if [shown_w, shown_n] != [w, n]:
                builder.setProperties({PUBLISHED: json.dumps([w, n])})
            if tag:
                builder.setRef(f"checkpoint_{n}", self._iceberg.SnapshotRef.tagBuilder(snapshot_id).build())
            for name in self.left_by_older(f"staging_{w}"):
                if name != work:
                    builder.removeRef(name)
            self._swap(base, builder)
            return True

        return self._committed(f"main of {self.table_id} could not be moved to publication {n}", once)


def dropped(table_id: str) -> str:
    """Return the cause of a lake table that is gone."""
    return f"the lake table {CATALOG}.{table_id} was dropped by somebody else; retry it, and it is read again"


def gone(table_id: str) -> str:
    """Return the cause of a lake table without the snapshot that Cutline goes on from."""
    return (
        f"the lake table {CATALOG}.{table_id} no longer has the snapshot that Cutline goes on from: it was expired or"
        " replaced by somebody else; retry it, and it is read again"
    )


def _described(added: Sequence[Any]) -> Files:
    described = {}
    for file in added:
        path = str(file.location())
        described[path] = DataFile(path=path, rows=int(file.recordCount()), size=int(file.fileSizeInBytes()))
    return described


# Values


def quoted(name: str) -> str:
    """Quote a name for Spark."""
    return f"`{name.replace('`', '``')}`"


def field_id(field: pa.Field) -> int:
    """Return the field id that an Arrow field carries."""
    return int(field.metadata[FIELD_ID])


def _highest(field: pa.Field) -> int:
    return max(field_id(field), field_id(field.type.value_field)) if pa.types.is_list(field.type) else field_id(field)


def lake_names(columns: Sequence[Column]) -> dict[int, str]:
    """Return what each column is called in the lake, by field id: as at the source, where a reader can tell it apart.

    Spark reads no table that has a column of an Iceberg metadata column's name, and none with two whose names it folds
    to one; MySQL has both, since it folds case by an older table. A list `v` also takes the name `v.element`. Of two
    that clash the younger column gets `_` behind its name, as often as it takes.
    """
    taken = {_folded(name) for name in RESERVED}
    names = {}
    for column in sorted(columns, key=lambda column: column.field_id):
        name = column.name
        while not taken.isdisjoint(used := _taken_by(column, name)):
            name += "_"
        taken |= used
        names[column.field_id] = name
    return names


def _taken_by(column: Column, name: str) -> set[str]:
    return {_folded(name)} | ({_folded(f"{name}.element")} if column.element_id is not None else set())


def _folded(name: str) -> str:
    """Fold a name at least as far as Spark does, which compares upper and lower case of each character."""
    return name.upper().casefold().replace("\u0307", "")  # which İ leaves behind its i


def _lake_fields(schema: TableSchema) -> list[pa.Field]:
    names = lake_names(schema.lake)
    return [schema.field(column).with_name(names[column.field_id]) for column in schema.lake]


def _shifted(field: pa.Field, offset: int) -> pa.Field:
    if not offset:
        return field
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_shifted(kind.value_field, offset))
    return pa.field(field.name, kind, metadata={FIELD_ID: str(field_id(field) + offset)})


def default_value(column: Column, kind: pa.DataType) -> Any:
    """Return a column's initial default as a Python value of its Arrow type, None if it has none (or a zero date)."""
    text = column.initial_default
    if text is None:
        return None
    base = parse_type(column.mysql_type).base
    try:
        if base == "bit":
            bits = parse_type(column.mysql_type).numbers or (1,)
            number = int(text[2:-1], 2) if text.startswith("b'") else int(text)
            return bool(number) if pa.types.is_boolean(kind) else number.to_bytes((bits[0] + 7) // 8, "big")
        if base == "time":
            sign = -1 if text.startswith("-") else 1
            hours, minutes, seconds = text.lstrip("-").split(":")
            return sign * ((int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000))
        if pa.types.is_boolean(kind):
            return bool(Decimal(text))
        if pa.types.is_integer(kind):
            return int(Decimal(text))
        if base == "decimal":
            scale = (*parse_type(column.mysql_type).numbers, 0)[1]
            exact = _EXACT.plus(_EXACT.quantize(Decimal(text), Decimal(1).scaleb(-scale)))
            return exact if pa.types.is_decimal(kind) else f"{exact:f}"
        if pa.types.is_decimal(kind):
            return Decimal(text)
        if pa.types.is_floating(kind):
            return float(text)
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            if "-00" in text or text.startswith("0000"):
                return None
            return date.fromisoformat(text) if pa.types.is_date(kind) else _moment(text, kind.tz)
        return text.encode() if pa.types.is_binary(kind) else text
    except (ValueError, ArithmeticError) as error:
        raise ProtocolError(
            f"the default {text!r} of column {column.name} is no {column.mysql_type}; it must start a new generation"
        ) from error


def _moment(text: str, zone: str | None) -> datetime:
    return datetime.fromisoformat(text + "+00:00" if zone else text)


# Files


def settle(paths: Iterable[str]) -> None:
    """Sync those of the files (with Hadoop's checksums) that are on this machine, then the folders they stand in."""
    folders = set()
    for path in paths:
        local = local_path(path)
        if local is None:
            continue
        folder, name = os.path.split(local)
        folders.add(folder)
        for one in (local, os.path.join(folder, f".{name}.crc")):
            with suppress(FileNotFoundError):
                sync(one)
    for folder in folders:
        sync(folder)


def sync(path: str) -> None:
    """Sync one file or folder of this machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_output(path: str) -> BinaryIO:
    """Open a new data file of the lake for writing, its folder included."""
    local = local_path(path)
    if local is None:
        return cast(BinaryIO, fsspec.open(path, "wb").open())
    os.makedirs(os.path.dirname(local), exist_ok=True)
    return open(local, "wb")
