"""`cutline doctor`: what this machine has and lacks for Cutline, and whether a pipeline's source and store answer.

Each look is on its own: one that fails hides no other. Nothing is changed, but for a probe file that is written into
the store and removed.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cutline.common import programs
from cutline.common.config.environment import Environment, cache_folder
from cutline.common.config.pipeline import PipelineConfig, load
from cutline.common.errors import ConfigError, CutlineError, redacted
from cutline.common.mesh.redis import answered, connect
from cutline.common.store.store import Store
from cutline.services.run import run as standalone
from cutline.services.sources.mysql import server as mysql
from cutline.services.sources.mysql.binlog import frames as binlog_events
from cutline.services.sources.mysql.decode import rows
from cutline.spark_writer import jars

OPEN_FILES = 4096
MEMORY_BYTES = 2 << 30
"""What `cutline run` needs with a small pipeline: Spark's JVM up to 1.5 GiB of heap, and a process a service."""
DISK_BYTES = 1 << 30
CLOCK_SECONDS = 60
"""Iceberg refuses commits when the clock was set back by more."""
_BUILT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one look: what was found, and, if that will not do, the remedy."""

    name: str
    found: str
    remedy: str | None = None

    @property
    def ok(self) -> bool:
        """Whether Cutline can work with it."""
        return self.remedy is None


def examine(pipeline: Path | None, environment: Environment) -> list[Finding]:
    """Look at everything, at a pipeline's source and places too if its file is given."""
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("Python", _python),
        ("compiled modules", _compiled),
        ("Java", _java),
        ("Redis", partial(_redis, environment)),
        ("Spark's jars", _jars),
        ("open files", _open_files),
        ("memory", _memory),
        ("disk", partial(_disk, "disk", cache_folder())),
        ("clock", _clock),
    ]
    findings = [_looked(name, look) for name, look in looks]
    if pipeline is not None:
        findings += _of_pipeline(pipeline, environment)
    return findings


def _looked(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except ConfigError as error:
        return Finding(name=name, found="no", remedy="; ".join(error.faults))
    except CutlineError as error:
        return Finding(name=name, found="no answer", remedy=str(error))


def _python() -> Finding:
    return Finding(name="Python", found=f"{platform.python_version()} ({sys.executable})")


def _compiled() -> Finding:
    if rows.COMPILED and binlog_events.COMPILED:
        return Finding(name="compiled modules", found="there")
    return Finding(
        name="compiled modules",
        found="interpreted, many times slower",
        remedy="install a wheel of Cutline for this Python, or a C compiler and Python's headers before `pip install`",
    )


def _java() -> Finding:
    java = programs.java()
    return Finding(name="Java", found=f"{java.version} ({java.where})")


def _redis(environment: Environment) -> Finding:
    if environment.redis_url is None:
        redis = programs.redis()
        return Finding(name="Redis", found=f"{redis.version} ({redis.where})")
    version = asyncio.run(_redis_version(environment.redis_url))
    return Finding(name="Redis", found=f"{version} at {redacted(environment.redis_url)}")


async def _redis_version(url: str) -> str:
    redis = connect(url)
    try:
        async with answered("say its version"):
            return str((await redis.info("server"))["redis_version"])
    finally:
        await redis.aclose()


def _jars() -> Finding:
    folder = jars.folder()
    if not (lacking := jars.missing(folder)):
        return Finding(name="Spark's jars", found=f"there ({folder})")
    return Finding(
        name="Spark's jars",
        found=f"no {' and no '.join(jar.file for jar in lacking)} in {folder}, or damaged",
        remedy="run `cutline setup`, or leave it to the first `cutline run`",
    )


def _open_files() -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = most == resource.RLIM_INFINITY or most >= OPEN_FILES
    return Finding(
        name="open files",
        found=f"up to {'any number' if most == resource.RLIM_INFINITY else most} a process",
        remedy=None if enough else f"raise the hard limit to {OPEN_FILES} or more (`ulimit -Hn`, or LimitNOFILE=)",
    )


def _memory() -> Finding:
    free = _available_bytes()
    if free is None:
        return Finding(name="memory", found="not known on this system")
    return Finding(
        name="memory",
        found=f"{free >> 20} MiB available",
        remedy=None if free >= MEMORY_BYTES else f"end other programs: {MEMORY_BYTES >> 20} MiB are needed",
    )


def _available_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return None


def _disk(name: str, folder: Path) -> Finding:
    """Look at the folder, or where it will be made."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    remedy = None
    if not os.access(there, os.W_OK | os.X_OK):
        remedy = f"give this user the right to write {there}, or choose another folder"
    elif free < DISK_BYTES:
        remedy = f"free some of that disk, or choose another: {DISK_BYTES >> 20} MiB are the least that is of use"
    return Finding(name=name, found=f"{free >> 20} MiB free in {folder}", remedy=remedy)


def _clock() -> Finding:
    now = datetime.now(UTC)
    return Finding(
        name="clock",
        found=f"{now:%Y-%m-%d %H:%M:%S} UTC",
        remedy=None if now > _BUILT else "set the clock: Iceberg orders its snapshots by it",
    )


def _of_pipeline(file: Path, environment: Environment) -> Iterator[Finding]:
    try:
        config = load(file)
    except ConfigError as error:
        yield Finding(name="pipeline", found=str(file), remedy="; ".join(error.faults))
        return
    yield Finding(name="pipeline", found=f"{config.name} ({file})")
    yield _looked("source", partial(_source, config))
    yield _looked("store", partial(_store, standalone.default_workdir(file, config), environment))
    if "://" not in config.sink.warehouse:
        yield _disk("warehouse", Path(config.sink.warehouse))


def _source(config: PipelineConfig) -> Finding:
    source = mysql.Source.of(config.source)
    mysql.preflight(config)
    with closing(mysql.connect(source)) as connection:
        server = mysql.server(connection)
        ahead = mysql.clock(connection) / 1_000_000 - time.time()
    return Finding(
        name="source",
        found=f"{server.flavour} {'.'.join(map(str, server.version))} at {source}",
        remedy=None
        if abs(ahead) <= CLOCK_SECONDS
        else f"set both clocks by a time server: the source's is {ahead:+.0f} s off this machine's",
    )


def _store(workdir: Path, environment: Environment) -> Finding:
    if environment.store_url is None:
        return _disk("store", workdir / "store")
    Store(environment.store_url).prepare()
    return Finding(name="store", found=redacted(environment.store_url))


def show(findings: list[Finding]) -> None:
    """Print one line a finding, and the remedy below it where one is needed."""
    table = Table.grid(padding=(0, 2))
    for one in findings:
        table.add_row("[green]ok[/]" if one.ok else "[red]no[/]", one.name, one.found)
        if one.remedy is not None:
            table.add_row("", "", one.remedy)
    Console(soft_wrap=True).print(table)
