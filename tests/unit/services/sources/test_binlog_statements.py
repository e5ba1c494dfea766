"""The readers of rare events: GTIDs, statements, XA, compression, changes of columns, the dump's commands."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.errors import ServerIdTaken, SourceLost
from cutline.common.positions import High, Low, Position
from cutline.common.schema import Column, SchemaChanges, TableSchema
from cutline.services.sources.contract import GenerationEnded, Route
from cutline.services.sources.mysql.binlog import scanner
from cutline.services.sources.mysql.binlog.dump import encoded_gtids
from cutline.services.sources.mysql.binlog.event_bodies import (
    _inflated,
    _variable,
    inflated_rows,
    statement,
    tagged_gtid,
    xid_in,
    xid_of,
)
from cutline.services.sources.mysql.binlog.event_types import (
    QUERY,
    WRITE_ROWS_COMPRESSED_V1,
)
from cutline.services.sources.mysql.binlog.progress import Progress
from cutline.services.sources.mysql.binlog.replay import Replay
from cutline.services.sources.mysql.binlog.routes import Routes
from cutline.services.sources.mysql.binlog.statements import Statements
from cutline.services.sources.mysql.binlog.xa import Prepared
from cutline.services.sources.mysql.decode.charsets import charset_of
from cutline.services.sources.mysql.server import Server
from tests.support.binlog_log import PREFIX, UUID, Log, dump_of, feed, scanning


def test_numbers_of_the_servers_serialization() -> None:
    for value in (0, 1, 127, 128, 300, 1 << 20, 1 << 40, (1 << 55) - 1):
        size = next(n for n in range(1, 9) if value < 1 << (7 * n))
        data = ((value << size) | ((1 << (size - 1)) - 1)).to_bytes(size, "little")
        assert _variable(data, 0) == (value, size)
    assert _variable(b"\xff" + (1 << 60).to_bytes(8, "little"), 0) == (1 << 60, 9)
    with pytest.raises(ValueError, match="cut short"):
        _variable(b"\x03", 0)


def test_a_tagged_gtid_is_read() -> None:
    def number(value: int) -> bytes:
        size = next(n for n in range(1, 10) if value < 1 << (7 * n))
        return ((value << size) | ((1 << (size - 1)) - 1)).to_bytes(size, "little")

    fields = number(0) + number(1)
    fields += number(1) + b"".join(number(byte) for byte in b"\xff" * 16)
    fields += number(2) + number(1234 << 1)
    fields += number(3) + number(3) + b"red"
    fields += number(6) + number(1_700_000_000_000_000)
    body = number(1) + number(len(fields) + 3) + number(0) + fields
    assert tagged_gtid(body) == ("ffffffff-ffff-ffff-ffff-ffffffffffff:red", 1234, 1_700_000_000_000_000)


def test_a_gtid_set_is_sent_half_open() -> None:
    data = encoded_gtids(f"{PREFIX}:1-3:5")
    assert data == struct.pack("<Q", 1) + UUID + struct.pack("<QQQQQ", 2, 1, 4, 5, 6)
    assert encoded_gtids("") == struct.pack("<Q", 0)
    tagged = encoded_gtids(f"{PREFIX}:1-3:red:4")
    assert tagged[7] == tagged[0] == 1
    assert int.from_bytes(tagged[1:7], "little") == 2


def test_statements_are_read_in_the_character_set_and_sql_mode_they_were_sent_in() -> None:
    def body(variables: bytes, text: bytes) -> bytes:
        return struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0" + text

    flags = b"\0" + bytes(4) + b"\1" + struct.pack("<Q", 1 << 20) + b"\6\3std"
    latin = flags + b"\4" + struct.pack("<HHH", 8, 8, 8)
    read = ("shop", "DROP TABLE `caf\u00e9`", 1 << 20)
    assert statement(QUERY, body(latin, "DROP TABLE `caf\u00e9`".encode("latin-1"))) == read
    assert statement(QUERY, body(flags, "DROP TABLE `caf\u00e9`".encode())) == read
    for collation in range(1, 350):  # of every character set: binary (63) is that of many clients
        sent = flags + b"\4" + struct.pack("<HHH", collation, 8, 8)
        if charset_of(collation) not in ("ucs2", "utf16", "utf16le", "utf32"):  # which no client can have
            assert statement(QUERY, body(sent, b"DROP TABLE `t`")) == ("shop", "DROP TABLE `t`", 1 << 20)
        if charset_of(collation) in ("binary", "utf8mb4", None):
            assert statement(QUERY, body(sent, "DROP TABLE `caf\u00e9`".encode())) == read


@pytest.mark.parametrize(
    ("sql_mode", "sent", "meant"),
    [
        (0, "TRUNCATE `t`", "TRUNCATE `t`"),
        (0, "/* it's */ TRUNCATE ```caf``@\\[`", "/* it's */ TRUNCATE `écaféÉÖÄ`"),
        (
            0,
            r"ADD c{ CHAR DEFAULT 'a\\b\'\n{`', ADD `d|`",
            "ADD c{ CHAR DEFAULT 'aÖb\\'\\näé', ADD `dö`",
        ),
        (1 << 20, r"ADD c CHAR DEFAULT 'a\', ADD `d\`", "ADD c CHAR DEFAULT 'aÖ', ADD `dÖ`"),
        (1 << 2, r'ADD "c\`" CHAR', 'ADD "cÖé" CHAR'),
    ],
)
def test_a_statement_in_swe7_is_cut_as_ascii_and_swedish_in_quotes(sql_mode: int, sent: str, meant: str) -> None:
    variables = b"\1" + struct.pack("<Q", sql_mode) + b"\4" + struct.pack("<HHH", 10, 10, 10)
    body = struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0" + sent.encode()
    assert statement(QUERY, body) == ("shop", meant, sql_mode)


def test_names_of_xa_transactions_are_the_same_in_statements_and_events() -> None:
    assert xid_in("XA COMMIT X'6f6e65',X'62',7") == (b"one", b"b", 7)
    assert xid_of(b"\0" + struct.pack("<iii", 7, 3, 1) + b"oneb") == (b"one", b"b", 7)
    for number in (1 << 31, (1 << 32) - 1, (1 << 32) + 7):  # the event has 4 bytes of it
        event = b"\0" + struct.pack("<Iii", number & 0xFFFFFFFF, 3, 1) + b"oneb"
        assert xid_in(f"XA COMMIT X'6f6e65',X'62',{number}") == xid_of(event)
    with pytest.raises(ValueError, match="cut short"):
        xid_of(b"\0" + struct.pack("<iii", 7, 30, 1) + b"oneb")


def test_mariadbs_compression_is_undone_within_bounds() -> None:
    data = b"a" * 1000
    packed = b"\x82" + len(data).to_bytes(2, "big") + zlib.compress(data)
    assert _inflated(memoryview(packed), b"head", 1000) == b"head" + data
    head = struct.pack("<IH", 7, 0) + b"\1\0" + b"\1\xff"
    assert inflated_rows(WRITE_ROWS_COMPRESSED_V1, head + packed) == head + data
    for broken in (b"", b"\x02ab", packed[:-5], b"\x82\0\5" + packed[3:]):
        with pytest.raises(ValueError, match="compressed event"):
            _inflated(memoryview(broken), b"", 1000)
    with pytest.raises(ValueError, match="1000 bytes, over the limit of 999"):
        _inflated(memoryview(packed), b"", 999)


# --- DDL --------------------------------------------------------------------------------------------------------------
TABLE = TableSchema(
    table_id="d.t",
    columns=(
        Column(name="id", field_id=1, mysql_type="int", nullable=False),
        Column(name="v", field_id=2, mysql_type="varchar(9)", nullable=True, charset="utf8mb4"),
    ),
    key=("id",),
    last_field_id=2,
)
KINDS = {
    "ADD n INT": ("follows", "follows"),
    "ADD n INT DEFAULT 5": ("follows", "restarts"),
    "DROP v": ("follows", "restarts"),
    "RENAME COLUMN v TO w": ("follows", "restarts"),
    "MODIFY v VARCHAR(90)": ("follows", "restarts"),
    "MODIFY v VARCHAR(9) FIRST": ("follows", "restarts"),
    "MODIFY v VARCHAR(3)": ("restarts", "restarts"),
    "ADD n INT DEFAULT (id)": ("restarts", "restarts"),
    "DROP PRIMARY KEY": ("restarts", "restarts"),
    "RENAME TO other": ("restarts", "restarts"),
}


def after_ddl(statement: str, policy: SchemaChanges, *, live: bool, server: str = "s") -> tuple[str, TableSchema]:
    """What a cursor makes of a statement at 500, of a table whose chunks end at 1000: with the schema after it."""
    low, high = Low(server=server, file="b.000001", offset=4), High(server="s", file="b.000001", offset=1000)
    route = Route(table_id="d.t", generation=1, schema=TABLE, low=low, high=high, live=live)
    kind = Server(flavour="mysql", version=(9, 7), identity=server, gtid=False)
    progress = Progress(kind, Position(server=server, file="b.000001", offset=500))
    progress.scanner.start_at("b.000001", 500)
    progress.scanner.start_anonymous(500, 0)
    routes = Routes(progress, lambda: pytest.fail("it connects"))
    routes.begin({"d.t": route})
    replay = Replay(progress.scanner, routes, Prepared(lambda: pytest.fail("it connects"), server_id=1))
    Statements(kind, progress.scanner, routes, replay, policy=policy).change_tables("d", statement, 0)
    for fault in routes.faults:
        return "restarts" if isinstance(fault, GenerationEnded) else "stops", TABLE
    if routes.schemas:
        return "follows", routes.schemas[0].new
    return "truncates" if routes._decoders else "nothing", TABLE


@pytest.mark.parametrize("policy", ["evolve", "exact", "ignore", "halt"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_policy_follows_stops_or_restarts_a_table_at_each_kind_of_change(kind: str, policy: SchemaChanges) -> None:
    live, early = KINDS[kind]
    halts = policy == "halt"
    assert after_ddl(f"ALTER TABLE t {kind}", policy, live=True)[0] == ("stops" if halts else live)
    assert after_ddl(f"ALTER TABLE t {kind}", policy, live=False)[0] == ("restarts" if halts else early)


@pytest.mark.parametrize("policy", ["evolve", "exact", "ignore", "halt"])
def test_what_no_reader_sees_is_followed_in_each_policy(policy: SchemaChanges) -> None:
    for live in (True, False):
        assert after_ddl("ALTER TABLE t ADD INDEX (v)", policy, live=live)[0] == "nothing"
        done, schema = after_ddl("ALTER TABLE t CHARACTER SET latin1", policy, live=live)
        assert (done, schema.charset, schema.shown) == ("follows", "latin1", None)
    assert after_ddl("TRUNCATE t", policy, live=True)[0] == "truncates"
    assert after_ddl("TRUNCATE t", policy, live=False)[0] == "restarts"


def test_the_lakes_columns_are_the_policys() -> None:
    shown = {
        policy: [column.name for column in after_ddl("ALTER TABLE t DROP v, ADD n INT", policy, live=True)[1].lake]
        for policy in ("evolve", "exact", "ignore")
    }
    assert shown == {"evolve": ["id", "v", "n"], "exact": ["id", "n"], "ignore": ["id", "v"]}


def test_a_live_table_is_followed_after_a_fail_over_and_no_other() -> None:
    assert after_ddl("ALTER TABLE t DROP v", "evolve", live=True, server="another")[0] == "follows"
    assert after_ddl("ALTER TABLE t DROP v", "evolve", live=False, server="another")[0] == "restarts"


# --- the dump's command, and the server's answers ---------------------------------------------------------------------


class Commands:
    """A connection that takes commands and agrees to each."""

    def __init__(self) -> None:
        self._sock = socket.socketpair()[0]
        self.sent: list[tuple[int, bytes]] = []

    def _execute_command(self, command: int, body: bytes) -> None:
        self.sent.append((command, body))

    def _read_ok_packet(self) -> None:
        pass

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        yield SimpleNamespace(execute=lambda _: None)


@pytest.mark.parametrize(("states_ends", "flags"), [(True, 0), (False, 2)])
@pytest.mark.parametrize("until_end", [0, 1])
def test_a_dump_has_the_statements_text_where_sizes_place_the_events(
    states_ends: bool, flags: int, until_end: int
) -> None:
    connection: Any = Commands()
    server = Server(flavour="mariadb", version=(11, 8), identity="s", gtid=True, states_ends=states_ends)
    dump_of(connection, server).request(scanning(), flags=until_end)
    (*_, (command, body)) = connection.sent
    assert (command, body) == (0x12, struct.pack("<IHI", 4, flags | until_end, 7) + b"binlog.000001")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1236, "A slave with the same server_uuid/server_id as this slave has connected to the master"),
        (4052, "A slave with the same server_uuid/server_id as this slave has connected to the master"),
        (4052, "A slave with the same server_id is already connected"),
    ],
)
def test_a_dump_that_ends_for_another_of_its_server_id_is_no_fault_of_the_source(code: int, text: str) -> None:
    error = answer(code, f"{text}; the first event 'binlog.000001' at 4, the last event read from 'x' at 9")
    assert isinstance(error, ServerIdTaken)
    assert "server id 7" in str(error)


def test_a_dump_that_the_server_can_not_go_on_with_is_told_alike_wherever_it_began() -> None:
    damage = "bogus data in log event; the first event 'binlog.000001' at {}, the last event read from 'x' at 9"
    first, second = (answer(1236, damage.format(at)) for at in (4, 1299))
    assert isinstance(first, SourceLost)
    assert str(first) == str(second)
    assert "the last event read from 'x' at 9" in str(first)


def answer(code: int, text: str) -> Exception:
    """What a dump with server id 7 makes of an error of the server's."""
    log, it = Log(), scanning()
    log.packet(b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode())
    assert feed(it, log.bytes) == [(scanner.SERVER_MESSAGE, 0)]
    connection: Any = Commands()
    return dump_of(connection, Server(flavour="mysql", version=(9, 7), identity="s", gtid=True)).failure(it)
