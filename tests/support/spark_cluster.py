"""A Spark standalone cluster from the package pyspark, on loopback."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import psutil
import pyspark

from cutline.common import programs


class Cluster:
    """A Spark standalone master and two workers of one core each, on loopback; `settings` are those of its drivers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._master = self._of_log(self._start("master", "Master", "--port", "0"), "Starting Spark master at ")
        for name in ("one", "two"):
            worker = ["--cores", "1", "--memory", "1g", "-d", str(folder / name), self._master]
            self._of_log(self._start(name, "Worker", *worker), "Successfully registered with master ")
        self.settings = {
            "spark.master": self._master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.network.timeout": "20s",  # a lost machine is noticed within it
            "spark.network.timeoutInterval": "5s",
            "spark.executor.heartbeatInterval": "2s",
        }

    def _start(self, name: str, what: str, *words: str) -> Path:
        log = self._folder / f"{name}.log"
        home = Path(pyspark.__file__).parent
        place = f"org.apache.spark.deploy.{what.lower()}.{what}"
        command = [
            programs.java().path,
            "-Xmx256m",
            "-Dspark.master.rest.enabled=false",  # it has a port of its own
            "-cp",
            f"{home}/jars/*",
            place,
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
        ]
        environ = os.environ | {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}  # of a package, not of a build
        environ["SPARK_LOCAL_DIRS"] = str(self._folder)
        with log.open("wb") as output:
            self._started.append(
                subprocess.Popen([*command, *words], stdout=output, stderr=output, env=environ, cwd=self._folder)
            )
        return log

    def _of_log(self, log: Path, text: str, seconds: float = 60.0) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = log.read_text(errors="replace").partition(text)[2]
            if "\n" in found:
                return found.split()[0].rstrip(",.")
            time.sleep(0.1)
        raise AssertionError(log.read_text(errors="replace")[-2000:])

    def executors(self) -> list[psutil.Process]:
        children = [child for worker in self._started[1:] for child in psutil.Process(worker.pid).children()]
        return [child for child in children if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())]

    def kill_worker(self) -> None:
        """Kill the last worker and its executors: the loss of a machine."""
        lost = [psutil.Process(self._started[-1].pid), *psutil.Process(self._started[-1].pid).children(recursive=True)]
        for process in lost:
            process.kill()

    def close(self) -> None:
        for started in reversed(self._started):
            found = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
            for process in found:
                process.kill()
            started.kill()
            started.wait(10)
