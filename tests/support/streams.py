"""The binlog of a real server, read by a cursor as a reader does, and compared with the rows of the table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cutline.common.masking import NO_MASKS, Masks
from cutline.common.positions import High, Low, Position
from cutline.common.schema import OP, SEQ, TABLE, TableSchema
from cutline.services.sources.contract import Changes, Route, TableFault
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.connection import connect
from cutline.services.sources.mysql.server import first_position
from cutline.services.sources.mysql.watermark import fold
from tests.support.databases import Database
from tests.support.sources import connected, here, source_of

DEADLINE_SECONDS = 30.0


def route(server: Database, table_id: str, at: Position | None = None, *, high: Position | None = None) -> Route:
    """A route that is past its watermarks, or (with `at`, `high`) not."""
    with connected(server) as (conn, server_info):
        schema = table_schema(conn, table_id)
        first = first_position(conn, server_info)
    low = at or first
    high = high or first
    return Route(
        table_id=table_id,
        generation=1,
        schema=schema,
        low=Low(server=low.server, file=low.file, offset=low.offset, gtids=low.gtids),
        high=High(server=high.server, file=high.file, offset=high.offset),
    )


@dataclass
class FollowingCursor:
    """A cursor and where it stands; follows schemas and forgets tables that faulted, as the reader does."""

    server: Database
    position: Position
    routes: dict[str, Route]
    server_id: int = 77001
    masks: Masks = NO_MASKS
    rows: list[dict[str, Any]] = field(default_factory=list)
    faults: list[TableFault] = field(default_factory=list)
    schemas: list[str] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    seq: int = 0

    def __post_init__(self) -> None:
        self.cursor = BinlogCursor(lambda: connect(source_of(self.server)), server_id=self.server_id, masks=self.masks)

    def read(self, **limits: Any) -> Changes:
        given = {"until": None, "max_rows": 100_000, "max_bytes": 64 << 20, "wait_seconds": 0.3} | limits
        changes = self.cursor.read(self.position, self.routes, **given)
        assert changes.position.not_before(self.position)
        seqs = [seq for batch in changes.batches for seq in batch.batch.column(SEQ).to_pylist()]
        of_one = [(batch.table_id, batch.generation, batch.schema_hash) for batch in changes.batches]
        assert len(set(of_one)) == len(of_one), "a writer takes batches in the order in which they come"
        seqs += [change.seq for change in changes.schemas]
        # what a fault took away leaves its numbers unused
        assert sorted(seqs) == [seq for seq in range(changes.rows) if not changes.faults or seq in seqs]
        rows = [row for batch in changes.batches for row in batch.batch.to_pylist()]
        self.rows += [row | {SEQ: row[SEQ] + self.seq} for row in sorted(rows, key=lambda row: row[SEQ])]
        self.seq += changes.rows
        for change in changes.schemas:
            self.schemas.append(change.ddl)
            self.routes[change.table_id] = replace(self.routes[change.table_id], schema=change.new, looked_at=None)
        for fault in changes.faults:
            self.faults.append(fault)
            del self.routes[fault.table_id]
        self.position = changes.position
        self.positions.append(changes.position)
        return changes

    def drain(self, end: Position | None = None, **limits: Any) -> list[dict[str, Any]]:
        """Read up to where the server is now."""
        end = end or here(self.server)
        high = High(server=end.server, file=end.file, offset=end.offset)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not high.reached_by(self.position):
            assert time.monotonic() < deadline, f"{self.position} does not reach {end}"
            self.read(until=high, **limits)
        return self.rows

    def close(self) -> None:
        self.cursor.close()


@contextmanager
def stream(
    server: Database, tables: Iterable[str], at: Position | None = None, **keywords: Any
) -> Iterator[FollowingCursor]:
    routes = {table: route(server, table) for table in tables}
    with closing(FollowingCursor(server, at or here(server), routes, **keywords)) as opened:
        yield opened


def transaction(server: Database, *statements: str) -> None:
    with closing(server.connect(autocommit=False)) as conn, conn.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        conn.commit()


Content = dict[tuple[str, ...], str]
"""Rows by key; both as text, in which -0.0 is not 0.0."""


def as_text(row: dict[str, Any], schema: TableSchema) -> tuple[tuple[str, ...], str]:
    return tuple(repr(row[name]) for name in schema.key), repr([row[column.name] for column in schema.columns])


def follow(source: Database, routes: dict[str, Route], lake: dict[str, Content], *, strict: bool) -> list[str]:
    """Lay the changes up to now over the rows; `strict`: each must change what is there, and nothing comes twice."""
    end = here(source)
    high = High(server=end.server, file=end.file, offset=end.offset)
    lowest, _ = fold([(route.low, route.high) for route in routes.values()])
    position, faults = lowest.start(), []
    with closing(BinlogCursor(lambda: connect(source_of(source)), server_id=77_008)) as cursor:
        while not high.reached_by(position):
            got = cursor.read(position, routes, until=high, max_rows=1000, max_bytes=1 << 20, wait_seconds=30.0)
            assert not got.faults
            position = got.position
            rows = [row for batch in got.batches for row in batch.batch.to_pylist()]
            for row in sorted(rows, key=lambda row: row[SEQ]):
                content = lake[row[TABLE]]
                key, text = as_text(row, routes[row[TABLE]].schema)
                if strict and (key in content) != (row[OP] != "+I"):
                    faults.append(f"{row[TABLE]}: {row[OP]} of {key} in {sorted(content)}")
                if row[OP] == "-D":
                    content.pop(key, None)
                else:
                    content[key] = text
    return faults
