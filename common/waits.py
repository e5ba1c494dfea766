"""What a service, or a pipeline, waits for, as a value that the status and the API carry (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """One wait. `what` completes the words "waiting for"; `cause` says why it takes that long, if that is known.

    `since`: when it began, in seconds since 1970 (None: unknown). A wait that is made again at each try, or at each
    look, is the same one while its party and the code of its cause are: `as_before`.
    """

    party: Party
    what: str
    cause: Cause | None = None
    since: float | None = None

    def __str__(self) -> str:
        return self.what if self.cause is None else f"{self.what}: {self.cause}"

    @property
    def as_cause(self) -> Cause:
        """What a pipeline that waits so has to say where a cause is asked for."""
        return Cause(Code.LATE, self.what) if self.cause is None else self.cause.before(f"{self.what}: ")

    def as_before(self, before: Wait | None, now: float) -> Wait:
        """This wait with its beginning: that of `before`, the wait of the last try, if it is the same one; else
        `now`."""
        same = before is not None and (before.party, _code(before)) == (self.party, _code(self))
        return replace(self, since=before.since if before is not None and same else now)

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        cause = None if self.cause is None else self.cause.to_json()
        return {"party": self.party, "what": self.what, "cause": cause, "since": self.since}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Wait:
        """Read what `to_json` gave, also that of another version: a party that this one does not know is `other`."""
        party, cause, since = body.get("party"), body.get("cause"), body.get("since")
        return cls(
            party=Party(party) if party in _KNOWN else Party.OTHER,
            what=str(body.get("what", "")),
            cause=Cause.from_json(cause) if isinstance(cause, dict) else None,
            since=float(since) if isinstance(since, int | float) else None,
        )


def _code(wait: Wait) -> Code | None:
    return None if wait.cause is None else wait.cause.code
