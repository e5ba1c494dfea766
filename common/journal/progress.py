"""The progress of one start of a follower."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutline.common.journal.applies import Applies
from cutline.common.measures import Measures
from cutline.common.store.records import Publication, Quarantine, Work


@dataclass(slots=True, kw_only=True)
class Progress:
    """The state of start `w`.

    `published` is the newest publication, `applied` the last checkpoint applied. Each mapping is by table: `work` has
    the applied state, `quarantined` the cause for which a table is left out, `read_again` the lost generation of a
    table that must be read again from the source. `applies` are the last batches, `measures` the histograms of this
    start.
    """

    w: int
    published: Publication | None
    applied: int
    work: dict[str, Work]
    quarantined: dict[str, Quarantine]
    read_again: dict[str, int] = field(default_factory=dict)
    measures: Measures = field(default_factory=Measures)
    applies: Applies = field(default_factory=Applies)

    @classmethod
    def since(cls, w: int, published: Publication | None) -> Progress:
        """Begin where a publication ended; None: at the beginning."""
        captured = published.tables.items() if published is not None else ()
        tables = {table_id: table for table_id, table in captured if table.derived is None}
        return cls(
            w=w,
            published=published,
            applied=0 if published is None else published.n,
            work={table_id: table.work for table_id, table in tables.items() if table.work is not None},
            quarantined={table_id: table.held for table_id, table in tables.items() if table.held is not None},
        )

    @property
    def unpublished(self) -> bool:
        """Whether a checkpoint is applied and not yet published: a successor would have to apply it again."""
        return self.applied > (self.published.n if self.published is not None else 0)
