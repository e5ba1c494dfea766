"""The alert rules and the dashboard's queries, checked by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

from tests.programs import program

FOLDER = Path(__file__).parents[2] / "k8s" / "monitoring"


def checked(*arguments: str) -> None:
    done = subprocess.run([program("promtool"), *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules() -> None:
    checked("check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml")


def test_each_rule_fires_and_stays_silent_as_its_test_says() -> None:
    checked("test", "rules", "alerts.test.yaml")


def test_promtool_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """A query is put into a recording rule, with Grafana's variables filled in."""
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    filled = [re.sub(r"\$pipeline", ".*", query).replace("$__rate_interval", "5m") for query in queries]
    rules = [{"record": f"cutline:query{at}", "expr": query} for at, query in enumerate(filled)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked("check", "rules", str(file))
