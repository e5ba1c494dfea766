"""What a person can get wrong, on the real servers: exit 2 and one sentence a fault, before anything is written."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cutline.common.config.pipeline import load
from cutline.common.errors import ConfigError
from cutline.common.store.command_records import Orders, Outcome
from cutline.common.store.store import Store
from cutline.services.run import cli
from cutline.services.run.preflight import check
from tests.conftest import started
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.server_process import free_port

Change = Callable[[str], str]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CUTLINE_") and name != "CUTLINE_TEST_SESSION"]:
        if name not in ("CUTLINE_CACHE", "CUTLINE_SPARK_JARS"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CDC_PASSWORD", "cdc-secret")


@pytest.fixture
def pipeline(tmp_path: Path, source: Database, database: str) -> Path:
    """A good pipeline file of one table on `source`, alone in its folder."""
    source.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", database=database)
    return written(tmp_path, source, database)


def written(folder: Path, server: Database, database: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(
        f"""\
name: shop
source: {{host: {server.host}, port: {server.port}, user: {server.user}, password_env: CDC_PASSWORD}}
tables: ["{database}.*"]
sink: {{warehouse: ./lake}}
"""
    )
    return path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def run(path: Path) -> Result:
    return CliRunner().invoke(cli.main, ["run", str(path), "--until", "snapshot"])


def refused(path: Path, *words: str, faults: int = 1) -> None:
    """The run ends with 2, tells so many faults with these words, and has written nothing beside the file."""
    before = sorted(path.parent.rglob("*"))
    ended = run(path)
    assert ended.exit_code == 2, ended.output
    lines = ended.stderr.splitlines()
    assert len(lines) == faults, lines
    for word in words:
        assert word in ended.stderr, f"{word!r} is not in {ended.stderr!r}"
    assert "cdc-secret" not in ended.output
    assert sorted(path.parent.rglob("*")) == before


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_format_version_that_iceberg_or_cutline_does_not_have(pipeline: Path) -> None:
    change(pipeline, "warehouse: ./lake", "warehouse: ./lake, format_version: 4")
    refused(pipeline, "sink.format_version must be 3 or 2, not 4")


def test_a_column_that_the_rows_are_sorted_by_twice(pipeline: Path) -> None:
    change(pipeline, "sink:", 'table_options: [{tables: "*.a", sort: [v, id, v desc]}]\nsink:')
    refused(pipeline, "sorts by 'v', which is empty or there twice; name each column once")


# --- the source -------------------------------------------------------------------------------------------------------


def test_no_such_host(pipeline: Path) -> None:
    change(pipeline, "127.0.0.1", "no-such-host.invalid")
    refused(pipeline, "is unknown", "no-such-host.invalid", "source.host")


def test_nobody_listens_there_at_the_first_start(pipeline: Path, source: Database) -> None:
    change(pipeline, str(source.port), "1")
    refused(pipeline, "127.0.0.1:1", "is the server up?")


def test_a_wrong_password(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_PASSWORD", "wrong-secret")
    refused(pipeline, "cdc@127.0.0.1", "password")
    assert "wrong-secret" not in run(pipeline).output


def test_a_password_that_is_not_there(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDC_PASSWORD")
    refused(pipeline, "CDC_PASSWORD", "is not set")


@pytest.fixture
def poor(source: Database) -> Iterator[Callable[..., None]]:
    """Makes the user `poor` with these grants only."""

    def grant(*grants: str) -> None:
        source.execute(
            "CREATE USER 'poor'@'%' IDENTIFIED BY 'cdc-secret'",
            *(f"GRANT {privilege} TO 'poor'@'%'" for privilege in grants),
        )

    yield grant
    source.execute("DROP USER IF EXISTS 'poor'@'%'")


def test_missing_replication_grants_are_all_named(pipeline: Path, source: Database, poor: Callable[..., None]) -> None:
    poor("SELECT ON *.*")
    change(pipeline, "user: cdc", "user: poor")
    client = "BINLOG MONITOR" if isinstance(source, MariaDB) else "REPLICATION CLIENT"
    words = [f"GRANT {client} ON *.* TO 'poor'@'%'", "GRANT REPLICATION SLAVE ON *.* TO 'poor'@'%'"]
    refused(pipeline, *words, faults=len(words))


def test_a_table_that_may_not_be_selected_is_named_with_its_grant(
    pipeline: Path, source: Database, database: str, poor: Callable[..., None]
) -> None:
    poor(
        f"{', '.join(privilege for privilege in source.GRANTS if privilege != 'SELECT')} ON *.*",
        f"INSERT ON {database}.*",
    )
    change(pipeline, "user: cdc", "user: poor")
    refused(pipeline, f"{database}.a", "GRANT SELECT ON", "TO 'poor'@'%'")


@pytest.fixture
def global_settings(source: Database) -> Iterator[Callable[..., None]]:
    """Sets global variables of `source`, and sets them back."""
    before: dict[str, object] = {}

    def put(**values: str) -> None:
        for name, value in values.items():
            before.setdefault(name, source.scalar(f"SELECT @@GLOBAL.{name}"))
            source.execute(f"SET GLOBAL {name} = '{value}'")

    yield put
    source.execute(*(f"SET GLOBAL {name} = '{value}'" for name, value in before.items()))


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_image", "NOBLOB", "FULL"),
        ("binlog_row_metadata", "MINIMAL", "FULL"),
    ],
)
def test_a_server_setting_that_loses_rows_is_told_with_the_statement_that_mends_it(
    pipeline: Path, global_settings: Callable[..., None], name: str, wrong: str, right: str
) -> None:
    global_settings(**{name: wrong})
    refused(pipeline, f"{name} is {wrong}, not {right}", f"SET GLOBAL {name} = '{right}'")


def test_all_faults_of_file_store_and_source_are_in_one_list(
    pipeline: Path, global_settings: Callable[..., None], source: Database
) -> None:
    """1. Another pipeline of the name is in the store.  2. Three settings are wrong.  3. One run tells all four."""
    Store(f"file://{pipeline.parent / '.cutline/shop/store'}").pipeline("shop").define(load(pipeline).definition())
    change(pipeline, "./lake", "./lake2")
    global_settings(binlog_format="MIXED", binlog_row_image="MINIMAL", binlog_row_metadata="MINIMAL")
    refused(pipeline, "'shop' is in use", "binlog_format", "binlog_row_image", "binlog_row_metadata", faults=4)


@pytest.mark.parametrize("kind", [MariaDB, MySQL])
def test_log_bin_off(tmp_path: Path, kind: type[Database]) -> None:
    server = kind(log_bin=None, skip_log_bin=True, **({"gtid": False} if kind is MySQL else {}))
    with started(server):
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)")
        refused(written(tmp_path, server, "shop"), "log_bin is off")


def test_a_start_that_is_purged(pipeline: Path, source: Database) -> None:
    change(pipeline, "sink:", "start: {file: binlog.000000, position: 4}\nsink:")
    refused(pipeline, "binlog.000000")


def test_a_gtid_start_that_is_purged(tmp_path: Path, mysql: MySQL, fresh_database: Callable[[Database], str]) -> None:
    """1. Some transactions.  2. The binlog that has them is purged.  3. A start before them is refused."""
    database = fresh_database(mysql)
    mysql.execute("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)", database=database)
    mysql.execute("FLUSH BINARY LOGS")
    current = mysql.execute("SHOW BINARY LOG STATUS")[0][0]
    mysql.execute(f"PURGE BINARY LOGS TO '{current}'")
    uuid = mysql.scalar("SELECT @@server_uuid")
    pipeline = written(tmp_path, mysql, database)
    change(pipeline, "sink:", f'start: {{gtid: "{uuid}:1"}}\nsink:')
    refused(pipeline, "purged")


def test_tables_that_match_nothing(pipeline: Path, database: str) -> None:
    change(pipeline, f"{database}.*", f"{database}.zzz*")
    refused(pipeline, f"{database}.zzz*", "matches none")


# --- the file, the store, the lake ------------------------------------------------------------------------------------


def test_tables_that_match_nothing_are_no_fault_of_a_pipeline_that_ran_before(
    pipeline: Path, source: Database, database: str, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    definition = check(load(pipeline), store_url=url, workdir=None)
    Store(url).pipeline("shop").define(definition)
    source.execute(f"DROP TABLE {database}.a")
    assert check(load(pipeline), store_url=url, workdir=None) == definition


def test_define_replaces_a_definition_through_the_leader(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Another content is refused.  2. With --replace it becomes a command, whose end the leader writes: here we.
    3. A refusal is the command's error.
    """
    monkeypatch.setenv("CUTLINE_STORE_URL", f"file://{tmp_path}/store")
    store = Store(f"file://{tmp_path}/store").pipeline("shop")

    def define(*words: str) -> Result:
        return CliRunner().invoke(cli.main, ["define", *words, str(pipeline)])

    assert define("--replace").output == "pipeline shop is defined in the store\n"
    change(pipeline, "sink:", "snapshot: {chunk_rows: 7}\nsink:")
    assert "with other content (snapshot.chunk_rows" in define().output

    def ends(outcome: Outcome) -> Result:
        with ThreadPoolExecutor(1) as pool:
            replacing = pool.submit(define, "--replace")
            while not replacing.done() and store.commands.newest() < outcome.n:
                time.sleep(0.02)
            command = store.commands.get(outcome.n)
            assert command is not None
            assert (command.kind, command.arguments["base"]) == ("define", 1)
            assert command.arguments["definition"]["snapshot"]["chunk_rows"] == 7
            assert store.commands.put_outcome(outcome)
            return replacing.result()

    refused = ends(Outcome(n=1, state="refused", cause="no", remedy="wait", orders=Orders(), at=1.0))
    assert (refused.exit_code, refused.output) == (
        2,
        "cutline: the new definition of pipeline shop was refused: no; wait\n",
    )
    done = ends(Outcome(n=2, state="done", result={"version": 2}, orders=Orders(definition=2), at=2.0))
    assert (done.exit_code, done.output) == (0, "pipeline shop has version 2 of its definition\n")


def test_a_wrong_key_ends_the_real_command_with_2_and_one_line(pipeline: Path) -> None:
    change(pipeline, "warehouse", "warehose")
    ended = subprocess.run(
        [sys.executable, "-m", "cutline.services.run.cli", "run", str(pipeline)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        f"cutline: {pipeline}:4:1: the key 'sink.warehouse' is missing; add it\n"
        f"cutline: {pipeline}:4:8: unknown key 'sink.warehose'; did you mean 'warehouse'?\n"
    )
    assert ended.stdout == ""


@pytest.fixture
def defined(tmp_path: Path, mariadb: MariaDB, fresh_database: Callable[[Database], str]) -> Path:
    """A good pipeline file on MariaDB: what follows does not depend on the server."""
    database = fresh_database(mariadb)
    mariadb.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", database=database)
    return written(tmp_path, mariadb, database)


def test_a_name_in_use_with_what_only_a_new_pipeline_can_have_tells_what_differs(defined: Path) -> None:
    url = f"file://{defined.parent / '.cutline/shop/store'}"
    Store(url).pipeline("shop").define(load(defined).definition())
    change(defined, "sink:", "snapshot: {chunk_rows: 7}\nsink:")
    with pytest.raises(ConfigError, match=r"snapshot\.chunk_rows is 50000 there and 7 here"):
        check(load(defined), store_url=url, workdir=None)
    assert check(load(defined), store_url=url, workdir=None, takes="stored")["snapshot"]["chunk_rows"] == 50000
    assert check(load(defined), store_url=url, workdir=None, takes="file")["snapshot"]["chunk_rows"] == 7
    change(defined, "warehouse: ./lake", "warehouse: ./other")
    for takes in ("stored", "file"):
        with pytest.raises(ConfigError, match=r"other content \(sink\.warehouse is .*; restore that content"):
            check(load(defined), store_url=url, workdir=None, takes=takes)
    refused(defined, "'shop' is in use", "sink.warehouse is", "another name")


def test_a_pipeline_of_an_older_version_goes_on_with_the_defaults_of_settings_that_came_since(defined: Path) -> None:
    config = load(defined)
    old = config.definition()
    del old["keyless"], old["snapshot"]["max_select_seconds"]
    store = f"file://{defined.parent / '.cutline/shop/store'}"
    Store(store).pipeline("shop").define(old)
    assert check(config, store_url=store, workdir=None) == old
    change(defined, "sink:", "keyless: append\nsink:")
    refused(defined, "'shop' is in use", "keyless is 'quarantine' there and 'append' here", "another name")


def stored(defined: Path) -> Path:
    """The definition in the store, once the pipeline is defined there."""
    folder = defined.parent / ".cutline/shop/store"
    Store(f"file://{folder}").pipeline("shop").define(load(defined).definition())
    (found,) = folder.glob("shop.*/pipeline.json")
    return found


def test_a_store_of_a_newer_version(defined: Path) -> None:
    stored(defined).write_text('{"format":99,"sha256":"' + "0" * 64 + '","body":{}}\n')
    refused(defined, "newer", "format 99", "pipeline.json")


def test_a_store_that_is_damaged_ends_with_its_cause(defined: Path) -> None:
    stored(defined).write_text("not ours")
    ended = run(defined)
    assert ended.exit_code == 1
    assert "pipeline.json is not an envelope of Cutline" in ended.stderr


def test_a_store_that_can_not_be_written(defined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (defined.parent / "file").write_text("")
    monkeypatch.setenv("CUTLINE_STORE_URL", f"file://{defined.parent / 'file/store'}")
    ended = run(defined)
    assert ended.exit_code == 2
    assert str(defined.parent / "file/store") in ended.stderr


def test_a_store_of_an_unknown_kind(defined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLINE_STORE_URL", "gopher://store")
    refused(defined, "gopher://store", "use file://, s3://, gs://")


def test_a_warehouse_that_can_not_be_written(defined: Path) -> None:
    (defined.parent / "file").write_text("")
    change(defined, "./lake", "./file/lake")
    ended = run(defined)
    assert ended.exit_code == 2
    assert "file/lake" in ended.stderr
    assert "can't be" in ended.stderr


def test_faults_of_store_warehouse_and_catalogue_are_in_one_list_and_nothing_is_written(
    pipeline: Path, source: Database, database: str
) -> None:
    """A store in a folder with a lake on S3; a catalogue that is away, and that takes two tables for one."""
    source.execute("CREATE TABLE T (id INT PRIMARY KEY)", "CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    change(pipeline, "./lake", f"s3://absent/lake, catalog: {{type: hive, uri: 'thrift://127.0.0.1:{free_port()}'}}")
    refused(
        pipeline,
        "is a folder and the warehouse s3://absent/lake is not",
        "the catalogue thrift://127.0.0.1:",
        "does not answer (127.0.0.1:",
        f"where {database}.T and {database}.t are the same",
        faults=3,
    )


def lake_of(folder: Path, table: str, **properties: str) -> None:
    """A lake with one table, as Iceberg's JDBC catalogue and metadata have it."""
    metadata = folder / "lake/1.metadata.json"
    metadata.parent.mkdir()
    metadata.write_text(json.dumps({"properties": properties}))
    connection = sqlite3.connect(folder / "lake/catalog.db")
    with connection:
        connection.execute(
            "CREATE TABLE iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
        )
        row = ("lake", *table.split("."), f"file:{metadata}", "TABLE")
        connection.execute("INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, ?)", row)
    connection.close()


def captured(path: Path) -> str:
    return load(path).tables[0].replace("*", "a")


def test_a_warehouse_that_belongs_to_another_pipeline(defined: Path) -> None:
    lake_of(defined.parent, captured(defined), **{"cutline.pipeline": "market"})
    refused(defined, "belongs to the pipeline 'market'", "another warehouse")


def test_a_warehouse_with_a_table_that_cutline_did_not_make(defined: Path) -> None:
    lake_of(defined.parent, captured(defined))
    refused(defined, "was not made by Cutline", "another warehouse")


def test_cutlines_own_tables_in_the_lake_are_no_fault_of_a_list_that_matches_all(pipeline: Path) -> None:
    change(pipeline, load(pipeline).tables[0], "*.*")
    lake_of(pipeline.parent, "_cutline.publications")
    check(load(pipeline), store_url=f"file://{pipeline.parent}/store", workdir=pipeline.parent / "work")


@pytest.fixture
def namesake(source: Database) -> Iterator[None]:
    """A database at the source that is called as Cutline's own in the lake."""
    source.execute("CREATE DATABASE _cutline")
    for name in ("publications", "cuts", "orders"):
        source.execute(f"CREATE TABLE _cutline.{name} (id INT PRIMARY KEY)")
    yield
    source.execute("DROP DATABASE _cutline")


@pytest.mark.usefixtures("namesake")
def test_tables_that_the_lake_could_not_tell_from_cutlines_own(pipeline: Path) -> None:
    own = load(pipeline).tables[0]
    change(pipeline, f'"{own}"', '"_cutline.*"')
    refused(pipeline, '"!_cutline.publications" in tables', '"!_cutline.cuts" in tables', faults=2)
    change(pipeline, '"_cutline.*"', '"_cutline.*", "!_cutline.publications", "!_cutline.cuts"')
    check(load(pipeline), store_url=f"file://{pipeline.parent}/store", workdir=pipeline.parent / "work")


@pytest.mark.usefixtures("namesake")
def test_a_source_with_such_tables_is_copied_whole_once_cutlines_own_have_another_namespace(pipeline: Path) -> None:
    own = load(pipeline).tables[0]
    change(pipeline, f'"{own}"', '"_cutline.*"')
    refused(pipeline, "set sink.own_namespace to another name", "set sink.own_namespace to another name", faults=2)
    change(pipeline, "warehouse:", "own_namespace: _of_the_lake, warehouse:")
    check(load(pipeline), store_url=f"file://{pipeline.parent}/store", workdir=pipeline.parent / "work")


def test_a_warehouse_whose_pipeline_this_store_does_not_know(defined: Path) -> None:
    lake_of(defined.parent, captured(defined), **{"cutline.pipeline": "shop"})
    refused(defined, "has tables of a pipeline 'shop'", "is not in the store", "adopt: true", "another warehouse")


def test_a_warehouse_with_tables_of_an_earlier_pipeline_and_each_remedy_works_where_it_is_named(defined: Path) -> None:
    """1. A pipeline is in the store, its lake has a table of one before it. 2. Each way to start it, or to define it,
    names how it takes the table over. 3. The setting alone changes nothing; as it is named, it does."""
    url = f"file://{defined.parent / '.cutline/shop/store'}"
    Store(url).pipeline("shop").define(load(defined).definition())
    lake_of(defined.parent, captured(defined), **{"cutline.pipeline": "shop", "cutline.id": "0" * 12})
    taken = partial(check, store_url=url, workdir=None)
    refused(defined, "set `sink: {adopt: true}` in the file and run it with `--replace` to take them over")
    with pytest.raises(ConfigError, match=r"`sink: {adopt: true}` by `cutline define --replace` to take them over"):
        taken(load(defined))
    with pytest.raises(ConfigError, match=r"set `sink: {adopt: true}` to take them over"):
        taken(load(defined), takes="file")
    change(defined, "warehouse:", "adopt: true, warehouse:")
    with pytest.raises(ConfigError, match="in the file and run it with `--replace`"):
        taken(load(defined), takes="stored")
    assert taken(load(defined), takes="file")["sink"]["adopt"] is True


def test_a_warehouse_that_is_no_catalogue(defined: Path) -> None:
    (defined.parent / "lake").mkdir()
    (defined.parent / "lake/catalog.db").write_text("no database, at least none of ours " * 9)
    refused(defined, "catalog.db can't be read as an Iceberg catalogue", "another warehouse")


def test_a_redis_address_that_is_none(defined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLINE_REDIS_URL", "http://somewhere")
    ended = run(defined)
    assert ended.exit_code == 2
    assert "CUTLINE_REDIS_URL" in ended.stderr


@pytest.mark.parametrize("role", ["enumerator", "reader", "writer"])
def test_a_service_whose_password_redis_refuses_ends_with_2(role: str, redis_url: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", f"cutline.services.{role}"],
        env=os.environ
        | {
            "CUTLINE_REDIS_URL": redis_url.replace("redis://", "redis://cutline:wrong@"),
            "CUTLINE_STORE_URL": f"file://{tmp_path}",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in ended.stderr
    assert "put the right user and password into CUTLINE_REDIS_URL" in ended.stderr
    assert ended.returncode == 2
