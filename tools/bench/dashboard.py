"""The dashboard in a Chromium that knows nothing yet, over made-up pipelines that another process serves."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx
from playwright.sync_api import Browser, sync_playwright

from tests.support.server_process import HOST, free_port
from tools.bench.readers import Figures
from tools.programs import program

ROOT = Path(__file__).resolve().parents[2]
RUNS = 5
STARTS_SECONDS = 30.0
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def opened() -> Figures:
    """The median of five openings, each in a new context without a cache; the first one warms Chromium up and does not
    count. `tables_ms`: until rows of 1,000 tables are there; `bytes`: of the dashboard's files, as they are sent."""
    with served() as address, sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        with playwright.chromium.launch(executable_path=program("chromium"), args=flags) as browser:
            runs = [_open(browser, f"{address}/#/pipelines/erp-archive/tables") for _ in range(RUNS + 1)][1:]
    return {key: round(median(run[key] for run in runs)) for key in runs[0]}


def _open(browser: Browser, address: str) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        page.add_init_script("sessionStorage.setItem('cutline-token', 'admin-token')")
        page.goto(address)
        page.wait_for_selector(".grid-view [role=row]")
        tables = page.evaluate("() => performance.now()")
        painted = page.wait_for_function(PAINTED).json_value()
        sent = page.evaluate(
            "() => performance.getEntriesByType('resource').filter((file) => file.name.includes('/static/'))"
            ".reduce((sum, file) => sum + file.transferSize, 0)"
        )
        return {"first_paint_ms": painted, "tables_ms": tables, "bytes": sent}
    finally:
        context.close()


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Serve made-up pipelines from a process of their own; yields the address."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.browser.stage", str(port)], cwd=ROOT)
    address, deadline = f"http://{HOST}:{port}", time.monotonic() + STARTS_SECONDS
    try:
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(address)
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{address} did not answer within {STARTS_SECONDS:.0f} s")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()
