"""The dashboard in Chromium, over made-up pipelines: every view, every operation, at the sizes that real ones have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from cutline.common.mesh.presence import Registry
from cutline.common.mesh.redis import connect
from cutline.common.store.store import Store
from cutline.services.control.api.access import Access
from cutline.services.control.app import build
from tests.browser.conftest import PHONE, WIDE, Pages, faults_for_people, settled
from tests.browser.made_up import Stage
from tests.browser.serving import served

Keep = Callable[..., Path]
VIEWS = {
    "pipelines": "#/",
    "overview": "#/pipelines/shop",
    "overview-many": "#/pipelines/erp-archive",
    "overview-paused": "#/pipelines/billing",
    "overview-without-leader": "#/pipelines/legacy",
    "tables": "#/pipelines/shop/tables",
    "tables-many": "#/pipelines/erp-archive/tables",
    "table": "#/pipelines/shop/tables/shop.page_views",
    "table-quarantined": "#/pipelines/shop/tables/shop.emails",
    "table-many-chunks": "#/pipelines/erp-archive/tables/erp.t_0650",
    "checkpoints": "#/pipelines/shop/checkpoints",
    "cuts": "#/pipelines/shop/cuts",
    "activity": "#/pipelines/shop/activity",
    "definition": "#/pipelines/shop/definition",
    "new": "#/new",
    "services": "#/services",
    "tokens": "#/access",
    "audit": "#/access/audit",
}


def confirm(page: Page, title: str) -> None:
    """Confirm the open dialog, and wait until its command has ended."""
    dialog = page.get_by_role("dialog", name=title)
    expect(dialog.get_by_role("list", name="What will happen")).to_be_visible()
    dialog.locator("[data-confirm]").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".toasts")).to_contain_text("Done: command")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_a_serious_fault_for_people_who_need_help_to_use_it(pages: Pages, theme: str, keep: Keep) -> None:
    page = pages.open(theme=theme)
    found = {}
    for name, address in VIEWS.items():
        page.evaluate("(address) => { location.hash = address; }", address)
        settled(page)
        keep(page, f"{name}-{theme}", whole=name in ("overview", "new"))
        if faults := faults_for_people(page):
            found[name] = faults
    assert found == {}
    assert page.evaluate("() => document.documentElement.dataset.theme") == theme


def test_every_view_fits_a_phone(pages: Pages, keep: Keep) -> None:
    page = pages.open(size=PHONE)
    wider = {}
    for name, address in VIEWS.items():
        page.evaluate("(address) => { location.hash = address; }", address)
        settled(page)
        keep(page, f"{name}-phone", whole=True)
        for tab in page.locator(".tabs [aria-current]").all():
            expect(tab).to_be_in_viewport(ratio=1)
        if (width := page.evaluate("() => document.documentElement.scrollWidth")) > PHONE["width"]:
            wider[name] = width
    assert wider == {}


def test_a_pipeline_is_paused_and_resumed_and_a_savepoint_is_taken(pages: Pages, stage: Stage, keep: Keep) -> None:
    page = pages.open("#/pipelines/shop")
    page.get_by_role("button", name="Pause", exact=True).click()
    keep(page, "dialog-pause")
    assert faults_for_people(page) == []
    confirm(page, "Pause the pipeline")
    expect(page.locator(".page-title")).to_contain_text("paused")
    page.get_by_role("button", name="Resume", exact=True).click()
    confirm(page, "Resume the pipeline")
    expect(page.locator(".page-title")).to_contain_text("running")
    page.get_by_role("button", name="Savepoint", exact=True).click()
    page.get_by_label("Name").fill("before-migration")
    confirm(page, "Take a savepoint")
    assert "before-migration" in stage.pipelines["shop"].savepoints.values()


def test_escape_closes_a_dialog_without_a_call_and_gives_the_focus_back(pages: Pages, stage: Stage) -> None:
    page = pages.open("#/pipelines/shop")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_focused()
    assert len(stage.pipelines["shop"].commands) == 3


def test_a_table_is_added_and_the_api_s_error_stands_at_the_field(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/tables")
    page.get_by_role("button", name="Add a table").click()
    field = page.get_by_role("dialog").get_by_label("Table")
    field.fill("nodatabase")
    page.locator("[data-confirm]").click()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("dialog").locator(".error")).to_contain_text(
        "It has no database. Write it as in shop.orders."
    )
    field.fill("shop.vouchers")
    confirm(page, "Add a table")
    page.get_by_label("Find a table").fill("vouchers")
    expect(page.get_by_role("link", name="shop.vouchers")).to_be_visible()


def test_a_quarantined_table_is_retried_from_the_list_of_what_needs_a_person(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop")
    expect(page.locator(".condition").filter(has_text="1 table of pipeline shop")).to_contain_text("not valid UTF-8")
    page.get_by_role("button", name="Retry shop.emails").click()
    confirm(page, "Retry the table")
    expect(page.locator(".condition")).to_have_count(0)


def test_every_operation_on_a_table_is_in_its_menu_with_the_reason_if_it_is_not_possible(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/tables")
    page.get_by_role("button", name="Operations on shop.addresses").click()
    menu = page.get_by_role("group", name="Operations on shop.addresses")
    expect(menu.get_by_role("button")).to_have_text(
        [re.compile(t) for t in ("Pause the table", "Read the table again", "Remove the table")]
    )
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Read the table again")).to_contain_text("begins generation 2")


CALLS = """async () => {
  const main = document.querySelector('script[type=module]').src;
  const {OPERATIONS} = await import(main.replace('main.js', 'operations.js'));
  const numbered = {checkpoint: {number: 4}, command: {number: 7}, version: 2};
  const context = {pipeline: {name: 'p'}, table: {table: 't'}, ...numbered};
  return Object.entries(OPERATIONS).map(([id, operation]) => [id, operation.role, ...operation.send(context, {})]);
}"""


def test_every_operation_is_a_call_of_the_api_with_the_role_that_the_api_asks_for(pages: Pages, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    described = build(Registry(connect("redis://127.0.0.1:1")), store, Access(store.access)).openapi()["paths"]
    found = []
    for operation, role, method, path, *_ in pages.open().evaluate(CALLS):
        for template, methods in described.items():
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and method.lower() in methods:
                found.append(operation)
                assert methods[method.lower()]["x-cutline-role"] == role, operation
                break
        else:
            raise AssertionError(f"{operation} calls {method} {path}, which the API does not have")
    assert len(found) > 20


def test_a_viewer_sees_all_and_is_refused_what_needs_a_higher_role(pages: Pages, stage: Stage, keep: Keep) -> None:
    page = pages.open(token=None)
    keep(page, "login-light")
    assert faults_for_people(page) == []
    page.get_by_label("Token").fill("wrong-token")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".error")).to_contain_text("The token is unknown")
    page.get_by_label("Token").fill("viewer-token")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Pipelines")).to_be_visible()
    expect(page.get_by_role("link", name="Access")).to_have_count(0)
    expect(page.get_by_role("button", name="New pipeline")).to_have_attribute("aria-disabled", "true")
    page.locator(".pipeline-card").get_by_role("link", name="shop").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("Needs the role operator; you are viewer.")
    page.locator("[data-confirm]").click(force=True)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert stage.pipelines["shop"].mode == "running"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in to Cutline")).to_be_visible()


def test_a_pipeline_is_made_in_the_form(pages: Pages, stage: Stage, keep: Keep) -> None:
    """1. The plan of an empty form names the missing fields. 2. A host that refuses fails the test of the source. 3.
    Its tables are found, with lake types. 4. The plan comes before the start. 5. The pipeline is there."""
    page = pages.open("#/new")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_label("Warehouse")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Name of the pipeline")).to_be_focused()
    page.get_by_label("Name of the pipeline").fill("crm")
    page.get_by_role("link", name="Services").click()
    expect(page.get_by_role("heading", name="Services")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Name of the pipeline")).to_have_value("crm")
    page.get_by_label("Host").fill("wrong.example.com")
    page.get_by_label("User", exact=True).fill("cdc")
    page.get_by_label("Variable of the services").fill("CRM_PASSWORD")
    page.get_by_label("Other servers").fill("db-2.example.com, db-3.example.com:3307")
    page.get_by_label("CA certificates").fill("/etc/cutline/ca.pem")
    page.get_by_label("TLS").select_option("verify-ca")
    page.get_by_label("Client certificate").fill("/etc/cutline/client.pem")
    page.get_by_role("button", name="Test the connection").click()
    expect(page.get_by_role("alert").first).to_contain_text("refused the connection")
    page.get_by_label("Host").fill("db-1.example.com")
    page.get_by_role("button", name="Test the connection").click()
    expect(page.get_by_text("MySQL 8.4.6 at cdc@db-1.example.com:3306")).to_be_visible()
    page.get_by_label("all of shop").check()
    expect(page.get_by_role("region", name="Tables found")).to_contain_text("26 tables match")
    page.get_by_role("button", name="shop.orders").click()
    expect(page.get_by_role("region", name="Tables found")).to_contain_text("timestamptz")
    page.get_by_label("Warehouse").fill("s3://lake/crm")
    page.get_by_text("More settings").click()
    expect(page.get_by_label("Interval seconds")).to_have_attribute("placeholder", "10")
    page.get_by_label("Interval seconds").fill("5")
    page.get_by_role("button", name="Show the plan").click()
    plan = page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("1 table quarantined until fixed")
    expect(plan).not_to_contain_text("shop.wishlists")
    plan.get_by_role("button", name="Show 13 more of 13").click()
    expect(plan).to_contain_text("shop.wishlists")
    keep(page, "new-with-plan", whole=True)
    assert faults_for_people(page) == []
    page.get_by_role("button", name="Create the pipeline").click()
    expect(page.get_by_role("heading", name="crm")).to_be_visible()
    definition = stage.pipelines["crm"].versions[0]["definition"]
    assert definition["tables"] == ["shop.*"]
    assert definition["checkpoint"] == {"interval_seconds": 5}
    assert definition["source"] == {
        "host": "db-1.example.com",
        "port": 3306,
        "user": "cdc",
        "password_env": "CRM_PASSWORD",
        "hosts": ["db-2.example.com", "db-3.example.com:3307"],
        "tls": {"mode": "verify-ca", "ca": "/etc/cutline/ca.pem", "cert": "/etc/cutline/client.pem"},
    }


def test_a_thousand_tables_are_listed_filtered_and_sorted_with_few_rows_on_the_page(pages: Pages) -> None:
    page = pages.open("#/pipelines/erp-archive/tables")
    table = page.get_by_role("table", name="Tables")
    expect(table).to_have_attribute("aria-rowcount", "1001")
    assert page.locator(".grid-view [role=row]").count() < 40
    page.get_by_role("button", name="quarantined 1").click()
    expect(page.locator(".card-foot")).to_have_text("1 table of 1,000")
    page.get_by_role("button", name="All 1,000").click()
    page.get_by_role("button", name="Rows", exact=True).click()
    expect(page.locator(".grid-view [role=row]").first).to_contain_text("erp.t_")
    page.get_by_label("Find a table").fill("t_0999")
    expect(page.locator(".grid-view [role=row]")).to_have_count(1)
    page.get_by_label("Find a table").fill("")
    slowest = page.evaluate(
        """async () => {
          const view = document.querySelector('.grid-view');
          let slowest = 0;
          for (let i = 0; i < 40; i += 1) {
            const from = performance.now();
            view.scrollTop += 1100;
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            slowest = Math.max(slowest, performance.now() - from);
          }
          return slowest;
        }"""
    )
    assert slowest < 400, f"a step of scrolling took {slowest:.0f} ms"
    page.locator(".grid-view a").last.focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("() => document.activeElement.className") == "cell-link"


def test_the_cut_of_a_thousand_tables_has_few_rows_on_the_page_and_any_table_is_found(pages: Pages) -> None:
    page = pages.open("#/pipelines/erp-archive/cuts")
    cut = page.get_by_role("region", name="What it shows of each table")
    expect(cut.get_by_role("table")).to_have_attribute("aria-rowcount", "1001")
    assert cut.get_by_role("row").count() < 40
    cut.get_by_label("Find a table").fill("t_0998")
    expect(cut.get_by_role("table")).to_have_attribute("aria-rowcount", "2")
    expect(cut).to_contain_text("erp.t_0998")


APPEARS = """(address) => new Promise((done) => {
  new MutationObserver((_, observer) => {  // is called before the browser paints
    const canvas = document.querySelector('.split-grid canvas');
    if (!canvas || parseInt(canvas.style.height) < 50) return;
    observer.disconnect();
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    done(data.some((value) => value > 0));
  }).observe(document, {subtree: true, childList: true, attributeFilter: ['style']});
  location.hash = address;
})"""


def test_the_grid_of_chunks_is_drawn_in_the_frame_in_which_it_appears(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/tables")
    expect(page.get_by_role("table", name="Tables")).to_be_visible()
    assert page.evaluate(APPEARS, "#/pipelines/shop/tables/shop.page_views")


LATE = """const queued = window.queueMicrotask.bind(window);
window.late = [];
window.queueMicrotask = (task) => (new Error().stack.includes("uPlot") ? window.late.push(task) : queued(task));"""


def test_a_view_that_is_left_before_its_charts_are_drawn_leaves_no_fault(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop")
    settled(page)
    page.add_init_script(LATE)  # uPlot draws in a microtask that nothing takes back: here it runs once the view is gone
    page.reload()
    page.wait_for_selector(".chart-box canvas", state="attached")
    page.get_by_role("link", name="Checkpoints").click()
    page.wait_for_selector(".chart-box", state="detached")
    assert page.evaluate("() => { late.forEach((task) => setTimeout(task)); return late.length }") > 0
    page.evaluate("() => new Promise((done) => setTimeout(done))")


def test_throughput_has_the_changes_of_live_tables_too(pages: Pages, stage: Stage) -> None:
    for table in stage.pipelines["shop"].tables.values():
        table.update(phase="live", cause=None)
    page = pages.open("#/pipelines/shop")
    figure = page.locator(".stat", has_text="Throughput").locator("b")
    expect(figure).to_have_text(re.compile(r"^\d\d(\.\d)?K$"))


def test_a_service_says_what_it_does_for_which_pipeline(pages: Pages) -> None:
    page = pages.open("#/services")
    cards = page.locator(".service:not(.missing)")
    expect(cards.filter(has_text="enumerator-7c1e20a94bd3")).to_contain_text("shop leads")
    expect(cards.filter(has_text="enumerator-23b83e827a0b")).to_contain_text("stands by")
    expect(cards.filter(has_text="reader-8a1c4bd0f723")).to_contain_text("shop reader-1, epoch 4")
    cards.first.get_by_role("button", name="Log").click()
    expect(page.get_by_role("dialog")).to_contain_text("INFO  epoch 4: checkpoint 119 is complete")


def test_a_phone_shows_the_newest_checkpoint_and_bars_of_different_length(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/checkpoints", size=PHONE)
    page.locator(".strip").scroll_into_view_if_needed()
    expect(page.locator(".strip-bar").last).to_be_in_viewport(ratio=1)
    bars = page.locator(".apply-bar span")
    expect(bars.first).to_be_visible()
    widths = bars.evaluate_all("(bars) => bars.map((bar) => bar.getBoundingClientRect().width)")
    assert widths[0] > 2 * widths[-1] > 0
    title, note = (page.locator(".card-head").first.locator(part).bounding_box() for part in ("h2", "span"))
    assert title
    assert note
    assert title["x"] + title["width"] <= note["x"] or title["y"] + title["height"] <= note["y"]


def test_a_hundred_thousand_chunks_are_a_picture_that_keys_and_mouse_explore(pages: Pages) -> None:
    page = pages.open("#/pipelines/erp-archive/tables/erp.t_0650")
    grid = page.get_by_role("slider", name="Chunks of erp.t_0650")
    expect(grid).to_have_attribute("aria-valuemax", "100000")
    grid.focus()
    page.keyboard.press("End")
    expect(page.locator(".split-about")).to_have_text("Chunk 100,000 of 100,000: waiting")
    page.keyboard.press("Home")
    expect(grid).to_have_attribute("aria-valuenow", "1")
    grid.hover(position={"x": 5, "y": 3})
    expect(page.locator(".split-about")).to_contain_text(
        re.compile(r"^Chunk [\d,]+ of 100,000: (in the lake|waiting)$")
    )


def test_an_event_appears_as_it_happens(pages: Pages, stage: Stage) -> None:
    page = pages.open("#/pipelines/shop/activity")
    expect(page.locator(".live-mark")).to_have_text("live")
    expect(page.locator(".events li").first).to_contain_text("end-of-quarter")
    stage.say(stage.pipelines["shop"], "table", "shop.vouchers is live in generation 1")
    expect(page.locator(".events li").first).to_contain_text("shop.vouchers is live in generation 1.")


def test_versions_show_what_changed_and_an_old_one_is_brought_back(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/definition")
    page.get_by_role("button", name="Changes since 1").click()
    expect(page.locator(".diff .added")).to_have_text([re.compile("tmp_"), re.compile("interval_seconds: 5")])
    removed, added = (page.locator(f".diff .{kind}").last.bounding_box() for kind in ("removed", "added"))
    assert removed
    assert added
    assert added["y"] >= removed["y"] + removed["height"]
    assert page.evaluate("() => document.documentElement.scrollWidth") == WIDE["width"]
    page.get_by_role("button", name="Version 1").click()
    page.get_by_role("button", name="Bring back").click()
    confirm(page, "Bring this version back")
    expect(page.get_by_role("button", name="Version 3")).to_be_visible()


def test_a_cut_and_a_checkpoint_say_what_they_hold(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/cuts")
    expect(page.get_by_role("region", name="What it shows of each table")).to_contain_text(
        "VERSION AS OF 6574234402551412684"
    )
    page.goto(f"{pages.address}/#/pipelines/shop/checkpoints")
    expect(page.get_by_role("img", name=re.compile("through the mesh"))).to_have_attribute(
        "aria-label", re.compile(r"writer-1: marker after")
    )


def test_the_theme_follows_the_system_until_a_person_chooses(pages: Pages) -> None:
    page = pages.open(theme="dark")
    theme: Any = "() => document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "dark"
    page.get_by_role("button", name="Light colours").click()
    assert page.evaluate(theme) == "light"
    page.reload()
    expect(page.get_by_role("button", name="Dark colours")).to_be_visible()
    assert page.evaluate(theme) == "light"


def test_a_module_that_does_not_arrive_is_asked_for_again(chromium: Browser, stage: Stage) -> None:
    with served(stage) as address:
        opened = Pages(chromium, address)
        page = opened.open(token=None)
        expect(page.get_by_role("heading", name="Log in to Cutline")).to_be_visible()
        failures = iter([True])
        page.route("**/app/main.js", lambda route: route.abort() if next(failures, False) else route.continue_())
        page.reload()
        expect(page.get_by_role("heading", name="Log in to Cutline")).to_be_visible()
        opened.close()
    assert "net::ERR_FAILED" in {fault.rpartition(": ")[2] for fault in opened.faults}


def test_a_token_that_is_revoked_meanwhile_leads_to_the_login(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    page = pages.open()
    expect(page.get_by_role("heading", name="Pipelines")).to_be_visible()
    monkeypatch.setattr("tests.browser.stage.TOKENS", {"admin-token-2": "admin"})
    expect(page.get_by_role("heading", name="Log in to Cutline")).to_be_visible()
    expect(page.locator(".notice")).to_contain_text("Your session has ended")
    page.keyboard.type("admin-token-2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Pipelines")).to_be_focused()


@pytest.mark.parametrize("name", ["nope", "100%"])
def test_an_address_of_no_pipeline_says_so(pages: Pages, name: str) -> None:
    page = pages.open(f"#/pipelines/{name}")
    expect(page.get_by_role("heading", name=f"No pipeline {name}")).to_be_visible()


def test_a_pipeline_that_no_enumerator_has_taken_up_yet_is_no_alarm(pages: Pages, stage: Stage) -> None:
    made = stage.pipelines["shop"]
    made.begun = made.led = False
    made.tables.clear()
    page = pages.open("#/pipelines/shop")
    expect(page.locator(".page-title")).to_contain_text("starting")
    expect(page.locator(".notice")).to_have_text(re.compile("No enumerator has taken it up yet"))
    assert page.get_by_role("alert").count() == 0


def test_events_stay_single_and_in_order_when_another_control_service_answers(pages: Pages, stage: Stage) -> None:
    page = pages.open("#/pipelines/shop/activity")
    expect(page.locator(".live-mark")).to_have_text("live")
    listed = page.locator(".events li").count()
    page.context.set_offline(True)
    made = stage.pipelines["shop"]
    for event in made.events:
        event["id"] += ".7"  # an id has what that service has seen
    stage.say(made, "table", "shop.vouchers is live in generation 1")
    page.context.set_offline(False)
    expect(page.locator(".events li").first).to_contain_text("shop.vouchers")
    expect(page.locator(".events li")).to_have_count(listed + 1)


def test_a_dialog_names_its_subject_has_its_first_field_in_focus_and_survives_a_drag(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop")
    page.get_by_role("button", name="Savepoint", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".dialog-title")).to_contain_text("shop")
    field = dialog.get_by_label("Name")
    expect(field).to_be_focused()
    box = field.bounding_box()
    assert box
    page.mouse.move(box["x"] + 20, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(20, 600)
    page.mouse.up()
    expect(dialog).to_be_visible()
    page.mouse.click(20, 600)
    expect(dialog).to_be_hidden()


def test_an_operation_that_got_no_answer_is_the_same_command_when_it_is_asked_for_again(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop")
    page.get_by_role("button", name="Pause", exact=True).click()
    keys: list[str | None] = []

    def pausing(route: Any) -> None:
        keys.append(route.request.headers.get("idempotency-key"))
        _ = route.abort() if len(keys) == 1 else route.continue_()

    page.route("**/pause", pausing)
    page.locator("[data-confirm]").click()
    expect(page.get_by_role("dialog")).to_contain_text("Check that the service runs, then try again.")
    confirm(page, "Pause the pipeline")
    assert keys[0] == keys[1]


def test_an_old_checkpoint_is_shown_by_its_address(pages: Pages) -> None:
    page = pages.open("#/pipelines/shop/checkpoints/2")
    expect(page.get_by_role("heading", name="Checkpoint 2", exact=True)).to_be_visible()


def test_the_form_finds_all_of_a_thousand_tables(pages: Pages) -> None:
    page = pages.open("#/new")
    page.get_by_label("Host").fill("db-1.example.com")
    page.get_by_role("button", name="Test the connection").click()
    page.get_by_label("Pattern", exact=True).fill("erp.*")
    page.keyboard.press("Enter")
    found = page.get_by_role("region", name="Tables found")
    expect(found).to_contain_text("1,000 tables match")
    page.get_by_label("Find in the list").fill("t_0999")
    expect(found.locator(".found-table")).to_have_count(1)
