"""README and docs/ say what the code does: settings, files, links, commands, calls, metrics, the messages they quote.

test_blocks.py is about their blocks.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import click
import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner

from cutline.common.config.pipeline import FIXED, parse
from cutline.common.config.settings import settings
from cutline.common.mesh.presence import Registry
from cutline.common.schema import arrow_type
from cutline.common.store.records import CheckpointEntry, EpochEntry, Publication
from cutline.common.store.store import Store
from cutline.services.control.api.access import Access
from cutline.services.control.api.definitions import differences, immutable, merged, normal
from cutline.services.control.app import build
from cutline.services.control.conditions import CONDITIONS
from cutline.services.run.cli import main
from cutline.services.sources.mysql.requirements import SUPPORTED
from tests.support import pages
from tests.support.pages import ROOT, parsed
from tests.support.shop_api import DEFINITION

README = ROOT / "README.md"
PAGES = [*pages.PAGES, ROOT / "CHANGELOG.md"]
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


def spans(text: str) -> list[str]:
    """What prose has in back-ticks."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def code(page: Path) -> str:
    """What a page has in back-ticks, and its blocks of shell."""
    text = page.read_text(encoding="utf-8")
    return "\n".join([*spans(text), *re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)])


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
    assert untaken(spans(page.read_text(encoding="utf-8"))) == {}


def test_every_command_that_a_message_names_is_there() -> None:
    """A remedy is often a command; so is a docstring's example."""
    assert untaken(span for text in texts() for span in re.findall(r"`([^`\n]+)`", text)) == {}


def untaken(found: Iterable[str]) -> dict[str, str]:
    """Those of the commands in back-ticks that `cutline` does not take, with what it says."""
    faults = {}
    for span in found:
        if re.match(r"cutline [a-z]", span):
            try:
                parsed(shlex.split(re.sub(r"[][]|(?<=\w)…", "", span))[1:], whole=False)
            except click.UsageError as error:
                faults[span] = error.format_message()
    return faults


def test_each_change_of_a_definition_that_a_page_shows_is_taken() -> None:
    """The patches in `cutline pipeline patch`, on a whole definition; what a pipeline keeps for life is in none."""
    seen = 0
    for page in pages.PAGES:
        for shown in re.findall(r"cutline pipeline patch \w+ '([^'\n]+)'", page.read_text(encoding="utf-8")):
            patch = yaml.safe_load(shown)
            config = parse(yaml.safe_dump(merged(DEFINITION, patch)))
            changed = differences(normal(DEFINITION), config.definition())
            assert changed, shown
            assert [key for key in changed if immutable(key)] == [], shown
            seen += 1
    assert seen >= 4


def test_every_setting_that_a_page_names_is_there() -> None:
    known = {setting.name for setting in settings()}
    mappings = tuple(f"{setting.name}." for setting in settings() if setting.type == "mapping")
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    roots = "|".join(sorted({name.partition(".")[0] for name in known if "." in name}))
    for page in pages.PAGES:
        if page.name != "folders.md":  # which names files
            text = code(page)
            for name in re.findall(rf"(?<![\w./])(?:{roots})\.[a-z]\w*(?:\.[a-z]\w*)*(?![\w/])", text):
                if not re.search(r"\.(?:py|pyx|md|yaml|json|js)$", name) and not name.startswith(mappings):
                    assert any(f"{each}.".startswith(f"{name}.") for each in known), f"{page.name}: {name}"
            for name in re.findall(r"\bCUTLINE_[A-Z_]+[A-Z]\b", text):
                assert name in known or name in compose or name == "CUTLINE_TEST_FULL", f"{page.name}: {name}"


@pytest.mark.parametrize(
    ("page", "end"),
    [("api.md", "can't change: make a new"), ("limits.md", "for life"), ("settings.md", "can't change: start")],
)
def test_the_settings_that_can_not_change_are_listed_wherever_that_is_said(page: str, end: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(end)[0]
    sentence = re.split(r"\.\s|- A pipeline keeps", text)[-1]
    assert set(re.findall(r"`([^`]+)`", sentence)) == set(FIXED)


# --- calls of the API


@cache
def described() -> Any:
    """The API's own description."""
    store = Store("memory://docs")
    return build(cast(Registry, None), store, Access(store.access)).openapi()


def named_calls(line: str) -> Iterator[tuple[str | None, str]]:
    """The calls that a line names, as method (None: any) and path. `...` stands for the beginning of a path; a path of
    one or two parts after another one is short for one that ends so."""
    method, before = None, False
    for span in re.findall(r"`([^`]+)`", line):
        found = re.match(r"(?:(GET|POST|PUT|PATCH|DELETE) )?(/v1/[^\s?]*|\.\.\.(?:/[^\s?]*)?|/[a-z{][^\s?]*)", span)
        if found is None:
            continue
        method = found[1] or (method if not found[2].startswith("/v1") else None)
        if found[2].startswith(("/v1/", "...")) or before:
            before = True
            yield method, found[2]


def call(method: str | None, path: str) -> Any:
    """The operation that a call means, None if the API has none; of several the shortest, of a pipeline."""
    parts = path.removeprefix("...").rstrip("/").split("/")
    stands_in = [part.startswith("{") or part.isupper() or part == "shop" for part in parts]
    pattern = "/".join(r"\{\w+\}" if any_ else re.escape(part) for part, any_ in zip(parts, stands_in, strict=True))
    begin = "" if path.startswith("/v1") else r"/v1(?:/[^/]+)*"
    likely = sorted(described()["paths"].items(), key=lambda item: ("{pipeline}" not in item[0], item[0].count("/")))
    for known, operations in likely:
        if re.fullmatch(f"{begin}{pattern}", known) and (method is None or method.lower() in operations):
            return operations[method.lower() if method else next(iter(operations))]
    return None


def test_every_status_of_the_api_that_its_page_names_is_one_of_its_answers() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    known = {
        status
        for operations in described()["paths"].values()
        for operation in operations.values()
        for status in operation["responses"]
    }
    named = set(re.findall(r"(?<![\w.,-])[245]\d\d(?![\w-]|[.,]\d)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    assert len(named) >= 5
    assert named <= known


@every_page
def test_every_call_that_a_page_names_is_there(page: Path) -> None:
    if page.name != "folders.md":
        for line in page.read_text(encoding="utf-8").splitlines():
            missing = [f"{method} {path}" for method, path in named_calls(line) if call(method, path) is None]
            assert missing == [], line


def test_a_call_that_the_api_does_not_have_is_found() -> None:
    line = "`POST .../pause`, `/resumed`, `GET /v1/pipelines/{p}/halt`, `DELETE .../tables/{t}/retry`, `/tmp/x y`"
    assert [path for method, path in named_calls(line) if call(method, path) is None] == [
        "/resumed", "/v1/pipelines/{p}/halt", ".../tables/{t}/retry", "/tmp/x",
    ]  # fmt: skip


def test_the_bodies_in_tables_of_calls_are_those_that_the_api_takes() -> None:
    """A row that names a call and shows JSON; `…` stands for a value."""
    seen = 0
    for page in pages.PAGES:
        for line in re.findall(r"^\| `[A-Z]+ .*\|$", page.read_text(encoding="utf-8"), re.MULTILINE):
            method, path = next(named_calls(line), (None, ""))
            for shown in re.findall(r"`(\{[^`]*\})`", line):
                schema = call(method, path)["requestBody"]["content"]["application/json"]["schema"]
                whole = {**schema, "components": described()["components"]}
                jsonschema_rs.validator_for(whole).validate(json.loads(shown.replace("…", '"1"')))
                seen += 1
    assert seen >= 3


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


def test_each_condition_has_a_runbook_that_says_when_its_alert_comes() -> None:
    text = (ROOT / "docs" / "operations" / "messages.md").read_text(encoding="utf-8")
    for condition in CONDITIONS:
        when = f"after {condition.for_seconds:g} s" if condition.for_seconds else "at once"
        begins = f"\n### {condition.name}\n\n{condition.severity.capitalize()}, alert {when}. "
        assert begins in text, begins


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
