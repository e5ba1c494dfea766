"""The commands that ask the control service, on answers that a test makes: what they send, print, and end with."""

from __future__ import annotations

import ast
import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from cutline.services.client.rest import Client, models
from cutline.services.run.cli import main, remote
from cutline.services.run.cli.condition import Moment, Span
from cutline.services.run.cli.hints import in_commands
from cutline.services.run.cli.pipeline import content_of
from cutline.services.run.picture import of_answer

ROOT = Path(__file__).resolve().parents[4]
CONDITION = {"id": "a1b2", "name": "CutlineNoLeader", "severity": "critical", "pipeline": "shop", "alerts_at": 60.0}
CONDITION |= {"summary": "no spark_writer leads pipeline shop", "since": 1000.0, "cause": "it ended"}
CONDITION |= {"remedy": "start one"}
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Service:
    """A control service with answers by method and path, and the requests that it got."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[httpx.Request] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        found = self.answers[f"{request.method} {request.url.path}"]
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    def body(self) -> Any:
        return json.loads(self.asked[-1].content)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    transport = httpx.MockTransport(made.handle)
    monkeypatch.setattr(remote, "Client", functools.partial(Client, transport=transport))
    return made


def cutline(*words: str, **more: Any) -> Result:
    return CliRunner().invoke(main, words, **more)


def pipeline(**more: Any) -> dict[str, Any]:
    known = dict.fromkeys(models.Pipeline.model_fields) | {"name": "shop", "definition": {}, "id": "", "failures": 0}
    known |= {"tables": {}, "applied_by_spark": {}, "derived": {}, "version": 1, "mode": "running", "tags": {}}
    known |= {"commands_waiting": 0}
    return {**known, "conditions": [], "current": True, "spark_writer": "s1", **more}


def table(**more: Any) -> dict[str, Any]:
    known = dict.fromkeys(models.Table.model_fields) | {"table": "a.b", "phase": "live", "generation": 1}
    return {**known, "choices": [], "paused": False, "current": True, **more}


# --- conditions -------------------------------------------------------------------------------------------------------


def test_conditions_are_listed_with_their_ids_and_end_with_1_while_somebody_must_act(service: Service) -> None:
    service.answers["GET /v1/conditions"] = [CONDITION]
    ended = cutline("conditions")
    assert ended.exit_code == 1
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("CRITICAL no spark_writer leads pipeline shop (for ")
    assert lines[1].startswith("  since 1970-01-01 00:16:40 UTC (")
    assert lines[1].endswith("id a1b2")
    assert lines[2:] == ["  cause: it ended", "  remedy: start one"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, 1),
        ({"severity": "warning"}, 1),
        ({"severity": "info"}, 0),
        ({"acknowledged": {"by": "anna", "at": 1.0, "until": None, "note": "known"}}, 0),
    ],
)
def test_only_what_is_due_and_nobody_has_acknowledged_makes_the_exit_code_1(
    service: Service, changed: dict[str, Any], code: int
) -> None:
    service.answers["GET /v1/pipelines/shop/conditions"] = [{**CONDITION, **changed}]
    assert cutline("conditions", "shop").exit_code == code
    found = cutline("conditions", "shop", "--json")
    assert (found.exit_code, json.loads(found.stdout)[0]["since"]) == (code, 1000.0)


def test_without_a_condition_it_says_so_and_ends_with_0(service: Service) -> None:
    service.answers["GET /v1/conditions"] = []
    assert (cutline("conditions").exit_code, cutline("conditions").stdout) == (0, "nothing needs anybody\n")


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ((), None),
        (("--for", "2h"), 7200.0),
        (("--for", "1.5d"), 129_600.0),
        (("--until", "2100-01-01T00:00:00Z"), None),
    ],
)
def test_a_condition_is_acknowledged_for_a_time_or_while_it_lasts(
    service: Service, options: tuple[str, ...], seconds: float | None
) -> None:
    service.answers["PUT /v1/conditions/a1b2/acknowledgement"] = CONDITION
    before = time.time()
    ended = cutline("conditions", "acknowledge", "a1b2", "--note", "disk is ordered", *options)
    assert ended.exit_code == 0, ended.stderr
    until = service.body()["until"]
    assert service.body()["note"] == "disk is ordered"
    if "--until" in options:
        assert (until, ended.stdout) == (4102444800.0, "condition a1b2 is acknowledged until 2100-01-01 00:00:00 UTC\n")
    elif seconds is None:
        assert (until, "while it lasts" in ended.stdout) == (None, True)
    else:
        assert before + seconds <= until <= time.time() + seconds


def test_an_acknowledgement_is_taken_back(service: Service) -> None:
    service.answers["DELETE /v1/conditions/a1b2/acknowledgement"] = CONDITION
    ended = cutline("conditions", "unacknowledge", "a1b2")
    assert (ended.exit_code, ended.stdout) == (0, "condition a1b2 is no longer acknowledged\n")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--note", "x", "--for", "2 hours"],
        ["--note", "x", "--for", "0h"],
        ["--note", "x", "--until", "noon"],
        ["--note", "x", "--until", "2001-01-01"],
        ["--note", "x", "--for", "2h", "--until", "2100-01-01"],
    ],
)
def test_an_acknowledgement_without_a_note_or_with_a_wrong_end_is_refused(
    service: Service, options: list[str]
) -> None:
    assert cutline("conditions", "acknowledge", "a1b2", *options).exit_code == 2
    assert service.asked == []


def test_a_time_without_a_zone_is_this_machines() -> None:
    assert Moment().convert("1970-01-02 00:00:00", None, None) == 86_400.0
    assert Span().convert("30m", None, None) == 1800.0
    with pytest.raises(click.UsageError):
        Span().convert("30", None, None)


def test_a_shell_completes_the_commands_of_conditions() -> None:
    completed = ShellComplete(main, {}, "cutline", "_CUTLINE_COMPLETE").get_completions(["conditions"], "ack")
    assert [item.value for item in completed] == ["acknowledge"]


# --- status and pipelines ---------------------------------------------------------------------------------------------


def test_the_list_of_pipelines_begins_with_the_conditions_and_never_calls_a_halted_one_running(
    service: Service,
) -> None:
    halted = {"code": "purged", "sentence": "the binlog is purged", "remedy": "read all again"}
    other = {**CONDITION, "id": "c", "name": "CutlineHalted", "summary": "pipeline crm is halted", "cause": "purged"}
    service.answers["GET /v1/pipelines"] = [
        pipeline(conditions=[CONDITION], tables={"live": 12_345}),
        pipeline(name="crm", halted=halted, conditions=[CONDITION, other]),
    ]
    lines = cutline("pipeline", "list").stdout.splitlines()
    assert [line for line in lines if line.startswith("CRITICAL")] == [
        line for line in lines[: lines.index("")] if not line.startswith(" ")
    ]
    assert sum(1 for line in lines if line.startswith("CRITICAL no spark_writer")) == 1
    rows = lines[lines.index("") + 1 :]
    assert rows[0].split() == ["pipeline", "state", "conditions", "tables", "checkpoint", "published", "waiting", "for"]
    assert rows[1].split() == ["shop", "running", "1", "critical", "12,345", "live"]
    assert rows[2].split() == ["crm", "halted", "2", "critical"]


def test_status_to_a_pipe_is_plain_lines_the_conditions_first(service: Service) -> None:
    service.answers["GET /v1/pipelines/shop"] = pipeline(conditions=[CONDITION], checkpoint=4)
    bad = table(table="a.c", phase="quarantined", cause="no key", remedy="add one")
    service.answers["GET /v1/pipelines/shop/tables"] = [table(), bad]
    lines = cutline("status", "shop").stdout.splitlines()
    assert lines[0].startswith("shop: running, lag unknown, checkpoint 4, ")
    assert lines[1].startswith("CRITICAL no spark_writer leads pipeline shop (for ")
    assert lines[-2:] == ["a.c: quarantined: no key; add one", "a.b: live"]


def test_watching_to_a_pipe_prints_what_changed_as_it_comes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The table is read. 2. Nothing changes. 3. It is live: that is printed at once. 4. Ctrl-C ends with 0."""
    service.answers["GET /v1/pipelines/shop"] = pipeline()
    service.answers["GET /v1/pipelines/shop/tables"] = [table(phase="snapshot", rows_done=5)]
    looks = 0

    def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            service.answers["GET /v1/pipelines/shop/tables"] = [table()]
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("cutline.services.run.cli.watching.time.sleep", pause)
    ended = cutline("status", "shop", "--watch")
    assert ended.exit_code == 0
    assert [line for line in ended.stdout.splitlines() if line.startswith("a.b")] == [
        "a.b: snapshot, 5 rows, 0%, 0 rows/s",
        "a.b: live",
    ]


def test_top_to_a_pipe_prints_once(service: Service) -> None:
    service.answers["GET /v1/pipelines/shop"] = pipeline(tables={"live": 40})
    service.answers["GET /v1/pipelines/shop/tables"] = []
    service.answers["GET /v1/services"] = service.answers["GET /v1/pipelines/shop/channels"] = []
    ended = cutline("top", "shop")
    assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (0, "40 tables: 40 live")


def test_top_counts_the_tables_that_it_did_not_ask_for() -> None:
    found = of_answer(models.Pipeline.model_validate(pipeline(tables={"live": 40, "paused": 1})), [], 1.0)
    assert found.unlisted == {"live": 40, "paused": 1}


# --- plans ------------------------------------------------------------------------------------------------------------

FILE = "name: shop\nsource: {host: db, user: u}\ntables: [a.*]\nsink: {warehouse: ./lake}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(FILE)
    return path


def plan(**more: Any) -> dict[str, Any]:
    known = {"pipeline": "shop", "exists": True, "version": 1, "possible": True, "findings": [], "tables": []}
    return {**known, "changes": [], "rows": 0, "bytes": 0, "seconds": 0.0, "rate": "a fast one", **more}


def finding(check: str, *, ok: bool = False, found: str = "as needed", **more: Any) -> dict[str, Any]:
    return {"check": check, "ok": ok, "found": found, **more}


def planned(name: str, action: str, **more: Any) -> dict[str, Any]:
    known = {"table": name, "action": action, "key": [], "rows": 8996, "bytes": 2048, "seconds": 30.0, "causes": []}
    return {**known, **more}


@pytest.mark.parametrize("words", [("pipeline", "plan", "shop"), ("pipeline", "create", "--dry-run")])
@pytest.mark.parametrize("as_json", [False, True])
def test_an_impossible_plan_ends_with_1_and_its_faults_on_stderr(
    service: Service, file: Path, words: tuple[str, ...], as_json: bool
) -> None:
    findings = [
        finding("connection", found="db:3306 does not answer", remedy="see that it runs"),
        finding("retention", ok=True),
    ]
    answer = plan(possible=False, findings=findings)
    service.answers["POST /v1/pipelines/shop/plan"] = service.answers["POST /v1/pipelines"] = answer
    ended = cutline(*words, str(file), *(["--json"] if as_json else []))
    assert ended.exit_code == 1
    assert ended.stderr == "cutline: connection: db:3306 does not answer; see that it runs\n"
    if as_json:
        assert json.loads(ended.stdout)["possible"] is False
    else:
        assert ended.stdout == "ok   retention: as needed\n"


def test_a_possible_plan_ends_with_0_and_has_what_is_read_and_notes(service: Service, file: Path) -> None:
    held = finding("table", found="a.log has no identity", remedy="add a key", table="a.log")
    tables = [planned("a.b", "read"), planned("a.events", "keep")]
    tables.append(planned("a.log", "quarantine", causes=["no identity"]))
    answer = plan(findings=[finding("connection", ok=True), held], tables=tables, rows=8996, bytes=2048, seconds=30.0)
    service.answers["POST /v1/pipelines"] = answer
    ended = cutline("pipeline", "create", "--dry-run", str(file))
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "ok   connection: as needed",
        "note table: a.log has no identity; add a key",
        "read         a.b 8,996 rows, 2.0 KiB, 30 s",
        "keep         a.events",
        "quarantine   a.log: no identity",
        "8,996 rows, 2.0 KiB, about 30 s (a fast one)",
    ]


def test_a_plan_that_reads_nothing_says_so(service: Service, file: Path) -> None:
    service.answers["POST /v1/pipelines/shop/plan"] = plan(tables=[planned("a.events", "keep")])
    assert cutline("pipeline", "plan", "shop", str(file)).stdout == "keep         a.events\nno table is read\n"


def test_a_relative_warehouse_is_beside_the_file_as_with_run(service: Service, file: Path) -> None:
    command = {"number": 7, "kind": "define", "arguments": {}, "by": "anna", "at": 1.0, "state": "done", "url": "/v1/x"}
    service.answers["POST /v1/pipelines"] = pipeline()
    service.answers["PUT /v1/pipelines/shop"] = command
    lake = str(file.parent / "lake")
    assert cutline("pipeline", "create", str(file)).exit_code == 0
    assert service.body()["sink"] == {"warehouse": lake}
    assert cutline("pipeline", "replace", "shop", str(file), "--note", "the new lake").exit_code == 0
    assert (service.body()["sink"], service.asked[-1].url.params["note"]) == ({"warehouse": lake}, "the new lake")


@pytest.mark.parametrize(
    ("given", "sent"),
    [("s3://bucket/lake", "s3://bucket/lake"), ("/data/lake", "/data/lake"), ("file:///data/lake", "/data/lake")],
)
def test_an_absolute_warehouse_stays(file: Path, given: str, sent: str) -> None:
    file.write_text(FILE.replace("./lake", given))
    assert content_of(file)["sink"]["warehouse"] == sent


def test_the_warehouse_of_standard_input_is_in_the_current_folder(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    service.answers["POST /v1/pipelines"] = pipeline()
    assert cutline("pipeline", "create", "-", input=FILE).exit_code == 0
    assert service.body()["sink"] == {"warehouse": str(tmp_path / "lake")}


def test_a_patch_has_a_note(service: Service) -> None:
    command = {"number": 7, "kind": "define", "arguments": {}, "by": "anna", "at": 1.0, "state": "done", "url": "/v1/x"}
    service.answers["PATCH /v1/pipelines/shop"] = command
    assert cutline("pipeline", "patch", "shop", "{tags: {a: b}}", "--note", "for the report").exit_code == 0
    assert (service.body(), service.asked[-1].url.params["note"]) == ({"tags": {"a": "b"}}, "for the report")


# --- events and fields ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ((), "epoch,kept,table,command,condition"),
        (("--kind", "publication"), "publication"),
        (("--kind", "table", "--kind", "condition"), "table,condition"),
        (("--all",), None),
    ],
)
def test_events_leave_publications_out_unless_they_are_asked_for(
    service: Service, options: tuple[str, ...], kind: str | None
) -> None:
    service.answers["GET /v1/pipelines/shop/events"] = [
        {"id": "1.0", "slot": 1, "at": 1000.0, "kind": "table", "text": "a.b is live"}
    ]
    ended = cutline("events", "shop", *options)
    assert ended.stdout == "1970-01-01 00:16:40 UTC  1.0  a.b is live\n"
    assert service.asked[0].url.params.get("kind") == kind


def test_an_unknown_kind_of_event_is_wrong_usage() -> None:
    assert cutline("events", "shop", "--kind", "nonsense").exit_code == 2


def test_fields_have_times_with_their_age_durations_sizes_and_counts_and_names_stay_as_they_are(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutline.services.run.cli.printing.time.time", lambda: 1185.0)
    service.answers["GET /v1/pipelines/shop/tables/a.b"] = table(
        generation=1234, rows_done=8996, lag_seconds=10.547324895858765, lag_bytes=2048, since=1000.0, inserts=12_345
    )
    lines = cutline("table", "show", "shop", "a.b").stdout.splitlines()
    fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
    assert fields["since"] == "1970-01-01 00:16:40 UTC (3:05 ago)"
    assert (fields["lag_seconds"], fields["lag_bytes"]) == ("11 s", "2.0 KiB")
    assert (fields["rows_done"], fields["inserts"], fields["generation"]) == ("8,996", "12,345", "1234")
    raw = json.loads(cutline("table", "show", "shop", "a.b", "--json").stdout)
    assert (raw["since"], raw["lag_seconds"], raw["inserts"]) == (1000.0, 10.547324895858765, 12_345)


def test_what_a_field_has_inside_is_shown_as_times_too_and_a_definition_as_it_was_written(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutline.services.run.cli.printing.time.time", lambda: 1185.0)
    wait = {"party": "source", "what": "the source", "cause": None, "since": 1000.0}
    definition = {"name": "shop", "checkpoint": {"interval_seconds": 10.0}, "tables": ["a.*", "b.*"]}
    service.answers["GET /v1/pipelines/shop"] = pipeline(
        definition=definition, waiting_for=wait, tables={"live": 12_345}, conditions=[CONDITION]
    )
    lines = cutline("pipeline", "show", "shop").stdout.splitlines()
    assert "    interval_seconds: 10.0" in lines
    assert "  - b.*" in lines
    assert "  since: 1970-01-01 00:16:40 UTC (3:05 ago)" in lines
    assert "  live: 12,345" in lines
    assert "  - id: a1b2" in lines
    assert "    alerts_at: 1970-01-01 00:01:00 UTC (18:45 ago)" in lines


def test_cuts_have_times_with_their_age(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutline.services.run.cli.checkpoint.time.time", lambda: 1185.0)
    cut = {"number": 12_345, "kept": False, "published_at": 1000.0, "source_time": None, "position": None, "shown": 3}
    service.answers["GET /v1/pipelines/shop/cuts"] = [{**cut, "tables_total": 3}]
    line = cutline("cuts", "shop").stdout.splitlines()[1]
    assert line.split()[:5] == ["12345", "1970-01-01", "00:16:40", "UTC", "(3:05"]


# --- hints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advice", "command"),
    [
        ("GET /v1/pipelines lists them", "`cutline pipeline list` lists them"),
        ("GET /v1/pipelines/shop/tables lists them", "`cutline table list shop` lists them"),
        ("GET .../tables lists its tables", "`cutline table list PIPELINE` lists its tables"),
        ("change it (PUT /v1/pipelines/shop), or", "change it (`cutline pipeline replace shop`), or"),
        ("wait for it (GET .../commands/7?wait=30s), and", "wait for it (`cutline command wait PIPELINE 7`), and"),
        ("which an admin makes by POST /v1/tokens", "which an admin makes by `cutline token create`"),
    ],
)
def test_advice_of_the_api_names_commands(advice: str, command: str) -> None:
    assert in_commands(advice) == command


def test_an_error_of_the_api_is_shown_with_the_command_to_type(service: Service) -> None:
    problem = {"detail": "the store has no pipeline 'x'", "remedy": "GET /v1/pipelines lists them"}
    service.answers["GET /v1/pipelines/x"] = httpx.Response(404, json=problem)
    ended = cutline("pipeline", "show", "x")
    assert ended.exit_code == 1
    assert ended.stderr == "cutline: the store has no pipeline 'x'; `cutline pipeline list` lists them\n"


def advised() -> Iterator[str]:
    """Every text of the control service that names a call of its API; what is put in is `shop` or `7`."""
    for path in (ROOT / "services" / "control" / "api").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        parts_of = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in (node for node in nodes if id(node) not in parts_of):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                text = "".join(map(str, parts)).replace("commands/{}", "commands/7").replace("{}", "shop")
                text = text.replace("(PUT shop/", "(PUT /v1/pipelines/")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if "\n" not in text and re.search(r"\b(?:GET|POST|PUT|PATCH|DELETE) (?:/v1|\.\.\.)[^ ]* ?\S", text):
                yield text


def test_every_call_that_the_api_advises_has_its_command() -> None:
    found = [text for text in advised() if "`POST /v1/tokens`, CUTLINE_API_TOKEN" not in text]
    assert len(found) > 10
    untold = [text for text in found if re.search(r"\b(?:GET|POST|PUT|PATCH|DELETE) (?:/v1|\.\.\.)", in_commands(text))]
    assert untold == []
