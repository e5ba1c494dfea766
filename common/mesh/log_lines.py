"""The last lines of a service's log, kept in Redis for `GET /v1/services/{incarnation}/logs`.

A list `cutline:logs:{incarnation}` of JSON arrays `[seconds since 1970, level, logger, text]`, oldest first: at most
`KEPT` lines of at most `MOST_CHARACTERS` each, for `DAYS` after the last one. A line is a convenience: it is dropped
where Redis does not take it, and nothing waits for it.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from cutline.common.errors import redacted
from cutline.common.mesh.redis import answered

KEPT = 500
MOST_CHARACTERS = 2000
DAYS = 1
_URL = re.compile(r"\w+://\S+")
_SECRET = re.compile(
    r"(?i)(?P<name>password|passwd|secret|token|authorization)"
    r"(?P<between>['\"]?\s*[=:]\s*['\"]?(?:Bearer |Basic )?)\S+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a service's log; `at` in seconds since 1970."""

    at: float
    level: str
    logger: str
    text: str


class LogLines(logging.Handler):
    """Keeps the last lines that this process logs, and brings them to Redis whenever `flush_to` is called."""

    def __init__(self) -> None:
        """Attach it to the root logger; it never raises and never blocks."""
        super().__init__()
        self._waiting: deque[str] = deque(maxlen=KEPT)
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line, without what looks like a secret."""
        try:
            text = without_secrets(self.format(record))[:MOST_CHARACTERS]
            self._waiting.append(json.dumps([round(record.created, 3), record.levelname, record.name, text]))
        except Exception:
            self.handleError(record)

    async def flush_to(self, redis: Redis, incarnation: str) -> None:
        """Append what was logged since the last call. Raises Unavailable or NoRoom; the lines then wait for the next
        call, and the oldest are dropped once there are too many."""
        count = len(self._waiting)
        if not count:
            return
        lines = [self._waiting[at] for at in range(count)]
        async with answered("keep log lines"), redis.pipeline(transaction=False) as pipe:
            pipe.rpush(_key(incarnation), *lines)
            pipe.ltrim(_key(incarnation), -KEPT, -1)
            pipe.expire(_key(incarnation), DAYS * 86_400)
            await pipe.execute()
        for line in lines:
            if self._waiting and self._waiting[0] is line:  # else the deque was full and has dropped it meanwhile
                self._waiting.popleft()


def kept_here() -> LogLines:
    """Begin to keep what this process logs."""
    lines = LogLines()
    logging.getLogger().addHandler(lines)
    return lines


async def log_lines(redis: Redis, incarnation: str, count: int) -> list[LogLine]:
    """The last `count` lines of a service, oldest first; [] of an unknown one. Raises Unavailable."""
    client: Any = redis
    async with answered("read log lines"):
        found = await client.lrange(_key(incarnation), -count, -1)
    return [LogLine(at=at, level=level, logger=logger, text=text) for at, level, logger, text in map(json.loads, found)]


def without_secrets(text: str) -> str:
    """A line that is safe to show: URLs without user, password and query, and no value after a word like password."""
    text = _URL.sub(lambda found: redacted(found[0]), text)
    return _SECRET.sub(r"\g<name>\g<between>***", text)


def _key(incarnation: str) -> str:
    return f"cutline:logs:{incarnation}"
