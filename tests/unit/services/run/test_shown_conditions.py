"""Conditions as a terminal shows them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from cutline.common.store.condition_log import Acknowledgement
from cutline.services.client.rest import models
from cutline.services.control.conditions import CONDITIONS, Finding
from cutline.services.control.standing import Held
from cutline.services.run.conditions import ShownCondition, answered, block, in_order, judged, listed
from tests.support.causes import because
from tests.support.pages import parsed

NOW = 1_000_000.0


def condition(**more: Any) -> ShownCondition:
    known: dict[str, Any] = {"severity": "critical", "summary": "pipeline shop can't reach its source"}
    known["since"] = NOW - 131
    return ShownCondition(**{**known, **more})


def of_api(**more: Any) -> models.Condition:
    known = {"id": "a1", "name": "CutlineNoLeader", "severity": "critical", "pipeline": "shop", "summary": "no leader"}
    return models.Condition.model_validate({**known, "since": NOW - 60, "alerts_at": NOW, **more})


def test_one_that_was_judged_here_is_shown_as_one_of_the_api() -> None:
    kind = next(each for each in CONDITIONS if each.name == "CutlineHalted")
    cause, labels = because("it is purged", "read again"), (("pipeline", "shop"),)
    finding = Finding(id="a1", condition=kind, labels=labels, since=NOW - 5, cause=cause)
    known = Acknowledgement(by="anna", at=NOW, note="known")
    (shown,) = judged([Held(finding=finding, acknowledged=known)])
    assert [line.plain for line in block(shown, NOW, None)] == [
        "CRITICAL pipeline shop is halted until a person acts (for 5.0 s)",
        "  cause: it is purged",
        "  remedy: read again",
        "  acknowledged by anna while it lasts: known",
    ]


def test_what_since_when_cause_and_remedy_stand_in_this_order() -> None:
    shown = condition(cause="db:3306 does not answer", remedy="see that it runs", tables=["a.b"], tables_total=4)
    assert [line.plain for line in block(shown, NOW, None)] == [
        "CRITICAL pipeline shop can't reach its source (for 2:11)",
        "  cause: db:3306 does not answer",
        "  remedy: see that it runs",
        "  tables: a.b and 3 more",
    ]


def test_a_long_remedy_is_wrapped_at_sixty_columns() -> None:
    remedy = "start a service of that role (`cutline up`, compose or Helm), or see in its log why it ended"
    lines = [line.plain for line in block(condition(remedy=remedy), NOW, 60)]
    assert max(map(len, lines)) <= 60
    assert remedy in " ".join(" ".join(lines).split())


def test_the_most_severe_comes_first_in_the_order_of_its_kind_and_what_is_acknowledged_last() -> None:
    found = [
        condition(summary="a", severity="info"),
        condition(summary="b", severity="warning"),
        condition(summary="c", since=NOW - 5),
        condition(summary="d", since=NOW - 500),
        condition(summary="e", acknowledged="acknowledged by anna"),
        condition(summary="f", severity="of a later version"),
    ]
    assert "".join(each.summary for each in in_order(found)) == "cdbafe"


def test_a_condition_of_all_pipelines_is_shown_once() -> None:
    shared = of_api(id="r", pipeline=None, summary="Redis is away")
    found = answered([of_api(), shared, of_api(id="a2"), shared])
    assert [each.id for each in found] == ["a1", "r", "a2"]


def test_who_has_taken_note_is_shown_with_the_end_and_the_note() -> None:
    noted = {"by": "anna", "at": NOW, "until": None, "note": "disk is ordered"}
    (shown,) = answered([of_api(acknowledged=noted)])
    assert not shown.is_due
    assert block(shown, NOW, None)[-1].plain == "  acknowledged by anna while it lasts: disk is ordered"
    (shown,) = answered([of_api(acknowledged={**noted, "until": NOW})])
    assert "by anna until 1970-01-12 " in str(shown.acknowledged)


def test_only_a_critical_one_or_a_warning_that_nobody_knows_of_is_due() -> None:
    assert condition().is_due
    assert condition(severity="warning").is_due
    assert not condition(severity="info").is_due
    assert not condition(acknowledged="by anna").is_due


def test_those_left_out_are_counted_by_severity() -> None:
    shown = listed([condition(), condition(severity="warning"), condition(severity="warning")], NOW, 80)
    assert [line.plain for line in shown.lines(2)] == [
        "CRITICAL pipeline shop can't reach its source (for 2:11)",
        "and 2 more conditions (2 warning): `cutline conditions` lists them",
    ]


@pytest.mark.parametrize(
    ("code", "tables", "command"),
    [
        ("no_key", ["shop.orders"], "  to retry it: cutline table retry shop shop.orders"),
        ("no_key", ["shop.orders", "shop.items"], "  to retry it: cutline table retry shop TABLE"),
        ("schema_change", ["shop.orders"], None),  # its remedy names `cutline table read-again`
    ],
)
def test_a_quarantined_table_comes_with_the_command_that_retries_it(
    code: str, tables: list[str], command: str | None
) -> None:
    named = {"name": "CutlineTableQuarantined", "code": code, "tables": tables, "tables_total": len(tables)}
    (shown,) = answered([of_api(**named, remedy="add a key")])
    lines = [line.plain for line in block(shown, NOW, None)]
    assert lines[1] == "  remedy: add a key"
    assert lines[2:3] == ([command] if command else [])


def test_the_command_that_is_shown_is_one_that_cutline_takes() -> None:
    (shown,) = answered([of_api(name="CutlineTableQuarantined", tables=["shop.orders"], tables_total=1)])
    assert shown.retry is not None
    parsed(shlex.split(shown.retry)[1:])
