"""The store under seeds: the real common/store/store.py and services/writer/staging.py on the disks of
tests/simulation/storage/disk.py.

A few processes write journal entries, parts, staged files, claims and publications into one pipeline's folder, and
come between each other's calls. Checked, after each step and at the end:

- of all who try for a slot, a publication or a claim, one at most is told that it has it, for ever, also where answers
  are lost and after the power failed;
- what is there under a name is whole, and what a caller was told is durable is there after the power failed;
- a full or failing disk is `Unavailable` and nothing else, and the same call succeeds when it is well again;
- a file that was dropped, or whose writer died, never stands under its name.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.schema import META_FIELDS, TableSchema
from cutline.common.store import backends
from cutline.common.store.lives import Folder
from cutline.common.store.records import EpochEntry, Members, PartRef, Publication
from cutline.common.store.store import PipelineStore, file_name
from cutline.services.writer.staging import Budget, OpenChanges, OpenChunk
from tests.simulation.clock import Wrong
from tests.simulation.steps import Steps
from tests.simulation.storage.disk import Bucket, Died, Disk, DiskTrouble
from tests.support.binlog_bytes import schema_of
from tests.support.causes import because
from tests.support.records import LIFE

_T: TableSchema = replace(schema_of(("id", "int"), ("v", "varchar(60)")), table_id="d.t0")
_ROOT = "/lake"


class StoreWorld:
    """One seed's run: `run()` raises what was found, or returns."""

    def __init__(self, seed: int, without: AbstractSet[str] = frozenset()) -> None:
        """`without`: steps that do not happen (tests/simulation/steps.py)."""
        self.steps = Steps(without)
        self.rng = rng = random.Random(f"store {seed}")
        self.count: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=200)
        self.trouble = DiskTrouble(
            rng, self.count, self.steps, lost=rng.choice((0.0, 0.02, 0.1)), dies=rng.choice((0.0, 0.005, 0.02)),
            others=rng.choice((0.0, 0.1)), between=self.another,
        )  # fmt: skip
        self.disk, self.bucket = Disk(self.trouble), Bucket(self.trouble)
        self.files = rng.random() < 0.7
        self.count[f"store: {'files' if self.files else 'objects'}"] += 1
        backend: Any = backends._Files(_ROOT) if self.files else backends._Objects(self.bucket, "s3", "bucket")
        self.processes = [PipelineStore(Folder(backend, "shop", life=LIFE)) for _ in range(3)]
        self.backend = backend
        self.nonces = 0
        self.winners: dict[tuple[str, int], str] = {}  # the nonce of the caller that was told it has won
        self.refs: list[PartRef] = []
        self.dropped: list[str] = []

    def run(self) -> None:
        with simulated(self.disk):
            self.disk.folders.add(_ROOT)
            for _ in range(self.rng.choice((10, 25))):
                self.weather()
                self.act(self.rng.randrange(3))
            self.trouble.lost = self.trouble.dies = self.trouble.others = 0.0
            self.trouble.room = 1 << 60
            if self.files:
                self.disk.power_fails()
            for number in range(3):
                self.processes[number] = PipelineStore(Folder(self.backend, "shop", life=LIFE))
                self.entry(number)
                self.staged(number)
            self.judge()

    def weather(self) -> None:
        """The disk fills up, gets room again; the machine loses its power."""
        rng, trouble = self.rng, self.trouble
        if rng.random() < 0.1:
            used = self.disk.used() + sum(map(len, self.bucket.objects.values()))
            trouble.room = used + rng.choice((0, 100, 1000)) if trouble.room == 1 << 60 else 1 << 60
            self.tell(f"room for {trouble.room}")
        if self.files and rng.random() < 0.05:
            self.disk.power_fails()
            self.tell("the power fails")
            self.processes = [PipelineStore(Folder(self.backend, "shop", life=LIFE)) for _ in self.processes]
            self.judge()

    def tell(self, text: str) -> None:
        self.story.append(text)

    # --- what a process does ---

    def another(self) -> None:
        """Another process comes between two calls of one."""
        self.count["store: another came between"] += 1
        self.act(self.rng.randrange(3), entry=self.rng.random() < 0.6)

    def act(self, number: int, *, entry: bool = False) -> None:
        """One thing that a process does; it may die of it."""
        action = self.entry if entry else self.rng.choice(
            (self.entry, self.entry, self.part, self.staged, self.discarded, self.publication, self.claim)
        )  # fmt: skip
        try:
            action(number)
        except Died:
            self.tell(f"{number} dies")
            self.processes[number] = PipelineStore(Folder(self.backend, "shop", life=LIFE))

    def tried(self, call: Callable[[], Any]) -> Any:
        """Ask until there is an answer, a few times; None without."""
        for _ in range(4):
            try:
                return call()
            except Unavailable:
                self.count["store: unavailable"] += 1
                if self.trouble.room < 1 << 60 and self.rng.random() < 0.5:
                    self.trouble.room = 1 << 60
        return None

    def nonce(self) -> str:
        self.nonces += 1
        return f"n{self.nonces}"

    def decided(self, kind: str, n: int, mine: str, won: bool | None, found: str | None) -> None:
        """What one who tried for `n` was told, and then found there."""
        if won is None:
            return
        if found is None:
            raise Wrong(f"{kind} {n} was {'written' if won else 'refused'}, and is not there")
        if won and found != mine:
            raise Wrong(f"{kind} {n} was given to {mine}, and {found} stands there")
        if won and self.winners.get((kind, n), mine) != mine:
            raise Wrong(f"{kind} {n} was given to {mine} and to {self.winners[kind, n]}")
        if won:
            self.winners[kind, n] = mine
        self.count[f"store: {kind} {'won' if won else 'lost'}"] += 1
        self.count["store: own entry found after a lost answer"] += not won and found == mine

    def entry(self, number: int) -> None:
        at, mine = self.processes[number], self.nonce()
        slot = self.tried(at.last_slot)
        if slot is None:
            return
        entry = EpochEntry(
            slot=slot + 1, nonce=mine, leader=f"i{number}", base=None,
            members=Members(enumerator="e", by_role={"reader": (), "writer": ()}), cause=because("a test"),
            written_at=0.0,
        )  # fmt: skip
        won = self.tried(lambda: at.put_entry(entry))
        self.tell(f"{number}: slot {slot + 1} by {mine}: {won}")
        if won is not None:
            self.decided("slot", slot + 1, mine, won, self.holder("slot", slot + 1))

    def holder(self, kind: str, n: int) -> str | None:
        """Who stands there, when nobody disturbs."""
        with self.quiet() as at:
            if kind == "slot":
                entry = at.entry(n)
                return None if entry is None else entry.nonce
            record = at.publication(n)
            return None if record is None else f"n{record.w}"

    def newest(self) -> int:
        """The number of the newest publication."""
        with self.quiet() as at:
            return max(at.publication_numbers(), default=2)

    @contextmanager
    def quiet(self) -> Iterator[PipelineStore]:
        """The store as it is, while nobody disturbs."""
        inside, self.trouble.inside = self.trouble.inside, True
        try:
            yield PipelineStore(Folder(self.backend, "shop", life=LIFE))
        finally:
            self.trouble.inside = inside

    def publication(self, number: int) -> None:
        at, mine, n = self.processes[number], self.nonce(), self.newest() + self.rng.randrange(-1, 2)
        record = Publication(
            n=n, epoch=1, w=self.nonces, kept=False, position=None, source_time=None, published_at=0.0, tables={}
        )
        won = self.tried(lambda: at.publish(record))
        if won is not None:
            self.decided("publication", n, mine, won, self.holder("publication", n))

    def claim(self, number: int) -> None:
        mine = self.nonce()
        w = self.tried(lambda: self.processes[number].claim())
        if w is not None:
            if ("claim", w) in self.winners:
                raise Wrong(f"{w} was claimed by {mine} and by {self.winners['claim', w]}")
            self.winners["claim", w] = mine
            self.count["store: claim"] += 1

    def part(self, number: int) -> None:
        data = self.rng.randbytes(self.rng.choice((10, 3000)))
        name = file_name("reader-0.json", epoch=1, incarnation=f"i{number}")
        try:
            self.refs.append(self.processes[number].put_part(name, data))
            self.count["store: part"] += 1
        except Unavailable:
            self.count["store: unavailable"] += 1

    def file(self, number: int) -> OpenChunk | OpenChanges:
        """An open staged file with some batches."""
        rng = self.rng
        common: dict[str, Any] = {
            "epoch": 1, "incarnation": f"i{number}", "table_id": "d.t0", "generation": 1, "schema": _T.hash,
            "budget": Budget(rng.choice((1, 64 << 20))),
        }  # fmt: skip
        if rng.random() < 0.5:
            chunk = OpenChunk(self.processes[number], split_id="d.t0:1:1", **common)
            self.fill(chunk, lambda at: chunk.append(_rows(at)))
            return chunk
        changes = OpenChanges(self.processes[number], **common)
        self.fill(changes, lambda at: changes.append(_changes(at), 10 * at))
        return changes

    def fill(self, file: OpenChunk | OpenChanges, append: Callable[[int], None]) -> None:
        try:
            for at in range(self.rng.randint(1, 3)):
                append(at)
        except Unavailable:
            self.drop(file)
            raise

    def drop(self, file: OpenChunk | OpenChanges) -> None:
        """A file is let go of: it never stands there."""
        file.discard()
        self.dropped.append(f"staged/{file._file._name}")
        self.count["store: staged file dropped"] += 1

    def staged(self, number: int) -> None:
        try:
            file = self.file(number)
            record = file.close()
            self.processes[number].sync_staged()
        except Unavailable:
            self.count["store: staged file failed"] += 1
            return
        self.refs.append(record.ref)
        self.count["store: staged file"] += 1

    def discarded(self, number: int) -> None:
        try:
            self.drop(self.file(number))
        except Unavailable:
            self.count["store: staged file failed"] += 1

    # --- checks ---

    def judge(self) -> None:
        """Nobody disturbs: everything that was told holds."""
        try:
            with self.quiet() as at:
                for ref in self.refs:
                    at.verify(ref)
                for (kind, n), mine in self.winners.items():
                    if kind != "claim" and (found := self.holder(kind, n)) != mine:
                        raise Wrong(f"{kind} {n} was given to {mine}, and {found} stands there")
                for slot in range(1, at.last_slot() + 1):
                    at.entry(slot)
                present = {f"staged/{name}" for name in at._names("staged")}
            if not self.files:
                present |= {path.removeprefix("bucket/shop/") for path in self.bucket.ever}
            if shown := present.intersection(self.dropped):
                raise Wrong(f"{sorted(shown)} were dropped, and stood under their names")
            self.count["store: compared"] += 1
        except ProtocolError as error:
            raise Wrong(f"what was told to be durable is not: {error}") from error


def _rows(at: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": [at], "v": [f"v{at}" * 30]}, schema=_T.arrow)


def _changes(at: int) -> pa.RecordBatch:
    meta = [pa.array(["+I"]), pa.array([at], pa.int64()), *(pa.nulls(1, field.type) for field in META_FIELDS[2:])]
    fields = [field.with_type(array.type) for field, array in zip(META_FIELDS, meta, strict=True)]
    return pa.RecordBatch.from_arrays([*_rows(at).columns, *meta], schema=pa.schema([*_T.arrow, *fields]))


@contextmanager
def simulated(disk: Disk) -> Iterator[None]:
    """common/store/backends.py works on this disk."""
    before = backends.os
    vars(backends).update(os=disk, open=disk.open)
    try:
        yield
    finally:
        backends.os = before
        del vars(backends)["open"]
