"""A MySQL or MariaDB server as a reader's source: the port of `services/reader/ports.py` on real connections."""

from __future__ import annotations

from contextlib import closing

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.masking import Masks
from cutline.common.mesh.messages import SnapshotSplit
from cutline.services.reader.ports import ChunkItems
from cutline.services.reader.tables import MAIN
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.chunk import Window, read_chunk
from cutline.services.sources.mysql.connection import Connection
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.kept import KeptConnection
from cutline.services.sources.mysql.server import threads_running
from cutline.services.sources.mysql.watermark import AgedPositions


class MysqlChunks:
    """See `Chunks`: on a connection that one chunk leaves to the next, with a dump for the changes of `exact`."""

    def __init__(self, config: PipelineConfig, hosts: Hosts, masks: Masks, *, server_id: int) -> None:
        self._config = config
        self._kept = KeptConnection(hosts.connect, hosts.leads_on)
        self._window = Window(BinlogCursor(hosts.connect, server_id=server_id))
        self._aged = AgedPositions()
        self._masks = masks

    def read(self, split: SnapshotSplit) -> ChunkItems:
        """See `Chunks`."""
        return read_chunk(
            self._kept,
            split,
            mode=self._config.snapshot.chunks,
            seconds=self._config.snapshot.max_select_seconds,
            identity=self._config.options_of(split.table_id).identity,
            aged=self._aged,
            window=self._window,
            masks=self._masks,
        )

    @property
    def due(self) -> bool:
        """See `Chunks`."""
        return self._kept.due or self._window.due

    def rest(self) -> None:
        """See `Chunks`."""
        self._kept.rest()
        self._window.rest()

    def close(self) -> None:
        """See `Chunks`."""
        with closing(self._window), closing(self._kept):
            pass


class MysqlProbe:
    """See `Probe`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def threads_running(self) -> int:
        """See `Probe`."""
        return threads_running(self._connection)

    def close(self) -> None:
        """See `Probe`."""
        self._connection.close()


class MysqlSource:
    """See `Source`. Main and catch-up have two server ids, and the chunks of each reader one of the ids after them."""

    def __init__(self, config: PipelineConfig, index: int) -> None:
        self._config = config
        self.hosts = Hosts(config.source)
        self._masks = Masks(config.mask_key)
        self.chunks = MysqlChunks(config, self.hosts, self._masks, server_id=config.server_id + 2 + index)

    def probe(self) -> MysqlProbe:
        """See `Source`."""
        return MysqlProbe(self.hosts.connect())

    def cursor(self, name: str, *, ids_taken: int) -> BinlogCursor:
        """See `Source`."""
        server_id = self._config.server_id_after(ids_taken) + (name != MAIN)
        connect = self.hosts.connect_main if name == MAIN else self.hosts.connect
        return BinlogCursor(
            connect, server_id=server_id, schema_changes=self._config.schema_changes, masks=self._masks
        )
