"""What only the tests with a real Spark share: one session, in the test process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark of all tests; started when the first asks for it."""
    from spark_writer import session

    started = session.start({"spark.driver.memory": "1g"})
    yield started
    started.stop()
