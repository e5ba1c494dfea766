"""One pipeline's catalogue: opens it, and loads and creates the lake tables in it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.config.reserved import NAMESPACE
from cutline.common.config.table_options import TableOptions
from cutline.common.errors import ConfigError, Unavailable, redacted
from cutline.common.table_id import split_table_id, table_id_of
from cutline.spark_writer.sinks.contract import TableFault
from cutline.spark_writer.sinks.iceberg.catalogue import sqlite_path
from cutline.spark_writer.sinks.iceberg.claiming import SOURCE
from cutline.spark_writer.sinks.iceberg.dead_rows import DeadRows
from cutline.spark_writer.sinks.iceberg.durable import local_path, sync_files
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, failing_as, is_away, items, root_cause
from cutline.spark_writer.sinks.iceberg.naming import CATALOG, folder_name, leads_elsewhere
from cutline.spark_writer.sinks.iceberg.objects import Rights, grant, is_secret
from cutline.spark_writer.sinks.iceberg.owner import Owner
from cutline.spark_writer.sinks.iceberg.table import FORMAT_VERSION, VERSION, LakeTable, Wanted
from cutline.spark_writer.sinks.iceberg.versions import LEAST, VERSIONS

_PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    VERSIONS: str(LEAST),
    "history.expire.min-snapshots-to-keep": "1",
}
_PLACING = ("jdbc", "hive", "glue")
"""Types of catalogues that take a table's folder from us."""


class Lake:
    """One pipeline's catalogue, opened in the pipeline's own Spark session; safe for any number of threads."""

    def __init__(
        self,
        session: SparkSession,
        owner: Owner,
        options_of: Callable[[str], TableOptions] = lambda table_id: TableOptions(tables="*.*"),
        format_version: int = FORMAT_VERSION,
        own_namespace: str = NAMESPACE,
    ) -> None:
        """Open the catalogue; Unavailable if it does not answer, ConfigError if it can't be opened otherwise.

        `options_of` a table ("db.table") say how it is made; `format_version` is the one of tables without such an
        option, and of Cutline's own table, which is in `own_namespace`.
        """
        self.session = session
        self.owner = owner
        self.pipeline = pipeline = owner.name
        self.own_namespace = own_namespace
        self._options_of = options_of
        self._dead_rows = DeadRows()
        self._namespaces: dict[str, Any] = {}  # Iceberg's Namespace of each name
        self.w = 0
        """The number of the start that writes, once it has claimed one; new files are named after it."""
        self.grace_began: Callable[[], float] = lambda: time.time() - RetentionConfig().grace_seconds
        """Returns the time since which what a table was can be read: metadata files of later moments stay."""
        self._format_version = format_version
        self.jvm = Jvm(session)
        self._sqlite = sqlite_path(str(session.conf.get(f"spark.sql.catalog.{CATALOG}.uri", "")))
        prefix = f"spark.sql.catalog.{CATALOG}."
        own = session.conf.getAll.items()
        self._own = {key.removeprefix(prefix): value for key, value in own if key.startswith(prefix)}
        self.activate()
        try:
            self.catalog = self._open()
        except Py4JJavaError:
            # Of two processes that create a new catalogue's tables at once, one fails and finds them at its next try.
            try:
                self.catalog = self._open()
            except Py4JJavaError as error:
                cause = redacted(root_cause(error))
                if is_away(error):
                    raise Unavailable(f"the catalogue of pipeline {pipeline} does not answer ({cause})") from error
                raise ConfigError(
                    f"the catalogue of pipeline {pipeline} could not be opened ({cause})",
                    "correct sink in the pipeline file",
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
        """Whether the catalogue has this table. Raises Refused."""
        with failing_as(f"the table {CATALOG}.{table_id_of(namespace, name)} could not be looked up"):
            return bool(self.catalog.tableExists(self._identifier(namespace, name)))

    def _identifier(self, namespace: str, name: str) -> Any:
        return self.jvm.iceberg.catalog.TableIdentifier.of(self._namespace(namespace), name)

    def beside(self, identifier: Any, name: str) -> Any:
        """The identifier of another name in the same namespace."""
        return self.jvm.iceberg.catalog.TableIdentifier.of(identifier.namespace(), name)

    def _namespace(self, namespace: str) -> Any:
        if namespace not in self._namespaces:
            self._namespaces[namespace] = self.jvm.iceberg.catalog.Namespace.of(self.jvm.strings(namespace))
        return self._namespaces[namespace]

    @cached_property
    def _no_columns(self) -> Any:
        return self.jvm.iceberg.Schema(self.jvm.root.java.util.ArrayList())

    def load(self, table_id: str) -> LakeTable | None:
        """Return a table's lake table, or None. TableFault if a view or another owner's table has its name."""
        name = split_table_id(table_id)
        with failing_as(f"the table {CATALOG}.{table_id} could not be loaded"):
            calls = self.jvm.opener.open(self.catalog, *name)
            if calls is None:
                if self.jvm.opener.isView(self.catalog, *name):
                    raise TableFault(
                        f"{CATALOG}.{table_id} is a view, so the table of that name could not be created",
                        "drop the view",
                    )
                return None
            table = self.table(table_id, calls)
            table.claim()
        return table

    def ensure(self, table_id: str) -> LakeTable:
        """Return a table's lake table, created if it does not exist. TableFault as `load`."""
        table = self.load(table_id)
        if table is not None:
            return table
        database, name = split_table_id(table_id)
        version = str(self._version_of(table_id))
        properties = {
            **self._options_of(table_id).properties,
            **self.owner.properties,
            SOURCE: table_id,
            VERSION: version,
            "format-version": version,
        }
        table = self.table(table_id, self.create(database, name, self._no_columns, properties))
        table.claim()
        return table

    def create(self, namespace: str, name: str, schema: Any, properties: Mapping[str, str]) -> Any:
        """Create a table, or load the one that another process created first; return its `TableCalls`.

        Without `format-version` in `properties` it gets the one of `sink.format_version`.
        """
        properties = {"format-version": str(self._format_version), **_PROPERTIES, **properties}
        space = self._namespace(namespace)
        with failing_as(f"the table {CATALOG}.{table_id_of(namespace, name)} could not be created"):
            if not self.catalog.namespaceExists(space):
                with suppress(Py4JJavaError):  # another process created it, or the next call fails with the cause
                    self.catalog.createNamespace(space, self.jvm.root.java.util.HashMap())
            if (found := self.jvm.opener.open(self.catalog, namespace, name)) is not None:
                return found
            place = self._place(namespace, name)
            try:
                return self.jvm.opener.create(self.catalog, namespace, name, schema, json.dumps(properties), place)
            except Py4JJavaError:
                if (found := self.jvm.opener.open(self.catalog, namespace, name)) is None:
                    raise
                return found

    def _place(self, namespace: str, name: str) -> str | None:
        """Return the folder of a new table, None if the catalogue chooses it, as a REST catalogue does.

        TableFault if the catalogue would choose a folder by a name that leads elsewhere.
        """
        parts = [folder_name(part) for part in (namespace, name)]
        warehouse = self._own.get("warehouse", "")
        if self._own.get("type") in _PLACING and ("://" in warehouse or warehouse.startswith(("/", "file:"))):
            return "/".join([warehouse.rstrip("/"), *parts])
        if any(leads_elsewhere(part) for part in (namespace, name)):
            raise TableFault(
                f"the catalogue makes a table's folder of its name, and {table_id_of(namespace, name)} has characters"
                " that can lead elsewhere",
                "leave the table out of tables, or copy it by a pipeline with another catalogue",
            )
        return None

    def table(self, table_id: str, calls: Any) -> LakeTable:
        """Return the LakeTable of one of Iceberg's Tables, by its `TableCalls`."""
        table = LakeTable(
            self.jvm,
            self.owner,
            table_id,
            calls,
            dead_rows=self._dead_rows,
            w=self.w,
            grace_began=self.grace_began,
            wanted=Wanted(
                version=self._version_of(table_id),
                sort=self._options_of(table_id).sort,
                partition=self._options_of(table_id).partition,
            ),
        )
        table.rights = self._rights(table)
        for place, properties in table.rights.by_place.items():
            grant(place, properties)
        return table

    def _version_of(self, table_id: str) -> int:
        """The format version that the settings ask for."""
        return self._options_of(table_id).format_version or self._format_version

    def _rights(self, table: LakeTable) -> Rights:
        """The rights of a table's FileIO, for those who read and write its files in Python."""
        location = table.metadata().location()
        if local_path(location) is not None:
            return Rights()
        io = table.java.io()
        properties = _strings(io.properties())
        by_place = {location: properties}
        lends = self.jvm.root.java.lang.Class.forName("org.apache.iceberg.io.SupportsStorageCredentials")
        if lends.isInstance(io):
            for credential in items(io.credentials()):
                by_place[str(credential.prefix())] = properties | _strings(credential.config())
        every = [pair for found in by_place.values() for pair in found.items()]
        lent = any(is_secret(name) and self._own.get(name) != value for name, value in every)
        return Rights(by_place=by_place, lent=lent)


def _strings(java_map: Any) -> dict[str, str]:
    return {str(key): str(java_map.get(key)) for key in items(java_map.keySet().stream().toList())}
