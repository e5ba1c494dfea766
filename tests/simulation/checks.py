"""Invariants of every world. Each check is a function whose docstring states the invariant; it raises Failure."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import deque
from typing import TYPE_CHECKING, Any

from cutline.common.causes import Code
from cutline.common.errors import ProtocolError, SourceLost
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, Send, State, Ticked
from cutline.common.mesh.messages import (
    UNLIMITED,
    CheckpointWanted,
    ChunkDropped,
    ChunkEnd,
    EndStream,
    ExcludeTable,
    Limits,
    LimitStream,
    Marker,
    PartSaved,
    Records,
    SplitReleased,
    SplitsWanted,
    StopStream,
    StreamCaughtUp,
    StreamStopped,
    TableReport,
    TableState,
    TakeBackSplit,
)
from cutline.common.mesh.parts import load_part
from cutline.common.mesh.topology import Topology
from cutline.common.positions import Low, Position, Stop
from cutline.common.schema import TableSchema
from cutline.common.store.chain import follow
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry, Publication
from cutline.services.enumerator.events import BoundFound, EntryRefused, EntryWritten, JournalRead, Observed, Plan
from cutline.services.enumerator.leader import EpochOpened, Leader
from cutline.services.enumerator.machine import Enumerator
from cutline.services.reader.events import ChangesRead, ChunkFailed, ReadChanges, ReadChunk
from cutline.services.reader.machine import Reader
from cutline.services.writer.machine import CutStaged
from tests.support.causes import because

if TYPE_CHECKING:
    from tests.simulation.lake import Rows
    from tests.simulation.world import Probe, World

SILENT_SECONDS = 14.0
"""The longest checkpoint interval of a world, DOUBT_SECONDS of the leader, and a moment."""


class Failure(Exception):
    """A check failed: one sentence."""


# --- states ----------------------------------------------------------------------------------------------------------


def state_of(machine: Any) -> Any:
    """The state that a restore must bring back, read from the live machine without its own `snapshot`; None if it has
    none."""
    if isinstance(machine, Reader) and machine.stream:
        return (
            machine.seq,
            machine.hold_main,
            machine.stopped,
            (machine.stop, machine.stop_place, machine.at_stop, machine.ended, machine.begin),
            {n: (c.position, c.source_time, c.rows_inside) for n, c in machine.cursors.items()},
            {
                t.table_id: (
                    t.generation, t.schema.hash, t.low, t.high, t.splits, t.cursor, t.live, t.looked_at, t.pausing,
                )
                for t in machine.tables.values()
            },
        )  # fmt: skip
    if isinstance(machine, Enumerator):
        out = [dataclasses.replace(split, attempt=split.attempt + 1) for split, _ in machine.out.values()]
        kept = {name for name, table in machine.tables.items() if table.phase == "paused" or name in machine.holds}
        return (
            machine.limits,
            {
                t.table_id: (
                    t.generation, t.phase, t.schema and t.schema.hash, t.low, t.high, t.completed, t.splits_done,
                    t.rows_done, t.cause, t.splitter and t.splitter.to_json(), t.awaited, t.before and t.before.hash,
                    t.pausing, t.resuming, t.looked_at,
                )
                for t in machine.tables.values()
            },
            [
                (s.split_id, s.attempt, s.split_start, s.split_end)
                for s in (*out, *machine.todo)
                if s.table_id not in kept
            ],
            sorted((s.split_id, s.attempt) for s in (*out, *machine.todo, *machine.shelved) if s.table_id in kept),
            dict(machine.accepted),
            (machine.commands_done, dict(machine.refused), dict(machine.gone), machine.floor),
            machine.stream_stopped,
            (machine.stop, machine.stop_place, machine.at_stop),
        )  # fmt: skip
    return None


def restore_is_exact(world: World, machine: Any, base: int, name: str) -> None:
    """A restored machine equals the machine at the cut."""
    epoch = world.store.journal[base].epoch
    live = world.live[epoch, name, base]
    if state_of(machine) != live:
        raise Failure(f"{name} restored from checkpoint {base} is {state_of(machine)} and was {live}")
    world.count["reader restored exactly"] += 1


def enumerator_part_restores(world: World, live: Any, enumerator: Enumerator, part: State) -> None:
    """An enumerator restored from a part without recorded messages equals the one at the cut, except that its splits
    that were out are queued again."""
    head, values = json.loads(json.dumps([{**part.head, "recorded": {}}, part.values]))
    state = State(head=head, values=values, schemas=tuple(world.schemas.values()))
    restored = Enumerator.restored(enumerator.plan, state, {})
    if state_of(restored) != live:
        raise Failure(f"an enumerator restored from its part is {state_of(restored)} and was {live}")
    world.count["enumerator's part restores exactly"] += 1


def limits_are_obeyed(world: World, leader: Leader) -> None:
    """The limits of an open epoch are those of the last command about them that is finished, or answered with its
    outcome on its way; whatever its base has."""
    agenda = leader.agenda
    before = agenda.standing.limits
    standing = leader.settings.limits if before is None else Limits(**before)
    wanted = agenda.limits
    if leader.enumerator is not None and wanted is not None:
        if (limits := leader.enumerator.limits) not in (wanted, standing):
            raise Failure(f"{leader.incarnation} limits reads to {limits}, and {wanted} are ordered")
        world.count["limits kept"] += limits != UNLIMITED


def chain(journal: dict[int, Entry]) -> list[int]:
    """Checkpoints on the chain, oldest first: an oracle for common/store/chain.py, written independently."""
    slots: list[int] = []
    upper = max(journal, default=0)
    epochs = {slot: entry for slot, entry in journal.items() if isinstance(entry, EpochEntry)}
    epoch = max(epochs, default=None)
    while epoch is not None:
        slots += [n for n, e in journal.items() if isinstance(e, CheckpointEntry) and e.epoch == epoch and n <= upper]
        base = epochs[epoch].base
        epoch, upper = (None, 0) if base is None else (journal[base].epoch, base)
    return sorted(slots)


# --- journal ---------------------------------------------------------------------------------------------------------


def cut_is_consistent(world: World, entry: CheckpointEntry) -> None:
    """The cut is consistent: on every channel, the messages that its sender had sent at its snapshot are those that its
    receiver counts to the checkpoint (in its state, or recorded as the channel's state)."""
    cuts = world.cuts[entry.epoch, entry.slot]
    epoch = world.store.journal[entry.epoch]
    assert isinstance(epoch, EpochEntry)
    for sender, receiver in Topology.of(len(epoch.members.readers), len(epoch.members.writers)).cut_channels():
        sent, taken = cuts[sender][0][receiver], cuts[receiver][1].get(sender, 0)
        if sent != taken:
            raise Failure(
                f"checkpoint {entry.slot} is no consistent cut: {sender} had sent {sent} messages to {receiver}"
                f" at its snapshot, and {receiver} counts {taken} to it"
            )


def entry_is_sound(world: World, entry: CheckpointEntry) -> None:
    """A checkpoint names one attempt's file for a split once on its chain, agrees with its parts about each table, can
    be restored (its parts and the schemas that they name are there, as what it names itself), and its position is not
    before that of the checkpoint before it on the chain."""
    journal = world.store.journal
    slots = [n for n in chain(journal) if n <= entry.slot]
    if entry.slot not in slots:
        return
    seen: set[str] = set()
    for slot in slots:
        found = journal[slot]
        assert isinstance(found, CheckpointEntry)
        for file in found.staged:
            if file.split is not None:
                split = file.split.rpartition("#")[0]
                if split in seen:
                    raise Failure(f"two files of split {split} are on the chain of checkpoint {entry.slot}")
                seen.add(split)
    world.store.open().schemas(entry.schemas)
    tables_are_those_of_the_parts(world, entry)
    before = [n for n in slots if n < entry.slot][-1:]
    earlier_entry = journal[before[0]] if before else None
    assert earlier_entry is None or isinstance(earlier_entry, CheckpointEntry)
    world.operators.paused_tables_rest(entry, earlier_entry)
    if before:
        last = journal[before[0]]
        assert isinstance(last, CheckpointEntry)
        mine, earlier = entry.position, last.position
        begins = journal[entry.epoch]
        anew = isinstance(begins, EpochEntry) and begins.anew  # main begins where its first new table does
        # An empty GTID set (a server that failed over before its first transaction) is before every other.
        known = mine and earlier and not anew and (mine.server == earlier.server or earlier.gtids)
        if known and mine and earlier and not mine.not_before(earlier):
            raise Failure(f"checkpoint {entry.slot} stands at {mine}, before checkpoint {before[0]} at {earlier}")
    world.count["inside checkpoint"] += entry.inside
    for table in entry.tables.values():
        world.count[f"table {table.phase} at a checkpoint"] += 1
        world.count["halt: columns changed while they were read"] += (
            table.cause is not None and table.cause.code == Code.SCHEMA_CHANGE
        )
        world.count["table of a later generation"] += table.generation > 1


def tables_are_those_of_the_parts(world: World, entry: CheckpointEntry) -> None:
    """An entry's tables, though composed of what changed, agree with the enumerator and the incremental split restored
    from its parts."""
    epoch = world.store.journal[entry.epoch]
    assert isinstance(epoch, EpochEntry)
    plan = Plan(readers=("reader-0",), writers=("writer-0",), chunk_rows=1, exact=world.shape.exact)
    store = world.store.open()
    plan = dataclasses.replace(plan, quarantine_changed=world.shape.schema_changes == "halt")
    enumerator = Enumerator.restored(plan, load_part(store, entry.parts["enumerator"]), {})
    streamed = load_part(store, entry.parts["reader-0"]).values.get("tables", {})
    if enumerator.tables.keys() != entry.tables.keys():
        raise Failure(f"checkpoint {entry.slot} has tables {sorted(entry.tables)}, not {sorted(enumerator.tables)}")
    for name, table in enumerator.tables.items():
        wanted = (table.generation, table.phase, table.schema.hash if table.schema else None, False, table.cause)
        stream = streamed.get(name)
        if table.phase in ("catch-up", "live") and stream and stream["generation"] == table.generation:
            live = stream["live"]
            wanted = (table.generation, "live" if live else "catch-up", stream["schema"], live, table.cause)
        entered = entry.tables[name]
        if (entered.generation, entered.phase, entered.schema, entered.show, entered.cause) != wanted:
            raise Failure(f"checkpoint {entry.slot} has {entered} for {name}, and its parts {wanted}")
    world.count["entry composed of what changed"] += 1
    generations_begin_once(world, entry, enumerator)


def generations_begin_once(world: World, entry: CheckpointEntry, enumerator: Enumerator) -> None:
    """A generation of which a checkpoint has rows began at one place of the journal: none that a restore left behind
    has its number."""
    journal = world.store.journal
    begun = world.begun[entry.slot] = {(t.table_id, t.generation) for t in enumerator.tables.values() if t.high}
    earlier = [n for n in chain(journal) if n < entry.slot]
    for began in begun.difference(*(world.begun[n] for n in earlier)):
        if (slot := world.began.setdefault(began, entry.slot)) != entry.slot:
            raise Failure(f"generation {began} begins in checkpoint {entry.slot}, and began in {slot}, which was left")
    begins = journal[entry.epoch]
    assert isinstance(begins, EpochEntry)
    world.count["table begins after a restore left checkpoints behind"] += bool(begins.floor and begun)


def journal_is_of_one_line(world: World) -> None:
    """An old epoch writes nothing: every checkpoint in the journal is by the leader of the newest epoch before it, and
    every epoch's base was on the chain at that time."""
    journal = world.store.journal
    newest: EpochEntry | None = None
    if chain(journal) != follow(max(journal, default=0), journal.get).after(0):
        raise Failure("common/store/chain.py follows another chain than the oracle")
    for slot in sorted(journal):
        entry = journal[slot]
        if isinstance(entry, EpochEntry):
            then = chain({n: e for n, e in journal.items() if n < slot})
            if entry.base is not None and entry.base not in then:
                raise Failure(f"epoch {slot} builds on checkpoint {entry.base}, which was not on the chain")
            if entry.base is None and then:
                raise Failure(f"epoch {slot} begins anew though there were checkpoints")
            newest = entry
        elif newest is None or entry.epoch != newest.slot or entry.nonce.partition(":")[0] != newest.leader:
            raise Failure(f"checkpoint {slot} is of epoch {entry.epoch}, and {newest} was the newest then")


def announced_epoch_is_the_journals(world: World, order: Any) -> None:
    """A leader opens an epoch only as its entry in the journal has it: same members, same base."""
    entry = world.store.journal.get(order.epoch)
    if not isinstance(entry, EpochEntry):
        raise Failure(f"epoch {order.epoch} is opened, and slot {order.epoch} of the journal holds no epoch")
    named, opened = (entry.members.readers, entry.members.writers), (order.plan.readers, order.plan.writers)
    if tuple(map(len, named)) != tuple(map(len, opened)):
        raise Failure(f"epoch {order.epoch} is opened with other members than its entry names")
    if entry.base != order.base:
        raise Failure(f"epoch {order.epoch} is opened on base {order.base}, and its entry says {entry.base}")


def nobody_works_without_a_leader(world: World) -> None:
    """Some time after the last leader has died, no member reads, sends or stages any more."""
    for service in world.services:
        if service.alive and service.token is not None:
            raise Failure(f"{service.incarnation} is still in epoch {service.epoch}, which has no leader any more")


def nobody_waits_without_saying_so(world: World, leader: Leader) -> None:
    """A leader whose journal has had no entry for long says for what its pipeline waits."""
    if world.now - world.entered_at < SILENT_SECONDS or leader.state in ("idle", "halted"):
        return
    world.count["the leader says for what its pipeline waits"] += 1
    ends = leader.ended is not None or leader._ending
    if not ends and leader.waiting_for(world.now) is None:
        raise Failure(f"no entry for {world.now - world.entered_at:.1f} s, and the leader waits for nothing")


# --- the lake --------------------------------------------------------------------------------------------------------


def _shown(world: World, rows: Rows, schema: TableSchema, table: str) -> dict[Any, Any]:
    """The rows as a reader of the lake sees them under `schema`: by field id."""
    names: dict[Any, Any] = {}
    places: dict[str, list[int | None]] = {}
    for key, found in rows.items():
        if len(found) != 1:
            raise Failure(f"row {key} of {table} is there {len(found)} times")
        own, row = found[0]
        if own not in places:
            ids = {c.field_id: i for i, c in enumerate(world.lake.schemas[own].columns)}
            places[own] = [ids.get(c.field_id) for c in schema.columns]
        names[key] = tuple(None if i is None else row[i] for i in places[own])
    return names


def publication_equals_source(world: World, publication: Publication) -> None:
    """No row is lost or doubled: every table that a publication shows at its position equals the source there, by key
    and content, with the source's columns; and amounts moved between two tables still add up."""
    entry = world.store.journal[publication.n]
    assert isinstance(entry, CheckpointEntry)
    if entry.inside:
        raise Failure(f"checkpoint {publication.n} is inside a transaction and was published")
    position = publication.position
    if position is None:
        return
    if world.source.lost_gtids or (position.server != world.source.server and not position.gtids):
        return  # the source has lost transactions that were taken there
    state, columns = world.source.state_at(position)
    starts = _starts(world, entry)
    amounts = []
    for table, published in publication.tables.items():
        if published.main is None:
            continue
        if entry.tables[table].generation > 1 and not entry.tables[table].show:
            world.count["old generation shown while the new one is read"] += 1
        if not published.shown:
            continue  # of an older generation, and marked so
        schema = world.lake.schemas[entry.tables[table].schema or ""]
        truth = world.source.since(starts[table], position)[table] if table in starts else state[table]
        rows = world.lake.snapshots[published.main.snapshot_id]
        if table in starts and not rows and not truth:  # its columns at the start are not known yet
            continue
        if tuple(c.name for c in schema.columns) != columns[table]:
            raise Failure(
                f"{table} has columns {[c.name for c in schema.columns]} in publication {publication.n}"
                f" and {columns[table]} at the source"
            )
        shown = _shown(world, rows, schema, table)
        if shown != truth:
            wrong = {k: (shown.get(k), truth.get(k)) for k in {*shown, *truth} if shown.get(k) != truth.get(k)}
            raise Failure(
                f"{table} in publication {publication.n} differs from the source at {position} (lake, source): {wrong}"
            )
        world.count["table compared"] += 1
        if table in starts:
            world.count["table compared with what came after its start"] += 1
            continue
        _columns_by_policy(world, publication.n, table, schema)
        if table in ("shop.a", "shop.b"):
            at = columns[table].index("amount")
            amounts.append(sum(row[at] for row in shown.values()))
    if len(amounts) == 2:
        world.count["constant sum compared"] += 1
        if sum(amounts) != 10_000:
            raise Failure(f"the amounts of two tables add up to {sum(amounts)} in publication {publication.n}")


def _starts(world: World, entry: CheckpointEntry) -> dict[str, Low]:
    """The tables that a publication's checkpoint has without a snapshot, each with its start."""
    if world.shape.start is None:
        return {}
    tables = load_part(world.store.open(), entry.parts["enumerator"]).values.get("tables", {})
    # The low that a table has now may be that of a later pause.
    found = {name: world.began[entry.epoch] for name, t in tables.items() if t["low"] and not t["splitsDone"]}
    if late := world.late & found.keys():
        raise Failure(f"{late} came later, and checkpoint {entry.slot} has no snapshot of them")
    return found


def _columns_by_policy(world: World, n: int, table: str, schema: TableSchema) -> None:
    """With `halt` no reader of the lake sees columns change; with `ignore` none does within a generation."""
    policy, journal = world.shape.schema_changes, world.store.journal
    cuts = [found for slot in chain(journal) if isinstance(found := journal[slot], CheckpointEntry)]
    now = journal[n]
    assert isinstance(now, CheckpointEntry)
    entry = now.tables[table]
    earlier = [
        before
        for cut in cuts
        if cut.slot < n and cut.slot in world.store.publications
        if (before := cut.tables.get(table)) is not None and before.show
    ]
    if not earlier:
        return
    last = earlier[-1]
    before, same = world.lake.schemas[last.schema or ""], last.generation == entry.generation
    # A stream without a snapshot may begin before columns that the table had when the pipeline began.
    known = world.lake.schemas.get(last.described or "", before)
    if policy == "halt" and schema.look not in (before.look, known.look):
        raise Failure(f"{table} shows other columns in publication {n} than before, though schema_changes is halt")
    if policy == "ignore" and same and [c.name for c in before.lake] != [c.name for c in schema.lake]:
        raise Failure(f"{table} shows other columns in publication {n} than before, though schema_changes is ignore")
    if policy == "evolve" and same and not {c.field_id for c in before.lake} <= {c.field_id for c in schema.lake}:
        raise Failure(f"{table} lost a column in publication {n}, though schema_changes is evolve")


def no_key_goes_back(world: World, table: str, n: int, rows: Rows) -> None:
    """No live key goes back: `main` never shows an older version of a row than before, on the same chain."""
    if world.source.lost_gtids:
        return
    known = world.versions.setdefault(table, {})
    for key, found in rows.items():
        at = [c.name for c in world.lake.schemas[found[0][0]].columns].index("stamp")
        stamp = found[0][1][at]
        if stamp < known.get(key, 0):
            raise Failure(
                f"row {key} of {table} went back from stamp {known[key]} to {stamp} as main moved to publication {n}"
            )
        known[key] = stamp
    world.count["main moved"] += 1


def arrived(world: World) -> bool:
    """Liveness: when faults have stopped, all tables become live and a publication reaches the source's end."""
    return not what_is_missing(world)


def what_is_missing(world: World) -> str:
    """The reason why `arrived` is not true yet; empty if it is."""
    leaders = [s for s in world.services if s.alive and s.leader is not None and s.leader.state == "leading"]
    if not leaders:
        states = [(s.incarnation, s.leader.state, s.leader.cause) for s in world.services if s.leader and s.alive]
        return f"no leader leads: {states}"
    for leader in leaders:
        machine = leader.leader.enumerator if leader.leader else None
        share = machine.share() if machine else None
        for reader in world.services:
            if reader.alive and reader.role == "reader" and reader.token and reader.epoch == leader.epoch:
                if reader.limits != share:
                    return f"{reader.incarnation} reads at {reader.limits}, and its share is {share}"
    if why := world.operators.unsettled:
        return why
    journal, publications = world.store.journal, world.store.publications
    on_chain = [n for n in chain(journal) if n in publications]
    if not on_chain:
        return f"nothing is published; the journal ends at {max(journal, default=0)}"
    newest = publications[on_chain[-1]]
    if world.stop is not None:
        try:
            place = world.source.find_stop(world.stop, world.now)
        except SourceLost as error:  # the file's server is gone: it was found before, or the pipeline halts
            machine = leaders[0].leader.enumerator
            place = machine.stop_place if machine is not None else None
            if place is None:
                return str(error)
        if place is not None:
            return _ends(world, leaders[0].leader, publications, place)
    entry = journal[newest.n]
    assert isinstance(entry, CheckpointEntry)
    stopped = {
        t
        for t, found in entry.tables.items()
        if t in world.source.quarantined or (found.cause is not None and found.cause.code == Code.SCHEMA_CHANGE)
    }
    wrong = {
        t: found.state
        for t, found in newest.tables.items()
        if found.state != ("quarantined" if t in world.quarantined else "live")
        and not (found.state == "quarantined" and t in stopped)
    }
    absent = set(world.known_tables) - set(newest.tables)
    if wrong or absent:
        causes = {t: entry.tables[t].cause for t in wrong}
        return f"tables are not live in publication {newest.n}: {wrong} {causes} {absent}"
    begun = newest.position is not None or any(found.state == "live" for found in newest.tables.values())
    if begun and not world.shape.snapshot_only:
        end, position = world.source.flushed(), newest.position
        if position is None or position.server != end.server or not end.reached_by(position):
            return f"publication {newest.n} stands at {position}, the source at {end}"
    for table, found in newest.tables.items():
        main = world.lake.main.get(table)
        if found.state == "live" and (main is None or found.main is None or main.snapshot != found.main.snapshot_id):
            return f"main of {table} does not show publication {newest.n}"
    return ""


def _ends(world: World, leader: Any, publications: dict[int, Any], place: Position) -> str:
    """At its stop a pipeline ends by itself: a kept publication shows every table exactly there, except those reported
    as impossible to show there and those that a person has paused, and no checkpoint follows."""
    ended = leader.ended
    if ended is None or ended not in publications:
        machine = leader.enumerator
        phases = {t.table_id: (t.phase, t.cause) for t in machine.tables.values()}
        return f"the stop {world.stop} is at {place}, and the pipeline has not ended: {machine.at_stop} {phases}"
    entry, publication = world.store.journal[ended], publications[ended]
    assert isinstance(entry, CheckpointEntry)
    if not publication.kept:
        raise Failure(f"publication {ended} at the stop is not kept")
    states = {table: found.state for table, found in publication.tables.items()}
    for table, state in states.items():
        cause = entry.tables[table].cause
        expected = table in (*world.quarantined, *world.source.quarantined) or (
            cause is not None and (cause.code == Code.SCHEMA_CHANGE or "can't be shown at the stop" in cause.sentence)
        )
        if state not in ("live", "dropped", "paused") and not (state == "quarantined" and expected):
            raise Failure(f"{table} is {state} ({cause}) in publication {ended} at the stop")
    after = {n: e for n, e in world.store.journal.items() if n > ended and e.epoch == leader.epoch}
    if any(isinstance(e, CheckpointEntry) and e.request is None for e in after.values()):
        raise Failure(f"the checkpoints {list(after)} were taken after {ended}, the pipeline's last")
    if "live" in states.values():
        position = publication.position
        assert position is not None
        comparable = position.server == place.server or bool(position.gtids and place.gtids)
        if comparable and not world.source.lost_gtids and world.source.apart(position, place):
            raise Failure(f"publication {ended} stands at {position}, and the stop is {place}")
        world.count["live at the stop"] += 1
    return ""


# --- every state, every event ----------------------------------------------------------------------------------------


def freeze(value: Any) -> Any:
    """A machine's whole state as comparable data."""
    if isinstance(value, TableSchema):
        return value.hash
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(freeze(getattr(value, f.name)) for f in dataclasses.fields(value)))
    if isinstance(value, dict):
        return {repr(k): freeze(v) for k, v in value.items()}
    if isinstance(value, list | tuple | deque):
        return [freeze(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if type(value).__module__.startswith(("cutline.common.", "cutline.services.")) and hasattr(value, "__dict__"):
        return (type(value).__name__, {k: freeze(v) for k, v in vars(value).items()})
    return value


def any_fact_is_handled_or_refused(world: World) -> None:
    """Every fact in every state is handled, or refused by ProtocolError with the state unchanged."""
    rng = world.rng
    candidates = [s.leader for s in world.services if s.alive and s.leader is not None]
    candidates += [s.process for s in world.services if s.alive and s.process is not None]
    if not candidates:
        return
    original = rng.choice(candidates)
    probes = [original.process] if hasattr(original, "settings") and original.process else [original]
    bare = []
    for process in probes:  # the probe holds the whole world: copy without it
        if hasattr(process, "machine") and hasattr(process.machine, "machine"):
            bare.append((process, process.machine))
            process.machine = process.machine.machine
    machine = copy.deepcopy(original)
    for process, probe in bare:
        process.machine = probe
    before = freeze(machine)
    for _ in range(6):
        event = _any_fact(world)
        held = bool(getattr(machine, "_held", None))
        try:
            machine.handle(event, world.now)
        except ProtocolError:
            world.count["fact refused"] += 1
            if held:
                return  # the fact was taken; a message held behind a marker may have been refused
            if freeze(machine) != before:
                raise Failure(f"{type(machine).__name__} refused {event} and changed its state") from None
        except SourceLost as error:
            raise Failure(f"{type(machine).__name__} raised {error!r} at {event}, which is no refusal") from error
        else:
            world.count["fact handled"] += 1
            before = freeze(machine)


def rows_without_a_checkpoint_are_bounded(probe: Probe, effects: list[Effect]) -> None:
    """A reader that has sent as many rows as it may without a complete checkpoint begins nothing that gives more."""
    world, most = probe.world, probe.world.shape.unsaved_rows
    if most is None:
        return
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, Records):
            probe.rows_since += effect.message.rows
        elif isinstance(effect, ReadChunk) or (isinstance(effect, ReadChanges) and not effect.after.inside):
            journal = world.store.journal
            complete = {n for n, e in journal.items() if isinstance(e, CheckpointEntry) and e.epoch == probe.epoch}
            unsaved = probe.rows_since + sum(n for slot, n in probe.rows_before.items() if slot not in complete)
            if unsaved >= most:
                raise Failure(f"{probe.name} reads on with {unsaved} rows that no checkpoint has; {most} are its bound")
    world.count["reader waits for a checkpoint"] += probe.machine.unsaved.full


def _any_fact(world: World) -> Event:
    rng = world.rng
    table = rng.choice(world.shape.tables)
    slot = rng.randrange(1, max(world.store.journal, default=1) + 3)
    split = f"{table}:1:{rng.randrange(1, 4)}"
    position = world.source.end()
    messages = (
        Marker(checkpoint=slot),
        SplitsWanted(free=1),
        SplitReleased(split_id=split, attempt=1),
        TakeBackSplit(split_id=split, attempt=1),
        TableReport(table_id=table, generation=1, state=rng.choice(tuple(TableState))),
        StreamCaughtUp(),
        CheckpointWanted(),
        StreamStopped(),
        LimitStream(stop=Stop(time_us=0)),
        EndStream(place=position),
        ExcludeTable(table_id=table, generation=1),
        StopStream(),
        Records(table_id=table, generation=1, schema="", rows=1),
        ChunkEnd(split_id=split, table_id=table, generation=1, attempt=1, rows=rng.choice((0, 3)), schema=""),
        ChunkDropped(split_id=split, attempt=1),
        PartSaved(checkpoint=slot, part={"path": "x"}),
    )
    channel = rng.choice(("enumerator", "reader-0", "reader-1", "writer-0", "nobody"))
    facts: list[Event] = [
        Ticked(),
        PartStored(checkpoint=slot, ref={}),
        CutStaged(checkpoint=slot, staged=()),
        ChunkFailed(split_id=split, attempt=1, cause=because("")),
        ChangesRead(cursor=rng.choice(("main", "catch-up")), position=position, rows=0),
        BoundFound(table_id=table, generation=1, end=None),
        Observed(held=rng.random() < 0.8, members=()),
        JournalRead(tail=slot, base=None),
        EntryWritten(slot=slot, nonce="x"),
        EntryRefused(slot=slot, nonce="x"),
        EpochOpened(epoch=slot, enumerator=None),
        Began(),
        *(MessageReceived(channel=channel, message=message) for message in messages),
    ]
    if world.facts and rng.random() < 0.5:
        return rng.choice(world.facts)[1]
    return rng.choice(facts)
