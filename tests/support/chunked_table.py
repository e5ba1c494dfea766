"""A table of a real server that is read in chunks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.mesh.messages import Key, SnapshotSplit
from cutline.common.positions import FilePosition, High, Low
from cutline.common.schema import TableSchema
from cutline.services.sources.contract import ChunkResult
from cutline.services.sources.mysql import chunk
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.chunk import Window, read_chunk
from cutline.services.sources.mysql.connection import Connection, Source, connect
from cutline.services.sources.mysql.kept import KeptConnection
from tests.support.databases import Database


class ChunkedTable:
    """One table of a server, as a reader sees it."""

    def __init__(self, server: Database, table_id: str) -> None:
        self.server, self.table_id = server, table_id
        self.at = Source(host=server.host, port=server.port, user=server.user, password=server.password)
        with closing(self.connect()) as conn:
            self.schema: TableSchema = table_schema(conn, table_id)

    def connect(self) -> Connection:
        return connect(self.at)

    def column(self, name: str) -> list[Any]:
        """All its values at the server, in order."""
        return [value for (value,) in self.server.execute(f"SELECT {name} FROM {self.table_id} ORDER BY {name}")]

    def cursor(self) -> BinlogCursor:
        return BinlogCursor(self.connect, server_id=424_242)

    def split(self, start: Key | None = None, end: Key | None = None) -> SnapshotSplit:
        return SnapshotSplit(
            split_id="s",
            table_id=self.table_id,
            generation=1,
            attempt=1,
            split_key_type=self.schema.split_key_type,
            split_start=start,
            split_end=end,
            schema=self.schema,
        )

    def read(
        self, split: SnapshotSplit | None = None, mode: chunk.Mode = "replay", **options: Any
    ) -> tuple[pa.Table, ChunkResult]:
        with closing(Window(self.cursor())) as window, closing(KeptConnection(self.connect)) as kept:
            asked = {"mode": mode, "window": window} | options
            *batches, end = read_chunk(kept, split or self.split(), **asked)
        assert isinstance(end, ChunkResult)
        table = pa.Table.from_batches(batches, schema=self.schema.arrow)
        assert table.num_rows == end.rows
        return table, end


@pytest.fixture
def table(source: Database, database: str) -> Callable[..., ChunkedTable]:
    """Makes the table t with these columns and rows."""

    def make(columns: str, rows: str = "") -> ChunkedTable:
        source.execute(f"CREATE TABLE {database}.t ({columns})")
        if rows:
            source.execute(f"INSERT INTO {database}.t VALUES {rows}")
        return ChunkedTable(source, f"{database}.t")

    return make


@contextmanager
def meanwhile(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object], *, after: bool) -> Iterator[None]:
    """Something happens right after (or before) a step of the chunk reader."""
    real = getattr(chunk, step)

    def stepped(*args: Any) -> Any:
        if not after:
            act()
        result = real(*args)
        if after:
            act()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(chunk, step, stepped)
        yield


@dataclass(frozen=True, kw_only=True)
class LoggedUpdate:
    """One update as the binlog has it."""

    version: int
    gtid: str
    start: FilePosition


def flushed(at: High | Low, changes: list[LoggedUpdate]) -> int:
    """The newest version that lies before that place in the binlog."""
    return bisect_left(changes, FilePosition(at.file, at.offset), key=lambda change: change.start)
