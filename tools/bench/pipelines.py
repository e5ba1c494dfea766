"""Whole pipelines, until a reader of the lake sees the rows: `snapshot_to_iceberg` to `freshness`, also with a rule.

The clock stops when `main` in the catalogue shows the publication, polled every 20 ms. Each measurement ends with a
comparison of the lake (read by PyIceberg, with deletion vectors) with the source: the row count, and the sums of the
columns that change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.compute as pc
from pyiceberg.table import StaticTable

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import Position
from cutline.common.store.store import PipelineStore
from cutline.services.sources.mysql.connection import Source
from tests.support.databases import Database
from tools.bench.customer import Changes, SteadyUpdates, Transactions
from tools.bench.mesh import BenchMesh, Watch
from tools.bench.meter import Meter
from tools.bench.readers import Figures, place

_SUMMED = ("c_customer_sk", "c_current_addr_sk", "c_last_review_date_sk")
SETTLE_SECONDS = 15.0
KEPT = "c_customer_sk % 2 = 0"
RULE = {
    "select": [
        "* EXCEPT (c_salutation, c_login, c_email_address, c_first_name, c_last_name)",
        "concat(c_first_name, ' ', c_last_name) AS name",
        "2026 - c_birth_year AS age",
    ],
    "where": KEPT,
    "mask": ["c_customer_id"],
}
"""Five columns out, two computed, one masked (all its values differ), and a filter that keeps half."""


class Copied:
    """A pipeline of the mesh for one table."""

    def __init__(self, mesh: BenchMesh, name: str, table: str, **more: Any) -> None:
        self.mesh, self.table = mesh, table
        self.config: PipelineConfig = mesh.pipeline(name, table, **more)
        self.store: PipelineStore = mesh.store.pipeline(name)
        self.watch = Watch(self.config, self.store, table)
        self.kept = KEPT if self.config.options_of(table).has_shape else "TRUE"

    def snapshot(self, rows: int) -> Figures:
        """Measure from the definition of the pipeline, with all services running, to its first publication."""
        self.mesh.start("workers", "enumerators")
        self.mesh.ready("spark", "workers", "enumerators")
        with self.mesh.metered() as meter:
            begun = time.perf_counter()
            self.mesh.define(self.config)
            self.mesh.wait("the snapshot is published", self.watch.look)
            seconds = time.perf_counter() - begun
        compare(self)
        return _figures(rows, seconds, meter)

    def drain(self, changes: Changes, count: int, transactions_of: Transactions, source: Source) -> Figures:
        """Write a backlog while only Spark runs; measure from the enumerators' start until `main` has all of it."""
        self.mesh.stop("enumerators", "workers")
        changes.write(count, transactions_of)
        end = place(source)
        self.mesh.start("workers")
        self.mesh.ready("workers")

        def reached() -> bool:
            at = self.watch.position()
            return at is not None and at.not_before(end)

        with self.mesh.metered() as meter:
            begun = time.perf_counter()
            self.mesh.start("enumerators")
            self.mesh.wait("the backlog is published", reached)
            seconds = time.perf_counter() - begun
        compare(self)
        return _figures(count, seconds, meter)

    def follow(self, *, rows: int, per_second: int, seconds: float) -> Figures:
        """Make changes at a constant rate after a snapshot; measure the time of each from its commit to `main`.

        Changes of the first SETTLE_SECONDS are left out.
        """
        at = self.watch.position()
        assert at is not None
        before = _commits(at)
        updates = SteadyUpdates(
            self.mesh.server, self.table, rows, per_second=per_second, seconds=SETTLE_SECONDS + seconds
        )
        total = int(per_second * (SETTLE_SECONDS + seconds))
        shown: list[tuple[float, int]] = []

        def covered() -> bool:
            if updates.failed is not None:
                raise updates.failed
            position = self.watch.position()
            assert position is not None
            if not shown or shown[-1][1] != _commits(position) - before:
                shown.append((time.time(), _commits(position) - before))
            return shown[-1][1] >= total

        with self.mesh.metered() as meter:
            updates.start()
            self.mesh.wait("all changes are published", covered, 3 * (SETTLE_SECONDS + seconds) + 60)
        compare(self)
        returned = updates.returned
        first = int(per_second * SETTLE_SECONDS)
        late_ms, views = [], iter(shown)
        when, upto = next(views)
        for number in range(first, total):
            while upto <= number:
                when, upto = next(views)
            late_ms.append(1000 * (when - returned[number]))
        late_ms.sort()
        figures = _figures(total, returned[-1] - returned[0], meter)
        return figures | {
            "changes_judged": len(late_ms),
            "publications": len(shown) - 1,
            "p50_ms": round(late_ms[len(late_ms) // 2]),
            "p99_ms": round(late_ms[len(late_ms) * 99 // 100]),
            "max_ms": round(late_ms[-1]),
        }


@contextmanager
def copied(mesh: BenchMesh, name: str, table: str, **more: Any) -> Iterator[Copied]:
    """A pipeline for one table, removed at the end of the `with`."""
    pipeline = Copied(mesh, name, table, **more)
    try:
        yield pipeline
    finally:
        pipeline.watch.close()
    mesh.forget(pipeline.config)


def _commits(position: Position) -> int:
    """The number of transactions before a position; there must be one server only."""
    executed = position.executed
    if isinstance(executed, GtidSet):
        ends = [part.split("-") for sid in str(executed).split(",") for part in sid.split(":")[1:]]
        return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
    assert isinstance(executed, MariaGtid)
    return int(str(executed).split("-")[2])


def compare(pipeline: Copied) -> None:
    """Raise RuntimeError if the table's count or sums differ between lake and source, to which nobody writes now."""
    sums = ", ".join(f"SUM({name})" for name in _SUMMED)
    server: Database = pipeline.mesh.server
    ((*source,),) = server.execute(f"SELECT COUNT(*), {sums} FROM {pipeline.table} WHERE {pipeline.kept}")
    lake = [0] * (1 + len(_SUMMED))
    location = pipeline.watch.metadata_location()
    assert location is not None
    for batch in StaticTable.from_metadata(location).scan(selected_fields=_SUMMED).to_arrow_batch_reader():
        lake[0] += batch.num_rows
        for column, name in enumerate(_SUMMED, start=1):
            lake[column] += pc.sum(batch[name]).as_py() or 0
    if [int(value) for value in source] != lake:
        raise RuntimeError(f"{pipeline.table} differs: COUNT(*), {sums} are {source} in the source, {lake} in the lake")


def _figures(rows: int, seconds: float, meter: Meter) -> Figures:
    return {
        "rows": rows,
        "seconds": round(seconds, 2),
        "rows_per_second": round(rows / seconds),
        "cpu_seconds": round(meter.cpu_seconds, 2),
        "rows_per_cpu_second": round(rows / meter.cpu_seconds),
        "peak_rss_mib": round(meter.peak_rss_mib),
        "peak_rss_mib_of": {name: round(mib) for name, mib in sorted(meter.peak_of.items())},
        "cpu_seconds_of": {name: round(cpu, 2) for name, cpu in sorted(meter.cpu_of.items()) if cpu >= 0.05},
    }
