"""Channels on a real Redis: emptied, killed, paused, full, and behind a line that loses answers."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.mesh.channels import ChannelLost
from cutline.common.mesh.receiver import Receiver
from cutline.common.mesh.redis import answered, connect
from cutline.common.mesh.sender import FRAGMENT_BYTES, Sender
from cutline.common.mesh.streams import create, drop, stream_name
from tests.support.redis_servers import Redis

NAME = stream_name("shop", 7, "reader-0", "writer-1")
OTHER = stream_name("shop", 7, "reader-1", "writer-1")


@asynccontextmanager
async def opened(
    client: Client,
    *names: str,
    credit_bytes: int = 8 << 20,
    patience_seconds: float = 10.0,
    silence_seconds: float = 10.0,
) -> AsyncIterator[tuple[list[Sender], Receiver]]:
    """Make the channels and both ends of them, and close all ends."""
    await create(client, names, {"epoch": 7, "cause": "test"})
    senders = [Sender(client, name, credit_bytes=credit_bytes, patience_seconds=patience_seconds) for name in names]
    receiver = Receiver(client, names, silence_seconds=silence_seconds, patience_seconds=patience_seconds)
    try:
        yield senders, receiver
    finally:
        for end in (*senders, receiver):
            await end.close()


async def take(receiver: Receiver, count: int, *, seconds: float = 30.0) -> list[tuple[str, dict[str, Any], bytes]]:
    """Receive `count` messages, taking each."""
    got: list[tuple[str, dict[str, Any], bytes]] = []
    async with asyncio.timeout(seconds):
        while len(got) < count:
            for message in await receiver.receive():
                got.append(message)
                await receiver.taken(message[0], 1)
    return got


class Line:
    """A TCP line to Redis on which answers get lost: `swallow` breaks the connection at the n-th answer from now."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._swallow = -1
        self.swallowed = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Line":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def swallow(self, answer: int = 1) -> None:
        self._swallow = answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._to)
        task = asyncio.create_task(self._answers(back, writer))
        self._tasks.add(task)
        try:
            while data := await reader.read(1 << 20):
                forth.write(data)
                await forth.drain()
        except OSError:
            pass
        finally:
            forth.close()

    async def _answers(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await back.read(1 << 20):
                if self._swallow > 0:
                    self._swallow -= 1
                    if self._swallow == 0:
                        self.swallowed += 1
                        break
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


async def test_two_senders_reach_one_receiver_each_in_its_order(redis: Client) -> None:
    async with opened(redis, NAME, OTHER) as (senders, receiver):

        async def send(sender: Sender) -> None:
            for i in range(5000):
                await sender.send({"type": "records", "i": i}, b"x" * (i % 300), counted=True)

        sending = [asyncio.create_task(send(sender)) for sender in senders]
        got = await take(receiver, 10_000)
        await asyncio.gather(*sending)
        for name in (NAME, OTHER):
            mine = [(header["i"], len(body)) for channel, header, body in got if channel == name]
            assert mine == [(i, i % 300) for i in range(5000)]
        assert await receiver.receive(wait_seconds=0.01) == []
        assert await redis.xlen(NAME) == 0


async def test_a_64_mib_message_passes_a_16_mib_credit_and_redis_stays_under_it(redis: Client) -> None:
    body = random.Random(1).randbytes(64 << 20)
    before = (await redis.info("memory"))["used_memory"]
    peak = 0
    async with opened(redis, NAME, credit_bytes=16 << 20) as ([sender], receiver):
        sending = asyncio.create_task(sender.send({"type": "records"}, body, counted=True))
        taking = asyncio.create_task(take(receiver, 1))
        while not taking.done():
            dataset = (await redis.info("memory"))["used_memory_dataset"]
            if dataset < 1 << 63:  # Redis subtracts unsigned: it wraps round while its buffers hold more than its data
                peak = max(peak, dataset - before)
            await asyncio.sleep(0.001)
        await sending
        got = await taking
    assert got[0][2] == body
    assert 0 < peak < 40 << 20


async def test_a_sender_without_credit_waits_until_its_receiver_has_taken_and_later_messages_wait_behind(
    redis: Client,
) -> None:
    async with opened(redis, NAME, credit_bytes=1 << 20) as ([sender], receiver):

        async def send() -> None:
            for i in range(40):
                await sender.send({"type": "records", "i": i}, bytes(200_000), counted=True)
            await sender.send({"type": "marker"}, counted=False)
            await sender.flush()

        sending = asyncio.create_task(send())
        first = await receiver.receive()
        while more := await receiver.receive(wait_seconds=0.2):
            first += more
        assert 4 <= len(first) <= 5
        assert not sending.done()
        assert await redis.xlen(NAME) <= 7
        await receiver.taken(NAME)
        rest = await take(receiver, 41 - len(first))
        await sending
        assert [header.get("i", header["type"]) for _, header, _ in [*first, *rest]] == [*range(40), "marker"]


async def test_credit_comes_back_while_the_receiver_already_waits_for_more(redis: Client) -> None:
    async with opened(redis, NAME, credit_bytes=1000) as ([sender], receiver):
        for i in range(30):
            sender.post({"type": "records", "i": i}, bytes(900), counted=True)
        begun = time.monotonic()
        seen = []
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            inbox: asyncio.Queue[int] = asyncio.Queue()

            async def receive() -> None:
                got = 0
                while got < 30:
                    for _, header, _ in await receiver.receive():
                        inbox.put_nowait(header["i"])
                        got += 1

            async def handle() -> None:
                while len(seen) < 30:
                    seen.append(await inbox.get())
                    await receiver.taken(NAME, 1)

            group.create_task(receive())
            group.create_task(handle())
        assert seen == list(range(30))
        assert time.monotonic() - begun < 10


async def test_cancelling_a_receiver_that_waits_or_reads_loses_nothing(redis: Client) -> None:
    async with opened(redis, NAME) as ([sender], receiver):
        got: list[int] = []
        luck = random.Random(3)

        async def send() -> None:
            for i in range(2000):
                await sender.send({"type": "records", "i": i}, counted=True)
                if i % 50 == 0:
                    await asyncio.sleep(0.001)

        async def receive() -> None:
            for _, header, _ in await receiver.receive():
                got.append(header["i"])
            await receiver.taken(NAME)

        sending = asyncio.create_task(send())
        async with asyncio.timeout(30):
            while len(got) < 2000:
                receiving = asyncio.create_task(receive())
                await asyncio.wait([receiving], timeout=luck.random() * 0.004)
                receiving.cancel()
                await asyncio.wait([receiving])
        await sending
        assert got == list(range(2000))


async def test_an_emptied_redis_is_seen_by_an_idle_sender_and_by_the_receiver(server: Redis, redis: Client) -> None:
    async with opened(redis, NAME, silence_seconds=0.5) as ([sender], receiver):
        await sender.send({"type": "records"}, counted=True)
        await take(receiver, 1)
        await sender.flush()  # the receiver may have it before the sender knows that Redis has
        server.flush()
        await sender.idle()
        await sender.idle()
        with pytest.raises(ChannelLost, match="the stream is gone at message 3"):
            await sender.flush()
        with pytest.raises(ChannelLost, match="the stream is gone after message 2"):
            await take(receiver, 1)


async def test_an_emptied_redis_in_the_middle_of_a_flow_loses_the_channel_and_hands_out_no_gap(
    server: Redis, redis: Client
) -> None:
    got: list[int] = []
    async with opened(redis, NAME, credit_bytes=1 << 16, silence_seconds=1.0) as ([sender], receiver):

        async def send() -> None:
            for i in range(1_000_000):
                await sender.send({"type": "records", "i": i}, bytes(100), counted=True)

        async def receive() -> None:
            while True:
                for _, header, _ in await receiver.receive():
                    got.append(header["i"])
                await receiver.taken(NAME)

        sending, receiving = asyncio.create_task(send()), asyncio.create_task(receive())
        async with asyncio.timeout(20):
            while len(got) < 3000:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            server.flush()
            with pytest.raises(ChannelLost):
                await sending
            with pytest.raises(ChannelLost):
                await receiving
    assert got == list(range(len(got)))


async def test_a_killed_redis_that_comes_back_empty_loses_the_channel(server: Redis, redis: Client) -> None:
    async with opened(redis, NAME) as ([sender], receiver):
        await sender.send({"type": "records"}, counted=True)
        await take(receiver, 1)
        await asyncio.to_thread(server.kill)
        sender.post({"type": "records"}, counted=True)
        receiving = asyncio.create_task(take(receiver, 1))
        await asyncio.to_thread(server.start)
        with pytest.raises(ChannelLost, match="the stream is gone at message 3"):
            await sender.flush()
        receiving.cancel()
        await asyncio.wait([receiving])


async def test_a_redis_that_stays_down_is_unavailable_with_the_channel_and_the_cause(
    server: Redis, redis: Client
) -> None:
    async with opened(redis, NAME, patience_seconds=1.0) as ([sender], receiver):
        await asyncio.to_thread(server.kill)
        sender.post({"type": "records"}, counted=True)
        with pytest.raises(
            Unavailable, match=r"sending on channel cutline:shop:7:reader-0>writer-1: .*Connect call failed"
        ):
            await sender.flush()
        with pytest.raises(Unavailable, match=r"receiving: .*Connect call failed"):
            await take(receiver, 1)


async def test_a_redis_that_starts_late_gets_its_streams(server: Redis, redis: Client) -> None:
    await asyncio.to_thread(server.kill)
    making = asyncio.create_task(create(redis, [NAME], {"epoch": 7}))
    await asyncio.sleep(0)
    await asyncio.to_thread(server.start)
    await making
    assert await redis.xlen(NAME) == 1


async def test_a_redis_that_hangs_for_a_while_is_waited_for_and_nothing_is_lost_or_doubled(
    server: Redis, redis: Client
) -> None:
    client = connect(server.url, timeout_seconds=0.2)
    try:
        async with opened(client, NAME) as ([sender], receiver):

            async def send() -> None:
                for i in range(3000):
                    await sender.send({"type": "records", "i": i}, bytes(5000), counted=True)
                await sender.flush()

            sending, taking = asyncio.create_task(send()), asyncio.create_task(take(receiver, 3000))
            for _ in range(3):
                os.kill(server.pid or 0, signal.SIGSTOP)
                await asyncio.sleep(0.5)
                os.kill(server.pid or 0, signal.SIGCONT)
                await asyncio.sleep(0.1)
            await sending
            assert [header["i"] for _, header, _ in await taking] == list(range(3000))
    finally:
        await client.aclose()


@pytest.mark.parametrize("size", [10, 200_000, FRAGMENT_BYTES + 1])
async def test_an_answer_lost_on_the_line_neither_doubles_nor_loses_a_message(
    server: Redis, redis: Client, size: int
) -> None:
    async with Line(server.port) as line:
        far = connect(line.url)
        await create(redis, [NAME], {"epoch": 7})
        sender, receiver = Sender(far, NAME, credit_bytes=64 << 20), Receiver(redis, [NAME])
        taking = asyncio.create_task(take(receiver, 60))
        for i in range(20):
            for j in range(3):
                sender.post({"type": "records", "i": 3 * i + j}, bytes(size), counted=True)
            line.swallow()
            await sender.flush()
        assert [(header["i"], len(body)) for _, header, body in await taking] == [(i, size) for i in range(60)]
        assert line.swallowed == 20
        for end in (sender, receiver, far):
            await (end.aclose() if isinstance(end, Client) else end.close())


async def test_an_answer_lost_to_the_receiver_is_read_again(server: Redis, redis: Client) -> None:
    async with Line(server.port) as line:
        far = connect(line.url)
        await create(redis, [NAME], {"epoch": 7})
        sender, receiver = Sender(redis, NAME, credit_bytes=64 << 20), Receiver(far, [NAME])
        got = []
        for i in range(20):
            sender.post({"type": "records", "i": i}, bytes(1000), counted=True)
            await sender.flush()
            line.swallow()
            got += await take(receiver, 1)
        assert [header["i"] for _, header, _ in got] == list(range(20))
        assert line.swallowed == 20
        for end in (sender, receiver, far):
            await (end.aclose() if isinstance(end, Client) else end.close())


async def test_a_deleted_stream_and_a_deleted_message_lose_the_channel(redis: Client) -> None:
    async with opened(redis, NAME, OTHER, silence_seconds=0.5) as ([gone, holed], _):
        await redis.delete(NAME)
        gone.post({"type": "records"}, counted=True)
        with pytest.raises(ChannelLost, match="reader-0>writer-1 is lost: the stream is gone at message 2"):
            await gone.flush()
        for _ in range(3):
            holed.post({"type": "records"}, counted=True)
        await holed.flush()
        await redis.xdel(OTHER, "3-0")
        receiver = Receiver(redis, [OTHER])
        with pytest.raises(ChannelLost, match="reader-1>writer-1 is lost: after message 2 came 4-0"):
            await take(receiver, 3)
        await receiver.close()


async def test_a_corrupt_entry_and_a_foreign_one_stop_the_pipeline(redis: Client) -> None:
    async with opened(redis, NAME, OTHER):
        await redis.xadd(NAME, {"h": b'{"type":"records"}', "b": b"x", "c": b"1"}, id="2-0")
        receiver = Receiver(redis, [NAME])
        with pytest.raises(ProtocolError, match=r"message 2 of channel .* is corrupt"):
            await take(receiver, 1)
        await receiver.close()
        await redis.xadd(OTHER, {"job": "42"})
        receiver = Receiver(redis, [OTHER])
        with pytest.raises(ProtocolError, match=r"has a foreign entry \d+-0 with fields 'job'"):
            await take(receiver, 1)
        await receiver.close()


async def test_a_key_of_another_kind_in_the_place_of_a_stream_stops_the_pipeline(redis: Client) -> None:
    await redis.set(NAME, "somebody's")
    with pytest.raises(ProtocolError, match="WRONGTYPE"):
        await create(redis, [NAME], {"epoch": 7})
    receiver = Receiver(redis, [NAME])
    with pytest.raises(ProtocolError, match="WRONGTYPE"):
        await receiver.receive()
    await receiver.close()


async def test_dropping_old_epochs_mutes_who_still_sends_in_them_and_leaves_the_rest(redis: Client) -> None:
    old, new, other = (stream_name(p, e, "a", "b") for p, e in (("shop", 9), ("shop", 10), ("shop2", 1)))
    await create(redis, [old, new, other], {"cause": "test"})
    zombie = Sender(redis, old, credit_bytes=1000)
    assert await drop(redis, "shop", before=10) == 1
    zombie.post({"type": "records"}, counted=True)
    with pytest.raises(ChannelLost):
        await zombie.flush()
    assert await redis.exists(old) == 0
    assert await redis.exists(new, other) == 2
    await zombie.close()


async def test_a_full_redis_is_waited_for_and_then_said_to_be_full(redis: Client) -> None:
    async with opened(redis, NAME, credit_bytes=64 << 20, patience_seconds=2.0) as ([sender], _):
        used = (await redis.info("memory"))["used_memory"]
        await redis.config_set("maxmemory", used + (1 << 20))
        try:
            sender.post({"type": "records"}, bytes(4 << 20), counted=True)
            sender.post({"type": "records"}, bytes(4 << 20), counted=True)
            with pytest.raises(Unavailable, match=r"Redis refused message \d .*give it memory"):
                await sender.flush()
        finally:
            await redis.config_set("maxmemory", 0)


async def test_a_wrong_password_is_a_fault_of_the_configuration(redis: Client, server: Redis) -> None:
    await redis.config_set("requirepass", "secret")
    try:
        for url in (server.url, server.url.replace("//", "//:wrong@")):
            client = connect(url)
            with pytest.raises(ConfigError, match="CUTLINE_REDIS_URL"):
                await create(client, [NAME], {"epoch": 7})
            await client.aclose()
        client = connect(server.url.replace("//", "//:secret@"))
        await create(client, [NAME], {"epoch": 7})
        await client.aclose()
    finally:
        await redis.config_set("requirepass", "")


def test_an_address_that_is_none_is_a_fault_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="CUTLINE_REDIS_URL"):
        connect("http://127.0.0.1:6379")


async def test_our_client_asks_nothing_twice_by_itself(server: Redis, redis: Client) -> None:
    async with Line(server.port) as line:
        client = connect(line.url)
        await client.ping()
        line.swallow()
        with pytest.raises(Unavailable):
            async with answered("add"):
                await client.rpush("list", "x")
        assert await redis.llen("list") == 1
        await client.aclose()
