"""Members whose rows get no checkpoint stop in time: those without a leader, whatever became of it, and those whose
leader can't complete a checkpoint."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cutline.common.mesh.silence import LEADER_SECONDS
from cutline.common.store.records import CheckpointEntry
from tests.support.databases import Database, MariaDB
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.operator import command, done, outcome

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


# An enumerator whose store refuses the entry of every checkpoint while the file that HELD names exists.
REFUSES_ENTRIES = """
import os
from pathlib import Path
from cutline.common.errors import Unavailable
from cutline.common.mesh.host import run_service
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator.__main__ import main

put_entry = PipelineStore.put_entry

def refusing(self, entry):
    if isinstance(entry, CheckpointEntry) and Path(os.environ["HELD"]).exists():
        raise Unavailable("the store refuses the entry")
    return put_entry(self, entry)

PipelineStore.put_entry = refusing
run_service(main)
"""
# A writer whose store hangs with the files of every checkpoint while that file exists.
HANGS_WITH_FILES = """
import os, time
from pathlib import Path
from cutline.common.mesh.host import run_service
from cutline.services.writer.__main__ import main
from cutline.services.writer.staging import Staging

stage = Staging.stage

def hanging(self, order):
    while Path(os.environ["HELD"]).exists():
        time.sleep(0.1)
    return stage(self, order)

Staging.stage = hanging
run_service(main)
"""
BOUND_BYTES = 4 << 20
READ_BYTES = 8 << 20  # of one read of the binlog, which may pass the bound


def sent_bytes(pipeline: Pipeline) -> int:
    """The bytes of rows that the reader has sent, by its newest status."""
    return pipeline.reader().bytes_total


@pytest.mark.alone
@pytest.mark.parametrize(
    ("role", "program", "missing"),
    [
        ("enumerator", REFUSES_ENTRIES, "the store refuses the entry"),
        ("writer", HANGS_WITH_FILES, "it lacks the part of writer-0"),
    ],
    ids=["entry refused", "files held"],
)
def test_members_whose_checkpoint_does_not_complete_wait_at_their_bound_and_go_on_once_it_does(
    mariadb: MariaDB, table: str, tmp_path: Path, role: str, program: str, missing: str
) -> None:
    """1. The store refuses the entry of a checkpoint, or hangs with its files, and the source goes on. 2. The reader
    stops at its bound and says so, and what the checkpoint lacks is said too. 3. The store does its work again: the
    same epoch goes on, and nothing is lost."""
    held = tmp_path / "held"
    with Mesh(
        tmp_path, readers=1, writers=1, environment={"HELD": str(held)}, programs={role: ("-c", program)}
    ) as mesh:
        pipeline = mesh.pipeline("shop", mariadb, [table], checkpoint={"max_unsaved_bytes": BOUND_BYTES})
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")

        def waits(member: str, reason: str) -> bool:
            part = pipeline.status().members().get(member)
            return part is not None and reason in str(part.waiting_for)

        with written(mariadb, table):
            begun, _ = sent_bytes(pipeline), held.touch()
            pipeline.until(lambda: waits("reader-0", "a checkpoint: this reader has sent"), "it to wait at its bound")
            sent, end = sent_bytes(pipeline), time.monotonic() + 12
            while time.monotonic() < end:
                assert sent_bytes(pipeline) == sent
                time.sleep(0.2)
            print(f"{(sent - begun) / (1 << 20):.1f} MiB sent without a checkpoint; {BOUND_BYTES >> 20} are the bound")
            assert sent - begun < BOUND_BYTES + READ_BYTES
            assert waits("enumerator", missing)
            assert role != "writer" or waits("writer-0", "the store, to take the files of checkpoint")
            held.unlink()
            pipeline.goes_on()
        pipeline.catches_up(table)
        assert len(pipeline.epochs()) == 1
        pipeline.until(lambda: not waits("reader-0", "a checkpoint"), "the reader to wait no more")


@pytest.mark.alone
def test_checkpoints_come_sooner_than_their_interval_where_many_rows_have_none(
    mariadb: MariaDB, table: str, tmp_path: Path
) -> None:
    """A snapshot of 40 MB with a checkpoint an hour and a bound of 4 MiB: it holds, and no hour is waited for."""
    rows = ",".join(f"({number},'{'z' * 1000}')" for number in range(4000))
    mariadb.execute(f"INSERT INTO {table} VALUES {rows}")
    for times in range(1, 10):
        mariadb.execute(f"INSERT INTO {table} SELECT id + {times * 4000}, a FROM {table} WHERE id < 4000")
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        bound = {"interval_seconds": 3600, "max_unsaved_bytes": BOUND_BYTES}
        pipeline = mesh.pipeline("shop", mariadb, [table], chunk_rows=500, checkpoint=bound)
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown", 120)
        chunks = [sum(file.rows for file in e.staged) for e in pipeline.entries() if isinstance(e, CheckpointEntry)]
        print(f"rows of 1 KB in each checkpoint: {chunks}")
        assert sum(chunks) == 40_000
        assert max(chunks) * 1000 < BOUND_BYTES + 500 * 1000 + READ_BYTES
