"""Derived tables: queries over the tables of a pipeline, computed after a batch is applied and before its publication.

A derived table is a table of the publication like any other: the record names its content beside the contents that it
was computed of. So the step that shows the tables shows it too, and whoever restores, tags, retains, expires or lists
them treats it alike. Readers of it at publication N see exactly the query over all tables as N shows them: also over
one that keeps showing an older content, since it is quarantined or read again. `Derivation` in the record says what a
content was made of; while nothing of that has changed, it is the content of the next publication too.

They are computed in order of dependence. One that fails harms no other: it keeps what it shows, with its cause, those
that read it read that, and the publication goes on. It is tried again once its query, or what it reads, has changed,
but not sooner than REST times as long as the last try took, so that a query that fails does not hold up the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cutline.common.causes import Cause, Code
from cutline.common.clock import Clock
from cutline.common.derived import KEYS, DerivedTable
from cutline.common.status.pipeline_status import DerivedStatus, Held
from cutline.common.store.records import Content, Derivation, Main, Publication, PublishedTable, Quarantine, Work
from cutline.spark_writer.quarantine import cause_of
from cutline.spark_writer.sinks.contract import DerivedFault, Foreign, ForeignCommit, Made, Sink
from cutline.spark_writer.sparing import Sparing

logger = logging.getLogger("cutline.spark_writer")
DERIVED, QUARANTINED, WAITING = "derived", "quarantined", "waiting"
REST, LONGEST_REST = 4.0, 600.0
"""Before a table that failed is tried again: this many times the seconds of that try, up to so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """A try that failed: of what, and the monotonic time before which there is no other one."""

    made_of: tuple[str, Mapping[str, Content]]
    cause: Cause
    next_at: float


class Derivations:
    """The derived tables of one pipeline, for one start."""

    def __init__(
        self,
        listed: Sequence[DerivedTable],
        sink: Sink,
        sparing: Sparing,
        *,
        clock: Clock,
        pipeline: str,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`listed` are those of the definition; `over` tells whether the start is to end, which ends a query that is
        computed. Nothing is parsed yet."""
        self._listed = {each.name: each for each in listed}
        self._sink = sink
        self._sparing = sparing
        self._clock = clock
        self._pipeline = pipeline
        self._over = over
        self._reads: dict[str, list[str] | Cause] = {}
        self._failed: dict[str, _Try] = {}
        self._unshown: set[str] = set()  # what the last publication has of them was not shown
        self.foreign: dict[str, Foreign] = {}
        """The commits of others about which a person must choose before a table goes on, by table."""
        self._status: dict[str, DerivedStatus] = {}

    @property
    def status(self) -> Mapping[str, DerivedStatus]:
        """The tables as the last publication has them, by name."""
        return dict(self._status)

    @property
    def held(self) -> Mapping[str, Held]:
        """Those that don't go on, for the status."""
        return {name: Held(cause=each.cause, generation=1) for name, each in self._status.items() if each.cause}

    def retry(self, name: str | None) -> None:
        """Try a table that failed, or all of them, with the next publication."""
        for each in list(self._failed) if name is None else [name]:
            self._failed.pop(each, None)

    def extended(self, record: Publication, previous: Publication | None) -> Publication:
        """The record of a publication that is about to be made, with the derived tables; `previous` is the one before.

        Tables that the definition no longer lists are in it no more; the lake keeps their last content.
        """
        if not self._listed:
            return record
        shown = {} if previous is None else previous.tables
        tables = dict(record.tables)
        for name, reads in self._in_order(record.tables):
            before = shown.get(name)
            if previous is not None and before is not None and before.derived is not None:
                at = None if before.main is None else replace(before.main, position=previous.position_of(name))
                tables[name] = self._next(self._listed[name], reads, tables, before, at, record)
            else:
                tables[name] = self._next(self._listed[name], reads, tables, None, None, record)
        return replace(record, tables=tables)

    def not_shown(self, record: Publication, name: str, error: Exception) -> None:
        """Note that a table could not be shown."""
        table = record.tables[name]
        if table.derived is not None and table.state == DERIVED:
            self._unshown.add(name)
            self._fail(name, (table.derived.query, table.derived.reads), error, 0.0)

    # Order

    def _in_order(self, captured: Mapping[str, PublishedTable]) -> Iterator[tuple[str, list[str] | Cause]]:
        """The tables, each after those that it reads; what it reads, or why it can't be computed."""
        found = {name: self._known_reads(each) for name, each in self._listed.items()}
        for name in found:
            if name in captured:
                self._status[name] = DerivedStatus(cause=taken(name))
        yield from in_order({name: reads for name, reads in found.items() if name not in captured})

    def _known_reads(self, table: DerivedTable) -> list[str] | Cause:
        if table.name not in self._reads:
            try:
                self._reads[table.name] = self._sink.reads(table.name, table.sql)
            except DerivedFault as error:
                self._reads[table.name] = error.cause
        return self._reads[table.name]

    # One table

    def _next(
        self,
        table: DerivedTable,
        reads: list[str] | Cause,
        tables: Mapping[str, PublishedTable],
        before: PublishedTable | None,
        at: Main | None,
        record: Publication,
    ) -> PublishedTable:
        """The table in this record; `before` is the one of the last publication, `at` what that showed and since when.
        """
        name = table.name
        named = reads if isinstance(reads, Cause) else ids_of(name, reads, tables)
        if isinstance(named, Cause):
            return self._held(name, named, before, at, record)
        contents = {
            table_id: main.content for table_id in named.values() if (main := tables[table_id].main) is not None
        }
        work = None if before is None else before.work
        if len(contents) < len(set(named.values())):  # one of them has no rows in the lake yet
            self._status[name] = DerivedStatus(rows=None if at is None else at.rows)
            made_of = Derivation() if before is None or before.derived is None else before.derived
            return PublishedTable(
                state=WAITING, generation=_generation(work), main=at, work=work, derived=made_of
            )
        if before is not None and _was_shown(before) and name not in self._unshown:
            if (kept := self._kept(table, contents, before, at, record)) is not None:
                return kept
        failed, now = self._failed.get(name), self._clock.monotonic()
        if failed is not None and (now < failed.next_at or failed.made_of == (table.query, contents)):
            return self._held(name, failed.cause, before, at, record)
        placed = {each: (table_id, contents[table_id]) for each, table_id in named.items()}
        known = None if before is None else before.derived
        made = self._made(table, placed, work, known, record)
        if isinstance(made, Cause):
            return self._held(name, made, before, at, record)
        return PublishedTable(
            state=DERIVED,
            generation=_generation(made.work),
            main=Main(content=made.work.content, rows=made.work.rows),
            work=made.work,
            derived=Derivation(query=table.query, reads=contents, at=record.published_at),
        )

    def _kept(
        self, table: DerivedTable, contents: Mapping[str, Content], before: PublishedTable, at: Main | None,
        record: Publication,
    ) -> PublishedTable | None:  # fmt: skip
        """The table with the content that it has, if that is right for this record too, or not yet due to be another
        one; None if it must be computed."""
        known, work = before.derived, before.work
        if known is None or work is None or at is None or known.query != table.query:
            return None
        if known.reads.keys() == contents.keys() and all(
            known.reads[each] == content or self._same_rows(each, known.reads[each], content)
            for each, content in contents.items()
        ):
            self._failed.pop(table.name, None)
            kept = PublishedTable(
                state=DERIVED,
                generation=_generation(work),
                main=Main(content=work.content, rows=work.rows),
                work=work,
                derived=known if known.reads == contents else replace(known, reads=contents),
            )
        elif table.every_minutes is None or record.published_at >= known.at + 60 * table.every_minutes:
            return None
        else:
            kept = replace(before, state=DERIVED, held=None, main=at)
        status = self._status.get(table.name, DerivedStatus(rows=work.rows, at=known.at))
        self._status[table.name] = replace(status, cause=None)
        return before if kept == before else kept

    def _same_rows(self, table_id: str, before: Content, now: Content) -> bool:
        """Whether a table is known to have the same rows; if it can't be read, computing tells why."""
        try:
            return self._sink.same_rows(table_id, before, now)
        except Exception as error:
            if not self._sink.may_be_own(error):
                raise
            return False

    def _made(
        self,
        table: DerivedTable,
        reads: Mapping[str, tuple[str, Content]],
        work: Work | None,
        known: Derivation | None,
        record: Publication,
    ) -> Made | Cause:
        """Compute a table, whose `work` was made as `known` says; if that fails by its own fault, the cause."""
        name, began = table.name, self._clock.monotonic()
        since: Mapping[str, Content] | None = None
        if table.refresh == KEYS:
            since = {}
            if known is not None and known.query == table.query:
                since = known.reads

        def make(name: str) -> Made:
            return self._sink.derive(name, table.sql, reads, work, since=since, checkpoint=record.n, over=self._over)

        good, failed = self._sparing.each([name], make, undo=lambda name: self._sink.rewind(name, work))
        seconds = self._clock.monotonic() - began
        for _, error in failed:
            return self._fail(name, (table.query, dict(reads.values())), error, seconds)
        ((_, made),) = good
        found: Made = made
        if self._failed.pop(name, None) is not None:
            logger.warning("pipeline %s: %s left its quarantine", self._pipeline, name, extra={"table": name})
        self.foreign.pop(name, None)
        self._unshown.discard(name)
        self._status[name] = DerivedStatus(
            checkpoint=record.n,
            rows=found.rows,
            computed=found.rows if found.computed is None else found.computed,
            in_full=found.in_full,
            seconds=seconds,
            at=record.published_at,
            plan=found.plan,
        )
        text, about = "%s: computed %s: %d rows in %.2f s%s", {"table": name, "checkpoint": record.n}
        how = "" if found.computed is None else f", {found.computed} of them again"
        how += f", all of it, since {found.in_full}" if found.in_full else ""
        logger.info(text, self._pipeline, name, found.rows, seconds, how, extra=about)
        return found

    def _fail(self, name: str, made_of: tuple[str, Mapping[str, Content]], error: Exception, seconds: float) -> Cause:
        cause = cause_of(error, Code.DERIVED, "correct sql in derived, or the rows on which it fails")
        if isinstance(error, ForeignCommit):
            self.foreign[name] = error.foreign
        known = self._failed.get(name)
        if known is None or known.cause != cause:
            about = {"table": name, "cause": str(cause)}
            logger.error("pipeline %s: %s is quarantined: %s", self._pipeline, name, cause, extra=about)
        next_at = self._clock.monotonic() + min(LONGEST_REST, REST * seconds)
        self._failed[name] = _Try(made_of=made_of, cause=cause, next_at=next_at)
        return cause

    def _held(
        self, name: str, cause: Cause, before: PublishedTable | None, at: Main | None, record: Publication
    ) -> PublishedTable:
        """The table with what it showed before, and the cause why that does not go on."""
        held = None if before is None else before.held
        if held is None or held.cause != cause:
            since = record.published_at if held is None else held.since
            held = Quarantine(cause=cause, generation=1, applied=None, since=since)
        work = None if before is None else before.work
        known = self._status.get(name, DerivedStatus(rows=None if at is None else at.rows))
        self._status[name] = replace(known, cause=cause)
        return PublishedTable(
            state=QUARANTINED,
            generation=_generation(work),
            main=at,
            work=work,
            held=replace(held, generation=_generation(work)),
            derived=Derivation() if before is None else before.derived,
        )


def _generation(work: Work | None) -> int:
    return 1 if work is None else work.generation


def _was_shown(table: PublishedTable) -> bool:
    """Whether readers surely see what a record names of a table: not if the lake refused it, as after a commit of
    others, since the record was made before it was to be shown."""
    return table.held is None or table.held.cause.code == Code.DERIVED


def _listed(reads: list[str] | Cause) -> list[str]:
    return [] if isinstance(reads, Cause) else reads


def in_order(found: Mapping[str, list[str] | Cause]) -> Iterator[tuple[str, list[str] | Cause]]:
    """Derived tables with what each reads, or why it can't be computed: each after those that it reads. Of those of a
    circle it is that they are in one."""
    after = {name: [each for each in _listed(reads) if each in found] for name, reads in found.items()}
    known = dict(found)
    for name in found:
        if (path := _circle(name, after)) is not None:
            sentence = f"the derived table {name} reads itself: {' reads '.join(path)}"
            known[name] = Cause(Code.DERIVED, sentence, "take one of them out of the circle")
    done: set[str] = set()

    def visit(name: str) -> Iterator[str]:
        if name not in done:
            done.add(name)
            for other in after[name]:
                yield from visit(other)
            yield name

    for name in found:
        for each in visit(name):
            yield each, known[each]


def _circle(name: str, after: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The way from a table through those that it reads back to itself; None if there is none."""
    ways, seen = [[name]], set[str]()
    while ways:
        way = ways.pop(0)
        for other in after[way[-1]]:
            if other == name:
                return [*way, name]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return None


def taken(name: str) -> Cause:
    """Why a derived table that has the name of a table of the source is not made."""
    sentence = f"{name} is a table of the source, so the derived table of that name is not made"
    return Cause(Code.DERIVED, sentence, "give it another name")


def ids_of(name: str, reads: Sequence[str], tables: Collection[str]) -> dict[str, str] | Cause:
    """The id of each table that a query reads, by the name there: spelt exactly so, else in any case."""
    folded: dict[str, list[str]] = {}
    for table_id in tables:
        folded.setdefault(table_id.lower(), []).append(table_id)
    found = {}
    for each in reads:
        alike = [each] if each in tables else folded.get(each.lower(), [])
        if len(alike) != 1:
            sentence = f"the query of {name} reads {each}, which is no table of this pipeline"
            return Cause(Code.DERIVED, sentence, "correct sql in derived, or add it to tables")
        found[each] = alike[0]
    return found
