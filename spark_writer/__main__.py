"""`python -m spark_writer`: serves every pipeline of the store `$CUTLINE_STORE_URL` with one embedded Spark."""

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import PipelineConfig, RetentionConfig
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.mesh.host import raise_open_files
from cutline.common.mesh.presence import SPARK_WRITER, Registry, Service
from cutline.common.mesh.redis import connect
from cutline.common.store.store import Store
from cutline.spark_writer import session
from cutline.spark_writer.apply import PipelineApplier
from cutline.spark_writer.iceberg.lake import Lake

logger = logging.getLogger("cutline.spark_writer")
LOOK_SECONDS = 0.5


def serve(
    store: Store,
    stop: threading.Event,
    tell: Callable[[str, Mapping[str, Any]], None],
    asked: Callable[[str], bool] = lambda pipeline: False,
) -> None:
    """Serve every pipeline that the store has or gets, each in a thread of its own, until `stop`.

    `tell(pipeline, status)` is called by those threads, and so is `asked(pipeline)`: whether a person has asked since
    it was last called that quarantined tables are tried again. Raises ConfigError or Unavailable if Spark can't be
    started or has ended.
    """
    definitions = {name: store.pipeline(name).definition() or {} for name in store.pipelines()}
    settings: dict[str, str] = {}
    for definition in definitions.values():
        settings |= definition["sink"].get("spark") or {}
    spark = session.start(settings)
    threads: dict[str, threading.Thread] = {}
    while not stop.is_set():
        with suppress(Unavailable):  # the store, whose pipelines are looked for again
            for name in store.pipelines():
                if name not in threads:
                    one = _applier(store, name, spark, tell, asked)
                    threads[name] = threading.Thread(target=one.run, args=(stop,), name=f"cutline-{name}", daemon=True)
                    threads[name].start()
        _check(spark)
        stop.wait(LOOK_SECONDS)
    for thread in threads.values():
        thread.join()


def _check(spark: Any) -> None:
    """Raise Unavailable if Spark has ended: only another process can start it again."""
    try:
        ended = spark.sparkContext._jsc.sc().isStopped()
    except Exception as error:
        raise Unavailable(f"Spark's JVM does not answer ({session.first_line(error)}); starting again") from error
    if ended:
        raise Unavailable("Spark has stopped; starting again")


def _applier(
    store: Store,
    name: str,
    spark: Any,
    tell: Callable[[str, Mapping[str, Any]], None],
    asked: Callable[[str], bool],
) -> PipelineApplier:
    pipeline = store.pipeline(name)

    def open_lake() -> tuple[Lake, RetentionConfig]:
        definition = pipeline.definition()
        if definition is None:
            raise ConfigError(
                f"pipeline {name} has no definition in the store any more; start it again by `cutline run`"
            )
        lake = Lake(session.for_pipeline(spark, definition["sink"]), name)
        return lake, PipelineConfig.from_definition(definition).retention

    return PipelineApplier(pipeline, open_lake, tell=lambda status: tell(name, status), asked=lambda: asked(name))


class Status:
    """What this process shows of itself in Redis, and looks for there, each second; the store is the truth, so Redis
    may be away.
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
        self._retries: set[str] = set()

    def asked(self, pipeline: str) -> bool:
        """Whether a retry was asked for since the last call; called by any thread."""
        there = pipeline in self._retries
        self._retries.discard(pipeline)
        return there

    def tell(self, pipeline: str, status: Mapping[str, Any]) -> None:
        """Note the newest status of a pipeline; called by any thread."""
        self._newest[pipeline] = {**status, "pid": os.getpid()}

    async def show(self) -> None:
        """Show presence and statuses for ever."""
        while True:
            with suppress(Unavailable):
                await self._registry.announce_presence(self._service)
                for pipeline, status in list(self._newest.items()):
                    await self._registry.put_status(pipeline, "spark_writer", status)
                    # Asked until the next generation has come, so no request that is lost matters.
                    for table, generation in (status.get("read_again") or {}).items():
                        request = {"kind": "read again", "table": table, "generation": generation}
                        await self._registry.request(pipeline, request)
                    if await self._registry.take_requests(pipeline, to=SPARK_WRITER):
                        self._retries.add(pipeline)
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
        await asyncio.to_thread(serve, store, stop, status.tell, status.asked)
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
