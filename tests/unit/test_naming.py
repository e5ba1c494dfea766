"""The names of the lake's files say who wrote them."""

from __future__ import annotations

import uuid

import pytest

from cutline.spark_writer.iceberg.naming import file_prefix, writer_of

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
