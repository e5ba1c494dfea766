"""What a request may name of the machine and the network of the control service."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cutline.common.config.addresses import barred, hosts_in
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.secrets import BY_DEFAULT, LONGEST_BYTES, Secrets
from cutline.common.errors import ConfigError
from cutline.common.mesh.presence import Registry
from cutline.common.store.store import Store
from cutline.services.control.api.access import Access
from cutline.services.control.app import build
from tests.support.control_api import FakeRegistry
from tests.support.rogue_server import RogueServer

SECRET = "what only this machine knows"


@pytest.fixture
def rogue() -> Iterator[RogueServer]:
    with RogueServer("caching_sha2_password").listening() as server:
        yield server


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that CUTLINE_SECRETS allows, beside files and variables that it does not."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "shop").write_text(SECRET)
    (tmp_path / "outside").write_text(SECRET)
    (tmp_path / "secrets-of-others").mkdir()
    (tmp_path / "secrets-of-others" / "shop").write_text(SECRET)
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "inner").symlink_to(folder / "shop")
    (folder / "folder").symlink_to(tmp_path)
    (folder / "large").write_bytes(b"x" * (LONGEST_BYTES + 1))
    os.mkfifo(folder / "fifo")
    for name in ("SHOP_PASSWORD", "AWS_SECRET_ACCESS_KEY", "CUTLINE_API_TOKEN", "CUTLINE_REDIS_SENTINEL_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    return folder


@pytest.fixture
async def api(tmp_path: Path, allowed: Path) -> AsyncIterator[httpx.AsyncClient]:
    store = Store(f"file://{tmp_path}/store")
    secrets = Secrets.parsed(f"{allowed}, SHOP_")
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, open_here=True), secrets=secrets)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as opened:
        yield opened


FORBIDDEN: list[dict[str, Any]] = [
    {"password_env": "AWS_SECRET_ACCESS_KEY"},
    {"password_env": "CUTLINE_API_TOKEN"},
    {"password_env": "CUTLINE_REDIS_SENTINEL_PASSWORD"},
    {"password_env": "SHOP_NOT_SET"},
    {"password_env": ""},
    {"password_file": "{folder}/../outside"},
    {"password_file": "{folder}/link"},
    {"password_file": "{folder}/folder/outside"},
    {"password_file": "{folder}/fifo"},
    {"password_file": "{folder}/large"},
    {"password_file": "{folder}/missing"},
    {"password_file": "{folder}"},
    {"password_file": "{folder}-of-others/shop"},
    {"password_file": "/proc/self/environ"},
    {"password_file": "/dev/zero"},
    {"password_file": "shop"},
    {"password_file": "{folder}/shop\0"},
    {"tls": {"mode": "verify-ca", "ca": "{folder}/../outside"}},
    {"tls": {"mode": "required", "cert": "/etc/passwd"}},
    {"tls": {"mode": "required", "cert": "{folder}/shop", "key": "/etc/passwd"}},
]


def filled(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: filled(inner, folder) for key, inner in value.items()}
    return value.replace("{folder}", str(folder))


def source(rogue: RogueServer, **more: Any) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": rogue.port, "user": "x", "tls": {"mode": "disabled"}, **more}


@pytest.mark.parametrize("named", FORBIDDEN, ids=str)
async def test_a_request_gets_no_secret_of_the_machine_and_does_not_learn_which_there_are(
    api: httpx.AsyncClient, rogue: RogueServer, allowed: Path, named: dict[str, Any]
) -> None:
    body = source(rogue, **filled(named, allowed))
    field = next(iter(named))
    if field == "tls":
        field = f"tls.{'ca' if 'ca' in named['tls'] else 'key' if 'key' in named['tls'] else 'cert'}"
    kind = "variable" if field == "password_env" else "file"
    sentence = f"source.{field} names no {kind} that requests may use"
    tested = (await api.post("/v1/source/test", json={"source": body})).json()
    assert (tested["ok"], [fault["detail"] for fault in tested["faults"]]) == (False, [sentence])
    pipeline = {"name": "shop", "source": body, "tables": ["a.*"], "sink": {"warehouse": "/tmp/never-made"}}
    for path, sent in (
        ("/v1/source/schemas", {"source": body}),
        ("/v1/source/tables", {"source": body}),
        ("/v1/pipelines", pipeline),
        ("/v1/pipelines?dry_run", pipeline),
    ):
        answer = await api.post(path, json=sent)
        assert answer.status_code == 422
        if named.get("password_file") != "shop" or "pipelines" not in path:  # a relative path is a fault of its own
            assert [fault["detail"] for fault in answer.json()["errors"]] == [sentence]
    assert not rogue.stolen
    assert not rogue.received


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ({"key_env": "AWS_SECRET_ACCESS_KEY"}, "variable"),
        ({"key_env": "SHOP_NOT_SET"}, "variable"),
        ({"key_file": "{folder}/../outside"}, "file"),
        ({"key_file": "{folder}/link"}, "file"),
    ],
)
async def test_a_request_gets_no_mask_key_but_those_that_the_setting_allows(
    api: httpx.AsyncClient, rogue: RogueServer, allowed: Path, tmp_path: Path, named: dict[str, str], kind: str
) -> None:
    body = {"name": "shop", "source": source(rogue), "tables": ["a.*"], "sink": {"warehouse": "/tmp/never-made"}}
    masking = filled(named, allowed)
    for path in ("/v1/pipelines", "/v1/pipelines?dry_run"):
        answer = await api.post(path, json={**body, "masking": masking})
        assert [fault["detail"] for fault in answer.json()["errors"]] == [
            f"masking.{next(iter(named))} names no {kind} that requests may use"
        ]
    definition = PipelineConfig.model_validate({**body, "masking": masking}).definition()
    Store(f"file://{tmp_path}/store").pipeline("shop").define(definition)
    kept = await api.patch("/v1/pipelines/shop", json={"checkpoint": {"interval_seconds": 5}})
    assert kept.status_code == 202  # what the stored definition names may stay
    assert not rogue.received


@pytest.mark.parametrize(
    ("allowed_modules", "module", "refused"),
    [(None, "shop_functions", False), (None, "os", True), (None, "os.path", True), (None, "os.x_functions", True),
     ("shop.*", "shop.rules", False), ("shop.*", "shop_functions", True), ("-", "shop_functions", True)],
)  # fmt: skip
async def test_a_request_may_name_only_modules_that_are_allowed(
    tmp_path: Path, rogue: RogueServer, allowed: Path, allowed_modules: str | None, module: str, refused: bool
) -> None:
    store = Store(f"file://{tmp_path}/store")
    secrets = Secrets.parsed("SHOP_", allowed_modules)
    app = build(cast(Registry, FakeRegistry()), store, Access(store.access, open_here=True), secrets=secrets)
    pipeline = {
        "name": "shop", "source": source(rogue, password_env="SHOP_PASSWORD"), "tables": ["a.*"],
        "sink": {"warehouse": "/tmp/never-made"}, "functions": {"f": {"call": f"{module}:f", "type": "int"}},
    }  # fmt: skip
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as opened:
        answer = await opened.post("/v1/pipelines?dry_run", json=pipeline)
    assert ("functions.f names no module that requests may use" in answer.text) is refused


async def test_a_relative_path_of_a_mask_key_is_refused(api: httpx.AsyncClient, rogue: RogueServer) -> None:
    body = {"name": "shop", "source": source(rogue), "tables": ["a.*"], "sink": {"warehouse": "/tmp/never-made"}}
    answer = await api.post("/v1/pipelines?dry_run", json={**body, "masking": {"key_file": "key"}})
    assert [fault["field"] for fault in answer.json()["errors"]] == ["masking.key_file"]


async def test_a_request_may_name_what_the_setting_allows(
    api: httpx.AsyncClient, rogue: RogueServer, allowed: Path
) -> None:
    for named in ({"password_env": "SHOP_PASSWORD"}, {"password_file": str(allowed / "inner")}):
        await api.post("/v1/source/test", json={"source": source(rogue, **named)})
        assert rogue.stolen.pop() == SECRET.encode()


async def test_a_change_may_keep_the_secret_of_the_stored_definition_but_not_send_it_elsewhere(
    api: httpx.AsyncClient, rogue: RogueServer, allowed: Path, tmp_path: Path
) -> None:
    definition = {
        "name": "shop",
        "source": {"host": "127.0.0.1", "port": 1, "user": "x", "password_file": str(allowed.parent / "outside")},
        "tables": ["a.*"],
        "sink": {"warehouse": "/tmp/never-made"},
    }
    store = Store(f"file://{tmp_path}/store")
    store.pipeline("shop").define(PipelineConfig.model_validate(definition).definition())
    path = "/v1/pipelines/shop"
    assert (await api.patch(path, json={"checkpoint": {"interval_seconds": 5}})).status_code == 202
    for change in ({"port": rogue.port}, {"hosts": [f"127.0.0.1:{rogue.port}"]}, {"tls": "required"}):
        for answer in (
            await api.patch(path, json={"source": change}),
            await api.post(f"{path}/plan", json={"source": change}),
        ):
            assert answer.status_code == 422
            assert "names no file that requests may use" in answer.json()["detail"]
    assert not rogue.received


async def test_all_that_listens_and_all_that_does_not_is_answered_alike(api: httpx.AsyncClient) -> None:
    """A closed port, a server that says nothing and ends, an HTTP server, and one that speaks nonsense."""
    spoken = (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n")
    greetings = (*spoken, b"\x03\0\0\0\x0ax\0", b"\xff" * 99)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = {closed.getsockname()[1]}
        doors = [socket.create_server(("127.0.0.1", 0)) for _ in greetings]
        threads = [
            threading.Thread(target=greet, args=(door, greeting), daemon=True)
            for door, greeting in zip(doors, greetings, strict=True)
        ]
        for thread in threads:
            thread.start()
        found = set()
        for port in ports | {door.getsockname()[1] for door in doors}:
            body = {"host": "127.0.0.1", "port": port, "user": "x", "tls": {"mode": "disabled"}}
            answer = await api.post("/v1/source/test", json={"source": body})
            found.add(answer.text.replace(str(port), "PORT"))
        for door in doors:
            door.shutdown(socket.SHUT_RDWR)
            door.close()
        for thread in threads:
            thread.join(10)
    assert len(found) == 1, found
    assert "did not answer as MySQL or MariaDB" in found.pop()


def greet(door: socket.socket, greeting: bytes) -> None:
    try:
        while True:
            client, _ = door.accept()
            with client:
                client.sendall(greeting)
    except OSError:
        return


@pytest.mark.parametrize(
    ("sink", "field"),
    [
        ({"type": "jdbc", "uri": "jdbc:h2:mem:x;INIT=RUNSCRIPT FROM 'http://x/y.sql'"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://db/lake?socketFactory=x.Y&socketFactoryArg=z"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://db/lake?allowLoadLocalInfile=true"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://address=(host=db)(queryInterceptors=x.Y)/lake"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://(autoDeserialize=true,host=db)/lake"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://db/lake?%71ueryInterceptors=x.Y"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://db/lake?ssl=0&propertiesTransform=x.Y"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://db/lake?ha.loadBalanceStrategy=x.Y"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://db/lake?loggerFile=/tmp/x"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://169.254.169.254/lake"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://db,[fe80::1]:5432/lake"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://address=(host=169.254.169.254)(port=80)/lake"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:postgresql:///lake?PGHOST=169.254.169.254"}, "uri"),
        ({"type": "jdbc", "uri": "jdbc:mysql://169%2e254.169.254/lake"}, "uri"),
        ({"type": "rest", "uri": "http://169.254.169.254/latest"}, "uri"),
        ({"type": "rest", "uri": "http://x@0xa9fea9fe/"}, "uri"),
        ({"type": "rest", "uri": "http://c/", "s3.endpoint": "http://[::ffff:169.254.169.254]"}, "s3.endpoint"),
        ({"type": "rest", "uri": "http://c/", "token": "env:AWS_SECRET_ACCESS_KEY"}, "token"),
        ({"catalog-impl": "org.evil.Catalog"}, "catalog-impl"),
        ({"type": "rest", "uri": "http://c/", "io-impl": "org.evil.IO"}, "io-impl"),
    ],
    ids=str,
)
async def test_a_catalogue_of_a_request_can_load_no_code_read_no_variable_and_reach_no_metadata(
    api: httpx.AsyncClient, sink: dict[str, Any], field: str
) -> None:
    body = {"host": "127.0.0.1", "port": 1, "user": "x"}
    pipeline = {"name": "shop", "source": body, "tables": ["a.*"], "sink": {"warehouse": "s3://b/w", "catalog": sink}}
    answer = await api.post("/v1/pipelines", json=pipeline)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, f"sink.catalog.{field}")
    assert answer.json()["errors"][0]["remedy"]


async def test_spark_properties_of_a_request_bring_no_code(api: httpx.AsyncClient) -> None:
    body = {"host": "127.0.0.1", "port": 1, "user": "x"}
    for key in ("spark.jars", "spark.jars.packages", "spark.driver.extraJavaOptions", "spark.executor.extraClassPath"):
        sink = {"warehouse": "/tmp/never-made", "spark": {key: "x"}}
        answer = await api.post("/v1/pipelines", json={"name": "shop", "source": body, "tables": ["a.*"], "sink": sink})
        assert answer.json()["errors"][0]["field"] == f"sink.spark.{key}"


@pytest.mark.parametrize("host", ["169.254.169.254", "169.254.0.1", "fe80::1", "::ffff:169.254.169.254", "2852039166"])
async def test_a_link_local_source_is_refused_before_it_is_called(api: httpx.AsyncClient, host: str) -> None:
    body = {"host": host, "port": 80, "user": "x"}
    answer = (await api.post("/v1/source/test", json={"source": body})).json()
    assert [fault["field"] for fault in answer["faults"]] == ["source.host"]


async def test_a_name_that_leads_to_a_link_local_address_only_later_gets_nothing(
    api: httpx.AsyncClient, rogue: RogueServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is looked at once connected, so a second answer of a name server changes nothing."""
    monkeypatch.setattr("cutline.services.sources.mysql.login.barred", lambda host: host == "127.0.0.1")
    answer = (await api.post("/v1/source/test", json={"source": source(rogue, password_env="SHOP_PASSWORD")})).json()
    assert "did not answer as MySQL or MariaDB" in answer["faults"][0]["detail"]
    assert not rogue.received


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("169.254.169.254", True), ("0251.0376.0251.0376", True), ("169.16689662", True), ("169.254.169.254.", True),
        ("[fe80::1%eth0]", True), ("fd00:ec2::254", True), ("100.100.100.200", True), ("127.0.0.1", False),
        ("10.0.0.7", False), ("db.example.com", False), ("1.2.3.4.5", False), ("0x", False), ("", False),
    ],
)  # fmt: skip
def test_link_local_addresses_are_known_in_each_form(address: str, found: bool) -> None:
    assert barred(address) == found


def test_the_hosts_of_an_address_are_found_in_each_form() -> None:
    assert list(hosts_in("jdbc:postgresql://u:p@a:5432,[::1]:5,b/lake?x=//c")) == ["a", "[::1]", "b", "c"]


def test_without_the_setting_requests_may_name_variables_of_passwords_and_no_file(allowed: Path) -> None:
    found = Secrets.parsed(None)
    assert found.patterns == BY_DEFAULT
    assert found.variable("SHOP_PASSWORD")
    assert not found.variable("CUTLINE_REDIS_SENTINEL_PASSWORD")
    assert not found.file(str(allowed / "shop"))
    nothing = Secrets.parsed("-")
    assert not nothing.variable("SHOP_PASSWORD")


@pytest.mark.parametrize("text", ["secrets/shop", "/", "/proc"])
def test_a_setting_that_would_allow_too_much_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="CUTLINE_SECRETS"):
        Secrets.parsed(text)
