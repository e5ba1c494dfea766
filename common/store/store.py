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
| `index/{table}.{nonce}.keys` | where some of a lake table's keys are; made again if missing | the Spark writer |

No file is ever overwritten. A journal slot, a publication, a claim and the definition are *put if absent*: of all
writers that try, exactly one succeeds, and its file is whole and durable, or absent. On files: a temporary file, fsync,
`link` (which fails if the name is taken), fsync of the folder. On objects: an exclusive create (`If-None-Match: *` on
S3), and after an unclear answer a read of the object: equal bytes are our own, since entries and claims carry a nonce
and publications the number of a claim. A crash leaves at most a temporary name, which readers ignore.

A `PipelineStore` is of one life of a pipeline: what a deleted one's processes still write lies where nobody looks.

An envelope (envelope.py) holds a body with its hash; records.py defines the bodies. The entry that includes a part or a
staged file names it, with hash and size. Names of parts and staged files carry epoch, incarnation and nonce
(`file_name`), so that writers never collide and the sweep can tell the files of dead epochs. A schema's name carries
its epoch for the sweep too: the sweep removes only files of older epochs that no entry names, since the running epoch
may be about to name its own.

Files that only a restore to before publication n needs are removed (`retire`) after `retired/` says so. So a writer
that finds a removed number free is refused: it looks there once it has put its file.

Errors: ProtocolError (the bytes are not those that were written: stop), ConfigError (not writable, another pipeline's,
another version's), Unavailable (the disk or the object store does not answer, or is full). All functions block: call
them in threads.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar, cast

from cutline.common.errors import ConfigError, ProtocolError, Unavailable, redacted
from cutline.common.schema import TableSchema
from cutline.common.store.access import AccessFiles
from cutline.common.store.backends import backend_of, side_by_side, store_errors
from cutline.common.store.chain import follow
from cutline.common.store.commands import Commands
from cutline.common.store.definitions import Definitions, DefinitionVersion
from cutline.common.store.envelope import opened, sealed
from cutline.common.store.index_files import IndexFiles
from cutline.common.store.lives import DEFINED, PIPELINE_NAME, Folder, Key, Life, Lives, name_of
from cutline.common.store.records import (
    CheckpointEntry,
    Deltas,
    Entry,
    EpochEntry,
    PartRef,
    Publication,
    PublishedTable,
    TableEntry,
    since_of,
)
from cutline.common.store.staging_file import StagingFile
from cutline.common.table_id import check_ids

_FILE_NAME = re.compile(r"(\d{10})\.[A-Za-z0-9_.+=-]+")
_NUMBERED = re.compile(r"(\d{10})\.json")
K = TypeVar("K")
V = TypeVar("V")
_COPY_BYTES = 1 << 20
_OWN_FILES = {"own_files": True}
"""In the claims of starts that make files of the lake's own from chunk files, as Cutline's first versions did not."""
_SCHEMAS_CACHED = 2048
_BASES_KEPT = 3
_FOLDERS = (
    "journal", "parts", "staged", "publications", "schemas", "spark", "used", "index", "released", "retired",
    "definitions",
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
                f"the store {redacted(self.url)!r} can't be written ({error}); choose a writable location"
            ) from error
        if not won or again:
            raise ConfigError(
                f"the store {redacted(self.url)!r} allowed a second write to one name; put the store elsewhere"
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
        found = self._lives.of(name_of(key)) if PIPELINE_NAME.fullmatch(name_of(key)) else None
        return found if found is not None and found.key == key else None

    def pipeline(self, name: str) -> PipelineStore:
        """Return the part of the store of the pipeline that has this name when it is first used, defined or not.
        Raises ConfigError for an invalid name."""
        if not PIPELINE_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} can't name a pipeline; use up to 63 letters, digits, _ and -")
        return PipelineStore(Folder(self._backend, name, self._lives))

    def open(self, life: Life) -> PipelineStore:
        """Return the part of the store of this life of a pipeline, and of no other of its name."""
        return PipelineStore(Folder(self._backend, life.name, self._lives, life))

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
        self._definitions = Definitions(self._folder)
        self._last_slot = 0
        self._entries = Deltas()  # if this process is a leader
        self._publications = Deltas()  # if it is a Spark writer
        self._base_entries: dict[int, Mapping[str, TableEntry]] = {}  # tables by slot, the last ones read
        self._base_publications: dict[int, Mapping[str, PublishedTable]] = {}
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
                    f"the pipeline {self.name} is being deleted; wait until it is gone, or use another name"
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
            raise ProtocolError(f"journal slot {slot} can't be written before slot {slot - 1}; re-read the journal")
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
        if won and slot < self.retired()[0]:
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
        return self._checkpoint(f"slot {slot}", body)

    def _checkpoint(self, record: str, body: Mapping[str, Any]) -> CheckpointEntry:
        since, known = since_of(body), self._base_entries
        if since is not None and since not in known:
            base = self._checkpoint(f"slot {since}", self._named_by(record, _entry_path(since)))
            known = self._base_entries = _newest(self._base_entries, since, base.tables)
        return CheckpointEntry.from_json(body, {} if since is None else known[since])

    def _entry_body(self, slot: int) -> dict[str, Any] | None:
        body = self._get(_entry_path(slot))
        if body is not None and body.get("slot") != slot:
            raise ProtocolError(
                f"{self.location(_entry_path(slot))} holds the entry of slot {body.get('slot')}; restore the journal"
                " from a backup"
            )
        return body

    def last_slot(self) -> int:
        """Return the number of the newest entry, or 0. It lists the journal: a probe of the slot after the last known
        entry would take a removed slot for the end."""
        self._last_slot = max(self._last_slot, max(self._numbers("journal"), default=0))
        return self._last_slot

    def check_tables(self) -> None:
        """Raise ConfigError if the checkpoint from which the pipeline goes on has a table whose id is ambiguous."""
        found = self.entry(self.last_slot())
        if isinstance(found, EpochEntry) and found.base is not None:
            found = self.entry(found.base)
        if isinstance(found, CheckpointEntry):
            check_ids(found.tables)

    def slots(self) -> list[int]:
        """Return the numbers of the entries that the journal still has, ascending."""
        return sorted(self._numbers("journal"))

    def await_entry(self, slot: int, seconds: float, pause: Callable[[float], bool]) -> None:
        """Return once the journal has an entry in this slot, after about `seconds`, or once `pause` (a wait for so many
        seconds) returns True.

        A look at one slot costs less than `last_slot`, which alone knows the journal's end.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._exists(_entry_path(slot)):
            if pause(min(seconds, self._folder.look_seconds)):
                return

    def journal_tail(self, after: int = 0) -> Iterator[Entry]:
        """Yield the entries that still exist in the slots above `after`, in order, read one by one."""
        for slot in (slot for slot in self.slots() if slot > after):
            if (entry := self.entry(slot)) is not None:  # else removed in the meantime
                yield entry

    def has(self, path: str) -> bool:
        """Whether the pipeline's folder has a file at this path."""
        return self._exists(path)

    # Savepoints that are no longer kept

    def release(self, n: int, command: int) -> bool:
        """Note that savepoint `n` need not be kept any longer, since this command says so: retention forgets it, and
        the lake's tag of it. False if another command said so before."""
        path = f"released/{n:010d}.json"
        return self._put(path, {"n": n, "command": command}) or (self._get(path) or {}).get("command") == command

    def released(self) -> set[int]:
        """Return the numbers of these savepoints."""
        return set(self._numbers("released"))

    # Deletion

    def retired(self) -> tuple[int, frozenset[int]]:
        """Return the publication before which retention has removed what a restore needs, except for the savepoints in
        the set, by the newest note; 0 if it has removed nothing."""
        _, body = self._retired_note()
        return (0, frozenset()) if body is None else (body["n"], frozenset(body["kept"]))

    def _retired_note(self) -> tuple[int, dict[str, Any] | None]:
        """The newest note about what is removed, and its number."""
        number = max(self._numbers("retired"), default=0)
        return number, self._get(_retired_path(number)) if number else None

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
            f"{self.location('schemas')} has no schema {name}, though an entry names it; restore it from a backup"
        )

    # Parts and staged files

    def put_part(self, name: str, data: bytes) -> PartRef:
        """Save a member's part of a checkpoint; durable on return. `name` comes from `file_name`."""
        path = f"parts/{_checked(name)}"
        if not self._folder.create(path, data):
            raise ProtocolError(
                f"{self.location(path)} exists already, though its name is unique; stop the second writer"
            )
        return PartRef(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    def read_part(self, ref: PartRef) -> bytes:
        """Return the bytes of a part. Raises ProtocolError if they are missing or don't match `ref`."""
        data = self._folder.read(ref.path)
        self._compare(ref, None if data is None else hashlib.sha256(data).hexdigest(), len(data or b""))
        return cast(bytes, data)

    def stage(self, name: str, write: Callable[[BinaryIO], object]) -> PartRef:
        """Make a staged file of the bytes that `write` writes; durable on return. `name` comes from `file_name`."""
        staged = self.open_staged(name)
        try:
            write(cast(BinaryIO, staged))
        except BaseException:
            staged.discard()
            raise
        return staged.commit()

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
        if won and (record.n < self.retired()[0] or not all(self._exists(_publication_path(base)) for base in bases)):
            self._folder.remove(_publication_path(record.n))  # others have gone on long ago
            return False
        return won

    def publication(self, n: int) -> Publication | None:
        """Return the record of publication `n`, or None."""
        body = self._get(_publication_path(n))
        return None if body is None else self._publication(f"publication {n}", body)

    def _publication(self, record: str, body: Mapping[str, Any]) -> Publication:
        since, known = since_of(body), self._base_publications
        if since is not None and since not in known:
            base = self._publication(f"publication {since}", self._named_by(record, _publication_path(since)))
            known = self._base_publications = _newest(self._base_publications, since, base.tables)
        return Publication.from_json(body, {} if since is None else known[since])

    def publication_numbers(self, after: int = 0) -> list[int]:
        """Return the numbers of all publications above `after`, sorted, without reading the publications."""
        return sorted(n for n in self._numbers("publications") if n > after)

    def publications(self, after: int = 0) -> list[Publication]:
        """Return all publications with n above `after`, in order of n."""
        found = (self.publication(n) for n in self.publication_numbers(after))
        return [record for record in found if record is not None]

    def claim(self, body: Mapping[str, Any] = _OWN_FILES) -> int:
        """Claim a number w for one start of the Spark writer: unique, and greater than all claimed before.

        `body` is what the claim says of that start.
        """
        self._publications.forget()  # other starts may write publications in between
        w = max(self._numbers("spark"), default=0)
        claimed = {**body, "nonce": secrets.token_hex(8)}
        while True:
            w += 1
            if self._put(f"spark/{w:010d}.json", {**claimed, "w": w}):
                if w >= self._newest_start():
                    return w
                w = max(self._numbers("spark"))  # that number was free because its claim is removed: others went on

    def newest_claim(self) -> int:
        """Return the number of the newest start of the Spark writer, 0 without one. Costs a listing."""
        return max(self._numbers("spark"), default=0)

    def _newest_start(self) -> int:
        """The number of the start that made the newest publication; 0 without one."""
        newest = max(self._numbers("publications"), default=0)
        body = self._get(_publication_path(newest)) if newest else None
        return 0 if body is None else int(body["w"])

    def index_files(self, *, copied: bool = False) -> IndexFiles:
        """Return the files of the lake tables' key indexes; `copied` as IndexFiles has it."""
        return IndexFiles(self._folder, "index", copied=copied)

    # The sweep

    def sweep(self) -> list[str]:
        """Remove files that no reader can need any more; return their paths (below the pipeline's folder).

        These are parts, schemas and staged files of epochs older than the newest epoch entry that no journal entry
        names, and schemas of which a younger epoch has a copy. Safe while others write: it keeps files of the running
        epoch that no entry names yet, and an older epoch can complete no checkpoint, its slot being taken. It also
        keeps staged files that the lake may use where they lie (`_used_here`): their entries may have been removed.
        """
        removed = self._unneeded()
        for path in removed:
            self._folder.remove(path)
        for folder in ("journal", "publications", "spark", "schemas", "used"):
            for name in self._names(folder):
                if name.endswith(".tmp") and self._folder.stale(folder, name):
                    self._folder.remove(f"{folder}/{name}")
        return removed

    def _unneeded(self) -> list[str]:
        epochs = {
            f"{folder}/{name}": _epoch_of(name.lstrip("."))
            for folder in ("parts", "staged", "schemas")
            for name in self._names(folder)
        }
        last = self._entry_body(slot) if (slot := self.last_slot()) else None
        if last is None:
            return []
        newest = _epoch(last)
        if not any(epoch is not None and epoch < newest for epoch in epochs.values()):
            return []  # no file is of an older epoch, so no entry has to be read
        bodies = [body for slot in sorted(self._numbers("journal")) if (body := self._entry_body(slot)) is not None]
        used = self._used_here(self._publication_bodies())
        old = {
            path
            for path, epoch in epochs.items()
            if epoch is not None and epoch < newest and (epoch > used or not path.startswith("staged/"))
        }
        if old:
            for body in bodies:
                if body["kind"] == "checkpoint":
                    old.difference_update(_needs(body), (file["path"] for file in body["staged"]))
            if schemas := {path: path.split(".")[1] for path in old if path.startswith("schemas/")}:
                named = {name for body in bodies for name in _schemas(body)}
                # Each epoch stores its own copy; the youngest serves all.
                youngest = {path.split(".")[1]: path for path in sorted(epochs) if path.startswith("schemas/0")}
                old.difference_update(
                    path for path, name in schemas.items() if name in named and youngest[name] == path
                )
        return sorted(old)

    def may_retire(self, n: int, kept: Collection[int] = (), *, w: int = 0) -> bool:
        """Note that start `w` of the Spark writer removes from now on what only a restore to before publication `n`
        needs, except for the cuts `kept`; False if nothing may be removed: such a restore is under way, or a later
        round has noted a later publication that the pipeline still goes on from.

        Call it before anything is removed, here or in the lake. A restore is commanded before a leader reads that note,
        and this reads the commands after it was written: so either the leader refuses the restore, or this sees it, as
        a command without an outcome, as a standing order, or by an epoch that has left `n` behind. The note that was
        in vain is followed by one that says what was before, unless another start has noted something meanwhile.
        """
        while True:
            number, before = self._retired_note()
            known: dict[str, Any] = {"n": 0, "kept": []} if before is None else before
            if n < known["n"] and self._goes_on_from(known["n"]):
                return False  # late: a later round may have removed what is kept here
            least = {n} if n < known["n"] else set()  # after a restore to a savepoint from before the last note
            # What an earlier round did not keep is removed, whatever this one would have kept.
            whole = sorted(cut for cut in {*kept, *least} if cut >= known["n"] or cut in known["kept"])
            note = {"n": max(n, known["n"]), "kept": whole, "w": w}
            noted = note != before
            if not noted or self._put(_retired_path(number + 1), note):
                break  # else another round has noted something meanwhile
        allowed = self._nothing_goes_back(n, kept)
        if not allowed and noted and number + 1 == max(self._numbers("retired"), default=0):
            self._put(_retired_path(number + 2), {**known, "w": w})
        return allowed

    def _nothing_goes_back(self, n: int, kept: Collection[int]) -> bool:
        """Whether the pipeline goes on from publication `n` or a later one, and no command says otherwise."""
        newest = self.commands.newest_outcome()
        asked = [c.arguments.get("checkpoint") for c in self.commands.unfinished(newest) if c.kind == "restore"]
        asked.append(None if newest is None else newest.orders.base)
        if any(isinstance(base, int) and base < n and base not in kept for base in asked):
            return False
        return self.last_slot() == 0 or self._goes_on_from(n)

    def _goes_on_from(self, n: int) -> bool:
        """Whether the chain has checkpoint `n`; False if the pipeline was deleted meanwhile."""
        last = self.last_slot()
        return last > 0 and self.entry(last) is not None and n in follow(last, self.entry)

    def retire(
        self,
        n: int,
        kept: Collection[int] = (),
        released: Collection[str] = (),
        *,
        w: int = 0,
        ask: Callable[[], None] = lambda: None,
    ) -> None:
        """Remove files that only a restore to before publication `n` needs, except for the cuts `kept`: journal
        entries, parts, publications, claims that none of the publications left names, and the files staged up to `n`,
        whose rows are in the lake.

        `ask` is called before each removal, which may come long after this call began: it raises if it must not be
        made. Chunk files that the lake may use where they lie (`_used_here`) stay until they are among `released` (full
        paths), which no snapshot of the lake names any more. While a restore to before `n` is under way it removes
        nothing (`may_retire`).
        """
        def remove(path: str) -> None:
            ask()
            self._folder.remove(path)

        ask()
        if not self.may_retire(n, kept, w=w):
            return
        for older in sorted(self._numbers("retired"))[:-1]:
            remove(_retired_path(older))
        publications = self._publication_bodies()
        used = self._used_here(publications)
        if used > max(self._numbers("used"), default=0):
            self._put(f"used/{used:010d}.json", {"n": used})
        # Before their entries: without these a publication that a restore left behind would seem to be on the chain.
        needed = {at for at in publications if at >= n or at in kept}
        needed |= _bases(needed, publications)
        for at in sorted(publications.keys() - needed):
            remove(_publication_path(at))
        starts = {at: publications[at]["w"] for at in needed & publications.keys()}
        newest = starts[max(starts)] if starts else 0
        for start in sorted(self._numbers("spark")):
            if start < newest and start not in starts.values():
                remove(f"spark/{start:010d}.json")
        self._retire_entries(n, kept, released, used, remove)

    def _publication_bodies(self) -> dict[int, dict[str, Any]]:
        return {n: body for n in self.publication_numbers() if (body := self._get(_publication_path(n)))}

    def _used_here(self, publications: Mapping[int, Mapping[str, Any]]) -> int:
        """Return the last checkpoint of which the lake may use chunk files in this store; 0: none.

        Cutline's first versions let it do so. Their publications are known by the claim of the start that made them;
        for those that retention removed there is a record in `used/`. A claim that is gone says nothing: retention
        removed it before its start, far behind all others, published once more.
        """
        claims = {w: self._get(f"spark/{w:010d}.json") for w in {body["w"] for body in publications.values()}}
        first = {w for w, claim in claims.items() if claim is not None and not claim.get("own_files")}
        theirs = (n for n, body in publications.items() if body["w"] in first)
        return max((*self._numbers("used"), *theirs), default=0)

    def _retire_entries(
        self, n: int, kept: Collection[int], released: Collection[str], used: int, remove: Callable[[str], None]
    ) -> None:
        bodies = {slot: body for slot in sorted(self._numbers("journal")) if (body := self._entry_body(slot))}
        restorable = {slot for slot in bodies if slot >= n or slot in kept}
        checkpoints = {slot: body for slot, body in bodies.items() if body["kind"] == "checkpoint"}
        needed = {path for slot in restorable & checkpoints.keys() for path in _needs(checkpoints[slot])}
        existing = {f"{folder}/{name}" for folder in ("parts", "staged") for name in self._names(folder)}
        waiting = {file["path"] for slot, body in checkpoints.items() if slot > n for file in body["staged"]}
        for path in sorted({path.removeprefix(self.location("")) for path in released} & existing - waiting):
            remove(path)
        for slot, body in checkpoints.items():
            staged = body["staged"] if slot <= n else ()
            done = {file["path"] for file in staged if file["kind"] == "changes" or slot > used}
            if slot not in restorable:
                done |= _needs(body)
            for path in sorted(existing & done - needed):
                remove(path)
        for slot in sorted(bodies.keys() - restorable - _bases(restorable, bodies)):
            remove(_entry_path(slot))
        for slot in self.released() - bodies.keys():
            remove(f"released/{slot:010d}.json")

    # Envelopes and paths

    def _names(self, folder: str) -> list[str]:
        return self._folder.names(folder)

    def _numbers(self, folder: str) -> list[int]:
        found = (_NUMBERED.fullmatch(name) for name in self._names(folder))
        return [int(match[1]) for match in found if match]

    def _named_by(self, record: str, path: str) -> dict[str, Any]:
        """The body of the record that another one builds on."""
        found = self._get(path)
        if found is None:
            raise ProtocolError(f"{self.location(path)} is missing, though {record} names it; restore it from a backup")
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
        return self._folder.create(path, sealed(body))

    def _get(self, path: str) -> dict[str, Any] | None:
        data = self._folder.read(path)
        return None if data is None else opened(data, self.location(path))

    def _compare(self, ref: PartRef, sha256: str | None, size: int) -> None:
        if sha256 is None:
            raise ProtocolError(
                f"{self.location(ref.path)} is missing, though an entry names it; restore it from a backup"
            )
        if sha256 != ref.sha256 or size != ref.size:
            raise ProtocolError(
                f"{self.location(ref.path)} is corrupt ({size} bytes, its sha256 is wrong); restore it from a backup"
            )


def _entry_path(slot: int) -> str:
    return f"journal/{slot:010d}.json"


def _retired_path(number: int) -> str:
    return f"retired/{number:010d}.json"


def _publication_path(n: int) -> str:
    return f"publications/{n:010d}.json"


def _epoch(body: Mapping[str, Any]) -> int:
    return int(body["slot"] if body["kind"] == "epoch" else body["epoch"])


def _newest(tables: Mapping[int, V], number: int, found: V) -> dict[int, V]:
    """The tables of the last few records that others build on, with those of one more."""
    return dict([*((key, value) for key, value in tables.items() if key != number), (number, found)][-_BASES_KEPT:])


def _bases(records: Collection[int], bodies: Mapping[int, Mapping[str, Any] | None]) -> set[int]:
    """The records that these build on, and those that the former build on."""
    found: set[int] = set()
    new = set(records)
    while new:
        new = {since for at in new if (body := bodies.get(at)) and (since := since_of(body)) is not None} - found
        found |= new
    return found


def _needs(checkpoint: Mapping[str, Any]) -> set[str]:
    """The paths of the part files that a restore to this checkpoint reads."""
    return {path for part in checkpoint["parts"].values() for path in PartRef.from_json(part).paths}


def _schemas(body: Mapping[str, Any]) -> set[str]:
    """The hashes of schemas in the body of an entry."""
    if body["kind"] == "epoch":
        return set()
    tables = (table for table in body["tables"].values() if table is not None)  # None: removed
    named = {table.get(key) for table in tables for key in ("schema", "described")}
    return named | {file["schema"] for file in body["staged"]} | set(body["replaced"])


def _checked(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise ProtocolError(f"{name!r} can't name a part or staged file; make the name by store.file_name")
    return name


def _epoch_of(name: str) -> int | None:
    match = _FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None
