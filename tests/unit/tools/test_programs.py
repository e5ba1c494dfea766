"""The Makefile's table of programs has everything that tests run, and what is missing is told with its package."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tools import programs

ROOT = Path(__file__).resolve().parents[3]
STARTS = {"run", "Popen", "check_call", "check_output", "call", "create_subprocess_exec", "execvp"}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of the sources of tests and tools, with its file."""
    return [
        (str(path.relative_to(ROOT)), node)
        for folder in ("tests", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.List)
    ]


def calls(*names: str) -> list[tuple[str, ast.Call]]:
    """All calls of functions and methods of these names."""
    return [
        (file, node)
        for file, node in nodes()
        if isinstance(node, ast.Call)
        if (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in names
    ]


def first_word(command: ast.AST) -> str:
    """The program that a command names by itself: empty if it is computed."""
    word = command.elts[0] if isinstance(command, ast.List | ast.Tuple) and command.elts else command
    return word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else ""


def test_every_program_that_is_asked_for_is_in_the_table() -> None:
    asked = [(file, first_word(call.args[0])) for file, call in calls("program") if call.args]
    assert ("tests/support/databases.py", "mariadbd") in asked
    assert [(file, name) for file, name in asked if name and name not in programs.table()] == []


def test_a_program_is_started_by_what_program_says_and_not_by_its_bare_name() -> None:
    """A path such as /bin/sh is no name that is looked for."""
    started = [(file, first_word(call.args[0])) for file, call in calls(*STARTS) if call.args]
    listed = [(file, first_word(node)) for file, node in nodes() if isinstance(node, ast.List) and len(node.elts) > 1]
    assert [(file, name) for file, name in started if name and not name.startswith("/")] == []
    assert [(file, name) for file, name in listed if name in programs.table()] == []
    assert {file for file, _ in calls("which")} == {"tools/programs.py"}


def test_every_row_of_the_table_names_a_package_but_that_of_what_nobody_packages() -> None:
    table = programs.table()
    assert [name for name, row in table.items() if (row.needed_by == "nobody") != (not row.packages)] == []


def test_a_program_that_is_missing_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "search_path", lambda: str(tmp_path))
    with pytest.raises(programs.Missing, match=r"no mariadb-binlog .* Debian package mariadb-client "):
        programs.program("mariadb-binlog")
    with pytest.raises(programs.Unpackaged, match="no gh-ost"):
        programs.program("gh-ost")


def test_a_program_of_another_release_is_told_with_that_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "search_path", lambda: str(tmp_path))
    monkeypatch.setattr(programs, "_release", lambda: "bookworm")
    with pytest.raises(programs.Unpackaged, match="valkey-server is in Debian trixie"):
        programs.program("valkey-server")


def test_system_programs_are_found_without_their_folder_in_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.program("chroot") == "/usr/sbin/chroot"
