"""Threads for calls to sources: a server that hangs holds up no other request, nor the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from cutline.common.errors import Unavailable
from cutline.services.control.api.problems import RETRY_SECONDS, Refused

MOST = 16
SECONDS = 60.0
T = TypeVar("T")


class SourceThreads:
    """At most MOST calls to sources at a time, each in a thread of its own."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._busy = 0

    async def run(self, call: Callable[[], T], *, seconds: float = SECONDS) -> T:
        """Return what the call returns, or raise its error. Unavailable after `seconds`: the thread then ends by the
        connection's own time-outs. Raises Refused (503) while MOST threads are busy."""
        if self._busy >= MOST:
            raise Refused(
                503,
                f"{MOST} checks of sources are running",
                "try again in a few seconds",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            self._busy -= 1
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

        self._busy += 1
        threading.Thread(target=work, name="cutline-source", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise Unavailable(
                f"the source did not answer within {seconds:.0f} s; check its address, and that it is not blocked"
            ) from None
