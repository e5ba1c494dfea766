"""The typed client, on answers that a test makes, and against the API's own description."""

from __future__ import annotations

import functools
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from click.testing import CliRunner
from pydantic import BaseModel
from rich.console import Console

from cutline.common.commands.kinds import TABLE_ORDERS
from cutline.common.errors import ConfigError
from cutline.common.mesh.presence import Registry
from cutline.common.store.store import Store
from cutline.services.client.rest import (
    ApiError,
    AsyncClient,
    Client,
    CommandFailed,
    Conflict,
    Forbidden,
    NotFound,
    ServiceUnavailable,
    TimedOut,
    Unreachable,
    WrongRequest,
    calls,
    client,
    models,
    previews,
)
from cutline.services.client.rest.events import EventReader
from cutline.services.client.rest.methods import Each, Method
from cutline.services.control.api.access import Access
from cutline.services.control.app import build
from cutline.services.run.cli import main, remote, watching
from cutline.services.run.cli.pipeline import content_of

Answering = Callable[[httpx.Request], httpx.Response]
COMMAND = {"number": 7, "kind": "pause", "arguments": {}, "by": "anna", "at": 1.0}
COMMAND |= {"url": "/v1/pipelines/shop/commands/7"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(client, "RECONNECT_SECONDS", 0.0)


def answering(*answers: httpx.Response | Exception) -> tuple[list[httpx.Request], httpx.MockTransport]:
    """A transport that gives these answers in order, and the requests that it got."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        found = answers[len(asked) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    return asked, httpx.MockTransport(answer)


def command(state: str, **more: Any) -> httpx.Response:
    return httpx.Response(202, json={**COMMAND, "state": state, **more})


def test_a_command_is_repeated_with_its_key_after_a_lost_answer_and_waited_for() -> None:
    asked, transport = answering(httpx.ReadTimeout("slow"), command("accepted"), command("running"), command("done"))
    with Client("http://c", token="t", transport=transport) as api:
        assert api.pause("shop", wait=50).state == "done"
    assert [(request.method, request.url.path) for request in asked] == [
        ("POST", "/v1/pipelines/shop/pause"),
        ("POST", "/v1/pipelines/shop/pause"),
        ("GET", "/v1/pipelines/shop/commands/7"),
        ("GET", "/v1/pipelines/shop/commands/7"),
    ]
    keys = [request.headers["Idempotency-Key"] for request in asked[:2]]
    assert keys[0] == keys[1]
    assert keys[0]
    assert asked[0].headers["Authorization"] == "Bearer t"
    assert asked[0].url.params["wait"] == "30000ms"


def test_a_command_that_is_refused_is_an_error_with_cause_and_remedy() -> None:
    refused = command("refused", cause="the table is live", remedy="pause it first")
    _, transport = answering(command("accepted"), refused)
    with Client("http://c", transport=transport) as api, pytest.raises(CommandFailed, match="pause it first") as raised:
        api.order_table("shop", "a.b", "retry", wait=10)
    assert raised.value.command.state == "refused"
    _, transport = answering(command("accepted"))
    with Client("http://c", transport=transport) as api:
        assert api.pause("shop").state == "accepted"  # without a wait its fate is not known yet


def test_a_wait_that_is_over_says_that_the_command_goes_on() -> None:
    _, transport = answering(command("running"))
    with Client("http://c", transport=transport) as api, pytest.raises(TimedOut, match="cutline command wait shop 7"):
        api.wait_for_command("shop", 7, wait=0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFound),
        (409, Conflict),
        (403, Forbidden),
        (422, WrongRequest),
        (500, ApiError),
        (503, ServiceUnavailable),
    ],
)
def test_a_problem_becomes_the_error_of_its_status(status: int, kind: type[ApiError]) -> None:
    problem = {"detail": "it is so", "remedy": "do this", "request_id": "r1", "errors": [{"detail": "a", "field": "f"}]}
    asked, transport = answering(*[httpx.Response(status, json=problem)] * 3)
    with Client("http://c", transport=transport) as api, pytest.raises(kind) as raised:
        api.services()
    assert (str(raised.value), raised.value.request_id, raised.value.status) == ("it is so; do this", "r1", status)
    assert raised.value.errors[0]["field"] == "f"
    assert len(asked) == (3 if status == 503 else 1)


def test_an_answer_that_is_no_problem_is_an_error_too() -> None:
    _, transport = answering(httpx.Response(418, text="<html>"))
    with Client("http://c", transport=transport) as api, pytest.raises(ApiError, match="c answered 418"):
        api.services()


def test_what_has_no_key_is_not_repeated() -> None:
    asked, transport = answering(httpx.ConnectError("refused"))
    with Client("http://c", transport=transport) as api, pytest.raises(Unreachable, match="http://c did not answer"):
        api.make_token("anna", "viewer")
    assert len(asked) == 1


def test_pages_are_asked_for_as_they_are_needed() -> None:
    def page(*numbers: int, cursor: str | None = None) -> httpx.Response:
        splits = [{"table": f"t{n}", "generation": 1, "done": n, "total": n} for n in numbers]
        tables = [{**dict.fromkeys(models.Table.model_fields), **split, "phase": "live"} for split in splits]
        for table in tables:
            table.update(choices=[], paused=False, current=True)
        headers = {"Link": f'</v1/x?limit=2&cursor={cursor}>; rel="next"'} if cursor else {}
        return httpx.Response(200, json=tables, headers=headers)

    asked, transport = answering(page(1, 2, cursor="abc"), page(3))
    with Client("http://c", transport=transport) as api:
        each = api.each_table("shop", phase="live", limit=2)
        assert [next(each).table, next(each).table] == ["t1", "t2"]
        assert len(asked) == 1
        assert [table.table for table in each] == ["t3"]
    assert dict(asked[1].url.params) == {"phase": "live", "limit": "2", "cursor": "abc"}


async def test_the_async_client_sends_the_same_requests() -> None:
    asked, transport = answering(httpx.ReadTimeout("slow"), command("accepted"), command("done"))
    async with AsyncClient("http://c", transport=transport) as api:
        assert (await api.take_savepoint("shop", "friday", wait=20)).state == "done"
    assert [request.method for request in asked] == ["POST", "POST", "GET"]
    assert json.loads(asked[0].content) == {"name": "friday"}


def test_names_in_paths_are_quoted() -> None:
    asked, transport = answering(command("accepted"), command("accepted"))
    with Client("http://c", transport=transport) as api:
        api.order_table("shop", "a.b/c?d", "pause")
        api.remove_table("shop", "..")  # a path that ends so would be the pipeline's
    assert [request.url.raw_path for request in asked] == [
        b"/v1/pipelines/shop/tables/a.b%2Fc%3Fd/pause",
        b"/v1/pipelines/shop/tables/%2E%2E",
    ]


def test_events_go_on_after_a_lost_connection_from_the_last_one_that_was_whole() -> None:
    event = '{"id": "%s", "slot": 1, "at": 1.0, "kind": "table", "text": "x"}'

    def stream(*parts: str) -> httpx.Response:
        return httpx.Response(200, content=iter([part.encode() for part in parts]))

    def cut() -> Iterator[bytes]:
        yield f"retry: 2000\nid: 0.9\n\nid: 1.0\ndata: {event % '1.0'}\n\nid: 1.1\ndata: {{".encode()
        raise httpx.ReadError("gone")

    asked, transport = answering(
        httpx.Response(200, content=cut()),
        httpx.ConnectError("refused"),
        stream(": no news\n\n", f"id: 1.1\ndata: {event % '1.1'}\n\n"),
    )
    with Client("http://c", transport=transport) as api:
        events = api.follow("shop")
        assert [next(events).id, next(events).id] == ["1.0", "1.1"]
    assert [request.headers.get("Last-Event-ID") for request in asked] == [None, "1.0", "1.0"]


def test_a_stream_that_is_cut_off_before_its_first_event_goes_on_where_it_began() -> None:
    reader = EventReader(None)
    for line in ("retry: 2000", "id: 5.2", "", ": no news", ""):
        assert reader.take(line) is None
    reader.cut_off()
    assert reader.last == "5.2"


# --- against the API's description ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = Store(f"file://{tmp_path_factory.mktemp('store')}")
    described: dict[str, Any] = build(cast(Registry, None), store, Access(store.access)).openapi()
    return described


VIEWS = {
    models.Cause: "Cause", models.Wait: "Wait", models.Condition: "ConditionView",
    models.Acknowledgement: "AcknowledgementView",
    models.Service: "ServiceView", models.LogLine: "LogLineView", models.Pipeline: "PipelineView",
    models.Table: "TableView", models.Splits: "SplitsView", models.Grid: "GridView", models.Run: "Run",
    models.Column: "ColumnView", models.Schema: "SchemaView", models.Member: "MemberView", models.Apply: "ApplyView",
    models.Staged: "StagedView", models.Checkpoint: "CheckpointDetail", models.Savepoint: "SavepointView",
    models.Channel: "ChannelView", models.CutTable: "CutTable", models.Cut: "CutDetail", models.CutAnswer: "CutAnswer",
    models.Event: "EventView", models.OperationRules: "OperationRules", models.Limits: "LimitsView",
    models.Command: "CommandView", models.Plan: "Plan", models.Finding: "Finding",
    models.PlannedTable: "PlannedTable", models.Change: "Change", previews.Preview: "Preview",
    previews.PreviewTable: "PreviewTable", previews.PreviewColumn: "PreviewColumn", previews.PreviewRows: "PreviewRows",
    previews.PreviewRow: "PreviewRow",
    models.SourceTest: "SourceTest", models.SourceSchema: "SourceSchema", models.SourceColumn: "SourceColumn",
    models.SourceTable: "SourceTable", models.Fault: "FieldProblem", models.Me: "Me", models.Token: "MadeToken",
    models.AuditRecord: "AuditView", models.Version: "VersionContent",
}  # fmt: skip


@pytest.mark.parametrize("model", VIEWS, ids=lambda model: model.__name__)
def test_a_model_has_the_fields_of_the_api_s_answer(description: dict[str, Any], model: type[BaseModel]) -> None:
    schema = description["components"]["schemas"][VIEWS[model]]
    ours = {field.alias or name for name, field in model.model_fields.items()}
    assert ours == set(schema["properties"])
    needed = {field.alias or name for name, field in model.model_fields.items() if field.is_required()}
    always = set(schema.get("required", ())) | {n for n, f in schema["properties"].items() if "default" in f}
    assert needed <= always, "the client must be able to read an answer without an optional field"


def test_every_operation_of_the_api_has_a_method_of_the_client(description: dict[str, Any]) -> None:
    made = set()
    for name, call in vars(client._Calls).items():
        if isinstance(call, Method | Each):
            made.add(request_of(call._make, name))
    path = "/v1/pipelines/pipeline/tables/table/{}".format  # one method for each order about a table
    made.remove(("POST", path("order")))
    made.add(("GET", "/v1/pipelines/pipeline/conditions"))  # the same method, of one pipeline
    made |= {("POST", path(order.act)) for order in TABLE_ORDERS}
    offered = {
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in description["paths"].items()
        for method in methods
        if path.startswith("/v1/")
    }
    assert offered - made == set()
    assert made - offered == set()


def request_of(make: Callable[..., Any], name: str) -> tuple[str, str]:
    """Method and path of a call, whose arguments are named as in the path of the API's description."""
    named: dict[str, Any] = {
        "make_token": ("n", "viewer"), "logs": ("incarnation",), "revoke_token": ("token_id",),
        "create_pipeline": ({},), "plan_pipeline": ({},), "test_source": ({},), "source_schemas": ({},),
        "source_tables": ({},), "each_source_table": ({},),
    }  # fmt: skip
    code = make.__code__
    needed = code.co_varnames[: code.co_argcount - len(make.__defaults__ or ())]
    arguments = named.get(name) or tuple(
        "number" if word in ("number", "checkpoint") or (word == "version") else word for word in needed
    )
    if name in ("version", "restore_version"):
        arguments = ("pipeline", "version")
    found = make(*arguments)
    call = found if isinstance(found, calls.Call) else next(found)
    return call.method, call.path


def test_the_package_gives_the_client_and_imports_it_only_when_it_is_asked_for() -> None:
    program = (
        "import sys, cutline; assert 'httpx' not in sys.modules\n"
        "from cutline import Client, AsyncClient, ApiError, models\n"
        "print(Client.__name__, AsyncClient.__name__, ApiError.__name__, models.Table.__name__)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["Client", "AsyncClient", "ApiError", "Table"]


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete"), ("zsh", "compdef"), ("fish", "complete")])
def test_completion_is_printed_for_each_shell(shell: str, word: str) -> None:
    ended = CliRunner().invoke(main, ["completion", shell])
    assert ended.exit_code == 0
    assert word in ended.stdout
    assert "_CUTLINE_COMPLETE" in ended.stdout


@pytest.mark.parametrize("words", ["pipeline list", "status --watch", "top shop"])
def test_without_a_control_service_a_command_ends_with_1_and_says_what_to_check(words: str) -> None:
    ended = CliRunner().invoke(main, [*words.split(), "--url", "http://127.0.0.1:9"])
    assert ended.exit_code == 1
    assert ended.stderr.startswith("cutline: the control service at http://127.0.0.1:9 did not answer")
    assert ended.stderr.rstrip().endswith("check the URL, and that the service runs")


def test_a_token_that_no_header_can_carry_is_refused_in_a_sentence() -> None:
    for token in ("\u00fc", "a\nb"):
        ended = CliRunner().invoke(main, ["pipeline", "list", "--token", token])
        assert (ended.exit_code, ended.stderr.count("\n")) == (1, 1)
        assert "the token has a character" in ended.stderr


def test_a_pipeline_file_is_sent_as_json_with_its_times_as_text(tmp_path: Path) -> None:
    """A value that JSON can't hold is refused in a sentence."""
    file = tmp_path / "p.yaml"
    file.write_text("stop: {timestamp: 2026-11-24T14:05:00Z}\n")
    assert content_of(file) == {"stop": {"timestamp": "2026-11-24T14:05:00+00:00"}}
    for text in (b"a: .nan", b"a: !!binary aGVsbG8=", b"2026-01-01: x", b"\xff\xfe\x00", b"[" * 5000, b"- x"):
        file.write_bytes(text)
        with pytest.raises(ConfigError):
            content_of(file)


@pytest.mark.parametrize("words", [["table", "fly"], ["table", "list"], ["token", "create", "anna"], ["cuts"]])
def test_wrong_usage_of_a_group_ends_with_2(words: list[str]) -> None:
    assert CliRunner().invoke(main, words).exit_code == 2


def test_what_destroys_asks_first() -> None:
    for words in ("pipeline delete shop", "pipeline restore shop 4", "table remove shop a.b"):
        ended = CliRunner().invoke(main, [*words.split(), "--url", "http://127.0.0.1:9"], input="n\n")
        assert ended.exit_code == 1
        assert "Aborted!" in ended.stderr


def test_a_file_that_is_no_mapping_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("- a\n")
    ended = CliRunner().invoke(main, ["pipeline", "create", str(tmp_path / "p.yaml")])
    assert (ended.exit_code, "is not a mapping" in ended.stderr) == (2, True)


def test_a_list_of_commands_leaves_a_definition_to_show_which_prints_it_as_yaml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = {"base": 1, "definition": {"name": "shop", "tables": ["shop.*", "crm.*"]}, "note": "fresher"}
    define = {**COMMAND, "kind": "define", "state": "done", "arguments": arguments, "result": {"version": 2}}
    pause = {**COMMAND, "number": 8, "state": "accepted"}
    _, transport = answering(httpx.Response(200, json=[pause, define]), httpx.Response(200, json=define))
    monkeypatch.setattr(remote, "Client", functools.partial(Client, transport=transport))
    listed = CliRunner().invoke(main, ["command", "list", "shop"])
    assert listed.stdout.splitlines() == [
        "command  kind    state     by    at                       arguments             cause",
        "8        pause   accepted  anna  1970-01-01 00:00:01 UTC",
        "7        define  done      anna  1970-01-01 00:00:01 UTC  base 1, note fresher",
    ]
    shown = CliRunner().invoke(main, ["command", "show", "shop", "7"]).stdout.splitlines()
    at = shown.index("arguments")
    assert shown[at + 1 : at + 8] == [
        "  base: 1",
        "  definition:",
        "    name: shop",
        "    tables:",
        "    - shop.*",
        "    - crm.*",
        "  note: fresher",
    ]


def test_the_source_of_a_pipeline_file_is_tested_and_its_tables_are_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    column = {"name": "ID", "type": "int unsigned", "nullable": False, "lake_name": "ID", "lake_type": "long"}
    fault = {"detail": "a.log has no identity", "remedy": "add a primary key"}
    about = {"engine": "InnoDB", "rows": 5, "bytes": 50, "columns": [{**column, "comment": ""}]}
    listed = [{"table": "a.b", "key": ["ID"], "faults": [], **about}]
    listed += [{"table": "a.log", "key": [], "faults": [fault], **about}]
    asked, transport = answering(
        httpx.Response(200, json={"ok": False, "server": "MySQL 8.4.6 at u@db:3306", "faults": [fault]}),
        *[httpx.Response(200, json=listed)] * 2,
        httpx.Response(200, json={"title": "PipelineConfig"}),
    )
    monkeypatch.setattr(remote, "Client", functools.partial(Client, transport=transport))
    file = tmp_path / "p.yaml"
    file.write_text("name: shop\nsource: {host: db, user: u}\ntables: [a.*]\nsink: {warehouse: lake}\n")
    tested = CliRunner().invoke(main, ["source", "test", str(file)])
    assert tested.exit_code == 1
    assert tested.stdout == "MySQL 8.4.6 at u@db:3306\nFAULT a.log has no identity; add a primary key\n"
    lines = CliRunner().invoke(main, ["source", "tables", str(file)]).stdout.splitlines()
    assert lines[1].split() == ["a.b", "InnoDB", "5", "50", "B", "ID"]
    assert lines[2].endswith("a.log has no identity; add a primary key")
    lines = CliRunner().invoke(main, ["source", "tables", str(file), "--columns"]).stdout.splitlines()
    assert lines[1].split() == ["a.b", "ID", "int", "unsigned", "ID", "long", "no"]
    assert json.loads(CliRunner().invoke(main, ["schema"]).stdout) == {"title": "PipelineConfig"}
    assert json.loads(asked[0].content) == {"source": {"host": "db", "user": "u"}}
    assert json.loads(asked[1].content) == {"source": {"host": "db", "user": "u"}, "tables": ["a.*"]}
    file.write_text("name: shop\n")
    ended = CliRunner().invoke(main, ["source", "test", str(file)])
    assert (ended.exit_code, "has no section source" in ended.stderr) == (2, True)


def service(incarnation: str, cpu: float | None) -> models.Service:
    known = {"role": "reader", "host": "h", "pid": 1, "started_at": 1.0, "failed": {}, "leaving": False}
    return models.Service(incarnation=incarnation, cpu_seconds=cpu, rss_bytes=200 << 20, **known)


def test_top_shows_the_share_of_a_processor_once_its_seconds_have_changed() -> None:
    processors = watching.Processors()
    assert processors.share(service("r1", 10.0), 100.0) is None
    assert processors.share(service("r1", 10.0), 105.0) is None
    assert processors.share(service("r1", 25.0), 115.0) == 1.0
    assert processors.share(service("r1", 25.0), 120.0) == 1.0
    assert processors.share(service("r2", None), 120.0) is None


def test_top_draws_services_tables_in_trouble_and_channels() -> None:
    table = dict.fromkeys(models.Table.model_fields)
    table |= {"table": "a.b", "phase": "quarantined", "generation": 1, "cause": "no key", "choices": []}
    table["paused"] = False
    pipeline = dict.fromkeys(models.Pipeline.model_fields)
    pipeline |= {"name": "shop", "id": "0123456789ab", "definition": {}, "tables": {"quarantined": 1}, "failures": 0}
    pipeline |= {"applied_by_spark": {}, "derived": {}, "conditions": [], "spark_writer": "s1"}
    pipeline |= {"version": 1, "mode": "paused", "commands_waiting": 0, "tags": {}, "current": True, "checkpoint": 4}
    channel = {"from": "reader-0", "to": "writer-0", "outstanding_bytes": 5 << 20, "credit_bytes": 32 << 20}
    channel |= {"sent": 12_000, "taken": 3, "current": True, "as_of": 1.0}
    found = {
        "pipeline": models.Pipeline.model_validate(pipeline),
        "services": [service("r1", 1.0)],
        "tables": [models.Table.model_validate({**table, "current": True})],
        "channels": [models.Channel.model_validate(channel)],
    }
    for height in (None, 24, 10):
        console = Console(file=io.StringIO(), width=80, height=24)
        console.print(watching.screen(found, watching.Processors(), 100.0, width=80, height=height))
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        for words in ("shop: paused", "checkpoint 4", "reader", "quarantined", "no key", "service", "channel"):
            assert words in shown, shown
        if height != 10:
            assert {"200 MiB", "5.0 MiB", "12,000"} <= set(re.findall(r"[\d.,]+(?: MiB)?", shown)), shown
