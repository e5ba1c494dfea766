"""One table of rules: the API refuses what the leader would refuse, with the same sentence, and accepts nothing else.

Each command is asked for in each state of a pipeline, and each command about a table in each phase of it, of a real API
and of a real leader.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cutline.common.commands import rules
from cutline.common.commands.kinds import KINDS, STATES, PipelineState, Refusal
from cutline.common.commands.rules import OPERATIONS
from cutline.common.config.pipeline import FIXED
from cutline.common.mesh.presence import Registry
from cutline.common.phases import Phase
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.command_records import Command, Orders, Outcome
from cutline.common.store.store import PipelineStore, Store
from cutline.services.control.api import situation
from cutline.services.control.api.access import Access
from cutline.services.control.app import build
from cutline.services.control.dashboard import FOLDER
from cutline.services.enumerator.commanding import put_definition
from cutline.services.enumerator.events import EpochFailed, JournalRead
from cutline.services.enumerator.leader import MAX_HALTS
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.table_commands import carry_out
from cutline.services.enumerator.tables import Table
from tests.support import records
from tests.support.causes import because
from tests.support.control_api import FakeRegistry
from tests.support.leader_bench import PLAN
from tests.support.operated import Operated, leading
from tests.support.shop_api import DEFINITION, SHOP

TABLE = "shop.orders"
CALLS: dict[str, tuple[str, str, Any]] = {
    "pause": ("POST", "/pause", None),
    "resume": ("POST", "/resume", None),
    "stop": ("POST", "/stop", None),
    "start": ("POST", "/start", None),
    "restore": ("POST", "/restore", {"checkpoint": 2}),
    "read_again": ("POST", "/read-again", None),
    "delete": ("DELETE", "", None),
    "leave_lake": ("POST", "/leave-lake", None),
    "checkpoint": ("POST", "/checkpoints", None),
    "savepoint": ("POST", "/savepoints", None),
    "delete_savepoint": ("DELETE", "/savepoints/3", None),
    "cancel_command": ("POST", "/commands/{}/cancel", None),
    "limits": ("PUT", "/limits", {"rows_per_second": 5.0}),
    "define": ("PATCH", "", {"checkpoint": {"interval_seconds": 5.0}}),
    "cancel_table": ("POST", f"/tables/{TABLE}/cancel", None),
    "pause_table": ("POST", f"/tables/{TABLE}/pause", None),
    "resume_table": ("POST", f"/tables/{TABLE}/resume", None),
    "read_table_again": ("POST", f"/tables/{TABLE}/read-again", None),
    "retry_table": ("POST", f"/tables/{TABLE}/retry", None),
    "forget_table": ("POST", f"/tables/{TABLE}/forget", None),
    "lake": ("POST", f"/tables/{TABLE}/lake", {"choice": "accept"}),
}
MODES = ("paused", "stopped", "deleting")


def test_every_command_of_the_rules_has_a_call_and_the_other_way_round() -> None:
    assert CALLS.keys() == KINDS.keys()
    assert {row.wish.kind for row in OPERATIONS.values()} == KINDS.keys()


async def by_the_api(
    folder: Path, kind: str, *, state: PipelineState = "running", phase: str = "", named: bool = False
) -> Refusal | None:
    """How the API refuses a command, None if it accepts it."""
    registry = FakeRegistry()
    phase = phase or (KINDS[kind].rule.phases or ("live",))[0]
    table = {"phase": phase, "generation": 1}
    leader = {"epoch": 1, "leader": "e1", "tables": {TABLE: table}}
    leader |= {"halted": because("the binlog was purged")} if state == "halted" else {}
    leader |= {"ended": 3} if state == "ended" else {}
    held = {"cause": because("c"), "generation": 1, "seen": "7/1", "choices": ["accept"], "chosen": None}
    registry.parts = {"enumerator": leader, "spark_writer": {"quarantined": {TABLE: held} if kind == "lake" else {}}}
    store = Store(f"file://{folder}/store")
    shop = store.pipeline("shop")
    shop.define(DEFINITION)
    shop.put_entry(records.epoch(1))
    part = shop.put_part("0000000001.e1.enumerator.json", b"{}")
    shop.put_entry(records.checkpoint(2, parts={"enumerator": part}))
    shop.put_entry(records.checkpoint(3, parts={"enumerator": part}, kept=True))
    given = 0
    if state in MODES:
        given = shop.commands.add("dance", {}, by="ann", now=1.0).n
        shop.commands.put_outcome(Outcome(n=given, state="done", at=1.0, orders=Orders(mode=cast(Any, state))))
    if kind == "cancel_command":
        given = shop.commands.add("dance", {}, by="ann", now=1.0).n
    method, path, body = CALLS[kind]
    body = {"savepoint": "x"} if named else body
    app = build(cast(Registry, registry), store, Access(store.access, open_here=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as api:
        answer = await api.request(method, f"{SHOP}{path}".format(given), json=body)
    assert shop.commands.newest() == given + (answer.status_code == 202)
    return None if answer.status_code == 202 else Refusal(answer.json()["detail"], answer.json()["remedy"])


def by_the_leader(kind: str, state: PipelineState, **arguments: Any) -> Refusal | None:
    """How the leader refuses a command at once, None if it takes it."""
    bench = Operated() if state in MODES else leading()
    if state in MODES:
        bench.see()
        bench.tell(JournalRead(tail=3, base=3, orders=Orders(mode=cast(Any, state))))
    elif state == "halted":
        for tail in range(MAX_HALTS):
            bench.tell(EpochFailed(epoch=tail + 1, cause=because("lost"), halts=True))
            if tail + 1 < MAX_HALTS:
                bench.lead(tail=tail + 1)
    elif state == "ended":
        bench.leader.checkpoints.ended = 1
    bench.command(kind, table=TABLE, checkpoint=2, command=1, choice="accept", **arguments)
    found = next((each for each in bench.outcomes() if each.state != "done"), None)
    assert found is None or found.state == "refused"
    return None if found is None else Refusal(str(found.cause), str(found.remedy))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
async def test_api_and_leader_give_the_same_answer_in_every_state(
    tmp_path: Path, kind: str, state: PipelineState
) -> None:
    ours = await by_the_api(tmp_path, kind, state=state)
    assert ours == by_the_leader(kind, state) == KINDS[kind].rule.refusal(state)
    assert (ours is None) == (state in KINDS[kind].rule.states)


@pytest.mark.parametrize("state", STATES)
async def test_a_savepoint_of_a_pipeline_that_can_take_none_is_refused_by_both(
    tmp_path: Path, state: PipelineState
) -> None:
    ours = await by_the_api(tmp_path, "stop", state=state, named=True)
    assert ours == by_the_leader("stop", state, savepoint="x")
    assert (ours is None) == (state in ("running", "ended"))


@pytest.mark.parametrize("kind", ["resume", "start"])
async def test_a_halted_pipeline_tries_again_after_resume_and_after_start(tmp_path: Path, kind: str) -> None:
    assert await by_the_api(tmp_path, kind, state="halted") is None
    assert by_the_leader(kind, "halted") is None


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", [kind for kind, wish in KINDS.items() if wish.rule.taken == "machine"])
async def test_api_and_enumerator_give_the_same_answer_for_a_table_in_every_phase(
    tmp_path: Path, kind: str, phase: str
) -> None:
    ours = await by_the_api(tmp_path, kind, phase=phase)
    assert (ours is None) == (phase in KINDS[kind].rule.phases)
    if ours is not None:
        machine = Enumerator(PLAN)
        machine.put(Table(table_id=TABLE, generation=1, phase=phase))
        command = Command(n=1, kind=kind, arguments={"table": TABLE}, by="ann", at=0.0)
        assert carry_out(machine, command) == ours


# The definition in force


@pytest.fixture
def shop(tmp_path: Path) -> PipelineStore:
    found = Store(f"file://{tmp_path}/store").pipeline("shop")
    found.define(DEFINITION)
    return found


def test_a_command_that_is_being_cancelled_says_nothing_about_what_the_pipeline_will_be(shop: PipelineStore) -> None:
    for kind in ("stop", "define"):
        n = shop.commands.add(kind, {}, by="ann", now=1.0).n
        assert situation.look(shop, PipelineStatus(), {}).pending[-1].n == n
        shop.commands.add("cancel_command", {"command": n}, by="ann", now=1.0)
    now = situation.look(shop, PipelineStatus(), {})
    assert (now.state, [command.kind for command in now.pending]) == ("running", ["cancel_command"] * 2)


async def test_a_define_that_failed_leaves_no_version_behind(tmp_path: Path, shop: PipelineStore) -> None:
    """1. A leader put version 2, and its command failed. 2. Every change goes on from version 1, in force.
    3. The next version names what it changed, and comes after."""
    wanted = {**DEFINITION, "tables": ["shop.*", "other.b"]}
    for failed in (1, 2):
        shop.commands.add("define", {"base": 1, "definition": wanted}, by="ann", now=1.0)
        assert shop.put_definition(failed + 1, wanted, by="ann", at=1.0, command=failed)
        outcome = Outcome(n=failed, state="failed", cause="no epoch", remedy="ask again", at=1.0, orders=Orders())
        assert shop.commands.put_outcome(outcome)
    assert (shop.definition_version(), shop.definition()) == (1, DEFINITION)
    assert [each.version for each in shop.versions()] == [1]
    assert not shop.define(DEFINITION)
    store = Store(f"file://{tmp_path}/store")
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, open_here=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as api:
        view = (await api.get(SHOP)).json()
        assert (view["version"], view["definition"]["tables"]) == (1, DEFINITION["tables"])
        assert [each["version"] for each in (await api.get(f"{SHOP}/versions")).json()] == [1]
        assert (await api.get(f"{SHOP}/versions/2")).status_code == 404
        changed = await api.patch(SHOP, json={"tags": {"a": "b"}}, headers={"If-Match": '"1"'})
        assert (changed.status_code, changed.json()["arguments"]["base"]) == (202, 1)


def test_a_version_after_one_that_failed_names_what_it_changed(shop: PipelineStore) -> None:
    newer = {**DEFINITION, "tags": {"a": "b"}}
    command = Command(n=5, kind="define", arguments={"base": 1}, by="bob", at=2.0)
    assert shop.put_definition(2, newer, by="ann", at=1.0, command=4)  # its command failed
    assert put_definition(shop, command, newer, 1) == put_definition(shop, command, newer, 1) == 3
    shop.commands.add("dance", {}, by="x", now=0.0)
    shop.commands.put_outcome(Outcome(n=1, state="done", at=1.0, orders=Orders(definition=3)))
    assert [(each.version, each.base) for each in shop.versions()] == [(1, None), (3, 1)]
    assert shop.definition() == newer


# The dashboard and the docs


async def test_the_api_and_the_dashboard_show_the_same_rules(tmp_path: Path) -> None:
    """1. Both come from the table, and no file holds a copy. 2. The dashboard asks for each operation by its name."""
    store = Store(f"file://{tmp_path}/store")
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, open_here=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as api:
        answered = (await api.get("/v1/operations")).json()
        module = (await api.get("/static/any/app/rules.js")).text
    assert answered == rules.to_json()
    assert answered["resume_table"]["phases"]["live"] == "{table} is not paused: there is nothing to resume"
    rows, phases, fixed = (re.fullmatch(r"export const \w+ = (.*);", line)[1] for line in module.splitlines())  # type: ignore
    assert (json.loads(rows), json.loads(phases), json.loads(fixed)) == (answered, list(Phase), list(FIXED))
    assert not (FOLDER / "app" / "rules.js").exists()
    asked = set(re.findall(r'byRules\("(\w+)"\)', (FOLDER / "app" / "operations.js").read_text(encoding="utf-8")))
    assert asked == OPERATIONS.keys() - {"define"}


def test_the_docs_have_the_same_rules() -> None:
    """The table of run.md: each operation, its role, the states in which and the phases for which it is."""
    page = (FOLDER.parents[2] / "docs" / "operations" / "run.md").read_text(encoding="utf-8")
    for name, operation in OPERATIONS.items():
        rule = operation.wish.rule
        states = ", ".join(state for state in STATES if state in rule.states)
        assert f"| `{name}` | {operation.role} | {states} | {', '.join(rule.phases) or 'any'} |" in page, name
