"""Threads for blocking calls, and the event loop of every process.

asyncio's default executor is a few threads for whatever blocks: whoever uses it waits for whoever hangs. So nobody does
here (a test scans the tree, and `ServiceLoop` refuses it): each kind of call has a pool of its own, with a name and a
bound, that ends with its owner.

- A source's calls run in threads of one pipeline's own, in each service: no pool is shared by two sources, since each
  of them may hang.
- The store's calls share `in_store` (mesh/loop.py): a store that hangs stops every pipeline anyway.
- Work that waits for nothing outside (encoding, parsing) may share a pool.
- A host name is resolved in a thread for that name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

MOST_NAMES = 32
P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most `most` threads for one kind of blocking calls. With one thread the calls run one after another, as an
    object needs that allows one thread at a time.

    A call goes on in its thread after its awaiting task was cancelled, so the call that closes an object must join the
    same queue: `end`.
    """

    def __init__(self, name: str, most: int = 1) -> None:
        """`name` shows in stack dumps; a thread starts with the first call that needs it."""
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=f"cutline-{name}")

    async def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run `function` behind all earlier calls; it logs as the caller does."""
        return await asyncio.wrap_future(self._pool.submit(copy_context().run, partial(function, *arguments, **named)))

    def end(self, function: Callable[[], object] = lambda: None) -> None:
        """Run `function` behind all earlier calls, as the last call; don't wait for it."""
        self._pool.submit(function)
        self._pool.shutdown(wait=False)


class ServiceLoop(asyncio.SelectorEventLoop):
    """An event loop without a default executor."""

    def __init__(self) -> None:
        super().__init__()
        self._resolving: dict[str, Threads] = {}  # by host name, the longest unused first

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run the call in `executor`. RuntimeError without one."""
        if executor is None:
            raise RuntimeError(f"{func!r} was to run in asyncio's default executor, which all would share; use Threads")
        return super().run_in_executor(executor, func, *args)

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        """Resolve a name, in a thread for this name: one whose server does not answer holds up no other."""
        found = await self._threads_of(host).call(socket.getaddrinfo, host, port, family, type, proto, flags)
        return list(found)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """Find the name of an address, in a thread for this address."""
        return await self._threads_of(sockaddr[0]).call(socket.getnameinfo, sockaddr, flags)

    def _threads_of(self, host: Any) -> Threads:
        name = str(host)
        threads = self._resolving.pop(name, None) or Threads("name")
        while len(self._resolving) >= MOST_NAMES:
            self._resolving.pop(next(iter(self._resolving))).end()
        self._resolving[name] = threads
        return threads

    def close(self) -> None:
        """Close the loop; a name that is still being resolved is no longer awaited."""
        for threads in self._resolving.values():
            threads.end()
        self._resolving.clear()
        super().close()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a process's main coroutine, as asyncio.run does, on a `ServiceLoop`."""
    with asyncio.Runner(loop_factory=ServiceLoop) as runner:
        return runner.run(main)
