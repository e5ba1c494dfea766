"""Upkeep between applies: compaction, expiry of snapshots, old savepoints, the sweep of the store, and the removal of
files that killed starts have left in the lake.

Late or failed upkeep does no harm: a table whose upkeep fails stays as it is, with a warning.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from cutline.common.errors import CutlineError, Unavailable
from cutline.common.journal.retention import Retained, retained
from cutline.common.measures import OTHERS
from cutline.common.status.pipeline_status import CompactionStatus, Files
from cutline.common.store.chain import follow
from cutline.common.store.records import Publication, Work
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.iceberg.engine import SPARK
from cutline.spark_writer.sinks.iceberg.faults import may_be_own
from cutline.spark_writer.sinks.iceberg.maintenance import (
    HERE_BYTES,
    TIER,
    compact,
    drop_branches,
    expire,
    worth_compacting,
)
from cutline.spark_writer.sinks.iceberg.orphans import remove_orphans
from cutline.spark_writer.sinks.iceberg.rewriting import Rewriting
from cutline.spark_writer.sinks.iceberg.start import Start
from cutline.spark_writer.sinks.iceberg.works import content_of, snapshot_of, tags_of

logger = logging.getLogger("cutline.spark_writer")
EXPIRE_SECONDS = 600.0
ASK_SECONDS = 1.0
COMPACTION_REST = 4.0
"""Seconds of rest after each second of compaction; large rounds and others rest apart."""


class Upkeep:
    """The upkeep of one start of the Spark writer.

    `view` is the task, once begun, that creates `_cutline.cuts`. `sweeping` is the thread of the store's last sweep:
    one of its own, as a sweep may take minutes and the end of the start must not wait for it.
    """

    def __init__(self, start: Start) -> None:
        """The first compaction is due at once, the first expiry EXPIRE_SECONDS from now."""
        self._start = start
        self._store, self._lake = start.store, start.lake
        self._progress = start.progress
        self._tables = start.tables
        self._publications = start.publications
        self.retention = start.retention
        self._clock = start.clock
        self.view: Future[None] | None = None
        self.sweeping: threading.Thread | None = None
        self._closed = threading.Event()
        self._asked_at = float("-inf")
        self._to_compact: dict[str, None] = {}
        self._to_expire: set[str] = set()
        self._searched: dict[str, bool] = {}
        self._rewriting: Rewriting | None = None
        self._sizes: dict[str, tuple[int, int, int]] = {}  # files, their bytes, those still to merge
        self._changed = False
        self._began_at = self._expired_at = self._compact_at = self._large_at = start.clock.time()

    def note_applied(self, table_id: str) -> None:
        """Note that a table got a commit, which may leave it files to merge and snapshots to expire."""
        self._to_compact[table_id] = None
        self._to_expire.add(table_id)

    def note_derived(self, table_id: str) -> None:
        """Note that a derived table was computed, which may leave it snapshots to expire; its files are all new."""
        self._to_expire.add(table_id)

    def run(self) -> bool:
        """Do the upkeep that is due; return whether `shown` has news. Raises Unavailable if a new start must
        continue."""
        self._changed = False
        newest = self._progress.published
        if newest is not None and self.view is None:
            self.view = self._start.side_by_side.pool.submit(self._make_view)
        now = self._clock.time()
        if newest is not None and now - self._expired_at >= EXPIRE_SECONDS:
            self._expired_at = now
            if self._store.commands.orders().base is not None:
                return self._changed  # a pipeline that stands still is to be restored to an older checkpoint
            grace_began = now - self.retention.grace_seconds
            # The whole chain: that of the journal view ends with the epoch of the newest publication.
            chain = follow(self._store.last_slot(), self._store.entry)
            found = retained(
                self._records(), chain=chain, now=now, settings=self.retention, released=self._store.removal.released()
            )
            if found is not None:
                kept = {record.n for record in found.savepoints}
                if not self._store.removal.may_retire(found.oldest.n, kept, w=self._progress.w):
                    return self._changed
                for record in found.released:
                    self._untag(record)
                before_ms = int(grace_began * 1000)
                self._expire(newest, found, before_ms)
                self._publications.tidy([*found.savepoints, found.oldest], newest.n, before_ms)
                if self.sweeping is None or not self.sweeping.is_alive():
                    work = (found.oldest.n, kept, self._to_search(newest, now), grace_began)
                    self.sweeping = threading.Thread(
                        target=self._sweep, args=work, name="cutline-sweep", daemon=True
                    )
                    self.sweeping.start()
        if now >= self._compact_at:
            self._compact(newest, waiting=self._start.journal.has_more())
            self._compact_at = now + COMPACTION_REST * (self._clock.time() - now)
        return self._changed

    def files(self, most: int) -> dict[str, Files]:
        """Return the files of the lake tables, as far as compaction has looked at them, and the rows that they show:
        those of the `most` largest tables, and those of all others together."""
        sizes = {table_id: size for table_id, size in self._sizes.items() if table_id in self._progress.work}
        largest = heapq.nlargest(most, sizes, key=lambda table_id: sizes[table_id][1])
        found = {table_id: Files(*size[:2], self._rows(table_id)) for table_id, size in sizes.items()}
        files = {table_id: found.pop(table_id) for table_id in largest}
        if found:
            rows = [each.rows for each in found.values() if each.rows is not None]
            files[OTHERS] = Files(
                files=sum(each.files for each in found.values()),
                size=sum(each.size for each in found.values()),
                rows=sum(rows) if len(rows) == len(found) else None,
            )
        return files

    def _rows(self, table_id: str) -> int | None:
        """The rows that the newest publication shows of a table; None if that is unknown."""
        newest = self._progress.published
        table = None if newest is None else newest.tables.get(table_id)
        return None if table is None or table.main is None else table.main.rows

    def compaction(self) -> CompactionStatus:
        """Return how much compaction still has to do."""
        waiting = sum(size[2] for table_id, size in self._sizes.items() if table_id in self._progress.work)
        return CompactionStatus(tables=len(self._to_compact), files=waiting)

    def applied_elsewhere(self) -> dict[str, str]:
        """Return why Spark, and not this process, applied the changes of the last batch, by table."""
        return {
            table_id: choice.why
            for table_id, (batch, choice) in list(self._start.engines.items())
            if choice.engine == SPARK and batch == self._progress.applied
        }

    def close(self) -> None:
        """Give up what runs beside the applies and would commit later; a sweep ends before its next removal."""
        self._closed.set()
        if self._rewriting is not None:
            self._rewriting.abandon()

    def _make_view(self) -> None:
        self._lake.activate()
        self._publications.make_view()

    def _skip(self, table_id: str, error: Exception) -> None:
        """Log that a table's upkeep failed; raise an error that is not that table's own."""
        if not may_be_own(error):
            raise error
        cause = first_line(error)
        about = {"table": table_id, "cause": cause}
        logger.warning("pipeline %s: upkeep of %s failed: %s", self._store.name, table_id, cause, extra=about)

    # Compaction

    def _compact(self, newest: Publication | None, *, waiting: bool) -> None:
        """Do one round of compaction on the first table that is worth it; only tables with new files are examined.

        More files are needed for that while journal entries wait, and most while the table's snapshot is being applied,
        since that comes first and nobody reads the table yet. Of large rounds one at a time runs beside the applies.
        """
        progress = self._progress
        if self._rewriting is not None and self._rewriting.done:
            self._finish(self._rewriting)
        for table_id in list(self._to_compact):
            work = progress.work.get(table_id)
            if work is None or work.place != self._start.branch or table_id in progress.quarantined:
                del self._to_compact[table_id]
                continue
            live = newest is not None and table_id in newest.tables and newest.tables[table_id].shown
            try:
                pending = self._compact_table(table_id, work, least=TIER ** (1 + waiting if live else 3))
            except Exception as error:
                del self._to_compact[table_id]
                self._skip(table_id, error)
                continue
            if progress.work[table_id] != work:
                return
            if live and not waiting and not pending:
                del self._to_compact[table_id]

    def _compact_table(self, table_id: str, work: Work, *, least: int) -> bool:
        """Do or begin a round on a table, if one is worthwhile; return whether the next one must wait."""
        table, layout = self._tables.get(table_id), self._start.layouts[table_id]
        under_way = self._rewriting.paths if self._rewriting is not None else set()
        contents = table.contents(snapshot_of(work.content)).files
        files = [file for path, file in contents.items() if path not in under_way]
        chosen = worth_compacting(files, table.dead_rows, least, here=layout.in_memory)
        self._sizes[table_id] = (len(contents), sum(file.size for file in contents.values()), len(chosen))
        self._changed = True
        pending = False
        if sum(file.size for file in chosen) > HERE_BYTES:
            if self._rewriting is None and self._clock.time() >= self._large_at:
                self._rewriting = Rewriting(table, chosen, layout)
                return True
            pending = True
            chosen = worth_compacting(files, table.dead_rows, least, here=True)
        if chosen:
            head = compact(
                table,
                chosen,
                branch=self._start.branch,
                head=snapshot_of(work.content),
                layout=layout,
                summary=self._summary(),
            )
            self._note_head(table_id, work, head)
        return pending

    def _finish(self, rewriting: Rewriting) -> None:
        """Commit what a large round has written, if its table is still ours to change."""
        progress, table_id = self._progress, rewriting.table_id
        self._rewriting = None
        self._large_at = self._clock.time() + COMPACTION_REST * rewriting.seconds
        work = progress.work.get(table_id)
        if work is None or work.place != self._start.branch or table_id in progress.quarantined:
            rewriting.abandon()
            return
        try:
            head = rewriting.finish(
                self._tables.get(table_id),
                branch=self._start.branch,
                head=snapshot_of(work.content),
                layout=self._start.layouts[table_id],
                summary=self._summary(),
            )
        except Exception as error:
            self._to_compact.pop(table_id, None)
            self._skip(table_id, error)
            return
        self._note_head(table_id, work, head)
        self._to_compact[table_id] = None

    def _summary(self) -> dict[str, str]:
        return {"cutline.checkpoint": str(self._progress.applied), "cutline.w": str(self._progress.w)}

    def _note_head(self, table_id: str, work: Work, head: int) -> None:
        if content_of(head) != work.content:
            self._progress.work[table_id] = replace(work, content=content_of(head))
            self._to_expire.add(table_id)

    # Expiry

    def _records(self) -> Iterator[Publication]:
        """All publications, newest first."""
        for n in reversed(self._store.publication_numbers()):
            record = self._store.publication(n)
            if record is not None:
                yield record

    def _untag(self, record: Publication) -> None:
        """Drop the tags of a savepoint."""

        def untag(table_id: str) -> None:
            try:
                table = self._lake.load(table_id)
                if table is not None:
                    table.untag(tags_of(record, table_id))
                    self._to_expire.add(table_id)
            except Exception as error:
                self._skip(table_id, error)

        self._tables.each([table_id for table_id in record.tables if tags_of(record, table_id)], untag)

    def _expire(self, newest: Publication, kept: Retained, before_ms: int) -> None:
        """Remove branches and snapshots that only older starts, or publications that go, needed."""

        def work_of(record: Publication, table_id: str) -> Work | None:
            table = record.tables.get(table_id)
            return None if table is None else table.work

        branch = self._start.branch
        ours = [table for table in self._to_expire if (work := work_of(newest, table)) and work.place == branch]

        def expire_one(table_id: str) -> None:
            # The snapshots from which the oldest and the newest publication continue stay: the heads may be newer.
            works = (work_of(record, table_id) for record in (kept.oldest, newest))
            named = {snapshot_of(work.content) for work in works if work}
            try:
                table = self._tables.get(table_id)
                made_ms = [ms for snapshot in named if (ms := table.made_ms(snapshot)) is not None]
                drop_branches(table, ours=branch)
                stay = [snapshot_of(content) for content in kept.contents_of(table_id)]
                expire(table, before_ms=min(before_ms, *made_ms), kept=stay)
            except Exception as error:
                self._skip(table_id, error)
            work = self._progress.work.get(table_id)
            if work is not None and set(kept.contents_of(table_id)) == {work.content}:
                self._to_expire.discard(table_id)  # nothing older is left to expire

        self._tables.each(ours, expire_one)

    # Files that no snapshot names

    def _to_search(self, newest: Publication, now: float) -> list[str]:
        """Return the tables in which to look for files that older starts have left: those that this start has published
        work of, each at first, and again once the last files of its predecessor are older than the grace.
        """
        settled = now - self._began_at >= self.retention.grace_seconds
        branch = self._start.branch
        ours = [table_id for table_id, table in newest.tables.items() if table.work and table.work.place == branch]
        all_ours = (*ours, self._publications.table_id)
        found = [table_id for table_id in all_ours if self._searched.get(table_id) is not settled]
        self._searched.update(dict.fromkeys(found, settled))
        return found

    def _remove_orphans(self, table_id: str, before: float) -> None:
        lake, w = self._lake, self._progress.w
        try:
            table = self._publications.load() if table_id == self._publications.table_id else lake.load(table_id)
            removed = [] if table is None else remove_orphans(table, lake.owner, w=w, before=before)
        except Exception as error:
            logger.warning(
                "pipeline %s: files in %s were not looked at: %s", lake.pipeline, table_id, first_line(error)
            )
            return
        if removed:
            logger.info(
                "pipeline %s: removed %d files that a killed start left in %s", lake.pipeline, len(removed), table_id
            )

    # The store

    def _ask(self) -> None:
        """Raise Unavailable if this start, or its pipeline, has ended: the sweep asks before each removal. The store is
        asked once a second."""
        if self._closed.is_set():
            raise Unavailable("this start of the Spark writer has ended")
        if self._clock.monotonic() - self._asked_at >= ASK_SECONDS:
            if self._store.deleting() or self._store.has_ended():
                raise Unavailable("the pipeline is deleted")
            if (newest := self._store.newest_claim()) > self._progress.w:
                raise Unavailable(f"start {newest} of the Spark writer has taken over from {self._progress.w}")
            self._asked_at = self._clock.monotonic()

    def _sweep(self, n: int, kept: Collection[int], tables: Collection[str], before: float) -> None:
        """Remove the store's files that only checkpoints up to publication `n` needed, except the savepoints `kept`;
        then the key indexes of tables that are gone, and what older starts left in these tables before the time
        `before`.
        """
        try:
            self._store.removal.retire(n, kept, w=self._progress.w, ask=self._ask)
            published = self._progress.published
            shown = published.tables if published is not None else {}
            gone = {table_id for table_id, table in shown.items() if table.state == "dropped"}
            self._ask()
            self._start.indexes.sweep({*shown, *tuple(self._progress.work)} - gone)
        except CutlineError as error:
            logger.warning("pipeline %s: the store could not be swept: %s", self._store.name, error)
        except Exception:  # nobody waits for this thread's result
            logger.exception("pipeline %s: the store could not be swept", self._store.name)
        if tables:
            self._lake.activate()
        for table_id in tables:
            with suppress(CutlineError):
                self._ask()
                self._remove_orphans(table_id, before)
