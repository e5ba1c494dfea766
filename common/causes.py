"""Causes: what stopped something, as a value that errors raise and that reports, records, status and API carry (pure).

A cause has a code for programs, and a sentence and a remedy for people. No code reads the sentence: whoever must tell
causes apart does it by the code, and a part of a sentence that somebody needs alone becomes a field.

What must change together: a code here, and its line in MEANINGS, from which `make causes` writes docs/causes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """The kinds of causes, stable over versions: labels of metrics, fields of the API, anchors of docs/causes.md."""

    # of one table
    NO_KEY = "no_key"
    NOT_IN_BINLOG = "not_in_binlog"
    UNSUPPORTED = "unsupported"
    VALUE = "value"
    SCHEMA_CHANGE = "schema_change"
    RIGHTS = "rights"
    SOURCE_SLOW = "source_slow"
    UNREADABLE = "unreadable"
    NAME = "name"
    CHANGED = "changed"
    NO_TABLE = "no_table"
    LOCKED = "locked"
    FOREIGN_COMMIT = "foreign_commit"
    RULE = "rule"
    DERIVED = "derived"
    LAKE = "lake"
    # of a pipeline or a service
    ASKED = "asked"
    STARTED = "started"
    MEMBERS = "members"
    PURGED = "purged"
    OTHER_SERVER = "other_server"
    BINLOG = "binlog"
    PLACE = "place"
    REFUSED = "refused"
    CONFIGURATION = "configuration"
    SYNTAX = "syntax"
    UNAVAILABLE = "unavailable"
    DISK_FULL = "disk_full"
    LATE = "late"
    BUSY = "busy"
    REDIS_FULL = "redis_full"
    SERVER_ID = "server_id"
    PROTOCOL = "protocol"
    UNEXPECTED = "unexpected"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a code means, and what to do where a cause has no remedy of its own."""

    means: str
    remedy: str


MEANINGS: Mapping[Code, Meaning] = {
    code: Meaning(means=means, remedy=remedy)
    for code, means, remedy in (
        (
            Code.NO_KEY,
            "The table has nothing that identifies its rows: no primary key and no unique key over NOT NULL columns,"
            " or two rows have the same identity.",
            "Add a key, or name columns as its `identity` in `table_options`; then retry the table. A table that only"
            " grows can be copied by another pipeline with `keyless: append`, which a pipeline keeps for life.",
        ),
        (
            Code.NOT_IN_BINLOG,
            "Rows changed, or may have changed, without row events in the binlog: by a statement, by a cascade of a"
            " foreign key, or with a row image that is not FULL.",
            "Set `binlog_format = ROW` and `binlog_row_image = FULL` in every session, then retry the table.",
        ),
        (
            Code.UNSUPPORTED,
            "The table's engine, a column's type, or a feature of the table can't be copied.",
            "Change it at the source and retry the table, or leave the table out of the list (`cutline table remove`).",
        ),
        (
            Code.VALUE,
            "A row has a value that the lake can't hold, or a key value that can't be told from others.",
            "Correct the row at the source, then retry the table.",
        ),
        (
            Code.SCHEMA_CHANGE,
            "The table was changed by DDL, and `schema_changes: halt` stops it there.",
            "Prepare its consumers, then have it read again (`cutline table read-again`).",
        ),
        (
            Code.RIGHTS,
            "The source's user may not read the table.",
            "Grant SELECT on it. Retry the table if it does not come back by itself within seconds.",
        ),
        (
            Code.SOURCE_SLOW,
            "A SELECT gave almost no rows within `snapshot.max_select_seconds`.",
            "Find out what delays the server, or raise that setting; then retry the table.",
        ),
        (
            Code.UNREADABLE,
            "A row, or an event of the binlog, of this table can't be read or does not fit its columns.",
            "Check the file with mysqlbinlog, then retry the table; report it if the server reads the row well.",
        ),
        (
            Code.NAME,
            "The table's name is reserved, or is that of another table where case does not count.",
            "Rename the table, or leave it out of the list (`cutline table remove`).",
        ),
        (
            Code.CHANGED,
            "The table's definition or content changed so that rows read so far are no longer valid.",
            "Nothing: the table is read again by itself.",
        ),
        (
            Code.NO_TABLE,
            "The source has no such table (any more). The lake keeps its last content.",
            "Nothing, or create the table again: it is then read by itself.",
        ),
        (
            Code.LOCKED,
            "Another session of the source holds a lock on the table.",
            "Wait: the table is tried again by itself. `SHOW PROCESSLIST` at the source lists the session.",
        ),
        (
            Code.FOREIGN_COMMIT,
            "Somebody else committed to the lake table.",
            "Undo that commit and retry the table, or choose `accept` or `overwrite` (`cutline table lake`).",
        ),
        (
            Code.RULE,
            "The table's rule (`select`, `where`, `mask` and `mode` in `table_options`) can't be carried out.",
            "Correct the rule as the message says: the table is then read again by itself. Or correct the row on which"
            " it fails, then have the table read again (`cutline table read-again`).",
        ),
        (
            Code.DERIVED,
            "The query of a derived table is refused, or fails. The lake keeps the table's last content; all other"
            " tables go on.",
            "Correct `sql` in `derived` as the message says, or the rows on which it fails: the table is then computed"
            " again by itself.",
        ),
        (
            Code.LAKE,
            "The lake table can't be written or read.",
            "Repair the lake table, or drop it; then retry the table. One that was dropped is read again.",
        ),
        (Code.ASKED, "A person asked for it.", "Nothing."),
        (Code.STARTED, "The pipeline's first start, or another leader.", "Nothing."),
        (
            Code.MEMBERS,
            "A service joined or left, so the work is divided again.",
            "Nothing, unless it comes again and again: then see why the service ends.",
        ),
        (
            Code.PURGED,
            "The source no longer has the binlog after a position: it was purged, reset, or lost its end in a crash.",
            "Read the tables again (`cutline pipeline read-again`), and keep binlogs longer"
            " (`binlog_expire_logs_seconds`).",
        ),
        (
            Code.OTHER_SERVER,
            "The source is another server than before, and its positions can't be compared with the old ones.",
            "Point the pipeline at the right server and start it, or read the tables again"
            " (`cutline pipeline read-again`).",
        ),
        (
            Code.BINLOG,
            "The binlog can't be read on: a file is damaged, or has an event that can't be handled.",
            "Check the file with mysqlbinlog; read the tables again if it is damaged (`cutline pipeline read-again`).",
        ),
        (
            Code.PLACE,
            "`start` or `stop` names a place of the binlog at which the pipeline can't begin or end.",
            "Name a place that the binlog has, between two transactions. A pipeline keeps its `start` and `stop` for"
            " life: once it has begun, make another one.",
        ),
        (
            Code.REFUSED,
            "The source refused the connection, or its certificate was refused.",
            "Correct the account, the password, the certificate or `source.tls`; it is tried again by itself.",
        ),
        (
            Code.CONFIGURATION,
            "A setting, a grant or a request is wrong, or does not allow what was asked.",
            "Correct it, then try again.",
        ),
        (
            Code.SYNTAX,
            "A pipeline file, or a request's body, is not YAML, or gives a key twice.",
            "Correct it at the line and column that the sentence names.",
        ),
        (
            Code.UNAVAILABLE,
            "An outside system does not answer: the source, Redis, the store, Spark or the lake's catalogue.",
            "See that it runs; it is tried again by itself.",
        ),
        (
            Code.DISK_FULL,
            "A disk has no space left, or Cutline's user has used up its quota there: the store's, that of temporary"
            " files, or the lake's.",
            "Free space on it, or enlarge it; it is tried again by itself.",
        ),
        (
            Code.LATE,
            "A part of Cutline, or the store, takes longer than usual.",
            "See what the one that the sentence names does: its log, its disk, its network.",
        ),
        (
            Code.BUSY,
            "The source runs more threads than `snapshot.max_threads_running` allows.",
            "Nothing: reading goes on once the source is less busy. Raise the limit if it never is.",
        ),
        (
            Code.REDIS_FULL,
            "Redis is at its limit (`maxmemory`).",
            "Give it memory, or remove keys of other programs.",
        ),
        (
            Code.SERVER_ID,
            "Another client reads the source's binlog with the same server id.",
            "Stop that client, or give the pipeline another `source.server_id` (`cutline pipeline patch`).",
        ),
        (
            Code.PROTOCOL,
            "Parts of Cutline disagree, or a message or file is corrupt or not Cutline's.",
            "Run one version of Cutline; report it with the services' logs.",
        ),
        (Code.UNEXPECTED, "A bug of Cutline.", "Report it with the service's log."),
        (Code.OTHER, "A cause that this version does not know.", "See its sentence."),
    )
}
QUARANTINES = (
    Code.NO_KEY, Code.NOT_IN_BINLOG, Code.UNSUPPORTED, Code.VALUE, Code.SCHEMA_CHANGE, Code.RIGHTS, Code.SOURCE_SLOW,
    Code.UNREADABLE, Code.NAME, Code.NO_TABLE, Code.PLACE, Code.FOREIGN_COMMIT, Code.RULE, Code.DERIVED,
    Code.LAKE, Code.OTHER,
)  # fmt: skip
"""The codes of quarantined tables, which metrics count; any other counts as `other`."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause. `sentence`: what happened, to what. `remedy`: what to do, "" where nothing helps or is needed.

    Neither ends with a full stop, and the remedy begins in lower case: `str` puts a semicolon between them.
    """

    code: Code
    sentence: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}" if self.remedy else self.sentence

    def before(self, text: str) -> Cause:
        """The cause with `text` before its sentence, such as the column that it is about."""
        return replace(self, sentence=f"{text}{self.sentence}")

    def at(self, place: object) -> Cause:
        """The cause with the place where it was found."""
        return replace(self, sentence=f"{self.sentence} (at {place})")

    def ahead_of(self, place: object) -> Cause:
        """The cause with a place before which it was found."""
        return replace(self, sentence=f"{self.sentence} (before {place})")

    def to_json(self) -> dict[str, str]:
        """A plain dict."""
        return {"code": self.code, "sentence": self.sentence, "remedy": self.remedy}

    def advised(self, remedy: str) -> Cause:
        """The cause with one more remedy."""
        return replace(self, remedy="; ".join(filter(None, (self.remedy, remedy))))

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Cause:
        """Read what `to_json` gave, also that of another version: a code that this one does not know is `other`."""
        code = body.get("code")
        known = Code(code) if code in _KNOWN else Code.OTHER
        return cls(known, str(body.get("sentence", "")), str(body.get("remedy", "")))


_KNOWN = frozenset(Code)


def joined(causes: Iterable[Cause]) -> Cause:
    """Several causes of one effect as one: with the code of the first, and each remedy once."""
    first, *others = causes
    if not others:
        return first
    remedies = dict.fromkeys(cause.remedy for cause in (first, *others) if cause.remedy)
    return Cause(first.code, "; ".join(cause.sentence for cause in (first, *others)), "; ".join(remedies))


def counted(cause: Cause | None) -> Code:
    """The code under which metrics count a quarantine for this cause."""
    return cause.code if cause is not None and cause.code in QUARANTINES else Code.OTHER
