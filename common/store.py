"""The store: what Cutline must not forget, in files or objects (fsspec).

Layout below `{store}/{pipeline}/`:

| path | what | written by |
|---|---|---|
| `pipeline.json` | the definition, envelope | whoever starts the pipeline first |
| `journal/{slot:010d}.json` | epoch and checkpoint entries, envelopes, no slot left out | the leader |
| `parts/{name}` | what one service saved for one checkpoint, raw bytes | each service |
| `staged/{name}` | Parquet of one table's records | the writers |
| `publications/{n:010d}.json` | checkpoint n is applied, envelope | the Spark writer |
| `spark/{w:010d}.json` | a start of the Spark writer claimed number w, envelope | the Spark writer |

Nothing is ever written over. A journal slot, a publication, a claim and the definition are *put if absent*: of all
who try, exactly one succeeds, and it has its file whole and durable or not at all. On files: a temporary file, fsync,
`link` (which fails if the name is taken), fsync of the folder. On objects: an exclusive create (`If-None-Match: *` on
S3), and after an unclear answer a look at what is there; bodies carry a nonce, so that equal bytes are our own. A
crash leaves at most a temporary name, which no reader looks at.

An envelope is `{"format":1,"sha256":"...","body":{...}}`; the hash is over the bytes of the body as they stand there.
Parts and staged files are named, with their hash and size, by the entry that counts them (`PartRef`). Their names
carry epoch, incarnation and nonce (`file_name`), so that no two writers meet and the sweep knows what a dead epoch
left behind.

Errors: ProtocolError (bytes that are not what was written: stop), ConfigError (not writable, another's, of a newer
version), Unavailable (the disk or the object store does not answer, or is full). All functions block: call them in
threads.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

import fsspec

from cutline.common.errors import ConfigError, ProtocolError, Unavailable, redacted

FORMAT = 1
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_FILE_NAME = re.compile(r"(\d{10})\.[A-Za-z0-9_.+=-]+")
_NUMBERED = re.compile(r"(\d{10})\.json")
_ENVELOPE = re.compile(rb'\{"format":(\d+),"sha256":"([0-9a-f]{64})","body":')
_OBJECTS = ("memory", "s3")
_STALE_SECONDS = 86_400.0
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRef:
    """A part or staged file that is durable: path below the pipeline's folder, sha256 (hex) and size in bytes."""

    path: str
    sha256: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {"path": self.path, "sha256": self.sha256, "size": self.size}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> PartRef:
        """Read what `to_json` gave; further keys are left alone."""
        return cls(path=known["path"], sha256=known["sha256"], size=known["size"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The record that checkpoint `n` is applied."""

    n: int
    body: dict[str, Any]


def file_name(what: str, *, epoch: int, incarnation: str) -> str:
    """Name a part or staged file: `what` (letters, digits, `_.+=-`; extension included), made unique by a nonce."""
    stem, dot, extension = what.partition(".")
    return f"{epoch:010d}.{incarnation}.{stem}.{secrets.token_hex(4)}{dot}{extension}"


class _Backend(Protocol):
    """What the store needs of files or objects; paths are below the store's root."""

    def create(self, path: str, data: bytes) -> bool: ...
    def read(self, path: str) -> bytes | None: ...
    def exists(self, path: str) -> bool: ...
    def names(self, folder: str) -> list[str]: ...
    def open_read(self, path: str) -> BinaryIO: ...
    def open_new(self, path: str) -> tuple[BinaryIO, str]: ...
    def settle(self, file: BinaryIO, temporary: str, path: str) -> None: ...
    def discard(self, file: BinaryIO, temporary: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def stale(self, folder: str, name: str) -> bool: ...
    def location(self, path: str) -> str: ...


@contextmanager
def _at(location: str) -> Iterator[None]:
    """Turn an OSError inside into one of ours that names the place."""
    try:
        yield
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise ConfigError(
            f"{location} can't be used ({error.strerror or error}); give Cutline the right to it"
        ) from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise ConfigError(f"{location} is on a read-only file system; put the store elsewhere") from error
        raise Unavailable(f"the store does not answer at {location}: {error.strerror or error}") from error


class _Files:
    """A folder of this machine, or one mounted here."""

    def __init__(self, root: str) -> None:
        self._root = root

    def location(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    def create(self, path: str, data: bytes) -> bool:
        location = self.location(path)
        with _at(location):
            if os.path.lexists(location):
                return False
            file, temporary = self.open_new(path)
            try:
                file.write(data)
                return self._link(file, temporary, location)
            except BaseException:
                self.discard(file, temporary)
                raise

    def read(self, path: str) -> bytes | None:
        location = self.location(path)
        with _at(location):
            try:
                with open(location, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.location(path))

    def names(self, folder: str) -> list[str]:
        location = self.location(folder)
        with _at(location):
            try:
                return os.listdir(location)
            except FileNotFoundError:
                return []

    def open_read(self, path: str) -> BinaryIO:
        return open(self.location(path), "rb")

    def open_new(self, path: str) -> tuple[BinaryIO, str]:
        folder, name = os.path.split(self.location(path))
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
        with _at(temporary):
            try:
                return open(temporary, "xb"), temporary
            except FileNotFoundError:
                _make_folder(folder)
                return open(temporary, "xb"), temporary

    def settle(self, file: BinaryIO, temporary: str, path: str) -> None:
        location = self.location(path)
        with _at(location):
            if not self._link(file, temporary, location):
                raise ProtocolError(
                    f"{location} is there already, though its name was to be unique; stop the second writer"
                )

    def discard(self, file: BinaryIO, temporary: str) -> None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(temporary)

    def remove(self, path: str) -> None:
        location = self.location(path)
        with _at(location), suppress(FileNotFoundError):
            os.unlink(location)

    def stale(self, folder: str, name: str) -> bool:
        try:
            return time.time() - os.stat(os.path.join(self.location(folder), name)).st_mtime > _STALE_SECONDS
        except OSError:
            return False

    def _link(self, file: BinaryIO, temporary: str, location: str) -> bool:
        """Make the written file durable, then give it its name; False if the name was taken."""
        file.flush()
        os.fsync(file.fileno())
        file.close()
        try:
            os.link(temporary, location)
            won = True
        except FileExistsError:  # NFS says so too if it repeated a link of ours whose answer was lost
            won = os.stat(temporary).st_nlink > 1
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV):
                raise ConfigError(
                    f"{location} is on a file system without hard links; put the store on one that has them"
                ) from error
            raise
        os.unlink(temporary)
        _sync_folder(os.path.dirname(location))
        return won


class _Objects:
    """An object store by fsspec, or fsspec's memory in tests."""

    def __init__(self, filesystem: Any, protocol: str, root: str) -> None:
        self._fs = filesystem
        self._protocol = protocol
        self._root = root.rstrip("/")

    def location(self, path: str) -> str:
        return f"{self._protocol}://{self._path(path).lstrip('/')}"

    def create(self, path: str, data: bytes) -> bool:
        with _at(self.location(path)):
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
        with _at(self.location(path)):
            try:
                return cast(bytes, self._fs.cat_file(self._path(path)))
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        with _at(self.location(path)):
            self._fs.invalidate_cache()
            return bool(self._fs.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        with _at(self.location(folder)):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            return [name.rstrip("/").rsplit("/", 1)[-1] for name in found]

    def open_read(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(self._path(path), "rb"))

    def open_new(self, path: str) -> tuple[BinaryIO, str]:
        with _at(self.location(path)):
            return cast(BinaryIO, self._fs.open(self._path(path), "wb")), path

    def settle(self, file: BinaryIO, temporary: str, path: str) -> None:
        with _at(self.location(path)):
            file.close()

    def discard(self, file: BinaryIO, temporary: str) -> None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            self._fs.rm_file(self._path(temporary))

    def remove(self, path: str) -> None:
        with _at(self.location(path)), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(path))

    def stale(self, folder: str, name: str) -> bool:
        return False

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


class Store:
    """All pipelines of one store address (`CUTLINE_STORE_URL`): `file://` folder, `s3://bucket/prefix`, `memory://`."""

    def __init__(self, url: str) -> None:
        """Take the address; nothing is read or written yet. Raises ConfigError for an address of an unknown kind."""
        self.url = url
        protocol = url.split("://", 1)[0] if "://" in url else "file"
        if protocol in ("file", "local"):
            self._backend: _Backend = _Files(os.path.abspath(url.split("://", 1)[-1]))
        elif protocol in _OBJECTS:
            try:
                filesystem, root = fsspec.core.url_to_fs(url)
            except (ImportError, ValueError) as error:
                raise ConfigError(
                    f"the store {redacted(url)!r} can't be opened ({error}); install what fsspec asks for"
                ) from error
            self._backend = _Objects(filesystem, protocol, root)
        else:
            raise ConfigError(
                f"the store {redacted(url)!r} is of a kind that Cutline can't trust with a journal; use file:// or s3://"
            )

    def prepare(self) -> None:
        """Make sure that the store can be written and knows how to put if absent. Raises ConfigError if not."""
        probe = f".probe.{secrets.token_hex(8)}"
        try:
            won = self._backend.create(probe, probe.encode())
            again = self._backend.create(probe, b"again")
            self._backend.remove(probe)
        except Unavailable as error:
            raise ConfigError(
                f"the store {redacted(self.url)!r} can't be written ({error}); give Cutline a place that can"
            ) from error
        if not won or again:
            raise ConfigError(
                f"the store {redacted(self.url)!r} does not refuse a second write of one name; put the store elsewhere"
            )

    def pipelines(self) -> list[str]:
        """Return the names of all pipelines that are defined, sorted."""
        found = [name for name in self._backend.names("") if _PIPELINE_NAME.fullmatch(name)]
        return sorted(name for name in found if self._backend.exists(f"{name}/pipeline.json"))

    def pipeline(self, name: str) -> PipelineStore:
        """Return the part of the store of one pipeline, defined or not. Raises ConfigError for an impossible name."""
        if not _PIPELINE_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} can't name a pipeline; use up to 63 letters, digits, _ and -")
        return PipelineStore(self._backend, name)


class PipelineStore:
    """One pipeline's definition, journal, parts, staged files, publications and claims; for any number of threads."""

    def __init__(self, backend: _Backend, name: str) -> None:
        """Made by `Store.pipeline`."""
        self.name = name
        self._backend = backend
        self._last_slot = 0
        self._swept = 0

    # The definition

    def define(self, definition: Mapping[str, Any]) -> bool:
        """Put the definition if there is none; True if it was new, False if the same is there already.

        Raises ConfigError if the name is in use with another content.
        """
        there = self.definition()
        if there is None:
            if self._put("pipeline.json", definition):
                return True
            there = self.definition()
        if there != json.loads(_canonical(definition)):
            assert there is not None
            keys = sorted(key for key in {*there, *definition} if there.get(key) != definition.get(key))
            raise ConfigError(
                f"the name {self.name!r} is in use in this store with another {', '.join(keys)} "
                f"({self.location('pipeline.json')}); choose another name or another store"
            )
        return False

    def definition(self) -> dict[str, Any] | None:
        """Return the definition, or None if there is none."""
        return self._get("pipeline.json")

    # The journal

    def put_entry(self, slot: int, body: Mapping[str, Any]) -> bool:
        """Write journal entry `slot` if that slot is free; False if it is taken: read it, and compare its nonce.

        `body["slot"]` is `slot`. Slots are used without a hole, so `slot` is at most `last_slot() + 1`; anything else
        is a ProtocolError. After Unavailable it is not known whether the entry is there: ask again with the same
        body.
        """
        if body.get("slot") != slot or slot < 1:
            raise ProtocolError(f"an entry for slot {body.get('slot')} can't go into journal slot {slot}")
        if slot > self._last_slot + 1 and not self._backend.exists(self._path(_entry_path(slot - 1))):
            raise ProtocolError(f"journal slot {slot} can't be written before slot {slot - 1}; re-read the journal")
        if self._put(_entry_path(slot), body):
            self._last_slot = max(self._last_slot, slot)
            return True
        return False

    def entry(self, slot: int) -> dict[str, Any] | None:
        """Return journal entry `slot`, None if the slot is free. Raises ProtocolError if it isn't what was written."""
        body = self._get(_entry_path(slot))
        if body is not None and body.get("slot") != slot:
            raise ProtocolError(
                f"{self.location(_entry_path(slot))} holds the entry of slot {body.get('slot')}; put it back"
            )
        return body

    def last_slot(self) -> int:
        """Return the number of the newest entry, or 0. Lists the journal once, later only looks at what follows."""
        if not self._last_slot:
            self._last_slot = max(self._numbers("journal"), default=0)
        while self._backend.exists(self._path(_entry_path(self._last_slot + 1))):
            self._last_slot += 1
        return self._last_slot

    def journal_tail(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the entries of the slots above `after`, in order. Raises ProtocolError if one is missing."""
        return list(self._entries(after))

    def _entries(self, after: int) -> Iterator[dict[str, Any]]:
        for slot in range(after + 1, self.last_slot() + 1):
            body = self.entry(slot)
            if body is None:
                raise ProtocolError(f"{self.location(_entry_path(slot))} is missing; restore it from a backup")
            yield body

    # Parts and staged files

    def put_part(self, name: str, data: bytes) -> PartRef:
        """Save what a service knows for a checkpoint; durable on return. `name` is of `file_name`."""
        path = f"parts/{_checked(name)}"
        if not self._backend.create(self._path(path), data):
            raise ProtocolError(f"{self.location(path)} is there already, though its name was to be unique")
        return PartRef(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    def read_part(self, ref: PartRef) -> bytes:
        """Return the bytes of a part. Raises ProtocolError if it is missing or not what `ref` says."""
        data = self._backend.read(self._path(ref.path))
        self._compare(ref, None if data is None else hashlib.sha256(data).hexdigest(), len(data or b""))
        return cast(bytes, data)

    def stage(self, name: str, write: Callable[[BinaryIO], object]) -> PartRef:
        """Make a staged file of what `write` writes; it is there only on return, durable. `name` is of `file_name`."""
        staged = self.open_staged(name)
        try:
            write(cast(BinaryIO, staged))
        except BaseException:
            staged.discard()
            raise
        return staged.commit()

    def open_staged(self, name: str) -> StagedFile:
        """Begin a staged file that grows over time; it gets its name by `commit`."""
        return StagedFile(self._backend, self.name, f"staged/{_checked(name)}")

    def location(self, path: str) -> str:
        """Return the full local path (or object address) for a path below the pipeline's folder, to hand to Spark."""
        return self._backend.location(self._path(path))

    def verify(self, ref: PartRef) -> None:
        """Read a part or staged file from end to end. Raises ProtocolError if it is missing or not what `ref` says."""
        digest, size = hashlib.sha256(), 0
        with _at(self.location(ref.path)):
            try:
                with self._backend.open_read(self._path(ref.path)) as file:
                    while block := file.read(_COPY_BYTES):
                        digest.update(block)
                        size += len(block)
            except FileNotFoundError:
                self._compare(ref, None, 0)
        self._compare(ref, digest.hexdigest(), size)

    # Publications and claims

    def publish(self, n: int, body: Mapping[str, Any]) -> bool:
        """Write publication `n` if there is none; False if there is: another Spark writer's or our own (see its w)."""
        return self._put(f"publications/{n:010d}.json", body)

    def publication(self, n: int) -> dict[str, Any] | None:
        """Return the record of publication `n`, or None."""
        return self._get(f"publications/{n:010d}.json")

    def publication_numbers(self, after: int = 0) -> list[int]:
        """Return the n of all publications above `after`, in order, without reading them."""
        return sorted(n for n in self._numbers("publications") if n > after)

    def publications(self, after: int = 0) -> list[Publication]:
        """Return all publications with n above `after`, in order of n."""
        found = ((n, self.publication(n)) for n in self.publication_numbers(after))
        return [Publication(n=n, body=body) for n, body in found if body is not None]

    def claim(self, body: Mapping[str, Any] | None = None) -> int:
        """Claim a number w for one start of the Spark writer: greater than all that were claimed, nobody else's."""
        w = max(self._numbers("spark"), default=0)
        claimed = {**(body or {}), "nonce": secrets.token_hex(8)}
        while True:
            w += 1
            if self._put(f"spark/{w:010d}.json", {**claimed, "w": w}):
                return w

    # The sweep

    def sweep(self) -> list[str]:
        """Remove what nobody can need any more, and return the paths (below the pipeline's folder).

        That is: parts and staged files of epochs older than the newest epoch entry that no journal entry names. Safe
        while others write: files of the running epoch that no entry names yet are left alone, and an older epoch can
        complete nothing more, its slot being taken.
        """
        removed = self._unneeded()
        for path in removed:
            self._backend.remove(self._path(path))
        for folder in ("journal", "publications", "spark"):
            for name in self._names(folder):
                if name.endswith(".tmp") and self._backend.stale(self._path(folder), name):
                    self._backend.remove(self._path(f"{folder}/{name}"))
        return removed

    def sweep_applied(self, n: int) -> None:
        """Remove what checkpoints up to publication `n` needed, the oldest that may still be restored to: the changes
        that they staged, which are in the lake (it has adopted the chunks), and the parts of those before it, but of
        kept ones. Each entry is looked at once.
        """
        there = {f"{folder}/{name}" for folder in ("parts", "staged") for name in self._names(folder)}
        for slot in range(self._swept + 1, n + 1):
            entry = self.entry(slot)
            if entry is None or entry["kind"] != "checkpoint":
                continue
            done = [file["path"] for file in entry["staged"] if file["kind"] == "changes"]
            if slot < n and not entry["kept"]:
                done += [part["path"] for part in entry["parts"].values()]
            for path in there.intersection(done):
                self._backend.remove(self._path(path))
            self._swept = min(slot, n - 1)  # the parts of `n` itself come with the next

    def _unneeded(self) -> list[str]:
        last = self.last_slot()
        newest = self.entry(last) if last else None
        if newest is None:
            return []
        epoch = newest["slot"] if newest["kind"] == "epoch" else newest["epoch"]
        there = {
            f"{folder}/{name}": _epoch_of(name.lstrip("."))
            for folder in ("parts", "staged")
            for name in self._names(folder)
        }
        old = {path for path, written in there.items() if written is not None and written < epoch}
        if old:
            for entry in self._entries(0):
                if entry["kind"] == "checkpoint":
                    old.difference_update(part["path"] for part in entry["parts"].values())
                    old.difference_update(file["path"] for file in entry["staged"])
        return sorted(old)

    # Envelopes and paths

    def _path(self, path: str) -> str:
        return f"{self.name}/{path}"

    def _names(self, folder: str) -> list[str]:
        return self._backend.names(self._path(folder))

    def _numbers(self, folder: str) -> list[int]:
        found = (_NUMBERED.fullmatch(name) for name in self._names(folder))
        return [int(match[1]) for match in found if match]

    def _put(self, path: str, body: Mapping[str, Any]) -> bool:
        raw = _canonical(body)
        head = b'{"format":%d,"sha256":"%s","body":' % (FORMAT, hashlib.sha256(raw).hexdigest().encode())
        return self._backend.create(self._path(path), head + raw + b"}\n")

    def _get(self, path: str) -> dict[str, Any] | None:
        data = self._backend.read(self._path(path))
        if data is None:
            return None
        location = self.location(path)
        head = _ENVELOPE.match(data)
        if head is None:
            raise ProtocolError(f"{location} is not an envelope of Cutline; remove it or restore it from a backup")
        if int(head[1]) > FORMAT:
            raise ConfigError(
                f"{location} is of a newer Cutline (format {int(head[1])}, known is {FORMAT}); use that version"
            )
        raw = data[head.end() : -2]
        if int(head[1]) != FORMAT or data[-2:] != b"}\n" or hashlib.sha256(raw).hexdigest().encode() != head[2]:
            raise ProtocolError(f"{location} is corrupt (its sha256 is wrong); restore it from a backup")
        return cast(dict[str, Any], json.loads(raw))

    def _compare(self, ref: PartRef, sha256: str | None, size: int) -> None:
        if sha256 is None:
            raise ProtocolError(
                f"{self.location(ref.path)} is missing though an entry names it; restore it from a backup"
            )
        if sha256 != ref.sha256 or size != ref.size:
            raise ProtocolError(
                f"{self.location(ref.path)} is corrupt ({size} bytes, its sha256 is wrong); restore it from a backup"
            )


class StagedFile(io.RawIOBase):
    """A staged file in the making: write-only, hashed as it is written, without a name until `commit`.

    pyarrow's ParquetWriter takes it as its sink. Closing it without `commit` drops it, as a crash would.
    """

    def __init__(self, backend: _Backend, pipeline: str, path: str) -> None:
        """Made by `PipelineStore.open_staged`."""
        self.path = path
        self._backend = backend
        self._target = f"{pipeline}/{path}"
        self._digest = hashlib.sha256()
        self._size = 0
        self._file: BinaryIO | None = None
        self._file, self._temporary = backend.open_new(self._target)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes. Raises Unavailable when the disk is full."""
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        with _at(self._backend.location(self._target)):
            self._file.write(data)
        self._digest.update(data)
        written = memoryview(data).nbytes
        self._size += written
        return written

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def commit(self) -> PartRef:
        """Make the file durable and give it its name."""
        file, self._file = self._file, None
        if file is None:
            raise ValueError(f"{self.path} is closed")
        try:
            self._backend.settle(file, self._temporary, self._target)
        except BaseException:
            self._backend.discard(file, self._temporary)
            raise
        finally:
            super().close()
        return PartRef(path=self.path, sha256=self._digest.hexdigest(), size=self._size)

    def discard(self) -> None:
        """Drop the file; harmless when it was committed or dropped before."""
        file, self._file = self._file, None
        if file is not None:
            self._backend.discard(file, self._temporary)
        super().close()

    def close(self) -> None:
        """`discard`; the interpreter calls it too when the file is forgotten."""
        self.discard()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _entry_path(slot: int) -> str:
    return f"journal/{slot:010d}.json"


def _checked(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise ProtocolError(f"{name!r} can't name a part or staged file; make it by store.file_name")
    return name


def _epoch_of(name: str) -> int | None:
    match = _FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def _make_folder(folder: str) -> None:
    """Make a folder and those above it, each durable in the one above."""
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
