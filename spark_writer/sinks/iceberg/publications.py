"""The publications as tables of the lake: the table `publications` and the view `cuts`, in the namespace `_cutline` or
the one that the pipeline chose (`sink.own_namespace`).

For each publication N of a pipeline, the table has one row for the pipeline (`table` is null) and one row for each
lake table whose state or snapshot changed since the previous publication. The view fills in the rest: every table at
every N. The first publication that a start writes has all tables, so rows of publications that are off the chain never
appear in the view's later cuts; it replaces the rows that an earlier start may have written of it. Later ones are
appended, since an overwrite reads the manifests of all publications before.

**No row comes twice.** A start's first write puts its life's id and its w into the table's property
`cutline.w.{pipeline}`, and each append is one swap with the check that these still stand there. So a start that was
suspended between a publication and its rows appends nothing once another start has written that publication anew.
Equality is enough, as each start writes there first.

**A name has rows of one life.** Where the property names another life of the pipeline (owner.py), a start ends before
it has written anything, or takes the name over if it may: its first write then replaces all rows of the name.

**Rows go with their publications** (`Publications.tidy`). Where retention keeps publications up to the oldest one that
can be restored, the rows up to that one become those of the kept ones: each with all tables that changed since the kept
one before it, so that the view stays right with the rows of others gone. They come from the records of the store.
Files are replaced whole: only those that also hold later rows, or rows of other pipelines, are read. Small files are
merged on the way, up to a size, so a round costs what the last ones brought, whatever the age of the pipeline.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.config import reserved
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.positions import Position
from cutline.common.schema import FIELD_ID
from cutline.common.store.deltas import changes
from cutline.common.store.records import Publication
from cutline.spark_writer.sinks.iceberg.columns import quoted
from cutline.spark_writer.sinks.iceberg.data_files import data_file
from cutline.spark_writer.sinks.iceberg.files import open_parquet, write_parquet
from cutline.spark_writer.sinks.iceberg.jvm import failing_as
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.leftovers import removed_after
from cutline.spark_writer.sinks.iceberg.maintenance import expire
from cutline.spark_writer.sinks.iceberg.naming import CATALOG
from cutline.spark_writer.sinks.iceberg.owner import EARLIER, Relation, earlier_of, with_earlier
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from cutline.spark_writer.sinks.iceberg.works import snapshot_of

logger = logging.getLogger("cutline.spark_writer")
NAME, VIEW = reserved.PUBLICATIONS, reserved.CUTS
_ATTEMPTS = 10  # at a commit: many pipelines write here, each its own rows
MERGED_FILES = 50
"""This many small files of a pipeline are merged into one."""
SMALL_ROWS = 2000
"""A file of fewer rows is small."""
_READERS = 8
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
    # The files that may hold the rows of a pipeline and a checkpoint are found by their metrics alone.
    "write.metadata.metrics.default": "full",
    # Many pipelines write here, each its own rows.
    "commit.retry.num-retries": "10",
}
_VIEW = f"""
CREATE VIEW IF NOT EXISTS {CATALOG}.{{namespace}}.{VIEW} AS
SELECT cut.pipeline, cut.checkpoint, changed.table, changed.state, changed.snapshot_id,
       CASE WHEN changed.shown THEN cut.file ELSE changed.file END AS file,
       CASE WHEN changed.shown THEN cut.position ELSE changed.position END AS position,
       CASE WHEN changed.shown THEN cut.gtid ELSE changed.gtid END AS gtid,
       cut.source_time, cut.published_at
FROM {CATALOG}.{{namespace}}.{NAME} AS cut
JOIN (
  SELECT *, lead(checkpoint) OVER (PARTITION BY pipeline, `table` ORDER BY checkpoint) AS until
  FROM {CATALOG}.{{namespace}}.{NAME} WHERE `table` IS NOT NULL
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
        self._namespace = lake.own_namespace
        self.table_id = f"{self._namespace}.{NAME}"
        self._table: LakeTable | None = None
        self._tidied: tuple[Any, ...] = ()

    def write(self, record: Publication, before: Publication | None, left: Collection[int] = ()) -> None:
        """Write the rows of `record`; `before` is the last record that this start wrote, None at its first. Then the
        rows of the publications `left`, which a restore has left behind, go too.

        Raises Unavailable if another start has written rows of this pipeline since.
        """
        pipeline, failure = self._lake.pipeline, f"{self.table_id} could not be written"
        with failing_as(failure):
            table = self._opened()
            rows = publication_rows(record, before, pipeline)
            added = _written(table, pa.Table.from_pylist(rows, schema=_ARROW))

        def prepare(transaction: Any) -> Any:
            if before is not None:
                return transaction.newAppend().appendFile(*added)
            name, life, earlier = self._holder(table.metadata())
            adopted = self._lake.owner.relation(name, life, earlier) == Relation.ADOPTED
            properties = transaction.updateProperties().set(self._writer, self._mark)
            if adopted:
                properties.set(self._earlier, with_earlier(earlier, name, life))
            properties.commit()
            gone = pa.array([*left, record.n], pa.int64())
            between, is_gone = (
                self._rows_where(
                    self._expressions.greaterThanOrEqual("checkpoint", min([*left, record.n])),
                    self._expressions.lessThanOrEqual("checkpoint", max([*left, record.n])),
                ),
                lambda found: pc.is_in(found, value_set=gone),
            )
            if adopted:
                between, is_gone = self._rows_where(), pc.is_valid
            candidates = self._files(table, between)
            kept = dict(zip(candidates, _read(list(candidates), pipeline, is_gone), strict=True))
            replaced = {path: file for path, file in candidates.items() if len(kept[path]) < file.recordCount()}
            others = pa.concat_tables([_ARROW.empty_table(), *(kept[path] for path in replaced)])
            return _overwrite(transaction, replaced, [*added, *_written(table, others)])

        self._commit(table, failure, prepare, first=before is None)

    @property
    def _writer(self) -> str:
        return f"cutline.w.{self._lake.pipeline}"

    @property
    def _mark(self) -> str:
        return f"{self._lake.owner.id}/{self._w}"

    @property
    def _earlier(self) -> str:
        return f"{EARLIER}.{self._lake.pipeline}"

    def _holder(self, metadata: Any) -> tuple[str | None, str | None, frozenset[str]]:
        """The name, if there are rows of it, the id of the life that wrote the last ones (None: it had none), and the
        lives from which it took the name over."""
        mark = metadata.property(self._writer, None)
        if mark is None:
            return None, None, frozenset()
        life, _, _ = str(mark).rpartition("/")
        return self._lake.pipeline, life or None, earlier_of(metadata.property(self._earlier, None))

    def check_holder(self) -> None:
        """Raise ConfigError, with the choices, if the lake has publications of another life of this pipeline that it
        may not take over."""
        if not self._lake.exists(self._namespace, NAME):
            return
        with failing_as(f"{self.table_id} could not be read"):
            self._check_holder(self._opened().metadata())

    def _check_holder(self, metadata: Any) -> None:
        name, life, earlier = self._holder(metadata)
        what = f"what {self.table_id} has under the name {name}"
        if name is not None and (refusal := self._lake.owner.refusal(what, name, life, earlier)) is not None:
            raise ConfigError(refusal)

    @property
    def _expressions(self) -> Any:
        return self._lake.jvm.iceberg.expressions.Expressions

    def _rows_where(self, *conditions: Any) -> Any:
        """The expression for this pipeline's rows that meet all conditions."""
        found = self._expressions.equal("pipeline", self._lake.pipeline)
        for condition in conditions:
            found = getattr(self._expressions, "and")(found, condition)
        return found

    def _commit(self, table: LakeTable, failure: str, prepare: Callable[[Any], Any], *, first: bool = False) -> None:
        """Commit the update that `prepare` makes in a transaction, if no other start has written since; `first`: in any
        case. Raises Unavailable if one has.
        """

        def once() -> None:
            base = table.metadata()
            self._check_holder(base)
            if not first and base.property(self._writer, None) != self._mark:
                raise Unavailable(
                    f"another Spark writer has written to {self.table_id} for pipeline {self._lake.pipeline}",
                    "starting again after it",
                )
            transaction = table.java.newTransaction()
            prepare(transaction).commit()
            table.calls.take(transaction)
            with removed_after(table.calls):
                table.calls.swapIn()
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

    def tidy(self, kept: Sequence[Publication], newest: int, before_ms: int) -> None:
        """Remove the rows of this pipeline's publications up to the last of `kept`, except those of `kept`; merge small
        files; expire snapshots of the table that are older than `before_ms`.

        `kept` are the publications that retention keeps, up to the oldest restorable one, in order; `newest` is the
        number of the newest publication. Where these are the ones of the last call, only snapshots expire. Raises
        Unavailable if another start has written rows of this pipeline since.
        """
        table = self._opened()
        goal = (newest, *(record.n for record in kept))
        if goal != self._tidied:
            with failing_as(f"old rows of {self.table_id} could not be removed"):
                table.refresh()
                self._replace_files(table, kept, newest)
            self._tidied = goal
        expire(table, before_ms=before_ms)

    def _replace_files(self, table: LakeTable, kept: Sequence[Publication], newest: int) -> None:
        pipeline, oldest, expressions = self._lake.pipeline, kept[-1].n, self._expressions
        old = self._files(table, self._rows_where(expressions.lessThanOrEqual("checkpoint", oldest)))
        later = self._rows_where(
            expressions.greaterThan("checkpoint", oldest), expressions.lessThan("checkpoint", newest)
        )
        small = {
            path: file
            for path, file in self._files(table, later).items()
            if path not in old and file.recordCount() < SMALL_ROWS
        }
        replaced = {**old, **(small if len(small) >= MERGED_FILES else {})}
        if not replaced:
            return
        either = getattr(expressions, "or")
        others = either(expressions.lessThan("pipeline", pipeline), expressions.greaterThan("pipeline", pipeline))
        with_more = self._files(table, either(others, expressions.greaterThan("checkpoint", oldest)))
        rows = retained_rows(kept, pipeline) if old else []
        merged = [pa.Table.from_pylist(rows, schema=_ARROW)]
        merged += _read(
            [path for path in replaced if path in with_more], pipeline, lambda found: pc.less_equal(found, oldest)
        )
        added = _written(table, pa.concat_tables(merged))
        failure = f"old rows of {self.table_id} could not be removed"
        self._commit(table, failure, lambda transaction: _overwrite(transaction, replaced, added))

    @staticmethod
    def _files(table: LakeTable, rows: Any) -> dict[str, Any]:
        """The data files, by path, that may hold such rows by their metrics."""
        planned = table.java.newScan().filter(rows).planFiles()
        tasks, found = planned.iterator(), {}
        while tasks.hasNext():
            file = tasks.next().file()
            found[str(file.location())] = file
        planned.close()
        return found

    def _opened(self) -> LakeTable:
        if self._table is None or self._table.rights.expire:
            self._table = self._open()
        return self._table

    def make_view(self) -> None:
        """Create the view if it does not exist (takes seconds: call it when idle). Not all catalogues support views."""
        try:
            with failing_as(f"the view {self._namespace}.{VIEW} could not be created"):
                self._lake.session.sql(_VIEW.format(namespace=quoted(self._namespace)))
        except Unavailable as error:
            logger.warning("%s", error)

    def load(self) -> LakeTable:
        """Return the table, created if it does not exist: another object for each call, so for another thread too."""
        return self._open()

    def _open(self, *, expected: bool = False) -> LakeTable:
        if expected and not self._lake.exists(self._namespace, NAME):
            raise Unavailable(
                f"the lake's table {self.table_id} is gone, so this is not the lake that Cutline wrote",
                "correct the catalogue",
            )
        types, fields = self._lake.jvm.iceberg.types.Types, self._lake.jvm.root.java.util.ArrayList()
        for at, (name, _, kind) in enumerate(_COLUMNS, start=1):
            column_type = types.TimestampType.withZone() if kind == "TimestampType" else getattr(types, kind).get()
            fields.add(types.NestedField.optional(at, name, column_type))
        calls = self._lake.create(self._namespace, NAME, self._lake.jvm.iceberg.Schema(fields), _PROPERTIES)
        return self._lake.table(self.table_id, calls)


def forget(lake: Lake) -> None:
    """Remove the rows of this life of a pipeline, and its mark; those of another life stay. May be repeated."""
    if not lake.exists(lake.own_namespace, NAME):
        return
    publications = Publications(lake, 0)
    table = publications.load()
    name, life, _ = publications._holder(table.metadata())
    if not lake.owner.has(name, life):
        return
    spark_name = f"{CATALOG}.{quoted(lake.own_namespace)}.{NAME}"
    lake.session.sql(f"DELETE FROM {spark_name} WHERE pipeline = '{lake.pipeline}'")
    table.refresh()
    table.java.updateProperties().remove(publications._writer).remove(publications._earlier).commit()


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
                    "snapshot_id": table.main and snapshot_of(table.main.content),
                    "shown": table.shown,
                    **_columns_of(record.position_of(table_id)),
                }
            )
    return rows


def retained_rows(kept: Sequence[Publication], pipeline: str) -> list[dict[str, Any]]:
    """Return the rows of some publications, in order, where no others are before or between them: those of the first
    have all tables.
    """
    rows = []
    before: Publication | None = None
    for record in kept:
        rows += publication_rows(record, before, pipeline)
        before = record
    return rows


def _written(table: LakeTable, rows: pa.Table) -> list[Any]:
    """Write rows as one durable data file; no rows: no file."""
    if not len(rows):
        return []
    path = table.new_file(f"{uuid.uuid4().hex}.parquet")
    write_parquet(path, [rows])
    return [data_file(table, path)]


def _overwrite(transaction: Any, replaced: Mapping[str, Any], added: Sequence[Any]) -> Any:
    overwrite = transaction.newOverwrite()
    for file in replaced.values():
        overwrite.deleteFile(file)
    for file in added:
        overwrite.addFile(file)
    return overwrite


def _read(paths: Sequence[str], pipeline: str, gone: Callable[[Any], Any]) -> list[pa.Table]:
    """The rows of each of these files, without this pipeline's of the publications that are `gone`, by number."""

    def read(path: str) -> pa.Table:
        with open_parquet(path) as file:
            found = file.read().select(_ARROW.names).cast(_ARROW)
        return found.filter(pc.invert(pc.and_(pc.equal(found["pipeline"], pipeline), gone(found["checkpoint"]))))

    with ThreadPoolExecutor(_READERS, thread_name_prefix="cutline-publications") as readers:
        return list(readers.map(read, paths))


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)


def _columns_of(position: Position | None) -> dict[str, Any]:
    if position is None:
        return {"file": None, "position": None, "gtid": None}
    return {"file": position.file, "position": position.offset, "gtid": position.gtids or None}
