# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""Values: from MySQL's bytes, of a SELECT or of the binlog, to one place in the arena.

`store` reads a value as its source column's plan says (row_plan.py makes the plans). The same value gives the same
bytes from a SELECT and from the binlog. No Python object is made, except for text in gb18030, COMPRESSED columns, and
doubles inside JSON.

A value without an Arrow form becomes null and is counted (`V_UNFIT`): zero, partial and impossible dates, and values of
a key that can't be told from others once they are text.
"""

# ruff: noqa: B007 (a typed loop variable may not be renamed)

from __future__ import annotations

import array
import zlib

import cython

from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.charsets import to_text
from cutline.services.sources.mysql.decode.row_plan import RowPlan

if not cython.compiled:
    from cutline.services.sources.mysql.decode.arena import Arena, put, put_from, put_hex, put_number
    from cutline.services.sources.mysql.decode.codes import (
        AMBIGUOUS,
        C_DATA,
        C_END,
        C_FIX,
        C_LAYOUT,
        C_OFFS,
        C_STRIDE,
        C_VALID,
        CORRUPT,
        FULL,
        K_BIN_DATE,
        K_BIN_DATETIME,
        K_BIN_DECIMAL,
        K_BIN_DECIMAL_WIDE,
        K_BIN_TIME,
        K_BIN_TIMESTAMP,
        K_BIT1,
        K_BOOLEAN,
        K_BYTES,
        K_CODEC,
        K_COMPRESSED,
        K_COPY,
        K_DATE,
        K_DATETIME,
        K_DECIMAL,
        K_DECIMAL_WIDE,
        K_ENUM,
        K_INET4,
        K_INET6,
        K_JSON,
        K_LE_SIGNED,
        K_LE_U64,
        K_LE_UNSIGNED,
        K_PAD,
        K_PAIRS,
        K_SET,
        K_TABLE,
        K_TIME,
        K_UTF16,
        K_UTF32,
        K_UUID,
        K_VECTOR,
        K_YEAR,
        K_YEAR_2,
        L_I32,
        L_I64,
        L_VAR,
        OK,
        P_PAIR,
        P_TRIPLE,
        S_ARG,
        S_ARG2,
        S_DEST,
        S_KEY,
        S_KIND,
        S_STRIP,
        V_SET,
        V_UNFIT,
    )
    from cutline.services.sources.mysql.decode.decimals import put_decimal, put_packed, put_packed_text
    from cutline.services.sources.mysql.decode.json_text import put_json
    from cutline.services.sources.mysql.decode.memory import be, byte_or_0, bytes_of, copy, le, signed64

COMPILED: bool = cython.compiled
"""Whether this module runs as C."""

VALUE_BYTES = 64 << 20
"""No value may be larger."""


@cython.cclass
class ValueDecoder(Arena):
    """An arena, and the plan by which source values are read into it. (Fields: values.pxd.)"""

    def _follow_plan(self, plan: RowPlan) -> None:
        """Use this plan of the source columns; call `_start` before."""
        self.source_names, self.codecs = plan.names, plan.codecs
        self.source_count = len(plan.sources)
        self.source_plan = array.array("q", [number for source in plan.sources for number in source] or [0])
        self.number_table = array.array("i", plan.numbers or [0])
        self.text_table = bytearray(plan.texts or b"\0")
        s: cython.longlong[::1] = self.source_plan
        x: cython.int[::1] = self.number_table
        t: cython.uchar[::1] = self.text_table
        if cython.compiled:
            self.sources, self.numbers = cython.address(s[0]), cython.address(x[0])
            self.texts = cython.address(t[0])
        else:
            self.sources, self.numbers, self.texts = s, x, memoryview(t)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def store(
    decoder: ValueDecoder,
    src: cython.p_uchar,
    at: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    source: cython.Py_ssize_t,
    r: cython.Py_ssize_t,
) -> cython.int:
    """Write the value src[at : at + n] into row r: OK, FULL or CORRUPT. `source` is where the plan of its source column
    starts, in integers.
    """
    s: cython.p_longlong = decoder.sources
    q: cython.p_longlong = decoder.columns
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
        begin = q[c + C_DATA] + decoder.p32[q[c + C_OFFS] + r]
        decoder.out = begin
        decoder.end = q[c + C_END]
        if kind == K_BYTES:
            if begin + n <= decoder.end:
                copy(decoder.p8, begin, src, at, n)
            decoder.out = begin + n
        elif kind == K_VECTOR:
            if n % 4:
                return CORRUPT
            put_from(decoder, src, at, n)
        else:
            done = _render(decoder, src, at, n, source)
            if done == AMBIGUOUS:
                decoder.p32[q[c + C_OFFS] + r + 1] = decoder.p32[q[c + C_OFFS] + r]
                decoder.p8[q[c + C_VALID] + r] = V_UNFIT
                return OK
            if done != OK:
                return done
        if decoder.out > decoder.end:
            decoder.full_column = dest
            decoder.missing_bytes = decoder.out - decoder.end
            return FULL
        if s[source + S_STRIP]:
            while decoder.out > begin and decoder.p8[decoder.out - 1] == ord(" "):
                decoder.out -= 1
        decoder.data_bytes += decoder.out - begin
        decoder.p32[q[c + C_OFFS] + r + 1] = decoder.out - q[c + C_DATA]
        decoder.p8[q[c + C_VALID] + r] = V_SET
        return OK

    decoder.p8[q[c + C_VALID] + r] = V_SET
    if kind == K_LE_SIGNED or kind == K_LE_UNSIGNED:
        u = le(src, at, n)
        if kind == K_LE_SIGNED and n < 8 and u >> (8 * n - 1):
            v = cython.cast(cython.longlong, u) - (cython.cast(cython.longlong, 1) << (8 * n))
        else:
            v = signed64(u)
        if layout == L_I32:
            if v < -2147483647 - 1 or v > 2147483647:
                return CORRUPT
            decoder.p32[fix] = v
        else:
            decoder.p64[fix] = v
    elif kind == K_LE_U64:
        u = le(src, at, n)
        if layout == L_I64:
            decoder.p64[fix] = signed64(u)
            if u >> 63:
                decoder.p8[q[c + C_VALID] + r] = V_UNFIT
        else:
            decoder.p64[2 * fix] = signed64(u)
            decoder.p64[2 * fix + 1] = 0
    elif kind == K_COPY:
        copy(decoder.p8, fix * layout, src, at, layout)
    elif kind == K_DECIMAL:
        return put_decimal(decoder, src, at, n, s[source + S_ARG], s[source + S_ARG2], fix)
    elif kind == K_BIN_DECIMAL:
        return put_packed(decoder, src, at, s[source + S_ARG], s[source + S_ARG2], fix)
    elif kind == K_DATE or kind == K_DATETIME:
        return _moment(decoder, src, at, n, fix, q[c + C_VALID] + r, layout)
    elif kind == K_BIN_DATE:
        u = le(src, at, 3)
        _set_date(decoder, fix, q[c + C_VALID] + r, u >> 9, (u >> 5) & 15, u & 31)
    elif kind == K_BIN_DATETIME:
        u = be(src, at, 5)
        v = _micros(src, at + 5, n - 5)
        if not u >> 39 or v < 0:
            return CORRUPT
        u = u - (cython.cast(cython.ulonglong, 1) << 39)
        y = (u >> 22) // 13
        m = (u >> 22) % 13
        d = ((u >> 12) & 31) * 3600 + ((u >> 6) & 63) * 60 + (u & 63)
        if d >= 86400:
            return CORRUPT
        _set_time(decoder, fix, q[c + C_VALID] + r, y, m, (u >> 17) & 31, d * 1000000 + v)
    elif kind == K_BIN_TIMESTAMP:
        u = be(src, at, 4)
        v = _micros(src, at + 4, n - 4)
        if v < 0:
            return CORRUPT
        if u == 0 and v == 0:
            decoder.p64[fix] = 0
            decoder.p8[q[c + C_VALID] + r] = V_UNFIT
        else:
            decoder.p64[fix] = cython.cast(cython.longlong, u) * 1000000 + v
    elif kind == K_TIME:
        if n != 0 and n != 8 and n != 12:
            return CORRUPT
        v = 0
        if n:
            v, d = _clock(src, at + 5, n - 5), le(src, at + 1, 4)
            if src[at] > 1 or d > 34 or v < 0:
                return CORRUPT
            v += d * 86400 * 1000000
            if src[at]:
                v = -v
        decoder.p64[fix] = v
    elif kind == K_BIN_TIME:
        u = be(src, at, 3)
        v = be(src, at + 3, n - 3)
        # a time below 0 is stored as the complement of all its bits: negate it before taking its parts
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
        decoder.p64[fix] = -v if negative else v
    elif kind == K_BIT1:
        if n != 1:
            return CORRUPT
        decoder.p8[fix] = src[at] & 1
    elif kind == K_BOOLEAN:
        decoder.p8[fix] = src[at] != 0
    elif kind == K_YEAR:
        decoder.p32[fix] = 1900 + src[at] if src[at] else 0
    elif kind == K_YEAR_2:  # a SELECT gives only the last two digits
        v = le(src, at, n) % 100
        decoder.p32[fix] = v + (1900 if v >= 70 else 2000)
    else:
        return CORRUPT
    return OK


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _micros(src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.longlong:
    """A fraction of a second in 0 to 3 bytes, as microseconds; -1 if it is over a second."""
    v: cython.longlong = be(src, at, n)
    i: cython.Py_ssize_t
    for i in range(3 - n):
        v *= 100
    return v if v <= 999999 else -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _set_date(
    to: Arena,
    fix: cython.Py_ssize_t,
    valid: cython.Py_ssize_t,
    y: cython.longlong,
    m: cython.longlong,
    d: cython.longlong,
) -> cython.void:
    """Write a date, or null for one that is not in the calendar."""
    if _is_date(y, m, d):
        to.p32[fix] = _days(y, m, d)
    else:
        to.p32[fix] = 0
        to.p8[valid] = V_UNFIT


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _set_time(
    to: Arena,
    fix: cython.Py_ssize_t,
    valid: cython.Py_ssize_t,
    y: cython.longlong,
    m: cython.longlong,
    d: cython.longlong,
    micros: cython.longlong,
) -> cython.void:
    """Write a date and time, or null if its date is not in the calendar."""
    if _is_date(y, m, d):
        to.p64[fix] = _days(y, m, d) * 86400 * 1000000 + micros
    else:
        to.p64[fix] = 0
        to.p8[valid] = V_UNFIT


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _moment(
    to: Arena,
    src: cython.p_uchar,
    at: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    fix: cython.Py_ssize_t,
    valid: cython.Py_ssize_t,
    layout: cython.longlong,
) -> cython.int:
    """Write a DATE, DATETIME or TIMESTAMP of the binary protocol, which leaves out zeros at the end."""
    y: cython.longlong = 0
    m: cython.longlong = 0
    d: cython.longlong = 0
    micros: cython.longlong = 0
    if n >= 4:
        y, m, d = le(src, at, 2), src[at + 2], src[at + 3]
    if n == 7 or n == 11:
        micros = _clock(src, at + 4, n - 4)
    elif n != 0 and n != 4:
        return CORRUPT
    if y > 9999 or m > 12 or d > 31 or micros < 0 or (layout == L_I32 and micros):
        return CORRUPT
    if layout == L_I32:
        _set_date(to, fix, valid, y, m, d)
    else:
        _set_time(to, fix, valid, y, m, d, micros)
    return OK


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _render(
    decoder: ValueDecoder, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t, source: cython.Py_ssize_t
) -> cython.int:
    """Write a value that isn't copied as it is: text of other character sets than UTF-8, ENUM, SET, JSON, wide decimals
    and others. AMBIGUOUS for a value of a key that can't be told from other values.
    """
    s: cython.p_longlong = decoder.sources
    kind: cython.longlong = s[source + S_KIND]
    arg: cython.Py_ssize_t = s[source + S_ARG]
    i: cython.Py_ssize_t
    end: cython.Py_ssize_t = at + n
    cp: cython.uint
    low: cython.uint
    point: cython.int
    u: cython.ulonglong
    begin: cython.Py_ssize_t
    member: cython.Py_ssize_t
    if kind == K_TABLE:
        i = at
        if s[source + S_ARG2]:
            # the lower half of this character set is ASCII: copy the ASCII at the beginning
            while i < end and src[i] < 128:
                i += 1
            put_from(decoder, src, at, i - at)
        while i < end:
            point = decoder.numbers[arg + src[i]]
            if point < 0:
                return AMBIGUOUS
            _put_point(decoder, point)
            i += 1
    elif kind == K_PAIRS:
        i = at
        while i < end:
            point = decoder.numbers[arg + src[i]]
            if point == P_PAIR and i + 1 < end:
                point = decoder.numbers[arg + 256 + 256 * src[i] + src[i + 1]]
                i += 2
            elif point == P_TRIPLE and i + 2 < end:
                point = decoder.numbers[arg + 256 + 65536 + 256 * src[i + 1] + src[i + 2]]
                i += 3
            else:
                i += 1
            if point < 0:
                if s[source + S_KEY]:
                    return AMBIGUOUS
                point = ord("?")
            _put_point(decoder, point)
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
            _put_point(decoder, cp)
    elif kind == K_UTF32:
        if n % 4:
            return CORRUPT
        i = at
        while i < end:
            u = be(src, i, 4)
            if u > 0x10FFFF or (u >= 0xD800 and u < 0xE000):
                return CORRUPT
            _put_point(decoder, u)
            i += 4
    elif kind == K_PAD:
        if n > s[source + S_ARG]:
            return CORRUPT
        put_from(decoder, src, at, n)
        for i in range(s[source + S_ARG] - n):
            put(decoder, 0)
    elif kind == K_ENUM:
        u = le(src, at, n)
        if u > cython.cast(cython.ulonglong, s[source + S_ARG2]):
            return CORRUPT
        if u:
            begin = decoder.numbers[arg + u - 1]
            put_from(decoder, decoder.texts, begin, decoder.numbers[arg + u] - begin)
        elif s[source + S_KEY]:
            for i in range(s[source + S_ARG2]):
                if decoder.numbers[arg + i] == decoder.numbers[arg + i + 1]:
                    return AMBIGUOUS
    elif kind == K_SET:
        u = le(src, at, n)
        if s[source + S_ARG2] < 64 and u >> s[source + S_ARG2]:
            return CORRUPT
        begin = decoder.out
        i = 0
        while u:
            if u & 1:
                if s[source + S_KEY] and decoder.numbers[arg + i] == decoder.numbers[arg + i + 1]:
                    return AMBIGUOUS
                if decoder.out > begin:  # as MySQL prints it: no comma after an empty first member
                    put(decoder, ord(","))
                member = decoder.numbers[arg + i]
                put_from(decoder, decoder.texts, member, decoder.numbers[arg + i + 1] - member)
            u = u >> 1
            i += 1
    elif kind == K_JSON:
        return put_json(decoder, src, at, n)
    elif kind == K_DECIMAL_WIDE:
        i = at
        if i < end and src[i] == ord("-"):
            put(decoder, ord("-"))
            i += 1
        while i + 1 < end and src[i] == ord("0") and src[i + 1] != ord("."):
            i += 1
        put_from(decoder, src, i, end - i)
    elif kind == K_BIN_DECIMAL_WIDE:
        return put_packed_text(decoder, src, at, s[source + S_ARG], s[source + S_ARG2])
    elif kind == K_UUID:
        if n > 16:
            return CORRUPT
        _put_uuid(decoder, src, at, n)
    elif kind == K_INET6:
        if n > 16:
            return CORRUPT
        _put_inet6(decoder, src, at, n)
    elif kind == K_INET4:
        if n > 4:
            return CORRUPT
        for i in range(4):
            if i:
                put(decoder, ord("."))
            put_number(decoder, byte_or_0(src, at, n, i), 1)
    elif kind == K_CODEC:
        with cython.gil:
            return _convert(decoder, bytes_of(src, at, end), arg)
    elif kind == K_COMPRESSED:
        with cython.gil:
            return _inflate(decoder, bytes_of(src, at, end), arg)
    else:
        return CORRUPT
    return OK


@cython.cfunc
@cython.exceptval(-1)
def _convert(decoder: ValueDecoder, raw: bytes, which: cython.Py_ssize_t) -> cython.int:
    """Write text of a character set that Python decodes."""
    try:
        text: bytes = to_text(raw, decoder.codecs[which]).encode()
    except UnicodeError:
        return CORRUPT
    put_from(decoder, text, 0, len(text))
    return OK


@cython.cfunc
@cython.exceptval(-1)
def _inflate(decoder: ValueDecoder, raw: bytes, which: cython.Py_ssize_t) -> cython.int:
    """Write the value of a COMPRESSED column, of character set `which` (-1: copied as it is)."""
    try:
        value: bytes = inflated(raw)
        if which >= 0:
            value = to_text(value, decoder.codecs[which]).encode()
    except (Damaged, UnicodeError, zlib.error):
        return CORRUPT
    put_from(decoder, value, 0, len(value))
    return OK


def inflated(stored: bytes) -> bytes:
    """The value of a COMPRESSED column of MariaDB, as Field_varstring_compressed stores it. Damaged or zlib.error if
    it can't be read.

    No bytes are the empty value. A first byte of 0 precedes a value stored as it is. Before a deflated value the first
    byte is the sum of 0x80 (zlib), 8 if zlib's header and checksum are left out, and the number of bytes that follow
    with the value's length (big-endian).
    """
    head = stored[0] if stored else 0
    if head == 0:
        return stored[1:]
    length = int.from_bytes(stored[1 : 1 + (head & 7)], "big")
    if head & 0xF0 != 0x80 or length > VALUE_BYTES:
        raise Damaged("the head of a compressed value is corrupt")
    deflated = zlib.decompressobj(-15 if head & 8 else 15)
    value = deflated.decompress(stored[1 + (head & 7) :], length + 1)
    if len(value) != length or not deflated.eof:
        raise Damaged("a compressed value has another length than its head says")
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_point(to: Arena, cp: cython.uint) -> cython.void:
    """Write a code point in UTF-8."""
    if cp < 0x80:
        put(to, cp)
    elif cp < 0x800:
        put(to, 0xC0 | (cp >> 6))
        put(to, 0x80 | (cp & 63))
    elif cp < 0x10000:
        put(to, 0xE0 | (cp >> 12))
        put(to, 0x80 | ((cp >> 6) & 63))
        put(to, 0x80 | (cp & 63))
    else:
        put(to, 0xF0 | (cp >> 18))
        put(to, 0x80 | ((cp >> 12) & 63))
        put(to, 0x80 | ((cp >> 6) & 63))
        put(to, 0x80 | (cp & 63))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_uuid(to: Arena, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
    """Write MariaDB's UUID: 16 bytes in the order in which they print, without the zero bytes at the end."""
    i: cython.int
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            put(to, ord("-"))
        put_hex(to, byte_or_0(src, at, n, i) >> 4)
        put_hex(to, byte_or_0(src, at, n, i) & 15)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_inet6(to: Arena, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
    """Write an INET6 as MariaDB prints it: the longest run of zero groups as ::, an IPv4 address with dots."""
    i: cython.int = 0
    run: cython.int
    best: cython.int = -1
    best_n: cython.int = 0
    group: cython.uint
    while i < 8:
        run = i
        while run < 8 and byte_or_0(src, at, n, 2 * run) == 0 and byte_or_0(src, at, n, 2 * run + 1) == 0:
            run += 1
        if run - i > best_n:
            best = i
            best_n = run - i
        i = run + 1
    i = 0
    while i < 8:
        if i == best:
            put(to, ord(":"))
            put(to, ord(":"))
            i += best_n
            continue
        if i == 6 and best == 0 and (best_n == 6 or (best_n == 5 and byte_or_0(src, at, n, 10) == 255)):
            if best_n == 6 or byte_or_0(src, at, n, 11) == 255:
                if best_n == 5:
                    put(to, ord(":"))
                for run in range(4):
                    if run:
                        put(to, ord("."))
                    put_number(to, byte_or_0(src, at, n, 12 + run), 1)
                return
        if i and i != best + best_n:
            put(to, ord(":"))
        group = (byte_or_0(src, at, n, 2 * i) << 8) | byte_or_0(src, at, n, 2 * i + 1)
        if group > 0xFFF:
            put_hex(to, group >> 12)
        if group > 0xFF:
            put_hex(to, (group >> 8) & 15)
        if group > 0xF:
            put_hex(to, (group >> 4) & 15)
        put_hex(to, group & 15)
        i += 1


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
    """Whether the date is in the calendar, in the years 1 to 9999: not a zero, partial or impossible date."""
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
    """Microseconds of a time of day in the binary protocol (hour, minute, second, and four bytes of microseconds if n
    is 7), or -1.
    """
    part: cython.longlong = le(src, at + 3, 4) if n == 7 else 0
    if src[at] > 23 or src[at + 1] > 59 or src[at + 2] > 59 or part > 999999:
        return -1
    return (src[at] * 3600 + src[at + 1] * 60 + src[at + 2]) * cython.cast(cython.longlong, 1000000) + part
