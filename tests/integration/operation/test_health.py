"""What a container's health check says: of a note in a real Redis, of a control service that runs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from cutline.common.config.environment import Environment
from cutline.common.mesh.presence import Registry, Service
from cutline.services import health
from tests.conftest import started
from tests.support.redis_servers import Redis
from tests.support.server_process import free_port


@pytest.fixture(scope="module")
def server(nothing_left_running: None) -> Iterator[Redis]:
    """One Redis: what is asked of it does not depend on its version."""
    server = Redis()
    with started(server):
        yield server


def service(**known: Any) -> Service:
    """The note of a service that runs in this very process."""
    given: dict[str, Any] = {"role": "reader", "host": socket.gethostname(), "pid": os.getpid(), **known}
    return Service(incarnation="it", started_at=1.5, **given)


async def examined(server: Redis, **choices: Any) -> tuple[bool, str]:
    return await health.examine(Environment(redis_url=server.url), **choices)


async def test_a_service_works_while_its_note_is_in_redis(server: Redis, redis: Client) -> None:
    await Registry(redis).announce_presence(service())
    assert await examined(server) == await examined(server, live=True) == (True, "reader it is present")


@pytest.mark.parametrize("known", [{"host": "elsewhere"}, {"pid": 2**22 + 1}], ids=["another host", "a killed process"])
async def test_a_note_that_is_not_of_this_container_does_not_count(
    server: Redis, redis: Client, known: dict[str, Any]
) -> None:
    await Registry(redis).announce_presence(service(**known))
    for live in (False, True):
        works, sentence = await examined(server, live=live)
        assert not works
        assert sentence == f"no service of {socket.gethostname()} is present in Redis; its log says why"


@pytest.mark.parametrize("state", ["starting", "leaving"])
async def test_a_service_that_starts_or_ends_takes_no_work_and_needs_no_restart(
    server: Redis, redis: Client, state: str
) -> None:
    await Registry(redis).announce_presence(service(**{state: True}))
    works, sentence = await examined(server)
    assert not works
    assert sentence == f"reader it is {'ending' if state == 'leaving' else 'starting'}"
    assert (await examined(server, live=True))[0]


async def test_no_service_needs_a_restart_because_redis_does_not_answer(server: Redis, redis: Client) -> None:
    server.stop()
    works, sentence = await examined(server)
    assert not works
    assert sentence.startswith("Redis did not answer a request to list the services")
    assert await examined(server, live=True) == (True, sentence)


async def test_without_a_redis_there_is_nothing_to_ask() -> None:
    assert (await health.examine(Environment()))[0]


@pytest.fixture
def control(server: Redis, tmp_path: Path) -> Iterator[Environment]:
    """A control service that starts, on all addresses as in a container; the settings of its container."""
    port = free_port()
    settings = {
        "CUTLINE_REDIS_URL": server.url,
        "CUTLINE_STORE_URL": f"file://{tmp_path / 'store'}",
        "CUTLINE_API_HOST": "0.0.0.0",
        "CUTLINE_API_PORT": str(port),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "cutline.services.control"],
        env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield Environment.read(settings)
    finally:
        process.terminate()
        process.wait(20)


async def test_the_control_service_must_be_ready_too(server: Redis, redis: Client, control: Environment) -> None:
    """1. The service starts and is ready. 2. A port where it does not listen is asked."""
    async with asyncio.timeout(30):
        while not (await health.examine(control))[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    works, sentence = await health.examine(Environment(redis_url=server.url, api_port=free_port()))
    assert not works
    assert sentence.startswith("the control service does not answer on 127.0.0.1:")


async def test_the_exit_code_follows_and_a_wrong_setting_is_said(
    server: Redis, redis: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTLINE_REDIS_URL", server.url)
    assert await asyncio.to_thread(health.main, []) == 1
    await Registry(redis).announce_presence(service())
    assert await asyncio.to_thread(health.main, []) == 0
    monkeypatch.setenv("CUTLINE_API_PORT", "many")
    assert await asyncio.to_thread(health.main, ["--live"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("CUTLINE_API_PORT must be a whole number")
