"""Row plans: how the values of a result set or of a binlog event's row images are read into a table's columns.

Pure. A plan is a few integers for each source column (`S_` in codes.py), made once for a SELECT's schema or for a
TABLE_MAP, and followed by values.py for each value. A TABLE_MAP that does not fit the schema gets faults instead of a
plan: sentences that say why.

Sources: MySQL's Table_map_event (libbinlogevents), MariaDB's log_event.h. Change together with: common/schema.py
(types), values.py (the kinds of reading).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pyarrow as pa
from pymysql.constants.FIELD_TYPE import (
    BIT,
    BLOB,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    JSON,
    LONG,
    LONG_BLOB,
    LONGLONG,
    MEDIUM_BLOB,
    NEWDATE,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TIME,
    TIMESTAMP,
    TINY,
    TINY_BLOB,
    VAR_STRING,
    VARCHAR,
    YEAR,
)

from cutline.common.schema import Column, MysqlType, TableSchema, parse_type
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.charsets import (
    EIGHT_BIT,
    MULTI_BYTE,
    charset_of,
    code_points,
    key_points,
    multi_byte_points,
    to_text,
)
from cutline.services.sources.mysql.decode.codes import (
    K_BIN_DATE,
    K_BIN_DATETIME,
    K_BIN_DECIMAL,
    K_BIN_DECIMAL_WIDE,
    K_BIN_TIME,
    K_BIN_TIMESTAMP,
    K_BIT1,
    K_BOOLEAN,
    K_BYTES,
    K_CODEC,
    K_COMPRESSED,
    K_COPY,
    K_DATE,
    K_DATETIME,
    K_DECIMAL,
    K_DECIMAL_WIDE,
    K_ENUM,
    K_INET4,
    K_INET6,
    K_JSON,
    K_LE_SIGNED,
    K_LE_U64,
    K_LE_UNSIGNED,
    K_PAD,
    K_PAIRS,
    K_SET,
    K_TABLE,
    K_TIME,
    K_UTF16,
    K_UTF32,
    K_UUID,
    K_VECTOR,
    K_YEAR,
    K_YEAR_2,
    L_BIT,
    L_VAR,
    S_KIND,
    S_PREFIX,
    S_SIZE,
)
from cutline.services.sources.mysql.decode.decimals import decimal_size

# Field types that PyMySQL does not name: forms of the binlog alone, and newer types.
TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
"""MariaDB's columns with the attribute COMPRESSED."""
VECTOR = 242

# Optional metadata of a TABLE_MAP (Table_map_event::Optional_metadata_field_type).
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _COLUMN_NAME, _SET_VALUES, _ENUM_VALUES = range(1, 7)
_ENUM_AND_SET_DEFAULT_CHARSET, _ENUM_AND_SET_COLUMN_CHARSET, _VISIBILITY = range(10, 13)

_METADATA_BYTES = {
    FLOAT: 1,
    DOUBLE: 1,
    VARCHAR: 2,
    BIT: 2,
    TIMESTAMP2: 1,
    DATETIME2: 1,
    TIME2: 1,
    BLOB_COMPRESSED: 1,
    VARCHAR_COMPRESSED: 2,
    VECTOR: 1,
    JSON: 1,
    NEWDECIMAL: 2,
    ENUM: 2,
    SET: 2,
    TINY_BLOB: 1,
    MEDIUM_BLOB: 1,
    LONG_BLOB: 1,
    BLOB: 1,
    VAR_STRING: 2,
    STRING: 2,
    GEOMETRY: 1,
}
_NUMERIC = frozenset(
    (
        TINY,
        SHORT,
        LONG,
        FLOAT,
        DOUBLE,
        LONGLONG,
        INT24,
        YEAR,
        NEWDECIMAL,
    )
)
"""The types with a bit in the TABLE_MAP's signedness."""
_CHARACTER = frozenset(
    (
        VARCHAR,
        BLOB_COMPRESSED,
        VARCHAR_COMPRESSED,
        VECTOR,
        TINY_BLOB,
        MEDIUM_BLOB,
        LONG_BLOB,
        BLOB,
        VAR_STRING,
        STRING,
    )
)
"""The types with a collation in the TABLE_MAP."""
_ENUM_OR_SET = frozenset((ENUM, SET))
_VARIABLE = frozenset((VARCHAR, VAR_STRING, VARCHAR_COMPRESSED))
_WITH_LENGTH_BYTES = frozenset(
    (
        BLOB_COMPRESSED,
        VECTOR,
        JSON,
        TINY_BLOB,
        MEDIUM_BLOB,
        LONG_BLOB,
        BLOB,
        GEOMETRY,
    )
)
"""The types whose metadata is the number of bytes of a value's length."""
_FIXED = {
    TINY: 1,
    SHORT: 2,
    LONG: 4,
    FLOAT: 4,
    DOUBLE: 8,
    LONGLONG: 8,
    INT24: 3,
    DATE: 3,
    YEAR: 1,
    NEWDATE: 3,
}
_FRACTION_BASE = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}
"""Bytes of a time besides those of its fraction."""
_FIXED_BYTES = {K_ENUM: 2, K_SET: 8}
_INTEGER_TYPES = {
    "tinyint": TINY,
    "smallint": SHORT,
    "mediumint": INT24,
    "int": LONG,
    "bigint": LONGLONG,
}
_TIME_TYPES = {
    "timestamp": (TIMESTAMP2, K_BIN_TIMESTAMP),
    "datetime": (DATETIME2, K_BIN_DATETIME),
    "time": (TIME2, K_BIN_TIME),
}
_BLOB_BYTES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_OLD_TYPES = {
    DECIMAL: "DECIMAL",
    TIMESTAMP: "TIMESTAMP",
    TIME: "TIME",
    DATETIME: "DATETIME",
}
_WIRE_INTEGERS = {"tinyint": 1, "smallint": 2, "year": 2, "mediumint": 4, "int": 4, "bigint": 8}
"""Bytes of integers in the binary protocol."""
_HASH = re.compile(r"DB_ROW_HASH_\d+")
_BINARY = 63
"""The collation of binary strings."""
_GREATEST_PRECISION = 38
"""Of a DECIMAL in Arrow; wider ones become text."""


class _Misfit(Exception):
    """A column of the event does not fit the schema; the text becomes one of the plan's faults."""


@dataclass(slots=True, kw_only=True)
class RowPlan:
    """The plan of a result set's rows or an event's row images.

    `sources`: `S_STRIDE` integers for each source column. `names`: of the source columns. `numbers`: code points of
    character sets, and where the members of ENUM and SET end in `texts`; arguments of the plan index `numbers`.
    `codecs`: character sets that Python decodes. `faults`: why the event does not fit the schema; then the plan is not
    used.
    """

    sources: list[list[int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)
    codecs: list[str] = field(default_factory=list)
    faults: tuple[str, ...] = ()
    _charsets: dict[tuple[str, bool], int] = field(default_factory=dict)

    def charset(self, name: str, key: bool) -> int:
        """Where the code points of a character set other than Unicode's start; `key`: for a column of the key."""
        if (name, key) not in self._charsets:
            self._charsets[name, key] = len(self.numbers)
            points = key_points if key else code_points if name in EIGHT_BIT else multi_byte_points
            self.numbers += points(name)
        return self._charsets[name, key]

    def members(self, values: list[bytes]) -> int:
        """Where the numbers that bound these texts start: where the first begins, and where each ends."""
        at = len(self.numbers)
        self.numbers.append(len(self.texts))
        for value in values:
            self.texts += value
            self.numbers.append(len(self.texts))
        return at

    def codec(self, name: str) -> int:
        """The index of a character set that Python decodes."""
        if name not in self.codecs:
            self.codecs.append(name)
        return self.codecs.index(name)


# ---- SELECT ----------------------------------------------------------------------------------------------------------


def plan_of_result(schema: TableSchema) -> RowPlan:
    """The plan of a SELECT of the schema's captured columns, in order. SourceLost for a type that can't be read."""
    plan = RowPlan(names=[column.name for column in schema.captured])
    for at, column in enumerate(schema.captured):
        kind, size, argument, second = _wire_kind(parse_type(column.mysql_type))
        if schema.is_boolean(column):
            kind = K_BOOLEAN
        plan.sources.append([kind, at, size, 0, argument, second, 0, 0, 0, 0])
    return plan


def layout_of(kind: pa.DataType) -> int:
    """How the arena lays out a column of an Arrow type (`L_`)."""
    if pa.types.is_boolean(kind):
        return L_BIT
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind):
        return L_VAR
    width: int = kind.bit_width // 8
    return width


def _wire_kind(kind: MysqlType) -> tuple[int, int, int, int]:
    """How a value of the binary protocol is read: kind, size (0: its length stands in front), two arguments."""
    base = kind.base
    if base == "year" and kind.numbers == (2,):
        return K_YEAR_2, 2, 0, 0
    if base in _WIRE_INTEGERS:
        size = _WIRE_INTEGERS[base]
        if kind.unsigned:
            return K_LE_U64 if size == 8 else K_LE_UNSIGNED, size, 0, 0
        return K_LE_SIGNED, size, 0, 0
    if base in ("float", "double"):
        return K_COPY, 4 if base == "float" else 8, 0, 0
    if base == "decimal":
        precision, scale = _decimal_numbers(kind)
        return (K_DECIMAL, 0, precision, scale) if precision <= _GREATEST_PRECISION else (K_DECIMAL_WIDE, 0, 0, 0)
    if base == "bit":
        return (K_BIT1 if kind.numbers in ((), (1,)) else K_BYTES), 0, 0, 0
    simple = {"date": K_DATE, "datetime": K_DATETIME, "timestamp": K_DATETIME, "time": K_TIME, "vector": K_VECTOR}
    return simple.get(base, K_BYTES), 0, 0, 0


def _decimal_numbers(kind: MysqlType) -> tuple[int, int]:
    """Precision and scale."""
    precision, scale = (*kind.numbers, 0)[:2] if kind.numbers else (10, 0)
    return precision, scale


# ---- binlog ----------------------------------------------------------------------------------------------------------


def plan_of_event(table_map_body: bytes, schema: TableSchema) -> RowPlan:
    """The plan of a table's row images, with columns matched by name.

    `faults` if the event does not fit the schema: a DDL was missed or is not followed, `binlog_row_metadata` is not
    FULL, or a type has its form of before MySQL 5.6. Columns that the catalogue hides, and those that are not captured,
    are skipped. Damaged if the TABLE_MAP is corrupt.
    """
    plan = RowPlan()
    try:
        table = TableMap(table_map_body)
        plan.faults = tuple(_match(table, schema, plan))
        plan.names = table.names
    except _Misfit as fault:
        plan.faults = (str(fault),)
    if plan.faults:
        plan.sources = []
    return plan


class TableMap:
    """The parts of a TABLE_MAP event's body (after the header, without checksum).

    `types`, `metadata`, `nullable` and `real` (the type; in `types` ENUM and SET are STRING) have an item for each
    column; `unsigned`, `collations` and `members` (of ENUM and SET) are keyed by a column's index. `names` is empty
    unless `binlog_row_metadata` is FULL.
    """

    def __init__(self, body: bytes) -> None:
        """Read the parts. Damaged with the offset if the body is truncated."""
        reader = _Reader(body)
        self.number = reader.integer(6)
        self.flags = reader.integer(2)
        self.database = reader.text(reader.integer(1))
        reader.integer(1)
        self.table = reader.text(reader.integer(1))
        reader.integer(1)
        count = reader.packed()
        self.types = list(reader.take(count))
        metadata = _Reader(reader.take(reader.packed()))
        self.metadata = [metadata.take(_METADATA_BYTES.get(kind, 0)) for kind in self.types]
        nulls = reader.take((count + 7) // 8)
        self.nullable = [bool(nulls[i // 8] >> (i % 8) & 1) for i in range(count)]
        fields: dict[int, bytes] = {}
        while not reader.ended:
            number = reader.integer(1)
            fields[number] = reader.take(reader.packed())
        self.names: list[str] = []
        names = _Reader(fields.get(_COLUMN_NAME, b""))
        while not names.ended:
            self.names.append(names.text(names.packed()))
        numeric = [i for i, kind in enumerate(self.types) if kind in _NUMERIC]
        signs = fields.get(_SIGNEDNESS, b"").ljust((len(numeric) + 7) // 8, b"\0")
        self.unsigned = {i: bool(signs[n // 8] << (n % 8) & 0x80) for n, i in enumerate(numeric)}
        self.real = [_real_type(kind, meta) for kind, meta in zip(self.types, self.metadata, strict=True)]
        # MariaDB counts GEOMETRY among the columns with a character set; only MySQL (from 8.0.23) sends the visibility
        self._mariadb = _VISIBILITY not in fields
        texts = [i for i, kind in enumerate(self.real) if kind in _CHARACTER or (self._mariadb and kind == GEOMETRY)]
        self.collations = _collations(texts, fields.get(_DEFAULT_CHARSET), fields.get(_COLUMN_CHARSET))
        members = [i for i, kind in enumerate(self.real) if kind in _ENUM_OR_SET]
        default, single = fields.get(_ENUM_AND_SET_DEFAULT_CHARSET), fields.get(_ENUM_AND_SET_COLUMN_CHARSET)
        self.collations.update(_collations(members, default, single))
        self.members: dict[int, list[bytes]] = {}
        for number, kind in ((_SET_VALUES, SET), (_ENUM_VALUES, ENUM)):
            lists = _Reader(fields.get(number, b""))
            for i in (i for i, real in enumerate(self.real) if real == kind):
                if not lists.ended:
                    self.members[i] = [lists.take(lists.packed()) for _ in range(lists.packed())]

    def hidden(self, i: int) -> bool:
        """Whether the catalogue hides the column: it is of a functional index, or the hash that MariaDB keeps for a
        UNIQUE over long values. A visible column may have the hash's name and type: call this only for columns that the
        schema lacks.
        """
        name = self.names[i]
        hash_of_mariadb = self._mariadb and self.types[i] == LONGLONG and self.unsigned[i]
        return name.startswith("!hidden!") or (hash_of_mariadb and _HASH.fullmatch(name) is not None)


class _Reader:
    """Reads little-endian integers and texts of a TABLE_MAP; Damaged at its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def take(self, n: int) -> bytes:
        if n > len(self._data) - self._at:
            raise Damaged(f"the table map ends at byte {len(self._data)}, but {n} bytes were expected at {self._at}")
        self._at += n
        return self._data[self._at - n : self._at]

    def text(self, n: int) -> str:
        begin = self._at
        try:
            return self.take(n).decode()
        except UnicodeDecodeError as error:
            raise Damaged(f"the table map has a name that is not UTF-8 at byte {begin}") from error

    def integer(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def packed(self) -> int:
        first = self.integer(1)
        if first < 251:
            return first
        if first in (252, 253, 254):
            return self.integer({252: 2, 253: 3, 254: 8}[first])
        raise Damaged(f"byte {self._at - 1} of the table map is not a length")


def _real_type(kind: int, meta: bytes) -> int:
    """The type of a column; ENUM and SET are sent as STRING, with their type in the first byte of the metadata."""
    if kind == STRING and meta[0] in _ENUM_OR_SET:
        return meta[0]
    return kind


def _collations(columns: list[int], default: bytes | None, single: bytes | None) -> dict[int, int]:
    """Collations of the given columns: from a default with exceptions, or from a list of one for each column."""
    found: dict[int, int] = {}
    if default is not None:
        reader = _Reader(default)
        most = reader.packed()
        found = dict.fromkeys(columns, most)
        while not reader.ended:
            at = reader.packed()
            if at >= len(columns):
                raise Damaged(
                    f"the table map names a collation of text column {at}, but has {len(columns)} text columns"
                )
            found[columns[at]] = reader.packed()
    elif single is not None:
        reader = _Reader(single)
        for column in columns:
            found[column] = reader.packed()
    return found


def _match(table: TableMap, schema: TableSchema, plan: RowPlan) -> list[str]:
    """Add a plan for each column of the event; the faults, as sentences."""
    faults = []
    if len(table.names) != len(table.types):
        raise _Misfit("the row events carry no column names: SET GLOBAL binlog_row_metadata = FULL")
    seen = set()
    keys = {schema.place(name) for name in schema.key}
    captured = {column.name: at for at, column in enumerate(schema.captured)}
    for i, name in enumerate(table.names):
        at = schema.place(name)
        if at is None:
            if not table.hidden(i):
                faults.append(f"the row events have a column {name} that the schema lacks")
            plan.sources.append(_skipped(table, i))
            continue
        seen.add(at)
        column = schema.columns[at]
        if column.name not in captured:
            plan.sources.append(_skipped(table, i))
            continue
        try:
            key = at in keys
            kind, size, prefix, arg, arg2, strip = _event_kind(table, i, column, key, plan)
            if schema.is_boolean(column):
                kind = K_BOOLEAN
        except _Misfit as fault:
            faults.append(f"column {name}: {fault}")
            continue
        plan.sources.append([kind, captured[column.name], size, prefix, arg, arg2, strip, int(key), 0, 0])
    for name, source in [] if faults else zip(table.names, plan.sources, strict=True):
        size, prefix = source[S_SIZE], source[S_PREFIX]
        if not 0 <= prefix <= 4 or (not prefix and not 0 < size <= _FIXED_BYTES.get(source[S_KIND], size)):
            raise Damaged(f"the table map's metadata of column {name} is corrupt")
    faults += [f"the row events lack column {column.name}" for i, column in enumerate(schema.columns) if i not in seen]
    return faults


def _skipped(table: TableMap, i: int) -> list[int]:
    """The plan of a column that is skipped: only its length matters."""
    kind, meta = table.real[i], table.metadata[i]
    size, prefix = _FIXED.get(kind, 0), 0
    if kind == NEWDECIMAL:
        size = decimal_size(meta[0], meta[1])
    elif kind in _FRACTION_BASE:
        size = _FRACTION_BASE[kind] + (meta[0] + 1) // 2
    elif kind == BIT:
        size = meta[1] + (meta[0] > 0)
    elif kind in _ENUM_OR_SET:
        size = meta[1]
    elif kind in _VARIABLE:
        prefix = 1 if int.from_bytes(meta, "little") < 256 else 2
    elif kind == STRING:
        prefix = 1 if _string_length(meta) < 256 else 2
    elif kind in _WITH_LENGTH_BYTES:
        prefix = meta[0]
    elif not size:
        raise _Misfit(f"the row events have column {table.names[i]} of the unknown type {kind}")
    return [K_BYTES, -1, size, prefix, 0, 0, 0, 0, 0, 0]


def _string_length(meta: bytes) -> int:
    """Bytes of a CHAR or BINARY; bits 8 and 9 of the length stand, inverted, in the byte of the type."""
    return ((meta[0] & 0x30) ^ 0x30) << 4 | meta[1]


def _event_kind(
    table: TableMap, i: int, column: Column, key: bool, plan: RowPlan
) -> tuple[int, int, int, int, int, int]:
    """How a column's value in a row image is read: kind, fixed size, bytes of the length in front, two arguments, and
    whether spaces at the end are stripped.
    """
    kind = parse_type(column.mysql_type)
    real, meta, base = table.real[i], table.metadata[i], kind.base
    misfit = _Misfit(f"the row events have type {real} where the schema has {column.mysql_type}")
    if real in _OLD_TYPES:
        raise _Misfit(f"it has the form of {_OLD_TYPES[real]} before MySQL 5.6: ALTER TABLE ... FORCE rewrites it")
    if base in _INTEGER_TYPES:
        if real != _INTEGER_TYPES[base] or table.unsigned[i] != kind.unsigned:
            raise misfit
        size = _FIXED[real]
        if kind.unsigned:
            return K_LE_U64 if size == 8 else K_LE_UNSIGNED, size, 0, 0, 0, 0
        return K_LE_SIGNED, size, 0, 0, 0, 0
    if base in ("float", "double"):
        size = 4 if base == "float" else 8
        if real != (FLOAT if base == "float" else DOUBLE) or meta[0] != size:
            raise misfit
        return K_COPY, size, 0, 0, 0, 0
    if base == "decimal":
        if real != NEWDECIMAL or (meta[0], meta[1]) != _decimal_numbers(kind):
            raise misfit
        how = K_BIN_DECIMAL if meta[0] <= _GREATEST_PRECISION else K_BIN_DECIMAL_WIDE
        return how, decimal_size(meta[0], meta[1]), 0, meta[0], meta[1], 0
    if base in _TIME_TYPES:
        if real != _TIME_TYPES[base][0] or meta[0] != (kind.numbers[0] if kind.numbers else 0):
            raise misfit
        return _TIME_TYPES[base][1], _FRACTION_BASE[real] + (meta[0] + 1) // 2, 0, 0, 0, 0
    if base == "date" and real in (DATE, NEWDATE):
        return K_BIN_DATE, 3, 0, 0, 0, 0
    if base == "year" and real == YEAR:
        return K_YEAR_2 if kind.numbers == (2,) else K_YEAR, 1, 0, 0, 0, 0
    if base == "bit" and real == BIT:
        bits = meta[1] * 8 + meta[0]
        if bits != (kind.numbers[0] if kind.numbers else 1):
            raise misfit
        return K_BIT1 if bits == 1 else K_BYTES, (bits + 7) // 8, 0, 0, 0, 0
    if base in ("enum", "set"):
        if real != (ENUM if base == "enum" else SET) or i not in table.members:
            raise misfit
        charset = _charset(table, i, column)
        try:
            values = [to_text(value, charset).encode() for value in table.members[i]]
        except UnicodeError as error:
            raise Damaged(f"the table map names members of column {column.name} that are not {charset}") from error
        return K_ENUM if base == "enum" else K_SET, meta[1], 0, plan.members(values), len(values), 0
    if base == "json" and real == JSON:
        return K_JSON, 0, meta[0], 0, 0, 0
    if base == "vector" and real == VECTOR:
        return K_VECTOR, 0, meta[0], 0, 0, 0
    if real == GEOMETRY and column.charset is None:
        return K_BYTES, 0, meta[0], 0, 0, 0
    if base in ("uuid", "inet6", "inet4") and real == STRING:
        size = 4 if base == "inet4" else 16
        if _string_length(meta) != size:
            raise misfit
        return {"uuid": K_UUID, "inet6": K_INET6, "inet4": K_INET4}[base], 0, 1, 0, 0, 0
    binary = table.collations.get(i) == _BINARY
    if base in ("char", "binary") and real == STRING:
        length = _string_length(meta)
        if binary != (base == "binary") or (binary and length != (kind.numbers[0] if kind.numbers else 1)):
            raise misfit
        prefix = 1 if length < 256 else 2
        if binary:
            return K_PAD, 0, prefix, length, 0, 0
        how, argument, second = _text_plan(_charset(table, i, column), key, plan)
        return how, 0, prefix, argument, second, 1
    if base in ("varchar", "varbinary") and real in _VARIABLE:
        prefix = 1 if int.from_bytes(meta, "little") < 256 else 2
        expected = "varbinary"
    elif base.endswith(("text", "blob")) and real in (BLOB, BLOB_COMPRESSED):
        prefix = meta[0]
        if _BLOB_BYTES[base.removesuffix("text").removesuffix("blob")] != prefix:
            raise misfit
        expected = "blob"
    else:
        raise misfit
    if binary != base.endswith(expected):
        raise misfit
    charset = "binary" if binary else _charset(table, i, column)
    if real in (BLOB_COMPRESSED, VARCHAR_COMPRESSED):
        as_it_is = charset in ("binary", "utf8mb4", "utf8mb3")
        return K_COMPRESSED, 0, prefix, -1 if as_it_is else plan.codec(charset), 0, 0
    if binary:
        return K_BYTES, 0, prefix, 0, 0, 0
    how, argument, second = _text_plan(charset, key, plan)
    return how, 0, prefix, argument, second, 0


def _charset(table: TableMap, i: int, column: Column) -> str:
    """The character set of a column in the event; _Misfit if the schema's is another."""
    number = table.collations.get(i)
    if number is None:
        raise _Misfit("the row events carry no character set: SET GLOBAL binlog_row_metadata = FULL")
    charset = charset_of(number)
    if charset is None:
        raise _Misfit(f"collation {number} is unknown")
    if column.charset is not None and _alias(column.charset) != charset:
        raise _Misfit(f"the row events have the character set {charset}, the schema {column.charset}")
    return charset


def _alias(charset: str) -> str:
    """The name that charsets.py has for a character set."""
    return "utf8mb3" if charset.lower() == "utf8" else charset.lower()


def _text_plan(charset: str, key: bool, plan: RowPlan) -> tuple[int, int, int]:
    """How text of a character set becomes UTF-8: kind and two arguments."""
    if charset in ("utf8mb4", "utf8mb3"):
        return K_BYTES, 0, 0
    if charset in ("ucs2", "utf16", "utf16le"):
        return K_UTF16, int(charset == "utf16le"), 0
    if charset == "utf32":
        return K_UTF32, 0, 0
    if charset in EIGHT_BIT:
        return K_TABLE, plan.charset(charset, key), int(code_points(charset)[:128] == tuple(range(128)))
    if charset in MULTI_BYTE:
        return K_PAIRS, plan.charset(charset, key), 0
    return K_CODEC, plan.codec(charset), 0
