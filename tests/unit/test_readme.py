"""The README says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from cutline.common.config.settings import settings_table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_lists_every_setting_as_the_code_has_it() -> None:
    assert README.split("<!-- settings -->\n", 1)[1].strip() == settings_table().strip()


def test_every_file_that_the_readme_names_is_there() -> None:
    table = README.split("## How it works, and where", 1)[1].split("\n\n", 2)[1]
    for row in table.splitlines()[2:]:
        first, *others = re.findall(r"`([a-z_/.0-9]+(?:\.py|/))`", row)
        assert (ROOT / first).exists(), first
        folder = (ROOT / first) if first.endswith("/") else (ROOT / first).parent
        for name in others:
            assert (folder / name).exists() or (ROOT / name).exists(), name


def test_every_make_target_that_the_readme_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
