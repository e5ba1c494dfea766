"""Connections to real servers by TLS, with certificates made for the test, and with passwords that change."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cutline.common.config.source import SourceConfig, TlsConfig
from cutline.common.errors import ConfigError, SourceRefused, Unavailable
from cutline.services.run.cli import main
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.connection import Source, connect, encryption
from cutline.services.sources.mysql.hosts import Hosts
from tests.conftest import started
from tests.integration.pipeline.test_stream import shown
from tests.support.certificates import Authority
from tests.support.databases import CDC_PASSWORD, Database, MariaDB, MySQL, mysql_system
from tests.support.history import content, differences
from tests.support.mesh import Mesh, waited
from tests.support.sources import here

Fresh = Callable[[Database], str]


class Secured:
    """A server with TLS whose certificate can be changed while it runs."""

    def __init__(self, server: Database, folder: Path) -> None:
        assert server.folder is not None
        self.server, self.folder = server, server.folder / "tls"
        self.folder.mkdir()
        self.authority, self.stranger = Authority(folder, "ca"), Authority(folder, "stranger")
        self.show(*self.authority.issue("server", "127.0.0.1", "localhost"))
        server.options |= {
            "ssl_ca": self._seen(self.folder / "ca"),
            "ssl_cert": self._seen(self.folder / "cert"),
            "ssl_key": self._seen(self.folder / "key"),
        }
        server.restart()

    def _seen(self, path: Path) -> str:
        """The path as the server sees it, which may run by chroot."""
        return f"/{path.relative_to(mysql_system())}" if isinstance(self.server, MySQL) else str(path)

    def show(self, cert: Path, key: Path) -> None:
        """Have the server show this certificate from now on."""
        for path, name in ((self.authority.ca, "ca"), (cert, "cert"), (key, "key")):
            shutil.copy(path, self.folder / name)
        if "ssl_ca" in self.server.options:
            self.server.execute("ALTER INSTANCE RELOAD TLS" if isinstance(self.server, MySQL) else "FLUSH SSL")

    def source(self, mode: Any, **settings: Any) -> Source:
        tls = TlsConfig(mode=mode, **{key: str(value) for key, value in settings.items()})
        server = self.server
        return Source(host=server.host, port=server.port, user=server.user, password=server.password, tls=tls)


@pytest.fixture(scope="module", params=[MySQL, pytest.param(MariaDB, marks=pytest.mark.full)])
def secured(
    nothing_left_running: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    server = request.param()
    with started(server):
        yield Secured(server, tmp_path_factory.mktemp("certificates"))


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_queries_and_the_binlog_are_encrypted_and_the_server_is_verified(secured: Secured) -> None:
    for mode, known in (
        ("required", {}),
        ("verify-ca", {"ca": secured.authority.ca}),
        ("verify-identity", {"ca": secured.authority.ca}),
    ):
        source = secured.source(mode, **known)
        with closing(connect(source)) as conn, conn.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_version'")
            ((_, version),) = cursor.fetchall()
            assert encryption(conn, source.tls) == f"{version} ({mode})"
    begin = here(secured.server)
    secured.server.execute("CREATE DATABASE IF NOT EXISTS shop", "DROP DATABASE shop")
    with closing(BinlogCursor(lambda: connect(source), server_id=77_400)) as cursor:
        read = cursor.read(begin, {}, until=here(secured.server), max_rows=10, max_bytes=1 << 20, wait_seconds=20)
        assert read.position.file_position == here(secured.server).file_position
        shown = [row[5] for row in secured.server.execute("SHOW PROCESSLIST") if "Binlog Dump" in row[4]]
        assert shown


def test_each_certificate_that_is_refused_is_one_sentence_with_its_remedy(secured: Secured) -> None:
    """1. A CA that did not sign it; 2. none is named, and the machine's own did not; 3. another host's; 4. it expires
    (MySQL loads none that is expired already). A mode that does not check that takes the same certificate."""
    authority, address = secured.authority, f"127.0.0.1:{secured.server.port}"
    trusted = {"ca": authority.ca}

    def refused(mode: str, **known: Path) -> str:
        with pytest.raises(SourceRefused) as caught:
            connect(secured.source(mode, **known))
        (sentence,) = map(str, caught.value.faults)
        assert sentence.startswith(f"The certificate of {address} ")
        return sentence

    sentence = refused("verify-ca", ca=secured.stranger.ca)
    assert f"is signed by none of the CAs that are trusted, {secured.stranger.ca}" in sentence
    assert "name the file of its CA in source.tls.ca" in sentence
    assert "is signed by none of the CAs that are trusted, this machine's" in refused("verify-identity")
    secured.show(*authority.issue("other", "db.example.com"))
    assert "is for another host" in refused("verify-identity", **trusted)
    connect(secured.source("verify-ca", **trusted)).close()
    secured.show(*authority.issue("old", "127.0.0.1", ends=timedelta(seconds=2)))

    def expired() -> bool:
        try:
            connect(secured.source("verify-identity", **trusted)).close()
        except SourceRefused as error:
            return str(error) == f"The certificate of {address} has expired; renew it at the server"
        return False

    waited(expired, "the certificate to expire", 20)
    connect(secured.source("required")).close()
    secured.show(*authority.issue("server", "127.0.0.1"))
    connect(secured.source("verify-identity", **trusted)).close()


def test_a_client_certificate_is_shown_where_the_account_requires_one(secured: Secured, tmp_path: Path) -> None:
    secured.server.execute(
        "CREATE USER IF NOT EXISTS careful IDENTIFIED BY 'x' REQUIRE X509", "GRANT SELECT ON *.* TO careful"
    )
    trusted = {"ca": secured.authority.ca}

    def connected(**known: Path) -> None:
        source = secured.source("verify-identity", **trusted, **known)
        careful = Source(host=source.host, port=source.port, user="careful", password="x", tls=source.tls)
        connect(careful).close()

    cert, key = secured.authority.issue("client")
    connected(cert=cert, key=key)
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    connected(cert=both)
    with pytest.raises(SourceRefused, match=r"Access denied.*source\.tls\.cert"):
        connected()
    cert, key = secured.stranger.issue("foreign")
    with pytest.raises((SourceRefused, Unavailable), match=r"does the server trust the CA of source\.tls\.cert\?"):
        connected(cert=cert, key=key)


def test_a_server_without_tls_and_one_that_insists_on_it_are_refused_by_name(
    secured: Secured, mariadb: MariaDB
) -> None:
    plain = Source(host=mariadb.host, port=mariadb.port, user="cdc", password=CDC_PASSWORD, tls=TlsConfig())
    if mariadb.scalar("SELECT @@have_ssl") != "YES":
        with pytest.raises(SourceRefused, match=r"offers no TLS, and source\.tls is verify-identity; turn TLS on"):
            connect(plain)
    secured.server.execute("SET GLOBAL require_secure_transport = ON")
    try:
        local = Source(host="127.0.0.1", port=secured.server.port, user="cdc", password=CDC_PASSWORD)
        with pytest.raises(SourceRefused, match=r"set source\.tls: required"):
            connect(local)
        connect(secured.source("required")).close()
    finally:
        with closing(secured.server.connect(ssl={"check_hostname": False}, ssl_disabled=False)) as conn:
            conn.cursor().execute("SET GLOBAL require_secure_transport = OFF")


def test_a_file_that_is_no_certificate_or_key_is_named(secured: Secured, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    cert, key = secured.authority.issue("sealed", password=b"secret")
    for settings, name in (
        ({"ca": tmp_path / "missing"}, r"missing, named by source\.tls\.ca, can't be used \(No such file"),
        ({"ca": wrong}, r"wrong\.pem, named by source\.tls\.ca, can't be used"),
        ({"cert": wrong, "key": key}, r"wrong\.pem, named by source\.tls\.cert and source\.tls\.key, can't be used"),
        ({"cert": cert, "key": key}, r"can't be used \(the key is encrypted, and no password can be given\)"),
    ):
        with pytest.raises(SourceRefused, match=name):
            connect(secured.source("verify-ca", **settings))


def test_doctor_says_how_the_source_is_protected(secured: Secured, fresh_database: Fresh, tmp_path: Path) -> None:
    schema = fresh_database(secured.server)
    secured.server.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    tls = {"mode": "verify-identity", "ca": "ca.pem"}
    shutil.copy(secured.authority.ca, tmp_path / "ca.pem")
    (tmp_path / "password").write_text(CDC_PASSWORD)
    source = {"host": "127.0.0.1", "port": secured.server.port, "user": "cdc", "password_file": "password", "tls": tls}
    file = tmp_path / "p.yaml"
    file.write_text(f"name: p\nsource: {json.dumps(source)}\ntables: [{schema}.t]\nsink: {{warehouse: lake}}\n")

    def found() -> dict[str, Any]:
        printed = json.loads(CliRunner().invoke(main, ["doctor", str(file), "--json"]).output)
        return next(finding for finding in printed["findings"] if finding["name"] == "source")

    assert found()["ok"]
    assert found()["found"].endswith("TLSv1.3 (verify-identity)")
    shutil.copy(secured.stranger.ca, tmp_path / "ca.pem")
    assert not found()["ok"]
    assert "is signed by none of the CAs that are trusted" in found()["remedy"]


# --- passwords --------------------------------------------------------------------------------------------------------


def test_a_pipeline_goes_on_with_a_password_that_was_changed(
    mysql: MySQL, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A pipeline is live, by TLS. 2. The account gets another password, and every connection is cut: the pipeline
    waits, and says for what. 3. The password's file gets it: it goes on, in the same epoch."""
    schema = fresh_database(mysql)
    table, user = f"{schema}.t", f"u_{schema}"[:30]
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    mysql.execute(f"CREATE USER {user} IDENTIFIED BY 'first'", f"GRANT {', '.join(mysql.GRANTS)} ON *.* TO {user}")
    file = tmp_path / "password"
    file.write_text("first\n")
    source = {"user": user, "password_env": None, "password_file": str(file), "tls": "required"}
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("rotated", mysql, [table], source=source)
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
        mysql.execute(f"ALTER USER {user} IDENTIFIED BY 'second'")
        for row in mysql.execute("SHOW PROCESSLIST"):
            if row[1] == user:
                mysql.execute(f"KILL {row[0]}")
        mysql.execute(f"INSERT INTO {table} VALUES (3)")
        waiting = ""

        def refused() -> bool:
            nonlocal waiting
            waiting = str(pipeline.reader().waiting_for or "")
            return f"{user}@127.0.0.1:{mysql.port} was refused: Access denied" in waiting

        pipeline.until(refused, "it to be refused, and to wait")
        assert f"a new password in {file} is tried at once" in waiting
        replaced = file.with_name("password.new")
        replaced.write_text("second\n")
        os.replace(replaced, file)
        pipeline.catches_up(table)
        assert differences(shown(pipeline, table), content(mysql, table, ["id"])) == []
        assert len(pipeline.epochs()) == 1, pipeline.progress()
        pipeline.until(
            lambda: (now := pipeline.reader()).at is not None and now.waiting_for is None, "nothing to be waited for"
        )
    mysql.execute(f"DROP USER {user}")


def test_a_refused_password_is_not_tried_again_for_a_minute_and_another_one_at_once(
    source: Database, tmp_path: Path
) -> None:
    now = 1000.0
    file = tmp_path / "password"
    file.write_text("wrong")
    config = SourceConfig(host=source.host, port=source.port, user=source.user, password_file=str(file))
    hosts = Hosts(config, clock=lambda: now)
    refused = "SHOW GLOBAL STATUS LIKE 'Access_denied_errors'"

    def tries() -> int:
        return int(source.execute(refused)[0][1]) if source.flavour == "mariadb" else 0

    for _ in range(3):
        with pytest.raises(ConfigError, match="Access denied"):
            hosts.connect()
    before = tries()
    with pytest.raises(ConfigError, match="Access denied"):
        hosts.connect()
    assert tries() == before
    now += 61.0
    with pytest.raises(ConfigError, match="Access denied"):
        hosts.connect()
    assert source.flavour == "mysql" or tries() > before
    file.write_text(f"{source.password}\r\nsecond line")
    hosts.connect().close()
