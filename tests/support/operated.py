"""A leader with a person at it, for unit tests of commands."""

from __future__ import annotations

from typing import Any

from cutline.common.mesh.machine import Effect
from cutline.common.store.command_records import Command, Outcome
from cutline.services.enumerator.events import (
    CommandAccepted,
    JournalRead,
    OpenEpoch,
    OutcomeWritten,
    TablesFound,
    WriteOutcome,
)
from cutline.services.enumerator.states import EpochOpened
from tests.support.leader_bench import LeaderBench


class Operated(LeaderBench):
    """A leader with a person at it."""

    given = 0

    def command(self, kind: str, **arguments: Any) -> list[Effect]:
        """The store has the person's next command."""
        self.given += 1
        return self.tell(CommandAccepted(command=wish(self.given, kind, **arguments)))

    def outcomes(self) -> list[Outcome]:
        """The outcomes to be written so far."""
        return [effect.outcome for effect in self.effects if isinstance(effect, WriteOutcome)]

    def finish(self) -> Outcome:
        """The newest outcome is in the store."""
        outcome = self.outcomes()[-1]
        self.tell(OutcomeWritten(n=outcome.n))
        return outcome

    def next_epoch(self, tail: int, base: int | None, **known: Any) -> Any:
        """The journal is read, the entry written; return the epoch's opening."""
        self.tell(JournalRead(tail=tail, base=base, **known))
        self.written()
        opening = self.last(OpenEpoch)
        self.tell(EpochOpened(epoch=tail + 1, enumerator=None))
        self.tell(TablesFound(tables=()))
        return opening


def wish(n: int, kind: str, **arguments: Any) -> Command:
    return Command(n=n, kind=kind, arguments=arguments, by="ann", at=0.0)


def leading() -> Operated:
    bench = Operated()
    bench.lead()
    return bench


def checkpoint(bench: Operated) -> Any:
    """The next tick's checkpoint is complete and written; return its entry."""
    bench.wait(0.2)
    entry = bench.complete()
    bench.written()
    return entry
