"""The splits of a pipeline: queued, kept back, and out at readers (pure).

Splits are pulled: a reader says how many it has room for. With none left to give, an unstarted one is taken back from a
busy reader for an idle one. Splits of a paused table are kept back, and those of one that can't be read now (holds.py):
of these one at a time is tried.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import Effect, Send
from cutline.common.mesh.messages import AssignSplits, Key, SnapshotSplit, TakeBackSplit, from_plain, to_plain
from cutline.common.phases import PAUSED, SNAPSHOT
from cutline.common.store.records import StagedFile
from cutline.services.enumerator.events import FindBound, FindRange
from cutline.services.enumerator.holds import Holds
from cutline.services.enumerator.splitter import KeyRange, Splitter
from cutline.services.enumerator.tables import AT_REST, Table, Tables

NO_CAUSE = Cause(Code.OTHER, "no cause was given")


class Splits:
    """The splits of the tables of one enumerator, which puts tables into the same `tables`."""

    def __init__(self, tables: Tables, readers: Iterable[str]) -> None:
        self._tables = tables
        self.todo: deque[SnapshotSplit] = deque()
        self.shelved: list[SnapshotSplit] = []  # queued splits of paused tables, and of held ones
        self.holds = Holds()
        self.out: dict[str, tuple[SnapshotSplit, str]] = {}  # split_id -> split, reader
        self.accepted: dict[str, int] = {}  # split_id -> attempt, not yet in a checkpoint
        self.free = dict.fromkeys(readers, 0)
        self.taking_back: set[str] = set()
        self.failures: dict[str, int] = {}  # split_id -> failed attempts in this epoch

    def copy(self, tables: Tables) -> Splits:
        """Those of a copy of the machine: the part that reports change."""
        copied = Splits(tables, self.free)
        copied.accepted, copied.holds = dict(self.accepted), self.holds.copy()
        copied.todo, copied.out, copied.shelved = deque(self.todo), dict(self.out), list(self.shelved)
        return copied

    def drop(self, table_id: str) -> None:
        """Drop the splits of a table, queued or out; their reports will be late."""
        self.holds.end(table_id)
        self.todo = deque(split for split in self.todo if split.table_id != table_id)
        self.shelved = [split for split in self.shelved if split.table_id != table_id]
        self.out = {key: held for key, held in self.out.items() if held[0].table_id != table_id}

    def shelve(self, table_id: str) -> None:
        """Keep the queued splits of a paused table back."""
        self.shelved += [split for split in self.todo if split.table_id == table_id]
        self.todo = deque(split for split in self.todo if split.table_id != table_id)

    def unshelve(self, table_id: str) -> None:
        """Queue them again."""
        self.todo += [split for split in self.shelved if split.table_id == table_id]
        self.shelved = [split for split in self.shelved if split.table_id != table_id]

    def hold(self, table: Table, cause: Cause, now: float) -> None:
        """Leave a locked table alone for a while."""
        self.holds.hold(table.table_id, cause, now)
        self.shelve(table.table_id)
        self._tables.put(dataclasses.replace(table, cause=cause))

    def let_go(self, table: Table) -> None:
        """A table could be read, so no lock holds it (any more)."""
        if (cause := self.holds.end(table.table_id)) is None:
            return
        if table.cause == cause:
            self._tables.put(dataclasses.replace(table, cause=None))
        if table.phase != PAUSED:
            self.unshelve(table.table_id)

    def try_held(self, now: float) -> list[Effect]:
        """Try the held tables that are due: one chunk each, else the question for the next."""
        due = self.holds.take_due(now)
        for name in due:
            if self._tables.by_name[name].phase == PAUSED:
                self.let_go(self._tables.by_name[name])
            elif split := next((split for split in self.shelved if split.table_id == name), None):
                self.shelved.remove(split)
                self.todo.appendleft(split)
        return self.hand_out() if due else []

    def queue(self, *splits: SnapshotSplit, first: bool = False) -> None:
        """Queue splits of one table; those of a paused one wait, and of a held one, but for the chunk that is tried."""
        name = splits[0].table_id if splits else ""
        if splits and (self._tables.by_name[name].phase == PAUSED or self.holds.waits(name)):
            self.shelved = [*splits, *self.shelved] if first else [*self.shelved, *splits]
        elif first:
            self.todo.extendleft(reversed(splits))
        else:
            self.todo += splits

    def ranged(self, table_id: str, generation: int, key_range: KeyRange) -> None:
        """The source has told the range of a table's key."""
        if (table := self._tables.being_split(table_id, generation)) is not None and table.splitter is not None:
            table.splitter.ranged(key_range)
            self.let_go(self._tables.put(table))

    def bounded(self, table_id: str, generation: int, end: Key | None) -> None:
        """The source has told where a split ends."""
        if (table := self._tables.being_split(table_id, generation)) is not None and table.splitter is not None:
            splits = table.splitter.bounded(end)
            self.let_go(self._tables.put(table))
            self.queue(*splits)

    def locked_out(self, table_id: str, generation: int, cause: Cause, now: float) -> None:
        """A question about a table has met a lock."""
        if (table := self._tables.being_split(table_id, generation)) is not None and table.splitter is not None:
            table.splitter.asked = False
            self.hold(self._tables.put(table), cause, now)

    def hand_out(self) -> list[Effect]:
        """Give queued splits to readers with room; make more splits, or ask the source for their bounds."""
        effects: list[Effect] = []
        room = sum(self.free.values())
        want = max(room, 1) + len(self.free)
        for name in list(self._tables.splitting):
            if len(self.todo) + len(self._tables.asking) >= want:
                break
            table = self._tables.being_split(name, self._tables.by_name[name].generation)
            if name in self._tables.asking or table is None or (splitter := table.splitter) is None:
                continue
            if table.phase == PAUSED or self._kept_back(name):
                continue
            self.todo += splitter.take(want - len(self.todo))
            if len(self.todo) < want and (question := splitter.wants()) is not None:
                splitter.asked = True
                effects.append(self._question(question, splitter))
            self._tables.put(dataclasses.replace(table, phase=SNAPSHOT))
        for reader in sorted(self.free, key=lambda name: -self.free[name]):
            while self.free[reader] > 0 and self.todo:
                split = self.todo.popleft()
                self.out[split.split_id] = (split, reader)
                self.free[reader] -= 1
                effects.append(Send(receiver=reader, message=AssignSplits(splits=(split,))))
        return effects + self._take_back()

    def _kept_back(self, name: str) -> bool:
        """Whether a table is held, and no question of it is the next try."""
        if name not in self.holds:
            return False
        known = (*self.shelved, *self.todo, *(split for split, _ in self.out.values()))
        return self.holds.waits(name) or any(split.table_id == name for split in known)

    @staticmethod
    def _question(question: str, splitter: Splitter) -> Effect:
        if question == "range":
            return FindRange(table_id=splitter.table_id, generation=splitter.generation, schema=splitter.ordered)
        return FindBound(
            table_id=splitter.table_id,
            generation=splitter.generation,
            schema=splitter.ordered,
            start=splitter.next_start,
            rows=splitter.step,
        )

    def _take_back(self) -> list[Effect]:
        """With no split left to give, take back an unstarted one from a busy reader for an idle one."""
        held: dict[str, list[SnapshotSplit]] = {reader: [] for reader in self.free}
        for split, reader in self.out.values():
            held[reader].append(split)
        if self.todo or all(held.values()):
            return []
        for reader, splits in held.items():
            if len(splits) > 1 and splits[-1].split_id not in self.taking_back:
                split = splits[-1]
                self.taking_back.add(split.split_id)
                back = TakeBackSplit(split_id=split.split_id, attempt=split.attempt)
                return [Send(receiver=reader, message=back)]
        return []

    def counts(self, file: StagedFile) -> bool:
        """Whether a file that was staged before this cut belongs to the checkpoint."""
        table = self._tables.by_name.get(file.table)
        if table is None or table.generation != file.generation or table.phase in AT_REST:
            return False  # its table is at rest, or is read again already
        if file.split is None:
            return True
        split, _, attempt = file.split.rpartition("#")
        return self.accepted.get(split) == int(attempt)

    def head(self) -> dict[str, Any]:
        """Its share of the head of a part. Splits that are out keep their attempt."""
        head: dict[str, Any] = {
            "todo": to_plain(list(self.todo)),
            "out": [to_plain(split) for split, _ in self.out.values()],
            "accepted": dict(self.accepted),
        }
        if self.shelved:
            head["shelved"] = to_plain(self.shelved)
        if held := self.holds.names():
            head["held"] = held
        return head

    @classmethod
    def restored(cls, tables: Tables, readers: Iterable[str], head: Mapping[str, Any]) -> Splits:
        """The splits of a part; those that were out are out at nobody, until their reports in flight are taken."""
        splits = cls(tables, readers)
        out = from_plain(tuple[SnapshotSplit, ...], head["out"])
        splits.out = {split.split_id: (split, "") for split in out}
        splits.todo = deque(from_plain(tuple[SnapshotSplit, ...], head["todo"]))
        splits.accepted = dict(head["accepted"])
        splits.shelved = list(from_plain(tuple[SnapshotSplit, ...], head.get("shelved", [])))
        for name in head.get("held", ()):
            splits.holds.hold(name, tables.by_name[name].cause or NO_CAUSE, now=float("-inf"))  # tried at once
        return splits

    def check(self) -> None:
        """Raise ProtocolError where the state contradicts itself."""
        queued = {split.split_id: split for split in (*self.todo, *self.shelved)}
        if len(queued) != len(self.todo) + len(self.shelved) or queued.keys() & self.out.keys():
            raise ProtocolError("a split is queued twice, or queued and out")
        held = [split for split, _ in self.out.values()]
        for split in (*queued.values(), *held):
            table = self._tables.by_name.get(split.table_id)
            if table is None or table.generation != split.generation or table.splitter is None:
                raise ProtocolError(f"split {split.split_id} is queued or out, and its table is not being split")
        if any(self._tables.by_name[split.table_id].phase == PAUSED for split in self.todo):
            raise ProtocolError("a split of a paused table is queued")
        if any(self._tables.by_name[s.table_id].phase != PAUSED and s.table_id not in self.holds for s in self.shelved):
            raise ProtocolError("a split is kept back, and its table is neither paused nor held")
        if any(reader not in self.free for _, reader in self.out.values()) or min(self.free.values(), default=0) < 0:
            raise ProtocolError(f"splits are out at readers that the plan lacks, or that had no room: {self.free}")
        for split_id, attempt in self.accepted.items():
            if split_id in self.out and self.out[split_id][0].attempt <= attempt:
                raise ProtocolError(f"split {split_id} is out again, and attempt {attempt} of it was accepted")
