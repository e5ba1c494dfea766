"""What every request passes before its handler: a request id, a limit on its size, the question who sends it, and the
audit log, which takes it before the answer is sent.

A request that reads and lasts, as a stream of events or a `?wait=`, ends when its token does.

It is plain ASGI, since it stands before each request. Open to everyone: health, the API's description, the dashboard's
files (which hold no data).
"""

from __future__ import annotations

import asyncio
import re
import secrets
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cutline.common.errors import CutlineError
from cutline.services.control.api import problems
from cutline.services.control.api.access import Access
from cutline.services.control.api.audit_log import AuditLog
from cutline.services.control.api.problems import Refused
from cutline.services.control.api.roles import Caller

OPEN = ("/", "/healthz", "/readyz", "/docs", "/redoc", "/openapi.json", "/favicon.ico")
BODY_BYTES = 1 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN_BELOW = ("/static/", "/docs/")
CONFIRM_SECONDS = 1.0
"""How long a request runs before its token is looked at again, and from then on."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """The middleware; see above."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        audit: AuditLog,
        body_bytes: int = BODY_BYTES,
        metrics_open: bool = False,
    ) -> None:
        """Take the application behind it, and how many bytes a request may have."""
        self._app = app
        self._access = access
        self._audit = audit
        self._body_bytes = body_bytes
        self._open = (*OPEN, "/metrics") if metrics_open else OPEN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        reads = scope["method"] in ("GET", "HEAD", "OPTIONS")
        guarded = scope["path"] not in self._open and not scope["path"].startswith(OPEN_BELOW)

        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if guarded and not reads:
                    await self._audit.record(scope, message["status"])
                known = MutableHeaders(scope=message)
                known["X-Request-Id"] = request_id
                known.setdefault("X-Content-Type-Options", "nosniff")
                if guarded:
                    known.setdefault("Cache-Control", "no-cache")
            await send(message)

        try:
            self._check_length(headers)
            if guarded:
                client = scope.get("client")
                scope["state"]["caller"] = await self._access.caller(headers, client[0] if client else "")
                self._check_site(headers, reads=reads)
        except (Refused, CutlineError) as error:
            refusal = error if isinstance(error, Refused) else problems.of_error(error)
            await problems.answer(scope, refusal)(scope, receive, sent)
            return
        if scope["method"] == "HEAD":  # the server sends no body then
            scope = {**scope, "method": "GET"}
        handled = self._app(scope, self._limited(receive), sent)
        if not guarded or not reads:
            await handled
            return
        ended = await self._while_valid(scope["state"]["caller"], asyncio.ensure_future(handled))
        if ended is None:
            return
        if started:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await problems.answer(scope, ended)(scope, receive, sent)

    async def _while_valid(self, caller: Caller, handled: asyncio.Future[None]) -> Refused | None:
        """Wait until a request was handled; if its token ends meanwhile, cancel it and return the refusal."""
        try:
            while True:
                done, _ = await asyncio.wait([handled], timeout=CONFIRM_SECONDS)
                if done:
                    handled.result()
                    return None
                try:
                    await self._access.confirm(caller)
                except Refused as refusal:
                    return refusal
                except CutlineError:
                    continue  # a store that is away revokes no token
        finally:
            if not handled.done():
                handled.cancel()
                await asyncio.wait([handled])

    def _check_site(self, headers: Headers, *, reads: bool) -> None:
        """A page of another site must not act through the browser of a user of this machine, nor read by a name that
        it has pointed here."""
        host = headers.get("host", "")
        if self._access.open_here and _parts(f"//{host}").hostname not in LOOPBACK:
            raise Refused(
                403, f"the request is for the host {host!r}", "use http://127.0.0.1, or set CUTLINE_API_TOKEN"
            )
        origin = headers.get("origin")
        if origin is not None and not reads and _parts(origin).netloc != host:
            raise Refused(403, f"a page of {origin} sent the request", "send it from the dashboard or from no browser")

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_bytes:
            raise self._too_long()

    def _limited(self, receive: Receive) -> Receive:
        """Also a body without a length in its headers is limited."""
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._body_bytes:
                raise self._too_long()
            return message

        return limited

    def _too_long(self) -> Refused:
        return Refused(
            413,
            f"the body is longer than {self._body_bytes} bytes",
            "send a shorter one, or raise CUTLINE_API_BODY_BYTES",
        )


def _parts(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
