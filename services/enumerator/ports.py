"""The enumerator's own port, beside those of every driver (common/mesh/ports.py): the source."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.source import SourceConfig
from cutline.common.mesh.machine import Effect, Event
from cutline.common.positions import Position
from cutline.common.status.pipeline_status import BinlogStatus, PipelineStatus
from cutline.common.waits import Wait
from cutline.services.sources.mysql.binlog_age import Place


class SourceHosts(Protocol):
    """The servers of one source, of which the service reads one."""

    @property
    def several(self) -> bool:
        """Whether there is a choice."""

    @property
    def chosen(self) -> str | None:
        """The server of the newest connection; None if there was none yet."""

    def follow(self, status: PipelineStatus, *, now: float) -> None:
        """Choose by what the reader with the stream says of itself; `now` in seconds since 1970."""


class Source(Protocol):
    """One source, as an enumerator asks it. The driver has one at a time, and another one after each change of the
    definition."""

    @property
    def hosts(self) -> SourceHosts:
        """Its servers."""

    @property
    def waiting_for(self) -> Wait | None:
        """Why a question has no answer yet, if one is late."""

    async def answer(self, question: Effect) -> Event:
        """Answer FindTables, DescribeTable, FindRange, FindBound, FindStop or FindPlace. A server that does not answer
        is asked again until it does, so this never raises Unavailable and may never return."""

    async def binlog(self, *, read: Place | None, needed: Collection[Place]) -> BinlogStatus:
        """How much of its binlog the source has, as the status shows it; one try. Raises CutlineError or OSError."""

    def interrupt(self) -> None:
        """Break the open questions off: nobody wants their answers any more. Never waits."""

    def close(self) -> None:
        """Close every connection, without waiting for a server that does not answer. The last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """How an enumerator reaches sources. `verify_reach` blocks: SourceLost if no server of the source can go on from a
    position, another CutlineError if that could not be found out."""

    open: Callable[[PipelineConfig], Source]
    verify_reach: Callable[[SourceConfig, Position], None]
