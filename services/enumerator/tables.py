"""The tables of a pipeline as values, the indexes over them, and their form in the enumerator's part (pure).

A `Table`, with its splitter, is a value: every change is another object, put by `Tables.put`. A turn of the machine
therefore costs what changed, and the tables of a cut stay as they were.

What must change together: `_to_json` and `_from_json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutline.common.causes import Cause
from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import State
from cutline.common.mesh.messages import CompletedSplit, IncludeTable, from_plain, pieces, to_plain
from cutline.common.phases import CATCH_UP, DROPPED, LIVE, PAUSED, QUARANTINED, SNAPSHOT, WAITING, Phase
from cutline.common.positions import High, Low
from cutline.common.schema import TableSchema
from cutline.services.enumerator.splitter import Splitter

GROUP = 256
STREAMED = frozenset({CATCH_UP, LIVE})  # the incremental split has the table
AT_REST = frozenset({QUARANTINED, DROPPED})  # the table stays so until the source or a person acts
INACTIVE = AT_REST | {PAUSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of the pipeline."""

    table_id: str
    generation: int = 1
    phase: Phase = WAITING
    schema: TableSchema | None = None
    splitter: Splitter | None = None
    low: Low | None = None
    high: High | None = None
    completed: tuple[tuple[CompletedSplit, ...], ...] = ()  # in groups, so that one more split is a small change
    splits_done: int = 0
    rows_done: int = 0
    estimate: int = 0
    cause: Cause | None = None
    since: float | None = None  # when it entered its phase, as `Tables.put` knows; None: before that was noted
    # At rest because of the table's state at the source, so looked at now and then: dropped, hidden, or not copyable
    # since it was created again.
    awaited: bool = False
    # With `Plan.quarantine_changed`: the last generation's schema, until this one has its own.
    before: TableSchema | None = None
    # A person paused it. While `pausing` the incremental split still has it; while `resuming` the source is asked
    # whether it still has what came since `low`.
    pausing: bool = False
    resuming: bool = False
    looked_at: Low | None = None  # of a paused table, see StreamTable

    def again(self, generation: int, cause: Cause | None, *, keeps_schema: bool) -> Table:
        """The table at the beginning of this generation, its next one. `keeps_schema`: other columns would be a
        fault."""
        return Table(
            table_id=self.table_id,
            generation=generation,
            phase=PAUSED if self.phase == PAUSED or self.pausing else WAITING,
            cause=cause,
            before=(self.schema or self.before) if keeps_schema else None,
        )

    @property
    def splits_total(self) -> int:
        """How many chunks there are, as far as is known."""
        if self.splitter is None:
            return self.splits_done
        return max(self.splitter.made, -(-self.estimate // self.splitter.step))

    @property
    def streams_again(self) -> bool:
        """Whether it is paused after its snapshot: its chunks are all reported, and nothing but the stream is left."""
        return self.phase == PAUSED and self.splitter is None and self.high is not None

    @property
    def schemas(self) -> tuple[TableSchema, ...]:
        """The schemas that this state names."""
        return tuple(schema for schema in (self.schema, self.before) if schema is not None)

    def with_completed(self, split: CompletedSplit) -> Table:
        """The table with one more completed split (in `exact` only)."""
        full, last = self.completed[:-1], self.completed[-1] if self.completed else ()
        groups = (*full, (*last, split)) if len(last) < GROUP else (*full, last, (split,))
        return dataclasses.replace(self, completed=groups)


class Tables:
    """Every table of the pipeline, the indexes over them, and the tables that changed since the last part."""

    def __init__(self) -> None:
        self.by_name: dict[str, Table] = {}
        self.splitting: dict[str, None] = {}  # tables of which chunks are still to be made, in order
        self.asking: set[str] = set()  # tables whose splitter waits for an answer of the source
        self.awaited: dict[str, None] = {}  # tables that are looked at now and then
        self.now: float | None = None  # the time of the fact in hand: tables that change their phase enter it now
        self._values: dict[str, dict[str, Any]] = {"tables": {}, "completed": {}}  # of the last part; never changed
        self._unsaved: dict[str, Table | None] = {}  # changed since the last part -> as that part has it
        self._named: set[str] = set()  # hashes of the schemas that parts of this epoch, or its base, have saved

    def put(self, table: Table) -> Table:
        """Take a new table, or another state of a known one; `since` follows its phase. Nothing else writes
        `by_name`."""
        name, splitter, known = table.table_id, table.splitter, self.by_name.get(table.table_id)
        since = known.since if known is not None and known.phase == table.phase else self.now
        if table.since != since:
            table = dataclasses.replace(table, since=since)
        self._unsaved.setdefault(name, self.by_name.get(name))
        self.by_name[name] = table
        _keep(self.splitting, name, splitter is not None and not splitter.done)
        _keep(self.awaited, name, table.awaited)
        (self.asking.add if splitter is not None and splitter.asked else self.asking.discard)(name)
        return table

    def remove(self, name: str) -> None:
        """Forget a table."""
        self._unsaved.setdefault(name, self.by_name.get(name))
        for index in (self.by_name, self.splitting, self.awaited):
            index.pop(name, None)
        self.asking.discard(name)

    def being_split(self, table_id: str, generation: int) -> Table | None:
        """The table, if it is of that generation and has a splitter: a copy, whose splitter may be changed."""
        table = self.by_name.get(table_id)
        if table is None or table.generation != generation or table.splitter is None:
            return None
        return dataclasses.replace(table, splitter=dataclasses.replace(table.splitter))

    def copy(self) -> Tables:
        """The same tables, without indexes: enough to take the reports of a cut."""
        tables = Tables()
        tables.by_name, tables.now = dict(self.by_name), self.now
        return tables

    def part(self) -> tuple[Mapping[str, Mapping[str, Any]], tuple[TableSchema, ...]]:
        """The sections of the enumerator's part, and the schemas that no earlier part has saved."""
        fresh: dict[str, TableSchema] = {}
        if self._unsaved:
            values = {name: dict(section) for name, section in self._values.items()}
            for name, before in self._unsaved.items():
                table = self.by_name.get(name)
                _replace_groups(values["completed"], name, table, before)
                if table is None:
                    values["tables"].pop(name, None)
                    continue
                values["tables"][name] = _to_json(table)
                fresh |= {schema.hash: schema for schema in table.schemas if schema.hash not in self._named}
            self._values, self._unsaved = values, {}
            self._named |= fresh.keys()
        return self._values, tuple(fresh.values())

    @classmethod
    def restored(cls, state: State) -> Tables:
        """The tables of a part."""
        tables = cls()
        schemas = {schema.hash: schema for schema in state.schemas}
        groups: dict[str, list[tuple[int, Any]]] = {}
        for key, group in state.values.get("completed", {}).items():
            table_id, _, number = key.rpartition(" ")
            groups.setdefault(table_id, []).append((int(number), group))
        for name, value in state.values.get("tables", {}).items():
            table = _from_json(name, value, schemas, [group for _, group in sorted(groups.get(name, []))])
            tables.now = table.since
            tables.put(table)
        tables.now = None
        tables._named = set(schemas)
        return tables

    def ended(self, *, at_stop: bool) -> bool:
        """Whether every table is shown at the stop, which the source has passed, or never will be."""
        if any(table.pausing or table.resuming for table in self.by_name.values()):
            return False  # one is on its way out of the stream, or back into it
        phases = {table.phase for table in self.by_name.values()}
        return (at_stop or LIVE not in phases) and phases <= {LIVE, *INACTIVE}

    def check(self) -> None:
        """Raise ProtocolError where the tables or the indexes over them contradict each other. Costs O(tables)."""
        for name, table in self.by_name.items():
            splitter = table.splitter
            if table.table_id != name or table.phase not in Phase:
                raise ProtocolError(f"table {name} is kept as {table.table_id} in phase {table.phase!r}")
            if splitter is not None and (splitter.generation != table.generation or table.schema is None):
                raise ProtocolError(
                    f"table {name} has a splitter of generation {splitter.generation}, without a schema"
                    f" or of another generation than its own, {table.generation}"
                )
            if (table.phase == SNAPSHOT and splitter is None) or (table.phase in STREAMED and splitter is not None):
                raise ProtocolError(f"table {name} is in phase {table.phase}, which does not go with its splitter")
            if table.phase in STREAMED and (table.schema is None or table.low is None or table.high is None):
                raise ProtocolError(f"table {name} is in phase {table.phase} without a schema or watermarks")
            if table.phase in AT_REST and table.cause is None:
                raise ProtocolError(f"table {name} is {table.phase} without a cause")
            if (table.pausing and table.phase not in STREAMED) or (table.resuming and not table.streams_again):
                raise ProtocolError(f"table {name} is being paused or resumed in phase {table.phase}")
            if table.awaited and table.phase not in AT_REST:
                raise ProtocolError(f"table {name} is awaited in phase {table.phase}")
            indexed = (name in self.splitting, name in self.asking, name in self.awaited)
            is_asked = splitter is not None and splitter.asked
            if indexed != (splitter is not None and not splitter.done, is_asked, table.awaited):
                raise ProtocolError(f"the indexes over table {name} are out of date: {indexed}")
        if lost := {*self.splitting, *self.asking, *self.awaited} - self.by_name.keys():
            raise ProtocolError(f"the indexes name tables that do not exist: {sorted(lost)}")


def _keep(names: dict[str, None], name: str, wanted: bool) -> None:
    if wanted:
        names[name] = None
    else:
        names.pop(name, None)


def _replace_groups(values: dict[str, Any], name: str, table: Table | None, before: Table | None) -> None:
    """Bring the part's groups of completed splits from those of `before` to those of the table."""
    known, completed = (each.completed if each is not None else () for each in (before, table))
    for number in range(max(len(known), len(completed))):
        key = f"{name} {number}"
        if number >= len(completed):
            del values[key]
        elif number >= len(known) or known[number] is not completed[number]:
            values[key] = to_plain(completed[number])


def _to_json(table: Table) -> dict[str, Any]:
    """The table's form in a part, but for its completed splits; what few tables have is left out if it is absent."""
    rare = {
        "pausing": table.pausing, "resuming": table.resuming, "lookedAt": to_plain(table.looked_at),
        "since": table.since,
    }  # fmt: skip
    return {
        "generation": table.generation, "phase": table.phase,
        "schema": table.schema.hash if table.schema else None,
        "splitter": table.splitter.to_json() if table.splitter else None,
        "low": table.low.to_json() if table.low else None, "high": table.high.to_json() if table.high else None,
        "splitsDone": table.splits_done, "rowsDone": table.rows_done,
        "estimate": table.estimate, "cause": table.cause.to_json() if table.cause else None,
        "awaited": table.awaited, "before": table.before.hash if table.before else None,
        **{key: value for key, value in rare.items() if value},
    }  # fmt: skip


def _from_json(
    table_id: str, value: Mapping[str, Any], schemas: Mapping[str, TableSchema], completed: list[Any]
) -> Table:
    schema = schemas[value["schema"]] if value["schema"] else None
    splitter = None
    if schema is not None and value["splitter"]:
        splitter = Splitter.restored(table_id, value["generation"], schema, value["splitter"])
    return Table(
        table_id=table_id,
        generation=value["generation"],
        phase=Phase(value["phase"]),
        schema=schema,
        splitter=splitter,
        low=Low.from_json(value["low"]) if value["low"] else None,
        high=High.from_json(value["high"]) if value["high"] else None,
        completed=tuple(from_plain(tuple[CompletedSplit, ...], group) for group in completed),
        splits_done=value["splitsDone"],
        rows_done=value["rowsDone"],
        estimate=value["estimate"],
        cause=Cause.from_json(value["cause"]) if value["cause"] else None,
        awaited=value["awaited"],
        before=schemas[value["before"]] if value["before"] else None,
        pausing=value.get("pausing", False),
        resuming=value.get("resuming", False),
        looked_at=from_plain(Low | None, value.get("lookedAt")),
        since=value.get("since"),
    )


def inclusion(table: Table, looked_at: Low | None) -> list[IncludeTable]:
    """The messages by which the incremental split gets a table; more than one if it has many splits."""
    assert table.schema is not None
    assert table.low is not None
    assert table.high is not None
    groups = pieces([split for group in table.completed for split in group])
    return [
        IncludeTable(
            table_id=table.table_id,
            generation=table.generation,
            schema=table.schema,
            low=table.low,
            high=table.high,
            splits=tuple(group),
            looked_at=looked_at,
            more=at < len(groups),
        )
        for at, group in enumerate(groups, start=1)
    ]
