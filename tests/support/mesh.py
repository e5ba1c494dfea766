"""The whole mesh as real processes, its journal, a model of the lake in Python, and an oracle of the source.

- `Mesh`: Redis, enumerators, readers and writers as processes, in their own folder; a test kills and starts each.
- `Pipeline`: one pipeline of a mesh; waits for conditions with deadlines, and shows the processes' logs if one fails.
- `cuts`: the lake that the Spark writer would make of the journal, computed in Python: rows of chunks appended, changes
  in the order of `_seq`, the last one of each key, `t` (truncate), generations. It yields each checkpoint that could be
  published with the tables that it shows, so a test of published content needs no Spark.
- `History`: the history of the source, replayed from the output of its mysqlbinlog: the content of a table at any
  position between two transactions.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
from pymysql.constants import ER

from cutline.common.config.pipeline import parse
from cutline.common.positions import FilePosition
from cutline.common.schema import OP, SEQ, TableSchema
from cutline.common.status.pipeline_status import PipelineStatus, ReaderStatus
from cutline.common.store.chain import follow
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry, StagedFile
from cutline.common.store.store import PipelineStore, Store
from cutline.services.sources.mysql.connection import Connection, Source, connect
from cutline.services.sources.mysql.server import flushed_position, identify
from tests.support import forge, records
from tests.support.servers import CDC_PASSWORD, CDC_USER, Database, MySQL, Redis, mysql_system
from tests.support.status import status_of
from tools.programs import program

ROOT = Path(__file__).resolve().parents[2]
ENDS_SECONDS = 20.0
POLL_SECONDS = 0.05
T = TypeVar("T")
Row = dict[str, Any]
Content = dict[tuple[Any, ...], Row]
Columns = tuple[tuple[str, ...], tuple[str, ...]]
"""All columns of a table in order, and those of its key."""


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


# --- the lake, in Python ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Table:
    """One table of the lake: key -> rows (several if a row was doubled); a row is field id -> value."""

    generation: int
    rows: dict[tuple[Any, ...], list[dict[int, Any]]] = field(default_factory=dict)
    seq: int = -1


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table as a publication shows it; `rows` are key -> rows, a row is field id -> value."""

    schema: TableSchema
    generation: int
    rows: Mapping[tuple[Any, ...], list[dict[int, Any]]]

    @cached_property
    def content(self) -> Content:
        """The rows by key, with the column names that the table has at the cut."""
        defaults = {
            column.name: pa.scalar(column.initial_default).cast(self.schema.arrow.field(column.name).type).as_py()
            for column in self.schema.columns
            if column.initial_default is not None
        }
        named = [(column.name, column.field_id, defaults.get(column.name)) for column in self.schema.columns]
        return {
            key: {name: found[0].get(number, default) for name, number, default in named}
            for key, found in self.rows.items()
        }

    @property
    def doubled(self) -> list[tuple[Any, ...]]:
        """Keys with more than one row."""
        return [key for key, found in self.rows.items() if len(found) > 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A checkpoint that could be published, with the tables that it would show."""

    slot: int
    at: FilePosition | None
    entry: CheckpointEntry
    tables: Mapping[str, Shown]


def cuts(pipeline: Pipeline) -> Iterator[Cut]:
    """Apply the journal's chain from its beginning; yield each checkpoint that is not `inside` a transaction."""
    entries = {entry.slot: entry for entry in pipeline.entries()}
    lake: dict[str, _Table] = {}
    schemas: dict[str, TableSchema] = {}
    for slot in follow(max(entries, default=0), entries.get).after(0):
        entry = entries[slot]
        schemas |= pipeline.store.schemas(entry.schemas - schemas.keys())
        files: dict[str, list[StagedFile]] = {}
        for file in entry.staged:
            files.setdefault(file.table, []).append(file)
        for table, state in entry.tables.items():
            if table not in lake or lake[table].generation != state.generation:
                lake[table] = _Table(generation=state.generation)
            staged = files.get(table, [])
            for file in staged:
                assert file.generation <= state.generation, f"{slot}: {file} is of a later generation"
            _apply(pipeline.store, lake[table], schemas, [f for f in staged if f.generation == state.generation])
        if not entry.inside:
            shown = {
                table: Shown(
                    schema=schemas[state.schema or ""], generation=state.generation, rows=dict(lake[table].rows)
                )
                for table, state in entry.tables.items()
                if state.show
            }
            at = place(entry) if entry.position else None
            yield Cut(slot=slot, at=at, entry=entry, tables=shown)


def _apply(
    pipeline: PipelineStore,
    table: _Table,
    schemas: Mapping[str, TableSchema],
    staged: Iterable[StagedFile],
) -> None:
    files = list(staged)
    truncated = max((file.truncated_at for file in files if file.truncated_at is not None), default=None)
    if truncated is not None:
        table.rows = {}
    last: dict[tuple[Any, ...], tuple[int, str, dict[int, Any]]] = {}
    for file in files:
        schema = schemas[file.schema]
        ids = {column.name: column.field_id for column in schema.columns}
        read = pq.read_table(_path(pipeline, file))
        assert read.num_rows == file.rows, f"{file.path} has {read.num_rows} rows, the journal says {file.rows}"
        if file.kind == "chunk":
            if truncated is None:
                for row in read.to_pylist():
                    key = tuple(row[name] for name in schema.key)
                    table.rows.setdefault(key, []).append({ids[name]: value for name, value in row.items()})
            continue
        assert file.seq_min is not None
        assert file.seq_min > table.seq, f"{file.path} has _seq {file.seq_min} after {table.seq}"
        for row in read.to_pylist():
            seq, op = row[SEQ], row[OP]
            if op == "t" or (truncated is not None and seq < truncated):
                continue
            key = tuple(row[name] for name in schema.key)
            if key not in last or last[key][0] < seq:
                last[key] = seq, op, {ids[name]: row[name] for name in ids}
    table.seq = max([table.seq, *(file.seq_max or 0 for file in files if file.kind == "changes")])
    for key, (_, op, values) in last.items():
        if op == "-D":
            table.rows.pop(key, None)
        else:
            table.rows[key] = [values] * max(1, len(table.rows.get(key, ())))


def _path(pipeline: PipelineStore, file: StagedFile) -> str:
    return pipeline.location(file.path).removeprefix("file://")


# --- the oracle -------------------------------------------------------------------------------------------------------


_EVENT = re.compile(r"#\d{6} .* end_log_pos (\d+) (?:CRC32 \S+ )?\s*(\w+)(.*)")
_ROW = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `(.+)`\.`(.+)`")
_TRUNCATE = re.compile(r"TRUNCATE (?:TABLE )?`?(\w+)`?\.`?(\w+)`?$", re.IGNORECASE)


@dataclass(slots=True)
class _Change:
    table: str
    op: str
    before: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)


class History:
    """The content of tables at each position, from the server's binlog files; create it before the tables.

    The server's own mysqlbinlog decodes the files, and no code of Cutline's (with MariaDB, mysql-replication would
    reconnect for ever). It supports integers, decimals and plain text, and of DDL only TRUNCATE of `db.table`.
    """

    def __init__(self, server: Database) -> None:
        self.server = server
        self.begin = flushed(server)

    def at(self, tables: Mapping[str, Columns], places: Iterable[FilePosition]) -> list[dict[str, Content]]:
        """The content of `tables` at each of these places, in their order; each must lie between two transactions."""
        asked = list(places)
        wanted = sorted(set(asked))
        states: dict[FilePosition, dict[str, Content]] = {}
        now: dict[str, Content] = {table: {} for table in tables}
        for ends, changes in self._transactions():
            while wanted and wanted[0] < ends:
                states[wanted.pop(0)] = {table: dict(rows) for table, rows in now.items()}
            for change in changes:
                if change.table in tables:
                    _replay(now[change.table], tables[change.table], change)
        for position in wanted:
            states[position] = now
        return [states[position] for position in asked]

    def _transactions(self) -> Iterator[tuple[FilePosition, list[_Change]]]:
        """Yield the end of each transaction with its changes."""
        files = [row[0] for row in self.server.execute("SHOW BINARY LOGS")]
        for file in files[files.index(self.begin.file) :]:
            pending: list[_Change] = []
            values: list[Any] = []
            end, kind, words = 0, "", ""
            for line in self._text(file):
                if line.startswith("###   @"):
                    values.append(_value(line.split("=", 1)[1]))
                elif line == "### WHERE":
                    values = pending[-1].before
                elif line == "### SET":
                    values = pending[-1].after
                elif row := _ROW.match(line):
                    pending.append(_Change(f"{row[2]}.{row[3]}", row[1][0]))
                elif event := _EVENT.match(line):
                    end, kind, words = int(event[1]), event[2], event[3]
                    if kind == "Xid":
                        yield FilePosition(file, end), pending
                        pending = []
                elif kind == "Query" and (truncated := _TRUNCATE.match(line)):
                    yield FilePosition(file, end), [_Change(f"{truncated[1]}.{truncated[2]}", "T")]
            assert not pending, f"{file} ends within a transaction, at {end} ({kind} {words})"

    def _text(self, file: str) -> Iterator[str]:
        """Yield the lines that mysqlbinlog prints for one file."""
        assert self.server.folder is not None
        path = self.server.folder / "data" / file
        if isinstance(self.server, MySQL):
            path = "/" / path.relative_to(mysql_system())
            printer = [program("chroot"), str(mysql_system()), "/usr/bin/mysqlbinlog"]
        else:
            printer = [program("mariadb-binlog")]
        begin = self.begin.offset if file == self.begin.file else 4
        command = [*printer, "-v", "--base64-output=decode-rows", f"--start-position={begin}", str(path)]
        # the tests' temporary folder does not exist inside the chroot
        environ = {key: value for key, value in os.environ.items() if key != "TMPDIR"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", env=environ) as process:
            assert process.stdout is not None
            yield from (line.rstrip("\n") for line in process.stdout)
        assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"


def _value(text: str) -> Any:
    if text == "NULL":
        return None
    if text.startswith("'"):
        return text[1:-1]
    text = text.split(" ")[0]
    return Decimal(text) if "." in text else int(text)


def _replay(content: Content, columns: Columns, change: _Change) -> None:
    """Apply one change; a KeyError (a row to change is missing) means that the oracle is wrong."""
    names, key = columns
    if change.op == "T":
        content.clear()
    if change.op in "UD":
        before = dict(zip(names, change.before, strict=True))
        del content[tuple(before[name] for name in key)]
    if change.op in "UI":
        after = dict(zip(names, change.after, strict=True))
        content[tuple(after[name] for name in key)] = after


def flushed(server: Database) -> FilePosition:
    """The end of the server's binlog now."""
    with contextlib.closing(connection(server)) as conn:
        return flushed_position(conn, identify(conn))


def content(server: Database, table: str, key: Sequence[str]) -> Content:
    """The rows of a SELECT now, in the form of `Shown.content`."""
    with contextlib.closing(server.connect(cursorclass=pymysql.cursors.DictCursor)) as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return {tuple(row[name] for name in key): row for row in cursor.fetchall()}


def differences(found: Content, wanted: Content) -> list[str]:
    """One line for each key that differs, at most ten; [] if both are equal."""
    lines = [f"{key}: lacks {wanted[key]}" for key in wanted.keys() - found.keys()]
    lines += [f"{key}: has {found[key]}, which the source has not" for key in found.keys() - wanted.keys()]
    lines += [
        f"{key}: {found[key]} for {wanted[key]}" for key in found.keys() & wanted.keys() if found[key] != wanted[key]
    ]
    return lines[:10]


def judge(pipeline: Pipeline, history: History, tables: Mapping[str, Columns]) -> tuple[list[Cut], list[str]]:
    """Every publishable checkpoint, and one line for each difference between its tables and the source.

    The source's content is that at the checkpoint's position; a key with two rows is a difference too.
    """
    found = list(cuts(pipeline))
    showing = [cut for cut in found if cut.tables and cut.at is not None]
    at = sorted({cut.at for cut in showing if cut.at is not None})
    truth = dict(zip(at, history.at(tables, at), strict=True))
    faults = []
    for cut in showing:
        assert cut.at is not None
        for table in cut.tables.keys() & tables.keys():
            shown = cut.tables[table]
            lines = differences(shown.content, truth[cut.at][table])
            lines += [f"{key} has two rows" for key in shown.doubled]
            faults += [f"checkpoint {cut.slot} at {cut.at}, {table}: {line}" for line in lines]
    return found, faults


# --- connections that change rows -------------------------------------------------------------------------------------


class Hammer:
    """Connections that run a transaction over and over until `stop`, each in a thread.

    `transaction(cursor, luck, number)` runs the statements. After a deadlock or lock timeout the transaction is tried
    again; `survives` also reconnects after any other error of the server. `done` counts the committed transactions.
    """

    def __init__(
        self,
        server: Database,
        transaction: Callable[[Any, random.Random, int], None],
        *,
        threads: int = 4,
        pause_seconds: float = 0.0,
        survives: bool = False,
        seed: int = 1,
    ) -> None:
        self.done = 0
        self._server, self._transaction, self._pause, self._survives = server, transaction, pause_seconds, survives
        self._ends = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(seed * 1000 + number)), daemon=True)
            for number in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End after the current transactions; fail if a thread failed."""
        self._ends.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._failures, self._failures

    def _run(self, number: int, luck: random.Random) -> None:
        conn: Any = None
        while not self._ends.is_set():
            try:
                conn = conn or self._server.connect(
                    autocommit=False, init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
                )
                with conn.cursor() as cursor:
                    self._transaction(cursor, luck, number)
                conn.commit()
                self.done += 1
                self._ends.wait(self._pause)
            except pymysql.MySQLError as error:
                if error.args[0] in (ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK):
                    conn.rollback()
                elif self._survives:
                    conn = None
                    self._ends.wait(0.2)
                else:
                    self._failures.append(error)
                    return
            except BaseException as error:
                self._failures.append(error)
                return
