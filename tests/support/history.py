"""The history of a source as an oracle, and what a lake or a cut lacks of it.

`History` is replayed from the output of the source's mysqlbinlog: the content of a table at any position between two
transactions.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pymysql

from cutline.common.positions import FilePosition
from cutline.services.sources.mysql.server import flushed_position, identify
from tests.support.databases import Database, MySQL, mysql_system
from tests.support.mesh import Pipeline, connection
from tests.support.modelled_lake import Columns, Content, Cut, cuts
from tools.programs import program

# --- the oracle -------------------------------------------------------------------------------------------------------
_EVENT = re.compile(r"#\d{6} .* end_log_pos (\d+) (?:CRC32 \S+ )?\s*(\w+)(.*)")
_ROW = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `(.+)`\.`(.+)`")
_TRUNCATE = re.compile(r"TRUNCATE (?:TABLE )?`?(\w+)`?\.`?(\w+)`?$", re.IGNORECASE)


@dataclass(slots=True)
class _Change:
    table: str
    op: str
    before: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)


class History:
    """The content of tables at each position, from the server's binlog files; create it before the tables.

    The server's own mysqlbinlog decodes the files, and no code of Cutline's (with MariaDB, mysql-replication would
    reconnect for ever). It supports integers, decimals and plain text, and of DDL only TRUNCATE of `db.table`.
    """

    def __init__(self, server: Database) -> None:
        self.server = server
        self.begin = flushed(server)

    def at(self, tables: Mapping[str, Columns], places: Iterable[FilePosition]) -> list[dict[str, Content]]:
        """The content of `tables` at each of these places, in their order; each must lie between two transactions."""
        asked = list(places)
        wanted = sorted(set(asked))
        states: dict[FilePosition, dict[str, Content]] = {}
        now: dict[str, Content] = {table: {} for table in tables}
        for ends, changes in self._transactions():
            while wanted and wanted[0] < ends:
                states[wanted.pop(0)] = {table: dict(rows) for table, rows in now.items()}
            for change in changes:
                if change.table in tables:
                    _replay(now[change.table], tables[change.table], change)
        for position in wanted:
            states[position] = now
        return [states[position] for position in asked]

    def _transactions(self) -> Iterator[tuple[FilePosition, list[_Change]]]:
        """Yield the end of each transaction with its changes."""
        files = [row[0] for row in self.server.execute("SHOW BINARY LOGS")]
        for file in files[files.index(self.begin.file) :]:
            pending: list[_Change] = []
            values: list[Any] = []
            end, kind, words = 0, "", ""
            for line in self._text(file):
                if line.startswith("###   @"):
                    values.append(_value(line.split("=", 1)[1]))
                elif line == "### WHERE":
                    values = pending[-1].before
                elif line == "### SET":
                    values = pending[-1].after
                elif row := _ROW.match(line):
                    pending.append(_Change(f"{row[2]}.{row[3]}", row[1][0]))
                elif event := _EVENT.match(line):
                    end, kind, words = int(event[1]), event[2], event[3]
                    if kind == "Xid":
                        yield FilePosition(file, end), pending
                        pending = []
                elif kind == "Query" and (truncated := _TRUNCATE.match(line)):
                    yield FilePosition(file, end), [_Change(f"{truncated[1]}.{truncated[2]}", "T")]
            assert not pending, f"{file} ends within a transaction, at {end} ({kind} {words})"

    def _text(self, file: str) -> Iterator[str]:
        """Yield the lines that mysqlbinlog prints for one file."""
        assert self.server.folder is not None
        path = self.server.folder / "data" / file
        if isinstance(self.server, MySQL):
            path = "/" / path.relative_to(mysql_system())
            printer = [program("chroot"), str(mysql_system()), "/usr/bin/mysqlbinlog"]
        else:
            printer = [program("mariadb-binlog")]
        begin = self.begin.offset if file == self.begin.file else 4
        command = [*printer, "-v", "--base64-output=decode-rows", f"--start-position={begin}", str(path)]
        # the tests' temporary folder does not exist inside the chroot
        environ = {key: value for key, value in os.environ.items() if key != "TMPDIR"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", env=environ) as process:
            assert process.stdout is not None
            yield from (line.rstrip("\n") for line in process.stdout)
        assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"


def _value(text: str) -> Any:
    if text == "NULL":
        return None
    if text.startswith("'"):
        return text[1:-1]
    text = text.split(" ")[0]
    return Decimal(text) if "." in text else int(text)


def _replay(content: Content, columns: Columns, change: _Change) -> None:
    """Apply one change; a KeyError (a row to change is missing) means that the oracle is wrong."""
    names, key = columns
    if change.op == "T":
        content.clear()
    if change.op in "UD":
        before = dict(zip(names, change.before, strict=True))
        del content[tuple(before[name] for name in key)]
    if change.op in "UI":
        after = dict(zip(names, change.after, strict=True))
        content[tuple(after[name] for name in key)] = after


def flushed(server: Database) -> FilePosition:
    """The end of the server's binlog now."""
    with contextlib.closing(connection(server)) as conn:
        return flushed_position(conn, identify(conn))


def content(server: Database, table: str, key: Sequence[str]) -> Content:
    """The rows of a SELECT now, in the form of `Shown.content`."""
    with contextlib.closing(server.connect(cursorclass=pymysql.cursors.DictCursor)) as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return {tuple(row[name] for name in key): row for row in cursor.fetchall()}


def differences(found: Content, wanted: Content) -> list[str]:
    """One line for each key that differs, at most ten; [] if both are equal."""
    lines = [f"{key}: lacks {wanted[key]}" for key in wanted.keys() - found.keys()]
    lines += [f"{key}: has {found[key]}, which the source has not" for key in found.keys() - wanted.keys()]
    lines += [
        f"{key}: {found[key]} for {wanted[key]}" for key in found.keys() & wanted.keys() if found[key] != wanted[key]
    ]
    return lines[:10]


def judge(pipeline: Pipeline, history: History, tables: Mapping[str, Columns]) -> tuple[list[Cut], list[str]]:
    """Every publishable checkpoint, and one line for each difference between its tables and the source.

    The source's content is that at the checkpoint's position; a key with two rows is a difference too.
    """
    found = list(cuts(pipeline))
    showing = [cut for cut in found if cut.tables and cut.at is not None]
    at = sorted({cut.at for cut in showing if cut.at is not None})
    truth = dict(zip(at, history.at(tables, at), strict=True))
    faults = []
    for cut in showing:
        assert cut.at is not None
        for table in cut.tables.keys() & tables.keys():
            shown = cut.tables[table]
            lines = differences(shown.content, truth[cut.at][table])
            lines += [f"{key} has two rows" for key in shown.doubled]
            faults += [f"checkpoint {cut.slot} at {cut.at}, {table}: {line}" for line in lines]
    return found, faults
