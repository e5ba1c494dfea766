"""Each block of README.md and docs/ has a test that carries it out; those that need no server are carried out here."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import jsonschema_rs
import pytest
import yaml

from cutline.common import logs
from cutline.common.causes import Cause, Code
from cutline.common.config.pipeline import PipelineConfig, load
from cutline.common.mesh.machine import State
from cutline.common.schema import TableSchema
from cutline.services.control.alerts import Alerts, Judged, body
from cutline.services.control.conditions import CONDITIONS, Finding
from cutline.services.reader.machine import Reader
from tests.support.pages import BLOCKS, PICTURES, ROOT, RUN_BY, Block, blocks, blocks_of, parsed

CHART = ROOT / "k8s" / "chart"
SHOP: dict[str, Any] = {
    "name": "shop",
    "source": {"host": "127.0.0.1", "user": "cdc", "password_env": "SHOP_PASSWORD"},
    "tables": ["shop.*"],
    "sink": {"type": "iceberg", "warehouse": "s3://company/lake"},
}
"""A pipeline file, which a block that shows a part of one completes."""
MARKED = 8


# --- the list ---------------------------------------------------------------------------------------------------------


def test_each_block_is_carried_out_by_one_test_or_says_why_it_is_not() -> None:
    unmarked = [block for block in blocks() if block.not_run is None and block.language not in PICTURES]
    assert {str(block): block.tests for block in unmarked if len(block.tests) != 1} == {}
    assert len([block for block in blocks() if block.not_run is not None]) == MARKED


def test_each_line_of_the_list_has_blocks_and_a_test_that_reads_its_page() -> None:
    for test, page, section, languages in RUN_BY:
        found = [block for block in blocks_of(test) if block.page == page and section in ("", block.section)]
        assert languages <= {block.language for block in found}, (page, section)
        text = (ROOT / test).read_text(encoding="utf-8")
        assert "blocks_of(" in text or Path(page).name in text, (test, page)


@pytest.mark.parametrize("block", blocks_of(BLOCKS), ids=str)
def test_a_block_works_as_it_stands(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CARRIED_OUT[block.page.removeprefix("docs/"), block.language](block)


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["fly", "pipeline fly", "run shop.yaml --fast", "table retry shop", "where a b"])
def test_a_command_that_cutline_does_not_take_is_found(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError):
        parsed(wrong.split())


# --- pipeline files ---------------------------------------------------------------------------------------------------


def pipeline_loads(block: Block) -> None:
    """A whole pipeline file, or a part of one; by the loader that `run` has, which refuses what it does not know."""
    shown = yaml.safe_load(block.text)
    whole = {**SHOP, **shown, "sink": {**SHOP["sink"], **shown.get("sink", {})}}
    file = Path("shop.yaml")
    file.write_text(block.text if shown.keys() >= SHOP.keys() else yaml.safe_dump(whole))
    config = load(file)
    assert PipelineConfig.from_definition(config.definition()).definition() == config.definition()


def values_are_those_of_the_chart(block: Block) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    shown = yaml.safe_load(block.text)
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), shown)
    jsonschema_rs.validator_for(schema).validate(values)
    for name, content in shown["pipelines"].items():
        PipelineConfig.model_validate({"name": name, **content})


def merged(below: Any, above: Any) -> Any:
    """Helm's values: mappings are merged, all else replaces."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{name: merged(below.get(name), value) for name, value in above.items()}}


# --- what others read -------------------------------------------------------------------------------------------------


def monitoring_is_as_shown(block: Block) -> None:
    """A part of prometheus.yml, a post to the webhook, or a line of the log."""
    {
        "Alerts and the dashboard of Grafana": prometheus_finds_the_rules,
        "Alerts without Prometheus": the_post_is_as_shown,
        "Logs": the_line_is_as_shown,
    }[block.section](yaml.safe_load(block.text))


def prometheus_finds_the_rules(shown: dict[str, Any]) -> None:
    assert [(ROOT / "k8s" / "monitoring" / name).is_file() for name in shown["rule_files"]] == [True]
    (job,) = shown["scrape_configs"]
    assert job.keys() == {"job_name", "authorization", "static_configs"}
    assert "metrics_path" not in job  # the default is /metrics, which is ours


def the_post_is_as_shown(shown: dict[str, Any]) -> None:
    condition = next(each for each in CONDITIONS if each.name == shown["commonLabels"]["alertname"])
    alerts, began = Alerts(), int(shown["groupKey"].rpartition("/")[2]) / 1000
    cause = Cause(Code(shown["commonAnnotations"]["cause_url"].rpartition("#")[2]), "it is so")
    labels = (("pipeline", "shop"),)
    finding = Finding(id="1", condition=condition, labels=labels, since=began, cause=cause)
    alerts.handle(Judged(found=(finding,)), began)
    delivery = alerts.due(began)
    assert delivery is not None
    posted = body(delivery, docs_url=None)
    assert set(shown["alerts"][0]) | {"generatorURL"} == set(posted["alerts"][0])
    assert set(shown) <= set(posted)
    assert alike({name: value for name, value in shown.items() if name != "alerts"}, posted)


def alike(shown: Any, found: Any) -> bool:
    """Whether a value is as the page shows it; `...` there stands for anything."""
    if isinstance(shown, dict):
        return all(name in found and alike(value, found[name]) for name, value in shown.items())
    return re.fullmatch(".*".join(map(re.escape, str(shown).split("..."))), str(found), re.DOTALL) is not None


def the_line_is_as_shown(shown: dict[str, Any]) -> None:
    record = logging.LogRecord("cutline.host", logging.WARNING, "", 1, "gone", None, None)
    for name in logs.FIELDS:
        setattr(record, name, "x")
    with logs.about(service=""):
        line = json.loads(logs.Json([]).format(record))
    assert shown.keys() == line.keys()
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}Z", line["time"])
    assert (line["level"], line["logger"]) == (shown["level"], shown["logger"])


def record_is_read(block: Block) -> None:
    """What the page of the architecture shows of the store beside whole records: part of an entry, a reader's part."""
    if block.language == "text":
        found = json.loads(f"{{{block.text}}}")["metrics"]
        assert [len(column) for each in found.values() for column in each["columns"]] == [5, 5]
        return
    head, *entries = map(json.loads, block.text.splitlines())
    ((section, table, value),) = entries
    named = cast(TableSchema, SimpleNamespace(hash=value["schema"]))
    reader = Reader(name="reader-0", writers=("writer-0",), stream=True)
    reader.restore(State(head=head, values={section: {table: value}}, schemas=(named,)))
    saved = reader.snapshot()
    assert (saved.head, saved.values) == (head, {section: {table: value}})


CARRIED_OUT: Mapping[tuple[str, str], Callable[[Block], None]] = {
    ("architecture.md", "jsonl"): record_is_read,
    ("architecture.md", "text"): record_is_read,
    ("metrics.md", "yaml"): monitoring_is_as_shown,
    ("operations/kubernetes.md", "yaml"): values_are_those_of_the_chart,
    ("operations/lake.md", "yaml"): pipeline_loads,
    ("operations/source.md", "yaml"): pipeline_loads,
    ("settings.md", "yaml"): pipeline_loads,
}
"""How the blocks of a page in a language are carried out here."""
