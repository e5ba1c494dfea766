# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""SELECT: the packets of a result set in the binary protocol, from the socket's bytes to Arrow.

The binary protocol costs the server and us less than text, and gives a FLOAT whole (its text has six digits).
Source: MySQL's internals manual, "Binary Protocol Resultset".

Promises of both decoders (this one, and row_event.py for the binlog):

1. A row has the same bytes whether it comes by SELECT or by the binlog; the types are those of the schema's Arrow form.
2. No Python object is made for a row or a value, except where values.py says so.
3. No byte is read outside the input and none written outside the arena, whatever the input is. Corrupt bytes raise
   Damaged with the offset and leave the rows before them as they are; so does any other error on the way.

Most modules of this folder are in Cython's pure Python mode: setup.py compiles them; without a C compiler the
interpreter runs the same files, with the same results, some hundred times slower. Functions that other modules call for
each value are declared in .pxd files; those called for each byte are inlined from there.
"""

from __future__ import annotations

from typing import Any

import cython
import pyarrow as pa
import pymysql
from pymysql.constants import SERVER_STATUS

from cutline.common.schema import TableSchema
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.row_plan import layout_of, plan_of_result
from cutline.services.sources.mysql.decode.values import VALUE_BYTES

if not cython.compiled:
    from cutline.services.sources.mysql.decode.arena import put_null
    from cutline.services.sources.mysql.decode.codes import (
        CORRUPT,
        FULL,
        N_2_BYTES,
        N_3_BYTES,
        N_NULL,
        OK,
        S_SIZE,
        S_STRIDE,
        W_EOF,
        W_ERR,
        W_MAX_BYTES,
        W_OK,
    )
    from cutline.services.sources.mysql.decode.memory import le
    from cutline.services.sources.mysql.decode.values import ValueDecoder, store

COMPILED: bool = cython.compiled
"""Whether this module runs as C."""

_ROW_BYTES = VALUE_BYTES + (1 << 20)  # numbers, and the lengths of values, are in a row too


@cython.cclass
class ResultDecoder(ValueDecoder):
    """Rows of one result set of the binary protocol (a prepared statement's) to Arrow.

    The SELECT must give the columns of `schema` in its order and in their own types, on a utf8mb4 connection in time
    zone +00:00; a row does not carry types, so other columns are misread or refused. GEOMETRY, VECTOR and BIT are
    selected as they are (SRID and WKB; the bytes of the numbers; the bits).

    `feed` takes blocks of the bytes after the column definitions, until `done`; `take` gives the rows so far. An ERR
    packet raises pymysql.err.OperationalError(errno, text), and anything that is not a result set Damaged; after either
    the decoder can't be used.
    """

    _schema: Any
    _pending: Any  # a packet that is not whole yet
    _parts: Any  # the packets so far of a row over 16 MiB
    _in_parts: cython.bint
    _done: cython.bint
    _sequence: cython.int  # of the last packet, -1 before the first
    _fed: cython.longlong  # bytes decoded

    def __init__(self, schema: TableSchema) -> None:
        """Plan the decoding of `schema`'s columns. SourceLost if one has a type that can't be read."""
        self._schema = schema
        self._pending, self._parts = bytearray(), bytearray()
        self._in_parts = self._done = False
        self._sequence = -1
        self._fed = 0
        types = [field.type for field in schema.arrow]
        plan = plan_of_result(schema)
        self._start(plan.names, types, [layout_of(kind) for kind in types])
        self._follow_plan(plan)

    @property
    def rows(self) -> int:
        """Complete rows that wait for `take`."""
        return self.row_count

    @property
    def done(self) -> bool:
        """Whether the end of the result set has been read."""
        return self._done

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Decode the next block, which may begin and end inside a row."""
        view = memoryview(data)
        at: int = 0
        while at < len(view):
            if self._done:
                raise Damaged(f"{len(view) - at} bytes follow the end of the result set")
            if not self._pending and not self._in_parts:
                at = self._run(view, at, len(view))
                if self._done or at == len(view):
                    continue
            # a packet that is cut here, or a part of a row over 16 MiB
            header = self._pending[:3]
            size = 4 + int.from_bytes(header, "little") if len(self._pending) >= 4 else 4
            if self._in_parts and len(self._parts) + size - 4 > _ROW_BYTES:
                raise Damaged(f"it has over {VALUE_BYTES >> 20} MiB: leave the table out of the list")
            part = view[at : at + size - len(self._pending)]
            self._pending += part
            at += len(part)
            if len(self._pending) < size or (size == 4 and self._pending[:3] != b"\0\0\0"):
                continue
            whole = self._pending
            self._pending = bytearray()
            if self._in_parts or size == 4 + W_MAX_BYTES:
                self._check_number(whole[3])
                self._in_parts = size == 4 + W_MAX_BYTES
                self._parts += memoryview(whole)[4:]
                if not self._in_parts:
                    row = self._parts
                    self._parts = bytearray()
                    self._whole_row(row)
            else:
                self._run(memoryview(whole), 0, size)

    def take(self) -> pa.RecordBatch | None:
        """The rows so far as one batch with the schema's Arrow fields; None if there are none. They are then gone."""
        if not self.row_count:
            return None
        arrays = [self._array(c, kind) for c, kind in enumerate(self.types)]
        self._clear()
        schema: Any = self._schema
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)

    def _check_number(self, number: int) -> None:
        """Damaged unless the packet's number follows the last packet's."""
        if self._sequence >= 0 and number != (self._sequence + 1) % 256:
            raise Damaged(f"packet {number} of the result set follows packet {self._sequence}")
        self._sequence = number

    def _whole_row(self, row: bytearray) -> None:
        """Decode one row, given without packet headers."""
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
        """Decode the whole packets in data[start:stop], up to one that is cut off or of 16 MiB; where that starts."""
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
                    size = le(p, at, 3)
                    if size == W_MAX_BYTES or size > end - at - 4:
                        break
                    number = p[at + 3]
                    if (self._sequence >= 0 and number != (self._sequence + 1) & 255) or size == 0:
                        special = True
                        break
                    if p[at + 4] == W_ERR or (p[at + 4] == W_EOF and size < 9):
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
                self._check_number(p[at + 3])
                if size == 0:
                    raise Damaged("the result set has an empty packet")
                self._end_of_rows(bytes(data[at + 4 : at + 4 + size]))
                at += 4 + size
            break
        self._fed += at - begin
        return at

    def _end_of_rows(self, packet: bytes) -> None:
        """Read the packet after the last row."""
        if packet[0] == W_ERR:
            text = packet[3:]
            if text[:1] == b"#":
                text = text[6:]
            raise pymysql.err.OperationalError(int.from_bytes(packet[1:3], "little"), text.decode("utf-8", "replace"))
        if len(packet) >= 5 and packet[3] & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            raise Damaged("another result set follows, but the statement can give only one")
        self._done = True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _row(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """Decode the row p[at:end]: OK, FULL or CORRUPT."""
        s: cython.p_longlong = self.sources
        c: cython.Py_ssize_t
        n: cython.Py_ssize_t
        length: cython.ulonglong
        r: cython.Py_ssize_t = self.row_count
        nulls: cython.Py_ssize_t = at + 1
        done: cython.int
        if r >= self.capacity:
            self.full_column = -1
            return FULL
        self.bad_at = at
        self.bad_source = 0
        at = nulls + (self.column_count + 9) // 8  # the bitmap of nulls starts with two unused bits
        if at > end or p[nulls - 1] != W_OK:
            return CORRUPT
        for c in range(self.column_count):
            self.bad_at = at
            self.bad_source = c
            if p[nulls + (c + 2) // 8] >> ((c + 2) & 7) & 1:
                put_null(self, c, r)
                continue
            n = s[c * S_STRIDE + S_SIZE]
            if n == 0:
                if at >= end or p[at] == N_NULL or p[at] == W_ERR:
                    return CORRUPT
                length = p[at]
                at += 1
                if length > N_NULL:
                    n = 2 if length == N_2_BYTES else (3 if length == N_3_BYTES else 8)
                    if n > end - at:
                        return CORRUPT
                    length = le(p, at, n)
                    at += n
                if length > cython.cast(cython.ulonglong, end - at):
                    return CORRUPT
                n = length
            elif n > end - at:
                return CORRUPT
            done = store(self, p, at, n, c * S_STRIDE, r)
            if done != OK:
                return done
            at += n
        if at != end:
            self.bad_at = at
            return CORRUPT
        self.row_count = r + 1
        return OK

    def _complain(self, begin: int) -> None:
        """Raise Damaged for the value at hand; `begin` is where the bytes start that `_fed` does not count yet."""
        where = self._fed + self.bad_at - begin
        names: Any = self.names
        raise Damaged(f"the result set can't be read at column {names[self.bad_source]}, byte {where}")
