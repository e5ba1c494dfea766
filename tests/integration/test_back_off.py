"""A source that refuses us is asked less and less often, and says so; once it takes us again nothing is to be done."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from tests.integration.mesh import Mesh
from tests.servers import CDC_PASSWORD, Database, MySQL

Fresh = Callable[[Database], str]
FAILURES = 4


def test_a_password_that_was_rotated_is_tried_less_and_less_often_and_works_again_by_itself_when_it_is_right(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table is live. 2. The password is another at the source, and its connections end: epochs fail, each later
    than the one before; the status says why, and when the next try comes. 3. The password is right again."""
    schema = fresh_database(source)
    table, user = f"{schema}.t", f"u{schema[-6:]}"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    source.execute(f"CREATE USER {user} IDENTIFIED BY '{CDC_PASSWORD}'")
    source.execute(f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}")
    if isinstance(source, MySQL):
        source.execute(f"GRANT XA_RECOVER_ADMIN ON *.* TO {user}")
    try:
        with Mesh(tmp_path, readers=1, writers=1) as mesh:
            pipeline = mesh.pipeline("rotated", source, [f"{schema}.*"], user=user)
            pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
            source.execute(f"ALTER USER {user} IDENTIFIED BY 'another'")
            for (number,) in source.execute(f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{user}'"):
                source.execute(f"KILL {number}")
            backing_off = pipeline.until(
                lambda: (status := pipeline.status()["enumerator"]).get("failures", 0) >= FAILURES and status,
                "the back-off",
            )
            assert "was refused" in backing_off["waiting_for"]
            assert "the next try" in backing_off["waiting_for"]
            failed = [epoch.written_at for epoch in pipeline.epochs()][1:]  # the first of them came at once
            waits = [later - earlier for earlier, later in pairwise(failed)]
            assert all(wait >= 0.8 * 2**number for number, wait in enumerate(waits)), waits
            assert backing_off["retry_at"] > failed[-1]
            source.execute(f"ALTER USER {user} IDENTIFIED BY '{CDC_PASSWORD}'", f"INSERT INTO {table} VALUES (2)")
            pipeline.catches_up(table)
            assert pipeline.status()["enumerator"]["retry_at"] is None
    finally:
        source.execute(f"DROP USER {user}")
