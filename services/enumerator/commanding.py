"""Carries out what a leader's agenda asks for: reads commands, writes outcomes and definitions, asks the Spark writer.

Every call may be made twice, by two leaders or by one that did not get its answer: what is put is put if absent, and a
definition that is there already is recognised by the number of its command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cutline.common.commands.kinds import (
    CancelCommand,
    CancelTable,
    ChooseAboutLake,
    Define,
    DeleteSavepoint,
    Restore,
    RetryTable,
)  # fmt: skip
from cutline.common.config.pipeline import FIXED, PipelineConfig
from cutline.common.config.source import SourceConfig
from cutline.common.errors import ConfigError, CutlineError, ProtocolError, SourceLost, Unavailable
from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.ports import Ports
from cutline.common.mesh.presence import RequestKind
from cutline.common.positions import Position
from cutline.common.status.pipeline_status import SPARK_WRITER, PipelineStatus
from cutline.common.store.command_records import Command, Orders, Outcome
from cutline.common.store.commands import SPARK
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.restoring import restorable, restorable_savepoints
from cutline.common.store.store import PipelineStore
from cutline.common.table_id import glob_of
from cutline.services.enumerator.events import (
    AskSparkWriter,
    BaseFound,
    CommandAnswered,
    DefinitionPut,
    FindBase,
    FindOutcome,
    OutcomeRefused,
    OutcomeWritten,
    PutDefinition,
    ReleaseSavepoint,
    Settings,
    WriteOutcome,
)
from cutline.services.enumerator.reach import place_after

ASK_AGAIN_SECONDS = 5.0
LOOK_SECONDS = 0.5
LEAVE_SECONDS = 3.0
"""A member notices within this time that the streams of its epoch are gone: it sends something each second."""
SPARK_SECONDS = 90.0  # how long a Spark writer may take to answer
NOBODY = "no Spark writer is running, and only one can do this"
SILENT = f"the Spark writer did not begin it for {SPARK_SECONDS:.0f} s"
"""Takers of commands that are withdrawn from the Spark writer, as causes."""
SOURCE_SECONDS = 20.0  # how long the source may take, before a restore
log = logging.getLogger("cutline.enumerator")


def asked_definition(command: Command, known: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The definition that a command asks for; `known` is the one that it changes."""
    match command.wish:
        case Define(definition=definition) if definition is not None:
            return dict(definition)
        case Define(source=source):  # by `cutline run`, of whichever version is in force by then
            return {**(known or {}), "source": source}
        case CancelTable(table=table):
            return {**(known or {}), "tables": [*(known or {})["tables"], f"!{glob_of(table)}"]}
    raise ProtocolError(f"command {command.n} ({command.kind}) asks for no definition")


def fixed_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings in `FIXED` that differ between two definitions."""
    changed = []
    for name in FIXED:
        *above, last = name.split(".")
        old, new = before, after
        for key in above:
            old, new = old.get(key) or {}, new.get(key) or {}
        if old.get(last) != new.get(last):
            changed.append(name)
    return changed


def put_definition(store: PipelineStore, command: Command, definition: Mapping[str, Any], in_force: int) -> int:
    """Put what a command makes of the version in force, and return its number. Blocks. It is a version of the pipeline
    once the command's outcome says so: a command that fails, or that a deposed leader takes once more, leaves none."""
    while True:
        for known in store.definitions_above(in_force):
            if known.command == command.n:  # put before an answer was lost
                return known.version
        version = store.next_definition()
        note = command.wish.note if isinstance(command.wish, Define) else None
        if store.put_definition(
            version, definition, by=command.by, at=command.at, command=command.n, note=note, base=in_force
        ):
            return version


class Commanding:
    """The driver's side of one pipeline's commands."""

    def __init__(
        self,
        store: PipelineStore,
        ports: Ports,
        settings_of: Callable[[PipelineConfig], Settings],
        verify_reach: Callable[[SourceConfig, Position], None],
    ) -> None:
        """`settings_of` gives the leader's part of a definition; `verify_reach`: see `Sources`."""
        self.store = store
        self._settings_of, self._verify_reach = settings_of, verify_reach
        self._clock, self._notes = ports.clock, ports.notes
        self._in_store, self._removing = ports.pools.store.call, ports.pools.remove
        self._source = ports.pools.own(f"{store.name}-restore", 1)
        self.purging = False  # a deletion waits until the Spark writer has dropped the lake tables

    def read(self) -> tuple[int, Orders, tuple[Command, ...], tuple[Command, ...]]:
        """The number of the newest finished command, the standing orders, the commands before it that are open, and
        those after it. Blocks."""
        newest = self.store.commands.newest_outcome()
        n = 0 if newest is None else newest.n
        orders = Orders() if newest is None else newest.orders
        found = self.store.commands.unfinished(newest)
        return n, orders, tuple(c for c in found if c.n < n), tuple(c for c in found if c.n > n)

    def config(self, version: int) -> PipelineConfig:
        """A version of the definition. Blocks; ConfigError if it is gone or of a newer Cutline."""
        definition = self.store.definition(version)
        if definition is None:
            raise ConfigError(
                f"version {version} of the definition of pipeline {self.store.name} is gone from the store",
                "restore it from a backup",
            )
        return PipelineConfig.from_definition(definition)

    def settings(self, version: int) -> Settings:
        """The leader's part of a version. Blocks."""
        return self._settings_of(self.config(version))

    async def carry_out(self, effect: Effect) -> Event:
        """Carry out one order of the agenda. Raises Unavailable if the store does not answer."""
        match effect:
            case WriteOutcome(outcome=outcome):
                return await self._in_store(self._write, outcome)
            case PutDefinition(command=command, in_force=in_force):
                return await self._in_store(self._define, command, in_force)
            case FindBase(command=command, definition=definition):
                return await self._find_base(command, definition)
            case ReleaseSavepoint(command=command):
                return await self._in_store(self._release, command)
            case AskSparkWriter(command=command):
                return await self._ask_spark_writer(command)
            case FindOutcome(command=command):
                return await self._in_store(self._find_outcome, command)
        raise TypeError(f"{type(effect).__name__} is no order about commands")

    def _write(self, outcome: Outcome) -> Event:
        written = self.store.commands.put_outcome(outcome)
        if not written and self.store.commands.outcome(outcome.n) != outcome:
            return OutcomeRefused(n=outcome.n)
        if outcome.n % 100 == 0:
            self.store.commands.retire()
        log.info("pipeline %s: command %d is %s", self.store.name, outcome.n, outcome.state)
        return OutcomeWritten(n=outcome.n)

    def _define(self, command: Command, in_force: int) -> Event:
        n, base = command.n, command.wish.base if isinstance(command.wish, Define) else None
        if base is not None and base != in_force:
            return refused(
                n,
                f"the definition was changed meanwhile: version {in_force} is in force, and the change is made from"
                f" version {base}",
                f"make the change from version {in_force}",
            )
        known = self.store.definition(in_force) or {}
        try:
            config = PipelineConfig.from_definition(asked_definition(command, known))
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            return refused(n, f"the definition is not valid: {error}", "correct it")
        definition = config.definition()
        if fixed := fixed_changes(PipelineConfig.from_definition(known).definition(), definition):
            return refused(
                n, f"{', '.join(fixed)} can't be changed: the rows copied so far depend on it", "make a new pipeline"
            )
        version = put_definition(self.store, command, definition, in_force)
        settings, before = self._settings_of(config), self._settings_of(PipelineConfig.from_definition(known))
        limits = asdict(settings.limits) if settings.limits != before.limits else None
        return DefinitionPut(n=n, version=version, settings=settings, limits=limits)

    async def _find_base(self, command: Command, definition: int) -> Event:
        assert isinstance(command.wish, Restore)
        n, checkpoint = command.n, command.wish.checkpoint
        if not await self._in_store(restorable, self.store, checkpoint):
            others = await self._in_store(restorable_savepoints, self.store)
            kept = ", ".join(map(str, others))
            remedy = f"choose one that is kept, as {kept}" if others else "take a checkpoint first"
            cause = f"checkpoint {checkpoint} can't be restored: it does not exist, or retention removed it"
            return refused(n, cause, remedy)
        place = await self._in_store(place_after, self.store, checkpoint)
        if place is None:
            return BaseFound(n=n)
        config = await self._in_store(self.config, definition)
        try:
            async with asyncio.timeout(SOURCE_SECONDS):
                await self._source.call(self._verify_reach, config.source, place)
        except SourceLost as error:
            return refused(
                n,
                f"checkpoint {checkpoint} can't be restored: the source can't go on at {place}, where it stands."
                f" {error.cause.sentence}",
                f"restore a later checkpoint, or read every table again: cutline pipeline read-again {self.store.name}",
            )
        except (TimeoutError, CutlineError) as error:
            problem = str(error) or f"it has not answered for {SOURCE_SECONDS:.0f} s"
            return BaseFound(
                n=n,
                warning=f"the source could not be asked whether it still has the binlog after {place}: {problem}; if it"
                " has not, the pipeline halts there and says so, and reading every table again helps",
            )
        return BaseFound(n=n)

    def _release(self, command: Command) -> Event:
        assert isinstance(command.wish, DeleteSavepoint)
        n, checkpoint = command.n, command.wish.checkpoint
        entry = self.store.entry(checkpoint) if checkpoint > 0 else None
        savepoint = isinstance(entry, CheckpointEntry) and entry.kept
        # Repeated after an unclear answer it is done, too.
        if not savepoint or not self.store.removal.release(checkpoint, n):
            return refused(n, f"checkpoint {checkpoint} is no savepoint", "look at the list of savepoints")
        return CommandAnswered(n=n, state="done", result={"checkpoint": checkpoint})

    def _find_outcome(self, command: Command) -> Event:
        """What became of the command that this one cancels."""
        assert isinstance(command.wish, CancelCommand)
        n, other = command.n, command.wish.command
        outcome = self.store.commands.outcome(other)
        if outcome is not None and outcome.state == "cancelled":
            return CommandAnswered(n=n, state="done", result={"command": other})
        if outcome is not None:
            return refused(n, f"command {other} is {outcome.state} already", "there is nothing to cancel")
        if other < n and self.store.commands.get(other) is not None:
            # It waits for the Spark writer: any other command before this one is finished.
            why = f"{command.by} cancelled it by command {n}"
            if self.store.commands.take(other, why) == why:
                return CommandAnswered(n=n, state="done", result={"command": other})
            return refused(n, f"the Spark writer carries command {other} out already", "wait for its end")
        return refused(n, f"the pipeline has no command {other}", "look at the list of its commands")

    async def _ask_spark_writer(self, command: Command) -> Event:
        """Ask until the status of the Spark writer has an answer to this command, or somebody withdraws it. After
        SPARK_SECONDS it is withdrawn; if the Spark writer has taken it by then, its answer is awaited as long again."""
        n, deadline, asked_at = command.n, self._clock.monotonic() + SPARK_SECONDS, float("-inf")
        request: dict[str, Any] | None = None
        while True:
            try:
                taker = await self._in_store(self.store.commands.taker, n)
                if taker is not None and taker != SPARK:
                    return withdrawn(n, taker)
                if taker is None:
                    late = SILENT if self._clock.monotonic() > deadline else None
                    why = late if await self._spark_writer_runs() else NOBODY
                    if why is not None:
                        await self._in_store(self.store.commands.take, n, why)
                        continue
                elif self._clock.monotonic() > deadline + SPARK_SECONDS:
                    cause = "the Spark writer began it, and has not said what became of it"
                    return CommandAnswered(n=n, state="failed", cause=cause, remedy="look at the table's state")
                status = await self._notes.status(self.store.key)
                if n in (answers := status.spark_writer.commands):
                    refusal = answers[n]
                    return CommandAnswered(n=n, state="done") if refusal is None else refused(n, refusal, "look again")
                if request is None:
                    request = {**self._request(command, status), "command": n}
                if self._clock.monotonic() - asked_at > ASK_AGAIN_SECONDS:
                    asked_at = self._clock.monotonic()
                    await self._notes.request(self.store.key, request, to=SPARK_WRITER)
            except ConfigError as error:
                return refused(n, error.cause.sentence, error.cause.remedy)
            except Unavailable as error:
                log.warning("pipeline %s: command %d waits: %s", self.store.name, n, error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _spark_writer_runs(self) -> bool:
        return any(service.role == SPARK_WRITER for service in await self._notes.services())

    @staticmethod
    def _request(command: Command, status: PipelineStatus) -> dict[str, Any]:
        match command.wish:
            case ChooseAboutLake(table=table, choice=choice, seen=seen):
                seen = status.choice(table, choice, seen=seen)
                return {"kind": RequestKind.CHOOSE, "table": table, "choice": choice, "seen": seen}
            case RetryTable(table=table):
                if table not in status.spark_writer.quarantined:
                    raise ConfigError(f"{table} is not quarantined")
                return {"kind": RequestKind.RETRY, "table": table}
        raise ProtocolError(f"command {command.n} ({command.kind}) is none for the Spark writer")

    def close(self) -> None:
        """End its thread, without waiting for a source that is being asked."""
        self._source.end()

    async def delete(self) -> None:
        """Remove the pipeline's files, all but what says that it is being deleted. May be repeated after any part of
        it. Before each step that destroys, the store is asked whether the pipeline is still to be deleted."""
        await self._in_store(self.store.put_deleting)
        while await self._in_store(self.store.purges):
            self.purging = True
            await asyncio.sleep(LOOK_SECONDS)
        self.purging = False
        await self._removing.call(self._remove_files)
        await self._notes.forget(self.store.key)
        await asyncio.sleep(LEAVE_SECONDS)
        await self._removing.call(self._remove_files)  # what members wrote until they left

    def _remove_files(self) -> None:
        orders = self.store.commands.orders()
        if not self.store.has_ended() and orders.mode != "deleting":
            raise ProtocolError(
                f"pipeline {self.store.name} is {orders.mode}, and its leader was about to remove its files",
                "nothing was removed",
            )
        self.store.remove_files()


def withdrawn(n: int, taker: str) -> CommandAnswered:
    """The answer to a command that was withdrawn from the Spark writer, by its taker."""
    if taker == NOBODY:
        return refused(n, taker, "start one, and ask again")
    if taker == SILENT:
        return CommandAnswered(n=n, state="failed", cause=taker, remedy="see that it goes on, and ask again")
    return CommandAnswered(n=n, state="cancelled", cause=taker, remedy="ask again if it is wanted after all")


def refused(n: int, cause: str, remedy: str) -> CommandAnswered:
    """The answer to a command that makes no sense now."""
    return CommandAnswered(n=n, state="refused", cause=cause, remedy=remedy)
