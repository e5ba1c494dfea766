"""Whose a lake table is: decided by the id of a pipeline's life, never by its name alone."""

from __future__ import annotations

import pytest

from cutline.spark_writer.sinks.iceberg.owner import ID, OWNER, Owner, Relation, earlier_of

NEW = "0123456789ab"
OLD = "ba9876543210"


@pytest.mark.parametrize(
    ("name", "life", "adopts", "wanted"),
    [
        ("shop", NEW, False, Relation.OURS),
        ("shop", NEW, True, Relation.OURS),
        ("shop", OLD, False, Relation.EARLIER),
        ("shop", OLD, True, Relation.ADOPTED),
        ("shop", None, False, Relation.EARLIER),
        ("shop", None, True, Relation.ADOPTED),
        ("crm", OLD, True, Relation.ANOTHERS),
        ("crm", NEW, False, Relation.ANOTHERS),
        (None, None, True, Relation.NOBODYS),
        (None, NEW, True, Relation.NOBODYS),
    ],
)
def test_a_table_is_ones_own_by_its_id_and_taken_over_only_if_the_definition_says_so(
    name: str | None, life: str | None, adopts: bool, wanted: Relation
) -> None:
    owner = Owner(name="shop", id=NEW, adopts=adopts)
    assert owner.relation(name, life) == wanted
    assert owner.has(name, life) == (wanted == Relation.OURS)
    refused = owner.refusal("the table", name, life)
    assert (refused is None) == (wanted in (Relation.OURS, Relation.ADOPTED))


def test_a_table_that_was_taken_over_is_not_taken_back() -> None:
    """Two stores on one catalogue have a pipeline of one name each, and both say `adopt`."""
    first, second = Owner(name="shop", id=OLD, adopts=True), Owner(name="shop", id=NEW, adopts=True)
    assert second.relation("shop", OLD) == Relation.ADOPTED
    assert first.relation("shop", NEW, {OLD}) == Relation.LATER
    refused = first.refusal("the table", "shop", NEW, {OLD})
    assert refused is not None
    assert all(words in str(refused) for words in ("taken over", OLD, NEW, "delete this pipeline"))
    assert first.relation("shop", OLD, {OLD, NEW}) == Relation.OURS
    third = Owner(name="shop", id="111111111111", adopts=True)
    assert third.relation("shop", NEW, {OLD}) == Relation.ADOPTED


def test_a_refusal_names_the_choices() -> None:
    owner = Owner(name="shop", id=NEW)
    assert owner.properties == {OWNER: "shop", ID: NEW}
    earlier = owner.refusal("the table", "shop", OLD)
    assert earlier is not None
    assert all(words in str(earlier) for words in (OLD, NEW, "`sink: {adopt: true}`", "another warehouse"))
    assert "was not made by Cutline" in str(owner.refusal("the table", None, None))


def test_the_earlier_lives_of_a_table_are_words() -> None:
    assert earlier_of(None) == frozenset()
    assert earlier_of(f"{OLD} shop") == {OLD, "shop"}
