"""The decoder of row events on bytes made here: cuts, corruption, images, options of types."""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.common.ops import Op
from cutline.common.schema import META_FIELDS, OP, ROW, SEQ, TS, TableSchema
from cutline.services.sources.mysql.decode import codes
from tests.support.binlog_bytes import compressed, event, image, schema_of, table_map
from tests.support.decoders import BOTH, Decoders
from tests.support.row_bytes import packets, row_of, rows

__all__ = ["rows"]  # the fixtures


# ---- binlog ----------------------------------------------------------------------------------------------------------
STREAM = schema_of(("id", "int"), ("name", "varchar(60)"), ("amount", "decimal(10,2)"), ("at", "datetime(6)"))
AT = (0x8000000000 | (2020 * 13 + 1) << 22 | 2 << 17 | 3 << 12 | 4 << 6 | 5).to_bytes(5, "big") + b"\0\0\6"


def change(number: int, name: bytes | None = b"n") -> bytes:
    return image(STREAM, [number, name, b"\x80\0\0\x0c\x32", AT])


def decoder_of(rows: Decoders, schema: TableSchema = STREAM, before: bool = False) -> tuple[Any, Any]:
    place = rows.Place()
    place.file = "binlog.000009"
    place.transaction("uuid:1", 1_500_000)
    place.pos = 400
    decoder = rows.EventDecoder(table_map(schema), schema, place, before)
    assert decoder.faults == ()
    return place, decoder


def test_an_insert_carries_its_place(rows: Decoders) -> None:
    place, decoder = decoder_of(rows)
    assert decoder.rows(30, event(STREAM, [change(1), change(2, None)])) == 2
    assert decoder.ended
    assert decoder.waiting == 2
    place.transaction(None, 2_500_000)
    place.file, place.pos = "binlog.000010", 4
    assert decoder.rows(32, event(STREAM, [change(1)])) == 1
    decoder.truncate()
    batch = decoder.take()
    batch.validate(full=True)
    assert batch.schema.names == [*(c.name for c in STREAM.columns), *(field.name for field in META_FIELDS)]
    for field in META_FIELDS:
        kind = batch.schema.field(field.name).type
        assert (kind.value_type if pa.types.is_dictionary(kind) else kind) == field.type
    assert [list(row.values())[4:] for row in batch.to_pylist()] == [
        [*head, stamp, "d.t"]
        for head, stamp in zip(
            (
                ["+I", 0, "binlog.000009", 400, 0, "uuid:1"],
                ["+I", 1, "binlog.000009", 400, 1, "uuid:1"],
                ["-D", 2, "binlog.000010", 4, 0, None],
                ["t", 3, "binlog.000010", 4, 1, None],
            ),
            batch.column(TS).to_pylist(),
            strict=True,
        )
    ]
    assert batch.column(TS).cast(pa.int64()).to_pylist() == [1_500_000] * 2 + [2_500_000] * 2
    assert batch.to_pylist()[3]["id"] is None
    assert batch.to_pylist()[0]["at"].isoformat() == "2020-01-02T03:04:05.000006"
    assert decoder.take() is None
    assert (place.seq, place.row) == (4, 2)


def test_an_update_of_the_key_is_minus_d_then_plus_i_of_one_row_number(rows: Decoders) -> None:
    place, decoder = decoder_of(rows)
    body = event(STREAM, [change(1), change(1, b"m"), change(1), change(9), change(9), change(9, None)], 31)
    assert decoder.rows(31, body) == 3
    found = [(row[OP], row["id"], row["name"], row[SEQ], row[ROW]) for row in decoder.take().to_pylist()]
    assert found == [
        ("+U", 1, "m", 0, 0), ("-D", 1, "n", 1, 1), ("+I", 9, "n", 2, 1), ("+U", 9, None, 3, 2),
    ]  # fmt: skip
    assert place.row == 3
    place, decoder = decoder_of(rows, before=True)
    assert decoder.rows(31, body) == 3
    assert decoder.take().column(OP).to_pylist() == ["-U", "+U", "-D", "+I", "-U", "+U"]


def test_an_event_is_resumed_at_every_row(rows: Decoders) -> None:
    images = [part for n in range(7) for part in (change(n), change(n + n % 2, b"x" * n))]
    body = event(STREAM, images, 31)
    _, decoder = decoder_of(rows)
    decoder.rows(31, body)
    expected = decoder.take().to_pylist()
    for first in range(8):
        for second in range(first, 9):
            place, decoder = decoder_of(rows)
            assert decoder.rows(31, body, 0, first) == first
            assert decoder.ended == (first == 7)
            seq = place.seq
            head = decoder.take()
            # a new process goes on: it passes what was taken, and the counter goes on
            place, decoder = decoder_of(rows)
            place.seq = seq
            assert decoder.rows(31, body, first, second) == min(7, second)
            middle = decoder.take()
            rest_from = place.seq
            place, decoder = decoder_of(rows)
            place.seq = rest_from
            decoder.rows(31, body, second)
            assert decoder.ended
            tail = decoder.take()
            found = [row for batch in (head, middle, tail) if batch is not None for row in batch.to_pylist()]
            assert found == expected


def test_a_truncated_event_is_refused_at_every_length(rows: Decoders) -> None:
    for kind, images in ((30, [change(1), change(2)]), (31, [change(1), change(2)]), (32, [change(5)])):
        body = event(STREAM, images, kind)
        ends = {len(body)} | ({len(body) - len(images[-1])} if kind == 30 else set())
        head = len(event(STREAM, [], kind))
        for length in range(len(body)):
            if length == head or length in ends:
                continue
            _, decoder = decoder_of(rows)
            with pytest.raises(ValueError, match=r"byte|can't be read"):
                decoder.rows(kind, body[:length])
            batch = decoder.take()
            assert batch is None or batch.num_rows == 1


def test_a_truncated_table_map_is_refused_at_every_length(rows: Decoders) -> None:
    body = table_map(STREAM)
    for length in range(len(body) - 3):  # the last field, of 3 bytes, tells MySQL from MariaDB
        try:
            decoder = rows.EventDecoder(body[:length], STREAM, rows.Place())
        except ValueError:
            continue
        assert decoder.faults, length


@pytest.mark.parametrize(
    ("schema", "story"),
    [
        (schema_of(("id", "int"), ("name", "varchar(60)"), ("amount", "decimal(10,2)")), "a column at that the schema"),
        (schema_of(*[(c.name, c.mysql_type) for c in STREAM.columns], ("more", "int")), "lack column more"),
        (schema_of(("id", "bigint"), *[(c.name, c.mysql_type) for c in STREAM.columns[1:]]), "column id: .* type 3"),
        (
            schema_of(*[(c.name, c.mysql_type) for c in STREAM.columns[:3]], ("at", "datetime(3)")),
            "column at: .*type 18",
        ),
    ],
)
def test_an_event_that_does_not_fit_the_schema_says_why(rows: Decoders, schema: TableSchema, story: str) -> None:
    decoder = rows.EventDecoder(table_map(STREAM), schema, rows.Place())
    assert re.search(story, " ".join(decoder.faults))
    with pytest.raises(ValueError, match="can't be decoded"):
        decoder.rows(30, event(STREAM, [change(1)]))


def test_metadata_that_is_not_full_names_the_setting(rows: Decoders) -> None:
    body = table_map(STREAM)
    names = body.index(b"\4\x12")  # the field of names, of 18 bytes
    decoder = rows.EventDecoder(body[:names], STREAM, rows.Place())
    assert decoder.faults == ("the row events carry no column names: SET GLOBAL binlog_row_metadata = FULL",)


def test_an_image_that_lacks_a_column_names_it(rows: Decoders) -> None:
    _, decoder = decoder_of(rows)
    body = bytearray(event(STREAM, [change(1)]))
    body[11] = 0b1101
    with pytest.raises(rows.PartialImage, match="lacks column name"):
        decoder.rows(30, bytes(body))


def lacking_tables() -> tuple[TableSchema, TableSchema]:
    """A table with generated columns g, h and a hidden hash: as row events have it, and its schema."""
    source = schema_of(
        ("g", "int"), ("id", "int"), ("DB_ROW_HASH_1", "bigint unsigned"), ("name", "varchar(60)"),
        ("h", "int"), ("n", "int"),
    )  # fmt: skip
    columns = tuple(replace(column, generated=column.name in "gh") for column in source.columns)
    return source, replace(source, columns=(*columns[:2], *columns[3:]))


def mariadb_map(schema: TableSchema) -> bytes:
    """A TABLE_MAP without the visibility, its last field, as MariaDB sends it."""
    return table_map(schema)[: -2 - (len(schema.columns) + 7) // 8]


def test_before_images_may_lack_generated_columns_and_all_images_hidden_ones(rows: Decoders) -> None:
    source, schema = lacking_tables()
    decoder = rows.EventDecoder(mariadb_map(source), schema, rows.Place(), True)
    assert decoder.faults == ()
    generated, hidden = ("DB_ROW_HASH_1", "g", "h"), ("DB_ROW_HASH_1",)

    def row(number: int, name: bytes | None, n: int | None, lacking: tuple[str, ...]) -> bytes:
        return image(source, [7, number, 99, name, None, n], lacking)

    decoder.rows(30, event(source, [row(1, b"one", 5, ()), row(2, None, None, ())]))
    pairs = [
        row(1, b"one", None, generated), row(1, None, 6, hidden),
        row(2, b"two", 3, generated), row(4, b"four", None, hidden),
    ]  # fmt: skip
    decoder.rows(31, event(source, pairs, 31, (generated, hidden)), 1)
    decoder.rows(31, event(source, pairs, 31, (generated, hidden)))
    decoder.rows(32, event(source, [row(4, None, 8, generated), row(5, b"five", 9, generated)], 32, (generated,)))
    decoder.rows(30, event(source, [row(6, b"six", 1, ())]))
    found = [tuple(row[name] for name in (OP, "id", "g", "name", "h", "n")) for row in decoder.take().to_pylist()]
    moved = [("-D", 2, None, "two", None, 3), ("+I", 4, 7, "four", None, None)]
    assert found == [
        ("+I", 1, 7, "one", None, 5), ("+I", 2, 7, None, None, None),
        *moved, ("-U", 1, None, "one", None, None), ("+U", 1, 7, None, None, 6), *moved,
        ("-D", 4, None, None, None, 8), ("-D", 5, None, "five", None, 9), ("+I", 6, 7, "six", None, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "lacking", "cause"),
    [
        (31, ((), ("g",)), "lacks the generated column g, which"),
        (30, (("h",),), "lacks the generated column h, which"),
        (32, (("name",),), "lacks column name: binlog_row_image must be FULL"),
        (31, (("n", "g"), ()), "lacks column n: binlog_row_image must be FULL"),
    ],
)
def test_images_that_lack_what_they_need_are_refused(
    rows: Decoders, kind: int, lacking: tuple[tuple[str, ...], ...], cause: str
) -> None:
    source, schema = lacking_tables()
    decoder = rows.EventDecoder(mariadb_map(source), schema, rows.Place())
    images = [image(source, [7, 1, 99, b"x", 8, 9], names) for names in lacking]
    with pytest.raises(rows.PartialImage, match=cause):
        decoder.rows(kind, event(source, images, kind, lacking))


def test_a_generated_column_of_the_key_may_not_be_lacking(rows: Decoders) -> None:
    source, schema = lacking_tables()
    decoder = rows.EventDecoder(mariadb_map(source), replace(schema, key=("g",)), rows.Place())
    with pytest.raises(rows.PartialImage, match="lacks the generated column g, which"):
        decoder.rows(32, event(source, [image(source, [7, 1, 99, b"x", 8, 9], ("g",))], 32, (("g",),)))


def test_columns_grow_together_and_one_value_may_be_large(rows: Decoders) -> None:
    schema = schema_of(("id", "int"), ("b", "longblob"), ("name", "varchar(60)"))
    _, decoder = decoder_of(rows, schema)
    count = 2000
    for n in range(count):
        size = 3_000_000 if n == 1000 else n % 50
        decoder.rows(30, event(schema, [image(schema, [n, b"z" * size, b"n" * (n % 60)])]))
    batch = decoder.take()
    batch.validate(full=True)
    assert batch.column("id").to_pylist() == list(range(count))
    assert [len(value) for value in batch.column("b").to_pylist()][999:1002] == [49, 3_000_000, 1]
    assert decoder.size == 0


def test_a_decoder_gives_its_memory_up_and_reads_on(rows: Decoders) -> None:
    schema = schema_of(("id", "int"), ("name", "varchar(60)"))
    _, decoder = decoder_of(rows, schema)
    for _ in range(2):
        for n in range(300):
            decoder.rows(30, event(schema, [image(schema, [n, b"n" * (n % 60)])]))
        batch = decoder.take()
        batch.validate(full=True)
        assert batch.column("id").to_pylist() == list(range(300))
        assert [len(name) for name in batch.column("name").to_pylist()] == [n % 60 for n in range(300)]
        assert decoder.held > 10_000
        decoder.release()
        assert decoder.held <= 1024
        assert decoder.take() is None


def test_tinyint_1_is_boolean_where_it_is_asked_for_and_never_in_the_key(rows: Decoders) -> None:
    """Every value but 0 is true; by SELECT and by the binlog."""
    columns = (("id", "tinyint(1)"), ("b", "tinyint(1)"), ("n", "tinyint"))
    schema = replace(schema_of(*columns), booleans=True)
    values = [(1, 0, 0), (2, 1, 1), (3, -1, -1), (4, 127, 2), (5, None, None)]
    expected = [{"id": a, "b": None if b is None else b != 0, "n": n} for a, b, n in values]
    decoder = rows.ResultDecoder(schema)
    decoder.feed(packets([row_of(list(row), schema) for row in values]))
    assert decoder.take().to_pylist() == expected
    _, decoder = decoder_of(rows, schema)
    assert decoder.rows(30, event(schema, [image(schema, list(row)) for row in values])) == 5
    assert decoder.take().select(["id", "b", "n"]).to_pylist() == expected


@pytest.mark.parametrize("value", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_bigint_unsigned_is_long_where_it_is_asked_for_and_null_from_2_63_on(rows: Decoders, value: int) -> None:
    """By SELECT and by the binlog, in the key too; `zero_dates` counts what became null."""
    schema = replace(schema_of(("id", "bigint unsigned"), ("u", "bigint unsigned")), longs=True)
    expected = [{"id": 7, "u": value if value < 2**63 else None}]
    selected = rows.ResultDecoder(schema)
    selected.feed(packets([row_of([7, value], schema)]))
    _, streamed = decoder_of(rows, schema)
    assert streamed.rows(30, event(schema, [image(schema, [7, value])])) == 1
    for decoder in (selected, streamed):
        batch = decoder.take().select(["id", "u"])
        assert batch.to_pylist() == expected
        assert batch.schema.types == [pa.int64(), pa.int64()]
        assert decoder.zero_dates == ({"u": 1} if value >= 2**63 else {})


COMPRESSED = schema_of(("id", "int"), ("z", "text /*M!100301 COMPRESSED*/"))


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        (b"", ""),
        (b"\0as it is", "as it is"),
        (compressed(b"x" * 70_000), "x" * 70_000),
        (b"\x81\x05" + zlib.compress(b"with "), "with "),
        (compressed(b"short", 6), None),
        (compressed(b"long", 3), None),
        (compressed(b"x" * 90)[:-1], None),
        (b"\x8b\xff\xff\xff\0", None),
        (b"\x8f" + b"\xff" * 7, None),
        (b"\x91\x01x", None),
        (b"\x81", None),
    ],
)
def test_a_compressed_column_is_inflated_or_refused(rows: Decoders, stored: bytes, value: str | None) -> None:
    _, decoder = decoder_of(rows, COMPRESSED)
    body = event(COMPRESSED, [image(COMPRESSED, [1, stored])])
    if value is None:
        with pytest.raises(ValueError, match="at column z"):
            decoder.rows(30, body)
        assert decoder.take() is None
    else:
        assert decoder.rows(30, body) == 1
        assert decoder.take().column("z").to_pylist() == [value]


CONVERTED = schema_of(("id", "int"), ("c", "varchar(60)"))


@pytest.mark.parametrize(
    ("schema", "stored", "step"),
    [
        (
            replace(CONVERTED, columns=(CONVERTED.columns[0], replace(CONVERTED.columns[1], charset="gb18030"))),
            b"x",
            "values.to_text",
        ),
        (COMPRESSED, compressed(b"x"), "values.inflated"),
        (schema_of(("id", "int"), ("j", "json")), b"\x0b" + struct.pack("<d", 0.5), "json_text.double_text"),
    ],
)
@pytest.mark.parametrize("kind", [30, 31])
def test_an_error_on_the_way_is_an_error_and_no_value(
    rows: Decoders, monkeypatch: pytest.MonkeyPatch, schema: TableSchema, stored: bytes, step: str, kind: int
) -> None:
    def failing(*_: object) -> None:
        raise MemoryError("no memory")

    module, name = step.split(".")
    place, decoder = decoder_of(rows, schema)
    before = [image(schema, [1, None])] * (kind == 31)
    for many in (1, 20_000):  # with the GIL and without
        body = event(schema, [*before, image(schema, [1, stored])] * many, kind)
        with monkeypatch.context() as patch:
            patch.setattr(getattr(rows, module), name, failing)
            with pytest.raises(MemoryError, match="no memory"):
                decoder.rows(kind, body)
        assert decoder.waiting == place.seq == 0
        assert decoder.rows(kind, body) == many
        assert decoder.take().num_rows == many
        place.seq = 0


def json_bytes(value: Any) -> tuple[int, bytes]:
    """MySQL's binary JSON (small format), type and content."""
    if value is None:
        return 4, b"\0"
    if isinstance(value, str):
        return 12, bytes([len(value.encode())]) + value.encode()
    if isinstance(value, int):
        return 9, struct.pack("<q", value)
    parts = [json_bytes(item) for item in value]
    at = 4 + 3 * len(parts)
    entries = content = b""
    for kind, data in parts:
        entries += bytes([kind]) + struct.pack("<H", data[0] if kind == 4 else at + len(content))
        content += b"" if kind == 4 else data
    return 2, struct.pack("<HH", len(parts), at + len(content)) + entries + content


def json_text(rows: Decoders, document: bytes) -> str:
    schema = schema_of(("id", "int"), ("j", "json"))
    _, decoder = decoder_of(rows, schema)
    decoder.rows(30, event(schema, [image(schema, [1, document])]))
    text: str = decoder.take().column("j")[0].as_py()
    return text


def test_json_prints_as_mysql_does(rows: Decoders) -> None:
    kind, data = json_bytes([1, None, 'a\n"', [[], -5]])
    assert json_text(rows, bytes([kind]) + data) == '[1, null, "a\\n\\"", [[], -5]]'
    assert json_text(rows, b"") == "null"
    for value, text in (
        (1.0, "1.0"), (-0.0, "-0.0"), (1e15, "1e15"), (123456789012345.0, "123456789012345.0"),
        (1e-14, "0.00000000000001"),
        (1.25e-20, "1.25e-20"), (0.1, "0.1"), (1e22, "1e22"),
    ):  # fmt: skip
        found = json_text(rows, b"\x0b" + struct.pack("<d", value))
        assert float(found) == value
        assert found == text


def test_a_document_that_points_at_itself_ends(rows: Decoders) -> None:
    # an array of 60 elements, each of which is the array again, or one long string over and over
    for inner in (2, 12):
        count = 60
        content = struct.pack("<HH", count, 5000)
        content += b"".join(bytes([inner]) + struct.pack("<H", 0 if inner == 2 else 300) for _ in range(count))
        document = b"\2" + content.ljust(5000, b"\x7f")
        try:
            json_text(rows, document)
        except ValueError:
            continue
        assert inner == 12


def test_deeper_than_mysql_allows_is_refused(rows: Decoders) -> None:
    value: Any = 7
    for _ in range(120):
        value = [value]
    kind, data = json_bytes(value)
    with pytest.raises(ValueError, match="column j"):
        json_text(rows, bytes([kind]) + data)


WIDE = schema_of(
    ("id", "int"), ("j", "json"), ("d", "decimal(10,2)"), ("at", "datetime(6)"), ("t", "time(6)"), ("b", "bit(13)"),
    ("u", "bigint unsigned"), ("name", "varchar(60)"), ("day", "date"), ("blob", "longblob"),
    ("z", "text /*M!100301 COMPRESSED*/"),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_the_bytes_are_both_ways_of_running_do_the_same(data: st.DataObject) -> None:
    """Valid events with bytes changed, cut or added: the same rows or the same refusal, and never anything else."""
    _, document = json_bytes([1, "x", [None, "yy", [2, 3]]])
    values = [
        1,
        b"\2" + document,
        b"\x80\0\0\x0c\x32",
        AT,
        b"\x80\0\5\0\0\1",
        b"\x1a\x2b",
        5,
        b"abc",
        b"\x21\xc8\x0f",
        b"zz",
        compressed(b"deflated"),
    ]
    body = bytearray(event(WIDE, [image(WIDE, values)] * 2))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(8, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))]
    kind = data.draw(st.sampled_from([30, 31, 32, 23, 25]))
    found: list[Any] = []
    for module in BOTH:
        _, decoder = decoder_of(module, WIDE)
        try:
            outcome: Any = decoder.rows(kind, bytes(body))
        except ValueError as error:
            outcome = str(error)
        try:
            batch = decoder.take()
            outcome = (outcome, batch and batch.to_pydict())
        except ValueError as error:
            outcome = (outcome, str(error))
        found.append(repr(outcome))
    assert len(set(found)) == 1


def test_the_constants_are_the_same_in_c_and_in_python() -> None:
    declared = dict(
        re.findall(r"^    (\w+) = (-?\d+)$", Path(codes.__file__).with_suffix(".pxd").read_text(), re.MULTILINE)
    )
    assert len(declared) > 60
    assert {name: getattr(codes, name) for name in declared} == {name: int(number) for name, number in declared.items()}


def test_the_numbers_of_operations_are_indexes_into_the_dictionary_of_a_batch() -> None:
    numbers = {Op[name.removeprefix("OP_")]: getattr(codes, name) for name in vars(codes) if name.startswith("OP_")}
    assert [op for op, _ in sorted(numbers.items(), key=lambda each: each[1])] == list(codes.OPS)
    assert set(Op) - set(codes.OPS) == {Op.READ}
