"""Who may call the API: tokens, their ends, failed logins, JWTs, the audit log; real store, real issuer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from cutline.common.errors import ConfigError
from cutline.common.mesh.presence import Registry
from cutline.common.store.access import Token
from cutline.common.store.store import Store
from cutline.services.control.api.access import FAILURES, WINDOW_SECONDS, Access, first_token, new_token
from cutline.services.control.api.oidc import CLOCK_SECONDS, Oidc, roles_of
from cutline.services.control.api.roles import Role
from cutline.services.control.app import build
from tests.unit.test_control import DEFINITION, FakeRegistry

AUDIENCE = "cutline"


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"file://{tmp_path}")
    store.pipeline("shop").define(DEFINITION)
    return store


@pytest.fixture
def clock() -> Clock:
    return Clock()


def client(access: Access, store: Store, **keywords: Any) -> httpx.AsyncClient:
    app = build(cast(Registry, FakeRegistry()), store, access, **keywords)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")


@pytest.fixture
async def api(store: Store, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    async with client(Access(store.access, token="sesame", now=clock), store) as opened:
        yield opened


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def made(store: Store, role: Role, expires_at: float | None = None) -> str:
    text, token_id, sha256 = new_token()
    token = Token(id=token_id, name=f"the {role}", role=role, sha256=sha256, by="test", at=1.0, expires_at=expires_at)
    assert store.access.put_token(token)
    return text


def holding(folder: Path, text: str) -> list[Path]:
    """The files that have this text."""
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_text()]


async def test_a_token_is_shown_once_and_only_its_hash_is_kept(
    api: httpx.AsyncClient, store: Store, tmp_path: Path
) -> None:
    answer = await api.post("/v1/tokens", json={"name": "anna", "role": "operator"}, headers=bearer("sesame"))
    assert (answer.status_code, answer.json()["role"], answer.headers["cache-control"]) == (201, "operator", "no-store")
    token = answer.json()["token"]
    me = (await api.get("/v1/me", headers=bearer(token))).json()
    assert (me["name"], me["role"], me["means"]) == ("anna", "operator", "token")
    listed = await api.get("/v1/tokens", headers=bearer("sesame"))
    secret = token.rpartition("_")[2]
    assert "anna" in listed.text
    assert secret not in listed.text
    assert not holding(tmp_path, secret)


@pytest.mark.parametrize(
    ("role", "path", "status"),
    [
        ("viewer", "/v1/pipelines/shop/pause", 403),
        ("viewer", "/v1/tokens", 403),
        ("operator", "/v1/tokens", 403),
        ("operator", "/v1/pipelines", 403),
        ("operator", "/v1/pipelines/shop/pause", 202),
        ("admin", "/v1/pipelines/shop/pause", 202),
    ],
)
async def test_each_role_may_do_what_it_is_for_and_is_refused_before_its_body_is_read(
    api: httpx.AsyncClient, store: Store, role: Role, path: str, status: int
) -> None:
    headers = {**bearer(made(store, role)), "Content-Type": "application/json"}
    body = "{broken" if status == 403 else None
    answer = await api.post(path, content=body, headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert f"the {role}" in answer.json()["detail"]
        assert answer.json()["remedy"]
    assert (await api.get("/v1/pipelines/shop", headers=headers)).status_code == 200


async def test_an_expired_a_revoked_and_a_forged_token_are_refused_with_the_cause(
    api: httpx.AsyncClient, store: Store, clock: Clock
) -> None:
    token = made(store, "viewer", expires_at=clock.now + 60)
    assert (await api.get("/v1/me", headers=bearer(token))).status_code == 200
    clock.now += 61
    answer = await api.get("/v1/me", headers=bearer(token))
    assert (answer.status_code, "expired" in answer.json()["detail"]) == (401, True)
    token = made(store, "viewer")
    forged = f"{token[:-4]}0000"
    assert (await api.get("/v1/me", headers=bearer(token))).status_code == 200
    assert (await api.get("/v1/me", headers=bearer(forged))).json()["detail"] == "the token is unknown"
    token_id = token.split("_")[1]
    assert (await api.delete(f"/v1/tokens/{token_id}", headers=bearer("sesame"))).status_code == 204
    answer = await api.get("/v1/me", headers=bearer(token))
    assert (answer.status_code, "revoked" in answer.json()["detail"]) == (401, True)
    assert (await api.delete("/v1/tokens/..%2Fx", headers=bearer("sesame"))).status_code == 404


async def test_a_token_that_another_service_revoked_ends_within_seconds(
    store: Store, clock: Clock
) -> None:
    token = made(store, "viewer")
    access, other = (Access(store.access, token="sesame", now=clock) for _ in range(2))
    async with client(access, store) as api, client(other, store) as second:
        assert (await api.get("/v1/me", headers=bearer(token))).status_code == 200
        await second.delete(f"/v1/tokens/{token.split('_')[1]}", headers=bearer("sesame"))
        clock.now += 6
        assert (await api.get("/v1/me", headers=bearer(token))).status_code == 401


async def test_too_many_wrong_tokens_are_answered_429_but_a_right_one_of_the_same_address_passes(
    api: httpx.AsyncClient, store: Store, clock: Clock
) -> None:
    """A token that has ended is no guess: it doesn't count, and its cause is told. CUTLINE_API_TOKEN may be one."""
    ended = made(store, "viewer", expires_at=clock.now - 1)
    for _ in range(FAILURES):
        assert (await api.get("/v1/me", headers=bearer(ended))).status_code == 401
    for _ in range(FAILURES):
        assert (await api.get("/v1/me", headers=bearer("wrong"))).status_code == 401
    answer = await api.get("/v1/me", headers=bearer("wrong"))
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= WINDOW_SECONDS
    assert (await api.get("/v1/me", headers=bearer(made(store, "viewer")))).status_code == 200
    assert (await api.get("/v1/me", headers=bearer("sesame"))).status_code == 429
    assert "expired" in (await api.get("/v1/me", headers=bearer(ended))).json()["detail"]
    assert (await api.get("/v1/me")).status_code == 401  # no login at all
    clock.now += WINDOW_SECONDS + 1
    assert (await api.get("/v1/me", headers=bearer("sesame"))).status_code == 200
    for _ in range(FAILURES):
        await api.get("/v1/me", headers=bearer("wrong"))
    assert (await api.get("/v1/me", headers=bearer("wrong"))).status_code == 429
    assert (await api.get("/v1/me", headers=bearer("sesame"))).status_code == 200  # this address is known to have it


async def test_only_the_first_of_two_services_makes_the_first_token(store: Store) -> None:
    token = first_token(store.access, 1.0)
    assert token is not None
    assert first_token(store.access, 2.0) is None
    async with client(Access(store.access), store) as api:
        assert (await api.get("/v1/me", headers=bearer(token))).json()["role"] == "admin"


async def test_metrics_need_a_token_unless_they_are_open(store: Store) -> None:
    async with client(Access(store.access), store) as api:
        assert (await api.get("/metrics")).status_code == 401
    async with client(Access(store.access), store, metrics_open=True) as api:
        assert (await api.get("/metrics")).status_code == 200
        assert (await api.get("/v1/services")).status_code == 401


async def test_without_tokens_a_page_of_another_site_can_neither_act_nor_read(store: Store) -> None:
    async with client(Access(store.access, open_here=True), store) as api:
        path = "/v1/pipelines/shop/pause"
        answer = await api.post(path, headers={"Origin": "http://evil.example"})
        assert (answer.status_code, "evil.example" in answer.json()["detail"]) == (403, True)
        rebound = await api.get("/v1/pipelines", headers={"Host": "evil.example"})
        assert (rebound.status_code, rebound.json()["remedy"] is not None) == (403, True)
        assert (await api.post(path, headers={"Origin": "http://localhost"})).status_code == 202
        assert "access-control-allow-origin" not in (await api.get("/v1/me", headers={"Origin": "http://a"})).headers


async def test_every_call_that_changes_something_is_in_the_audit_log_also_if_it_was_refused(
    api: httpx.AsyncClient, store: Store
) -> None:
    viewer = made(store, "viewer")
    await api.post("/v1/pipelines/shop/pause", headers={**bearer("sesame"), "X-Request-Id": "one"})
    await api.post("/v1/pipelines/shop/stop", headers=bearer(viewer))
    await api.post("/v1/pipelines/shop/stop", headers=bearer("wrong"))
    await api.get("/v1/pipelines", headers=bearer(viewer))
    found = (await api.get("/v1/audit", headers=bearer("sesame"))).json()
    assert [(each["by"], each["path"].rpartition("/")[2], each["status"]) for each in found] == [
        (None, "stop", 401),
        ("the viewer", "stop", 403),
        ("CUTLINE_API_TOKEN", "pause", 202),
    ]
    assert (found[2]["command"], found[2]["request_id"], found[2]["operation"]) == (1, "one", "pause")
    assert "viewer" in found[1]["cause"]
    first = await api.get("/v1/audit?limit=2", headers=bearer("sesame"))
    url = first.headers["link"].split(">")[0].removeprefix("<")
    rest = await api.get(url, headers=bearer("sesame"))
    assert ([*first.json(), *rest.json()], "link" in rest.headers) == (found, False)


# OIDC


class Issuer:
    """An OIDC issuer: its discovery document and its keys over HTTP."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.up = True
        self.asked = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                found = issuer.documents().get(self.path) if issuer.up else None
                self.send_response(200 if found else 503)
                self.end_headers()
                self.wfile.write(json.dumps(found or {}).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def documents(self) -> Mapping[str, Any]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        keys = [{**public, "kid": "k1", "use": "sig", "alg": "RS256"}]
        return {"/.well-known/openid-configuration": {"jwks_uri": f"{self.url}/keys"}, "/keys": {"keys": keys}}

    def token(self, key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        now = time.time()
        known = {"iss": self.url, "aud": AUDIENCE, "sub": "s1", "email": "anna@example.org", "exp": now + 300}
        found = {name: value for name, value in {**known, "roles": ["admin"], **claims}.items() if value is not None}
        return jwt.encode(found, self.key if key is None else key, algorithm=algorithm, headers={"kid": "k1"})

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    issuer.start()
    yield issuer
    issuer.stop()


@pytest.fixture
def with_oidc(issuer: Issuer, store: Store) -> Callable[..., httpx.AsyncClient]:
    def opened(claim: str = "roles", roles: str = "") -> httpx.AsyncClient:
        oidc = Oidc(issuer=issuer.url, audience=AUDIENCE, keys_url=None, role_claim=claim, roles=roles_of(roles))
        return client(Access(store.access, oidc=oidc), store)

    return opened


async def test_a_jwt_of_the_issuer_is_a_caller_with_the_highest_role_of_its_claim(
    issuer: Issuer, with_oidc: Callable[..., httpx.AsyncClient]
) -> None:
    async with with_oidc() as api:
        me = (await api.get("/v1/me", headers=bearer(issuer.token(roles=["viewer", "operator", "other"])))).json()
        assert (me["name"], me["role"], me["means"]) == ("anna@example.org", "operator", "oidc")
    asked = issuer.asked
    async with with_oidc("realm.groups", "admin=platform, viewer=everyone") as api:
        for _ in range(5):
            token = issuer.token(roles=None, realm={"groups": ["everyone", "platform"]})
            assert (await api.get("/v1/me", headers=bearer(token))).json()["role"] == "admin"
    assert issuer.asked == asked + 2  # its document and its keys, once


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"exp": -CLOCK_SECONDS - 60}, 401),
        ({"exp": None}, 401),
        ({"aud": "another"}, 401),
        ({"iss": "https://elsewhere.example"}, 401),
        ({"nbf": CLOCK_SECONDS + 600}, 401),
        ({"roles": ["none"]}, 403),
        ({"roles": {"admin": 1}}, 403),
    ],
)
async def test_a_jwt_with_a_wrong_claim_is_refused_with_the_cause(
    issuer: Issuer, with_oidc: Callable[..., httpx.AsyncClient], claims: dict[str, Any], status: int
) -> None:
    # Times are seconds from now: a test may run long after it was collected.
    claims = {name: time.time() + value if type(value) in (int, float) else value for name, value in claims.items()}
    async with with_oidc() as api:
        answer = await api.get("/v1/me", headers=bearer(issuer.token(**claims)))
    assert (answer.status_code, bool(answer.json()["remedy"])) == (status, True)


async def test_clocks_may_differ_by_a_minute(issuer: Issuer, with_oidc: Callable[..., httpx.AsyncClient]) -> None:
    async with with_oidc() as api:
        token = issuer.token(exp=time.time() - CLOCK_SECONDS / 2)
        assert (await api.get("/v1/me", headers=bearer(token))).status_code == 200


async def test_a_jwt_signed_by_another_key_by_a_shared_secret_or_not_at_all_is_refused(
    issuer: Issuer, with_oidc: Callable[..., httpx.AsyncClient]
) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forged = [issuer.token(key=other), issuer.token(key="x" * 64, algorithm="HS256")]
    forged.append(issuer.token(key="", algorithm="none"))
    async with with_oidc() as api:
        for token in forged:
            assert (await api.get("/v1/me", headers=bearer(token))).status_code == 401


async def test_an_issuer_that_does_not_answer_is_503_and_only_at_first(
    issuer: Issuer, with_oidc: Callable[..., httpx.AsyncClient]
) -> None:
    async with with_oidc() as api:
        issuer.up = False
        answer = await api.get("/v1/me", headers=bearer(issuer.token()))
        assert (answer.status_code, issuer.url in answer.json()["detail"]) == (503, True)
        issuer.up = True
        assert (await api.get("/v1/me", headers=bearer(issuer.token()))).status_code == 200
        issuer.up = False
        assert (await api.get("/v1/me", headers=bearer(issuer.token()))).status_code == 200


def test_a_role_that_does_not_exist_is_refused_at_the_start() -> None:
    assert roles_of("admin=a,viewer = b") == {"a": "admin", "b": "viewer"}
    with pytest.raises(ConfigError, match="CUTLINE_OIDC_ROLES has 'root=a'"):
        roles_of("root=a")
