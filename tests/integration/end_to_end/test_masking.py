"""Masked columns and columns that no rule needs, on the whole way: their values are in nothing that Cutline writes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cutline.spark_writer import session
from tests.support.databases import Database
from tests.support.hammer import Hammer
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, Pipeline, connection
from tests.support.operator import done, redefined

SECRETS = ("clear-", "unread-", "1977-")
"""How all values begin that nothing may have: of masked columns, and of one that no rule needs."""
PEOPLE = {"select": ["* EXCEPT (secret)", "length(email) AS size"], "where": "email IS NOT NULL"}


def changing(people: str, orders: str) -> Callable[[Any, random.Random, int], None]:
    def change(cursor: Any, luck: random.Random, number: int) -> None:
        key, email = luck.randrange(300), f"'clear-{luck.randrange(200)}'"
        cursor.execute(f"REPLACE INTO {orders} VALUES ({key}, {email}, {number})")
        if luck.random() < 0.2:
            cursor.execute(f"DELETE FROM {people} WHERE id = {key}")
        else:
            born = f"'1977-{luck.randrange(1, 13):02}-03'"
            email = luck.choice([email, "NULL"])
            cursor.execute(f"REPLACE INTO {people} VALUES ({key}, {email}, {born}, 'unread-{number}', 'n{number}')")

    return change


def hashed(key: str, value: Any) -> str | None:
    """As docs/shaping.md says."""
    if value is None:
        return None
    return hashlib.blake2b(str(value).encode(), key=key.encode(), digest_size=16).hexdigest()


def rows_of(pipeline: Pipeline, table: str, columns: str, more: str = "") -> list[tuple[Any, ...]]:
    with closing(connection(pipeline.server)) as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {table} {more} ORDER BY id")
        return list(cursor.fetchall())


def in_lake(reader: Any, table: str) -> list[tuple[Any, ...]]:
    reader.sql(f"REFRESH TABLE lake.{table}")
    return [tuple(row.values()) for row in reader.sql(f"SELECT * FROM lake.{table} ORDER BY id").toArrow().to_pylist()]


def agree(pipeline: Pipeline, reader: Any, people: str, orders: str, key: str, email: str = "email") -> None:
    """The lake has of both tables what the source has, by this key."""
    pipeline.catches_up(people, orders)
    savepoint(pipeline, f"{email}-{key}")
    wanted = [
        (int(n), hashed(key, mail), hashed(key, born), name, 32)
        for n, mail, born, name in rows_of(pipeline, people, f"id, {email}, born, name", f"WHERE {email} IS NOT NULL")
    ]
    assert in_lake(reader, people) == wanted
    assert in_lake(reader, orders) == [
        (int(n), hashed(key, mail), int(amount)) for n, mail, amount in rows_of(pipeline, orders, "id, buyer, amount")
    ]
    joined = reader.sql(f"SELECT count(*) FROM lake.{people} p JOIN lake.{orders} o ON p.{email} = o.buyer").collect()
    own = rows_of(pipeline, people, "count(*), 0 AS id", f"p JOIN {orders} o ON p.{email} = o.buyer")
    assert joined[0][0] == int(own[0][0]) > 0


def written(mesh: Mesh) -> Iterator[tuple[str, str]]:
    """All that is in store, lake and logs, and what Redis has: where, and as text."""
    for path in [*mesh.folder.rglob("*.parquet")]:
        try:
            yield str(path), str(pq.read_table(path).to_pylist())
        except (OSError, pa.ArrowInvalid):  # it was swept, or is being written
            continue
    for path in [path for path in mesh.folder.rglob("*") if path.is_file() and path.suffix != ".parquet"]:
        yield str(path), path.read_bytes().decode("latin1")
    client = mesh.redis.client()
    for name in client.keys("*"):
        if client.type(name) == b"stream":
            yield str(name), str(client.xrange(name))


def test_values_of_masked_columns_and_of_columns_that_no_rule_needs_are_in_nothing_that_is_written(
    source: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """0. Without the key only the table that has no mask is copied.
    1. Two tables with masked columns, of which one has a rule too, are copied under changes, joined by a mask.
    2. A masked column gets another name at the source, which holds its table back until the definition names it.
    3. The key changes, and both tables are read again by the new one.
    4. A mask of the key is refused.
    """
    schema = fresh_database(source)
    people, orders, plain = f"{schema}.people", f"{schema}.orders", f"{schema}.plain"
    source.execute(
        f"CREATE TABLE {people} (id INT PRIMARY KEY, email VARCHAR(40), born DATE, secret TEXT, name VARCHAR(40))",
        f"INSERT INTO {people} VALUES "
        + ", ".join(f"({n}, 'clear-{n % 200}', '1977-01-02', 'unread-{n}', 'n')" for n in range(300)),
        f"CREATE TABLE {plain} (id INT PRIMARY KEY)",
        f"CREATE TABLE {orders} (id INT PRIMARY KEY, buyer TEXT, amount INT)",
        f"INSERT INTO {orders} VALUES " + ", ".join(f"({n}, 'clear-{n}', 1)" for n in range(200)),
    )

    def options(*mask: str, **more: Any) -> list[dict[str, Any]]:
        return [{"tables": people, "mask": list(mask), **PEOPLE, **more}, {"tables": orders, "mask": ["BUYER"]}]

    first, second = "the first key of the test", "the second key of the test"
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        pipeline = mesh.pipeline(
            "lake", source, [people, orders, plain], table_options=options("email", "born"),
            more=f"masking: {{key_file: {tmp_path}/key}}\n",
        )  # fmt: skip
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])

        def quarantined(table: str) -> str:
            newest = pipeline.checkpoint()
            return str(newest.tables[table].cause) if newest and newest.tables[table].phase == "quarantined" else ""

        pipeline.until(lambda: pipeline.shows(plain), "the table without a mask")
        assert "can't be masked" in quarantined(people)
        (tmp_path / "key").write_text(first)
        with Hammer(source, changing(people, orders), threads=1, pause_seconds=0.01) as hammer:
            pipeline.until(lambda: pipeline.shows(people, orders), "both to be live")
            pipeline.goes_on(3)
            found = [where for where, text in written(mesh) if any(secret in text for secret in SECRETS)]
            hammer.stop()
        agree(pipeline, reader, people, orders, first)
        source.execute(f"ALTER TABLE {people} RENAME COLUMN email TO mail")
        source.execute(f"REPLACE INTO {people} VALUES (1000, 'clear-1000', '1977-01-01', 'unread-1000', 'n')")
        pipeline.until(lambda: "'email', which is no column" in quarantined(people), "the table to be held back")
        rule = {"select": ["* EXCEPT (secret)", "length(mail) AS size"], "where": "mail IS NOT NULL"}
        done(pipeline, "define", **redefined(pipeline, table_options=options("mail", "born", **rule)))
        pipeline.until(lambda: pipeline.shows(people), "it to be live again by itself")
        agree(pipeline, reader, people, orders, first, "mail")
        (tmp_path / "key").write_text(second)
        before = {name: pipeline.generation(name) for name in (people, orders)}
        pipeline.until(
            lambda: all(pipeline.generation(name) > before[name] for name in before), "both to be read by the new key"
        )
        pipeline.until(lambda: pipeline.shows(people, orders), "both to be live")
        agree(pipeline, reader, people, orders, second, "mail")
        done(pipeline, "define", **redefined(pipeline, table_options=options("mail", "born", "id", **rule)))
        pipeline.until(lambda: "'id', by whose values rows are found" in quarantined(people), "the mask to be refused")
        found += [where for where, text in written(mesh) if any(secret in text for secret in SECRETS)]
        assert found == []
