"""The error tree of Cutline, split by what the driver does next.

| error | the driver |
|---|---|
| `ProtocolError` | stops the pipeline and tells the story: our own parts disagree, or a message is corrupt or foreign |
| `ConfigError` | stops at the start with exit code 2: a person must change a file, a grant or a server setting |
| `SourceLost` | quarantines the table (or halts the pipeline if no table is named): a person decides |
| `NextGeneration`, a SourceLost | reads the table again from its beginning |
| `NoTable`, a NextGeneration | waits for a table of that name: it is dropped, which is no fault |
| `Unavailable` | retries with backoff, then restores from the newest checkpoint |
| `NoRoom`, an Unavailable | frees what is its own in Redis and not needed any more |
| `ServerIdTaken`, an Unavailable | takes another server id, if it is free to choose |

A library's error becomes one of these at the seam (`raise ... from error`). A message is one sentence: what happened,
to what, what to do.
"""

from __future__ import annotations

import re


class CutlineError(Exception):
    """Root of the tree; catch it only where an error is shown to a person."""


class ProtocolError(CutlineError):
    """A rule between our own parts was broken; going on could lose or double rows."""


class ConfigError(CutlineError):
    """What was asked for can't be done as configured.

    `faults` holds every fault found, one sentence each, so that a person mends them all in one go.
    """

    def __init__(self, *faults: str) -> None:
        """Take one or more faults, each one sentence with its remedy."""
        super().__init__("; ".join(faults))
        self.faults: tuple[str, ...] = faults


class SourceLost(CutlineError):
    """The source no longer has, or no longer tells, what we need; only a person or a new generation goes on from here.

    `table` is the table ("db.table") to quarantine, or None if the whole source is meant.
    """

    def __init__(self, cause: str, table: str | None = None) -> None:
        """Take the cause (one sentence with the remedy) and the table that it concerns."""
        super().__init__(cause)
        self.cause = cause
        self.table = table


class NextGeneration(SourceLost):
    """What was read of a table, or its watermarks, hold no longer; reading it again from its beginning mends that."""


class NoTable(NextGeneration):
    """The source surely has no such table (any more); never raised for one that we may not look at."""


class Unavailable(CutlineError):
    """Something outside did not answer; the same call may succeed later."""


class NoRoom(Unavailable):
    """Redis is at its limit (`maxmemory`) and refuses whatever may need more; what frees or only prolongs it does."""


class ServerIdTaken(Unavailable):
    """Another client reads the binlog with our server id, and the server ended our connection in favour of its own."""


def redacted(url: str) -> str:
    """A URL as messages may show it: without user, password and the values of its query."""
    return re.sub(r"([?&][^=&]*)=[^&]*", r"\1=***", re.sub(r"(?<=://).*@", "***@", url))
