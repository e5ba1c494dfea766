"""`api_tables`: how fast the control service lists the tables of a pipeline of thousands, while the pipeline runs."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Iterator

import httpx

from tests.support.databases import Database
from tools.bench.many import Crowd
from tools.bench.readers import Figures

PER_SECOND = 20
SECONDS = 20.0
CHANGED = 200
"""Tables that each transaction changes, one transaction a second."""


def api_tables(crowd: Crowd) -> Figures:
    """Ask for all tables PER_SECOND times a second for SECONDS, each at its time, however long the last answer takes.

    `p99_ms` is from the time at which a request was due to the last byte of its answer; `cpu_ms_per_request` is the
    control service's.
    """
    with _changing(crowd.mesh.server, crowd.database):
        crowd.checkpoints(2)
        with crowd.mesh.metered() as meter:
            figures = asyncio.run(_asked(crowd))
    spent = 1000 * meter.cpu_of["control"] / (PER_SECOND * SECONDS)
    return figures | {"cpu_ms_per_request": round(spent, 1)}


async def _asked(crowd: Crowd) -> Figures:
    path = f"/v1/pipelines/{crowd.config.name}/tables"
    headers = {"Authorization": f"Bearer {crowd.mesh.api_token}"}
    limits = httpx.Limits(max_connections=PER_SECOND, keepalive_expiry=2.0)
    took: list[float] = []
    async with httpx.AsyncClient(base_url=crowd.mesh.api_url, headers=headers, limits=limits, timeout=60) as client:
        answer = await client.get(path)  # the service reads the journal at its first request
        if len(answer.json()) != crowd.tables:
            raise RuntimeError(f"the API lists {len(answer.json())} of {crowd.tables} tables")
        size = len(answer.content)

        async def ask(due: float) -> None:
            await asyncio.sleep(due - time.monotonic())
            (await client.get(path)).raise_for_status()
            took.append(1000 * (time.monotonic() - due))

        begun = time.monotonic() + 0.1
        await asyncio.gather(*(ask(begun + n / PER_SECOND) for n in range(int(PER_SECOND * SECONDS))))
    cuts = statistics.quantiles(took, n=100)
    return {
        "tables": crowd.tables,
        "requests_per_second": PER_SECOND,
        "answer_bytes": size,
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(max(took), 1),
    }


@contextlib.contextmanager
def _changing(server: Database, database: str) -> Iterator[None]:
    """Change rows of CHANGED tables in a transaction, again and again."""
    ends = threading.Event()

    def change() -> None:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            while not ends.wait(1.0):
                cursor.execute(f"CALL {database}.alter_all({CHANGED})")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
