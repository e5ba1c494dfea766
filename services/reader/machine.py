"""The reader: reads chunks, and with the incremental split follows the binlog (pure).

Chunks. A reader holds at most `HELD_SPLITS`. One is read at a time, batch by batch; the next batch is asked for when
the last one is on its channel, so credits bound memory. `ChunkEnd` and the report go out in one step, with no marker
between: a chunk commits by its last message.

    queued -> reading -> (reported | failed)          queued -> released

One reader of an epoch holds the incremental split too (stream.py).

A reader that has sent as many rows as it may without a complete checkpoint waits for one (unsaved.py); markers pass.
"""

from __future__ import annotations

import dataclasses

from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State, Ticked
from cutline.common.mesh.messages import (
    AssignSplits,
    CheckpointWanted,
    ChunkDropped,
    ChunkEnd,
    Message,
    PartSaved,
    Records,
    SnapshotSplit,
    SplitFailed,
    SplitReleased,
    SplitReport,
    SplitsWanted,
    StreamCut,
    TakeBackSplit,
    Throttle,
    pieces,
)
from cutline.common.mesh.topology import ENUMERATOR
from cutline.services.reader.events import (
    ChangesRead,
    ChunkFailed,
    ChunkRead,
    ChunkRowsRead,
    ContinueChunk,
    ReadChunk,
    SetLimits,
)
from cutline.services.reader.outlet import Outlet
from cutline.services.reader.stream import INSIDE_ROWS, Stream
from cutline.services.reader.unsaved import Unsaved

HELD_SPLITS = 2


class Reader:
    """The machine. `name` is its channel name (reader-0, ...), `writers` the names of the writers in plan order.

    `stream`: it holds the incremental split. `inside_rows`: see `Stream`.
    """

    def __init__(
        self,
        *,
        name: str,
        writers: tuple[str, ...],
        stream: bool,
        inside_rows: int = INSIDE_ROWS,
        unsaved: Unsaved | None = None,
    ) -> None:
        self.name = name
        self.unsaved = unsaved or Unsaved(None)
        self._outlet = Outlet(writers, self.unsaved)
        self.stream = Stream(name, self._outlet, inside_rows=inside_rows) if stream else None
        self.queue: list[SnapshotSplit] = []
        self.reading: SnapshotSplit | None = None
        self._closing: dict[int, StreamCut | None] = {}  # checkpoint -> the stream's part of its PartSaved

    # --- the door ---

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact."""
        effects = self._take(event)
        if self.stream is not None:
            self.stream.passed(now)
        return effects

    def _take(self, event: Event) -> list[Effect]:
        match event:
            case Began():
                want: list[Effect] = [Send(receiver=ENUMERATOR, message=SplitsWanted(free=HELD_SPLITS))]
                return want + ([] if self.stream is None else self.stream.go_on())
            case MessageReceived(message=message):
                return self._message(message)
            case ChunkRowsRead() | ChunkRead() | ChunkFailed():
                return self._chunk(event)
            case ChangesRead():
                return self._needs_stream(f"changes of cursor {event.cursor}").changes(event)
            case PartStored(checkpoint=checkpoint, ref=ref):
                if checkpoint not in self._closing:
                    raise ProtocolError(f"part {checkpoint} of {self.name} was stored but never ordered")
                stream = self._closing.pop(checkpoint)
                if stream is None:
                    return [Send(receiver=ENUMERATOR, message=PartSaved(checkpoint=checkpoint, part=ref))]
                *first, last = (dataclasses.replace(stream, tables=tuple(piece)) for piece in pieces(stream.tables))
                saved = [PartSaved(checkpoint=checkpoint, stream=cut, more=True) for cut in first]
                saved.append(PartSaved(checkpoint=checkpoint, part=ref, stream=last))
                return [Send(receiver=ENUMERATOR, message=message) for message in saved]
            case Ticked():  # a marker may wait since the last fact
                return self.stream.ask() if self.stream is not None and self.unsaved.full else []
        raise ProtocolError(f"{self.name} has no rule for {type(event).__name__}")

    def _message(self, message: Message) -> list[Effect]:
        match message:
            case AssignSplits(splits=splits):
                self.queue += splits
                return self._next_chunk()
            case TakeBackSplit(split_id=split_id, attempt=attempt):
                if not any(s.split_id == split_id and s.attempt == attempt for s in self.queue):
                    return []  # already started: a report or failure follows
                self.queue = [s for s in self.queue if s.split_id != split_id]
                released = SplitReleased(split_id=split_id, attempt=attempt)
                return [
                    Send(receiver=ENUMERATOR, message=released),
                    Send(receiver=ENUMERATOR, message=SplitsWanted(free=1)),
                ]
            case Throttle(limits=limits):
                return [SetLimits(limits=limits)]
        return self._needs_stream(type(message).__name__).message(message)

    def _needs_stream(self, given: str) -> Stream:
        if self.stream is None:
            raise ProtocolError(f"{self.name} was given {given} but holds no incremental split")
        return self.stream

    # --- chunks ---

    def _next_chunk(self) -> list[Effect]:
        if self.reading is not None or not self.queue or self.unsaved.full:
            return []
        self.reading = self.queue.pop(0)
        return [ReadChunk(split=self.reading)]

    def _chunk(self, event: ChunkRowsRead | ChunkRead | ChunkFailed) -> list[Effect]:
        split = self.reading
        if split is None or (event.split_id, event.attempt) != (split.split_id, split.attempt):
            raise ProtocolError(f"{self.name} got rows of split {event.split_id} but is not reading it")
        writer = self._outlet.writer_of(split.split_id)
        if isinstance(event, ChunkRowsRead):
            records = Records(
                table_id=split.table_id,
                generation=split.generation,
                schema=split.schema.hash,
                rows=event.rows,
                split_id=split.split_id,
                attempt=split.attempt,
                body=event.body,
            )
            return [
                Send(receiver=writer, message=records),
                *self._outlet.count(event.size),
                ContinueChunk(split_id=split.split_id, attempt=split.attempt),
            ]
        ends: list[Effect]
        if isinstance(event, ChunkRead):
            result = event.result
            end = ChunkEnd(
                split_id=split.split_id,
                table_id=split.table_id,
                generation=split.generation,
                attempt=split.attempt,
                rows=result.rows,
                schema=result.schema.hash,
            )
            report = SplitReport(
                split_id=split.split_id,
                table_id=split.table_id,
                generation=split.generation,
                attempt=split.attempt,
                rows=result.rows,
                checksum=result.checksum,
                low=result.low,
                high=result.high,
                schema=result.schema,
                cut_at=result.cut_at,
            )
            ends = [Send(receiver=writer, message=end), Send(receiver=ENUMERATOR, message=report)]
        else:
            failed = SplitFailed(
                split_id=split.split_id,
                table_id=split.table_id,
                generation=split.generation,
                attempt=split.attempt,
                cause=event.cause,
                remedy=event.remedy,
            )
            dropped = ChunkDropped(split_id=split.split_id, attempt=split.attempt)
            ends = [Send(receiver=writer, message=dropped), Send(receiver=ENUMERATOR, message=failed)]
        self.reading = None
        return [*ends, Send(receiver=ENUMERATOR, message=SplitsWanted(free=1)), *self._next_chunk()]

    # --- snapshots ---

    def ready(self) -> bool:
        """Whether a marker may be taken now: see `Stream.ready`."""
        return self.stream is None or self.stream.ready()

    def snapshot(self) -> State:
        """The incremental split's state. Chunks in progress are not in it: a restore reads them again."""
        return State() if self.stream is None else self.stream.snapshot()

    def restore(self, state: State) -> None:
        """Load the incremental split from `state` (made by `snapshot`). Called before `Began`."""
        if self.stream is not None:
            self.stream.restore(state)

    def begin_anew(self) -> None:
        """Drop every table and cursor of the part that was restored. Called before `Began`."""
        if self.stream is not None:
            self.stream.begin_anew()

    def cut(self, checkpoint: int, state: State, recorded: dict[str, list[Message]], kept: bool) -> list[Effect]:
        """A reader has one inbound channel, so its cut is complete with its state."""
        self._closing[checkpoint] = None if self.stream is None else self.stream.cut()
        effects: list[Effect] = [SavePart(checkpoint=checkpoint, state=state)]
        waited = self.unsaved.full
        if self.unsaved.mark(checkpoint):
            effects.append(Send(receiver=ENUMERATOR, message=CheckpointWanted()))
        if not waited:
            return effects
        return effects + self._next_chunk() + ([] if self.stream is None else self.stream.ask())

    # --- invariants ---

    def check(self) -> None:
        """Raise ProtocolError where the state contradicts itself. Costs O(tables and splits)."""
        if self.queue and self.reading is None and not self.unsaved.full:
            raise ProtocolError(f"{self.name} reads no chunk while {len(self.queue)} are queued")
        if self.stream is not None:
            self.stream.check()
