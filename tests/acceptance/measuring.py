"""Prometheus and its adapter beside a node, by which Kubernetes scales Deployments on Cutline's own metrics.

Prometheus is Debian's, which can't ask Kubernetes for pods, so it asks the control service's Service. The adapter works
by the rules of k8s/monitoring/prometheus-adapter.yaml, behind a Service of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml

from cutline.common.config.environment import cache_folder
from tests.acceptance.node import GATEWAY, Node
from tests.support.server_process import free_port
from tools.builds import built_once, go
from tools.manifests import K8S
from tools.programs import program

MODULE, VERSION = "sigs.k8s.io/prometheus-adapter", "v0.12.0"
API = "external.metrics.k8s.io"
RULES = K8S / "monitoring" / "prometheus-adapter.yaml"


def adapter() -> Path:
    """Prometheus's adapter; the first use builds it. `go install` asks for all versions, which not every proxy tells,
    so a module of ours names this one.
    """
    target = cache_folder() / f"prometheus-adapter-{VERSION}"
    with built_once(target) as building:
        if building is not None:
            with tempfile.TemporaryDirectory(prefix="cutline-go-") as scratch:
                (Path(scratch) / "go.mod").write_text(f"module cutline\n\ngo 1.26.0\n\nrequire {MODULE} {VERSION}\n")
                words = ("-mod=mod", "-trimpath", f"-o={building}/", f"{MODULE}/cmd/adapter")
                go("build", *words, scratch=Path(scratch))
    return target / "adapter"


def measure(node: Node, target: str, token: str) -> None:
    """Start both, with the address of the control service and a token, and wait until the API server has metrics."""
    port, folder = free_port(), node.folder
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(_scrape(target, token)))
    storage = f"--storage.tsdb.path={folder}/prometheus"
    listen = f"--web.listen-address=127.0.0.1:{port}"
    node.begin("prometheus", program("prometheus"), f"--config.file={folder}/prometheus.yaml", storage, listen)
    rules = yaml.safe_load(RULES.read_text())["rules"]["external"]
    (folder / "adapter.yaml").write_text(yaml.safe_dump({"externalRules": rules}))
    known = [f"--{who}-kubeconfig={node.plane.kubeconfig}" for who in ("lister", "authentication", "authorization")]
    serving, found = free_port(), f"--prometheus-url=http://127.0.0.1:{port}"
    own = (f"--config={folder}/adapter.yaml", f"--secure-port={serving}", f"--cert-dir={folder}/adapter")
    node.begin("adapter", str(adapter()), *known, found, "--metrics-relist-interval=5s", *own)
    for each in _service(serving):
        node.plane.apply(each)
    node.until("the API server has metrics", lambda: node.plane.get(f"/apis/{API}/v1beta1")["resources"])


def _scrape(target: str, token: str) -> dict[str, Any]:
    job = {"job_name": "cutline", "static_configs": [{"targets": [target], "labels": {"namespace": "cutline"}}]}
    every = {"scrape_interval": "2s", "scrape_timeout": "2s"}
    return {"global": every, "scrape_configs": [{**job, "authorization": {"credentials": token}}]}


def _service(port: int) -> list[dict[str, Any]]:
    """A Service before a process of this machine, and what makes it the API of metrics."""
    place = {"name": "prometheus-adapter", "namespace": "kube-system"}
    labels = {"kubernetes.io/service-name": place["name"]}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": place, "spec": {"ports": [{"port": 443}]}},
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {**place, "labels": labels},
            "addressType": "IPv4", "endpoints": [{"addresses": [GATEWAY]}], "ports": [{"port": port, "name": ""}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"v1beta1.{API}"},
            "spec": {
                "group": API, "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": place, "insecureSkipTLSVerify": True,
            },
        },
    ]  # fmt: skip
