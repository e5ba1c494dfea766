"""The manifests for Kubernetes (k8s/*.yaml), each checked as the chart's renderings are (tools/manifest_checks.py)."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.errors import ConfigError
from cutline.services.control.metrics import METRICS
from tools.manifest_checks import CHECKS, SERVICES, Objects
from tools.manifests import ALERTS, CHART, K8S, MANIFESTS, digest, objects

VERSIONS = ("1.29", "1.33", "1.37")
"""The oldest version of Kubernetes that the chart takes, the newest one that we know, and one between."""
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.fixture(params=MANIFESTS)
def found(request: pytest.FixtureRequest) -> Objects:
    return Objects(objects((K8S / request.param).read_text()))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_was_made_of_the_chart_as_it_is(name: str) -> None:
    assert digest(MANIFESTS[name]) in (K8S / name).read_text(), "the chart has changed; run `make manifests`"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_of_a_manifest(check: Callable[[Objects], Iterator[str]], found: Objects) -> None:
    assert list(check(found)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field_of_a_manifest(version: str, found: Objects) -> None:
    for each in found.all:
        if "coreos.com" not in each["apiVersion"]:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_wrong_manifest_is_found_out() -> None:
    """Each check finds what it is there for, in a manifest that was changed so."""

    def broken(change: Callable[[Objects], None], name: str = "cutline-spark.yaml") -> set[str]:
        found = Objects(objects((K8S / name).read_text()))
        change(found)
        return {check.__name__ for check in CHECKS if any(check(found))}

    def writer(found: Objects) -> Any:
        return found.kind("Deployment")["cutline-spark-writer"]["spec"]

    def set_settings(key: str, value: str) -> Callable[[Objects], None]:
        return lambda found: found.kind("ConfigMap")["cutline-settings"]["data"].update({key: value})

    def policies(found: Objects) -> None:
        found.kind("NetworkPolicy")["cutline-mesh"]["spec"]["podSelector"]["matchExpressions"][0]["values"].remove(
            "reader"
        )

    assert broken(lambda found: None) == set()
    assert broken(policies) == {"only_what_must_talk_may_talk"}
    assert broken(set_settings("CUTLINE_API_PORT", "1")) == {"ports_agree"}
    assert broken(set_settings("CUTLINE_READERS", "9")) == {"scaling_and_budgets_agree"}
    assert broken(set_settings("CUTLINE_READER", "9")) == {"settings_and_commands_exist"}
    assert broken(set_settings("CUTLINE_STORE_URL", "file:///data")) == {"no_volume_outlives_its_pod"}
    assert broken(lambda found: found.kind("Deployment")["cutline-enumerator"]["spec"].update(replicas=1)) == {
        "every_service_is_there",
        "scaling_and_budgets_agree",
    }
    for change, checks in (
        (lambda spec: spec["template"]["metadata"]["labels"].pop("app.kubernetes.io/instance"), "selectors_match"),
        (lambda spec: spec["template"]["spec"].update(terminationGracePeriodSeconds=5), "services_have_time_to_end"),
        (lambda spec: spec["template"]["spec"]["securityContext"].update(runAsUser=0), "no_pod_has_privileges"),
        (lambda spec: spec["template"]["spec"].update(serviceAccountName="x"), "names_lead_to_objects"),
        (
            lambda spec: spec["template"]["spec"]["containers"][0].pop("livenessProbe"),
            "every_container_has_probes_and_limits",
        ),
        (
            lambda spec: spec["template"]["spec"]["containers"][0].update(image="x"),
            "executors_are_as_their_driver_says",
        ),
    ):
        assert checks in broken(lambda found, change=change: change(writer(found)))


def test_the_pipelines_of_the_manifests_are_good_ones(found: Objects, tmp_path: Path) -> None:
    contents = [each["stringData"]["pipeline.yaml"] for each in found.kind("Secret").values()]
    assert contents
    for content in contents:
        (tmp_path / "pipeline.yaml").write_text(content)
        assert load(tmp_path / "pipeline.yaml").sink.warehouse.startswith("s3://")


def test_the_chart_brings_the_alerts_along(found: Objects) -> None:
    assert (CHART / "files" / "alerts.yaml").read_text() == ALERTS.read_text(), "run `make manifests`"
    for each in found.kind("PrometheusRule").values():
        assert each["spec"] == yaml.safe_load(ALERTS.read_text())


def test_scaling_uses_metrics_that_exist(found: Objects) -> None:
    adapter = yaml.safe_load((K8S / "monitoring" / "prometheus-adapter.yaml").read_text())["rules"]["external"]
    for rule in adapter:
        assert set(re.findall(r"cutline_\w+", f"{rule['seriesQuery']} {rule['metricsQuery']}")) <= METRICS.keys()
    made = {rule["name"]["as"] for rule in adapter}
    for each in found.kind("HorizontalPodAutoscaler").values():
        assert {metric["external"]["metric"]["name"] for metric in each["spec"]["metrics"]} <= made


def test_the_bundled_redis_takes_clients_of_other_pods_whichever_image_it_is_of(found: Objects) -> None:
    arguments = found.pod("redis").container["args"]
    assert arguments[arguments.index("--protected-mode") + 1] == "no"


def test_the_chart_has_the_version_of_cutline() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((K8S.parent / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version


def test_every_value_has_its_default_and_its_type() -> None:
    """values.yaml shows each key that the schema takes, but for those that a service has from `defaults`."""

    def compare(values: Any, schema: Any, path: str) -> Iterator[str]:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            return
        shared = VALUES["defaults"].keys() if path.removeprefix(".") in {"sparkWriter", *SERVICES} else {"medium"}
        for key in properties.keys() ^ values.keys():
            if key not in shared and key != "global" and "Probe" not in path:
                yield f"{path}.{key}"
        for key in properties.keys() & values.keys():
            if isinstance(values[key], dict):
                yield from compare(values[key], properties[key], f"{path}.{key}")

    assert list(compare(VALUES, SCHEMA, "")) == []


def test_spark_properties_for_all_pipelines_come_as_json() -> None:
    assert Environment.read({}).spark() == {}
    text = '{"spark.driver.memory": "3g", "spark.executor.cores": 2}'
    assert Environment.read({"CUTLINE_SPARK_PROPERTIES": text}).spark() == json.loads(text)
    for wrong in ("spark.driver.memory=3g", "[]"):
        with pytest.raises(ConfigError, match="must be a JSON object"):
            Environment.read({"CUTLINE_SPARK_PROPERTIES": wrong}).spark()
