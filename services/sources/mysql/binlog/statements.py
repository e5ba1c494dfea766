"""Statements in the binlog: BEGIN, COMMIT and their like, XA, and what DDL does to routes (ddl.py classifies it).

| a table's schema change | `evolve`, `exact`, `ignore` | `halt` |
|---|---|---|
| that changes neither key nor names, types and character sets | followed | followed |
| to columns, after its high | followed | quarantined |
| to columns, during its snapshot | restarted, except that nullable columns are added | restarted |
| TRUNCATE, after its high | delivered | delivered |
| TRUNCATE, during its snapshot | restarted | restarted |
| anything else | restarted | restarted, but quarantined after its high |
"""

from __future__ import annotations

from cutline.common.causes import Cause, Code
from cutline.common.schema import SchemaChanges
from cutline.services.sources.contract import GenerationEnded, Route, TableUnreadable
from cutline.services.sources.mysql.binlog import ddl
from cutline.services.sources.mysql.binlog.event_bodies import statement, xid_in
from cutline.services.sources.mysql.binlog.replay import ROLLED_BACK_TO_SAVEPOINT, Replay
from cutline.services.sources.mysql.binlog.routes import Routes
from cutline.services.sources.mysql.binlog.scanner import GO, Scanner
from cutline.services.sources.mysql.binlog.sql import tokens_of
from cutline.services.sources.mysql.server import Server


class Statements:
    """The statements of one dump. `policy` is the pipeline's `schema_changes`."""

    def __init__(
        self, server: Server, scanner: Scanner, routes: Routes, replay: Replay, *, policy: SchemaChanges
    ) -> None:
        self._server, self._scanner, self._routes, self._replay = server, scanner, routes, replay
        self._halts, self._policy = policy == "halt", policy

    def take(self, kind: int, body: bytes) -> int:
        """A statement's event: GO, or a code of the scanner's."""
        scanner = self._scanner
        db, text, sql_mode = statement(kind, body)
        if not scanner.tx.open:
            scanner.start_anonymous(scanner.event.start, scanner.event.timestamp * 1_000_000)
        word = text[:12].upper()
        if word == "BEGIN":
            scanner.begun()
        elif word == "COMMIT":
            return int(scanner.end_with_event())
        elif word == "ROLLBACK":
            self._routes.undo("a transaction that had changed tables without transactions too was rolled back")
            return int(scanner.end_with_event())
        elif word.startswith("ROLLBACK TO"):
            if scanner.tx.held:
                self._replay.keep(kind, body)
            else:
                self._routes.undo(ROLLED_BACK_TO_SAVEPOINT)
        elif word.startswith("SAVEPOINT") or word.startswith("RELEASE SAVE"):
            pass
        elif word.startswith("XA "):
            return self._xa(text)
        else:
            if not scanner.tx.skipped and not scanner.tx.unsettled:
                self.change_tables(db, text, sql_mode)
            if not scanner.tx.begun:
                return int(scanner.end_with_event())
        return GO

    def _xa(self, text: str) -> int:
        xid = xid_in(text)
        words = text.split(None, 2)
        verb = words[1].upper() if len(words) > 1 else ""
        if verb in ("START", "BEGIN"):
            self._scanner.hold()
            self._replay.hold()
        elif verb == "COMMIT":
            return self._replay.commit(xid)
        elif verb == "ROLLBACK":
            return self._replay.roll_back(xid)
        return GO

    def change_tables(self, db: str, text: str, sql_mode: int) -> None:
        """Apply a DDL statement to the routes (or DML, which quarantines tables); `db` is the session's database."""
        routes = self._routes.routed()
        for effect in ddl.classify(
            text,
            db,
            {table_id: route.schema for table_id, route in routes.items()},
            primary=self._routes.identified_by_primary_key(),
            unread={table_id for table_id, route in routes.items() if self._routes.schema_is_later(route)},
            mariadb=not self._server.mysql,
            folds_case=self._server.folds_case,
            sql_mode=sql_mode,
        ):
            route = self._routes.active(effect.table_id)
            if route is not None:
                self._apply(effect, route, text, sql_mode)

    def _apply(self, effect: ddl.Effect, route: Route, text: str, sql_mode: int) -> None:
        table_id, where = route.table_id, self._scanner.event_place
        during_snapshot = self._routes.before_high(route)
        shown = ddl.shown(text, list(tokens_of(text, sql_mode, mariadb=not self._server.mysql)))
        new = effect.schema if isinstance(effect, ddl.Evolve) else None
        looks_same = new is not None and new.look == route.schema.look
        match effect:
            case ddl.Quarantine():
                self._routes.fault(TableUnreadable, table_id, effect.cause.at(where))
            case ddl.Truncate() if not during_snapshot:
                self._routes.truncate(route)
            case ddl.Evolve() | ddl.Restart() if self._halts and not during_snapshot and not looks_same:
                cause = Cause(
                    Code.SCHEMA_CHANGE,
                    f"{table_id} was changed at {where}, and schema_changes: halt stops it there: {shown}",
                    "prepare its consumers, then have it read again",
                )
                self._routes.fault(TableUnreadable, table_id, cause)
            case ddl.Evolve() if not during_snapshot or looks_same or (effect.nullable_add and not self._halts):
                self._routes.evolve(route, route.schema.followed(effect.schema, self._policy), text)
            case ddl.Restart():
                self._routes.fault(GenerationEnded, table_id, effect.cause.at(where))
            case _:
                sentence = f"{table_id} was altered during its snapshot, at {where}: {shown}"
                self._routes.fault(GenerationEnded, table_id, Cause(Code.CHANGED, sentence))
