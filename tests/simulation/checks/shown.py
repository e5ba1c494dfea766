"""What a publication shows equals the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutline.common.mesh.parts import load_part
from cutline.common.positions import Low
from cutline.common.schema import TableSchema
from cutline.common.store.records import CheckpointEntry, Publication
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.simulation.checks.columns import columns_follow_the_policy
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.lake import Rows
    from tests.simulation.mesh.world import World


def _shown(world: World, rows: Rows, schema: TableSchema, table: str) -> dict[Any, Any]:
    """The rows as a reader of the lake sees them under `schema`: by field id."""
    names: dict[Any, Any] = {}
    places: dict[str, list[int | None]] = {}
    for key, found in rows.items():
        if len(found) != 1:
            raise Failure(f"row {key} of {table} is there {len(found)} times")
        own, row = found[0]
        if own not in places:
            ids = {c.field_id: i for i, c in enumerate(world.lake.schemas[own].columns)}
            places[own] = [ids.get(c.field_id) for c in schema.columns]
        names[key] = tuple(None if i is None else row[i] for i in places[own])
    return names


def publication_equals_source(world: World, publication: Publication) -> None:
    """No row is lost or doubled: every table that a publication shows at its position equals the source there, by key
    and content, with the source's columns; and amounts moved between two tables still add up."""
    entry = world.store.journal[publication.n]
    assert isinstance(entry, CheckpointEntry)
    if entry.inside:
        raise Failure(f"checkpoint {publication.n} is inside a transaction and was published")
    position = publication.position
    if position is None:
        return
    if world.source.lost_gtids or (position.server != world.source.server and not position.gtids):
        return  # the source has lost transactions that were taken there
    state, columns = world.source.state_at(position)
    starts = _starts(world, entry)
    amounts = []
    for table, published in publication.tables.items():
        if published.main is None:
            continue
        if entry.tables[table].generation > 1 and not entry.tables[table].show:
            world.count["old generation shown while the new one is read"] += 1
        if not published.shown:
            continue  # of an older generation, and marked so
        schema = world.lake.schemas[entry.tables[table].schema or ""]
        truth = world.source.places.since(starts[table], position)[table] if table in starts else state[table]
        rows = world.lake.snapshots[snapshot_of(published.main.content)]
        if table in starts and not rows and not truth:  # its columns at the start are not known yet
            continue
        if tuple(c.name for c in schema.columns) != columns[table]:
            raise Failure(
                f"{table} has columns {[c.name for c in schema.columns]} in publication {publication.n}"
                f" and {columns[table]} at the source"
            )
        shown = _shown(world, rows, schema, table)
        if shown != truth:
            wrong = {k: (shown.get(k), truth.get(k)) for k in {*shown, *truth} if shown.get(k) != truth.get(k)}
            raise Failure(
                f"{table} in publication {publication.n} differs from the source at {position} (lake, source): {wrong}"
            )
        world.count["table compared"] += 1
        if table in starts:
            world.count["table compared with what came after its start"] += 1
            continue
        columns_follow_the_policy(world, publication.n, table, schema)
        if table in ("shop.a", "shop.b"):
            at = columns[table].index("amount")
            amounts.append(sum(row[at] for row in shown.values()))
    if len(amounts) == 2:
        world.count["constant sum compared"] += 1
        if sum(amounts) != 10_000:
            raise Failure(f"the amounts of two tables add up to {sum(amounts)} in publication {publication.n}")


def _starts(world: World, entry: CheckpointEntry) -> dict[str, Low]:
    """The tables that a publication's checkpoint has without a snapshot, each with its start."""
    if world.shape.start is None:
        return {}
    tables = load_part(world.store.open(), entry.parts["enumerator"]).values.get("tables", {})
    # The low that a table has now may be that of a later pause.
    found = {name: world.questions.began[entry.epoch] for name, t in tables.items() if t["low"] and not t["splitsDone"]}
    if late := world.questions.late & found.keys():
        raise Failure(f"{late} came later, and checkpoint {entry.slot} has no snapshot of them")
    return found
