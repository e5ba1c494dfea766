"""All use of redis-py: a client without retries, and a connection that returns Redis's exact answers.

redis-py 8 repeats a command up to ten times after a lost answer. A channel numbers its messages, so only the channel
may decide to repeat one: `connect` turns retries off, and `Wire` works below the client's command layer.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, NoRoom, Unavailable, redacted

TIMEOUT_SECONDS = 5.0
_READ_BYTES = 1 << 20
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SENTINEL = re.compile(
    r"(?:(?P<username>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<hosts>[^:@/,]+:\d{1,5}(?:,[^:@/,]+:\d{1,5})*)/(?P<name>[^/?#]+)(?:/(?P<db>\d+))?"
)

Command = tuple[bytes | int | memoryview, ...]


def connect(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Redis:
    """Make a client for `url` that never repeats a command; it opens no connection yet.

    `url` is `redis://` or `rediss://` (TLS, by the environment's CUTLINE_REDIS_CA, _CERT and _KEY; the server's
    certificate must be for its host name), or for Sentinel `redis+sentinel://user:password@host:port,host:port/name/0`
    (`rediss+sentinel://`: Redis and the Sentinels speak TLS): each new connection goes to the master of that name then.

    Every part of Cutline that uses Redis takes such a client. Raises ConfigError for a malformed address.
    """
    environment = Environment.read()
    settings: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "socket_read_size": _READ_BYTES,
        "health_check_interval": 0,
        "protocol": 2,
        "driver_info": None,  # no CLIENT SETINFO, which needs a right that only newer versions can grant by itself
        "max_connections": 1 << 16,
    }
    tls: dict[str, Any] = {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": environment.redis_ca,
        "ssl_certfile": environment.redis_cert,
        "ssl_keyfile": environment.redis_key,
        # Python 3.13's default would refuse what `openssl x509 -req` makes, which 3.11 takes; tls.py of the source too
        "ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT],
    }
    scheme, _, rest = url.partition("://")
    if scheme.startswith("rediss"):
        for setting in ("ca", "cert", "key"):
            file = getattr(environment, f"redis_{setting}")
            if file is not None and not os.access(file, os.R_OK):
                name = f"CUTLINE_REDIS_{setting.upper()}"
                raise ConfigError(f"the file {file}, named by {name}, can't be read", "correct the path")
    try:
        if scheme not in _SENTINEL_SCHEMES:
            return Redis.from_url(url, **settings, **(tls if scheme == "rediss" else {}))
        found = _SENTINEL.fullmatch(rest)
        if found is None:
            raise ValueError(scheme)
        hosts = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in found["hosts"].split(","))]
    except ValueError:
        # redis-py's message may hold a part of the password
        raise ConfigError(
            f"the Redis address {redacted(url)!r} is malformed",
            "write CUTLINE_REDIS_URL as redis://host:port/0, or redis+sentinel://host:port,host:port/master-name/0,"
            " with %2F for a / in a password",
        ) from None
    protected: dict[str, Any] = {"ssl": True, **tls} if scheme.startswith("rediss") else {}
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        hosts,
        sentinel_kwargs={
            "socket_timeout": timeout_seconds,
            "socket_connect_timeout": timeout_seconds,
            "password": environment.redis_sentinel_password,
            **protected,
        },
    )
    account = {name: unquote(found[name]) for name in ("username", "password") if found[name]}
    client: Redis = sentinel.master_for(found["name"], db=int(found["db"] or 0), **account, **settings, **protected)
    return client


def place(url: str) -> str:
    """The hosts and ports of a Redis address, for messages."""
    return url.partition("://")[2].rpartition("@")[2].partition("/")[0]


@asynccontextmanager
async def answered(what: str) -> AsyncIterator[None]:
    """Turn redis-py's errors inside into Cutline's; `what` describes the request for the message ("list the epochs").

    Raises ConfigError when Redis refuses the password or the command, NoRoom when it is full, Unavailable for all
    other errors.
    """
    try:
        yield
        _heed_cancel()
    except (AuthenticationError, AuthorizationError) as error:
        raise ConfigError(
            f"Redis refused to {what} ({error})", "put the right user and password into CUTLINE_REDIS_URL"
        ) from error
    except OutOfMemoryError as error:
        raise NoRoom(
            f"Redis has no room to {what} ({error})", "give it more memory, or remove other applications' keys"
        ) from error
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable(f"Redis did not answer a request to {what}: {_words(error)}", _help(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that Redis uses, and its limit (`maxmemory`), None without one."""

    used_bytes: int
    limit_bytes: int | None


async def memory(redis: Redis) -> Memory | None:
    """Redis's memory; None without the right to ask. Raises Unavailable."""
    async with answered("report its memory"):
        try:
            info = await redis.info("memory")
            return Memory(used_bytes=int(info["used_memory"]), limit_bytes=int(info["maxmemory"]) or None)
        except (ResponseError, KeyError, AuthorizationError):
            return None


def _heed_cancel() -> None:
    """Raise CancelledError if this task was cancelled and the cancellation was swallowed.

    redis-py sends with `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that arrives just after the
    bytes were sent. An ending epoch waits for its tasks: a task that missed its cancellation would block it forever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Wire:
    """One connection that sends commands in order and returns one answer for each.

    One task at a time may use it. Any failure closes the connection, so that a late answer can't be mistaken for
    another command's; the next `exchange` opens a new connection.
    """

    def __init__(self, redis: Redis) -> None:
        """Take a client made by `connect`, with its time-out; the first `exchange` opens the connection."""
        self._pool: Any = redis.connection_pool
        self._timeout_seconds: float = self._pool.connection_kwargs["socket_timeout"]
        self._connection: Any = None

    async def exchange(self, commands: Sequence[Command], *, wait_seconds: float = 0.0) -> list[Any]:
        """Send all commands at once (no MULTI) and return their answers in order, bytes undecoded.

        Redis's error for a command is returned in the place of its answer, as a `ResponseError`; it is not raised.
        `wait_seconds` is how long Redis itself may block. Raises Unavailable when it is unknown whether Redis ran the
        commands (the caller repeats them, and must allow for commands that ran), ConfigError when the password is
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
                f"Redis refused the connection ({error})", "put the right user and password into CUTLINE_REDIS_URL"
            ) from error
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise Unavailable(f"Redis did not answer: {_words(error)}", _help(error)) from error
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
    """Write commands in Redis's protocol (arrays of bulk strings); redis-py's own encoder takes three times as long."""
    pieces: list[bytes | memoryview] = []
    for command in commands:
        pieces.append(b"*%d\r\n" % len(command))
        for word in command:
            data = b"%d" % word if isinstance(word, int) else word
            pieces += (b"$%d\r\n" % len(data), data, b"\r\n")
    return pieces


def _help(error: BaseException) -> str:
    """What to do about an error of the connection; "" where only waiting helps."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "set CUTLINE_REDIS_CA to the file of its CA, and connect by a name in its certificate"
    return ""


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not isinstance(error, RedisConnectionError):
        return str(error) or "time-out"
    return str(error) or type(error).__name__
