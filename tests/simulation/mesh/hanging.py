"""A source that hangs for ever inside a transaction, and the pipeline meanwhile: what people want still happens, and
nothing grows.

In few worlds, once faults have stopped, the source sends the beginning of a transaction and then nothing more: no row,
no answer to a SELECT or a question. A person pauses, stops or deletes the pipeline, asks for a savepoint, or does
nothing. After that the source goes on, and the world must arrive as any other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from cutline.common.mesh.machine import Event
from cutline.common.store.command_records import Command
from cutline.common.store.records import CheckpointEntry, EpochEntry
from cutline.services.reader.events import ChangesRead, ReadChanges
from tests.simulation.checks.failure import Failure
from tests.support.reads import changes_read

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World

ENDS = ("nobody acts", "nobody acts", "pause", "stop", "savepoint", "delete")
PATIENCE_SECONDS = 30.0
"""A command has its outcome within this time: 5 s until a marker is not held any more, 10 s for a savepoint that must
fail, and what a new epoch takes (10 s for its members)."""
SETTLED_SECONDS, WATCHED_SECONDS = 25.0, 40.0
GROWTH = 3
"""So many entries may the journal get in `WATCHED_SECONDS` while nothing moves, and a few files a checkpoint."""


class Hanging:
    """The hang of one world's source, if it has one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"hang {world.seed}")  # apart, so that worlds without one draw the same
        plain = world.shape.stop is None and not world.shape.snapshot_only
        self.planned = plain and self.rng.random() < 0.04
        self.end = self.rng.choice(ENDS)
        self.armed = self.hangs = False
        self.deleting = False
        self.began = 0.0
        self.seconds = 0.0 if not self.planned else 5.0 + SETTLED_SECONDS + WATCHED_SECONDS + 3 * PATIENCE_SECONDS

    def arm(self) -> None:
        """The next transaction of several rows does not end: calm has come, and the source still writes."""
        self.armed = self.planned
        if self.armed:
            self.world.at(5.0, self.give_up)

    def give_up(self) -> None:
        """No transaction came that could be cut: the world is one as any other."""
        if self.armed:
            self.armed = False
            self.world.clients.stop_writing()

    def read(self, order: ReadChanges) -> Event | None:
        """What a cursor gets of a source that hangs: nothing in time."""
        if not self.hangs:
            return None
        return changes_read(cursor=order.cursor, position=order.after, rows=0)

    def look(self, event: ChangesRead) -> None:
        """A cursor has read: perhaps as far as the source goes."""
        if self.armed and event.changes.position.inside:
            world = self.world
            self.armed, self.hangs, self.began = False, True, world.now
            world.count["source hangs inside a transaction"] += 1
            world.tell_story(f"the source hangs at {event.changes.position}")
            if self.end == "nobody acts":
                world.at(SETTLED_SECONDS, self.watch)
            else:
                world.at(self.rng.uniform(0.0, 12.0), self.act)

    def watch(self) -> None:
        """Nobody acts: note what there is, and look again."""
        self.world.at(WATCHED_SECONDS, self.has_not_grown, self.size(), max(self.world.store.journal))

    def size(self) -> dict[str, int]:
        """What may grow: files of the store, rows in streams and in files that no checkpoint has."""
        world = self.world
        open_files = [service.files for service in world.mesh.services if service.alive and service.files is not None]
        return {
            "files in the store": len(world.store.memory.files),
            "messages in streams": sum(len(c.queue) for c in world.network.channels.values() if not c.gone),
            "rows staged": sum(len(rows) for files in open_files for rows in files.open.values()),
        }

    def has_not_grown(self, before: dict[str, int], slot: int) -> None:
        """While nothing moves, nothing grows but by a few checkpoints."""
        world = self.world
        entries = [entry for n, entry in world.store.journal.items() if n > slot]
        if not all(isinstance(entry, EpochEntry) or entry.inside for entry in entries):
            world.tell_story("the stream began again before that transaction")  # so each checkpoint is published
        elif any(isinstance(e, EpochEntry) and e.written_at > self.began + 10 for e in world.store.journal.values()):
            world.tell_story("an epoch began meanwhile")  # a late loss of the troubled time, or a person's command
        elif len(entries) > GROWTH:
            raise Failure(f"{len(entries)} checkpoints in {WATCHED_SECONDS} s, and nothing moves")
        else:
            limits = {"files in the store": 6 * GROWTH, "messages in streams": 0, "rows staged": 0}
            for what, now in self.size().items():
                if now > before[what] + limits[what]:
                    raise Failure(f"{what}: {before[what]}, and {now} after {WATCHED_SECONDS} s; nothing moves")
            world.count["nothing grew while the source hung"] += 1
            for service in world.mesh.services:
                leader = service.leader if service.alive else None
                if leader is not None and leader.state == "leading" and leader.waiting_for(world.now) is None:
                    raise Failure("the source hangs, and the leader says of nothing that the pipeline waits for it")
        self.go_on()

    def act(self) -> None:
        """A person wants something of the pipeline."""
        arguments: dict[str, Any] = {"pause": {}, "stop": {"savepoint": None}, "delete": {"purge": False}}.get(
            self.end, {"name": "x"}
        )
        command = self.world.operators.command(self.end, **arguments)
        if self.end == "delete":  # and nobody can want anything after it
            self.world.operators.command("limits", rows_per_second=None, bytes_per_second=None)
        self.world.at(PATIENCE_SECONDS, self.is_done, command)

    def is_done(self, command: Command) -> None:
        """The command is done, or a savepoint has failed; then the source goes on."""
        world = self.world
        if world.mesh.nobody_until and world.now < world.mesh.nobody_until + PATIENCE_SECONDS:
            world.at(PATIENCE_SECONDS, self.is_done, command)
            return
        outcome = world.operators.store.commands.outcome(command.n)
        if outcome is None:
            waits = {s.incarnation: s.leader.agenda.waiting() for s in world.mesh.services if s.alive and s.leader}
            raise Failure(f"{command.kind} is not finished after {PATIENCE_SECONDS} s: {waits}")
        if outcome.state == "done" and command.kind == "savepoint":
            entry = world.store.journal[outcome.result["checkpoint"]]
            if not isinstance(entry, CheckpointEntry) or entry.inside:
                raise Failure(f"{entry} is to be a savepoint, and is inside a transaction")
        elif outcome.state == "refused" and ("already" in (outcome.cause or "") or outcome.orders.mode != "running"):
            world.tell_story("a command before it had the same effect, or had stopped the pipeline")
        elif outcome.state != ("failed" if command.kind == "savepoint" else "done"):
            raise Failure(f"{command.kind} is {outcome.state} ({outcome.cause}), and the source hangs")
        world.count[f"{command.kind} {outcome.state} while the source hung"] += 1
        if command.kind == "delete":
            if not self.deleting:
                raise Failure("the pipeline is to be deleted, and nobody deletes it")
            world.finished = True
            return
        if command.kind != "savepoint":
            newest = world.store.journal[max(world.store.journal)]
            if not isinstance(newest, CheckpointEntry | EpochEntry):
                raise Failure(f"{command.kind} left {newest}")
            world.operators.command("resume")
        self.go_on()

    def go_on(self) -> None:
        """The source was only suspended."""
        self.hangs = False
        self.world.leading.entered_at = self.world.now  # from here on its checkpoints are due again
        self.world.tell_story("the source goes on")
        self.world.clients.stop_writing()
