"""Cutline as a new user meets it: the steps of README.md and docs/ on a real server, each block as it stands there.

Only what a page leaves open is filled in: the port, the folder of the lake, a savepoint's number, a snapshot's, a
metadata file's path. `...` is a password as good as any.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pytest

from cutline.common import programs
from cutline.common.store.store import PipelineStore, Store
from cutline.spark_writer import jars
from tests.conftest import started
from tests.support.databases import MariaDB, MySQL
from tests.support.pages import AS_A_USER, Block, blocks_of
from tests.support.shell import Shell
from tests.support.spark_bench import load_iceberg

RUN = "cutline run shop.yaml"
ORDERS = [(1, 10), (2, 20), (3, 30)]
SPARK = """
import json, sys
from pyspark.sql import SparkSession

settings, statements = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
found = [[row.asDict() for row in spark.sql(statement).collect()] for statement in statements]
json.dump(found, sys.stdout, default=str)
spark.stop()
"""
"""Any Spark with Iceberg: nothing of Cutline's session is in it but the class path."""


class Pages:
    """The blocks that are still to be carried out."""

    def __init__(self) -> None:
        self.left = blocks_of(AS_A_USER)

    def next(self, page: str, language: str) -> Block:
        """The page's next block in this language, which counts as carried out."""
        found = next(block for block in self.left if (block.page, block.language) == (page, language))
        self.left.remove(found)
        return found


class User(Shell):
    """Who runs the pipeline of the pages. Port 8642 may be another test's; a run then takes a free one, as it says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lake = folder / "lake"

    @property
    def store(self) -> PipelineStore:
        """What the run has in its work folder."""
        return Store(f"file://{self.folder}/.cutline/shop/store").pipeline("shop")

    def until_published(self, state: str, after: int) -> int:
        """Wait for a publication later than `after` in which shop.orders is in this state; return its number."""

        def found() -> int | None:
            newest = [record for record in self.store.publications(after) if "shop.orders" in record.tables]
            return next((record.n for record in reversed(newest) if record.tables["shop.orders"].state == state), None)

        return int(self.until(found, f"shop.orders to be {state} in the lake"))

    def by_spark(self, settings: Block, *statements: str) -> list[list[dict[str, Any]]]:
        """Each statement's rows, in a Spark with the settings of the page."""
        given = dict(line.split("=", 1) for line in self.here(settings.text).splitlines())
        given["spark.driver.extraClassPath"] = ":".join(chain(*jars.class_path(jars.folder())))
        java = {"JAVA_HOME": str(programs.java().path.parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-c", SPARK], input=json.dumps([given, statements]), cwd=self.folder,
            env=self.environ | java, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{statements}\n{done.stderr[-3000:]}"
        found: list[list[dict[str, Any]]] = json.loads(done.stdout)
        return found

    def here(self, text: str) -> str:
        """A text of a page, with the lake where it is."""
        return text.replace("/data/lake", str(self.lake))


def statements(text: str) -> list[str]:
    """The statements of a block of SQL, without comments."""
    plain = re.sub(r"--.*", "", text)
    return [" ".join(each.split()) for each in plain.split(";") if each.strip()]


def rows(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """The source's columns of what Spark, or Arrow, found."""
    return sorted((row["id"], row["amount"]) for row in found)


def by_duckdb(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_iceberg(connection)
        return connection.execute(query).fetchall()


@pytest.fixture
def servers(nothing_left_running: None) -> Iterator[tuple[MySQL, MariaDB]]:
    """A MySQL and a MariaDB of the test's own, without a user `cdc`."""
    mysql, mariadb = MySQL(), MariaDB()
    with started(mysql), started(mariadb):
        for server in (mysql, mariadb):
            server.execute("DROP USER cdc")
        yield mysql, mariadb


@pytest.mark.timeout(900)
def test_the_pages_take_a_new_user_from_an_empty_folder_to_a_lake(
    servers: tuple[MySQL, MariaDB], tmp_path: Path
) -> None:
    """1. The grants of both pages are enough for a doctor and a run of README's file. 2. PyIceberg, DuckDB and Spark
    read the lake as docs/lake.md says. 3. While it runs, its commands work. 4. Others change the lake table twice: it
    is quarantined, then kept by accept, then replaced by overwrite. 5. Ctrl-C and the same command resume it."""
    mysql, mariadb = servers
    pages, user = Pages(), User(tmp_path)
    mysql.execute(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, amount INT)",
        "CREATE TABLE shop.tmp_sums (id INT PRIMARY KEY)",
        f"INSERT INTO shop.orders VALUES {str(ORDERS)[1:-1]}",
    )
    give_rights(pages, mysql, mariadb)
    prepare(pages, user, mysql)
    until, *more = pages.next("README.md", "sh").commands
    user.do(until)
    settings = pages.next("docs/lake.md", "properties")
    read_the_lake(pages, user, settings)
    choices = pages.next("docs/operations/lake.md", "sh").commands
    while_it_runs(user, settings, mysql, more, choices)
    assert pages.left == []


def give_rights(pages: Pages, mysql: MySQL, mariadb: MariaDB) -> None:
    """Both flavours of docs/operations/source.md; then README's, to nobody who has rights already."""
    both = pages.next("docs/operations/source.md", "sql").text.partition("-- MariaDB\n")
    mysql.execute(*statements(both[0]), "DROP USER cdc")
    mariadb.execute(*statements(both[2]))
    mysql.execute(*statements(pages.next("README.md", "sql").text))


def prepare(pages: Pages, user: User, server: MySQL) -> None:
    """README's file, password and doctor."""
    file = pages.next("README.md", "yaml").text
    assert "port: 3306" in file
    (user.folder / "shop.yaml").write_text(file.replace("port: 3306", f"port: {server.port}"))
    export, doctor, run = pages.next("README.md", "sh").commands
    user.do(export)
    user.do(doctor)
    assert pages.next("docs/operations/run.md", "sh").commands == [doctor, run] == [doctor, RUN]


def read_the_lake(pages: Pages, user: User, settings: Block) -> None:
    """Every block that reads, by its engine."""
    savepoint = next(record.n for record in reversed(user.store.publications()) if record.kept)
    path = user.do("cutline where shop.orders --pipeline shop.yaml").strip()
    on_duckdb, at_savepoint, publications = statements(pages.next("README.md", "sql").text)
    by_python = pages.next("docs/lake.md", "python")
    (also_on_duckdb,), (cut, at_snapshot), (lineage,) = (
        statements(pages.next("docs/lake.md", "sql").text) for _ in range(3)
    )
    for query in (on_duckdb, also_on_duckdb):
        assert sorted(by_duckdb(query.replace("'...'", f"'{path}'"))) == ORDERS
    assert rows(last_value(user.here(by_python.text)).to_pylist()) == ORDERS
    cut, at_savepoint = (text.replace("42", str(savepoint)) for text in (cut, at_savepoint))
    named, kept, published, ids = user.by_spark(settings, cut, at_savepoint, publications, lineage)
    (snapshot,) = [row["snapshot_id"] for row in named if row["table"] == "shop.orders"]
    assert (rows(kept), len(ids)) == (ORDERS, len(ORDERS))
    assert {row["table"] for row in published} == {None, "shop.orders"}
    (found,) = user.by_spark(settings, re.sub(r"(?<=AS OF )\d+", str(snapshot), at_snapshot))
    assert rows(found) == ORDERS


def last_value(text: str) -> Any:
    """The value of the expression that ends a block of Python."""
    *before, last = ast.parse(text).body
    assert isinstance(last, ast.Expr)
    names: dict[str, Any] = {}
    exec(compile(ast.Module(before, []), "docs", "exec"), names)
    return eval(compile(ast.Expression(last.value), "docs", "eval"), names)


def while_it_runs(user: User, settings: Block, server: MySQL, more: list[str], choices: list[str]) -> None:
    """README's other commands, the two choices about commits of others, and Ctrl-C; then the same command goes on."""
    assert choices[0] in more
    with user.doing(RUN):
        at = user.until_published("live", user.store.publication_numbers()[-1])
        for line in more:
            printed = "" if line in choices else user.do(line)
            assert "status" not in line or "shop.orders" in printed
        for number, choice in enumerate(choices, 1):
            user.by_spark(settings, f"DELETE FROM lake.shop.orders WHERE id = {number}")
            server.execute(f"INSERT INTO shop.orders VALUES ({number + 10}, 0)")
            at = user.until_published("quarantined", at)
            user.until(lambda: "quarantined" in user.do("cutline status shop.yaml"), "the status to say so")
            user.do(choice)
            server.execute(f"INSERT INTO shop.orders VALUES ({number + 20}, 0)")
            at = user.until_published("live", at)
    source = server.execute("SELECT id, amount FROM shop.orders ORDER BY id")
    with user.doing(RUN):
        user.until_published("live", at)
        (found,) = user.by_spark(settings, "SELECT * FROM lake.shop.orders")
    assert rows(found) == [tuple(row) for row in source if row[0] != 1]  # its deletion was accepted, and stays
