"""The objects of the chart on a real control plane of Kubernetes, put there by Helm itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.control_plane import ControlPlane
from tools.manifest_checks import SERVICES, Objects
from tools.manifests import CASES, CHART, K8S, MANIFESTS, Object, helm, objects, rendered

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
PODS = "/api/v1/namespaces/cutline/pods"
OPERATOR = "monitoring.coreos.com/v1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    with ControlPlane() as made:
        yield made


@pytest.fixture
def namespace(cluster: ControlPlane) -> Iterator[None]:
    """The namespace of the chart, with the restricted profile of Pod Security Standards enforced."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cutline", "labels": labels}})
    until(lambda: bool(cluster.list("/api/v1/namespaces/cutline/serviceaccounts")), "no account")
    yield
    with cluster.client() as client:
        client.delete("/api/v1/namespaces/cutline").raise_for_status()
        until(lambda: client.get("/api/v1/namespaces/cutline").status_code == 404, "the namespace stays")


def until(condition: Callable[[], bool], otherwise: str, seconds: float = 90) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, otherwise
        time.sleep(0.2)


def known(found: list[Object]) -> list[Object]:
    """Without the objects of the Prometheus operator, which is not there."""
    return [each for each in found if each["apiVersion"] != OPERATOR]


def wanted(found: Objects) -> Counter[str]:
    """How many pods each component has: one that is scaled by load, its autoscaler's least number."""
    least = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"]["minReplicas"]
        for each in found.kind("HorizontalPodAutoscaler").values()
    }
    counted: Counter[str] = Counter()
    for pod in found.pods:
        if pod.owner["kind"] != "ConfigMap":
            counted[pod.component] += pod.owner["spec"].get("replicas", least.get(pod.owner["metadata"]["name"], 1))
    return counted


def objects_in(cluster: ControlPlane) -> Counter[str]:
    pods: list[Any] = [pod for pod in cluster.list(PODS) if "deletionTimestamp" not in pod["metadata"]]
    return Counter(pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in pods)


def refusals(cluster: ControlPlane) -> list[str]:
    events = cluster.list("/api/v1/namespaces/cutline/events")
    return [event["message"] for event in events if event["reason"] == "FailedCreate"]


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_every_object_and_makes_its_pods(cluster: ControlPlane, case: str) -> None:
    """The pods are admitted under the restricted profile. Those with a priority class need that first."""
    found = known(objects(rendered(case)))
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "data"}, "value": 1}
    for each in [priority, *found]:
        cluster.apply(each)
    expected = wanted(Objects(found))
    until(lambda: objects_in(cluster) == expected, f"{objects_in(cluster)} instead of {expected}; {refusals(cluster)}")
    assert refusals(cluster) == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_a_manifest_for_those_without_helm(cluster: ControlPlane, name: str) -> None:
    found = known(objects((K8S / name).read_text()))
    for each in found:
        cluster.apply(each)
    expected = wanted(Objects(found[1:]))
    until(lambda: objects_in(cluster) == expected, f"{objects_in(cluster)} instead of {expected}; {refusals(cluster)}")
    with cluster.client() as client:
        client.delete("/api/v1/namespaces/cutline").raise_for_status()
        until(lambda: client.get("/api/v1/namespaces/cutline").status_code == 404, "the namespace stays")


@pytest.mark.usefixtures("namespace")
def test_helm_installs_changes_takes_back_and_removes_a_release(
    cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Install. 2. Upgrade to another version and other values: nothing that may not change does, the Deployments get
    new pods, and the pipeline a new Job. 3. Roll back. 4. Uninstall: nothing is left.
    """
    assert cluster.folder is not None
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("HOME", str(cluster.folder))

    def values(case: str) -> list[str]:
        return ["--namespace", "cutline", "--values", str(CHART / "ci" / f"{case}.yaml")]

    def deployments() -> dict[str, Any]:
        found = cluster.list("/apis/apps/v1/namespaces/cutline/deployments")
        return {each["metadata"]["name"]: each for each in found}

    def jobs() -> set[str]:
        return {each["metadata"]["name"] for each in cluster.list("/apis/batch/v1/namespaces/cutline/jobs")}

    helm("install", "cutline", str(CHART), *values("plain"))
    before, defined = deployments(), jobs()
    assert before.keys() == {f"cutline-{name}" for name in (*SERVICES, "redis")}
    until(lambda: objects_in(cluster)["reader"] == 2, "no readers")
    helm(
        *("upgrade", "cutline", str(CHART), *values("spark"), "--set", "image.tag=9.9.9"),
        *("--set", "monitoring.rules.enabled=false,monitoring.serviceMonitor.enabled=false"),
    )
    after = deployments()
    assert after["cutline-reader"]["spec"]["template"]["spec"]["containers"][0]["image"] == "cutline:9.9.9"
    assert after["cutline-reader"]["metadata"]["generation"] > before["cutline-reader"]["metadata"]["generation"]
    assert len(jobs()) == 1
    assert jobs() != defined
    helm("rollback", "cutline", "1", "--namespace", "cutline")
    assert deployments()["cutline-reader"]["spec"]["template"] == before["cutline-reader"]["spec"]["template"]
    assert jobs() == defined
    helm("uninstall", "cutline", "--namespace", "cutline")
    until(lambda: not objects_in(cluster) and not deployments() and not jobs(), "something stays")
