"""The Spark writer on a real Spark and a real lake, with a journal that the test writes.

The model of a table is a dict key -> row; Journal.checkpoint keeps a copy of it, and SparkBench.agree compares every
publication (by its snapshots), main and every tag with those copies.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from cutline.common.clock import Clock
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.table_options import TableOptions
from cutline.common.positions import Position
from cutline.common.schema import FILE, GTID, META_FIELDS, OP, POS, ROW, SEQ, TABLE, TS, Column, TableSchema
from cutline.common.status.pipeline_status import Failure, SparkWriterStatus
from cutline.common.store.records import Publication, StagedFile, TableEntry
from cutline.common.store.store import Store
from cutline.services.sources.mysql.connection import quoted_table
from cutline.services.writer.staging import OpenChanges, OpenChunk
from cutline.spark_writer import session
from cutline.spark_writer.apply import Incarnation
from cutline.spark_writer.driver import Driver
from cutline.spark_writer.lead import Lead
from cutline.spark_writer.ports import Ports
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.owner import Owner
from cutline.spark_writer.sinks.iceberg.sink import IcebergSink
from cutline.spark_writer.sinks.iceberg.upkeep import Upkeep
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from cutline.spark_writer.transform.shaping import Shaping
from tests.support import records
from tests.support.lake_tables import lake_table

Row = dict[str, Any]
EVERYWHERE = pytest.mark.parametrize("places", ["folders", pytest.param("s3", marks=pytest.mark.full)], indirect=True)
"""The test's `bench` has its store and its lake in folders, and once on S3 with a catalogue in PostgreSQL."""


def schema(table: str, key: tuple[str, ...], **columns: str) -> TableSchema:
    made = tuple(
        Column(name=name, field_id=at, mysql_type=kind, nullable=name not in key)
        for at, (name, kind) in enumerate(columns.items(), start=1)
    )
    return TableSchema(table_id=table, columns=made, key=key, last_field_id=len(made))


T = schema("shop.orders", ("id",), id="bigint", note="varchar(40)", price="decimal(10,2)")
U = schema("shop.stock", ("place", "item"), place="varchar(20)", item="int", amount="int")


class Journal:
    """Writes a pipeline's journal and staged files as enumerator, reader and writer would, and keeps the model."""

    def __init__(
        self, root: Path, name: str = "shop", *, store_url: str | None = None, sink: dict[str, Any] | None = None
    ) -> None:
        self.root = root
        self.name = name
        self._places = {"store_url": store_url, "sink": sink}
        self.store = Store(store_url or f"file://{root}/store").pipeline(name)
        source = {"host": "127.0.0.1", "user": "cdc"}
        sink = {"type": "iceberg", "warehouse": f"{root}/lake", **(sink or {})}
        self.config = PipelineConfig.model_validate(
            {"name": name, "source": source, "tables": ["shop.*"], "sink": sink}
        )
        self.store.define(self.config.definition())
        self.sink = self.config.definition()["sink"]
        self.schemas: dict[str, TableSchema] = {}
        self.entries: dict[str, TableEntry] = {}
        self.models: dict[str, dict[Any, Row]] = {}
        self.at: dict[int, dict[str, tuple[tuple[str, ...], list[Row]]]] = {}
        self.staged: list[StagedFile] = []
        self.seq = 0
        self.begin_epoch(None)

    def anew(self) -> Journal:
        """The next pipeline of this name, in the same places, whose journal begins anew."""
        return Journal(self.root, self.name, **self._places)

    def begin_epoch(self, base: int | None) -> int:
        self.epoch = self.store.last_slot() + 1
        assert self.store.put_entry(records.epoch(self.epoch, base))
        self.staged = []
        return self.epoch

    def table(self, table: TableSchema, *, phase: str = "live", generation: int = 1, show: bool | None = None) -> None:
        """Set the state of a table in the next checkpoints; a new generation begins empty."""
        known = self.entries.get(table.table_id)
        if known is None or known.generation != generation:
            self.models[table.table_id] = {}
        self.schemas[table.hash] = table
        shown = phase == "live" if show is None else show
        self.entries[table.table_id] = TableEntry(generation=generation, phase=phase, schema=table.hash, show=shown)

    def schema_of(self, table_id: str) -> TableSchema:
        return self.schemas[self.entries[table_id].schema or ""]

    def chunk(self, table: TableSchema, rows: list[Row], *, field_ids: bool = True) -> None:
        file = OpenChunk(self.store, split_id=f"s{self.seq}", **self.named(table))
        arrow = table.arrow if field_ids else pa.schema([field.remove_metadata() for field in table.arrow])
        for batch in pa.Table.from_pylist(rows, schema=arrow).to_batches(max_chunksize=3):
            file.append(batch)
        self.staged.append(file.close())
        model = self.models[table.table_id]
        for row in rows:
            model[tuple(row[name] for name in table.key) if table.key else len(model)] = row

    def change(self, table: TableSchema, *changes: tuple[str, Row | None]) -> None:
        """Stage changes: (`+I` | `+U`, row), (`-D`, row), (`t`, None)."""
        file = OpenChanges(self.store, **self.named(table))
        rows = pa.Table.from_pylist([row or {} for _, row in changes], schema=table.arrow).combine_chunks()
        count = len(changes)
        meta = pa.Table.from_pydict(
            {OP: [op for op, _ in changes], SEQ: range(count), TABLE: [table.table_id] * count}
            | {name: [None] * count for name in (FILE, POS, ROW, GTID, TS)},
            schema=pa.schema([META_FIELDS[at] for at in (0, 1, 7, 2, 3, 4, 5, 6)]),
        ).select([field.name for field in META_FIELDS])
        both = pa.Table.from_arrays(
            [*rows.columns, *meta.columns], schema=pa.schema([*table.arrow, *META_FIELDS])
        ).combine_chunks()
        (batch,) = both.to_batches()
        for at in range(0, count, 3):
            file.append(batch.slice(at, 3), self.seq)
        self.staged.append(file.close())
        self.seq += count
        model = self.models[table.table_id]
        for op, row in changes:
            if op == "t":
                model.clear()
            elif row is not None and not table.key:
                model[len(model)] = row
            elif row is not None:
                key = tuple(row[name] for name in table.key)
                if op == "-D":
                    model.pop(key, None)
                else:
                    model[key] = row

    def named(self, table: TableSchema) -> dict[str, Any]:
        """What a staged file of a table is named by; the next checkpoint has the table's schema."""
        self.schemas[table.hash] = table
        return {
            "epoch": self.epoch,
            "incarnation": "w0",
            "table_id": table.table_id,
            "generation": self.entries[table.table_id].generation,
            "schema": table.hash,
        }

    def checkpoint(self, *, inside: bool = False, kept: bool = False) -> int:
        n = self.store.last_slot() + 1
        self.store.put_schemas(self.schemas.values(), epoch=self.epoch)
        position = Position(server="s", file="binlog.000001", offset=n * 100, rows=int(inside))
        entry = records.checkpoint(
            n,
            self.epoch,
            inside=inside,
            kept=kept,
            position=position,
            staged=tuple(self.staged),
            tables=dict(self.entries),
        )
        assert self.store.put_entry(entry)
        self.staged = []
        self.at[n] = {
            table: (tuple(column.name for column in self.schema_of(table).columns), list(model.values()))
            for table, model in self.models.items()
        }
        return n


class LakeStart(Incarnation):
    """A start whose sink is Iceberg, for tests of what only that sink has."""

    sink: IcebergSink
    upkeep: Upkeep


class SparkBench:
    """A journal, the Spark that applies it, and the comparison of both."""

    def __init__(self, spark: Any, root: Path, **places: Any) -> None:
        self.spark = spark
        self.journal = Journal(root, **places)
        self.session = session.for_pipeline(spark, self.journal.sink)
        self.engine = "local"
        self.options = TableOptions(tables="*.*")
        self.adopts = False
        self._open: list[LakeStart] = []

    def lake(self, name: str | None = None) -> Lake:
        own = session.for_pipeline(self.spark, self.journal.sink)
        owner = Owner(name=name or self.journal.name, id=self.journal.store.id, adopts=self.adopts)
        return Lake(own, owner, lambda table_id: self.options, own_namespace=self.journal.config.sink.own_namespace)

    def sink(self, **settings: Any) -> IcebergSink:
        """The sink of a start."""
        lake = self.lake()
        return IcebergSink(self.journal.store, lake, Shaping(self.journal.store, lake.jvm.session), **settings)

    def driver(self, lead: Lead) -> Driver:
        """What serves the pipeline in a thread, on this Spark."""
        engine: Any = SimpleNamespace(open=lambda store, version: self.sink(), check=lambda: None)
        no_thread: Any = None
        ports = Ports(clock=time, flag=threading.Event, start=no_thread, pool=ThreadPoolExecutor, engine=engine)
        return Driver(self.journal.store, lead, ports)

    def start(
        self, reached: Callable[[str], None] = lambda step: None, *, clock: Clock = time, **settings: Any
    ) -> LakeStart:
        """A start; `settings` are those of its sink."""
        sink = self.sink(engine=self.engine, clock=clock, **settings)
        self._open.append(LakeStart(self.journal.store, sink, reached=reached, clock=clock))
        return self._open[-1]

    def apply(self, incarnation: LakeStart | None = None) -> LakeStart:
        """Apply all there is, as a new incarnation if none is given."""
        incarnation = incarnation or self.start()
        while incarnation.step():
            pass
        return incarnation

    def rows(self, table: str, version: int | str | None = None) -> tuple[tuple[str, ...], list[Row]]:
        reader: Any = self.session.read.format("iceberg")
        if version is not None:
            reader = reader.option("versionAsOf", str(version))
        found = reader.load(f"lake.{quoted_table(table)}").toArrow()
        return tuple(found.column_names), found.to_pylist()

    def agree(self) -> int:
        """Compare every publication that can still be read, every tag and `main`; return how many publications."""
        published = self.journal.store.publications()
        for record in published:
            for table, published_table in record.tables.items():
                if published_table.main is None or not published_table.shown:
                    continue
                wanted = self.journal.at[record.n][table]
                assert same(self.rows(table, snapshot_of(published_table.main.content)), wanted), (
                    f"{table} at publication {record.n}"
                )
                if record.kept:
                    assert same(self.rows(table, f"checkpoint_{record.n}"), wanted), f"tag of {table} {record.n}"
        newest = published[-1]
        for table, published_table in newest.tables.items():
            if published_table.shown:
                assert same(self.rows(table), self.journal.at[newest.n][table]), f"main of {table}"
        return len(published)

    def close(self) -> None:
        for incarnation in self._open:
            incarnation.close()


class Heard(Lead):
    """A lead that keeps every status that its thread reports."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[SparkWriterStatus] = []

    def report(self, status: SparkWriterStatus) -> None:
        self.statuses.append(status)
        Lead.report(self, status)

    def failures(self) -> list[Failure]:
        return [status.failure for status in self.statuses if status.failure is not None]


def same(found: tuple[tuple[str, ...], list[Row]], wanted: tuple[tuple[str, ...], list[Row]]) -> bool:
    def ordered(rows: list[Row]) -> list[str]:
        plain = ({k: v.isoformat() if isinstance(v, dt.date) else v for k, v in row.items()} for row in rows)
        return sorted(repr(sorted(row.items())) for row in plain)

    full = [{name: row.get(name) for name in wanted[0]} for row in wanted[1]]
    assert found[0] == wanted[0], f"columns {found[0]}, not {wanted[0]}"
    assert ordered(found[1]) == ordered(full), _differing(ordered(found[1]), ordered(full))
    return True


def _differing(found: list[str], wanted: list[str]) -> str:
    extra, missing = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    return f"too many: {list(extra.elements())[:5]}, missing: {list(missing.elements())[:5]}"


def order(number: int, note: str | None = "x", price: str | None = "1.50") -> Row:
    return {"id": number, "note": note, "price": None if price is None else Decimal(price)}


def stock(item: int, amount: int) -> Row:
    return {"place": f"p{item}", "item": item, "amount": amount}


def options(**given: Any) -> TableOptions:
    return TableOptions(tables="*.*", **given)


def both_read(bench: SparkBench) -> LakeStart:
    """Two tables that are live, with a chunk each."""
    journal = bench.journal
    journal.table(T)
    journal.table(U)
    journal.chunk(T, [order(number) for number in range(6)])
    journal.chunk(U, [stock(number, number) for number in range(6)])
    journal.checkpoint()
    return bench.apply()


def both_live(bench: SparkBench) -> LakeStart:
    """Two tables that are live and have changed once, so that both have files of their own in the lake."""
    journal, incarnation = bench.journal, both_read(bench)
    journal.change(T, ("+U", order(0, "first")))
    journal.change(U, ("+U", stock(0, 100)))
    journal.checkpoint()
    return bench.apply(incarnation)


def newest(bench: SparkBench) -> Publication:
    return bench.journal.store.publications()[-1]


def by_pyiceberg(bench: SparkBench, table: str, tag: str | None = None) -> pa.Table:
    """A lake table's rows as PyIceberg reads them, at `main` or at a tag."""
    found = pyiceberg_table(bench, table)
    snapshot = None if tag is None else found.snapshot_by_name(tag).snapshot_id  # type: ignore[union-attr]
    return found.scan(snapshot_id=snapshot).to_arrow()


def pyiceberg_table(bench: SparkBench, table: str) -> Any:
    return lake_table(bench.journal.sink["warehouse"], table)


def by_duckdb(bench: SparkBench, table: str, tag: str | None = None) -> pa.Table:
    """A lake table's rows as DuckDB reads them from its metadata file, at `main` or at a tag."""
    found = pyiceberg_table(bench, table)
    at = "" if tag is None else f", snapshot_from_id={found.snapshot_by_name(tag).snapshot_id}"
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_iceberg(connection)
        connection.execute("SET TimeZone = 'UTC'")
        path = found.metadata_location.removeprefix("file://")
        return connection.execute(f"SELECT * FROM iceberg_scan('{path}'{at})").fetch_arrow_table()


def plain(found: pa.Table) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    return tuple(found.column_names), found.to_pylist()


def read_by_all(bench: SparkBench, table: str, *, tags: bool = True) -> None:
    """Compare `main` and every tag, as Spark, PyIceberg and DuckDB read them, with the model."""
    bench.agree()
    newest = bench.journal.store.publications()[-1]
    kept = [record.n for record in bench.journal.store.publications() if record.kept] if tags else []
    for n, tag in [(newest.n, None), *((n, f"checkpoint_{n}") for n in kept)]:
        for read in (by_pyiceberg, by_duckdb):
            assert same(plain(read(bench, table, tag)), bench.journal.at[n][table]), f"{read.__name__} at {tag}"


def load_iceberg(connection: duckdb.DuckDBPyConnection) -> None:
    """Load DuckDB's iceberg extension from its PyPI packages."""
    found = [file for folder in sys.path for file in Path(folder).glob("duckdb_ext/extensions/**/*.duckdb_extension")]
    if not any("iceberg" in file.name for file in found):
        pytest.skip("the package duckdb-ext-iceberg is not installed")
    for name in ("avro", "iceberg"):
        file = next(file for file in found if file.name.startswith(name))
        connection.execute(f"LOAD '{file}'")
