"""Real MariaDB and MySQL 9.7 for tests, the bench and the demo, private and on loopback only.

Each server has its own free port and its own data folder, and is a context manager::

    with MySQL(gtid=False) as server:
        server.execute("CREATE DATABASE shop")

`stop` (SIGTERM, then SIGKILL) and `kill` end the process and keep the data, `start` starts it again on the same port
and data, `close` (the end of the `with`) also removes the data.

Each data folder is a copy of a template, which is initialised once for each server version, so a start takes about a
second. MySQL comes from Debian's unstable suite: `debootstrap` installs it once, into the cache folder, and it runs
there by chroot, without any mount; its data folders are inside. A server that this machine can't run raises `Missing`,
with the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

import pymysql
from pymysql.constants import ER

from cutline.common.config.environment import cache_folder
from tests.support.server_process import LocalServer, Option, ServerFailed, tail
from tools.builds import built_once, unstable
from tools.programs import program

XA_SECONDS = 20.0
CDC_USER = "cdc"
CDC_PASSWORD = "cdc-secret"
TEMPLATE_RECIPE = "1"  # count up when templates must be made anew


def mysql_system() -> Path:
    """The folder with the system whose MySQL the tests run, by chroot: that of CUTLINE_TEST_MYSQL (made by debootstrap
    of another suite, for another version), else `unstable`."""
    chosen = os.environ.get("CUTLINE_TEST_MYSQL")
    return Path(chosen) if chosen else unstable()


class Database(LocalServer):
    """MariaDB or MySQL.

    `user` and `password` belong to the capturing user, who has exactly the grants that Cutline asks for (`GRANTS`);
    `root_user` has all grants and no password. `connect` and `execute` work as root.
    `strict=True` syncs each commit to disk (`sync_binlog=1`, `innodb_flush_log_at_trx_commit=1`); otherwise commits
    survive a kill of the server but not a crash of the machine. `options` are server options and override the defaults:
    None leaves a default out, True and False are ON and OFF.
    """

    flavour: ClassVar[Literal["mariadb", "mysql"]]
    GRANTS: ClassVar[tuple[str, ...]]
    SMALL: ClassVar[dict[str, Option]]
    """Options that keep a template small."""

    def __init__(self, *, strict: bool = False, **options: Option) -> None:
        super().__init__()
        self.user = CDC_USER
        self.password = CDC_PASSWORD
        self.root_user = "root"
        self.root_password = ""
        self.version = ""
        self.strict = strict
        self.options = options
        self._makes_template = False

    def connect(self, **keywords: Any) -> pymysql.connections.Connection[Any]:
        """A connection as root, autocommit, in UTC; keywords go to `pymysql.connect` and override these."""
        arguments: dict[str, Any] = {
            "user": self.root_user,
            "password": self.root_password,
            "autocommit": True,
            "charset": "utf8mb4",
            # PyMySQL's own `autocommit` believes a flag that MySQL sets wrongly
            "init_command": "SET time_zone = '+00:00', autocommit = 1",
            "local_infile": True,
            "connect_timeout": 10,
            "ssl_disabled": True,  # PyMySQL reads all certificates of the machine for each connection: 30 ms
        }
        if self._makes_template:
            arguments["unix_socket"] = str(self.folder / "s") if self.folder else ""
        else:
            arguments |= {"host": self.host, "port": self.port}
        connection: pymysql.connections.Connection[Any] = pymysql.connect(**arguments | keywords)
        return connection

    def connect_as_cdc(self, **keywords: Any) -> pymysql.connections.Connection[Any]:
        """A connection as the capturing user."""
        return self.connect(**{"user": self.user, "password": self.password} | keywords)

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements as root on one new connection, each committed; return the rows of the last one.

        Other connections see a prepared XA transaction only after the server has closed the connection that prepared
        it, so a statement that does not find one is repeated for a while.
        """
        deadline = time.monotonic() + XA_SECONDS
        with contextlib.closing(self.connect(database=database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                while True:
                    try:
                        cursor.execute(statement)
                        break
                    except pymysql.OperationalError as error:
                        if error.args[0] != ER.XAER_NOTA or time.monotonic() > deadline:
                            raise
                    time.sleep(0.01)
            return list(cursor.fetchall())

    def scalar(self, statement: str, database: str | None = None) -> Any:
        """The first column of the only row."""
        ((value, *_),) = self.execute(statement, database=database)
        return value

    def start(self) -> None:
        """As `LocalServer.start`; afterwards `version` is known."""
        super().start()
        if not self.version:
            self.version = str(self.scalar("SELECT VERSION()")).split("-")[0]

    def _common_options(self) -> dict[str, Option]:
        return {
            "bind-address": self.host,
            "port": self.port,
            "skip-name-resolve": True,
            "server-id": self.port,
            "log-bin": "binlog",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "binlog-row-metadata": "FULL",
            "sync-binlog": 1 if self.strict else 0,
            "innodb-flush-log-at-trx-commit": 1 if self.strict else 2,
            "innodb-buffer-pool-size": "64M",
            "character-set-server": "utf8mb4",
            "max-allowed-packet": "128M",
            "local-infile": True,
            "performance-schema": False,
            "max-connections": 200,
        }

    def _spelt(self, options: dict[str, Option]) -> list[str]:
        chosen = options | {key.replace("_", "-"): value for key, value in self.options.items()}
        return [
            f"--{key}={('ON' if value else 'OFF') if isinstance(value, bool) else value}"
            for key, value in chosen.items()
            if value is not None
        ]

    def _answers(self) -> bool:
        try:
            self.connect(connect_timeout=2).close()
        except pymysql.err.OperationalError as error:
            if error.args[0] in (2003, 2013, 2002, 2006):  # not listening yet, or closed while starting
                return False
            raise
        return True

    def _filled(self, folder: Path) -> Path:
        try:
            self._fill(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _users(self) -> list[str]:
        """The statements that create a template's users; @'%' because 127.0.0.1 is not resolved to localhost."""
        return [
            "CREATE USER 'root'@'%'",
            "GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION",
            f"CREATE USER '{CDC_USER}'@'%' IDENTIFIED BY '{CDC_PASSWORD}'",
            f"GRANT {', '.join(self.GRANTS)} ON *.* TO '{CDC_USER}'@'%'",
        ]

    def _template(self, version: str) -> Path:
        """The initialised data folder of this version; the first use makes it."""
        recipe = hashlib.sha256("\n".join([TEMPLATE_RECIPE, *self._users()]).encode()).hexdigest()[:8]
        target = cache_folder() / "templates" / f"{self.flavour}-{version}-{recipe}"
        with built_once(target) as building:
            if building is not None:
                maker = type(self)()
                maker.options = {"log_bin": None, "skip_log_bin": True, **self.SMALL}
                maker._makes_template = True
                with maker:
                    maker.execute(*self._users())
                    maker.stop()
                    assert maker.folder is not None
                    shutil.copytree(maker.folder / "data", building, dirs_exist_ok=True)
                    (building / "auto.cnf").unlink(missing_ok=True)  # each copy gets its own server UUID
        return target

    def _fill(self, folder: Path) -> None:
        """Make the folder `data` in an empty folder: a copy of the template, or initialised to become the template."""
        if self._makes_template:
            with open(folder / "server.log", "ab") as output:
                done = subprocess.run(
                    self._initialise(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=300,
                    check=False,
                    cwd="/",
                )
            if done.returncode != 0:
                raise ServerFailed(f"{self.name} could not be initialised:\n{tail(folder / 'server.log')}")
        else:
            shutil.copytree(self._template(self._program_version()), folder / "data")

    def _program_version(self) -> str:
        """The version that the program reports, for the template's name."""
        output = subprocess.run(
            [*self._program(), "--version"], capture_output=True, text=True, check=True, cwd="/"
        ).stdout
        return output.split("Ver ", 1)[1].split()[0].replace("/", "_")

    def _program(self) -> list[str]:
        raise NotImplementedError

    def _initialise(self, folder: Path) -> list[str]:
        raise NotImplementedError


class MariaDB(Database):
    """MariaDB of Debian's package.

    For a user with only SELECT, `information_schema.referential_constraints` is empty; SHOW CREATE TABLE shows the
    foreign keys. `@@server_uid` is a hash of the machine and the port: a new data folder on the same port keeps it, the
    same data on another port changes it. So it does not identify a server's history.
    """

    name = flavour = "mariadb"
    GRANTS = ("SELECT", "REPLICATION SLAVE", "BINLOG MONITOR")
    SMALL: ClassVar[dict[str, Option]] = {"innodb_log_file_size": "4M"}

    def _program(self) -> list[str]:
        return [program("mariadbd")]

    def _initialise(self, folder: Path) -> list[str]:
        return [
            program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            f"--innodb-log-file-size={self.SMALL['innodb_log_file_size']}",
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]

    def _users(self) -> list[str]:
        # The anonymous users of a new folder shadow 'cdc'@'%' on connections from localhost.
        return ["DELETE FROM mysql.global_priv WHERE user = ''", "FLUSH PRIVILEGES", *super()._users()]

    def _make_folder(self) -> Path:
        folder = super()._make_folder()
        return self._filled(folder)

    def _command(self) -> list[str]:
        assert self.folder is not None
        own: dict[str, Option] = {
            "datadir": str(self.folder / "data"),
            "socket": str(self.folder / "s"),
            "tmpdir": str(self.folder),
            "pid-file": str(self.folder / "pid"),
            "innodb-fast-shutdown": 1,
        }
        if os.geteuid() == 0:  # it refuses to run as root without this option
            own["user"] = "root"
        return [*self._program(), "--no-defaults", *self._spelt(self._common_options() | own)]


class MySQL(Database):
    """MySQL of Debian's unstable suite, by chroot: only root can run it.

    `gtid=False` turns GTIDs off, which are on by default in 9.7 and off in 8.x.
    """

    name = flavour = "mysql"
    GRANTS = ("SELECT", "REPLICATION SLAVE", "REPLICATION CLIENT", "XA_RECOVER_ADMIN")
    SMALL: ClassVar[dict[str, Option]] = {"innodb_redo_log_capacity": "8M"}

    def __init__(self, *, gtid: bool = True, strict: bool = False, **options: Option) -> None:
        super().__init__(strict=strict, **options)
        self.gtid = gtid

    def _program(self) -> list[str]:
        return [program("chroot"), str(mysql_system()), "/usr/sbin/mysqld"]

    def _inside(self, path: Path) -> str:
        return "/" + str(path.relative_to(mysql_system()))

    def _initialise(self, folder: Path) -> list[str]:
        return [
            *self._program(),
            "--no-defaults",
            "--initialize-insecure",
            "--user=root",
            f"--datadir={self._inside(folder / 'data')}",
            f"--tmpdir={self._inside(folder)}",  # TMPDIR, the tests' own folder, does not exist inside the chroot
            f"--innodb-redo-log-capacity={self.SMALL['innodb_redo_log_capacity']}",
        ]

    def _make_folder(self) -> Path:
        return self._filled(Path(tempfile.mkdtemp(prefix="cutline-", dir=mysql_system() / "srv")))

    def _command(self) -> list[str]:
        assert self.folder is not None
        own: dict[str, Option] = {
            "user": "root",
            "datadir": self._inside(self.folder / "data"),
            "socket": self._inside(self.folder / "s"),
            "tmpdir": self._inside(self.folder),
            "pid-file": self._inside(self.folder / "pid"),
            "secure-file-priv": "NULL",
            "mysqlx": False,
        }
        gtid = self.gtid and not self._makes_template
        own |= {"gtid-mode": gtid, "enforce-gtid-consistency": gtid}
        return [*self._program(), "--no-defaults", *self._spelt(self._common_options() | own)]
