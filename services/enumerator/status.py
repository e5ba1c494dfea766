"""What an enumerator says in Redis of the pipeline that it leads (common/status/pipeline_status.py)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from cutline.common.causes import Cause, Code
from cutline.common.form import text
from cutline.common.phases import QUARANTINED
from cutline.common.status.pipeline_status import CheckpointStatus, CommandsStatus, EnumeratorStatus, TableStatus
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.grids import SnapshotRates
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.states import HALTED, RESTING
from cutline.services.enumerator.tables import Table

SHOWN_SECONDS = 5.0  # between two writes of all tables
log = logging.getLogger("cutline.enumerator")


def of_leader(leader: Leader, pipeline: str, *, part_of_run: bool) -> EnumeratorStatus:
    """The part as the leader alone knows it. The driver adds when that was, who leads, what it waits for, and what it
    measures. `part_of_run`: a `cutline run` started this service."""
    resting = leader.state == RESTING
    agenda, enumerator = leader.agenda, leader.enumerator
    stream = None if enumerator is None else enumerator.stream_cut
    return EnumeratorStatus(
        epoch=leader.epoch,
        state=leader.state,
        mode=agenda.standing.mode,
        mode_since=agenda.standing.mode_since,
        definition=agenda.standing.definition,
        commands=CommandsStatus(
            running=agenda.running, done=agenda.finished, apart=tuple(sorted(agenda.apart)), waiting=agenda.waiting()
        ),
        halted=_halted(leader, pipeline, part_of_run) if leader.state == HALTED else None,
        halted_since=leader.halted_since,
        ended=leader.checkpoints.ended,
        checkpoint=CheckpointStatus(
            number=leader.base,
            completed_at=leader.checkpoints.completed_at or None,
            in_flight=leader.checkpoints.in_flight[0] if leader.checkpoints.in_flight else None,
            interval_seconds=leader.settings.interval_seconds,
        ),
        failures=leader.failures if resting else 0,
        retry_at=leader.retry_at if resting else None,
        limits=leader.limits,
        source_time=None if stream is None else stream.source_time,
    )


def _halted(leader: Leader, pipeline: str, part_of_run: bool) -> Cause:
    """Why the leader waits for a person, and what helps where the source has lost what no retry brings back."""
    if not leader.lost:
        return leader.cause
    # a run ends when its pipeline halts, and its control service with it
    way = "run FILE --read-again" if part_of_run else f"pipeline read-again {pipeline}"
    return leader.cause.advised(
        f"`cutline {way}` reads every table again, from the source's present position, and the lake shows the last"
        " content until then"
    )


def deletion_awaits(pipeline: str, *, since: float | None, purging: bool, failed: Cause | None) -> Wait:
    """What a pipeline that is being deleted `since` then waits for. `purging`: the lake tables go too, and are not gone
    yet; `failed`: why the last try to delete it failed."""
    if purging:
        way = (
            f"if the lake can't be reached any more, `cutline pipeline leave-lake {pipeline}` deletes the pipeline"
            " without that"
        )
        what = "a Spark writer, to drop the lake tables of the deleted pipeline"
        return Wait(Party.SPARK_WRITER, what, Cause(Code.LATE, "they are not dropped yet", way), since)
    cause = None if failed is None else failed.before("the last try failed: ")
    return Wait(Party.STORE, "the removal of what the store and Redis have of it", cause, since)


class TablesShown:
    """The tables of one pipeline as its status has them. Only changed tables are formatted again."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._tables: dict[str, Table] = {}
        self._lines: dict[str, str] = {}  # the JSON of each of them
        self._at = float("-inf")
        self._speed = SnapshotRates()
        self.rates: Mapping[str, float] = {}  # rows a second, of tables whose chunks are being read

    def changed(self, tables: Mapping[str, Table], now: float) -> str | None:
        """The tables in JSON; None if the status is up to date. All are sent again now and then, since Redis may have
        been emptied. The log names those that are quarantined. `now` is monotonic."""
        changed = {name: table for name, table in tables.items() if self._tables.get(name) is not table}
        for name, table in changed.items():
            before = self._tables.get(name)
            if table.phase == QUARANTINED and (before is None or before.phase != QUARANTINED):
                about = {"table": name, "cause": str(table.cause)}
                log.error("pipeline %s: %s is quarantined: %s", self._pipeline, name, table.cause, extra=about)
        self.rates = self._speed.shown(changed, now)
        if not changed and len(tables) == len(self._lines) and now - self._at < SHOWN_SECONDS:
            return None
        self._tables, self._at = dict(tables), now
        self._lines = {name: line for name, line in self._lines.items() if name in tables}
        for name, table in changed.items():
            self._lines[name] = f"{json.dumps(name)}:{text(_shown(table))}"
        return "{" + ",".join(self._lines.values()) + "}"


def _shown(table: Table) -> TableStatus:
    return TableStatus(
        phase=table.phase,
        since=table.since,
        generation=table.generation,
        rows_done=table.rows_done,
        rows_estimate=table.estimate,
        splits_done=table.splits_done,
        splits_total=table.splits_total,
        cause=table.cause,
    )
