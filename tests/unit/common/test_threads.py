"""No thread is shared by those that may wait for each other: a source, a store, an issuer, a name server that hangs."""

from __future__ import annotations

import ast
import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cutline.common import threads
from cutline.common.mesh.loop import in_store
from cutline.common.threads import ServiceLoop, Threads
from cutline.services.enumerator.commanding import Commanding
from tests.support.ports import ports

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(path for top in ("common", "services", "spark_writer") for path in (ROOT / top).rglob("*.py"))
SHARED = {
    "common/mesh/loop.py": {"store"},
    "common/mesh/production.py": {"sweep", "remove", "encode"},
    "services/control/api/definitions.py": {"yaml"},
    "services/control/api/oidc.py": {"issuer"},
    "services/control/api/scrape.py": {"metrics"},
    "services/control/facts.py": {"disks"},
    "services/control/table_rows.py": {"rows"},
    "services/control/traces.py": {"traces"},
    "services/health.py": {"health"},
    "services/reader/__main__.py": {"join"},
    "services/run/run.py": {"source", "jars"},
}
"""Pools of a whole process. None may ask a source, except in `cutline run`, which has one."""


def called(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Each call with the name of what is called, with the names before it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def faults(source: str) -> list[str]:
    """The calls that use a pool which is not the caller's own, or has no name or bound."""
    found = []
    for name, call in called(ast.parse(source)):
        last, given = name.rpartition(".")[2], {keyword.arg for keyword in call.keywords}
        default = last == "run_in_executor" and ast.unparse(call.args[0]) == "None"
        if default or last in ("to_thread", "set_default_executor") or name == "asyncio.run":
            found.append(name)
        elif last in ("getaddrinfo", "getnameinfo") and not name.startswith(("socket.", "self._threads_of")):
            found.append(name)
        elif last == "ThreadPoolExecutor" and not (call.args and "thread_name_prefix" in given):
            found.append(f"{name} without a name or a bound")
        elif last == "Thread" and "name" not in given:
            found.append(f"{name} without a name")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_blocking_call_has_a_pool_of_its_own(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "await asyncio.to_thread(f)", "await loop.run_in_executor(None, f)", "loop.set_default_executor(p)",
        "await asyncio.get_running_loop().getaddrinfo(h, p)", "asyncio.run(main())", "ThreadPoolExecutor()",
        "ThreadPoolExecutor(4)", "threading.Thread(target=f, daemon=True)",
    ],
)  # fmt: skip
def test_the_scan_finds(source: str) -> None:
    assert len(faults(f"async def g():\n    {source}")) == 1


def test_the_pools_of_a_process_are_known_and_no_source_is_asked_in_them() -> None:
    found: dict[str, set[str]] = {}
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for name, call in called(node.value):
                    if name in ("Threads", "threads.Threads"):
                        found.setdefault(str(path.relative_to(ROOT)), set()).add(ast.literal_eval(call.args[0]))
    assert found == SHARED


def test_a_request_waits_for_the_store_only_as_long_as_it_answers() -> None:
    files = (ROOT / "services/control").rglob("*.py")
    waiting = {path for path in files if "mesh.loop import in_store" in path.read_text(encoding="utf-8")}
    assert not waiting, "use in_store of store_calls.py"


def test_an_event_loop_of_ours_has_no_default_executor_and_resolves_names_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. The default executor is refused. 2. A name whose server does not answer holds up no other name, nor the end of
    the loop."""
    hangs, resolve = threading.Event(), socket.getaddrinfo

    def look(host: Any, *args: Any) -> Any:
        if host == "hangs.invalid":
            hangs.wait(30)
        return resolve("127.0.0.1", *args)

    monkeypatch.setattr(socket, "getaddrinfo", look)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ServiceLoop)
        with pytest.raises(RuntimeError, match="default executor"):
            await asyncio.to_thread(print)
        stuck = [asyncio.create_task(loop.getaddrinfo("hangs.invalid", 1)) for _ in range(20)]
        async with asyncio.timeout(5):
            for number in range(threads.MOST_NAMES + 1):
                found = await loop.getaddrinfo(f"name{number}", 80, type=socket.SOCK_STREAM)
                assert found[0][4] == ("127.0.0.1", 80)
        for task in stuck:
            task.cancel()

    try:
        threads.run(main())
    finally:
        hangs.set()


async def test_a_pool_that_is_full_of_calls_that_hang_holds_up_no_other_pool() -> None:
    over = threading.Event()
    stuck_pool, other = Threads("one", 2), Threads("other", 2)
    stuck = [asyncio.create_task(stuck_pool.call(over.wait, 30.0)) for _ in range(10)]
    async with asyncio.timeout(5):
        name = await other.call(lambda: threading.current_thread().name)
    assert name.startswith("cutline-other")
    ended: list[str] = []
    stuck_pool.end(lambda: ended.append("last"))
    over.set()
    assert all(await asyncio.gather(*stuck))
    async with asyncio.timeout(5):
        while not ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    other.end()


async def test_deletions_that_take_long_hold_up_no_entry_of_a_journal() -> None:
    """More pipelines are being deleted than there are threads for the store."""
    over = threading.Event()
    store: Any = SimpleNamespace(
        name="shop", put_deleting=lambda: None, purges=lambda: False, has_ended=lambda: True,
        remove_files=lambda: over.wait(30), commands=SimpleNamespace(orders=lambda: SimpleNamespace(mode="deleting")),
    )  # fmt: skip
    commanding = Commanding(store, ports(notes=None), cast(Any, None), cast(Any, None))
    deletions = [asyncio.create_task(commanding.delete()) for _ in range(20)]
    async with asyncio.timeout(10):
        for _ in range(20):
            await in_store(threading.get_ident)
            await asyncio.sleep(0.01)
    for deletion in deletions:
        deletion.cancel()
    over.set()
