"""A wire in front of a server that can stall: what a hung machine, a frozen disk or a firewall that drops does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

Handshake: TypeAlias = Literal["silent", "half a greeting", "after the login"]
"""Where new connections stall: accepted without a word; after the server's first bytes; at the client's first command
of MySQL's protocol."""
Stall: TypeAlias = Handshake | Literal["large answers"]
"""The last one: at the first answer above LARGE_BYTES, as where a network loses large packets.

Connections that are open when a stall begins carry nothing any more."""
LARGE_BYTES = 4096


class StallingWire:
    """Carries bytes between clients and the server at `port`, except while it stalls."""

    host = "127.0.0.1"

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._stall: Stall | None = None
        self._moves = threading.Event()
        self._moves.set()
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self.port = self.carried = 0
        self.stalls = 0
        """How many connections came to where they stall, besides those that were open already."""

    @contextmanager
    def open(self) -> Iterator[StallingWire]:
        """Take connections on a free port until the block ends."""
        with socket.create_server((self.host, 0), backlog=128) as listener:
            self.port = listener.getsockname()[1]
            accepting = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            accepting.start()
            try:
                yield self
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                accepting.join()
                self._end_all()
                self._moves.set()

    @contextmanager
    def stalled(self, stall: Stall = "silent") -> Iterator[None]:
        """Stall while the block runs; then all connections of that time end, and new ones work."""
        self._stall = stall
        self._moves.clear()
        try:
            yield
        finally:
            self._stall = None
            self._end_all()
            self._moves.set()

    def _end_all(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                with self._lock:
                    self._ends.append(near)
                if self._stall == "silent":
                    self.stalls += 1
                else:
                    threading.Thread(target=self._connect, args=(near, self._stall), daemon=True).start()

    def _connect(self, near: socket.socket, stall: Stall | None) -> None:
        try:
            far = socket.create_connection((self.host, self._server_port))
        except OSError:
            near.close()
            return
        with self._lock:
            self._ends.append(far)
        if stall == "half a greeting":
            with suppress(OSError):
                near.sendall(far.recv(65536)[:20])
                self.stalls += 1
            return
        for pair in ((near, far, stall), (far, near, stall)):
            threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, one_end: socket.socket, other_end: socket.socket, stall: Stall | None) -> None:
        with suppress(OSError):
            while data := one_end.recv(65536):
                query = data[3] == 0 and data[4] == 3  # its first packet
                if (stall == "after the login" and query) or (stall == "large answers" and len(data) > LARGE_BYTES):
                    stall = None
                    self.stalls += 1
                if stall is None:
                    self._moves.wait()
                other_end.sendall(data)
                self.carried += len(data)  # of all connections; an addition that is lost does no harm
        for end in (one_end, other_end):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._ends = [end for end in self._ends if end not in (one_end, other_end)]
