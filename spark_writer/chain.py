"""Which checkpoints count, what to apply next, and what a publication says (pure).

The journal's epoch entries fork history: each names the checkpoint that it goes on from (`base`). The *chain* is the
one history that counts: from the newest epoch entry back by `base`, so the checkpoints of that epoch, then those of the
base's epoch up to the base, and so on. Checkpoints and publications off the chain are as if they had never been
(their rows are read again by a later epoch).

What is promised: entries are applied in the chain's order, each once on one branch; a cut `inside` a transaction is
applied and never published; a kept cut is published by itself, so that its tag can be made; nothing is applied together
over a `t` (TRUNCATE) or a table's change of generation.

Relied on: slots are used without a hole, and the slots between an epoch entry and the next one are that epoch's
checkpoints (put-if-absent; a deposed leader is refused its slot). Used by production (spark_writer/apply.py) and by the
simulation alike; change both together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutline.common.errors import ProtocolError

Entry = Mapping[str, Any]
"""The body of a journal entry, of an epoch or of a checkpoint."""
BATCH_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The checkpoints that count: `segments` are (epoch slot, last checkpoint slot of it that counts), newest first."""

    segments: tuple[tuple[int, int], ...] = ()

    def __contains__(self, checkpoint: object) -> bool:
        return isinstance(checkpoint, int) and any(epoch < checkpoint <= last for epoch, last in self.segments)

    def after(self, checkpoint: int) -> list[int]:
        """Return the slots of the chain's checkpoints above `checkpoint`, oldest first."""
        return [slot for epoch, last in reversed(self.segments) for slot in range(max(epoch, checkpoint) + 1, last + 1)]

    def newest(self, published: Iterable[int]) -> int | None:
        """Return the newest of the publications `published` that is on the chain, or None."""
        return max((n for n in published if n in self), default=None)


def follow(last_slot: int, entry: Callable[[int], Entry | None], published: Collection[int] = ()) -> Chain:
    """Follow the chain back from journal slot `last_slot` (0: an empty journal); `entry` looks an entry up.

    Goes back until a segment holds one of `published` (no older one matters), or to the beginning. ProtocolError if an
    entry that is needed is missing.
    """
    segments: list[tuple[int, int]] = []
    last: int | None = last_slot or None
    while last is not None:
        found = _there(entry(last), last)
        epoch = last if found["kind"] == "epoch" else int(found["epoch"])
        segments.append((epoch, last))
        if any(epoch < n <= last for n in published):
            break
        base = _there(entry(epoch), epoch)["base"]
        if base is not None and base >= epoch:
            raise ProtocolError(f"the epoch entry {epoch} goes on from checkpoint {base}, which is not before it")
        last = base
    return Chain(segments=tuple(segments))


def _there(found: Entry | None, slot: int) -> Entry:
    if found is None:
        raise ProtocolError(f"journal entry {slot} is missing though the chain leads over it; restore it from a backup")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Checkpoint entries to apply in one go; `publish`: the last one may then be published, `kept`: as a kept cut.

    `kept` is also true if the kept cut was an `inside` one before the last: its tag waits for the next that can be
    published.
    """

    entries: tuple[Entry, ...]
    publish: bool
    kept: bool

    @property
    def last(self) -> int:
        """Slot of the last entry."""
        return int(self.entries[-1]["slot"])


def next_batch(
    entries: Sequence[Entry],
    *,
    kept_pending: bool = False,
    generations: Mapping[str, int] | None = None,
    max_rows: int = BATCH_ROWS,
) -> Batch | None:
    """Choose what to apply next of `entries`, the chain's checkpoints not applied yet, oldest first; None if none.

    `kept_pending`: an applied `inside` cut was a kept one. `generations` are those that the branch holds now. The batch
    goes as far as it may, to the last entry that can be published if there is one; only then are `inside` cuts applied
    by themselves. More than `max_rows` staged rows end it, but one entry is always taken.
    """
    end, rows, publishable, kept = 0, 0, 0, kept_pending
    current = dict(generations or {})
    for at, entry in enumerate(entries):
        staged = [record for record in entry["staged"] if record["rows"]]
        rows += sum(record["rows"] for record in staged)
        changed = {table: said["generation"] for table, said in entry["tables"].items()}
        changed |= {record["table"]: record["generation"] for record in staged}
        restarts = any(current.get(table, generation) != generation for table, generation in changed.items())
        truncates = any(record["truncated_at"] is not None for record in staged)
        if at and (restarts or truncates or rows > max_rows):
            break
        current |= changed
        end = at + 1
        kept = kept or entry["kept"]
        if not entry["inside"]:
            publishable = end
            if kept:
                break
    if not end:
        return None
    chosen = tuple(entries[: publishable or end])
    return Batch(entries=chosen, publish=publishable > 0, kept=kept_pending or any(entry["kept"] for entry in chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Where the applied state of one table is: a snapshot of the lake table, the branch it was made on, its generation
    and the hash of its schema.
    """

    snapshot_id: int
    branch: str
    generation: int
    schema: str

    def to_json(self) -> dict[str, Any]:
        """Return the publication's form."""
        return {
            "snapshot_id": self.snapshot_id,
            "branch": self.branch,
            "generation": self.generation,
            "schema": self.schema,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Work:
        """Read what `to_json` gave."""
        return cls(
            snapshot_id=body["snapshot_id"],
            branch=body["branch"],
            generation=body["generation"],
            schema=body["schema"],
        )


def publication(
    entry: Entry,
    *,
    w: int,
    kept: bool,
    work: Mapping[str, Work],
    previous: Mapping[str, Any] | None,
    published_at: float,
) -> dict[str, Any]:
    """Return the record that checkpoint `entry` is applied, to be put if absent: the commit point.

    `work` has the applied state of each table that the lake has; `previous` is the newest publication on the chain. A
    table goes to `main` when the entry says `show`; otherwise `main` stays what it was, with the position that it had.
    ProtocolError for an `inside` cut, or a table to be shown that was not applied.
    """
    n = entry["slot"]
    if entry["inside"]:
        raise ProtocolError(f"checkpoint {n} is inside a transaction and can't be published")
    before = previous["tables"] if previous is not None else {}
    tables: dict[str, Any] = {}
    for table, said in entry["tables"].items():
        done = work.get(table)
        main = before.get(table, {}).get("main")
        if said["show"]:
            if done is None or done.generation != said["generation"]:
                raise ProtocolError(f"table {table} is live in checkpoint {n} but its generation was never applied")
            main = {"snapshot_id": done.snapshot_id, "position": entry["position"]}
        tables[table] = {
            "state": said["phase"],
            "generation": said["generation"],
            "main": main,
            "work": done.to_json() if done is not None else None,
        }
    return {
        "n": n,
        "epoch": entry["epoch"],
        "w": w,
        "kept": kept,
        "position": entry["position"],
        "source_time": entry["source_time"],
        "published_at": published_at,
        "tables": tables,
    }


def shown(record: Mapping[str, Any], table: str) -> bool:
    """Whether the publication `record` shows `table` at its own cut (and not as an older publication left it)."""
    said = record["tables"][table]
    return (
        said["main"] is not None
        and said["work"] is not None
        and (
            said["main"]["snapshot_id"] == said["work"]["snapshot_id"]
            and said["main"]["position"] == record["position"]
        )
    )


def may_show(there: tuple[int, int], *, w: int, n: int, own: bool, chain: Callable[[int], Chain]) -> bool:
    """Whether a Spark writer `w` may let `main` show publication `n` where it shows `there`, a (w, N).

    Not if a greater w was there, nor if what is there is newer and counts. What `n` does not show at its `own` cut, but
    as an older publication left it, is there already, or a later one than that is, which `w` did not know: then only
    what does not count makes room. `chain(back)` reads the journal, back to that checkpoint, *after* `there` was read:
    in an older view of it, what another start has published since then would not count, and `main` would go back.
    """
    there_w, there_n = there
    return there_w <= w and ((own and there_n <= n) or there_n not in chain(min(there_n, n)))


def changed_tables(record: Mapping[str, Any], previous: Mapping[str, Any] | None) -> list[str]:
    """Return the tables of which `previous` says something else, positions of shown tables apart; sorted."""

    def said(of: Mapping[str, Any], table: str) -> Any:
        body = of["tables"][table]
        main = body["main"]
        return body["state"], body["generation"], main and main["snapshot_id"], shown(of, table)

    return sorted(
        table
        for table in record["tables"]
        if previous is None or table not in previous["tables"] or said(record, table) != said(previous, table)
    )
