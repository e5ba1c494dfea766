"""The form of a lake table beside its columns, by its metadata: its order of rows, its partitions, the comments of its
columns; and what other users have made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.spark_writer.sinks.contract import TableFault
from cutline.spark_writer.sinks.iceberg.columns import OFFSET, Layout, Unsuitable
from cutline.spark_writer.sinks.iceberg.foreign import shown
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, items
from cutline.spark_writer.sinks.iceberg.metadata import Metadata
from cutline.spark_writer.sinks.iceberg.naming import CATALOG
from cutline.spark_writer.sinks.iceberg.partitioning import PARTITION
from cutline.spark_writer.sinks.iceberg.partitioning import chosen as partition_fields
from cutline.spark_writer.sinks.iceberg.partitioning import recorded as partition_of
from cutline.spark_writer.sinks.iceberg.position_deletes import is_usable
from cutline.spark_writer.sinks.iceberg.sorting import SORT, chosen, fitting, recorded
from cutline.spark_writer.sinks.iceberg.sorting import to_java as sort_order_to_java

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


def shown_summary(metadata: Metadata) -> Any:
    """The summary of the snapshot that Cutline last showed, {} without one."""
    known = shown(metadata).snapshot_id
    snapshot = None if known is None else metadata.snapshot(known)
    return {} if snapshot is None else snapshot.summary()


def their_order(metadata: Metadata) -> Any:
    """The table's sort order if another user has set it, else None."""
    ours = metadata.property(SORT_ORDER, None) or shown_summary(metadata).get(SORT_ORDER) or UNSORTED
    return metadata.sortOrder() if int(ours) != metadata.defaultSortOrderId() else None


def order_of(jvm: Jvm, base: Metadata, layout: Layout) -> Any:
    """Iceberg's SortOrder that the table must get with the columns of a layout, None if it needs none."""
    theirs = their_order(base)
    if theirs is not None:
        return fitting(jvm, theirs, layout.java)
    return sort_order_to_java(jvm, layout) if layout.sort or base.defaultSortOrderId() else None


def check_partition(metadata: Metadata, table_id: str) -> None:
    """Raise TableFault if another user changed how the table is partitioned.

    A default spec that is one of Cutline's is set back when `main` moves: earlier versions left such.
    """
    default = int(metadata.defaultSpecId())
    made = int(shown_summary(metadata).get(SPEC) or UNPARTITIONED)
    if default == made:
        return
    kept = metadata.properties().items()
    ours = {json.loads(value)["spec-id"] for name, value in kept if name.startswith(PARTITION)}
    if default in ours:
        return
    if made == UNPARTITIONED:
        fields = ", ".join(str(field.name()) for field in metadata.spec().fields())
        raise TableFault(
            f"another user partitioned the lake table {CATALOG}.{table_id} by {fields}, and Cutline can't"
            " write to partitions that it did not make",
            "remove them by ALTER TABLE ... DROP PARTITION FIELD, then retry the table",
        )
    raise TableFault(
        f"another user changed the partitions of the lake table {CATALOG}.{table_id}, which Cutline divides",
        "undo that by ALTER TABLE, then retry the table",
    )


def comments_of(metadata: Metadata) -> Mapping[int, str]:
    """The comments that another user gave to columns, by the lake's field ids: those that the table has noted, and
    those of its current columns that differ from what Cutline showed.
    """
    noted = {int(number): text for number, text in json.loads(metadata.property(COMMENTS, "{}")).items()}
    known = shown(metadata).snapshot_id
    snapshot = None if known is None else metadata.snapshot(known)
    if snapshot is None or int(snapshot.schemaId()) == metadata.currentSchemaId():
        return noted
    before = _docs(metadata.schemasById().get(int(snapshot.schemaId())))
    now = _docs(metadata.schema())
    return noted | {number: text for number, text in now.items() if number in before and text != before[number]}


def _docs(schema: Any) -> dict[int, str]:
    """The comments of a schema's columns, by field id."""
    return {int(field.fieldId()): str(field.doc() or "") for field in schema.columns()}


def noted_comments(comments: Mapping[int, str]) -> str:
    """The property `COMMENTS` with these comments."""
    return json.dumps({str(number): text for number, text in sorted(comments.items())})


def divided_and_sorted(jvm: Jvm, metadata: Metadata, layout: Layout, wanted: Sequence[str]) -> Layout:
    """A layout with the order and the partitions of its generation: those that the table has noted, or the order that
    is `wanted` if the generation has not begun. TableFault if the columns don't allow it."""
    generation = layout.generation
    sort = metadata.property(f"{SORT}{generation}", None)
    try:
        if sort is not None:
            layout = replace(layout, sort=recorded(sort, layout.arrow))
        elif metadata.property(f"{OFFSET}{generation}", None) is None:
            layout = replace(layout, sort=chosen(layout.schema, layout.offset, wanted))
        if (spec := metadata.property(f"{PARTITION}{generation}", None)) is not None:
            java = jvm.iceberg.PartitionSpecParser.fromJson(layout.java, spec)
            layout = replace(layout, partition=partition_of(json.loads(spec), layout.arrow), spec=java)
        elif metadata.spec_count() > 1:
            layout = replace(layout, spec=metadata.spec(UNPARTITIONED))
    except Unsuitable as error:
        raise TableFault(error.cause) from error
    return layout


def with_spec(jvm: Jvm, metadata: Metadata, layout: Layout, wanted: Sequence[str]) -> Any:
    """Return Iceberg's TableMetadata with the partition spec that is `wanted` for a layout's generation, and with its
    columns; the properties note both. What readers see stays. TableFault if the columns don't allow it."""
    base, iceberg, generation = metadata.java, jvm.iceberg, layout.generation
    specs = {
        int(spec.specId()): json.loads(str(iceberg.PartitionSpecParser.toJson(spec))) for spec in items(base.specs())
    }
    known = {
        (field["source-id"], field["transform"]): (field["field-id"], field["name"])
        for spec in specs.values()
        for field in spec["fields"]
    }
    try:
        fields = partition_fields(
            layout.schema, layout.offset, wanted, known=known, last=int(base.lastAssignedPartitionId())
        )
    except Unsuitable as error:
        raise TableFault(error.cause) from error
    same = [number for number, spec in specs.items() if spec["fields"] == fields]
    spec = {"spec-id": same[0] if same else max(specs) + 1, "fields": fields}
    builder = iceberg.TableMetadata.buildFrom(base)
    builder.setCurrentSchema(layout.java, max(metadata.lastColumnId(), layout.highest_id))
    if (order := order_of(jvm, metadata, layout)) is not None:
        builder.setDefaultSortOrder(order)
    builder.setDefaultPartitionSpec(iceberg.PartitionSpecParser.fromJson(layout.java, json.dumps(spec)))
    properties = {f"{OFFSET}{generation}": str(layout.offset), f"{PARTITION}{generation}": json.dumps(spec)}
    if layout.sort:
        properties[f"{SORT}{generation}"] = json.dumps(layout.sort)
    again = iceberg.TableMetadata.buildFrom(builder.setProperties(properties).build())
    again.setDefaultPartitionSpec(base.defaultSpecId()).setCurrentSchema(base.currentSchemaId())
    return again.setDefaultSortOrder(base.defaultSortOrderId()).build()


def check_files(jvm: Jvm, java: Any, table_id: str, snapshot_id: int | None) -> None:
    """Raise TableFault if others have written files to Iceberg's Table `java` from which Cutline can't delete rows."""
    planned = java.newScan().useSnapshot(snapshot_id).planFiles()
    tasks = planned.iterator()
    while tasks.hasNext():
        task = tasks.next()
        file, deletes = task.file(), task.deletes()
        ours = str(file.format()) == "PARQUET" and file.specId() == java.spec().specId()
        if not ours or deletes.size() > 1 or not all(is_usable(jvm, each) for each in items(deletes)):
            raise TableFault(
                Cause(
                    Code.FOREIGN_COMMIT,
                    f"another user wrote files to the lake table {CATALOG}.{table_id} in a form that Cutline can't"
                    " change",
                    "rewrite them by rewrite_data_files as Parquet without partitions, then retry the table",
                )
            )
    planned.close()
