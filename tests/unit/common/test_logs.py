"""The log's lines: JSON with what they are about, and no secrets in either form."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cutline.common import logs
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.mesh.loop import in_store
from cutline.common.threads import Threads

log = logging.getLogger("cutline.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logs._process.clear()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_json_line_says_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Environment(log_format="json"))
    logs.note_service("reader-1")
    with logs.about(pipeline="shop", epoch=3):
        log.warning("%s is quarantined", "a.b", extra={"table": "a.b", "checkpoint": 7, "cause": "no key"})
    log.info("of no pipeline")
    first, second = lines(capsys)
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "cutline.test",
        "message": "a.b is quarantined",
        "service": "reader-1",
        "pipeline": "shop",
        "epoch": 3,
        "table": "a.b",
        "checkpoint": 7,
        "cause": "no key",
    }
    assert not {"pipeline", "epoch", "cause"} & second.keys()


def test_a_service_says_at_its_start_what_it_is_and_with_what_it_works_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = Environment(
        log_format="json", store_url="s3://bucket/store?key=AKIA", redis_url="redis://user:secret@h:6379/0"
    )
    logs.configure(environment)
    logs.say_started("reader", "reader-1", environment)
    logs.say_started("spark_writer", "spark_writer-2", Environment(store_url="file:///s", redis_url=None))
    first, second = (line["message"] for line in lines(capsys))
    assert first.startswith("reader-1 starts as reader: Cutline ")
    assert first.endswith(", store s3://bucket/store?key=***, Redis redis://***@h:6379/0")
    assert second.endswith(", store file:///s, Redis none")


def test_an_exception_among_the_arguments_is_the_cause_and_an_unexpected_one_has_its_stack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(Environment(log_format="json"))
    log.warning("trying again: %s", Unavailable("Redis did not answer\nat all"))
    try:
        raise ValueError("odd\nthing")
    except ValueError:
        log.exception("unexpected")
    first, second = lines(capsys)  # each on one line
    assert first["cause"] == "Redis did not answer\nat all"
    assert second["cause"] == "odd\nthing"
    assert "Traceback" in second["error"]
    assert "test_logs.py" in second["error"]


async def test_tasks_and_threads_begun_for_a_pipeline_inherit_it(capsys: pytest.CaptureFixture[str]) -> None:
    """1. Two tasks note a pipeline each, and spawn a task, a thread and a call to the store. 2. A thread of its own
    knows nothing."""
    logs.configure(Environment(log_format="json"))

    async def work(name: str) -> None:
        logs.note(pipeline=name)
        await asyncio.create_task(spawned(name))
        thread = Threads("test")
        await thread.call(lambda: log.info("%s thread", name))
        thread.end(lambda: None)
        await in_store(log.info, f"{name} store")

    async def spawned(name: str) -> None:
        log.info("%s task", name)

    await asyncio.gather(*(asyncio.create_task(work(name)) for name in ("shop", "crm")))
    alone = threading.Thread(target=lambda: log.info("nobody"))
    alone.start()
    alone.join()
    found = {line["message"]: line.get("pipeline") for line in lines(capsys)}
    assert found == {f"{name} {by}": name for name in ("shop", "crm") for by in ("task", "thread", "store")} | {
        "nobody": None
    }


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_shows_a_secret(capsys: pytest.CaptureFixture[str], form: str) -> None:
    secrets = {"api_token": "sesame-1", "webhook_secret": "sesame-2", "lineage_key": "sesame-3"}
    logs.configure(Environment(log_format=form, **secrets))
    log.error("connecting to %s", "redis://user:hunter2@host:6379/0 with :pw@x")
    log.error("sent sesame-1, sesame-2", extra={"cause": "sesame-3"})
    try:
        raise ValueError("postgresql://me:hunter2@host/db")
    except ValueError:
        log.exception("failed with sesame-1")
    written = capsys.readouterr().err
    assert "hunter2" not in written
    assert "sesame" not in written
    assert "redis://***@host:6379/0" in written


def test_text_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Environment())
    with logs.about(pipeline="shop"):
        log.warning("hello")
    line = capsys.readouterr().err.strip()
    assert line.endswith(" WARNING cutline.test: hello")


def test_another_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="CUTLINE_LOG_FORMAT must be text or json, not 'xml'"):
        Environment.read({"CUTLINE_LOG_FORMAT": "xml"})
