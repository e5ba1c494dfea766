"""When `cutline run --until` is done: judged by the enumerator's status of the tables and the newest publication.

- `snapshot`: every table is published live, in the generation of the status.
- `caught-up`: once every table is live or inactive, the source's flushed position is taken (`target`); done when a
  publication has reached it.

Quarantined, paused and dropped tables are inactive: they are not waited for, since they stay so until a person acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cutline.common.phases import DROPPED, LIVE, PAUSED, QUARANTINED
from cutline.common.positions import High
from cutline.common.status.pipeline_status import TableStatus
from cutline.common.store.records import Publication

Until = Literal["snapshot", "caught-up"]

INACTIVE = frozenset({QUARANTINED, DROPPED, PAUSED})


_CAUSES = {PAUSED: "by a person; resume it"}


def pending(tables: Mapping[str, TableStatus]) -> tuple[str, ...]:
    """The tables that are neither live nor inactive."""
    return tuple(sorted(name for name, table in tables.items() if table.phase not in (LIVE, *INACTIVE)))


def unpublished(tables: Mapping[str, TableStatus], publication: Publication | None) -> tuple[str, ...]:
    """The active tables that are not live in `publication`, in the generation of the status."""
    published = {} if publication is None else publication.tables
    missing = []
    for name, table in tables.items():
        if table.phase in INACTIVE:
            continue
        entry = published.get(name)
        if entry is None or entry.state != "live" or entry.main is None or entry.generation != table.generation:
            missing.append(name)
    return tuple(sorted(missing))


def caught_up(tables: Mapping[str, TableStatus], publication: Publication, target: High) -> bool:
    """Whether `publication` has reached `target` and every active table. SourceLost if another server wrote it."""
    if publication.position is None:  # no table was ever in the stream, so there is no position to reach
        states = {name: entry.state for name, entry in publication.tables.items()}
        return states.keys() == tables.keys() and INACTIVE.issuperset(states.values())
    return target.reached_by(publication.position) and not unpublished(tables, publication)


def not_live(tables: Mapping[str, TableStatus]) -> str | None:
    """A sentence that names every table that is neither live nor dropped, or None if there is none."""
    named = [
        f"{name} ({table.phase}: {table.cause or _CAUSES.get(table.phase, 'no cause given')})"
        for name, table in sorted(tables.items())
        if table.phase not in (LIVE, DROPPED)
    ]
    return f"not live: {', '.join(named)}; remove these causes and run again" if named else None


def dropped(tables: Mapping[str, TableStatus]) -> str | None:
    """A sentence that names every table that was dropped at the source, or None if there is none."""
    named = [name for name, table in sorted(tables.items()) if table.phase == DROPPED]
    return f"dropped at the source: {', '.join(named)}; the lake keeps their last content" if named else None
