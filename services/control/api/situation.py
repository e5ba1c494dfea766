"""What a pipeline is doing, for the question whether a command makes sense now.

The mode is the one after all commands that were accepted: whoever stops a pipeline can't pause it a moment later. A
command that passes here may still be refused by the leader, which knows more and decides in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutline.common.store.commands import Command, Mode
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.problems import Refused

_AFTER: dict[str, Mode] = {
    "pause": "paused",
    "resume": "running",
    "stop": "stopped",
    "start": "running",
    "delete": "deleting",
}
_REMEDIES: dict[Mode, str] = {
    "running": "pause or stop it first",
    "paused": "resume it first (POST .../resume)",
    "stopped": "start it first (POST .../start)",
    "deleting": "wait until it is gone, or use another name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A pipeline now: `mode` after all accepted commands, the newest definition's `version`, the tables' states by name
    (from the status, else from the newest checkpoint), and the status parts."""

    pipeline: str
    mode: Mode
    version: int
    pending: tuple[Command, ...]
    tables: Mapping[str, Mapping[str, Any]]
    status: Mapping[str, Mapping[str, Any]]
    finished: int

    @property
    def shows_finished(self) -> bool:
        """Whether the leader has reported since it finished its last command, number `finished`: its reports come each
        half second. True without a leader's report."""
        reported = (self.status.get("enumerator", {}).get("commands") or {}).get("done")
        return reported is None or reported >= self.finished

    @property
    def halted(self) -> bool:
        """Whether the leader gave up until a person acts."""
        return bool(self.status.get("enumerator", {}).get("halted"))

    def need(self, *modes: Mode, doing: str) -> None:
        """Refuse unless the mode is one of these."""
        if self.mode not in modes:
            already = self.mode != "deleting" and _AFTER.get(doing) == self.mode
            mode = "being deleted" if self.mode == "deleting" else self.mode
            raise Refused(
                409,
                f"the pipeline {self.pipeline} is {mode}{' already' if already else ''}",
                "there is nothing to do" if already else _REMEDIES[self.mode],
            )

    def table(self, table: str) -> Mapping[str, Any]:
        """The state of one table; 404 if the pipeline captures none of that name."""
        found = self.tables.get(table)
        if found is None:
            raise Refused(404, f"pipeline {self.pipeline} captures no table {table!r}", "GET .../tables lists them")
        return found

    def need_phase(self, table: str, *phases: str, remedy: str) -> None:
        """Refuse unless the table is in one of these phases; `remedy` says what to do then."""
        self.need("running", "paused", "stopped", doing="change a table")
        if (phase := self.table(table)["phase"]) not in phases:
            raise Refused(409, f"the table {table} is {phase}, not {' or '.join(phases)}", remedy)


def look(
    found: PipelineStore, status: Mapping[str, Mapping[str, Any]], tables: Mapping[str, Mapping[str, Any]]
) -> Situation:
    """Read what the store has and put it together with the status ({}: Redis has none). Blocks: call it in a thread."""
    newest = found.commands.newest_outcome()
    pending = found.commands.list(after=newest.n if newest else 0, limit=1000)
    mode: Mode = newest.orders.mode if newest else "running"
    for command in pending:
        mode = _AFTER.get(command.kind, mode)
    return Situation(
        pipeline=found.name,
        mode=mode,
        version=found.definition_version(),
        pending=tuple(pending),
        tables=tables,
        status=status,
        finished=newest.n if newest else 0,
    )


def checkpoint(found: PipelineStore, number: int) -> CheckpointEntry | None:
    """A checkpoint of the journal, None if there is none of that number, or none any more. Blocks."""
    entry = found.entry(number) if number > 0 else None
    return entry if isinstance(entry, CheckpointEntry) else None
