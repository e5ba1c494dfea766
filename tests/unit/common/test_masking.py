"""Masked columns: what a hash is of, and which columns can't have one."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.common.causes import Code
from cutline.common.errors import ConfigError, NextGeneration, SourceLost
from cutline.common.mask_key import MaskKey
from cutline.common.masking import Masks, hashes, unfit_mask
from cutline.common.schema import Column, TableSchema
from cutline.common.shape import Shape

SECRET = "a key of tests, long enough"
KEY = MaskKey.of_text(SECRET)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def expected(value: bytes | None) -> str | None:
    """The hash as docs/shaping.md has others compute it."""
    return None if value is None else hashlib.blake2b(value, key=SECRET.encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        (["a", None, "", "é"], pa.string(), [b"a", None, b"", "é".encode()]),
        ([b"\0\xff", None], pa.binary(), [b"\0\xff", None]),
        ([1, -7, None], pa.int32(), [b"1", b"-7", None]),
        ([Decimal("1.50"), None], pa.decimal128(30, 10), [b"1.5000000000", None]),
        ([Decimal("0.0000000001")], pa.decimal128(30, 10), [b"0.0000000001"]),
        ([0.0, -0.0, 1.5], pa.float64(), [b"0", b"0", b"1.5"]),
        ([True, None], pa.bool_(), [b"true", None]),
        ([date(2026, 1, 31)], pa.date32(), [b"2026-01-31"]),
        ([NOON.replace(tzinfo=None)], pa.timestamp("us"), [b"2026-01-31 12:00:00.000000"]),
        ([NOON], pa.timestamp("us", "UTC"), [b"2026-01-31 12:00:00.000000Z"]),
        ([[1.0], None], pa.list_(pa.float32()), [b"\0\0\x80\x3f", None]),
        ([], pa.string(), []),
        ([None, None], pa.string(), [None, None]),
    ],
)
def test_a_hash_is_of_the_text_of_its_value(values: list[Any], kind: pa.DataType, texts: list[bytes | None]) -> None:
    assert hashes(KEY, pa.array(values, kind)).to_pylist() == [expected(text) for text in texts]


@given(st.lists(st.none() | st.text(max_size=3), max_size=40), st.integers(0, 5))
def test_repeated_values_and_slices_have_the_hashes_that_each_value_has(values: list[str | None], start: int) -> None:
    array = pa.array([*values, *values, *values], pa.string()).slice(start)
    wanted = [expected(None if value is None else value.encode()) for value in array.to_pylist()]
    assert hashes(KEY, array).to_pylist() == wanted


def test_a_key_is_neither_printed_nor_told_by_its_fingerprint() -> None:
    assert SECRET not in repr(KEY)
    assert KEY.fingerprint != MaskKey.of_text(SECRET + "!").fingerprint
    assert len(KEY.fingerprint) == 16
    for text in ("", "short", "x" * 65):
        with pytest.raises(ConfigError, match=f"has {len(text)} bytes; make one of 16 to 64"):
            MaskKey.of_text(text)


def people(*mask: str, key: str | None = KEY.fingerprint) -> TableSchema:
    names = {"id": "int", "name": "varchar(9)", "born": "date"}
    columns = tuple(
        Column(name=name, field_id=at, mysql_type=kind, nullable=True)
        for at, (name, kind) in enumerate(names.items(), start=1)
    )
    shape = Shape(mask=mask, mask_key=key)
    return TableSchema(table_id="shop.people", columns=columns, key=("id",), last_field_id=3, shape=shape)


def test_a_batch_has_hashes_in_the_columns_that_are_masked_and_the_schema_says_so() -> None:
    schema = people("NAME", "born")
    assert [str(field.type) for field in schema.arrow] == ["int32", "string", "string"]
    assert [str(field.type) for field in schema.clear.arrow] == ["int32", "string", "date32[day]"]
    row = {"id": 1, "name": "Ada", "born": date(1815, 12, 10)}
    batch = pa.RecordBatch.from_pylist([row], schema=schema.clear.arrow)
    masked = Masks(lambda: KEY).masked(batch, schema)
    assert masked.schema.equals(schema.arrow, check_metadata=True)
    assert masked.to_pylist() == [{"id": 1, "name": expected(b"Ada"), "born": expected(b"1815-12-10")}]
    assert Masks(lambda: None).masked(batch, schema.clear) is batch


def test_a_process_with_another_key_delivers_nothing() -> None:
    schema, loads = people("name"), [MaskKey.of_text("another key of tests"), KEY]
    masks, batch = Masks(lambda: loads.pop(0)), pa.RecordBatch.from_pylist([], schema=schema.clear.arrow)
    with pytest.raises(SourceLost, match="is masked by another key than the one that a reader has") as error:
        masks.masked(batch, schema)
    assert (error.value.table, error.value.cause.code) == ("shop.people", Code.RULE)
    assert masks.masked(batch, schema).schema == schema.arrow  # its file has the right one now
    assert masks.masked(batch, schema).schema == schema.arrow  # and it is kept: `loads` is empty


def test_a_process_without_a_key_fails_for_the_masked_table_alone() -> None:
    def load() -> MaskKey:
        raise ConfigError("the file of the key is not there", "make it")

    schema = people("name")
    with pytest.raises(
        SourceLost, match=r"can't mask shop.people: the file of the key is not there; make it; then retry"
    ) as error:
        Masks(load).masked(pa.RecordBatch.from_pylist([], schema=schema.clear.arrow), schema)
    assert error.value.table == "shop.people"


def test_rows_of_before_a_column_had_its_name_are_not_delivered_in_clear() -> None:
    schema = people("name")
    older = replace(schema, columns=tuple(replace(c, name=c.name.replace("name", "nom")) for c in schema.columns))
    with pytest.raises(NextGeneration, match="has no column name there, which is to be masked"):
        Masks(lambda: KEY).masked(pa.RecordBatch.from_pylist([], schema=older.clear.arrow), older)


def test_a_column_that_is_not_there_or_of_the_key_is_refused() -> None:
    assert unfit_mask(people("name")) is None
    assert unfit_mask(replace(people(), shape=None)) is None
    assert "has 'nam', which is no column of it; correct it" in str(unfit_mask(people("nam")))
    assert "has 'ID', by whose values rows are found and read" in str(unfit_mask(people("ID")))
    assert "has 'born', by whose values" in str(unfit_mask(people("born"), ("born",)))
