# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""Binlog framing: from the bytes of a dump connection to transactions and row events, without I/O.

One file in Cython's pure Python mode, compiled by `setup.py` and interpreted where there is no C compiler, as rows.py
is: a single-row transaction is five events, so what happens at each event decides the speed. `Frames` owns the
receive buffer; binlog/cursor.py fills it from the socket and calls `scan`, which handles by itself what
every transaction has

    GTID (MySQL, MariaDB), QUERY with BEGIN, TABLE_MAP seen before, row events (skipped, or given to the table's
    decoder), XID

and stops, with a code, at everything else. What each code promises:

| code | meaning | the event at hand |
|---|---|---|
| NEED | the buffer ends inside a packet: fill it | not taken |
| EVENT | the cursor must handle `event_type`, `event_body` | taken |
| FULL | `max_rows`, or `max_bytes` by what its rows become, is reached inside a row event | taken up to `row_from` |
| FULL_TAKEN | `max_rows` or `max_bytes` is reached inside a transaction | taken |
| ENDED | a transaction ended, and a limit, `stop_offset` or `stop_soon` says to stop | taken |
| FAULT | the decoder of `fault` refused its row event: `error` | not taken |
| SAID | the server sent an error or the end of the stream: `event_body` | taken |
| STOPPED | a transaction begins that is behind `gate_offset` or `gate_time` | gone: connect anew |

Positions. `pos` is the end of the last event in `file`: as the event states it or, where it states none, by its size,
which is exact as long as the dump leaves nothing out (binlog/dump.py asks for that). `tx_start` is
where the transaction at hand starts, `tx_open` whether there is one. A place inside a transaction is `ordinal` row
events (of any table) and `row_from` row changes of the next one, which does not depend on the tables that are routed:
`INSIDE_BITS` says how both make one number. `resume` is such a number too: so much of the first transaction was taken
before this dump, and while it is not 0 the dump has not come so far again. Nor has it while `pos` is before
`discard_to`, up to where events come twice, or before `floor`, up to where the server leaves them out (by GTIDs).

Any malformed byte raises Damaged; nothing is read outside the buffer. Change together with:
binlog/cursor.py.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from typing import Any

import cython
import pyarrow as pa

from cutline.services.sources.mysql.binlog.event_bodies import event_limit
from cutline.services.sources.mysql.damage import Damaged

if cython.compiled:
    from cython.cimports.cutline.services.sources.mysql.decode.rows import Place, decode
    from cython.cimports.libc.string import memcmp
else:
    from cutline.services.sources.mysql.decode.rows import Place

GO, NEED, EVENT, FULL, ENDED, FAULT, SAID, FULL_TAKEN, STOPPED = range(9)
INSIDE_BITS = 28
"""A position's `rows` is (row events taken whole << INSIDE_BITS) + row changes taken of the next one."""
_GO = cython.declare(cython.int, 0)  # the same in C
_NEED = cython.declare(cython.int, 1)
_EVENT = cython.declare(cython.int, 2)
_FULL = cython.declare(cython.int, 3)
_ENDED = cython.declare(cython.int, 4)
_FAULT = cython.declare(cython.int, 5)
_SAID = cython.declare(cython.int, 6)
_FULL_TAKEN = cython.declare(cython.int, 7)
_STOPPED = cython.declare(cython.int, 8)
_INSIDE = cython.declare(cython.int, 28)
_LOW_32 = cython.declare(cython.longlong, 0xFFFFFFFF)  # (a literal of over 31 bits would be a Python number in C)
_HALF = cython.declare(cython.longlong, 0x80000000)
COMPILED: bool = cython.compiled
"""Whether this module runs as C."""

_BUFFER = 1 << 20
_CHUNK = 1 << 20
_BEGINNING = 59  # of an event that is too large: its header, and what names a row event's table
_crc_table = cython.declare(cython.uint[2048])


@cython.cfunc
def _crc_tables() -> cython.void:
    """Tables of the CRC-32 of zlib, for eight bytes at a step."""
    if cython.compiled:
        i: cython.int
        k: cython.int
        c: cython.uint
        polynomial: cython.uint = 0xEDB88320
        for i in range(256):
            c = i
            for _ in range(8):
                c = (c >> 1) ^ (polynomial if c & 1 else cython.cast(cython.uint, 0))
            _crc_table[i] = c
        for i in range(256):
            for k in range(1, 8):
                c = _crc_table[(k - 1) * 256 + i]
                _crc_table[k * 256 + i] = (c >> 8) ^ _crc_table[c & 255]


_crc_tables()


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _u16(p: cython.p_uchar, at: cython.Py_ssize_t) -> cython.uint:
    return p[at] | (cython.cast(cython.uint, p[at + 1]) << 8)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _u32(p: cython.p_uchar, at: cython.Py_ssize_t) -> cython.uint:
    return (
        p[at]
        | (cython.cast(cython.uint, p[at + 1]) << 8)
        | (cython.cast(cython.uint, p[at + 2]) << 16)
        | (cython.cast(cython.uint, p[at + 3]) << 24)
    )


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _u48(p: cython.p_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    return cython.cast(cython.longlong, _u32(p, at)) | (cython.cast(cython.longlong, _u16(p, at + 4)) << 32)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _i64(p: cython.p_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    if cython.compiled:
        return cython.cast(cython.longlong, _u32(p, at)) | (cython.cast(cython.longlong, _u32(p, at + 4)) << 32)
    else:
        return int.from_bytes(p[at : at + 8], "little", signed=True)


@cython.cfunc
@cython.exceptval(check=False)
def _crc(p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.uint:
    """The CRC-32 that the server puts behind an event."""
    if cython.compiled:
        c: cython.uint = 0xFFFFFFFF
        high: cython.uint
        while end - at >= 8:
            c ^= _u32(p, at)
            high = _u32(p, at + 4)
            c = (
                _crc_table[1792 + (c & 255)]
                ^ _crc_table[1536 + ((c >> 8) & 255)]
                ^ _crc_table[1280 + ((c >> 16) & 255)]
                ^ _crc_table[1024 + (c >> 24)]
                ^ _crc_table[768 + (high & 255)]
                ^ _crc_table[512 + ((high >> 8) & 255)]
                ^ _crc_table[256 + ((high >> 16) & 255)]
                ^ _crc_table[high >> 24]
            )
            at += 8
        while at < end:
            c = (c >> 8) ^ _crc_table[(c ^ p[at]) & 255]
            at += 1
        return ~c  # (as a number that Python has no hand in)
    else:
        return zlib.crc32(memoryview(p)[at:end])


@cython.cfunc
@cython.inline
def _bytes(p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return p[at:end]
    else:
        return bytes(p[at:end])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _same(p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, known: bytes) -> cython.bint:
    """Whether p[at:end] are these bytes."""
    if cython.compiled:
        k: cython.p_uchar = known
        return end - at == len(known) and memcmp(p + at, k, end - at) == 0
    else:
        return p[at:end] == known


@cython.cclass
class Plan:
    """What to do with the row events of one TABLE_MAP.

    `make(plan)` gives `decoder` where that is None yet; itself it is None for a table that nobody asked for. `guard`
    says that each transaction must be judged first (the table's low is not passed); `wanted` is the answer for
    transaction `judged`.
    """

    table_id = cython.declare(str, visibility="public")
    body = cython.declare(bytes, visibility="public")
    decoder = cython.declare(object, visibility="public")
    make = cython.declare(object, visibility="public")
    guard = cython.declare(cython.bint, visibility="public")
    judged = cython.declare(cython.longlong, visibility="public")
    wanted = cython.declare(cython.bint, visibility="public")

    def __init__(self, table_id: str, body: bytes) -> None:
        self.table_id, self.body = table_id, body
        self.decoder = self.make = None
        self.guard = False
        self.judged = -1
        self.wanted = False


@cython.cclass
class Frames:
    """The events of one dump connection; see this file's head.

    `judge(plan)` says whether the transaction at hand is to be delivered for a guarded table; `taken(server, number)`
    which number, from that one on, is the first in the set that the dump began after, 0 if none is (asked where MySQL's
    numbers don't simply go on, and there; MariaDB sends nothing that the position has).
    """

    _raw: bytearray
    _head: cython.Py_ssize_t
    _tail: cython.Py_ssize_t
    _number: cython.int  # of the next packet, mod 256
    _long: bytearray | None  # what has come of an event that spans packets, or None
    _long_size: cython.Py_ssize_t
    _long_says: cython.Py_ssize_t  # its size by its own header
    _long_whole: cython.bint
    _joined: bytearray  # such an event, whole; empty if there is none at hand
    _inner: bytearray  # decompressed bytes of a transaction payload
    _inner_head: cython.Py_ssize_t
    _inner_tail: cython.Py_ssize_t
    _stream: Any
    _payload_end: cython.longlong
    _closing: cython.bint  # the payload held the transaction's end
    _mariadb: cython.bint
    _judge: Any
    _taken: Any
    _prefix_bytes: bytes
    _gtid_head: str  # what stands before the GTID's number
    _last_id: cython.longlong
    _last_plan: Plan
    _told: cython.bint  # whether `place` knows the transaction at hand
    _row_before: cython.longlong  # rows of the transaction before the event at hand
    _checked: cython.bint  # the event at hand has had its checksum verified
    _size: cython.longlong  # of the event at hand

    place = cython.declare(Place, visibility="public")
    plans = cython.declare(dict, visibility="public")
    checksum = cython.declare(cython.bint, visibility="public")
    file = cython.declare(str, visibility="public")
    pos = cython.declare(cython.longlong, visibility="public")
    discard_to = cython.declare(cython.longlong, visibility="public")
    floor = cython.declare(cython.longlong, visibility="public")
    tx_open = cython.declare(cython.bint, visibility="public")
    tx_begun = cython.declare(cython.bint, visibility="public")
    tx_skip = cython.declare(cython.bint, visibility="public")
    tx_unsettled = cython.declare(cython.bint, visibility="public")
    tx_start = cython.declare(cython.longlong, visibility="public")
    tx_number = cython.declare(cython.longlong, visibility="public")
    tx_seq = cython.declare(cython.longlong, visibility="public")  # the first `_seq` in this read that is of it
    tx_flags = cython.declare(cython.int, visibility="public")
    tx_ts = cython.declare(cython.longlong, visibility="public")
    ordinal = cython.declare(cython.longlong, visibility="public")
    row_from = cython.declare(cython.longlong, visibility="public")
    resume = cython.declare(cython.longlong, visibility="public")
    delivered = cython.declare(cython.bint, visibility="public")
    hold = cython.declare(cython.bint, visibility="public")
    timestamp = cython.declare(cython.longlong, visibility="public")
    gtid_prefix = cython.declare(str, visibility="public")
    gtid_number = cython.declare(cython.longlong, visibility="public")
    run_prefix = cython.declare(str, visibility="public")
    run_first = cython.declare(cython.longlong, visibility="public")
    run_last = cython.declare(cython.longlong, visibility="public")
    runs = cython.declare(list, visibility="public")
    domains = cython.declare(dict, visibility="public")
    domain_at_hand = cython.declare(object, visibility="public")
    _clear_to: cython.longlong  # the next number of `run_prefix` that is in the set
    max_rows = cython.declare(cython.longlong, visibility="public")
    max_bytes = cython.declare(cython.longlong, visibility="public")
    soft_rows = cython.declare(cython.longlong, visibility="public")
    soft_bytes = cython.declare(cython.longlong, visibility="public")
    bytes_taken = cython.declare(cython.longlong, visibility="public")
    stop_offset = cython.declare(cython.longlong, visibility="public")
    stop_soon = cython.declare(cython.bint, visibility="public")
    gate_offset = cython.declare(cython.longlong, visibility="public")
    gate_time = cython.declare(cython.longlong, visibility="public")
    event_type = cython.declare(cython.int, visibility="public")
    event_flags = cython.declare(cython.int, visibility="public")
    event_body = cython.declare(bytes, visibility="public")
    event_start = cython.declare(cython.longlong, visibility="public")
    event_end = cython.declare(cython.longlong, visibility="public")
    event_inner = cython.declare(cython.bint, visibility="public")
    server_id = cython.declare(cython.longlong, visibility="public")
    spooled = cython.declare(object, visibility="public")
    fault = cython.declare(object, visibility="public")
    fault_seq = cython.declare(cython.longlong, visibility="public")  # the first `_seq` of the refused event
    error = cython.declare(object, visibility="public")

    def __init__(
        self,
        place: Place,
        *,
        mariadb: bool,
        judge: Callable[[Plan], bool],
        taken: Callable[[str, int], int],
    ) -> None:
        self.place, self._mariadb, self._judge, self._taken = place, mariadb, judge, taken
        self._raw = bytearray(_BUFFER)
        self._head = self._tail = 0
        self._number = 1
        self._long, self._long_size, self._long_says, self._joined = None, 0, 0, bytearray()
        self._long_whole = True
        self._inner, self._inner_head, self._inner_tail, self._stream = bytearray(), 0, 0, None
        self._payload_end = 0
        self._closing = self._checked = False
        self._prefix_bytes, self._gtid_head = b"", ""
        self._row_before = 0
        self._last_id, self._last_plan = -1, Plan("", b"")
        self.plans = {}
        self.checksum = False
        self.file, self.pos, self.discard_to, self.floor = "", 4, 0, 0
        self.tx_open = self.tx_begun = self.tx_skip = self.delivered = self.hold = self.tx_unsettled = False
        self.tx_start = self.tx_number = self.tx_seq = self.tx_flags = self.tx_ts = 0
        self._told = False
        self.ordinal = self.row_from = self.resume = 0
        self.timestamp = 0
        self.gtid_prefix, self.gtid_number = "", 0
        self.run_prefix, self.run_first, self.run_last, self.runs, self.domains = None, 0, 0, [], {}
        self.domain_at_hand, self._clear_to = None, 0
        self.max_rows = self.max_bytes = 1 << 62
        self.soft_rows = self.soft_bytes = 1 << 62
        self.bytes_taken = 0
        self.stop_offset, self.stop_soon = -1, False
        self.gate_offset = self.gate_time = 1 << 62
        self.event_type = self.event_flags = 0
        self.event_body, self.event_start, self.event_end, self.event_inner = b"", 0, 0, False
        self.server_id = self._size = 0
        self.fault = self.error = self.spooled = None
        self.fault_seq = 0

    # ---- the buffer ----

    def room(self) -> memoryview:
        """Where the next bytes of the connection go; release it, then say how many came with `filled`."""
        n: cython.Py_ssize_t = self._tail - self._head
        need: cython.Py_ssize_t = 4
        if n >= 4:
            need = 4 + (self._raw[self._head] | self._raw[self._head + 1] << 8 | self._raw[self._head + 2] << 16)
        if n == 0:
            self._head = self._tail = 0
            if len(self._raw) > _BUFFER:
                self._raw = bytearray(_BUFFER)
        elif len(self._raw) - self._tail < max(need - n, 65536):
            if need > len(self._raw):
                grown = bytearray(need + _BUFFER)
                grown[:n] = self._raw[self._head : self._tail]
                self._raw = grown
            else:
                self._raw[:n] = self._raw[self._head : self._tail]
            self._head, self._tail = 0, n
        return memoryview(self._raw)[self._tail :]

    def filled(self, n: int) -> None:
        """That many bytes came."""
        self._tail += n

    @property
    def pending(self) -> bool:
        """Whether there are bytes that `scan` has not taken (perhaps only a part of a packet)."""
        return self._tail > self._head or self._stream is not None or len(self._joined) > 0

    def begin(self, max_rows: int, max_bytes: int, at_boundary: bool) -> None:
        """A read begins: its limits. At a transaction's end three quarters of them are enough; with `at_boundary`
        they hold eightfold inside a transaction. `max_bytes` bounds the row events, and what the decoders make of them.
        """
        self.soft_rows = max_rows - max_rows // 4
        self.soft_bytes = max_bytes - max_bytes // 4
        self.max_rows = max_rows * 8 if at_boundary else max_rows
        self.max_bytes = max_bytes * 8 if at_boundary else max_bytes
        self.bytes_taken = 0
        self.place.seq = self.place.made = self.tx_seq = 0
        self.place.most = self.max_bytes
        self.stop_soon = False

    def forget_tables(self) -> None:
        """Every TABLE_MAP is to be looked at again."""
        self.plans = {}
        self._last_id = -1

    def table_changed(self) -> None:
        """A TABLE_MAP was put to `plans`."""
        self._last_id = -1

    @property
    def pending_events(self) -> bool:
        """Whether bytes of a further packet have come already."""
        return self._tail - self._head > 4

    # ---- the loop ----

    def scan(self) -> int:
        """Go on until there is something to say: a code, see this file's head."""
        code: cython.int
        while True:
            if self._stream is not None:
                code = self._next_inner()
            elif len(self._joined) > 0:
                code = self._event(self._joined, 0, len(self._joined), False)
                if code != _FULL and code != _FAULT:
                    self._joined = bytearray()
            else:
                code = self._packet()
            if code != _GO:
                return code

    @cython.cfunc
    @cython.exceptval(-1)
    def _packet(self) -> cython.int:
        p: cython.p_uchar = self._raw
        at: cython.Py_ssize_t = self._head
        have: cython.Py_ssize_t = self._tail - at
        n: cython.Py_ssize_t
        code: cython.int
        if have < 4:
            return _NEED
        n = p[at] | (cython.cast(cython.Py_ssize_t, p[at + 1]) << 8) | (cython.cast(cython.Py_ssize_t, p[at + 2]) << 16)
        if have < 4 + n:
            return _NEED
        if p[at + 3] != self._number:
            raise Damaged(f"packet {p[at + 3]} came where {self._number} was due")
        if n == 0xFFFFFF or self._long is not None:
            return self._part(at + 4, n)
        if n == 0:
            raise Damaged("an empty packet came")
        if p[at + 4] != 0:
            if p[at + 4] < 0xFE:
                raise Damaged(f"a packet of status {p[at + 4]} came")
            self.event_body = _bytes(p, at + 4, at + 4 + n)
            code = _SAID
        else:
            code = self._event(self._raw, at + 5, n - 1, False)
        if code != _FULL and code != _FAULT:
            self._head = at + 4 + n
            self._number = (self._number + 1) & 255
        return code

    @cython.cfunc
    @cython.exceptval(-1)
    def _part(self, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
        """One packet of an event that spans several. A payload waits in a file for its decompression; of what is over
        the limit only the head is kept."""
        if self._long is None:
            self._long, self._long_size = bytearray(), 0
            self._long_says = int.from_bytes(self._raw[at + 10 : at + 14], "little")
            self._long_whole = self._long_says <= event_limit(self._raw[at + 5])
            if self._raw[at + 5] == 40:
                self.spooled = tempfile.NamedTemporaryFile(prefix="cutline-payload-")
        if self._long_size + n > self._long_says + 1:
            raise Damaged(f"an event says that it has {self._long_says} bytes, and {self._long_size + n - 1} came")
        if self.spooled is not None:
            self.spooled.write(self._raw[at + (self._long_size == 0) : at + n])
        elif self._long_whole or self._long_size == 0:
            self._long += memoryview(self._raw)[at : at + n]
        self._long_size += n
        self._head = at + n
        self._number = (self._number + 1) & 255
        if n < 0xFFFFFF:
            joined, size, self._long = self._long, self._long_size, None
            if self.spooled is not None:
                return self._in_file(self.spooled, size - 1)
            if joined[0] != 0:
                raise Damaged("a long packet came that is no event")
            if len(joined) < size:
                return self._oversized(joined, 1, size - 1, False)
            del joined[:1]
            self._joined = joined
        return _GO

    @cython.cfunc
    @cython.exceptval(-1)
    def _in_file(self, file: Any, size: cython.Py_ssize_t) -> cython.int:
        """A large transaction payload: `spooled` has the event, without checksum, and `event_body` is empty."""
        file.seek(0)
        head = bytearray(file.read(19))
        p: cython.p_uchar = head
        if len(head) < 19 or _u32(p, 9) != cython.cast(cython.uint, size):
            raise Damaged(f"a transaction payload says that it has another size than its {size} bytes")
        if self.checksum:
            crc = zlib.crc32(head)
            left = size - 19 - 4
            while left > 0 and (part := file.read(min(left, _CHUNK))):
                crc = zlib.crc32(part, crc)
                left -= len(part)
            if crc != int.from_bytes(file.read(4), "little"):
                raise Damaged("the checksum of a transaction payload does not match")
            file.truncate(size - 4)
        file.flush()
        self._advance(_u32(p, 13), _u16(p, 17), size, 40)
        return self._hand_over(p, 0, 19, 19, 40, False)

    @cython.cfunc
    @cython.exceptval(-1)
    def _oversized(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, inner: cython.bint
    ) -> cython.int:
        """An event too large to hold: its beginning, at `at`, is told to the cursor, its type below 0."""
        kind: cython.int = p[at + 4]
        if not inner:
            self._advance(_u32(p, at + 13), _u16(p, at + 17), size, kind)
        if kind == 29 or kind == 160:  # the statement's text
            return _GO
        self._hand_over(p, at, at + 19, at + _BEGINNING, -kind, inner)
        if (20 <= kind <= 32 or kind == 39 or 166 <= kind <= 171) and not self.hold:
            self.pass_over()
        return _EVENT

    @cython.cfunc
    @cython.exceptval(-1)
    def _next_inner(self) -> cython.int:
        """The next event of a transaction payload."""
        have: cython.Py_ssize_t = self._inner_tail - self._inner_head
        size: cython.Py_ssize_t = 19
        whole: cython.Py_ssize_t = 19
        code: cython.int
        p: cython.p_uchar = self._inner
        if have >= 19:
            size = whole = _u32(p, self._inner_head + 9)
            if size < 19:
                raise Damaged(f"an event of {size} bytes stands in a transaction payload")
            if size > event_limit(p[self._inner_head + 4]):
                size = _BEGINNING
        if have < size:
            room = bytearray(max(size, _CHUNK))
            room[:have] = memoryview(self._inner)[self._inner_head : self._inner_tail]
            self._inner, self._inner_head, self._inner_tail = room, 0, have
            got = self._more(memoryview(room)[have:])
            if got:
                self._inner_tail += got
                return _GO
            if have:
                raise Damaged(f"a transaction payload ends inside an event ({have} bytes of {size})")
            self._stream, self._inner = None, bytearray()
            self._inner_head = self._inner_tail = 0
            if self._closing:
                self._closing = False
                return self.end_transaction()
            return _GO
        if size < whole:
            return self._pass_inner(whole)
        code = self._event(self._inner, self._inner_head, size, True)
        if code != _FULL and code != _FAULT:
            self._inner_head += size
        return code

    def _more(self, room: memoryview) -> int:
        """Read on in a transaction payload; how many bytes came, 0 at its end."""
        try:
            return int(self._stream.readinto(room))
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"a transaction payload can't be decompressed ({error})") from error

    @cython.cfunc
    @cython.exceptval(-1)
    def _pass_inner(self, size: cython.Py_ssize_t) -> cython.int:
        """The next event of a transaction payload, which is too large to hold."""
        start = bytes(self._inner[self._inner_head : self._inner_head + _BEGINNING])
        left = size
        while True:
            here = min(left, self._inner_tail - self._inner_head)
            self._inner_head += here
            left -= here
            if not left:
                return self._oversized(start, 0, size, True)
            self._inner_head, self._inner_tail = 0, self._more(memoryview(self._inner))
            if not self._inner_tail:
                raise Damaged(f"a transaction payload ends inside an event ({size - left} bytes of {size})")

    def open_payload(self, stream: Any) -> None:
        """Go on with the events that this stream (`read(n) -> bytes`) gives: those of the TRANSACTION_PAYLOAD at
        hand."""
        self._stream, self._inner, self._inner_head, self._inner_tail = stream, bytearray(), 0, 0
        self._closing = False

    @cython.cfunc
    @cython.exceptval(-1)
    def _advance(
        self, log_pos: cython.uint, flags: cython.int, size: cython.Py_ssize_t, kind: cython.int
    ) -> cython.int:
        """Move `pos` to the event's end. Its 32 bits are carried on beyond 4 GiB; artificial events stand nowhere.

        An event inside a transaction may have 0 for its end (MariaDB from 11.8 on): it stands right behind the one
        before it, so its size places it. A transaction's begin has to state its end: else two transactions would have
        one position. The server may leave events out, so an event may end later than the last one's end and its own
        size make, not earlier.
        """
        delta: cython.longlong
        begins: cython.bint = kind == 33 or kind == 34 or kind == 42 or kind == 162
        if begins and self.pos < self.floor:
            self.pos = self.floor
        self.event_start = self.pos
        if log_pos != 0 and not flags & 0x20:
            delta = (log_pos - self.pos) & _LOW_32
            if delta < size or delta >= _HALF:
                raise Damaged(f"an event of type {kind} and {size} bytes says that it ends at {log_pos}")
            self.pos += delta
            self.event_start = self.pos - size
        elif begins:
            raise Damaged(f"an event of type {kind} does not say where it ends")
        elif self.tx_open and not flags & 0x20:
            self.pos += size
        self.event_end = self.pos
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _event(self, data: bytearray, at: cython.Py_ssize_t, size: cython.Py_ssize_t, inner: cython.bint) -> cython.int:
        """One event of `size` bytes at `at`."""
        p: cython.p_uchar = data
        kind: cython.int
        end: cython.Py_ssize_t = at + size
        body: cython.Py_ssize_t = at + 19
        table: cython.longlong
        plan: Plan
        fresh: cython.bint = not self._checked
        if size < 19:
            raise Damaged(f"an event of {size} bytes came")
        kind = p[at + 4]
        if fresh:
            if _u32(p, at + 9) != cython.cast(cython.uint, size):
                raise Damaged(f"an event says that it has {_u32(p, at + 9)} bytes, and has {size}")
            if kind == 4 or kind == 15 or kind == 27 or kind == 41:
                self.event_body = _bytes(p, at, end)
                self.event_type, self.event_inner = kind, inner
                self.event_flags = _u16(p, at + 17)
                self.timestamp = _u32(p, at)
                return _EVENT
            if self.checksum and not inner:
                if size < 23:
                    raise Damaged(f"an event of {size} bytes came")
                if _crc(p, at, end - 4) != _u32(p, end - 4):
                    raise Damaged(f"the checksum of an event of type {kind} does not match")
            if not inner:
                self._advance(_u32(p, at + 13), _u16(p, at + 17), size, kind)
        if self.checksum and not inner:
            end -= 4
        if self.event_end <= self.discard_to and not inner and kind != 40 and kind != 35 and kind != 163:
            return _GO
        if 23 <= kind <= 25 or 30 <= kind <= 32:
            if end - body < 8:
                raise Damaged(f"a row event of {size} bytes came")
            if self.tx_skip:
                self.ordinal += 1
                return _GO
            if self.hold:
                return self._hand_over(p, at, body, end, kind, inner)
            table = _u48(p, body)
            if table == self._last_id:
                plan = self._last_plan
            else:
                found = self.plans.get(table)
                if found is None:
                    if table == 0xFFFFFF:  # a statement's end without rows
                        return _GO
                    raise Damaged(f"a row event names table {table}, which no table map has described")
                plan = found
                self._last_plan = plan
                self._last_id = table
            if plan.make is None:
                return self.pass_over()
            return self._rows(plan, kind, p, body, end)
        if kind == 19:
            if end - body < 8:
                raise Damaged(f"a table map of {size} bytes came")
            if self.tx_skip:
                return _GO
            if not self.hold:
                table = _u48(p, body)
                if table == self._last_id:
                    if _same(p, body, end, self._last_plan.body):
                        return _GO
                else:
                    found = self.plans.get(table)
                    if found is not None:
                        plan = found
                        if _same(p, body, end, plan.body):
                            return _GO
            return self._hand_over(p, at, body, end, kind, inner)
        if kind == 16:
            if not self.tx_open:
                raise Damaged("a transaction ends that did not begin")
            if inner:
                self._closing = True
                return _GO
            return self.end_transaction()
        if kind == 33 or kind == 34:
            if end - body < 42 or self._mariadb:
                raise Damaged(f"a GTID event of type {kind} and {size} bytes came")
            return self._gtid(p, body, end, kind, _u32(p, at))
        if kind == 2:
            if self._is_begin(p, body, end):
                if not self.tx_open:
                    self.start_anonymous(self.event_start, cython.cast(cython.longlong, _u32(p, at)) * 1000000)
                self.tx_begun = True
                return _GO
            return self._hand_over(p, at, body, end, kind, inner)
        if kind == 162:
            if end - body < 13 or not self._mariadb:
                raise Damaged(f"a GTID event of type {kind} and {size} bytes came")
            if self._maria_gtid(p, at, body, end) == _STOPPED:
                return _STOPPED
            return self._hand_over(p, at, body, end, kind, inner) if self.hold else _GO
        if kind == 29 or kind == 160:  # the statement's text
            return _GO
        return self._hand_over(p, at, body, end, kind, inner)

    @cython.cfunc
    @cython.exceptval(-1)
    def _hand_over(
        self,
        p: cython.p_uchar,
        at: cython.Py_ssize_t,
        body: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        kind: cython.int,
        inner: cython.bint,
    ) -> cython.int:
        self.event_type, self.event_inner = kind, inner
        self.event_flags = _u16(p, at + 17)
        self.timestamp = _u32(p, at)
        self.server_id = _u32(p, at + 5)
        self.event_body = _bytes(p, body, end)
        self._checked = False
        return _EVENT

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_begin(self, p: cython.p_uchar, body: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether a QUERY event is a transaction's BEGIN."""
        at: cython.Py_ssize_t
        if end - body < 14:
            return False
        at = body + 13 + _u16(p, body + 11) + p[body + 8] + 1
        return (
            end - at == 5
            and p[at] == 66
            and p[at + 1] == 69
            and p[at + 2] == 71
            and p[at + 3] == 73
            and p[at + 4] == 78
        )

    # ---- transactions ----

    @cython.cfunc
    @cython.exceptval(-1)
    def _gtid(
        self,
        p: cython.p_uchar,
        body: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        kind: cython.int,
        seconds: cython.longlong,
    ) -> cython.int:
        ts: cython.longlong = seconds * 1000000
        number: cython.longlong
        if end - body >= 49 and p[body + 25] == 2:
            ts = _u48(p, body + 42) | (cython.cast(cython.longlong, p[body + 48] & 127) << 48)
        if kind == 34:
            if self._gated(ts):
                return _STOPPED
            self.start_anonymous(self.event_start, ts)
            return _GO
        if not _same(p, body + 1, body + 17, self._prefix_bytes):
            self._prefix_bytes = _bytes(p, body + 1, body + 17)
            h = self._prefix_bytes.hex()
            self.gtid_prefix = f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
            self._gtid_head = f"{self.gtid_prefix}:"
        number = _i64(p, body + 17)
        return self._begin_gtid(number, ts)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _gated(self, ts: cython.longlong) -> cython.bint:
        """Whether the transaction that begins with the event at hand is behind the gate; then `pos` is before it."""
        if ts < self.gate_time and self.event_start < self.gate_offset:
            return False
        self.pos = self.event_start
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def _begin_gtid(self, number: cython.longlong, ts: cython.longlong) -> cython.int:
        if number < 1:
            raise Damaged(f"a GTID event has the number {number}")
        if self._gated(ts):
            return _STOPPED
        self.gtid_number = number
        self._start(self.event_start, ts)
        if not (number == self.run_last + 1 and self.run_prefix == self.gtid_prefix and number < self._clear_to):
            self._clear_to = self._taken(self.gtid_prefix, number)
            self.tx_skip = self._clear_to == number
            if self.tx_skip:
                self._clear_to = 0  # what goes on behind it is another run's
            elif self._clear_to == 0:
                self._clear_to = 1 << 62
        return _GO

    def tagged(self, prefix: str, number: int, ts: int) -> int:
        """A transaction begins whose GTID is `prefix:number`, where the prefix has a tag: GO or STOPPED."""
        if self._mariadb:
            raise Damaged("a tagged GTID came, which only MySQL has")
        self._prefix_bytes = b""
        self.gtid_prefix, self._gtid_head = prefix, f"{prefix}:"
        return self._begin_gtid(number, ts)

    @cython.cfunc
    @cython.exceptval(-1)
    def _maria_gtid(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, body: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        extra: cython.Py_ssize_t
        server: cython.longlong = _u32(p, at + 5)
        number: cython.longlong = _i64(p, body)
        domain: cython.longlong = _u32(p, body + 8)
        if number < 0:
            raise Damaged(f"a GTID event has the number {number}")
        ts: cython.longlong = cython.cast(cython.longlong, _u32(p, at)) * 1000000
        if self._gated(ts):
            return _STOPPED
        self.server_id = server
        self._start(self.event_start, ts)
        self.tx_flags = p[body + 12]
        extra = body + (21 if self.tx_flags & 2 else 13)
        # of a DDL: the begin of an ALTER in two phases, or its failure; its success comes by another transaction
        self.tx_unsettled = self.tx_flags & 32 != 0 and extra < end and p[extra] & 10 != 0
        self.gtid_number = number
        self.domain_at_hand = (domain, server, number)
        self.hold = (self.tx_flags & 64) != 0
        self.tx_begun = not self.tx_flags & 1
        return _GO

    @property
    def where(self) -> str:
        """After which place an error came, for its message. Inside a transaction it begins with its start, which is
        certain: an event with a damaged size leaves those behind it misplaced if they do not state where they end."""
        if not self.tx_open:
            return f"after {self.file}:{self.pos}"
        return f"in the transaction at {self.file}:{self.tx_start}, after offset {self.pos}"

    @property
    def tx_gtid(self) -> str | None:
        """The GTID of the transaction at hand; None if it has none."""
        if self.domain_at_hand is not None:
            domain, server, number = self.domain_at_hand
            return f"{domain}-{server}-{number}"
        return f"{self.gtid_prefix}:{self.gtid_number}" if self.gtid_prefix else None

    @cython.ccall
    def tell_place(self) -> None:
        """Let `place` know the transaction at hand, which it does not before its first row."""
        if self._told:
            return
        self._told = True
        if self.domain_at_hand is not None:
            domain, server, number = self.domain_at_hand
            self.place.transaction(f"{domain}-{server}-", self.tx_ts, number)
        elif self.gtid_prefix != "":
            self.place.transaction(self._gtid_head, self.tx_ts, self.gtid_number)
        else:
            self.place.transaction(None, self.tx_ts)

    def start_anonymous(self, start: int, ts: int) -> None:
        """A transaction without a GTID begins at `start`."""
        self.gtid_prefix, self._prefix_bytes = "", b""
        self._start(start, ts)

    @cython.cfunc
    @cython.exceptval(-1)
    def _start(self, start: cython.longlong, ts: cython.longlong) -> cython.int:
        if self.tx_open:
            raise Damaged("a transaction begins inside another one")
        self.tx_open = True
        self.tx_begun = self.tx_skip = self.tx_unsettled = self.delivered = self.hold = self._told = False
        self.tx_start = start
        self.tx_ts = ts
        self.tx_flags = 0
        self.tx_number += 1
        self.tx_seq = self.place.seq
        self.ordinal = self.row_from = 0
        return 0

    @cython.ccall
    @cython.exceptval(-1)
    def end_transaction(self) -> cython.int:
        """The transaction at hand is over, at `pos`: ENDED if the read is to stop here, else GO."""
        if self.resume:
            raise Damaged(
                f"the transaction ends after {self.ordinal} row events, of which {self.resume >> _INSIDE} were taken"
                " before"
            )
        self.tx_open = self.hold = False
        self.ordinal = self.row_from = 0
        if self._mariadb:
            if self.domain_at_hand is not None:
                self.domains[self.domain_at_hand[0]] = self.domain_at_hand
                self.domain_at_hand = None
        elif self.gtid_prefix != "" and not self.tx_skip:
            if self.gtid_number == self.run_last + 1 and self.run_prefix == self.gtid_prefix:
                self.run_last += 1
            else:
                self.close_run()
                self.run_prefix = self.gtid_prefix
                self.run_first = self.run_last = self.gtid_number
        self.tx_skip = False
        if self.stop_soon or self.enough() or (self.stop_offset >= 0 and self.pos >= self.stop_offset):
            return _ENDED
        return _GO

    @cython.ccall
    def enough(self) -> cython.bint:
        """Whether so much is taken that the read may end at a transaction's end."""
        place: Place = self.place
        return place.seq >= self.soft_rows or self.bytes_taken >= self.soft_bytes or place.made >= self.soft_bytes

    def close_payload(self) -> None:
        """The event at hand ends the transaction, inside a payload: it is over when the payload is."""
        self._closing = True

    def drop_transaction(self) -> None:
        """The transaction at hand was never committed: nothing of it is to be known, of its GTID neither."""
        self.tx_open = self.tx_begun = self.tx_skip = self.tx_unsettled = self.hold = False
        self.ordinal = self.row_from = 0
        self.domain_at_hand = None
        self.gtid_prefix, self.gtid_number, self._prefix_bytes = "", 0, b""
        self._clear_to = 0  # it may be another server's than the run's, which is to be looked up again

    def close_run(self) -> None:
        """Put the open run of GTIDs to `runs`."""
        if self.run_prefix is not None:
            self.runs.append((self.run_prefix, self.run_first, self.run_last))
            self.run_prefix = None

    # ---- rows ----

    @cython.cfunc
    @cython.exceptval(-1)
    def _rows(
        self, plan: Plan, kind: cython.int, p: cython.p_uchar, body: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """One row event of a routed table; with FULL and FAULT it is to come again."""
        budget: cython.longlong
        first: cython.longlong = self.row_from
        passed: cython.longlong
        place: Place = self.place
        before: cython.longlong = place.seq
        if not self._checked:
            if plan.guard:
                if plan.judged != self.tx_number:
                    plan.judged = self.tx_number
                    plan.wanted = bool(self._judge(plan))
                if not plan.wanted:
                    return self.pass_over()
            self.bytes_taken += end - body
            if not self._told:
                self.tell_place()
            self._row_before = place.row
        else:
            place.row = self._row_before
        if plan.decoder is None:
            plan.decoder = plan.make(plan)
        place.pos = self.event_start
        budget = self.max_rows - place.seq
        if self.resume:
            if self.ordinal < self.resume >> _INSIDE:
                first = 1 << 62
                budget = -1
            else:
                first = self.row_from = self.resume & ((1 << _INSIDE) - 1)
                self.resume = 0
                self.delivered = True
        if budget >= 0:
            budget += first
        try:
            if cython.compiled:
                passed = decode(plan.decoder, p + body, end - body, kind, first, budget)
            else:
                passed = plan.decoder.rows(kind, memoryview(p)[body:end], first, budget)
                if plan.decoder.ended:
                    passed = -1
        except Damaged as error:
            self._checked = True
            self.fault, self.error, self.fault_seq = plan, error, before
            return _FAULT
        if passed >= 0:
            self._checked = True
            self.row_from = passed
            self.delivered = True
            return _FULL
        self.delivered = True
        self.pass_over()
        if place.seq >= self.max_rows or self.bytes_taken >= self.max_bytes or place.made >= self.max_bytes:
            self.event_type = kind
            return _FULL_TAKEN
        return _GO

    @cython.ccall
    @cython.exceptval(-1)
    def pass_over(self) -> cython.int:
        """The row event at hand is taken whole, or is of no routed table (perhaps of one that was routed until some of
        its rows were taken)."""
        self._checked = False
        self.row_from = 0
        self.ordinal += 1
        if self.resume and self.ordinal << _INSIDE >= self.resume:
            self.resume = 0
            self.delivered = True
        return _GO

    def give_rows(self, plan: Plan, event_type: int, body: bytes | bytearray) -> int:
        """Decode a row event that does not come from the connection as it is (inflated, or of a prepared
        transaction)."""
        return self._rows(plan, event_type, body, 0, len(body))
