"""What a TABLE_MAP tells of a table, and what it can't; tests/integration/source/test_types.py has it of every type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutline.common.errors import SourceLost
from cutline.common.schema import TableSchema
from cutline.services.sources.mysql.binlog.earlier_schema import earlier_schema
from cutline.services.sources.mysql.binlog.event_bodies import primary_key
from tests.support.binlog_bytes import schema_of, table_map

THEN = schema_of(("id", "int"), ("name", "varchar(60)"), ("price", "decimal(10,2)"))


def keyed(schema: TableSchema, *columns: int, prefix: int = 0) -> bytes:
    """Its TABLE_MAP, with a primary key."""
    parts = b"".join(bytes([column, prefix] if prefix else [column]) for column in columns)
    return table_map(schema) + bytes([9 if prefix else 8, len(parts)]) + parts


def schema_at(body: bytes, later: TableSchema, *, mariadb: bool = False) -> TableSchema:
    return earlier_schema(body, later, mariadb=mariadb)


def test_the_key_is_read_in_its_order_with_how_much_of_each_column() -> None:
    assert list(primary_key(keyed(THEN, 1, 0)).items()) == [("name", 0), ("id", 0)]
    assert primary_key(keyed(THEN, 1, prefix=9)) == {"name": 9}
    assert primary_key(table_map(THEN)) == {}


def test_a_table_that_was_no_different_has_the_catalogues_schema() -> None:
    assert schema_at(keyed(THEN, 0), THEN) == THEN
    assert schema_at(table_map(THEN), THEN) == THEN  # its identity may be a unique key


def test_columns_keep_their_ids_as_far_as_they_are_alike_and_no_id_means_two() -> None:
    name, price = THEN.column("name"), THEN.column("price")
    later = replace(
        THEN,
        columns=(
            replace(price, name="cost"),
            THEN.column("id"),
            replace(name, field_id=4, mysql_type="varchar(99)"),
            replace(price, name="new", field_id=5, mysql_type="bigint"),
        ),
        last_field_id=5,
    )
    then = schema_at(keyed(THEN, 0), later)
    assert [(c.name, c.field_id, c.mysql_type) for c in then.columns] == [
        ("id", 1, "int"), ("name", 6, "varchar(60)"), ("price", 7, "decimal(10,2)"),
    ]  # fmt: skip
    assert (then.key, then.last_field_id, then.retired) == (("id",), 7, ())
    carried = then.rename_column("price", "cost").widen_column("name", "varchar(99)")
    assert [c.field_id for c in carried.add_column("new", "bigint", nullable=True).columns] == [1, 6, 7, 8]


def test_the_identity_is_the_primary_key_of_then() -> None:
    assert schema_at(keyed(THEN, 1), THEN).key == ("name",)
    later = replace(THEN, key=("name", "id"))
    assert schema_at(keyed(THEN, 0, 1), later).key == ("name", "id")
    changed = later.drop_column("price")
    assert schema_at(keyed(THEN, 0), changed).key == ("id",)
    for body in (table_map(THEN), keyed(THEN, 1, prefix=9)):
        with pytest.raises(SourceLost, match="does not tell whether it had a unique key"):
            schema_at(body, changed)
    assert schema_at(table_map(THEN), replace(changed, key=())).key == ()


def test_what_can_not_be_told_is_refused_by_name() -> None:
    then = schema_of(("id", "int"), ("flag", "tinyint"))
    gone = replace(then.drop_column("flag"), booleans=True)
    assert schema_at(keyed(then, 0), replace(gone, booleans=False)).column("flag").mysql_type == "tinyint"
    with pytest.raises(SourceLost, match=r"column flag, which has changed since, was TINYINT or TINYINT\(1\)"):
        schema_at(keyed(then, 0), gone)
    kept = schema_of(("id", "int"), ("flag", "tinyint(1)"))
    assert schema_at(keyed(then, 0), replace(kept, booleans=True)).column("flag").mysql_type == "tinyint(1)"


def test_without_full_metadata_nothing_is_told_and_the_decoder_says_so() -> None:
    body = table_map(THEN)
    names = body.index(b"\4", body.index(b"\x0a\x02"))
    later = THEN.drop_column("name")
    assert schema_at(body[:names], later) == later
