# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""The arena: one block of memory into which a table's rows are decoded, and from which Arrow arrays are taken.

For each column the block has a region of validity (a byte a row, see `V_` in codes.py), and one of values or two of
offsets and data. A decoder writes row `row_count` and adds 1 to `row_count` once the row is complete. Data and offsets
of a row go after the last complete row's, so a row that fails leaves nothing.

Nothing is written outside the block: `put` and its like count a byte that has no room, but do not write it. The decoder
then sets `full_column` and `missing_bytes` and calls `_grow`, which lays out a larger arena, and decodes the row again.

Pointers stand for memory in compiled code and memoryviews in the interpreter: they are indexed, never moved. `put`,
`put_hex` and `put_null` are called for each byte or value: compiled decoders inline them from arena.pxd, interpreted
ones use the definitions here. Change both together.
"""

from __future__ import annotations

import array
from typing import Any

import cython
import numpy as np
import pyarrow as pa

from cutline.services.sources.mysql.damage import Damaged

if not cython.compiled:
    from cutline.services.sources.mysql.decode.codes import (
        C_DATA,
        C_END,
        C_FIX,
        C_LAYOUT,
        C_OFFS,
        C_STRIDE,
        C_VALID,
        L_BIT,
        L_I32,
        L_I64,
        L_I128,
        L_VAR,
        V_NULL,
    )
    from cutline.services.sources.mysql.decode.memory import copy, low64

    def put(to: Arena, b: int) -> None:
        """Write a byte of the value at hand."""
        if to.out < to.end:
            to.p8[to.out] = b
        to.out += 1

    def put_null(to: Arena, c: int, r: int) -> None:
        """Write NULL to row r of column c; a number's place becomes 0, so that equal rows have equal bytes."""
        q = to.columns
        layout = q[c * C_STRIDE + C_LAYOUT]
        fix = q[c * C_STRIDE + C_FIX] + r
        to.p8[q[c * C_STRIDE + C_VALID] + r] = V_NULL
        if layout == L_VAR:
            to.p32[q[c * C_STRIDE + C_OFFS] + r + 1] = to.p32[q[c * C_STRIDE + C_OFFS] + r]
        elif layout == L_I32:
            to.p32[fix] = 0
        elif layout == L_I64:
            to.p64[fix] = 0
        elif layout == L_I128:
            to.p64[2 * fix] = to.p64[2 * fix + 1] = 0
        else:
            to.p8[fix] = 0

    def put_hex(to: Arena, b: int) -> None:
        """Write a hexadecimal digit."""
        put(to, b"0123456789abcdef"[b])


COMPILED: bool = cython.compiled
"""Whether this module runs as C."""

_ROWS_AT_FIRST = 64
_DATA_AT_FIRST = 1 << 10
_KEPT_BYTES = 32 << 20
_MAX_DATA = (1 << 31) - 64
_POOL = pa.system_memory_pool()
"""malloc keeps the memory of a finished batch for the next one. Arrow's own pool returns it to the system; getting it
back doubles the page faults of a SELECT.
"""


@cython.cclass
class Arena:
    """The rows of one table; base of the decoders. Its fields (arena.pxd) are the interface of the functions that write
    values; they are many because each is an integer or a pointer that the inner loops use.
    """

    def _start(self, names: list[str], types: list[pa.DataType], layouts: list[int]) -> None:
        """Make an empty arena of columns with these names and layouts (`L_`). `types` are the Arrow types of the
        table's columns, which come first.
        """
        self.names, self.types = names, types
        self.column_count = len(layouts)
        plan = array.array("q", [0] * (C_STRIDE * max(1, len(layouts))))
        for c, layout in enumerate(layouts):
            plan[c * C_STRIDE + C_LAYOUT] = layout
        self.column_plan = plan
        q: cython.longlong[::1] = self.column_plan
        if cython.compiled:
            self.columns = cython.address(q[0])
        else:
            self.columns = q
        counts: dict[str, int] = {}
        nothing: Any = None
        self.unfit_counts, self.memory = counts, nothing
        self.row_count = self.data_bytes = 0
        self._lay_out(_ROWS_AT_FIRST, [_DATA_AT_FIRST] * len(layouts))

    def _lay_out(self, capacity: int, data: list[int]) -> None:
        """Lay out a new block for `capacity` rows and data[c] bytes of column c's data; keep the complete rows."""
        plan: Any = self.column_plan
        old = None if self.memory is None else memoryview(self.memory)
        places = []
        at = 0
        for c in range(self.column_count):
            layout = plan[c * C_STRIDE + C_LAYOUT]
            valid = at
            at += -(-capacity // 64) * 64
            fix = offs = begin = end = 0
            if layout == L_VAR:
                offs = at
                at += -(-(capacity + 1) * 4 // 64) * 64
                begin = at
                at += -(-data[c] // 64) * 64
                end = at
            else:
                fix = at
                at += -(-capacity * max(1, layout) // 64) * 64
            places.append((valid, fix, offs, begin, end))
        rows: int = self.row_count
        if not rows:
            self.memory = old = None  # frees the old block before the larger one is allocated
        mem = np.empty(max(at, 64), np.uint8).data  # not zeroed: pages that no row reaches are never touched
        for c, (valid, fix, offs, begin, end) in enumerate(places):
            base = c * C_STRIDE
            layout = plan[base + C_LAYOUT]
            if old is not None and rows:
                before = plan[base + C_VALID]
                mem[valid : valid + rows] = old[before : before + rows]
                if layout == L_VAR:
                    before = plan[base + C_OFFS] * 4
                    mem[offs : offs + 4 * rows + 4] = old[before : before + 4 * rows + 4]
                    used = int.from_bytes(old[before + 4 * rows : before + 4 * rows + 4], "little")
                    before = plan[base + C_DATA]
                    mem[begin : begin + used] = old[before : before + used]
                else:
                    width = max(1, layout)
                    before = plan[base + C_FIX] * width
                    mem[fix : fix + rows * width] = old[before : before + rows * width]
            plan[base + C_VALID] = valid
            plan[base + C_FIX] = fix // max(1, layout) if layout != L_VAR else 0
            plan[base + C_OFFS] = offs // 4
            plan[base + C_DATA] = begin
            plan[base + C_END] = end
            if layout == L_VAR and not rows:
                mem[offs : offs + 4] = bytes(4)
        self.memory = mem
        self.capacity = capacity
        view: cython.uchar[::1] = mem
        if cython.compiled:
            self.p8 = cython.address(view[0])
            self.p32 = cython.cast(cython.p_int, self.p8)
            self.p64 = cython.cast(cython.p_longlong, self.p8)
        else:
            self.p8 = mem
            self.p32 = mem.cast("i")
            self.p64 = mem.cast("q")

    def _grow(self) -> None:
        """Make room for `missing_bytes` in `full_column` (or for more rows), and for as much again in all columns."""
        if not self.capacity:
            self._lay_out(_ROWS_AT_FIRST, [_DATA_AT_FIRST] * self.column_count)
            return
        plan: Any = self.column_plan
        ends = memoryview(self.memory).cast("i")
        rows: int = self.row_count
        full: int = self.full_column
        capacity: int = self.capacity
        if full < 0 or 2 * rows > capacity:
            capacity = max(2 * rows, capacity + 8)
        data = []
        for c in range(self.column_count):
            room = plan[c * C_STRIDE + C_END] - plan[c * C_STRIDE + C_DATA]
            if plan[c * C_STRIDE + C_LAYOUT] == L_VAR:
                room = max(room, 2 * ends[plan[c * C_STRIDE + C_OFFS] + rows])
            if c == full:
                room = max(room, plan[c * C_STRIDE + C_END] - plan[c * C_STRIDE + C_DATA] + int(self.missing_bytes))
                if room > _MAX_DATA:
                    raise ValueError(f"column {self.names[c]} has over 2 GiB in one batch: take batches earlier")
            data.append(min(room, _MAX_DATA))
        del ends  # or it would keep the old block alive
        self._lay_out(capacity, data)

    @property
    def size(self) -> int:
        """Bytes of the complete rows, about as Arrow will count them."""
        total: cython.longlong = 0
        c: cython.Py_ssize_t
        q: cython.p_longlong = self.columns
        for c in range(self.column_count):
            if q[c * C_STRIDE + C_LAYOUT] == L_VAR:
                total += 4 * self.row_count + self.p32[q[c * C_STRIDE + C_OFFS] + self.row_count]
            else:
                total += q[c * C_STRIDE + C_LAYOUT] * self.row_count
        return total

    @property
    def held(self) -> int:
        """Bytes of memory kept for the next rows."""
        return len(self.memory)

    def release(self) -> None:
        """Free the memory kept for the next rows. Only between `take` and the next row."""
        self._lay_out(0, [0] * self.column_count)

    @property
    def zero_dates(self) -> dict[str, int]:
        """How many values became null, by column, in all rows taken so far: zero, partial or impossible dates, and in
        the binlog key values that can't be told from others (`services.sources.mysql.keys.indistinct` says which).
        """
        return dict(self.unfit_counts)

    # -- taking the batch

    def _array(self, c: int, kind: pa.DataType) -> pa.Array:
        """Column c of the complete rows as an Arrow array; its buffers are copies unless the arena is given away."""
        plan: Any = self.column_plan
        view = memoryview(self.memory)
        rows: int = self.row_count
        _buffer: Any = pa.py_buffer if self._given_away() else _copied
        base = c * C_STRIDE
        layout = plan[base + C_LAYOUT]
        at = plan[base + C_VALID]
        nulls = rows - _pack(self, at, rows)
        unfit = self.unfit_packed
        if unfit:
            name = self.names[c]
            self.unfit_counts[name] = self.unfit_counts.get(name, 0) + unfit
        valid = _buffer(view[at : at + (rows + 7) // 8]) if nulls else None
        if layout == L_VAR:
            at = plan[base + C_OFFS] * 4
            ends = view[at : at + 4 * rows + 4]
            used = ends.cast("i")[rows]
            begin = plan[base + C_DATA]
            if pa.types.is_list(kind):
                counts = _copied(ends)
                numbers = memoryview(counts).cast("i")
                for i in range(rows + 1):
                    numbers[i] = numbers[i] // 4
                child = pa.Array.from_buffers(kind.value_type, used // 4, [None, _buffer(view[begin : begin + used])])
                return pa.Array.from_buffers(kind, rows, [valid, counts], nulls, children=[child])
            made = pa.Array.from_buffers(kind, rows, [valid, _buffer(ends), _buffer(view[begin : begin + used])], nulls)
            if kind == pa.string() and _count(self, begin, used, 128):
                try:
                    made.validate(full=True)
                except pa.ArrowInvalid as error:
                    where = self._where(_first_not_text(made))
                    raise Damaged(f"column {self.names[c]} holds bytes that are not UTF-8 at {where}") from error
            return made
        if layout == L_BIT:
            at = plan[base + C_FIX]
            _pack(self, at, rows)
            values = _buffer(view[at : at + (rows + 7) // 8])
        else:
            at = plan[base + C_FIX] * layout
            values = _buffer(view[at : at + layout * rows])
        return pa.Array.from_buffers(kind, rows, [valid, values], nulls)

    def _where(self, row: int) -> str:
        """Where a complete row came from, for an error message."""
        return f"row {row} of the batch"

    def _given_away(self) -> bool:
        """Whether the arena is so large that the batch keeps its memory, and the next rows get a new block."""
        return len(self.memory) > _KEPT_BYTES

    def _clear(self) -> None:
        """Start the next batch."""
        given_away = self._given_away()
        self.row_count = 0
        if given_away:
            self.memory = None
            self._lay_out(_ROWS_AT_FIRST, [_DATA_AT_FIRST] * self.column_count)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pack(arena: Arena, at: cython.Py_ssize_t, rows: cython.Py_ssize_t) -> cython.longlong:
    """Turn bytes (`V_`, or 0 and 1) into bits in place; how many bytes are 1. `unfit_packed` becomes how many are 2."""
    i: cython.Py_ssize_t
    x: cython.ulonglong
    ones: cython.longlong = 0
    twos: cython.longlong = 0
    p: cython.p_uchar = arena.p8
    mask: cython.ulonglong = 0x01010101
    # multiplying by this moves bit 0 of byte i to bit 56 + i
    gather: cython.ulonglong = (cython.cast(cython.ulonglong, 0x01020408) << 32) | 0x10204080
    mask = mask | (mask << 32)
    for i in range(rows, (rows + 7) // 8 * 8):
        p[at + i] = 0
    for i in range((rows + 7) // 8):
        if cython.compiled:
            x = cython.cast(cython.ulonglong, arena.p64[at // 8 + i])
        else:
            x = arena.p64[at // 8 + i] & 0xFFFFFFFFFFFFFFFF
        ones += low64((x & mask) * mask) >> 56
        twos += low64(((x >> 1) & mask) * mask) >> 56
        p[at + i] = low64((x & mask) * gather) >> 56
    arena.unfit_packed = twos
    return ones


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count(arena: Arena, at: cython.Py_ssize_t, n: cython.Py_ssize_t, least: cython.int) -> cython.longlong:
    """How many of n bytes are `least` or greater."""
    i: cython.Py_ssize_t
    found: cython.longlong = 0
    p: cython.p_uchar = arena.p8
    for i in range(n):
        found += p[at + i] >= least
    return found


def _first_not_text(made: pa.Array) -> int:
    """The first value that is not UTF-8, of an array of which at least one is not."""
    first, last = 0, len(made) - 1
    while first < last:
        middle = (first + last) // 2
        try:
            made.slice(first, middle + 1 - first).validate(full=True)
            first = middle + 1
        except pa.ArrowInvalid:
            last = middle
    return first


def _copied(view: memoryview) -> pa.Buffer:
    made = pa.allocate_buffer(len(view), memory_pool=_POOL)
    if len(view):
        memoryview(made).cast("B")[:] = view
    return made


# -- writing the bytes of the value at hand


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_from(to: Arena, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
    """Write src[at : at + n]."""
    if to.out + n <= to.end:
        copy(to.p8, to.out, src, at, n)
    to.out += n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_number(to: Arena, v: cython.ulonglong, width: cython.int) -> cython.void:
    """Write decimal digits, with zeros in front up to `width`."""
    n: cython.int = 1
    i: cython.int
    rest: cython.ulonglong = v // 10
    while rest:
        n += 1
        rest = rest // 10
    if n < width:
        n = width
    for i in range(n):
        if to.out + n - 1 - i < to.end:
            to.p8[to.out + n - 1 - i] = 48 + v % 10
        v = v // 10
    to.out += n
