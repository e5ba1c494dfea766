"""What a table looked like when its rows were written, as a TABLE_MAP tells it (pure).

A stream without a snapshot begins before the catalogue was looked at, and a table may have had other columns there.
`schema_then` makes the schema of its first row event; DDL carries it on from there (binlog/ddl.py).

With binlog_row_metadata=FULL (a precondition) a TABLE_MAP tells each column's name, type, length, sign, character set,
members and NULL, and the primary key. A column that the catalogue has alike keeps its field id and all that is known of
it; any other gets the next free id, so that no id ever means two columns.

| a TABLE_MAP does not tell | so |
|---|---|
| UUID, INET6, INET4 or BINARY (MariaDB) | the catalogue's, if it is one of them, till a MODIFY says so; else refused |
| TINYINT(1) or TINYINT | the catalogue's, if it has it; else refused where TINYINT(1) goes out as boolean |
| unique keys | the catalogue's identity, if it has these columns; else refused without a primary key |
| the kind of a GEOMETRY, a VECTOR's dimension, display widths, generated columns | the catalogue's, if it has it; no
matter, else |
| the table's character set | the catalogue's; a column that got another one does not fit its row events, and is told |

MariaDB's JSON is longtext in the catalogue too.
"""

from __future__ import annotations

from dataclasses import replace

from cutline.common.errors import SourceLost
from cutline.common.schema import Column, MysqlType, TableSchema, column_type, parse_type
from cutline.services.sources.mysql.binlog.event_bodies import primary_key
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.charsets import charset_of, to_text
from cutline.services.sources.mysql.decode.rows import TableMap

_BINARY = 63
_INTEGERS = {1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint"}
_FLOATS = {4: "float", 5: "double"}
_TIMES = {17: "timestamp", 18: "datetime", 19: "time"}
_SIMPLE = {10: "date", 14: "date", 13: "year", 242: "vector", 245: "json", 255: "geometry"}
_MEMBERS = {247: "enum", 248: "set"}
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_WIDE = {"utf8mb3": 3, "ujis": 3, "eucjpms": 3} | dict.fromkeys(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"), 4)
_WIDE |= dict.fromkeys(("ucs2", "gbk", "gb2312", "big5", "sjis", "cp932", "euckr"), 2)
"""Bytes of the longest character, where it is more than one."""
_ADDRESSES = {"uuid": 16, "inet6": 16, "inet4": 4}
_GEOMETRIES = frozenset(
    "point linestring polygon multipoint multilinestring multipolygon geometrycollection geomcollection".split()
)


def schema_then(body: bytes, later: TableSchema, *, mariadb: bool) -> TableSchema:
    """The schema of the row events that follow this TABLE_MAP (without header and checksum), of a table that has schema
    `later` in the catalogue; equal to `later` if nothing was different.

    SourceLost names what can't be known. Damaged if the TABLE_MAP is.
    """
    table = TableMap(body)
    if len(table.names) != len(table.types):
        return later  # no metadata: the decoder says so
    last = later.last_field_id
    columns: list[Column] = []
    for i, name in enumerate(table.names):
        known = later.column(name) if later.has(name) else None
        if known is None and table.hidden(i):
            continue
        kind, charset = _kind(table, i, later.table_id)
        if known is not None and _alike(known, kind, charset, mariadb=mariadb):
            columns.append(replace(known, name=name, nullable=table.nullable[i]))
            continue
        fault = _untold(kind, later.booleans, mariadb)
        if fault is not None:
            raise SourceLost(
                f"the binlog does not tell whether its column {name}, which has changed since, was {fault}; begin with"
                " a snapshot, or at a place after that change"
            )
        last += 1
        element_id = last + 1 if kind.base == "vector" else None
        columns.append(
            Column(
                name=name,
                field_id=last,
                mysql_type=column_type(kind),
                nullable=table.nullable[i],
                charset=charset,
                element_id=element_id,
            )
        )
        last = element_id or last
    key = _key(tuple(columns), primary_key(body), later)
    return replace(later, columns=tuple(columns), key=key, last_field_id=last)


def _key(columns: tuple[Column, ...], primary: dict[str, int], later: TableSchema) -> tuple[str, ...]:
    """The identity: the primary key, or the catalogue's if nothing else has changed."""
    there = {column.name.lower(): column for column in columns}
    same = [name.lower() for name in later.key]
    if not primary.keys() <= there.keys():
        raise Damaged("the table map names a primary key of columns that no table has")
    if primary and not any(primary.values()):
        return tuple(there[name].name for name in (same if set(same) == primary.keys() else primary))
    if columns == later.columns or not same:
        return later.key
    raise SourceLost(
        "its columns have changed since, and the binlog does not tell whether it had a key before: it had no primary"
        " key over whole columns; begin with a snapshot, or at a place after that change"
    )


def _kind(table: TableMap, i: int, table_id: str) -> tuple[MysqlType, str | None]:
    """A column's type and character set; numbers as the catalogue prints them."""
    real, meta = table.real[i], table.metadata[i]
    if real in _INTEGERS or real in _FLOATS:
        return MysqlType(base=(_INTEGERS | _FLOATS)[real], unsigned=table.unsigned[i]), None
    if real == 246:
        return MysqlType(base="decimal", numbers=(meta[0], meta[1]), unsigned=table.unsigned[i]), None
    if real in _TIMES:
        return MysqlType(base=_TIMES[real], numbers=(meta[0],) if meta[0] else ()), None
    if real in _SIMPLE:
        return MysqlType(base=_SIMPLE[real]), None
    if real == 16:
        return MysqlType(base="bit", numbers=(meta[1] * 8 + meta[0],)), None
    collation = table.collations.get(i)
    charset = charset_of(collation) if collation is not None else None
    if charset is not None and real in _MEMBERS and i in table.members:
        try:
            members = tuple(to_text(member, charset) for member in table.members[i])
        except UnicodeError as error:
            raise Damaged(f"the members of column {table.names[i]} are not {charset}") from error
        return MysqlType(base=_MEMBERS[real], members=members), charset
    if charset is not None and real in (15, 140, 141, 252, 253, 254):
        text = collation != _BINARY
        if real in (252, 140) and meta[0] not in _SIZES:
            raise Damaged(f"column {table.names[i]} is a text of size {meta[0]}")
        if real in (252, 140):
            return MysqlType(base=_SIZES[meta[0]] + ("text" if text else "blob")), charset if text else None
        size = ((meta[0] & 0x30) ^ 0x30) << 4 | meta[1] if real == 254 else int.from_bytes(meta, "little")
        size -= real == 141  # MariaDB's compressed one begins with a byte of its own
        base = ("char" if text else "binary") if real == 254 else ("varchar" if text else "varbinary")
        return MysqlType(base=base, numbers=(size // _WIDE.get(charset, 1),)), charset if text else None
    raise SourceLost(
        f"its column {table.names[i]} has the type {real} in the binlog, which can't be read any more; begin with a"
        " snapshot"
    )


def _alike(column: Column, kind: MysqlType, charset: str | None, *, mariadb: bool) -> bool:
    """Whether the catalogue's column is what a TABLE_MAP tells, as far as it tells."""
    known = parse_type(column.mysql_type)
    base, numbers = known.base, known.numbers
    if base in _INTEGERS.values() or base in _FLOATS.values() or base in ("year", "vector") or numbers == (0,):
        numbers = ()
    elif base in _GEOMETRIES:
        base = "geometry"
    elif mariadb and base in _ADDRESSES:
        base, numbers = "binary", (_ADDRESSES[base],)
    elif base == "decimal":
        numbers = (*(numbers or (10,)), 0)[:2]
    elif base in ("bit", "char", "binary"):
        numbers = numbers or (1,)
    ours = "utf8mb3" if column.charset == "utf8" else column.charset
    return replace(known, base=base, numbers=numbers) == kind and ours == charset


def _untold(kind: MysqlType, booleans: bool, mariadb: bool) -> str | None:
    """What a type may be as well, if that makes other values."""
    if mariadb and kind.base == "binary" and kind.numbers in ((4,), (16,)):
        return "BINARY(4) or INET4" if kind.numbers == (4,) else "BINARY(16), UUID or INET6"
    if booleans and kind.base == "tinyint" and not kind.unsigned:
        return "TINYINT or TINYINT(1)"
    return None
