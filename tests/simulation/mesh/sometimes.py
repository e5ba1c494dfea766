"""Rare states of the machines, each the reason of a rule: a sweep must have reached every one ("sometimes" assertions).

A state is looked for after each step of its machine. What a fault or the source did is counted where it happens; here
stand the states that come of several things together, and that no single line of the code marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from cutline.common.mesh.chandy_lamport import Process
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.machine import MAX_ATTEMPTS, Enumerator
from cutline.services.reader.machine import Reader
from cutline.services.reader.stream import STILL_SECONDS, Stream
from cutline.services.reader.tables import CATCH_UP, MAIN
from cutline.services.writer.machine import Writer

State = Callable[[Any], object]
"""True if the machine is in the state."""


def _inside(stream: Stream, cursor: str) -> bool:
    return cursor in stream.cursors and stream.cursors[cursor].position.inside


def _asked(stream: Stream, cursor: str) -> bool:
    return cursor in stream.cursors and stream.cursors[cursor].asked


def _missing(leader: Leader) -> bool:
    return leader.state == "gathering" and len(leader.roster.seen) < sum(leader.roster._expected.values())


def _doubted(leader: Leader) -> bool:
    checkpoints = leader.checkpoints
    return checkpoints.in_flight is not None and checkpoints._doubted_at > checkpoints.led_since > 0.0


LEADER: dict[str, State] = {
    "leader: members are missing": _missing,
    "leader: an epoch is proposed for a command": lambda m: m.state == "proposing" and m.agenda.commanded is not None,
    "leader: it rests after failures": lambda m: m.state == "resting",
    "leader: three epochs failed in a row": lambda m: m.failures >= 3,
    "leader: halted": lambda m: m.state == "halted",
    "leader: stopped": lambda m: m.state == "stopped",
    "leader: two checkpoints are requested": lambda m: len(m.checkpoints.requests) > 1,
    "leader: one is requested, and another in flight": lambda m: m.checkpoints.requests and m.checkpoints.in_flight,
    "leader: members must change, and a checkpoint is in flight": lambda m: m._rescale and m.checkpoints.in_flight,
    "leader: the source is silent inside a transaction": lambda m: m.checkpoints._inside is not None,
    "leader: an epoch began anew": lambda m: m.anew is not None and m.state == "leading",
    "leader: the checkpoint at the stop is requested": lambda m: m.checkpoints._last_asked,
    "leader: a checkpoint is doubted": _doubted,
    "leader: two commands are under way": lambda m: len(m.agenda.taken) > 1,
    "leader: a command waits behind another": lambda m: m.agenda.taken and m.agenda.queue,
}
ENUMERATOR: dict[str, State] = {
    "enumerator: splits of paused or locked tables are kept back": lambda m: m.splits.shelved,
    "enumerator: two tables are locked": lambda m: len(m.splits.holds.names()) > 1,
    "enumerator: a split is being taken back": lambda m: m.splits.taking_back,
    "enumerator: one is being taken back, and a checkpoint collected": lambda m: m.splits.taking_back and m.collecting,
    "enumerator: a split has failed again and again": (
        lambda m: max(m.splits.failures.values(), default=0) >= MAX_ATTEMPTS - 2
    ),
    "enumerator: splits are left, and every reader is full": (
        lambda m: m.splits.todo and not any(m.splits.free.values())
    ),
    "enumerator: a report is accepted beside a checkpoint in flight": lambda m: m.collecting and m.splits.accepted,
    "enumerator: a command is taken after the cut": lambda m: m._cut and m.commands_done > m._cut.commands_done,
    "enumerator: a refusal is not in the store yet": lambda m: m.refused,
    "enumerator: a generation began after the cut": lambda m: m._cut and any(
        t.generation > m._cut.tables[n].generation for n, t in m.tables.items() if n in m._cut.tables
    ),
    "enumerator: a table turned live after the cut": lambda m: m._cut and any(
        t.phase == "live" and m._cut.tables[n].phase != "live" for n, t in m.tables.items() if n in m._cut.tables
    ),
    "enumerator: numbers of generations begin above a floor": lambda m: m.floor,
    "enumerator: a table that left is remembered": lambda m: m.gone,
    "enumerator: a table of the stream is being paused": lambda m: any(t.pausing for t in m.tables.values()),
    "enumerator: a paused table asks for its place": lambda m: any(t.resuming for t in m.tables.values()),
    "enumerator: a table at rest is looked at": lambda m: m._looks.looking,
    "enumerator: the stop is known and not reached": lambda m: m.stop_place is not None and not m.at_stop,
    "enumerator: limits are in force": lambda m: m.limits != m.plan.limits,
}  # fmt: skip
READER: dict[str, State] = {
    "reader: chunks wait until rows are saved": lambda m: m.queue and m.reading is None and m.unsaved.full,
    "reader: parts of two checkpoints are being saved": lambda m: len(m._closing) > 1,
    "reader: stopped while a chunk is read": lambda m: m.stream and m.stream.stopped and m.reading is not None,
}
STREAM: dict[str, State] = {
    "stream: main waits for catch-up": lambda m: m.hold_main,
    "stream: both cursors are read": lambda m: _asked(m, MAIN) and _asked(m, CATCH_UP),
    "stream: both cursors are inside a transaction": lambda m: _inside(m, MAIN) and _inside(m, CATCH_UP),
    "stream: a marker waits": lambda m: m._marker_waits,
    "stream: a marker waits for one of two cursors": (
        lambda m: m._marker_waits and len(m.cursors) == 2 and _inside(m, MAIN) != _inside(m, CATCH_UP)
    ),
    "stream: a marker was taken inside a silent transaction": lambda m: m._was_silent,
    "stream: the source is silent": lambda m: m._still >= STILL_SECONDS,
    "stream: a marker waits, and no row may go out": lambda m: m._marker_waits and m._outlet.unsaved.full,
    "stream: a table waits while main is read": lambda m: m._tables.by_cursor[None] and _asked(m, MAIN),
    "stream: a table waits for the next round": lambda m: m._tables.late and m._tables.by_cursor[CATCH_UP],
    "stream: two tables catch up together": lambda m: len(m._tables.by_cursor[CATCH_UP]) > 1,
    "stream: a table that is to leave is inside a transaction": lambda m: m._tables.pausing and _inside(m, MAIN),
    "stream: at the stop, and tables catch up": lambda m: m.at_stop and m._tables.by_cursor[CATCH_UP],
}
WRITER: dict[str, State] = {
    "writer: changes of before and after a marker": lambda m: len({after for _, _, after in m.changes}) > 1,
    "writer: changes of two generations": lambda m: len(m.changes) > len({(t, a) for t, _, a in m.changes}),
    "writer: a table's columns changed between two markers": lambda m: any(len(f) > 1 for f in m.changes.values()),
    "writer: a chunk ended after a marker that is still awaited": lambda m: len({after for after, _ in m.ended}) > 1,
    "writer: two attempts at one split": lambda m: len({split for split, _ in m.chunks}) < len(m.chunks),
    "writer: files of two checkpoints are being staged": lambda m: len(m.staging) > 1,
}
PROCESS: dict[str, State] = {
    "cut: a marker is held, and messages behind it": lambda p: len(p._held) > 1,
    "cut: two channels are recorded": lambda p: len(p._open) > 1,
    "cut: one channel is closed, another recorded": lambda p: p._open and p._closed,
}
BY_MACHINE: dict[type, dict[str, State]] = {Enumerator: ENUMERATOR, Reader: READER, Writer: WRITER}
SOMETIMES = tuple(name for states in (LEADER, *BY_MACHINE.values(), STREAM, PROCESS) for name in states)
RARER = frozenset({
    "command define failed",
    "leader: three epochs failed in a row",
    "leader: two checkpoints are requested",
    "leader: members must change, and a checkpoint is in flight",
    "leader: a checkpoint is doubted",
    "leader: two commands are under way",
    "enumerator: a split has failed again and again",
    "enumerator: a generation began after the cut",
    "reader: parts of two checkpoints are being saved",
    "reader: stopped while a chunk is read",
    "stream: main waits for catch-up",
    "stream: both cursors are read",
    "stream: both cursors are inside a transaction",
    "stream: a marker waits for one of two cursors",
    "stream: a table waits for the next round",
    "stream: two tables catch up together",
    "stream: a table that is to leave is inside a transaction",
    "stream: at the stop, and tables catch up",
    "writer: changes of before and after a marker",
    "writer: changes of two generations",
    "writer: a table's columns changed between two markers",
    "writer: two attempts at one split",
    "writer: files of two checkpoints are being staged",
})
"""Of these a sweep of a few thousand seeds may miss some; a longer one must not."""


def note_states(count: Counter[str], machine: Leader | Process) -> None:
    """Count each state that the machine is in after a step: once in a world, since a step costs enough."""
    process: Process | None = machine.process if isinstance(machine, Leader) else machine
    if isinstance(machine, Leader):
        _note(count, LEADER, machine)
    if process is not None:
        inner: Any = process.machine
        inner = getattr(inner, "machine", inner)  # behind its probe
        _note(count, BY_MACHINE[type(inner)], inner)
        if isinstance(inner, Reader) and inner.stream is not None:
            _note(count, STREAM, inner.stream)
        _note(count, PROCESS, process)


def _note(count: Counter[str], states: dict[str, State], machine: Any) -> None:
    for name, state in states.items():
        if name not in count and state(machine):
            count[name] = 1
