"""Whose a lake table is: decided by the id of a pipeline's life, never by its name alone."""

from __future__ import annotations

import pytest

from cutline.spark_writer.sinks.iceberg.owner import ID, OWNER, Owner, Relation, earlier_of

NEW = "0123456789ab"
OLD = "ba9876543210"


@pytest.mark.parametrize(
    ("name", "life", "carried_over", "adopts", "wanted"),
    [
        ("shop", NEW, False, False, Relation.OURS),
        ("shop", NEW, True, True, Relation.OURS),
        ("shop", OLD, False, False, Relation.EARLIER),
        ("shop", OLD, True, False, Relation.EARLIER),
        ("shop", OLD, False, True, Relation.ADOPTED),
        ("shop", None, False, False, Relation.EARLIER),
        ("shop", None, False, True, Relation.ADOPTED),
        ("shop", None, True, False, Relation.UNMARKED),
        ("shop", None, True, True, Relation.UNMARKED),
        ("crm", OLD, False, True, Relation.ANOTHERS),
        ("crm", NEW, False, False, Relation.ANOTHERS),
        (None, None, True, True, Relation.NOBODYS),
        (None, NEW, False, True, Relation.NOBODYS),
    ],
)
def test_a_table_is_ones_own_by_its_id_and_taken_over_only_if_the_definition_says_so(
    name: str | None, life: str | None, carried_over: bool, adopts: bool, wanted: Relation
) -> None:
    owner = Owner(name="shop", id=NEW, carried_over=carried_over, adopts=adopts)
    assert owner.relation(name, life) == wanted
    assert owner.has(name, life) == (wanted in (Relation.OURS, Relation.UNMARKED))
    refused = owner.refusal("the table", name, life)
    assert (refused is None) == (wanted in (Relation.OURS, Relation.UNMARKED, Relation.ADOPTED))


def test_a_table_that_was_taken_over_is_not_taken_back() -> None:
    """Two stores on one catalogue have a pipeline of one name each, and both say `adopt`."""
    first, second = Owner(name="shop", id=OLD, adopts=True), Owner(name="shop", id=NEW, adopts=True)
    assert second.relation("shop", OLD) == Relation.ADOPTED
    assert first.relation("shop", NEW, {OLD}) == Relation.LATER
    refused = first.refusal("the table", "shop", NEW, {OLD})
    assert refused is not None
    assert all(words in refused for words in ("taken over", OLD, NEW, "delete this pipeline"))
    assert first.relation("shop", OLD, {OLD, NEW}) == Relation.OURS
    assert Owner(name="shop", id=OLD, carried_over=True, adopts=True).relation("shop", NEW, {"shop"}) == Relation.LATER
    third = Owner(name="shop", id="111111111111", adopts=True)
    assert third.relation("shop", NEW, {OLD}) == Relation.ADOPTED


def test_a_refusal_names_the_choices() -> None:
    owner = Owner(name="shop", id=NEW)
    assert owner.properties == {OWNER: "shop", ID: NEW}
    earlier = owner.refusal("the table", "shop", OLD)
    assert earlier is not None
    assert all(words in earlier for words in (OLD, NEW, "`sink: {adopt: true}`", "another warehouse"))
    assert "was not made by Cutline" in str(owner.refusal("the table", None, None))


def test_the_earlier_lives_of_a_table_are_words() -> None:
    assert earlier_of(None) == frozenset()
    assert earlier_of(f"{OLD} shop") == {OLD, "shop"}
