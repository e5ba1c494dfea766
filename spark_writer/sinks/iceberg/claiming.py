"""To whom a lake table belongs, by its marks; and how a life of a pipeline takes over a table of an earlier one."""

from __future__ import annotations

import json
import logging
from typing import Any

from cutline.spark_writer.sinks.contract import TableFault
from cutline.spark_writer.sinks.iceberg.columns import OFFSET
from cutline.spark_writer.sinks.iceberg.foreign import CHOICE, PUBLISHED
from cutline.spark_writer.sinks.iceberg.metadata import Metadata
from cutline.spark_writer.sinks.iceberg.naming import CATALOG
from cutline.spark_writer.sinks.iceberg.owner import EARLIER, ID, OWNER, Owner, earlier_of, with_earlier
from cutline.spark_writer.sinks.iceberg.partitioning import PARTITION
from cutline.spark_writer.sinks.iceberg.refs import left_refs
from cutline.spark_writer.sinks.iceberg.sorting import SORT

logger = logging.getLogger("cutline.spark_writer")
SOURCE = "cutline.table"
"""The table property with the table's id as the source spells it."""


def marks_of(metadata: Metadata) -> tuple[str | None, str | None, frozenset[str]]:
    """Name and id of the pipeline to which the table belongs, and the lives from which it was taken over."""
    return metadata.property(OWNER, None), metadata.property(ID, None), earlier_of(metadata.property(EARLIER, None))


def check_owner(metadata: Metadata, owner: Owner, table_id: str) -> None:
    """Raise TableFault if the table does not belong to `owner`, or is another source table's.

    A catalogue that ignores case returns the lake table `shop.Orders` for `shop.orders`.
    """
    if (refusal := owner.refusal(f"the lake table {CATALOG}.{table_id}", *marks_of(metadata))) is not None:
        raise TableFault(refusal)
    made_for = metadata.property(SOURCE, None)
    if made_for is not None and made_for != table_id:
        raise TableFault(
            f"the catalogue takes {table_id} and {made_for} for the same name, so {table_id} has no lake table of its"
            " own",
            "leave one of them out of tables, or use a catalogue that tells their names apart",
        )


def taken_over(base: Metadata, owner: Owner, table_id: str) -> dict[str, Any]:
    """Return the changes that give a table of an earlier life to `owner`.

    The table goes on showing what it shows, as if this pipeline had shown it in no publication. What the other life
    kept about its generations, and its staging branches, go; its savepoints' tags get its id behind their names.
    """
    name, life, earlier = marks_of(base)
    main = base.ref("main")
    at = None if main is None else int(main.snapshotId())
    left = with_earlier(earlier, name, life)
    properties = {**owner.properties, PUBLISHED: json.dumps([0, 0, at]), EARLIER: left}
    kept = (OFFSET, PARTITION, SORT, CHOICE)
    gone = [key for key in base.properties() if key.startswith(kept)]
    about = (owner.name, f"{CATALOG}.{table_id}", life, owner.id)
    logger.warning("pipeline %s: the lake table %s of its earlier life %s is taken over by %s", *about)
    return {"removed-properties": gone, **left_refs(base, life or "before"), "properties": properties}
