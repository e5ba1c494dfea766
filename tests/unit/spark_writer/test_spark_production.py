"""What the Spark writer's process gives to its driver. No Spark runs."""

from __future__ import annotations

from pathlib import Path

from cutline.common.store.store import Store
from cutline.spark_writer.production import settings_of

DEFINITION = {"sink": {"spark": {"spark.driver.memory": "2g"}}}


def test_a_definition_that_is_corrupt_or_gone_prevents_no_start(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    for name in ("crm", "shop"):
        store.pipeline(name).define(DEFINITION)
    Path(store.pipeline("crm").location("pipeline.json")).write_text("{")
    store.pipeline("old").define({})
    assert settings_of(store) == DEFINITION["sink"]["spark"]
