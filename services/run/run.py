"""All services of one pipeline on this machine: what `cutline run` does.

In this order:
1. Everything that can be wrong is looked for, nothing is written before all of it is right; the work folder is locked.
2. The pipeline is defined in the store (or found there, with the same content).
3. Redis is started unless CUTLINE_REDIS_URL names one; then two enumerators (one stands by), the readers, the writers,
   the Spark writer and the control service, each `python -m ...` in a session of its own, its log in <workdir>/logs.
4. A child that ends is started again, after a pause that grows; one that never stays up ends the run with its words.
5. On Ctrl-C, or when `--until` is reached: a savepoint is asked for and its publication waited for, then all are
   stopped. A second Ctrl-C stops at once. At the pipeline's `stop` the leader takes the last checkpoint by itself.

Children die with this process (PR_SET_PDEATHSIG) and are ended by their process ids only. `<workdir>/run.json` tells
other programs what runs: {"pid", "redis_url", "store_url", "api_url", "services": {name: pid}}.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from cutline.common import programs
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, CutlineError, SourceLost, Unavailable
from cutline.common.mesh.messages import Limits
from cutline.common.mesh.presence import Registry, tables
from cutline.common.mesh.redis import connect
from cutline.common.positions import High
from cutline.common.store.records import CheckpointEntry, Publication
from cutline.common.store.store import PipelineStore, Store
from cutline.services.run.check import check
from cutline.services.run.terminal import TerminalView
from cutline.services.sources.mysql import server as mysql
from cutline.spark_writer import jars

Until = Literal["snapshot", "caught-up"]

STOP_SECONDS = 15.0
STEADY_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 15.0
QUICK_DEATHS = 8
HALTS = 3
_PROJECT = str(Path(__file__).resolve().parents[1])
LOOK_SECONDS = 0.5
SAVEPOINT_SECONDS = 180.0
ASK_AGAIN_SECONDS = 10.0
THROTTLE_SECONDS = 30.0
AT_REST = frozenset({"quarantined", "dropped"})  # nothing more comes of them until somebody acts


# --- children ---------------------------------------------------------------------------------------------------------

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    """Run in the child between fork and exec: be killed when the parent is gone, also if it went just now."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Say whether it has ended, without reaping it: until then its id, and its group's, can't be another's."""
    return (
        process.returncode is not None
        or os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    )


def _end_group(process: subprocess.Popen[bytes]) -> int:
    """Kill the process and what it had started (Spark's JVM must not outlive it), reap it, return its exit code."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


@dataclass(slots=True, kw_only=True)
class Child:
    """One service process and how it fares. `quick_deaths` counts ends in a row that came within STEADY_SECONDS."""

    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    quick_deaths: int = 0

    def last_words(self) -> str:
        """Return the last line of the log, for a person to read."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            told = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            if told:
                return told[-1]
        return "it said nothing"


class Supervisor:
    """Starts children, starts them again when they end, and ends them by process id."""

    def __init__(self, children: Sequence[Child], environ: Mapping[str, str]) -> None:
        """Take what to run, in the order of starting; nothing is started before the first `tick`."""
        self.children = list(children)
        self._environ = dict(environ)

    def pids(self) -> dict[str, int]:
        """Return the process id of each child that runs."""
        return {one.name: one.process.pid for one in self.children if one.process is not None}

    def tick(self, now: float) -> list[str]:
        """Start what is due at `now` (monotonic seconds) and note what has ended; return a sentence for each end.

        ConfigError if a child ended with exit code 2 (its settings are wrong); CutlineError if one doesn't stay up.
        """
        told = []
        for one in self.children:
            if one.process is not None and _has_ended(one.process):
                pid, code = one.process.pid, _end_group(one.process)
                one.process = None
                if code == 2:
                    raise ConfigError(one.last_words())
                one.quick_deaths = one.quick_deaths + 1 if now - one.started_at < STEADY_SECONDS else 1
                if one.quick_deaths >= QUICK_DEATHS:
                    raise CutlineError(
                        f"the {one.name} ended {one.quick_deaths} times within {STEADY_SECONDS:.0f} s of its start "
                        f"({one.last_words()}); see {one.log}"
                    )
                pause = 0.0 if one.quick_deaths == 1 else min(LONGEST_PAUSE_SECONDS, 0.25 * 2**one.quick_deaths)
                one.due_at = now + pause
                how = (
                    f"was ended by {signal.Signals(-code).name}"
                    if code < 0
                    else f"ended with {code} ({one.last_words()})"
                )
                told.append(
                    f"the {one.name} ({pid}) {how}; it is started again" + (f" in {pause:.1f} s" if pause else "")
                )
            if one.process is None and now >= one.due_at:
                self._start(one, now)
        return told

    def _start(self, one: Child, now: float) -> None:
        parent = os.getpid()
        with one.log.open("ab") as log:
            # A session of its own: the terminal's Ctrl-C is for us alone, and killpg reaches what the child starts.
            one.process = subprocess.Popen(
                one.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),
            )
        one.started_at = now

    async def stop(self, *, grace_seconds: float = STOP_SECONDS, hurry: Callable[[], bool] = lambda: False) -> None:
        """End all children, the first one (Redis) last: SIGTERM, SIGKILL after the grace or on `hurry`."""
        for group in (self.children[1:], self.children[:1]):
            running = [one.process for one in group if one.process is not None]
            for process in running:
                process.terminate()
            deadline = time.monotonic() + grace_seconds
            for process in running:
                # The end of a process is no event of the loop.
                while not _has_ended(process) and time.monotonic() < deadline and not hurry():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for process in running:
                _end_group(process)
        for one in self.children:
            one.process = None


def free_port(wanted: int = 0) -> int:
    """Return `wanted` if nobody listens there on loopback, else a port that is free now."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise CutlineError("no free port on 127.0.0.1; end some programs")


# --- the work folder --------------------------------------------------------------------------------------------------


def default_workdir(pipeline_file: Path, config: PipelineConfig) -> Path:
    """Return where `cutline run` works if nothing else is said, so that the same command finds it again."""
    return pipeline_file.resolve().parent / ".cutline" / config.name


def redis_url_of(workdir: Path, environment: Environment) -> str:
    """Return the Redis of the run in `workdir`, else CUTLINE_REDIS_URL; ConfigError if there is neither."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads((workdir / "run.json").read_text(encoding="utf-8"))["redis_url"])
    if environment.redis_url is None:
        raise ConfigError(f"no `cutline run` works in {workdir} and CUTLINE_REDIS_URL is not set; start one, or set it")
    return environment.redis_url


async def status_of(redis_url: str, pipeline: str) -> dict[str, dict[str, Any]]:
    """Return the status parts of `pipeline`, {} if nobody tells of it; Unavailable if Redis doesn't answer."""
    redis = connect(redis_url)
    try:
        return await Registry(redis).status(pipeline)
    finally:
        await redis.aclose()


async def throttle(redis_url: str, pipeline: str, limits: Limits) -> None:
    """Ask the leader of `pipeline` for `limits`, and return when they hold and a checkpoint has them, so that they
    outlive the leader; CutlineError if that is not so in time."""
    redis = connect(redis_url)
    try:
        registry, wanted = Registry(redis), asdict(limits)
        asked_at, deadline = -ASK_AGAIN_SECONDS, time.monotonic() + THROTTLE_SECONDS
        while True:
            leader = (await registry.status(pipeline)).get("enumerator", {})
            if leader.get("limits") == wanted and leader.get("limits_kept"):
                return
            if time.monotonic() > deadline:
                raise CutlineError(
                    f"the limits are in no checkpoint of {pipeline} yet, so they may be lost with its leader; see"
                    " `cutline status`, and ask again"
                )
            if time.monotonic() - asked_at >= ASK_AGAIN_SECONDS:
                await registry.request(pipeline, {"kind": "throttle", "limits": wanted})
                asked_at = time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await redis.aclose()


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Hold the work folder for this process alone, so that two runs of one pipeline on this machine don't compete."""
    with (workdir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another `cutline run` works in {workdir}; stop it, or give another --workdir"
            ) from error
        yield


def _redis_child(workdir: Path, port: int, password: str, memory_bytes: int) -> Child:
    """Build Redis as we want it: on loopback with a password, nothing on disk, an honest refusal when it is full."""
    settings = workdir / "redis.conf"
    settings.touch(mode=0o600)
    settings.write_text(
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\ndaemonize no\nsave ""\nappendonly no\n'
        f"maxmemory {memory_bytes}\nmaxmemory-policy noeviction\ndir {json.dumps(str(workdir))}\n",
        encoding="utf-8",
    )
    return Child(name="Redis", command=[str(programs.redis().path), str(settings)], log=workdir / "logs" / "redis.log")


def _service_children(config: PipelineConfig, workdir: Path) -> list[Child]:
    modules = [("enumerator-0", "cutline.services.enumerator"), ("enumerator-1", "cutline.services.enumerator")]
    modules += [(f"reader-{i}", "cutline.services.reader") for i in range(config.workers.readers)]
    modules += [(f"writer-{i}", "cutline.services.writer") for i in range(config.workers.writers)]
    modules += [("spark-writer", "cutline.spark_writer"), ("control", "cutline.services.control")]
    # -P: no module where the user stands may be taken for ours, or for one that we import.
    return [
        Child(name=name, command=[sys.executable, "-P", "-m", module], log=workdir / "logs" / f"{name}.log")
        for name, module in modules
    ]


def _missing_programs(environment: Environment) -> list[str]:
    """Return what this machine lacks, a sentence each: a Java for Spark, and a Redis unless one is named."""
    faults: list[str] = []
    for look in (programs.java, programs.redis) if environment.redis_url is None else (programs.java,):
        try:
            look()
        except ConfigError as error:
            faults += error.faults
    return faults


# --- what --until asks for --------------------------------------------------------------------------------------------


def unsettled(tables: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tables of an enumerator's status that are neither live nor at rest."""
    return tuple(sorted(name for name, one in tables.items() if one["phase"] not in ("live", *AT_REST)))


def unpublished(tables: Mapping[str, Any], publication: Publication | None) -> tuple[str, ...]:
    """Return the tables that `publication` does not yet show in the generation of the enumerator's status.

    Those at rest are left out.
    """
    shown = {} if publication is None else publication.tables
    missing = []
    for name, one in tables.items():
        there = shown.get(name)
        if one["phase"] in AT_REST:
            continue
        if there is None or there.state != "live" or there.main is None or there.generation != one["generation"]:
            missing.append(name)
    return tuple(sorted(missing))


def not_live(tables: Mapping[str, Any]) -> str | None:
    """Return a sentence that names every table that is neither live nor dropped, or None if there is none."""
    named = [
        f"{name} ({one['phase']}: {one.get('cause') or 'no cause given'})"
        for name, one in sorted(tables.items())
        if one["phase"] not in ("live", "dropped")
    ]
    return f"not live: {', '.join(named)}; mend what is named there and run again" if named else None


def dropped(tables: Mapping[str, Any]) -> str | None:
    """Return a sentence that names every table that the source has no more, or None if there is none."""
    named = [name for name, one in sorted(tables.items()) if one["phase"] == "dropped"]
    return f"dropped at the source: {', '.join(named)}; the lake keeps their last content" if named else None


# --- the run ----------------------------------------------------------------------------------------------------------


class Run:
    """One `cutline run`, from its first check to the end of its last child."""

    def __init__(
        self,
        config: PipelineConfig,
        environment: Environment,
        *,
        workdir: Path,
        until: Until | None,
        view: TerminalView,
    ) -> None:
        """Take what to run and where to show it; nothing happens before `go`."""
        self._config = config
        self._environment = environment
        self._workdir = workdir
        self._temporary = workdir / "tmp"
        self._until = until
        self._view = view
        self._interrupts = 0
        self._woken = asyncio.Event()
        self._status: dict[str, dict[str, Any]] = {}
        self._notes: tuple[str, ...] = ()
        self._publication: Publication | None = None
        self._published = 0
        self._target: High | None = None
        self._spark_failed_at: tuple[float, ...] = ()

    async def go(self) -> None:
        """Run until Ctrl-C or `until`; return if all is well, else raise the error that names the cause."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)
        config, environment = self._config, self._environment
        self._store_url = environment.store_url or f"file://{self._workdir / 'store'}"
        definition = await self._checked()
        if definition is None:
            return
        await asyncio.to_thread(jars.fetch, jars.folder(), settings=config.sink.spark, progress=self._fetching)
        with locked(self._workdir):
            store = Store(self._store_url).pipeline(config.name)
            await asyncio.to_thread(store.define, definition)
            (self._workdir / "logs").mkdir(exist_ok=True)
            await self._run(store)

    async def _checked(self) -> Mapping[str, Any] | None:
        """`check` until the source answers; None if a signal came before."""
        pause = 1.0
        while not self._interrupts:
            try:
                return await asyncio.to_thread(self._check)
            except Unavailable as error:
                self._view.update({}, notes=(f"{error}; trying again in {pause:.0f} s",))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)
        return None

    def _check(self) -> Mapping[str, Any]:
        missing = _missing_programs(self._environment)
        return check(self._config, store_url=self._store_url, workdir=self._workdir, known_faults=missing)

    def _fetching(self, done: int, total: int) -> None:
        """Show how far Spark's jars have come; called in the thread that fetches them, which an error ends."""
        if self._interrupts:
            raise CutlineError("stopped while Spark's jars were fetched; the same command fetches them again")
        self._view.update({}, notes=(f"fetching Spark's jars, once: {done >> 20} of {total >> 20} MiB",))

    def _interrupted(self) -> None:
        self._interrupts += 1
        self._woken.set()

    async def _run(self, store: PipelineStore) -> None:
        environment = self._environment
        redis_url, first = environment.redis_url, []
        if redis_url is None:
            port, password = free_port(), secrets.token_hex(16)
            first = [_redis_child(self._workdir, port, password, environment.redis_memory_bytes)]
            redis_url = f"redis://:{password}@127.0.0.1:{port}/0"
        self._redis_url = redis_url
        shutil.rmtree(self._temporary, ignore_errors=True)  # a killed run's: the lock of the work folder is ours
        self._temporary.mkdir(mode=0o700)
        api_port = free_port(environment.api_port)
        self._api_url = f"http://{environment.api_host}:{api_port}"
        environ = os.environ | {
            "CUTLINE_REDIS_URL": redis_url,
            "CUTLINE_STORE_URL": self._store_url,
            "CUTLINE_API_HOST": environment.api_host,
            "CUTLINE_API_PORT": str(api_port),
            "CUTLINE_READERS": str(self._config.workers.readers),
            "CUTLINE_WRITERS": str(self._config.workers.writers),
            "PYTHONPATH": os.pathsep.join(filter(None, (_PROJECT, os.environ.get("PYTHONPATH")))),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._temporary),
        }
        self._supervisor = Supervisor([*first, *_service_children(self._config, self._workdir)], environ)
        redis = connect(redis_url)
        self._registry = Registry(redis)
        self._view.say(f"{self._config.name}: logs in {self._workdir / 'logs'}, API at {self._api_url}")
        try:
            with suppress(Unavailable):  # what an earlier run showed of itself, in a Redis that outlived it
                await self._registry.forget(self._config.name)
            while not self._interrupts and not await self._reached(store):
                await self._look(store)
            by_itself = (self._until or self._config.stop) and not self._interrupts
            trouble = not_live(self._tables()) if by_itself else None
            if (last := self._ended()) is None:
                await self._savepoint(store)
            else:
                self._view.update(self._status)
                self._view.say(f"the stop is reached: checkpoint {last} is published and kept")
            if (gone := dropped(self._tables())) is not None:
                self._view.say(gone)
            if trouble is not None:
                raise CutlineError(trouble)
        finally:
            await self._supervisor.stop(hurry=lambda: self._interrupts > 1)
            (self._workdir / "run.json").unlink(missing_ok=True)
            shutil.rmtree(self._temporary, ignore_errors=True)
            await redis.aclose()

    def _tables(self) -> Mapping[str, Any]:
        return tables(self._status)

    async def _look(self, store: PipelineStore) -> None:
        """Look after the children, show the newest status, and wait LOOK_SECONDS or for a signal."""
        for sentence in self._supervisor.tick(time.monotonic()):
            self._view.say(sentence)
        self._tell_pids()
        notes = []
        try:
            self._status = await self._registry.status(self._config.name)
        except Unavailable:
            place = urlsplit(self._redis_url)
            notes.append(f"Redis at {place.hostname}:{place.port} does not answer; trying again")
        try:
            if numbers := await asyncio.to_thread(store.publication_numbers, self._published):
                self._publication = await asyncio.to_thread(store.publication, numbers[-1])
                self._published = numbers[-1]
        except Unavailable as error:
            notes.append(f"{error}; trying again")
        for part, told in sorted(self._status.items()):
            if told.get("halted"):
                raise CutlineError(f"the pipeline halted: {told['halted']}; see {self._workdir / 'logs'}")
            if part != "enumerator" and (reason := told.get("waiting_for") or told.get("error")):
                again = f"; starting again in {told['again_seconds']:g} s" if "again_seconds" in told else ""
                notes.append(f"{part} waits for {reason}" if told.get("waiting_for") else f"{part}: {reason}{again}")
        self._judge_spark(self._status.get("spark_writer", {}))
        self._view.update(self._status, notes=(*notes, *self._notes))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), LOOK_SECONDS)
        self._woken.clear()

    def _judge_spark(self, told: Mapping[str, Any]) -> None:
        """End the run when the Spark writer failed HALTS times in a row by what trying again can't mend."""
        if told.get("kind") not in ("ConfigError", "ProtocolError"):
            self._spark_failed_at = ()
        elif told["at"] not in self._spark_failed_at:
            self._spark_failed_at = (*self._spark_failed_at, told["at"])
        if len(self._spark_failed_at) >= HALTS:
            raise (ConfigError if told["kind"] == "ConfigError" else CutlineError)(str(told["error"]))

    def _tell_pids(self) -> None:
        told = {
            "pid": os.getpid(),
            "redis_url": self._redis_url,
            "store_url": self._store_url,
            "api_url": self._api_url,
            "services": self._supervisor.pids(),
        }
        path, fresh = self._workdir / "run.json", self._workdir / "run.json.new"
        text = json.dumps(told, indent=1)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            fresh.touch(mode=0o600)
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)

    def _ended(self) -> int | None:
        """Return the checkpoint at the pipeline's stop, None if it is not published yet."""
        last: int | None = self._status.get("enumerator", {}).get("ended")
        return last if last is not None and self._published >= last else None

    async def _reached(self, store: PipelineStore) -> bool:
        """Say whether the stop, or what `--until` asks for, is published; takes the source's position once it may."""
        if self._ended() is not None:
            return True
        tables = self._tables()
        if self._until is None or not tables:
            return False
        if self._until == "snapshot":
            return not unpublished(tables, self._publication)
        if self._target is None and not unsettled(tables):
            try:
                self._target = await asyncio.to_thread(mysql.flushed, self._config)
            except Unavailable as error:
                self._notes = (str(error),)
                return False
            self._notes = ()
        if self._target is None or self._publication is None:
            return False
        if self._publication.position is None:  # no table was ever in the stream: there is nothing to reach
            states = {name: one.state for name, one in self._publication.tables.items()}
            return states.keys() == tables.keys() and AT_REST.issuperset(states.values())
        try:
            reached = self._target.reached_by(self._publication.position)
        except SourceLost:  # another server took over: its own position is what has to be reached
            self._target = None
            return False
        return reached and not unpublished(tables, self._publication)

    async def _savepoint(self, store: PipelineStore) -> None:
        """Ask for a kept checkpoint, wait for its publication; CutlineError if it does not come, or on Ctrl-C again."""
        nonce, stop_at = secrets.token_hex(8), self._interrupts + 1
        before = await asyncio.to_thread(store.last_slot)
        asked_at, deadline = -ASK_AGAIN_SECONDS, time.monotonic() + SAVEPOINT_SECONDS
        self._view.say("taking a savepoint" + ("; Ctrl-C again stops at once" if self._interrupts else ""))
        while time.monotonic() < deadline:
            if self._interrupts >= stop_at:
                raise CutlineError("stopped without a savepoint; the same command resumes from the last checkpoint")
            if time.monotonic() - asked_at >= ASK_AGAIN_SECONDS:
                # Asked again and again: Redis may have been emptied, or the leader may have died with the request.
                with suppress(Unavailable):
                    request = {"kind": "savepoint", "nonce": nonce, "last": True}
                    await self._registry.request(self._config.name, request)
                    asked_at = time.monotonic()
            await self._look(store)
            slot = await asyncio.to_thread(_savepoint_slot, store, before, nonce)
            if slot is None:
                self._notes = ("the savepoint's checkpoint is awaited",)
            elif self._published < slot:
                self._notes = (f"the savepoint is checkpoint {slot}; its publication is awaited",)
            else:
                self._notes = ()
                self._view.update(self._status)
                self._view.say(f"savepoint: checkpoint {slot} is published and kept; the same command resumes there")
                return
        raise CutlineError(
            f"no savepoint was published within {SAVEPOINT_SECONDS:.0f} s ({'; '.join(self._notes)}); "
            "the same command resumes from the last checkpoint"
        )


def _savepoint_slot(store: PipelineStore, after: int, nonce: str) -> int | None:
    """Return the journal's slot of the kept checkpoint that answers the request `nonce`, or None."""
    for entry in store.journal_tail(after=after):
        if isinstance(entry, CheckpointEntry) and entry.request == nonce and entry.kept:
            return entry.slot
    return None
