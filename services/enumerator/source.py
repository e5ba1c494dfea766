"""Answers the enumerator's questions about one source, on a connection and in threads of its own."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from cutline.common.causes import Cause, Code, joined
from cutline.common.config import reserved
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.table_options import TableOptions
from cutline.common.errors import (
    ConfigError,
    CutlineError,
    NextGeneration,
    NoTable,
    SourceLost,
    SourceRefused,
    TableLocked,
    Unavailable,
)
from cutline.common.masking import unfit_mask
from cutline.common.mesh.machine import Effect, Event
from cutline.common.positions import High, Low
from cutline.common.status.pipeline_status import BinlogStatus
from cutline.common.table_id import split_table_id, table_id_of
from cutline.common.threads import Threads
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.events import (
    BoundFound,
    DescribeTable,
    FindBound,
    FindPlace,
    FindRange,
    FindStop,
    FindTables,
    PlaceFound,
    RangeFound,
    SplittingFailed,
    SplittingOutdated,
    StopFound,
    TableDescribed,
    TableFound,
    TableLockedOut,
    TablesFound,
)
from cutline.services.enumerator.splitter import KeyRange
from cutline.services.sources.mysql.binlog_age import Place, look
from cutline.services.sources.mysql.catalogue import TableAsked, TableInfo, describe_all, list_tables
from cutline.services.sources.mysql.connection import Connection, break_connection
from cutline.services.sources.mysql.hosts import GRACE_SECONDS, Hosts
from cutline.services.sources.mysql.keys import key_range, next_bound
from cutline.services.sources.mysql.rules import captured
from cutline.services.sources.mysql.server import (
    Server,
    file_start,
    flushed_position,
    identify,
    low_at,
    oldest_transaction_seconds,
    unseen_xa,
    verify_position,
)
from cutline.services.sources.mysql.start_stop import PositionFinder, stop_at

PAUSE_SECONDS = (0.5, 10.0)
SILENT_SECONDS = 10.0
T = TypeVar("T")
_SHADOW = re.compile(r"_+(.+)_(?:gho|ghc|del|new|old)")
log = logging.getLogger("cutline.enumerator")


class SourceReader:
    """One connection, opened at first need and again after a loss, in a thread for this source alone: a source that
    does not answer holds up no other. Tables whose descriptions are wanted at the same time are described together.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.hosts = Hosts(config.source)
        self._problem: Wait | None = None  # why the last try failed
        self._failed: Wait | None = None  # the same, until the source answers: also where no question is open
        self._open: dict[int, tuple[float, float]] = {}  # questions without an answer -> since when, both clocks
        self._numbers = itertools.count()
        self._connection: Connection | None = None
        self._server: Server | None = None
        self._busy = False  # the thread waits for the server
        self._thread, self._places_thread = Threads(f"{config.name}-questions"), Threads(f"{config.name}-places")
        self._notices: set[str] = set()  # already logged
        self._places = PositionFinder(self.hosts.connect, server_id=config.server_id)
        self._wanted: list[tuple[str, asyncio.Future[TableFound]]] = []  # tables to describe
        self._looking: asyncio.Task[None] | None = None
        self._begun: dict[str, float] = {}  # binlog file -> when it began

    @property
    def waiting_for(self) -> Wait | None:
        """Why a question has no answer yet, if one is late."""
        if self._problem is not None or not self._open:
            return self._problem
        asked, since = min(self._open.values())
        if time.monotonic() - asked < SILENT_SECONDS:
            return None
        place = self.hosts.current
        sentence = f"{place} has not answered a question for over {SILENT_SECONDS:.0f} s"
        return Wait(Party.SOURCE, "the source", Cause(Code.UNAVAILABLE, sentence, "is it up?"), since)

    async def answer(self, question: Effect) -> Event:
        """Answer a question; an unreachable server is asked again until it answers."""
        pause, longest = PAUSE_SECONDS
        number = next(self._numbers)
        self._open[number] = time.monotonic(), time.time()
        try:
            while True:
                try:
                    event = await self._answer(question)
                    self._problem = self._failed = None
                    return event
                except (Unavailable, SourceRefused) as error:
                    problem = Wait(Party.SOURCE, "the source", error.cause).as_before(self._failed, time.time())
                    self._failed = problem
                    if self._problem != problem:  # log it once for all questions
                        self._problem = problem
                        log.warning("pipeline %s waits for %s", self.config.name, problem)
                    await asyncio.sleep(pause)
                    pause = min(longest, pause * 2)
        finally:
            del self._open[number]
            if not self._open:
                self._problem = None

    async def _answer(self, question: Effect) -> Event:
        match question:
            case FindStop(stop=stop):  # it may read a whole binlog file, on connections of its own
                return StopFound(place=await self._places_thread.call(partial(self._places.stop, stop)))
            case DescribeTable(table_id=table_id, generation=generation):
                return TableDescribed(generation=generation, table=await self._described(table_id))
        return await self._thread.call(partial(self._on_connection, partial(self._ask, question)))

    async def _described(self, table_id: str) -> TableFound:
        answer: asyncio.Future[TableFound] = asyncio.get_running_loop().create_future()
        self._wanted.append((table_id, answer))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._describe_wanted())
        return await answer

    async def _describe_wanted(self) -> None:
        while wanted := [(table_id, answer) for table_id, answer in self._wanted if not answer.done()]:
            self._wanted = []
            names = sorted({table_id for table_id, _ in wanted})
            try:
                found = await self._thread.call(partial(self._on_connection, partial(self._describe, names)))
            except Exception as error:  # each caller gets it, and decides whether to ask again
                for _, answer in wanted:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for table_id, answer in wanted:
                if not answer.done():
                    answer.set_result(found[table_id])

    async def binlog(self, *, read: Place | None, needed: Collection[Place]) -> BinlogStatus:
        """A look at the source's binlog: how far it goes on after `read`, for how long it still has all that is
        `needed`, and for how long Cutline's oldest transaction there has been open. Ask it rarely. Raises what `look`
        raises, after one try.
        """
        logs = await self._thread.call(partial(self._on_connection, look))
        self._failed = None
        oldest_seconds = await self._thread.call(
            partial(self._on_connection, lambda connection, _: oldest_transaction_seconds(connection))
        )
        oldest = logs.oldest_of(needed)
        begun = {}
        for file in () if oldest is None or not 0 <= oldest < len(logs.files) - 1 else (logs.files[oldest + 1].file,):
            found = self._begun.get(f"{logs.server} {file}")
            begun[file] = await self._places_thread.call(partial(self._places.begun, file)) if found is None else found
        self._begun = {f"{logs.server} {file}": at for file, at in begun.items()}
        return BinlogStatus(
            at=time.time(),
            left_seconds=logs.seconds_left(needed, begun.__getitem__),
            lag_bytes=logs.bytes_after(read),
            retention_seconds=logs.retention_seconds,
            clock_offset_seconds=logs.clock_offset_seconds,
            oldest_transaction_seconds=oldest_seconds,
        )

    def interrupt(self) -> None:
        """Break off the open questions, whose answers are no longer wanted."""
        connection = self._connection
        if self._busy and connection is not None:
            break_connection(connection)

    def close(self) -> None:
        """Close the connections, without waiting for them."""
        self.interrupt()
        self._thread.end(self._drop)
        self._places_thread.end()
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self.hosts.end)

    def _notify(self, notice: str | None) -> None:
        """Log a notice once."""
        if notice is not None and notice not in self._notices:
            self._notices.add(notice)
            log.warning("pipeline %s: %s", self.config.name, notice)

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = None

    def _on_connection(self, ask: Callable[[Connection, Server], T]) -> T:
        self._busy = True
        try:
            if self._connection and not self.hosts.leads_on(self._connection):
                self._drop()  # the main cursor reads another server
            if self._connection is None:
                self._connection = self.hosts.connect()
                self._server = identify(self._connection)
                self._notify(unseen_xa(self._connection))
            assert self._server is not None
            return ask(self._connection, self._server)
        except CutlineError:
            self._drop()  # its state is unknown
            raise
        finally:
            self._busy = False

    def _ask(self, question: Effect, connection: Connection, server: Server) -> Event:
        match question:
            case FindTables(begins=begins, known=known, anew=anew):
                begin = self._start() if begins and not anew else None
                looked_at = _low(connection, server) if begins else None
                existing = list_tables(connection)
                names = [name for name in self.config.select(existing) if name not in known]
                if not begins:
                    names = [name for name in names if name in self.config.tables or not _shadow(name, existing)]
                found = tuple(self._describe(names, connection, server).values())
                if not begins:
                    unselected = known.difference(self.config.select(known))
                    unseen = known.difference(existing, unselected)
                    key = self._mask_key()
                    shapes = None if isinstance(key, Cause) else self.config.shapes(known, key)
                    return TablesFound(tables=found, unseen=unseen, unselected=unselected, shapes=shapes)
                stop = stop_at(server, self.config.stop) if self.config.stop is not None else None
                return TablesFound(tables=found, start=begin, looked_at=looked_at, stop=stop)
            case FindPlace(table_id=table_id, generation=generation, low=low):
                try:
                    verify_position(connection, server, low.start())
                except SourceLost:
                    return PlaceFound(table_id=table_id, generation=generation, kept=False)
                return PlaceFound(table_id=table_id, generation=generation, kept=True)
            case FindRange(table_id=table_id, generation=generation, schema=schema):
                return _or_failed(table_id, generation, lambda: RangeFound(
                    table_id=table_id, generation=generation, range=_key_range(key_range(connection, schema))
                ))  # fmt: skip
            case FindBound(table_id=table_id, generation=generation, schema=schema, start=start, rows=rows):
                return _or_failed(table_id, generation, lambda: BoundFound(
                    table_id=table_id, generation=generation, end=next_bound(connection, schema, start, rows)
                ))  # fmt: skip
        raise TypeError(f"{type(question).__name__} is no question about the source")

    def _describe(self, names: Sequence[str], connection: Connection, server: Server) -> dict[str, TableFound]:
        options = {name: self.config.options_of(name) for name in names}
        asked = [
            TableAsked(table_id=name, identity=tuple(chosen.identity), chunk_by=tuple(chosen.chunk_by))
            for name, chosen in options.items()
        ]
        found = describe_all(
            connection,
            server,
            asked,
            keyless=self.config.keyless == "append",
            unlogged_cascades=self.config.unlogged_cascades == "allow",
        )
        return {name: self._table_found(name, info, options[name]) for name, info in found.items()}

    def _table_found(self, table_id: str, info: TableInfo | SourceLost, options: TableOptions) -> TableFound:
        # Created since the start, which refuses it.
        for fault in reserved.taken([table_id], self.config.sink.own_namespace):
            return TableFound(table_id=table_id, fault=fault)
        match info:
            case NoTable():
                return TableFound(table_id=table_id, gone=True)
            case SourceLost(cause=cause):
                return TableFound(table_id=table_id, fault=cause, hidden=True)
        if info.faults:
            return TableFound(table_id=table_id, fault=joined(info.faults))
        key = self._mask_key()
        if isinstance(key, Cause):
            if options.mask:  # looked at again until the key is there
                return TableFound(table_id=table_id, fault=key.before(f"{table_id} can't be masked: "), hidden=True)
            key = None
        schema = captured(self.config, info.schema, options.shape(key, self.config.python_functions))
        return TableFound(
            table_id=table_id,
            schema=schema,
            fault=unfit_mask(schema, info.chunk_key),
            estimate=info.rows,
            row_bytes=info.row_bytes,
            integer_key=info.integer_key,
            chunk_rows=options.chunk_rows,
            chunk_key=() if info.chunk_key == info.schema.key else info.chunk_key,
        )

    def _mask_key(self) -> str | Cause | None:
        """The fingerprint of the key as it is now, since its file may change; None if the pipeline masks nothing; why
        it is not there."""
        try:
            key = self.config.mask_key()
        except ConfigError as error:  # tables without a mask go on
            return error.cause
        return None if key is None else key.fingerprint

    def _start(self) -> tuple[Low, High] | None:
        """Where a stream without a snapshot begins; None: with a snapshot."""
        place = self._places.start(self.config.start)
        if place is None:
            return None
        return Low.at(place), High.at(place)


def _shadow(name: str, existing: Collection[str]) -> bool:
    """Whether this is a helper table that gh-ost or pt-online-schema-change made beside the table that it changes."""
    schema, table = split_table_id(name)
    match = _SHADOW.fullmatch(table)
    return match is not None and table_id_of(schema, match[1]) in existing


def _low(connection: Connection, server: Server) -> Low:
    """A low that covers only DDL which the catalogue shows from now on. MySQL flushes a DDL before the catalogue shows
    it."""
    at = (file_start if server.mysql else flushed_position)(connection, server)
    return low_at(connection, server, at)


def _or_failed(table_id: str, generation: int, ask: Callable[[], Event]) -> Event:
    try:
        return ask()
    except TableLocked as error:
        return TableLockedOut(table_id=table_id, generation=generation, cause=error.cause)
    except NextGeneration as error:
        return SplittingOutdated(table_id=table_id, generation=generation, cause=error.cause)
    except SourceLost as error:
        return SplittingFailed(table_id=table_id, generation=generation, cause=error.cause)


def _key_range(found: tuple[int, int] | None) -> KeyRange:
    return KeyRange(low=None, high=None) if found is None else KeyRange(low=found[0], high=found[1])
