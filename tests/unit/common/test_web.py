"""Calls to addresses of settings: no redirect, no link-local address, an answer with bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from cutline.common import web
from cutline.common.web import LONGEST_BYTES, Barred, checked_peer, fetched
from cutline.services.control.alerts import Alert, Delivery
from cutline.services.control.conditions import CONDITIONS
from cutline.services.control.lineage import Lineage
from cutline.services.control.webhook import Webhook


class Elsewhere(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/metadata")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/long":
            self.wfile.write(b'"' + b"x" * LONGEST_BYTES + b'"')
        elif self.path == "/slow":
            until = time.monotonic() + 5
            try:
                while time.monotonic() < until:
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.05)
            except OSError:
                return
        else:
            self.wfile.write(b'{"keys": []}')

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Elsewhere,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{opened.server_port}", asked
        opened.shutdown()
        thread.join()


def test_an_answer_is_fetched(server: tuple[str, list[str]]) -> None:
    assert fetched(f"{server[0]}/keys", seconds=5) == {"keys": []}


def test_a_redirect_is_not_followed(server: tuple[str, list[str]]) -> None:
    url, asked = server
    with pytest.raises(OSError, match="302"):
        fetched(f"{url}/redirect", seconds=5)
    assert asked == ["/redirect"]


def test_an_answer_that_is_too_long_or_takes_too_long_is_given_up(server: tuple[str, list[str]]) -> None:
    with pytest.raises(OSError, match="longer than"):
        fetched(f"{server[0]}/long", seconds=5)
    with pytest.raises(OSError, match="took longer"):
        fetched(f"{server[0]}/slow", seconds=0.3)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "keys"])
def test_only_addresses_of_http_are_fetched(url: str) -> None:
    with pytest.raises((OSError, ValueError)):
        fetched(url, seconds=1)


async def test_a_name_that_leads_to_a_link_local_address_is_not_called(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = server
    monkeypatch.setattr(web, "barred", lambda host: host == "127.0.0.1")
    with pytest.raises(OSError, match="link-local"):
        fetched(f"{url}/keys", seconds=5)
    async with httpx.AsyncClient() as client:
        with pytest.raises(Barred):
            await client.post(url, extensions={"trace": checked_peer})
    assert not asked


async def test_a_webhook_and_lineage_are_posted_and_follow_no_redirect(server: tuple[str, list[str]]) -> None:
    url, asked = server
    nothing: Any = None
    alert = Alert(name=CONDITIONS[0].name, labels=(), severity="page", summary="", runbook="", since=1.0)
    for path, failure in (("/keys", None), ("/redirect", "it answered 302")):
        webhook, lineage = Webhook(url + path, nothing, nothing), Lineage(url + path, nothing, nothing)
        async with httpx.AsyncClient() as client:
            assert await webhook._post(client, Delivery(alert=alert, at=1.0)) == failure
            assert await lineage._failure(client, {}) == failure
    assert asked == ["/keys", "/keys", "/redirect", "/redirect"]
