"""Alert rules and dashboard name metrics that exist, and the webhook's conditions judge as the rules do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cutline.services.control.conditions import CONDITIONS, Samples
from tests.unit.services.control.test_metrics import rendered_names

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "k8s" / "monitoring"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
}
CASES = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
ONLY_PROMETHEUS = {"CutlineControlMissing"}  # a control service can't notice that there is none
JUDGED = [case for case in CASES if case["name"] not in ONLY_PROMETHEUS]


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bcutline_\w+", expression))


def test_every_metric_of_rules_and_dashboard_is_rendered() -> None:
    expressions = [rule["expr"] for rule in RULES.values()]
    expressions += [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    expressions += [str(variable.get("definition", "")) for variable in DASHBOARD["templating"]["list"]]
    assert len(expressions) > 40
    missing = set().union(*map(named, expressions)) - rendered_names()
    assert not missing


def test_every_rule_links_to_its_own_section_of_the_operations_guide() -> None:
    guide = (ROOT / "docs" / "operations" / "messages.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^#+ (.+)$", guide, re.MULTILINE))
    for name, rule in RULES.items():
        assert name in headings, name
        assert rule["annotations"]["runbook_url"] == f"docs/operations/messages.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_webhook_has_the_same_alerts_as_the_rules() -> None:
    assert {condition.name for condition in CONDITIONS} == RULES.keys() - ONLY_PROMETHEUS
    for condition in CONDITIONS:
        rule = RULES[condition.name]
        summary, remedy = (
            re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"{\1}", rule["annotations"][name]) for name in ("summary", "remedy")
        )
        assert (condition.summary, condition.remedy) == (summary, remedy)
        assert condition.severity == rule["labels"]["severity"]
        assert rule["for"] == f"{condition.for_seconds:g}s"
        assert rule["annotations"]["runbook_url"] == f"docs/{condition.runbook}"


def test_every_rule_has_a_test_of_its_own() -> None:
    assert [case["name"] for case in CASES] == list(RULES)


@pytest.mark.parametrize("case", JUDGED, ids=lambda c: c["name"])
def test_the_conditions_judge_the_samples_of_the_rules_tests_as_the_rules_do(case: dict[str, Any]) -> None:
    """Only the case's own alert is found, with the labels that its rule has; a pipeline named halted is halted too."""
    read = []
    for series in case["input_series"]:
        name, _, labels = series["series"].partition("{")
        value = series["values"].partition("x")[0]
        read.append((name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    samples = Samples(read)
    found = {condition.name: [dict(labels) for labels in condition.found(samples)] for condition in CONDITIONS}
    expected = case["alert_rule_test"][-1]["exp_alerts"]
    for alert in expected:
        alert["exp_labels"].pop("severity")
    wanted = [alert["exp_labels"] for alert in expected]
    if case["name"] != "CutlineHalted":
        found["CutlineHalted"] = [labels for labels in found["CutlineHalted"] if labels != {"pipeline": "halted"}]
    assert {name: labels for name, labels in found.items() if labels} == {case["name"]: wanted}
    (condition,) = (each for each in CONDITIONS if each.name == case["name"])
    assert condition.summary.format(**expected[0]["exp_labels"]) == expected[0]["exp_annotations"]["summary"]


def test_the_dashboard_is_consistent() -> None:
    """Each panel has a place of its own, a description, and the variables for data source and pipeline."""
    panels = DASHBOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "pipeline"]
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            every_pipeline = {"services", "event", "process", "redis", "disk"}
            shared = all(name.split("_")[1] in every_pipeline for name in named(target["expr"]))
            assert shared or 'pipeline=~"$pipeline"' in target["expr"], target["expr"]
