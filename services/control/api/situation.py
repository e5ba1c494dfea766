"""What a pipeline is doing, for the question whether a command makes sense now.

The mode is the one after all commands that were accepted, without those that a later one cancels: whoever stops a
pipeline can't pause it a moment later. The rules are those of common/commands/kinds.py, as the leader has them. A
command that passes here may still be refused by the leader, which knows more and decides in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutline.common.commands import rules
from cutline.common.commands.kinds import CancelCommand, Mode, PipelineState, TableWish, Wish
from cutline.common.status.pipeline_status import PipelineStatus, TableStatus
from cutline.common.store.commands import Command
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.problems import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A pipeline now: `state` after all accepted commands, the tables' states by name (from the status, else from the
    newest checkpoint), and the status parts."""

    pipeline: str
    state: PipelineState
    pending: tuple[Command, ...]
    tables: Mapping[str, TableStatus]
    status: PipelineStatus
    finished: int

    @property
    def shows_finished(self) -> bool:
        """Whether the leader has reported since it finished its last command, number `finished`: its reports come each
        half second. True without a leader's report."""
        leader = self.status.enumerator
        return leader.at is None or leader.commands.done >= self.finished

    def allow(self, wish: Wish) -> None:
        """Raise Refused (409, or 404 for an unknown table) if the command makes no sense now."""
        if (refusal := wish.refusal(self.state)) is not None:
            raise Refused(409, *refusal)
        if isinstance(wish, TableWish):
            phase = None if (known := self.tables.get(wish.table)) is None else known.phase
            if (refusal := rules.table_refusal(type(wish), wish.table, phase)) is not None:
                raise Refused(404 if phase is None else 409, *refusal)

    def need_table(self, table: str) -> None:
        """Raise Refused (404) if the pipeline captures no table of that name."""
        if table not in self.tables:
            raise Refused(404, *rules.unknown_table(table))


def look(found: PipelineStore, status: PipelineStatus, tables: Mapping[str, TableStatus]) -> Situation:
    """Read what the store has and put it together with the status. Blocks: call it in a thread."""
    newest = found.commands.newest_outcome()
    waiting = found.commands.list(after=newest.n if newest else 0, limit=1000)
    withdrawn = {wish.command for command in waiting if isinstance(wish := command.wish, CancelCommand)}
    pending = [command for command in waiting if command.n not in withdrawn]
    halted, ended = bool(status.enumerator.halted), status.enumerator.ended is not None
    mode: Mode = newest.orders.mode if newest else "running"
    for command in pending:
        if isinstance(wish := command.wish, Wish):
            mode = wish.rule.mode or mode
            halted = halted and not wish.rule.wakes
    return Situation(
        pipeline=found.name,
        state=rules.state(mode, halted=halted, ended=ended),
        pending=tuple(pending),
        tables=tables,
        status=status,
        finished=newest.n if newest else 0,
    )


def checkpoint(found: PipelineStore, number: int) -> CheckpointEntry | None:
    """A checkpoint of the journal, None if there is none of that number, or none any more. Blocks."""
    entry = found.entry(number) if number > 0 else None
    return entry if isinstance(entry, CheckpointEntry) else None
