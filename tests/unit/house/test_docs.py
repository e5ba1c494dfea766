"""README and docs/ say what the code does: settings, files, links, commands, metrics and the messages they quote."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from cutline.common.schema import arrow_type
from cutline.common.store.records import CheckpointEntry, EpochEntry, Publication
from cutline.services.run.cli import main
from cutline.services.sources.mysql.requirements import SUPPORTED

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRODUCT = ("common", "services", "spark_writer")
MOST_WORDS = 1800

ICEBERG = {
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "string": "string",
    "binary": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
    "list<item: float>": "list<float>",
}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code(page: Path) -> str:
    """What a page has in back-ticks, and its blocks of shell."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)), *blocks])


def test_docs_list_every_setting_as_the_code_has_it() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert text.split("<!-- settings -->\n", 1)[1].strip() == CliRunner().invoke(main, ["settings"]).output.strip()


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= MOST_WORDS


@every_page
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    top = {path.name for path in ROOT.iterdir()}
    named = re.findall(
        r"(?<![\w./-])([A-Za-z_][\w.-]*/[\w./-]*|[\w-]+\.(?:py|pyx|pxd|toml|yml))(?![\w*<>{/])", code(page)
    )
    paths = {name for name in named if "/" not in name or name.split("/")[0] in top}
    names = {path.name for folder in (*PRODUCT, "tests", "tools") for path in (ROOT / folder).rglob("*")} | top
    missing = [name for name in paths if not ((ROOT / name).exists() if "/" in name else name in names)]
    assert not missing, sorted(missing)


@every_page
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor


@every_page
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^ *make ([a-z-]+)", code(page), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in re.findall(r"(?<![\w./-])(?<!from )cutline ([a-z]+)", code(page)):
        assert command in main.commands, command


@every_page
def test_every_metric_that_a_page_names_is_there(page: Path) -> None:
    adapter = (ROOT / "k8s" / "monitoring" / "prometheus-adapter.yaml").read_text(encoding="utf-8")
    metrics = "\n".join((*texts(), adapter))  # the adapter makes metrics of ours
    for name in re.findall(r"\bcutline_[a-z_]+\b", code(page)):
        assert name in metrics or name.removeprefix("cutline_").removesuffix("_total") in metrics, name


@cache
def texts() -> frozenset[str]:
    """Every text of the product's code; what an f-string or a %-format puts in is `…`."""
    found: set[str] = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                    found.add(re.sub(r"%(?:\.\d)?[sdgf]", "…", text_of(node)))
    return frozenset(found)


def text_of(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) for value in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return text_of(left) + text_of(right)
        case _:
            return "…"


def test_the_supported_servers_are_those_of_the_code() -> None:
    for name in ("operations/source.md", "limits.md"):
        assert SUPPORTED in (ROOT / "docs" / name).read_text(encoding="utf-8"), name


def printed(message: str) -> bool:
    """Whether the code has the text of a message; `…` stands for whatever is put in, or left out, there."""
    pieces = [piece.strip() for piece in message.split("…")]
    longest, pattern = max(pieces, key=len), re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
    return any(longest in known and pattern.search(known) for known in texts())


def test_operations_quote_messages_as_the_code_prints_them() -> None:
    """Each first cell of a table headed `message`. Where a message is put together of what happens, why and what to do,
    the code has these apart."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "operations").glob("*.md"))
    tables = re.findall(r"^\| message \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    quoted = [cell for table in tables for cell in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)]
    assert len(quoted) > 50
    parts = {message: [part for part in re.split(r"[;:] ", message) if re.search(r"\w", part)] for message in quoted}
    assert [message for message in quoted if not printed(message) and not all(map(printed, parts[message]))] == []


def test_architecture_shows_records_as_the_code_writes_them() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    examples = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    kinds = [example.get("kind", "publication") for example in examples]
    assert kinds == ["epoch", "checkpoint", "checkpoint", "publication", "publication"]
    for kind, example in zip(kinds, examples, strict=True):
        record: EpochEntry | CheckpointEntry | Publication
        if kind == "epoch":
            record = EpochEntry.from_json(example)
            assert record.to_json() == example
        elif kind == "checkpoint":
            record = CheckpointEntry.from_json(example, {})
            assert record.to_json(since=example["since"], tables=record.tables) == example
        else:
            record = Publication.from_json(example, {})
            assert record.to_json(since=example["since"], tables=record.tables) == example


def test_the_lakes_types_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "lake.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*) \| `(.+)` \|.*\|$", text.split("## Types", 1)[1], re.MULTILINE)
    assert len(rows) > 15
    for columns, iceberg in rows:
        for column in re.findall(r"`([^`]+)`", columns):
            arrow = str(arrow_type(column))
            assert ICEBERG.get(arrow, arrow.replace("decimal128", "decimal")) == iceberg, column
