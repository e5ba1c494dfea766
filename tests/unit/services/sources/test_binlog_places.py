"""Where a cursor stands: in a transaction, behind a reconnect, over 4 GiB, at damage, at a marker."""

from __future__ import annotations

import random
import struct
import time
import uuid
import zlib
from dataclasses import replace

import pyarrow as pa
import pytest

from cutline.common.errors import ProtocolError, SourceLost
from cutline.common.gtids import GtidSet
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.host import gave_up
from cutline.common.mesh.machine import MessageReceived, SavePart
from cutline.common.mesh.messages import IncludeTable, Marker, Message
from cutline.common.positions import FilePosition, High, Low, Position
from cutline.services.reader.events import ChangesRead, ReadChanges
from cutline.services.reader.machine import Reader
from cutline.services.sources.contract import GenerationEnded, Route
from cutline.services.sources.mysql.binlog import routes as routes_module
from cutline.services.sources.mysql.binlog import scanner
from cutline.services.sources.mysql.binlog.cursor import Stream
from cutline.services.sources.mysql.binlog.event_types import (
    ARTIFICIAL_FLAG,
    FORMAT_DESCRIPTION,
    GTID_TAGGED,
    HEARTBEAT_V2,
    MARIADB_GTID,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    QUERY_COMPRESSED,
    ROTATE,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    WRITE_ROWS,
    WRITE_ROWS_COMPRESSED,
    XA_PREPARE,
    XID,
)
from cutline.services.sources.mysql.binlog.progress import Progress
from cutline.services.sources.mysql.binlog.routes import Routes
from cutline.services.sources.mysql.binlog.scanner import Scanner
from cutline.services.sources.mysql.binlog.statements import Statements
from cutline.services.sources.mysql.damage import Damaged
from tests.support.binlog_log import MAPS, TOO_LARGE, FedCursor, Log, T, U, heartbeat, inner, inserted, keys


@pytest.mark.parametrize("kind", [PARTIAL_UPDATE_ROWS, WRITE_ROWS])
def test_what_can_not_be_read_is_refused_at_the_commit_of_an_xa_transaction_too(kind: int) -> None:
    log = Log(checksum=False).gtid(1).query("XA START X'61',X'62',1")
    log.event(TABLE_MAP, MAPS["d.t"]).event(TABLE_MAP, MAPS["d.u"]).event(WRITE_ROWS, inserted("d.u", 1))
    if kind == PARTIAL_UPDATE_ROWS:
        log.event(kind, inserted("d.t", 1))
    else:  # one row over 64 MiB
        log.large(kind, TOO_LARGE, inserted("d.t", 1))
    log.event(WRITE_ROWS, inserted("d.u", 2)).query("XA END X'61',X'62',1")
    log.event(XA_PREPARE, b"\0" + struct.pack("<iii", 1, 1, 1) + b"ab")
    log.transaction(2).gtid(3).query("XA COMMIT X'61',X'62',1")
    dump = FedCursor(log)
    got = dump.read(T, U)
    assert [fault.table_id for fault in got.faults] == ["d.t"]
    assert str(got.faults[0].cause).startswith("d.t has, at binlog.000001:")
    assert ("partial update" in str(got.faults[0].cause)) == (kind == PARTIAL_UPDATE_ROWS)
    assert keys(got, "d.u") == [1, 2]
    assert got.position.offset == log.at


def test_rows_that_an_earlier_read_gave_are_undone_by_a_rollback_behind_a_reconnect() -> None:
    log = Log().begin(1).event(TABLE_MAP, MAPS["d.t"]).event(TABLE_MAP, MAPS["d.u"])
    log.event(WRITE_ROWS, inserted("d.t", 1))
    log.query("ROLLBACK TO `s`").event(WRITE_ROWS, inserted("d.u", 1)).event(XID, bytes(8))
    for given in (False, True):
        dump = FedCursor(log)
        if given:  # up to the second row event
            dump.begin_at(replace(dump.at, rows=1 << scanner.INSIDE_BITS))
        got = dump.read(T, U)
        assert {(fault.table_id, type(fault)) for fault in got.faults} >= {("d.t", GenerationEnded)}


def test_an_xa_transaction_that_went_back_to_a_savepoint_restarts_its_tables_at_its_commit() -> None:
    log = Log().gtid(1).query("XA START X'61',X'62',1")
    log.event(TABLE_MAP, MAPS["d.t"]).event(WRITE_ROWS, inserted("d.t", 1))
    log.query("SAVEPOINT `s`").event(WRITE_ROWS, inserted("d.t", 2)).query("ROLLBACK TO `s`")
    log.query("XA END X'61',X'62',1").event(XA_PREPARE, b"\0" + struct.pack("<iii", 1, 1, 1) + b"ab")
    log.transaction(2).gtid(3).query("XA COMMIT X'61',X'62',1")
    got = FedCursor(log).read(T, U)
    assert [(fault.table_id, type(fault)) for fault in got.faults] == [("d.t", GenerationEnded)]


def one_transaction(form: str) -> Log:
    """Rows 0 to 9 of d.t in two events, behind and between events of d.u, which nobody asks for."""
    unrouted, routed = inserted("d.u", *range(5)), [inserted("d.t", *range(6)), inserted("d.t", *range(6, 10))]
    events = [
        (TABLE_MAP, MAPS["d.t"]),
        (TABLE_MAP, MAPS["d.u"]),
        (WRITE_ROWS, unrouted),
        (WRITE_ROWS, unrouted),
        (WRITE_ROWS, routed[0]),
    ]
    events += [(WRITE_ROWS, unrouted), (WRITE_ROWS, routed[1])]
    log = Log()
    if form == "payload":
        whole = b"".join(inner(kind, body) for kind, body in [*events, (XID, bytes(8))])
        packed = pa.compress(
            inner(QUERY, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0BEGIN") + whole, "zstd", asbytes=True
        )
        return log.gtid(1).event(TRANSACTION_PAYLOAD, b"\2\1\0\0" + packed)
    if form == "xa":
        log.gtid(1).query("XA START X'61',X'62',1")
        for kind, body in events:
            log.event(kind, body)
        log.query("XA END X'61',X'62',1").event(XA_PREPARE, b"\0" + struct.pack("<iii", 1, 1, 1) + b"ab")
        return log.gtid(2).query("XA COMMIT X'61',X'62',1")
    log.begin(1)
    for kind, body in events:
        if form == "compressed" and kind == WRITE_ROWS:
            kind = WRITE_ROWS_COMPRESSED
            body = body[:12] + b"\x82" + len(body[12:]).to_bytes(2, "big") + zlib.compress(body[12:])
        log.event(kind, body)
    return log.event(XID, bytes(8))


def packets(log: Log) -> list[int]:
    """Where each packet of a dump ends, from 0 on."""
    ends = [0]
    while ends[-1] < len(log.bytes):
        ends.append(ends[-1] + 4 + int.from_bytes(log.bytes[ends[-1] : ends[-1] + 3], "little"))
    return ends


def reconnected(log: Log, at: Position, came: bytes, first: FedCursor) -> FedCursor:
    """A cursor that begins anew at a place inside of the last transaction of the log, and what has come of it."""
    beginning = Log(at=at.offset)
    beginning.bytes = came
    dump = FedCursor(beginning)
    dump.begin_at(at)
    dump.end = High(server="s", file="binlog.000001", offset=log.at)
    # else they are read from the server
    dump.stream._replay._prepared._prepared.update(first.stream._replay._prepared._prepared)
    return dump


@pytest.mark.parametrize("form", ["plain", "payload", "compressed", "xa"])
@pytest.mark.parametrize("taken", [1, 6, 9])
def test_while_rows_are_to_be_skipped_again_the_position_stays_where_it_was(form: str, taken: int) -> None:
    """1. A read ends inside the transaction. 2. The cursor connects anew, and a read is over after any byte that it
    gets. 3. It stands where the first ended, or later, and from there each row comes once; 4. also to who restores that
    place."""
    log = one_transaction(form)
    first = FedCursor(log)
    before = first.read(T, max_rows=taken)
    begin = before.position
    assert (keys(before, "d.t"), begin.inside) == (list(range(taken)), True)
    ends = packets(log)
    start = ends[-3] if form == "xa" else 0
    bodies = log.bytes[start:]
    for cut in sorted({cut - start for end in ends for cut in (end, end - 9) if start <= cut < len(log.bytes)}):
        numbered = renumbered(bodies)
        dump = reconnected(log, begin, numbered[:cut], first)
        early = dump.read(T, max_rows=100, wait=0.01)
        assert early.position.inside
        assert early.position.not_before(begin), cut
        rows = keys(early, "d.t")
        for after, sent in ((dump, numbered[cut:]), (reconnected(log, early.position, numbered, first), b"")):
            after.server_end.sendall(sent)
            late = after.read(T, max_rows=100)
            assert rows + keys(late, "d.t") == list(range(taken, 10)), cut
            assert (late.position.offset, late.position.rows) == (log.at, 0)


def renumbered(data: bytes) -> bytes:
    """Packets as the first ones of a dump."""
    log, at = Log(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        log.packet(data[at + 4 : at + 4 + size])
        at += 4 + size
    return log.bytes


def test_a_damaged_event_in_which_a_read_goes_on_does_not_take_the_position_back() -> None:
    log = Log(checksum=False).begin(1).event(TABLE_MAP, MAPS["d.t"])
    log.event(WRITE_ROWS, inserted("d.t", *range(4)) + b"\xfc\1\2").event(XID, bytes(8))
    begin = Position(server="s", file="binlog.000001", offset=4, rows=2)
    dump = reconnected(log, begin, log.bytes, FedCursor(Log()))
    dump.scanner.use_checksums(False)
    got = dump.read(T)
    assert [fault.table_id for fault in got.faults] == ["d.t"]
    assert got.position.not_before(begin)
    end = dump.read()
    assert (end.position.offset, end.batches) == (log.at, ())


def test_the_next_generation_of_a_table_that_joins_inside_a_transaction_gets_it_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A read ends inside a transaction that the table's low covers, so the position is its start. 2. The table's
    next generation, whose low does not cover it, joins there. 3. The cursor connects anew: the open dump is past the
    transaction's first row event."""
    log = Log().begin(1).event(TABLE_MAP, MAPS["d.t"]).event(WRITE_ROWS, inserted("d.t", 1, 2))
    sent = len(log.bytes)
    log.event(WRITE_ROWS, inserted("d.t", 3)).event(XID, bytes(8))
    dump, anew = FedCursor(Log()), FedCursor(log)
    monkeypatch.setattr(dump.cursor, "_open", lambda _: anew.stream)
    dump.end = anew.end
    dump.server_end.sendall(log.bytes[:sent])
    old = Route(
        table_id="d.t",
        generation=1,
        schema=T,
        low=dump.low(log.at),
        high=High(server="s", file="binlog.000001", offset=4),
    )
    first = dump.read_routes({"d.t": old}, wait=0.01)
    assert (first.position.offset, first.position.rows) == (4, 0)
    dump.server_end.sendall(log.bytes[sent:])
    got = dump.read_routes({"d.t": replace(old, generation=2, low=dump.low(4))})
    assert (keys(got, "d.t"), got.position.offset) == ([1, 2, 3], log.at)


def test_a_dump_that_begins_after_the_file_of_a_transaction_taken_in_part_reports_it_torn() -> None:
    """1. A part of a transaction is taken; a crash tore it. 2. A dump by GTIDs begins in the next file, before which
    no transaction is missing. 3. The part that was taken must not be skipped in the transaction that comes first."""
    log = Log().event(ROTATE, struct.pack("<Q", 4) + b"binlog.000002", flags=ARTIFICIAL_FLAG)
    log.at = 4
    log.begin(1).event(TABLE_MAP, MAPS["d.t"])
    log.event(WRITE_ROWS, inserted("d.t", 1)).event(WRITE_ROWS, inserted("d.t", 2)).event(XID, bytes(8))
    dump = FedCursor(log)
    dump.begin_at(Position(server="s", file="binlog.000001", offset=400, rows=1 << scanner.INSIDE_BITS))
    dump.scanner.start_at("", 4, dump.at.rows)
    dump.end = High(server="s", file="binlog.000002", offset=log.at)
    with pytest.raises(SourceLost, match=r"the transaction at binlog\.000001:400, a part of which was taken"):
        dump.read(T)


def test_a_transaction_that_is_shorter_than_what_was_taken_of_it_is_another_one() -> None:
    log = insert(Log(), 1)
    begin = Position(server="s", file="binlog.000001", offset=4, rows=7 << scanner.INSIDE_BITS)
    dump = reconnected(log, begin, log.bytes, FedCursor(Log()))
    with pytest.raises(SourceLost, match=r"binlog\.000001:4, .* after 1 row events, of which 7 were taken"):
        dump.read(T)


OVER = (1 << 32) + 1000


def insert(log: Log, number: int) -> Log:
    """One transaction with a row of d.t."""
    log.begin(number).event(TABLE_MAP, MAPS["d.t"])
    return log.event(WRITE_ROWS, inserted("d.t", number)).event(XID, bytes(8))


def over_4_gib(log: Log) -> tuple[FedCursor, Scanner]:
    """A cursor that goes on at `OVER`, though its dump begins at the file's start; and its scanner."""
    dump = FedCursor(log)
    dump.at = dump.cursor._at = replace(dump.at, offset=OVER)
    dump.end = High(server="s", file="binlog.000001", offset=OVER + 1)
    return dump, dump.scanner


def test_a_file_that_is_sent_from_its_start_since_a_command_has_32_bits_leaves_the_position_where_it_was() -> None:
    log = insert(Log(), 1)
    dump, it = over_4_gib(log)
    it.discard_before(OVER)
    for _ in range(2):
        got = dump.read(T, wait=0.01)
        assert (got.position.offset, got.batches) == (OVER, ())
    it.move_to(OVER - 100)  # as if 4 GiB had come
    rest = Log(at=OVER)
    rest.number = log.number
    dump.server_end.sendall(insert(rest, 2).bytes)
    got = dump.read(T)
    assert (keys(got, "d.t"), got.position.offset) == ([2], rest.at)


@pytest.mark.parametrize("left_out", [0, 500])
def test_the_first_transaction_that_a_dump_by_gtids_sends_is_not_before_the_place_where_we_stood(left_out: int) -> None:
    """An event has 32 bits of its place, and over 4 GiB may be left out before it."""
    log = insert(Log(at=OVER + left_out), 2)
    dump, it = over_4_gib(log)
    it.expect_from(OVER)
    assert dump.read(T).position.offset == log.at


@pytest.mark.parametrize(("at", "heartbeat_at"), [(OVER - 2000, OVER), (4, 3 << 30), (OVER, OVER + (3 << 30))])
def test_a_heartbeats_place_goes_on_over_4_gib_too(at: int, heartbeat_at: int) -> None:
    dump, _ = over_4_gib(Log(checksum=False))
    dump.begin_at(replace(dump.at, offset=at))
    dump.end = replace(dump.end, offset=heartbeat_at)
    log, until = Log(), time.monotonic() + 5
    while dump.at.offset == at and time.monotonic() < until:
        log.bytes = b""
        heartbeat(log, heartbeat_at)
        dump.server_end.sendall(log.bytes)
        dump.read(T, wait=0.01)
    assert dump.at.offset == heartbeat_at


def test_a_position_that_goes_back_is_an_error_of_ours_with_both_positions() -> None:
    dump = FedCursor(Log())
    dump.at = dump.cursor._at = replace(dump.at, offset=9999)
    dump.end = High(server="s", file="binlog.000001", offset=1 << 20)
    with pytest.raises(ProtocolError, match=r"went back from binlog\.000001:9999 to binlog\.000001:4;"):
        dump.read(T, wait=0.0)
    assert dump.cursor._stream is None  # it stands nowhere


# --- damage, and what is a mistake of ours ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError, OverflowError, struct.error, ZeroDivisionError])
@pytest.mark.parametrize(
    ("part", "where"),
    [
        (Routes, "map_table"),
        (Routes, "evolve"),
        (Progress, "position"),
        (Stream, "changes"),
        (Routes, "begin"),
        (Statements, "change_tables"),
    ],
)
def test_a_mistake_of_ours_is_no_damage_of_the_source(
    error: type[Exception], part: type, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes as it is, with the place in a note; the service says that it is a bug, and halts."""
    dump = FedCursor(insert(Log(), 1).gtid(2).query("ALTER TABLE d.t ADD n INT"))

    def broken(*_: object, **__: object) -> object:
        raise error("ours")

    monkeypatch.setattr(part, where, broken)
    with pytest.raises(error, match="ours") as raised:
        dump.read(T)
    assert any("binlog.000001:" in note for note in raised.value.__notes__)
    assert dump.cursor._stream is None
    report = gave_up(7, raised.value)
    assert (report.epoch, report.halts) == (7, True)
    assert "a bug of Cutline" in str(report.cause)
    assert error.__name__ in str(report.cause)
    assert "binlog.000001:" in str(report.cause)


@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError])
def test_a_mistake_of_a_decoder_is_no_damage_of_its_table(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        """Interpreted, or compiled: what a decoder raises that is not `Damaged` ends the read."""

        def __init__(self, *_: object) -> None:
            raise error("ours")

    monkeypatch.setattr(routes_module, "EventDecoder", Broken)
    with pytest.raises(error, match="ours"):
        FedCursor(insert(Log(), 1)).read(T)


def damaged_events() -> list[tuple[str, Log]]:
    """Events that are cut short, or say what can't be, each behind a right checksum, or where there are none."""
    name = b"binlog.000001"
    header = struct.pack("<IIBHH", 1, 0, 1, 0, 3) + b"\6\xff\0d\0"
    latin = struct.pack("<IIBHH", 1, 0, 1, 0, 7) + b"\4" + struct.pack("<HHH", 54, 8, 8) + b"d\0"  # utf16
    tagged = b"\2\x80\0\2" + b"\3\3" * 16
    return [
        ("a statement's session is cut short", Log().gtid(1).event(QUERY, header[:14])),
        ("a statement has half a character", Log().gtid(1).event(QUERY, latin + b"abc")),
        ("an XA transaction has half a byte", Log().gtid(1).query("XA COMMIT X'616',X'',1")),
        ("an XA transaction has no number", Log().gtid(1).query(f"XA COMMIT X'61',X'',{'9' * 5000}")),
        ("an XA PREPARE is cut short", Log().gtid(1).query("XA START X'61',X'',1").event(XA_PREPARE, b"\0abc")),
        ("a table map is cut short", Log().begin(1).event(TABLE_MAP, MAPS["d.t"][:9])),
        ("a table map has no table", Log().begin(1).event(TABLE_MAP, MAPS["d.t"][:8] + b"\xff\0d")),
        ("a tagged GTID is cut short", Log().event(GTID_TAGGED, tagged)),
        ("a tagged GTID has a tag that is none", Log().event(GTID_TAGGED, b"\2\2\2" + bytes(40))),
        ("a payload's head is cut short", Log().gtid(1).event(TRANSACTION_PAYLOAD, b"\2\xff")),
        ("a payload is cut short", Log().gtid(1).event(TRANSACTION_PAYLOAD, b"\2\xfe\1")),
        ("a compressed statement is none", Log().gtid(1).event(QUERY_COMPRESSED, header[:9] + bytes(4) + b"d\0abc")),
        ("MariaDB's GTID comes from MySQL", Log().event(MARIADB_GTID, struct.pack("<QIB", 1, 0, 0) + bytes(6))),
        ("a rotation names what is no file", Log().event(ROTATE, bytes(8) + b"\xff\xff")),
        ("a rotation names a number that no file has", Log().event(ROTATE, bytes(8) + b"binlog." + b"9" * 5000)),
        ("a rotation leads back", insert(Log(), 1).event(ROTATE, struct.pack("<Q", 4) + name)),
        ("a heartbeat's place has no end", Log().event(HEARTBEAT_V2, b"\1\x0d" + name + b"\2\0")),
        ("a heartbeat's place is no number", Log().event(HEARTBEAT_V2, b"\1\x0d" + name + b"\2\1\xff")),
        (
            "a heartbeat's place is beyond all",
            Log().event(HEARTBEAT_V2, b"\1\x0d" + name + b"\2\x09\xfe" + b"\xff" * 8),
        ),
        ("a format is cut short", Log().event(FORMAT_DESCRIPTION, b"\4\0")),
        ("a row event comes before its table map", Log().begin(1).event(WRITE_ROWS, inserted("d.t", 1))),
        ("a transaction ends twice", Log().event(XID, bytes(8))),
    ]


@pytest.mark.parametrize(("damage", "log"), damaged_events(), ids=[damage for damage, _ in damaged_events()])
def test_each_damaged_event_is_told_as_damage_with_its_place(damage: str, log: Log) -> None:
    dump = FedCursor(log)
    with pytest.raises(SourceLost, match=r"The binlog can't be read .*binlog\.000001:\d+.*check the file") as raised:
        dump.read(T, wait=5.0)
    assert isinstance(raised.value.__cause__, Damaged)


def test_a_binlog_that_was_given_another_name_is_no_bug_and_names_the_remedy() -> None:
    with pytest.raises(SourceLost, match="log_bin") as raised:
        assert FilePosition("b.000001", 4) < FilePosition("c.000001", 4)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("seed", range(40))
def test_a_transaction_that_was_torn_leaves_nothing_of_its_gtid(seed: int) -> None:
    """Of three servers' transactions some were taken before, and some are torn by a crash: a file ends within them. The
    next position has what was taken and no other, and what was taken before is not given out again."""
    luck = random.Random(seed)
    servers = {bytes([n]) * 16: str(uuid.UUID(bytes=bytes([n]) * 16)) for n in (1, 2, 3)}
    before = {(name, number) for name in servers.values() for number in range(1, 30) if luck.random() < 0.3}
    log, numbers, file = Log(), dict.fromkeys(servers, 0), 1
    expected, taken, key = [], set(before), 0
    for last in range(40):
        server = luck.choice(list(servers))
        number = numbers[server] + luck.choice((1, 1, 1, 2))
        log.gtid(number, server).query("BEGIN").event(TABLE_MAP, MAPS["d.t"])
        if last < 39 and luck.random() < 0.25:
            file += 1
            log.event(ROTATE, struct.pack("<Q", 4) + f"binlog.{file:06}".encode())
            log.at = 4
            continue
        key += 1
        log.event(WRITE_ROWS, inserted("d.t", key)).event(XID, bytes(8))
        numbers[server] = number
        if (servers[server], number) not in taken:
            expected.append(key)
            taken.add((servers[server], number))
    dump = FedCursor(log, GtidSet.parse(",".join(f"{name}:{number}" for name, number in before)))
    dump.end = High(server="s", file=f"binlog.{file:06}", offset=log.at)
    found: list[int] = []
    while not dump.end.reached_by(dump.at):
        found += keys(dump.read(T, max_rows=luck.choice((1, 3, 100))), "d.t")
    assert found == expected
    assert dump.at.executed == GtidSet.parse(",".join(f"{name}:{number}" for name, number in taken))


# --- where reads end --------------------------------------------------------------------------------------------------


def back_to_back(sizes: list[int]) -> Log:
    """A transaction of so many rows of d.t each, in events of at most 30 rows."""
    log, key = Log(), 0
    for number, size in enumerate(sizes, 1):
        log.begin(number).event(TABLE_MAP, MAPS["d.t"])
        for first in range(key, key + size, 30):
            log.event(WRITE_ROWS, inserted("d.t", *range(first, min(first + 30, key + size))))
        log.event(XID, bytes(8))
        key += size
    return log


@pytest.mark.parametrize("size", [50, 99, 100, 101, 120, 150, 200, 299, 300, 301])
def test_a_read_that_begins_inside_a_transaction_ends_with_it(size: int) -> None:
    """Also where the transactions are so large, or fit so ill, that each read by its limit would end inside of one."""
    log = back_to_back([size] * 12)
    dump = FedCursor(log)
    found: list[int] = []
    between = {4}
    while dump.at.offset < log.at:
        before = dump.at
        got = dump.read(T)
        found += keys(got, "d.t")
        if before.inside and got.position.offset != before.offset:
            assert not got.position.inside
        if not got.position.inside:
            between.add(got.position.offset)
            assert got.rows_inside == 0
        else:
            assert got.rows_inside == len(found) % size or size
            assert got.position.offset in between or not before.inside
    assert found == list(range(12 * size))


@pytest.mark.parametrize("size", [50, 60, 100, 110, 149, 150])
def test_a_waiting_marker_is_taken_at_the_next_transactions_end_however_long_the_load_lasts(
    size: int,
) -> None:
    """The reader's machine with a real cursor, and a marker that waits as soon as the last was taken: back-to-back
    transactions that are larger than a read's limit of 100 rows, or half as large."""
    log = back_to_back([size] * 60)
    dump = FedCursor(log)
    reader = Reader(name="reader-0", writers=("writer-0",), stream=True, inside_rows=4 * 100)
    process = Process(reader, inbound=("enumerator",), outbound=("writer-0", "enumerator"))
    low, high = Low(server="s", file="binlog.000001", offset=4), High(server="s", file="binlog.000001", offset=4)
    include: Message = IncludeTable(table_id="d.t", generation=1, schema=T, low=low, high=high)
    effects = process.handle(MessageReceived(channel="enumerator", message=include), 0.0)
    sent, cuts = 0, set()
    while True:
        if not process._held:  # the last one was taken
            sent += 1
            effects += process.handle(MessageReceived(channel="enumerator", message=Marker(checkpoint=sent)), 0.0)
        saved = [effect.state for effect in effects if isinstance(effect, SavePart)]
        cuts |= {Position.from_json(state.head["cursors"]["main"]["position"]) for state in saved}
        if dump.at.offset == log.at:
            break
        (order,) = [effect for effect in effects if isinstance(effect, ReadChanges)]
        assert order.after == dump.at
        got = dump.read(T)
        effects = process.handle(ChangesRead(cursor="main", changes=got), 0.0)
    assert not any(cut.inside for cut in cuts)
    assert len(cuts) >= 30  # a read takes up to two of them
