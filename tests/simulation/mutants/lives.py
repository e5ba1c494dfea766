"""Patches that break one rule of lives, deletions and retention, or of a source that hangs inside a transaction."""

from __future__ import annotations

from tests.simulation.mutants import LEADER, READER, STORE, Mutant, mutant

AGENDA = "services/enumerator/agenda.py"
ENUMERATORS = "services/enumerator/__main__.py"
LIVES_FILE = "common/store/lives.py"
OWNER = "spark_writer/iceberg/owner.py"
PURGING = "spark_writer/iceberg/purging.py"
RESTORING = "common/store/restoring.py"
RETENTION = "spark_writer/retention.py"
UPKEEP = "spark_writer/upkeep.py"


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
        "what Redis has of an ended life is not swept",
        ENUMERATORS,
        "        if life.key in noted:\n",
        "        if life.key in ():\n",
    ),
    of_lives(
        "a lake table of another life is a pipeline's own",
        OWNER,
        "        if life == self.id:",
        "        if life is not None:",
        first=45,
    ),
    of_lives(
        "a deletion that was cut short reads the journal again",
        ENUMERATORS,
        "            if self.store.deleting():  # for good",
        "            if False:  # for good",
    ),
    of_lives(
        "a deletion that was cut short needs the definition in force",
        ENUMERATORS,
        "        if definition is None and await in_store(store.deleting):",
        "        if False:",
        first=25,
    ),
    of_lives(
        "a deletion says nothing while the store does not answer",
        ENUMERATORS,
        '        return f"the removal of what the store and Redis have of it{failed}"',
        '        return ""',
    ),
    mutant(
        "files are removed though a restore that needs them was commanded",
        STORE,
        "        if any(isinstance(base, int) and base < n and base not in kept for base in asked):",
        "        if False:",
        first=215,
    ),
    mutant(
        "a checkpoint can be restored though what it needs is being removed",
        RESTORING,
        "if n > 0 and (n >= oldest or n in kept) else None",
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
    mutant(
        "snapshots expire by their age alone",
        UPKEEP,
        "                    kept=kept.of(table_id),\n",
        "                    kept=(),\n",
    ),
    mutant(
        "staged files stay when their rows are in the lake",
        STORE,
        "            for path in sorted(existing & done - needed):\n                remove(path)\n",
        "",
        100,
    ),
    mutant(
        "a marker waits for a source that hangs, for ever",
        READER,
        "given_up = self._still >= STILL_SECONDS or self._waited >= LONGEST_SECONDS",
        "given_up = False",
        first=80,
    ),
    mutant(
        "a source that hangs inside a transaction gets a checkpoint each interval",
        LEADER,
        "            interval = max(interval, self.started_at - self._inside[1])",
        "            pass",
        first=110,
    ),
    mutant(
        "the status does not say that the source hangs inside a transaction",
        LEADER,
        "case LeaderState.LEADING if self._inside is not None and now",
        "case LeaderState.LEADING if self._inside is None and now",
        first=110,
    ),
    mutant(
        "a stop without a savepoint's name fails where the source hangs",
        AGENDA,
        '        if taken.command.kind == "stop" and taken.command.arguments.get("savepoint") is None:',
        "        if False:",
        first=350,
    ),
    Mutant(
        "a stream that goes on after a silence tells nobody",
        ((READER, "if resumes else []", "if False else []"),),
        tests="test_reader.py",
    ),
    mutant(
        "an epoch that begins anew keeps the tables of its base",
        LEADER,
        "            self.enumerator.begin_anew(self.anew)",
        "            pass",
    ),
    mutant(
        "the next epoch forgets that the last one was to begin anew",
        AGENDA,
        "        return as_before if awaited is None or awaited.base is None else None",
        "        return None",
        first=25,
    ),
    Mutant(
        "a command that is cancelled leaves its orders",
        (
            (
                AGENDA,
                "            target.orders = self.standing\n            target.answer",
                "            target.answer",
            ),
        ),
        tests="test_agenda.py",
    ),
    Mutant(
        "a command is cancelled though its epoch is in the journal",
        ((AGENDA, "        return kept or command.n == self.entered or leader", "        return kept or leader"),),
        tests="test_agenda.py",
    ),
    Mutant(
        "every table is read again only where a person asks for it",
        (
            (
                LEADER,
                "            self._lost_again, self.halts = True, 0",
                "            self.state = HALTED\n            return [*effects, self._dismiss()]",
            ),
        ),
        tests="test_agenda.py",
    ),
)
