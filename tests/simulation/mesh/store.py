"""The real store in memory."""

from __future__ import annotations

from typing import Any, cast

from cutline.common.store.lives import Folder, Lives
from cutline.common.store.records import Entry, PartRef, Publication
from cutline.common.store.store import PipelineStore, file_name
from tests.simulation.checks.failure import Failure
from tests.support.records import LIFE


class SimulatedFileSystem:
    """The file system under the real store: names and bytes, each put once."""

    look_seconds = 0.02

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._folders: dict[str, dict[str, None]] = {}  # the names in each, in the order in which they were put

    def remove_folder(self, folder: str) -> None:
        pass

    def create(self, path: str, data: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        self._folders.setdefault(folder, {})[name] = None
        return self.files.setdefault(path, data) is data

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def names(self, folder: str) -> list[str]:
        return list(self._folders.get(folder, ()))

    def remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._folders.get(folder, {}).pop(name, None)
        self.files.pop(path, None)

    def stale(self, folder: str, name: str) -> bool:
        return False

    def location(self, path: str) -> str:
        return path


class SimulatedStore:
    """The real store in memory; each process opens its own. For the checks it keeps everything ever put: rows of staged
    files, and all entries and publications, removed ones too."""

    def __init__(self) -> None:
        self.memory = SimulatedFileSystem()
        Lives(cast(Any, self.memory))._put(LIFE)  # else the first `define` would begin another life
        self.journal: dict[int, Entry] = {}
        self.files: dict[str, list[Any]] = {}
        self.publications: dict[int, Publication] = {}
        self.claims = 0

    def open(self) -> PipelineStore:
        return PipelineStore(Folder(cast(Any, self.memory), "shop", life=LIFE))

    def put_entry(self, by: PipelineStore, entry: Entry) -> bool:
        if not by.put_entry(entry):
            return False
        self.note(entry)
        return True

    def note(self, entry: Entry) -> None:
        """An entry was put into the journal."""
        if entry.slot in self.journal:
            raise Failure(f"slot {entry.slot} of the journal was given twice")
        if self.open().entry(entry.slot) != entry:
            raise Failure(f"entry {entry.slot} reads {self.open().entry(entry.slot)} and was {entry}")
        self.journal[entry.slot] = entry

    def publish(self, by: PipelineStore, record: Publication) -> bool:
        if not by.publish(record):
            return False
        if self.open().publication(record.n) != record:
            raise Failure(f"publication {record.n} reads otherwise than it was written")
        if record.n < (oldest := self.open().removal.retired()[0]):
            raise Failure(f"publication {record.n} is made, and retention has removed all before {oldest}")
        self.publications[record.n] = record
        return True

    def stage(self, name: str, *, epoch: int, incarnation: str, rows: list[Any]) -> PartRef:
        path = f"staged/{file_name(name, epoch=epoch, incarnation=incarnation)}"
        self.files[path] = rows
        self.memory.create(f"{LIFE.folder}/{path}", b"rows")
        return PartRef(path=path, sha256="", size=len(rows))

    def has(self, path: str) -> bool:
        return self.memory.exists(f"{LIFE.folder}/{path}")

    def rows(self, path: str) -> list[Any]:
        if not self.has(path):
            raise Failure(f"the staged file {path} was removed, and is to be applied")
        return self.files[path]
