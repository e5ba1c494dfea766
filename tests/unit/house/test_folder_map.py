"""docs/folders.md says what each folder and file is for, in the file's own words."""

from __future__ import annotations

from tools import folder_map


def test_the_page_is_as_the_files_are() -> None:
    assert folder_map.PAGE.read_text(encoding="utf-8") == folder_map.render(folder_map.files()), "run `make map`"


def test_each_file_says_what_it_is_for() -> None:
    silent = [str(path.relative_to(folder_map.ROOT)) for path in folder_map.files() if not folder_map.purpose(path)]
    assert silent == []


def test_a_purpose_is_the_first_sentence() -> None:
    assert folder_map.sentence("What it does: this\nand that (e.g. 1.5).  More of it.\n\nRest.") == (
        "What it does: this and that (e.g. 1.5)."
    )
    assert folder_map.sentence("In this order:\n\n1. first") == "In this order"
