"""Answers the enumerator's questions about the source, on one connection of its own."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from cutline.common import mysql
from cutline.common.config import PipelineConfig
from cutline.common.errors import CutlineError, NextGeneration, SourceLost, Unavailable
from cutline.common.keys import key_range, next_bound
from cutline.common.machine import Effect, Event
from cutline.common.positions import High, Low
from cutline.services.enumerator.machine import (
    BoundFound,
    DescribeTable,
    FindBound,
    FindRange,
    FindStop,
    FindTables,
    RangeFound,
    SplittingFailed,
    StopFound,
    TableDescribed,
    TableFound,
    TablesFound,
)
from cutline.services.enumerator.splitter import KeyRange
from cutline.services.reader.places import Places, named

PAUSE_SECONDS = (0.5, 10.0)
_SHADOW = re.compile(r"_+(.+)_(?:gho|ghc|del|new|old)")
log = logging.getLogger("cutline.enumerator")


class SourceReader:
    """One connection, opened when it is first needed and again after it was lost. `waiting_for` says what keeps it."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.waiting_for: str | None = None
        self._connection: mysql.Connection | None = None
        self._server: mysql.Server | None = None
        self._lock = threading.Lock()
        self._places = Places(self._connect, server_id=config.server_id)

    async def answer(self, question: Effect) -> Event:
        """Carry a question out; a server that is away is asked again until it is back."""
        pause, longest = PAUSE_SECONDS
        while True:
            try:
                if isinstance(question, FindStop):  # it may read a binlog file, and on connections of its own
                    return StopFound(place=await asyncio.to_thread(self._places.stop, question.stop))
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

    def _connect(self) -> mysql.Connection:
        return mysql.connect(mysql.Source.of(self.config.source))

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = None

    def _locked(self, question: Effect) -> Event:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                    self._server = mysql.server(self._connection)
                assert self._server is not None
                return self._ask(self._connection, self._server, question)
            except CutlineError:
                self._drop()  # whatever state it is in
                raise

    def _ask(self, connection: mysql.Connection, server: mysql.Server, question: Effect) -> Event:
        match question:
            case FindTables(begins=begins, known=known):
                begin = self._start() if begins else None
                looked_at = _low(connection, server) if begins else None
                there = mysql.tables(connection)
                names = [name for name in self.config.select(there) if name not in known]
                if not begins:
                    names = [name for name in names if name in self.config.tables or not _shadow(name, there)]
                found = tuple(self._describe(connection, server, name) for name in names)
                if not begins:
                    return TablesFound(tables=found)
                stop = named(server, self.config.stop) if self.config.stop is not None else None
                return TablesFound(tables=found, start=begin, looked_at=looked_at, stop=stop)
            case DescribeTable(table_id=table_id, generation=generation):
                return TableDescribed(generation=generation, table=self._describe(connection, server, table_id))
            case FindRange(table_id=table_id, generation=generation, schema=schema):
                return _or_failed(table_id, generation, lambda: RangeFound(
                    table_id=table_id, generation=generation, range=_key_range(key_range(connection, schema))
                ))  # fmt: skip
            case FindBound(table_id=table_id, generation=generation, schema=schema, start=start, rows=rows):
                return _or_failed(table_id, generation, lambda: BoundFound(
                    table_id=table_id, generation=generation, end=next_bound(connection, schema, start, rows)
                ))  # fmt: skip
        raise TypeError(f"{type(question).__name__} is no question about the source")

    def _describe(self, connection: mysql.Connection, server: mysql.Server, table_id: str) -> TableFound:
        options = self.config.options_of(table_id)
        try:
            info = mysql.describe(
                connection,
                server,
                table_id,
                keyless=self.config.keyless == "append",
                identity=options.identity,
                chunk_by=options.chunk_by,
                unlogged_cascades=self.config.unlogged_cascades == "allow",
            )
        except SourceLost as error:
            return TableFound(table_id=table_id, fault=error.cause, gone=True)
        if info.faults:
            return TableFound(table_id=table_id, fault="; ".join(info.faults))
        return TableFound(
            table_id=table_id,
            schema=replace(info.schema, booleans=self.config.values.tinyint1 == "boolean"),
            estimate=info.rows,
            row_bytes=info.row_bytes,
            integer_key=info.integer_key,
            chunk_rows=options.chunk_rows,
            chunk_key=() if info.chunk_key == info.schema.key else info.chunk_key,
        )

    def _start(self) -> tuple[Low, High] | None:
        """Where the stream begins if there is no snapshot."""
        place = self._places.start(self.config.start)
        if place is None:
            return None
        low = Low(server=place.server, file=place.file, offset=place.offset, gtids=place.gtids)
        return low, High(server=place.server, file=place.file, offset=place.offset)


def _shadow(name: str, there: Collection[str]) -> bool:
    """Whether that is what gh-ost or pt-online-schema-change has beside a table while it changes it, or after."""
    schema, _, table = name.partition(".")
    of = _SHADOW.fullmatch(table)
    return of is not None and f"{schema}.{of[1]}" in there


def _low(connection: mysql.Connection, server: mysql.Server) -> Low:
    """A low that covers what the catalogue surely shows from now on: MySQL shows a DDL after it has flushed it."""
    at = (mysql.file_start if server.mysql else mysql.flushed_position)(connection, server)
    return mysql.low_at(connection, server, at)


def _or_failed(table_id: str, generation: int, ask: Callable[[], Event]) -> Event:
    try:
        return ask()
    except SourceLost as error:  # look again if the table or a column of its key is gone
        again = isinstance(error, NextGeneration)
        return SplittingFailed(table_id=table_id, generation=generation, cause=error.cause, restart=again)


def _key_range(found: tuple[int, int] | None) -> KeyRange:
    return KeyRange(low=None, high=None) if found is None else KeyRange(low=found[0], high=found[1])
