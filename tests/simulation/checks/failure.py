"""What a check raises."""

from __future__ import annotations


class Failure(Exception):
    """A check failed: one sentence."""
