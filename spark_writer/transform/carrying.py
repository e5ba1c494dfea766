"""What a table's next generation takes over of the one before it, by its mode.

A table that is read again has in its next generation the rows of a new snapshot, and the changes since. What the mode
keeps besides is only in the earlier generation, whose content ends at a place in the binlog, `Earlier.position`:

- `append`: all earlier rows. The new snapshot's rows get that place, and the number of the last earlier change: they
  stand behind it by the place, and before all that comes, whose numbers are greater.
- `soft-delete`: rows with a mark, and those that are not there any more, with a mark from now on; not if the new
  generation has a row of that key. It proves that a key is absent, since all of its chunks are in.
- `history`: all versions that ended. A current version goes on in the snapshot's row if both agree in the columns that
  both have; else it ended at that place, where the snapshot's row begins.

What happened between that place and the new snapshot is not known. To begin and end versions there keeps each cut
right: at all cuts up to it the earlier generation was shown, and at later ones the new one. Between the number of the
last change before and that of the first one after there may be none, and a version's key has the number by which it
ended. So what a reading begins and ends has a number of its own, `AGAIN` and more, which no change has.

Columns belong together by their names in the lake, in whatever case. One that is new is null in earlier rows, one that
is gone is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.keys import comparable
from cutline.common.ops import Op
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.spark_writer.sinks.contract import Carried, Earlier, Pairs
from cutline.spark_writer.transform.history import OPEN, VERSIONED

AGAIN = -(2**32)
"""Where the numbers of readings begin, in `history`: each has the earlier generation's number behind it."""


def carried(
    shape: Shape,
    target: TableSchema,
    arrow: pa.Schema,
    earlier: Earlier,
    theirs: TableSchema,
    before: pa.Schema,
    of_change: frozenset[str] = frozenset(),
) -> Carried | str:
    """What a generation of this shape takes over; `target` is the lake's schema and `arrow` its columns there, `theirs`
    and `before` are those of the earlier generation. Or else why it takes over nothing. `of_change` are columns that
    say how a row came, and not what it has.
    """
    known = earlier.schema.shape or Shape()
    if known.mode != shape.mode:
        return f"mode: {known.mode} has become mode: {shape.mode}"
    if (known.mask, known.mask_key) != (shape.mask, shape.mask_key):
        return "its masked columns, or their key, have changed"
    own = {name.lower(): name for name in arrow.names}
    taken = set(before.names).intersection(own.values())
    left = [(old, own.get(old.lower())) for old in before.names if old not in taken]
    names = {old: new for old, new in left if new is not None and new not in taken}
    key = tuple(names.get(name, name) for name in theirs.key)
    if sorted(key) != sorted(target.key):
        return f"its key was {', '.join(theirs.key) or 'none'} and is {', '.join(target.key) or 'none'}"
    before = pa.schema([field.with_name(names.get(field.name, field.name)) for field in before])
    for new in arrow:
        old = before.field(new.name) if new.name in before.names else None
        if old is not None and not _widens(old.type, new.type):
            return f"its column {new.name} was {old.type} and is {new.type}"
    both = _Both(arrow=arrow, before=before, names=names, key=target.key, earlier_key=key, of_change=of_change)
    made: dict[str, type[_Log | _Marks | _Versions]] = {"append": _Log, "soft-delete": _Marks, "history": _Versions}
    return made[shape.mode](both=both, earlier=earlier)


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether values of a type of the lake are also of another one, the same or a wider one."""
    if pa.types.is_list(old) and pa.types.is_list(new):
        return bool(old.value_type == new.value_type)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return bool(old == new) or (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """The columns of a generation and of the one before it, the names of the key's, and of those that follow from the
    change by which a row came. Earlier columns have the generation's names here: `names` has them where they were
    written otherwise. `earlier_key` is the key in the earlier order."""

    arrow: pa.Schema
    before: pa.Schema
    names: dict[str, str]
    key: tuple[str, ...]
    earlier_key: tuple[str, ...]
    of_change: frozenset[str]

    def renamed(self, rows: pa.Table) -> pa.Table:
        """Earlier rows with the generation's names."""
        return rows.rename_columns([self.names.get(name, name) for name in rows.column_names])

    def mapped(self, rows: pa.Table) -> pa.Table:
        """Earlier rows in the columns of the generation."""
        rows = self.renamed(rows)
        columns = [
            rows[field.name].cast(field.type)
            if field.name in self.before.names
            else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
            for field in self.arrow
        ]
        return pa.Table.from_arrays(columns, schema=self.arrow)

    def changed(self, rows: pa.Table, **values: Any) -> pa.Table:
        """Rows with other values, arrays or one for all, in some columns."""
        for name, value in values.items():
            at = self.arrow.get_field_index(name)
            kind = self.arrow.field(at).type
            column = value.cast(kind) if isinstance(value, pa.ChunkedArray) else _repeated(value, kind, rows.num_rows)
            rows = rows.set_column(at, self.arrow.field(at), column)
        return rows


@dataclass(slots=True, kw_only=True)
class _Log:
    """`append`. `seq`: the greatest number of all earlier changes; -1 if there was none."""

    both: _Both
    earlier: Earlier
    looks_at: tuple[str, ...] = ("_seq",)
    seq: int = -1

    def look(self, rows: pa.Table) -> None:
        """See `Carried`."""
        most = pc.max(rows["_seq"]).as_py()
        self.seq = self.seq if most is None else max(self.seq, most)

    def of_snapshot(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """See `Carried`."""
        return pc.equal(rows["_op"], Op.READ.value)

    def begun(self, rows: pa.Table, pairs: Pairs) -> pa.Table:
        """See `Carried`: they stand behind the earlier rows."""
        file, offset = _place(self.earlier)
        return self.both.changed(rows, _seq=self.seq, _binlog_file=file, _binlog_pos=offset)

    def kept(self, rows: pa.Table, has: Callable[[pa.Table], Any]) -> pa.Table:
        """See `Carried`: all."""
        return self.both.mapped(rows)


@dataclass(slots=True, kw_only=True)
class _Marks:
    """`soft-delete`."""

    both: _Both
    earlier: Earlier
    looks_at: tuple[str, ...] = ()

    def look(self, rows: pa.Table) -> None:
        """See `Carried`."""

    def of_snapshot(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """See `Carried`: they have no mark, whatever was before."""
        return None

    def begun(self, rows: pa.Table, pairs: Pairs) -> pa.Table:
        """See `Carried`."""
        return rows

    def kept(self, rows: pa.Table, has: Callable[[pa.Table], Any]) -> pa.Table:
        """See `Carried`: those whose key is absent; one without a mark gets it."""
        made = self.both.mapped(rows)
        keys = [comparable(made[name]) for name in self.both.key]
        absent = np.ones(made.num_rows, bool)
        absent[has(pa.table(keys, names=_names(keys)))] = False
        made = made.filter(pa.array(absent))
        at = pc.if_else(made["_is_deleted"], made["_deleted_at"], _scalar(self.earlier.noticed, made["_deleted_at"]))
        return self.both.changed(made, _is_deleted=True, _deleted_at=at)


@dataclass(slots=True, kw_only=True)
class _Versions:
    """`history`."""

    both: _Both
    earlier: Earlier
    looks_at: tuple[str, ...] = ()

    @property
    def seq(self) -> int:
        """The number of this reading."""
        return AGAIN + self.earlier.generation

    def look(self, rows: pa.Table) -> None:
        """See `Carried`."""

    def of_snapshot(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """See `Carried`."""
        return pc.is_null(rows["_from_seq"])

    def begun(self, rows: pa.Table, pairs: Pairs) -> pa.Table:
        """See `Carried`: with the beginning of the current version that goes on, or at the place."""
        file, offset = _place(self.earlier)
        place = {"_valid_from": self.earlier.until, "_from_seq": self.seq, "_from_file": file, "_from_pos": offset}
        keys, numbers = self._keys(rows)
        needed = [*place, *sorted(self.both.of_change.intersection(self.both.before.names))]
        found, at = [self.both.before.empty_table().select(needed)], np.full(rows.num_rows, -1)
        for each, found_keys, go_on in pairs(keys):
            earlier, places = self.both.renamed(each), numbers[found_keys]
            same = self._same(earlier, rows.take(pa.array(places)))
            at[places[same]] = sum(map(len, found)) + np.flatnonzero(same)
            found.append(earlier.select(needed))
            go_on(same)
        before = pa.concat_tables(found).take(pa.array(at, mask=at < 0))
        goes_on = pa.array(at >= 0)
        begins = {name: pc.if_else(goes_on, before[name], _scalar(new, before[name])) for name, new in place.items()}
        came = {
            name: pc.if_else(goes_on, before[name].cast(rows[name].type), rows[name]) for name in needed[len(place) :]
        }
        return self.both.changed(rows, **begins, **came)

    def _keys(self, rows: pa.Table) -> tuple[pa.Table, Any]:
        """The keys of the earlier current versions of rows, but of those whose key was too large for the earlier type;
        and for each the number of its row."""
        keys, held = [], np.ones(rows.num_rows, bool)
        for name in self.both.earlier_key:
            values, kind = rows[name], self.both.before.field(name).type
            if name == "_to_seq":
                values = pa.chunked_array([pa.repeat(pa.scalar(OPEN), rows.num_rows)])
            narrow = values.cast(kind, safe=False)
            held &= pc.equal(narrow.cast(values.type), values).to_numpy()
            keys.append(comparable(narrow))
        return pa.table(keys, names=_names(keys)).filter(pa.array(held)), np.flatnonzero(held)

    def _same(self, earlier: pa.Table, rows: pa.Table) -> Any:
        """Which rows agree in all columns of the table that both generations have."""
        own = {*VERSIONED, *self.both.of_change}
        names = [name for name in self.both.arrow.names if name in self.both.before.names and name not in own]
        same = np.ones(rows.num_rows, bool)
        for name in names:
            same &= _equal(earlier[name].cast(rows[name].type), rows[name])
        return same

    def kept(self, rows: pa.Table, has: Callable[[pa.Table], Any]) -> pa.Table:
        """See `Carried`: all, and those that have not ended do so."""
        made, current = self.both.mapped(rows), pc.equal(rows["_to_seq"], OPEN)
        file, offset = _place(self.earlier)
        place = {"_valid_to": self.earlier.until, "_to_seq": self.seq, "_to_file": file, "_to_pos": offset}
        ends = {name: pc.if_else(current, _scalar(value, made[name]), made[name]) for name, value in place.items()}
        return self.both.changed(made, _current=False, **ends)


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(value, kind), count)])


def _names(keys: Sequence[Any]) -> list[str]:
    return [f"k{at}" for at in range(len(keys))]


def _place(earlier: Earlier) -> tuple[str, int]:
    """The place where the earlier content ends: a file without a name, before all others, if it is not known."""
    return ("", 0) if earlier.position is None else (earlier.position.file, earlier.position.offset)


def _scalar(value: Any, like: pa.ChunkedArray) -> pa.Scalar:
    return pa.scalar(value, like.type)


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Any:
    """Which values are equal, or both null, as a numpy array."""
    if pa.types.is_list(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.fromiter((mine == theirs for mine, theirs in pairs), bool, len(left))
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), False), both).to_numpy()
