"""A source that takes connections and never answers keeps its own pipeline waiting, and nobody else's."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cutline.common.store.records import CheckpointEntry
from tests.support.databases import Database, MariaDB
from tests.support.mesh import Mesh
from tests.support.modelled_lake import cuts

Fresh = Callable[[Database], str]
PIPELINES = 10
"""More than asyncio's default executor has threads on a small machine, which all blocking calls once shared."""
SECONDS = 10.0


class Mute:
    """A server on loopback that accepts connections and says nothing."""

    host, port, name = "127.0.0.1", 0, "mute"

    @contextlib.contextmanager
    def listening(self) -> Iterator[Mute]:
        taken: list[socket.socket] = []
        with socket.create_server((self.host, 0), backlog=64) as server:
            self.port = server.getsockname()[1]

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        taken.append(server.accept()[0])

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()
                for connection in taken:
                    connection.close()


@pytest.mark.alone
def test_pipelines_whose_source_never_answers_hold_up_no_checkpoint_of_another(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Ten pipelines ask a source that takes their connections and is silent. 2. Another is defined after them: it is
    led, read and goes live, its checkpoints are never late, and no lease changes hands. 3. Each of the ten says what it
    waits for. 4. All services end in time."""
    schema = fresh_database(mariadb)
    table = f"{schema}.t"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    with Mute().listening() as mute, Mesh(tmp_path, readers=1, writers=1) as mesh:
        silent = cast(Any, SimpleNamespace(host=mute.host, port=mute.port))
        stuck = [mesh.pipeline(f"stuck{number}", silent, ["shop.*"]) for number in range(PIPELINES)]
        for pipeline in stuck:
            pipeline.until(
                lambda pipeline=pipeline: pipeline.status().enumerator.state == "leading",
                "it to be led",
                30,
            )
        good = mesh.pipeline("good", mariadb, [table])
        good.until(lambda: good.shows(table), "the table to be shown", 30)
        begun = time.monotonic()
        while time.monotonic() - begun < SECONDS:
            mariadb.execute(f"INSERT INTO {table} SELECT MAX(id) + 1 FROM {table}")
            good.goes_on(1, seconds=5)
        for pipeline in stuck:
            waiting_for = pipeline.until(
                lambda pipeline=pipeline: pipeline.status().enumerator.waiting_for, "what it waits for", 40
            )
            assert f"{mute.host}:{mute.port}" in str(waiting_for)
        written = [entry.written_at for entry in good.entries() if isinstance(entry, CheckpointEntry)]
        assert max(later - earlier for earlier, later in itertools.pairwise(written)) < 5
        assert len(good.epochs()) == 1
        assert all(len(pipeline.epochs()) == 1 for pipeline in stuck)
        assert [cut.slot for cut in cuts(good) if table in cut.tables]
        for role in ("enumerator", "reader", "writer"):
            assert mesh.leave(mesh.running(role)[0]) == 0
