"""Connections, positions, the catalogue and the preflight checks on real servers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pymysql
import pytest

from cutline.common.config.pipeline import parse
from cutline.common.errors import ConfigError, NextGeneration, NoTable, SourceLost, Unavailable
from cutline.common.positions import FilePosition, Position
from cutline.services.sources.mysql.catalogue import (
    TableAsked,
    TableInfo,
    describe,
    describe_all,
    list_tables,
    table_schema,
)
from cutline.services.sources.mysql.connection import Connection, Source, ask, connect
from cutline.services.sources.mysql.hosts import flushed_high
from cutline.services.sources.mysql.keys import key_range
from cutline.services.sources.mysql.preflight import check_source, server_faults
from cutline.services.sources.mysql.server import (
    Server,
    begin_reading_between,
    begin_snapshot,
    binlogs,
    current_position,
    end_snapshot,
    file_start,
    first_position,
    flushed_position,
    gtid_executed,
    identify,
    position_at,
    verify_position,
    xa_prepared,
    xa_prepares,
)
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.sources import connected

# --- connections and errors -------------------------------------------------------------------------------------------


def test_a_session_reads_only_in_utc_and_prints_what_mysql_prints(source: Database, database: str) -> None:
    source.execute(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, ts TIMESTAMP, b VARBINARY(3))",
        f"INSERT INTO {database}.t VALUES (1, '2020-01-01 00:00:00', 'a')",
    )
    root = Source(host=source.host, port=source.port, user=source.root_user, password=source.root_password)
    with closing(connect(root)) as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {database}.t")
        assert cursor.fetchall() == (("1", "2020-01-01 00:00:00", b"a"),)
        with pytest.raises(pymysql.MySQLError, match="READ ONLY"):
            cursor.execute(f"DELETE FROM {database}.t")


def test_a_refused_password_is_a_fault_of_the_configuration(source: Database) -> None:
    wrong = Source(host=source.host, port=source.port, user=source.user, password="wrong")
    with pytest.raises(ConfigError, match="Access denied") as caught:
        connect(wrong)
    assert "wrong" not in str(caught.value)
    assert "wrong" not in repr(wrong)


def test_a_host_that_does_not_exist_is_a_fault_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"host name in x@nohost\.invalid:3306 is unknown"):
        connect(Source(host="nohost.invalid", user="x"))


def test_a_server_that_is_down_or_goes_away_is_unavailable(source: Database) -> None:
    with pytest.raises(Unavailable, match="is the server up"):
        connect(Source(host="127.0.0.1", port=1, user="x"))
    with connected(source) as (conn, server_info):
        source.execute(f"KILL {conn.thread_id()}")
        with pytest.raises(Unavailable):
            flushed_position(conn, server_info)


def test_what_is_wrong_with_a_table_names_the_table(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    with connected(source) as (conn, server_info):
        schema = table_schema(conn, f"{database}.t")
        source.execute(f"DROP TABLE {database}.t")
        with pytest.raises(NextGeneration) as caught:
            key_range(conn, schema)
        assert caught.value.table == f"{database}.t"
        with pytest.raises(NoTable, match="There is no table"):
            describe(conn, server_info, f"{database}.t")


def test_a_table_that_may_not_be_read_any_more_is_not_taken_for_one_that_is_gone(
    source: Database, fresh_database: Callable[[Database], str]
) -> None:
    """1. A table's SELECT was granted by its name, or its database's; 2. revoked: hidden. 3. Granted; then the table,
    and later its whole database, is dropped: gone, also while a view has its name."""
    for of_database in (False, True):
        name, user = fresh_database(source), f"reader_{uuid.uuid4().hex[:6]}"
        table, on = f"{name}.t", f"{name}.*" if of_database else f"{name}.t"
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"CREATE USER {user} IDENTIFIED BY 'x'")
        source.execute(f"GRANT INSERT, SELECT ON {on} TO {user}")
        with closing(connect(Source(host=source.host, port=source.port, user=user, password="x"))) as conn:
            server_info = identify(conn)
            assert describe(conn, server_info, table).schema.key == ("id",)
            source.execute(f"REVOKE INSERT, SELECT ON {on} FROM {user}")
            with pytest.raises(SourceLost, match=f"{table} may not be read: .* GRANT SELECT") as hidden:
                describe(conn, server_info, table)
            assert not isinstance(hidden.value, NoTable)
            source.execute(f"GRANT SELECT ON {on} TO {user}", f"DROP TABLE {table}")
            with pytest.raises(NoTable):
                describe(conn, server_info, table)
            source.execute(f"CREATE VIEW {table} AS SELECT 1 AS id")
            with pytest.raises(NoTable):
                describe(conn, server_info, table)
            source.execute(f"DROP DATABASE {name}")
            with pytest.raises(NoTable):
                describe(conn, server_info, table)
        source.execute(f"DROP USER {user}")


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_server_keeps_its_identity_over_a_restart_and_shares_it_with_no_other(
    mariadb: MariaDB, mysql: MySQL, mysql_nogtid: MySQL
) -> None:
    seen = []
    for server in (mariadb, mysql, mysql_nogtid):
        with connected(server) as (_, server_info):
            seen.append(server_info)
    assert len({server_info.identity for server_info in seen}) == 3
    assert [(server_info.flavour, server_info.gtid) for server_info in seen] == [
        ("mariadb", True),
        ("mysql", True),
        ("mysql", False),
    ]
    mariadb.restart()
    with connected(mariadb) as (_, server_info):
        assert server_info == seen[0]


def test_positions_of_the_server_can_be_gone_on_from(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    with connected(source) as (conn, server_info):
        first, now, flushed = (
            first_position(conn, server_info),
            current_position(conn, server_info),
            flushed_position(conn, server_info),
        )
        for position in (first, now, position_at(conn, server_info, flushed)):
            verify_position(conn, server_info, position)
            assert position.server == server_info.identity
        assert now.not_before(first)
        assert first.file_position <= file_start(conn, server_info) <= flushed


def purge(server: Database, conn: Connection, server_info: Server) -> None:
    """Purge all binlog files but the last; MariaDB keeps those that its engine may still need for a moment."""
    deadline = time.monotonic() + 60
    while len(binlogs(conn)) > 1:
        server.execute(f"PURGE BINARY LOGS TO '{flushed_position(conn, server_info).file}'")
        assert time.monotonic() < deadline


@pytest.mark.parametrize("make", [MariaDB, MySQL, lambda: MySQL(gtid=False)], ids=["mariadb", "mysql", "mysql-nogtid"])
def test_a_purged_or_reset_binlog_does_not_go_unseen(make: Callable[[], Database]) -> None:
    with make() as server:
        server.execute("CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY)", "INSERT INTO a.t VALUES (1)")
        with connected(server) as (conn, server_info):
            old = current_position(conn, server_info)
            file = flushed_position(conn, server_info).file
            server.execute("INSERT INTO a.t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO a.t VALUES (3)")
            verify_position(conn, server_info, old)
            later = current_position(conn, server_info)
            purge(server, conn, server_info)
            with pytest.raises(SourceLost, match="purged"):
                verify_position(conn, server_info, old)
            verify_position(conn, server_info, later)
            server.execute("RESET BINARY LOGS AND GTIDS" if server_info.mysql else "RESET MASTER")
            with pytest.raises(SourceLost, match=r"reset|purged"):
                verify_position(conn, server_info, later)
            gone = Position(server=server_info.identity, file=file, offset=10_000_000)
            with pytest.raises(SourceLost, match=r"reset|purged"):
                verify_position(conn, server_info, gone)


def test_the_position_of_another_server_is_refused(mariadb: MariaDB, mysql: MySQL, mysql_nogtid: MySQL) -> None:
    with connected(mysql) as (conn, server_info):
        mysql.execute("CREATE DATABASE IF NOT EXISTS x")
        foreign = current_position(conn, server_info)
    with connected(mysql_nogtid) as (conn, server_info), pytest.raises(SourceLost, match="The source changed"):
        verify_position(conn, server_info, Position(server="other", file="binlog.000001", offset=4))
    with (
        MySQL() as other,
        connected(other) as (conn, server_info),
        pytest.raises(SourceLost, match="lacks transactions"),
    ):
        verify_position(conn, server_info, foreign)


def test_a_consistent_snapshot_of_mariadb_sees_nothing_past_its_position(
    mariadb: MariaDB, fresh_database: Callable[[Database], str]
) -> None:
    name = fresh_database(mariadb)
    mariadb.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)", f"INSERT INTO {name}.t VALUES (1)")
    with connected(mariadb) as (conn, server_info):
        at = begin_snapshot(conn)
        mariadb.execute(f"INSERT INTO {name}.t VALUES (2)")
        assert flushed_position(conn, server_info) > at
        schema = table_schema(conn, f"{name}.t")
        assert key_range(conn, schema) == (1, 1)
        end_snapshot(conn)
        assert key_range(conn, schema) == (1, 2)


def test_a_snapshot_of_mysql_is_begun_between_its_watermarks_and_sees_nothing_past_them(
    mysql: MySQL, fresh_database: Callable[[Database], str]
) -> None:
    name = fresh_database(mysql)
    mysql.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)", f"INSERT INTO {name}.t VALUES (1)")
    with connected(mysql) as (conn, server_info), connected(mysql) as (other, _):
        schema = table_schema(conn, f"{name}.t")
        taken = begin_reading_between(conn, server_info)
        assert taken == (gtid_executed(other), flushed_position(other, server_info))
        mysql.execute(f"INSERT INTO {name}.t VALUES (2)")
        assert key_range(conn, schema) == (1, 1)
        end_snapshot(conn)
        assert key_range(conn, schema) == (1, 2)


def test_a_prepared_xa_transaction_is_seen(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    with connected(source) as (conn, _):
        before = xa_prepares(conn)
        assert xa_prepared(conn) == 0
        source.execute("XA START 'a'", f"INSERT INTO {database}.t VALUES (1)", "XA END 'a'", "XA PREPARE 'a'")
        assert xa_prepared(conn) == 1
        assert xa_prepares(conn) == before + 1
        source.execute("XA COMMIT 'a'")
        assert xa_prepared(conn) == 0


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_is_described_with_its_columns_identity_and_size(source: Database, database: str) -> None:
    source.execute(
        f"""CREATE TABLE {database}.`a.b``c` (v VARCHAR(5) CHARACTER SET latin1, id INT UNSIGNED NOT NULL,
        e ENUM('x','Y''z') NOT NULL, g INT AS (id + 1) STORED, d DATETIME DEFAULT CURRENT_TIMESTAMP,
        PRIMARY KEY (e, id), KEY (id))""",
        f"INSERT INTO {database}.`a.b``c` (v, id, e) VALUES ('a', 1, 'x'), ('b', 2, 'x')",
        f"CREATE VIEW {database}.view_of AS SELECT 1",
    )
    with connected(source) as (conn, server_info):
        assert [name for name in list_tables(conn) if name.startswith(f"{database}.")] == [f"{database}.`a.b``c`"]
        info = describe(conn, server_info, f"{database}.`a.b``c`")
    assert info.faults == ()
    assert info.engine == "InnoDB"
    assert info.schema.key == ("e", "id")
    assert [(c.name, c.field_id, c.nullable, c.charset, c.generated) for c in info.schema.columns] == [
        ("v", 1, True, "latin1", False),
        ("id", 2, False, None, False),
        ("e", 3, False, info.schema.column("e").charset, False),
        ("g", 4, True, None, True),
        ("d", 5, True, None, False),
    ]
    assert info.schema.column("e").mysql_type == "enum('x','Y''z')"
    assert info.schema.last_field_id == 5
    assert not info.integer_key


def test_the_identity_is_the_primary_key_or_else_the_smallest_unique_key_without_nulls(
    source: Database, database: str
) -> None:
    source.execute(
        f"CREATE TABLE {database}.a (x INT NOT NULL UNIQUE, y INT, PRIMARY KEY (y))",
        f"CREATE TABLE {database}.b (x INT NOT NULL, y INT NOT NULL, z INT UNIQUE, UNIQUE xy (x, y), UNIQUE zz (y))",
        f"CREATE TABLE {database}.c (x VARCHAR(9) NOT NULL, y INT UNIQUE, UNIQUE (x(3)))",
        f"CREATE TABLE {database}.d (x INT)",
    )
    with connected(source) as (conn, server_info):
        infos = [describe(conn, server_info, f"{database}.{name}") for name in "abcd"]
        appended = [describe(conn, server_info, f"{database}.{name}", keyless=True).faults for name in "abcd"]
        unproven = describe(conn, replace(server_info, gtid=False), f"{database}.d", keyless=True).faults
    assert [info.schema.key for info in infos] == [("y",), ("y",), (), ()]
    assert [info.integer_key for info in infos] == [True, True, False, False]
    assert infos[0].faults == infos[1].faults == ()
    assert "prefix" in infos[2].faults[0].sentence
    assert "add a primary key" in infos[3].faults[0].remedy
    assert appended == [(), (), (), ()]
    assert ["gtid_mode=ON" in fault.remedy for fault in unproven] == [True] * server_info.mysql


def test_a_primary_key_that_mysql_made_and_hides_is_the_identity(
    mysql: MySQL, fresh_database: Callable[[Database], str]
) -> None:
    table, shows = f"{fresh_database(mysql)}.a", "SET GLOBAL show_gipk_in_create_table_and_information_schema"
    mysql.execute("SET SESSION sql_generate_invisible_primary_key = ON", f"CREATE TABLE {table} (v INT)")
    mysql.execute(f"{shows} = OFF")
    try:
        with connected(mysql) as (conn, server_info):
            info = describe(conn, server_info, table)
    finally:
        mysql.execute(f"{shows} = ON")
    assert (info.schema.key, info.faults) == (("my_row_id",), ())


def test_what_can_not_be_captured_is_named_with_its_remedy(source: Database, database: str) -> None:
    source.execute(
        f"CREATE TABLE {database}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.child (id INT PRIMARY KEY, p INT,"
        " FOREIGN KEY (p) REFERENCES parent (id) ON DELETE SET NULL)",
        f"CREATE TABLE {database}.plain (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
        f"CREATE TABLE {database}.old (id INT PRIMARY KEY) ENGINE=MyISAM",
        database=database,
    )
    with connected(source) as (conn, server_info):
        faults = {
            name: describe(conn, server_info, f"{database}.{name}").faults
            for name in ("child", "plain", "old", "parent")
        }
    assert faults["plain"] == faults["parent"] == ()
    assert "ENGINE=InnoDB" in faults["old"][0].remedy
    if server_info.mysql:  # 9.6 and newer log the child's rows
        assert faults["child"] == ()
    else:
        assert "ON DELETE SET NULL" in faults["child"][0].sentence


def test_a_mysql_that_cascades_inside_innodb_has_its_children_refused() -> None:
    with MySQL(innodb_native_foreign_keys=True) as server:
        server.execute(
            "CREATE DATABASE a",
            "CREATE TABLE a.parent (id INT PRIMARY KEY)",
            "CREATE TABLE a.child (id INT PRIMARY KEY, p INT,"
            " FOREIGN KEY (p) REFERENCES a.parent (id) ON UPDATE CASCADE)",
        )
        with connected(server) as (conn, server_info):
            assert "ON UPDATE CASCADE" in describe(conn, server_info, "a.child").faults[0].sentence


# --- preflight --------------------------------------------------------------------------------------------------------


def pipeline(
    server: Database, tables: str, user: str | None = None, start: str = "initial", chunks: str = "replay"
) -> str:
    return f"""
name: shop
source: {{host: 127.0.0.1, port: {server.port}, user: {user or server.user}, password_env: SHOP_PASSWORD}}
tables: ["{tables}"]
start: {start}
snapshot: {{chunks: {chunks}}}
sink: {{type: iceberg, warehouse: /nowhere}}
"""


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch, source: Database) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", source.password)


@pytest.mark.usefixtures("password")
def test_a_sound_source_has_no_faults(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    for start in ("initial", "latest", "earliest"):
        check_source(parse(pipeline(source, f"{database}.*", start=start)))
    high = flushed_high(parse(pipeline(source, f"{database}.*")))
    with connected(source) as (conn, server_info):
        assert high.server == server_info.identity
        assert high.file_position <= flushed_position(conn, server_info)


@pytest.mark.usefixtures("password")
def test_a_list_of_tables_that_matches_nothing_is_a_fault(source: Database) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.\* matches none of the tables"):
        check_source(parse(pipeline(source, "nowhere.*")))


def test_exact_chunks_on_mysql_without_gtids_are_a_fault(
    mysql_nogtid: MySQL, fresh_database: Callable[[Database], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", mysql_nogtid.password)
    name = fresh_database(mysql_nogtid)
    mysql_nogtid.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    with pytest.raises(ConfigError, match="exact needs GTIDs"):
        check_source(parse(pipeline(mysql_nogtid, f"{name}.*", chunks="exact")))


@pytest.mark.usefixtures("password")
def test_all_faults_of_settings_and_grants_come_in_one_list_with_their_remedies(
    source: Database, database: str
) -> None:
    source.execute(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.secret (id INT PRIMARY KEY)",
        f"CREATE USER poor_{database}@'%' IDENTIFIED BY '{source.password}'",
        f"GRANT SELECT ON {database}.t TO poor_{database}@'%'",
        f"GRANT INSERT ON {database}.secret TO poor_{database}@'%'",
        "SET GLOBAL binlog_format = 'MIXED'",
        "SET GLOBAL binlog_row_image = 'MINIMAL'",
        "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
    )
    try:
        with pytest.raises(ConfigError) as caught:
            check_source(parse(pipeline(source, f"{database}.*", user=f"poor_{database}")))
    finally:
        source.execute(
            f"DROP USER poor_{database}@'%'",
            "SET GLOBAL binlog_format = 'ROW'",
            "SET GLOBAL binlog_row_image = 'FULL'",
            "SET GLOBAL binlog_row_metadata = 'FULL'",
        )
    remedies = [
        "SET GLOBAL binlog_format = 'ROW'",
        "SET GLOBAL binlog_row_image = 'FULL'",
        "SET GLOBAL binlog_row_metadata = 'FULL'",
        f"GRANT {'REPLICATION CLIENT' if source.flavour == 'mysql' else 'BINLOG MONITOR'} ON *.* TO",
        "GRANT REPLICATION SLAVE ON *.* TO",
        f"GRANT SELECT ON `{database}`.* TO",
    ]
    assert len(caught.value.faults) == len(remedies)
    for remedy, fault in zip(remedies, caught.value.faults, strict=True):
        assert remedy in fault.remedy


@pytest.mark.parametrize("make", [MariaDB, MySQL])
def test_a_server_without_binlog_or_with_a_filtered_one_is_a_fault(make: type[Database]) -> None:
    # MySQL writes a binlog unless it is told not to, MariaDB only if told to
    options = {"log_bin": None} if make is MariaDB else {"log_bin": None, "disable_log_bin": True}
    with make(**options) as server, connected(server) as (conn, _):  # type: ignore[arg-type]
        assert [fault for fault in server_faults(conn) if "log_bin is off" in fault.sentence]
    with make(binlog_ignore_db="shop") as server, connected(server) as (conn, _):
        assert ["binlog-ignore-db=shop" in fault.sentence for fault in server_faults(conn)] == [True]


def test_a_position_between_no_two_events_is_refused_by_mariadb(mariadb: MariaDB) -> None:
    with connected(mariadb) as (conn, server_info), pytest.raises(SourceLost, match="no event that begins or ends"):
        position_at(conn, server_info, FilePosition(flushed_position(conn, server_info).file, 10**9))


def test_a_column_that_the_server_takes_for_another_is_a_fault(source: Database, database: str) -> None:
    """MariaDB 10.11 does so where there are over 32; a SELECT of the micro sign's column would copy that of mu. 11.8
    takes them for one name everywhere, so no table has both."""
    micro, mu = "\u00b5", "\u03bc"
    few = f"CREATE TABLE few (id INT PRIMARY KEY, {micro} INT, {mu} INT)"
    if source.flavour == "mariadb" and int(source.version.split(".")[0]) >= 11:
        with pytest.raises(pymysql.OperationalError, match="Duplicate column name"):
            source.execute(few, database=database)
        return
    source.execute(
        few,
        f"CREATE TABLE many (id INT PRIMARY KEY, {micro} INT, {mu} INT, {', '.join(f'f{at} INT' for at in range(32))})",
        database=database,
    )
    with closing(source.connect_as_cdc()) as conn:
        server_info = identify(conn)
        first, second = (describe(conn, server_info, f"{database}.{name}").faults for name in ("few", "many"))
    assert first == ()
    assert ["rename one of them" in fault.remedy for fault in second] == ([] if server_info.mysql else [True])


def test_tables_that_differ_in_case_alone_have_columns_of_their_own(source: Database, database: str) -> None:
    """information_schema compares names without case, so that a join of it gave each column of MariaDB's twice."""
    source.execute("CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE T (b INT PRIMARY KEY, c INT)", database=database)
    with connected(source) as (conn, _):
        named = {name: table_schema(conn, f"{database}.{name}") for name in ("t", "T")}
    assert {name: [column.name for column in schema.columns] for name, schema in named.items()} == {
        "t": ["a"],
        "T": ["b", "c"],
    }


def test_many_tables_are_described_together_in_a_few_questions_as_each_by_itself(
    source: Database, database: str, fresh_database: Callable[[Database], str]
) -> None:
    """1. Hundreds of tables of two databases, and some that are not there, are views, differ in case or have faults.
    2. Described together each is what it is by itself; MariaDB is asked for each table's text too, for its cascades."""
    other, many = fresh_database(source), 150
    for name in (database, other):
        source.execute(*(f"CREATE TABLE t{n} (id INT PRIMARY KEY, v{n} TEXT)" for n in range(many)), database=name)
    source.execute(
        "CREATE TABLE T1 (other BIGINT, a INT, b INT, PRIMARY KEY (a, b))",
        "CREATE TABLE keyless (a INT)",
        "CREATE VIEW seen AS SELECT 1",
        database=database,
    )
    names = [f"{database}.{name}" for name in ("T1", "keyless", "seen", "absent")]
    names += [f"{schema}.t{n}" for schema in (database, other) for n in range(many)]
    with connected(source) as (conn, server_info):
        few = {name: described(conn, server_info, name) for name in names[:40]}
        begun = int(ask(conn, "SHOW SESSION STATUS LIKE 'Questions'")[0][1])
        found = describe_all(conn, server_info, [TableAsked(table_id=name) for name in names])
        questions = int(ask(conn, "SHOW SESSION STATUS LIKE 'Questions'")[0][1]) - begun
    assert list(found) == names
    assert {name: str(found[name]) for name in few} == {name: str(alone) for name, alone in few.items()}
    kinds = [type(found[name]) for name in names]
    assert kinds[2:4] == [NoTable, NoTable]
    assert set(kinds[4:]) == {TableInfo}
    assert questions < 20 + (0 if source.flavour == "mysql" else len(names))


def described(conn: Connection, server_info: Server, name: str) -> TableInfo | SourceLost:
    try:
        return describe(conn, server_info, name)
    except SourceLost as error:
        return error
