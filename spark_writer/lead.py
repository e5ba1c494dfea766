"""The leadership of a pipeline, as whoever keeps its lease and the thread that serves it share it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from cutline.common.status.pipeline_status import SparkWriterStatus
from cutline.common.store.lives import Key
from cutline.spark_writer.ports import Flag


@dataclass(slots=True, kw_only=True, eq=False)
class Lead:
    """The leadership of one pipeline: whoever keeps the lease orders, the pipeline's thread obeys and sets `ended`.

    `stop`: end after the current step. `hand_over`: end once all that is applied is published. `sure_until`: the lease
    is ours until then (of the monotonic clock), as far as this process knows. `served`: a thread was started. `status`:
    its newest report. `requests`: a person's requests (JSON), oldest first: `retry` (try quarantined tables again),
    `lake` (a choice about commits of others); the thread moves each to `handled` once it is carried out. The status
    tells the end of those that carry the number of a `command`.
    """

    stop: Flag = field(default_factory=threading.Event)
    hand_over: Flag = field(default_factory=threading.Event)
    ended: Flag = field(default_factory=threading.Event)
    sure_until: float = float("inf")
    served: bool = False
    status: SparkWriterStatus = field(default_factory=SparkWriterStatus)
    requests: deque[bytes] = field(default_factory=deque)
    handled: deque[bytes] = field(default_factory=deque)

    @classmethod
    def by(cls, flag: Callable[[], Flag]) -> Lead:
        """A lead whose flags `flag` makes."""
        return cls(stop=flag(), hand_over=flag(), ended=flag())

    def report(self, status: SparkWriterStatus) -> None:
        """Note the newest status."""
        self.status = status

    def is_sure(self, now: float) -> bool:
        """Whether the lease is ours at `now` (of the monotonic clock), as far as this process knows; asked before a
        start and before upkeep, from which the claim w does not protect others.

        A suspension right after the answer, and one of the whole machine, go unnoticed until the next renewal. A start
        that is made then ends the work of another, which begins again; nothing is lost by it.
        """
        return now < self.sure_until

    def is_ending(self) -> bool:
        """Whether no further start may be made."""
        return self.stop.is_set() or self.hand_over.is_set()


class Everything:
    """Leads every pipeline, for a process without others beside it."""

    def __init__(self, flag: Callable[[], Flag] = threading.Event) -> None:
        """`flag` makes the flags of leads."""
        self._leads: dict[Key, Lead] = {}
        self._flag = flag

    def __call__(self, pipelines: Collection[Key]) -> Mapping[Key, Lead]:
        """Return a lead for each pipeline of the store."""
        for name in self._leads.keys() - set(pipelines):  # removed from the store
            self._leads.pop(name).stop.set()
        for name in pipelines:
            if name not in self._leads or self._leads[name].ended.is_set():
                self._leads[name] = Lead.by(self._flag)
        return self._leads
