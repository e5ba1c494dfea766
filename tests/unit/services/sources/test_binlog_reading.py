"""What a read of the cursor gives on made-up bytes: whole transactions, bounds, routes, decoders, resets."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.positions import High
from cutline.common.schema import POS, TableSchema
from cutline.services.sources.contract import Route
from cutline.services.sources.mysql.binlog import cursor as cursor_module
from cutline.services.sources.mysql.binlog import routes as routes_module
from cutline.services.sources.mysql.binlog import scanner
from cutline.services.sources.mysql.binlog.event_types import (
    TABLE_MAP,
    WRITE_ROWS,
    XID,
)
from cutline.services.sources.mysql.binlog.routes import MAX_DECODERS, Routes
from cutline.services.sources.mysql.binlog.scanner import MappedTable, Scanner
from cutline.services.sources.mysql.decode.row_event import EventDecoder, Place
from tests.support.binlog_bytes import compressed, event, image, schema_of, table_map
from tests.support.binlog_log import MAPS, FedCursor, Log, T, U, heartbeat, inserted, keys

OTHER = schema_of(("other", "int"), key=("other",))


@pytest.mark.parametrize("states_ends", [True, False])
@pytest.mark.parametrize("faulty", [False, True])
def test_a_table_that_goes_within_its_row_event_takes_nothing_of_what_follows_with_it(
    faulty: bool, states_ends: bool
) -> None:
    log = Log(states_ends=states_ends).begin(1).event(TABLE_MAP, MAPS["d.t"]).event(TABLE_MAP, MAPS["d.u"])
    log.event(WRITE_ROWS, inserted("d.t", *range(10))).event(WRITE_ROWS, inserted("d.u", *range(10))).event(
        XID, bytes(8)
    )
    first_end = log.at
    log.begin(2).event(TABLE_MAP, MAPS["d.u"])
    begin = log.at
    log.event(WRITE_ROWS, inserted("d.u", 77)).event(XID, bytes(8))
    dump = FedCursor(log)
    first = dump.read(OTHER if faulty else T, U, max_rows=4)
    assert [fault.table_id for fault in first.faults] == (["d.t"] if faulty else [])
    assert (keys(first, "d.t"), first.position.rows) == (([], 0) if faulty else ([0, 1, 2, 3], 4))
    second = dump.read(U, max_rows=12)
    assert keys(second, "d.u") == list(range(10))
    assert (second.position.offset, second.position.rows) == (first_end, 0)
    third = dump.read(U, max_rows=10)
    assert third.batches[0].batch.select(["id", POS]).to_pylist() == [{"id": 77, POS: begin}]
    assert third.position.offset == log.at


def test_an_event_that_can_not_be_read_gives_out_none_of_its_rows_as_its_position_says() -> None:
    """Not those before the damage either: here bytes of what follows, where only a damaged size places the event."""
    log = (
        Log(checksum=False, states_ends=False)
        .begin(1)
        .event(TABLE_MAP, MAPS["d.t"])
        .event(WRITE_ROWS, inserted("d.t", 1, 2))
    )
    log.event(WRITE_ROWS, inserted("d.t", 3, 4) + b"\xfc\1\2").event(XID, bytes(8))
    dump = FedCursor(log)
    got = dump.read(T)
    (fault,) = got.faults
    assert (fault.table_id, keys(got, "d.t")) == ("d.t", [1, 2])
    assert got.position.rows == 1 << scanner.INSIDE_BITS


def test_the_start_of_a_transaction_is_not_reached_inside_of_it() -> None:
    """What is to be reached lies between two transactions: who stands inside goes on to the end, and not for ever at
    the same place."""
    log = Log().transaction(1)
    start = log.at
    log.begin(2).event(TABLE_MAP, MAPS["d.t"]).event(WRITE_ROWS, inserted("d.t", *range(10))).event(XID, bytes(8))
    dump = FedCursor(log)
    dump.end = replace(dump.end, offset=start + 1)
    assert (dump.read(T, max_rows=4).position.offset, dump.at.rows) == (start, 4)
    dump.end = replace(dump.end, offset=start)
    assert keys(dump.read(T), "d.t") == list(range(4, 10))
    assert (dump.at.offset, dump.at.rows) == (log.at, 0)


WIDE = schema_of(("id", "int"), *((f"c{i}", "decimal(10,2)") for i in range(99)))
PACKED = schema_of(("id", "int"), ("z", "text /*M!100301 COMPRESSED*/"))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("schema", "values", "least"),
    [(WIDE, [None] * 99, 99 * 16), (PACKED, [compressed(b"x" * 4000)], 4000)],
    ids=["null", "compressed"],
)
def test_a_read_ends_where_its_rows_are_large_though_their_images_are_small(
    schema: TableSchema, values: list[Any], least: int, whole: bool
) -> None:
    """In the midst of an event, and each such place is one to resume at."""
    count, limit = 6000, (8 if whole else 1) << 20
    log = Log().begin(1).event(TABLE_MAP, table_map(schema))
    for first in (0, count // 2):
        images = [image(schema, [key, *values]) for key in range(first, first + count // 2)]
        log.event(WRITE_ROWS, event(schema, images))
    log.event(XID, bytes(8))
    dump = FedCursor(log)
    ids: list[int] = []
    while dump.at.offset < log.at:
        begin = dump.at
        got = dump.read(schema, max_rows=count + 1, whole=whole)
        ids += keys(got, "d.t")
        assert sum(batch.batch.nbytes for batch in got.batches) <= limit + 2 * least
        resumed = FedCursor(log)
        resumed.begin_at(begin)
        again = resumed.read(schema, max_rows=count + 1, whole=whole)
        assert (keys(again, "d.t"), again.position) == (keys(got, "d.t"), got.position)
        assert got.position.rows == 0 or len(ids) % (count // 2)
    assert ids == list(range(count))


def test_decoders_are_made_for_the_tables_that_change_and_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counting(body: bytes, schema: TableSchema, place: Place, before: bool) -> EventDecoder:
        made.append(schema.table_id)
        return EventDecoder(body, schema, place, before)

    monkeypatch.setattr(routes_module, "EventDecoder", counting)
    tables = [replace(T, table_id=f"d.t{n:03}") for n in range(600)]
    maps = [table_map(T, n + 1).replace(b"\1t\0", f"\4t{n:03}\0".encode(), 1) for n in range(600)]
    log = Log()
    for n in range(4 * 600):
        log.begin(n + 1).event(TABLE_MAP, maps[n % 600])
        log.event(WRITE_ROWS, maps[n % 600][:6] + inserted("d.t", n)[6:]).event(XID, bytes(8))
    dump = FedCursor(log)
    bound, ids, made_in_all = MAX_DECODERS, [], []
    for rows in (1000, 1, *[60] * 20, *[1000] * 100):
        if dump.at.offset == log.at:
            break
        made.clear()
        got = dump.read(*tables, max_rows=rows)
        made_in_all += made
        routes = dump.stream.routes
        assert len(made) <= bound
        assert set(made) <= {batch.table_id for batch in got.batches}
        assert len(routes._decoders) <= bound
        assert all(decoder.held <= 1024 for decoder in routes._resting.values())
        assert sum(table.decoder is not None for table in dump.scanner.tables.values()) <= bound
        ids += sorted(key for each in got.batches for key in each.batch["id"].to_pylist())
    assert ids == list(range(4 * 600))
    assert sorted(made_in_all) == [table.table_id for table in tables]  # each once: those without memory are kept


def test_the_decoders_that_rest_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "_RESTING_DECODERS", 10)
    log, tables = _of_many_tables(300, transactions_of=1)
    dump, ids = FedCursor(log), []
    while dump.at.offset < log.at:
        got = dump.read(*tables)
        ids += [key for each in got.batches for key in each.batch["id"].to_pylist()]
    assert len(dump.stream.routes._resting) == 10
    assert sorted(ids) == list(range(300))


def test_a_transaction_over_many_tables_is_read_in_parts_and_none_is_lost() -> None:
    log, tables = _of_many_tables(5 * MAX_DECODERS, transactions_of=5 * MAX_DECODERS)
    dump, parts, ids = FedCursor(log), [], []
    while dump.at.offset < log.at:
        got = dump.read(*tables, max_rows=10_000)
        parts.append(len(got.batches))
        ids += [key for each in got.batches for key in each.batch["id"].to_pylist()]
    assert parts == [2 * MAX_DECODERS, 2 * MAX_DECODERS, MAX_DECODERS]
    assert sorted(ids) == list(range(5 * MAX_DECODERS))


def _of_many_tables(count: int, *, transactions_of: int) -> tuple[Log, list[TableSchema]]:
    """A binlog with one row for each of these tables, in transactions of so many rows."""
    tables = [replace(T, table_id=f"d.t{n:04}") for n in range(count)]
    log = Log()
    for n in range(count):
        described = table_map(T, n + 1).replace(b"\1t\0", f"\5t{n:04}\0".encode(), 1)
        if n % transactions_of == 0:
            log.begin(n + 1)
        log.event(TABLE_MAP, described).event(WRITE_ROWS, described[:6] + inserted("d.t", n)[6:])
        if (n + 1) % transactions_of == 0:
            log.event(XID, bytes(8))
    return log, tables


def test_a_read_looks_only_at_tables_whose_route_is_another_one_or_whose_low_is_not_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = [replace(T, table_id=f"d.t{n:03}") for n in range(200)]
    maps = [table_map(T, n + 1).replace(b"\1t\0", f"\4t{n:03}\0".encode(), 1) for n in range(200)]
    log = Log()
    for n in range(400):
        log.begin(n + 1).event(TABLE_MAP, maps[n % 200])
        log.event(WRITE_ROWS, maps[n % 200][:6] + inserted("d.t", n)[6:]).event(XID, bytes(8))
    dump = FedCursor(log)
    high = High(server="s", file="binlog.000001", offset=4)
    routes = {
        schema.table_id: Route(
            table_id=schema.table_id, generation=1, schema=schema, low=dump.low(4), high=high, live=True
        )
        for schema in tables
    }
    routes["d.t001"] = replace(routes["d.t001"], low=dump.low(log.at))
    bound: list[str] = []
    bind = Routes._bind

    def counted(routes: Routes, table: MappedTable) -> None:
        bound.append(table.table_id)
        bind(routes, table)

    while len(dump.scanner.tables) < 200:
        dump.read_routes(routes)
    monkeypatch.setattr(Routes, "_bind", counted)
    dump.read_routes(routes, max_rows=5)
    assert bound == ["d.t001"]
    bound.clear()
    changed = {**routes, "d.t007": replace(routes["d.t007"], low=dump.low(8))}
    del changed["d.t150"]
    got = dump.read_routes(changed)
    assert sorted(set(bound)) == ["d.t001", "d.t007", "d.t150"]
    while dump.at.offset < log.at:
        got = dump.read_routes(changed)
    assert {batch.table_id for batch in got.batches}.isdisjoint({"d.t001", "d.t150"})


def test_a_decoder_that_is_in_use_is_kept() -> None:
    log = Log()
    for n in range(900):
        at = f"d.{'tu'[n % 2]}"
        log.begin(n + 1).event(TABLE_MAP, MAPS[at]).event(WRITE_ROWS, inserted(at, n)).event(XID, bytes(8))
    dump = FedCursor(log)
    dump.read(T, U, max_rows=10)
    first = dict(dump.stream.routes._decoders)
    while dump.at.offset < log.at:
        dump.read(T, U)
    assert dump.stream.routes._decoders == first


def test_a_binlog_that_was_reset_is_found_though_a_heartbeat_ends_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose binlog was reset goes on with its heartbeats. 1. Transactions come: nothing is asked for. 2. Each
    read, of a second, ends as a heartbeat has come: the binlog's end is asked for once in 20 s, as beside none."""
    log = Log(checksum=False)
    fed, now, asked = FedCursor(log), 100.0, []
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(cursor_module, "time", clock)
    monkeypatch.setattr(fed.delivery, "check_end", lambda position: asked.append((now, position.offset)))
    receive = fed.delivery.receive

    def at_the_reads_end(scanner: Scanner, seconds: float, *, leisurely: bool = False) -> bool:
        nonlocal now
        fed.server_end.sendall(log.bytes)
        log.bytes, now = b"", now + seconds
        return receive(scanner, 1.0, leisurely=leisurely)

    def read() -> None:
        changes = fed.cursor.read(fed.at, {}, until=None, max_rows=9, max_bytes=1 << 20, wait_seconds=1.0)
        assert not changes.idle
        fed.at = changes.position

    monkeypatch.setattr(fed.delivery, "receive", at_the_reads_end)
    for number in range(1, 31):
        log.begin(number).event(XID, bytes(8))
        read()
    for _ in range(45):
        heartbeat(log, log.at)
        read()
    assert asked == [(151.0, log.at), (172.0, log.at)]


def test_a_place_that_one_heartbeat_tells_is_not_gone_on_from() -> None:
    """A server that passes over what a GTID set has may tell a place inside a transaction, once a second."""
    log = Log(checksum=False)
    heartbeat(log, 1000)
    heartbeat(log, 2000)
    dump = FedCursor(log)
    dump.end = replace(dump.end, offset=2000)
    while dump.stream._idle_at != ("binlog.000001", 2000):
        assert dump.read(T, wait=0.1).position.offset == 4
    log.bytes = b""
    heartbeat(log, 2000)
    dump.server_end.sendall(log.bytes)
    while dump.at.offset == 4:
        dump.read(T, wait=0.1)
    assert dump.at.offset == 2000
