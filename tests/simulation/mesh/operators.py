"""People who command a simulated pipeline at random moments, the driver's side of their commands, and what must hold.

Commands and outcomes are files of the real store in memory; the real agenda and the real enumerator take them. When
calm has come a person brings the pipeline back to running with every table, so that it can arrive.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.parts import load_part
from cutline.common.store.command_records import Command, Orders, Outcome
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry
from cutline.common.store.restoring import restorable
from cutline.services.enumerator.commanding import put_definition
from cutline.services.enumerator.events import (
    AskSparkWriter,
    BaseFound,
    CommandAccepted,
    CommandAnswered,
    DefinitionPut,
    FindBase,
    FindOutcome,
    OutcomeRefused,
    OutcomeWritten,
    PutDefinition,
    ReleaseSavepoint,
    WriteOutcome,
)
from cutline.services.enumerator.requests import CommandRequest
from tests.simulation.checks.chain import chain
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.service import SimulatedService
    from tests.simulation.mesh.world import World

KINDS = (
    "pause", "resume", "stop", "start", "restore", "restore", "define", "define", "checkpoint", "savepoint",
    "delete_savepoint", "limits", "pause_table", "pause_table", "pause_table", "resume_table", "resume_table",
    "read_table_again", "retry_table", "forget_table", "cancel_table", "dance",
)  # fmt: skip
CHANGING_COLUMNS = ("define", "cancel_table", "read_table_again", "retry_table")  # not where `halt` forbids it


class Operators:
    """The people of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"commands {world.seed}")  # apart, so that worlds without them draw the same
        plain = world.shape.start is None and world.shape.stop is None
        # The others are few, and meet rare things by themselves.
        self.active = self.rng.random() < (0.4 if plain else 0.1)
        self.store = world.store.open()
        # Not `define`, which would begin a life of its own: the world has one, which all its stores name.
        self.store._definitions.define({"tables": list(world.shape.tables)}, in_force=1)
        self.cancelled: dict[int, Command] = {}
        self.again = random.Random(f"read again {world.seed}")
        self.reads_again = self.may_read_again and self.again.random() < 0.3  # source.lost_position

    def begin(self, begin: float, chaos: float) -> None:
        """Plan what people do."""
        if self.active:
            for _ in range(self.rng.randrange(2, 10)):
                self.world.at(begin + self.rng.uniform(0.3, chaos), self.act)
        if self.again.random() < 0.1 and self.may_read_again:
            self.world.at(begin + self.again.uniform(0.3, chaos), self.wants, "read_again")
        if self.active:
            for _ in range(self.again.randrange(3)):
                self.world.at(begin + self.again.uniform(0.3, chaos), self.wants, "lake")
            for _ in range(self.again.randrange(4)):
                self.world.at(begin + self.again.uniform(0.3, chaos), self.cancel)

    @property
    def may_read_again(self) -> bool:
        """Whether every table can be read again: not where the columns may not change, or beyond a stop."""
        shape = self.world.shape
        return shape.start is None and shape.stop is None and shape.schema_changes != "halt"

    # --- people ---

    def act(self) -> None:
        """One person commands something, sensible or not."""
        rng, world = self.rng, self.world
        kind, arguments = rng.choice(KINDS), dict[str, Any]()
        if not world.steps.happens(f"command {kind}"):
            return
        if world.shape.schema_changes == "halt" and kind in CHANGING_COLUMNS:
            return
        if kind.endswith("_table") or kind == "read_table_again":
            arguments["table"] = rng.choice((*world.shape.tables, "shop.nowhere"))
        elif kind == "limits":
            arguments = {"rows_per_second": rng.choice((None, 60.0, 120.0)), "bytes_per_second": None}
        elif kind in ("restore", "delete_savepoint"):
            on_chain = chain(world.store.journal)
            arguments["checkpoint"] = rng.choice((*on_chain[-4:], 9999))
        elif kind == "stop":
            arguments["savepoint"] = rng.choice((None, "before"))
        elif kind == "savepoint":
            arguments["name"] = "x"
        elif kind == "define":
            base = self.store.definition_version() - (rng.random() < 0.1)  # as the API takes it
            some = [table for table in world.shape.tables if rng.random() < 0.7] or list(world.shape.tables)
            arguments = {"base": base, "definition": {"tables": rng.choice((some, list(world.shape.tables)))}}
        self.command(kind, **arguments)

    def cancel(self) -> None:
        """One person cancels one of the last commands, finished or not."""
        if self.world.steps.happens("cancel") and (newest := self.store.commands.newest()):
            self.command("cancel_command", command=max(1, newest - self.again.randrange(3)))

    def wants(self, kind: str) -> None:
        """One person commands something that needs no arguments."""
        if self.world.steps.happens(f"command {kind}"):
            self.command(kind)

    def command(self, kind: str, **arguments: Any) -> Command:
        """Accept a command."""
        command = self.store.commands.add(kind, arguments, by="ann", now=self.world.now)
        self.world.tell_story(f"command {command.n}: {kind} {arguments}")
        self.world.count["command accepted"] += 1
        return command

    @property
    def orders(self) -> Orders:
        """The standing orders."""
        return self.store.commands.orders()

    @property
    def finished(self) -> bool:
        """Whether every command has its outcome."""
        return not self.store.commands.unfinished(self.store.commands.newest_outcome())

    def revive(self) -> bool:
        """A person has every table read again, where the pipeline halted since the source lost what it needs; False
        where that is no way."""
        # A position of MariaDB may seem to have lost transactions for ever.
        if not self.may_read_again or self.world.source.lost_gtids:
            return False
        if self.finished:
            self.world.count["every table read again after a halt"] += 1
            self.command("read_again")
        return True

    def settle(self) -> None:
        """Calm has come: bring the pipeline back to running with every table, again and again until it is so."""
        if not self.active or self.world.finished:
            return
        self.world.at(2.0, self.settle)
        if not self.finished:
            return
        tables = list(self.world.shape.tables)
        definition = self.store.definition() or {}
        if self.orders.mode != "running":
            self.command("resume")
        elif set(definition["tables"]) != set(tables):
            self.command("define", base=self.store.definition_version(), definition={"tables": tables})
        else:
            for service in self.world.mesh.services:
                if service.alive and service.leader is not None and service.leader.enumerator is not None:
                    for name, table in service.leader.enumerator.tables.items():
                        if (table.phase == "paused" and not table.resuming) or table.pausing:
                            self.command("resume_table", table=name)

    @property
    def unsettled(self) -> str:
        """Why the pipeline is not yet as the last commands want it."""
        if not self.finished:
            newest = self.store.commands.newest_outcome()
            return f"commands after {newest and newest.n} have no outcome, of {self.store.commands.newest()}"
        if self.orders.mode != "running":
            return f"the pipeline is {self.orders.mode}"
        return ""

    # --- the driver ---

    def look(self, service: SimulatedService) -> None:
        """A leader looks for the next command."""
        leader = service.leader
        assert leader is not None
        n = leader.agenda.last + 1
        if leader.state != "idle" and (command := service.store.commands.get(n)) is not None:
            self.world.drivers.tell(service, "any", CommandAccepted(command=command))

    def read(self, service: SimulatedService) -> dict[str, Any]:
        """What a leader reads with its journal."""
        newest = service.store.commands.newest_outcome()
        finished = 0 if newest is None else newest.n
        orders = Orders() if newest is None else newest.orders
        found = service.store.commands.unfinished(newest)
        left_open, commands = (tuple(c for c in found if (c.n < finished) is before) for before in (True, False))
        return {"finished": finished, "orders": orders, "open": left_open, "commands": commands}

    def selected(self, version: int) -> set[str]:
        """The tables that a version of the definition selects."""
        definition = self.store.definition(version) or {}
        tables = set(definition["tables"])
        return {table for table in tables if not table.startswith("!") and f"!{table}" not in tables}

    def carry_out(self, service: SimulatedService, effect: Effect) -> None:
        """Carry out an order of the agenda, after a while; its answer may be lost, and is then found."""
        waits = self.again.uniform(0.0, 15.0) if isinstance(effect, AskSparkWriter) else 0.0
        self.world.at(waits + self.world.lag(2), self._carry_out, service, service.leader, effect)

    def _carry_out(self, service: SimulatedService, leader: Any, effect: Effect) -> None:
        if not service.alive and self.rng.random() < 0.5:
            return
        self.world.leading.answer(service, leader, self._answer(service, effect))

    def _answer(self, service: SimulatedService, effect: Effect) -> Event:
        world, store = self.world, service.store
        match effect:
            case WriteOutcome(outcome=outcome):
                written = store.commands.put_outcome(outcome)
                if written:
                    self.outcome_is_sound(outcome)
                elif store.commands.outcome(outcome.n) != outcome:
                    world.count["outcome refused: another leader has written it"] += 1
                    return OutcomeRefused(n=outcome.n)
                return OutcomeWritten(n=outcome.n)
            case PutDefinition(command=command, in_force=in_force):
                return self._define(service, command, in_force)
            case FindBase(command=command):
                n = command.arguments["checkpoint"]
                if restorable(store, n):
                    return BaseFound(n=command.n)
                return CommandAnswered(n=command.n, state="refused", cause="it is gone", remedy="another one")
            case ReleaseSavepoint(command=command):
                entry = store.entry(command.arguments["checkpoint"])
                if not isinstance(entry, CheckpointEntry) or not entry.kept:
                    return CommandAnswered(n=command.n, state="refused", cause="no savepoint", remedy="another one")
                store.removal.release(entry.slot, command.n)
                return CommandAnswered(n=command.n, state="done", result={"checkpoint": entry.slot})
            case FindOutcome(command=command):
                outcome = store.commands.outcome(command.arguments["command"])
                if outcome is not None and outcome.state == "cancelled":
                    return CommandAnswered(n=command.n, state="done")
                return CommandAnswered(n=command.n, state="refused", cause="it is finished", remedy="nothing")
            case AskSparkWriter(command=command):
                return CommandAnswered(n=command.n, state="refused", cause="not quarantined", remedy="nothing")
        raise Failure(f"nobody can carry out {effect}")

    def _define(self, service: SimulatedService, command: Command, in_force: int) -> Event:
        if command.arguments.get("base", in_force) != in_force:
            return CommandAnswered(n=command.n, state="refused", cause="changed meanwhile", remedy="again")
        known = service.store.definition(in_force) or {}
        definition: Mapping[str, Any] = command.arguments.get("definition") or {
            "tables": [*known["tables"], f"!{command.arguments['table']}"]
        }
        version = put_definition(service.store, command, definition, in_force)
        return DefinitionPut(n=command.n, version=version, settings=self.world.mesh.settings())

    # --- what must hold ---

    def outcome_is_sound(self, outcome: Outcome) -> None:
        """Outcomes come in order, and what is done is durable: a command about tables is in the part of a checkpoint on
        the chain, a savepoint is a kept entry, a restore has its epoch, and so has a definition."""
        world, n = self.world, outcome.n
        command, journal = self.store.commands.get(n), world.store.journal
        assert command is not None
        kind, state = command.kind, outcome.state
        world.tell_story(f"command {n} ({kind}) is {state}: {outcome.cause or dict(outcome.result)}")
        world.count[f"command {kind} {state}"] += 1
        if state == "cancelled":
            self.cancelled[n] = command
            for entry in journal.values():
                self.entry_is_of_no_cancelled_command(entry)
        before = n - 1
        while before in outcome.open:
            before -= 1
        if before > 0 and self.store.commands.outcome(before) is None:
            raise Failure(f"command {n} has an outcome, and command {before} has none")
        newest = self.store.commands.newest_outcome()
        assert newest is not None
        if n < newest.n and n not in newest.open and newest.n - n < 50:
            raise Failure(f"command {n} has an outcome after command {newest.n}, which does not know that it was open")
        if state != "done":
            return
        if command.taken == "machine":
            newest = journal[chain(journal)[-1]]
            assert isinstance(newest, CheckpointEntry)
            part = load_part(world.store.open(), newest.parts["enumerator"])
            if part.head.get("commands", {"done": 0})["done"] < n:
                raise Failure(f"command {n} ({kind}) is done, and checkpoint {newest.slot} lacks it")
        if kind in ("savepoint", "stop", "checkpoint") and (slot := outcome.result["checkpoint"]) is not None:
            entry = journal[slot]
            wanted = kind == "savepoint" or (kind == "stop" and outcome.result["name"] is not None)
            if not isinstance(entry, CheckpointEntry) or (wanted and not entry.kept):
                raise Failure(f"command {n} ({kind}) is done, and {entry} is no savepoint")
        if kind == "restore" and outcome.orders.mode == "running":
            base = command.arguments["checkpoint"]
            later = (e for e in journal.values() if isinstance(e, CheckpointEntry) and e.slot > base)
            world.count["restore from an older checkpoint"] += any(later)
            if not any(isinstance(e, EpochEntry) and e.base == base for e in journal.values()):
                raise Failure(f"command {n} restored checkpoint {base}, and no epoch starts from it")
        if kind == "read_again" and not outcome.orders.anew:
            if not any(isinstance(e, EpochEntry) and e.anew for e in journal.values()):
                raise Failure(f"command {n} read every table again, and no epoch begins anew")
        if kind == "define" and outcome.orders.mode == "running":
            version = outcome.result["version"]
            if not any(isinstance(e, EpochEntry) and e.definition == version for e in journal.values()):
                raise Failure(f"command {n} defined version {version}, and no epoch uses it")

    def entry_is_of_no_cancelled_command(self, entry: Entry) -> None:
        """What was cancelled has no effect that lasts: no entry of the journal carries it out, before or after."""
        for n in self.cancelled:
            of_it = isinstance(entry, CheckpointEntry) and entry.request == CommandRequest(n=n).text
            if of_it or (isinstance(entry, EpochEntry) and entry.command == n):
                raise Failure(f"command {n} ({self.cancelled[n].kind}) is cancelled, and entry {entry.slot} has it")

    def tables_are_read_again_for_a_reason(self, entry: EpochEntry) -> None:
        """Every table is read again only if a person asked for it, or if the definition says so where the source has
        lost the position."""
        if entry.anew is None:
            return
        self.world.count[f"every table read again: {entry.anew}"] += 1
        if entry.anew == "lost" and not self.reads_again:
            raise Failure(f"epoch {entry.slot} begins anew after a loss, and the definition says that it halts")
        if entry.anew == "asked" and not any(command.kind == "read_again" for command in self.store.commands.list()):
            raise Failure(f"epoch {entry.slot} begins anew, and nobody asked for it")

    def epoch_is_wanted(self, entry: EpochEntry, *, held: bool) -> None:
        """While people want the pipeline to stand still, the holder of the lease opens no epoch; and an epoch uses the
        definition in force, or the one that a command is bringing into force."""
        self.tables_are_read_again_for_a_reason(entry)
        newest = self.store.commands.newest_outcome()
        if held and newest is not None and self.finished and newest.orders.mode != "running":
            raise Failure(f"epoch {entry.slot} is opened, and the pipeline is {newest.orders.mode}")
        if entry.definition > 1 and self.store.definition(entry.definition) is None:
            raise Failure(f"epoch {entry.slot} uses version {entry.definition}, which does not exist")

    def checkpoint_is_wanted(self, entry: CheckpointEntry, leader: Any) -> None:
        """A leader that has finished the command to stand still takes no further checkpoint."""
        newest = self.store.commands.newest_outcome()
        knows = newest is not None and leader.agenda.finished == newest.n and leader.agenda.running is None
        if newest is not None and knows and newest.orders.mode != "running" and entry.started_at > newest.at:
            raise Failure(f"checkpoint {entry.slot} is taken, and the pipeline is {newest.orders.mode}")

    def paused_tables_rest(self, entry: CheckpointEntry, before: CheckpointEntry | None) -> None:
        """No change of a paused table is staged while it is paused."""
        for file in entry.staged:
            now, then = entry.tables.get(file.table), before.tables.get(file.table) if before is not None else None
            paused = now is not None and then is not None and now.phase == then.phase == "paused"
            if paused and file.kind == "changes" and now == then:
                raise Failure(f"checkpoint {entry.slot} has changes of {file.table}, which is paused")
        for table in entry.tables.values():
            self.world.count["table paused in the stream"] += table.phase == "paused" and table.schema is not None
