"""Spark's jars: which they are (jars.toml), where they lie, and how they come there.

They are fetched by Spark's own resolver (Apache Ivy, the one behind `spark.jars.packages`), so that what its settings
say of mirrors holds here too: `spark.jars.repositories`, `spark.jars.ivySettings`, DEFAULT_ARTIFACT_REPOSITORY. A jar
comes into the folder whole, and only with the checksum of jars.toml.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cutline.common import programs
from cutline.common.config.environment import Environment, cache_folder
from cutline.common.errors import ConfigError, Unavailable

SILENT_SECONDS = 120.0
"""The resolver is ended when nothing came for so long: Ivy itself waits for a server without a limit."""
RESOLVER_SETTINGS = ("spark.jars.repositories", "spark.jars.ivySettings")
_LOOK_SECONDS = 0.2
_SPARE_BYTES = 32 << 20  # of the resolver's own files
_COMPLAINTS = (
    r"Ivy settings file .*|Failed when loading Ivy settings from .*",
    r"unresolved dependency: .*|Server access error.*|.*checksum.*",
)
"""What the resolver says of its failures, the most telling first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A jar by its Maven coordinates, as jars.toml has it."""

    coordinates: str
    sha256: str
    size_bytes: int

    @property
    def file(self) -> str:
        """Its name in the folder: artifact-version.jar."""
        return "{1}-{2}.jar".format(*self.coordinates.split(":"))

    def is_in(self, folder: Path) -> bool:
        """Say whether the folder has it, whole (61 MB are read in 0.1 s)."""
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
    """Return the jars that this Cutline starts Spark with."""
    text = Path(__file__).with_name("jars.toml").read_text(encoding="utf-8")
    return tuple(Jar(**one) for one in tomllib.loads(text)["jar"])


def folder() -> Path:
    """Return the folder of the jars; it need not exist yet."""
    chosen = Environment.read().spark_jars
    return Path(chosen).expanduser().absolute() if chosen else cache_folder() / "jars"


def missing(there: Path) -> tuple[Jar, ...]:
    """Return the jars that the folder lacks, or has with other content."""
    return tuple(jar for jar in wanted() if not jar.is_in(there))


def class_path(there: Path) -> list[str]:
    """Return the paths of the jars, and of the user's own in that folder; ConfigError if one of ours is missing.

    Other versions of our own jars, left by another Cutline, are passed over.
    """
    if lacking := missing(there):
        raise ConfigError(
            f"the folder {there} lacks {_names(lacking)}, or has it damaged; run `cutline setup`, which fetches it, or "
            "set CUTLINE_SPARK_JARS to the folder that has it"
        )
    ours = tuple(jar.coordinates.split(":")[1] + "-" for jar in wanted())
    own = [path for path in sorted(there.glob("*.jar")) if not path.name.startswith(ours)]
    return [*(str(there / jar.file) for jar in wanted()), *map(str, own)]


def fetch(
    there: Path,
    *,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Jar, ...]:
    """Bring the missing jars into the folder, and return them; the others are not touched.

    `settings` are Spark's, of which RESOLVER_SETTINGS count. `progress(bytes, of bytes)` is called while they come;
    an error that it raises ends the resolver.
    Several processes may call it at once: one fetches, the others wait. ConfigError if the folder can't be written, the
    disk is too small, or no Java fits; Unavailable if no repository gives the jars.
    """
    if not missing(there):
        return ()
    java = programs.java()
    with _writable(there):
        there.mkdir(parents=True, exist_ok=True)
        with (there / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (lacking := missing(there)):  # another process fetched them meanwhile
                return ()
            for left in there.glob(".fetch-*"):
                shutil.rmtree(left, ignore_errors=True)
            needed = 2 * sum(jar.size_bytes for jar in lacking) + _SPARE_BYTES
            if shutil.disk_usage(there).free < needed:
                raise ConfigError(_full(there, needed))
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=there) as fresh:
                _resolve(lacking, Path(fresh), java.path.parents[1], settings or {}, progress, needed)
                for jar in lacking:
                    (Path(fresh) / "jars" / _ivys(jar)).replace(Path(fresh) / jar.file)
                    if not jar.is_in(Path(fresh)):
                        raise Unavailable(
                            f"{jar.coordinates} came with another content than this Cutline was tested with (SHA-256 "
                            f"{jar.sha256}); try again, or name another repository"
                        )
                for jar in lacking:
                    (Path(fresh) / jar.file).replace(there / jar.file)
    return lacking


@contextmanager
def _writable(there: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the folder {there} can't be written ({error.strerror}); give this user the right to it, or set "
            "CUTLINE_CACHE to another folder"
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
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    spark_home = Path(spec.origin).parent
    chosen = {key: value for key, value in settings.items() if key in RESOLVER_SETTINGS}
    chosen |= {"spark.jars.ivy": str(fresh), "spark.jars.packages": ",".join(jar.coordinates for jar in lacking)}
    # spark-submit resolves before it runs anything; what it runs then is Ivy's main class, which prints its version.
    command = [str(spark_home / "bin" / "spark-submit"), "--class", "org.apache.ivy.Main"]
    command += [word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")]
    environment = os.environ | {
        "JAVA_HOME": str(java_home), "SPARK_HOME": str(spark_home), "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    log = fresh / "log"
    total = sum(jar.size_bytes for jar in lacking)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "spark-internal", "-version"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        size, moved_at = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(_LOOK_SECONDS)
            if (grown := _size(fresh)) != size:
                size, moved_at = grown, time.monotonic()
            progress(min(size, total), total)
            if time.monotonic() - moved_at > SILENT_SECONDS:
                raise Unavailable(_unfetched(lacking, fresh.parent, f"nothing came for {SILENT_SECONDS:.0f} s"))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    said = log.read_text(errors="replace")
    if all((fresh / "jars" / _ivys(jar)).exists() for jar in lacking):
        return
    if "No space left on device" in said:
        raise ConfigError(_full(fresh.parent, needed))
    hosts, unknown = set(re.findall(r"https?://([^/:\s]+)", said)), re.findall(r"Host (\S+) not found", said)
    if unknown and hosts <= set(unknown):  # one of several may be unknown where another was asked
        raise Unavailable(_unfetched(lacking, fresh.parent, f"the host {unknown[0]} is not known here"))
    told = (re.search(complaint, said) for complaint in _COMPLAINTS)
    why = next((one[0].strip(" ]") for one in told if one), f"Spark's resolver ended with {process.returncode}")
    raise Unavailable(_unfetched(lacking, fresh.parent, why))


def _ivys(jar: Jar) -> str:
    """The name that Spark's resolver gives a jar."""
    return f"{jar.coordinates.split(':')[0]}_{jar.file}"


def _size(path: Path) -> int:
    """Bytes that have come: those in Ivy's cache, not the copies that are made of them at the end."""
    size = 0
    for one in (path / "cache").rglob("*.jar*"):
        with suppress(FileNotFoundError):  # renamed just now
            size += one.stat().st_size
    return size


def _full(there: Path, needed: int) -> str:
    free = shutil.disk_usage(there).free
    return (
        f"the disk of {there} is too full for Spark's jars ({free >> 20} MiB free, {needed >> 20} MiB needed); free "
        "some, or set CUTLINE_CACHE to a folder on another disk"
    )


def _unfetched(lacking: tuple[Jar, ...], there: Path, why: str) -> str:
    return (
        f"Spark's jars could not be fetched ({why}); check the network, the proxy and the certificates that Java"
        " trusts, name a mirror (`cutline setup` takes --repository and --ivy-settings), or lay"
        f" {_names(lacking)} into {there} by hand"
    )


def _names(lacking: tuple[Jar, ...]) -> str:
    return " and ".join(jar.file for jar in lacking)
