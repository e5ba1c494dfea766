"""Batches of changes to tables, applied from a journal that the bench writes itself: no source, no mesh."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.derived import DerivedTable
from cutline.common.phases import Phase
from cutline.common.schema import META_FIELDS, OP, SEQ, TABLE, Column, TableSchema
from cutline.common.shape import Shape
from cutline.common.status.pipeline_status import DerivedStatus
from cutline.common.store.records import StagedFile, TableEntry
from cutline.common.store.store import Store
from cutline.services.writer.staging import OpenChanges, OpenChunk
from cutline.spark_writer import session
from cutline.spark_writer.apply import Incarnation
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.owner import Owner
from cutline.spark_writer.sinks.iceberg.sink import IcebergSink
from cutline.spark_writer.transform.shaping import Shaping
from tests.support import records
from tests.support.spark_cluster import Cluster
from tools.bench.readers import Figures

TABLE_ID = "bench.orders"
KEYS: dict[str, Callable[[Any], pa.Array]] = {
    "int": lambda numbers: pa.array(numbers, pa.int32()),
    "bigint": lambda numbers: pa.array(numbers, pa.int64()),
    "bigint unsigned": lambda numbers: pa.array(numbers * 2**38, pa.int64()).cast(pa.decimal128(20, 0)),
    "char(36)": lambda numbers: _uuids(numbers),
}
"""MySQL's type of the key, and its values for the numbers of rows."""
FILE_ROWS = 500_000
DRIVER_ROWS = 5_000_000
DRIVER_CHANGES = (500_000, 5_000_000)


class Applied:
    """A pipeline of a table, or of some that are alike. The bench stages their chunks and changes, and has them
    applied."""

    def __init__(
        self,
        spark: Any,
        folder: Path,
        engine: str,
        key: str = "bigint",
        shape: Shape | None = None,
        *,
        tables: Sequence[str] = (TABLE_ID,),
        derived: Sequence[DerivedTable] = (),
    ) -> None:
        self._schemas = {table: replace(_schema(table, key), shape=shape) for table in tables}
        self._derived = derived
        self._key = KEYS[key]
        self._store = Store(f"file://{folder}/store").pipeline("bench")
        source, sink = {"host": "127.0.0.1", "user": "cdc"}, {"type": "iceberg", "warehouse": f"{folder}/lake"}
        config = PipelineConfig.model_validate(
            {"name": "bench", "source": source, "tables": list(tables), "sink": sink}
        )
        self._store.define(config.definition())
        self._store.put_entry(records.epoch(1))
        self._store.put_schemas(self._schemas.values(), epoch=1)
        self._lake = Lake(session.for_pipeline(spark, config.definition()["sink"]), Owner(name="bench", id="bench"))
        self._engine = engine
        self._staged: list[StagedFile] = []
        self._seq = 0
        self._draw = np.random.default_rng(1)
        self._incarnation: Incarnation | None = None

    @property
    def derived(self) -> Mapping[str, DerivedStatus]:
        """The derived tables as the last publication has them."""
        return {} if self._incarnation is None else self._incarnation.derived.status

    def fill(self, rows: int) -> None:
        """Apply the tables' snapshot: the keys 0 to `rows`."""
        for table in self._schemas:
            for first in range(0, rows, FILE_ROWS):
                file = OpenChunk(self._store, split_id=f"s{first}", **self._named(table))
                for batch in self._rows(table, np.arange(first, min(first + FILE_ROWS, rows)), 0):
                    file.append(batch)
                self._staged.append(file.close())
        self.apply()

    def update(self, count: int, rows: int, table: str = TABLE_ID) -> None:
        """Stage updates of `count` different keys of a table's first `rows`, in random order."""
        keys = self._draw.choice(rows, count, replace=False)
        for first in range(0, count, FILE_ROWS):
            file = OpenChanges(self._store, **self._named(table))
            for batch in self._rows(table, keys[first : first + FILE_ROWS], self._seq + 1):
                file.append(_with_meta(table, batch, self._seq), 0)
                self._seq += batch.num_rows
            self._staged.append(file.close())

    def apply(self) -> None:
        """Complete a checkpoint of what is staged, and apply and publish it."""
        slot = self._store.last_slot() + 1
        tables = {
            table: TableEntry(generation=1, phase=Phase.LIVE, schema=schema.hash, show=True)
            for table, schema in self._schemas.items()
        }
        self._store.put_entry(records.checkpoint(slot, 1, staged=tuple(self._staged), tables=tables))
        self._staged = []
        self._incarnation = self._incarnation or Incarnation(
            self._store,
            IcebergSink(
                self._store, self._lake, Shaping(self._store, self._lake.jvm.session), engine=self._engine
            ),
            derived=self._derived,
        )
        if not self._incarnation.step() or self._incarnation.progress.quarantined:
            raise RuntimeError(f"checkpoint {slot} was not applied: {self._incarnation.progress.quarantined}")

    def close(self) -> None:
        """Stop its threads."""
        if self._incarnation is not None:
            self._incarnation.close()

    def _named(self, table: str) -> dict[str, Any]:
        known = {"epoch": 1, "incarnation": "bench", "table_id": table, "generation": 1}
        return known | {"schema": self._schemas[table].hash}

    def _rows(self, table: str, keys: Any, salt: int, size: int = 20_000) -> Iterator[pa.RecordBatch]:
        """Rows with these keys; other columns depend on the key and the salt."""
        for first in range(0, len(keys), size):
            some = keys[first : first + size]
            number = pa.array((some * 31 + salt) % 1_000_003, pa.int64())
            columns = [
                self._key(some),
                number.cast(pa.string()),
                number.cast(pa.decimal128(19, 0)).cast(pa.decimal128(10, 2)),
                number.cast(pa.int32()),
                number.cast(pa.timestamp("us")),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schemas[table].arrow)


def _schema(table: str, key: str) -> TableSchema:
    kinds = {"id": key, "note": "varchar(40)", "price": "decimal(10,2)", "n": "int", "at": "datetime(6)"}
    columns = tuple(
        Column(name=name, field_id=at, mysql_type=kind, nullable=at > 1)
        for at, (name, kind) in enumerate(kinds.items(), 1)
    )
    return TableSchema(table_id=table, columns=columns, key=("id",), last_field_id=len(columns))


def _uuids(numbers: Any) -> pa.Array:
    """Texts of the form of a UUID, in no order."""
    rows = len(numbers)
    parts = np.empty((rows, 2), np.uint64)
    for at, factor in enumerate((0x9E3779B97F4A7C15, 0xD1342543DE82EF95)):  # odd, so no two numbers give one text
        parts[:, at] = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(factor)
    nibbles = np.unpackbits(parts.view(np.uint8), axis=1).reshape(rows, 32, 4) @ np.array([8, 4, 2, 1], np.uint8)
    text = np.full((rows, 36), ord("-"), np.uint8)
    text[:, [at for at in range(36) if at not in (8, 13, 18, 23)]] = np.frombuffer(b"0123456789abcdef", np.uint8)[
        nibbles
    ]
    return pa.array(text.reshape(-1).view("S36"), pa.binary()).cast(pa.string())


def _with_meta(table: str, batch: pa.RecordBatch, seq: int) -> pa.RecordBatch:
    rows = batch.num_rows
    known = {
        OP: pa.repeat("+U", rows),
        SEQ: pa.array(np.arange(seq, seq + rows), pa.int64()),
        TABLE: pa.repeat(table, rows),
    }
    meta = [known.get(field.name, pa.nulls(rows, field.type)) for field in META_FIELDS]
    return pa.RecordBatch.from_arrays([*batch.columns, *meta], schema=pa.schema([*batch.schema, *META_FIELDS]))


def cpu_seconds(spark: Any) -> float:
    """CPU used so far by this process and its JVM, without executors that are processes of their own."""
    java = psutil.Process(spark.sparkContext._gateway.proc.pid).cpu_times()
    return time.process_time() + java.user + java.system


def apply_driver(folder: Path) -> Figures:
    """Apply a small and a large batch on a cluster; return the CPU of the driver for each."""
    (folder / "cluster").mkdir(parents=True)
    cluster = Cluster(folder / "cluster")
    try:
        spark = session.start({"spark.executor.memory": "768m", **cluster.settings})
        applied = Applied(spark, folder, "spark")
        applied.fill(DRIVER_ROWS)
        used, seconds = [], []
        for changes in (DRIVER_CHANGES[0], *DRIVER_CHANGES):  # the first warms up
            applied.update(changes, DRIVER_ROWS)
            began, before = time.monotonic(), cpu_seconds(spark)
            applied.apply()
            used.append(cpu_seconds(spark) - before)
            seconds.append(time.monotonic() - began)
        applied.close()
        session.stop()
    finally:
        cluster.close()
    return {
        "rows_of_table": DRIVER_ROWS,
        "changes": list(DRIVER_CHANGES),
        "driver_cpu_seconds": [round(each, 2) for each in used[1:]],
        "seconds": [round(each, 2) for each in seconds[1:]],
        "ratio": round(used[2] / used[1], 2),
    }
