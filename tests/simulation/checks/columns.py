"""Readers of the lake see columns change as `schema_changes` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.schema import TableSchema
from cutline.common.store.records import CheckpointEntry
from tests.simulation.checks.chain import chain
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def columns_follow_the_policy(world: World, n: int, table: str, schema: TableSchema) -> None:
    """With `halt` no reader of the lake sees columns change; with `ignore` none does within a generation."""
    policy, journal = world.shape.schema_changes, world.store.journal
    cuts = [found for slot in chain(journal) if isinstance(found := journal[slot], CheckpointEntry)]
    now = journal[n]
    assert isinstance(now, CheckpointEntry)
    entry = now.tables[table]
    earlier = [
        before
        for cut in cuts
        if cut.slot < n and cut.slot in world.store.publications
        if (before := cut.tables.get(table)) is not None and before.show
    ]
    if not earlier:
        return
    last = earlier[-1]
    before, same = world.lake.schemas[last.schema or ""], last.generation == entry.generation
    # A stream without a snapshot may begin before columns that the table had when the pipeline began.
    known = world.lake.schemas.get(last.described or "", before)
    if policy == "halt" and schema.look not in (before.look, known.look):
        raise Failure(f"{table} shows other columns in publication {n} than before, though schema_changes is halt")
    if policy == "ignore" and same and [c.name for c in before.lake] != [c.name for c in schema.lake]:
        raise Failure(f"{table} shows other columns in publication {n} than before, though schema_changes is ignore")
    if policy == "evolve" and same and not {c.field_id for c in before.lake} <= {c.field_id for c in schema.lake}:
        raise Failure(f"{table} lost a column in publication {n}, though schema_changes is evolve")
