"""Places of a definition as lines of the pipeline file."""

from __future__ import annotations

from pathlib import Path

from cutline.common.config.places import in_file

TEXT = """\
name: shop
table_options:
  - tables: "*.people"
    select:
      - id
      - upper(name) AS name
    where: id > 1
derived:
  - {name: d.sums, sql: SELECT 1}
"""


def test_a_place_is_the_line_and_column_of_its_nearest_part_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(TEXT)
    found = {
        place: in_file(file, place).removeprefix(f"{file}:")
        for place in ("table_options[0].where", "table_options[0].select[1]", "table_options[0].mode", "derived[0].sql")
    }
    assert found == {
        "table_options[0].where": "7:5",
        "table_options[0].select[1]": "6:9",
        "table_options[0].mode": "3:5",
        "derived[0].sql": "9:20",
    }
    assert in_file(tmp_path / "gone.yaml", "derived[0].sql") == str(tmp_path / "gone.yaml")
