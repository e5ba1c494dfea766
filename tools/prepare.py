"""The test servers' programs and data templates: `python -m tools.prepare` gets them (`make setup` does so).

With `--run mariadb|mysql|redis` it starts one server, prints its address, and ends it at Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time

from tests.support.databases import Database, MariaDB, MySQL
from tests.support.lake_servers import PostgreSQL
from tests.support.redis_servers import Redis
from tools.programs import Missing


def prepare() -> list[str]:
    """Build everything that later starts need; return a line for each server that this machine can't run.

    S3 and Iceberg's REST catalogue are not among them: tools/needs.py gets those, for the targets that use them.
    """
    missing: list[str] = []
    for make in (MariaDB, MySQL, Redis, PostgreSQL):
        begun = time.monotonic()
        try:
            with make() as server:
                version = server.version if isinstance(server, Database) else ""
                if isinstance(server, Redis):
                    version = server.client().info("server")["redis_version"]
                print(f"{server.name} {version} starts ({time.monotonic() - begun:.1f} s)", flush=True)
        except Missing as reason:
            missing.append(f"{make.name}: {reason}")
    return missing


def main() -> int:
    """Prepare the servers, or run one of them until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tools.prepare", description=main.__doc__)
    parser.add_argument(
        "--run", choices=["mariadb", "mysql", "redis"], help="start this server and run it until Ctrl-C"
    )
    chosen = parser.parse_args().run
    if chosen is None:
        missing = prepare()
        for line in missing:
            print(f"cutline: this machine can't run {line}", file=sys.stderr)
        return 1 if missing and os.environ.get("CI") == "true" else 0
    servers: dict[str, type[MariaDB] | type[MySQL] | type[Redis]] = {"mariadb": MariaDB, "mysql": MySQL, "redis": Redis}
    with servers[chosen]() as server:
        where = f"{server.name} on {server.host}:{server.port}, pid {server.pid}"
        accounts = (
            f"; root without password; {server.user} with {server.password}" if isinstance(server, Database) else ""
        )
        print(f"{where}{accounts}; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
