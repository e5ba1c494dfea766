"""The newest entries of a pipeline's journal, for the lists that are made of them."""

from __future__ import annotations

from collections.abc import Iterator

from cutline.common.store.records import Entry
from cutline.common.store.store import PipelineStore


def newest(found: PipelineStore, limit: int) -> Iterator[Entry]:
    """The journal's last `limit` entries, oldest first. Blocks: call it in a thread."""
    return found.journal_tail(after=max(0, found.last_slot() - limit))
