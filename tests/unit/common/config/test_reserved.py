"""Names in the lake that are Cutline's own."""

from __future__ import annotations

from cutline.common.config.reserved import NAMESPACE, is_own, taken
from cutline.spark_writer.sinks.iceberg import publications


def test_the_tables_that_the_spark_writer_makes_for_itself_are_reserved_in_the_namespace_that_was_chosen() -> None:
    for namespace in (NAMESPACE, "meta"):
        assert is_own(f"{namespace}.{publications.NAME}", namespace)
        assert is_own(f"{namespace}.{publications.VIEW}", namespace)
        assert not is_own(f"{namespace}.orders", namespace)
    assert not is_own("_cutline.publications", "meta")


def test_a_table_of_a_source_is_refused_only_where_the_lake_could_not_tell_it_from_cutlines_own() -> None:
    tables = ["_cutline.publications", "_CUTLINE.Cuts", "_cutline.orders", "shop.publications", "meta.cuts"]
    (fault,) = taken(tables, NAMESPACE)
    assert "so _cutline.publications can't be copied" in str(fault)
    assert '"!_cutline.publications" in tables, or rename' in str(fault)
    assert len(list(taken(tables, NAMESPACE, folds_case=True))) == 2
    (fault,) = taken(tables, "meta")
    assert "the lake has its publications in meta, so meta.cuts can't" in str(fault)


def test_another_namespace_is_a_remedy_only_of_a_pipeline_that_has_not_begun() -> None:
    (fault,) = taken(["_cutline.cuts"], NAMESPACE, begun=False)
    assert "or rename it at the source" in str(fault)
    assert "set sink.own_namespace to another name" in str(fault)
