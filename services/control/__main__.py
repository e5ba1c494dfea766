"""`python -m cutline.services.control`: the control API on CUTLINE_API_HOST and CUTLINE_API_PORT."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from contextlib import suppress

import uvicorn

from cutline.common import logs
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.mesh.host import raise_open_files
from cutline.common.mesh.presence import Registry, Service
from cutline.common.mesh.redis import connect
from cutline.common.store.store import Store
from cutline.services.control.app import build
from cutline.services.control.watch import jobs_of, watch


async def serve(environment: Environment) -> None:
    """Serve until SIGTERM or SIGINT, announced in Redis as the service "control" while Redis answers."""
    redis = connect(environment.need_redis_url())
    registry, store = Registry(redis), Store(environment.need_store_url())
    jobs = jobs_of(environment, redis, store)
    app = build(registry, store, token=environment.api_token, metrics_tables=environment.metrics_tables)
    listener = uvicorn.Server(
        uvicorn.Config(
            app,
            host=environment.api_host,
            port=environment.api_port,
            log_level=environment.log_level.lower(),
            log_config=None,  # its lines go where ours go
            access_log=False,
        )
    )
    me = Service(
        incarnation=secrets.token_hex(8),
        role="control",
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=time.time(),
    )
    logs.note_service(me.incarnation)
    presence = asyncio.create_task(_announce(registry, me))
    watching = asyncio.create_task(watch(registry, store, redis, jobs, me.incarnation))
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn installs its own handlers. When it ends it raises the signal again, before our presence is withdrawn.
        signal.signal(number, signal.SIG_IGN)
    try:
        await listener.serve()
    finally:
        for task in (presence, watching):
            task.cancel()
        await asyncio.wait([presence, watching])
        with suppress(Unavailable):
            await registry.withdraw_presence(me.incarnation)
        await redis.aclose()


async def _announce(registry: Registry, me: Service) -> None:
    while True:
        with suppress(Unavailable):  # /readyz reports it
            await registry.announce_presence(me)
        await asyncio.sleep(1.0)


def main() -> None:
    """Run the service; exit code 2 if a setting is wrong."""
    try:
        environment = Environment.read()
        logs.configure(environment)
        raise_open_files()
        asyncio.run(serve(environment))
    except ConfigError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
