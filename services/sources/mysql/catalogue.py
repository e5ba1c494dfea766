"""Tables and columns as information_schema describes them, and the reasons why a table can't be captured."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import NextGeneration, NoTable, SourceLost
from cutline.common.schema import Column, TableSchema, arrow_type, parse_type
from cutline.common.table_id import split_table_id, table_id_of
from cutline.services.sources.mysql.connection import Connection, ask, columns_of, quoted, quoted_table
from cutline.services.sources.mysql.server import Server, variables

SYSTEM_SCHEMAS = ("information_schema", "mysql", "performance_schema", "sys")

_ONE_BY_ONE = 20
_BATCH_NAMES = 1000
_INTEGER_BASES = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint"))
_FOREIGN_KEY = re.compile(r"^\s+CONSTRAINT (\S+) FOREIGN KEY .* REFERENCES (.+?) \(.*\)(.*?),?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table as the catalogue describes it now.

    `rows` and `row_bytes` are the server's estimates (rows may be off by half). `chunk_key` are the columns that bound
    its chunks; `integer_key`: they are one integer column. `faults` are the reasons for a quarantine, each a sentence
    with its remedy; empty if the table can be captured.
    """

    schema: TableSchema
    engine: str
    rows: int
    row_bytes: int
    integer_key: bool
    chunk_key: tuple[str, ...]
    faults: tuple[Cause, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAsked:
    """A table to be described, and the columns that table_options names for it."""

    table_id: str
    identity: tuple[str, ...] = ()
    chunk_by: tuple[str, ...] = ()


def list_tables(conn: Connection) -> list[str]:
    """Every table that the user may see, as "db.table", sorted; no views, no system tables."""
    marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    found = ask(
        conn,
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
        f" WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN ({marks})",
        SYSTEM_SCHEMAS,
    )
    return sorted(itertools.starmap(table_id_of, found))


# --- what information_schema has --------------------------------------------------------------------------------------


def _rows_by_table(conn: Connection, sql: str, table_ids: Iterable[str]) -> dict[str, list[Any]]:
    """The rows of a catalogue query, by table, without the query's first two columns, which are the table's database
    and name; `{tables}` in the query stands for the condition on them.

    A few tables are queried one by one, each by a look-up; many tables of a database are queried together, for which
    MariaDB scans the whole database. The servers ignore case in this comparison: rows of other tables are dropped.
    """
    found: dict[str, list[Any]] = {table_id: [] for table_id in table_ids}
    databases: dict[str, list[str]] = {}
    for table_id in found:
        database, table = split_table_id(table_id)
        databases.setdefault(database, []).append(table)
    for database, names in databases.items():
        step = 1 if len(names) <= _ONE_BY_ONE else _BATCH_NAMES
        for first in range(0, len(names), step):
            batch = names[first : first + step]
            marks = ", ".join(["%s"] * len(batch))
            where = "TABLE_SCHEMA = %s AND TABLE_NAME " + (f"IN ({marks})" if step > 1 else "= %s")
            for schema, name, *row in ask(conn, sql.replace("{tables}", where), (database, *batch)):
                if (rows := found.get(table_id_of(schema, name))) is not None:
                    rows.append(row)
    return found


@dataclass(slots=True, kw_only=True)
class _Catalogue:
    """information_schema's rows, by table: the table's own row (none if it does not exist or is hidden), its columns,
    and the parts of its unique indexes."""

    tables: dict[str, list[Any]]
    columns: dict[str, list[Any]]
    unique: dict[str, list[Any]]

    @classmethod
    def read(cls, conn: Connection, table_ids: Sequence[str], *, sizes: bool = True) -> _Catalogue:
        """Read them in three queries for all tables of a database. Without `sizes` the server need not estimate any."""
        estimates = "TABLE_ROWS, AVG_ROW_LENGTH" if sizes else "NULL, NULL"
        tables = _rows_by_table(
            conn,
            f"SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, {estimates}, TABLE_COLLATION"
            " FROM information_schema.TABLES WHERE {tables} AND TABLE_TYPE <> 'VIEW'",
            table_ids,
        )
        columns = _rows_by_table(
            conn,
            "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, EXTRA"
            " FROM information_schema.COLUMNS WHERE {tables} ORDER BY TABLE_NAME, ORDINAL_POSITION",
            (table_id for table_id, rows in tables.items() if rows),
        )
        unique = _rows_by_table(
            conn,
            "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE"
            " FROM information_schema.STATISTICS WHERE {tables} AND NON_UNIQUE = 0"
            " ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
            columns,
        )
        return cls(tables=tables, columns=columns, unique=unique)


def table_schema(conn: Connection, table_id: str, identity: Sequence[str] = ()) -> TableSchema:
    """The table's schema now, field ids 1..n, `key` empty without identity. NextGeneration if the table is gone.

    `identity`: columns that the user declares unique; they are the key if the table has none.
    """
    catalogue = _Catalogue.read(conn, [table_id], sizes=False)
    if not catalogue.tables[table_id] or not catalogue.columns[table_id]:
        sentence = f"There is no table {table_id} (any more), or its SELECT was revoked"
        raise NextGeneration(Cause(Code.RIGHTS, sentence), table_id)
    return _schema(catalogue, table_id, identity)[0]


def _schema(catalogue: _Catalogue, table_id: str, identity: Sequence[str]) -> tuple[TableSchema, Cause | None]:
    """The table's schema, and the fault if it has no identity."""
    described = catalogue.columns[table_id]
    element_id = len(described)
    columns = []
    for field_id, (name, kind, nullable, charset, extra) in enumerate(described, start=1):
        vector = parse_type(kind).base == "vector"
        element_id += vector
        columns.append(
            Column(
                name=name,
                field_id=field_id,
                mysql_type=kind,
                nullable=nullable == "YES",
                charset=charset,
                generated="GENERATED" in extra.upper() and "DEFAULT_GENERATED" not in extra.upper(),
                element_id=element_id if vector else None,
            )
        )
    key, unique, fault = _identity(table_id, catalogue.unique[table_id])
    if identity and not key:
        key, fault = _option_columns(table_id, columns, "identity", identity)
    charset = (catalogue.tables[table_id][0][-1] or "utf8mb4").partition("_")[0]
    return TableSchema(
        table_id=table_id,
        columns=tuple(columns),
        key=key,
        last_field_id=element_id,
        charset=charset,
        unique_key=unique,
    ), fault


def _missing(conn: Connection, table_id: str) -> SourceLost:
    """Why the catalogue has no row of a table: it is gone, or hidden from the user; a SELECT from it tells which."""
    try:
        columns_of(conn, f"SELECT 1 FROM {quoted_table(table_id)}", table=table_id)
    except SourceLost as error:
        return error
    sentence = f"{table_id} is a view, or was created just now: there is no such table"
    return NoTable(Cause(Code.NO_TABLE, sentence), table_id)


def _option_columns(
    table_id: str, columns: Sequence[Column], option: str, names: Sequence[str]
) -> tuple[tuple[str, ...], Cause | None]:
    """The columns that a table option names, as the table spells them; no columns and a fault if one is unusable."""
    known = {column.name.lower(): column for column in columns}
    found = [known.get(name.lower()) for name in names]
    for name, column in zip(names, found, strict=True):
        if column is None or column.nullable:
            obstacle = "has no column" if column is None else "allows NULL in"
            sentence = f"{table_id} {obstacle} {name}, which {option} names in table_options"
            return (), Cause(Code.NO_KEY, sentence, "correct that")
    return tuple(column.name for column in found if column is not None), None


def _identity(table_id: str, parts_of_unique: Sequence[Any]) -> tuple[tuple[str, ...], bool, Cause | None]:
    """The key, whether it is a unique key in place of the primary key, and the fault if there is no key."""
    indexes: dict[str, list[tuple[str | None, str | None, str | None]]] = {}
    for index, column, prefix, nullable in parts_of_unique:
        indexes.setdefault(index, []).append((column, prefix, nullable))
    not_null = {
        index: parts
        for index, parts in indexes.items()
        if all(column is not None and nullable != "YES" for column, _, nullable in parts)
    }
    whole = {index: parts for index, parts in not_null.items() if all(prefix is None for _, prefix, _ in parts)}
    if whole:
        best = min(whole, key=lambda index: (index != "PRIMARY", len(whole[index]), index))
        return tuple(str(column) for column, _, _ in whole[best]), best != "PRIMARY", None
    sentence, columns = f"{table_id} has no identity", "NOT NULL columns"
    if not_null:
        sentence += f": its key {min(not_null)} covers only a prefix of a column"
        columns = f"whole {columns}"
    return (), False, Cause(Code.NO_KEY, sentence, f"add a primary key, or a unique key over {columns}")


def index_of(conn: Connection, table_id: str, columns: Sequence[str], *, least: int = 1) -> str | None:
    """The index that gives rows in the order of these columns, the primary key before others; None without one.

    Indexes that the optimizer ignores (invisible; MariaDB: ignored) can't be forced and don't count. The index needs
    only the first `least` of the columns: after its own, InnoDB continues with the primary key.
    """
    database, table = split_table_id(table_id)
    found: dict[str, list[str]] = {}
    for index, column, prefix, owner in ask(
        conn,
        "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, TABLE_NAME FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_TYPE = 'BTREE'"
        " /*!80000 AND IS_VISIBLE = 'YES' */ /*M!100600 AND IGNORED = 'NO' */ ORDER BY INDEX_NAME, SEQ_IN_INDEX",
        (database, table),
    ):
        if owner == table:
            found.setdefault(index, []).append(column if prefix is None else "")
    fitting = [
        index
        for index, parts in found.items()
        if len(parts) >= least and all(part == column for part, column in zip(parts, columns, strict=False))
    ]
    return min(fitting, key=lambda index: (index != "PRIMARY", -len(found[index]), index), default=None)


# --- descriptions -----------------------------------------------------------------------------------------------------


def describe(
    conn: Connection,
    server: Server,
    table_id: str,
    *,
    keyless: bool = False,
    identity: Sequence[str] = (),
    chunk_by: Sequence[str] = (),
    unlogged_cascades: bool = False,
) -> TableInfo:
    """`describe_all` of one table; its error is raised."""
    asked = TableAsked(table_id=table_id, identity=tuple(identity), chunk_by=tuple(chunk_by))
    (found,) = describe_all(conn, server, [asked], keyless=keyless, unlogged_cascades=unlogged_cascades).values()
    if isinstance(found, SourceLost):
        raise found
    return found


def describe_all(
    conn: Connection,
    server: Server,
    tables: Sequence[TableAsked],
    *,
    keyless: bool = False,
    unlogged_cascades: bool = False,
) -> dict[str, TableInfo | SourceLost]:
    """By table: all that must be known before it is captured, or the error that prevents it: NoTable if there is no
    such table (a view is none), NextGeneration if it is being changed, SourceLost if the user may not read it.

    With `keyless`, a table without identity has no fault, provided that the server can tell which rows a SELECT saw;
    with `unlogged_cascades`, neither has one that a foreign key changes without a trace in the binlog.
    """
    catalogue = _Catalogue.read(conn, [asked.table_id for asked in tables])
    engines = _transactional_engines(conn) if tables else frozenset()
    cascades = not unlogged_cascades and bool(tables) and _hides_cascades(conn, server)
    found: dict[str, TableInfo | SourceLost] = {}
    for asked in tables:
        try:
            info = _described(conn, server, catalogue, asked, engines, keyless=keyless, cascades=cascades)
            found[asked.table_id] = info
        except SourceLost as error:
            found[asked.table_id] = error
    return found


def _described(
    conn: Connection,
    server: Server,
    catalogue: _Catalogue,
    asked: TableAsked,
    engines: frozenset[str],
    *,
    keyless: bool,
    cascades: bool,
) -> TableInfo:
    table_id = asked.table_id
    if not catalogue.tables[table_id] or not catalogue.columns[table_id]:
        raise _missing(conn, table_id)
    kind, engine, rows, row_bytes, _ = catalogue.tables[table_id][0]
    schema, unidentified = _schema(catalogue, table_id, asked.identity)
    faults = []
    if unidentified is not None and (asked.identity or not keyless):
        faults.append(unidentified)
    elif unidentified is not None and server.mysql and not server.gtid:
        faults.append(unidentified.advised("or set gtid_mode=ON, which keyless: append needs on MySQL"))
    first, fault = _option_columns(table_id, schema.columns, "chunk_by", asked.chunk_by if schema.key else ())
    indexed = first or (schema.key if asked.identity else ())
    if fault is None and indexed and index_of(conn, table_id, indexed, least=len(indexed)) is None:
        sentence = f"{table_id} has no index that begins with {', '.join(indexed)}, by which it is to be read"
        fault = Cause(Code.NO_KEY, sentence, "add one")
    faults += [fault] if fault is not None else []
    if kind == "SYSTEM VERSIONED":
        sentence = f"{table_id} keeps its history (system versioning), which can't be captured"
        faults.append(Cause(Code.UNSUPPORTED, sentence, "leave it out of the list"))
    if (engine or "").lower() not in engines:
        faults.append(
            Cause(
                Code.UNSUPPORTED,
                f"{table_id} has the engine {engine}, which has no transactions, so no consistent snapshot",
                f"ALTER TABLE {quoted_table(table_id)} ENGINE=InnoDB, or leave it out of the list",
            )
        )
    faults += _confused_names(conn, table_id, schema.columns)
    for column in schema.columns:
        try:
            arrow_type(column.mysql_type)
        except SourceLost as error:
            faults.append(error.cause.before(f"{table_id}, column {column.name}: "))
    if cascades:
        faults += _unlogged_cascades(conn, table_id)
    chunk_key = (*first, *(name for name in schema.key if name not in first))
    integer_key = len(chunk_key) == 1 and parse_type(schema.column(chunk_key[0]).mysql_type).base in _INTEGER_BASES
    return TableInfo(
        schema=schema,
        engine=engine or "",
        rows=int(rows or 0),
        row_bytes=int(row_bytes or 0),
        integer_key=integer_key,
        chunk_key=chunk_key,
        faults=tuple(faults),
    )


def _transactional_engines(conn: Connection) -> frozenset[str]:
    found = ask(conn, "SELECT ENGINE FROM information_schema.ENGINES WHERE TRANSACTIONS = 'YES'")
    return frozenset(engine.lower() for (engine,) in found)


def _confused_names(conn: Connection, table_id: str, columns: Sequence[Column]) -> list[Cause]:
    """Faults of columns for which the server returns another column than the named one.

    In tables of over 32 columns MariaDB looks names up by a hash, which confuses some letters that MariaDB
    distinguishes elsewhere (the micro sign and the Greek mu, a final sigma and another): a SELECT would return the
    values of the wrong column.
    """
    if all(column.name.isascii() for column in columns):
        return []
    names = ", ".join(quoted(column.name) for column in columns)
    returned = columns_of(conn, f"SELECT {names} FROM {quoted_table(table_id)}", table=table_id)
    return [
        Cause(
            Code.UNSUPPORTED,
            f"{table_id} has the columns {column.name} and {name}, and the server returns the latter where the former"
            " is named",
            "rename one of them",
        )
        for column, name in zip(columns, returned, strict=True)
        if column.name != name
    ]


def _hides_cascades(conn: Connection, server: Server) -> bool:
    # MySQL logs the child's rows from 9.6 on, unless this variable leaves cascades to InnoDB; MariaDB never does
    known = variables(conn, "innodb_native_foreign_keys") if server.mysql else {}
    return known.get("innodb_native_foreign_keys", "ON") != "OFF"


def _unlogged_cascades(conn: Connection, table_id: str) -> list[Cause]:
    # information_schema would not do: MariaDB hides foreign keys there from a user that may only SELECT
    (_, statement, *_), *_ = ask(conn, f"SHOW CREATE TABLE {quoted_table(table_id)}", table=table_id)
    return [
        Cause(
            Code.NOT_IN_BINLOG,
            f"{table_id} changes by the foreign key {found[1]} (from {found[2]}{found[3]}), which this server doesn't"
            " write to its binlog",
            "make the key RESTRICT, leave the table out of the list, or set unlogged_cascades: allow",
        )
        for found in _FOREIGN_KEY.finditer(statement)
        if re.search(r"CASCADE|SET NULL|SET DEFAULT", found[3])
    ]
