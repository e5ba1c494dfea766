"""What a definition would do, found out without doing it: one list of findings, and each table's fate.

All of it blocks on the source for seconds: call it in one of the source's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, Field

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, CutlineError, SourceLost, Unavailable
from cutline.common.phases import DROPPED
from cutline.common.preview import MOST_TABLES, Refusal
from cutline.services.control.api import definitions
from cutline.services.control.api.analysis import Analyse
from cutline.services.control.api.named import reach
from cutline.services.control.api.problems import faults_of
from cutline.services.run.preflight import check
from cutline.services.sources.mysql.binlog_age import if_short, retention
from cutline.services.sources.mysql.catalogue import TableInfo, list_tables
from cutline.services.sources.mysql.connection import Source
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.preflight import described, quarantine_causes
from cutline.services.sources.mysql.rules import RulesAsked, changes_it, rules_asked
from cutline.services.sources.mysql.server import Server, identify

ROWS_PER_SECOND = 100_000
BYTES_PER_SECOND = 20_000_000
"""What a snapshot reaches on a small machine (docs/measured.md); the definition's limits may lower it."""

Action = Literal["read", "keep", "read again", "remove", "quarantine"]


class Finding(BaseModel):
    """One thing that was looked at: what was found, and what to do if that is not good enough."""

    check: Literal["connection", "server and lake", "retention", "tables", "table", "change", "rules", "analysis"]
    ok: bool
    found: str = Field(examples=["MySQL 8.4.6 at cutline@db:3306"])
    remedy: str | None = None
    code: str | None = None
    table: str | None = Field(default=None, examples=["shop.orders"])
    place: str | None = Field(
        default=None, description="in the definition", examples=["table_options[2].where"]
    )


class PlannedTable(BaseModel):
    """One table: what would be done with it, by which key, and what that costs by the server's estimates."""

    table: str = Field(examples=["shop.orders"])
    action: Action
    key: list[str]
    rows: int | None
    bytes: int | None
    seconds: float | None = Field(description="time to read it, at the rate in `rate`")
    causes: list[str] = Field(default_factory=list, description="why it would be quarantined")


class Change(BaseModel):
    """A setting that the new definition changes; `possible`: a running pipeline can be changed so."""

    key: str = Field(examples=["checkpoint.interval_seconds"])
    before: Any
    after: Any
    effect: str
    possible: bool


class Plan(BaseModel):
    """What a definition would do. `possible`: no finding stands against it; quarantined tables, a short retention and
    rules that nobody could analyse do not."""

    pipeline: str
    exists: bool
    version: int = Field(description="of the definition that it was compared with; 0: the pipeline is new")
    possible: bool
    findings: list[Finding]
    tables: list[PlannedTable]
    changes: list[Change]
    rows: int = Field(description="to be read, by the server's estimates")
    bytes: int
    seconds: float
    rate: str = Field(description="the assumption behind `seconds`")


@dataclass(slots=True)
class _Draft:
    findings: list[Finding] = field(default_factory=list)
    tables: list[PlannedTable] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    rules: RulesAsked | None = None


def plan(
    config: PipelineConfig,
    *,
    store_url: str,
    before: Mapping[str, Any] | None = None,
    version: int = 0,
    phases: Mapping[str, str] | None = None,
    analyse: Analyse | None = None,
) -> Plan:
    """Compare a definition with the source and, if the pipeline exists, with its definition `before` of this `version`
    and its tables' phases. Nothing is changed, but a probe file is written into store and warehouse, and removed.

    `analyse` has a Spark analyse rules and derived tables; without it they are not looked at.
    """
    draft = _Draft()
    known = None if before is None else PipelineConfig.from_definition(before)
    if before is not None:
        draft.changes = list(changes(definitions.normal(before), config.definition()))
        for change in draft.changes:
            if not change.possible:
                remedy = "make a new pipeline with this value"
                draft.findings.append(
                    Finding(check="change", ok=False, found=f"{change.key} can't be changed", remedy=remedy)
                )
    try:
        _look(draft, config, phases, known)
    except CutlineError as error:
        draft.findings += _faults("connection", error)
    else:
        try:
            check(config if before is None else _as_defined(config, before), store_url=store_url, workdir=None)
            found = "the server's settings, the grants, the store and the lake are as needed"
            draft.findings.append(Finding(check="server and lake", ok=True, found=found))
        except CutlineError as error:
            draft.findings += _faults("server and lake", error)
        if analyse is not None and draft.rules is not None:
            draft.findings += _analysis(draft.rules, analyse, lambda refusal: changes_it(known, config, refusal))
    to_read = [table for table in draft.tables if table.action in ("read", "read again")]
    rows_rate, bytes_rate = _rates(config)
    return Plan(
        pipeline=config.name,
        exists=before is not None,
        version=version,
        possible=all(finding.ok or finding.check in ("retention", "table", "analysis") for finding in draft.findings),
        findings=draft.findings,
        tables=draft.tables,
        changes=draft.changes,
        rows=sum(table.rows or 0 for table in to_read),
        bytes=sum(table.bytes or 0 for table in to_read),
        seconds=round(sum(table.seconds or 0.0 for table in to_read), 1),
        rate=f"{rows_rate:,.0f} rows or {bytes_rate:,.0f} bytes a second for all readers together",
    )


def _as_defined(config: PipelineConfig, before: Mapping[str, Any]) -> PipelineConfig:
    """The stored definition with the new source and tables: what the preflight of a running pipeline can judge."""
    stored = PipelineConfig.from_definition(before)
    return stored if stored.source == config.source else stored.model_copy(update={"source": config.source})


def _faults(check: Literal["connection", "server and lake"], error: CutlineError) -> list[Finding]:
    return [
        Finding(check=check, ok=False, found=fault.detail, remedy=fault.remedy, code=fault.code)
        for fault in faults_of(error)
    ]


def _look(
    draft: _Draft, config: PipelineConfig, phases: Mapping[str, str] | None, before: PipelineConfig | None
) -> None:
    reach(config.source)
    hosts = Hosts(config.source)
    with closing(hosts.connect()) as connection:
        server = identify(connection)
        source = Source.configured(config.source, hosts.current)
        draft.findings.append(Finding(check="connection", ok=True, found=named(server, source)))
        draft.findings.append(_kept(retention(connection)))
        selected = config.select(list_tables(connection))
        found = described(connection, server, config, selected)
        draft.rules = rules_asked(config, found)
    known = phases or {}
    shapes = config.shapes(selected, None)
    were = shapes if before is None else before.shapes(selected, None)
    draft.findings.append(
        Finding(
            check="tables",
            ok=bool(selected) or bool(known),
            found=f"{len(selected)} tables match {', '.join(config.tables)}",
            remedy=None if selected else "correct the list, or GRANT SELECT on the tables",
        )
    )
    for table in selected:
        reshaped = shapes.get(table) != were.get(table)
        draft.tables.append(planned_table(config, table, found[table], known.get(table), reshaped=reshaped))
        for cause in quarantine_causes(found[table]):
            draft.findings.append(
                Finding(
                    check="table",
                    ok=False,
                    found=cause.sentence,
                    remedy=cause.remedy or None,
                    code=cause.code,
                    table=table,
                )
            )
    chosen = set(selected)
    draft.tables += [
        PlannedTable(table=table, action="remove", key=[], rows=None, bytes=None, seconds=None)
        for table, phase in sorted(known.items())
        if table not in chosen and phase != DROPPED
    ]


def _analysis(rules: RulesAsked, analyse: Analyse, is_new: Callable[[Refusal], bool]) -> Iterator[Finding]:
    """What a Spark says of rules and derived tables. A refusal that is not new is no fault of the plan."""
    refusals = list(rules.refusals)
    if rules.request is not None:
        try:
            answer = analyse(rules.request)
        except (Unavailable, ConfigError) as error:
            found = f"select, where and derived tables are not analysed: {error.cause.sentence}"
            yield Finding(check="analysis", ok=False, found=found, remedy=error.cause.remedy or None)
        else:
            refusals += answer.refusals
            if not refusals:
                rest = f" of {rules.ruled}" if rules.ruled > MOST_TABLES else ""
                tables, queries = len(rules.request.tables), len(rules.request.derived)
                found = f"Spark takes the rules of {tables}{rest} tables and {queries} derived tables"
                yield Finding(check="analysis", ok=True, found=found)
    for each in refusals:
        cause = each.cause
        yield Finding(
            check="rules" if is_new(each) else "table",
            ok=False,
            found=cause.sentence,
            remedy=cause.remedy or None,
            code=cause.code,
            table=each.table,
            place=each.place,
        )


def _kept(seconds: float | None) -> Finding:
    time = "no set time" if seconds is None else f"{seconds / 3600:.3g} hours"
    remedy = if_short(seconds)
    found = f"the server keeps its binlog for {time} after the last write"
    return Finding(check="retention", ok=remedy is None, found=found, remedy=remedy)


def named(server: Server, source: Source) -> str:
    """A server's kind, version and address."""
    return f"{'MySQL' if server.mysql else 'MariaDB'} {'.'.join(map(str, server.version))} at {source}"


def planned_table(
    config: PipelineConfig, table: str, found: TableInfo | SourceLost, phase: str | None, *, reshaped: bool = False
) -> PlannedTable:
    """One table of the plan; `phase` is what the pipeline has of it now, None: nothing. `reshaped`: its rule or its
    mode is another one, for which it is read as its next generation."""
    if isinstance(found, SourceLost):
        action: Action = "quarantine" if phase is None else "keep"
        unknown: dict[str, Any] = {"key": [], "rows": None, "bytes": None, "seconds": None}
        return PlannedTable(table=table, action=action, causes=[str(found.cause)], **unknown)
    action = "keep"
    if phase is None:
        action = "quarantine" if found.faults else "read"
    elif reshaped and phase != DROPPED:
        action = "read again"
    size = found.rows * found.row_bytes
    rows_rate, bytes_rate = _rates(config)
    return PlannedTable(
        table=table,
        action=action,
        key=list(found.schema.key),
        rows=found.rows,
        bytes=size,
        seconds=round(max(found.rows / rows_rate, size / bytes_rate), 1),
        causes=[str(cause) for cause in found.faults],
    )


def _rates(config: PipelineConfig) -> tuple[float, float]:
    snapshot = config.snapshot
    return (
        min(ROWS_PER_SECOND, snapshot.max_rows_per_second or ROWS_PER_SECOND),
        min(BYTES_PER_SECOND, snapshot.max_bytes_per_second or BYTES_PER_SECOND),
    )


_EFFECTS: Sequence[tuple[str, str]] = (
    ("tags", "shown in lists at once"),
    ("tables", "tables that match newly are read with their history, and those that match no more are removed"),
    (
        "table_options",
        "tables whose select, where, mode or images differ are read again, and the lake shows their old rows until"
        " then; all else is in force for a table when it is read the next time",
    ),
    ("source.", "the pipeline goes on at the same place of the binlog there, so it must be the same history"),
    ("snapshot.", "in force for the chunks that are read from then on"),
)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The settings that differ, each with what the change does."""
    found = []
    for key, (old, new) in definitions.differences(before, after).items():
        possible = not definitions.immutable(key)
        effect = next((text for prefix, text in _EFFECTS if key.startswith(prefix)), "in force from the next epoch on")
        if not possible:
            effect = "impossible: only a new pipeline can have this value"
        found.append(Change(key=key, before=old, after=new, effect=effect, possible=possible))
    return found
