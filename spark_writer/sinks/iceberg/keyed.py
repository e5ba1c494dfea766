"""`refresh: keys`: a derived table computed of the changes alone, with the same result as if it were computed in full.

Let the query read tables T1, T2, …; what came and went since its last content are the rows D1, D2, … with weights 1 and
-1 (row_changes.py). The rows that its joins, filters and projections make have changed by the sum, over the changed
tables i, of the same query over the *old* tables before i, Di, and the *new* tables behind i. Each term is small, since
Di is, and is broadcast into its join. How what that makes meets further tables is Spark's choice, as it may be large.

- **Without GROUP BY** the weights of equal rows of that sum are added up. So many rows come to the derived table, or
  leave it. Only whole numbers are added, so nothing drifts.
- **With GROUP BY** the sum names all groups that can have changed; of a table that alone tells a row's group, its own
  changed rows do, without a join. The query is computed for these alone: their rows
  leave the derived table, and the new ones come. Aggregates are computed anew, never added up. Of a join the table of
  which most of GROUP BY are is cut down to these groups first, and then broadcast (`Keyed.seeds`).

Keyed.java says which queries can be computed so, and changes their plans. What is too large for this process raises
InFull, and so does an error of Spark's: the query over rows that never met may fail where the query itself does not.
The rows of the derived table are found by a scan of the columns that name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, FloatType, IntegerType, LongType, StructType

from cutline.common.store.records import Content
from cutline.spark_writer.compiled import one_of
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.contract import DerivedFault
from cutline.spark_writer.sinks.iceberg.changes import rewrite, upsert
from cutline.spark_writer.sinks.iceberg.columns import Layout, quoted
from cutline.spark_writer.sinks.iceberg.data_files import write_rows
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector
from cutline.spark_writer.sinks.iceberg.files import Change, DataFile, FileLost
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, items
from cutline.spark_writer.sinks.iceberg.maintenance import sources
from cutline.spark_writer.sinks.iceberg.merging import merged_rows
from cutline.spark_writer.sinks.iceberg.row_changes import WEIGHT, InFull, changed_rows
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from cutline.spark_writer.sinks.iceberg.works import snapshot_of

_SOURCE = Path(__file__).with_name("Keyed.java")
MOST_ROWS = 200_000
"""So many rows may have changed, be touched or be broadcast; more are computed in full."""
MOST_BYTES = 256 << 20
"""So many bytes of changed or broadcast rows are held; more are computed in full."""
AT, LEAVE = "_at", "_leave"
MERGED_ROWS, MERGED_FILES = 100_000, 16
"""So many files of fewer rows are merged into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What takes a derived table from one content to the next: files of new rows, the deletions of old ones, and how
    many rows were computed."""

    added: Sequence[Any]
    deleted: Sequence[Vector]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The lake table of a derived table, at the snapshot `head`."""

    table: LakeTable
    layout: Layout
    head: int

    def check_dead_rows(self) -> None:
        """Raise InFull if files that are not merged have more deleted rows than others."""
        files = self.table.contents(self.head).files.values()
        rows, dead = sum(file.rows for file in files), sum(self.table.dead_rows(file) for file in files)
        if rows > MERGED_ROWS and 2 * dead > rows:
            raise InFull("more than half of the rows in its files are deleted")

    def written(self, rows: pa.Table, places: pa.Table) -> Recomputed:
        """Write new rows, and what deletes those at `places` (`_file`, `_pos`)."""
        table, arrow = self.table, self.layout.arrow
        columns = [column.cast(field.type) for column, field in zip(rows.columns, arrow, strict=True)]
        added = write_rows(table, self.layout, [pa.Table.from_arrays(columns, schema=arrow)]) if rows.num_rows else []
        deleted = table.delete(self.head, _by_file(places)) if places.num_rows else []
        return Recomputed(added=added, deleted=deleted, rows=rows.num_rows)

    def merged(self) -> Change | None:
        """The commit that merges small files; None if there are few of them."""
        by_partition: dict[str, list[DataFile]] = {}
        for file in self.table.contents(self.head).files.values():
            if file.rows < MERGED_ROWS:
                by_partition.setdefault(file.partition_name, []).append(file)
        small = [file for files in by_partition.values() if len(files) >= MERGED_FILES for file in files]
        if not small:
            return None
        rows = merged_rows(sources(self.table, small), self.layout)
        return rewrite(self.table, self.head, small, write_rows(self.table, self.layout, rows))


class Keyed:
    """The query of a derived table over contents of its tables, to be computed of changes."""

    def __init__(
        self, jvm: Jvm, name: str, rows: DataFrame, placed: Any, reads: Mapping[str, tuple[str, Content]]
    ) -> None:
        """`rows` is the analysed query over the rows `placed` (a Java map) of its tables. DerivedFault if it can't be
        computed of changes alone."""
        session: Any = jvm.session
        self._session = session
        self._reads = reads
        maker = one_of(session.sparkContext, _SOURCE, "Keyed$Maker")
        query: Any = maker.of(rows._jdf, placed)
        self._query = query
        self._placed = placed
        why = query.why()
        keys = query.keys()
        self._keys: list[int] | None = None if keys is None else [int(each) for each in items(keys)]
        self._names = [str(each) for each in items(query.names())]
        if why is None and self._keys is not None and len(self._names) > 1 and not items(query.seed()):
            why = "GROUP BY no column that one table alone gives"
        if why is not None:
            raise DerivedFault(
                f"the query of {name} has {why}, so it can't be computed with refresh: keys",
                "take refresh: full, or change sql in derived",
            )

    def advanced(
        self,
        tables: Mapping[str, LakeTable],
        since: Mapping[str, Content],
        target: Target,
        commit: Callable[[int, Change], int],
    ) -> tuple[int, int]:
        """Bring the derived table to what the changes `since` these contents make of it; return its snapshot, and how
        many rows were computed. `tables` and `since` are by table id; `commit` makes a change of a snapshot and returns
        the next one. InFull if all of it must be computed; what was committed before that is to be set back."""
        with _in_full():
            target.check_dead_rows()
            terms = self._terms(self._deltas(tables, since), tables, since)
            if not terms:
                return target.head, 0
            every = reduce(DataFrame.unionAll, terms)
            found = self._by_rows(every, target) if self._keys is None else self._by_groups(every, self._keys, target)
        if found.added or found.deleted:
            target = replace(
                target, head=commit(target.head, upsert(target.table, target.head, found.added, found.deleted))
            )
            with _in_full():
                merged = target.merged()
            if merged is not None:
                target = replace(target, head=commit(target.head, merged))
        return target.head, found.rows

    def _deltas(self, tables: Mapping[str, LakeTable], since: Mapping[str, Content]) -> dict[str, Any]:
        """The rows of each changed table that came and went, by its name in the query."""
        found: dict[str, Any] = {}
        for named, (table_id, content) in self._reads.items():
            if table_id not in since:
                raise InFull(f"its content was not computed of {table_id}")
            before, now = snapshot_of(since[table_id]), snapshot_of(content)
            if before == now:
                continue
            leaves = [leaf for leaf, name in enumerate(self._names) if name == named]
            wanted = {str(name) for leaf in leaves for name in items(self._query.columns(leaf))}
            schema = DataFrame(self._placed.get(named), self._session).schema
            some = [field for field in schema.fields if field.name in wanted]
            columns = to_arrow_schema(StructType(some))
            rows = changed_rows(tables[table_id], before, now, columns, MOST_ROWS, MOST_BYTES)
            if rows.num_rows:
                found[named] = self._framed(rows, StructType(list(some)).add(WEIGHT, IntegerType()))
        return found

    def _terms(
        self, deltas: Mapping[str, Any], tables: Mapping[str, LakeTable], since: Mapping[str, Content]
    ) -> list[Any]:
        """What has changed below GROUP BY, or of the result: a DataFrame for each place of a changed table."""
        old: dict[str, Any] = {}
        found = []
        for leaf, named in enumerate(self._names):
            if named not in deltas:
                continue
            others = self._session._jvm.java.util.HashMap()
            for before, other in enumerate(self._names[:leaf]):
                if other in deltas:
                    if other not in old:
                        table_id, _ = self._reads[other]
                        old[other] = _at(tables[table_id], snapshot_of(since[table_id]))
                    others.put(before, old[other]._jdf)
            term = self._query.term(self._session._jsparkSession, leaf, deltas[named]._jdf, others)
            found.append(DataFrame(term, self._session))
        return found

    def _by_rows(self, every: Any, target: Target) -> Recomputed:
        """Add and delete the rows whose number has changed."""
        names = [name for name in every.columns if name != WEIGHT]
        schema = every.select(*names).schema
        sums = every.groupBy(*(_exact(every, name).alias(f"e{name}") for name in names)).agg(
            F.sum(WEIGHT).alias(WEIGHT), *(F.first(name).alias(name) for name in names)
        )
        changed = _limited(sums.filter(F.col(WEIGHT) != 0).select(*names, WEIGHT), "rows of its result")
        weights = changed[WEIGHT].to_numpy()
        if np.abs(weights).sum() > MOST_ROWS:
            raise InFull(f"more than {MOST_ROWS:,} rows of its result are touched")
        came = np.repeat(np.arange(len(weights)), np.maximum(weights, 0))
        gone = changed.filter(pa.array(weights < 0))
        leave = -gone[WEIGHT].to_numpy()
        places = self._places(gone.select(names), schema, range(len(names)), target, leave)
        if places.num_rows != leave.sum():
            raise InFull("its lake table lacks rows that it should have")
        return target.written(changed.select(names).take(pa.array(came)), places)

    def _by_groups(self, every: Any, keys: Sequence[int], target: Target) -> Recomputed:
        """Compute the groups that may have changed again."""
        touched = _limited(every.distinct(), "groups")
        jsession, groups, seeds = self._session._jsparkSession, self._framed(touched, every.schema), None
        nulls = self._session._jvm.java.util.ArrayList()
        for column in touched.columns:
            nulls.add(column.null_count > 0)
        if len(self._names) > 1:
            some = DataFrame(self._query.seeds(jsession, groups._jdf, nulls), self._session)
            name = self._names[int(items(self._query.seed())[0])]
            seeds = self._framed(_limited(some, f"rows of {name}"), some.schema)._jdf
        again = DataFrame(self._query.again(jsession, groups._jdf, nulls, seeds), self._session)
        rows = again.toDF(*(str(number) for number in range(len(again.columns)))).toArrow()
        return target.written(rows, self._places(touched, every.schema, keys, target))

    def _places(
        self, wanted: pa.Table, schema: StructType, columns: Sequence[int], target: Target, leave: Any = None
    ) -> pa.Table:
        """Where the derived table's rows are that have the values of a row of `wanted` in these columns: `_file`,
        `_pos`. With `leave`, so many of each row of `wanted` at most, and 0.0 and -0.0 are two values."""
        numbered = wanted.append_column(AT, pa.array(np.arange(wanted.num_rows), pa.int64()))
        most = np.zeros(wanted.num_rows, np.int64) if leave is None else leave
        numbered = numbered.append_column(LEAVE, pa.array(most, pa.int64()))
        described = StructType(list(schema.fields)).add(AT, LongType()).add(LEAVE, LongType())
        looked = F.broadcast(self._framed(numbered, described))
        names = [target.layout.arrow[number].name for number in columns]
        found: Any = _at(target.table, target.head)
        found = found.select(*(F.col(quoted(name)).alias(f"v{at}") for at, name in enumerate(names)), "_file", "_pos")
        same = []
        for at, name in enumerate(wanted.column_names):
            mine, theirs = found[f"v{at}"], looked[name]
            if leave is not None:
                mine, theirs = _exact(found, f"v{at}"), _exact(looked, name)
            same.append(mine.eqNullSafe(theirs) if wanted[name].null_count else mine == theirs)
        met = found.join(looked, reduce(and_, same)).select("_file", "_pos", AT, LEAVE)
        if leave is not None and len(leave):  # in Spark: there may be far more equal rows than leave
            number = F.row_number().over(Window.partitionBy(AT).orderBy("_file", "_pos"))
            met = met.withColumn("_number", number).filter(F.col("_number") <= int(leave.max()))
            met = met.filter(F.col("_number") <= F.col(LEAVE))
        places: pa.Table = met.select("_file", "_pos").toArrow()
        return places

    def _framed(self, rows: pa.Table, schema: StructType) -> Any:
        # In one chunk: of a table that begins with an empty one Spark takes no rows.
        return self._session.createDataFrame(rows.combine_chunks(), schema=schema)


def _at(table: LakeTable, snapshot: int) -> Any:
    """The rows of a snapshot."""
    session: Any = table.jvm.session
    return session.read.option("versionAsOf", str(snapshot)).table(table.spark_name)


def _limited(rows: Any, about: str) -> pa.Table:
    """Rows, in this process; InFull if they are too many."""
    found: pa.Table = rows.limit(MOST_ROWS + 1).toArrow()
    if found.num_rows > MOST_ROWS:
        raise InFull(f"more than {MOST_ROWS:,} {about} are touched")
    if found.nbytes > MOST_BYTES:
        raise InFull(f"more than {MOST_BYTES:,} bytes of {about} are touched")
    return found


def _exact(rows: Any, name: str) -> Any:
    """A column by which only equal rows are equal."""
    column = rows[name]
    kind = rows.select(column).schema[0].dataType
    return column.cast("string") if isinstance(kind, FloatType | DoubleType) else column


@contextmanager
def _in_full() -> Iterator[None]:
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise InFull(f"computing it of the changes failed: {first_line(error)}") from error
    except FileLost as error:
        raise InFull(f"computing it of the changes failed: {error}") from error


def _by_file(rows: pa.Table) -> dict[str, Any]:
    """The sorted positions of each file in a table of `_file`, `_pos`."""
    encoded = rows.column("_file").combine_chunks().dictionary_encode()
    codes, positions = encoded.indices.to_numpy(), rows.column("_pos").to_numpy()
    order = np.lexsort((positions, codes))
    codes, positions = codes[order], positions[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    paths = encoded.dictionary.to_pylist()
    return {paths[codes[start]]: part for start, part in zip(starts, np.split(positions, starts[1:]), strict=True)}
