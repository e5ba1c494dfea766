"""`cutline plan`: what `cutline run` would do with a pipeline file, without a service."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.config.places import in_file
from cutline.common.store.store import Store
from cutline.services.client.rest.models import Plan
from cutline.services.run import analysis
from cutline.services.run.cli.exits import exit_codes
from cutline.services.run.cli.local import PIPELINE_FILE, workdir_of
from cutline.services.run.cli.pipeline import show_plan
from cutline.services.run.workdir import store_url_of


@click.command("plan")
@click.argument("pipeline", type=PIPELINE_FILE)
@click.option("--workdir", type=click.Path(path_type=Path, file_okay=False), help="The folder given to `run`.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as the API gives it.")
@exit_codes
def plan_file(pipeline: Path, workdir: Path | None, as_json: bool) -> None:
    """Show what `run` would do with PIPELINE: what is read, what would be quarantined, what it costs. Spark analyses
    its rules and derived tables, for which it is started.

    The exit code is 1 if it is impossible, or if Spark refuses a rule.
    """
    from cutline.services.control.api.plan import plan  # it brings the API's framework, which no other command needs

    config = load(pipeline)
    url = store_url_of(workdir_of(pipeline, config, workdir), Environment.read())
    stored = Store(url).pipeline(config.name)
    version = stored.definition_version()
    found = plan(
        config,
        store_url=url,
        before=stored.definition(version) if version else None,
        version=version,
        analyse=analysis.analysed,
    )
    shown = Plan.model_validate(found.model_dump())
    if not show_plan(shown, as_json=as_json, place=lambda place: f"{in_file(pipeline, place)}: {place}"):
        sys.exit(1)


COMMANDS = (plan_file,)
