"""Whose a lake table is (pure): the life of a pipeline that made it or took it over, by the properties of the table.

`cutline.pipeline` is the pipeline's name, for people; `cutline.id` is the id of its life (common/store/lives.py), and
decides. A name comes again when a pipeline is deleted and made again, or in another store on the same catalogue; so a
table of another life of this name is never taken for one's own by chance:

- its pipeline says `sink.adopt`: it takes the table over, with all that it shows, until its own first generation does;
- else the table is refused, at once, with these choices.

A pipeline whose table was taken over finds another id there, and itself among the earlier ones: it is refused, also if
it says `adopt`. Else two pipelines of one name, in two stores, would take the table from each other for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from cutline.common.causes import Cause, Code

OWNER = "cutline.pipeline"
ID = "cutline.id"
EARLIER = "cutline.earlier"
"""The ids of the lives from which the table was taken over (the name, if one had no id), parted by spaces: files of
theirs that no snapshot names are swept."""


def earlier_of(text: str | None) -> frozenset[str]:
    """The lives that the property `EARLIER` names."""
    return frozenset((text or "").split())


def with_earlier(earlier: Collection[str], name: str | None, life: str | None) -> str:
    """The property `EARLIER` of what is taken over from this life too, as `earlier_of` reads it."""
    return " ".join(sorted({*earlier, life or str(name)}))


class Relation(StrEnum):
    """What a table is to a pipeline: its own; another life's, which it takes over; another life's; another life's,
    which took it over from this one; another pipeline's; nobody's."""

    OURS = "ours"
    ADOPTED = "adopted"
    EARLIER = "earlier"
    LATER = "later"
    ANOTHERS = "anothers"
    NOBODYS = "nobodys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A life of a pipeline as the lake knows it; `adopts`: it takes over what earlier lives of its name have left."""

    name: str
    id: str
    adopts: bool = False

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a table of this owner."""
        return {OWNER: self.name, ID: self.id}

    def relation(self, name: str | None, life: str | None, earlier: Collection[str] = ()) -> Relation:
        """What something with this name and id (None: it has none), taken over from the `earlier` ones, is to this
        pipeline."""
        if name is None:
            return Relation.NOBODYS
        if name != self.name:
            return Relation.ANOTHERS
        if life == self.id:
            return Relation.OURS
        if self.id in earlier:
            return Relation.LATER
        return Relation.ADOPTED if self.adopts else Relation.EARLIER

    def has(self, name: str | None, life: str | None) -> bool:
        """Whether something with these marks was made by this life of the pipeline, or taken over by it."""
        return self.relation(name, life) == Relation.OURS

    def refusal(self, what: str, name: str | None, life: str | None, earlier: Collection[str] = ()) -> Cause | None:
        """Why this pipeline can't write `what`, which has this name and id; None if it can."""
        match self.relation(name, life, earlier):
            case Relation.LATER:
                return Cause(
                    Code.LAKE,
                    f"{what} was taken over from this pipeline (id {self.id}) by another pipeline {name} (id {life}),"
                    " made again or in another store",
                    "delete this pipeline, or remove that from the lake",
                )
            case Relation.EARLIER:
                which = "" if life is None else f" (id {life})"
                return Cause(
                    Code.LAKE,
                    f"{what} belongs to another pipeline {name}{which}, deleted or in another store, not to this one"
                    f" (id {self.id})",
                    "set `sink: {adopt: true}` to take it over, remove it from the lake, or choose another warehouse",
                )
            case Relation.ANOTHERS | Relation.NOBODYS:
                whose = f"belongs to pipeline {name}" if name else "was not made by Cutline"
                return Cause(
                    Code.LAKE,
                    f"{what} {whose}, so pipeline {self.name} can't write it",
                    "choose another warehouse or remove that table",
                )
        return None
