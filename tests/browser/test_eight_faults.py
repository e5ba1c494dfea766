"""The eight faults of a night, on a real mesh with a real lake: what each place says, and that the remedy works.

The places: a terminal of 80 columns that runs `cutline status --watch`, the command line, the API, the dashboard in
Chromium (light, dark, on a phone), the metrics, the webhook. The pages and the terminal stay open from the first fault
to the last, as at the desk of whoever is on call. A remedy that is a command is carried out as it is shown.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from pyiceberg.exceptions import NoSuchTableError

from cutline.services.client.rest.client import Client
from cutline.services.client.rest.models import Condition, Table
from tests.browser.conftest import PHONE, WIDE, Pages, faults_for_people
from tests.conftest import started
from tests.support.control_server import is_ready
from tests.support.databases import CDC_USER, MariaDB
from tests.support.lake_tables import catalogue, lake_table
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.receiver import Receiver
from tests.support.server_process import HOST, free_port
from tools.programs import program

ADMIN = "the-admin-of-this-test"
PATIENCE_MS = 60_000
STORE_MIB = 48
LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"theme": "dark"}, "phone": {"size": PHONE}}
SOONER = """
import sys
from cutline.services.control import alerts, conditions, duties

times = float(sys.argv.pop(1))
for each in conditions.CONDITIONS:
    object.__setattr__(each, "for_seconds", each.for_seconds / times)
alerts.SETTLED_SECONDS, duties.LOOK_SECONDS = alerts.SETTLED_SECONDS / times, duties.LOOK_SECONDS / times
from cutline.services.control.__main__ import main

main()
"""
"""A control service whose alerts fire so many times sooner."""


class Terminal:
    """`cutline status shop --watch` in a terminal of 80 columns and 24 lines, and what it has drawn last."""

    def __init__(self, environ: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        self._end, self._drawn = ours, bytearray()
        environ = {**environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "cutline.services.run.cli", "status", "shop", "--watch"]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._end, 65_536)
            except OSError:  # EIO: Linux's way to say that nobody has the other end any more
                return
            self._drawn += data
            del self._drawn[:-16_384]

    def since_now(self) -> Callable[[], str]:
        """What says what was drawn from now on, its words one space apart."""
        self._drawn.clear()

        def drawn() -> str:
            text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b" ", bytes(self._drawn)).decode(errors="replace")
            return " ".join(re.sub(r"[│▌▎┃]", " ", text).split())

        return drawn

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()
        self._thread.join()
        os.close(self._end)


class Night:
    """The pipeline `shop` of the tables `orders` and `stock`, and everything that watches it."""

    def __init__(self, mesh: Mesh, pipeline: Pipeline, server: MariaDB, receiver: Receiver, pages: Pages) -> None:
        self.mesh, self.pipeline, self.server, self.receiver = mesh, pipeline, server, receiver
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CUTLINE_API")}
        self._environ = {
            **environ, "CUTLINE_API_URL": pages.address, "CUTLINE_API_TOKEN": ADMIN,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self.address = pages.address
        self.terminal = Terminal(self._environ)
        self.api = Client(pages.address, token=ADMIN)
        self.pages: dict[str, Page] = {
            look: pages.open("#/pipelines/shop", token=ADMIN, **options) for look, options in LOOKS.items()
        }
        self.rows = 0

    def close(self) -> None:
        """End what this began."""
        self.terminal.close()
        self.api.close()

    # --- what the places say ---

    def cli(self, command: str) -> tuple[int, str]:
        """The exit code and the output of a command of a shell; whoever gives it says yes to what it asks."""
        ended = subprocess.run(
            ["/bin/bash", "-c", command], env=self._environ, input="y\n", capture_output=True, text=True, timeout=120
        )
        return ended.returncode, ended.stdout + ended.stderr

    def until(self, condition: Callable[[], Any], goal: str, seconds: float = 90.0) -> Any:
        """Wait for something; a failure shows what the API says and the logs."""
        return waited(condition, goal, seconds, lambda: f"{self.found()}\n{self.mesh.log_ends()}")

    def found(self) -> list[Condition]:
        """The conditions of the pipeline and those of all, as the API says them."""
        return self.api.conditions("shop")

    def alerts(self, status: str, name: str) -> list[dict[str, Any]]:
        """The posts with this status about a condition."""
        bodies = [json.loads(post.body) for post in self.receiver.taken]
        return [body for body in bodies if body["status"] == status and body["commonLabels"]["alertname"] == name]

    def metric(self, text: str) -> bool:
        """Whether a line of the metrics begins with this text."""
        lines = httpx.get(f"{self.address}/metrics", headers={"Authorization": f"Bearer {ADMIN}"}).text.splitlines()
        return any(line.startswith(text) for line in lines)

    def says(self, name: str, cause: str, remedy: str, metric: str, keep: Callable[..., Path]) -> Condition:
        """Every place says the condition, with a cause and a remedy that have these texts; returns it."""
        drawn = self.terminal.since_now()

        def holds() -> Condition | None:
            for each in self.found():
                if each.name == name and cause in str(each) and remedy in str(each.remedy):
                    return each
            return None

        found: Condition = self.until(holds, f"{name} with {cause!r} and {remedy!r}")
        assert time.time() - 120 < found.since <= time.time()
        assert found.runbook.endswith(f"#{name.lower()}")
        self.until(lambda: self.metric(metric), metric)
        condition = f'cutline_condition{{acknowledged="false",condition="{name}"'
        self.until(lambda: self.metric(condition), condition)
        self.until(lambda: self.alerts("firing", name), f"the post about {name}", 200)
        posted = self.alerts("firing", name)[-1]["commonAnnotations"]
        assert remedy in posted["remedy"]
        code, listed = self.cli("cutline conditions shop")
        assert code == 1, listed
        words = " ".join(listed.split())
        assert found.summary[1:] in words
        assert remedy in words
        shown = found.summary.split(":")[0][1:]
        self.until(lambda: shown in drawn(), f"{shown!r} in the terminal: {drawn()}")
        self.until(lambda: " ".join(remedy.split()) in drawn(), f"{remedy!r} in the terminal: {drawn()}")
        for look, page in self.pages.items():
            banner = page.locator(".condition").filter(has_text=found.summary[1:])
            expect(banner).to_be_visible(timeout=PATIENCE_MS)
            expect(banner).to_contain_text(re.compile(r"since .*\d\d:\d\d"))
            expect(page.locator(".page-title .badge").first).not_to_have_class(re.compile("tone-live"))
            keep(page, f"fault-{name}-{look}", whole=look == "phone")
            assert faults_for_people(page) == [], look
            width = (LOOKS[look].get("size") or WIDE)["width"]
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width, look
        return found

    def over(self, name: str) -> None:
        """No place says it any more; its end was posted and stands in the history, and new rows are in the lake."""
        self.until(lambda: name not in {each.name for each in self.found()}, f"the end of {name}")
        self.until(lambda: self.alerts("resolved", name), f"the post about the end of {name}", 60)
        for page in self.pages.values():
            expect(page.locator(".page-title .badge").first).to_have_class(re.compile("tone-live"), timeout=PATIENCE_MS)
            expect(page.locator(".condition")).to_have_count(0)
        self.arrives()

        def ended() -> bool:
            events = self.api.events("shop", kind="condition")
            return any(event.condition == name and event.ended for event in events)

        self.until(ended, f"the end of {name} in the history")
        code, listed = self.cli("cutline conditions shop")
        assert (code, "nothing needs anybody" in listed) == (0, True), listed

    # --- the source and the lake ---

    def write(self, table: str = "orders") -> None:
        """One more row at the source."""
        self.rows += 1
        self.server.execute(f"INSERT INTO shop.{table} VALUES ({self.rows}, 'n')")

    def at_source(self, table: str) -> list[Any]:
        """The rows of a table, sorted."""
        with self.server.connect() as conn, conn.cursor() as cursor:
            cursor.execute(f"SELECT * FROM shop.{table} ORDER BY 1")
            return list(cursor.fetchall())

    def in_lake(self, table: str) -> list[Any]:
        """The rows that the lake shows of a table, sorted."""
        lake = self.mesh.folder / "lake"
        try:
            rows = lake_table(lake, f"shop.{table}").scan().to_arrow()
        except NoSuchTableError:
            return []
        names = [name for name in rows.column_names if not name.startswith("_")]
        return sorted(tuple(row[name] for name in names) for row in rows.to_pylist())

    def is_equal(self, table: str) -> bool:
        """Whether the lake shows what the source has now."""
        return self.in_lake(table) == self.at_source(table)

    def arrives(self) -> None:
        """A row that is written now arrives in the lake, with all others."""
        for table in ("orders", "stock"):
            self.write(table)
        for table in ("orders", "stock"):
            self.until(partial(self.is_equal, table), f"the rows of {table}", 120)

    def carried_out(self, found: Condition) -> None:
        """A person carries out the command that the remedy shows."""
        (command,) = re.findall(r"`(cutline [^`]+)`", str(found.remedy))
        code, printed = self.cli(command)
        assert code == 0, printed


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of a few MiB there, where this user may mount one."""
    folder.mkdir()
    if os.geteuid() != 0:
        yield
        return
    subprocess.run([program("mount"), "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "small", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run([program("umount"), "-l", str(folder)], check=True)


@pytest.fixture(scope="module", params=[10, pytest.param(1, marks=pytest.mark.full)], ids=["sooner", "in its own time"])
def night(
    request: pytest.FixtureRequest, chromium: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Night]:
    """Everything runs, and both tables are live. Alerts fire in a tenth of their time, or in their own."""
    folder = tmp_path_factory.mktemp("night")
    port, secret = free_port(), folder / "password"
    server = MariaDB()
    with started(server), Receiver() as receiver, small_disk(folder / "store"):
        secret.write_text(server.password)
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(40))",
            "CREATE TABLE shop.stock (id INT PRIMARY KEY, note VARCHAR(40))",
        )
        environment = {
            "CUTLINE_API_PORT": str(port), "CUTLINE_API_TOKEN": ADMIN, "CUTLINE_WEBHOOK_URL": receiver.url,
        }  # fmt: skip
        programs = {"control": ("-c", SOONER, str(request.param))}
        with Mesh(folder, readers=1, writers=1, spark=True, environment=environment, programs=programs) as mesh:
            mesh.start("control")
            source = {"password_env": None, "password_file": str(secret)}
            pipeline = mesh.pipeline("shop", server, ["shop.orders", "shop.stock"], source=source, interval_seconds=1)
            address = f"http://{HOST}:{port}"

            waited(partial(is_ready, address), "the control service", 30, mesh.log_ends)
            pages = Pages(chromium, address)
            made = Night(mesh, pipeline, server, receiver, pages)
            try:
                made.arrives()
                yield made
            finally:
                made.close()
                pages.close()
            assert pages.faults == []


def test_a_changed_password_is_named_and_the_file_with_the_new_one_is_taken(night: Night, keep: Any) -> None:
    """The account's password changes and its connections end. The remedy: the new one, in the file."""
    server = night.server
    server.execute(f"ALTER USER '{CDC_USER}'@'%' IDENTIFIED BY 'another'", f"KILL USER '{CDC_USER}'")
    night.says(
        "CutlineSourceDisconnected",
        "Access denied for user",
        "password",
        'cutline_source_connected{pipeline="shop"} 0',
        keep,
    )
    new = night.mesh.folder / "new"
    new.write_text("another")
    new.rename(night.mesh.folder / "password")
    night.over("CutlineSourceDisconnected")


def test_a_source_that_is_away_is_named_and_a_start_is_enough(night: Night, keep: Any) -> None:
    night.receiver.taken.clear()
    night.server.stop()
    night.says(
        "CutlineSourceDisconnected", "refused", "is the server up?", 'cutline_source_connected{pipeline="shop"} 0', keep
    )
    night.server.start()
    night.over("CutlineSourceDisconnected")


def test_a_purged_binlog_halts_the_pipeline_until_the_shown_command_reads_all_again(night: Night, keep: Any) -> None:
    code, printed = night.cli("cutline pipeline pause shop")
    assert code == 0, printed
    for _ in range(2):
        night.write()
        night.server.execute("FLUSH BINARY LOGS")

    def purged() -> bool:
        """Whether one file is left; the server keeps those that the ending dump still has."""
        with night.server.connect() as conn, conn.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            files = [row[0] for row in cursor.fetchall()]
            cursor.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
        return len(files) == 1

    night.until(purged, "the binlog to be purged")
    night.cli("cutline pipeline resume shop")
    found = night.says("CutlineHalted", "purged", "read-again shop", 'cutline_halted{pipeline="shop"} 1', keep)
    night.carried_out(found)
    night.over("CutlineHalted")


def test_a_redis_that_is_away_is_named_and_a_start_is_enough(night: Night, keep: Any) -> None:
    night.mesh.redis.kill()
    night.says("CutlineRedisAway", "Redis did not answer", "start Redis", "cutline_redis_up 0", keep)
    night.mesh.redis.start()
    night.over("CutlineRedisAway")


def test_a_killed_spark_writer_is_named_and_a_start_is_enough(night: Night, keep: Any) -> None:
    (writer,) = night.mesh.running("spark_writer")
    night.mesh.kill(writer)
    night.says(
        "CutlineNoLeader", "spark_writer", "start a service of that role",
        'cutline_leaders{pipeline="shop",role="spark_writer"} 0', keep,
    )  # fmt: skip
    night.mesh.start("spark_writer")
    night.over("CutlineNoLeader")


def test_a_table_that_is_dropped_says_so_and_is_copied_again_once_it_is_made(night: Night, keep: Any) -> None:
    """Somebody's intention as a rule, so no condition: each place says it where it says what a table does."""
    drawn = night.terminal.since_now()
    before = night.in_lake("stock")
    night.server.execute("DROP TABLE shop.stock")

    def table() -> Table:
        return night.api.table("shop", "shop.stock")

    night.until(lambda: table().phase == "dropped", "the table to be dropped")
    assert "no longer exists at the source" in str(table().cause)
    assert time.time() - 60 < (table().since or 0) <= time.time()
    assert re.search(r"shop\.stock +.*dropped", night.cli("cutline table list shop")[1])
    night.until(lambda: night.metric('cutline_tables{phase="dropped",pipeline="shop"} 1'), "the metric")
    night.until(lambda: re.search(r"shop\.stock dropped", drawn()), f"the terminal: {drawn()}")
    for look, page in night.pages.items():
        page.evaluate("() => { location.hash = '#/pipelines/shop/tables/shop.stock'; }")
        expect(page.locator("main")).to_contain_text("no longer exists at the source", timeout=PATIENCE_MS)
        keep(page, f"fault-dropped-{look}", whole=look == "phone")
        assert faults_for_people(page) == [], look
        page.evaluate("() => { location.hash = '#/pipelines/shop'; }")
    assert night.in_lake("stock") == before, "the lake keeps the last content"
    night.server.execute(
        "CREATE TABLE shop.stock (id BIGINT PRIMARY KEY, note TEXT)", "INSERT INTO shop.stock VALUES (1, 'of before')"
    )
    night.until(lambda: table().phase == "live", "the table to be live again")
    night.arrives()
    assert not night.found()
    assert any("dropped" in event.text for event in night.api.events("shop", kind="table"))


def test_a_lake_table_that_others_dropped_is_quarantined_until_its_button_has_it_read_again(
    night: Night, keep: Any
) -> None:
    with catalogue(night.mesh.folder / "lake") as lake:
        lake.drop_table("shop.stock")
    night.write("stock")
    night.says("CutlineTableQuarantined", "shop.stock", "retry", "cutline_tables_quarantined{", keep)
    page = night.pages["light"]
    page.locator(".condition").get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").locator("[data-confirm]").click()
    night.over("CutlineTableQuarantined")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_store_is_named_and_room_is_enough(night: Night, keep: Any) -> None:
    filler = night.mesh.folder / "store" / "somebody-elses"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    night.write()
    night.says("CutlineStoreAway", "is full", "free space", "cutline_store_up 0", keep)
    assert httpx.get(f"{night.address}/readyz").status_code == 503
    filler.unlink()
    night.over("CutlineStoreAway")
