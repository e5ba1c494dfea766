"""Patches that break one rule of lives, deletions and retention, or of a source that hangs inside a transaction."""

from __future__ import annotations

from tests.simulation.mutants import CHECKPOINTING, LEADER, READER_STREAM, REMOVAL, RETENTION, Mutant, mutant, unit

AGENDA = "services/enumerator/agenda.py"
COMMANDING = "services/enumerator/commanding.py"
COMMANDS_FILE = "common/store/commands.py"
ENUMERATOR_DRIVER = "services/enumerator/driver.py"
JOURNAL = "services/enumerator/journal.py"
LIVES_FILE = "common/store/lives.py"
READER_DRIVER = "services/reader/driver.py"
PIPELINES = "services/enumerator/pipelines.py"
OWNER = "spark_writer/sinks/iceberg/owner.py"
PURGING = "spark_writer/sinks/iceberg/purging.py"
RESTORING = "common/store/restoring.py"
UPKEEP = "spark_writer/sinks/iceberg/upkeep.py"
RETIRING = "        while True:\n            number, before = self._retired_note()\n"
LOOK = "        allowed = self._nothing_goes_back(n, kept)\n"


def of_lives(rule: str, file: str, old: str, new: str, seeds: int = 150, first: int = 1) -> Mutant:
    return Mutant(rule, ((file, old, new),), seeds, first=first, world="lives")


LIVES: tuple[Mutant, ...] = (
    of_lives(
        "a life is known in Redis by its pipeline's name alone",
        LIVES_FILE,
        '        return Key(f"{self.name}.{self.id}")',
        '        return Key(f"{self.name}.{0:012d}")',
    ),
    of_lives(
        "every life of a name has the same folder",
        LIVES_FILE,
        'folder=f"{name}.{drawn}", at',
        "folder=f\"{name}.{'0' * 12}\", at",
    ),
    of_lives(
        "folders of ended lives are not swept",
        LIVES_FILE,
        "                self._backend.remove_all(folder)",
        "                pass",
    ),
    of_lives(
        "what the last life has is swept too",
        LIVES_FILE,
        "(life.folder != folder or numbers[life.number])",
        "(life.folder != folder or True)",
    ),
    of_lives(
        "the end of the newest life of a name is swept, so that its number comes again",
        LIVES_FILE,
        "                if life != newest and time.time() - newest.at > _KEPT_SECONDS:\n",
        "                if time.time() - newest.at > _KEPT_SECONDS:\n",
        first=20,
    ),
    of_lives(
        "what a deposed leader has begun goes on",
        ENUMERATOR_DRIVER,
        "            for task in self._tenure:\n                task.cancel()\n",
        "            pass\n",
    ),
    of_lives(
        "what Redis has of an ended life is not swept",
        PIPELINES,
        "        if life.key in noted:\n",
        "        if life.key in ():\n",
    ),
    unit(
        "a lake table of another life is a pipeline's own",
        OWNER,
        "        if life == self.id:",
        "        if life is not None:",
        "test_owner.py",
    ),
    unit(
        "a deletion that was cut short reads the journal again",
        JOURNAL,
        "        if self.store.deleting():  # for good",
        "        if False:  # for good",
        "test_enumerator_driver.py::test_a_deletion_that_was_cut_short_is_gone_on_with_from_what_is_left",
    ),
    unit(
        "a deletion that was cut short needs the definition in force",
        PIPELINES,
        "        if definition is None and await in_store(store.deleting):",
        "        if False:",
        "test_enumerator_driver.py::test_a_deletion_that_was_cut_short_is_gone_on_with_from_what_is_left",
    ),
    of_lives(
        "a deletion says nothing while the store does not answer",
        "services/enumerator/status.py",
        '    return Wait(Party.STORE, "the removal of what the store and Redis have of it", cause, since)',
        "    return None  # type: ignore[return-value]",
    ),
    unit(
        "files are removed though a restore that needs them was commanded",
        REMOVAL,
        "        if any(base < n and base not in kept for base in asked):",
        "        if False:",
        "test_store_retention.py::test_nothing_is_retired_that_a_restore_under_way_needs",
    ),
    Mutant(
        "retention looks for restores before its note, not after it",
        ((REMOVAL, LOOK, ""), (REMOVAL, RETIRING, LOOK + RETIRING)),
        tests="test_store_retention.py::test_of_a_restore_and_a_retention_that_cross_at_any_call_one_gives_way",
    ),
    unit(
        "a round of retention that comes late notes what it would keep",
        REMOVAL,
        'if n < known["n"] and self._goes_on_from(',
        "if n < 0 and self._goes_on_from(",
        "test_store_retention.py::test_a_round_that_comes_late_makes_nothing_valid_that_a_later_one_removes",
    ),
    unit(
        "a savepoint that one round did not keep is kept by a later one",
        REMOVAL,
        ' if cut >= known["n"] or cut in known["kept"])',
        ")",
        "test_store_retention.py::test_a_savepoint_that_one_round_did_not_keep_is_kept_by_no_later_one",
    ),
    mutant(
        "a checkpoint can be restored though what it needs is being removed",
        RESTORING,
        "if n > 0 and whole else None",
        "if n > 0 else None",
        first=1270,
    ),
    mutant(
        "retention keeps what a publication goes on from, not what it shows",
        RETENTION,
        "for found in (table.main, table.work) if found",
        "for found in (table.work,) if found",
        first=35,
    ),
    unit(
        "what only a publication needs that a restore left behind goes within the grace",
        RETENTION,
        "        if oldest is None:\n            room -=",
        "        if oldest is None and record.n not in chain:\n            continue\n"
                "        if oldest is None:\n            room -=",
        "test_retention.py::test_a_publication_that_a_restore_left_behind_stays_within_the_grace",
    ),
    mutant(
        "snapshots expire by their age alone",
        UPKEEP,
        "before_ms=min(before_ms, *made_ms), kept=stay)",
        "before_ms=min(before_ms, *made_ms), kept=())",
    ),
    mutant(
        "staged files stay when their rows are in the lake",
        REMOVAL,
        "            for path in sorted(existing & done - needed):\n                remove(path)\n",
        "",
        100,
    ),
    mutant(
        "a marker waits for a source that hangs, for ever",
        READER_STREAM,
        "given_up = self._still >= STILL_SECONDS or self._waited >= LONGEST_SECONDS",
        "given_up = False",
        first=80,
    ),
    mutant(
        "a source that hangs inside a transaction gets a checkpoint each interval",
        CHECKPOINTING,
        "            interval = max(interval, self.started_at - self._inside[1])",
        "            pass",
        first=110,
    ),
    mutant(
        "the status does not say that the source hangs inside a transaction",
        CHECKPOINTING,
        "        if self._inside is not None and now - self._inside[1] > SILENT_SECONDS:",
        "        if self._inside is not None and False:",
        first=110,
    ),
    mutant(
        "a stop without a savepoint's name fails where the source hangs",
        AGENDA,
        '        if taken.command.wish == Stop():',
        "        if False:",
        first=350,
    ),
    unit(
        "a stream that goes on after a silence tells nobody",
        READER_STREAM,
        "if resumes else []",
        "if False else []",
        "test_reader_*.py",
    ),
    mutant(
        "an epoch that begins anew keeps the tables of its base",
        LEADER,
        "            self.enumerator.begin_anew(self.anew, now)",
        "            pass",
    ),
    mutant(
        "the next epoch forgets that the last one was to begin anew",
        AGENDA,
        "        return as_before if awaited is None or awaited.base is None else None",
        "        return None",
        first=25,
    ),
    unit(
        "a command that is cancelled leaves its orders",
        AGENDA,
        "            target.orders = self.standing\n            target.answer",
        "            target.answer",
        "test_agenda*.py",
    ),
    mutant(
        "the checkpoint in flight still answers a command that was cancelled",
        CHECKPOINTING,
        "            self.in_flight = self.in_flight[0], None\n",
        "            pass\n",
        first=100,
    ),
    unit(
        "a command is cancelled though its epoch is in the journal",
        AGENDA,
        "        if command.n == self.entered or (in_part",
        "        if (in_part",
        "test_agenda*.py",
    ),
    unit(
        "every table is read again after a loss, whatever the definition says of it",
        LEADER,
        "if lost != Loss.POSITION or self.anew or not self.settings.reads_again:",
        "if lost != Loss.POSITION or self.anew:",
        "test_agenda.py::test_every_table_is_read_again_in_the_next_epoch_of_a_pipeline_that_halted",
    ),
    unit(
        "each reader may send what all readers together may, without a checkpoint",
        READER_DRIVER,
        "max_unsaved_bytes // topology.counts[READER.name]",
        "max_unsaved_bytes",
        "test_reader_chunks.py::test_the_readers_of_an_epoch_share_the_bound_of_rows_without_a_checkpoint",
    ),
    unit(
        "a command that the Spark writer has begun is cancelled",
        COMMANDING,
        "            if self.store.commands.take(other, why) == why:\n",
        "            if True:\n",
        "test_commands.py::test_what_waits_for_the_spark_writer_is_cancelled_until_that_takes_it",
    ),
    unit(
        "whoever comes last has a command that the Spark writer and a cancellation take",
        COMMANDS_FILE,
        "        return self.taker(n) or taker\n",
        "        return taker\n",
        "test_commands.py::test_what_waits_for_the_spark_writer_is_cancelled_until_that_takes_it",
    ),
    unit(
        "a command that failed since the Spark writer did not begin it is carried out later",
        COMMANDING,
        "                        await self._in_store(self.store.commands.take, n, why)\n",
        "                        return withdrawn(n, why)\n",
        "test_commands.py::test_what_the_spark_writer_did_not_begin_in_time_is_not_carried_out_later",
    ),
    unit(
        "every table is read again only where a person asks for it",
        LEADER,
        "            self._lost_again, self.halts = True, 0",
        "            self.state = HALTED\n            return [*effects, self._dismiss()]",
        "test_agenda*.py",
    ),
)
