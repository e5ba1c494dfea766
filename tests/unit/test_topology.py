"""The channels of a mesh: who sends to whom, and along which channels markers run."""

from __future__ import annotations

import pytest

from cutline.common.mesh.topology import ENUMERATOR, Topology

MESH = Topology.of(2, 3)


def test_members_are_named_by_their_place_in_the_plan() -> None:
    assert (MESH.readers, MESH.writers) == (("reader-0", "reader-1"), ("writer-0", "writer-1", "writer-2"))


def test_a_mesh_has_one_channel_for_each_directed_pair() -> None:
    channels = MESH.channels()
    assert len(channels) == len(set(channels)) == 2 + 2 + 2 * 3 + 3 + 3
    assert (ENUMERATOR, "reader-1") in channels
    assert ("reader-1", "writer-2") in channels
    assert not any(sender.startswith("writer") and receiver != ENUMERATOR for sender, receiver in channels)


def test_a_cut_has_every_channel_but_those_between_writers_and_the_enumerator() -> None:
    between = {pair for writer in MESH.writers for pair in ((writer, ENUMERATOR), (ENUMERATOR, writer))}
    assert set(MESH.channels()) - set(MESH.cut_channels()) == between


def test_every_member_hears_the_enumerator() -> None:
    assert all(ENUMERATOR in MESH.inbound(member) for member in (*MESH.readers, *MESH.writers))


@pytest.mark.parametrize(
    ("member", "inbound", "outbound"),
    [
        (ENUMERATOR, MESH.readers + MESH.writers, MESH.readers + MESH.writers),
        ("reader-0", (ENUMERATOR,), (*MESH.writers, ENUMERATOR)),
        ("writer-1", (*MESH.readers, ENUMERATOR), (ENUMERATOR,)),
    ],
)
def test_each_member_has_its_ends(member: str, inbound: tuple[str, ...], outbound: tuple[str, ...]) -> None:
    assert (MESH.inbound(member), MESH.outbound(member)) == (inbound, outbound)


def test_a_writer_sends_no_marker_and_the_enumerator_awaits_none_of_it() -> None:
    assert MESH.cut_outbound("writer-0") == ()
    assert MESH.cut_inbound(ENUMERATOR) == MESH.cut_outbound(ENUMERATOR) == MESH.readers
    assert MESH.cut_inbound("writer-0") == MESH.readers
    assert MESH.cut_outbound("reader-0") == MESH.outbound("reader-0")
