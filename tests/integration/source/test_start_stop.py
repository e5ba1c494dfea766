"""Where a stream begins and ends, on real servers: each `start` and `stop` is found, and is just that place."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cutline.common.config.pipeline import Point, parse
from cutline.common.errors import ConfigError, SourceLost
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import GTID, OP, TS
from cutline.services.run.preflight import check
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.connection import connect
from cutline.services.sources.mysql.server import Server, clock, flushed_position, gtid_executed
from cutline.services.sources.mysql.start_stop import PositionFinder, stop_at
from tests.support.databases import Database, MySQL
from tests.support.sources import connected, here, source_of
from tests.support.streams import stream, transaction

FLAVOURS = ("mariadb", "mysql", "mysql_nogtid")


@pytest.fixture(scope="module", params=FLAVOURS)
def server(request: pytest.FixtureRequest) -> Database:
    """MariaDB, MySQL with GTIDs and without."""
    server: Database = request.getfixturevalue(request.param)
    return server


def places_of(server: Database) -> PositionFinder:
    return PositionFinder(lambda: connect(source_of(server)), server_id=77100)


def until_next_second(server: Database, *, always: bool = False) -> None:
    """MariaDB's binlog knows whole seconds."""
    if isinstance(server, MySQL) and not always:
        return
    with connected(server) as (conn, _):
        second = clock(conn) // 1_000_000
        while clock(conn) // 1_000_000 == second:
            time.sleep(0.02)


class Story:
    """Transactions over three binlog files, each of two rows; after which position, and when, each was committed."""

    def __init__(self, server: Database, database: str) -> None:
        self.server, self.table = server, f"{database}.a"
        server.execute("FLUSH BINARY LOGS")
        until_next_second(server, always=True)  # what is before the story is of an earlier second than the first file
        server.execute("FLUSH BINARY LOGS", f"CREATE TABLE {self.table} (id INT PRIMARY KEY, v INT)")
        until_next_second(server)
        self.begin = here(server)
        self.after: list[Position] = []  # the place after each transaction
        for number in range(0, 12, 2):
            if number in (4, 8):
                server.execute("FLUSH BINARY LOGS")
            until_next_second(server)
            transaction(server, f"INSERT INTO {self.table} VALUES ({number}, 0)", f"INSERT INTO {self.table} VALUES"
                        f" ({number + 1}, 0)")  # fmt: skip
            self.after.append(here(server))
        self.end = self.after[-1]
        with stream(server, [self.table], self.begin) as it:
            self.times = [row[TS] for row in it.drain(self.end)[::2]]

    def rows_until(self, stop: Stop, **limits: Any) -> tuple[list[int], Position]:
        """What a stream gives that begins before the story and has this stop."""
        with stream(self.server, [self.table], self.begin) as it:
            for _ in range(50):
                if it.read(stop=stop, until=High(**_place(self.end)), **limits).stopped:
                    assert it.read(stop=stop).stopped
                    break
            return [row["id"] for row in it.rows], it.position


def _place(at: Position) -> dict[str, Any]:
    return {"server": at.server, "file": at.file, "offset": at.offset}


@pytest.fixture(scope="module")
def story(server: Database) -> Iterator[Story]:
    """Nobody else writes while it is told: its tests come one after the other."""
    name = f"story_{uuid.uuid4().hex[:6]}"
    server.execute(f"CREATE DATABASE {name}")
    yield Story(server, name)
    server.execute(f"DROP DATABASE {name}")


# --- starts ---


def test_a_start_by_time_is_just_before_the_first_transaction_committed_then_or_later(story: Story) -> None:
    places = places_of(story.server)
    before = [story.begin, *story.after]
    exact = timedelta(microseconds=1 if isinstance(story.server, MySQL) else 1_000_000)
    for number, at in enumerate(story.times):
        for time_asked, wanted in ((at, before[number]), (at + exact, before[number + 1])):
            found = places.start(Point(timestamp=time_asked))
            assert found is not None
            assert found.gtids == wanted.gtids, (number, time_asked)
            with stream(story.server, [story.table], found) as it:
                rows = [row["id"] for row in it.drain(story.end)]
                assert rows == list(range(2 * before.index(wanted), 12))


def test_a_time_between_says_the_same_in_every_zone_and_the_end_is_a_place_too(story: Story) -> None:
    places = places_of(story.server)
    text = (story.times[3] - timedelta(milliseconds=1)).isoformat()
    config = parse(pipeline(story, f'start: {{timestamp: "{text}"}}'))
    assert isinstance(config.start, Point)
    found = places.start(config.start)
    assert found is not None
    assert found.gtids == story.after[2].gtids  # MariaDB may write a Binlog_checkpoint_event behind the transaction
    until_next_second(story.server)
    with connected(story.server) as (conn, _):
        now = datetime.fromtimestamp(clock(conn) / 1e6, UTC)
    end = places.start(Point(timestamp=now))
    assert end is not None
    assert end.same_place(story.end)


def test_a_start_that_is_purged_yet_to_come_or_between_no_transactions_is_refused(story: Story) -> None:
    places = places_of(story.server)
    soon = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(SourceLost, match="has not reached"):
        places.start(Point(timestamp=soon))
    with pytest.raises(SourceLost, match=r"2001-01-01.* is purged: the oldest binlog file, .*, begins at 20"):
        places.start(Point(timestamp=datetime(2001, 1, 1, tzinfo=UTC)))
    with pytest.raises(SourceLost, match="has not reached"):
        places.start(Point(file=story.end.file, position=story.end.offset + 1))
    with pytest.raises(SourceLost, match="purged"):
        places.start(Point(file=story.end.file.rpartition(".")[0] + ".000000", position=4))
    inside = story.after[5].offset - 1
    with pytest.raises(SourceLost, match=f"{inside} is not between two transactions; name {story.after[5].file}:"):
        places.start(Point(file=story.after[5].file, position=inside))


def test_a_start_in_a_file_knows_every_gtid_before_it(story: Story) -> None:
    for wanted in (story.begin, *story.after):
        # MariaDB may have put a checkpoint event behind the place since
        found = places_of(story.server).start(Point(file=wanted.file, position=wanted.offset))
        assert found == wanted


def test_a_start_after_a_gtid_set_with_a_gap_and_a_tag_gives_all_the_others(
    mysql: MySQL, fresh_database: Callable[[Database], str]
) -> None:
    table = f"{fresh_database(mysql)}.a"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    before = here(mysql)
    sets = []
    for number in range(4):
        tag = "AUTOMATIC:green" if number % 2 else "AUTOMATIC"
        mysql.execute(f"SET SESSION gtid_next = '{tag}'", f"INSERT INTO {table} VALUES ({number})")
        sets.append(here(mysql).gtids)
    with stream(mysql, [table], before) as it:
        gtids = [row[GTID] for row in it.drain()]
    foreign = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
    mysql.execute(
        f"SET SESSION gtid_next = '{foreign}:7'", f"INSERT INTO {table} VALUES (9)",
        "SET SESSION gtid_next = 'AUTOMATIC'",
    )  # fmt: skip
    for taken in itertools.chain([()], itertools.combinations(range(4), 2)):
        start = ",".join([before.gtids, *(gtids[number] for number in taken)])
        found = places_of(mysql).start(Point(gtid=start))
        assert found is not None
        with stream(mysql, [table], found) as it:
            it.drain()
            assert [row["id"] for row in it.rows] == [*(n for n in range(4) if n not in taken), 9]
            assert it.position.gtids == here(mysql).gtids
    with pytest.raises(SourceLost, match="lacks transactions"):
        places_of(mysql).start(Point(gtid=f"{before.gtids},{foreign}:8"))
    with pytest.raises(SourceLost, match=r"is not a server UUID|not a GTID|neither"):
        places_of(mysql).start(Point(gtid="0-1-5"))
    # a stop at such a set: what was logged before its last transaction is in, by whichever server
    for number, wanted in ((1, [0, 1]), (3, [0, 1, 2, 3])):
        with stream(mysql, [table], before) as it:
            assert it.read(stop=Stop(gtids=gtids[number]), wait_seconds=20).stopped
            assert [row["id"] for row in it.rows] == wanted
            assert it.position.gtids == sets[number]
    with stream(mysql, [table], before) as it:
        assert it.read(stop=Stop(gtids=f"{foreign}:7,{gtids[2]}"), wait_seconds=20).stopped
        assert [row["id"] for row in it.rows] == [0, 1, 2, 3, 9]


def test_mariadb_starts_after_gtids_of_several_domains_and_goes_on_after_each_restart(
    mariadb: Database, fresh_database: Callable[[Database], str]
) -> None:
    """One domain's GTID is far ahead of the other's: whatever place the cursor is resumed at, nothing is doubled."""
    table = f"{fresh_database(mariadb)}.a"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    before = here(mariadb)
    for number in range(8):
        mariadb.execute(f"SET SESSION gtid_domain_id = {7 * (number % 2)}", f"INSERT INTO {table} VALUES ({number})")
    with stream(mariadb, [table], before) as it:
        gtids = [row[GTID] for row in it.drain()]
    start = f"{gtids[0]},{gtids[5]}"
    found = places_of(mariadb).start(Point(gtid=start))
    assert found is not None
    with stream(mariadb, [table], found) as it:
        end = here(mariadb)
        while not High(**_place(end)).reached_by(it.position):
            it.read(max_rows=1, until=High(**_place(end)))
            it.cursor.close()
        assert [row["id"] for row in it.rows] == [2, 4, 6, 7]
        assert it.position.gtids == end.gtids
    other = f"{gtids[1]},{gtids[6]}"
    with stream(mariadb, [table], before) as it:
        assert it.read(stop=Stop(gtids=other), wait_seconds=20).stopped
        assert [row["id"] for row in it.rows] == list(range(7))
    with pytest.raises(SourceLost, match=r"lacks transactions|is purged"):  # purged, if tests before removed binlogs
        places_of(mariadb).start(Point(gtid="7-1-999999"))


@pytest.mark.parametrize("read", [True, False], ids=["after its rows", "before its rows"])
def test_a_table_is_read_as_it_was_before_it_was_altered(
    server: Database, fresh_database: Callable[[Database], str], read: bool
) -> None:
    """Its route has the catalogue's schema of now. Field by field, rows of before the DDL have the columns of then, and
    those of after it the columns of now, at every size of reads."""
    table = f"{fresh_database(server)}.a"
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a VARCHAR(9), b INT, c DATETIME(3), d BINARY(5))")
    begin = here(server)
    if read:
        transaction(server, *(f"INSERT INTO {table} VALUES ({n}, 'a{n}', {n}, NULL, 'd')" for n in range(3)))
    server.execute(f"ALTER TABLE {table} ADD n INT FIRST, DROP c, RENAME COLUMN a TO z, MODIFY b BIGINT")
    server.execute(f"INSERT INTO {table} VALUES (7, 3, 'z3', 1 << 40, 'd')", f"TRUNCATE {table}")
    with connected(server) as (conn, server_info):
        now = table_schema(conn, table)
        at = flushed_position(conn, server_info)
        gtids = str(gtid_executed(conn)) if server_info.mysql and server_info.gtid else ""
    looked_at = Low(server=server_info.identity, file=at.file, offset=at.offset, gtids=gtids)
    for limits in ({}, {"max_rows": 1}):
        with stream(server, [table], begin) as it:
            it.routes[table] = replace(it.routes[table], live=True, looked_at=looked_at)
            it.drain(**limits)
            assert it.faults == []
            rows = [row for row in it.rows if row[OP] == "+I"]
            last = it.routes[table].schema
            assert it.rows[-1][OP] == "t"
        if read:
            assert [(row["id"], row["a"], row["b"], row["d"]) for row in rows[:-1]] == [
                (n, f"a{n}", n, b"d\0\0\0\0") for n in range(3)
            ]
        assert (rows[-1]["n"], rows[-1]["id"], rows[-1]["z"], rows[-1]["b"]) == (7, 3, "z3", 1 << 40)
        assert [(column.name, column.arrow.type) for column in last.columns] == [
            (c.name, c.arrow.type) for c in now.columns
        ]
        ids = [column.field_id for column in last.columns]
        assert (ids == [1, 2, 3, 4, 5]) is not read


# --- stops ---


@pytest.mark.parametrize(
    "limits", [{"max_rows": 1}, pytest.param({}, marks=pytest.mark.full)], ids=["row by row", "at once"]
)
def test_a_stream_ends_just_at_its_stop_however_it_is_named(story: Story, limits: dict[str, Any]) -> None:
    exact = timedelta(microseconds=1 if isinstance(story.server, MySQL) else 1_000_000)
    for number in (0, 1, 3):  # in the midst of a file, at its end
        at = story.after[number]
        rows = list(range(2 * number + 2))
        stops = [
            Stop(server=at.server, file=at.file, offset=at.offset),
            Stop(server=at.server, file=at.file, offset=at.offset - 1),
            named_by_time(story.times[number] + exact),
            named_by_time(story.times[number + 1]),
        ]
        if at.gtids:
            stops += [Stop(gtids=at.gtids), Stop(server="another", file="x.000001", offset=4, gtids=at.gtids)]
        for stop in stops:
            found, position = story.rows_until(stop, **limits)
            assert found == rows, stop
            assert not position.inside
            place = places_of(story.server).stop(stop)
            assert place is not None
            assert place.gtids == position.gtids == at.gtids
            if stop.time_us is None:  # the place before a transaction may be the start of the next file
                assert place.same_place(at)
                assert position.same_place(at)


def named_by_time(at: datetime) -> Stop:
    server_info = Server(flavour="mysql", version=(9,), identity="s", gtid=True)
    return stop_at(server_info, Point(timestamp=at))


def test_a_stop_that_the_source_has_not_passed_is_found_when_it_has(server: Database, fresh_database: Any) -> None:
    table = f"{fresh_database(server)}.a"
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    at = here(server)
    later = named_by_time(datetime.now(UTC) + timedelta(seconds=2.5))
    stops = [later, Stop(server=at.server, file=at.file, offset=at.offset + 10)]
    if at.gtids:
        if isinstance(server, MySQL):
            with connected(server) as (_, server_info):
                stops.append(Stop(gtids=next_gtid(at.gtids, server_info.identity)))
        else:
            domain, number, sequence = at.gtids.split(",")[0].split("-")
            stops.append(Stop(gtids=f"{domain}-{number}-{int(sequence) + 1}"))
    places = places_of(server)
    assert [places.stop(stop) for stop in stops] == [None] * len(stops)
    server.execute(f"INSERT INTO {table} VALUES (1)")
    now = here(server)
    found = [places.stop(stop) for stop in stops[1:]]
    assert all(place is not None and place.same_place(now) for place in found)
    deadline = time.monotonic() + 30
    while (place := places.stop(later)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert place.same_place(now)


def next_gtid(gtids: str, server: str) -> str:
    """The next untagged GTID that this server will give."""
    own = next(part for part in gtids.split(",") if part.startswith(server))
    words = itertools.takewhile(lambda word: word[0].isdigit(), own.split(":")[1:])
    last = max(int(word.rpartition("-")[2]) for word in words)
    return f"{server}:{last + 1}"


# --- before anything is written ---


def pipeline(story: Story, *lines: str) -> str:
    server = story.server
    return (
        f"name: shop\nsource: {{host: {server.host}, port: {server.port}, user: {server.user},"
        f" password_env: SHOP_PASSWORD}}\ntables: [{story.table}]\nsink: {{warehouse: lake}}\n" + "\n".join(lines)
    )


def test_a_stop_that_no_table_could_be_shown_at_is_refused_before_the_start(
    story: Story, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", story.server.password)

    def faults(*lines: str) -> list[str]:
        config = parse(pipeline(story, *lines), folder=tmp_path)
        try:
            check(config, store_url=f"file://{tmp_path}/store", workdir=None)
        except ConfigError as error:
            return list(map(str, error.faults))
        return []

    def at(number: int) -> str:
        place = story.after[number]
        return f"{{file: {place.file}, position: {place.offset}}}"

    assert faults(f"start: {at(1)}", f"stop: {at(3)}") == []
    end = here(story.server)
    assert faults(f"stop: {{file: {end.file}, position: {end.offset}}}") == []  # nothing was committed since
    (late,) = faults(f"stop: {at(4)}")
    assert f"stop: the source has passed {story.after[4].file_position} already" in late
    (wrong,) = faults(f"start: {at(3)}", f"stop: {at(1)}")
    assert f"stop: {story.after[1].file_position} lies before the start, {story.after[3].file_position}" in wrong
    (gone,) = faults("start: {timestamp: 2001-01-01T00:00:00+02:00}")
    assert gone.startswith("start: 2000-12-31T22:00:00+00:00 is purged")
    if not story.after[0].gtids:
        (none,) = faults("stop: {gtid: 0-1-5}")
        assert none.startswith("stop: the server has no GTIDs")
