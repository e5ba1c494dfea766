"""Causes are values: their form, their list in the docs, and that no code reads their sentences."""

from __future__ import annotations

from cutline.common.causes import MEANINGS, QUARANTINES, Cause, Code, joined
from cutline.common.errors import ConfigError, NoRoom, ProtocolError, SourceLost, Unavailable
from tools import cause_list

LACK = Cause(Code.NO_KEY, "shop.orders has no identity", "add a primary key")


def test_a_cause_is_read_back_also_by_a_version_that_lacks_its_code_or_has_more_fields() -> None:
    assert Cause.from_json(LACK.to_json()) == LACK
    newer = {"code": "of_the_future", "sentence": "it rained", "since": 3}
    assert Cause.from_json(newer) == Cause(Code.OTHER, "it rained")
    assert Cause.from_json({}) == Cause(Code.OTHER, "")


def test_for_people_a_cause_is_its_sentence_and_its_remedy() -> None:
    assert str(LACK) == "shop.orders has no identity; add a primary key"
    assert str(Cause(Code.CHANGED, "it changed")) == "it changed"
    assert str(LACK.before("start: ").at("b.000001:4")) == (
        "start: shop.orders has no identity (at b.000001:4); add a primary key"
    )
    assert LACK.advised("retry it").remedy == "add a primary key; retry it"


def test_several_causes_of_one_effect_keep_the_first_code_and_name_each_remedy_once() -> None:
    engine = Cause(Code.UNSUPPORTED, "its engine is MEMORY", "leave it out")
    found = joined([LACK, engine, Cause(Code.VALUE, "a row is too large", "leave it out")])
    assert (found.code, found.remedy) == (Code.NO_KEY, "add a primary key; leave it out")
    assert found.sentence == "shop.orders has no identity; its engine is MEMORY; a row is too large"
    assert joined([engine]) is engine


def test_an_error_carries_its_cause_with_the_code_of_its_class_unless_it_names_another() -> None:
    assert ProtocolError("parts disagree").cause.code == Code.PROTOCOL
    assert NoRoom("Redis is full", "give it memory").cause == Cause(Code.REDIS_FULL, "Redis is full", "give it memory")
    assert Unavailable(LACK).cause is LACK
    assert (SourceLost(LACK, "shop.orders").table, str(SourceLost(LACK))) == ("shop.orders", str(LACK))


def test_a_wrong_configuration_has_each_of_its_faults() -> None:
    port = Cause(Code.CONFIGURATION, "the port is 0", "correct it")
    assert ConfigError("the port is 0", "correct it").faults == (port,)
    error = ConfigError.several([port, LACK])
    assert error.faults == (port, LACK)
    assert error.cause == joined([port, LACK])


def test_every_code_has_a_meaning_and_what_to_do() -> None:
    assert MEANINGS.keys() == set(Code)
    assert set(QUARANTINES) <= set(Code)


def test_the_page_is_as_the_code_is() -> None:
    assert cause_list.PAGE.read_text(encoding="utf-8") == cause_list.render(), "run `make causes`"
