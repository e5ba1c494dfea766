"""`python -m cutline.services.writer`: stages the records of every pipeline whose epoch names it, as Parquet."""

from __future__ import annotations

from cutline.common.config.environment import Environment
from cutline.common.measures import TableRows
from cutline.common.mesh.host import Host, run_service
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore
from cutline.services.writer.driver import WriterDriver
from cutline.services.writer.staging import Staging


async def main() -> None:
    """Write for every pipeline whose epoch names this process, until the process is asked to end."""
    environment = Environment.read()
    host = Host.of_process("writer", environment)

    async def join(store: PipelineStore, entry: EpochEntry, index: int) -> None:
        rows = TableRows(environment.metrics_tables)
        files = Staging(store, entry.slot, host.incarnation, counted=rows)
        await WriterDriver(host, store, entry, index, files=files, rows=rows).run()

    await host.serve(join)


if __name__ == "__main__":
    run_service(main)
