"""The conditions that hold, with since when each does, and who has acknowledged it; and their history in the store.

Each control service judges by itself (conditions.py), with the history's help where no service says when something
began. The one that holds the lease of duties.py writes what began and what ended. While the store does not answer, its
changes wait in memory, so that the store's own trouble gets into the history too. An acknowledgement is written by
whichever control service is asked.

`advanced` and `acknowledged` are pure: what a state becomes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cutline.common.causes import Cause
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.mesh.presence import Registry
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.backends import side_by_side
from cutline.common.store.condition_log import Acknowledgement, Change, ConditionLog, Recorded, State, What
from cutline.common.store.lives import Life
from cutline.common.store.store import Store
from cutline.services.control.conditions import Finding, conditions
from cutline.services.control.facts import gathered, shared, with_statuses
from cutline.services.control.metrics import Facts, samples
from cutline.services.control.store_calls import in_store

LOOK_SECONDS = SHARED_SECONDS = 2.0
MOST_WAITING = 1_000
MOST_TABLES = 500
_NAMED = 3  # tables of one change
_PIPELINES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A condition that holds, and its acknowledgement if a person knows of it."""

    finding: Finding
    acknowledged: Acknowledgement | None = None


def covers(acknowledgement: Acknowledgement, finding: Finding, now: float) -> bool:
    """Whether a person who acknowledged this knows of all that it is about now: not of another table."""
    return acknowledgement.holds(now) and set(finding.tables) <= set(acknowledgement.tables)


def labels_of(held: Iterable[Held]) -> list[tuple[str, str, str, str]]:
    """The labels of the metric cutline_condition."""
    return [
        (
            each.finding.pipeline or "",
            each.finding.condition.name,
            each.finding.condition.severity,
            str(each.acknowledged is not None).lower(),
        )
        for each in held
    ]


def advanced(state: State, found: Iterable[Finding], now: float) -> list[Change]:
    """The changes from a state to what was found to hold."""
    changes: list[Change] = []
    about = {finding.id: finding for finding in found}
    holding = {name: _recorded(finding) for name, finding in about.items()}
    for name, condition in state.holding.items():
        if name not in holding:
            state = _after(state, "ended", condition, now)
            changes.append(Change(at=now, what="ended", condition=condition, state=state))
    for name, condition in holding.items():
        known = state.holding.get(name)
        if known is not None and known.tables == condition.tables:
            continue
        state = _after(state, "began", condition, now)
        if known is None:
            changes.append(Change(at=now, what="began", condition=condition, state=state))
        else:
            note = _difference(known, condition, about[name].about)
            changes.append(Change(at=now, what="changed", condition=condition, state=state, note=note))
    return changes


def _difference(before: Recorded, now: Recorded, causes: Mapping[str, Cause]) -> str:
    """The tables that came, with their causes, and those that went."""
    came = [f"{table}: {causes[table].sentence}" for table in now.tables if table not in before.tables]
    went = [table for table in before.tables if table not in now.tables]
    more = f"; and {len(came) - _NAMED} more" if len(came) > _NAMED else ""
    parts = [f"{'; '.join(came[:_NAMED])}{more}"] if came else []
    return ". ".join(parts + ([f"no longer: {', '.join(went[:_NAMED])}"] if went else []))


def acknowledged(state: State, finding: Finding, given: Acknowledgement | None, *, by: str, now: float) -> Change:
    """The change by which a person acknowledges a condition, or takes that back (None)."""
    known = {name: each for name, each in state.acknowledged.items() if name != finding.id and each.holds(now)}
    if given is not None:
        known[finding.id] = given
    what: What = "taken_back" if given is None else "acknowledged"
    return Change(
        at=now,
        what=what,
        condition=_recorded(finding),
        state=replace(state, acknowledged=known),
        by=by,
        note=None if given is None else given.note,
    )


def _recorded(finding: Finding) -> Recorded:
    return Recorded(
        id=finding.id,
        name=finding.condition.name,
        severity=finding.condition.severity,
        summary=finding.summary,
        cause=finding.cause.sentence if finding.cause else "",
        since=finding.since,
        tables=finding.tables[:MOST_TABLES],
    )


def _after(state: State, what: What, condition: Recorded, now: float) -> State:
    """The state once a condition has begun, changed or ended: an acknowledgement without an end of its own ends with
    it."""
    name = condition.id
    if what != "ended":
        return replace(state, holding={**state.holding, name: condition})
    holding = {each: condition for each, condition in state.holding.items() if each != name}
    kept = {
        each: known
        for each, known in state.acknowledged.items()
        if known.holds(now) and (each != name or known.until is not None)
    }
    return State(holding=holding, acknowledged=kept)


def _held(state: State, finding: Finding, now: float) -> Held:
    known = state.acknowledged.get(finding.id)
    return Held(finding=finding, acknowledged=known if known is not None and covers(known, finding, now) else None)


def _life(finding: Finding, facts: Facts) -> Life | None:
    return facts.lives.get(finding.pipeline or "")


def _lives(facts: Facts) -> list[Life]:
    return [life for name, life in facts.lives.items() if name in facts.statuses]


def judged(facts: Facts, known: Mapping[str, float]) -> tuple[Finding, ...]:
    """The conditions that hold by these facts; `known` as `conditions` has it."""
    away = {"CutlineRedisAway": facts.redis_away, "CutlineStoreAway": facts.store_away or facts.store_full}
    return conditions(
        samples(facts),
        facts.statuses,
        now=facts.now,
        ids={name: life.id for name, life in facts.lives.items()},
        away={name: cause for name, cause in away.items() if cause is not None},
        known=known,
    )


class _Log:
    """One history, as this process knows it."""

    def __init__(self, log: ConditionLog) -> None:
        self.log = log
        self.state = State()
        self.read_at = float("-inf")
        self.seen: dict[str, float] = {}  # by id, when a finding was first seen here
        self.waiting: deque[Change] = deque(maxlen=MOST_WAITING)

    def read(self) -> None:
        """Read what other control services have written. Blocks."""
        self.state = self.log.newest()[1]
        self.read_at = time.monotonic()

    def write(self) -> None:
        """Write what waits. Blocks; raises Unavailable, with what is left still waiting."""
        while self.waiting:
            n, state = self.log.newest()
            change = self.waiting[0]
            about = change.condition
            known = state.holding.get(about.id)
            is_known = known is None if change.what == "ended" else known is not None and known.tables == about.tables
            if is_known:  # another control service wrote it
                self.waiting.popleft()
                continue
            after = _after(state, change.what, about, change.at)
            if self.log.add(n + 1, replace(change, state=after)):
                self.waiting.popleft()
        self.state = self.log.newest()[1]

    def acknowledge(self, finding: Finding, given: Acknowledgement | None, *, by: str, now: float) -> None:
        """Write an acknowledgement, or that it is taken back. Blocks."""
        while True:
            n, state = self.log.newest()
            if self.log.add(n + 1, acknowledged(state, finding, given, by=by, now=now)):
                self.state = self.log.newest()[1]
                return


class Standing:
    """The conditions of one store, as one control service knows them."""

    def __init__(self, registry: Registry, store: Store) -> None:
        """Nothing is read before the first look."""
        self._registry, self._store = registry, store
        self._shared: Facts | None = None
        self._sharing = asyncio.Lock()
        self._logs: dict[Life | None, _Log] = {}  # None: of what concerns all pipelines
        self._expected: dict[Life | None, State] = {}  # what the histories say once all that waits is written

    async def of_pipelines(self, statuses: Mapping[Life, PipelineStatus]) -> list[Held]:
        """The conditions of these pipelines, and those that concern all, which are looked at every SHARED_SECONDS."""
        now = time.time()
        async with self._sharing:
            if self._shared is None or not 0 <= now - self._shared.now < SHARED_SECONDS:
                self._shared = await shared(self._registry, self._store)
        return await self.look(with_statuses(replace(self._shared, now=now), statuses, self._store))

    async def all(self) -> list[Held]:
        """The conditions of all pipelines."""
        return await self.look(await gathered(self._registry, self._store))

    async def look(self, facts: Facts) -> list[Held]:
        """The conditions that hold by these facts, of some pipelines or of all, most severe first. Where the store does
        not answer, acknowledgements are those last read."""
        logs = {life: self._log(life) for life in (None, *_lives(facts))}
        await self._read(logs.values())
        known: dict[str, float] = {}
        for log in logs.values():
            known |= log.seen | {name: each.since for name, each in log.state.holding.items()}
        found = judged(facts, known)
        for life, log in logs.items():
            own = [finding.id for finding in found if _life(finding, facts) == life]
            log.seen = {name: log.seen.get(name, facts.now) for name in own}
        shown = [
            finding
            for finding in found
            if facts.now - logs[_life(finding, facts)].seen[finding.id] >= finding.condition.shown_after
        ]
        return sorted(
            (_held(logs[_life(finding, facts)].state, finding, facts.now) for finding in shown),
            key=lambda held: held.acknowledged is not None,
        )

    async def note(self, facts: Facts, held: Iterable[Held]) -> None:
        """Write what began and what ended by facts about all pipelines. Raises Unavailable; then call it again with the
        next facts."""
        found: dict[Life | None, list[Finding]] = {None: []}
        if not facts.blind:
            found |= {life: [] for life in _lives(facts)}
        for each in held:
            if (life := _life(each.finding, facts)) in found:
                found[life].append(each.finding)
        for life, own in found.items():
            log = self._log(life)
            for change in advanced(self._expected.get(life, log.state), own, facts.now):
                log.waiting.append(change)
                self._expected[life] = change.state
        for life in found:
            if (log := self._log(life)).waiting:
                await in_store(log.write)
            self._expected.pop(life, None)

    async def acknowledge(self, held: Held, facts: Facts, given: Acknowledgement | None, *, by: str) -> None:
        """Write that a person knows of a condition, or no longer says so (None). Raises Unavailable, and ConfigError if
        it is about more tables than one acknowledgement may be."""
        if given is not None:
            if len(held.finding.tables) > MOST_TABLES:
                concerned = len(held.finding.tables)
                raise ConfigError(
                    f"{concerned} tables are concerned, more than the {MOST_TABLES} that can be acknowledged",
                    "look for what they have in common, and fix that",
                )
            given = replace(given, tables=held.finding.tables)
        log = self._log(_life(held.finding, facts))
        await in_store(log.acknowledge, held.finding, given, by=by, now=facts.now)

    def _log(self, life: Life | None) -> _Log:
        found = self._logs.get(life)
        if found is None:
            if len(self._logs) >= _PIPELINES:  # most are of pipelines that were deleted
                self._logs = {each: log for each, log in self._logs.items() if each is None or log.waiting}
            found = self._logs[life] = _Log(self._store.conditions(life))
        return found

    async def _read(self, logs: Iterable[_Log]) -> None:
        old = [log for log in logs if time.monotonic() - log.read_at >= LOOK_SECONDS]
        try:
            await in_store(side_by_side, _Log.read, old)
        except Unavailable:  # StoreAway is among the conditions
            for log in old:
                log.read_at = time.monotonic()
