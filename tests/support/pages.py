"""The blocks of README.md and docs/, and one list of the tests that carry them out as they stand.

A block that no test carries out has a line before it that says why: `<!-- not run: ... -->`. Pictures (mermaid) need
neither. tests/unit/house/test_blocks.py refuses a block that has none of these, or two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

from cutline.services.run.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PICTURES = frozenset({"mermaid"})
_NOT_RUN = re.compile(r"^ *<!-- not run: (.+) -->$")
_FENCE = re.compile(r"^( *)```(\w*)$")

BLOCKS = "tests/unit/house/test_blocks.py"
AS_A_USER = "tests/integration/operation/test_pages.py"
SHAPING = "tests/integration/end_to_end/test_shaping_page.py"
RUN_BY: tuple[tuple[str, str, str, frozenset[str]], ...] = (
    ("tests/integration/operation/test_cli_page.py", "docs/cli.md", "", frozenset({"sh", "python"})),
    (AS_A_USER, "README.md", "Your own database in five minutes", frozenset({"sh", "sql", "yaml"})),
    (AS_A_USER, "docs/lake.md", "", frozenset({"python", "sql", "properties"})),
    (AS_A_USER, "docs/operations/lake.md", "Commits of other users", frozenset({"sh"})),
    (AS_A_USER, "docs/operations/run.md", "Run", frozenset({"sh"})),
    (AS_A_USER, "docs/operations/source.md", "Grants", frozenset({"sql"})),
    (BLOCKS, "docs/architecture.md", "The store", frozenset({"text", "jsonl"})),
    (BLOCKS, "docs/metrics.md", "Alerts and the dashboard of Grafana", frozenset({"yaml"})),
    (BLOCKS, "docs/metrics.md", "Alerts without Prometheus", frozenset({"yaml"})),
    (BLOCKS, "docs/metrics.md", "Logs", frozenset({"yaml"})),
    (BLOCKS, "docs/operations/kubernetes.md", "Install", frozenset({"yaml"})),
    (BLOCKS, "docs/operations/lake.md", "Catalogues and object storage", frozenset({"yaml"})),
    (BLOCKS, "docs/operations/source.md", "", frozenset({"yaml"})),
    (BLOCKS, "docs/settings.md", "", frozenset({"yaml"})),
    (SHAPING, "docs/shaping.md", "", frozenset({"python", "sql", "text", "yaml"})),
    ("tests/integration/end_to_end/test_derived.py", "docs/derived.md", "", frozenset({"sql", "yaml"})),
    ("tests/unit/house/test_developing.py", "docs/developing.md", "Replay a failure", frozenset({"sh"})),
    ("tests/unit/house/test_docs.py", "docs/architecture.md", "The store", frozenset({"json"})),
    ("tests/integration/control/test_api_examples.py", "docs/api.md", "", frozenset({"sh"})),
    ("tests/integration/pipeline/test_redis_access.py", "docs/operations/messages.md", "Redis", frozenset({"text"})),
)
"""A test, a page, a section of it ("": all), and the languages of the blocks there that the test carries out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block: its page and the line where it begins, the heading that it stands below, its language and text without
    the page's indentation. `not_run`: why no test carries it out."""

    page: str
    line: int
    section: str
    language: str
    text: str
    not_run: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def tests(self) -> list[str]:
        """The tests of the list that carry it out."""
        return [
            test
            for test, page, section, languages in RUN_BY
            if page == self.page and section in ("", self.section) and self.language in languages
        ]

    @property
    def commands(self) -> list[str]:
        """The lines of a block of shell, without comments; a line that goes on after a backslash is one."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in lines) if line]


@cache
def blocks() -> tuple[Block, ...]:
    """Every block of every page."""
    return tuple(block for page in PAGES for block in _of_page(page))


def blocks_of(test: str) -> list[Block]:
    """The blocks that a test (its path) has to carry out."""
    return [block for block in blocks() if block.not_run is None and test in block.tests]


def parsed(words: list[str], *, whole: bool = True) -> None:
    """Take the words after `cutline` as it does, and don't carry them out. Raises UsageError. Without `whole` arguments
    may be missing, or have a stand-in such as TIME."""
    command: click.Command = main
    context: click.Context | None = None
    name: str | None = "cutline"
    try:
        while isinstance(command, click.Group):
            if not words and not whole:
                return
            context = command.make_context(name, words, parent=context)
            name, found, words = command.resolve_command(context, [*context._protected_args, *context.args])
            assert found is not None
            command = found
        command.make_context(name, words, parent=context)
    except (click.BadParameter, click.BadOptionUsage):
        if whole:
            raise


def _of_page(page: Path) -> Iterator[Block]:
    section, not_run, begun, lines = "", None, None, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if begun is not None and fence is not None:
            indent, language, at = begun
            text = "".join(f"{inner.removeprefix(indent)}\n" for inner in lines)
            where = page.relative_to(ROOT).as_posix()
            yield Block(page=where, line=at, section=section, language=language, text=text, not_run=not_run)
            begun, not_run = None, None
        elif begun is not None:
            lines.append(line)
        elif fence is not None:
            begun, lines = (fence[1], fence[2], number), []
        elif line.startswith("#"):
            section = line.lstrip("#").strip()
        elif reason := _NOT_RUN.match(line):
            not_run = reason[1]
        elif line.strip():
            not_run = None
