"""Cutline's sessions on servers whose defaults, `init_connect` or proxies would give them other settings."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import SourceRefused
from cutline.services.sources.mysql import session
from cutline.services.sources.mysql.catalogue import list_tables
from cutline.services.sources.mysql.connection import Source, ask, connect
from tests.conftest import started
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database, MariaDB, MySQL
from tests.support.hammer import Hammer
from tests.support.history import content, differences
from tests.support.mesh import Mesh
from tests.support.modelled_lake import cuts

BOTH = {
    "autocommit": "0",
    "sql_select_limit": "1",
    "sql_big_selects": "0",
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE'",
    "time_zone": "'-07:00'",
    "sql_auto_is_null": "1",
    "lc_messages": "'de_DE'",
    "net_write_timeout": "1",
    "wait_timeout": "2",
    "lock_wait_timeout": "31536000",
}
HOSTILE: dict[str, dict[str, str]] = {
    "mysql": BOTH | {"transaction_isolation": "'SERIALIZABLE'", "max_execution_time": "1"},
    "mariadb": BOTH | {"tx_isolation": "'READ-UNCOMMITTED'", "idle_transaction_timeout": "1"},
}
PLAIN = (
    "SET SESSION autocommit=1, sql_select_limit=18446744073709551615, sql_mode='' /*!80000 , max_execution_time=0 */"
)


@pytest.fixture(params=[MySQL, MariaDB], ids=["mysql", "mariadb"])
def hostile(request: pytest.FixtureRequest, nothing_left_running: None) -> Iterator[Database]:
    server: Database = request.param()
    with started(server):
        yield server


def turn_hostile(server: Database, completion: str) -> None:
    """Give new sessions of the capturing user other settings: by the server's defaults, and by its init_connect."""
    settings = HOSTILE[server.flavour] | {"completion_type": completion}
    server.execute("SET GLOBAL " + ", ".join(f"{name}={value}" for name, value in settings.items()))
    server.execute("SET GLOBAL init_connect='SET autocommit=0; BEGIN'")


def our_transactions(server: Database) -> int:
    with closing(server.connect(init_command=PLAIN)) as conn:
        with conn.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist"
                f" ON id = trx_mysql_thread_id WHERE user = '{CDC_USER}'"
            )
            return int(cursor.fetchone()[0])


@pytest.mark.parametrize("completion", ["1", "2"], ids=["chain", "release"])
def test_a_session_is_cutlines_own_whatever_the_server_gives_new_sessions(hostile: Database, completion: str) -> None:
    hostile.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    turn_hostile(hostile, completion)
    with closing(connect(source_of(hostile))) as conn:
        (row,) = ask(conn, session.question())
        assert row[0] == "1"
        assert our_transactions(hostile) == 0
        assert list_tables(conn) == ["shop.t"]
        ask(conn, "SELECT COUNT(*) FROM shop.t")
        assert our_transactions(hostile) == 0
        hostile.execute("CREATE TABLE shop.later (id INT PRIMARY KEY)")
        assert list_tables(conn) == ["shop.later", "shop.t"]
        ask(conn, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        ask(conn, "COMMIT")
        assert our_transactions(hostile) == 0


def test_a_copy_from_such_a_server_is_whole_and_stops_nobody(hostile: Database, tmp_path: Path) -> None:
    """1. Rows change while tables are read. 2. An ALTER ends meanwhile. 3. A new table is found. 4. All are equal."""
    tables = [f"shop.t{number}" for number in range(12)]
    hostile.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    for table in tables:
        hostile.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v CHAR(9))", f"INSERT INTO {table} VALUES (0, 'a')")
    turn_hostile(hostile, "1")
    last = [100] * 3

    def change(cursor: Any, luck: random.Random, number: int) -> None:
        for table in tables[number::3]:
            last[number] += 1
            cursor.execute(f"INSERT INTO {table} (id, v) VALUES ({last[number]}, ' b')")

    with Mesh(tmp_path) as mesh:
        with Hammer(hostile, change, threads=3, pause_seconds=0.005):
            pipeline = mesh.pipeline("odd", hostile, ["shop.*"])
            pipeline.until(lambda: pipeline.shows(*tables), "the tables")
            hostile.execute("SET lock_wait_timeout=20", f"ALTER TABLE {tables[0]} ADD n INT")
            hostile.execute("CREATE TABLE shop.new (id INT PRIMARY KEY)", "INSERT INTO shop.new VALUES (1)")
            pipeline.until(lambda: pipeline.shows("shop.new", *tables), "the new table")
        pipeline.catches_up("shop.new", *tables)
        assert our_transactions(hostile) == 0
        hostile.restart()  # with its own settings
        *_, cut = cuts(pipeline)
    for table in (*tables, "shop.new"):
        assert not differences(cut.tables[table].content, content(hostile, table, ["id"])), table


class Proxy:
    """A proxy that puts other bytes into what clients send, as some change the sessions of their clients."""

    def __init__(self, server: Database, wanted: bytes, given: bytes) -> None:
        assert len(wanted) == len(given)
        self._server, self._change = server, (wanted, given)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection((self._server.host, self._server.port))
                threading.Thread(target=self._copy, args=(client, server, self._change), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, (b"\0", b"\0")), daemon=True).start()

    @staticmethod
    def _copy(giver: socket.socket, taker: socket.socket, change: tuple[bytes, bytes]) -> None:
        with suppress(OSError), giver, taker:
            while data := giver.recv(1 << 16):
                taker.sendall(data.replace(*change))

    def close(self) -> None:
        self._listening.close()


def source_of(server: Database, port: int | None = None) -> Source:
    return Source(host=server.host, port=port or server.port, user=CDC_USER, password=CDC_PASSWORD)


@pytest.mark.parametrize(
    ("wanted", "given", "setting"),
    [
        (b"autocommit=1", b"autocommit=0", "autocommit = '0' (Cutline set '1')"),
        (b"sql_select_limit=18446744073709551615", b"sql_select_limit=00000000000000000007", "sql_select_limit = '7'"),
        (b"REPEATABLE READ", b"SERIALIZABLE   ", "transaction_isolation = 'SERIALIZABLE'"),
        (b"+00:00", b"+01:00", "time_zone = '+01:00'"),
    ],
)
def test_a_proxy_that_forces_a_setting_is_refused_by_name(
    mysql: MySQL, wanted: bytes, given: bytes, setting: str
) -> None:
    with closing(Proxy(mysql, wanted, given)) as proxy:
        with pytest.raises(SourceRefused) as caught:
            connect(source_of(mysql, proxy.port))
        (sentence,) = map(str, caught.value.faults)
        assert sentence.startswith(f"{CDC_USER}@127.0.0.1:{proxy.port} changes Cutline's session: ")
        assert setting in sentence
        assert "name the server itself in source.host" in sentence
