"""Reads the lake without Spark: where the metadata of a table is, and which pipeline owns it.

The default catalogue is Iceberg's JDBC catalogue in `<warehouse>/catalog.db` (SQLite); it is opened read-only here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError
from cutline.common.table_id import meant, table_id_of

OWNER_PROPERTY, ID_PROPERTY = "cutline.pipeline", "cutline.id"
CATALOG_FILE = "catalog.db"


def metadata_files(config: PipelineConfig) -> dict[str, str]:
    """The current metadata file of each table of the default catalogue, by id; {} without one.

    ConfigError if the pipeline uses a catalogue of its own, or if catalog.db is not an Iceberg catalogue.
    """
    if config.sink.catalog:
        raise ConfigError("sink.catalog names a catalogue of your own", "look the table up in that catalogue")
    if "://" in config.sink.warehouse:
        raise ConfigError(
            f"the warehouse {config.sink.warehouse} is not a local folder", "look the table up in its catalogue"
        )
    path = Path(config.sink.warehouse) / CATALOG_FILE
    if not path.is_file():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute("SELECT * FROM iceberg_tables").fetchall()
    except sqlite3.Error as error:
        if "no such table" in str(error):  # the file exists, but its tables were not made yet
            return {}
        raise ConfigError(
            f"{path} can't be read as an Iceberg catalogue ({error})", "choose another warehouse"
        ) from error
    return {
        table_id_of(row["table_namespace"], row["table_name"]): row["metadata_location"]
        .removeprefix("file://")
        .removeprefix("file:")
        for row in rows
        if "iceberg_type" not in row.keys() or row["iceberg_type"] != "VIEW"
    }


def where(config: PipelineConfig, table: str) -> str:
    """The current metadata file of the table that a person calls `table`, for DuckDB and other readers of one table."""
    files = metadata_files(config)
    table = meant(table, files)
    if table not in files:
        known = ", ".join(sorted(files)) or "none yet"
        raise ConfigError(f"the table {table} is not in the lake {config.sink.warehouse}", f"its tables are: {known}")
    return files[table]


def owners(config: PipelineConfig) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield (table, pipeline that owns it, None if Cutline did not make it, the id of its life, None if it has none)
    for each table of the lake.

    A metadata file that can't be read is skipped: Spark will report its fault.
    """
    for table, location in metadata_files(config).items():
        try:
            metadata = json.loads(Path(location).read_text(encoding="utf-8"))
            properties = metadata["properties"]
            yield table, properties.get(OWNER_PROPERTY), properties.get(ID_PROPERTY)
        except (OSError, ValueError, KeyError):
            continue
