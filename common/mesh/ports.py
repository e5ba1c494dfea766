"""The ports of a driver: all through which it reaches the world, beside the files of its store and its source.

A driver (`driver.py` of each service) is the same object in production (production.py) and in the simulation, whose
ports let calls interleave, hang, fail half-way and answer late. So a driver reads no clock, draws no luck, starts no
thread and opens no connection but by its ports. It waits on its event loop, which a simulation replaces as a whole.

What a driver must be ready for, at each call:

- Unavailable, before the call had its effect or after it: whatever is repeated must be harmless.
- It never returns. The driver then goes on with all else, and says in its status what it waits for.
- It returns after the driver was closed, or after the lease or the epoch was lost. A blocking call goes on in its
  thread although the task that awaits it was cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from cutline.common.clock import Clock
from cutline.common.mesh.log_lines import LogLines
from cutline.common.mesh.machine import Event, Send
from cutline.common.mesh.presence import Service
from cutline.common.mesh.topology import Channel
from cutline.common.status.pipeline_status import ChannelStatus, MemberStatus, PartStatus, PipelineStatus
from cutline.common.store.lives import Key
from cutline.common.waits import Wait

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Protocol):
    """Threads for one kind of blocking calls."""

    async def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Make the call behind all earlier ones; raises what it raises. It goes on if the caller is cancelled, so the
        call that closes an object goes to `end`, never beside the calls that use it."""

    def end(self, function: Callable[[], object] = lambda: None) -> None:
        """Make the pool's last call, behind all earlier ones, without waiting for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The threads of a process. Those named here are shared by all pipelines, so no source is asked in them.

    `own` makes a pool of the caller's own: its name and the most threads.
    """

    own: Callable[[str, int], Pool]
    store: Pool
    sweep: Pool  # of the store: it may take long, and must not hold up an entry of a journal
    remove: Pool  # the same for a deletion
    encode: Pool  # waits for nothing


class Inbox(Protocol):
    """Takes facts: a `Loop`."""

    def tell(self, event: Event, taken: Callable[[], Awaitable[None]] | None = None) -> None:
        """Queue a fact; `taken` is awaited once its effects are carried out."""


class Links(Protocol):
    """All channels of one member in one epoch."""

    async def send(self, order: Send) -> None:
        """Return once the message is behind all earlier ones to that receiver; waits while its channel is full."""

    def pump(self, loop: Inbox) -> Coroutine[Any, Any, None]:
        """Hand each received message to the loop, for as long as the epoch lasts. Raises ProtocolError where a message
        is missing or foreign, Unavailable where the leader is lost."""

    def idle(self) -> Coroutine[Any, Any, None]:
        """Say each second on every channel that this member lives; never returns."""

    @property
    def waiting_for(self) -> Wait | None:
        """The receiver whose channel has been full for long."""

    def state(self) -> Mapping[str, ChannelStatus]:
        """What each outbound channel holds, by the peer at its other end, for the status."""

    async def close(self) -> None:
        """Close all channels; queued messages stay unsent. Never raises Unavailable."""


class MakeLinks(Protocol):
    """Makes the links of a member; it waits for nothing."""

    def __call__(
        self,
        pipeline: Key,
        epoch: int,
        name: str,
        *,
        inbound: Iterable[str],
        outbound: Iterable[str],
        channels: int = 1,
    ) -> Links:
        """`channels`: how many channels of the epoch carry rows, of all members."""


class Notes(Protocol):
    """What services say of themselves and ask of each other (presence.py). Every call may raise Unavailable, and NoRoom
    where it writes."""

    async def announce_presence(self, service: Service) -> bool:
        """Announce each second that a service lives; False if its last note was gone."""

    async def withdraw_presence(self, incarnation: str) -> None:
        """The service ends."""

    async def put_lines(self, lines: LogLines, incarnation: str) -> None:
        """Append what a service has logged since the last call."""

    async def epochs(self) -> dict[Key, int]:
        """The epoch that each pipeline's leader has announced last."""

    async def services(self) -> list[Service]:
        """Every service that was present a moment ago."""

    async def announce_epoch(self, pipeline: Key, epoch: int) -> None:
        """Call the members of an epoch."""

    async def take_requests(self, pipeline: Key) -> list[dict[str, Any]]:
        """Take the hints for the leader."""

    async def request(self, pipeline: Key, request: Mapping[str, Any], *, to: str = ...) -> None:
        """Leave a hint for another service."""

    async def status(self, pipeline: Key) -> PipelineStatus:
        """The last status of each part of a pipeline."""

    async def put_status(
        self, pipeline: Key, part: str, status: PartStatus, *, tables: str | None = None
    ) -> None:
        """Put a part's status; `tables` is JSON, None: as they were."""

    async def put_member_status(self, pipeline: Key, member: str, status: MemberStatus) -> None:
        """Put a member's status, while its epoch is announced."""

    async def put_splits(self, pipeline: Key, changed: Mapping[str, str | None]) -> None:
        """Put the split grids of these tables; None removes one."""

    async def noted(self) -> set[str]:
        """The pipelines of which anything is noted or a stream is left."""

    async def forget(self, pipeline: Key) -> None:
        """Remove all that is noted of a pipeline; its streams are not."""


class Lease(Protocol):
    """The lease on one name: liveness only, so whoever holds it relies on it for nothing else."""

    async def acquire(self) -> bool:
        """Take or renew it. Raises NoRoom where it is free and Redis is full, else Unavailable."""

    async def release(self) -> None:
        """Release it if it is ours. May raise Unavailable; the lease then expires."""


class Streams(Protocol):
    """The streams that carry a pipeline's channels, as its leader makes and removes them. Every call may raise
    Unavailable."""

    async def create(self, pipeline: Key, epoch: int, channels: Sequence[Channel], *, leader: str) -> None:
        """Make the streams of an epoch; may be repeated. Raises NoRoom in a full Redis."""

    async def drop(self, pipeline: Key, *, before: int) -> int:
        """Remove the streams of the epochs below `before`, whose members then leave; return their number."""

    async def free(self, pipeline: Key) -> int:
        """Remove all streams of a pipeline that nobody leads, by its lease; return their number."""

    async def tight(self) -> bool:
        """Whether there may be no room for a new epoch as long as the last one's rows are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one process, shared by its drivers. `token(n)` draws n random bytes, as hex digits; `lease(pipeline,
    owner, ttl_seconds)` is the leader's."""

    clock: Clock
    token: Callable[[int], str]
    pools: Pools
    notes: Notes
    links: MakeLinks
    streams: Streams
    lease: Callable[[Key, str, float], Lease]
