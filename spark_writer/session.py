"""The Spark of this process, and a session on it for each pipeline.

All pipelines share one Spark application. Each has its own `SparkSession` on it (`newSession`), so that the name `lake`
can be a different catalogue in each. Spark starts with the jars that `cutline setup` fetched (jars.py), on a supported
Java (common/programs.py).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, cast

from pyspark import SparkContext
from pyspark.sql import SparkSession

from cutline.common import programs
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, Unavailable
from cutline.spark_writer import classes, jars
from cutline.spark_writer.compiled import one_of
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.iceberg import catalogue
from cutline.spark_writer.sinks.iceberg.naming import CATALOG

logger = logging.getLogger("cutline.spark_writer")

STOP_SECONDS = 10.0
_FILES = Path(__file__).with_name("LocalFiles.java")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_SETTINGS = {
    "spark.master": "local[*]",
    "spark.app.name": "cutline",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1536m",
    "spark.driver.maxResultSize": "0",
    "spark.eventLog.enabled": "false",
    "spark.shuffle.compress": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.python.daemon.module": "cutline.spark_writer.task_daemon",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.warehouse.dir": tempfile.gettempdir(),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For one machine; elsewhere Spark finds its addresses, and sizes its shuffles, by itself."""
_JAVA_OPTIONS = f"{classes.JAVA_OPTIONS} -XX:MaxMetaspaceSize=512m -Duser.timezone=UTC"


def start(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark (10 to 20 s), or return the running session; `settings` are passed to Spark.

    Raises ConfigError if the jars or a supported Java are missing, Unavailable if Spark doesn't start.
    """
    chosen = {**_SETTINGS, **(settings or {})}
    local = chosen["spark.master"].startswith("local")
    if local:
        chosen = {**_LOCAL_SETTINGS, **chosen}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif chosen["spark.master"].startswith("k8s://") and "KUBERNETES_SERVICE_HOST" in os.environ:
        chosen = {**_of_this_pod(), **chosen}
    folder = jars.folder()
    first, extras = classes.class_path(folder, chosen.get("spark.driver.extraClassPath"))
    # Java ignores TMPDIR.
    own = f'-Dlog4j2.configurationFile={_LOGGING.as_uri()} "-Djava.io.tmpdir={tempfile.gettempdir()}" {_JAVA_OPTIONS}'
    if SparkContext._active_spark_context is None:
        java = programs.java()
        os.environ["JAVA_HOME"] = str(java.path.parents[1])
        if (archive := classes.archive(folder, java, first)).exists():
            own = f"{own} {classes.options(archive)}"
        elif classes.possible(java):
            logger.info("Spark starts without an archive of its classes; `cutline setup` makes one, for half the time")
    chosen["spark.driver.extraJavaOptions"] = f"{own} {chosen.get('spark.driver.extraJavaOptions', '')}".strip()
    # On the class path of this process: `spark.jars` would copy 60 MB at each start, and hide them from Class.forName.
    chosen["spark.driver.extraClassPath"] = ":".join([*first, *extras])
    if not local:
        before = chosen.get("spark.jars")
        ours = [jar for jar in (*first, *extras) if Path(jar).parent == folder]  # executors have Spark's own
        chosen["spark.jars"] = ",".join([*ours, *([before] if before else [])])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # tasks import Cutline
    builder: Any = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise Unavailable(f"Spark did not start with master {chosen['spark.master']}: {first_line(error)}") from error
    hadoop, jvm = cast(Any, spark.sparkContext)._jsc.hadoopConfiguration(), cast(Any, spark.sparkContext)._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(hadoop)
    # A checksum file beside each file of metadata would be one more to create and to sync.
    files.setWriteChecksum(False)
    one_of(spark.sparkContext, _FILES, "LocalFiles").installIn(files, hadoop)
    return spark


def running() -> SparkSession | None:
    """The Spark of this process; None if it was not started, or has stopped."""
    return None if SparkContext._active_spark_context is None else SparkSession._instantiatedSession


def _of_this_pod() -> dict[str, str]:
    """Return where executors find a driver in a pod, whose name only itself can resolve; and its pod, with which
    Kubernetes removes those of its executors.
    """
    name = socket.gethostname()
    return {"spark.driver.host": socket.gethostbyname(name), "spark.kubernetes.driver.pod.name": name}


def stop() -> None:
    """Stop the Spark of this process, if it runs; wait until its JVM has removed its temporary files and ended."""
    context, gateway = SparkContext._active_spark_context, cast(Any, SparkContext._gateway)
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        if context is not None:
            with suppress(Exception):  # it may have ended already
                context.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(STOP_SECONDS)
        except TimeoutExpired:
            gateway.proc.kill()


def for_pipeline(spark: SparkSession, sink: Mapping[str, Any]) -> SparkSession:
    """Return a session of the running Spark whose catalogue `lake` is the pipeline's; `sink` as in its definition.

    Settings of `sink.spark` that Spark reads only when it starts have no effect here, unless `start` got them.
    """
    on_class_path = str(spark.sparkContext.getConf().get("spark.driver.extraClassPath", ""))
    needed = jars.wanted_with(catalogue.extras(sink))
    if absent := [jar for jar in needed if jar.file not in on_class_path]:
        raise ConfigError(jars.describe_missing(jars.folder(), absent).advised("then start the Spark writer again"))
    if not sink.get("catalog"):
        folder = catalogue.default_file(sink).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the warehouse {folder} could not be created ({error.strerror})", "give Cutline write permission to it"
            ) from error
    session = spark.newSession()
    prefix = f"spark.sql.catalog.{CATALOG}"
    session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in catalogue.properties(sink).items():
        session.conf.set(f"{prefix}.{key}", value)
    for key, value in session_settings(sink).items():
        session.conf.set(key, value)
    return session


def for_config(config: PipelineConfig) -> SparkSession:
    """Start Spark, if it isn't running in this process yet, and return a session that reads the pipeline's lake."""
    return for_pipeline(start(config.sink.spark), config.definition()["sink"])


def session_settings(sink: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of `sink.spark` that a session accepts at any time."""
    return {key: value for key, value in (sink.get("spark") or {}).items() if key.startswith("spark.sql.")}
