"""Callers with a JWT of an OIDC issuer: checked against the issuer's keys, with the role in a claim.

Only signatures by public keys are accepted, so nobody can sign with a key that is not a secret. The keys are fetched at
the first use, then every five minutes, and at most twice a minute for a key that is not among them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
from jwt import PyJWKClient
from jwt.exceptions import PyJWKClientConnectionError

from cutline.common.errors import ConfigError, Unavailable
from cutline.common.threads import Threads
from cutline.common.web import fetched
from cutline.services.control.api.problems import Refused
from cutline.services.control.api.roles import ROLES, Caller, Role

CLOCK_SECONDS = 60
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TIMEOUT_SECONDS = 10
_ISSUER = Threads("issuer", 4)  # an issuer that hangs holds up the callers with a JWT, and nobody else


class _Keys(PyJWKClient):
    """The issuer's keys, fetched by common/web.py."""

    def fetch_data(self) -> Any:
        """Fetch the keys and keep them for a while."""
        try:
            found = self._as_jwk_set_payload(fetched(self.uri, seconds=_TIMEOUT_SECONDS))
        except (OSError, ValueError) as error:
            raise PyJWKClientConnectionError(f"the keys can't be fetched ({error})") from error
        if self.jwk_set_cache is not None:
            self.jwk_set_cache.put(found)
        self._last_successful_fetch = time.monotonic()
        return found


class Oidc:
    """One issuer."""

    def __init__(
        self, *, issuer: str, audience: str, keys_url: str | None, role_claim: str, roles: Mapping[str, Role]
    ) -> None:
        """Take the issuer and the audience that a JWT must name, the address of the keys (None: from the issuer's
        discovery document), the claim with the role (dots between its parts), and the role of each value of it."""
        self._issuer = issuer
        self._audience = audience
        self._keys_url = keys_url
        self._role_claim = role_claim
        self._roles = roles
        self._keys: PyJWKClient | None = None

    async def caller(self, token: str) -> Caller:
        """The person of a JWT. Raises Refused: 401, or 403 without a role; Unavailable without the keys."""
        return await _ISSUER.call(self._caller, token)

    def _caller(self, token: str) -> Caller:
        try:
            key = self._client().get_signing_key_from_jwt(token)
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=CLOCK_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (PyJWKClientConnectionError, OSError) as error:
            raise Unavailable(
                f"the keys of {self._issuer} can't be fetched ({error})", "check CUTLINE_OIDC_ISSUER and the network"
            ) from error
        except (jwt.PyJWTError, ValueError) as error:
            raise Refused(
                401,
                f"the JWT was not accepted ({error})",
                "log in again at the issuer",
                headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
            ) from error
        name = claims.get("preferred_username") or claims.get("email") or claims["sub"]
        role = self._role(claims)
        if role is None:
            raise Refused(
                403,
                f"the JWT of {name} has no role in its claim {self._role_claim}",
                "have the issuer put one of the values of CUTLINE_OIDC_ROLES there",
            )
        return Caller(name=str(name), role=role, means="oidc", by=claims["sub"], expires_at=float(claims["exp"]))

    def _client(self) -> PyJWKClient:
        if self._keys is None:
            self._keys = _Keys(self._keys_url or self._discovered())
        return self._keys

    def _discovered(self) -> str:
        address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        return str(fetched(address, seconds=_TIMEOUT_SECONDS)["jwks_uri"])

    def _role(self, claims: Mapping[str, Any]) -> Role | None:
        """The highest role that the claim gives."""
        value: Any = claims
        for part in self._role_claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        given = [self._roles[item] for item in values if isinstance(item, str) and item in self._roles]
        return max(given, key=ROLES.index, default=None)


def roles_of(text: str) -> dict[str, Role]:
    """The role of each value of the claim: "admin=platform, viewer=everyone" -> {"platform": "admin", ...}.

    Empty: each role is its own value. Raises ConfigError.
    """
    found: dict[str, Role] = {} if text else {role: role for role in ROLES}
    for item in filter(None, (part.strip() for part in text.split(","))):
        role, _, value = (part.strip() for part in item.partition("="))
        if role not in ROLES or not value:
            raise ConfigError(
                f"CUTLINE_OIDC_ROLES has {item!r}, which is not ROLE=VALUE with one of {', '.join(ROLES)}", "correct it"
            )
        found[value] = role
    return found
