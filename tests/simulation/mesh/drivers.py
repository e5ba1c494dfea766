"""Facts in, effects out, in order: what common/mesh/host.py and the drivers of the services do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cutline.common.errors import ProtocolError, SourceLost
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Effect, Event, PartStored, SavePart, Send, Ticked
from cutline.common.mesh.parts import Parts
from cutline.services.enumerator.events import (
    AskSparkWriter,
    CloseEpoch,
    DeletePipeline,
    DescribeTable,
    Dismiss,
    EntryRefused,
    EntryWritten,
    FindBase,
    FindBound,
    FindOutcome,
    FindPlace,
    FindRange,
    FindStop,
    FindTables,
    OpenEpoch,
    PutDefinition,
    ReadJournal,
    ReleaseSavepoint,
    WriteEntry,
    WriteOutcome,
)
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.states import EpochOpened
from cutline.services.reader.events import (
    CloseCursor,
    ContinueChunk,
    ReadChanges,
    ReadChunk,
    SetLimits,
)
from cutline.services.writer.machine import Append, CutStaged, Drop, StageCut
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.limits import limits_are_obeyed
from tests.simulation.checks.restored import enumerator_part_restores
from tests.simulation.mesh.probe import Probe
from tests.simulation.mesh.service import SimulatedService
from tests.simulation.mesh.sometimes import note_states

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World

CHECK_EVERY = 7


class Drivers:
    """Facts in, effects out, in order: what common/mesh/host.py and the drivers of the services do."""

    crash_rate = 0.00015

    def __init__(self, world: World) -> None:
        self.world = world

    def tell(self, service: SimulatedService, token: Any, event: Event) -> None:
        """Put a fact into a service's inbox; answers to an older epoch are dropped."""
        if service.alive and (
            token == "any"
            or (token is not None and token == service.token)
            or (service.leader and isinstance(event, Ticked))
        ):
            service.inbox.append((token, event))
            self.pump(service)

    def pump(self, service: SimulatedService) -> None:
        world = self.world
        if service.busy:
            return
        service.busy = True
        try:
            self.perform_all(service)
            while service.inbox and service.alive and not service.blocked:
                if service.paused_until > world.now:
                    world.at(service.paused_until - world.now + 0.001, self.pump, service)
                    return
                token, event = service.inbox.popleft()
                channel = None
                if isinstance(event, tuple):
                    channel, event = event
                if service.leader is not None:
                    effects = self.handle_leader(service, event)
                elif token == service.token and service.process is not None:
                    if world.rng.random() < 0.02:
                        world.seen.facts.append((service.role, event))
                    try:
                        effects = service.process.handle(event, world.now)
                    except (ProtocolError, SourceLost) as error:
                        raise Failure(f"{service.name} refused {event}: {error!r}") from error
                    self.check(service.process, event)
                    note_states(world.count, service.process)
                else:
                    continue
                service.effects.extend((service.token, effect) for effect in effects)
                self.perform_all(service)
                if channel is not None and not service.blocked:
                    world.network.taken(channel, event)
        finally:
            service.busy = False

    def handle_leader(self, service: SimulatedService, event: Event) -> list[Effect]:
        world = self.world
        leader = service.leader
        assert leader is not None
        if world.rng.random() < 0.02:
            world.seen.facts.append(("enumerator", event))
        before, was = leader.state, leader.process
        try:
            effects = leader.handle(event, world.now)
        except (ProtocolError, SourceLost) as error:
            raise Failure(f"{service.incarnation} refused {event}: {error!r}") from error
        if leader.process is not was and leader.process is not None:
            service.probe = Probe(world, "enumerator", leader.process.machine, leader.epoch)
            service.probe.count(effects)
            leader.process.machine = service.probe
        self.check(leader, event)
        note_states(world.count, leader)
        if before != leader.state:
            world.tell_story(f"{service.incarnation}: {before} -> {leader.state} ({leader.cause})")
            if before == "opening":
                world.leading.entered_at = world.now  # it said so, and now waits for its members
        if leader.state == "leading" and isinstance(event, EntryWritten | EntryRefused | EpochOpened):
            limits_are_obeyed(world, leader)
        return effects

    def check(self, machine: Leader | Process, event: Event) -> None:
        """The machine's invariants hold after this step; only each `CHECK_EVERY`th is looked at: it costs O(tables)."""
        self.world.seen.steps += 1
        if self.world.seen.steps % CHECK_EVERY == 0:
            try:
                machine.check()
            except ProtocolError as error:
                raise Failure(f"after {type(event).__name__}: {error}") from error

    def perform_all(self, service: SimulatedService) -> None:
        world = self.world
        effects = service.effects
        service.blocked = False
        while effects and service.alive:
            token, effect = effects[0]
            if service.leader is None and token != service.token:
                effects.popleft()
                continue
            if world.goes_wrong("crash between two effects", self.crash_rate):
                world.count["crash between two effects"] += 1
                world.mesh.crash(service, f"before {type(effect).__name__}")
                return
            if not self.perform(service, effect):
                service.blocked = True
                return
            if effects:
                effects.popleft()

    def later(self, service: SimulatedService, delay: float, event_of: Callable[[], Event | None]) -> None:
        """Do slow work in the background; its answer is dropped if the epoch that asked is over."""
        token = service.token

        def done() -> None:
            if not service.alive or (token != service.token):
                self.world.count["answer to an epoch that is over"] += 1
                return
            event = event_of()
            if event is not None and service.token == token:
                self.tell(service, token, event)

        self.world.at(delay, done)

    def ask_source(self, service: SimulatedService, event_of: Callable[[], Event | None]) -> None:
        """Ask the source a question; one that hangs answers once it goes on."""

        def answer() -> Event | None:
            if not self.world.hanging.hangs:
                return event_of()
            self.later(service, 1.0, answer)
            return None

        self.later(service, self.world.lag(2), answer)

    def perform(self, service: SimulatedService, effect: Effect) -> bool:
        """Carry one effect out; False if it has to wait for credit."""
        world = self.world
        match effect:
            case Send(receiver=receiver, message=message):
                return world.network.send(service, receiver, message)
            case SavePart(checkpoint=checkpoint, state=state):
                self.note_part(service, effect)
                parts = service.parts
                assert parts is not None

                def stored() -> Event | None:
                    if world.faults.no_room(service):
                        return None
                    return PartStored(checkpoint=checkpoint, ref=parts.put(checkpoint, state))

                self.later(service, world.lag(2), stored)
            case ReadChunk(split=split):
                world.count["read chunk"] += 1
                world.reading.begin_chunk(service, split)
            case SetLimits(limits=limits):
                service.limits = limits
            case ContinueChunk():
                world.reading.give_rows(service)
            case ReadChanges() if world.now < world.faults.refused_until:
                world.count["epoch failed again for the same cause, which does not halt"] += bool(
                    world.faults.refused_epochs - {service.epoch}
                )
                world.faults.refused_epochs.add(service.epoch)
                world.at(world.lag(2), world.faults.refused, service, service.token)
            case ReadChanges():
                self.later(service, world.lag(), lambda: world.reading.changes_read(service, effect))
            case CloseCursor(cursor=cursor):
                world.count["catch-up meets main"] += 1
                service.dumps.pop(cursor, None)
            case Append():
                assert service.files is not None
                service.files.append(effect)
            case Drop():
                assert service.files is not None
                service.files.drop(effect)
            case StageCut():
                self.later(service, world.lag(3), lambda: self.staged(service, effect))
            case _:
                self.perform_leader(service, effect)
        return True

    def note_part(self, service: SimulatedService, order: SavePart) -> None:
        """A part is to be saved."""
        world = self.world
        world.seen.schemas.update({schema.hash: schema for schema in order.state.schemas})
        if service.leader is not None and service.probe is not None and order.checkpoint % 3 == 0:
            assert service.probe.last is not None
            enumerator_part_restores(world, service.probe.last[2], service.probe.machine, order.state)

    def perform_leader(self, service: SimulatedService, effect: Effect) -> None:
        world = self.world
        match effect:
            case ReadJournal():
                world.at(world.lag(), world.leading.read_journal, service, service.leader)
            case WriteEntry(entry=entry):
                late = world.rng.random() >= 0.9 and world.troubled and world.steps.happens("slow write of an entry")
                delay = world.rng.uniform(1.0, 12.0) if late else world.lag(2)
                world.count["slow write of an entry"] += delay > 1.0
                if delay > 1.0 and world.rng.random() < 0.2:
                    world.at(world.rng.uniform(0.0, 1.0), world.faults.rebuild_leader, service)
                world.at(delay, world.leading.write_entry, service, service.leader, entry)
            case OpenEpoch():
                world.mesh.tokens += 1
                service.token, service.epoch, service.name = (world.mesh.tokens, effect.epoch), effect.epoch, ""
                service.parts = Parts(
                    service.store, member="enumerator", epoch=effect.epoch, incarnation=service.incarnation
                )
                service.store.removal.sweep()
                self.later(service, world.lag(2), lambda: world.leading.open_epoch(service, effect))
            case CloseEpoch():
                service.token = None
            case Dismiss(before=before):
                world.network.dismiss(before)
            case DeletePipeline() if world.hanging.hangs:
                world.hanging.deleting = True
            case WriteOutcome() | PutDefinition() | FindBase() | ReleaseSavepoint() | AskSparkWriter() | FindOutcome():
                world.operators.carry_out(service, effect)
            case FindPlace() | FindTables() | FindStop() | DescribeTable() | FindRange() | FindBound():
                self.ask_source(service, world.questions.asked(service, effect))
            case _:
                raise Failure(f"nobody can carry out {effect}")

    def staged(self, service: SimulatedService, order: StageCut) -> Event | None:
        if self.world.faults.no_room(service):
            return None
        assert service.files is not None
        return CutStaged(checkpoint=order.checkpoint, staged=service.files.stage(order))
