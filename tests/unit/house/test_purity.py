"""Pure files import nothing that waits, reads a clock, draws luck or touches the outside; drivers do by ports alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PURE = (
    "common/commands/rules.py",
    "common/mesh/chandy_lamport.py",
    "common/config/reserved.py",
    "common/causes.py",
    "common/waits.py",
    "common/errors.py",
    "common/gtids.py",
    "common/ops.py",
    "common/mesh/machine.py",
    "common/keys.py",
    "common/mesh/messages.py",
    "common/mesh/silence.py",
    "common/mesh/topology.py",
    "common/positions.py",
    "common/store/deltas.py",
    "common/store/envelope.py",
    "common/store/origin.py",
    "common/store/records.py",
    "common/schema.py",
    "common/mask_key.py",
    "common/masking.py",
    "common/preview.py",
    "common/shape.py",
    "common/table_id.py",
    "services/control/alerts.py",
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
    "services/reader/outlet.py",
    "services/reader/stream.py",
    "services/reader/pace.py",
    "services/reader/unsaved.py",
    "services/sources/contract.py",
    "services/sources/mysql/session.py",
    "services/sources/mysql/watermark.py",
    "services/sources/mysql/binlog/alter.py",
    "services/sources/mysql/binlog/ddl.py",
    "services/sources/mysql/binlog/dml.py",
    "services/sources/mysql/binlog/sql.py",
    "services/sources/mysql/decode/charsets.py",
    "services/sources/mysql/decode/codes.py",
    "services/writer/machine.py",
    "common/limits.py",
    "common/measures.py",
    "common/form.py",
    "common/phases.py",
    "common/commands/kinds.py",
    "common/status/pipeline_status.py",
    "common/store/chain.py",
    "common/journal/batches.py",
    "common/journal/plan.py",
    "common/journal/publishing.py",
    "spark_writer/sinks/iceberg/works.py",
    "common/store/command_records.py",
    "services/enumerator/agenda.py",
    "services/enumerator/checkpointing.py",
    "services/enumerator/roster.py",
    "services/enumerator/finding.py",
    "services/enumerator/splits.py",
    "services/enumerator/states.py",
    "services/enumerator/taken.py",
    "services/enumerator/requests.py",
    "services/enumerator/table_commands.py",
    "services/run/cli/hints.py",
)
LIBRARY = {
    "__future__", "bisect", "collections", "dataclasses", "datetime", "decimal", "enum", "errno", "functools",
    "hashlib",
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


DRIVERS = (
    "services/enumerator/commanding.py",
    "services/enumerator/driver.py",
    "services/enumerator/ending.py",
    "services/enumerator/epoch.py",
    "services/enumerator/journal.py",
    "services/enumerator/pipelines.py",
    "services/reader/chunk_reading.py",
    "services/reader/driver.py",
    "services/writer/driver.py",
)
BY_PORTS = {"concurrent", "random", "secrets", "socket", "subprocess", "threading", "time"}


@pytest.mark.parametrize("path", DRIVERS)
def test_a_driver_reads_clocks_draws_luck_and_starts_threads_by_its_ports_alone(path: str) -> None:
    names = imported(ast.parse((ROOT / path).read_text()))
    found = {name for name in names if name.split(".")[0] in BY_PORTS or name == "cutline.common.threads"}
    assert not found, f"{path} imports {sorted(found)}; see common/mesh/ports.py"
