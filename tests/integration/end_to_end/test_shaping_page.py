"""docs/shaping.md as it stands: its statements at the source, its rules in the definition, its tables in the lake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml

from cutline.spark_writer import session
from tests.support.databases import Database, MariaDB
from tests.support.lake_tables import lake_table
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh
from tests.support.operator import done, redefined
from tests.support.pages import ROOT, blocks_of

HERE = "tests/integration/end_to_end/test_shaping_page.py"
ORDERS = ["_seq", "_binlog_file", "_binlog_pos", "id"], ["id"], ["id", "_from_file", "_from_pos", "_from_seq"]
"""By which the tables `payments`, `members` and `prices` stand on the page once they were read again."""
_KEY = re.compile(r'^key = b"(.*)"$', re.MULTILINE)
_TABLE = re.compile(r"^\| (?:.+\n)+", re.MULTILINE)


def tables_of_the_page() -> list[list[list[str]]]:
    """The page's tables of rows, each as its lines of cells, the first the names of columns."""
    found = _TABLE.findall((ROOT / "docs/shaping.md").read_text(encoding="utf-8"))
    lines = [[[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()] for text in found]
    return [[table[0], *table[2:]] for table in lines if table[0][0] in ("id", "hall")]


def texts(language: str) -> list[str]:
    """The page's blocks of a language."""
    return [block.text for block in blocks_of(HERE) if block.language == language]


def shown(warehouse: str, table: str, names: list[str], order: list[str]) -> list[list[str]]:
    """A table of the lake as the page prints it; nulls come first."""
    rows = lake_table(warehouse, table).scan().to_arrow()
    by: Any = [(name, "ascending", "at_start") for name in order]
    rows = rows.take(pc.sort_indices(rows, sort_keys=by)).select(names)
    printed = [["null" if value is None else str(value) for value in row.values()] for row in rows.to_pylist()]
    return [names, *printed]


def test_the_examples_of_the_page_give_what_it_says(
    mariadb: MariaDB,
    fresh_database: Callable[[Database], str],
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, changed, called, seated, swapped, moded, changed_too, as_of = texts("sql")
    rules, masking, functions, keys, modes, again = map(yaml.safe_load, texts("yaml"))
    python, module = texts("python")
    (prints,) = texts("text")
    people, visits, later, visited, contacts, seats, others, payments, members, prices, *kept = tables_of_the_page()
    schema = fresh_database(mariadb)

    def carry_out(*texts: str) -> None:
        plain = re.sub(r" *--.*", "", "".join(texts))
        mariadb.execute(*(each for each in plain.split(";") if each.strip()), database=schema)

    (tmp_path / "shop_functions.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    carry_out(made, called, seated, moded)
    names = [f"{schema}.{name}" for name in ("people", "visits", "payments", "members", "prices", "contacts", "seats")]
    key = _KEY.findall(python)[0]
    monkeypatch.setenv(masking["masking"]["key_env"], key)
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        options = [each for block in (rules, functions, keys, modes) for each in block["table_options"]]
        more = yaml.safe_dump({"functions": functions["functions"]})
        pipeline = mesh.pipeline("shop", mariadb, names, more, table_options=options, snapshot=modes["snapshot"])
        sink = (pipeline.store.definition() or {})["sink"]
        warehouse = sink["warehouse"]
        pipeline.until(lambda: pipeline.shows(*names), "all to be live")
        first = savepoint(pipeline, "first")
        for at, table in ((0, people), (1, visits), (5, contacts), (6, seats)):
            assert shown(warehouse, names[at], table[0], table[0][:2]) == table
        assert lake_table(warehouse, names[0]).schema().column_names == people[0]
        carry_out(changed, changed_too, swapped)
        pipeline.catches_up(*names)
        savepoint(pipeline, "later")
        assert shown(warehouse, names[0], later[0], ["id"]) == later
        assert shown(warehouse, names[6], others[0], ["hall", "place"]) == others
        assert shown(warehouse, names[1], visited[0], ["id"]) == visited
        assert shown(warehouse, names[2], payments[0], ["_seq", "id"]) == payments
        assert shown(warehouse, names[3], members[0], ["id"]) == members
        assert shown(warehouse, names[4], prices[0], ["id", "_from_seq"]) == prices
        query = as_of.replace("shop.prices", names[4]).replace("42", str(first)).strip().rstrip(";")
        reader: Any = session.for_pipeline(spark, sink)
        views = "SHOW VIEWS IN lake._cutline"
        pipeline.until(lambda: reader.sql(views).collect(), "the view of cuts, which an idle Spark writer makes")
        found = reader.sql(query)
        assert sorted(map(tuple, found.collect())) == [(1, 100), (2, 200)]
        options = [each for block in (rules, functions, keys, again) for each in block["table_options"]]
        done(pipeline, "define", **redefined(pipeline, table_options=options))
        pipeline.until(lambda: [pipeline.generation(name) for name in names[2:5]] == [2, 2, 2], "the next generations")
        pipeline.until(lambda: pipeline.shows(*names), "all to be live by the next rules")
        savepoint(pipeline, "again")
        for name, page, order in zip(names[2:5], kept, ORDERS, strict=True):
            assert shown(warehouse, name, page[0], order) == page
        assert sorted(map(tuple, reader.sql(query).collect())) == [(1, 100), (2, 200)]
        carry_out("UPDATE people SET family = 'Lovelace' WHERE id = 1")
        generation = pipeline.generation(names[0])
        done(pipeline, "define", **redefined(pipeline, **masking))
        pipeline.until(lambda: pipeline.generation(names[0]) > generation, "the next generation")
        pipeline.until(lambda: pipeline.shows(*names), "the masked table to be live")
        savepoint(pipeline, "masked")
        exec(compile(python, "docs/shaping.md", "exec"), {})
        assert capsys.readouterr().out == prints
        columns, *rows = shown(warehouse, names[0], ["id", "family"], ["id"])
        assert dict(zip(columns, rows[0], strict=True))["family"] == prints.strip()
        assert not [row for row in rows if "Codd" in row]
