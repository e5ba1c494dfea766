"""Serves each pipeline in a thread of its own, which starts an incarnation, steps it, and starts the next on error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore, Store
from cutline.spark_writer import catalogue, session
from cutline.spark_writer.apply import Incarnation
from cutline.spark_writer.engine import SPARK
from cutline.spark_writer.iceberg.lake import Lake

logger = logging.getLogger("cutline.spark_writer")
LOOK_SECONDS = 0.5
Requests = Sequence[Mapping[str, Any]]


def serve(
    store: Store,
    stop: threading.Event,
    report: Callable[[str, Mapping[str, Any]], None],
    requests: Callable[[str], Requests] = lambda pipeline: (),
) -> None:
    """Serve every pipeline of the store, also those defined later, each in a thread of its own, until `stop`.

    Those threads call `report(pipeline, status)`, and `requests(pipeline)` for the requests that came since the last
    call. Raises ConfigError or Unavailable if Spark can't be started or has ended.
    """
    definitions = {name: store.pipeline(name).definition() or {} for name in store.pipelines()}
    settings: dict[str, str] = {}
    for definition in definitions.values():
        settings |= definition["sink"].get("spark") or {}
    spark = session.start(settings)
    threads: dict[str, threading.Thread] = {}
    while not stop.is_set():
        with suppress(Unavailable):  # the store does not answer; the next round asks it again
            for name in store.pipelines():
                if name not in threads:
                    applier = _applier(store, name, spark, report, requests)
                    threads[name] = threading.Thread(
                        target=applier.run, args=(stop,), name=f"cutline-{name}", daemon=True
                    )
                    threads[name].start()
        _check(spark)
        stop.wait(LOOK_SECONDS)
    for thread in threads.values():
        thread.join()


def _check(spark: Any) -> None:
    """Raise Unavailable if Spark has ended: only another process can start it again."""
    try:
        ended = spark.sparkContext._jsc.sc().isStopped()
    except Exception as error:
        raise Unavailable(f"Spark's JVM does not answer ({session.first_line(error)}); starting again") from error
    if ended:
        raise Unavailable("Spark has stopped; starting again")


def _applier(
    store: Store,
    name: str,
    spark: Any,
    report: Callable[[str, Mapping[str, Any]], None],
    requests: Callable[[str], Requests],
) -> PipelineApplier:
    pipeline = store.pipeline(name)

    def open_lake() -> tuple[Lake, PipelineConfig]:
        definition = pipeline.definition()
        if definition is None:
            raise ConfigError(f"the definition of pipeline {name} is gone from the store; run `cutline run` again")
        if faults := catalogue.faults(definition["sink"], store.url):
            raise ConfigError(*faults)
        config = PipelineConfig.from_definition(definition)
        return Lake(session.for_pipeline(spark, definition["sink"]), name, config.options_of), config

    return PipelineApplier(
        pipeline,
        open_lake,
        report=lambda status: report(name, status),
        requests=lambda: requests(name),
    )


class PipelineApplier:
    """Serves one pipeline: starts an incarnation, steps it, and starts the next after an error."""

    POLL_SECONDS = 0.25
    AGAIN_SECONDS = (0.5, 60.0)
    """The pause after the first failure, and the longest one; it doubles with each start that publishes nothing."""

    def __init__(
        self,
        store: PipelineStore,
        open_lake: Callable[[], tuple[Lake, PipelineConfig]],
        *,
        report: Callable[[Mapping[str, Any]], None] = lambda status: None,
        requests: Callable[[], Requests] = lambda: (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`report` gets a status (plain JSON) after each batch, request and error; `requests` returns a person's
        requests since its last call: `retry` (try quarantined tables again), `lake` (a choice of `presence.choice`).
        """
        self._store = store
        self._open_lake = open_lake
        self._report = report
        self._requests = requests
        self._clock = clock

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop`. Errors go to the status and the log, and the next incarnation starts after a pause."""
        failures = 0
        while not stop.is_set():
            incarnation: Incarnation | None = None
            try:
                if not self._has_checkpoint():
                    stop.wait(self.POLL_SECONDS)
                    continue
                lake, config = self._open_lake()
                incarnation = Incarnation(
                    self._store, lake, engine=config.sink.engine, retention=config.retention, clock=self._clock
                )
                self._report_progress(incarnation)
                published_at_start = incarnation.progress.published
                while not stop.is_set():
                    for request in self._requests():
                        self._take(request, incarnation)
                    busy = incarnation.step()
                    if busy:
                        self._report_progress(incarnation)
                    if incarnation.progress.published is not published_at_start:
                        failures = 0
                    incarnation.upkeep.run()
                    if not busy:
                        stop.wait(self.POLL_SECONDS)
            except Exception as error:
                shortest, longest = self.AGAIN_SECONDS
                pause = min(longest, shortest * 2.0 ** min(failures, 30))
                self._report_failure(error, pause, incarnation)
                failures += 1
                if incarnation is not None:
                    incarnation.abandon()
                stop.wait(pause)
            finally:
                if incarnation is not None:
                    incarnation.close()

    def _take(self, request: Mapping[str, Any], incarnation: Incarnation) -> None:
        if request["kind"] == "lake":
            try:
                incarnation.choose(request["table"], request["choice"], request["seen"])
            except ConfigError as error:
                logger.warning("pipeline %s: %s", self._store.name, error)
        else:
            incarnation.retry()
        self._report_progress(incarnation)

    def _has_checkpoint(self) -> bool:
        """Whether the journal has a checkpoint; without one a start would claim a number in vain."""
        slot = self._store.last_slot()
        entry = self._store.entry(slot) if slot else None
        return entry is not None and not (isinstance(entry, EpochEntry) and entry.base is None)

    def _report_progress(self, incarnation: Incarnation) -> None:
        progress = incarnation.progress
        record = progress.published
        self._report(
            {
                "w": progress.w,
                "applied": progress.applied,
                "published": record and record.n,
                "published_at": record and record.published_at,
                "source_time": record and record.source_time,
                "quarantined": _quarantined(incarnation),
                "read_again": dict(progress.read_again),
                "applied_by_spark": {
                    table_id: choice.why for table_id, choice in progress.engines.items() if choice.engine == SPARK
                },
                "at": self._clock(),
            }
        )

    def _report_failure(self, error: Exception, pause: float, incarnation: Incarnation | None) -> None:
        if isinstance(error, Unavailable):
            logger.warning("pipeline %s: %s; starting again in %g s", self._store.name, error, pause)
        elif isinstance(error, CutlineError):
            logger.error("pipeline %s: %s; starting again in %g s", self._store.name, error, pause)
        else:
            logger.exception("pipeline %s: unexpected error; starting again in %g s", self._store.name, pause)
        status = {"error": str(error), "kind": type(error).__name__, "again_seconds": pause}
        self._report({**status, "quarantined": _quarantined(incarnation) if incarnation else {}, "at": self._clock()})


def _quarantined(incarnation: Incarnation) -> dict[str, Any]:
    quarantined, theirs = incarnation.progress.quarantined, incarnation.progress.theirs
    found: dict[str, dict[str, Any]] = {
        table_id: {"cause": held.cause, "generation": held.generation} for table_id, held in quarantined.items()
    }
    for table_id, commits in theirs.items():
        found[table_id] |= {"seen": commits.seen, "choices": commits.choices, "chosen": commits.chosen}
    return found
