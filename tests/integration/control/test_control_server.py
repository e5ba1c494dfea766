"""The control service as a process, over HTTP: its first token, TLS, and pipelines made from a real source."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cutline.services.control.api.source_threads import OF_ONE
from tests.support.control_server import ControlServer
from tests.support.databases import MariaDB
from tests.support.redis_servers import Redis
from tests.support.server_process import HOST
from tests.support.stalling import Handshake, StallingWire

Start = Callable[..., ControlServer]


@pytest.fixture
def start(redis_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start a control service over one store; all of them end with the test."""
    running: list[ControlServer] = []

    def begin(**settings: Any) -> ControlServer:
        server = ControlServer(redis_url=redis_url, store_url=f"file://{tmp_path}/store", **settings)
        running.append(server)
        server.start()
        return server

    yield begin
    for server in running:
        server.close()


def until(met: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_only_the_first_start_prints_a_token_and_it_is_an_admins(start: Start) -> None:
    """1. The first service prints a token. 2. It restarts, and another one starts over the same store: none of them
    prints one. 3. The token is an admin's at both."""
    first = start()
    token = first.first_token
    assert token is not None
    first.restart()
    second = start()
    assert first.log.read_text().count("shown this once") == 1
    assert second.first_token is None
    for server in (first, second):
        with server.client(token) as client:
            assert client.get("/v1/me").json()["role"] == "admin"
            assert client.get("/v1/pipelines").json() == []
        assert httpx.get(f"{server.url}/v1/pipelines").status_code == 401


def test_the_service_of_cutline_run_needs_no_token_on_loopback_unless_one_is_set(start: Start) -> None:
    with start(embedded=True).client() as client:
        assert client.get("/v1/me").json()["means"] == "local"
    with start(embedded=True, api_token="sesame").client() as client:
        assert client.get("/v1/me").status_code == 401


def certificate(folder: Path) -> ssl.SSLContext:
    """A new self-signed certificate in this folder, and what trusts it alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "control")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "cert.pem").write_bytes(pem)
    return ssl.create_default_context(cadata=pem.decode())


def test_tls_is_served_and_a_renewed_certificate_is_taken_without_a_restart(start: Start, tmp_path: Path) -> None:
    trusted = certificate(tmp_path)
    server = start(api_cert=tmp_path / "cert.pem", api_key=tmp_path / "key.pem", api_token="sesame")
    with server.client("sesame", verify=trusted) as client:
        assert client.get("/v1/me").status_code == 200
    renewed = certificate(tmp_path)

    def is_renewed() -> bool:
        try:
            return httpx.get(f"{server.url}/healthz", verify=renewed).status_code == 200
        except httpx.ConnectError:
            return False

    until(is_renewed)


# With a real source


@pytest.fixture
def shop(mariadb: MariaDB, fresh_database: Callable[[MariaDB], str]) -> str:
    """A database with a table, one without a key, and one more that no test captures at first."""
    name = fresh_database(mariadb)
    columns = "id INT PRIMARY KEY, flag TINYINT(1), total DECIMAL(10,2), at TIMESTAMP"
    mariadb.execute(f"CREATE TABLE {name}.orders ({columns})")
    mariadb.execute(f"CREATE TABLE {name}.log (line TEXT)")
    mariadb.execute(f"CREATE TABLE {name}.people (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(20))")
    mariadb.execute(f"INSERT INTO {name}.orders VALUES (1, 1, 2.5, NOW()), (2, 0, 3, NOW())")
    return name


@pytest.fixture
def definition(mariadb: MariaDB, shop: str, tmp_path: Path) -> dict[str, Any]:
    secret = tmp_path / "password"
    secret.write_text(mariadb.password)
    source = {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user, "password_file": str(secret)}
    return {
        "name": shop,
        "source": source,
        "tables": [f"{shop}.orders", f"{shop}.log"],
        "sink": {"warehouse": str(tmp_path / "lake")},
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def api(redis_server: Redis, store: Path) -> Iterator[httpx.Client]:
    """A client of one service for all tests below, each of which has a pipeline of its own name."""
    settings = {"store_url": f"file://{store}", "api_token": "sesame", "secrets": store.parent}
    with ControlServer(redis_url=redis_server.url, **settings) as server, server.client("sesame") as client:
        yield client


def names(api: httpx.Client) -> list[str]:
    return [pipeline["name"] for pipeline in api.get("/v1/pipelines").json()]


def test_a_dry_run_says_what_a_pipeline_would_do_and_makes_nothing(
    api: httpx.Client, definition: dict[str, Any], shop: str
) -> None:
    plan = api.post("/v1/pipelines?dry_run=true", json=definition).json()
    assert (plan["possible"], plan["exists"], plan["version"]) == (True, False, 0)
    assert {(finding["check"], finding["ok"]) for finding in plan["findings"]} == {
        ("connection", True),
        ("retention", True),
        ("tables", True),
        ("table", False),
        ("server and lake", True),
    }
    (held,) = [finding for finding in plan["findings"] if not finding["ok"]]
    assert (held["table"], "no identity" in held["found"], bool(held["remedy"])) == (f"{shop}.log", True, True)
    tables = {table["table"]: table for table in plan["tables"]}
    assert (tables[f"{shop}.orders"]["action"], tables[f"{shop}.orders"]["key"]) == ("read", ["id"])
    assert tables[f"{shop}.log"]["action"] == "quarantine"
    assert plan["rows"] == 2
    wrong = {**definition, "tables": ["nothing.*"], "source": {**definition["source"], "user": "nobody"}}
    plan = api.post("/v1/pipelines?dry_run=true", json=wrong).json()
    assert (plan["possible"], [finding["check"] for finding in plan["findings"]]) == (False, ["connection"])
    assert shop not in names(api)


def test_a_pipeline_is_made_once_and_the_same_content_again_is_the_same_pipeline(
    api: httpx.Client, definition: dict[str, Any], mariadb: MariaDB, shop: str, store: Path
) -> None:
    made = api.post("/v1/pipelines", json=definition)
    assert (made.status_code, made.headers["location"], made.json()["version"]) == (201, f"/v1/pipelines/{shop}", 1)
    headers = {"Content-Type": "application/yaml"}
    same = api.post("/v1/pipelines", content=yaml.safe_dump(definition), headers=headers)
    assert (same.status_code, same.json()["definition"]) == (200, made.json()["definition"])
    other = api.post("/v1/pipelines", json={**definition, "checkpoint": {"interval_seconds": 3}})
    assert (other.status_code, "checkpoint.interval_seconds" in other.json()["detail"]) == (409, True)
    for answer in (made, same, other, api.get("/v1/pipelines"), api.get("/v1/audit")):
        assert mariadb.password not in answer.text
    stored = [path for path in store.rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if mariadb.password in path.read_text()]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tables": ["nothing.*"]}, ["matches none"]),
        ({"source": {"user": "nobody"}}, ["was refused"]),
        ({"source": {"port": 1}}, ["did not answer"]),
        ({"source": {"password_file": "/nothing"}}, ["no file that requests may use", "CUTLINE_SECRETS"]),
    ],
)
def test_a_pipeline_that_could_not_run_is_refused_with_each_fault(
    api: httpx.Client, definition: dict[str, Any], change: dict[str, Any], words: list[str]
) -> None:
    wrong = {**definition, **change}
    if "source" in change:
        wrong["source"] = {**definition["source"], **change["source"]}
    answer = api.post("/v1/pipelines", json=wrong)
    assert answer.status_code == 422
    assert all(word in answer.text for word in words), answer.text
    assert definition["name"] not in names(api)


def test_a_change_is_planned_against_the_running_definition(
    api: httpx.Client, definition: dict[str, Any], shop: str
) -> None:
    api.post("/v1/pipelines", json=definition)
    patch = {"tables": [f"{shop}.*"], "keyless": "append", "checkpoint": {"interval_seconds": 3.0}}
    headers = {"Content-Type": "application/merge-patch+json"}
    plan = api.post(f"/v1/pipelines/{shop}/plan", json=patch, headers=headers).json()
    assert (plan["possible"], plan["exists"], plan["version"]) == (False, True, 1)
    changes = {change["key"]: change["possible"] for change in plan["changes"]}
    assert changes == {"checkpoint.interval_seconds": True, "keyless": False, "tables": True}
    assert f"{shop}.people" in [table["table"] for table in plan["tables"]]


def test_a_table_is_added_only_if_the_source_has_it(api: httpx.Client, definition: dict[str, Any], shop: str) -> None:
    api.post("/v1/pipelines", json=definition)
    missing = api.post(f"/v1/pipelines/{shop}/tables", json={"table": f"{shop}.nothing"})
    assert (missing.status_code, f"{shop}.nothing" in missing.json()["detail"]) == (409, True)
    known = api.post(f"/v1/pipelines/{shop}/tables", json={"table": f"{shop}.orders"})
    assert (known.status_code, "already" in known.json()["detail"]) == (409, True)
    added = api.post(f"/v1/pipelines/{shop}/tables", json={"table": f"{shop}.people"})
    assert added.status_code == 202
    assert added.json()["arguments"]["definition"]["tables"][-1] == f"{shop}.people"


def test_a_form_is_helped_with_the_sources_schemas_tables_and_columns(
    api: httpx.Client, definition: dict[str, Any], shop: str
) -> None:
    body = {"source": definition["source"]}
    tested = api.post("/v1/source/test", json=body).json()
    assert (tested["ok"], tested["server"].startswith("MariaDB "), tested["faults"]) == (True, True, [])
    schemas = {each["name"]: each["tables"] for each in api.post("/v1/source/schemas", json=body).json()}
    assert schemas[shop] == 3
    asked = {**body, "tables": [f"{shop}.*"], "values": {"tinyint1": "boolean", "bigint_unsigned": "long"}}
    tables = {each["table"]: each for each in api.post("/v1/source/tables", json=asked).json()}
    columns = {column["name"]: column["lake_type"] for column in tables[f"{shop}.orders"]["columns"]}
    assert columns == {"id": "int", "flag": "boolean", "total": "decimal(10, 2)", "at": "timestamptz"}
    assert tables[f"{shop}.log"]["faults"][0]["remedy"]
    assert tables[f"{shop}.people"]["key"] == ["id"]
    page = api.post("/v1/source/tables?limit=1", json=asked)
    assert ([each["table"] for each in page.json()], "next" in page.links) == ([f"{shop}.log"], True)
    wrong = {"source": {**definition["source"], "user": "nobody"}}
    assert api.post("/v1/source/test", json=wrong).json()["faults"][0]["remedy"]
    assert api.post("/v1/source/schemas", json=wrong).status_code == 422


def test_sources_that_hang_hold_up_no_call_that_does_not_ask_them(
    api: httpx.Client, definition: dict[str, Any], mariadb: MariaDB
) -> None:
    """1. More checks than may run are asked of three sources that hang, each in its own way: those beyond the bound for
    one source are refused. 2. Another source is checked, planned for, and made a pipeline of, and the API answers, as
    before. 3. The checks that hang end by themselves, and say which source did not answer."""
    source = definition["source"]
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(100))
        asked: dict[int, list[Future[httpx.Response]]] = {}
        for stall in get_args(Handshake):
            wire = stack.enter_context(StallingWire(mariadb.port).open())
            stack.enter_context(wire.stalled(stall))
            hung = {"source": {**source, "port": wire.port}}
            calls = {"/v1/source/test": hung, "/v1/source/schemas": hung, "/v1/pipelines": {**definition, **hung}}
            more = [(path, body) for path, body in calls.items() for _ in range(OF_ONE)]
            asked[wire.port] = [pool.submit(api.post, path, json=body) for path, body in more]
        begun = time.monotonic()
        for port, calls_of_one in asked.items():
            until(lambda calls=calls_of_one: sum(each.done() for each in calls) == 2 * OF_ONE, 10)
            refused = [each.result() for each in calls_of_one if each.done()]
            assert {each.status_code for each in refused} == {503}
            assert all(f"{OF_ONE} checks of {HOST}:{port} are running" in each.text for each in refused)
        for path in ("/v1/me", "/readyz", "/v1/pipelines"):
            assert api.get(path).status_code == 200
        assert api.post("/v1/source/test", json={"source": source}).json()["ok"]
        assert api.post("/v1/source/tables", json={"source": source}).status_code == 200
        assert api.post("/v1/pipelines?dry_run", json=definition).json()["possible"]
        assert api.post("/v1/pipelines", json=definition).status_code == 201
        assert time.monotonic() - begun < 15
        for port, calls_of_one in asked.items():
            ended = [answer for each in calls_of_one if (answer := each.result()).status_code != 503]
            assert len(ended) == OF_ONE
            assert {answer.status_code for answer in ended} <= {200, 422}
            assert all(f"{HOST}:{port}" in answer.text for answer in ended)
