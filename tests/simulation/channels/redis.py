"""A Redis in memory with a limit (`noeviction`), and the wire to it, whose answers get lost; and a loop whose time is a
`SimulatedClock`, so that nobody waits.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from cutline.common.errors import Unavailable
from cutline.common.mesh.redis import Command
from tests.simulation.clock import SimulatedClock
from tests.simulation.steps import Steps

_OWN = (b'{"type":"idle"}',)
_ENTRY_BYTES = 100  # what Redis needs for an entry beside its fields


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time: where it would wait, the clock moves."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._clock.now


class _Selector(selectors.SelectSelector):
    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, for nothing")
        self._clock.now += max(timeout, 0.0)
        return super().select(0)


class SimulatedRedis:
    """Streams, with the commands that channels use, and the bytes that they may have together."""

    def __init__(self, rng: random.Random, count: Counter[str], steps: Steps, limit: int) -> None:
        self.rng, self.count, self.steps, self.limit = rng, count, steps, limit
        self.streams: dict[bytes, dict[int, list[bytes]]] = {}
        self.tops: dict[bytes, int] = {}
        self.used = 0
        self.added: Callable[[list[int]], None] | None = None  # hears the sizes of a channel's entries after each
        self.lost = 0.0  # chances of an exchange
        self.away_until = 0.0

    def empty(self) -> None:
        self.streams.clear()
        self.tops.clear()
        self.used = 0

    def lose_tail(self, stream: bytes) -> bool:
        """The newest entry is gone, as after a crash of Redis; whether there was one."""
        entries = self.streams.get(stream, {})
        if not entries:
            return False
        self.used -= _size(entries.pop(max(entries)))
        return True

    def run(self, command: Command) -> Any:
        verb, *rest = command
        match verb:
            case b"XADD":
                return self._add(rest)
            case b"XLEN":
                return len(self.streams.get(_name(rest[0]), {}))
            case b"EXISTS":
                return int(_name(rest[0]) in self.streams)
            case b"XRANGE":
                number, entries = _number(rest[1]), self.streams.get(_name(rest[0]), {})
                return [[rest[1], entries[number]]] if number in entries else []
            case b"XTRIM":
                first, entries = rest[3], self.streams.get(_name(rest[0]), {})
                assert isinstance(first, int)
                for number in [number for number in entries if number < first]:
                    self.used -= _size(entries.pop(number))
                return 0
            case b"XREAD":
                return self._read(rest)
        raise AssertionError(f"the simulated Redis does not know {verb!r}")

    def _add(self, rest: list[Any]) -> Any:
        stream = rest.pop(0)
        makes = rest[0] != b"NOMKSTREAM"
        if not makes:
            rest.pop(0)
        number, fields = _number(rest.pop(0)), [bytes(field) for field in rest]
        if self.used > self.limit:  # as Redis, which looks before the command, not at what it will need
            self.count["channels: Redis full"] += 1
            return OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
        if not makes and stream not in self.streams:
            return None
        if number <= self.tops.get(stream, 0):
            return ResponseError("The ID specified in XADD is equal or smaller than the target stream top item")
        self.streams.setdefault(stream, {})[number] = fields
        self.tops[stream] = number
        self.used += _size(fields)
        if self.added is not None and fields[1] not in _OWN and not makes:
            entries = sorted(self.streams[stream].items())
            sizes = [len(f[1]) + len(f[3]) for n, f in entries if n > 1 and f[1] not in _OWN]
            self.added(sizes)
        return b"%d-0" % number

    def _read(self, rest: list[Any]) -> Any:
        count, names = rest[1], rest[5:]
        half = len(names) // 2
        found = []
        for name, after in zip(names[:half], names[half:], strict=True):
            entries = sorted((n, f) for n, f in self.streams.get(name, {}).items() if n > _number(after))
            if entries:
                found.append([name, [[b"%d-0" % n, f] for n, f in entries[:count]]])
        return found or None


def _name(word: Any) -> bytes:
    return bytes(word)


def _number(word: Any) -> int:
    return int(bytes(word).split(b"-")[0])


def _size(fields: list[bytes]) -> int:
    return _ENTRY_BYTES + sum(map(len, fields))


class SimulatedWire:
    """What common/mesh/redis.py's does, to the simulated Redis."""

    def __init__(self, redis: SimulatedRedis) -> None:
        self.redis = redis

    async def exchange(self, commands: Sequence[Command], *, wait_seconds: float = 0.0) -> list[Any]:
        redis, rng = self.redis, self.redis.rng
        loop = asyncio.get_running_loop()
        await asyncio.sleep(rng.choice((0.0, 0.001)))
        luck = rng.random()
        if luck < redis.lost and not redis.steps.happens("exchange lost"):
            luck = 1.0
        if loop.time() < redis.away_until or luck < redis.lost / 3:
            raise Unavailable("Redis did not answer: the question is lost")
        if luck < redis.lost * 2 / 3:  # a part of them has come
            redis.count["channels: half of the questions lost"] += 1
            for command in commands[: rng.randrange(len(commands) + 1)]:
                redis.run(command)
            raise Unavailable("Redis did not answer: the connection broke")
        answers = [redis.run(command) for command in commands]
        if luck < redis.lost:
            redis.count["channels: answer lost"] += 1
            raise Unavailable("Redis did not answer: the answer is lost")
        if commands[-1][0] == b"XREAD" and answers[-1] is None and wait_seconds:
            until = loop.time() + wait_seconds
            while answers[-1] is None and loop.time() < until:
                await asyncio.sleep(0.01)
                answers[-1] = redis.run(commands[-1])
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.002)))
        return answers

    async def close(self) -> None:
        pass
