"""A definition changed in the form or as YAML, with its plan; tables picked with ticks; defaults shown as such."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, Pages, faults_for_people
from tests.browser.made_up import Stage

Keep = Callable[..., Path]


def opened(pages: Pages, **look: Any) -> Page:
    page = pages.open("#/pipelines/shop/definition", **look)
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_label("Host")).to_have_value("db-1.example.com")
    return page


def test_a_definition_is_changed_in_the_form_with_the_plan_before_and_a_note(
    pages: Pages, stage: Stage, keep: Keep
) -> None:
    page = opened(pages)
    expect(page.get_by_label("Warehouse")).to_have_count(0)  # kept for life
    expect(page.locator(".editor")).to_contain_text("sink.warehouse")
    page.get_by_text("More settings").click()
    expect(page.get_by_label("Interval seconds")).to_have_value("5")
    page.get_by_label("Interval seconds").fill("3")
    page.get_by_label("Tags").fill("team: commerce, env: test")
    expect(page.locator(".diff .added")).to_contain_text(["interval_seconds: 3", "tags:", "team", "env"])
    expect(page.get_by_role("button", name="Apply the change")).to_have_attribute("title", "look at the plan first")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("region", name="Plan")).to_contain_text("Settings that change")
    page.get_by_label("Note").fill("fresher again")
    keep(page, "change", whole=True)
    assert faults_for_people(page) == []
    page.get_by_role("button", name="Apply the change").click()
    expect(page.get_by_role("button", name="Version 3")).to_contain_text("fresher again")
    made = stage.pipelines["shop"].versions[-1]["definition"]
    before = stage.pipelines["shop"].versions[-2]["definition"]
    assert made["checkpoint"]["interval_seconds"] == 3
    assert made["tags"] == {"team": "commerce", "env": "test"}
    assert {**made, "checkpoint": before["checkpoint"], "tags": None} == {**before, "tags": None}


def test_a_change_survives_a_reload_says_if_it_is_of_an_old_version_and_is_discarded(
    pages: Pages, stage: Stage
) -> None:
    page = opened(pages)
    page.get_by_label("Port").fill("3399")
    page.get_by_label("Note").fill("another port")
    page.reload()
    expect(page.get_by_label("Port")).to_have_value("3399")
    expect(page.get_by_label("Note")).to_have_value("another port")
    shop = stage.pipelines["shop"]
    shop.versions.append({**shop.versions[-1], "version": 3})
    page.reload()
    expect(page.locator(".notice").filter(has_text="Version 3 was made since you began")).to_be_visible()
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("button", name="Change", exact=True)).to_be_focused()
    page.reload()
    expect(page.get_by_role("button", name="Change", exact=True)).to_be_visible()


def test_what_is_typed_is_kept_before_the_next_frame(pages: Pages) -> None:
    page = opened(pages)
    note = page.get_by_label("Note")
    kept = note.evaluate(
        """(field) => {
          field.value = "typed last";
          field.dispatchEvent(new InputEvent("input", { bubbles: true }));
          return Object.values(sessionStorage).join(" ");
        }"""
    )
    assert "typed last" in kept


def test_a_change_as_yaml_is_kept_without_the_secrets_that_are_typed(pages: Pages) -> None:
    page = opened(pages)
    page.get_by_label("Port").fill("3399")
    page.get_by_role("group", name="Change it").get_by_role("button", name="YAML").click()
    field = page.get_by_label("Definition (YAML)")
    text = field.input_value()
    assert "port: 3399" in text
    field.fill(f"{text}\n  catalog:\n    s3.secret-access-key: hunter2\n    uri: http-catalog\n")
    kept = page.evaluate("() => JSON.stringify(Object.entries(sessionStorage))")
    assert "hunter2" not in kept
    assert "http-catalog" in kept
    page.reload()
    expect(page.get_by_label("Definition (YAML)")).to_have_value(re.compile("uri: http-catalog"))
    page.get_by_role("button", name="Form, without what is typed here").click()
    expect(page.get_by_label("Port")).to_have_value("3399")


def test_tables_are_picked_with_ticks_and_patterns_are_the_same_list(pages: Pages) -> None:
    """1. All of a database. 2. One of them is left out. 3. One of another database is added. 4. A pattern by hand."""
    page = pages.open("#/new")
    page.get_by_label("Host").fill("db-1.example.com")
    page.get_by_role("button", name="Test the connection").click()
    page.get_by_label("all of shop").check()
    found = page.get_by_role("region", name="Tables found")
    expect(found).to_contain_text("26 tables match")
    found.get_by_label("Copy shop.audit").uncheck()
    expect(found).to_contain_text("25 tables match")
    page.get_by_role("button", name="Tables of crm").click()
    found.get_by_label("Copy crm.leads").check()
    expect(found).to_contain_text("26 tables match")
    patterns = page.get_by_role("list", name="Patterns").locator("li")
    expect(patterns).to_have_text(["shop.*", "!shop.audit", "crm.leads"])
    found.get_by_label("Copy shop.audit").check()
    expect(patterns).to_have_text(["shop.*", "crm.leads"])
    page.get_by_label("Find in the list").fill("page_views")
    expect(found.locator(".found-table")).to_have_count(1)
    page.get_by_label("Pattern", exact=True).fill("!shop.c*")
    page.keyboard.press("Enter")
    page.get_by_label("Find in the list").fill("coupons")
    expect(found.locator(".found-table")).to_have_count(0)
    assert faults_for_people(page) == []


def test_a_table_is_added_from_the_source_s_list_and_several_at_once(pages: Pages, stage: Stage, keep: Keep) -> None:
    """A30: its name had to be typed."""
    page = pages.open("#/pipelines/shop/tables")
    page.get_by_role("button", name="Add a table").click()
    dialog = page.get_by_role("dialog", name="Add a table")
    dialog.get_by_role("button", name="Choose from the source's tables").click()
    dialog.get_by_role("button", name="Tables of shop").click()
    expect(dialog.get_by_label("Copy shop.orders")).to_be_disabled()
    expect(dialog.get_by_label("all of shop")).to_be_disabled()
    dialog.get_by_role("button", name="Tables of crm").click()
    dialog.get_by_label("Copy crm.leads").check()
    dialog.get_by_label("Table", exact=True).fill("shop.vouchers")
    keep(page, "dialog-add-table")
    expect(dialog.get_by_role("list", name="What will happen")).to_contain_text("crm.leads, shop.vouchers join")
    assert faults_for_people(page) == []
    dialog.locator("[data-confirm]").click()
    expect(dialog).to_be_hidden()
    page.get_by_label("Find a table").fill("crm")
    expect(page.get_by_role("link", name="crm.leads")).to_be_visible()
    made = stage.pipelines["shop"].versions[-1]
    assert made["definition"]["tables"] == ["shop.*", "!shop.tmp_*", "crm.leads", "shop.vouchers"]
    assert made["note"] == "added crm.leads, shop.vouchers"


def test_an_operator_types_the_table_since_only_an_admin_may_ask_the_source(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/tables", token="operator-token")
    page.get_by_role("button", name="Add a table").click()
    expect(page.get_by_role("dialog")).to_contain_text("An admin can choose from the source's tables here.")


def test_a_definition_shows_what_it_leaves_out_as_default(pages: Pages) -> None:
    """A26: it looked as if TLS, hosts, the engine and tags did not exist."""
    page = pages.open("#/pipelines/shop/definition")
    whole = page.get_by_label("Definition, version 2")
    for line in ("tls: null  # default", "hosts: []  # default", "engine: auto  # default", "tags: {}  # default"):
        expect(whole).to_contain_text(line)
    expect(whole).to_contain_text(re.compile(r"interval_seconds: 5\n"))
    expect(whole).to_contain_text("format_version: 3  # default")


def test_the_form_of_a_change_fits_a_phone(pages: Pages) -> None:
    page = opened(pages, size=PHONE)
    page.get_by_text("More settings").click()
    assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"]
    assert faults_for_people(page) == []
