"""Every command is one class: its arguments are typed, and its JSON is read by each version as far as it knows it."""

from __future__ import annotations

from typing import Any

import pytest

from cutline.common.commands import kinds
from cutline.common.commands.kinds import KINDS, Refusal, Wish, wish_of
from cutline.common.phases import Phase
from cutline.common.store.command_records import Command
from cutline.services.run.cli import table

WISHES: tuple[tuple[Wish, dict[str, Any]], ...] = (
    (kinds.Pause(), {}),
    (kinds.Stop(), {"savepoint": None}),
    (kinds.Stop(savepoint="before"), {"savepoint": "before"}),
    (kinds.Restore(checkpoint=3), {"checkpoint": 3}),
    (kinds.Delete(purge=True), {"purge": True}),
    (kinds.Savepoint(name="a"), {"name": "a"}),
    (kinds.Savepoint(run="r1"), {"name": None, "run": "r1"}),
    (kinds.CancelCommand(command=7), {"command": 7}),
    (kinds.SetLimits(rows_per_second=5.0), {"rows_per_second": 5.0, "bytes_per_second": None}),
    (kinds.Define(base=1, definition={"name": "shop"}), {"base": 1, "definition": {"name": "shop"}}),
    (kinds.Define(source={"host": "h"}, note="n"), {"source": {"host": "h"}, "note": "n"}),
    (kinds.PauseTable(table="a.b"), {"table": "a.b"}),
    (kinds.ReadTableAgain(table="a.b", generation=2), {"table": "a.b", "generation": 2}),
    (kinds.ChooseAboutLake(table="a.b", choice="accept"), {"table": "a.b", "choice": "accept", "seen": None}),
)


@pytest.mark.parametrize(("wish", "arguments"), WISHES)
def test_a_command_is_read_as_it_was_written(wish: Wish, arguments: dict[str, Any]) -> None:
    assert wish.arguments() == arguments
    assert wish_of(wish.kind, arguments) == wish


def test_what_a_newer_version_says_more_is_ignored() -> None:
    assert wish_of("pause_table", {"table": "a.b", "until": "noon"}) == kinds.PauseTable(table="a.b")
    assert wish_of("stop", {}) == kinds.Stop()


@pytest.mark.parametrize(
    ("kind", "arguments", "word"),
    [
        ("dance", {}, "knows no command 'dance'"),
        ("restore", {}, "arguments of the command 'restore'"),
        ("restore", {"checkpoint": "last"}, "arguments of the command 'restore'"),
        ("pause_table", {"table": None}, "arguments of the command 'pause_table'"),
    ],
)
def test_a_command_that_this_version_can_not_carry_out_is_refused_and_taken_alone_if_unknown(
    kind: str, arguments: dict[str, Any], word: str
) -> None:
    command = Command(n=1, kind=kind, arguments=arguments, by="ann", at=0.0)
    assert isinstance(command.wish, Refusal)
    assert word in command.wish.cause
    assert command.taken == (KINDS[kind].rule.taken if kind in KINDS else "alone")


def test_each_class_has_its_own_kind_and_a_rule_that_leaves_some_state() -> None:
    assert all(kind == wish.kind and wish.rule.states for kind, wish in KINDS.items())
    about_tables = {wish for wish in KINDS.values() if issubclass(wish, kinds.TableWish)}
    assert about_tables == {wish for wish in KINDS.values() if wish.rule.phases}
    assert all(set(wish.rule.phases) < set(Phase) and wish.rule.otherwise for wish in about_tables)


def test_what_a_command_leads_to_stands_with_its_class() -> None:
    modes = {kind: wish.rule.mode for kind, wish in KINDS.items() if wish.rule.mode is not None}
    assert modes == {
        "pause": "paused", "resume": "running", "stop": "stopped", "start": "running", "delete": "deleting",
    }  # fmt: skip
    wakes = {kind for kind, wish in KINDS.items() if wish.rule.wakes}
    assert wakes == {"resume", "start", "restore", "define", "cancel_table", "read_again"}


def test_an_order_about_a_table_has_its_command_of_the_cli_by_its_class() -> None:
    for order in kinds.TABLE_ORDERS:
        command = table.group.commands[order.act]
        assert command.help == order.__doc__
        assert [parameter.name for parameter in command.params][:2] == ["pipeline", "table"]
