"""A store with a pipeline `shop`, in files or in memory, for unit tests."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cutline.common.store.records import (
    CheckpointEntry,
    Content,
    Main,
    PartRef,
    Publication,
    PublishedTable,
    TableEntry,
)
from cutline.common.store.store import PipelineStore, file_name
from tests.support import records


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
    file = shop.open_staged(name)
    file.write(data)
    return file.commit()


def part(shop: PipelineStore, epoch: int) -> PartRef:
    return shop.put_part(file_name("reader-0", epoch=epoch, incarnation="ab12"), b"state")


# Publications


def published(n: int, w: int = 1, tables: Mapping[str, int] | None = None, **other: Any) -> Publication:
    """A publication that shows these tables at snapshots."""
    shown = {
        name: PublishedTable(state="live", generation=1, main=Main(content=Content(str(at))), work=None)
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


# What changed


def size(shop: PipelineStore, path: str) -> int:
    return len(shop._folder.read(path) or b"")
