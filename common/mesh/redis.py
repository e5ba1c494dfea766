"""The one seam to redis-py: a client whose retries are off, and a connection that says exactly what was answered.

redis-py 8 repeats a command up to ten times after a lost answer. A channel that numbers its messages must be the only
one to decide whether to ask again, so `connect` turns that off and `Wire` goes below the client's command layer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from cutline.common.errors import ConfigError, NoRoom, Unavailable, redacted

TIMEOUT_SECONDS = 5.0
_READ_BYTES = 1 << 20

Command = tuple[bytes | int | memoryview, ...]


def connect(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Redis:
    """Make a client for `url` that never repeats a command; no connection is opened yet.

    Every part of Cutline that talks to Redis takes a client made here. Raises ConfigError for an address that can't
    be read.
    """
    try:
        return Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            socket_read_size=_READ_BYTES,
            health_check_interval=0,
            protocol=2,
            max_connections=1 << 16,
        )
    except ValueError:
        # what redis-py says of it may be a piece of the password
        raise ConfigError(
            f"the Redis address {redacted(url)!r} can't be read; write CUTLINE_REDIS_URL as redis://host:port/0, with"
            " %2F for a / in a password"
        ) from None


@asynccontextmanager
async def answered(what: str) -> AsyncIterator[None]:
    """Turn what redis-py raises inside into an error of Cutline's tree; `what` says in a few words what was asked.

    Raises ConfigError when Redis refuses the password or the command, NoRoom when it is full, Unavailable for
    everything else.
    """
    try:
        yield
        _heed_cancel()
    except (AuthenticationError, AuthorizationError) as error:
        raise ConfigError(
            f"Redis refused to {what} ({error}); put the right user and password into CUTLINE_REDIS_URL"
        ) from error
    except OutOfMemoryError as error:
        raise NoRoom(
            f"Redis has no room to {what} ({error}); give it more memory, or remove what others left"
        ) from error
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable(f"Redis did not answer when asked to {what}: {_words(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What Redis uses, and its limit (`maxmemory`): None if it has none."""

    used_bytes: int
    limit_bytes: int | None


async def memory(redis: Redis) -> Memory | None:
    """Redis's memory; None if we may not ask. Raises Unavailable if it is away."""
    async with answered("tell its memory"):
        try:
            told = await redis.info("memory")
            return Memory(used_bytes=int(told["used_memory"]), limit_bytes=int(told["maxmemory"]) or None)
        except (ResponseError, KeyError, AuthorizationError):
            return None


def _heed_cancel() -> None:
    """Raise CancelledError if this task was cancelled and nobody has heard it.

    redis-py sends by `asyncio.wait_for`, which before Python 3.12 swallows a cancel that comes just as the bytes are
    out. An epoch that ends waits for its tasks: one that missed its cancel would hold it for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Wire:
    """One connection that carries commands in order and hands back one answer a command.

    Not for two tasks at a time. After any failure the connection is closed, so that a late answer can't be taken for
    another command's; the next `exchange` opens a new one.
    """

    def __init__(self, redis: Redis) -> None:
        """Take a client made by `connect`, whose time-out holds; the connection is opened by the first `exchange`."""
        self._pool: Any = redis.connection_pool
        self._timeout_seconds: float = self._pool.connection_kwargs["socket_timeout"]
        self._connection: Any = None

    async def exchange(self, commands: Sequence[Command], *, wait_seconds: float = 0.0) -> list[Any]:
        """Send all commands at once (no MULTI) and return their answers in order, bytes undecoded.

        An error that Redis answers to one command stands in its place as a `ResponseError`; it is not raised.
        `wait_seconds` is how long Redis itself may block. Raises Unavailable when it is not known what Redis did (the
        caller asks again and must cope with a command that was carried out), ConfigError when the password is
        refused.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds + wait_seconds):
                connection = self._connection
                if connection is None:
                    connection = self._connection = await self._pool.get_connection()
                await connection.send_packed_command(_packed(commands), check_health=False)
                answers: list[Any] = []
                for _ in commands:
                    try:
                        answers.append(await connection.read_response(disable_decoding=True, timeout=math.inf))
                    except ResponseError as error:
                        answers.append(error)
            _heed_cancel()
            return answers
        except (AuthenticationError, AuthorizationError) as error:
            await self.close()
            raise ConfigError(
                f"Redis refused the connection ({error}); put the right user and password into CUTLINE_REDIS_URL"
            ) from error
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise Unavailable(f"Redis did not answer: {_words(error)}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection; the next `exchange` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.disconnect(nowait=True)
            except (RedisError, OSError, TimeoutError):
                pass
            finally:
                await self._pool.release(connection)


def _packed(commands: Sequence[Command]) -> list[bytes | memoryview]:
    """Write commands in Redis's protocol (arrays of bulk strings); redis-py's own way takes three times as long."""
    pieces: list[bytes | memoryview] = []
    for command in commands:
        pieces.append(b"*%d\r\n" % len(command))
        for word in command:
            data = b"%d" % word if isinstance(word, int) else word
            pieces += (b"$%d\r\n" % len(data), data, b"\r\n")
    return pieces


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not isinstance(error, RedisConnectionError):
        return str(error) or "time-out"
    return str(error) or type(error).__name__
