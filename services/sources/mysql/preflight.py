"""Checks of a source before a pipeline starts: server settings, grants, and the tables that the pipeline names.

Each fault is a cause. Nothing is changed on the server.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing

import pymysql
from pymysql.constants import COMMAND

from cutline.common.causes import Cause, Code
from cutline.common.config import reserved
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, SourceLost, TableLocked
from cutline.common.table_id import split_table_id, unquoted
from cutline.services.sources.mysql.catalogue import TableAsked, TableInfo, describe_all, list_tables
from cutline.services.sources.mysql.connection import (
    NO_SELECT,
    Connection,
    address,
    ask,
    columns_of,
    quoted,
    quoted_table,
    translate_errors,
)
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.requirements import setting_faults
from cutline.services.sources.mysql.server import NO_BINLOG, Server, identify, log_status


def check_source(config: PipelineConfig, *, begun: bool = False, folds_case: bool = False) -> None:
    """Check the source of a pipeline before anything is written: ConfigError with every fault found.

    Faults are: an unknown host, a refused user, the server's settings, missing grants, a list of tables that matches
    nothing (unless the pipeline has `begun`: its tables may have been dropped since), tables that would have a name of
    Cutline's own in the lake, and tables that differ in upper and lower case alone, if the catalogue `folds_case`.
    Unavailable if the server can't be reached now.
    """
    with closing(Hosts(config.source).connect()) as conn:
        selected = config.select(list_tables(conn))
        faults = server_faults(conn, tables=selected)
        if not selected and not begun:
            faults.append(
                Cause(
                    Code.CONFIGURATION,
                    f"tables: {', '.join(config.tables)} matches none of the tables that {address(conn)} may see",
                    "correct the list, or GRANT SELECT on them",
                )
            )
        faults += reserved.taken(selected, config.sink.own_namespace, folds_case=folds_case, begun=begun)
        if folds_case:
            faults += folded(selected)
        server = identify(conn)
        if config.snapshot.chunks == "exact" and server.mysql and not server.gtid:
            faults.append(Cause(
                Code.CONFIGURATION,
                "snapshot.chunks: exact needs GTIDs on MySQL",
                "set gtid_mode=ON there, or use replay",
            ))
    if faults:
        raise ConfigError.several(faults)


def described(
    conn: Connection, server: Server, config: PipelineConfig, tables: Sequence[str]
) -> dict[str, TableInfo | SourceLost]:
    """Each of these tables as the pipeline would capture it, or the error if the catalogue can't describe it."""
    asked = []
    for table in tables:
        options = config.options_of(table)
        asked.append(TableAsked(table_id=table, identity=options.identity, chunk_by=options.chunk_by))
    return describe_all(
        conn,
        server,
        asked,
        keyless=config.keyless == "append",
        unlogged_cascades=config.unlogged_cascades == "allow",
    )


def quarantine_causes(found: TableInfo | SourceLost) -> tuple[Cause, ...]:
    """Why a table of `described` would be quarantined; () if it can be captured."""
    return (found.cause,) if isinstance(found, SourceLost) else found.faults


def folded(tables: Sequence[str]) -> Iterator[Cause]:
    """A fault for each table whose name in lower case, written with a dot between its halves, is that of one before."""
    known: dict[str, str] = {}
    for table_id in tables:
        other = known.setdefault(unquoted(table_id).lower(), table_id)
        if other != table_id:
            yield Cause(
                Code.CONFIGURATION,
                f"the catalogue stores names in lower case and with dots between them, where {other} and {table_id}"
                " are the same",
                "leave one of them out of tables, or use a catalogue that tells them apart",
            )


def server_faults(conn: Connection, *, tables: Sequence[str] = ()) -> list[Cause]:
    """Every fault of the server's settings, of the user's grants, and of the user's access to `tables`."""
    server = identify(conn)
    user = ask(conn, "SELECT CURRENT_USER()")[0][0]
    account = "@".join(f"'{part}'" for part in user.rsplit("@", 1))
    faults = setting_faults(conn, server)
    if NO_BINLOG not in faults:
        faults += _replication_faults(conn, server, account)
    for table_id in tables:
        faults += _select_faults(conn, table_id, account)
    return faults


def _replication_faults(conn: Connection, server: Server, account: str) -> list[Cause]:
    faults = []
    try:
        _, _, do_db, ignore_db, *_ = log_status(conn, server)
        if do_db or ignore_db:
            faults.append(
                Cause(
                    Code.CONFIGURATION,
                    f"The server leaves databases out of its binlog (binlog-do-db={do_db},"
                    f" binlog-ignore-db={ignore_db}), so their changes can't be seen",
                    "remove these options",
                )
            )
    except ConfigError:
        grant = "REPLICATION CLIENT" if server.mysql else "BINLOG MONITOR"
        faults.append(Cause(
            Code.CONFIGURATION, f"{account} may not see the binlog's position", f"GRANT {grant} ON *.* TO {account}"
        ))
    if not _may_replicate(conn):
        faults.append(Cause(
            Code.CONFIGURATION, f"{account} may not read the binlog", f"GRANT REPLICATION SLAVE ON *.* TO {account}"
        ))
    return faults


def _may_replicate(conn: Connection) -> bool:
    """Register as a replica until the connection ends: the one check of this grant that works on all servers."""
    # COM_REGISTER_SLAVE: server id, three empty strings (host, user, password), port, rank, source's id
    payload = struct.pack("<IBBBHII", 0xFFFF_FFFE, 0, 0, 0, 0, 0, 0)
    try:
        with translate_errors(f"{conn.host}:{conn.port}"):
            conn._execute_command(COMMAND.COM_REGISTER_SLAVE, payload)  # type: ignore[attr-defined]
            conn._read_packet()  # type: ignore[no-untyped-call]
    except ConfigError:
        return False
    return True


def _select_faults(conn: Connection, table_id: str, account: str) -> list[Cause]:
    database, _ = split_table_id(table_id)
    try:
        columns_of(conn, f"SELECT * FROM {quoted_table(table_id)}", table=table_id)
    except TableLocked:
        return []  # the table waits for its lock alone
    except SourceLost as error:
        if isinstance(error.__cause__, pymysql.MySQLError) and error.__cause__.args[0] in NO_SELECT:
            return [Cause(
                Code.CONFIGURATION,
                f"{account} may not read {table_id}",
                f"GRANT SELECT ON {quoted(database)}.* TO {account}",
            )]
        return [error.cause.before(f"{table_id} can't be read: ")]
    return []
