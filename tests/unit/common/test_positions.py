"""GTID sets against a model of plain Python sets, file positions as numbers, watermarks at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.common.errors import NextGeneration, SourceLost
from cutline.common.gtids import GtidSet, MariaGtid, parse_gtids
from cutline.common.positions import FilePosition, High, Low, Position, Stop, beyond

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"

one_gtid = st.tuples(st.sampled_from([A, B]), st.sampled_from(["", "tag", "other_1"]), st.integers(1, 30))
model_sets = st.frozensets(one_gtid, max_size=40)


def text_of(gtid: tuple[str, str, int]) -> str:
    uuid, tag, number = gtid
    return f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}"


def set_of(model: frozenset[tuple[str, str, int]]) -> GtidSet:
    return GtidSet.parse(",".join(text_of(gtid) for gtid in model))


@given(model_sets)
def test_a_gtid_set_reads_back_what_it_prints(model: frozenset[tuple[str, str, int]]) -> None:
    gtids = set_of(model)
    assert GtidSet.parse(str(gtids)) == gtids
    assert str(GtidSet.parse(str(gtids))) == str(gtids)
    assert hash(GtidSet.parse(str(gtids))) == hash(gtids)


@given(model_sets, model_sets)
def test_gtid_sets_obey_the_algebra_of_sets(
    left: frozenset[tuple[str, str, int]], right: frozenset[tuple[str, str, int]]
) -> None:
    assert set_of(left) | set_of(right) == set_of(left | right)
    assert set_of(left) & set_of(right) == set_of(left & right)
    assert set_of(left) - set_of(right) == set_of(left - right)
    assert (set_of(left) <= set_of(right)) == (left <= right)
    assert (set_of(left) == set_of(right)) == (left == right)
    assert bool(set_of(left)) == bool(left)


@given(model_sets, one_gtid)
def test_add_and_contains_agree_with_a_set_of_gtids(
    model: frozenset[tuple[str, str, int]], gtid: tuple[str, str, int]
) -> None:
    assert set_of(model).contains(text_of(gtid)) == (gtid in model)
    assert set_of(model).add(text_of(gtid)) == set_of(model | {gtid})


def test_a_gtid_set_with_gaps_and_tags_prints_as_mysql_does() -> None:
    text = f"{B}:1, \n{A}:TAG:7:9-11:1-3 , {A.upper()}:5:1-3:4:11-12"
    assert str(GtidSet.parse(text)) == f"{A}:1-5:11-12:tag:1-3:7:9-11,{B}:1"
    assert GtidSet.parse("") == GtidSet.EMPTY
    assert not GtidSet.EMPTY
    assert GtidSet.parse(A.replace("-", "") + ":3") == GtidSet.parse(f"{A}:3")


def test_adding_to_a_gtid_set_leaves_the_old_one_as_it_was() -> None:
    old = GtidSet.parse(f"{A}:1-3:5")
    assert str(old.add(f"{A}:4")) == f"{A}:1-5"
    assert str(old) == f"{A}:1-3:5"
    assert old.add(f"{A}:2") is old


@pytest.mark.parametrize("text", ["x", A, f"{A}:", f"{A}:0", f"{A}:3-2", f"{A}:1-", f"{A}:-tag:1", "0-1-5"])
def test_what_is_no_gtid_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not|neither|no transaction"):
        GtidSet.parse(text)


def test_a_mariadb_position_is_the_last_gtid_of_each_domain() -> None:
    position = MariaGtid.parse("1-2-5, 0-1-100")
    assert str(position) == "0-1-100,1-2-5"
    assert str(position.add("0-3-101")) == "0-3-101,1-2-5"
    assert str(position) == "0-1-100,1-2-5"
    assert position.contains("0-7-100")
    assert not position.contains("0-1-101")
    assert not position.contains("9-1-1")
    assert MariaGtid.parse("0-9-99") <= position
    assert not position <= MariaGtid.parse("0-1-100")
    assert hash(MariaGtid.parse("0-1-100,1-2-5")) == hash(position)
    with pytest.raises(ValueError, match="not a MariaDB GTID"):
        MariaGtid.parse(f"{A}:1")


@given(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(1, 9), st.integers(0, 2**64 - 1)), max_size=5))
def test_a_mariadb_position_reads_back_what_it_prints(domains: dict[int, tuple[int, int]]) -> None:
    position = MariaGtid(domains)
    assert MariaGtid.parse(str(position)) == position
    assert position <= position


def test_the_text_of_gtids_says_its_flavour() -> None:
    assert parse_gtids("") is None
    assert isinstance(parse_gtids("0-1-5"), MariaGtid)
    assert isinstance(parse_gtids(f"{A}:1"), GtidSet)


def test_binlog_files_compare_by_number_and_not_by_text() -> None:
    assert FilePosition("binlog.000999", 500) < FilePosition("binlog.001000", 4)
    assert FilePosition("binlog.999", 500) < FilePosition("binlog.1000", 4)
    assert FilePosition("binlog.999999", 500) < FilePosition("binlog.1000000", 4)
    assert FilePosition("b.000002", 99) < FilePosition("b.000002", 100)
    assert FilePosition("b.000002", 4) >= FilePosition("b.000001", 10**9)
    with pytest.raises(ValueError, match="base name"):
        assert FilePosition("a.000001", 4) < FilePosition("b.000002", 4)
    with pytest.raises(ValueError, match="not the name"):
        assert FilePosition("", 0) < FilePosition("b.000002", 4)


def at(offset: int, *, file: str = "b.000001", gtids: str = "", rows: int = 0, server: str = "s1") -> Position:
    return Position(server=server, file=file, offset=offset, gtids=gtids, rows=rows)


@given(st.builds(at, st.integers(4, 2**40), gtids=model_sets.map(lambda m: str(set_of(m))), rows=st.integers(0, 9)))
def test_positions_and_watermarks_survive_json(position: Position) -> None:
    assert Position.from_json(position.to_json()) == position
    low = Low(server=position.server, file=position.file, offset=position.offset, gtids=position.gtids)
    assert Low.from_json(low.to_json()) == low
    high = High(server=position.server, file=position.file, offset=position.offset)
    assert High.from_json(high.to_json()) == high


def test_positions_of_one_server_go_by_file_offset_and_rows() -> None:
    assert at(100, rows=2).not_before(at(100, rows=2))
    assert at(100, rows=2).not_before(at(100))
    assert not at(100, rows=2).not_before(at(100, rows=3))
    assert at(4, file="b.001000").not_before(at(900, file="b.000999", rows=7))
    assert at(100, rows=1).inside
    assert not at(100).inside


def test_positions_of_two_servers_go_by_gtid_sets() -> None:
    old, new = at(900, gtids=f"{A}:1-9"), at(4, gtids=f"{A}:1-9,{B}:1", server="s2")
    assert new.not_before(old)
    assert not old.not_before(new)
    assert at(4, gtids="0-2-9", server="s2").not_before(at(900, gtids="0-1-8"))


def test_histories_that_parted_or_tell_nothing_are_no_guess() -> None:
    with pytest.raises(SourceLost, match="parted"):
        at(4, gtids=f"{A}:1-9", server="s2").not_before(at(4, gtids=f"{B}:1"))
    with pytest.raises(SourceLost, match="no GTIDs"):
        at(4, server="s2").not_before(at(4))


def test_cursors_meet_only_between_transactions() -> None:
    assert at(100, gtids=f"{A}:1-2").same_place(at(7, file="b.000002", gtids=f"{A}:2,{A}:1", server="s2"))
    assert not at(100, gtids=f"{A}:1-2").same_place(at(130, gtids=f"{A}:1-3"))
    assert not at(100, gtids=f"{A}:1-2", rows=1).same_place(at(100, gtids=f"{A}:1-2", rows=1))
    assert at(100).same_place(at(100))
    assert at(100, gtids="0-1-5").same_place(at(100, gtids="0-1-5,1-1-7"))
    assert not at(100).same_place(at(100, server="s2"))


def test_a_place_known_by_its_gtids_alone_compares_by_them_and_has_reached_no_file_position() -> None:
    bare = at(0, file="", gtids=f"{A}:1-5")
    assert bare.not_before(at(100, gtids=f"{A}:1-3"))
    assert not at(100, gtids=f"{A}:1-3").not_before(bare)
    assert bare.same_place(at(100, gtids=f"{A}:1-5"))
    assert not bare.same_place(at(0, file="", gtids=f"{A}:1-6"))
    assert not High(server="s1", file="b.000001", offset=4).reached_by(bare)


def low(offset: int, gtids: str = "", *, file: str = "b.000001", server: str = "s1") -> Low:
    return Low(server=server, file=file, offset=offset, gtids=gtids)


def test_with_gtids_the_low_watermark_covers_what_is_in_its_set_and_nothing_else() -> None:
    mark = low(4, f"{A}:1-5:7")
    far, near = FilePosition("b.000009", 99), FilePosition("b.000001", 4)
    assert mark.covers(server="s1", end=far, gtid=f"{A}:7")
    assert mark.covers(server="s2", end=far, gtid=f"{A}:7")
    assert not mark.covers(server="s1", end=near, gtid=f"{A}:6")


def test_without_gtids_the_low_watermark_covers_what_ends_at_or_before_it() -> None:
    mark = low(100)
    assert mark.covers(server="s1", end=FilePosition("b.000001", 100), gtid=None)
    assert not mark.covers(server="s1", end=FilePosition("b.000001", 101), gtid=None)
    assert not mark.covers(server="s1", end=FilePosition("b.000002", 4), gtid=None)
    with pytest.raises(NextGeneration, match="next generation"):
        mark.covers(server="s2", end=FilePosition("b.000001", 100), gtid=None)


def test_mariadbs_low_watermark_goes_by_file_at_home_and_by_gtid_elsewhere() -> None:
    mark = low(100, "0-1-10")
    assert mark.covers(server="s1", end=FilePosition("b.000001", 100), gtid="0-1-10")
    assert not mark.covers(server="s1", end=FilePosition("b.000001", 200), gtid="0-1-11")
    assert not mark.covers(server="s1", end=FilePosition("b.000001", 50), gtid="0-1-11"), "its binlog began anew"
    assert mark.covers(server="s2", end=FilePosition("b.000007", 4), gtid="0-1-10")
    assert not mark.covers(server="s2", end=FilePosition("b.000001", 4), gtid="0-1-11")


@given(model_sets, model_sets, one_gtid)
def test_folded_low_watermarks_cover_just_what_both_cover(
    left: frozenset[tuple[str, str, int]], right: frozenset[tuple[str, str, int]], gtid: tuple[str, str, int]
) -> None:
    end = FilePosition("b.000001", 4)
    first, second = low(4, str(set_of(left | {(A, "", 1)}))), low(9, str(set_of(right | {(A, "", 1)})))
    folded = first.fold(second)
    assert folded == second.fold(first)
    assert folded.covers(server="s1", end=end, gtid=text_of(gtid)) == all(
        mark.covers(server="s1", end=end, gtid=text_of(gtid)) for mark in (first, second)
    )


def test_folding_keeps_the_earliest_low_and_the_latest_high() -> None:
    assert low(900, file="b.000999").fold(low(4, file="b.001000")) == low(900, file="b.000999")
    assert low(9, "0-1-10").fold(low(5, "0-1-7")) == low(5, "0-1-7")
    assert low(5, f"{A}:1-3").fold(low(9)) == low(5)
    first = High(server="s1", file="b.000999", offset=900)
    second = High(server="s1", file="b.001000", offset=4)
    assert first.fold(second) == second.fold(first) == second
    with pytest.raises(NextGeneration, match="next generation"):
        first.fold(High(server="s2", file="b.000999", offset=900))
    with pytest.raises(NextGeneration, match="next generation"):
        low(4).fold(low(4, server="s2"))
    assert low(5, f"{A}:1-3").start() == at(5, gtids=f"{A}:1-3")


def test_a_transaction_across_the_high_watermark_does_not_count_as_taken() -> None:
    high = High(server="s1", file="b.000001", offset=100)
    assert high.reached_by(at(100))
    assert high.reached_by(at(4, file="b.000002"))
    assert not high.reached_by(at(99))
    assert not high.reached_by(at(99, rows=50))
    assert high.reached_by(at(100, rows=1))
    with pytest.raises(NextGeneration, match="next generation"):
        high.reached_by(at(100, server="s2"))


# --- stops ---


@given(model_sets)
def test_the_last_numbers_of_the_intervals_are_those_without_a_next_one(model: frozenset[tuple[str, str, int]]) -> None:
    lasts = {(f"{u}:{tag}" if tag else u, n) for u, tag, n in model if (u, tag, n + 1) not in model}
    assert set_of(model).lasts() == lasts


@given(model_sets, one_gtid)
def test_the_next_number_in_a_set_is_the_smallest_from_there_on(
    model: frozenset[tuple[str, str, int]], gtid: tuple[str, str, int]
) -> None:
    uuid, tag, number = gtid
    later = [n for u, t, n in model if (u, t) == (uuid, tag) and n >= number]
    assert set_of(model).next_from(f"{uuid}:{tag}" if tag else uuid, number) == min(later, default=0)


def test_a_stop_in_a_file_is_met_at_or_after_it_within_that_server() -> None:
    stop = Stop(server="s1", file="b.000999", offset=500)
    assert not stop.met_by(at(499, file="b.000999"))
    assert stop.met_by(at(500, file="b.000999"))
    assert not stop.met_by(at(500, file="b.000999", rows=1))
    assert stop.met_by(at(4, file="b.001000"))
    assert not stop.met_by(at(4, file=""))
    with pytest.raises(SourceLost, match=r"b.000999:500 of server s1, and the source is now s2.*by GTIDs or"):
        stop.met_by(at(4, server="s2"))


@pytest.mark.parametrize(
    ("wanted", "short", "enough"),
    [
        (f"{A}:1-3:7,{B}:tag:1", f"{A}:1-6,{B}:tag:1-9", f"{A}:1-9,{B}:tag:1-9"),
        ("0-1-5,7-2-3", "0-1-9,7-2-2", "0-3-5,7-2-3,8-1-1"),
    ],
)
def test_a_stop_by_gtids_is_met_when_the_set_is_complete_on_any_server(wanted: str, short: str, enough: str) -> None:
    for stop in (Stop(gtids=wanted), Stop(server="s1", file="b.000001", offset=4, gtids=wanted)):
        assert not stop.met_by(at(9, server="s2", gtids=short))
        assert stop.met_by(at(9, server="s2", gtids=enough))
        assert not stop.met_by(at(9, server="s2", gtids=enough, rows=1))
    assert not Stop(gtids=wanted).met_by(at(9))


def test_a_stop_by_time_is_told_by_the_next_transaction_only() -> None:
    assert not Stop(time_us=0).met_by(at(1 << 40, gtids=f"{A}:1-9"))


def test_what_names_more_as_taken_than_a_place_is_beyond_it() -> None:
    """A position by GTIDs may name an early file: then only its set tells."""
    assert beyond(at(4, gtids=f"{A}:1-9"), at(500, gtids=f"{A}:1-8"))
    assert not beyond(at(4, gtids=f"{A}:1-8"), at(500, gtids=f"{A}:1-8"))
    assert beyond(at(501), at(500))
    assert not beyond(at(500, gtids=""), at(500, gtids="0-1-7"))


def test_a_low_of_before_any_transaction_is_passed_by_a_set_that_names_some_wherever_its_place_is() -> None:
    """On a new server the set is empty, and a position's set may be ahead of its place."""
    low = Low(server="s1", file="b.000001", offset=4)
    ahead = Position(server="s1", file="b.000001", offset=4, gtids=f"{A}:1-5")
    assert low.passed_by(ahead)
    assert not Low(server="s1", file="b.000001", offset=4, gtids=f"{A}:1-5").passed_by(ahead)
    assert not low.passed_by(Position(server="s1", file="b.000001", offset=4))
    assert not low.passed_by(Position(server="s1", file="b.000001", offset=4, gtids="0-1-5"))


def test_a_place_is_past_another_by_the_file_alone_and_only_between_transactions() -> None:
    assert at(130, gtids=f"{A}:1").past(at(100, gtids=f"{A}:1-9"))
    assert not at(100).past(at(100))
    assert not at(130, rows=1).past(at(100))
    assert not at(130, server="s2").past(at(100))


def test_a_distance_is_told_within_one_file() -> None:
    assert at(130).distance(at(100)) == 30
    assert at(100).distance(at(130)) == -30
    assert at(4, file="b.000002").distance(at(100)) is None
    assert at(130).distance(at(100, server="s2")) is None


def test_two_places_are_in_one_transaction_if_both_are_inside_the_one_that_starts_there() -> None:
    inside = at(100, rows=2)
    assert inside.same_transaction(at(100, rows=7))
    for other in (at(100), at(130, rows=2), at(100, rows=2, server="s2")):
        assert not inside.same_transaction(other)
    assert inside.boundary() == at(100) == at(100).boundary()


def test_cursors_that_met_go_on_from_the_later_place_or_with_what_both_sets_name() -> None:
    here, later = at(100, gtids=f"{A}:1-5"), at(130, gtids=f"{A}:1-5")
    assert here.joined(later) == later
    assert later.joined(here) == later
    assert at(100, gtids=f"{A}:1-5").joined(at(100, gtids=f"{A}:1-3:7")) == at(100, gtids=f"{A}:1-3")
    assert at(100, gtids=f"{A}:1").joined(at(100)) == at(100)
    maria = at(100, gtids="0-1-5")
    assert maria.joined(at(100, gtids="0-1-5,1-1-7")) == maria
    assert here.joined(at(130, gtids=f"{A}:1-5", server="s2")) == here
