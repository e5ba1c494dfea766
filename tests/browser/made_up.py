"""Made-up pipelines, as the API would show them: a function of the time since the start; commands change them."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from cutline.common.commands.kinds import Mode
from tests.browser import troubles

SHOP = (
    "orders order_lines customers addresses products prices stock suppliers carts cart_items payments refunds invoices"
    " shipments parcels returns coupons reviews sessions events page_views searches wishlists notifications emails"
    " audit"
).split()
COLUMNS = [
    {"name": name, "type": kind, "lake_type": lake, "nullable": name != "id", "field_id": i, "generated": False}
    for i, (name, kind, lake) in enumerate(
        (
            ("id", "bigint unsigned", "decimal(20, 0)"),
            ("customer", "int", "int"),
            ("status", "enum('new','paid','sent')", "string"),
            ("total", "decimal(12,2)", "decimal(12, 2)"),
            ("note", "varchar(400)", "string"),
            ("created", "timestamp(6)", "timestamptz"),
        ),
        1,
    )
]
SOURCE_COLUMNS = [
    {
        **{key: value for key, value in column.items() if key not in ("field_id", "generated")},
        "lake_name": column["name"],
        "comment": "",
    }
    for column in COLUMNS
]
PLAN: dict[str, Any] = {
    "pipeline": "shop",
    "exists": True,
    "version": 2,
    "possible": True,
    "findings": [
        {
            "check": "connection",
            "ok": True,
            "found": "MySQL 8.4.6 at cdc@db-1.example.com:3306",
            "remedy": None,
            "table": None,
        },
        {
            "check": "retention",
            "ok": True,
            "found": "the server keeps its binlog for 168 hours after the last write",
            "remedy": None,
            "table": None,
        },
        {
            "check": "server and lake",
            "ok": True,
            "found": "the server's settings, the grants, the store and the lake are as needed",
            "remedy": None,
            "table": None,
        },
        {"check": "tables", "ok": True, "found": "26 tables match shop.*", "remedy": None, "table": None},
    ],
    "tables": [
        *(
            {
                "table": f"shop.{name}",
                "action": "read",
                "key": ["id"],
                "rows": 1200 * len(name) ** 3,
                "bytes": 9,
                "seconds": 1.0,
                "causes": [],
            }
            for name in SHOP[:-1]
        ),
        {
            "table": "shop.audit",
            "action": "quarantine",
            "key": [],
            "rows": 90,
            "bytes": 9,
            "seconds": 1.0,
            "causes": ["it has no primary key and no NOT NULL unique key; add one, or set keyless to append"],
        },
    ],
    "changes": [
        {
            "key": "checkpoint.interval_seconds",
            "before": 10.0,
            "after": 5.0,
            "effect": "in force from the next epoch on",
            "possible": True,
        }
    ],
    "rows": 18_400_000,
    "bytes": 2_210_000_000,
    "seconds": 184.0,
    "rate": "100,000 rows or 20,000,000 bytes a second for all readers together",
}


@dataclass(slots=True)
class Made:
    """One made-up pipeline."""

    name: str
    host: str
    tables: dict[str, dict[str, Any]]
    mode: Mode = "running"
    readers: int = 2
    writers: int = 2
    lag: float = 1.3
    rows_per_second: float = 24_000
    led: bool = True
    begun: bool = True
    waiting_for: str | None = None
    halted: dict[str, Any] | None = None
    troubles: list[dict[str, Any]] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float | None] = field(default_factory=lambda: {"rows_per_second": None, "bytes_per_second": None})
    commands: list[dict[str, Any]] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    savepoints: dict[int, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    derived: dict[str, Any] = field(default_factory=dict)


def made_table(name: str, phase: str, rows: int, **more: Any) -> dict[str, Any]:
    return {"table": name, "phase": phase, "rows": rows, "generation": 1, "cause": None, "remedy": None, **more}


def _definition(name: str, host: str, tables: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "source": {
            "host": host,
            "port": 3306,
            "user": "cdc",
            "password_env": f"{name.upper().replace('-', '_')}_PASSWORD",
        },
        "tables": tables,
        "snapshot": {"chunk_rows": 50000, "chunks": "replay", "max_select_seconds": 10.0},
        "checkpoint": {"interval_seconds": 10.0},
        "retention": {"grace_seconds": 3600.0, "savepoints": 10, "savepoint_days": 30.0},
        "sink": {"type": "iceberg", "warehouse": f"s3://lake/{name}", "format_version": 3},
        "schema_changes": "evolve",
    }


class Stage:
    """All made-up pipelines and what the API says of them."""

    def __init__(self) -> None:
        luck = random.Random(20)
        self.started = time.time() - 900
        self.troubles: list[dict[str, Any]] = []
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, Any] = {}
        shop = {f"shop.{name}": made_table(f"shop.{name}", "live", luck.randrange(2_000, 9_000_000)) for name in SHOP}
        shop["shop.page_views"].update(phase="snapshot", rows=48_000_000)
        shop["shop.events"].update(phase="catch-up", rows=12_400_000)
        shop["shop.searches"].update(phase="waiting", rows=3_100_000)
        shop["shop.emails"].update(
            phase="quarantined",
            cause="the column body has bytes that are not valid UTF-8 in 3 rows",
            remedy="correct these rows at the source, then retry the table",
        )
        shop["shop.audit"].update(phase="paused")
        shop["shop.wishlists"].update(phase="dropped", cause="the source has no such table any more")
        many = {}
        for i in range(1000):
            phase = "live" if i < 610 else "catch-up" if i < 630 else "snapshot" if i < 690 else "waiting"
            many[f"erp.t_{i:04}"] = made_table(f"erp.t_{i:04}", phase, luck.randrange(1_000, 40_000_000))
        many["erp.t_0622"].update(phase="quarantined", cause="ALTER TABLE moved rows in that the binlog does not have")
        many["erp.t_0650"].update(rows=5_000_000_000)
        billing = {f"billing.{n}": made_table(f"billing.{n}", "live", luck.randrange(900, 400_000)) for n in SHOP[8:14]}
        legacy = {f"legacy.{n}": made_table(f"legacy.{n}", "live", luck.randrange(900, 90_000)) for n in SHOP[:4]}
        self.pipelines = {
            "shop": Made("shop", "db-1.example.com", shop, tags={"team": "commerce", "env": "production"}),
            "erp-archive": Made(
                "erp-archive", "erp.example.com", many, readers=4, writers=3, lag=6.2, rows_per_second=310_000
            ),
            "billing": Made("billing", "db-2.example.com", billing, mode="paused", lag=1840, rows_per_second=0),
            "legacy": Made("legacy", "old.example.com", legacy, led=False, lag=410, rows_per_second=0),
        }
        self.pipelines["shop"].savepoints = {21: "before-upgrade", 57: "end-of-quarter"}
        for made in self.pipelines.values():
            first = _definition(made.name, made.host, [f"{next(iter(made.tables)).partition('.')[0]}.*"])
            second = {**first, "tables": [*first["tables"], "!shop.tmp_*"], "checkpoint": {"interval_seconds": 5.0}}
            made.versions = [
                {"version": 1, "by": None, "at": None, "command": None, "note": None, "definition": first},
                {
                    "version": 2,
                    "by": "anna",
                    "at": self.started - 7200,
                    "command": 1,
                    "note": "fresher, without temporary tables",
                    "definition": second,
                },
            ]
            self._past(made)
        self.tokens = [
            {
                "id": f"t{i}",
                "name": name,
                "role": role,
                "at": self.started - 86400 * i,
                "expires_at": expires,
                "revoked_at": None,
                "by": "anna",
            }
            for i, (name, role, expires) in enumerate(
                (
                    ("anna", "admin", None),
                    ("deploy", "operator", time.time() + 8e6),
                    ("grafana", "viewer", time.time() - 9e4),
                )
            )
        ]
        self.audit = [
            {
                "request_id": f"r{i}",
                "at": time.time() - 60 * i - 20,
                "by": by,
                "role": role,
                "means": "token",
                "identity": f"t{i}",
                "method": method,
                "path": path,
                "query": "",
                "operation": path.rpartition("/")[2],
                "command": 4 - i if status == 202 else None,
                "address": "10.0.0.7",
                "status": status,
                "cause": cause,
            }
            for i, (by, role, method, path, status, cause) in enumerate(
                (
                    ("anna", "admin", "POST", "/v1/pipelines/shop/savepoints", 202, None),
                    (
                        "grafana",
                        "viewer",
                        "POST",
                        "/v1/pipelines/shop/pause",
                        403,
                        "this needs the role operator, and grafana is viewer",
                    ),
                    ("deploy", "operator", "POST", "/v1/pipelines/billing/pause", 202, None),
                    ("anna", "admin", "PUT", "/v1/pipelines/shop", 202, None),
                )
            )
        ]

    def _past(self, made: Made) -> None:
        at = self.started
        texts = [("epoch", "epoch 1 with 2 readers and 2 writers: the pipeline starts")]
        for table in list(made.tables)[:14]:
            texts += [("table", f"{table} is snapshot in generation 1"), ("table", f"{table} is live in generation 1")]
        texts += [
            ("table", f"{t['table']} is quarantined in generation 1: {t['cause']}")
            for t in made.tables.values()
            if t["phase"] == "quarantined"
        ]
        texts += [("kept", f"checkpoint {n} is kept as the savepoint {name}") for n, name in made.savepoints.items()]
        for i, (kind, text) in enumerate(texts):
            made.events.append(
                {"id": f"{i + 1}.0", "slot": i + 1, "at": at + i * 21, "kind": kind, "text": text, "table": None}
            )
        made.commands = [
            {
                "number": 1,
                "kind": "define",
                "arguments": {"base": 1, "note": "fresher"},
                "state": "done",
                "by": "anna",
                "at": at,
                "cause": None,
                "remedy": None,
                "result": {"version": 2},
                "finished_at": at + 2,
                "url": f"/v1/pipelines/{made.name}/commands/1",
            },
            {
                "number": 2,
                "kind": "savepoint",
                "arguments": {"name": "end-of-quarter"},
                "state": "done",
                "by": "deploy",
                "at": at + 500,
                "cause": None,
                "remedy": None,
                "result": {"checkpoint": 57},
                "finished_at": at + 503,
                "url": f"/v1/pipelines/{made.name}/commands/2",
            },
            {
                "number": 3,
                "kind": "retry_table",
                "arguments": {"table": "shop.emails"},
                "state": "refused",
                "by": "deploy",
                "at": at + 700,
                "cause": "3 rows of shop.emails are still not valid UTF-8",
                "remedy": "correct them at the source first",
                "result": {},
                "finished_at": at + 701,
                "url": f"/v1/pipelines/{made.name}/commands/3",
            },
        ]

    # ---- views ----

    def since(self) -> float:
        return time.time() - self.started

    def reading(self, made: Made) -> int:
        return sum(t["phase"] == "snapshot" for t in made.tables.values()) or 1

    def newest(self, made: Made) -> int:
        return int(self.since() // 10) if made.mode == "running" and made.led else 88

    def redis_away(self) -> bool:
        """Whether nothing is known but what the store has."""
        return any(each["name"] == "CutlineRedisAway" for each in self.troubles)

    def conditions(self, *some: Made) -> list[dict[str, Any]]:
        """What a person must act on: of these pipelines, and what all share."""
        found = list(self.troubles)
        for made in some:
            broken = [t for t in made.tables.values() if t["phase"] == "quarantined"]
            found += [*made.troubles, *troubles.quarantines(made.name, broken)]
            if not made.led and made.begun and not self.redis_away():
                found.append(troubles.no_leader(made.name, "enumerator", 410))
        return troubles.in_order([{**each, "acknowledged": self.acknowledged.get(each["id"])} for each in found])

    def pipeline(self, made: Made) -> dict[str, Any]:
        phases = [t["phase"] for t in made.tables.values()]
        now, n = time.time(), self.newest(made)
        lag = made.lag + 0.4 * math.sin(now / 3)
        at = self.started + n * 10
        running = made.mode == "running" and made.led
        source_time = now - lag if running else now - made.lag
        return {
            "name": made.name,
            "id": "5f0c2d9a7b31",
            "definition": made.versions[-1]["definition"],
            "epoch": None if not made.begun else 4 if made.led else 2,
            "leader": "enumerator-7c1e20a94bd3" if made.led else None,
            "tables": {p: phases.count(p) for p in sorted(set(phases))},
            "checkpoint": n,
            "checkpoint_completed_at": at + 0.2,
            "publication": n - 1,
            "published_at": at - 8.5,
            "source_time": source_time,
            "waiting_for": made.waiting_for
            and {"party": "source", "what": made.waiting_for, "cause": None, "since": self.started + 700},
            "failures": 0,
            "halted": made.halted,
            "halted_since": made.halted and self.started + 600,
            "mode_since": self.started - 5400,
            "conditions": self.conditions(made),
            "commands_waiting": 0,
            "retry_at": None,
            "limits": made.limits,
            "spark_writer": "spark_writer-19aa" if made.led else None,
            "binlog_left_seconds": 201_600.0,
            "rows_sent": int(made.rows_per_second * (self.since() + 0.3 * math.sin(now)) if running else 9e6),
            "applied_by_spark": {},
            "derived": made.derived,
            "mode": made.mode,
            "version": made.versions[-1]["version"],
            "version_in_force": made.versions[-1]["version"],
            "tags": made.tags,
            "current": made.led,
            "as_of": now - (0 if made.led else 410),
        }

    def table(self, made: Made, t: dict[str, Any]) -> dict[str, Any]:
        phase, rows, now = t["phase"], t["rows"], time.time()
        total = max(1, rows // 50_000)
        share = {"waiting": 0.0, "snapshot": 0.2 + (self.since() % 600) / 800}.get(phase, 1.0)
        moving = made.mode == "running" and made.led
        seed = sum(map(ord, t["table"])) % 97
        rate = (
            made.rows_per_second / self.reading(made) * (1 + 0.2 * math.sin(now + seed))
            if moving and phase == "snapshot"
            else None
        )
        lag = {"live": made.lag, "catch-up": 300.0 + seed, "paused": 640.0, "quarantined": 900.0}.get(phase)
        shown = phase in ("live", "paused", "quarantined", "dropped")
        return {
            "table": t["table"],
            "phase": phase,
            "generation": t["generation"],
            "rows_done": int(rows * share),
            "rows_estimate": rows,
            "splits_done": int(total * share),
            "splits_total": total,
            "cause": t["cause"],
            "remedy": t["remedy"],
            "choices": [],
            "rate_rows_per_second": rate,
            "eta_seconds": rows * (1 - share) / rate if rate and share < 1 else None,
            "lag_bytes": int(lag * 90_000) if lag else None,
            "lag_seconds": lag,
            "last_change_at": now - 7 * (seed % 9) - 1 if shown else None,
            "published_checkpoint": self.newest(made) - 1 if shown else None,
            "published_at": now - 4 if shown else None,
            "paused": phase == "paused",
            "current": made.led,
            "as_of": now,
            "since": self.started + 10 * seed,
            "rows": rows + int(self.since() * seed) if shown else None,
            "inserts": int(self.since() * seed) if shown else None,
            "updates": int(self.since() * seed * 3) if shown else None,
            "deletes": seed if shown else None,
        }

    def grid(self, made: Made, t: dict[str, Any]) -> dict[str, Any]:
        view = self.table(made, t)
        total, done = view["splits_total"], view["splits_done"]
        luck, behind = random.Random(5), min(40, done)
        states = ["lake" if i < done - behind else "done" if i < done else "waiting" for i in range(total)]
        for i in luck.sample(range(done), min(done // 25, 2000)):
            states[i] = "waiting"
        if view["phase"] == "snapshot":
            states[done : done + made.readers] = ["reading"] * len(states[done : done + made.readers])
        runs: list[dict[str, Any]] = []
        for number, state in enumerate(states, 1):
            if runs and runs[-1]["state"] == state and state != "reading":
                runs[-1]["last"] = number
            else:
                reader = f"reader-{number % made.readers}" if state == "reading" else None
                runs.append({"first": number, "last": number, "state": state, "reader": reader})
        return {
            "table": t["table"],
            "generation": 1,
            "made": total,
            "total": total,
            "runs": runs,
            "current": True,
            "as_of": time.time(),
        }

    def channels(self, made: Made) -> list[dict[str, Any]]:
        moved = self.since() * made.rows_per_second * 140 if made.mode == "running" and made.led else 4e9
        found = []
        for r in range(made.readers):
            found.append(self._channel("enumerator", f"reader-{r}", self.since() * 90))
            found += [
                self._channel(f"reader-{r}", f"writer-{w}", moved * (1 + r + 2 * w) / 40) for w in range(made.writers)
            ]
        return found

    def _channel(self, sender: str, receiver: str, sent: float) -> dict[str, Any]:
        busy = int(4e5 * (1 + math.sin(time.time() + len(sender + receiver))))
        return {
            "from": sender,
            "to": receiver,
            "sent_bytes": int(sent),
            "sent": 1,
            "taken": 1,
            "outstanding_bytes": busy,
            "credit_bytes": 16 << 20,
            "current": True,
            "as_of": time.time(),
        }

    def checkpoint(self, made: Made, n: int) -> dict[str, Any]:
        luck = random.Random(n)
        start = self.started + n * 10
        members, longest = [], 0.0
        for name in [
            "enumerator",
            *(f"reader-{i}" for i in range(made.readers)),
            *(f"writer-{i}" for i in range(made.writers)),
        ]:
            marker = {"e": 0.0, "r": 0.004, "w": 0.04}[name[0]] + luck.random() * 0.05 * (name != "enumerator")
            saved = marker + 0.03 + luck.random() * (0.16 if name[0] == "w" else 0.05)
            longest = max(longest, saved)
            members.append(
                {
                    "member": name,
                    "part_bytes": None if name[0] == "w" else luck.randrange(300, 90_000),
                    "marker_at": start + marker,
                    "saved_at": start + saved,
                }
            )
        published = n < self.newest(made)
        rows = int(made.rows_per_second * 10 * (0.9 + 0.3 * luck.random()))
        tables = {
            t: round(luck.random() * 1.2 + 0.05, 3) for t in luck.sample(sorted(made.tables), min(9, len(made.tables)))
        }
        return {
            "number": n,
            "name": made.savepoints.get(n),
            "epoch": 4,
            "kept": n in made.savepoints,
            "inside": False,
            "position": {
                "file": "binlog.000412",
                "offset": 18_230_000 + n * 81_311,
                "gtids": f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{880_000 + n * 311}",
                "server": "3e11fa47",
                "rows": 0,
            },
            "source_time": start,
            "started_at": start,
            "written_at": start + longest + 0.012,
            "staged_files": luck.randrange(4, 40),
            "staged_rows": rows,
            "staged_bytes": rows * 122,
            "published": published,
            "members": members,
            "apply": {
                "first": n,
                "last": n,
                "applied_at": start + longest + 0.6 + max(tables.values()),
                "seconds": round(max(tables.values()) + 0.4, 2),
                "rows": rows,
                "published_at": start + longest + 1.2 + max(tables.values()),
                "tables": tables,
            }
            if published
            else None,
        }

    def command(
        self, made: Made, kind: str, arguments: dict[str, Any], by: str, result: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        n = len(made.commands) + 1
        now = time.time()
        view = {
            "number": n,
            "kind": kind,
            "arguments": arguments,
            "state": "accepted",
            "by": by,
            "at": now,
            "cause": None,
            "remedy": None,
            "result": result or {},
            "finished_at": None,
            "url": f"/v1/pipelines/{made.name}/commands/{n}",
        }
        made.commands.append(view)
        return view

    def say(self, made: Made, kind: str, text: str, **more: Any) -> None:
        slot = 1000 + len(made.events)
        about = {"id": f"{slot}.0", "slot": slot, "at": time.time(), "kind": kind, "text": text, "table": None}
        made.events.append({**about, **more})


def previewed(table: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a rule makes of a table: a condition on `salery` is refused."""
    (rule, *_) = body["table_options"]
    refused = "salery" in rule.get("where", "")
    sentence = f"{rule.get('where')!r} in table_options of {table} is refused by Spark: `salery` cannot be resolved"
    refusal = {"field": "table_options[0].where", "detail": sentence, "remedy": "correct it", "code": "rule"}
    columns = [{"name": "id", "type": "int"}, {"name": "yearly", "type": "decimal(13, 2)"}]
    rows = [(["1", "4200.00"], ["1", "50400.00"]), (["2", "100.00"], None), (["3", None], ["3", None])]
    return {
        "pipeline": body["name"],
        "analysed": True,
        "note": None,
        "tables": [] if refused else [{"table": table, "columns": columns}],
        "refusals": [refusal] if refused else [],
        "rows": {
            "table": table,
            "columns": ["id", "salary"],
            "masked": [],
            "own_key": False,
            "rows": [
                {"before": before, "after": None if refused else after, "failure": None} for before, after in rows
            ],
        },
    }
