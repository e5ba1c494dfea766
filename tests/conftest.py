"""Fixtures of all tests: the servers, a fresh database, and the check that a session leaves no process behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from tests.programs import Missing, Unpackaged
from tests.servers import Database, MariaDB, MySQL, Redis, Server

ROOT = Path(__file__).resolve().parent.parent
SESSION_MARK = "CUTLINE_TEST_SESSION"
LEAVE_SECONDS = 15.0
FULL = os.environ.get("CUTLINE_TEST_FULL") == "1"
"""`make test-full`: tests marked `full` run too, and generated ones take more examples; `make test` is a sample."""

hypothesis.settings.register_profile("cutline", deadline=None)  # on a busy machine a slow example is no fault
hypothesis.settings.load_profile("cutline")

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test a compiled module that is older than its source: it would be imported in the source's place."""
    sources_of_mysql = ROOT / "services" / "sources" / "mysql"
    for compiled in sources_of_mysql.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
        source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
        sources = [source, *sources_of_mysql.rglob("*.pxd")]
        if source.exists() and any(path.stat().st_mtime > compiled.stat().st_mtime for path in sources):
            pytest.exit(f"{compiled.name} is older than {source.name}: run `make setup`", returncode=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked `full` to `make test-full`."""
    if not FULL:
        left = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


@contextlib.contextmanager
def skipped_where_missing() -> Iterator[None]:
    """What the block asks for and this machine lacks skips the test; in CI it fails it, if a package has it."""
    try:
        yield
    except Missing as reason:
        if os.environ.get("CI") == "true" and not isinstance(reason, Unpackaged):
            pytest.fail(f"CI must run every test: {reason}")
        pytest.skip(str(reason))


@contextlib.contextmanager
def started(server: Server) -> Iterator[None]:
    """Run a server; where this machine can't have it, as `skipped_where_missing`."""
    with skipped_where_missing():
        server.start()
    try:
        yield
    finally:
        server.close()


def left_running(mark: str) -> list[psutil.Process]:
    """The processes that carry this session's mark in their environment, orphans too, but this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(SESSION_MARK) != mark:
                continue
            line = " ".join(process.cmdline())
            if process.ppid() == os.getpid() and "multiprocessing.resource_tracker" in line:
                continue
            found.append(process)
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_left_in_a_temporary_folder() -> Iterator[None]:
    """Whatever the tests and their processes make in the temporary folder, they remove; pytest keeps its own apart."""
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="cutline-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
        left = sorted(os.listdir(folder))
        assert not left, f"the tests left in the temporary folder (now removed): {', '.join(left)}"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running(nothing_left_in_a_temporary_folder: None) -> Iterator[None]:
    """After all other fixtures are down, no process that the session started may live on; those that do are killed."""
    mark = uuid.uuid4().hex
    os.environ[SESSION_MARK] = mark
    yield
    if "cutline.spark_writer.session" in sys.modules:
        sys.modules["cutline.spark_writer.session"].stop()
    deadline = time.monotonic() + LEAVE_SECONDS
    while (left := left_running(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    said = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            said.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            process.kill()
    assert not said, "the tests left processes running (now killed):\n" + "\n".join(said)


@pytest.fixture(scope="session")
def mariadb(nothing_left_running: None) -> Iterator[MariaDB]:
    """One MariaDB for the session; a test that stops it must start it again."""
    server = MariaDB()
    with started(server):
        yield server


@pytest.fixture(scope="session")
def mysql(nothing_left_running: None) -> Iterator[MySQL]:
    """One MySQL with GTIDs for the session; a test that stops it must start it again."""
    server = MySQL()
    with started(server):
        yield server


@pytest.fixture(scope="session")
def mysql_nogtid(nothing_left_running: None) -> Iterator[MySQL]:
    """One MySQL without GTIDs for the session."""
    server = MySQL(gtid=False)
    with started(server):
        yield server


@pytest.fixture(params=["mariadb", "mysql"])
def source(request: pytest.FixtureRequest) -> Database:
    """The test runs once on each server."""
    server: Database = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def fresh_database() -> Iterator[Callable[[Database], str]]:
    """Makes an empty database on a server and gives its name; it is dropped after the test."""
    made: list[tuple[Database, str]] = []

    def make(server: Database) -> str:
        name = f"t{next(_numbers)}_{uuid.uuid4().hex[:6]}"
        server.execute(f"CREATE DATABASE {name}")
        made.append((server, name))
        return name

    yield make
    for server, name in made:
        if server.pid is not None:
            server.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def database(source: Database, fresh_database: Callable[[Database], str]) -> str:
    """The name of an empty database on `source`."""
    return fresh_database(source)


@pytest.fixture(scope="session")
def redis_server(nothing_left_running: None) -> Iterator[Redis]:
    """One Redis for the session; `redis_url` gives it empty."""
    server = Redis()
    with started(server):
        yield server


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """The URL of a Redis that is empty at the start of the test."""
    redis_server.start()
    redis_server.flush()
    return redis_server.url
