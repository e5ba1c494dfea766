"""What goes wrong: one method a fault."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from cutline.common.mesh.silence import LEADER_SECONDS
from tests.simulation.checks.any_fact import any_fact_is_handled_or_refused
from tests.simulation.checks.chain import chain
from tests.simulation.checks.silence import LEADERLESS_SECONDS, nobody_works_without_a_leader
from tests.simulation.mesh.service import SimulatedService
from tests.simulation.mesh.services import LEASE_SECONDS, LEAVE_SECONDS, PRESENCE_SECONDS
from tests.simulation.source.transactions import PLAIN
from tests.support.causes import because

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


class Faults:
    """What goes wrong: one method a fault."""

    kinds = (
        "crash_reader", "crash_reader", "crash_writer", "crash_leader", "crash_leader", "pause", "pause",
        "redis_emptied", "lost_tail",
        "more_readers", "more_writers", "fewer", "restart_source", "fail_over", "steal_lease",
        "zombie_leader", "savepoint", "older", "throttle",
    )  # fmt: skip

    def __init__(self, world: World) -> None:
        self.world = world
        self.own = random.Random(f"refusals {world.seed}")  # apart, so that other worlds draw the same
        self.leaderless = random.Random(f"leaderless {world.seed}")
        self.full_until = self.refused_until = 0.0
        self.refused_epochs: set[int] = set()
        self.halts_expected = False

    def trouble(self) -> None:
        if not self.world.troubled:
            return
        name = self.world.rng.choice(self.kinds)
        if self.world.steps.happens(name):
            getattr(self, f"fault_{name}")()

    def fill_store(self) -> None:
        """The store is full for a while: each epoch that can't save its state ends, until there is room."""
        if not self.world.steps.happens("store full"):
            return
        self.full_until = self.world.now + self.own.uniform(0.5, 8.0)
        self.world.tell_story(f"the store is full until {self.full_until:.2f}")

    def no_room(self, service: SimulatedService) -> bool:
        """Whether the store is full; the service then gives up."""
        world = self.world
        if world.now >= self.full_until:
            return False
        world.count["store full: a service gives up"] += 1
        world.mesh.fail(service, because("the store is full"))
        return True

    def refuse_reads(self) -> None:
        """The source refuses binlog readers for a while (a password changed); that must not halt the pipeline."""
        if not self.world.steps.happens("reads refused"):
            return
        self.refused_until = self.world.now + self.own.uniform(0.5, 8.0)
        self.refused_epochs.clear()
        self.world.tell_story(f"the source refuses reads until {self.refused_until:.2f}")

    def refused(self, service: SimulatedService, token: Any) -> None:
        if service.alive and service.token == token:
            self.world.mesh.fail(service, because("the source refuses us"))

    def fault_crash_reader(self) -> None:
        world = self.world
        if found := world.mesh.alive("reader"):
            world.mesh.crash(world.rng.choice(found), "a fault")

    def fault_crash_writer(self) -> None:
        world = self.world
        if found := world.mesh.alive("writer"):
            world.mesh.crash(world.rng.choice(found), "a fault")

    def fault_crash_leader(self) -> None:
        holder = self.world.mesh.lease[0]
        if holder is not None and holder.alive:
            self.world.mesh.crash(holder, "a fault")

    def fault_pause(self) -> None:
        world = self.world
        service = world.rng.choice([s for s in world.mesh.services if s.alive])
        service.paused_until = world.now + world.rng.uniform(0.5, 9.0)
        world.tell_story(f"{service.incarnation} sleeps until {service.paused_until:.2f}")
        world.count[f"{service.role} slept"] += 1

    def fault_zombie_leader(self) -> None:
        """The leader sleeps past its lease, with a full inbox, and goes on as if it still held it."""
        world = self.world
        holder = world.mesh.lease[0]
        if holder is not None and holder.alive:
            holder.paused_until = world.now + LEASE_SECONDS + world.rng.uniform(0.0, 3.0)
            world.count["zombie leader"] += 1
            world.tell_story(f"{holder.incarnation} sleeps past its lease")
            if len(world.mesh.alive("enumerator")) < 2:
                world.mesh.start("enumerator")

    def rebuild_leader(self, service: SimulatedService) -> None:
        """The pipeline fails within its process, which soon builds a new leader while an entry is still being
        written."""
        world = self.world
        if service.alive and world.mesh.lease[0] is service:
            world.mesh.leave(service)
            service.leader = world.mesh.new_leader(service.incarnation)
            service.paused_until = world.now + world.rng.uniform(0.1, 5.0)
            world.mesh.lease = (None, 0.0)
            world.count["leader built anew in its process"] += 1
            world.tell_story(f"{service.incarnation} fails and builds its leader anew")

    def fault_steal_lease(self) -> None:
        """The lease key is lost: another leader takes it before the old one looks."""
        world = self.world
        holder, now = world.mesh.lease[0], world.now
        others = [s for s in world.mesh.alive("enumerator") if s is not holder and s.paused_until <= now]
        if others:
            world.mesh.lease = (world.rng.choice(others), world.now + LEASE_SECONDS)
            world.count["two leaders at once"] += 1
            world.tell_story("the lease is lost and taken by another")

    def fault_redis_emptied(self) -> None:
        world = self.world
        world.tell_story("Redis is emptied")
        world.count["Redis emptied"] += 1
        for channel in world.network.channels.values():
            world.network.drop_channel(channel, world.rng)
        world.mesh.lease = (None, 0.0)
        world.mesh.announced = 0

    def fault_lost_tail(self) -> None:
        world = self.world
        full = [c for c in world.network.channels.values() if c.queue and not c.gone]
        if full:
            channel = world.rng.choice(full)
            for _ in range(world.rng.randrange(1, len(channel.queue) + 1)):
                channel.queue.pop()
            world.count["lost tail of a stream"] += 1
            world.tell_story(f"the tail of {channel.name} is lost")
            world.at(1.0, world.network.idle, channel)

    def fault_more_readers(self) -> None:
        self.world.mesh.start("reader")
        self.world.count["reader added"] += 1

    def fault_more_writers(self) -> None:
        self.world.mesh.start("writer")
        self.world.count["writer added"] += 1

    def fault_fewer(self) -> None:
        world = self.world
        role = world.rng.choice(("reader", "writer"))
        found = [service for service in world.mesh.alive(role) if not service.leaving]
        if len(found) > 1:
            service = world.rng.choice(found)
            world.count[f"{role} taken away"] += 1
            if world.rng.random() < 0.3:
                world.mesh.kill(service, "taken away")
            else:
                service.leaving = True
                if service.driven is not None:
                    service.driven.host.asked_to_end.set()
                world.tell_story(f"{service.incarnation} is asked to leave")
                self.leaves(service, world.now + LEAVE_SECONDS)

    def leaves(self, service: SimulatedService, deadline: float) -> None:
        """The service ends when no epoch needs it, or at the deadline; its presence disappears at once."""
        world = self.world
        if not service.alive:
            return
        if service.token is not None and world.now < deadline:
            world.at(0.2, self.leaves, service, deadline)
            return
        world.count["service left when the plan had done without it"] += service.token is None
        world.mesh.kill(service, "it left")
        service.died_at = -PRESENCE_SECONDS

    def fault_restart_source(self) -> None:
        world = self.world
        world.tell_story("the source restarts")
        world.source.restart(world.now)

    def lose_leaders(self) -> None:
        """Every enumerator dies, and none starts for as long as members wait for their leader and more: by then all
        must have left. Then a new one leads."""
        world = self.world
        if not world.steps.happens("no leader left"):
            return
        world.mesh.nobody_until = world.now + LEADER_SECONDS + 15.0
        world.tell_story(f"no enumerator lives until {world.mesh.nobody_until:.2f}")
        for service in world.mesh.alive("enumerator"):
            world.mesh.kill(service, "no leader is left")
        world.count["no leader left"] += 1
        world.at(LEADERLESS_SECONDS, nobody_works_without_a_leader, world)
        world.at(LEADER_SECONDS + 15.0, world.mesh.replace, "enumerator")

    def purge(self) -> None:
        """Binlogs are purged; perhaps a reader dies too, and its successor begins at the last checkpoint."""
        world = self.world
        if not world.steps.happens("purge"):
            return
        world.tell_story("binlogs are purged")
        world.source.purge()
        if world.rng.random() < 0.5:
            self.fault_crash_reader()

    def fault_fail_over(self) -> None:
        world = self.world
        if world.shape.flavour == PLAIN and world.rng.random() < 0.6:
            return
        world.tell_story("the source fails over")
        world.source.fail_over(world.now)

    def fault_savepoint(self) -> None:
        self._savepoint()

    def fault_throttle(self) -> None:
        """A person limits what is read, or lifts the limits."""
        world = self.world
        if world.operators.active:
            limit = world.rng.choice((None, 60.0, 120.0))
            world.count["throttle asked"] += 1
            world.operators.command("limits", rows_per_second=limit, bytes_per_second=None)

    def fault_older(self) -> None:
        """An operator asks for a restore from an older checkpoint."""
        world = self.world
        if older := chain(world.store.journal)[:-1]:
            world.operators.command("restore", checkpoint=world.rng.choice(older[-3:]))

    def ask_savepoint(self) -> None:
        """A person commands a savepoint."""
        if self.world.steps.happens("savepoint asked"):
            self._savepoint()

    def _savepoint(self) -> None:
        self.world.count["savepoint asked"] += 1
        self.world.operators.command("savepoint", name=None)

    def feed_any(self) -> None:
        """Feed a random fact to a copy of a random machine: it is handled, or refused with the state unchanged."""
        any_fact_is_handled_or_refused(self.world)
