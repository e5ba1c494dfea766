"""Rules and derived tables are analysed by a Spark of this machine, where no service is asked: before a pipeline of
`cutline run` begins, by `cutline plan` and by `cutline doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutline.common.causes import Cause
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.places import in_file
from cutline.common.errors import Unavailable
from cutline.common.preview import PreviewAnswer, PreviewRequest, Refusal
from cutline.services.sources.mysql.rules import asked_of, changes_it

SECONDS = 120.0


def has_rules(config: PipelineConfig) -> bool:
    """Whether there is anything that Spark must analyse."""
    return bool(config.derived) or any(options.has_shape for options in config.table_options)


def analysed(request: PreviewRequest) -> PreviewAnswer:
    """Analyse by a Spark that is started for it, in a process of its own: what it prints, and its memory, are gone with
    it. Takes 5 to 20 s. Raises Unavailable if that fails."""
    command = [sys.executable, "-m", "cutline.spark_writer.analyse"]
    asked = json.dumps(request.to_json())
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Spark did not analyse the rules within {SECONDS:.0f} s", "try again") from None
    lines = done.stdout.splitlines()
    try:
        made = json.loads(lines[-1]) if lines else {}
    except ValueError:
        made = {}
    if made.get("failed") is not None:
        raise Unavailable(Cause.from_json(made["failed"]))
    if not made:
        last = (done.stderr.splitlines() or ["it printed nothing"])[-1]
        raise Unavailable(f"the process in which Spark analyses rules ended with {done.returncode}: {last}")
    return PreviewAnswer.from_json(made)


def refusals(config: PipelineConfig) -> list[Refusal]:
    """What Spark refuses of a pipeline's rules and derived tables, by the source as it is now. Raises as `analysed`,
    and as the source does."""
    if not has_rules(config):
        return []
    asked = asked_of(config)
    return [*asked.refusals, *(() if asked.request is None else analysed(asked.request).refusals)]


def faults(config: PipelineConfig, before: Mapping[str, Any] | None) -> list[Cause]:
    """A fault for each refusal of what a definition makes anew; `before` is the stored one. Spark is started only if
    a rule or a derived table is another one than there. Raises as `refusals`."""
    stored = None if before is None else PipelineConfig.from_definition(before)
    if stored is not None and (stored.table_options, stored.derived) == (config.table_options, config.derived):
        return []
    return [at_place(each) for each in refusals(config) if changes_it(stored, config, each)]


def at_place(refusal: Refusal, file: Path | None = None) -> Cause:
    """A refusal with its place in the definition, and in the pipeline file."""
    where = "" if file is None else f"{in_file(file, refusal.place)}: "
    return refusal.cause.before(f"{where}{refusal.place}: ")
