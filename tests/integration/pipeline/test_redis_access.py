"""Redis as production has it: TLS with client certificates, a user with few rights, Sentinel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import Unavailable
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.redis import connect
from tests.conftest import started
from tests.integration.pipeline.test_stream import shown
from tests.support.certificates import Authority
from tests.support.databases import Database, MySQL
from tests.support.history import content, differences
from tests.support.mesh import ROOT, Mesh, waited
from tests.support.redis_servers import Redis, Sentinel
from tests.support.server_process import free_port

Fresh = Callable[[Database], str]
PASSWORD = "mesh/secret"
IN_URL = "mesh%2Fsecret"


class SecuredRedis(Redis):
    """Redis with a second port that speaks TLS and asks each client for a certificate."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        cert, key = self.authority.issue("redis", "127.0.0.1")
        self.tls_port = free_port()
        super().__init__(
            tls_port=self.tls_port,
            tls_cert_file=str(cert),
            tls_key_file=str(key),
            tls_ca_cert_file=str(self.authority.ca),
            tls_auth_clients="yes",
        )


@pytest.fixture
def secured(nothing_left_running: None, tmp_path: Path) -> Iterator[SecuredRedis]:
    server = SecuredRedis(tmp_path)
    with started(server):
        yield server


def rules() -> list[str]:
    """The rights that the operations guide gives to Cutline's user."""
    text = (ROOT / "docs" / "operations" / "messages.md").read_text(encoding="utf-8")
    found = re.search(r"^ACL SETUSER cutline ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert found is not None
    return [word for word in found[1].replace("\\\n", " ").split() if not word.startswith(">")]


def test_a_mesh_works_by_tls_with_exactly_the_rights_of_the_operations_guide(
    secured: SecuredRedis, mysql: MySQL, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A pipeline runs through TLS as a user with these rights. 2. Redis is emptied: it goes on. 3. A reader is
    killed. 4. Nothing that the services asked for was refused, and other keys are out of their reach."""
    schema = fresh_database(mysql)
    table = f"{schema}.t"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    admin: Any = secured.client()
    admin.execute_command("ACL", "SETUSER", "cutline", *rules(), f">{PASSWORD}")
    cert, key = secured.authority.issue("mesh")
    environment = {
        "CUTLINE_REDIS_URL": f"rediss://cutline:{IN_URL}@127.0.0.1:{secured.tls_port}/0",
        "CUTLINE_REDIS_CA": str(secured.authority.ca),
        "CUTLINE_REDIS_CERT": str(cert),
        "CUTLINE_REDIS_KEY": str(key),
        "CUTLINE_API_PORT": "0",
    }
    with Mesh(tmp_path, redis=secured, environment=environment, enumerators=2) as mesh:
        mesh.start("control")
        pipeline = mesh.pipeline("secured", mysql, [table])
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
        secured.flush()
        pipeline.next_epoch(1)
        mesh.kill(mesh.running("reader")[0])
        mesh.start("reader")
        pipeline.next_epoch(2)
        mysql.execute(f"INSERT INTO {table} VALUES (3)")
        pipeline.catches_up(table)
        assert differences(shown(pipeline, table), content(mysql, table, ["id"])) == []
        assert [entry["reason"] + " " + entry["object"] for entry in admin.acl_log()] == []
        assert admin.execute_command("ACL", "DRYRUN", "cutline", "GET", "other") != b"OK"
        assert admin.execute_command("ACL", "DRYRUN", "cutline", "FLUSHALL") != b"OK"
    admin.close()


async def test_a_redis_whose_certificate_is_not_trusted_is_refused_with_the_remedy(
    secured: SecuredRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = secured.authority.issue("mesh")
    for name, value in (
        ("CA", Authority(tmp_path, "stranger").ca), ("CERT", cert), ("KEY", key)
    ):  # fmt: skip
        monkeypatch.setenv(f"CUTLINE_REDIS_{name}", str(value))
    url = f"rediss://127.0.0.1:{secured.tls_port}/0"
    redis = connect(url)
    with pytest.raises(Unavailable, match="set CUTLINE_REDIS_CA to the file of its CA"):
        await Registry(redis).epochs()
    await redis.aclose()
    monkeypatch.setenv("CUTLINE_REDIS_CA", str(secured.authority.ca))
    redis = connect(url)
    assert await Registry(redis).epochs() == {}
    await redis.aclose()


@pytest.mark.full
def test_a_mesh_goes_on_when_sentinel_promotes_a_replica(
    mysql: MySQL, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. The mesh finds its Redis through Sentinels, of which the first is down. 2. The master gets SIGKILL: Sentinel
    promotes the replica, and the pipeline goes on there in a later epoch. 3. Nothing is lost."""
    schema = fresh_database(mysql)
    table = f"{schema}.t"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    user, password = "cutline", PASSWORD
    with Redis() as master, Redis() as replica:
        for server in (master, replica):
            with server.client() as client:
                client.acl_setuser(user, enabled=True, passwords=[f"+{password}"], keys=["*"], commands=["+@all"])
        with replica.client() as client:
            client.replicaof(master.host, str(master.port))
        with Sentinel("mesh", master) as sentinel:
            waited(lambda: sentinel.knows(replica), "Sentinel to know the replica", 30)
            url = f"redis+sentinel://{user}:{IN_URL}@127.0.0.1:1,127.0.0.1:{sentinel.port}/mesh/0"
            with Mesh(tmp_path, redis=master, environment={"CUTLINE_REDIS_URL": url}) as mesh:
                pipeline = mesh.pipeline("watched", mysql, [table])
                pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
                master.kill()
                mesh.redis = replica
                mysql.execute(f"INSERT INTO {table} VALUES (3)")
                pipeline.next_epoch(1, seconds=90)
                pipeline.catches_up(table)
                assert differences(shown(pipeline, table), content(mysql, table, ["id"])) == []
