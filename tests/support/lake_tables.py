"""A lake's tables by PyIceberg, which here reads the catalogue that Spark made and never makes one.

PyIceberg creates the catalogue's tables where it finds none. A test that looks while Spark is just creating them would
race it, and either of the two would fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError


@contextmanager
def catalogue(warehouse: str | Path) -> Iterator[SqlCatalog]:
    """The catalogue in a warehouse's folder; its connections are closed at the end."""
    place = {"uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
    found = SqlCatalog("lake", **place, init_catalog_tables="false")
    try:
        yield found
    finally:
        found.engine.dispose()


def lake_table(warehouse: str | Path, table: str | tuple[str, ...]) -> Table:
    """Load a table.

    Raises:
        NoSuchTableError: it is not there, or not yet, as the whole catalogue may be.
    """
    if not (Path(warehouse) / "catalog.db").exists():
        raise NoSuchTableError(f"{warehouse} has no catalogue yet")
    with catalogue(warehouse) as found:
        try:
            return found.load_table(table)
        except OperationalError as error:
            raise NoSuchTableError(f"the catalogue of {warehouse} has no tables yet") from error
