"""schemathesis sends what the API's description allows, and what it forbids, with each role, over HTTP: no answer is a
server error, each is as the description says, and the audit log has no call above the role that was carried out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.redis import connect
from cutline.common.status.pipeline_status import EnumeratorStatus
from cutline.common.store.lives import Key
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.audit_log import FLUSH_SECONDS
from cutline.services.control.api.roles import ROLES, Role
from tests.support import records
from tests.support.control_server import ControlServer
from tests.support.databases import MariaDB
from tests.support.mesh import waited

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
)
LEFT_OUT = ("delete_pipeline", "events")
"""A deleted pipeline allows nothing else, and a stream of events has no end; both have tests of their own."""
TABLES = {"shop.orders": "live", "shop.returns": "quarantined", "crm.people": "snapshot"}


@pytest.fixture
def control(redis_url: str, tmp_path: Path, mariadb: MariaDB) -> Iterator[ControlServer]:
    """A control service with the pipeline `shop`, which has checkpoints, tables and a status."""
    (tmp_path / "password").write_text(mariadb.password)
    source = {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user}
    config = PipelineConfig.model_validate(
        {
            "name": "shop",
            "source": {**source, "password_file": str(tmp_path / "password")},
            "tables": ["shop.*", "crm.people"],
            "sink": {"warehouse": str(tmp_path / "lake")},
        }
    )
    with ControlServer(redis_url=redis_url, store_url=f"file://{tmp_path}/store", secrets=tmp_path) as server:
        shop = server.store.pipeline("shop")
        shop.define(config.definition())
        fill(shop)
        asyncio.run(report(redis_url, shop.key))
        yield server


def fill(shop: PipelineStore) -> None:
    shop.put_entry(records.epoch(1))
    part = shop.put_part("0000000001.e1.enumerator.json", b"{}")
    tables = {name: records.table(phase=phase) for name, phase in TABLES.items()}
    for slot in range(2, 50):
        shop.put_entry(records.checkpoint(slot, parts={"enumerator": part}, kept=slot == 42, tables=tables))


async def report(redis_url: str, key: Key) -> None:
    redis = connect(redis_url)
    tables = ",".join(f'"{name}": {{"phase": "{phase}", "generation": 1}}' for name, phase in TABLES.items())
    status = EnumeratorStatus(at=time.time(), epoch=1, leader="e1")
    await Registry(redis).put_status(key, "enumerator", status, tables=f"{{{tables}}}")
    await redis.aclose()


SAMPLE = ("--phases", "fuzzing", "--max-examples", "3")
"""A few requests of each operation."""
LONG = ("--phases", "coverage,fuzzing", "--max-time", "300")


def run(control: ControlServer, role: Role, much: tuple[str, ...], folder: Path) -> None:
    """Run schemathesis; fail with its report if it found anything."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        *("run", f"{control.url}/openapi.json", "--header", f"Authorization: Bearer {control.token(role)}"),
        *("--checks", ",".join(CHECKS), *much, "--continue-on-failure", "--no-color", "--seed", "1"),
        *(word for name in LEFT_OUT for word in ("--exclude-operation-id", name)),
    ]
    environ = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, env=environ)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


def above(role: Role, needed: dict[str, Role], call: dict[str, Any]) -> bool:
    """Whether a call that was carried out needs a higher role."""
    return call["status"] < 400 and ROLES.index(needed[call["operation"]]) > ROLES.index(role)


@pytest.mark.parametrize(
    "much",
    [
        pytest.param(SAMPLE, id="sample"),
        pytest.param(LONG, id="long", marks=[pytest.mark.full, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("role", get_args(Role))
def test_no_answer_is_a_server_error_and_no_call_above_the_role_is_carried_out(
    control: ControlServer, role: Role, much: tuple[str, ...], tmp_path: Path
) -> None:
    run(control, role, much, tmp_path)
    with control.client() as client:
        described = client.get("/openapi.json").json()["paths"]
    operations = [each for methods in described.values() for each in methods.values()]
    needed = {each["operationId"]: each["x-cutline-role"] for each in operations if "x-cutline-role" in each}

    def calls_of_the_role() -> list[dict[str, Any]]:
        return [call for _, call in control.store.access.logged(limit=100_000) if call["by"] == role]

    # refused calls are logged together, every few seconds
    waited(lambda: len(calls_of_the_role()) > 10, "the audit log to have the calls", 3 * FLUSH_SECONDS)
    calls = calls_of_the_role()
    assert [call for call in calls if above(role, needed, call)] == []
    assert "Traceback" not in control.log.read_text()
