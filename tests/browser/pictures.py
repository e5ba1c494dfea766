"""`python -m tests.browser.pictures`: the pictures of docs/dashboard.md, of made-up pipelines, into docs/images.

It takes about two minutes, so that the charts have a past. JPEG, since pictures of text shrink well in it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.browser import troubles
from tests.browser.conftest import PHONE, ROOT, WIDE, settled
from tests.browser.made_up import Stage
from tests.browser.serving import served
from tools.programs import program

IMAGES = ROOT / "docs" / "images"
LOOKS_SECONDS = 80
MOST_BYTES = 150_000


def take() -> None:
    """Take all pictures; AssertionError if one is larger than a page should carry."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    stage = Stage()
    with served(stage) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        looks: Mapping[str, Page] = {
            name: _open(browser, f"{address}/#/pipelines/shop", **options)
            for name, options in {
                "light": {"viewport": WIDE},
                "dark": {"viewport": WIDE, "color_scheme": "dark"},
                "phone": {"viewport": PHONE, "device_scale_factor": 2},
            }.items()
        }
        looks["light"].wait_for_timeout(LOOKS_SECONDS * 1000)
        for name, look, path in (
            ("overview", "light", "#/pipelines/shop"),
            ("overview-dark", "dark", "#/pipelines/shop"),
            ("phone", "phone", "#/pipelines/shop/tables"),
            ("tables", "light", "#/pipelines/erp-archive/tables"),
            ("chunks", "light", "#/pipelines/shop/tables/shop.page_views"),
            ("checkpoints", "light", "#/pipelines/shop/checkpoints"),
            ("cuts", "light", "#/pipelines/shop/cuts"),
        ):
            page = looks[look]
            page.evaluate("(path) => { location.hash = path; }", path)
            settled(page)
            if name == "tables":
                page.get_by_role("button", name="snapshot 60").click()
            _keep(page, name)
        page = looks["light"]
        page.goto(f"{address}/#/pipelines/shop")
        page.get_by_role("button", name="Pause", exact=True).click()
        _keep(page, "pause")
        page.keyboard.press("Escape")
        stage.pipelines["shop"].troubles = [
            troubles.no_leader("shop", "spark_writer"),
            troubles.condition("CutlineClockOff", "warning", "the clocks of shop's source differ", pipeline="shop"),
        ]
        note = {"by": "anna", "at": time.time() - 900, "until": time.time() + 7200, "note": "NTP comes on Monday"}
        stage.acknowledged["CutlineClockOff-shop"] = note
        page.locator(".acknowledged summary").click()
        _keep(page, "conditions")
        browser.close()


def _open(browser: Any, address: str, **options: Any) -> Page:
    context = browser.new_context(timezone_id="UTC", locale="en-GB", **options)
    page: Page = context.new_page()
    page.add_init_script("sessionStorage.setItem('cutline-token', 'admin-token')")
    page.goto(address)
    return page


def _keep(page: Page, name: str) -> None:
    path = IMAGES / f"{name}.jpg"
    page.screenshot(path=path, type="jpeg", quality=82)
    assert path.stat().st_size < MOST_BYTES, path


if __name__ == "__main__":
    take()
