"""The view of a pipeline in a terminal: on screens of all sizes, and as plain lines."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from cutline.common.form import text
from cutline.common.mesh.rates import Rates
from cutline.common.status.pipeline_status import (
    DerivedStatus,
    EnumeratorStatus,
    PipelineStatus,
    SparkWriterStatus,
    TableStatus,
)
from cutline.common.store.records import Publication
from cutline.common.waits import Party, Wait
from cutline.services.client.rest import models
from cutline.services.run import terminal
from cutline.services.run.conditions import ShownCondition
from cutline.services.run.picture import Picture, of_answer, of_status
from tests.support.causes import because
from tests.support.status import status_of

REMEDY = "GRANT SELECT ON `shop`.* TO 'cdc'@'%', or leave it out of tables; Cutline looks again by itself every minute"


def table(phase: str, generation: int = 1, **more: Any) -> TableStatus:
    return TableStatus(phase=phase, generation=generation, **more)  # type: ignore[arg-type]


STATUS: dict[str, Any] = {
    "enumerator": {
        "epoch": 3,
        "leader": "e1",
        "at": 999.0,
        "tables": {
            "shop.a": table("snapshot", rows_done=250, rows_estimate=1000, cause=None),
            "shop.b": table(
                "quarantined", rows_done=0, rows_estimate=5, cause=because("it has no primary key", "add one")
            ),
            "shop.c": table("dropped", 2, rows_done=0, rows_estimate=0, cause=because("there is no table shop.c")),
        },
        "checkpoint": {"number": 7, "completed_at": 990.0, "in_flight": 8},
        "waiting_for": Wait(Party.SOURCE, "the source h:3306, which does not answer"),
    },
    "spark_writer": {"published": 6, "published_at": 995.0, "source_time": 988.0},
}


def shown(status: Any, **more: Any) -> Picture:
    """The picture of a status at second 1000."""
    found = status if isinstance(status, PipelineStatus) else status_of(status)
    return of_status("shop", found, rates=Rates(), now=1000.0, **more)


def drawn(current: Picture, width: int, height: int) -> list[str]:
    """The lines of its drawing, which fit the terminal."""
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(terminal.drawing(current, width=width, height=height))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    return [line.rstrip() for line in lines]


def words(lines: list[str]) -> str:
    """All of it in one line, as if it were not wrapped."""
    return " ".join(" ".join(lines).split())


def condition(severity: str = "critical", **more: Any) -> ShownCondition:
    known: dict[str, Any] = {"summary": "no spark_writer leads pipeline shop; start one", "since": 864.0}
    return ShownCondition(severity=severity, **{**known, "remedy": REMEDY, **more})


# --- the content ------------------------------------------------------------------------------------------------------


def test_a_picture_has_rate_and_time_to_go_from_the_counts_seen() -> None:
    rates = Rates()
    of_status("shop", status_of(STATUS), rates=rates, now=1000.0)
    later = json.loads(text(STATUS))
    later["enumerator"]["tables"]["shop.a"]["rows_done"] = 500
    current = of_status("shop", status_of(later), rates=rates, now=1005.0)
    line = next(line for line in current.tables if line.name == "shop.a")
    assert (line.rate, line.eta_seconds, line.fraction) == (50.0, 10.0, 0.5)
    assert (current.lag_seconds, current.checkpoint_age_seconds, current.publication_age_seconds) == (17.0, 15.0, 10.0)


def test_derived_tables_have_a_line_each_and_those_in_trouble_come_first() -> None:
    cause = because("the query of d.bad is refused by Spark: no", "correct sql in derived")
    derived = {"d.bad": DerivedStatus(cause=cause), "d.good": DerivedStatus(rows=7, at=990.0, checkpoint=4)}
    status = PipelineStatus(spark_writer=SparkWriterStatus(at=999.0, derived=derived))
    assert list(status.quarantined()) == ["d.bad"]
    bad, good = shown(status).tables
    assert (bad.name, bad.phase, bad.cause) == ("d.bad", "quarantined", str(cause))
    assert (good.name, good.phase, good.rows, good.for_seconds) == ("d.good", "derived", 7, 10.0)


def test_a_rate_begins_afresh_with_a_generation_and_forgets_what_is_long_past() -> None:
    rates = Rates()
    assert rates.observe("a", 1, 0, 0.0) == 0.0
    assert rates.observe("a", 1, 1000, 1.0) == 1000.0
    assert rates.observe("a", 2, 10, 2.0) == 0.0
    assert rates.observe("a", 1, 1000, 60.0) == rates.observe("a", 1, 1000, 61.0) == 0.0


def test_a_table_is_shown_quarantined_while_the_spark_writer_can_not_apply_its_generation() -> None:
    held = {"cause": because("it is a view"), "generation": 1}
    status = {**STATUS, "spark_writer": {"quarantined": {"shop.a": held}}}
    assert "shop.a: quarantined, 250 rows: it is a view" in terminal.lines(shown(status))
    status["spark_writer"]["quarantined"]["shop.a"]["generation"] = 0  # the next one is being read
    assert any(line.startswith("shop.a: snapshot") for line in terminal.lines(shown(status)))


def test_after_a_resume_the_newest_publication_of_the_store_is_shown_until_a_spark_writer_reports_one() -> None:
    kept = Publication(
        n=12, epoch=1, w=1, kept=True, position=None, source_time=940.0, published_at=950.0, tables={}
    )
    before = shown(PipelineStatus(), publication=kept)
    assert terminal.summary(before) == "lag 1:00, no checkpoint yet, publication 12 (50 s ago)"
    reported = status_of({"spark_writer": {"published": 13, "published_at": 999.0, "source_time": 998.0}})
    assert "publication 13 (1.0 s ago)" in terminal.summary(shown(reported, publication=kept))


def test_a_halted_pipeline_never_reads_running() -> None:
    halted = PipelineStatus(enumerator=EnumeratorStatus(at=999.0, mode="running", halted=because("the binlog is gone")))
    lines = terminal.lines(shown(halted))
    assert lines[0].startswith("shop: halted, ")
    assert "halted: the binlog is gone" in lines
    assert "running" not in "\n".join(lines)


def pipeline(**more: Any) -> models.Pipeline:
    """An answer about a pipeline, as an older service gives it: without conditions."""
    known = dict.fromkeys(models.Pipeline.model_fields) | {"name": "shop", "definition": {}, "id": "", "failures": 0}
    known |= {"tables": {}, "applied_by_spark": {}, "derived": {}, "version": 1, "mode": "running", "tags": {}}
    known |= {"commands_waiting": 0}
    return models.Pipeline.model_validate({**known, "conditions": [], "current": True, "spark_writer": "s1", **more})


def test_a_pipeline_that_the_api_says_is_halted_never_reads_running_and_says_since_when() -> None:
    halted = {"code": "purged", "sentence": "the binlog is purged", "remedy": "read all again"}
    current = of_answer(pipeline(halted=halted, halted_since=869.0, mode_since=10.0), [], 1000.0)
    assert terminal.summary(current).startswith("halted for 2:11, ")
    assert current.obstacles == ("halted: the binlog is purged; read all again",)


def test_a_missing_role_is_named_also_by_a_service_without_conditions() -> None:
    current = of_answer(pipeline(spark_writer=None, current=False), [], 1000.0)
    assert terminal.summary(current).endswith("no enumerator leads it now, no Spark writer leads it now")


def test_what_a_condition_tells_is_not_said_again() -> None:
    wait = {"party": "source", "what": "the source", "cause": {"code": "x", "sentence": "refused", "remedy": ""}}
    known = {"id": "1", "name": "n", "severity": "critical", "summary": "s", "cause": "the source: refused"}
    assert of_answer(pipeline(waiting_for=wait), [], 1000.0).obstacles == ("waiting for the source: refused",)
    known_at = {"since": 1.0, "alerts_at": 2.0}
    current = of_answer(pipeline(waiting_for=wait, conditions=[{**known, **known_at}]), [], 1000.0)
    assert current.obstacles == ()


def test_the_rows_of_a_live_table_are_those_of_the_lake_and_those_of_a_snapshot_what_it_has_read() -> None:
    known = dict.fromkeys(models.Table.model_fields) | {"choices": [], "paused": False, "current": True}
    known |= {"generation": 1, "rows_done": 500, "rows": 777}
    read = [models.Table.model_validate({**known, "table": phase, "phase": phase}) for phase in ("live", "snapshot")]
    current = of_answer(pipeline(), read, 1000.0)
    assert {line.name: line.rows for line in current.tables} == {"live": 777, "snapshot": 500}


# --- plain lines ------------------------------------------------------------------------------------------------------


def test_plain_lines_begin_with_the_summary_and_the_conditions_and_have_tables_in_trouble_first() -> None:
    current = shown(STATUS, conditions=[condition(cause="it ended")], notes=("Redis at h:1 does not answer",))
    assert terminal.lines(current) == [
        "shop: running, lag 12 s, checkpoint 7 (10 s ago), publication 6 (5.0 s ago), checkpoint 8 under way",
        "CRITICAL no spark_writer leads pipeline shop; start one (for 2:16)",
        "  cause: it ended",
        f"  remedy: {REMEDY}",
        "waiting for the source h:3306, which does not answer",
        "Redis at h:1 does not answer",
        "shop.b: quarantined, 0 rows: it has no primary key; add one",
        "shop.a: snapshot, 250 rows, 25%, 0 rows/s",
        "shop.c: dropped: there is no table shop.c",
    ]


def test_an_empty_status_is_shown_without_a_number_made_up() -> None:
    assert terminal.lines(shown(PipelineStatus())) == ["shop: lag unknown, no checkpoint yet, no publication yet"]


def test_outside_a_terminal_only_new_lines_are_printed_and_no_escape_codes() -> None:
    out = io.StringIO()
    with terminal.TerminalView("shop", Console(file=out, width=60, soft_wrap=True)) as view:
        view.update(status_of(STATUS))
        view.update(status_of(STATUS))
        view.say("[bold]a line of brackets[/bold]")
    assert out.getvalue().count("shop.b: quarantined, 0 rows: it has no primary key; add one\n") == 1
    assert "[bold]a line of brackets[/bold]\n" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_condition_is_printed_at_once_and_ages_only_now_and_then() -> None:
    out = io.StringIO()
    plain = terminal.PlainLines(Console(file=out, width=60, soft_wrap=True))
    plain.update([shown(STATUS)])
    before = out.getvalue()
    later = of_status("shop", status_of(STATUS), rates=Rates(), now=1007.0)
    plain.update([later])
    assert out.getvalue() == before
    plain.update([of_status("shop", status_of(STATUS), rates=Rates(), now=1007.0, conditions=[condition()])])
    assert out.getvalue().removeprefix(before).splitlines()[1].startswith("CRITICAL no spark_writer leads")


# --- screens ----------------------------------------------------------------------------------------------------------

MANY = {
    "enumerator": {
        "epoch": 3,
        "at": 999.0,
        "tables": {
            **{f"shop.live_{at:02}": table("live", rows_done=3_000_000, rows_estimate=1) for at in range(25)},
            "shop.z_a_table_that_has_quite_a_long_name": table(
                "quarantined", rows_done=3_000_000, cause=because("'cdc'@'%' may not read it", REMEDY)
            ),
            "shop.z_read": table("snapshot", rows_done=1_500_000, rows_estimate=3_000_000),
        },
        "checkpoint": {"number": 7, "completed_at": 990.0},
    },
    "spark_writer": {"published": 6, "published_at": 995.0, "source_time": 988.0},
}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 10), (60, 24), (100, 30), (140, 50)])
def test_a_screen_of_any_size_begins_with_the_summary_and_has_the_whole_condition(width: int, height: int) -> None:
    current = shown(MANY, conditions=[condition(cause="the process was ended by SIGKILL")])
    lines = drawn(current, width, height)
    assert lines[0].startswith("shop (epoch 3): running, lag 12 s")
    whole = words(lines)
    assert "CRITICAL no spark_writer leads pipeline shop; start one (for 2:16)" in whole
    assert f"cause: the process was ended by SIGKILL remedy: {REMEDY}" in whole
    assert "25 live" in whole or "live_00" in whole


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_cause_of_a_table_is_whole_at_any_width_and_its_figures_too(width: int) -> None:
    lines = drawn(shown(MANY), width, 24)
    assert f"'cdc'@'%' may not read it; {REMEDY}" in words(lines)
    at = next(at for at, line in enumerate(lines) if "quarantined" in line)
    assert lines[at].startswith("shop.z")
    assert "3,000,000" in lines[at]
    assert lines[at].split()[0].endswith("name")


def test_tables_in_trouble_come_first_then_those_that_are_read_and_those_left_out_are_counted() -> None:
    lines = drawn(shown(MANY), 80, 24)
    names = [line.split()[0] for line in lines if line.startswith("shop.")]
    assert names[0].startswith("shop.z_a")
    assert names[1:3] == ["shop.z_read", "shop.live_00"]
    live = sum(1 for name in names if name.startswith("shop.live"))
    assert lines[-1] == f"and {25 - live} more tables: {25 - live} live"


def test_ten_lines_have_the_most_severe_condition_and_count_the_others() -> None:
    found = [condition("warning", summary=f"warning {at}") for at in range(5)] + [condition()]
    lines = drawn(shown(MANY, conditions=found), 80, 10)
    whole = words(lines)
    assert "CRITICAL no spark_writer leads" in whole
    assert REMEDY in whole
    assert "more conditions" in whole
    assert lines[-1] == "27 tables: 1 quarantined, 1 snapshot, 25 live"


def test_in_a_terminal_a_table_that_is_read_has_a_bar() -> None:
    out = io.StringIO()
    with terminal.TerminalView("shop", Console(file=out, width=140, height=40, force_terminal=True)) as view:
        view.update(status_of(STATUS), notes=("Redis at h:1 does not answer; trying again",))
    assert "━" in out.getvalue()
    for word in ("shop.a", "snapshot", "250", "lag", "publication 6", "Redis at h:1 does not answer"):
        assert word in out.getvalue()


def test_a_small_terminal_leaves_out_live_tables_first() -> None:
    tables = {f"shop.t{i:02}": table("live", rows_done=1, rows_estimate=1) for i in range(40)}
    tables["shop.t33"] = table("snapshot", rows_done=1, rows_estimate=2)
    lines = drawn(shown(PipelineStatus(tables=tables)), 100, 20)
    assert any(line.startswith("shop.t33") for line in lines)
    assert not any(line.startswith("shop.t32") for line in lines)
    assert lines[-1] == "and 23 more tables: 23 live"


@pytest.mark.parametrize("height", [10, 24])
def test_of_several_pipelines_the_one_in_trouble_comes_first_and_a_shared_condition_once(height: int) -> None:
    shared = condition(summary="the mesh's Redis does not answer, so every pipeline waits")
    quiet = of_answer(pipeline(name="calm"), [], 1000.0)
    held = of_answer(pipeline(name="shop", spark_writer=None), [], 1000.0)
    many = [of_answer(pipeline(name=f"p{at:02}"), [], 1000.0) for at in range(30)]
    pictures = [Picture(**{**_fields(each), "conditions": (shared,)}) for each in (quiet, held)]
    console = Console(file=io.StringIO(), width=80, height=height)
    console.print(terminal.drawings([*many, *pictures], width=80, height=height))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= height
    assert words(lines).count("Redis does not answer") == 1
    first = next(at for at, line in enumerate(lines) if line.startswith(("calm:", "shop:", "p00")))
    assert lines[first].startswith(("calm", "shop"))
    assert "more pipelines" in lines[-1]


def _fields(picture: Picture) -> dict[str, Any]:
    return {name: getattr(picture, name) for name in Picture.__dataclass_fields__}


def test_what_is_printed_once_has_all_that_matters_however_small_the_terminal() -> None:
    found = [condition("warning", summary=f"warning {at}") for at in range(5)]
    console = Console(file=io.StringIO(), width=80, height=10)
    console.print(terminal.printed([shown(MANY, conditions=found)], width=80, height=10))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert sum(1 for line in lines if line.startswith("WARNING")) == 5
    assert any(line.startswith("shop.z_read") for line in lines)
    assert "more tables" in lines[-1]
