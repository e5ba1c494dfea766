"""`python -m cutline.spark_writer`: serves pipelines of the store `$CUTLINE_STORE_URL` with one embedded Spark.

With `$CUTLINE_REDIS_URL` any number of these processes share the pipelines out (leading.py); without it, one serves
them all, publishes no status and takes no requests.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping

from cutline.common import logs, threads
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, CutlineError
from cutline.common.mesh.host import raise_open_files
from cutline.common.mesh.redis import connect
from cutline.common.status.pipeline_status import SPARK_WRITER
from cutline.common.store.lives import Key
from cutline.common.store.store import Store
from cutline.spark_writer import previewing, production, session
from cutline.spark_writer.driver import serve
from cutline.spark_writer.lead import Lead
from cutline.spark_writer.leading import LEASE_SECONDS, Replica

REDIS_SECONDS = LEASE_SECONDS / 3


async def run(environment: Environment) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError or Unavailable if Spark can't be started."""
    store = Store(environment.need_store_url())
    stop, serving = threading.Event(), threads.Threads("serve")

    def work(leads: Callable[[Collection[Key]], Mapping[Key, Lead]] | None) -> None:
        """Start Spark, which takes a while, and serve."""
        ports = production.ports(store, environment.spark(), environment.function_seconds)
        serve(store, stop, ports, leads, metrics_tables=environment.metrics_tables)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if environment.redis_url is None:
        logs.say_started(SPARK_WRITER, SPARK_WRITER, environment)
        await serving.call(work, None)
        return
    redis = connect(environment.redis_url, timeout_seconds=REDIS_SECONDS)
    replica = Replica(redis, stop)
    logs.say_started(SPARK_WRITER, replica.incarnation, environment)
    leading = asyncio.create_task(replica.run())
    leading.add_done_callback(lambda _: stop.set())
    previews = asyncio.create_task(previewing.serve(redis))
    try:
        await serving.call(work, replica.leads)
        if leading.done():
            leading.result()
    finally:
        stop.set()
        previews.cancel()
        leading.cancel()
        await asyncio.wait([leading, previews])
        await replica.leave()
        await redis.aclose()


def main() -> int:
    """Run the service; return its exit code: 0 stopped, 1 failed, 2 wrong configuration."""
    try:
        environment = Environment.read()
        logs.configure(environment)
        raise_open_files()
        threads.run(run(environment))
    except CutlineError as error:
        print(f"cutline spark_writer: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    finally:
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
