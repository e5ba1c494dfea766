"""Splitting a table into chunks, lazily: the next chunk is made when a reader is about to need it.

A table without a key is one chunk, and so is one whose integer keys show that a chunk has room for all of it. Any other
is split in one of two ways, as by Flink CDC's MySQL splitter and DBLog:

- *even*: one integer key column whose values fill their range well. Bounds are arithmetic: min, min + step, ...
- *walk*: anything else. Each bound is asked of MySQL (`FindBound`), which alone compares keys.

A chunk that a reader had to cut short leaves a `rest`, which is a chunk as well.

The first and the last chunk are open-ended, so the chunks cover every present and future key. In the even way the open
chunk above the maximum is handed out first, while it is small: rows inserted during the snapshot come by the binlog.

States: start -> (range or bound asked) -> whole | even | walk -> done. Pure: the enumerator asks the questions of
`wants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutline.common.mesh.messages import Key, SnapshotSplit
from cutline.common.schema import TableSchema

CHUNK_BYTES = 32 << 20
MAX_SPREAD = 4.0  # (key range) / (estimated rows); above it, arithmetic would make mostly empty chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The smallest and the largest value of an integer key; None if the table has no rows."""

    low: int | None
    high: int | None


@dataclass(slots=True, kw_only=True)
class Splitter:
    """Makes the chunks of one generation of a table. All fields are state; all but `schema` are JSON-able.

    `row_bytes` and `estimate` are the source's estimates; a chunk has about `chunk_rows` rows, at most `CHUNK_BYTES`.
    """

    table_id: str
    generation: int
    schema: TableSchema
    chunk_rows: int
    estimate: int
    row_bytes: int
    integer_key: bool
    chunk_key: tuple[str, ...] = ()  # empty: the identity
    mode: str = "start"
    made: int = 0
    next_start: Key | None = None
    last: int | None = None  # the largest key, in the even way
    spread: float = 1.0  # (key range) / (estimated rows)
    asked: bool = False  # a question is open

    @property
    def ordered(self) -> TableSchema:
        """The schema, keyed by the columns that chunks are cut by."""
        return self.schema.keyed(self.chunk_key) if self.chunk_key else self.schema

    @property
    def step(self) -> int:
        """Rows per chunk."""
        return max(1, min(self.chunk_rows, CHUNK_BYTES // max(1, self.row_bytes)))

    @property
    def done(self) -> bool:
        """Whether every chunk is made."""
        return self.mode == "done"

    def wants(self) -> str | None:
        """The question that the source must answer before `take` can give more: "range", "bound" or None."""
        if self.asked or self.mode in ("done", "even", "whole") or not self.schema.key:
            return None
        if self.mode == "start":
            return "range" if self.integer_key else "bound"
        return "bound"

    def ranged(self, found: KeyRange) -> None:
        """The answer to "range"."""
        self.asked = False
        if found.low is None or found.high is None:
            self.mode = "whole"
            return
        keys = found.high - found.low + 1
        spread = max(1.0, keys / max(1, self.estimate))
        even = spread <= MAX_SPREAD
        if keys <= (int(self.step * spread) if even else self.step):
            self.mode = "whole"
            return
        if not even:
            self.mode = "walk"
            return
        self.mode, self.last, self.spread = "even", found.high, spread
        self.next_start = (str(found.low),)

    def bounded(self, end: Key | None) -> list[SnapshotSplit]:
        """The answer to "bound": the key that ends the next chunk, or None if the table ends within it."""
        self.asked = False
        split = self._make(self.next_start, end)
        self.mode, self.next_start = ("done", None) if end is None else ("walk", end)
        return [split]

    def take(self, count: int) -> list[SnapshotSplit]:
        """Up to `count` chunks that need no question."""
        splits: list[SnapshotSplit] = []
        if count and not self.done and (self.mode == "whole" or not self.schema.key):
            return self.bounded(None)
        while self.mode == "even" and len(splits) < count:
            assert self.last is not None
            assert self.next_start is not None
            if self.made == 0:
                splits.append(self._make((str(self.last + 1),), None))
                continue
            start = int(self.next_start[0])
            end = min(start + int(self.step * self.spread), self.last + 1)
            splits.append(self._make(None if self.made == 1 else self.next_start, (str(end),)))
            self.next_start = (str(end),)
            if end > self.last:
                self.mode, self.next_start = "done", None
        return splits

    def rest(self, split: SnapshotSplit, start: Key) -> SnapshotSplit:
        """The rest of a chunk that was cut short before the key `start`."""
        return self._make(start, split.split_end)

    def _make(self, start: Key | None, end: Key | None) -> SnapshotSplit:
        self.made += 1
        return SnapshotSplit(
            split_id=f"{self.table_id}:{self.generation}:{self.made}",
            table_id=self.table_id,
            generation=self.generation,
            attempt=1,
            split_key=self.chunk_key,
            split_key_type=self.ordered.split_key_type,
            split_start=start,
            split_end=end,
            schema=self.schema,
        )

    def to_json(self) -> dict[str, Any]:
        """The state, without the schema: the table has it."""
        return {
            "chunkRows": self.chunk_rows, "estimate": self.estimate, "rowBytes": self.row_bytes,
            "integerKey": self.integer_key, "chunkKey": list(self.chunk_key), "mode": self.mode, "made": self.made,
            "nextStart": None if self.next_start is None else list(self.next_start), "last": self.last,
            "spread": self.spread,
        }  # fmt: skip

    @classmethod
    def restored(cls, table_id: str, generation: int, schema: TableSchema, state: dict[str, Any]) -> Splitter:
        """Read what `to_json` made; an open question is asked again."""
        return cls(
            table_id=table_id, generation=generation, schema=schema, chunk_rows=state["chunkRows"],
            estimate=state["estimate"], row_bytes=state["rowBytes"], integer_key=state["integerKey"],
            chunk_key=tuple(state["chunkKey"]), mode=state["mode"], made=state["made"],
            next_start=None if state["nextStart"] is None else tuple(state["nextStart"]), last=state["last"],
            spread=state["spread"],
        )  # fmt: skip
