"""Spark's jars: lists them (jars.toml), finds them, and fetches those that are missing.

Spark's own resolver fetches them (Apache Ivy, the one behind `spark.jars.packages`), so its settings for mirrors apply
here too: `spark.jars.repositories`, `spark.jars.ivySettings`, DEFAULT_ARTIFACT_REPOSITORY. A jar enters the folder
whole, and only if it has the checksum of jars.toml.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cutline.common import programs
from cutline.common.causes import Cause, Code
from cutline.common.config.environment import Environment, cache_folder
from cutline.common.errors import ConfigError, Unavailable

SILENT_SECONDS = 120.0
"""The resolver is killed when nothing arrives for this long: Ivy itself waits for a server without limit."""
RESOLVER_SETTINGS = ("spark.jars.repositories", "spark.jars.ivySettings")
_LOOK_SECONDS = 0.2
_SPARE_BYTES = 32 << 20  # for the resolver's own files
_COMPLAINTS = (
    r"Ivy settings file .*|Failed when loading Ivy settings from .*",
    r"unresolved dependency: .*|Server access error.*|.*checksum.*",
)
"""Lines of the resolver's log that explain a failure, the most specific first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A jar by its Maven coordinates: an entry of jars.toml. With an `extra` only some pipelines need it."""

    coordinates: str
    sha256: str
    size_bytes: int
    extra: str | None = None

    @property
    def file(self) -> str:
        """The name of its file: artifact-version.jar."""
        return "{1}-{2}.jar".format(*self.coordinates.split(":"))

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has it undamaged (61 MB are read in 0.1 s)."""
        path = folder / self.file
        try:
            if path.stat().st_size != self.size_bytes:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except OSError:
            return False


@functools.cache
def wanted() -> tuple[Jar, ...]:
    """Return the jars with which this version of Cutline starts Spark, those with an `extra` included."""
    text = Path(__file__).with_name("jars.toml").read_text(encoding="utf-8")
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


def folder() -> Path:
    """Return the folder of the jars; it need not exist yet."""
    chosen = Environment.read().spark_jars
    return Path(chosen).expanduser().absolute() if chosen else cache_folder() / "jars"


def spark_home() -> Path:
    """Return the folder of the package pyspark, which holds Spark's own jars and programs."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def all_extras() -> tuple[str, ...]:
    """Return the names of the extras, sorted."""
    return tuple(sorted({jar.extra for jar in wanted() if jar.extra is not None}))


def wanted_with(extras: Collection[str] = ()) -> tuple[Jar, ...]:
    """Return the jars that every pipeline needs, and those of some extras."""
    return tuple(jar for jar in wanted() if jar.extra is None or jar.extra in extras)


def missing(target: Path, extras: Collection[str] = ()) -> tuple[Jar, ...]:
    """Return the needed jars that the folder lacks, or has with other content."""
    return tuple(jar for jar in wanted_with(extras) if not jar.is_in(target))


def describe_missing(target: Path, jars: Collection[Jar]) -> Cause:
    """Return the cause for jars that a folder lacks."""
    options = "".join(f" --with {extra}" for extra in sorted({jar.extra for jar in jars if jar.extra is not None}))
    return Cause(
        Code.CONFIGURATION,
        f"the folder {target} lacks an intact {_names(jars)}",
        f"run `cutline setup{options}` to fetch it, or set CUTLINE_SPARK_JARS to a folder that has it",
    )


def class_path(target: Path) -> tuple[list[str], list[str]]:
    """Return the paths of the jars that every pipeline needs, the user's own in that folder with them, and of those
    with an `extra` that are there; ConfigError if one of the first is missing.

    Other versions of our own jars, left by another version of Cutline, are skipped.
    """
    if found := missing(target):
        raise ConfigError(describe_missing(target, found))
    ours = tuple(jar.coordinates.split(":")[1] + "-" for jar in wanted())
    users = [path for path in sorted(target.glob("*.jar")) if not path.name.startswith(ours)]
    extras = [jar for jar in wanted() if jar.extra is not None and jar.is_in(target)]
    always = [*(target / jar.file for jar in wanted_with()), *users]
    return list(map(str, always)), [str(target / jar.file) for jar in extras]


def fetch(
    target: Path,
    *,
    extras: Collection[str] = (),
    settings: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Jar, ...]:
    """Fetch the missing jars, and those of `extras`, into the folder, and return them; the others are not touched.

    `settings` are Spark's, of which RESOLVER_SETTINGS are used. `progress(bytes, of bytes)` is called while they
    arrive; an error that it raises ends the resolver. Several processes may call it at once: one fetches, the others
    wait. ConfigError if the folder can't be written, the disk is too full, or there is no supported Java; Unavailable
    if no repository delivers the jars.
    """
    if not missing(target, extras):
        return ()
    java = programs.java()
    with locked(target):
        if not (lacking := missing(target, extras)):  # another process fetched them meanwhile
            return ()
        needed = 2 * sum(jar.size_bytes for jar in lacking) + _SPARE_BYTES
        if shutil.disk_usage(target).free < needed:
            raise ConfigError(_full(target, needed))
        with unfinished(target) as fresh:
            _resolve(lacking, fresh, java.path.parents[1], settings or {}, progress, needed)
            for jar in lacking:
                (fresh / "jars" / _ivy_name(jar)).replace(fresh / jar.file)
                if not jar.is_in(fresh):
                    raise Unavailable(
                        f"{jar.coordinates} was fetched but is not the file that Cutline was tested with (SHA-256"
                        f" {jar.sha256})",
                        "try again, or name another repository",
                    )
            for jar in lacking:
                (fresh / jar.file).replace(target / jar.file)
    return lacking


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A folder in `target` for what is not whole yet; the next `locked` removes one that a killed process left."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target) as folder:
        yield Path(folder)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Be the one process that adds to the folder, which is made if needed; ConfigError if it can't be written."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with (target / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in target.glob(".fetch-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield
    except OSError as error:
        raise ConfigError(
            f"the folder {target} can't be written ({error.strerror})",
            "give this user write permission to it, or set CUTLINE_CACHE to another folder",
        ) from error


def _resolve(
    lacking: tuple[Jar, ...],
    fresh: Path,
    java_home: Path,
    settings: Mapping[str, str],
    progress: Callable[[int, int], None],
    needed: int,
) -> None:
    """Let Spark's resolver fill fresh/jars."""
    home = spark_home()
    chosen = {key: value for key, value in settings.items() if key in RESOLVER_SETTINGS}
    chosen |= {"spark.jars.ivy": str(fresh), "spark.jars.packages": ",".join(jar.coordinates for jar in lacking)}
    # spark-submit resolves before it runs a class: here Ivy's main class, which only prints its version.
    command = [str(home / "bin" / "spark-submit"), "--class", "org.apache.ivy.Main"]
    command += [word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")]
    environment = os.environ | {
        "JAVA_HOME": str(java_home), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    log = fresh / "log"
    total = sum(jar.size_bytes for jar in lacking)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "spark-internal", "-version"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        size, grown_at = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(_LOOK_SECONDS)
            if (grown := _size(fresh)) != size:
                size, grown_at = grown, time.monotonic()
            progress(min(size, total), total)
            if time.monotonic() - grown_at > SILENT_SECONDS:
                raise Unavailable(_unfetched(lacking, fresh.parent, f"nothing arrived for {SILENT_SECONDS:.0f} s"))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    output_text = log.read_text(errors="replace")
    if all((fresh / "jars" / _ivy_name(jar)).exists() for jar in lacking):
        return
    if "No space left on device" in output_text:
        raise ConfigError(_full(fresh.parent, needed))
    hosts = set(re.findall(r"https?://([^/:\s]+)", output_text))
    unknown = re.findall(r"Host (\S+) not found", output_text)
    if unknown and hosts <= set(unknown):  # with several hosts, one may be unknown where another answered
        raise Unavailable(_unfetched(lacking, fresh.parent, f"the host {unknown[0]} could not be resolved"))
    matches = (re.search(complaint, output_text) for complaint in _COMPLAINTS)
    default = f"Spark's resolver ended with exit code {process.returncode}"
    why = next((match[0].strip(" ]") for match in matches if match), default)
    raise Unavailable(_unfetched(lacking, fresh.parent, why))


def _ivy_name(jar: Jar) -> str:
    """The file name that Spark's resolver gives a jar."""
    return f"{jar.coordinates.split(':')[0]}_{jar.file}"


def _size(path: Path) -> int:
    """Bytes that have arrived: those in Ivy's cache, without the copies that Ivy makes of them at the end."""
    size = 0
    for file in (path / "cache").rglob("*.jar*"):
        with suppress(FileNotFoundError):  # renamed just now
            size += file.stat().st_size
    return size


def _full(target: Path, needed: int) -> Cause:
    free = shutil.disk_usage(target).free
    return Cause(
        Code.CONFIGURATION,
        f"the disk of {target} is too full for Spark's jars ({free >> 20} MiB free, {needed >> 20} MiB needed)",
        "free some space, or set CUTLINE_CACHE to a folder on another disk",
    )


def _unfetched(lacking: tuple[Jar, ...], target: Path, why: str) -> Cause:
    return Cause(
        Code.UNAVAILABLE,
        f"Spark's jars could not be fetched ({why})",
        "check the network, the proxy and the certificates that Java trusts, name a mirror (`cutline setup` takes"
        f" --repository and --ivy-settings), or put {_names(lacking)} into {target} by hand",
    )


def _names(jars: Collection[Jar]) -> str:
    return " and ".join(jar.file for jar in jars)
