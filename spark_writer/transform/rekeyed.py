"""Another key than the source's (`key`): rows that the lake finds by columns of its own, also computed ones.

At the source nothing keeps two rows from having one key of the lake, so each row *owns* its key there: the lake has the
columns of the source's key too, which say who does. A step of changes is taken as a whole, since within it keys may
pass from row to row, as when two rows swap theirs. What counts is who owns a key after all changes:

- one row: its last image is the lake's row, if any change of the step concerns it;
- none: the lake's row is deleted;
- two: neither is right, and the table is held back with both rows named (RuleFault).

A row that owned a key before the step says so by its first change in it, the image before an update or a deletion. If
none does, the lake is asked who has the key.

Relies on: changes that are past the row which a chunk has of their key (`snapshot.chunks: exact`), each update with the
row before it (`Shape.needs_before`). Memory grows with the keys of a step, not with its rows, nor with the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.keys import comparable
from cutline.common.ops import Op, is_any
from cutline.common.schema import META_FIELDS, OP, SEQ, TableSchema
from cutline.spark_writer.sinks.contract import Known
from cutline.spark_writer.transform.rule import Rule, RuleFault

PART_ROWS = 2_000_000
"""The rows of a snapshot whose keys are compared with each other at once; all are compared with the lake's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """What a step's changes leave: the `SEQ` of the changes that stay, growing, and their operations."""

    seq: Any
    ops: Any

    def among(self, changes: pa.Table) -> pa.Table:
        """Those of these changes that stay."""
        seq = changes[SEQ].to_numpy()
        at = np.minimum(np.searchsorted(self.seq, seq), max(0, len(self.seq) - 1))
        stays = self.seq[at] == seq if len(self.seq) else np.zeros(len(seq), bool)
        kept = changes.filter(pa.array(stays))
        ops = pa.array(self.ops[at[stays]] if len(self.seq) else [], pa.string())
        return kept.set_column(kept.schema.get_field_index(OP), OP, ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed:
    """A rule, and the key of its lake table; `owner` are the source's key columns there."""

    rule: Rule
    target: TableSchema
    owner: tuple[str, ...]

    @property
    def reads(self) -> set[str]:
        """The columns of the source that are needed."""
        return self.rule.reads

    def chunk(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The lake's rows of those that a SELECT gave, and their `keys`."""
        made = self.rule.chunk(rows)
        keys = self.keys(made)
        return made.cast(self.target.arrow), keys

    def changes(self, changes: pa.Table, last: Last) -> pa.Table:
        """Those changes of lake rows that stay."""
        return last.among(self.rule.images(changes)).cast(pa.schema([*self.target.arrow, *META_FIELDS]))

    def keys(self, rows: pa.Table) -> pa.Table:
        """The keys of the lake's rows, `k0`, …, and their owners, `o0`, …; RuleFault where a key has a null."""
        keys = [comparable(rows[name].cast(self.target.field(column).type)) for name, column in self._named]
        owners = [comparable(rows[name]) for name in self.owner]
        for name, values in zip(self.target.key, keys, strict=True):
            if values.null_count:
                at = pc.index(pc.is_null(values), True).as_py()
                raise RuleFault(
                    f"the key {_printed(self.target.key)} of {self.target.table_id} has a null in {name}, for the row"
                    f" with {self._row(owners, at)}",
                    "choose a key without nulls, or leave such rows out by where",
                )
        return pa.table([*keys, *owners], names=[*self._k, *self._o])

    def events(self, changes: pa.Table) -> pa.Table:
        """The keys and owners of changes, with `SEQ` and whether the row has the key afterwards (`OP`)."""
        made = self.rule.images(changes)
        made = made.filter(pc.invert(is_any(made[OP], Op.TRUNCATE)))
        owns = pc.invert(is_any(made[OP], Op.BEFORE, Op.DELETE))
        return self.keys(made).append_column(SEQ, made[SEQ]).append_column(OP, owns)

    def check_new(self, keys: pa.Table, known: Known) -> None:
        """Raise RuleFault if two rows of a snapshot have one key, or one has a key of the lake's."""
        if not keys.num_rows:
            return
        keys = keys.sort_by([(name, "ascending") for name in self._k]).combine_chunks()
        same = _same(keys, self._k)
        if same.any():
            at = int(np.flatnonzero(same)[0])
            raise self._two(keys, at, keys, at + 1)
        for rows, numbers in known(keys.select(self._k)):
            if rows.num_rows:
                raise self._two(self._of_lake(rows), 0, keys, int(numbers[0]))

    def last(self, events: pa.Table, known: Known, truncated_at: int | None) -> Last:
        """What the changes of a step leave. RuleFault if two rows have one key."""
        if truncated_at is not None:
            events = events.filter(pc.greater(events[SEQ], truncated_at))
        if not events.num_rows:
            return Last(seq=np.array([], np.int64), ops=np.array([], object))
        events = events.sort_by([(name, "ascending") for name in (*self._k, *self._o, SEQ)]).combine_chunks()
        owns, seq = events[OP].to_numpy(zero_copy_only=False), events[SEQ].to_numpy()
        same_key = _same(events, self._k)
        key = np.append(0, np.cumsum(~same_key))
        same_pair = same_key & _same(events, self._o)
        begins, ends = np.append(True, ~same_pair), np.append(~same_pair, True)
        keys = int(key[-1]) + 1
        owned, owners = np.zeros(keys, bool), np.zeros(keys, np.int64)
        owned[key[begins & ~owns]] = True  # a row that gave it up, or was updated, had it
        np.add.at(owners, key[ends & owns], 1)
        if (owners > 1).any():
            two = np.flatnonzero(ends & owns & (owners > 1)[key])[:2]
            raise self._two(events, int(two[0]), events, int(two[1]))
        last = np.full(keys, -1)
        last[key] = np.arange(len(key))  # of a key without an owner, any change tells which it is
        last[key[ends & owns]] = np.flatnonzero(ends & owns)
        stays = owned | (owners > 0)
        asked = np.flatnonzero(~owned)
        if len(asked) and truncated_at is None:
            self._ask(events, last, asked, known, owners)
        at = last[stays]
        order = np.argsort(seq[at])
        ops = np.where(owners[stays] > 0, Op.UPDATE.value, Op.DELETE.value).astype(object)
        return Last(seq=seq[at][order], ops=ops[order])

    def _ask(self, events: pa.Table, last: Any, asked: Any, known: Known, owners: Any) -> None:
        """Raise RuleFault if a row of the lake still has a key that another one came to own."""
        wanted = events.select(self._k).take(pa.array(last[asked]))
        for rows, numbers in known(wanted):
            theirs = self._of_lake(rows)
            for at, number in enumerate(numbers):
                key = int(asked[number])
                if owners[key]:
                    raise self._two(theirs, at, events, int(last[key]))

    @property
    def _k(self) -> list[str]:
        return [f"k{at}" for at in range(len(self.target.key))]

    @property
    def _o(self) -> list[str]:
        return [f"o{at}" for at in range(len(self.owner))]

    @property
    def _named(self) -> list[tuple[str, Any]]:
        return list(zip(self.target.key, self.target.key_columns, strict=True))

    def _of_lake(self, rows: pa.Table) -> pa.Table:
        return self.keys(rows.rename_columns(self.target.arrow.names))

    def _row(self, owners: Sequence[Any], at: int) -> str:
        return ", ".join(f"{name} {values[at].as_py()!r}" for name, values in zip(self.owner, owners, strict=True))

    def _two(self, some: pa.Table, first: int, others: pa.Table, second: int) -> RuleFault:
        key = zip(self.target.key, self._k, strict=True)
        values = ", ".join(f"{name} {some[k][first].as_py()!r}" for name, k in key)
        owners = [self._row([table[o] for o in self._o], at) for table, at in ((some, first), (others, second))]
        return RuleFault(
            f"two rows of {self.target.table_id}, with {owners[0]} and with {owners[1]}, have one key of the lake table"
            f" ({values})",
            "add columns that tell them apart to key in table_options, or correct the rows and have the table read"
            " again",
        )


def rekeyed(rule: Rule, source: TableSchema, key: Sequence[str]) -> Rekeyed:
    """The rule with another key. RuleFault if the lake table can't have it."""
    table_id, owner = source.table_id, rule.target.key
    if not owner:
        raise RuleFault(
            f"{table_id} has no key of its own, by which its rows could be told from each other",
            "add a primary key, or name the columns that identify a row by identity",
        )
    names = {column.name: column for column in rule.target.columns}
    for name in key:
        if name not in names:
            raise RuleFault(f"key of {table_id} names {name}, which is no column of the lake table", "correct it")
        kind = rule.target.field(names[name]).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise RuleFault(f"key of {table_id} names {name}, which is of the type {kind}", "choose another column")
    needed = [rule.plain[name] for name in key if name in rule.plain]
    if rule.computed is not None and len(needed) < len(key):
        needed += rule.computed.needed
    if generated := [name for name in needed if source.column(name).generated]:
        raise RuleFault(
            f"key of {table_id} needs the generated column {generated[0]}, which MariaDB leaves out of the row before"
            " an update, so that it would not be known whose key it was",
            "write the column's expression instead",
        )
    columns = tuple(replace(each, nullable=each.nullable and each.name not in key) for each in rule.target.columns)
    target = replace(rule.target, columns=columns, key=tuple(key))
    target.__dict__["hash"] = rule.target.hash
    return Rekeyed(rule=rule, target=target, owner=owner)


def _same(rows: pa.Table, names: Sequence[str]) -> Any:
    """Which rows, the last one left out, have the same values in these columns as the next one."""
    found = np.ones(max(0, rows.num_rows - 1), bool)
    for name in names:
        column = rows[name].combine_chunks() if isinstance(rows[name], pa.ChunkedArray) else rows[name]
        found &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return found


def _printed(names: Sequence[str]) -> str:
    return f"({', '.join(names)})"
