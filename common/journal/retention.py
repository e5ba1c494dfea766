"""What retention keeps: one pure function of the publications' records.

A publication can be restored while its time lies within the grace, and so can the newest one of the chain from before
it (`oldest`); of older ones the savepoints that retention keeps. **Every content that a record of these names stays**,
of `main` as of `work`: while a table's next generation is read, or the table is quarantined, `main` names an older one.
A restore shows them again, and whoever reads a cut by its contents finds them. Records within the grace count even if
a restore has left them behind: their readers may still be at work.

Relies on: contents of the records to come are among those of the newest record, or made later.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.store.deltas import changes
from cutline.common.store.records import Content, Publication, PublishedTable

DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """The publications before `oldest` that stay (`savepoints`, in order) and the savepoints that go (`released`);
    `contents` has for each table all that the retained records name.
    """

    oldest: Publication
    savepoints: tuple[Publication, ...]
    released: tuple[Publication, ...]
    contents: Mapping[str, Collection[Content]]

    def contents_of(self, table_id: str) -> Collection[Content]:
        """The contents of a table that stay."""
        return self.contents.get(table_id, ())


def retained(
    records: Iterable[Publication],
    *,
    chain: Container[int],
    now: float,
    settings: RetentionConfig,
    released: Container[int] = (),
) -> Retained | None:
    """Return what stays of all `records`, newest first; None if all are within the grace, so that nothing may go.

    They are read once, and few are held at a time. `chain` has the valid checkpoints, `released` the savepoints that a
    person gave up.
    """
    contents: dict[str, set[Content]] = {}
    later: Mapping[str, PublishedTable] = {}
    oldest: Publication | None = None
    savepoints: list[Publication] = []
    gone: list[Publication] = []
    room = settings.savepoints
    for record in records:
        if oldest is None:
            room -= record.kept and record.n in chain and record.n not in released  # else it takes no other one's place
            if record.n in chain and record.published_at <= now - settings.grace_seconds:
                oldest = record
        elif not record.kept:
            continue
        elif (
            len(savepoints) < room and record.n in chain and record.n not in released and _young(record, now, settings)
        ):
            savepoints.append(record)
        else:
            gone.append(record)
            continue
        for table_id, table in changes(record.tables, later).items():
            if table is not None:
                contents.setdefault(table_id, set()).update(named_by(table))
        later = record.tables
    if oldest is None:
        return None
    return Retained(
        oldest=oldest,
        savepoints=tuple(reversed(savepoints)),
        released=tuple(gone),
        contents=contents,
    )


def named_by(table: PublishedTable) -> set[Content]:
    """The contents that a record names for a table."""
    return {found.content for found in (table.main, table.work) if found is not None}


def _young(record: Publication, now: float, settings: RetentionConfig) -> bool:
    days = settings.savepoint_days
    return days is None or record.published_at >= now - days * DAY_SECONDS
