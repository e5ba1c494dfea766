"""The phases of a table (pure): the only list of them. docs/architecture.md says how one follows another."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a table of a pipeline stands."""

    WAITING = "waiting"
    SNAPSHOT = "snapshot"
    CATCH_UP = "catch-up"
    LIVE = "live"
    PAUSED = "paused"
    QUARANTINED = "quarantined"
    DROPPED = "dropped"


WAITING, SNAPSHOT, CATCH_UP, LIVE, PAUSED, QUARANTINED, DROPPED = Phase
