"""Parts and staged files of the store: whole or not at all, on disks and as uploads."""

import gc
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.store import backends
from cutline.common.store.lives import Folder
from cutline.common.store.records import PartRef
from cutline.common.store.staging_file import StagingFile
from cutline.common.store.store import PipelineStore, file_name
from tests.support import records
from tests.support.shop_store import files, part, shop, url

__all__ = ["files", "shop", "url"]  # the fixtures


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


def test_a_staged_file_that_is_discarded_leaves_nothing(shop: PipelineStore) -> None:
    file = shop.open_staged(file_name("orders.parquet", epoch=1, incarnation="ab12"))
    file.write(b"half")
    file.discard()
    assert shop._folder.names("staged") == []


def test_a_name_that_says_no_epoch_is_refused(shop: PipelineStore) -> None:
    for name in ("orders.parquet", "../0000000001.x", "0000000001.a/b"):
        with pytest.raises(ProtocolError, match=r"make the name by store\.file_name"):
            shop.put_part(name, b"")


def test_two_names_for_the_same_thing_differ() -> None:
    assert len({file_name("orders.parquet", epoch=1, incarnation="ab12") for _ in range(100)}) == 100
