"""`history`: every version of a row, each with the change by which it began and the one by which it ended.

A version's key in the lake is the key of its row, and where it ended: `_to_seq`, which is `OPEN` while it has not. So a
row's current version is found as any row is, by its key and `OPEN`, and no two versions have one key. Of a step's
changes of one key

- each but a deletion begins a version, which ends with the next of them, or is the current one;
- the first ends the version that the lake has: that row is read, and written with its end;
- the last leaves the new current version in its place, or none.

A TRUNCATE is a deletion of every row. A version has the `_seq` of its change; the rows that the lake's versions become
have numbers below all of those, since a sink tells changes by them.

Relies on: changes that are past the row which a chunk has of their key (`snapshot.chunks: exact`); a sink that has the
chunks of a step before its changes come (`Shaping.parts`). Memory grows with the keys of a step's changes, not with
their rows, nor with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.keys import comparable
from cutline.common.ops import Op, is_any
from cutline.common.schema import FILE, META_FIELDS, OP, POS, SEQ, TS, TableSchema
from cutline.spark_writer.sinks.contract import Known
from cutline.spark_writer.transform.rule import Rule

OPEN = 2**63 - 1
"""`_to_seq` of a current version."""
BEFORE_ALL = -(2**62)
"""Where the numbers of rows that come of the lake's versions begin."""
VERSIONED = {
    "_current": "bit(1)",
    "_valid_from": "timestamp(6)",
    "_valid_to": "timestamp(6)",
    "_from_seq": "bigint",
    "_from_file": "text",
    "_from_pos": "bigint",
    "_to_seq": "bigint",
    "_to_file": "text",
    "_to_pos": "bigint",
}
"""The columns of `history`, with types of the source that the lake has alike: whether the version is the current one;
the commit time, the number and the place of the change by which it began (all null: a chunk had it), and of that by
which it ended."""
_PLACE = (TS, SEQ, FILE, POS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What ends the rows of a step's changes.

    `changes` are all of them by `_seq`, TRUNCATEs too, with `OP` and the places; `ends` has for each the index of the
    one that ends its row, -1 for none. `keys` are the keys of all, as a sink looks for them (with `OPEN` behind);
    `firsts` has for each the index of what ends the lake's version of it, `left` whether a change leaves a current one.
    `truncate` is the index of the first TRUNCATE, None without one.
    """

    changes: pa.Table
    ends: Any
    keys: pa.Table
    firsts: Any
    left: Any
    truncate: int | None

    def ending(self, seq: pa.ChunkedArray) -> Any:
        """For each of these changes the index of the one that ends its row, -1 for none."""
        return self.ends[np.searchsorted(self.changes[SEQ].to_numpy(), seq.to_numpy())]

    def places(self, at: Any) -> list[pa.ChunkedArray]:
        """The commit times, numbers, files and positions of the changes at these indices; null at -1."""
        indices = pa.array(at, mask=at < 0)
        return [self.changes[name].take(indices) for name in _PLACE]


def of_snapshot(rows: pa.Table, target: TableSchema, values: Mapping[str, Any]) -> pa.Table:
    """Rows of a snapshot after their rule, as a mode's table has them: of the mode's own columns, the first ones of
    `target`, those that `values` names have that value in each row, and the others are null."""
    count, fields = rows.num_rows, list(target.arrow)
    own = [
        pa.repeat(pa.scalar(values.get(field.name), field.type), count)
        for field in fields[: len(fields) - rows.num_columns]
    ]
    return pa.Table.from_arrays([*own, *rows.columns], schema=target.arrow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """`history`, behind a rule."""

    rule: Rule
    target: TableSchema

    @property
    def reads(self) -> set[str]:
        """The columns of the source that are needed."""
        return self.rule.reads

    def chunk(self, rows: pa.Table) -> pa.Table:
        """The lake's rows of those that a SELECT gave: current versions, of which it is not known how they began."""
        return of_snapshot(self.rule.chunk(rows), self.target, {"_current": True, "_to_seq": OPEN})

    @property
    def key_reads(self) -> set[str]:
        """The columns of the source that `keys` needs."""
        rule = self.rule
        return self.reads if rule.condition is not None else {rule.plain[name] for name in rule.target.key}

    def keys(self, changes: pa.Table, types: Sequence[pa.DataType]) -> pa.Table:
        """The keys of changes, in these types, as `k0`, `k1`, …, with `OP` and the places."""
        names = list(self.rule.target.key)
        if self.rule.condition is not None:
            changes = self.rule.images(changes)
        else:
            names = [self.rule.plain[name] for name in names]
        made = changes.filter(pc.invert(is_any(changes[OP], Op.BEFORE)))
        keys = [comparable(made[name].cast(kind)) for name, kind in zip(names, types, strict=True)]
        rest = (OP, *_PLACE)
        return pa.table([*keys, *(made[name] for name in rest)], names=[f"k{at}" for at in range(len(keys))] + [*rest])

    def versions(self, changes: pa.Table, ends: Ends) -> pa.Table:
        """The versions that changes begin, as changes: one that has ended is an insert."""
        made = self.rule.images(changes)
        made = made.filter(pc.invert(is_any(made[OP], Op.BEFORE, Op.DELETE, Op.TRUNCATE)))
        end = ends.ending(made[SEQ])
        own = _own([made[name] for name in _PLACE], ends.places(end))
        ops = pa.array(np.where(end < 0, Op.UPDATE.value, Op.INSERT.value), pa.string())
        fields = [*self.target.arrow, *META_FIELDS]
        made = made.set_column(made.schema.get_field_index(OP), OP, ops)
        columns = [column.cast(field.type) for column, field in zip([*own, *made.columns], fields, strict=True)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def ends_of(changes: pa.Table) -> Ends:
    """What ends the rows of all changes of a step: `changes` as `Versioned.keys` has them."""
    names = [name for name in changes.column_names if name not in (OP, *_PLACE)]
    changes = changes.sort_by(SEQ).combine_chunks()
    truncates = is_any(changes[OP], Op.TRUNCATE).to_numpy()
    at, cuts = np.flatnonzero(~truncates), np.flatnonzero(truncates)
    rows = changes.take(pa.array(at))
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (*names, SEQ)]).to_numpy()
    ordered, keys = at[order], rows.select(names).take(pa.array(order)).combine_chunks()
    same = np.ones(max(0, len(ordered) - 1), bool)
    for column in keys.columns:
        same &= pc.equal(column[1:], column[:-1]).to_numpy()
    begins, last = np.append(True, ~same)[: len(ordered)], np.append(~same, True)[: len(ordered)]
    far, ends = changes.num_rows, np.full(changes.num_rows, changes.num_rows)
    ends[ordered[:-1][same]] = ordered[1:][same]
    following = np.append(cuts, far)[np.searchsorted(cuts, np.arange(far))]
    ends = np.minimum(ends, following)
    firsts = np.minimum(ordered[begins], cuts[0] if len(cuts) else far)
    final = ordered[last]
    left = (ends[final] == far) & ~is_any(changes[OP], Op.DELETE).to_numpy()[final]
    opened = pa.array(np.full(len(firsts), OPEN, np.int64))
    return Ends(
        changes=changes.drop_columns(names),
        ends=np.where(ends == far, -1, ends),
        keys=keys.filter(pa.array(begins)).append_column(f"k{len(names)}", opened),
        firsts=firsts,
        left=left,
        truncate=int(cuts[0]) if len(cuts) else None,
    )


def ended(known: Known, ends: Ends, target: TableSchema) -> Iterator[pa.Table]:
    """The changes by which the current versions that the lake has end, a part at a time; their columns are those of
    `lake_columns`."""
    schema, number = lake_columns(target), BEFORE_ALL
    if ends.keys.num_rows:
        for rows, keys in known(ends.keys):
            made = _ended(rows, ends, ends.firsts[keys], ~ends.left[keys], schema, number)
            number += made.num_rows
            yield made
    if ends.truncate is None:
        return
    names = [*target.key[:-1], "_to_seq"]
    for rows, _ in known(None):
        plain = rows.rename_columns(schema.arrow.names)
        keys = pa.table([comparable(plain[name]) for name in names], names=ends.keys.column_names)
        keys = keys.append_column("row", pa.array(np.arange(rows.num_rows))).filter(pc.equal(plain["_to_seq"], OPEN))
        changed = ends.keys.cast(keys.drop_columns(["row"]).schema)
        rows = rows.take(keys.join(changed, changed.column_names, join_type="left anti")["row"])
        count = rows.num_rows
        made = _ended(rows, ends, np.full(count, ends.truncate), np.ones(count, bool), schema, number)
        number += made.num_rows
        yield made


def lake_columns(target: TableSchema) -> TableSchema:
    """The schema of rows that the lake had: with all its columns, those too that the source has dropped."""
    made = replace(target, columns=target.lake, shown=None)
    made.__dict__["hash"] = target.hash
    return made


def _ended(rows: pa.Table, ends: Ends, end: Any, gone: Any, schema: TableSchema, number: int) -> pa.Table:
    """Rows of the lake with their ends, and deletions of those of which no current version stays."""
    began = [rows.column(at) for at in (1, 3, 4, 5)]
    closed = [*_own(began, ends.places(end)), *rows.columns[len(VERSIONED) :]]
    columns = [
        pa.chunked_array([*new.cast(old.type).chunks, *old.filter(pa.array(gone)).chunks], old.type)
        for new, old in zip(map(_chunked, closed), rows.columns, strict=True)
    ]
    count = rows.num_rows + int(gone.sum())
    meta = {field.name: pa.nulls(count, field.type) for field in META_FIELDS}
    meta[OP] = pa.array([Op.INSERT.value] * rows.num_rows + [Op.DELETE.value] * (count - rows.num_rows), pa.string())
    meta[SEQ] = pa.array(np.arange(number, number + count))
    fields = [*schema.arrow, *META_FIELDS]
    cast = [column.cast(field.type) for column, field in zip([*columns, *meta.values()], fields, strict=True)]
    return pa.Table.from_arrays(cast, schema=pa.schema(fields))


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _own(began: Sequence[pa.ChunkedArray], end: Sequence[pa.ChunkedArray]) -> list[Any]:
    """The columns `VERSIONED`, of the places (`_PLACE`) of what begins and ends versions."""
    (since, *start), (until, seq, *place) = began, end
    return [pc.is_null(seq), since, until, *start, pc.fill_null(seq, OPEN), *place]
