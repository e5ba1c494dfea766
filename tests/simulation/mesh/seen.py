"""What the checks have seen of a world so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cutline.common.mesh.machine import Event
from cutline.common.schema import TableSchema


@dataclass(slots=True)
class Seen:
    """Filled while a world runs."""

    cuts: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """By epoch and checkpoint: of each member, what it had sent at its snapshot and taken by its cut."""
    live: dict[Any, Any] = field(default_factory=dict)
    """By epoch, member and checkpoint: the machine's state at the cut."""
    begun: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    """By checkpoint: the generations of which it has rows."""
    generations: dict[tuple[str, int], int] = field(default_factory=dict)
    """The checkpoint in which each generation began."""
    schemas: dict[str, TableSchema] = field(default_factory=dict)
    """Those that parts have named."""
    versions: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """By table and key: the stamp of the row that `main` showed last."""
    facts: list[tuple[str, Event]] = field(default_factory=list)
    """A sample of the facts that services were given."""
    retired: int = 0  # the publication behind which records were removed
    steps: int = 0  # of all machines
