"""Files that killed starts have left in the lake are removed; nothing that a snapshot names, and nothing of others."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.fs
import pytest

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.errors import Unavailable
from cutline.spark_writer.sinks.iceberg import orphans, publications, table, upkeep
from cutline.spark_writer.sinks.iceberg.leftovers import removed_after
from cutline.spark_writer.sinks.iceberg.naming import file_prefix
from cutline.spark_writer.sinks.iceberg.objects import file_system
from tests.support.lake_servers import S3, PostgreSQL
from tests.support.spark_bench import LakeStart, SparkBench, T, both_live, newest, order, same

ALL = RetentionConfig.model_construct(grace_seconds=-1.0)
RANDOM = "0123456789abcdef0123456789abcdef"


class Killed(BaseException):
    """The process is killed here; no handler of an error catches it."""


@pytest.fixture
def bench(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkBench]:
    monkeypatch.setattr(upkeep, "worth_compacting", lambda *_, **__: [])
    made = SparkBench(spark, tmp_path)
    yield made
    made.close()


def kill_in_a_commit(bench: SparkBench, monkeypatch: pytest.MonkeyPatch, module: Any = table) -> None:
    """Start, and end when all files of a commit are written, and the table's metadata is about to be swapped."""

    def kill(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "removed_after", kill)
        with pytest.raises(Killed):
            bench.apply()


def tend(incarnation: LakeStart, monkeypatch: pytest.MonkeyPatch, retention: RetentionConfig = ALL) -> None:
    """Do the upkeep that is due after 10 minutes, and wait for it."""
    incarnation.upkeep.view = Future()  # making it takes seconds
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "EXPIRE_SECONDS", 0.0)
        patch.setattr(incarnation.upkeep, "retention", retention)
        incarnation.upkeep.run()
        assert incarnation.upkeep.sweeping is not None
        incarnation.upkeep.sweeping.join(120)
        assert not incarnation.upkeep.sweeping.is_alive()


def change(bench: SparkBench, number: int, note: str, **how: Any) -> int:
    bench.journal.change(T, ("+U", order(number, note)))
    return bench.journal.checkpoint(**how)


def files(bench: SparkBench, place: str = "shop/orders") -> dict[str, Path]:
    """The files of a lake table by name, without the metadata files."""
    found = (bench.journal.root / "lake" / place).rglob("*")
    return {path.name: path for path in found if path.is_file() and not path.name.endswith(".json")}


def unnamed(bench: SparkBench, place: str = "shop.orders") -> set[str]:
    """The files of a table that none of its snapshots names."""
    lake = bench.lake()
    found = lake.table(place, lake.jvm.opener.open(lake.catalog, *place.split(".")))
    return set(files(bench, place.replace(".", "/"))) - orphans._named(found)


def test_what_killed_starts_wrote_for_a_commit_is_removed(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Two starts are killed in a commit: data files, a deletion vector, manifests and lists are left. 2. The next
    start publishes; its upkeep removes them, and whatever snapshots name is still there.
    """
    both_live(bench)
    change(bench, 1, "one", kept=True)
    bench.apply()
    assert unnamed(bench) == set()
    change(bench, 2, "two")
    for _ in range(2):
        kill_in_a_commit(bench, monkeypatch)
    left = unnamed(bench)
    assert {name.rpartition(".")[2] for name in left} == {"parquet", "puffin", "avro"}
    assert sum(name.startswith("snap-") for name in left) == 2
    assert all(name.startswith(f"cutline-{bench.journal.store.id}-") for name in left if not name.endswith(".avro"))
    incarnation = bench.apply()
    assert left <= unnamed(bench)
    tend(incarnation, monkeypatch)
    assert unnamed(bench) == set()
    assert bench.agree()


def test_files_in_the_publications_table_are_removed_too(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    both_live(bench)
    change(bench, 1, "one")
    kill_in_a_commit(bench, monkeypatch, publications)
    assert len(unnamed(bench, "_cutline.publications")) > 2
    tend(bench.apply(), monkeypatch)
    assert unnamed(bench, "_cutline.publications") == set()


def test_files_of_others_and_young_ones_stay(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of our files under names of others, of other pipelines and tables, of the present and later starts; a
    manifest of a user's commit that failed; and what an older start wrote within the grace.
    """
    incarnation = both_live(bench)
    change(bench, 1, "one")
    incarnation = bench.apply()
    w, uuid = incarnation.progress.w, incarnation.sink.tables.get(T.table_id).uuid
    life, known = bench.journal.store.id, files(bench)
    data = next(path for name, path in known.items() if name.endswith(".parquet"))
    manifest = next(path for name, path in known.items() if name.endswith("-m0.avro"))
    others = [
        "user.parquet",
        f"{RANDOM}.parquet",
        f"{file_prefix('crm', 1, uuid)}{RANDOM}.parquet",
        f"{file_prefix(life, 1, 'f' * 36)}{RANDOM}.parquet",
        f"{file_prefix(life, w, uuid)}{RANDOM}.parquet",
        f"{file_prefix(life, w + 1, uuid)}{RANDOM}.parquet",
    ]
    for name in others:
        shutil.copy(data, data.parent / name)
    theirs = "11111111-2222-3333-4444-555555555555-m0.avro"
    shutil.copy(manifest, manifest.parent / theirs)
    ours, young = (f"{file_prefix(life, w - 1, uuid)}{at}{RANDOM[1:]}.parquet" for at in "ab")
    for name in (ours, young):
        shutil.copy(data, data.parent / name)
    long_ago = time.time() - 7200
    for path in data.parent.iterdir():
        if path.name != young:
            os.utime(path, (long_ago, long_ago))
    for path in manifest.parent.iterdir():
        os.utime(path, (long_ago, long_ago))
    assert unnamed(bench) == {*others, theirs, ours, young}
    lake = bench.lake()
    lake_table = lake.ensure(T.table_id)
    removed = orphans.remove_orphans(lake_table, lake.owner, w=w, before=time.time() - 3600)
    assert [Path(path).name for path in removed] == [ours]
    tend(incarnation, monkeypatch)
    assert unnamed(bench) == {*others, theirs}
    assert bench.agree()


def test_what_refs_and_commits_of_others_hold_stays(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A user tags a snapshot, and makes a branch that no publication knows; a savepoint is taken. 2. A user rewrites
    the manifests of `main`. 3. Later starts go on, expire and look for orphans: each of these is read as before.
    """
    both_live(bench)
    name = f"lake.{T.table_id}"
    bench.session.sql(f"ALTER TABLE {name} CREATE TAG mine")
    bench.session.sql(f"ALTER TABLE {name} CREATE BRANCH tried")
    bench.session.sql(f"INSERT INTO {name}.branch_tried VALUES (900, 'theirs', 1.00)")
    before = {ref: bench.rows(T.table_id, ref) for ref in ("mine", "tried")}
    saved = change(bench, 1, "saved", kept=True)
    bench.apply()
    bench.session.sql(f"CALL lake.system.rewrite_manifests('{T.table_id}')")
    change(bench, 2, "two")
    kill_in_a_commit(bench, monkeypatch)
    for at in range(3):
        last = change(bench, 3, f"later {at}")
        incarnation = bench.apply()
        tend(incarnation, monkeypatch, RetentionConfig.model_construct(grace_seconds=-1.0, savepoints=5))
    assert unnamed(bench) == set()
    for ref, rows in before.items():
        assert same(bench.rows(T.table_id, ref), rows)
    assert same(bench.rows(T.table_id, f"checkpoint_{saved}"), bench.journal.at[saved][T.table_id])
    assert same(bench.rows(T.table_id), bench.journal.at[last][T.table_id])


def test_a_zombie_whose_files_are_gone_harms_nothing(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A start is suspended in a commit, all its files written. 2. Its successor publishes the same checkpoint and
    another one, and removes the files. 3. The first one commits them to its branch, and is refused its publication.
    """
    both_live(bench)
    zombie = bench.start()
    change(bench, 1, "one")
    slept: list[set[str]] = []

    @contextmanager
    def sleeping(*arguments: Any) -> Iterator[None]:
        if not slept:
            slept.append(unnamed(bench))
            successor = bench.apply()
            change(bench, 2, "two")
            bench.apply(successor)
            tend(successor, monkeypatch)
            assert not slept[0] & set(files(bench))
        with removed_after(*arguments):
            yield

    with monkeypatch.context() as patch:
        patch.setattr(table, "removed_after", sleeping)
        with pytest.raises(Unavailable):
            bench.apply(zombie)
    assert len(slept[0]) > 3
    zombie.abandon()
    last = change(bench, 3, "three")
    incarnation = bench.apply()
    tend(incarnation, monkeypatch)
    assert not newest(bench).tables[T.table_id].held
    assert same(bench.rows(T.table_id), bench.journal.at[last][T.table_id])


def test_each_start_looks_twice_at_the_tables_that_it_has_published(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once at its first upkeep, and once when what its predecessors wrote last is older than the grace."""
    looked: list[str] = []
    monkeypatch.setattr(upkeep, "remove_orphans", lambda found, *_, **__: looked.append(found.table_id) or [])
    both_live(bench)
    change(bench, 1, "one")
    now = time.time() + 3700  # what is published so far is older than the grace
    clock = SimpleNamespace(time=lambda: now, monotonic=time.monotonic)
    incarnation = bench.apply(bench.start(clock=clock))
    for seconds in (0, 600, 3600, 3600):
        now += seconds
        tend(incarnation, monkeypatch, RetentionConfig())
    assert looked == [T.table_id, "_cutline.publications"] * 2


def test_a_folder_of_an_object_store_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pyarrow's file system; this one stands for a bucket."""
    folder = tmp_path / "bucket" / "t" / "data" / "part=1"
    folder.mkdir(parents=True)
    for name, age in (("old", 100), ("young", 0)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - age,) * 2)
    bucket = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    monkeypatch.setattr(orphans, "file_system", lambda path: (bucket, path.partition("://")[2]))
    assert orphans._listed("s3://bucket/t/data", time.time() - 50) == ["s3://bucket/t/data/part=1/old"]
    assert orphans._listed("s3://bucket/t/metadata", time.time()) == []


@pytest.mark.full
def test_files_that_killed_starts_left_on_s3_are_removed(
    spark: Any, tmp_path: Path, postgresql: PostgreSQL, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place = f"s3://lake/{tmp_path.name}"
    catalog = {**postgresql.create(), **s3.catalog}
    bench = SparkBench(
        spark, tmp_path, store_url=f"{place}/store", sink={"warehouse": f"{place}/lake", "catalog": catalog}
    )

    def found() -> set[str]:
        system, key = file_system(f"{place}/lake/shop/orders")
        selector = pyarrow.fs.FileSelector(key, recursive=True)
        return {info.base_name for info in system.get_file_info(selector) if not info.base_name.endswith(".json")}

    try:
        both_live(bench)
        change(bench, 1, "one")
        before = found()
        kill_in_a_commit(bench, monkeypatch)
        left = found() - before
        assert len(left) > 3
        tend(bench.apply(), monkeypatch)
        assert not found() & left
        assert bench.agree()
    finally:
        bench.close()
