"""Lives of pipelines: a name that is used again is another pipeline, whatever the first one's processes still do."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from cutline.common.errors import ConfigError
from cutline.common.store.command_records import Orders, Outcome
from cutline.common.store.lives import Life, Lives
from cutline.common.store.store import PipelineStore, Store
from tests.support import records


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}"


def made(url: str, **definition: object) -> PipelineStore:
    shop = Store(url).pipeline("shop")
    assert shop.define(definition or {"a": 1})
    return shop


def deleted(shop: PipelineStore) -> None:
    shop.put_deleting()
    shop.remove_files()
    shop.end()


def test_a_pipeline_made_again_has_another_id_and_nothing_of_the_first(url: str) -> None:
    first = made(url, a=1)
    first.put_entry(records.epoch(1))
    assert first.claim() == 1
    deleted(first)
    assert Store(url).pipelines() == []
    assert Store(url).pipeline("shop").definition() is None
    again = made(url, a=2)
    assert (again.id != first.id, again.life.number) == (True, 2)
    assert (again.last_slot(), again.publication_numbers(), again.claim()) == (0, [], 1)
    assert Store(url).pipeline("shop").definition() == {"a": 2}
    assert first.has_ended()
    assert not again.has_ended()


def test_what_the_first_ones_processes_do_after_its_deletion_never_reaches_the_second(url: str) -> None:
    """1. A leader, a Spark writer and a control service of the first pipeline are suspended.  2. It is deleted and made
    again.  3. They wake: an entry, a command, a claim, a sweep, a retirement, the deletion once more."""
    first = made(url)
    first.put_entry(records.epoch(1))
    deleted(first)
    again = made(url)
    again.put_entry(records.epoch(1, nonce="again"))
    again.put_entry(records.checkpoint(2))
    before = [again.entry(1), again.entry(2), again.definition()]
    first.put_entry(records.epoch(1, nonce="late"))
    first.commands.add("delete", {}, by="ann", now=1.0)
    first.removal.sweep()
    first.removal.retire(9)
    first.claim()
    deleted(first)
    assert [again.entry(1), again.entry(2), again.definition()] == before
    assert again.slots() == [1, 2]
    assert again.commands.newest() == 0
    assert not again.deleting()
    assert Store(url).pipelines() == ["shop"]


@pytest.mark.parametrize("steps", range(4))
def test_a_deletion_that_was_cut_short_is_completed_by_the_next_leader(url: str, steps: int) -> None:
    shop = made(url)
    shop.put_entry(records.epoch(1))
    for step in (shop.put_deleting, shop.remove_files, lambda: Lives(shop._folder._backend).end(shop.life))[:steps]:
        step()
    if steps < 3:
        (life,) = Store(url).lives()
        deleted(Store(url).open(life))
    assert Store(url).lives() == []
    again = made(url, a=3)
    assert again.slots() == []
    Store(url).sweep()
    assert Store(url).open(shop.life).definition() is None
    assert again.definition() == {"a": 3}


def test_a_creation_that_was_cut_short_is_completed_by_the_next(url: str) -> None:
    life = records.begun(url).life
    assert Store(url).pipelines() == []
    shop = made(url, a=2)
    assert shop.life == life


def test_a_creation_that_comes_after_the_deletion_of_its_life_begins_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A process has begun a life and is suspended.  2. Another one defines the pipeline, which is then deleted.
    3. The first process puts its definition."""
    slow = Store(url).pipeline("shop")
    lives = slow._folder.lives
    begin = lives.begin
    began: list[Life] = []

    def suspended(name: str) -> Life:
        life = begin(name)
        if not began:
            deleted(made(url, a="another"))
        began.append(life)
        return life

    monkeypatch.setattr(lives, "begin", suspended)
    assert slow.define({"a": "slow"})
    assert [life.number for life in began] == [1, 2]
    assert Store(url).pipeline("shop").definition() == {"a": "slow"}
    assert not slow.has_ended()


def test_a_creation_whose_number_was_used_and_removed_is_no_life(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A process has seen that life 1 ended, and is suspended.  2. Life 2 comes and goes, life 3 comes, and the
    records of 1 and 2 are removed.  3. The process puts a record of life 2."""
    deleted(made(url))
    slow = Lives(Store(url)._backend)
    numbers = slow._numbers
    late = []

    def seen() -> dict[str, dict[int, bool]]:
        found = numbers()
        if not late:  # `begin` has looked, and sees life 1 as the newest
            deleted(made(url))
            made(url, a=3)
            monkeypatch.setattr("cutline.common.store.lives._KEPT_SECONDS", -1.0)
            Store(url).sweep()
        late.append(found)
        return found

    monkeypatch.setattr(slow, "_numbers", seen)
    life = slow.begin("shop")
    assert (life.number, life.id) == (3, Store(url).pipeline("shop").id)


def test_of_threads_that_define_one_name_all_get_one_life(url: str) -> None:
    found: list[str] = []

    def define() -> None:
        shop = Store(url).pipeline("shop")
        shop.define({"a": 1})
        found.append(shop.id)

    threads = [threading.Thread(target=define) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_sweep_removes_what_is_left_of_ended_lives_and_nothing_else(url: str) -> None:
    first = made(url)
    deleted(first)
    again, crm = made(url), Store(url).pipeline("crm")
    crm.define({})
    crm.put_entry(records.epoch(1))
    unfinished = records.begun(url, "begun")
    unfinished.claim()
    first.put_entry(records.epoch(1))  # by a leader that was suspended
    other = Store(url)._backend
    other.create("lake/orders/data.parquet", b"rows")  # a lake beside the pipelines
    other.create("shop/notes.txt", b"a person's")
    assert Store(url).sweep() == [first.life]
    assert first.slots() == []
    assert other.names(first.life.folder) == []
    assert (crm.slots(), again.definition(), unfinished._numbers("spark")) == ([1], {"a": 1}, [1])
    assert other.read("lake/orders/data.parquet") == b"rows"
    assert other.read("shop/notes.txt") == b"a person's"


def test_a_pipeline_that_is_being_deleted_is_not_defined_again_as_the_same(url: str) -> None:
    shop = made(url, a=1)
    command = shop.commands.add("delete", {}, by="ann", now=1.0)
    shop.commands.put_outcome(Outcome(n=command.n, state="done", at=2.0, orders=Orders(mode="deleting")))
    for definition in ({"a": 1}, {"a": 2}):
        with pytest.raises(ConfigError, match="is being deleted; wait until it is gone"):
            Store(url).pipeline("shop").define(definition)
    deleted(shop)
    assert Store(url).pipeline("shop").define({"a": 1})


def test_nothing_can_be_written_to_a_name_without_a_pipeline(url: str) -> None:
    with pytest.raises(ConfigError, match="the store has no pipeline 'shop'; define it first"):
        Store(url).pipeline("shop").claim()
    with pytest.raises(ConfigError, match="no pipeline 'shop'"):
        Store(url).pipeline("shop").commands.add("pause", {}, by="ann", now=1.0)


def test_the_key_of_a_life_finds_it_until_it_has_ended(url: str) -> None:
    shop = made(url)
    store = Store(url)
    assert store.life(shop.key) == shop.life
    deleted(shop)
    made(url)
    assert store.life(shop.key) is None
