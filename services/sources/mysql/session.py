"""The session in which Cutline reads a source: each setting that reading relies on, and its value (pure).

A server's defaults and its `init_connect` may be anything, and a proxy may answer a SET by itself. So each connection
sets all of them after the login (`statement`), and reads them back (`question`, `forced`): a session that is not
exactly so is not used. What each setting would break stands beside it.

Comments that one kind of server executes (`/*!80000 */` on MySQL, `/*M! */` on MariaDB) hide what the other lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LOCK_WAIT_SECONDS = 1
"""How long a statement waits for a table's metadata lock, such as that of LOCK TABLES: no time is shorter on MySQL. A
table that is locked for longer waits by itself, so that it holds up no other."""
_UNLIMITED_ROWS = "18446744073709551615"
_SWITCHES = {"1": "ON", "0": "OFF", "OFF": "0"}
"""The other way in which a server, or a proxy that answers for it, prints a switch."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A session variable: `value` as SQL and, where the server prints it differently, as `printed`. `only`: the comment
    that hides it from servers without it, as "!80000" or "M!". `variable`: its name in a SELECT, if another."""

    name: str
    value: str
    printed: str = ""
    only: str = ""
    variable: str = ""

    @property
    def expected(self) -> str:
        """The value as a SELECT prints it."""
        return self.printed or self.value.strip("'")

    @property
    def shown(self) -> str:
        """The name in a SELECT."""
        return self.variable or self.name


SETTINGS = (
    # Without autocommit the first question opens a transaction: chunks are older than their low watermarks, the
    # catalogue never shows a new table, and the metadata locks stop ALTERs. PyMySQL's own `autocommit` believes a flag
    # of the login that MySQL sets wrongly.
    Setting("autocommit", "1"),
    # COMMIT would begin the next transaction, or end the connection.
    Setting("completion_type", "0", "NO_CHAIN"),
    # Values and literals: sql_mode changes what quotes, NULL, padding and types of columns mean.
    Setting("sql_mode", "''"),
    Setting("time_zone", "'+00:00'"),
    Setting("sql_auto_is_null", "0"),
    Setting("lc_messages", "'en_US'"),
    # Limits that would end or shorten a result.
    Setting("sql_select_limit", _UNLIMITED_ROWS),
    Setting("sql_big_selects", "1"),
    Setting("net_write_timeout", "3600"),
    Setting("net_read_timeout", "3600"),
    Setting("wait_timeout", "28800"),
    Setting("lock_wait_timeout", str(LOCK_WAIT_SECONDS)),
    Setting("max_execution_time", "0", only="!80000"),
    Setting("max_statement_time", "0", "0.000000", only="M!"),
    Setting("idle_transaction_timeout", "0", only="M!"),
    Setting("idle_readonly_transaction_timeout", "0", only="M!"),
    # What information_schema shows: fresh estimates, and the hidden primary keys that the binlog has too.
    Setting("information_schema_stats_expiry", "0", only="!80000"),
    Setting("show_gipk_in_create_table_and_information_schema", "1", only="!80030"),
    # A secondary engine (HeatWave) lags behind InnoDB, which alone sees what a low watermark covers.
    Setting("use_secondary_engine", "OFF", only="!80013"),
)
_ISOLATION = (
    Setting("", "REPEATABLE-READ", only="!80000", variable="transaction_isolation"),
    Setting("", "1", only="!80000", variable="transaction_read_only"),
    Setting("", "REPEATABLE-READ", only="M!", variable="tx_isolation"),
    Setting("", "1", only="M!", variable="tx_read_only"),
)
"""Set by ISOLATION, since the names of these variables differ."""
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_NAMES = tuple(Setting("", "utf8mb4", variable=f"character_set_{what}") for what in ("client", "connection", "results"))
"""Set by PyMySQL at the login."""


def _for_its_server(setting: Setting, text: str) -> str:
    return f"/*{setting.only} {text} */" if setting.only else text


def statement() -> str:
    """The SET of all settings but the isolation."""
    first, *others = SETTINGS
    settings = "".join(_for_its_server(other, f", {other.name}={other.value}") for other in others)
    return f"SET SESSION {first.name}={first.value}{settings}"


def question() -> str:
    """The SELECT of them all, in one row; each column has its variable's name."""
    first, *others = (*SETTINGS, *_ISOLATION, *_NAMES)
    columns = "".join(_for_its_server(other, f", @@SESSION.{other.shown} AS `{other.shown}`") for other in others)
    return f"SELECT @@SESSION.{first.shown} AS `{first.shown}`{columns}"


def forced(found: Mapping[str, str]) -> Iterator[str]:
    """Each setting that the session has otherwise than it was set, as "name = value (Cutline set value)"; `found` is
    the answer to `question`."""
    for setting in (*SETTINGS, *_ISOLATION, *_NAMES):
        expected, is_now = setting.expected, found.get(setting.shown)
        if is_now is None and setting.only:
            continue  # another kind of server
        if is_now is None or is_now.upper() not in (expected.upper(), _SWITCHES.get(expected)):
            yield f"{setting.shown} = {is_now!r} (Cutline set {expected!r})"
