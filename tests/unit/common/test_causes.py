"""Causes are values: their form, their list in the docs, and that no code reads their sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutline.common.causes import MEANINGS, QUARANTINES, Cause, Code, joined
from cutline.common.errors import ConfigError, NoRoom, ProtocolError, SourceLost, Unavailable
from tools import cause_list

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("common", "services", "spark_writer")
FIELDS = frozenset({"cause", "sentence", "remedy", "halted", "detail"})
CUTS = frozenset(
    {"partition", "rpartition", "split", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix", "find"}
)
EXCEPTED = {
    "services/control/api/audit_log.py",  # bounds what a record has of a request, which may be a stranger's
    "services/control/api/openapi.py",  # makes an example of a description
}
LACK = Cause(Code.NO_KEY, "shop.orders has no identity", "add a primary key")


def test_a_cause_is_read_back_also_by_a_version_that_lacks_its_code_or_has_more_fields() -> None:
    assert Cause.from_json(LACK.to_json()) == LACK
    newer = {"code": "of_the_future", "sentence": "it rained", "since": 3}
    assert Cause.from_json(newer) == Cause(Code.OTHER, "it rained")
    assert Cause.from_json({}) == Cause(Code.OTHER, "")


def test_for_people_a_cause_is_its_sentence_and_its_remedy() -> None:
    assert str(LACK) == "shop.orders has no identity; add a primary key"
    assert str(Cause(Code.CHANGED, "it changed")) == "it changed"
    assert str(LACK.before("start: ").at("b.000001:4")) == (
        "start: shop.orders has no identity (at b.000001:4); add a primary key"
    )
    assert LACK.advised("retry it").remedy == "add a primary key; retry it"


def test_several_causes_of_one_effect_keep_the_first_code_and_name_each_remedy_once() -> None:
    engine = Cause(Code.UNSUPPORTED, "its engine is MEMORY", "leave it out")
    found = joined([LACK, engine, Cause(Code.VALUE, "a row is too large", "leave it out")])
    assert (found.code, found.remedy) == (Code.NO_KEY, "add a primary key; leave it out")
    assert found.sentence == "shop.orders has no identity; its engine is MEMORY; a row is too large"
    assert joined([engine]) is engine


def test_an_error_carries_its_cause_with_the_code_of_its_class_unless_it_names_another() -> None:
    assert ProtocolError("parts disagree").cause.code == Code.PROTOCOL
    assert NoRoom("Redis is full", "give it memory").cause == Cause(Code.REDIS_FULL, "Redis is full", "give it memory")
    assert Unavailable(LACK).cause is LACK
    assert (SourceLost(LACK, "shop.orders").table, str(SourceLost(LACK))) == ("shop.orders", str(LACK))


def test_a_wrong_configuration_has_each_of_its_faults() -> None:
    port = Cause(Code.CONFIGURATION, "the port is 0", "correct it")
    assert ConfigError("the port is 0", "correct it").faults == (port,)
    error = ConfigError.several([port, LACK])
    assert error.faults == (port, LACK)
    assert error.cause == joined([port, LACK])


def test_every_code_has_a_meaning_and_what_to_do() -> None:
    assert MEANINGS.keys() == set(Code)
    assert set(QUARANTINES) <= set(Code)


def test_the_page_is_as_the_code_is() -> None:
    assert cause_list.PAGE.read_text(encoding="utf-8") == cause_list.render(), "run `make causes`"


def test_no_code_cuts_or_searches_the_sentence_of_a_cause() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {what}"
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in EXCEPTED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for what in _readings(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'sentence.rpartition("; ")',
        'text.split("; ")',
        '"no key" in error.cause',
        '"no key" in (table.get("cause") or "")',
        'found["cause"].startswith("x")',
        'part["waiting_for"].startswith("the source:")',
        're.search("purged", outcome.cause)',
        "outcome.cause[:100]",
        'any("log_bin" in fault for fault in faults)',
    ],
)
def test_the_search_for_such_code_finds_it(code: str) -> None:
    assert any(list(_readings(node)) for node in ast.walk(ast.parse(code)))


def _readings(node: ast.AST) -> Iterator[str]:
    """What reads a sentence in one node: a cut at "; ", a search in a cause, a test of how it begins."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=value), args=[*arguments]):
            texts = [each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if name in CUTS and "; " in texts:
                yield "cut at the remedy"
            if name == "startswith" and any(text.startswith(("the ", "a ", "The ", "A ")) for text in texts):
                yield "its beginning tested"
            if name in CUTS and _is_cause(value):
                yield "cut"
            if name in ("search", "match", "fullmatch") and any(map(_is_cause, arguments)):
                yield "searched"
        case ast.Compare(left=ast.Constant(value=str()), ops=[ast.In() | ast.NotIn()], comparators=[value]):
            if _is_cause(value):
                yield "searched"
        case ast.Subscript(value=value, slice=ast.Slice()) if _is_cause(value):
            yield "shortened"


def _is_cause(node: ast.expr) -> bool:
    """Whether an expression has a cause, by its name: `x.cause`, `x["cause"]`, `x.get("cause") or ""`, `str(cause)`."""
    match node:
        case ast.BoolOp(values=values):
            return any(map(_is_cause, values))
        case ast.Call(func=ast.Name(id="str"), args=[value]):
            return _is_cause(value)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name in FIELDS | {"waiting_for"}
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name in FIELDS | {"waiting_for"}
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in FIELDS | {"waiting_for", "waits", "fault"}
    return False


def test_no_script_of_the_dashboard_cuts_or_searches_a_cause() -> None:
    reading = re.compile(
        r"\b(cause|remedy|halted|detail|waiting_for)\b\??\.(split|slice|startsWith|endsWith|includes|replace|match)\("
    )
    scripts = (ROOT / "services" / "control" / "static" / "app").rglob("*.js")
    found = [f"{path.name}: {at[0]}" for path in scripts for at in reading.finditer(path.read_text(encoding="utf-8"))]
    assert found == []
