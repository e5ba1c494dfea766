"""Patches that break one rule of the commands each; the sweep of the mesh must fail for every one."""

from __future__ import annotations

from tests.simulation.mutants import CHECKPOINTS, ENUMERATOR, READER, Mutant, mutant

AGENDA = "services/enumerator/agenda.py"

COMMANDS: tuple[Mutant, ...] = (
    mutant(
        "a command about tables is done before a checkpoint has it",
        AGENDA,
        "            if taken.step == Step.MACHINE and taken.command.n <= commands:",
        "            if taken.step == Step.MACHINE:",
    ),
    mutant(
        "outcomes are written out of order",
        AGENDA,
        "        first = self.taken[0] if self.taken else None\n",
        "        first = next((t for t in self.taken if t.step == Step.ANSWERED), None)\n",
    ),
    mutant(
        "a restore begins at the newest checkpoint",
        AGENDA,
        "        return newest if awaited is None or awaited.base is None else awaited.base",
        "        return newest",
    ),
    mutant(
        "the next epoch keeps to the definition of the last one",
        AGENDA,
        "        return self.orders.definition if awaited is None else awaited.orders.definition",
        "        return self.orders.definition",
    ),
    mutant(
        "a pipeline that was paused begins another epoch",
        AGENDA,
        '        return self.orders.mode == "running" or self._next_epoch() is not None',
        "        return True",
    ),
    mutant(
        "the part forgets the commands that it has",
        ENUMERATOR,
        '        machine.commands_done = commands["done"]',
        "        pass",
    ),
    mutant(
        "a table leaves the stream inside a transaction",
        READER,
        "            if cursor is not None and (cursor.asked or cursor.position.inside):\n                continue\n"
        "            low, high",
        "            if cursor is not None and cursor.asked:\n                continue\n            low, high",
    ),
    mutant(
        "a table leaves the stream while its cursor is being read",
        READER,
        "            if cursor is not None and (cursor.asked or cursor.position.inside):\n                continue\n"
        "            low, high",
        "            if cursor is not None and cursor.position.inside:\n                continue\n"
        "            low, high",
    ),
    mutant(
        "splits of a paused table are handed out",
        ENUMERATOR,
        "            self.shelved += splits\n",
        "            self.todo += splits\n",
    ),
    mutant(
        "a table that comes back is its first generation again",
        ENUMERATOR,
        "            generation = self.gone.pop(item.table_id, 0) + 1",
        "            generation = 1",
    ),
    mutant(
        "an entry still has the tables that left",
        CHECKPOINTS,
        "        if gone := before.keys() - tables.keys():",
        "        if gone := before.keys() - before.keys():",
    ),
)
