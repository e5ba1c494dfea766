"""Fixtures of all tests: the servers, a fresh database, and the check that a session leaves no process behind.

With pytest-xdist (`-n 2`) each worker is a session of its own: it starts its own servers on free ports, has its own
temporary folder and its own check for processes left behind. Workers share only the cache folder, whose builders hold
a lock. A file's tests stay on one worker (`FilesTogether`), and with `--dist loadgroup` at most two workers use Spark.
"""

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
from typing import Any

import hypothesis
import psutil
import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.support.databases import Database, MariaDB, MySQL
from tests.support.lake_servers import S3, PostgreSQL
from tests.support.redis_servers import Redis
from tests.support.server_process import LocalServer
from tools.programs import Missing, Unpackaged

ROOT = Path(__file__).resolve().parent.parent
SESSION_MARK = "CUTLINE_TEST_SESSION"
LEAVE_SECONDS = 15.0
FULL = os.environ.get("CUTLINE_TEST_FULL") == "1"
"""`make test-full`: tests marked `full` run too, and generated ones take more examples; `make test` is a sample."""
MUTANTS = ROOT / "tests" / "simulation" / "test_mutants.py"
LONGEST = frozenset(
    ROOT / "tests" / "integration" / "lake" / name for name in ("test_spark_writer.py", "test_spark_writer_starts.py")
)
"""They take about as long as all other files that use Spark together."""

hypothesis.settings.register_profile("cutline", deadline=None)  # on a busy machine a slow example is no fault
hypothesis.settings.load_profile("cutline")

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test a compiled module that is older than its source: Python would import it in the source's place."""
    package = ROOT / "services" / "sources" / "mysql"
    declarations = list(package.rglob("*.pxd"))
    for compiled in package.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
        source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
        if source.exists() and any(p.stat().st_mtime > compiled.stat().st_mtime for p in (source, *declarations)):
            pytest.exit(f"{compiled.name} is older than {source.name}: run `make setup`", returncode=2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked `full` to `make test-full`, group the files that use Spark, and sort for pytest-xdist.

    The files that use Spark form two groups, since a session of Spark takes 1.5 GB and 20 seconds of CPU; they come
    first because they are the longest. Mutants come last: they are many and short, so they keep every worker busy while
    another one finishes a long file.
    """
    if not FULL:
        left = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        if item.path in with_spark:
            item.add_marker(pytest.mark.xdist_group("longest" if item.path in LONGEST else "spark"))
    items.sort(key=lambda item: 0 if item.path in with_spark else 2 if item.path == MUTANTS else 1)


class FilesTogether(LoadGroupScheduling):
    """Gives pytest-xdist's workers groups and whole files in the order of collection, so module fixtures are made once.

    Each mutant goes to the next worker that is free.
    """

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        file = nodeid.partition("::")[0]
        return group if group != nodeid or file.endswith(MUTANTS.name) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether:
    """Order the work of pytest-xdist's workers as `FilesTogether` says."""
    config.option.loadscopereorder = False
    return FilesTogether(config, log)


@contextlib.contextmanager
def skipped_where_missing() -> Iterator[None]:
    """Skip the test if the block asks for something that this machine lacks; in CI fail it, if a package has that."""
    try:
        yield
    except Missing as reason:
        if os.environ.get("CI") == "true" and not isinstance(reason, Unpackaged):
            pytest.fail(f"CI must run every test: {reason}")
        pytest.skip(str(reason))


@contextlib.contextmanager
def started(server: LocalServer) -> Iterator[None]:
    """Run a server; where this machine can't have it, skip or fail the test as `skipped_where_missing` does."""
    with skipped_where_missing():
        server.start()
    try:
        yield
    finally:
        server.close()


def left_running(mark: str) -> list[psutil.Process]:
    """All processes with this session's mark in their environment, orphans too, except this process."""
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
    """Fail if tests or their processes left anything in the temporary folder; pytest's own folders are elsewhere."""
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="cutline-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
        left = sorted(os.listdir(folder))
        assert not left, f"the tests left in the temporary folder (now removed): {', '.join(left)}"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running(nothing_left_in_a_temporary_folder: None) -> Iterator[None]:
    """Fail if a process that the session started is alive after all other fixtures ended; kill such processes."""
    mark = uuid.uuid4().hex
    os.environ[SESSION_MARK] = mark
    yield
    if "cutline.spark_writer.session" in sys.modules:
        sys.modules["cutline.spark_writer.session"].stop()
    if "tests.support.forge" in sys.modules:
        sys.modules["tests.support.forge"].stop()
    deadline = time.monotonic() + LEAVE_SECONDS
    while (left := left_running(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            process.kill()
    assert not lines, "the tests left processes running (now killed):\n" + "\n".join(lines)


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
    """Make empty databases: the function takes a server and returns the database's name; all are dropped at the end."""
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
def postgresql(nothing_left_running: None) -> Iterator[PostgreSQL]:
    """One PostgreSQL for the session; a test that stops it must start it again."""
    server = PostgreSQL()
    with started(server):
        yield server


@pytest.fixture(scope="session")
def s3(nothing_left_running: None) -> Iterator[S3]:
    """One S3 server for the session, with the bucket `lake`; a test that stops it must start it again."""
    server = S3()
    with started(server):
        server.create("lake")
        yield server


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
