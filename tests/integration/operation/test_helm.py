"""The chart through Helm itself, with all values of k8s/chart/ci. Helm is built at the first use, in some minutes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tools.manifest_checks import CHECKS, Objects
from tools.manifests import CASES, CHART, K8S, MANIFESTS, helm, manifest, objects, rendered

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("case", CASES)
def test_the_chart_is_good_with_these_values(case: str) -> None:
    helm("lint", str(CHART), "--strict", "--values", str(CHART / "ci" / f"{case}.yaml"))
    found = Objects(objects(rendered(case)))
    assert [fault for check in CHECKS for fault in check(found)] == []
    for each in found.all:
        if "coreos.com" not in each["apiVersion"]:
            kubernetes_validate.validate(each, "1.37", strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_helm_renders(name: str) -> None:
    assert (K8S / name).read_text() == manifest(name)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("reader.replica=3", "'replica' not allowed"),
        ("store.url=file:///data", "does not match pattern"),
        ("redis.bundled=false", "set redis.url or redis.existingSecret.name"),
        ("reader.resources.limits=null", "missing property"),
        ("pipelines.shop.sink.warehouse=/data/lake", "does not match pattern"),
        ("control.ingress.enabled=true", "set control.ingress.host"),
    ],
)
def test_wrong_values_are_refused_by_name(value: str, cause: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm("template", "cutline", str(CHART), "--values", str(CHART / "ci" / "plain.yaml"), "--set", value)
    assert cause in refused.value.stderr


def test_an_empty_list_of_a_service_wins_over_the_default(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "store": {"url": "s3://bucket/store"},
                "defaults": {"tolerations": [{"key": "a", "operator": "Exists"}]},
                "enumerator": {"tolerations": [], "disruptionBudget": {"enabled": False}},
            }
        )
    )
    found = Objects(objects(helm("template", "cutline", str(CHART), "--values", str(values))))
    assert "tolerations" not in found.pod("enumerator").spec
    assert found.pod("reader").spec["tolerations"] == [{"key": "a", "operator": "Exists"}]
    assert "cutline-enumerator" not in found.kind("PodDisruptionBudget")
