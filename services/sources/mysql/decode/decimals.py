# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""DECIMAL: from MySQL's text and its packed form to the arena's 128-bit integers, or to text.

The packed form (binlog, JSON): groups of nine digits in four bytes each, big-endian; the digits left over on either
side of the point, at its outer end, in as few bytes as hold them. The first bit is 1 for a number that is not negative;
a negative number has all bits inverted. Each function answers OK or CORRUPT.
"""

# ruff: noqa: B007 (a typed loop variable may not be renamed)

from __future__ import annotations

import cython

if not cython.compiled:
    from cutline.services.sources.mysql.decode.arena import Arena, put, put_number
    from cutline.services.sources.mysql.decode.codes import CORRUPT, OK
    from cutline.services.sources.mysql.decode.memory import low32, low64, signed64

COMPILED: bool = cython.compiled
"""Whether this module runs as C."""


@cython.ccall
@cython.nogil
@cython.exceptval(check=False)
def decimal_size(precision: cython.int, scale: cython.int) -> cython.int:
    """Bytes of a packed DECIMAL."""
    whole: cython.int = precision - scale
    return whole // 9 * 4 + (whole % 9 + 1) // 2 + scale // 9 * 4 + (scale % 9 + 1) // 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_decimal(
    to: Arena,
    src: cython.p_uchar,
    at: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    precision: cython.longlong,
    scale: cython.longlong,
    fix: cython.Py_ssize_t,
) -> cython.int:
    """Store the DECIMAL given as text, with exactly `scale` digits after the point and at most `precision` digits
    besides zeros in front, as value `fix` of the block.
    """
    i: cython.Py_ssize_t = at
    end: cython.Py_ssize_t = at + n
    group: cython.ulonglong = 0
    in_group: cython.int = 0
    digits: cython.int = 0
    after: cython.longlong = -1
    negative: cython.bint = False
    if n > 0 and src[at] == ord("-"):
        negative = True
        i += 1
    to.lo = 0
    to.hi = 0
    while i < end:
        if src[i] == ord(".") and after < 0:
            after = 0
        elif src[i] >= ord("0") and src[i] <= ord("9"):
            if digits or src[i] != ord("0"):
                digits += 1
            group = group * 10 + (src[i] - ord("0"))
            in_group += 1
            if after >= 0:
                after += 1
            if in_group == 9:
                _mul_add(to, 1000000000, group)
                group = 0
                in_group = 0
        else:
            return CORRUPT
        i += 1
    if digits > precision or (after if after > 0 else 0) != scale:
        return CORRUPT
    if in_group:
        _mul_add(to, _ten_to_the(in_group), group)
    _put_int128(to, fix, negative)
    return OK


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_packed(
    to: Arena,
    src: cython.p_uchar,
    at: cython.Py_ssize_t,
    precision: cython.longlong,
    scale: cython.longlong,
    fix: cython.Py_ssize_t,
) -> cython.int:
    """Store the packed DECIMAL at src[at:] as value `fix` of the block."""
    negative: cython.bint = not src[at] & 0x80
    flip: cython.uint = 0xFF if negative else 0
    first: cython.uint = 0x80
    whole: cython.int = precision - scale
    part: cython.int = scale
    digits: cython.int
    size: cython.int
    i: cython.int
    group: cython.ulonglong
    to.lo = 0
    to.hi = 0
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
        if group >= _ten_to_the(digits):
            return CORRUPT
        _mul_add(to, _ten_to_the(digits), group)
    _put_int128(to, fix, negative)
    return OK


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_packed_text(
    to: Arena, src: cython.p_uchar, at: cython.Py_ssize_t, precision: cython.longlong, scale: cython.longlong
) -> cython.int:
    """Write the packed DECIMAL at src[at:] as MySQL prints it: no zeros in front of the first digit, all `scale` digits
    after the point.
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
    sign_at: cython.Py_ssize_t = to.out
    if negative:
        put(to, ord("-"))
    while whole > 0 or part > 0:
        if whole > 0:
            digits = whole % 9 if whole % 9 else 9
            whole -= digits
        else:
            if part == scale:
                if not begun:
                    put(to, ord("0"))
                    begun = True
                put(to, ord("."))
            digits = part if part < 9 else 9
            part -= digits
        size = (digits + 1) // 2 if digits < 9 else 4
        group = 0
        for i in range(size):
            group = (group << 8) | ((src[at + i] ^ flip ^ first) & 0xFF)
            first = 0
        at += size
        if group >= _ten_to_the(digits):
            return CORRUPT
        if group:
            zero = False
        if begun:
            put_number(to, group, digits)
        elif group:
            put_number(to, group, 1)
            begun = True
    if not begun:
        put(to, ord("0"))
    if zero and negative and to.out <= to.end:
        for i in range(to.out - sign_at - 1):
            to.p8[sign_at + i] = to.p8[sign_at + i + 1]
        to.out -= 1
    return OK


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _mul_add(to: Arena, m: cython.ulonglong, a: cython.ulonglong) -> cython.void:
    """hi:lo = hi:lo * m + a, where m and a are below 2**32."""
    low: cython.ulonglong = low32(to.lo) * m + a
    high: cython.ulonglong = (to.lo >> 32) * m + (low >> 32)
    to.lo = low64(high << 32) | low32(low)
    to.hi = low64(to.hi * m + (high >> 32))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_int128(to: Arena, at: cython.Py_ssize_t, negative: cython.bint) -> cython.void:
    hi: cython.ulonglong = to.hi
    lo: cython.ulonglong = to.lo
    if negative:
        lo = low64(~lo + 1)
        hi = low64(~hi + (1 if lo == 0 else 0))
    to.p64[2 * at] = signed64(lo)
    to.p64[2 * at + 1] = signed64(hi)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _ten_to_the(n: cython.int) -> cython.ulonglong:
    v: cython.ulonglong = 1
    i: cython.int
    for i in range(n):
        v *= 10
    return v
