"""`cutline run` as a real process with its own Redis, over a mesh of one stand-in process that behaves as asked.

The stand-in keeps to what the run relies on: it shows a status in Redis, and answers the command for a savepoint with a
kept checkpoint in the journal and its publication. So the run's own rules are tested without Spark.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from cutline.common.store.command_records import Orders, Outcome
from cutline.common.store.store import Store
from cutline.services.run import cli
from tests.support.databases import Database, MariaDB
from tests.support.redis_servers import Redis

ROOT = Path(__file__).resolve().parents[3]

MESH = """
import asyncio, json, os, time
from cutline.common.causes import Cause
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import Unavailable
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.redis import connect
from cutline.common.positions import Position
from cutline.common.form import read
from cutline.common.status.pipeline_status import EnumeratorStatus, SparkWriterStatus
from cutline.common.store.commands import Orders, Outcome
from cutline.common.store.records import Content, Main, Publication, PublishedTable
from cutline.common.store.store import Store
from cutline.services.sources.mysql.hosts import flushed_high
from cutline.services.enumerator.commanding import asked_definition
from tests.support import records

plan = json.loads(os.environ["PLAN"])

async def main():
    registry = Registry(connect(os.environ["CUTLINE_REDIS_URL"]))
    store = Store(os.environ["CUTLINE_STORE_URL"]).pipeline("shop")
    config = PipelineConfig.from_definition(store.definition())
    published, done = None, getattr(store.commands.newest_outcome(), "n", 0)
    while True:
        try:
            now = time.time()
            if plan.get("spark"):
                spark = read(SparkWriterStatus, plan["spark"] | {"at": now})
                await registry.put_status(store.key, "spark_writer", spark)
            halted = Cause.from_json(plan["halted"]) if "halted" in plan else None
            status = EnumeratorStatus(at=now, epoch=1, halted=halted)
            await registry.put_status(store.key, "enumerator", status, tables=json.dumps(plan["tables"]))
        except Unavailable:
            pass
        asked = store.commands.get(done + 1) if plan.get("answers", True) else None
        if asked is not None and asked.kind != "savepoint":
            done += 1
            orders = Orders(definition=2) if asked.kind == "define" else Orders()
            if asked.kind == "define":
                content = asked_definition(asked, store.definition())
                store.put_definition(2, content, by=asked.by, at=asked.at, command=done)
            store.commands.put_outcome(Outcome(n=done, state="done", at=0.0, orders=orders))
        elif asked or (plan.get("publishes") and published is None):
            high = flushed_high(config)
            at = Position(server=high.server, file=high.file, offset=high.offset, gtids="", rows=0)
            at = None if plan.get("no_stream") else at
            slot, kept = store.last_slot() + 1, asked is not None
            store.put_entry(records.checkpoint(slot, kept=kept))
            tables = {
                name: PublishedTable(state=table["phase"], generation=1, main=Main(content=Content("1")), work=None)
                for name, table in plan["tables"].items()
            }
            store.publish(
                Publication(
                    n=slot, epoch=1, w=1, kept=kept, position=at, source_time=None, published_at=0.0, tables=tables
                )
            )
            published = slot
            if asked:
                done += 1
                result, orders = {"checkpoint": slot, "name": None}, store.commands.orders()
                store.commands.put_outcome(Outcome(n=done, state="done", result=result, at=0.0, orders=orders))
        await asyncio.sleep(0.05)

asyncio.run(main())
"""

RUN = """
import os, sys
from cutline.services.run import cli, run
from cutline.services.run.supervisor import Child

def service_children(config, workdir):
    log = workdir / "logs" / "mesh.log"
    return [Child(name="mesh", command=[sys.executable, os.environ["MESH"]], log=log)]

run._service_children = service_children
cli.main()
"""

LIVE = {"phase": "live", "generation": 1, "rows_done": 3, "rows_estimate": 3, "cause": None}
GONE = LIVE | {"phase": "dropped", "cause": {"sentence": "there is no table t.c"}}
FAULTY = LIVE | {"phase": "quarantined", "cause": {"sentence": "it has no primary key", "remedy": "add one"}}


def failing(error: str, kind: str) -> dict[str, Any]:
    """The status of a Spark writer that fails."""
    return {"failure": {"cause": {"sentence": error}, "kind": kind, "again_seconds": 4.0}}


class Running:
    """A `cutline run` in the background."""

    def __init__(self, folder: Path, plan: dict[str, Any], *arguments: str, redis_url: str = "") -> None:
        (folder / "mesh.py").write_text(MESH)
        (folder / "run.py").write_text(RUN)
        self.workdir = folder / ".cutline/shop"
        self.out = folder / f"out{len(list(folder.glob('out*')))}"
        environ = {
            key: value for key, value in os.environ.items() if key not in ("CUTLINE_REDIS_URL", "CUTLINE_STORE_URL")
        }
        environ |= {"PYTHONPATH": str(ROOT), "PLAN": json.dumps(plan), "MESH": str(folder / "mesh.py")}
        environ |= {"CDC_PASSWORD": "cdc-secret", "CUTLINE_REDIS_URL": redis_url}
        command = [
            sys.executable,
            str(folder / "run.py"),
            "run",
            str(folder / "pipeline.yaml"),
        ]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=out, stderr=subprocess.STDOUT, env=environ, start_new_session=True
            )

    def until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def output(self) -> str:
        return self.out.read_text()

    def says(self, words: str) -> None:
        self.until(lambda: words in self.output())

    def pids(self) -> dict[str, int]:
        path = self.workdir / "run.json"
        services: dict[str, int] = json.loads(path.read_text())["services"] if path.exists() else {}
        return services

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ends(self, seconds: float = 30.0) -> tuple[int, str]:
        """Exit code and last line; nothing that it had started is left."""
        pids = self.pids()
        code = self.process.wait(seconds)
        assert not [pid for pid in pids.values() if psutil.pid_exists(pid)]
        assert not (self.workdir / "run.json").exists()
        assert not (self.workdir / "tmp").exists()
        return code, self.output().splitlines()[-1]


@pytest.fixture
def start(
    tmp_path: Path, mariadb: MariaDB, fresh_database: Callable[[Database], str]
) -> Iterator[Callable[..., Running]]:
    """Starts runs of one pipeline in one folder; ends those that a failed test leaves."""
    database = fresh_database(mariadb)
    mariadb.execute("CREATE TABLE a (id INT PRIMARY KEY)", database=database)
    (tmp_path / "pipeline.yaml").write_text(
        f"name: shop\nsource: {{host: {mariadb.host}, port: {mariadb.port}, user: cdc, password_env: CDC_PASSWORD}}\n"
        f"tables: ['{database}.*']\nsink: {{warehouse: lake}}\n"
    )
    started: list[Running] = []

    def run(plan: dict[str, Any], *arguments: str, redis_url: str = "") -> Running:
        started.append(Running(tmp_path, plan, *arguments, redis_url=redis_url))
        return started[-1]

    yield run
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def test_ctrl_c_takes_a_savepoint_and_ends_with_0_and_the_same_command_resumes(start: Callable[..., Running]) -> None:
    for slot in (1, 2):
        running = start({"tables": {"t.a": LIVE}})
        running.says("t.a: live, 3 rows")
        running.interrupt()
        code, last = running.ends()
        assert (code, last) == (
            0,
            f"savepoint: checkpoint {slot} is published and kept; the same command resumes there",
        )


def test_status_shows_a_run_from_another_terminal(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start({"tables": {"t.a": LIVE, "t.b": FAULTY}})
    running.says("t.b: quarantined")
    shown = CliRunner().invoke(cli.main, ["status", str(tmp_path / "pipeline.yaml")])
    lines = shown.stdout.splitlines()
    assert (shown.exit_code, lines[0].startswith("shop: running, "), lines[-2:]) == (
        0,
        True,
        ["t.b: quarantined, 3 rows: it has no primary key; add one", "t.a: live, 3 rows"],
    )
    running.interrupt()
    assert running.ends()[0] == 0
    assert CliRunner().invoke(cli.main, ["status", str(tmp_path / "pipeline.yaml")]).exit_code == 2


def test_live_changes_are_said_and_stay_and_the_file_takes_their_place_by_replace(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    """1. A table is excluded while the pipeline runs. 2. The same command says so and takes the stored definition.
    3. With `--replace` the file's becomes the next version."""
    plan = {"tables": {"t.a": LIVE}}
    running = start(plan)
    running.says("t.a: live")
    shop = Store(f"file://{tmp_path}/.cutline/shop/store").pipeline("shop")
    first = shop.definition()
    assert first is not None
    changed = {**first, "tables": [*first["tables"], "!t.b"]}
    shop.commands.add("define", {"base": 1, "definition": changed}, by="ann", now=1.0)
    running.until(lambda: shop.definition() == changed)
    running.interrupt()
    assert running.ends()[0] == 0
    running = start(plan)
    running.says("the stored definition (version 2) differs from the file: tables is [")
    running.says("it is taken; `cutline run --replace` takes the file's")
    running.says("t.a: live")
    assert shop.definition() == changed
    running.interrupt()
    assert running.ends()[0] == 0
    before = shop.commands.newest()
    running = start(plan | {"answers": False}, "--replace")
    running.says("the file's replaces it")
    running.until(lambda: shop.commands.newest() > before)
    command = shop.commands.get(before + 1)
    assert command is not None
    assert (command.kind, command.by, command.arguments["definition"]) == ("define", "cutline run", first)
    running.process.kill()


def test_a_run_reads_every_table_again_if_it_is_told_so_and_a_new_pipeline_only_once(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    """A run ends when its pipeline halts, so no control service is there to ask."""
    shop = Store(f"file://{tmp_path}/.cutline/shop/store").pipeline("shop")
    running = start({"tables": {"t.a": LIVE}}, "--read-again")
    running.says("t.a: live")
    assert shop.commands.newest() == 0
    running.interrupt()
    assert running.ends()[0] == 0
    before = shop.commands.newest()
    running = start({"tables": {"t.a": LIVE}, "answers": False}, "--read-again")
    running.until(lambda: shop.commands.newest() > before)
    command = shop.commands.get(before + 1)
    assert command is not None
    assert (command.kind, command.by) == ("read_again", "cutline run")
    running.process.kill()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_ends_when_its_pipeline_is_deleted_also_while_it_takes_its_savepoint(
    start: Callable[..., Running], tmp_path: Path, interrupted: bool
) -> None:
    running = start({"tables": {"t.a": LIVE}, "answers": False})
    running.says("t.a: live")
    if interrupted:
        running.interrupt()
        running.says("waiting for the savepoint's checkpoint")
    shop = Store(f"file://{tmp_path}/.cutline/shop/store").pipeline("shop")
    shop.remove_files()
    shop.end()
    assert running.ends() == (0, "the pipeline shop was deleted, so this run ends")


def test_ctrl_c_of_a_paused_pipeline_saves_nothing_and_ends_with_0(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start({"tables": {"t.a": LIVE}, "answers": False})
    running.says("t.a: live")
    shop = Store(f"file://{tmp_path}/.cutline/shop/store").pipeline("shop")
    shop.commands.add("pause", {}, by="ann", now=1.0)
    shop.commands.put_outcome(Outcome(n=1, state="done", at=1.0, orders=Orders(mode="paused")))
    running.interrupt()
    code, last = running.ends()
    assert (code, "shop is paused" in last) == (0, True)
    assert shop.commands.newest() == 1


def test_a_second_ctrl_c_stops_at_once_with_1(start: Callable[..., Running]) -> None:
    running = start({"tables": {"t.a": LIVE}, "answers": False})
    running.says("t.a: live")
    running.interrupt()
    running.says("waiting for the savepoint's checkpoint")
    running.interrupt()
    code, last = running.ends(10.0)
    assert code == 1
    assert "stopped without a savepoint; the same command resumes" in last


@pytest.mark.parametrize("goal", ["snapshot", "caught-up"])
def test_until_ends_by_itself_with_0_when_a_publication_has_what_was_asked_for(
    start: Callable[..., Running], goal: str
) -> None:
    code, last = start({"tables": {"t.a": LIVE}, "publishes": True}, "--until", goal).ends()
    assert code == 0
    assert "is published and kept" in last


def test_caught_up_waits_for_a_position_taken_after_the_tables_were_live(
    start: Callable[..., Running], mariadb: MariaDB, tmp_path: Path
) -> None:
    """1. A publication, then a commit at the source.  2. No later publication comes, so the run does not end."""
    running = start({"tables": {"t.a": LIVE | {"phase": "catch-up"}}, "publishes": True}, "--until", "caught-up")
    running.says("t.a: catch-up")
    running.interrupt()
    assert running.ends()[0] == 0
    mariadb.execute("FLUSH BINARY LOGS")
    running = start({"tables": {"t.a": LIVE}}, "--until", "caught-up")
    running.says("t.a: live")
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(3.0)
    running.interrupt()
    assert running.ends()[0] == 0


@pytest.mark.parametrize("goal", ["snapshot", "caught-up"])
def test_until_ends_with_1_and_names_the_table_that_is_not_live(start: Callable[..., Running], goal: str) -> None:
    code, last = start({"tables": {"t.a": LIVE, "t.b": FAULTY}, "publishes": True}, "--until", goal).ends()
    assert code == 1
    assert last.startswith("cutline: not live: t.b (quarantined: it has no primary key; add one)")


@pytest.mark.parametrize("goal", ["snapshot", "caught-up"])
@pytest.mark.parametrize("tables", [{"t.a": LIVE, "t.c": GONE}, {"t.c": GONE}])
def test_until_ends_with_0_and_names_the_table_that_is_dropped(
    start: Callable[..., Running], goal: str, tables: dict[str, Any]
) -> None:
    plan = {"tables": tables, "publishes": True, "no_stream": "t.a" not in tables}
    running = start(plan, "--until", goal)
    assert running.ends() == (0, "dropped at the source: t.c; the lake keeps their last content")
    assert "t.c: dropped: there is no table t.c" in running.output()


def test_a_pipeline_whose_tables_are_all_quarantined_at_once_ends_with_1(start: Callable[..., Running]) -> None:
    plan = {"tables": {"t.b": FAULTY}, "publishes": True, "no_stream": True}
    assert start(plan, "--until", "caught-up").ends()[0] == 1


def test_until_ends_with_1_and_names_the_table_that_the_spark_writer_has_quarantined(
    start: Callable[..., Running],
) -> None:
    """For the enumerator it is live, so the lake is waited for no longer than the Spark writer tries it."""
    held = {"cause": {"sentence": "the lake table lake.t.b belongs to pipeline market"}, "generation": 1}
    plan = {"tables": {"t.a": LIVE, "t.b": LIVE}, "publishes": True, "spark": {"quarantined": {"t.b": held}}}
    code, last = start(plan, "--until", "caught-up").ends()
    assert code == 1
    assert last.startswith("cutline: not live: t.b (quarantined: the lake table lake.t.b belongs to pipeline market)")


def test_a_pipeline_that_halts_ends_the_run_with_1_and_its_cause(start: Callable[..., Running]) -> None:
    halted = {"sentence": "channel reader-0>writer-1 holds a foreign message"}
    code, last = start({"tables": {}, "halted": halted}).ends()
    assert code == 1
    assert "halted: channel reader-0>writer-1 holds a foreign message" in last


@pytest.mark.parametrize(("kind", "code"), [("ProtocolError", 1), ("ConfigError", 2)])
def test_a_spark_writer_that_can_not_go_on_ends_the_run_with_its_cause(
    start: Callable[..., Running], kind: str, code: int
) -> None:
    running = start(
        {"tables": {}, "spark": failing("the lake table lake.t.a belongs to pipeline market", kind)}
    )
    assert running.ends() == (code, "cutline: the lake table lake.t.a belongs to pipeline market")


def test_a_spark_writer_that_tries_again_is_said_and_goes_on(start: Callable[..., Running]) -> None:
    running = start({"tables": {"t.a": LIVE}, "spark": failing("the catalogue is locked", "Unavailable")})
    running.says("spark_writer: the catalogue is locked; starting again in 4 s")
    running.interrupt()
    assert running.ends()[0] == 0


def test_redis_and_services_that_are_killed_are_started_again_and_said(start: Callable[..., Running]) -> None:
    """1. SIGKILL to Redis: it comes back on its port, empty.  2. SIGKILL to the mesh.  3. A savepoint works then."""
    running = start({"tables": {"t.a": LIVE}})
    running.says("t.a: live")
    for name in ("Redis", "mesh"):
        before = running.pids()[name]
        os.kill(before, signal.SIGKILL)
        running.says(f"the {name} ({before}) was ended by SIGKILL; it is started again")
        running.until(lambda name=name, before=before: running.pids().get(name, before) != before)
    running.interrupt()
    assert running.ends()[0] == 0


def test_a_run_that_is_killed_leaves_nothing_running_and_the_next_one_works(start: Callable[..., Running]) -> None:
    running = start({"tables": {"t.a": LIVE}})
    running.says("t.a: live")
    pids = running.pids()
    running.process.kill()
    running.process.wait()
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (running.workdir / "tmp" / "left").touch()
    running = start({"tables": {"t.a": LIVE}})
    running.says("t.a: live")
    assert not (running.workdir / "tmp" / "left").exists()
    running.interrupt()
    assert running.ends()[0] == 0


def test_a_second_run_of_the_same_pipeline_is_refused_with_2(start: Callable[..., Running]) -> None:
    running = start({"tables": {"t.a": LIVE}})
    running.says("t.a: live")
    second = start({"tables": {}})
    assert second.process.wait(20) == 2
    assert "another `cutline run` works in" in second.output()
    running.interrupt()
    assert running.process.wait(30) == 0


def test_a_redis_that_does_not_answer_is_said_and_waited_for(start: Callable[..., Running]) -> None:
    running = start({"tables": {"t.a": LIVE}})
    running.says("t.a: live")
    redis = running.pids()["Redis"]
    os.kill(redis, signal.SIGSTOP)
    try:
        running.says("does not answer; trying again")
    finally:
        os.kill(redis, signal.SIGCONT)
    running.interrupt()
    assert running.ends()[0] == 0


def test_a_redis_that_is_down_at_the_start_is_waited_for_and_used_when_it_comes(start: Callable[..., Running]) -> None:
    with Redis() as redis:
        redis.stop()
        running = start({"tables": {"t.a": LIVE}}, redis_url=redis.url)
        running.says(f"Redis at 127.0.0.1:{redis.port} does not answer; trying again")
        redis.start()
        running.says("t.a: live")
        assert "Redis" not in running.pids()
        running.interrupt()
        assert running.ends()[0] == 0


def test_a_source_that_is_down_when_a_known_pipeline_starts_is_waited_for(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """1. A run defines the pipeline.  2. The server stops.  3. The next run says so and waits.  4. It is back."""
    with MariaDB() as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)")
        (tmp_path / "pipeline.yaml").write_text(
            f"name: shop\nsource: {{host: {server.host}, port: {server.port}, user: cdc, password_env: CDC_PASSWORD}}\n"
            "tables: [shop.a]\nsink: {warehouse: lake}\n"
        )
        running = start({"tables": {"shop.a": LIVE}})
        running.says("shop.a: live")
        running.interrupt()
        assert running.ends()[0] == 0
        server.stop()
        running = start({"tables": {"shop.a": LIVE}})
        running.says("is the server up?; trying again in")
        server.start()
        running.says("shop.a: live")
        running.interrupt()
        assert running.ends()[0] == 0
