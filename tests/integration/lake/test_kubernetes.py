"""Spark's executors as pods of an API server that starts them as processes (tests/support/kubernetes.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubernetes import Kubernetes
from tools.manifest_checks import Objects
from tools.manifests import K8S, objects

MANIFEST = Objects(objects((K8S / "cutline-spark.yaml").read_text()))
TEMPLATE = MANIFEST.kind("ConfigMap")["cutline-executor"]["data"]["executor.yaml"]


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Kubernetes]:
    folder = tmp_path / "kubernetes"
    folder.mkdir()
    made = Kubernetes(folder)
    yield made
    made.close()


def settings(kubernetes: Kubernetes, template: Path) -> dict[str, Any]:
    """The manifest's settings of Spark, but for places and sizes, and with quicker looks at the pods."""
    (given,) = (
        each["value"]
        for each in MANIFEST.pod("spark-writer").container["env"]
        if each["name"] == "CUTLINE_SPARK_PROPERTIES"
    )
    template.write_text(TEMPLATE)
    ports = ("spark.driver.port", "spark.driver.blockManager.port", "spark.blockManager.port")
    return (
        json.loads(given)
        | dict.fromkeys(ports, "0")
        | {
            "spark.master": f"k8s://{kubernetes.url}",
            "spark.driver.host": "127.0.0.1",
            "spark.kubernetes.executor.podTemplateFile": str(template),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.kubernetes.executor.enableApiWatcher": "false",
            "spark.kubernetes.executor.apiPollingInterval": "1s",
            "spark.kubernetes.allocation.batch.delay": "200ms",
        }
    )


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_batch_on_kubernetes_outlives_an_executor(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """1. The driver asks for two pods by the manifest's template; they apply a batch. 2. In the middle one is
    killed, and another takes its place. 3. Content is equal, and no row is there twice; all pods are gone.
    """
    folder = tmp_path / "lake"
    command = [
        sys.executable,
        "-m",
        "tests.support.cluster_driver",
        str(folder),
        json.dumps(settings(kubernetes, tmp_path / "executor.yaml")),
    ]
    environ = os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path / "local")}  # else the executors' are below /var
    seen: list[str] = []

    def until(word: str) -> None:
        for line in driver.stdout or ():
            seen.append(line)
            if line.startswith(word):
                return
        raise AssertionError("".join(seen[-40:]) + kubernetes.logs())

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ) as driver:
        try:
            until("stage 1")
            first = kubernetes.running()[0]
            (container,) = kubernetes.pods[first]["spec"]["containers"]
            (wanted,) = yaml.safe_load(TEMPLATE)["spec"]["containers"]
            image = MANIFEST.pod("spark-writer").container["image"]
            assert (container["image"], container["command"]) == (image, wanted["command"])
            assert wanted["volumeMounts"][0] in container["volumeMounts"]
            kubernetes.kill(first)
            until("agree")
            assert driver.wait(60) == 0
        finally:
            driver.kill()
    assert "was applied by spark" in "".join(seen)
    assert first not in kubernetes.pods
    assert kubernetes.running() == kubernetes.refused == []
