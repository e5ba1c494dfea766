"""The table of types, schemas as JSON and Arrow, and which DDL can be followed in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.common.errors import SourceLost
from cutline.common.schema import (
    FIELD_ID,
    META_FIELDS,
    Column,
    SchemaChanges,
    TableSchema,
    arrow_type,
    column_type,
    parse_type,
)
from cutline.common.shape import Shape

TYPES = {
    "tinyint(1)": pa.int32(),
    "tinyint unsigned": pa.int32(),
    "smallint(6)": pa.int32(),
    "mediumint unsigned": pa.int32(),
    "int": pa.int32(),
    "int(11)": pa.int32(),
    "int unsigned": pa.int64(),
    "int(10) unsigned zerofill": pa.int64(),
    "bigint": pa.int64(),
    "bigint(20) unsigned": pa.decimal128(20, 0),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,30) unsigned": pa.decimal128(38, 30),
    "decimal(39,2)": pa.string(),
    "decimal(65,30)": pa.string(),
    "float": pa.float32(),
    "float(7,4)": pa.float32(),
    "double unsigned": pa.float64(),
    "bit(1)": pa.bool_(),
    "bit(5)": pa.binary(),
    "char(3)": pa.string(),
    "varchar(20)": pa.string(),
    "longtext": pa.string(),
    "enum('a','b')": pa.string(),
    "set('a','b')": pa.string(),
    "json": pa.string(),
    "uuid": pa.string(),
    "inet6": pa.string(),
    "binary(4)": pa.binary(),
    "varbinary(4)": pa.binary(),
    "tinyblob": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "datetime(6)": pa.timestamp("us"),
    "timestamp(3)": pa.timestamp("us", "UTC"),
    "time(6)": pa.int64(),
    "year": pa.int32(),
    "year(4)": pa.int32(),
    "geometry": pa.binary(),
    "geomcollection": pa.binary(),
    "vector(3)": pa.list_(pa.float32()),
}


@pytest.mark.parametrize("mysql_type", TYPES)
def test_every_type_of_the_table_has_its_arrow_type(mysql_type: str) -> None:
    assert arrow_type(mysql_type) == TYPES[mysql_type]


@pytest.mark.parametrize("mysql_type", ["", "nonsense(", "sql_variant", "xmltype"])
def test_a_type_outside_the_table_is_a_lost_source_and_not_a_guess(mysql_type: str) -> None:
    with pytest.raises(SourceLost, match="is not supported"):
        arrow_type(mysql_type)


def test_members_of_an_enum_keep_their_case_commas_and_quotes() -> None:
    kind = parse_type(r"enum('a','B,c','d''e','f\\g','h\ni',')','')")
    assert kind.members == ("a", "B,c", "d'e", "f\\g", "h\ni", ")", "")
    assert parse_type("INT(10) UNSIGNED") == parse_type("integer(10) unsigned")


@pytest.mark.parametrize(
    "mysql_type", ["int unsigned", "decimal(10,2)", "set('a','B,c','d''e','f\\\\g','h\ni',')','')"]
)
def test_a_type_taken_apart_is_written_again_as_it_was(mysql_type: str) -> None:
    assert column_type(parse_type(mysql_type)) == mysql_type


def column(name: str, field_id: int, mysql_type: str = "int", *, nullable: bool = True) -> Column:
    return Column(name=name, field_id=field_id, mysql_type=mysql_type, nullable=nullable)


TABLE = TableSchema(
    table_id="shop.orders",
    columns=(
        column("id", 1, nullable=False),
        column("v", 2, "varchar(10)"),
        column("d", 3, "decimal(10,2)"),
        column("e", 4, "enum('a','b')", nullable=False),
    ),
    key=("id",),
    last_field_id=4,
)


def test_a_schema_survives_json_with_its_hash() -> None:
    unique = replace(TABLE, unique_key=True)
    assert TableSchema.from_json(unique.to_json()) == unique
    again = TableSchema.from_json(json.loads(json.dumps(TABLE.to_json())))
    assert again == TABLE
    assert again.hash == TABLE.hash
    assert len(TABLE.hash) == 16
    assert int(TABLE.hash, 16) >= 0
    assert TABLE.rename_column("v", "w").hash != TABLE.hash


def test_the_rule_of_a_table_is_part_of_its_schema_and_outlives_ddl() -> None:
    shaped = replace(TABLE, shape=Shape(select=("id", "v"), where="id > 1"))
    again = TableSchema.from_json(json.loads(json.dumps(shaped.to_json())))
    assert again == shaped
    assert len({TABLE.hash, shaped.hash, replace(TABLE, shape=Shape(select=("id", "v"))).hash}) == 3
    assert "shape" not in TABLE.to_json()
    moded = replace(TABLE, shape=Shape(mode="append", images="both"))
    assert TableSchema.from_json(json.loads(json.dumps(moded.to_json()))) == moded
    assert Shape(where="id > 1").to_json() == {"select": ["*"], "where": "id > 1"}
    assert shaped.rename_column("v", "w").shape == shaped.shape


def test_a_schema_that_is_read_keeps_its_name_and_shares_equal_columns() -> None:
    first, second = (TableSchema.from_json(json.loads(json.dumps(TABLE.to_json())), "0123") for _ in range(2))
    assert first.hash == "0123"
    assert all(mine is other for mine, other in zip(first.columns, second.columns, strict=True))


@given(
    st.builds(
        Column,
        name=st.text(min_size=1),
        field_id=st.integers(1, 1000),
        mysql_type=st.sampled_from(sorted(TYPES)),
        nullable=st.booleans(),
        charset=st.none() | st.sampled_from(["utf8mb4", "latin1"]),
        generated=st.booleans(),
        initial_default=st.none() | st.text(),
        element_id=st.none() | st.integers(1, 1000),
    )
)
def test_a_column_survives_json(column: Column) -> None:
    assert Column.from_json(json.loads(json.dumps(column.to_json()))) == column


def test_the_arrow_schema_carries_field_ids_and_allows_nulls() -> None:
    assert [field.metadata[b"PARQUET:field_id"] for field in TABLE.arrow] == [b"1", b"2", b"3", b"4"]
    assert all(field.nullable for field in TABLE.arrow)
    assert TABLE.column("ID").field_id == 1
    assert TABLE.split_key_type == ("int",)
    assert all(field.metadata is None for field in META_FIELDS)


def test_the_elements_of_a_vector_have_a_field_id_of_their_own() -> None:
    table = TABLE.add_column("vec", "vector(3)", nullable=True)
    assert table.column("vec").field_id == 5
    assert table.arrow.field("vec").type.value_field.metadata == {b"PARQUET:field_id": b"6"}
    assert table.add_column("z", "int", nullable=True).column("z").field_id == 7


def test_a_type_that_has_no_arrow_type_is_named_with_its_table_and_column() -> None:
    table = TableSchema(table_id="a.b", columns=(column("k", 1, "xmltype"),), key=("k",), last_field_id=1)
    with pytest.raises(SourceLost, match=r"Column k of a\.b") as caught:
        assert table.arrow
    assert caught.value.table == "a.b"


def test_added_columns_take_new_field_ids_and_their_place_in_the_row() -> None:
    after = TABLE.add_column("n", "int", nullable=True, after="id")
    assert [c.name for c in after.columns] == ["id", "n", "v", "d", "e"]
    assert after.column("n").field_id == 5
    first = after.add_column("f", "int", nullable=False, initial_default="7", first=True)
    assert [c.name for c in first.columns][:2] == ["f", "id"]
    assert first.column("f").field_id == 6
    with pytest.raises(ValueError, match="NOT NULL without a constant default"):
        TABLE.add_column("n", "int", nullable=False)
    with pytest.raises(ValueError, match="already"):
        TABLE.add_column("V", "int", nullable=True)


def test_a_name_that_the_table_had_before_never_comes_back() -> None:
    dropped = TABLE.drop_column("v")
    assert dropped.retired == ("v",)
    with pytest.raises(ValueError, match="had another column"):
        dropped.add_column("V", "int", nullable=True)
    renamed = TABLE.rename_column("v", "w")
    assert renamed.column("w").field_id == 2
    with pytest.raises(ValueError, match="had another column"):
        renamed.add_column("v", "int", nullable=True)
    with pytest.raises(ValueError, match="had another column"):
        renamed.rename_column("w", "v")


def test_the_identity_key_follows_a_rename_and_forbids_a_drop() -> None:
    assert TABLE.rename_column("ID", "oid").key == ("oid",)
    with pytest.raises(ValueError, match="identity key"):
        TABLE.drop_column("id")
    with pytest.raises(ValueError, match="no column"):
        TABLE.drop_column("x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int", "bigint"),
        ("int(11)", "int"),
        ("tinyint", "int"),
        ("smallint unsigned", "int"),
        ("int unsigned", "bigint"),
        ("varchar(10)", "varchar(300)"),
        ("char(2)", "char(3)"),
        ("text", "longtext"),
        ("tinyblob", "blob"),
        ("varbinary(2)", "varbinary(3)"),
        ("decimal(10,2)", "decimal(12,2)"),
        ("decimal(40,2)", "decimal(50,2)"),
        ("enum('a','b')", "enum('a','b','c')"),
        ("datetime(6)", "datetime(6)"),
    ],
)
def test_a_wider_type_is_followed_in_place(old: str, new: str) -> None:
    table = TableSchema(table_id="a.b", columns=(column("c", 1, old),), key=(), last_field_id=1)
    wider = table.widen_column("c", new)
    assert wider.column("c") == column("c", 1, new)
    assert wider.last_field_id == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bigint", "int"),
        ("int", "int unsigned"),
        ("int unsigned", "int"),
        ("int", "bigint unsigned"),
        ("int unsigned", "bigint unsigned"),
        ("varchar(10)", "varchar(9)"),
        ("varchar(10)", "char(10)"),
        ("binary(2)", "binary(3)"),
        ("datetime(6)", "datetime"),
        ("decimal(10,2)", "decimal(12,3)"),
        ("decimal(38,2)", "decimal(39,2)"),
        ("enum('a','b')", "enum('b','a')"),
        ("enum('a','b')", "enum('a')"),
        ("float", "double"),
        ("int", "varchar(10)"),
    ],
)
def test_any_other_change_of_type_needs_the_next_generation(old: str, new: str) -> None:
    table = TableSchema(table_id="a.b", columns=(column("c", 1, old),), key=(), last_field_id=1)
    with pytest.raises(ValueError, match="can change or refuse"):
        table.widen_column("c", new)


def test_widening_may_not_smuggle_in_not_null_or_another_charset() -> None:
    assert TABLE.widen_column("e", "enum('a','b','c')", nullable=True).column("e").nullable
    with pytest.raises(ValueError, match="NOT NULL"):
        TABLE.widen_column("v", "varchar(20)", nullable=False)
    text = TableSchema(
        table_id="a.b",
        columns=(Column(name="c", field_id=1, mysql_type="varchar(5)", nullable=True, charset="latin1"),),
        key=(),
        last_field_id=1,
    )
    with pytest.raises(ValueError, match="character set"):
        text.widen_column("c", "varchar(9)", charset="utf8mb4")


def test_tinyint_1_as_boolean_is_of_the_schema_and_changes_type_with_the_next_generation_only() -> None:
    schema = TableSchema(
        table_id="d.t",
        columns=tuple(
            Column(name=name, field_id=i, mysql_type=kind, nullable=True)
            for i, (name, kind) in enumerate([("k", "tinyint(1)"), ("b", "tinyint(1)"), ("n", "tinyint")], 1)
        ),
        key=("k",),
        last_field_id=3,
        booleans=True,
    )
    assert schema.arrow.types == [pa.int32(), pa.bool_(), pa.int32()]
    assert schema.arrow.field("b").metadata == {FIELD_ID: b"2"}
    assert TableSchema.from_json(schema.to_json()) == schema
    assert schema.hash != replace(schema, booleans=False).hash
    added = schema.add_column("c", "tinyint(1)", nullable=True)
    assert added.arrow.field("c").type == pa.bool_()
    assert added.rename_column("c", "d").arrow.field("d").type == pa.bool_()
    with pytest.raises(ValueError, match="one is boolean"):
        schema.widen_column("b", "int")
    with pytest.raises(ValueError, match="one is boolean"):
        schema.widen_column("n", "tinyint(1)")
    assert replace(schema, booleans=False).widen_column("b", "int").arrow.field("b").type == pa.int32()


def test_bigint_unsigned_is_long_in_the_key_too_where_it_is_asked_for() -> None:
    columns = tuple(
        Column(name=name, field_id=i, mysql_type="bigint unsigned", nullable=False) for i, name in ((1, "k"), (2, "u"))
    )
    schema = TableSchema(table_id="d.t", columns=columns, key=("k",), last_field_id=2, longs=True)
    assert schema.arrow.types == [pa.int64(), pa.int64()]
    assert replace(schema, longs=False).arrow.types == [pa.decimal128(20, 0)] * 2
    assert TableSchema.from_json(schema.to_json()) == schema
    assert schema.hash != replace(schema, longs=False).hash
    assert schema.add_column("v", "bigint unsigned", nullable=True, initial_default="9223372036854775807")
    with pytest.raises(ValueError, match="has a value of 2\\^63 or more in its column v, which"):
        schema.add_column("v", "bigint unsigned", nullable=True, initial_default="9223372036854775808")


# --- policies: what the lake shows after a DDL in place ---------------------------------------------------------------

CHANGES: dict[str, Callable[[TableSchema], TableSchema]] = {
    "add first": lambda table: table.add_column("x", "int", nullable=True, first=True),
    "drop": lambda table: table.drop_column("v"),
    "drop the first": lambda table: table.drop_column("k"),
    "rename": lambda table: table.rename_column("v", "w"),
    "widen": lambda table: table.widen_column("n", "bigint"),
    "drop two, then add": lambda table: (
        table.drop_column("k").drop_column("v").add_column("x", "int", nullable=True, first=True)
    ),
}
POLICY_TABLE = TableSchema(
    table_id="a.b",
    columns=(column("k", 1), column("id", 2), column("v", 3, "varchar(9)"), column("n", 4)),
    key=("id",),
    last_field_id=4,
)


@pytest.mark.parametrize(
    ("policy", "change", "lake"),
    [
        ("exact", "add first", "5x 1k 2id 3v 4n"),
        ("exact", "drop", "1k 2id 4n"),
        ("exact", "rename", "1k 2id 3w 4n"),
        ("exact", "drop two, then add", "5x 2id 4n"),
        ("evolve", "add first", "5x 1k 2id 3v 4n"),
        ("evolve", "drop", "1k 2id 3v 4n"),
        ("evolve", "drop the first", "1k 2id 3v 4n"),
        ("evolve", "rename", "1k 2id 3w 4n"),
        ("evolve", "widen", "1k 2id 3v 4n"),
        ("evolve", "drop two, then add", "1k 5x 2id 3v 4n"),
        ("ignore", "add first", "1k 2id 3v 4n"),
        ("ignore", "drop", "1k 2id 3v 4n"),
        ("ignore", "rename", "1k 2id 3v 4n"),
        ("ignore", "widen", "1k 2id 3v 4n"),
        ("ignore", "drop two, then add", "1k 2id 3v 4n"),
    ],
)
def test_what_the_lake_shows_after_a_change_is_the_policys(policy: SchemaChanges, change: str, lake: str) -> None:
    new = CHANGES[change](POLICY_TABLE)
    after = POLICY_TABLE.followed(new, policy)
    assert after.columns == new.columns
    assert " ".join(f"{column.field_id}{column.name}" for column in after.lake) == lake
    assert TableSchema.from_json(json.loads(json.dumps(after.to_json()))) == after
    if change == "widen":
        assert after.lake[3].mysql_type == "bigint"


def test_changes_one_after_the_other_are_told_from_what_the_lake_shows() -> None:
    kept = POLICY_TABLE.followed(POLICY_TABLE.drop_column("v"), "evolve")
    again = kept.followed(kept.rename_column("n", "m"), "evolve")
    assert [column.name for column in again.lake] == ["k", "id", "v", "m"]
    with pytest.raises(ValueError, match="had another column v before"):
        again.add_column("v", "int", nullable=True)
    frozen = POLICY_TABLE.followed(POLICY_TABLE.rename_column("v", "w"), "ignore")
    grown = frozen.followed(frozen.widen_column("w", "varchar(99)"), "ignore")
    assert [(column.name, column.mysql_type) for column in grown.lake][2] == ("v", "varchar(99)")
    assert grown.followed(grown, "exact").shown is None
