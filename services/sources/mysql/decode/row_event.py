# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="attr-defined, no-any-return, untyped-decorator, misc, valid-type"
# mypy: disable-error-code="name-defined, import-untyped, no-untyped-call"
#   (Cython's shadow module has no types for pointers, and the decorators are untyped)
"""Row events of the binlog, from an event's body to Arrow. result.py states the promises of both decoders.

Each row gets the META_FIELDS of common/schema.py from `Place`, which binlog/scanner.py moves on. A batch has its own
dictionaries of GTIDs and file names.
"""

from __future__ import annotations

import array
from typing import Any

import cython
import pyarrow as pa

from cutline.common.schema import FILE, GTID, META_FIELDS, OP, TABLE, TableSchema
from cutline.services.sources.mysql.damage import Damaged, PartialImage
from cutline.services.sources.mysql.decode.codes import OPS
from cutline.services.sources.mysql.decode.row_plan import layout_of, plan_of_event

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_Resize
else:
    from cutline.services.sources.mysql.decode.arena import put_null
    from cutline.services.sources.mysql.decode.codes import (
        C_FIX,
        C_STRIDE,
        C_VALID,
        CORRUPT,
        E_DELETE_ROWS,
        E_DELETE_ROWS_V1,
        E_UPDATE_ROWS,
        E_UPDATE_ROWS_V1,
        E_WRITE_ROWS,
        E_WRITE_ROWS_V1,
        FULL,
        KEY_CHANGED,
        L_I8,
        L_I32,
        L_I64,
        L_VAR,
        M_COUNT,
        M_FILE,
        M_GTID,
        M_OP,
        M_POS,
        M_ROW,
        M_SEQ,
        M_TS,
        N_2_BYTES,
        N_NULL,
        OK,
        OP_BEFORE,
        OP_DELETE,
        OP_INSERT,
        OP_TRUNCATE,
        OP_UPDATE,
        S_DEST,
        S_KEY,
        S_KEY_AT,
        S_KEY_N,
        S_PREFIX,
        S_SIZE,
        S_STRIDE,
        V_NULL,
        V_SET,
    )
    from cutline.services.sources.mysql.decode.memory import copy, le
    from cutline.services.sources.mysql.decode.values import ValueDecoder, store

COMPILED: bool = cython.compiled
"""Whether this module runs as C."""


@cython.cclass
class Place:
    """Where the stream is: the META_FIELDS of the next rows. A scanner has one, shared by its dump's EventDecoders.

    `seq` is `_seq` of the next row, `row` the number of the next row change in its transaction, `pos` where the event
    at hand starts in `file`. The scanner calls `transaction` before a transaction's first row, and sets `pos` at each
    row event; the decoders add to `seq` for each row they give and to `row` for each row change they decode or skip.
    They add to `made` the memory of these rows, which may be much more than the event's bytes, and stop inside an event
    once `made` reaches `most`. (Fields: row_event.pxd.)
    """

    def __init__(self, seq: int = 0) -> None:
        """Start with this `_seq`."""
        self._file, self._gtid = "", b""
        self._transaction = self._file_number = 0
        self.seq, self.row, self.pos, self._ts, self._number = seq, 0, 0, 0, -1
        self.made, self.most = 0, 1 << 62

    @cython.ccall
    def transaction(self, gtid: str | None, ts: cython.longlong, number: cython.longlong = -1) -> None:
        """Start a transaction: its GTID (None if it has none; `number` is appended unless it is below 0) and its commit
        time in microseconds. `row` starts at 0.
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
class EventDecoder(ValueDecoder):
    """Row events of one table, as one TABLE_MAP describes them, to Arrow.

    Made from the body of a TABLE_MAP event (after the 19 bytes of header, without checksum) and the schema that the
    table has at that place of the stream; what it masks comes in clear. The first 8 bytes of the body (table id, flags)
    do not describe the table: keep decoders by `(schema.hash, body[8:])`, and one serves however often the server
    repeats the map. Columns are matched by name.

    If `faults` is not empty, the decoder can't be used (see `plan_of_event` in row_plan.py). With those of its bases it
    has more than 25 fields, for the reason that Arena gives.
    """

    _schema: Any
    _table: Any
    _place: Place
    _before: cython.bint
    _faults: tuple[str, ...]
    _gtids: bytearray  # the texts of this batch
    _gtid_ends: list[int]  # where each starts and ends
    _files: list[Any]
    _noted_transaction: cython.longlong  # whose GTID is in the dictionary, and which file
    _noted_file: cython.longlong
    _last_file: cython.int
    _last_gtid: cython.int
    _ended: cython.bint
    _meta: cython.Py_ssize_t  # index of the first META column
    _row_bytes: cython.longlong  # of each row, besides its texts and bytes
    # The two images of each change in the event at hand (an insert or a delete has the first only): where the bitmap of
    # the columns that it has starts in the body (-1: it has all), and how many these are.
    _present: cython.Py_ssize_t[2]
    _width: cython.Py_ssize_t[2]

    def __init__(self, table_map_body: bytes, schema: TableSchema, place: Place, before: bool = False) -> None:
        """Plan the decoding; with `before`, updates also give `-U` with the before-image."""
        self._schema, self._place, self._before = schema, place, before
        self._gtids, self._gtid_ends, self._files = bytearray(), [0], []
        self._noted_transaction = self._noted_file = -1
        self._last_file = self._last_gtid = -1
        self._ended = True
        self._present = [-1, -1]
        self._width = [0, 0]
        self._meta = len(schema.captured)
        plan = plan_of_event(table_map_body, schema)
        self._faults = plan.faults
        types = [field.type for field in schema.clear.arrow]
        layouts = [layout_of(kind) for kind in types]
        layouts += [L_I8, L_I64, L_I32, L_I64, L_I32, L_I32, L_I64]
        self._row_bytes = sum(1 + (4 if layout == L_VAR else max(1, layout)) for layout in layouts)
        all_names = [*schema.clear.arrow.names, *(field.name for field in META_FIELDS[:-1])]
        self._start(all_names, types, layouts)
        self._follow_plan(plan)
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
        self._table = pa.schema([*schema.clear.arrow, *fields])

    @property
    def faults(self) -> tuple[str, ...]:
        """Why this decoder can't be used; empty if it can."""
        return self._faults

    @property
    def waiting(self) -> int:
        """Complete rows that wait for `take`."""
        return self.row_count

    @property
    def ended(self) -> bool:
        """Whether the last `rows` reached the end of its event."""
        return self._ended

    @property
    def schema(self) -> TableSchema:
        """The schema it decodes to."""
        schema: TableSchema = self._schema
        return schema

    def rows(self, event_type: int, body: bytes | memoryview, row_from: int = 0, row_to: int = -1) -> int:
        """Decode the row changes row_from <= i < row_to (-1: to the end) of one row event.

        `event_type`: rows written, updated or deleted, of version 1 or 2; others are Damaged. `body` is what follows
        the event's header, without checksum, uncompressed. An insert gives `+I`, a delete `-D`, an update `+U` with the
        after-image (after a `-U`, if asked for); if the bytes of the identity key differ, an update gives `-D` with the
        before-image and `+I`, both with the same `_row`. Changes before row_from are skipped, but count for `_row`.

        The answer counts the changes decoded and skipped: it is the row_from of the next call for the same event, which
        is needed unless `ended` (also if the place's `most` was reached).

        Raises Damaged with the offset in the body if the event is truncated or corrupt (the rows before it may be
        taken), PartialImage if a row image lacks columns. A before-image (of a `-D` or `-U`) may lack generated columns
        that are not in the key; they are null then.
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
        """`rows` of the body p[:end]."""
        at: cython.Py_ssize_t
        op: cython.int
        if self._faults:
            raise Damaged(f"table {self.schema.table_id} can't be decoded: {self._faults[0]}")
        if end < 10:
            raise Damaged(f"the row event ends at byte {end}, inside its head")
        if event_type == E_WRITE_ROWS or event_type == E_WRITE_ROWS_V1:
            op = OP_INSERT
        elif event_type == E_UPDATE_ROWS or event_type == E_UPDATE_ROWS_V1:
            op = OP_UPDATE
        elif event_type == E_DELETE_ROWS or event_type == E_DELETE_ROWS_V1:
            op = OP_DELETE
        else:
            raise Damaged(f"an event of type {event_type} is not a row event that can be decoded")
        at = self._head(p, end, op, event_type >= E_WRITE_ROWS)
        return self._changes(p, at, end, op, first, last)

    def truncate(self) -> None:
        """Append a `t` row (TRUNCATE TABLE), with null columns."""
        c: cython.Py_ssize_t
        if self.row_count >= self.capacity:
            self.full_column = -1
            self._grow()
        for c in range(self._meta):
            put_null(self, c, self.row_count)
        self._note()
        self._finish_row(OP_TRUNCATE)
        self._place.row += 1

    def take(self) -> pa.RecordBatch | None:
        """The rows so far as one batch: the schema's columns, then META_FIELDS (texts as dictionaries); None if there
        are no rows. Damaged with the event's file and offset if a text is not UTF-8; then the decoder can't be used.
        """
        if not self.row_count:
            return None
        rows: int = self.row_count
        meta: int = self._meta
        arrays = [self._array(c, kind) for c, kind in enumerate(self.types)]
        schema: Any = self._schema
        integers = (pa.int8(), pa.int64(), pa.int32(), pa.int64(), pa.int32(), pa.int32(), META_FIELDS[M_TS].type)
        for i, kind in enumerate(integers):
            arrays.append(self._array(meta + i, kind))
        texts = (
            (M_OP, _strings(list(OPS))),
            (M_FILE, _strings(self._files)),
            (M_GTID, _strings_of(self._gtids, array.array("i", self._gtid_ends))),
        )
        for i, values in texts:
            arrays[meta + i] = pa.DictionaryArray.from_arrays(arrays[meta + i], values)
        zeros = pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))], 0)
        arrays.append(pa.DictionaryArray.from_arrays(zeros, _strings([schema.table_id])))
        self._clear()
        self._gtids, self._gtid_ends, self._files = bytearray(), [0], []
        self._noted_transaction = self._noted_file = -1
        return pa.RecordBatch.from_arrays(arrays, schema=self._table)

    def _where(self, row: int) -> str:
        """The file and offset of the row's event."""
        plan: Any = self.column_plan
        base: int = self._meta * C_STRIDE
        file = memoryview(self.memory).cast("i")[plan[base + M_FILE * C_STRIDE + C_FIX] + row]
        offset = memoryview(self.memory).cast("q")[plan[base + M_POS * C_STRIDE + C_FIX] + row]
        return f"{self._files[file]}:{offset}"

    @cython.cfunc
    def _note(self) -> None:
        """Add the place's file and GTID to this batch's dictionaries if they are new."""
        place: Place = self._place
        if place._file_number != self._noted_file:
            self._noted_file = place._file_number
            self._files.append(place._file)
            self._last_file = len(self._files) - 1
        if place._transaction != self._noted_transaction:
            self._noted_transaction = place._transaction
            self._last_gtid = -1
            if place._gtid:
                _append(self._gtids, place._gtid, place._number)
                self._gtid_ends.append(len(self._gtids))
                self._last_gtid = len(self._gtid_ends) - 2

    @cython.cfunc
    @cython.exceptval(check=True)
    def _head(self, p: cython.p_uchar, end: cython.Py_ssize_t, op: cython.int, v2: cython.bint) -> cython.Py_ssize_t:
        """Read the event's head, and check that its images have the columns they need; the answer is where the images
        start.
        """
        at: cython.Py_ssize_t = 8
        n: cython.Py_ssize_t
        width: cython.Py_ssize_t
        i: cython.Py_ssize_t
        image: cython.int
        if v2:
            n = le(p, at, 2)
            if n < 2 or n > end - at:
                raise Damaged(f"the row event's extra data at byte {at} has a wrong length")
            at += n
        if at >= end:
            raise Damaged(f"the row event ends at byte {at}, inside its head")
        width = p[at]
        at += 1
        if width == N_2_BYTES and end - at >= 2:
            width = le(p, at, 2)
            at += 2
        elif width >= N_NULL:
            raise Damaged(f"the row event's number of columns at byte {at - 1} is corrupt")
        if width != self.source_count:
            raise Damaged(f"the row event has {width} columns at byte {at}, its table map {self.source_count}")
        n = (width + 7) // 8
        for image in range(2 if op == OP_UPDATE else 1):
            if n > end - at:
                raise Damaged(f"the row event ends at byte {end}, inside its head")
            self._present[image] = -1
            self._width[image] = width
            for i in range(width):
                if p[at + i // 8] != 0xFF and not (p[at + i // 8] >> (i % 8)) & 1:
                    self._check_lack(i, op == OP_DELETE or (op == OP_UPDATE and image == 0))
                    self._present[image] = at
                    self._width[image] -= 1
            at += n
        return at

    @cython.cfunc
    @cython.exceptval(check=True)
    def _check_lack(self, i: cython.Py_ssize_t, before: cython.bint) -> None:
        """PartialImage unless an image can do without source column `i`: the catalogue hides it, or it is generated,
        not in the key, and the image is a before-image. (MariaDB 11.8.9 leaves both out of updates and deletes.)
        """
        column: cython.Py_ssize_t = self.sources[i * S_STRIDE + S_DEST]
        if column < 0:
            return
        schema: Any = self._schema
        if not schema.captured[column].generated:
            raise PartialImage(
                f"a row image of {schema.table_id} lacks column {self.source_names[i]}:"
                " binlog_row_image must be FULL, in every session"
            )
        if not before or self.sources[i * S_STRIDE + S_KEY]:
            raise PartialImage(
                f"a row image of {schema.table_id} lacks the generated column {self.source_names[i]}, which some"
                " versions of MariaDB (11.8.9 is one) do not log: exclude the table, or copy it from another version"
            )

    @cython.cfunc
    @cython.exceptval(check=True)
    def _changes(
        self,
        p: cython.p_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        op: cython.int,
        first: cython.longlong,
        last: cython.longlong,
    ) -> cython.longlong:
        """Decode the row changes p[at:end]; how many were decoded or skipped."""
        passed: cython.longlong = 0
        done: cython.int = OK
        place: Place = self._place
        self._note()
        self._ended = False
        while True:
            if end - at > 65536:
                with cython.nogil:
                    while at < end and passed != last and place.made < place.most:
                        done = self._change(p, at, end, op, passed >= first)
                        if done != OK:
                            break
                        at = self.bad_at
                        passed += 1
                        place.row += 1
            else:
                # short events keep the GIL: releasing and taking it would cost more than the work
                while at < end and passed != last and place.made < place.most:
                    done = self._change(p, at, end, op, passed >= first)
                    if done != OK:
                        break
                    at = self.bad_at
                    passed += 1
                    place.row += 1
            if done == OK:
                break
            if done == CORRUPT:
                name = self.source_names[self.bad_source] if self.bad_source < self.source_count else "?"
                raise Damaged(
                    f"row {passed} of an event of {self.schema.table_id} can't be read"
                    f" at column {name}, byte {self.bad_at}"
                )
            self._grow()
            done = OK
        self._ended = at >= end
        return passed

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _change(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, op: cython.int, wanted: cython.bint
    ) -> cython.int:
        """Decode the row change that starts at `at`, or skip it; sets `bad_at` to its end."""
        done: cython.int
        after: cython.Py_ssize_t
        changed: cython.bint
        if not wanted:
            done = self._skip(p, at, end, 0)
            if done == OK and op == OP_UPDATE:
                done = self._skip(p, self.bad_at, end, 1)
            return done
        if self.row_count + 2 > self.capacity:
            self.full_column = -1
            return FULL
        if op != OP_UPDATE:
            done = self._image(p, at, end, 0, self.row_count, False)
            if done == OK:
                self._finish_row(op)
            return done
        done = self._skip(p, at, end, 0)
        if done != OK:
            return done
        after = self.bad_at
        done = self._image(p, after, end, 1, self.row_count, True)
        if done == OK and not self._before:
            self._finish_row(OP_UPDATE)
            return OK
        if done == FULL or done == CORRUPT:
            return done
        # the key changed, or before-images are asked for: the before-image takes this row, the after-image the next
        changed = done == KEY_CHANGED
        done = self._image(p, at, end, 0, self.row_count, False)
        if done == OK:
            done = self._image(p, after, end, 1, self.row_count + 1, False)
        if done != OK:
            return done
        self._finish_row(OP_DELETE if changed else OP_BEFORE)
        self._finish_row(OP_INSERT if changed else OP_UPDATE)
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _finish_row(self, op: cython.int) -> cython.void:
        """Write the row's META values and count it."""
        q: cython.p_longlong = self.columns
        base: cython.Py_ssize_t = self._meta * C_STRIDE
        r: cython.Py_ssize_t = self.row_count
        i: cython.Py_ssize_t
        for i in range(M_COUNT):
            self.p8[q[base + i * C_STRIDE + C_VALID] + r] = V_SET
        self.p8[q[base + M_OP * C_STRIDE + C_FIX] + r] = op
        self.p64[q[base + M_SEQ * C_STRIDE + C_FIX] + r] = self._place.seq
        self.p32[q[base + M_FILE * C_STRIDE + C_FIX] + r] = self._last_file
        self.p64[q[base + M_POS * C_STRIDE + C_FIX] + r] = self._place.pos
        self.p32[q[base + M_ROW * C_STRIDE + C_FIX] + r] = self._place.row
        self.p32[q[base + M_GTID * C_STRIDE + C_FIX] + r] = self._last_gtid
        if self._last_gtid < 0:
            self.p8[q[base + M_GTID * C_STRIDE + C_VALID] + r] = V_NULL
        self.p64[q[base + M_TS * C_STRIDE + C_FIX] + r] = self._place._ts
        self._place.seq += 1
        self._place.made += self._row_bytes + self.data_bytes
        self.data_bytes = 0
        self.row_count = r + 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _skip(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, which: cython.int) -> cython.int:
        """Skip a row image (0 or 1: the change's first or second), but note where its key values are; sets `bad_at` to
        its end.
        """
        s: cython.p_longlong = self.sources
        i: cython.Py_ssize_t
        n: cython.Py_ssize_t
        k: cython.Py_ssize_t
        length: cython.ulonglong
        columns: cython.Py_ssize_t = self.source_count
        present: cython.Py_ssize_t = self._present[which]
        bit: cython.Py_ssize_t = at * 8  # of the next column that the image has, among the bits that tell nulls
        width: cython.Py_ssize_t = (self._width[which] + 7) // 8
        self.bad_at = at
        self.bad_source = 0
        if width > end - at:
            return CORRUPT
        at += width
        for i in range(columns):
            k = i * S_STRIDE
            if present >= 0 and not (p[present + i // 8] >> (i % 8)) & 1:
                continue
            bit += 1
            if (p[(bit - 1) // 8] >> ((bit - 1) % 8)) & 1:
                s[k + S_KEY_N] = -1
                continue
            self.bad_at = at
            self.bad_source = i
            n = s[k + S_PREFIX]
            if n:
                if n > end - at:
                    return CORRUPT
                length = le(p, at, n)
                at += n
                if length > cython.cast(cython.ulonglong, end - at):
                    return CORRUPT
                n = length
            else:
                n = s[k + S_SIZE]
                if n > end - at:
                    return CORRUPT
            s[k + S_KEY_AT] = at
            s[k + S_KEY_N] = n
            at += n
        self.bad_at = at
        return OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _image(
        self,
        p: cython.p_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        which: cython.int,
        r: cython.Py_ssize_t,
        compare: cython.bint,
    ) -> cython.int:
        """Decode a row image (0 or 1: the change's first or second) into row r; sets `bad_at` to its end. With
        `compare`, KEY_CHANGED if the bytes of its key differ from those that `_skip` noted.
        """
        s: cython.p_longlong = self.sources
        i: cython.Py_ssize_t
        j: cython.Py_ssize_t
        n: cython.Py_ssize_t
        k: cython.Py_ssize_t
        length: cython.ulonglong
        columns: cython.Py_ssize_t = self.source_count
        present: cython.Py_ssize_t = self._present[which]
        bit: cython.Py_ssize_t = at * 8  # of the next column that the image has, among the bits that tell nulls
        width: cython.Py_ssize_t = (self._width[which] + 7) // 8
        changed: cython.bint = False
        done: cython.int
        self.bad_at = at
        self.bad_source = 0
        if width > end - at:
            return CORRUPT
        at += width
        for i in range(columns):
            k = i * S_STRIDE
            if present >= 0 and not (p[present + i // 8] >> (i % 8)) & 1:
                if s[k + S_DEST] >= 0:
                    put_null(self, s[k + S_DEST], r)
                continue
            bit += 1
            if (p[(bit - 1) // 8] >> ((bit - 1) % 8)) & 1:
                if s[k + S_DEST] >= 0:
                    put_null(self, s[k + S_DEST], r)
                if compare and s[k + S_KEY] and s[k + S_KEY_N] >= 0:
                    changed = True
                continue
            self.bad_at = at
            self.bad_source = i
            n = s[k + S_PREFIX]
            if n:
                if n > end - at:
                    return CORRUPT
                length = le(p, at, n)
                at += n
                if length > cython.cast(cython.ulonglong, end - at):
                    return CORRUPT
                n = length
            else:
                n = s[k + S_SIZE]
                if n > end - at:
                    return CORRUPT
            if s[k + S_DEST] >= 0:
                done = store(self, p, at, n, k, r)
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
        self.bad_at = at
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
    """`EventDecoder.rows` in C, for scanner.py: the row_from of the next call for the event, -1 at its end."""
    events: EventDecoder = decoder
    passed: cython.longlong = events._decode(p, size, event_type, first, last)
    return -1 if events._ended else passed


def _strings(values: list[str]) -> pa.Array:
    """Short texts to Arrow. (`pa.array` would import pandas, if it is installed, to see whether a list is pandas's.)"""
    texts = bytearray()
    ends = array.array("i", [0])
    for value in values:
        texts += value.encode()
        ends.append(len(texts))
    return _strings_of(texts, ends)


def _strings_of(texts: bytearray, ends: array.array[int]) -> pa.Array:
    """Texts in one buffer to Arrow, without a copy: neither argument may be changed afterwards."""
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(texts)])


@cython.cfunc
def _append(texts: bytearray, text: bytes, number: cython.longlong) -> None:
    """Append a text, and the digits of a number unless it is below 0."""
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
        copy(p, used, q, 0, size)
        if number >= 0:
            while end > used + size:
                end -= 1
                p[end] = ord("0") + number % 10
                number = number // 10
    else:
        texts += text if number < 0 else b"%b%d" % (text, number)
