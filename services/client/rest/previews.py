"""The answer of `POST /v1/plan/preview`, typed (models.py has the others)."""

from __future__ import annotations

from cutline.services.client.rest.models import Answer, Fault


class PreviewColumn(Answer):
    """A column of a lake table; its Iceberg type."""

    name: str
    type: str


class PreviewTable(Answer):
    """A lake table that a rule or a derived table makes."""

    table: str
    columns: list[PreviewColumn]


class PreviewRow(Answer):
    """A row of the source as text, and what its table's rule makes of it: None if it is left out, or fails."""

    before: list[str | None]
    after: list[str | None] | None
    failure: str | None


class PreviewRows(Answer):
    """Some rows of a table. `own_key`: the values in `masked` have hashes by a key that is made up."""

    table: str
    columns: list[str]
    masked: list[str]
    own_key: bool
    rows: list[PreviewRow]


class Preview(Answer):
    """What the rules and derived tables of a definition make; `note`: why it is not analysed, or what is left out."""

    pipeline: str
    analysed: bool
    note: str | None
    tables: list[PreviewTable]
    refusals: list[Fault]
    rows: PreviewRows | None
