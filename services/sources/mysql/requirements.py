"""What a server must be to be read: its version, its settings, and a history that continues what was read.

Each fault is a cause. Nothing is changed on the server.
"""

from __future__ import annotations

from collections.abc import Iterable

from cutline.common.causes import Cause, Code
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import FilePosition, Position
from cutline.services.sources.mysql.connection import Connection, ask
from cutline.services.sources.mysql.server import (
    FIRST_OFFSET,
    NO_BINLOG,
    Server,
    binlog_gtid_pos,
    binlogs,
    flushed_position,
    gtid_executed,
    gtid_purged,
    variables,
)

SUPPORTED = "MySQL 8.0, 8.4 and 9.7, MariaDB 10.11, 11.4 and 11.8"
"""The versions that Cutline is made for (docs/operations/source.md says which were tried); others of the same age
may work, older ones than these are refused:"""
_OLDEST = {"mysql": (8, 0), "mariadb": (10, 5)}
_FLAVOURS = {"mysql": "MySQL", "mariadb": "MariaDB"}
_REPLICA_STATUS_SINCE = (8, 0, 22)


def name(server: Server) -> str:
    """The server's kind and version, for messages."""
    return f"{_FLAVOURS[server.flavour]} {'.'.join(map(str, server.version))}"


def setting_faults(conn: Connection, server: Server) -> list[Cause]:
    """Every fault of the server's version and settings."""
    if server.version < _OLDEST[server.flavour]:
        return [Cause(Code.CONFIGURATION, f"{name(server)} is too old", f"use one of {SUPPORTED}")]
    required = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
    others = ("binlog_row_value_options", "binlog_order_commits", "log_slave_updates", "log_replica_updates")
    actual = variables(conn, "log_bin", "binlog_storage_engine", *required, *others)
    if actual.get("log_bin", "OFF") not in ("ON", "1"):
        return [NO_BINLOG]
    faults = []
    if actual.get("binlog_storage_engine"):
        faults.append(
            Cause(
                Code.CONFIGURATION,
                f"{name(server)} keeps its binlog in {actual['binlog_storage_engine']} (binlog_storage_engine), which"
                " Cutline can't read",
                "unset that option, so that the binlog is in files",
            )
        )
    for setting, value in required.items():
        is_now = actual.get(setting)
        if is_now is None and setting == "binlog_row_metadata":
            faults.append(Cause(
                Code.CONFIGURATION, f"The server has no {setting}: it is too old", f"use one of {SUPPORTED}"
            ))
        elif is_now is not None and is_now.upper() != value:
            faults.append(
                Cause(
                    Code.CONFIGURATION,
                    f"{setting} is {is_now}, not {value}",
                    f"SET GLOBAL {setting} = '{value}' and let sessions reconnect",
                )
            )
    if actual.get("binlog_row_value_options"):
        faults.append(
            Cause(
                Code.CONFIGURATION,
                "binlog_row_value_options is PARTIAL_JSON, so the binlog lacks whole JSON values",
                "SET GLOBAL binlog_row_value_options = '' and let sessions reconnect",
            )
        )
    if actual.get("binlog_order_commits", "ON") == "OFF":
        # gtid_executed could then name a commit before one that it builds on, and no low watermark would be safe
        faults.append(Cause(
            Code.CONFIGURATION, "binlog_order_commits is OFF, not ON", "SET GLOBAL binlog_order_commits = 'ON'"
        ))
    logged = actual.get("log_replica_updates", actual.get("log_slave_updates", "ON"))
    if logged == "OFF" and _replicates(conn, server):
        setting = "log_replica_updates" if "log_replica_updates" in actual else "log_slave_updates"
        faults.append(
            Cause(
                Code.CONFIGURATION,
                f"The server is a replica and {setting} is off, so its binlog lacks its source's changes",
                "turn it on",
            )
        )
    return faults


def _replicates(conn: Connection, server: Server) -> bool:
    if server.mysql:  # which has no such status variable since 8.0
        word = "REPLICA" if server.version >= _REPLICA_STATUS_SINCE else "SLAVE"
        return bool(ask(conn, f"SHOW {word} STATUS"))
    status = ask(conn, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slave_running', 'Slaves_running')")
    return any(value not in ("OFF", "0") for _, value in status)


def takeover_fault(conn: Connection, server: Server, read: Iterable[Position]) -> Cause | None:
    """Why this server can't take over for another one: it lacks GTIDs, or transactions up to one of the places that
    were read, or the binlog after it. None if it can.
    """
    if server.mysql and not server.gtid:
        return Cause(
            Code.CONFIGURATION, "gtid_mode is not ON, and only GTIDs find a place on another server", "set it to ON"
        )
    places = [place for place in read if place.executed is not None]
    if not places:
        return None
    executed: GtidSet | MariaGtid
    purged: GtidSet | MariaGtid
    if server.mysql:
        executed, purged = gtid_executed(conn), gtid_purged(conn)
    else:
        first = FilePosition(binlogs(conn)[0].file, FIRST_OFFSET)
        executed, purged = (
            MariaGtid.parse(binlog_gtid_pos(conn, at) or "") for at in (flushed_position(conn, server), first)
        )
    for place in places:
        if not _within(place.executed, executed):
            return Cause(
                Code.CONFIGURATION,
                f"it lacks transactions that were read ({place.gtids}; it has {executed}), as a replica that lags, or"
                " one that was restored from a backup",
                "let it catch up",
            )
        if not _within(purged, place.executed):
            return Cause(
                Code.CONFIGURATION,
                f"its binlog after {place.gtids} is purged",
                "keep binlogs longer: binlog_expire_logs_seconds",
            )
    return None


def _within(inner: GtidSet | MariaGtid | None, outer: GtidSet | MariaGtid | None) -> bool:
    if isinstance(inner, GtidSet) and isinstance(outer, GtidSet):
        return inner <= outer
    return isinstance(inner, MariaGtid) and isinstance(outer, MariaGtid) and inner <= outer
