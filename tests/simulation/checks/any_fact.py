"""Every fact in every state is handled, or refused with the state unchanged."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from cutline.common.errors import ProtocolError, SourceLost
from cutline.common.mesh.machine import Began, Event, MessageReceived, PartStored, Ticked
from cutline.common.mesh.messages import (
    CheckpointWanted,
    ChunkDropped,
    ChunkEnd,
    EndStream,
    ExcludeTable,
    LimitStream,
    Marker,
    PartSaved,
    Records,
    SplitReleased,
    SplitsWanted,
    StopStream,
    StreamCaughtUp,
    StreamStopped,
    TableReport,
    TableState,
    TakeBackSplit,
)
from cutline.common.positions import Stop
from cutline.services.enumerator.events import BoundFound, EntryRefused, EntryWritten, JournalRead, Observed
from cutline.services.enumerator.states import EpochOpened
from cutline.services.reader.events import ChunkFailed
from cutline.services.writer.machine import CutStaged
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.freeze import freeze
from tests.support.causes import because
from tests.support.reads import changes_read

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def any_fact_is_handled_or_refused(world: World) -> None:
    """Every fact in every state is handled, or refused by ProtocolError with the state unchanged."""
    rng = world.rng
    candidates = [s.leader for s in world.mesh.services if s.alive and s.leader is not None]
    candidates += [s.process for s in world.mesh.services if s.alive and s.process is not None]
    if not candidates:
        return
    original = rng.choice(candidates)
    probes = [original.process] if hasattr(original, "settings") and original.process else [original]
    bare = []
    for process in probes:  # the probe holds the whole world: copy without it
        if hasattr(process, "machine") and hasattr(process.machine, "machine"):
            bare.append((process, process.machine))
            process.machine = process.machine.machine
    machine = copy.deepcopy(original)
    for process, probe in bare:
        process.machine = probe
    before = freeze(machine)
    for _ in range(6):
        event = _any_fact(world)
        held = bool(getattr(machine, "_held", None))
        try:
            machine.handle(event, world.now)
        except ProtocolError:
            world.count["fact refused"] += 1
            if held:
                return  # the fact was taken; a message held behind a marker may have been refused
            if freeze(machine) != before:
                raise Failure(f"{type(machine).__name__} refused {event} and changed its state") from None
        except SourceLost as error:
            raise Failure(f"{type(machine).__name__} raised {error!r} at {event}, which is no refusal") from error
        else:
            world.count["fact handled"] += 1
            before = freeze(machine)


def _any_fact(world: World) -> Event:
    rng = world.rng
    table = rng.choice(world.shape.tables)
    slot = rng.randrange(1, max(world.store.journal, default=1) + 3)
    split = f"{table}:1:{rng.randrange(1, 4)}"
    position = world.source.end()
    messages = (
        Marker(checkpoint=slot),
        SplitsWanted(free=1),
        SplitReleased(split_id=split, attempt=1),
        TakeBackSplit(split_id=split, attempt=1),
        TableReport(table_id=table, generation=1, state=rng.choice(tuple(TableState))),
        StreamCaughtUp(),
        CheckpointWanted(),
        StreamStopped(),
        LimitStream(stop=Stop(time_us=0)),
        EndStream(place=position),
        ExcludeTable(table_id=table, generation=1),
        StopStream(),
        Records(table_id=table, generation=1, schema="", rows=1),
        ChunkEnd(split_id=split, table_id=table, generation=1, attempt=1, rows=rng.choice((0, 3)), schema=""),
        ChunkDropped(split_id=split, attempt=1),
        PartSaved(checkpoint=slot, part={"path": "x"}),
    )
    channel = rng.choice(("enumerator", "reader-0", "reader-1", "writer-0", "nobody"))
    facts: list[Event] = [
        Ticked(),
        PartStored(checkpoint=slot, ref={}),
        CutStaged(checkpoint=slot, staged=()),
        ChunkFailed(split_id=split, attempt=1, cause=because("")),
        changes_read(cursor=rng.choice(("main", "catch-up")), position=position, rows=0),
        BoundFound(table_id=table, generation=1, end=None),
        Observed(held=rng.random() < 0.8, members=()),
        JournalRead(tail=slot, base=None),
        EntryWritten(slot=slot, nonce="x"),
        EntryRefused(slot=slot, nonce="x"),
        EpochOpened(epoch=slot, enumerator=None),
        Began(),
        *(MessageReceived(channel=channel, message=message) for message in messages),
    ]
    if world.seen.facts and rng.random() < 0.5:
        return rng.choice(world.seen.facts)[1]
    return rng.choice(facts)
