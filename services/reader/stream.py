"""The incremental split: the reader's one stream of changes, for all tables that follow the binlog (pure).

It has two cursors in its state: *main*, and at most one *catch-up* cursor that all tables of a round share. A cursor is
asked for changes with `ReadChanges`, and answers with exactly one `ChangesRead`.

    table:  waiting -> catch-up -> main -> live (main has passed its highest high)        any -> gone

- Joining. While main is being read its position is about to change: a table let in meanwhile would lose what the answer
  skipped. Waiting tables are therefore assigned a cursor only when no read of main is open. A table whose low main has
  not passed joins main; any other waits for the next round. A round's tables are fixed when it starts.
- Meeting. Catch-up reads up to main's position. If main has moved on when it arrives, main is held until catch-up
  arrives again. Then both stand between two transactions at the same place, and the tables move over in one step. If
  one of them is at another server, the tables are read again instead.
- Pausing. A table that a person pauses leaves once no read of its cursor is open and the cursor stands between two
  transactions. The enumerator gets the place as the table's new low: a later `IncludeTable` goes on there.
- Order. `_seq` is this machine's own count over both cursors and the only order of changes.
- Ending. Main is read no further than the stop (`LimitStream`), which its cursor recognises. Once the source has passed
  the stop, its place is known (`EndStream`). Main ends there, and every table is live there or can't be shown there:
  its snapshot ended later, or main began later. The enumerator gets a report of each such table and of the end.
- Markers are taken between two transactions (`ready`). Inside one of which `inside_rows` rows were sent a marker is
  taken too, and the checkpoint is marked `inside`: applied, never published. A read that begins inside a transaction
  ends with it; while a marker waits, a cursor that has ended its transaction waits for the other. So each marker is
  taken at the next end of a transaction, however long a load lasts.
- A marker does not wait for a source that has fallen silent inside a transaction, since a pause would wait with it: it
  is taken there once no row has come for STILL_SECONDS, and after LONGEST_SECONDS in any case. The leader then takes
  ever fewer checkpoints, until it hears that the source goes on.
- A reader that has sent as many rows as it may without a complete checkpoint waits for one (unsaved.py); markers pass.
- Beginning anew. Where the source no longer has what follows a position, an epoch can begin the split anew: no table
  and no cursor is left, and the first table of a new generation sets main's place. Only `_seq` goes on.

Watermarks follow DBLog (Andreakis and Papapanagiotou 2020) and FLIP-27. The cursor
(services/sources/mysql/binlog/cursor.py) decides which events a table's watermarks let through, by the routes that come
with each read.
What must change together: `snapshot` and `restore`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from cutline.common.causes import Cause, Code
from cutline.common.errors import ProtocolError, SourceLost
from cutline.common.mesh.machine import Effect, Send, State
from cutline.common.mesh.messages import (
    CompletedSplit,
    EndStream,
    ExcludeTable,
    IncludeTable,
    LimitStream,
    Message,
    PauseTable,
    Records,
    StopStream,
    StreamCaughtUp,
    StreamCut,
    StreamStopped,
    TablePaused,
    TableReport,
    TableState,
    from_plain,
    pieces,
    to_plain,
)
from cutline.common.mesh.topology import ENUMERATOR
from cutline.common.positions import High, Low, Position, Stop, beyond
from cutline.services.reader.events import (
    ChangesRead,
    CloseCursor,
    ReadChanges,
)
from cutline.services.reader.outlet import Outlet
from cutline.services.reader.tables import CATCH_UP, MAIN, StreamTable, StreamTables
from cutline.services.sources.contract import Changes, GenerationEnded, SchemaChange, TableChanges, TableFault

INSIDE_ROWS = 200_000
STILL_SECONDS = 5.0  # a source that lives sends the rest of a transaction far sooner
LONGEST_SECONDS = 60.0  # that a marker waits for one that trickles in
LOOK_SECONDS = 1.0  # the most that counts between two facts: a longer gap is this reader's own, held up on a channel
NEAR_BYTES = 4 << 20


@dataclass(slots=True, kw_only=True)
class Cursor:
    """A cursor of the binlog. `asked`: a read is open, so `position` is about to change. `rows_inside`: the rows sent
    of the transaction that `position` is inside of."""

    position: Position
    source_time: float | None = None
    rows_inside: int = 0
    asked: bool = False

    def take(self, read: Changes) -> None:
        """Move to where the answer ends."""
        before, here, rows = self.position, read.position, read.rows_inside
        self.rows_inside = (self.rows_inside if here.same_transaction(before) else 0) + rows if here.inside else 0
        self.position, self.asked = here, False
        if read.source_time is not None:
            self.source_time = read.source_time


class Stream:
    """The incremental split of one reader."""

    def __init__(self, name: str, outlet: Outlet, *, inside_rows: int = INSIDE_ROWS) -> None:
        """`name`: the reader's. Inside a transaction a marker is taken once `inside_rows` of its rows were sent."""
        self.name, self.inside_rows, self._outlet = name, inside_rows, outlet
        self._tables = StreamTables()
        self.cursors: dict[str, Cursor] = {}
        self.hold_main = False  # main waits until catch-up has met it
        self.stopped = False  # by `StopStream`
        self.stop: Stop | None = None
        self.stop_place: Position | None = None  # where the stop is, once the source has passed it
        self.at_stop = False  # main has read up to the stop
        self.ended = False  # it was reported that main is at the stop
        self._asked_stop: Stop | None = None  # the stop of main's newest read
        self.begin: Position | None = None  # where main began
        self.seq = 0
        self._backlog: int | None = 0  # rows that main has read in this epoch; None once the source had no more
        self._marker_waits = False
        self._now = 0.0  # at the last fact
        self._moved = False  # a cursor has, by the fact at hand
        self._still = 0.0  # seconds since a cursor last moved, while one is asked
        self._was_silent = False  # a marker was taken inside a transaction of which no more came
        self._waited = 0.0  # seconds that the marker has waited
        # Splits so far of tables whose list comes in several messages; no marker comes between these.
        self._arriving: dict[str, tuple[CompletedSplit, ...]] = {}

    @property
    def tables(self) -> Mapping[str, StreamTable]:
        """The tables of the incremental split, by name."""
        return self._tables.by_name

    # --- the doors ---

    def message(self, message: Message) -> list[Effect]:
        """Take a message about the stream."""
        match message:
            case IncludeTable():
                return self._include(message)
            case ExcludeTable(table_id=table_id, generation=generation):
                table = self.tables.get(table_id)
                if table is not None and table.generation == generation:
                    self._tables.remove(table_id)
                return self.go_on()
            case PauseTable(table_id=table_id, generation=generation):
                table = self.tables.get(table_id)
                if table is not None and table.generation == generation:
                    self._tables.put(dataclasses.replace(table, pausing=True))
                return self.go_on()
            case StopStream():
                self.stopped = True
                return []
            case LimitStream(stop=stop):
                self.stop, self.stop_place, self.at_stop = stop, None, False
                return self.go_on()
            case EndStream(place=place):
                # Up to the place, main may have to pass transactions that it has already taken.
                self.stop_place, self.at_stop = place, False
                return self.go_on()
        raise ProtocolError(f"{self.name} has no rule for message {type(message).__name__}")

    def passed(self, now: float) -> None:
        """A fact was taken at this time."""
        passed, self._now = min(max(0.0, now - self._now), LOOK_SECONDS), now
        silent = not self._moved and any(cursor.asked for cursor in self.cursors.values())
        self._still = self._still + passed if silent else 0.0
        self._waited = self._waited + passed if self._marker_waits else 0.0
        self._moved = False

    # --- tables and cursors ---

    def _include(self, message: IncludeTable) -> list[Effect]:
        held = self.tables.get(message.table_id)
        if held is not None and held.generation >= message.generation:
            raise ProtocolError(
                f"{self.name} was given generation {message.generation} of {message.table_id},"
                f" and holds {held.generation}"
            )
        splits = self._arriving.pop(message.table_id, ()) + message.splits
        if message.more:
            self._arriving[message.table_id] = splits
            return []
        self.stopped = False  # main must still reach the new table's highest high
        self._tables.put(
            StreamTable(
                table_id=message.table_id,
                generation=message.generation,
                schema=message.schema,
                low=message.low,
                high=message.high,
                splits=splits,
                looked_at=message.looked_at,
            )
        )
        return self.go_on()

    def changes(self, event: ChangesRead) -> list[Effect]:
        """Take the answer of a cursor."""
        cursor, read = self.cursors.get(event.cursor), event.changes
        if cursor is None or not cursor.asked:
            raise ProtocolError(f"{self.name} got changes of cursor {event.cursor} that it did not ask for")
        self._moved = read.position != cursor.position
        resumes, self._was_silent = self._moved and self._was_silent, self._was_silent and not self._moved
        cursor.take(read)
        if event.cursor == MAIN and read.stopped:
            # That read may have begun before the place of the stop was known.
            self.at_stop = self._asked_stop == self._stop()
        effects: list[Effect] = [Send(receiver=ENUMERATOR, message=StreamCaughtUp())] if resumes else []

        def table_of(item: TableChanges | SchemaChange | TableFault) -> StreamTable | None:
            """The table, if this read was for it: not excluded, and of no newer generation."""
            table = self.tables.get(item.table_id)
            return table if table and table.generation == item.generation and table.cursor == event.cursor else None

        for change in read.schemas:
            if table := table_of(change):
                self._tables.add_schema(change.new)
                self._tables.put(dataclasses.replace(table, looked_at=None, schema=change.new))
        for changed in read.batches:
            if table_of(changed):
                records = Records(
                    table_id=changed.table_id,
                    generation=changed.generation,
                    schema=changed.schema_hash,
                    rows=changed.rows,
                    seq_base=self.seq,
                    body=changed.batch,
                )
                effects.append(Send(receiver=self._outlet.writer_of(changed.table_id), message=records))
                effects += self._outlet.count(changed.size)
        self.seq += read.rows
        if event.cursor == MAIN and self._backlog is not None:
            self._backlog += read.rows
            if read.idle:
                if self._backlog:
                    effects.append(Send(receiver=ENUMERATOR, message=StreamCaughtUp()))
                self._backlog = None
        for fault in read.faults:
            if table_of(fault):
                self._tables.remove(fault.table_id)
                state = TableState.RESTART if isinstance(fault, GenerationEnded) else TableState.FAULT
                effects.append(self._report(fault.table_id, fault.generation, state, fault.cause))
        return effects + self.go_on()

    def go_on(self) -> list[Effect]:
        """Let cursors meet, tables join, rounds start and reads begin. Called after each fact that may allow one."""
        effects = self._let_go() + self._meet() + self._assign_cursors()
        effects += self._give_up_catch_up() + self._meet()  # catch-up may begin where main stands
        main = self.cursors.get(MAIN)
        if main is not None:
            effects += self._arrivals(main.position)
        return effects + self._end(main) + self.ask()

    def _let_go(self) -> list[Effect]:
        """Let go of each table that is to pause, where its cursor's position is settled and between two
        transactions."""
        effects: list[Effect] = []
        for name in list(self._tables.pausing):
            table = self.tables[name]
            cursor = self.cursors.get(table.cursor) if table.cursor is not None else None
            if cursor is not None and (cursor.asked or cursor.position.inside):
                continue
            low, high = table.low, table.high
            try:
                if cursor is not None and (table.live or low.passed_by(cursor.position)):
                    low = Low.at(cursor.position)
            except SourceLost as error:
                effects.append(self._incomparable(table, error))
                continue
            if cursor is not None and table.live:
                high = High.at(cursor.position)
            self._tables.remove(name)
            groups = pieces(table.splits)
            effects += [
                Send(
                    receiver=ENUMERATOR,
                    message=TablePaused(
                        table_id=name,
                        generation=table.generation,
                        schema=table.schema,
                        low=low,
                        high=high,
                        splits=tuple(group),
                        looked_at=table.looked_at,
                        more=at < len(groups),
                    ),
                )
                for at, group in enumerate(groups, start=1)
            ]
        return effects

    def _end(self, main: Cursor | None) -> list[Effect]:
        """At the stop: report each table that can't be shown there, then, once, the end of the stream."""
        place = self.stop_place
        if place is None or main is None or main.asked or not self.at_stop:
            return []
        effects: list[Effect] = []
        passed = self._began_after(place)
        for table in list(self.tables.values()):
            if passed or (table.cursor == MAIN and not table.live):
                late, at = ("the stream began", self.begin) if passed else ("its snapshot ended", table.high)
                cause = Cause(
                    Code.PLACE,
                    f"{table.table_id} can't be shown at the stop, {place}: {late} at {at}, after it",
                    "copy it by another pipeline, with a later stop or an earlier start",
                )
                self._tables.remove(table.table_id)
                effects.append(self._report(table.table_id, table.generation, TableState.FAULT, cause))
        if not self.ended:
            self.ended = True
            effects.append(Send(receiver=ENUMERATOR, message=StreamStopped()))
        return effects

    def _began_after(self, place: Position) -> bool:
        try:
            return self.begin is not None and beyond(self.begin, place)
        except SourceLost:  # it began before the source changed, so before the stop
            return False

    def _arrivals(self, position: Position) -> list[Effect]:
        """Report every table whose highest high main has reached, or can no longer reach."""
        effects: list[Effect] = []

        def arrive(table: StreamTable) -> bool:
            reports = self._arrive(table, position)
            effects.extend(reports)
            return bool(reports)

        self._tables.arrivals(arrive)
        return effects

    def _arrive(self, table: StreamTable, position: Position) -> list[Effect]:
        """A table is live when main is past its highest high; a high of another server history can't be reached."""
        try:
            if not table.high.reached_by(position):
                return []
        except SourceLost as error:
            return [self._incomparable(table, error)]
        # Main is past every chunk's low and high for good. From here on its own position serves as the low: the chunks'
        # low might not compare after a change of server (MariaDB's have no GTIDs).
        self._tables.put(dataclasses.replace(table, live=True, splits=(), low=Low.at(position)))
        return [self._report(table.table_id, table.generation, TableState.LIVE)]

    def _incomparable(self, table: StreamTable, error: SourceLost) -> Send:
        """Report a table whose watermarks are of another server than main's position, and can't be compared with it.

        Read again, its new watermarks can be compared; but not once main is at the stop.
        """
        self._tables.remove(table.table_id)
        if not self.at_stop or self.stop_place is None:
            return self._report(table.table_id, table.generation, TableState.RESTART, error.cause)
        cause = error.cause.before(f"{table.table_id} can't be shown at the stop, {self.stop_place}: ")
        return self._report(table.table_id, table.generation, TableState.FAULT, cause)

    def _meet(self) -> list[Effect]:
        main, catch_up = self.cursors.get(MAIN), self.cursors.get(CATCH_UP)
        if main is None or catch_up is None or catch_up.asked:
            return []
        if not self._tables.by_cursor[CATCH_UP]:
            met = True  # no table is left that catches up
        elif main.asked or main.position.inside or catch_up.position.inside:
            return []
        else:
            met = catch_up.position.same_place(main.position)
        if not met:
            return []
        if self._tables.by_cursor[CATCH_UP]:
            main.position = main.position.joined(catch_up.position)
        for table in list(self._tables.by_cursor[CATCH_UP].values()):
            self._tables.put(dataclasses.replace(table, cursor=MAIN))
        del self.cursors[CATCH_UP]
        self.hold_main = False
        return [CloseCursor(cursor=CATCH_UP)]

    def _give_up_catch_up(self) -> list[Effect]:
        """Report every table that catches up, if the source changed and only one of the two cursors has followed it.

        Main can't reach their highs at the new server. To catch up first could last for ever: across servers only GTID
        sets compare, and where catch-up's set names more than main's, main would be held for a cursor that is not
        behind it.
        """
        main, catch_up = self.cursors.get(MAIN), self.cursors.get(CATCH_UP)
        if main is None or catch_up is None or main.position.server == catch_up.position.server:
            return []
        effects: list[Effect] = []
        for table in list(self._tables.by_cursor[CATCH_UP].values()):
            for cursor in (main, catch_up):
                try:
                    table.high.reached_by(cursor.position)
                except SourceLost as error:
                    effects.append(self._incomparable(table, error))
                    break
        return effects

    def _assign_cursors(self) -> list[Effect]:
        """Assign every waiting table its cursor, if main's position is settled."""
        waiting = self._tables.by_cursor[None]
        if not waiting:
            return []
        main = self.cursors.get(MAIN)
        if main is None:
            self.begin = next(iter(waiting.values())).low.start()
            main = self.cursors[MAIN] = Cursor(position=self.begin)
        if main.asked or main.position.inside:
            return []
        effects: list[Effect] = []
        begins = CATCH_UP not in self.cursors
        for table in [table for name, table in waiting.items() if begins or name not in self._tables.late]:
            try:
                passed = table.low.passed_by(main.position)
            except SourceLost as error:
                effects.append(self._incomparable(table, error))
                continue
            if passed:
                self._tables.late.add(table.table_id)
            else:
                self._tables.put(dataclasses.replace(table, cursor=MAIN))
        if begins and waiting:  # those that still wait are late
            first = next(iter(waiting.values())).low
            late = [table for table in waiting.values() if table.low.folds_with(first)]
            low = first
            for table in late[1:]:
                low = low.fold(table.low)
            self.cursors[CATCH_UP] = Cursor(position=low.start())
            for table in late:
                self._tables.put(dataclasses.replace(table, cursor=CATCH_UP))
        return effects

    def ask(self) -> list[Effect]:
        """Ask each cursor that may be read for its next changes."""
        effects: list[Effect] = []
        main, catch_up = self.cursors.get(MAIN), self.cursors.get(CATCH_UP)
        if self.stopped or self._outlet.unsaved.full:
            # Read only to the end of an open transaction: a marker may be waiting for it.
            waits = self._marker_waits or not self._outlet.unsaved.full
            for name, cursor in self.cursors.items():
                if not cursor.asked and cursor.position.inside and waits:
                    cursor.asked = True
                    # A read to a boundary may go over several transactions; catch-up must not pass main by that.
                    bound = main.position.boundary() if main is not None and cursor is catch_up else None
                    effects.append(self._read(name, cursor, until=bound, at_boundary=True))
            return effects
        waits = bool(self._tables.by_cursor[None])
        until: Position | None = None
        if catch_up is not None and main is not None and not catch_up.asked:
            here = main.position.boundary()
            behind = not catch_up.position.same_place(here)
            if behind and catch_up.position.past(here):
                behind, until = False, catch_up.position  # main reads up to catch-up, not the other way round
            elif behind and not self._waits_for(main, catch_up):
                catch_up.asked = True
                effects.append(self._read(CATCH_UP, catch_up, until=here))
            self.hold_main = until is None and (self.hold_main or not behind or _near(catch_up.position, here))
        if main is not None and not main.asked and not self.at_stop:
            held = self.hold_main and catch_up is not None and not main.position.inside
            if not held and not (catch_up is not None and self._waits_for(catch_up, main)):
                main.asked = True
                effects.append(self._read(MAIN, main, until=until, at_boundary=waits or self.hold_main))
        return effects

    def _waits_for(self, other: Cursor, cursor: Cursor) -> bool:
        """Whether this cursor must wait until the other has ended its transaction, since a marker waits: if the two
        ended theirs in turn, the marker might wait for ever."""
        return self._marker_waits and not cursor.position.inside and not self._cuts(other)

    def _read(self, name: str, cursor: Cursor, *, until: Position | None, at_boundary: bool = False) -> ReadChanges:
        stop = None
        if name == MAIN:
            stop = self._asked_stop = self._stop()
        return ReadChanges(
            cursor=name,
            after=cursor.position,
            routes=self._tables.routes(name),
            until=until,
            at_boundary=at_boundary,
            stop=stop,
        )

    def _stop(self) -> Stop | None:
        return self.stop if self.stop_place is None else Stop.at(self.stop_place)

    def _report(self, table_id: str, generation: int, state: TableState, cause: Cause | None = None) -> Send:
        report = TableReport(table_id=table_id, generation=generation, state=state, cause=cause)
        return Send(receiver=ENUMERATOR, message=report)

    # --- snapshots ---

    def ready(self) -> bool:
        """Whether every cursor is between two transactions, or inside one whose end can't be waited for."""
        given_up = self._still >= STILL_SECONDS or self._waited >= LONGEST_SECONDS
        self._marker_waits = not given_up and not all(map(self._cuts, self.cursors.values()))
        inside = any(cursor.position.inside for cursor in self.cursors.values())
        self._was_silent = self._was_silent or (inside and self._still >= STILL_SECONDS)
        return not self._marker_waits

    def _cuts(self, cursor: Cursor) -> bool:
        """Whether a marker may be taken where this cursor stands."""
        return not cursor.position.inside or cursor.rows_inside >= self.inside_rows

    def snapshot(self) -> State:
        """The incremental split's state. Chunks in progress are not in it: a restore reads them again."""
        head = {
            "seq": self.seq,
            "holdMain": self.hold_main,
            "stopped": self.stopped,
            "stop": to_plain(self.stop),
            "stopPlace": to_plain(self.stop_place),
            "atStop": self.at_stop,
            "ended": self.ended,
            "begin": to_plain(self.begin),
            "cursors": {
                name: {"position": c.position.to_json(), "sourceTime": c.source_time, "rowsInside": c.rows_inside}
                for name, c in self.cursors.items()
            },
        }
        values, schemas = self._tables.part()
        return State(head=head, values={"tables": values}, schemas=schemas)

    def restore(self, state: State) -> None:
        """Load the incremental split from `state` (made by `snapshot`). Called before `Began`."""
        if not state.head:
            return
        head = state.head
        self.seq, self.hold_main, self.stopped = head["seq"], head["holdMain"], head["stopped"]
        self.at_stop, self.ended = head["atStop"], head["ended"]
        self.stop = from_plain(Stop | None, head["stop"])
        self.stop_place = from_plain(Position | None, head["stopPlace"])
        self.begin = from_plain(Position | None, head["begin"])
        for name, c in head["cursors"].items():
            position = Position.from_json(c["position"])
            self.cursors[name] = Cursor(position=position, source_time=c["sourceTime"], rows_inside=c["rowsInside"])
        self._tables = StreamTables.restored(state)

    def begin_anew(self) -> None:
        """Drop every table and cursor of the part that was restored. Called before `Began`."""
        self._tables, self.cursors = StreamTables(), {}
        self.hold_main = self.stopped = self.at_stop = self.ended = False
        self.begin = None

    def cut(self) -> StreamCut:
        """The stream at this cut, as the enumerator gets it."""
        main = self.cursors.get(MAIN)
        return StreamCut(
            position=main.position if main else None,
            source_time=main.source_time if main else None,
            inside=any(c.position.inside for c in self.cursors.values()),
            tables=self._tables.cut(),
        )

    # --- invariants ---

    def check(self) -> None:
        """Raise ProtocolError where the state contradicts itself. Costs O(tables and splits)."""
        if CATCH_UP in self.cursors and MAIN not in self.cursors:
            raise ProtocolError(f"{self.name} has a cursor to catch up, and no main that it could meet")
        for name, table in self.tables.items():
            if table.cursor is not None and table.cursor not in self.cursors:
                raise ProtocolError(f"{name} is of cursor {table.cursor}, which does not exist")
        self._tables.check()
        if self.hold_main and CATCH_UP not in self.cursors:
            raise ProtocolError(f"{self.name} holds main back for no cursor")
        for name, cursor in self.cursors.items():
            if cursor.rows_inside < 0 or (cursor.rows_inside and not cursor.position.inside):
                raise ProtocolError(f"{name} has sent {cursor.rows_inside} rows inside of no transaction")
        if self.ended and self.stop_place is None:
            raise ProtocolError(f"{self.name} has ended, and the place of its stop is not known")


def _near(catch_up: Position, main: Position) -> bool:
    """Whether catch-up is so close behind main that holding main for one more read of catch-up costs little."""
    distance = main.distance(catch_up)
    return distance is not None and distance < NEAR_BYTES
