"""A pipeline's journal, as its leader reads and writes it: calls to the store, which block."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cutline.common.errors import ProtocolError
from cutline.common.measures import Measures
from cutline.common.mesh.machine import Event
from cutline.common.mesh.parts import load_head, load_part
from cutline.common.mesh.topology import ENUMERATOR
from cutline.common.phases import CATCH_UP, SNAPSHOT
from cutline.common.positions import Position
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator.commanding import Commanding
from cutline.services.enumerator.events import EntryRefused, EntryWritten, JournalRead, Plan, WriteEntry
from cutline.services.enumerator.leader import STEADY_SECONDS
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import request_of
from cutline.services.enumerator.table_commands import commands_in
from cutline.services.enumerator.tables import Table, Tables
from cutline.services.sources.mysql.binlog_age import Place

log = logging.getLogger("cutline.enumerator")


class Journal:
    """The journal of one pipeline, with the commands that go with it. All calls block."""

    def __init__(self, store: PipelineStore, commanding: Commanding, measures: Measures) -> None:
        """`measures` gets how long checkpoints take."""
        self.store, self._commanding, self._measures = store, commanding, measures
        self.restart: Place | None = None  # where a restore of the newest checkpoint would read on

    def read(self) -> JournalRead:
        """The journal's end, the newest checkpoint, and the commands that no outcome finishes."""
        tail = self.store.last_slot()
        if self.store.deleting():  # for good: a leader before may have removed what is named by what is left
            finished, orders, left_open, commands = self._commanding.read()
            return JournalRead(
                tail=tail, base=None, finished=finished, orders=orders, open=left_open, commands=commands
            )
        last = self.store.entry(tail) if tail else None
        base = last.base if isinstance(last, EpochEntry) else tail or None
        newest = self.store.entry(base) if isinstance(last, EpochEntry) and base is not None else last
        if isinstance(newest, CheckpointEntry):
            self.restart = place_of(newest.position)
        epoch = self.store.entry(last.epoch) if last is not None else None
        # After the journal: a command that another leader has finished since is in an entry that we lack, so our
        # next entry is refused.
        finished, orders, left_open, commands = self._commanding.read()
        kept, refused = 0, dict[int, tuple[str, str]]()
        if isinstance(newest, CheckpointEntry) and any(command.taken == "machine" for command in commands):
            kept, refused = commands_in(load_head(self.store, newest.parts[ENUMERATOR]))
        return JournalRead(
            tail=tail,
            base=base,
            answered=request_of(newest.request) if isinstance(newest, CheckpointEntry) else None,
            anew=last.anew if isinstance(last, EpochEntry) else None,
            floor=epoch.floor if isinstance(epoch, EpochEntry) else 0,
            highest=newest.highest if isinstance(newest, CheckpointEntry) else 0,
            failing_since=failing_since(epoch, last),
            entered=epoch.command if isinstance(epoch, EpochEntry) else None,
            kept=kept,
            refused=refused,
            finished=finished,
            orders=orders,
            open=left_open,
            commands=commands,
            settings=self._commanding.settings(orders.definition),
        )

    def write(self, order: WriteEntry) -> Event:
        """Put an entry into its slot. It may be repeated, since an entry carries its nonce."""
        if self.store.put_entry(order.entry):
            self._note_written(order.entry)
            return EntryWritten(slot=order.slot, nonce=order.entry.nonce)
        found = self.store.entry(order.slot)
        whose = f"is of {found.nonce}" if found else "can't follow an entry that is gone"
        log.warning("pipeline %s: slot %d of the journal is refused to us: it %s", self.store.name, order.slot, whose)
        return EntryRefused(slot=order.slot, nonce=found.nonce if found else "")

    def _note_written(self, entry: Entry) -> None:
        if isinstance(entry, CheckpointEntry):
            self.restart = place_of(entry.position)
            self._measures.observe("checkpoint", max(0.0, entry.written_at - entry.started_at))

    def restored(self, plan: Plan, base: int) -> Enumerator:
        """The enumerator that goes on from a checkpoint. ProtocolError if a part of it is gone."""
        entry = self.store.entry(base)
        if not isinstance(entry, CheckpointEntry):
            raise ProtocolError(f"the base of pipeline {self.store.name} is slot {base}, which holds no checkpoint")
        self.restart = place_of(entry.position)
        part = load_part(self.store, entry.parts[ENUMERATOR])
        return Enumerator.restored(plan, part, entry.tables, at=entry.started_at)

    def tables_at(self, base: int) -> Mapping[str, Table]:
        """The tables at a checkpoint, to show them while no epoch is open."""
        entry = self.store.entry(base)
        if not isinstance(entry, CheckpointEntry):
            return {}
        return Tables.restored(load_part(self.store, entry.parts[ENUMERATOR])).by_name

    def needed(self, enumerator: Enumerator | None) -> list[Place]:
        """The places of the binlog from which a restore, or a table's catch-up, would read."""
        places = [] if self.restart is None else [self.restart]
        if enumerator is not None:
            for table in enumerator.tables.values():
                if table.low is not None and table.phase in (SNAPSHOT, CATCH_UP):
                    places.append((table.low.server, table.low.start().file_position))
        return places


def failing_since(epoch: Entry | None, last: Entry | None) -> float | None:
    """Since when epochs have failed in a row, by the entry of the newest one and the journal's last entry; None if
    they have not, or if a checkpoint came so late in that epoch that the fault is over."""
    if not isinstance(epoch, EpochEntry) or last is None or last.written_at - epoch.written_at > STEADY_SECONDS:
        return None
    return epoch.failing_since


def place_of(position: Position | None) -> Place | None:
    """The place in the binlog of a position; None if it names no file."""
    return None if position is None or not position.file else (position.server, position.file_position)
