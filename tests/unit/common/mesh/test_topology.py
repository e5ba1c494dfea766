"""The channels of a mesh: who sends to whom, and along which channels markers run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutline.common.mesh.topology import ENUMERATOR, READER, WRITER, Role, Topology

MESH = Topology({"reader": 2, "writer": 3})
READERS, WRITERS = MESH.named(READER), MESH.named(WRITER)


def test_members_are_named_by_their_place_in_the_plan() -> None:
    assert (READERS, WRITERS) == (("reader-0", "reader-1"), ("writer-0", "writer-1", "writer-2"))


def test_a_mesh_has_one_channel_for_each_directed_pair() -> None:
    channels = MESH.channels()
    assert len(channels) == len(set(channels)) == 2 + 2 + 2 * 3 + 3 + 3
    assert (ENUMERATOR, "reader-1") in channels
    assert ("reader-1", "writer-2") in channels
    assert not any(sender.startswith("writer") and receiver != ENUMERATOR for sender, receiver in channels)


def test_a_cut_has_every_channel_but_those_between_writers_and_the_enumerator() -> None:
    between = {pair for writer in WRITERS for pair in ((writer, ENUMERATOR), (ENUMERATOR, writer))}
    assert set(MESH.channels()) - set(MESH.cut_channels()) == between


def test_every_member_hears_the_enumerator() -> None:
    assert all(ENUMERATOR in MESH.inbound(member) for member in (*READERS, *WRITERS))


@pytest.mark.parametrize(
    ("member", "inbound", "outbound"),
    [
        (ENUMERATOR, READERS + WRITERS, READERS + WRITERS),
        ("reader-0", (ENUMERATOR,), (*WRITERS, ENUMERATOR)),
        ("writer-1", (*READERS, ENUMERATOR), (ENUMERATOR,)),
    ],
)
def test_each_member_has_its_ends(member: str, inbound: tuple[str, ...], outbound: tuple[str, ...]) -> None:
    assert (MESH.inbound(member), MESH.outbound(member)) == (inbound, outbound)


def test_a_writer_sends_no_marker_and_the_enumerator_awaits_none_of_it() -> None:
    assert MESH.cut_outbound("writer-0") == ()
    assert MESH.cut_inbound(ENUMERATOR) == MESH.cut_outbound(ENUMERATOR) == READERS
    assert MESH.cut_inbound("writer-0") == READERS
    assert MESH.cut_outbound("reader-0") == MESH.outbound("reader-0")


def test_a_third_role_is_a_line_and_gets_rows_markers_and_the_enumerators_words() -> None:
    feeding = replace(READER, feeds=("writer", "feed"))
    mesh = Topology({"reader": 1, "writer": 1, "feed": 2}, (feeding, WRITER, Role(name="feed", marked=False)))
    assert mesh.members == ("reader-0", "writer-0", "feed-0", "feed-1")
    assert mesh.cut_inbound("feed-1") == ("reader-0",)
    assert mesh.cut_outbound("reader-0") == ("writer-0", "feed-0", "feed-1", ENUMERATOR)
    assert mesh.inbound("feed-1") == ("reader-0", ENUMERATOR)
    assert mesh.cut_inbound(ENUMERATOR) == ("reader-0",)
    assert mesh.unmarked == ("writer-0", "feed-0", "feed-1")
    assert mesh.rows_channels() == 3
