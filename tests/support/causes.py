"""Causes for tests that are about something else."""

from cutline.common.causes import Cause, Code


def because(sentence: str, remedy: str = "") -> Cause:
    """A cause with this sentence."""
    return Cause(Code.OTHER, sentence, remedy)
