"""A Docker of our own: its daemon with private folders and socket, which all go with it; and Compose on it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tools.programs import Missing, program, search_path

START_SECONDS = 60.0
FREE_BYTES = 10 << 30


class DockerFailed(RuntimeError):
    """A command of Docker or Compose failed; the message has the end of its output."""


class Docker:
    """The client of one daemon, at `host` (the value of DOCKER_HOST; None: the daemon that this machine has)."""

    def __init__(self, host: str | None) -> None:
        self.environment = {
            **os.environ,
            **({"DOCKER_HOST": host} if host else {}),
            "PATH": search_path(),
            "DOCKER_BUILDKIT": "0",  # Debian's docker.io has no buildx
            "COMPOSE_DOCKER_CLI_BUILD": "0",
        }

    def __call__(self, *words: str, stdin: IO[bytes] | None = None) -> str:
        """Run `docker` and return its output."""
        return ran([program("docker"), *words], self.environment, stdin=stdin)

    def build(self, tag: str, context: Path, **arguments: str) -> None:
        """Build an image. The network is this machine's, since a registry's mirror may be on loopback."""
        chosen = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        self("build", "--network=host", "--tag", tag, *chosen, str(context))

    def inspect(self, container: str) -> dict[str, Any]:
        """What the daemon knows of a container."""
        (found,) = json.loads(self("inspect", container))
        return dict(found)

    def crash(self, container: str) -> None:
        """SIGKILL a container's first process. After `docker kill`, a person's wish, Docker would not restart it."""
        os.kill(int(self.inspect(container)["State"]["Pid"]), signal.SIGKILL)


class Compose:
    """A project of docker-compose.yml; `environment` fills in its variables."""

    def __init__(self, docker: Docker, folder: Path, project: str, environment: Mapping[str, str]) -> None:
        self.docker, self.folder, self.project = docker, folder, project
        self.environment = {**docker.environment, **environment}

    def __call__(self, *words: str, stdin: IO[bytes] | None = None, **environment: str) -> str:
        """Run Compose and return its output; `environment` is for this command only."""
        command = [program("docker-compose"), "--project-name", self.project]
        return ran([*command, *words], self.environment | environment, stdin=stdin, cwd=self.folder)

    def containers(self, service: str) -> list[str]:
        """The running containers of a service, by id."""
        return self("ps", "--quiet", service).split()


def ran(
    command: list[str], environment: Mapping[str, str], *, stdin: IO[bytes] | None = None, cwd: Path | None = None
) -> str:
    """Run a command and return its output; DockerFailed with the end of all that it wrote."""
    done = subprocess.run(
        command,
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=dict(environment),
        cwd=cwd,
    )
    if done.returncode != 0:
        words = " ".join(command)
        raise DockerFailed(f"{words} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


@contextmanager
def daemon(folder: Path | None = None) -> Iterator[Docker]:
    """Run a daemon whose images, containers and volumes are below `folder`, by default a new one that goes with it."""
    if os.geteuid() != 0:
        raise Missing("a Docker daemon of our own needs root")
    chosen = folder.resolve() if folder else Path(tempfile.mkdtemp(prefix="cutline-docker-", dir="/var/tmp"))
    chosen.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(chosen).free < FREE_BYTES:
        raise Missing(f"images and volumes need {FREE_BYTES >> 30} GiB in {chosen}; free some space")
    run = Path(tempfile.mkdtemp(prefix="cutline-dockerd-", dir="/run"))  # a socket's path must be short
    socket, log = run / "docker.sock", chosen / "dockerd.log"
    command = [
        program("dockerd"), "--host", f"unix://{socket}", "--data-root", str(chosen / "root"),
        "--exec-root", str(run / "exec"), "--pidfile", str(run / "pid"), "--bridge", "none",
    ]  # fmt: skip
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "PATH": search_path()},
        )  # fmt: skip
    try:
        docker = Docker(f"unix://{socket}")
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(DockerFailed):
                docker("info")
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise DockerFailed(f"dockerd did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield docker
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            print("acceptance: dockerd did not end within 60 s; it is killed", file=sys.stderr)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for mounted in reversed(mounts_below(run, chosen)):  # dockerd leaves that of its network's namespace
            subprocess.run([program("umount"), "--lazy", mounted], check=False)
        shutil.rmtree(run)
        if folder is None:
            shutil.rmtree(chosen)


def mounts_below(*folders: Path) -> list[str]:
    """The mount points in these folders, in the order in which they were mounted."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    return [point for point in points if any(Path(point).is_relative_to(folder) for folder in folders)]
