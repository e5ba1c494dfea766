"""The connection on which a reader reads one chunk after another, and what makes it as good as a new one.

To connect, log in and agree on TLS takes as long as reading a small chunk, so a chunk that was read without any error
leaves its connection to the next one. What a new connection is given, a kept one is given again: the whole session is
set and verified, and the server is identified (chunk.py). Nothing of the chunk before remains: its SELECT was taken to
the end, its transaction ended and its statement closed.

The source is a stranger's production server, so nothing is held open there without need: a connection is closed after
`KEPT_SECONDS` without a chunk, after any error, and where the pipeline has gone to another server. One that the server
has ended meanwhile is replaced at once, which is no failure of the chunk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from cutline.common.errors import CutlineError
from cutline.services.sources.mysql.connection import Connection, renew

KEPT_SECONDS = 5.0


class KeptConnection:
    """One connection at most, for one thread; `rest` closes it in time. `leads_on`: whether an open connection goes to
    the server to which `connect` would open one now."""

    def __init__(
        self, connect: Callable[[], Connection], leads_on: Callable[[Connection], bool] = lambda connection: True
    ) -> None:
        self._connect = connect
        self._leads_on = leads_on
        self._kept: Connection | None = None
        self._since = 0.0  # monotonic: when it was left

    def new(self) -> Connection:
        """A new connection, the caller's; the kept one is closed before."""
        self.close()
        return self._connect()

    def take(self) -> Connection:
        """The kept connection if it is as good as a new one, else a new one: the caller's, to close or `leave`."""
        connection, self._kept = self._kept, None
        if connection is None:
            return self._connect()
        if not self._is_late() and self._leads_on(connection):
            with suppress(CutlineError):  # the server has ended it; if it refuses us, it tells a new one
                renew(connection)
                return connection
        connection.close()
        return self._connect()

    def leave(self, connection: Connection) -> None:
        """Keep a connection on which nothing is open for whoever comes next."""
        self.close()
        self._kept, self._since = connection, time.monotonic()

    @property
    def due(self) -> bool:
        """Whether `rest` has something to close."""
        return self._kept is not None and self._is_late()

    def rest(self) -> None:
        """Close the connection if nobody has needed it for a while; call it from time to time."""
        if self.due:
            self.close()

    def close(self) -> None:
        """Close the connection, if one is kept."""
        connection, self._kept = self._kept, None
        if connection is not None:
            connection.close()

    def _is_late(self) -> bool:
        return time.monotonic() - self._since > KEPT_SECONDS
