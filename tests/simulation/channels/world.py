"""The channels under seeds: the real ends of common/mesh, on the Redis of tests/simulation/channels/redis.py.

Some senders send to some receivers, messages of all sizes, some counted against credits that together are more than
Redis has room for; answers get lost, Redis is full, away, or emptied in the middle, and a receiver sleeps. Checked:

- what a receiver was handed of a channel is the beginning of what was sent there, in order, each message once;
- a channel's counted bytes that are sent and not taken stay under its credit, but for one message;
- while Redis keeps what it has, everything arrives; when it was emptied, each channel that lost something says so to
  one of its ends, and no end waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import Any

from cutline.common.errors import Unavailable
from cutline.common.mesh import channels, receiver, sender, streams
from cutline.common.mesh.receiver import Receiver
from cutline.common.mesh.sender import Sender
from cutline.common.mesh.streams import create, stream_name
from tests.simulation.channels.redis import SimulatedLoop, SimulatedRedis, SimulatedWire
from tests.simulation.clock import SimulatedClock, Wrong
from tests.simulation.steps import Steps

FRAGMENT_BYTES = 400
PATIENCE_SECONDS = 30.0
_DEADLINE_SECONDS = 600.0

Message = tuple[int, bytes]


class ChannelWorld:
    """One seed's run: `run()` raises what was found, or returns."""

    def __init__(self, seed: int, without: AbstractSet[str] = frozenset()) -> None:
        """`without`: steps that do not happen (tests/simulation/steps.py)."""
        self.steps = Steps(without)
        self.rng = rng = random.Random(f"channels {seed}")
        self.count: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=200)
        self.clock = SimulatedClock()
        senders, receivers = rng.choice((1, 2, 3)), rng.choice((1, 2))
        self.names = [stream_name("shop", 7, f"r{i}", f"w{k}") for i in range(senders) for k in range(receivers)]
        self.receivers = [[name for name in self.names if name.endswith(f"w{k}")] for k in range(receivers)]
        self.credit = rng.choice((300, 2000))
        share = rng.choice((0.3, 1.0, 4.0))
        self.redis = SimulatedRedis(rng, self.count, self.steps, max(int(share * self.credit * len(self.names)), 2500))
        self.redis.lost = rng.choice((0.0, 0.05, 0.2))
        self.counts = rng.random() < 0.5  # everything is counted
        if self.counts:
            self.redis.added = self.added
        self.empties = rng.random() < 0.3
        self.sleepy = rng.random() < 0.4
        self.many = rng.choice((5, 15, 40))
        self.sent: dict[str, list[Message]] = {name: [] for name in self.names}
        self.got: dict[str, list[Message]] = {name: [] for name in self.names}
        self.sending = set(self.names)
        self.over = self.emptied = False
        self.fault = ""

    def run(self) -> None:
        loop = SimulatedLoop(self.clock)
        try:
            with simulated(self.clock):
                loop.run_until_complete(asyncio.wait_for(self._run(), _DEADLINE_SECONDS))
        except TimeoutError:
            missing = {name: len(self.sent[name]) - len(self.got[name]) for name in self.names}
            raise Wrong(f"no end in sight: {missing} are on their way, Redis has {self.redis.used} bytes") from None
        finally:
            loop.close()

    async def _run(self) -> None:
        redis: Any = self.redis
        while True:
            with suppress(Unavailable):
                await create(redis, self.names, {"epoch": 7}, patience_seconds=PATIENCE_SECONDS)
                break
        ends = [self._send(name) for name in self.names] + [self._receive(names) for names in self.receivers]
        tasks = [asyncio.ensure_future(end) for end in (*ends, self._trouble())]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.5)
            if self.over:  # as the driver does
                for task in tasks:
                    task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        self.judge()

    async def _trouble(self) -> None:
        rng, redis = self.rng, self.redis
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        if rng.random() < 0.3 and self.steps.happens("Redis away"):
            redis.away_until = self.clock.now + rng.uniform(0.1, 10.0)
            self.count["channels: Redis away"] += 1
        if self.empties and self.steps.happens("Redis loses something"):
            self.emptied = True
            if rng.random() < 0.5:
                redis.empty()
                self.count["channels: Redis emptied"] += 1
            else:
                self.count["channels: tail of a stream lost"] += redis.lose_tail(rng.choice(self.names).encode())
        await asyncio.sleep(5.0)
        redis.lost = 0.0

    async def _send(self, name: str) -> None:
        rng, redis = self.rng, self.redis
        made: Any = redis
        sender = Sender(made, name, credit_bytes=self.credit, patience_seconds=PATIENCE_SECONDS)
        try:
            for i in range(self.many):
                if self.over:
                    break
                body = rng.randbytes(rng.choice((0, 20, 150, 150, 1500)))
                counted = self.counts or rng.random() < 0.7
                self.sent[name].append((i, body))
                await sender.send({"type": "records" if counted else "marker", "i": i}, body, counted=counted)
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.uniform(0.0, 0.5))
            while not self.done():
                await sender.idle()
                await asyncio.sleep(1.0)
            await sender.flush()
        except Unavailable as error:
            self.ended(name, error)
        finally:
            self.sending.discard(name)
            await sender.close()

    async def _receive(self, names: list[str]) -> None:
        rng = self.rng
        made: Any = self.redis
        receiver = Receiver(made, names, patience_seconds=PATIENCE_SECONDS)
        held: deque[str] = deque()
        try:
            # Until the senders end, as in an epoch: one may repeat a message that came, which a full Redis refuses.
            while self.sending.intersection(names):
                if self.sleepy and rng.random() < 0.05 and self.steps.happens("receiver sleeps"):
                    self.count["channels: receiver slept"] += 1
                    await asyncio.sleep(rng.uniform(0.5, 5.0))
                for name, header, body in await receiver.receive(wait_seconds=0.2):
                    self.take(name, (header["i"], bytes(body)))
                    held.append(name)
                while held and rng.random() < 0.8:
                    await receiver.taken(held.popleft(), 1)
        except Unavailable as error:
            self.ended(names[0], error)
        finally:
            await receiver.close()

    def ended(self, name: str, error: Unavailable) -> None:
        """One end of a channel gave up: its epoch ends by it."""
        self.over = True
        self.count[f"channels: {type(error).__name__}"] += 1
        self.story.append(f"{self.clock.now:.3f} {name}: {error}")
        if not self.emptied:
            raise Wrong(f"{name} was given up though Redis has everything: {error}")

    def take(self, name: str, message: Message) -> None:
        at = len(self.got[name])
        if at >= len(self.sent[name]) or self.sent[name][at] != message:
            raise Wrong(f"message {message[0]} of {name} came where {at} was due")
        self.got[name].append(message)
        self.count["channels: message"] += 1
        self.count["channels: message in fragments"] += len(message[1]) > FRAGMENT_BYTES

    def added(self, sizes: list[int]) -> None:
        """So many bytes has each entry of a channel that was not taken, the newest last."""
        if (
            sum(sizes) > max(self.credit, sizes[-1]) and not self.emptied
        ):  # what Redis has lost looks as if it was taken
            self.over = True
            self.fault = f"{sum(sizes)} bytes were sent and not taken, and {self.credit} is the credit"
        self.count["channels: credit used up"] += sum(sizes) + 150 > self.credit

    def done(self) -> bool:
        """Whether everything came, or the epoch is over."""
        return self.over or all(len(got) == self.many for got in self.got.values())

    def judge(self) -> None:
        """No end is open any more."""
        if self.fault:
            raise Wrong(self.fault)
        self.count["channels: everything came"] += not self.over


@contextmanager
def simulated(clock: SimulatedClock) -> Iterator[None]:
    """Both ends of a channel talk to the simulated Redis, in small fragments, by this clock."""
    new = {"Wire": SimulatedWire, "time": clock, "FRAGMENT_BYTES": FRAGMENT_BYTES}
    ends = (channels, receiver, sender, streams)
    before = [(end, name, getattr(end, name)) for end in ends for name in new.keys() & vars(end).keys()]
    for end, name, _ in before:
        setattr(end, name, new[name])
    channels._log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for end, name, plain in before:
            setattr(end, name, plain)
        channels._log.setLevel(logging.NOTSET)
