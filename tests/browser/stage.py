"""A control service whose pipelines are made up, for tests of the dashboard: real HTTP in the shapes of the API.

It holds what a real pipeline can't bring about within a test: 1,000 tables, 100,000 chunks, a quarantined table, an
absent leader. `python -m tests.browser.stage PORT` serves it for a person to look at.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from cutline.common.commands import kinds, rules
from cutline.common.config.globs import select_tables
from cutline.common.config.pipeline import PipelineConfig
from cutline.services.control import dashboard
from tests.browser.made_up import COLUMNS, PLAN, SHOP, SOURCE_COLUMNS, Made, Stage, made_table, previewed

TOKENS = {"admin-token": "admin", "operator-token": "operator", "viewer-token": "viewer"}
Content = Annotated[dict[str, Any], Body()]


class Refusal(Exception):
    """Answered as a problem."""

    def __init__(self, status: int, detail: str, remedy: str | None = None, errors: list[dict[str, Any]] | None = None):
        super().__init__(detail)
        self.status, self.remedy, self.errors = status, remedy, errors or []


KINDS = {
    "pause": ("pause_table", "paused"),
    "resume": ("resume_table", "live"),
    "retry": ("retry_table", "live"),
    "read-again": ("read_table_again", "snapshot"),
    "forget": ("forget_table", ""),
    "cancel": ("cancel_table", ""),
}
MODES: dict[str, kinds.Mode] = {
    "pause": "paused",
    "resume": "running",
    "stop": "stopped",
    "start": "running",
    "restore": "running",
}


def app(stage: Stage) -> FastAPI:
    """The application: the dashboard's own files, and the API of the made-up pipelines."""
    made_up = FastAPI()
    made_up.include_router(dashboard.router())

    @made_up.exception_handler(Refusal)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        body = {
            "title": "Refused",
            "status": error.status,
            "detail": str(error),
            "remedy": error.remedy,
            "errors": error.errors,
        }
        return JSONResponse(body, error.status, media_type="application/problem+json")

    def role(request: Request, needed: str = "viewer") -> str:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        found = TOKENS.get(token)
        if found is None:
            raise Refusal(401, "the token is unknown" if token else "no token was sent", "ask an admin for a token")
        roles = ("viewer", "operator", "admin")
        if roles.index(found) < roles.index(needed):
            raise Refusal(
                403,
                f"this needs the role {needed}, and {token.partition('-')[0]} is {found}",
                "use a token with that role",
            )
        return found

    def known(name: str) -> Made:
        if name not in stage.pipelines:
            raise Refusal(404, f"the store has no pipeline {name!r}", "GET /v1/pipelines lists them")
        return stage.pipelines[name]

    def known_table(made: Made, name: str) -> dict[str, Any]:
        if name not in made.tables:
            raise Refusal(404, f"pipeline {made.name} captures no table {name!r}", "GET .../tables lists them")
        return made.tables[name]

    def accepted(view: dict[str, Any]) -> Response:
        return JSONResponse(view, 202, headers={"Location": view["url"]})

    @made_up.get("/v1/me")
    async def me(request: Request) -> Any:
        found = role(request)
        return {"name": found, "role": found, "means": "token", "expires_at": None}

    @made_up.get("/v1/pipelines")
    async def pipelines(request: Request) -> Any:
        role(request)
        return [stage.pipeline(made) for made in stage.pipelines.values()]

    @made_up.get("/v1/pipelines/{name}")
    async def pipeline(request: Request, name: str) -> Any:
        role(request)
        return stage.pipeline(known(name))

    @made_up.get("/v1/conditions")
    async def conditions(request: Request) -> Any:
        role(request)
        return stage.conditions(*stage.pipelines.values())

    @made_up.put("/v1/conditions/{condition}/acknowledgement")
    async def acknowledge(request: Request, condition: str, body: Content) -> Any:
        by = role(request, "operator")
        stage.acknowledged[condition] = {"by": by, "at": time.time(), **body}
        return next(each for each in stage.conditions(*stage.pipelines.values()) if each["id"] == condition)

    @made_up.delete("/v1/conditions/{condition}/acknowledgement")
    async def take_back(request: Request, condition: str) -> Response:
        role(request, "operator")
        del stage.acknowledged[condition]
        return Response(status_code=204)

    @made_up.get("/v1/pipelines/{name}/tables")
    async def tables(request: Request, name: str) -> Any:
        role(request)
        made = known(name)
        return [stage.table(made, t) for t in made.tables.values()]

    @made_up.get("/v1/pipelines/{name}/tables/{table}/splits")
    async def splits(request: Request, name: str, table: str) -> Any:
        role(request)
        made = known(name)
        return stage.grid(made, known_table(made, table))

    @made_up.get("/v1/pipelines/{name}/tables/{table}/schemas")
    async def schemas(request: Request, name: str, table: str) -> Any:
        role(request)
        known_table(known(name), table)
        return [
            {
                "schema": "f3d7b28d371620d2",
                "generation": 1,
                "since_checkpoint": 2,
                "since": stage.started,
                "key": ["id"],
                "columns": COLUMNS,
            }
        ]

    @made_up.get("/v1/pipelines/{name}/channels")
    async def channels(request: Request, name: str) -> Any:
        role(request)
        return stage.channels(known(name))

    @made_up.get("/v1/pipelines/{name}/checkpoints")
    async def checkpoints(request: Request, name: str, limit: int = 60) -> Any:
        role(request)
        made = known(name)
        newest = stage.newest(made)
        return [{**stage.checkpoint(made, n), "members": []} for n in range(newest, max(0, newest - limit), -1)]

    @made_up.get("/v1/pipelines/{name}/checkpoints/{n}")
    async def checkpoint(request: Request, name: str, n: int) -> Any:
        role(request)
        return {**stage.checkpoint(known(name), n), "tables": []}

    @made_up.get("/v1/pipelines/{name}/savepoints")
    async def savepoints(request: Request, name: str) -> Any:
        role(request)
        made = known(name)
        fields = ("number", "name", "written_at", "source_time", "position", "published")
        taken = [stage.checkpoint(made, n) for n in sorted(made.savepoints, reverse=True)]
        return [{key: each[key] for key in fields} for each in taken]

    @made_up.get("/v1/pipelines/{name}/cuts")
    async def cuts(request: Request, name: str, at: str | None = None, gtid: str | None = None) -> Any:
        role(request)
        made = known(name)
        n = stage.newest(made) - 7
        cut = stage.checkpoint(made, n)
        found = {key: cut[key] for key in ("number", "kept", "source_time", "position")}
        found |= {"shown": len(made.tables) - 2, "tables_total": len(made.tables)}
        found["published_at"] = cut["apply"]["published_at"]
        found["tables"] = [
            {
                "table": t["table"],
                "state": "live" if t["phase"] in ("live", "dropped") else t["phase"],
                "generation": 1,
                "shown": t["phase"] in ("live", "catch-up"),
                "snapshot_id": None if t["phase"] == "waiting" else 6574234402551412684 + i,
                "position": None,
                "code": t["cause"] and "other",
                "cause": t["cause"],
                "remedy": t["remedy"],
            }
            for i, t in enumerate(made.tables.values())
        ]
        return {"shown": found, "holds": {**found, "number": n + 1}}

    @made_up.get("/v1/pipelines/{name}/events")
    async def events(request: Request, name: str, limit: int = 100, stream: bool = False) -> Any:
        role(request)
        made = known(name)
        if not stream:
            return made.events[::-1][:limit]

        async def sent() -> AsyncIterator[str]:
            at = len(made.events)
            yield "retry: 2000\n\n"
            while not await request.is_disconnected():
                for event in made.events[at:]:
                    at += 1
                    yield f"id: {event['id']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n"
                await asyncio.sleep(0.1)

        return StreamingResponse(sent(), media_type="text/event-stream")

    @made_up.get("/v1/pipelines/{name}/commands")
    async def commands(request: Request, name: str) -> Any:
        role(request)
        return known(name).commands[::-1]

    @made_up.get("/v1/pipelines/{name}/commands/{n}")
    async def command(request: Request, name: str, n: int) -> Any:
        role(request)
        view = known(name).commands[n - 1]
        if view["state"] == "accepted":
            view["state"] = "running"
        elif view["state"] == "running":
            view.update(state="done", finished_at=time.time())
        return view

    def define(made: Made, content: dict[str, Any], by: str, note: str | None) -> Response:
        n = len(made.versions) + 1
        about = {"version": n, "by": by, "at": time.time(), "command": len(made.commands) + 1, "note": note}
        made.versions.append({**about, "definition": content})
        return accepted(stage.command(made, "define", {"base": n - 1, "note": note}, by, {"version": n}))

    @made_up.put("/v1/pipelines/{name}")
    async def replace(request: Request, name: str, note: str | None = None) -> Any:
        by, made = role(request, "admin"), known(name)
        wanted = request.headers.get("if-match", "").strip('"')
        if wanted != str(made.versions[-1]["version"]):
            raise Refusal(412, f"the definition is version {made.versions[-1]['version']} now, not {wanted}")
        return define(made, await request.json(), by, note)

    @made_up.patch("/v1/pipelines/{name}")
    async def patch(request: Request, name: str, body: Content, note: str | None = None) -> Any:
        by, made = role(request, "admin"), known(name)
        for table in body["tables"]:
            if "*" not in table:
                made.tables.setdefault(table, made_table(table, "snapshot", 900_000))
        return define(made, {**made.versions[-1]["definition"], **body}, by, note)

    @made_up.get("/v1/pipelines/{name}/versions")
    async def versions(request: Request, name: str) -> Any:
        role(request)
        return [{key: value for key, value in v.items() if key != "definition"} for v in known(name).versions]

    @made_up.get("/v1/pipelines/{name}/versions/{version}")
    async def one_version(request: Request, name: str, version: int) -> Any:
        role(request)
        return known(name).versions[version - 1]

    @made_up.post("/v1/pipelines/{name}/versions/{version}/restore")
    async def restore_version(request: Request, name: str, version: int) -> Any:
        by, made = role(request, "admin"), known(name)
        n = len(made.versions) + 1
        made.versions.append(
            {**made.versions[version - 1], "version": n, "by": by, "at": time.time(), "note": f"as version {version}"}
        )
        return accepted(stage.command(made, "define", {"base": n - 1}, by, {"version": n}))

    @made_up.post("/v1/pipelines/{name}/plan")
    async def plan(request: Request, name: str) -> Any:
        role(request, "admin")
        return PLAN

    @made_up.post("/v1/plan/preview")
    async def preview(request: Request, table: str, body: Content) -> Any:
        role(request, "admin")
        return previewed(table, body)

    @made_up.get("/v1/pipelines/{name}/limits")
    async def limits_now(request: Request, name: str) -> Any:
        role(request)
        return {**known(name).limits, "current": known(name).led}

    @made_up.put("/v1/pipelines/{name}/limits")
    async def limits(request: Request, name: str, body: Content) -> Any:
        by, made = role(request, "operator"), known(name)
        made.limits = body
        return accepted(stage.command(made, "limits", body, by))

    @made_up.post("/v1/pipelines/{name}/tables/{table}/{what}")
    async def table_operation(request: Request, name: str, table: str, what: str) -> Any:
        by, made = role(request, "operator"), known(name)
        found = known_table(made, table)
        kind, phase = KINDS[what]
        if refused := rules.table_refusal(kinds.KINDS[kind], table, found["phase"]):
            raise Refusal(409, *refused)
        if phase:
            found.update(phase=phase, cause=None, remedy=None)
        else:
            del made.tables[table]
        stage.say(made, "table", f"{table} is {phase or 'forgotten'} in generation 1")
        return accepted(stage.command(made, kind, {"table": table}, by))

    @made_up.post("/v1/pipelines/{name}/tables")
    async def add_table(request: Request, name: str, body: Content) -> Any:
        by, made = role(request, "operator"), known(name)
        if "." not in body["table"]:
            raise Refusal(
                422,
                "table must be database.table",
                "as in shop.orders",
                [{"field": "table", "detail": "it has no database", "remedy": "write it as in shop.orders"}],
            )
        made.tables[body["table"]] = made_table(body["table"], "snapshot", 900_000)
        return accepted(stage.command(made, "define", {"note": "a table"}, by, {"version": 3}))

    @made_up.post("/v1/pipelines/{name}/{what}")
    async def operation(request: Request, name: str, what: str) -> Any:
        by, made = role(request, "operator"), known(name)
        body = await request.json() if await request.body() else {}
        kind = {"savepoints": "savepoint", "checkpoints": "checkpoint"}.get(what, what.replace("-", "_"))
        wish = kinds.wish_of(kind, body)
        if isinstance(wish, kinds.Refusal):
            raise Refusal(422, *wish)
        if refused := wish.refusal(rules.state(made.mode, halted=False, ended=False)):
            raise Refusal(409, *refused)
        if what in MODES:
            made.mode = MODES[what]
            stage.say(made, "command", f"{by} asked to {what} the pipeline")
        if what == "savepoints":
            made.savepoints[stage.newest(made)] = body.get("name") or "unnamed"
        return accepted(stage.command(made, kind, body, by))

    @made_up.post("/v1/pipelines")
    async def create(request: Request, body: Content, dry_run: bool = False) -> Any:
        role(request, "admin")
        errors = []
        if not body.get("name"):
            errors.append({"field": "name", "detail": "name is missing", "remedy": "add it"})
        if not body.get("tables"):
            errors.append({"field": "tables", "detail": "tables is missing", "remedy": "name at least one pattern"})
        if not body.get("sink", {}).get("warehouse"):
            errors.append({"field": "sink.warehouse", "detail": "sink.warehouse is missing", "remedy": "add it"})
        if errors:
            raise Refusal(422, f"the definition has {len(errors)} faults", "correct each of `errors`", errors)
        if dry_run:
            return {**PLAN, "pipeline": body["name"], "exists": False, "version": 0, "changes": []}
        made = Made(
            body["name"], body["source"]["host"], {"shop.orders": made_table("shop.orders", "snapshot", 2_000_000)}
        )
        made.versions = [{"version": 1, "by": None, "at": None, "command": None, "note": None, "definition": body}]
        stage.pipelines[made.name] = made
        return JSONResponse(stage.pipeline(made), 201)

    @made_up.get("/v1/schema")
    async def schema(request: Request) -> Any:
        role(request)
        return PipelineConfig.model_json_schema()

    @made_up.post("/v1/source/test")
    async def source_test(request: Request, body: Content) -> Any:
        role(request, "admin")
        host = body["source"].get("host", "")
        if host.startswith("wrong"):
            return {
                "ok": False,
                "server": None,
                "faults": [
                    {
                        "field": None,
                        "detail": f"{host}:3306 refused the connection",
                        "remedy": "correct source.host, or let the server listen there",
                    }
                ],
            }
        return {"ok": True, "server": f"MySQL 8.4.6 at cdc@{host}:3306", "faults": []}

    @made_up.post("/v1/source/schemas")
    async def source_schemas(request: Request) -> Any:
        role(request, "admin")
        counts = {"crm": 1, "shop": len(SHOP)}
        return [{"name": name, "glob": f"{name}.*", "tables": tables} for name, tables in counts.items()]

    @made_up.post("/v1/source/tables")
    async def source_tables(
        request: Request, response: Response, body: Content, limit: int = 100, cursor: int = 0
    ) -> Any:
        role(request, "admin")
        names = [*(f"shop.{name}" for name in SHOP), *(f"erp.t_{n:04}" for n in range(1000)), "crm.leads"]
        found = select_tables(body["tables"], names)
        if cursor + limit < len(found):
            response.headers["Link"] = f'</v1/source/tables?limit={limit}&cursor={cursor + limit}>; rel="next"'
        faults = [
            {
                "field": None,
                "detail": "shop.audit has no primary key and no NOT NULL unique key",
                "remedy": "add one, or set keyless to append",
            }
        ]
        return [
            {
                "table": name,
                "engine": "InnoDB",
                "rows": 10 * len(name) ** 3,
                "bytes": 900 * len(name) ** 3,
                "key": [] if name == "shop.audit" else ["id"],
                "columns": SOURCE_COLUMNS,
                "faults": faults if name == "shop.audit" else [],
            }
            for name in found[cursor : cursor + limit]
        ]

    @made_up.get("/v1/services")
    async def services(request: Request) -> Any:
        role(request)
        if stage.redis_away():
            raise Refusal(503, "Redis does not answer: Error 111 connecting to 10.0.0.5:6379", "start Redis")
        return [
            {
                "role": r,
                "incarnation": i,
                "host": h,
                "pid": 4100 + n,
                "started_at": stage.started - 60 * n,
                "failed": stage.failed if n == 2 else {},
                "leaving": False,
                "starting": False,
                "leads": ["shop", "erp-archive"] if n in (0, 6) else [],
                "members": {"shop": f"{r}-{n % 2}", "erp-archive": f"{r}-{n % 2}"} if r in ("reader", "writer") else {},
                "epochs": {"shop": 4, "erp-archive": 4} if r in ("reader", "writer") else {},
                "rss_bytes": (90 + 61 * n % 400) << 20,
                "cpu_seconds": 140.0 + 77 * n,
                "loop_lag_seconds": 0.002 * (n + 1),
            }
            for n, (r, i, h) in enumerate(
                (
                    ("enumerator", "enumerator-7c1e20a94bd3", "node-a"),
                    ("enumerator", "enumerator-23b83e827a0b", "node-b"),
                    ("reader", "reader-d07339601693", "node-a"),
                    ("reader", "reader-8a1c4bd0f723", "node-b"),
                    ("writer", "writer-f429b0be27bf", "node-a"),
                    ("writer", "writer-5be1d09c8a44", "node-b"),
                    ("spark_writer", "spark_writer-19aa", "node-c"),
                    ("control", "control-0f3d1c77ab20", "node-a"),
                )
            )
        ]

    @made_up.get("/v1/services/{incarnation}/logs")
    async def logs(request: Request, incarnation: str) -> Any:
        role(request)
        text = "epoch 4: checkpoint {} is complete after 184 ms"
        return [
            {"at": stage.started + 10 * i, "level": "INFO", "logger": "cutline", "text": text.format(80 + i)}
            for i in range(40)
        ]

    @made_up.get("/v1/tokens")
    async def tokens(request: Request) -> Any:
        role(request, "admin")
        return stage.tokens

    @made_up.post("/v1/tokens")
    async def new_token(request: Request, body: Content) -> Any:
        by = role(request, "admin")
        made = {
            "id": f"t{len(stage.tokens)}",
            "by": by,
            "at": time.time(),
            "expires_at": None,
            "revoked_at": None,
            "name": body["name"],
            "role": body["role"],
        }
        stage.tokens.append(made)
        return JSONResponse({**made, "token": f"cutline_{made['id']}_k3yF0rTheTest"}, 201)

    @made_up.get("/v1/audit")
    async def audit(request: Request) -> Any:
        role(request, "admin")
        return stage.audit

    return made_up


if __name__ == "__main__":
    uvicorn.run(app(Stage()), port=int(sys.argv[1]), log_level="warning")
