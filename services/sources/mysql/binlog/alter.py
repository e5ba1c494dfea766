"""The clauses of ALTER TABLE, by which a table's columns change and no row does (pure).

`Alteration` follows them one by one. It raises `NotUnderstood` (or a schema's own ValueError or SourceLost) for a
clause that may change a row, or that it does not know: then the table must be snapshotted again.

Assumed, since no statement shows it: AUTO_INCREMENT is not added to a column that holds zeros.
Change together with: common/schema.py (the evolution of a schema), binlog/ddl.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

from cutline.common.schema import TableSchema, parse_type
from cutline.services.sources.mysql.binlog.sql import INTEGERS, ColumnDefinition, NotUnderstood, SqlReader

_OPTIONS = frozenset(
    "AUTO_INCREMENT AUTOEXTEND_SIZE AVG_ROW_LENGTH CHECKSUM COMMENT COMPRESSION CONNECTION DELAY_KEY_WRITE ENCRYPTION"
    " ENGINE_ATTRIBUTE INSERT_METHOD ITEF_QUOTES KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS PACK_KEYS PAGE_CHECKSUM"
    " PAGE_COMPRESSED PAGE_COMPRESSION_LEVEL ROW_FORMAT SECONDARY_ENGINE_ATTRIBUTE STATS_AUTO_RECALC STATS_PERSISTENT"
    " STATS_SAMPLE_PAGES TRANSACTIONAL ALGORITHM LOCK COLLATE CHARSET".split()
)


class Alteration:
    """The clauses of one ALTER on one table, which `sql` is about to read. `primary`: the table's identity is certainly
    its primary key.

    `added_null`: only columns were added that are null in every row.
    """

    def __init__(self, sql: SqlReader, *, primary: bool) -> None:
        self.sql, self.primary = sql, primary
        self.added_null = True
        self.inherits_charset = self.charset_changed = False

    def schema_after(self, schema: TableSchema) -> TableSchema:
        """The schema after all clauses."""
        while not self.sql.ended():
            schema = self._action(schema)
            if not self.sql.accept(","):
                if self.sql.ended():
                    break
                # options may follow each other without a comma
                if self.sql.peek() not in _OPTIONS and self.sql.peek() not in ("DEFAULT", "CHARACTER", "ENGINE"):
                    raise NotUnderstood(f"unexpected {self.sql.take().value!r}")
        if self.inherits_charset and self.charset_changed:
            raise NotUnderstood("a text column inherits the table's character set, which changes too")
        return schema

    def _action(self, schema: TableSchema) -> TableSchema:
        word = self.sql.peek()
        self.sql.skip()
        match word:
            case "ADD":
                return self._add(schema)
            case "DROP":
                return self._drop_action(schema)
            case "RENAME":
                if self.sql.accept("COLUMN"):
                    self.added_null = False
                    name = self.sql.identifier()
                    self.sql.expect("TO")
                    return schema.rename_column(name, self.sql.identifier())
                if self.sql.peek() in ("INDEX", "KEY"):
                    self.sql.skip()
                    self.sql.identifier()
                    self.sql.expect("TO")
                    self.sql.identifier()
                    return schema
                raise NotUnderstood("it was renamed")
            case "CHANGE" | "MODIFY":
                self.sql.accept("COLUMN")
                if self.sql.accept("IF", "EXISTS"):
                    raise NotUnderstood("the column may not have existed")
                name = self.sql.identifier()
                new_name = self.sql.identifier() if word == "CHANGE" else name
                return self._modify(schema, name, new_name)
            case "ALTER":
                if self.sql.peek() in ("INDEX", "CHECK", "CONSTRAINT"):
                    self.sql.skip()
                else:
                    self._redefine(schema)
                    self.sql.accept("COLUMN")
                self.sql.identifier()
                self.sql.rest()
                return schema
            case "ENGINE":
                self.sql.accept("=")
                if self.sql.identifier().lower() != "innodb":
                    raise NotUnderstood("its engine changes")
                return schema
            case "DEFAULT" | "CHARACTER":
                if word == "CHARACTER" or self.sql.peek() == "CHARACTER":
                    self.sql.accept("CHARACTER")
                    self.sql.expect("SET")
                elif self.sql.peek() in ("CHARSET", "COLLATE"):
                    self.sql.skip()
                else:
                    raise NotUnderstood("unknown option")
                return self._table_charset(schema)
            case "FORCE":
                return schema
            case "ENABLE" | "DISABLE":
                self.sql.expect("KEYS")
                return schema
            case "WITH" | "WITHOUT":
                self.sql.expect("VALIDATION")
                return schema
            case "ORDER":
                self.sql.rest()
                return schema
            case "COLLATE" | "CHARSET":
                return self._table_charset(schema)
            case _ if word in _OPTIONS:
                self.sql.accept("=")
                self.sql.take()
                return schema
        raise NotUnderstood(f"{word or 'the next clause'} can change rows")

    def _table_charset(self, schema: TableSchema) -> TableSchema:
        """The table's default character set changes, which applies only to columns added later."""
        self.sql.accept("=")
        self.charset_changed = True
        charset = self.sql.charset()
        if charset is None:
            raise NotUnderstood("unknown character set of the collation")
        return replace(schema, charset=charset)

    def _add(self, schema: TableSchema) -> TableSchema:
        word = self.sql.peek()
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
            begin = self.sql.at
            self.sql.rest()
            words = [token.upper for token in self.sql.tokens[begin : self.sql.at]]
            if "PRIMARY" in words:
                raise NotUnderstood("its primary key changes")
            if "CASCADE" in words or "NULL" in words:
                raise NotUnderstood("a foreign key may change its rows")
            return schema
        if word in ("PERIOD", "SYSTEM"):
            raise NotUnderstood("its rows become versioned")
        if word == "PARTITION":
            self.sql.skip()
            self.sql.rest()
            return schema
        self.sql.accept("COLUMN")
        if_missing = self.sql.accept("IF", "NOT", "EXISTS")
        if not self.sql.accept("("):
            name = self.sql.identifier()
            if if_missing and schema.has(name):
                self.sql.rest()
                return schema
            return self._add_column(schema, name)
        while True:
            schema = self._add_column(schema, self.sql.identifier())
            if self.sql.accept(")"):
                return schema
            self.sql.expect(",")

    def _add_column(self, schema: TableSchema, name: str) -> TableSchema:
        column = self._definition(schema)
        if column.auto_increment:
            raise NotUnderstood("the server generates the new column's values")
        if column.may_be_filled:
            raise NotUnderstood("the new TIMESTAMP may be the time of the statement")
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

    def _modify(self, schema: TableSchema, name: str, new_name: str) -> TableSchema:
        self.added_null = False
        column = self._definition(schema)
        if not schema.has(name):
            raise NotUnderstood(f"it has no column {name}")
        old = schema.column(name)
        self._redefine(schema)
        if old.nullable and column.may_be_filled:
            raise NotUnderstood(f"{name} may be set to the time of the statement where it was NULL")
        nullable: bool | None = column.nullable
        if old.name in schema.key:
            if column.collates:
                raise NotUnderstood(f"the collation of the key column {name} may change")
            if nullable and not self.primary:
                raise NotUnderstood(f"the key column {name} may become nullable")
            nullable = None
        kind = _like(old.mysql_type, column.type)
        if kind in ("uuid", "inet6", "inet4"):
            raise NotUnderstood(f"the column {name} may have been BINARY before, which looks like {kind} in row events")
        schema = schema.widen_column(name, kind, nullable=nullable, charset=column.charset)
        if new_name != old.name:
            schema = schema.rename_column(old.name, new_name)
        if column.first or column.after is not None:
            columns = [each for each in schema.columns if each.name != new_name]
            at = 0
            if column.after is not None:
                found = [i for i, each in enumerate(columns) if each.name.lower() == column.after.lower()]
                if not found:
                    raise NotUnderstood(f"it has no column {column.after}")
                at = found[0] + 1
            columns.insert(at, schema.column(new_name))
            schema = replace(schema, columns=tuple(columns))
        return schema

    def _definition(self, schema: TableSchema) -> ColumnDefinition:
        column = self.sql.column_definition(schema.charset)
        self.inherits_charset = self.inherits_charset or column.inherits_charset
        return column

    def _redefine(self, schema: TableSchema) -> None:
        """A column's definition changes, perhaps in its collation, default or display width, which our schema lacks:
        only without generated columns is the effect known."""
        if any(column.generated for column in schema.columns):
            raise NotUnderstood("a generated column may depend on the redefined column")

    def _drop_action(self, schema: TableSchema) -> TableSchema:
        word = self.sql.peek()
        if word in ("INDEX", "KEY", "CONSTRAINT"):
            self.sql.skip()
            self.sql.accept("IF", "EXISTS")
            index = self.sql.identifier()
            if index.upper() == "PRIMARY" or not self.primary:
                raise NotUnderstood(f"the index {index} may have been its identity")
            return schema
        if word == "FOREIGN":
            self.sql.skip()
            self.sql.expect("KEY")
            self.sql.accept("IF", "EXISTS")
            self.sql.identifier()
            return schema
        if word == "CHECK":
            self.sql.skip()
            self.sql.identifier()
            return schema
        if word in ("PRIMARY", "PARTITION", "PERIOD", "SYSTEM"):
            raise NotUnderstood(f"DROP {word} can change its rows or identity")
        self.sql.accept("COLUMN")
        self.added_null = False
        if_there, name = self.sql.accept("IF", "EXISTS"), self.sql.identifier()
        if if_there and not schema.has(name):
            return schema
        schema = schema.drop_column(name)
        if self.sql.peek() in ("RESTRICT", "CASCADE"):
            self.sql.skip()
        return schema


def _like(old: str, new: str) -> str:
    """`new`, or `old` if they differ only in a display width."""
    before, after = parse_type(old), parse_type(new)
    same = before.base == after.base and before.base in INTEGERS and before.unsigned == after.unsigned
    if same and (old == "tinyint(1)") == (new == "tinyint(1)"):  # tinyint(1) may be boolean
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
    """A constant default that every system reads alike; NotUnderstood for one that MySQL would convert, such as a
    number to text."""
    kind = parse_type(mysql_type)
    fits = False
    if kind.base in INTEGERS:
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
        raise NotUnderstood(f"the default {text!r} of type {mysql_type} may be converted by the server")
    return text
