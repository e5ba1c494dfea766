"""Answers the enumerator's questions about the source, on one connection of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from common import mysql
from common.config import PipelineConfig, Point
from common.errors import ConfigError, CutlineError, SourceLost, Unavailable
from common.machine import Effect, Event
from common.positions import FilePosition, High, Low, Position
from services.enumerator.machine import (
    BoundFound,
    DescribeTable,
    FindBound,
    FindRange,
    FindTables,
    RangeFound,
    SplittingFailed,
    TableDescribed,
    TableFound,
    TablesFound,
)
from services.enumerator.splitter import KeyRange

PAUSE_SECONDS = (0.5, 10.0)
log = logging.getLogger("cutline.enumerator")


def source_of(config: PipelineConfig) -> mysql.Source:
    """Where the pipeline's server is; reads the password now, and it is kept nowhere else."""
    return mysql.Source(
        host=config.source.host, port=config.source.port, user=config.source.user, password=config.source.password()
    )


class SourceReader:
    """One connection, opened when it is first needed and again after it was lost. `waiting_for` says what keeps it."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.waiting_for: str | None = None
        self._connection: mysql.Connection | None = None
        self._server: mysql.Server | None = None
        self._lock = threading.Lock()

    async def answer(self, question: Effect) -> Event:
        """Carry a question out; a server that is away is asked again until it is back."""
        pause, longest = PAUSE_SECONDS
        while True:
            try:
                event = await asyncio.to_thread(self._locked, question)
                self.waiting_for = None
                return event
            except Unavailable as error:
                self.waiting_for = f"the source: {error}"
                log.warning("%s", self.waiting_for)
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = None

    def _locked(self, question: Effect) -> Event:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = mysql.connect(source_of(self.config))
                    self._server = mysql.server(self._connection)
                assert self._server is not None
                return self._ask(self._connection, self._server, question)
            except CutlineError:
                self._drop()  # whatever state it is in
                raise

    def _ask(self, connection: mysql.Connection, server: mysql.Server, question: Effect) -> Event:
        match question:
            case FindTables():
                names = self.config.select(mysql.tables(connection))
                found = tuple(self._describe(connection, server, name) for name in names)
                return TablesFound(tables=found, start=self._start(connection, server))
            case DescribeTable(table_id=table_id, generation=generation):
                return TableDescribed(generation=generation, table=self._describe(connection, server, table_id))
            case FindRange(table_id=table_id, generation=generation, schema=schema):
                return _or_failed(table_id, generation, lambda: RangeFound(
                    table_id=table_id, generation=generation, range=_key_range(mysql.key_range(connection, schema))
                ))  # fmt: skip
            case FindBound(table_id=table_id, generation=generation, schema=schema, start=start, rows=rows):
                return _or_failed(table_id, generation, lambda: BoundFound(
                    table_id=table_id, generation=generation, end=mysql.next_bound(connection, schema, start, rows)
                ))  # fmt: skip
        raise TypeError(f"{type(question).__name__} is no question about the source")

    @staticmethod
    def _describe(connection: mysql.Connection, server: mysql.Server, table_id: str) -> TableFound:
        try:
            info = mysql.describe(connection, server, table_id)
        except SourceLost as error:
            return TableFound(table_id=table_id, fault=error.cause)
        if info.faults:
            return TableFound(table_id=table_id, fault="; ".join(info.faults))
        return TableFound(
            table_id=table_id,
            schema=info.schema,
            estimate=info.rows,
            row_bytes=info.row_bytes,
            integer_key=info.integer_key,
        )

    def _start(self, connection: mysql.Connection, server: mysql.Server) -> tuple[Low, High] | None:
        """Where the stream begins if there is no snapshot."""
        start = self.config.start
        if start in ("initial", "snapshot-only"):
            return None
        if start == "latest":
            place = mysql.current_position(connection, server)
        elif start == "earliest":
            place = mysql.first_position(connection, server)
        elif isinstance(start, Point) and start.file is not None and start.position is not None:
            place = mysql.position_at(connection, server, FilePosition(start.file, start.position))
        elif isinstance(start, Point) and start.gtid is not None:
            first = mysql.first_position(connection, server)
            place = Position(server=server.identity, file=first.file, offset=first.offset, gtids=start.gtid)
        else:
            raise ConfigError("start: {timestamp:} is not built yet; give a file and position, or a GTID set")
        low = Low(server=place.server, file=place.file, offset=place.offset, gtids=place.gtids)
        return low, High(server=place.server, file=place.file, offset=place.offset)


def _or_failed(table_id: str, generation: int, ask: Callable[[], Event]) -> Event:
    try:
        return ask()
    except SourceLost as error:  # the table or a column of its key is gone: look again
        return SplittingFailed(table_id=table_id, generation=generation, cause=error.cause, restart=True)


def _key_range(found: tuple[int, int] | None) -> KeyRange:
    return KeyRange(low=None, high=None) if found is None else KeyRange(low=found[0], high=found[1])
