"""Removal of a pipeline's files that no reader can need: those of dead epochs, and what retention gives up.

This deletes data, so each rule says what it relies on:

- The sweep removes only files of epochs older than the running one that no entry names. An older epoch completes no
  checkpoint any more, since its slot is taken; the running one may be about to name its own.
- Retention notes in `retired/` what it removes before it removes it. Then it looks for restores. A restore is commanded
  before its leader reads the notes. So of a restore and a retention that cross, at least one gives way.
- What a record that stays builds on (`since`) stays too.
- A writer that was suspended may find a removed number free. It looks at the newest note once it has put its file, and
  takes it back (`PipelineStore.put_entry`, `publish`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from cutline.common.commands.kinds import Restore
from cutline.common.errors import ProtocolError
from cutline.common.store import bodies
from cutline.common.store.bodies import numbered
from cutline.common.store.chain import follow
from cutline.common.store.commands import Commands
from cutline.common.store.deltas import since_of
from cutline.common.store.lives import Folder
from cutline.common.store.origin import Origin
from cutline.common.store.records import Entry, PartRef

FILE_NAME = re.compile(r"(\d{10})\.[A-Za-z0-9_.+=-]+")
"""The name of a part or a staged file, which begins with its epoch."""


class Removal:
    """Removes files of one pipeline. `entry` reads a journal entry, `last_slot` lists the journal for its newest."""

    def __init__(
        self,
        folder: Folder,
        commands: Commands,
        *,
        entry: Callable[[int], Entry | None],
        last_slot: Callable[[], int],
    ) -> None:
        self._folder, self._commands = folder, commands
        self._entry, self._last_slot = entry, last_slot

    # Savepoints that are no longer kept

    def release(self, n: int, command: int) -> bool:
        """Note that savepoint `n` need not be kept any longer, since this command says so: retention forgets it, and
        the lake's tag of it. False if another command said so before."""
        path = numbered("released", n)
        if bodies.put(self._folder, path, {"n": n, "command": command}):
            return True
        return bool((bodies.get(self._folder, path) or {}).get("command") == command)

    def released(self) -> set[int]:
        """Return the numbers of these savepoints."""
        return set(bodies.numbers(self._folder, "released"))

    # What retention has removed

    def retired(self) -> tuple[int, frozenset[int]]:
        """Return the publication before which retention has removed what a restore needs, except for the savepoints in
        the set, by the newest note; 0 if it has removed nothing."""
        _, body = self._retired_note()
        return (0, frozenset()) if body is None else (body["n"], frozenset(body["kept"]))

    def _retired_note(self) -> tuple[int, dict[str, Any] | None]:
        """The newest note about what is removed, and its number."""
        number = max(bodies.numbers(self._folder, "retired"), default=0)
        return number, bodies.get(self._folder, numbered("retired", number)) if number else None

    def sweep(self) -> list[str]:
        """Remove files that no reader can need any more; return their paths (below the pipeline's folder).

        These are parts, schemas and staged files of epochs older than the newest epoch entry that no journal entry
        names, nor a publication as an `Origin`, and schemas of which a younger epoch has a copy. Safe while others
        write: it keeps files of the running epoch that no entry names yet, and an older epoch can complete no
        checkpoint, its slot being taken.
        """
        removed = self._unneeded()
        for path in removed:
            self._folder.remove(path)
        for folder in ("journal", "publications", "spark", "schemas"):
            for name in self._folder.names(folder):
                if name.endswith(".tmp") and self._folder.stale(folder, name):
                    self._folder.remove(f"{folder}/{name}")
        return removed

    def _unneeded(self) -> list[str]:
        epochs = {
            f"{folder}/{name}": _epoch_of(name.lstrip("."))
            for folder in ("parts", "staged", "schemas")
            for name in self._folder.names(folder)
        }
        last = self._entry_body(slot) if (slot := self._last_slot()) else None
        if last is None:
            return []
        newest = _epoch(last)
        if not any(epoch is not None and epoch < newest for epoch in epochs.values()):
            return []  # no file is of an older epoch, so no entry has to be read
        slots = bodies.numbers(self._folder, "journal")
        entries = [body for slot in slots if (body := self._entry_body(slot)) is not None]
        old = {path for path, epoch in epochs.items() if epoch is not None and epoch < newest}
        if old:
            for body in entries:
                if body["kind"] == "checkpoint":
                    old.difference_update(_needs(body), (file["path"] for file in body["staged"]))
            if schemas := {path: path.split(".")[1] for path in old if path.startswith("schemas/")}:
                named = {name for body in entries for name in _schemas(body)} | self._of_mains()
                # Each epoch stores its own copy; the youngest serves all.
                youngest = {path.split(".")[1]: path for path in sorted(epochs) if path.startswith("schemas/0")}
                old.difference_update(
                    path for path, name in schemas.items() if name in named and youngest[name] == path
                )
        return sorted(old)

    def _of_mains(self) -> set[str]:
        """The hashes of the schemas of which publications show contents that are no longer the newest ones."""
        names = (numbered("publications", number) for number in bodies.numbers(self._folder, "publications"))
        records = (body for name in names if (body := bodies.get(self._folder, name)) is not None)
        tables = (table for body in records for table in body["tables"].values() if table is not None)
        return {Origin(*table["main"]["origin"]).schema for table in tables if "origin" in (table["main"] or {})}

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
            if not noted or bodies.put(self._folder, numbered("retired", number + 1), note):
                break  # else another round has noted something meanwhile
        allowed = self._nothing_goes_back(n, kept)
        if not allowed and noted and number + 1 == max(bodies.numbers(self._folder, "retired"), default=0):
            bodies.put(self._folder, numbered("retired", number + 2), {**known, "w": w})
        return allowed

    def _nothing_goes_back(self, n: int, kept: Collection[int]) -> bool:
        """Whether the pipeline goes on from publication `n` or a later one, and no command says otherwise."""
        newest = self._commands.newest_outcome()
        wishes = [command.wish for command in self._commands.unfinished(newest)]
        asked = [wish.checkpoint for wish in wishes if isinstance(wish, Restore)]
        if newest is not None and newest.orders.base is not None:
            asked.append(newest.orders.base)
        if any(base < n and base not in kept for base in asked):
            return False
        return self._last_slot() == 0 or self._goes_on_from(n)

    def _goes_on_from(self, n: int) -> bool:
        """Whether the chain has checkpoint `n`; False if the pipeline was deleted meanwhile."""
        last = self._last_slot()
        return last > 0 and self._entry(last) is not None and n in follow(last, self._entry)

    def retire(
        self,
        n: int,
        kept: Collection[int] = (),
        *,
        w: int = 0,
        ask: Callable[[], None] = lambda: None,
    ) -> None:
        """Remove files that only a restore to before publication `n` needs, except for the cuts `kept`: journal
        entries, parts, publications, claims that none of the publications left names, and the files staged up to `n`,
        whose rows are in the lake.

        `ask` is called before each removal, which may come long after this call began: it raises if it must not be
        made. While a restore to before `n` is under way it removes nothing (`may_retire`).
        """

        def remove(path: str) -> None:
            ask()
            self._folder.remove(path)

        ask()
        if not self.may_retire(n, kept, w=w):
            return
        for older in bodies.numbers(self._folder, "retired")[:-1]:
            remove(numbered("retired", older))
        publications = self._publication_bodies()
        # Before their entries: without these a publication that a restore left behind would seem to be on the chain.
        needed = {at for at in publications if at >= n or at in kept}
        needed |= _bases(needed, publications)
        for at in sorted(publications.keys() - needed):
            remove(numbered("publications", at))
        starts = {at: publications[at]["w"] for at in needed & publications.keys()}
        newest = starts[max(starts)] if starts else 0
        for start in bodies.numbers(self._folder, "spark"):
            if start < newest and start not in starts.values():
                remove(numbered("spark", start))
        self._retire_entries(n, kept, remove)

    def _publication_bodies(self) -> dict[int, dict[str, Any]]:
        found = bodies.numbers(self._folder, "publications")
        return {n: body for n in found if (body := bodies.get(self._folder, numbered("publications", n)))}

    def _retire_entries(self, n: int, kept: Collection[int], remove: Callable[[str], None]) -> None:
        slots = bodies.numbers(self._folder, "journal")
        entries = {slot: body for slot in slots if (body := self._entry_body(slot))}
        restorable = {slot for slot in entries if slot >= n or slot in kept}
        checkpoints = {slot: body for slot, body in entries.items() if body["kind"] == "checkpoint"}
        needed = {path for slot in restorable & checkpoints.keys() for path in _needs(checkpoints[slot])}
        existing = {f"{folder}/{name}" for folder in ("parts", "staged") for name in self._folder.names(folder)}
        for slot, body in checkpoints.items():
            done = {file["path"] for file in body["staged"]} if slot <= n else set()
            if slot not in restorable:
                done |= _needs(body)
            for path in sorted(existing & done - needed):
                remove(path)
        for slot in sorted(entries.keys() - restorable - _bases(restorable, entries)):
            remove(numbered("journal", slot))
        for slot in self.released() - entries.keys():
            remove(numbered("released", slot))

    def _entry_body(self, slot: int) -> dict[str, Any] | None:
        return entry_body(self._folder, slot)


def entry_body(folder: Folder, slot: int) -> dict[str, Any] | None:
    """The body of a journal entry; None if the slot is free. ProtocolError if it is another slot's."""
    path = numbered("journal", slot)
    body = bodies.get(folder, path)
    if body is not None and body.get("slot") != slot:
        raise ProtocolError(
            f"{folder.location(path)} holds the entry of slot {body.get('slot')}", "restore the journal from a backup"
        )
    return body


def _epoch(body: Mapping[str, Any]) -> int:
    return int(body["slot"] if body["kind"] == "epoch" else body["epoch"])


def _bases(records: Collection[int], known: Mapping[int, Mapping[str, Any] | None]) -> set[int]:
    """The records that these build on, and those that the former build on."""
    found: set[int] = set()
    new = set(records)
    while new:
        new = {since for at in new if (body := known.get(at)) and (since := since_of(body)) is not None} - found
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


def _epoch_of(name: str) -> int | None:
    match = FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None
