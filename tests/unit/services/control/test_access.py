"""Who may call the API: tokens, their ends, failed logins, JWTs, the audit log; real store, real issuer."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from cutline.common.errors import ConfigError
from cutline.common.mesh.presence import Registry
from cutline.common.store.access import Revocation, Token, audit_key
from cutline.common.store.store import Store
from cutline.services.control.api.access import FAILURES, WINDOW_SECONDS, Access, first_token, new_token
from cutline.services.control.api.audit_log import AuditLog
from cutline.services.control.api.oidc import CLOCK_SECONDS, Oidc, roles_of
from cutline.services.control.api.roles import Role
from cutline.services.control.app import build
from tests.support.control_api import DEFINITION, FakeRegistry

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
    assert (await api.get("/v1/me")).status_code == 429
    clock.now += WINDOW_SECONDS + 1
    assert (await api.get("/v1/me", headers=bearer("sesame"))).status_code == 200
    for _ in range(FAILURES):
        await api.get("/v1/me", headers=bearer("wrong"))
    assert (await api.get("/v1/me", headers=bearer("wrong"))).status_code == 429
    assert (await api.get("/v1/me", headers=bearer("sesame"))).status_code == 200  # this address is known to have it


async def test_a_missing_token_counts_as_a_failure_of_its_address_and_locks_nobody_out(
    store: Store, clock: Clock
) -> None:
    """IPv6 counts by /64, since a client may choose the rest; IPv4 by address, also where it comes mapped to IPv6."""
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, token="sesame", now=clock))

    async def status(address: str, headers: dict[str, str] | None = None) -> tuple[int, str | None]:
        transport = httpx.ASGITransport(app=app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as api:
            answer = await api.get("/v1/me", headers=headers)
            return answer.status_code, answer.headers.get("retry-after")

    for number in range(FAILURES):
        assert (await status(f"2001:db8::{number}"))[0] == 401
        assert (await status("::ffff:10.0.0.7" if number % 2 else "10.0.0.7"))[0] == 401
    for address in ("2001:db8::ffff", "10.0.0.7"):
        found, retry = await status(address)
        assert (found, 0 < int(retry or 0) <= WINDOW_SECONDS) == (429, True)
        assert (await status(address, bearer("wrong")))[0] == 429
        assert (await status(address, bearer("sesame")))[0] == 200
        assert (await status(address, bearer(made(store, "viewer"))))[0] == 200
    assert (await status("2001:db8:0:1::1"))[0] == 401
    clock.now += WINDOW_SECONDS + 1
    assert (await status("10.0.0.7"))[0] == 401


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


def test_keys_of_the_audit_log_are_in_the_order_of_calls_within_a_millisecond() -> None:
    keys = [audit_key(1_800_000_000.25 + number / 1_000_000) for number in range(3000)]
    assert keys == sorted(keys)


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


def kept(folder: Path) -> tuple[int, int]:
    """How many files the audit log has, and their bytes."""
    found = [path for path in (folder / ".access").rglob("*") if path.is_file() and "tokens" not in path.parts]
    return len(found), sum(path.stat().st_size for path in found)


async def audited(app: Any, log: AuditLog, calls: int, *, query: str = "", token: str | None = None) -> None:
    """Send that many calls that are refused, and write what waits after each hundredth."""
    headers = bearer(token) if token else {}
    transport = httpx.ASGITransport(app=app, client=("203.0.113.9", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as api:
        for number in range(calls):
            answer = await api.post(f"/v1/pipelines/shop/pause?{query}", headers=headers)
            assert answer.status_code in (401, 403, 429)
            if number % 100 == 99:
                await log.look(ending=True)


async def test_a_thousand_refused_calls_with_long_queries_cost_a_few_kilobytes_and_no_call_that_was_made(
    store: Store, tmp_path: Path
) -> None:
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, token="sesame"))
    log: AuditLog = app.state.control.audit
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as api:
        assert (await api.post("/v1/pipelines/shop/pause", headers=bearer("sesame"))).status_code == 202
        files, size = kept(tmp_path)
        await audited(app, log, 1000, query="q" * 2_000)
        more, bytes_now = kept(tmp_path)
        assert more - files <= 10
        assert bytes_now - size < 50_000
        found = (await api.get("/v1/audit?limit=1000", headers=bearer("sesame"))).json()
        assert sum(call["count"] for call in found) == 1001
        assert found[-1]["status"] == 202
        assert [call["count"] for call in found if call["status"] == 429] == [100] * 9 + [90]
        assert all(len(call["query"]) <= 100 for call in found)


async def test_refused_calls_of_strangers_push_out_those_of_nobody_else(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutline.common.store.access.KEPT_BATCHES", 3)
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, token="sesame"))
    log: AuditLog = app.state.control.audit
    await audited(app, log, 100, token=made(store, "viewer"))
    await audited(app, log, 800)
    await log.look()
    found = [call for _, call in store.access.logged(limit=1000)]
    assert sum(call["count"] for call in found if call["by"] == "the viewer") == 100
    assert sum(call["count"] for call in found if call["by"] is None) == 300
    assert kept(tmp_path)[0] == 4


async def test_calls_of_many_addresses_are_one_entry_a_status_beyond_the_first(store: Store) -> None:
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, token="sesame"))
    for number in range(200):
        transport = httpx.ASGITransport(app=app, client=(f"10.0.0.{number}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as api:
            assert (await api.post("/v1/pipelines/shop/pause")).status_code == 401
    await app.state.control.audit.look(ending=True)
    found = [call for _, call in store.access.logged(limit=1000)]
    assert [call["count"] for call in found if call["address"] == "(others)"] == [160]
    assert len(found) == 41


def test_the_audit_log_is_bounded_by_age_and_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutline.common.store.access.KEPT_CALLS", 5)
    day = 86_400.0
    now = 500 * day
    for at in (*(now - 401 * day + i for i in range(3)), *(now - i * day for i in range(8))):
        store.access.log(at, {"n": at})
    store.access.rotate(now)
    assert [body["at"] for _, body in store.access.logged(limit=100)] == [now - i * day for i in range(5)]


def test_pages_of_the_audit_log_have_each_record_once_in_the_order_of_time(store: Store) -> None:
    rng = random.Random(1)
    times = [1_700_000_000 + rng.randrange(200_000) + number / 1000 for number in range(300)]
    for start in range(0, 300, 10):
        some = sorted((audit_key(at), {"at": at}) for at in times[start : start + 10])
        if start % 3 == 0:
            for _, body in some:
                store.access.log(body["at"], body)
        else:
            store.access.log_refused("denied" if start % 3 == 1 else "strangers", some)
    found: list[float] = []
    before: str | None = None
    while page := store.access.logged(before=before, limit=7):
        found += [body["at"] for _, body in page]
        before = page[-1][0]
    assert [round(at * 1000) for at in found] == sorted((round(at * 1000) for at in times), reverse=True)


# streams


class Stream:
    """A stream of events over ASGI, without a client of HTTP that waits for its end."""

    def __init__(self, app: Any, token: str) -> None:
        self.status = 0
        self._began, self.ended = asyncio.Event(), asyncio.Event()
        self._gone = asyncio.Event()
        self._scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": "/v1/pipelines/shop/events", "raw_path": b"/v1/pipelines/shop/events", "root_path": "",
            "query_string": b"stream", "client": ("10.0.0.7", 1), "server": ("localhost", 80),
            "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())],
        }  # fmt: skip
        self.task = asyncio.create_task(app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._began.set()
        elif not message.get("more_body"):
            self.ended.set()

    async def opened(self) -> int:
        async with asyncio.timeout(10):
            await self._began.wait()
        return self.status

    async def close(self) -> None:
        self._gone.set()
        await asyncio.wait([self.task])


@pytest.mark.parametrize("how", ["revoked", "expired", "another role"])
async def test_a_stream_of_events_ends_within_five_seconds_of_its_token(
    store: Store, how: str, tmp_path: Path
) -> None:
    """Another control service revokes it, or a person changes its file: this one is asked nothing."""
    token = made(store, "viewer", expires_at=time.time() + 2 if how == "expired" else None)
    token_id = token.split("_")[1]
    other = made(store, "viewer")
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access))
    stream, second = Stream(app, token), Stream(app, other)
    assert (await stream.opened(), await second.opened()) == (200, 200)
    if how == "revoked":
        store.access.revoke(token_id, Revocation(by="test", at=1.0))
    elif how == "another role":
        was = store.access.token(token_id)
        assert was is not None
        (tmp_path / f".access/tokens/{token_id}.json").unlink()
        store.access.put_token(replace(was, role="operator"))
    async with asyncio.timeout(5 + (2 if how == "expired" else 0)):
        await stream.ended.wait()
        await stream.task
    assert not second.ended.is_set()
    assert app.state.control.streams.total() == 1
    await second.close()


async def test_a_stream_ends_with_the_end_of_its_jwt(issuer: Issuer, store: Store) -> None:
    oidc = Oidc(issuer=issuer.url, audience=AUDIENCE, keys_url=None, role_claim="roles", roles=roles_of(""))
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, oidc=oidc))
    first = Stream(app, issuer.token())  # it fetches the keys
    assert await first.opened() == 200
    stream = Stream(app, issuer.token(exp=int(time.time()) + 4))
    assert await stream.opened() == 200
    async with asyncio.timeout(9):
        await stream.ended.wait()
    assert not first.ended.is_set()
    await first.close()


async def test_a_request_that_waits_is_refused_once_its_token_ended(store: Store) -> None:
    token = made(store, "viewer", expires_at=time.time() + 1)
    async with client(Access(store.access), store) as api, asyncio.timeout(6):
        answer = await api.get("/v1/pipelines/shop?wait=30s", headers=bearer(token))
    assert (answer.status_code, "expired" in answer.json()["detail"]) == (401, True)


async def test_a_token_has_a_bounded_number_of_streams(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutline.services.control.api.events.MOST", 2)
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access))
    token, other = made(store, "viewer"), made(store, "viewer")
    streams = [Stream(app, token) for _ in range(2)]
    assert [await stream.opened() for stream in streams] == [200, 200]
    third, others = Stream(app, token), Stream(app, other)
    assert (await third.opened(), await others.opened()) == (429, 200)
    await streams[0].close()
    again = Stream(app, token)
    assert await again.opened() == 200
    for stream in (streams[1], others, again):
        await stream.close()


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
