"""Debezium and Flink CDC: their jars by Maven at first use, a small main around each, a JVM a measurement.

The jars stay in ~/.cache/cutline/peers, a folder for each pom.xml. The window begins at the connector's own log line
that it begins and ends at the last row in a sink that counts (Marks.java), so the start of the JVM is not in it; CPU is
that of the JVM within the window, memory its peak.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cutline.common.config import cache_folder
from tests.programs import Missing, program
from tests.servers import built_once

HERE = Path(__file__).resolve().parent
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_OPEN = ("java.util", "java.lang", "java.net", "java.nio", "java.time")
_LONGEST_SECONDS = 900


class Failed(RuntimeError):
    """A peer did not end with all rows."""


class Peer:
    """One of them, compiled; `with` gives it and removes what was compiled."""

    def __init__(self, name: str) -> None:
        self.name = name
        pom = HERE / name / "pom.xml"
        found = re.search("<peer.version>(.*?)</peer.version>", pom.read_text())
        assert found is not None
        self.version = found[1].removesuffix(".Final")
        self._jars = cache_folder() / "peers" / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:8]}"
        self._folder = tempfile.TemporaryDirectory(prefix=f"cutline-{name}-")

    def __enter__(self) -> Peer:
        """Missing if Maven, its jars or a compiler are not to be had."""
        with built_once(self._jars) as building:
            if building is not None:
                pom = ["-f", str(HERE / self.name / "pom.xml")]
                out = [f"-DoutputDirectory={building}", "-DincludeScope=runtime"]
                _done([program("mvn"), "-B", "-q", *pom, _COPY, *out], f"the jars of {self.name}")
        sources = [str(path) for path in (HERE / "Marks.java", *sorted((HERE / self.name).glob("*.java")))]
        compiler = program("javac")
        _done(
            [compiler, "-nowarn", "-d", self._folder.name, "-cp", f"{self._jars}/*", *sources],
            f"the main of {self.name}",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def run(self, *arguments: str | int) -> dict[str, Any]:
        """What the main prints for MODE PORT ROWS, a scratch folder and the rest; Failed with what it said."""
        mode, port, rows, *rest = map(str, arguments)
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN]
        path = f"{self._folder.name}:{HERE / self.name}:{self._jars}/*"
        with tempfile.TemporaryDirectory(prefix="cutline-peer-") as folder:
            command = [program("java"), "-Xmx2g", *opens, "-cp", path, "Peer", mode, port, rows, folder, *rest]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=folder, timeout=_LONGEST_SECONDS
            )
            if done.returncode:
                raise Failed(f"{self.name} {mode} ended with {done.returncode}: {done.stderr[-1000:]}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def _done(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Missing(f"{what} can't be had: {(done.stdout + done.stderr)[-1500:]}")


@contextlib.contextmanager
def peers(names: Sequence[str]) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
    """Those of the named ones that can be had, and why the others can't."""
    there: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                there[name] = stack.enter_context(Peer(name))
            except Missing as reason:
                missing[name] = str(reason)
        yield there, missing
