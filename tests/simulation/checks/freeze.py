"""A machine's whole state as comparable data."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from cutline.common.schema import TableSchema

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
HANDED = {"now"}
"""Attributes with the time of the last fact, also of one that was refused: no state, and no rule goes by it."""


def freeze(value: Any) -> Any:
    """A machine's whole state as comparable data."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, TableSchema):
        return value.hash
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(freeze(getattr(value, f.name)) for f in dataclasses.fields(value)))
    if isinstance(value, dict):
        return {repr(k): freeze(v) for k, v in value.items()}
    if isinstance(value, list | tuple | deque):
        return [freeze(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if type(value).__module__.startswith(("cutline.common.", "cutline.services.")) and hasattr(value, "__dict__"):
        return (type(value).__name__, {k: freeze(v) for k, v in vars(value).items() if k not in HANDED})
    return value
