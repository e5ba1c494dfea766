"""What entries and publications cost and tell, and which schemas are kept for them."""

from dataclasses import replace
from pathlib import Path

import pytest

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.schema import Column, TableSchema
from cutline.common.store import backends
from cutline.common.store.command_records import Orders, Outcome
from cutline.common.store.origin import Origin
from cutline.common.store.records import (
    ChangeCounts,
    CheckpointEntry,
    Content,
    EpochEntry,
    Main,
    Place,
    PublishedTable,
    Quarantine,
    TableEntry,
    Work,
)
from cutline.common.store.store import PipelineStore, Store
from tests.support import records
from tests.support.causes import because
from tests.support.records import epoch
from tests.support.shop_store import checkpoint, files, published, shop, size, staged, url

__all__ = ["files", "shop", "url"]  # the fixtures


def test_a_publication_is_written_once_and_listed_in_order(shop: PipelineStore) -> None:
    assert shop.publish(published(3))
    assert shop.publish(published(12))
    assert not shop.publish(published(12, w=2))
    assert shop.publication(12) == published(12)
    assert shop.publication(4) is None
    assert shop.publication_numbers() == [3, 12]
    assert [publication.n for publication in shop.publications(after=3)] == [12]


def test_since_when_and_how_much_comes_back_and_what_is_unknown_is_left_out(shop: PipelineStore, url: str) -> None:
    table = records.table(since=7.5, counts=ChangeCounts(1, 2, 3))
    file = records.staged(counts=ChangeCounts(4, 0, 1))
    assert shop.put_entry(replace(epoch(1), failing_since=5.5))
    assert shop.put_entry(checkpoint(2, 1, tables={"d.t": table, "d.u": records.table()}, staged=(file,)))
    work = Work(content=Content("7"), place=Place("b"), generation=1, schema="h", rows=9)
    held = Quarantine(cause=because("x"), generation=1, applied=2, since=8.5)
    main = Main(content=Content("7"), rows=8)
    known = PublishedTable(state="quarantined", generation=1, main=main, work=work, held=held)
    assert shop.publish(replace(published(2), tables={"d.t": known}))
    orders = Orders(mode="paused", mode_since=6.5)
    assert shop.commands.put_outcome(Outcome(n=1, state="done", at=6.5, orders=orders))
    other = Store(url).pipeline("shop")
    first, second, record = other.entry(1), other.entry(2), other.publication(2)
    assert isinstance(first, EpochEntry)
    assert first.failing_since == 5.5
    assert isinstance(second, CheckpointEntry)
    assert (second.tables["d.t"], second.staged) == (table, (file,))
    assert {"since", "counts"}.isdisjoint(second.tables["d.u"].to_json())
    assert record is not None
    assert record.tables["d.t"] == known
    assert other.commands.orders().mode_since == 6.5


def test_an_entry_and_a_publication_cost_what_changed_and_tell_everything(shop: PipelineStore, url: str) -> None:
    """A thousand tables; at each checkpoint one of them has another schema, which its publication shows."""
    schemas = {f"d.t{number}": f"{number:016}" for number in range(1000)}
    shop.put_entry(epoch(1))
    tables_at = {}
    for n in range(2, 60):
        schemas = {**schemas, f"d.t{n}": f"{n + 5000:016}"}
        tables_at[n] = {name: records.table(schema=schema) for name, schema in schemas.items()}
        assert shop.put_entry(checkpoint(n, 1, tables=tables_at[n]))
        assert shop.publish(published(n, tables={name: int(schema) for name, schema in schemas.items()}))
    assert size(shop, "journal/0000000002.json") > 70_000 < size(shop, "publications/0000000002.json")
    assert size(shop, "journal/0000000003.json") < 1000 > size(shop, "publications/0000000003.json")
    fresh = Store(url).pipeline("shop")
    for n in (30, 2, 59, 45):  # full ones come in between, each once
        entry, record = fresh.entry(n), fresh.publication(n)
        assert isinstance(entry, CheckpointEntry)
        assert record is not None
        assert entry.tables == tables_at[n]
        assert {name: int(table.main.content) for name, table in record.tables.items() if table.main} == {
            name: int(table.schema or "") for name, table in tables_at[n].items()
        }
    written = sum(size(shop, f"journal/{n:010}.json") for n in range(3, 60))
    assert written < 2 * size(shop, "journal/0000000002.json") + 57 * 1000


def test_a_table_that_was_removed_is_in_no_later_entry_or_publication(shop: PipelineStore, url: str) -> None:
    tables = {f"shop.t{n}": TableEntry(generation=1, phase="live", schema="s", show=True) for n in range(8)}
    fewer = {name: table for name, table in tables.items() if name != "shop.t3"}
    assert shop.put_entry(epoch(1))
    for slot, held in ((2, tables), (3, fewer), (4, tables)):
        assert shop.put_entry(checkpoint(slot, 1, tables=held))
        assert shop.publish(published(slot, tables=dict.fromkeys(held, slot)))
    other = Store(url).pipeline("shop")
    assert size(shop, "journal/0000000003.json") < size(shop, "journal/0000000002.json")
    found = [other.entry(slot) for slot in (2, 3, 4)]
    assert [len(entry.tables) for entry in found if isinstance(entry, CheckpointEntry)] == [8, 7, 8]
    assert [set(record.tables) for record in other.publications()] == [set(tables), set(fewer), set(tables)]
    assert other.removal.sweep() == []


def test_a_burst_of_changes_is_not_repeated_by_later_entries(shop: PipelineStore, url: str) -> None:
    """A fifth of a thousand tables changes, then one, then none: each entry costs what changed since the one before."""
    tables = {f"d.t{number}": records.table() for number in range(1000)}
    shop.put_entry(epoch(1))
    states = {}
    for n in range(2, 40):
        changed = range(200) if n == 3 else range(n, n + 1) if n in (10, 20) else ()
        tables = tables | {f"d.t{number}": records.table(schema=f"{n:016}") for number in changed}
        states[n] = tables
        assert shop.put_entry(checkpoint(n, 1, tables=tables))
        assert shop.publish(published(n, tables=dict.fromkeys(tables, n if n in (3, 10, 20) else 1)))
    sizes = {n: size(shop, f"journal/{n:010}.json") for n in states}
    assert sizes[3] > 10_000
    assert max(sizes[n] for n in range(4, 40)) < 1500
    fresh = Store(url).pipeline("shop")
    for n in (39, 3, 15):
        entry = fresh.entry(n)
        assert isinstance(entry, CheckpointEntry)
        assert entry.tables == states[n]
    shop.removal.retire(39)
    assert shop.entry(15) is None
    last = Store(url).pipeline("shop").entry(39)  # needs slots 2 and 3, on which it builds
    assert isinstance(last, CheckpointEntry)
    assert last.tables == states[39]


def test_after_an_unclear_answer_and_in_a_new_epoch_an_entry_builds_on_nothing(
    files: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {f"d.t{number}": records.table() for number in range(20)}
    files.put_entry(epoch(1))
    files.put_entry(checkpoint(2, 1, tables=tables))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(backends.os, "fsync", full)
        with pytest.raises(Unavailable):
            files.put_entry(checkpoint(3, 1, tables=tables))
    files.put_entry(checkpoint(3, 1, tables=tables))
    files.put_entry(checkpoint(4, 1, tables=tables))
    files.put_entry(epoch(5, base=4))
    files.put_entry(checkpoint(6, 5, tables=tables))
    large = [size(files, f"journal/{n:010}.json") > 1000 for n in (2, 3, 4, 6)]
    assert large == [True, True, False, True]


# Schemas


def schema(number: int) -> TableSchema:
    column = Column(name=f"c{number}", field_id=1, mysql_type="int", nullable=False)
    return TableSchema(table_id="d.t", columns=(column,), key=(column.name,), last_field_id=1)


def test_schemas_are_stored_once_and_found_by_their_hash(shop: PipelineStore, url: str) -> None:
    some = [schema(number) for number in range(50)]
    shop.put_schemas(some, epoch=1)
    shop.put_schemas(some[:3], epoch=1)
    assert len(shop._folder.names("schemas")) == 50
    assert Store(url).pipeline("shop").schemas({stored.hash for stored in some}) == {
        stored.hash: stored for stored in some
    }
    with pytest.raises(ProtocolError, match="has no schema 0123, though an entry names it"):
        shop.schemas(["0123"])


def test_a_schema_that_no_entry_names_goes_with_its_epoch(shop: PipelineStore, url: str) -> None:
    """1. Epoch 1 stores three schemas; its checkpoint names one as a table's and one as a file's. 2. Epoch 3 begins and
    stores the third one, which its checkpoint may be about to name, again."""
    of_table, of_file, unnamed = schema(1), schema(2), schema(3)
    shop.put_entry(epoch(1))
    shop.put_schemas((of_table, of_file, unnamed), epoch=1)
    file = records.staged(**staged(shop, 1).to_json(), schema=of_file.hash)
    tables = {"d.t": records.table(schema=of_table.hash)}
    shop.put_entry(records.checkpoint(2, 1, staged=(file,), tables=tables))
    reader = Store(url).pipeline("shop")
    assert reader.schemas([unnamed.hash]) == {unnamed.hash: unnamed}
    shop.put_entry(epoch(3, base=2))
    shop.put_schemas([unnamed], epoch=3)
    assert shop.removal.sweep() == [f"schemas/0000000001.{unnamed.hash}.json"]
    reader._schemas.clear()
    assert reader.schemas([unnamed.hash]) == {unnamed.hash: unnamed}  # from epoch 3's
    assert shop.schemas([of_table.hash, of_file.hash]) == {of_table.hash: of_table, of_file.hash: of_file}


def test_of_a_schema_that_each_epoch_stores_one_copy_stays(shop: PipelineStore, url: str) -> None:
    stored, other = schema(1), schema(2)
    tables = {"d.t": records.table(schema=stored.hash), "d.u": records.table(schema=other.hash)}
    for slot in (1, 3, 5):
        shop.put_entry(epoch(slot, base=slot - 1 or None))
        shop.put_schemas([stored, *([other] if slot == 1 else [])], epoch=slot)
        shop.put_entry(records.checkpoint(slot + 1, slot, tables=tables))
    shop.put_entry(epoch(7, base=6))
    assert shop.removal.sweep() == [f"schemas/{slot:010d}.{stored.hash}.json" for slot in (1, 3)]
    assert Store(url).pipeline("shop").schemas([stored.hash, other.hash]) == {
        stored.hash: stored, other.hash: other,
    }  # fmt: skip


def test_the_schema_of_what_a_table_still_shows_stays_when_no_entry_names_it_any_more(
    shop: PipelineStore, url: str
) -> None:
    shown, other = schema(1), schema(2)
    shop.put_entry(epoch(1))
    shop.put_schemas([shown, other], epoch=1)
    shop.put_entry(records.checkpoint(2, 1))
    main = Main(content=Content("7"), position=records.place(1), origin=Origin(1, shown.hash, None))
    table = PublishedTable(state="snapshot", generation=2, main=main, work=None)
    assert PublishedTable.from_json(table.to_json()) == table
    assert shop.publish(replace(published(2), tables={"d.t": table}))
    shop.put_entry(epoch(3, base=2))
    assert shop.removal.sweep() == [f"schemas/0000000001.{other.hash}.json"]
    assert Store(url).pipeline("shop").schemas([shown.hash]) == {shown.hash: shown}


def test_a_reader_that_follows_the_journal_reads_no_base_a_second_time(files: PipelineStore, tmp_path: Path) -> None:
    """Ten of 100 tables change in each entry, so that bases change too. Each file is removed once it is read."""
    reader = Store(f"file://{tmp_path}/store").pipeline("shop")
    files.put_entry(epoch(1))
    tables = {f"d.t{n:02}": records.table() for n in range(100)}
    for slot in range(2, 60):
        tables |= {f"d.t{n:02}": records.table(generation=slot) for n in range(10)}
        assert files.put_entry(records.checkpoint(slot, 1, tables=dict(tables)))
        found = reader.entry(slot)
        assert isinstance(found, CheckpointEntry)
        assert found.tables == tables
        (read,) = tmp_path.glob(f"store/**/journal/*{slot}.json")
        read.unlink()
