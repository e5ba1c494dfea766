"""Captured tables, and what a statement of DDL does to them."""

from __future__ import annotations

from typing import Any

from cutline.common.schema import Column, TableSchema
from cutline.services.sources.mysql.binlog.ddl import Effect, Evolve, classify


def schema(table_id: str = "shop.orders") -> TableSchema:
    columns = (
        Column(name="id", field_id=1, mysql_type="int", nullable=False),
        Column(name="name", field_id=2, mysql_type="varchar(20)", nullable=True, charset="utf8mb4"),
        Column(name="price", field_id=3, mysql_type="decimal(10,2)", nullable=True),
        Column(name="Total", field_id=4, mysql_type="bigint", nullable=True),
        Column(name="kind", field_id=5, mysql_type="enum('a','b')", nullable=False, charset="utf8mb4"),
    )
    return TableSchema(table_id=table_id, columns=columns, key=("id",), last_field_id=5)


CAPTURED = {table_id: schema(table_id) for table_id in ("shop.orders", "shop.items", "crm.orders")}
KEYED = frozenset(CAPTURED)


def effects(statement: str, db: str = "shop", **keywords: Any) -> list[Effect]:
    return classify(statement, db, CAPTURED, primary=KEYED, **keywords)


def only(statement: str, db: str = "shop") -> Effect:
    (effect,) = effects(statement, db)
    return effect


def columns(statement: str) -> list[tuple[str, str]]:
    effect = only(statement)
    assert isinstance(effect, Evolve), effect
    return [(column.name, column.mysql_type) for column in effect.schema.columns]
