# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""Binlog framing: from the bytes of a dump connection to transactions and row events, without I/O.

This file is in Cython's pure Python mode: setup.py compiles it; without a C compiler it is interpreted, as decode/ is.
A single-row transaction is five events, so the work per event decides the speed. `Scanner` owns the receive buffer;
dump.py fills it from the socket, and cursor.py calls `scan`. `scan` handles by itself the events of an ordinary
transaction

    GTID (MySQL, MariaDB), QUERY with BEGIN, TABLE_MAP seen before, row events (skipped, or given to the table's
    decoder), XID

and returns at everything else, with a code:

| code | meaning | the event at hand |
|---|---|---|
| NEED | the buffer ends inside a packet: fill it | not taken |
| EVENT | the cursor must handle `event.type`, `event.body` | taken |
| FULL | `max_rows`, or `max_bytes` of decoded rows, reached inside a row event | taken up to `row_from` |
| FULL_TAKEN | `max_rows` or `max_bytes` reached inside a transaction | taken |
| ENDED | a transaction ended, and a limit, `stop_at` or `stop_at_next_end` applies | taken |
| FAULT | the decoder of `faulted` refused its row event: `error` | not taken |
| SERVER_MESSAGE | the server sent an error or the end of the stream: `event.body` | taken |
| STOPPED | a transaction begins at or after the `gate` | lost: connect anew |

Positions. `pos` is the end of the last event in `file`: the position in the event's header or, where that is 0, the sum
of the events' sizes, which is exact as long as the dump leaves nothing out (dump.py asks for every event). A position
inside a transaction is `ordinal` row events (of any table) and `row_from` row changes of the next one, so it does not
depend on which tables are routed; INSIDE_BITS says how both make one number. `resume` is such a number: the part of the
first transaction that was taken before this dump; it becomes 0 when the dump reaches it again. Likewise `pos` may be
before `discard_to` (events up to there come a second time) or before `floor` (the server leaves them out, by GTIDs).

Only the scanner writes its attributes; the cursor uses the verbs. A malformed byte raises Damaged; nothing is read
outside the buffer. Change together with: binlog/cursor.py.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from typing import Any

import cython
import pyarrow as pa

from cutline.services.sources.mysql.binlog import event_types
from cutline.services.sources.mysql.binlog.event_bodies import event_limit
from cutline.services.sources.mysql.damage import Damaged

if cython.compiled:
    from cython.cimports.cutline.services.sources.mysql.decode.row_event import Place, decode
    from cython.cimports.libc.string import memcmp
else:
    from cutline.services.sources.mysql.decode.row_event import Place

GO, NEED, EVENT, FULL, ENDED, FAULT, SERVER_MESSAGE, FULL_TAKEN, STOPPED = range(9)
INSIDE_BITS = 28
"""A position's `rows` is (row events taken whole << INSIDE_BITS) + row changes taken of the next one."""
NEVER = 1 << 62
"""An offset, a time or a number of rows that nothing reaches."""

# compiled code has these names from scanner.pxd, with the same numbers (a unit test compares them)
if not cython.compiled:
    _GO = GO
    _NEED = NEED
    _EVENT = EVENT
    _FULL = FULL
    _ENDED = ENDED
    _FAULT = FAULT
    _SERVER_MESSAGE = SERVER_MESSAGE
    _FULL_TAKEN = FULL_TAKEN
    _STOPPED = STOPPED
    _INSIDE = INSIDE_BITS
    _QUERY = event_types.QUERY
    _ROTATE = event_types.ROTATE
    _FORMAT_DESCRIPTION = event_types.FORMAT_DESCRIPTION
    _XID = event_types.XID
    _TABLE_MAP = event_types.TABLE_MAP
    _PRE_GA_WRITE_ROWS = event_types.PRE_GA_WRITE_ROWS
    _WRITE_ROWS_V1 = event_types.WRITE_ROWS_V1
    _DELETE_ROWS_V1 = event_types.DELETE_ROWS_V1
    _WRITE_ROWS = event_types.WRITE_ROWS
    _DELETE_ROWS = event_types.DELETE_ROWS
    _HEARTBEAT = event_types.HEARTBEAT
    _HEARTBEAT_V2 = event_types.HEARTBEAT_V2
    _ROWS_QUERY = event_types.ROWS_QUERY
    _GTID = event_types.GTID
    _ANONYMOUS_GTID = event_types.ANONYMOUS_GTID
    _GTID_TAGGED = event_types.GTID_TAGGED
    _PREVIOUS_GTIDS = event_types.PREVIOUS_GTIDS
    _PARTIAL_UPDATE_ROWS = event_types.PARTIAL_UPDATE_ROWS
    _TRANSACTION_PAYLOAD = event_types.TRANSACTION_PAYLOAD
    _ANNOTATE_ROWS = event_types.ANNOTATE_ROWS
    _MARIADB_GTID = event_types.MARIADB_GTID
    _GTID_LIST = event_types.GTID_LIST
    _WRITE_ROWS_COMPRESSED_V1 = event_types.WRITE_ROWS_COMPRESSED_V1
    _DELETE_ROWS_COMPRESSED = event_types.DELETE_ROWS_COMPRESSED
    _ARTIFICIAL_FLAG = event_types.ARTIFICIAL_FLAG
    _HEADER = event_types.HEADER_BYTES
    _LOGICAL_TIMESTAMP = 2  # of a MySQL GTID event: commit timestamps follow
    _NO_TABLE = 0xFFFFFF  # the table id of a statement's last row event without rows
    # flags of a MariaDB GTID event, and its extra flags
    _STANDALONE = 1
    _GROUP_COMMIT_ID = 2
    _DDL = 32
    _PREPARED_XA = 64
    _START_OR_ROLLBACK_ALTER = 2 | 8
    _FULL_PACKET = 0xFFFFFF  # a packet of this size is followed by another
_NEVER = cython.declare(cython.longlong, NEVER)
_LOW_32 = cython.declare(cython.longlong, 0xFFFFFFFF)  # (a literal of over 31 bits would be a Python number in C)
_HALF = cython.declare(cython.longlong, 0x80000000)
COMPILED: bool = cython.compiled
"""Whether this module runs as C."""

_BUFFER = 1 << 20
_CHUNK = 1 << 20
_BEGINNING = 59  # bytes kept of an event that is too large: its header, and the id of a row event's table
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
        return ~c  # (of a C integer, so 32 bits)
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
    """Whether p[at:end] equals `known`."""
    if cython.compiled:
        k: cython.p_uchar = known
        return end - at == len(known) and memcmp(p + at, k, end - at) == 0
    else:
        return p[at:end] == known


@cython.cclass
class MappedTable:
    """A table as one TABLE_MAP describes it, and the decoder of its rows.

    `make_decoder(table)` makes `decoder` when the first row event comes; None for a table without a route.
    `guard(table)` tells whether the transaction at hand is delivered to the table, and is called once for each
    transaction; None if every transaction is delivered.
    """

    table_id = cython.declare(str, visibility="readonly")
    body = cython.declare(bytes, visibility="readonly")
    decoder = cython.declare(object, visibility="public")
    make_decoder = cython.declare(object, visibility="public")
    guard = cython.declare(object, visibility="public")
    _asked: cython.longlong  # the transaction that `_wanted` is the guard's answer for
    _wanted: cython.bint

    def __init__(self, table_id: str, body: bytes) -> None:
        self.table_id, self.body = table_id, body
        self.decoder = self.make_decoder = self.guard = None
        self._asked = -1
        self._wanted = False


@cython.cclass
class Event:
    """The event at hand: fields of its header, its body, and where it begins and ends in the file.

    `type` is negative if the event was too large to hold; then `body` is only its beginning. The `body` of a ROTATE, a
    format description or a heartbeat includes header and checksum. `inner`: the event came in a transaction payload.
    """

    type = cython.declare(cython.int, visibility="readonly")
    flags = cython.declare(cython.int, visibility="readonly")
    timestamp = cython.declare(cython.longlong, visibility="readonly")
    body = cython.declare(bytes, visibility="readonly")
    inner = cython.declare(cython.bint, visibility="readonly")
    start = cython.declare(cython.longlong, visibility="readonly")
    end = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self) -> None:
        self.type = self.flags = self.timestamp = self.start = self.end = 0
        self.body = b""
        self.inner = False


@cython.cclass
class Transaction:
    """The transaction at hand if `open`, else the last one.

    `begun`: its BEGIN came, so a statement does not end it. `skipped`: its GTID was taken before. `held`: an XA
    transaction, whose rows count only when it commits. `unsettled`: an ALTER of MariaDB's that may still fail.
    `delivered`: the position may be inside it. `first_seq`: the first `_seq` of its rows in this read. `time_us`: its
    commit time.
    """

    open = cython.declare(cython.bint, visibility="readonly")
    begun = cython.declare(cython.bint, visibility="readonly")
    skipped = cython.declare(cython.bint, visibility="readonly")
    held = cython.declare(cython.bint, visibility="readonly")
    unsettled = cython.declare(cython.bint, visibility="readonly")
    delivered = cython.declare(cython.bint, visibility="readonly")
    start = cython.declare(cython.longlong, visibility="readonly")
    number = cython.declare(cython.longlong, visibility="readonly")
    first_seq = cython.declare(cython.longlong, visibility="readonly")
    time_us = cython.declare(cython.longlong, visibility="readonly")
    _named: cython.bint  # whether `place` has it (`name_transaction`)

    def __init__(self) -> None:
        self.open = self.begun = self.skipped = self.held = self.unsettled = self.delivered = self._named = False
        self.start = self.number = self.first_seq = self.time_us = 0


@cython.cclass
class Gtids:
    """The GTID of the transaction at hand, and the GTIDs taken since the last call of `take`.

    MySQL's are collected as runs of consecutive numbers with one prefix (server UUID and tag). `mariadb` is (domain,
    server id, sequence number) of the transaction at hand.
    """

    prefix = cython.declare(str, visibility="readonly")
    number = cython.declare(cython.longlong, visibility="readonly")
    mariadb = cython.declare(object, visibility="readonly")
    _prefix_bytes: bytes
    _head: str  # the prefix with its colon
    _runs: list[tuple[str, int, int]]  # the complete runs: prefix, first, last
    _run_prefix: str | None  # of the run that may go on
    _run_first: cython.longlong
    _run_last: cython.longlong
    _free_to: cython.longlong  # numbers of `_run_prefix` below this one were not taken before the dump began
    _domains: dict[int, tuple[int, int, int]]  # the last GTID of each of MariaDB's domains

    def __init__(self) -> None:
        self.prefix, self.number, self.mariadb = "", 0, None
        self._prefix_bytes, self._head = b"", ""
        self._runs, self._run_prefix, self._run_first, self._run_last = [], None, 0, 0
        self._free_to, self._domains = 0, {}

    def take(self) -> tuple[list[tuple[str, int, int]], list[tuple[int, int, int]]]:
        """The GTIDs taken since the last call: MySQL's runs (prefix, first, last), and MariaDB's, the last of each
        domain."""
        runs, domains = self._runs, list(self._domains.values())
        self._runs, self._domains = [], {}
        if self._run_prefix is not None:
            runs.append((self._run_prefix, self._run_first, self._run_last))
            self._run_first = self._run_last  # the run goes on from a number that the caller has already
        return runs, domains

    def __str__(self) -> str:
        """The GTID of the transaction at hand; empty if it has none."""
        if self.mariadb is not None:
            domain, server, number = self.mariadb
            return f"{domain}-{server}-{number}"
        return f"{self.prefix}:{self.number}" if self.prefix else ""


@cython.cclass
class Limits:
    """Where the read at hand ends. A number that does not limit is NEVER; `stop_offset` is then -1.

    At a transaction's end the soft limits end it. `stop_offset`: end at the first transaction's end at or after it;
    `stop_soon`: at the next transaction's end. No transaction that begins at or after a gate is taken.
    """

    max_rows = cython.declare(cython.longlong, visibility="readonly")
    max_bytes = cython.declare(cython.longlong, visibility="readonly")
    soft_rows = cython.declare(cython.longlong, visibility="readonly")
    soft_bytes = cython.declare(cython.longlong, visibility="readonly")
    bytes_taken = cython.declare(cython.longlong, visibility="readonly")
    stop_offset = cython.declare(cython.longlong, visibility="readonly")
    stop_soon = cython.declare(cython.bint, visibility="readonly")
    gate_offset = cython.declare(cython.longlong, visibility="readonly")
    gate_time_us = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self) -> None:
        self.max_rows = self.max_bytes = self.soft_rows = self.soft_bytes = NEVER
        self.bytes_taken = 0
        self.stop_offset, self.stop_soon = -1, False
        self.gate_offset = self.gate_time_us = NEVER


@cython.cclass
class _LongEvent:
    """An event that spans packets, as far as it has come; `kept`: it is within its type's limit, so held in memory."""

    data: bytearray
    size: cython.Py_ssize_t
    stated_size: cython.Py_ssize_t  # in its header
    kept: cython.bint

    def __init__(self, stated_size: int, kept: bool) -> None:
        self.data, self.size, self.stated_size, self.kept = bytearray(), 0, stated_size, kept


@cython.cclass
class _Payload:
    """A transaction payload that is being read: the stream of its events, and a buffer of the decompressed bytes."""

    stream: Any
    data: bytearray
    head: cython.Py_ssize_t
    tail: cython.Py_ssize_t
    ends: cython.bint  # the transaction's last event was in it

    def __init__(self, stream: Any) -> None:
        self.stream, self.data, self.head, self.tail, self.ends = stream, bytearray(), 0, 0, False

    def more(self, room: memoryview) -> int:
        """Read the next bytes into `room`; how many came, 0 at the stream's end."""
        try:
            return int(self.stream.readinto(room))
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"a transaction payload can't be decompressed ({error})") from error


@cython.cclass
class Scanner:
    """The events of one dump connection; see this file's head.

    `first_taken(prefix, number)` gives the first number, from `number` on, of MySQL's GTIDs that were taken before the
    dump began; 0 if none was. It is called where the numbers do not simply continue. (MariaDB's dump leaves such
    transactions out.)

    It has more than 25 attributes because the loop needs them as C fields: the buffer, the position and the groups
    above.
    """

    _raw: bytearray
    _head: cython.Py_ssize_t
    _tail: cython.Py_ssize_t
    _packet_number: cython.int  # of the next packet, mod 256
    _long: _LongEvent | None
    _joined: bytearray  # a long event, whole; empty if none is at hand
    _payload: _Payload | None
    _mariadb: cython.bint
    _first_taken: Any
    _last_id: cython.longlong
    _last_table: MappedTable
    _row_before: cython.longlong  # row changes of the transaction before the event at hand
    _checked: cython.bint  # the event at hand comes again, after FULL or FAULT
    _spooled: Any  # a temporary file with a large transaction payload

    place = cython.declare(Place, visibility="readonly")
    tables = cython.declare(dict, visibility="readonly")
    checksum = cython.declare(cython.bint, visibility="readonly")
    event = cython.declare(Event, visibility="readonly")
    tx = cython.declare(Transaction, visibility="readonly")
    gtids = cython.declare(Gtids, visibility="readonly")
    limits = cython.declare(Limits, visibility="readonly")
    file = cython.declare(str, visibility="readonly")
    pos = cython.declare(cython.longlong, visibility="readonly")
    discard_to = cython.declare(cython.longlong, visibility="readonly")
    floor = cython.declare(cython.longlong, visibility="readonly")
    ordinal = cython.declare(cython.longlong, visibility="readonly")
    row_from = cython.declare(cython.longlong, visibility="readonly")
    resume = cython.declare(cython.longlong, visibility="readonly")
    faulted = cython.declare(object, visibility="readonly")
    fault_seq = cython.declare(cython.longlong, visibility="readonly")  # the first `_seq` of the refused event
    error = cython.declare(object, visibility="readonly")

    def __init__(self, place: Place, *, mariadb: bool, first_taken: Callable[[str, int], int]) -> None:
        self.place, self._mariadb, self._first_taken = place, mariadb, first_taken
        self._raw = bytearray(_BUFFER)
        self._head = self._tail = 0
        self._packet_number = 1
        self._long, self._joined, self._payload, self._spooled = None, bytearray(), None, None
        self._row_before = 0
        self._checked = False
        self._last_id, self._last_table = -1, MappedTable("", b"")
        self.tables = {}
        self.checksum = False
        self.event, self.tx, self.gtids, self.limits = Event(), Transaction(), Gtids(), Limits()
        self.file, self.pos, self.discard_to, self.floor = "", 4, 0, 0
        self.ordinal = self.row_from = self.resume = 0
        self.faulted = self.error = None
        self.fault_seq = 0

    # ---- where the dump begins, and where it is ----

    def start_at(self, file: str, offset: int, resume: int = 0) -> None:
        """The dump begins there; `resume`: how much of the first transaction was taken before."""
        self.file = self.place.file = file
        self.pos, self.resume = offset, resume

    def discard_before(self, offset: int) -> None:
        """The dump begins at the file's start, because its command can't name so large an offset: no event up to there
        counts."""
        self.discard_to, self.pos = offset, 4

    def expect_from(self, offset: int) -> None:
        """The server leaves out every transaction before that offset."""
        self.floor = offset

    def rotate(self, file: str, offset: int) -> None:
        """The dump continues in another file."""
        self.file = self.place.file = file
        self.pos, self.discard_to, self.floor = offset, 0, 0

    def move_to(self, offset: int) -> None:
        """Between two transactions: the file has no event of interest before that offset."""
        self.pos = max(self.pos, offset)

    def use_checksums(self, checksum: bool) -> None:
        """Whether a checksum follows each event of this file."""
        self.checksum = checksum

    @property
    def where(self) -> str:
        """The place of an error, for its message. Inside a transaction it begins with the transaction's start, which is
        certain: after an event with a damaged size, later events without a stated end are misplaced."""
        if not self.tx.open:
            return f"after {self.file}:{self.pos}"
        return f"in the transaction at {self.file}:{self.tx.start}, after offset {self.pos}"

    @property
    def event_place(self) -> str:
        """Where the event at hand begins."""
        return f"{self.file}:{self.event.start}"

    # ---- where a read ends ----

    def begin(self, max_rows: int, max_bytes: int, at_boundary: bool) -> None:
        """A read begins, with these limits: three quarters of them at a transaction's end, and with `at_boundary`
        eight times as much inside a transaction. `max_bytes` limits the row events, and what the decoders make of them.
        """
        self.limits.soft_rows = max_rows - max_rows // 4
        self.limits.soft_bytes = max_bytes - max_bytes // 4
        self.limits.max_rows = max_rows * 8 if at_boundary else max_rows
        self.limits.max_bytes = max_bytes * 8 if at_boundary else max_bytes
        self.limits.bytes_taken = 0
        self.limits.stop_soon = False
        self.place.seq = self.place.made = self.tx.first_seq = 0
        self.place.most = self.limits.max_bytes

    def stop_at(self, offset: int | None) -> None:
        """Stop at the first transaction's end at or after that offset of this file; None: at none."""
        self.limits.stop_offset = -1 if offset is None else offset

    def stop_at_next_end(self) -> None:
        """Stop at the next transaction's end."""
        self.limits.stop_soon = True

    def gate(self, *, offset: int = NEVER, time_us: int = NEVER) -> None:
        """Take no transaction that begins at or after that offset of this file, or was committed then or later."""
        self.limits.gate_offset, self.limits.gate_time_us = offset, time_us

    def exhaust(self, *, inside: bool) -> None:
        """The limit of bytes is reached: stop at a transaction's end, or with `inside` after any row event."""
        if inside:
            self.limits.max_bytes = 0
        else:
            self.limits.soft_bytes = 0

    @property
    def at_gate(self) -> bool:
        """Whether nothing of this file is left before the gate."""
        return self.pos >= self.limits.gate_offset and not self.tx.open

    @property
    def at_stop(self) -> bool:
        """Whether the offset of `stop_at` is reached."""
        return self.limits.stop_offset >= 0 and self.pos >= self.limits.stop_offset

    @cython.ccall
    def enough(self) -> cython.bint:
        """Whether the soft limits are reached, so that the read may end at a transaction's end."""
        place: Place = self.place
        return (
            place.seq >= self.limits.soft_rows
            or self.limits.bytes_taken >= self.limits.soft_bytes
            or place.made >= self.limits.soft_bytes
        )

    # ---- tables ----

    def add_table(self, table_number: int, table: MappedTable) -> None:
        """A TABLE_MAP gave this number to the table."""
        self.tables[table_number] = table
        self._last_id = -1

    def forget_tables(self) -> None:
        """Forget all tables, so that every TABLE_MAP is handed over again."""
        self.tables = {}
        self._last_id = -1

    # ---- the buffer ----

    def room(self) -> memoryview:
        """Where to put the connection's next bytes; release it, then call `filled` with their number."""
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
        """So many bytes were put into `room`."""
        self._tail += n

    @property
    def pending(self) -> bool:
        """Whether there are bytes that `scan` has not taken (perhaps only part of a packet)."""
        return self._tail > self._head or self._payload is not None or len(self._joined) > 0

    @property
    def pending_events(self) -> bool:
        """Whether bytes of another packet have come."""
        return self._tail - self._head > 4

    # ---- the loop ----

    def scan(self) -> int:
        """Take events until the cursor has something to do; a code of this file's head."""
        code: cython.int
        while True:
            if self._payload is not None:
                code = self._next_inner()
            elif len(self._joined) > 0:
                code = self._event(self._joined, 0, len(self._joined), False)
                if code != _FULL and code != _FAULT:
                    self._joined = bytearray()
            else:
                code = self._packet()
            if code != _GO:
                return code

    def take_body(self) -> bytes:
        """The body of the event at hand, which may be large; the scanner no longer holds it."""
        body: bytes = self.event.body
        self.event.body = b""
        return body

    def take_spooled(self) -> Any:
        """The temporary file with the TRANSACTION_PAYLOAD at hand, which the caller closes; None if `event.body` has
        it."""
        spooled, self._spooled = self._spooled, None
        return spooled

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
        if p[at + 3] != self._packet_number:
            raise Damaged(f"packet {p[at + 3]} came instead of packet {self._packet_number}")
        if n == _FULL_PACKET or self._long is not None:
            return self._part(at + 4, n)
        if n == 0:
            raise Damaged("an empty packet came")
        if p[at + 4] != 0:
            if p[at + 4] < 0xFE:
                raise Damaged(f"a packet of the unknown status {p[at + 4]} came")
            self.event.body = _bytes(p, at + 4, at + 4 + n)
            code = _SERVER_MESSAGE
        else:
            code = self._event(self._raw, at + 5, n - 1, False)
        if code != _FULL and code != _FAULT:
            self._head = at + 4 + n
            self._packet_number = (self._packet_number + 1) & 255
        return code

    @cython.cfunc
    @cython.exceptval(-1)
    def _part(self, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
        """Take a packet of an event that spans several. A transaction payload goes to a temporary file; of any other
        event over its type's limit only the first packet is kept."""
        long: _LongEvent
        if self._long is None:
            size = int.from_bytes(self._raw[at + 10 : at + 14], "little")
            self._long = _LongEvent(size, size <= event_limit(self._raw[at + 5]))
            if self._raw[at + 5] == _TRANSACTION_PAYLOAD:
                self._spooled = tempfile.NamedTemporaryFile(prefix="cutline-payload-")
        long = self._long
        if long.size + n > long.stated_size + 1:
            raise Damaged(f"an event states a size of {long.stated_size} bytes, and {long.size + n - 1} came")
        if self._spooled is not None:
            self._spooled.write(self._raw[at + (long.size == 0) : at + n])
        elif long.kept or long.size == 0:
            long.data += memoryview(self._raw)[at : at + n]
        long.size += n
        self._head = at + n
        self._packet_number = (self._packet_number + 1) & 255
        if n < _FULL_PACKET:
            self._long = None
            if self._spooled is not None:
                return self._in_file(self._spooled, long.size - 1)
            if long.data[0] != 0:
                raise Damaged("a packet over 16 MiB came that is no event")
            if len(long.data) < long.size:
                return self._oversized(long.data, 1, long.size - 1, False)
            del long.data[:1]
            self._joined = long.data
        return _GO

    @cython.cfunc
    @cython.exceptval(-1)
    def _in_file(self, file: Any, size: cython.Py_ssize_t) -> cython.int:
        """Hand over a large transaction payload: the event is in the file, without checksum; `event.body` is empty."""
        file.seek(0)
        head = bytearray(file.read(_HEADER))
        p: cython.p_uchar = head
        if len(head) < _HEADER or _u32(p, 9) != cython.cast(cython.uint, size):
            raise Damaged(f"a transaction payload states another size than its {size} bytes")
        if self.checksum:
            crc = zlib.crc32(head)
            left = size - _HEADER - 4
            while left > 0 and (part := file.read(min(left, _CHUNK))):
                crc = zlib.crc32(part, crc)
                left -= len(part)
            if crc != int.from_bytes(file.read(4), "little"):
                raise Damaged("the checksum of a transaction payload does not match")
            file.truncate(size - 4)
        file.flush()
        self._advance(_u32(p, 13), _u16(p, 17), size, _TRANSACTION_PAYLOAD)
        return self._hand_over(p, 0, _HEADER, _HEADER, _TRANSACTION_PAYLOAD, False)

    @cython.cfunc
    @cython.exceptval(-1)
    def _oversized(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, inner: cython.bint
    ) -> cython.int:
        """Hand over an event too large to hold: its beginning, at `at`, and its type as a negative number."""
        kind: cython.int = p[at + 4]
        if not inner:
            self._advance(_u32(p, at + 13), _u16(p, at + 17), size, kind)
        if kind == _ROWS_QUERY or kind == _ANNOTATE_ROWS:  # the statement's text
            return _GO
        self._hand_over(p, at, at + _HEADER, at + _BEGINNING, -kind, inner)
        if (
            _PRE_GA_WRITE_ROWS <= kind <= _DELETE_ROWS
            or kind == _PARTIAL_UPDATE_ROWS
            or _WRITE_ROWS_COMPRESSED_V1 <= kind <= _DELETE_ROWS_COMPRESSED
        ) and not self.tx.held:
            self.pass_over()
        return _EVENT

    @cython.cfunc
    @cython.exceptval(-1)
    def _next_inner(self) -> cython.int:
        """Take the next event of a transaction payload."""
        payload: _Payload = cython.cast(_Payload, self._payload)
        have: cython.Py_ssize_t = payload.tail - payload.head
        size: cython.Py_ssize_t = _HEADER
        whole: cython.Py_ssize_t = _HEADER
        code: cython.int
        p: cython.p_uchar = payload.data
        if have >= _HEADER:
            size = whole = _u32(p, payload.head + 9)
            if size < _HEADER:
                raise Damaged(f"an event of {size} bytes is in a transaction payload")
            if size > event_limit(p[payload.head + 4]):
                size = _BEGINNING
        if have < size:
            room = bytearray(max(size, _CHUNK))
            room[:have] = memoryview(payload.data)[payload.head : payload.tail]
            payload.data, payload.head, payload.tail = room, 0, have
            got = payload.more(memoryview(room)[have:])
            if got:
                payload.tail += got
                return _GO
            if have:
                raise Damaged(f"a transaction payload ends inside an event ({have} bytes of {size})")
            self._payload = None
            return self.end_transaction() if payload.ends else _GO
        if size < whole:
            return self._pass_inner(whole)
        code = self._event(payload.data, payload.head, size, True)
        if code != _FULL and code != _FAULT:
            payload.head += size
        return code

    @cython.cfunc
    @cython.exceptval(-1)
    def _pass_inner(self, size: cython.Py_ssize_t) -> cython.int:
        """Take the next event of a transaction payload, which is too large to hold."""
        payload: _Payload = cython.cast(_Payload, self._payload)
        start = bytes(payload.data[payload.head : payload.head + _BEGINNING])
        left = size
        while True:
            here = min(left, payload.tail - payload.head)
            payload.head += here
            left -= here
            if not left:
                return self._oversized(start, 0, size, True)
            payload.head, payload.tail = 0, payload.more(memoryview(payload.data))
            if not payload.tail:
                raise Damaged(f"a transaction payload ends inside an event ({size - left} bytes of {size})")

    def open_payload(self, stream: Any) -> None:
        """Continue with the decompressed events of the TRANSACTION_PAYLOAD at hand; `stream` has `readinto(buffer)`."""
        self._payload = _Payload(stream)

    @cython.cfunc
    @cython.exceptval(-1)
    def _advance(
        self, log_pos: cython.uint, flags: cython.int, size: cython.Py_ssize_t, kind: cython.int
    ) -> cython.int:
        """Move `pos` to the event's end. Its header has the low 32 bits of it; an artificial event is in no file.

        An event inside a transaction may state 0 as its end (MariaDB from 11.8 on): it follows the event before it, so
        its size places it. A transaction's first event must state its end: otherwise two transactions would have the
        same position. The server may leave events out, so an event may end later than the last end plus its size, not
        earlier.
        """
        delta: cython.longlong
        begins: cython.bint = kind == _GTID or kind == _ANONYMOUS_GTID or kind == _GTID_TAGGED or kind == _MARIADB_GTID
        if begins and self.pos < self.floor:
            self.pos = self.floor
        self.event.start = self.pos
        if log_pos != 0 and not flags & _ARTIFICIAL_FLAG:
            delta = (log_pos - self.pos) & _LOW_32
            if delta < size or delta >= _HALF:
                raise Damaged(f"an event of type {kind} and {size} bytes states that it ends at {log_pos}")
            self.pos += delta
            self.event.start = self.pos - size
        elif begins:
            raise Damaged(f"an event of type {kind} does not state where it ends")
        elif self.tx.open and not flags & _ARTIFICIAL_FLAG:
            self.pos += size
        self.event.end = self.pos
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _event(self, data: bytearray, at: cython.Py_ssize_t, size: cython.Py_ssize_t, inner: cython.bint) -> cython.int:
        """Take the event of `size` bytes at `at`."""
        p: cython.p_uchar = data
        kind: cython.int
        end: cython.Py_ssize_t = at + size
        body: cython.Py_ssize_t = at + _HEADER
        number: cython.longlong
        table: MappedTable
        fresh: cython.bint = not self._checked
        if size < _HEADER:
            raise Damaged(f"an event of {size} bytes came")
        kind = p[at + 4]
        if fresh:
            if _u32(p, at + 9) != cython.cast(cython.uint, size):
                raise Damaged(f"an event states a size of {_u32(p, at + 9)} bytes, and has {size}")
            if kind == _ROTATE or kind == _FORMAT_DESCRIPTION or kind == _HEARTBEAT or kind == _HEARTBEAT_V2:
                self.event.body = _bytes(p, at, end)
                self.event.type, self.event.inner = kind, inner
                self.event.flags = _u16(p, at + 17)
                self.event.timestamp = _u32(p, at)
                return _EVENT
            if self.checksum and not inner:
                if size < _HEADER + 4:
                    raise Damaged(f"an event of {size} bytes came")
                if _crc(p, at, end - 4) != _u32(p, end - 4):
                    raise Damaged(f"the checksum of an event of type {kind} does not match")
            if not inner:
                self._advance(_u32(p, at + 13), _u16(p, at + 17), size, kind)
        if self.checksum and not inner:
            end -= 4
        if (
            self.event.end <= self.discard_to
            and not inner
            and kind != _TRANSACTION_PAYLOAD
            and kind != _PREVIOUS_GTIDS
            and kind != _GTID_LIST
        ):
            return _GO
        if _WRITE_ROWS_V1 <= kind <= _DELETE_ROWS_V1 or _WRITE_ROWS <= kind <= _DELETE_ROWS:
            if end - body < 8:
                raise Damaged(f"a row event of {size} bytes came")
            if self.tx.skipped:
                self.ordinal += 1
                return _GO
            if self.tx.held:
                return self._hand_over(p, at, body, end, kind, inner)
            number = _u48(p, body)
            if number == self._last_id:
                table = self._last_table
            else:
                found = self.tables.get(number)
                if found is None:
                    if number == _NO_TABLE:
                        return _GO
                    raise Damaged(f"a row event names table {number}, which no table map has described")
                table = found
                self._last_table = table
                self._last_id = number
            if table.make_decoder is None:
                return self.pass_over()
            return self._rows(table, kind, p, body, end)
        if kind == _TABLE_MAP:
            if end - body < 8:
                raise Damaged(f"a table map of {size} bytes came")
            if self.tx.skipped:
                return _GO
            if not self.tx.held:
                number = _u48(p, body)
                if number == self._last_id:
                    if _same(p, body, end, self._last_table.body):
                        return _GO
                else:
                    found = self.tables.get(number)
                    if found is not None:
                        table = found
                        if _same(p, body, end, table.body):
                            return _GO
            return self._hand_over(p, at, body, end, kind, inner)
        if kind == _XID:
            if not self.tx.open:
                raise Damaged("a transaction ends that did not begin")
            return self.end_transaction() if not inner else self._end_payload()
        if kind == _GTID or kind == _ANONYMOUS_GTID:
            if end - body < 42 or self._mariadb:
                raise Damaged(f"a GTID event of type {kind} and {size} bytes came")
            return self._mysql_gtid(p, body, end, kind, _u32(p, at))
        if kind == _QUERY:
            if self._is_begin(p, body, end):
                if not self.tx.open:
                    self.start_anonymous(self.event.start, cython.cast(cython.longlong, _u32(p, at)) * 1000000)
                self.tx.begun = True
                return _GO
            return self._hand_over(p, at, body, end, kind, inner)
        if kind == _MARIADB_GTID:
            if end - body < 13 or not self._mariadb:
                raise Damaged(f"a GTID event of type {kind} and {size} bytes came")
            if self._mariadb_gtid(p, at, body, end) == _STOPPED:
                return _STOPPED
            return self._hand_over(p, at, body, end, kind, inner) if self.tx.held else _GO
        if kind == _ROWS_QUERY or kind == _ANNOTATE_ROWS:  # the statement's text
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
        self.event.type, self.event.inner = kind, inner
        self.event.flags = _u16(p, at + 17)
        self.event.timestamp = _u32(p, at)
        self.event.body = _bytes(p, body, end)
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
    def _mysql_gtid(
        self,
        p: cython.p_uchar,
        body: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        kind: cython.int,
        seconds: cython.longlong,
    ) -> cython.int:
        time_us: cython.longlong = seconds * 1000000
        if end - body >= 49 and p[body + 25] == _LOGICAL_TIMESTAMP:
            time_us = _u48(p, body + 42) | (cython.cast(cython.longlong, p[body + 48] & 127) << 48)
        if kind == _ANONYMOUS_GTID:
            if self._gated(time_us):
                return _STOPPED
            self.start_anonymous(self.event.start, time_us)
            return _GO
        if not _same(p, body + 1, body + 17, self.gtids._prefix_bytes):
            self.gtids._prefix_bytes = _bytes(p, body + 1, body + 17)
            h = self.gtids._prefix_bytes.hex()
            self.gtids.prefix = f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
            self.gtids._head = f"{self.gtids.prefix}:"
        return self._start_gtid(_i64(p, body + 17), time_us)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _gated(self, time_us: cython.longlong) -> cython.bint:
        """Whether the transaction that the event at hand begins is at or after the gate; then set `pos` before it."""
        if time_us < self.limits.gate_time_us and self.event.start < self.limits.gate_offset:
            return False
        self.pos = self.event.start
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def _start_gtid(self, number: cython.longlong, time_us: cython.longlong) -> cython.int:
        if number < 1:
            raise Damaged(f"a GTID event has the number {number}")
        if self._gated(time_us):
            return _STOPPED
        self.gtids.number = number
        self._start(self.event.start, time_us)
        if not (
            number == self.gtids._run_last + 1
            and self.gtids._run_prefix == self.gtids.prefix
            and number < self.gtids._free_to
        ):
            self.gtids._free_to = self._first_taken(self.gtids.prefix, number)
            self.tx.skipped = self.gtids._free_to == number
            if self.tx.skipped:
                self.gtids._free_to = 0  # the next number may have been taken too: look it up
            elif self.gtids._free_to == 0:
                self.gtids._free_to = _NEVER
        return _GO

    def start_tagged(self, prefix: str, number: int, time_us: int) -> int:
        """A transaction begins whose GTID is `prefix:number`, where the prefix has a tag: GO or STOPPED."""
        if self._mariadb:
            raise Damaged("a tagged GTID came, which only MySQL has")
        self.gtids._prefix_bytes = b""
        self.gtids.prefix, self.gtids._head = prefix, f"{prefix}:"
        return self._start_gtid(number, time_us)

    @cython.cfunc
    @cython.exceptval(-1)
    def _mariadb_gtid(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, body: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        extra: cython.Py_ssize_t
        flags: cython.int
        server: cython.longlong = _u32(p, at + 5)
        number: cython.longlong = _i64(p, body)
        domain: cython.longlong = _u32(p, body + 8)
        if number < 0:
            raise Damaged(f"a GTID event has the number {number}")
        time_us: cython.longlong = cython.cast(cython.longlong, _u32(p, at)) * 1000000
        if self._gated(time_us):
            return _STOPPED
        self._start(self.event.start, time_us)
        flags = p[body + 12]
        extra = body + (21 if flags & _GROUP_COMMIT_ID else 13)
        # the start or the rollback of an ALTER in two phases; its commit is a transaction of its own
        self.tx.unsettled = flags & _DDL != 0 and extra < end and p[extra] & _START_OR_ROLLBACK_ALTER != 0
        self.gtids.number = number
        self.gtids.mariadb = (domain, server, number)
        self.tx.held = (flags & _PREPARED_XA) != 0
        self.tx.begun = not flags & _STANDALONE
        return _GO

    def start_anonymous(self, start: int, time_us: int) -> None:
        """A transaction without a GTID begins at `start`."""
        self.gtids.prefix, self.gtids._prefix_bytes = "", b""
        self._start(start, time_us)

    @cython.cfunc
    @cython.exceptval(-1)
    def _start(self, start: cython.longlong, time_us: cython.longlong) -> cython.int:
        if self.tx.open:
            raise Damaged("a transaction begins inside another one")
        self.tx.open = True
        self.tx.begun = self.tx.skipped = self.tx.unsettled = self.tx.delivered = self.tx.held = self.tx._named = False
        self.tx.start = start
        self.tx.time_us = time_us
        self.tx.number += 1
        self.tx.first_seq = self.place.seq
        self.ordinal = self.row_from = 0
        return 0

    def begun(self) -> None:
        """The BEGIN of the transaction at hand came."""
        self.tx.begun = True

    def hold(self) -> None:
        """An XA transaction begins: the cursor gets its row events, which count only when it commits."""
        self.tx.begun = self.tx.held = True

    def release(self) -> None:
        """The XA transaction at hand is prepared."""
        self.tx.held = False

    def count_again(self) -> None:
        """The XA transaction at hand is committed at once: its row events follow, counted from 0."""
        self.ordinal = 0

    def drop_resume(self) -> None:
        """The rest of the transaction that the dump resumes is not delivered: no route wants it."""
        self.resume = 0

    @cython.ccall
    @cython.exceptval(-1)
    def end_transaction(self) -> cython.int:
        """The transaction at hand ends, at `pos`: ENDED if the read is to stop here, else GO."""
        if self.resume:
            raise Damaged(
                f"the transaction ends after {self.ordinal} row events, of which {self.resume >> _INSIDE} were taken"
                " before"
            )
        self.tx.open = self.tx.held = False
        self.ordinal = self.row_from = 0
        if self._mariadb:
            if self.gtids.mariadb is not None:
                self.gtids._domains[self.gtids.mariadb[0]] = self.gtids.mariadb
                self.gtids.mariadb = None
        elif self.gtids.prefix != "" and not self.tx.skipped:
            if self.gtids.number == self.gtids._run_last + 1 and self.gtids._run_prefix == self.gtids.prefix:
                self.gtids._run_last += 1
            else:
                if self.gtids._run_prefix is not None:
                    self.gtids._runs.append((self.gtids._run_prefix, self.gtids._run_first, self.gtids._run_last))
                self.gtids._run_prefix = self.gtids.prefix
                self.gtids._run_first = self.gtids._run_last = self.gtids.number
        self.tx.skipped = False
        if (
            self.limits.stop_soon
            or self.enough()
            or (self.limits.stop_offset >= 0 and self.pos >= self.limits.stop_offset)
        ):
            return _ENDED
        return _GO

    def end_with_event(self) -> int:
        """The event at hand ends the transaction: now, or, in a payload, when the payload ends. ENDED or GO."""
        if self.event.inner and self._payload is not None:
            return self._end_payload()
        return self.end_transaction()

    @cython.cfunc
    @cython.exceptval(-1)
    def _end_payload(self) -> cython.int:
        payload: _Payload = cython.cast(_Payload, self._payload)
        payload.ends = True
        return _GO

    def drop_transaction(self) -> None:
        """The transaction at hand was never committed: forget it, and its GTID."""
        self.tx.open = self.tx.begun = self.tx.skipped = self.tx.unsettled = self.tx.held = False
        self.ordinal = self.row_from = 0
        self.gtids.mariadb = None
        self.gtids.prefix, self.gtids.number, self.gtids._prefix_bytes = "", 0, b""
        self.gtids._free_to = 0  # the next GTID may be another server's: look it up

    # ---- rows ----

    @cython.ccall
    def name_transaction(self) -> None:
        """Tell `place` about the transaction at hand, once, before its first row."""
        if self.tx._named:
            return
        self.tx._named = True
        if self.gtids.mariadb is not None:
            domain, server, number = self.gtids.mariadb
            self.place.transaction(f"{domain}-{server}-", self.tx.time_us, number)
        elif self.gtids.prefix != "":
            self.place.transaction(self.gtids._head, self.tx.time_us, self.gtids.number)
        else:
            self.place.transaction(None, self.tx.time_us)

    def place_event(self) -> None:
        """Tell `place` about the event at hand, which becomes a change although it is no row event."""
        self.name_transaction()
        self.place.pos = self.event.start

    def take_seq(self) -> int:
        """Use up one `_seq`."""
        seq = self.place.seq
        self.place.seq = seq + 1
        return seq

    @cython.cfunc
    @cython.exceptval(-1)
    def _rows(
        self, table: MappedTable, kind: cython.int, p: cython.p_uchar, body: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Take a row event of a routed table; after FULL and FAULT it comes again."""
        budget: cython.longlong
        first: cython.longlong = self.row_from
        passed: cython.longlong
        place: Place = self.place
        before: cython.longlong = place.seq
        if not self._checked:
            if table.guard is not None:
                if table._asked != self.tx.number:
                    table._asked = self.tx.number
                    table._wanted = bool(table.guard(table))
                if not table._wanted:
                    return self.pass_over()
            self.limits.bytes_taken += end - body
            if not self.tx._named:
                self.name_transaction()
            self._row_before = place.row
        else:
            place.row = self._row_before
        if table.decoder is None:
            table.decoder = table.make_decoder(table)
        place.pos = self.event.start
        budget = self.limits.max_rows - place.seq
        if self.resume:
            if self.ordinal < self.resume >> _INSIDE:
                first = _NEVER
                budget = -1
            else:
                first = self.row_from = self.resume & ((1 << _INSIDE) - 1)
                self.resume = 0
                self.tx.delivered = True
        if budget >= 0:
            budget += first
        try:
            if cython.compiled:
                passed = decode(table.decoder, p + body, end - body, kind, first, budget)
            else:
                passed = table.decoder.rows(kind, memoryview(p)[body:end], first, budget)
                if table.decoder.ended:
                    passed = -1
        except Damaged as error:
            self._checked = True
            self.faulted, self.error, self.fault_seq = table, error, before
            return _FAULT
        if passed >= 0:
            self._checked = True
            self.row_from = passed
            self.tx.delivered = True
            return _FULL
        self.tx.delivered = True
        self.pass_over()
        if (
            place.seq >= self.limits.max_rows
            or self.limits.bytes_taken >= self.limits.max_bytes
            or place.made >= self.limits.max_bytes
        ):
            self.event.type = kind
            return _FULL_TAKEN
        return _GO

    @cython.ccall
    @cython.exceptval(-1)
    def pass_over(self) -> cython.int:
        """Count the row event at hand as taken whole, also if its table has no route (any more)."""
        self._checked = False
        self.row_from = 0
        self.ordinal += 1
        if self.resume and self.ordinal << _INSIDE >= self.resume:
            self.resume = 0
            self.tx.delivered = True
        return _GO

    def give_rows(self, table: MappedTable, event_type: int, body: bytes | bytearray) -> int:
        """Decode a row event that is not in the buffer: a decompressed one, or one of an XA transaction."""
        return self._rows(table, event_type, body, 0, len(body))
