"""Keys in SQL: values as literals, conditions, and the SELECT of a chunk. Only MySQL compares keys.

Keys travel as MySQL printed them: a tuple with one value per key column, `str` for numbers, times and text, `{"hex":
..}` for binary. ENUM, SET and BIT keys are numbers: they sort by number and compare as text. They go back to MySQL as
literals: text as `_utf8mb4 x'..'`, whose collation yields to the column's, so that MySQL alone compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from cutline.common.causes import Cause, Code
from cutline.common.errors import NextGeneration, ProtocolError, SourceLost
from cutline.common.schema import Column, TableSchema, parse_type
from cutline.common.table_id import split_table_id
from cutline.services.sources.mysql.connection import Connection, ask, quoted, quoted_table

KeyValue = str | dict[str, str]
Key = tuple[KeyValue, ...]

_ASKED_AT_ONCE = 500
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?|-?\.[0-9]+")
_TIME = re.compile(r"[-0-9:. ]+")
_ADDRESS = re.compile(r"[-0-9A-Fa-f:.]+")
_ADDRESSES = frozenset(("uuid", "inet6", "inet4"))
_TEXTS = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))
_BY_NUMBER = frozenset(("enum", "set", "bit"))
_LISTED = 1024
"""Values of an ENUM or SET up to which a condition lists them; with more a chunk's SELECT scans the index."""
_TIMES = frozenset(("date", "datetime", "timestamp", "time"))
_BYTES = frozenset(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
_ONE_TO_ONE = frozenset(("utf8mb4", "utf8mb3", "utf8", "ucs2", "utf16", "utf16le", "utf32", "latin1", "latin2"))
_ONE_TO_ONE |= {"latin5", "latin7", "cp850", "cp852", "cp866", "keybcs2", "koi8r", "koi8u", "macce", "macroman"}
"""Character sets whose conversion to Unicode loses nothing: every text converts, and no two to the same."""


def _comparable(column: Column) -> str:
    """The expression that sorts as the key's index does (k+0 would not do: for a SET it is a rounded DOUBLE)."""
    name, base = quoted(column.name), parse_type(column.mysql_type).base
    return f"CAST({name} AS UNSIGNED)" if base in _BY_NUMBER else name


def _distinct(column: Column) -> str:
    """A key's column, but NULL for a value that can't be told from others in UTF-8 (see `indistinct`)."""
    name, kind = quoted(column.name), parse_type(column.mysql_type)
    if kind.base in _TEXTS and column.charset not in _ONE_TO_ONE:
        back = f"CONVERT(CONVERT({name} USING utf8mb4) USING {column.charset})"
        return f"IF(CAST({back} AS BINARY) = CAST({name} AS BINARY), {name}, NULL)"
    if kind.base == "enum" and "" in kind.members:
        return f"IF({_comparable(column)} = 0, NULL, {name})"
    if kind.base == "set" and "" in kind.members:
        return f"IF({_comparable(column)} & {1 << kind.members.index('')}, NULL, {name})"
    return name


def indistinct(schema: TableSchema, name: str) -> Cause:
    """The cause of a quarantine: a key column that has no NULL in the source came out null.

    The value was a zero or partial date, or one of several that would be the same in the lake: text with bytes that
    stand for no character, or for the same character as other bytes; the invalid value of an ENUM that also has a
    member ''; a SET with a member ''.
    """
    kind = parse_type(schema.column(name).mysql_type)
    if kind.base in _TIMES:
        sentence = f"{schema.table_id} has a zero or partial date in its key column {name}"
    elif kind.base in _BY_NUMBER:
        value = "the invalid value, which reads like its member ''," if kind.base == "enum" else "the member ''"
        sentence = f"{schema.table_id} has {value} in its key column {name}"
    else:
        sentence = (
            f"{schema.table_id} has text in its key column {name} that can't be told from other text in UTF-8: its"
            f" bytes in {schema.column(name).charset} stand for no character, or share one with others"
        )
    return Cause(Code.VALUE, sentence, "correct those rows")


def _printed(column: Column) -> str:
    """The expression that prints a key's value in the form that `literal` takes."""
    base = parse_type(column.mysql_type).base
    if base == "float":
        return f"CAST({quoted(column.name)} AS DOUBLE)"
    if base in _TEXTS:
        return _distinct(column)
    return f"HEX({quoted(column.name)})" if base in _BYTES else _comparable(column)


def _key(schema: TableSchema, row: Sequence[str]) -> Key:
    return tuple(
        {"hex": value} if parse_type(column.mysql_type).base in _BYTES else value
        for column, value in zip(schema.key_columns, row, strict=True)
    )


def literal(column: Column, value: KeyValue) -> str:
    """A key's value as SQL. ProtocolError if it does not fit the column's type (so nothing can be injected)."""
    base = parse_type(column.mysql_type).base
    if base in _BYTES:
        if isinstance(value, dict) and re.fullmatch(r"([0-9A-Fa-f]{2})*", value.get("hex", "?")):
            return f"x'{value['hex']}'"
    elif isinstance(value, str):
        if base in _TIMES and _TIME.fullmatch(value):
            return f"'{value}'"
        if base in ("float", "double") and _NUMBER.fullmatch(value):
            return value if "e" in value.lower() else value + "e0"
        if base in _TEXTS:
            return f"_utf8mb4 x'{value.encode().hex()}'"
        if base in _ADDRESSES and _ADDRESS.fullmatch(value):
            return f"'{value}'"
        if base not in _TIMES and base not in _ADDRESSES and _NUMBER.fullmatch(value):
            return value
    raise ProtocolError(f"{value!r} is no value of the key column {column.name} {column.mysql_type}")


def _from(schema: TableSchema, start: Key) -> str:
    return _bounded(schema, start, ">", ">=")


def _before(schema: TableSchema, end: Key) -> str:
    return _bounded(schema, end, "<", "<")


def _bounded(schema: TableSchema, bound: Key, strict: str, last: str) -> str:
    """key >= bound or key < bound, as the expanded OR, which uses the index (a row comparison does not)."""
    columns = schema.key_columns
    return _expanded(len(columns), lambda at, operator: _compares(columns[at], operator, bound[at]), strict, last)


def _compares(column: Column, operator: str, value: KeyValue) -> str:
    """A comparison of one column that can use the index: by number where the index sorts by number."""
    name, text, kind = quoted(column.name), literal(column, value), parse_type(column.mysql_type)
    if kind.base not in ("enum", "set"):
        return f"{name} {operator} {text}"
    highest = len(kind.members) if kind.base == "enum" else 2 ** len(kind.members) - 1
    if highest > _LISTED:
        return f"{_comparable(column)} {operator} {text}"
    if operator == "=":
        return f"{name} = {text}"
    # For these types only = and IN can use the index. The list goes one past the highest number, so that IN never has a
    # single value: the server would then treat the column as constant, and sort.
    numbers = range(int(text)) if operator == "<" else range(int(text) + (operator == ">"), highest + 2)
    return f"{name} IN ({', '.join(map(str, numbers)) or 'NULL'})"


def _expanded(size: int, compares: Callable[[int, str], str], strict: str, last: str) -> str:
    """The OR over a key's `size` columns; `compares` gives the comparison of one column by an operator."""
    cases = []
    for at in range(size):
        operator = last if at == size - 1 else strict
        cases.append(" AND ".join([*(compares(i, "=") for i in range(at)), compares(at, operator)]))
    return cases[0] if len(cases) == 1 else "(" + " OR ".join(f"({case})" for case in cases) + ")"


def range_condition(schema: TableSchema, start: Key | None, end: Key | None) -> str:
    """`start <= key < end` as a condition on the table; None is an open end, and '1' means no condition."""
    parts = [_from(schema, start)] if start is not None else []
    parts += [_before(schema, end)] if end is not None else []
    return " AND ".join(parts) or "1"


def key_range(conn: Connection, schema: TableSchema) -> tuple[int, int] | None:
    """The smallest and the largest value of an integer key; None if the table is empty."""
    key = quoted(schema.key[0])
    sql = f"SELECT MIN({key}), MAX({key}) FROM {quoted_table(schema.table_id)}"
    low, high = ask(conn, sql, table=schema.table_id)[0]
    return None if low is None else (int(low), int(high))


def next_bound(conn: Connection, schema: TableSchema, start: Key | None, rows: int) -> Key | None:
    """The key that lies `rows` rows after `start` in the order of the index (None: after the first row).

    None if the table ends before. It walks over `rows` entries of the index; nothing is sorted. SourceLost if that many
    rows share one key, which table_options declares unique, or if that key can't be told from others.
    """
    printed = ", ".join(_printed(column) for column in schema.key_columns)
    order = ", ".join(quoted(name) for name in schema.key)
    found = ask(
        conn,
        f"SELECT {printed} FROM {quoted_table(schema.table_id)} WHERE {range_condition(schema, start, None)}"
        f" ORDER BY {order} LIMIT 1 OFFSET {int(rows)}",
        table=schema.table_id,
    )
    for name, value in zip(schema.key, found[0] if found else (), strict=False):
        if value is None:
            raise SourceLost(indistinct(schema, name), schema.table_id)
    bound = _key(schema, found[0]) if found else None
    if bound is not None and bound == start:
        raise SourceLost(not_identified(schema), schema.table_id)
    return bound


def not_identified(schema: TableSchema) -> Cause:
    """The cause of a quarantine: two rows have the same identity."""
    return Cause(
        Code.NO_KEY,
        f"{schema.table_id} has several rows with the same {', '.join(schema.key)}, which table_options names as its"
        " identity",
        "remove them, or name other columns",
    )


def select_rows(schema: TableSchema, start: Key | None, end: Key | None, *, index: str | None = None) -> str:
    """The SELECT of one chunk: every captured column of the schema, in its order, each as the decoders read it.

    Rows come in the order of the key; `index` names the index to read them by, so that nothing is sorted. A key value
    that can't be told from others comes out as NULL.
    """
    keys = frozenset(schema.key)
    columns = ", ".join(_distinct(column) if column.name in keys else quoted(column.name) for column in schema.captured)
    hint = f" FORCE INDEX ({quoted(index)})" if index is not None else ""
    order = " ORDER BY " + ", ".join(quoted(name) for name in schema.key) if schema.key else ""
    condition = range_condition(schema, start, end)
    return f"SELECT {columns} FROM {quoted_table(schema.table_id)}{hint} WHERE {condition}{order}"


def locate(conn: Connection, schema: TableSchema, bounds: Sequence[Key], keys: Sequence[Key]) -> list[int]:
    """For each key, how many of the ascending `bounds` are at or before it, as the columns' collations compare them.

    A binary search with MySQL as the comparison: log2(bounds) queries, each about all keys.
    """
    collation = _collations(conn, schema)
    below, above = [0] * len(keys), [len(bounds)] * len(keys)
    while unresolved := [at for at in range(len(keys)) if below[at] < above[at]]:
        for batch in (unresolved[i : i + _ASKED_AT_ONCE] for i in range(0, len(unresolved), _ASKED_AT_ONCE)):
            middles = [(below[at] + above[at]) // 2 for at in batch]
            comparisons = ", ".join(
                _compared(schema, collation, keys[at], bounds[middle])
                for at, middle in zip(batch, middles, strict=True)
            )
            (answers,) = ask(conn, f"SELECT {comparisons}", table=schema.table_id)
            for at, middle, answer in zip(batch, middles, answers, strict=True):
                if answer == "1":
                    below[at] = middle + 1
                else:
                    above[at] = middle
    return below


def _compared(schema: TableSchema, collation: Mapping[str, str], key: Key, bound: Key) -> str:
    """The condition key >= bound, with both sides as literals."""
    sides = [
        [_collated(column, value, collation) for column, value in zip(schema.key_columns, values, strict=True)]
        for values in (key, bound)
    ]
    return _expanded(len(key), lambda at, operator: f"{sides[0][at]} {operator} {sides[1][at]}", ">", ">=")


def _collated(column: Column, value: KeyValue, collation: Mapping[str, str]) -> str:
    base, text = parse_type(column.mysql_type).base, literal(column, value)
    if base in _TEXTS:
        return f"CONVERT({text} USING {column.charset}) COLLATE {collation[column.name]}"
    kind = {"datetime": "DATETIME(6)", "timestamp": "DATETIME(6)", "time": "TIME(6)"}.get(base, base.upper())
    return f"CAST({text} AS {kind})" if base in _TIMES or base in _ADDRESSES else text


def _collations(conn: Connection, schema: TableSchema) -> Mapping[str, str]:
    """Each column's collation now. NextGeneration if a key column has another character set than in the schema."""
    database, table = split_table_id(schema.table_id)
    found = ask(
        conn,
        "SELECT COLUMN_NAME, COLLATION_NAME, CHARACTER_SET_NAME, TABLE_NAME FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLLATION_NAME IS NOT NULL",
        (database, table),
    )
    current = {name: (collation, charset) for name, collation, charset, owner in found if owner == table}
    for column in schema.key_columns:
        if column.charset is not None and current.get(column.name, ("", ""))[1] != column.charset:
            changed = f"{schema.table_id} has no key column {column.name} in {column.charset} any more"
            raise NextGeneration(Cause(Code.CHANGED, f"{changed}, so it is read again"), schema.table_id)
    return {name: collation for name, (collation, _) in current.items()}
