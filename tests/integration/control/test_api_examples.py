"""The examples of docs/api.md, run with curl against a control service and a real source, in their order."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import yaml

from tests.support.control_server import ControlServer
from tests.support.databases import MariaDB
from tests.support.pages import ROOT, blocks_of
from tools.programs import program

SHELL = "/bin/bash"
THIS = Path(__file__).resolve().relative_to(ROOT).as_posix()
EXAMPLES = [line for block in blocks_of(THIS) for line in block.commands if not line.startswith("export ")]
"""The commands of the page, without the settings at its beginning."""


def test_every_example_of_the_page_does_what_the_page_says(
    redis_url: str, tmp_path: Path, mariadb: MariaDB
) -> None:
    """1. The page's file, source and password become those of this test. 2. Each example is run and answers without an
    error. 3. The commands that they gave are in the store, in order."""
    (tmp_path / "source").write_text(mariadb.password)
    source = {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user}
    definition = {
        "name": "shop",
        "source": {**source, "password_file": str(tmp_path / "source")},
        "tables": ["shop.*"],
        "sink": {"warehouse": str(tmp_path / "lake")},
    }
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(definition))
    mariadb.execute("CREATE DATABASE shop")
    mariadb.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY)")
    try:
        with ControlServer(redis_url=redis_url, store_url=f"file://{tmp_path}/store", secrets=tmp_path) as control:
            curl = Path(program("curl")).parent
            environ = {**os.environ, "API": control.url, "TOKEN": control.token("admin")}
            environ["PATH"] = f"{curl}:{os.environ['PATH']}"
            answers = []
            for example in EXAMPLES:
                command = example.replace("/run/secrets/source", str(tmp_path / "source"))
                command = command.replace('"port": 3306', f'"port": {mariadb.port}')
                done = subprocess.run(
                    [SHELL, "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
                )
                assert done.returncode == 0, f"{example}\n{done.stdout}{done.stderr}"
                answers.append(json.loads(done.stdout))
            tested, planned, made = answers[:3]
            assert (tested["ok"], planned["possible"], made["name"]) == (True, True, "shop"), answers[:3]
            kinds = [command.kind for command in control.store.pipeline("shop").commands.list()]
        assert kinds == ["define", "savepoint", "limits", "pause", "resume", "stop"]
    finally:
        mariadb.execute("DROP DATABASE shop")
