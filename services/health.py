"""`python -m cutline.services.health`: whether the service of this container works, for Docker and Kubernetes.

Exit code 0 or 1, and one sentence. A service works if Redis has its presence note, which it writes anew each second and
which lapses after five: so its event loop runs, and a Spark writer's JVM too. The control service must also answer
/readyz. The note is found by the name of this host, so each service needs a container or a pod of its own.

With `--live` the exit code is 1 only where a restart can help: it stays 0 while Redis does not answer, and where the
service was asked to end. Nothing is asked but Redis and the service itself, within TIMEOUT_SECONDS each.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
from collections.abc import Sequence

from cutline.common import threads
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.mesh.presence import Registry, Service
from cutline.common.mesh.redis import connect

TIMEOUT_SECONDS = 3.0
_ASKING = threads.Threads("health")


async def examine(environment: Environment, *, live: bool = False) -> tuple[bool, str]:
    """Return whether the service of this host works, and a sentence about it. Raises no error of Redis."""
    if environment.redis_url is None:
        return True, "CUTLINE_REDIS_URL is not set, so no service announces itself here"
    try:
        found = _of_this_container(await _present(environment.redis_url))
    except Unavailable as error:
        return live, str(error)
    if not found:
        return False, f"no service of {socket.gethostname()} is present in Redis; its log says why"
    faults = [fault for service in found if (fault := await _fault(service, environment, live=live)) is not None]
    return not faults, "; ".join(faults or [f"{service.role} {service.incarnation} is present" for service in found])


async def _present(url: str) -> list[Service]:
    redis = connect(url, timeout_seconds=TIMEOUT_SECONDS)
    try:
        return await Registry(redis).services()
    finally:
        await redis.aclose()


def _of_this_container(services: Sequence[Service]) -> list[Service]:
    """Those that run here. A killed service's note outlives its process by seconds."""
    name = socket.gethostname()
    return [service for service in services if service.host == name and os.path.exists(f"/proc/{service.pid}")]


async def _fault(service: Service, environment: Environment, *, live: bool) -> str | None:
    if live:
        return None
    if service.starting:
        return f"{service.role} {service.incarnation} is starting"
    if service.leaving:
        return f"{service.role} {service.incarnation} is ending"
    if service.role == "control":
        return await _ASKING.call(_unready, environment)
    return None


def _unready(environment: Environment) -> str | None:
    """The reason why the control service is not ready; None if it is."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(environment.api_host, environment.api_host)
    connection = http.client.HTTPConnection(host, environment.api_port, timeout=TIMEOUT_SECONDS)
    if environment.api_cert is not None:
        # This very host is asked, by an address that no certificate names.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, environment.api_port, timeout=TIMEOUT_SECONDS, context=context
        )
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read(1000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"the control service does not answer on {host}:{environment.api_port} ({error})"
    finally:
        connection.close()
    return None if answer.status == 200 else f"the control service is not ready: {body}"


def main(arguments: Sequence[str]) -> int:
    """Print the sentence; return the exit code."""
    try:
        works, sentence = threads.run(examine(Environment.read(), live="--live" in arguments))
    except ConfigError as error:
        works, sentence = False, "; ".join(map(str, error.faults))
    except CutlineError as error:
        works, sentence = False, str(error)
    print(sentence)
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
