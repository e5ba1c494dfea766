"""The tables of a pipeline and one of them: rows that move, changes counted, causes on a phone; services' notes."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Pages
from tests.browser.made_up import Stage

SHAPES = """async () => {
  const main = document.querySelector('script[type=module]').src;
  const {progress, rowsOf} = await import(main.replace('main.js', 'shapes.js'));
  const table = (more) => ({phase: 'live', splits_done: 4, splits_total: 5, rows_done: 7, rows_estimate: 9, ...more});
  return [
    progress(table({})), progress(table({phase: 'quarantined'})), progress(table({phase: 'paused', splits_done: 5})),
    rowsOf(table({})), rowsOf(table({rows: 12})),
  ];
}"""


def test_rows_of_a_live_table_move_and_its_changes_are_counted(pages: Pages, stage: Stage) -> None:
    """A19: a table had the rows of its snapshot for ever."""
    page = pages.open("#/pipelines/shop/tables")
    for title in ("Inserts", "Updates", "Deletes"):
        page.get_by_role("button", name=title, exact=True).click()
    row = page.locator(".grid-view [role=row]").filter(has_text="shop.orders")
    rows = row.locator(".cell.number span").first
    before = rows.get_attribute("title")
    expect(rows).not_to_have_attribute("title", str(before))
    page.goto(f"{pages.address}/#/pipelines/shop/tables/shop.orders")
    facts = page.locator(".facts")
    counted = r"Changes since the snapshot\s*[\d,]+ inserts, [\d,]+ updates, [\d,]+ deletes"
    expect(facts).to_contain_text(re.compile(counted))
    expect(facts).to_contain_text(re.compile(r"Rows in the lake\s*[\d,]+"))


def test_without_counts_of_the_api_the_rows_are_those_of_the_snapshot(pages: Pages) -> None:
    assert pages.open().evaluate(SHAPES) == [1, 0.8, 1, 7, 12]


def test_a_phone_shows_why_a_table_is_quarantined(pages: Pages) -> None:
    """A24"""
    page = pages.open("#/pipelines/shop/tables?phase=quarantined", size=PHONE)
    row = page.locator(".grid-view [role=row]").filter(has_text="shop.emails")
    row.scroll_into_view_if_needed()
    expect(row.get_by_text("The column body has bytes that are not valid UTF-8")).to_be_in_viewport(ratio=1)


def test_a_quarantined_table_has_no_full_bar_and_its_page_says_its_name_once(pages: Pages, stage: Stage) -> None:
    """A17, A29: a table without a key was never read, and its cause begins with its name."""
    table = stage.pipelines["shop"].tables["shop.emails"]
    table["cause"] = "shop.emails has no primary key"
    page = pages.open("#/pipelines/shop/tables?phase=quarantined")
    row = page.locator(".grid-view [role=row]").filter(has_text="shop.emails")
    expect(row).to_be_visible()
    assert row.get_by_role("progressbar").count() == 0
    (known,) = stage.conditions(stage.pipelines["shop"])
    stage.acknowledged[known["id"]] = {"by": "anna", "at": known["since"], "until": None, "note": "we know"}
    page.goto(f"{pages.address}/#/pipelines/shop/tables/shop.emails")
    expect(page.locator(".condition")).to_have_count(0)
    notice = page.locator(".notice").filter(has_text="no primary key")
    assert notice.inner_text().count("shop.emails") == 1


def test_a_note_of_a_service_wraps_and_vanishes_with_its_pipeline(pages: Pages, stage: Stage) -> None:
    """A15"""
    path = f"/var/lib/{'a' * 160}"
    cause = {"code": "x", "sentence": f"the store does not answer at {path}", "remedy": None}
    failed = {"epoch": 3, "cause": cause, "halts": False}
    stage.failed = {"shop": failed, "gone": failed}
    page = pages.open("#/services")
    note = page.locator(".service-note").filter(has_text="Gave up epoch 3 of shop").first
    expect(note).to_be_visible()
    expect(page.locator(".service-note").filter(has_text="of gone")).to_have_count(0)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1440
    card, text = note.locator("xpath=..").bounding_box(), note.bounding_box()
    assert card
    assert text
    assert text["x"] + text["width"] <= card["x"] + card["width"]
