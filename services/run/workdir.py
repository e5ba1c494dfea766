"""The work folder of a `cutline run` or `cutline up`: its lock, its Redis settings, and `run.json`, which describes it.

`run.json` is for other programs: {"pid", "redis_url", "store_url", "api_url", "services": {name: pid}}. Only its owner
may read it, since it holds a password. It is removed when the run ends.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError


def default_workdir(pipeline_file: Path, config: PipelineConfig) -> Path:
    """The work folder if the command line names none: the same command finds it again."""
    return pipeline_file.resolve().parent / ".cutline" / config.name


@contextmanager
def locked(workdir: Path, what: str = "run") -> Iterator[None]:
    """Hold the work folder for this process alone, so that two runs of one pipeline on this machine don't compete.
    `what`: the command that works there."""
    with (workdir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another `cutline {what}` works in {workdir}", "stop it, or name another folder with --workdir"
            ) from error
        yield


def write_redis_settings(workdir: Path, port: int, password: str, memory_bytes: int) -> Path:
    """Settings of our own Redis: on loopback with a password, nothing on disk, writes refused when it is full."""
    settings = workdir / "redis.conf"
    settings.touch(mode=0o600)
    settings.write_text(
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\ndaemonize no\nsave ""\nappendonly no\n'
        f"maxmemory {memory_bytes}\nmaxmemory-policy noeviction\ndir {json.dumps(str(workdir))}\n",
        encoding="utf-8",
    )
    return settings


def write_run_file(workdir: Path, content: Mapping[str, Any]) -> None:
    """Write `run.json` if its content changed."""
    path, fresh = workdir / "run.json", workdir / "run.json.new"
    text = json.dumps(content, indent=1)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        fresh.touch(mode=0o600)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)


def remove_run_file(workdir: Path) -> None:
    """Remove `run.json` at the end of the run."""
    (workdir / "run.json").unlink(missing_ok=True)


def redis_url_of(workdir: Path, environment: Environment) -> str:
    """The Redis of the run in `workdir`, else CUTLINE_REDIS_URL; ConfigError if there is neither."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads((workdir / "run.json").read_text(encoding="utf-8"))["redis_url"])
    if environment.redis_url is None:
        raise ConfigError(
            f"no `cutline run` works in {workdir} and CUTLINE_REDIS_URL is not set", "start one, or set it"
        )
    return environment.redis_url


def store_url_of(workdir: Path, environment: Environment) -> str:
    """The store of the run in `workdir`, else CUTLINE_STORE_URL, else the store in that folder."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads((workdir / "run.json").read_text(encoding="utf-8"))["store_url"])
    return environment.store_url or f"file://{workdir / 'store'}"
