"""The command of an executor's pod, where Spark's master is Kubernetes: `python -m cutline.spark_writer.executor`.

The driver puts what an executor must know into the pod's environment. Spark's own images turn that into the executor's
command line by a shell script, which the package pyspark lacks; so one image serves for Cutline's services and for the
executors.

Source: "Running Spark on Kubernetes" in Spark's documentation, and `entrypoint.sh` of its images.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from cutline.common import programs

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = "SPARK_JAVA_OPT_"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def command(environment: Mapping[str, str], java: Path) -> list[str]:
    """Return the executor's command line. KeyError if Spark's driver has not made the environment."""
    options = sorted(
        (name for name in environment if name.startswith(_OPTION)), key=lambda name: int(name[len(_OPTION) :])
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    places = [
        environment.get("SPARK_CONF_DIR"),
        environment.get("SPARK_CLASSPATH"),
        f"{Path(pyspark.__file__).parent}/jars/*",
    ]
    return [
        str(java),
        *(environment[name] for name in options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(place for place in places if place),
        _BACKEND,
        *(word for option, name in _ARGUMENTS.items() for word in (option, environment[name])),
    ]


if __name__ == "__main__":
    java = programs.java().path
    os.execv(java, command(os.environ, java))
