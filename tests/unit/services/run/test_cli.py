"""The command line, the supervisor and what `--until` waits for, without a mesh."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cutline.common.config.pipeline import load
from cutline.common.errors import ConfigError, CutlineError
from cutline.common.status.pipeline_status import TableStatus
from cutline.common.store.command_records import Orders, Outcome
from cutline.common.store.records import Content, Main, Publication, PublishedTable
from cutline.common.store.store import Store
from cutline.services.run import cli, lake, preflight
from cutline.services.run.run import define
from cutline.services.run.supervisor import QUICK_DEATHS, Child, Supervisor
from cutline.services.run.until import dropped, not_live, pending, unpublished
from cutline.services.run.workdir import locked
from tests.support.causes import because

GOOD = "name: shop\nsource: {host: h, user: u}\ntables: [shop.*]\nsink: {warehouse: lake}\n"


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "p.yaml", "--until", "noon"], ["run", "p.yaml", "--no"], ["fly"]]
)
def test_wrong_usage_ends_with_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli.main, arguments).exit_code == 2


def test_a_wrong_pipeline_file_ends_with_2_and_one_line_for_each_fault(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("host", "hots") + "more: 1\n")
    ended = CliRunner().invoke(cli.main, ["run", str(path)])
    assert ended.exit_code == 2
    lines = ended.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"{path}:2:1", f"{path}:2:10", f"{path}:5:1"]
    assert os.listdir(tmp_path) == ["p.yaml"]


def test_settings_are_printed_as_the_table_of_the_readme() -> None:
    ended = CliRunner().invoke(cli.main, ["settings"])
    assert ended.exit_code == 0
    assert "| `snapshot.chunk_rows` | int | `50000` |" in ended.stdout


def catalogue(warehouse: Path, owner: str) -> Path:
    """A catalog.db as Iceberg's JDBC catalogue makes it, with the table shop.a."""
    metadata = warehouse / "shop/a/metadata/00001-x.metadata.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps({"properties": {"cutline.pipeline": owner}}))
    with sqlite3.connect(warehouse / "catalog.db") as connection:
        connection.execute(
            "CREATE TABLE iceberg_tables"
            " (catalog_name TEXT, table_namespace TEXT, table_name TEXT, metadata_location TEXT)"
        )
        connection.execute("INSERT INTO iceberg_tables VALUES ('lake', 'shop', 'a', ?)", [f"file:{metadata}"])
    connection.close()
    return metadata


def test_where_prints_the_metadata_file_and_names_the_tables_there_are(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD)
    metadata = catalogue(tmp_path / "lake", "shop")
    ended = CliRunner().invoke(cli.main, ["where", "shop.a", "--pipeline", str(tmp_path / "p.yaml")])
    assert (ended.exit_code, ended.stdout) == (0, f"{metadata}\n")
    ended = CliRunner().invoke(cli.main, ["where", "shop.b", "--pipeline", str(tmp_path / "p.yaml")])
    assert ended.exit_code == 2
    assert "shop.b is not in the lake" in ended.stderr
    assert "its tables are: shop.a" in ended.stderr


def test_a_catalog_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/catalog.db").write_text("this is no database at all" * 10)
    config = load(tmp_path / "p.yaml")
    with pytest.raises(ConfigError, match=r"catalog\.db can't be read as an Iceberg catalogue"):
        lake.metadata_files(config)


def test_differences_name_each_key_with_both_values() -> None:
    definition = {"a": 1, "b": {"c": 1, "d": [1]}}
    assert preflight.differences(definition, definition) == []
    assert preflight.differences(definition, {"a": 2, "b": {"c": 1, "d": [2]}}) == [
        "a is 1 there and 2 here",
        "b.d is [1] there and [2] here",
    ]


def test_another_source_in_the_file_becomes_the_next_version_also_behind_a_queued_change(tmp_path: Path) -> None:
    """The mesh may not run before it has the new source, so `cutline run` itself asks for it."""
    store = Store(f"file://{tmp_path}/store").pipeline("shop")
    source = {"host": "db.example.com", "user": "cdc"}
    first = {"name": "shop", "source": source, "tables": ["a.*"], "sink": {"warehouse": "/lake"}}
    define(store, first)
    define(store, first)
    assert store.commands.newest() == 0
    second = {**first, "source": {**source, "tls": {"mode": "required"}}}
    define(store, second)
    (command,) = store.commands.list()
    assert (command.kind, command.arguments["base"], command.arguments["definition"]) == ("define", 1, second)
    with pytest.raises(ConfigError, match="in use in this store with another source, tables"):
        define(store, {**second, "tables": ["b.*"]})
    define(store, second)  # behind the queued one, whose tables it keeps
    assert store.commands.list()[-1].arguments == {"source": second["source"], "note": "source of the file"}


def test_a_live_change_of_the_source_is_told_from_one_of_the_file(tmp_path: Path) -> None:
    shop = Store(f"file://{tmp_path}/store").pipeline("shop")
    first = {"name": "shop", "source": {"host": "a"}, "tables": ["a.*"]}
    shop.define(first)
    assert not preflight.source_was_changed(shop)
    changes = (("cutline run", "b"), ("ann", "b"), ("ann", "c"), ("bob", "c"), ("cutline run", "d"))
    for n, (by, host) in enumerate(changes, 1):
        content = {**first, "source": {"host": host}, "note": n}
        shop.put_definition(n + 1, content, by=by, at=1.0, command=n)
        shop.commands.add("define", {}, by=by, now=1.0)
        shop.commands.put_outcome(Outcome(n=n, state="done", at=1.0, orders=Orders(definition=n + 1)))
        assert preflight.source_was_changed(shop) == (host == "c")


# --- the supervisor ---------------------------------------------------------------------------------------------------


def child(tmp_path: Path, code: str, name: str = "reader-0") -> Child:
    return Child(name=name, command=[sys.executable, "-c", code], log=tmp_path / f"{name}.log")


SLEEPS = "import time; time.sleep(600)"


def test_a_child_that_is_killed_is_started_again_under_another_pid(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path, SLEEPS)], os.environ)
    try:
        assert supervisor.tick(0.0) == []
        before = supervisor.pids()["reader-0"]
        os.kill(before, signal.SIGKILL)
        messages: list[str] = []
        until(lambda: bool(messages.extend(supervisor.tick(100.0)) or messages))
        assert messages == [f"the reader-0 ({before}) was ended by SIGKILL; it is started again"]
        assert supervisor.pids()["reader-0"] != before
    finally:
        asyncio.run(supervisor.stop())


def test_a_child_that_never_stays_up_is_started_ever_later_and_then_ends_the_run_with_its_last_words(
    tmp_path: Path,
) -> None:
    reader = child(tmp_path, "print('no jar there'); raise SystemExit(3)")
    supervisor, now, pauses = Supervisor([reader], os.environ), 0.0, []

    def end_once() -> None:
        nonlocal now
        supervisor.tick(now)
        until(lambda: reader.process is not None and reader.process.has_ended)
        supervisor.tick(now)
        pauses.append(reader.due_at - now)
        now = reader.due_at

    for _ in range(QUICK_DEATHS - 1):
        end_once()
    words = r"the reader-0 ended 8 times within 30 s .*\(no jar there\); see .*reader-0\.log"
    with pytest.raises(CutlineError, match=words):
        end_once()
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.0
    assert pauses[-1] > 5.0


def test_a_child_whose_settings_are_wrong_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    reader = child(tmp_path, "print('CUTLINE_X is not set; set it'); raise SystemExit(2)")
    supervisor = Supervisor([reader], os.environ)
    supervisor.tick(0.0)
    until(lambda: reader.process is not None and reader.process.has_ended)
    with pytest.raises(ConfigError, match="CUTLINE_X is not set"):
        supervisor.tick(1.0)


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody here reaps counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the opening and the reading
        return True


def test_what_a_child_had_started_ends_with_it(tmp_path: Path) -> None:
    """1. The child starts a grandchild (Spark's JVM).  2. The child is killed.  3. The grandchild is gone, too."""
    code = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).pid, flush=True); {SLEEPS}"
    )
    reader = child(tmp_path, code)
    supervisor = Supervisor([reader], os.environ)
    try:
        supervisor.tick(0.0)
        until(lambda: reader.log.read_text().strip().isdigit())
        grandchild = int(reader.log.read_text())
        os.kill(supervisor.pids()["reader-0"], signal.SIGKILL)
        until(lambda: bool(supervisor.tick(100.0)))
        until(lambda: gone(grandchild))
    finally:
        asyncio.run(supervisor.stop())


def test_stopping_ends_all_children_and_kills_the_one_that_does_not_listen(tmp_path: Path) -> None:
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEPS}"
    supervisor = Supervisor([child(tmp_path, SLEEPS, "a"), child(tmp_path, deaf, "b")], os.environ)
    supervisor.tick(0.0)
    pids = list(supervisor.pids().values())
    until(lambda: "deaf" in (tmp_path / "b.log").read_text())
    asyncio.run(supervisor.stop(grace_seconds=0.3))
    assert all(gone(pid) for pid in pids)
    assert supervisor.pids() == {}


def test_hurry_ends_the_grace_at_once(tmp_path: Path) -> None:
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEPS}"
    supervisor = Supervisor([child(tmp_path, SLEEPS, "a"), child(tmp_path, deaf, "b")], os.environ)
    supervisor.tick(0.0)
    until(lambda: "deaf" in (tmp_path / "b.log").read_text())
    before = time.monotonic()
    asyncio.run(supervisor.stop(grace_seconds=60.0, hurry=lambda: True))
    assert time.monotonic() - before < 10.0


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from cutline.services.run.supervisor import Child, Supervisor
one = Child(name="a", command=[sys.executable, "-c", {SLEEPS!r}], log=Path({str(tmp_path / "a.log")!r}))
supervisor = Supervisor([one], os.environ)
supervisor.tick(0.0)
print(supervisor.pids()["a"], flush=True)
time.sleep(600)
"""
    outer = Child(name="outer", command=[sys.executable, "-c", code], log=tmp_path / "outer.log")
    environ = os.environ | {"PYTHONPATH": str(Path(preflight.__file__).parents[2])}
    supervisor = Supervisor([outer], environ)
    supervisor.tick(0.0)
    until(lambda: outer.log.read_text().strip().isdigit())
    inner = int(outer.log.read_text())
    assert not gone(inner)
    os.kill(supervisor.pids()["outer"], signal.SIGKILL)
    until(lambda: gone(inner))
    asyncio.run(supervisor.stop())


def test_a_second_run_in_one_work_folder_is_refused(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(ConfigError, match="another `cutline run` works in"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


# --- --until ----------------------------------------------------------------------------------------------------------


def table(phase: str, generation: int = 1, **more: Any) -> TableStatus:
    return TableStatus(phase=phase, generation=generation, **more)


MAIN = Main(content=Content("1"))


def published(state: str, generation: int = 1, main: Main | None = MAIN) -> PublishedTable:
    return PublishedTable(state=state, generation=generation, main=main, work=None)


def test_pending_are_the_tables_that_are_neither_live_nor_inactive() -> None:
    tables = {
        "d": table("snapshot"),
        "a": table("live"),
        "b": table("quarantined"),
        "c": table("catch-up"),
        "f": table("dropped"),
    }
    assert pending(tables) == ("c", "d")


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        (None, ("a",)),
        ({}, ("a",)),
        ({"a": published("catch-up", main=None)}, ("a",)),
        ({"a": published("live", main=None)}, ("a",)),
        ({"a": published("live", generation=1)}, ("a",)),
        ({"a": published("live", generation=2)}, ()),
    ],
)
def test_a_table_is_published_when_main_shows_the_generation_that_is_live(shown: Any, missing: tuple[str, ...]) -> None:
    tables = {"a": table("live", 2), "b": table("quarantined"), "c": table("dropped", 2)}
    record = None
    if shown is not None:
        record = Publication(
            n=2, epoch=1, w=1, kept=False, position=None, source_time=None, published_at=0.0, tables=shown
        )
    assert unpublished(tables, record) == missing


def test_tables_that_are_not_live_are_named_with_their_cause() -> None:
    assert not_live({"a": table("live")}) is None
    held = table("quarantined", cause=because("no key"))
    message = not_live({"a": table("live"), "b": held, "c": table("quarantined")})
    assert message is not None
    assert "b (quarantined: no key), c (quarantined: no cause given)" in message


def test_tables_that_are_dropped_at_the_source_are_named_and_are_no_fault() -> None:
    tables = {"a": table("live"), "c": table("dropped", 2), "b": table("dropped", 2)}
    assert not_live(tables) is None
    assert dropped(tables) == "dropped at the source: b, c; the lake keeps their last content"
    assert dropped({"a": table("live")}) is None
