"""The publications as tables of the lake: the table `_cutline.publications` and the view `_cutline.cuts`.

For each publication N of a pipeline, the table has one row for the pipeline (`table` is null) and one row for each
lake table whose state or snapshot changed since the previous publication. The view fills in the rest: every table at
every N. The first publication that a start writes has all tables, so rows of publications that are off the chain never
appear in the view's later cuts; it replaces the rows that an earlier start may have written of it. Later ones are
appended, since an overwrite reads the manifests of all publications before.

**No row comes twice.** A start's first write puts its w into the table's property `cutline.w.{pipeline}`, and each
append is one swap with the check that this w still stands there. So a start that was suspended between a publication
and its rows appends nothing once another start has written that publication anew. Equality is enough, as each start
writes there first; and a pipeline that was removed and defined again may begin at w = 1.
"""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from cutline.common.errors import Unavailable
from cutline.common.positions import Position
from cutline.common.schema import FIELD_ID
from cutline.common.store.records import Publication, changes
from cutline.spark_writer.iceberg.jvm import failing_as
from cutline.spark_writer.iceberg.lake import Lake
from cutline.spark_writer.iceberg.maintenance import expire
from cutline.spark_writer.iceberg.table import LakeTable, write_rows
from cutline.spark_writer.session import CATALOG

logger = logging.getLogger("cutline.spark_writer")
NAMESPACE = "_cutline"
NAME = "publications"
VIEW = "cuts"
_ATTEMPTS = 10  # at a commit: many pipelines write here, each its own rows
_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("pipeline", pa.string(), "StringType"),
    ("checkpoint", pa.int64(), "LongType"),
    ("table", pa.string(), "StringType"),
    ("state", pa.string(), "StringType"),
    ("snapshot_id", pa.int64(), "LongType"),
    ("file", pa.string(), "StringType"),
    ("position", pa.int64(), "LongType"),
    ("gtid", pa.string(), "StringType"),
    ("source_time", pa.timestamp("us", "UTC"), "TimestampType"),
    ("published_at", pa.timestamp("us", "UTC"), "TimestampType"),
    ("shown", pa.bool_(), "BooleanType"),
)
_ARROW = pa.schema(
    [pa.field(name, kind, metadata={FIELD_ID: str(at)}) for at, (name, kind, _) in enumerate(_COLUMNS, start=1)]
)
_PROPERTIES = {
    # An overwrite by pipeline and checkpoint must see in the metrics alone that a file holds no other rows.
    "write.metadata.metrics.default": "full",
    # Many pipelines write here, each its own rows.
    "commit.retry.num-retries": "10",
}
_VIEW = f"""
CREATE VIEW IF NOT EXISTS {CATALOG}.{NAMESPACE}.{VIEW} AS
SELECT cut.pipeline, cut.checkpoint, changed.table, changed.state, changed.snapshot_id,
       CASE WHEN changed.shown THEN cut.file ELSE changed.file END AS file,
       CASE WHEN changed.shown THEN cut.position ELSE changed.position END AS position,
       CASE WHEN changed.shown THEN cut.gtid ELSE changed.gtid END AS gtid,
       cut.source_time, cut.published_at
FROM {CATALOG}.{NAMESPACE}.{NAME} AS cut
JOIN (
  SELECT *, lead(checkpoint) OVER (PARTITION BY pipeline, `table` ORDER BY checkpoint) AS until
  FROM {CATALOG}.{NAMESPACE}.{NAME} WHERE `table` IS NOT NULL
) AS changed
ON cut.pipeline = changed.pipeline AND cut.checkpoint >= changed.checkpoint
   AND (changed.until IS NULL OR cut.checkpoint < changed.until)
WHERE cut.`table` IS NULL
"""


class Publications:
    """Writes the rows of the publications of one start."""

    def __init__(self, lake: Lake, w: int) -> None:
        """Take the number of the start. The table is opened, or created, at its first use."""
        self._lake = lake
        self._w = w
        self._table: LakeTable | None = None

    def write(self, record: Publication, before: Publication | None) -> None:
        """Write the rows of `record`; `before` is the last record that this start wrote, None at its first.

        Raises Unavailable if another start has written rows of this pipeline since.
        """
        pipeline, failure = self._lake.pipeline, f"{NAMESPACE}.{NAME} could not be written"
        with failing_as(failure):
            table = self._opened()
            rows = publication_rows(record, before, pipeline)
            (file,) = write_rows(table, iter([pa.Table.from_pylist(rows, schema=_ARROW)]))
        expressions = self._lake.jvm.iceberg.expressions.Expressions
        writer = f"cutline.w.{pipeline}"

        def once() -> None:
            base = table.metadata()
            transaction = table.java.newTransaction()
            if before is None:
                same_publication = getattr(expressions, "and")(
                    expressions.equal("pipeline", pipeline), expressions.equal("checkpoint", record.n)
                )
                transaction.updateProperties().set(writer, str(self._w)).commit()
                transaction.newOverwrite().overwriteByRowFilter(same_publication).addFile(file).commit()
            elif base.property(writer, None) == str(self._w):
                transaction.newAppend().appendFile(file).commit()
            else:
                raise Unavailable(
                    f"another Spark writer has written to {NAMESPACE}.{NAME} for pipeline {pipeline}; starting again"
                    " after it"
                )
            table.java.operations().commit(base, transaction.table().operations().current())
            table.sync_metadata()

        table.committed(failure, once, attempts=_ATTEMPTS)

    def check(self, *, expected: bool) -> None:
        """Raise Unavailable unless the lake accepts a commit on this table, which is Cutline's own.

        So it shows, after an error of another table, whether the catalogue and the warehouse answer. `expected`: the
        table existed before, so it must still exist.
        """
        with failing_as("the lake did not accept a commit on Cutline's own table"):
            table = self._open(expected=expected)
            table.java.updateProperties().set("cutline.checked", uuid.uuid4().hex).commit()

    def tidy(self, n: int, before_ms: int) -> None:
        """Expire old snapshots of the table, and merge this pipeline's small files of publications before `n`."""
        table = self._opened()
        expire(table, before_ms=before_ms)
        with failing_as(f"{NAMESPACE}.{NAME} could not be compacted"):
            self._lake.session.sql(
                f"CALL {CATALOG}.system.rewrite_data_files(table => '{NAMESPACE}.{NAME}',"
                f" where => \"pipeline = '{self._lake.pipeline}' and checkpoint < {n}\","
                " options => map('min-input-files', '50'))"
            )

    def _opened(self) -> LakeTable:
        if self._table is None or self._table.rights.expire:
            self._table = self._open()
        return self._table

    def make_view(self) -> None:
        """Create the view if it does not exist (takes seconds: call it when idle). Not all catalogues support views."""
        try:
            with failing_as(f"the view {NAMESPACE}.{VIEW} could not be created"):
                self._lake.session.sql(_VIEW)
        except Unavailable as error:
            logger.warning("%s", error)

    def _open(self, *, expected: bool = False) -> LakeTable:
        if expected and not self._lake.exists(NAMESPACE, NAME):
            raise Unavailable(
                f"the lake's table {NAMESPACE}.{NAME} is gone, so this is not the lake that Cutline wrote; correct the"
                " catalogue"
            )
        types, fields = self._lake.jvm.iceberg.types.Types, self._lake.jvm.root.java.util.ArrayList()
        for at, (name, _, kind) in enumerate(_COLUMNS, start=1):
            column_type = types.TimestampType.withZone() if kind == "TimestampType" else getattr(types, kind).get()
            fields.add(types.NestedField.optional(at, name, column_type))
        java = self._lake.create(NAMESPACE, NAME, self._lake.jvm.iceberg.Schema(fields), _PROPERTIES)
        return self._lake.table(f"{NAMESPACE}.{NAME}", java)


def publication_rows(record: Publication, before: Publication | None, pipeline: str) -> list[dict[str, Any]]:
    """Return the rows of a publication: the pipeline's, then those of the tables that changed since `before`."""
    times = {
        "pipeline": pipeline,
        "checkpoint": record.n,
        "source_time": _time(record.source_time),
        "published_at": _time(record.published_at),
    }
    rows = [{**times, "table": None, "state": None, "snapshot_id": None, "shown": None, **_columns_of(record.position)}]
    for table_id, table in sorted(changes(record.tables, {} if before is None else before.tables).items()):
        if table is not None:
            rows.append(
                {
                    **times,
                    "table": table_id,
                    "state": table.state,
                    "snapshot_id": table.main and table.main.snapshot_id,
                    "shown": table.shown,
                    **_columns_of(record.position_of(table_id)),
                }
            )
    return rows


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)


def _columns_of(position: Position | None) -> dict[str, Any]:
    if position is None:
        return {"file": None, "position": None, "gtid": None}
    return {"file": position.file, "position": position.offset, "gtid": position.gtids or None}
