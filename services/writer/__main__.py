"""`python -m cutline.services.writer`: stages the records of every pipeline whose epoch names it, as Parquet."""

from __future__ import annotations

from cutline.common.config.environment import Environment
from cutline.common.mesh.host import Host, run_service
from cutline.common.mesh.redis import connect
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore, Store
from cutline.services.writer.driver import WriterDriver


async def main() -> None:
    """Write for every pipeline whose epoch names this process, until the process is asked to end."""
    environment = Environment.read()
    host = Host("writer", connect(environment.need_redis_url()), Store(environment.need_store_url()))

    async def join(store: PipelineStore, entry: EpochEntry, index: int) -> None:
        await WriterDriver(host, store, entry, index, environment.metrics_tables).run()

    await host.serve(join)


if __name__ == "__main__":
    run_service(main)
