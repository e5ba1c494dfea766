"""What a lake table is, if it is no mirror of the source's: its columns and key, and what a change does to its rows.

A mode is carried out before a sink sees a step, as a rule is, and after the rule. What comes out are rows and changes
of an ordinary table. So no sink and no engine knows modes, and what holds for tables holds in each mode.

| mode | key | its own columns | a change of the source is |
|---|---|---|---|
| `append` | none | `APPENDED` | an insert, TRUNCATE too |
| `soft-delete` | the source's | `MARKED` | as it is; a deletion is an update that marks the row, TRUNCATE one of all |
| `history` | the source's, and `_to_seq` | `VERSIONED` of history.py | the end of a version, and the next |

The mode's own columns are the first ones, and the source's field ids follow theirs. So they keep their ids whatever
columns the source gets, and a new table gets from Iceberg the ids that it would get anyway (it numbers columns by their
order). None has the name of a metadata column of Iceberg (`_deleted`, `_file`, `_pos`): Spark reads no table
that has one.

Relies on: changes that are past the row which a chunk has of their key (`snapshot.chunks: exact`) in `append`. In
`soft-delete` changes may be replayed over a chunk, since the last one of a key counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.ops import Op, is_any
from cutline.common.schema import FILE, GTID, META_FIELDS, OP, POS, ROW, SEQ, TS, Column, TableSchema
from cutline.common.shape import Mode, Shape
from cutline.spark_writer.sinks.contract import Known
from cutline.spark_writer.transform.history import BEFORE_ALL, VERSIONED, Versioned, lake_columns, of_snapshot
from cutline.spark_writer.transform.rekeyed import Rekeyed, rekeyed
from cutline.spark_writer.transform.rule import Rule, RuleFault

APPENDED = {
    "_op": ("text", OP),
    "_seq": ("bigint", SEQ),
    "_binlog_file": ("text", FILE),
    "_binlog_pos": ("bigint", POS),
    "_binlog_row": ("int", ROW),
    "_gtid": ("text", GTID),
    "_committed_at": ("timestamp(6)", TS),
}
"""The columns of `append`: each with the type of the source that the lake has alike, and the field of a change that it
has. All but `_op` are null in the rows of the snapshot."""
MARKED = {"_is_deleted": "bit(1)", "_deleted_at": "timestamp(6)"}
"""The columns of `soft-delete`, with such types: whether the row is deleted, and when that was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """`append`, behind a rule. `both`: with the rows of before updates."""

    rule: Rule
    target: TableSchema
    both: bool

    @property
    def reads(self) -> set[str]:
        """The columns of the source that are needed."""
        return self.rule.reads

    def chunk(self, rows: pa.Table) -> pa.Table:
        """The lake's rows of those that a SELECT gave."""
        return of_snapshot(self.rule.chunk(rows), self.target, {"_op": Op.READ.value})

    def changes(self, changes: pa.Table) -> pa.Table:
        """The changes as inserts."""
        made = self.rule.images(changes)
        if not self.both:
            made = made.filter(pc.invert(is_any(made[OP], Op.BEFORE)))
        own = [made[field] for _, field in APPENDED.values()]
        inserts = made.set_column(made.schema.get_field_index(OP), OP, pa.repeat(Op.INSERT.value, made.num_rows))
        return _joined(own, inserts, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """`soft-delete`, behind a rule."""

    rule: Rule
    target: TableSchema

    @property
    def reads(self) -> set[str]:
        """The columns of the source that are needed."""
        return self.rule.reads

    def chunk(self, rows: pa.Table) -> pa.Table:
        """The lake's rows of those that a SELECT gave: none is deleted."""
        return of_snapshot(self.rule.chunk(rows), self.target, {"_is_deleted": False})

    def changes(self, changes: pa.Table, truncates: pa.Table) -> pa.Table:
        """The changes, each deletion as an update to a row with the mark and its last values; `truncates` are all
        TRUNCATEs of the step (`SEQ` and `TS`), each of which deletes the rows of the changes before it."""
        made = self.rule.images(changes)
        made = made.filter(pc.invert(is_any(made[OP], Op.BEFORE, Op.TRUNCATE)))
        deleted = is_any(made[OP], Op.DELETE)
        after = np.searchsorted(truncates[SEQ].to_numpy(), made[SEQ].to_numpy())
        by_truncate = truncates[TS].take(pa.array(after, mask=after == truncates.num_rows))
        gone = pc.or_(deleted, pa.array(after < truncates.num_rows))
        own = [gone, pc.if_else(deleted, made[TS], by_truncate)]
        ops = pc.if_else(gone, Op.UPDATE.value, made[OP].cast(pa.string()))
        return _joined(own, made.set_column(made.schema.get_field_index(OP), OP, ops), self.target)

    def truncated(self, known: Known, truncates: pa.Table) -> Iterator[pa.Table]:
        """The updates that mark the rows which the lake has, where the first TRUNCATE deleted them: rows of
        `lake_columns`, before all other changes."""
        fields = [*lake_columns(self.target).arrow, *META_FIELDS]
        number = BEFORE_ALL
        for rows, _ in known(None) if truncates.num_rows else ():
            alive = rows.filter(pc.invert(rows.column(0)))
            count = alive.num_rows
            own = [pa.repeat(pa.scalar(True), count), pa.repeat(truncates[TS][0], count)]
            meta = {field.name: pa.nulls(count, field.type) for field in META_FIELDS}
            meta[OP] = pa.repeat(pa.scalar(Op.UPDATE.value), count)
            meta[SEQ] = pa.array(np.arange(number, number + count))
            number += count
            columns = [*own, *alive.columns[len(MARKED) :], *meta.values()]
            cast = [column.cast(field.type) for column, field in zip(columns, fields, strict=True)]
            yield pa.Table.from_arrays(cast, schema=pa.schema(fields))


Moded = Rule | Rekeyed | Appended | Marked | Versioned


def moded(rule: Rule, source: TableSchema) -> Moded:
    """What becomes of a table's rows by its mode, after its rule. RuleFault if the mode can't be carried out."""
    shape = source.shape or Shape()
    mode: Mode = shape.mode
    if mode == "mirror" and not shape.key:
        return rule
    needed = () if rule.condition is None else rule.condition.needed
    if generated := [name for name in needed if source.column(name).generated]:
        # It would be null there, and an update that takes the row out could not be told from one outside.
        setting = "key" if shape.key else f"mode: {mode}"
        raise RuleFault(
            f"where of {source.table_id} needs the generated column {generated[0]}, which MariaDB leaves out of the row"
            f" before an update, so that {setting} could not tell which rows leave the condition",
            "write the column's expression instead",
            at="where",
        )
    if shape.key:
        return rekeyed(rule, source, shape.key)
    if mode == "append":
        kinds = {name: kind for name, (kind, _) in APPENDED.items()}
        return Appended(rule=rule, target=_with_own(rule.target, mode, kinds, key=()), both=shape.images == "both")
    if not rule.target.key:
        raise RuleFault(
            f"{rule.target.table_id} has no key, by which mode: {mode} finds the row of a change",
            "add a primary key, or choose mode: append",
            at="mode",
        )
    if mode == "history":
        key = (*rule.target.key, "_to_seq")
        return Versioned(rule=rule, target=_with_own(rule.target, mode, VERSIONED, key=key))
    return Marked(rule=rule, target=_with_own(rule.target, mode, MARKED, key=rule.target.key))


def paired(groups: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Groups of changes of one staged file, none of which ends between the row before an update and the update."""
    held: pa.Table | None = None
    for group in groups:
        whole = group if held is None else pa.concat_tables([held, group])
        torn = whole.num_rows and whole[OP][-1].as_py() == Op.BEFORE.value
        held = whole.slice(whole.num_rows - 1) if torn else None
        yield whole.slice(0, whole.num_rows - 1) if torn else whole
    assert held is None  # both rows come in one batch of the decoder, so in one file


def _with_own(lake: TableSchema, mode: Mode, kinds: dict[str, str], *, key: tuple[str, ...]) -> TableSchema:
    """The lake's schema with a mode's own columns, before all others."""
    if taken := [column.name for column in lake.lake if column.name.lower() in kinds]:
        raise RuleFault(
            f"{lake.table_id} has a column {taken[0]}, which mode: {mode} adds to the lake table itself",
            "give it another name by select, as in `* EXCEPT (a), a AS b`",
            at="mode",
        )
    own = tuple(
        Column(name=name, field_id=number, mysql_type=kind, nullable=True, computed=True)
        for number, (name, kind) in enumerate(kinds.items(), start=1)
    )

    def behind(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        by, elements = len(own), [None if each.element_id is None else each.element_id + len(own) for each in columns]
        shifted = zip(columns, elements, strict=True)
        return (*own, *(replace(each, field_id=each.field_id + by, element_id=element) for each, element in shifted))

    made = replace(
        lake,
        columns=behind(lake.columns),
        shown=None if lake.shown is None else behind(lake.shown),
        last_field_id=lake.last_field_id + len(own),
        key=key,
    )
    made.__dict__["hash"] = lake.hash
    return made


def _joined(own: list[pa.ChunkedArray], changes: pa.Table, target: TableSchema) -> pa.Table:
    """Changes of the lake's rows with the mode's own columns before them."""
    fields = [*target.arrow, *META_FIELDS]
    columns = [column.cast(field.type) for column, field in zip([*own, *changes.columns], fields, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
