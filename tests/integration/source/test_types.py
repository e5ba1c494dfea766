"""The proof of fidelity: a row has the same bytes by SELECT, in its after-image and in the next before-image."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cutline.common.schema import OP, ROW, SEQ
from cutline.services.sources.mysql import keys
from cutline.services.sources.mysql.connection import Connection, RowStream, Source
from cutline.services.sources.mysql.connection import connect as cutline_connect
from cutline.services.sources.mysql.decode import charsets, codes
from tests.support.databases import Database
from tests.support.decoders import BOTH, INSTALLED
from tests.support.readings import (
    INTEGERS,
    changed,
    character_sets,
    connect,
    described,
    flushed,
    fraction,
    limits,
    logs_generated_columns,
    read_all_ways,
    same,
    sample,
    selected,
)


def feed(decoder: Any, blocks: Iterator[bytes]) -> None:
    """Feed blocks up to the result's end."""
    while not decoder.done:
        decoder.feed(next(blocks))


def test_integers_come_at_their_limits(source: Database, database: str) -> None:
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(INTEGERS))
    ranges = [limits(*spec) for spec in INTEGERS.values()]
    rows = [[low for low, _ in ranges], [high for _, high in ranges], [0] * len(ranges), [1] * len(ranges)]
    rows.append([max(low, -1) for low, _ in ranges])
    nulls = ", ".join(["NULL"] * len(ranges))
    found = read_all_ways(source, database, columns, [*(", ".join(map(str, row)) for row in rows), nulls])
    for i in range(len(INTEGERS)):
        assert found.column(f"c{i}") == [row[i] for row in rows] + [None]


DECIMALS = [(1, 0), (5, 2), (9, 9), (10, 0), (18, 9), (19, 0), (20, 10), (28, 10), (37, 1), (38, 0), (38, 30)]
WIDE_DECIMALS = [(39, 0), (40, 2), (45, 30), (65, 0), (65, 30)]


def test_decimals_are_exact_up_to_65_digits(source: Database, database: str) -> None:
    shapes = DECIMALS + WIDE_DECIMALS
    columns = ", ".join(f"c{i} DECIMAL({p},{s})" for i, (p, s) in enumerate(shapes))
    columns += ", z1 DECIMAL(12,3) UNSIGNED ZEROFILL, z2 DECIMAL(45,3) UNSIGNED ZEROFILL"

    def number(digits: str, scale: int) -> str:
        digits = digits.rjust(scale + 1, "0")
        return digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")

    rows = []
    for pattern in ("9", "1234567890", "0", "1000000000", "10", "0000000001"):
        for sign in ("", "-"):
            values = [sign + number((pattern * 65)[:p], s) for p, s in shapes]
            rows.append(", ".join(f"'{value}'" for value in [*values, "7.5", "00012.250"]))
    smallest = ["0." + "1".rjust(s, "0") if s else "1" for _, s in shapes]
    rows += [", ".join(f"'{sign}{value}'" for value in smallest) + ", 0, 0" for sign in ("", "-")]
    rows.append(", ".join(["NULL"] * (len(shapes) + 2)))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("c15")[0] == "9" * 35 + "." + "9" * 30
    assert str(found.column("c10")[0]) == "9" * 8 + "." + "9" * 30
    assert set(found.column("z2")[:1]) == {"12.250"}
    values: list[Any] = found.column("c4")
    assert str(values[1]) == "-" + "9" * 9 + "." + "9" * 9


def test_floats_and_doubles_are_exact(source: Database, database: str) -> None:
    columns = "f FLOAT, d DOUBLE, fd FLOAT(7,4), dd DOUBLE(20,6), fp FLOAT(30), du DOUBLE UNSIGNED"
    columns += ", fz FLOAT ZEROFILL, dz DOUBLE ZEROFILL, fdz FLOAT(9,3) ZEROFILL"
    floats = ["16777216", "3.1415927", "3.4028234e38", "1.17549435e-38", "1.4e-45", "-0.1", "1e-10", "0", "123456.79"]
    floats += ["-3.4028234e38", "-1.17549435e-38", "-1.4e-45"]
    doubles = ["1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "0.1", "123456789012345678", "-1e-7"]
    doubles += ["-1.7976931348623157e308", "-2.2250738585072014e-308", "-5e-324"]
    doubles += ["9007199254740993", "0.30000000000000004", "1e22", "1e23", "123.456"]
    generator = random.Random(4)
    for _ in range(150):
        bits = generator.getrandbits(64) & ~(0x7FF << 52) | generator.randrange(0x7FF) << 52
        doubles.append(repr(struct.unpack("<d", struct.pack("<Q", bits))[0]))
        bits = generator.getrandbits(32) & ~(0xFF << 23) | generator.randrange(0xFF) << 23
        floats.append(repr(struct.unpack("<f", struct.pack("<I", bits))[0]))
    rows = []
    for i in range(len(doubles)):
        f, d = floats[i % len(floats)], doubles[i]
        rows.append(f"{f}, {d}, {generator.uniform(-999, 999)}, {generator.uniform(-1e13, 1e13)}, {f}, ABS({d})")
        rows[-1] += f", ABS({f}), ABS({d}), {generator.uniform(0, 999)}"
    found = read_all_ways(source, database, columns, [*rows, ", ".join(["NULL"] * 9)])
    assert found.by_select.slice(len(rows)).drop(["id", "touched"]).to_pylist() == [
        dict.fromkeys("f d fd dd fp du fz dz fdz".split())
    ]
    for i, value in enumerate(found.column("d")[:-1]):
        assert value == float(doubles[i]), doubles[i]
    for i, value in enumerate(found.column("f")[:-1]):
        assert value == struct.unpack("<f", struct.pack("<f", float(floats[i % len(floats)])))[0]


def test_bits_and_binary_keep_every_byte(source: Database, database: str) -> None:
    widths = range(1, 65)
    columns = ", ".join(f"b{w} BIT({w})" for w in widths)
    columns += ", f1 BINARY, f20 BINARY(20), f255 BINARY(255), v0 VARBINARY(5), v400 VARBINARY(400)"
    columns += ", tb TINYBLOB, b BLOB, mb MEDIUMBLOB, lb LONGBLOB"
    patterns = [0x8000000000000001, 0x0123456789ABCDEF, 0, (1 << 64) - 1, 0xF0F0F0F00F0F0F0E]
    texts = [b"", b"\0", b" ", b"a ", b"\0\0a\0", b"\xff\xfe\0"]
    rows: list[Any] = []
    for i, text in enumerate(texts):
        bits = ", ".join(str(patterns[i % 5] >> (64 - w)) for w in widths)
        parts = [text[:1], text * 2, text * 9, text, text * 80, text, text * 99, text * 2000, text * 70000]
        rows.append((bits + ", %s" * 9, parts))
    rows.append((", ".join(["NULL"] * (len(widths) + 9)), None))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("b1") == [bool(patterns[i % 5] >> 63) for i in range(6)] + [None]
    assert found.column("b9")[0] == b"\x01\x00"
    assert found.column("f20")[:2] == [b"\0" * 20] * 2
    assert found.column("f20")[3] == b"a a " + b"\0" * 16
    assert found.column("lb")[5] == texts[5] * 70000


def test_times_keep_every_fraction_and_zero_dates_are_null(source: Database, database: str) -> None:
    columns = "d DATE, y YEAR" + "".join(
        f", dt{n} DATETIME({n}), ts{n} TIMESTAMP({n}) NULL, t{n} TIME({n})" for n in range(7)
    )
    stamps = [
        ("0001-01-01 00:00:00", "1970-01-01 00:00:01", "-838:59:59"),
        ("9999-12-31 23:59:59.999999", "2038-01-19 03:14:07.999999", "838:59:59"),
        ("2024-02-29 12:34:56.789012", "2024-02-29 12:34:56.789012", "-00:00:00.000001"),
        ("1000-01-01 00:00:00.000001", "2000-01-01 00:00:00.000010", "00:00:00.1"),
        ("1582-10-10 01:02:03.4", "1999-12-31 23:59:59.9", "-12:34:56.789012"),
        ("1901-01-01 00:00:00.5", "2001-09-09 01:46:40.5", "-838:59:58.999999"),
        ("0000-00-00 00:00:00", "0000-00-00 00:00:00", "00:00:00"),
        ("2024-00-10 00:00:00", "0000-00-00 00:00:00", "23:59:59.999999"),
        ("2024-10-00 11:22:33", "0000-00-00 00:00:00", "-00:59:59.5"),
        ("2023-02-31 11:22:33", "0000-00-00 00:00:00", "-00:00:01"),
    ]
    rows = []
    for moment, stamp, time in stamps:
        values = [moment[:10], "0000" if moment < "1901" else str(min(2155, int(moment[:4])))]
        for n in range(7):
            values += [fraction(moment, n), fraction(stamp, n), fraction(time, n)]
        rows.append(", ".join(f"'{value}'" for value in values))
    rows.append(", ".join(["NULL"] * 23))
    found = read_all_ways(source, database, columns, rows, sql_mode="'ALLOW_INVALID_DATES'")
    zero = [6, 7, 8, 9, 10]
    for name in ("d", *(f"dt{n}" for n in range(7)), *(f"ts{n}" for n in range(7))):
        assert [row for row, value in enumerate(found.column(name)) if value is None] == zero, name
    assert found.column("t6")[:3] == [-3_020_399_000_000, 3_020_399_000_000, -1]
    assert found.column("y")[:6] == [0, 2155, 2024, 0, 0, 1901]
    micros = found.by_select.column("dt6").cast(pa.int64()).to_pylist()
    assert micros[:2] == [-62_135_596_800_000_000, 253_402_300_799_999_999]
    with closing(connect(source, database)) as connection:
        for module in BOTH:
            decoder = module.ResultDecoder(found.schema)
            feed(decoder, RowStream(connection, keys.select_rows(found.schema, None, None)))
            decoder.take()
            assert decoder.zero_dates["d"] == 4
            assert decoder.zero_dates["ts3"] == 4


def test_years_of_two_digits_are_whole_years(mariadb: Database, fresh_database: Any) -> None:
    """SELECT tells the last two digits alone, of years that only an INSERT of before YEAR(2) can have too."""
    rows = ["70, 1970", "99, 1999", "'00', 2000", "24, 2024", "69, 2069", "2155, 2155", "'x', 0", "NULL, NULL"]
    found = read_all_ways(mariadb, fresh_database(mariadb), "y YEAR(2), z YEAR", rows)
    assert found.column("y") == [1970, 1999, 2000, 2024, 2069, 2055, 2000, None]
    assert found.column("z") == [1970, 1999, 2000, 2024, 2069, 2155, 0, None]


ZONE = "Cutline/Vienna"
SPRING, AUTUMN = 1_616_893_200, 1_635_642_000
"""When Vienna's clocks went from 01:59:59 to 03:00:00 on 2021-03-28, and from 02:59:59 to 02:00:00 on 2021-10-31."""


@pytest.fixture
def zone(source: Database) -> Iterator[str]:
    """A time zone with the two changes of 2021, as the server's own; it is taken away after the test."""
    tables = ("time_zone", "time_zone_name", "time_zone_transition", "time_zone_transition_type")
    source.execute(
        "INSERT INTO time_zone (Time_zone_id, Use_leap_seconds) VALUES (9999, 'N')",
        f"INSERT INTO time_zone_name VALUES ('{ZONE}', 9999)",
        "INSERT INTO time_zone_transition_type VALUES (9999, 0, 3600, 0, 'CET'), (9999, 1, 7200, 1, 'CEST')",
        f"INSERT INTO time_zone_transition VALUES (9999, {SPRING}, 1), (9999, {AUTUMN}, 0)",
        f"SET GLOBAL time_zone = '{ZONE}'",
        database="mysql",
    )
    yield ZONE
    source.execute("SET GLOBAL time_zone = 'SYSTEM'", database="mysql")
    source.execute(*(f"DELETE FROM {table} WHERE Time_zone_id = 9999" for table in tables), database="mysql")


def test_timestamps_around_a_dst_change_are_told_apart_whatever_the_zones_are(
    source: Database, database: str, zone: str
) -> None:
    """Sessions in the zone, in the server's (the same), and in fixed offsets, at both hours that are called 02:30."""
    moments = [at + second for at in (SPRING, AUTUMN) for second in (-3601, -3600, -1800, -1, 0, 1800, 3599, 3600)]
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, touched INT NOT NULL, d TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
            " ts TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6))"
        )
        start = flushed(connection, source)
        expected = []
        for session in ("DEFAULT", f"'{zone}'", "'+05:30'", "'-11:00'"):
            cursor.execute(f"SET time_zone = {session}")
            for moment in moments:
                cursor.execute(f"SET timestamp = {moment}.5")
                cursor.execute(f"INSERT INTO t (id, touched) VALUES ({len(expected)}, 0)")
                expected.append(moment)
        cursor.execute(f"SET time_zone = '{zone}'")  # and what a clock in Vienna showed
        cursor.execute(f"INSERT INTO t VALUES ({len(expected)}, 0, '2021-10-31 03:00:00', '2021-10-31 03:00:00.5')")
        expected.append(AUTUMN + 3600)
        cursor.execute("SET time_zone = '+00:00'")
        schema = described(source, connection, f"{database}.t")
    with closing(seam_connection(source)) as seam:
        for module in BOTH:
            by_select = selected(module, seam, schema)
            assert by_select.column("ts").cast(pa.int64()).to_pylist() == [at * 10**6 + 500_000 for at in expected]
            assert by_select.column("d").cast(pa.int64()).to_pylist() == [at * 10**6 for at in expected]
            same(by_select, changed(module, source, start, schema), schema, "SELECT and inserted image")


def seam_connection(server: Database) -> Connection:
    """A connection as Cutline opens it."""
    return cutline_connect(Source(host=server.host, port=server.port, user=server.user, password=server.password))


def test_enums_and_sets_come_as_utf_8_from_any_character_set(source: Database, database: str) -> None:
    sets = character_sets(source)
    assert len(sets) >= 37
    columns, many = [], ",".join(f"'m{i}'" for i in range(64))
    for name in sets:
        columns.append(f"e_{name} ENUM('a','{letter(name)}','c d') CHARACTER SET {name}")
        columns.append(f"s_{name} SET('a','{letter(name)}','c d') CHARACTER SET {name}")
    wide = ",".join(f"'m{i}'" for i in range(300))
    columns += [f"e300 ENUM({wide})", f"s64 SET({many})"]
    rows = []
    for member, mask, index, bits in ((1, 1, 300, 1 << 63), (2, 7, 1, (1 << 64) - 1), (3, 0, 256, 5), (0, 6, 255, 0)):
        rows.append(", ".join([f"{member}, {mask}"] * len(sets) + [f"{index}, {bits}"]))
    rows.append(", ".join(["NULL"] * len(columns)))
    found = read_all_ways(source, database, ", ".join(columns), rows)
    for name in sets:
        assert found.column(f"e_{name}") == ["a", letter(name), "c d", "", None], name
        assert found.column(f"s_{name}") == ["a", f"a,{letter(name)},c d", "", f"{letter(name)},c d", None], name
    assert found.column("s64")[:2] == ["m63", ",".join(f"m{i}" for i in range(64))]
    assert found.column("e300")[:2] == ["m299", "m0"]


def letter(name: str) -> str:
    """A letter of a character set that is not ASCII's, if it has one."""
    if name in charsets.EIGHT_BIT:
        return next((chr(point) for point in charsets.code_points(name) if point > 127 and chr(point).isalpha()), "~")
    return "ア" if name in ("ujis", "eucjpms", "sjis", "cp932") else "中" if name in charsets.MULTI_BYTE else "é"


def test_text_of_every_character_set_comes_as_utf_8(source: Database, database: str) -> None:
    """All single bytes, and a sample of all longer characters, of each character set the server has."""
    generator = random.Random(7)
    names = character_sets(source)
    assert len(names) >= 37
    columns = ", ".join(
        f"c_{name} CHAR(9) CHARACTER SET {name}, v_{name} VARCHAR(300) CHARACTER SET {name},"
        f" t_{name} TEXT CHARACTER SET {name}"
        for name in names
    )
    rows: list[Any] = []
    for number in range(12):
        values = []
        for name in names:
            letters = sample(name, generator, number)
            values += [letters[:9], letters[:300], letters]
        rows.append((", ".join(["%s"] * len(values)), values))
    rows.append((", ".join(["%s"] * 3 * len(names)), ["  a  ", " ", "a \t"] * len(names)))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("c_utf8mb4")[12] == "  a"
    assert found.column("v_utf16")[12] == " "
    assert found.column("t_latin1")[12] == "a \t"


def again(raw: str, name: str) -> str:
    """Whether a server makes the same bytes of the text that it makes of them."""
    return f"CAST(CONVERT(CONVERT(CONVERT({raw} USING {name}) USING utf8mb4) USING {name}) AS BINARY) = {raw}"


def test_the_tables_of_character_sets_are_the_servers(source: Database, database: str) -> None:
    for name in character_sets(source):
        if name in charsets.EIGHT_BIT:
            points = charsets.code_points(name)
            asked = ", ".join(
                f"HEX(CONVERT(CONVERT(UNHEX('{byte:02X}') USING {name}) USING utf32))" for byte in range(256)
            )
            ((*found,),) = source.execute(f"SELECT {asked}")
            assert tuple(int(code, 16) for code in found) == points, name
            asked = ", ".join(again(f"x'{byte:02X}'", name) for byte in range(256))
            ((*same,),) = source.execute(f"SELECT {asked}")
            expected = [
                point if unchanged and point != 0xFFFD else codes.P_AMBIGUOUS
                for unchanged, point in zip(same, points, strict=True)
            ]
            assert charsets.key_points(name) == tuple(expected), name
            assert (codes.P_AMBIGUOUS not in expected) == (name in keys._ONE_TO_ONE), name
    for number, name in source.execute(
        "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL"
    ):
        assert charsets.charset_of(int(number)) == name or name is None, number


def test_pairs_of_the_multi_byte_character_sets_are_the_servers(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE pairs (b VARBINARY(4) PRIMARY KEY)")
        units = [bytes((first, second)) for first in range(0x80, 0x100) for second in range(0x40, 0x100)]
        units += [bytes((0x8F, first, second)) for first in range(0xA1, 0xFF) for second in range(0xA1, 0xFF)]
        cursor.execute("INSERT INTO pairs VALUES " + ",".join(f"(x'{unit.hex()}')" for unit in units))
        compared = 0
        for name in character_sets(source):
            if name not in charsets.MULTI_BYTE and name != "gb18030":
                continue
            cursor.execute(
                f"SELECT b, HEX(CONVERT(CONVERT(b USING {name}) USING utf32)), {again('b', name)} FROM pairs"
            )
            for raw, code, same in cursor.fetchall():
                begins_a_pair = name == "gb18030" or charsets.multi_byte_points(name)[raw[0]] == codes.P_PAIR
                if not begins_a_pair if len(raw) == 2 else name not in ("ujis", "eucjpms"):
                    continue  # two characters, or a broken one
                if code is not None and len(code) == 8:  # one well-formed character
                    assert charsets.to_text(raw, name) == chr(int(code, 16)), (name, raw.hex())
                    if name != "gb18030":
                        at = 256 * (raw[-2] + 1) + raw[-1] + (0x10000 if len(raw) == 3 else 0)
                        unambiguous = charsets.key_points(name)[at] != codes.P_AMBIGUOUS
                        assert unambiguous == (same and code != "0000FFFD"), (name, raw.hex())
                    compared += 1
        assert compared > 90_000


# ---- JSON ------------------------------------------------------------------------------------------------------------
JSON_TEXTS = [
    "null", "true", "false", "0", "-1", "32767", "-32768", "65535", "2147483647", "-2147483648", "4294967295",
    "9223372036854775807", "-9223372036854775808", "18446744073709551615", "1.0", "-0.0", "1e20", "1e-7", "1.5e300",
    "123456789012345678901234567890", "0.1", "1e15", "1e16", "123456789012345.5", "1234567890123456.5", "5e-324",
    "1e-14", "1e-15", "1e-16", "1.25e-15", "12345678901234567", "1e14", '""', '"a"', '"\\u0000\\u001f\\u007f\\"\\\\/"',
    '"\\b\\f\\n\\r\\t"', '"é€😀"', "[]", "{}", "[[], {}, [1, [2, [3]]]]", '{"b": 1, "a": 2, "ab": 3, "": 4, "é": 5}',
    '{"k": {"k": {"k": [null, true, false, -5, 1.5, "x"]}}}', "[1.7976931348623157e308, 2.2250738585072014e-308]",
]  # fmt: skip
JSON_CALLS = [
    "CAST(CAST('2020-02-29' AS DATE) AS JSON)", "CAST(CAST('2020-02-29 01:02:03.000045' AS DATETIME(6)) AS JSON)",
    "CAST(CAST('0001-01-01 00:00:00' AS DATETIME) AS JSON)",
    "CAST(CAST('9999-12-31 23:59:59.999999' AS DATETIME(6)) AS JSON)",
    "CAST(CAST('-838:59:59' AS TIME) AS JSON)", "CAST(CAST('12:34:56.000789' AS TIME(6)) AS JSON)",
    "CAST(CAST('-00:00:00.5' AS TIME(6)) AS JSON)", "JSON_ARRAY(TIMESTAMP '2020-01-01 00:00:00')",
    "CAST(CAST('123.4500' AS DECIMAL(65,30)) AS JSON)", "CAST(CAST('-0.001' AS DECIMAL(10,3)) AS JSON)",
    "CAST(CAST('0.00' AS DECIMAL(10,2)) AS JSON)", "CAST(CAST('-99999999999' AS DECIMAL(11,0)) AS JSON)",
    "CAST(CAST('-0' AS DECIMAL(5,5)) AS JSON)", "CAST(x'' AS JSON)", "CAST(x'00' AS JSON)",
    "CAST(x'0001FF' AS JSON)",
    "CAST(x'DEADBEEF' AS JSON)", "JSON_OBJECT('a', x'CAFEBABE01', 'b', b'1010')", "JSON_ARRAY(b'10000000001')",
    "JSON_OBJECT('y', YEAR('2020-01-01'), 'f', 1.5e0, 'd', 1.50)",
    "JSON_ARRAY(CAST(1.1 AS FLOAT), CAST(7 AS UNSIGNED))",
    "CAST(ST_GeomFromText('POINT(1 2)') AS JSON)", "JSON_ARRAY(CAST('2020' AS YEAR))",
]  # fmt: skip


def large_json(generator: random.Random, depth: int) -> list[str]:
    """Documents in the large format (over 64 KiB), deep ones, and ones with many keys."""
    numbers = [generator.choice([generator.getrandbits(70), generator.random(), -generator.getrandbits(31), None, True])
               for _ in range(9000)]  # fmt: skip
    keys = {f"key {generator.getrandbits(48):x}" * generator.randint(1, 4): i - 500 for i in range(3000)}
    half = depth // 2
    deep = [
        '[{"k": ' * half + "7" + "}]" * half,
        '{"k": ' * depth + "7" + "}" * depth,
        "[" * depth + "7" + "]" * depth,
    ]
    texts = {"k": ["x" * 200, "y" * 20000]}
    wide = {"l": ["x" * 66000, "y" * 127, "z" * 128, "w" * 16384, numbers[:50]], "m": {"n": [1] * 70}}
    return [json.dumps(value) for value in (numbers, keys, texts, wide)] + deep


def test_json_has_mysqls_own_text_form(source: Database, database: str) -> None:
    deepest = 100 if source.flavour == "mysql" else 31
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE deep (j JSON)")
        with pytest.raises(pymysql.err.OperationalError, match=r"3157|4025"):
            cursor.execute("INSERT INTO deep VALUES (%s)", large_json(random.Random(3), deepest + 1)[-1])
    large = large_json(random.Random(3), deepest)
    if source.flavour != "mysql":
        texts: list[Any] = [("%s", [text]) for text in [*JSON_TEXTS, '{ "a":1,"a":2 }', *large]]
        found = read_all_ways(source, database, "j JSON", texts)
        assert found.column("j")[len(JSON_TEXTS)] == '{ "a":1,"a":2 }'
        return
    rows: list[Any] = [("%s", [text]) for text in [*JSON_TEXTS, *large]]
    rows += [(call, None) for call in JSON_CALLS]
    found = read_all_ways(source, database, "j JSON", rows)
    texts = found.column("j")
    assert texts[JSON_TEXTS.index("1e20")] == "1e20"
    assert texts[JSON_TEXTS.index("-0.0")] == "-0.0"
    assert texts[JSON_TEXTS.index('{"b": 1, "a": 2, "ab": 3, "": 4, "é": 5}')] == (
        '{"": 4, "a": 2, "b": 1, "ab": 3, "é": 5}'
    )
    assert '"2020-02-29 01:02:03.000045"' in texts
    assert '"base64:type15:3q2+7w=="' in texts or '"base64:type253:3q2+7w=="' in texts


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_geometry_of_every_kind_keeps_its_srid(source: Database, database: str) -> None:
    kinds = [
        ("POINT", "POINT(1 -2)"), ("LINESTRING", "LINESTRING(0 0, 1 1, 2 0)"),
        ("POLYGON", "POLYGON((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1))"), ("MULTIPOINT", "MULTIPOINT(1 1, 2 2)"),
        ("MULTILINESTRING", "MULTILINESTRING((0 0, 1 1), (2 2, 3 3))"),
        ("MULTIPOLYGON", "MULTIPOLYGON(((0 0, 4 0, 4 4, 0 0)))"),
        ("GEOMETRYCOLLECTION", "GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))"), ("GEOMETRY", "POINT(5 6)"),
    ]  # fmt: skip
    columns = ", ".join(f"g{i} {kind}" for i, (kind, _) in enumerate(kinds)) + ", text VARCHAR(9) CHARACTER SET gbk"
    rows = [", ".join(f"ST_GeomFromText('{text}', {srid})" for _, text in kinds) + ", '中'" for srid in (0, 4326)]
    rows.append(", ".join(["NULL"] * 9))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("g0")[1][:4] == struct.pack("<I", 4326)
    assert found.column("g0")[0][4:] == struct.pack("<BIdd", 1, 1, 1.0, -2.0)


def test_vectors_are_lists_of_floats(mysql: Database, fresh_database: Any) -> None:
    database = fresh_database(mysql)
    vectors = ["TO_VECTOR('[1,2.5,-1e-3]')", "TO_VECTOR('[0.1]')", "NULL", f"TO_VECTOR('{[0.5] * 2000}')"]
    vectors += [f"TO_VECTOR('{[3.4028234e38, -1.17549435e-38, 16777216, 3.1415927] * 4095 + [0, 1, 2]}')"]
    rows = [f"{vector}, '中'" for vector in vectors]
    found = read_all_ways(mysql, database, "v VECTOR(16383), text VARCHAR(9) CHARACTER SET gbk", rows)
    exact = [
        struct.unpack("<f", struct.pack("<f", value))[0]
        for value in (3.4028234e38, -1.17549435e-38, 16777216, 3.1415927)
    ]
    assert found.column("v")[4] == exact * 4095 + [0, 1, 2]
    assert found.column("v")[0] == [1.0, 2.5, struct.unpack("<f", struct.pack("<f", -1e-3))[0]]
    assert len(found.column("v")[3]) == 2000


def test_mariadbs_own_types_come_as_it_prints_them(mariadb: Database, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    uuids = [
        "123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff", "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "f47ac10b-58cc-4372-a567-0e02b2c3d479", "018f3d5e-7c00-7abc-8def-0123456789ab",
        "1ec9414c-232a-6b00-b3c8-9e6bdeced846", "01234567-89ab-0def-0123-456789abcdef",
        "01234567-89ab-8def-c123-456789abcdef", "01234567-89ab-1def-e123-456789abcdef",
        "11111111-2222-3333-4444-555555555555", "11111111-2222-f333-8444-555555555500",
    ]  # fmt: skip
    generator = random.Random(5)
    uuids += [f"{generator.getrandbits(128):032x}" for _ in range(200)]
    addresses = [
        "::", "::1", "1::", "2001:db8::ff00:42:8329", "::ffff:192.0.2.1", "::192.0.2.1", "fe80::1:0:0:1", "::1:2",
        "1:0:0:2:0:0:0:3", "1:0:0:0:2:0:0:3", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "0:1:0:1:0:1:0:1",
        "::ffff:0:0",
        "1:2:3:4:5:6:7::", "1:2:3:4:5:6::", "::2:3:4:5:6:7:8", "a:b:c:d:e:f:0:1", "::ffff:1:2:3", "::a00", "::1:0",
    ]  # fmt: skip
    rows = []
    for i, value in enumerate(uuids):
        rows.append(f"'{value}', '{addresses[i % len(addresses)]}', '{i % 256}.0.{255 - i % 256}.1'")
    rows += ["NULL, NULL, NULL", f"'{uuids[0]}', '::', '0.0.0.0'", f"'{uuids[0]}', '::', '255.255.255.0'"]
    found = read_all_ways(mariadb, database, "u UUID, i6 INET6, i4 INET4", rows)
    assert found.column("u")[:12] == uuids[:12]
    assert found.column("i6")[3:6] == addresses[3:6]


def test_compressed_columns_of_mariadb_are_inflated(mariadb: Database, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    texts = {name: sample(name, random.Random(9), 1) for name in ("latin1", "utf8mb4", "utf16", "gbk", "sjis")}
    columns = [f"t_{name} TEXT COMPRESSED CHARACTER SET {name}" for name in texts]
    columns += [f"v_{name} VARCHAR(500) COMPRESSED CHARACTER SET {name}" for name in texts]
    columns += [f"v{n} VARBINARY({n}) COMPRESSED" for n in (1, 50, 254, 255, 256, 4000)]
    columns += [f"c_{kind} {kind} COMPRESSED" for kind in ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "LONGTEXT")]
    rows: list[Any] = []
    for number, text in enumerate(("", "x", "ab" * 49, "no two \0 alike", "z" * 3000)):
        values = [(letters * number)[:500] for letters in texts.values()] * 2
        values += [text[:n] for n in (1, 50, 254, 255, 256, 4000)]
        values += [text[:255], text * 9, text * 9, text * 30, text * 30]
        rows.append((", ".join(["%s"] * len(values)), values))
    rows.append((", ".join(["NULL"] * len(columns)), None))
    for wrap in ("OFF", "ON"):
        found = read_all_ways(mariadb, database, ", ".join(columns), rows, column_compression_zlib_wrap=wrap)
    assert found.column("c_LONGBLOB")[4] == b"z" * 90_000
    assert found.column("t_gbk")[3] == (texts["gbk"] * 3)[:500]


def test_generated_invisible_and_hidden_columns_are_read(source: Database, database: str) -> None:
    columns = (
        "a INT, v INT GENERATED ALWAYS AS (a + 1) VIRTUAL, s VARCHAR(20) GENERATED ALWAYS AS (CONCAT('s', a)) STORED,"
        " i INT INVISIBLE DEFAULT 5, z VARCHAR(5)"
    )
    if source.flavour == "mysql":
        columns += ", j JSON, KEY hidden ((a * 2)), KEY many ((CAST(j AS UNSIGNED ARRAY)))"
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, touched INT NOT NULL, {columns})")
        start = flushed(connection, source)
        cursor.execute("INSERT INTO t (id, touched, a, z) VALUES (1, 0, 10, 'x'), (2, 0, NULL, 'y')")
        cursor.execute("INSERT INTO t (id, touched, a, i, z) VALUES (3, 0, -1, NULL, NULL)")
        if source.flavour == "mysql":
            cursor.execute("UPDATE t SET j = '[1, 5, 9]' WHERE id = 1")
        schema = described(source, connection, f"{database}.t")
        for module in BOTH:
            by_select = selected(module, connection, schema)
            events = changed(module, source, start, schema)
            assert by_select.column("v").to_pylist() == [11, None, 0]
            assert by_select.column("i").to_pylist() == [5, 5, None]
            last = {row["id"]: row for row in events.to_pylist()}
            assert [{name: last[row["id"]][name] for name in row} for row in by_select.to_pylist()] == (
                by_select.to_pylist()
            )
    if not logs_generated_columns(source, database):
        return
    more = ", '[1, 5]'" if source.flavour == "mysql" else ""
    found = read_all_ways(source, database, columns, [f"{a}, DEFAULT, DEFAULT, 'x'{more}" for a in ("10", "NULL")])
    assert found.column("v") == [11, None]
    assert found.column("i") == [5, 5]


def test_a_table_of_500_columns_is_read(source: Database, database: str) -> None:
    columns = ", ".join(
        f"c{i} {('INT', 'VARCHAR(20) CHARACTER SET ascii', 'DATE', 'DECIMAL(12,2)', 'DOUBLE')[i % 5]}"
        for i in range(498)
    )
    values = ["{n}", "'text {n}'", "'2020-01-0{n}'", "{n}.25", "{n}.5"]
    rows = [", ".join(values[i % 5].format(n=n) for i in range(498)) for n in range(1, 6)]
    rows += [", ".join(["NULL"] * 498), ", ".join("NULL" if i % 3 else values[i % 5].format(n=7) for i in range(498))]
    read_all_ways(source, database, columns, rows)


def test_rows_over_16_mib_are_read(source: Database, database: str) -> None:
    sizes = [16_777_215, 16_777_216, 0x1000000 - 30, 20_000_000]
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, touched INT NOT NULL, b LONGBLOB, c LONGTEXT)")
        start = flushed(connection, source)
        for number, size in enumerate(sizes):
            cursor.execute(f"INSERT INTO t VALUES ({number}, 0, REPEAT('ab', {size // 2}), REPEAT('é', 3))")
        cursor.execute(f"INSERT INTO t VALUES ({len(sizes)}, 0, '', REPEAT('€', 6000000))")
        schema = described(source, connection, f"{database}.t")
        by_select = selected(INSTALLED, connection, schema)
        events = changed(INSTALLED, source, start, schema)
        assert [len(value) for value in by_select.column("b").to_pylist()] == [*(size // 2 * 2 for size in sizes), 0]
        same(by_select, events, schema, "SELECT and binlog")


def test_an_update_of_the_key_is_a_delete_and_an_insert(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (a VARCHAR(9) COLLATE utf8mb4_general_ci, b INT, n INT, PRIMARY KEY (a, b), id INT)"
        )
        start = flushed(connection, source)
        cursor.execute("INSERT INTO t VALUES ('x', 1, 0, 1), ('y', 1, 0, 2)")
        cursor.execute("UPDATE t SET n = 1 WHERE a = 'x'")
        cursor.execute("UPDATE t SET a = 'X' WHERE a = 'x'")  # equal for MySQL, other bytes
        cursor.execute("UPDATE t SET b = b + 1")
        cursor.execute("DELETE FROM t WHERE a = 'y'")
        schema = described(source, connection, f"{database}.t")
        for module in BOTH:
            rows = changed(module, source, start, schema).to_pylist()
            assert [(row[OP], row["a"], row["b"], row["n"]) for row in rows] == [
                ("+I", "x", 1, 0), ("+I", "y", 1, 0), ("+U", "x", 1, 1), ("-D", "x", 1, 1), ("+I", "X", 1, 1),
                ("-D", "X", 1, 1), ("+I", "X", 2, 1), ("-D", "y", 1, 0), ("+I", "y", 2, 0), ("-D", "y", 2, 0),
            ]  # fmt: skip
            assert [row[SEQ] for row in rows] == list(range(10))
            assert [row[ROW] for row in rows] == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6]


def test_an_image_without_all_columns_is_refused_by_name(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)")
        cursor.execute("INSERT INTO t VALUES (1, 1, 'b')")
        schema = described(source, connection, f"{database}.t")
        start = flushed(connection, source)
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        cursor.execute("UPDATE t SET a = 2")
        for module in BOTH:
            with pytest.raises(module.PartialImage, match=f"{database}.t lacks column"):
                changed(module, source, start, schema)


def test_an_error_in_the_middle_of_a_result_is_raised_with_its_number(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, j LONGTEXT)")
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(i, "7" * 20000) for i in range(40)])
        schema = described(source, connection, f"{database}.t")
        sql = f"SELECT id, IF(id < 30, j, (SELECT a.id FROM t a, t b)) FROM {database}.t ORDER BY id"
        for module in BOTH:
            decoder = module.ResultDecoder(schema)
            with pytest.raises(pymysql.err.OperationalError, match="1242"):
                feed(decoder, RowStream(connection, sql))
