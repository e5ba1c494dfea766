"""Which files of a table a round of compaction takes."""

from __future__ import annotations

import math
import random

import pytest

from cutline.spark_writer.sinks.iceberg.files import DataFile
from cutline.spark_writer.sinks.iceberg.maintenance import END_BYTES, HERE_BYTES, ROUND_BYTES, TIER, worth_compacting


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
    files = [file(f"f{at}", END_BYTES) for at in range(20)]
    assert worth_compacting(files, lambda each: 500) == []
    assert names(worth_compacting(files, lambda each: 501 if each.path == "f3" else 0)) == ["f3"]


def test_a_round_is_bounded_but_takes_at_least_one_file() -> None:
    files = [file(f"f{at:02}", END_BYTES - 1) for at in range(30)]
    assert END_BYTES < sum(each.size for each in worth_compacting(files, lambda each: 0)) <= ROUND_BYTES
    huge = file("huge", ROUND_BYTES)
    assert worth_compacting([huge], lambda each: each.rows) == [huge]


def test_a_small_round_leaves_to_large_ones_what_it_could_not_bring_to_the_next_tier() -> None:
    files = [file(f"f{at:02}", HERE_BYTES // 4) for at in range(30)]
    assert worth_compacting(files, lambda each: 0, here=True) == []
    files = [file(f"f{at:02}", HERE_BYTES // 4 - 1) for at in range(30)]
    assert len(worth_compacting(files, lambda each: 0, here=True)) == 4
    huge = file("huge", ROUND_BYTES)
    assert worth_compacting([huge], lambda each: each.rows, here=True) == []


@pytest.mark.parametrize("size", [4_000, 700_000, 2_000_000, 30_000_000])
def test_merging_again_and_again_leaves_few_files_at_a_bounded_cost(size: int) -> None:
    """1,000 applies, each of one file. A round of more than `HERE_BYTES` takes as long as 20 applies."""
    draw = random.Random(size)
    files: dict[str, DataFile] = {}
    added = rewritten = 0
    under_way: tuple[int, list[DataFile]] | None = None
    for number in range(1000):
        new = file(f"n{number}", draw.randint(size // 2, size))
        files[new.path], added = new, added + new.size
        if under_way is not None and under_way[0] == number:
            merged = file(f"l{number}", sum(each.size for each in under_way[1]))
            files = {path: each for path, each in files.items() if each not in under_way[1]} | {merged.path: merged}
            rewritten, under_way = rewritten + merged.size, None
        while True:
            free = [each for each in files.values() if under_way is None or each not in under_way[1]]
            chosen = worth_compacting(free, lambda each: 0)
            if sum(each.size for each in chosen) > HERE_BYTES:
                if under_way is None:
                    under_way = (number + 20, chosen)
                    continue
                chosen = worth_compacting(free, lambda each: 0, here=True)
            if not chosen:
                break
            merged = file(f"m{number}-{len(files)}", sum(each.size for each in chosen))
            files = {path: each for path, each in files.items() if each not in chosen} | {merged.path: merged}
            rewritten += merged.size
    tiers = math.ceil(math.log(END_BYTES / (size / 2), TIER))
    assert rewritten <= tiers * added
    ended = [each for each in files.values() if each.size >= END_BYTES]
    assert all(each.size <= ROUND_BYTES for each in ended)
    assert sum(each.size for each in ended) > added / 2 or added < 2 * ROUND_BYTES
    assert len(files) - len(ended) < TIER * tiers + 25 * (size > HERE_BYTES // TIER)
