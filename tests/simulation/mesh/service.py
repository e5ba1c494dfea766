"""What the world knows of one process, and of one channel."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cutline.common.causes import Cause
from cutline.common.errors import Loss
from cutline.common.limits import UNLIMITED, Limits
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.parts import Parts
from cutline.common.mesh.silence import Silence
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator.leader import Leader
from cutline.services.sources.mysql.watermark import Commits
from tests.simulation.mesh.files import OpenFiles
from tests.simulation.mesh.probe import Probe

if TYPE_CHECKING:
    from tests.simulation.mesh.driven import Driven


@dataclass(slots=True)
class Channel:
    """One stream: numbered messages from one sender to one receiver."""

    name: tuple[int, str, str]  # epoch, sender, receiver
    sent: int = 0
    expected: int = 1
    queue: deque[tuple[int, Any]] = field(default_factory=deque)
    gone: bool = False
    scheduled: bool = False
    credit: int = 0  # rows sent and not taken
    waiting: SimulatedService | None = None


@dataclass(slots=True)
class SimulatedDump:
    """One cursor of a reader: its connection, the transactions prepared on it, and commits not yet in the engine."""

    connection: int = 0
    prepared: dict[int, Any] = field(default_factory=dict)
    commits: Commits = field(default_factory=Commits)


@dataclass(slots=True, eq=False)
class SimulatedService:
    """One process of the mesh."""

    role: str
    incarnation: str
    store: PipelineStore
    parts: Parts | None = None  # of its epoch
    alive: bool = True
    died_at: float = 0.0
    paused_until: float = 0.0
    leaving: bool = False
    inbox: deque[tuple[Any, Event]] = field(default_factory=deque)
    effects: deque[tuple[Any, Effect]] = field(default_factory=deque)
    blocked: bool = False
    busy: bool = False
    driven: Driven | None = None  # it runs the real driver
    # a member's
    name: str = ""
    epoch: int = 0
    token: Any = None  # identifies its part in one epoch; answers to an older one are dropped
    process: Process | None = None
    probe: Probe | None = None
    silence: Silence | None = None  # of its leader
    failed: tuple[int, Cause | None, bool, Loss] = (0, None, False, Loss.NOTHING)
    chunk: Any = None
    limits: Limits = UNLIMITED
    dumps: dict[str, SimulatedDump] = field(default_factory=dict)
    files: OpenFiles | None = None  # a writer's
    # a leader's
    leader: Leader | None = None
