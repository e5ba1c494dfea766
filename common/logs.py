"""The log of a service process: one place that says how its lines look, and what they are about.

`about` and `note` say which pipeline, epoch or checkpoint the code at hand works for; tasks and calls in `Threads`
begun there inherit it. A JSON line has that as fields, and whatever a call gives in `extra`: `table`, `checkpoint`,
`cause`. If a message has an exception among its arguments, that is the cause.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from cutline.common.config.environment import Environment
from cutline.common.errors import redacted

FIELDS = ("pipeline", "epoch", "checkpoint", "table", "cause")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_QUIET = ("py4j", "httpx", "httpcore")
"""Libraries that log each request: warnings only."""
_LOGIN = re.compile(r"(?<=://)[^\s/@]*:[^\s/@]*(?=@)")
_log = logging.getLogger("cutline.logs")
_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default=MappingProxyType({}))
_process: dict[str, str] = {}


def configure(environment: Environment) -> None:
    """Log to stderr by CUTLINE_LOG_LEVEL and CUTLINE_LOG_FORMAT, without secrets; call it once, first of all."""
    handler = logging.StreamHandler(sys.stderr)
    secrets = [environment.api_token, environment.webhook_secret, environment.lineage_key]
    hidden = [secret for secret in secrets if secret]
    handler.setFormatter(Json(hidden) if environment.log_format == "json" else Text(hidden))
    logging.basicConfig(level=environment.log_level, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def note_service(incarnation: str) -> None:
    """Name this process in its log."""
    _process["service"] = incarnation


def say_started(role: str, incarnation: str, environment: Environment) -> None:
    """Log which service this is, and with which store and Redis it works; without what is secret in their addresses."""
    from importlib import metadata  # it takes long, and the command line needs it not

    try:
        version = metadata.version("cutline")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        version = "of a checkout"
    store, redis = (None if url is None else redacted(url) for url in (environment.store_url, environment.redis_url))
    _log.info("%s starts as %s: Cutline %s, store %s, Redis %s", incarnation, role, version, store, redis or "none")


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Everything logged inside is about this pipeline (and so on)."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def note(**fields: Any) -> None:
    """Everything that this task, or this thread, logs from now on is about this pipeline (and so on)."""
    _about.set({**_about.get(), **fields})


class Text(logging.Formatter):
    """A line for people."""

    def __init__(self, hidden: list[str]) -> None:
        """`hidden` are secrets, which no line shows."""
        super().__init__(_TEXT)
        self._hidden = hidden

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the stack of an unexpected error below it."""
        return _safe(super().format(record), self._hidden)


class Json(logging.Formatter):
    """A JSON object on one line."""

    def __init__(self, hidden: list[str]) -> None:
        """`hidden` are secrets, which no line shows."""
        super().__init__()
        self._hidden = hidden

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_process,
            **_about.get(),
        }
        arguments = record.args if isinstance(record.args, tuple) else ()
        cause = next((str(each) for each in arguments if isinstance(each, BaseException)), None)
        given = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        line |= ({"cause": cause} if cause else {}) | given
        if record.exc_info and record.exc_info[1] is not None:
            line.setdefault("cause", str(record.exc_info[1]) or type(record.exc_info[1]).__name__)
            line["error"] = self.formatException(record.exc_info)
        shown = {name: _safe(value, self._hidden) if isinstance(value, str) else value for name, value in line.items()}
        return json.dumps(shown, ensure_ascii=False, default=str)


def _safe(text: str, hidden: list[str]) -> str:
    text = _LOGIN.sub("***", text)
    for secret in hidden:
        text = text.replace(secret, "***")
    return text
