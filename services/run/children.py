"""The processes of this machine, as a supervisor starts them for `cutline run` and `cutline up`: Redis, services."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutline.common import programs
from cutline.common.causes import Cause
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError
from cutline.services.run.supervisor import Child, free_port
from cutline.services.run.workdir import write_redis_settings

_PROJECT = str(Path(__file__).resolve().parents[2])
MODULES: Mapping[str, str] = {
    "enumerator": "cutline.services.enumerator",
    "reader": "cutline.services.reader",
    "writer": "cutline.services.writer",
    "spark-writer": "cutline.spark_writer",
    "control": "cutline.services.control",
}
"""The module of each role: `python -m` starts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many processes of each role there are; of control services one."""

    enumerators: int = 2
    readers: int = 2
    writers: int = 2
    spark_writers: int = 1

    def by_role(self) -> dict[str, int]:
        """The number of each role of MODULES."""
        found = (self.enumerators, self.readers, self.writers, self.spark_writers, 1)
        return dict(zip(MODULES, found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where Redis and the control service are; `redis`: our own Redis, which is to be started first."""

    redis_url: str
    api_url: str
    environ: Mapping[str, str]
    redis: tuple[Child, ...] = ()


def missing_programs(environment: Environment) -> list[Cause]:
    """A cause for each program that this machine lacks: a Java for Spark, and a Redis unless a URL names one."""
    faults: list[Cause] = []
    for find in (programs.java, programs.redis) if environment.redis_url is None else (programs.java,):
        try:
            find()
        except ConfigError as error:
            faults += error.faults
    return faults


def command_of(role: str) -> list[str]:
    """The command that starts a service."""
    # -P: no module in the user's current folder may be taken for ours, or for one that we import.
    return [sys.executable, "-P", "-m", MODULES[role]]


def service_children(counts: Counts, workdir: Path) -> list[Child]:
    """The services, in the order in which they are started; each logs into a file of its own."""
    found = []
    for role, count in counts.by_role().items():
        several = role in ("enumerator", "reader", "writer") or count > 1
        for index in range(count):
            name = f"{role}-{index}" if several else role
            command = [*command_of(role), *(["--embedded"] if role == "control" else [])]
            found.append(Child(name=name, command=command, log=workdir / "logs" / f"{name}.log"))
    return found


def addresses(environment: Environment, workdir: Path, *, store_url: str, readers: int, writers: int) -> Addresses:
    """The environment of the services, with a Redis of our own unless the environment names one, and with a free port
    for the control service. Writes the settings of that Redis."""
    redis_url, own = environment.redis_url, tuple[Child, ...]()
    if redis_url is None:
        port, password = free_port(), secrets.token_hex(16)
        settings = write_redis_settings(workdir, port, password, environment.redis_memory_bytes)
        log = workdir / "logs" / "redis.log"
        own = (Child(name="Redis", command=[str(programs.redis().path), str(settings)], log=log),)
        redis_url = f"redis://:{password}@127.0.0.1:{port}/0"
    api_port = free_port(environment.api_port)
    environ = os.environ | {
        "CUTLINE_REDIS_URL": redis_url,
        "CUTLINE_STORE_URL": store_url,
        "CUTLINE_API_HOST": environment.api_host,
        "CUTLINE_API_PORT": str(api_port),
        "CUTLINE_READERS": str(readers),
        "CUTLINE_WRITERS": str(writers),
        "PYTHONPATH": os.pathsep.join(filter(None, (_PROJECT, os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(workdir / "tmp"),
    }
    scheme = "http" if environment.api_cert is None else "https"
    api_url = f"{scheme}://{environment.api_host}:{api_port}"
    return Addresses(redis_url=redis_url, api_url=api_url, environ=environ, redis=own)
