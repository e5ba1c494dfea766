"""What a leader asks of the journal, and the epochs that it opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.mesh.machine import Event
from cutline.common.mesh.topology import ENUMERATOR, Topology
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry
from cutline.services.enumerator.events import (
    EntryRefused,
    EntryWritten,
    JournalRead,
    OpenEpoch,
)
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import request_of
from cutline.services.enumerator.states import EpochOpened
from tests.simulation.checks.announced import announced_epoch_is_the_journals
from tests.simulation.checks.cut import cut_is_consistent
from tests.simulation.checks.entry import entry_is_sound
from tests.simulation.mesh.service import Channel, SimulatedService

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


class Leading:
    """What a leader asks of the journal, and the epochs that it opens."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entered_at = 0.0  # when the journal got its newest entry, or an epoch was open

    def answer(self, service: SimulatedService, leader: Leader | None, event: Event) -> None:
        """Answer the leader that asked, not one that was built after it."""
        if service.leader is leader:
            self.world.drivers.tell(service, "any", event)

    def read_journal(self, service: SimulatedService, leader: Leader | None) -> None:
        journal = self.world.store.journal
        tail = max(journal, default=0)
        base, anew, entered, floor = None, None, None, 0
        if tail:
            last = journal[tail]
            base = last.base if isinstance(last, EpochEntry) else tail
            anew = last.anew if isinstance(last, EpochEntry) else None
            epoch = journal[last.epoch]
            if isinstance(epoch, EpochEntry):
                entered, floor = epoch.command, epoch.floor
        newest = journal[base] if base is not None else None
        answered = request_of(newest.request) if isinstance(newest, CheckpointEntry) else None
        known = self.world.operators.read(service)
        highest = newest.highest if isinstance(newest, CheckpointEntry) else 0
        known |= {"answered": answered, "anew": anew, "entered": entered, "floor": floor, "highest": highest}
        self.answer(service, leader, JournalRead(tail=tail, base=base, **known))

    def write_entry(self, service: SimulatedService, leader: Leader | None, entry: Entry) -> None:
        """The write lands, even if its leader has died or been deposed meanwhile."""
        world = self.world
        slot = entry.slot
        if not service.alive and world.rng.random() < 0.7:
            world.count["torn temporary file: entry never linked"] += 1
            return
        if world.now < world.faults.full_until:  # the same entry is written again until there is room
            world.count["store full: an entry waits"] += 1
            world.at(0.5, self.write_entry, service, leader, entry)
            return
        written = world.store.put_entry(service.store, entry)
        if written:
            self.landed(service, leader, entry)
        answer: Event = EntryWritten(slot=slot, nonce=entry.nonce)
        if not written or world.goes_wrong("lost answer of the store", 0.06):  # written again, refused, looked at
            world.count["lost answer of the store"] += written
            found = service.store.entry(slot)
            nonce = found.nonce if found is not None else ""
            world.count["slot refused"] += nonce != entry.nonce
            answer = EntryRefused(slot=slot, nonce=nonce)
        world.at(world.lag(2), self.answer, service, leader, answer)

    def landed(self, service: SimulatedService, leader: Leader | None, entry: Entry) -> None:
        """An entry is in the journal."""
        world, slot = self.world, entry.slot
        self.entered_at = world.now
        world.operators.entry_is_of_no_cancelled_command(entry)
        if isinstance(entry, EpochEntry):
            world.tell_story(
                f"journal {slot}: epoch of {service.incarnation}, base {entry.base}, version {entry.definition}"
            )
            if entry.base is not None and (base := world.store.journal[entry.base].epoch) in world.questions.began:
                world.questions.began[slot] = world.questions.began[base]
            holder, until = world.mesh.lease
            world.operators.epoch_is_wanted(entry, held=holder is service and until > world.now)
            world.count["epoch written"] += 1
        elif isinstance(entry, CheckpointEntry):
            world.tell_story(f"journal {slot}: checkpoint of epoch {entry.epoch}, position {entry.position}")
            world.count["checkpoint written"] += 1
            world.operators.checkpoint_is_wanted(entry, leader)
            cut_is_consistent(world, entry)
            entry_is_sound(world, entry)

    def note_opened(self, order: OpenEpoch) -> None:
        """An epoch is being opened."""
        world = self.world
        announced_epoch_is_the_journals(world, order)
        if order.base is None:
            return
        base = world.store.journal[order.base]
        world.count["restore"] += 1
        epoch = world.store.journal[base.epoch]
        assert isinstance(epoch, EpochEntry)
        before = Topology.joined_by(epoch.members.by_role)
        world.count["restore with other numbers of members"] += before != order.plan.topology

    def open_epoch(self, service: SimulatedService, order: OpenEpoch) -> Event:
        self.note_opened(order)
        for sender, receiver in order.plan.topology.channels():
            if sender == ENUMERATOR and receiver in order.plan.topology.unmarked:
                continue  # it carries empty messages only: `listen`
            self.world.network.channels[order.epoch, sender, receiver] = Channel((order.epoch, sender, receiver))
        enumerator = None
        if order.base is not None:
            base = service.store.entry(order.base)
            assert isinstance(base, CheckpointEntry)
            part = self.world.mesh.part(service, order.base, "enumerator")
            enumerator = Enumerator.restored(order.plan, part, base.tables, at=base.started_at)
        self.world.mesh.announced = order.epoch
        for channel in self.world.network.channels.values():
            if channel.name[0] < order.epoch and not channel.gone:
                self.world.at(self.world.lag(5), self.world.network.drop_channel, channel, self.world.rng)
        return EpochOpened(epoch=order.epoch, enumerator=enumerator)
