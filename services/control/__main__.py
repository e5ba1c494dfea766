"""`python -m cutline.services.control [--embedded]`: the control API on CUTLINE_API_HOST and CUTLINE_API_PORT."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from types import FrameType

import uvicorn
from redis.asyncio import Redis

from cutline.common import logs, threads
from cutline.common.config.environment import Environment
from cutline.common.config.secrets import Secrets
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.mesh.host import raise_open_files
from cutline.common.mesh.log_lines import kept_here
from cutline.common.mesh.presence import Registry, Service
from cutline.common.mesh.redis import connect
from cutline.common.mesh.usage import Usage
from cutline.common.store.store import Store
from cutline.services.control.api.access import Access, first_token
from cutline.services.control.api.audit_log import AuditLog
from cutline.services.control.api.gate import LOOPBACK
from cutline.services.control.api.oidc import Oidc, roles_of
from cutline.services.control.app import build
from cutline.services.control.duties import jobs_of, watch
from cutline.services.control.store_calls import in_store

EMBEDDED = "--embedded"
CERTIFICATE_SECONDS = 5.0
log = logging.getLogger(__name__)
END_SECONDS = 5
"""For requests that are still being answered when the service is asked to end; `?wait=` ones are cut off then."""


class _Listener(uvicorn.Server):
    """Sets `stopping` when the service is asked to end, so that streams of events end by themselves."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take SIGTERM or SIGINT."""
        self._stopping.set()
        super().handle_exit(sig, frame)


async def serve(environment: Environment, *, embedded: bool) -> None:
    """Serve until SIGTERM or SIGINT, announced in Redis as the service "control" while Redis answers.

    `embedded`: `cutline run` started it, so whoever reaches it at a loopback address needs no token.
    """
    redis = connect(environment.need_redis_url())
    registry, store = Registry(redis), Store(environment.need_store_url())
    jobs = jobs_of(environment, redis, store)
    access = Access(
        store.access,
        token=environment.api_token,
        oidc=_oidc(environment),
        open_here=embedded and environment.api_token is None and environment.api_host in LOOPBACK,
    )
    app = build(
        registry,
        store,
        access,
        body_bytes=environment.api_body_bytes,
        metrics_open=environment.metrics_open,
        metrics_tables=environment.metrics_tables,
        secrets=Secrets.parsed(environment.secrets, environment.functions),
    )
    config = uvicorn.Config(
        app,
        host=environment.api_host,
        port=environment.api_port,
        log_level=environment.log_level.lower(),
        log_config=None,  # its lines go where ours go
        access_log=False,
        timeout_graceful_shutdown=END_SECONDS,
        proxy_headers=environment.api_proxies is not None,
        forwarded_allow_ips=environment.api_proxies,
        server_header=False,
        ssl_certfile=environment.api_cert,
        ssl_keyfile=environment.api_key,
    )
    _load_certificate(config, environment)
    if environment.api_token is None and environment.oidc_issuer is None and not access.open_here:
        await _make_first_token(store)
    listener = _Listener(config, app.state.control.stopping)
    me = _me(environment)
    side_by_side = (
        _announce(registry, redis, me),
        _follow_certificate(config, environment),
        _keep_audit_log(app.state.control.audit),
        watch(registry, store, redis, jobs, me.incarnation),
    )
    tasks = [asyncio.create_task(each) for each in side_by_side]
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn installs its own handlers. When it ends it raises the signal again, before our presence is withdrawn.
        signal.signal(number, signal.SIG_IGN)
    try:
        await listener.serve()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(CutlineError):
            await app.state.control.audit.look(ending=True)
        with suppress(Unavailable):
            await registry.withdraw_presence(me.incarnation)
        await redis.aclose()


def _me(environment: Environment) -> Service:
    """This process, which says in its log that it has started."""
    me = Service(
        incarnation=secrets.token_hex(8),
        role="control",
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=time.time(),
    )
    logs.note_service(me.incarnation)
    logs.say_started(me.role, me.incarnation, environment)
    return me


async def _announce(registry: Registry, redis: Redis, me: Service) -> None:
    usage, lines = Usage(), kept_here()
    while True:
        rss_bytes, cpu_seconds = usage.look()
        with suppress(Unavailable):  # /readyz reports it
            await registry.announce_presence(replace(me, rss_bytes=rss_bytes, cpu_seconds=cpu_seconds))
        with suppress(Unavailable):
            await lines.flush_to(redis, me.incarnation)
        await asyncio.sleep(1.0)


async def _keep_audit_log(audit: AuditLog) -> None:
    while True:
        try:
            await audit.look()
        except CutlineError as error:  # /readyz reports it
            log.warning("the audit log lacks refused calls: %s", error)
        await asyncio.sleep(1.0)


def _oidc(environment: Environment) -> Oidc | None:
    if environment.oidc_issuer is None or environment.oidc_audience is None:
        return None
    return Oidc(
        issuer=environment.oidc_issuer,
        audience=environment.oidc_audience,
        keys_url=environment.oidc_keys_url,
        role_claim=environment.oidc_role_claim,
        roles=roles_of(environment.oidc_roles),
    )


async def _make_first_token(store: Store) -> None:
    """Print the first token, an admin's, once: to this process's output, which only those see who run it."""
    while True:
        try:
            token = await in_store(first_token, store.access, time.time())
            break
        except Unavailable as error:
            log.warning("%s; trying again", error)
            await asyncio.sleep(1.0)
    if token is not None:
        print(f"The first admin token, shown this once: {token}", flush=True)


def _load_certificate(config: uvicorn.Config, environment: Environment) -> None:
    """Load TLS's files. ConfigError if they can't be used."""
    try:
        config.load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"the certificate {environment.api_cert} with the key {environment.api_key} can't be used ({error})",
            "correct CUTLINE_API_CERT and CUTLINE_API_KEY",
        ) from error


async def _follow_certificate(config: uvicorn.Config, environment: Environment) -> None:
    """Load the certificate again when its file changes: new connections get it."""
    cert, key = environment.api_cert, environment.api_key
    if config.ssl is None or cert is None or key is None:
        return
    loaded = os.stat(cert).st_mtime_ns
    while True:
        await asyncio.sleep(CERTIFICATE_SECONDS)
        try:
            if (changed := os.stat(cert).st_mtime_ns) != loaded:
                config.ssl.load_cert_chain(cert, key)
                loaded = changed
        except OSError as error:
            log.warning("the certificate %s can't be loaded (%s); the one before stays in use", cert, error)


def main() -> None:
    """Run the service; exit code 2 if a setting is wrong."""
    try:
        environment = Environment.read()
        logs.configure(environment)
        raise_open_files()
        threads.run(serve(environment, embedded=sys.argv[1:] == [EMBEDDED]))
    except ConfigError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
