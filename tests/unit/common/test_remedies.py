"""For each code of a cause: the tests that bring its state about, read the cause there, and carry its remedy out."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import httpx
import pytest

from cutline.common.causes import MEANINGS, QUARANTINES, Cause, Code, counted
from cutline.common.config import reserved
from cutline.common.config.globs import select_tables
from cutline.common.config.pipeline import FIXED, parse
from cutline.common.errors import ConfigError
from cutline.common.mesh.messages import SplitFailed, SplitsWanted, TableReport, TableState
from cutline.services.client.rest import models
from cutline.services.enumerator.events import TableDescribed
from cutline.services.run.conditions import answered, block
from tests.support.control_api import FakeRegistry, api, registry, store
from tests.support.enumerator_bench import EnumeratorBench, commanded, found, invariants_hold

__all__ = ["api", "invariants_hold", "registry", "store"]

ROOT = Path(__file__).resolve().parents[3]
LAKE, OPERATION, OUTAGES, PIPELINE, SOURCE = (
    f"tests/integration/{room}/" for room in ("lake", "operation", "outages", "pipeline", "source")
)
HERE = "tests/unit/common/test_remedies.py"
REMEDIES = f"{PIPELINE}test_remedies.py"
COMES_BACK = f"{REMEDIES}::test_each_quarantined_table_comes_back_once_its_cause_is_removed_and_it_is_retried"
DROPPED = (
    f"{PIPELINE}test_dropped.py::"
    "test_a_table_that_is_dropped_is_no_fault_in_any_phase_and_comes_back_when_it_is_made_again"
)
DAMAGED = (
    f"{SOURCE}test_damaged_binlog.py::"
    "test_a_pipeline_halts_or_quarantines_at_the_damage_and_goes_on_once_it_is_read_again"
)
EIGHT = "tests/browser/test_eight_faults.py"
LOST = f"{PIPELINE}test_read_again.py::test_a_pipeline_that_halted_for_a_lost_binlog_goes_on_by_its_command"

TRIED: Mapping[Code, tuple[str, ...]] = {
    Code.NO_KEY: (COMES_BACK,),
    Code.NOT_IN_BINLOG: (COMES_BACK,),
    Code.UNSUPPORTED: (COMES_BACK,),
    Code.VALUE: (COMES_BACK,),
    Code.SCHEMA_CHANGE: (f"{REMEDIES}::test_a_table_that_halt_has_stopped_is_read_again_with_its_new_columns",),
    Code.RIGHTS: (
        f"{PIPELINE}test_dropped.py::"
        "test_a_table_whose_select_is_revoked_is_quarantined_and_not_taken_for_one_that_is_dropped",
    ),
    Code.SOURCE_SLOW: (f"{HERE}::test_a_table_whose_source_was_slow_is_read_once_a_person_retries_it",),
    Code.UNREADABLE: (DAMAGED,),
    Code.NAME: (f"{HERE}::test_a_table_with_a_reserved_name_is_left_out_or_renamed",),
    Code.CHANGED: (f"{PIPELINE}test_pipeline.py::test_changes_of_tables_arrive_in_place_or_as_the_next_generation",),
    Code.NO_TABLE: (DROPPED,),
    Code.LOCKED: (
        f"{OUTAGES}test_locks.py::test_each_locked_table_waits_by_itself_and_says_so_while_the_others_are_live",
    ),
    Code.FOREIGN_COMMIT: (
        f"{LAKE}test_foreign_commits.py::test_a_delete_by_another_user_parks_its_table_alone_until_accept_keeps_it",
        f"{LAKE}test_foreign_commits.py::"
        "test_overwrite_replaces_it_by_the_rows_of_the_source_and_a_new_start_remembers_the_choice",
        f"{LAKE}test_foreign_commits.py::"
        "test_a_column_of_another_user_parks_the_table_until_it_is_overwritten_or_dropped_again",
        f"{OPERATION}test_pages.py::test_the_pages_take_a_new_user_from_an_empty_folder_to_a_lake",
    ),
    Code.DERIVED: (
        "tests/integration/end_to_end/test_derived.py::test_each_publication_shows_the_queries_over_its_own_tables",
    ),
    Code.RULE: (
        f"{LAKE}test_rules.py::test_a_row_on_which_a_rule_fails_quarantines_its_table_alone",
        "tests/integration/end_to_end/test_shaping.py::"
        "test_a_table_has_its_rule_from_the_first_row_on_and_a_changed_rule_holds_for_old_rows_too",
    ),
    Code.LAKE: (
        f"{LAKE}test_quarantine.py::test_a_retry_brings_a_table_back_without_another_start",
        f"{LAKE}test_quarantine.py::"
        "test_a_lake_table_that_a_user_drops_is_read_again_when_its_retry_is_asked_for",
        f"{LAKE}test_partitions.py::test_a_partition_whose_column_the_source_dropped_is_mended_by_another_partition",
        f"{EIGHT}::test_a_lake_table_that_others_dropped_is_quarantined_until_its_button_has_it_read_again",
    ),
    Code.ASKED: (
        f"{PIPELINE}test_read_again.py::"
        "test_a_paused_pipeline_reads_every_table_again_once_it_goes_on_and_a_running_one_at_once",
    ),
    Code.STARTED: (f"{OUTAGES}test_kills.py::test_the_mesh_recovers_from_kill_after_kill",),
    Code.MEMBERS: (f"{OUTAGES}test_kills.py::test_the_mesh_recovers_from_kill_after_kill",),
    Code.PURGED: (
        LOST, f"{EIGHT}::test_a_purged_binlog_halts_the_pipeline_until_the_shown_command_reads_all_again",
    ),
    Code.OTHER_SERVER: (
        f"{REMEDIES}::"
        "test_a_pipeline_that_halted_at_another_server_goes_on_at_the_right_one_or_reads_its_tables_again",
    ),
    Code.BINLOG: (DAMAGED,),
    Code.PLACE: (
        f"{SOURCE}test_start_stop.py::test_a_stop_that_no_table_could_be_shown_at_is_refused_before_the_start",
        f"{SOURCE}test_start_stop.py::"
        "test_a_start_that_is_purged_yet_to_come_or_between_no_transactions_is_refused",
    ),
    Code.REFUSED: (
        f"{SOURCE}test_connection.py::test_a_pipeline_goes_on_with_a_password_that_was_changed",
        f"{OUTAGES}test_back_off.py::"
        "test_a_password_that_was_rotated_is_tried_seldom_and_works_again_by_itself_when_it_is_right",
        f"{EIGHT}::test_a_changed_password_is_named_and_the_file_with_the_new_one_is_taken",
    ),
    Code.CONFIGURATION: (
        f"{OPERATION}test_bad_input.py::"
        "test_a_warehouse_with_tables_of_an_earlier_pipeline_and_each_remedy_works_where_it_is_named",
    ),
    Code.SYNTAX: (f"{HERE}::test_a_file_that_is_not_yaml_is_taken_once_it_is_corrected_where_the_cause_says",),
    Code.UNAVAILABLE: (
        f"{SOURCE}test_gentle.py::"
        "test_a_source_that_is_away_in_the_middle_of_a_snapshot_uses_up_no_attempts_of_its_chunks",
        f"{LAKE}test_catalogues.py::test_a_catalogue_that_goes_away_is_waited_for_and_said",
        f"{OUTAGES}test_hung_store.py::"
        "test_an_object_store_that_hangs_is_named_by_all_who_wait_and_all_go_on_in_their_epochs",
        f"{EIGHT}::test_a_source_that_is_away_is_named_and_a_start_is_enough",
        f"{EIGHT}::test_a_redis_that_is_away_is_named_and_a_start_is_enough",
    ),
    Code.DISK_FULL: (
        "tests/unit/common/store/test_full_disk.py::"
        "test_each_write_names_a_full_disk_and_what_helps_and_succeeds_once_there_is_room",
        f"{EIGHT}::test_a_full_store_is_named_and_room_is_enough",
    ),
    Code.LATE: (
        f"{OUTAGES}test_leaderless.py::"
        "test_members_whose_checkpoint_does_not_complete_wait_at_their_bound_and_go_on_once_it_does",
    ),
    Code.BUSY: (f"{SOURCE}test_gentle.py::test_readers_wait_while_the_source_is_busy_and_say_so",),
    Code.REDIS_FULL: (
        "tests/unit/common/mesh/test_channels.py::test_a_full_redis_is_asked_again_until_there_is_room",
        f"{LAKE}test_sharing_out.py::"
        "test_in_a_full_redis_leaders_keep_their_leases_and_take_others_once_it_has_room",
    ),
    Code.SERVER_ID: (f"{REMEDIES}::test_a_server_id_that_another_client_has_is_exchanged_for_one_that_is_free",),
    Code.PROTOCOL: (
        f"{PIPELINE}test_enumerator_driver.py::test_services_of_another_version_are_no_members",
    ),
}
"""As in `FOREIGN_COMMIT`, one test for each choice that a remedy gives, where they differ."""
REPORTED: Mapping[Code, str] = {
    Code.UNEXPECTED: "its remedy is a report to us",
    Code.OTHER: "its remedy is whatever its sentence says",
}
"""Codes whose remedy nobody can carry out in a test."""


def test_each_code_has_a_test_that_carries_its_remedy_out() -> None:
    assert set(Code) - TRIED.keys() - REPORTED.keys() == set()
    assert TRIED.keys() & REPORTED.keys() == set()


@pytest.mark.parametrize("code", TRIED)
def test_the_tests_of_a_code_are_there(code: Code) -> None:
    assert [name for name in TRIED[code] if name.partition("::")[2] not in names_in(name.partition("::")[0])] == []


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_remedy_tells_to_change_what_a_pipeline_keeps_for_life_without_saying_so() -> None:
    for code, meaning in MEANINGS.items():
        for name in FIXED:
            if f"`{name}" in meaning.remedy:
                assert "for life" in meaning.remedy, f"{code}: {name}"


async def test_cause_and_remedy_of_each_code_are_shown_by_the_api_and_whole_in_a_narrow_terminal(
    registry: FakeRegistry, api: httpx.AsyncClient
) -> None:
    """1. A table is quarantined for each code, and the pipeline has halted. 2. The API has the three parts of each
    cause. 3. Each condition has them too, and no line of it is longer than a terminal of 40 columns."""
    causes = {f"a.{code}": Cause(code, f"what {code} is about is not as it was", f"put {code} right") for code in Code}
    halt = causes[f"a.{Code.PURGED}"]
    tables = {name: {"phase": "quarantined", "generation": 1, "cause": cause} for name, cause in causes.items()}
    registry.parts["enumerator"] |= {"tables": tables, "halted": halt, "at": time.time()}
    rows = (await api.get("/v1/pipelines/shop/tables?limit=1000")).json()
    shown = {row["table"]: (row["code"], row["cause"], row["remedy"]) for row in rows}
    assert shown == {name: (cause.code, cause.sentence, cause.remedy) for name, cause in causes.items()}
    pipeline = models.Pipeline.model_validate((await api.get("/v1/pipelines/shop")).json())
    (halted,) = [each for each in pipeline.conditions if each.name == "CutlineHalted"]
    assert (halted.code, halted.cause, halted.remedy) == (halt.code, halt.sentence, halt.remedy)
    parked = {each.labels["cause"]: each for each in pipeline.conditions if each.name == "CutlineTableQuarantined"}
    assert parked.keys() == {counted(cause) for cause in causes.values()}
    for condition in answered((halted, *parked.values())):
        lines = [line.plain for line in block(condition, condition.since or 0.0, 40)]
        assert max(map(len, lines)) <= 40
        text = " ".join(" ".join(lines).split())
        assert condition.cause is not None
        assert condition.remedy is not None
        assert f"cause: {condition.cause} remedy: {condition.remedy}" in text
    for code in QUARANTINES:
        if code != Code.OTHER:
            assert causes[f"a.{code}"].sentence in (parked[code].cause or "")
            assert causes[f"a.{code}"].remedy in (parked[code].remedy or "")


# --- remedies that a machine alone can show ---------------------------------------------------------------------------


def test_a_table_whose_source_was_slow_is_read_once_a_person_retries_it() -> None:
    """1. Four SELECTs gave almost nothing, so the chunk is not tried for ever. 2. A retry reads the table as its next
    generation."""
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    slow = Cause(Code.SOURCE_SLOW, "A SELECT of d.t gave fewer than two rows in 160 s", "find out what delays it")
    (_, split) = bench.assigned[-1]
    about = {"split_id": split.split_id, "table_id": "d.t", "generation": 1, "attempt": split.attempt}
    bench.get(SplitFailed(**about, cause=slow))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.cause) == ("quarantined", slow)
    assert commanded(bench, "retry_table") is None
    bench.tell(TableDescribed(generation=2, table=found()))
    bench.split_in(None, generation=2).get(SplitsWanted(free=1))
    bench.report(bench.assigned[-1][1])
    bench.get(TableReport(table_id="d.t", generation=2, state=TableState.LIVE))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.cause) == ("live", None)


def test_a_table_with_a_reserved_name_is_left_out_or_renamed() -> None:
    """As the remedy spells it."""

    def faults(*patterns: str, named: str = "_cutline.publications") -> list[Cause]:
        tables = select_tables(patterns, [named, "_cutline.orders"])
        return list(reserved.taken(tables, reserved.NAMESPACE))

    (fault,) = faults("_cutline.*")
    exclusion = re.search(r'exclude it by "([^"]+)" in tables.* or rename it', fault.remedy)
    assert fault.code == Code.NAME
    assert exclusion is not None
    assert faults("_cutline.*", exclusion[1]) == []
    assert faults("_cutline.*", named="_cutline.our_publications") == []


@pytest.mark.parametrize(
    ("wrong", "place", "right"),
    [
        ("name: shop\nname: shop\n", "shop.yaml:2:1", "name: shop\n"),
        ("name: shop\nsource: {host: h, user: u\n", "shop.yaml:", "name: shop\n"),
    ],
)
def test_a_file_that_is_not_yaml_is_taken_once_it_is_corrected_where_the_cause_says(
    wrong: str, place: str, right: str
) -> None:
    rest = "source: {host: h, user: u, password_env: P}\ntables: [a.b]\nsink: {warehouse: /w}\n"
    with pytest.raises(ConfigError) as raised:
        parse(wrong + rest, where="shop.yaml")
    assert Code.SYNTAX in {fault.code for fault in raised.value.faults}
    assert place in str(raised.value)
    assert parse(right + rest, where="shop.yaml").name == "shop"
