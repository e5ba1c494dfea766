"""No live key goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.lake import Rows
    from tests.simulation.mesh.world import World


def no_key_goes_back(world: World, table: str, n: int, rows: Rows) -> None:
    """No live key goes back: `main` never shows an older version of a row than before, on the same chain."""
    if world.source.lost_gtids:
        return
    known = world.seen.versions.setdefault(table, {})
    for key, found in rows.items():
        at = [c.name for c in world.lake.schemas[found[0][0]].columns].index("stamp")
        stamp = found[0][1][at]
        if stamp < known.get(key, 0):
            raise Failure(
                f"row {key} of {table} went back from stamp {known[key]} to {stamp} as main moved to publication {n}"
            )
        known[key] = stamp
    world.count["main moved"] += 1
