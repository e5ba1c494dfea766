"""The map of the folders, docs/folders.md: `make map` writes it from the first sentence of each file.

A Python file begins with a docstring and a file of the dashboard with a comment, so a file says itself what it is for;
tests/unit/house/test_folder_map.py fails where the page is older than the files.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from tests.unit.house.test_purity import PURE

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "folders.md"
FOLDERS = ("common", "services", "spark_writer", "tools", "tests")
SUFFIXES = {".py", ".js", ".java"}
HEAD = """# Folders

Each folder and file with its own first sentence. `make map` writes this page. A file with a star is pure: it waits for
nothing, reads no clock, draws no random number and touches nothing outside of its arguments
(`tests/unit/house/test_purity.py`). [Architecture](architecture.md) shows how the folders stand on each other,
[Developing](developing.md) where to add what.
"""


def sentence(text: str) -> str:
    """The first sentence of a docstring or comment, without the colon that announces a list."""
    first = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", first)[0].rstrip(":")


def purpose(path: Path) -> str:
    """The first sentence of a file; empty if it has none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return sentence(ast.get_docstring(ast.parse(text)) or "")
    if path.suffix == ".js":
        return sentence("\n".join(line.removeprefix("//").strip() for line in _leading(text, "//")))
    comment = re.search(r"/\*\*(.*?)\*/", text, re.DOTALL)
    return sentence(re.sub(r"^\s*\* ?", "", comment[1], flags=re.MULTILINE)) if comment else ""


def _leading(text: str, mark: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next((number for number, line in enumerate(lines) if not line.startswith(mark)), len(lines))]


def files() -> list[Path]:
    """The files that the map is about."""
    paths = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    return sorted(path for path in paths if path.suffix in SUFFIXES and "vendor" not in path.parts)


def render(paths: Collection[Path]) -> str:
    """The page: a section for each folder, with a line for each of its files."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        folders[str(path.parent.relative_to(ROOT))].append(path)
    lines = [HEAD]
    for folder, inside in sorted(folders.items()):
        package = ROOT / folder / "__init__.py"
        lines += [f"## {folder}", ""]
        if package in inside:
            lines += [purpose(package), ""]
        shown = [path for path in inside if path != package]
        if shown:
            lines += ["| file | what it is for |", "|---|---|"]
            lines += [f"| `{path.name}`{_star(path)} | {purpose(path).replace('|', chr(92) + '|')} |" for path in shown]
            lines.append("")
    return "\n".join(lines)


def _star(path: Path) -> str:
    return "*" if str(path.relative_to(ROOT)) in PURE else ""


if __name__ == "__main__":
    PAGE.write_text(render(files()), encoding="utf-8")
