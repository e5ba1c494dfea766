"""Patches that break one rule of the commands, or of the lease that members hold on their leader; a sweep of the mesh
or a file of unit tests must notice each."""

from __future__ import annotations

from tests.simulation.mutants import (
    CHECKPOINTING,
    CHECKPOINTS,
    ENUMERATOR,
    LEADER,
    READER_STREAM,
    SPLITS,
    TABLE_COMMANDS,
    Mutant,
    mutant,
    unit,
)

AGENDA = "services/enumerator/agenda.py"
RECEIVER = "common/mesh/receiver.py"
DEFINITIONS = "common/store/definitions.py"
KINDS = "common/commands/kinds.py"
SILENCE = "common/mesh/silence.py"

COMMANDS: tuple[Mutant, ...] = (
    mutant(
        "a command about tables is done before a checkpoint has it",
        AGENDA,
        "            if taken.step == Step.MACHINE and taken.command.n <= commands:",
        "            if taken.step == Step.MACHINE:",
    ),
    unit(
        "outcomes are written out of order",
        AGENDA,
        "        first = self.taken[0] if self.taken else None\n",
        "        first = next((t for t in self.taken if t.step == Step.ANSWERED), None)\n",
        "test_agenda_cancelling.py",
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
        "an epoch has the limits of its base, not those that were ordered since",
        LEADER,
        "        self.enumerator.limits = self.limits  # a restored part has those of its time\n",
        "",
    ),
    unit(
        "limits are ordered, and the open epoch is not told",
        LEADER,
        "                return self._to_the_enumerator(LimitsOrdered(limits=limits), now)\n",
        "                pass\n",
        "test_agenda.py::test_limits_are_standing_orders_that_hold_at_once_and_in_every_later_epoch",
    ),
    unit(
        "the last savepoint of one `cutline run` ends the checkpoints of every mesh",
        CHECKPOINTING,
        "or (run is not None and run == self._part_of)",
        "or run is not None",
        "test_agenda*.py",
    ),
    unit(
        "a halted pipeline is not resumed, though it is started",
        KINDS,
        'frozenset({"paused", "stopped", "halted"})',
        'frozenset({"paused", "stopped"})',
        "test_command_rules.py::test_a_halted_pipeline_tries_again_after_resume_and_after_start",
    ),
    unit(
        "a definition that failed counts as the newest version",
        DEFINITIONS,
        "            version = about.base\n",
        "            version = about.version - 1\n",
        "test_command_rules.py::test_a_version_after_one_that_failed_names_what_it_changed",
    ),
    mutant(
        "the part forgets the commands that it has",
        TABLE_COMMANDS,
        '    return commands["done"], ',
        "    return 0, ",
    ),
    Mutant(
        "a command that a checkpoint has, or may have, is cancelled",
        ((AGENDA, "        return leader.checkpoints.may_have(command.n, in_part=in_part, leads=leader.leads)\n",
          "        return False\n"),
         (AGENDA, "(in_part and command.n <= self.kept):", "False:")),
        tests="test_agenda*.py",
    ),
    unit(
        "a table leaves the stream inside a transaction, so that rows without a key come twice",
        READER_STREAM,
        "(cursor.asked or cursor.position.inside):\n                continue\n            low,",
        "cursor.asked:\n                continue\n            low,",
        "test_reader_*.py",
    ),
    unit(
        "a command that is alone is taken beside others",
        AGENDA,
        "        if self.taken or leader.proposes:\n            return None\n",
        "",
        "test_agenda*.py",
    ),
    Mutant(
        "the deletion begins before its order is in the store",
        ((LEADER, "        if not self.agenda.outcome_written(event.n):\n            return []\n",
          "        self.agenda.outcome_written(event.n)\n"),
         (LEADER, "        self.agenda.accept(event.command)\n",
          "        self.agenda.accept(event.command)\n        if event.command.kind == 'delete':\n"
          "            return [DeletePipeline()]\n")),
        tests="test_agenda*.py",
    ),
    mutant(
        "members stay with a leader that is gone for good",
        SILENCE,
        "return self.seconds >= LEADER_SECONDS",
        "return False",
        300,
    ),
    unit(
        "a leader whose checkpoint does not come says nothing",
        CHECKPOINTING,
        "        if self.in_flight is not None and now - self.started_at > DOUBT_SECONDS:",
        "        if self.in_flight is None and now - self.started_at > DOUBT_SECONDS:",
        "test_leader_checkpoints.py::test_a_late_checkpoint_is_what_the_leader_waits_for",
    ),
    unit(
        "a leader is lost after time in which its member could not hear it",
        SILENCE,
        "self.seconds + min(STEP_SECONDS, now - self._read_at)",
        "self.seconds + now - self._read_at",
        "test_silence.py",
    ),
    unit(
        "a member that hears others does not miss its leader",
        RECEIVER,
        "heard=self._inlets[self._leader].heard == now",
        "heard=max(inlet.heard for inlet in self._inlets.values()) == now",
        "test_channels.py",
    ),
    unit(
        "a leader that finds the pipeline stopped leaves the members of its predecessor",
        LEADER,
        "        return [*effects, self._dismiss()]\n\n    def tell(",
        "        return [*effects, *([self._dismiss()] if effects else [])]\n\n    def tell(",
        "test_agenda*.py",
    ),
    mutant(
        "splits of a paused table are handed out",
        SPLITS,
        "(self._tables.by_name[name].phase == PAUSED or self.holds.waits(name)):",
        "self.holds.waits(name):",
    ),
    mutant(
        "a table that comes back is its first generation again",
        ENUMERATOR,
        "            generation = self.number_after(self.gone.pop(item.table_id, 0))",
        "            generation = self.number_after(0)",
    ),
    mutant(
        "after a restore the numbers of generations come again",
        LEADER,
        "        self.floor = max(event.floor, event.highest) if left else event.floor",
        "        self.floor = event.floor",
    ),
    mutant(
        "after a restore a table of which the base has nothing yet begins the generation that it has begun before",
        ENUMERATOR,
        "for table in self.tables.values() if table.high is None]:",
        "for table in () if table.high is None]:",
    ),
    mutant(
        "an entry still has the tables that left",
        CHECKPOINTS,
        "        if gone := before.keys() - tables.keys():",
        "        if gone := before.keys() - before.keys():",
    ),
)
