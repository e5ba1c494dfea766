"""The effects of a binlog statement on captured tables (pure).

`classify` is the one door. DML has row events; a statement has no rows, so a table can be followed only if the
statement certainly changes none. Therefore harmless statements are ignored, changes of columns alone are followed
(`Evolve`), TRUNCATE is a change of its own kind, and **anything else that concerns a captured table is `Restart`**. DML
as a statement (a session's `binlog_format`) is `Quarantine`: after a new snapshot the next such statement would do the
same.

| statement | effect |
|---|---|
| ALTER: ADD COLUMN nullable or with a constant default, DROP, RENAME COLUMN, a new name, widening; several | Evolve |
| ALTER: indexes, comments, options, defaults, checks, ADD PARTITION; CREATE INDEX; ANALYZE, OPTIMIZE | nothing |
| TRUNCATE | Truncate |
| any other ALTER, DROP and CREATE of a captured name, RENAME or partition from or onto one, DROP DATABASE | Restart |
| DML that names a captured table, or (triggers, views) anything else in its database | Quarantine |
| users, views, triggers, routines, events, other tables | nothing |

The statement is split into tokens by MySQL's rules (comments removed, `/*! */` and `/*M! */` as the server reads them,
every way of quoting) and parsed by a grammar of just the forms above; a word that the grammar does not know makes a
Restart.

Assumed, since no statement shows it: AUTO_INCREMENT is not added to a column that holds zeros.
Change together with: common/schema.py (the evolution of a schema), binlog/statements.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from itertools import pairwise
from typing import Literal

from cutline.common.errors import SourceLost
from cutline.common.schema import MysqlType, TableSchema, column_type, parse_type
from cutline.services.sources.mysql.decode.charsets import code_points


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolve:
    """The table's columns change and no row does. `nullable_add`: only columns were added that are null in every
    row."""

    table_id: str
    schema: TableSchema
    nullable_add: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """The table is empty from here."""

    table_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The table must be read again: its next generation."""

    table_id: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """The table can't be followed until a person removes the cause."""

    table_id: str
    cause: str


Effect = Evolve | Truncate | Restart | Quarantine


@dataclass(frozen=True, slots=True)
class _Token:
    """A `name` is in backticks, a `text` in quotes; `value` is as written."""

    kind: Literal["name", "text", "word", "number", "sign"]
    value: str

    @property
    def upper(self) -> str:
        return self.value.upper() if self.kind in ("word", "sign") else ""


class _Unknown(Exception):
    """The grammar can't parse this; the text says why."""


@cache
def _pattern(plain: bool, mariadb: bool) -> re.Pattern[str]:
    """Tokens; `plain`: a backslash in quotes is an ordinary character (NO_BACKSLASH_ESCAPES)."""
    single, double = (r"[^']|''", r'[^"]|""') if plain else (r"[^'\\]|''|\\.", r'[^"\\]|""|\\.')
    runs = "M?!" if mariadb else "!"
    return re.compile(
        rf"""(?P<space>\s+|--(?=[\s]|$)[^\n]*|\#[^\n]*|/\*(?!{runs})(?:.|\n)*?(?:\*/|$))
        |(?P<hint>/\*{runs}\d*)|(?P<unhint>\*/)
        |`(?P<name>(?:[^`]|``)*)`
        |(?P<text>[nNxXbB]?'(?:{single})*'|"(?:{double})*")
        |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w$])|(?<![\w$`"\u0080-\U0010ffff])\.\d+)
        |(?P<word>[\w$@\u0080-\U0010ffff]+)
        |(?P<sign>.)""",
        re.VERBOSE | re.DOTALL,
    )


_IGNORED_VERBS = frozenset(
    "ANALYZE BINLOG CHECK CHECKSUM COMMIT FLUSH GRANT INSTALL KILL OPTIMIZE PURGE RELEASE RESET REVOKE ROLLBACK"
    " SAVEPOINT SET SHOW"
    " START STOP UNINSTALL UNLOCK USE LOCK REPAIR CACHE".split()
)
_IGNORED_KINDS = frozenset(
    "AGGREGATE DEFINER EVENT FUNCTION INSTANCE LIBRARY LOGFILE PACKAGE PROCEDURE RESOURCE ROLE SEQUENCE SERVER"
    " SPATIAL_REFERENCE SQL"
    " TABLESPACE TRIGGER UNDO USER VIEW ALGORITHM JSON MATERIALIZED".split()
)
_DML = frozenset(
    "INSERT REPLACE UPDATE DELETE LOAD CALL WITH SELECT DO VALUES TABLE HANDLER IMPORT EXECUTE MERGE".split()
)
_BEFORE_TABLE = frozenset(
    "INTO FROM UPDATE JOIN TABLE INSERT REPLACE IGNORE CALL DELETE QUICK LOW_PRIORITY DELAYED HIGH_PRIORITY".split()
)
_OPTIONS = frozenset(
    "AUTO_INCREMENT AUTOEXTEND_SIZE AVG_ROW_LENGTH CHECKSUM COMMENT COMPRESSION CONNECTION DELAY_KEY_WRITE ENCRYPTION"
    " ENGINE_ATTRIBUTE INSERT_METHOD ITEF_QUOTES KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS PACK_KEYS PAGE_CHECKSUM"
    " PAGE_COMPRESSED"
    " PAGE_COMPRESSION_LEVEL ROW_FORMAT SECONDARY_ENGINE_ATTRIBUTE STATS_AUTO_RECALC STATS_PERSISTENT"
    " STATS_SAMPLE_PAGES"
    " TRANSACTIONAL ALGORITHM LOCK COLLATE CHARSET".split()
)
_ALIASES = {
    "BOOL": "tinyint(1)",
    "BOOLEAN": "tinyint(1)",
    "INTEGER": "int",
    "INT1": "tinyint",
    "INT2": "smallint",
    "INT3": "mediumint",
    "MIDDLEINT": "mediumint",
    "INT4": "int",
    "INT8": "bigint",
    "DEC": "decimal",
    "NUMERIC": "decimal",
    "FIXED": "decimal",
    "REAL": "double",
    "FLOAT4": "float",
    "FLOAT8": "double",
    "CHARACTER": "char",
    "GEOMCOLLECTION": "geometrycollection",
}
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_PLAIN_TYPES = frozenset(
    "date json tinytext text mediumtext longtext tinyblob blob mediumblob longblob geometry point linestring"
    " polygon multipoint"
    " multilinestring multipolygon geometrycollection uuid inet6 inet4 double float".split()
)
_FLOAT_BITS = 24  # a FLOAT(p) with more is a DOUBLE
_EMPTIED = re.compile(r"DELETE FROM `(?:[^`]|``)*`\.`(?:[^`]|``)*`\s*/\* ?generated by server[^*]*\*/")
_SHOWN = 200
_MAX_VARCHAR = 16_383  # characters of four bytes
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
_EMPTY_STRING_IS_NULL = 1 << 32  # MariaDB's; the bit means another mode on MySQL
_OTHER_TYPES = 1 << 0 | 1 << 9 | 1 << 12  # REAL_AS_FLOAT, ORACLE, MAXDB: names of types mean others
_SWE7 = dict(enumerate(code_points("swe7")))
_SWE7_ESCAPED = _SWE7 | {ord("\\"): ord("\\")}


def shown(statement: str) -> str:
    """A statement for a message: on one line, shortened."""
    line = " ".join(statement.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."


def classify(
    statement: str,
    default_db: str,
    schemas: Mapping[str, TableSchema],
    *,
    primary: Set[str] = frozenset(),
    unread: Set[str] = frozenset(),
    mariadb: bool = False,
    folds_case: bool = False,
    sql_mode: int = 0,
) -> list[Effect]:
    """The effects of a statement on the captured tables: at most one for each table, in the statement's order.

    `statement` is one statement as the binlog has it, `default_db` the session's database, `schemas` the captured
    tables by "db.table" as they are before it. `primary` names the tables whose identity is certainly the primary key:
    others are restarted when an index is dropped, since it may be their identity. `unread` names the tables whose first
    row event will set the schema: earlier DDL is ignored unless it moves rows in. `mariadb`: JSON is longtext, and
    `/*M! */` no comment. `folds_case`: table names are the same in upper and lower case. `sql_mode` is the session's,
    from the event.
    """
    tokens = list(_tokens(statement, sql_mode, mariadb))
    if not tokens or not schemas:
        return []
    reading = _Statement(tokens, statement, default_db, schemas, primary, unread, mariadb, folds_case, sql_mode)
    found: dict[str, Effect] = {}
    for effect in reading.effects():
        if effect.table_id not in found or isinstance(effect, Restart | Quarantine):
            found[effect.table_id] = effect
    return list(found.values())


def _tokens(statement: str, sql_mode: int, mariadb: bool) -> Iterator[_Token]:
    hints = 0
    plain = bool(sql_mode & _NO_BACKSLASH_ESCAPES)
    for found in _pattern(plain, mariadb).finditer(statement):
        kind, value = found.lastgroup, found[0]
        if kind == "hint":
            hints += 1
        elif kind == "unhint":
            if hints:
                hints -= 1
            else:
                yield _Token("sign", "*/")
        elif kind == "name":
            yield _Token("name", found["name"].replace("``", "`"))
        elif kind == "text" and value[0] == '"' and sql_mode & _ANSI_QUOTES:
            yield _Token("name", value[1:-1].replace('""', '"'))
        elif kind in ("text", "number", "word", "sign"):
            yield _Token(kind, value.replace("\\", "\\\\") if plain else value)  # type: ignore[arg-type]


def from_swe7(statement: str, sql_mode: int) -> str:
    """A statement in SWE7, decoded as ASCII, in Unicode. The server splits it as ASCII too, where é is a backtick and Ö
    a backslash; only text and names in quotes are Swedish."""
    escapes = not sql_mode & _NO_BACKSLASH_ESCAPES

    def swedish(found: re.Match[str]) -> str:
        if found.lastgroup == "name":
            return f"`{found['name'].replace('``', '`').translate(_SWE7)}`"
        if found.lastgroup != "text":
            return found[0]
        if escapes and not (found[0][0] == '"' and sql_mode & _ANSI_QUOTES):
            return "Ö".join(part.translate(_SWE7_ESCAPED) for part in found[0].split("\\\\"))
        return found[0].translate(_SWE7)

    return _pattern(not escapes, mariadb=True).sub(swedish, statement)


class _Statement:
    """The parser of one statement, with the captured tables."""

    def __init__(
        self,
        tokens: list[_Token],
        statement: str,
        db: str,
        schemas: Mapping[str, TableSchema],
        primary: Set[str],
        unread: Set[str],
        mariadb: bool,
        folds_case: bool,
        sql_mode: int,
    ) -> None:
        self.tokens, self.statement, self.db = tokens, statement, db
        self.schemas, self.primary, self.unread = schemas, primary, unread
        self.folded = str.lower if folds_case else str
        self.mariadb, self.sql_mode = mariadb, sql_mode
        self.at = 0

    # ---- reading ----

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at].upper if at < len(self.tokens) else ""

    def ended(self) -> bool:
        return self.at >= len(self.tokens) or (self.peek() == ";" and self.at + 1 >= len(self.tokens))

    def accept(self, *words: str) -> bool:
        """Skip these words if all of them come next."""
        if all(self.peek(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise _Unknown(f"expected {' '.join(words)}")

    def take(self) -> _Token:
        if self.at >= len(self.tokens):
            raise _Unknown("the statement ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def identifier(self) -> str:
        token = self.take()
        if token.kind in ("name", "word") or (token.kind == "text" and token.value[0] == '"'):
            return token.value[1:-1].replace('""', '"') if token.kind == "text" else token.value
        if token.kind == "number" and token.value.isalnum():
            return token.value
        raise _Unknown(f"expected a name, not {token.value!r}")

    def table(self) -> str:
        """A table's name, with the default database if it has none: "db.table"."""
        if self.peek() == ".":
            self.at += 1
            return f"{self.db}.{self.identifier()}"
        first = self.identifier()
        if self.peek() == ".":
            self.at += 1
            return f"{first}.{self.identifier()}"
        return f"{self.db}.{first}"

    def captured(self, table: str) -> list[str]:
        """The captured tables with this name; several if the server ignores case."""
        return [table_id for table_id in self.schemas if self.folded(table_id) == self.folded(table)]

    def parenthesis(self) -> None:
        """Skip (...) with its contents."""
        self.expect("(")
        depth = 1
        while depth:
            sign = self.take().upper
            depth += (sign == "(") - (sign == ")")

    # ---- statements ----

    def effects(self) -> list[Effect]:
        try:
            return self._effects()
        except _Unknown as unknown:
            return [self.restart(table_id, str(unknown)) for table_id in self.mentioned()]

    def restart(self, table_id: str, why: str) -> Restart:
        return Restart(
            table_id=table_id, cause=f"{table_id} must be snapshotted again after {shown(self.statement)} ({why})"
        )

    def by_statement(self, table_id: str) -> Quarantine:
        return Quarantine(
            table_id=table_id,
            cause=f"{table_id} may have been changed by a statement in the binlog instead of row events:"
            f" {shown(self.statement)}; set binlog_format = ROW in every session, then snapshot the table again",
        )

    def mentioned(self) -> list[str]:
        """Every captured table that a name in the statement may refer to."""
        names = [
            (token.value[1:-1] if token.kind == "text" else token.value).lower()
            for token in self.tokens
            if token.kind != "sign"
        ]
        words = set(names)
        databases = {*words, self.db.lower()}
        found = []
        for table_id in self.schemas:
            database, _, table = table_id.lower().partition(".")
            if (table in words and database in databases) or table_id.lower() in words:
                found.append(table_id)
        return found

    def _effects(self) -> list[Effect]:
        if self.accept("SET", "STATEMENT"):  # MariaDB's settings for the statement that follows
            while not self.accept("FOR"):
                if self.peek() == "(":
                    self.parenthesis()
                else:
                    self.take()
        verb = self.peek()
        if verb == "ALTER":
            return self._alter()
        if verb == "CREATE":
            return self._create()
        if verb == "DROP":
            return self._drop()
        if verb == "TRUNCATE":
            self.at += 1
            self.accept("TABLE")
            tables = self.captured(self.table())
            return [Truncate(table_id=table_id) for table_id in tables if table_id not in self.unread]
        if verb == "RENAME":
            self.at += 1
            if self.accept("USER"):
                return []
            if not self.accept("TABLES"):
                self.expect("TABLE")
            self.accept("IF", "EXISTS")
            return self._renamed()
        if verb in _DML:
            return self._dml()
        if verb == "ANALYZE" and self.peek(1) not in ("TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG"):
            return self._dml()  # MariaDB's ANALYZE of a statement runs it
        if verb in _IGNORED_VERBS:
            return []
        raise _Unknown("unknown statement")

    def _renamed(self) -> list[Effect]:
        effects: list[Effect] = []
        while True:
            old = self.table()
            while self.peek() in ("WAIT", "NOWAIT"):
                self.at += 1 if self.peek() == "NOWAIT" else 2
            self.expect("TO")
            new = self.table()
            effects += [self.restart(table_id, f"it was renamed to {new}") for table_id in self.captured(old)]
            effects += [self.restart(table_id, f"{old} took its name") for table_id in self.captured(new)]
            if not self.accept(","):
                return effects

    def _create(self) -> list[Effect]:
        self.at += 1
        temporary = False
        replaces = self.accept("OR", "REPLACE")
        while self.peek() in ("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE"):
            self.at += 1
            if self.accept("REFERENCE"):
                return []
        kind = self.peek()
        if kind in ("DATABASE", "SCHEMA") and replaces:
            return self._dropped_database()
        if kind in ("INDEX", "KEY") and replaces:  # MariaDB's
            return self._lost_index()
        if not (replaces and self.accept("SEQUENCE")):  # MariaDB's, which replaces a table too
            if kind in ("INDEX", "KEY", "DATABASE", "SCHEMA") or kind in _IGNORED_KINDS:
                return []  # a new index changes no row
            temporary = self.accept("TEMPORARY")
            self.expect("TABLE")
        exists = self.accept("IF", "NOT", "EXISTS")
        tables = self.captured(self.table())
        if temporary:  # the session logs statements only, and the next ones with this name mean the temporary table
            return [self.by_statement(table_id) for table_id in tables]
        if exists and not replaces:
            return []  # a captured table exists, else its DROP would have stopped it
        return [self.restart(table_id, "it was created anew") for table_id in tables]

    def _drop(self) -> list[Effect]:
        self.at += 1
        while self.peek() in ("ONLINE", "OFFLINE"):
            self.at += 1
        kind = self.peek()
        if kind in ("DATABASE", "SCHEMA"):
            return self._dropped_database()
        if kind in ("INDEX", "KEY"):
            return self._lost_index()
        if kind == "TEMPORARY" or kind in _IGNORED_KINDS or kind == "PREPARE":
            return []
        if not self.accept("TABLES"):
            self.expect("TABLE")
        self.accept("IF", "EXISTS")
        effects: list[Effect] = []
        while True:
            effects += [self.restart(table_id, "it was dropped") for table_id in self.captured(self.table())]
            if not self.accept(","):
                return effects

    def _lost_index(self) -> list[Effect]:
        self.at += 1
        self.accept("IF", "EXISTS")
        index = self.identifier()
        if self.accept("USING"):
            self.at += 1
        self.expect("ON")
        return [
            self.restart(table_id, f"the index {index} may have been its identity")
            for table_id in self.captured(self.table())
            if (index.upper() == "PRIMARY" or table_id not in self.primary) and table_id not in self.unread
        ]

    def _dropped_database(self) -> list[Effect]:
        self.at += 1
        self.accept("IF", "EXISTS")
        name = self.folded(self.identifier())
        return [
            self.restart(table_id, "its database was dropped")
            for table_id in self.schemas
            if self.folded(table_id.partition(".")[0]) == name
        ]

    def _dml(self) -> list[Effect]:
        """DML as a statement: the tables it names, and those that triggers and views in its databases may change."""
        if _EMPTIED.fullmatch(self.statement):
            return []  # a MEMORY table is empty after a server restart
        names = set(self.mentioned())
        databases = set()
        for i, token in enumerate(self.tokens):
            before = self.tokens[i - 1].upper if i else ""
            after = self.tokens[i + 1].upper if i + 1 < len(self.tokens) else ""
            if token.kind not in ("name", "word", "text"):
                continue
            if after == "." and before != ".":
                databases.add(token.value.strip('"').lower())
            elif before in _BEFORE_TABLE and token.upper not in _BEFORE_TABLE:
                databases.add(self.db.lower())
        return [
            self.by_statement(table_id)
            for table_id in self.schemas
            if table_id in names or table_id.partition(".")[0].lower() in databases
        ]

    # ---- ALTER TABLE ----

    def _alter(self) -> list[Effect]:
        self.at += 1
        ignores = False
        while self.peek() in ("ONLINE", "OFFLINE", "IGNORE"):
            ignores = ignores or self.peek() == "IGNORE"
            self.at += 1
        if self.peek() in ("DATABASE", "SCHEMA") or self.peek() in _IGNORED_KINDS:
            return []
        self.expect("TABLE")
        self.accept("IF", "EXISTS")
        table = self.table()
        tables = self.captured(table)
        while self.peek() in ("WAIT", "NOWAIT"):
            self.at += 1 if self.peek() == "NOWAIT" else 2
        begin = self.at
        if not self._moves_rows(begin):
            tables = [table_id for table_id in tables if table_id not in self.unread]
        if not tables:
            return self._others(begin)
        try:
            if ignores:
                raise _Unknown("ALTER IGNORE may remove rows")
            return [effect for table_id in tables for effect in self._altered(table_id, begin)]
        except (_Unknown, ValueError, SourceLost) as error:
            effects: list[Effect] = [self.restart(table_id, str(error)) for table_id in tables]
            return effects + self._others(begin)

    def _moves_rows(self, begin: int) -> bool:
        """Whether rows may move between the table and another one."""
        words = [token.upper for token in self.tokens[begin:]]
        return any(
            word in ("EXCHANGE", "IMPORT")
            or (word == "CONVERT" and after == "TABLE")
            or (word == "RENAME" and after not in ("COLUMN", "INDEX", "KEY"))
            for word, after in pairwise([*words, ""])
        )

    def _others(self, begin: int) -> list[Effect]:
        """ALTER TABLE other RENAME TO captured, or moving rows between a partition and a captured table: EXCHANGE
        PARTITION p WITH TABLE, CONVERT TABLE."""
        effects: list[Effect] = []
        for i in range(begin, len(self.tokens) - 1):
            if self.tokens[i].upper == "TABLE":
                self.at = i + 1
                effects += [
                    self.restart(table_id, "its rows were exchanged with a partition's")
                    for table_id in self.captured(self.table())
                ]
            if self.tokens[i].upper == "RENAME" and (i == begin or self.tokens[i - 1].upper == ","):
                self.at = i + 1
                if self.peek() in ("COLUMN", "INDEX", "KEY"):
                    continue
                if self.peek() in ("TO", "AS", "="):
                    self.at += 1
                effects += [
                    self.restart(table_id, "another table took its name") for table_id in self.captured(self.table())
                ]
        return effects

    def _altered(self, table_id: str, begin: int) -> list[Effect]:
        self.at = begin
        old = schema = self.schemas[table_id]
        self.added_null, self.inherits, self.recharged = True, False, False
        while not self.ended():
            schema = self._action(table_id, schema)
            if not self.accept(","):
                if self.ended():
                    break
                # options may follow each other without a comma
                if self.peek() not in _OPTIONS and self.peek() not in ("DEFAULT", "CHARACTER", "ENGINE"):
                    raise _Unknown(f"unexpected {self.take().value!r}")
        if self.inherits and self.recharged:
            raise _Unknown("a text column inherits the table's character set, which changes too")
        if schema == old:
            return []
        return [Evolve(table_id=table_id, schema=schema, nullable_add=self.added_null)]

    def _action(self, table_id: str, schema: TableSchema) -> TableSchema:
        word = self.peek()
        self.at += 1
        match word:
            case "ADD":
                return self._add(table_id, schema)
            case "DROP":
                return self._drop_action(table_id, schema)
            case "RENAME":
                if self.accept("COLUMN"):
                    self.added_null = False
                    name = self.identifier()
                    self.expect("TO")
                    return schema.rename_column(name, self.identifier())
                if self.peek() in ("INDEX", "KEY"):
                    self.at += 1
                    self.identifier()
                    self.expect("TO")
                    self.identifier()
                    return schema
                raise _Unknown("it was renamed")
            case "CHANGE" | "MODIFY":
                self.accept("COLUMN")
                if self.accept("IF", "EXISTS"):
                    raise _Unknown("the column may not have existed")
                name = self.identifier()
                new_name = self.identifier() if word == "CHANGE" else name
                return self._modify(table_id, schema, name, new_name)
            case "ALTER":
                if self.peek() in ("INDEX", "CHECK", "CONSTRAINT"):
                    self.at += 1
                else:
                    self._redefines(schema)
                    self.accept("COLUMN")
                self.identifier()
                self._rest()
                return schema
            case "ENGINE":
                self.accept("=")
                if self.identifier().lower() != "innodb":
                    raise _Unknown("its engine changes")
                return schema
            case "DEFAULT" | "CHARACTER":
                if word == "CHARACTER" or self.peek() == "CHARACTER":
                    self.accept("CHARACTER")
                    self.expect("SET")
                elif self.peek() in ("CHARSET", "COLLATE"):
                    self.at += 1
                else:
                    raise _Unknown("unknown option")
                return self._recharged(schema)
            case "FORCE":
                return schema
            case "ENABLE" | "DISABLE":
                self.expect("KEYS")
                return schema
            case "WITH" | "WITHOUT":
                self.expect("VALIDATION")
                return schema
            case "ORDER":
                self._rest()
                return schema
            case "COLLATE" | "CHARSET":
                return self._recharged(schema)
            case _ if word in _OPTIONS:
                self.accept("=")
                self.take()
                return schema
        raise _Unknown(f"{word or 'the next clause'} can change rows")

    def _recharged(self, schema: TableSchema) -> TableSchema:
        """The table's own character set, which applies only to columns added later."""
        self.accept("=")
        self.recharged = True
        charset = self._charset()
        if charset is None:
            raise _Unknown("unknown character set of the collation")
        return replace(schema, charset=charset)

    def _rest(self) -> None:
        """Skip the rest of an action."""
        while not self.ended() and self.peek() != ",":
            if self.peek() == "(":
                self.parenthesis()
            else:
                self.at += 1

    def _add(self, table_id: str, schema: TableSchema) -> TableSchema:
        word = self.peek()
        if word in (
            "INDEX",
            "KEY",
            "UNIQUE",
            "FULLTEXT",
            "SPATIAL",
            "VECTOR",
            "CHECK",
            "CONSTRAINT",
            "FOREIGN",
            "PRIMARY",
        ):
            begin = self.at
            self._rest()
            words = [token.upper for token in self.tokens[begin : self.at]]
            if "PRIMARY" in words:
                raise _Unknown("its primary key changes")
            if "CASCADE" in words or "NULL" in words:
                raise _Unknown("a foreign key may change its rows")
            return schema
        if word in ("PERIOD", "SYSTEM"):
            raise _Unknown("its rows become versioned")
        if word == "PARTITION":
            self.at += 1
            self._rest()
            return schema
        self.accept("COLUMN")
        if self.accept("IF", "NOT", "EXISTS"):
            if self.peek() != "(" and schema.has(self.tokens[self.at].value):
                self._rest()
                return schema
        if not self.accept("("):
            return self._add_column(schema, self.identifier())
        while True:
            schema = self._add_column(schema, self.identifier())
            if self.accept(")"):
                return schema
            self.expect(",")

    def _add_column(self, schema: TableSchema, name: str) -> TableSchema:
        column = self._definition(schema.charset)
        if column.auto_increment:
            raise _Unknown("the server generates the new column's values")
        if column.may_be_filled:
            raise _Unknown("the new TIMESTAMP may be the time of the statement")
        default = column.default
        if default is not None:
            default = _constant(column.type, default, quoted=column.quoted)
        if default is not None or not column.nullable:
            self.added_null = False
        return schema.add_column(
            name,
            column.type,
            nullable=column.nullable,
            charset=column.charset,
            initial_default=default,
            first=column.first,
            after=column.after,
        )

    def _modify(self, table_id: str, schema: TableSchema, name: str, new_name: str) -> TableSchema:
        self.added_null = False
        column = self._definition(schema.charset)
        if not schema.has(name):
            raise _Unknown(f"it has no column {name}")
        old = schema.column(name)
        self._redefines(schema)
        if old.nullable and column.may_be_filled:
            raise _Unknown(f"{name} may be set to the time of the statement where it was NULL")
        nullable: bool | None = column.nullable
        if old.name in schema.key:
            if column.collates:
                raise _Unknown(f"the collation of the key column {name} may change")
            if nullable and table_id not in self.primary:
                raise _Unknown(f"the key column {name} may become nullable")
            nullable = None
        kind = _like(old.mysql_type, column.type)
        if kind in ("uuid", "inet6", "inet4"):
            raise _Unknown(f"the column {name} may have been BINARY before, which looks like {kind} in row events")
        schema = schema.widen_column(name, kind, nullable=nullable, charset=column.charset)
        if new_name != old.name:
            schema = schema.rename_column(old.name, new_name)
        if column.first or column.after is not None:
            columns = [each for each in schema.columns if each.name != new_name]
            at = 0
            if column.after is not None:
                found = [i for i, each in enumerate(columns) if each.name.lower() == column.after.lower()]
                if not found:
                    raise _Unknown(f"it has no column {column.after}")
                at = found[0] + 1
            columns.insert(at, schema.column(new_name))
            schema = replace(schema, columns=tuple(columns))
        return schema

    def _redefines(self, schema: TableSchema) -> None:
        """A column's definition changes, perhaps in its collation, default or display width, which a schema lacks."""
        if any(column.generated for column in schema.columns):
            raise _Unknown("a generated column may depend on the redefined column")

    def _drop_action(self, table_id: str, schema: TableSchema) -> TableSchema:
        word = self.peek()
        if word in ("INDEX", "KEY", "CONSTRAINT"):
            self.at += 1
            self.accept("IF", "EXISTS")
            index = self.identifier()
            if index.upper() == "PRIMARY" or table_id not in self.primary:
                raise _Unknown(f"the index {index} may have been its identity")
            return schema
        if word == "FOREIGN":
            self.at += 1
            self.expect("KEY")
            self.accept("IF", "EXISTS")
            self.identifier()
            return schema
        if word == "CHECK":
            self.at += 1
            self.identifier()
            return schema
        if word in ("PRIMARY", "PARTITION", "PERIOD", "SYSTEM"):
            raise _Unknown(f"DROP {word} can change its rows or identity")
        self.accept("COLUMN")
        self.added_null = False
        if self.accept("IF", "EXISTS") and not schema.has(self.tokens[self.at].value):
            self.identifier()
            return schema
        schema = schema.drop_column(self.identifier())
        if self.peek() in ("RESTRICT", "CASCADE"):
            self.at += 1
        return schema

    # ---- column definitions ----

    def _definition(self, charset: str) -> _Definition:
        """A column's definition; text without a character set has `charset`, the table's."""
        json = self.mariadb and self.peek() == "JSON"
        column = _Definition(type=self._type(), charset="utf8mb4" if json else None)
        while not self.ended() and self.peek() not in (",", ")"):
            token = self.take()
            match token.upper:
                case "NOT":
                    self.expect("NULL")
                    column.nullable = False
                case "NULL":
                    column.explicit_null = True
                case "DEFAULT":
                    column.quoted = self.at < len(self.tokens) and self.tokens[self.at].kind == "text"
                    column.default = self._default()
                    if column.default is None and not self.mariadb:  # MariaDB may ignore it in a TIMESTAMP
                        column.explicit_null = True
                case "COMMENT" | "COLUMN_FORMAT" | "STORAGE" | "ENGINE_ATTRIBUTE" | "SECONDARY_ENGINE_ATTRIBUTE":
                    self.accept("=")
                    self.take()
                case "UNIQUE":
                    self.accept("KEY")
                case "AUTO_INCREMENT":
                    column.auto_increment = True
                case "VISIBLE" | "INVISIBLE":
                    pass
                case "CHARACTER" | "CHARSET":
                    if token.upper == "CHARACTER":
                        self.expect("SET")
                    column.charset = self._charset()
                case "COLLATE":
                    column.collates = True
                    collation_charset = self._charset()
                    column.charset = column.charset or collation_charset
                case "ON":
                    self.expect("UPDATE")
                    self.take()
                    if self.peek() == "(":
                        self.parenthesis()
                case "CHECK":
                    self.parenthesis()
                case "FIRST":
                    column.first = True
                case "AFTER":
                    column.after = self.identifier()
                case _:
                    raise _Unknown(f"unexpected {token.value!r} in a column's definition")
        if not column.type.startswith(_TEXTS):
            column.charset = None
        elif column.charset is None:
            column.charset, self.inherits = charset, True
        if column.charset == "binary":
            raise _Unknown("text with the character set binary becomes a binary type")
        return column

    def _charset(self) -> str | None:
        """The character set of a character set's or a collation's name; None for one of every character set, and for
        DEFAULT."""
        token = self.take()
        charset = (token.value[1:-1] if token.kind == "text" else token.value).lower().partition("_")[0]
        if charset == "utf8" and self.mariadb:
            raise _Unknown("the meaning of utf8 depends on the session's old_mode")
        return {"utf8": "utf8mb3", "uca1400": None, "default": None}.get(charset, charset)

    def _default(self) -> str | None:
        """A constant default's text; None for NULL."""
        token = self.take()
        sign = ""
        if token.value in ("-", "+"):
            sign, token = token.value.replace("+", ""), self.take()
        if token.kind == "number":
            return sign + token.value
        if token.kind == "text" and token.value[0] in "'\"" and not sign:
            if len(token.value) == 2 and self.mariadb and self.sql_mode & _EMPTY_STRING_IS_NULL:
                raise _Unknown("the session's sql_mode makes '' NULL")
            return _unquoted(token.value)
        if token.upper in ("TRUE", "FALSE"):
            return str(int(token.upper == "TRUE"))
        if token.upper == "NULL":
            return None
        raise _Unknown("the default is not a constant")

    def _type(self) -> str:
        """A column's type as information_schema prints it."""
        word = self.take()
        if word.kind != "word":
            raise _Unknown(f"expected a type, not {word.value!r}")
        if self.sql_mode & _OTHER_TYPES:
            raise _Unknown("the session's sql_mode gives types other meanings")
        base = _ALIASES.get(word.upper, word.value.lower())
        if base == "double":
            self.accept("PRECISION")
        if base in ("long", "national", "nchar", "nvarchar", "serial") or self.peek() == "VARYING":
            raise _Unknown(f"unknown type {word.value}")
        if base == "json" and self.mariadb:
            return "longtext"
        arguments: list[_Token] = []
        if self.accept("("):
            while not self.accept(")"):
                token = self.take()
                if token.kind not in ("number", "text") or token.value[0] in "nNxXbB":
                    raise _Unknown(f"unknown type {word.value}")
                arguments.append(token)
                if self.peek() != ")":
                    self.expect(",")
        values = [token.value for token in arguments]
        unsigned = False
        while self.peek() in ("UNSIGNED", "SIGNED", "ZEROFILL"):
            unsigned = unsigned or self.peek() != "SIGNED"
            self.at += 1
        tail = " unsigned" if unsigned else ""
        if base in ("enum", "set"):
            return column_type(MysqlType(base=base, members=tuple(_unquoted(value).rstrip(" ") for value in values)))
        if any(not value.isdecimal() for value in values):
            raise _Unknown(f"unknown type {word.value}")
        numbers = [int(value) for value in values]
        if base in _INTEGERS or base == "tinyint(1)":
            if base == "tinyint" and numbers == [1]:
                base = "tinyint(1)"
            return base + tail
        if base == "decimal":
            precision, scale = (*numbers, 0, 0)[:2]
            return f"decimal({precision or 10},{scale}){tail}"
        if base in ("float", "double") and len(numbers) == 2:
            return f"{base}({numbers[0]},{numbers[1]}){tail}"
        if base == "float" and len(numbers) == 1:
            return ("float" if numbers[0] <= _FLOAT_BITS else "double") + tail
        if base == "bit":
            return f"bit({max([1, *numbers])})"
        if base in ("char", "binary"):
            return f"{base}({numbers[0] if numbers else 1})"
        if base in ("varchar", "varbinary", "vector") and len(numbers) == 1:
            if base != "vector" and numbers[0] > _MAX_VARCHAR:
                raise _Unknown(f"a {word.value} of that length may become a TEXT or BLOB")
            return f"{base}({numbers[0]})"
        if base in ("datetime", "timestamp", "time"):
            return f"{base}({numbers[0]})" if numbers and numbers[0] else base
        if base == "year":
            return base
        if base in _PLAIN_TYPES and not numbers:
            return base + tail
        raise _Unknown(f"unknown type {word.value}")


@dataclass(slots=True, kw_only=True)
class _Definition:
    """A parsed column definition."""

    type: str
    nullable: bool = True
    explicit_null: bool = False
    default: str | None = None
    quoted: bool = False
    charset: str | None = None
    collates: bool = False
    auto_increment: bool = False
    first: bool = False
    after: str | None = None

    @property
    def may_be_filled(self) -> bool:
        """Whether the server may store its time instead of NULL: without explicit_defaults_for_timestamp."""
        return self.type.startswith("timestamp") and not self.explicit_null


_ESCAPE = re.compile(r"''|\"\"|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _unquoted(text: str) -> str:
    """The value of a string literal."""
    quote = text[0]
    return _ESCAPE.sub(
        lambda found: (
            quote if found[0] == quote * 2 else found[0] if found[1] is None else _ESCAPED.get(found[1], found[1])
        ),
        text[1:-1],
    )


def _like(old: str, new: str) -> str:
    """`new`, or `old` if they differ only in a display width."""
    a, b = parse_type(old), parse_type(new)
    same = a.base == b.base and a.base in _INTEGERS and a.unsigned == b.unsigned
    if same and (old == "tinyint(1)") == (new == "tinyint(1)"):  # which may be boolean
        return old
    return new


_FORMS = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "datetime": re.compile(r"\d{4}-\d\d-\d\d (?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"),
}


def _in_calendar(day: str) -> bool:
    """Whether that day exists, which the server does not check under ALLOW_INVALID_DATES."""
    try:
        date.fromisoformat(day)
    except ValueError:
        return False
    return True


def _constant(mysql_type: str, text: str, *, quoted: bool) -> str:
    """A constant default that every system reads alike; _Unknown for one that MySQL would convert, such as a number to
    text."""
    kind = parse_type(mysql_type)
    fits = False
    if kind.base in _INTEGERS:
        fits = re.fullmatch(r"-?\d{1,20}", text) is not None
    elif kind.base == "decimal":
        found = re.fullmatch(r"-?\d+(?:\.(\d+))?", text)
        fits = found is not None and len(found[1] or "") <= kind.numbers[1]
    elif kind.base == "double" and not kind.numbers:
        fits = re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", text) is not None
    elif not quoted:
        fits = False
    elif kind.base == "varchar":
        fits = len(text) <= kind.numbers[0]
    elif kind.base == "char":
        fits = len(text) <= kind.numbers[0] and not text.endswith(" ")
    elif kind.base == "enum":
        fits = text in kind.members
    elif kind.base in _FORMS:
        fits = _FORMS[kind.base].fullmatch(text) is not None and _in_calendar(text[:10])
    if not fits:
        raise _Unknown(f"the default {text!r} of type {mysql_type} may be converted by the server")
    return text
