"""The errors for bytes of the source that can't be read; any other error in reading them is a bug of ours."""

from __future__ import annotations


class Damaged(ValueError):
    """Bytes of the source can't be read: they are corrupt, truncated, or in an undocumented form.

    Raised only where bytes are read, so that a bug of ours never looks like a damaged file.
    """


class PartialImage(Damaged):
    """A row image lacks columns: `binlog_row_image` is not FULL, perhaps only in one session."""
