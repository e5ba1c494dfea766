"""The dashboard over a real pipeline: MariaDB, Redis, the mesh's services, Spark and the control service."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, expect
from pyiceberg.exceptions import NoSuchTableError

from tests.browser.conftest import Pages
from tests.support.bank import Fresh
from tests.support.control_server import is_ready
from tests.support.databases import CDC_USER, MariaDB
from tests.support.lake_tables import lake_table
from tests.support.mesh import Mesh, waited
from tests.support.server_process import HOST, free_port

ADMIN = "the-admin-of-this-test"
PATIENCE_MS = 90_000


def confirm(page: Page, title: str) -> None:
    """Confirm the open dialog, and wait until its command has ended."""
    dialog = page.get_by_role("dialog", name=title)
    dialog.locator("[data-confirm]").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".toast", has_text=title)).to_contain_text("Done: command", timeout=PATIENCE_MS)


def phase(page: Page, table: str) -> Any:
    """The badge of a table in the list."""
    return page.locator(".grid-view [role=row]", has_text=table).locator(".badge")


def test_a_pipeline_is_made_goes_live_is_paused_gets_a_table_and_has_one_retried(
    mariadb: MariaDB, fresh_database: Fresh, chromium: Browser, tmp_path: Path, keep: Any
) -> None:
    """1. A pipeline of two tables is made in the form; one of them has no key. 2. The other goes live. 3. The pipeline
    is paused, a row is added at the source, and the pipeline is resumed. 4. A table that was made later is added with
    its history. 5. The one without a key gets one, is retried and goes live. 6. A viewer is refused. 7. All rows
    are in the lake.
    """
    schema = fresh_database(mariadb)
    port = free_port()
    environment = {"CUTLINE_API_PORT": str(port), "CUTLINE_API_TOKEN": ADMIN}

    def at_source(*statements: str) -> None:
        mariadb.execute(*statements, database=schema)

    at_source(
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))",
        "INSERT INTO orders SELECT seq, CONCAT('n', seq) FROM seq_1_to_5000",
        "CREATE TABLE logs (line VARCHAR(40))",
        "INSERT INTO logs VALUES ('a'), ('b')",
    )
    with Mesh(tmp_path, spark=True, environment=environment) as mesh:
        mesh.start("control")
        address = f"http://{HOST}:{port}"

        waited(partial(is_ready, address), "the control service", 30, mesh.log_ends)
        pages = Pages(chromium, address)
        page = pages.open("#/new", token=ADMIN)
        page.get_by_label("Name of the pipeline").fill("shop")
        page.get_by_label("Host").fill(mariadb.host)
        page.get_by_label("Port").fill(str(mariadb.port))
        page.get_by_label("User", exact=True).fill(CDC_USER)
        page.get_by_label("Variable of the services").fill("CDC_PASSWORD")
        page.get_by_role("button", name="Test the connection").click()
        expect(page.get_by_text(re.compile("MariaDB .* at "))).to_be_visible(timeout=PATIENCE_MS)
        page.get_by_label("Pattern", exact=True).fill(f"{schema}.orders")
        page.keyboard.press("Enter")
        page.get_by_label("Pattern", exact=True).fill(f"{schema}.logs")
        page.keyboard.press("Enter")
        expect(page.get_by_role("region", name="Tables found")).to_contain_text("2 tables match", timeout=PATIENCE_MS)
        page.get_by_label("Warehouse").fill(f"{tmp_path}/lake")
        page.get_by_text("More settings").click()
        page.get_by_label("Interval seconds").fill("1")
        page.get_by_role("button", name="Show the plan").click()
        expect(page.get_by_role("region", name="Plan")).to_contain_text("quarantined until fixed", timeout=PATIENCE_MS)
        keep(page, "live-new", whole=True)
        page.get_by_role("button", name="Create the pipeline").click()
        expect(page.get_by_role("heading", name="shop")).to_be_visible(timeout=PATIENCE_MS)

        page.get_by_role("link", name="Tables", exact=False).first.click()
        expect(phase(page, f"{schema}.orders")).to_have_text("live", timeout=PATIENCE_MS)
        expect(phase(page, f"{schema}.logs")).to_have_text("quarantined")
        keep(page, "live-tables")

        page.get_by_role("button", name="Pause", exact=True).click()
        confirm(page, "Pause the pipeline")
        expect(page.locator(".page-title")).to_contain_text("paused")
        at_source("INSERT INTO orders VALUES (9001, 'while it is paused')")
        page.get_by_role("button", name="Resume", exact=True).click()
        confirm(page, "Resume the pipeline")
        expect(page.locator(".page-title")).not_to_contain_text("paused")

        at_source("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later SELECT seq FROM seq_1_to_900")
        page.get_by_role("button", name="Add a table").click()
        page.get_by_role("dialog").get_by_label("Table").fill(f"{schema}.later")
        confirm(page, "Add a table")
        expect(phase(page, f"{schema}.later")).to_have_text("live", timeout=PATIENCE_MS)

        at_source("ALTER TABLE logs ADD COLUMN id INT AUTO_INCREMENT PRIMARY KEY")
        page.get_by_role("button", name=f"Operations on {schema}.logs").click()
        page.get_by_role("button", name="Retry the table").click()
        confirm(page, "Retry the table")
        expect(phase(page, f"{schema}.logs")).to_have_text("live", timeout=PATIENCE_MS)

        page.get_by_role("link", name="Overview").click()
        expect(page.locator(".mesh")).to_contain_text("writer-1")
        expect(page.locator(".mesh-node", has_text="lake")).to_contain_text("shows", timeout=PATIENCE_MS)
        keep(page, "live-overview", whole=True)
        page.get_by_role("link", name="Checkpoints").click()
        timeline = page.get_by_role("img", name=re.compile("through the mesh"))
        for lane in ("enumerator", "reader-0", "reader-1", "writer-0", "writer-1"):
            expect(timeline).to_contain_text(lane, timeout=PATIENCE_MS)
        keep(page, "live-checkpoints", whole=True)
        page.get_by_role("link", name="Cuts").click()
        page.get_by_label("Time").fill(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"))
        page.get_by_role("button", name="Show the cut").click()
        expect(page.get_by_role("region", name="What it shows of each table")).to_contain_text(f"{schema}.orders")
        keep(page, "live-cuts")

        page.goto(f"{address}/#/access")
        page.get_by_role("button", name="New token").click()
        page.get_by_label("Name").fill("grafana")
        page.get_by_role("button", name="Make the token").click()
        token = page.get_by_label("Token", exact=True).inner_text()
        viewer = pages.open("#/", token=None)
        viewer.get_by_label("Token").fill(token)
        viewer.get_by_role("button", name="Log in").click()
        viewer.locator(".pipeline-card").get_by_role("link", name="shop").click()
        viewer.get_by_role("button", name="Pause", exact=True).click()
        expect(viewer.get_by_role("dialog")).to_contain_text("Needs the role operator; you are viewer.")
        answer = httpx.post(f"{address}/v1/pipelines/shop/pause", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 403
        pages.close()
        assert pages.faults == []
        wanted = {"orders": 5001, "later": 900, "logs": 2}

        def counted() -> bool:
            try:
                tables = {name: lake_table(tmp_path / "lake", f"{schema}.{name}") for name in wanted}
                return {name: table.scan().to_arrow().num_rows for name, table in tables.items()} == wanted
            except NoSuchTableError:
                return False

        waited(counted, "the rows of all three tables in the lake", 60, mesh.log_ends)
