"""The framing of the binlog on made-up bytes: limits, files over 4 GiB, damage, compressed payloads."""

from __future__ import annotations

import importlib.util
import io
import random
import re
import struct
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from cutline.services.sources.mysql.binlog import scanner
from cutline.services.sources.mysql.binlog.event_types import (
    ANNOTATE_ROWS,
    ANONYMOUS_GTID,
    ARTIFICIAL_FLAG,
    BINLOG_CHECKPOINT,
    DELETE_ROWS,
    GTID,
    GTID_LIST,
    HEADER_BYTES,
    IGNORABLE_FLAG,
    MARIADB_GTID,
    QUERY,
    ROWS_QUERY,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    UPDATE_ROWS,
    WRITE_ROWS,
    WRITE_ROWS_V1,
    XID,
)
from tests.support.binlog_log import PREFIX, TABLE_MAP_BODY, TOO_LARGE, Log, feed, scanning


def interpreted() -> ModuleType:
    """The same source without its compiled form."""
    spec = importlib.util.spec_from_file_location("scanner_interpreted", Path(scanner.__file__).parent / "scanner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INTERPRETED = interpreted()
MODULES = [scanner, INTERPRETED]


def test_the_compilers_constants_are_the_interpreters() -> None:
    text = Path(scanner.__file__).with_name("scanner.pxd").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"^    (_\w+) = (\d+)$", text, re.MULTILINE)}
    assert numbers == {name: getattr(INTERPRETED, name) for name in numbers}
    assert numbers["_TABLE_MAP"] == 19


ROWS_BODY = struct.pack("<IHHH", 7, 0, 1, 2) + b"\1\xff\0\5\0\0\0"


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("checksum", [True, False])
def test_transactions_are_taken_whatever_the_pieces_they_come_in(step: int, checksum: bool) -> None:
    log = Log(checksum=checksum)
    for number in (1, 2, 3, 7):
        log.transaction(number, ROWS_BODY, ROWS_BODY)
    it = scanning(checksum=checksum)
    assert feed(it, log.bytes, step) == [(scanner.EVENT, TABLE_MAP)]
    assert it.gtids.take() == ([(PREFIX, 1, 3), (PREFIX, 7, 7)], [])
    assert it.pos == log.at
    assert it.tx.time_us == 1_700_000_000_000_007


def test_a_read_stops_at_the_transaction_where_it_is_told_to() -> None:
    log = Log()
    ends = []
    for number in range(1, 5):
        log.transaction(number)
        ends.append(log.at)
    it = scanning()
    it.stop_at(ends[1])
    assert feed(it, log.bytes) == [(scanner.ENDED, 0)] * 3
    it = scanning()
    it.stop_at_next_end()
    room = it.room()
    room[: len(log.bytes)] = log.bytes
    room.release()
    it.filled(len(log.bytes))
    assert it.scan() == scanner.ENDED
    assert it.pos == ends[0]


def test_positions_go_on_over_4_gib() -> None:
    begin = (1 << 32) - 300
    log = Log(at=begin)
    for number in range(1, 9):
        log.transaction(number, ROWS_BODY)
    assert log.at > 1 << 32
    it = scanning(pos=begin)
    feed(it, log.bytes)
    assert it.pos == log.at


@pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("begin", [4, (1 << 32) - 250])
def test_events_that_do_not_state_their_end_stand_one_behind_the_other(
    module: ModuleType, checksum: bool, begin: int
) -> None:
    """Each event is given by itself, so that the scanner is seen behind each: in one file, and over 4 GiB too."""
    log, it = Log(begin, checksum, states_ends=False), scanning(module, checksum=checksum, pos=begin)
    texts = (b"INSERT", b"", b"UPDATE and more")
    for number in range(1, 4):
        steps = [partial(log.gtid, number), partial(log.query, "BEGIN")]
        for text in texts[:number]:
            steps += [
                partial(log.event, kind, body)
                for kind, body in ((ANNOTATE_ROWS, text), (TABLE_MAP, TABLE_MAP_BODY), (WRITE_ROWS, ROWS_BODY))
            ]
        for step in [*steps, partial(log.event, XID, bytes(8))]:
            start, log.bytes = log.at, b""
            step()
            feed(it, log.bytes)
            assert (it.event.start, it.pos) == (start, log.at)
        assert not it.tx.open
    assert it.gtids.take()[0] == [(PREFIX, 1, 3)]


def test_what_a_dump_leaves_out_of_a_transaction_is_made_up_for_at_its_end() -> None:
    """Not exact within it, so a dump asks for everything; but never beyond the truth, and exact between two."""
    log, it = Log(states_ends=False), scanning()
    log.begin(1)
    unsent = len(log.bytes), log.number
    log.event(ANNOTATE_ROWS, b"INSERT INTO t VALUES (1)")
    log.bytes, log.number = log.bytes[: unsent[0]], unsent[1]
    feed(it, log.event(TABLE_MAP, TABLE_MAP_BODY).bytes)
    assert it.pos < log.at
    log.bytes = b""
    feed(it, log.event(XID, bytes(8)).gtid(2).bytes)
    assert (it.pos, it.tx.number) == (log.at, 2)


def test_an_artificial_event_and_one_outside_of_a_transaction_stand_nowhere_if_they_state_no_end() -> None:
    log, it = Log(states_ends=False), scanning()
    at = log.at
    feed(it, log.event(GTID_LIST, b"", flags=ARTIFICIAL_FLAG).event(BINLOG_CHECKPOINT, b"").bytes)
    assert (it.pos, log.at > at) == (at, True)
    log.bytes, log.at = b"", at
    feed(it, log.begin(1).bytes)
    inside, log.bytes = log.at, b""
    feed(it, log.event(GTID_LIST, b"", flags=ARTIFICIAL_FLAG).bytes)
    assert (it.pos, it.tx.open) == (inside, True)


def test_a_damaged_event_that_does_not_state_its_end_is_told_where_it_stands() -> None:
    log = Log(states_ends=False).begin(1).event(ANNOTATE_ROWS, b"INSERT").event(TABLE_MAP, TABLE_MAP_BODY)
    start, before = log.at, len(log.bytes)
    log.event(WRITE_ROWS, ROWS_BODY).event(XID, bytes(8))
    broken = bytearray(log.bytes)
    broken[before + 30] ^= 1
    it = scanning()
    with pytest.raises(ValueError, match="checksum of an event of type 30"):
        feed(it, bytes(broken))
    assert it.where == f"in the transaction at binlog.000001:4, after offset {start}"
    assert scanning().where == "after binlog.000001:4"


def test_an_event_over_16_mib_is_put_together() -> None:
    log = Log(checksum=False)
    body = struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0" + b"x" * (0xFFFFFF + 100)
    size = HEADER_BYTES + len(body)
    event = b"\0" + struct.pack("<IBIIIH", 0, QUERY, 1, size, size + 4, 0) + body
    log.packet(event[:0xFFFFFF])
    log.packet(event[0xFFFFFF:])
    it = scanning(checksum=False)
    assert feed(it, log.bytes, 3 << 20) == [(scanner.EVENT, QUERY)]
    assert it.event.body == body


def test_an_event_longer_than_it_says_is_not_put_together_without_end() -> None:
    for kind, says in ((QUERY, 100), (TRANSACTION_PAYLOAD, 40 << 20)):
        log = Log(checksum=False)
        event = b"\0" + struct.pack("<IBIIIH", 0, kind, 1, says, says, 0)
        parts = 0 if says < 0xFFFFFF else 2
        for part in range(4):
            log.packet((event if part == 0 else b"").ljust(0xFFFFFF, b"x"))
        it = scanning(checksum=False)
        with pytest.raises(ValueError, match=f"states a size of {says} bytes, and {(parts + 1) * 0xFFFFFF - 1} came"):
            feed(it, log.bytes, 8 << 20)
        if (spooled := it.take_spooled()) is not None:
            spooled.close()


def test_damage_is_told_and_never_passed_over() -> None:
    log = Log()
    log.transaction(1, ROWS_BODY).transaction(2, ROWS_BODY)
    for at in range(len(log.bytes)):
        broken = bytearray(log.bytes)
        broken[at] ^= 0x10
        it = scanning()
        try:
            feed(it, bytes(broken))
        except ValueError:
            continue
        assert it.pending  # a longer packet is waited for


FREQUENT = (
    QUERY, XID, TABLE_MAP, WRITE_ROWS_V1, WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS, GTID, ANONYMOUS_GTID, ANNOTATE_ROWS,
    MARIADB_GTID,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(300))
def test_random_bytes_behind_a_right_checksum_end_in_an_error_or_an_event(seed: int) -> None:
    luck = random.Random(seed)
    log = Log(checksum=luck.random() < 0.5)
    for _ in range(20):
        kind = luck.choice((*FREQUENT, luck.randrange(256)))
        log.event(kind, luck.randbytes(luck.randrange(80)), flags=luck.choice((0, ARTIFICIAL_FLAG, IGNORABLE_FLAG)))
    for module in (scanner, INTERPRETED):
        it = scanning(module, checksum=log.checksum)
        it.add_table(7, module.MappedTable("d.t", TABLE_MAP_BODY))
        try:
            outcome: object = [code for code, _ in feed(it, log.bytes)]
        except ValueError as error:
            outcome = str(error)
        if module is scanner:
            first = outcome, it.pos
    assert (outcome, it.pos) == first


def test_what_interpreted_reads_is_what_compiled_reads() -> None:
    log = Log()
    for number in range(1, 20):
        log.transaction(number, *[ROWS_BODY] * (number % 3))
    outcomes = []
    for module in (scanner, INTERPRETED):
        it = scanning(module)
        feed(it, log.bytes, 100)
        outcomes.append((it.gtids.take(), it.pos, it.tx.number, it.tx.time_us))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("kind", [ROWS_QUERY, ANNOTATE_ROWS])
def test_a_statements_text_is_passed_over_whatever_its_size(kind: int) -> None:
    log = Log(checksum=False).begin(1).large(kind, TOO_LARGE, flags=IGNORABLE_FLAG).event(XID, bytes(8))
    it = scanning(checksum=False)
    assert feed(it, log.bytes) == []
    assert (it.pos, it.tx.open) == (log.at, False)


def test_a_large_event_that_may_be_ignored_is_known_by_its_own_flags() -> None:
    log = Log(checksum=False).begin(1).event(99, b"", flags=IGNORABLE_FLAG).large(98, TOO_LARGE)
    log.large(98, TOO_LARGE, flags=IGNORABLE_FLAG).event(XID, bytes(8))
    it = scanning(checksum=False)
    flags = []
    for at in range(0, len(log.bytes), 1 << 20):
        room = it.room()
        part = log.bytes[at : at + (1 << 20)]
        room[: len(part)] = part
        room.release()
        it.filled(len(part))
        while (code := it.scan()) != scanner.NEED:
            assert code == scanner.EVENT
            flags.append((it.event.type, it.event.flags))
    assert flags == [(99, IGNORABLE_FLAG), (-98, 0), (-98, IGNORABLE_FLAG)]


@pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])
def test_events_over_the_limit_in_a_payload_are_passed_over_too(module: ModuleType) -> None:
    def inner(kind: int, body: bytes, size: int = 0) -> bytes:
        event = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size or HEADER_BYTES + len(body), 0, 0) + body
        return event.ljust(size, b"\0")

    events = [
        inner(ROWS_QUERY, b"", TOO_LARGE),
        inner(TABLE_MAP, TABLE_MAP_BODY),
        inner(WRITE_ROWS, ROWS_BODY, TOO_LARGE),
        inner(WRITE_ROWS, ROWS_BODY),
    ]
    whole = b"".join([*events, inner(XID, bytes(8))])
    for bytes_there in (len(whole), len(events[0]) + len(events[1]) + TOO_LARGE - 1):
        it = scanning(module)
        feed(it, Log().begin(1).bytes)
        it.add_table(7, module.MappedTable("d.t", TABLE_MAP_BODY))
        it.open_payload(io.BytesIO(whole[:bytes_there]))
        if bytes_there < len(whole):
            with pytest.raises(ValueError, match="ends inside an event"):
                it.scan()
            continue
        assert it.scan() == scanner.EVENT
        assert (it.event.type, it.event.inner, it.event.body[: len(ROWS_BODY)]) == (-WRITE_ROWS, True, ROWS_BODY)
        assert it.scan() == scanner.NEED
        assert not it.tx.open
