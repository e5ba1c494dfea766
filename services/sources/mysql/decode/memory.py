"""Reading integers from bytes, and copying bytes.

Never compiled: this is what interpreted decoders use; compiled ones inline memory.pxd's functions of the same names.
"""

from __future__ import annotations

_64_BITS = (1 << 64) - 1


def copy(dst: memoryview, at: int, src: memoryview | bytes, start: int, n: int) -> None:
    """Copy src[start : start + n] to dst[at:]."""
    dst[at : at + n] = src[start : start + n]


def bytes_of(src: memoryview | bytes, at: int, end: int) -> bytes:
    """src[at:end] as an object of its own."""
    return bytes(src[at:end])


def signed64(v: int) -> int:
    """The same 64 bits as a signed integer."""
    return v - (1 << 64) if v >> 63 else v


def low64(v: int) -> int:
    """The low 64 bits, which are all that C has."""
    return v & _64_BITS


def low32(v: int) -> int:
    """The low 32 bits."""
    return v & 0xFFFFFFFF


def le(src: memoryview | bytes, at: int, n: int) -> int:
    """An unsigned little-endian integer of 1 to 8 bytes."""
    return int.from_bytes(src[at : at + n], "little")


def be(src: memoryview | bytes, at: int, n: int) -> int:
    """An unsigned big-endian integer of 0 to 8 bytes."""
    return int.from_bytes(src[at : at + n], "big")


def byte_or_0(src: memoryview | bytes, at: int, n: int, i: int) -> int:
    """Byte i of a value of n bytes whose zero bytes at the end were cut off."""
    return src[at + i] if i < n else 0
