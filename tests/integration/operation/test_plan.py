"""Rules that Spark refuses are found out before anything is written: by `cutline plan`, by `cutline run`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cutline.services.run import analysis
from cutline.services.run.cli import main
from cutline.spark_writer import preview
from tests.support.databases import Database, MariaDB


def definition_of(source: MariaDB, database: str, folder: Path) -> dict[str, Any]:
    """A pipeline of three tables, each with a wrong rule, and of derived tables, two of which are a circle."""
    source.execute(
        "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(40), salary INT)",
        "CREATE TABLE visits (id INT PRIMARY KEY, person INT)",
        "CREATE TABLE keys_ (id INT PRIMARY KEY, note TEXT)",
        database=database,
    )
    (folder / "password").write_text(source.password)
    wrong: list[dict[str, Any]] = [
        {"tables": "*.people", "where": "sum(salary) > 5"},
        {"tables": "*.visits", "select": ["id", "persn + 1 AS next"]},
        {"tables": "*.keys_", "mask": ["id"]},
    ]
    queries = [
        {"name": "d.left", "sql": "SELECT a FROM d.right"},
        {"name": "d.right", "sql": "SELECT a FROM d.left"},
        {"name": "d.good", "sql": f"SELECT count(*) AS n FROM {database}.keys_"},
    ]
    return {
        "name": "planned",
        "source": {"host": source.host, "port": source.port, "user": source.user, "password_file": "password"},
        "tables": [f"{database}.*"],
        "sink": {"type": "iceberg", "warehouse": "lake"},
        "masking": {"key_env": "PLAN_MASK_KEY"},
        "table_options": wrong,
        "derived": queries,
    }


def test_a_refused_rule_is_told_with_its_place_and_nothing_is_written(
    mariadb: MariaDB,
    fresh_database: Callable[[Database], str],
    redis_url: str,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. `plan` of a file with a wrong condition, a wrong item, a mask of a key and a circle: each with its line.
    2. `run`, with a Spark of its own, refuses it with the same sentences, and defines nothing.
    3. `plan` of the corrected file is possible; `doctor` says the same.
    """
    source, database = mariadb, fresh_database(mariadb)
    definition = definition_of(source, database, tmp_path)
    wrong, queries = definition["table_options"], definition["derived"]
    file, store = tmp_path / "shop.yaml", tmp_path / "store"
    environ = {"CUTLINE_STORE_URL": f"file://{store}", "CUTLINE_REDIS_URL": redis_url}
    file.write_text(yaml.safe_dump(definition, sort_keys=False))
    lines = file.read_text().splitlines()
    at = {key: next(n for n, line in enumerate(lines, 1) if key in line) for key in ("where:", "persn", "mask:")}

    def cutline(*arguments: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            patched.setattr(analysis, "analysed", partial(preview.answer, spark))
            done = CliRunner().invoke(main, arguments, env=environ)
        return done.exit_code, done.stdout, done.stderr

    code, shown, failed = cutline("plan", "shop.yaml")
    assert code == 1, (shown, failed)
    assert f"cutline: shop.yaml:{at['where:']}:3: table_options[0].where: 'sum(salary) > 5'" in failed
    assert f"cutline: shop.yaml:{at['persn']}:5: table_options[1].select[1]: 'persn + 1 AS next'" in failed
    assert "`persn` cannot be resolved. Did you mean one of the following?" in failed
    assert f"cutline: shop.yaml:{at['mask:']}:3: table_options[2].mask:" in failed
    assert "derived[0].sql: the derived table d.left reads itself: d.left reads d.right reads d.left" in failed
    assert "d.good" not in failed

    command = [sys.executable, "-m", "cutline.services.run.cli", "run", "shop.yaml", "--until", "snapshot"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    for place in ("table_options[0].where", "table_options[1].select[1]", "table_options[2].mask", "derived[1].sql"):
        assert place in done.stderr
    assert not list(store.rglob("*planned*"))

    wrong[0]["where"], wrong[1]["select"][1] = "salary > 5", "person + 1 AS next"
    wrong[2]["mask"], queries[0]["sql"] = ["note"], f"SELECT next AS a FROM {database}.visits"
    file.write_text(yaml.safe_dump(definition, sort_keys=False))
    code, shown, failed = cutline("plan", "shop.yaml")
    assert (code, failed) == (0, "")
    assert "ok   analysis: Spark takes the rules of 3 tables and 3 derived tables" in shown
    assert "Spark takes the rules and derived tables" in cutline("doctor", "shop.yaml")[1]
