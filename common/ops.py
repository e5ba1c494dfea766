"""Row operations (pure): what a staged change (its field `OP`) does to its row.

| operation | its row is |
|---|---|
| `INSERT`, `UPDATE` | as the change's values are, from here on |
| `BEFORE` | as the values were until the `UPDATE` that follows; changes nothing |
| `DELETE` | gone; the values are the last it had |
| `READ` | as a chunk's SELECT gave it |
| `TRUNCATE` | gone with every row of its table; all columns are null |

Change together with: `OP_` of services/sources/mysql/decode/codes.py, by which compiled code names those of the binlog.
"""

from __future__ import annotations

from enum import StrEnum
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc


class Op(StrEnum):
    """A row operation; its value is what stands in the data."""

    INSERT = "+I"
    BEFORE = "-U"
    UPDATE = "+U"
    DELETE = "-D"
    READ = "r"
    TRUNCATE = "t"


NEVER_LAST = (Op.BEFORE, Op.TRUNCATE)
"""Operations that are never the last change of a key: an `UPDATE` with the same key follows, or there is no key."""


def is_any(column: pa.Array | pa.ChunkedArray, *ops: Op) -> pa.Array | pa.ChunkedArray:
    """For each row of an `OP` column, dictionary-encoded or not, whether its operation is one of `ops`."""
    plain = column.cast(pa.string())
    return reduce(pc.or_, (pc.equal(plain, op.value) for op in ops))  # for so few, cheaper than a set to look up
