"""What others commit to `main` of a lake table is never undone unseen; on a real Spark and a real lake.

Another user, by Spark SQL, commits to `shop.stock`; `shop.orders` beside it stays as it is. The model of the source is
the journal's, from which a test removes what a person decided to lose.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import ConfigError
from cutline.common.status.pipeline_status import Held
from cutline.spark_writer.sinks.iceberg import upkeep
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.spark_bench import Heard, LakeStart, SparkBench, T, U, both_live, newest, order, same, schema, stock

THEIRS, OURS = U.table_id, T.table_id
DELETE = f"DELETE FROM lake.{THEIRS} WHERE item = 3"
REWRITE = (
    f"CALL lake.system.rewrite_data_files(table => '{THEIRS}', options => map('rewrite-all', 'true',"
    " 'delete-file-threshold', '1'))"
)


class Seen(SparkBench):
    """A bench with another client's view of the table; opening a catalogue for each look takes a second."""

    @cached_property
    def other(self) -> LakeTable:
        return self.lake().ensure(THEIRS)


@pytest.fixture
def bench(spark: Any, tmp_path: Path) -> Iterator[Seen]:
    made = Seen(spark, tmp_path)
    yield made
    made.close()


def live(bench: Seen) -> LakeStart:
    """The table alone, live."""
    bench.journal.table(U)
    bench.journal.chunk(U, [stock(number, number) for number in range(6)])
    bench.journal.checkpoint()
    return bench.apply()


def change(bench: Seen, number: int, incarnation: LakeStart | None = None, *, inside: bool = False) -> int:
    """Update, delete and insert, and apply the checkpoint if there is an incarnation to do it."""
    journal = bench.journal
    rows = (("+U", stock(number, 200 + number)), ("-D", stock(5, 5)), ("+I", stock(10 + number, number)))
    journal.change(U, *rows, ("-D", stock(4, 4)))
    if OURS in journal.models:
        journal.change(T, ("+U", order(number, "again")), ("-D", order(5)))
    n = journal.checkpoint(inside=inside)
    if incarnation is not None:
        bench.apply(incarnation)
    return n


def main(bench: Seen) -> int:
    bench.other.refresh()
    return int(bench.other.java.currentSnapshot().snapshotId())


def files(bench: Seen) -> set[str]:
    return set(bench.other.contents(main(bench)).files)


def live_at(bench: Seen, n: int) -> bool:
    """Whether each table shows checkpoint `n` exactly, which is published."""
    record = newest(bench)
    assert record.n == n
    for table_id, table in record.tables.items():
        assert table.shown
        assert table.state == "live"
        assert same(bench.rows(table_id), bench.journal.at[n][table_id])
    return True


def parked_at(bench: Seen, n: int) -> str:
    """The cause for which publication `n` leaves the table out."""
    record = newest(bench)
    assert record.n == n
    held = record.tables[THEIRS].held
    assert held is not None
    return str(held.cause)


def choose(incarnation: LakeStart, choice: str) -> None:
    incarnation.choose(THEIRS, choice, incarnation.foreign[THEIRS].seen)


def without(bench: Seen, *items: int) -> None:
    """Remove rows from the model that the lake lacks because a person accepted it."""
    for item in items:
        bench.journal.models[THEIRS].pop((f"p{item}", item))


def once(step: str, do: Callable[[], object]) -> Callable[[str], None]:
    """Return a `reached` that does something the second time that a step is reached."""
    left = [lambda: None, do]

    def reached(now: str) -> None:
        if now == step and left:
            left.pop(0)()

    return reached


def test_a_delete_by_another_user_parks_its_table_alone_until_accept_keeps_it(bench: Seen) -> None:
    """1. DELETE: parked, the other table goes on. 2. Accept. 3. Another DELETE: parked. 4. Accept both."""
    incarnation = both_live(bench)
    bench.session.sql(DELETE)
    theirs, rows = main(bench), bench.rows(THEIRS)
    n = change(bench, 1, incarnation)
    cause = parked_at(bench, n)
    assert main(bench) == theirs
    assert newest(bench).tables[OURS].shown
    assert same(bench.rows(OURS), bench.journal.at[n][OURS])
    assert re.search(r"^another user \(engine-name spark, .*app-id", cause), cause
    assert re.search(rf"at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(snapshot {theirs}, operation ", cause), cause
    assert "operation delete, 1 rows deleted by position" in cause
    assert "cutline lake accept" in cause
    assert same(bench.rows(THEIRS), rows)
    seen = incarnation.foreign[THEIRS].seen
    choose(incarnation, "accept")
    bench.session.sql(f"DELETE FROM lake.{THEIRS} WHERE item = 2")
    assert "the last of 2" in parked_at(bench, change(bench, 0, incarnation))
    with pytest.raises(ConfigError, match="again"):
        incarnation.choose(THEIRS, "accept", seen)
    choose(incarnation, "accept")
    choose(incarnation, "accept")
    without(bench, 3, 2)
    assert live_at(bench, change(bench, 1, incarnation))
    assert incarnation.foreign == {}
    with pytest.raises(ConfigError, match="awaits a choice"):
        incarnation.choose(THEIRS, "accept", seen)


def test_overwrite_replaces_it_by_the_rows_of_the_source_and_a_new_start_remembers_the_choice(bench: Seen) -> None:
    """1. DELETE: parked. 2. Overwrite, then a crash. 3. The next start replaces it. 4. The next DELETE: parked."""
    incarnation = live(bench)
    bench.session.sql(DELETE)
    theirs = main(bench)
    parked_at(bench, change(bench, 1, incarnation))
    choose(incarnation, "overwrite")
    incarnation = bench.start()
    assert main(bench) == theirs
    assert live_at(bench, change(bench, 0, incarnation))
    assert bench.journal.models[THEIRS]["p3", 3] in bench.rows(THEIRS)[1]
    bench.session.sql(DELETE)
    parked_at(bench, change(bench, 1, incarnation))  # the choice was about the other one


def test_a_column_of_another_user_parks_the_table_until_it_is_overwritten_or_dropped_again(bench: Seen) -> None:
    incarnation = live(bench)
    bench.session.sql(f"ALTER TABLE lake.{THEIRS} ADD COLUMN mine string")
    assert "with mine" in parked_at(bench, change(bench, 1, incarnation))
    assert incarnation.foreign[THEIRS].choices == ("overwrite",)
    with pytest.raises(ConfigError, match="no choice"):
        choose(incarnation, "accept")
    assert bench.rows(THEIRS)[0] == ("place", "item", "amount", "mine")
    choose(incarnation, "overwrite")
    assert live_at(bench, change(bench, 0, incarnation))
    bench.session.sql(f"ALTER TABLE lake.{THEIRS} ADD COLUMN mine string")
    parked_at(bench, change(bench, 1, incarnation))
    bench.session.sql(f"ALTER TABLE lake.{THEIRS} DROP COLUMN mine")
    incarnation.retry()
    assert live_at(bench, change(bench, 2, incarnation))


def test_a_rollback_parks_the_table_and_accept_applies_later_changes_on_top_of_it(bench: Seen) -> None:
    journal, incarnation = bench.journal, live(bench)
    first, before = newest(bench).n, newest(bench).tables[THEIRS].main
    assert before is not None
    change(bench, 0, incarnation)
    bench.other.refresh()
    bench.other.java.manageSnapshots().rollbackTo(snapshot_of(before.content)).commit()
    assert f" UTC to snapshot {before.content} of" in parked_at(bench, change(bench, 1, incarnation))
    assert same(bench.rows(THEIRS), journal.at[first][THEIRS])
    choose(incarnation, "accept")
    without(bench, 10)  # what the second publication had changed
    journal.models[THEIRS]["p0", 0] = stock(0, 0)
    assert live_at(bench, change(bench, 2, incarnation))


def test_a_rewrite_of_its_files_is_taken_over_and_changes_go_on_in_the_rewritten_files(bench: Seen) -> None:
    """1. A rewrite, then changes. 2. An applied cut inside a transaction, a rewrite, then changes. 3. A rewrite, then a
    new start, which leaves it."""
    incarnation = live(bench)
    bench.session.sql(REWRITE)
    kept = files(bench)
    assert live_at(bench, change(bench, 1, incarnation))
    assert kept <= files(bench)
    change(bench, 2, incarnation, inside=True)
    bench.session.sql(REWRITE)
    kept = files(bench)
    assert live_at(bench, change(bench, 3, incarnation))
    assert kept <= files(bench)
    bench.session.sql(REWRITE)
    theirs = main(bench)
    again = bench.start()
    assert main(bench) == theirs
    assert live_at(bench, change(bench, 1, again))


def test_a_rewrite_and_a_compaction_of_ours_at_the_same_time_lose_nothing(
    bench: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    incarnation = live(bench)
    monkeypatch.setattr(upkeep, "TIER", 2)
    change(bench, 1, incarnation)
    work = incarnation.progress.work[THEIRS]
    for _ in range(3):
        incarnation.upkeep.run()
    assert incarnation.progress.work[THEIRS] != work
    bench.session.sql(REWRITE)
    kept = files(bench)
    last = bench.journal.checkpoint()
    bench.apply(incarnation)
    assert live_at(bench, last)
    assert kept <= files(bench)


@pytest.mark.parametrize("step", ["applied", "published"])
def test_a_rewrite_in_the_middle_of_a_checkpoint_loses_and_doubles_nothing(
    bench: Seen, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the publication it is kept, after it undone, with a warning that names it. A table without a key shows
    what was doubled."""
    journal = bench.journal
    keyless = schema(THEIRS, (), place="varchar(20)", item="int", amount="int")
    journal.table(keyless)
    journal.chunk(keyless, [stock(number, number) for number in range(4)])
    journal.checkpoint()
    rewritten: list[str] = []

    def rewrite() -> None:
        bench.session.sql(REWRITE)
        rewritten.extend([str(main(bench)), *files(bench)])

    incarnation = bench.start(once(step, rewrite))
    bench.apply(incarnation)
    for number in range(2):
        journal.change(keyless, ("+I", stock(1, number)), ("+I", stock(1, number)))
        last = journal.checkpoint()
        with caplog.at_level(logging.WARNING, "cutline"):
            bench.apply(incarnation)
        assert live_at(bench, last)
    assert rewritten
    assert set(rewritten[1:]) <= files(bench) or step == "published"
    warned = [record.message for record in caplog.records if f"snapshot {rewritten[0]}," in record.message]
    assert len(warned) == (step == "published")


@pytest.mark.parametrize(("step", "choice"), [("applied", "accept"), ("published", "overwrite")])
def test_a_delete_in_the_middle_of_a_checkpoint_is_never_undone_unseen(bench: Seen, step: str, choice: str) -> None:
    """1. A DELETE between apply and publication, or between that and `main`. 2. That start is gone, the next one shows
    the same publication again. 3. The choice: its content, and nothing is lost.
    """
    bench.journal.table(U)
    bench.journal.chunk(U, [stock(number, number) for number in range(6)])
    bench.journal.checkpoint()
    first = bench.start(once(step, lambda: bench.session.sql(DELETE)))
    bench.apply(first)
    shown = newest(bench).n
    change(bench, 1, first)
    theirs = main(bench)
    held = first.progress.quarantined[THEIRS]
    assert held.applied == shown
    incarnation = bench.start()
    assert main(bench) == theirs
    parked_at(bench, change(bench, 2, incarnation))
    held = incarnation.progress.quarantined[THEIRS]
    assert (held.applied, main(bench)) == (shown, theirs)
    choose(incarnation, choice)
    if choice == "accept":
        without(bench, 3)
    assert live_at(bench, change(bench, 0, incarnation))


def test_a_delete_before_a_crash_in_the_last_window_is_kept_by_accept_at_the_next_start(bench: Seen) -> None:
    """1. A start dies after its publication, before `main`. 2. DELETE. 3. The next start: parked. 4. Accept, again a
    start that shows the old publication."""

    class Killed(Exception):
        pass

    def die(step: str) -> None:
        if step == "published":
            raise Killed

    live(bench)
    shown = newest(bench).n
    change(bench, 1)
    with pytest.raises(Killed):
        bench.apply(bench.start(die))
    bench.session.sql(DELETE)
    theirs = main(bench)
    incarnation = bench.start()
    assert incarnation.progress.quarantined[THEIRS].applied == shown
    choose(incarnation, "accept")
    incarnation = bench.start()
    assert main(bench) == theirs
    without(bench, 3)
    assert live_at(bench, change(bench, 0, incarnation))


def test_a_table_whose_changes_since_the_foreign_commit_are_gone_is_read_again(bench: Seen) -> None:
    """1. Parked; the staged changes since are swept. 2. Accept. 3. Its next generation has the rows of the source."""
    journal, incarnation = bench.journal, live(bench)
    bench.session.sql(DELETE)
    change(bench, 1)
    staged = [file for file in journal.store.entry(journal.store.last_slot()).staged if file.table == THEIRS]
    bench.apply(incarnation)
    for file in staged:
        Path(journal.store.location(file.path)).unlink()
    choose(incarnation, "accept")
    parked_at(bench, change(bench, 2, incarnation))
    assert incarnation.progress.read_again == {THEIRS: 1}
    rows = list(journal.models[THEIRS].values())
    journal.table(U, generation=2)
    journal.chunk(U, rows)
    last = journal.checkpoint()
    bench.apply(incarnation)
    assert live_at(bench, last)


def test_the_service_reports_what_awaits_a_choice_and_takes_it(bench: Seen) -> None:
    live(bench)
    bench.session.sql(DELETE)
    change(bench, 1)
    lead = Heard()
    applier = bench.driver(lead)

    def held() -> Held | None:
        return lead.status.quarantined.get(THEIRS)

    def seen() -> str | None:
        return None if (now := held()) is None else now.seen

    def chosen() -> str | None:
        return None if (now := held()) is None else now.chosen

    def ask(choice: str, seen: str | None) -> None:
        body = json.dumps({"kind": "lake", "table": THEIRS, "choice": choice, "seen": seen}).encode()
        lead.requests.append(body)
        until(lambda: body in lead.handled, "an end of the request")

    thread = threading.Thread(target=applier.run)
    thread.start()
    try:
        until(lambda: (now := held()) is not None and now.choices == ("accept", "overwrite"), "the choices")
        ask("accept", "0/0")
        assert (seen() is not None, chosen()) == (True, None)
        ask("accept", seen())
        until(lambda: chosen() == "accept", "the choice")
        without(bench, 3)
        last = change(bench, 0)
        until(lambda: newest(bench).n == last and not held(), "the publication")
    finally:
        lead.stop.set()
        thread.join(60)
    assert live_at(bench, last)


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)
