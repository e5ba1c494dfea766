"""What a seed draws for its world of the mesh."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

from cutline.common.schema import SchemaChanges
from tests.simulation.source.transactions import FEW, KINDS, MARIADB, MYSQL, PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Drawn from a seed: size, speed and faults of its world."""

    flavour: str
    exact: bool
    tables: tuple[str, ...]
    rows: int
    chunk_rows: int
    readers: int
    writers: int
    enumerators: int
    interval: float
    lag: float
    gap: float  # seconds between transactions
    chaos: float  # seconds of trouble
    faults: int
    max_rows: int
    snapshot_only: bool
    wire: bool
    start: str | None  # kind; None: with a snapshot
    stop: tuple[str, float] | None  # kind, seconds from the pipeline's beginning
    schema_changes: SchemaChanges
    unsaved_rows: int | None = None  # that a reader may send without a complete checkpoint; a row has one byte

    @classmethod
    def from_seed(cls, seed: int) -> Shape:
        """The shape of a seed's world."""
        return cls.drawn(random.Random(seed), seed)

    @classmethod
    def drawn(cls, rng: random.Random, seed: int) -> Shape:
        flavour = rng.choice((MYSQL, MYSQL, MARIADB, PLAIN))
        tables = tuple(rng.sample(FEW, k=rng.choice((1, 2, 3, 4))))
        if flavour == PLAIN:
            tables = tuple(table for table in tables if not KINDS[table].keyless) or ("shop.text",)
        if rng.random() < 0.7:
            tables = tuple({"shop.a": 0, "shop.b": 0, **dict.fromkeys(tables)})
        start = stop = None
        own = random.Random(f"start {seed}")
        if own.random() < 0.15:
            start = own.choice(("latest", "place"))
        own = random.Random(f"stop {seed}")  # apart, so that worlds without a stop draw the same
        if own.random() < 0.15:
            kinds = ("file", "time") if flavour == PLAIN else ("file", "time", "GTIDs")
            stop = (own.choice(kinds), own.uniform(0.1, 12))
        shape = cls(
            flavour=flavour, exact=flavour != PLAIN and rng.random() < 0.4, tables=tables, rows=rng.choice((4, 12, 24)),
            chunk_rows=rng.choice((2, 5, 9)), readers=rng.choice((1, 2, 3)), writers=rng.choice((1, 2, 3)),
            enumerators=rng.choice((1, 2, 2)), interval=rng.choice((0.3, 1.0, 2.0)),
            lag=rng.choice((0.005, 0.03, 0.12)),
            gap=rng.choice((0.05, 0.15, 0.4)), chaos=rng.uniform(4, 12), faults=rng.choice((0, 1, 2, 4)),
            max_rows=rng.choice((3, 8, 40)), snapshot_only=stop is None and start is None and rng.random() < 0.05,
            wire=rng.random() < 0.15, start=start, stop=stop,
            schema_changes=rng.choice(("evolve", "evolve", "evolve", "exact", "exact", "ignore", "halt")),
        )  # fmt: skip
        own = random.Random(f"unsaved {seed}")
        if own.random() < 0.4:
            shape = dataclasses.replace(shape, unsaved_rows=own.choice((12, 40)))
        own = random.Random(f"size {seed}")
        if own.random() < 0.04:
            more = tuple(table for table in KINDS if table not in FEW)[: own.choice((4, 8))]
            shape = dataclasses.replace(shape, tables=shape.tables + more, readers=own.choice((4, 6)))
        return shape
