"""`python -m cutline.spark_writer`: serves every pipeline of the store `$CUTLINE_STORE_URL` with one embedded Spark."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.mesh.host import raise_open_files
from cutline.common.mesh.presence import SPARK_WRITER, Registry, Service
from cutline.common.mesh.redis import connect
from cutline.common.store.store import Store
from cutline.spark_writer import session
from cutline.spark_writer.serve import serve

logger = logging.getLogger("cutline.spark_writer")


class Status:
    """Publishes this process and the status of its pipelines in Redis, and takes requests from there, once a second.

    An unreachable Redis stops nothing: only the store is needed to apply checkpoints.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._service = Service(
            incarnation=f"spark_writer-{secrets.token_hex(6)}",
            role="spark_writer",
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=time.time(),
        )
        self._newest: dict[str, Mapping[str, Any]] = {}
        self._requests: dict[str, list[dict[str, Any]]] = {}

    def requests(self, pipeline: str) -> list[dict[str, Any]]:
        """Return the requests to a pipeline since the last call; called by any thread."""
        return self._requests.pop(pipeline, [])

    def report(self, pipeline: str, status: Mapping[str, Any]) -> None:
        """Note the newest status of a pipeline, for `show` to publish; may be called in any thread."""
        self._newest[pipeline] = {**status, "pid": os.getpid()}

    async def show(self) -> None:
        """Publish presence and statuses, and take requests, until cancelled."""
        while True:
            with suppress(Unavailable):
                await self._registry.announce_presence(self._service)
                for pipeline, status in list(self._newest.items()):
                    await self._registry.put_status(pipeline, "spark_writer", status)
                    # Requested until the next generation has come, so a lost request does no harm.
                    for table, generation in (status.get("read_again") or {}).items():
                        request = {"kind": "read again", "table": table, "generation": generation}
                        await self._registry.request(pipeline, request)
                    taken = await self._registry.take_requests(pipeline, to=SPARK_WRITER)
                    if taken:
                        self._requests[pipeline] = self._requests.pop(pipeline, []) + taken
            await asyncio.sleep(1.0)

    async def leave(self) -> None:
        """Withdraw the presence."""
        with suppress(Unavailable):
            await self._registry.withdraw_presence(self._service.incarnation)


async def run(environment: Environment) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError or Unavailable if Spark can't be started."""
    store = Store(environment.need_store_url())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if environment.redis_url is None:
        await asyncio.to_thread(serve, store, stop, lambda pipeline, status: None)
        return
    redis = connect(environment.redis_url)
    status = Status(Registry(redis))
    showing = asyncio.create_task(status.show())
    try:
        await asyncio.to_thread(serve, store, stop, status.report, status.requests)
    finally:
        showing.cancel()
        await status.leave()
        await redis.aclose()


def main() -> int:
    """Run the service; return its exit code: 0 stopped, 1 failed, 2 wrong configuration."""
    try:
        environment = Environment.read()
        logging.basicConfig(
            level=environment.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
        )
        logging.getLogger("py4j").setLevel(logging.WARNING)
        raise_open_files()
        asyncio.run(run(environment))
    except CutlineError as error:
        print(f"cutline spark_writer: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    finally:
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
