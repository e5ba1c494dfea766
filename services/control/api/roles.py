"""Who asks, and what they may do: viewer (reads), operator (live operations), admin (definitions, tokens, audit)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cutline.services.control.api.problems import Refused

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request: a token's or a person's name, the role, and by which means it was proved.

    `by` is the id of a token, or the issuer's subject. `expires_at` in seconds since 1970, None: never.
    """

    name: str
    role: Role
    means: Literal["token", "environment", "oidc", "local"]
    by: str | None = None
    expires_at: float | None = None

    def may(self, needed: Role) -> bool:
        """Whether this role includes the needed one."""
        return ROLES.index(self.role) >= ROLES.index(needed)


def need(caller: Caller, needed: Role) -> None:
    """Raise the refusal (403) if this caller may not do what needs that role."""
    if not caller.may(needed):
        raise Refused(
            403,
            f"this needs the role {needed}, and {caller.name} is {caller.role}",
            f"use a token with the role {needed}, which an admin makes by POST /v1/tokens",
        )
