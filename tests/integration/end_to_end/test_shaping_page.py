"""docs/shaping.md as it stands: its statements at the source, its rules in the definition, its tables in the lake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.databases import Database, MariaDB
from tests.support.lake_tables import lake_table
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh
from tests.support.operator import done, redefined
from tests.support.pages import ROOT, blocks_of

HERE = "tests/integration/end_to_end/test_shaping_page.py"
_KEY = re.compile(r'^key = b"(.*)"$', re.MULTILINE)
_TABLE = re.compile(r"^\| (?:.+\n)+", re.MULTILINE)


def tables_of_the_page() -> list[list[list[str]]]:
    """The page's tables, each as its lines of cells, the first the names of columns."""
    found = _TABLE.findall((ROOT / "docs/shaping.md").read_text(encoding="utf-8"))
    lines = [[[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()] for text in found]
    return [[table[0], *table[2:]] for table in lines]


def shown(warehouse: str, table: str) -> list[list[str]]:
    """A table of the lake as the page prints it."""
    rows = lake_table(warehouse, table).scan().to_arrow().sort_by("id")
    printed = [["null" if value is None else str(value) for value in row.values()] for row in rows.to_pylist()]
    return [rows.column_names, *printed]


def test_the_examples_of_the_page_give_what_it_says(
    mariadb: MariaDB,
    fresh_database: Callable[[Database], str],
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = blocks_of(HERE)
    made, changed = (block.text for block in blocks if block.language == "sql")
    rules, masking = (yaml.safe_load(block.text) for block in blocks if block.language == "yaml")
    (python,), (prints,) = ([block.text for block in blocks if block.language == name] for name in ("python", "text"))
    people, visits, later = tables_of_the_page()
    schema = fresh_database(mariadb)

    def carry_out(statements: str) -> None:
        plain = re.sub(r" *--.*", "", statements)
        mariadb.execute(*(each for each in plain.split(";") if each.strip()), database=schema)

    carry_out(made)
    names = [f"{schema}.people", f"{schema}.visits"]
    key = _KEY.findall(python)[0]
    monkeypatch.setenv(masking["masking"]["key_env"], key)
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        pipeline = mesh.pipeline("lake", mariadb, names, table_options=rules["table_options"])
        warehouse = (pipeline.store.definition() or {})["sink"]["warehouse"]
        pipeline.until(lambda: pipeline.shows(*names), "both to be live")
        savepoint(pipeline, "first")
        assert [shown(warehouse, name) for name in names] == [people, visits]
        carry_out(changed)
        pipeline.catches_up(*names)
        savepoint(pipeline, "later")
        assert shown(warehouse, names[0]) == later
        carry_out("UPDATE people SET family = 'Lovelace' WHERE id = 1")
        done(pipeline, "define", **redefined(pipeline, **masking))
        pipeline.until(lambda: pipeline.checkpoint().tables[names[0]].generation > 1, "the next generation")  # type: ignore
        pipeline.until(lambda: pipeline.shows(*names), "the masked table to be live")
        savepoint(pipeline, "masked")
        exec(compile(python, "docs/shaping.md", "exec"), {})
        assert capsys.readouterr().out == prints
        columns, *rows = shown(warehouse, names[0])
        assert dict(zip(columns, rows[0], strict=True))["family"] == prints.strip()
        assert not [row for row in rows if "Codd" in row]
