"""`cutline up`: the services that it starts, what it says, and how it ends them; with stand-ins for the services."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cutline.common import programs
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError
from cutline.common.store.store import Store
from cutline.services.run import children, host
from cutline.services.run.children import MODULES, Counts, service_children
from cutline.services.run.cli import main
from cutline.services.run.host import Host
from cutline.services.run.supervisor import Child
from cutline.services.run.workdir import locked

SLEEPS = "import time; time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEPS}"
ENVIRONMENT = Environment(redis_url="redis://127.0.0.1:1/0")


def hosted(folder: Path, heard: list[str]) -> Host:
    store_url = f"file://{folder}/store"
    return Host(Counts(), ENVIRONMENT, workdir=folder, store_url=store_url, say=heard.append)


def stand_ins(monkeypatch: pytest.MonkeyPatch, *codes: str) -> None:
    """Services that run these programs."""

    def made(counts: Counts, workdir: Path) -> list[Child]:
        return [
            Child(name=f"reader-{at}", command=[sys.executable, "-c", code], log=workdir / "logs" / f"reader-{at}.log")
            for at, code in enumerate(codes)
        ]

    monkeypatch.setattr(host, "service_children", made)
    monkeypatch.setattr(host, "LOOK_SECONDS", 0.02)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def run_file(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_ctrl_c_ends_all_in_order_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(monkeypatch, SLEEPS, SLEEPS)
    heard: list[str] = []
    going = asyncio.create_task(hosted(tmp_path, heard).go())
    await until(lambda: len(run_file(tmp_path).get("services", ())) == 2)
    pids = run_file(tmp_path)["services"].values()
    os.kill(os.getpid(), signal.SIGINT)
    await going
    assert not any(map(alive, pids))
    assert sorted(os.listdir(tmp_path)) == ["lock", "logs"]
    assert heard[0].startswith(f"2 processes start, logs in {tmp_path}/logs, store file://")
    assert heard[1].startswith("API and dashboard at http://127.0.0.1:")
    assert heard[-1].startswith("all services have ended")


async def test_a_service_that_ends_is_started_again_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch, SLEEPS)
    heard: list[str] = []
    going = asyncio.create_task(hosted(tmp_path, heard).go())
    await until(lambda: run_file(tmp_path).get("services"))
    before = run_file(tmp_path)["services"]["reader-0"]
    os.kill(before, signal.SIGKILL)
    await until(lambda: run_file(tmp_path)["services"].get("reader-0", before) != before)
    assert f"the reader-0 ({before}) was ended by SIGKILL; it is started again" in heard
    os.kill(os.getpid(), signal.SIGTERM)
    await going


async def test_a_second_ctrl_c_ends_the_services_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(monkeypatch, DEAF)
    heard: list[str] = []
    going = asyncio.create_task(hosted(tmp_path, heard).go())
    log = tmp_path / "logs" / "reader-0.log"
    await until(lambda: log.exists() and "deaf" in log.read_text())
    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: any(text.startswith("ending the services") for text in heard))
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(10):
        await going


async def test_a_service_with_wrong_settings_ends_them_all_with_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch, SLEEPS, "print('CUTLINE_X is not set; set it'); raise SystemExit(2)")
    with pytest.raises(ConfigError, match="CUTLINE_X is not set"):
        await hosted(tmp_path, []).go()
    assert not (tmp_path / "run.json").exists()


async def test_two_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path, "up"), pytest.raises(ConfigError, match="another `cutline up` works in"):
        await hosted(tmp_path, []).go()


def test_the_services_are_so_many_of_each_role_with_a_log_each(tmp_path: Path) -> None:
    found = service_children(Counts(readers=3, spark_writers=2), tmp_path)
    assert [child.name for child in found] == [
        *("enumerator-0", "enumerator-1", "reader-0", "reader-1", "reader-2", "writer-0", "writer-1"),
        *("spark-writer-0", "spark-writer-1", "control"),
    ]
    assert len({child.log for child in found}) == len(found)
    assert {child.command[3] for child in found} == set(MODULES.values())


def test_what_the_machine_lacks_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Any:
        raise ConfigError("this machine has no Java", "install it")

    monkeypatch.setattr(programs, "java", none)
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTLINE_STORE_URL", f"file://{tmp_path}/file/store")
    monkeypatch.setenv("CUTLINE_REDIS_URL", "redis://127.0.0.1:1/0")
    ended = CliRunner().invoke(main, ["up", "--workdir", str(tmp_path / "work")])
    assert ended.exit_code == 2
    java, store = ended.stderr.splitlines()
    assert java == "cutline: this machine has no Java; install it"
    assert "can't be used (Not a directory)" in store
    assert not (tmp_path / "work").exists()


def test_the_jars_are_those_that_the_pipelines_of_the_store_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "missing_programs", lambda environment: [])
    store = Store(f"file://{tmp_path}/store")
    assert host.check(store.url, ENVIRONMENT) == frozenset()
    for name, warehouse in (("a", "/lake"), ("b", "s3://bucket/lake")):
        store.pipeline(name).define({"name": name, "sink": {"warehouse": warehouse}})
    assert host.check(store.url, ENVIRONMENT) == {"s3"}


def test_the_services_get_their_addresses_and_counts_by_the_environment(tmp_path: Path) -> None:
    where = children.addresses(ENVIRONMENT, tmp_path, store_url="file:///s", readers=3, writers=1)
    assert (where.redis, where.redis_url) == ((), "redis://127.0.0.1:1/0")
    assert where.api_url == f"http://127.0.0.1:{where.environ['CUTLINE_API_PORT']}"
    assert (where.environ["CUTLINE_READERS"], where.environ["CUTLINE_WRITERS"]) == ("3", "1")
    assert "CUTLINE_RUN" not in where.environ
