"""`cutline doctor`: how findings are shown, which tables it names, and what it says of the store's definition."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cutline.common.causes import Cause, Code
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.errors import SourceLost, Unavailable
from cutline.common.store.store import Store
from cutline.services.run import doctor
from cutline.services.run.doctor import NO_ANSWER, Finding

FILE = "name: shop\nsource: {host: h, user: u}\ntables: [shop.*]\nsink: {warehouse: lake}\n"
LONG = "add a primary key, name columns that identify a row in table_options, or set keyless: append for a log"


def printed(findings: list[Finding], width: int, *, terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    doctor.show(findings, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [60, 80])
def test_a_remedy_is_wrapped_in_a_terminal_and_one_line_elsewhere(width: int) -> None:
    findings = [
        Finding(name="Java", found="21"),
        Finding(name="source", found="not as needed", remedy="GRANT SELECT"),
        Finding(name="table shop.log", found="will be quarantined: no key", remedy=LONG, hinders=False),
    ]
    lines = printed(findings, width, terminal=True)
    assert max(map(len, lines)) <= width
    assert f"remedy: {LONG}" in " ".join(" ".join(lines).split())
    plain = printed(findings, width, terminal=False)
    assert [line.split()[0] for line in plain] == ["ok", "FAULT", "remedy:", "note", "remedy:"]
    assert plain[-1] == f"       remedy: {LONG}"


def test_a_table_that_will_be_quarantined_hinders_nothing() -> None:
    assert Finding(name="table a.b", found="x", remedy="y", hinders=False).ok
    assert not Finding(name="source", found="x", remedy="y").ok


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline file, whose source has three tables."""
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    no_key = Cause(Code.NO_KEY, "shop.log has no identity", LONG)
    engine = Cause(Code.UNSUPPORTED, "its engine is MyISAM", "")
    described = {
        "shop.a": SimpleNamespace(faults=()),
        "shop.log": SimpleNamespace(faults=(no_key, engine)),
        "shop.gone": SourceLost(Cause(Code.RIGHTS, "u may not read it", "GRANT SELECT")),
    }
    hosts = SimpleNamespace(connect=lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(doctor, "Hosts", lambda source: hosts)
    monkeypatch.setattr(doctor, "list_tables", lambda connection: [*described, "other.x"])
    monkeypatch.setattr(doctor, "identify", lambda connection: None)
    monkeypatch.setattr(doctor, "described", lambda connection, server, config, tables: {
        table: described[table] for table in tables
    })  # fmt: skip
    return path


def test_the_tables_that_will_be_quarantined_are_named_with_cause_and_remedy(file: Path) -> None:
    found = {finding.name: finding for finding in doctor._tables(load(file))}
    assert found["tables"].found == "3 match shop.*; 2 will be quarantined"
    assert set(found) == {"tables", "table shop.log", "table shop.gone"}
    log = found["table shop.log"]
    assert log.found == "will be quarantined: shop.log has no identity; its engine is MyISAM"
    assert (log.remedy, log.ok) == (LONG, True)
    assert found["table shop.gone"].remedy == "GRANT SELECT"


@pytest.mark.parametrize("answers", [True, False])
def test_a_source_that_does_not_answer_is_asked_once(
    file: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    def source(config: Any) -> Finding:
        if not answers:
            raise Unavailable("h:3306 does not answer", "see that it runs")
        return Finding(name="source", found="MySQL 9.7")

    monkeypatch.setattr(doctor, "_source", source)
    names = [finding.name for finding in doctor._of_pipeline(file, Environment())]
    assert ("tables" in names) == answers
    assert doctor._outcome("source", lambda: source(None)).found == ("MySQL 9.7" if answers else NO_ANSWER)


def test_another_definition_in_the_store_is_said_with_what_run_does_about_it(file: Path, tmp_path: Path) -> None:
    config = load(file)
    store = Store(f"file://{tmp_path}/store")
    assert doctor._definition(config, store.url).found == "none in the store yet"
    store.pipeline("shop").define({**config.definition(), "tables": ["shop.*", "crm.leads"]})
    found = doctor._definition(config, store.url)
    assert found.ok
    assert "differs from the file (tables is ['shop.*', 'crm.leads'] there" in found.found
    assert "`cutline run` takes the stored one, `cutline run --replace` the file's" in found.found
