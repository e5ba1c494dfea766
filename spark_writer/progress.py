"""How far one start of the Spark writer is."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutline.common.store.records import Publication, Quarantine, Work
from cutline.spark_writer.iceberg.columns import Layout


@dataclass(slots=True, kw_only=True)
class Progress:
    """The state of start `w`.

    `published` is its newest publication, `applied` the last checkpoint applied. `work` maps each table to its applied
    state, `quarantined` each table that is left out to the reason, `read_again` each table that must be read again from
    the source to the generation that was lost, `layouts` each table that this start has applied to its columns.
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
        """The branch, in every lake table, that only this start writes and nobody reads."""
        return f"staging_{self.w}"
