"""What a person must act on: since when, why, what to do; who knows of it; and the history of all that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.mesh.presence import Service
from cutline.common.phases import Phase
from cutline.common.status.pipeline_status import (
    EnumeratorStatus,
    Failure,
    PipelineStatus,
    ReaderStatus,
    SparkWriterStatus,
    TableStatus,
)
from cutline.common.store import condition_log
from cutline.common.store.condition_log import Acknowledgement, Change, ConditionLog, Recorded, State
from cutline.common.store.lives import Life
from cutline.common.store.store import Store
from cutline.common.waits import Party, Wait
from cutline.services.control.conditions import CONDITIONS, Finding
from cutline.services.control.facts import FULL_BYTES, full
from cutline.services.control.metrics import Disk, Facts
from cutline.services.control.standing import MOST_TABLES, Standing, advanced, judged
from tests.support.causes import because

NOW = 1_000_000.0
LIFE = Life(name="shop", number=1, id="0123456789ab", folder="shop.0123456789ab")
ROLES = ("enumerator", "spark_writer")


def service(role: str) -> Service:
    leads = (LIFE.key,) if role in ROLES else ()
    return Service(incarnation=role, role=role, host="h", pid=1, started_at=1.0, leads=leads)


def facts(status: PipelineStatus, *roles: str, now: float = NOW) -> Facts:
    services = [service(role) for role in roles or ROLES]
    return Facts(statuses={"shop": status}, services=services, now=now, lives={"shop": LIFE})


def status(**leader: object) -> PipelineStatus:
    fields = {"at": NOW, "epoch": 1, "state": "leading", **leader}
    return PipelineStatus(
        enumerator=EnumeratorStatus(**fields),  # type: ignore[arg-type]
        spark_writer=SparkWriterStatus(at=NOW),
    )


def conditions(facts: Facts) -> tuple[Finding, ...]:
    return judged(facts, {})


def only(found: tuple[Finding, ...]) -> Finding:
    (finding,) = found
    return finding


def test_nothing_holds_where_all_is_well() -> None:
    assert conditions(facts(status())) == ()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_that_is_missing_is_named_since_its_last_sign_of_life(role: str) -> None:
    silent = SparkWriterStatus(at=NOW - 40)
    now = replace(status(), spark_writer=silent) if role == "spark_writer" else status(at=NOW - 40)
    found = only(conditions(facts(now, *(each for each in ROLES if each != role))))
    assert (found.condition.name, found.since) == ("CutlineNoLeader", NOW - 40)
    assert found.summary == f"no {role} leads pipeline shop"
    assert "start a service of that role" in found.remedy


def test_each_condition_has_the_since_of_the_service_that_knows_it() -> None:
    waiting = ReaderStatus(at=NOW, epoch=1, waiting_for=Wait(Party.SOURCE, "the source", because("refused"), NOW - 70))
    away = replace(status(), readers={"reader-0": waiting})
    found = only(conditions(facts(away)))
    assert (found.condition.name, found.since) == ("CutlineSourceDisconnected", NOW - 70)
    assert found.cause == because("the source: refused")
    purged = Cause(Code.PURGED, "the binlog is purged", "cutline pipeline read-again shop")
    halted = only(conditions(facts(status(halted=purged, halted_since=NOW - 9))))
    assert (halted.condition.name, halted.since, halted.remedy) == ("CutlineHalted", NOW - 9, purged.remedy)
    failure = Failure(cause=because("no space"), kind="OSError", again_seconds=1.0, since=NOW - 8)
    failing = replace(status(), spark_writer=SparkWriterStatus(at=NOW, failure=failure))
    assert only(conditions(facts(failing))).since == NOW - 8
    held = TableStatus(phase=Phase.QUARANTINED, cause=Cause(Code.NO_KEY, "no key", "add one"), since=NOW - 7)
    tables = {"a.t": held, "a.u": replace(held, since=NOW - 5), "a.v": TableStatus(phase=Phase.LIVE)}
    broken = replace(status(), tables=tables)
    found = only(conditions(facts(broken)))
    assert (found.condition.name, found.since, found.tables) == ("CutlineTableQuarantined", NOW - 7, ("a.t", "a.u"))


def test_a_wait_for_another_than_the_source_is_told_unless_a_person_is_waited_for() -> None:
    for party, name in ((Party.STORE, "CutlineWaiting"), (Party.MEMBER, "CutlineWaiting"), (Party.PERSON, None)):
        found = conditions(facts(status(waiting_for=Wait(party, "something", None, NOW - 30))))
        assert [each.condition.name for each in found] == ([name] if name else [])
    assert conditions(facts(status(waiting_for=Wait(Party.STORE, "x"), mode="paused"))) == ()


def test_the_most_severe_is_first_then_what_may_be_the_cause_of_others() -> None:
    held = TableStatus(phase=Phase.QUARANTINED, cause=Cause(Code.NO_KEY, "no key"), since=1.0)
    now = replace(status(halted=because("x"), halted_since=NOW - 1), tables={"a.t": held})
    found = conditions(facts(replace(now, spark_writer=SparkWriterStatus(at=NOW - 99)), "enumerator"))
    assert [each.condition.name for each in found] == ["CutlineHalted", "CutlineNoLeader", "CutlineTableQuarantined"]


def test_an_id_is_the_same_each_time_and_another_for_another_life_of_the_name() -> None:
    now = facts(status(halted=because("x")))
    first = only(conditions(now)).id
    assert first == only(conditions(replace(now, now=NOW + 5))).id
    other = replace(LIFE, id="ba9876543210")
    second = replace(now, lives={"shop": other}, services=[replace(each, leads=(other.key,)) for each in now.services])
    assert first != only(conditions(second)).id


def test_a_full_store_is_named_by_its_disk_or_by_who_can_not_write() -> None:
    store = Store("file:///store")
    disk = Disk(folder="/store", free_bytes=FULL_BYTES - 1, size_bytes=1 << 30)
    found = full(store, [disk], ())
    assert found is not None
    assert (found.code, "is full" in found.sentence) == (Code.DISK_FULL, True)
    assert full(store, [replace(disk, free_bytes=FULL_BYTES)], ()) is None
    assert full(store, [replace(disk, folder="/lake")], ()) is None
    cause = Cause(Code.DISK_FULL, "the quota is exceeded")
    assert full(store, (), [status(waiting_for=Wait(Party.STORE, "the store", cause))]) == cause
    away = replace(facts(PipelineStatus()), statuses={}, services=[], store_full=cause)
    assert [(each.condition.name, each.cause) for each in conditions(away)] == [("CutlineStoreAway", cause)]


# The history


def finding(name: str = "CutlineHalted", since: float = NOW, tables: tuple[str, ...] = ()) -> Finding:
    condition = next(each for each in CONDITIONS if each.name == name)
    labels = (("pipeline", "shop"),) if not tables else (("cause", "no_key"), ("pipeline", "shop"))
    about = dict.fromkeys(tables, because("why"))
    return Finding(id=name, condition=condition, labels=labels, since=since, cause=because("x"), about=about)


def test_what_began_and_what_ended_are_changes_each_with_the_state_after_it() -> None:
    (began,) = advanced(State(), [finding()], NOW + 1)
    assert (began.what, began.condition.since, set(began.state.holding)) == ("began", NOW, {"CutlineHalted"})
    assert advanced(began.state, [finding()], NOW + 2) == []
    ended, other = advanced(began.state, [finding("CutlineSourceDisconnected")], NOW + 3)
    assert [(each.what, each.condition.name) for each in (ended, other)] == [
        ("ended", "CutlineHalted"),
        ("began", "CutlineSourceDisconnected"),
    ]


def test_a_table_that_joins_or_leaves_a_quarantine_is_a_change_with_its_cause() -> None:
    name = "CutlineTableQuarantined"
    (began,) = advanced(State(), [finding(name, tables=("a.t",))], NOW)
    (grew,) = advanced(began.state, [finding(name, tables=("a.t", "a.u"))], NOW + 1)
    assert (grew.what, grew.note, grew.condition.tables) == ("changed", "a.u: why", ("a.t", "a.u"))
    (shrank,) = advanced(grew.state, [finding(name, tables=("a.u",))], NOW + 2)
    assert (shrank.what, shrank.note) == ("changed", "no longer: a.t")


def test_an_acknowledgement_ends_with_its_condition_unless_it_has_an_end_of_its_own() -> None:
    for until, kept in ((None, False), (NOW + 50, True), (NOW - 1, False)):
        given = Acknowledgement(by="anna", at=NOW, note="known", until=until)
        (began,) = advanced(State(acknowledged={"CutlineHalted": given}), [finding()], NOW)
        (ended,) = advanced(began.state, [], NOW + 1)
        assert bool(ended.state.acknowledged) is kept


def change(n: int, state: State | None = None) -> Change:
    about = Recorded(id=str(n), name="CutlineHalted", severity="critical", summary="s", since=NOW)
    return Change(at=NOW + n, what="began", condition=about, state=state or State())


def test_of_two_writers_of_one_number_one_succeeds_and_the_other_reads_it() -> None:
    store = Store("memory://conditions-race")
    first, second = store.conditions(None), store.conditions(None)
    assert first.newest() == second.newest() == (0, State())
    assert first.add(1, change(1, State(holding={"a": change(1).condition})))
    assert not second.add(1, change(2))
    n, state = second.newest()
    assert (n, set(state.holding)) == (1, {"a"})
    assert [number for number, _ in store.conditions(None).last(10)] == [1]


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition_log, "RETAINED", 50)
    log = Store("memory://conditions-bounded").conditions(None)
    for n in range(1, 301):
        assert log.add(n, change(n))
    assert [n for n, _ in log.last(1000)] == list(range(251, 301))


class Bench:
    """A `Standing` over a store in memory, without Redis."""

    def __init__(self, name: str) -> None:
        self.store = Store(f"memory://{name}")
        self.store.pipeline("shop").define({"name": "shop"})
        (self.life,) = self.store.lives()
        self.standing = Standing(None, self.store)  # type: ignore[arg-type]

    def facts(self, now: PipelineStatus, at: float = NOW) -> Facts:
        services = [replace(service(role), leads=(self.life.key,)) for role in ROLES]
        return Facts(statuses={"shop": now}, services=services, now=at, lives={"shop": self.life})

    async def note(self, now: Facts) -> None:
        await self.standing.note(now, await self.standing.look(now))

    def history(self) -> list[tuple[str, str]]:
        changes = [*self.store.conditions(self.life).last(100), *self.store.conditions(None).last(100)]
        return [(each.what, each.condition.name) for _, each in changes]


async def test_the_history_tells_each_begin_and_end_once_also_by_two_control_services() -> None:
    bench = Bench("standing-twice")
    other = Standing(None, bench.store)  # type: ignore[arg-type]
    halted = bench.facts(status(halted=because("purged")))
    await bench.note(halted)
    await other.note(halted, await other.look(halted))
    well = bench.facts(status(), NOW + 10)
    await other.note(well, await other.look(well))
    await bench.note(well)
    assert bench.history() == [("began", "CutlineHalted"), ("ended", "CutlineHalted")]


async def test_a_condition_whose_begin_no_service_knows_keeps_the_one_of_the_history() -> None:
    bench = Bench("standing-since")
    failing = status(failures=5)
    await bench.note(bench.facts(failing))
    successor = Standing(None, bench.store)  # type: ignore[arg-type]
    (held,) = await successor.look(bench.facts(failing, NOW + 300))
    assert (held.finding.condition.name, held.finding.since) == ("CutlineEpochsFail", NOW)


async def test_trouble_of_the_store_itself_gets_into_the_history_once_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("standing-store")
    away = replace(bench.facts(status()), statuses={}, lives={}, services=[], store_away=because("no answer"))

    def refuse(*_: object) -> bool:
        raise Unavailable("the store does not answer", "wait")

    with monkeypatch.context() as patch:
        patch.setattr(ConditionLog, "add", refuse)
        with pytest.raises(Unavailable):
            await bench.note(away)
        with pytest.raises(Unavailable):
            await bench.note(bench.facts(status(), NOW + 20))
    await bench.note(bench.facts(status(), NOW + 30))
    assert bench.history() == [("began", "CutlineStoreAway"), ("ended", "CutlineStoreAway")]


async def test_while_redis_is_away_nothing_of_a_pipeline_ends() -> None:
    bench = Bench("standing-redis")
    await bench.note(bench.facts(status(halted=because("purged"))))
    await bench.note(replace(bench.facts(status()), statuses={}, services=[], redis_away=because("refused")))
    assert bench.history() == [("began", "CutlineHalted"), ("began", "CutlineRedisAway")]


async def test_a_start_or_a_change_of_leaders_is_not_shown_as_a_missing_role() -> None:
    bench = Bench("standing-start")
    for at, shown in ((NOW, False), (NOW + 9, False), (NOW + 10, True)):
        now = replace(bench.facts(status(at=NOW - 500), at), services=[])
        names = [held.finding.labels for held in await bench.standing.look(now)]
        assert bool(names) is shown


async def test_an_acknowledgement_covers_the_tables_that_it_was_given_for() -> None:
    bench = Bench("standing-tables")
    held = TableStatus(phase=Phase.QUARANTINED, cause=Cause(Code.NO_KEY, "no key"), since=NOW)
    now = bench.facts(replace(status(), tables={"a.t": held}))
    (found,) = await bench.standing.look(now)
    given = Acknowledgement(by="anna", at=NOW, note="known")
    await bench.standing.acknowledge(found, now, given, by="anna")
    (found,) = await bench.standing.look(now)
    assert found.acknowledged is not None
    (more,) = await bench.standing.look(bench.facts(replace(status(), tables={"a.t": held, "a.u": held})))
    assert more.acknowledged is None
    await bench.standing.acknowledge(found, now, None, by="bert")
    assert (await bench.standing.look(now))[0].acknowledged is None
    assert [what for what, _ in bench.history()] == ["acknowledged", "taken_back"]
    many = bench.facts(replace(status(), tables={f"a.t{at}": held for at in range(MOST_TABLES + 1)}))
    (found,) = await bench.standing.look(many)
    with pytest.raises(ConfigError, match="tables are concerned"):
        await bench.standing.acknowledge(found, many, given, by="anna")
