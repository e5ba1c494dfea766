"""The same for tables that Hypothesis makes, and by PyMySQL and mysql-replication where these are right."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from cutline.common.schema import parse_type
from tests.conftest import FULL
from tests.support.databases import Database
from tests.support.decoders import BOTH
from tests.support.readings import (
    INTEGERS,
    TABLE_MAP,
    Readings,
    character_sets,
    connect,
    described,
    dumped,
    flushed,
    fraction,
    limits,
    logs_generated_columns,
    read_all_ways,
    sample,
)

EXAMPLES = 2000 if FULL else 20
"""How many generated tables a server is asked for."""

KEYED = re.compile(
    r"(TINY|SMALL|MEDIUM|BIG)?INT|DECIMAL|FLOAT|DOUBLE|BIT|DATE|TIME|YEAR|ENUM|SET|(VAR)?BINARY|(VAR)?CHAR"
)
"""Types that may be in a key."""


# ---- generated schemas and rows --------------------------------------------------------------------------------------


def _text(maximum: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=maximum)


def _letters(name: str) -> st.SearchStrategy[str]:
    """Text of a character set's own characters, and some of any."""
    generator = random.Random(name)
    own = sorted(set("".join(sample(name, generator, number) for number in range(3))) - {"\0"})
    return st.text(
        st.sampled_from(own) | st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40
    )


def _column(names: Sequence[str]) -> st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]:
    def decimal(shape: tuple[int, int]) -> tuple[str, st.SearchStrategy[Any]]:
        p, s = max(shape), min(*shape, 30)
        digits = st.text("0123456789", min_size=p, max_size=p)
        signs = st.sampled_from(["", "-"])
        whole = p - s
        return f"DECIMAL({p},{s})", st.builds(lambda d, g: f"{g}{d[:whole] or 0}.{d[whole:] or 0}", digits, signs)

    integers = st.sampled_from([(kind, st.integers(*limits(*spec))) for kind, spec in INTEGERS.items()])
    letters = {name: _letters(name) for name in names}
    texts = st.tuples(
        st.sampled_from(["CHAR(40)", "VARCHAR(60)", "VARCHAR(300)", "TEXT", "MEDIUMTEXT"]), st.sampled_from(names)
    ).map(lambda pair: (f"{pair[0]} CHARACTER SET {pair[1]}", letters[pair[1]]))
    binaries = st.sampled_from(["BINARY(40)", "VARBINARY(60)", "VARBINARY(300)", "BLOB", "TINYBLOB"]).map(
        lambda kind: (kind, st.binary(max_size=40))
    )
    bits = st.integers(1, 64).map(lambda n: (f"BIT({n})", st.integers(0, (1 << n) - 1)))
    fractions = st.integers(0, 6)
    moments = fractions.map(lambda n: (f"DATETIME({n})", st.datetimes().map(lambda at: fraction(str(at), n))))
    stamps = fractions.map(
        lambda n: (f"TIMESTAMP({n}) NULL", st.integers(1, (1 << 31) - 1).map(lambda at: _stamp(at, n)))
    )
    times = fractions.map(
        lambda n: (
            f"TIME({n})",
            st.builds(
                lambda g, h, m, s, f: fraction(f"{g}{h}:{m:02}:{s:02}.{f:06}", n),
                st.sampled_from(["", "-"]), st.integers(0, 838), st.integers(0, 59), st.integers(0, 58),
                st.integers(0, 999_999),
            ),
        )
    )  # fmt: skip
    floats = st.sampled_from(
        [
            ("FLOAT", st.floats(allow_nan=False, allow_infinity=False, width=32)),
            ("DOUBLE", st.floats(allow_nan=False, allow_infinity=False)),
        ]
    )
    members = st.lists(_text(6).map(lambda text: text.replace(",", "").rstrip()), min_size=1, max_size=20)
    chosen = members.map(lambda names: sorted({name.casefold(): name for name in names if name.isascii()}.values()))
    sets = chosen.filter(bool).map(
        lambda names: (
            f"SET({','.join(_quoted(name) for name in names)}) COLLATE utf8mb4_bin",
            st.integers(0, (1 << len(names)) - 1),
        )
    )
    enums = chosen.filter(bool).map(
        lambda names: (
            f"ENUM({','.join(_quoted(name) for name in names)}) COLLATE utf8mb4_bin",
            st.integers(1, len(names)),
        )
    )
    simple = st.sampled_from([("DATE", st.dates().map(str)), ("YEAR", st.one_of(st.just(0), st.integers(1901, 2155)))])
    values = st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | _text(20)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text(8), inner, max_size=4),
        max_leaves=12,
    )  # fmt: skip
    documents = st.just(("JSON", values.map(_json)))
    decimals = st.tuples(st.integers(1, 65), st.integers(0, 30)).map(decimal)
    return st.one_of(
        integers, texts, binaries, bits, moments, stamps, times, floats, sets, enums, simple, documents, decimals
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "''") + "'"


def _stamp(seconds: int, digits: int) -> str:
    at = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None, microsecond=seconds % 1_000_000)
    return fraction(str(at), digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A table: its columns' types, rows of their values, how many columns are computed from others, and of the key."""

    kinds: list[str]
    rows: list[list[Any]]
    computed: dict[int, str]
    key: int | None

    @property
    def columns(self) -> str:
        """What follows id and touched in CREATE TABLE."""
        parts = [f"c{i} {kind}{' NOT NULL' if i == self.key else ''}" for i, kind in enumerate(self.kinds)]
        parts += [
            f"g{i} {self.kinds[i].removesuffix(' NULL')} GENERATED ALWAYS AS (c{i}) {storage}"
            for i, storage in self.computed.items()
        ]
        return ", ".join([*parts, f"UNIQUE KEY (c{self.key}, id)"] if self.key is not None else parts)

    @property
    def places(self) -> str:
        """Where a row's values go."""
        return ", ".join(["%s"] * len(self.kinds) + ["DEFAULT"] * len(self.computed))


@st.composite
def tables(draw: st.DrawFn, column: st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]) -> Generated:
    columns = draw(st.lists(column, min_size=1, max_size=12))
    kinds = [kind for kind, _ in columns]
    able = [i for i, kind in enumerate(kinds) if KEYED.match(kind)]
    key = draw(st.none() | st.sampled_from(able)) if able else None
    values = [strategy if i == key else st.none() | strategy for i, (_, strategy) in enumerate(columns)]
    rows = draw(st.lists(st.tuples(*values), min_size=1, max_size=6))
    computed = draw(st.dictionaries(st.integers(0, len(kinds) - 1), st.sampled_from(["VIRTUAL", "STORED"]), max_size=3))
    return Generated(kinds=kinds, rows=[list(row) for row in rows], computed=computed, key=key)


@pytest.mark.timeout(3600 if FULL else 300)
def test_generated_tables_read_the_same_in_all_ways(source: Database, database: str) -> None:
    names = character_sets(source)
    assert len(names) >= 37
    refused: Counter[int] = Counter()
    computed = logs_generated_columns(source, database)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(tables(_column(names)))
    def agree(table: Generated) -> None:
        if not computed:
            table = replace(table, computed={})
        try:
            found = read_all_ways(source, database, table.columns, [(table.places, row) for row in table.rows])
        except pymysql.err.MySQLError as error:
            # a row too large, members alike, no JSON, equal keys, a key too long
            if error.args[0] not in (1118, 1291, 3140, 3141, 3157, 4025, 1071):
                raise
            refused[error.args[0]] += 1
        else:
            as_pymysql_reads(source, database, found)
            as_mysql_replication_reads(source, database, found)

    agree()
    assert refused.total() < EXAMPLES // 2, refused


def as_pymysql_reads(source: Database, database: str, found: Readings) -> None:
    """PyMySQL is right about all but FLOAT (six digits), TIME below zero, and dates that Python has not."""
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM t ORDER BY id")
        their_rows = cursor.fetchall()
    for at, column in enumerate(found.schema.columns):
        kind = parse_type(column.mysql_type)
        if kind.base in ("float", "vector"):
            continue
        for row, value in enumerate(found.column(column.name)):
            theirs = their_rows[row][at]
            if value is None or theirs is None:
                assert value is theirs, column
            elif kind.base == "time":
                if value >= 0:
                    assert datetime.timedelta(microseconds=value) == theirs, column
            elif kind.base == "bit" and kind.numbers in ((), (1,)):
                assert value == bool(theirs[0]), column
            elif kind.base == "timestamp":
                assert value.replace(tzinfo=None) == theirs, column
            elif kind.base == "decimal" or isinstance(value, decimal.Decimal):
                assert decimal.Decimal(value) == theirs, column
            else:
                assert value == theirs, column


def replicated(source: Database, database: str, found: Readings) -> list[dict[str, Any]]:
    """The rows as mysql-replication reads their INSERTs."""
    stream = BinLogStreamReader(
        connection_settings={
            "host": source.host, "port": source.port, "user": source.root_user, "password": "", "ssl_disabled": True,
        },
        server_id=4_000_000_002,
        log_file=found.start[0],
        log_pos=found.start[1],
        only_events=[WriteRowsEvent],
        only_schemas=[database],
        blocking=False,
        resume_stream=True,
        ignore_decode_errors=True,
    )  # fmt: skip
    with closing(stream):
        return [row["values"] for event in stream for row in event.rows]


PYTHONS = ("utf8mb4", "utf8mb3", "ascii", "latin2", "latin5", "cp850", "cp852", "cp1250", "cp1251", "koi8r", "koi8u")
"""Character sets that mysql-replication reads as MySQL does; elsewhere it has Python's codec, or leaves the bytes."""


def as_mysql_replication_reads(source: Database, database: str, found: Readings) -> None:
    """mysql-replication is right about all but what `test_where_mysql_replication_is_wrong` shows."""
    their_rows = replicated(source, database, found)
    for column in found.schema.columns:
        kind = parse_type(column.mysql_type)
        for ours, row in zip(found.inserted.column(column.name).to_pylist(), their_rows, strict=True):
            theirs = row[column.name]
            if ours is None:
                assert theirs is None, column
            elif kind.base == "set":
                assert (theirs or set()) - {""} == set(ours.split(",")) - {""}, column
            elif kind.base == "bit":
                assert (int.from_bytes(ours, "big") if isinstance(ours, bytes) else ours) == int(theirs, 2), column
            elif kind.base == "year":
                assert ours == theirs or (ours, theirs) == (0, 1900), column
            elif kind.base == "time":
                assert ours < 0 or datetime.timedelta(microseconds=ours) == theirs, column
            elif kind.base == "timestamp":
                assert ours.replace(tzinfo=None) == theirs, column
            elif kind.base == "binary":
                assert ours.rstrip(b"\0") == (theirs or b"").rstrip(b"\0"), column
            elif kind.base == "decimal" or isinstance(ours, decimal.Decimal):
                assert decimal.Decimal(ours) == theirs, column
            elif isinstance(ours, bytes):
                assert ours == (theirs or b""), column
            elif kind.base == "json":
                assert json.loads(ours) == _decoded(theirs), column
            elif kind.base == "enum" or column.charset is None or column.charset in PYTHONS:
                assert ours == theirs, column


def _decoded(value: Any) -> Any:
    """A document of mysql-replication's, whose texts are bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_decoded(name): _decoded(inner) for name, inner in value.items()}
    return [_decoded(inner) for inner in value] if isinstance(value, list) else value


def test_where_mysql_replication_is_wrong(source: Database, database: str) -> None:
    wrong: list[tuple[str, str, Any, Any]] = [
        # type, value, what it is, what mysql-replication makes of it
        ("YEAR", "0", 0, 1900),
        ("TIME(6)", "'-00:00:01.25'", -1_250_000, datetime.timedelta(seconds=-1, microseconds=-750_000)),
        ("BINARY(3)", "'a'", b"a\0\0", b"a"),
        ("VARBINARY(3)", "''", b"", ""),
        ("SET('a')", "''", "", None),
        ("VARCHAR(3) CHARACTER SET latin1", "x'81'", "\x81", ""),
        ("VARCHAR(3) CHARACTER SET swe7", "'ä'", "ä", b"{"),
        ("VARCHAR(3) CHARACTER SET sjis", "x'815F'", "\\", "\uff3c"),
    ]
    columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(wrong))
    found = read_all_ways(source, database, columns, [", ".join(value for _, value, *_ in wrong)])
    (their_row,) = replicated(source, database, found)
    for at, (kind, _, ours, theirs) in enumerate(wrong):
        assert found.column(f"c{at}") == [ours], kind
        assert their_row[f"c{at}"] == theirs, kind


def test_peers_read_the_same_where_they_are_right(source: Database, database: str) -> None:
    columns = (
        "a BIGINT, b DECIMAL(20,5), c VARCHAR(99), d DATETIME(6), e DATE, f DOUBLE, g BLOB, i INT UNSIGNED, y YEAR,"
        " m MEDIUMINT"
    )
    rows = ["-5, '123456789012345.12345', 'é€', '2020-01-02 03:04:05.000006', '1999-12-31', 1.5, 'abc', 4000000000,"
            " 2001, -8388608", ", ".join(["NULL"] * 10)]  # fmt: skip
    found = read_all_ways(source, database, columns, rows)
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM t ORDER BY id")
        ours = [list(row.values()) for row in found.by_select.to_pylist()]
        assert [list(row) for row in cursor.fetchall()] == ours
    ours = found.inserted.select([column.name for column in found.schema.columns]).to_pylist()
    assert replicated(source, database, found) == ours


def test_a_column_that_no_decoder_can_read_is_refused_by_name(mariadb: Database, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    with closing(connect(mariadb, database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        try:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, d DATETIME)")
        finally:
            cursor.execute("SET GLOBAL mysql56_temporal_format = ON")
        start = flushed(connection, mariadb)
        cursor.execute("INSERT INTO t VALUES (1, NOW())")
        schema = described(mariadb, connection, f"{database}.t")
        ((_, body),) = [event for event in dumped(mariadb, *start) if event[0] == TABLE_MAP]
        for module in BOTH:
            decoder = module.EventDecoder(body, schema, module.Place())
            assert len(decoder.faults) == 1
            assert "column d" in decoder.faults[0]
            with pytest.raises(ValueError, match="can't be decoded"):
                decoder.rows(30, b"")
