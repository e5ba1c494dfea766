"""The mesh as `cutline run` starts it, but in groups, so that a measurement can start when Spark is warm.

`BenchMesh` owns a Redis and three groups of processes (the same modules, counts and settings): "spark", "workers"
(readers, writers, control), "enumerators". `Watch` reads the lake's catalogue, and so sees what a reader of the lake
sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cutline.common.config.pipeline import PipelineConfig, parse
from cutline.common.positions import Position
from cutline.common.store.records import Publication
from cutline.common.store.store import PipelineStore, Store
from cutline.services.run.lake import CATALOG_FILE
from cutline.services.run.supervisor import Child, Supervisor, free_port
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database
from tests.support.redis_servers import Redis
from tools.bench.customer import COLUMNS
from tools.bench.meter import Meter

T = TypeVar("T")

READERS = WRITERS = 2
LONGEST_SECONDS = 600.0
POLL_SECONDS = 0.02
_PASSWORD = "CUTLINE_BENCH_PASSWORD"
_MASK_KEY = "CUTLINE_BENCH_MASK_KEY"
_WARM = "warm"
_WARM_ROWS = 40_000


class BenchMesh:
    """Processes and pipelines of one bench in `folder`; the end of the `with` ends all processes."""

    def __init__(self, server: Database, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.store = Store(f"file://{folder / 'store'}")
        self.redis = Redis(maxmemory="512mb", maxmemory_policy="noeviction")
        self.api_token, self._api_port = secrets.token_hex(8), free_port()
        self.api_url = f"http://127.0.0.1:{self._api_port}"
        self._groups: dict[str, Supervisor] = {}

    def __enter__(self) -> BenchMesh:
        (self.folder / "logs").mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        self.store.prepare()
        self.redis.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop("enumerators", "workers", "spark")
        self.redis.close()

    def start(self, *groups: str) -> None:
        """Start these groups; `ready` waits for them, a second or two."""
        for group in groups:
            modules = {
                "spark": [("spark-writer", "cutline.spark_writer")],
                "enumerators": [(f"enumerator-{i}", "cutline.services.enumerator") for i in range(2)],
                "workers": [
                    *((f"reader-{i}", "cutline.services.reader") for i in range(READERS)),
                    *((f"writer-{i}", "cutline.services.writer") for i in range(WRITERS)),
                    ("control", "cutline.services.control"),
                ],
            }[group]
            environ = os.environ | {
                "CUTLINE_REDIS_URL": self.redis.url,
                "CUTLINE_STORE_URL": f"file://{self.folder / 'store'}",
                "CUTLINE_API_PORT": str(self._api_port),
                "CUTLINE_API_TOKEN": self.api_token,
                "CUTLINE_READERS": str(READERS),
                "CUTLINE_WRITERS": str(WRITERS),
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                "PYTHONUNBUFFERED": "1",
                "TMPDIR": str(self.folder / "tmp"),
                "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
                _PASSWORD: CDC_PASSWORD,
                _MASK_KEY: "of tables that the bench made itself",
            }
            children = [
                Child(
                    name=name,
                    command=[sys.executable, "-P", "-m", module],
                    log=self.folder / "logs" / f"{name}.log",
                )
                for name, module in modules
            ]
            self._groups[group] = Supervisor(children, environ)
        self._look()

    def ready(self, *groups: str) -> None:
        """Wait until the processes of these groups are registered in Redis."""
        wanted = {pid for group in groups for pid in self._groups[group].pids().values()}
        with self.redis.client() as client:

            def registered() -> bool:
                bodies = [client.get(key) for key in client.scan_iter("cutline:service:*")]
                return wanted <= {json.loads(body)["pid"] for body in bodies if body}

            self.wait(f"the {' and '.join(groups)} are registered", registered)

    def stop(self, *groups: str) -> None:
        """End these groups by SIGTERM."""
        for group in groups:
            if (running := self._groups.pop(group, None)) is not None:
                asyncio.run(running.stop())

    def wait(self, goal: str, holds: Callable[[], T], seconds: float = LONGEST_SECONDS) -> T:
        """Poll until `holds()` is true and return it; RuntimeError after `seconds`, or if a process ended."""
        deadline = time.monotonic() + seconds
        looked = 0.0
        while not (found := holds()):
            now = time.monotonic()
            if now > deadline:
                raise RuntimeError(f"waited {seconds:.0f} s in vain until {goal}\n{self.logs()}")
            if now - looked > 1.0:
                self._look()
                looked = now
            time.sleep(POLL_SECONDS)
        return found

    def _look(self) -> None:
        for group in self._groups.values():
            if ended := group.tick(time.monotonic()):
                raise RuntimeError(f"{'; '.join(ended)}\n{self.logs()}")

    def logs(self, lines: int = 8) -> str:
        """The last lines of each log, and the pipelines' status."""
        lines_of_all = []
        for log in sorted((self.folder / "logs").glob("*.log")):
            text = log.read_text(errors="replace").splitlines()
            lines_of_all += [f"{log.stem}: {line[:300]}" for line in text[-lines:]]
        with contextlib.suppress(Exception), self.redis.client() as client:
            for life in self.store.lives():
                lines_of_all.append(f"{life.name}: {client.hgetall(f'cutline:status:{life.key}')!r}"[:3000])
        return "\n".join(lines_of_all)

    @contextlib.contextmanager
    def metered(self) -> Iterator[Meter]:
        """Measure all running processes but the source's server."""
        names = {pid: name for group in self._groups.values() for name, pid in group.pids().items()}
        assert self.server.pid is not None
        assert self.redis.pid is not None
        names[self.redis.pid] = "redis"
        with Meter(but={self.server.pid}, names=names) as meter:
            # At the end, add the names of processes that started meanwhile.
            yield meter
            names.update({pid: name for group in self._groups.values() for name, pid in group.pids().items()})

    # --- pipelines ---

    def pipeline(self, name: str, tables: str, **more: Any) -> PipelineConfig:
        """Build a pipeline's configuration, and check it."""
        content = {
            "name": name,
            "source": {
                "host": self.server.host, "port": self.server.port, "user": CDC_USER, "password_env": _PASSWORD,
            },
            "tables": [tables],
            "masking": {"key_env": _MASK_KEY},
            "sink": {"type": "iceberg", "warehouse": str(self.folder / f"lake-{name}")},
            **more,
        }  # fmt: skip
        return parse(json.dumps(content), folder=self.folder)

    def define(self, config: PipelineConfig) -> PipelineStore:
        """Put the pipeline into the store; running enumerators then start it."""
        store = self.store.pipeline(config.name)
        store.define(config.definition())
        return store

    def warm(self) -> None:
        """Start Spark and let it publish a snapshot and changes of a table of the same shape; then only Spark runs.

        The warm-up's pipeline is removed, so that later measurements do not include it.
        """
        self.start("spark", "workers", "enumerators")
        table = f"{_WARM}.customer"
        self.server.execute(
            f"CREATE DATABASE IF NOT EXISTS {_WARM}",
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} ({COLUMNS})",
        )
        numbers = [range(at, min(at + 2000, _WARM_ROWS)) for at in range(0, _WARM_ROWS, 2000)]
        self.server.execute(
            *(
                f"INSERT INTO {table} (c_customer_sk, c_customer_id) VALUES {','.join(f'({n},{n})' for n in some)}"
                for some in numbers
            )
        )
        config = self.pipeline(_WARM, table, checkpoint={"interval_seconds": 1})
        watch = Watch(config, self.define(config), table)

        def shown_after(n: int) -> bool:
            return (shown := watch.look()) is not None and shown.n > n

        self.wait("the warm-up's snapshot is published", watch.look)
        for round_ in range(6):
            before = watch.look()
            assert before is not None
            self.server.execute(
                f"UPDATE {table} SET c_birth_day = {round_} WHERE c_customer_sk % 20 = {round_}",
                f"UPDATE {table} SET c_birth_day = {round_} WHERE c_customer_sk % 20 = {round_ + 6}",
            )
            self.wait("the warm-up's changes are published", partial(shown_after, before.n))
        watch.close()
        self.forget(config)

    def forget(self, config: PipelineConfig) -> None:
        """End all processes but Spark, and remove the pipeline, so that no service works for it any more."""
        self.stop("enumerators", "workers")
        store = self.store.pipeline(config.name)
        store.remove_files()
        store.end()
        self.redis.flush()


class Watch:
    """The content of one table that a reader of the lake sees, by the catalogue and the metadata file."""

    def __init__(self, config: PipelineConfig, store: PipelineStore, table: str) -> None:
        self._catalog = Path(config.sink.warehouse) / CATALOG_FILE
        self._store = store
        self._namespace, _, self._name = table.partition(".")
        self._connection: sqlite3.Connection | None = None
        self._location: str | None = None
        self._shown: Publication | None = None

    def look(self) -> Publication | None:
        """The publication that `main` shows now; None before the first publication."""
        location = self.metadata_location()
        if location is None or location == self._location:
            return self._shown
        metadata = json.loads(Path(location).read_text(encoding="utf-8"))
        n = json.loads(metadata["properties"].get("cutline.published", "[0, 0]"))[1]
        if n and "main" in metadata["refs"]:
            self._shown = self._store.publication(n)
        self._location = location
        return self._shown

    def position(self) -> Position | None:
        """The source position of `main`; None before the first publication."""
        shown = self.look()
        return None if shown is None else shown.position

    def metadata_location(self) -> str | None:
        """The table's current metadata file; None before the table exists."""
        if self._connection is None:
            if not self._catalog.exists():
                return None
            self._connection = sqlite3.connect(f"file:{self._catalog}?mode=ro", uri=True, timeout=5.0)
        try:
            found = self._connection.execute(
                "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?",
                (self._namespace, self._name),
            ).fetchone()
        except sqlite3.OperationalError:  # the catalogue is being created
            return None
        return str(found[0]).removeprefix("file://").removeprefix("file:") if found else None

    def close(self) -> None:
        """Close the catalogue."""
        if self._connection is not None:
            self._connection.close()
