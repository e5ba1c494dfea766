"""The store: Cutline's durable state, in files or objects (fsspec).

Layout below the folder of a pipeline, `{store}/{name}.{id}/` (lives.py):

| path | content | written by |
|---|---|---|
| `pipeline.json` | version 1 of the definition, envelope | whoever defines the pipeline |
| `definitions/{version:010d}.json` | a later version (definitions.py), envelope | the leader |
| `commands/{n:010d}.json` | a person's command (commands.py), envelope | the control API |
| `keys/{hash}.json` | the claim of a client's key, envelope | the control service |
| `takers/{n:010d}.json` | who took command n: the Spark writer, or who withdrew it | the Spark writer, the leader |
| `outcomes/{n:010d}.json` | the end of command n, envelope | the leader |
| `journal/{slot:010d}.json` | epoch and checkpoint entries, envelopes, slots without gaps | the leader |
| `schemas/{epoch:010d}.{hash}.json` | a table's schema, named elsewhere by its hash, envelope | enumerator, readers |
| `parts/{name}` | one member's part of one checkpoint (mesh/parts.py) | enumerator, readers |
| `staged/{name}` | Parquet of one table's records | the writers |
| `publications/{n:010d}.json` | checkpoint n is applied, envelope | the Spark writer |
| `spark/{w:010d}.json` | number w belongs to one start of the Spark writer, envelope | the Spark writer |
| `retired/{number:010d}.json` | what only restores to before n need is removed, but for savepoints | the Spark writer |
| `released/{n:010d}.json` | savepoint n is no longer kept, by which command, envelope | the leader |
| `deleting.json` | the pipeline is being deleted | the leader |
| `purged.json` | the lake has nothing more of a pipeline that is being deleted | the Spark writer |
| `conditions/{n:010d}.json` | what a person had to act on, its begin or end (condition_log.py) | the control service |
| `index/{table}.{nonce}.keys` | where some of a lake table's keys are; made again if missing | the Spark writer |
| `shaped/{w:010d}.{nonce}.parquet` | what a table's rule made of a staged file, until applied | the Spark writer |

No file is ever overwritten. A journal slot, a publication, a claim and the definition are *put if absent*: of all
writers that try, exactly one succeeds, and its file is whole and durable, or absent. On files: a temporary file, fsync,
`link` (which fails if the name is taken), fsync of the folder. On objects: an exclusive create (`If-None-Match: *` on
S3), and after an unclear answer a read of the object: equal bytes are our own, since entries and claims carry a nonce
and publications the number of a claim. A crash leaves at most a temporary name, which readers ignore.

A `PipelineStore` is of one life of a pipeline: what a deleted one's processes still write lies where nobody looks.

An envelope (envelope.py) holds a body with its hash; records.py defines the bodies. The entry that includes a part or a
staged file names it, with hash and size. Names of parts and staged files carry epoch, incarnation and nonce
(`file_name`), so that writers never collide and the sweep can tell the files of dead epochs. A schema's name carries
its epoch for the sweep too. removal.py says what is removed, and when.

Errors: ProtocolError (the bytes are not those that were written: stop), ConfigError (not writable, another pipeline's,
another version's), Unavailable (the disk or the object store does not answer, or is full). All functions block: call
them in threads.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from cutline.common.errors import ConfigError, ProtocolError, Unavailable, redacted
from cutline.common.schema import TableSchema
from cutline.common.store import bodies
from cutline.common.store.access import AccessFiles
from cutline.common.store.backends import backend_of, side_by_side, store_errors
from cutline.common.store.commands import Commands
from cutline.common.store.condition_log import SHARED, ConditionLog
from cutline.common.store.definitions import Definitions, DefinitionVersion
from cutline.common.store.deltas import Deltas, Recent, since_of
from cutline.common.store.envelope import opened
from cutline.common.store.index_files import IndexFiles
from cutline.common.store.lives import DEFINED, PIPELINE_NAME, Folder, Key, Life, Lives, name_of
from cutline.common.store.records import (
    CheckpointEntry,
    Entry,
    EpochEntry,
    PartRef,
    Publication,
    PublishedTable,
    TableEntry,
)
from cutline.common.store.removal import FILE_NAME, Removal, entry_body
from cutline.common.store.shaped_files import ShapedFiles
from cutline.common.store.staging_file import StagingFile

_COPY_BYTES = 1 << 20
_SCHEMAS_CACHED = 2048
_FOLDERS = (
    "journal", "parts", "staged", "publications", "schemas", "spark", "index", "released", "retired",
    "definitions", "conditions", "shaped",
)  # fmt: skip
_DELETING, _PURGED = "deleting.json", "purged.json"


def file_name(what: str, *, epoch: int, incarnation: str) -> str:
    """Name a part or staged file: `what` (letters, digits, `_.+=-`; with extension), made unique by a nonce."""
    stem, dot, extension = what.partition(".")
    return f"{epoch:010d}.{incarnation}.{stem}.{secrets.token_hex(4)}{dot}{extension}"


class Store:
    """All pipelines of one store address (`CUTLINE_STORE_URL`): `file://` folder, `s3://bucket/prefix`, `memory://`."""

    def __init__(self, url: str) -> None:
        """Take the address; nothing is read or written yet. Raises ConfigError for an address of an unknown kind."""
        self.url = url
        self._backend = backend_of(url)
        self.access = AccessFiles(self._backend)
        self._lives = Lives(self._backend)

    def check(self) -> None:
        """Look, without writing, whether the store can be there. ConfigError if its bucket does not exist."""
        self._backend.check()

    def prepare(self) -> None:
        """Verify that the store is writable and supports put-if-absent. Raises ConfigError if not."""
        probe = f".probe.{secrets.token_hex(8)}"
        try:
            won = self._backend.create(probe, probe.encode())
            again = self._backend.create(probe, b"again")
            self._backend.remove(probe)
        except Unavailable as error:
            raise ConfigError(
                f"the store {redacted(self.url)!r} can't be written ({error.cause.sentence})",
                error.cause.remedy or "choose a writable location",
            ) from error
        if not won or again:
            raise ConfigError(
                f"the store {redacted(self.url)!r} allowed a second write to one name", "put the store elsewhere"
            )

    def pipelines(self) -> list[str]:
        """Return the names of all defined pipelines, sorted; costs as `lives`."""
        return [life.name for life in self._lives.current()]

    def lives(self) -> list[Life]:
        """Return the life of each defined pipeline, sorted by name. Costs one listing, and a look at each that is
        new."""
        return self._lives.current()

    def life(self, key: Key) -> Life | None:
        """Return the life of this key, defined or not; None if it has ended, or is of another store. Costs a
        listing."""
        found = self._lives.named(name_of(key)) if PIPELINE_NAME.fullmatch(name_of(key)) else None
        return found if found is not None and found.key == key else None

    def pipeline(self, name: str) -> PipelineStore:
        """Return the part of the store of the pipeline that has this name when it is first used, defined or not.
        Raises ConfigError for an invalid name."""
        if not PIPELINE_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} can't name a pipeline", "use up to 63 letters, digits, _ and -")
        return PipelineStore(Folder(self._backend, name, self._lives))

    def open(self, life: Life) -> PipelineStore:
        """Return the part of the store of this life of a pipeline, and of no other of its name."""
        return PipelineStore(Folder(self._backend, life.name, self._lives, life))

    def conditions(self, life: Life | None) -> ConditionLog:
        """Return the history of the conditions of this life of a pipeline, or (None) of what concerns all pipelines."""
        below = None if life is None else Folder(self._backend, life.name, self._lives, life)
        return ConditionLog(self._backend, SHARED) if below is None else ConditionLog(below)

    def sweep(self) -> list[Life]:
        """Remove what is left of deleted pipelines; as `Lives.sweep`."""
        return self._lives.sweep()


class PipelineStore:
    """One pipeline's definition, commands, journal, parts, staged files, publications and claims; safe for several
    threads."""

    def __init__(self, folder: Folder) -> None:
        """Call `Store.pipeline` or `Store.open` instead."""
        self.name = folder.name
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        """Know nothing yet of the life whose folder this is."""
        self.commands = Commands(self._folder)
        self.removal = Removal(self._folder, self.commands, entry=self.entry, last_slot=self.last_slot)
        self._definitions = Definitions(self._folder)
        self._last_slot = 0
        self._entries = Deltas()  # if this process is a leader
        self._publications = Deltas()  # if it is a Spark writer
        self._read_entries = Recent[str, TableEntry]()
        self._read_publications = Recent[str, PublishedTable]()
        self._schema_names: dict[str, str] = {}
        self._schemas: dict[str, TableSchema] = {}

    # Its life

    @property
    def life(self) -> Life:
        """The life that this is the store of; asked first, it costs a listing. Raises ConfigError if the name has none
        now."""
        return self._folder.life

    @property
    def id(self) -> str:
        """The id of that life: no other pipeline has it, also none of this name."""
        return self.life.id

    @property
    def key(self) -> Key:
        """The life as a word: Redis's keys about the pipeline are named by it."""
        return self.life.key

    def has_ended(self) -> bool:
        """Whether the pipeline was deleted. Costs a listing."""
        return self._folder.lives.has_ended(self.life)

    # The definition

    def define(self, definition: Mapping[str, Any]) -> bool:
        """Begin a life of this name, whose store this is from then on, with version 1 of its definition; False if
        there is a pipeline whose version in force is the same.

        Raises ConfigError if the name is in use with another content, or its pipeline is being deleted.
        """
        lives = self._folder.lives
        while True:
            self._folder.bind(life := lives.begin(self.name))
            self._begin()
            if self.commands.orders().mode == "deleting" and not lives.has_ended(life):
                raise ConfigError(
                    f"the pipeline {self.name} is being deleted", "wait until it is gone, or use another name"
                )
            made = self._definitions.define(definition, in_force=self.definition_version() or 1)
            if not lives.has_ended(life):
                return made

    def exists(self) -> bool:
        """Whether the pipeline is defined. Costs one look at a file."""
        return self._exists("pipeline.json")

    def definition(self, version: int | None = None) -> dict[str, Any] | None:
        """Return a version of the definition, by default the one in force; None if there is none."""
        return self._definitions.get(self.definition_version() or 1 if version is None else version)

    def definition_version(self) -> int:
        """Return the number of the version in force, 0 without a definition. Of a pipeline that is being deleted, the
        first one may be all that is left."""
        version = self.commands.orders().definition
        if version > 1 and self._definitions.about(version) is not None:
            return version
        return int(self._definitions.get(1) is not None)

    def versions(self) -> list[DefinitionVersion]:
        """Return the version in force and all before it, oldest first, without their content."""
        return self._definitions.versions(self.definition_version())

    def definitions_above(self, version: int) -> list[DefinitionVersion]:
        """Return what was put after a version, in order, whether it came into force or not."""
        return self._definitions.above(version)

    def next_definition(self) -> int:
        """Return the number above all that are taken."""
        return self._definitions.newest() + 1

    def put_definition(
        self,
        version: int,
        definition: Mapping[str, Any],
        *,
        by: str,
        at: float,
        command: int,
        note: str | None = None,
        base: int | None = None,
    ) -> bool:
        """Put what a command makes of the version `base` (by default the number before), if absent; durable on return.
        False if the number is taken. It is a version once the standing orders say so."""
        return self._definitions.put(version, definition, by=by, at=at, command=command, note=note, base=base)

    # The journal

    def put_entry(self, entry: Entry) -> bool:
        """Write a journal entry if its slot is free; False if it is taken: read it, and compare its nonce.

        Slots have no gaps, so the slot is at most `last_slot() + 1`, else ProtocolError. After Unavailable it may or
        may not be written: call again with the same entry.
        """
        slot = entry.slot
        if slot < 1 or (slot > self._last_slot + 1 and not self._exists(_entry_path(slot - 1))):
            if 1 < slot <= self.last_slot():
                return False  # the journal has gone on, and older entries are removed
            raise ProtocolError(f"journal slot {slot} can't be written before slot {slot - 1}", "re-read the journal")
        if slot <= self._last_slot or (slot == 1 and self._numbers("journal")):
            return False
        if isinstance(entry, EpochEntry):
            self._entries.forget()  # other leaders may write entries in between
            won = self._put(_entry_path(slot), entry.to_json())
        else:
            won = self._put_changes(
                _entry_path(slot),
                slot,
                entry.tables,
                self._entries,
                lambda since, tables: entry.to_json(since=since, tables=tables),
            )
        if won and slot < self.removal.retired()[0]:
            self._folder.remove(_entry_path(slot))  # the journal has gone on long ago
            return False
        if won:
            self._last_slot = max(self._last_slot, slot)
        return won

    def entry(self, slot: int) -> Entry | None:
        """Return journal entry `slot`, None if the slot is free. Raises ProtocolError if its bytes are corrupt."""
        body = self._entry_body(slot)
        if body is None:
            return None
        if body["kind"] == "epoch":
            return EpochEntry.from_json(body)
        found = self._checkpoint(f"slot {slot}", body)
        self._read_entries.was_read(slot, found.tables)
        return found

    def _checkpoint(self, record: str, body: Mapping[str, Any]) -> CheckpointEntry:
        if (since := since_of(body)) is None:
            return CheckpointEntry.from_json(body, {})

        def read() -> Mapping[str, TableEntry]:
            return self._checkpoint(f"slot {since}", self._named_by(record, _entry_path(since))).tables

        return CheckpointEntry.from_json(body, self._read_entries.base(since, read))

    def _entry_body(self, slot: int) -> dict[str, Any] | None:
        return entry_body(self._folder, slot)

    def last_slot(self) -> int:
        """Return the number of the newest entry, or 0. It lists the journal: a probe of the slot after the last known
        entry would take a removed slot for the end."""
        self._last_slot = max(self._last_slot, max(self._numbers("journal"), default=0))
        return self._last_slot

    def slots(self) -> list[int]:
        """Return the numbers of the entries that the journal still has, ascending."""
        return sorted(self._numbers("journal"))

    def await_entry(
        self,
        slot: int,
        seconds: float,
        pause: Callable[[float], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Return once the journal has an entry in this slot, after about `seconds` of the clock `monotonic`, or once
        `pause` (a wait for so many seconds) returns True.

        A look at one slot costs less than `last_slot`, which alone knows the journal's end.
        """
        until = monotonic() + seconds
        while monotonic() < until and not self._exists(_entry_path(slot)):
            if pause(min(seconds, self._folder.look_seconds)):
                return

    def has(self, path: str) -> bool:
        """Whether the pipeline's folder has a file at this path."""
        return self._exists(path)

    # Deletion

    def put_deleting(self) -> None:
        """Note that the pipeline is being deleted, where a look costs less than one at the standing orders."""
        self._put(_DELETING, {"n": 1})

    def deleting(self) -> bool:
        """Whether that is noted."""
        return self._exists(_DELETING)

    def put_purged(self) -> None:
        """Note that the lake has nothing more of this pipeline, which is being deleted."""
        self._put(_PURGED, {"n": 1})

    def purges(self) -> bool:
        """Whether the lake tables of this pipeline, which is being deleted, are still to be dropped: it is the standing
        order, and not noted as done."""
        return self.deleting() and self.commands.orders().purge and not self._exists(_PURGED)

    def remove_files(self) -> None:
        """Remove all files of a pipeline that is being deleted, but for its definition and what says that it is being
        deleted: a note and the newest outcome. Repeat it until `remove` has removed those too."""
        for folder in _FOLDERS:
            for name in self._names(folder):
                self._folder.remove(f"{folder}/{name}")
        self.commands.remove(all_but_newest=True)

    def end(self) -> None:
        """Put that the life has ended: the name is free. Then remove what said that it was being deleted, and the
        definition; what a crash leaves of them, `Store.sweep` removes. May be repeated."""
        self._folder.lives.end(self.life)
        self.commands.remove()
        for name in (DEFINED, _PURGED, _DELETING):
            self._folder.remove(name)
        self._folder.remove_folders()

    # Schemas

    def put_schemas(self, schemas: Iterable[TableSchema], *, epoch: int) -> None:
        """Store these schemas, for a member of `epoch`; durable on return. An existing one costs a lookup."""

        def put(schema: TableSchema) -> None:
            self._put(f"schemas/{epoch:010d}.{schema.hash}.json", schema.to_json())

        side_by_side(put, schemas)

    def schemas(self, hashes: Iterable[str]) -> dict[str, TableSchema]:
        """Return the schemas of these hashes. Raises ProtocolError if one is missing."""
        wanted = set(hashes)
        if len(self._schemas) > _SCHEMAS_CACHED:
            self._schemas.clear()
        found = {name: self._schemas[name] for name in wanted & self._schemas.keys()}
        # Parsed in this thread: threads that parse would only take the interpreter from each other.
        for name, (path, data) in side_by_side(self._schema_file, wanted - found.keys()):
            found[name] = self._schemas[name] = TableSchema.from_json(opened(data, self.location(path)), name)
        return found

    def _schema_file(self, name: str) -> tuple[str, bytes]:
        for _ in range(2):  # the sweep removes an older epoch's file once a younger epoch has the same schema
            if known := self._schema_names.get(name):
                path = f"schemas/{known}"
                if (data := self._folder.read(path)) is not None:
                    return path, data
            self._schema_names = {file.split(".")[1]: file for file in self._names("schemas") if not file[0] == "."}
        raise ProtocolError(
            f"{self.location('schemas')} has no schema {name}, though an entry names it", "restore it from a backup"
        )

    # Parts and staged files

    def put_part(self, name: str, data: bytes) -> PartRef:
        """Save a member's part of a checkpoint; durable on return. `name` comes from `file_name`."""
        path = f"parts/{_checked(name)}"
        if not self._folder.create(path, data):
            raise ProtocolError(
                f"{self.location(path)} exists already, though its name is unique", "stop the second writer"
            )
        return PartRef(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    def read_part(self, ref: PartRef) -> bytes:
        """Return the bytes of a part. Raises ProtocolError if they are missing or don't match `ref`."""
        data = self._folder.read(ref.path)
        self._compare(ref, None if data is None else hashlib.sha256(data).hexdigest(), len(data or b""))
        return cast(bytes, data)

    def open_staged(self, name: str) -> StagingFile:
        """Begin a staged file that grows over time; `commit` gives it its name."""
        return StagingFile(self._folder, f"staged/{_checked(name)}")

    def sync_staged(self) -> None:
        """Make the names of all settled staged files durable; one wait for any number of them."""
        self._folder.sync("staged")

    def location(self, path: str) -> str:
        """Return the absolute path (or object address) of a path below the pipeline's folder, for Spark."""
        return self._folder.location(path)

    def verify(self, ref: PartRef) -> None:
        """Read a part or staged file completely. Raises ProtocolError if it is missing or doesn't match `ref`."""
        digest, size = hashlib.sha256(), 0
        with store_errors(self.location(ref.path)):
            try:
                with self._folder.open_read(ref.path) as file:
                    while block := file.read(_COPY_BYTES):
                        digest.update(block)
                        size += len(block)
            except FileNotFoundError:
                self._compare(ref, None, 0)
        self._compare(ref, digest.hexdigest(), size)

    # Publications and claims

    def publish(self, record: Publication) -> bool:
        """Put a publication if absent; False if its number exists (our own, or another start's), or if
        what it builds on is removed, because others have gone on long ago."""
        won = self._put_changes(
            _publication_path(record.n),
            record.n,
            record.tables,
            self._publications,
            lambda since, tables: record.to_json(since=since, tables=tables),
        )
        bases = self._publications.bases - {record.n}
        if won and (
            record.n < self.removal.retired()[0] or not all(self._exists(_publication_path(base)) for base in bases)
        ):
            self._folder.remove(_publication_path(record.n))  # others have gone on long ago
            return False
        return won

    def publication(self, n: int) -> Publication | None:
        """Return the record of publication `n`, or None."""
        body = self._get(_publication_path(n))
        return None if body is None else self._publication(f"publication {n}", body)

    def _publication(self, record: str, body: Mapping[str, Any]) -> Publication:
        if (since := since_of(body)) is None:
            return Publication.from_json(body, {})

        def read() -> Mapping[str, PublishedTable]:
            return self._publication(f"publication {since}", self._named_by(record, _publication_path(since))).tables

        return Publication.from_json(body, self._read_publications.base(since, read))

    def publication_numbers(self, after: int = 0) -> list[int]:
        """Return the numbers of all publications above `after`, sorted, without reading the publications."""
        return sorted(n for n in self._numbers("publications") if n > after)

    def publications(self, after: int = 0) -> list[Publication]:
        """Return all publications with n above `after`, in order of n."""
        found = (self.publication(n) for n in self.publication_numbers(after))
        return [record for record in found if record is not None]

    def claim(self) -> int:
        """Claim a number w for one start of the Spark writer: unique, and greater than all claimed before."""
        self._publications.forget()  # other starts may write publications in between
        w = max(self._numbers("spark"), default=0)
        nonce = secrets.token_hex(8)
        while True:
            w += 1
            if self._put(bodies.numbered("spark", w), {"nonce": nonce, "w": w}):
                if w >= self._newest_start():
                    return w
                w = max(self._numbers("spark"))  # that number was free because its claim is removed: others went on

    def newest_claim(self) -> int:
        """Return the number of the newest start of the Spark writer, 0 without one. Costs a listing."""
        return max(self._numbers("spark"), default=0)

    def _newest_start(self) -> int:
        """The number of the start that made the newest publication; 0 without one."""
        newest = max(self._numbers("publications"), default=0)
        return int((self._get(_publication_path(newest)) or {"w": 0})["w"]) if newest else 0

    def index_files(self, *, copied: bool = False) -> IndexFiles:
        """Return the files of the tables' key indexes; `copied` as IndexFiles has it."""
        return IndexFiles(self._folder, "index", copied=copied)

    def shaped_files(self, w: int) -> ShapedFiles:
        """Return those that start `w` of the Spark writer makes by rules."""
        return ShapedFiles(self._folder, w)

    # Envelopes and paths

    def _names(self, folder: str) -> list[str]:
        return self._folder.names(folder)

    def _numbers(self, folder: str) -> list[int]:
        return bodies.numbers(self._folder, folder)

    def _named_by(self, record: str, path: str) -> dict[str, Any]:
        """The body of the record that another one builds on."""
        found = self._get(path)
        if found is None:
            raise ProtocolError(
                f"{self.location(path)} is missing, though {record} names it", "restore it from a backup"
            )
        return found

    def _exists(self, path: str) -> bool:
        return self._folder.exists(path)

    def _put_changes(
        self,
        path: str,
        number: int,
        tables: Mapping[str, Any],
        deltas: Deltas,
        body: Callable[[int | None, dict[str, Any]], Mapping[str, Any]],
    ) -> bool:
        """Put the next record of a sequence: a full one, or the tables changed since the earlier one that it names."""
        since, changed = deltas.choose(tables)
        try:
            won = self._put(path, body(since, changed))
        except Unavailable:
            deltas.forget()  # it may have been written
            raise
        if won:
            deltas.wrote(number, tables, changed, since=since)
        return won

    def _put(self, path: str, body: Mapping[str, Any]) -> bool:
        return bodies.put(self._folder, path, body)

    def _get(self, path: str) -> dict[str, Any] | None:
        return bodies.get(self._folder, path)

    def _compare(self, ref: PartRef, sha256: str | None, size: int) -> None:
        if sha256 != ref.sha256 or size != ref.size:
            corrupt = f"is corrupt ({size} bytes, its sha256 is wrong)"
            fault = "is missing, though an entry names it" if sha256 is None else corrupt
            raise ProtocolError(f"{self.location(ref.path)} {fault}", "restore it from a backup")


def _entry_path(slot: int) -> str:
    return bodies.numbered("journal", slot)


def _publication_path(n: int) -> str:
    return bodies.numbered("publications", n)


def _checked(name: str) -> str:
    if not FILE_NAME.fullmatch(name):
        raise ProtocolError(f"{name!r} can't name a part or staged file", "make the name by store.file_name")
    return name
