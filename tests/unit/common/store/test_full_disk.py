"""A store whose disk is full: each write says so, with what helps, and succeeds once there is room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutline.common.causes import Code
from cutline.common.errors import ConfigError, DiskFull, Unavailable
from cutline.common.store.store import PipelineStore, Store
from tests.support import records

WRITES: dict[str, Callable[[PipelineStore], Any]] = {
    "an entry": lambda store: store.put_entry(records.epoch(1)),
    "a part": lambda store: store.put_part("0000000001.r1.reader-0-2.aa.json.gz", b"part"),
    "a command": lambda store: store.commands.add("pause", {}, by="ann", now=1.0),
}


@pytest.fixture
def store(tmp_path: Path) -> PipelineStore:
    return records.begun(f"file://{tmp_path}")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("what", WRITES)
def test_each_write_names_a_full_disk_and_what_helps_and_succeeds_once_there_is_room(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull) as raised:
            WRITES[what](store)
    cause = raised.value.cause
    assert (cause.code, cause.remedy) == (Code.DISK_FULL, "free space on it, or enlarge it")
    assert cause.sentence.startswith("the disk of the store is full, at /")
    assert WRITES[what](store)


def test_a_staged_file_names_it_too(store: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store.open_staged("0000000001.w1.chunk.aa.parquet")

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    monkeypatch.setattr(file, "_file", Full())
    with pytest.raises(DiskFull, match="the disk of the store is full"):
        file.write(b"rows")
    file.discard()


def test_another_failure_of_the_disk_is_none_of_a_full_one(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(Unavailable, match="the store does not answer at") as raised:
        store.put_entry(records.epoch(1))
    assert raised.value.cause.code == Code.UNAVAILABLE


def test_a_store_that_is_to_be_used_first_is_refused_with_the_same_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"is full, at .*; free space on it, or enlarge it$"):
        Store(f"file://{tmp_path}").prepare()
