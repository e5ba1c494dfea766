"""Records that hold what changed since an earlier one, instead of everything (pure).

A record is *full*, or names the earlier record, its base, since which it gives the changes: the cost of a checkpoint
grows with the number of changed tables. The base is full, or names a full one: a record is read from three files at
most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

_BASES = 2  # a record is read from one file more
_BASES_KEPT = 3
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def changes(now: Mapping[K, T], before: Mapping[K, T]) -> dict[K, T | None]:
    """The values of `now` that differ from `before`; None for removed keys. Cheap where values are the same objects."""
    changed: dict[K, T | None] = {
        key: value for key, value in now.items() if (old := before.get(key)) is not value and old != value
    }
    changed.update(dict.fromkeys(before.keys() - now.keys()))
    return changed


class Deltas:
    """Chooses for each record of a sequence the earlier record, its *base*, since which it gives the changes.

    The bases at hand are the last full record and, if there is one, the last record that builds on it. The records that
    build on a base give as many values together as the base itself gives, at most; then the next one is a new base: it
    builds on the full record, or is full. So all records together cost a small multiple of the changes, a burst of
    changes is not repeated for long, and records without changes cost nothing. A value that is the same object as
    before costs nothing.
    A sequence has one writer. After an unclear answer that writer begins again with a full record (`forget`).
    """

    def __init__(self) -> None:
        self._bases: list[_Base] = []

    def choose(self, values: Mapping[K, T]) -> tuple[Any, dict[K, T | None]]:
        """Return the name of the base and the changes since; (None, all values) for a full record."""
        for base in reversed(self._bases):
            changed = base.changes(values)
            if base.spent + len(changed) <= base.size and 2 * len(changed) <= len(values):
                return base.name, changed
        return None, dict(values)

    def wrote(self, name: Any, values: Mapping[K, T], changed: Mapping[K, T | None], *, since: Any) -> None:
        """Note that record `name` is in the store, in the form that `choose` returned."""
        while self._bases and self._bases[-1].name != since:
            self._bases.pop()
        if self._bases:
            self._bases[-1].spent += len(changed)
        if not self._bases or (changed and len(self._bases) < _BASES):
            self._bases.append(_Base(name, values, size=len(changed)))

    @property
    def bases(self) -> set[Any]:
        """The names of the records that the next one may build on."""
        return {base.name for base in self._bases}

    def forget(self) -> None:
        """Make the next record a full one."""
        self._bases = []


class _Base:
    """A record that others build on; `size`: how many values it gives, `spent`: how many they give together."""

    def __init__(self, name: Any, values: Mapping[Any, Any], *, size: int) -> None:
        self.name, self.size, self.spent = name, size, 0
        self._values = values
        self._last: tuple[Mapping[Any, Any], dict[Any, Any]] = (values, {})

    def changes(self, values: Mapping[Any, Any]) -> dict[Any, Any]:
        """`changes` from this record's values to `values`; kept for the same object."""
        if values is not self._last[0]:
            self._last = values, changes(values, self._values)
        return self._last[1]


class Recent(Generic[K, T]):
    """What a reader of such a sequence keeps: the values of the last few bases, and of the last record that was read,
    which the next one may be the first to build on. Safe for several threads."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._bases: dict[Any, Mapping[K, T]] = {}
        self._last: dict[Any, Mapping[K, T]] = {}

    def base(self, name: Any, read: Callable[[], Mapping[K, T]]) -> Mapping[K, T]:
        """Return the values of a base: those that are kept, else those that `read` returns."""
        if (found := {**self._last, **self._bases}.get(name)) is None:
            found = read()
        others = [(other, values) for other, values in self._bases.items() if other != name]
        self._bases = dict([*others, (name, found)][-_BASES_KEPT:])
        return found

    def was_read(self, name: Any, values: Mapping[K, T]) -> None:
        """Note the last record that was read."""
        self._last = {name: values}


def fold(before: Mapping[K, T], changed: Mapping[K, T | None]) -> dict[K, T]:
    """`before` with the changes applied: the inverse of `changes`."""
    return {key: value for key, value in {**before, **changed}.items() if value is not None}


def since_of(body: Mapping[str, Any]) -> Any:
    """The earlier record that a record's body names as the one that it builds on; None for a full record."""
    return body.get("since")
