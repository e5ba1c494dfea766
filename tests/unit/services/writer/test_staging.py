"""Staged files: what a writer leaves in the store, and how much it holds back."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cutline.common.errors import DiskFull, ProtocolError
from cutline.common.journal.plan import Staged
from cutline.common.schema import FIELD_ID, META_FIELDS, OP, SEQ, Column, TableSchema
from cutline.common.store import backends
from cutline.common.store.records import StagedFile
from cutline.common.store.store import PipelineStore
from cutline.services.writer import machine, staging
from cutline.services.writer.staging import Budget, OpenChanges, OpenChunk, Staging
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.local import reduced
from cutline.spark_writer.sinks.iceberg.staged import LIVE, rows_of
from tests.support import records

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
    return records.begun(f"file://{tmp_path}")


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
    fields = [field.with_type(array.type) for field, array in zip(META_FIELDS, meta, strict=True)]
    table = rows(*range(count))
    return pa.RecordBatch.from_arrays([*table.columns, *meta], schema=pa.schema([*T.arrow, *fields]))


def read(store: PipelineStore, record: StagedFile) -> pa.Table:
    path = Path(store.location(record.path))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record.sha256
    assert path.stat().st_size == record.size
    return pq.read_table(path)


def test_a_chunk_file_has_the_tables_columns_with_their_field_ids(store: PipelineStore) -> None:
    file = OpenChunk(store, split_id="s1", **named())
    file.append(rows(1, 2))
    file.append(rows(3))
    record = file.close()
    assert (record.kind, record.rows, record.split, record.seq_min) == ("chunk", 3, "s1", None)
    assert (record.table, record.generation, record.schema) == (T.table_id, 2, T.hash)
    table = read(store, record)
    assert table["id"].to_pylist() == [1, 2, 3]
    assert [field.metadata[FIELD_ID] for field in table.schema] == [b"1", b"5"]


def test_a_changes_file_has_absolute_seq_and_knows_its_truncate(store: PipelineStore) -> None:
    file = OpenChanges(store, **named())
    file.append(changes(["+I", "t", "+U"]), 100)
    file.append(changes(["-D"], first=3), 100)
    record = file.close()
    assert (record.kind, record.rows) == ("changes", 4)
    assert (record.seq_min, record.seq_max, record.truncated_at) == (100, 103, 101)
    assert record.counts == (1, 1, 1)
    table = read(store, record)
    assert table.column_names == ["id", "note", *(field.name for field in META_FIELDS)]
    assert table[SEQ].to_pylist() == [100, 101, 102, 103]
    assert table.schema.field(OP).type == pa.string()


def test_a_small_file_waits_only_for_the_disk_once_it_left_its_budget(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget()
    small, large = (OpenChunk(store, split_id=split, budget=budget, **named()) for split in ("s1", "s2"))
    small.append(rows(1, 2))
    large.append(rows(*range(20_000)))
    for file in (small, large):
        file.leave(budget)
    encoded: list[int] = []
    monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda *_, **__: encoded.append(1))
    assert read(store, small.close())["id"].to_pylist() == [1, 2]
    assert not encoded
    monkeypatch.undo()
    assert read(store, large.close())["id"].to_pylist() == list(range(20_000))


def test_changes_out_of_order_and_other_columns_are_refused(store: PipelineStore) -> None:
    file = OpenChanges(store, **named())
    file.append(changes(["+I", "+I"]), 10)
    with pytest.raises(ProtocolError, match="twice or late"):
        file.append(changes(["+I"]), 11)
    with pytest.raises(ProtocolError, match="does not end in"):
        file.append(rows(1), 20)
    chunk = OpenChunk(store, split_id="s1", **named())
    chunk.append(rows(1))
    with pytest.raises(ProtocolError, match="other columns"):
        chunk.append(changes(["+I"]))


def test_nothing_is_in_the_store_before_close_or_after_discard(store: PipelineStore) -> None:
    file = OpenChunk(store, split_id="s1", **named())
    file.append(rows(1))
    file.discard()
    assert store._names("staged") == []


def test_open_files_hold_back_no_more_than_their_budget(store: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ROW_GROUP_BYTES", 1 << 20)
    budget = Budget(limit_bytes=100_000)
    files = [OpenChunk(store, split_id=f"s{at}", budget=budget, **named()) for at in range(4)]
    for number in range(50):
        for file in files:
            file.append(rows(*range(number * 100, number * 100 + 100)))
        assert sum(file._file.held_bytes for file in files) <= 100_000
    records = [file.close() for file in files]
    assert [record.rows for record in records] == [5000] * 4
    assert read(store, records[3])["id"].to_pylist() == list(range(5000))


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """This process may open 128 files more than it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 128, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ipc(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


@pytest.mark.parametrize("held_back", [64 << 20, 40_000], ids=["all held back", "most over the budget"])
def test_a_thousand_tables_in_one_checkpoint_need_few_descriptors(
    store: PipelineStore, few_descriptors: None, held_back: int
) -> None:
    files = [machine.ChangesFile(table_id=f"d.t{at}", generation=1, schema="s", after=0) for at in range(1000)]
    staging_ = Staging(store, 1, "w0", Budget(held_back))
    for turn in range(3):  # every table's rows come a few at a time, as they do from the binlog
        body = ipc(changes(["+I"] * 10))
        for at, file in enumerate(files):
            staging_.append(machine.Append(file=file, seq_base=10_000 * turn + 10 * at, rows=10, body=body))
    records = staging_.stage(machine.StageCut(checkpoint=1, changes=tuple(files), chunks=()))
    assert [record.table for record in records] == [file.table_id for file in files]
    for at in (0, 1, 500, 999):
        expected = [10_000 * turn + 10 * at + row for turn in range(3) for row in range(10)]
        assert read(store, records[at])[SEQ].to_pylist() == expected


def test_a_temporary_folder_without_room_is_told_with_its_remedy(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    files = [
        OpenChunk(store, split_id=f"s{at}", budget=budget, **named()) for budget in [Budget(1, 1)] for at in (1, 2)
    ]
    files[0].append(rows(1))
    with pytest.raises(DiskFull, match="No space left on device; free some space, or set TMPDIR to another folder"):
        files[1].append(rows(1))
    for file in files:
        file.discard()


def test_the_names_of_a_cuts_files_are_made_durable_at_once_and_before_they_are_told(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [machine.ChangesFile(table_id=f"d.t{at}", generation=1, schema="s", after=0) for at in range(20)]
    staging_ = Staging(store, 1, "w0")
    for file in files:
        staging_.append(machine.Append(file=file, seq_base=0, rows=1, body=ipc(changes(["+I"]))))
    folder = Path(store.location("staged"))
    folder.mkdir(parents=True)
    synced: list[set[str]] = []
    plain = backends._sync_folder

    def sync(name: str) -> None:
        plain(name)
        if name == str(folder):
            synced.append(set(os.listdir(name)))

    monkeypatch.setattr(backends, "_sync_folder", sync)
    records = staging_.stage(machine.StageCut(checkpoint=1, changes=tuple(files), chunks=()))
    assert synced == [{Path(record.path).name for record in records}]


@pytest.mark.parametrize("key", [("id",), ()], ids=["with a key", "without a key"])
def test_changes_of_which_a_truncate_leaves_none_reduce_to_nothing(store: PipelineStore, key: tuple[str, ...]) -> None:
    schema = replace(T, key=key)
    file = OpenChanges(store, **named())
    for first, ops in ((0, ["+I", "+I"]), (2, ["t", "+I"])):
        file.append(changes(ops, first), 100)
        file._file.flush()  # a row group of its own
    record = file.close()
    layout = Layout(schema=schema, generation=2, offset=0, arrow=schema.arrow, java=None)
    last = reduced(store, [Staged(record=record, schema=schema)], layout, record.truncated_at)
    assert last[SEQ].to_pylist() == [103]


def test_an_image_before_an_update_never_counts_as_the_living_row(store: PipelineStore) -> None:
    file = OpenChanges(store, **named())
    file.append(changes(["+I", "-U", "+U", "-D", "-U"]), 100)
    record = file.close()
    layout = Layout(schema=T, generation=2, offset=0, arrow=T.arrow, java=None)
    last = reduced(store, [Staged(record=record, schema=T)], layout, None)
    found = dict(zip(last[SEQ].to_pylist(), last[LIVE].to_pylist(), strict=True))
    assert 101 not in found
    assert 104 not in found
    assert found == {100: True, 102: True, 103: False}


def test_a_column_may_have_any_name_of_ours(store: PipelineStore) -> None:
    odd = ("_op", "_seq", "_table", "_op_", "a.b", "a")
    schema = TableSchema(
        table_id=T.table_id,
        columns=tuple(
            Column(name=name, field_id=at, mysql_type="bigint", nullable=True) for at, name in enumerate(odd, start=1)
        ),
        key=("_seq", "_op"),
        last_field_id=len(odd),
    )
    meta_fields = [field for field in changes(["+I"]).schema][len(T.columns) :]
    meta = changes(["+I", "+U", "-D", "+I"]).columns[len(T.columns) :]
    values = [pa.array([1, 2, 1, 2]), pa.array([10, 10, 10, 11]), *[pa.array([at, 5, 6, 7]) for at in range(4)]]
    batch = pa.RecordBatch.from_arrays([*values, *meta], schema=pa.schema([*schema.arrow, *meta_fields]))
    file = OpenChanges(store, **named(schema=schema.hash))
    file.append(batch, 100)
    record = file.close()
    layout = Layout(schema=schema, generation=2, offset=0, arrow=schema.arrow, java=None)
    file_of_it = Staged(record=record, schema=schema)
    last = reduced(store, [file_of_it], layout, None)
    assert last.select(["k0", "k1"]).to_pydict() == {"k0": [10, 10, 11], "k1": [2, 1, 2]}
    live = np.sort(last.filter(last[LIVE])[SEQ].to_numpy())
    assert live.tolist() == [101, 103]
    written = list(rows_of(store, [file_of_it], layout, live))
    assert [list(row.values()) for table in written for row in table.to_pylist()] == [
        [2, 10, 5, 5, 5, 5],
        [2, 11, 7, 7, 7, 7],
    ]
