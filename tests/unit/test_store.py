"""The store on files of this machine and on objects (fsspec's memory)."""

import gc
import hashlib
import multiprocessing
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile

from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.schema import Column, TableSchema
from cutline.common.store import backends
from cutline.common.store.chain import follow
from cutline.common.store.commands import Orders, Outcome
from cutline.common.store.lives import Folder
from cutline.common.store.records import CheckpointEntry, Main, PartRef, Publication, PublishedTable, TableEntry
from cutline.common.store.restoring import restorable
from cutline.common.store.staging_file import StagingFile
from cutline.common.store.store import PipelineStore, Store, file_name
from tests import records
from tests.records import epoch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def shop(url: str) -> PipelineStore:
    return records.begun(url)


@pytest.fixture
def files(tmp_path: Path) -> PipelineStore:
    return records.begun(f"file://{tmp_path}/store")


def checkpoint(
    slot: int, epoch: int, staged: tuple[PartRef, ...] = (), *, adopted: PartRef | None = None, kept: bool = False,
    tables: Mapping[str, TableEntry] | None = None, **parts: PartRef,
) -> CheckpointEntry:  # fmt: skip
    files = [] if adopted is None else [records.staged(kind="chunk", **adopted.to_json())]
    files += [records.staged(**ref.to_json()) for ref in staged]
    named = {name.replace("_", "-"): ref for name, ref in parts.items()}
    return records.checkpoint(slot, epoch, staged=tuple(files), kept=kept, parts=named, tables=tables or {})


def staged(shop: PipelineStore, epoch: int, data: bytes = b"rows") -> PartRef:
    name = file_name("orders.parquet", epoch=epoch, incarnation="ab12")
    return shop.stage(name, lambda file: file.write(data))


def part(shop: PipelineStore, epoch: int) -> PartRef:
    return shop.put_part(file_name("reader-0", epoch=epoch, incarnation="ab12"), b"state")


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# The definition


def test_a_pipeline_is_defined_once_and_the_same_definition_again_is_no_fault(url: str) -> None:
    definition = {"tables": ["shop.*"], "snapshot": {"chunk_rows": 50000}, "stop": None}
    assert Store(url).pipeline("shop").define(definition)
    assert not Store(url).pipeline("shop").define(dict(reversed(definition.items())))
    assert Store(url).pipeline("shop").definition() == definition
    assert Store(url).pipelines() == ["shop"]


def test_a_listing_looks_once_at_each_pipeline_and_misses_one_that_is_removed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looked = Store(url), list[str]()
    backend = store._backend
    exists = backend.exists

    def counted(path: str) -> bool:
        looked.append(path)
        return exists(path)

    monkeypatch.setattr(backend, "exists", counted)
    store.pipeline("shop").define({})
    records.begun(url, "crm").claim()
    assert store.pipelines() == store.pipelines() == ["shop"]
    assert looked.count(f"{store.pipeline('shop').life.folder}/pipeline.json") == 1
    store.pipeline("crm").define({})
    assert store.pipelines() == ["crm", "shop"]
    store.pipeline("shop").end()
    assert store.pipelines() == ["crm"]


def test_a_name_in_use_with_another_content_is_refused_naming_what_differs(shop: PipelineStore) -> None:
    shop.define({"tables": ["shop.*"], "sink": {"warehouse": "a"}, "stop": None})
    with pytest.raises(ConfigError, match=r"'shop' is in use in this store with another sink, stop .*pipeline.json"):
        shop.define({"tables": ["shop.*"], "sink": {"warehouse": "b"}, "stop": {"gtid": "x"}})


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "ä", "x" * 64])
def test_a_name_that_could_leave_its_folder_names_no_pipeline(url: str, name: str) -> None:
    with pytest.raises(ConfigError, match="can't name a pipeline"):
        Store(url).pipeline(name)


def test_an_empty_store_has_nothing(shop: PipelineStore, url: str) -> None:
    assert Store(url).pipelines() == []
    assert shop.definition() is None
    assert shop.last_slot() == 0
    assert list(shop.journal_tail()) == []
    assert shop.publications() == []
    assert shop.sweep() == []


def test_an_address_of_a_kind_without_put_if_absent_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs put-if-absent"):
        Store("ftp://host/store")


def test_a_plain_folder_is_a_store_too(tmp_path: Path) -> None:
    Store(str(tmp_path / "store")).pipeline("shop").define({})
    assert Store(f"file://{tmp_path}/store").pipelines() == ["shop"]


def test_a_store_that_can_be_written_passes_and_keeps_nothing_of_the_look(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/store").prepare()
    assert everything(tmp_path) == set()


def test_a_store_that_can_not_be_written_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    with pytest.raises(ConfigError, match="file"):
        Store(f"file://{tmp_path}/file/store").prepare()
    with pytest.raises(ConfigError):
        Store("file:///proc/cutline").prepare()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody without rights")
def test_a_store_without_the_right_to_write_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"cutline-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o755)
    script = (
        "import os, sys; from cutline.common.store.store import Store; os.setuid(65534); Store(sys.argv[1]).prepare()"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, f"file://{folder}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        folder.rmdir()
    assert "ConfigError" in done.stderr
    assert "give Cutline the right to it" in done.stderr


# The journal


def test_a_slot_is_given_once(shop: PipelineStore) -> None:
    assert shop.put_entry(epoch(1, nonce="mine"))
    assert not shop.put_entry(epoch(1, nonce="another"))
    assert shop.entry(1) == epoch(1, nonce="mine")
    assert shop.entry(2) is None


def test_a_slot_can_not_be_left_out(shop: PipelineStore) -> None:
    shop.put_entry(epoch(1))
    with pytest.raises(ProtocolError, match="slot 3 can't be written before slot 2"):
        shop.put_entry(checkpoint(3, 1))
    with pytest.raises(ProtocolError, match="slot 0 can't be written"):
        shop.put_entry(epoch(0))


def test_the_tail_is_what_came_after_also_when_others_wrote_it(url: str) -> None:
    writer, reader = records.begun(url), records.begun(url)
    writer.put_entry(epoch(1))
    assert [entry.slot for entry in reader.journal_tail()] == [1]
    for slot in range(2, 12):
        writer.put_entry(checkpoint(slot, 1))
    assert reader.last_slot() == 11
    assert [entry.slot for entry in reader.journal_tail(after=8)] == [9, 10, 11]


def test_text_of_any_kind_comes_back_as_written(shop: PipelineStore) -> None:
    entry = epoch(1, cause="Zürich \ud83d \U0001f600 \x00")
    shop.put_entry(entry)
    assert shop.entry(1) == entry


def test_an_entry_stays_where_the_store_can_not_tell_what_retention_removed(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is withdrawn where retention has removed its slot: then the journal went on long ago. A disk that fails
    is no sign of that, and others may have read the entry by then."""
    files.put_entry(epoch(1))
    listdir = os.listdir

    def failing(path: Any) -> list[str]:
        if str(path).endswith("retired"):
            raise OSError(5, "Input/output error")
        return listdir(path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "listdir", failing)
        with pytest.raises(Unavailable):
            files.put_entry(checkpoint(2, 1))
    assert files.entry(2) == checkpoint(2, 1)


def test_a_file_that_can_not_be_looked_at_is_not_taken_for_one_that_is_not_there(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put_entry(epoch(1))

    def failing(path: Any, **options: Any) -> os.stat_result:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "lstat", failing)
        with pytest.raises(Unavailable):
            files.has("journal/0000000001.json")


def test_a_slot_or_a_publication_that_retention_removed_is_given_to_nobody(files: PipelineStore) -> None:
    """1. Slot 3 is kept, a savepoint. 2. Retention removes what is before slot 6, also slot 4. 3. A leader that knows
    nothing after slot 3 wakes, and a Spark writer that is as far behind."""
    late = PipelineStore(files._folder)
    late_spark = PipelineStore(files._folder)
    files.put_entry(epoch(1))
    for slot in range(2, 7):
        assert files.put_entry(checkpoint(slot, 1, kept=slot == 3))
        if slot == 3:
            assert late.last_slot() == 3
    for n in (2, 3, 6):
        assert files.publish(published(n))
    files.retire(6, {3})
    assert 4 not in files.slots()
    assert not late.put_entry(epoch(4, base=3, nonce="late"))
    assert not late_spark.publish(published(4))
    assert files.entry(4) is None
    assert files.publication(4) is None


def test_an_entry_in_another_ones_place_stops_the_reader(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    os.rename(files.location("journal/0000000001.json"), files.location("journal/0000000002.json"))
    with pytest.raises(ProtocolError, match=r"0000000002.json holds the entry of slot 1; restore the journal"):
        files.entry(2)


def test_any_flipped_byte_of_an_entry_is_seen(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    location = Path(files.location("journal/0000000001.json"))
    whole = location.read_bytes()
    for at in range(len(whole)):
        location.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((ProtocolError, ConfigError), match=r"0000000001\.json"):
            files.entry(1)
    for length in range(len(whole)):
        location.write_bytes(whole[:length])
        with pytest.raises(ProtocolError, match=r"0000000001.json .* (restore|remove)"):
            files.entry(1)
    location.write_bytes(whole)
    assert files.entry(1) is not None


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (5, r"a newer Cutline \(format 5, this one reads 4\)"),
        (1, r"an older Cutline \(format 1, this one reads 2 and newer\)"),
    ],
)
def test_a_file_of_another_version_is_named_with_the_remedy(files: PipelineStore, number: int, named: str) -> None:
    files.define({"a": 1})
    location = Path(files.location("pipeline.json"))
    location.write_bytes(location.read_bytes().replace(b'"format":4', b'"format":%d' % number))
    with pytest.raises(ConfigError, match=f"pipeline.json .*{named}"):
        files.define({"a": 1})


def test_somebody_elses_file_is_not_taken_for_ours(files: PipelineStore) -> None:
    files.define({"a": 1})
    Path(files.location("pipeline.json")).write_text('{"name": "somebody else\'s"}')
    with pytest.raises(ProtocolError, match=r"pipeline\.json is not an envelope of Cutline"):
        files.definition()


def race(url: str, me: int, start: Any, won: Any) -> None:
    """Try for every slot as fast as it goes; note those that were given to us."""
    shop = records.begun(url)
    start.wait()
    for slot in range(1, 101):
        if shop.put_entry(epoch(slot, nonce=f"process {me}", cause="x" * 10_000 * me)):
            won.put((slot, me))
    won.put(None)


def test_of_processes_that_race_for_a_slot_exactly_one_gets_it_and_it_is_its_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    url = f"file://{tmp_path}/store"
    start, won = context.Event(), context.Queue()
    racers = [context.Process(target=race, args=(url, me, start, won)) for me in range(3)]
    for racer in racers:
        racer.start()
    start.set()
    ended, given = 0, []
    while ended < len(racers):
        got = won.get(timeout=60)
        ended, given = (ended + 1, given) if got is None else (ended, [*given, got])
    for racer in racers:
        racer.join(timeout=60)
    assert sorted(slot for slot, _ in given) == list(range(1, 101))
    tail = Store(url).pipeline("shop").journal_tail()
    assert {entry.slot: entry.nonce for entry in tail} == {slot: f"process {me}" for slot, me in given}
    assert {name.rpartition("/")[0].rpartition("/")[2] for name in everything(tmp_path)} == {"journal", "pipelines"}
    assert not [name for name in everything(tmp_path) if name.endswith(".tmp")]


def test_threads_that_race_for_claims_get_different_numbers_without_a_hole(url: str) -> None:
    claimed: list[int] = []
    threads = [
        threading.Thread(target=lambda: claimed.extend(records.begun(url).claim() for _ in range(20)))
        for _ in range(4 if url.startswith("file") else 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(1, len(threads) * 20 + 1))
    assert records.begun(url).claim() == len(claimed) + 1


class Torn(Exception):
    """The power failed."""


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_torn_write_leaves_no_entry_and_the_slot_free(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files.put_entry(epoch(1))

    def tear(*_: object) -> None:
        raise Torn

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, call, tear)
        broken.setattr(backends._Files, "discard", lambda *_: None)
        with pytest.raises(Torn):
            files.put_entry(checkpoint(2, 1))
    assert any(name.endswith(".tmp") for name in os.listdir(files.location("journal")))
    fresh = PipelineStore(files._folder)
    assert fresh.last_slot() == 1
    assert fresh.put_entry(checkpoint(2, 1))
    assert [entry.slot for entry in fresh.journal_tail()] == [1, 2]


def test_a_name_whose_folder_was_not_made_durable_is_by_the_repeated_call(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. An entry's link is made, and the fsync of its folder fails. 2. The leader repeats the call, and takes the
    entry with its nonce for written: not before the folder was synced."""
    files.put_entry(epoch(1))
    plain, synced, broken = backends._sync_folder, list[str](), [True]

    def sync(folder: str) -> None:
        if broken:
            raise OSError(5, "Input/output error")
        synced.append(folder)
        plain(folder)

    monkeypatch.setattr(backends, "_sync_folder", sync)
    for _ in range(2):
        with pytest.raises(Unavailable, match="Input/output error"):
            files.put_entry(checkpoint(2, 1))
    broken.clear()
    assert not files.put_entry(checkpoint(2, 1))
    assert synced == [files.location("journal")]


def test_an_error_on_the_way_leaves_no_temporary_file(files: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put_entry(epoch(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, "fsync", full)
        with pytest.raises(Unavailable, match=r"0000000002.json: No space left on device"):
            files.put_entry(checkpoint(2, 1))
    assert os.listdir(files.location("journal")) == ["0000000001.json"]


def test_a_file_system_without_hard_links_is_named_as_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(backends.os, "link", refuse)
    with pytest.raises(ConfigError, match="without hard links"):
        Store(f"file://{tmp_path}/store").prepare()


def test_a_link_that_was_made_though_it_was_answered_as_refused_counts_as_ours(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def repeated(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, "link", repeated)
        assert files.put_entry(epoch(1, nonce="mine"))
        assert not files.put_entry(epoch(1, nonce="another"))
    assert files.entry(1) == epoch(1, nonce="mine")


@pytest.mark.parametrize("arrived", [True, False])
def test_an_unclear_answer_of_the_object_store_is_cleared_by_a_look(
    monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    shop = records.begun(f"memory://{uuid.uuid4().hex}")
    filesystem = shop._folder._backend._fs  # type: ignore[attr-defined]
    pipe = filesystem.pipe_file

    def unclear(path: str, data: bytes, mode: str) -> None:
        if arrived:
            pipe(path, data, mode=mode)
        raise TimeoutError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(filesystem, "pipe_file", unclear)
        if arrived:
            assert shop.put_entry(epoch(1, nonce="mine"))
        else:
            with pytest.raises(Unavailable, match="no answer"):
                shop.put_entry(epoch(1, nonce="mine"))
    assert shop.put_entry(epoch(1, nonce="mine")) is not arrived
    assert not shop.put_entry(epoch(1, nonce="another"))
    assert shop.entry(1) == epoch(1, nonce="mine")


# Parts and staged files


def test_a_part_comes_back_as_it_was_saved(shop: PipelineStore) -> None:
    ref = part(shop, 1)
    assert shop.read_part(PartRef.from_json(ref.to_json())) == b"state"
    assert (ref.path[:22], ref.size) == ("parts/0000000001.ab12.", 5)


def test_a_flipped_byte_or_a_missing_part_is_seen(files: PipelineStore) -> None:
    ref = part(files, 1)
    Path(files.location(ref.path)).write_bytes(b"stata")
    with pytest.raises(ProtocolError, match="is corrupt"):
        files.read_part(ref)
    with pytest.raises(ProtocolError, match="is corrupt"):
        files.verify(ref)
    os.unlink(files.location(ref.path))
    with pytest.raises(ProtocolError, match="is missing, though an entry names it"):
        files.read_part(ref)
    with pytest.raises(ProtocolError, match="is missing, though an entry names it"):
        files.verify(ref)


def test_parquet_written_bit_by_bit_into_a_staged_file_has_its_hash_without_a_second_reading(
    shop: PipelineStore,
) -> None:
    table = pa.table({"id": list(range(10_000)), "name": [f"row {i}" for i in range(10_000)]})
    file = shop.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for batch in table.to_batches(max_chunksize=1000):
            writer.write_batch(batch)
    ref = file.commit()
    shop.verify(ref)
    with shop._folder.open_read(ref.path) as written:
        assert pq.read_table(written).equals(table)
        assert written.tell() <= ref.size


def test_a_staged_file_has_no_name_before_it_is_whole(files: PipelineStore) -> None:
    name = file_name("orders.parquet", epoch=1, incarnation="ab12")
    file = files.open_staged(name)
    file.write(b"half")
    assert not os.path.exists(files.location(f"staged/{name}"))
    file.write(b" and half")
    assert file.commit().path == f"staged/{name}"
    assert os.listdir(files.location("staged")) == [name]


@pytest.mark.parametrize("drop", [lambda file: file.discard(), lambda file: file.close()])
def test_a_staged_file_that_is_dropped_leaves_nothing(shop: PipelineStore, drop: Callable[[Any], None]) -> None:
    file = shop.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    file.write(b"half")
    drop(file)
    assert shop._folder.names("staged") == []
    with pytest.raises(ValueError, match="is closed"):
        file.commit()


class Uploads(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """An object store as S3 is by s3fs: an object is there when its upload is completed, small ones by one request."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.open_uploads: dict[int, list[bytes]] = {}
        self.begun = 0
        self.requests: list[str] = []
        self.fails = False

    def request(self, kind: str) -> None:
        self.requests.append(kind)
        if self.fails:
            raise OSError("Connection reset")

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **_: Any) -> Any:
        return UploadedFile(self, path, mode, block_size=1 << 16, autocommit=autocommit)

    def rm_file(self, path: str) -> None:
        self.request("remove")
        del self.objects[path]


class UploadedFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of `Uploads`, as `s3fs.S3File` works."""

    upload: int | None = None

    def _initiate_upload(self) -> None:
        if self.autocommit and self.tell() < self.blocksize:
            return
        self.fs.request("begin")
        self.fs.begun += 1
        self.upload = self.fs.begun
        self.fs.open_uploads[self.upload] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        if self.upload is not None:
            self.fs.request("part")
            self.fs.open_uploads[self.upload].append(self.buffer.getvalue())
        if self.autocommit and final:
            self.commit()
        return not final

    def commit(self) -> None:
        self.fs.request("put" if self.upload is None else "complete")
        parts = [self.buffer.getvalue()] if self.upload is None else self.fs.open_uploads.pop(self.upload)
        self.fs.objects[self.path] = b"".join(parts)

    def discard(self) -> None:
        if self.upload is not None:
            self.fs.request("abort")
            del self.fs.open_uploads[self.upload]
        self.upload = self.buffer = None


@pytest.fixture
def uploads() -> Uploads:
    return Uploads()


def half_written(uploads: Uploads, size: int) -> tuple[StagingFile, bytes]:
    """A staged file in the making, with so many bytes written."""
    file = PipelineStore(Folder(backends._Objects(uploads, "s3", "bucket"), "shop", life=records.LIFE)).open_staged(
        file_name("orders.parquet", epoch=1, incarnation="ab12")
    )
    data = os.urandom(size)
    for at in range(0, size, 10_000):
        file.write(data[at : at + 10_000])
    return file, data


def fails_to_settle(file: StagingFile) -> None:
    file._folder._backend._fs.fails = True  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        file.commit()
    file._folder._backend._fs.fails = False  # type: ignore[attr-defined]


def forgotten(file: StagingFile) -> None:
    """In a circle with what is below it, so that no order is certain."""
    file._file.circle = file  # type: ignore[union-attr]


DROPS: list[Callable[[StagingFile], None]] = [StagingFile.discard, StagingFile.close, fails_to_settle, forgotten]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("size", [0, 100, 200_000])
def test_an_upload_that_is_dropped_is_never_completed(
    uploads: Uploads, size: int, drop: Callable[[StagingFile], None]
) -> None:
    file, _ = half_written(uploads, size)
    drop(file)
    del file
    gc.collect()
    assert uploads.objects == {}
    assert "put" not in uploads.requests or drop is fails_to_settle
    assert "complete" not in uploads.requests or drop is fails_to_settle
    assert "remove" not in uploads.requests
    if drop in (StagingFile.discard, StagingFile.close):
        assert uploads.open_uploads == {}
        assert uploads.requests[-1:] == (["abort"] if size > 100 else [])


@pytest.mark.parametrize(("size", "requests"), [(100, {"put"}), (200_000, {"begin", "part", "complete"})])
def test_an_upload_that_is_committed_is_there_whole_and_a_small_one_takes_one_request(
    uploads: Uploads, size: int, requests: set[str]
) -> None:
    file, data = half_written(uploads, size)
    ref = file.commit()
    assert uploads.objects == {f"bucket/{records.LIFE.folder}/{ref.path}": data}
    assert (ref.size, ref.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert set(uploads.requests) == requests
    file.discard()
    del file
    gc.collect()
    assert uploads.objects != {}


def test_a_writer_that_fails_leaves_nothing(shop: PipelineStore) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise Torn

    with pytest.raises(Torn):
        shop.stage(file_name("orders.parquet", epoch=1, incarnation="ab12"), fail)
    assert shop._folder.names("staged") == []


def test_a_name_that_says_no_epoch_is_refused(shop: PipelineStore) -> None:
    for name in ("orders.parquet", "../0000000001.x", "0000000001.a/b"):
        with pytest.raises(ProtocolError, match=r"make the name by store\.file_name"):
            shop.put_part(name, b"")


def test_two_names_for_the_same_thing_differ() -> None:
    assert len({file_name("orders.parquet", epoch=1, incarnation="ab12") for _ in range(100)}) == 100


# Publications


def published(n: int, w: int = 1, tables: Mapping[str, int] | None = None, **other: Any) -> Publication:
    """A publication that shows these tables at snapshots."""
    shown = {
        name: PublishedTable(state="live", generation=1, main=Main(snapshot_id=at), work=None)
        for name, at in (tables or {}).items()
    }
    defaults: dict[str, Any] = {
        "epoch": 1,
        "kept": False,
        "position": records.place(n),
        "source_time": None,
        "published_at": 0.0,
        "tables": shown,
    }
    return Publication(n=n, w=w, **(defaults | other))


def test_a_publication_is_written_once_and_listed_in_order(shop: PipelineStore) -> None:
    assert shop.publish(published(3))
    assert shop.publish(published(12))
    assert not shop.publish(published(12, w=2))
    assert shop.publication(12) == published(12)
    assert shop.publication(4) is None
    assert shop.publication_numbers() == [3, 12]
    assert [publication.n for publication in shop.publications(after=3)] == [12]


# What changed


def size(shop: PipelineStore, path: str) -> int:
    return len(shop._folder.read(path) or b"")


def test_an_entry_and_a_publication_cost_what_changed_and_tell_everything(shop: PipelineStore, url: str) -> None:
    """A thousand tables; at each checkpoint one of them has another schema, which its publication shows."""
    schemas = {f"d.t{number}": f"{number:016}" for number in range(1000)}
    shop.put_entry(epoch(1))
    tables_at = {}
    for n in range(2, 60):
        schemas = {**schemas, f"d.t{n}": f"{n + 5000:016}"}
        tables_at[n] = {name: records.table(schema=schema) for name, schema in schemas.items()}
        assert shop.put_entry(checkpoint(n, 1, tables=tables_at[n]))
        assert shop.publish(published(n, tables={name: int(schema) for name, schema in schemas.items()}))
    assert size(shop, "journal/0000000002.json") > 70_000 < size(shop, "publications/0000000002.json")
    assert size(shop, "journal/0000000003.json") < 1000 > size(shop, "publications/0000000003.json")
    fresh = Store(url).pipeline("shop")
    for n in (30, 2, 59, 45):  # full ones come in between, each once
        entry, record = fresh.entry(n), fresh.publication(n)
        assert isinstance(entry, CheckpointEntry)
        assert record is not None
        assert entry.tables == tables_at[n]
        assert {name: table.main.snapshot_id for name, table in record.tables.items() if table.main} == {
            name: int(table.schema or "") for name, table in tables_at[n].items()
        }
    written = sum(size(shop, f"journal/{n:010}.json") for n in range(3, 60))
    assert written < 2 * size(shop, "journal/0000000002.json") + 57 * 1000


def test_a_table_that_was_removed_is_in_no_later_entry_or_publication(shop: PipelineStore, url: str) -> None:
    tables = {f"shop.t{n}": TableEntry(generation=1, phase="live", schema="s", show=True) for n in range(8)}
    fewer = {name: table for name, table in tables.items() if name != "shop.t3"}
    assert shop.put_entry(epoch(1))
    for slot, held in ((2, tables), (3, fewer), (4, tables)):
        assert shop.put_entry(checkpoint(slot, 1, tables=held))
        assert shop.publish(published(slot, tables=dict.fromkeys(held, slot)))
    other = Store(url).pipeline("shop")
    assert size(shop, "journal/0000000003.json") < size(shop, "journal/0000000002.json")
    found = [other.entry(slot) for slot in (2, 3, 4)]
    assert [len(entry.tables) for entry in found if isinstance(entry, CheckpointEntry)] == [8, 7, 8]
    assert [set(record.tables) for record in other.publications()] == [set(tables), set(fewer), set(tables)]
    assert other.sweep() == []


def test_a_burst_of_changes_is_not_repeated_by_later_entries(shop: PipelineStore, url: str) -> None:
    """A fifth of a thousand tables changes, then one, then none: each entry costs what changed since the one before."""
    tables = {f"d.t{number}": records.table() for number in range(1000)}
    shop.put_entry(epoch(1))
    states = {}
    for n in range(2, 40):
        changed = range(200) if n == 3 else range(n, n + 1) if n in (10, 20) else ()
        tables = tables | {f"d.t{number}": records.table(schema=f"{n:016}") for number in changed}
        states[n] = tables
        assert shop.put_entry(checkpoint(n, 1, tables=tables))
        assert shop.publish(published(n, tables=dict.fromkeys(tables, n if n in (3, 10, 20) else 1)))
    sizes = {n: size(shop, f"journal/{n:010}.json") for n in states}
    assert sizes[3] > 10_000
    assert max(sizes[n] for n in range(4, 40)) < 1500
    fresh = Store(url).pipeline("shop")
    for n in (39, 3, 15):
        entry = fresh.entry(n)
        assert isinstance(entry, CheckpointEntry)
        assert entry.tables == states[n]
    shop.retire(39)
    assert shop.entry(15) is None
    last = Store(url).pipeline("shop").entry(39)  # needs slots 2 and 3, on which it builds
    assert isinstance(last, CheckpointEntry)
    assert last.tables == states[39]


def test_after_an_unclear_answer_and_in_a_new_epoch_an_entry_builds_on_nothing(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {f"d.t{number}": records.table() for number in range(20)}
    files.put_entry(epoch(1))
    files.put_entry(checkpoint(2, 1, tables=tables))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, "fsync", full)
        with pytest.raises(Unavailable):
            files.put_entry(checkpoint(3, 1, tables=tables))
    files.put_entry(checkpoint(3, 1, tables=tables))
    files.put_entry(checkpoint(4, 1, tables=tables))
    files.put_entry(epoch(5, base=4))
    files.put_entry(checkpoint(6, 5, tables=tables))
    large = [size(files, f"journal/{n:010}.json") > 1000 for n in (2, 3, 4, 6)]
    assert large == [True, True, False, True]


# Schemas


def schema(number: int) -> TableSchema:
    column = Column(name=f"c{number}", field_id=1, mysql_type="int", nullable=False)
    return TableSchema(table_id="d.t", columns=(column,), key=(column.name,), last_field_id=1)


def test_schemas_are_stored_once_and_found_by_their_hash(shop: PipelineStore, url: str) -> None:
    some = [schema(number) for number in range(50)]
    shop.put_schemas(some, epoch=1)
    shop.put_schemas(some[:3], epoch=1)
    assert len(shop._folder.names("schemas")) == 50
    assert Store(url).pipeline("shop").schemas({stored.hash for stored in some}) == {
        stored.hash: stored for stored in some
    }
    with pytest.raises(ProtocolError, match="has no schema 0123, though an entry names it"):
        shop.schemas(["0123"])


def test_a_schema_that_no_entry_names_goes_with_its_epoch(shop: PipelineStore, url: str) -> None:
    """1. Epoch 1 stores three schemas; its checkpoint names one as a table's and one as a file's. 2. Epoch 3 begins and
    stores the third one, which its checkpoint may be about to name, again."""
    of_table, of_file, unnamed = schema(1), schema(2), schema(3)
    shop.put_entry(epoch(1))
    shop.put_schemas((of_table, of_file, unnamed), epoch=1)
    file = records.staged(**staged(shop, 1).to_json(), schema=of_file.hash)
    tables = {"d.t": records.table(schema=of_table.hash)}
    shop.put_entry(records.checkpoint(2, 1, staged=(file,), tables=tables))
    reader = Store(url).pipeline("shop")
    assert reader.schemas([unnamed.hash]) == {unnamed.hash: unnamed}
    shop.put_entry(epoch(3, base=2))
    shop.put_schemas([unnamed], epoch=3)
    assert shop.sweep() == [f"schemas/0000000001.{unnamed.hash}.json"]
    reader._schemas.clear()
    assert reader.schemas([unnamed.hash]) == {unnamed.hash: unnamed}  # from epoch 3's
    assert shop.schemas([of_table.hash, of_file.hash]) == {of_table.hash: of_table, of_file.hash: of_file}


def test_of_a_schema_that_each_epoch_stores_one_copy_stays(shop: PipelineStore, url: str) -> None:
    stored, other = schema(1), schema(2)
    tables = {"d.t": records.table(schema=stored.hash), "d.u": records.table(schema=other.hash)}
    for slot in (1, 3, 5):
        shop.put_entry(epoch(slot, base=slot - 1 or None))
        shop.put_schemas([stored, *([other] if slot == 1 else [])], epoch=slot)
        shop.put_entry(records.checkpoint(slot + 1, slot, tables=tables))
    shop.put_entry(epoch(7, base=6))
    assert shop.sweep() == [f"schemas/{slot:010d}.{stored.hash}.json" for slot in (1, 3)]
    assert Store(url).pipeline("shop").schemas([stored.hash, other.hash]) == {
        stored.hash: stored, other.hash: other,
    }  # fmt: skip


# The sweep


def test_a_number_of_a_removed_claim_is_not_claimed_again(shop: PipelineStore, url: str) -> None:
    """1. Savepoint 2 is by start 1, publication 3 by start 4; retention keeps these claims. 2. A process that was
    suspended before it claimed number 2 goes on.
    """
    for at in range(4):
        assert shop.claim() == at + 1
    assert shop.publish(published(2, w=1, tables={"d.t": 1}))
    assert shop.publish(published(3, w=4, tables={"d.t": 2}))
    shop.retire(3, kept={2})
    assert sorted(shop._numbers("spark")) == [1, 4]
    slow = Store(url).pipeline("shop")
    numbers = slow._numbers
    listed = iter([[1]])
    slow._numbers = lambda folder: next(listed, None) or numbers(folder)  # type: ignore[method-assign]
    assert slow.claim() == 5


def test_the_sweep_takes_what_dead_epochs_left_unnamed_and_nothing_else(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    named, part_named = staged(files, 1), part(files, 1)
    lost, part_lost, adopted = staged(files, 1), part(files, 1), staged(files, 1)
    files.put_entry(checkpoint(2, 1, (named,), adopted=adopted, reader_0=part_named))
    torn = files.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    assert files.sweep() == []

    files.put_entry(epoch(3, base=2))
    running, part_running = staged(files, 3), part(files, 3)
    growing = files.open_staged(file_name("orders.parquet", epoch=3, incarnation="ab12"))
    Path(files.location("staged/notes.txt")).write_text("somebody's")

    removed = files.sweep()
    assert {path for path in removed if not path.endswith(".tmp")} == {lost.path, part_lost.path}
    assert [path for path in removed if path.endswith(".tmp")] == [os.path.relpath(torn._temporary, files.location(""))]
    for ref in (named, adopted, part_named, running, part_running):
        files.verify(ref)
    growing.write(b"x")
    files.verify(growing.commit())
    assert os.path.exists(files.location("staged/notes.txt"))
    assert files.sweep() == []


def test_what_only_a_restore_to_before_a_publication_needs_is_removed(shop: PipelineStore, url: str) -> None:
    """Checkpoints 2 to 5, of which 3 is kept; then what a restore to 4, or to 3, needs is left, then that of 5."""
    shop.put_entry(epoch(1))
    changes, parts = [staged(shop, 1) for _ in range(4)], [part(shop, 1) for _ in range(4)]
    adopted, unnamed = staged(shop, 1), staged(shop, 1)
    tables = {f"d.t{number}": records.table() for number in range(9)}
    for at, kept in enumerate((False, True, False, False)):
        chunk = adopted if at == 0 else None
        entry = checkpoint(at + 2, 1, (changes[at],), adopted=chunk, kept=kept, reader_0=parts[at], tables=tables)
        assert shop.put_entry(entry)
        assert shop.claim() == at + 1
        shop.publish(published(at + 2, w=at + 1, tables={"d.t": at}))

    def exists(ref: PartRef) -> bool:
        try:
            shop.verify(ref)
        except ProtocolError:
            return False
        return True

    def left() -> list[list[int]]:
        return [[slot for slot, ref in enumerate(refs, start=2) if exists(ref)] for refs in (changes, parts)]

    def numbers() -> list[list[int]]:
        return [shop._numbers(folder) for folder in ("journal", "publications", "spark")]

    assert shop.sweep() == []
    shop.retire(4, kept={3})
    assert left() == [[5], [3, 4, 5]]
    assert [sorted(some) for some in numbers()] == [[2, 3, 4, 5], [3, 4, 5], [2, 3, 4]]  # entry 2 has their tables
    shop.retire(5)
    assert left() == [[], [5]]
    assert [sorted(some) for some in numbers()] == [[2, 5], [5], [4]]
    entry = Store(url).pipeline("shop").entry(5)
    assert isinstance(entry, CheckpointEntry)
    assert entry.tables == tables
    assert not exists(adopted)
    assert shop.claim() == 5
    shop.put_entry(epoch(6, base=5))
    assert shop.sweep() == [unnamed.path]


def test_chunk_files_that_an_older_version_let_the_lake_use_stay_until_it_releases_them(shop: PipelineStore) -> None:
    """1. A start of an older version publishes 3, and wakes up to publish 5 after a newer one published 4: the lake
    uses the chunk files up to 5 where they lie. 2. Newer starts go on, also once retention removed those publications;
    the lake releases the files one by one.
    """
    shop.put_entry(epoch(1))
    older, newer = shop.claim({}), shop.claim()
    chunks = [staged(shop, 1) for _ in range(6)]
    unnamed = staged(shop, 1)
    for slot, w in ((2, older), (3, older), (4, newer), (5, older), (6, newer), (7, newer)):
        shop.put_entry(checkpoint(slot, 1, adopted=chunks[slot - 2]))
        if slot > 2:
            w = shop.claim() if slot == 7 else w
            assert shop.publish(published(slot, w=w, tables={"d.t": slot}))

    def present() -> list[int]:
        names = {f"staged/{name}" for name in shop._names("staged")}
        return [slot for slot, ref in enumerate(chunks, start=2) if ref.path in names]

    shop.retire(4, released=[shop.location(ref.path) for ref in (chunks[0], unnamed)])
    assert present() == [3, 4, 5, 6, 7]
    assert not shop._exists(unnamed.path)
    shop.retire(7, released=[shop.location(chunks[2].path), "/a/file/of/others"])
    assert shop.publication_numbers() == [7]
    assert present() == [3, 5]
    shop.put_entry(epoch(8, base=7))
    assert shop.sweep() == []
    shop.retire(7, released=[shop.location(chunks[at].path) for at in (1, 3)])
    assert present() == []


def test_who_writes_a_slot_of_which_the_entry_is_gone_is_refused(shop: PipelineStore, url: str) -> None:
    """A leader's checkpoint 3 is slow; meanwhile others go on, and remove what they need no more."""
    slow = Store(url).pipeline("shop")
    slow.put_entry(epoch(1))
    slow.put_entry(checkpoint(2, 1))
    shop.put_entry(epoch(3, base=2))
    for slot in range(4, 9):
        shop.put_entry(checkpoint(slot, 3))
    shop.retire(7)
    assert not slow.put_entry(checkpoint(3, 1))
    assert sorted(shop._numbers("journal")) == [4, 7, 8]


def test_a_publication_that_others_have_passed_long_ago_is_refused(shop: PipelineStore, url: str) -> None:
    """A start's publication 3 is slow; meanwhile others publish on, and retention removes what 3 builds on."""
    slow = Store(url).pipeline("shop")
    assert slow.publish(published(2, tables={"d.a": 1, "d.b": 1}))
    for n in range(3, 8):
        assert shop.publish(published(n, tables={"d.a": n, "d.b": n}))
    shop.retire(7)
    assert not slow.publish(published(3, tables={"d.a": 1, "d.b": 1}))
    assert [record.n for record in shop.publications()] == [7]


def test_temporary_names_in_the_journal_go_after_a_day(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    young, old = (Path(files.location(f"journal/.0000000002.json.{age}.tmp")) for age in ("young", "old"))
    young.write_bytes(b"{")
    old.write_bytes(b"{")
    os.utime(old, (0, 0))
    files.sweep()
    assert young.exists()
    assert not old.exists()


@pytest.mark.parametrize("how", ["asked", "ordered", "entered"])
def test_nothing_is_retired_that_a_restore_under_way_needs(shop: PipelineStore, how: str) -> None:
    """A restore to checkpoint 2 is commanded, a standing order, or has its epoch, while what is before 3 is to go."""
    shop.put_entry(records.epoch(1))
    for n in (2, 3):
        shop.put_entry(records.checkpoint(n))
    if how == "entered":
        shop.put_entry(records.epoch(4, base=2))
    else:
        shop.commands.add("restore", {"checkpoint": 2}, by="ann", now=1.0)
    if how == "ordered":
        orders = Orders(mode="paused", base=2, base_after=3)
        shop.commands.put_outcome(Outcome(n=1, state="done", at=1.0, orders=orders))
    shop.retire(3)
    assert shop.entry(2) is not None
    assert shop.retired() == (0, frozenset())  # it was in vain, so whatever could be restored still can
    shop.retire(3, kept={2})
    assert shop.entry(2) is not None


def kept_until(shop: PipelineStore, last: int, *, kept: Collection[int] = ()) -> None:
    """Checkpoints 2 to `last` of one epoch, each published."""
    shop.put_entry(records.epoch(1))
    shop.claim()
    for n in range(2, last + 1):
        shop.put_entry(records.checkpoint(n, kept=n in kept))
        shop.publish(published(n))


def test_a_later_round_notes_that_it_keeps_fewer_savepoints_though_the_oldest_publication_is_the_same(
    shop: PipelineStore,
) -> None:
    kept_until(shop, 6, kept={2, 4})
    assert shop.may_retire(6, {2, 4})
    assert restorable(shop, 2)
    assert shop.may_retire(6, {4})
    assert (restorable(shop, 2), restorable(shop, 4)) == (False, True)
    shop.retire(6, {4})
    assert len(shop._numbers("retired")) == 1


def test_after_a_restore_to_a_savepoint_from_before_the_last_note_that_note_stands_and_keeps_it(
    shop: PipelineStore,
) -> None:
    kept_until(shop, 6, kept={2})
    shop.retire(6, {2})
    shop.put_entry(records.epoch(7, base=2))
    assert shop.may_retire(2)
    assert shop.retired() == (6, frozenset({2}))
    assert restorable(shop, 2)


def test_a_round_that_comes_late_makes_nothing_valid_that_a_later_one_removes(shop: PipelineStore) -> None:
    """1. A round notes its publication, and its sweep waits for a thread. 2. The next round notes a later one.
    3. The sweep of the first one begins."""
    kept_until(shop, 8)
    assert shop.may_retire(5)
    assert shop.may_retire(8)
    shop.retire(5)
    assert shop.retired() == (8, frozenset())
    assert not restorable(shop, 5)
    assert 4 in shop.slots()  # the next round's sweep removes it


def test_a_round_that_comes_late_in_a_pipeline_that_is_being_deleted_removes_nothing(shop: PipelineStore) -> None:
    kept_until(shop, 8)
    assert shop.may_retire(8)
    entry = shop.entry
    shop.entry = lambda slot: None if slot == 8 else entry(slot)  # type: ignore[method-assign]
    assert not shop.may_retire(5)


@pytest.mark.parametrize("n", [6, 7])
def test_a_savepoint_that_one_round_did_not_keep_is_kept_by_no_later_one(shop: PipelineStore, n: int) -> None:
    kept_until(shop, 7, kept={2, 4})
    assert shop.may_retire(6, {4})
    assert shop.may_retire(n, {2, 4})
    assert shop.retired() == (n, frozenset({4}))
    assert not restorable(shop, 2)


def test_of_two_rounds_that_cross_at_any_call_the_later_publication_stays_noted() -> None:
    for at in range(1, 100):
        url = f"memory://{uuid.uuid4().hex}"
        shop = records.begun(url)
        kept_until(shop, 5)
        files = Store(url).open(shop.life)
        crossing = Crossing(files._folder, at, partial(shop.may_retire, 5))
        files._folder = files.commands._folder = crossing  # type: ignore[assignment]
        files.may_retire(3)
        if crossing.calls < at:
            break
        assert shop.retired() == (5, frozenset()), f"the later round came before call {at}"
    assert at > 3


def test_another_starts_note_is_not_taken_back(shop: PipelineStore) -> None:
    kept_until(shop, 4)
    assert shop.may_retire(3, w=1)
    shop.commands.add("restore", {"checkpoint": 2}, by="ann", now=1.0)
    assert not shop.may_retire(3, w=2)
    assert shop.retired() == (3, frozenset())


def test_a_sweep_that_is_cut_short_makes_no_savepoint_valid_that_a_restore_left_behind(shop: PipelineStore) -> None:
    """1. A restore leaves savepoint 4 behind. 2. A sweep keeps savepoint 2, and ends in the middle. 3. The next one
    finds 4 on no chain, as the first did."""
    kept_until(shop, 4, kept={2, 4})
    shop.put_entry(records.epoch(5, base=3))
    for n in (6, 7):
        shop.put_entry(records.checkpoint(n, 5))
        shop.publish(published(n))

    def ask() -> None:
        if 5 not in shop.slots():
            raise Unavailable("this start has ended")

    with suppress(Unavailable):
        shop.retire(7, {2}, ask=ask)
    assert 4 not in follow(shop.last_slot(), shop.entry) or 4 not in shop.publication_numbers()


def test_a_savepoint_that_was_given_up_can_not_be_restored_once_only_savepoints_are_kept(shop: PipelineStore) -> None:
    kept_until(shop, 6, kept={2})
    assert shop.may_retire(6, {2})
    assert shop.release(2, 7)
    assert shop.release(2, 7)  # repeated by the same command
    assert not shop.release(2, 8)
    assert not restorable(shop, 2)


class Crossing:
    """The files of a store, before whose call `at` another process makes all of its calls."""

    def __init__(self, folder: Any, at: int, other: Callable[[], None]) -> None:
        self._folder, self._at, self._other, self.calls = folder, at, other, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("create", "names", "read", "exists"):
            self.calls += 1
            if self.calls == self._at:
                self._other()
        return getattr(self._folder, name)


@pytest.mark.parametrize("first", ["retention", "restore"])
def test_of_a_restore_and_a_retention_that_cross_at_any_call_one_gives_way(first: str) -> None:
    """1. A retention and a restore begin, one of them in the middle of the other. 2. Never does the restore find what
    it needs, and the retention remove it."""
    ways = set()
    for at in range(1, 100):
        url = f"memory://{uuid.uuid4().hex}"
        shop = records.begun(url)
        shop.put_entry(records.epoch(1))
        for n in (2, 3):
            shop.put_entry(records.checkpoint(n))
        found: dict[str, bool] = {}

        def retention(files: PipelineStore, found: dict[str, bool] = found) -> None:
            found["retention"] = files.may_retire(3)

        def restore(files: PipelineStore, found: dict[str, bool] = found) -> None:
            files.commands.add("restore", {"checkpoint": 2}, by="ann", now=1.0)
            found["restore"] = restorable(files, 2)

        one, other = (retention, restore) if first == "retention" else (restore, retention)
        files = Store(url).open(shop.life)
        crossing = Crossing(files._folder, at, lambda other=other, shop=shop: other(shop))
        files._folder = files.commands._folder = crossing  # type: ignore[assignment]
        one(files)
        if crossing.calls < at:
            break
        assert not (found["retention"] and found["restore"]), f"the other came before call {at}"
        ways.add((found["retention"], found["restore"]))
    assert ways >= {(True, False), (False, True)}


def test_what_no_restore_needs_is_retired(shop: PipelineStore) -> None:
    shop.put_entry(records.epoch(1))
    for n in (2, 3):
        shop.put_entry(records.checkpoint(n))
    shop.commands.add("restore", {"checkpoint": 3}, by="ann", now=1.0)
    assert shop.may_retire(3)
