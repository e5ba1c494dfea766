"""Readers in Python, each in a new process: ConnectorX and PyMySQL for a SELECT, mysql-replication for a binlog."""

from __future__ import annotations

from contextlib import closing

import pymysql
from pymysql.cursors import SSCursor
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import UpdateRowsEvent

from tools.bench.readers import Figures, Stopwatch

_FETCHED = 10_000


def connectorx(host: str, port: int, table: str) -> Figures:
    """Read the table as one Arrow table, over one connection."""
    import connectorx

    stopwatch = Stopwatch()
    found = connectorx.read_sql(f"mysql://root@{host}:{port}/mysql", f"SELECT * FROM {table}", return_type="arrow")
    return stopwatch.figures(found.num_rows)


def pymysql_rows(host: str, port: int, table: str, limit: int) -> Figures:
    """Read the first `limit` rows as Python tuples, not buffered."""
    stopwatch, rows = Stopwatch(), 0
    with closing(pymysql.connect(host=host, port=port, user="root", cursorclass=SSCursor)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} LIMIT {limit}")
            while block := cursor.fetchmany(_FETCHED):
                rows += len(block)
    return stopwatch.figures(rows)


def mysql_replication(host: str, port: int, table: str, file: str, offset: int, limit: int) -> Figures:
    """Read the first `limit` updates from this place on, as Python dicts."""
    stopwatch, rows = Stopwatch(), 0
    database, _, name = table.partition(".")
    stream = BinLogStreamReader(
        connection_settings={"host": host, "port": port, "user": "root", "password": ""},
        server_id=7501,
        resume_stream=True,
        log_file=file,
        log_pos=offset,
        only_events=[UpdateRowsEvent],
        only_schemas=[database],
        only_tables=[name],
    )
    with closing(stream):
        for event in stream:
            rows += len(event.rows)
            if rows >= limit:
                return stopwatch.figures(rows)
    raise RuntimeError(f"mysql-replication ended after {rows} of {limit} changes")
