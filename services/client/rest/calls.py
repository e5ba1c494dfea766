"""Every call of the API, once for both clients: how its request is made, and how its answer is read.

A call returns a `Call`, or a `Flow` if it takes several requests: a generator that yields requests, receives their
answers, and returns the result. The clients (client.py) send them, waiting or awaiting.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from cutline.services.client.rest.errors import CommandFailed, TimedOut
from cutline.services.client.rest.models import (
    AuditRecord,
    Channel,
    Checkpoint,
    Command,
    Condition,
    Cut,
    CutAnswer,
    Event,
    Grid,
    Limits,
    LogLine,
    Me,
    OperationRules,
    Pipeline,
    Plan,
    Role,
    Savepoint,
    Schema,
    Service,
    SourceSchema,
    SourceTable,
    SourceTest,
    Splits,
    Table,
    Token,
    Version,
)
from cutline.services.client.rest.previews import Preview

T = TypeVar("T")
LONGEST_WAIT_SECONDS = 30.0
Definition = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request, and how its answer is read; `wait_seconds` is how long the service may take by `?wait=`."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 0.0


class Page(list[T]):
    """The items of one page; `cursor` leads to the next one, None after the last."""

    cursor: str | None = None


Flow = Generator[Call[Any], Any, T]


def _as(kind: Any) -> Callable[[httpx.Response], Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return lambda response: adapter.validate_json(response.content)


def _page_of(kind: Any) -> Callable[[httpx.Response], Page[Any]]:
    read = _as(list[kind])

    def page(response: httpx.Response) -> Page[Any]:
        link = response.links.get("next")
        found = Page(read(response))
        found.cursor = httpx.URL(link["url"]).params.get("cursor") if link else None
        return found

    return page


def _nothing(response: httpx.Response) -> None:
    return None


_COMMAND, _PIPELINE, _PLAN = _as(Command), _as(Pipeline), _as(Plan)
_ONE: dict[Any, Callable[[httpx.Response], Any]] = {}


def _get(kind: Any, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> Call[Any]:
    if kind not in _ONE:
        _ONE[kind] = _as(kind)
    return Call(method="GET", path=path, read=_ONE[kind], query=_given(query or {}), **more)


def _list(kind: Any, path: str, query: Mapping[str, Any]) -> Call[Page[Any]]:
    return Call(method="GET", path=path, read=_page_of(kind), query=_given(query))


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _path(pipeline: str, *parts: str | int) -> str:
    return "/".join(["/v1/pipelines", *(quoted(str(part)) for part in (pipeline, *parts))])


def quoted(part: str) -> str:
    """A part of a path. Dots alone are quoted too: httpx would take `..` for the part before, and so remove a pipeline
    in the place of its table."""
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")


def _command(
    method: str,
    path: str,
    body: Any = None,
    *,
    wait: float,
    key: str | None,
    query: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Flow[Command]:
    """Give a command; with `wait`, return once it is finished."""
    deadline = time.monotonic() + wait
    command: Command = yield _waiting(
        Call(
            method=method,
            path=path,
            read=_COMMAND,
            body=body,
            query=query or {},
            # With a key of its own the request may be repeated after a lost answer.
            headers={**(headers or {}), "Idempotency-Key": key or secrets.token_hex(16)},
        ),
        wait,
    )
    if wait and not command.finished:
        pipeline = path.split("/")[3]
        command = yield from _finished(Call(method="GET", path=command.url, read=_COMMAND), pipeline, deadline)
    if wait:
        _raise_if_failed(command)
    return command


def _waiting(call: Call[Any], seconds: float) -> Call[Any]:
    if seconds <= 0:
        return call
    seconds = min(LONGEST_WAIT_SECONDS, seconds)
    return replace(call, query={**call.query, "wait": f"{max(1, round(seconds * 1000))}ms"}, wait_seconds=seconds)


def _finished(look: Call[Command], pipeline: str, deadline: float) -> Flow[Command]:
    while True:
        left = deadline - time.monotonic()
        command: Command = yield _waiting(look, left)
        if command.finished:
            return command
        if time.monotonic() >= deadline:
            raise TimedOut(
                f"command {command.number} ({command.kind}) of {pipeline} is {command.state} and not finished yet",
                remedy=f"it is not lost: wait for it with `cutline command wait {pipeline} {command.number}`",
            )


def _raise_if_failed(command: Command) -> None:
    if command.state in ("refused", "failed", "cancelled"):
        raise CommandFailed(command)


# Access


def me() -> Call[Me]:
    """Who the token says one is, and which role it has."""
    return _get(Me, "/v1/me")


def tokens(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[Token]]:
    """A page of the tokens' records."""
    return _list(Token, "/v1/tokens", {"limit": limit, "cursor": cursor})


def make_token(name: str, role: Role, *, expires_in_days: float | None = None) -> Call[Token]:
    """Make a token; `.token` of the answer is shown this once."""
    body = {"name": name, "role": role, "expires_in_days": expires_in_days}
    return Call(method="POST", path="/v1/tokens", read=_as(Token), body=body)


def revoke_token(token_id: str) -> Call[None]:
    """Revoke a token by its id."""
    return Call(method="DELETE", path=f"/v1/tokens/{quoted(token_id)}", read=_nothing)


def audit(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[AuditRecord]]:
    """A page of the audit log, newest first."""
    return _list(AuditRecord, "/v1/audit", {"limit": limit, "cursor": cursor})


# Services


def services() -> Call[list[Service]]:
    """The service processes that are alive."""
    return _get(list[Service], "/v1/services")


def logs(incarnation: str, *, lines: int = 200) -> Call[list[LogLine]]:
    """The last lines of a service's log, oldest first."""
    return _get(list[LogLine], f"/v1/services/{quoted(incarnation)}/logs", {"lines": lines})


# Conditions


def conditions(pipeline: str | None = None) -> Call[list[Condition]]:
    """What a person must act on, the most severe first: of one pipeline, or of all of them."""
    return _get(list[Condition], "/v1/conditions" if pipeline is None else _path(pipeline, "conditions"))


def acknowledge(condition: str, note: str, until: float | None = None) -> Call[Condition]:
    """Take note of a condition, by its id: it posts no alert until then (seconds since 1970; None: while it holds)."""
    body = {"note": note, "until": until}
    return Call(method="PUT", path=_acknowledgement(condition), read=_as(Condition), body=body)


def unacknowledge(condition: str) -> Call[Condition]:
    """Take that back: its alert is posted again."""
    return Call(method="DELETE", path=_acknowledgement(condition), read=_as(Condition))


def _acknowledgement(condition: str) -> str:
    return f"/v1/conditions/{quoted(condition)}/acknowledgement"


# Pipelines and their definitions


def pipelines(*, tag: str | None = None, limit: int | None = None, cursor: str | None = None) -> Call[Page[Pipeline]]:
    """A page of the pipelines; `tag`: only those with this tag (`key:value`)."""
    return _list(Pipeline, "/v1/pipelines", {"tag": tag, "limit": limit, "cursor": cursor})


def pipeline(pipeline: str, *, wait: float = 0.0) -> Call[Pipeline]:
    """One pipeline; with `wait` (seconds), once it has changed."""
    return _waiting(_get(Pipeline, _path(pipeline)), wait)


def create_pipeline(definition: Definition) -> Call[Pipeline]:
    """Create a pipeline from the content of its pipeline.yaml; the same content again is the same pipeline."""
    return Call(method="POST", path="/v1/pipelines", read=_PIPELINE, body=definition)


def plan_pipeline(definition: Definition) -> Call[Plan]:
    """What creating this pipeline would do; nothing is created."""
    return Call(method="POST", path="/v1/pipelines", read=_PLAN, body=definition, query={"dry_run": "true"})


def plan_change(pipeline: str, definition: Definition) -> Call[Plan]:
    """What a new definition, or a merge patch of it, would do."""
    return Call(method="POST", path=_path(pipeline, "plan"), read=_PLAN, body=definition)


def preview_rules(definition: Definition, *, table: str | None = None) -> Call[Preview]:
    """What the rules and derived tables of this definition make, and of ten rows of `table`; nothing is changed."""
    path = "/v1/plan/preview"
    return Call(method="POST", path=path, read=_as(Preview), body=definition, query=_given({"table": table}))


def replace_pipeline(
    pipeline: str,
    definition: Definition,
    *,
    if_match: str | None = None,
    note: str | None = None,
    wait: float = 0.0,
    key: str | None = None,
) -> Flow[Command]:
    """Replace the definition; `if_match`: only if the pipeline still has this ETag; `note`: why, for its versions."""
    headers, query = _if_match(if_match), _given({"note": note})
    return _command("PUT", _path(pipeline), definition, wait=wait, key=key, query=query, headers=headers)


def patch_pipeline(
    pipeline: str,
    patch: Definition,
    *,
    if_match: str | None = None,
    note: str | None = None,
    wait: float = 0.0,
    key: str | None = None,
) -> Flow[Command]:
    """Change parts of the definition by a merge patch (RFC 7396); `note`: why, for the list of versions."""
    headers = {"Content-Type": "application/merge-patch+json", **_if_match(if_match)}
    query = _given({"note": note})
    return _command("PATCH", _path(pipeline), patch, wait=wait, key=key, query=query, headers=headers)


def _if_match(tag: str | None) -> dict[str, str]:
    return {} if tag is None else {"If-Match": tag}


def delete_pipeline(pipeline: str, *, purge: bool = False, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Delete a pipeline with all that the store has of it; `purge`: its lake tables too."""
    return _command("DELETE", _path(pipeline), wait=wait, key=key, query={"purge": "true"} if purge else {})


def leave_lake(pipeline: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """End the purge of a pipeline that is being deleted: its lake tables stay as they are."""
    return _command("POST", _path(pipeline, "leave-lake"), wait=wait, key=key)


def versions(pipeline: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[Version]]:
    """A page of the versions of the definition, oldest first."""
    return _list(Version, _path(pipeline, "versions"), {"limit": limit, "cursor": cursor})


def version(pipeline: str, version: int) -> Call[Version]:
    """One version of the definition, with its content."""
    return _get(Version, _path(pipeline, "versions", version))


def restore_version(pipeline: str, version: int, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Bring an old version back, as a new one."""
    return _command("POST", _path(pipeline, "versions", version, "restore"), wait=wait, key=key)


# Live operations


def pause(pipeline: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Pause a pipeline."""
    return _command("POST", _path(pipeline, "pause"), wait=wait, key=key)


def resume(pipeline: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Resume a paused pipeline."""
    return _command("POST", _path(pipeline, "resume"), wait=wait, key=key)


def stop(pipeline: str, *, savepoint: str | None = None, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Stop a pipeline with a savepoint, of this name."""
    return _command("POST", _path(pipeline, "stop"), {"savepoint": savepoint}, wait=wait, key=key)


def start(pipeline: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Start a stopped pipeline."""
    return _command("POST", _path(pipeline, "start"), wait=wait, key=key)


def restore(pipeline: str, checkpoint: int, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Go back to a checkpoint or savepoint."""
    return _command("POST", _path(pipeline, "restore"), {"checkpoint": checkpoint}, wait=wait, key=key)


def read_again(pipeline: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Read every table again from its beginning; also of a pipeline that halted."""
    return _command("POST", _path(pipeline, "read-again"), wait=wait, key=key)


def limits(pipeline: str) -> Call[Limits]:
    """How fast the pipeline may read chunks."""
    return _get(Limits, _path(pipeline, "limits"))


def set_limits(
    pipeline: str,
    *,
    rows_per_second: float | None = None,
    bytes_per_second: float | None = None,
    wait: float = 0.0,
    key: str | None = None,
) -> Flow[Command]:
    """Limit how fast the pipeline reads chunks; a limit that is not given is lifted."""
    body = {"rows_per_second": rows_per_second, "bytes_per_second": bytes_per_second}
    return _command("PUT", _path(pipeline, "limits"), body, wait=wait, key=key)


def command(pipeline: str, number: int, *, wait: float = 0.0) -> Call[Command]:
    """One command; with `wait` (seconds), once it is finished, or as it is then."""
    return _waiting(_get(Command, _path(pipeline, "commands", number)), wait)


def commands(pipeline: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[Command]]:
    """A page of the commands, newest first."""
    return _list(Command, _path(pipeline, "commands"), {"limit": limit, "cursor": cursor})


def cancel_command(pipeline: str, number: int, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Cancel a command that has no effect yet that lasts."""
    return _command("POST", _path(pipeline, "commands", number, "cancel"), wait=wait, key=key)


def wait_for_command(pipeline: str, number: int, *, wait: float = 60.0) -> Flow[Command]:
    """Return a command once it is done. Raises CommandFailed if it is refused or fails, TimedOut after `wait` s."""
    look = _get(Command, _path(pipeline, "commands", number))
    command = yield from _finished(look, pipeline, time.monotonic() + wait)
    _raise_if_failed(command)
    return command


# Checkpoints and savepoints


def checkpoints(pipeline: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[Checkpoint]]:
    """A page of the checkpoints, newest first."""
    return _list(Checkpoint, _path(pipeline, "checkpoints"), {"limit": limit, "cursor": cursor})


def checkpoint(pipeline: str, number: int) -> Call[Checkpoint]:
    """One checkpoint, with the tables that staged most."""
    return _get(Checkpoint, _path(pipeline, "checkpoints", number))


def take_checkpoint(pipeline: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Take a checkpoint now."""
    return _command("POST", _path(pipeline, "checkpoints"), wait=wait, key=key)


def savepoints(pipeline: str) -> Call[list[Savepoint]]:
    """The savepoints, newest first."""
    return _get(list[Savepoint], _path(pipeline, "savepoints"))


def take_savepoint(
    pipeline: str, name: str | None = None, *, wait: float = 0.0, key: str | None = None
) -> Flow[Command]:
    """Take a savepoint, with a name."""
    return _command("POST", _path(pipeline, "savepoints"), {"name": name}, wait=wait, key=key)


def delete_savepoint(pipeline: str, number: int, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Delete a savepoint; the checkpoint's number names it."""
    return _command("DELETE", _path(pipeline, "savepoints", number), wait=wait, key=key)


# Tables


def tables(
    pipeline: str,
    *,
    phase: str | None = None,
    q: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Table]]:
    """A page of the captured tables; `phase`: only these (commas between), `q`: a part of the name."""
    query = {"phase": phase, "q": q, "limit": limit, "cursor": cursor}
    return _list(Table, _path(pipeline, "tables"), query)


def table(pipeline: str, table: str, *, wait: float = 0.0) -> Call[Table]:
    """One table; with `wait` (seconds), once it has changed."""
    return _waiting(_get(Table, _path(pipeline, "tables", table)), wait)


def add_table(pipeline: str, table: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Add a table, with its history."""
    return _command("POST", _path(pipeline, "tables"), {"table": table}, wait=wait, key=key)


def remove_table(pipeline: str, table: str, *, wait: float = 0.0, key: str | None = None) -> Flow[Command]:
    """Remove a table from the pipeline; the lake table stays."""
    return _command("DELETE", _path(pipeline, "tables", table), wait=wait, key=key)


def order_table(
    pipeline: str, table: str, order: str, *, wait: float = 0.0, key: str | None = None
) -> Flow[Command]:
    """Give an order about a table: `pause`, `resume`, `read-again`, `retry`, `forget`, `cancel`; `operations` has what
    each does, and when it is possible."""
    return _command("POST", _path(pipeline, "tables", table, order), wait=wait, key=key)


def choose_lake(
    pipeline: str,
    table: str,
    choice: Literal["accept", "overwrite"],
    *,
    seen: str | None = None,
    wait: float = 0.0,
    key: str | None = None,
) -> Flow[Command]:
    """Accept, or overwrite, the commits of others for which a table is quarantined; `seen`: those that the table's
    `seen` named when one looked at it."""
    body = {"choice": choice, "seen": seen}
    return _command("POST", _path(pipeline, "tables", table, "lake"), body, wait=wait, key=key)


def schemas(pipeline: str, table: str) -> Call[list[Schema]]:
    """The schemas that a table has had lately, newest first."""
    return _get(list[Schema], _path(pipeline, "tables", table, "schemas"))


def grid(pipeline: str, table: str) -> Call[Grid]:
    """The state of every chunk of a table's snapshot."""
    return _get(Grid, _path(pipeline, "tables", table, "splits"))


def splits(pipeline: str) -> Call[list[Splits]]:
    """How many chunks of each table have been read."""
    return _get(list[Splits], _path(pipeline, "splits"))


# The mesh, the lake, the journal


def channels(pipeline: str) -> Call[list[Channel]]:
    """The channels of the mesh."""
    return _get(list[Channel], _path(pipeline, "channels"))


def cuts(pipeline: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[Cut]]:
    """A page of the retained publications, newest first."""
    return _list(Cut, _path(pipeline, "cuts"), {"limit": limit, "cursor": cursor})


def cut(pipeline: str, number: int) -> Call[Cut]:
    """One publication, with what it shows of each table."""
    return _get(Cut, _path(pipeline, "cuts", number))


def cut_at(pipeline: str, at: str | float) -> Call[CutAnswer]:
    """What the lake showed at a time (ISO 8601 with a zone, or seconds since 1970), and which cut holds it."""
    return _get(CutAnswer, _path(pipeline, "cuts"), {"at": at})


def cut_with(pipeline: str, gtid: str) -> Call[CutAnswer]:
    """Which cut is the first that holds these GTIDs."""
    return _get(CutAnswer, _path(pipeline, "cuts"), {"gtid": gtid})


def events(
    pipeline: str, *, kind: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[Event]]:
    """A page of the events, newest first; `kind`: only these (commas between)."""
    return _list(Event, _path(pipeline, "events"), {"kind": kind, "limit": limit, "cursor": cursor})


# The source, for forms


def test_source(source: Definition) -> Call[SourceTest]:
    """Whether a source (that section of a definition) answers."""
    return Call(method="POST", path="/v1/source/test", read=_as(SourceTest), body={"source": source})


def source_schemas(source: Definition) -> Call[list[SourceSchema]]:
    """The schemas of a source."""
    return Call(
        method="POST", path="/v1/source/schemas", read=_as(list[SourceSchema]), body={"source": source}
    )


def source_tables(
    source: Definition,
    tables: list[str] | None = None,
    *,
    values: Definition | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[SourceTable]]:
    """A page of the tables of a source, with how each column will look in the lake."""
    body = _given({"source": source, "tables": tables, "values": values})
    query = _given({"limit": limit, "cursor": cursor})
    return Call(method="POST", path="/v1/source/tables", read=_page_of(SourceTable), body=body, query=query)


def operations() -> Call[dict[str, OperationRules]]:
    """The rules of every operation, by its name in the API."""
    return _get(dict[str, OperationRules], "/v1/operations")


def definition_schema() -> Call[dict[str, Any]]:
    """The JSON Schema of a definition."""
    return _get(dict[str, Any], "/v1/schema")
