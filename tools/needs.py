"""What a target of the Makefile needs beyond `make setup`: `python -m tools.needs TARGET` fetches and builds it.

A target's own work begins after that, so that what can't be had ends it at once, and no long step goes on in silence.
What is there already (in the cache folder) costs nothing. What is small comes first.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cutline.common.errors import CutlineError
from cutline.spark_writer import jars
from tests.acceptance import images
from tests.acceptance.measuring import adapter
from tests.acceptance.node import COREDNS, KUBE_ROUTER
from tests.support.lake_servers import iceberg_rest, versitygw
from tools.builds import go_program
from tools.kubernetes import kubernetes
from tools.manifests import HELM
from tools.programs import Missing

TRIES, PAUSE_SECONDS = 3, 5.0
"""A registry may not answer for a moment: the pause doubles with each try."""
STILL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Need:
    """Something that is fetched or built once, what that costs on two cores, and how it is made."""

    name: str
    costs: str
    make: Callable[[], object]


JARS = Need("Spark's jars for S3", "69 MB", lambda: jars.fetch(jars.folder(), extras=("s3",)))
REST = Need("the jars of Iceberg's REST catalogue", "19 MB", iceberg_rest)
SYSTEMS = Need("the systems of the images, by debootstrap", "3 minutes", images.systems)
S3_SERVER = Need("VersityGW, an S3 server", "2 minutes", versitygw)
HELM_PROGRAM = Need("Helm", "4 minutes", lambda: go_program(HELM))
ADAPTER = Need("Prometheus's adapter", "5 minutes", adapter)
NAMES = Need("CoreDNS", "5 minutes", lambda: go_program(COREDNS))
POLICIES = Need("kube-router", "5 minutes", lambda: go_program(KUBE_ROUTER))
KUBERNETES = Need("Kubernetes", "15 minutes", kubernetes)

NEEDS: dict[str, tuple[Need, ...]] = {
    "acceptance": (SYSTEMS, S3_SERVER),
    "acceptance-kubernetes": (
        JARS, REST, SYSTEMS, S3_SERVER, HELM_PROGRAM, ADAPTER, NAMES, POLICIES, KUBERNETES,
    ),
    "manifests": (HELM_PROGRAM,),
    "test-full": (JARS, REST, S3_SERVER, HELM_PROGRAM, KUBERNETES),
}  # fmt: skip


@contextmanager
def progress(need: Need) -> Iterator[None]:
    """Print that the work goes on, now and then, and what it took if that was long."""
    begun, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        if not ended.wait(1.0):  # what is there already is not worth a line
            print(f"cutline: getting {need.name} (once; about {need.costs})", file=sys.stderr, flush=True)
        while not ended.wait(STILL_SECONDS):
            print(f"cutline: {need.name}: {time.monotonic() - begun:.0f} s so far", file=sys.stderr, flush=True)

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield
    finally:
        ended.set()
        telling.join()


def get(need: Need, pause: Callable[[float], None] = time.sleep) -> None:
    """Fetch or build it; Missing or CutlineError if that failed in all tries."""
    for tried in range(1, TRIES + 1):
        try:
            with progress(need):
                need.make()
            return
        except (Missing, CutlineError, subprocess.SubprocessError) as error:
            if tried == TRIES:
                raise
            seconds = PAUSE_SECONDS * 2 ** (tried - 1)
            print(f"cutline: {need.name}: {error}; trying again in {seconds:.0f} s", file=sys.stderr, flush=True)
            pause(seconds)


def main() -> int:
    """Get what the target of the first argument needs; return the exit code."""
    try:
        for need in NEEDS[sys.argv[1]]:
            get(need)
    except (Missing, CutlineError, subprocess.SubprocessError) as error:
        print(f"cutline: make {sys.argv[1]} can't begin: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
