"""The commands of a pipeline in the hands of its leader (pure): which one has its turn, and what became of it.

    queued -> asked | machine | checkpoint | epoch -> answered -> (outcome written)

Commands are taken in the order of their numbers, and their outcomes are written in that order, so that the newest
outcome alone tells a next leader where to go on. Commands about tables and limits, checkpoints and savepoints may be
taken before the ones ahead of them are finished; any other command is alone.

A command that only the Spark writer can carry out is *apart*: it changes no orders and nobody waits for it. Later ones
are finished before it; their outcomes name it as open, so that a next leader asks the Spark writer again.

A command is *cancelled* by a later one, `cancel_command`, as long as it has no effect that lasts: while it is queued,
while it awaits a checkpoint whose entry is not yet being written, or an epoch of which the same holds. That happens as
soon as the leader knows of the later command, which itself has its turn when all before it are finished, and tells then
what became of the other. A next leader sees in the journal what an earlier one has carried out, and does not cancel it.

- *asked*: the driver carries it out, or looks whether it can be.
- *machine*: the enumerator has taken it. It is answered once the journal holds a checkpoint whose part has it, also if
  it is refused: so a leader that was deposed, and does not know it yet, answers nothing.
- *checkpoint*: the checkpoint that carries its request is awaited.
- *epoch*: it changes how the next epoch begins (its base, the definition's version, or that there is one at all), and
  is answered once that epoch's entry is in the journal. A leader that dies before has changed nothing that lasts, and
  the next one takes the command again.

Whether a command makes sense now stands with its class in common/commands/kinds.py, which the API asks too. Commands
that need an epoch wait while one is opening; a later pause or delete fails them.

Two leaders may take the same command, so every step is idempotent: a version of the definition is put once, and a pause
or a restore that is repeated comes to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import cutline.common.commands.rules as rules
from cutline.common.causes import Cause, Code
from cutline.common.commands.kinds import (
    CancelCommand,
    CancelTable,
    ChooseAboutLake,
    Define,
    Delete,
    DeleteSavepoint,
    LeaveLake,
    Pause,
    ReadAgain,
    Refusal,
    Restore,
    Resume,
    RetryTable,
    Savepoint,
    SetLimits,
    Start,
    Stop,
    Wish,
)
from cutline.common.limits import Limits
from cutline.common.mesh.machine import Effect
from cutline.common.positions import Position
from cutline.common.store.command_records import Command, Orders
from cutline.common.store.records import Anew
from cutline.services.enumerator.events import (
    AskSparkWriter,
    BaseFound,
    CommandAnswered,
    CommandTaken,
    DefinitionPut,
    FindBase,
    FindOutcome,
    JournalRead,
    PutDefinition,
    ReleaseSavepoint,
    Settings,
    WriteOutcome,
)
from cutline.services.enumerator.requests import THE_STOP, Request
from cutline.services.enumerator.taken import (
    LeaderForAgenda,
    Step,
    Taken,
    afterwards,
    cancels,
    is_sparks,
    named,
    request_by,
    savepoint_of,
    withdrawn_by,
)


class Agenda:
    """The commands of one pipeline since the newest finished one."""

    def __init__(self) -> None:
        self.standing = Orders()  # after the newest outcome in the store
        self.finished = 0  # the number of that outcome's command
        self.queue: deque[Command] = deque()
        self.taken: deque[Taken] = deque()
        self.apart: dict[int, Taken] = {}  # by number: they wait for the Spark writer, nobody for them
        self.entered: int | None = None  # the command that the newest epoch in the journal carries out
        self.kept = 0  # the last command of the enumerator in the newest checkpoint when the journal was read
        self.kept_refused: Mapping[int, tuple[str, str]] = {}  # those of them that it refused

    # --- what the leader reads from it ---

    @property
    def running(self) -> int | None:
        """The number of the command that has its turn."""
        return self.taken[0].command.n if self.taken else None

    @property
    def last(self) -> int:
        """The number of the newest command that is known."""
        in_turn = self.queue[-1].n if self.queue else self.taken[-1].command.n if self.taken else self.finished
        return max(in_turn, self.finished, *self.apart)

    def waiting(self) -> dict[int, str]:
        """What each command that has no outcome waits for, by its number."""
        found = {taken.command.n: taken.waits_for for taken in self.taken}
        if self.queue:
            ahead = self.taken[-1].command if self.taken else None
            why = "an epoch" if ahead is None else named(ahead)
            found |= {command.n: why for command in self.queue}
        return found | dict.fromkeys(self.apart, "the Spark writer")

    @property
    def commanded(self) -> int | None:
        """The command that the next epoch carries out."""
        awaited = self._next_epoch()
        return None if awaited is None else awaited.command.n

    @property
    def orders(self) -> Orders:
        """The standing orders, with those of commands that are answered and whose outcome is on its way."""
        answered = [taken for taken in self.taken if taken.step == Step.ANSWERED]
        return answered[-1].orders if answered else self.standing

    @property
    def leads(self) -> bool:
        """Whether an epoch is to be open."""
        return self.orders.mode == "running" or self._next_epoch() is not None

    @property
    def changing(self) -> bool:
        """Whether the epoch that is open must end for a command."""
        awaited = self._next_epoch()
        return not self.leads or (awaited is not None and not awaited.begun)

    def _next_epoch(self) -> Taken | None:
        """The command that changes how the next epoch begins."""
        return next((taken for taken in self.taken if taken.step == Step.EPOCH), None)

    @property
    def settings(self) -> Settings | None:
        """The settings of the next epoch, if a command changes them."""
        awaited = self._next_epoch()
        return None if awaited is None else awaited.settings

    @property
    def limits(self) -> Limits | None:
        """The limits of the next epoch, if a command has set them; else the definition's are in force."""
        awaited = self._next_epoch()
        limits = (self.orders if awaited is None else awaited.orders).limits
        return None if limits is None else Limits(**limits)

    @property
    def definition(self) -> int:
        """The version of the definition that the next epoch uses."""
        awaited = self._next_epoch()
        return self.orders.definition if awaited is None else awaited.orders.definition

    def base(self, newest: int | None) -> int | None:
        """The checkpoint from which the next epoch starts; `newest` is the newest one."""
        awaited = self._next_epoch()
        return newest if awaited is None or awaited.base is None else awaited.base

    def anew(self, as_before: Anew | None) -> Anew | None:
        """Why the next epoch begins anew, if it does; `as_before`: if no command says otherwise."""
        awaited = self._next_epoch()
        if awaited is not None and awaited.anew:
            return "asked"
        return as_before if awaited is None or awaited.base is None else None

    def keeps(self, request: Request | None) -> bool:
        """Whether the checkpoint that answers this request is a savepoint."""
        if request == THE_STOP:
            return True
        taken = self._requested(request)
        return taken is not None and isinstance(taken.command.wish, Savepoint | Stop) and not taken.unkept

    def name_of(self, request: Request | None) -> str | None:
        """The name of the savepoint that answers this request."""
        taken = self._requested(request)
        return None if taken is None else savepoint_of(taken.command)

    def awaits(self, request: Request) -> bool:
        """Whether a request of the leader is still wanted: it is no command's, or that command awaits a checkpoint."""
        return request == THE_STOP or self._requested(request) is not None

    def _requested(self, request: Request | None) -> Taken | None:
        found = (taken for taken in self.taken if taken.step == Step.CHECKPOINT)
        return next((taken for taken in found if request_by(taken.command) == request), None)

    # --- facts ---

    def forget(self) -> None:
        """The lease is lost."""
        self.queue.clear()
        self.taken.clear()
        self.apart.clear()

    def read(self, event: JournalRead) -> None:
        """The journal and the commands were read, before an epoch."""
        self.finished, self.standing, self.entered = event.finished, event.orders, event.entered
        self.kept, self.kept_refused = event.kept, event.refused
        left_open = {command.n: command for command in event.open}
        self.apart = {n: taken for n, taken in self.apart.items() if n > event.finished or n in left_open}
        for n, command in left_open.items():
            self.apart.setdefault(n, Taken(command=command, step=Step.ASKED, orders=self.standing))
        for taken in self.apart.values():
            taken.writing = False
        self._take_anew(event.commands)
        for taken in self.taken:
            taken.writing = False
            taken.begun = taken.step == Step.EPOCH

    def epoch_over(self) -> None:
        """No epoch is open any more, and it may last until the next one: what had a checkpoint of it to wait for has
        its turn again, so that it is refused, or waits, as any command does then."""
        self._take_anew(())

    def _take_anew(self, more: tuple[Command, ...]) -> None:
        """Keep the commands that were taken and wait for no checkpoint of the last epoch; queue all others, and
        `more`."""
        kept = [
            taken
            for taken in self.taken
            if taken.command.n > self.finished and (taken.alone or taken.step == Step.ANSWERED)
        ]
        known = [taken.command for taken in self.taken] + list(self.queue)
        commands = {command.n: command for command in (*known, *more) if command.n > self.finished}
        in_turn = [n for n in sorted(commands) if n not in self.apart]
        first = [taken for taken, n in zip(kept, in_turn, strict=False) if taken.command.n == n]
        self.taken = deque(first)
        self.queue = deque(commands[n] for n in in_turn[len(first) :])

    def accept(self, command: Command) -> None:
        """The store has a command; any but the next one is known, or will be told again."""
        if command.n == self.last + 1:
            self.queue.append(command)

    def answered(self, event: CommandAnswered) -> None:
        """The driver has carried a command out, or could not."""
        if (taken := self._asked(event.n)) is not None:
            taken.answer(event.state, event.cause, event.remedy, event.result)

    def base_found(self, event: BaseFound, leader: LeaderForAgenda) -> None:
        """A restore can be done: with the next epoch, or whenever there is one."""
        if (taken := self._asked(event.n)) is None:
            return
        wish = taken.command.wish
        assert isinstance(wish, Restore)
        base = wish.checkpoint
        result = {"checkpoint": base} | ({} if event.warning is None else {"warning": event.warning})
        if self.standing.mode == "running":
            taken.step, taken.base, taken.result = Step.EPOCH, base, result
        else:
            taken.orders = replace(self.standing, base=base, base_after=leader.tail, anew=False)
            taken.answer("done", result=result)

    def definition_put(self, event: DefinitionPut, leader: LeaderForAgenda) -> None:
        """A version of the definition is there: it comes into force with the next epoch, which a checkpoint precedes so
        that no work is repeated."""
        if (taken := self._asked(event.n)) is None:
            return
        taken.settings = event.settings
        limits = self.standing.limits if event.limits is None else dict(event.limits)
        taken.orders = replace(self.standing, definition=event.version, limits=limits)
        if self.standing.mode != "running":
            taken.answer("done", result={"version": event.version})
        elif leader.leads:
            taken.step = Step.CHECKPOINT
            leader.checkpoints.request(request_by(taken.command))
        else:
            taken.step = Step.EPOCH

    def _asked(self, n: int) -> Taken | None:
        asked = (*self.taken, *self.apart.values())
        return next((t for t in asked if t.command.n == n and t.step == Step.ASKED), None)

    def checkpoint_written(
        self, slot: int, request: Request | None, commands: int, refused: Mapping[int, tuple[str, str]]
    ) -> None:
        """Checkpoint `slot` is in the journal. It answers `request`, and the enumerator's part in it has all commands
        up to `commands`, of which it refused some."""
        if (asked := self._requested(request)) is not None:
            self._has_checkpoint(asked, slot)
        for taken in self.taken:
            if taken.step == Step.MACHINE and taken.command.n <= commands:
                if (refusal := refused.get(taken.command.n)) is not None:
                    taken.answer("refused", *refusal)
                else:
                    taken.answer("done")

    def _has_checkpoint(self, taken: Taken, slot: int) -> None:
        wish = taken.command.wish
        if isinstance(wish, Define | CancelTable):
            taken.step = Step.EPOCH
            return
        if isinstance(wish, Pause | Stop) and wish.rule.mode is not None:
            taken.orders = replace(self.standing, mode=wish.rule.mode)
        taken.answer("done", result={"checkpoint": slot, "name": savepoint_of(taken.command)})

    def give_up(self, request: Request, at: Position | None) -> bool:
        """The source has fallen silent inside a transaction, at this place. True if the request is answered: it fails,
        or the checkpoint at hand will do, as for a stop without a savepoint's name; False if no command has it."""
        taken = self._requested(request)
        if taken is None:
            return False
        if taken.command.wish == Stop():
            taken.unkept = True
            return True
        taken.fail_silent(at)
        return True

    def epoch_written(self) -> None:
        """The entry of an epoch that was proposed after the last `read` is in the journal."""
        taken = self._next_epoch()
        if taken is None or not taken.begun:
            return
        wish, result = taken.command.wish, dict[str, Any]()
        if isinstance(wish, Restore):
            result = dict(taken.result or {"checkpoint": taken.base})
        elif isinstance(wish, Define | CancelTable):
            result = {"version": taken.orders.definition}
        taken.answer("done", result=result)

    def outcome_written(self, n: int) -> bool:
        """Our outcome of command `n` is in the store; False if it is not one that was being written."""
        if n in self.apart and self.apart[n].writing:
            del self.apart[n]
            self.finished = max(self.finished, n)
            return True
        if not self.taken or self.taken[0].command.n != n or not self.taken[0].writing:
            return False
        taken = self.taken.popleft()
        self.finished, self.standing = n, taken.orders
        return True

    def outcome_refused(self, n: int) -> bool:
        """Another leader has finished command `n`, though by our agenda it is the first one; False if it is not."""
        if n in self.apart:
            del self.apart[n]
            return n > self.finished
        if not self.taken or self.taken[0].command.n != n:
            return False
        self.taken[0].writing = False
        return True

    # --- orders ---

    def go_on(self, leader: LeaderForAgenda, now: float) -> list[Effect]:
        """Take what can be taken, and write the outcome that is due. Called after each fact."""
        effects = self._cancel(leader) + self._change_epoch(leader)
        while self.queue and not leader.reads and (more := self._take(leader, now)) is not None:
            effects += more + self._change_epoch(leader)
        first = self.taken[0] if self.taken else None
        if first is not None and first.step == Step.ANSWERED and not first.writing and not leader.reads:
            first.writing, first.orders = True, first.orders.after(self.standing, now)
            outcome = first.outcome(first.orders, self._open(first.command.n), now)
            effects.append(WriteOutcome(outcome=outcome))
        return effects + self._go_on_apart(leader, now)

    def _open(self, n: int) -> tuple[int, ...]:
        """The commands before `n` that have no outcome when `n` has its own."""
        return tuple(sorted(other for other in self.apart if other < n))

    def _go_on_apart(self, leader: LeaderForAgenda, now: float) -> list[Effect]:
        """Ask the Spark writer what it was not asked yet; write the outcomes that are due. One in the future of the
        newest outcome waits until every command before it is finished, or apart too."""
        if self.orders.mode == "deleting":
            self.apart.clear()  # nobody is left to read what became of them
        effects: list[Effect] = []
        ahead = [*(taken.command.n for taken in self.taken), *(command.n for command in self.queue)]
        for n, taken in sorted(self.apart.items()):
            if taken.step == Step.ASKED and not taken.begun:
                taken.begun = True
                effects.append(AskSparkWriter(command=taken.command))
            due = n < self.finished or n < min(ahead, default=n + 1)
            if taken.step == Step.ANSWERED and due and not taken.writing and not leader.reads:
                taken.writing = True
                outcome = taken.outcome(self.standing, self._open(n), now)
                effects.append(WriteOutcome(outcome=outcome))
        return effects

    def _cancel(self, leader: LeaderForAgenda) -> list[Effect]:
        """Cancel what a later command withdraws, and what has no effect that lasts."""
        effects: list[Effect] = []
        for cancel in [command for command in self.queue if isinstance(command.wish, CancelCommand)]:
            target = next((taken for taken in self.taken if cancels(cancel, taken.command)), None)
            if target is None or not self._has_no_effect(target, leader):
                continue
            if target.step == Step.CHECKPOINT:
                leader.checkpoints.withdraw(request_by(target.command))
            restarts = target.step == Step.EPOCH and target.begun and leader.waits and not leader.still
            target.orders = self.standing
            target.answer("cancelled", *withdrawn_by(cancel))
            if restarts and not leader.halted:
                effects += leader.begin_anew(Cause(Code.ASKED, f"{named(target.command)} was cancelled"))
        return effects

    def _has_no_effect(self, taken: Taken, leader: LeaderForAgenda) -> bool:
        """Whether a command that was taken can still be cancelled."""
        if self._lasts(taken.command, leader):
            return False
        if taken.step == Step.ASKED:
            return isinstance(taken.command.wish, Restore)
        return taken.step == Step.CHECKPOINT or (taken.step == Step.EPOCH and not leader.proposes)

    def _lasts(self, command: Command, leader: LeaderForAgenda) -> bool:
        """Whether the journal has the effect of a command without an outcome, or may have it: its leader has died, or
        does not know whether an entry is written."""
        in_part = command.taken == "machine"
        if command.n == self.entered or (in_part and command.n <= self.kept):
            return True
        return leader.checkpoints.may_have(command.n, in_part=in_part, leads=leader.leads)

    def _change_epoch(self, leader: LeaderForAgenda) -> list[Effect]:
        """End the epoch, or begin the next one, for a command that was taken."""
        for taken in self.taken:
            if taken.step == Step.CHECKPOINT and taken.alone and leader.waits:
                self._without_checkpoint(taken, leader)
            if taken.step == Step.EPOCH and leader.waits and not leader.still and (ends := self._ending(leader)):
                taken.answer("failed", f"no epoch could begin before {named(ends)}", afterwards(ends))
                taken.orders = self.standing
        if leader.reads or leader.proposes:
            return []
        awaited = self._next_epoch()
        if awaited is not None and not awaited.begun:
            return leader.begin_anew(Cause(Code.ASKED, named(awaited.command)))
        if not self.leads and not leader.still:
            return leader.stand_still(Cause(Code.ASKED, named(self.taken[-1].command)))
        return []

    def _without_checkpoint(self, taken: Taken, leader: LeaderForAgenda) -> None:
        """The epoch that was to take the last checkpoint is over."""
        wish = taken.command.wish
        if isinstance(wish, Stop) and not leader.halted and not self._ending(leader):
            return  # the next epoch takes it
        leader.checkpoints.withdraw(request_by(taken.command))
        if isinstance(wish, Pause) or (wish == Stop() and leader.halted):
            taken.orders = replace(self.standing, mode="paused" if isinstance(wish, Pause) else "stopped")
            taken.answer("done", result={"checkpoint": leader.base, "name": None})
        elif isinstance(wish, Stop):
            remedy = "pause it, or stop it without a savepoint's name"
            taken.answer("failed", "the pipeline could take no savepoint", remedy)
        else:
            taken.step = Step.EPOCH

    def _ending(self, leader: LeaderForAgenda) -> Command | None:
        """The command that waits to pause or to delete the pipeline, and that nobody has cancelled."""
        waiting = (command for command in self.queue if isinstance(command.wish, Pause | Delete))
        return next((command for command in waiting if self._cancelled_by(command, leader) is None), None)

    def _take(self, leader: LeaderForAgenda, now: float) -> list[Effect] | None:
        """Take the first command of the queue; None if it has to wait."""
        command = self.queue[0]
        wish = command.wish
        if self.standing.mode != "deleting" and (
            isinstance(wish, ChooseAboutLake) or is_sparks(wish, leader)
        ):
            self.queue.popleft()
            self.apart[command.n] = Taken(command=command, step=Step.ASKED, orders=self.standing)
            return []
        if self.taken and self.taken[-1].alone:
            return None
        # A table to retry may be the Spark writer's, which only the open epoch tells.
        if command.taken == "machine" and not isinstance(wish, RetryTable) and command.n <= self.kept:
            refusal = self.kept_refused.get(command.n)
            self._begin(command, Step.ANSWERED).answer("refused" if refusal else "done", *(refusal or ()))
            return []
        if (cancel := self._cancelled_by(command, leader)) is not None:
            self._begin(command, Step.ANSWERED).answer("cancelled", *withdrawn_by(cancel))
            return []
        if command.taken != "alone":
            return self._take_in_epoch(command, leader, now)
        if self.taken or leader.proposes:
            return None
        if (refusal := self._refusal(wish, leader)) is not None:
            return self._refuse(command, *refusal)
        return self._take_alone(command, wish, leader)

    def _take_alone(self, command: Command, wish: Wish | Refusal, leader: LeaderForAgenda) -> list[Effect]:
        """Take a command beside which there is no other."""
        standing = self.standing
        match wish:
            case SetLimits():
                # standing orders: in force at once, and for every epoch until others are asked for
                self._begin(command, Step.ANSWERED, replace(standing, limits=wish.arguments())).answer("done")
            case Define() | CancelTable():
                return self._ask(command, PutDefinition(command=command, in_force=standing.definition))
            case Restore():
                return self._ask(command, FindBase(command=command, definition=standing.definition))
            case DeleteSavepoint():
                return self._ask(command, ReleaseSavepoint(command=command))
            case CancelCommand():
                return self._ask(command, FindOutcome(command=command))
            case Delete(purge=purge):
                orders = replace(standing, mode="deleting", purge=purge)
                self._begin(command, Step.ANSWERED, orders).answer("done")
            case LeaveLake():
                self._begin(command, Step.ANSWERED, replace(standing, purge=False)).answer("done")
            case Resume() | Start():
                orders = replace(standing, mode="running", base=None, base_after=None, anew=False)
                taken = self._begin(command, Step.EPOCH, orders)
                taken.base, taken.anew = standing.base, standing.anew
            case ReadAgain():
                return self._take_read_again(command)
            case _:
                return self._take_pause(command, leader)
        return []

    def _refusal(self, wish: Wish | Refusal, leader: LeaderForAgenda) -> Refusal | None:
        if isinstance(wish, Refusal):
            return wish
        ended = leader.checkpoints.ended is not None or (leader.enumerator is not None and leader.enumerator.ended)
        return wish.refusal(rules.state(self.standing.mode, halted=leader.halted, ended=ended))

    def _cancelled_by(self, command: Command, leader: LeaderForAgenda) -> Command | None:
        """The later command that cancels this one, which was not taken yet, nor carried out by a leader before."""
        if isinstance(command.wish, CancelCommand) or self._lasts(command, leader):
            return None
        if isinstance(command.wish, DeleteSavepoint) and not self.taken:
            return None  # its turn may have come before, with a leader that died before the outcome
        return next((later for later in self.queue if cancels(later, command)), None)

    def _take_in_epoch(self, command: Command, leader: LeaderForAgenda, now: float) -> list[Effect] | None:
        wish = command.wish
        if (refusal := self._refusal(wish, leader)) is not None:
            return self._refuse(command, *refusal)
        if leader.leads:
            if command.taken == "checkpoint":
                leader.checkpoints.ends(wish.run if isinstance(wish, Savepoint) else None)
                return self._await_checkpoint(command, leader)
            assert leader.enumerator is not None
            self._begin(command, Step.MACHINE)
            if command.n > leader.enumerator.commands_done:
                return leader.tell(CommandTaken(command=command), now)
            self.checkpoint_written(0, None, command.n, leader.enumerator.refused)  # the epoch's base has it
            return []
        if leader.waits and (ends := self._ending(leader)):
            return self._refuse(command, f"no epoch was open before {named(ends)}", afterwards(ends))
        return None

    def _take_read_again(self, command: Command) -> list[Effect]:
        """Every table is read again in the next epoch, now or once the pipeline is resumed; a restore that waits for
        that epoch keeps its base."""
        if self.standing.mode == "running":
            self._begin(command, Step.EPOCH).anew = True
        else:
            self._begin(command, Step.ANSWERED, replace(self.standing, anew=True)).answer("done")
        return []

    def _take_pause(self, command: Command, leader: LeaderForAgenda) -> list[Effect]:
        """Take a pause or a stop."""
        if self.standing.mode != "running":  # a paused pipeline is stopped
            taken = self._begin(command, Step.ANSWERED, replace(self.standing, mode="stopped"))
            taken.answer("done", result={"checkpoint": leader.base, "name": None})
            return []
        return self._await_checkpoint(command, leader)

    def _await_checkpoint(self, command: Command, leader: LeaderForAgenda) -> list[Effect]:
        """Await the checkpoint that answers the command, unless the base is that one."""
        taken = self._begin(command, Step.CHECKPOINT)
        if leader.checkpoints.answered == request_by(command) and leader.base is not None:
            self._has_checkpoint(taken, leader.base)
        else:
            leader.checkpoints.request(request_by(command))
        return []

    def _begin(self, command: Command, step: Step, orders: Orders | None = None) -> Taken:
        self.queue.popleft()
        taken = Taken(command=command, step=step, orders=orders or self.standing)
        self.taken.append(taken)
        return taken

    def _ask(self, command: Command, question: Effect) -> list[Effect]:
        self._begin(command, Step.ASKED)
        return [question]

    def _refuse(self, command: Command, cause: str, remedy: str) -> list[Effect]:
        self._begin(command, Step.ANSWERED).answer("refused", cause, remedy)
        return []
