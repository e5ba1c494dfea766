"""The whole mesh as real processes.

- `Mesh`: Redis, enumerators, readers and writers as processes, in their own folder; a test kills and starts each.
- `Pipeline`: one pipeline of a mesh; waits for conditions with deadlines, and shows the processes' logs if one fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from cutline.common.config.pipeline import parse
from cutline.common.positions import FilePosition
from cutline.common.status.pipeline_status import PipelineStatus, ReaderStatus
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry
from cutline.common.store.store import Store
from cutline.services.sources.mysql.connection import Connection, Source, connect
from cutline.services.sources.mysql.server import flushed_position, identify
from tests.support import forge, records
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database
from tests.support.redis_servers import Redis
from tests.support.status import status_of

ROOT = Path(__file__).resolve().parents[2]
ENDS_SECONDS = 20.0
POLL_SECONDS = 0.05
T = TypeVar("T")


def waited(condition: Callable[[], T], goal: str, seconds: float, details: Callable[[], str] = lambda: "") -> T:
    """Wait until `condition` is true and return its value; after the deadline fail with `goal` and `details`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {goal}\n{details()}"
        time.sleep(POLL_SECONDS)
    return found


# --- processes --------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class ServiceProcess:
    """One process of the mesh."""

    role: str
    popen: subprocess.Popen[bytes] | forge.Forked
    log: Path

    @property
    def rss_mib(self) -> float:
        return psutil.Process(self.popen.pid).memory_info().rss / (1 << 20)


class Mesh:
    """Redis and the services of one test. A service that a test kills stays dead until the test calls `start`.

    `programs` replaces the command of a role (after the interpreter), for a test that breaks the role on purpose. Not
    `forked`, each service is an interpreter of its own from its start, whose memory can be measured.
    """

    def __init__(
        self,
        folder: Path,
        *,
        readers: int = 2,
        writers: int = 2,
        enumerators: int = 1,
        spark: bool = False,
        programs: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
        forked: bool = True,
        redis: Redis | None = None,
    ) -> None:
        self.folder = folder
        self._forked = forked
        self.redis = redis or Redis()
        self.services: list[ServiceProcess] = []
        self._roles = ["enumerator"] * enumerators + ["reader"] * readers + ["writer"] * writers
        self._roles += ["spark_writer"] * spark
        self._programs = dict(programs or {})
        self._wanted = {"CUTLINE_READERS": str(readers), "CUTLINE_WRITERS": str(writers), **(environment or {})}
        self.store = Store(f"file://{folder}/store")

    def __enter__(self) -> Self:
        self.redis.start()
        self.store.prepare()
        for role in self._roles:
            self.start(role)
        return self

    def __exit__(self, *_: object) -> None:
        for service in self.services:
            service.popen.terminate()
        deadline = time.monotonic() + ENDS_SECONDS
        for service in self.services:
            try:
                service.popen.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                service.popen.kill()
                service.popen.wait()
        self.redis.close()

    def start(self, role: str) -> ServiceProcess:
        """Start one more service of this role."""
        module = f"cutline.{role if role == 'spark_writer' else f'services.{role}'}"
        log = self.folder / f"{role}-{sum(1 for _ in self.folder.glob('*.log'))}.log"
        environ = (
            os.environ
            | {
                "CUTLINE_REDIS_URL": self.redis.url,
                "CUTLINE_STORE_URL": f"file://{self.folder}/store",
                "CDC_PASSWORD": CDC_PASSWORD,
                "PYTHONPATH": str(ROOT),
            }
            | self._wanted
        )
        service = ServiceProcess(role, self._process(role, module, environ, log), log)
        self.services.append(service)
        return service

    def _process(
        self, role: str, module: str, environ: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes] | forge.Forked:
        if self._forked and role not in self._programs and module in forge.MODULES:
            return forge.fork(module, environ, self.folder, log)
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *self._programs.get(role, ("-m", module))],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip

    def running(self, role: str) -> list[ServiceProcess]:
        """The running services of a role."""
        return [service for service in self.services if service.role == role and service.popen.poll() is None]

    def kill(self, service: ServiceProcess) -> None:
        """End the service by SIGKILL."""
        service.popen.kill()
        service.popen.wait()
        self.services.remove(service)

    def leave(self, service: ServiceProcess) -> int:
        """End the service by SIGTERM, as an operator does who removes a machine; return the exit code."""
        service.popen.send_signal(signal.SIGTERM)
        code = service.popen.wait(ENDS_SECONDS)
        self.services.remove(service)
        return code

    def present(self) -> set[int]:
        """The process ids of the services that are registered in Redis."""
        with self.redis.client() as client:
            bodies: list[Any] = [client.get(key) for key in client.scan_iter("cutline:service:*")]
        return {json.loads(body)["pid"] for body in bodies if body is not None}

    def leader(self, pipeline: Pipeline) -> ServiceProcess:
        """The enumerator that leads the pipeline."""

        def find() -> ServiceProcess | None:
            incarnation = pipeline.status().enumerator.leader
            with contextlib.suppress(Exception), self.redis.client() as client:
                body: Any = client.get(f"cutline:service:{incarnation}")
                pid = json.loads(body)["pid"]
                return next((service for service in self.running("enumerator") if service.popen.pid == pid), None)
            return None

        return waited(find, "a leader", 20, self.log_ends)

    def log_ends(self, lines: int = 12) -> str:
        """The last lines of all logs."""
        ends = []
        for log in sorted(self.folder.glob("*.log")):
            text = log.read_text(errors="replace").splitlines()[-lines:]
            ends.append(f"--- {log.name}\n" + "\n".join(text))
        return "\n".join(ends)

    def pipeline(self, name: str, server: Database, tables: Sequence[str], more: str = "", **settings: Any) -> Pipeline:
        """Define a pipeline, which the mesh then runs.

        `settings` are chunk_rows, chunks, interval_seconds, keyless, table_options, schema_changes, port, user, start,
        stop, and `snapshot`, `checkpoint` and `source`, mappings of other settings of these sections; `more` is YAML
        added at the end.
        """
        snapshot = {key: settings[key] for key in ("chunk_rows", "chunks") if key in settings}
        snapshot = {"chunk_rows": 100} | snapshot | settings.get("snapshot", {})
        checkpoint = {"interval_seconds": settings.get("interval_seconds", 0.5)} | settings.get("checkpoint", {})
        source = {
            "host": server.host,
            "port": settings.get("port", server.port),
            "user": settings.get("user", CDC_USER),
            "password_env": "CDC_PASSWORD",
        }
        source |= settings.get("source", {})
        listed = ", ".join(f'"{table}"' for table in tables)
        config = parse(
            f"name: {name}\n"
            f"source: {json.dumps(source)}\n"
            f"start: {settings.get('start', 'initial')}\nstop: {settings.get('stop', 'null')}\n"
            f"tables: [{listed}]\n"
            f"snapshot: {json.dumps(snapshot)}\n"
            f"table_options: {json.dumps(settings.get('table_options', []))}\n"
            f"checkpoint: {json.dumps(checkpoint)}\n"
            f"keyless: {settings.get('keyless', 'quarantine')}\n"
            f"schema_changes: {settings.get('schema_changes', 'evolve')}\n"
            f"sink: {{type: iceberg, warehouse: {self.folder}/lake}}\n{more}"
        )
        self.store.pipeline(name).define(config.definition())
        return Pipeline(self, name, server)


class Pipeline:
    """One pipeline of a mesh, seen from outside: by its journal and its status in Redis."""

    def __init__(self, mesh: Mesh, name: str, server: Database) -> None:
        self.mesh, self.name, self.server = mesh, name, server
        self.store = mesh.store.pipeline(name)
        self._entries: list[Entry] = []
        self._reading = threading.Lock()

    def entries(self) -> list[Entry]:
        """The journal so far; from any thread."""
        with self._reading:
            newest = self._entries[-1].slot if self._entries else 0
            self._entries = [*self._entries, *records.entries(self.store, newest)]
            return self._entries

    def checkpoint(self) -> CheckpointEntry | None:
        """The newest checkpoint entry."""
        return next((entry for entry in reversed(self.entries()) if isinstance(entry, CheckpointEntry)), None)

    def epochs(self) -> list[EpochEntry]:
        """The epoch entries so far."""
        return [entry for entry in self.entries() if isinstance(entry, EpochEntry)]

    def status(self) -> PipelineStatus:
        """The status that the services report; that of no service if Redis doesn't answer.

        It is of up to a second ago, so older than what the journal or the lake shows: wait for what it shall say.
        """
        with contextlib.suppress(Exception), self.mesh.redis.client() as client:
            found: Any = client.hgetall(f"cutline:status:{self.store.key}")
            parts = {part.decode(): json.loads(body) for part, body in found.items()}
            parts.setdefault("enumerator", {})["tables"] = parts.pop("tables", {})
            return status_of(parts)
        return PipelineStatus()

    def reader(self, number: int = 0) -> ReaderStatus:
        """What this reader reports."""
        return self.status().readers.get(f"reader-{number}", ReaderStatus())

    def until(self, condition: Callable[[], T], goal: str, seconds: float = 60.0) -> T:
        """Wait for a condition; a failure shows the tables' states and the services' logs."""
        return waited(condition, goal, seconds, self.progress)

    def progress(self) -> str:
        """The pipeline's progress, for a failure's message."""
        newest = self.checkpoint()
        tables = newest and {name: (t.phase, t.generation, t.show, t.cause) for name, t in newest.tables.items()}
        position = newest and newest.position
        epochs = [(epoch.slot, epoch.base, epoch.cause) for epoch in self.epochs()]
        slot = newest and newest.slot
        return f"{self.name}: epochs {epochs}\nnewest {slot} at {position}: {tables}\n{self.mesh.log_ends()}"

    def phase(self, table: str) -> str | None:
        """The table's phase in the newest checkpoint."""
        newest = self.checkpoint()
        return newest.tables[table].phase if newest and table in newest.tables else None

    def generation(self, table: str) -> int:
        """The table's generation in the newest checkpoint."""
        newest = self.checkpoint()
        assert newest is not None
        return newest.tables[table].generation

    def shows(self, *tables: str) -> bool:
        """Whether the newest checkpoint shows all these tables."""
        newest = self.checkpoint()
        return newest is not None and all(table in newest.tables and newest.tables[table].show for table in tables)

    def catches_up(self, *tables: str, seconds: float = 60.0) -> CheckpointEntry:
        """Take the source's flushed position now, and wait for a checkpoint that shows the tables at or after it."""
        with contextlib.closing(connection(self.server)) as conn:
            target = flushed_position(conn, identify(conn))

        def reached() -> CheckpointEntry | None:
            newest = self.checkpoint()
            if newest is None or newest.inside or newest.position is None or not self.shows(*tables):
                return None
            return newest if place(newest) >= target else None

        return self.until(reached, f"{self.name} shows {', '.join(tables)} at {target}", seconds)

    def goes_on(self, checkpoints: int = 2, seconds: float = 60.0) -> None:
        """Wait until the journal has this many more checkpoints."""
        begun = len(self.entries())

        def more() -> bool:
            return sum(isinstance(entry, CheckpointEntry) for entry in self.entries()[begun:]) >= checkpoints

        self.until(more, f"{checkpoints} more checkpoints of {self.name}", seconds)

    def next_epoch(self, after: int, seconds: float = 60.0) -> None:
        """Wait until the journal has more than `after` epochs, and the next one has completed a checkpoint."""
        self.until(lambda: len(self.epochs()) > after, f"epoch {after + 1} of {self.name}", seconds)
        slot = self.epochs()[after].slot
        self.until(
            lambda: (newest := self.checkpoint()) and newest.slot > slot, f"a checkpoint after epoch {slot}", seconds
        )


def connection(server: Database) -> Connection:
    """A connection made by Cutline's own code, as the capturing user."""
    return connect(Source(host=server.host, port=server.port, user=CDC_USER, password=CDC_PASSWORD))


def place(entry: CheckpointEntry) -> FilePosition:
    """The checkpoint's place in the binlog."""
    assert entry.position is not None
    return FilePosition(entry.position.file, entry.position.offset)
