"""Errors of the API: every one is an `application/problem+json` (RFC 9457) with cause, remedy and request id.

`detail` is the cause and `remedy` what to do about it; `errors` has one item for each fault of the request.
"""

from __future__ import annotations

import http
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from cutline.common.causes import Cause
from cutline.common.errors import ConfigError, CutlineError, Unavailable

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
MOST_FAULTS = 100

log = logging.getLogger(__name__)


class FieldProblem(BaseModel):
    """One fault of a request."""

    field: str | None = Field(default=None, description="the faulty field, with dots between its parts; null: no one")
    detail: str = Field(description="what is wrong")
    remedy: str | None = Field(default=None, description="what to do")
    code: str | None = Field(default=None, description="kind of the cause: see docs/causes.md", examples=["no_key"])


class Problem(BaseModel):
    """Why a request was not carried out."""

    type: str = Field(description="kind of problem, stable over versions", examples=["urn:cutline:problem:not-found"])
    title: str = Field(description="the status in words", examples=["Not Found"])
    status: int = Field(description="the HTTP status", examples=[404])
    detail: str = Field(description="the cause", examples=["the store has no pipeline 'shop'"])
    remedy: str | None = Field(default=None, description="what to do", examples=["GET /v1/pipelines lists them"])
    code: str | None = Field(default=None, description="kind of the cause, if it is one of docs/causes.md")
    instance: str = Field(description="path of the request", examples=["/v1/pipelines/shop"])
    request_id: str = Field(description="as in the header X-Request-Id, the audit log and the service's log")
    errors: list[FieldProblem] = Field(default_factory=list, description="each fault of the request")


class Refused(HTTPException):
    """A request that is not carried out, with cause and remedy; raise it anywhere below the API."""

    def __init__(
        self,
        status: int,
        cause: str,
        remedy: str | None = None,
        *,
        code: str | None = None,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take the HTTP status, the cause, and what to do about it."""
        super().__init__(status, cause, dict(headers or {}))
        self.remedy, self.code = remedy, code
        self.errors = list(errors)


def problem(cause: Cause) -> FieldProblem:
    """A cause as a fault of a request."""
    return FieldProblem(detail=cause.sentence, remedy=cause.remedy or None, code=cause.code)


def faults_of(error: CutlineError) -> list[FieldProblem]:
    """The faults that an error reports: one, but for a ConfigError with several."""
    return [problem(cause) for cause in (error.faults if isinstance(error, ConfigError) else (error.cause,))]


def refused(status: int, error: CutlineError) -> Refused:
    """The refusal that tells this error; a ConfigError with several faults has each of them in `errors`."""
    faults = faults_of(error)
    if len(faults) == 1:
        return Refused(status, faults[0].detail, faults[0].remedy, code=faults[0].code)
    return Refused(status, f"{len(faults)} faults were found", "correct each of `errors`", errors=faults)


def request_id(scope: Mapping[str, Any]) -> str:
    """The id of a request that the gate let in."""
    return str(scope.get("state", {}).get("request_id", ""))


def answer(scope: Mapping[str, Any], refusal: Refused) -> Response:
    """The response for a refusal."""
    status = refusal.status_code
    scope.get("state", {})["cause"] = str(refusal.detail)  # for the audit log
    title = http.HTTPStatus(status).phrase
    problem = Problem(
        type=f"urn:cutline:problem:{title.lower().replace(' ', '-')}",
        title=title,
        status=status,
        detail=str(refusal.detail),
        remedy=refusal.remedy,
        code=refusal.code,
        instance=str(scope.get("path", "")),
        request_id=request_id(scope),
        errors=refusal.errors,
    )
    headers = {"X-Request-Id": problem.request_id, **(refusal.headers or {})}
    body = json.dumps(problem.model_dump())  # pydantic's own JSON refuses half of a surrogate pair, which a key may be
    return Response(body, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def handle(app: FastAPI) -> None:
    """Have every error of the application answered as a problem, also those of the framework."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(CutlineError, _failed)
    app.add_exception_handler(Exception, _unexpected)


def of_error(error: CutlineError) -> Refused:
    """The refusal for an error that no handler expected: Redis, the store or another outside system failed."""
    status = 503 if isinstance(error, Unavailable | ConfigError) else 500
    refusal = refused(status, error)
    if isinstance(error, Unavailable):
        refusal.headers = {"Retry-After": str(RETRY_SECONDS)}
        refusal.remedy = refusal.remedy or "see that it runs, and try again in a few seconds"
    return refusal


_REMEDIES = {
    404: "GET /openapi.json lists the paths",
    405: "use one of the methods in the header Allow",
    400: "correct the request; GET /openapi.json describes it",
}


async def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        assert isinstance(error, HTTPException)
        status = error.status_code
        if status == 405:
            error.headers = {"Allow": _allowed(request) or "GET"}
        cause = {404: f"there is no path {request.url.path}", 405: f"{request.method} is not allowed here"}
        error = Refused(status, cause.get(status, str(error.detail)), _REMEDIES.get(status), headers=error.headers)
    return answer(request.scope, error)


def _allowed(request: Request) -> str:
    """The methods of this path: the framework names only those of the first of its routes."""
    found: set[str] = set()
    for path, methods in request.app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", path), request.url.path):
            found |= {method.upper() for method in methods}
    if "GET" in found:
        found.add("HEAD")
    return ", ".join(sorted(found))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        (fault, *_) = faults
        cause = f"the body is not JSON ({fault['ctx']['error']} at character {fault['loc'][-1]})"
        return answer(request.scope, Refused(400, cause, "correct its syntax"))
    if any(fault["loc"] == ("body",) and fault["type"] != "missing" for fault in faults):
        kind = request.headers.get("content-type", "application/json")
        if not re.match(r"application/([\w.-]+\+)?json\b", kind):
            return answer(request.scope, Refused(415, f"the body is {kind}", "send application/json"))
        return answer(request.scope, Refused(422, "the body is no JSON object", "send one with the call's fields"))
    errors = [_field(fault) for fault in faults[:MOST_FAULTS]]
    return answer(request.scope, Refused(422, errors[0].detail, errors[0].remedy, errors=errors))


def _field(fault: Mapping[str, Any]) -> FieldProblem:
    """One of the framework's faults as a sentence, without the value, which may be a secret."""
    where, *path = (str(part) for part in fault["loc"])
    field = ".".join(path) or where
    kind = fault["type"]
    if kind == "missing":
        what = "a JSON body" if where == "body" and not path else f"{field} ({where})"
        return FieldProblem(field=field, detail=f"{what} is missing", remedy="add it")
    if kind == "cutline":
        context = fault["ctx"]
        return FieldProblem(field=field, detail=f"{field} {context['message']}", remedy=context["remedy"] or None)
    if kind == "extra_forbidden":
        return FieldProblem(field=field, detail=f"{field} is unknown", remedy="leave it out, or correct its name")
    expected = str(fault["msg"]).removeprefix("Value error, ")
    expected = expected.removeprefix("Input should ").replace("String should ", "").replace("List should ", "")
    if not expected.startswith(("have ", "match ")):
        expected = f"be {expected.removeprefix('be ')}"
    return FieldProblem(field=field, detail=f"{field} ({where}) must {expected}", remedy="correct it")


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, CutlineError)
    refusal = of_error(error)
    if refusal.status_code == 500:
        log.error("request %s failed: %s", request_id(request.scope), error)
    return answer(request.scope, refusal)


async def _unexpected(request: Request, error: Exception) -> Response:
    """The traceback goes to the log only: the server logs each error that reaches it here."""
    cause = "the control service met an unexpected error, which its log has under this request id"
    return answer(request.scope, Refused(500, cause, "report it with that part of the log"))
