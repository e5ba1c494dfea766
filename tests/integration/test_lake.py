"""The whole way into a real Iceberg lake: mesh processes, the Spark writer on a real Spark, what a reader sees."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_writer import session
from spark_writer.__main__ import serve
from spark_writer.chain import shown
from tests.integration.mesh import Content, Mesh, Pipeline, content, differences, place
from tests.integration.test_pipeline import ACCOUNTS, BALANCE, Bank
from tests.servers import Database, MariaDB


@contextmanager
def writing(mesh: Mesh) -> Iterator[None]:
    """The Spark writer, as its process serves, on the tests' Spark; its end is that of the `with`."""
    stop = threading.Event()
    faults: list[str] = []

    def tell(pipeline: str, status: Any) -> None:
        if status.get("failed"):
            faults.append(f"{pipeline}: {status}")

    thread = threading.Thread(target=serve, args=(mesh.store, stop, tell), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not faults, faults


def savepoint(pipeline: Pipeline, nonce: str) -> int:
    """Ask for a kept checkpoint, wait for its publication, and return its number."""
    with pipeline.mesh.redis.client() as client:
        client.rpush(f"cutline:requests:{pipeline.name}", json.dumps({"kind": "savepoint", "nonce": nonce}))

    def published() -> int | None:
        slot = next((entry["slot"] for entry in pipeline.entries() if entry.get("request") == nonce), None)
        return slot if slot in pipeline.store.publication_numbers() else None

    return pipeline.until(published, "the savepoint's publication", 90)  # type: ignore[return-value]


def test_the_sum_over_two_tables_is_constant_in_every_publication_of_the_lake(
    mariadb: MariaDB, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. Amounts move between two tables, the Spark writer applies; both come to be shown.
    2. A savepoint; a reader gets SIGKILL; the Spark writer ends and another one starts; a second savepoint.
    3. The movers stop, the pipeline catches up, a last savepoint.
    Each publication that shows both tables has the sum and the source's content, read by its snapshots; so have the
    tags `checkpoint_N` by VERSION AS OF, and `main`; `_cutline.publications` names each of them.
    """
    bank = Bank(mariadb, fresh_database)
    kept = []
    with Mesh(tmp_path) as mesh, bank.moving() as movers:
        pipeline = mesh.pipeline("bank", mariadb, [f"{bank.schema}.*"], chunk_rows=20, interval_seconds=1.0)
        definition: Any = pipeline.store.definition()
        with writing(mesh):
            pipeline.until(lambda: _shows(pipeline, bank), "both tables in a publication", 120)
            kept.append(savepoint(pipeline, "first"))
            mesh.kill(mesh.of("reader")[0])
            mesh.start("reader")
            pipeline.next_epoch(1)
        with writing(mesh):
            kept.append(savepoint(pipeline, "second"))
            movers.stop()
            pipeline.catches_up(*bank.names)
            kept.append(savepoint(pipeline, "last"))
    reader = session.for_pipeline(spark, definition["sink"])
    records = [one.body for one in pipeline.store.publications()]
    showing = [one for one in records if all(name in one["tables"] and shown(one, name) for name in bank.names)]
    assert {one["n"] for one in showing if one["kept"]} >= set(kept)
    assert len(showing) > len(kept)
    truth = bank.history.at(bank.tables, [place(one) for one in showing])
    for record, held in zip(showing, truth, strict=True):
        versions = [[record["tables"][name]["main"]["snapshot_id"] for name in bank.names]]
        if record["n"] in kept:
            versions.append([f"'checkpoint_{record['n']}'"] * 2)
        for pair in versions:
            found = {name: _rows(reader, name, version) for name, version in zip(bank.names, pair, strict=True)}
            assert sum(row["amount"] for rows in found.values() for row in rows.values()) == 2 * ACCOUNTS * BALANCE
            for name in bank.names:
                assert differences(found[name], held[name]) == [], f"{name}, publication {record['n']} by {pair}"
    for name in bank.names:
        assert differences(_rows(reader, name), content(mariadb, name, ["id"])) == []
    listed = reader.sql("SELECT checkpoint FROM lake._cutline.publications WHERE pipeline = 'bank'").toArrow()
    assert set(listed["checkpoint"].to_pylist()) >= set(kept)


def _shows(pipeline: Pipeline, bank: Bank) -> bool:
    return any(
        all(name in one.body["tables"] and shown(one.body, name) for name in bank.names)
        for one in pipeline.store.publications()
    )


def _rows(reader: Any, table: str, version: object = None) -> Content:
    of = f" VERSION AS OF {version}" if version is not None else ""
    rows = reader.sql(f"SELECT * FROM lake.{table}{of}").toArrow().to_pylist()
    found = {(row["id"],): row for row in rows}
    assert len(found) == len(rows), f"{table}{of} has a key twice"
    return found
