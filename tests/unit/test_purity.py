"""Pure files import nothing that waits, reads a clock, draws luck or touches the world outside."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = (
    "common/commands/rules.py",
    "common/mesh/chandy_lamport.py",
    "common/config/reserved.py",
    "common/errors.py",
    "common/mesh/machine.py",
    "common/keys.py",
    "common/mesh/messages.py",
    "common/mesh/silence.py",
    "common/mesh/topology.py",
    "common/positions.py",
    "common/store/envelope.py",
    "common/store/records.py",
    "common/schema.py",
    "common/table_id.py",
    "services/control/alerts.py",
    "services/control/causes.py",
    "services/control/conditions.py",
    "services/enumerator/leader.py",
    "services/enumerator/events.py",
    "services/enumerator/holds.py",
    "services/enumerator/tables.py",
    "services/enumerator/checkpoints.py",
    "services/reader/events.py",
    "services/reader/tables.py",
    "services/enumerator/machine.py",
    "services/enumerator/splitter.py",
    "services/reader/machine.py",
    "services/reader/pace.py",
    "services/reader/unsaved.py",
    "services/sources/mysql/session.py",
    "services/sources/mysql/watermark.py",
    "services/sources/mysql/binlog/ddl.py",
    "services/sources/mysql/binlog/dml.py",
    "services/sources/mysql/binlog/sql.py",
    "services/sources/mysql/decode/charsets.py",
    "services/sources/mysql/decode/codes.py",
    "services/writer/machine.py",
    "common/store/chain.py",
    "common/journal/batches.py",
    "common/journal/plan.py",
    "common/journal/publishing.py",
    "spark_writer/sinks/iceberg/works.py",
    "common/store/command_records.py",
    "services/enumerator/agenda.py",
    "services/enumerator/table_commands.py",
)
LIBRARY = {
    "__future__", "bisect", "collections", "dataclasses", "datetime", "decimal", "enum", "functools", "hashlib",
    "itertools",
    "json", "math", "numpy", "operator", "pyarrow", "re", "types", "typing",
}  # fmt: skip
NUMBERS = "pymysql.constants"  # has nothing else
OWN = {NUMBERS, *(f"cutline.{path.removesuffix('.py').replace('/', '.')}" for path in PURE)}
CLOCKS = {"now", "today", "utcnow"}


def imported(tree: ast.AST) -> set[str]:
    """Every module that the file imports, wherever in it."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("path", PURE)
def test_a_pure_file_imports_only_pure_modules(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    foreign = {name for name in imported(tree) if name not in OWN and name.split(".")[0] not in LIBRARY}
    assert not foreign, f"{path} imports {sorted(foreign)}"


@pytest.mark.parametrize("path", PURE)
def test_a_pure_file_neither_opens_waits_nor_asks_the_time(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{path} waits in line {node.lineno}"
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            assert name not in {"open", "print", "input", "exec", "eval", *CLOCKS}, f"{path}:{node.lineno} calls {name}"
