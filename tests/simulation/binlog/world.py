"""The incremental split under seeds: the real reader machine and the real `BinlogCursor`, on the bytes of
tests/simulation/binlog/.

`StreamWorld` stands between machine and cursor as services/reader/driver.py does, and asks for reads with limits that
fit little; cuts connections, lets tables come and go, sends markers, and begins again from any state that the machine
was in. After each read, and at each marker, it compares with the log:

- a read gives out just what lies between its two places, in the log's order, each row once;
- a position is one: between two transactions where it says so, else so many row events and rows inside of one; it never
  goes back;
- what has been sent of a table is all that its low does not cover, up to where its cursor stands;
- a marker that waits is taken where the transaction ends in which it found the stream, and inside of one only if that
  one alone is large;
- when nothing is broken any more, every table arrives at the log's end.
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from cutline.common.errors import SourceLost, Unavailable
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State
from cutline.common.mesh.messages import ExcludeTable, IncludeTable, Marker, Records, TableReport
from cutline.common.mesh.topology import ENUMERATOR
from cutline.common.positions import FilePosition, High, Low
from cutline.common.schema import OP, SEQ
from cutline.common.store.records import PartRef
from cutline.services.reader.events import ChangesRead, CloseCursor, ReadChanges
from cutline.services.reader.machine import Reader
from cutline.services.reader.stream import LONGEST_SECONDS, STILL_SECONDS
from cutline.services.reader.tables import MAIN
from cutline.services.sources.contract import Changes, GenerationEnded, TableChanges
from cutline.services.sources.mysql.binlog import cursor as cursor_module
from cutline.services.sources.mysql.binlog import dump, xa
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from tests.simulation.binlog.connection import Connection, NetworkTrouble
from tests.simulation.binlog.history import MYSQL, DumpedTxn, Out
from tests.simulation.binlog.model import Binlog, ModelPlace
from tests.simulation.clock import SimulatedClock, Wrong
from tests.simulation.steps import Steps

INSIDE_ROWS = 15
MAX_STEPS = 2000
Sent = dict[tuple[str, int], list[Out]]  # by table and generation


@dataclass(slots=True, eq=False)
class Seen:
    """A state for a restore: the machine's, and the number of rows sent of each table."""

    state: State
    sent: dict[tuple[str, int], int]


class StreamWorld:
    """One seed's run: `run()` returns, or raises the fault that it found."""

    def __init__(self, seed: int, without: AbstractSet[str] = frozenset()) -> None:
        """`without`: steps that do not happen (tests/simulation/steps.py)."""
        self.steps = Steps(without)
        self.seed = seed
        self.rng = rng = random.Random(f"stream {seed}")
        self.count: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=400)
        self.clock = SimulatedClock()
        self.log = Binlog(rng, self.clock, self.count)
        self.trouble = NetworkTrouble.drawn(rng, self.steps)
        self.restless = rng.choice((0.0, 0.02, 0.08))  # chances of a table that comes or goes, a restore
        self.max_rows = rng.choice(((1, 5, 20), (5, 20, 60), (1000,)))
        self.max_bytes = rng.choice(((100, 2000), (1 << 20,)))
        self.cursors: dict[str, BinlogCursor] = {}
        self.orders: dict[str, ReadChanges] = {}
        self.sent: Sent = {}
        self.lows: dict[tuple[str, int], int] = {}
        self.generations: Counter[str] = Counter()
        self.started = 0  # what a `start` has covered, as bits: a server has it before any snapshot begins
        self.seen: list[Seen] = []
        self.marker = 0
        self.waiting: ModelPlace | None = None  # main's, when the marker could have been taken at the earliest
        self.waits = False
        self.halted = False
        self.machine: Reader
        self.process: Process
        self.begin(None)

    # --- the run ---

    def run(self) -> None:
        with simulated(self.clock, self.rng.choice((8 << 20, 100))):
            self._run()

    def _run(self) -> None:
        rng = self.rng
        self.tell(f"{self.log.flavour} {self.trouble} {len(self.log.txns)} transactions")
        start = self.log.some_gtids() if rng.random() < 0.15 else None
        for table in self.log.tables:
            if start is not None:
                self.include(table, start=start)
            elif rng.random() < 0.8:
                self.include(table)
        calm_at = rng.choice((15, 30, 80))
        for step in range(MAX_STEPS):
            if step == calm_at:
                self.trouble.calm()
                self.tell("calm")
            if step >= calm_at and self.arrived():
                return
            if step < calm_at:
                self.something()
            elif missing := [t for t in self.log.tables if t not in self.machine.stream.tables]:
                self.include(missing[0], now=True)
            if self.orders:
                self.read(rng.choice(sorted(self.orders)))
            else:
                self.clock.now += 0.1
            if self.halted:
                return
        raise Wrong(f"no end in sight: {self.machine.stream.cursors}, and the log ends at {self.log.end()}")

    def something(self) -> None:
        """Something that happens between two reads."""
        rng = self.rng
        if rng.random() < 0.25 and not self.waits and self.steps.happens("marker"):
            self.send_marker()
        if rng.random() >= self.restless:
            return
        what = rng.randrange(4)
        if not self.steps.happens(("table comes", "table leaves", "restore", "cursor anew")[what]):
            return
        match what:
            case 0:
                self.include(rng.choice(self.log.tables))
            case 1 if self.machine.stream.tables:
                table = self.machine.stream.tables[rng.choice(sorted(self.machine.stream.tables))]
                self.count["stream: table left"] += 1
                self.count["stream: table left inside a transaction"] += self.inside()
                self.tell(f"{table.table_id} leaves")
                self.message(ExcludeTable(table_id=table.table_id, generation=table.generation))
            case 2 if self.seen:
                self.restore(rng.choice(self.seen))
            case 3 if self.cursors:
                name = rng.choice(sorted(self.cursors))
                self.cursors.pop(name).close()
                self.count["stream: cursor began anew"] += 1

    def inside(self) -> bool:
        return any(cursor.position.inside for cursor in self.machine.stream.cursors.values())

    def arrived(self) -> bool:
        """Whether every table is live at the end of the log."""
        main = self.machine.stream.cursors.get(MAIN)
        return (
            self.log.all_there()
            and not self.waits
            and main is not None
            and len(self.machine.stream.tables) == len(self.log.tables)
            and all(table.live for table in self.machine.stream.tables.values())
            and FilePosition(main.position.file, main.position.offset) >= self.log.end()
        )

    def tell(self, text: str) -> None:
        self.story.append(f"{self.clock.now:9.3f} {text}")

    # --- the machine ---

    def begin(self, seen: Seen | None) -> None:
        self.machine = Reader(name="reader-0", writers=("writer-0",), stream=True, inside_rows=INSIDE_ROWS)
        if seen is not None:
            head, values = json.loads(json.dumps([seen.state.head, seen.state.values]))
            self.machine.restore(State(head=head, values=values, schemas=tuple(self.log.schemas.values())))
        self.process = Process(
            self.machine, inbound=(ENUMERATOR,), outbound=("writer-0", ENUMERATOR), after=self.marker
        )
        self.handle(Began())

    def restore(self, seen: Seen) -> None:
        """Another reader goes on from a state of this one."""
        for cursor in self.cursors.values():
            cursor.close()
        self.cursors.clear()
        self.orders.clear()
        del self.seen[self.seen.index(seen) + 1 :]  # what came of it is over
        self.waits, self.waiting = False, None
        self.sent = {key: self.sent[key][:many] for key, many in seen.sent.items()}
        self.count["stream: restored"] += 1
        self.tell("restored")
        self.begin(seen)
        self.count["stream: restored inside a transaction"] += self.inside()

    def message(self, message: Any) -> None:
        self.handle(MessageReceived(channel=ENUMERATOR, message=message))

    def handle(self, event: Event) -> None:
        effects = self.process.handle(event, self.clock.now)
        self.process.check()
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        match effect:
            case Send(message=Records() as records):
                key = records.table_id, records.generation
                self.sent.setdefault(key, []).extend(rows_of(records.body))
            case Send(message=TableReport() as report):
                self.count[f"stream: table {report.state}"] += 1
                self.tell(f"{report.table_id} {report.state} {report.cause}")
            case SavePart(checkpoint=checkpoint):
                self.saved()
                self.handle(PartStored(checkpoint=checkpoint, ref=PartRef(path="", sha256="", size=0)))
            case ReadChanges(cursor=name):
                self.orders[name] = effect
            case CloseCursor(cursor=name):
                self.count["stream: catch-up met main"] += 1
                if name in self.cursors:
                    self.cursors.pop(name).close()

    def include(self, table: str, *, now: bool = False, start: str | None = None) -> None:
        """Include a table: one whose snapshot ended now, with a low of now or earlier; or one without a snapshot, which
        gets every transaction outside a GTID set (`start: {gtid:}`)."""
        log, rng = self.log, self.rng
        committed = log.committed()
        first = max((i for i, txn in enumerate(committed, 1) if self.started >> txn.number & 1), default=0)
        end = len(committed)
        cut = end if now else rng.choice((first, end, rng.randrange(first, end + 1)))
        before = committed[:cut]
        oldest = min(log.pieces[: log.available()], key=lambda p: 0 if not before else p.start)
        place = FilePosition(oldest.file, 4) if not before else FilePosition(before[-1].file, before[-1].end)
        gtids = ""
        if log.flavour == MYSQL:
            if rng.random() < 0.5:  # commits that are flushed and not visible yet; the place is before them
                hidden = [t for t in before[-3:] if rng.random() < 0.5]
                before = [t for t in before if t not in hidden]
                if hidden:
                    place = FilePosition(hidden[0].file, hidden[0].start)
                    self.count["stream: low with a gap in its GTIDs"] += 1
            if rng.random() < 0.3:
                place = FilePosition(log.pieces[0].file, 4)
            gtids = log.executed_of(before)
        if start is not None:
            self.started |= log.bits(start)
            gtids, place = start, FilePosition(log.pieces[0].file, 4)
        end = log.end()
        self.generations[table] += 1
        key = table, self.generations[table]
        low = Low(server=log.identity, file=place.file, offset=place.offset, gtids=gtids)
        self.lows[key] = log.low_bits(low) | log.bits(low.gtids)
        self.sent[key] = []
        self.tell(f"{table} comes at {low.file}:{low.offset} {low.gtids}")
        self.count["stream: table came inside a transaction"] += self.inside()
        self.message(
            IncludeTable(
                table_id=table,
                generation=key[1],
                schema=log.schemas[table],
                low=low,
                high=High(server=log.identity, file=end.file, offset=end.offset),
            )
        )

    # --- reads ---

    def connect(self) -> Any:
        return Connection(self.log, self.trouble)

    def read(self, name: str) -> None:
        """Carry out an order; it stays if the source did not answer."""
        rng, order = self.rng, self.orders[name]
        if name not in self.cursors:
            self.cursors[name] = BinlogCursor(self.connect, server_id=1 + (name != MAIN))
        self.count["stream: began again over 4 GiB"] += (
            order.after.offset >= 1 << 32 and self.cursors[name]._stream is None
        )
        try:
            got = self.cursors[name].read(
                order.after,
                order.routes,
                until=order.until,
                max_rows=rng.choice(self.max_rows),
                max_bytes=rng.choice(self.max_bytes),
                wait_seconds=0.5,
                at_boundary=order.at_boundary,
                stop=order.stop,
            )
        except Unavailable as error:
            self.tell(f"{name}: {error}")
            self.clock.now += 0.5
            return
        except SourceLost as error:
            if "the server crashed and rolled it back" not in error.cause.sentence:
                raise
            self.count["stream: halted at the torn end of a file"] += 1
            self.halted = True
            return
        del self.orders[name]
        self.tell(f"{name} {order.after} -> {got.position}, {got.rows} rows")
        self.judge(order, got)
        self.handle(ChangesRead(cursor=order.cursor, changes=got))
        if self.waits and name == MAIN and self.waiting is None:
            self.waiting = self.log.place(got.position)
        if len(self.seen) < 12 or rng.random() < 0.1:
            self.seen.append(Seen(self.machine.snapshot(), {key: len(rows) for key, rows in self.sent.items()}))
            del self.seen[:-12]

    def judge(self, order: ReadChanges, got: Changes) -> None:
        """One read against the log."""
        log, count = self.log, self.count
        after, to = log.place(order.after, given=False), log.place(got.position, given=got.position != order.after)
        if not to.not_before(after) or (order.after.file and got.position.file_position < order.after.file_position):
            raise Wrong(f"the position went back, from {order.after} to {got.position}")
        faulted = {fault.table_id: fault for fault in got.faults}
        crossed = [t for t in log.txns if (to.taken & ~after.taken) >> t.number & 1]
        for fault in got.faults:
            if not isinstance(fault, GenerationEnded) or not any(t.kind == "undone" for t in crossed):
                raise Wrong(f"{fault.cause}, and nothing was rolled back")
        lows = {t: log.low_bits(route.low) for t, route in order.routes.items()}
        for txn in crossed:
            rolled = {t for t, _ in txn.rows if txn.kind == "undone" and t in lows and not lows[t] >> txn.number & 1}
            if not rolled <= faulted.keys():
                raise Wrong(f"{rolled} had rows in {txn.gtid}, which was rolled back, and go on")
            count["stream: rolled back after rows were given out"] += bool(rolled)
        wanted = log.changes(after, to, {t: low for t, low in lows.items() if t not in faulted})
        batches = [b for b in got.batches if b.table_id not in faulted]
        given = in_order(batches)
        if given != wanted:
            raise Wrong(f"from {order.after} to {got.position} came {given}, and the log has {wanted}")
        self.met(order, after, to, got, crossed)

    def met(
        self, order: ReadChanges, after: ModelPlace, to: ModelPlace, got: Changes, crossed: list[DumpedTxn]
    ) -> None:
        """What a read shows to have happened."""
        count, tables = self.count, order.routes.keys()
        count["stream: read"] += 1
        count["stream: read ended inside a transaction"] += to.txn is not None
        count["stream: read ended inside a row event"] += to.rows > 0
        count["stream: transaction over several reads"] += after.txn is not None and after.txn is to.txn
        count["stream: rows of others before ours in a transaction"] += any(
            t.rows and t.rows[0][0] not in tables and any(name in tables for name, _ in t.rows) for t in crossed
        )
        count["stream: place over 4 GiB"] += got.position.offset >= 1 << 32
        domains = {t.gtid.partition("-")[0] for t in crossed if t.gtid and "-1-" in t.gtid and ":" not in t.gtid}
        count["stream: several MariaDB domains in a read"] += len(domains) > 1
        torn = any(t.kind == "torn" and t.file == order.after.file != got.position.file for t in self.log.txns)
        count["stream: passed the torn end of a file"] += torn

    # --- markers ---

    def send_marker(self) -> None:
        self.marker += 1
        main = self.machine.stream.cursors.get(MAIN)
        self.waits, self.waiting = True, None
        if main is not None and not main.asked:
            self.waiting = self.log.place(main.position, given=False)
        self.message(Marker(checkpoint=self.marker))
        self.count["stream: marker"] += 1
        self.count["stream: marker waited"] += self.waits

    def saved(self) -> None:
        """The marker is taken: compare the rows sent with the cursors' positions."""
        self.waits = False
        silent = self.machine.stream._still >= STILL_SECONDS or self.machine.stream._waited >= LONGEST_SECONDS
        cursors = self.machine.stream.cursors
        at = {name: self.log.place(cursor.position, given=False) for name, cursor in cursors.items()}
        for name, place in at.items():
            if place.txn is not None:
                whole = [row for _, outs in place.txn.rows[: place.events] for row in outs]
                part = place.txn.rows[place.events][1][: place.rows] if place.rows else []
                if (rows := sum(map(len, (*whole, *part)))) < INSIDE_ROWS and not silent:
                    raise Wrong(f"a marker is taken inside of a transaction of which {name} has {rows} rows")
                large = "a large transaction" if rows >= INSIDE_ROWS else "a transaction whose rest does not come"
                self.count[f"stream: marker taken inside {large}"] += 1
        if self.waiting is not None and MAIN in at and len(at) == 1:
            found, now = self.waiting, at[MAIN]
            begun = 0 if found.txn is None else 1 << found.txn.number
            if now.taken & ~(found.taken | begun):
                raise Wrong(f"a marker that waited inside of {found.txn} was taken transactions later")
            self.count["stream: marker taken where its transaction ended"] += bool(begun and now.taken & begun)
        self.waiting = None
        nothing = ModelPlace(0)
        for table in self.machine.stream.tables.values():
            if table.cursor is None:
                continue
            key = table.table_id, table.generation
            wanted = self.log.changes(nothing, at[table.cursor], {table.table_id: self.lows[key]})
            if self.sent[key] != [out for _, out in wanted]:
                upto = self.machine.stream.cursors[table.cursor].position
                raise Wrong(f"of {key} {self.sent[key]} was sent up to {upto}, and the log has {wanted}")
            self.count["stream: table compared at a marker"] += 1


def rows_of(batch: Any) -> list[Out]:
    return list(zip(*(batch[name].to_pylist() for name in (OP, "id", "v")), strict=True))


def in_order(batches: list[TableChanges]) -> list[tuple[str, Out]]:
    """The rows of one read with their tables, by `_seq`."""
    found = [
        (seq, b.table_id, out)
        for b in batches
        for seq, out in zip(b.batch[SEQ].to_pylist(), rows_of(b.batch), strict=True)
    ]
    return [(table, out) for _, table, out in sorted(found)]


@contextmanager
def simulated(clock: SimulatedClock, held_bytes: int) -> Iterator[None]:
    """The modules below the cursor wait by this clock, and keep no more of a prepared transaction than that."""
    here = [(cursor_module, "time", clock), (dump, "time", clock), (dump, "gather", partial(lambda *_: None))]
    here += [(xa, "_HELD_BYTES", held_bytes)]
    before = [(module, name, getattr(module, name)) for module, name, _ in here]
    for module, name, value in here:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
