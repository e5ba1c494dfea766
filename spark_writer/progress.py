"""How far one start of the Spark writer is."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutline.common.store.records import Publication, Quarantine, Work
from cutline.spark_writer.iceberg.columns import Layout


@dataclass(slots=True, kw_only=True)
class Progress:
    """The state of start `w`: what it has applied and published, and the tables that it left out.

    `applied` is the last checkpoint applied, `work` where each table's applied state is, `layouts` how the columns lie
    of tables that this start has applied; `read_again` maps tables that must be read again from the source to the
    generation that was lost.
    """

    w: int
    published: Publication | None
    applied: int
    work: dict[str, Work]
    quarantined: dict[str, Quarantine]
    read_again: dict[str, int] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)

    @property
    def branch(self) -> str:
        """The branch of every lake table that only this start writes, and nobody reads."""
        return f"staging_{self.w}"
