"""Servers that hang slow down no pipeline of another server in the same processes.

What is measured is one pipeline of a healthy server: it is defined, found, led, read, and catches up with an UPDATE of
all rows. Beside it are eight pipelines of another server, idle while that server is healthy, and then while it hangs:
nothing else differs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import psutil
import pytest

from tests.support.databases import MariaDB
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.operator import command, done
from tests.support.stalling import Handshake, StallingWire

NEIGHBOURS = 8
"""As many as there are threads for the store, and more than asyncio's default executor has on a small machine."""
ROWS, NEIGHBOURS_ROWS = 40_000, 1_500
MOST = 1.5
"""Times as long as undisturbed, by the medians of several rounds each."""
FEW, SEVERAL = 2, 3
SILENT_BYTES = 8 << 20
"""The neighbours' server hangs after their eight dumps have brought so many bytes of a transaction of 48 MB."""
Situation = Literal["a SELECT", "the binlog, idle", "the binlog, inside a transaction"] | Handshake


@dataclass(slots=True)
class Street:
    """One pipeline's house at a time, and its neighbours, in one reader, one writer and one enumerator."""

    mesh: Mesh
    healthy: MariaDB
    server: MariaDB
    wire: StallingWire
    neighbours: list[Pipeline] = field(default_factory=list)
    rounds: int = 0

    def round(self) -> float:
        """The seconds that the measured pipeline takes; it is deleted afterwards."""
        self.rounds += 1
        begun = time.monotonic()
        pipeline = self.mesh.pipeline(f"house{self.rounds}", self.healthy, ["house.t"], chunk_rows=4000)
        pipeline.until(lambda: pipeline.shows("house.t"), "its table to be shown", 120)
        self.healthy.execute("UPDATE house.t SET n = n + 1")
        pipeline.catches_up("house.t", seconds=120)
        seconds = time.monotonic() - begun
        assert len(pipeline.epochs()) == 1
        command(pipeline, "delete", purge=False)
        waited(lambda: pipeline.name not in self.mesh.store.pipelines(), "the pipeline to be gone", 30)
        return seconds

    def idle(self) -> None:
        """Return once all neighbours are live, have all of their source, and wait for nothing."""
        for number, pipeline in enumerate(self.neighbours):
            pipeline.catches_up(f"x.t{number}", seconds=120)
            pipeline.until(lambda pipeline=pipeline: not waits(pipeline), "it to wait for nothing")

    def threads(self) -> dict[str, int]:
        """How many threads each process has."""
        return {each.role: psutil.Process(each.popen.pid).num_threads() for each in self.mesh.services}

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def inside_selects(self) -> Iterator[None]:
        """The server hangs while each neighbour reads its table again, slowly."""
        for number, pipeline in enumerate(self.neighbours):
            done(pipeline, "read_table_again", table=f"x.t{number}")
        for number, pipeline in enumerate(self.neighbours):

            def reads(pipeline: Pipeline = pipeline, name: str = f"x.t{number}") -> bool:
                table = pipeline.status().tables[name]
                return table.phase == "snapshot" and (table.splits_done or 0) > 0

            pipeline.until(reads, "its table to be read again")
        with self.suspended():
            yield

    @contextlib.contextmanager
    def inside_a_transaction(self) -> Iterator[None]:
        """The server hangs while each neighbour's dump brings a large transaction of all tables."""
        writing = self.server.connect(autocommit=False)
        with writing.cursor() as cursor:
            for number in range(NEIGHBOURS):
                cursor.execute(f"UPDATE x.t{number} SET a = REPEAT(CHAR(97 + RAND() * 25), 2000)")
        before = self.wire.carried

        def commit() -> None:
            with contextlib.suppress(Exception):
                writing.commit()

        threading.Thread(target=commit, daemon=True).start()
        waited(lambda: self.wire.carried > before + SILENT_BYTES, "the transaction to be sent", 30)
        with self.suspended():
            yield

    def hung(self, situation: Situation) -> AbstractContextManager[None]:
        """The neighbours' server hangs in this situation while the block runs."""
        ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "a SELECT": self.inside_selects,
            "the binlog, idle": self.suspended,
            "the binlog, inside a transaction": self.inside_a_transaction,
        }
        return ways[situation]() if situation in ways else self.wire.stalled(situation)  # type: ignore[arg-type]


def waits(pipeline: Pipeline) -> bool:
    """Whether a reader or the enumerator says that it waits for the source."""
    waiting = (pipeline.reader().waiting_for, pipeline.status().enumerator.waiting_for)
    return any("the source" in str(each) for each in waiting)


@pytest.fixture(scope="module")
def street(mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    rows = ",".join(f"({number},0,'{'z' * 1000}')" for number in range(ROWS // 10))
    mariadb.execute(
        "CREATE DATABASE house",
        "CREATE TABLE house.t (id INT PRIMARY KEY, n INT NOT NULL, a VARCHAR(2000) NOT NULL)",
        f"INSERT INTO house.t VALUES {rows}",
        *(
            f"INSERT INTO house.t SELECT id + {times * ROWS // 10}, n, a FROM house.t WHERE id < {ROWS // 10}"
            for times in range(1, 10)
        ),
    )
    folder: Path = tmp_path_factory.mktemp("street")
    with contextlib.ExitStack() as stack:
        stack.callback(mariadb.execute, "DROP DATABASE house")
        server = stack.enter_context(MariaDB())
        few = ",".join(f"({number},'{'y' * 2000}')" for number in range(NEIGHBOURS_ROWS))
        server.execute("CREATE DATABASE x")
        for number in range(NEIGHBOURS):
            server.execute(
                f"CREATE TABLE x.t{number} (id INT PRIMARY KEY, a VARCHAR(2000))",
                f"INSERT INTO x.t{number} VALUES {few}",
            )
        wire = stack.enter_context(StallingWire(server.port).open())
        made = Street(stack.enter_context(Mesh(folder, readers=1, writers=1)), mariadb, server, wire)
        slow = {"max_rows_per_second": 100, "chunk_rows": 50}
        made.neighbours = [
            made.mesh.pipeline(f"neighbour{n}", server, [f"x.t{n}"], port=wire.port, snapshot=slow)
            for n in range(NEIGHBOURS)
        ]
        yield made


SITUATIONS = (
    pytest.param("a SELECT"),
    pytest.param("after the login"),
    *(
        pytest.param(each, marks=pytest.mark.full)
        for each in ("the binlog, idle", "the binlog, inside a transaction", *get_args(Handshake)[:-1])
    ),
)


@pytest.mark.alone
@pytest.mark.parametrize("situation", SITUATIONS)
def test_eight_pipelines_whose_server_hangs_slow_down_no_pipeline_of_another_server(
    street: Street, situation: Situation
) -> None:
    """1. Beside idle neighbours, rounds of the measured pipeline are timed. 2. The neighbours' server hangs, and each
    of them says that it waits for it. 3. More rounds take about as long, and the processes begin no further threads.
    4. The server answers again: the neighbours go on, in their epochs, and the last rounds are timed."""
    street.idle()
    undisturbed = [street.round() for _ in range(SEVERAL)]
    epochs = [len(pipeline.epochs()) for pipeline in street.neighbours]
    with street.hung(situation):
        for pipeline in street.neighbours:
            pipeline.until(lambda pipeline=pipeline: waits(pipeline), "it to wait for the source", 90)
        threads = street.threads()
        beside = [street.round() for _ in range(SEVERAL)]
        more = {role: count - threads[role] for role, count in street.threads().items()}
    street.idle()
    undisturbed += [street.round() for _ in range(FEW)]
    assert [len(pipeline.epochs()) for pipeline in street.neighbours] == epochs
    figures = f"undisturbed {[round(s, 1) for s in undisturbed]}, while it hangs {[round(s, 1) for s in beside]}"
    print(f"{situation}: {ROWS} rows beside {NEIGHBOURS} pipelines, seconds: {figures}; more threads: {more}")
    # Each may have begun to ask whether its server answers again, or to stage; and the pool of the store grows up to 8.
    assert max(more.values()) <= 2 * NEIGHBOURS
    assert median(beside) <= MOST * median(undisturbed), figures
