"""Debezium and Flink CDC: a small Java program around each, its jars from Maven, one JVM for each measurement.

The first use fetches the jars into the cache folder, a folder for each pom.xml. A measurement begins at the connector's
log line about its start and ends at the last row in a sink that counts rows (Marks.java), so it excludes the start of
the JVM; CPU is that of the JVM between these two, memory its peak.
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

from cutline.common.config.environment import cache_folder
from tools.builds import built_once
from tools.programs import Missing, program

HERE = Path(__file__).resolve().parent
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_OPEN = ("java.util", "java.lang", "java.net", "java.nio", "java.time")
_LONGEST_SECONDS = 900


class Failed(RuntimeError):
    """A reader ended before it had all rows."""


class Peer:
    """One of the two; `with` compiles its program and removes the compiled files at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        pom = HERE / name / "pom.xml"
        found = re.search("<peer.version>(.*?)</peer.version>", pom.read_text())
        assert found is not None
        self.version = found[1].removesuffix(".Final")
        self._jars = cache_folder() / "peers" / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:8]}"
        self._folder = tempfile.TemporaryDirectory(prefix=f"cutline-{name}-")

    def __enter__(self) -> Peer:
        """Fetch the jars and compile; Missing if Maven, a jar or a compiler is not available."""
        with built_once(self._jars) as building:
            if building is not None:
                pom = ["-f", str(HERE / self.name / "pom.xml")]
                out = [f"-DoutputDirectory={building}", "-DincludeScope=runtime"]
                _done([program("mvn"), "-B", "-q", *pom, _COPY, *out], f"the jars of {self.name}")
        sources = [str(path) for path in (HERE / "Marks.java", *sorted((HERE / self.name).glob("*.java")))]
        compiler = program("javac")
        _done(
            [compiler, "-nowarn", "-d", self._folder.name, "-cp", f"{self._jars}/*", *sources],
            f"the compiled program of {self.name}",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def run(self, *arguments: str | int) -> dict[str, Any]:
        """Run the program with MODE PORT ROWS, a scratch folder and the rest; return its figures, or raise Failed."""
        mode, port, rows, *rest = map(str, arguments)
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN]
        path = f"{self._folder.name}:{HERE / self.name}:{self._jars}/*"
        with tempfile.TemporaryDirectory(prefix="cutline-peer-") as folder:
            command = [program("java"), "-Xmx2g", *opens, "-cp", path, "Peer", mode, port, rows, folder, *rest]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=folder, timeout=_LONGEST_SECONDS
            )
            if done.returncode:
                raise Failed(f"{self.name} {mode} ended with exit code {done.returncode}: {done.stderr[-1000:]}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def _done(command: Sequence[str], wanted: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Missing(f"could not get {wanted}: {(done.stdout + done.stderr)[-1500:]}")


@contextlib.contextmanager
def peers(names: Sequence[str]) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
    """The named readers that are available, and the reasons why the others are not."""
    available: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                available[name] = stack.enter_context(Peer(name))
            except Missing as reason:
                missing[name] = str(reason)
        yield available, missing
