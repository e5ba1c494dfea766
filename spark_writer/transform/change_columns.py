"""What a rule may say of a change besides the columns of its row: `_op`, `_committed_at` and their like.

A rule's SELECT list may name them where the source has no column of that name. `*` does not stand for them. They are
of the change that a row of the lake comes of; in rows of a snapshot they are null, but for `_op`, `_database` and
`_table`.
A condition may not: whether an earlier row met it could not be told of the row before a change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from cutline.common.ops import Op
from cutline.common.schema import FILE, GTID, META_FIELDS, OP, POS, TS, TableSchema
from cutline.common.shape import Shape
from cutline.common.table_id import split_table_id

_TYPES = {field.name: field.type for field in META_FIELDS}
_FIELDS = {"_op": OP, "_committed_at": TS, "_gtid": GTID, "_binlog_file": FILE, "_binlog_pos": POS}
"""The fields of a change, by the names that a rule has for them."""
METADATA = {name: _TYPES[field] for name, field in _FIELDS.items()} | {"_database": pa.string(), "_table": pa.string()}
"""All such names, with their types."""
_WORD = re.compile(r"\w+", re.ASCII)
_EXCEPT = re.compile(r"(\s*\*\s*except\s*\([^()]*)\)\s*", re.ASCII | re.IGNORECASE)


def named_by(shape: Shape, source: TableSchema) -> tuple[str, ...]:
    """The names of `METADATA` that a rule may mean: those that stand in it, and that no column of the source has."""
    texts = (*shape.select, *([] if shape.where is None else [shape.where]))
    words = {word.lower() for text in texts for word in _WORD.findall(text)}
    return tuple(name for name in METADATA if name in words and not source.has(name))


def without_stars(select: Sequence[str], named: Sequence[str]) -> list[str]:
    """The items of a SELECT list over a table that has these columns too, so that a `*` is as if it had not."""
    if not named:
        return list(select)
    names = ", ".join(named)
    made = []
    for item in select:
        found = _EXCEPT.fullmatch(item)
        made.append(f"* EXCEPT ({names})" if item.strip() == "*" else f"{found[1]}, {names})" if found else item)
    return made


def with_metadata(rows: pa.Table, named: Sequence[str], table_id: str) -> pa.Table:
    """Rows of a snapshot, or changes, with these columns behind the others."""
    database, table = split_table_id(table_id)
    snapshot = {"_op": Op.READ.value, "_database": database, "_table": table}
    for name in named:
        field = _FIELDS.get(name)
        if field is not None and field in rows.column_names:
            column = rows[field]
        else:
            column = pa.chunked_array([pa.repeat(pa.scalar(snapshot.get(name), METADATA[name]), rows.num_rows)])
        rows = rows.append_column(name, column)
    return rows
