"""`python -m cutline.services.enumerator`: leads each pipeline whose lease it holds, stands by for others."""

from __future__ import annotations

from cutline.common.config.environment import Environment
from cutline.common.mesh.host import Host, run_service
from cutline.common.mesh.redis import connect
from cutline.common.store.store import Store
from cutline.services.enumerator.pipelines import serve


async def main() -> None:
    """Serve every pipeline of the store until the process is asked to end."""
    environment = Environment.read()
    store = Store(environment.need_store_url())
    await serve(Host("enumerator", connect(environment.need_redis_url()), store), store, environment)


if __name__ == "__main__":
    run_service(main)
