"""What a person must act on, wherever they look: banners with since, cause and remedy; acknowledged; in the history."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import troubles
from tests.browser.conftest import PHONE, WIDE, Pages, faults_for_people, settled
from tests.browser.made_up import Stage, made_table

Keep = Callable[..., Path]
TABS = ("", "/tables", "/tables/shop.orders", "/checkpoints", "/cuts", "/activity", "/definition")
LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"theme": "dark"}, "phone": {"size": PHONE}}


def banner(page: Page, text: str) -> Any:
    return page.locator(".condition").filter(has_text=text)


def go(page: Page, address: str) -> None:
    page.evaluate("(address) => { location.hash = address; }", address)


def test_a_missing_spark_writer_stands_on_home_on_every_tab_and_among_the_services(pages: Pages, stage: Stage) -> None:
    """A2: each of these places was green for two minutes."""
    stage.pipelines["shop"].troubles = [troubles.no_leader("shop", "spark_writer", 136)]
    page = pages.open()
    found = banner(page, "No Spark writer leads pipeline shop")
    expect(found).to_contain_text(re.compile(r"for 2 min 1\d s, since \d\d:\d\d"))
    expect(found).to_contain_text("Start one, and see what the Spark writer's log says.")
    card = page.locator(".pipeline-card").filter(has=page.get_by_role("link", name="shop", exact=True))
    expect(card.locator(".badge")).to_have_text("no Spark writer")
    expect(card).to_contain_text("No Spark writer leads pipeline shop.")
    for tab in TABS:
        go(page, f"#/pipelines/shop{tab}")
        expect(banner(page, "No Spark writer leads pipeline shop")).to_be_visible()
        expect(page.locator(".page-title").first).to_contain_text("no Spark writer")
    go(page, "#/services")
    missing = page.locator(".service.missing").filter(has_text="No Spark writer leads")
    expect(missing).to_contain_text("For 2 min")
    expect(missing).to_contain_text("Start one")
    expect(missing.get_by_role("link", name="shop")).to_be_visible()


def test_the_most_severe_comes_first_and_gives_the_pipeline_its_colour(pages: Pages, stage: Stage) -> None:
    """A18: a pipeline that waits for its source as a whole outranks a table that is known to be quarantined."""
    stage.pipelines["shop"].troubles = [
        troubles.condition("CutlineClockOff", "warning", "the clocks differ by over a minute", pipeline="shop"),
        troubles.condition(
            "CutlineSourceDisconnected", "critical", "pipeline shop can't reach its source", pipeline="shop", seconds=9
        ),
    ]
    page = pages.open("#/pipelines/shop")
    shown = page.locator(".condition")
    expect(shown).to_have_count(3)
    expect(shown.nth(0)).to_contain_text("can't reach its source")
    expect(shown.nth(0)).to_have_class(re.compile("tone-bad"))
    expect(shown.nth(1)).to_have_class(re.compile("tone-warn"))
    expect(page.locator(".page-title .badge")).to_have_text("source disconnected")
    expect(page.locator(".page-title .badge")).to_have_class(re.compile("tone-bad"))
    expect(page.get_by_role("alert")).to_have_count(1)


def test_a_card_is_green_only_without_a_condition_and_with_a_status_of_now(pages: Pages, stage: Stage) -> None:
    billing = stage.pipelines["billing"]
    billing.mode = "running"
    page = pages.open()
    badge = page.locator(".pipeline-card").filter(has_text="billing").locator(".badge")
    expect(badge).to_have_class(re.compile("tone-live"))
    billing.troubles = [troubles.condition("CutlineClockOff", "info", "the clocks differ", pipeline="billing")]
    expect(badge).to_have_text("clock off")
    billing.troubles, billing.led, billing.begun = [], False, False
    stage.troubles = [troubles.redis_away()]
    expect(badge).to_have_class(re.compile("tone-(bad|dropped)"))


def test_an_operation_is_offered_where_it_is_possible_now(pages: Pages, stage: Stage) -> None:
    shop = stage.pipelines["shop"]
    cause = {"code": "binlog_purged", "sentence": "the binlog after mysql-bin.000007 is purged", "remedy": None}
    shop.halted = cause
    shop.troubles = [
        troubles.condition(
            "CutlineHalted", "critical", "pipeline shop is halted", pipeline="shop", cause=cause["sentence"],
            remedy="`cutline pipeline read-again shop` reads every table again",
        )
    ]  # fmt: skip
    page = pages.open("#/pipelines/shop")
    halted = banner(page, "Pipeline shop is halted")
    expect(halted.get_by_role("button").first).to_have_text("Read every table again")  # what the remedy names is first
    expect(halted.get_by_role("button", name="Read every table again")).to_be_visible()
    expect(halted.get_by_role("button", name="Start the pipeline")).to_be_visible()
    shop.halted = None
    expect(halted.get_by_role("button", name="Start the pipeline")).to_have_count(0)
    expect(halted.get_by_role("button", name="Read every table again")).to_be_visible()
    viewer = pages.open("#/pipelines/shop", token="viewer-token")
    button = banner(viewer, "Pipeline shop is halted").get_by_role("button", name="Read every table again")
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(button).to_have_attribute("title", "needs the role operator; you are viewer")


def test_a_condition_is_acknowledged_with_a_note_and_an_end_and_taken_back(
    pages: Pages, stage: Stage, keep: Keep
) -> None:
    """1. Without a note it is not sent. 2. It is listed below, with who, why and until when. 3. It is taken back."""
    page = pages.open("#/pipelines/shop")
    banner(page, "quarantined").get_by_role("button", name="Acknowledge").click()
    dialog = page.get_by_role("dialog", name="Acknowledge")
    expect(dialog.get_by_label("Note")).to_be_focused()
    expect(dialog.locator("[data-confirm]")).to_have_attribute("aria-disabled", "true")
    dialog.get_by_label("Note").fill("Anna asks the shop team")
    dialog.get_by_role("button", name="24 h").click()
    keep(page, "dialog-acknowledge")
    assert faults_for_people(page) == []
    dialog.locator("[data-confirm]").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".condition")).to_have_count(0)
    (sent,) = stage.acknowledged.values()
    assert 86_000 < sent["until"] - sent["at"] < 86_401
    folded = page.locator(".acknowledged")
    folded.get_by_text("1 acknowledged condition").click()
    expect(folded).to_contain_text("Acknowledged by admin at")
    expect(folded).to_contain_text("Anna asks the shop team.")
    expect(page.locator(".page-title .badge")).to_have_text("running")
    keep(page, "acknowledged")
    assert faults_for_people(page) == []
    folded.get_by_role("button", name="Take back").click()
    expect(banner(page, "quarantined")).to_be_visible()


@pytest.mark.parametrize(("end", "given"), [("until it ends", None), ("a date", "2099-01-31T12:00")])
def test_an_acknowledgement_may_last_until_the_condition_ends_or_a_date(
    pages: Pages, stage: Stage, end: str, given: str | None
) -> None:
    page = pages.open("#/pipelines/shop")
    banner(page, "quarantined").get_by_role("button", name="Acknowledge").click()
    dialog = page.get_by_role("dialog", name="Acknowledge")
    dialog.get_by_label("Note").fill("known")
    dialog.get_by_role("button", name=end).click()
    if given:
        dialog.get_by_label("Date").fill("2020-01-31T12:00")
        expect(dialog.locator("[data-confirm]")).to_have_attribute("title", "give a date to come")
        dialog.get_by_label("Date").fill(given)
    dialog.locator("[data-confirm]").click()
    expect(dialog).to_be_hidden()
    (sent,) = stage.acknowledged.values()
    assert sent["until"] == (None if given is None else 4073544000.0)


def test_a_viewer_sees_who_acknowledged_and_can_not_do_it(pages: Pages, stage: Stage) -> None:
    (known,) = stage.conditions(stage.pipelines["shop"])
    stage.acknowledged[known["id"]] = {"by": "anna", "at": known["since"], "until": None, "note": "we know"}
    stage.pipelines["shop"].troubles = [troubles.no_leader("shop", "spark_writer")]
    page = pages.open("#/pipelines/shop", token="viewer-token")
    reason = "needs the role operator; you are viewer"
    expect(page.get_by_role("button", name="Acknowledge")).to_have_attribute("title", reason)
    folded = page.locator(".acknowledged")
    folded.get_by_text("1 acknowledged condition").click()
    expect(folded).to_contain_text("Acknowledged by anna")
    expect(folded.get_by_role("button", name="Take back")).to_have_attribute("title", reason)


def test_since_stands_beside_the_mode_a_wait_a_halt_and_a_phase(pages: Pages, stage: Stage) -> None:
    shop = stage.pipelines["shop"]
    shop.tables["shop.emails"].update(phase="live", cause=None)
    since = r"for (\d+ h )?(\d+ min( \d+ s)?)?.*since .*\d\d:\d\d"
    page = pages.open("#/pipelines/shop")
    expect(page.locator(".page-title")).to_contain_text(re.compile(rf"running\s*{since}"))
    shop.waiting_for = "the source"
    expect(page.locator(".page-head")).to_contain_text(re.compile(rf"Waiting for the source\..*{since}", re.IGNORECASE))
    shop.waiting_for, shop.halted = None, {"code": "x", "sentence": "the binlog is gone", "remedy": None}
    expect(page.locator(".page-head")).to_contain_text(re.compile(rf"The binlog is gone\..*{since}", re.IGNORECASE))
    go(page, "#/pipelines/shop/tables/shop.orders")
    expect(page.locator(".page-title").last).to_contain_text(re.compile(since))
    go(page, "#/pipelines/shop/tables")
    row = page.locator(".grid-view [role=row]").filter(has_text="shop.orders")
    expect(row).to_contain_text(re.compile(r"for \d+ min"))


def test_the_history_has_when_a_condition_began_and_ended_and_how_long_it_lasted(pages: Pages, stage: Stage) -> None:
    shop = stage.pipelines["shop"]
    about = {"condition": "CutlineSourceDisconnected", "severity": "critical"}
    stage.say(shop, "condition", "pipeline shop can't reach its source", **about, ended=False)
    shop.events[-1]["at"] -= 160
    stage.say(shop, "condition", "pipeline shop reaches its source again", **about, ended=True)
    page = pages.open("#/pipelines/shop/activity")
    expect(page.locator(".events li").first).to_contain_text("reaches its source again. It lasted 2 min 40 s.")
    page.get_by_role("group", name="Kind of event").get_by_role("button", name="Conditions").click()
    expect(page.locator(".events li")).to_have_count(2)
    expect(page.locator(".events li .tone-bad")).to_have_count(1)
    expect(page.locator(".events li .tone-live")).to_have_count(1)
    assert faults_for_people(page) == []
    page.get_by_role("button", name="Savepoints").click()
    expect(page.locator(".events li").first).to_contain_text("is kept as the savepoint")


def test_redis_away_leaves_what_the_store_knows_with_its_time(pages: Pages, stage: Stage) -> None:
    """A14: the whole dashboard was an error box a page."""
    for made in stage.pipelines.values():
        made.led = False
    stage.troubles = [troubles.redis_away()]
    page = pages.open()
    expect(page.locator(".condition").first).to_contain_text("The mesh's Redis does not answer")
    expect(page.locator(".pipeline-card")).to_have_count(4)
    assert page.locator(".pipeline-card .badge.tone-live").count() == 0
    go(page, "#/pipelines/shop")
    expect(banner(page, "The mesh's Redis does not answer")).to_be_visible()
    expect(page.locator(".stat", has_text="Publication")).to_contain_text(re.compile(r"\d"))
    expect(page.locator(".as-of")).to_contain_text(re.compile(r"As of .*\d\d:\d\d"))
    for tab in ("/tables", "/cuts", "/activity", "/definition"):
        go(page, f"#/pipelines/shop{tab}")
        settled(page)
        expect(banner(page, "The mesh's Redis does not answer")).to_be_visible()
    go(page, "#/services")
    expect(banner(page, "The mesh's Redis does not answer")).to_be_visible()


def test_a_table_page_has_its_own_conditions_and_does_not_promise_a_live_lake_while_one_holds(
    pages: Pages, stage: Stage
) -> None:
    page = pages.open("#/pipelines/shop/tables/shop.orders")
    expect(page.locator("main")).to_contain_text("The lake follows the source.")
    expect(page.locator(".condition")).to_have_count(0)  # the quarantine of shop.emails is another table's
    stage.pipelines["shop"].troubles = [troubles.no_leader("shop", "spark_writer")]
    expect(banner(page, "No Spark writer leads")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("The lake follows the source.")
    go(page, "#/pipelines/shop/tables/shop.emails")
    expect(banner(page, "quarantined")).to_contain_text("not valid UTF-8")


def test_many_conditions_are_a_few_first_and_the_rest_at_a_click(pages: Pages, stage: Stage) -> None:
    stage.pipelines["shop"].troubles = [
        troubles.condition(f"CutlineMade{n}", "warning", f"trouble {n}", pipeline="shop", seconds=n) for n in range(9)
    ]
    page = pages.open("#/pipelines/shop")
    expect(page.locator(".condition")).to_have_count(3)
    page.get_by_role("button", name="Show 7 more").click()
    expect(page.locator(".condition")).to_have_count(10)


def crowded(stage: Stage) -> None:
    """Long words, several tables, one acknowledged."""
    shop = stage.pipelines["shop"]
    for n in range(5):
        name = f"shop.a_table_with_a_name_that_is_longer_than_a_phone_is_wide_{n}"
        shop.tables[name] = made_table(name, "quarantined", 5, cause=f"{name} has no key", remedy="add a key")
    shop.troubles = [
        troubles.no_leader("shop", "spark_writer"),
        troubles.condition("CutlineClockOff", "info", "the clocks differ", pipeline="shop"),
    ]
    stage.troubles = [troubles.condition("CutlineDiskNearlyFull", "critical", f"the disk of /{'a' * 90} is full")]
    stage.acknowledged["CutlineClockOff-shop"] = {"by": "anna", "at": stage.started, "until": None, "note": "we know"}


@pytest.mark.parametrize("look", LOOKS)
def test_conditions_are_for_everybody_and_fit_every_screen(pages: Pages, stage: Stage, look: str, keep: Keep) -> None:
    crowded(stage)
    page = pages.open(**LOOKS[look])
    width = (LOOKS[look].get("size") or WIDE)["width"]
    for name, address in (("home", "#/"), ("overview", "#/pipelines/shop"), ("services", "#/services")):
        go(page, address)
        settled(page)
        expect(page.locator(".condition").first).to_be_visible()
        if page.locator(".acknowledged").count():
            page.locator(".acknowledged summary").click()
        keep(page, f"conditions-{name}-{look}", whole=True)
        assert faults_for_people(page) == [], name
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, name
