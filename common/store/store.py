"""The store: what Cutline must not forget, in files or objects (fsspec).

Layout below `{store}/{pipeline}/`:

| path | what | written by |
|---|---|---|
| `pipeline.json` | the definition, envelope | whoever starts the pipeline first |
| `journal/{slot:010d}.json` | epoch and checkpoint entries, envelopes, no slot left out | the leader |
| `schemas/{epoch:010d}.{hash}.json` | a table's schema, which all else names by its hash, envelope | each service |
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
What is in the bodies is said in records.py. Parts and staged files are named, with their hash and size, by the
entry that counts them. Their names carry epoch, incarnation and nonce (`file_name`), so that no two writers meet and
the sweep knows what a dead epoch left behind. A schema's name carries the epoch for the sweep's sake too: only what no
entry names is removed, and only of older epochs, since the running one may be about to name it.

What only restores to before a publication would need is removed behind it (`retire`), in the order of the numbers. So
who writes a number that was free since its record is gone finds the one before it gone as well, and is refused.

Errors: ProtocolError (bytes that are not what was written: stop), ConfigError (not writable, another's, of a newer
version), Unavailable (the disk or the object store does not answer, or is full). All functions block: call them in
threads.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar, cast

from cutline.common.errors import ConfigError, ProtocolError, Unavailable, redacted
from cutline.common.schema import TableSchema
from cutline.common.store.backends import Backend, backend_of, store_errors
from cutline.common.store.envelope import canonical, opened, sealed
from cutline.common.store.records import (
    CheckpointEntry,
    Deltas,
    Entry,
    EpochEntry,
    PartRef,
    Publication,
    PublishedTable,
    TableEntry,
)
from cutline.common.store.staging_file import StagingFile

_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_FILE_NAME = re.compile(r"(\d{10})\.[A-Za-z0-9_.+=-]+")
_NUMBERED = re.compile(r"(\d{10})\.json")
K = TypeVar("K")
V = TypeVar("V")
_COPY_BYTES = 1 << 20
_SIDE_BY_SIDE = 16
_SCHEMAS_CACHED = 2048


def file_name(what: str, *, epoch: int, incarnation: str) -> str:
    """Name a part or staged file: `what` (letters, digits, `_.+=-`; extension included), made unique by a nonce."""
    stem, dot, extension = what.partition(".")
    return f"{epoch:010d}.{incarnation}.{stem}.{secrets.token_hex(4)}{dot}{extension}"


class Store:
    """All pipelines of one store address (`CUTLINE_STORE_URL`): `file://` folder, `s3://bucket/prefix`, `memory://`."""

    def __init__(self, url: str) -> None:
        """Take the address; nothing is read or written yet. Raises ConfigError for an address of an unknown kind."""
        self.url = url
        self._backend = backend_of(url)

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

    def __init__(self, backend: Backend, name: str) -> None:
        """Made by `Store.pipeline`."""
        self.name = name
        self._backend = backend
        self._last_slot = 0
        self._entries = Deltas()  # of the leader that this process is
        self._publications = Deltas()  # of the start of the Spark writer that it is
        self._full_entry: tuple[int, Mapping[str, TableEntry]] = (0, {})  # the last that was read
        self._full_publication: tuple[int, Mapping[str, PublishedTable]] = (0, {})
        self._schema_names: dict[str, str] = {}
        self._schemas: dict[str, TableSchema] = {}

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
        if there != json.loads(canonical(definition)):
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

    def put_entry(self, entry: Entry) -> bool:
        """Write a journal entry if its slot is free; False if it is taken: read it, and compare its nonce.

        Slots are used without a hole, so the slot is at most `last_slot() + 1`; anything else is a ProtocolError. After
        Unavailable it is not known whether the entry is there: ask again with the same entry.
        """
        slot = entry.slot
        if slot < 1 or (slot > self._last_slot + 1 and not self._there(_entry_path(slot - 1))):
            if 1 < slot <= self.last_slot():
                return False  # the journal has gone on, and what was before it is removed
            raise ProtocolError(f"journal slot {slot} can't be written before slot {slot - 1}; re-read the journal")
        if slot <= self._last_slot or (slot == 1 and self._numbers("journal")):
            return False
        if isinstance(entry, EpochEntry):
            self._entries.forget()  # what is written in between is not known here
            won = self._put(_entry_path(slot), entry.to_json())
        else:
            won = self._put_changes(
                _entry_path(slot),
                slot,
                entry.tables,
                self._entries,
                lambda full, of: entry.to_json(full=full, tables=of),
            )
        if won and slot > 1 and not self._there(_entry_path(slot - 1)):
            self._backend.remove(self._path(_entry_path(slot)))  # the journal has long gone on from here
            return False
        if won:
            self._last_slot = max(self._last_slot, slot)
        return won

    def entry(self, slot: int) -> Entry | None:
        """Return journal entry `slot`, None if the slot is free. Raises ProtocolError if it isn't what was written."""
        body = self._entry_body(slot)
        if body is None:
            return None
        if body["kind"] == "epoch":
            return EpochEntry.from_json(body)
        full = body["full"]
        if full is None:
            return CheckpointEntry.from_json(body, {})
        known, tables = self._full_entry
        if known != full:
            tables = CheckpointEntry.from_json(self._named_by(f"slot {slot}", _entry_path(full)), {}).tables
            self._full_entry = full, tables
        return CheckpointEntry.from_json(body, tables)

    def _entry_body(self, slot: int) -> dict[str, Any] | None:
        body = self._get(_entry_path(slot))
        if body is not None and body.get("slot") != slot:
            raise ProtocolError(
                f"{self.location(_entry_path(slot))} holds the entry of slot {body.get('slot')}; put it back"
            )
        return body

    def last_slot(self) -> int:
        """Return the number of the newest entry, or 0. It lists the journal: who only looked at what follows the last
        entry seen would take one that was removed since for the end."""
        self._last_slot = max(self._last_slot, max(self._numbers("journal"), default=0))
        return self._last_slot

    def journal_tail(self, after: int = 0) -> Iterator[Entry]:
        """Give the entries of the slots above `after` that were not removed, in order, read one by one."""
        for slot in sorted(slot for slot in self._numbers("journal") if slot > after):
            if (entry := self.entry(slot)) is not None:  # removed in the meantime
                yield entry

    # Schemas

    def put_schemas(self, schemas: Iterable[TableSchema], *, epoch: int) -> None:
        """Store these schemas, for a member of `epoch`; durable on return. What is there already costs a look."""

        def put(schema: TableSchema) -> None:
            self._put(f"schemas/{epoch:010d}.{schema.hash}.json", schema.to_json())

        _side_by_side(put, schemas)

    def schemas(self, hashes: Iterable[str]) -> dict[str, TableSchema]:
        """Return the schemas of these hashes. Raises ProtocolError if one is missing."""
        wanted = set(hashes)
        if len(self._schemas) > _SCHEMAS_CACHED:
            self._schemas.clear()
        found = {name: self._schemas[name] for name in wanted & self._schemas.keys()}
        for name, schema in _side_by_side(self._schema, wanted - found.keys()):
            found[name] = self._schemas[name] = schema
        return found

    def _schema(self, name: str) -> TableSchema:
        for _ in range(2):  # a file of an older epoch goes when a younger one has the same
            if (known := self._schema_names.get(name)) and (body := self._get(f"schemas/{known}")) is not None:
                return TableSchema.from_json(body)
            self._schema_names = {file.split(".")[1]: file for file in self._names("schemas") if not file[0] == "."}
        raise ProtocolError(
            f"{self.location('schemas')} has no schema {name} though an entry names it; restore it from a backup"
        )

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

    def open_staged(self, name: str) -> StagingFile:
        """Begin a staged file that grows over time; it gets its name by `commit`."""
        return StagingFile(self._backend, self.name, f"staged/{_checked(name)}")

    def sync_staged(self) -> None:
        """Make the names of all staged files durable that were settled before; one wait for any number of them."""
        self._backend.sync(self._path("staged"))

    def location(self, path: str) -> str:
        """Return the full local path (or object address) for a path below the pipeline's folder, to hand to Spark."""
        return self._backend.location(self._path(path))

    def verify(self, ref: PartRef) -> None:
        """Read a part or staged file from end to end. Raises ProtocolError if it is missing or not what `ref` says."""
        digest, size = hashlib.sha256(), 0
        with store_errors(self.location(ref.path)):
            try:
                with self._backend.open_read(self._path(ref.path)) as file:
                    while block := file.read(_COPY_BYTES):
                        digest.update(block)
                        size += len(block)
            except FileNotFoundError:
                self._compare(ref, None, 0)
        self._compare(ref, digest.hexdigest(), size)

    # Publications and claims

    def publish(self, record: Publication) -> bool:
        """Write a publication if there is none of its number; False if there is: another start's or our own."""
        return self._put_changes(
            _publication_path(record.n),
            record.n,
            record.tables,
            self._publications,
            lambda full, of: record.to_json(full=full, tables=of),
        )

    def publication(self, n: int) -> Publication | None:
        """Return the record of publication `n`, or None."""
        body = self._get(_publication_path(n))
        if body is None:
            return None
        full = body["full"]
        if full is None:
            return Publication.from_json(body, {})
        known, tables = self._full_publication
        if known != full:
            tables = Publication.from_json(self._named_by(f"publication {n}", _publication_path(full)), {}).tables
            self._full_publication = full, tables
        return Publication.from_json(body, tables)

    def publication_numbers(self, after: int = 0) -> list[int]:
        """Return the n of all publications above `after`, in order, without reading them."""
        return sorted(n for n in self._numbers("publications") if n > after)

    def publications(self, after: int = 0) -> list[Publication]:
        """Return all publications with n above `after`, in order of n."""
        found = (self.publication(n) for n in self.publication_numbers(after))
        return [record for record in found if record is not None]

    def claim(self, body: Mapping[str, Any] | None = None) -> int:
        """Claim a number w for one start of the Spark writer: greater than all that were claimed, nobody else's."""
        self._publications.forget()  # what another start writes in between is not known here
        w = max(self._numbers("spark"), default=0)
        claimed = {**(body or {}), "nonce": secrets.token_hex(8)}
        while True:
            w += 1
            if self._put(f"spark/{w:010d}.json", {**claimed, "w": w}):
                return w

    # The sweep

    def sweep(self) -> list[str]:
        """Remove what nobody can need any more, and return the paths (below the pipeline's folder).

        That is: parts, schemas and staged files of epochs older than the newest epoch entry that no journal entry
        names. Safe while others write: files of the running epoch that no entry names yet are left alone, and an older
        epoch can complete nothing more, its slot being taken. A staged file whose entry may have been removed is left
        alone too: the lake may have adopted it.
        """
        removed = self._unneeded()
        for path in removed:
            self._backend.remove(self._path(path))
        for folder in ("journal", "publications", "spark", "schemas"):
            for name in self._names(folder):
                if name.endswith(".tmp") and self._backend.stale(self._path(folder), name):
                    self._backend.remove(self._path(f"{folder}/{name}"))
        return removed

    def _unneeded(self) -> list[str]:
        there = {
            f"{folder}/{name}": _epoch_of(name.lstrip("."))
            for folder in ("parts", "staged", "schemas")
            for name in self._names(folder)
        }
        last = self._entry_body(slot) if (slot := self.last_slot()) else None
        if last is None:
            return []
        newest = _epoch(last)
        if not any(epoch is not None and epoch < newest for epoch in there.values()):
            return []  # nothing is of an older epoch, so no entry has to be read
        bodies = [body for slot in sorted(self._numbers("journal")) if (body := self._entry_body(slot)) is not None]
        whole, slot = newest, bodies[-1]["slot"]  # the first epoch of which every entry is there
        for body in reversed(bodies):
            if body["slot"] != slot:
                break
            whole, slot = (slot if body["kind"] == "epoch" else whole), slot - 1
        old = {
            path
            for path, epoch in there.items()
            if epoch is not None and epoch < newest and (epoch >= whole or not path.startswith("staged/"))
        }
        if old:
            for body in bodies:
                if body["kind"] == "checkpoint":
                    old.difference_update(_needs(body), (file["path"] for file in body["staged"]))
            if schemas := {path: path.split(".")[1] for path in old if path.startswith("schemas/")}:
                named = {name for body in bodies for name in _schemas(body)}
                old.difference_update(path for path, name in schemas.items() if name in named)
        return sorted(old)

    def retire(
        self,
        n: int,
        kept: Collection[int] = (),
        left_out: Callable[[int], Collection[str]] = lambda slot: (),
    ) -> None:
        """Remove what only a restore to before publication `n` would need, but for the cuts `kept`: journal entries,
        parts, publications, claims, and the changes staged up to `n`, which are in the lake.

        Chunk files stay: the lake has adopted them, but those of the tables that were `left_out` at their slot.
        """
        self._retire_entries(n, kept, left_out)
        bodies = {at: self._get(_publication_path(at)) for at in self.publication_numbers()}
        needed = {at for at in bodies if at >= n or at in kept}
        needed |= {body["full"] for at in list(needed) if (body := bodies[at]) is not None}
        for at in sorted(bodies.keys() - needed):
            self._backend.remove(self._path(_publication_path(at)))
        least = min((body["w"] for at in needed if (body := bodies.get(at)) is not None), default=0)
        for w in sorted(self._numbers("spark")):
            if w < least:
                self._backend.remove(self._path(f"spark/{w:010d}.json"))

    def _retire_entries(self, n: int, kept: Collection[int], left_out: Callable[[int], Collection[str]]) -> None:
        bodies = {slot: body for slot in sorted(self._numbers("journal")) if (body := self._entry_body(slot))}
        restorable = {slot for slot in bodies if slot >= n or slot in kept}
        checkpoints = {slot: body for slot, body in bodies.items() if body["kind"] == "checkpoint"}
        needed = {path for slot in restorable & checkpoints.keys() for path in _needs(checkpoints[slot])}
        there = {f"{folder}/{name}" for folder in ("parts", "staged") for name in self._names(folder)}
        for slot, body in checkpoints.items():
            chunks = slot <= n and any(file["kind"] == "chunk" for file in body["staged"])
            out = left_out(slot) if chunks else ()
            staged = body["staged"] if slot <= n else ()
            done = {file["path"] for file in staged if file["kind"] == "changes" or file["table"] in out}
            if slot not in restorable:
                done |= _needs(body)
            for path in sorted(there & done - needed):
                self._backend.remove(self._path(path))
        named = {checkpoints[slot]["full"] for slot in restorable & checkpoints.keys()}
        for slot in sorted(bodies.keys() - restorable - named):
            self._backend.remove(self._path(_entry_path(slot)))

    # Envelopes and paths

    def _path(self, path: str) -> str:
        return f"{self.name}/{path}"

    def _names(self, folder: str) -> list[str]:
        return self._backend.names(self._path(folder))

    def _numbers(self, folder: str) -> list[int]:
        found = (_NUMBERED.fullmatch(name) for name in self._names(folder))
        return [int(match[1]) for match in found if match]

    def _named_by(self, who: str, path: str) -> dict[str, Any]:
        """The body of a full record that another one builds on."""
        found = self._get(path)
        if found is None:
            raise ProtocolError(f"{self.location(path)} is missing though {who} names it; restore it from a backup")
        return found

    def _there(self, path: str) -> bool:
        return self._backend.exists(self._path(path))

    def _put_changes(
        self,
        path: str,
        number: int,
        tables: Mapping[str, Any],
        deltas: Deltas,
        body: Callable[[int | None, dict[str, Any]], Mapping[str, Any]],
    ) -> bool:
        """Put one of a row of records, whose `body` says the full record that it builds on, and the tables changed."""
        full, changed = deltas.of(tables)
        try:
            won = self._put(path, body(full, changed))
        except Unavailable:
            deltas.forget()  # it may be there
            raise
        if won:
            deltas.wrote(number, tables, changed, full=full is None)
        return won

    def _put(self, path: str, body: Mapping[str, Any]) -> bool:
        return self._backend.create(self._path(path), sealed(body))

    def _get(self, path: str) -> dict[str, Any] | None:
        data = self._backend.read(self._path(path))
        return None if data is None else opened(data, self.location(path))

    def _compare(self, ref: PartRef, sha256: str | None, size: int) -> None:
        if sha256 is None:
            raise ProtocolError(
                f"{self.location(ref.path)} is missing though an entry names it; restore it from a backup"
            )
        if sha256 != ref.sha256 or size != ref.size:
            raise ProtocolError(
                f"{self.location(ref.path)} is corrupt ({size} bytes, its sha256 is wrong); restore it from a backup"
            )


def _entry_path(slot: int) -> str:
    return f"journal/{slot:010d}.json"


def _publication_path(n: int) -> str:
    return f"publications/{n:010d}.json"


def _epoch(body: Mapping[str, Any]) -> int:
    return int(body["slot"] if body["kind"] == "epoch" else body["epoch"])


def _needs(checkpoint: Mapping[str, Any]) -> set[str]:
    """The files of the parts that a restore to this checkpoint reads."""
    return {path for part in checkpoint["parts"].values() for path in PartRef.from_json(part).paths}


def _schemas(body: Mapping[str, Any]) -> set[str]:
    """The hashes of schemas in the body of an entry."""
    if body["kind"] == "epoch":
        return set()
    named = {table.get(key) for table in body["tables"].values() for key in ("schema", "described")}
    return named | {file["schema"] for file in body["staged"]} | set(body["replaced"])


def _side_by_side(do: Callable[[K], V], items: Iterable[K]) -> list[tuple[K, V]]:
    """Do something that waits for the store for each item, several at once if they are many."""
    each = list(items)
    if len(each) < _SIDE_BY_SIDE:
        return [(item, do(item)) for item in each]
    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE) as pool:
        return list(zip(each, pool.map(do, each), strict=True))


def _checked(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise ProtocolError(f"{name!r} can't name a part or staged file; make it by store.file_name")
    return name


def _epoch_of(name: str) -> int | None:
    match = _FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None
