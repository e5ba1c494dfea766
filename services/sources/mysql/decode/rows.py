# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""The decoders: result sets of the binary protocol, and row events of the binlog, from the socket's bytes to Arrow.

One file in Cython's pure Python mode: `setup.py` compiles it; without a C compiler the interpreter runs it as it is,
with the same results and some hundred times slower (`COMPILED` tells which). Promises:

1. A row has the same bytes whether it comes by SELECT (`ResultDecoder`) or by the binlog (`EventDecoder`); the types
   are those of common/schema.py's table.
2. No Python object per row or value, except for rare kinds of value: a double inside JSON, text in gb18030.
3. No byte is read outside the input and none written outside the arena, whatever the input is. What can't be decoded
   raises Damaged with the offset, and leaves the rows before it as they are; so does any other error on the way.

How: each decoder makes a plan once (a few integers a column) and one arena: a block of memory with a region for each
column's validity bytes, values, or offsets and data, which `take` copies out as Arrow buffers. A value that doesn't
fit ends the loop with FULL; the arena is laid out larger and the row decoded again. Offsets of a row are written
behind the last complete row, so a row that failed leaves nothing. Pointers stand for memory in compiled code and
memoryviews in the interpreter: they are only indexed, never moved.

The numbers below are constants in C (rows.pxd). Change together with: common/schema.py (types),
binlog/cursor.py.
"""

# ruff: noqa: B007 (a typed loop variable may not be renamed)

from __future__ import annotations

import array
import re
import zlib
from typing import Any

import cython
import numpy as np
import pyarrow as pa
import pymysql

from cutline.common.schema import FILE, GTID, META_FIELDS, OP, TABLE, Column, MysqlType, TableSchema, parse_type
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.charsets import (
    EIGHT_BIT,
    MULTI_BYTE,
    charset_of,
    code_points,
    key_points,
    multi_byte_points,
    to_text,
)

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_Resize
    from cython.cimports.libc.string import memcpy
else:
    L_BIT, L_I8, L_I32, L_I64, L_I128, L_VAR = 0, 1, 4, 8, 16, 32
    C_LAYOUT, C_VALID, C_FIX, C_OFFS, C_DATA, C_END, C_STRIDE = 0, 1, 2, 3, 4, 5, 8
    S_KIND, S_DEST, S_SIZE, S_PREFIX, S_ARG, S_ARG2, S_STRIP, S_KEY, S_KEY_AT, S_KEY_N, S_STRIDE = range(11)
    K_BYTES, K_DECIMAL, K_DECIMAL_WIDE, K_DATE, K_DATETIME, K_TIME, K_BIT1, K_VECTOR = range(8)
    K_LE_SIGNED, K_LE_UNSIGNED, K_LE_U64, K_COPY, K_YEAR, K_BIN_DATE, K_BIN_DATETIME, K_BIN_TIMESTAMP = range(8, 16)
    K_BIN_TIME, K_BIN_DECIMAL, K_BIN_DECIMAL_WIDE, K_TABLE, K_UTF16, K_UTF32, K_CODEC, K_ENUM, K_SET = range(16, 25)
    K_PAD, K_JSON, K_UUID, K_INET6, K_INET4, K_PAIRS, K_COMPRESSED, K_BOOLEAN, K_YEAR_2 = range(25, 34)
    OK, FULL, CORRUPT, KEY_CHANGED, UNTOLD = range(5)
    M_OP, M_SEQ, M_FILE, M_POS, M_ROW, M_GTID, M_TS, M_COUNT = range(8)
    OP_INSERT, OP_UPDATE, OP_DELETE, OP_BEFORE, OP_TRUNCATE = range(5)

COMPILED: bool = cython.compiled
"""Whether this module runs as C."""

_OPS = ("+I", "+U", "-D", "-U", "t")
_ROWS_AT_FIRST = 256
_DATA_AT_FIRST = 1 << 12
_KEPT_BYTES = 32 << 20
_VALUE_BYTES = 64 << 20
_ROW_BYTES = _VALUE_BYTES + (1 << 20)  # numbers and the lengths of values come besides
_POOL = pa.system_memory_pool()
"""malloc keeps what a batch freed for the next one. Arrow's own pool gives it back to the system: half of the page
faults of a SELECT are to have it again.
"""
_MAX_DATA = (1 << 31) - 64


class PartialImage(Damaged):
    """A row image lacks columns (`binlog_row_image` is not FULL, perhaps only in one session): the table is
    quarantined.
    """


class _Misfit(Exception):
    """A column of the event that doesn't fit the schema; its text goes to `EventDecoder.faults`."""


# ---- memory ----------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    dst: cython.p_uchar, at: cython.Py_ssize_t, src: cython.p_uchar, frm: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.void:
    if cython.compiled:
        memcpy(dst + at, src + frm, n)
    else:
        dst[at : at + n] = src[frm : frm + n]


@cython.cfunc
def _bytes(src: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return src[at:end]
    else:
        return bytes(src[at:end])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _signed(v: cython.ulonglong) -> cython.longlong:
    """The same 64 bits as a signed number."""
    if cython.compiled:
        return cython.cast(cython.longlong, v)
    else:
        return v - (1 << 64) if v >> 63 else v


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _low64(v: cython.ulonglong) -> cython.ulonglong:
    """What C does by itself: keep 64 bits."""
    if cython.compiled:
        return v
    else:
        return v & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _low32(v: cython.ulonglong) -> cython.ulonglong:
    """The low 32 bits."""
    if cython.compiled:
        return cython.cast(cython.uint, v)
    else:
        return v & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _le(src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.ulonglong:
    """An unsigned little-endian number of 1 to 8 bytes."""
    v: cython.ulonglong = 0
    i: cython.Py_ssize_t
    if n == 4:  # by far the most frequent, and one instruction
        v = src[at] | (src[at + 1] << 8) | (src[at + 2] << 16)
        return v | (cython.cast(cython.ulonglong, src[at + 3]) << 24)
    for i in range(n):
        v = v | (cython.cast(cython.ulonglong, src[at + i]) << (8 * i))
    return v


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _be(src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.ulonglong:
    """An unsigned big-endian number of 0 to 8 bytes."""
    v: cython.ulonglong = 0
    i: cython.Py_ssize_t
    for i in range(n):
        v = (v << 8) | src[at + i]
    return v


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _byte(src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t, i: cython.Py_ssize_t) -> cython.uint:
    """Byte i of a value whose zero bytes at the end were cut off."""
    return src[at + i] if i < n else 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _days(y: cython.longlong, m: cython.longlong, d: cython.longlong) -> cython.longlong:
    """Days since 1970-01-01 of a date with year >= 1 (proleptic Gregorian)."""
    if m <= 2:
        y -= 1
        m += 12
    return 365 * y + y // 4 - y // 100 + y // 400 + (153 * (m - 3) + 2) // 5 + d - 1 - 719468


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_date(y: cython.longlong, m: cython.longlong, d: cython.longlong) -> cython.bint:
    """Whether it is a day of the calendar in the years 1 to 9999; else it is a zero, partial or impossible date."""
    if y < 1 or y > 9999 or m < 1 or m > 12 or d < 1 or d > 31:
        return False
    if d <= 28:
        return True
    if m == 2:
        return d == 29 and y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)
    return d <= 30 or not (m == 4 or m == 6 or m == 9 or m == 11)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _clock(src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.longlong:
    """Microseconds of a time of day in the binary protocol (hour, minute, second, and if n is 7 four bytes of
    microseconds), or -1.
    """
    part: cython.longlong = _le(src, at + 3, 4) if n == 7 else 0
    if src[at] > 23 or src[at + 1] > 59 or src[at + 2] > 59 or part > 999999:
        return -1
    return (src[at] * 3600 + src[at + 1] * 60 + src[at + 2]) * cython.cast(cython.longlong, 1000000) + part


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _ten(n: cython.int) -> cython.ulonglong:
    v: cython.ulonglong = 1
    i: cython.int
    for i in range(n):
        v *= 10
    return v


def _double_text(bits: int) -> bytes:
    """The double with these 64 bits as MySQL prints it inside JSON: shortest digits, always with a point or an
    exponent.
    """
    (value,) = memoryview(bits.to_bytes(8, "little")).cast("d")
    sign, digits, exponent = _shortest(value)
    point = len(digits) + exponent  # the value is 0.DIGITS times ten to this power
    n = len(digits)
    if -14 <= point <= 15 or point < n:
        if point <= -15:
            text = ""
        elif point <= 0:
            text = "0." + "0" * -point + digits
        elif point >= n:
            text = digits + "0" * (point - n) + ".0"
        else:
            text = digits[:point] + "." + digits[point:]
        if text:
            return (sign + text).encode()
    mantissa = digits[0] + ("." + digits[1:] if n > 1 else "")
    return f"{sign}{mantissa}e{point - 1}".encode()


def _shortest(value: float) -> tuple[str, str, int]:
    """Sign, digits without zeros at the ends, and the power of ten of the last digit."""
    text = repr(value)
    sign = ""
    if text.startswith("-"):
        sign, text = "-", text[1:]
    if "n" in text:
        raise Damaged(f"{text} is no number that MySQL stores")
    mantissa, _, exponent = text.partition("e")
    whole, _, part = mantissa.partition(".")
    digits = whole + part
    power = int(exponent or 0) - len(part)
    stripped = digits.rstrip("0")
    power += len(digits) - len(stripped)
    digits = stripped.lstrip("0")
    return (sign, digits, power) if digits else (sign, "0", 0)


@cython.cclass
class _Columns:
    """The arena of one table's columns, and the stores of every kind of value; base of both decoders."""

    _mem: Any
    _plan: Any
    _sources: Any
    _p8: cython.p_uchar
    _p32: cython.p_int
    _p64: cython.p_longlong
    _q: cython.p_longlong  # plan of the built columns
    _s: cython.p_longlong  # plan of the source columns
    _aux: Any  # code points of 8-bit character sets, ends of ENUM and SET members
    _x: cython.p_int
    _texts: Any  # bytes of the members
    _t: cython.p_uchar
    _codecs: list[Any]
    _types: list[Any]
    _names: list[Any]
    _source_names: list[Any]
    _zeros: dict[str, int]
    _zeros_packed: cython.longlong
    _columns: cython.Py_ssize_t
    _source_count: cython.Py_ssize_t
    _rows: cython.Py_ssize_t
    _capacity: cython.Py_ssize_t
    _full: cython.Py_ssize_t  # the column whose data didn't fit, -1 for the rows
    _need: cython.Py_ssize_t
    _made: cython.longlong  # bytes of data written for the row at hand
    _bad_at: cython.Py_ssize_t
    _bad_source: cython.Py_ssize_t
    _hi: cython.ulonglong
    _lo: cython.ulonglong
    _out: cython.Py_ssize_t  # where the value that is being written goes on
    _end: cython.Py_ssize_t
    _visits: cython.longlong
    _limit: cython.Py_ssize_t

    def _prepare(
        self,
        names: list[str],
        types: list[pa.DataType],
        layouts: list[int],
        sources: list[list[int]],
        names_in: list[str],
    ) -> None:
        self._names, self._types, self._source_names = names, types, names_in
        self._columns, self._source_count = len(layouts), len(sources)
        plan = array.array("q", [0] * (C_STRIDE * max(1, len(layouts))))
        for c, layout in enumerate(layouts):
            plan[c * C_STRIDE + C_LAYOUT] = layout
        self._plan = plan
        self._sources = array.array("q", [number for source in sources for number in source] or [0])
        q: cython.longlong[::1] = self._plan
        s: cython.longlong[::1] = self._sources
        if cython.compiled:
            self._q, self._s = cython.address(q[0]), cython.address(s[0])
        else:
            self._q, self._s = q, s
        self._zeros = {}
        self._rows = self._made = 0
        self._mem = None
        self._lay_out(_ROWS_AT_FIRST, [_DATA_AT_FIRST] * len(layouts))

    def _tables(self, numbers: list[int], texts: bytes, codecs: list[Any]) -> None:
        self._aux, self._texts, self._codecs = array.array("i", numbers or [0]), bytearray(texts or b"\0"), codecs
        x: cython.int[::1] = self._aux
        t: cython.uchar[::1] = self._texts
        if cython.compiled:
            self._x, self._t = cython.address(x[0]), cython.address(t[0])
        else:
            self._x, self._t = x, memoryview(t)

    def _lay_out(self, capacity: int, data: list[int]) -> None:
        """Lay the arena out anew for so many rows and so many bytes of data a column; complete rows are kept."""
        plan: Any = self._plan
        old = None if self._mem is None else memoryview(self._mem)
        moved = []
        at = 0
        for c in range(self._columns):
            base = c * C_STRIDE
            layout = plan[base + C_LAYOUT]
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
            moved.append((valid, fix, offs, begin, end))
        rows: int = self._rows
        if not rows:
            self._mem = old = None  # gone before the larger one is there
        mem = np.empty(max(at, 64), np.uint8).data  # not zeroed: what no row reaches costs nothing
        for c, (valid, fix, offs, begin, end) in enumerate(moved):
            base = c * C_STRIDE
            layout = plan[base + C_LAYOUT]
            if old is not None and rows:
                was = plan[base + C_VALID]
                mem[valid : valid + rows] = old[was : was + rows]
                if layout == L_VAR:
                    was = plan[base + C_OFFS] * 4
                    mem[offs : offs + 4 * rows + 4] = old[was : was + 4 * rows + 4]
                    used = int.from_bytes(old[was + 4 * rows : was + 4 * rows + 4], "little")
                    was = plan[base + C_DATA]
                    mem[begin : begin + used] = old[was : was + used]
                else:
                    width = max(1, layout)
                    was = plan[base + C_FIX] * width
                    mem[fix : fix + rows * width] = old[was : was + rows * width]
            plan[base + C_VALID] = valid
            plan[base + C_FIX] = fix // max(1, layout) if layout != L_VAR else 0
            plan[base + C_OFFS] = offs // 4
            plan[base + C_DATA] = begin
            plan[base + C_END] = end
            if layout == L_VAR and not rows:
                mem[offs : offs + 4] = bytes(4)
        # a failing row may have written offsets behind the last complete row; they are never read
        self._mem = mem
        self._capacity = capacity
        view: cython.uchar[::1] = mem
        if cython.compiled:
            self._p8 = cython.address(view[0])
            self._p32 = cython.cast(cython.p_int, self._p8)
            self._p64 = cython.cast(cython.p_longlong, self._p8)
        else:
            self._p8 = mem
            self._p32 = mem.cast("i")
            self._p64 = mem.cast("q")

    def _grow(self) -> None:
        """Make room for what didn't fit (`_full` and `_need` say where and how much), and for as much again of all."""
        plan: Any = self._plan
        ends = memoryview(self._mem).cast("i")
        rows: int = self._rows
        full: int = self._full
        capacity: int = self._capacity
        if full < 0 or 2 * rows > capacity:
            capacity = max(2 * rows, capacity + 8)
        data = []
        for c in range(self._columns):
            room = plan[c * C_STRIDE + C_END] - plan[c * C_STRIDE + C_DATA]
            if plan[c * C_STRIDE + C_LAYOUT] == L_VAR:
                room = max(room, 2 * ends[plan[c * C_STRIDE + C_OFFS] + rows])
            if c == full:
                room = max(room, plan[c * C_STRIDE + C_END] - plan[c * C_STRIDE + C_DATA] + int(self._need))
                if room > _MAX_DATA:
                    raise ValueError(f"column {self._names[c]} has over 2 GiB in one batch: take it earlier")
            data.append(min(room, _MAX_DATA))
        del ends  # or the arena would live as long
        self._lay_out(capacity, data)

    @property
    def size(self) -> int:
        """Their bytes, about as Arrow will count them."""
        total: cython.longlong = 0
        c: cython.Py_ssize_t
        q: cython.p_longlong = self._q
        for c in range(self._columns):
            if q[c * C_STRIDE + C_LAYOUT] == L_VAR:
                total += 4 * self._rows + self._p32[q[c * C_STRIDE + C_OFFS] + self._rows]
            else:
                total += q[c * C_STRIDE + C_LAYOUT] * self._rows
        return total

    @property
    def held(self) -> int:
        """Bytes of memory that it keeps for the rows to come."""
        return len(self._mem)

    @property
    def zero_dates(self) -> dict[str, int]:
        """How many values became null, by column, in all rows taken so far: zero, partial or impossible dates, and in
        the binlog values of a key that can't be told from others (`services.sources.mysql.keys.untold` says which).
        """
        return dict(self._zeros)

    # -- taking the batch

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _pack(self, at: cython.Py_ssize_t, rows: cython.Py_ssize_t) -> cython.longlong:
        """Turn bytes (0, 1, 2) into bits, in place, bit 0 of each; how many are 1. `_zeros_packed`: how many are 2."""
        i: cython.Py_ssize_t
        x: cython.ulonglong
        ones: cython.longlong = 0
        twos: cython.longlong = 0
        p: cython.p_uchar = self._p8
        mask: cython.ulonglong = 0x01010101
        # multiplied with this, bit 0 of byte i goes to bit 56 + i
        gather: cython.ulonglong = (cython.cast(cython.ulonglong, 0x01020408) << 32) | 0x10204080
        mask = mask | (mask << 32)
        for i in range(rows, (rows + 7) // 8 * 8):
            p[at + i] = 0
        for i in range((rows + 7) // 8):
            if cython.compiled:
                x = cython.cast(cython.ulonglong, self._p64[at // 8 + i])
            else:
                x = self._p64[at // 8 + i] & 0xFFFFFFFFFFFFFFFF
            ones += _low64((x & mask) * mask) >> 56
            twos += _low64(((x >> 1) & mask) * mask) >> 56
            p[at + i] = _low64((x & mask) * gather) >> 56
        self._zeros_packed = twos
        return ones

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _count(self, at: cython.Py_ssize_t, n: cython.Py_ssize_t, least: cython.int) -> cython.longlong:
        """How many bytes are at least so large."""
        i: cython.Py_ssize_t
        found: cython.longlong = 0
        p: cython.p_uchar = self._p8
        for i in range(n):
            found += p[at + i] >= least
        return found

    def _array(self, c: int, kind: pa.DataType) -> pa.Array:
        """Column c of the complete rows as an Arrow array, with buffers of its own if the arena is used again."""
        plan: Any = self._plan
        view = memoryview(self._mem)
        rows: int = self._rows
        _buffer: Any = pa.py_buffer if self._given_away() else _copied
        base = c * C_STRIDE
        layout = plan[base + C_LAYOUT]
        at = plan[base + C_VALID]
        nulls = rows - self._pack(at, rows)
        zeros = self._zeros_packed
        if zeros:
            name = self._names[c]
            self._zeros[name] = self._zeros.get(name, 0) + zeros
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
            if kind == pa.string() and self._count(begin, used, 128):
                try:
                    made.validate(full=True)
                except pa.ArrowInvalid as error:
                    where = self._where(_first_not_text(made))
                    raise Damaged(f"column {self._names[c]} holds bytes that are not UTF-8 at {where}") from error
            return made
        if layout == L_BIT:
            at = plan[base + C_FIX]
            self._pack(at, rows)
            values = _buffer(view[at : at + (rows + 7) // 8])
        else:
            at = plan[base + C_FIX] * layout
            values = _buffer(view[at : at + layout * rows])
        return pa.Array.from_buffers(kind, rows, [valid, values], nulls)

    def _where(self, row: int) -> str:
        """Where a complete row comes from."""
        return f"row {row} of the batch"

    def _given_away(self) -> bool:
        """Whether the arena is so large that its batch takes it along, and the next rows begin with another one."""
        return len(self._mem) > _KEPT_BYTES

    def _clear(self) -> None:
        given_away = self._given_away()
        self._rows = 0
        if given_away:
            self._mem = None
            self._lay_out(_ROWS_AT_FIRST, [_DATA_AT_FIRST] * self._columns)

    # -- writing bytes of the value at hand to its column's data

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(self, b: cython.int) -> cython.void:
        """One byte; beyond the end it is only counted."""
        if self._out < self._end:
            self._p8[self._out] = b
        self._out += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_from(self, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
        if self._out + n <= self._end:
            _copy(self._p8, self._out, src, at, n)
        self._out += n

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_number(self, v: cython.ulonglong, width: cython.int) -> cython.void:
        """Decimal digits, with zeros in front up to `width`."""
        n: cython.int = 1
        i: cython.int
        rest: cython.ulonglong = v // 10
        while rest:
            n += 1
            rest = rest // 10
        if n < width:
            n = width
        for i in range(n):
            if self._out + n - 1 - i < self._end:
                self._p8[self._out + n - 1 - i] = 48 + v % 10
            v = v // 10
        self._out += n

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_point(self, cp: cython.uint) -> cython.void:
        """One code point in UTF-8."""
        if cp < 0x80:
            self._put(cp)
        elif cp < 0x800:
            self._put(0xC0 | (cp >> 6))
            self._put(0x80 | (cp & 63))
        elif cp < 0x10000:
            self._put(0xE0 | (cp >> 12))
            self._put(0x80 | ((cp >> 6) & 63))
            self._put(0x80 | (cp & 63))
        else:
            self._put(0xF0 | (cp >> 18))
            self._put(0x80 | ((cp >> 12) & 63))
            self._put(0x80 | ((cp >> 6) & 63))
            self._put(0x80 | (cp & 63))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _mul_add(self, m: cython.ulonglong, a: cython.ulonglong) -> cython.void:
        """hi:lo = hi:lo * m + a, m and a below 2**32."""
        low: cython.ulonglong = _low32(self._lo) * m + a
        high: cython.ulonglong = (self._lo >> 32) * m + (low >> 32)
        self._lo = _low64(high << 32) | _low32(low)
        self._hi = _low64(self._hi * m + (high >> 32))

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _set128(self, at: cython.Py_ssize_t, negative: cython.bint) -> cython.void:
        hi: cython.ulonglong = self._hi
        lo: cython.ulonglong = self._lo
        if negative:
            lo = _low64(~lo + 1)
            hi = _low64(~hi + (1 if lo == 0 else 0))
        self._p64[2 * at] = _signed(lo)
        self._p64[2 * at + 1] = _signed(hi)

    # -- one value

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _null(self, c: cython.Py_ssize_t, r: cython.Py_ssize_t) -> cython.void:
        """NULL into row r of column c; a number's place is zero then, so that equal rows have equal bytes."""
        q: cython.p_longlong = self._q
        layout: cython.longlong = q[c * C_STRIDE + C_LAYOUT]
        fix: cython.Py_ssize_t = q[c * C_STRIDE + C_FIX] + r
        self._p8[q[c * C_STRIDE + C_VALID] + r] = 0
        if layout == L_VAR:
            self._p32[q[c * C_STRIDE + C_OFFS] + r + 1] = self._p32[q[c * C_STRIDE + C_OFFS] + r]
        elif layout == L_I32:
            self._p32[fix] = 0
        elif layout == L_I64:
            self._p64[fix] = 0
        elif layout == L_I128:
            self._p64[2 * fix] = 0
            self._p64[2 * fix + 1] = 0
        else:
            self._p8[fix] = 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _store(
        self,
        src: cython.p_uchar,
        at: cython.Py_ssize_t,
        n: cython.Py_ssize_t,
        source: cython.Py_ssize_t,
        r: cython.Py_ssize_t,
    ) -> cython.int:
        """Value src[at : at + n] of the source column whose plan starts at `source`, into row r of its column."""
        s: cython.p_longlong = self._s
        q: cython.p_longlong = self._q
        kind: cython.longlong = s[source + S_KIND]
        dest: cython.longlong = s[source + S_DEST]
        c: cython.Py_ssize_t = dest * C_STRIDE
        layout: cython.longlong = q[c + C_LAYOUT]
        fix: cython.Py_ssize_t = q[c + C_FIX] + r
        i: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        u: cython.ulonglong
        v: cython.longlong
        y: cython.longlong
        m: cython.longlong
        d: cython.longlong
        negative: cython.bint = False
        done: cython.int
        if layout == L_VAR:
            begin = q[c + C_DATA] + self._p32[q[c + C_OFFS] + r]
            self._out = begin
            self._end = q[c + C_END]
            if kind == K_BYTES:
                if begin + n <= self._end:
                    _copy(self._p8, begin, src, at, n)
                self._out = begin + n
            elif kind == K_VECTOR:
                if n % 4:
                    return CORRUPT
                self._put_from(src, at, n)
            else:
                done = self._render(src, at, n, source)
                if done == UNTOLD:
                    self._p32[q[c + C_OFFS] + r + 1] = self._p32[q[c + C_OFFS] + r]
                    self._p8[q[c + C_VALID] + r] = 2
                    return OK
                if done != OK:
                    return done
            if self._out > self._end:
                self._full = dest
                self._need = self._out - self._end
                return FULL
            if s[source + S_STRIP]:
                while self._out > begin and self._p8[self._out - 1] == 32:
                    self._out -= 1
            self._made += self._out - begin
            self._p32[q[c + C_OFFS] + r + 1] = self._out - q[c + C_DATA]
            self._p8[q[c + C_VALID] + r] = 1
            return OK

        self._p8[q[c + C_VALID] + r] = 1
        if kind == K_LE_SIGNED or kind == K_LE_UNSIGNED:
            u = _le(src, at, n)
            if kind == K_LE_SIGNED and n < 8 and u >> (8 * n - 1):
                v = cython.cast(cython.longlong, u) - (cython.cast(cython.longlong, 1) << (8 * n))
            else:
                v = _signed(u)
            if layout == L_I32:
                if v < -2147483647 - 1 or v > 2147483647:
                    return CORRUPT
                self._p32[fix] = v
            else:
                self._p64[fix] = v
        elif kind == K_LE_U64:
            self._lo, self._hi = _le(src, at, n), 0
            self._set128(fix, False)
        elif kind == K_COPY:
            _copy(self._p8, fix * layout, src, at, layout)
        elif kind == K_DECIMAL:
            return self._decimal(src, at, n, s[source + S_ARG], s[source + S_ARG2], fix)
        elif kind == K_BIN_DECIMAL:
            return self._bin_decimal(src, at, s[source + S_ARG], s[source + S_ARG2], fix)
        elif kind == K_DATE or kind == K_DATETIME:
            return self._moment(src, at, n, fix, q[c + C_VALID] + r, layout)
        elif kind == K_BIN_DATE:
            u = _le(src, at, 3)
            self._set_date(fix, q[c + C_VALID] + r, u >> 9, (u >> 5) & 15, u & 31)
        elif kind == K_BIN_DATETIME:
            u = _be(src, at, 5)
            v = self._micros(src, at + 5, n - 5)
            if not u >> 39 or v < 0:
                return CORRUPT
            u = u - (cython.cast(cython.ulonglong, 1) << 39)
            y = (u >> 22) // 13
            m = (u >> 22) % 13
            d = ((u >> 12) & 31) * 3600 + ((u >> 6) & 63) * 60 + (u & 63)
            if d >= 86400:
                return CORRUPT
            self._set_time(fix, q[c + C_VALID] + r, y, m, (u >> 17) & 31, d * 1000000 + v)
        elif kind == K_BIN_TIMESTAMP:
            u = _be(src, at, 4)
            v = self._micros(src, at + 4, n - 4)
            if v < 0:
                return CORRUPT
            if u == 0 and v == 0:
                self._p64[fix] = 0
                self._p8[q[c + C_VALID] + r] = 2
            else:
                self._p64[fix] = cython.cast(cython.longlong, u) * 1000000 + v
        elif kind == K_TIME:
            if n != 0 and n != 8 and n != 12:
                return CORRUPT
            v = 0
            if n:
                v, d = _clock(src, at + 5, n - 5), _le(src, at + 1, 4)
                if src[at] > 1 or d > 34 or v < 0:
                    return CORRUPT
                v += d * 86400 * 1000000
                if src[at]:
                    v = -v
            self._p64[fix] = v
        elif kind == K_BIN_TIME:
            u = _be(src, at, 3)
            v = _be(src, at + 3, n - 3)
            # below zero the whole is the complement: the parts are taken from the positive number
            if not u >> 23:
                negative = True
                u = (cython.cast(cython.ulonglong, 1) << (8 * n - 1)) - ((u << (8 * (n - 3))) | v)
                v = u & ((cython.cast(cython.ulonglong, 1) << (8 * (n - 3))) - 1)
                u = u >> (8 * (n - 3))
            else:
                u = u & 0x7FFFFF
            for i in range(6 - n):
                v *= 100
            if v > 999999:
                return CORRUPT
            v += ((u >> 12) * 3600 + ((u >> 6) & 63) * 60 + (u & 63)) * 1000000
            self._p64[fix] = -v if negative else v
        elif kind == K_BIT1:
            if n != 1:
                return CORRUPT
            self._p8[fix] = src[at] & 1
        elif kind == K_BOOLEAN:
            self._p8[fix] = src[at] != 0
        elif kind == K_YEAR:
            self._p32[fix] = 1900 + src[at] if src[at] else 0
        elif kind == K_YEAR_2:  # of which a SELECT tells the last two digits alone
            v = _le(src, at, n) % 100
            self._p32[fix] = v + (1900 if v >= 70 else 2000)
        else:
            return CORRUPT
        return OK

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _micros(self, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.longlong:
        """A fraction of 0 to 3 bytes in microseconds, or -1."""
        v: cython.longlong = _be(src, at, n)
        i: cython.Py_ssize_t
        for i in range(3 - n):
            v *= 100
        return v if v <= 999999 else -1

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _set_date(
        self,
        fix: cython.Py_ssize_t,
        valid: cython.Py_ssize_t,
        y: cython.longlong,
        m: cython.longlong,
        d: cython.longlong,
    ) -> cython.void:
        if _is_date(y, m, d):
            self._p32[fix] = _days(y, m, d)
        else:
            self._p32[fix] = 0
            self._p8[valid] = 2

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _set_time(
        self,
        fix: cython.Py_ssize_t,
        valid: cython.Py_ssize_t,
        y: cython.longlong,
        m: cython.longlong,
        d: cython.longlong,
        micros: cython.longlong,
    ) -> cython.void:
        if _is_date(y, m, d):
            self._p64[fix] = _days(y, m, d) * 86400 * 1000000 + micros
        else:
            self._p64[fix] = 0
            self._p8[valid] = 2

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _moment(
        self,
        src: cython.p_uchar,
        at: cython.Py_ssize_t,
        n: cython.Py_ssize_t,
        fix: cython.Py_ssize_t,
        valid: cython.Py_ssize_t,
        layout: cython.longlong,
    ) -> cython.int:
        """DATE, DATETIME or TIMESTAMP of the binary protocol, which leaves zeros at its end out."""
        y: cython.longlong = 0
        m: cython.longlong = 0
        d: cython.longlong = 0
        micros: cython.longlong = 0
        if n >= 4:
            y, m, d = _le(src, at, 2), src[at + 2], src[at + 3]
        if n == 7 or n == 11:
            micros = _clock(src, at + 4, n - 4)
        elif n != 0 and n != 4:
            return CORRUPT
        if y > 9999 or m > 12 or d > 31 or micros < 0 or (layout == L_I32 and micros):
            return CORRUPT
        if layout == L_I32:
            self._set_date(fix, valid, y, m, d)
        else:
            self._set_time(fix, valid, y, m, d, micros)
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _decimal(
        self,
        src: cython.p_uchar,
        at: cython.Py_ssize_t,
        n: cython.Py_ssize_t,
        precision: cython.longlong,
        scale: cython.longlong,
        fix: cython.Py_ssize_t,
    ) -> cython.int:
        """Text with exactly `scale` digits after the point, at most `precision` digits besides zeros in front."""
        i: cython.Py_ssize_t = at
        end: cython.Py_ssize_t = at + n
        group: cython.ulonglong = 0
        in_group: cython.int = 0
        digits: cython.int = 0
        after: cython.longlong = -1
        negative: cython.bint = False
        if n > 0 and src[at] == 45:
            negative = True
            i += 1
        self._lo = 0
        self._hi = 0
        while i < end:
            if src[i] == 46 and after < 0:
                after = 0
            elif src[i] >= 48 and src[i] <= 57:
                if digits or src[i] != 48:
                    digits += 1
                group = group * 10 + (src[i] - 48)
                in_group += 1
                if after >= 0:
                    after += 1
                if in_group == 9:
                    self._mul_add(1000000000, group)
                    group = 0
                    in_group = 0
            else:
                return CORRUPT
            i += 1
        if digits > precision or (after if after > 0 else 0) != scale:
            return CORRUPT
        if in_group:
            self._mul_add(_ten(in_group), group)
        self._set128(fix, negative)
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _bin_decimal(
        self,
        src: cython.p_uchar,
        at: cython.Py_ssize_t,
        precision: cython.longlong,
        scale: cython.longlong,
        fix: cython.Py_ssize_t,
    ) -> cython.int:
        """MySQL's packed decimal: groups of nine digits in four bytes, the rest of both sides in as few as hold it."""
        negative: cython.bint = not src[at] & 0x80
        flip: cython.uint = 0xFF if negative else 0
        first: cython.uint = 0x80
        whole: cython.int = precision - scale
        part: cython.int = scale
        digits: cython.int
        size: cython.int
        i: cython.int
        group: cython.ulonglong
        self._lo = 0
        self._hi = 0
        while whole > 0 or part > 0:
            if whole > 0:
                digits = whole % 9 if whole % 9 else 9
                whole -= digits
            else:
                digits = part if part < 9 else 9
                part -= digits
            size = (digits + 1) // 2 if digits < 9 else 4
            group = 0
            for i in range(size):
                group = (group << 8) | ((src[at + i] ^ flip ^ first) & 0xFF)
                first = 0
            at += size
            if group >= _ten(digits):
                return CORRUPT
            self._mul_add(_ten(digits), group)
        self._set128(fix, negative)
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _render(
        self, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t, source: cython.Py_ssize_t
    ) -> cython.int:
        """Write a value that isn't copied as it is: text of other character sets, ENUM, SET, JSON, wide decimals and
        others. UNTOLD if it is a key's and can't be told from others.
        """
        s: cython.p_longlong = self._s
        kind: cython.longlong = s[source + S_KIND]
        arg: cython.Py_ssize_t = s[source + S_ARG]
        i: cython.Py_ssize_t
        end: cython.Py_ssize_t = at + n
        cp: cython.uint
        low: cython.uint
        point: cython.int
        u: cython.ulonglong
        begin: cython.Py_ssize_t
        if kind == K_TABLE:
            i = at
            if s[source + S_ARG2]:
                # the lower half is ASCII: copy as far as that goes
                while i < end and src[i] < 128:
                    i += 1
                self._put_from(src, at, i - at)
            while i < end:
                point = self._x[arg + src[i]]
                if point < 0:
                    return UNTOLD
                self._put_point(point)
                i += 1
        elif kind == K_PAIRS:
            i = at
            while i < end:
                point = self._x[arg + src[i]]
                if point == -1 and i + 1 < end:
                    point = self._x[arg + 256 + 256 * src[i] + src[i + 1]]
                    i += 2
                elif point == -2 and i + 2 < end:
                    point = self._x[arg + 65792 + 256 * src[i + 1] + src[i + 2]]
                    i += 3
                else:
                    i += 1
                if point < 0:
                    if s[source + S_KEY]:
                        return UNTOLD
                    point = 63
                self._put_point(point)
        elif kind == K_UTF16:
            if n % 2:
                return CORRUPT
            i = at
            while i < end:
                cp = (src[i] << 8) | src[i + 1] if arg == 0 else (src[i + 1] << 8) | src[i]
                i += 2
                if cp >= 0xD800 and cp < 0xDC00 and i < end:
                    low = (src[i] << 8) | src[i + 1] if arg == 0 else (src[i + 1] << 8) | src[i]
                    if low < 0xDC00 or low > 0xDFFF:
                        return CORRUPT
                    i += 2
                    cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00)
                elif cp >= 0xD800 and cp < 0xE000:
                    return CORRUPT
                self._put_point(cp)
        elif kind == K_UTF32:
            if n % 4:
                return CORRUPT
            i = at
            while i < end:
                u = _be(src, i, 4)
                if u > 0x10FFFF or (u >= 0xD800 and u < 0xE000):
                    return CORRUPT
                self._put_point(u)
                i += 4
        elif kind == K_PAD:
            if n > s[source + S_ARG]:
                return CORRUPT
            self._put_from(src, at, n)
            for i in range(s[source + S_ARG] - n):
                self._put(0)
        elif kind == K_ENUM:
            u = _le(src, at, n)
            if u > cython.cast(cython.ulonglong, s[source + S_ARG2]):
                return CORRUPT
            if u:
                self._put_from(self._t, self._x[arg + u - 1], self._x[arg + u] - self._x[arg + u - 1])
            elif s[source + S_KEY]:
                for i in range(s[source + S_ARG2]):
                    if self._x[arg + i] == self._x[arg + i + 1]:
                        return UNTOLD
        elif kind == K_SET:
            u = _le(src, at, n)
            if s[source + S_ARG2] < 64 and u >> s[source + S_ARG2]:
                return CORRUPT
            begin = self._out
            i = 0
            while u:
                if u & 1:
                    if s[source + S_KEY] and self._x[arg + i] == self._x[arg + i + 1]:
                        return UNTOLD
                    if self._out > begin:  # as MySQL does: no comma after an empty first member
                        self._put(44)
                    self._put_from(self._t, self._x[arg + i], self._x[arg + i + 1] - self._x[arg + i])
                u = u >> 1
                i += 1
        elif kind == K_JSON:
            self._visits = n
            self._limit = self._out + 16 * n + 256
            if n == 0:
                self._put(110)
                self._put(117)
                self._put(108)
                self._put(108)
                return OK
            return self._json(src, src[at], at + 1, end, 0)
        elif kind == K_DECIMAL_WIDE:
            i = at
            if i < end and src[i] == 45:
                self._put(45)
                i += 1
            while i + 1 < end and src[i] == 48 and src[i + 1] != 46:
                i += 1
            self._put_from(src, i, end - i)
        elif kind == K_BIN_DECIMAL_WIDE:
            return self._decimal_text(src, at, s[source + S_ARG], s[source + S_ARG2])
        elif kind == K_UUID:
            if n > 16:
                return CORRUPT
            self._uuid(src, at, n)
        elif kind == K_INET6:
            if n > 16:
                return CORRUPT
            self._inet6(src, at, n)
        elif kind == K_INET4:
            if n > 4:
                return CORRUPT
            for i in range(4):
                if i:
                    self._put(46)
                self._put_number(_byte(src, at, n, i), 1)
        elif kind == K_CODEC:
            with cython.gil:
                return self._convert(_bytes(src, at, end), arg)
        elif kind == K_COMPRESSED:
            with cython.gil:
                return self._inflate(_bytes(src, at, end), arg)
        else:
            return CORRUPT
        return OK

    @cython.cfunc
    @cython.exceptval(-1)
    def _convert(self, raw: bytes, which: cython.Py_ssize_t) -> cython.int:
        try:
            return self._put_bytes(to_text(raw, self._codecs[which]).encode())
        except UnicodeError:
            return CORRUPT

    @cython.cfunc
    @cython.exceptval(-1)
    def _inflate(self, raw: bytes, which: cython.Py_ssize_t) -> cython.int:
        try:
            value = _inflated(raw)
            return self._put_bytes(value if which < 0 else to_text(value, self._codecs[which]).encode())
        except (Damaged, UnicodeError, zlib.error):
            return CORRUPT

    @cython.cfunc
    @cython.exceptval(-1)
    def _put_bytes(self, text: bytes) -> cython.int:
        self._put_from(text, 0, len(text))
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _decimal_text(
        self, src: cython.p_uchar, at: cython.Py_ssize_t, precision: cython.longlong, scale: cython.longlong
    ) -> cython.int:
        """A packed decimal as MySQL prints it: no zeros in front of the first digit, all `scale` digits behind the
        point.
        """
        negative: cython.bint = not src[at] & 0x80
        flip: cython.uint = 0xFF if negative else 0
        first: cython.uint = 0x80
        whole: cython.int = precision - scale
        part: cython.int = scale
        digits: cython.int
        size: cython.int
        i: cython.int
        group: cython.ulonglong
        begun: cython.bint = False
        zero: cython.bint = True
        sign_at: cython.Py_ssize_t = self._out
        if negative:
            self._put(45)
        while whole > 0 or part > 0:
            if whole > 0:
                digits = whole % 9 if whole % 9 else 9
                whole -= digits
            else:
                if part == scale:
                    if not begun:
                        self._put(48)
                        begun = True
                    self._put(46)
                digits = part if part < 9 else 9
                part -= digits
            size = (digits + 1) // 2 if digits < 9 else 4
            group = 0
            for i in range(size):
                group = (group << 8) | ((src[at + i] ^ flip ^ first) & 0xFF)
                first = 0
            at += size
            if group >= _ten(digits):
                return CORRUPT
            if group:
                zero = False
            if begun:
                self._put_number(group, digits)
            elif group:
                self._put_number(group, 1)
                begun = True
        if not begun:
            self._put(48)
        if zero and negative and self._out <= self._end:
            for i in range(self._out - sign_at - 1):
                self._p8[sign_at + i] = self._p8[sign_at + i + 1]
            self._out -= 1
        return OK

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_hex(self, b: cython.uint) -> cython.void:
        self._put(48 + b if b < 10 else 87 + b)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _uuid(self, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
        """MariaDB's UUID: 16 bytes as they print, without the zero bytes at the end."""
        i: cython.int
        for i in range(16):
            if i == 4 or i == 6 or i == 8 or i == 10:
                self._put(45)
            self._put_hex(_byte(src, at, n, i) >> 4)
            self._put_hex(_byte(src, at, n, i) & 15)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _inet6(self, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
        """As MariaDB's INET6 prints: the longest run of zero groups as ::, an IPv4 tail where the address is one."""
        i: cython.int = 0
        run: cython.int
        best: cython.int = -1
        best_n: cython.int = 0
        group: cython.uint
        while i < 8:
            run = i
            while run < 8 and _byte(src, at, n, 2 * run) == 0 and _byte(src, at, n, 2 * run + 1) == 0:
                run += 1
            if run - i > best_n:
                best = i
                best_n = run - i
            i = run + 1
        i = 0
        while i < 8:
            if i == best:
                self._put(58)
                self._put(58)
                i += best_n
                continue
            if i == 6 and best == 0 and (best_n == 6 or (best_n == 5 and _byte(src, at, n, 10) == 255)):
                if best_n == 6 or _byte(src, at, n, 11) == 255:
                    if best_n == 5:
                        self._put(58)
                    for run in range(4):
                        if run:
                            self._put(46)
                        self._put_number(_byte(src, at, n, 12 + run), 1)
                    return
            if i and i != best + best_n:
                self._put(58)
            group = (_byte(src, at, n, 2 * i) << 8) | _byte(src, at, n, 2 * i + 1)
            if group > 0xFFF:
                self._put_hex(group >> 12)
            if group > 0xFF:
                self._put_hex((group >> 8) & 15)
            if group > 0xF:
                self._put_hex((group >> 4) & 15)
            self._put_hex(group & 15)
            i += 1

    # -- JSON: MySQL's binary form to the text that SELECT prints

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _json(
        self, src: cython.p_uchar, kind: cython.int, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
    ) -> cython.int:
        """The value of that type whose content starts at `at`.

        `end` bounds what it may read. A document has fewer values than bytes, and its text is at most 16 times as long:
        beyond that offsets point at the same bytes over and over, so the document is corrupt.
        """
        wide: cython.int
        count: cython.longlong
        i: cython.longlong
        entry: cython.Py_ssize_t
        where: cython.longlong
        length: cython.longlong
        inner: cython.int
        done: cython.int
        n: cython.Py_ssize_t
        u: cython.ulonglong
        self._visits -= 1
        if self._visits < 0 or depth > 100 or self._out > self._limit:
            return CORRUPT
        n = end - at
        if kind <= 3:
            wide = 4 if kind & 1 else 2
            if n < 2 * wide:
                return CORRUPT
            count = _le(src, at, wide)
            length = _le(src, at + wide, wide)
            if length > n:
                return CORRUPT
            end = at + length
            entry = at + 2 * wide
            if count > n or entry + count * (1 + wide + (wide + 2 if kind < 2 else 0)) > end:
                return CORRUPT
            self._put(123 if kind < 2 else 91)
            for i in range(count):
                if i:
                    self._put(44)
                    self._put(32)
                if kind < 2:
                    where = _le(src, entry + i * (wide + 2), wide)
                    length = _le(src, entry + i * (wide + 2) + wide, 2)
                    if where + length > end - at:
                        return CORRUPT
                    self._json_string(src, at + where, length)
                    self._put(58)
                    self._put(32)
                n = entry + count * (wide + 2 if kind < 2 else 0) + i * (1 + wide)
                inner = src[n]
                if inner == 4 or inner == 5 or inner == 6 or (wide == 4 and (inner == 7 or inner == 8)):
                    done = self._json(src, inner, n + 1, n + 1 + wide, depth + 1)
                else:
                    where = _le(src, n + 1, wide)
                    if where > end - at:
                        return CORRUPT
                    done = self._json(src, inner, at + where, end, depth + 1)
                if done != OK:
                    return done
            self._put(125 if kind < 2 else 93)
        elif kind == 4:
            if n < 1:
                return CORRUPT
            if src[at] == 0:
                self._put(110)
                self._put(117)
                self._put(108)
                self._put(108)
            elif src[at] == 1:
                self._put(116)
                self._put(114)
                self._put(117)
                self._put(101)
            elif src[at] == 2:
                self._put(102)
                self._put(97)
                self._put(108)
                self._put(115)
                self._put(101)
            else:
                return CORRUPT
        elif kind <= 10:
            inner = 2 if kind <= 6 else (4 if kind <= 8 else 8)
            if n < inner:
                return CORRUPT
            u = _le(src, at, inner)
            if kind & 1 and u >> (8 * inner - 1):
                self._put(45)
                u = _low64(~u + 1)
                if inner < 8:
                    u = u & ((cython.cast(cython.ulonglong, 1) << (8 * inner)) - 1)
            self._put_number(u, 1)
        elif kind == 11:
            if n < 8:
                return CORRUPT
            u = _le(src, at, 8)
            if (u >> 52) & 0x7FF == 0x7FF:
                return CORRUPT
            with cython.gil:
                return self._put_bytes(_double_text(u))
        elif kind == 12 or kind == 15:
            inner = -1
            if kind == 15:
                if n < 1:
                    return CORRUPT
                inner = src[at]
                at += 1
            length = 0
            i = 0
            while True:
                if at >= end or i > 4:
                    return CORRUPT
                length = length | (cython.cast(cython.longlong, src[at] & 127) << (7 * i))
                i += 1
                at += 1
                if src[at - 1] < 128:
                    break
            if length > end - at:
                return CORRUPT
            if inner < 0:
                self._json_string(src, at, length)
            else:
                return self._json_opaque(src, inner, at, length)
        else:
            return CORRUPT
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _json_string(self, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
        i: cython.Py_ssize_t
        b: cython.uint
        self._put(34)
        for i in range(at, at + n):
            b = src[i]
            if b >= 32 and b != 34 and b != 92:
                self._put(b)
                continue
            self._put(92)
            if b == 34 or b == 92:
                self._put(b)
            elif b == 8:
                self._put(98)
            elif b == 9:
                self._put(116)
            elif b == 10:
                self._put(110)
            elif b == 12:
                self._put(102)
            elif b == 13:
                self._put(114)
            else:
                self._put(117)
                self._put(48)
                self._put(48)
                self._put_hex(b >> 4)
                self._put_hex(b & 15)
        self._put(34)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _json_opaque(
        self, src: cython.p_uchar, kind: cython.int, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.int:
        """Decimals and times as MySQL prints them, anything else as base64 with the number of its type."""
        u: cython.ulonglong
        negative: cython.bint = False
        i: cython.Py_ssize_t
        size: cython.Py_ssize_t
        if kind == 246:
            if n < 3 or src[at] > 65 or src[at + 1] > 30 or src[at + 1] > src[at] or src[at] < 1:
                return CORRUPT
            if n != 2 + _decimal_size(src[at], src[at + 1]):
                return CORRUPT
            return self._decimal_text(src, at + 2, src[at], src[at + 1])
        if kind == 7 or kind == 10 or kind == 11 or kind == 12:
            if n != 8:
                return CORRUPT
            u = _le(src, at, 8)
            self._put(34)
            if u >> 63:
                negative = True
                u = _low64(~u + 1)
            if kind == 11:
                if negative:
                    self._put(45)
                self._put_number((u >> 36) & 0x3FF, 2)
            elif negative:
                return CORRUPT
            else:
                self._put_number((u >> 46) // 13, 4)
                self._put(45)
                self._put_number((u >> 46) % 13, 2)
                self._put(45)
                self._put_number((u >> 41) & 31, 2)
                if kind == 10:
                    self._put(34)
                    return OK
                self._put(32)
                self._put_number((u >> 36) & 31, 2)
            self._put(58)
            self._put_number((u >> 30) & 63, 2)
            self._put(58)
            self._put_number((u >> 24) & 63, 2)
            self._put(46)
            self._put_number(u & 0xFFFFFF, 6)
            self._put(34)
            return OK
        self._put_text6(34, 98, 97, 115, 101, 54)
        self._put_text6(52, 58, 116, 121, 112, 101)
        self._put_number(kind, 1)
        self._put(58)
        i = 0
        while i < n:
            size = n - i if n - i < 3 else 3
            u = _be(src, at + i, size) << (8 * (3 - size))
            self._put_base64((u >> 18) & 63)
            self._put_base64((u >> 12) & 63)
            if size > 1:
                self._put_base64((u >> 6) & 63)
            else:
                self._put(61)
            if size > 2:
                self._put_base64(u & 63)
            else:
                self._put(61)
            i += 3
        self._put(34)
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_text6(
        self, a: cython.int, b: cython.int, c: cython.int, d: cython.int, e: cython.int, f: cython.int
    ) -> cython.void:
        self._put(a)
        self._put(b)
        self._put(c)
        self._put(d)
        self._put(e)
        self._put(f)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_base64(self, b: cython.uint) -> cython.void:
        if b < 26:
            self._put(65 + b)
        elif b < 52:
            self._put(71 + b)
        elif b < 62:
            self._put(b - 4)
        else:
            self._put(43 if b == 62 else 47)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _decimal_size(precision: cython.int, scale: cython.int) -> cython.int:
    """Bytes of a packed decimal."""
    whole: cython.int = precision - scale
    return whole // 9 * 4 + (whole % 9 + 1) // 2 + scale // 9 * 4 + (scale % 9 + 1) // 2


def _inflated(stored: bytes) -> bytes:
    """The value of a COMPRESSED column of MariaDB, as its Field_varstring_compressed stores it; Damaged, zlib.error.

    Empty is empty. Otherwise a head byte: 0 and the value as it is, or 0x80 (zlib), 8 if without zlib's own frame, and
    the number of bytes, most significant first, that give the value's length; then the deflated value.
    """
    head = stored[0] if stored else 0
    if head == 0:
        return stored[1:]
    length = int.from_bytes(stored[1 : 1 + (head & 7)], "big")
    if head & 0xF0 != 0x80 or length > _VALUE_BYTES:
        raise Damaged("the head of a compressed value can't be read")
    deflated = zlib.decompressobj(-15 if head & 8 else 15)
    value = deflated.decompress(stored[1 + (head & 7) :], length + 1)
    if len(value) != length or not deflated.eof:
        raise Damaged("a compressed value has not the length that its head says")
    return value


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


def _strings(values: list[str]) -> pa.Array:
    """Short texts to Arrow. (`pa.array` would import pandas, where there is one, to see whether a list is pandas's.)"""
    texts = bytearray()
    ends = array.array("i", [0])
    for value in values:
        texts += value.encode()
        ends.append(len(texts))
    return _strings_of(texts, ends)


def _strings_of(texts: bytearray, ends: array.array[int]) -> pa.Array:
    """Texts that stand one behind the other to Arrow, without a copy: neither may be changed any more."""
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(texts)])


@cython.cfunc
def _append(texts: bytearray, text: bytes, number: cython.longlong) -> None:
    """Put a text, and behind it a number, unless that is below 0, to the end."""
    if cython.compiled:
        used: cython.Py_ssize_t = len(texts)
        size: cython.Py_ssize_t = len(text)
        end: cython.Py_ssize_t = used + size
        rest: cython.longlong = number
        p: cython.p_uchar
        q: cython.p_uchar = text
        if number >= 0:
            end += 1
            while rest >= 10:
                end += 1
                rest = rest // 10
        PyByteArray_Resize(texts, end)
        p = texts
        _copy(p, used, q, 0, size)
        if number >= 0:
            while end > used + size:
                end -= 1
                p[end] = 48 + number % 10
                number = number // 10
    else:
        texts += text if number < 0 else b"%b%d" % (text, number)


# ---- SELECT ----------------------------------------------------------------------------------------------------------


@cython.cclass
class ResultDecoder(_Columns):
    """Rows of one result set of the binary protocol (a prepared statement's), in packets as they come from the socket,
    to Arrow. Of the two protocols it costs the server and us less, and a FLOAT comes whole (its text has six digits).

    The SELECT must give the columns of `schema` in its order, in their own types (a row tells no types: what else it
    gives is read wrongly or refused), on a utf8mb4 connection in zone +00:00. GEOMETRY and VECTOR are selected as they
    are (SRID and WKB, and the numbers' bytes), BIT too.

    `feed` takes what follows the column definitions, cut anywhere, until `done`. An ERR packet raises
    pymysql.err.OperationalError(errno, text), what is no result set Damaged; in both cases the decoder is of no
    further use. Source: MySQL's internals, "Binary Protocol Resultset".
    """

    _schema: Any
    _pending: Any
    _long: Any
    _in_long: cython.bint
    _done: cython.bint
    _sequence: cython.int
    _fed: cython.longlong

    def __init__(self, schema: TableSchema) -> None:
        """Plan the decoding of `schema`'s columns. SourceLost if one has a type that can't be handled."""
        self._schema = schema
        self._pending, self._long = bytearray(), bytearray()
        self._in_long = self._done = False
        self._sequence = -1
        self._fed = 0
        names, types, layouts, sources = [], [], [], []
        for at, (column, field) in enumerate(zip(schema.columns, schema.arrow, strict=True)):
            kind, size, argument, more = _wire_kind(parse_type(column.mysql_type))
            if schema.is_boolean(column):
                kind = K_BOOLEAN
            names.append(column.name)
            types.append(field.type)
            layouts.append(_layout(field.type))
            sources.append([kind, at, size, 0, argument, more, 0, 0, 0, 0])
        self._prepare(names, types, layouts, sources, names)
        self._tables([], b"", [])

    @property
    def rows(self) -> int:
        """Complete rows that wait for `take`."""
        return self._rows

    @property
    def done(self) -> bool:
        """Whether the result set's end has been read."""
        return self._done

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes, any number of them."""
        view = memoryview(data)
        at: int = 0
        while at < len(view):
            if self._done:
                raise Damaged(f"{len(view) - at} bytes follow the end of the result set")
            if not self._pending and not self._in_long:
                at = self._run(view, at, len(view))
                if self._done or at == len(view):
                    continue
            # a packet that is cut, or part of a row over 16 MiB
            header = self._pending[:3]
            size = 4 + int.from_bytes(header, "little") if len(self._pending) >= 4 else 4
            if self._in_long and len(self._long) + size - 4 > _ROW_BYTES:
                raise Damaged(f"it has over {_VALUE_BYTES >> 20} MiB: leave the table out of the list")
            part = view[at : at + size - len(self._pending)]
            self._pending += part
            at += len(part)
            if len(self._pending) < size or (size == 4 and self._pending[:3] != b"\0\0\0"):
                continue
            whole = self._pending
            self._pending = bytearray()
            if self._in_long or size == 4 + 0xFFFFFF:
                self._follow(whole[3])
                self._in_long = size == 4 + 0xFFFFFF
                self._long += memoryview(whole)[4:]
                if not self._in_long:
                    row = self._long
                    self._long = bytearray()
                    self._one(row)
            else:
                self._run(memoryview(whole), 0, size)

    def take(self) -> pa.RecordBatch | None:
        """The rows so far as one batch with the schema's Arrow fields (None if there are none); the next one begins
        empty.
        """
        if not self._rows:
            return None
        arrays = [self._array(c, kind) for c, kind in enumerate(self._types)]
        self._clear()
        schema: Any = self._schema
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)

    def _follow(self, number: int) -> None:
        if self._sequence >= 0 and number != (self._sequence + 1) % 256:
            raise Damaged(f"packet {number} of the result set follows packet {self._sequence}")
        self._sequence = number

    def _one(self, row: bytearray) -> None:
        """Decode one row without packet headers."""
        view: cython.uchar[::1] = row
        p: cython.p_uchar
        done: cython.int
        if cython.compiled:
            p = cython.address(view[0])
        else:
            p = view
        while True:
            done = self._row(p, 0, len(row))
            if done == OK:
                break
            if done == CORRUPT:
                self._complain(0)
            self._grow()
        self._fed += len(row)

    def _run(self, data: memoryview, start: int, stop: int) -> int:
        """Decode the whole packets in data[start:stop]; where the first one that is cut (or over 16 MiB) begins."""
        view: cython.const[cython.uchar][::1] = data
        p: cython.p_uchar
        at: cython.Py_ssize_t = start
        end: cython.Py_ssize_t = stop
        begin: cython.Py_ssize_t = start
        size: cython.Py_ssize_t
        number: cython.int
        done: cython.int = OK
        special: cython.bint = False
        if cython.compiled:
            p = cython.cast(cython.p_uchar, cython.address(view[0]))
        else:
            p = view
        while True:
            with cython.nogil:
                special = False
                while end - at >= 4:
                    size = _le(p, at, 3)
                    if size == 0xFFFFFF or size > end - at - 4:
                        break
                    number = p[at + 3]
                    if (self._sequence >= 0 and number != (self._sequence + 1) & 255) or size == 0:
                        special = True
                        break
                    if p[at + 4] == 0xFF or (p[at + 4] == 0xFE and size < 9):
                        special = True
                        break
                    done = self._row(p, at + 4, at + 4 + size)
                    if done != OK:
                        break
                    self._sequence = number
                    at += 4 + size
            if done == FULL:
                self._grow()
                done = OK
                continue
            if done == CORRUPT:
                self._complain(begin)
            if special:
                self._follow(p[at + 3])
                if size == 0:
                    raise Damaged("an empty packet stands in the result set")
                self._finish(bytes(data[at + 4 : at + 4 + size]))
                at += 4 + size
            break
        self._fed += at - begin
        return at

    def _finish(self, packet: bytes) -> None:
        if packet[0] == 0xFF:
            text = packet[3:]
            if text[:1] == b"#":
                text = text[6:]
            raise pymysql.err.OperationalError(int.from_bytes(packet[1:3], "little"), text.decode("utf-8", "replace"))
        if len(packet) >= 5 and packet[3] & 8:
            raise Damaged("another result set follows, which nobody asked for")
        self._done = True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _row(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        s: cython.p_longlong = self._s
        c: cython.Py_ssize_t
        n: cython.Py_ssize_t
        length: cython.ulonglong
        r: cython.Py_ssize_t = self._rows
        nulls: cython.Py_ssize_t = at + 1
        done: cython.int
        if r >= self._capacity:
            self._full = -1
            return FULL
        self._bad_at = at
        self._bad_source = 0
        at = nulls + (self._columns + 9) // 8  # two bits before the first column's are not used
        if at > end or p[nulls - 1] != 0:
            return CORRUPT
        for c in range(self._columns):
            self._bad_at = at
            self._bad_source = c
            if p[nulls + (c + 2) // 8] >> ((c + 2) & 7) & 1:
                self._null(c, r)
                continue
            n = s[c * S_STRIDE + S_SIZE]
            if n == 0:
                if at >= end or p[at] == 251 or p[at] == 255:
                    return CORRUPT
                length = p[at]
                at += 1
                if length > 251:
                    n = 2 if length == 252 else (3 if length == 253 else 8)
                    if n > end - at:
                        return CORRUPT
                    length = _le(p, at, n)
                    at += n
                if length > cython.cast(cython.ulonglong, end - at):
                    return CORRUPT
                n = length
            elif n > end - at:
                return CORRUPT
            done = self._store(p, at, n, c * S_STRIDE, r)
            if done != OK:
                return done
            at += n
        if at != end:
            self._bad_at = at
            return CORRUPT
        self._rows = r + 1
        return OK

    def _complain(self, begin: int) -> None:
        where = self._fed + self._bad_at - begin
        names: Any = self._names
        raise Damaged(f"the result set can't be read at column {names[self._bad_source]}, byte {where}")


def _layout(kind: pa.DataType) -> int:
    """How the arena holds a column of that Arrow type."""
    if pa.types.is_boolean(kind):
        return L_BIT
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind):
        return L_VAR
    return kind.bit_width // 8


def _wire_kind(kind: MysqlType) -> tuple[int, int, int, int]:
    """How the binary protocol's value of a column is read, its size (0: its length stands before it), and that
    reading's arguments.
    """
    base = kind.base
    if base == "year" and kind.numbers == (2,):
        return K_YEAR_2, 2, 0, 0
    if base in _WIRE_INTEGERS:
        size = _WIRE_INTEGERS[base]
        if kind.unsigned:
            return K_LE_U64 if size == 8 else K_LE_UNSIGNED, size, 0, 0
        return K_LE_SIGNED, size, 0, 0
    if base in ("float", "double"):
        return K_COPY, 4 if base == "float" else 8, 0, 0
    if base == "decimal":
        precision, scale = _decimal_numbers(kind)
        return (K_DECIMAL, 0, precision, scale) if precision <= 38 else (K_DECIMAL_WIDE, 0, 0, 0)
    if base == "bit":
        return (K_BIT1 if kind.numbers in ((), (1,)) else K_BYTES), 0, 0, 0
    simple = {"date": K_DATE, "datetime": K_DATETIME, "timestamp": K_DATETIME, "time": K_TIME, "vector": K_VECTOR}
    return simple.get(base, K_BYTES), 0, 0, 0


_WIRE_INTEGERS = {"tinyint": 1, "smallint": 2, "year": 2, "mediumint": 4, "int": 4, "bigint": 8}


def _decimal_numbers(kind: MysqlType) -> tuple[int, int]:
    precision, scale = (*kind.numbers, 0)[:2] if kind.numbers else (10, 0)
    return precision, scale


# ---- binlog ----------------------------------------------------------------------------------------------------------


@cython.cclass
class Place:
    """Where the stream stands: what the META_FIELDS of the next rows say. One a cursor, shared by its EventDecoders.

    `seq` is `_seq` of the next row, `row` the next row change's number inside its transaction, `pos` where the event
    at hand starts in `file`. The cursor calls `transaction` at each transaction's begin and sets `pos` at each row
    event; the decoders move `seq` on by each row they give out and `row` by each row change they pass, taken or
    skipped. They count in `made` what those rows take in memory, whose images may be much smaller, and stop within an
    event when it reaches `most`. (Attributes: rows.pxd, for frames.py has them too.)
    """

    def __init__(self, seq: int = 0) -> None:
        """Begin with this `_seq`."""
        self._file, self._gtid = "", b""
        self._transaction = self._file_number = 0
        self.seq, self.row, self.pos, self._ts, self._number = seq, 0, 0, 0, -1
        self.made, self.most = 0, 1 << 62

    @cython.ccall
    def transaction(self, gtid: str | None, ts: cython.longlong, number: cython.longlong = -1) -> None:
        """A transaction begins: its GTID (None if it has none; a `number` stands behind it) and its commit time in
        microseconds; `row` begins at 0.
        """
        self._gtid = b"" if gtid is None else gtid.encode()
        self._number, self._ts = number, ts
        self._transaction += 1
        self.row = 0

    @property
    def file(self) -> str:
        """The binlog file's name."""
        return self._file

    @file.setter
    def file(self, name: str) -> None:
        if name != self._file:
            self._file = name
            self._file_number += 1


@cython.cclass
class EventDecoder(_Columns):
    """Row events of one table, as one TABLE_MAP describes them, to Arrow.

    Made from the body of a TABLE_MAP event (what follows the 19 bytes of header, without checksum) and the schema that
    the stream has for the table there. Its first 8 bytes (table id, flags) say nothing about the table: keep decoders
    by `(schema.hash, body[8:])` and the same one serves however often the server repeats the map. Columns are matched
    by name.

    `faults`: sentences that say why the event doesn't fit the schema (then it can't decode): a DDL was missed or is
    not followed, `binlog_row_metadata` is not FULL, or a type has a form of before MySQL 5.6. Hidden columns of
    indexes are skipped.
    """

    _schema: Any
    _table: Any
    _place: Place
    _before: cython.bint
    _faults: tuple[str, ...]
    _gtids: bytearray  # the texts of this batch, one behind the other
    _gtid_ends: list[int]  # where each begins and ends
    _files: list[Any]
    _gtid_of: cython.longlong
    _file_of: cython.longlong
    _last_file: cython.int
    _last_gtid: cython.int
    _ended: cython.bint
    _meta: cython.Py_ssize_t  # index of the first META column
    _row_bytes: cython.longlong  # what each row takes, besides its texts and bytes

    def __init__(self, table_map_body: bytes, schema: TableSchema, place: Place, before: bool = False) -> None:
        """Plan it; with `before`, updates give `-U` with the before-image too."""
        self._schema, self._place, self._before = schema, place, before
        self._gtids, self._gtid_ends, self._files = bytearray(), [0], []
        self._gtid_of = self._file_of = -1
        self._last_file = self._last_gtid = -1
        self._ended = True
        self._faults = ()
        self._meta = len(schema.columns)
        tables = _Tables()
        sources: list[list[int]] = []
        names: list[str] = []
        try:
            table = TableMap(table_map_body)
            faults = _match(table, schema, tables, sources)
            names = table.names
        except _Misfit as fault:
            faults = [str(fault)]
        self._faults = tuple(faults)
        types = [field.type for field in schema.arrow]
        layouts = [_layout(kind) for kind in types]
        layouts += [L_I8, L_I64, L_I32, L_I64, L_I32, L_I32, L_I64]
        self._row_bytes = sum(1 + (4 if layout == L_VAR else max(1, layout)) for layout in layouts)
        all_names = [*schema.arrow.names, *(field.name for field in META_FIELDS[:-1])]
        self._prepare(all_names, types, layouts, [] if faults else sources, names)
        self._tables(tables.numbers, bytes(tables.texts), tables.codecs)
        fields = [
            pa.field(OP, pa.dictionary(pa.int8(), pa.string())),
            META_FIELDS[M_SEQ],
            pa.field(FILE, pa.dictionary(pa.int32(), pa.string())),
            META_FIELDS[M_POS],
            META_FIELDS[M_ROW],
            pa.field(GTID, pa.dictionary(pa.int32(), pa.string())),
            META_FIELDS[M_TS],
            pa.field(TABLE, pa.dictionary(pa.int8(), pa.string())),
        ]
        self._table = pa.schema([*schema.arrow, *fields])

    @property
    def faults(self) -> tuple[str, ...]:
        """Why this decoder can't be used; empty if it can."""
        return self._faults

    @property
    def waiting(self) -> int:
        """Complete rows that wait for `take`."""
        return self._rows

    @property
    def ended(self) -> bool:
        """Whether the last `rows` or `skip` came to the end of its event."""
        return self._ended

    @property
    def schema(self) -> TableSchema:
        """The schema it decodes to."""
        schema: TableSchema = self._schema
        return schema

    def rows(self, event_type: int, body: bytes | memoryview, row_from: int = 0, row_to: int = -1) -> int:
        """Decode the row changes row_from <= i < row_to (-1: to the end) of one row event; how many it passed.

        `event_type`: 23 to 25 (v1) or 30 to 32 (v2); others are Damaged. `body` is what follows the event's header,
        without checksum, uncompressed. An insert gives `+I`, a delete `-D`, an update `+U` with the after-image
        (before it `-U`, if asked for), or, when the bytes of the identity key differ, `-D` with the before-image and
        `+I` with the same `_row`. Changes before row_from are passed over, not decoded, and count for `_row`; the
        answer counts them too, so it is where the next call for the same event goes on; `ended` tells whether there is
        more (there is, too, where the place's `most` is reached).

        Raises Damaged with the offset in the body if the event is truncated or corrupt (rows before it are kept and
        may be taken), PartialImage if the row image lacks columns.
        """
        view: cython.const[cython.uchar][::1] = body
        p: cython.p_uchar
        if cython.compiled:
            p = cython.cast(cython.p_uchar, cython.address(view[0]))
        else:
            p = view
        return self._decode(p, len(body), event_type, row_from, row_to)

    @cython.cfunc
    @cython.exceptval(-1)
    def _decode(
        self,
        p: cython.p_uchar,
        end: cython.Py_ssize_t,
        event_type: cython.int,
        first: cython.longlong,
        last: cython.longlong,
    ) -> cython.longlong:
        """`rows`, of the body p[:end]."""
        at: cython.Py_ssize_t
        kind: cython.int
        if self._faults:
            raise Damaged(f"table {self.schema.table_id} can't be decoded: {self._faults[0]}")
        if end < 10:
            raise Damaged(f"the row event ends at byte {end}, inside its head")
        if event_type == 30 or event_type == 23:
            kind = 0
        elif event_type == 31 or event_type == 24:
            kind = 1
        elif event_type == 32 or event_type == 25:
            kind = 2
        else:
            raise Damaged(f"an event of type {event_type} is no row event that can be decoded")
        at = self._head(p, end, kind, event_type >= 30)
        return self._events(p, at, end, kind, first, last)

    def truncate(self) -> None:
        """Append a `t` row (TRUNCATE TABLE) with null columns at the place."""
        c: cython.Py_ssize_t
        if self._rows >= self._capacity:
            self._full = -1
            self._grow()
        for c in range(self._meta):
            self._null(c, self._rows)
        self._note()
        self._finish_row(OP_TRUNCATE)
        self._place.row += 1

    def take(self) -> pa.RecordBatch | None:
        """The rows so far as one batch: the schema's columns, then META_FIELDS (texts as dictionaries); None if there
        are none. Damaged with the event's file and offset if a text is not UTF-8; the decoder is of no further use.
        """
        if not self._rows:
            return None
        rows: int = self._rows
        meta: int = self._meta
        arrays = [self._array(c, kind) for c, kind in enumerate(self._types)]
        schema: Any = self._schema
        integers = (pa.int8(), pa.int64(), pa.int32(), pa.int64(), pa.int32(), pa.int32(), META_FIELDS[M_TS].type)
        for i, kind in enumerate(integers):
            arrays.append(self._array(meta + i, kind))
        texts = (
            (M_OP, _strings(list(_OPS))),
            (M_FILE, _strings(self._files)),
            (M_GTID, _strings_of(self._gtids, array.array("i", self._gtid_ends))),
        )
        for i, values in texts:
            arrays[meta + i] = pa.DictionaryArray.from_arrays(arrays[meta + i], values)
        zeros = pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))], 0)
        arrays.append(pa.DictionaryArray.from_arrays(zeros, _strings([schema.table_id])))
        self._clear()
        self._gtids, self._gtid_ends, self._files = bytearray(), [0], []
        self._gtid_of = self._file_of = -1
        return pa.RecordBatch.from_arrays(arrays, schema=self._table)

    def _where(self, row: int) -> str:
        """Its event's file and offset."""
        plan: Any = self._plan
        base: int = self._meta * C_STRIDE
        file = memoryview(self._mem).cast("i")[plan[base + M_FILE * C_STRIDE + C_FIX] + row]
        offset = memoryview(self._mem).cast("q")[plan[base + M_POS * C_STRIDE + C_FIX] + row]
        return f"{self._files[file]}:{offset}"

    @cython.cfunc
    def _note(self) -> None:
        """Make the place's file and GTID the last ones of this batch's dictionaries."""
        place: Place = self._place
        if place._file_number != self._file_of:
            self._file_of = place._file_number
            self._files.append(place._file)
            self._last_file = len(self._files) - 1
        if place._transaction != self._gtid_of:
            self._gtid_of = place._transaction
            self._last_gtid = -1
            if place._gtid:
                _append(self._gtids, place._gtid, place._number)
                self._gtid_ends.append(len(self._gtids))
                self._last_gtid = len(self._gtid_ends) - 2

    @cython.cfunc
    @cython.exceptval(check=True)
    def _head(self, p: cython.p_uchar, end: cython.Py_ssize_t, kind: cython.int, v2: cython.bint) -> cython.Py_ssize_t:
        """Read the event's head: the number of columns and which of them the images carry (all of them)."""
        at: cython.Py_ssize_t = 8
        n: cython.Py_ssize_t
        width: cython.Py_ssize_t
        i: cython.Py_ssize_t
        image: cython.int
        if v2:
            n = _le(p, at, 2)
            if n < 2 or n > end - at:
                raise Damaged(f"the row event's extra data at byte {at} doesn't fit")
            at += n
        if at >= end:
            raise Damaged(f"the row event ends at byte {at}, inside its head")
        width = p[at]
        at += 1
        if width == 252 and end - at >= 2:
            width = _le(p, at, 2)
            at += 2
        elif width > 250:
            raise Damaged(f"the row event's number of columns at byte {at - 1} can't be read")
        if width != self._source_count:
            raise Damaged(f"the row event has {width} columns at byte {at}, its table map {self._source_count}")
        n = (width + 7) // 8
        for image in range(2 if kind == 1 else 1):
            if n > end - at:
                raise Damaged(f"the row event ends at byte {end}, inside its head")
            for i in range(width):
                if p[at + i // 8] != 0xFF and not (p[at + i // 8] >> (i % 8)) & 1:
                    raise PartialImage(
                        f"a row image of {self.schema.table_id} lacks column {self._source_names[i]}:"
                        " binlog_row_image must be FULL, in every session"
                    )
            at += n
        return at

    @cython.cfunc
    @cython.exceptval(check=True)
    def _events(
        self,
        p: cython.p_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        kind: cython.int,
        first: cython.longlong,
        last: cython.longlong,
    ) -> cython.longlong:
        """The rows from `at` to `end`."""
        passed: cython.longlong = 0
        done: cython.int = OK
        place: Place = self._place
        self._note()
        self._ended = False
        while True:
            if end - at > 65536:
                with cython.nogil:
                    while at < end and passed != last and place.made < place.most:
                        done = self._change(p, at, end, kind, passed >= first)
                        if done != OK:
                            break
                        at = self._bad_at
                        passed += 1
                        place.row += 1
            else:
                # short events keep the GIL: giving it back and forth costs more than the work
                while at < end and passed != last and place.made < place.most:
                    done = self._change(p, at, end, kind, passed >= first)
                    if done != OK:
                        break
                    at = self._bad_at
                    passed += 1
                    place.row += 1
            if done == OK:
                break
            if done == CORRUPT:
                name = self._source_names[self._bad_source] if self._bad_source < self._source_count else "?"
                raise Damaged(
                    f"row {passed} of an event of {self.schema.table_id} can't be read"
                    f" at column {name}, byte {self._bad_at}"
                )
            self._grow()
            done = OK
        self._ended = at >= end
        return passed

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _change(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, kind: cython.int, wanted: cython.bint
    ) -> cython.int:
        """One row change that starts at `at`; sets `_bad_at` to its end."""
        done: cython.int
        after: cython.Py_ssize_t
        if not wanted:
            done = self._pass(p, at, end)
            if done == OK and kind == 1:
                done = self._pass(p, self._bad_at, end)
            return done
        if self._rows + 2 > self._capacity:
            self._full = -1
            return FULL
        if kind != 1:
            done = self._image(p, at, end, self._rows, False)
            if done == OK:
                self._finish_row(OP_INSERT if kind == 0 else OP_DELETE)
            return done
        done = self._pass(p, at, end)
        if done != OK:
            return done
        after = self._bad_at
        done = self._image(p, after, end, self._rows, True)
        if done == OK and not self._before:
            self._finish_row(OP_UPDATE)
            return OK
        if done == FULL or done == CORRUPT:
            return done
        # the key changed (or the before-image is asked for): it comes first
        kind = done
        done = self._image(p, at, end, self._rows, False)
        if done == OK:
            done = self._image(p, after, end, self._rows + 1, False)
        if done != OK:
            return done
        self._finish_row(OP_BEFORE if kind == OK else OP_DELETE)
        self._finish_row(OP_UPDATE if kind == OK else OP_INSERT)
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _finish_row(self, op: cython.int) -> cython.void:
        """Give the row its META values and count it."""
        q: cython.p_longlong = self._q
        base: cython.Py_ssize_t = self._meta * C_STRIDE
        r: cython.Py_ssize_t = self._rows
        i: cython.Py_ssize_t
        for i in range(M_COUNT):
            self._p8[q[base + i * C_STRIDE + C_VALID] + r] = 1
        self._p8[q[base + M_OP * C_STRIDE + C_FIX] + r] = op
        self._p64[q[base + M_SEQ * C_STRIDE + C_FIX] + r] = self._place.seq
        self._p32[q[base + M_FILE * C_STRIDE + C_FIX] + r] = self._last_file
        self._p64[q[base + M_POS * C_STRIDE + C_FIX] + r] = self._place.pos
        self._p32[q[base + M_ROW * C_STRIDE + C_FIX] + r] = self._place.row
        self._p32[q[base + M_GTID * C_STRIDE + C_FIX] + r] = self._last_gtid
        if self._last_gtid < 0:
            self._p8[q[base + M_GTID * C_STRIDE + C_VALID] + r] = 0
        self._p64[q[base + M_TS * C_STRIDE + C_FIX] + r] = self._place._ts
        self._place.seq += 1
        self._place.made += self._row_bytes + self._made
        self._made = 0
        self._rows = r + 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _pass(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """Pass over a row image, noting where its key columns lie; sets `_bad_at` to its end."""
        s: cython.p_longlong = self._s
        i: cython.Py_ssize_t
        n: cython.Py_ssize_t
        k: cython.Py_ssize_t
        nulls: cython.Py_ssize_t = at
        columns: cython.Py_ssize_t = self._source_count
        self._bad_at = at
        self._bad_source = 0
        if (columns + 7) // 8 > end - at:
            return CORRUPT
        at += (columns + 7) // 8
        for i in range(columns):
            k = i * S_STRIDE
            if (p[nulls + i // 8] >> (i % 8)) & 1:
                s[k + S_KEY_N] = -1
                continue
            self._bad_at = at
            self._bad_source = i
            n = s[k + S_PREFIX]
            if n:
                if n > end - at:
                    return CORRUPT
                self._lo = _le(p, at, n)
                at += n
                if self._lo > cython.cast(cython.ulonglong, end - at):
                    return CORRUPT
                n = self._lo
            else:
                n = s[k + S_SIZE]
                if n > end - at:
                    return CORRUPT
            s[k + S_KEY_AT] = at
            s[k + S_KEY_N] = n
            at += n
        self._bad_at = at
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _image(
        self,
        p: cython.p_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        r: cython.Py_ssize_t,
        compare: cython.bint,
    ) -> cython.int:
        """Decode a row image into row r; with `compare`, KEY_CHANGED if its key's bytes differ from what `_pass`
        noted.
        """
        s: cython.p_longlong = self._s
        i: cython.Py_ssize_t
        j: cython.Py_ssize_t
        n: cython.Py_ssize_t
        k: cython.Py_ssize_t
        nulls: cython.Py_ssize_t = at
        columns: cython.Py_ssize_t = self._source_count
        changed: cython.bint = False
        done: cython.int
        self._bad_at = at
        self._bad_source = 0
        if (columns + 7) // 8 > end - at:
            return CORRUPT
        at += (columns + 7) // 8
        for i in range(columns):
            k = i * S_STRIDE
            if (p[nulls + i // 8] >> (i % 8)) & 1:
                if s[k + S_DEST] >= 0:
                    self._null(s[k + S_DEST], r)
                if compare and s[k + S_KEY] and s[k + S_KEY_N] >= 0:
                    changed = True
                continue
            self._bad_at = at
            self._bad_source = i
            n = s[k + S_PREFIX]
            if n:
                if n > end - at:
                    return CORRUPT
                self._lo = _le(p, at, n)
                at += n
                if self._lo > cython.cast(cython.ulonglong, end - at):
                    return CORRUPT
                n = self._lo
            else:
                n = s[k + S_SIZE]
                if n > end - at:
                    return CORRUPT
            if s[k + S_DEST] >= 0:
                done = self._store(p, at, n, k, r)
                if done != OK:
                    return done
            if compare and s[k + S_KEY]:
                if s[k + S_KEY_N] != n:
                    changed = True
                else:
                    for j in range(n):
                        if p[at + j] != p[s[k + S_KEY_AT] + j]:
                            changed = True
                            break
            at += n
        self._bad_at = at
        return KEY_CHANGED if changed else OK


@cython.cfunc
@cython.exceptval(-2)
def decode(
    decoder: Any,
    p: cython.p_uchar,
    size: cython.Py_ssize_t,
    event_type: cython.int,
    first: cython.longlong,
    last: cython.longlong,
) -> cython.longlong:
    """`EventDecoder.rows` in C, for frames.py: where the next call for the event goes on, -1 at its end."""
    events: EventDecoder = decoder
    passed: cython.longlong = events._decode(p, size, event_type, first, last)
    return -1 if events._ended else passed


# -- the plan of a table map


class TableMap:
    """A TABLE_MAP event's body (after the header, without checksum), taken apart."""

    def __init__(self, body: bytes) -> None:
        """Read it. Damaged with the offset if it is truncated."""
        reader = _Reader(body)
        self.number = reader.integer(6)
        self.flags = reader.integer(2)
        self.database = reader.text(reader.integer(1))
        reader.integer(1)
        self.table = reader.text(reader.integer(1))
        reader.integer(1)
        count = reader.packed()
        self.types = list(reader.take(count))
        metadata = _Reader(reader.take(reader.packed()))
        self.metadata = [metadata.take(_METADATA_BYTES.get(kind, 0)) for kind in self.types]
        nulls = reader.take((count + 7) // 8)
        self.nullable = [bool(nulls[i // 8] >> (i % 8) & 1) for i in range(count)]
        fields: dict[int, bytes] = {}
        while not reader.ended:
            field = reader.integer(1)
            fields[field] = reader.take(reader.packed())
        self.names: list[str] = []
        names = _Reader(fields.get(4, b""))
        while not names.ended:
            self.names.append(names.text(names.packed()))
        numeric = [i for i, kind in enumerate(self.types) if kind in _NUMERIC]
        signs = fields.get(1, b"").ljust((len(numeric) + 7) // 8, b"\0")
        self.unsigned = {i: bool(signs[n // 8] << (n % 8) & 0x80) for n, i in enumerate(numeric)}
        self.real = [_real_type(kind, meta) for kind, meta in zip(self.types, self.metadata, strict=True)]
        # MariaDB counts GEOMETRY among the columns with a character set; MySQL (8.0.23) tells each column's visibility
        self._mariadb = 12 not in fields
        texts = [i for i, kind in enumerate(self.real) if kind in _CHARACTER or (self._mariadb and kind == 255)]
        self.collations = _collations(texts, fields.get(2), fields.get(3))
        members = [i for i, kind in enumerate(self.real) if kind in (247, 248)]
        self.collations.update(_collations(members, fields.get(10), fields.get(11)))
        self.members: dict[int, list[bytes]] = {}
        for field, kind in ((5, 248), (6, 247)):
            lists = _Reader(fields.get(field, b""))
            for i in (i for i, real in enumerate(self.real) if real == kind):
                if not lists.ended:
                    self.members[i] = [lists.take(lists.packed()) for _ in range(lists.packed())]

    def hidden(self, i: int) -> bool:
        """Whether no catalogue shows the column: of a functional index, or the hash that MariaDB keeps for a UNIQUE
        over long values. A visible column may have the hash's name and type, so one that the schema has is none.
        """
        name = self.names[i]
        hash_of_mariadb = self._mariadb and self.types[i] == 8 and self.unsigned[i]
        return name.startswith("!hidden!") or (hash_of_mariadb and _HASH.fullmatch(name) is not None)


class _Reader:
    """Little-endian reading with bounds."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def take(self, n: int) -> bytes:
        if n > len(self._data) - self._at:
            raise Damaged(f"the table map ends at byte {len(self._data)}, {n} bytes were due at {self._at}")
        self._at += n
        return self._data[self._at - n : self._at]

    def text(self, n: int) -> str:
        begin = self._at
        try:
            return self.take(n).decode()
        except UnicodeDecodeError as error:
            raise Damaged(f"the table map has a name at byte {begin} that is not UTF-8") from error

    def integer(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def packed(self) -> int:
        first = self.integer(1)
        if first < 251:
            return first
        if first in (252, 253, 254):
            return self.integer({252: 2, 253: 3, 254: 8}[first])
        raise Damaged(f"byte {self._at - 1} of the table map is no length")


_METADATA_BYTES = {
    4: 1,
    5: 1,
    15: 2,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    140: 1,
    141: 2,
    242: 1,
    245: 1,
    246: 2,
    247: 2,
    248: 2,
}
_METADATA_BYTES |= {249: 1, 250: 1, 251: 1, 252: 1, 253: 2, 254: 2, 255: 1}
_HASH = re.compile(r"DB_ROW_HASH_\d+")
_NUMERIC = frozenset((1, 2, 3, 4, 5, 8, 9, 13, 246))
_CHARACTER = frozenset((15, 140, 141, 242, 249, 250, 251, 252, 253, 254))


def _real_type(kind: int, meta: bytes) -> int:
    """ENUM and SET travel as STRING, the real type in the metadata's first byte."""
    if kind == 254 and meta[0] in (247, 248):
        return meta[0]
    return kind


def _collations(columns: list[int], default: bytes | None, single: bytes | None) -> dict[int, int]:
    """Collation numbers of the given columns, from a default with exceptions or one each."""
    found: dict[int, int] = {}
    if default is not None:
        reader = _Reader(default)
        usual = reader.packed()
        found = dict.fromkeys(columns, usual)
        while not reader.ended:
            at = reader.packed()
            if at >= len(columns):
                raise Damaged(f"the table map names a character set of column {at} of {len(columns)} with text")
            found[columns[at]] = reader.packed()
    elif single is not None:
        reader = _Reader(single)
        for column in columns:
            found[column] = reader.packed()
    return found


class _Tables:
    """What plans refer to: numbers, texts and codecs; an EventDecoder hands it to its arena."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.texts = bytearray()
        self.codecs: list[str] = []
        self._sets: dict[tuple[str, bool], int] = {}

    def character_set(self, name: str, key: bool) -> int:
        """Where the code points of a character set that isn't Unicode's begin."""
        if (name, key) not in self._sets:
            self._sets[name, key] = len(self.numbers)
            points = key_points if key else code_points if name in EIGHT_BIT else multi_byte_points
            self.numbers += points(name)
        return self._sets[name, key]

    def members(self, values: list[bytes]) -> int:
        """Where the ends of these texts begin."""
        at = len(self.numbers)
        self.numbers.append(len(self.texts))
        for value in values:
            self.texts += value
            self.numbers.append(len(self.texts))
        return at

    def codec(self, name: str) -> int:
        """The number of a Python codec."""
        if name not in self.codecs:
            self.codecs.append(name)
        return self.codecs.index(name)


def _match(table: TableMap, schema: TableSchema, tables: _Tables, sources: list[list[int]]) -> list[str]:
    """Plan each column of the event; what doesn't fit, as sentences."""
    faults = []
    if len(table.names) != len(table.types):
        raise _Misfit("the row events carry no column names: SET GLOBAL binlog_row_metadata = FULL")
    seen = set()
    keys = {schema.place(name) for name in schema.key}
    for i, name in enumerate(table.names):
        at = schema.place(name)
        if at is None:
            if not table.hidden(i):
                faults.append(f"the row events have a column {name} that the schema lacks")
            sources.append(_skipped(table, i))
            continue
        seen.add(at)
        column = schema.columns[at]
        try:
            key = at in keys
            kind, size, prefix, arg, arg2, strip = _event_kind(table, i, column, key, tables)
            if schema.is_boolean(column):
                kind = K_BOOLEAN
        except _Misfit as fault:
            faults.append(f"column {name}: {fault}")
            continue
        sources.append([kind, at, size, prefix, arg, arg2, strip, int(key), 0, 0])
    for name, source in [] if faults else zip(table.names, sources, strict=True):
        size, prefix = source[S_SIZE], source[S_PREFIX]
        if not 0 <= prefix <= 4 or (not prefix and not 0 < size <= _FIXED_BYTES.get(source[S_KIND], size)):
            raise Damaged(f"the table map's metadata of column {name} is corrupt")
    faults += [f"the row events lack column {column.name}" for i, column in enumerate(schema.columns) if i not in seen]
    return faults


def _skipped(table: TableMap, i: int) -> list[int]:
    """The plan of a column that nobody wants: only its length matters."""
    kind, meta = table.real[i], table.metadata[i]
    size, prefix = _FIXED.get(kind, 0), 0
    if kind == 246:
        size = _decimal_size(meta[0], meta[1])
    elif kind in _FRACTION_BASE:
        size = _FRACTION_BASE[kind] + (meta[0] + 1) // 2
    elif kind == 16:
        size = meta[1] + (meta[0] > 0)
    elif kind in (247, 248):
        size = meta[1]
    elif kind in (15, 253, 141):
        prefix = 1 if int.from_bytes(meta, "little") < 256 else 2
    elif kind == 254:
        prefix = 1 if _string_length(meta) < 256 else 2
    elif kind in (140, 242, 245, 249, 250, 251, 252, 255):
        prefix = meta[0]
    elif not size:
        raise _Misfit(f"the row events have column {table.names[i]} of the unknown type {kind}")
    return [K_BYTES, -1, size, prefix, 0, 0, 0, 0, 0, 0]


_FIXED = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 3, 10: 3, 13: 1, 14: 3}
_FRACTION_BASE = {17: 4, 18: 5, 19: 3}
_FIXED_BYTES = {K_ENUM: 2, K_SET: 8}
_INTEGER_TYPES = {"tinyint": 1, "smallint": 2, "mediumint": 9, "int": 3, "bigint": 8}
_TIME_TYPES = {"timestamp": (17, K_BIN_TIMESTAMP), "datetime": (18, K_BIN_DATETIME), "time": (19, K_BIN_TIME)}
_BLOB_BYTES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_OLD_TYPES = {0: "DECIMAL", 7: "TIMESTAMP", 11: "TIME", 12: "DATETIME"}
_BINARY = 63


def _string_length(meta: bytes) -> int:
    """Bytes of a CHAR or BINARY: bits 8 and 9 hide, inverted, in the type's byte."""
    return ((meta[0] & 0x30) ^ 0x30) << 4 | meta[1]


def _event_kind(
    table: TableMap, i: int, column: Column, key: bool, tables: _Tables
) -> tuple[int, int, int, int, int, int]:
    """How a column's value in a row image is read: kind, fixed size or size of its length, two arguments, spaces
    stripped.
    """
    kind = parse_type(column.mysql_type)
    real, meta, base = table.real[i], table.metadata[i], kind.base
    misfit = _Misfit(f"the row events have type {real} where the schema has {column.mysql_type}")
    if real in _OLD_TYPES:
        raise _Misfit(f"it has the form of {_OLD_TYPES[real]} before MySQL 5.6: ALTER TABLE ... FORCE rewrites it")
    if base in _INTEGER_TYPES:
        if real != _INTEGER_TYPES[base] or table.unsigned[i] != kind.unsigned:
            raise misfit
        size = _FIXED[real]
        if kind.unsigned:
            return K_LE_U64 if size == 8 else K_LE_UNSIGNED, size, 0, 0, 0, 0
        return K_LE_SIGNED, size, 0, 0, 0, 0
    if base in ("float", "double"):
        size = 4 if base == "float" else 8
        if real != (4 if base == "float" else 5) or meta[0] != size:
            raise misfit
        return K_COPY, size, 0, 0, 0, 0
    if base == "decimal":
        if real != 246 or (meta[0], meta[1]) != _decimal_numbers(kind):
            raise misfit
        how = K_BIN_DECIMAL if meta[0] <= 38 else K_BIN_DECIMAL_WIDE
        return how, _decimal_size(meta[0], meta[1]), 0, meta[0], meta[1], 0
    if base in _TIME_TYPES:
        if real != _TIME_TYPES[base][0] or meta[0] != (kind.numbers[0] if kind.numbers else 0):
            raise misfit
        return _TIME_TYPES[base][1], _FRACTION_BASE[real] + (meta[0] + 1) // 2, 0, 0, 0, 0
    if base == "date" and real in (10, 14):
        return K_BIN_DATE, 3, 0, 0, 0, 0
    if base == "year" and real == 13:
        return K_YEAR_2 if kind.numbers == (2,) else K_YEAR, 1, 0, 0, 0, 0
    if base == "bit" and real == 16:
        bits = meta[1] * 8 + meta[0]
        if bits != (kind.numbers[0] if kind.numbers else 1):
            raise misfit
        return K_BIT1 if bits == 1 else K_BYTES, (bits + 7) // 8, 0, 0, 0, 0
    if base in ("enum", "set"):
        if real != (247 if base == "enum" else 248) or i not in table.members:
            raise misfit
        charset = _charset(table, i, column)
        try:
            values = [to_text(value, charset).encode() for value in table.members[i]]
        except UnicodeError as error:
            raise Damaged(f"the table map names members of column {column.name} that are not {charset}") from error
        return K_ENUM if base == "enum" else K_SET, meta[1], 0, tables.members(values), len(values), 0
    if base == "json" and real == 245:
        return K_JSON, 0, meta[0], 0, 0, 0
    if base == "vector" and real == 242:
        return K_VECTOR, 0, meta[0], 0, 0, 0
    if real == 255 and column.charset is None:
        return K_BYTES, 0, meta[0], 0, 0, 0
    if base in ("uuid", "inet6", "inet4") and real == 254:
        size = 4 if base == "inet4" else 16
        if _string_length(meta) != size:
            raise misfit
        return {"uuid": K_UUID, "inet6": K_INET6, "inet4": K_INET4}[base], 0, 1, 0, 0, 0
    binary = table.collations.get(i) == _BINARY
    if base in ("char", "binary") and real == 254:
        length = _string_length(meta)
        if binary != (base == "binary") or (binary and length != (kind.numbers[0] if kind.numbers else 1)):
            raise misfit
        prefix = 1 if length < 256 else 2
        if binary:
            return K_PAD, 0, prefix, length, 0, 0
        how, argument, second = _text_plan(_charset(table, i, column), key, tables)
        return how, 0, prefix, argument, second, 1
    if base in ("varchar", "varbinary") and real in (15, 253, 141):
        prefix = 1 if int.from_bytes(meta, "little") < 256 else 2
        expected = "varbinary"
    elif base.endswith(("text", "blob")) and real in (252, 140):
        prefix = meta[0]
        if _BLOB_BYTES[base.removesuffix("text").removesuffix("blob")] != prefix:
            raise misfit
        expected = "blob"
    else:
        raise misfit
    if binary != base.endswith(expected):
        raise misfit
    charset = "binary" if binary else _charset(table, i, column)
    if real in (140, 141):
        as_it_is = charset in ("binary", "utf8mb4", "utf8mb3")
        return K_COMPRESSED, 0, prefix, -1 if as_it_is else tables.codec(charset), 0, 0
    if binary:
        return K_BYTES, 0, prefix, 0, 0, 0
    how, argument, second = _text_plan(charset, key, tables)
    return how, 0, prefix, argument, second, 0


def _charset(table: TableMap, i: int, column: Column) -> str:
    """The character set of a column: the event's, which the schema's must equal."""
    number = table.collations.get(i)
    if number is None:
        raise _Misfit("the row events carry no character set: SET GLOBAL binlog_row_metadata = FULL")
    charset = charset_of(number)
    if charset is None:
        raise _Misfit(f"collation {number} is not known")
    if column.charset is not None and _alias(column.charset) != charset:
        raise _Misfit(f"the row events have the character set {charset}, the schema {column.charset}")
    return charset


def _alias(charset: str) -> str:
    return "utf8mb3" if charset.lower() == "utf8" else charset.lower()


def _text_plan(charset: str, key: bool, tables: _Tables) -> tuple[int, int, int]:
    """How text of a character set becomes UTF-8, with that reading's arguments."""
    if charset in ("utf8mb4", "utf8mb3"):
        return K_BYTES, 0, 0
    if charset in ("ucs2", "utf16", "utf16le"):
        return K_UTF16, int(charset == "utf16le"), 0
    if charset == "utf32":
        return K_UTF32, 0, 0
    if charset in EIGHT_BIT:
        return K_TABLE, tables.character_set(charset, key), int(code_points(charset)[:128] == tuple(range(128)))
    if charset in MULTI_BYTE:
        return K_PAIRS, tables.character_set(charset, key), 0
    return K_CODEC, tables.codec(charset), 0
