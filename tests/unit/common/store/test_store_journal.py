"""The store's journal: definitions, slots that are given once, what is torn, refused or another's."""

import multiprocessing
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.store import backends
from cutline.common.store.store import PipelineStore, Store
from tests.support import records
from tests.support.causes import because
from tests.support.records import epoch
from tests.support.shop_store import checkpoint, files, published, shop, url

__all__ = ["files", "shop", "url"]  # the fixtures


ROOT = Path(__file__).resolve().parents[4]


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# The definition


def test_a_pipeline_is_defined_once_and_the_same_definition_again_is_no_fault(url: str) -> None:
    definition = {"tables": ["shop.*"], "snapshot": {"chunk_rows": 50000}, "stop": None}
    assert Store(url).pipeline("shop").define(definition)
    assert not Store(url).pipeline("shop").define(dict(reversed(definition.items())))
    assert Store(url).pipeline("shop").definition() == definition
    assert Store(url).pipelines() == ["shop"]


def test_a_listing_looks_once_at_each_pipeline_and_misses_one_that_is_removed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looked = Store(url), list[str]()
    backend = store._backend
    exists = backend.exists

    def counted(path: str) -> bool:
        looked.append(path)
        return exists(path)

    monkeypatch.setattr(backend, "exists", counted)
    store.pipeline("shop").define({})
    records.begun(url, "crm").claim()
    assert store.pipelines() == store.pipelines() == ["shop"]
    assert looked.count(f"{store.pipeline('shop').life.folder}/pipeline.json") == 1
    store.pipeline("crm").define({})
    assert store.pipelines() == ["crm", "shop"]
    store.pipeline("shop").end()
    assert store.pipelines() == ["crm"]


def test_a_name_in_use_with_another_content_is_refused_naming_what_differs(shop: PipelineStore) -> None:
    shop.define({"tables": ["shop.*"], "sink": {"warehouse": "a"}, "stop": None})
    with pytest.raises(ConfigError, match=r"'shop' is in use in this store with another sink, stop .*pipeline.json"):
        shop.define({"tables": ["shop.*"], "sink": {"warehouse": "b"}, "stop": {"gtid": "x"}})


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "ä", "x" * 64])
def test_a_name_that_could_leave_its_folder_names_no_pipeline(url: str, name: str) -> None:
    with pytest.raises(ConfigError, match="can't name a pipeline"):
        Store(url).pipeline(name)


def test_an_empty_store_has_nothing(shop: PipelineStore, url: str) -> None:
    assert Store(url).pipelines() == []
    assert shop.definition() is None
    assert shop.last_slot() == 0
    assert list(records.entries(shop)) == []
    assert shop.publications() == []
    assert shop.removal.sweep() == []


def test_an_address_of_a_kind_without_put_if_absent_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs put-if-absent"):
        Store("ftp://host/store")


def test_a_plain_folder_is_a_store_too(tmp_path: Path) -> None:
    Store(str(tmp_path / "store")).pipeline("shop").define({})
    assert Store(f"file://{tmp_path}/store").pipelines() == ["shop"]


def test_a_store_that_can_be_written_passes_and_keeps_nothing_of_the_look(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/store").prepare()
    assert everything(tmp_path) == set()


def test_a_store_that_can_not_be_written_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    with pytest.raises(ConfigError, match="file"):
        Store(f"file://{tmp_path}/file/store").prepare()
    with pytest.raises(ConfigError):
        Store("file:///proc/cutline").prepare()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody without rights")
def test_a_store_without_the_right_to_write_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"cutline-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o755)
    script = (
        "import os, sys; from cutline.common.store.store import Store; os.setuid(65534); Store(sys.argv[1]).prepare()"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, f"file://{folder}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        folder.rmdir()
    assert "ConfigError" in done.stderr
    assert "give Cutline the right to it" in done.stderr


# The journal


def test_a_slot_is_given_once(shop: PipelineStore) -> None:
    assert shop.put_entry(epoch(1, nonce="mine"))
    assert not shop.put_entry(epoch(1, nonce="another"))
    assert shop.entry(1) == epoch(1, nonce="mine")
    assert shop.entry(2) is None


def test_a_slot_can_not_be_left_out(shop: PipelineStore) -> None:
    shop.put_entry(epoch(1))
    with pytest.raises(ProtocolError, match="slot 3 can't be written before slot 2"):
        shop.put_entry(checkpoint(3, 1))
    with pytest.raises(ProtocolError, match="slot 0 can't be written"):
        shop.put_entry(epoch(0))


def test_the_tail_is_what_came_after_also_when_others_wrote_it(url: str) -> None:
    writer, reader = records.begun(url), records.begun(url)
    writer.put_entry(epoch(1))
    assert [entry.slot for entry in records.entries(reader)] == [1]
    for slot in range(2, 12):
        writer.put_entry(checkpoint(slot, 1))
    assert reader.last_slot() == 11
    assert [entry.slot for entry in records.entries(reader, after=8)] == [9, 10, 11]


def test_text_of_any_kind_comes_back_as_written(shop: PipelineStore) -> None:
    entry = epoch(1, cause=because("Zürich \ud83d \U0001f600 \x00"))
    shop.put_entry(entry)
    assert shop.entry(1) == entry


def test_an_entry_stays_where_the_store_can_not_tell_what_retention_removed(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is withdrawn where retention has removed its slot: then the journal went on long ago. A disk that fails
    is no sign of that, and others may have read the entry by then."""
    files.put_entry(epoch(1))
    listdir = os.listdir

    def failing(path: Any) -> list[str]:
        if str(path).endswith("retired"):
            raise OSError(5, "Input/output error")
        return listdir(path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "listdir", failing)
        with pytest.raises(Unavailable):
            files.put_entry(checkpoint(2, 1))
    assert files.entry(2) == checkpoint(2, 1)


def test_a_file_that_can_not_be_looked_at_is_not_taken_for_one_that_is_not_there(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put_entry(epoch(1))

    def failing(path: Any, **options: Any) -> os.stat_result:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "lstat", failing)
        with pytest.raises(Unavailable):
            files.has("journal/0000000001.json")


def test_a_slot_or_a_publication_that_retention_removed_is_given_to_nobody(files: PipelineStore) -> None:
    """1. Slot 3 is kept, a savepoint. 2. Retention removes what is before slot 6, also slot 4. 3. A leader that knows
    nothing after slot 3 wakes, and a Spark writer that is as far behind."""
    late = PipelineStore(files._folder)
    late_spark = PipelineStore(files._folder)
    files.put_entry(epoch(1))
    for slot in range(2, 7):
        assert files.put_entry(checkpoint(slot, 1, kept=slot == 3))
        if slot == 3:
            assert late.last_slot() == 3
    for n in (2, 3, 6):
        assert files.publish(published(n))
    files.removal.retire(6, {3})
    assert 4 not in files.slots()
    assert not late.put_entry(epoch(4, base=3, nonce="late"))
    assert not late_spark.publish(published(4))
    assert files.entry(4) is None
    assert files.publication(4) is None


def test_an_entry_in_another_ones_place_stops_the_reader(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    os.rename(files.location("journal/0000000001.json"), files.location("journal/0000000002.json"))
    with pytest.raises(ProtocolError, match=r"0000000002.json holds the entry of slot 1; restore the journal"):
        files.entry(2)


def test_any_flipped_byte_of_an_entry_is_seen(files: PipelineStore) -> None:
    files.put_entry(epoch(1))
    location = Path(files.location("journal/0000000001.json"))
    whole = location.read_bytes()
    for at in range(len(whole)):
        location.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((ProtocolError, ConfigError), match=r"0000000001\.json"):
            files.entry(1)
    for length in range(len(whole)):
        location.write_bytes(whole[:length])
        with pytest.raises(ProtocolError, match=r"0000000001.json .* (restore|remove)"):
            files.entry(1)
    location.write_bytes(whole)
    assert files.entry(1) is not None


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (5, r"a newer Cutline \(format 5, this one reads 4\); use that version"),
        (1, r"an older Cutline \(format 1, this one reads 4\); use that version, or give the pipeline another name"),
    ],
)
def test_a_file_of_another_version_is_named_with_the_remedy(files: PipelineStore, number: int, named: str) -> None:
    files.define({"a": 1})
    location = Path(files.location("pipeline.json"))
    location.write_bytes(location.read_bytes().replace(b'"format":4', b'"format":%d' % number))
    with pytest.raises(ConfigError, match=f"pipeline.json .*{named}"):
        files.define({"a": 1})


def test_somebody_elses_file_is_not_taken_for_ours(files: PipelineStore) -> None:
    files.define({"a": 1})
    Path(files.location("pipeline.json")).write_text('{"name": "somebody else\'s"}')
    with pytest.raises(ProtocolError, match=r"pipeline\.json is not an envelope of Cutline"):
        files.definition()


def race(url: str, me: int, start: Any, won: Any) -> None:
    """Try for every slot as fast as it goes; note those that were given to us."""
    shop = records.begun(url)
    start.wait()
    for slot in range(1, 101):
        if shop.put_entry(epoch(slot, nonce=f"process {me}", cause=because("x" * 10_000 * me))):
            won.put((slot, me))
    won.put(None)


def test_of_processes_that_race_for_a_slot_exactly_one_gets_it_and_it_is_its_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    url = f"file://{tmp_path}/store"
    start, won = context.Event(), context.Queue()
    racers = [context.Process(target=race, args=(url, me, start, won)) for me in range(3)]
    for racer in racers:
        racer.start()
    start.set()
    ended, given = 0, []
    while ended < len(racers):
        got = won.get(timeout=60)
        ended, given = (ended + 1, given) if got is None else (ended, [*given, got])
    for racer in racers:
        racer.join(timeout=60)
    assert sorted(slot for slot, _ in given) == list(range(1, 101))
    tail = records.entries(Store(url).pipeline("shop"))
    assert {entry.slot: entry.nonce for entry in tail} == {slot: f"process {me}" for slot, me in given}
    assert {name.rpartition("/")[0].rpartition("/")[2] for name in everything(tmp_path)} == {"journal", "pipelines"}
    assert not [name for name in everything(tmp_path) if name.endswith(".tmp")]


def test_threads_that_race_for_claims_get_different_numbers_without_a_hole(url: str) -> None:
    claimed: list[int] = []
    threads = [
        threading.Thread(target=lambda: claimed.extend(records.begun(url).claim() for _ in range(20)))
        for _ in range(4 if url.startswith("file") else 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(1, len(threads) * 20 + 1))
    assert records.begun(url).claim() == len(claimed) + 1


class Torn(Exception):
    """The power failed."""


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_torn_write_leaves_no_entry_and_the_slot_free(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files.put_entry(epoch(1))

    def tear(*_: object) -> None:
        raise Torn

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, call, tear)
        broken.setattr(backends._Files, "discard", lambda *_: None)
        with pytest.raises(Torn):
            files.put_entry(checkpoint(2, 1))
    assert any(name.endswith(".tmp") for name in os.listdir(files.location("journal")))
    fresh = PipelineStore(files._folder)
    assert fresh.last_slot() == 1
    assert fresh.put_entry(checkpoint(2, 1))
    assert [entry.slot for entry in records.entries(fresh)] == [1, 2]


def test_a_name_whose_folder_was_not_made_durable_is_by_the_repeated_call(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. An entry's link is made, and the fsync of its folder fails. 2. The leader repeats the call, and takes the
    entry with its nonce for written: not before the folder was synced."""
    files.put_entry(epoch(1))
    plain, synced, broken = backends._sync_folder, list[str](), [True]

    def sync(folder: str) -> None:
        if broken:
            raise OSError(5, "Input/output error")
        synced.append(folder)
        plain(folder)

    monkeypatch.setattr(backends, "_sync_folder", sync)
    for _ in range(2):
        with pytest.raises(Unavailable, match="Input/output error"):
            files.put_entry(checkpoint(2, 1))
    broken.clear()
    assert not files.put_entry(checkpoint(2, 1))
    assert synced == [files.location("journal")]


def test_an_error_on_the_way_leaves_no_temporary_file(files: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put_entry(epoch(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, "fsync", full)
        with pytest.raises(Unavailable, match=r"the disk of the store is full, at .*0000000002.json"):
            files.put_entry(checkpoint(2, 1))
    assert os.listdir(files.location("journal")) == ["0000000001.json"]


def test_a_file_system_without_hard_links_is_named_as_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(backends.os, "link", refuse)
    with pytest.raises(ConfigError, match="without hard links"):
        Store(f"file://{tmp_path}/store").prepare()


def test_a_link_that_was_made_though_it_was_answered_as_refused_counts_as_ours(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def repeated(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, "link", repeated)
        assert files.put_entry(epoch(1, nonce="mine"))
        assert not files.put_entry(epoch(1, nonce="another"))
    assert files.entry(1) == epoch(1, nonce="mine")


@pytest.mark.parametrize("arrived", [True, False])
def test_an_unclear_answer_of_the_object_store_is_cleared_by_a_look(
    monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    shop = records.begun(f"memory://{uuid.uuid4().hex}")
    filesystem = shop._folder._backend._fs  # type: ignore[attr-defined]
    pipe = filesystem.pipe_file

    def unclear(path: str, data: bytes, mode: str) -> None:
        if arrived:
            pipe(path, data, mode=mode)
        raise TimeoutError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(filesystem, "pipe_file", unclear)
        if arrived:
            assert shop.put_entry(epoch(1, nonce="mine"))
        else:
            with pytest.raises(Unavailable, match="no answer"):
                shop.put_entry(epoch(1, nonce="mine"))
    assert shop.put_entry(epoch(1, nonce="mine")) is not arrived
    assert not shop.put_entry(epoch(1, nonce="another"))
    assert shop.entry(1) == epoch(1, nonce="mine")
