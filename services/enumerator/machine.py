"""The enumerator: knows every table and split of a pipeline, hands splits out, and starts and collects checkpoints.

    table:  waiting -> snapshot -> catch-up -> live          any -> quarantined
                                                             any -> waiting (next generation) -> dropped -> waiting
                                                             any -> paused (by a person) -> where it was

- A report is accepted once, if its split is out with that attempt and generation; any other is late and ignored. When a
  reader had to cut a chunk short, the rest becomes a split with a number of its own.
- When all chunks of a table are reported, their watermarks are folded into one pair and the table goes to the
  incremental split (FLIP-27's completed snapshot splits; DBLog's watermarks). On every channel the cause is sent before
  its effect, so any consistent cut that has a table's first change also has its chunk rows.
- A table that stops, or is to be read again, is looked up at the source. If the source has no such table, it is
  dropped, which is no fault: its next generation waits for a table of that name. A table that may not be read is never
  taken for dropped.
- A person's commands about tables are carried out by table_commands.py. The part names the last one taken, and those
  that were refused until their outcomes are in the store: a restore takes later ones again.
- The enumerator initiates checkpoints. It composes the entry when every member's part is in the store.

Restore: the state at the cut is loaded; the reports that were in flight (`recorded`) are taken; splits that are still
out go back to the queue with the next attempt. No report is acknowledged or asked for again: each is either in the
state at the cut or recorded.

A generation's number never comes again, also where a restore leaves checkpoints behind (`leave_behind`): the lake has
its columns, partitions and order by that number. So each next number is above the floor, which is above every number
that any checkpoint of the pipeline has had and no table here has.

An epoch may begin anew (`begin_anew`): every table is then its next generation, and nothing of the base counts any
more, neither splits nor reports in flight. Tables come with a snapshot, also where the pipeline began without one.

What must change together: `snapshot` and `restored`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping

from cutline.common.causes import Cause, Code
from cutline.common.commands.kinds import Refusal
from cutline.common.errors import ProtocolError, SourceLost
from cutline.common.limits import UNLIMITED, Limits
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State, Ticked
from cutline.common.mesh.messages import (
    CheckpointWanted,
    CompletedSplit,
    EndStream,
    ExcludeTable,
    LimitStream,
    Message,
    PartSaved,
    Remedy,
    SplitFailed,
    SplitReleased,
    SplitReport,
    SplitsWanted,
    StopStream,
    StreamCaughtUp,
    StreamCut,
    StreamStopped,
    TablePaused,
    TableReport,
    TableState,
    Throttle,
    decode,
    encode,
    from_plain,
    to_plain,
)
from cutline.common.phases import CATCH_UP, DROPPED, LIVE, PAUSED, QUARANTINED, WAITING
from cutline.common.positions import Low, Position, Stop
from cutline.common.store.records import Anew, TableEntry
from cutline.services.enumerator.checkpoints import Collecting, Entries
from cutline.services.enumerator.events import (
    BoundFound,
    CommandTaken,
    DescribeTable,
    FindTables,
    LimitsOrdered,
    PlaceFound,
    Plan,
    RangeFound,
    SplittingFailed,
    SplittingOutdated,
    StopFound,
    TableDescribed,
    TableFound,
    TableLockedOut,
    TablesFound,
    WriteCheckpoint,
)
from cutline.services.enumerator.finding import Looks, prepared, reshaped
from cutline.services.enumerator.splits import NO_CAUSE, Splits
from cutline.services.enumerator.table_commands import (
    ASKED,
    carry_out,
    commands_in,
    find_place,
    place_found,
    remove,
    reshape,
    table_paused,
)
from cutline.services.enumerator.tables import AT_REST, INACTIVE, STREAMED, Table, Tables, inclusion

MAX_ATTEMPTS = 5  # at one split in one epoch
_NO_PROGRESS = (PartSaved, SplitsWanted, SplitReleased, SplitFailed)  # messages that a source which hangs may bring too
_COLUMNS_CHANGED = Cause(Code.CHANGED, "its columns changed while the snapshot was read")
_LOST = Cause(Code.PURGED, "the source no longer had the changes that followed")


class Enumerator:
    """The machine; wrapped in a `Process` whose inbound and outbound channels are the readers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._tables = Tables()
        self.splits = Splits(self._tables, plan.readers)
        self.gone: dict[str, int] = {}  # tables that left the pipeline -> their last generation
        self.floor = 0  # checkpoints that a restore left behind had generations up to this number
        self.commands_done = 0  # the number of the last command taken
        self.refused: dict[int, tuple[str, str]] = {}  # cause and remedy, by the command's number
        self.stream_stopped = False
        self.limits = plan.limits
        self.stop: Stop | None = None
        self.stop_place: Position | None = None  # where the stop is, once the source has passed it
        self.at_stop = False  # the incremental split has ended at the stop
        self.news = False  # since the newest checkpoint began a table turned live, or the stream caught up or goes on
        self.moved = True  # since then there was progress of a table or of the stream
        self.wanted = False  # since then a reader asked for the next one
        self.collecting: Collecting | None = None
        self.stream_cut: StreamCut | None = None  # the incremental split at its last part
        self.entries = Entries()
        self._looks = Looks()
        self._cut: Enumerator | None = None  # this machine at the cut of the checkpoint in flight
        self._anew = False  # the epoch begins anew
        self._at_begin: list[Effect] = []  # effects of recorded reports, due in the new epoch

    @property
    def tables(self) -> Mapping[str, Table]:
        """Every table of the pipeline, by name."""
        return self._tables.by_name

    # --- the door ---

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact."""
        self._tables.now = now
        match event:
            case Began():
                effects, self._at_begin = self._at_begin, []
                waiting = (t for t in self.tables.values() if t.phase == WAITING and t.schema is None)
                described = [DescribeTable(table_id=t.table_id, generation=t.generation) for t in waiting]
                throttle = self.throttle() if self.limits != UNLIMITED else []
                # Only the first search has the start: tables that come later get a snapshot.
                begins = not (self.tables or self.gone)
                find = FindTables(begins=begins, known=frozenset(self.tables), anew=begins and self._anew)
                places = [effect for t in self.tables.values() if t.resuming for effect in find_place(t)]
                return [*effects, *throttle, find, *described, *places, *self.splits.hand_out()]
            case CommandTaken(command=command):
                self.commands_done = command.n
                outcome = carry_out(self, command)
                if isinstance(outcome, Refusal):
                    self.refused[command.n] = (outcome.cause, outcome.remedy)
                    return []
                return outcome + self.splits.hand_out()
            case TablesFound():
                return self._found(event, now)
            case PlaceFound(table_id=table_id, generation=generation, kept=kept):
                return place_found(self, table_id, generation, kept) + self.splits.hand_out()
            case StopFound(place=place):
                return self._stop_found(place, now)
            case TableDescribed(generation=generation, table=described_table):
                return self._described(generation, described_table)
            case RangeFound(table_id=table_id, generation=generation, range=key_range):
                self.splits.ranged(table_id, generation, key_range)
                return self.splits.hand_out()
            case BoundFound(table_id=table_id, generation=generation, end=end):
                self.splits.bounded(table_id, generation, end)
                return self.splits.hand_out()
            case TableLockedOut(table_id=table_id, generation=generation, cause=cause):
                self.splits.locked_out(table_id, generation, cause, now)
                return self.splits.hand_out()
            case SplittingFailed(table_id=table_id, generation=generation, cause=cause):
                return self.fail(table_id, generation, cause, restart=False) + self.splits.hand_out()
            case SplittingOutdated(table_id=table_id, generation=generation, cause=cause):
                return self.fail(table_id, generation, cause, restart=True) + self.splits.hand_out()
            case LimitsOrdered(limits=limits):
                self.limits = limits
                return self.throttle()
            case MessageReceived(channel=channel, message=message):
                effects = self._message(channel, message, now)
                self.moved = self.moved or not isinstance(message, _NO_PROGRESS)
                return effects
            case PartStored(checkpoint=checkpoint, ref=ref):
                self._in_flight(checkpoint).take_own(ref)
                return self._complete(now)
            case Ticked():
                return self._look(now) + self.splits.try_held(now)
        raise ProtocolError(f"the enumerator has no rule for {type(event).__name__}")

    def _message(self, channel: str, message: Message, now: float) -> list[Effect]:
        if channel not in self.splits.free and not isinstance(message, PartSaved):
            raise ProtocolError(f"{channel}, which is no reader, sent a {type(message).__name__} to the enumerator")
        match message:
            case SplitsWanted(free=free):
                self.splits.free[channel] += free
                return self.splits.hand_out()
            case SplitReleased(split_id=split_id, attempt=attempt):
                self.splits.taking_back.discard(split_id)
                held = self.splits.out.get(split_id)
                if held is not None and held[0].attempt == attempt:
                    del self.splits.out[split_id]
                    self.splits.queue(held[0], first=True)
                return self.splits.hand_out()
            case SplitReport():
                return self._report(message) + self.splits.hand_out()
            case SplitFailed():
                return self._split_failed(message, now) + self.splits.hand_out()
            case TableReport():
                return self._table_report(message) + self.splits.hand_out()
            case TablePaused():
                return table_paused(self, message) + self.splits.hand_out()
            case StreamCaughtUp():
                self.news = True
                return []
            case CheckpointWanted():
                self.wanted = True
                return []
            case StreamStopped():
                self.at_stop = True
                return []
            case PartSaved(checkpoint=checkpoint):
                return self._part_saved(channel, message, self._in_flight(checkpoint), now)
        raise ProtocolError(f"the enumerator has no rule for message {type(message).__name__} of {channel}")

    # --- tables ---

    def _found(self, found: TablesFound, now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._looks.tables_found(now)
        if found.stop is not None and self.stop is None:
            self.stop = found.stop
            effects.append(Send(receiver=self.plan.stream_reader, message=LimitStream(stop=self.stop)))
        start = found.start
        for item in found.tables:
            if item.table_id in self.tables or self.stop_place is not None:  # past the stop nothing new begins
                continue
            generation = self.number_after(self.gone.pop(item.table_id, 0))
            new = Table(table_id=item.table_id, generation=generation)
            table = self._tables.put(prepared(new, item, self.plan))
            if start is not None and table.phase == WAITING:
                low, high = start
                effects += self.include(dataclasses.replace(table, low=low, high=high), found.looked_at)
        for name in sorted(found.unselected & self.tables.keys()):
            effects += remove(self, self.tables[name])
        for table, why in reshaped(self._tables, found.shapes):
            effects += reshape(self, table, why)
        for table in (self.tables[name] for name in sorted(found.unseen & self.tables.keys())):
            if table.phase == QUARANTINED and not table.awaited:
                effects.append(DescribeTable(table_id=table.table_id, generation=table.generation))
        return effects + self.splits.hand_out()

    @property
    def ended(self) -> bool:
        """Whether the pipeline is at its stop, and every table is shown there or never will be."""
        return (self.at_stop or self.stop_place is not None) and self._tables.ended(at_stop=self.at_stop)

    def _look(self, now: float) -> list[Effect]:
        ends = self.plan.snapshot_only or self.stop is not None or self.at_stop
        return self._looks.due(self._tables, self.stop if self.stop_place is None else None, now, ends=ends)

    def _stop_found(self, place: Position | None, now: float) -> list[Effect]:
        self._looks.stop_answered(now)
        if place is None or self.stop is None or self.stop_place is not None:
            return []
        self.stop_place = place
        return [Send(receiver=self.plan.stream_reader, message=EndStream(place=place))]

    def _described(self, generation: int, item: TableFound) -> list[Effect]:
        self._looks.described(item.table_id)
        table = self.tables.get(item.table_id)
        if table is None or table.generation != generation or table.splitter is not None or self.ended:
            return []  # `ended`: the final checkpoint may be under way, so a table that comes back is not read
        if item.gone and table.phase == QUARANTINED and not table.awaited:  # the quarantine ends with the table
            table = self._next_generation(table)
        elif table.awaited:
            table = dataclasses.replace(table, phase=WAITING, cause=None, awaited=False)
        if table.phase != WAITING:
            return []
        self._tables.put(prepared(table, item, self.plan))
        return self.stop_when_over() + self.splits.hand_out()

    def fail(self, table_id: str, generation: int, cause: Cause, restart: bool) -> list[Effect]:
        """Quarantine the table, or read it again as its next generation."""
        table = self.tables.get(table_id)
        if table is None or table.generation != generation or table.phase in AT_REST:
            return []
        effects: list[Effect] = []
        if table.phase in STREAMED:
            exclude = ExcludeTable(table_id=table_id, generation=generation)
            effects.append(Send(receiver=self.plan.stream_reader, message=exclude))
        self.splits.drop(table_id)
        if not restart:
            table = self._tables.put(
                dataclasses.replace(
                    table, phase=QUARANTINED, cause=cause, splitter=None, pausing=False, resuming=False
                )
            )
        else:
            table = self._next_generation(table, cause)
            if (now := self._tables.now) is not None:
                self.splits.holds.begins_again(table_id, cause, now)
        look = DescribeTable(table_id=table_id, generation=table.generation)
        return [*effects, *self.stop_when_over(), look]

    def _next_generation(self, table: Table, cause: Cause | None = None) -> Table:
        number, keeps = self.number_after(table.generation), self.plan.quarantine_changed
        return self._tables.put(table.again(number, cause, keeps_schema=keeps))

    def number_after(self, generation: int) -> int:
        """The number of the generation that follows."""
        return max(generation, self.floor) + 1

    def put(self, table: Table) -> Table:
        """Take another state of a known table."""
        return self._tables.put(table)

    def forget(self, table: Table) -> None:
        """Know nothing more of a table than its generation."""
        self.gone[table.table_id] = table.generation
        self._tables.remove(table.table_id)

    def include(self, table: Table, looked_at: Low | None = None) -> list[Effect]:
        """Hand a table to the incremental split."""
        self.stream_stopped = False
        self._tables.put(dataclasses.replace(table, phase=CATCH_UP, splitter=None, completed=(), looked_at=None))
        return [Send(receiver=self.plan.stream_reader, message=message) for message in inclusion(table, looked_at)]

    def _table_report(self, report: TableReport) -> list[Effect]:
        table = self.tables.get(report.table_id)
        if table is None or table.generation != report.generation or table.phase not in STREAMED:
            return []  # late: of an older generation
        if report.state != TableState.LIVE:
            restart = report.state == TableState.RESTART
            return self.fail(report.table_id, report.generation, report.cause or NO_CAUSE, restart)
        self._tables.put(dataclasses.replace(table, phase=LIVE, cause=None))
        self.news = True
        return self.stop_when_over()

    def stop_when_over(self) -> list[Effect]:
        """Stop a stream that only replays the snapshot once every table is live or at rest."""
        if self.plan.snapshot_only and not self.stream_stopped and self._over():
            self.stream_stopped = True
            return [Send(receiver=self.plan.stream_reader, message=StopStream())]
        return []

    def _over(self) -> bool:
        return all(table.phase == LIVE or table.phase in INACTIVE for table in self.tables.values())

    # --- splits ---

    def _report(self, report: SplitReport) -> list[Effect]:
        held = self.splits.out.get(report.split_id)
        table = self._tables.being_split(report.table_id, report.generation)
        if held is None or held[0].attempt != report.attempt or table is None or table.splitter is None:
            return []  # late: of an older attempt or generation
        split = held[0]
        del self.splits.out[report.split_id]
        if table.schema is None or report.schema.hash != table.schema.hash:
            return self.fail(table.table_id, table.generation, _COLUMNS_CHANGED, restart=True)
        try:
            low = report.low if table.low is None else table.low.fold(report.low)
            high = report.high if table.high is None else table.high.fold(report.high)
        except SourceLost as error:  # chunks were read from two servers, whose watermarks don't compare
            return self.fail(table.table_id, table.generation, error.cause, restart=True)
        self.splits.accepted[report.split_id] = report.attempt
        self.splits.let_go(table)
        cause = self.tables[table.table_id].cause
        if report.cut_at is not None:
            self.splits.queue(table.splitter.rest(split, report.cut_at), first=True)
            split = dataclasses.replace(split, split_end=report.cut_at)
        done, rows = table.splits_done + 1, table.rows_done + report.rows
        table = dataclasses.replace(table, low=low, high=high, splits_done=done, rows_done=rows, cause=cause)
        if self.plan.exact:
            table = table.with_completed(
                CompletedSplit(split_start=split.split_start, split_end=split.split_end, high=report.high)
            )
        if table.splitter is not None and table.splitter.done and done == table.splitter.made:
            if table.phase != PAUSED:
                return self.include(table)
            table = dataclasses.replace(table, splitter=None)
        self._tables.put(table)
        return []

    def _split_failed(self, failed: SplitFailed, now: float | None = None) -> list[Effect]:
        """`now` is None for a report that was in flight at a cut."""
        held = self.splits.out.get(failed.split_id)
        if held is None or held[0].attempt != failed.attempt:
            return []
        del self.splits.out[failed.split_id]
        again = dataclasses.replace(held[0], attempt=failed.attempt + 1)
        if failed.remedy == Remedy.WAIT:
            if now is not None:
                self.splits.hold(self.tables[failed.table_id], failed.cause, now)
            self.splits.queue(again, first=True)
            return []
        failures = self.splits.failures[failed.split_id] = self.splits.failures.get(failed.split_id, 0) + 1
        # The attempt's number does not count failures: each restore raises it too.
        if failed.remedy == Remedy.RETRY and failures < MAX_ATTEMPTS:
            self.splits.queue(again, first=True)
            return []
        return self.fail(failed.table_id, failed.generation, failed.cause, failed.remedy == Remedy.RESTART)

    def throttle(self) -> list[Effect]:
        """Tell every reader its share of the limits."""
        share = self.limits.shared(len(self.plan.readers))
        return [Send(receiver=reader, message=Throttle(limits=share)) for reader in self.plan.readers]

    # --- checkpoints ---

    def ready(self) -> bool:
        """The initiator takes its snapshot when it starts one, at once."""
        return True

    def begin(self, checkpoint: int, now: float) -> None:
        """Collect for `checkpoint` from here on. Called just before `Process.start`."""
        self.collecting, self._tables.now = Collecting(checkpoint=checkpoint, started_at=now), now
        self.news = self.moved = self.wanted = False

    def cut(self, checkpoint: int, state: State, recorded: dict[str, list[Message]], kept: bool) -> list[Effect]:
        """Every reader's marker is back."""
        collecting, at_cut = self._in_flight(checkpoint), self._cut
        assert at_cut is not None
        before = dict(at_cut.tables)
        for channel, messages in recorded.items():
            at_cut._take_recorded(channel, messages)
        for name, table in before.items():
            if at_cut.tables[name] is not table:
                collecting.replaced |= {schema.hash for schema in table.schemas}
        collecting.ordered = True
        head = {
            **state.head,
            "recorded": {name: [encode(message) for message in messages] for name, messages in recorded.items()},
        }
        return [SavePart(checkpoint=checkpoint, state=dataclasses.replace(state, head=head))]

    def _in_flight(self, checkpoint: int) -> Collecting:
        if self.collecting is None or self.collecting.checkpoint != checkpoint:
            raise ProtocolError(f"received a part of checkpoint {checkpoint}, which is not in flight")
        return self.collecting

    def _part_saved(self, channel: str, saved: PartSaved, collecting: Collecting, now: float) -> list[Effect]:
        collecting.take(channel, saved)
        if saved.more:
            return []
        if saved.stream is not None:
            self.stream_cut = saved.stream
        return self._complete(now)

    def _complete(self, now: float) -> list[Effect]:
        collecting, at_cut = self.collecting, self._cut
        if collecting is None or at_cut is None or not collecting.complete(self.plan.topology):
            return []
        self.collecting = self._cut = None
        # what was accepted after the cut belongs to the next checkpoint
        splits = self.splits
        splits.accepted = {key: n for key, n in splits.accepted.items() if key not in at_cut.splits.accepted}
        staged = [file for file in collecting.staged if at_cut.splits.counts(file)]
        tables = self.entries.enter(at_cut._tables.by_name, self.entries.stream(collecting.streamed), staged)
        left = max(at_cut.floor, *at_cut.gone.values(), 0)
        return [WriteCheckpoint(slot=collecting.checkpoint, entry=collecting.entry(staged, tables, left, now))]

    def snapshot(self) -> State:
        """Everything that a restore needs; splits that are out keep their attempt."""
        values, schemas = self._tables.part()
        self._cut = self._copy()
        head = {
            **self.splits.head(),
            "streamStopped": self.stream_stopped,
            "limits": to_plain(self.limits),
            "stop": to_plain(self.stop), "stopPlace": to_plain(self.stop_place), "atStop": self.at_stop,
            "recorded": {},
        }  # fmt: skip
        if self.commands_done:
            refused = [[n, *why] for n, why in sorted(self.refused.items())]
            head["commands"] = {"done": self.commands_done, "refused": refused}
        if self.gone:
            head["gone"] = dict(self.gone)
        if self.floor:
            head["floor"] = self.floor
        return State(head=head, values=values, schemas=schemas)

    def _copy(self) -> Enumerator:
        """A machine with the part of the state that reports change."""
        machine = Enumerator(self.plan)
        machine._tables = self._tables.copy()
        machine.splits = self.splits.copy(machine._tables)
        machine.gone, machine.floor = dict(self.gone), self.floor
        return machine

    @classmethod
    def restored(
        cls, plan: Plan, state: State, entered: Mapping[str, TableEntry], at: float | None = None
    ) -> Enumerator:
        """The enumerator of a part: its state, then the reports in flight; all other splits that were out are queued
        again. `entered` are the tables of the checkpoint's entry, `at` is when it was started."""
        machine = cls(plan)
        machine._tables = Tables.restored(state)
        machine._tables.now = at
        head = state.head
        machine.splits = Splits.restored(machine._tables, plan.readers, head)
        machine.stream_stopped = head["streamStopped"]
        machine.limits = from_plain(Limits, head["limits"])
        machine.stop = from_plain(Stop | None, head["stop"])
        machine.stop_place = from_plain(Position | None, head["stopPlace"])
        machine.at_stop = head["atStop"]
        machine.gone, machine.floor = dict(head.get("gone", {})), head.get("floor", 0)
        machine.commands_done, machine.refused = commands_in(head)
        for channel, headers in head["recorded"].items():
            machine._at_begin += machine._take_recorded(channel, [decode(header) for header in headers])
        waiting = [split for split, _ in machine.splits.out.values()]
        machine.splits.out = {}
        for split in reversed(waiting):
            machine.splits.queue(dataclasses.replace(split, attempt=split.attempt + 1), first=True)
        machine.snapshot()  # so that the epoch's first snapshot and entry, too, cost only what changed
        machine.entries = Entries.restored(machine.tables, entered)
        machine._cut = None
        return machine

    def leave_behind(self, floor: int, now: float) -> None:
        """Take the floor of the epoch. Called before `Began`, on a machine that may be restored.

        If it is higher than that of the base, checkpoints after the base are left behind. A table of which the base has
        nothing yet may have begun its generation in them, maybe with other columns, so it begins with another number.
        """
        if floor <= self.floor:
            return
        self.floor, self._tables.now = floor, now
        for table in [table for table in self.tables.values() if table.high is None]:
            if table.phase in AT_REST:
                self._tables.put(dataclasses.replace(table, generation=self.number_after(table.generation)))
            else:
                self.splits.drop(table.table_id)
                self._next_generation(table)

    def begin_anew(self, why: Anew, now: float) -> None:
        """Read every table again, as its next generation. Called before `Began`, on a machine that may be restored.

        A paused table stays paused, a dropped one is looked for as before. A person's wish allows other columns too,
        also with `schema_changes: halt`.
        """
        self._anew, self._tables.now = True, now
        cause = ASKED if why == "asked" else _LOST
        self.splits.todo, self.splits.shelved, self.splits.out, self.splits.accepted = deque(), [], {}, {}
        self._at_begin, self.stream_stopped = [], False
        for table in list(self.tables.values()):
            if table.phase == DROPPED:
                continue
            phase = WAITING if table.resuming else table.phase
            again = self._next_generation(dataclasses.replace(table, phase=phase), cause)
            if why == "asked":
                self._tables.put(dataclasses.replace(again, before=None))

    def _take_recorded(self, channel: str, messages: list[Message]) -> list[Effect]:
        effects: list[Effect] = []
        for message in messages:
            if not isinstance(message, (SplitsWanted, SplitReleased, StreamCaughtUp, CheckpointWanted, PartSaved)):
                effects += self._recorded(channel, message)
        return effects

    def _recorded(self, channel: str, message: Message) -> list[Effect]:
        """A report that was in flight. Its orders to the incremental split are still due; questions are asked anew."""
        match message:
            case SplitReport():
                effects = self._report(message)
            case SplitFailed():
                effects = self._split_failed(message)
            case TableReport():
                effects = self._table_report(message)
            case TablePaused():
                effects = table_paused(self, message)
            case StreamStopped():
                self.at_stop, effects = True, []
            case _:
                raise ProtocolError(f"the enumerator's part has a recorded {type(message).__name__} of {channel}")
        return [effect for effect in effects if isinstance(effect, Send)]

    # --- invariants ---

    def check(self) -> None:
        """Raise ProtocolError where the state contradicts itself. Costs O(tables and splits)."""
        self._tables.check()
        if self.collecting is not None:
            self.collecting.check(self.plan.topology)
            if self.collecting.ordered and self._cut is None:
                raise ProtocolError(f"checkpoint {self.collecting.checkpoint} has lost its cut")
        self.splits.check()
        if self.stop_place is not None and self.stop is None:
            raise ProtocolError(f"the stop was found at {self.stop_place}, and none is set")
