"""The mesh end to end, without Spark: kills, restarts, rescaling, DDL, what can't be copied, a large transaction.

What a publication would show is compared, at each checkpoint that could be published, with the source's own history.
"""

from __future__ import annotations

import datetime as dt
import random
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from cutline.common.store.records import CheckpointEntry
from cutline.services.sources.mysql.server import flushed_position, identify
from tests.conftest import started
from tests.support.bank import Bank, Fresh
from tests.support.databases import CDC_USER, Database, MariaDB, MySQL
from tests.support.history import History, content, differences
from tests.support.mesh import Mesh, Pipeline, connection, place
from tests.support.modelled_lake import Cut, cuts

# --- a constant sum -----------------------------------------------------------------------------------------------


def test_the_sum_over_two_tables_is_constant_while_services_are_killed(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Amounts move between two tables, which are read in small chunks.
    2. A reader gets SIGKILL in the snapshot, and is started again; both tables come to be shown.
    3. A writer gets SIGKILL; 4. the leading enumerator gets it, and the other one takes over.
    5. A third reader joins; 6. a writer leaves for good.
    7. The movers stop, the pipeline catches up.
    Each time the next epoch completes checkpoints. Every publishable one has the sum, and the source's content.
    """
    bank = Bank(source, fresh_database)
    with Mesh(tmp_path, enumerators=2) as mesh, bank.moving() as movers:
        pipeline = mesh.pipeline("bank", source, [f"{bank.schema}.*"], chunk_rows=10)
        pipeline.until(lambda: pipeline.checkpoint(), "a first checkpoint")
        luck = random.Random(3)
        mesh.kill(luck.choice(mesh.running("reader")))
        mesh.start("reader")
        pipeline.next_epoch(1)
        pipeline.until(lambda: pipeline.shows(*bank.names), "both tables to be shown")
        mesh.kill(luck.choice(mesh.running("writer")))
        mesh.start("writer")
        pipeline.next_epoch(2)
        mesh.kill(mesh.leader(pipeline))
        pipeline.next_epoch(3)
        mesh.start("reader")
        pipeline.next_epoch(4)
        assert len(pipeline.epochs()[4].members.by_role["reader"]) == 3
        mesh.leave(mesh.running("writer")[0])
        pipeline.next_epoch(5, seconds=90)
        assert len(pipeline.epochs()[5].members.by_role["writer"]) == 1
        pipeline.goes_on(2)
        movers.stop()
        end = pipeline.catches_up(*bank.names)
    bank.agrees(pipeline, end)


def test_services_that_are_asked_to_end_are_done_without_at_once_and_nothing_is_done_twice(
    mysql: MySQL, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Amounts move between two tables; all services of the mesh and a control service are there.
    2. A reader gets SIGTERM, and a writer: each ends with 0, after an epoch without it that builds on the checkpoint
    just before it. 3. The leading enumerator gets it: the other one leads. 4. The control service gets it.
    Nobody's presence outlives its process.
    """
    bank = Bank(mysql, fresh_database)
    with Mesh(tmp_path, enumerators=2, environment={"CUTLINE_API_PORT": "0"}) as mesh, bank.moving() as movers:
        control = mesh.start("control")
        pipeline = mesh.pipeline("bank", mysql, [f"{bank.schema}.*"], chunk_rows=10)
        pipeline.until(lambda: pipeline.shows(*bank.names), "both tables to be shown")
        pipeline.until(lambda: control.popen.pid in mesh.present(), "the control service")
        for role in ("reader", "writer"):
            epochs, gone = len(pipeline.epochs()), mesh.running(role)[0]
            assert mesh.leave(gone) == 0
            assert gone.popen.pid not in mesh.present()
            epoch = pipeline.epochs()[epochs]
            assert epoch.cause.sentence == "services of this epoch are leaving", pipeline.progress()
            assert epoch.base == epoch.slot - 1
            assert len(epoch.members.by_role[role]) == 1
            pipeline.next_epoch(epochs)
        epochs, leader = len(pipeline.epochs()), mesh.leader(pipeline)
        assert mesh.leave(leader) == 0
        assert leader.popen.pid not in mesh.present()
        pipeline.next_epoch(epochs)
        assert mesh.leave(control) == 0
        assert control.popen.pid not in mesh.present()
        movers.stop()
        end = pipeline.catches_up(*bank.names)
    bank.agrees(pipeline, end)


def test_the_sum_over_two_tables_is_constant_while_redis_and_the_source_restart(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Amounts move between two tables, which are read in small chunks.
    2. Redis is emptied while the tables are read, and again when they are live.
    3. Redis restarts (and has lost everything). 4. The source restarts, 5. and is killed and started.
    6. The movers stop, the pipeline catches up.
    Every publishable checkpoint has the sum, and the source's content.
    """
    bank = Bank(source, fresh_database)
    with Mesh(tmp_path) as mesh, bank.moving(survives=True) as movers:
        pipeline = mesh.pipeline("bank", source, [f"{bank.schema}.*"], chunk_rows=10)
        pipeline.until(lambda: pipeline.checkpoint(), "a first checkpoint")
        mesh.redis.flush()
        pipeline.until(lambda: pipeline.shows(*bank.names), "both tables to be shown")
        epochs = len(pipeline.epochs())
        mesh.redis.flush()
        pipeline.next_epoch(epochs)
        epochs = len(pipeline.epochs())
        mesh.redis.restart()
        pipeline.next_epoch(epochs)
        source.restart()
        pipeline.goes_on(2)
        source.kill()
        source.start()
        pipeline.catches_up(*bank.names)
        movers.stop()
        end = pipeline.catches_up(*bank.names)
    bank.agrees(pipeline, end)


# --- tables that come later -----------------------------------------------------------------------------------------


def test_tables_created_or_renamed_while_the_pipeline_runs_are_read_but_not_those_of_a_tool_beside_a_table(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    schema = fresh_database(source)
    first, like, made, renamed = (f"{schema}.{name}" for name in ("first", "likewise", "made", "renamed"))
    source.execute(f"CREATE TABLE {first} (id INT PRIMARY KEY, v VARCHAR(9))", f"INSERT INTO {first} VALUES (1, 'a')")
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("later", source, [f"{schema}.*"])
        pipeline.until(lambda: pipeline.shows(first), "the first table to be shown")
        epochs = len(pipeline.epochs())
        source.execute(
            f"CREATE TABLE {like} LIKE {first}",
            f"CREATE TABLE {schema}._first_gho LIKE {first}",
            f"CREATE TABLE {made} (PRIMARY KEY (id)) AS SELECT * FROM {first}",
            f"INSERT INTO {like} VALUES (5, 'e')",
            f"INSERT INTO {schema}._first_gho VALUES (5, 'e')",
        )
        pipeline.until(lambda: pipeline.shows(like, made), "the new tables to be shown")
        source.execute(f"RENAME TABLE {made} TO {renamed}", f"INSERT INTO {renamed} VALUES (7, 'g')")
        pipeline.until(lambda: pipeline.shows(renamed), "the table by its new name")
        source.execute(f"INSERT INTO {like} VALUES (6, 'f')")
        pipeline.catches_up(first, like, renamed)
        assert len(pipeline.epochs()) == epochs
        assert f"{schema}._first_gho" not in pipeline.status().tables
        (*_, shown) = cuts(pipeline)
        for name in (first, like, renamed):
            assert shown.tables[name].content == content(source, name, ("id",)), name


# --- DDL --------------------------------------------------------------------------------------------------------------


def test_changes_of_tables_arrive_in_place_or_as_the_next_generation(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Tables go live; each is changed by DDL, with rows changed before and after.
    2. ADD, DROP and RENAME COLUMN and TRUNCATE go on in the same generation; MODIFY of the precision and DROP and
       CREATE start the next one.
    The last checkpoint shows what a SELECT sees.
    """
    schema = fresh_database(source)
    kinds = {"added": 1, "dropped": 1, "renamed": 1, "truncated": 1, "modified": 2, "recreated": 2, "untouched": 1}
    create = "(id INT PRIMARY KEY, a VARCHAR(20), b DECIMAL(10,2), at DATETIME(6))"
    rows = ", ".join(f"({n}, 'row {n}', {n}.25, '2024-01-02 03:04:05.678901')" for n in range(30))
    for kind in kinds:
        source.execute(f"CREATE TABLE {schema}.{kind} {create}", f"INSERT INTO {schema}.{kind} VALUES {rows}")
    source.execute("FLUSH BINARY LOGS")
    names = [f"{schema}.{kind}" for kind in kinds]
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("ddl", source, [f"{schema}.*"], chunk_rows=10)
        pipeline.until(lambda: pipeline.shows(*names), "all tables to be shown")
        for kind in kinds:
            source.execute(f"UPDATE {schema}.{kind} SET a = 'before' WHERE id < 5")
        source.execute(
            f"ALTER TABLE {schema}.added ADD COLUMN extra INT NULL",
            f"UPDATE {schema}.added SET extra = id WHERE id BETWEEN 3 AND 9",
            f"ALTER TABLE {schema}.dropped DROP COLUMN b",
            f"ALTER TABLE {schema}.renamed RENAME COLUMN a TO c",
            f"UPDATE {schema}.renamed SET c = 'after' WHERE id > 20",
            f"TRUNCATE TABLE {schema}.truncated",
            f"INSERT INTO {schema}.truncated VALUES (7, 'again', 1, NULL)",
            f"ALTER TABLE {schema}.modified MODIFY at DATETIME",
            f"DROP TABLE {schema}.recreated",
            f"CREATE TABLE {schema}.recreated (id BIGINT PRIMARY KEY, other INT)",
            f"INSERT INTO {schema}.recreated VALUES (1, 10), (2, 20)",
        )
        for kind in kinds:
            source.execute(f"DELETE FROM {schema}.{kind} WHERE id = 12")
            source.execute(f"INSERT INTO {schema}.{kind} (id) VALUES (100)")

        def settled() -> bool:
            newest = pipeline.checkpoint()
            return newest is not None and all(
                newest.tables[f"{schema}.{kind}"].generation == generation for kind, generation in kinds.items()
            )

        pipeline.until(settled, "the next generations")
        end = pipeline.catches_up(*names)
    last = _cut(pipeline, end.slot)
    for kind, generation in kinds.items():
        shown = last.tables[f"{schema}.{kind}"]
        assert shown.generation == generation, kind
        assert shown.doubled == []
        assert differences(shown.content, content(source, f"{schema}.{kind}", ["id"])) == [], kind
    assert last.tables[f"{schema}.renamed"].content[(25,)] == {
        "id": 25, "c": "after", "b": Decimal("25.25"), "at": dt.datetime(2024, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001
    }  # fmt: skip


def _cut(pipeline: Pipeline, slot: int) -> Cut:
    return next(cut for cut in cuts(pipeline) if cut.slot == slot)


# --- tables that can't be copied --------------------------------------------------------------------------------------


def test_a_table_that_cant_be_copied_is_quarantined_and_the_others_go_on(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Tables without identity, with a row over 64 MiB, with an unlogged cascade (MariaDB): quarantined at once.
    2. Live tables get a statement, a minimal row image, a row over 64 MiB, a zero date in a key: quarantined then.
    3. The good tables go on through all of it; each cause names its table and what is wrong.
    The statement has a database of its own, since triggers may have changed any table near it.
    """
    schema, other = fresh_database(source), fresh_database(source)
    mysql = isinstance(source, MySQL)
    big = 66 << 20
    later = [f"{schema}.imaged", f"{schema}.grown", f"{schema}.undated", f"{other}.stated"]
    for table in (f"{schema}.good", *later):
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, body LONGTEXT)")
        source.execute(f"INSERT INTO {table} VALUES (1, 1, 'x'), (2, 2, 'y')")
    source.execute(
        f"ALTER TABLE {schema}.undated ADD COLUMN d DATE NOT NULL DEFAULT '2020-01-01', DROP PRIMARY KEY,"
        " ADD PRIMARY KEY (id, d)"
    )
    source.execute(
        f"CREATE TABLE {schema}.keyless (a INT)",
        f"CREATE TABLE {schema}.nullkey (a INT NULL, UNIQUE KEY (a))",
        f"CREATE TABLE {schema}.big (id INT PRIMARY KEY, body LONGTEXT)",
        f"INSERT INTO {schema}.big VALUES (1, REPEAT('z', {big}))",
        f"CREATE TABLE {schema}.flat (id INT PRIMARY KEY) ENGINE=MyISAM",
        f"CREATE TABLE {schema}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {schema}.child (id INT PRIMARY KEY, parent_id INT, CONSTRAINT of_parent FOREIGN KEY (parent_id)"
        f" REFERENCES {schema}.parent (id) ON DELETE CASCADE)",
        f"INSERT INTO {schema}.parent VALUES (1), (2)",
        f"INSERT INTO {schema}.child VALUES (1, 1), (2, 2)",
        "FLUSH BINARY LOGS",
    )
    expected = {
        f"{schema}.keyless": "identity",
        f"{schema}.nullkey": "identity",
        f"{schema}.big": "64 MiB",
        f"{schema}.flat": "MyISAM",
        f"{other}.stated": "statement",
        f"{schema}.imaged": "image",
        f"{schema}.grown": "64 MiB",
        f"{schema}.undated": "zero or partial date in its key column d",
    }
    good = [f"{schema}.good", f"{schema}.parent"]
    if mysql:
        good.append(f"{schema}.child")
    else:
        expected[f"{schema}.child"] = "of_parent"
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("bad", source, [f"{schema}.*", f"{other}.*"])
        pipeline.until(lambda: pipeline.shows(*good, *later), "the good tables to be shown")
        with closing(source.connect(database=other)) as conn, conn.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute("UPDATE stated SET a = a + 1 WHERE id = 1")
        with closing(source.connect(database=schema)) as conn, conn.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
            cursor.execute("UPDATE imaged SET a = 7 WHERE id = 1")
            cursor.execute("SET SESSION binlog_row_image = 'FULL'")
            cursor.execute(f"UPDATE grown SET body = REPEAT('z', {big}) WHERE id = 2")
            cursor.execute("SET SESSION sql_mode = ''")
            cursor.execute("UPDATE undated SET d = '0000-00-00' WHERE id = 1")
            cursor.execute("UPDATE good SET a = 9 WHERE id = 1")
            cursor.execute("DELETE FROM parent WHERE id = 1")
        end = pipeline.catches_up(*good)
        pipeline.until(lambda: all(pipeline.phase(name) == "quarantined" for name in expected), "the quarantines")
        newest = pipeline.checkpoint()
    assert newest is not None
    for name, word in expected.items():
        cause = str(newest.tables[name].cause)
        assert word.lower() in cause.lower(), f"{name}: {cause}"
        assert name in cause, f"{name}: {cause}"
    last = _cut(pipeline, end.slot)
    for name in good:
        assert differences(last.tables[name].content, content(source, name, ["id"])) == [], name


def test_options_of_values_hold_for_chunks_stream_and_new_columns(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. TINYINT(1) is boolean, in a column that is added too; a child of an unlogged cascade is captured knowingly.
    2. A zero date quarantines its table, in a chunk or in the stream; dates that are good do not.
    """
    schema = fresh_database(mariadb)
    mariadb.execute(
        "CREATE TABLE flags (id INT PRIMARY KEY, a TINYINT(1), n TINYINT)",
        "INSERT INTO flags VALUES (1, 0, 0), (2, 1, 1), (3, -5, 2), (4, NULL, NULL)",
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 1), (2, 2)",
        "CREATE TABLE dated (id INT PRIMARY KEY, d DATE, at DATETIME)",
        "INSERT INTO dated VALUES (1, '2020-01-01', NULL)",
        "CREATE TABLE zero (id INT PRIMARY KEY, d DATE, at DATETIME)",
        "SET sql_mode = ''",
        "INSERT INTO zero VALUES (1, '0000-00-00', NULL)",
        "FLUSH BINARY LOGS",
        database=schema,
    )
    flags, child, dated, zero = (f"{schema}.{name}" for name in ("flags", "child", "dated", "zero"))
    options = "values: {tinyint1: boolean, zero_dates: quarantine}\nunlogged_cascades: allow\n"
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("options", mariadb, [f"{schema}.*"], options)
        pipeline.until(lambda: pipeline.shows(flags, child, dated), "the tables to be shown")
        mariadb.execute(
            "UPDATE flags SET a = 7 WHERE id = 1",
            "ALTER TABLE flags ADD COLUMN b BOOL NOT NULL DEFAULT 1",
            "INSERT INTO flags VALUES (5, 0, 5, 0)",
            "INSERT INTO child VALUES (3, 2)",
            "DELETE FROM parent WHERE id = 1",
            "SET sql_mode = ''",
            "UPDATE dated SET at = '2020-00-01'",
            database=schema,
        )
        end = pipeline.catches_up(flags, child)
        pipeline.until(lambda: {pipeline.phase(dated), pipeline.phase(zero)} == {"quarantined"}, "the quarantines")
        newest = pipeline.checkpoint()
    assert newest is not None
    assert "date in its column at" in str(newest.tables[dated].cause)
    assert "date in its column d" in str(newest.tables[zero].cause)
    last = _cut(pipeline, end.slot)
    rows = {key: tuple(row.values())[1:] for (key,), row in last.tables[flags].content.items()}
    assert rows == {
        1: (True, 0, True), 2: (True, 1, True), 3: (True, 2, True), 4: (None, None, True), 5: (False, 5, False)
    }  # fmt: skip
    # the row that the cascade took is still there: that is what the option accepts
    assert sorted(last.tables[child].content) == [(1,), (2,), (3,)]


def test_a_bigint_unsigned_that_is_long_quarantines_its_table_at_2_63(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Values of 2^63 and more are met in a chunk, its key, the stream, its key, and by the default of a new column.
    2. Each table is quarantined with the column's name; the one whose values fit goes on.
    """
    schema = fresh_database(mariadb)
    names = ("good", "chunk", "chunk_key", "stream", "stream_key", "added")
    mariadb.execute(
        *(f"CREATE TABLE {name} (id BIGINT UNSIGNED PRIMARY KEY, n BIGINT UNSIGNED)" for name in names),
        *(f"INSERT INTO {name} VALUES (1, 9223372036854775807), (2, NULL)" for name in names),
        "INSERT INTO chunk VALUES (3, 9223372036854775808)",
        "INSERT INTO chunk_key VALUES (18446744073709551615, 3)",
        "FLUSH BINARY LOGS",
        database=schema,
    )
    tables = {name: f"{schema}.{name}" for name in names}
    faulty = [tables[name] for name in names[1:]]
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("longs", mariadb, [f"{schema}.*"], "values: {bigint_unsigned: long}\n")
        live = [tables[name] for name in ("good", "stream", "stream_key", "added")]
        pipeline.until(lambda: pipeline.shows(*live), "the tables to be shown")
        mariadb.execute(
            "INSERT INTO good VALUES (9223372036854775807, 0)",
            "UPDATE stream SET n = 18446744073709551615 WHERE id = 2",
            "UPDATE stream_key SET id = 9223372036854775808 WHERE id = 2",
            "ALTER TABLE added ADD m BIGINT UNSIGNED NOT NULL DEFAULT 9223372036854775808",
            database=schema,
        )
        end = pipeline.catches_up(tables["good"])
        pipeline.until(lambda: {pipeline.phase(name) for name in faulty} == {"quarantined"}, "the quarantines")
        newest = pipeline.checkpoint()
    assert newest is not None
    for name, column in zip(faulty, ("n", "id", "n", "id", "m"), strict=True):
        cause = str(newest.tables[name].cause)
        assert f"value of 2^63 or more in its column {column}, which values.bigint_unsigned" in cause
    rows = {key: row["n"] for (key,), row in _cut(pipeline, end.slot).tables[tables["good"]].content.items()}
    assert rows == {1: 2**63 - 1, 2: None, 2**63 - 1: 0}


# --- a large transaction ----------------------------------------------------------------------------------------------


def test_a_transaction_of_300000_rows_is_taken_in_bounded_memory_and_never_shown_half(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table of two rows is live; one transaction inserts 300,000 and updates them all.
    2. Checkpoints go on inside of it; they show nothing of it.
    3. It is shown whole, and no reader held more than 512 MiB.
    """
    schema, rows = fresh_database(source), 300_000
    table = f"{schema}.large"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a BIGINT, body VARCHAR(200))", "FLUSH BINARY LOGS")
    source.execute(f"INSERT INTO {table} VALUES (-1, 0, ''), (-2, 0, '')")
    peak = 0.0
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("large", source, [table], interval_seconds=0.2)
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
        numbers = ", ".join(f"({n})" for n in range(1000))
        with closing(source.connect(database=schema, autocommit=False)) as conn, conn.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE n (n INT PRIMARY KEY)")
            cursor.execute("CREATE TEMPORARY TABLE m (m INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO n VALUES {numbers}")
            cursor.execute(f"INSERT INTO m SELECT n FROM n WHERE n < {rows // 1000}")
            cursor.execute("INSERT INTO large SELECT m * 1000 + n, 1, REPEAT('b', 150) FROM n, m")
            cursor.execute("UPDATE large SET a = 2")
            conn.commit()

        def whole() -> bool:
            nonlocal peak
            peak = max(peak, *(reader.rss_mib for reader in mesh.running("reader")))
            newest = pipeline.checkpoint()
            return newest is not None and not newest.inside and sum(
                file.rows for entry in pipeline.entries() for file in getattr(entry, "staged", ())
            ) >= 2 * rows  # fmt: skip

        pipeline.until(whole, "the transaction", 120)
        end = pipeline.catches_up(table)
    assert peak < 512, f"a reader held {peak:.0f} MiB"
    assert any(entry.inside for entry in pipeline.entries() if isinstance(entry, CheckpointEntry))
    seen = set()
    for cut in cuts(pipeline):
        if table in cut.tables and (cut.entry.staged or not seen):
            values = [row["a"] for row in cut.tables[table].content.values()]
            seen.add((len(values), sum(values)))
            assert cut.tables[table].doubled == []
    assert seen <= {(2, 0), (rows + 2, 2 * rows + 4)}
    assert (rows + 2, 2 * rows + 4) in seen
    assert end.position.rows == 0


def test_cuts_that_can_be_shown_go_on_while_transactions_as_large_as_a_read_come_back_to_back(
    mysql: MySQL, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table is live, and its reader is killed. 2. 40 transactions of 50,000 rows are written. 3. While another
    reader takes them, there is a cut between two of them again and again."""
    schema = fresh_database(mysql)
    table = f"{schema}.busy"
    mysql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY AUTO_INCREMENT, a INT)",
        f"CREATE TABLE {schema}.n (n INT PRIMARY KEY)",
        f"INSERT INTO {schema}.n VALUES {', '.join(f'({n})' for n in range(250))}",
    )
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("busy", mysql, [table], interval_seconds=0.2)
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
        for reader in mesh.running("reader"):
            mesh.kill(reader)
        begun = len(pipeline.entries())
        for _ in range(40):
            mysql.execute(f"INSERT INTO {table} (a) SELECT 1 FROM {schema}.n x, {schema}.n y LIMIT 50000")
        mesh.start("reader")
        pipeline.catches_up(table)
    taken = [entry for entry in pipeline.entries()[begun:] if isinstance(entry, CheckpointEntry)]
    places = {place(entry) for entry in taken if not entry.inside}
    assert not any(entry.inside for entry in taken)
    assert len(places) >= 2, places  # one at least before the last


# --- XA that is not told to us ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("purged", [False, True])
def test_without_the_right_to_see_prepared_xa_transactions_a_pipeline_runs_and_says_once_what_is_not_covered(
    purged: bool, tmp_path: Path
) -> None:
    """1. An XA transaction stands prepared, and our user may not see it. 2. The pipeline starts and shows the table.
    3. The XA COMMIT comes: its rows are found in the binlog; or the PREPARE is purged, and the pipeline halts with
    cause and remedy."""
    server = MySQL()
    with started(server), Mesh(tmp_path, readers=1, writers=1) as mesh:
        server.execute("CREATE DATABASE x", "CREATE TABLE x.t (id INT PRIMARY KEY)", "INSERT INTO x.t VALUES (1)")
        server.execute(f"REVOKE XA_RECOVER_ADMIN ON *.* FROM '{CDC_USER}'@'%'")
        server.execute("XA START 'x'", "INSERT INTO x.t VALUES (2)", "XA END 'x'", "XA PREPARE 'x'")
        if purged:
            server.execute("FLUSH BINARY LOGS")
            with closing(connection(server)) as conn:
                newest = flushed_position(conn, identify(conn)).file
            server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        pipeline = mesh.pipeline("unseen", server, ["x.t"])
        pipeline.until(lambda: pipeline.shows("x.t"), "the table to be shown")
        pipeline.goes_on()
        server.execute("XA COMMIT 'x'")
        if purged:
            halted = pipeline.until(lambda: pipeline.status().enumerator.halted, "the halt")
            assert "XA PREPARE is purged" in halted.sentence
            assert "GRANT XA_RECOVER_ADMIN" in halted.remedy
        else:
            end = pipeline.catches_up("x.t")
            last = next(cut for cut in cuts(pipeline) if cut.slot == end.slot)
            assert sorted(row["id"] for row in last.tables["x.t"].content.values()) == [1, 2]
        logs = "".join(path.read_text() for path in mesh.folder.glob("enumerator-*.log"))
        assert logs.count("may not list prepared XA transactions") == 1, mesh.log_ends()


# --- the tests of the tests -------------------------------------------------------------------------------------------


def test_the_oracle_knows_what_the_table_held_at_each_place(source: Database, fresh_database: Fresh) -> None:
    history = History(source)
    schema = fresh_database(source)
    columns = {f"{schema}.t": (("id", "a", "b"), ("id",))}
    source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, a DECIMAL(6,2), b VARCHAR(9))")
    places = []
    for statement in (
        f"INSERT INTO {schema}.t VALUES (1, -1.5, 'x'), (-2, NULL, NULL)",
        f"UPDATE {schema}.t SET id = 3 WHERE id = 1",
        "FLUSH BINARY LOGS",
        f"TRUNCATE TABLE {schema}.t",
        f"INSERT INTO {schema}.t VALUES (9, 0, '')",
    ):
        source.execute(statement)
        places.append(History(source).begin)
    found = [state[f"{schema}.t"] for state in history.at(columns, places)]
    two = {"id": -2, "a": None, "b": None}
    moved = {(3,): {"id": 3, "a": Decimal("-1.50"), "b": "x"}, (-2,): two}
    assert found[0] == {(1,): {"id": 1, "a": Decimal("-1.50"), "b": "x"}, (-2,): two}
    assert found[1:4] == [moved, moved, {}]
    assert found[4] == content(source, f"{schema}.t", ["id"])
    assert differences(found[0], found[1])
