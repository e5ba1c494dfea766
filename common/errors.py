"""The error tree of Cutline, split by what the service does next.

| error | the service |
|---|---|
| `ProtocolError` | stops the pipeline and reports why: Cutline's parts disagree, or a message is corrupt or foreign |
| `ConfigError` | stops at the start with exit code 2: a person must change a file, a grant or a server setting |
| `SourceRefused`, a ConfigError | while a pipeline runs: waits, and tries again with the password read anew |
| `SourceLost` | quarantines the table (or halts the pipeline if no table is named): a person decides |
| `PositionLost`, a SourceLost | halts the pipeline, or reads every table again if `source.lost_position` says so |
| `NextGeneration`, a SourceLost | reads the table again from its beginning |
| `NoTable`, a NextGeneration | waits for a table of that name: the table was dropped, which is no fault |
| `Unavailable` | retries with backoff, then restores from the newest checkpoint |
| `TableLocked`, an Unavailable | puts its work on this table back, and goes on with others |
| `DiskFull`, an Unavailable | does the same; a person must free space |
| `NoRoom`, an Unavailable | frees Redis of its own data that it no longer needs |
| `ServerIdTaken`, an Unavailable | takes another server id, unless the pipeline file sets one |

A library's error becomes one of these where Cutline calls the library (`raise ... from error`). Each carries a `Cause`
(common/causes.py), which reports, records, status and API pass on as it is.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, Self

from cutline.common.causes import Cause, Code, joined


class CutlineError(Exception):
    """Root of the tree: the errors that Cutline expects. A service reports any other exception as a bug of Cutline.

    `code` is that of causes that are raised as a sentence, of each class.
    """

    code: ClassVar[Code] = Code.OTHER

    def __init__(self, cause: Cause | str, remedy: str = "") -> None:
        """Take the cause, or its sentence and remedy."""
        self.cause = cause if isinstance(cause, Cause) else Cause(self.code, cause, remedy)
        super().__init__(str(self.cause))


class ProtocolError(CutlineError):
    """A rule between Cutline's own parts is broken; going on could lose or duplicate rows."""

    code = Code.PROTOCOL


class ConfigError(CutlineError):
    """The configuration is wrong, or does not allow a request.

    `faults` holds every fault found, so that a person can correct them all at once.
    """

    code = Code.CONFIGURATION

    def __init__(self, cause: Cause | str, remedy: str = "") -> None:
        """Take the only fault: a cause, or its sentence and remedy."""
        super().__init__(cause, remedy)
        self.faults: tuple[Cause, ...] = (self.cause,)

    @classmethod
    def several(cls, faults: Iterable[Cause]) -> Self:
        """The error for at least one fault."""
        found = tuple(faults)
        error = cls(joined(found))
        error.faults = found
        return error


class SourceRefused(ConfigError):
    """The source refused the connection, or its certificate was refused: a person must change an account, a password,
    a certificate or the settings of TLS. A running pipeline waits for that."""

    code = Code.REFUSED


class SourceLost(CutlineError):
    """The source lost, or no longer reports, data that Cutline needs; only a person or a new generation helps.

    `table` is the table ("db.table") to quarantine, or None for the whole source.
    """

    def __init__(self, cause: Cause, table: str | None = None) -> None:
        """Take the cause and the table that it concerns."""
        super().__init__(cause)
        self.table = table


class PositionLost(SourceLost):
    """The source itself, and no other server in its place, no longer has the binlog after a position: every table must
    be read again. So certain that it may be done without a person."""


class Loss(StrEnum):
    """What the source lost, for which an epoch ended."""

    NOTHING = ""
    SOURCE = "source"  # a SourceLost: or it is another server than before
    POSITION = "position"  # a PositionLost


def lost(error: Exception) -> Loss:
    """What the source lost, by the error that ended an epoch."""
    if isinstance(error, PositionLost):
        return Loss.POSITION
    return Loss.SOURCE if isinstance(error, SourceLost) else Loss.NOTHING


class NextGeneration(SourceLost):
    """Rows read so far, or watermarks, of a table are no longer valid; the table must be snapshotted again."""


class NoTable(NextGeneration):
    """The source certainly has no such table (any more); never raised where only the right to see it is missing."""


class Unavailable(CutlineError):
    """An outside system did not answer; the same call may succeed later."""

    code = Code.UNAVAILABLE


class TableLocked(Unavailable):
    """Another session at the source holds a lock on a table, so it can't be read now; other tables can."""

    def __init__(self, cause: Cause, table: str) -> None:
        """Take the cause and the table that it concerns."""
        super().__init__(cause)
        self.table = table


class DiskFull(Unavailable):
    """A disk has no space left: that of the store, or of temporary files."""

    code = Code.DISK_FULL
    remedy: ClassVar[str] = "free space on it, or enlarge it"


def is_full(error: OSError) -> bool:
    """Whether a disk has no space left, or Cutline's quota on it is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class NoRoom(Unavailable):
    """Redis is at its limit (`maxmemory`) and refuses commands that may need more memory; others still work."""

    code = Code.REDIS_FULL


class ServerIdTaken(Unavailable):
    """Another client reads the binlog with our server id, so the server closed our connection."""

    code = Code.SERVER_ID


def redacted(url: str) -> str:
    """A URL that is safe to show in messages: without user, password and the values of its query."""
    return re.sub(r"([?&][^=&]*)=[^&]*", r"\1=***", re.sub(r"(?<=://).*@", "***@", url))
