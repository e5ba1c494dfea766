"""The schema that a table had when its rows were written, from its TABLE_MAP (pure).

A stream without a snapshot begins before the catalogue was read, and a table may have had other columns there.
`earlier_schema` makes the schema of its first row event; DDL changes it from there on (binlog/ddl.py).

With binlog_row_metadata=FULL (a precondition) a TABLE_MAP has each column's name, type, length, sign, character set,
members and NULL, and the primary key. A column that is the same in the catalogue keeps its field id and everything
known of it; any other gets the next free id, so that no id ever means two columns.

| a TABLE_MAP does not tell | so it is taken from |
|---|---|
| UUID, INET6, INET4 or BINARY (MariaDB) | the catalogue if it has one of them, until a MODIFY; else refused |
| TINYINT(1) or TINYINT | the catalogue if it has the column; else refused where TINYINT(1) becomes boolean |
| unique keys | the catalogue's identity if it has these columns; else refused without a primary key |
| a GEOMETRY's kind, a VECTOR's dimension, display widths, generated columns | the catalogue, if it has the column |
| the table's character set | the catalogue; a column with another one does not fit its row events, which is a fault |

MariaDB's JSON is longtext in the catalogue too.
"""

from __future__ import annotations

from dataclasses import replace

from pymysql.constants import FIELD_TYPE

from cutline.common.causes import Cause, Code
from cutline.common.errors import SourceLost
from cutline.common.schema import Column, MysqlType, TableSchema, column_type, parse_type
from cutline.services.sources.mysql.binlog.event_bodies import primary_key
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.charsets import charset_of, to_text
from cutline.services.sources.mysql.decode.row_plan import TableMap

# field types that PyMySQL does not name, from MySQL's and MariaDB's `enum_field_types`
_BEGIN_LATER = "begin with a snapshot, or at a place after that change"
_TIMESTAMP2, _DATETIME2, _TIME2, _VECTOR = 17, 18, 19, 242
_BLOB_COMPRESSED, _VARCHAR_COMPRESSED = 140, 141  # MariaDB's

_BINARY_COLLATION = 63
_NUMBERS = {
    FIELD_TYPE.TINY: "tinyint",
    FIELD_TYPE.SHORT: "smallint",
    FIELD_TYPE.INT24: "mediumint",
    FIELD_TYPE.LONG: "int",
    FIELD_TYPE.LONGLONG: "bigint",
    FIELD_TYPE.FLOAT: "float",
    FIELD_TYPE.DOUBLE: "double",
}
_TIMES = {_TIMESTAMP2: "timestamp", _DATETIME2: "datetime", _TIME2: "time"}
_SIMPLE = {
    FIELD_TYPE.DATE: "date",
    FIELD_TYPE.NEWDATE: "date",
    FIELD_TYPE.YEAR: "year",
    _VECTOR: "vector",
    FIELD_TYPE.JSON: "json",
    FIELD_TYPE.GEOMETRY: "geometry",
}
_MEMBERS = {FIELD_TYPE.ENUM: "enum", FIELD_TYPE.SET: "set"}
_BLOBS = (FIELD_TYPE.BLOB, _BLOB_COMPRESSED)
_VARCHARS = (FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, _VARCHAR_COMPRESSED)
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}  # of a BLOB or TEXT, by the bytes of its length
_WIDE = {"utf8mb3": 3, "ujis": 3, "eucjpms": 3} | dict.fromkeys(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"), 4)
_WIDE |= dict.fromkeys(("ucs2", "gbk", "gb2312", "big5", "sjis", "cp932", "euckr"), 2)
"""Bytes of a character set's longest character, where they are more than one."""
_ADDRESSES = {"uuid": 16, "inet6": 16, "inet4": 4}
_GEOMETRIES = frozenset(
    "point linestring polygon multipoint multilinestring multipolygon geometrycollection geomcollection".split()
)


def earlier_schema(body: bytes, later: TableSchema, *, mariadb: bool) -> TableSchema:
    """The schema of the row events that follow this TABLE_MAP (without header and checksum), for a table with schema
    `later` in the catalogue; equal to `later` if nothing was different.

    SourceLost names the column or key that can't be known; Damaged if the TABLE_MAP can't be read.
    """
    table = TableMap(body)
    if len(table.names) != len(table.types):
        return later  # the TABLE_MAP has no names, which the decoder reports
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
        choices = _indistinct(kind, later.booleans, mariadb)
        if choices is not None:
            sentence = f"the binlog does not tell whether its column {name}, which has changed since, was {choices}"
            raise SourceLost(Cause(Code.PLACE, sentence, _BEGIN_LATER))
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
    """The identity: the primary key; without one the catalogue's identity, if the columns are the catalogue's too."""
    by_name = {column.name.lower(): column for column in columns}
    same = [name.lower() for name in later.key]
    if not primary.keys() <= by_name.keys():
        raise Damaged("the table map names a primary key over columns that the table lacks")
    if primary and not any(primary.values()):
        return tuple(by_name[name].name for name in (same if set(same) == primary.keys() else primary))
    if columns == later.columns or not same:
        return later.key
    raise SourceLost(
        Cause(
            Code.PLACE,
            "its columns have changed since, and the binlog does not tell whether it had a unique key before: it had no"
            " primary key over whole columns",
            _BEGIN_LATER,
        )
    )


def _kind(table: TableMap, i: int, table_id: str) -> tuple[MysqlType, str | None]:
    """A column's type and character set; lengths and precisions as the catalogue prints them."""
    real, meta = table.real[i], table.metadata[i]
    if real in _NUMBERS:
        return MysqlType(base=_NUMBERS[real], unsigned=table.unsigned[i]), None
    if real == FIELD_TYPE.NEWDECIMAL:
        return MysqlType(base="decimal", numbers=(meta[0], meta[1]), unsigned=table.unsigned[i]), None
    if real in _TIMES:
        return MysqlType(base=_TIMES[real], numbers=(meta[0],) if meta[0] else ()), None
    if real in _SIMPLE:
        return MysqlType(base=_SIMPLE[real]), None
    if real == FIELD_TYPE.BIT:
        return MysqlType(base="bit", numbers=(meta[1] * 8 + meta[0],)), None
    collation = table.collations.get(i)
    charset = charset_of(collation) if collation is not None else None
    if charset is not None and real in _MEMBERS and i in table.members:
        try:
            members = tuple(to_text(member, charset) for member in table.members[i])
        except UnicodeError as error:
            raise Damaged(f"the members of column {table.names[i]} are not {charset}") from error
        return MysqlType(base=_MEMBERS[real], members=members), charset
    is_text = collation != _BINARY_COLLATION
    if charset is not None and real in _BLOBS:
        if meta[0] not in _SIZES:
            raise Damaged(f"column {table.names[i]} is a text of size {meta[0]}")
        return MysqlType(base=_SIZES[meta[0]] + ("text" if is_text else "blob")), charset if is_text else None
    if charset is not None and real in (FIELD_TYPE.STRING, *_VARCHARS):
        fixed = real == FIELD_TYPE.STRING
        size = ((meta[0] & 0x30) ^ 0x30) << 4 | meta[1] if fixed else int.from_bytes(meta, "little")
        size -= real == _VARCHAR_COMPRESSED  # begins with a byte of its own
        base = ("char" if is_text else "binary") if fixed else ("varchar" if is_text else "varbinary")
        return MysqlType(base=base, numbers=(size // _WIDE.get(charset, 1),)), charset if is_text else None
    sentence = f"its column {table.names[i]} has the type {real} in the binlog, which can no longer be read"
    raise SourceLost(Cause(Code.PLACE, sentence, "begin with a snapshot"))


def _alike(column: Column, kind: MysqlType, charset: str | None, *, mariadb: bool) -> bool:
    """Whether the catalogue's column has this type of a TABLE_MAP's column, as far as a TABLE_MAP tells types."""
    known = parse_type(column.mysql_type)
    base, numbers = known.base, known.numbers
    if base in _NUMBERS.values() or base in ("year", "vector") or numbers == (0,):
        numbers = ()
    elif base in _GEOMETRIES:
        base = "geometry"
    elif mariadb and base in _ADDRESSES:
        base, numbers = "binary", (_ADDRESSES[base],)
    elif base == "decimal":
        numbers = (*(numbers or (10,)), 0)[:2]
    elif base in ("bit", "char", "binary"):
        numbers = numbers or (1,)
    known_charset = "utf8mb3" if column.charset == "utf8" else column.charset
    return replace(known, base=base, numbers=numbers) == kind and known_charset == charset


def _indistinct(kind: MysqlType, booleans: bool, mariadb: bool) -> str | None:
    """The types, for a message, that look alike in a TABLE_MAP and have different values; None if there is no other."""
    if mariadb and kind.base == "binary" and kind.numbers in ((4,), (16,)):
        return "BINARY(4) or INET4" if kind.numbers == (4,) else "BINARY(16), UUID or INET6"
    if booleans and kind.base == "tinyint" and not kind.unsigned:
        return "TINYINT or TINYINT(1)"
    return None
