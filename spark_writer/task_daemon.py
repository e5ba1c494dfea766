"""Starts the Python processes of Spark's tasks: each executor runs `python -m cutline.spark_writer.task_daemon`.

It is Spark's own daemon, which forks a process for each task that runs at a time, with two changes that make a task
cost a few ms of CPU instead of 200:

- The kernels are imported before the first fork, not by each process, and are left out of garbage collections: Spark
  has each process collect after every task.
- Before every task Spark has Python forget what it knows of `sys.path`. Python then reads all names in each archive on
  it again, several times; Spark's own copy of PySpark is one. The archives of a running Spark do not change, so what is
  known of them stays.
"""

from __future__ import annotations

import gc
import zipimport
from typing import Any

from pyspark import daemon

from cutline.spark_writer.sinks.iceberg import on_spark

KERNELS = on_spark
"""What is imported before the first fork."""


def _keep(importer: zipimport.zipimporter) -> None:
    """In place of `zipimporter.invalidate_caches`."""


def prepare() -> None:
    """Make the changes, in the daemon."""
    archives: Any = zipimport.zipimporter
    archives.invalidate_caches = _keep
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    prepare()
    spark_daemon: Any = daemon
    spark_daemon.manager()
