"""The channels of all epochs."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from cutline.common.mesh.machine import Event, MessageReceived
from cutline.common.mesh.messages import (
    Records,
    Remedy,
    SplitFailed,
    TableReport,
    decode,
    encode,
)
from tests.simulation.mesh.service import Channel, SimulatedService
from tests.support.causes import because

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World

CREDIT_ROWS = 60


class Network:
    """The channels of all epochs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.channels: dict[tuple[int, str, str], Channel] = {}

    def send(self, service: SimulatedService, receiver: str, message: Any) -> bool:
        world = self.world
        sender = service.name or "enumerator"
        channel = self.channels.get((service.epoch, sender, receiver))
        if service.leader is not None and service.token is None:
            return True
        if channel is None or channel.gone:
            world.count["send to a stream that is gone"] += 1
            service.effects.clear()
            world.mesh.fail(service, because(f"the channel to {receiver} is gone"))
            return True
        if not self.has_room(channel, message):
            channel.waiting = service
            return False
        self.put(channel, message)
        return True

    def has_room(self, channel: Channel, message: Any) -> bool:
        """Whether the channel's credit lets the message on it."""
        rows = message.rows if isinstance(message, Records) else 0
        full = bool(channel.credit) and channel.credit + rows > CREDIT_ROWS and channel.credit > CREDIT_ROWS - 1
        self.world.count["send waits for credit"] += full
        return not full

    def put(self, channel: Channel, message: Any) -> None:
        """Put a message behind all earlier ones of its channel."""
        world = self.world
        self.note_message(message)
        if world.shape.wire:
            message = decode(json.loads(json.dumps(encode(message))), getattr(message, "body", None))
        channel.sent += 1
        channel.credit += message.rows if isinstance(message, Records) else 0
        channel.queue.append((channel.sent, message))
        if world.troubled and world.rng.random() < 0.01:
            world.count["lost answer of Redis: message sent again, refused"] += 1
        self.kick(channel)

    def note_message(self, message: Any) -> None:
        kind = type(message).__name__
        if isinstance(message, TableReport):
            kind += f" {message.state}"
        elif isinstance(message, SplitFailed):
            kind += "" if message.remedy == Remedy.QUARANTINE else f" {message.remedy}"
        if isinstance(message, TableReport) and "can't be shown at the stop" in str(message.cause):
            kind += " at the stop"
        self.world.count[f"sent {kind}"] += 1

    def kick(self, channel: Channel | None) -> None:
        if channel is not None and channel.queue and not channel.scheduled and not channel.gone:
            channel.scheduled = True
            self.world.at(self.world.lag(), self.deliver, channel)

    def receiver_of(self, channel: Channel) -> SimulatedService | None:
        epoch, _, receiver = channel.name
        for service in self.world.mesh.services:
            if service.alive and service.epoch == epoch and service.token is not None:
                if receiver == (service.name or "enumerator") and (service.leader is not None) == (
                    receiver == "enumerator"
                ):
                    return service
        return None

    def deliver(self, channel: Channel) -> None:
        world = self.world
        channel.scheduled = False
        service = self.receiver_of(channel)
        if channel.gone or service is None or not channel.queue:
            return
        if service.leader is not None and service.leader.state == "opening":
            world.at(0.05, self.kick, channel)
            return
        number, message = channel.queue.popleft()
        if number != channel.expected:
            world.count["gap seen in a channel"] += 1
            world.mesh.fail(service, because(f"the channel from {channel.name[1]} lost message {channel.expected}"))
            return
        channel.expected += 1
        if message is not None:
            fact = MessageReceived(channel=channel.name[1], message=message)
            if service.driven is not None:
                if service.driven.links is not None:
                    service.driven.links.receive(channel, fact)
            elif service.alive and service.token is not None:
                service.inbox.append((service.token, (channel, fact)))  # type: ignore[arg-type]
                world.drivers.pump(service)
        self.kick(channel)

    def taken(self, channel: Channel, event: Event) -> None:
        if isinstance(event, MessageReceived) and isinstance(event.message, Records):
            channel.credit -= event.message.rows
            waiting, channel.waiting = channel.waiting, None
            if waiting is not None:
                self.world.at(0.001, self.pump_again, waiting)

    def pump_again(self, service: SimulatedService) -> None:
        if service.driven is not None:
            if service.driven.links is not None:
                service.driven.links.wake()
        elif service.alive:
            service.blocked = False
            self.world.drivers.pump(service)

    def idle(self, channel: Channel) -> None:
        """The sender's empty message, which reveals a lost tail."""
        channel.sent += 1
        channel.queue.append((channel.sent, None))
        self.kick(channel)

    def dismiss(self, before: int) -> None:
        """Remove the streams of ended epochs. Redis may not answer at first: the driver asks until it does."""
        world = self.world
        rng = world.faults.leaderless
        late = world.goes_wrong("Redis removes streams late", 0.2, rng)
        delay = rng.uniform(1.0, 10.0) if late else rng.expovariate(1 / world.shape.lag)
        for channel in self.channels.values():
            if channel.name[0] < before and not channel.gone:
                world.at(delay, self.drop_channel, channel, rng)

    def drop_channel(self, channel: Channel, rng: random.Random) -> None:
        world = self.world
        channel.gone = True
        channel.queue.clear()
        if channel.waiting is not None:
            world.at(0.0, self.pump_again, channel.waiting)
        epoch, sender, _ = channel.name
        for service in world.mesh.services:  # its next empty message reveals it
            if service.epoch == epoch and service.token is not None and (service.name or "enumerator") == sender:
                world.at(rng.uniform(0.1, 2.0), self.silence, service, service.token)

    def silence(self, service: SimulatedService, token: Any) -> None:
        if (
            service.alive
            and service.token == token
            and any(c.gone for c in self.channels.values() if c.name[0] == service.epoch)
        ):
            self.world.mesh.fail(service, because("its streams are gone"))
