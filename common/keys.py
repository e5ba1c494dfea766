"""When two keys are equal: as MySQL's own unique index takes them.

FLOAT and DOUBLE columns may be part of a key. MySQL takes 0 and -0 for the same value, so an UPDATE from one to the
other keeps its one row, while Arrow compares the bits. So wherever keys are compared, grouped or hashed, their columns
are first made `comparable`; the values of rows stay as they are. NaN, which equals nothing, can't occur: MySQL stores
neither NaN nor an infinity.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

Values = TypeVar("Values", pa.Array, pa.ChunkedArray)


def comparable(values: Values) -> Values:
    """Return a key column in which equal keys have equal bits: -0 is 0, all else is as it was."""
    if not pa.types.is_floating(values.type):
        return values
    made: Any = pc.add(values, pa.scalar(0.0, values.type))  # IEEE 754: -0 + 0 is 0
    return made
