"""How times, durations, sizes and counts read: the same in every command. JSON has the numbers themselves."""

from __future__ import annotations

from datetime import UTC, datetime

_DAY = 86_400


def duration(seconds: float) -> str:
    """A time span: 0.4 s, 42 s, 3:05, 2:03:04, 3 d 4 h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole >= 2 * _DAY:
        days, hours = divmod(round(whole / 3600), 24)
        return f"{days} d {hours} h"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def span(seconds: float | None) -> str:
    """A duration that may be unknown."""
    return "" if seconds is None else duration(seconds)


def when(moment: float | None) -> str:
    """A time (seconds since 1970) in this machine's time zone, to the second."""
    return "" if moment is None else f"{datetime.fromtimestamp(moment, tz=UTC).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def age(moment: float, now: float) -> str:
    """How long ago it is, or how long it still is until then."""
    return f"{duration(now - moment)} ago" if moment <= now else f"in {duration(moment - now)}"


def dated(moment: float | None, now: float) -> str:
    """A time with its age."""
    return "" if moment is None else f"{when(moment)} ({age(moment, now)})"


def size(count: float | None) -> str:
    """A number of bytes."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(count: float | None) -> str:
    """A count, with separators between thousands. What only names a thing, such as a checkpoint's number, has none."""
    return "" if count is None else f"{count:,.0f}"
