"""The simulated lake and its Spark writers: snapshots of tables, a branch a start, publications, `main`.

A table's rows are kept as a list a key, so that what was appended twice shows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from common.schema import TableSchema
from tests.simulation.source import Row

Rows = dict[Row, list[tuple[str, Row]]]  # key -> (schema hash, row), more than one if doubled


@dataclass(slots=True)
class Main:
    """What a table shows, and the property that says who moved it there."""

    snapshot: int
    by: tuple[int, int]  # w, N


@dataclass(slots=True)
class Lake:
    """What outlives the Spark writers."""

    snapshots: dict[int, Rows] = field(default_factory=dict)
    main: dict[str, Main] = field(default_factory=dict)
    schemas: dict[str, TableSchema] = field(default_factory=dict)

    def put(self, rows: Rows) -> int:
        number = len(self.snapshots) + 1
        self.snapshots[number] = rows
        return number


def chain(journal: dict[int, dict[str, Any]]) -> list[int]:
    """Checkpoints on the chain, oldest first: followed back from the newest epoch entry by its base."""
    slots: list[int] = []
    upper = max(journal, default=0)
    epochs = [slot for slot, entry in journal.items() if entry["kind"] == "epoch"]
    epoch = max(epochs, default=None)
    while epoch is not None:
        slots += [n for n, e in journal.items() if e["kind"] == "checkpoint" and e["epoch"] == epoch and n <= upper]
        base = journal[epoch]["base"]
        epoch, upper = (None, 0) if base is None else (journal[base]["epoch"], base)
    return sorted(slots)


def applied(rows: Rows, staged: list[dict[str, Any]], files: dict[str, list[Any]], count: Counter[str]) -> Rows:
    """`rows` with the files of one table and generation: chunks appended, changes merged by `_seq`."""
    rows = dict(rows)
    cut = max((f["truncated_at"] for f in staged if f["truncated_at"] is not None), default=None)
    if cut is not None:
        rows = {}
        count["t applied"] += 1
    for file in staged:
        if file["kind"] == "chunk" and cut is None:
            for key, row in files[file["path"]]:
                rows[key] = [*rows.get(key, []), (file["schema"], row)]
    last: dict[Row, tuple[int, str, str, Row]] = {}
    for file in staged:
        if file["kind"] == "changes":
            for seq, op, key, row in files[file["path"]]:
                if op != "t" and (cut is None or seq > cut) and (key not in last or last[key][0] < seq):
                    last[key] = (seq, op, file["schema"], row)
    for key, (_, op, schema, row) in last.items():
        if op == "-D":
            rows.pop(key, None)
        else:
            rows[key] = [(schema, row)] * max(1, len(rows.get(key, [])))  # a MERGE changes every row that matches
    return rows


class SparkWriter:
    """One start of the Spark writer: works on its own branch, publishes, moves `main`."""

    def __init__(self, world: Any, w: int) -> None:
        self.world, self.w = world, w
        self.branch: dict[str, tuple[int, int]] = {}  # table -> generation, snapshot
        self.shown: dict[str, dict[str, Any] | None] = {}
        self.done = 0  # newest checkpoint applied
        self.begun = False
        self.pending: tuple[dict[str, Any], dict[str, Any]] | None = None  # entry, publication: applied, to be published
        self.published: dict[str, Any] | None = None

    def start(self) -> None:
        """Branch from the newest publication on the chain, and do again what follows from it."""
        journal, publications = self.world.store.journal, self.world.store.publications
        on_chain = [n for n in chain(journal) if n in publications]
        self.begun = True
        if on_chain:
            newest = publications[on_chain[-1]]
            self.done = on_chain[-1]
            for table, of in newest["tables"].items():
                self.shown[table] = of["main"]
                if of["work"] is not None:
                    self.branch[table] = (of["work"]["generation"], of["work"]["snapshot_id"])
            self.move(newest)
        else:
            self.done = 0

    def step(self) -> str:
        """One step: start, apply, publish or move. Gives "again" if this start must end and another begin."""
        if not self.begun:
            self.start()
            return "started"
        if self.published is not None:
            self.move(self.published)
            self.published = None
            return "moved"
        if self.pending is not None:
            return self.publish()
        return self.apply()

    def apply(self) -> str:
        world = self.world
        journal = world.store.journal
        slots = chain(journal)
        if self.done and self.done not in slots:
            world.count["Spark writer: its work left the chain"] += 1
            return "again"
        todo = [n for n in slots if n > self.done]
        if not todo:
            return "idle"
        batch = self.batch(todo, journal)
        entry = journal[batch[-1]]
        for slot in batch:
            for key, schema in journal[slot]["schemas"].items():
                world.lake.schemas.setdefault(key, TableSchema.from_json(schema))
        for table, of in entry["tables"].items():
            generation, snapshot = self.branch.get(table, (0, 0))
            rows = world.lake.snapshots.get(snapshot, {}) if generation == of["generation"] else {}
            changed = generation != of["generation"]
            for slot in batch:
                staged = [
                    f for f in journal[slot]["staged"] if f["table"] == table and f["generation"] == of["generation"]
                ]
                world.count["staged file of an older generation left out"] += any(
                    f["table"] == table and f["generation"] < of["generation"] for f in journal[slot]["staged"]
                )
                if staged:
                    rows, changed = applied(rows, staged, world.store.files, world.count), True
            if changed:
                self.branch[table] = (of["generation"], world.lake.put(rows))
        world.count["Spark writer applied several checkpoints at once"] += len(batch) > 1
        self.done = batch[-1]
        if entry["inside"]:
            world.count["inside checkpoint applied, not published"] += 1
            return "applied"
        tables = {}
        for table, of in entry["tables"].items():
            generation, snapshot = self.branch[table]
            if of["show"]:
                self.shown[table] = {"snapshot_id": snapshot, "position": entry["position"]}
            tables[table] = {
                "state": of["phase"],
                "generation": of["generation"],
                "main": self.shown.get(table),
                "work": {"snapshot_id": snapshot, "branch": f"staging_{self.w}", "generation": generation},
            }
        publication = {
            "n": entry["slot"], "epoch": entry["epoch"], "w": self.w, "kept": entry["kept"],
            "position": entry["position"], "tables": tables,
        }  # fmt: skip
        self.pending = (entry, publication)
        return "applied"

    @staticmethod
    def batch(todo: list[int], journal: dict[int, dict[str, Any]]) -> list[int]:
        """Several at once when behind, never across a kept cut, a `t` or a generation."""
        out = [todo[0]]
        for slot in todo[1:4]:
            before, after = journal[out[-1]], journal[slot]
            truncates = any(f["truncated_at"] is not None for e in (before, after) for f in e["staged"])
            generations = any(
                before["tables"].get(t, of)["generation"] != of["generation"] for t, of in after["tables"].items()
            )
            if before["kept"] or truncates or generations:
                break
            out.append(slot)
        return out

    def publish(self) -> str:
        assert self.pending is not None
        _entry, publication = self.pending
        world = self.world
        if not world.store.publish(publication):
            there = world.store.publications[publication["n"]]
            if there["w"] != self.w:
                world.count["publication refused"] += 1
                return "again"
        self.pending = None
        self.published = publication
        world.on_publication(publication)
        return "published"

    def move(self, publication: dict[str, Any]) -> None:
        """`main` of each live table, in the order of its property."""
        world = self.world
        for table, of in publication["tables"].items():
            if of["main"] is None:
                continue
            there = world.lake.main.get(table)
            by = (self.w, publication["n"])
            if there is not None and there.by[0] > self.w:
                world.count["main refused to a zombie Spark writer"] += 1
                continue
            world.lake.main[table] = Main(of["main"]["snapshot_id"], by)
