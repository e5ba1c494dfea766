"""The progress of one start of the Spark writer."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutline.common.journal.applies import Applies
from cutline.common.measures import Measures
from cutline.common.store.records import Publication, Quarantine, Work
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.engine import Engine
from cutline.spark_writer.sinks.iceberg.foreign import Theirs


@dataclass(slots=True, kw_only=True)
class Progress:
    """The state of start `w`.

    `published` is the newest publication, `applied` the last checkpoint applied. Each mapping is by table: `work` has
    the applied state, `quarantined` the cause for which a table is left out, `read_again` the lost generation of a
    table that must be read again from the source, `layouts` the columns of a table that this start has applied,
    `theirs` the commits of others about which a person must choose before the table goes on, `engines` who applied a
    table's changes in the last batch. `applies` are the last batches, `measures` the histograms of this start.
    """

    w: int
    published: Publication | None
    applied: int
    work: dict[str, Work]
    quarantined: dict[str, Quarantine]
    read_again: dict[str, int] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    theirs: dict[str, Theirs] = field(default_factory=dict)
    measures: Measures = field(default_factory=Measures)
    engines: dict[str, Engine] = field(default_factory=dict)
    applies: Applies = field(default_factory=Applies)

    @property
    def unpublished(self) -> bool:
        """Whether a checkpoint is applied and not yet published: a successor would have to apply it again."""
        return self.applied > (self.published.n if self.published is not None else 0)

    @property
    def branch(self) -> str:
        """The branch, in every lake table, that only this start writes and nobody reads."""
        return f"staging_{self.w}"
