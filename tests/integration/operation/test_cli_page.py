"""docs/cli.md as an operator meets it: `cutline up` with Spark and a real server, each block as it stands there.

Only what the page leaves open is filled in: the folder of the store, the service's address, a token, the time of a cut.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import cutline
from tests.support.databases import MariaDB
from tests.support.pages import ROOT, blocks_of
from tests.support.shell import Shell

THIS = Path(__file__).resolve().relative_to(ROOT).as_posix()


class Enough(Exception):
    """Ends an example that would follow events for ever."""


@pytest.mark.timeout(600)
def test_the_commands_of_the_page_do_what_it_says(mariadb: MariaDB, tmp_path: Path) -> None:
    """1. `up` serves. A pipeline is planned, made, and shown with a table that has a zero date in its key. 2. The
    Python example finds that table, and retries it too early. 3. Once the row is corrected, `retry` brings it into the
    lake; a patch, a savepoint and the cut of a time work. 4. Completion is written and is a shell's. 5. The pipeline is
    deleted with its lake tables, and made anew by the commands of the first block. 6. Ctrl-C ends all."""
    up, remote, completion, example = blocks_of(THIS)
    shell = Shell(tmp_path)
    definition = {
        "name": "shop",
        "source": {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user, "password_env": "SHOP_PASSWORD"},
        "tables": ["shop.*"],
        "sink": {"warehouse": "./lake"},
        "checkpoint": {"interval_seconds": 1},
    }
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(definition))
    mariadb.execute(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.customers (id INT PRIMARY KEY)",
        "CREATE TABLE shop.orders (id INT, day DATE, PRIMARY KEY (id, day))",
        "SET sql_mode = ''",
        "INSERT INTO shop.orders VALUES (1, '0000-00-00')",
    )
    shell.do(f"export SHOP_PASSWORD={mariadb.password} CUTLINE_API_PORT=0")
    export, serve, create, status = up.commands
    shell.do(export.replace("/var/lib/cutline", str(tmp_path)))
    try:
        with shell.doing(serve):
            printed = shell.until(lambda: re.search(r"http://127\.0\.0\.1:\d+", shell.logs()), "the service's address")
            shell.do(f"export CUTLINE_API_URL={printed[0]}")
            shell.until(lambda: "spark_writer" in shell.answer("cutline services"), "the Spark writer")
            operate(shell, remote.commands, example.text, mariadb)
            complete(shell, completion.commands)
            shell.do("cutline pipeline delete shop --purge --yes")
            shell.until(lambda: "shop" not in shell.do("cutline pipeline list"), "the name to be free")
            shell.do(create)
            shell.until(lambda: "live" in shell.do(status), "a copied table")
    finally:
        mariadb.execute("DROP DATABASE shop")


def operate(shell: Shell, commands: list[str], example: str, server: MariaDB) -> None:
    """The block of commands for the control service, and the Python example where its table is quarantined."""
    export, plan, create, conditions, listing, retry, patch, savepoint, cuts = commands
    token = shell.do("cutline token create operator --role admin").split()[-1]
    shell.do(export.replace("http://cutline:8642", shell.environ["CUTLINE_API_URL"]).replace("...", token))
    assert "shop.orders" in shell.do(plan)
    shell.do(create)
    shell.until(lambda: "shop.orders" in shell.do(listing), "shop.orders to be quarantined")
    assert f"to retry it: {retry}\n" in shell.do(conditions, exit_code=1)
    began = time.time()
    by_python(shell, example)
    shell.until(lambda: quarantined_at(shell) > began, "shop.orders to be quarantined again, as nothing was corrected")
    server.execute("SET sql_mode = ''", "UPDATE shop.orders SET day = '2020-01-01'")
    shell.do(retry)
    shell.until(lambda: "shop.orders" not in shell.do(listing), "shop.orders to be copied")
    shell.do(patch)
    assert "fresher reports" in shell.do("cutline pipeline versions shop")
    shell.do(savepoint)
    assert "before-the-upgrade" in shell.do("cutline savepoint list shop")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    assert "shown: publication " in shell.do(re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", now, cuts))


def quarantined_at(shell: Shell) -> float:
    """When shop.orders was quarantined; 0 if it is not."""
    found = json.loads(shell.do("cutline table show shop shop.orders --json"))
    return float(found["since"]) if found["phase"] == "quarantined" else 0.0


def by_python(shell: Shell, example: str) -> None:
    """The example prints the table with cause and remedy, and then the pipeline's events."""
    printed: list[tuple[Any, ...]] = []

    def show(*words: Any) -> None:
        printed.append(words)
        if len(printed) == 3:
            raise Enough

    text = example.replace("http://cutline:8642", shell.environ["CUTLINE_API_URL"])
    text = text.replace("cutline_...", shell.environ["CUTLINE_API_TOKEN"])
    with pytest.raises(Enough):
        exec(compile(text, "docs/cli.md", "exec"), {"print": show, "cutline": cutline})
    (table, cause, remedy), *events = printed
    assert (table, "zero or partial date" in cause, remedy != "") == ("shop.orders", True, True), printed
    assert all(text for _, text in events)


def complete(shell: Shell, commands: list[str]) -> None:
    """Each shell's completion is written where the page says; bash takes its own."""
    shell.do(f"export HOME={shell.folder}")
    for line in commands:
        file = Path(line.partition(" > ")[2].replace("~", str(shell.folder)))
        file.parent.mkdir(parents=True)
        shell.do(line)
        assert "cutline" in file.read_text()
        if "bash" in line:
            shell.do(f"source {file} && complete -p cutline")
