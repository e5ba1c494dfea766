"""One pipeline's catalogue: opens it, and loads and creates the lake tables in it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cutline.common.errors import ConfigError
from cutline.common.schema import split_table_id
from cutline.spark_writer.iceberg.durable import sync_files
from cutline.spark_writer.iceberg.jvm import Jvm, failing_as
from cutline.spark_writer.iceberg.table import FORMAT_VERSION, OWNER, LakeTable, TableFault
from cutline.spark_writer.session import CATALOG, first_line

_SQLITE = "jdbc:sqlite:"
_PROPERTIES = {
    "format-version": str(FORMAT_VERSION),
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "history.expire.min-snapshots-to-keep": "1",
}


class Lake:
    """One pipeline's catalogue, opened in the pipeline's own Spark session; safe for any number of threads."""

    def __init__(self, session: SparkSession, pipeline: str) -> None:
        """Open the catalogue; ConfigError if that fails."""
        self.session = session
        self.pipeline = pipeline
        self.jvm = Jvm(session)
        uri = str(session.conf.get(f"spark.sql.catalog.{CATALOG}.uri", ""))
        self._sqlite = uri.removeprefix(_SQLITE).split("?")[0] if uri.startswith(_SQLITE) else None
        self.activate()
        try:
            self.catalog = self._open()
        except Py4JJavaError:
            # Of two processes that create a new catalogue's tables at once, one fails and finds them at its next try.
            try:
                self.catalog = self._open()
            except Py4JJavaError as error:
                raise ConfigError(
                    f"the catalogue of pipeline {pipeline} could not be opened ({first_line(error)}); correct sink in"
                    " the pipeline file"
                ) from error

    def _open(self) -> Any:
        return self.jvm.iceberg.spark.Spark3Util.loadIcebergCatalog(self.session._jsparkSession, CATALOG)

    def activate(self) -> None:
        """Make the pipeline's session the active one of the calling thread; each thread must call it first."""
        self.jvm.activate()

    def sync_catalogue(self) -> None:
        """Make the commits made so far durable in the catalogue, if that is a file on this machine."""
        if self._sqlite is not None:
            sync_files([self._sqlite, f"{self._sqlite}-wal"])

    def exists(self, namespace: str, name: str) -> bool:
        """Whether the catalogue has this table. Raises Java's errors."""
        return bool(self.catalog.tableExists(self._identifier(namespace, name)))

    def _identifier(self, namespace: str, name: str) -> Any:
        return self.jvm.iceberg.catalog.TableIdentifier.of(self._namespace(namespace), name)

    def _namespace(self, namespace: str) -> Any:
        return self.jvm.iceberg.catalog.Namespace.of(self.jvm.strings(namespace))

    def load(self, table_id: str) -> LakeTable | None:
        """Return the lake table of "db.table", or None. TableFault if a view or another owner's table has its name."""
        identifier = self._identifier(*split_table_id(table_id))
        with failing_as(f"the table {CATALOG}.{table_id} could not be loaded"):
            if not self.catalog.tableExists(identifier):
                if self._has_view(identifier):
                    raise TableFault(
                        f"{CATALOG}.{table_id} is a view, so the table of that name could not be created; drop the view"
                    )
                return None
            table = self.table(table_id, self.catalog.loadTable(identifier))
            table.check_owner()
        return table

    def _has_view(self, identifier: Any) -> bool:
        views = self.jvm.root.java.lang.Class.forName("org.apache.iceberg.catalog.ViewCatalog")
        return bool(views.isInstance(self.catalog) and self.catalog.viewExists(identifier))

    def ensure(self, table_id: str) -> LakeTable:
        """Return the lake table of "db.table", created if it does not exist. TableFault as `load`."""
        table = self.load(table_id)
        if table is not None:
            return table
        database, name = split_table_id(table_id)
        no_columns = self.jvm.iceberg.Schema(self.jvm.root.java.util.ArrayList())
        table = self.table(table_id, self.create(database, name, no_columns, {OWNER: self.pipeline}))
        table.check_owner()
        return table

    def create(self, namespace: str, name: str, schema: Any, properties: Mapping[str, str]) -> Any:
        """Create a table, or load the one that another process created first; return Iceberg's Table."""
        space, identifier = self._namespace(namespace), self._identifier(namespace, name)
        spec = self.jvm.iceberg.PartitionSpec.unpartitioned()
        with failing_as(f"the table {CATALOG}.{namespace}.{name} could not be created"):
            if not self.catalog.namespaceExists(space):
                with suppress(Py4JJavaError):  # another process created it, or the next call fails with the cause
                    self.catalog.createNamespace(space, self.jvm.root.java.util.HashMap())
            if not self.catalog.tableExists(identifier):
                with suppress(Py4JJavaError):
                    return self.catalog.createTable(identifier, schema, spec, {**_PROPERTIES, **properties})
            return self.catalog.loadTable(identifier)

    def table(self, table_id: str, java: Any) -> LakeTable:
        """Return the LakeTable of one of Iceberg's Tables."""
        return LakeTable(self.jvm, self.pipeline, table_id, java)
