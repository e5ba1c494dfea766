"""Fixtures of the integration tests: a Spark in the test process and a bench on it, a client of an empty Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis as Client

from cutline.common.mesh.redis import connect
from tests.conftest import started
from tests.support.lake_servers import S3
from tests.support.redis_servers import Redis

if TYPE_CHECKING:
    from tests.support.spark_bench import SparkBench


@pytest.fixture(scope="session")
def spark() -> Any:
    """The one Spark of all tests; the first test that uses it starts it, `nothing_left_running` stops it."""
    from cutline.spark_writer import session

    return session.start({"spark.driver.memory": "1g"})


@pytest.fixture
def on_s3(s3: S3, spark: Any, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, known to this process by its environment, as the store needs it."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)  # of the tasks' own processes
    return s3


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where a bench has its store and its lake: in folders of the test, or as `spark_bench.EVERYWHERE` says."""
    if getattr(request, "param", "folders") == "folders":
        return {}
    s3, postgresql = request.getfixturevalue("on_s3"), request.getfixturevalue("postgresql")
    place = f"s3://lake/{tmp_path.name}"
    sink = {"warehouse": f"{place}/lake", "catalog": {**postgresql.create(), **s3.catalog}}
    return {"store_url": f"{place}/store", "sink": sink}


@pytest.fixture
def bench(spark: Any, tmp_path: Path, places: dict[str, Any]) -> Iterator[SparkBench]:
    """A Spark writer of this test, whose settings are the defaults."""
    from tests.support.spark_bench import SparkBench

    made = SparkBench(spark, tmp_path, **places)
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
