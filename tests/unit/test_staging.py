"""Staged files: what a writer leaves in the store, and how much it holds back."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cutline.common.errors import ProtocolError
from cutline.common.schema import FIELD_ID, META_FIELDS, OP, SEQ, Column, TableSchema
from cutline.common.store import PipelineStore, Store
from cutline.services.writer import staging
from cutline.services.writer.staging import Budget, ChangesFile, ChunkFile
from cutline.spark_writer import staged
from cutline.spark_writer.staged import Staged, portions, reduce
from cutline.spark_writer.tables import Layout

T = TableSchema(
    table_id="shop.orders",
    columns=(
        Column(name="id", field_id=1, mysql_type="bigint", nullable=False),
        Column(name="note", field_id=5, mysql_type="varchar(40)", nullable=True),
    ),
    key=("id",),
    last_field_id=5,
)


@pytest.fixture
def store(tmp_path: Path) -> PipelineStore:
    return Store(f"file://{tmp_path}").pipeline("shop")


def named(**more: Any) -> dict[str, Any]:
    return {"epoch": 3, "incarnation": "w0", "table_id": T.table_id, "generation": 2, "schema": T.hash, **more}


def rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "note": [f"n{i}" for i in ids]}, schema=T.arrow)


def changes(ops: list[str], first: int = 0) -> pa.RecordBatch:
    count = len(ops)
    meta = [
        pa.array(ops).dictionary_encode(),
        pa.array(range(first, first + count), pa.int64()),
        pa.array(["b.1"] * count).dictionary_encode(),
        *(pa.nulls(count, field.type) for field in META_FIELDS[3:]),
    ]
    fields = [field.with_type(one.type) for field, one in zip(META_FIELDS, meta, strict=True)]
    table = rows(*range(count))
    return pa.RecordBatch.from_arrays([*table.columns, *meta], schema=pa.schema([*T.arrow, *fields]))


def read(store: PipelineStore, record: dict[str, Any]) -> pa.Table:
    path = Path(store.location(record["path"]))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"]
    assert path.stat().st_size == record["size"]
    return pq.read_table(path)


def test_a_chunk_file_has_the_tables_columns_with_their_field_ids(store: PipelineStore) -> None:
    file = ChunkFile(store, split_id="s1", **named())
    file.append(rows(1, 2))
    file.append(rows(3))
    record = file.close()
    assert (record["kind"], record["rows"], record["split"], record["seq_min"]) == ("chunk", 3, "s1", None)
    assert (record["table"], record["generation"], record["schema"]) == (T.table_id, 2, T.hash)
    table = read(store, record)
    assert table["id"].to_pylist() == [1, 2, 3]
    assert [field.metadata[FIELD_ID] for field in table.schema] == [b"1", b"5"]


def test_a_changes_file_has_absolute_seq_and_knows_its_truncate(store: PipelineStore) -> None:
    file = ChangesFile(store, **named())
    file.append(changes(["+I", "t", "+U"]), 100)
    file.append(changes(["-D"], first=3), 100)
    record = file.close()
    assert (record["kind"], record["rows"]) == ("changes", 4)
    assert (record["seq_min"], record["seq_max"], record["truncated_at"]) == (100, 103, 101)
    table = read(store, record)
    assert table.column_names == ["id", "note", *(field.name for field in META_FIELDS)]
    assert table[SEQ].to_pylist() == [100, 101, 102, 103]
    assert table.schema.field(OP).type == pa.string()


def test_changes_out_of_order_and_other_columns_are_refused(store: PipelineStore) -> None:
    file = ChangesFile(store, **named())
    file.append(changes(["+I", "+I"]), 10)
    with pytest.raises(ProtocolError, match="twice or late"):
        file.append(changes(["+I"]), 11)
    with pytest.raises(ProtocolError, match="does not end in"):
        file.append(rows(1), 20)
    chunk = ChunkFile(store, split_id="s1", **named())
    chunk.append(rows(1))
    with pytest.raises(ProtocolError, match="other columns"):
        chunk.append(changes(["+I"]))


def test_nothing_is_in_the_store_before_close_or_after_discard(store: PipelineStore, tmp_path: Path) -> None:
    file = ChunkFile(store, split_id="s1", **named())
    file.append(rows(1))
    file.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_open_files_hold_back_no_more_than_their_budget(store: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ROW_GROUP_BYTES", 1 << 20)
    budget = Budget(limit_bytes=100_000)
    files = [ChunkFile(store, split_id=f"s{at}", budget=budget, **named()) for at in range(4)]
    for number in range(50):
        for file in files:
            file.append(rows(*range(number * 100, number * 100 + 100)))
        assert sum(file._file.held_bytes for file in files) <= 100_000
    records = [file.close() for file in files]
    assert [record["rows"] for record in records] == [5000] * 4
    assert read(store, records[3])["id"].to_pylist() == list(range(5000))


@pytest.mark.parametrize("key", [("id",), ()], ids=["with a key", "without a key"])
def test_changes_of_which_a_truncate_leaves_none_reduce_to_nothing(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    schema = replace(T, key=key)
    file = ChangesFile(store, **named())
    for first, ops in ((0, ["+I", "+I"]), (2, ["t", "+I"])):
        file.append(changes(ops, first), 100)
        file._file.flush()  # a row group of its own
    record = file.close()
    monkeypatch.setattr(staged, "PORTION_ROWS", 2)
    layout = Layout(schema=schema, generation=2, offset=0, arrow=schema.arrow, java=None)
    cut = list(portions(store, [Staged(record=record, schema=schema)]))
    reduced = [reduce(store, portion, layout, record["truncated_at"]) for portion in cut]
    assert [one.live.tolist() for one in reduced] == [[], [103]]
    assert reduced[0].keys is None


@pytest.mark.parametrize("before", [False, True], ids=["staged now", "staged by the version before"])
def test_a_column_may_have_any_name_of_ours(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """Also in a file of before, whose last columns have no space behind their names."""
    if before:
        plain = [field.with_name(field.name.rstrip()) for field in META_FIELDS]
        monkeypatch.setattr(staging, "META_FIELDS", plain)
        monkeypatch.setattr(staging, "_META", pa.schema(plain))
        monkeypatch.setattr(staging, "SEQ", "_seq")
    odd = ("_op", "_seq", "_table", "_op_", "a.b", "a")
    schema = TableSchema(
        table_id=T.table_id,
        columns=tuple(
            Column(name=name, field_id=at, mysql_type="bigint", nullable=True) for at, name in enumerate(odd, start=1)
        ),
        key=("_seq", "_op"),
        last_field_id=len(odd),
    )
    ours = [field for field in changes(["+I"]).schema][len(T.columns) :]
    meta = changes(["+I", "+U", "-D", "+I"]).columns[len(T.columns) :]
    values = [pa.array([1, 2, 1, 2]), pa.array([10, 10, 10, 11]), *[pa.array([at, 5, 6, 7]) for at in range(4)]]
    fields = [field.with_name(field.name.rstrip()) if before else field for field in ours]
    batch = pa.RecordBatch.from_arrays([*values, *meta], schema=pa.schema([*schema.arrow, *fields]))
    file = ChangesFile(store, **named(schema=schema.hash))
    file.append(batch, 100)
    record = file.close()
    layout = Layout(schema=schema, generation=2, offset=0, arrow=schema.arrow, java=None)
    written: list[pa.Table] = []
    monkeypatch.setattr(staged, "write_rows", lambda table, layout, groups: written.extend(groups))
    (portion,) = portions(store, [Staged(record=record, schema=schema)])
    reduced = reduce(store, portion, layout, None)
    assert reduced.live.tolist() == [101, 103]
    assert sorted(reduced.keys.to_pydict().items()) == [("k0", [10, 10, 11]), ("k1", [1, 2, 2])]
    staged.write_live(store, portion, None, layout, reduced)  # type: ignore[arg-type]
    assert [list(row.values()) for table in written for row in table.to_pylist()] == [
        [2, 10, 5, 5, 5, 5],
        [2, 11, 7, 7, 7, 7],
    ]


def test_a_file_of_changes_that_ends_in_other_columns_is_refused(store: PipelineStore) -> None:
    file = ChunkFile(store, split_id="s1", **named())
    file.append(rows(1))
    record = {**file.close(), "seq_min": 1, "seq_max": 1}
    layout = Layout(schema=T, generation=2, offset=0, arrow=T.arrow, java=None)
    (portion,) = portions(store, [Staged(record=record, schema=T)])
    with pytest.raises(ProtocolError, match="apply it with that version"):
        reduce(store, portion, layout, None)
