"""Calls over HTTP to addresses that settings name: no redirect is followed, no link-local address is called (also by a
name that leads there), and an answer has bounds.

Who sets an address (CUTLINE_WEBHOOK_URL and the like) has this machine's settings and is trusted more than a request.
But the server behind it may be another's, and must not send the caller elsewhere.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from cutline.common.config.addresses import barred

LONGEST_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 14


class Barred(OSError):
    """The connection led to an address that is never called."""


def check(peer: object) -> None:
    """Raise Barred if this is the address of such a peer: a pair, or longer, as `getpeername` returns it."""
    if isinstance(peer, tuple) and barred(str(peer[0])):
        raise Barred(f"{peer[0]} is a link-local address, which is never called")


async def checked_peer(event: str, info: dict[str, Any]) -> None:
    """The extension `trace` of a request by httpx: it looks where the connection leads, before anything is sent."""
    if event == "connection.connect_tcp.complete":
        check(info["return_value"].get_extra_info("server_addr"))


class _Plain(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        check(self.sock.getpeername())


class _Encrypted(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        check(self.sock.getpeername())


class _PlainHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Plain, req)


class _EncryptedHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Encrypted, req)


def fetched(url: str, *, seconds: float) -> Any:
    """Return the JSON at an address. OSError if it can't be fetched within that time or is too long, ValueError if it
    is no JSON, or the address is not one of HTTP."""
    opener = urllib.request.OpenerDirector()  # without a handler of redirects, files and FTP
    for handler in (
        urllib.request.ProxyHandler(),
        _PlainHandler(),
        _EncryptedHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    until = time.monotonic() + seconds
    answer = opener.open(url, timeout=seconds)
    if answer is None:
        raise ValueError(f"{url} is not an address of HTTP")
    with answer:
        content = b""
        while block := answer.read1(_BLOCK_BYTES):
            content += block
            if len(content) > LONGEST_BYTES:
                raise OSError(f"the answer of {url} is longer than {LONGEST_BYTES} bytes")
            if time.monotonic() > until:
                raise OSError(f"the answer of {url} took longer than {seconds:.0f} s")
    return json.loads(content)
