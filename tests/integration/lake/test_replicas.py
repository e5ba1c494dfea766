"""Several Spark writers as real processes on one real lake: who leads which pipeline, and what the lake shows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cutline.common.mesh.lease import lease_name
from cutline.common.status.pipeline_status import SPARK_WRITER
from cutline.spark_writer.leading import LEASE_SECONDS
from tests.support.mesh import ROOT, waited
from tests.support.redis_servers import Redis
from tests.support.spark_bench import Row, SparkBench, schema

MOVES_SECONDS = 15.0
NAMES = ("crm", "log", "shop")
TABLES = {name: schema(f"{name}.orders", ("id",), id="bigint", note="varchar(40)") for name in NAMES}


class Replicas:
    """Pipelines whose journals the test writes, and the Spark writers that share them out."""

    def __init__(self, spark: Any, folder: Path, redis: Redis, names: Sequence[str]) -> None:
        self.folder, self.redis = folder, redis
        self.benches = {name: SparkBench(spark, folder, name=name) for name in names}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._count = 0
        for name, bench in self.benches.items():
            bench.journal.table(TABLES[name])
            bench.journal.chunk(TABLES[name], [self._row(number, "chunk") for number in range(20)])
            bench.journal.checkpoint()

    @staticmethod
    def _row(number: int, note: str) -> Row:
        return {"id": number, "note": note}

    def start(self) -> subprocess.Popen[bytes]:
        temporary = self.folder / f"tmp-{len(self.processes)}"  # a killed process leaves its files there
        temporary.mkdir()
        environ = os.environ | {
            "TMPDIR": str(temporary),
            "CUTLINE_REDIS_URL": self.redis.url,
            "CUTLINE_STORE_URL": f"file://{self.folder}/store",
            "PYTHONPATH": str(ROOT),
        }
        with (self.folder / f"spark_writer-{len(self.processes)}.log").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "cutline.spark_writer"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its JVM too
            process.wait()
        for bench in self.benches.values():
            bench.close()

    def log(self, process: subprocess.Popen[bytes]) -> str:
        path = self.folder / f"spark_writer-{self.processes.index(process)}.log"
        return path.read_text(errors="replace")

    def change(self) -> dict[str, int]:
        """A change in each pipeline: an insert, an update and a delete; return the checkpoints."""
        self._count += 1
        at, found = self._count, {}
        for name, bench in self.benches.items():
            rows = (
                ("+I", self._row(1000 + at, "new")),
                ("+U", self._row(at % 10, f"{at}")),
                ("-D", self._row(999 + at, "")),
            )
            bench.journal.change(TABLES[name], *rows)
            found[name] = bench.journal.checkpoint()
        return found

    def published(self, wanted: dict[str, int]) -> bool:
        return all(n in self.benches[name].journal.store.publication_numbers(n - 1) for name, n in wanted.items())

    def leaders(self) -> dict[str, int]:
        """The process id that leads each pipeline, by its presence; {} unless leases, statuses and presences agree."""
        found = {}
        with self.redis.client() as client:
            for name, bench in self.benches.items():
                key = bench.journal.store.key
                owner: Any = client.get(lease_name(key, SPARK_WRITER))
                status: Any = client.hget(f"cutline:status:{key}", SPARK_WRITER)
                known = json.loads(status) if status else {}
                if owner is None or known.get("leader") != owner.decode():
                    return {}
                service: Any = client.get(f"cutline:service:{owner.decode()}")
                if service is None:
                    return {}
                found[name] = json.loads(service)["pid"]
        return found

    def shares(self, *processes: subprocess.Popen[bytes]) -> list[int]:
        counts = Counter(self.leaders().values())
        return sorted(counts[process.pid] for process in processes)

    def until_shares(self, counts: list[int], *processes: subprocess.Popen[bytes]) -> None:
        """Wait for the statuses: a new leader's is written at its next look, which may be after its publication.

        A leader that does not look for so long has lost its lease.
        """
        self.until(lambda: self.shares(*processes) == counts, f"the shares {counts}", LEASE_SECONDS)

    def until(self, condition: Callable[[], object], goal: str, seconds: float = 90.0) -> float:
        """Wait, and return for how long; a failure shows the ends of the logs."""
        began = time.monotonic()
        waited(condition, goal, seconds, lambda: "\n".join(f"--- {self.log(p)[-3000:]}" for p in self.processes))
        return time.monotonic() - began

    def check(self) -> None:
        """Compare every publication with the model, and `main` with the newest checkpoint; none is listed twice."""
        for bench in self.benches.values():
            assert bench.agree() > 0
            assert bench.journal.store.publications()[-1].n == max(bench.journal.at)
            listed = bench.session.sql(
                f"SELECT checkpoint, `table` FROM lake._cutline.publications WHERE pipeline = '{bench.journal.name}'"
            ).toArrow()
            assert max(Counter((row["checkpoint"], row["table"]) for row in listed.to_pylist()).values()) == 1


@pytest.fixture
def replicas(spark: Any, redis_url: str, redis_server: Redis, tmp_path: Path) -> Iterator[Callable[..., Replicas]]:
    made: list[Replicas] = []

    def make(names: Sequence[str]) -> Replicas:
        made.append(Replicas(spark, tmp_path, redis_server, names))
        return made[-1]

    yield make
    for replicas in made:
        replicas.close()


@pytest.mark.alone
def test_the_pipelines_of_a_killed_spark_writer_move_within_15_seconds(replicas: Callable[..., Replicas]) -> None:
    found = replicas(NAMES[:2])
    first, second = found.start(), found.start()
    found.until(lambda: found.shares(first, second) == [1, 1], "equal shares")
    last = found.change()
    found.until(lambda: found.published(last), "publications", 60)
    first.kill()
    last = found.change()
    assert found.until(lambda: found.published(last), "the publications by the other", 60) < MOVES_SECONDS
    found.until_shares([2], second)
    found.check()


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(900)
def test_pipelines_are_exact_while_spark_writers_join_are_killed_are_suspended_and_leave(
    replicas: Callable[..., Replicas],
) -> None:
    """1. Two share three pipelines. 2. A third joins and takes its share, while all of them change. 3. One is killed.
    4. One is suspended, wakes when its pipelines have moved, and gets a share again. 5. A fourth joins, and one leaves.
    """
    found = replicas(NAMES)

    def changing(condition: Callable[[], object]) -> Callable[[], object]:
        def changed() -> object:
            found.change()
            time.sleep(0.3)
            return condition()

        return changed

    first, second = found.start(), found.start()
    found.until(lambda: found.shares(first, second) == [1, 2], "the shares of two")
    last = found.change()
    found.until(lambda: found.published(last), "publications by two")

    third = found.start()
    found.until(changing(lambda: found.shares(first, second, third) == [1, 1, 1]), "the shares of three")
    last = found.change()
    found.until(lambda: found.published(last), "publications by three")
    assert not any("starting again" in found.log(process) for process in (first, second, third))

    first.kill()
    last = found.change()
    assert found.until(lambda: found.published(last), "publications after a kill") < MOVES_SECONDS
    found.until_shares([1, 2], second, third)

    leaders = found.leaders()
    zombie, other = (second, third) if Counter(leaders.values())[second.pid] == 2 else (third, second)
    os.kill(zombie.pid, signal.SIGSTOP)
    last = found.change()
    assert found.until(lambda: found.published(last), "publications while one is suspended") < MOVES_SECONDS
    found.until_shares([3], other)
    found.change()
    os.kill(zombie.pid, signal.SIGCONT)
    found.until(changing(lambda: "lease was lost" in found.log(zombie)), "the loss of the lease")
    found.until(changing(lambda: found.shares(zombie, other) == [1, 2]), "a share for the one that woke up")

    fourth = found.start()
    found.until(changing(lambda: found.shares(zombie, other, fourth) == [1, 1, 1]), "the shares of three again")
    other.terminate()
    last = found.change()
    took = found.until(lambda: found.published(last), "publications after one left")
    assert took < MOVES_SECONDS
    assert other.wait(30) == 0
    found.until_shares([1, 2], zombie, fourth)
    found.check()
