"""Chromium, driven by Playwright; pages of the dashboard over made-up pipelines; screenshots kept as artefacts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.made_up import Stage
from tests.browser.serving import served
from tests.conftest import skipped_where_missing
from tools.programs import program

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = Path(os.environ.get("CUTLINE_SCREENSHOTS") or ROOT / "build" / "screenshots")
WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 360, "height": 740}
PATIENCE_MS = 30_000
"""On a machine that does other things too."""
expect.set_options(timeout=PATIENCE_MS)
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chromium(nothing_left_running: None) -> Iterator[Browser]:
    """Debian's Chromium, for a module: while Playwright is open, its event loop runs in this thread, and no test that
    is a coroutine could run. Root can't use Chromium's sandbox, and a container's /dev/shm may be small."""
    with skipped_where_missing():
        path = program("chromium")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        with playwright.chromium.launch(executable_path=path, args=flags) as browser:
            yield browser


class Pages:
    """Opens pages; every console error, broken content policy and request to another origin fails the test."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.faults: list[str] = []
        self._browser = browser
        self._contexts: list[Any] = []

    def open(
        self, path: str = "#/", *, token: str | None = "admin-token", theme: str = "light", size: Any = None
    ) -> Page:
        """A page of its own, with that token in its storage."""
        context = self._browser.new_context(
            viewport=size or WIDE, color_scheme=theme, reduced_motion="reduce", timezone_id="UTC", locale="en-GB"
        )
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("requestfailed", lambda request: self._failed(request.url, request.failure))
        page.on("request", lambda request: self._asked(request.url))
        if token is not None:
            page.add_init_script(f"sessionStorage.length || sessionStorage.setItem('cutline-token', '{token}')")
        page.goto(f"{self.address}/{path}")
        return page

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error" and "Failed to load resource" not in text:  # the API's own refusals are part of tests
            self.faults.append(text)

    def _failed(self, url: str, cause: str | None) -> None:
        # A view that closes ends its own calls of the API; and Chromium gives up all loads when the network changes.
        if "/static/" in url and cause != "net::ERR_NETWORK_CHANGED":
            self.faults.append(f"{url}: {cause}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.address, "data:")):
            self.faults.append(f"asked another origin: {url}")

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def pages(chromium: Browser, stage: Stage) -> Iterator[Pages]:
    """Pages on a fresh stage."""
    with served(stage) as address:
        opened = Pages(chromium, address)
        yield opened
        opened.close()
    assert opened.faults == []


def settled(page: Page) -> None:
    """Wait until the view has its data: nothing says that it loads, charts are drawn, and channels have a rate."""
    page.wait_for_function(
        "() => document.querySelector('main h1') && !/Loading/.test(document.querySelector('main').innerText)"
        " && [...document.querySelectorAll('.chart-box')].every((box) => box.querySelector('canvas'))"
        " && ![...document.querySelectorAll('.mesh-note')].some((note) => note.textContent === 'measuring')",
        timeout=PATIENCE_MS,
    )


@pytest.fixture
def keep() -> Callable[[Page, str], Path]:
    """Keep a screenshot as an artefact."""

    def kept(page: Page, name: str, *, whole: bool = False) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        if whole:
            page.evaluate("() => scrollTo(0, 0)")  # the bar at the top stays in view wherever the page is
        page.screenshot(path=path, full_page=whole)
        return path

    return kept


def faults_for_people(page: Page) -> list[str]:
    """What axe-core finds serious or critical, with the elements."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE)
    script = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
        .filter((fault) => ['serious', 'critical'].includes(fault.impact))
        .map(({id, nodes}) => `${id}: ` + nodes.slice(0, 4).map((node) => `${node.target} (${node.failureSummary})`))"""
    found: list[str] = page.evaluate(script)
    return found
