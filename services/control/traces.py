"""A trace of each publication by OpenTelemetry (OTLP/HTTP), made afterwards from what the status parts have anyway.

    checkpoint N ─┬─ reader-0 ─┬─ marker reader-0           (and so on for each member)
                  │            └─ part reader-0
                  ├─ entry
                  ├─ apply ── apply shop.orders             (the slowest tables)
                  └─ publish

So the mesh carries no trace context and pays nothing. Ids are made from the pipeline and the checkpoint: a trace that
is sent twice is the same trace. A member or a step whose times are no longer in the status is left out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, redacted
from cutline.common.status.pipeline_status import Apply, MemberStatus
from cutline.common.store.lives import Key
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import Store
from cutline.common.threads import Threads
from cutline.services.control.metrics import Facts
from cutline.services.control.store_calls import in_store

TIMEOUT_SECONDS = 5
SETTLE_SECONDS = 3.0
"""Members show their marks up to a second later than they made them."""
_MOST_WAITING = 200
_EXPORTING = Threads("traces")  # a collector that hangs holds up nothing else
log = logging.getLogger("cutline.traces")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One step, from `start` to `end` (seconds since 1970); `path` names it and the steps around it."""

    path: tuple[str, ...]
    start: float
    end: float
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def spans(
    pipeline: str, entry: CheckpointEntry, apply: Apply, members: Mapping[str, MemberStatus], *, published_at: float
) -> Iterator[Span]:
    """Yield the steps of a checkpoint that is published; `apply` is its record in the Spark writer's status, `members`
    are the status parts of the mesh's members."""
    n, began = entry.slot, entry.started_at
    root = (f"checkpoint {n}",)
    yield Span(
        path=root,
        start=began,
        end=published_at,
        attributes={
            "cutline.pipeline": pipeline,
            "cutline.checkpoint": n,
            "cutline.epoch": entry.epoch,
            "cutline.savepoint": entry.kept,
            "cutline.staged_rows": sum(file.rows for file in entry.staged),
            "cutline.staged_bytes": sum(file.size for file in entry.staged),
        },
    )
    saved_last = began
    for member, part in sorted(members.items()):
        for checkpoint, marker_at, saved_at in part.marks:
            if checkpoint == n and marker_at and saved_at:
                yield Span(path=(*root, member), start=began, end=saved_at)
                yield Span(path=(*root, member, f"marker {member}"), start=began, end=marker_at)
                yield Span(path=(*root, member, f"part {member}"), start=marker_at, end=saved_at)
                saved_last = max(saved_last, saved_at)
    yield Span(path=(*root, "entry"), start=saved_last, end=entry.written_at)
    start, end = apply.applied_at - apply.seconds, apply.applied_at
    step = (*root, "apply")
    yield Span(
        path=step,
        start=start,
        end=end,
        attributes={"cutline.rows": apply.rows, "cutline.first_checkpoint": apply.first},
    )
    for table, took in apply.tables.items():
        # Tables are applied side by side, and only their durations are known.
        about = {"cutline.table": table}
        yield Span(path=(*step, f"apply {table}"), start=start, end=min(end, start + took), attributes=about)
    yield Span(path=(*root, "publish"), start=end, end=published_at)


class Traces:
    """One control service's traces, while it holds the lease of duties.py."""

    def __init__(self, url: str, store: Store) -> None:
        """Raises ConfigError if the packages of the extra `otel` are missing."""
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise ConfigError("CUTLINE_TRACES_URL needs more packages", "run pip install 'cutline[otel]'") from error
        self._url, self._store = url, store
        session: Any = requests.Session()
        session.resolve_redirects = lambda *_, **__: iter(())  # the answer is then the redirect, which took nothing
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_SECONDS, session=session)
        self._seen: dict[Key, int] = {}  # life of a pipeline -> the newest publication whose trace was made
        self._waiting: list[Any] = []  # spans that are not taken yet

    @classmethod
    def configured(cls, environment: Environment, store: Store) -> Traces | None:
        """Return the sender of the settings, None if there is none."""
        return None if environment.traces_url is None else cls(environment.traces_url, store)

    async def take_over(self) -> None:
        """Begin with the next publication."""
        self._seen.clear()

    async def give_up(self) -> None:
        """Nothing runs between two looks."""

    async def look(self, facts: Facts) -> None:
        """Send the traces of new publications. Raises Unavailable if the store does not answer."""
        for name, status in facts.statuses.items():
            applies = [
                (apply, at)
                for apply in status.spark_writer.applies
                if (at := apply.published_at) is not None and at < facts.now - SETTLE_SECONDS
            ]
            newest = max((apply.last for apply, _ in applies), default=0)
            life = facts.lives[name]
            seen = self._seen.setdefault(life.key, newest)
            for apply, at in applies:
                if apply.last > seen:
                    entry = await in_store(self._store.open(life).entry, apply.last)
                    if isinstance(entry, CheckpointEntry):
                        steps = spans(name, entry, apply, status.members(), published_at=at)
                        self._waiting += _made(life.key, steps)
            self._seen[life.key] = max(seen, newest)
        taken = await _EXPORTING.call(self._export)
        if taken:
            self._waiting.clear()
        del self._waiting[:-_MOST_WAITING]

    def _export(self) -> bool:
        """Send what waits; return whether it was taken."""
        if not self._waiting:
            return True
        from opentelemetry.sdk.trace.export import SpanExportResult

        taken = self._exporter.export(self._waiting) is SpanExportResult.SUCCESS
        if not taken:
            log.warning("traces were not taken by %s", redacted(self._url))
        return taken


def _made(pipeline: Key, steps: Iterator[Span]) -> list[Any]:
    """Return the steps as OpenTelemetry's spans."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, TraceFlags

    resource = Resource({"service.name": "cutline", "service.version": version("cutline")})
    made = []
    for step in steps:

        def context(path: tuple[str, ...]) -> SpanContext:
            trace = hashlib.sha256(f"{pipeline}/{path[0]}".encode()).digest()
            span = hashlib.sha256("/".join((pipeline, *path)).encode()).digest()
            flags = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(_number(trace[:16]), _number(span[:8]), is_remote=False, trace_flags=flags)

        made.append(
            ReadableSpan(
                name=step.path[-1] if len(step.path) > 1 else "checkpoint",
                context=context(step.path),
                parent=context(step.path[:-1]) if len(step.path) > 1 else None,
                resource=resource,
                attributes=dict(step.attributes),
                start_time=int(step.start * 1e9),
                end_time=int(max(step.start, step.end) * 1e9),
            )
        )
    return made


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")
