"""What a source's server may ask for at the login: the password goes only to a server that is known to be the right
one, and a file of this machine to none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutline.common.config.pipeline import parse
from cutline.common.config.source import SourceConfig
from cutline.common.errors import ConfigError, CutlineError, SourceRefused, Unavailable
from cutline.services.sources.mysql.connection import Source, ask, connect
from cutline.services.sources.mysql.hosts import Hosts
from tests.support.certificates import Authority
from tests.support.rogue_server import RogueServer

PASSWORD = b"the source's own password"
ASKS_FOR_IT = ("mysql_clear_password", "dialog")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ca")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("server", "127.0.0.1")


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD.decode())


def settings(server: RogueServer, mode: str, authority: Authority, **more: Any) -> SourceConfig:
    tls = {"mode": mode, "ca": str(authority.ca)} if mode.startswith("verify") else {"mode": mode}
    about = {"host": "127.0.0.1", "port": server.port, "user": "cdc", "password_env": "SHOP_PASSWORD", "tls": tls}
    return SourceConfig(**about, **more)


@pytest.mark.usefixtures("password")
@pytest.mark.parametrize("mode", ["disabled", "required", "verify-ca", "verify-identity"])
@pytest.mark.parametrize("plugin", [*ASKS_FOR_IT, "mysql_old_password", "sha256_password", "mysql_unheard_of"])
@pytest.mark.parametrize("first", [False, True], ids=["switch", "greeting"])
def test_the_password_is_kept_from_a_server_that_asks_for_it_by_any_plugin(
    plugin: str, first: bool, mode: str, authority: Authority, certificate: tuple[Path, Path]
) -> None:
    certified = None if mode == "disabled" else certificate
    with RogueServer(plugin, first=first, certificate=certified).listening() as server:
        with suppress(CutlineError):
            Hosts(settings(server, mode, authority)).connect().close()
    verified = plugin == "sha256_password" and mode.startswith("verify")  # the right server, which may know it
    assert verified or not server.stolen
    assert verified or not any(PASSWORD in answer for answer in server.received)


@pytest.mark.parametrize("first", [False, True], ids=["switch", "greeting"])
def test_a_login_by_mariadbs_ed25519_is_answered_with_the_signature_that_it_checks(first: bool) -> None:
    with RogueServer("client_ed25519", first=first).listening() as server, suppress(Unavailable):
        connect(Source(host="127.0.0.1", port=server.port, user="cdc", password="secret"))
    assert server.signed == 1
    assert not any(b"secret" in answer for answer in server.received)


@pytest.mark.usefixtures("password")
@pytest.mark.parametrize("plugin", ASKS_FOR_IT)
def test_the_refusal_names_the_plugin_and_the_setting_that_allows_it(
    plugin: str, authority: Authority, certificate: tuple[Path, Path]
) -> None:
    with RogueServer(plugin, certificate=certificate).listening() as server:
        with pytest.raises(SourceRefused, match=rf"{plugin}.*source\.cleartext_password: true"):
            connect(Source.configured(settings(server, "verify-identity", authority)))
    with RogueServer(plugin).listening() as server:
        with pytest.raises(SourceRefused, match=r"source\.tls: verify-identity or verify-ca"):
            connect(Source.configured(settings(server, "disabled", authority)))


@pytest.mark.usefixtures("password")
@pytest.mark.parametrize("mode", ["verify-ca", "verify-identity"])
@pytest.mark.parametrize("plugin", ASKS_FOR_IT)
def test_a_verified_server_gets_the_password_of_a_source_that_allows_it(
    plugin: str, mode: str, authority: Authority, certificate: tuple[Path, Path]
) -> None:
    with RogueServer(plugin, certificate=certificate).listening() as server, suppress(Unavailable):
        connect(Source.configured(settings(server, mode, authority, cleartext_password=True)))
    assert server.stolen == [PASSWORD]


@pytest.mark.usefixtures("password")
def test_a_server_that_only_says_that_it_is_verified_gets_nothing(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path, "stranger").issue("server", "127.0.0.1")
    with RogueServer("mysql_clear_password", certificate=stranger).listening() as server:
        with pytest.raises(SourceRefused, match="signed by none of the CAs"):
            connect(Source.configured(settings(server, "verify-ca", authority, cleartext_password=True)))
    with RogueServer("mysql_clear_password").listening() as server:  # it offers no TLS
        with pytest.raises(SourceRefused, match="offers no TLS"):
            connect(Source.configured(settings(server, "verify-ca", authority, cleartext_password=True)))
    assert not server.stolen


@pytest.mark.parametrize("tls", ["disabled", "required"])
def test_a_pipeline_file_that_allows_it_without_a_verified_server_is_refused(tls: str, tmp_path: Path) -> None:
    text = f"""
name: shop
source: {{host: db, user: cdc, password_env: SHOP_PASSWORD, cleartext_password: true, tls: {tls}}}
tables: ["shop.*"]
sink: {{type: iceberg, warehouse: ./lake}}
"""
    with pytest.raises(ConfigError, match=r"cleartext_password.*verify-identity or verify-ca"):
        parse(text, folder=tmp_path)


@pytest.mark.parametrize("tls", [None, {"mode": "required"}])
@pytest.mark.parametrize("plugin", ["caching_sha2_password", "sha256_password"])
def test_without_tls_no_password_is_encrypted_for_a_key_that_another_machine_sends(
    plugin: str, tls: dict[str, str] | None, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of this machine that is not a loopback address stands for another machine."""
    monkeypatch.setattr("cutline.common.config.source.Address.loopback", property(lambda address: False))
    mode: Any = tls or {"mode": "disabled"}
    config = SourceConfig(host="127.0.0.1", user="cdc", tls=mode)
    source = replace(Source.configured(config), password=PASSWORD.decode())
    with RogueServer(plugin, certificate=certificate if tls else None).listening() as server:
        with suppress(CutlineError):
            connect(replace(source, port=server.port)).close()
    assert bool(server.stolen) == (plugin == "caching_sha2_password" and tls is not None)


def test_a_server_that_asks_for_a_file_of_this_machine_gets_none(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a line that only this machine knows")
    with RogueServer("mysql_native_password", local_file=str(secret)).listening() as server:
        with pytest.raises(SourceRefused, match="asked for a file of this machine"):
            ask(connect(Source(host="127.0.0.1", port=server.port, user="cdc", password="x")), "SELECT 1")
    assert not any(b"only this machine" in answer for answer in server.received)


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64 + ".com", "\u00e9" * 80, "\x83\x12GY"])
def test_a_host_that_is_no_name_is_refused_as_an_unknown_one(host: str) -> None:
    with pytest.raises(SourceRefused, match=r"The host name in .* is unknown; correct source\.host"):
        connect(Source(host=host, user="u", password="p"))
