"""The names of the lake's files say who wrote them."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.spark_writer.sinks.iceberg.naming import file_prefix, folder_name, leads_elsewhere, writer_of

PLAIN = re.compile(r"[A-Za-z0-9_!-]+(\.+[A-Za-z0-9_!-]+)*")

RANDOM = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
TABLE, OTHER = "6b2f1c1e-0a57-4b8e-9d5d-1234567890ab", "6b2f1c1e-0a57-4b8e-9d5d-ba0987654321"


@pytest.mark.parametrize("pipeline", ["0123456789ab", "shop", "shop-7", "shop-7-1234567890ab", "a_b"])
@pytest.mark.parametrize("kind", ["parquet", "puffin"])
def test_a_name_tells_life_start_and_table(pipeline: str, kind: str) -> None:
    name = f"{file_prefix(pipeline, 12, TABLE)}{RANDOM}.{kind}"
    assert writer_of(name, TABLE) == (pipeline, 12)
    assert writer_of(name, OTHER) is None


@pytest.mark.parametrize(
    "name",
    [
        f"{RANDOM}.parquet",
        f"00000-0-{uuid.UUID(RANDOM)}-00001.parquet",
        f"cutline-shop-x-{TABLE[-12:]}-{RANDOM}.parquet",
        f"cutline-shop-1-{TABLE[-12:]}-{RANDOM}",
        f"cutline-shop-1-{TABLE[-12:]}-{RANDOM}.parquet.crc",
        f"my-cutline-shop-1-{TABLE[-12:]}-{RANDOM}.parquet",
        f"cutline-shop-1-{TABLE[-12:]}-backup.parquet",
    ],
)
def test_names_of_others_are_not_ours(name: str) -> None:
    assert writer_of(name, TABLE) is None


ODD = (
    "..", ".", "", " ", "a ", "a.", ".a", "a/../../b", "../../../../escaped", "/etc", "a\\b", "a#b", "a?b", "a%20b",
    "a%2fb", "a/b", "a!212fb", "!!", "a:b", "x/data", "t`q\"'", "日本語", "[1]", "{x}", "*", "\x01\x1f\x7f", "a\nb",
    "ü" * 64, "\U0001f600" * 64, "n" * 64, "Orders", "orders", folder_name("a/b"), folder_name("\U0001f600" * 64), "~",
    "$HOME", "-rf", "CON", "nul",
)  # fmt: skip


def test_a_folder_is_one_plain_name_and_no_other_names() -> None:
    folders = {name: folder_name(name) for name in ODD}
    assert len(set(folders.values())) == len(ODD)
    assert {name for name in ("orders", "Orders", "order-items_2", "a.b") if folder_name(name) != name} == set()
    for folder in folders.values():
        assert PLAIN.fullmatch(folder), folder
        assert len(folder) <= 120


@given(st.lists(st.text(min_size=1, max_size=64), min_size=2, max_size=2, unique=True))
def test_two_names_have_two_folders(names: list[str]) -> None:
    first, second = map(folder_name, names)
    assert first != second
    assert folder_name(first) != second
    assert PLAIN.fullmatch(first)


def test_a_catalogue_that_chooses_the_folder_itself_gets_no_name_that_is_a_path() -> None:
    assert [name for name in ODD if leads_elsewhere(name)] == [
        "..", ".", "", " ", "a/../../b", "../../../../escaped", "/etc", "a\\b", "a/b", "x/data", "\x01\x1f\x7f", "a\nb",
    ]  # fmt: skip
