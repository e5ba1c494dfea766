"""The branches and tags of a lake table that are Cutline's: which of them go, and which are made."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from cutline.spark_writer.sinks.iceberg.metadata import Metadata
from cutline.spark_writer.sinks.iceberg.naming import CATALOG

logger = logging.getLogger("cutline.spark_writer")
STAGING = re.compile(r"staging_(\d+)")
TAGS = re.compile(r"(checkpoint|work)_\d+")
"""The tags of savepoints."""


def older_branches(metadata: Metadata, branch: str) -> list[str]:
    """Return the staging branches, of starts before the one that made `branch`."""
    ours = STAGING.fullmatch(branch)
    number = int(ours[1]) if ours else 0
    found = []
    for name, ref in metadata.refs().items():
        match = STAGING.fullmatch(name)
        # A user's branch may have such a name; its head was not committed by that start.
        if match is not None and int(match[1]) < number:
            head = metadata.snapshot(ref.snapshotId())
            if head is not None and head.summary().get("cutline.w") == match[1]:
                found.append(name)
    return found


def new_tags(base: Metadata, tags: Mapping[str, int], table_id: str) -> dict[str, int]:
    """Return the tags to create. Where another user has a tag or branch of that name it stays, with a warning. The
    savepoint does not depend on its tag: retention keeps what its record names.
    """
    found = {}
    for name, snapshot_id in tags.items():
        known = base.ref(name)
        if known is not None and (known.isBranch() or known.snapshotId() != snapshot_id):
            logger.warning(
                "the %s %s of the lake table %s.%s was set by another user, so the savepoint has no tag of that"
                " name; its snapshot is %d",
                "branch" if known.isBranch() else "tag",
                name,
                CATALOG,
                table_id,
                snapshot_id,
            )
        elif known is None and base.snapshot(snapshot_id) is not None:
            found[name] = snapshot_id
    return found


def left_refs(base: Metadata, life: str) -> dict[str, Any]:
    """Remove the staging branches of an earlier life, and give its tags other names, so that ours are free."""
    refs = base.refs()
    tags = {name: ref.snapshotId() for name, ref in refs.items() if ref.isTag() and TAGS.fullmatch(name)}
    branches = [name for name, ref in refs.items() if ref.isBranch() and STAGING.fullmatch(name)]
    named = {f"{name}_of_{life}": snapshot_id for name, snapshot_id in tags.items()}
    return {"removed-refs": [*branches, *tags], "tags": named}
