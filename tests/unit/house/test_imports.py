"""Imports point one way: `enumerator`, `reader`, `writer`, `run` and `control` stand on `sources` and `spark_writer`,
which stand on `common`; and no module imports itself by way of others.

`ALLOWED` is the list of all arrows between packages. A module belongs to the longest of these names that its own
begins with; inside of a package only cycles are refused.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TOP = ("common", "services", "spark_writer")
RECORDS = {
    "common.causes",
    "common.commands",
    "common.derived",
    "common.errors",
    "common.gtids",
    "common.ops",
    "common.phases",
    "common.positions",
    "common.schema",
    "common.shape",
    "common.table_id",
    "common.waits",
}
MESH = {
    *RECORDS,
    "common.form",
    "common.limits",
    "common.preview",
    "common.status",
    "common.logs",
    "common.measures",
    "common.clock",
    "common.threads",
    "common.store",
    "common.config",
    "common.mesh",
}

NEUTRAL = {*RECORDS, "common.journal", "common.store", "spark_writer.sinks"}

ALLOWED: dict[str, set[str]] = {
    "common": set(),
    "common.causes": set(),
    "common.waits": {"common.causes"},
    "common.derived": set(),
    "common.errors": {"common.causes"},
    "common.file_metrics": {"common.schema", "common.store"},
    "common.keys": set(),
    "common.limits": set(),
    "common.logs": {"common.errors", "common.config"},
    "common.measures": set(),
    "common.parquet": set(),
    "common.spill": {"common.errors"},
    "common.ops": set(),
    "common.schema": {"common.causes", "common.errors", "common.shape"},
    "common.shape": set(),
    "common.mask_key": {"common.errors"},
    "common.masking": {"common.causes", "common.errors", "common.mask_key", "common.schema"},
    "common.preview": {"common.causes", "common.schema"},
    "common.gtids": set(),
    "common.positions": {"common.causes", "common.errors", "common.gtids"},
    "common.commands": {"common.form", "common.phases"},
    "common.clock": set(),
    "common.form": set(),
    "common.phases": set(),
    "common.journal": {*RECORDS, "common.config", "common.measures", "common.status", "common.store"},
    "common.table_id": {"common.errors"},
    "common.config": {"common.causes", "common.errors", "common.mask_key", "common.shape", "common.table_id"},
    "common.programs": {"common.errors", "common.config"},
    "common.threads": set(),
    "common.store": {*RECORDS, "common.form"},
    "common.status": {
        "common.causes",
        "common.commands",
        "common.errors",
        "common.form",
        "common.limits",
        "common.measures",
        "common.phases",
        "common.waits",
    },
    "common.mesh": {
        *RECORDS,
        "common.clock",
        "common.config",
        "common.form",
        "common.limits",
        "common.logs",
        "common.preview",
        "common.status",
        "common.store",
        "common.threads",
    },
    "common.web": {"common.config"},
    "services.sources": {*MESH, "common.keys", "common.mask_key", "common.masking"},
    "spark_writer": {
        *MESH,
        "common.journal",
        "common.programs",
        "spark_writer.compiled",
        "spark_writer.driver",
        "spark_writer.java_errors",
        "spark_writer.lead",
        "spark_writer.ports",
        "spark_writer.preview",
        "spark_writer.sinks",
        "spark_writer.sinks.iceberg",
        "spark_writer.transform",
    },
    # The order of durability, and all that drives it, knows sinks by their contract.
    "spark_writer.apply": {
        *NEUTRAL,
        "common.clock",
        "common.logs",
        "spark_writer.derived",
        "spark_writer.java_errors",
        "spark_writer.quarantine",
        "spark_writer.sparing",
    },
    "spark_writer.derived": {
        *NEUTRAL,
        "common.clock",
        "common.status",
        "spark_writer.quarantine",
        "spark_writer.sparing",
    },
    "spark_writer.preview": {
        *RECORDS,
        "common.preview",
        "spark_writer.derived",
        "spark_writer.sinks",
        "spark_writer.sinks.iceberg",
        "spark_writer.transform",
    },
    "spark_writer.quarantine": {*NEUTRAL, "spark_writer.java_errors"},
    "spark_writer.sparing": {*NEUTRAL, "spark_writer.java_errors"},
    "spark_writer.ports": {*NEUTRAL, "common.clock"},
    "spark_writer.driver": {
        *RECORDS,
        "common.commands",
        "common.logs",
        "common.mesh",
        "common.status",
        "common.store",
        "spark_writer.apply",
        "spark_writer.java_errors",
        "spark_writer.lead",
        "spark_writer.ports",
    },
    "spark_writer.lead": {"common.status", "common.store", "spark_writer.ports"},
    "spark_writer.compiled": set(),
    "spark_writer.java_errors": set(),
    "spark_writer.sinks": {
        "common.causes",
        "common.errors",
        "common.journal",
        "common.positions",
        "common.schema",
        "common.status",
        "common.store",
    },
    # Rules know staged files and no sink, but for what its contract calls a table's own fault.
    "spark_writer.transform": {
        *RECORDS,
        "common.file_metrics",
        "common.journal",
        "common.keys",
        "common.parquet",
        "common.store",
        "spark_writer.compiled",
        "spark_writer.java_errors",
        "spark_writer.sinks",
    },
    "spark_writer.sinks.iceberg": {
        *RECORDS,
        "common.clock",
        "common.config",
        "common.file_metrics",
        "common.journal",
        "common.keys",
        "common.logs",
        "common.measures",
        "common.parquet",
        "common.spill",
        "common.status",
        "common.store",
        "spark_writer.compiled",
        "spark_writer.java_errors",
        "spark_writer.sinks",
    },
    "services.client": set(),
    "services.health": {"common.errors", "common.threads", "common.config", "common.mesh"},
    "services.control": {
        *MESH,
        "common.web",
        "services.sources",
        "spark_writer",
        "spark_writer.sinks.iceberg",
        "services.run.preflight",
    },
    "services.enumerator": {*MESH, "common.masking", "services.sources"},
    "services.reader": {*MESH, "common.masking", "services.sources"},
    "services.writer": {*MESH, "common.parquet", "common.file_metrics", "common.spill"},
    "services.run": {
        *MESH,
        "services.control",
        "common.programs",
        "services.sources",
        "services.client",
        "spark_writer",
        "spark_writer.preview",
        "spark_writer.sinks.iceberg",
        "services.run.lake",
        "services.run.preflight",
    },
    "services.run.lake": MESH,
    "services.run.preflight": {*MESH, "services.run.lake", "services.sources", "spark_writer.sinks.iceberg"},
    "services": set(),
}


@dataclass(frozen=True, slots=True)
class Arrow:
    """An import of one module of the product by another."""

    importer: str
    imported: str
    where: str

    def __str__(self) -> str:
        return f"{self.where} imports {self.imported}"


def package(module: str) -> str:
    """The package of `ALLOWED` that a module belongs to."""
    return max((name for name in ALLOWED if f"{module}.".startswith(f"{name}.")), key=len)


@cache
def modules() -> dict[str, Path]:
    """Every module of the product and its file."""
    files = [path for top in TOP for path in sorted((ROOT / top).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(node: ast.AST) -> Iterator[str]:
    """The modules of the product that a statement imports, without the leading `cutline.`."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in names:
        module = name.removeprefix("cutline.")
        if module != name:
            yield module if module in modules() else module.rpartition(".")[0]


@cache
def arrows() -> tuple[Arrow, ...]:
    """Every import of the product's own modules, wherever in a file it stands."""
    return tuple(
        Arrow(importer=importer, imported=name, where=f"{path.relative_to(ROOT)}:{node.lineno}")
        for importer, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported(node)
    )


def test_every_import_is_an_allowed_arrow() -> None:
    refused = [
        arrow
        for arrow in arrows()
        if (source := package(arrow.importer)) != (target := package(arrow.imported)) and target not in ALLOWED[source]
    ]
    assert not refused, "\n".join(map(str, refused))


def test_no_package_and_no_module_imports_itself_by_way_of_others() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for arrow in arrows():
        graph[arrow.importer].add(arrow.imported)
    for cyclic in (ALLOWED, graph):
        try:
            TopologicalSorter(cyclic).prepare()
        except CycleError as error:
            between = set(zip(error.args[1][1:], error.args[1], strict=False))
            lines = [str(arrow) for arrow in arrows() if (arrow.importer, arrow.imported) in between]
            raise AssertionError("\n".join([" <- ".join(error.args[1]), *lines])) from error


def test_a_module_of_the_product_imports_no_test() -> None:
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(f"{name}.".startswith("tests.") for name in names), f"{path}:{node.lineno}"


def test_what_spark_asks_for_in_the_middle_of_its_work_is_a_dependency() -> None:
    """PySpark imports these only when a function runs on Arrow's batches, and refuses it without them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {re.split(r"[<=>\[; ]", line)[0] for line in project["dependencies"]}
    asked = {re.split(r"[<=>\[; ]", line)[0] for line in metadata.requires("pyspark") or () if 'extra == "sql"' in line}
    assert "pyarrow" in asked
    assert asked - own == set()
