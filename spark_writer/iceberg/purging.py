"""Drops the lake tables of a pipeline that is being deleted: those of its life, by its own mark on each."""

from __future__ import annotations

import logging
from collections.abc import Callable

from py4j.protocol import Py4JJavaError

from cutline.common.table_id import table_id_of
from cutline.spark_writer.iceberg.jvm import failing_as, items
from cutline.spark_writer.iceberg.lake import Lake
from cutline.spark_writer.iceberg.owner import ID, OWNER
from cutline.spark_writer.iceberg.publications import forget
from cutline.spark_writer.iceberg.table import SOURCE

logger = logging.getLogger("cutline.spark_writer")


def purge(lake: Lake, still: Callable[[], bool]) -> list[str]:
    """Drop every table of this life of the pipeline, with its files, and the pipeline's rows of
    `publications`; return the tables' names. May be repeated.

    A table of that name that somebody else made, also another life of the pipeline, stays, and so does one that its
    owner has renamed to keep it. `still` says, before each step, whether the deletion is still to be done; if not, the
    rest stays. Raises Refused or Unavailable if the catalogue fails.
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
                if made_for is not None and str(made_for).casefold() != now.casefold():
                    logger.warning(
                        "pipeline %s: %s was left alone: it was renamed from %s", lake.pipeline, identifier, made_for
                    )
                elif not still():
                    return dropped
                else:
                    lake.catalog.dropTable(identifier, True)
                    dropped.append(str(identifier))
        if still():
            forget(lake)
    return dropped
