"""Tables that can't be read now (pure): another session of the source holds a lock on them, or they changed in each of
several generations in a row.

    free -> held until a time -> tried: one question, or one chunk, is out -> held for longer | free

Each waits by itself, with its cause, and is tried ever more rarely. Nothing else of it is asked or handed out
meanwhile, since each try holds up others for as long as a statement waits for a lock. Only the names are saved: after a
restore each is tried at once.

A table that changed while it was read is read again at once, and the next time within `AGAIN_SECONDS` after a pause.
MySQL without GTIDs needs it: there a low watermark lies up to a minute back (`AgedPositions`), and the stream meets the
same DDL in each generation until it is older; each generation would cost a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutline.common.causes import Cause

FIRST_SECONDS, LONGEST_SECONDS = 2.0, 15.0
AGAIN_SECONDS = 60.0  # a table that was read again longer ago, without its pause, is read again at once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hold:
    cause: Cause
    due: float | None  # when to try again; None while a try is out
    pause: float


class Holds:
    """The held tables, by name."""

    def __init__(self) -> None:
        self._holds: dict[str, _Hold] = {}
        self._again: dict[str, tuple[float, float]] = {}  # read again -> not before when, after which pause

    def __contains__(self, name: str) -> bool:
        return name in self._holds

    def copy(self) -> Holds:
        """The same holds."""
        holds = Holds()
        holds._holds = dict(self._holds)
        return holds

    def names(self) -> list[str]:
        """The held tables, in order."""
        return sorted(self._holds)

    def waits(self, name: str) -> bool:
        """Whether the table is held and must not be tried yet."""
        hold = self._holds.get(name)
        return hold is not None and hold.due is not None

    def hold(self, name: str, cause: Cause, now: float) -> None:
        """Hold a table that was found locked; other tries that were out with this one change nothing."""
        before = self._holds.get(name)
        if before is not None and before.due is not None:
            return
        pause = FIRST_SECONDS if before is None else min(LONGEST_SECONDS, 2 * before.pause)
        self._holds[name] = _Hold(cause=cause, due=now + pause, pause=pause)

    def begins_again(self, name: str, cause: Cause, now: float) -> None:
        """A table begins its next generation since it changed: it is held, but for the first time in a row."""
        while self._again and now - next(iter(self._again.values()))[0] >= AGAIN_SECONDS:
            del self._again[next(iter(self._again))]
        _, before = self._again.pop(name, (now, None))
        pause = 0.0 if before is None else min(LONGEST_SECONDS, max(FIRST_SECONDS, 2 * before))
        self._again[name] = (now + pause, pause)
        if pause:
            self._holds[name] = _Hold(cause=cause, due=now + pause, pause=pause)

    def take_due(self, now: float) -> list[str]:
        """The tables to be tried now."""
        due = [name for name, hold in self._holds.items() if hold.due is not None and hold.due <= now]
        for name in due:
            hold = self._holds[name]
            self._holds[name] = _Hold(cause=hold.cause, due=None, pause=hold.pause)
        return due

    def end(self, name: str) -> Cause | None:
        """Let a table go on; the cause for which it was held, if it was."""
        hold = self._holds.pop(name, None)
        return None if hold is None else hold.cause
