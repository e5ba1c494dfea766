"""Names in the lake that are Cutline's own."""

from __future__ import annotations

from cutline.common.config.reserved import is_own, taken
from cutline.spark_writer.iceberg import publications


def test_the_tables_that_the_spark_writer_makes_for_itself_are_reserved() -> None:
    assert is_own(publications.PUBLICATIONS)
    assert is_own(f"{publications.NAMESPACE}.{publications.VIEW}")
    assert not is_own("_cutline.orders")


def test_a_table_of_a_source_is_refused_only_where_the_lake_could_not_tell_it_from_cutlines_own() -> None:
    tables = ["_cutline.publications", "_CUTLINE.Cuts", "_cutline.orders", "shop.publications"]
    (fault,) = taken(tables)
    assert "so _cutline.publications can't be copied" in fault
    assert '"!_cutline.publications" in tables' in fault
    assert len(list(taken(tables, folds_case=True))) == 2
