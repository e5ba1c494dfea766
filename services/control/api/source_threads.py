"""Threads for calls to sources: a server that hangs holds up no other request, nor the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from cutline.common.config.source import SourceConfig
from cutline.common.errors import Unavailable
from cutline.services.control.api.problems import RETRY_SECONDS, Refused

MOST, OF_ONE = 64, 8
SECONDS = 60.0
SOURCE, ALL = "the source", "the source, the store or the lake"
"""Whose answers a call waits for."""
T = TypeVar("T")


class SourceThreads:
    """At most MOST calls to sources at a time, and OF_ONE of those to the same source (and the same others beside it),
    each in a thread of its own: who asks a server that hangs, again and again, refuses nobody who asks another."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._busy: Counter[tuple[str, str]] = Counter()  # by the source, and what else is asked

    async def run(
        self, call: Callable[[], T], source: SourceConfig, *, asked: str = SOURCE, seconds: float = SECONDS
    ) -> T:
        """Return what the call to `source` returns, or raise its error. Unavailable after `seconds`: the thread then
        ends by the connection's own time-outs. Raises Refused (503) while as many threads are busy as may be.

        `asked` is SOURCE or ALL.
        """
        place = ", ".join(map(str, source.addresses))
        key = place, asked
        for running, most, whom in ((self._busy[key], OF_ONE, place), (self._busy.total(), MOST, "sources")):
            if running >= most:
                raise Refused(
                    503,
                    f"{most} checks of {whom} are running",
                    "try again in a few seconds",
                    headers={"Retry-After": str(RETRY_SECONDS)},
                )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            self._busy[key] -= 1
            self._busy += Counter()  # forgets those with none
            if answer.done():
                return
            if error is None:
                answer.set_result(result)  # type: ignore[arg-type]
            else:
                answer.set_exception(error)

        def work() -> None:
            result, failed = None, None
            try:
                result = call()
            except BaseException as error:
                failed = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(done, result, failed)

        self._busy[key] += 1
        threading.Thread(target=work, name="cutline-source", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise Unavailable(
                f"{asked} did not answer within {seconds:.0f} s", "check the address, and that it is not blocked"
            ) from None
