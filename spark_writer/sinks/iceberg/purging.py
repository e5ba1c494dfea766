"""Drops the lake tables of a pipeline that is being deleted: those of its life, by its own mark on each."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError

from cutline.common.table_id import table_id_of
from cutline.spark_writer.sinks.iceberg.claiming import SOURCE
from cutline.spark_writer.sinks.iceberg.jvm import failing_as, is_of, items
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.owner import ID, OWNER
from cutline.spark_writer.sinks.iceberg.publications import forget

logger = logging.getLogger("cutline.spark_writer")


def purge(lake: Lake, still: Callable[[], bool]) -> list[str]:
    """Drop every table of this life of the pipeline, with its files, and the pipeline's rows of
    `publications`; return the tables' names. May be repeated.

    A table of that name that somebody else made, also another life of the pipeline, stays, and so does one that its
    owner has renamed to keep it. `still` says, before each step, whether the deletion is still to be done; if not, the
    rest stays. Whoever is suspended after that question drops no table of the next life either (`_drop`). Raises
    Refused or Unavailable if the catalogue fails.
    """
    dropped: list[str] = []
    with failing_as(f"the lake tables of pipeline {lake.pipeline} could not be dropped"):
        for namespace in items(lake.catalog.listNamespaces()):
            for identifier in items(lake.catalog.listTables(namespace)):
                try:
                    properties = lake.catalog.loadTable(identifier).properties()
                except Py4JJavaError as error:  # dropped by others, or not of Iceberg
                    logger.warning("pipeline %s: %s was left alone: %s", lake.pipeline, identifier, error)
                    continue
                if not lake.owner.has(properties.get(OWNER), properties.get(ID)):
                    continue
                made_for = properties.get(SOURCE)
                now = table_id_of(str(identifier.namespace()), str(identifier.name()))
                aside = str(identifier.name()).startswith(_aside(lake))
                if made_for is not None and str(made_for).casefold() != now.casefold() and not aside:
                    logger.warning(
                        "pipeline %s: %s was left alone: it was renamed from %s", lake.pipeline, identifier, made_for
                    )
                elif not still():
                    return dropped
                elif _drop(lake, identifier):
                    dropped.append(str(identifier))
        if still():
            forget(lake)
    return dropped


def _aside(lake: Lake) -> str:
    """How the names of tables begin that a purge of this life is about to drop; nobody else makes such a name."""
    return f"_dropped_{lake.owner.id}_"


def _drop(lake: Lake, identifier: Any) -> bool:
    """Drop the table of this name, whose owner was looked at; False if the name is another's by now.

    A catalogue drops whatever has a name. So the table gets a name of its own first, its owner is looked at again
    there, and only then it is dropped; what turns out to be another's gets its name back. A catalogue that can't rename
    drops by the name that was looked at.
    """
    aside = lake.beside(identifier, f"{_aside(lake)}{uuid.uuid4().hex}")
    try:
        lake.catalog.renameTable(identifier, aside)
    except Py4JJavaError as error:
        if is_of(error, "NoSuchTableException"):  # another Spark writer has dropped it
            return False
        if not is_of(error, "UnsupportedOperationException"):
            raise
        lake.catalog.dropTable(identifier, True)
        return True
    properties = lake.catalog.loadTable(aside).properties()
    if lake.owner.has(properties.get(OWNER), properties.get(ID)):
        lake.catalog.dropTable(aside, True)
        return True
    lake.catalog.renameTable(aside, identifier)
    logger.warning("pipeline %s: %s was left alone: it is another's by now", lake.pipeline, identifier)
    return False
