"""What the client raises: one error for each way in which the API refuses, with cause and remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from cutline.services.client.rest.models import Command


class ApiError(Exception):
    """The API refused a request, or could not be asked.

    `status` is the HTTP status, 0 without an answer; `cause` what happened, `remedy` what to do, `code` the kind of
    the cause if docs/causes.md has it; `errors` has each fault of the request (`field`, `detail`, `remedy`, `code`).
    """

    def __init__(
        self,
        cause: str,
        *,
        remedy: str | None = None,
        code: str | None = None,
        status: int = 0,
        request_id: str | None = None,
        errors: tuple[dict[str, Any], ...] = (),
    ) -> None:
        """Take the fields of the API's problem."""
        super().__init__(f"{cause}; {remedy}" if remedy else cause)
        self.cause, self.remedy, self.code, self.status = cause, remedy, code, status
        self.request_id, self.errors = request_id, errors


class WrongRequest(ApiError):
    """The request is wrong: a field, its type, or the body as a whole (400, 413, 415, 422)."""


class Unauthorized(ApiError):
    """There is no token, or it is unknown, expired or revoked (401)."""


class Forbidden(ApiError):
    """The token's role does not allow this (403)."""


class NotFound(ApiError):
    """There is no such thing (404)."""


class Conflict(ApiError):
    """The request makes no sense now, or contradicts what there is (409)."""


class PreconditionFailed(ApiError):
    """Another change was faster: read it again, and repeat (412)."""


class ServiceUnavailable(ApiError):
    """The control service, Redis or the store can't answer now; the same request may succeed later (502 to 504)."""


class Unreachable(ApiError):
    """The control service did not answer."""


class CommandFailed(ApiError):
    """A command was refused by the pipeline's leader, or failed; `command` is its last state."""

    def __init__(self, command: Command) -> None:
        """Take the finished command."""
        cause = f"command {command.number} ({command.kind}) was {command.state}: {command.cause or 'no cause given'}"
        super().__init__(cause, remedy=command.remedy, status=409)
        self.command = command


class TimedOut(ApiError):
    """A command was not finished within the time; it is not lost, and goes on."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: WrongRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: WrongRequest,
    415: WrongRequest,
    422: WrongRequest,
    502: ServiceUnavailable,
    503: ServiceUnavailable,
    504: ServiceUnavailable,
}


def error_of(response: httpx.Response) -> ApiError:
    """The error that this answer, whose body is read, stands for."""
    kind = _BY_STATUS.get(response.status_code, ApiError)
    try:
        problem = response.json()
        cause = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        problem, cause = {}, f"{response.request.url.host} answered {response.status_code} {response.reason_phrase}"
    return kind(
        cause,
        remedy=problem.get("remedy"),
        code=problem.get("code"),
        status=response.status_code,
        request_id=problem.get("request_id") or response.headers.get("X-Request-Id"),
        errors=tuple(problem.get("errors") or ()),
    )


def unreachable(base_url: str, error: httpx.HTTPError) -> Unreachable:
    """The error of a request without an answer."""
    return Unreachable(
        f"the control service at {base_url} did not answer ({error or type(error).__name__})",
        remedy="check the URL, and that the service runs",
    )
