"""How commands that need no control service reach a pipeline: they read its status, and put commands into its store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from cutline.common.causes import Cause, Code
from cutline.common.commands import rules
from cutline.common.commands.kinds import ChooseAboutLake, SetLimits, Wish
from cutline.common.errors import ConfigError, CutlineError
from cutline.common.limits import Limits
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.redis import connect
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.commands import Command, Outcome
from cutline.common.store.records import Publication
from cutline.common.store.store import PipelineStore, Store
from cutline.common.table_id import meant
from cutline.services.control.standing import Held, Standing

THROTTLE_SECONDS = 30.0
CHOICE_SECONDS = 60.0
_LOOK_SECONDS = 0.2


async def status_of(redis_url: str, pipeline: PipelineStore) -> PipelineStatus:
    """The status of `pipeline`, which says nothing if no service has written any; Unavailable if Redis doesn't answer.
    """
    if pipeline.definition() is None:
        return PipelineStatus()
    redis = connect(redis_url)
    try:
        return await Registry(redis).status(pipeline.key)
    finally:
        await redis.aclose()


async def look_of(redis_url: str, root: Store, pipeline: PipelineStore) -> tuple[PipelineStatus, list[Held]]:
    """The status of `pipeline`, as `status_of`, and the conditions that hold."""
    if pipeline.definition() is None:
        return PipelineStatus(), []
    redis = connect(redis_url)
    try:
        registry = Registry(redis)
        status = await registry.status(pipeline.key)
        return status, await Standing(registry, root).of_pipelines({pipeline.life: status})
    finally:
        await redis.aclose()


def newest_publication(pipeline: PipelineStore, after: int = 0) -> Publication | None:
    """The newest publication of `pipeline`, None if there is none after number `after`. Blocks."""
    numbers = pipeline.publication_numbers(after)
    return pipeline.publication(numbers[-1]) if numbers else None


def ask(
    store: PipelineStore, wish: Wish, *, by: str, key: str | None = None
) -> Command:
    """Put a command into the store; durable on return. ConfigError if there is no such pipeline, or if the command
    makes no sense by its standing orders. After Unavailable, repeat only a call with a `key`. Blocks."""
    if not store.definition_version():
        raise ConfigError(f"the store has no pipeline {store.name}", "define it by `cutline run` or `cutline define`")
    mode = store.commands.orders().mode
    if (refusal := wish.refusal(rules.state(mode, halted=False, ended=False))) is not None:
        raise ConfigError(Cause(Code.CONFIGURATION, refusal.cause, refusal.remedy))
    return store.commands.add(wish.kind, wish.arguments(), by=by, now=time.time(), key=key)


def outcome_of(
    store: PipelineStore, command: Command, seconds: float, pause: Callable[[float], object] = time.sleep
) -> Outcome | None:
    """What became of a command, None if a leader has not finished it after `seconds`. Blocks."""
    ends_at = time.monotonic() + seconds
    while (outcome := store.commands.outcome(command.n)) is None and time.monotonic() < ends_at:
        pause(_LOOK_SECONDS)
    return outcome


def _carried_out(store: PipelineStore, command: Command, seconds: float) -> None:
    outcome = outcome_of(store, command, seconds)
    if outcome is None:
        raise CutlineError(
            f"command {command.n} ({command.kind}) of pipeline {store.name} is accepted and not carried out yet",
            "a leader does it in its turn, see `cutline status`",
        )
    if outcome.state != "done":
        sentence = f"command {command.n} ({command.kind}) {outcome.state}: {outcome.cause}"
        raise CutlineError(sentence, outcome.remedy or "")


def throttle(store: PipelineStore, limits: Limits) -> None:
    """Command these limits and return once they are in force. Blocks; CutlineError if no leader takes them in time."""
    _carried_out(store, ask(store, SetLimits(**asdict(limits)), by="cutline throttle"), THROTTLE_SECONDS)


def choose(store: PipelineStore, status: PipelineStatus, table: str, choice: str) -> None:
    """Command a choice about the commits of others to a lake table, as the status shows them, and return when the table
    keeps it. Blocks; ConfigError if there is nothing to choose, CutlineError if it is not taken in time."""
    table = meant(table, status.tables)
    seen = status.choice(table, choice)
    command = ask(store, ChooseAboutLake(table=table, choice=choice, seen=seen), by="cutline lake")
    _carried_out(store, command, CHOICE_SECONDS)
