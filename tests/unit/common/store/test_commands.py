"""Commands, their outcomes and the versions of a definition, on files of this machine and on objects."""

import asyncio
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cutline.common.config.pipeline import parse
from cutline.common.errors import ConfigError, PositionLost, ProtocolError, SourceLost, SourceRefused, Unavailable
from cutline.common.positions import Position
from cutline.common.status.pipeline_status import Held, PipelineStatus, SparkWriterStatus
from cutline.common.store import commands
from cutline.common.store.commands import SPARK, Command, Orders, Outcome
from cutline.common.store.definitions import DefinitionVersion
from cutline.common.store.store import PipelineStore, Store
from cutline.services.enumerator import commanding
from cutline.services.enumerator.commanding import Commanding
from cutline.services.enumerator.events import AskSparkWriter, BaseFound, CommandAnswered, FindBase, FindOutcome
from tests.support import records
from tests.support.causes import because
from tests.support.ports import ports


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def shop(url: str) -> PipelineStore:
    return records.begun(url)


def add(shop: PipelineStore, kind: str = "pause", **other: Any) -> Command:
    arguments = other.pop("arguments", {})
    return shop.commands.add(kind, arguments, by="ann", now=5.0, **other)


def done(n: int, **orders: Any) -> Outcome:
    return Outcome(n=n, state="done", at=float(n), orders=Orders(**orders))


# Commands


def test_commands_are_numbered_from_one_and_read_back_as_they_were_given(shop: PipelineStore, url: str) -> None:
    first = add(shop, "stop", arguments={"savepoint": "before the move"}, origin="10.0.0.7", key="k1")
    second = add(shop, "limits", arguments={"rows_per_second": None})
    assert (first.n, second.n) == (1, 2)
    other = Store(url).pipeline("shop").commands
    assert other.get(1) == first
    assert other.list() == (first, second)
    assert other.list(after=1) == (second,)
    assert other.list(before=3, limit=1) == (second,)
    assert other.newest() == 2
    assert other.get(3) is None


def test_a_key_that_comes_again_names_the_same_command(shop: PipelineStore, url: str) -> None:
    first = add(shop, "define", arguments={"base": 1, "definition": {"tables": ("shop.*",)}}, key="k")
    add(shop)
    again = Store(url).pipeline("shop")
    assert add(again, "define", arguments={"base": 1, "definition": {"tables": ["shop.*"]}}, key="k") == first
    assert again.commands.newest() == 2


@pytest.mark.parametrize(("kind", "arguments"), [("resume", {}), ("pause", {"table": "shop.orders"})])
def test_a_key_with_other_content_is_refused(shop: PipelineStore, kind: str, arguments: dict[str, Any]) -> None:
    add(shop, key="k")
    with pytest.raises(ConfigError, match="was used for command 1"):
        add(shop, kind, arguments=arguments, key="k")
    assert shop.commands.newest() == 1


def test_a_key_costs_no_look_at_the_commands_before_it_and_goes_with_its_command(
    shop: PipelineStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Commands with and without keys.  2. Each key is found by reading its own command only.  3. Keys go with their
    commands, and all with the pipeline."""
    for n in range(1, 30):
        add(shop, key=f"k {n}" if n == 20 else f"{n}" if n % 2 else None)
    other = Store(url).pipeline("shop").commands
    read: list[str] = []
    whole = other._folder.read
    monkeypatch.setattr(other._folder, "read", lambda path: (read.append(path), whole(path))[1])
    assert [command and command.n for command in map(other.with_key, ("k", "3", "29", "2"))] == [20, 3, 29, None]
    assert [path for path in read if "commands/" in path] == [f"commands/{n:010d}.json" for n in (20, 3, 29)]
    read.clear()
    assert other.add("pause", {}, by="ann", now=5.0, key="new").n == 30
    assert [path for path in read if "commands/" in path] == []
    monkeypatch.setattr(commands, "RETAINED", 2)
    for n in range(1, 31):
        assert shop.commands.put_outcome(done(n))
    shop.commands.retire()
    assert len(other._folder.names("keys")) == 2
    assert other.with_key("3") is None
    assert add(shop, key="3").n == 31
    shop.commands.remove()
    assert other._folder.names("keys") == []


def test_a_key_whose_claim_has_no_command_since_its_process_died_can_be_used(shop: PipelineStore) -> None:
    assert shop.commands._claimed("k") == 0
    for _ in range(3):
        add(shop)
    assert shop.commands.with_key("k") is None
    assert add(shop, key="k").n == 4
    assert add(shop, key="k").n == 4


def test_a_claim_that_no_command_followed_goes_when_commands_of_its_time_do(
    shop: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "RETAINED", 2)
    shop.commands._claimed("never repeated")
    for n in range(1, 5):
        add(shop, key=f"k{n}")
        assert shop.commands.put_outcome(done(n))
    shop.commands._claimed("under way")
    shop.commands.retire()
    assert len(shop._names("keys")) == 3
    assert [shop.commands.with_key(f"k{n}") is not None for n in range(1, 5)] == [False, False, True, True]
    assert add(shop, key="under way").n == 5


def test_threads_that_add_commands_with_one_key_add_one(url: str) -> None:
    found: list[Command] = []

    def ask(key: str | None) -> None:
        found.append(add(records.begun(url), key=key))

    threads = [threading.Thread(target=ask, args=("k" if at % 2 else None,)) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted({command.n for command in found}) == list(range(1, 8))
    assert len({command.n for command in found if command.key == "k"}) == 1


def test_a_number_whose_command_was_removed_is_not_given_again(
    shop: PipelineStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "RETAINED", 2)
    late = Store(url).pipeline("shop")
    numbers = late.commands._numbers
    stale = [[1]]
    monkeypatch.setattr(late.commands, "_numbers", lambda folder: stale.pop() if stale else numbers(folder))
    for n in range(1, 6):
        add(shop)
        assert shop.commands.put_outcome(done(n))
    shop.commands.retire()
    assert [command.n for command in shop.commands.list()] == [4, 5]
    assert add(late).n == 6
    assert [command.n for command in shop.commands.list()] == [4, 5, 6]


# Outcomes


def test_the_newest_outcome_has_the_standing_orders(shop: PipelineStore, url: str) -> None:
    assert shop.commands.orders() == Orders(mode="running", definition=1)
    assert shop.commands.newest_outcome() is None
    for _ in range(3):
        add(shop)
    assert shop.commands.put_outcome(done(1, mode="paused"))
    refused = Outcome(
        n=2, state="refused", cause="it is paused", remedy="resume it", at=2.0, orders=Orders(mode="paused")
    )
    assert shop.commands.put_outcome(refused)
    assert shop.commands.put_outcome(done(3, mode="stopped", definition=2, base=7, base_after=9))
    other = Store(url).pipeline("shop").commands
    assert other.outcome(2) == refused
    assert other.orders() == Orders(mode="stopped", definition=2, base=7, base_after=9)


def test_of_two_leaders_one_writes_an_outcome(shop: PipelineStore, url: str) -> None:
    assert shop.commands.put_outcome(done(1))
    zombie = Store(url).pipeline("shop").commands
    assert not zombie.put_outcome(done(1, mode="paused"))
    assert zombie.orders().mode == "running"


def test_a_command_that_an_outcome_names_as_open_has_its_own_later(shop: PipelineStore, url: str) -> None:
    first, second, third = add(shop, "lake"), add(shop, "lake"), add(shop)
    outcome = Outcome(n=3, state="done", at=3.0, orders=Orders(mode="paused"), open=(1, 2))
    assert shop.commands.put_outcome(outcome)
    other = Store(url).pipeline("shop").commands
    assert other.newest_outcome() == outcome
    assert other.unfinished(outcome) == (first, second)
    assert other.put_outcome(replace(done(2), open=(1,)))
    assert other.put_outcome(done(1))
    assert other.unfinished(other.newest_outcome()) == ()
    assert other.orders() == Orders(mode="paused")
    assert other.unfinished(None) == (first, second, third)


def commanding_of(shop: PipelineStore, notes: Any = None, *, verify_reach: Any = None) -> Commanding:
    return Commanding(shop, ports(notes=notes), cast(Any, None), verify_reach)


def test_no_spark_writer_answers_at_once_that_none_is_running(shop: PipelineStore) -> None:
    class Nobody:
        async def services(self) -> list[Any]:
            return []

    leaders = commanding_of(shop, Nobody())
    asked = AskSparkWriter(command=add(shop, "lake", arguments={"table": "d.t", "choice": "accept"}))
    answer = asyncio.run(asyncio.wait_for(leaders.carry_out(asked), 5.0))
    assert isinstance(answer, CommandAnswered)
    assert (answer.state, answer.cause) == ("refused", "no Spark writer is running, and only one can do this")
    assert shop.commands.take(1, SPARK) == answer.cause  # one that starts later does not carry it out


class Busy:
    """The registry with a Spark writer that takes and answers what the test lets it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answers: dict[int, str | None] = {}

    async def services(self) -> list[Any]:
        return [SimpleNamespace(role="spark_writer")]

    async def status(self, key: Any) -> PipelineStatus:
        held = {"d.t": Held(cause=because("it is a view"), generation=1)}
        return PipelineStatus(spark_writer=SparkWriterStatus(quarantined=held, commands=dict(self.answers)))

    async def request(self, key: Any, request: Any, *, to: str) -> None:
        self.asked.set()


@pytest.mark.parametrize("taken", [False, True])
async def test_what_waits_for_the_spark_writer_is_cancelled_until_that_takes_it(
    shop: PipelineStore, taken: bool
) -> None:
    """1. A command was passed on to the Spark writer, which is busy or has begun it. 2. It is cancelled: before, both
    answers say so, and the Spark writer finds it withdrawn; after, the cancellation is refused, and the answer is the
    Spark writer's."""
    registry = Busy()
    leaders = commanding_of(shop, registry)
    retry = add(shop, "retry_table", arguments={"table": "d.t"})
    cancel = add(shop, "cancel_command", arguments={"command": 1})
    asking = asyncio.create_task(leaders.carry_out(AskSparkWriter(command=retry)))
    async with asyncio.timeout(20):
        await registry.asked.wait()
        if taken:
            assert shop.commands.take(1, SPARK) == SPARK
        found = await leaders.carry_out(FindOutcome(command=cancel))
        assert isinstance(found, CommandAnswered)
        assert await leaders.carry_out(FindOutcome(command=cancel)) == found  # by the next leader
        registry.answers[1] = None
        answer = await asking
    assert isinstance(answer, CommandAnswered)
    if taken:
        assert (found.state, found.cause) == ("refused", "the Spark writer carries command 1 out already")
        assert answer.state == "done"
    else:
        assert found.state == "done"
        assert (answer.state, answer.cause) == ("cancelled", "ann cancelled it by command 2")
        assert shop.commands.take(1, SPARK) == "ann cancelled it by command 2"


async def test_what_the_spark_writer_did_not_begin_in_time_is_not_carried_out_later(
    shop: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commanding, "SPARK_SECONDS", 0.2)
    leaders = commanding_of(shop, Busy())
    asked = AskSparkWriter(command=add(shop, "retry_table", arguments={"table": "d.t"}))
    async with asyncio.timeout(20):
        answer = await leaders.carry_out(asked)
    assert isinstance(answer, CommandAnswered)
    assert (answer.state, answer.cause) == ("failed", "the Spark writer did not begin it for 90 s")
    assert shop.commands.take(1, SPARK) == answer.cause


async def test_what_the_spark_writer_began_and_never_answered_fails_and_says_so(
    shop: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commanding, "SPARK_SECONDS", 0.2)
    leaders = commanding_of(shop, Busy())
    asked = AskSparkWriter(command=add(shop, "retry_table", arguments={"table": "d.t"}))
    shop.commands.take(1, SPARK)
    async with asyncio.timeout(20):
        answer = await leaders.carry_out(asked)
    assert isinstance(answer, CommandAnswered)
    assert (answer.state, answer.cause) == ("failed", "the Spark writer began it, and has not said what became of it")


PLACE = Position(server="s", file="b.000001", offset=4)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (None, "found", ""),
        (
            PositionLost(because("The binlog file b.000001 is purged")),
            "refused",
            "at b.000001:4, where it stands. The binlog",
        ),
        (SourceLost(because("The source is another server")), "refused", "The source is another server"),
        (Unavailable("db:3306 does not answer"), "found", "still has the binlog after b.000001:4: db:3306 does not"),
        (SourceRefused("the password is wrong"), "found", "the password is wrong; if it has not, the pipeline halts"),
        (TimeoutError(), "found", "it has not answered for 20 s"),
    ],
)
def test_the_source_is_asked_before_a_restore(
    shop: PipelineStore, monkeypatch: pytest.MonkeyPatch, answer: Exception | None, state: str, words: str
) -> None:
    definition = "name: shop\nsource: {host: db.example, user: cdc}\ntables: [s.*]\nsink: {warehouse: /lake}\n"
    shop.define(parse(definition).definition())

    def ask(source: Any, place: Position) -> None:
        assert (source.host, place) == ("db.example", PLACE)
        if answer is not None:
            raise answer

    monkeypatch.setattr(commanding, "restorable", lambda store, n: True)
    monkeypatch.setattr(commanding, "place_after", lambda store, n: PLACE)
    asked = FindBase(command=add(shop, "restore", arguments={"checkpoint": 4}))
    found = asyncio.run(commanding_of(shop, verify_reach=ask).carry_out(asked))
    if state == "refused":
        assert isinstance(found, CommandAnswered)
        assert found.state == "refused"
        assert words in str(found.cause)
        assert "cutline pipeline read-again shop" in str(found.remedy)
    else:
        assert isinstance(found, BaseFound)
        assert (found.warning is None) == (answer is None)
        assert words in (found.warning or "")


def test_an_outcome_in_a_place_that_was_removed_long_ago_is_refused(
    shop: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "RETAINED", 1)
    for n in (1, 2, 3):
        add(shop)
        assert shop.commands.put_outcome(done(n))
    assert [shop.commands.take(n, SPARK) for n in (2, 3)] == [SPARK, SPARK]
    shop.commands.retire()
    assert not shop.commands.put_outcome(done(2))
    assert [shop.commands.taker(n) for n in (2, 3)] == [None, SPARK]
    assert shop.commands.outcome(2) is None
    assert shop.commands.outcome(3) == done(3)


def test_a_command_in_another_ones_place_stops_the_reader(tmp_path: Path) -> None:
    shop = records.begun(f"file://{tmp_path}")
    add(shop)
    folder = Path(shop.location("commands"))
    (folder / "0000000002.json").write_bytes((folder / "0000000001.json").read_bytes())
    with pytest.raises(ProtocolError, match="holds number 1"):
        shop.commands.get(2)


# Versions of the definition


def test_a_definition_has_versions_and_each_stays_as_it_was(shop: PipelineStore, url: str) -> None:
    assert shop.definition_version() == 0
    assert shop.versions() == []
    first, second = {"tables": ["shop.*"]}, {"tables": ["shop.*", "crm.*"]}
    assert shop.define(first)
    assert shop.put_definition(2, second, by="ann", at=7.0, command=4, note="the CRM too")
    assert not shop.put_definition(2, first, by="bob", at=8.0, command=5)
    other = Store(url).pipeline("shop")
    assert (other.definition(), other.definition_version()) == (first, 1)  # until its command is done
    assert shop.commands.put_outcome(Outcome(n=1, state="done", at=1.0, orders=Orders(definition=2)))
    assert other.definition() == second
    assert other.definition(1) == first
    assert other.definition(3) is None
    assert other.definition_version() == 2
    assert other.versions() == [
        DefinitionVersion(version=1),
        DefinitionVersion(version=2, by="ann", at=7.0, command=4, note="the CRM too", base=1),
    ]


def test_the_same_definition_again_is_compared_with_the_version_in_force(shop: PipelineStore) -> None:
    first, second = {"tables": ["shop.*"]}, {"tables": ["crm.*"]}
    shop.define(first)
    shop.put_definition(2, second, by="ann", at=7.0, command=4)
    assert shop.commands.put_outcome(Outcome(n=1, state="done", at=1.0, orders=Orders(definition=2)))
    assert not shop.define(second)
    with pytest.raises(ConfigError, match=r"another tables \(version 2.*cutline pipeline replace"):
        shop.define(first)


# New fields of the journal's entries


def test_entries_name_the_version_and_the_savepoint(shop: PipelineStore, url: str) -> None:
    first, named = records.epoch(1, definition=3), records.checkpoint(2, kept=True, name="before the move")
    assert shop.put_entry(first)
    assert shop.put_entry(named)
    other = Store(url).pipeline("shop")
    assert other.entry(1) == first
    assert other.entry(2) == named


def test_a_choice_about_commits_of_others_is_refused_once_others_committed_again() -> None:
    command = Command(n=1, kind="lake", arguments={"table": "a.b", "choice": "accept", "seen": "7/1"}, by="ann", at=1.0)

    def request(seen: str) -> dict[str, Any]:
        held = {"a.b": Held(cause=because("c"), generation=1, seen=seen, choices=("accept",))}
        status = PipelineStatus(spark_writer=SparkWriterStatus(quarantined=held))
        return Commanding._request(command, status)

    assert request("7/1") == {"kind": "lake", "table": "a.b", "choice": "accept", "seen": "7/1"}
    with pytest.raises(ConfigError, match="again; look at its cause, and choose again"):
        request("8/1")


@pytest.mark.parametrize("how", ["done", "given up"])
async def test_a_deletion_waits_for_its_purge_until_that_is_done_or_given_up(
    shop: PipelineStore, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commanding, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(commanding, "LEAVE_SECONDS", 0.0)

    looks: list[bool] = []
    purges = shop.purges

    def look() -> bool:
        looks.append(purges())
        return looks[-1]

    async def forget(_: str) -> None:
        pass

    monkeypatch.setattr(shop, "purges", look)
    deletion = commanding_of(shop, SimpleNamespace(forget=forget))
    add(shop, "delete", arguments={"purge": True})
    shop.commands.put_outcome(done(1, mode="deleting", purge=True))
    shop.put_entry(records.epoch(1))
    task = asyncio.create_task(deletion.delete())
    async with asyncio.timeout(10):
        while len(looks) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (task.done(), shop.last_slot(), deletion.purging, set(looks)) == (False, 1, True, {True})
        if how == "done":
            shop.put_purged()
        else:
            add(shop, "leave_lake")
            shop.commands.put_outcome(done(2, mode="deleting"))
        await task
    assert (shop._folder.names("journal"), shop.purges(), deletion.purging) == ([], False, False)
