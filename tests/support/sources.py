"""A real server as Cutline sees it: a connection of the capturing user's, the end of its binlog, rows by SELECT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from cutline.common.positions import Position
from cutline.common.schema import TableSchema
from cutline.services.sources.mysql.connection import Connection, RowStream, Source, connect
from cutline.services.sources.mysql.decode.result import ResultDecoder
from cutline.services.sources.mysql.keys import Key, select_rows
from cutline.services.sources.mysql.server import (
    Server,
    flushed_position,
    gtid_executed,
    identify,
    position_at,
)
from tests.support.databases import Database


def source_of(server: Database) -> Source:
    return Source(host=server.host, port=server.port, user=server.user, password=server.password)


def by_tls(server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encrypt later connections, except to a MariaDB that makes no certificate by itself (test_connection.py)."""
    if not server.version.startswith("10.11."):
        monkeypatch.setattr("cutline.services.sources.mysql.tls.mode", lambda *_: "required")


@contextmanager
def connected(server: Database) -> Iterator[tuple[Connection, Server]]:
    with closing(connect(source_of(server))) as conn:
        yield conn, identify(conn)


def here(server: Database) -> Position:
    """The end of the binlog now; nobody else writes."""
    with connected(server) as (conn, server_info):
        at = flushed_position(conn, server_info)
        position = position_at(conn, server_info, at)
        return replace(position, gtids=str(gtid_executed(conn))) if server_info.mysql and server_info.gtid else position


def prepare(server: Database, xid: str, *statements: str) -> None:
    """Leave a prepared XA transaction behind."""
    with closing(server.connect()) as conn, conn.cursor() as cursor:
        cursor.execute(f"XA START {xid}")
        for statement in statements:
            cursor.execute(statement)
        cursor.execute(f"XA END {xid}")
        cursor.execute(f"XA PREPARE {xid}")


def rows_of(conn: Connection, schema: TableSchema, start: Key | None, end: Key | None) -> pa.Table:
    decoder = ResultDecoder(schema)
    blocks = RowStream(conn, select_rows(schema, start, end))
    while not decoder.done:
        decoder.feed(next(blocks))
    batch = decoder.take()
    return pa.Table.from_batches([] if batch is None else [batch], schema=schema.arrow)
