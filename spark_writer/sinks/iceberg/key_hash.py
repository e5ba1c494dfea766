"""Hashes keys to 96 bits by a secret, a column at a time, with numpy.

The value of a key is a vector of 32-bit words (null or not, length, content), the same whatever type a file has for it:
the caller casts it to the lake's type, which only ever widens; 0 and -0 are one value (common/keys.py). Each third of
the hash is `multilinear` (Lemire and Kaser, *Strongly universal string hashing is fast*, 2014): the upper half of
`start + sum(multiplier[i] * word[i])` modulo 2^64, with random multipliers. That is strongly universal: two different
keys, chosen without knowledge of the secret, have the same hash with probability 2^-96. So nobody can craft keys that
collide, and an entry found by its hash needs no look at the row: of a batch of a million keys in a table of a billion
rows, one key is taken for another with probability 10^15 / 2^96, about 10^-14.

The multipliers of column c are SHAKE-256(secret, c), so the hash of a text depends neither on the longest one of its
batch nor on the other columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.keys import comparable

SECRET_BYTES = 32
LANES = 3
_START = b"start"
_BLOCK_ROWS = 1 << 16
"""So many rows are hashed at once: their sums fit into a processor's cache."""


def kind_of(kind: pa.DataType) -> str:
    """Return what values of a type are hashed as; two types with the same answer give equal values equal hashes."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_decimal(kind):
        return f"decimal {kind.scale}"
    if pa.types.is_floating(kind):
        return "float, one zero"
    return str(kind)


class KeyHash:
    """The hash of a table's keys under one secret. Not thread-safe."""

    def __init__(self, secret: bytes) -> None:
        """Take `SECRET_BYTES` random bytes."""
        self.secret = secret
        self._multipliers: dict[int, Any] = {}
        self._start = np.frombuffer(hashlib.shake_256(secret + _START).digest(8 * LANES), "<u8")

    def __call__(self, columns: Sequence[pa.Array]) -> tuple[Any, Any]:
        """Hash the keys of these columns, all in the lake's types: 64 bits (uint64) and 32 bits (uint32) of each."""
        rows = len(columns[0])
        high, low = np.empty(rows, np.uint64), np.empty(rows, np.uint32)
        for first in range(0, rows, _BLOCK_ROWS):
            some = [column.slice(first, _BLOCK_ROWS) for column in columns]
            sums = np.empty((LANES, len(some[0])), np.uint64)
            sums[:] = self._start[:, np.newaxis]
            for at, column in enumerate(some):
                self._add(sums, at, column)
            sums >>= np.uint64(32)
            part = slice(first, first + sums.shape[1])
            high[part] = sums[0] << np.uint64(32) | sums[1]
            low[part] = sums[2]
        return high, low

    def _add(self, sums: Any, at: int, column: pa.Array) -> None:
        for place, rows, word in _words(column):
            multipliers = self._multiplier(at, place)
            if rows is None:
                for lane in range(LANES):
                    sums[lane] += multipliers[lane] * word
            else:
                for lane in range(LANES):
                    sums[lane, rows] += multipliers[lane] * word

    def _multiplier(self, column: int, place: int) -> Any:
        known = self._multipliers.get(column)
        if known is None or len(known) <= place:
            stream = hashlib.shake_256(self.secret + column.to_bytes(4, "little"))
            words = max(16, 2 * place)
            known = np.frombuffer(stream.digest(8 * LANES * words), "<u8").reshape(words, LANES)
            self._multipliers[column] = known
        return known[place]


def _words(column: pa.Array) -> Iterator[tuple[int, Any, Any]]:
    """Yield (place, rows or None for all, word as uint64) for the words of each value that may differ from 0."""
    if column.null_count:
        yield 0, None, column.is_null().to_numpy(zero_copy_only=False).astype(np.uint64)
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield from _text_words(column.cast(pa.large_binary()))
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        yield from _text_words(column.cast(pa.large_binary()))
    else:
        content = _fixed_words(column)
        for at in range(content.shape[1]):
            yield 2 + at, None, content[:, at].astype(np.uint64)


def _fixed_words(column: pa.Array) -> Any:
    """Return the words of values of a fixed size: integers and times have two, decimals have four."""
    kind = column.type
    if column.null_count:
        column = pc.if_else(column.is_null(), pa.scalar(0).cast(kind), column)
    if pa.types.is_decimal(kind):
        column, width = column.cast(pa.decimal128(38, kind.scale)), 4
    elif pa.types.is_floating(kind):
        column, width = comparable(column.cast(pa.float64())), 2
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        column, width = column.cast(pa.int64()), 2
    elif pa.types.is_date32(kind):
        column, width = column.cast(pa.int32()).cast(pa.int64()), 2
    else:
        column, width = column.cast(pa.int64()), 2
    start = column.offset * width
    return np.frombuffer(column.buffers()[1], "<u4")[start : start + len(column) * width].reshape(-1, width)


def _text_words(column: pa.Array) -> Iterator[tuple[int, Any, Any]]:
    """Yield the length and the words of texts or bytes; the last word is filled up with zeros."""
    if column.null_count:
        column = column.fill_null(b"")
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, "<i8")[column.offset : column.offset + len(column) + 1]
    starts, lengths = ends[:-1], np.diff(ends)
    longest = int(lengths.max()) if len(lengths) else 0
    yield 1, None, lengths.astype(np.uint64)
    if not longest:
        return
    size = -(-longest // 4)
    if int(lengths.min()) == longest:
        filled = np.zeros((len(lengths), 4 * size), np.uint8)
        filled[:, :longest] = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]].reshape(-1, longest)
        words = filled.view("<u4")
        for at in range(size):
            yield 2 + at, None, words[:, at].astype(np.uint64)
        return
    part = np.zeros(int(ends[-1] - ends[0]) + 4, np.uint8)
    part[:-4] = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
    each = np.ndarray((len(part) - 3,), "<u4", part, strides=(1,))  # the word at each byte
    starts, rows = starts - ends[0], np.arange(len(lengths))
    for at in range(size):
        rows = rows[lengths[rows] > 4 * at]
        rest = np.minimum(lengths[rows] - 4 * at, 4).astype(np.uint64)
        yield (
            2 + at,
            rows,
            each[starts[rows] + 4 * at].astype(np.uint64) & ((np.uint64(1) << rest * np.uint64(8)) - np.uint64(1)),
        )
