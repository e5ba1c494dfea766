"""`python -m cutline.services.reader`: reads chunks, and as reader-0 the binlog, of pipelines whose epoch names it."""

from __future__ import annotations

import logging

from cutline.common.config.environment import Environment
from cutline.common.mesh.host import Host, run_service
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore
from cutline.common.threads import Threads
from cutline.services.reader.driver import ReaderDriver
from cutline.services.reader.source import MysqlSource
from cutline.services.sources.mysql.binlog import scanner

_JOINING = Threads("join", 4)  # for all pipelines: it loads parts from the store, and no source is asked
log = logging.getLogger("cutline.reader")


async def main() -> None:
    """Read for every pipeline whose epoch names this process, until the process is asked to end."""
    if not scanner.COMPILED:
        log.warning(
            "the decoders are interpreted, hundreds of times slower; install Cutline where there is a C compiler"
        )
    host = Host.of_process("reader", Environment.read())

    async def join(store: PipelineStore, entry: EpochEntry, index: int) -> None:
        await (await _JOINING.call(ReaderDriver, host, store, entry, index, MysqlSource)).run()

    await host.serve(join)


if __name__ == "__main__":
    run_service(main)
