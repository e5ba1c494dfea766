"""What a service, or a pipeline, waits for, as a value that the status and the API carry (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cutline.common.causes import Cause, Code


class Party(StrEnum):
    """Whose turn it is."""

    SOURCE = "source"  # it is unreachable, refuses Cutline, or does not answer
    BUSY_SOURCE = "busy_source"  # it answers, and shall become less busy, or send the rest of a transaction
    STORE = "store"
    DISK = "disk"
    MEMBER = "member"  # of the mesh
    CHECKPOINT = "checkpoint"
    EPOCH = "epoch"
    TIME = "time"  # the moment of the next try
    SPARK_WRITER = "spark_writer"
    PERSON = "person"
    OTHER = "other"


_KNOWN = frozenset(Party)


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait. `what` completes the words "waiting for"; `cause` says why it takes that long, if that is known."""

    party: Party
    what: str
    cause: Cause | None = None

    def __str__(self) -> str:
        return self.what if self.cause is None else f"{self.what}: {self.cause}"

    @property
    def as_cause(self) -> Cause:
        """What a pipeline that waits so has to say where a cause is asked for."""
        return Cause(Code.LATE, self.what) if self.cause is None else self.cause.before(f"{self.what}: ")

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return {"party": self.party, "what": self.what, "cause": None if self.cause is None else self.cause.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Wait:
        """Read what `to_json` gave, also that of another version: a party that this one does not know is `other`."""
        party, cause = body.get("party"), body.get("cause")
        known = Party(party) if party in _KNOWN else Party.OTHER
        return cls(known, str(body.get("what", "")), Cause.from_json(cause) if isinstance(cause, dict) else None)
