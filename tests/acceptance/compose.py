"""`make acceptance`: docker-compose.yml as a user runs it, with crashes, another number of readers, and an upgrade.

1. A Docker daemon of our own gets stand-ins for the images of registries (images/), and two builds of Cutline.
2. `docker-compose up` starts everything on the first build; the pipeline goes live while the sample's rows change.
   The command line changes the pipeline's definition, which a later `up` leaves as it is.
3. A reader, a writer, the leading enumerator and the Spark writer are killed in turn; each time Docker starts a new
   process, the mesh takes its next epoch (the Spark writer: leads again), and the lake shows later publications.
4. The readers become four, and two again.
5. One service after the other is upgraded to the second build; the lake goes on after each.
6. Everything stops, and the volumes of lake, store and catalogue are copied, as docs/operations/run.md says. The stack
   goes on for some publications; then the copy is put back, and the stack starts on it.
7. The changes stop, and every table of the lake is compared with the source, by key and content.

Exits with 1 if any row differs. The containers' logs are then in build/acceptance.log.

`--machine` takes this machine's own Docker and lets it pull the images; `--folder` keeps the daemon's folder, and so
its images, for the next run.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from tests.acceptance import images
from tests.acceptance.docker import Compose, Docker, DockerFailed, daemon
from tests.support.server_process import free_port
from tools.programs import Missing, program

ROOT = Path(__file__).parents[2]
LOG = ROOT / "build" / "acceptance.log"
FIRST, SECOND = "cutline:first", "cutline:second"
SERVICES = ("enumerator", "reader", "writer", "spark-writer", "control")
STEP_SECONDS = 300.0
INTERVAL_SECONDS = 4
console = Console(highlight=False)


class Stack:
    """The running project, seen as a user sees it: Compose's commands and the API."""

    def __init__(self, compose: Compose, port: int) -> None:
        self.compose = compose
        self.docker = compose.docker
        self._started = time.monotonic()
        self._api = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)

    def say(self, text: str) -> None:
        """Print progress with the seconds since the start."""
        console.print(f"[{time.monotonic() - self._started:6.1f} s] {text}", markup=False)

    def wait(self, goal: str, holds: Callable[[], Any], seconds: float = STEP_SECONDS) -> Any:
        """Wait until `holds()` is true and return its value; an error of the API counts as not yet."""
        deadline = time.monotonic() + seconds
        problem = ""
        while True:
            try:
                if answer := holds():
                    return answer
            except httpx.HTTPError as error:
                problem = f" ({error})"
            if time.monotonic() > deadline:
                raise DockerFailed(f"waited {seconds:.0f} s in vain until {goal}{problem}; pipeline: {self.seen()}")
            time.sleep(0.5)

    # --- what the API says ---

    def log_in(self) -> None:
        """Take the token where the README says it is."""
        token = self.compose("exec", "-T", "control", "cat", "/run/cutline/api-token").strip()
        self._api.headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str) -> Any:
        """The JSON of a resource."""
        return self._api.get(path).raise_for_status().json()

    def pipeline(self) -> dict[str, Any]:
        """The pipeline's state."""
        found: dict[str, Any] = self.get("/v1/pipelines/shop")
        return found

    def seen(self) -> str:
        """The pipeline's state for a message."""
        try:
            found = self.pipeline()
        except httpx.HTTPError as error:
            return str(error)
        return json.dumps({key: value for key, value in found.items() if key != "definition"})

    def publication(self) -> int:
        """The newest checkpoint that the lake shows."""
        return int(self.pipeline()["publication"] or 0)

    def goes_on(self, cause: str) -> None:
        """Wait for two more publications: what the first one shows may be older than `cause`."""
        before = int(self.wait("the API names a publication", self.publication))
        self.wait(f"the lake goes on after {cause}", lambda: self.publication() >= before + 2)

    def live(self) -> bool:
        """Whether every table of the sample is live and shown."""
        return self.pipeline()["tables"] == {"live": 4} and self.publication() > 0

    def readers(self) -> int:
        """The number of readers in the newest epoch."""
        events = self.get("/v1/pipelines/shop/events?limit=200")
        newest = next(event["text"] for event in events if event["kind"] == "epoch")
        return int(newest.split(" with ")[1].split(" ")[0])

    def change(self) -> None:
        """Change the pipeline by the command line, as its container with the token does; without one it is refused."""
        assert self._api.get("/v1/pipelines", headers={"Authorization": ""}).status_code == 401
        change = json.dumps({"checkpoint": {"interval_seconds": INTERVAL_SECONDS}})
        self.compose("run", "--rm", "-T", "cli", "pipeline", "patch", "shop", change)
        tables = json.loads(self.compose("run", "--rm", "-T", "cli", "table", "list", "shop", "--json"))
        assert [table["phase"] for table in tables] == ["live"] * 4, tables
        self.goes_on("the pipeline was changed")
        self.say(f"changed the pipeline: a checkpoint each {INTERVAL_SECONDS} s, epoch {self.pipeline()['epoch']}")

    # --- containers ---

    def healthy(self, service: str) -> bool:
        """Whether every container of a service runs and is healthy."""
        states = [self.docker.inspect(container)["State"] for container in self.compose.containers(service)]
        return bool(states) and all(state.get("Health", {}).get("Status") == "healthy" for state in states)

    def await_health(self, *services: str) -> None:
        """Wait until every container of these services is healthy."""
        for service in services:
            self.wait(f"every {service} is healthy", partial(self.healthy, service))

    def kill(self, what: str, container: str) -> None:
        """Kill a container's process, and wait until Docker has started another and the lake goes on."""
        epoch, before = self.pipeline()["epoch"], self.docker.inspect(container)["RestartCount"]
        self.docker.crash(container)
        self.wait(f"Docker starts {what} again", lambda: self.docker.inspect(container)["RestartCount"] > before)
        if what != "the Spark writer":
            self.wait("the next epoch begins", lambda: self.pipeline()["epoch"] > epoch)
        self.goes_on(f"{what} was killed")
        self.await_health(*SERVICES)
        self.say(f"killed {what}: epoch {self.pipeline()['epoch']}, the lake shows checkpoint {self.publication()}")

    def leader(self) -> str:
        """The container of the leading enumerator."""
        leads = self.pipeline()["leader"]
        (host,) = (service["host"] for service in self.get("/v1/services") if service["incarnation"] == leads)
        return str(host)

    def scale(self, readers: int) -> None:
        """Run this number of readers, as the head of docker-compose.yml says, and wait for an epoch of that many."""
        self.compose("up", "--detach", "--no-recreate", "--no-build", "--scale", f"reader={readers}")
        self.wait(f"an epoch has {readers} readers", lambda: self.readers() == readers)
        self.goes_on(f"the readers became {readers}")
        self.say(f"{readers} readers: epoch {self.pipeline()['epoch']}")

    def upgrade(self, service: str) -> None:
        """Replace a service's containers by those of the second build."""
        self.compose("up", "--detach", "--no-build", "--no-deps", service, CUTLINE_IMAGE=SECOND)
        image = self.docker("image", "inspect", "--format", "{{.Id}}", SECOND).strip()
        for container in self.compose.containers(service):
            assert self.docker.inspect(container)["Image"] == image, service
        self.await_health(service)
        self.goes_on(f"{service} was upgraded")
        self.say(f"upgraded {service}: epoch {self.pipeline()['epoch']}, checkpoint {self.publication()} is shown")

    def on_volumes(self, command: str) -> None:
        """Run a command on the volumes that a backup has, and on a volume that keeps it."""
        named = {name: f"{self.compose.project}_{name}" for name in ("s3", "catalogue", "backup")}
        mounts = [word for name, volume in named.items() for word in ("--volume", f"{volume}:/{name}")]
        self.docker("run", "--rm", "--network", "none", *mounts, images.wanted()["debian"], "sh", "-c", command)

    def restore_a_backup(self) -> None:
        """Copy store, catalogue and lake, let the stack go on, and put the copy back."""
        copied = int(self.wait("the API names a publication", self.publication))
        self.compose("stop")
        self.on_volumes("tar --create --xattrs --file /backup/lake.tar /s3 /catalogue")
        self.compose("start")
        self.shows_a_new_epoch(after=copied)
        self.say(f"copied store, catalogue and lake at checkpoint {copied}; the lake shows {self.publication()}")
        self.compose("down")
        self.on_volumes(
            "find /s3 /catalogue -mindepth 1 -delete && tar --extract --xattrs --file /backup/lake.tar --directory /"
        )
        self.compose("up", "--detach", "--no-build", CUTLINE_IMAGE=SECOND)
        self.shows_a_new_epoch(after=copied)
        self.say(f"put the copy back: epoch {self.pipeline()['epoch']}, the lake shows checkpoint {self.publication()}")

    def shows_a_new_epoch(self, *, after: int) -> None:
        """Wait until the lake shows a checkpoint of an epoch that began after checkpoint `after`; Redis was emptied."""

        def shown() -> bool:
            epoch = self.pipeline()["epoch"] or 0
            return epoch > after and self.publication() > epoch

        self.wait("the lake shows a checkpoint of the next epoch", shown)
        self.wait("all tables are live", self.live)

    def compare(self) -> dict[str, dict[str, int]]:
        """Compare the lake with the source, in the Spark writer's container (inside.py)."""
        (container,) = self.compose.containers("spark-writer")
        with (Path(__file__).parent / "inside.py").open("rb") as script:
            output = self.docker("exec", "--interactive", container, "python", "-", stdin=script)
        found: dict[str, dict[str, int]] = json.loads(output.splitlines()[-1])
        return found


def play(stack: Stack) -> int:
    """Steps 2 to 7; return the exit code."""
    compose = stack.compose
    compose("up", "--detach", "--no-build")
    stack.log_in()
    stack.wait("all tables are live", stack.live)
    stack.await_health(*SERVICES)
    stack.say("the stack is up, every service is healthy and all tables are live")
    stack.change()
    stack.kill("a reader", compose.containers("reader")[0])
    stack.kill("a writer", compose.containers("writer")[0])
    stack.kill("the leading enumerator", stack.leader())
    stack.kill("the Spark writer", compose.containers("spark-writer")[0])
    stack.scale(4)
    stack.scale(2)
    for service in SERVICES:
        stack.upgrade(service)
    compose("up", "--detach", "--no-build", CUTLINE_IMAGE=SECOND)  # define runs again, and changes nothing
    stack.goes_on("everything was upgraded")
    assert stack.pipeline()["definition"]["checkpoint"]["interval_seconds"] == INTERVAL_SECONDS
    stack.restore_a_backup()

    compose("stop", "shop")
    stack.say("the changes stop")
    compared = stack.compare()
    for name, counts in compared.items():
        stack.say(f"{name}: {counts['rows']:,} rows, {counts['differences']} differences")
    rows, wrong = (sum(counts[what] for counts in compared.values()) for what in ("rows", "differences"))
    done = f"4 kills, {len(SERVICES)} services upgraded, a backup put back"
    print(f"acceptance: {len(compared)} tables, {rows} rows, {done}, {wrong} differences")
    return 1 if wrong or len(compared) != 4 else 0


@contextmanager
def project(docker: Docker) -> Iterator[Stack]:
    """The project of this run, taken down at the end; its logs are kept if the block fails."""
    port = free_port()
    settings = {"CUTLINE_IMAGE": FIRST, "CUTLINE_PORT": str(port)}
    compose = Compose(docker, ROOT, f"cutline{secrets.token_hex(3)}", settings)
    try:
        yield Stack(compose, port)
    except BaseException:
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text(compose("ps") + compose("logs", "--no-color", "--timestamps"), encoding="utf-8")
        print(f"acceptance: the containers' logs are in {LOG.relative_to(ROOT)}", file=sys.stderr)
        raise
    finally:
        compose("down", "--volumes", "--timeout", "20")
        docker("volume", "rm", "--force", f"{compose.project}_backup")


def main() -> int:
    """Run it all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", action="store_true", help="use this machine's Docker and its registry")
    parser.add_argument("--folder", type=Path, help="keep the daemon's files here")
    chosen = parser.parse_args()
    try:
        program("docker-compose")
        with nullcontext(Docker(None)) if chosen.machine else daemon(chosen.folder) as docker:
            if not chosen.machine:
                images.make(docker)
            for tag in (FIRST, SECOND):
                docker.build(tag, ROOT, EXTRAS="s3", WITH="s3", VERSION=tag.partition(":")[2])
            with project(docker) as stack:
                return play(stack)
    except (Missing, DockerFailed, subprocess.SubprocessError) as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
