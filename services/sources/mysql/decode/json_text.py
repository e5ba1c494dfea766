# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""JSON: MySQL's binary form to the text that a SELECT prints.

Source: MySQL's sql-common/json_binary.h. Offsets in a document may point anywhere, so a damaged document could be read
forever: the number of values, their depth and the length of the text are limited to what a sound document can have.
"""

from __future__ import annotations

import cython

from cutline.services.sources.mysql.damage import Damaged

if not cython.compiled:
    from cutline.services.sources.mysql.decode.arena import Arena, put, put_from, put_hex, put_number
    from cutline.services.sources.mysql.decode.codes import (
        CORRUPT,
        J_DOUBLE,
        J_INT16,
        J_INT32,
        J_LARGE_ARRAY,
        J_LARGE_OBJECT,
        J_LITERAL,
        J_OPAQUE,
        J_SMALL_OBJECT,
        J_STRING,
        J_UINT16,
        J_UINT32,
        J_UINT64,
        OK,
        T_DATE,
        T_DATETIME,
        T_NEWDECIMAL,
        T_TIME,
        T_TIMESTAMP,
    )
    from cutline.services.sources.mysql.decode.decimals import decimal_size, put_packed_text
    from cutline.services.sources.mysql.decode.memory import be, le, low64

COMPILED: bool = cython.compiled
"""Whether this module runs as C."""


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def put_json(to: Arena, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Write the document src[at : at + n] as text: OK or CORRUPT. A document of no bytes is null."""
    if n == 0:
        put_from(to, b"null", 0, 4)
        return OK
    to.visits = n
    to.limit = to.out + 16 * n + 256
    return _put_value(to, src, src[at], at + 1, at + n, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _put_value(
    to: Arena, src: cython.p_uchar, kind: cython.int, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.int:
    """Write the value of type `kind` (`J_`) whose content starts at `at`.

    It reads nothing at or after `end`. A document has fewer values than bytes, and its text is at most 16 times as
    long: with more its offsets point at the same bytes over and over, so it is corrupt.
    """
    wide: cython.int
    keyed: cython.bint
    inlined: cython.bint
    count: cython.longlong
    i: cython.longlong
    entry: cython.Py_ssize_t
    where: cython.longlong
    length: cython.longlong
    inner: cython.int
    done: cython.int
    n: cython.Py_ssize_t
    u: cython.ulonglong
    to.visits -= 1
    if to.visits < 0 or depth > 100 or to.out > to.limit:
        return CORRUPT
    n = end - at
    if kind <= J_LARGE_ARRAY:
        wide = 4 if kind == J_LARGE_OBJECT or kind == J_LARGE_ARRAY else 2
        keyed = kind == J_SMALL_OBJECT or kind == J_LARGE_OBJECT
        if n < 2 * wide:
            return CORRUPT
        count = le(src, at, wide)
        length = le(src, at + wide, wide)
        if length > n:
            return CORRUPT
        end = at + length
        entry = at + 2 * wide
        if count > n or entry + count * (1 + wide + (wide + 2 if keyed else 0)) > end:
            return CORRUPT
        put(to, ord("{") if keyed else ord("["))
        for i in range(count):
            if i:
                put_from(to, b", ", 0, 2)
            if keyed:
                where = le(src, entry + i * (wide + 2), wide)
                length = le(src, entry + i * (wide + 2) + wide, 2)
                if where + length > end - at:
                    return CORRUPT
                _put_string(to, src, at + where, length)
                put_from(to, b": ", 0, 2)
            n = entry + count * (wide + 2 if keyed else 0) + i * (1 + wide)
            inner = src[n]
            if inner == J_LITERAL or inner == J_INT16 or inner == J_UINT16:
                inlined = True
            else:
                inlined = wide == 4 and (inner == J_INT32 or inner == J_UINT32)
            if inlined:
                done = _put_value(to, src, inner, n + 1, n + 1 + wide, depth + 1)
            else:
                where = le(src, n + 1, wide)
                if where > end - at:
                    return CORRUPT
                done = _put_value(to, src, inner, at + where, end, depth + 1)
            if done != OK:
                return done
        put(to, ord("}") if keyed else ord("]"))
    elif kind == J_LITERAL:
        if n < 1:
            return CORRUPT
        if src[at] == 0:
            put_from(to, b"null", 0, 4)
        elif src[at] == 1:
            put_from(to, b"true", 0, 4)
        elif src[at] == 2:
            put_from(to, b"false", 0, 5)
        else:
            return CORRUPT
    elif kind <= J_UINT64:
        inner = 2 if kind <= J_UINT16 else (4 if kind <= J_UINT32 else 8)
        if n < inner:
            return CORRUPT
        u = le(src, at, inner)
        if kind != J_UINT16 and kind != J_UINT32 and kind != J_UINT64 and u >> (8 * inner - 1):
            put(to, ord("-"))
            u = low64(~u + 1)
            if inner < 8:
                u = u & ((cython.cast(cython.ulonglong, 1) << (8 * inner)) - 1)
        put_number(to, u, 1)
    elif kind == J_DOUBLE:
        if n < 8:
            return CORRUPT
        u = le(src, at, 8)
        if (u >> 52) & 0x7FF == 0x7FF:
            return CORRUPT
        with cython.gil:
            return _put_double(to, u)
    elif kind == J_STRING or kind == J_OPAQUE:
        inner = -1
        if kind == J_OPAQUE:
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
            _put_string(to, src, at, length)
        else:
            return _put_opaque(to, src, inner, at, length)
    else:
        return CORRUPT
    return OK


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_string(to: Arena, src: cython.p_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.void:
    """Write a string with its quotes and escapes."""
    i: cython.Py_ssize_t
    b: cython.uint
    put(to, ord('"'))
    for i in range(at, at + n):
        b = src[i]
        if b >= 32 and b != ord('"') and b != ord("\\"):
            put(to, b)
            continue
        put(to, ord("\\"))
        if b == ord('"') or b == ord("\\"):
            put(to, b)
        elif b == ord("\b"):
            put(to, ord("b"))
        elif b == ord("\t"):
            put(to, ord("t"))
        elif b == ord("\n"):
            put(to, ord("n"))
        elif b == ord("\f"):
            put(to, ord("f"))
        elif b == ord("\r"):
            put(to, ord("r"))
        else:
            put_from(to, b"u00", 0, 3)
            put_hex(to, b >> 4)
            put_hex(to, b & 15)
    put(to, ord('"'))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_opaque(
    to: Arena, src: cython.p_uchar, kind: cython.int, at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.int:
    """Write a decimal or a time as MySQL prints it, any other field type (`T_`) as base64 with its number."""
    u: cython.ulonglong
    negative: cython.bint = False
    i: cython.Py_ssize_t
    size: cython.Py_ssize_t
    if kind == T_NEWDECIMAL:
        if n < 3 or src[at] > 65 or src[at + 1] > 30 or src[at + 1] > src[at] or src[at] < 1:
            return CORRUPT
        if n != 2 + decimal_size(src[at], src[at + 1]):
            return CORRUPT
        return put_packed_text(to, src, at + 2, src[at], src[at + 1])
    if kind == T_TIMESTAMP or kind == T_DATE or kind == T_TIME or kind == T_DATETIME:
        if n != 8:
            return CORRUPT
        u = le(src, at, 8)
        put(to, ord('"'))
        if u >> 63:
            negative = True
            u = low64(~u + 1)
        if kind == T_TIME:
            if negative:
                put(to, ord("-"))
            put_number(to, (u >> 36) & 0x3FF, 2)
        elif negative:
            return CORRUPT
        else:
            put_number(to, (u >> 46) // 13, 4)
            put(to, ord("-"))
            put_number(to, (u >> 46) % 13, 2)
            put(to, ord("-"))
            put_number(to, (u >> 41) & 31, 2)
            if kind == T_DATE:
                put(to, ord('"'))
                return OK
            put(to, ord(" "))
            put_number(to, (u >> 36) & 31, 2)
        put(to, ord(":"))
        put_number(to, (u >> 30) & 63, 2)
        put(to, ord(":"))
        put_number(to, (u >> 24) & 63, 2)
        put(to, ord("."))
        put_number(to, u & 0xFFFFFF, 6)
        put(to, ord('"'))
        return OK
    put_from(to, b'"base64:type', 0, 12)
    put_number(to, kind, 1)
    put(to, ord(":"))
    i = 0
    while i < n:
        size = n - i if n - i < 3 else 3
        u = be(src, at + i, size) << (8 * (3 - size))
        _put_base64(to, (u >> 18) & 63)
        _put_base64(to, (u >> 12) & 63)
        if size > 1:
            _put_base64(to, (u >> 6) & 63)
        else:
            put(to, ord("="))
        if size > 2:
            _put_base64(to, u & 63)
        else:
            put(to, ord("="))
        i += 3
    put(to, ord('"'))
    return OK


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_base64(to: Arena, b: cython.uint) -> cython.void:
    """Write a digit of base64."""
    if b < 26:
        put(to, ord("A") + b)
    elif b < 52:
        put(to, ord("a") + b - 26)
    elif b < 62:
        put(to, ord("0") + b - 52)
    else:
        put(to, ord("+") if b == 62 else ord("/"))


@cython.cfunc
@cython.exceptval(-1)
def _put_double(to: Arena, bits: cython.ulonglong) -> cython.int:
    text: bytes = double_text(bits)
    put_from(to, text, 0, len(text))
    return OK


def double_text(bits: int) -> bytes:
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
        raise Damaged(f"{text} is not a number that MySQL stores")
    mantissa, _, exponent = text.partition("e")
    whole, _, part = mantissa.partition(".")
    digits = whole + part
    power = int(exponent or 0) - len(part)
    stripped = digits.rstrip("0")
    power += len(digits) - len(stripped)
    digits = stripped.lstrip("0")
    return (sign, digits, power) if digits else (sign, "0", 0)
