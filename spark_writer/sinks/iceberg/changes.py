"""The changes that a commit makes to a branch of a lake table: each is prepared in Iceberg's transaction (table.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cutline.spark_writer.sinks.iceberg.data_files import delete_file
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector
from cutline.spark_writer.sinks.iceberg.files import Change, DataFile, Files
from cutline.spark_writer.sinks.iceberg.table import LakeTable


def replace_all(table: LakeTable, added: Sequence[Any]) -> Change:
    """Return the change that empties the branch and adds data files."""

    def update(transaction: Any) -> tuple[Any, Files]:
        all_rows = table.jvm.iceberg.expressions.Expressions.alwaysTrue()
        overwrite = transaction.newOverwrite().overwriteByRowFilter(all_rows)
        for file in added:
            overwrite.addFile(file)
        return overwrite, table.entries(added)

    return update


def append(table: LakeTable, base: int, added: Sequence[Any]) -> Change:
    """Return the change that adds data files (maybe none) to those of snapshot `base`."""

    def update(transaction: Any) -> tuple[Any, Files]:
        append = transaction.newAppend()
        for file in added:
            append.appendFile(file)
        return append, {**table.contents(base).files, **table.entries(added)}

    return update


def upsert(table: LakeTable, base: int, added: Sequence[Any], deleted: Sequence[Vector]) -> Change:
    """Return the change that adds data files to those of snapshot `base`, and gives others new deletion vectors."""

    def update(transaction: Any) -> tuple[Any, Files]:
        files = {**table.contents(base).files, **table.entries(added)}
        delta = transaction.newRowDelta().validateFromSnapshot(base)
        for file in added:
            delta.addRows(file)
        for vector in deleted:
            old = files[vector.data_file]
            new = delete_file(table, transaction, old, vector)
            if old.vector is not None:
                delta.removeDeletes(old.vector)
            delta.addDeletes(new)
            files[vector.data_file] = replace(old, vector=new, dead=vector)
        return delta, files

    return update


def rewrite(
    table: LakeTable, base: int, old: Sequence[DataFile], added: Sequence[Any], deleted: Sequence[Vector] = ()
) -> Change:
    """Return the change that replaces data files of snapshot `base` with others that have the same living rows.

    `deleted` are deletion vectors of the new files.
    """

    def update(transaction: Any) -> tuple[Any, Files]:
        files, spec = {**table.contents(base).files, **table.entries(added)}, transaction.table().spec()
        rewrite = transaction.newRewrite().validateFromSnapshot(base)
        for file in old:
            # Iceberg looks a file to remove up by its path, and takes all else from its manifest.
            known = table.jvm.iceberg.DataFiles.builder(spec).withPath(file.path).withFormat("parquet")
            if file.partition is not None:
                known = known.withPartition(file.partition)
            rewrite.deleteFile(known.withFileSizeInBytes(file.size).withRecordCount(file.rows).build())
            if file.vector is not None:
                rewrite.deleteFile(file.vector)
            del files[file.path]
        for file in added:
            rewrite.addFile(file)
        for vector in deleted:
            entry = files[vector.data_file]
            entry.vector, entry.dead = delete_file(table, transaction, entry, vector), vector
            rewrite.addFile(entry.vector)
        return rewrite, files

    return update
