"""The alert rules, the dashboard's queries and the autoscaler's, checked by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

from tools.programs import program

FOLDER = Path(__file__).parents[3] / "k8s" / "monitoring"


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


def test_scaling_measures_what_it_says(tmp_path: Path) -> None:
    """The adapter's queries, as Prometheus evaluates them, where two control pods report the same pipeline."""
    series: list[dict[str, str]] = []

    def reported(name: str, labels: str, value: int) -> None:
        series.extend({"series": f'{name}{{namespace="c",pod="{pod}",{labels}}}', "values": str(value)} for pod in "ab")

    for table, total, done in (("a", 50, 20), ("b", 7, 7)):
        reported("cutline_table_splits", f'pipeline="p",table="{table}"', total)
        reported("cutline_table_splits_done", f'pipeline="p",table="{table}"', done)
    for pipeline, part, peer, outstanding in (
        ("p", "reader-0", "writer-0", 10),
        ("p", "reader-0", "writer-1", 90),
        ("p", "writer-0", "enumerator", 100),
        ("q", "reader-0", "writer-0", 40),
    ):
        labels = f'pipeline="{pipeline}",part="{part}",peer="{peer}"'
        reported("cutline_channel_outstanding_bytes", labels, outstanding)
        reported("cutline_channel_credit_bytes", labels, 100)
    rules = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())["rules"]["external"]
    expected = {"cutline_chunks_waiting": 30, "cutline_writer_channels_fill": 0.5}
    queries = [
        {
            "expr": rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="c"'),
            "eval_time": "0s",
            "exp_samples": [{"labels": "{}", "value": expected[rule["name"]["as"]]}],
        }
        for rule in rules
    ]
    tests = {"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": queries}]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(tests))
    checked("test", "rules", str(tmp_path / "test.yaml"))
