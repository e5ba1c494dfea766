"""Commands: how a change is asked for, and what became of it.

A command is in the store before the answer, so no crash loses it; the pipeline's leader takes commands in the order of
their numbers. One that makes no sense now is refused (409) and not queued.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Header, Path, Request, Response
from fastapi.responses import JSONResponse

from cutline.common.commands.kinds import CancelCommand, Wish
from cutline.common.config.pipeline import shown
from cutline.common.errors import Unavailable
from cutline.common.mesh.presence import Registry, RequestKind
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store import lives
from cutline.common.store.commands import Command, KeyUsed, Outcome
from cutline.common.store.store import PipelineStore
from cutline.services.control.api import situation
from cutline.services.control.api.dependencies import CallerNow, Control, Known, RegistryNow, Shared, role, router
from cutline.services.control.api.models import CommandState, CommandView
from cutline.services.control.api.paging import Newest, foreign
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.api.roles import Caller
from cutline.services.control.api.situation import Situation
from cutline.services.control.api.waiting import Wait, until
from cutline.services.control.store_calls import in_store
from cutline.services.control.watch import CURRENT_SECONDS

routes = router("commands")
REPORT_SECONDS = 3.0
Number = Annotated[int, Path(ge=1, le=10**10 - 1, description="number of a command", examples=[7])]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        examples=["nightly-2026-11-24"],
        description="your own name of this call: repeated with it, the call is the same command",
    ),
]


UnderWay = Mapping[int, tuple[bool, str | None]]
"""By its number: whether the leader has taken a command, and what it waits for."""


class Repeated(Exception):
    """A request that made its command before, as its Idempotency-Key says: that command is the answer."""

    def __init__(self, view: CommandView) -> None:
        """Take the command as it is now."""
        super().__init__(view.url)
        self.view = view


async def answer_repeated(_: Request, repeated: Exception) -> Response:
    """The answer to a repeated request."""
    assert isinstance(repeated, Repeated)
    view = repeated.view
    return JSONResponse(view.model_dump(mode="json"), status_code=202, headers={"Location": view.url})


class Asking:
    """One request for a change of a pipeline."""

    def __init__(
        self,
        *,
        request: Request,
        response: Response,
        found: PipelineStore,
        shared: Control,
        caller: Caller,
        seconds: float,
        key: str | None,
    ) -> None:
        """Take what the request brings; `key` as the command has it."""
        self.found = found
        self.shared = shared
        self.registry = shared.registry
        self._request = request
        self._response = response
        self._caller = caller
        self._seconds = seconds
        self._key = key

    async def situation(self) -> Situation:
        """What the pipeline is doing. Without Redis, only the store tells.

        A client that pauses a table and resumes it once that is done must not be told that the table is live.
        """

        async def look() -> Situation:
            status = PipelineStatus()
            with suppress(Unavailable):
                status = await self.registry.status(self.found.key)
            tables, _ = await self.shared.watches.find(self.found).tables(status)
            return await in_store(situation.look, self.found, status, tables)

        return await until(look, lambda now: now.shows_finished, REPORT_SECONDS)

    async def command(
        self,
        wish: Wish,
        allow: Callable[[Situation], None] | None = None,
        *,
        exact: Callable[[Situation], Wish] | None = None,
    ) -> CommandView:
        """Put a command into the store, unless its rule or `allow` raise Refused, and return it as it is after the wait
        that the request asks for. `exact` makes of what the pipeline is doing what is commanded."""
        now = await self.situation()
        now.allow(wish)
        if allow is not None:
            allow(now)
        if exact is not None:
            wish = exact(now)
        client = self._request.client
        try:
            command = await in_store(
                self.found.commands.add,
                wish.kind,
                wish.arguments(),
                by=self._caller.name,
                origin=client.host if client else None,
                key=self._key,
                now=time.time(),
            )
        except KeyUsed as error:  # in between
            raise refused(409, error) from error
        with suppress(Unavailable):  # a hint only: the leader looks by itself too
            await self.registry.request(self.found.key, {"kind": RequestKind.LOOK})
        return await self._accepted(command)

    async def _accepted(self, command: Command) -> CommandView:
        self._request.state.command = command.n
        view = await _settled(self.registry, self.found, command, self._seconds)
        self._response.headers["Location"] = view.url
        return view


async def _asking(
    request: Request,
    response: Response,
    found: Known,
    shared: Shared,
    caller: CallerNow,
    seconds: Wait,
    given: Key = None,
) -> Asking:
    """What a request brings. Raises Repeated if its key made a command before, Refused (409) if that was by another
    request."""
    key = None
    if given is not None:
        what = f"{request.method} {request.url.path}?{request.url.query}\n".encode() + await request.body()
        key = f"{given} {hashlib.sha256(what).hexdigest()[:16]}"
        command = await in_store(found.commands.with_key, given)
        if command is not None and command.key == key:
            request.state.command = command.n
            raise Repeated(await _settled(shared.registry, found, command, seconds))
        if command is not None:
            raise Refused(
                409,
                f"the Idempotency-Key was used for command {command.n} ({command.kind}) by another request",
                "use a new key for each command",
            )
    return Asking(
        request=request, response=response, found=found, shared=shared, caller=caller, seconds=seconds, key=key
    )


Asked = Annotated[Asking, Depends(_asking)]


async def _settled(registry: Registry, found: PipelineStore, command: Command, seconds: float) -> CommandView:
    """The command once it is finished, or as it is after `seconds`."""

    async def look() -> Outcome | None:
        return await in_store(found.commands.outcome, command.n)

    outcome = await until(look, lambda found: found is not None, seconds)
    under_way: UnderWay = {}
    if outcome is None:
        with suppress(Unavailable):
            under_way = await _under_way(registry, found.key)
    return view_of(found.name, command, outcome, under_way)


async def _under_way(registry: Registry, pipeline: lives.Key) -> UnderWay:
    """The leader's commands; those of one that died, its successor begins anew."""
    leader = (await registry.status(pipeline)).enumerator
    if leader.at is None or time.time() - leader.at > CURRENT_SECONDS:
        return {}
    commands = leader.commands
    taken = {*commands.apart} | ({commands.running} if commands.running is not None else set())
    return {n: (n in taken, commands.waiting.get(n)) for n in taken | commands.waiting.keys()}


def view_of(pipeline: str, command: Command, outcome: Outcome | None, under_way: UnderWay) -> CommandView:
    """One command as clients see it."""
    taken, waiting_for = under_way.get(command.n, (False, None)) if outcome is None else (False, None)
    state: CommandState = outcome.state if outcome else "running" if taken else "accepted"
    return CommandView(
        number=command.n,
        kind=command.kind,
        arguments=shown("", dict(command.arguments)),
        state=state,
        by=command.by,
        at=command.at,
        cause=outcome.cause if outcome else None,
        remedy=outcome.remedy if outcome else None,
        result=dict(outcome.result) if outcome else {},
        finished_at=outcome.at if outcome else None,
        waiting_for=waiting_for,
        url=f"/v1/pipelines/{pipeline}/commands/{command.n}",
    )


@routes.get("/pipelines/{pipeline}/commands", operation_id="list_commands")
async def commands(found: Known, registry: RegistryNow, page: Newest) -> list[CommandView]:
    """List the commands of the pipeline, newest first; the last thousand are kept."""
    if page.after is not None and not isinstance(page.after, int):
        raise foreign()
    assert page.limit is not None
    before = page.after if page.after is not None else await in_store(found.commands.newest) + 1
    listed = await in_store(found.commands.list, before=before, limit=page.limit + 1)
    under_way: UnderWay = {}
    with suppress(Unavailable):
        under_way = await _under_way(registry, found.key)

    def views() -> list[CommandView]:
        shown_ones = listed[: page.limit]
        return [view_of(found.name, command, found.commands.outcome(command.n), under_way) for command in shown_ones]

    if len(listed) > page.limit:
        page.link(listed[page.limit - 1].n)
    return await in_store(views)


@routes.get("/pipelines/{pipeline}/commands/{number}", operation_id="get_command")
async def command(
    found: Known, registry: RegistryNow, seconds: Wait, number: Number
) -> CommandView:
    """Return one command; with `wait`, once it is finished."""
    known = await in_store(found.commands.get, number)
    if known is None:
        cause = f"pipeline {found.name} has no command {number}, or none any more"
        raise Refused(404, cause, "GET .../commands lists the last ones")
    return await _settled(registry, found, known, seconds)


@routes.post(
    "/pipelines/{pipeline}/commands/{number}/cancel",
    operation_id="cancel_command",
    status_code=202,
    openapi_extra=role("operator"),
)
async def cancel(asked: Asked, number: Number) -> CommandView:
    """Cancel a command, as long as it has no effect that lasts: while it waits for its turn, for a checkpoint, for an
    epoch, or for the Spark writer to begin it. This is a command too; it is refused if the other was carried out
    first."""
    known = await in_store(asked.found.commands.get, number)
    if known is None:
        cause = f"pipeline {asked.found.name} has no command {number}, or none any more"
        raise Refused(404, cause, "GET .../commands lists the last ones")
    outcome = await in_store(asked.found.commands.outcome, number)
    if outcome is not None:
        raise Refused(409, f"command {number} is {outcome.state} already", "there is nothing to cancel")
    if isinstance(known.wish, CancelCommand):
        raise Refused(409, f"command {number} is itself a cancellation", "ask again for what it cancels")
    return await asked.command(CancelCommand(command=number))
