"""Serves each pipeline in a thread of its own, which starts an incarnation, steps it, and starts the next on error.

A process alone serves every pipeline of the store; among several, each serves those that it leads (leading.py). A
pipeline that comes back while its last step here still goes on gets another thread at once: the claim w fences the old
one. One that was deleted and made again is another pipeline (store/lives.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from cutline.common import logs
from cutline.common.causes import Cause, Code
from cutline.common.commands import rules
from cutline.common.commands.kinds import ReadTableAgain
from cutline.common.derived import derived_of
from cutline.common.errors import ConfigError, CutlineError, DiskFull, Unavailable, is_full
from cutline.common.mesh.presence import RequestKind
from cutline.common.status.pipeline_status import Failure, Held, SparkWriterStatus
from cutline.common.store.commands import SPARK as SPARK_TAKES
from cutline.common.store.lives import Key, name_of
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore, Store
from cutline.spark_writer.apply import Incarnation
from cutline.spark_writer.java_errors import first_line, says_full
from cutline.spark_writer.lead import Everything, Lead
from cutline.spark_writer.ports import Flag, Ports, Running

logger = logging.getLogger("cutline.spark_writer")
LOOK_SECONDS = 0.5
ANSWERS = 50
"""So many commands' ends stay in the status."""


def serve(
    store: Store,
    stop: Flag,
    ports: Ports,
    leads: Callable[[Collection[Key]], Mapping[Key, Lead]] | None = None,
    *,
    metrics_tables: int = 200,
) -> None:
    """Serve the pipelines of the store, also those defined later, each lead in a thread of its own, until `stop`.

    `leads`, called with the keys of all pipelines each LOOK_SECONDS, returns those to serve; without it all are served.
    It is not called while the store can't list them. Each status has the sizes of `metrics_tables` tables. Raises
    Unavailable if the engine has ended.
    """
    leads = leads or Everything(ports.flag)
    threads: dict[Lead, Running] = {}
    failure = ""
    try:
        while not stop.is_set():
            try:
                lives = {life.key: life for life in store.lives()}
            except Exception as error:
                if str(error) != failure:
                    logger.warning("the store's pipelines could not be listed: %s", error)
                failure = str(error)
            else:
                failure = ""
                for key, lead in leads(lives.keys()).items():
                    if lead.served:
                        continue
                    lead.served = True
                    if key not in lives:  # deleted since the lease was taken
                        lead.ended.set()
                    else:
                        driver = Driver(store.open(lives[key]), lead, ports, metrics_tables=metrics_tables)
                        threads[lead] = ports.start(driver.run, f"cutline-{name_of(key)}")
            threads = {lead: thread for lead, thread in threads.items() if thread.is_alive()}
            ports.engine.check()
            stop.wait(LOOK_SECONDS)
    finally:
        for lead in threads:
            lead.stop.set()
    for thread in threads.values():
        thread.join()


class Driver:
    """Serves one pipeline: starts an incarnation, steps it, and starts the next after an error."""

    POLL_SECONDS = 0.5
    """The longest pause between two looks at the journal, the requests and the lead; the next entry ends it."""
    AGAIN_SECONDS = (0.5, 60.0)
    """The pause after the first failure, and the longest one; it doubles with each start that publishes nothing."""
    REQUEST_SECONDS = 10.0
    """The pause after a request that waits."""
    ASK_SECONDS = (10.0, 600.0)
    """The first and the longest pause between two commands to read a table's generation again."""

    def __init__(self, store: PipelineStore, lead: Lead, ports: Ports, *, metrics_tables: int = 200) -> None:
        """`lead` gets a status after each batch, request and error, with the sizes of `metrics_tables` tables."""
        self._store = store
        self._lead = lead
        self._ports = ports
        self._clock = ports.clock
        self._metrics_tables = metrics_tables
        self._requests_at = float("-inf")
        self._answers: dict[int, str | None] = {}  # commands carried out, by number -> why not
        self._asked: dict[tuple[str, int], tuple[int, float, float]] = {}  # -> command, when to ask again, next pause
        self._failing_since: float | None = None  # the first start ended then of those that have failed in a row

    def run(self) -> None:
        """Serve until the lead ends. Errors go to the status and the log, and the next incarnation starts after a
        pause.

        A pipeline that is handed over ends between two batches, with nothing that its next leader must apply again.
        """
        logs.note(pipeline=self._store.name)
        try:
            self._serve()
        finally:
            self._lead.ended.set()

    def _serve(self) -> None:
        lead, failures = self._lead, 0
        while not lead.is_ending():
            incarnation: Incarnation | None = None
            try:
                if not self._is_sure() or self._is_deleted() or (version := self._version()) is None:
                    lead.stop.wait(self.POLL_SECONDS)
                    continue
                sink = self._ports.engine.open(self._store, version)
                derived = derived_of(self._store.definition(version) or {})
                incarnation = Incarnation(
                    self._store,
                    sink,
                    clock=self._clock,
                    pool=self._ports.pool,
                    derived=derived,
                    over=partial(self._is_overtaken, version),
                )
                lead.report(self._progress(incarnation))
                published_at_start = incarnation.progress.published
                while self._goes_on(incarnation):
                    goes_on = self._step(incarnation, version)
                    if incarnation.progress.published is not published_at_start:
                        failures, self._failing_since = 0, None
                    if not goes_on:
                        break
            except Exception as error:
                shortest, longest = self.AGAIN_SECONDS
                pause = min(longest, shortest * 2.0 ** min(failures, 30))
                self._report_failure(error, pause, incarnation)
                failures += 1
                if incarnation is not None:
                    incarnation.abandon()
                resumes_at = self._clock.monotonic() + pause
                while self._clock.monotonic() < resumes_at and not lead.is_ending():
                    lead.stop.wait(min(pause, self.POLL_SECONDS))
            finally:
                if incarnation is not None:
                    incarnation.close()

    def _is_overtaken(self, version: int) -> bool:
        """Whether what a start by this version of the definition computes is in vain, so that it need not be finished:
        a query of a derived table may take for ever."""
        return self._lead.stop.is_set() or self._store.deleting() or self._version() != version

    def _is_sure(self) -> bool:
        return self._lead.is_sure(self._clock.monotonic())

    def _goes_on(self, incarnation: Incarnation) -> bool:
        """Whether a start takes its next step. One that is handed over ends between two batches."""
        handed_over = self._lead.hand_over.is_set() and not incarnation.progress.unpublished
        return not (self._lead.stop.is_set() or handed_over or self._store.deleting())

    def _step(self, incarnation: Incarnation, version: int) -> bool:
        """Carry out the requests, apply and publish the next batch, do the upkeep that is due, or rest; False if a new
        start must continue, by another version of the definition."""
        lead = self._lead
        self._carry_out_requests(incarnation)
        busy = incarnation.step()
        if incarnation.definition not in (None, version):
            logger.info("pipeline %s: its definition has changed; starting again", self._store.name)
            incarnation.abandon()
            return False
        if busy:
            lead.report(self._progress(incarnation))
        if self._is_sure() and not lead.is_ending() and incarnation.upkeep.run():
            lead.report(self._progress(incarnation))
        with suppress(Unavailable):
            self._ask_to_read_again(incarnation.progress.read_again)
        if not busy:
            incarnation.rest(self.POLL_SECONDS, lead.stop.wait)
        return True

    def _carry_out_requests(self, incarnation: Incarnation) -> None:
        """Carry out the requests. One that is wrong, or was withdrawn, is dropped; after any other error it waits, and
        the start goes on, as the error may be of this request alone.
        """
        lead, name = self._lead, self._store.name
        while lead.requests and self._clock.monotonic() >= self._requests_at:
            body = lead.requests.popleft()
            request: Any = None
            try:
                request = json.loads(body)
                kind, n = RequestKind(request["kind"]), request.get("command")
                if n is not None and (taker := self._store.commands.take(n, SPARK_TAKES)) != SPARK_TAKES:
                    raise ConfigError(f"command {n} was withdrawn: {taker}")
                if kind == RequestKind.CHOOSE:
                    incarnation.choose(request["table"], request["choice"], request["seen"])
                else:
                    incarnation.retry(request.get("table"))
                self._answer(request, None)
            except (ConfigError, ValueError, KeyError, TypeError) as error:
                logger.warning("pipeline %s: request %r was dropped: %s", name, body, error)
                self._answer(request, str(error))
            except Exception as error:
                logger.warning("pipeline %s: request %r waits: %s", name, body, first_line(error))
                lead.requests.append(body)
                self._requests_at = self._clock.monotonic() + self.REQUEST_SECONDS
                return
            lead.handled.append(body)
            lead.report(self._progress(incarnation))

    def _ask_to_read_again(self, wanted: Mapping[str, int]) -> None:
        """Command that tables whose lake table lost data are read again, each generation until the next one has come:
        a command that did nothing, or was refused, is repeated after a pause that doubles."""
        self._asked = {key: asked for key, asked in self._asked.items() if wanted.get(key[0]) == key[1]}
        commands, now = self._store.commands, self._clock.monotonic()
        for table, generation in wanted.items():
            n, again_at, pause = self._asked.get((table, generation), (0, now, self.ASK_SECONDS[0]))
            if now < again_at or (n and commands.get(n) is not None and commands.outcome(n) is None):
                continue
            state = rules.state(commands.orders().mode, halted=False, ended=False)
            wish = ReadTableAgain(table=table, generation=generation)
            if self._is_sure() and wish.refusal(state) is None:
                n = commands.add(wish.kind, wish.arguments(), by="the Spark writer", now=self._clock.time()).n
            self._asked[table, generation] = (n, now + pause, min(2 * pause, self.ASK_SECONDS[1]))

    def _answer(self, request: Any, cause: str | None) -> None:
        """Let the status tell the end of a request that is a command."""
        if isinstance(request, dict) and (n := request.get("command")) is not None:
            self._answers[int(n)] = cause
            while len(self._answers) > ANSWERS:
                del self._answers[next(iter(self._answers))]

    def _is_deleted(self) -> bool:
        """Whether the pipeline is being deleted; then nothing more is applied. If it is ordered, drop the lake tables
        that the pipeline made."""
        if not self._store.deleting():
            return False
        if self._store.purges():
            newest = self._store.commands.orders().definition
            version = newest if self._store.definition(newest) is not None else 1
            dropped = self._ports.engine.purge(self._store, version)
            logger.info("pipeline %s is deleted: dropped its %d lake tables", self._store.name, dropped)
            if self._store.purges():
                self._store.put_purged()
        return True

    def _version(self) -> int | None:
        """The version of the definition that the newest epoch uses; None if the journal has no checkpoint yet, without
        which a start would claim a number in vain."""
        slot = self._store.last_slot()
        entry = self._store.entry(slot) if slot else None
        if entry is None or (isinstance(entry, EpochEntry) and entry.base is None):
            return None
        epoch = entry if isinstance(entry, EpochEntry) else self._store.entry(entry.epoch)
        return epoch.definition if isinstance(epoch, EpochEntry) else self._store.commands.orders().definition

    def _progress(self, incarnation: Incarnation) -> SparkWriterStatus:
        """Return the status of a start that goes on."""
        progress, upkeep = incarnation.progress, incarnation.upkeep
        record = progress.published
        return SparkWriterStatus(
            at=self._clock.time(),
            counters=progress.measures.counters(),
            histograms=progress.measures.histograms(),
            w=progress.w,
            applied=progress.applied,
            published=None if record is None else record.n,
            published_at=None if record is None else record.published_at,
            source_time=None if record is None else record.source_time,
            quarantined=_quarantined(incarnation),
            commands=dict(self._answers),
            applied_by_spark=upkeep.applied_elsewhere(),
            applies=progress.applies.shown(),
            files=upkeep.files(self._metrics_tables),
            compaction=upkeep.compaction(),
            derived=incarnation.derived.status,
        )

    def _is_over(self) -> bool:
        """Whether the pipeline is being deleted, or is gone: an error of a start is then no fault."""
        try:
            return self._store.deleting() or self._store.has_ended()
        except CutlineError:
            return False

    def _report_failure(self, error: Exception, pause: float, incarnation: Incarnation | None) -> None:
        if self._is_over():
            logger.info("pipeline %s: this start ends, as the pipeline is deleted: %s", self._store.name, error)
            return
        if isinstance(error, Unavailable):
            logger.warning("pipeline %s: %s; starting again in %g s", self._store.name, error, pause)
        elif isinstance(error, CutlineError):
            logger.error("pipeline %s: %s; starting again in %g s", self._store.name, error, pause)
        else:
            logger.exception("pipeline %s: unexpected error; starting again in %g s", self._store.name, pause)
        known = self._progress(incarnation) if incarnation is not None else self._lead.status
        cause = _cause_of(error)
        now, before = self._clock.time(), self._lead.status.failure
        if self._failing_since is None:  # the leader before may have said that its starts fail
            self._failing_since = now if before is None or before.since is None else before.since
        failure = Failure(cause=cause, kind=type(error).__name__, again_seconds=pause, since=self._failing_since)
        self._lead.report(replace(known, at=now, failure=failure))


def _cause_of(error: Exception) -> Cause:
    if says_full(error) or (isinstance(error, OSError) and is_full(error)):
        return Cause(DiskFull.code, f"a disk that the Spark writer needs is full: {first_line(error)}", DiskFull.remedy)
    return error.cause if isinstance(error, CutlineError) else Cause(Code.UNEXPECTED, str(error))


def _quarantined(incarnation: Incarnation) -> dict[str, Held]:
    found = {
        table_id: Held(cause=held.cause, generation=held.generation, since=held.since)
        for table_id, held in incarnation.progress.quarantined.items()
    }
    derived = incarnation.derived
    found |= {name: held for name, held in derived.held.items() if name not in found}
    for table_id, commits in {**derived.foreign, **incarnation.foreign}.items():
        found[table_id] = replace(
            found[table_id], seen=commits.seen, choices=commits.choices, chosen=commits.chosen
        )
    return found
