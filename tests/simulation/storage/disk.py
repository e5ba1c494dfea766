"""A file system and an object store in memory, that fail as real ones do, for the real common/store/store.py.

`Disk` stands in for the modules `os` and `io.open` there: what is written is durable only after fsync, a name only
after its folder's. It may be full, lose the answer of what it did, let another process in between two calls, or die
between them: with the process alone, or with all that was not durable. `Bucket` stands in for fsspec's file system of
an object store: a file that is written is there when it is closed, whole.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any

from tests.simulation.steps import Steps


class Died(BaseException):
    """The process is gone, at this call."""


@dataclass(slots=True)
class DiskTrouble:
    """What may happen at each call; `between` lets another process do something."""

    rng: random.Random
    count: Counter[str]
    steps: Steps
    lost: float = 0.0
    dies: float = 0.0
    others: float = 0.0
    room: int = 1 << 60
    between: Callable[[], None] | None = None
    inside: bool = False

    def before(self, call: str) -> None:
        if self.inside:
            return
        if self.rng.random() < self.dies and self.steps.happens(f"dies before {call}"):
            self.count[f"store: died before {call}"] += 1
            self.count["store: process died"] += 1
            raise Died(call)
        if self.between is not None and self.rng.random() < self.others and self.steps.happens("another comes"):
            self.inside = True
            try:
                self.between()
            finally:
                self.inside = False

    def after(self, call: str) -> None:
        if not self.inside and self.rng.random() < self.lost and self.steps.happens(f"answer of {call} lost"):
            self.count["store: answer lost"] += 1
            self.count[f"store: answer lost of {call}"] += 1
            raise OSError(errno.EIO, "the answer is lost")


@dataclass(slots=True, eq=False)
class Inode:
    """One file's bytes: as written, and how many of them are durable."""

    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    links: int = 1


class File:
    """An open file."""

    def __init__(self, disk: Disk, inode: Inode, *, writes: bool) -> None:
        self._disk, self._inode, self._writes, self._at = disk, inode, writes, 0
        self._buffer = bytearray()  # as Python's own: it reaches the disk by flush
        self.closed = False

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def write(self, data: Any) -> int:
        self._buffer += bytes(data)
        if len(self._buffer) > 8192:
            self.flush()
        return len(bytes(data))

    def flush(self) -> None:
        self._disk.trouble.before("write")
        room = self._disk.trouble.room - self._disk.used()
        part = self._buffer[: max(room, 0)]
        self._inode.data += part
        del self._buffer[: len(part)]
        if self._buffer:
            self._disk.trouble.count["store: disk full"] += 1
            raise OSError(errno.ENOSPC, "No space left on device")

    def read(self, size: int = -1) -> bytes:
        end = len(self._inode.data) if size < 0 else self._at + size
        found = bytes(self._inode.data[self._at : end])
        self._at += len(found)
        return found

    def fileno(self) -> Any:
        return self._inode

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._writes:
            self.flush()


class Disk:
    """The names of `os` that the store uses, and `open`."""

    O_RDONLY, O_DIRECTORY = os.O_RDONLY, os.O_DIRECTORY

    def __init__(self, trouble: DiskTrouble) -> None:
        self.trouble = trouble
        self.names: dict[str, Inode] = {}
        self.kept: dict[str, Inode] = {}  # names that are durable
        self.folders = {"/"}
        self.path = SimpleNamespace(
            join=os.path.join,
            split=os.path.split,
            dirname=os.path.dirname,
            abspath=os.path.abspath,
            lexists=lambda path: path in self.names or path in self.folders,
            isdir=lambda path: path in self.folders,
        )

    def used(self) -> int:
        return sum(len(inode.data) for inode in {id(i): i for i in self.names.values()}.values())

    def power_fails(self) -> None:
        """What is not durable is gone, or a part of it."""
        for inode in {id(i): i for i in (*self.names.values(), *self.kept.values())}.values():
            del inode.data[self.trouble.rng.randint(inode.durable, len(inode.data)) :]
            inode.durable = len(inode.data)
        self.names = dict(self.kept)
        self.trouble.count["store: power failed"] += 1

    def open(self, path: Any, mode: Any = "rb") -> Any:
        if isinstance(mode, int):  # os.open, of a folder
            return path
        self.trouble.before("open")
        if mode == "rb":
            if path not in self.names:
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            return File(self, self.names[path], writes=False)
        if os.path.dirname(path) not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "No such folder", path)
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.names[path] = Inode()
        return File(self, self.names[path], writes=True)

    def close(self, _: Any) -> None:
        pass

    def fsync(self, target: Any) -> None:
        self.trouble.before("fsync")
        if isinstance(target, Inode):
            target.durable = len(target.data)
        else:
            self.kept = {p: i for p, i in self.kept.items() if os.path.dirname(p) != target}
            self.kept |= {p: i for p, i in self.names.items() if os.path.dirname(p) == target}
        self.trouble.after("fsync")

    def link(self, old: str, new: str) -> None:
        self.trouble.before("link")
        if old not in self.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", old)
        if new in self.names:
            self.trouble.count["store: name was taken at the link"] += 1
            raise FileExistsError(errno.EEXIST, "File exists", new)
        self.names[new] = self.names[old]
        self.names[new].links += 1
        self.trouble.after("link")

    def unlink(self, path: str) -> None:
        self.trouble.before("unlink")
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        self.names.pop(path).links -= 1
        self.trouble.after("unlink")

    def stat(self, path: str) -> Any:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return SimpleNamespace(st_mtime=0.0, st_nlink=self.names[path].links)

    def lstat(self, path: str) -> None:
        self.trouble.before("lstat")
        if path not in self.names and path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)

    def listdir(self, path: str) -> list[str]:
        if path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "No such folder", path)
        names = {*self.names, *self.folders}
        return sorted(os.path.basename(name) for name in names if os.path.dirname(name) == path and name != path)

    def mkdir(self, path: str) -> None:
        if path in self.folders:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.folders.add(path)


class Bucket:
    """What the store uses of fsspec's S3."""

    def __init__(self, trouble: DiskTrouble) -> None:
        self.trouble = trouble
        self.objects: dict[str, bytes] = {}
        self.ever: set[str] = set()

    def _put(self, path: str, data: bytes) -> None:
        if sum(map(len, self.objects.values())) + len(data) > self.trouble.room:
            self.trouble.count["store: disk full"] += 1
            raise OSError(errno.EDQUOT, "the bucket is full")
        self.objects[path] = data
        self.ever.add(path)

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        self.trouble.before("put")
        if path in self.objects:
            raise FileExistsError(path)
        self._put(path, bytes(data))
        self.trouble.after("put")

    def cat_file(self, path: str) -> bytes:
        self.trouble.before("get")
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def exists(self, path: str) -> bool:
        return path in self.objects

    def invalidate_cache(self) -> None:
        pass

    def ls(self, path: str, detail: bool) -> list[str]:
        return [name for name in self.objects if name.startswith(path.rstrip("/") + "/")]

    def rm_file(self, path: str) -> None:
        self.trouble.before("remove")
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)
        self.trouble.after("remove")

    def open(self, path: str, mode: str) -> Any:
        self.trouble.before("open")
        return Upload(self, path) if mode == "wb" else _reading(self.objects, path)


def _reading(objects: dict[str, bytes], path: str) -> Any:
    inode = Inode(bytearray(objects[path])) if path in objects else None
    if inode is None:
        raise FileNotFoundError(path)
    return File(Disk(DiskTrouble(random.Random(0), Counter(), Steps())), inode, writes=False)


class Upload:
    """A file that is written to a bucket: closing it makes it, unless `autocommit` is off."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self._bucket, self._path, self._data = bucket, path, bytearray()
        self.closed, self.autocommit = False, True

    def write(self, data: Any) -> int:
        self._bucket.trouble.before("write")
        self._data += bytes(data)
        return len(bytes(data))

    def discard(self) -> None:
        """Let go of what was written (fsspec's own word for a file that is not committed)."""
        self.closed = True
        self._data.clear()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.autocommit:
            self._bucket._put(self._path, bytes(self._data))
            self._bucket.trouble.after("put")
