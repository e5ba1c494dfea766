"""The enumerator: knows every table and split of a pipeline, hands splits out, and composes checkpoints.

    table:  waiting -> snapshot -> catch-up -> live          any -> quarantined;  any -> waiting of the next generation

- Splits are pulled: a reader says how many it has room for; what it holds unstarted is asked back for an idle one.
- A report is accepted once, if its split is out with that attempt and generation; anything else is late and ignored.
  A report of a chunk that was cut brings another: the rest, under a number of its own.
- When a table's chunks are all reported, their watermarks are folded into one pair and the table goes to the
  incremental split (FLIP-27's completed snapshot splits; DBLog's watermarks). Cause before effect on every channel is
  what makes any consistent cut hold a table's chunk rows before its first change.
- It is the initiator of checkpoints. A checkpoint's entry is written when every member's part is in the store.

Restore: state at the cut, then the reports that were in flight (`recorded`), then whatever is out and not reported
goes back to the queue with the next attempt. No report is acknowledged or asked for again: a report is on one side of
the cut or recorded.

What must change together: `snapshot`/`restored`, and `_entry` with the journal's form (common/store.py).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from cutline.common.errors import ProtocolError, SourceLost
from cutline.common.machine import Effect, Event, MessageReceived, PartStored, SavePart, Send, Ticked
from cutline.common.messages import (
    UNLIMITED,
    AssignSplits,
    CompletedSplit,
    ExcludeTable,
    High,
    IncludeTable,
    Key,
    Limits,
    Low,
    Message,
    PartSaved,
    SnapshotSplit,
    SplitFailed,
    SplitReleased,
    SplitReport,
    SplitsWanted,
    StopStream,
    StreamStopped,
    TableReport,
    TakeBackSplit,
    Throttle,
    decode,
    encode,
    from_plain,
    to_plain,
)
from cutline.common.positions import Position, Stop
from cutline.common.schema import TableSchema
from cutline.services.enumerator.splitter import KeyRange, Splitter

MAX_ATTEMPTS = 5
STOP_SECONDS = 1.0
AWAITED_SECONDS = 5.0  # between two looks at tables that are not there, or not fit to be read
NEW_TABLES_SECONDS = 10.0  # between two looks for tables that were created meanwhile
WAITING, SNAPSHOT, CATCH_UP, LIVE, QUARANTINED = "waiting", "snapshot", "catch-up", "live", "quarantined"


# --- facts and effects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFound:
    """What the source says of one table: `fault` is why it can't be copied (`gone`: it is not there now), else `schema`
    is its schema.

    `chunk_rows` and `chunk_key` are given where its chunks are not of the plan's rows, or not cut by its identity.
    """

    table_id: str
    schema: TableSchema | None = None
    estimate: int = 0
    row_bytes: int = 0
    integer_key: bool = False
    chunk_rows: int | None = None
    chunk_key: tuple[str, ...] = ()
    fault: str | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(Event):
    """The epoch has begun; comes once, first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesFound(Event):
    """The tables that the pipeline's globs match. At its beginning also: `start`, if the stream starts without a
    snapshot, with the low after which the tables were `looked_at`; and `stop`, if it is to end."""

    tables: tuple[TableFound, ...]
    start: tuple[Low, High] | None = None
    looked_at: Low | None = None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFound(Event):
    """The place of the stop; None if the source has not passed it yet."""

    place: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescribed(Event):
    """The answer to `DescribeTable`."""

    generation: int
    table: TableFound


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFound(Event):
    """The answer to `FindRange`."""

    table_id: str
    generation: int
    range: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFound(Event):
    """The answer to `FindBound`."""

    table_id: str
    generation: int
    end: Key | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleAsked(Event):
    """A person wants these limits on what all readers together SELECT, instead of those that there were."""

    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingFailed(Event):
    """The source can't answer `FindRange` or `FindBound` for this table."""

    table_id: str
    generation: int
    cause: str
    restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTables(Effect):
    """Which tables are there beside those `known`? Answered by `TablesFound`; if the pipeline `begins`, with its start
    and stop."""

    begins: bool
    known: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindStop(Effect):
    """Where is the stop? Answered by `StopFound`."""

    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTable(Effect):
    """Look at one table again, for its next generation."""

    table_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRange(Effect):
    """The smallest and the largest value of the table's integer key."""

    table_id: str
    generation: int
    schema: TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class FindBound(Effect):
    """The key `rows` rows after `start` (None: from the first row), or None if the table ends before."""

    table_id: str
    generation: int
    schema: TableSchema
    start: Key | None
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint(Effect):
    """Every part of checkpoint `slot` is in the store: put its entry (without nonce) into the journal."""

    slot: int
    entry: dict[str, Any]


# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Table:
    """One table of the pipeline."""

    table_id: str
    generation: int = 1
    phase: str = WAITING
    schema: TableSchema | None = None
    splitter: Splitter | None = None
    low: Low | None = None
    high: High | None = None
    completed: list[CompletedSplit] = field(default_factory=list)
    splits_done: int = 0
    rows_done: int = 0
    estimate: int = 0
    cause: str | None = None
    awaited: bool = False  # quarantined for what it looks like now, perhaps between a DROP and the CREATE after it
    before: TableSchema | None = None  # with `halts`: its schema in the generation before

    @property
    def splits_total(self) -> int:
        """How many chunks there are, as far as it is known."""
        if self.splitter is None:
            return self.splits_done
        return max(self.splitter.made, -(-self.estimate // self.splitter.step))


@dataclass(slots=True, kw_only=True)
class Collecting:
    """A checkpoint whose parts are coming in."""

    checkpoint: int
    kept: bool
    started_at: float
    state: dict[str, Any] = field(default_factory=dict)
    recorded: dict[str, list[Message]] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    staged: list[dict[str, Any]] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    stream: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What of the pipeline's definition, and of the epoch's members, the machine goes by."""

    readers: tuple[str, ...]
    writers: tuple[str, ...]
    chunk_rows: int
    exact: bool
    halts: bool = False  # a table whose columns are others than before is quarantined
    snapshot_only: bool = False
    limits: Limits = UNLIMITED

    @property
    def stream_reader(self) -> str:
        """The reader that holds the incremental split."""
        return self.readers[0]


class Enumerator:
    """The machine; wrapped in a `Process` whose inbound and outbound channels are the readers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tables: dict[str, Table] = {}
        self.todo: deque[SnapshotSplit] = deque()
        self.out: dict[str, tuple[SnapshotSplit, str]] = {}  # split_id -> split, reader
        self.accepted: dict[str, int] = {}  # split_id -> attempt, not yet in a checkpoint
        self.stream_stopped = False
        self.limits = plan.limits
        self.stop: Stop | None = None
        self.stop_place: Position | None = None  # once the source has passed it
        self.at_stop = False  # the incremental split stands there
        self._stop_due: float | None = 0.0  # when to ask for it; None while an answer is awaited
        self.free = dict.fromkeys(plan.readers, 0)
        self.taking_back: set[str] = set()
        self.turned_live = False  # a table has, since the newest checkpoint began
        self.failures: dict[str, int] = {}  # split_id -> failed attempts in this epoch
        self.collecting: Collecting | None = None
        self.stream_status: dict[str, Any] = {}  # where the incremental split was at the last part, for the status
        self._looked_at = 0.0  # when awaited tables were last looked at
        self._looking: set[str] = set()  # tables of which that is not answered yet
        self._find_due: float | None = None  # when to look for new tables; None while an answer is awaited
        self._at_begin: list[Effect] = []  # effects of recorded reports, due in the new epoch

    # --- the door ---

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact."""
        match event:
            case Began():
                effects, self._at_begin = self._at_begin, []
                described: list[Effect] = [
                    DescribeTable(table_id=t.table_id, generation=t.generation)
                    for t in self.tables.values()
                    if t.phase == WAITING and t.schema is None
                ]
                throttle = self._throttle() if self.limits != UNLIMITED else []
                # a table that comes later is all new: its snapshot is what the stream has of it
                find = FindTables(begins=not self.tables, known=frozenset(self.tables))
                return [*effects, *throttle, find, *described, *self._hand_out()]
            case TablesFound():
                return self._found(event, now)
            case StopFound(place=place):
                return self._stop_found(place, now)
            case TableDescribed(generation=generation, table=described_table):
                return self._described(generation, described_table)
            case RangeFound(table_id=table_id, generation=generation, range=key_range):
                if (splitter := self._splitter(table_id, generation)) is not None:
                    splitter.ranged(key_range)
                return self._hand_out()
            case BoundFound(table_id=table_id, generation=generation, end=end):
                if (splitter := self._splitter(table_id, generation)) is not None:
                    self.todo += splitter.bounded(end)
                return self._hand_out()
            case SplittingFailed(table_id=table_id, generation=generation, cause=cause, restart=restart):
                return self._failed(table_id, generation, cause, restart) + self._hand_out()
            case ThrottleAsked(limits=limits):
                self.limits = limits
                return self._throttle()
            case MessageReceived(channel=channel, message=message):
                return self._message(channel, message, now)
            case PartStored(checkpoint=checkpoint, ref=ref):
                collecting = self._in_flight(checkpoint)
                if not collecting.state:
                    raise ProtocolError(f"part {checkpoint} of the enumerator was stored but never ordered")
                collecting.parts["enumerator"] = ref
                return self._complete(now)
            case Ticked():
                return self._ask_for_stop(now) + self._look_again(now) + self._find_new(now)
        raise ProtocolError(f"the enumerator has no rule for {type(event).__name__}")

    def _message(self, channel: str, message: Message, now: float) -> list[Effect]:
        if channel not in self.free and not isinstance(message, PartSaved):
            raise ProtocolError(f"{channel}, which is no reader, sent a {type(message).__name__} to the enumerator")
        match message:
            case SplitsWanted(free=free):
                self.free[channel] += free
                return self._hand_out()
            case SplitReleased(split_id=split_id, attempt=attempt):
                self.taking_back.discard(split_id)
                held = self.out.get(split_id)
                if held is not None and held[0].attempt == attempt:
                    del self.out[split_id]
                    self.todo.appendleft(held[0])
                return self._hand_out()
            case SplitReport():
                return self._report(message) + self._hand_out()
            case SplitFailed():
                return self._split_failed(message) + self._hand_out()
            case TableReport():
                return self._table_report(message) + self._hand_out()
            case StreamStopped():
                self.at_stop = True
                return []
            case PartSaved(checkpoint=checkpoint):
                return self._part_saved(channel, message, self._in_flight(checkpoint), now)
        raise ProtocolError(f"the enumerator has no rule for message {type(message).__name__} of {channel}")

    # --- tables ---

    def _found(self, found: TablesFound, now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._find_due = now + NEW_TABLES_SECONDS
        if found.stop is not None and self.stop is None:
            self.stop = found.stop
            effects.append(Send(receiver=self.plan.stream_reader, message=StopStream(stop=self.stop)))
        start = found.start
        for item in found.tables:
            if item.table_id in self.tables or self.stop_place is not None:  # past the stop nothing new begins
                continue
            table = self.tables[item.table_id] = Table(table_id=item.table_id)
            self._prepare(table, item)
            if start is not None and table.phase == WAITING:
                table.low, table.high = start
                effects += self._include(table, found.looked_at)
        return effects + self._hand_out()

    @property
    def ended(self) -> bool:
        """Whether the pipeline is at its stop, and every table is shown there or never will be."""
        phases = {table.phase for table in self.tables.values()}
        there = self.at_stop or (self.stop_place is not None and LIVE not in phases)
        return there and phases <= {LIVE, QUARANTINED}

    def _ask_for_stop(self, now: float) -> list[Effect]:
        if self.stop is None or self.stop_place is not None or self._stop_due is None or now < self._stop_due:
            return []
        self._stop_due = None
        return [FindStop(stop=self.stop)]

    def _stop_found(self, place: Position | None, now: float) -> list[Effect]:
        self._stop_due = now + STOP_SECONDS
        if place is None or self.stop is None or self.stop_place is not None:
            return []
        self.stop_place = place
        return [Send(receiver=self.plan.stream_reader, message=StopStream(place=place))]

    def _described(self, generation: int, item: TableFound) -> list[Effect]:
        self._looking.discard(item.table_id)
        table = self.tables.get(item.table_id)
        if table is None or table.generation != generation or table.splitter is not None or self.ended:
            return []  # the last for a table that comes back when the pipeline's last checkpoint may be on its way
        if table.awaited:
            table.phase, table.cause, table.awaited = WAITING, None, False
        if table.phase != WAITING:
            return []
        self._prepare(table, item)
        return self._hand_out()

    def _prepare(self, table: Table, item: TableFound) -> None:
        if item.schema is None:
            table.phase, table.awaited = QUARANTINED, item.gone or table.generation > 1
            table.cause = item.fault or "the table is gone at the source; create it or take it off the list"
            return
        if table.before is not None and table.before.look != item.schema.look:
            table.phase = QUARANTINED
            table.cause = (
                f"the columns of {table.table_id} changed while it was being read, and schema_changes is halt;"
                " have it read by another pipeline"
            )
            return
        table.schema, table.estimate = item.schema, item.estimate
        table.splitter = Splitter(
            table_id=table.table_id,
            generation=table.generation,
            schema=item.schema,
            chunk_rows=item.chunk_rows or self.plan.chunk_rows,
            chunk_key=item.chunk_key,
            estimate=item.estimate,
            row_bytes=item.row_bytes,
            integer_key=item.integer_key,
        )

    def _look_again(self, now: float) -> list[Effect]:
        awaited = [t for t in self.tables.values() if t.awaited and t.table_id not in self._looking]
        if not awaited or now - self._looked_at < AWAITED_SECONDS:
            return []
        self._looked_at = now
        self._looking.update(table.table_id for table in awaited)
        return [DescribeTable(table_id=table.table_id, generation=table.generation) for table in awaited]

    def _find_new(self, now: float) -> list[Effect]:
        """Look for tables that were created meanwhile, unless the pipeline is to end with those that it has."""
        ends = self.plan.snapshot_only or self.stop is not None or self.at_stop
        if self._find_due is None or now < self._find_due or ends:
            return []
        self._find_due = None
        return [FindTables(begins=False, known=frozenset(self.tables))]

    def _failed(self, table_id: str, generation: int, cause: str, restart: bool) -> list[Effect]:
        """Quarantine the table, or read it again as its next generation."""
        table = self.tables.get(table_id)
        if table is None or table.generation != generation or table.phase == QUARANTINED:
            return []
        effects: list[Effect] = []
        if table.phase in (CATCH_UP, LIVE):
            exclude = ExcludeTable(table_id=table_id, generation=generation)
            effects.append(Send(receiver=self.plan.stream_reader, message=exclude))
        self.todo = deque(split for split in self.todo if split.table_id != table_id)
        self.out = {key: held for key, held in self.out.items() if held[0].table_id != table_id}
        if not restart:
            table.phase, table.cause, table.splitter = QUARANTINED, cause, None
            return effects
        before = (table.schema or table.before) if self.plan.halts else None
        self.tables[table_id] = Table(table_id=table_id, generation=generation + 1, cause=cause, before=before)
        return [*effects, DescribeTable(table_id=table_id, generation=generation + 1)]

    def _include(self, table: Table, looked_at: Low | None = None) -> list[Effect]:
        assert table.schema is not None
        assert table.low is not None
        assert table.high is not None
        table.phase, table.splitter, self.stream_stopped = CATCH_UP, None, False
        include = IncludeTable(
            table_id=table.table_id,
            generation=table.generation,
            schema=table.schema,
            low=table.low,
            high=table.high,
            splits=tuple(table.completed),
            looked_at=looked_at,
        )
        table.completed = []
        return [Send(receiver=self.plan.stream_reader, message=include)]

    def _table_report(self, report: TableReport) -> list[Effect]:
        table = self.tables.get(report.table_id)
        if table is None or table.generation != report.generation or table.phase not in (CATCH_UP, LIVE):
            return []  # of a generation that is over
        if report.state != "live":
            return self._failed(report.table_id, report.generation, report.cause or "", report.state == "restart")
        table.phase, table.cause, self.turned_live = LIVE, None, True
        over = all(t.phase in (LIVE, QUARANTINED) for t in self.tables.values())
        if self.plan.snapshot_only and over and not self.stream_stopped:
            self.stream_stopped = True
            return [Send(receiver=self.plan.stream_reader, message=StopStream())]
        return []

    # --- splits ---

    def _splitter(self, table_id: str, generation: int) -> Splitter | None:
        table = self.tables.get(table_id)
        return table.splitter if table is not None and table.generation == generation else None

    def _report(self, report: SplitReport) -> list[Effect]:
        held = self.out.get(report.split_id)
        table = self.tables.get(report.table_id)
        if held is None or held[0].attempt != report.attempt or table is None or table.generation != report.generation:
            return []  # late: of an attempt or generation that is over
        split = held[0]
        del self.out[report.split_id]
        if table.schema is None or report.schema.hash != table.schema.hash:
            return self._failed(table.table_id, table.generation, "its columns changed while it was read", restart=True)
        try:
            low = report.low if table.low is None else table.low.fold(report.low)
            high = report.high if table.high is None else table.high.fold(report.high)
        except SourceLost as error:  # its chunks were read from two servers, whose watermarks don't compare
            return self._failed(table.table_id, table.generation, error.cause, restart=True)
        self.accepted[report.split_id] = report.attempt
        if report.cut_at is not None:
            assert table.splitter is not None
            self.todo.appendleft(table.splitter.rest(split, report.cut_at))
            split = dataclasses.replace(split, split_end=report.cut_at)
        table.low, table.high = low, high
        table.splits_done += 1
        table.rows_done += report.rows
        if self.plan.exact:
            table.completed.append(
                CompletedSplit(split_start=split.split_start, split_end=split.split_end, high=report.high)
            )
        if table.splitter is not None and table.splitter.done and table.splits_done == table.splitter.made:
            return self._include(table)
        return []

    def _split_failed(self, failed: SplitFailed) -> list[Effect]:
        held = self.out.get(failed.split_id)
        if held is None or held[0].attempt != failed.attempt:
            return []
        del self.out[failed.split_id]
        failures = self.failures[failed.split_id] = self.failures.get(failed.split_id, 0) + 1
        # attempts don't tell: restores count them up too, and say nothing against the chunk
        if failed.retry and failures < MAX_ATTEMPTS:
            self.todo.appendleft(dataclasses.replace(held[0], attempt=failed.attempt + 1))
            return []
        return self._failed(failed.table_id, failed.generation, failed.cause, failed.restart)

    def _hand_out(self) -> list[Effect]:
        """Give queued splits to readers with room; make more, or ask for what is needed to make more."""
        effects: list[Effect] = []
        room = sum(self.free.values())
        want = max(room, 1) + len(self.free)
        for table in self.tables.values():
            splitter = table.splitter
            if splitter is None or splitter.done:
                continue
            if len(self.todo) < want:
                table.phase = SNAPSHOT
                self.todo += splitter.take(want - len(self.todo))
            if len(self.todo) < want and (question := splitter.wants()) is not None:
                splitter.asked = True
                effects.append(self._question(question, splitter))
            if len(self.todo) >= want:
                break
        for reader in sorted(self.free, key=lambda name: -self.free[name]):
            while self.free[reader] > 0 and self.todo:
                split = self.todo.popleft()
                self.out[split.split_id] = (split, reader)
                self.free[reader] -= 1
                effects.append(Send(receiver=reader, message=AssignSplits(splits=(split,))))
        return effects + self._take_back()

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

    def share(self) -> Limits:
        """What each reader may SELECT, so that all of them together keep the limits."""
        rows, size, readers = self.limits.rows_per_second, self.limits.bytes_per_second, len(self.plan.readers)
        return Limits(rows_per_second=rows and rows / readers, bytes_per_second=size and size / readers)

    def _throttle(self) -> list[Effect]:
        return [Send(receiver=reader, message=Throttle(limits=self.share())) for reader in self.plan.readers]

    def _take_back(self) -> list[Effect]:
        """With nothing left to give, ask a busy reader's waiting split back for a reader that holds none."""
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

    # --- checkpoints ---

    def ready(self) -> bool:
        """The initiator starts when it likes."""
        return True

    def begin(self, checkpoint: int, kept: bool, now: float) -> None:
        """Collect for `checkpoint` from here on. Called just before `Process.start`."""
        self.collecting = Collecting(checkpoint=checkpoint, kept=kept, started_at=now)
        self.turned_live = False

    def cut(
        self, checkpoint: int, state: dict[str, Any], recorded: dict[str, list[Message]], kept: bool
    ) -> list[Effect]:
        """Every reader's marker is back."""
        collecting = self._in_flight(checkpoint)
        collecting.state, collecting.recorded = state, recorded
        part = {"state": state, "recorded": to_recorded(recorded)}
        return [SavePart(checkpoint=checkpoint, state=part)]

    def _in_flight(self, checkpoint: int) -> Collecting:
        if self.collecting is None or self.collecting.checkpoint != checkpoint:
            raise ProtocolError(f"a part of checkpoint {checkpoint} came, which is not in flight")
        return self.collecting

    def _part_saved(self, channel: str, saved: PartSaved, collecting: Collecting, now: float) -> list[Effect]:
        if channel in collecting.reported:
            raise ProtocolError(f"{channel} gave its part of checkpoint {saved.checkpoint} twice")
        collecting.reported.add(channel)
        if saved.part is not None:
            collecting.parts[channel] = saved.part
        collecting.staged += saved.staged
        if saved.stream is not None:
            collecting.stream = saved.stream
            self.stream_status = {"position": saved.stream["position"], "source_time": saved.stream["sourceTime"]}
        return self._complete(now)

    def _complete(self, now: float) -> list[Effect]:
        collecting = self.collecting
        members = {*self.plan.readers, *self.plan.writers}
        if collecting is None or "enumerator" not in collecting.parts or collecting.reported != members:
            return []
        self.collecting = None
        entry = self._entry(collecting)
        return [WriteCheckpoint(slot=collecting.checkpoint, entry=entry | {"written_at": now})]

    def _entry(self, collecting: Collecting) -> dict[str, Any]:
        """The journal's entry: what a restore from this cut would know, and the files that belong to it."""
        part = {"state": collecting.state, "recorded": to_recorded(collecting.recorded)}
        at_cut = Enumerator.restored(self.plan, part)
        # what was accepted after the cut belongs to the next checkpoint
        self.accepted = {key: n for key, n in self.accepted.items() if key not in at_cut.accepted}
        stream = collecting.stream
        staged, schemas, tables = [], {}, {}
        for file in collecting.staged:
            table = at_cut.tables[file["table"]]
            if table.generation != file["generation"] or table.phase == QUARANTINED:
                continue  # nobody will ask for them again
            if file["kind"] == "chunk":
                _, _, attempt = file["split"].rpartition("#")
                if at_cut.accepted.get(file["split"].removesuffix(f"#{attempt}")) != int(attempt):
                    continue
            staged.append(file)
        for table in at_cut.tables.values():
            streamed = stream.get("tables", {}).get(table.table_id)
            show, phase, since = False, table.phase, {}
            schema = table.schema.hash if table.schema else None
            if table.schema:
                schemas[table.schema.hash] = table.schema.to_json()
            if streamed is not None and streamed["generation"] == table.generation and phase in (CATCH_UP, LIVE):
                schema, since, show = streamed["schema"], streamed["since"], streamed["live"]
                phase = LIVE if show else CATCH_UP
                schemas |= streamed["schemas"]
            tables[table.table_id] = {
                "generation": table.generation,
                "phase": phase,
                "schema": schema,
                "since_seq": since,
                "cause": table.cause,
                "show": show,
            }
        return {
            "kind": "checkpoint",
            "slot": collecting.checkpoint,
            "kept": collecting.kept,
            "inside": bool(stream.get("inside")),
            "position": stream.get("position"),
            "source_time": stream.get("sourceTime"),
            "started_at": collecting.started_at,
            "parts": collecting.parts,
            "staged": staged,
            "schemas": schemas,
            "tables": tables,
        }

    def snapshot(self) -> dict[str, Any]:
        """Everything a restore needs; what is out is kept with its attempt."""
        return {
            "tables": [
                {
                    "tableId": t.table_id, "generation": t.generation, "phase": t.phase,
                    "schema": t.schema.to_json() if t.schema else None,
                    "splitter": t.splitter.to_json() if t.splitter else None,
                    "low": t.low.to_json() if t.low else None, "high": t.high.to_json() if t.high else None,
                    "completed": to_plain(t.completed), "splitsDone": t.splits_done, "rowsDone": t.rows_done,
                    "estimate": t.estimate, "cause": t.cause,
                    "awaited": t.awaited, "before": t.before.to_json() if t.before else None,
                }
                for t in self.tables.values()
            ],
            "todo": to_plain(list(self.todo)),
            "out": [to_plain(split) for split, _ in self.out.values()],
            "accepted": dict(self.accepted),
            "streamStopped": self.stream_stopped,
            "limits": to_plain(self.limits),
            "stop": to_plain(self.stop), "stopPlace": to_plain(self.stop_place), "atStop": self.at_stop,
        }  # fmt: skip

    @classmethod
    def restored(cls, plan: Plan, part: dict[str, Any]) -> Enumerator:
        """The enumerator of a part: its state, then the reports in flight; the rest is queued again."""
        machine = cls(plan)
        state = part["state"]
        for t in state["tables"]:
            schema = TableSchema.from_json(t["schema"]) if t["schema"] else None
            splitter = None
            if schema is not None and t["splitter"]:
                splitter = Splitter.restored(t["tableId"], t["generation"], schema, t["splitter"])
            machine.tables[t["tableId"]] = Table(
                table_id=t["tableId"],
                generation=t["generation"],
                phase=t["phase"],
                schema=schema,
                splitter=splitter,
                low=Low.from_json(t["low"]) if t["low"] else None,
                high=High.from_json(t["high"]) if t["high"] else None,
                completed=list(from_plain(tuple[CompletedSplit, ...], t["completed"])),
                splits_done=t["splitsDone"],
                rows_done=t["rowsDone"],
                estimate=t["estimate"],
                cause=t["cause"],
                awaited=t["awaited"],
                before=TableSchema.from_json(t["before"]) if t["before"] else None,
            )
        out = from_plain(tuple[SnapshotSplit, ...], state["out"])
        machine.out = {split.split_id: (split, "") for split in out}
        machine.todo = deque(from_plain(tuple[SnapshotSplit, ...], state["todo"]))
        machine.accepted = dict(state["accepted"])
        machine.stream_stopped = state["streamStopped"]
        machine.limits = from_plain(Limits, state["limits"])
        machine.stop = from_plain(Stop | None, state["stop"])
        machine.stop_place = from_plain(Position | None, state["stopPlace"])
        machine.at_stop = state["atStop"]
        for channel, headers in part["recorded"].items():
            for message in (decode(header) for header in headers):
                if not isinstance(message, (SplitsWanted, SplitReleased, PartSaved)):
                    machine._at_begin += machine._recorded(channel, message)
        waiting = [split for split, _ in machine.out.values()]
        machine.out = {}
        again = [dataclasses.replace(split, attempt=split.attempt + 1) for split in waiting]
        machine.todo.extendleft(reversed(again))
        return machine

    def _recorded(self, channel: str, message: Message) -> list[Effect]:
        """A report that was in flight: its orders to the incremental split are due now, all else is asked anew."""
        match message:
            case SplitReport():
                effects = self._report(message)
            case SplitFailed():
                effects = self._split_failed(message)
            case TableReport():
                effects = self._table_report(message)
            case StreamStopped():
                self.at_stop, effects = True, []
            case _:
                raise ProtocolError(f"the enumerator's part has a recorded {type(message).__name__} of {channel}")
        return [effect for effect in effects if isinstance(effect, Send)]


def to_recorded(recorded: dict[str, list[Message]]) -> dict[str, list[dict[str, Any]]]:
    """The channels' states in the part's form."""
    return {name: [encode(message) for message in messages] for name, messages in recorded.items()}
