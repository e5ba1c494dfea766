"""A cancellation that redis-py swallows while it sends (`asyncio.wait_for` before Python 3.12) still ends the task; a
malformed address is reported without its password."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.errors import ConfigError
from cutline.common.mesh.redis import Wire, answered, connect, place


class SwallowingConnection:
    """Sends as redis-py does when the bytes go out at the moment of the cancel: as if nothing had happened."""

    def __init__(self) -> None:
        self.sending = asyncio.Event()

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self.sending.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async def read_response(self, **_: Any) -> bytes:
        return b"OK"

    async def disconnect(self, nowait: bool = False) -> None:
        pass


class Pool:
    def __init__(self) -> None:
        self.connection_kwargs = {"socket_timeout": 60.0}
        self.connection = SwallowingConnection()

    async def get_connection(self) -> SwallowingConnection:
        return self.connection

    async def release(self, connection: SwallowingConnection) -> None:
        pass


async def cancelled_while_sending(work: Any, connection: SwallowingConnection) -> None:
    task = asyncio.create_task(work)
    await connection.sending.wait()
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_pump_that_is_cancelled_while_it_sends_ends() -> None:
    pool = Pool()
    wire = Wire(SimpleNamespace(connection_pool=pool))  # type: ignore[arg-type]

    async def pump() -> None:
        while True:
            await wire.exchange([(b"PING",)])

    await cancelled_while_sending(pump(), pool.connection)


async def test_a_status_loop_that_is_cancelled_while_it_sends_ends() -> None:
    connection = SwallowingConnection()

    async def show() -> None:
        while True:
            async with answered("write a status"):
                await connection.send_packed_command(b"HSET")

    await cancelled_while_sending(show(), connection)


async def test_an_exchange_that_nobody_cancelled_answers() -> None:
    pool = Pool()

    async def sent(command: Any, check_health: bool = True) -> None:
        return None

    pool.connection.send_packed_command = sent  # type: ignore[method-assign]
    wire = Wire(SimpleNamespace(connection_pool=pool))  # type: ignore[arg-type]
    assert await wire.exchange([(b"PING",), (b"PING",)]) == [b"OK", b"OK"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:hush@host:port/0",
        "redis://:hu/sh@host:6379/0",
        "foo://me:hush@host/0",
        "redis://h:x/0?password=hush",
        "redis+sentinel://me:hush@host/shop/0",
        "redis+sentinel://me:hu/sh@host:26379/shop/0",
        "redis+sentinel://me:hush@host:26379",
    ],
)
def test_an_address_that_cant_be_read_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="is malformed") as caught:
        connect(url)
    assert "hu" not in str(caught.value)
    assert "://" in str(caught.value)
    assert caught.value.__cause__ is None


async def test_an_address_of_sentinels_names_them_all_the_master_and_its_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUTLINE_REDIS_SENTINEL_PASSWORD", "their own")
    client = connect("redis+sentinel://me:hu%2Fsh@s1:26379,s2:26380/shop/3")
    pool: Any = client.connection_pool
    known = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"], each["password"]) for each in known] == [
        ("s1", 26379, "their own"),
        ("s2", 26380, "their own"),
    ]
    given = pool.connection_kwargs
    assert (pool.service_name, given["username"], given["password"], given["db"]) == ("shop", "me", "hu/sh", 3)
    assert place("rediss+sentinel://me:hush@s1:26379,s2:26380/shop/3") == "s1:26379,s2:26380"
    await client.aclose()


def test_a_file_for_tls_that_cant_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLINE_REDIS_CA", "/nowhere/ca.pem")
    connect("redis://host:6379/0")
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem, named by CUTLINE_REDIS_CA, can't be read"):
        connect("rediss://host:6379/0")
