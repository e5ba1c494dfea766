"""Renders the Helm chart (k8s/chart). `python -m tools.manifests` writes k8s/*.yaml, for those without Helm.

Helm is a Go program, whose first use builds it in some minutes of CPU. So the tests of each change look at these files,
of which the first lines have a digest of the chart that they were made from; `make test-full` renders the chart anew.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.builds import go_program

HELM = "helm.sh/helm/v4/cmd/helm@v4.3.1"
K8S = Path(__file__).resolve().parent.parent / "k8s"
CHART = K8S / "chart"
CASES = sorted(path.stem for path in (CHART / "ci").iterdir())
"""Each file of values that the chart is tried with."""
ALERTS = K8S / "monitoring" / "alerts.yaml"
MANIFESTS = {"cutline.yaml": "plain", "cutline-spark.yaml": "spark"}
"""The files for those without Helm, and the values of each."""
RELEASE = "cutline"
_HEADER = """\
# {purpose}
#
# It is the chart in k8s/chart with the values of k8s/chart/ci/{case}.yaml: put your image, buckets, source and tables
# in their place, make the Secrets that the pods name (docs/operations/kubernetes.md), then
#
#   kubectl apply --server-side -f {name}
#
# `make manifests` has made this file. {digest}
---
apiVersion: v1
kind: Namespace
metadata:
  name: cutline
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
_PURPOSES = {
    "plain": "Cutline for those without Helm.",
    "spark": "Cutline for those without Helm: Spark's executors as pods, readers and writers scaled by load, alerts.",
}

Object = dict[str, Any]


def digest(case: str) -> str:
    """A line that names all that a rendering depends on."""
    sums = hashlib.sha256()
    files = [path for path in CHART.rglob("*") if path.is_file() and path.parent.name != "ci"]
    for path in [*sorted(files), CHART / "ci" / f"{case}.yaml"]:
        sums.update(f"{path.relative_to(CHART)}\n".encode() + path.read_bytes())
    return f"sha256 of the chart: {sums.hexdigest()}"


def helm(*words: str) -> str:
    """What Helm prints; CalledProcessError with its messages if it refuses. Missing if this machine can't build it."""
    done = subprocess.run([str(go_program(HELM)), *words], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stdout + done.stderr)
    return done.stdout


def rendered(case: str) -> str:
    """The chart with the values of one case, as Helm renders it."""
    return helm(
        "template", RELEASE, str(CHART), "--namespace", "cutline", "--values", str(CHART / "ci" / f"{case}.yaml")
    )


def objects(text: str) -> list[Object]:
    """The objects of a manifest."""
    return [found for found in yaml.safe_load_all(text) if found is not None]


def manifest(name: str) -> str:
    """A manifest for those without Helm, made anew."""

    def kept() -> Iterator[str]:
        for line in rendered(MANIFESTS[name]).splitlines():
            if line.strip() and not line.lstrip().startswith(
                ("# Source:", "helm.sh/chart:", "app.kubernetes.io/managed-by:")
            ):
                yield line.rstrip() + "\n"

    case = MANIFESTS[name]
    return _HEADER.format(purpose=_PURPOSES[case], case=case, name=name, digest=digest(case)) + "".join(kept())


def main() -> int:
    """Copy into the chart what it must bring along, then write the manifests."""
    shutil.copyfile(ALERTS, CHART / "files" / "alerts.yaml")
    for name in MANIFESTS:
        (K8S / name).write_text(manifest(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
