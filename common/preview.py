"""A preview: what Spark makes of a pipeline's rules and derived tables before anything of it runs (pure).

Whoever plans a pipeline has the source's schemas and no Spark; a Spark writer has Spark and no source. So the one asks
(`PreviewRequest`) and the other answers (`PreviewAnswer`), in JSON through Redis (mesh/previews.py), or in one process.
A request has no value in it that readers would not give on: rows are masked before they come here, and of columns that
a rule does not need there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from cutline.common.causes import Cause
from cutline.common.schema import TableSchema

ROWS = 10
"""So many rows of one table are shown."""
MOST_TABLES = 200
"""So many tables of a pipeline are analysed at most; tables of one glob mostly look alike."""
LONGEST = 200
"""A value is shown with so many characters at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTable:
    """A table that is to be analysed, with its rule in its schema; `place` names its entry in the pipeline file, as
    `table_options[2]`, "" for a table without one."""

    schema: TableSchema
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuery:
    """A derived table that is to be analysed; `place` as `derived[0]`."""

    name: str
    sql: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRequest:
    """What is asked.

    `settings` are those of Spark SQL by which the pipeline's rules are evaluated. `unknown` are tables of the pipeline
    that can't be captured now, so that nothing can be said of what reads them. `rows` are some of the table `table`, as
    readers give them: columns that are masked have hashes.
    """

    tables: tuple[AskedTable, ...] = ()
    derived: tuple[AskedQuery, ...] = ()
    unknown: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None
    rows: pa.Table | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {
            "tables": [{"schema": each.schema.to_json(), "place": each.place} for each in self.tables],
            "derived": [{"name": each.name, "sql": each.sql, "place": each.place} for each in self.derived],
            "unknown": list(self.unknown),
            "settings": dict(self.settings),
            "table": self.table,
            "rows": None if self.rows is None else _packed(self.rows).hex(),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> PreviewRequest:
        """Read what `to_json` made."""
        rows = body["rows"]
        return cls(
            tables=tuple(
                AskedTable(schema=TableSchema.from_json(each["schema"]), place=each["place"]) for each in body["tables"]
            ),
            derived=tuple(AskedQuery(**each) for each in body["derived"]),
            unknown=tuple(body["unknown"]),
            settings=body["settings"],
            table=body["table"],
            rows=None if rows is None else pa.ipc.open_stream(bytes.fromhex(rows)).read_all(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a rule or a query can't be carried out, of which table, and the place in the pipeline file, as
    `table_options[2].where`."""

    place: str
    table: str
    cause: Cause

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {"place": self.place, "table": self.table, "cause": self.cause.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Refusal:
        """Read what `to_json` made."""
        return cls(place=body["place"], table=body["table"], cause=Cause.from_json(body["cause"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What a rule makes of one row: its values in the lake's columns, None if the row is left out; or why it fails."""

    values: tuple[str | None, ...] | None = None
    cause: Cause | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {
            "values": None if self.values is None else list(self.values),
            "cause": None if self.cause is None else self.cause.to_json(),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> After:
        """Read what `to_json` made."""
        values, cause = body["values"], body["cause"]
        return cls(
            values=None if values is None else tuple(values), cause=None if cause is None else Cause.from_json(cause)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewAnswer:
    """What is answered: the lake's columns (name, Iceberg's type) of each table and derived table that was analysed and
    not refused; the refusals; and what becomes of each of the rows that were asked for, in their order."""

    columns: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    after: tuple[After, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {
            "columns": {name: [list(column) for column in columns] for name, columns in self.columns.items()},
            "refusals": [each.to_json() for each in self.refusals],
            "after": [each.to_json() for each in self.after],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> PreviewAnswer:
        """Read what `to_json` made."""
        return cls(
            columns={
                name: tuple((str(column), str(kind)) for column, kind in columns)
                for name, columns in body["columns"].items()
            },
            refusals=tuple(map(Refusal.from_json, body["refusals"])),
            after=tuple(map(After.from_json, body["after"])),
        )


def printed(rows: pa.Table) -> list[tuple[str | None, ...]]:
    """Rows for people: each value as text of at most LONGEST characters, None for null."""
    columns = [[_text(value) for value in column.to_pylist()] for column in rows.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            text = "true" if value else "false"
        case bytes():
            text = value.hex()
        case datetime():
            text = value.replace(tzinfo=None).isoformat(" ") + ("" if value.tzinfo is None else "Z")
        case date():
            text = value.isoformat()
        case float():
            text = repr(value)
        case list():
            text = f"[{', '.join(str(_text(item)) for item in value)}]"
        case _:
            text = format(value, "f") if hasattr(value, "as_tuple") else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
