"""A page that was left open, a control service that restarts, another version of it: no stale green, no lost form."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import Pages, settled
from tests.browser.made_up import Stage

HIDDEN = """(hidden) => {
  Object.defineProperty(document, 'hidden', {get: () => hidden, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
}"""
OTHER = "00000000abcd"


def test_a_page_that_was_left_overnight_says_so_until_the_first_fresh_answer(pages: Pages, stage: Stage) -> None:
    """1. The tab is hidden while hours pass. 2. It comes back, and the service is slow: nothing is green. 3. The answer
    comes, and all is of now again."""
    stage.pipelines["shop"].tables["shop.emails"].update(phase="live", cause=None)
    page = pages.open("#/pipelines/billing")
    settled(page)
    page.clock.install()
    page.reload()
    settled(page)
    stage.pipelines["billing"].mode = "running"
    badge = page.locator(".page-title .badge")
    page.clock.run_for(5000)
    expect(badge).to_have_class(re.compile("tone-live"))
    page.evaluate(HIDDEN, True)
    waiting: list[Any] = []
    page.route("**/v1/**", lambda route: waiting.append(route))
    page.clock.fast_forward("09:00:00")
    page.evaluate(HIDDEN, False)
    expect(badge).to_have_class(re.compile("tone-dropped"))
    expect(badge).to_contain_text(" at ")
    expect(page.locator(".notice").filter(has_text="what you see may have changed")).to_be_visible()
    assert page.locator(".tone-live").filter(has_text=re.compile("^(live|running)$")).count() == 0
    page.unroute("**/v1/**")  # now they go on
    page.clock.run_for(3000)
    expect(badge).to_have_class(re.compile("tone-live"))


def test_home_is_not_green_while_the_service_does_not_answer(pages: Pages) -> None:
    page = pages.open()
    expect(page.locator(".pipeline-card").first).to_be_visible()
    page.context.set_offline(True)
    expect(page.locator(".notice").filter(has_text="what you see may have changed")).to_be_visible()
    assert page.locator(".pipeline-card .badge.tone-live").count() == 0
    expect(page.locator(".pipeline-card").first).to_be_visible()
    page.context.set_offline(False)
    expect(page.locator(".notice").filter(has_text="what you see may have changed")).to_have_count(0)


def newer(page: Page) -> list[str]:
    """From now on the service has another version of the page; returns the addresses that the page then asks for."""
    asked: list[str] = []

    def answer(route: Any) -> None:
        response = route.fetch()
        text = re.sub(r"/static/[0-9a-f]+/", f"/static/{OTHER}/", response.text())
        headers = {k: v for k, v in response.headers.items() if k not in ("content-security-policy", "etag")}
        route.fulfill(status=200, headers=headers, body=text)

    page.route(re.compile(r"/(#.*)?$"), answer)
    page.on("request", lambda request: asked.append(request.url) if OTHER in request.url else None)
    return asked


def test_a_page_takes_the_newer_version_of_the_service_and_keeps_what_is_typed(pages: Pages) -> None:
    """1. When the tab was left and is shown again, the page is reloaded, and the form is as it was. 2. It is not
    reloaded for the same version again."""
    page = pages.open("#/new")
    page.get_by_label("Name of the pipeline").fill("crm")
    page.get_by_label("Host").fill("db-9.example.com")
    asked = newer(page)
    page.evaluate(HIDDEN, True)
    page.evaluate(HIDDEN, False)
    expect(page.get_by_label("Host")).to_have_value("db-9.example.com")
    expect(page.locator("script[type=module]")).to_have_attribute("src", re.compile(OTHER))
    expect(page.get_by_label("Name of the pipeline")).to_have_value("crm")
    expect(page.get_by_label("Host")).to_have_value("db-9.example.com")
    assert asked
    page.unroute(re.compile(r"/(#.*)?$"))
    page.reload()
    expect(page.get_by_label("Host")).to_have_value("db-9.example.com")
    page.evaluate("() => { window.mine = true; }")
    newer(page)
    page.evaluate(HIDDEN, True)
    page.evaluate(HIDDEN, False)
    page.wait_for_timeout(500)  # a reload would come at once
    assert page.evaluate("() => window.mine")


def test_a_form_survives_a_reload_a_restart_of_the_service_and_a_new_login(pages: Pages, stage: Stage) -> None:
    page = pages.open("#/new")
    page.get_by_label("Name of the pipeline").fill("crm")
    page.get_by_label("Variable of the services").fill("CRM_PASSWORD")
    page.context.set_offline(True)
    page.get_by_label("Host").fill("db-9.example.com")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_text("The control service does not answer").first).to_be_visible()
    page.context.set_offline(False)
    page.reload()
    expect(page.get_by_label("Name of the pipeline")).to_have_value("crm")
    expect(page.get_by_label("Host")).to_have_value("db-9.example.com")
    expect(page.get_by_label("Variable of the services")).to_have_value("CRM_PASSWORD")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in to Cutline")).to_be_visible()
    assert page.evaluate("() => Object.keys(sessionStorage).filter((key) => key.startsWith('cutline-draft'))") == []
