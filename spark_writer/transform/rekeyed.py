"""Another key than the source's (`key`): rows that the lake finds by columns of its own, also computed ones.

At the source nothing keeps two rows from having one key of the lake, so each row *owns* its key there: the lake has the
columns of the source's key too, which say who does. A step is taken as a whole, its chunks and its changes. For within
it keys may pass from row to row, as when two rows swap theirs; and chunks are of different moments, so that two of them
may have one key. What counts is who owns a key after all of it:

- one row: its last image is the lake's row, if anything in the step concerns it;
- none: the lake's row is deleted;
- two: neither is right, and the table is held back with both rows named (RuleFault).

A row that owned a key before the step says so by its first change in it, the image before an update or a deletion. If
none does, the lake is asked who has the key. A chunk's row that is alone with its key stays in the chunk; another one
becomes a change, which replaces what the lake had.

Relies on: changes that are past the row which a chunk has of their key (`snapshot.chunks: exact`), each update with the
row before it (`Shape.needs_before`). Memory grows with the keys of a step, not with its rows, nor with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.keys import comparable
from cutline.common.ops import Op, is_any
from cutline.common.schema import META_FIELDS, OP, SEQ, TableSchema
from cutline.spark_writer.sinks.contract import Known
from cutline.spark_writer.transform.rule import Evaluation, Rule, RuleFault, scattered


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """What a step leaves: the `SEQ` of the rows and changes that stay, growing, and their operations."""

    seq: Any
    ops: Any

    def among(self, changes: pa.Table) -> pa.Table:
        """Those of these changes that stay."""
        seq = changes[SEQ].to_numpy()
        if not len(self.seq):
            return changes.slice(0, 0)
        at = np.minimum(np.searchsorted(self.seq, seq), len(self.seq) - 1)
        stays = self.seq[at] == seq
        kept = changes.filter(pa.array(stays))
        return kept.set_column(kept.schema.get_field_index(OP), OP, pa.array(self.ops[at[stays]], pa.string()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed:
    """A rule, and the key of its lake table; `owner` are the source's key columns there. `keyed` is the rule of these
    columns alone: no other is computed for a row that does not stay. `own` and `rest` compute what the key and the
    other columns have (None: nothing).
    """

    rule: Rule
    target: TableSchema
    owner: tuple[str, ...]
    keyed: Rule
    own: Evaluation | None
    rest: Evaluation | None

    @property
    def reads(self) -> set[str]:
        """The columns of the source that are needed."""
        return self.rule.reads

    def events(self, changes: pa.Table) -> pa.Table:
        """The keys of changes, `k0`, …, and their owners, `o0`, …, with `SEQ` and whether the row has the key
        afterwards (`OP`)."""
        made = self.keyed.images(changes)
        made = made.filter(pc.invert(is_any(made[OP], Op.TRUNCATE)))
        owns = pc.invert(is_any(made[OP], Op.BEFORE, Op.DELETE))
        return self._keys(made).append_column(SEQ, made[SEQ]).append_column(OP, owns)

    def changes(self, changes: pa.Table) -> pa.Table:
        """Changes that stay (`Last.among`), as the sink takes them."""
        stays = pc.invert(is_any(changes[OP], Op.DELETE))
        found = {} if self.own is None else _columns(self.own.results(changes))
        if self.rest is not None:
            found |= _columns(scattered(self.rest.results(changes.filter(stays)), stays))
        found |= {name: changes[theirs] for name, theirs in self.rule.plain.items()}
        fields = [*self.target.arrow, *META_FIELDS]
        found |= {field.name: changes[field.name] for field in META_FIELDS}
        columns = [found[field.name].cast(field.type) for field in fields]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def staying(self, changes: Iterator[pa.Table], moved: list[pa.Table]) -> Iterator[pa.Table]:
        """The rows of a chunk that stay in it; those that become changes are added to `moved`."""
        for some in changes:
            made, stays = self.changes(some), is_any(some[OP], Op.READ)
            changed = made.filter(pc.invert(stays))
            if changed.num_rows:
                moved.append(changed)
            yield made.filter(stays).select(self.target.arrow.names)

    def last(self, parts: Sequence[pa.Table], known: Known, truncated_at: int | None) -> Last:
        """What a step leaves, of the `events` of all its files. RuleFault if two rows have one key."""
        if truncated_at is not None:
            parts = [part.filter(pc.greater(part[SEQ], truncated_at)) for part in parts]
        parts = [part for part in parts if part.num_rows]
        events = self._without_nulls(pa.concat_tables(parts)) if parts else None
        if events is None or not events.num_rows:
            return Last(seq=np.array([], np.int64), ops=np.array([], object))
        events = events.sort_by([(name, "ascending") for name in (*self._k, *self._o, SEQ)]).combine_chunks()
        owns, seq = events[OP].to_numpy(), events[SEQ].to_numpy()
        same_key = _same(events, self._k)
        same_pair = same_key & _same(events, self._o)
        key = np.append(0, np.cumsum(~same_key))
        begins, ends = np.append(True, ~same_pair), np.append(~same_pair, True)
        owned, owners = np.zeros(key[-1] + 1, bool), np.zeros(key[-1] + 1, np.int64)
        owned[key[begins & ~owns]] = True  # a row that gave it up, or was updated, had it
        np.add.at(owners, key[ends & owns], 1)
        if (owners > 1).any():
            two = np.flatnonzero(ends & owns & (owners > 1)[key])[:2]
            raise self._two(events, int(two[0]), events, int(two[1]))
        last = np.full(len(owned), -1)
        last[key] = np.arange(len(key))  # of a key without an owner, any change tells which it is
        last[key[ends & owns]] = np.flatnonzero(ends & owns)
        asked = np.flatnonzero(~owned)
        if len(asked) and truncated_at is None:
            self._ask(events, last, asked, known, owners)
        stays = owned | (owners > 0)
        at = last[stays]
        alone = (np.bincount(key) == 1)[stays] & (seq[at] < 0)
        ops = np.where(alone, Op.READ.value, np.where(owners[stays] > 0, Op.UPDATE.value, Op.DELETE.value))
        order = np.argsort(seq[at])
        return Last(seq=seq[at][order], ops=ops.astype(object)[order])

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

    def _keys(self, rows: pa.Table) -> pa.Table:
        named = zip(self.target.key, self.target.key_columns, strict=True)
        keys = [comparable(rows[name].cast(self.target.field(column).type)) for name, column in named]
        return pa.table([*keys, *(comparable(rows[name]) for name in self.owner)], names=[*self._k, *self._o])

    def _without_nulls(self, events: pa.Table) -> pa.Table:
        """The events whose key has no null; RuleFault if a row has one in the end."""
        null = reduce(pc.or_, (pc.is_null(events[name]) for name in self._k))
        if not pc.any(null).as_py():
            return events
        some = events.filter(null).sort_by([(name, "ascending") for name in (*self._o, SEQ)]).combine_chunks()
        ends = np.append(~_same(some, self._o), True) & some[OP].to_numpy()
        if ends.any():
            at = int(np.flatnonzero(ends)[0])
            name = next(name for name, k in zip(self.target.key, self._k, strict=True) if some[k][at].as_py() is None)
            raise RuleFault(
                f"the key ({', '.join(self.target.key)}) of {self.target.table_id} has a null in {name}, for the row"
                f" with {self._row([some[o] for o in self._o], at)}",
                "choose a key without nulls, or leave such rows out by where",
            )
        return events.filter(pc.invert(null))

    def _of_lake(self, rows: pa.Table) -> pa.Table:
        return self._keys(rows.rename_columns(self.target.arrow.names))

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
            at="key",
        )
    names = {column.name: column for column in rule.target.columns}
    for name in key:
        if name not in names:
            sentence = f"key of {table_id} names {name}, which is no column of the lake table"
            raise RuleFault(sentence, "correct it", at="key")
        kind = rule.target.field(names[name]).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            sentence = f"key of {table_id} names {name}, which is of the type {kind}"
            raise RuleFault(sentence, "choose another column", at="key")
    own = rule.some(key)
    needed = [*(rule.plain[name] for name in key if name in rule.plain), *(own.needed if own is not None else ())]
    if generated := [name for name in needed if source.column(name).generated]:
        raise RuleFault(
            f"key of {table_id} needs the generated column {generated[0]}, which MariaDB leaves out of the row before"
            " an update, so that it would not be known whose key it was",
            "write the column's expression instead",
            at="key",
        )
    columns = tuple(replace(each, nullable=each.nullable and each.name not in key) for each in rule.target.columns)
    target = replace(rule.target, columns=columns, key=tuple(key))
    target.__dict__["hash"] = rule.target.hash
    wanted = {*key, *owner}
    keyed = replace(
        rule,
        target=replace(rule.target, columns=tuple(each for each in rule.target.columns if each.name in wanted)),
        plain={name: theirs for name, theirs in rule.plain.items() if name in wanted},
        computed=own,
        keeps=False,
    )
    rest = rule.some([name for name in names if name not in key])
    return Rekeyed(rule=rule, target=target, owner=owner, keyed=keyed, own=own, rest=rest)


def with_meta(groups: Iterator[pa.Table], kind: str, first: int) -> Iterator[pa.Table]:
    """Row groups of a staged file of this kind with the fields of changes: the rows of a chunk are numbered from
    `first` on."""
    for group in groups:
        if kind != "chunk":
            yield group
            continue
        count = group.num_rows
        meta = {field.name: pa.nulls(count, field.type) for field in META_FIELDS}
        meta |= {SEQ: pa.array(np.arange(first, first + count)), OP: pa.array([Op.READ.value] * count, pa.string())}
        first += count
        names = [*group.column_names, *(field.name for field in META_FIELDS)]
        yield pa.Table.from_arrays([*group.columns, *(meta[field.name] for field in META_FIELDS)], names=names)


def _columns(found: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(found.column_names, found.columns, strict=True))


def _same(rows: pa.Table, names: Sequence[str]) -> Any:
    """Which rows, the last one left out, have the same values in these columns as the next one."""
    found = np.ones(max(0, rows.num_rows - 1), bool)
    for name in names:
        column = rows[name].combine_chunks() if isinstance(rows[name], pa.ChunkedArray) else rows[name]
        found &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return found
