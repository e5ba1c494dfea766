"""Chandy and Lamport's process: wraps any machine and takes its part in global snapshots, without stopping it.

"Distributed Snapshots: Determining Global States of Distributed Systems", ACM TOCS 3(1), 1985. Its rules, in short:

- Marker-sending rule: p records its state, then sends one marker along each outbound channel *before* any further
  message (`_record`: the markers are the first effects, and `Loop` keeps the order of effects).
- Marker-receiving rule for channel c: if p has not recorded its state, it records it, and the state of c is empty;
  otherwise the state of c is the messages that came along c after p recorded and before this marker (`_marker`).

It relies on: every channel is FIFO and loses no message (else channels.py ends the epoch); one checkpoint at a time
(the enumerator starts the next one only when the last is in the journal, or its epoch is over). A machine may delay a
marker for a limited time (a reader inside a transaction): the channel is then slow, so the messages behind the marker
wait too.

Change together: `Marker` in messages.py, and the writer's rule that a message belongs to the first checkpoint above
`after`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import Effect, Event, Machine, MessageReceived, Send, State
from cutline.common.mesh.messages import Marker, Message


class Process:
    """One process: `machine` between its `inbound` and `outbound` channels, each named by the peer at its other end.

    The initiator is the one process whose `start` is called; a marker returns on each of its inbound channels, and it
    refuses markers of other checkpoints. `recording=False` is for a machine that separates in-flight messages itself,
    by `MessageReceived.after`.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        inbound: Iterable[str],
        outbound: Iterable[str],
        recording: bool = True,
        initiator: bool = False,
        after: int = 0,
    ) -> None:
        self.machine = machine
        self.inbound = frozenset(inbound)
        self.outbound = tuple(outbound)
        self.recording = recording
        self.initiator = initiator
        self.checkpoint: int | None = None  # the one being taken
        self.kept = False
        self._after = dict.fromkeys(self.inbound, after)  # last marker on each channel
        self._open: dict[str, list[Message]] = {}  # channels whose state is still being recorded
        self._closed: dict[str, list[Message]] = {}
        self._state = State()
        self._held: list[MessageReceived] = []  # a marker that waits for `ready`, and the messages behind it

    def start(self, checkpoint: int, kept: bool, now: float) -> list[Effect]:
        """Initiate `checkpoint`: record as if a marker had arrived. ProtocolError while another one is in flight."""
        if self.checkpoint is not None:
            raise ProtocolError(f"checkpoint {checkpoint} was started while {self.checkpoint} is in flight")
        return self._record(checkpoint, kept, through=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact; the process handles markers, the machine all other facts."""
        if isinstance(event, MessageReceived):
            if event.channel not in self.inbound:
                raise ProtocolError(
                    f"a message arrived on {event.channel!r}, which is no inbound channel of this process"
                )
            if self._held and event.channel == self._held[0].channel:
                self._held.append(event)
                return []
        effects = self._take(event, now)
        while self._held and self.machine.ready():
            held, self._held = self._held, []
            for index, waiting in enumerate(held):
                effects += self._take(waiting, now)
                if self._held:  # another marker that has to wait
                    self._held += held[index + 1 :]
                    break
        return effects

    def _take(self, event: Event, now: float) -> list[Effect]:
        if not isinstance(event, MessageReceived):
            return self.machine.handle(event, now)
        if isinstance(event.message, Marker):
            if self.checkpoint is None and not self.machine.ready():
                self._held = [event]
                return []
            return self._marker(event.channel, event.message)
        effects = self.machine.handle(dataclasses.replace(event, after=self._after[event.channel]), now)
        if self.recording and event.channel in self._open:
            self._open[event.channel].append(event.message)
        return effects

    def _marker(self, channel: str, marker: Marker) -> list[Effect]:
        if marker.checkpoint <= self._after[channel]:
            raise ProtocolError(f"marker {marker.checkpoint} came on {channel!r} after marker {self._after[channel]}")
        if self.checkpoint is None and not self.initiator:
            self._after[channel] = marker.checkpoint
            return self._record(marker.checkpoint, marker.kept, through=channel)
        if marker.checkpoint != self.checkpoint or channel not in self._open:
            raise ProtocolError(f"marker {marker.checkpoint} came on {channel!r} while {self.checkpoint} is in flight")
        self._after[channel] = marker.checkpoint
        self._closed[channel] = self._open.pop(channel)
        return self._finish()

    def _record(self, checkpoint: int, kept: bool, through: str | None) -> list[Effect]:
        self._state = self.machine.snapshot()
        self.checkpoint, self.kept = checkpoint, kept
        self._open = {channel: [] for channel in sorted(self.inbound) if channel != through}
        self._closed = {} if through is None else {through: []}
        markers: list[Effect] = [
            Send(receiver=receiver, message=Marker(checkpoint=checkpoint, kept=kept)) for receiver in self.outbound
        ]
        return markers + self._finish()

    def _finish(self) -> list[Effect]:
        if self._open or self.checkpoint is None:
            return []
        checkpoint, state, recorded = self.checkpoint, self._state, self._closed
        self.checkpoint, self._state, self._closed = None, State(), {}
        return self.machine.cut(checkpoint, state, recorded, self.kept)

    def check(self) -> None:
        """Raise ProtocolError where the state of the snapshot contradicts itself; the machine's is checked too."""
        taking, waiting = {*self._open, *self._closed}, self.checkpoint is not None
        if taking != (set(self.inbound) if waiting else set()) or self._open.keys() & self._closed.keys():
            raise ProtocolError(f"checkpoint {self.checkpoint} records {sorted(taking)} of {sorted(self.inbound)}")
        if waiting and not self._open:
            raise ProtocolError(f"checkpoint {self.checkpoint} has every marker and was not cut")
        for channel, marker in self._after.items():
            if marker == self.checkpoint and channel not in self._closed:
                raise ProtocolError(f"{channel} gave marker {marker} and is still being recorded")
        if self._held:
            if not isinstance(self._held[0].message, Marker) or len({held.channel for held in self._held}) > 1:
                raise ProtocolError("messages are held back without a marker, or on several channels")
            if waiting:
                raise ProtocolError(f"a marker is held back while checkpoint {self.checkpoint} is being taken")
        self.machine.check()
