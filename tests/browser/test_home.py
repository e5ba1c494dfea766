"""Home with few and with 500 pipelines: found, sorted and filtered by the address; quick."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import troubles
from tests.browser.conftest import Pages, faults_for_people
from tests.browser.made_up import Made, Stage, made_table

MOST_SECONDS = 5.0
"""From the address to 500 pipelines sorted by severity, on a machine that does other things too."""


@pytest.fixture
def many(stage: Stage) -> Stage:
    """500 pipelines of three teams: one is halted, some wait, some are paused."""
    model = stage.pipelines["billing"]
    stage.pipelines = {}
    for n in range(500):
        name = f"p{n:03}"
        definition = model.versions[-1]["definition"]
        source = {**definition["source"], "host": f"db-{n % 7}.example.com"}
        made: Made = replace(
            model, name=name, mode="paused" if n % 50 == 3 else "running", lag=1.0 + n,
            tables={f"{name}.t": made_table(f"{name}.t", "live", 900)}, tags={"team": ("blue", "green", "red")[n % 3]},
            troubles=[], versions=[{**model.versions[-1], "definition": {**definition, "source": source}}],
        )  # fmt: skip
        stage.pipelines[name] = made
    stage.pipelines["p333"].troubles = [
        troubles.condition("CutlineHalted", "critical", "pipeline p333 is halted", pipeline="p333")
    ]
    stage.pipelines["p111"].troubles = [
        troubles.condition("CutlineClockOff", "warning", "the clocks of p111 differ", pipeline="p111")
    ]
    return stage


def names(page: Page) -> list[str]:
    found: list[str] = page.locator(".pipeline-card h2").all_inner_texts()
    return found


def test_five_hundred_pipelines_are_there_soon_the_most_severe_first_and_a_page_at_a_time(
    pages: Pages, many: Stage, keep: Any
) -> None:
    begun = time.monotonic()
    page = pages.open()
    expect(page.locator(".pipeline-card").first).to_be_visible()
    assert time.monotonic() - begun < MOST_SECONDS
    assert names(page)[:2] == ["p333", "p111"]
    assert len(names(page)) == 60
    expect(page.locator(".pipelines-foot")).to_contain_text("500 pipelines")
    page.get_by_role("button", name="Show 60 more of 440").click()
    expect(page.locator(".pipeline-card")).to_have_count(120)
    keep(page, "home-many")
    assert faults_for_people(page) == []


def test_pipelines_are_found_by_name_tag_and_source_and_the_address_keeps_it(pages: Pages, many: Stage) -> None:
    page = pages.open()
    search = page.get_by_label("Find a pipeline, tag or source")
    search.fill("p123")
    expect(page.locator(".pipeline-card")).to_have_count(1)
    search.fill("db-6")
    expect(page.locator(".pipelines-foot")).to_contain_text("71 pipelines of 500")
    search.fill("team: blue")
    expect(page.locator(".pipelines-foot")).to_contain_text("167 pipelines of 500")
    search.fill("")
    page.get_by_label("Tag", exact=True).select_option("team: red")
    page.get_by_label("Sort").select_option("lag")
    page.get_by_role("group", name="Show").get_by_role("button", name="live").click()
    expect(page.locator(".pipeline-card").first).to_contain_text("p497")
    assert "tag=team%3A+red" in page.url
    page.reload()
    expect(page.locator(".pipeline-card").first).to_contain_text("p497")
    expect(page.get_by_label("Tag", exact=True)).to_have_value("team: red")
    page.locator(".pipeline-card").first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="p497")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Sort")).to_have_value("lag")


def test_troubled_and_paused_ones_are_filtered_and_a_tag_of_a_card_filters_too(pages: Pages, many: Stage) -> None:
    page = pages.open("#/?show=troubled")
    expect(page.locator(".pipeline-card")).to_have_count(2)
    page.get_by_role("button", name="paused 10").click()
    expect(page.locator(".pipelines-foot")).to_contain_text("10 pipelines of 500")
    page.get_by_role("button", name="all 500").click()
    page.locator(".pipeline-card").first.get_by_role("button", name="team: blue").click()
    expect(page.get_by_label("Tag", exact=True)).to_have_value("team: blue")
    page.get_by_label("Find a pipeline, tag or source").fill("nothing has this name")
    expect(page.get_by_role("heading", name="No such pipeline")).to_be_visible()
