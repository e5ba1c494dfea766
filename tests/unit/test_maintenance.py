"""Which files of a table a round of compaction takes."""

from __future__ import annotations

from cutline.spark_writer.iceberg.files import DataFile
from cutline.spark_writer.iceberg.maintenance import ROUND_BYTES, SMALL_BYTES, TIER, worth_compacting


def file(name: str, size: int, rows: int = 1000) -> DataFile:
    return DataFile(path=name, rows=rows, size=size)


def names(files: list[DataFile]) -> list[str]:
    return sorted(each.path for each in files)


def test_eight_small_files_of_one_tier_are_merged_and_seven_are_not() -> None:
    files = [file(f"f{at}", 5000) for at in range(TIER)]
    assert names(worth_compacting(files, lambda each: 0)) == names(files)
    assert worth_compacting(files[1:], lambda each: 0) == []
    assert worth_compacting(files, lambda each: 0, least=TIER + 1) == []


def test_large_files_are_left_alone_until_half_their_rows_are_dead() -> None:
    files = [file(f"f{at}", SMALL_BYTES) for at in range(20)]
    assert worth_compacting(files, lambda each: 500) == []
    assert names(worth_compacting(files, lambda each: 501 if each.path == "f3" else 0)) == ["f3"]


def test_a_round_is_bounded_but_takes_at_least_one_file() -> None:
    files = [file(f"f{at:02}", SMALL_BYTES - 1) for at in range(30)]
    assert sum(each.size for each in worth_compacting(files, lambda each: 0)) <= ROUND_BYTES
    huge = file("huge", 10 * ROUND_BYTES)
    assert worth_compacting([huge], lambda each: each.rows) == [huge]


def test_merging_again_and_again_leaves_few_files() -> None:
    files: list[DataFile] = []
    written = 0
    for number in range(1000):
        files.append(file(f"n{number}", 4000))
        while chosen := worth_compacting(files, lambda each: 0):
            files = [each for each in files if each not in chosen]
            files.append(file(f"m{number}-{len(files)}", sum(each.size for each in chosen)))
            written += files[-1].size
    assert len(files) < 5 * TIER
    assert written < 5 * 1000 * 4000
