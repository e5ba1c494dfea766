"""The class of a quarantine's cause: few words for metrics and alerts, where the cause itself is a sentence (pure)."""

from __future__ import annotations

LAKE, OTHER = "lake", "other"
PHRASES = (
    ("no_key", "has no identity"),
    ("no_key", "so only its INSERTs can be copied"),
    ("not_in_binlog", "may have been changed by a statement in the binlog"),
    ("not_in_binlog", "binlog_row_image must be FULL"),
    ("not_in_binlog", "changes by the foreign key"),
    ("unsupported", "is not supported"),
    ("unsupported", "which has no transactions, so no consistent snapshot"),
    ("unsupported", "keeps its history (system versioning)"),
    ("value", "has a zero or partial date in its"),
    ("value", "has text in its key column"),
    ("value", "leave the table out of the list"),
    ("schema_change", "schema_changes: halt stops it there"),
    ("rights", "may not be read"),
    ("source_slow", "gave fewer than two rows"),
    ("foreign_commit", "committed to the lake table"),
    ("foreign_commit", "changed the columns of the lake table"),
    ("foreign_commit", "another user set the lake table"),
    ("foreign_commit", "another user wrote files to the lake table"),
)
"""A class, and words of the causes that belong to it; a test compares them with the code's messages."""
CLASSES = (*dict.fromkeys(known for known, _ in PHRASES), LAKE, OTHER)


def cause_class(cause: str | None, *, in_lake: bool) -> str:
    """Return the class of a cause. `in_lake`: the Spark writer quarantined the table."""
    found = (known for known, words in PHRASES if words in (cause or ""))
    return next(found, LAKE if in_lake else OTHER)
