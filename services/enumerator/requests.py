"""Who asks for a checkpoint, and its form in the journal's entry (pure).

A leader keeps a request until a checkpoint that answers it is in the journal; the next leader sees there which one the
newest checkpoint has answered. What another version of Cutline wrote there is no request of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMAND = re.compile(r"command ([0-9]+)")
_STOP = "the stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command awaits the checkpoint."""

    n: int

    @property
    def text(self) -> str:
        """Its form in the journal."""
        return f"command {self.n}"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The source has passed the pipeline's stop: the last checkpoint has all that comes before it."""

    @property
    def text(self) -> str:
        """Its form in the journal."""
        return _STOP


Request = CommandRequest | StopRequest
THE_STOP = StopRequest()


def request_of(text: str | None) -> Request | None:
    """The request with this form; None if it is none of ours."""
    if text == _STOP:
        return THE_STOP
    found = None if text is None else _COMMAND.fullmatch(text)
    return None if found is None else CommandRequest(n=int(found[1]))
