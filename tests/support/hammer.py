"""Changes at random on real tables, by several sessions at once, until a test has seen enough."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Self

import pymysql
from pymysql.constants import ER

from tests.support.databases import Database


# --- connections that change rows -------------------------------------------------------------------------------------
class Hammer:
    """Connections that run a transaction over and over until `stop`, each in a thread.

    `transaction(cursor, luck, number)` runs the statements. After a deadlock or lock timeout the transaction is tried
    again; `survives` also reconnects after any other error of the server. `done` counts the committed transactions.
    """

    def __init__(
        self,
        server: Database,
        transaction: Callable[[Any, random.Random, int], None],
        *,
        threads: int = 4,
        pause_seconds: float = 0.0,
        survives: bool = False,
        seed: int = 1,
    ) -> None:
        self.done = 0
        self._server, self._transaction, self._pause, self._survives = server, transaction, pause_seconds, survives
        self._ends = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(seed * 1000 + number)), daemon=True)
            for number in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End after the current transactions; fail if a thread failed."""
        self._ends.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._failures, self._failures

    def _run(self, number: int, luck: random.Random) -> None:
        conn: Any = None
        while not self._ends.is_set():
            try:
                conn = conn or self._server.connect(
                    autocommit=False, init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
                )
                with conn.cursor() as cursor:
                    self._transaction(cursor, luck, number)
                conn.commit()
                self.done += 1
                self._ends.wait(self._pause)
            except pymysql.MySQLError as error:
                if error.args[0] in (ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK):
                    conn.rollback()
                elif self._survives:
                    conn = None
                    self._ends.wait(0.2)
                else:
                    self._failures.append(error)
                    return
            except BaseException as error:
                self._failures.append(error)
                return
