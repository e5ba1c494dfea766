"""A member's part of each checkpoint: how it is saved and loaded."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Mapping
from typing import Any

from cutline.common.mesh.awaited import Awaited
from cutline.common.mesh.machine import PartStored, State
from cutline.common.mesh.ports import Ports
from cutline.common.store.deltas import Deltas, fold
from cutline.common.store.records import PartRef
from cutline.common.store.store import PipelineStore, file_name
from cutline.common.waits import Party, Wait


class Parts:
    """The parts of one member in one epoch: the first in full, later ones as the changes since an earlier one."""

    def __init__(self, store: PipelineStore, *, member: str, epoch: int, incarnation: str) -> None:
        self._store, self._member, self._epoch, self._incarnation = store, member, epoch, incarnation
        self._deltas = Deltas()
        # The sections of the last part, and all their values by section and key.
        self._values: tuple[list[Mapping[str, Any]], dict[tuple[str, str], Any]] = ([], {})

    def put(self, checkpoint: int, state: State) -> PartRef:
        """Put the schemas that a part names, then the part, into the store. Blocks; one call at a time."""
        self._store.put_schemas(state.schemas, epoch=self._epoch)
        sections, values = self._values
        if list(map(id, state.values.values())) != list(map(id, sections)):
            values = {(name, key): value for name, section in state.values.items() for key, value in section.items()}
            self._values = list(state.values.values()), values
        since, changed = self._deltas.choose(values)
        name = f"{self._member}-{checkpoint}.json.gz"
        data = gzip.compress(_to_lines(state.head, changed), 1, mtime=0)
        ref = self._store.put_part(file_name(name, epoch=self._epoch, incarnation=self._incarnation), data)
        ref = dataclasses.replace(ref, since=since)
        self._deltas.wrote(ref, values, changed, since=since)
        return ref


class PartSaving:
    """Saves a member's parts for its driver, in the store's threads."""

    def __init__(self, parts: Parts, ports: Ports) -> None:
        self._parts, self._pool, self._awaited = parts, ports.pools.store, Awaited(ports.clock)

    async def save(self, checkpoint: int, state: State) -> PartStored:
        """Save one part. One call at a time. Raises Unavailable."""
        with self._awaited.on(Party.STORE, f"the store, to take the part of checkpoint {checkpoint}"):
            return PartStored(checkpoint=checkpoint, ref=await self._pool.call(self._parts.put, checkpoint, state))

    @property
    def waiting_for(self) -> Wait | None:
        """The store, while it takes long to take a part."""
        return self._awaited.late


def load_part(store: PipelineStore, ref: PartRef) -> State:
    """The part at `ref`, with all its schemas. Blocking. ProtocolError if a file of it is missing or changed."""
    head, found = _read(store, ref)
    values: dict[str, dict[str, Any]] = {}
    for (name, key), value in found.items():
        values.setdefault(name, {})[key] = value
    named = {table.get(by) for table in values.get("tables", {}).values() for by in ("schema", "before")} - {None}
    return State(head=head, values=values, schemas=tuple(store.schemas(named).values()))


def load_head(store: PipelineStore, ref: PartRef) -> Mapping[str, Any]:
    """The head alone of the part at `ref`, which is small and in one file. Blocking; errors as `load_part`."""
    head: Mapping[str, Any] = json.loads(gzip.decompress(store.read_part(ref)).partition(b"\n")[0])
    return head


def _read(store: PipelineStore, ref: PartRef) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The head and all values of a part."""
    head, changed = _from_lines(gzip.decompress(store.read_part(ref)))
    return head, fold({} if ref.since is None else _read(store, ref.since)[1], changed)


def _to_lines(head: Mapping[str, Any], values: Mapping[tuple[str, str], Any]) -> bytes:
    """A part's file: a line for its head, then one for each value: section, key, value (null: removed). Encoded line by
    line, since json.dumps holds the interpreter lock and the event loop must answer in time."""
    lines = [json.dumps(head, separators=(",", ":"))]
    lines += [json.dumps((*key, value), separators=(",", ":")) for key, value in values.items()]
    return "\n".join(lines).encode()


def _from_lines(data: bytes) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    head, *lines = data.split(b"\n")
    return json.loads(head), {(name, key): value for name, key, value in map(json.loads, lines)}
