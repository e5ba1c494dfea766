"""Connections to MySQL and MariaDB: sessions, statements, and the translation of PyMySQL's errors.

The source is only read: sessions are `TRANSACTION READ ONLY`, and no module of this package locks, creates or sets a
global variable. `connect` alone makes sessions, and session.py says what each of them is.

`translate_errors` turns PyMySQL's errors into the tree of common/errors.py, by what the driver does next:

| the server or the network reports | becomes |
|---|---|
| wrong password, unknown host name, a certificate that is not trusted | SourceRefused: a person must change something |
| missing privilege | ConfigError: a person must change something |
| another session holds a table's lock, such as that of LOCK TABLES | TableLocked, with the table |
| connection refused or lost, shutting down, offline, out of connections or memory, deadlock, timeout | Unavailable |
| table or column missing, definition changed, binlog purged, row over max_allowed_packet | SourceLost, with the table |
| any other error, such as a syntax error | ProtocolError: Cutline sent a wrong statement |
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pymysql
from pymysql.connections import Connection as _Connection
from pymysql.constants import COMMAND, CR, ER
from pymysql.converters import encoders
from pymysql.cursors import Cursor
from pymysql.protocol import FieldDescriptorPacket

from cutline.common.causes import Cause, Code
from cutline.common.config.source import CONNECT_TIMEOUT_SECONDS, Address, SourceConfig, TlsConfig
from cutline.common.errors import (
    ConfigError,
    CutlineError,
    NextGeneration,
    NoTable,
    ProtocolError,
    SourceLost,
    SourceRefused,
    TableLocked,
    Unavailable,
)
from cutline.common.table_id import split_table_id
from cutline.services.sources.mysql import session, tls
from cutline.services.sources.mysql.login import LoginConnection

Connection: TypeAlias = "_Connection[Cursor]"

_BLOCK_BYTES = 1 << 20
_HANDSHAKE_SECONDS = 30
PAUSE_SECONDS = 0.002

# Error numbers that PyMySQL (or its type stubs) does not name, by their names in the servers' own lists.
_MYSQL_NEED_REPREPARE = 1615
_MYSQL_ACCESS_DENIED_NO_PASSWORD = 1698
_MYSQL_INDEX_CORRUPT = 1712
_MYSQL_INTERNAL_ERROR = 1815
_MYSQL_MUST_CHANGE_PASSWORD = 1820
_MYSQL_READ_ONLY_MODE = 1836
_MYSQL_MUST_CHANGE_PASSWORD_LOGIN = 1862
_MYSQL_SERVER_OFFLINE_MODE = 3032
_MYSQL_ACCOUNT_LOCKED = 3118
_MYSQL_SERVER_ISNT_AVAILABLE = 3168
_MYSQL_SESSION_WAS_KILLED = 3169
_MYSQL_BLOCKED_BY_PASSWORD_LOCK = 3955
_MYSQL_CLIENT_INTERACTION_TIMEOUT = 4031
_MARIADB_CONNECTION_KILLED = 1927
_MARIADB_NO_SUCH_TABLE_IN_ENGINE = 1932
_MARIADB_ACCOUNT_LOCKED = 4151

LOGIN_REFUSED = frozenset(
    (
        ER.ACCESS_DENIED_ERROR,
        _MYSQL_ACCESS_DENIED_NO_PASSWORD,
        _MYSQL_ACCOUNT_LOCKED,
        _MYSQL_BLOCKED_BY_PASSWORD_LOCK,
        _MARIADB_ACCOUNT_LOCKED,
    )
)
"""Errors of a login that servers count, to lock the account after some of them."""
NO_SELECT = frozenset((ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR))
"""Errors of a SELECT for which the user lacks the privilege."""
_REFUSED = NO_SELECT | LOGIN_REFUSED | {
    ER.DBACCESS_DENIED_ERROR,
    ER.HOST_NOT_PRIVILEGED,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
    ER.NOT_SUPPORTED_AUTH_MODE,
    ER.PROCACCESS_DENIED_ERROR,
    _MYSQL_MUST_CHANGE_PASSWORD,
    _MYSQL_MUST_CHANGE_PASSWORD_LOGIN,
    CR.CR_AUTH_PLUGIN_CANNOT_LOAD,
    CR.CR_AUTH_PLUGIN_ERR,
}
_OUT_OF_RESOURCES = {
    ER.DISK_FULL,
    ER.OUTOFMEMORY,
    ER.OUT_OF_SORTMEMORY,
    ER.CON_COUNT_ERROR,
    ER.OUT_OF_RESOURCES,
    ER.HOST_IS_BLOCKED,
    ER.CANT_CREATE_THREAD,
    ER.TOO_MANY_USER_CONNECTIONS,
    ER.USER_LIMIT_REACHED,
    ER.MAX_PREPARED_STMT_COUNT_REACHED,
}
_INTERRUPTED = {
    ER.SERVER_SHUTDOWN,
    ER.ABORTING_CONNECTION,
    ER.NET_READ_ERROR,
    ER.NET_READ_INTERRUPTED,
    ER.NET_ERROR_ON_WRITE,
    ER.NET_WRITE_INTERRUPTED,
    ER.LOCK_WAIT_TIMEOUT,
    ER.LOCK_DEADLOCK,
    ER.QUERY_INTERRUPTED,
    ER.STATEMENT_TIMEOUT,
    ER.QUERY_TIMEOUT,
    _MYSQL_NEED_REPREPARE,
    _MYSQL_READ_ONLY_MODE,
    _MYSQL_SERVER_OFFLINE_MODE,
    _MYSQL_SERVER_ISNT_AVAILABLE,
    _MYSQL_SESSION_WAS_KILLED,
    _MYSQL_CLIENT_INTERACTION_TIMEOUT,
    _MARIADB_CONNECTION_KILLED,
}
_CONNECTION_LOST = {
    CR.CR_CONNECTION_ERROR,
    CR.CR_CONN_HOST_ERROR,
    CR.CR_UNKNOWN_HOST,
    CR.CR_SERVER_GONE_ERROR,
    CR.CR_SERVER_HANDSHAKE_ERR,
    CR.CR_SERVER_LOST,
    CR.CR_COMMANDS_OUT_OF_SYNC,
    CR.CR_MALFORMED_PACKET,
    CR.CR_SERVER_LOST_EXTENDED,
}
_UNAVAILABLE = frozenset(_OUT_OF_RESOURCES | _INTERRUPTED | _CONNECTION_LOST)
_OBSTACLES: Mapping[int, tuple[str, str]] = {
    **dict.fromkeys(
        (ER.DISK_FULL, ER.OUTOFMEMORY, ER.OUT_OF_SORTMEMORY, ER.OUT_OF_RESOURCES),
        ("is out of memory or disk", "free some there"),
    ),
    **dict.fromkeys(
        (ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED),
        ("lets this user do no more", "raise that limit there: ALTER USER ... WITH ..., or max_user_connections"),
    ),
    **dict.fromkeys(
        (ER.QUERY_TIMEOUT, ER.STATEMENT_TIMEOUT),
        ("ended a statement at its time limit", "find out what delays the server"),
    ),
    **dict.fromkeys(
        (ER.QUERY_INTERRUPTED, _MYSQL_SESSION_WAS_KILLED, _MARIADB_CONNECTION_KILLED),
        ("ended a statement of Cutline (KILL)", "find out who does so if it comes again"),
    ),
    ER.CON_COUNT_ERROR: ("has no connection left", "raise max_connections there, or end idle connections"),
    ER.CANT_CREATE_THREAD: ("can't start another thread", "raise its limit of processes, or free memory there"),
    ER.MAX_PREPARED_STMT_COUNT_REACHED: (
        "has no prepared statement left",
        "raise max_prepared_stmt_count there, or have applications close theirs",
    ),
    ER.HOST_IS_BLOCKED: (
        "blocks this machine after connections that failed",
        "run TRUNCATE TABLE performance_schema.host_cache there (on MariaDB FLUSH HOSTS)",
    ),
    ER.LOCK_WAIT_TIMEOUT: ("holds a lock for another session", "end that session, which SHOW PROCESSLIST there lists"),
    ER.SERVER_SHUTDOWN: ("is shutting down", "start it again"),
    ER.NEW_ABORTING_CONNECTION: ("ended the login", "correct init_connect there, or the rights that it needs"),
    _MYSQL_SERVER_OFFLINE_MODE: ("is in offline mode", "SET GLOBAL offline_mode = OFF there"),
}
"""What an error for which Cutline waits says of the server, and what to do; others are taken for a lost connection."""
_REMEDIES: Mapping[int, str] = {
    **dict.fromkeys(
        (ER.ACCESS_DENIED_ERROR, _MYSQL_ACCESS_DENIED_NO_PASSWORD), "correct source.user, its password or its host"
    ),
    **dict.fromkeys(
        (_MYSQL_ACCOUNT_LOCKED, _MARIADB_ACCOUNT_LOCKED, _MYSQL_BLOCKED_BY_PASSWORD_LOCK),
        "unlock the account: ALTER USER ... ACCOUNT UNLOCK",
    ),
    **dict.fromkeys(
        (_MYSQL_MUST_CHANGE_PASSWORD, _MYSQL_MUST_CHANGE_PASSWORD_LOGIN),
        "give the account a new password: ALTER USER ... IDENTIFIED BY ...",
    ),
    **dict.fromkeys(
        (*NO_SELECT, ER.DBACCESS_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.PROCACCESS_DENIED_ERROR),
        "GRANT the privilege to the user",
    ),
    ER.HOST_NOT_PRIVILEGED: "create the user for this machine's address",
}
"""What to do about a refusal."""
_UNREADABLE = frozenset(
    (
        ER.GET_ERRNO,
        ER.NOT_KEYFILE,
        ER.CRASHED_ON_USAGE,
        ER.CRASHED_ON_REPAIR,
        ER.MASTER_FATAL_ERROR_READING_BINLOG,
        _MYSQL_INDEX_CORRUPT,
        _MYSQL_INTERNAL_ERROR,
        _MARIADB_NO_SUCH_TABLE_IN_ENGINE,
    )
)
_NO_TABLE = frozenset((ER.BAD_DB_ERROR, ER.BAD_TABLE_ERROR, ER.NO_SUCH_TABLE))
_CHANGED = frozenset(
    (ER.BAD_FIELD_ERROR, ER.UNKNOWN_TABLE, ER.KEY_DOES_NOT_EXITS, ER.VIEW_INVALID, ER.TABLE_DEF_CHANGED)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The address of a server, the account that Cutline uses there, and how the connection is protected.

    `tls` None: by where the server is (tls.py).
    """

    host: str
    port: int = 3306
    user: str
    password: str = field(default="", repr=False)
    tls: TlsConfig | None = None
    cleartext_password: bool = False
    connect_timeout_seconds: int = CONNECT_TIMEOUT_SECONDS
    read_timeout_seconds: int = 900

    @classmethod
    def configured(cls, config: SourceConfig, address: Address | None = None) -> Source:
        """A server of a pipeline file, the first one unless `address` names another; reads the password now.

        SourceRefused if the password can't be found.
        """
        address = address or config.addresses[0]
        try:
            password = config.password()
        except ConfigError as error:
            raise SourceRefused.several(error.faults) from error
        return cls(
            host=address.host,
            port=address.port,
            user=config.user,
            password=password,
            tls=config.tls,
            cleartext_password=config.cleartext_password,
            connect_timeout_seconds=config.connect_timeout_seconds,
        )

    @property
    def address(self) -> Address:
        """Where the server listens."""
        return Address(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.user}@{self.address}"


def connect(source: Source) -> Connection:
    """Open a connection with Cutline's session (session.py); no other function of Cutline opens one.

    Values come back as `str` (text, numbers, times) or `bytes` (binary), never converted. SourceRefused if the server
    refuses the account, or its certificate or lack of TLS is refused, or the host name is unknown; Unavailable if the
    server can't be reached now.
    """
    context = tls.context(source.tls, source.address)
    try:
        source.host.encode("idna")  # as the resolver does: a name such as `a..b` can't be asked for
    except UnicodeError as error:
        raise SourceRefused(_unknown_host(str(source))) from error
    try:
        with translate_errors(str(source)), tls.refusals(source.tls, source.address):
            return _connected(source, context)
    except SourceRefused:
        raise
    except ConfigError as error:
        cause = error.__cause__
        denied = isinstance(cause, pymysql.MySQLError) and cause.args[0] == ER.ACCESS_DENIED_ERROR
        hint = tls.hint(source.tls, source.address) if denied else ""
        refusal = replace(error.cause, code=Code.REFUSED, remedy=f"{error.cause.remedy}{hint}")
        raise SourceRefused(refusal) from cause


def _connected(source: Source, context: ssl.SSLContext | None) -> Connection:
    connection: Connection = LoginConnection(
        config=source.tls,
        cleartext_password=source.cleartext_password,
        host=source.host,
        port=source.port,
        user=source.user,
        password=source.password,
        charset="utf8mb4",
        autocommit=None,  # session.py sets it: PyMySQL believes a flag that the server sets wrongly
        connect_timeout=source.connect_timeout_seconds,
        read_timeout=source.read_timeout_seconds,
        write_timeout=source.read_timeout_seconds,
        max_allowed_packet=1 << 30,
        conv=dict[Any, Any](encoders),  # no decoders: values stay as MySQL prints them
        ssl=context,  # PyMySQL then refuses a server without TLS
        ssl_disabled=context is None,
        defer_connect=True,
    )
    untyped: Any = connection
    # for a server that accepts the connection and never answers
    untyped._read_timeout = max(_HANDSHAKE_SECONDS, source.connect_timeout_seconds)
    connection.connect()
    # keepalive notices a vanished host in half a minute, instead of after TCP's two hours
    wire: socket.socket = connection._sock  # type: ignore[attr-defined]
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        wire.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        _prepare(connection)
    except BaseException:
        connection._force_close()  # type: ignore[attr-defined]
        raise
    untyped._read_timeout = source.read_timeout_seconds
    wire.settimeout(source.read_timeout_seconds)
    return connection


def renew(connection: Connection) -> None:
    """Give a connection that is used again its session once more, and verify it, in the time that a login may take.
    Errors as those of `connect`, or ConfigError; close it then."""
    untyped: Any = connection
    usual, untyped._read_timeout = untyped._read_timeout, max(_HANDSHAKE_SECONDS, untyped.connect_timeout)
    _prepare(connection)
    untyped._read_timeout = usual


def _prepare(connection: Connection) -> None:
    """Give the connection Cutline's session, and verify it. SourceRefused if the server or a proxy forces another."""
    ask(connection, session.statement())
    ask(connection, session.ISOLATION)
    ask(connection, "ROLLBACK")  # the server's init_connect may have begun a transaction
    with translate_errors(address(connection)), connection.cursor() as cursor:
        cursor.execute(session.question())
        (row,) = cursor.fetchall()
        names = [column[0] for column in cursor.description or ()]
    if wrong := list(session.forced(dict(zip(names, row, strict=True)))):
        raise SourceRefused(
            f"{address(connection)} changes Cutline's session: {', '.join(wrong)}",
            "a proxy or a rule of the server forces that, so name the server itself in source.host, or end that rule"
            " for this user",
        )


def encryption(conn: Connection, config: TlsConfig | None) -> str:
    """How the connection is protected, in words, as "TLSv1.3 (verify-identity)"; `config` as the connection's."""
    wire: socket.socket = conn._sock  # type: ignore[attr-defined]
    chosen = tls.mode(config, server_of(conn))
    return f"{wire.version()} ({chosen})" if isinstance(wire, ssl.SSLSocket) else "not encrypted"


def break_connection(conn: Connection) -> None:
    """Break the connection, from any thread: a thread that waits for an answer on it gets Unavailable at once."""
    wire: socket.socket | None = conn._sock  # type: ignore[attr-defined]
    with suppress(OSError):
        if isinstance(wire, ssl.SSLSocket):
            socket.socket.shutdown(wire, socket.SHUT_RDWR)  # its own would drop the state that the other thread uses
        elif wire is not None:
            wire.shutdown(socket.SHUT_RDWR)


@contextmanager
def translate_errors(subject: str, table: str | None = None) -> Iterator[None]:
    """Turn PyMySQL's errors inside the block into ours, by the table in this file's head.

    `subject` names the server or the work in the message. With `table`, an error that concerns only this table becomes
    a SourceLost that names it.
    """
    try:
        yield
    except CutlineError:
        raise
    except pymysql.MySQLError as error:
        raise _translated(error, subject, table) from error
    except UnicodeDecodeError as error:  # MySQL keeps half of a surrogate pair in ucs2, MariaDB in others too
        sentence = f"{table or subject} has text that is not Unicode ({error})"
        raise SourceLost(Cause(Code.VALUE, sentence, "correct it"), table) from error
    except (OSError, EOFError, struct.error, AttributeError) as error:
        # PyMySQL raises AttributeError on None once another thread has closed its socket
        if isinstance(error, AttributeError) and "NoneType" not in str(error):
            raise
        raise Unavailable(f"The connection to {subject} broke ({error})", "is the server up?") from error


def _unknown_host(subject: str) -> Cause:
    return Cause(Code.CONFIGURATION, f"The host name in {subject} is unknown", "correct source.host")


def _translated(error: pymysql.MySQLError, subject: str, table: str | None) -> CutlineError:
    code, text = (*error.args, "", "")[:2]
    reason = f"{text or error} ({code})" if isinstance(code, int) and code else str(error)
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, socket.gaierror) and cause.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", -5)):
        return ConfigError(_unknown_host(subject))
    if code in NO_SELECT and table is not None:
        remedy = f"GRANT SELECT ON {quoted_table(table)} to the user of {subject}"
        return SourceLost(Cause(Code.RIGHTS, f"{table} may not be read: {reason}", remedy), table)
    if code in _REFUSED:
        remedy = _REMEDIES.get(code, "correct source.user, its password or its grants")
        return ConfigError(f"{subject} was refused: {reason}", remedy)
    if code == ER.NET_PACKET_TOO_LARGE:
        sentence = f"A row of {table or subject} is larger than max_allowed_packet"
        return SourceLost(Cause(Code.VALUE, sentence, "leave the table out"), table)
    if code in _NO_TABLE:
        return NoTable(Cause(Code.NO_TABLE, f"There is no table {table or subject} (any more): {reason}"), table)
    if code in _CHANGED:
        return NextGeneration(Cause(Code.CHANGED, f"The definition of {table or subject} changed: {reason}"), table)
    if code in _UNREADABLE:
        remedy = "repair the table at the server, then retry it"
        return SourceLost(Cause(Code.UNREADABLE, f"{table or subject}: {reason}", remedy), table)
    if code == ER.LOCK_WAIT_TIMEOUT and table is not None:
        cause = Cause(
            Code.LOCKED,
            f"{table} is locked by another session of the source ({reason}), as LOCK TABLES or an ALTER does",
            "it waits until that session ends its lock, and SHOW PROCESSLIST there lists it",
        )
        return TableLocked(cause, table)
    if code in _OBSTACLES:
        state, remedy = _OBSTACLES[code]
        return Unavailable(f"{subject} {state}: {reason}", remedy)
    if code in _UNAVAILABLE or isinstance(error, pymysql.InterfaceError) or not isinstance(code, int) or code == 0:
        return Unavailable(f"{subject} did not answer: {reason}", "is the server up?")
    return ProtocolError(
        f"{subject} rejected a statement of Cutline: {reason}", "report this with the server's version"
    )


def ask(conn: Connection, sql: str, args: Sequence[object] | None = None, *, table: str | None = None) -> list[Any]:
    """All rows of a statement's result, as tuples of what the server prints; `table` as in `translate_errors`."""
    with translate_errors(address(conn), table), conn.cursor() as cursor:
        cursor.execute(sql, args)
        return list(cursor.fetchall())


def server_of(conn: Connection) -> Address:
    """Where the connection leads."""
    return Address(conn.host, conn.port)


def address(conn: Connection) -> str:
    """The connection's user, host and port, for messages."""
    user: object = conn.user
    return f"{user.decode(errors='replace') if isinstance(user, bytes) else user}@{conn.host}:{conn.port}"


def quoted(name: str) -> str:
    """A name in back-ticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(table_id: str) -> str:
    """A table's name, with its database's, in back-ticks."""
    return ".".join(quoted(part) for part in split_table_id(table_id))


def columns_of(conn: Connection, sql: str, *, table: str) -> list[str]:
    """The columns of a SELECT's result, by their names in the table, without running it.

    The server finds the table, and judges the user's rights on it, while it prepares the statement; for that it does
    not wait for LOCK TABLES, as a SELECT does. Errors as those of the SELECT.
    """
    with translate_errors(address(conn), table):
        conn._execute_command(COMMAND.COM_STMT_PREPARE, sql)  # type: ignore[attr-defined]
        head = conn._read_packet().get_all_data()  # type: ignore[no-untyped-call]
        statement, columns = struct.unpack_from("<xIH", head)
        fields = [conn._read_packet(FieldDescriptorPacket) for _ in range(columns)]  # type: ignore[no-untyped-call]
        conn._read_packet()  # type: ignore[no-untyped-call]
        _close_statement(conn, statement)
    return [str(field.org_name) for field in fields]


class RowStream:
    """A SELECT's rows in the binary protocol as they arrive: blocks of the bytes after the column definitions, which
    may begin and end inside a row.

    A block is valid until the next one is requested. The caller finds the end of the rows (an EOF or ERR packet) in
    the bytes and requests no more after it. The connection can be used again once all rows were taken; `end` then
    closes the statement, which otherwise stays prepared as long as the connection. Errors come as PyMySQL's own: wrap
    each step in `translate_errors`.
    """

    def __init__(self, conn: Connection, sql: str) -> None:
        """The SELECT runs when the first block is requested."""
        self._conn = conn
        self._statement = 0
        self._blocks = self._run(sql)

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        return next(self._blocks)

    def _run(self, sql: str) -> Iterator[memoryview]:
        conn: Any = self._conn
        conn._execute_command(COMMAND.COM_STMT_PREPARE, sql)
        self._statement, columns = struct.unpack_from("<xIH", conn._read_packet().get_all_data())
        for _ in range(columns + 1):  # the column definitions, and the EOF packet after them
            conn._read_packet()
        conn._execute_command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", self._statement, 0, 1))
        columns = conn._read_packet().read_length_encoded_integer()
        for _ in range(columns + 1):
            conn._read_packet()
        # PyMySQL's buffer may hold the first rows already, read together with the definitions
        buffered = memoryview(conn._rfile.read1(-1))
        yield from (buffered[at : at + _BLOCK_BYTES] for at in range(0, len(buffered), _BLOCK_BYTES))
        wire: socket.socket = conn._sock
        buffer = memoryview(bytearray(_BLOCK_BYTES))
        while size := wire.recv_into(buffer):
            yield buffer[:size]
            gather(wire)
        raise EOFError("the server closed the connection within a result")

    def end(self) -> None:
        """Close the statement; the server sends no answer."""
        _close_statement(self._conn, self._statement)


def _close_statement(conn: Connection, statement: int) -> None:
    conn._execute_command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement))  # type: ignore[attr-defined]


def gather(wire: socket.socket, seconds: float = PAUSE_SECONDS) -> None:
    """Pause if nothing has arrived yet, so that the next receive takes more at once.

    A server sends 16 KiB of a result at a time, and each binlog event by itself. A reader that wakes up for each of
    them does so 6,000 times for a million rows, which takes a third of its CPU time and a tenth of the server's.
    """
    ready = select.poll()
    ready.register(wire, select.POLLIN)
    if not ready.poll(0):
        time.sleep(seconds)
