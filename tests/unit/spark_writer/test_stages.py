"""The stages in which Spark applies changes leave the rows of a model, however the work is divided; without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutline.common.errors import ProtocolError
from cutline.common.journal.plan import Staged, StagedLost
from cutline.common.schema import META_FIELDS, OP, SEQ, Column, TableSchema
from cutline.services.writer import staging
from cutline.services.writer.staging import OpenChanges
from cutline.spark_writer.sinks.iceberg import locating, staged, stages
from cutline.spark_writer.sinks.iceberg.columns import Layout, key_ids
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, write_vectors
from cutline.spark_writer.sinks.iceberg.files import DataFile, Lineage
from cutline.spark_writer.sinks.iceberg.key_hash import kind_of
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndexes
from cutline.spark_writer.sinks.iceberg.locating import locate
from cutline.spark_writer.sinks.iceberg.position_deletes import read_deleted
from cutline.spark_writer.sinks.iceberg.sent_index import sent
from cutline.spark_writer.sinks.iceberg.staged import grouped
from cutline.spark_writer.sinks.iceberg.stages import Step, divide, whole
from tests.support import records

KEYS: dict[str, list[Any]] = {
    "bigint": [0, -1, 1, 2**63 - 1, -(2**63), 7, 8, 9],
    "double": [0.0, -0.0, 1.5, -1.5, 1e300, -1e300, 5e-324, 2.0],  # 0 and -0 are one key
    "varchar(9)": ["", "a", "A", "ä", "a ", "\U0001f600", "abcdefghi", "b"],  # the lake compares bytes
    "varbinary(9)": [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff", b"b", b"c"],
}
FILE_ROWS = 4


@contextmanager
def small() -> Iterator[None]:
    """Limits so small that a few rows fill row groups, reductions and blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "ROW_GROUP_BYTES", 1)
        patch.setattr(staged, "PENDING_ROWS", 5)
        patch.setattr(stages, "BLOCK_BYTES", 100)
        patch.setattr(stages, "SEARCH_BYTES", 40)
        for name in ("SMALL_ROWS", "LEAST_RATIO", "CLEAR_RATIO"):
            patch.setattr(locating, name, 0)
        yield


@dataclass
class Lake:
    """A snapshot of a table in a folder, with some dead rows; the staged changes to it, and the model of both: each
    key's value and row id, None for a row that is new."""

    folder: Path
    kinds: tuple[str, ...]
    model: dict[tuple[Any, ...], tuple[int, int | None]] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    changes: list[Staged] = field(default_factory=list)
    row_ids: dict[tuple[Any, ...], int | None] = field(default_factory=dict)
    """That of each living row of the snapshot: an insert after a deletion in one batch keeps it."""
    seq: int = 1

    def __post_init__(self) -> None:
        columns = [
            Column(name=f"c{at}", field_id=at + 1, mysql_type=kind, nullable=False)
            for at, kind in enumerate(self.kinds)
        ]
        columns.append(Column(name="n", field_id=len(columns) + 1, mysql_type="int", nullable=True))
        names = tuple(column.name for column in columns[:-1])
        self.schema = TableSchema(table_id="shop.t", columns=tuple(columns), key=names, last_field_id=len(columns))
        self.layout = Layout(schema=self.schema, generation=1, offset=0, arrow=self.schema.arrow, java=None)
        self.store = records.begun(f"file://{self.folder}/store")

    def rows(self, keys: list[tuple[Any, ...]], values: list[int]) -> pa.Table:
        columns = [[key[at] for key in keys] for at in range(len(self.kinds))]
        arrays = [pa.array(each, kind.type) for each, kind in zip([*columns, values], self.schema.arrow, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema.arrow)

    def file(self, keys: list[tuple[Any, ...]], dead: set[int]) -> None:
        """Add a data file; the rows at positions `dead` are."""
        path, first = f"{self.folder}/{len(self.files)}.parquet", 1000 * (1 + len(self.files))
        pq.write_table(self.rows(keys, list(range(len(keys)))), path, row_group_size=FILE_ROWS, store_schema=False)
        vector = None
        if dead:
            (vector,) = write_vectors(f"{path}.puffin", {path: np.array(sorted(dead))})
        lineage = Lineage(first_row_id=first, sequence=1)
        self.files[path] = DataFile(path=path, rows=len(keys), size=1, lineage=lineage, dead=vector)
        for at, key in enumerate(keys):
            if at not in dead:
                self.model[key], self.row_ids[key] = (at, first + at), first + at

    def change(self, changes: list[tuple[str, tuple[Any, ...]]]) -> None:
        """Stage a file of changes, each an operation and a key."""
        file = OpenChanges(
            self.store, epoch=1, incarnation="w", table_id="shop.t", generation=1, schema=self.schema.hash
        )
        values = list(range(self.seq, self.seq + len(changes)))
        rows = self.rows([key for _, key in changes], values)
        known = {OP: pa.array([op for op, _ in changes]), SEQ: pa.array(values, pa.int64())}
        meta = [known.get(each.name, pa.nulls(len(changes), each.type)).cast(each.type) for each in META_FIELDS]
        both = pa.Table.from_arrays([*rows.columns, *meta], schema=pa.schema([*rows.schema, *META_FIELDS]))
        for batch in both.to_batches(max_chunksize=3):
            file.append(batch, 0)
        self.changes.append(Staged(record=file.close(), schema=self.schema))
        self.seq += len(changes)
        for value, (op, key) in zip(values, changes, strict=True):
            if op == "-D":
                self.model.pop(key, None)
            elif op != "-U":
                before = self.model.pop(key, None)  # so that the key has the form of its last image
                self.model[key] = (value, self.row_ids.get(key) if before is None else before[1])

    def step(self, *, groups: int, buckets: int, tasks: int, indexed: bool, version: int = 3) -> Step:
        index = None
        if indexed:
            made = KeyIndexes(self.store.index_files()).find("shop.t")
            names = [f"k{at}" for at in range(len(self.kinds))]
            kinds = [self.schema.field(column).type for column in self.schema.key_columns]
            keys = pa.table([pa.array([each], kind) for each, kind in zip(self.firsts, kinds, strict=True)], names)
            some = dict(list(self.files.items())[1:])  # the first file is not in the index
            made.open([[number, kind_of(kind)] for number, kind in zip(key_ids(self.layout), kinds, strict=True)])
            locate(some, key_ids(self.layout), keys, made)
            index = sent(made) if made.runs else None
        return Step(
            store=self.store,
            layout=self.layout,
            version=version,
            after=None,
            groups=grouped(self.store, self.changes, groups),
            buckets=buckets,
            files=divide(self.files.values(), tasks),
            secret=b"s" * 32 if index is None else index.secret,
            index=index,
            folder=f"{self.folder}/new-",
            grants={},
        )

    def after(self, made: list[Any]) -> dict[tuple[Any, ...], tuple[int, int | None]]:
        """The rows of the lake once a step's files are committed."""
        dead = {path: file.dead for path, file in self.files.items()}
        dead |= {each.data_file: each for each in made if isinstance(each, Vector)}
        found: list[tuple[tuple[Any, ...], tuple[int, int | None]]] = []
        for path, file in self.files.items():
            gone = set(read_deleted(dead[path]).tolist())
            assert file.lineage is not None
            first = file.lineage.first_row_id or 0
            for at, row in enumerate(pq.read_table(path).to_pylist()):
                if at not in gone:
                    found.append((self.key(row), (row["n"], first + at)))
        for each in made:
            if not isinstance(each, Vector):
                for row in pq.read_table(each[0]).to_pylist():
                    found.append((self.key(row), (row["n"], row.get("_row_id"))))
        assert len({key for key, _ in found}) == len(found)
        return dict(found)

    @property
    def firsts(self) -> list[Any]:
        """Some key."""
        return [KEYS[kind][0] for kind in self.kinds]

    def key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[f"c{at}"] for at in range(len(self.kinds)))


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_stages_leave_the_rows_of_the_model(data: st.DataObject) -> None:
    kinds = tuple(data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2)))
    key = st.tuples(*(st.sampled_from(KEYS[kind]) for kind in kinds))
    with small(), tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder), kinds)
        alive: set[Any] = set()
        for _ in range(data.draw(st.integers(0, 4))):
            keys = data.draw(st.lists(key, min_size=1, max_size=9, unique=True))
            dead = {at for at, each in enumerate(keys) if each in alive or data.draw(st.booleans())}
            alive |= {each for at, each in enumerate(keys) if at not in dead}
            lake.file(keys, dead)
        ops = st.sampled_from(["+I", "+U", "-D", "-U"])
        for _ in range(data.draw(st.integers(1, 3))):
            lake.change(data.draw(st.lists(st.tuples(ops, key), min_size=1, max_size=12)))
        step = lake.step(
            groups=data.draw(st.integers(1, 9)),
            buckets=data.draw(st.integers(1, 4)),
            tasks=data.draw(st.integers(1, 3)),
            indexed=data.draw(st.booleans()),
        )
        assert lake.after(whole(step)) == lake.model


def test_data_files_are_divided_by_their_rows() -> None:
    files = [DataFile(path=str(rows), rows=rows, size=1) for rows in (1, 9, 4, 5, 3)]
    assert [sorted(share) for share in divide(files, 2)] == [["3", "9"], ["1", "4", "5"]]
    assert divide([], 2) == [{}, {}]


def test_a_table_without_a_key_refuses_a_change_that_came_twice(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ("bigint",))
    lake.schema = TableSchema(table_id="shop.t", columns=lake.schema.columns, key=(), last_field_id=2)
    lake.layout = Layout(schema=lake.schema, generation=1, offset=0, arrow=lake.schema.arrow, java=None)
    lake.change([("+I", (1,)), ("+I", (1,))])
    step = lake.step(groups=1, buckets=3, tasks=1, indexed=False)
    assert sum(pq.read_metadata(path).num_rows for path, _ in whole(step)) == 2
    lake.changes *= 2
    with pytest.raises(ProtocolError, match="not distinct inserts"):
        whole(lake.step(groups=1, buckets=3, tasks=1, indexed=False))


def test_a_missing_staged_file_is_the_stores_fault(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ("bigint",))
    lake.change([("+I", (1,))])
    Path(lake.store.location(lake.changes[0].record.path)).unlink()
    with pytest.raises(StagedLost, match="missing"):
        whole(lake.step(groups=1, buckets=1, tasks=1, indexed=False))
