"""A table's rule in the form: refused beside its field, shown on rows, and what it will do before it is confirmed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import stage as made_up_api
from tests.browser.conftest import Pages, faults_for_people
from tests.browser.made_up import PLAN, Stage

Keep = Callable[..., Path]
AGAIN: dict[str, Any] = {
    "table": "shop.orders", "action": "read again", "key": ["id"], "rows": 9000, "bytes": 1, "seconds": 1.0,
    "causes": [],
}  # fmt: skip


def test_a_rule_is_previewed_and_the_plan_says_what_it_will_do(
    pages: Pages, stage: Stage, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = copy.deepcopy(PLAN)
    plan["tables"] = [AGAIN]
    monkeypatch.setattr(made_up_api, "PLAN", plan)
    page = pages.open("#/pipelines/shop/definition")
    page.get_by_role("button", name="Change", exact=True).click()
    page.get_by_role("button", name="Add a rule").click()
    rule = page.get_by_role("group", name="New rule")
    expect(rule.get_by_role("button", name="Preview")).to_have_attribute("title", "name a table of the preview")
    rule.get_by_label("Tables").fill("shop.orders")
    rule = page.get_by_role("group", name="shop.orders")
    rule.get_by_label("Select").fill("id\nsalary * 12 AS yearly")
    rule.get_by_label("Where").fill("salery > 500")
    rule.get_by_label("Table of the preview").fill("shop.orders")
    rule.get_by_role("button", name="Preview").click()
    expect(rule.locator(".error")).to_contain_text("`salery` cannot be resolved")
    expect(rule.get_by_label("Where")).to_have_attribute("aria-invalid", "true")
    rule.get_by_label("Where").fill("salary > 500")
    expect(rule.locator(".error")).to_have_count(0)
    rule.get_by_role("button", name="Preview").click()
    expect(rule.get_by_role("region", name="At the source")).to_contain_text("4200.00")
    lake = rule.get_by_role("region", name="In the lake")
    expect(lake).to_contain_text("yearly decimal(13, 2)")
    expect(lake.locator("tbody tr")).to_contain_text(["50400.00", "Left out.", "null"])
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("region", name="Plan")).to_contain_text(
        "1 table read again as the next generation; readers see the old rows until then"
    )
    keep(page, "rules", whole=True)
    assert faults_for_people(page) == []
    page.get_by_role("button", name="Apply the change").click()
    expect(page.get_by_role("button", name="Version 3")).to_be_visible()
    definition = stage.pipelines["shop"].versions[-1]["definition"]
    assert definition["table_options"] == [
        {"tables": "shop.orders", "select": ["id", "salary * 12 AS yearly"], "where": "salary > 500"}
    ]


def test_derived_tables_are_listed_with_their_queries_and_causes(pages: Pages, stage: Stage) -> None:
    made = stage.pipelines["shop"]
    queries = [{"name": "shop.sums", "sql": "SELECT 1 AS one"}, {"name": "shop.bad", "sql": "SELECT x"}]
    made.versions[-1]["definition"] = {**made.versions[-1]["definition"], "derived": queries}
    cause = {"code": "derived", "sentence": "the query of shop.bad is refused", "remedy": "correct sql in derived"}
    known = {"rows": 7, "at": stage.started, "checkpoint": 3, "seconds": 2.0, "plan": "", "cause": None}
    made.derived = {"shop.sums": known, "shop.bad": {**known, "at": None, "seconds": None, "cause": cause}}
    page = pages.open("#/pipelines/shop/tables")
    listed = page.get_by_role("region", name="Derived tables", exact=True)
    expect(listed).to_contain_text("SELECT 1 AS one")
    expect(listed.locator("tbody tr")).to_contain_text(["live", "quarantined"])
    expect(listed).to_contain_text("Correct sql in derived.")
