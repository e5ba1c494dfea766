"""The enumerator's questions about a source: tables are described together, and nobody waits for one that is silent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cutline.common.config.pipeline import parse
from cutline.common.errors import NoTable, SourceLost, Unavailable
from cutline.common.mesh.loop import in_store
from cutline.services.enumerator import source as source_file
from cutline.services.enumerator.events import DescribeTable, FindRange, TableDescribed
from cutline.services.enumerator.source import SourceReader
from cutline.services.sources.mysql.catalogue import TableAsked, TableInfo

CONFIG = """
name: shop
source: {host: 127.0.0.1, port: 1, user: cdc, password_env: CDC_PASSWORD}
tables: ["shop.*"]
sink: {type: iceberg, warehouse: ./lake}
"""


class FakeServer:
    """What stands for the server: notes each question; `silent` holds all that come until it is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.away = 0
        self.answers = threading.Event()
        self.answers.set()

    def describe_all(
        self, conn: Any, server: Any, tables: Sequence[TableAsked], **_: Any
    ) -> dict[str, TableInfo | SourceLost]:
        self.answers.wait(30)
        if self.away:
            self.away -= 1
            raise Unavailable("the server is away")
        self.asked.append(tuple(table.table_id for table in tables))
        return {table.table_id: NoTable("gone", table.table_id) for table in tables}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    made = FakeServer()
    connection = SimpleNamespace(close=lambda: None, _sock=SimpleNamespace(shutdown=lambda _: made.answers.set()))
    monkeypatch.setattr(source_file.Hosts, "connect", lambda hosts: connection)
    monkeypatch.setattr(source_file, "identify", lambda conn: SimpleNamespace(mysql=True))
    monkeypatch.setattr(source_file, "describe_all", made.describe_all)
    monkeypatch.setattr(source_file, "unseen_xa", lambda conn: None)
    monkeypatch.setattr("cutline.services.enumerator.source.PAUSE_SECONDS", (0.01, 0.02))
    monkeypatch.setenv("CDC_PASSWORD", "x")
    yield made
    made.answers.set()


def reader(folder: Path) -> SourceReader:
    return SourceReader(parse(CONFIG, folder=folder))


def look(number: int, generation: int = 1) -> DescribeTable:
    return DescribeTable(table_id=f"shop.t{number}", generation=generation)


async def test_a_thousand_tables_are_described_in_a_few_questions_also_when_the_source_was_away(
    server: FakeServer, tmp_path: Path
) -> None:
    source = reader(tmp_path)
    server.away = 2
    found = await asyncio.gather(*(source.answer(look(number)) for number in range(1000)))
    assert [answer.table.table_id for answer in found if isinstance(answer, TableDescribed)] == [
        f"shop.t{number}" for number in range(1000)
    ]
    assert sum(map(len, server.asked)) == 1000
    assert len(server.asked) <= 20
    source.close()


async def test_answers_that_nobody_waits_for_any_more_are_not_given_to_who_asks_later(
    server: FakeServer, tmp_path: Path
) -> None:
    """1. A table is being described when its epoch ends. 2. The next epoch asks for it again: it is looked at anew."""
    source = reader(tmp_path)
    server.answers.clear()
    first = asyncio.create_task(source.answer(look(1)))
    async with asyncio.timeout(5):
        while not source._busy:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    first.cancel()
    source.interrupt()
    again = await source.answer(look(1, generation=2))
    assert isinstance(again, TableDescribed)
    assert (again.generation, server.asked[-1]) == (2, ("shop.t1",))
    assert source.waiting_for is None
    source.close()


async def test_forty_open_questions_to_a_silent_source_keep_no_store_call_waiting(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reader(tmp_path)
    server.answers.clear()
    monkeypatch.setattr("cutline.services.enumerator.source.key_range", lambda *_: server.answers.wait(30))
    monkeypatch.setattr("cutline.services.enumerator.source.SILENT_SECONDS", 0.0)
    schema = cast(Any, None)
    asked = [
        asyncio.create_task(source.answer(FindRange(table_id=f"shop.t{number}", generation=1, schema=schema)))
        for number in range(40)
    ]
    await asyncio.sleep(0)
    begun = time.monotonic()
    assert await asyncio.wait_for(in_store(lambda: "written"), 5) == "written"
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "resolved"), 5) == "resolved"
    assert time.monotonic() - begun < 5
    assert "127.0.0.1:1 has not answered" in str(source.waiting_for)
    for task in asked:
        task.cancel()
    source.close()
    await asyncio.gather(*asked, return_exceptions=True)
