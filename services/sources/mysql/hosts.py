"""The connections of one service to one source: which of its servers they go to, and the password.

**Which server.** Watermarks compare within one server only, so all connections of a pipeline should go to the same one:

- the main binlog cursor decides. While it reads a server, every other connection, also those of other services, goes
  there and nowhere else. The services learn it from the pipeline's status in Redis (`follow`).
- Without a main cursor (no table is in the stream yet, or it is about to connect) a service goes to the server that it
  used last, or that the leader uses, else to the first of the list; if that can't be reached or used, to the next.
- A server can't be used if its settings or its history don't allow to go on there (requirements.py). The history is
  checked for what the cursors have read (`must_have`).

Agreement saves tables from being read again and is no condition of correctness: each cursor and each chunk checks its
server by itself.

**Passwords.** The password is read for each connection. A file may change at any time: after a refusal it is read once
more at once, since it may have changed meanwhile. A password that was refused is not tried again for a minute, as
servers lock accounts after some failures; a new one is tried at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from weakref import WeakSet

import pymysql

from cutline.common.causes import Cause, joined
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.source import Address, SourceConfig
from cutline.common.errors import CutlineError, SourceRefused, Unavailable
from cutline.common.mesh.topology import STREAM_READER
from cutline.common.positions import High, Position
from cutline.common.status.pipeline_status import PipelineStatus, ReaderStatus
from cutline.services.sources.mysql.connection import (
    LOGIN_REFUSED,
    Connection,
    Source,
    break_connection,
    connect,
    server_of,
)
from cutline.services.sources.mysql.requirements import setting_faults, takeover_fault
from cutline.services.sources.mysql.server import flushed_position, identify

REFUSED_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""How long the owner of connections waits for their threads at its end, before it breaks them (`Hosts.end`)."""
CURRENT_SECONDS = 10.0
"""A status that is older says nothing about the main cursor any more."""


class Hosts:
    """Opens connections to one source; any thread may. Each method that connects raises SourceRefused if a person must
    change something, Unavailable if no server can be reached and used now."""

    def __init__(self, config: SourceConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._addresses = config.addresses
        self._current = self._addresses[0]
        self._only = False  # whether the main cursor reads `_current`
        self._connected = False
        self._read: dict[str, Position] = {}
        self._refused: dict[tuple[Address, int], tuple[float, SourceRefused]] = {}  # by address and password's hash
        self._opened: WeakSet[Connection] = WeakSet()
        self._ended = False

    # --- the choice ---

    @property
    def several(self) -> bool:
        """Whether there is a choice."""
        return len(self._addresses) > 1

    @property
    def current(self) -> Address:
        """The server to which the next connection goes first."""
        return self._current

    @property
    def chosen(self) -> str | None:
        """The server of the newest connection; None if there was none yet."""
        return str(self._current) if self._connected else None

    @property
    def main(self) -> str | None:
        """The server that the main cursor reads, as far as this service knows."""
        return str(self._current) if self._only else None

    def follow(self, status: PipelineStatus, *, now: float) -> None:
        """Go where the pipeline's other services go, by its status in Redis; called each second by a service without
        the main cursor. `now` is in seconds since 1970, as the times in the status.
        """
        streaming = status.readers.get(STREAM_READER, ReaderStatus())
        main = streaming.main_host if now - (streaming.at or 0.0) < CURRENT_SECONDS else None
        if main is None:
            self.release()
            self.prefer(status.enumerator.source_host or streaming.source_host)
            return
        with self._lock:
            self._current = self._known(main) or self._current
            self._only = self._current == self._known(main)

    def prefer(self, host: str | None) -> None:
        """Go to this server first, unless the main cursor reads another one."""
        with self._lock:
            if not self._only:
                self._current = self._known(host) or self._current

    def release(self) -> None:
        """The main cursor has no connection, so any server may be next."""
        with self._lock:
            self._only = False

    def _known(self, host: str | None) -> Address | None:
        return next((address for address in self._addresses if str(address) == host), None)

    def must_have(self, cursor: str, position: Position | None) -> None:
        """What this cursor has read, which a server that takes over must have; None: the cursor is no more."""
        with self._lock:
            self._read.pop(cursor, None)
            if position is not None:
                self._read[cursor] = position

    # --- connections ---

    def connect(self) -> Connection:
        """A connection to the server in use, or to the next one that can be used."""
        with self._lock:
            current, only = self._current, self._only
        if only or not self.several:
            connection = self._open(current)
            self._connected = True
            return connection
        problems: list[Cause] = []
        refused = True
        for address in (current, *(other for other in self._addresses if other != current)):
            try:
                connection = self._usable(address)
            except (Unavailable, SourceRefused) as error:
                problems.append(error.cause)
                refused = refused and isinstance(error, SourceRefused)
                continue
            with self._lock:
                if not self._only:
                    self._current, self._connected = address, True
            return connection
        kind = SourceRefused if refused else Unavailable
        raise kind(replace(joined(problems).before("No server of the source can be used: "), code=kind.code))

    def leads_on(self, connection: Connection) -> bool:
        """Whether an open connection goes to the server to which the next one would."""
        return not self.several or server_of(connection) == self._current

    def connect_to(self, address: Address) -> Connection:
        """A connection to this server of the source, whichever is in use."""
        return self._open(address)

    def connect_main(self) -> Connection:
        """A connection of the main cursor, which all others follow."""
        connection = self.connect()
        with self._lock:
            self._only = True
        return connection

    def end(self) -> None:
        """Break the connections that are still open, and open no more. Their threads, which a server that hangs would
        keep for a quarter of an hour, get Unavailable at once. One that logs in meanwhile ends with its own time-out.
        """
        with self._lock:
            self._ended, opened = True, list(self._opened)
        for connection in opened:
            break_connection(connection)

    def _usable(self, address: Address) -> Connection:
        connection = self._open(address)
        try:
            server = identify(connection)
            with self._lock:
                read = list(self._read.values())
            faults = setting_faults(connection, server)
            if not faults and (fault := takeover_fault(connection, server, read)):
                faults = [fault]
        except CutlineError as error:
            connection.close()
            if isinstance(error, (Unavailable, SourceRefused)):
                raise
            raise SourceRefused(error.cause.before(f"{address}: ")) from error
        if faults:
            connection.close()
            raise SourceRefused.several(fault.before(f"{address}: ") for fault in faults)
        return connection

    def _open(self, address: Address) -> Connection:
        connection = self._logged_in(address)
        with self._lock:
            self._opened.add(connection)
            ended = self._ended
        if ended:
            break_connection(connection)
        return connection

    def _logged_in(self, address: Address) -> Connection:
        source = Source.configured(self._config, address)
        try:
            return self._tried(source)
        except SourceRefused:
            again = Source.configured(self._config, address)
            if again == source:
                raise
            return self._tried(again)

    def _tried(self, source: Source) -> Connection:
        key = source.address, hash((source.user, source.password))
        with self._lock:
            since, refusal = self._refused.get(key, (0.0, None))
        if refusal is not None and self._clock() - since < REFUSED_SECONDS:
            raise SourceRefused.several(refusal.faults)
        try:
            connection = connect(source)
        except SourceRefused as error:
            cause = error.__cause__
            if not isinstance(cause, pymysql.MySQLError) or cause.args[0] not in LOGIN_REFUSED:
                raise
            refusal = SourceRefused(replace(error.cause, remedy=f"{error.cause.remedy}{self._when_mended()}"))
            with self._lock:
                self._refused = {known: at for known, at in self._refused.items() if known[0] != source.address}
                self._refused[key] = self._clock(), refusal
            raise refusal from cause
        with self._lock:
            self._refused.pop(key, None)
        return connection

    def _when_mended(self) -> str:
        """When a corrected password is noticed, as the end of a remedy."""
        if self._config.password_file is not None:
            return f" (a new password in {self._config.password_file} is tried at once, the same one each minute)"
        if self._config.password_env is not None:
            name = self._config.password_env
            return f" (a new value of {name} needs a restart of the services, one in a password_file does not)"
        return ""


def flushed_high(config: PipelineConfig, *, at: str | None = None) -> High:
    """The flushed end of a pipeline's source now, asked on a connection of its own; `at` is the server to ask first."""
    hosts = Hosts(config.source)
    hosts.prefer(at)
    with closing(hosts.connect()) as conn:
        server = identify(conn)
        found = flushed_position(conn, server)
    return High(server=server.identity, file=found.file, offset=found.offset)
