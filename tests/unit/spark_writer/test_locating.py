"""Keys are located the same whether their files are indexed or scanned, and row groups are pruned without a miss."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import secrets
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.common.errors import Unavailable
from cutline.common.schema import FIELD_ID
from cutline.common.store.index_files import IndexFiles
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg import key_index, locating
from cutline.spark_writer.sinks.iceberg.files import DataFile, FileLost
from cutline.spark_writer.sinks.iceberg.key_hash import KeyHash, kind_of
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndex, KeyIndexes, first_at_least
from cutline.spark_writer.sinks.iceberg.locating import SortedKeys, cover, locate, rows_to_scan
from tests.support import records

UTC = pa.timestamp("us", "UTC")
TEXTS = ("ä", "\U0001f600", "", "abcdefg", "a\0")
TYPES: dict[str, tuple[pa.DataType, pa.DataType, Callable[[int], Any]]] = {
    "int as int": (pa.int32(), pa.int32(), lambda n: n - 20),
    "int as long": (pa.int32(), pa.int64(), lambda n: n - 20),
    "long": (pa.int64(), pa.int64(), lambda n: (n - 20) * 2**50),
    "unsigned": (pa.decimal128(20, 0), pa.decimal128(20, 0), lambda n: Decimal(2**64 - 1 - n)),
    "decimal, widened": (pa.decimal128(9, 2), pa.decimal128(18, 2), lambda n: Decimal(25 * (n - 20)).scaleb(-2)),
    "text": (pa.string(), pa.string(), lambda n: TEXTS[n % 5] + f"{n:x}" * (n % 4 + (n > 2))),
    "uuid": (pa.string(), pa.string(), lambda n: f"{n * 7919:032x}-{n:03}"),
    "bytes": (pa.binary(), pa.binary(), lambda n: bytes((255 - n, 255)) + b"\0" * (n % 3)),
    "datetime": (
        pa.timestamp("us"),
        pa.timestamp("us"),
        lambda n: dt.datetime.fromisoformat(f"1969-12-31 23:59:5{n % 10}.{n:06}"),
    ),
    "timestamp": (UTC, UTC, lambda n: dt.datetime(2024, 1, 1, 0, 0, n % 60, n, dt.UTC)),
    "date": (pa.date32(), pa.date32(), lambda n: dt.date(1969, 12, 1) + dt.timedelta(n)),
    "double": (pa.float64(), pa.float64(), lambda n: (-1) ** n * n / 3),
    "float as double": (pa.float32(), pa.float64(), lambda n: n / 4),
    "bool": (pa.bool_(), pa.bool_(), lambda n: n % 2 == 1),
}
"""The type in a file, the lake's, and the n-th value."""
Values = tuple[int, ...]


class Lake:
    """Data files of one table, its model (which file and position has which key), and its index in a store."""

    def __init__(self, folder: Path, kinds: Sequence[str], url: str = "") -> None:
        self.folder = folder / secrets.token_hex(4)
        self.folder.mkdir()
        self.kinds = [TYPES[kind] for kind in kinds]
        self.ids = tuple(range(1, len(kinds) + 1))
        self.store: PipelineStore = records.begun(url or f"file://{self.folder}/store")
        self.files: dict[str, DataFile] = {}
        self.rows: dict[str, list[Values]] = {}
        self.index = self.restarted()

    def restarted(self) -> KeyIndex:
        self.index = KeyIndexes(self.store.index_files()).find("shop.orders")
        for path, file in self.files.items():
            self.files[path] = DataFile(path=path, rows=file.rows, size=file.size)
        return self.index

    def table(self, rows: Sequence[Values], *, at: int) -> pa.Table:
        """The keys of these rows: in the types of a file (at=0) or of the lake (at=1)."""
        columns = [
            pa.array([kind[2](row[number]) for row in rows], kind[0]).cast(kind[at])
            for number, kind in enumerate(self.kinds)
        ]
        fields = [
            pa.field(f"k{number}", column.type, metadata={FIELD_ID: str(number + 1)})
            for number, column in enumerate(columns)
        ]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def add(self, rows: Sequence[Values], group: int = 3) -> str:
        path = f"{self.folder}/{secrets.token_hex(4)}.parquet"
        pq.write_table(self.table(rows, at=0), path, row_group_size=group)
        self.files[path] = DataFile(path=path, rows=len(rows), size=1)
        self.rows[path] = list(rows)
        return path

    def remove(self, path: str) -> None:
        del self.files[path], self.rows[path]

    def wanted(self, keys: Sequence[Values]) -> dict[str, list[int]]:
        values = {self._values(key) for key in keys}
        found = {
            path: [at for at, row in enumerate(rows) if self._values(row) in values] for path, rows in self.rows.items()
        }
        return {path: places for path, places in found.items() if places}

    def _values(self, key: Values) -> tuple[Any, ...]:
        return tuple(kind[2](number) for kind, number in zip(self.kinds, key, strict=True))

    def distinct(self, keys: Sequence[Values]) -> list[Values]:
        return list({self._values(key): key for key in keys}.values())

    def locate(self, keys: Sequence[Values], *, indexed: bool = True) -> dict[str, list[int]]:
        """The positions found in each file; each one's key must be that of the row."""
        distinct = self.distinct(keys)
        found = locate(self.files, self.ids, self.table(distinct, at=1), self.index if indexed else None)
        for path, rows in found.items():
            for position, number in zip(rows.positions.tolist(), rows.keys.tolist(), strict=True):
                assert self._values(self.rows[path][position]) == self._values(distinct[number])
        return {path: rows.positions.tolist() for path, rows in found.items()}

    def names(self) -> list[str]:
        return sorted(self.store.index_files().names())


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is worth an index, and a few rows fill runs, slices and tiers."""
    monkeypatch.setattr(locating, "SMALL_ROWS", 0)
    monkeypatch.setattr(locating, "LEAST_RATIO", 0)
    monkeypatch.setattr(locating, "CLEAR_RATIO", 0)
    monkeypatch.setattr(key_index, "STORED_ROWS", 6)
    monkeypatch.setattr(key_index, "BUILD_ROWS", 20)
    monkeypatch.setattr(key_index, "SLICE_ROWS", 7)
    monkeypatch.setattr(key_index, "SMALLEST_TIER_ROWS", 4)
    monkeypatch.setattr(key_index, "FAN_OUT", 3)


@pytest.mark.usefixtures("eager")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_index_finds_what_a_scan_and_a_dictionary_find(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Random keys, types and files; between the look-ups files come and go, the writer restarts, runs are lost."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    lake = Lake(tmp_path_factory.mktemp("lake"), kinds)
    key = st.tuples(*[st.integers(0, 40)] * len(kinds))
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["add", "add", "add", "remove", "restart", "lose", "damage"])):
            case "add":
                for rows in data.draw(st.lists(st.lists(key, min_size=1, max_size=25), max_size=5)):
                    lake.add(rows)
            case "remove":
                for path in _some(data, list(lake.files)):
                    lake.remove(path)
            case "restart":
                lake.restarted()
            case "lose" | "damage" as how:
                for name in _some(data, [run.name for run in lake.index.runs if run.name is not None]):
                    run = Path(lake.store.location(f"index/{name}"))
                    content = bytearray(run.read_bytes())
                    run.unlink()
                    if how == "damage":
                        content[data.draw(st.integers(0, 2**20)) % len(content)] ^= 4
                        run.write_bytes(content)
                lake.restarted()
        keys = data.draw(st.lists(key, min_size=1, max_size=30))
        wanted = lake.wanted(keys)
        assert lake.locate(keys) == wanted
        assert lake.locate(keys, indexed=False) == wanted
        if lake.index.names is not None:
            assert set(lake.names()) == lake.index.names


def _some(data: st.DataObject, names: list[str]) -> list[str]:
    """Some of these, drawn by their places: names are random."""
    return [names[at] for at in sorted(data.draw(st.sets(st.integers(0, 7)))) if at < len(names)]


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in ("double", "float as double", "bool")])
def test_row_groups_without_a_key_are_not_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is read between a batch's keys, which are the greatest of one group and the least of another."""
    lake = Lake(tmp_path, [kind])
    values = sorted({lake.kinds[0][2](n) for n in range(60)}, key=_encoded)
    lake.kinds = [(*lake.kinds[0][:2], values.__getitem__)]
    path = lake.add([(n,) for n in range(40)], group=4)
    read: list[int] = []
    real = locating._read

    def noted(source: Any, file: DataFile, at: int, schema: pa.Schema) -> pa.Table:
        read.append(at)
        return real(source, file, at, schema)

    monkeypatch.setattr(locating, "_read", noted)
    assert lake.locate([(3,), (36,)]) == {path: [3, 36]}
    assert read == [0, 9]


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def test_texts_that_a_writer_cut_off_still_find_their_row_group() -> None:
    """Parquet's own writer truncates ranges: the least value down, the greatest up."""

    class Statistics:
        has_min_max, physical_type, min_raw, max_raw = True, "BYTE_ARRAY", b"abc", b"abe"

    known = SortedKeys(pa.chunked_array([["abdzzz"]]))
    least, most = known.range_of(Statistics())
    assert known.may_be_in(locating.RowGroup(first=0, rows=1, least=least, most=most))
    assert not SortedKeys(pa.chunked_array([["abf"]])).may_be_in(
        locating.RowGroup(first=0, rows=1, least=least, most=most)
    )


def test_a_small_table_and_a_pruned_one_get_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path, ["long"])
    for first in range(0, 4000, 1000):
        lake.add([(n,) for n in range(first, first + 1000)], group=100)
    lake.locate([(n,) for n in range(0, 4000, 500)])
    assert not lake.index.runs
    monkeypatch.setattr(locating, "SMALL_ROWS", 400)
    monkeypatch.setattr(locating, "CLEAR_RATIO", 50)
    monkeypatch.setattr(locating, "FILE_ROWS", 0)
    lake.locate([(1,), (301,), (3999,)])
    assert not lake.index.runs
    lake.locate([(n,) for n in range(0, 4000, 500)])
    assert [len(run.entries) for run in lake.index.runs] == [4000]


def test_batches_of_many_keys_are_scanned_until_the_scans_would_have_paid_for_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locating, "SMALL_ROWS", 400)
    monkeypatch.setattr(locating, "FILE_ROWS", 0)
    lake = Lake(tmp_path, ["long"])
    lake.add([(n,) for n in range(4000)], group=100)
    keys = [(n,) for n in range(0, 4000, 100)]
    scans = 0
    while not lake.index.runs:
        assert lake.locate(keys) == lake.wanted(keys)
        scans += 1
    assert scans == locating.SCANS + 2
    assert rows_to_scan(lake.files, len(keys), lake.index) == 0


@pytest.mark.usefixtures("eager")
def test_runs_do_not_grow_for_ever(tmp_path: Path) -> None:
    """120 small files, each replacing the oldest of the last ten: runs, their rows and the store's files stay few."""
    lake = Lake(tmp_path, ["long"])
    entries, files = [], []
    for at in range(120):
        lake.add([(n,) for n in range(at % 7, 40, 4)])
        if len(lake.files) > 10:
            lake.remove(next(iter(lake.files)))
        assert lake.locate([(n,) for n in range(40)]) == lake.wanted([(n,) for n in range(40)])
        entries.append(sum(len(run.entries) for run in lake.index.runs))
        files.append(len(lake.names()))
    assert max(entries) < 400
    assert max(files) <= 15
    assert max(files[60:]) <= max(files[:60])


@pytest.mark.usefixtures("eager")
def test_an_index_is_silent_about_files_that_a_snapshot_lacks(tmp_path: Path) -> None:
    """Two files with the same keys, in one run and in two; then a snapshot has only the second file, then the first."""
    lake = Lake(tmp_path, ["long"])
    first = lake.add([(n,) for n in range(4)])
    second = lake.add([(n,) for n in range(4)])
    assert lake.locate([(3,)]) == {first: [3], second: [3]}
    files, rows = dict(lake.files), dict(lake.rows)
    for gone, left in ((first, second), (second, first)):
        lake.files, lake.rows = dict(files), dict(rows)
        lake.remove(gone)
        assert lake.locate([(3,)]) == {left: [3]}


@pytest.mark.usefixtures("eager")
def test_a_run_with_any_wrong_byte_is_made_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ["long"])
    lake.add([(n,) for n in range(7)])
    keys = [(n,) for n in range(7)]
    lake.locate(keys)
    (name,) = lake.names()
    run = Path(lake.store.location(f"index/{name}"))
    content = run.read_bytes()
    for at in range(0, len(content), 3):
        run.write_bytes(content[:at] + bytes([content[at] ^ 32]) + content[at + 1 :])
        assert lake.restarted().names is None
        assert lake.locate(keys) == lake.wanted(keys)
        assert lake.names() != [name]
        lake.store.index_files().remove(*lake.names())
    for end in range(0, len(content), 9):
        run.write_bytes(content[:end])
        lake.restarted()
        assert lake.locate(keys) == lake.wanted(keys)
        lake.store.index_files().remove(*lake.names())


@pytest.mark.usefixtures("eager")
def test_the_runs_of_a_growing_table_are_merged(tmp_path: Path) -> None:
    """100 files of four rows: two runs at most of each of the tiers, and each row is written a few times."""
    lake = Lake(tmp_path, ["long"])
    for at in range(100):
        lake.add([(n,) for n in range(at % 7, 40, 10)])
        assert lake.locate([(at % 40,)]) == lake.wanted([(at % 40,)])
        assert len(lake.index.runs) <= 10
    assert sum(len(run.entries) for run in lake.index.runs) == sum(file.rows for file in lake.files.values())


@pytest.mark.usefixtures("eager")
def test_a_restart_finds_the_index_again_and_reads_no_data_file_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, ["uuid"], url=f"memory://{secrets.token_hex(4)}")
    lake.add([(n,) for n in range(40)])
    wanted = lake.locate([(3,), (30,)])
    lake.restarted()
    monkeypatch.setattr(KeyIndex, "add", None)
    assert lake.locate([(3,), (30,)]) == wanted == lake.wanted([(3,), (30,)])
    assert [run.name for run in lake.index.runs] == lake.names()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("step", range(12))
def test_an_index_is_right_after_a_kill_between_any_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """1. Files are indexed and merged; the process is killed before its n-th write or removal in the store. 2. The next
    start finds the keys, and keeps no file that it does not use.
    """
    lake = Lake(tmp_path, ["long"])
    steps = itertools.count()

    class Killed(BaseException):
        pass

    def work(lake: Lake) -> None:
        for at in range(200):
            lake.add([(n,) for n in range(at % 5, 40, 5)])
            lake.locate([(at,)])

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if next(steps) == step:
                raise Killed
            real(*arguments)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(IndexFiles, "write", counted(IndexFiles.write))
        patched.setattr(IndexFiles, "remove", counted(IndexFiles.remove))
        with pytest.raises(Killed):
            work(lake)
    lake.restarted()
    assert lake.locate([(n,) for n in range(40)]) == lake.wanted([(n,) for n in range(40)])
    assert set(lake.names()) == lake.index.names


@pytest.mark.usefixtures("eager")
def test_a_start_that_was_overtaken_writes_runs_that_do_no_harm(tmp_path: Path) -> None:
    """Two starts index the same files, each with a secret of its own; a third finds both, and keeps one."""
    lake = Lake(tmp_path, ["text"])
    for first in range(0, 40, 10):
        lake.add([(n,) for n in range(first, first + 10)])
    zombie = lake.index
    lake.restarted()
    keys = [(n,) for n in range(40)]
    assert lake.locate(keys) == lake.wanted(keys)
    lake.index = zombie
    assert lake.locate(keys) == lake.wanted(keys)
    both = lake.names()
    lake.restarted()
    assert lake.locate(keys) == lake.wanted(keys)
    assert set(lake.names()) == lake.index.names < set(both)


@pytest.mark.usefixtures("eager")
def test_a_store_that_refuses_costs_the_index_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(tmp_path, ["long"])
    lake.add([(n,) for n in range(40)])

    def full(*_: Any) -> None:
        raise Unavailable("the store does not answer: no space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(IndexFiles, "write", full)
        for _ in range(3):
            assert lake.locate([(7,)]) == lake.wanted([(7,)])
        assert len(caplog.records) == 1
        assert "shop.orders are located without their index: the store does not answer" in caplog.text
        assert not lake.index.runs
    monkeypatch.setattr(KeyIndex, "rests", False)
    assert lake.locate([(7,)]) == lake.wanted([(7,)])
    assert len(lake.index.runs) == len(lake.names()) == 1


def test_a_run_on_a_network_volume_stays_readable_while_another_machine_removes_it(tmp_path: Path) -> None:
    store = records.begun(f"file://{tmp_path}")
    store.index_files().write("a.keys", [b"one", b"two"])
    found = store.index_files(copied=True).map("a.keys")
    Path(store.location("index/a.keys")).write_bytes(b"")
    assert found is not None
    assert found[:] == b"onetwo"
    assert store.index_files(copied=True).map("a.keys") is None


@pytest.mark.usefixtures("eager")
def test_a_table_whose_key_has_changed_is_indexed_anew(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ["long", "long"])
    lake.add([(n, n % 3) for n in range(40)])
    assert lake.locate([(3, 0)]) == lake.wanted([(3, 0)])
    old = lake.names()
    lake.kinds, lake.ids = lake.kinds[1:], (2,)
    for path, file in lake.files.items():
        lake.files[path] = DataFile(path=path, rows=file.rows, size=1)
        lake.rows[path] = [row[1:] for row in lake.rows[path]]
    keys = pa.table({"k0": pa.array([lake.kinds[0][2](1)], pa.int64())})
    found = locate(lake.files, lake.ids, keys, lake.index)
    assert {path: rows.positions.tolist() for path, rows in found.items()} == lake.wanted([(1,)])
    assert not set(old) & set(lake.names())


@pytest.mark.usefixtures("eager")
def test_the_sweep_removes_indexes_of_tables_that_are_gone_and_files_that_no_index_uses(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ["long"])
    lake.add([(n,) for n in range(40)])
    lake.locate([(7,)])
    used = lake.names()
    files = lake.store.index_files()
    files.write(f"{key_index.table_part('shop.other')}.00.keys", [b"x"])
    files.write(f"{key_index.table_part('shop.orders')}.00.keys", [b"x"])
    indexes = KeyIndexes(files)
    indexes.find("shop.orders")
    indexes.sweep({"shop.orders"})
    assert len(lake.names()) == len(used) + 1  # an index that is not open yet may use them all
    indexes._known["shop.orders"] = lake.index
    indexes.sweep({"shop.orders"})
    assert lake.names() == used
    indexes.sweep(set())
    assert lake.names() == []


def test_a_data_file_with_other_rows_than_the_lake_says_is_refused(tmp_path: Path, eager: None) -> None:
    lake = Lake(tmp_path, ["long"])
    path = lake.add([(n,) for n in range(40)])
    lake.files[path] = DataFile(path=path, rows=41, size=1)
    with pytest.raises(FileLost, match="has 40 rows, but the lake says 41"):
        lake.locate([(7,)])


def test_equal_keys_have_equal_hashes_and_others_other_hashes() -> None:
    """A hash depends on the values, not on the file's types, the length of other texts, slices or where columns end."""
    hashed = KeyHash(bytes(32))
    texts = pa.array(["a", "abcd", "", "abcde", None, "xyz12345", "a\0"])
    high, low = hashed([texts])
    assert len(set(zip(high.tolist(), low.tolist(), strict=True))) == len(texts)
    for at in range(len(texts)):
        alone = hashed([texts.slice(at, 1)])
        assert (alone[0][0], alone[1][0]) == (high[at], low[at])
    high, _ = hashed([pa.array(["ab", "a", ""]), pa.array(["c", "bc", "abc"])])
    assert len(set(high.tolist())) == 3
    high, low = KeyHash(bytes(31) + b"1")([texts])
    assert not set(high.tolist()) & set(hashed([texts])[0].tolist())
    numbers = np.arange(200_000) - 100_000
    high, low = hashed([pa.array(numbers)])
    assert len(np.unique(high)) == len(numbers)
    assert abs(np.unpackbits(high.view(np.uint8)).mean() - 0.5) < 0.001


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("composite", [False, True])
def test_0_and_minus_0_are_one_key(tmp_path: Path, kind: pa.DataType, indexed: bool, composite: bool) -> None:
    path = str(tmp_path / "f.parquet")
    values, names = [0.5, -0.0, 0.0, 2.0], ["a", "a", "b", "b"]
    fields = [pa.field("k", kind, metadata={FIELD_ID: "1"}), pa.field("n", pa.string(), metadata={FIELD_ID: "2"})]
    pq.write_table(pa.Table.from_arrays([pa.array(values, kind), pa.array(names)], schema=pa.schema(fields)), path)
    files = {path: DataFile(path=path, rows=4, size=1)}
    index = KeyIndexes(records.begun(f"file://{tmp_path}/store").index_files()).find("shop.orders")
    wanted = {0.0: "a", 2.0: "b"} if composite else {-0.0: "", 2.0: ""}
    keys = pa.table({"k0": pa.array(list(wanted), kind)})
    if composite:
        keys = keys.append_column("k1", [list(wanted.values())])
    if indexed:
        index.open([[1, kind_of(kind)], [2, "string"]][: keys.num_columns])
        columns = [pa.array(values, kind), pa.array(names)][: keys.num_columns]
        index.add([(path, 4, iter([columns]))], files)
    found = locate(files, (1, 2)[: keys.num_columns], keys, index if indexed else None)
    assert found[path].positions.tolist() == ([1, 3] if composite else [1, 2, 3])
    assert found[path].keys.tolist() == ([0, 1] if composite else [0, 0, 1])


@settings(max_examples=200, deadline=None)
@given(
    column=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20), max_size=60),
    wanted=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20), max_size=20),
)
def test_the_search_is_a_binary_search(column: list[int], wanted: list[int]) -> None:
    ordered, keys = np.sort(np.array(column, np.uint64)), np.array(wanted, np.uint64)
    assert first_at_least(ordered, keys).tolist() == np.searchsorted(ordered, keys).tolist()


def test_an_index_is_made_before_the_keys_are_known_if_that_pays_whatever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, ["int as long", "text"])
    kinds = [kind[1] for kind in lake.kinds]
    columns = [[number, kind_of(kind)] for number, kind in zip(lake.ids, kinds, strict=True)]
    first, rows = lake.add([(n, n) for n in range(10)]), 10
    lake.index.open(columns)

    def covered(changes: int) -> bool:
        cover(lake.files, lake.ids, kinds, changes, lake.index)
        return lake.index.covers(first)

    assert not covered(1)  # SMALL_ROWS
    monkeypatch.setattr(locating, "SMALL_ROWS", 0)
    assert not covered(10_000)  # a scan is as cheap
    monkeypatch.setattr(locating, "INDEXED_ROWS", rows - 1)
    assert not covered(1)  # too many for the Spark writer
    monkeypatch.setattr(locating, "INDEXED_ROWS", rows)
    assert covered(1)
    lake.add([(n, n) for n in range(10, 15)])
    cover(lake.files, lake.ids, kinds, 1, lake.index)
    assert all(lake.index.covers(path) for path in lake.files)
    assert lake.locate([(3, 3), (12, 12), (12, 3), (39, 39)]) == lake.wanted([(3, 3), (12, 12)])
