"""What counts as a commit of others on `main`, and the sentence about it; on metadata that the test writes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.spark_writer.sinks.iceberg.foreign import theirs, undone

SPARK = {"engine-name": "spark", "app-id": "local-7", "deleted-records": "3"}


def _field(name: str, kind: str = "string", *others: str) -> Any:
    """Iceberg's NestedField; `others` are `required` and a comment."""
    return SimpleNamespace(
        name=lambda: name,
        type=lambda: kind,
        isOptional=lambda: "required" not in others,
        fieldId=lambda: ord(name),
        writeDefault=lambda: None,
        initialDefault=lambda: None,
        doc=lambda: " ".join(others),
    )


class Metadata:
    """Iceberg's TableMetadata as far as the rule reads it; snapshots are (id, parent, operation, summary)."""

    def __init__(
        self,
        main: int | None,
        published: list[int | None] | None,
        *snapshots: tuple[int, int | None, str, dict[str, str]],
        columns: tuple[str, ...] = ("a",),
        choice: list[object] | None = None,
    ) -> None:
        self._main = main
        self._properties = {"cutline.published": json.dumps(published)} if published else {}
        if choice is not None:
            self._properties["cutline.choice"] = json.dumps(choice)
        self._snapshots = {each[0]: each for each in snapshots}
        self._schemas = {0: ("a",), 1: columns}
        self._schema = int(columns != ("a",))

    def property(self, name: str, default: str) -> str:
        return self._properties.get(name, default)

    def ref(self, name: str) -> Any:
        return None if self._main is None else SimpleNamespace(snapshotId=lambda: self._main)

    def currentSchemaId(self) -> int:
        return self._schema

    def schema(self) -> Any:
        return self._java_schema(self._schema)

    def schemasById(self) -> dict[int, Any]:
        return {number: self._java_schema(number) for number in self._schemas}

    def _java_schema(self, number: int) -> Any:
        fields = [_field(*text.split()) for text in self._schemas[number]]
        return SimpleNamespace(columns=lambda: fields)

    def snapshotLog(self) -> Any:
        moved = SimpleNamespace(timestampMillis=lambda: 1_700_000_060_000)
        return SimpleNamespace(size=lambda: 1, get=lambda at: moved)

    def snapshot(self, number: int) -> Any:
        if number not in self._snapshots:
            return None
        _, parent, operation, summary = self._snapshots[number]
        return SimpleNamespace(
            snapshotId=lambda: number,
            parentId=lambda: parent,
            operation=lambda: operation,
            summary=lambda: summary,
            timestampMillis=lambda: 1_700_000_000_000,
            schemaId=lambda: 0,
        )


OURS = (1, None, "append", {"cutline.w": "1"})
NEXT = (2, 1, "overwrite", {"cutline.w": "1"})


def test_nothing_is_found_where_main_names_what_was_shown_or_nothing_was_shown_yet() -> None:
    assert theirs(Metadata(2, [1, 9, 2], OURS, NEXT)) is None
    assert theirs(Metadata(None, None, OURS)) is None


def test_only_replace_by_others_is_a_rewrite_and_it_is_undone_by_what_was_not_made_on_top_of_it() -> None:
    rewrites = ((3, 2, "replace", {}), (4, 3, "replace", {}))
    on_top, beside = (5, 4, "overwrite", {"cutline.w": "1"}), (6, 2, "overwrite", {"cutline.w": "1"})
    metadata = Metadata(4, [1, 9, 2], OURS, NEXT, *rewrites, on_top, beside)
    found = theirs(metadata)
    assert found is not None
    assert found.rewrites
    assert undone(metadata, 5) is None
    assert undone(metadata, 6) == undone(metadata, None) == found
    for odd in ((4, 3, "delete", {}), (4, 3, "replace", {"cutline.w": "1"})):
        found = theirs(Metadata(4, [1, 9, 2], OURS, NEXT, rewrites[0], odd))
        assert found is not None
        assert not found.rewrites
    found = theirs(Metadata(3, [1, 9, 2], OURS, NEXT, rewrites[0], columns=("a", "b")))
    assert found is not None
    assert not found.rewrites


def test_a_choice_holds_for_the_snapshot_and_the_columns_that_it_names() -> None:
    commit, on_top = (3, 2, "delete", SPARK), (5, 3, "overwrite", {"cutline.w": "1"})
    for choice, kept in (("overwrite", (2, 5)), ("accept", (5,))):
        metadata = Metadata(3, [1, 9, 2], OURS, NEXT, commit, on_top, choice=[choice, 3, 0])
        assert tuple(target for target in (2, 5) if undone(metadata, target) is None) == kept
    back = Metadata(1, [1, 9, 2], OURS, NEXT, (5, 2, "overwrite", {}), (6, 1, "overwrite", {}), choice=["accept", 1, 0])
    assert undone(back, 5) is not None  # made by way of what the user has rolled back
    assert undone(back, 6) is None
    for about in ([4, 0], [3, 1]):
        metadata = Metadata(3, [1, 9, 2], OURS, NEXT, commit, on_top, choice=["accept", *about])
        assert undone(metadata, 5) is not None


@pytest.mark.parametrize(
    ("metadata", "text", "choices"),
    [
        (
            Metadata(4, [1, 9, 2], OURS, NEXT, (3, 2, "append", {}), (4, 3, "delete", SPARK)),
            "another user (engine-name spark, app-id local-7) committed to the lake table t at 2023-11-14 22:14:20 UTC"
            " (snapshot 4, operation delete, 3 records deleted, the last of 2)",
            ("accept", "overwrite"),
        ),
        (
            Metadata(1, [1, 9, 2], OURS, NEXT),
            "another user set the lake table t at 2023-11-14 22:14:20 UTC to snapshot 1 of 2023-11-14 22:13:20 UTC",
            ("accept", "overwrite"),
        ),
        (Metadata(None, [1, 9, 2], OURS, NEXT), "another user removed all rows of the lake table t", ("overwrite",)),
        (
            Metadata(2, [1, 9, 2], OURS, NEXT, columns=("b",)),
            "another user changed the columns of the lake table t (without a, with b)",
            ("overwrite",),
        ),
    ],
    ids=["commits", "a rollback", "emptied", "columns"],
)
def test_the_cause_says_who_when_what_and_the_choices(metadata: Metadata, text: str, choices: tuple[str, ...]) -> None:
    found = theirs(metadata)
    assert found is not None
    assert found.describe("t") == text
    assert found.choices == choices
    assert all(f"cutline lake {choice}" in found.remedy for choice in choices)


def test_a_comment_on_a_column_is_no_change_and_any_other_difference_is_named() -> None:
    def seen(*columns: str) -> str | None:
        found = theirs(Metadata(2, [1, 9, 2], OURS, NEXT, columns=columns))
        return None if found is None else found.describe("t")

    before = "another user changed the columns of the lake table t"
    assert seen("a string a comment of an owner") is None
    assert seen("a long") == f"{before} (a is long instead of string)"
    assert seen("a string required") == f"{before} (a may not be null)"
