"""A source that refuses us is asked seldom, and the status says so; once it takes us again nothing is to be done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.databases import CDC_PASSWORD, Database, MySQL
from tests.support.mesh import Mesh

Fresh = Callable[[Database], str]
REFUSALS = 10
"""An enumerator and a reader with a few connections each ask at once, and then once a minute."""


def refusals(source: Database) -> int:
    ((_, count),) = source.execute("SHOW GLOBAL STATUS LIKE 'Aborted_connects'")
    return int(count)


def test_a_password_that_was_rotated_is_tried_seldom_and_works_again_by_itself_when_it_is_right(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table is live. 2. The password is another at the source, and its connections end: the epoch goes on and
    waits, the status says for what, and the source is hardly asked. 3. The password is right again."""
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
            refused = refusals(source)
            pipeline.until(
                lambda: "was refused" in str(pipeline.status().enumerator.waiting_for), "the refusal, shown"
            )
            source.execute(f"ALTER USER {user} IDENTIFIED BY '{CDC_PASSWORD}'", f"INSERT INTO {table} VALUES (2)")
            pipeline.catches_up(table, seconds=120.0)
            assert len(pipeline.epochs()) == 1
            assert refusals(source) - refused <= REFUSALS
    finally:
        source.execute(f"DROP USER {user}")
