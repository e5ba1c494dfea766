"""What every request passes before its handler: a request id, a limit on its size, and the question who sends it.

It is plain ASGI, since it stands before each request. Open to everyone: health, the API's description, the dashboard's
files (which hold no data).
"""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cutline.services.control.api import problems
from cutline.services.control.api.access import Access
from cutline.services.control.api.problems import Refused

OPEN = ("/", "/healthz", "/readyz", "/docs", "/redoc", "/openapi.json", "/favicon.ico")
OPEN_BELOW = ("/static/", "/docs/")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """The middleware; see above."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        """Take the application behind it."""
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            self._check_length(headers)
            if scope["path"] not in OPEN and not scope["path"].startswith(OPEN_BELOW):
                client = scope.get("client")
                state["caller"] = await self._access.caller(headers, client[0] if client else "")
        except Refused as refusal:
            await problems.answer(scope, refusal)(scope, receive, sent)
            return
        await self._app(scope, self._limited(receive), sent)

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._access.body_bytes:
            raise self._too_long()

    def _limited(self, receive: Receive) -> Receive:
        """Also a body without a length in its headers is limited."""
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._access.body_bytes:
                raise self._too_long()
            return message

        return limited

    def _too_long(self) -> Refused:
        return Refused(
            413,
            f"the body is longer than {self._access.body_bytes} bytes",
            "send a shorter one, or raise CUTLINE_API_BODY_BYTES",
        )
