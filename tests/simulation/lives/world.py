"""Pipelines that are deleted and made again under one name, under seeds: the real enumerator service (its `main`), the
real host of a reader and a writer with the real machines (members.py), the real server of the Spark writer (`serve`,
with each start, its upkeep and its purge) and the real store, as processes of tests/simulation/actors.py, around a
simulated Redis, a simulated source and a simulated catalogue.

People make a pipeline, which is read and published, pause, restore and resume it, delete it with or without its lake
tables, and make another one of that name, two or three times; beside it another pipeline of the same services lives on.
Processes are suspended in the middle of a step and go on long after, or are killed. Checked at each call, and at the
end:

- whatever writes or removes does it in the folder, the notes, the streams and the tables of its own life: a life that
  is not being deleted loses nothing but what its own retention removes, and the other pipeline loses nothing at all;
- a lake table shows what its own life has read, each row once, or what an earlier one left that it took over;
- what a restore was promised stays until that restore is over;
- a pipeline whose source hangs for ever holds up no other one of the same processes;
- a deletion ends, and so does each command; a wait that lasts says for what;
- once all that outlived a deletion is over, nothing of an ended life is left, in the store or in Redis.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Any

from cutline.common.errors import ConfigError, Unavailable
from cutline.common.store.lives import Key, Life
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore, file_name
from cutline.services.enumerator.commanding import Commanding
from cutline.spark_writer.sinks.iceberg.owner import ID
from tests.simulation.actors import Actors, Process
from tests.simulation.clock import SimulatedClock, Wrong
from tests.simulation.lives import members
from tests.simulation.lives.patches import enumerators, serve_members, simulated, spark_writer
from tests.simulation.lives.surroundings import (
    Catalogue,
    Files,
    Host,
    LakeTable,
    store_of,
)
from tests.simulation.lives.trouble import Trouble
from tests.simulation.steps import Steps

NAMES = ("shop", "other")
PATIENCE_SECONDS = 240.0
"""A deletion ends within this time after the troubles; purging waits for a Spark writer, whose pauses grow to 60 s."""
QUIET_SECONDS = 45.0
CALM_SECONDS = 110.0
"""Longer than the longest pause of a leader after failures, its wait for members, and two sweeps."""
CHECKPOINT_SECONDS = 30.0
"""Once all is calm each pipeline has a checkpoint of this age at most, whatever hangs in another one."""
SAYS_SECONDS = 20.0
OF_A_LEADER = frozenset({
    "restorable", "restorable_savepoints", "place_after", "Commands.taker", "Commands.take",
    "PipelineStore.put_deleting", "PipelineStore.purges",
})  # fmt: skip
"""Calls to the store that only a leader makes, beside those of its `Commanding`."""


# --- the world ---


class LivesWorld:
    """One seed's run: `run()` raises what was found, or returns."""

    def __init__(self, seed: int, without: AbstractSet[str] = frozenset()) -> None:
        """`without`: steps that do not happen (tests/simulation/steps.py)."""
        self.steps = Steps(without)
        self.rng = rng = random.Random(f"lives {seed}")
        self.count: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=400)
        self.clock = SimulatedClock(now=0.0)
        self.actors = Actors(rng, self.clock)
        self.files = Files(self)
        self.catalogue = Catalogue(self)
        self.notes: dict[Key, dict[str, Any]] = {}  # in Redis, by life
        self.streams = members.Streams()
        self.present: dict[Process, tuple[float, Any]] = {}  # services of the mesh, and when they were seen last
        self.leases: dict[str, tuple[str, float]] = {}
        self.hosts: dict[Process, Host] = {}
        self.lives: list[Life] = []
        self.deleting: set[str] = set()  # ids of lives whose deletion a person has commanded
        self.ended: set[str] = set()
        self.promised: dict[str, tuple[int, set[str]]] = {}  # by id: a checkpoint to be restored, and what it needs
        self.silent: dict[Key, tuple[str, float]] = {}  # whose status says nothing, since when
        self.numbers = 0
        self.calm = self.over = False
        self.trouble = Trouble(self)
        self.actors.before_turn = self.trouble.at_call
        self.finished = 0
        self.hangs = rng.choice(("", "", *NAMES))  # the pipeline whose source never answers a SELECT
        self.drawn = random.Random(rng.random())  # ids

    def tell(self, text: str) -> None:
        self.story.append(f"{self.clock.now:8.3f} {text}")

    def wrong(self, text: str) -> Wrong:
        """What a check has found: it fails the world, also where the service that is checked catches every error."""
        self.actors.fault = self.actors.fault or Wrong(text)
        return Wrong(text)

    def name(self, role: str) -> str:
        self.numbers += 1
        return f"{role}-{self.numbers:03d}"

    def run(self) -> None:
        rng = self.rng
        with simulated(self):
            for _ in range(2):
                self.begin("enumerator", partial(self.actors.run_loop, partial(enumerators, self)))
            for role in ("reader", "writer"):
                self.begin(role, partial(self.actors.run_loop, partial(serve_members, self, role)))
            for _ in range(rng.choice((1, 1, 2))):
                self.begin("spark", self.spark)
            for name in NAMES:
                self.actors.start(Process(f"people of {name}"), partial(self.people, name))
            self.actors.run(lambda: self.over, deadline=3000.0)
            self.judge()

    def begin(self, role: str, call: Callable[[], None]) -> None:
        """Start a process; when it is killed, or ends, another one starts."""
        process = Process(self.name(role))

        def whole() -> None:
            try:
                call()
            except (Unavailable, ConfigError) as error:
                self.tell(f"{process.name} ends: {error}")
            finally:
                self.tell(f"{process.name} is over")
                process.dead = True
                self.actors.start(Process("supervisor"), partial(self.begin, role, call), rng_delay)

        rng_delay = self.rng.uniform(0.5, 4.0)
        self.tell(f"{process.name} starts")
        self.actors.start(process, whole)

    def visit(self, to: str) -> None:
        """A call to the store, Redis or the lake; Unavailable if it fails."""
        self.trouble.visit(to)

    # --- people, members ---

    def people(self, name: str) -> None:
        """Make and delete pipelines of one name."""
        rng, sleep = self.rng, self.actors.sleep
        many = rng.choice((2, 2, 3)) if name == NAMES[0] else 1
        adopt = False
        for number in range(1, many + 1):
            sleep(rng.uniform(0.0, 3.0))
            store = store_of(self).pipeline(name)
            if not store.define(definition(name, adopt=adopt)):
                raise self.wrong(f"pipeline {name} is made again, and there is one")
            life = store.life
            self.lives.append(life)
            self.count["lives: life begun"] += 1
            self.tell(f"life {number} of {name} is {life.id}")
            self.actors.start(Process(f"member of {life.id}"), partial(self.late, store_of(self).open(life)))
            for _ in range(rng.randrange(4)):
                sleep(rng.uniform(0.0, 8.0))
                if self.steps.happens(f"wish for {name}"):
                    self.wish(store, life)
            sleep(rng.uniform(0.0, 15.0))
            if number == many:
                break
            adopt = not self.delete(store, life)
        self.finished += 1
        if self.finished == len(NAMES):
            self.actors.start(Process("people of the end"), self.end)

    def wish(self, store: PipelineStore, life: Life) -> None:
        """Pause, restore, resume, in the order in which people do it, and wait for each."""
        rng = self.rng
        slots = [slot for slot in store.slots() if isinstance(store.entry(slot), CheckpointEntry)]
        self.finish(store, "pause")
        if rng.random() < 0.3:
            known = store.definition() or {}
            self.finish(store, "define", definition={**known, "tables": [*known["tables"], f"d.x{rng.randrange(9)}"]})
        if slots:
            n = rng.choice(slots)
            outcome = self.finish(store, "restore", checkpoint=n)
            self.count[f"lives: restore {outcome.state}"] += 1
            if outcome.state == "done":
                entry = store.entry(n)
                if not isinstance(entry, CheckpointEntry):
                    raise self.wrong(f"checkpoint {n} is to be restored, and is gone")
                self.promised[life.id] = (n, {path for ref in entry.parts.values() for path in ref.paths})
                self.actors.sleep(rng.uniform(0.0, 10.0))
                self.keeps_promise(store, life)
                self.promised.pop(life.id)
        self.finish(store, "resume")

    def keeps_promise(self, store: PipelineStore, life: Life) -> None:
        """What a restore needs is there."""
        n, paths = self.promised[life.id]
        if store.entry(n) is None or not all(f"{life.folder}/{path}" in self.files.files for path in paths):
            raise self.wrong(f"the restore of checkpoint {n} was promised, and what it needs is gone")
        self.count["lives: promise kept"] += 1

    def finish(self, store: PipelineStore, kind: str, **arguments: Any) -> Any:
        """Command something and wait for its outcome."""
        command = store.commands.add(kind, arguments, by="ann", now=self.clock.now)
        began = self.clock.now
        while (outcome := store.commands.outcome(command.n)) is None:
            self.actors.sleep(0.5)
            if self.calm and self.clock.now - began > 2 * PATIENCE_SECONDS:
                raise self.wrong(f"command {command.n} ({kind}) of {store.key} has no outcome")
            if self.clock.now - began > PATIENCE_SECONDS:
                self.calms()
        self.tell(f"command {command.n} ({kind}) of {store.key} is {outcome.state}")
        self.count[f"lives: {kind} {outcome.state}"] += 1
        return outcome

    def calms(self) -> None:
        """The troubles end."""
        if not self.calm:
            self.tell("calm")
            self.calm = True
            for actor in self.actors.alive:
                actor.process.suspended_until = min(actor.process.suspended_until, self.clock.now)

    def delete(self, store: PipelineStore, life: Life) -> bool:
        """Delete a pipeline, and wait until its name is free; return whether its lake tables are dropped too."""
        purge = self.rng.random() < 0.6
        self.deleting.add(life.id)
        self.tell(f"{life.key} is to be deleted, purge: {purge}")
        self.promised.pop(life.id, None)
        store.commands.add("delete", {"purge": purge}, by="ann", now=self.clock.now)
        began, looking = self.clock.now, store_of(self)
        while looking.life(life.key) is not None:
            self.actors.sleep(0.5)
            waited = self.clock.now - began
            if waited > PATIENCE_SECONDS:
                self.calms()
            if waited > 2 * PATIENCE_SECONDS:
                raise self.wrong(f"{life.key} is still not deleted after {waited:.0f} s: {self.notes.get(life.key)}")
            self.says_why(life)
        self.ended.add(life.id)
        self.silent.pop(life.key, None)
        self.count[f"lives: deleted {'with' if purge else 'without'} its tables"] += 1
        self.tell(f"{life.key} is deleted")
        return purge

    def says_why(self, life: Life) -> None:
        """A deletion that lasts says in the status for what it waits, as long as Redis answers."""
        status = self.notes.get(life.key, {}).get("enumerator")
        fresh = status is not None and self.clock.now - status.at < 5.0
        if status is None or not fresh or status.mode != "deleting" or status.waiting_for:
            self.silent.pop(life.key, None)
            self.count["lives: a deletion says for what it waits"] += fresh
            return
        who, since = self.silent.setdefault(life.key, (status.leader, self.clock.now))
        if who != status.leader:
            self.silent.pop(life.key)
        elif self.clock.now - since > SAYS_SECONDS:
            raise self.wrong(f"{who} has been deleting {life.key} for {self.clock.now - since:.0f} s, and says nothing")

    def late(self, store: PipelineStore) -> None:
        """Calls to the store of a member that was suspended while it made them: they land when its life is deleted, or
        after its end."""
        while store.id not in self.deleting:
            self.actors.sleep(1.0)
        for _ in range(3):
            self.actors.sleep(self.rng.uniform(0.0, 15.0))
            with suppress(Unavailable):
                store.put_part(file_name("late", epoch=1, incarnation="late"), b"late")

    def spark(self) -> None:
        spark_writer(self)

    def end(self) -> None:
        """Nobody wants anything more; zombies end, and what is left is swept."""
        self.actors.sleep(QUIET_SECONDS)
        self.calms()
        self.actors.sleep(CALM_SECONDS)
        self.over = True

    # --- checks ---

    async def in_store(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """A call to the store: of those that only a leader makes, no service begins one of a pipeline once it has
        noticed that another leads that."""
        assert self.actors.current is not None
        process = self.actors.current.process
        about = getattr(call, "__self__", None) or (arguments[0] if arguments else None)
        if not (isinstance(about, Commanding) or getattr(call, "__qualname__", "") in OF_A_LEADER):
            return await self.actors.in_thread(call, *arguments)
        key = getattr(about, "store", about)._folder.life.key
        if not process.dead and key not in self.hosts[process].leads:
            raise self.wrong(f"{process.name} does not lead {key} any more, and begins {call.__qualname__}")
        return await self.actors.in_thread(call, *arguments)

    def life_at(self, path: str) -> Life | None:
        folder = path.split("/")[0]
        return next((life for life in self.lives if life.folder == folder), None)

    def written(self, path: str) -> None:
        life = self.life_at(path)
        if life is not None and life.id in self.ended:
            self.count["lives: a zombie wrote into the folder of its ended life"] += 1

    def removing(self, path: str) -> None:
        """A life that is not being deleted loses only what its retention may remove, and no promise is broken."""
        life = self.life_at(path)
        if path.startswith("pipelines/"):
            if path.endswith((f".{self.newest(path)}.json", f".{self.newest(path)}.ended.json")):
                raise self.wrong(f"{path} is removed, the newest record of its name")
            return
        if life is None or life.id in self.deleting:
            return
        inside = path.split("/")[1]
        if inside not in ("journal", "parts", "staged", "publications", "schemas", "spark", "retired", "released"):
            raise self.wrong(f"{path} is removed by {self.who()}, and {life.key} is not to be deleted")
        promise = self.promised.get(life.id)
        if promise is not None and path.partition("/")[2] in promise[1]:
            raise self.wrong(f"{path} is removed, which the restore of checkpoint {promise[0]} needs")
        self.count["lives: retention removed a file"] += 1

    def newest(self, path: str) -> str:
        name = path.split("/")[1].split(".")[0]
        numbers = [f.split("/")[1].split(".")[1] for f in self.files.files if f.startswith(f"pipelines/{name}.")]
        return max(numbers)

    def who(self) -> str:
        return self.actors.current.process.name if self.actors.current else "nobody"

    def forgets(self, key: Key) -> None:
        """Only a life that is over loses its notes and streams."""
        life = next((life for life in self.lives if life.key == key), None)
        if life is None or life.id not in self.deleting:
            raise self.wrong(f"{self.who()} removes what Redis has of {key}, which is not to be deleted")

    def drops(self, name: str, table: Any) -> None:
        """Only a table of a life that is being deleted is dropped."""
        if table.properties[ID] not in self.deleting:
            raise self.wrong(f"{self.who()} drops {name}, of {table.properties[ID]}, which is not to be deleted")
        if table.properties[ID] in self.ended:
            raise self.wrong(f"{self.who()} drops {name}, whose life has ended")
        self.count["lives: table dropped"] += 1

    def shown(self, table: LakeTable, snapshot: int) -> None:
        """A table shows what its own life has written."""
        owner, (by, _, rows) = table.java.properties[ID], table.java.snapshots[snapshot]
        if {owner} != {by, *(row.split("/")[0] for row in rows)}:
            raise self.wrong(f"{table.table_id} of {owner} shows what {by} has written: {rows}")
        if not len(rows) == len(set(rows)) == members.ROWS * members.CHUNKS:
            raise self.wrong(f"{table.table_id} of {owner} does not show each of its rows once: {rows}")
        self.count["lives: main moved"] += 1

    def judge(self) -> None:
        """Every zombie is over: nothing of an ended life is left, and each pipeline of now has all it had."""
        for life in self.lives:
            files = [path for path in self.files.files if path.startswith(f"{life.folder}/")]
            # What was suspended for longer than a life's record is kept may still note something in Redis, once.
            recorded = f"pipelines/{life.name}.{life.number:010d}.json" in self.files.files
            noted = recorded and (life.key in self.notes or life.key in self.streams.by_life)
            if life.id in self.ended and (files or noted):
                raise self.wrong(f"{life.key} has ended, and {files or 'something in Redis'} is left")
            if life.id not in self.ended:
                store = store_of_end(self, life)
                if f"{life.folder}/pipeline.json" not in self.files.files:
                    raise self.wrong(f"{life.key} has lost its definition")
                newest = store.entry(store.last_slot())
                if newest is None or self.clock.time() - newest.written_at > CHECKPOINT_SECONDS:
                    raise self.wrong(f"{life.key} stands still: its newest entry is {newest}; {self.hangs} hangs")
                self.count["lives: a pipeline goes on beside one that hangs"] += self.hangs not in ("", life.name)
                if (n := max(store.publication_numbers(), default=0)) == 0:
                    self.count["lives: nothing published"] += 1
                    continue
                record = store.publication(n)
                table = self.catalogue.tables.get("d.t") if life.name == NAMES[0] else None
                if table is not None and record is not None and table.properties[ID] == life.id:
                    self.count["lives: compared"] += 1
        self.count["lives: nothing of an ended life is left"] += bool(self.ended)


def store_of_end(world: LivesWorld, life: Life) -> PipelineStore:
    """The store as it is, when no process is left."""
    world.calm = True
    world.visit = lambda to: None  # type: ignore[method-assign]
    return store_of(world).open(life)


def definition(name: str, *, adopt: bool) -> dict[str, Any]:
    """A pipeline's definition."""
    source = {"host": "h", "user": "u", "password_env": "P", "server_id": 7}
    sink = {"type": "iceberg", "warehouse": f"/lake/{name}", "adopt": adopt}
    every = {"interval_seconds": 3.0}
    return {"name": name, "source": source, "tables": ["d.t"], "sink": sink, "checkpoint": every}
