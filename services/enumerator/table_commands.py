"""What people command about single tables, carried out by the enumerator (pure).

- *Pause*. A table that is not yet in the incremental split keeps its splits, which are not handed out; those that are
  out may finish. A table of the incremental split is taken out of it between two transactions. Then its low is the
  place where it left, so it goes on there later, in the same generation and without a snapshot.
- *Resume*. The source is asked first whether it still has the changes since then; if not, the table must be read again.
- *Read again* and *retry* start the table's next generation; *forget* removes one that was dropped at the source.

A table that a person removed, or made Cutline forget, leaves its generation behind: one of that name that comes later
is the next generation, so that rows of the two are never mixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cutline.common.causes import Cause, Code
from cutline.common.commands.kinds import (
    ForgetTable,
    PauseTable,
    ReadTableAgain,
    Refusal,
    ResumeTable,
    RetryTable,
    TableWish,
    Wish,
)
from cutline.common.commands.rules import table_refusal, unknown_table
from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import Effect, Send
from cutline.common.mesh.messages import ExcludeTable, TablePaused
from cutline.common.mesh.messages import PauseTable as PauseMessage
from cutline.common.phases import CATCH_UP, PAUSED, QUARANTINED, SNAPSHOT, WAITING, Phase
from cutline.common.positions import Low
from cutline.common.store.command_records import Command
from cutline.services.enumerator.events import DescribeTable, FindPlace, Plan
from cutline.services.enumerator.splits import Splits
from cutline.services.enumerator.tables import STREAMED, Table

ASKED = Cause(Code.ASKED, "a person asked for it to be read again")
_PURGED = Cause(Code.PURGED, "the source has purged the changes that came while it was paused, so it is read again")
LOST = Cause(Code.LAKE, "the lake table lost data")
"""Why the Spark writer asks, which names the generation: once that is over, there is nothing to do."""


class EnumeratorForCommands(Protocol):
    """What commands need of the enumerator: `Enumerator`, the one that has it, says what each means. It is named here
    since machine.py imports this file."""

    plan: Plan
    splits: Splits

    @property
    def tables(self) -> Mapping[str, Table]:
        """Every table of the pipeline."""

    def put(self, table: Table) -> Table:
        """Take another state of a table."""

    def forget(self, table: Table) -> None:
        """Know nothing more of a table than its generation."""

    def number_after(self, generation: int) -> int:
        """The number of the generation that follows."""

    def include(self, table: Table, looked_at: Low | None = None) -> list[Effect]:
        """Hand a table to the incremental split."""

    def fail(self, table_id: str, generation: int, cause: Cause, restart: bool) -> list[Effect]:
        """Quarantine a table, or read it again."""

    def stop_when_over(self) -> list[Effect]:
        """Stop a stream that only replays the snapshot."""


def carry_out(machine: EnumeratorForCommands, command: Command) -> list[Effect] | Refusal:
    """Carry a command out, or refuse it and change nothing."""
    wish = command.wish
    if isinstance(wish, Refusal):
        return wish
    if not isinstance(wish, TableWish):
        raise ProtocolError(f"command {command.n} ({command.kind}) is not about a table")
    table = machine.tables.get(wish.table)
    if table is not None and isinstance(wish, ReadTableAgain) and wish.generation is not None:
        # also of a paused table, which stays paused
        return machine.fail(wish.table, wish.generation, LOST, restart=True)
    refusal = table_refusal(type(wish), wish.table, None if table is None else _phase(table, wish))
    if refusal is not None or table is None:
        return refusal or unknown_table(wish.table)
    return _HANDLERS[type(wish)](machine, table)


def _phase(table: Table, wish: Wish) -> Phase:
    """The phase that a person's wish is about: a table whose pause is on its way is paused, and one that is about to
    resume can be paused, and not be resumed twice."""
    if table.pausing:
        return PAUSED
    return CATCH_UP if table.resuming and isinstance(wish, PauseTable | ResumeTable) else table.phase


def _pause(machine: EnumeratorForCommands, table: Table) -> list[Effect]:
    name = table.table_id
    if table.phase in STREAMED:
        machine.put(dataclasses.replace(table, pausing=True))
        pause = PauseMessage(table_id=name, generation=table.generation)
        return [Send(receiver=machine.plan.stream_reader, message=pause)]
    machine.put(dataclasses.replace(table, phase=PAUSED, resuming=False))
    machine.splits.shelve(name)
    return machine.stop_when_over()


def _resume(machine: EnumeratorForCommands, table: Table) -> list[Effect]:
    name = table.table_id
    if table.pausing:  # its report is on the way
        machine.put(dataclasses.replace(table, pausing=False))
        return []
    if table.streams_again:
        return find_place(machine.put(dataclasses.replace(table, resuming=True)))
    phase = SNAPSHOT if table.splitter is not None else WAITING
    machine.put(dataclasses.replace(table, phase=phase))
    machine.splits.unshelve(name)
    if table.schema is None:
        return [DescribeTable(table_id=name, generation=table.generation)]
    return []


def find_place(table: Table) -> list[Effect]:
    """Ask whether the source still has what a paused table missed."""
    assert table.low is not None
    return [FindPlace(table_id=table.table_id, generation=table.generation, low=table.low)]


def place_found(machine: EnumeratorForCommands, table_id: str, generation: int, kept: bool) -> list[Effect]:
    """The answer: the table goes on in the stream, or is read again."""
    table = machine.tables.get(table_id)
    if table is None or table.generation != generation or not table.resuming:
        return []
    table = machine.put(dataclasses.replace(table, resuming=False))
    if kept:
        return machine.include(table, table.looked_at)
    machine.put(dataclasses.replace(table, phase=WAITING, splitter=None))
    return machine.fail(table_id, generation, _PURGED, restart=True)


def table_paused(machine: EnumeratorForCommands, report: TablePaused) -> list[Effect]:
    """The incremental split has let go of a table."""
    table = machine.tables.get(report.table_id)
    if table is None or table.generation != report.generation or table.phase not in STREAMED:
        return []  # late: of an older generation
    for split in report.splits:
        table = table.with_completed(split)
    if report.more:
        machine.put(table)
        return []
    left = dataclasses.replace(
        table, phase=PAUSED, pausing=False, schema=report.schema, low=report.low, high=report.high, cause=None,
        looked_at=report.looked_at,
    )  # fmt: skip
    if not table.pausing:  # resumed meanwhile
        return machine.include(left, report.looked_at)
    machine.put(left)
    return machine.stop_when_over()


def _read_again(machine: EnumeratorForCommands, table: Table) -> list[Effect]:
    name = table.table_id
    if table.phase == QUARANTINED:
        return _retry(machine, table)
    effects = machine.fail(name, table.generation, ASKED, restart=True)
    machine.put(dataclasses.replace(machine.tables[name], before=None))
    return effects


def _retry(machine: EnumeratorForCommands, table: Table) -> list[Effect]:
    """The next generation of a quarantined table; it may have other columns, also with `schema_changes: halt`."""
    again = machine.put(Table(table_id=table.table_id, generation=machine.number_after(table.generation)))
    return [DescribeTable(table_id=again.table_id, generation=again.generation)]


def reshape(machine: EnumeratorForCommands, table: Table, cause: Cause) -> list[Effect]:
    """The next generation of a table that has another rule now; a quarantine for the old rule ends."""
    if table.phase == QUARANTINED and table.cause is not None and table.cause.code is Code.RULE:
        return _retry(machine, table)
    return machine.fail(table.table_id, table.generation, cause, restart=True)


def _forget(machine: EnumeratorForCommands, table: Table) -> list[Effect]:
    return remove(machine, table)


_HANDLERS: Mapping[type[Wish], Callable[[EnumeratorForCommands, Table], list[Effect]]] = {
    PauseTable: _pause,
    ResumeTable: _resume,
    ReadTableAgain: _read_again,
    RetryTable: _retry,
    ForgetTable: _forget,
}


def remove(machine: EnumeratorForCommands, table: Table) -> list[Effect]:
    """The table leaves the pipeline: a person forgot it, or the definition no longer selects it."""
    name = table.table_id
    effects: list[Effect] = []
    if table.phase in STREAMED:
        exclude = ExcludeTable(table_id=name, generation=table.generation)
        effects.append(Send(receiver=machine.plan.stream_reader, message=exclude))
    machine.splits.drop(name)
    machine.forget(table)
    return [*effects, *machine.stop_when_over()]


def commands_in(head: Mapping[str, Any]) -> tuple[int, dict[int, tuple[str, str]]]:
    """By the head of a part: the number of the last command taken, and cause and remedy of those that were refused."""
    commands = head.get("commands", {"done": 0, "refused": []})
    return commands["done"], {n: (cause, remedy) for n, cause, remedy in commands["refused"]}
