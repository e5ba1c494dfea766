"""What several tests of a real binlog need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cutline.common.schema import OP
from tests.support.databases import Database
from tests.support.streams import transaction


def plain(rows: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [(row[OP], *(row[name] for name in names)) for row in rows]


def busy(server: Database, database: str) -> list[str]:
    """A history with what matters to a cut: many rows an event, several tables, key changes, foreign events between."""
    server.execute(
        f"CREATE TABLE {database}.a (id INT PRIMARY KEY, v VARCHAR(200))",
        f"CREATE TABLE {database}.b (x INT, y INT, v TEXT, PRIMARY KEY (x, y))",
        f"CREATE TABLE {database}.other (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    )
    return [f"{database}.a", f"{database}.b"]


def write_busily(server: Database, database: str) -> None:
    many = ", ".join(f"({i}, REPEAT('{i % 10}', 150))" for i in range(60))
    transaction(
        server,
        f"INSERT INTO {database}.other (v) VALUES (1), (2), (3)",
        f"INSERT INTO {database}.a VALUES {many}",
        f"INSERT INTO {database}.other (v) SELECT v FROM {database}.other",
        f"INSERT INTO {database}.b VALUES (1, 1, 'one'), (1, 2, 'two')",
        f"UPDATE {database}.a SET id = id + 1000 WHERE id BETWEEN 10 AND 14",
    )
    server.execute(f"INSERT INTO {database}.other (v) VALUES (9)")
    transaction(server, f"UPDATE {database}.b SET y = y + 5", f"DELETE FROM {database}.a WHERE id BETWEEN 20 AND 31")
    server.execute("FLUSH BINARY LOGS", f"UPDATE {database}.a SET v = 'end' WHERE id < 7")
