"""When an enumerator asks the source again, and what it makes of a table's description (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from cutline.common.causes import Cause, Code
from cutline.common.mesh.machine import Effect
from cutline.common.phases import DROPPED, QUARANTINED
from cutline.common.positions import Stop
from cutline.common.shape import Shape
from cutline.services.enumerator.events import DescribeTable, FindStop, FindTables, Plan, TableFound
from cutline.services.enumerator.splitter import Splitter
from cutline.services.enumerator.tables import Table, Tables

STOP_SECONDS = 1.0  # between two questions whether the source has passed the stop
AWAITED_SECONDS = 5.0  # between two looks at tables that do not exist or can't be read
NEW_TABLES_SECONDS = 10.0  # between two looks for new tables
NOT_DESCRIBED = Cause(
    Code.OTHER, "the source returned no table definition", "check the table and the grants"
)


class Looks:
    """The questions that are asked now and then; of each kind one is open at a time."""

    def __init__(self) -> None:
        self._stop_due: float | None = 0.0  # when to ask for the stop's place; None while an answer is awaited
        self._find_due: float | None = None  # when to look for new tables; None while an answer is awaited
        self._looked_at = 0.0  # when awaited tables were last looked at
        self.looking: set[str] = set()  # awaited tables whose look is not answered yet

    def due(self, tables: Tables, stop: Stop | None, now: float, *, ends: bool) -> list[Effect]:
        """The questions that are due: about the stop, if its place is not known, about awaited tables, and about new
        ones. `ends`: the pipeline ends with those that it has."""
        effects: list[Effect] = []
        if stop is not None and self._is_stop_due(now):
            effects.append(FindStop(stop=stop))
        for name in self._awaited_due(tables.awaited, now):
            effects.append(DescribeTable(table_id=name, generation=tables.by_name[name].generation))
        if not ends and self._are_new_due(now):
            effects.append(FindTables(begins=False, known=frozenset(tables.by_name)))
        return effects

    def _is_stop_due(self, now: float) -> bool:
        if self._stop_due is None or now < self._stop_due:
            return False
        self._stop_due = None
        return True

    def stop_answered(self, now: float) -> None:
        """The question about the stop was answered."""
        self._stop_due = now + STOP_SECONDS

    def _are_new_due(self, now: float) -> bool:
        if self._find_due is None or now < self._find_due:
            return False
        self._find_due = None
        return True

    def tables_found(self, now: float) -> None:
        """The question about new tables was answered."""
        self._find_due = now + NEW_TABLES_SECONDS

    def _awaited_due(self, awaited: Iterable[str], now: float) -> list[str]:
        due = [name for name in awaited if name not in self.looking]
        if not due or now - self._looked_at < AWAITED_SECONDS:
            return []
        self._looked_at = now
        self.looking.update(due)
        return due

    def described(self, name: str) -> None:
        """A table was described."""
        self.looking.discard(name)


def reshaped(tables: Tables, shapes: Mapping[str, Shape] | None) -> list[tuple[Table, Cause]]:
    """The tables whose rule is another one in the newest definition (None: not known), and why they are read again."""
    return [
        (table, Cause(Code.ASKED, f"the rule of {name} (select, where, mask or mode in table_options) was changed"))
        for name, table in (tables.by_name.items() if shapes is not None else ())
        if table.schema is not None and table.schema.shape != (shapes or {}).get(name)
    ]


def prepared(table: Table, item: TableFound, plan: Plan) -> Table:
    """The table, ready to be split, or at rest, by its description."""
    if item.gone:
        sentence = f"table {table.table_id} no longer exists at the source; the lake keeps its last content"
        cause = Cause(Code.NO_TABLE, sentence)
        return dataclasses.replace(table, phase=DROPPED, cause=cause, awaited=True)
    if item.schema is None or item.fault is not None:
        cause = item.fault or NOT_DESCRIBED
        awaited = item.schema is None and (item.hidden or table.generation > 1)
        return dataclasses.replace(table, phase=QUARANTINED, cause=cause, awaited=awaited, schema=item.schema)
    if table.before is not None and table.before.look != item.schema.look:
        cause = Cause(
            Code.SCHEMA_CHANGE,
            f"the columns of {table.table_id} changed while it was being read, and schema_changes is halt",
            "prepare its consumers, then have it read again",
        )
        return dataclasses.replace(table, phase=QUARANTINED, cause=cause)
    splitter = Splitter(
        table_id=table.table_id,
        generation=table.generation,
        schema=item.schema,
        chunk_rows=item.chunk_rows or plan.chunk_rows,
        chunk_key=item.chunk_key,
        estimate=item.estimate,
        row_bytes=item.row_bytes,
        integer_key=item.integer_key,
    )
    return dataclasses.replace(table, schema=item.schema, before=None, estimate=item.estimate, splitter=splitter)
