"""Channels on a Redis of a few lines, whose answers get lost and whose streams vanish as the test wishes."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.mesh.channels import ChannelLost, LeaderLost
from cutline.common.mesh.receiver import Receiver
from cutline.common.mesh.redis import Command
from cutline.common.mesh.sender import FRAGMENT_BYTES, Sender
from cutline.common.mesh.silence import LEADER_SECONDS
from cutline.common.mesh.streams import create, stream_name
from tests.simulation.clock import SimulatedClock

NAME = stream_name("shop", 7, "reader-0", "writer-1")


class FakeRedis:
    """Streams with the commands that channels use; `lose` decides for each exchange what becomes of it."""

    def __init__(self) -> None:
        self.streams: dict[bytes, dict[int, list[bytes]]] = {}
        self.tops: dict[bytes, int] = {}
        self.full = False
        self.refused = 0
        self.lose = lambda: "nothing"

    def run(self, command: Command) -> Any:
        verb, *rest = command
        if verb == b"XADD":
            return self._add(rest)
        stream = rest[0]
        if verb == b"XLEN":
            return len(self.streams.get(stream, {}))
        if verb == b"EXISTS":
            return int(stream in self.streams)
        if verb == b"XRANGE":
            n = int(rest[1].split(b"-")[0])
            found = self.streams.get(stream, {})
            return [[rest[1], found[n]]] if n in found else []
        if verb == b"XTRIM":
            entries = self.streams.get(stream, {})
            for n in [n for n in entries if n < rest[3]]:
                del entries[n]
            return 0
        assert verb == b"XREAD"
        count, names = rest[1], rest[5:]
        half = len(names) // 2
        answer = []
        for name, after in zip(names[:half], names[half:], strict=True):
            last = int(after.split(b"-")[0])
            entries = [[b"%d-0" % n, f] for n, f in sorted(self.streams.get(name, {}).items()) if n > last]
            if entries:
                answer.append([name, entries[:count]])
        return answer or None

    def _add(self, rest: list[Any]) -> Any:
        stream = rest.pop(0)
        if self.full:
            self.refused += 1
            return OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
        if rest[0] == b"NOMKSTREAM":
            rest.pop(0)
            if stream not in self.streams:
                return None
        n = int(rest.pop(0).split(b"-")[0])
        if n <= self.tops.get(stream, 0):
            return ResponseError("The ID specified in XADD is equal or smaller than the target stream top item")
        self.streams.setdefault(stream, {})[n] = [bytes(field) for field in rest]
        self.tops[stream] = n
        return b"%d-0" % n

    def empty(self) -> None:
        self.streams.clear()
        self.tops.clear()


class FakeWire:
    def __init__(self, redis: FakeRedis) -> None:
        self.redis = redis

    async def exchange(self, commands: Sequence[Command], *, wait_seconds: float = 0.0) -> list[Any]:
        await asyncio.sleep(0)
        fate = self.redis.lose()
        if fate == "question":
            raise Unavailable("the connection broke")
        if fate == "half":
            for command in commands[: len(commands) // 2]:
                self.redis.run(command)
            raise Unavailable("the connection broke")
        answers = [self.redis.run(command) for command in commands]
        if fate == "answer":
            raise Unavailable("the connection broke")
        return answers

    async def close(self) -> None:
        pass


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in ("sender", "receiver", "streams"):
        monkeypatch.setattr(f"cutline.common.mesh.{module}.Wire", FakeWire)
    monkeypatch.setattr("cutline.common.mesh.channels._BACKOFF_SECONDS", (0.0001, 0.001))
    monkeypatch.setattr("cutline.common.mesh.sender._CREDIT_POLL_SECONDS", (0.0001, 0.001))
    return FakeRedis()


async def take(receiver: Receiver, count: int) -> list[tuple[str, dict[str, Any], bytes]]:
    """Receive `count` messages, taking each."""
    got: list[tuple[str, dict[str, Any], bytes]] = []
    async with asyncio.timeout(10):
        while len(got) < count:
            for message in await receiver.receive(wait_seconds=0.01):
                got.append(message)
                await receiver.taken(message[0], 1)
    return got


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop to others until the condition holds, for 5 seconds at most."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def opened(redis: Any, *, credit_bytes: int = 1 << 20, patience_seconds: float = 30.0) -> tuple[Sender, Receiver]:
    await create(redis, [NAME], {"epoch": 7, "cause": "test"})
    sender = Sender(redis, NAME, credit_bytes=credit_bytes, patience_seconds=patience_seconds)
    return sender, Receiver(redis, [NAME])


def put(redis: Any, n: int, fields: list[bytes]) -> None:
    redis.streams[NAME.encode()][n] = fields
    redis.tops[NAME.encode()] = n


def entry(header: bytes, body: bytes = b"") -> list[bytes]:
    return [b"h", header, b"b", body, b"c", b"%d" % crc32(body, crc32(header))]


async def test_messages_arrive_in_order_with_header_and_body(redis: Any) -> None:
    sender, receiver = await opened(redis)
    for i in range(1000):
        await sender.send({"type": "records", "i": i, "name": "Zürich"}, b"%d" % i, counted=i % 2 == 0)
    got = await take(receiver, 1000)
    assert [(name, header["i"], body) for name, header, body in got] == [(NAME, i, b"%d" % i) for i in range(1000)]
    assert got[0][1]["name"] == "Zürich"


async def test_idle_messages_and_the_opening_are_not_handed_out_and_are_trimmed(redis: Any) -> None:
    sender, receiver = await opened(redis)
    for _ in range(3):
        await sender.idle()
        await sender.flush()
    assert len(redis.streams[NAME.encode()]) == 4
    assert await receiver.receive(wait_seconds=0.0) == []
    assert await receiver.receive(wait_seconds=0.0) == []
    assert redis.streams[NAME.encode()] == {}


async def test_idle_sends_nothing_right_after_a_message(redis: Any) -> None:
    sender, _ = await opened(redis)
    await sender.send({"type": "marker"}, counted=False)
    await sender.idle()
    await sender.flush()
    assert len(redis.streams[NAME.encode()]) == 2
    await sender.idle()
    await sender.flush()
    assert len(redis.streams[NAME.encode()]) == 3


async def test_a_body_over_8_mib_travels_in_fragments_that_each_have_their_number(redis: Any) -> None:
    sender, receiver = await opened(redis, credit_bytes=1 << 30)
    body = random.Random(1).randbytes(3 * FRAGMENT_BYTES + 5)
    await sender.send({"type": "records"}, memoryview(body), counted=True)
    await sender.send({"type": "marker"}, counted=False)
    await sender.flush()
    assert len(redis.streams[NAME.encode()]) == 1 + 4 + 1
    got = await take(receiver, 2)
    assert got[0][2] == body
    assert got[1][1] == {"type": "marker"}


async def test_fragments_of_an_unfinished_message_give_their_credit_back_so_that_it_fits_through_a_small_one(
    redis: Any,
) -> None:
    sender, receiver = await opened(redis, credit_bytes=FRAGMENT_BYTES)
    body = bytes(5 * FRAGMENT_BYTES)
    sending = asyncio.create_task(sender.send({"type": "records"}, body, counted=True))
    got = await take(receiver, 1)
    await sending
    assert got[0][2] == body


async def test_counted_messages_wait_for_credit_and_nothing_overtakes_them(redis: Any) -> None:
    sender, receiver = await opened(redis, credit_bytes=1000)
    for i in range(5):
        sender.post({"type": "records", "i": i}, bytes(400), counted=True)
    sender.post({"type": "marker"}, counted=False)
    await until(lambda: len(redis.streams[NAME.encode()]) >= 3)
    first = await receiver.receive(wait_seconds=0.01)
    assert [header["i"] for _, header, _ in first] == [0, 1]
    assert await receiver.receive(wait_seconds=0.05) == []
    await receiver.taken(NAME)
    rest = await take(receiver, 4)
    assert [header.get("i", header["type"]) for _, header, _ in rest] == [2, 3, 4, "marker"]


async def test_a_message_larger_than_the_credit_passes_alone(redis: Any) -> None:
    sender, receiver = await opened(redis, credit_bytes=10)
    for i in range(3):
        sender.post({"type": "records", "i": i}, bytes(100), counted=True)
    assert [header["i"] for _, header, _ in await take(receiver, 3)] == [0, 1, 2]


async def test_taking_some_messages_gives_back_their_credit_only(redis: Any) -> None:
    sender, receiver = await opened(redis)
    for i in range(4):
        sender.post({"type": "records", "i": i}, bytes(100), counted=True)
    await sender.flush()
    assert len(await receiver.receive()) == 4
    await receiver.taken(NAME, 3)
    await receiver.receive(wait_seconds=0.0)
    assert list(redis.streams[NAME.encode()]) == [5]


@pytest.mark.parametrize("fate", ["question", "answer", "half"])
async def test_a_lost_exchange_is_repeated_and_nothing_is_lost_or_doubled(redis: Any, fate: str) -> None:
    sender, receiver = await opened(redis)
    fates = iter([fate, fate, fate])
    redis.lose = lambda: next(fates, "nothing")
    for i in range(20):
        sender.post({"type": "records", "i": i}, bytes(10), counted=True)
    await sender.flush()
    assert [header["i"] for _, header, _ in await take(receiver, 20)] == list(range(20))


async def test_a_lost_answer_to_what_was_taken_meanwhile_is_ours_too(redis: Any) -> None:
    sender, _ = await opened(redis)
    redis.lose = lambda: "answer"
    sender.post({"type": "records", "i": 0}, counted=True)
    await until(lambda: len(redis.streams[NAME.encode()]) == 2)
    redis.streams[NAME.encode()].clear()
    redis.lose = lambda: "nothing"
    await sender.flush()
    await sender.send({"type": "marker"}, counted=False)
    await sender.flush()
    assert list(redis.streams[NAME.encode()]) == [3]


async def test_another_senders_message_under_our_number_stops_the_first_try(redis: Any) -> None:
    sender, _ = await opened(redis)
    put(redis, 2, entry(b'{"type":"foreign"}'))
    sender.post({"type": "records"}, counted=True)
    with pytest.raises(ProtocolError, match="already has a message 2 that is not ours"):
        await sender.flush()


async def test_another_senders_message_under_our_number_stops_the_repetition_too(redis: Any) -> None:
    sender, _ = await opened(redis)
    fates = iter(["question"])
    redis.lose = lambda: next(fates, "nothing")
    put(redis, 2, entry(b'{"type":"foreign"}'))
    sender.post({"type": "records"}, counted=True)
    with pytest.raises(ProtocolError, match="message 2 that is not ours"):
        await sender.flush()


async def test_redis_that_stays_away_is_unavailable_after_the_patience(redis: Any) -> None:
    sender, _ = await opened(redis, patience_seconds=0.1)
    redis.lose = lambda: "question"
    await sender.send({"type": "records"}, counted=True)
    with pytest.raises(Unavailable, match=r"sending on channel cutline:shop:7:reader-0>writer-1: the connection broke"):
        await sender.flush()
    with pytest.raises(Unavailable):
        await sender.idle()
    impatient = Receiver(redis, [NAME], patience_seconds=0.01)
    with pytest.raises(Unavailable, match="receiving: the connection broke"):
        await impatient.receive(wait_seconds=10)


async def test_an_emptied_redis_is_seen_by_the_next_send_with_channel_and_cause(redis: Any) -> None:
    sender, _ = await opened(redis)
    redis.empty()
    await sender.idle()
    with pytest.raises(ChannelLost, match=r"channel .* is lost: the stream is gone at message 2") as lost:
        await sender.flush()
    assert f"channel {NAME} is lost" in str(lost.value)
    with pytest.raises(ChannelLost):
        sender.post({"type": "records"}, counted=True)


async def test_an_emptied_redis_is_seen_by_a_sender_that_waits_for_credit(redis: Any) -> None:
    sender, _ = await opened(redis, credit_bytes=100)
    sender.post({"type": "records"}, bytes(100), counted=True)
    await sender.flush()
    sender.post({"type": "records"}, bytes(100), counted=True)
    redis.empty()
    with pytest.raises(ChannelLost):
        await sender.flush()


async def test_a_silent_channel_whose_stream_is_gone_is_lost_to_the_receiver(redis: Any) -> None:
    await opened(redis)
    receiver = Receiver(redis, [NAME], silence_seconds=0.01)
    assert await receiver.receive(wait_seconds=0.05) == []
    redis.empty()
    with pytest.raises(ChannelLost, match="the stream is gone after message 1"):
        await receiver.receive(wait_seconds=5)


async def heard_for(receiver: Receiver, clock: SimulatedClock, seconds: float) -> None:
    """Receive by the simulated clock, which the answers of Redis move on."""
    end = clock.now + seconds
    while clock.now < end:
        await receiver.receive(wait_seconds=0.001)


async def test_a_member_leaves_a_leader_that_is_silent_and_no_other_sender(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The leader and a reader send an empty message now and then. 2. Redis does not answer the receiver for as long
    as a leader may be silent, and then the leader's message is late. 3. Only the reader is silent. 4. Only the leader
    is."""
    clock = SimulatedClock()
    for module in ("channels", "receiver"):
        monkeypatch.setattr(f"cutline.common.mesh.{module}.time", clock)
    leader, reader = (stream_name("shop", 7, peer, "writer-1") for peer in ("enumerator", "reader-0"))
    await create(redis, [leader, reader], {"epoch": 7})
    receiver = Receiver(redis, [leader, reader], leader=leader, patience_seconds=1000.0)
    senders = [Sender(redis, name, credit_bytes=1) for name in (leader, reader)]
    run = redis.run

    def answer(command: Command) -> Any:
        clock.now += 1.0 if command[0] == b"XREAD" else 0.0
        return run(command)

    monkeypatch.setattr(redis, "run", answer)
    for _ in range(5):
        for sender in senders:
            await sender.idle()
            await sender.flush()
        await heard_for(receiver, clock, LEADER_SECONDS - 5)

    def away() -> str:
        clock.now += 2 * LEADER_SECONDS
        return "question"

    redis.lose = away
    await receiver.receive(wait_seconds=0.001)
    redis.lose = lambda: "nothing"
    await heard_for(receiver, clock, 2.0)
    for _ in range(5):
        await senders[0].idle()
        await senders[0].flush()
        await heard_for(receiver, clock, LEADER_SECONDS - 5)

    async def only_the_reader_sends() -> None:
        for _ in range(10):
            await senders[1].idle()
            await senders[1].flush()
            await heard_for(receiver, clock, 1.0)

    with pytest.raises(LeaderLost, match="has sent nothing for 30 s; start an enumerator if none runs"):
        await only_the_reader_sends()


async def test_a_gap_is_a_lost_channel(redis: Any) -> None:
    sender, receiver = await opened(redis)
    for i in range(3):
        sender.post({"type": "records", "i": i}, counted=True)
    await sender.flush()
    del redis.streams[NAME.encode()][3]
    with pytest.raises(ChannelLost, match="after message 2 came 4-0"):
        await receiver.receive()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([b"h", b'{"type":"marker"}', b"b", b"", b"c", b"1"], "message 2 .* is corrupt"),
        ([*entry(b'{"type":"marker"}')[:4], b"c", b"x"], "message 2 .* is corrupt"),
        ([b"job", b"42"], "foreign entry 2-0 with fields 'job'"),
        (entry(b"not json"), "message 2 .* has no readable header"),
        (entry(b"[1]"), "message 2 .* has no readable header"),
        (entry(b'{"kind":"marker"}'), "message 2 .* has no readable header"),
        ([*entry(b'{"type":"marker"}'), b"f", b"2/2"], "is fragment b'2/2' where 1 was due"),
        ([*entry(b'{"type":"marker"}'), b"f", b"nonsense"], "where 1 was due"),
    ],
)
async def test_a_corrupt_or_foreign_entry_stops_the_pipeline_with_its_number(
    redis: Any, fields: list[bytes], message: str
) -> None:
    _, receiver = await opened(redis)
    put(redis, 2, fields)
    with pytest.raises(ProtocolError, match=message):
        await receiver.receive()


async def test_a_whole_message_inside_a_fragmented_one_stops_the_pipeline(redis: Any) -> None:
    _, receiver = await opened(redis)
    put(redis, 2, [*entry(b'{"type":"records"}', b"x"), b"f", b"1/2"])
    put(redis, 3, entry(b'{"type":"marker"}'))
    with pytest.raises(ProtocolError, match=r"message 3 .* came inside a fragmented one"):
        await receiver.receive()


async def test_a_full_redis_is_asked_again_until_there_is_room(redis: Any) -> None:
    sender, receiver = await opened(redis)
    redis.full = True
    sender.post({"type": "records"}, counted=True)
    await until(lambda: redis.refused > 3)
    redis.full = False
    await sender.flush()
    assert len(await take(receiver, 1)) == 1


async def test_a_refused_message_behind_which_another_got_in_is_a_lost_channel(redis: Any) -> None:
    sender, _ = await opened(redis)
    fulls = iter([True, False])
    add = redis._add

    def fickle(rest: list[Any]) -> Any:
        redis.full = next(fulls, False)
        return add(rest)

    redis._add = fickle
    sender.post({"type": "records"}, counted=True)
    sender.post({"type": "marker"}, counted=False)
    with pytest.raises(ChannelLost, match=r"Redis refused message 2 .* and took 3"):
        await sender.flush()


async def test_making_the_streams_again_after_a_lost_answer_is_no_fault_but_another_opening_is(redis: Any) -> None:
    await create(redis, [NAME], {"epoch": 7, "nonce": "a"})
    await create(redis, [NAME], {"epoch": 7, "nonce": "a"})
    with pytest.raises(ProtocolError, match="message 1 that is not ours; give each store its own Redis"):
        await create(redis, [NAME], {"epoch": 7, "nonce": "b"})


async def test_a_message_that_no_row_can_need_is_refused_before_anything_is_sent(redis: Any) -> None:
    sender, _ = await opened(redis)
    with pytest.raises(ProtocolError, match="too large"):
        sender.post({"type": "include", "chunks": "x" * FRAGMENT_BYTES}, counted=False)
    await sender.flush()
    assert len(redis.streams[NAME.encode()]) == 1


async def test_a_closed_sender_says_so_also_to_whoever_waits(redis: Any) -> None:
    sender, _ = await opened(redis, credit_bytes=10)
    for _ in range(3):
        sender.post({"type": "records"}, bytes(10), counted=True)
    waiting = asyncio.create_task(sender.flush())
    await until(lambda: len(redis.streams[NAME.encode()]) >= 2)
    await sender.close()
    with pytest.raises(Unavailable, match="is closed"):
        await waiting
    with pytest.raises(Unavailable, match="is closed"):
        sender.post({"type": "marker"}, counted=False)


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_the_receiver_sees_a_prefix_of_what_was_sent_or_the_channel_is_lost(
    redis: Any, seed: int
) -> None:
    luck = random.Random(seed)
    sender, receiver = await opened(redis, credit_bytes=luck.choice([50, 500, 5000]))
    fates = ["nothing"] * luck.choice([3, 10, 50]) + ["question", "answer", "half"]
    redis.lose = lambda: luck.choice(fates)
    sent, got = [], []
    lost = False
    loses = luck.random() < 0.3

    async def send() -> None:
        for i in range(200):
            body = luck.randbytes(luck.randrange(60))
            sent.append((i, body))
            await sender.send({"type": "records", "i": i}, body, counted=luck.random() < 0.7)
            if loses and i == 150:
                redis.empty()
        await sender.flush()

    async def receive() -> None:
        while len(got) < 200:
            for name, header, body in await receiver.receive(wait_seconds=0.001):
                got.append((header["i"], body))
                if luck.random() < 0.5:
                    await receiver.taken(name, 1)
            await receiver.taken(NAME)

    sending, receiving = asyncio.create_task(send()), asyncio.create_task(receive())
    try:
        async with asyncio.timeout(120):
            await sending
            await receiving
    except ChannelLost:
        lost = True
        receiving.cancel()
    assert lost == loses
    assert got == sent[: len(got)]
    assert lost or len(got) == 200
