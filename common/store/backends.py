"""The file systems of the store, files and objects: put if absent, listing, files that grow, durable names."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Protocol, TypeVar, cast

import fsspec

from cutline.common.errors import (
    ConfigError,
    CutlineError,
    DiskFull,
    ProtocolError,
    Unavailable,
    is_full,
    redacted,
)

_OBJECTS = {
    "memory": {},
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}},
    "gs": {},
    "gcs": {},
    "abfs": {},
    "abfss": {},
}
"""The kinds of object storage, and the options with which fsspec opens them."""
_EXTRAS = {"memory": "dev", "s3": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "adls", "abfss": "adls"}
_STALE_SECONDS = 86_400.0
_SIDE_BY_SIDE = 16
K = TypeVar("K")
V = TypeVar("V")
_answered_at = float("-inf")


class Backend(Protocol):
    """Files or objects, as the store uses them. Paths are relative to the store's root.

    Every method raises ConfigError where Cutline lacks a right, Unavailable where the disk or the object store fails,
    DiskFull, which is one, where it has no space left.
    """

    look_seconds: float
    """The least pause between two looks for the same file."""

    def check(self) -> None:
        """Look, without writing, whether there is a place for the store. ConfigError if a bucket does not exist."""

    def create(self, path: str, data: bytes) -> bool:
        """Put if absent: write a file whole and durable, or return False if its name is taken by other bytes."""

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file."""

    def exists(self, path: str) -> bool:
        """Whether there is a file of this name."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in no order; none if there is no such folder."""

    def open_read(self, path: str) -> BinaryIO:
        """Open a file for reading. Raises FileNotFoundError."""

    def open_new(self, path: str) -> tuple[BinaryIO, str]:
        """Begin a file that grows; return it and its temporary name. It gets the name `path` by `settle`."""

    def settle(self, file: BinaryIO, temporary: str, path: str) -> None:
        """Make the bytes durable and give the file its name; the name is durable after `sync` of its folder."""

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable."""

    def discard(self, file: BinaryIO, temporary: str) -> None:
        """Drop a file that was begun; never raises."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder in which there are no files any more; where there are only objects, it is gone already."""

    def remove_all(self, folder: str) -> None:
        """Remove a folder with all that is in it."""

    def stale(self, folder: str, name: str) -> bool:
        """Whether a temporary file is so old that its writer must be dead."""

    def location(self, path: str) -> str:
        """Return the absolute path or the object's address."""


def side_by_side(do: Callable[[K], V], items: Iterable[K]) -> list[tuple[K, V]]:
    """Call `do`, which waits for the store, for each item; several at once if they are many."""
    each = list(items)

    def do_all(some: Iterable[K]) -> list[tuple[K, V]]:
        return [(item, do(item)) for item in some]

    if len(each) < _SIDE_BY_SIDE:
        return do_all(each)
    # A few calls of many items, since handing a call to a thread costs more than reading a small local file.
    calls = [each[start :: 4 * _SIDE_BY_SIDE] for start in range(4 * _SIDE_BY_SIDE)]
    with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="cutline-files") as pool:
        return [done for some in pool.map(do_all, calls) for done in some]


def answered_at() -> float:
    """When a store last answered a call of this process, be it with an error (time.monotonic)."""
    return _answered_at


@contextmanager
def store_errors(location: str) -> Iterator[None]:
    """Turn an OSError inside into ConfigError (no right, read-only), DiskFull or Unavailable, with the location."""
    global _answered_at
    try:
        yield
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise ConfigError(
            f"{location} can't be used ({error.strerror or error})", "give Cutline the right to it"
        ) from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise ConfigError(f"{location} is on a read-only file system", "put the store elsewhere") from error
        if is_full(error):
            raise DiskFull(f"the disk of the store is full, at {location}", DiskFull.remedy) from error
        raise Unavailable(f"the store does not answer at {location}: {error.strerror or error}") from error
    finally:
        _answered_at = time.monotonic()


class _Files:
    """A folder of this machine, or one mounted here."""

    look_seconds = 0.02

    def __init__(self, root: str) -> None:
        self._root = root
        self._unsynced: set[str] = set()  # files of ours whose folder's fsync failed: a crash may take their names

    def check(self) -> None:
        """A folder is made when it is needed."""

    def location(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    def create(self, path: str, data: bytes) -> bool:
        location = self.location(path)
        with store_errors(location):
            if os.path.lexists(location):
                if location in self._unsynced:  # whoever repeats a call takes the file for its own, and for durable
                    _sync_folder(os.path.dirname(location))
                    self._unsynced.discard(location)
                return False
            file, temporary = self.open_new(path)
            try:
                file.write(data)
                if won := self._link(file, temporary, location):
                    self._unsynced.add(location)
                _sync_folder(os.path.dirname(location))
                self._unsynced.discard(location)
                return won
            except BaseException:
                self.discard(file, temporary)
                raise

    def read(self, path: str) -> bytes | None:
        location = self.location(path)
        with store_errors(location):
            try:
                with open(location, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        location = self.location(path)
        with store_errors(location):
            try:
                os.lstat(location)
            except FileNotFoundError:
                return False
        return True

    def names(self, folder: str) -> list[str]:
        location = self.location(folder)
        with store_errors(location):
            try:
                return os.listdir(location)
            except FileNotFoundError:
                return []

    def open_read(self, path: str) -> BinaryIO:
        return open(self.location(path), "rb")

    def open_new(self, path: str) -> tuple[BinaryIO, str]:
        folder, name = os.path.split(self.location(path))
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
        with store_errors(temporary):
            try:
                return open(temporary, "xb"), temporary
            except FileNotFoundError:
                make_folder(folder)
                return open(temporary, "xb"), temporary

    def settle(self, file: BinaryIO, temporary: str, path: str) -> None:
        location = self.location(path)
        with store_errors(location):
            if not self._link(file, temporary, location):
                raise ProtocolError(f"{location} exists already, though its name is unique", "stop the second writer")

    def sync(self, folder: str) -> None:
        location = self.location(folder)
        with store_errors(location):
            _sync_folder(location)

    def discard(self, file: BinaryIO, temporary: str) -> None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(temporary)

    def remove(self, path: str) -> None:
        location = self.location(path)
        with store_errors(location), suppress(FileNotFoundError):
            os.unlink(location)

    def remove_folder(self, folder: str) -> None:
        for path, _, _ in os.walk(self.location(folder), topdown=False):
            with suppress(OSError):  # a file came meanwhile
                os.rmdir(path)

    def remove_all(self, folder: str) -> None:
        location = self.location(folder)
        with store_errors(location):
            for path, _, files in os.walk(location):
                for name in files:
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(path, name))
        self.remove_folder(folder)

    def stale(self, folder: str, name: str) -> bool:
        try:
            return time.time() - os.stat(os.path.join(self.location(folder), name)).st_mtime > _STALE_SECONDS
        except OSError:
            return False

    def _link(self, file: BinaryIO, temporary: str, location: str) -> bool:
        """Make the bytes durable, then link the file to its name; False if the name is taken. The name is durable
        once its folder is synced."""
        file.flush()
        os.fsync(file.fileno())
        file.close()
        try:
            os.link(temporary, location)
            won = True
        except FileExistsError:  # NFS reports this too when it repeats our own link after a lost answer
            won = os.stat(temporary).st_nlink > 1
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV):
                raise ConfigError(
                    f"{location} is on a file system without hard links", "put the store on one that has them"
                ) from error
            raise
        os.unlink(temporary)
        return won


@contextmanager
def _object_errors(location: str) -> Iterator[None]:
    """As `store_errors`, also for errors of the object store's own library, which are no OSErrors."""
    with store_errors(location):
        try:
            yield
        except (OSError, CutlineError):
            raise
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            raise Unavailable(f"the object store does not answer at {location}: {text.splitlines()[0]}") from error


class _Objects:
    """An object store through fsspec, or fsspec's memory in tests."""

    look_seconds = 0.25  # each look is paid for

    def __init__(self, filesystem: Any, protocol: str, root: str) -> None:
        self._fs = filesystem
        self._protocol = protocol
        self._root = root.rstrip("/")

    def check(self) -> None:
        bucket = self._root.lstrip("/").split("/")[0]
        with _object_errors(self.location("")):
            if self._protocol == "memory" or self._fs.exists(bucket):
                return
            try:
                self._fs.ls(bucket, detail=False)  # `exists` is false too where nobody answers, or the keys are wrong
            except FileNotFoundError as error:
                raise ConfigError(
                    f"the bucket {bucket} of the store {self.location('')} does not exist",
                    "create it, or correct CUTLINE_STORE_URL",
                ) from error

    def location(self, path: str) -> str:
        return f"{self._protocol}://{self._path(path).lstrip('/')}"

    def create(self, path: str, data: bytes) -> bool:
        with _object_errors(self.location(path)):
            try:
                self._fs.pipe_file(self._path(path), data, mode="create")
                return True
            except FileExistsError:
                return self.read(path) == data
            except OSError:
                if (found := self.read(path)) is not None:
                    return found == data
                raise

    def read(self, path: str) -> bytes | None:
        with _object_errors(self.location(path)):
            try:
                return cast(bytes, self._fs.cat_file(self._path(path)))
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        with _object_errors(self.location(path)):
            self._fs.invalidate_cache()
            return bool(self._fs.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        with _object_errors(self.location(folder)):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            return [name.rstrip("/").rsplit("/", 1)[-1] for name in found]

    def open_read(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(self._path(path), "rb"))

    def open_new(self, path: str) -> tuple[BinaryIO, str]:
        """Only `settle` completes the upload: neither closing the file nor its garbage collection does."""
        with _object_errors(self.location(path)):
            file = self._fs.open(self._path(path), "wb")
            file.autocommit = False
            return cast(BinaryIO, file), path

    def settle(self, file: Any, temporary: str, path: str) -> None:
        with _object_errors(self.location(path)):
            file.autocommit = True
            file.close()

    def sync(self, folder: str) -> None:
        """An object is durable once it exists."""

    def discard(self, file: Any, temporary: str) -> None:
        """Abort the upload; closing the file would complete it, and the object would exist for a while."""
        file.autocommit = False
        with suppress(OSError):
            file.discard()
        if self._protocol == "memory":  # fsspec's memory creates the object when it is opened
            with suppress(OSError):
                self._fs.rm_file(self._path(temporary))
        else:
            file.closed = True  # else the interpreter would begin another upload when it collects the file

    def remove(self, path: str) -> None:
        with _object_errors(self.location(path)), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(path))

    def remove_folder(self, folder: str) -> None:
        """Objects have no folders."""

    def remove_all(self, folder: str) -> None:
        with _object_errors(self.location(folder)):
            self._fs.invalidate_cache()
            found = self._fs.find(self._path(folder) + "/")

        def remove(path: str) -> None:
            with _object_errors(path), suppress(FileNotFoundError):
                self._fs.rm_file(path)

        side_by_side(remove, found)

    def stale(self, folder: str, name: str) -> bool:
        return False

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def backend_of(url: str) -> Backend:
    """The backend of a store's address. Raises ConfigError for an address of an unknown kind."""
    protocol = url.split("://", 1)[0] if "://" in url else "file"
    if protocol in ("file", "local"):
        return _Files(os.path.abspath(url.split("://", 1)[-1]))
    if protocol in _OBJECTS:
        try:
            filesystem, root = fsspec.core.url_to_fs(url, **_OBJECTS[protocol])
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"the store {redacted(url)!r} can't be opened ({error})", f"install cutline[{_EXTRAS[protocol]}]"
            ) from error
        return _Objects(filesystem, protocol, root)
    raise ConfigError(
        f"the store {redacted(url)!r} is of an unsupported kind: a journal needs put-if-absent",
        "use file://, s3://, gs:// or abfss://",
    )


def make_folder(folder: str) -> None:
    """Make a folder and its missing parents, each name durable in its parent."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for made in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(made)
        _sync_folder(os.path.dirname(made))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
