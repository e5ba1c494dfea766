"""The tables of the incremental split (pure), indexed by cursor and high watermark, and their form in parts and cuts.

A `StreamTable` is a value: every change is another object, put by `StreamTables.put`, so that a read costs what changed
and anything derived from an unchanged table stays valid.

What must change together: `_to_json` and `_from_json`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import State
from cutline.common.mesh.messages import CompletedSplit, StreamedTable, from_plain, to_plain
from cutline.common.positions import FilePosition, High, Low
from cutline.common.schema import TableSchema
from cutline.services.sources.contract import Route

MAIN, CATCH_UP = "main", "catch-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTable(Route):
    """One table of the incremental split, as its cursor takes it. Its `schema` comes from the catalogue while
    `looked_at` is set: no row event has confirmed it yet."""

    cursor: str | None = None  # None: waits for main's answer, or for the next round
    pausing: bool = False  # a person paused it: it leaves between two transactions


class StreamTables:
    """Every table of the incremental split, the indexes over them, and the tables changed since the last read, part and
    cut."""

    def __init__(self) -> None:
        self.by_name: dict[str, StreamTable] = {}
        self.by_cursor: dict[str | None, dict[str, StreamTable]] = {MAIN: {}, CATCH_UP: {}, None: {}}
        self.late: set[str] = set()  # waiting tables whose low main has passed
        self.pausing: dict[str, None] = {}  # tables that are to leave
        self._unfinished: dict[str, StreamTable] = {}  # of main, and not live
        # Highs in order, for each history within which they compare; some are of tables that are live or gone by now.
        self._highs: dict[tuple[str, str], list[tuple[FilePosition, str, int]]] = {}
        self._routes: dict[str, Mapping[str, StreamTable]] = {MAIN: {}, CATCH_UP: {}}  # each replaced, never changed
        self._rerouted: dict[str, dict[str, StreamTable | None]] = {MAIN: {}, CATCH_UP: {}}  # changed since; None: gone
        self._values: dict[str, dict[str, Any]] = {}  # of the last part; never changed
        self._unsaved: dict[str, None] = {}  # tables changed since the last part
        self._fresh: dict[str, TableSchema] = {}  # schemas that no part has given yet
        self._cut: dict[str, StreamedTable] = {}  # as the last cut had them
        self._uncut: dict[str, None] = {}  # tables changed since the last cut

    # --- changes ---

    def put(self, table: StreamTable) -> None:
        """Take a new table, or another state of a known one."""
        self.remove(table.table_id)
        self.by_name[table.table_id] = self.by_cursor[table.cursor][table.table_id] = table
        if table.cursor is not None:
            self._rerouted[table.cursor][table.table_id] = table
        self._unsaved[table.table_id] = self._uncut[table.table_id] = None
        if table.pausing:
            self.pausing[table.table_id] = None
        if table.cursor == MAIN and not table.live:
            self._unfinished[table.table_id] = table
            comparable = self._highs.setdefault(table.high.history, [])
            bisect.insort(comparable, (table.high.file_position, table.table_id, table.generation))

    def remove(self, table_id: str) -> None:
        """Drop the table, if it is known."""
        table = self.by_name.pop(table_id, None)
        if table is not None:
            del self.by_cursor[table.cursor][table_id]
            if table.cursor is not None:
                self._rerouted[table.cursor][table_id] = None
            self._unsaved[table_id] = self._uncut[table_id] = None
            self._unfinished.pop(table_id, None)
            self.late.discard(table_id)
            self.pausing.pop(table_id, None)

    def add_schema(self, schema: TableSchema) -> None:
        """A schema that the stream has found; the next part gives it."""
        self._fresh[schema.hash] = schema

    # --- reads ---

    def arrivals(self, arrive: Callable[[StreamTable], bool]) -> None:
        """In each history call `arrive` for main's unfinished tables, lowest high first, until it returns False. A
        table for which it returned True is not offered again."""
        for highs in self._highs.values():
            arrived = 0
            for _, table_id, generation in highs:
                table = self._unfinished.get(table_id)
                if table is not None and table.generation == generation and not arrive(table):
                    break
                arrived += 1
            del highs[:arrived]

    def routes(self, cursor: str) -> Mapping[str, StreamTable]:
        """The routes of a cursor's tables; the same object as long as none of them changes."""
        if changed := self._rerouted[cursor]:
            routes = {**self._routes[cursor], **{name: table for name, table in changed.items() if table}}
            for gone in [name for name, table in changed.items() if table is None]:
                routes.pop(gone, None)
            self._routes[cursor], self._rerouted[cursor] = routes, {}
        return self._routes[cursor]

    # --- parts and cuts ---

    def part(self) -> tuple[Mapping[str, Any], tuple[TableSchema, ...]]:
        """The section of the reader's part, and the schemas that the stream has found since the last one."""
        if self._unsaved:
            values = dict(self._values)
            for name in self._unsaved:
                if (table := self.by_name.get(name)) is not None:
                    values[name] = _to_json(table)
                else:
                    values.pop(name, None)
            self._values, self._unsaved = values, {}
        schemas, self._fresh = tuple(self._fresh.values()), {}
        return self._values, schemas

    @classmethod
    def restored(cls, state: State) -> StreamTables:
        """The tables of a part, as they were after it and after its cut."""
        tables, schemas = cls(), {schema.hash: schema for schema in state.schemas}
        for name, value in state.values.get("tables", {}).items():
            tables.put(_from_json(name, value, schemas))
        tables.part()  # so that the epoch's first part and cut cost what changed, as later ones do
        tables.cut()
        return tables

    def cut(self) -> tuple[StreamedTable, ...]:
        """The tables that changed since the last cut, as the enumerator must know them.

        Those that left are named too: a table that was paused and resumed is the enumerator's again, in the same
        generation, while its way back is still in flight.
        """
        changed = []
        for name in self._uncut:
            table = self.by_name.get(name)
            if table is None:
                self._cut.pop(name, None)  # maybe only the base's entry, which has what was in flight, knows it
                changed.append(StreamedTable(table_id=name, generation=0, schema="", live=False))
                continue
            streamed = StreamedTable(
                table_id=name, generation=table.generation, schema=table.schema.hash, live=table.live
            )
            if self._cut.get(name) != streamed:
                self._cut[name] = streamed
                changed.append(streamed)
        self._uncut = {}
        return tuple(changed)

    # --- invariants ---

    def check(self) -> None:
        """Raise ProtocolError where the tables or the indexes over them contradict each other. Costs O(tables)."""
        if sum(map(len, self.by_cursor.values())) != len(self.by_name):
            raise ProtocolError("the incremental split has tables of two cursors, or of none")
        if self.pausing.keys() != {name for name, table in self.by_name.items() if table.pausing}:
            raise ProtocolError("the incremental split indexes other tables than those that are to pause")
        for name, table in self.by_name.items():
            if self.by_cursor[table.cursor].get(name) is not table:
                raise ProtocolError(f"{name} is not indexed by its cursor, {table.cursor}")
            if table.live and (table.cursor != MAIN or table.splits):
                raise ProtocolError(f"{name} is live, and of cursor {table.cursor} with {len(table.splits)} splits")
            unfinished = table if table.cursor == MAIN and not table.live else None
            if self._unfinished.get(name) is not unfinished:
                raise ProtocolError(f"{name} is indexed wrongly among the tables of main that are not live")
            if unfinished and (table.high.file_position, name, table.generation) not in self._highs[table.high.history]:
                raise ProtocolError(f"{name} is not live, and is missing from the highs that main has yet to reach")
        if not self.late <= self.by_cursor[None].keys() or self._unfinished.keys() - self.by_name.keys():
            raise ProtocolError("the incremental split indexes tables that do not wait, or are gone")


def _to_json(table: StreamTable) -> dict[str, Any]:
    """The table's form in a part."""
    pausing = {"pausing": True} if table.pausing else {}
    return pausing | {
        "generation": table.generation,
        "schema": table.schema.hash,
        "low": table.low.to_json(),
        "high": table.high.to_json(),
        "splits": to_plain(table.splits),
        "cursor": table.cursor,
        "live": table.live,
        "lookedAt": to_plain(table.looked_at),
    }


def _from_json(table_id: str, value: Mapping[str, Any], schemas: Mapping[str, TableSchema]) -> StreamTable:
    return StreamTable(
        table_id=table_id,
        generation=value["generation"],
        schema=schemas[value["schema"]],
        low=Low.from_json(value["low"]),
        high=High.from_json(value["high"]),
        splits=from_plain(tuple[CompletedSplit, ...], value["splits"]),
        cursor=value["cursor"],
        live=value["live"],
        looked_at=from_plain(Low | None, value["lookedAt"]),
        pausing=value.get("pausing", False),
    )
