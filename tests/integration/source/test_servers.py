"""The servers that other tests stand on: they answer, have what Cutline asks of a source, keep data, and go away."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pymysql
import pytest

from tests.conftest import started
from tests.support.databases import CDC_USER, Database, MariaDB, MySQL
from tests.support.redis_servers import Redis


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_source_logs_full_rows_with_full_metadata(source: Database) -> None:
    variables = dict(source.execute("SHOW GLOBAL VARIABLES"))
    assert variables["log_bin"] == "ON"
    assert variables["binlog_format"] == "ROW"
    assert variables["binlog_row_image"] == "FULL"
    assert variables["binlog_row_metadata"] == "FULL"
    assert int(variables["server_id"]) > 0
    of_debian_12_and_13 = ("10.11.", "11.8.")
    assert source.version.startswith(of_debian_12_and_13 if source.flavour == "mariadb" else "9.")


def test_mysql_has_gtids_unless_asked_not_to(mysql: MySQL, mysql_nogtid: MySQL) -> None:
    assert mysql.scalar("SELECT @@gtid_mode") == "ON"
    assert mysql_nogtid.scalar("SELECT @@gtid_mode") == "OFF"
    assert mysql.scalar("SELECT @@server_uuid") != mysql_nogtid.scalar("SELECT @@server_uuid")


def test_the_capturing_user_can_read_all_it_needs_and_write_nothing(source: Database, database: str) -> None:
    source.execute("CREATE TABLE parent (id INT PRIMARY KEY)", database=database)
    source.execute("CREATE TABLE child (id INT PRIMARY KEY, p INT REFERENCES parent (id))", database=database)
    with contextlib.closing(source.connect_as_cdc(database=database)) as connection, connection.cursor() as cursor:
        status = "SHOW MASTER STATUS" if source.flavour == "mariadb" else "SHOW BINARY LOG STATUS"
        for statement in (status, "SHOW BINARY LOGS", "XA RECOVER", "START TRANSACTION WITH CONSISTENT SNAPSHOT"):
            cursor.execute(statement)
        for refused in ("INSERT INTO parent VALUES (1)", "CREATE TABLE other (id INT)", "FLUSH TABLES"):
            with pytest.raises(pymysql.err.MySQLError, match="denied"):
                cursor.execute(refused)


@pytest.mark.parametrize("make", [MariaDB, MySQL, lambda: MySQL(gtid=False)], ids=["mariadb", "mysql", "mysql-nogtid"])
def test_restart_and_kill_keep_committed_rows_and_close_leaves_no_pid(make: Callable[[], Database]) -> None:
    server = make()
    with started(server):
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)")
        first = server.pid
        assert first is not None
        server.restart()
        second = server.pid
        assert second not in (None, first)
        server.execute("INSERT INTO d.t VALUES (2)")
        server.kill()
        server.start()
        assert server.execute("SELECT id FROM d.t ORDER BY id") == [(1,), (2,)]
        third, folder = server.pid, server.folder
        assert third is not None
        assert folder is not None
    assert not any(psutil.pid_exists(pid) for pid in (first, second, third) if pid)
    assert not folder.exists()


def test_options_win_over_defaults_and_none_leaves_one_out() -> None:
    server = MariaDB(binlog_row_image="MINIMAL", binlog_row_metadata=None, strict=True)
    with started(server):
        assert server.scalar("SELECT @@binlog_row_image") == "MINIMAL"
        assert server.scalar("SELECT @@binlog_row_metadata") == "NO_LOG"
        assert server.execute("SELECT @@sync_binlog, @@innodb_flush_log_at_trx_commit") == [(1, 1)]
        assert server.scalar("SELECT COUNT(*) FROM mysql.user WHERE user = ''") == 0
        assert server.scalar(f"SELECT COUNT(*) FROM mysql.user WHERE user = '{CDC_USER}'") == 1


def test_redis_keeps_nothing_over_a_restart() -> None:
    server = Redis(maxmemory="64mb")
    with started(server):
        with server.client() as client:
            client.set("a", "1")
            assert client.get("a") == b"1"
        server.restart()
        with server.client() as client:
            assert client.keys() == []
        pid = server.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)


def test_a_server_ends_with_the_process_that_owns_it() -> None:
    """1. another Python starts a Redis; 2. it is killed; 3. its Redis and the folder are gone soon after."""
    code = (
        "import sys, time; from tests.support.redis_servers import Redis; s = Redis(); s.start();"
        "print(s.pid, s.folder, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        owner.kill()
    assert gone_within(int(pid), 10)
    assert folder.startswith("/")
