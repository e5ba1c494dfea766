"""How the dashboard's files are served, and that they are complete."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from cutline.services.control import dashboard

STATIC = dashboard.FOLDER
ROOT = Path(__file__).parents[4]


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(dashboard.router())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
        yield client


async def test_the_page_allows_nothing_but_its_own_files_and_its_import_map(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
    (inline,) = re.findall(r"<script[^>]*>([^<]+)</script>", answer.text)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'" in policy
    assert not re.findall(r"<style|style=|https?://|\son[a-z]+=", answer.text)


async def test_every_file_that_the_page_names_is_there_compressed_and_kept_for_ever(browser: httpx.AsyncClient) -> None:
    page = (await browser.get("/")).text
    named = set(re.findall(r'"(/static/[^"]+)"', page))
    assert {"main.js", "preact.mjs", "base.css", "icon.svg"} <= {address.rpartition("/")[2] for address in named}
    for address in named:
        answer = await browser.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-encoding"] == "gzip"
    plain = await browser.get(next(iter(named)), headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers


async def test_the_page_is_asked_for_each_time_and_sent_only_if_it_changed(browser: httpx.AsyncClient) -> None:
    first = await browser.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = await browser.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_a_page_of_an_earlier_version_gets_today_s_file_and_must_not_keep_it(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/static/0123456789ab/vendor/uPlot.iife.min.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    for name in ("nothing.js", "%2e%2e/%2e%2e/dashboard.py", "vendor/LICENSE-preact"):
        assert (await browser.get(f"/static/0123456789ab/{name}")).status_code == 404


def test_every_module_that_another_one_imports_is_there() -> None:
    bare = {"preact", "preact/hooks", "htm"}
    served = dashboard.contents()
    for module in served:
        for name in re.findall(r'from "([^"]+)";', served[module].decode()) if module.endswith(".js") else ():
            imported = posixpath.normpath(posixpath.join(posixpath.dirname(module), name))
            assert name in bare or imported in served, f"{module} imports {name}"


def test_no_file_of_the_dashboard_names_another_origin() -> None:
    ours = [path for path in STATIC.rglob("*") if path.suffix in dashboard.MEDIA_TYPES and path.parent.name != "vendor"]
    found = {
        (path.name, address)
        for path in ours
        for address in re.findall(r"https?://[^\s\"'`]+", path.read_text(encoding="utf-8"))
    }
    assert {address for _, address in found} <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("folder", [STATIC / "vendor", ROOT / "tests" / "browser" / "vendor"], ids=["page", "tests"])
def test_each_vendored_library_has_its_version_and_its_licence(folder: Path) -> None:
    versions = (folder / "VERSIONS.md").read_text(encoding="utf-8")
    for path in folder.iterdir():
        if path.name != "VERSIONS.md":
            assert path.name in versions, path
    for licence in re.findall(r"LICENSE-[a-z-]+", versions):
        assert (folder / licence).is_file() or (folder / licence).with_suffix(".txt").is_file()
