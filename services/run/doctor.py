"""`cutline doctor`: what this machine has and lacks for Cutline, and whether a pipeline's source and store answer.

The checks are independent, so a failed one hides no other. Nothing is changed, except that a probe file is written into
the store, and into a warehouse on object storage, and removed.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cutline.common import programs, threads
from cutline.common.config.environment import Environment, cache_folder
from cutline.common.config.pipeline import PipelineConfig, load
from cutline.common.config.places import in_file
from cutline.common.config.source import Address
from cutline.common.errors import ConfigError, CutlineError, Unavailable, redacted
from cutline.common.mesh.redis import answered
from cutline.common.mesh.redis import connect as connect_redis
from cutline.common.store.store import Store
from cutline.services.run.analysis import has_rules, refusals
from cutline.services.run.figures import number
from cutline.services.run.layout import wrapped
from cutline.services.run.preflight import fixed, live_changes, queued_changes
from cutline.services.run.workdir import default_workdir
from cutline.services.sources.mysql import requirements
from cutline.services.sources.mysql.binlog import scanner
from cutline.services.sources.mysql.binlog_age import if_short, retention
from cutline.services.sources.mysql.catalogue import list_tables
from cutline.services.sources.mysql.connection import address, encryption
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.preflight import check_source, described, quarantine_causes
from cutline.services.sources.mysql.server import clock, identify, oldest_transaction_seconds
from cutline.spark_writer import jars
from cutline.spark_writer.sinks.iceberg import catalogue

OPEN_FILES = 4096
MEMORY_BYTES = 2 << 30
"""Memory that `cutline run` needs for a small pipeline: Spark's JVM with up to 1.5 GiB of heap, and the services."""
DISK_BYTES = 1 << 30
CLOCK_SECONDS = 60
"""Iceberg refuses commits when the clock was set back by more."""
TRANSACTION_SECONDS = 600
"""A SELECT of a chunk ends long before, by its time limit."""
NO_ANSWER = "no answer"
_BUILT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check: what was found, and the remedy if that is not good enough. `hinders`: Cutline can't
    work before that; it can without a table that will be quarantined."""

    name: str
    found: str
    remedy: str | None = None
    hinders: bool = True

    @property
    def ok(self) -> bool:
        """Whether Cutline can work with it."""
        return self.remedy is None or not self.hinders


def examine(pipeline: Path | None, environment: Environment) -> list[Finding]:
    """Run every check; with a pipeline file also those of its source, store and warehouse."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("Python", _python),
        ("compiled modules", _compiled),
        ("Java", _java),
        ("Redis", partial(_redis, environment)),
        ("Spark's jars", partial(_jars, ())),
        ("open files", _open_files),
        ("memory", _memory),
        ("disk", partial(_disk, "disk", cache_folder())),
        ("clock", _clock),
    ]
    findings = [_outcome(name, check) for name, check in checks]
    if pipeline is not None:
        findings += _of_pipeline(pipeline, environment)
    return findings


def _outcome(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except ConfigError as error:
        return Finding(name=name, found="not as needed", remedy="; ".join(map(str, error.faults)))
    except CutlineError as error:
        return Finding(name=name, found=NO_ANSWER, remedy=str(error))


def _python() -> Finding:
    return Finding(name="Python", found=f"{platform.python_version()} ({sys.executable})")


def _compiled() -> Finding:
    if scanner.COMPILED:  # all are compiled or none is
        return Finding(name="compiled modules", found="present")
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
    version = threads.run(_redis_version(environment.redis_url))
    return Finding(name="Redis", found=f"{version} at {redacted(environment.redis_url)}")


async def _redis_version(url: str) -> str:
    redis = connect_redis(url)
    try:
        async with answered("say its version"):
            return str((await redis.info("server"))["redis_version"])
    finally:
        await redis.aclose()


def _jars(extras: Collection[str]) -> Finding:
    name, folder = "Spark's jars", jars.folder()
    known = [extra for extra in sorted(extras) if extra in jars.all_extras()]
    if known:
        name = f"{name} for {' and '.join(known)}"
    if not (lacking := jars.missing(folder, extras)):
        return Finding(name=name, found=f"present ({folder})")
    return Finding(
        name=name,
        found=f"{' and '.join(jar.file for jar in lacking)} missing or damaged in {folder}",
        remedy=f"run `cutline setup{''.join(f' --with {extra}' for extra in known)}`, or let the first"
        " `cutline run` fetch them",
    )


def _open_files() -> Finding:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = limit == resource.RLIM_INFINITY or limit >= OPEN_FILES
    return Finding(
        name="open files",
        found=f"up to {'any number' if limit == resource.RLIM_INFINITY else limit} a process",
        remedy=None if enough else f"raise the hard limit to {OPEN_FILES} or more (`ulimit -Hn`, or LimitNOFILE=)",
    )


def _memory() -> Finding:
    free = _available_bytes()
    if free is None:
        return Finding(name="memory", found="unknown on this system")
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
    """Check the folder, or the existing one in which it will be made."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    remedy = None
    if not os.access(existing, os.W_OK | os.X_OK):
        remedy = f"give this user the right to write {existing}, or choose another folder"
    elif free < DISK_BYTES:
        remedy = f"free space on that disk, or choose another: at least {DISK_BYTES >> 20} MiB are needed"
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
        yield Finding(name="pipeline", found=str(file), remedy="; ".join(map(str, error.faults)))
        return
    yield Finding(name="pipeline", found=f"{config.name} ({file})")
    source = _outcome("source", partial(_source, config))
    yield source
    if source.found != NO_ANSWER:
        with suppress(CutlineError):  # the finding above says what is wrong
            yield from _tables(config)
            yield from _rules(file, config)
    if len(config.source.addresses) > 1:
        for where in config.source.addresses:
            yield _outcome(f"source {where}", partial(_other_host, config, where))
    workdir, sink = default_workdir(file, config), config.definition()["sink"]
    yield _outcome("store", partial(_store, workdir, environment))
    yield _outcome("definition", partial(_definition, config, environment.store_url or f"file://{workdir / 'store'}"))
    yield _outcome("warehouse", partial(_warehouse, sink, environment.store_url or f"file://{workdir / 'store'}"))
    if sink["catalog"]:
        yield _outcome("catalogue", partial(_catalogue, sink))
    if extras := catalogue.extras(sink):
        yield _outcome("Spark's jars", partial(_jars, extras))


def _definition(config: PipelineConfig, store_url: str) -> Finding:
    """What `cutline run` would find in the store under the file's name."""
    found = Store(store_url).pipeline(config.name)
    if not found.exists():
        return Finding(name="definition", found="none in the store yet")
    text = f"version {found.definition_version()} in the store"
    changes, queued = live_changes(found, config), queued_changes(found)
    if changes:
        way = "`cutline run` takes the stored one, `cutline run --replace` the file's"
        text += f", which differs from the file ({', '.join(changes)}): {way}"
    if queued:
        text += f"; waiting for an enumerator: {', '.join(f'command {c.n} ({c.kind}, by {c.by})' for c in queued)}"
    remedy = "restore these settings in the file, or give the pipeline another name" if fixed(changes) else None
    return Finding(name="definition", found=text, remedy=remedy)


def _warehouse(sink: Mapping[str, Any], store_url: str) -> Finding:
    warehouse = str(sink["warehouse"])
    if faults := catalogue.faults(sink, store_url):
        return Finding(name="warehouse", found=redacted(warehouse), remedy="; ".join(map(str, faults)))
    if "://" not in warehouse:
        return _disk("warehouse", Path(warehouse))
    catalogue.probe(sink)
    return Finding(name="warehouse", found=redacted(warehouse))


def _catalogue(sink: Mapping[str, Any]) -> Finding:
    catalogue.check_answers(sink)
    kind = sink["catalog"].get("type") or sink["catalog"].get("catalog-impl", "unknown")
    return Finding(name="catalogue", found=f"{kind} {redacted(sink['catalog'].get('uri', ''))}".strip())


def _source(config: PipelineConfig) -> Finding:
    check_source(config, folds_case=catalogue.folds_case(config.definition()["sink"]))
    with closing(Hosts(config.source).connect()) as connection:
        server = identify(connection)
        ahead = clock(connection) / 1_000_000 - time.time()
        where, protected = address(connection), encryption(connection, config.source.tls)
        kept = retention(connection)
        oldest = oldest_transaction_seconds(connection)
    remedies = []
    if abs(ahead) > CLOCK_SECONDS:
        remedies.append(
            f"set both clocks by a time server: the source's clock differs from this machine's by {ahead:+.0f} s"
        )
    if short := if_short(kept):
        remedies.append(f"the server keeps its binlog for {kept:.0f} s after the last write; {short}")
    if oldest > TRANSACTION_SECONDS:
        remedies.append(
            f"a transaction of {where} has been open for {oldest:.0f} s, and ALTERs wait for it: find its session in"
            " SHOW PROCESSLIST and end it, unless it reads a large table without a key"
        )
    held = f", oldest transaction of its user {oldest:.0f} s" if oldest >= 1 else ""
    return Finding(
        name="source",
        found=f"{requirements.name(server)} at {where}, {protected}{held}",
        remedy="; ".join(remedies) or None,
    )


def _tables(config: PipelineConfig) -> Iterator[Finding]:
    """The tables that the pipeline selects, and a finding for each that will be quarantined."""
    with closing(Hosts(config.source).connect()) as connection:
        selected = config.select(list_tables(connection))
        found = described(connection, identify(connection), config, selected)
    held = {table: causes for table, each in found.items() if (causes := quarantine_causes(each))}
    text = f"{number(len(selected))} match {', '.join(config.tables)}"
    yield Finding(name="tables", found=f"{text}; {number(len(held))} will be quarantined" if held else text)
    for table, causes in held.items():
        sentence, remedy = ("; ".join(filter(None, dict.fromkeys(each))) for each in (
            (cause.sentence for cause in causes), (cause.remedy for cause in causes),
        ))  # fmt: skip
        remedy = remedy or "leave it out of tables"
        yield Finding(name=f"table {table}", found=f"will be quarantined: {sentence}", remedy=remedy, hinders=False)


def _rules(file: Path, config: PipelineConfig) -> Iterator[Finding]:
    """A finding for each rule or derived table that Spark refuses; Spark is started only if there is any."""
    if not has_rules(config):
        return
    try:
        found = refusals(config)
    except (ConfigError, Unavailable) as error:
        yield Finding(name="rules", found=f"not analysed: {error.cause.sentence}", remedy=error.cause.remedy or None,
                      hinders=False)  # fmt: skip
        return
    if not found:
        yield Finding(name="rules", found="Spark takes the rules and derived tables")
    for each in found:
        text = f"refused at {in_file(file, each.place)}: {each.cause.sentence}"
        yield Finding(name=each.place, found=text, remedy=each.cause.remedy or "correct it")


def _other_host(config: PipelineConfig, where: Address) -> Finding:
    """Whether one of several servers could take over now."""
    with closing(Hosts(config.source.at(where)).connect()) as connection:
        server = identify(connection)
        fault = requirements.takeover_fault(connection, server, ())
        faults = requirements.setting_faults(connection, server) or ([fault] if fault else [])
        protected = encryption(connection, config.source.tls)
    return Finding(
        name=f"source {where}",
        found=f"{requirements.name(server)}, {protected}",
        remedy="; ".join(map(str, faults)) or None,
    )


def _store(workdir: Path, environment: Environment) -> Finding:
    if environment.store_url is None:
        return _disk("store", workdir / "store")
    store = Store(environment.store_url)
    store.check()
    store.prepare()
    return Finding(name="store", found=redacted(environment.store_url))


def show(findings: list[Finding], console: Console) -> None:
    """Print what was found, and below it the remedy: wrapped in a terminal, a line each elsewhere."""
    width, names = console.width if console.is_terminal else None, max(len(finding.name) for finding in findings)
    for finding in findings:
        mark, style = ("FAULT", "red") if not finding.ok else ("note", "yellow") if finding.remedy else ("ok", "green")
        text = Text.assemble((mark.ljust(5), style), f"  {finding.name.ljust(names)}  {finding.found}")
        lines = wrapped(text, width)
        lines += wrapped(f"remedy: {finding.remedy}", width, 7) if finding.remedy is not None else []
        for line in lines:
            console.print(line, soft_wrap=True)
