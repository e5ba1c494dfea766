"""All services of one pipeline on this machine: what `cutline run` does.

In this order:
1. Everything that can be wrong is checked (preflight.py), and a Spark analyses rules and derived tables that are new
   (analysis.py); if there is a fault, nothing is written. The work folder is locked.
2. The pipeline is defined in the store, or found there: what was changed live since is printed, and stays, or with
   `--replace` becomes the file's again.
3. Redis is started unless CUTLINE_REDIS_URL names one; then two enumerators (one stands by), the readers, the writers,
   the Spark writer and the control service, each `python -m ...` in a session of its own, its log in <workdir>/logs.
4. A child that ends is started again, after a pause that grows. One that never stays up ends the run, with the last
   line of its log.
5. On Ctrl-C, or when `--until` is reached: a savepoint is commanded and its publication awaited, then all children are
   stopped. It is the last checkpoint of this run's services only: another mesh on the same store and Redis goes on. A
   second Ctrl-C stops at once. At the pipeline's `stop` the leader takes the last checkpoint by itself.
6. When the pipeline is deleted, the run ends, with nothing to save.

Children die with this process (PR_SET_PDEATHSIG) and are ended by their process ids only.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cutline.common.commands.kinds import Define, ReadAgain, Savepoint
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, CutlineError, SourceLost, SourceRefused, Unavailable
from cutline.common.mesh.loop import in_store
from cutline.common.mesh.presence import Registry, RequestKind
from cutline.common.mesh.redis import connect, place
from cutline.common.mesh.topology import STREAM_READER
from cutline.common.positions import High
from cutline.common.status.pipeline_status import (
    SPARK_WRITER,
    PipelineStatus,
    ReaderStatus,
    SparkWriterStatus,
    TableStatus,
)
from cutline.common.store.commands import Command, Outcome
from cutline.common.store.records import Publication
from cutline.common.store.store import PipelineStore, Store
from cutline.common.threads import Threads
from cutline.services.control.standing import Standing
from cutline.services.run import running
from cutline.services.run.analysis import faults, has_rules
from cutline.services.run.children import Counts, addresses, missing_programs, service_children
from cutline.services.run.conditions import judged
from cutline.services.run.preflight import check, live_changes, queued_changes
from cutline.services.run.supervisor import LONGEST_PAUSE_SECONDS, Child, Supervisor
from cutline.services.run.terminal import TerminalView
from cutline.services.run.until import Until, caught_up, dropped, not_live, pending, unpublished
from cutline.services.run.workdir import locked, remove_run_file, write_run_file
from cutline.services.sources.mysql.hosts import flushed_high
from cutline.spark_writer import jars
from cutline.spark_writer.sinks.iceberg import catalogue

SPARK_HALTS = 3
LOOK_SECONDS = 0.5
SAVEPOINT_SECONDS = 180.0
_SOURCE, _FETCHING = Threads("source"), Threads("jars")


def _service_children(config: PipelineConfig, workdir: Path) -> list[Child]:
    return service_children(Counts(readers=config.workers.readers, writers=config.workers.writers), workdir)


def define(store: PipelineStore, definition: Mapping[str, Any], *, replaces: bool = False) -> None:
    """Define the pipeline, or command what is to change in its definition; the run's own enumerator carries that out.

    Only the source is changed, to the file's: a source that moved, or whose certificate or account is another, may be
    all that keeps the pipeline from running. With `replaces` the definition becomes the file's, whatever was changed
    live and whatever change is queued.
    """
    known = store.definition()
    if known is None:
        store.define(definition)
        return
    queued = queued_changes(store)
    if replaces:
        if queued or PipelineConfig.from_definition(known).definition() != dict(definition):
            whole = Define(definition=dict(definition), note="cutline run --replace")
            running.ask(store, whole, by="cutline run")
    elif {**known, "source": None} != {**definition, "source": None}:
        store.define(definition)  # changed in this moment: refused
    elif known["source"] != definition["source"]:
        wish = Define(base=store.definition_version(), definition=dict(definition), note="source of the file")
        if queued:  # whichever definition is in force after them
            wish = Define(source=definition["source"], note="source of the file")
        running.ask(store, wish, by="cutline run")


class Deleted(CutlineError):
    """Somebody has deleted the pipeline of this run."""


class Run:
    """One `cutline run`, from its first check to the end of its last child."""

    def __init__(
        self,
        config: PipelineConfig,
        environment: Environment,
        *,
        workdir: Path,
        until: Until | None,
        view: TerminalView,
        replaces: bool = False,
        reads_again: bool = False,
    ) -> None:
        """Take the pipeline and where to show it; nothing happens before `go`."""
        self._config = config
        self._replaces = replaces
        self._reads_again = reads_again
        self._id = secrets.token_hex(8)
        self._environment = environment
        self._workdir = workdir
        self._temporary = workdir / "tmp"
        self._until = until
        self._view = view
        self._interrupts = 0
        self._woken = asyncio.Event()
        self._status = PipelineStatus()
        self._notes: tuple[str, ...] = ()
        self._publication: Publication | None = None
        self._published = 0
        self._target: High | None = None
        self._asked: asyncio.Task[High] | None = None  # the source, for that target
        self._spark_failed_at: tuple[float | None, ...] = ()

    async def go(self) -> None:
        """Run until Ctrl-C or `until`; return if all is well, else raise the error that names the cause."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)
        config, environment = self._config, self._environment
        self._store_url = environment.store_url or f"file://{self._workdir / 'store'}"
        definition = await self._checked()
        if definition is None:
            return
        await _FETCHING.call(
            jars.fetch,
            jars.folder(),
            extras=catalogue.extras(definition["sink"]),
            settings=config.sink.spark,
            progress=self._fetching,
        )
        store = Store(self._store_url).pipeline(config.name)
        await self._refuse_rules(definition, await in_store(store.definition))
        with locked(self._workdir):
            await in_store(self._say_changes, store)
            known = store.definition_version() > 0
            await in_store(partial(define, store, definition, replaces=self._replaces))
            if self._reads_again and known:  # a new pipeline reads all anyway
                await in_store(partial(running.ask, store, ReadAgain(), by="cutline run"))
            self._config = PipelineConfig.from_definition(definition).model_copy(update={"workers": config.workers})
            (self._workdir / "logs").mkdir(exist_ok=True)
            await self._run(store)

    async def _checked(self) -> Mapping[str, Any] | None:
        """The definition, checked once the source answers; None if a signal came first."""
        pause = 1.0
        while not self._interrupts:
            asked = asyncio.create_task(_SOURCE.call(self._check))
            while not (await asyncio.wait([asked], timeout=LOOK_SECONDS))[0]:
                self._view.update(PipelineStatus(), notes=("waiting for the source and the store to answer",))
                if self._woken.is_set():  # a server that hangs in a handshake would hold Ctrl-C up
                    asked.cancel()
                    return None
            try:
                return asked.result()
            except Unavailable as error:
                self._view.update(PipelineStatus(), notes=(f"{error}; trying again in {pause:.0f} s",))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)
        return None

    def _check(self) -> Mapping[str, Any]:
        missing = missing_programs(self._environment)
        return check(
            self._config,
            store_url=self._store_url,
            workdir=self._workdir,
            known_faults=missing,
            takes="file" if self._replaces else "stored",
        )

    async def _refuse_rules(self, definition: Mapping[str, Any], stored: Mapping[str, Any] | None) -> None:
        """Raise ConfigError with each rule and derived table that Spark refuses, if they are new or others than stored.
        If it can't be known now, the tables that it concerns are quarantined later."""
        config = PipelineConfig.from_definition(definition)
        if has_rules(config):
            self._view.update(PipelineStatus(), notes=("Spark analyses the rules and derived tables",))
        with suppress(Unavailable):
            if found := await _SOURCE.call(faults, config, stored):
                raise ConfigError.several(found)

    def _say_changes(self, store: PipelineStore) -> None:
        """Print what was changed live since the pipeline file was written, and what is done about it."""
        if changes := live_changes(store, self._config):
            taken = "it is taken; `cutline run --replace` takes the file's"
            way, version = "the file's replaces it" if self._replaces else taken, store.definition_version()
            text = f"the stored definition (version {version}) differs from the file: {', '.join(changes)}"
            self._view.say(f"{text}; {way}")
        for command in queued_changes(store):
            then = ", and then the file's definition replaces it" if self._replaces else ""
            text = f"command {command.n} ({command.kind}, by {command.by}) waits: this run carries it out{then}"
            self._view.say(text)

    def _fetching(self, done: int, total: int) -> None:
        """Show how much of Spark's jars is fetched; called while they are fetched, which an error raised here ends."""
        if self._interrupts:
            raise CutlineError("stopped while fetching Spark's jars", "the same command fetches them again")
        self._view.update(PipelineStatus(), notes=(f"fetching Spark's jars, once: {done >> 20} of {total >> 20} MiB",))

    def _interrupted(self) -> None:
        self._interrupts += 1
        self._woken.set()

    async def _run(self, store: PipelineStore) -> None:
        workers = self._config.workers
        where = addresses(
            self._environment,
            self._workdir,
            store_url=self._store_url,
            readers=workers.readers,
            writers=workers.writers,
        )
        self._redis_url, self._api_url = where.redis_url, where.api_url
        shutil.rmtree(self._temporary, ignore_errors=True)  # left by a killed run: we hold the lock of the work folder
        self._temporary.mkdir(mode=0o700)
        children = [*where.redis, *_service_children(self._config, self._workdir)]
        self._supervisor = Supervisor(children, {**where.environ, "CUTLINE_RUN": self._id})
        redis = connect(self._redis_url)
        self._registry = Registry(redis)
        self._standing = Standing(self._registry, Store(self._store_url))
        self._view.say(f"{self._config.name}: logs in {self._workdir / 'logs'}, API at {self._api_url}")
        try:
            with suppress(Unavailable):  # the status of an earlier run, in a Redis that outlived it
                await self._registry.forget(store.key)
            while not self._interrupts and not await self._done():
                await self._look(store)
            by_itself = (self._until or self._config.stop) and not self._interrupts
            trouble = not_live(self._tables()) if by_itself else None
            if (last := self._ended()) is None:
                await self._savepoint(store)
            else:
                self._view.update(self._status, publication=self._publication)
                self._view.say(f"the stop is reached: checkpoint {last} is published and kept")
            if (gone := dropped(self._tables())) is not None:
                self._view.say(gone)
            if trouble is not None:
                raise CutlineError(trouble)
        except Deleted as deleted:
            if self._until is not None:
                raise
            self._view.say(str(deleted))
        finally:
            if self._asked is not None:
                self._asked.cancel()
            await self._supervisor.stop(hurry=lambda: self._interrupts > 1)
            remove_run_file(self._workdir)
            shutil.rmtree(self._temporary, ignore_errors=True)
            await redis.aclose()

    def _tables(self) -> Mapping[str, TableStatus]:
        return self._status.tables

    async def _look(self, store: PipelineStore) -> None:
        """Restart children that ended, show the newest status, and wait LOOK_SECONDS or for a signal."""
        for sentence in self._supervisor.tick(time.monotonic()):
            self._view.say(sentence)
        self._write_run_file()
        notes, known = [], {}
        try:
            self._status = await self._registry.status(store.key)
            known = {store.life: self._status}
        except Unavailable:
            notes.append(f"Redis at {place(self._redis_url)} does not answer; trying again")
        try:
            if not await in_store(store.exists):
                raise Deleted(f"the pipeline {store.name} was deleted, so this run ends")
            if await in_store(store.deleting):
                notes.append("the pipeline is being deleted; this run ends with it")
            if newest := await in_store(running.newest_publication, store, self._published):
                self._publication, self._published = newest, newest.n
        except Unavailable as error:
            notes.append(f"{error}; trying again")
        if halted := self._status.enumerator.halted:
            raise CutlineError(halted.before("the pipeline halted: ").advised(f"see {self._workdir / 'logs'}"))
        members = {**self._status.readers, **self._status.writers}
        notes += [f"{name} waits for {part.waiting_for}" for name, part in sorted(members.items()) if part.waiting_for]
        if (failure := self._status.spark_writer.failure) is not None:
            notes.append(f"{SPARK_WRITER}: {failure.cause}; starting again in {failure.again_seconds:g} s")
        self._check_spark(self._status.spark_writer)
        conditions = judged(await self._standing.of_pipelines(known))
        self._view.update(
            self._status, publication=self._publication, notes=(*notes, *self._notes), conditions=conditions
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), LOOK_SECONDS)
        self._woken.clear()

    def _check_spark(self, spark: SparkWriterStatus) -> None:
        """End the run once the Spark writer has failed SPARK_HALTS times in a row by a fault that no retry removes."""
        failure = spark.failure
        if failure is None or failure.kind not in ("ConfigError", "ProtocolError"):
            self._spark_failed_at = ()
            return
        if spark.at not in self._spark_failed_at:
            self._spark_failed_at = (*self._spark_failed_at, spark.at)
        if len(self._spark_failed_at) >= SPARK_HALTS:
            raise (ConfigError if failure.kind == "ConfigError" else CutlineError)(failure.cause)

    def _write_run_file(self) -> None:
        content = {
            "pid": os.getpid(),
            "redis_url": self._redis_url,
            "store_url": self._store_url,
            "api_url": self._api_url,
            "services": self._supervisor.pids(),
        }
        write_run_file(self._workdir, content)

    def _ended(self) -> int | None:
        """The checkpoint at the pipeline's stop, None if it is not published yet."""
        last = self._status.enumerator.ended
        return last if last is not None and self._published >= last else None

    async def _done(self) -> bool:
        """Whether the stop or the goal of `--until` is published; takes the target of `caught-up` once it can."""
        if self._ended() is not None:
            return True
        tables = self._tables()
        if self._until is None or not tables:
            return False
        if self._until == "snapshot":
            return not unpublished(tables, self._publication)
        if self._target is None and not pending(tables):
            if self._asked is None:
                at = self._status.readers.get(STREAM_READER, ReaderStatus()).source_host
                self._asked = asyncio.create_task(_SOURCE.call(flushed_high, self._config, at=at))
            if not (await asyncio.wait([self._asked], timeout=LOOK_SECONDS))[0]:
                self._notes = ("waiting for the source to say where its binlog ends",)
                return False
            asked, self._asked = self._asked, None
            try:
                self._target = asked.result()
            except (Unavailable, SourceRefused) as error:
                self._notes = (str(error),)
                return False
            self._notes = ()
        if self._target is None or self._publication is None:
            return False
        try:
            return caught_up(tables, self._publication, self._target)
        except SourceLost:  # another server took over: its own position is the target now
            self._target = None
            return False

    async def _savepoint(self, store: PipelineStore) -> None:
        """Command a last savepoint and wait for its publication; CutlineError if it does not come, or on Ctrl-C. A
        pipeline that people hold needs none."""
        stop_at, deadline = self._interrupts + 1, time.monotonic() + SAVEPOINT_SECONDS
        command: Command | None = None
        wish = Savepoint(run=self._id)
        self._view.say("taking a savepoint" + ("; Ctrl-C again stops at once" if self._interrupts else ""))
        while time.monotonic() < deadline:
            if self._interrupts >= stop_at:
                raise CutlineError("stopped without a savepoint", "the same command resumes from the last checkpoint")
            outcome: Outcome | None = None
            with suppress(Unavailable):
                if command is None:
                    if (held := await in_store(_held, store)) is not None:
                        self._view.say(held)
                        return
                    asked = partial(running.ask, store, wish, by="cutline run", key=self._id)
                    command = await in_store(asked)
                    await self._registry.request(store.key, {"kind": RequestKind.LOOK})  # a hint only
                outcome = await in_store(store.commands.outcome, command.n)
            await self._look(store)
            if outcome is None:
                self._notes = ("waiting for the savepoint's checkpoint",)
            elif outcome.state != "done":
                raise CutlineError(
                    f"stopped without a savepoint, since {outcome.cause}",
                    "the same command resumes from the last checkpoint",
                )
            elif self._published < (slot := int(outcome.result["checkpoint"])):
                self._notes = (f"the savepoint is checkpoint {slot}; waiting for its publication",)
            else:
                self._notes = ()
                self._view.update(self._status, publication=self._publication)
                self._view.say(f"savepoint: checkpoint {slot} is published and kept; the same command resumes there")
                return
        raise CutlineError(
            f"no savepoint was published within {SAVEPOINT_SECONDS:.0f} s ({'; '.join(self._notes)})",
            "the same command resumes from the last checkpoint",
        )


def _held(store: PipelineStore) -> str | None:
    """Why the pipeline needs no last savepoint, as people have stopped it; None if it does need one. Blocks."""
    mode = store.commands.orders().mode
    if not store.exists():
        raise Deleted(f"the pipeline {store.name} was deleted, so this run ends")
    if mode == "deleting":
        return f"the pipeline {store.name} is being deleted; the next start of a service goes on with that"
    if mode in ("paused", "stopped"):
        return f"the pipeline {store.name} is {mode}, so its last checkpoint is the newest: there is nothing to save"
    return None
