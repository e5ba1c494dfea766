"""The table of types, MySQL's column types to Arrow (so to Parquet and Iceberg), and a table's schema (pure).

One table for both decoders (SELECT and binlog), so that both give a row the same bytes:

| MySQL | Arrow | value |
|---|---|---|
| TINYINT, SMALLINT, MEDIUMINT, INT, YEAR | int32 | TINYINT(1) by option bool: all but 0 is true |
| INT UNSIGNED, BIGINT | int64 | |
| BIGINT UNSIGNED | decimal128(20, 0) | int64 by option; a value of 2^63 or more then stops its table |
| DECIMAL(p <= 38, s) | decimal128(p, s) | |
| DECIMAL(p > 38, s) | string | MySQL's text, exact, s digits after the point |
| FLOAT, DOUBLE | float32, float64 | |
| BIT(1); BIT(n) | bool; binary | big-endian, (n + 7) // 8 bytes |
| CHAR, VARCHAR, TEXT, ENUM, SET | string | UTF-8; SET's members joined by a comma in the order of its definition |
| BINARY, VARBINARY, BLOB | binary | BINARY padded with zero bytes to its length |
| JSON | string | MySQL's own text form |
| UUID, INET6, INET4 (MariaDB) | string | as MariaDB prints them |
| DATE | date32 | zero and partial dates are null |
| DATETIME | timestamp[us] | zero and partial dates are null |
| TIMESTAMP | timestamp[us, UTC] | zero is null |
| TIME | int64 | microseconds, signed |
| GEOMETRY and kin | binary | SRID (4 bytes, little-endian) and WKB |
| VECTOR | list(float32) | |

Every Arrow field is nullable, also for NOT NULL columns: zero dates and the rows of a TRUNCATE are null.

Field ids are Iceberg's: 1..n over the columns, then one for the element of each VECTOR (Iceberg's own order for a new
table), and the next free id for each later column. They never change and are never reused.

Change together with: decode/row_plan.py, binlog/alter.py and binlog/sql.py in services/sources/mysql,
spark_writer/sinks/iceberg/columns.py (DDL).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, Literal

import pyarrow as pa

from cutline.common.causes import Cause, Code
from cutline.common.errors import SourceLost
from cutline.common.shape import Shape

FIELD_ID = b"PARQUET:field_id"

SchemaChanges = Literal["evolve", "exact", "ignore", "halt"]
"""How the lake follows columns that change (`TableSchema.followed`); `halt`: the table stops."""

OP, SEQ, FILE, POS, ROW, GTID, TS, TABLE = "_op ", "_seq ", "_file ", "_pos ", "_row ", "_gtid ", "_ts ", "_table "
"""Names of a change's metadata fields. They end in a space: MySQL and MariaDB refuse such a name for a column (error
1166), so these never collide with the table's columns."""

META_FIELDS: tuple[pa.Field, ...] = (
    pa.field(OP, pa.string()),
    pa.field(SEQ, pa.int64()),
    pa.field(FILE, pa.string()),
    pa.field(POS, pa.int64()),
    pa.field(ROW, pa.int32()),
    pa.field(GTID, pa.string()),
    pa.field(TS, pa.timestamp("us", "UTC")),
    pa.field(TABLE, pa.string()),
)
"""The metadata fields of a staged change, behind its columns: `OP` is an operation of ops.py; `SEQ` alone
orders changes; `FILE`, `POS`: the start of its event; `ROW`: its number in the transaction; `TS`: the commit time at
the source. They have no field id."""

_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
GEOMETRIES = frozenset(
    (
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
    )
)
_SYNONYMS = {
    "integer": "int",
    "dec": "decimal",
    "numeric": "decimal",
    "fixed": "decimal",
    "real": "double",
    "geomcollection": "geometrycollection",
}
_TYPE = re.compile(r"\s*([A-Za-z0-9]+)\s*(?:\((.*)\))?([^()]*)", re.DOTALL)
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlType:
    """A parsed column type: `base` in lower case (`integer` is `int`), the numbers in brackets, ENUM's members."""

    base: str
    numbers: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    unsigned: bool = False


@lru_cache(maxsize=4096)
def parse_type(mysql_type: str) -> MysqlType:
    """Parse COLUMN_TYPE as information_schema prints it. ValueError if it is malformed."""
    found = _TYPE.fullmatch(mysql_type)
    if not found:
        raise ValueError(f"{mysql_type!r} is not a column type")
    base, inner, tail = found[1].lower(), found[2], found[3].lower()
    base = _SYNONYMS.get(base, base)
    members: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    if base in ("enum", "set"):
        members = tuple(
            _ESCAPE.sub(lambda m: "'" if m[1] is None else _ESCAPED.get(m[1], m[1]), text)
            for text in _MEMBER.findall(inner or "")
        )
    elif inner:
        numbers = tuple(int(number) for number in inner.split(","))
    return MysqlType(
        base=base, numbers=numbers, members=members, unsigned="unsigned" in tail.split() or "zerofill" in tail.split()
    )


def column_type(kind: MysqlType) -> str:
    """COLUMN_TYPE as information_schema prints it: the inverse of `parse_type`."""
    inside = [str(number) for number in kind.numbers]
    for member in kind.members:
        quoted = member.replace("\\", "\\\\").replace("'", "''")
        inside.append(f"'{quoted}'")
    return kind.base + (f"({','.join(inside)})" if inside else "") + (" unsigned" if kind.unsigned else "")


@lru_cache(maxsize=4096)
def arrow_type(mysql_type: str) -> pa.DataType:
    """The Arrow type of a column, by the table in this file's head. SourceLost for an unsupported type."""
    try:
        kind = parse_type(mysql_type)
    except ValueError as error:
        raise SourceLost(_unsupported(mysql_type, "leave the table out of the list")) from error
    base = kind.base
    if base in _INTEGERS:
        if base == "bigint" and kind.unsigned:
            return pa.decimal128(20, 0)
        return pa.int64() if base == "bigint" or (base == "int" and kind.unsigned) else pa.int32()
    if base == "decimal":
        precision, scale = (*kind.numbers, 0)[:2] if kind.numbers else (10, 0)
        return pa.decimal128(precision, scale) if precision <= 38 else pa.string()
    if base == "bit":
        return pa.bool_() if kind.numbers in ((), (1,)) else pa.binary()
    if base in ("char", "varchar", "enum", "set", "json", "uuid", "inet6", "inet4", *_TEXTS):
        return pa.string()
    if base in ("binary", "varbinary", *_BLOBS) or base in GEOMETRIES:
        return pa.binary()
    simple = {
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "datetime": pa.timestamp("us"),
        "timestamp": pa.timestamp("us", "UTC"),
        "time": pa.int64(),
        "year": pa.int32(),
        "vector": pa.list_(pa.float32()),
    }
    if base not in simple:
        raise SourceLost(_unsupported(mysql_type, "change its type or leave the table out of the list"))
    return simple[base]


def _unsupported(mysql_type: str, remedy: str) -> Cause:
    return Cause(Code.UNSUPPORTED, f"The column type {mysql_type} is not supported", remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    `mysql_type` is COLUMN_TYPE as information_schema prints it (`int unsigned`, `enum('a','B')`, `datetime(6)`);
    `charset` is None unless the type is text; `initial_default` is the constant default, as text, of a column added by
    DDL: older rows have this value. `element_id` is the field id of a VECTOR's elements. A column of the lake that no
    source has is `computed`; its `mysql_type` is one with the same type in the lake.
    """

    name: str
    field_id: int
    mysql_type: str
    nullable: bool
    charset: str | None = None
    generated: bool = False
    initial_default: str | None = None
    element_id: int | None = None
    computed: bool = False

    @property
    def arrow(self) -> pa.Field:
        """The Arrow field, with its field id in the metadata."""
        kind = arrow_type(self.mysql_type)
        if self.element_id is not None:
            kind = pa.list_(pa.field("element", pa.float32(), metadata={FIELD_ID: str(self.element_id)}))
        return pa.field(self.name, kind, metadata={FIELD_ID: str(self.field_id)})

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON, without the attributes that have their defaults."""
        body: dict[str, Any] = {
            "name": self.name,
            "field_id": self.field_id,
            "mysql_type": self.mysql_type,
            "nullable": self.nullable,
        }
        if self.charset is not None:
            body["charset"] = self.charset
        if self.generated:
            body["generated"] = True
        if self.initial_default is not None:
            body["initial_default"] = self.initial_default
        if self.element_id is not None:
            body["element_id"] = self.element_id
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Column:
        """Read what `to_json` made. Equal columns are one object, since thousands of tables may have the same."""
        return _column(**body)


@lru_cache(maxsize=65_536)
def _column(**attributes: Any) -> Column:
    return Column(**attributes)


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """A table's schema: its columns in order, the identity key, and the names of former columns.

    `key` is the identity (PRIMARY, else a NOT NULL unique key: `unique_key`), in the order of the index, empty if the
    table has none; `retired` are names of columns that were dropped or renamed, which this generation may not use
    again; with `booleans` (an option of the pipeline) TINYINT(1) is boolean, except in the key, where 1 and 2 must stay
    distinct; with `longs` (an option too) BIGINT UNSIGNED is int64; `charset` is the default for new text columns;
    `shown` are the lake's columns, by field id, if they differ from `columns`; `shape` is the rule, if there is one, by
    which the lake's rows are made of these.
    """

    table_id: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    last_field_id: int
    retired: tuple[str, ...] = ()
    booleans: bool = False
    longs: bool = False
    charset: str = "utf8mb4"
    shown: tuple[Column, ...] | None = None
    unique_key: bool = False
    shape: Shape | None = None

    @cached_property
    def hash(self) -> str:
        """16 hex digits that name this schema; equal schemas have equal hashes."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def captured(self) -> tuple[Column, ...]:
        """The columns that are read from the source: all, but those that neither the table's rule nor its key needs."""
        if self.shape is None:
            return self.columns
        needed = self.shape.needs([column.name for column in self.columns]).union(self.key)
        return tuple(column for column in self.columns if column.name in needed)

    @cached_property
    def masked(self) -> frozenset[str]:
        """The names of the columns that are masked (`Shape.mask`), of those that there are."""
        found = (self.place(name) for name in (self.shape.mask if self.shape is not None else ()))
        return frozenset(self.columns[at].name for at in found if at is not None)

    @cached_property
    def clear(self) -> TableSchema:
        """The schema by which the source's values are decoded: the same columns, none of them masked."""
        return replace(self, shape=replace(self.shape, mask=())) if self.shape and self.shape.mask else self

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the captured columns, with field ids. SourceLost names one of an unsupported type."""
        fields = []
        for column in self.captured:
            try:
                fields.append(self.field(column))
            except SourceLost as error:
                cause = error.cause.before(f"Column {column.name} of {self.table_id}: ")
                raise SourceLost(cause, self.table_id) from error
        return pa.schema(fields)

    @cached_property
    def _places(self) -> dict[str, int]:
        # MySQL folds case by a table of Unicode 3: two columns may have names that Python folds to the same (ẞ and ß).
        folded = {column.name.lower(): at for at, column in enumerate(self.columns)}
        return folded | {column.name: at for at, column in enumerate(self.columns)}

    def place(self, name: str) -> int | None:
        """The index of the column of that name, spelt exactly so, else in any case, as in MySQL; None without one."""
        return self._places.get(name, self._places.get(name.lower()))

    def column(self, name: str) -> Column:
        """The column of that name, as `place` finds it. KeyError if there is none."""
        at = self.place(name)
        if at is None:
            raise KeyError(name)
        return self.columns[at]

    def has(self, name: str) -> bool:
        """Whether there is a column of that name, in any case."""
        return self.place(name) is not None

    def is_boolean(self, column: Column) -> bool:
        """Whether a column is a TINYINT(1) that the lake has as boolean."""
        if not self.booleans or column.mysql_type != "tinyint(1)":
            return False
        return column.field_id not in {part.field_id for part in self.key_columns}

    def is_long(self, column: Column) -> bool:
        """Whether a column is a BIGINT UNSIGNED that the lake has as long."""
        kind = parse_type(column.mysql_type) if self.longs else None
        return kind is not None and kind.base == "bigint" and kind.unsigned

    def field(self, column: Column) -> pa.Field:
        """The Arrow field of one of the table's columns, or of the lake's."""
        if column.name in self.masked:
            return pa.field(column.name, pa.string(), metadata={FIELD_ID: str(column.field_id)})
        if self.is_boolean(column):
            return column.arrow.with_type(pa.bool_())
        return column.arrow.with_type(pa.int64()) if self.is_long(column) else column.arrow

    def too_large(self, column: Column) -> Cause:
        """The cause of a quarantine: a column that `is_long` has a value of 2^63 or more."""
        return Cause(
            Code.VALUE,
            f"{self.table_id} has a value of 2^63 or more in its column {column.name}, which values.bigint_unsigned:"
            " long can't hold",
            "correct those rows, or copy the table by a pipeline with bigint_unsigned: decimal",
        )

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the identity key, in its order."""
        return tuple(self.column(name) for name in self.key)

    @property
    def lake(self) -> tuple[Column, ...]:
        """The lake's columns, with their current types: `columns`, unless a policy kept others."""
        return self.columns if self.shown is None else self.shown

    @property
    def look(self) -> object:
        """The part of the schema that SELECTs and the lake's readers see: equal for tables that look the same, whatever
        their field ids and former columns."""
        return self.key, [(column.name, column.mysql_type, column.charset) for column in self.columns]

    @property
    def split_key_type(self) -> tuple[str, ...]:
        """The types of the identity key's columns."""
        return tuple(column.mysql_type for column in self.key_columns)

    def keyed(self, key: tuple[str, ...]) -> TableSchema:
        """The same captured columns with another key, for chunks that are not cut by the identity."""
        made = replace(self, key=key)
        made.__dict__["captured"] = self.captured
        return made

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        body: dict[str, Any] = {
            "table_id": self.table_id,
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
            "last_field_id": self.last_field_id,
            "retired": list(self.retired),
            "charset": self.charset,
            "shown": None if self.shown is None else [column.to_json() for column in self.shown],
        }
        body |= {name: True for name in ("booleans", "longs", "unique_key") if getattr(self, name)}
        return body if self.shape is None else body | {"shape": self.shape.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], name: str | None = None) -> TableSchema:
        """Read what `to_json` made; `name` is the schema's hash, if it is known."""
        schema = cls(
            table_id=body["table_id"],
            columns=tuple(Column.from_json(column) for column in body["columns"]),
            key=tuple(body["key"]),
            last_field_id=body["last_field_id"],
            retired=tuple(body["retired"]),
            booleans=body.get("booleans", False),
            longs=body.get("longs", False),
            unique_key=body.get("unique_key", False),
            charset=body["charset"],
            shown=None if body["shown"] is None else tuple(Column.from_json(column) for column in body["shown"]),
            shape=None if body.get("shape") is None else Shape.from_json(body["shape"]),
        )
        if name is not None:
            schema.__dict__["hash"] = name
        return schema

    def followed(self, new: TableSchema, policy: SchemaChanges) -> TableSchema:
        """`new`, this table's schema after a DDL in place, with the lake's columns by `policy`.

        `exact`: the source's columns. `evolve`: those, and dropped ones in their old places. `ignore`: the old columns
        and names, with types that may only widen.
        """
        by_id = {column.field_id: column for column in new.columns}
        if policy == "ignore":
            shown = [replace(by_id.get(column.field_id, column), name=column.name) for column in self.lake]
        else:
            shown = list(new.columns)
        if policy == "evolve":
            at = 0
            for column in self.lake:
                if column.field_id not in by_id:
                    shown.insert(at, column)
                at = [known.field_id for known in shown].index(column.field_id) + 1
        return replace(new, shown=None if tuple(shown) == new.columns else tuple(shown))

    # DDL in place. Each method returns the new schema, or raises ValueError with the reason for the next generation.

    def add_column(
        self,
        name: str,
        mysql_type: str,
        *,
        nullable: bool,
        charset: str | None = None,
        initial_default: str | None = None,
        first: bool = False,
        after: str | None = None,
    ) -> TableSchema:
        """ADD COLUMN, at the end unless `first` or `after` says otherwise; a NOT NULL one needs a constant default."""
        self._free(name)
        arrow_type(mysql_type)
        if not nullable and initial_default is None:
            raise ValueError(
                f"the new column {name} is NOT NULL without a constant default, so old rows get a value by type"
            )
        field_id = self.last_field_id + 1
        element_id = field_id + 1 if parse_type(mysql_type).base == "vector" else None
        column = Column(
            name=name,
            field_id=field_id,
            mysql_type=mysql_type,
            nullable=nullable,
            charset=charset,
            initial_default=initial_default,
            element_id=element_id,
        )
        if self.is_long(column) and initial_default is not None and Decimal(initial_default) >= 2**63:
            raise ValueError(self.too_large(column))
        at = 0 if first else len(self.columns) if after is None else self._index(after) + 1
        columns = (*self.columns[:at], column, *self.columns[at:])
        return replace(self, columns=columns, last_field_id=element_id or field_id)

    def drop_column(self, name: str) -> TableSchema:
        """DROP COLUMN; ValueError for a column of the identity key."""
        at = self._index(name)
        old = self.columns[at].name
        if old in self.key:
            raise ValueError(f"the column {old} belongs to the identity key")
        return replace(self, columns=(*self.columns[:at], *self.columns[at + 1 :]), retired=(*self.retired, old))

    def rename_column(self, name: str, new_name: str) -> TableSchema:
        """RENAME COLUMN; the field id stays, so old rows keep their values."""
        at = self._index(name)
        old = self.columns[at].name
        if old == new_name:
            return self
        self._free(new_name)
        columns = (*self.columns[:at], replace(self.columns[at], name=new_name), *self.columns[at + 1 :])
        key = tuple(new_name if part == old else part for part in self.key)
        return replace(self, columns=columns, key=key, retired=(*self.retired, old))

    def widen_column(
        self, name: str, mysql_type: str, *, nullable: bool | None = None, charset: str | None = None
    ) -> TableSchema:
        """MODIFY to a type that holds every old value unchanged; None keeps the nullability, or the character set.

        Allowed: a larger integer of the same sign (or an unsigned one in a larger signed one), a longer CHAR, VARCHAR,
        TEXT, VARBINARY or BLOB of the same kind, DECIMAL of the same scale and more digits, new members at the end of
        ENUM or SET; where Iceberg can follow (not from 8-byte integers to decimals, nor over 38 digits).
        """
        at = self._index(name)
        column = self.columns[at]
        if not _widens(column.mysql_type, mysql_type):
            raise ValueError(
                f"{column.mysql_type} to {mysql_type} of column {column.name} can change or refuse old values"
            )
        if nullable is False and column.nullable:
            raise ValueError(f"column {column.name} becomes NOT NULL, which can change old rows")
        if charset is not None and column.charset is not None and charset.lower() != column.charset.lower():
            raise ValueError(f"the character set of column {column.name} changes from {column.charset} to {charset}")
        wider = replace(column, mysql_type=mysql_type, nullable=column.nullable if nullable is None else nullable)
        if self.is_boolean(column) != self.is_boolean(wider):
            raise ValueError(f"column {column.name} goes from {column.mysql_type} to {mysql_type}, and one is boolean")
        return replace(self, columns=(*self.columns[:at], wider, *self.columns[at + 1 :]))

    def _index(self, name: str) -> int:
        at = self.place(name)
        if at is None:
            raise ValueError(f"{self.table_id} has no column {name}")
        return at

    def _free(self, name: str) -> None:
        lower = name.lower()
        if lower in (column.name.lower() for column in self.columns):
            raise ValueError(f"{self.table_id} has a column {name} already")
        if lower in (retired.lower() for retired in self.retired):
            raise ValueError(f"{self.table_id} had another column {name} before, whose values old rows still carry")


def _widens(old_type: str, new_type: str) -> bool:
    old, new = parse_type(old_type), parse_type(new_type)
    if old.base in _INTEGERS and new.base in _INTEGERS:
        larger = _INTEGERS[new.base] > _INTEGERS[old.base]
        if not (old == replace(new, numbers=old.numbers) or (larger and (old.unsigned or not new.unsigned))):
            return False
        change = (arrow_type(old_type), arrow_type(new_type))
        return change[0] == change[1] or change == (pa.int32(), pa.int64())
    if old.base == new.base == "decimal":
        (p, s), (new_p, new_s) = ((*kind.numbers, 0)[:2] if kind.numbers else (10, 0) for kind in (old, new))
        return s == new_s and p <= new_p and (p <= 38) == (new_p <= 38) and (old.unsigned or not new.unsigned)
    if old.base == new.base and old.base in ("char", "varchar", "varbinary"):
        return (old.numbers or (1,)) <= (new.numbers or (1,))
    for family in (_TEXTS, _BLOBS):
        if old.base in family and new.base in family:
            return family.index(old.base) <= family.index(new.base)
    if old.base == new.base and old.base in ("enum", "set"):
        return old.members == new.members[: len(old.members)]
    return old == new
