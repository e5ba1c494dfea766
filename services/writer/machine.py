"""The writer: puts records into files and reports, at each cut, the files that belong to it.

A writer never blocks and never holds a marker back. A message belongs to checkpoint N if it comes before its channel's
marker N, else to a later one (`MessageReceived.after`): what Chandy and Lamport record as the channel's state goes
straight into the file of its checkpoint.

- Changes of one (table, generation) between two markers are one file for each run of changes with one schema.
- A chunk's rows may flow across markers into the file of its (split, attempt). The file belongs to the checkpoint whose
  marker follows its `ChunkEnd`; a file without `ChunkEnd` is dropped with the epoch.

It keeps no state beyond its epoch: rows whose file no journal entry names are read and sent again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import Effect, Event, MessageReceived, Send, State, Ticked
from cutline.common.mesh.messages import ChunkDropped, ChunkEnd, Message, PartSaved, Records, pieces
from cutline.common.mesh.topology import ENUMERATOR
from cutline.common.store.records import StagedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesFile:
    """Names a file of changes of one table that came after marker `after`.

    A change of schema begins another file, the next `run`, even if the schema was used before: the files hold the
    changes in order, one file after the other.
    """

    table_id: str
    generation: int
    schema: str
    after: int
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFile:
    """Names the file of one attempt at a chunk."""

    table_id: str
    generation: int
    schema: str
    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Effect):
    """Append rows to the file; the first append opens it. `_seq` of changes counts from `seq_base`."""

    file: ChangesFile | ChunkFile
    seq_base: int
    rows: int
    body: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(Effect):
    """Delete the file of a failed attempt, if it has one."""

    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCut(Effect):
    """Close these files and put them into the store. Answered by `CutStaged`. A chunk without rows has no file."""

    checkpoint: int
    changes: tuple[ChangesFile, ...]
    chunks: tuple[ChunkFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStaged(Event):
    """The files of `StageCut` are in the store."""

    checkpoint: int
    staged: tuple[StagedFile, ...]


class Writer:
    """The machine; wrapped in a `Process` with one inbound channel a reader and `recording=False`."""

    def __init__(self) -> None:
        self.changes: dict[tuple[str, int, int], list[ChangesFile]] = {}  # table, generation, after -> open
        self.chunks: dict[tuple[str, int], tuple[ChunkFile, int]] = {}  # open -> file, rows
        self.ended: list[tuple[int, ChunkFile]] = []  # after, file
        self.staging: set[int] = set()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact."""
        match event:
            case MessageReceived(message=message, after=after):
                return self._message(message, after)
            case CutStaged(checkpoint=checkpoint, staged=staged):
                if checkpoint not in self.staging:
                    raise ProtocolError(f"files of checkpoint {checkpoint} were staged but never ordered")
                self.staging.remove(checkpoint)
                groups = pieces(staged)
                return [
                    Send(
                        receiver=ENUMERATOR,
                        message=PartSaved(checkpoint=checkpoint, staged=tuple(group), more=at < len(groups)),
                    )
                    for at, group in enumerate(groups, start=1)
                ]
            case Ticked():
                return []
        raise ProtocolError(f"a writer has no rule for {type(event).__name__}")

    def _message(self, message: Message, after: int) -> list[Effect]:
        match message:
            case Records(split_id=None):
                files = self.changes.setdefault((message.table_id, message.generation, after), [])
                if not files or files[-1].schema != message.schema:
                    files.append(
                        ChangesFile(
                            table_id=message.table_id,
                            generation=message.generation,
                            schema=message.schema,
                            after=after,
                            run=len(files),
                        )
                    )
                return [Append(file=files[-1], seq_base=message.seq_base, rows=message.rows, body=message.body)]
            case Records(split_id=str(split_id)):
                key = (split_id, message.attempt)
                chunk, rows = self.chunks.get(key, (self._chunk_file(message, split_id), 0))
                self.chunks[key] = (chunk, rows + message.rows)
                return [Append(file=chunk, seq_base=0, rows=message.rows, body=message.body)]
            case ChunkEnd(split_id=split_id, attempt=attempt):
                chunk, rows = self.chunks.get((split_id, attempt), (self._chunk_file(message, split_id), 0))
                if rows != message.rows:
                    raise ProtocolError(
                        f"chunk {split_id} of {message.table_id} ended with {message.rows} rows, but {rows} were"
                        " received: a channel lost or doubled a batch",
                    )
                self.chunks.pop((split_id, attempt), None)
                if rows:
                    self.ended.append((after, chunk))
                return []
            case ChunkDropped(split_id=split_id, attempt=attempt):
                self.chunks.pop((split_id, attempt), None)
                return [Drop(split_id=split_id, attempt=attempt)]
        raise ProtocolError(f"a writer has no rule for message {type(message).__name__}")

    @staticmethod
    def _chunk_file(message: Records | ChunkEnd, split_id: str) -> ChunkFile:
        return ChunkFile(
            table_id=message.table_id,
            generation=message.generation,
            schema=message.schema,
            split_id=split_id,
            attempt=message.attempt,
        )

    def ready(self) -> bool:
        """A writer takes every marker at once."""
        return True

    def snapshot(self) -> State:
        """Nothing: its state at a cut is the files that the cut names."""
        return State()

    def cut(self, checkpoint: int, state: State, recorded: dict[str, list[Message]], kept: bool) -> list[Effect]:
        """Every channel's marker has come: stage what came before them."""
        due = [(table_id, generation, after) for table_id, generation, after in self.changes if after < checkpoint]
        changes = tuple(file for key in due for file in self.changes.pop(key))
        chunks = tuple(file for after, file in self.ended if after < checkpoint)
        self.ended = [(after, file) for after, file in self.ended if after >= checkpoint]
        self.staging.add(checkpoint)
        return [StageCut(checkpoint=checkpoint, changes=changes, chunks=chunks)]

    def check(self) -> None:
        """Raise ProtocolError where the state contradicts itself."""
        for (table_id, generation, after), files in self.changes.items():
            names = [(file.table_id, file.generation, file.after, file.run) for file in files]
            if names != [(table_id, generation, after, run) for run in range(len(files))] or not files:
                raise ProtocolError(f"changes of {table_id} after marker {after} are in the files {names}")
            if any(file.schema == other.schema for file, other in itertools.pairwise(files)):
                raise ProtocolError(f"two files in a row hold changes of {table_id} with one schema")
        for (split_id, attempt), (file, rows) in self.chunks.items():
            if (file.split_id, file.attempt) != (split_id, attempt) or rows < 0:
                raise ProtocolError(f"{rows} rows of split {split_id}, attempt {attempt}, are in the file of {file}")
        ended = [(file.split_id, file.attempt) for _, file in self.ended]
        if len(set(ended)) != len(ended):
            raise ProtocolError(f"a chunk has ended twice before one cut: {sorted(ended)}")
