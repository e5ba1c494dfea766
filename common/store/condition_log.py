"""The history of conditions (what a person must act on): what began, ended, or was acknowledged, in numbered files.

| path | content |
|---|---|
| `conditions/{n:010d}.json` of a pipeline | a change, and all that holds after it |
| `.conditions/{n:010d}.json` of the store | the same of what concerns all pipelines, such as Redis |

Files are put if absent, so of several control services that write one number one succeeds; the others read it, and see
whether their change is still one. The newest file alone says what holds and what is acknowledged. Changes that are
RETAINED numbers older than the newest are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from cutline.common.form import read
from cutline.common.store.backends import side_by_side
from cutline.common.store.envelope import opened, sealed

RETAINED = 1_000
BELOW, SHARED = "conditions", ".conditions"
_DIGITS = 10

What = Literal["began", "changed", "ended", "acknowledged", "taken_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A person knows of a condition: no alert is posted for it until `until` (None: until it ends). It covers these
    tables of a quarantine and no others. Times are seconds since 1970."""

    by: str
    at: float
    note: str
    until: float | None = None
    tables: tuple[str, ...] = ()

    def holds(self, now: float) -> bool:
        """Whether its end has not come yet."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A condition as the history tells it; `tables`: the first ones that it is about."""

    id: str
    name: str
    severity: str
    summary: str
    cause: str = ""
    since: float
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What holds after a change, and what is acknowledged, by the ids of the conditions."""

    holding: Mapping[str, Recorded] = field(default_factory=dict)
    acknowledged: Mapping[str, Acknowledgement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change, and the state after it. `by`: the person whose it is; `note`: that person's, or what has `changed`."""

    at: float
    what: What
    condition: Recorded
    state: State
    by: str | None = None
    note: str | None = None


class Files(Protocol):
    """What is needed of a backend, or of a pipeline's folder."""

    def create(self, path: str, data: bytes) -> bool:
        """Put if absent."""

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def location(self, path: str) -> str:
        """Return the absolute path or the object's address."""


class ConditionLog:
    """One history. All methods block; they raise Unavailable if the store does not answer, ProtocolError for a file
    that is corrupt."""

    def __init__(self, files: Files, below: str = BELOW) -> None:
        """Nothing is read yet."""
        self._files = files
        self._below = below
        self._newest = 0  # as far as is known
        self._state: State | None = None

    def newest(self) -> tuple[int, State]:
        """Return the number of the newest change (0: none), and what holds after it. Costs a listing the first time,
        then one look at a file for each change, and one more."""
        if self._state is None:
            numbers = self._numbers()
            self._newest = max(numbers, default=0)
            last = self.get(self._newest)
            self._state = State() if last is None else last.state
        while (after := self.get(self._newest + 1)) is not None:
            self._newest, self._state = self._newest + 1, after.state
        return self._newest, self._state

    def add(self, n: int, change: Change) -> bool:
        """Put change `n`, the number after the newest; durable on return. False if that number is taken."""
        if not self._files.create(self._path(n), sealed(asdict(change))):
            return False
        self._newest, self._state = n, change.state
        if n % 100 == 0:
            for old in self._numbers():
                if old <= n - RETAINED:
                    self._files.remove(self._path(old))
        return True

    def get(self, n: int) -> Change | None:
        """Return change `n`; None if there is none (yet), or if it was removed."""
        data = self._files.read(self._path(n)) if n else None
        return None if data is None else read(Change, opened(data, self._files.location(self._path(n))))

    def last(self, count: int) -> list[tuple[int, Change]]:
        """Return the newest `count` changes with their numbers, oldest first. Costs a listing."""
        found = side_by_side(self.get, self._numbers()[-count:])
        return [(n, change) for n, change in sorted(found, key=_number) if change is not None]

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self._files.names(self._below))
        return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal())

    def _path(self, n: int) -> str:
        return f"{self._below}/{n:010d}.json"


def _number(found: tuple[int, Any]) -> int:
    return found[0]
