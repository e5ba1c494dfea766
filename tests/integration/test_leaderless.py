"""Members without a leader stop, whatever became of it: what they stage has no checkpoint, and nobody reads what they
say."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cutline.common.mesh.silence import LEADER_SECONDS
from tests.integration.mesh import Mesh, Pipeline, waited
from tests.integration.operator import command, done, outcome
from tests.servers import Database, MariaDB

Fresh = Callable[[Database], str]
SLACK_SECONDS = 15.0
"""For a busy machine, and the members' last files."""


@contextmanager
def written(server: Database, table: str) -> Iterator[None]:
    """Rows of a kilobyte, replaced all the time."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.1):
            rows = ",".join(f"({number},'{secrets.token_hex(450)}')" for number in range(500))
            server.execute(f"REPLACE INTO {table} VALUES {rows}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def sizes(pipeline: Pipeline) -> dict[str, int]:
    """The bytes of the pipeline's files in the store, and the length of each of its streams."""
    folder = pipeline.mesh.folder / "store"
    files = {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    with pipeline.mesh.redis.client() as client:
        streams = {key.decode(): client.xlen(key) for key in client.scan_iter(f"cutline:{pipeline.name}.*:*")}
    return {**files, **streams}


def at_rest(pipeline: Pipeline, seconds: float) -> None:
    """Wait until neither the store nor Redis gets anything for 5 s."""
    last, since = sizes(pipeline), time.monotonic()

    def rests() -> bool:
        nonlocal last, since
        time.sleep(0.5)
        if (now := sizes(pipeline)) != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > 5

    waited(rests, "store and streams to rest", seconds, pipeline.mesh.log_ends)


@pytest.fixture
def table(mariadb: MariaDB, fresh_database: Fresh) -> str:
    table = f"{fresh_database(mariadb)}.t"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a VARCHAR(1000) NOT NULL)")
    return table


@pytest.mark.alone
def test_members_whose_only_enumerator_is_killed_for_good_stop_within_the_stated_time(
    mariadb: MariaDB, table: str, tmp_path: Path
) -> None:
    """1. The only enumerator is killed, and the source goes on. 2. Reader and writer stop. 3. A new enumerator leads:
    nothing is lost."""
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("shop", mariadb, [table])
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
        with written(mariadb, table):
            mesh.kill(mesh.leader(pipeline))
            killed = time.monotonic()
            at_rest(pipeline, LEADER_SECONDS + 5 + SLACK_SECONDS)
            assert time.monotonic() - killed > LEADER_SECONDS
            logs = mesh.log_ends(200)
            assert logs.count("the enumerator that leads this epoch has sent nothing for 30 s") == 2
        mesh.start("enumerator")
        pipeline.catches_up(table)


@pytest.mark.alone
def test_a_pipeline_that_is_paused_while_redis_hangs_reads_and_stages_no_more(
    mariadb: MariaDB, table: str, tmp_path: Path
) -> None:
    """1. Redis hangs for 8 s right after the pause's checkpoint, so that the leader can dismiss nobody. 2. Once Redis
    answers, the members are dismissed, long before their leader's silence would end them."""
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("shop", mariadb, [table])
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
        with written(mariadb, table), mesh.redis.client() as client:
            pause = command(pipeline, "pause")
            deadline = time.monotonic() + 20
            while (newest := pipeline.checkpoint()) is None or newest.request != f"command {pause.n}":
                assert time.monotonic() < deadline
            client.execute_command("CLIENT", "PAUSE", "8000", "ALL")
            assert outcome(pipeline, pause).state == "done"
            waited(
                lambda: not list(client.scan_iter("cutline:shop.*:*")), "the streams to be removed", 8 + SLACK_SECONDS
            )
            at_rest(pipeline, 5 + SLACK_SECONDS)
        done(pipeline, "resume")
        pipeline.catches_up(table)
