"""A source that falls silent in the middle of a transaction that is being read: no command waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from tests.support.databases import Database, MariaDB, MySQL
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.operator import command, done, outcome

ROWS = 240_000
READ_BYTES = 16 << 20
"""Of about 47 MB: a read of changes ends after 8 MiB, so some rows have been sent; what the sockets hold comes too."""
BOUND_SECONDS = 30.0  # a marker waits 5 s for a silent source; the rest is the load of this machine
Way = Callable[[Database], None]


def killed(server: Database) -> None:
    server.kill()


def suspended(server: Database) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)


class Line:
    """The wire between the readers and a source, which falls silent once it has carried so many bytes to them."""

    def __init__(self, server: Database, way: Way) -> None:
        self.server, self._way = server, way
        self.left: int | None = None
        self.silent = threading.Event()
        self.port = 0
        self._ends: list[socket.socket] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[Line]:
        """Take connections until the block ends."""
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            self.port = listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            try:
                yield self
            finally:
                for end in self._ends:
                    with contextlib.suppress(OSError):
                        end.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                self._ends.append(near)
                try:
                    far = socket.create_connection(("127.0.0.1", self.server.port))
                except OSError:
                    near.close()
                    continue
                self._ends.append(far)
                threading.Thread(target=self._connect, args=(near, far), daemon=True).start()

    def _connect(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:  # closed in the end: whoever still writes to the one learns that the other has gone
            back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
            back.start()
            self._carry(near, far)
            back.join()

    def _carry(self, one_end: socket.socket, other_end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one_end.recv(65536):
                if self.left is not None and not self.silent.is_set():
                    self.left -= len(data)
                    if self.left < 0:
                        self.silent.set()
                        self._way(self.server)
                other_end.sendall(data)
        for end in (one_end, other_end):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def commit(writing: Connection[Any]) -> None:
    with contextlib.suppress(pymysql.Error, OSError), writing:
        writing.commit()


@contextlib.contextmanager
def silent_inside(server: Database, way: Way, folder: Path) -> Iterator[Pipeline]:
    """A pipeline whose source fell silent while a transaction of ROWS rows was read."""
    with server, Line(server, way).open() as line, Mesh(folder, readers=1, writers=1) as mesh:
        server.execute("CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY, a VARCHAR(200) NOT NULL)")
        try:
            pipeline = mesh.pipeline("shop", server, ["s.t"], port=line.port)
            pipeline.until(lambda: pipeline.shows("s.t"), "the table to be live")
            writing = server.connect(autocommit=False)
            with writing.cursor() as cursor:
                for start in range(0, ROWS, 4000):
                    rows = ",".join(f"({n},'{'y' * 190}')" for n in range(start, start + 4000))
                    cursor.execute(f"INSERT INTO s.t VALUES {rows}")
            line.left = READ_BYTES
            # The readers have the binlog before the source answers the commit, so it may fall silent in between.
            threading.Thread(target=commit, args=(writing,), daemon=True).start()
            waited(line.silent.is_set, "the source to fall silent", 60, pipeline.progress)
            yield pipeline
        finally:
            if server.pid is not None:
                os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("way", [killed, suspended])
@pytest.mark.parametrize("kind", [MariaDB, MySQL])
def test_pause_and_delete_need_no_source_that_fell_silent_inside_a_transaction(
    kind: type[Database], way: Way, tmp_path: Path
) -> None:
    """1. The source falls silent inside a transaction. 2. A stop, whose savepoint can't be, fails and says why. 3. The
    pipeline can be paused, and goes on once it is resumed; then it is deleted."""
    with silent_inside(kind(), way, tmp_path) as pipeline:
        begun = time.monotonic()
        stop = outcome(pipeline, command(pipeline, "stop", savepoint="last"), 2 * BOUND_SECONDS)
        assert (stop.state, stop.orders.mode) == ("failed", "running")
        assert "inside a transaction" in str(stop.cause)
        done(pipeline, "pause")
        assert outcome(pipeline, command(pipeline, "stop", savepoint=None), BOUND_SECONDS).state == "done"
        assert time.monotonic() - begun < 3 * BOUND_SECONDS
        newest = pipeline.checkpoint()
        assert newest is not None
        assert newest.inside
        assert newest.position is not None
        assert newest.position.rows
        command(pipeline, "delete", purge=False)
        pipeline.until(lambda: not pipeline.mesh.store.pipelines(), "the pipeline to be gone", BOUND_SECONDS)


@pytest.mark.parametrize("kind", [MariaDB, MySQL])
def test_a_pipeline_paused_inside_a_transaction_goes_on_in_it(kind: type[Database], tmp_path: Path) -> None:
    with silent_inside(kind(), suspended, tmp_path) as pipeline:
        done(pipeline, "pause")
        server = pipeline.server
        assert server.pid is not None
        os.kill(server.pid, signal.SIGCONT)
        done(pipeline, "resume")
        newest = pipeline.catches_up("s.t")
        rows = sum(file.rows for entry in pipeline.entries() for file in getattr(entry, "staged", ()))
        assert (rows, newest.inside) == (ROWS, False)
