"""The bench's table: the shape of TPC-DS `customer` (18 columns, about 135 bytes a row) with seeded random values.

The load and the bench's own tables stay out of the binlog; `Changes` writes the changes to capture. Their keys are
distinct and in random order: each call takes the next keys of one permutation of all keys.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tests.support.databases import Database

COLUMNS = """
    c_customer_sk bigint NOT NULL PRIMARY KEY, c_customer_id char(16) NOT NULL, c_current_cdemo_sk int,
    c_current_hdemo_sk int, c_current_addr_sk int, c_first_shipto_date_sk int, c_first_sales_date_sk int,
    c_salutation char(10), c_first_name char(20), c_last_name char(30), c_preferred_cust_flag char(1), c_birth_day int,
    c_birth_month int, c_birth_year int, c_birth_country varchar(20), c_login char(13), c_email_address char(50),
    c_last_review_date_sk int
"""
_FIRST = pa.array("James Mary John Patricia Robert Jennifer Michael Linda William Elizabeth".split())
_LAST = pa.array("Smith Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez".split())
_COUNTRY = pa.array(
    ["UNITED STATES", "CANADA", "CHILE", "NORWAY", "KENYA", "JAPAN", "FRANCE", "GERMANY", "BRAZIL", "INDIA"]
)
_BLOCK_ROWS = 500_000
_OWN = "cutline_bench"
_BACKLOG = f"""
CREATE PROCEDURE {_OWN}.backlog(first INT, below INT, per INT)
BEGIN
    DECLARE number INT DEFAULT first;
    SET autocommit = 0;
    WHILE number < below DO
        UPDATE {{table}} SET c_current_addr_sk = c_current_addr_sk + 1, c_last_review_date_sk = 2453000 + number % 600
        WHERE c_customer_sk = (SELECT k FROM {_OWN}.keys_of WHERE n = number);
        SET number = number + 1;
        IF number % per = 0 THEN COMMIT; END IF;
    END WHILE;
    COMMIT;
END
"""

Transactions = Literal[1, 100, "bulk"]


def load(server: Database, table: str, rows: int, *, seed: int = 7) -> None:
    """Create `table` ("database.name"), or replace it, with `rows` rows whose keys are 1..rows."""
    database, _, _ = table.partition(".")
    random = np.random.default_rng(seed)
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in (
            "SET SESSION sql_log_bin = 0, unique_checks = 0",
            f"CREATE DATABASE IF NOT EXISTS {database}",
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} ({COLUMNS})",
        ):
            cursor.execute(statement)
        for file in _files(_blocks(rows, random)):
            # c_login is not in the file and stays NULL.
            cursor.execute(
                f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {table} FIELDS TERMINATED BY ','"
                f" ({', '.join(name for name in _names() if name != 'c_login')})"
            )
        cursor.execute(f"ANALYZE NO_WRITE_TO_BINLOG TABLE {table}")


def _names() -> list[str]:
    return [column.split()[0] for column in COLUMNS.replace("\n", " ").split(",")]


def _files(blocks: Iterator[pa.Table]) -> Iterator[str]:
    """Yield the path of a CSV file for each block; it exists until the next one is requested."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        file = Path(folder) / "rows.csv"
        options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
        for block in blocks:
            pa.csv.write_csv(block, file, options)
            yield str(file)


def _blocks(rows: int, random: np.random.Generator) -> Iterator[pa.Table]:
    for first in range(1, rows + 1, _BLOCK_ROWS):
        n = min(_BLOCK_ROWS, rows + 1 - first)
        keys = np.arange(first, first + n, dtype=np.int64)

        def below(limit: int, start: int = 0, n: int = n) -> pa.Array:
            return pa.array(random.integers(start, start + limit, n, dtype=np.int32))

        def one_of(values: pa.Array, n: int = n) -> pa.Array:
            return values.take(pa.array(random.integers(0, len(values), n, dtype=np.int32)))

        email = pc.binary_join_element_wise(
            pc.binary_join_element_wise(one_of(_FIRST), one_of(_LAST), "."),
            pc.binary_join_element_wise(pc.utf8_ltrim(_hex(below(10**9, 1)), "0"), "com", "."),
            "@",
        )
        columns = {
            "c_customer_sk": pa.array(keys),
            "c_customer_id": pc.binary_join_element_wise("AAAAAAAA", pc.utf8_upper(_hex(pa.array(keys))), ""),
            "c_current_cdemo_sk": below(1_920_800),
            "c_current_hdemo_sk": below(7200),
            "c_current_addr_sk": below(1_000_000),
            "c_first_shipto_date_sk": below(3000, 2_449_000),
            "c_first_sales_date_sk": below(3000, 2_449_000),
            "c_salutation": pa.repeat("Dr.", n),
            "c_first_name": one_of(_FIRST),
            "c_last_name": one_of(_LAST),
            "c_preferred_cust_flag": one_of(pa.array(["Y", "N"])),
            "c_birth_day": below(28, 1),
            "c_birth_month": below(12, 1),
            "c_birth_year": below(60, 1930),
            "c_birth_country": one_of(_COUNTRY),
            "c_email_address": email,
            "c_last_review_date_sk": below(600, 2_452_000),
        }
        yield pa.table(columns)


def _hex(values: pa.Array) -> pa.Array:
    """Each number's low 32 bits as eight hexadecimal digits."""
    digits = values.to_numpy().astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, 8, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


class Changes:
    """Writes changes of `table` (keys 1..rows); no key changes twice before every key has changed once."""

    def __init__(self, server: Database, table: str, rows: int, *, seed: int = 11) -> None:
        self._server, self._table, self._rows = server, table, rows
        self._taken = 0
        keys = np.random.default_rng(seed).permutation(rows) + 1
        listed = pa.table({"n": pa.array(np.arange(rows)), "k": pa.array(keys)})
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            for statement in (
                "SET SESSION sql_log_bin = 0, unique_checks = 0",
                f"DROP DATABASE IF EXISTS {_OWN}",
                f"CREATE DATABASE {_OWN}",
                f"CREATE TABLE {_OWN}.keys_of (n INT PRIMARY KEY, k BIGINT NOT NULL)",
                _BACKLOG.format(table=table),
            ):
                cursor.execute(statement)
            for file in _files(listed.slice(at, _BLOCK_ROWS) for at in range(0, rows, _BLOCK_ROWS)):
                cursor.execute(
                    f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {_OWN}.keys_of FIELDS TERMINATED BY ',' (n, k)"
                )

    def write(self, count: int, transactions_of: Transactions) -> None:
        """Update `count` rows: one statement for each, committed after every 1 or 100, or one for all ("bulk")."""
        if transactions_of == "bulk":
            self._server.execute(
                f"UPDATE {self._table} SET c_current_addr_sk = c_current_addr_sk + 1 WHERE c_customer_sk <= {count}"
            )
            return
        if self._taken + count > self._rows:
            self._taken = 0
        first, self._taken = self._taken, self._taken + count
        half = first + count // 2 // 100 * 100
        failed: list[BaseException] = []

        def part(first: int, below: int) -> None:
            try:
                self._server.execute(f"CALL {_OWN}.backlog({first}, {below}, {transactions_of})")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=part, args=ends) for ends in ((first, half), (half, first + count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]


class SteadyUpdates(threading.Thread):
    """Commits single-row updates of random keys at a constant rate, and records when each commit returned.

    `returned[i]` is the `time.time()` at which the commit of change i + 1 returned. One connection writes, so the
    server commits in this order; no other connection may write.
    """

    def __init__(self, server: Database, table: str, rows: int, *, per_second: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._connection = server.connect()
        self._statement = f"UPDATE {table} SET c_current_addr_sk = c_current_addr_sk + 1 WHERE c_customer_sk = "
        self._per_second = per_second
        self._keys = np.random.default_rng(13).integers(1, rows + 1, int(per_second * seconds)).tolist()
        self.returned: list[float] = []
        self.failed: BaseException | None = None

    def run(self) -> None:
        """Write the updates; when late, as fast as possible."""
        begun = time.time()
        try:
            with contextlib.closing(self._connection) as connection, connection.cursor() as cursor:
                for number, key in enumerate(self._keys):
                    if number % 10 == 0 and (early := begun + number / self._per_second - time.time()) > 0:
                        time.sleep(early)
                    cursor.execute(f"{self._statement}{key}")
                    self.returned.append(time.time())
        except BaseException as error:
            self.failed = error
