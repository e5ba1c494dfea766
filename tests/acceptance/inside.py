"""Runs in a container of docker-compose.yml: waits until the lake shows the end of the source, then compares tables.

The end of the source is its binlog's end now, so nothing may change it any more. Prints one JSON object: for each table
the number of its rows, and of the keys whose rows differ or that only one side has.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pymysql

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.config.source import SourceConfig
from cutline.common.positions import High
from cutline.common.store.store import Store
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.server import flushed_position, identify
from cutline.spark_writer import session

WAIT_SECONDS = 180.0


def main() -> None:
    """Wait, compare and print."""
    config = load(Path("/etc/cutline/pipeline.yaml"))
    store = Store(Environment.read().need_store_url()).pipeline(config.name)
    with closing(connection_to(config.source)) as connection:
        server = identify(connection)
        at = flushed_position(connection, server)
        end = High(server=server.identity, file=at.file, offset=at.offset)
        deadline = time.monotonic() + WAIT_SECONDS
        while (shown := store.publications()[-1].position) is None or not end.reached_by(shown):
            if time.monotonic() > deadline:
                raise SystemExit(f"the lake shows {shown} after {WAIT_SECONDS:.0f} s, not {at.file}:{at.offset}")
            time.sleep(0.5)
        spark = session.for_config(config)
        found = {}
        with connection.cursor() as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'")
            for (name,) in cursor.fetchall():
                key = table_schema(connection, f"shop.{name}").key
                cursor.execute(f"SELECT * FROM shop.{name}")
                names = [column[0] for column in cursor.description or ()]
                source_rows = by_key(names, key, cursor.fetchall())
                columns = spark.sql(f"SELECT * FROM lake.shop.{name}").toArrow().to_pydict()
                lake_rows = by_key(names, key, list(zip(*(columns[each] for each in names), strict=True)))
                wrong = sum(source_rows.get(each) != lake_rows.get(each) for each in {*source_rows, *lake_rows})
                found[name] = {"rows": len(source_rows), "differences": wrong}
    print(json.dumps(found))
    session.stop()


def connection_to(source: SourceConfig) -> pymysql.connections.Connection[Any]:
    """A plain connection to the source, in UTC."""
    return pymysql.connect(
        host=source.host, port=source.port, user=source.user, password=source.password(),
        charset="utf8mb4", init_command="SET time_zone = '+00:00'",
    )  # fmt: skip


def by_key(names: list[str], key: tuple[str, ...], rows: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Rows by their key; all times in UTC, as the source's text has them."""
    places = [names.index(name) for name in key]
    found = {}
    for row in rows:
        plain = tuple(value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in row)
        found[tuple(plain[place] for place in places)] = plain
    assert len(found) == len(rows), "a key stands twice"
    return found


if __name__ == "__main__":
    main()
