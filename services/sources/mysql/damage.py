"""What the decoders raise at bytes that are not what they are to be; any other error of theirs is a bug of ours."""

from __future__ import annotations


class Damaged(ValueError):
    """Bytes of the source can't be read: they are damaged, cut short, or of a form that nobody has described.

    Raised where bytes are read and nowhere else, so that a mistake in our own code never looks like a damaged file.
    """
