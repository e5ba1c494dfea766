"""The SQL of a statement in the binlog, as far as ddl.py needs it: tokens, names, column definitions (pure).

`tokens_of` splits a statement by MySQL's rules: comments removed, `/*! */` and `/*M! */` read as the server reads them,
every way of quoting. `SqlReader` reads the tokens one after another. ddl.py decides what a statement does to tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from cutline.common.schema import MysqlType, column_type
from cutline.common.table_id import table_id_of
from cutline.services.sources.mysql.decode.charsets import code_points

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
INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_PLAIN_TYPES = frozenset(
    "date json tinytext text mediumtext longtext tinyblob blob mediumblob longblob geometry point linestring polygon"
    " multipoint multilinestring multipolygon geometrycollection uuid inet6 inet4 double float".split()
)
_FLOAT_BITS = 24  # a FLOAT(p) with more is a DOUBLE
_MAX_VARCHAR = 16_383  # characters of four bytes
_ANSI_QUOTES, _IGNORE_SPACE, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 3, 1 << 20
_EMPTY_STRING_IS_NULL = 1 << 32  # MariaDB's; the bit means another mode on MySQL
ORACLE = 1 << 9
"""The bit of MariaDB's sql_mode=ORACLE; MySQL never sets it."""
_OTHER_TYPES = 1 << 0 | ORACLE | 1 << 12  # REAL_AS_FLOAT, ORACLE, MAXDB: names of types mean other types
_SWE7 = dict(enumerate(code_points("swe7")))
_SWE7_ESCAPED = _SWE7 | {ord("\\"): ord("\\")}


@dataclass(frozen=True, slots=True)
class Token:
    """`value` is as written, except that a `name` is without its quotes, and that a backslash without a meaning
    (NO_BACKSLASH_ESCAPES) is doubled. A `text` is a literal in quotes. `apart`: a space or a comment is before it, and
    the session's sql_mode is without IGNORE_SPACE."""

    kind: Literal["name", "text", "word", "number", "sign"]
    value: str
    apart: bool = field(default=False, compare=False)

    @property
    def upper(self) -> str:
        """A word or a sign in upper case; empty for other tokens."""
        return self.value.upper() if self.kind in ("word", "sign") else ""


class NotUnderstood(Exception):
    """A statement's form, or its effect on rows, is not known; the text says why."""


@cache
def _pattern(plain: bool, mariadb: bool) -> re.Pattern[str]:
    """Matches one token; `plain`: a backslash in quotes is an ordinary character (NO_BACKSLASH_ESCAPES)."""
    single, double = (r"[^']|''", r'[^"]|""') if plain else (r"[^'\\]|''|\\.", r'[^"\\]|""|\\.')
    executed = "M?!" if mariadb else "!"  # begins a comment that the server executes
    return re.compile(
        rf"""(?P<space>\s+|--(?=[\s]|$)[^\n]*|\#[^\n]*|/\*(?!{executed})(?:.|\n)*?(?:\*/|$))
        |(?P<hint>/\*{executed}\d*)|(?P<unhint>\*/)
        |`(?P<name>(?:[^`]|``)*)`
        |(?P<text>[nNxXbB]?'(?:{single})*'|"(?:{double})*")
        |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w$])|(?<![\w$`"\u0080-\U0010ffff])\.\d+)
        |(?P<word>[\w$@\u0080-\U0010ffff]+)
        |(?P<sign>.)""",
        re.VERBOSE | re.DOTALL,
    )


def tokens_of(statement: str, sql_mode: int, mariadb: bool) -> Iterator[Token]:
    """The tokens of a statement of a session with this `sql_mode`."""
    hints = 0  # executed comments that are open
    apart, counts = False, not sql_mode & _IGNORE_SPACE
    plain = bool(sql_mode & _NO_BACKSLASH_ESCAPES)
    for found in _pattern(plain, mariadb).finditer(statement):
        kind, value = found.lastgroup, found[0]
        before, apart = apart, counts and kind in ("space", "hint", "unhint")
        if kind == "hint":
            hints += 1
        elif kind == "unhint":
            if hints:
                hints -= 1
            else:
                yield Token("sign", "*/")
        elif kind == "name":
            yield Token("name", found["name"].replace("``", "`"))
        elif kind == "text" and value[0] == '"' and sql_mode & _ANSI_QUOTES:
            yield Token("name", value[1:-1].replace('""', '"'))
        elif kind in ("text", "number", "word", "sign"):
            yield Token(kind, value.replace("\\", "\\\\") if plain else value, before)  # type: ignore[arg-type]


def from_swe7(statement: str, sql_mode: int) -> str:
    """A statement in SWE7, which was decoded as ASCII, in Unicode. The server too splits it as ASCII, where é is a
    backtick and Ö a backslash; only text and names in quotes are Swedish."""
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


class SqlReader:
    """Reads one statement; `at` is the index of the next token. A method raises NotUnderstood if the next tokens are
    not of the form that it reads. `db` and `sql_mode` are the session's; `mariadb`: JSON is longtext."""

    def __init__(self, tokens: list[Token], db: str, *, mariadb: bool, sql_mode: int) -> None:
        self.tokens, self.db = tokens, db
        self.at = 0
        self._mariadb, self.sql_mode = mariadb, sql_mode

    def peek(self, ahead: int = 0) -> str:
        """The next token, or one after it, as `Token.upper`; empty at the end."""
        at = self.at + ahead
        return self.tokens[at].upper if at < len(self.tokens) else ""

    def ended(self) -> bool:
        """Whether no token is left, besides a semicolon at the end."""
        return self.at >= len(self.tokens) or (self.peek() == ";" and self.at + 1 >= len(self.tokens))

    def accept(self, *words: str) -> bool:
        """Skip these words if all of them come next; whether they did."""
        if all(self.peek(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        """Skip these words; NotUnderstood if something else comes next."""
        if not self.accept(*words):
            raise NotUnderstood(f"expected {' '.join(words)}")

    def skip(self, tokens: int = 1) -> None:
        """Skip so many tokens."""
        self.at += tokens

    def take(self) -> Token:
        """The next token; NotUnderstood at the end."""
        if self.at >= len(self.tokens):
            raise NotUnderstood("the statement ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def identifier(self) -> str:
        """A name, in quotes or not."""
        token = self.take()
        if token.kind in ("name", "word") or (token.kind == "text" and token.value[0] == '"'):
            return token.value[1:-1].replace('""', '"') if token.kind == "text" else token.value
        if token.kind == "number" and token.value.isalnum():
            return token.value
        raise NotUnderstood(f"expected a name, not {token.value!r}")

    def table(self) -> str:
        """A table's id, with the session's database if it names none."""
        if self.peek() == ".":
            self.at += 1
            return table_id_of(self.db, self.identifier())
        first = self.identifier()
        if self.peek() == ".":
            self.at += 1
            return table_id_of(first, self.identifier())
        return table_id_of(self.db, first)

    def parenthesis(self) -> None:
        """Skip (...) with its contents."""
        self.expect("(")
        depth = 1
        while depth:
            sign = self.take().upper
            depth += (sign == "(") - (sign == ")")

    def rest(self) -> None:
        """Skip up to the next comma that is not in parentheses."""
        while not self.ended() and self.peek() != ",":
            if self.peek() == "(":
                self.parenthesis()
            else:
                self.at += 1

    # ---- column definitions ----

    def column_definition(self, charset: str) -> ColumnDefinition:
        """A column's definition after its name; text without a character set inherits `charset`, the table's."""
        json = self._mariadb and self.peek() == "JSON"
        column = ColumnDefinition(type=self._type(), charset="utf8mb4" if json else None)
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
                    if column.default is None and not self._mariadb:  # MariaDB may ignore it for a TIMESTAMP
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
                    column.charset = self.charset()
                case "COLLATE":
                    column.collates = True
                    collation_charset = self.charset()
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
                    raise NotUnderstood(f"unexpected {token.value!r} in a column's definition")
        if not column.type.startswith(_TEXTS):
            column.charset = None
        elif column.charset is None:
            column.charset, column.inherits_charset = charset, True
        if column.charset == "binary":
            raise NotUnderstood("text with the character set binary becomes a binary type")
        return column

    def charset(self) -> str | None:
        """A character set, by its name or a collation's; None for DEFAULT and for a collation of all of them."""
        token = self.take()
        charset = (token.value[1:-1] if token.kind == "text" else token.value).lower().partition("_")[0]
        if charset == "utf8" and self._mariadb:
            raise NotUnderstood("the meaning of utf8 depends on the session's old_mode")
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
            if len(token.value) == 2 and self._mariadb and self.sql_mode & _EMPTY_STRING_IS_NULL:
                raise NotUnderstood("the session's sql_mode makes '' NULL")
            return _unquoted(token.value)
        if token.upper in ("TRUE", "FALSE"):
            return str(int(token.upper == "TRUE"))
        if token.upper == "NULL":
            return None
        raise NotUnderstood("the default is not a constant")

    def _type(self) -> str:
        """A column's type as information_schema prints it."""
        word = self.take()
        if word.kind != "word":
            raise NotUnderstood(f"expected a type, not {word.value!r}")
        if self.sql_mode & _OTHER_TYPES:
            raise NotUnderstood("the session's sql_mode gives types other meanings")
        base = _ALIASES.get(word.upper, word.value.lower())
        if base == "double":
            self.accept("PRECISION")
        if base in ("long", "national", "nchar", "nvarchar", "serial") or self.peek() == "VARYING":
            raise NotUnderstood(f"unknown type {word.value}")
        if base == "json" and self._mariadb:
            return "longtext"
        arguments: list[Token] = []
        if self.accept("("):
            while not self.accept(")"):
                token = self.take()
                if token.kind not in ("number", "text") or token.value[0] in "nNxXbB":
                    raise NotUnderstood(f"unknown type {word.value}")
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
            raise NotUnderstood(f"unknown type {word.value}")
        numbers = [int(value) for value in values]
        if base in INTEGERS or base == "tinyint(1)":
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
                raise NotUnderstood(f"a {word.value} of that length may become a TEXT or BLOB")
            return f"{base}({numbers[0]})"
        if base in ("datetime", "timestamp", "time"):
            return f"{base}({numbers[0]})" if numbers and numbers[0] else base
        if base == "year":
            return base
        if base in _PLAIN_TYPES and not numbers:
            return base + tail
        raise NotUnderstood(f"unknown type {word.value}")


@dataclass(slots=True, kw_only=True)
class ColumnDefinition:
    """A column's definition in a statement. `quoted`: the default is a literal in quotes. `collates`: it names a
    collation. `inherits_charset`: its character set is the table's default."""

    type: str
    nullable: bool = True
    explicit_null: bool = False
    default: str | None = None
    quoted: bool = False
    charset: str | None = None
    inherits_charset: bool = False
    collates: bool = False
    auto_increment: bool = False
    first: bool = False
    after: str | None = None

    @property
    def may_be_filled(self) -> bool:
        """Whether the server may store the current time instead of NULL (without explicit_defaults_for_timestamp)."""
        return self.type.startswith("timestamp") and not self.explicit_null


_ESCAPE = re.compile(r"''|\"\"|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _unquoted(text: str) -> str:
    """The value of a literal in quotes."""
    quote = text[0]
    return _ESCAPE.sub(
        lambda found: (
            quote if found[0] == quote * 2 else found[0] if found[1] is None else _ESCAPED.get(found[1], found[1])
        ),
        text[1:-1],
    )
