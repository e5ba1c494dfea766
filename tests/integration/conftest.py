"""Fixtures of the integration tests: a Spark in the test process and a bench on it, a client of an empty Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis as Client

from cutline.common.mesh.redis import connect
from tests.conftest import started
from tests.servers import Redis

if TYPE_CHECKING:
    from tests.integration.spark_bench import SparkBench


@pytest.fixture(scope="session")
def spark() -> Any:
    """The one Spark of all tests; the first test that uses it starts it, `nothing_left_running` stops it."""
    from cutline.spark_writer import session

    return session.start({"spark.driver.memory": "1g"})


@pytest.fixture
def bench(spark: Any, tmp_path: Path) -> Iterator[SparkBench]:
    """A Spark writer of this test, whose settings are the defaults."""
    from tests.integration.spark_bench import SparkBench

    made = SparkBench(spark, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module", params=Redis.BY)
def server(nothing_left_running: None, request: pytest.FixtureRequest) -> Iterator[Redis]:
    """The module's own Redis or Valkey, which its tests may kill; the tests run once on each."""
    server = Redis(request.param)
    with started(server):
        yield server


@pytest.fixture
async def redis(server: Redis) -> AsyncIterator[Client]:
    """A client of `server`, which is running and empty at the start of the test."""
    server.start()
    server.flush()
    client = connect(server.url)
    yield client
    await client.aclose()
