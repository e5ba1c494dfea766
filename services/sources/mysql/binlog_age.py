"""How long the server still keeps the binlog that a pipeline needs, and how far the pipeline is behind its end.

A server removes a binlog file once the file's last write is older than the retention. A file's last write is the moment
when the next one began, which that file's first event states; the file in use is never removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cutline.common.errors import ConfigError, SourceLost
from cutline.common.positions import FilePosition
from cutline.services.sources.mysql.connection import Connection, ask
from cutline.services.sources.mysql.server import Server, binlogs, clock, variables

ENOUGH_SECONDS = 3600.0
Place = tuple[str, FilePosition]
"""A place in the binlog of a server, which its identity names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binlogs:
    """The binlog files of a server, oldest first, each with its size. `retention_seconds`: how long a file stays after
    its last write, None if for ever or unknown. `clock_offset_seconds`: how far the server's clock is ahead of ours;
    `now`: the server's time, in seconds since 1970."""

    server: str
    files: tuple[FilePosition, ...]
    retention_seconds: float | None
    clock_offset_seconds: float
    now: float

    def bytes_after(self, place: Place | None) -> int | None:
        """The bytes of the binlog after a place; None if it is not in these files."""
        at = self._index(place)
        if at is None or place is None:
            return None
        return max(0, sum(file.offset for file in self.files[at:]) - place[1].offset)

    def oldest_of(self, places: Collection[Place]) -> int | None:
        """The index of the file that holds the oldest of these places; None if no place is on this server, -1 if a file
        is removed."""
        ours = [place for place in places if place[0] == self.server and place[1].file]
        found = [self._index(place) for place in ours]
        if any(at is None for at in found):
            return -1
        return min((at for at in found if at is not None), default=None)

    def _index(self, place: Place | None) -> int | None:
        if place is None or place[0] != self.server:
            return None
        return next((at for at, file in enumerate(self.files) if file.file == place[1].file), None)

    def seconds_left(self, places: Collection[Place], begun: Callable[[str], float]) -> float | None:
        """How long all these places still stay in the binlog; None if for ever, or if they are another server's.

        `begun` tells when a file began (seconds since 1970).
        """
        at = self.oldest_of(places)
        if at is None or self.retention_seconds is None:
            return None
        if at < 0:
            return 0.0
        if at == len(self.files) - 1:
            return self.retention_seconds
        return max(0.0, self.retention_seconds - (self.now - begun(self.files[at + 1].file)))


def look(conn: Connection, server: Server) -> Binlogs:
    """Ask the server for its binlog files, their retention and its time."""
    before = time.time()
    now = clock(conn) / 1_000_000
    offset = now - (before + time.time()) / 2
    return Binlogs(
        server=server.identity,
        files=tuple(binlogs(conn)),
        retention_seconds=retention(conn),
        clock_offset_seconds=round(offset, 3),
        now=now,
    )


def retention(conn: Connection) -> float | None:
    """How many seconds the server keeps a binlog file after its last write; None if for ever, or if nobody may say."""
    return retention_of(
        variables(conn, "binlog_expire_logs_seconds", "expire_logs_days", "binlog_expire_logs_auto_purge", "datadir"),
        _rds_settings(conn),
    )


def retention_of(known: Mapping[str, str], rds: Mapping[str, str | None] | None) -> float | None:
    """`retention` by the server's variables and the settings of Amazon's service, None where these can't be seen.

    There, MySQL's own settings have no effect, and without hours of its own a file goes as soon as the service can
    spare it.
    """
    if rds is not None:
        return float(rds.get("binlog retention hours") or 0) * 3600
    if known.get("datadir", "").startswith("/rdsdbdata/"):
        return None
    if known.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
        return None
    seconds = float(known.get("binlog_expire_logs_seconds", 0)) or float(known.get("expire_logs_days", 0)) * 86400
    return seconds or None


def if_short(seconds: float | None) -> str | None:
    """What to do if the server keeps its binlog for less than an hour after its last write; None if it keeps it."""
    if seconds is None or seconds >= ENOUGH_SECONDS:
        return None
    return (
        "keep it for a day or more, since all tables must be read again once the binlog is purged that a pipeline still"
        " needs: set binlog_expire_logs_seconds (before MariaDB 10.6: expire_logs_days), on Amazon RDS and Aurora"
        " CALL mysql.rds_set_configuration('binlog retention hours', 168)"
    )


def _rds_settings(conn: Connection) -> dict[str, str | None] | None:
    """The settings that Amazon RDS and Aurora keep in a table; None elsewhere, and where the user may read neither the
    table nor its procedure."""
    visible = ask(
        conn,
        "SELECT 'table' FROM information_schema.tables WHERE table_schema = 'mysql'"
        " AND table_name = 'rds_configuration' UNION ALL SELECT 'procedure' FROM information_schema.routines"
        " WHERE routine_schema = 'mysql' AND routine_name = 'rds_show_configuration'",
    )
    for kind, question in (
        ("table", "SELECT name, value FROM mysql.rds_configuration"),
        ("procedure", "CALL mysql.rds_show_configuration()"),
    ):
        if (kind,) in visible:
            with suppress(SourceLost, ConfigError):  # seen by a right of another kind
                return {name: value for name, value, *_ in ask(conn, question, table="mysql.rds_configuration")}
    return None
