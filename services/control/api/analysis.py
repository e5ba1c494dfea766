"""Rules and derived tables are analysed by a Spark writer, since this service has no Spark.

A rule that Spark refuses is refused here, before anything is written; where no Spark writer is alive, or the source
does not answer, it is found out when the pipeline runs, and costs that table a quarantine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import CutlineError, Unavailable
from cutline.common.mesh.presence import Registry
from cutline.common.preview import PreviewAnswer, PreviewRequest, Refusal
from cutline.common.status.pipeline_status import SPARK_WRITER
from cutline.services.control.api.dependencies import Control
from cutline.services.control.api.problems import FieldProblem, Refused
from cutline.services.sources.mysql.rules import asked_of, changes_it

Analyse = Callable[[PreviewRequest], PreviewAnswer]
"""Has a Spark analyse what is asked; blocks. Raises Unavailable or ConfigError if there is none."""


def by_spark_writers(registry: Registry) -> Analyse:
    """Analyse by any Spark writer of the store; to be called in a thread, while this loop runs."""
    loop = asyncio.get_running_loop()

    async def ask(request: PreviewRequest) -> PreviewAnswer:
        services = await registry.services()
        if not any(each.role == SPARK_WRITER and not each.starting and not each.leaving for each in services):
            raise Unavailable("no Spark writer is alive", "start one, or wait until it has started")
        return await registry.previews.analysed(request)

    return lambda request: asyncio.run_coroutine_threadsafe(ask(request), loop).result()


async def refuse_rules(shared: Control, config: PipelineConfig, before: PipelineConfig | None = None) -> None:
    """Raise Refused (422) with each rule and query of a new definition that Spark refuses, by its place; `before` is
    the definition that the pipeline has. Nothing is refused where it can't be known now."""
    if not config.derived and not any(options.has_shape for options in config.table_options):
        return
    refusals: list[Refusal] = []
    with suppress(CutlineError, Refused):
        call = partial(_refusals, config, by_spark_writers(shared.registry))
        refusals = await shared.sources.run(call, config.source)
    faults = [as_problem(each) for each in refusals if changes_it(before, config, each)]
    if faults:
        raise Refused(422, faults[0].detail, faults[0].remedy, code=faults[0].code, errors=faults)


def as_problem(refusal: Refusal) -> FieldProblem:
    """A refusal as a fault of a request, at its place in the definition."""
    cause = refusal.cause
    return FieldProblem(field=refusal.place, detail=cause.sentence, remedy=cause.remedy or None, code=cause.code)


def _refusals(config: PipelineConfig, analyse: Analyse) -> list[Refusal]:
    asked = asked_of(config)
    found = list(asked.refusals)
    with suppress(CutlineError):
        found += () if asked.request is None else analyse(asked.request).refusals
    return found
