"""What a sink is: the places in which the tables of one pipeline are kept, as one start of the Spark writer uses them.

The caller (spark_writer/apply.py) keeps the order of durability and all that goes by checkpoints: which steps a table
gets, when a publication is made, which table is quarantined. A sink knows tables, works and what is shown of them:

- A **work** is a table's applied state. Nobody reads it before it is shown. Each start makes works of its own, so that
  a start that is killed, or goes on although another has overtaken it, harms none.
- A work names its *content* (what may be shown later: it stays as it is, whatever is applied on top of it) and its
  *place* (where the next step goes on). Only the sink reads these two. They are what a publication records.
- **Showing** needs nothing but a publication's record: it may be repeated, by any start, after any crash, and changes
  nothing the second time.
- Any call may raise Unavailable, before its effect or after it. An error that may be one table's own
  (`may_be_own`) harms only that table, if it comes again while `check` succeeds (spark_writer/sparing.py).

Calls for several tables come from several threads, calls for one table one at a time. A thread calls `enter` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError
from cutline.common.journal.plan import TableStep
from cutline.common.journal.progress import Progress
from cutline.common.journal.view import JournalView
from cutline.common.positions import Position
from cutline.common.schema import TableSchema
from cutline.common.status.pipeline_status import CompactionStatus, Files
from cutline.common.store.records import Content, Publication, Work
from cutline.spark_writer.sinks.side_by_side import SideBySide

ACCEPT = "accept"
OVERWRITE = "overwrite"
"""A person's choices about the commits of others: to go on from them, or to replace them."""


Known = Callable[[pa.Table | None], Iterator[tuple[pa.Table, Any]]]
"""Reads a table of the sink: its rows that have one of these keys (`k0`, `k1`, …), a part at a time in the columns of
the sink's schema, with the numbers of their keys as a numpy array; None: all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What other users made of a table where the sink had `shown` another content (None: none), by publication
    `shown_n`.

    `content` is theirs (None: they removed it). `seen` names exactly this state, for a person's choice about it; the
    possible ones are `choices`, the one made is `chosen`.
    """

    shown_n: int
    shown: Content | None
    content: Content | None
    seen: str
    choices: tuple[str, ...]
    chosen: str | None = None


class TableFault(ConfigError):
    """A table of the sink is not as its rows need it, mostly by another user; a person must repair it.

    `lost`: the rows that it held are gone too.
    """

    code = Code.LAKE

    def __init__(self, cause: Cause | str, remedy: str = "", *, lost: bool = False) -> None:
        """Take the cause, or its sentence and remedy."""
        super().__init__(cause if isinstance(cause, Cause) else Cause(self.code, cause, remedy))
        self.lost = lost


class ForeignCommit(TableFault):
    """Other users committed `foreign` to a table, and a person must choose whether that is kept."""

    code = Code.FOREIGN_COMMIT

    def __init__(self, cause: str, remedy: str, foreign: Foreign) -> None:
        """Take the sentence and its remedy."""
        super().__init__(cause, remedy)
        self.foreign = foreign


class DerivedFault(TableFault):
    """The query of a derived table is refused, or fails; only that table is concerned."""

    code = Code.DERIVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A derived table that was computed: its work, its rows, and the engine's plan, for people.

    `computed`: so many rows were computed again, of the changes alone; None: all of them, and `in_full` says why, if
    that was not what was asked for.
    """

    work: Work
    rows: int
    plan: str
    computed: int | None = None
    in_full: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What readers see of a table's earlier generation when the next one is to be shown for the first time.

    `schema` is the table's at the source, `position` the place up to which the `content` has the source's changes, and
    `until` their time. `noticed` is the time up to which the next generation has them.
    """

    content: Content
    generation: int
    schema: TableSchema
    position: Position | None
    until: datetime
    noticed: datetime


Pairs = Callable[[pa.Table], Iterator[tuple[pa.Table, Any, Callable[[Any], None]]]]
"""Reads earlier rows that have one of these keys, as `Known` does; the third says which of the rows go on in new ones:
those are not taken over any more."""


class Carried(Protocol):
    """What a generation takes over of the rows of the one before it, by its table's mode.

    Rows are in the columns that the sink has for them, own ones of the mode included. First `look` gets the columns
    `looks_at` of all earlier rows, if it has some. Then `begun` gets the rows that `of_snapshot` finds in the new
    generation, and last `kept` gets the earlier rows that do not go on.
    """

    looks_at: tuple[str, ...]

    def look(self, rows: pa.Table) -> None:
        """Learn from some columns of earlier rows."""

    def of_snapshot(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Which rows of the new generation `begun` is to replace; None: none of all."""

    def begun(self, rows: pa.Table, pairs: Pairs) -> pa.Table:
        """The new generation's rows, with what they begin with."""

    def kept(self, rows: pa.Table, has: Callable[[pa.Table], Any]) -> pa.Table:
        """Earlier rows as the new generation has them, without those that it need not have. `has` returns the numbers
        of those of some keys, each there once, that the new generation has."""


class Shaping(Protocol):
    """The rules of one pipeline's tables, for one start (spark_writer/transform/)."""

    def begin(self, w: int) -> None:
        """Begin start `w`."""

    def lake_schema(self, schema: TableSchema) -> TableSchema:
        """The sink's schema of a table that has this one at the source."""

    def parts(self, step: TableStep) -> Sequence[TableStep]:
        """The steps in which a step is shaped and applied, one after the other."""

    def shaped(self, step: TableStep, known: Known) -> AbstractContextManager[TableStep]:
        """The step after its table's rule: the sink's schema, and files of its rows for as long as the `with` lasts.

        `known` reads the sink's rows as they are before the step.
        """

    def close(self) -> None:
        """End what the start has begun for its rules."""

    def carried(self, schema: TableSchema, arrow: pa.Schema, earlier: Earlier, before: pa.Schema) -> Carried | str:
        """What a generation with this schema at the source takes over of an earlier one, whose rows have the columns
        `before` in the sink, and its own `arrow`; or else why it takes over nothing."""


class Upkeep(Protocol):
    """What a sink does between applies so that it stays fast and bounded. Late or failed upkeep does no harm."""

    def run(self) -> bool:
        """Do what is due; return whether the status has news. Raises Unavailable if a new start must continue.

        Called only while the lease is ours as far as this process knows, since what it removes is not protected by w.
        """

    def files(self, most: int) -> Mapping[str, Files]:
        """The files of the `most` largest tables, and those of all others together, for the status."""

    def compaction(self) -> CompactionStatus:
        """How much compaction still has to do, for the status."""

    def applied_elsewhere(self) -> Mapping[str, str]:
        """Why others than this process applied the last batch's changes, by table, for the status."""


class Sink(Protocol):
    """The sink of one pipeline, for one start. The calls come in this order: `check_holder`, `begin`, all others,
    `close`."""

    def check_holder(self) -> None:
        """Raise ConfigError, with the choices, if another life of the pipeline has published here and this one may not
        take that over. The start has no number yet."""

    def begin(self, progress: Progress, journal: JournalView, side_by_side: SideBySide) -> Upkeep:
        """Begin start `progress.w`: whatever it makes, it marks with that number. The upkeep reads the progress, and
        replaces works in it by equal ones. Nothing is written yet."""

    def enter(self) -> None:
        """Make the calling thread ready for the other calls."""

    # Applying

    def foreign(self, table_id: str, work: Work | None) -> Foreign | None:
        """Look what others have committed; return the commits on which work must go on instead of on `work`, else None.

        ForeignCommit if a person must choose first.
        """

    def apply(self, step: TableStep, done: Work | None, *, checkpoint: int) -> Work:
        """Bring a table from `done` to the end of a step; `checkpoint` is the last one of its batch.

        A step of another generation, or the first one of a table, begins that generation: nothing of the earlier rows
        is in the new work. Each change comes exactly once: a call that failed is followed by `rewind`. StagedLost if a
        staged file is gone; TableFault with `lost` if the content of `done` is.
        """

    def rewind(self, table_id: str, work: Work | None) -> None:
        """Forget what this start has made of a table since `work` (None, or one of another start: all of it)."""

    def carry_over(self, schema: TableSchema, work: Work, earlier: Earlier, *, checkpoint: int) -> Work:
        """Give a work what its table's mode keeps of an earlier generation, and return the work with it.

        The work has all rows of its generation, and was never shown: so this comes once for each generation. What does
        not fit is left out with a warning. Errors as `apply`, and TableFault if what readers see can't be read.
        """

    # Derived tables

    def reads(self, name: str, sql: str) -> list[str]:
        """The tables that the query of a derived table names, each once, as "db.table"; DerivedFault if it is no query
        of such tables."""

    def derive(
        self,
        name: str,
        sql: str,
        reads: Mapping[str, tuple[str, Content]],
        done: Work | None,
        *,
        since: Mapping[str, Content] | None,
        checkpoint: int,
        over: Callable[[], bool],
    ) -> Made:
        """Compute a derived table: exactly the query over the tables at these contents, which are given with the ids of
        the tables by the names in the query. It goes on from `done` (None: it has no work).

        `since` None: all of it is computed. Else of the changes alone, where that is possible: `since` has the contents
        of which the same query gave `done`, by the ids of the tables, and is empty if it did not; DerivedFault if the
        query is none that can be computed so.

        `over`, asked by another thread meanwhile, tells whether this start is to end: Unavailable, soon after it is.
        DerivedFault, with the engine's sentence, if the query is refused; ForeignCommit as `foreign`.
        """

    def same_rows(self, table_id: str, before: Content, now: Content) -> bool:
        """Whether a later content of a table is known to have the same rows, in other files."""

    # Publishing

    def make_durable(self) -> None:
        """Return once all works made so far outlive the machine's crash. The publication that names them follows."""

    def show(self, record: Publication, table_id: str, allowed: Callable[[tuple[int, int]], bool]) -> bool:
        """Let readers see the content that the record's `main` has for a table, with the mark of a savepoint if it is
        one and shows the table at its own cut; True if they now do.

        `allowed` gets the (w, N) shown now, and is called in the change itself: False if it refuses. ForeignCommit if
        that would undo others' commits; TableFault with `lost` if the content is gone.
        """

    def keep(self, record: Publication, table_id: str) -> None:
        """Mark, as the savepoint's, what a record names for a table that it does not show at its own cut."""

    def record(self, record: Publication, before: Publication | None, left_behind: Callable[[], list[int]]) -> None:
        """Tell users of the sink about a publication, once it is shown; `before` is the last one that this start has
        told of, None at its first, which then replaces what others told of it and of those that a restore has
        `left_behind`. Unavailable if a newer start has told of one."""

    # Errors and people

    def may_be_own(self, error: Exception) -> bool:
        """Whether an error raised while one table was processed may be that table's own, not one of a resource that
        all tables share."""

    def check(self, *, expected: bool) -> None:
        """Raise Unavailable unless the sink accepts a commit on a table of Cutline's own, which must exist if it is
        `expected`."""

    def forget(self, table_id: str) -> None:
        """Read the table anew at its next call."""

    def check_table(self, table_id: str) -> None:
        """Raise TableFault if the sink can't take a next generation of a table."""

    def choose(self, table_id: str, choice: str, seen: str) -> None:
        """Keep a person's choice about the commits of others that were `seen`; ConfigError if there is none."""

    def abandon(self, newest: Publication | None) -> None:
        """Remove, as far as possible, what this start has made and the newest publication does not name. Raises
        nothing that concerns one table."""

    def close(self) -> None:
        """End the sink's own threads; nothing of it commits later."""
