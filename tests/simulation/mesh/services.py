"""The processes of the mesh: starts, deaths, the lease, presence, and the epochs that they join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutline.common.causes import Cause
from cutline.common.errors import Loss
from cutline.common.limits import UNLIMITED
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, State, Ticked
from cutline.common.mesh.parts import Parts, load_part
from cutline.common.mesh.silence import Silence
from cutline.common.mesh.topology import READER, WRITER, Topology, member_name
from cutline.common.store.records import CheckpointEntry, EpochEntry
from cutline.services.enumerator.events import (
    EpochFailed,
    MemberSeen,
    Observed,
    Settings,
)
from cutline.services.enumerator.leader import Leader
from cutline.services.reader.machine import Reader
from cutline.services.reader.unsaved import Unsaved
from cutline.services.writer.machine import Writer
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.restored import restore_is_exact
from tests.simulation.checks.silence import nobody_waits_without_saying_so
from tests.simulation.mesh.driven import INSIDE_ROWS, Driven
from tests.simulation.mesh.files import OpenFiles
from tests.simulation.mesh.probe import Probe
from tests.simulation.mesh.service import SimulatedService
from tests.support.causes import because

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World

LEASE_SECONDS = 5.0
LEAVE_SECONDS = 8.0
PRESENCE_SECONDS = 3.0


class Services:
    """The processes of the mesh: starts, deaths, the lease, presence, and the epochs that they join."""

    def __init__(self, world: World, driven: frozenset[str]) -> None:
        """Services of the roles in `driven` run the real drivers."""
        self.world, self.driven = world, driven
        self.services: list[SimulatedService] = []
        self.names = self.tokens = 0
        self.joined_at: dict[str, float] = {}  # by incarnation: when its part in its epoch began
        self.announced = 0  # the epoch that Redis has
        self.lease: tuple[SimulatedService | None, float] = (None, 0.0)
        self.nobody_until = 0.0  # no enumerator starts before

    def start(self, role: str) -> SimulatedService:
        world = self.world
        self.names += 1
        service = SimulatedService(role, f"{role}-{self.names:03d}", world.store.open())
        if role in self.driven:
            service.driven = Driven(world, service)
        elif role == "enumerator":
            service.leader = self.new_leader(service.incarnation)
            world.at(world.rng.random() * 0.3, self.observe, service)
        else:
            world.at(world.rng.random() * 0.3, self.follow, service)
        if service.driven is None:
            world.at(0.2, self.tick, service)
        self.services.append(service)
        world.tell_story(f"{service.incarnation} starts")
        return service

    def new_leader(self, incarnation: str) -> Leader:
        self.names += 1
        return Leader(incarnation=incarnation, run=f"run-{self.names:03d}", settings=self.settings())

    def settings(self) -> Settings:
        shape = self.world.shape
        return Settings(
            chunk_rows=shape.chunk_rows, exact=shape.exact, quarantine_changed=shape.schema_changes == "halt",
            snapshot_only=shape.snapshot_only,
            interval_seconds=shape.interval, reads_again=self.world.operators.reads_again,
            services={"reader": shape.readers, "writer": shape.writers},
        )  # fmt: skip

    def kill(self, service: SimulatedService, cause: str) -> None:
        world = self.world
        if not service.alive:
            return
        service.alive = False
        service.died_at = world.now
        service.inbox.clear()
        service.effects.clear()
        service.token = None
        if service.driven is not None:
            service.driven.end()
        world.tell_story(f"{service.incarnation} is killed: {cause}")
        world.count[f"{service.role} crashed"] += 1

    def crash(self, service: SimulatedService, cause: str) -> None:
        self.kill(service, cause)
        self.world.at(self.world.rng.uniform(0.2, 4.0), self.replace, service.role)

    def replace(self, role: str) -> None:
        world = self.world
        if role == "enumerator" and world.now < self.nobody_until:
            world.at(self.nobody_until - world.now, self.replace, role)
        elif role == "enumerator" or sum(s.alive and s.role == role for s in self.services) < 4:
            self.start(role)

    def alive(self, role: str) -> list[SimulatedService]:
        return [s for s in self.services if s.alive and s.role == role]

    def tick(self, service: SimulatedService) -> None:
        if service.alive:
            if service.leader is not None or service.process is not None:
                self.world.drivers.tell(service, service.token, Ticked())
                if service.silence is not None:
                    self.listen(service, service.silence)
            self.world.at(0.4, self.tick, service)

    def listen(self, service: SimulatedService, silence: Silence) -> None:
        """A member that is awake reads the channel from its leader, which sends an empty message each second while it
        is awake and its epoch is open."""
        world = self.world
        if service.paused_until > world.now:
            return
        if silence.read(world.now, heard=self.heard(service)):
            world.count["member left a leader that is gone"] += 1
            self.fail(service, because("its leader is silent"))

    def heard(self, service: SimulatedService) -> bool:
        """Whether the leader of a member's epoch sends its empty messages now."""
        return any(
            leader.leader is not None and leader.alive and leader.token is not None and leader.epoch == service.epoch
            and leader.paused_until <= self.world.now
            for leader in self.services
        )  # fmt: skip

    def observe(self, service: SimulatedService) -> None:
        """Observe lease and presence, and announce the epoch, as the driver does."""
        world = self.world
        if not service.alive:
            return
        world.at(0.4, self.observe, service)
        if service.paused_until > world.now:
            return
        held = self.takes_lease(service)
        members = []
        for other in self.present():
            epoch, cause, halts, loss = other.failed
            members.append(
                MemberSeen(
                    incarnation=other.incarnation,
                    role=other.role,
                    leaving=other.leaving,
                    failed_epoch=epoch,
                    failed=cause,
                    halts=halts,
                    lost=loss,
                )
            )
        assert service.leader is not None
        if held and service.token is not None and service.leader.state == "leading":
            self.announced = service.epoch
        world.drivers.tell(service, "any", Observed(held=held, members=tuple(members)))
        if held:
            world.operators.look(service)
            nobody_waits_without_saying_so(world, service.leader)

    def takes_lease(self, service: SimulatedService) -> bool:
        """Whether the service has the lease, which it takes if it is free, and renews if it is its own."""
        world = self.world
        holder, until = self.lease
        held = holder is service and until > world.now
        if holder is None or until <= world.now or held:
            if not held:
                world.count["lease taken over"] += holder is not None and holder is not service
                world.tell_story(f"{service.incarnation} takes the lease")
            self.lease = (service, world.now + LEASE_SECONDS)
            held = True
        return held

    def present(self) -> list[SimulatedService]:
        """The members that live, or died a moment ago."""
        since = self.world.now - PRESENCE_SECONDS
        return [s for s in self.services if s.role != "enumerator" and (s.alive or s.died_at > since)]

    def follow(self, service: SimulatedService) -> None:
        """A member looks which epoch is announced."""
        world = self.world
        if not service.alive:
            return
        world.at(world.rng.uniform(0.1, 0.5), self.follow, service)
        if service.paused_until > world.now or self.announced <= service.epoch:
            return
        epoch = self.announced
        entry = world.store.journal.get(epoch)
        if not isinstance(entry, EpochEntry):
            raise Failure(f"epoch {epoch} is announced but its slot holds no epoch entry")
        self.leave(service)
        service.epoch = epoch
        members = entry.members.by_role[service.role]
        if service.incarnation in members:
            self.join(service, entry, members.index(service.incarnation))

    def leave(self, service: SimulatedService) -> None:
        service.token = service.process = service.probe = service.silence = None
        service.inbox.clear()
        service.effects.clear()
        service.blocked = False
        service.files = None
        service.dumps.clear()
        service.chunk = None
        service.limits = UNLIMITED

    def join(self, service: SimulatedService, entry: EpochEntry, index: int) -> None:
        """Build the machine of this epoch and take part."""
        world = self.world
        epoch = entry.slot
        topology = Topology.joined_by(entry.members.by_role)
        machine: Any
        if service.role == "reader":
            service.name = member_name(READER, index)
            base = entry.base
            machine = Reader(
                name=service.name,
                writers=topology.named(WRITER),
                stream=index == 0,
                inside_rows=INSIDE_ROWS,
                unsaved=Unsaved(world.shape.unsaved_rows, base=base),
            )
            if index == 0 and base is not None:
                machine.restore(self.part(service, base, "reader-0"))
                restore_is_exact(world, machine, base, "reader-0")
                if entry.anew:
                    machine.begin_anew()
        else:
            service.name = member_name(WRITER, index)
            machine = Writer()
            service.files = OpenFiles(world, epoch=epoch, incarnation=service.incarnation)
        inbound, outbound = topology.cut_inbound(service.name), topology.cut_outbound(service.name)
        self.tokens += 1
        service.token, self.joined_at[service.incarnation] = (self.tokens, epoch), world.now
        service.parts = Parts(service.store, member=service.name, epoch=epoch, incarnation=service.incarnation)
        service.probe = Probe(world, service.name, machine, epoch)
        service.process = Process(
            service.probe, inbound=inbound, outbound=outbound, recording=service.role == "reader", after=epoch
        )
        world.tell_story(f"{service.incarnation} joins epoch {epoch} as {service.name}")
        service.silence = Silence(world.now)
        if service.role == "reader":
            world.drivers.tell(service, service.token, Began())
        for sender in inbound:
            world.network.kick(world.network.channels.get((epoch, sender, service.name)))

    def part(self, service: SimulatedService, checkpoint: int, member: str) -> State:
        """A member's part of a checkpoint, as the service reads it."""
        entry = service.store.entry(checkpoint)
        if not isinstance(entry, CheckpointEntry) or member not in entry.parts:
            raise Failure(f"checkpoint {checkpoint} has no part of {member}")
        files = len(entry.parts[member].paths)
        self.world.count["part of two files read"] += files == 2
        self.world.count["part of three files read"] += files == 3
        return load_part(service.store, entry.parts[member])

    def fail(
        self, service: SimulatedService, cause: Cause, halts: bool = False, loss: Loss = Loss.NOTHING
    ) -> None:
        """The member gives up its epoch; its presence has the cause."""
        if service.driven is not None:
            if service.driven.links is not None:
                service.driven.links.lose(cause)
            return
        if service.leader is not None:
            failed = EpochFailed(epoch=service.epoch, cause=cause, halts=halts, lost=loss)
            self.world.drivers.tell(service, service.token, failed)
            return
        self.world.tell_story(f"{service.incarnation} gives up epoch {service.epoch}: {cause}")
        service.failed = (service.epoch, cause, halts, loss)
        self.leave(service)
