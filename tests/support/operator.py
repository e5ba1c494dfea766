"""A person who commands a pipeline of a mesh through its store, and waits for what becomes of it."""

from __future__ import annotations

import time
from typing import Any

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.store.commands import Command, Outcome
from tests.support.mesh import Pipeline


def command(pipeline: Pipeline, kind: str, **arguments: Any) -> Command:
    """Accept a command, as the control service does."""
    return pipeline.store.commands.add(kind, arguments, by="ann", now=time.time())


def outcome(pipeline: Pipeline, accepted: Command, seconds: float = 60.0) -> Outcome:
    """Wait for what becomes of a command."""
    goal = f"command {accepted.n} ({accepted.kind})"
    return pipeline.until(lambda: pipeline.store.commands.outcome(accepted.n), goal, seconds)


def done(pipeline: Pipeline, kind: str, **arguments: Any) -> dict[str, Any]:
    """Command something that is to succeed; return its result."""
    found = outcome(pipeline, command(pipeline, kind, **arguments))
    assert found.state == "done", found
    return dict(found.result)


def refused(pipeline: Pipeline, kind: str, **arguments: Any) -> str:
    """Command something that makes no sense now; return the cause."""
    found = outcome(pipeline, command(pipeline, kind, **arguments))
    assert found.state == "refused", found
    assert found.remedy
    return str(found.cause)


def redefined(pipeline: Pipeline, **changes: Any) -> dict[str, Any]:
    """Arguments of a `define` that changes the definition in force."""
    version = pipeline.store.commands.orders().definition
    definition = {**(pipeline.store.definition(version) or {}), **changes}
    return {"base": version, "definition": PipelineConfig.from_definition(definition).definition(), "note": None}
