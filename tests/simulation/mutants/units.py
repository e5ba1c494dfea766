"""Patches that a file of unit tests must notice."""

from __future__ import annotations

from tests.simulation.mutants import (
    BATCHES,
    CHECKPOINTING,
    CHECKPOINTS,
    ENUMERATOR,
    LEADER,
    READER_STREAM,
    READER_TABLES,
    REMOVAL,
    RETENTION,
    SPLITS,
    STORE,
    TABLES,
    unit,
)

CURSOR = "services/sources/mysql/binlog/cursor.py"
ROUTES = "services/sources/mysql/binlog/routes.py"
DML = "services/sources/mysql/binlog/dml.py"
BACKENDS = "common/store/backends.py"
LIVES = "common/store/lives.py"
HOST = "common/mesh/host.py"
HOLDS = "services/enumerator/holds.py"
STAGING = "services/writer/staging.py"
RECEIVER = "common/mesh/receiver.py"
FOREIGN = "spark_writer/sinks/iceberg/foreign.py"
KEY_INDEX = "spark_writer/sinks/iceberg/key_index.py"
LOCATING = "spark_writer/sinks/iceberg/locating.py"
FILE_METRICS = "common/file_metrics.py"
FOUND = "test_locating.py::test_an_index_finds_what_a_scan_and_a_dictionary_find"


UNITS = (
    unit(
        "each state of a table is a new phase",
        TABLES,
        "        since = known.since if known is not None and known.phase == table.phase else self.now\n",
        "        since = self.now\n",
        "test_enumerator_tables.py::"
        "test_a_table_enters_each_phase_at_the_time_of_the_fact_that_brings_it_there_and_stays_since_then",
    ),
    unit(
        "after a restore the changes of a table are counted from none",
        CHECKPOINTS,
        "        entries.entered = {name: entry for name, entry in entered.items() if name in tables}\n",
        "",
        "test_enumerator_checkpoints.py::"
        "test_the_changes_of_a_generation_add_up_over_checkpoints_and_restores",
    ),
    unit(
        "a leader takes a halt that another one left for a new one",
        LEADER,
        "            self.moments.failing = event.failing_since\n",
        "            pass\n",
        "test_leader_epochs.py::"
        "test_a_halt_lasts_since_the_first_of_the_epochs_that_failed_also_for_the_next_leader",
    ),
    unit(
        "a member takes an epoch that ended by order for one that failed",
        HOST,
        "            if isinstance(error, ChannelLost | LeaderLost) and await self._is_over(key, epoch):\n",
        "            if False:\n",
        "test_host.py::test_an_epoch_that_ended_by_order_is_left_without_a_warning_and_is_no_failure",
    ),
    unit(
        "a dump that only beats is not asked whether its binlog was reset",
        CURSOR,
        "        stays = at == place\n",
        "        stays = False\n",
        "test_binlog_reading.py::test_a_binlog_that_was_reset_is_found_though_a_heartbeat_ends_each_read",
    ),
    unit(
        "a dump that moves is asked whether its binlog was reset",
        CURSOR,
        "        stays = at == place\n",
        "        stays = True\n",
        "test_binlog_reading.py::test_a_binlog_that_was_reset_is_found_though_a_heartbeat_ends_each_read",
    ),
    unit(
        "the Spark writer carries out a command that was withdrawn from it",
        "spark_writer/driver.py",
        "commands.take(n, SPARK_TAKES)) != SPARK_TAKES:",
        "commands.take(n, SPARK_TAKES)) is None:",
        "test_spark_driver.py::test_a_request_whose_command_was_withdrawn_is_not_carried_out",
    ),
    unit(
        "a life begins although the one before has not ended",
        LIVES,
        "            if newest and not numbers[newest]:\n",
        "            if False:\n",
        "test_lives.py",
    ),
    unit(
        "a creation that was late does not look whether its record is the newest",
        LIVES,
        "if self._put(life) and max(self._numbers()[name]) == life.number:",
        "if self._put(life):",
        "test_lives.py::test_a_creation_whose_number_was_used_and_removed_is_no_life",
    ),
    unit(
        "a definition put into a life that has ended counts",
        STORE,
        "            if not lives.has_ended(life):\n                return made",
        "            return made",
        "test_lives.py::test_a_creation_that_comes_after_the_deletion_of_its_life_begins_another",
    ),
    unit(
        "all lives of a name have one folder",
        LIVES,
        'folder=f"{name}.{drawn}", at=time.time())',
        "folder=name, at=time.time())",
        "test_lives.py",
    ),
    unit(
        "the sweep removes the folder of the newest life",
        LIVES,
        "            if life is not None and (life.folder != folder or numbers[life.number]):",
        "            if life is not None:",
        "test_lives.py::test_a_sweep_removes_what_is_left_of_ended_lives_and_nothing_else",
    ),
    unit(
        "a member joins the epoch of a life that is not the current one",
        HOST,
        "life = await self.ports.pools.store.call(self.store.life, key)",
        "life = await self.ports.pools.store.call(lambda: self.store.pipeline(pipeline).life)",
        "test_host.py",
    ),
    unit(
        "a name counts as durable though its folder's fsync failed",
        BACKENDS,
        "if location in self._unsynced:",
        "if False:",
        "test_store_journal.py::test_a_name_whose_folder_was_not_made_durable_is_by_the_repeated_call",
    ),
    unit(
        "a journal that refuses every entry is asked without a pause",
        LEADER,
        "            return self._failed(cause, now, halts=False, lost=Loss.NOTHING)",
        "            return self._next_epoch(cause)",
        "test_leader_epochs.py::"
        "test_a_journal_that_refuses_every_entry_is_tried_with_pauses_that_grow_and_the_true_cause",
    ),
    unit(
        "a word of the stop that was in flight is not restored",
        ENUMERATOR,
        "                self.at_stop, effects = True, []",
        "                effects = []",
        "test_enumerator_checkpoints.py::test_a_recorded_word_of_the_stop_is_known_after_a_restore",
    ),
    unit(
        "a routine that a statement calls is taken for one that writes nothing",
        DML,
        "if end is None or any(i not in lists for i in _calls(tokens)):",
        "if end is None:",
        "test_dml.py::test_in_doubt_every_table_that_a_statement_names_may_be_written",
    ),
    unit(
        "a routine with its database before it is taken for a function of the server",
        DML,
        "before.upper not in _BEFORE_PARENTHESIS or tokens[i - 2 : i - 1] == [_DOT]",
        "before.upper not in _BEFORE_PARENTHESIS",
        "test_dml.py::test_in_doubt_every_table_that_a_statement_names_may_be_written",
    ),
    unit(
        "a target that is not found among the tables of a statement is left out",
        DML,
        "if names is None or not names <= {name for _, name in found.values()}:",
        "if names is None:",
        "test_dml.py::test_a_statement_stops_the_tables_of_each_database_that_it_writes",
    ),
    unit(
        "a column named like a word of SQL ends the tables of a statement",
        DML,
        'token.upper if i == 0 or tokens[i - 1] != _DOT else ""',
        "token.upper",
        "test_dml.py::test_a_statement_stops_the_tables_of_each_database_that_it_writes",
    ),
    unit(
        "a routine that a space makes one of its name is taken for a function",
        DML,
        "if apart or before",
        "if before",
        "test_dml.py::test_a_routine_without_a_database_is_one_of_the_sessions",
    ),
    unit(
        "a comment that only some servers execute is taken as executed by all",
        DML,
        'if oracle or "/*!" in statement or "/*M!" in statement or',
        "if oracle or",
        "test_dml.py::test_in_doubt_every_table_that_a_statement_names_may_be_written",
    ),
    unit(
        "only the first table of an UPDATE is a target",
        DML,
        'end = next((i for i in outside if words[i] == "SET"), None)',
        "end = _after_name(tokens, first)",
        "test_dml.py::test_a_statement_stops_the_tables_of_each_database_that_it_writes",
    ),
    unit(
        "a locked table's chunk uses up its attempts",
        ENUMERATOR,
        "if failed.remedy == Remedy.WAIT:",
        "if False:",
        "test_holds.py::test_a_locked_chunk_uses_up_no_attempt_and_one_chunk_alone_is_tried_until_the_lock_is_gone",
    ),
    unit(
        "the other chunks of a locked table are handed out",
        SPLITS,
        "        self.shelve(table.table_id)\n        self._tables.put(dataclasses.replace(table, cause=cause))",
        "        self._tables.put(dataclasses.replace(table, cause=cause))",
        "test_holds.py::test_a_locked_chunk_uses_up_no_attempt_and_one_chunk_alone_is_tried_until_the_lock_is_gone",
    ),
    unit(
        "questions about locked tables stay open, and use up the room for those about others",
        SPLITS,
        "            table.splitter.asked = False\n            self.hold(",
        "            self.hold(",
        "test_holds.py::test_a_question_that_meets_a_lock_is_put_back_and_others_are_asked_however_many_are_locked",
    ),
    unit(
        "the cause of a lock that is gone is still shown",
        SPLITS,
        "        if table.cause == cause:\n",
        "        if False:\n",
        "test_holds.py::test_a_held_table_is_asked_about_again_after_a_pause_and_its_cause_ends_with_the_lock",
    ),
    unit(
        "an index answers for files that the snapshot does not have",
        KEY_INDEX,
        "if path in run.owned and path in files:\n                found",
        "if path in run.owned:\n                found",
        "test_locating.py::test_an_index_is_silent_about_files_that_a_snapshot_lacks",
    ),
    unit(
        "a run with a damaged entry is used",
        KEY_INDEX,
        'if found != header["checksum"]:',
        "if False:",
        "test_locating.py::test_a_run_with_any_wrong_byte_is_made_again",
    ),
    unit(
        "a look-up finds the first entry of a key alone, which may be deleted",
        KEY_INDEX,
        "at = at + 1  # the next",
        "return np.concatenate(found), np.concatenate(hashes)  # the next",
        FOUND,
    ),
    unit(
        "runs are never merged",
        KEY_INDEX,
        "if len(runs) >= FAN_OUT]",
        "if len(runs) >= 1000]",
        "test_locating.py::test_the_runs_of_a_growing_table_are_merged",
    ),
    unit(
        "the greatest key of a row group is pruned",
        LOCATING,
        "self._numbers[low] <= group.most)",
        "self._numbers[low] < group.most)",
        "test_locating.py::test_row_groups_without_a_key_are_not_read",
    ),
    unit(
        "texts that differ in zero bytes at the end have the same hash",
        "spark_writer/sinks/iceberg/key_hash.py",
        "yield 1, None, lengths.astype(np.uint64)",
        "yield 1, None, 0 * lengths.astype(np.uint64)",
        "test_locating.py::test_equal_keys_have_equal_hashes_and_others_other_hashes",
    ),
    unit(
        "compaction writes rows before others that have the same first column of the key and come first",
        "spark_writer/sinks/iceberg/merging.py",
        "bisect.bisect_left(",
        "bisect.bisect_right(",
        "test_merging.py::test_rows_that_share_the_first_column_of_the_key_wait_for_each_other",
    ),
    unit(
        "a merged row loses the id that an earlier update or compaction gave it",
        "spark_writer/sinks/iceberg/lineage.py",
        "pc.coalesce(own_ids, pa.array(lineage.first_row_id + positions, pa.int64()))",
        "pa.array(lineage.first_row_id + positions, pa.int64())",
        "test_merging.py",
    ),
    unit(
        "the bucket of a negative decimal is taken of more bytes than it needs",
        "spark_writer/sinks/iceberg/partitioning.py",
        "(number + (number < 0)).bit_length()",
        "number.bit_length()",
        "test_partitioning.py::test_a_decimal_is_hashed_in_as_few_bytes_as_it_needs",
    ),
    unit(
        "rows that differ only in the second partition column share a file",
        "spark_writer/sinks/iceberg/partitioning.py",
        "codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()",
        "codes = codes * len(encoded.dictionary)",
        "test_partitioning.py::test_rows_are_written_by_partition_and_null_has_one_of_its_own",
    ),
    unit(
        "a file that can't be looked at is one that is not there",
        "common/store/backends.py",
        "os.lstat(location)\n            except FileNotFoundError:",
        "os.lstat(location)\n            except OSError:",
        "test_store_journal.py",
    ),
    unit(
        "a full record is removed while another one between it and the restorable ones builds on it",
        REMOVAL,
        "    while new:\n        new = {since",
        "    for _ in (1,):\n        new = {since",
        "test_store_records.py::test_a_burst_of_changes_is_not_repeated_by_later_entries",
    ),
    unit(
        "a burst of changes is repeated until the next full record",
        "common/store/deltas.py",
        "_BASES = 2 ",
        "_BASES = 1 ",
        "test_store_records.py::test_a_burst_of_changes_is_not_repeated_by_later_entries",
    ),
    unit(
        "row events taken of a torn transaction are skipped in the first transaction of a later file",
        CURSOR,
        "(scanner.resume and FilePosition(name, 0) > FilePosition(after.file, 0))",
        "(scanner.resume and scanner.file == after.file)",
        "test_binlog_places.py::test_a_dump_that_begins_after_the_file_of_a_transaction_taken_in_part_reports_it_torn",
    ),
    unit(
        "the next generation of a table that joins inside a transaction misses its first row events",
        ROUTES,
        "name in last and last[name].generation == route.generation",
        "name in last",
        "test_binlog_places.py::test_the_next_generation_of_a_table_that_joins_inside_a_transaction_gets_it_whole",
    ),
    unit(
        "an empty set of GTIDs is passed by nobody",
        "common/positions.py",
        "        if isinstance(theirs, GtidSet) and not isinstance(mine, MariaGtid):",
        "        if isinstance(theirs, GtidSet) and isinstance(mine, GtidSet):",
        "test_positions.py",
    ),
    unit(
        "changes that come twice are staged twice",
        STAGING,
        "        if self._seq_max is not None and low <= self._seq_max:\n",
        "        if False:\n",
        "test_staging.py",
    ),
    unit(
        "open files hold back what they like",
        STAGING,
        "        if self._held_bytes > self._limit:\n",
        "        if False:\n",
        "test_staging.py",
    ),
    unit(
        "a decoder that rests keeps its memory",
        ROUTES,
        "            decoder.release()\n",
        "            pass\n",
        "test_binlog_reading.py::test_decoders_are_made_for_the_tables_that_change_and_kept_within_bounds",
    ),
    unit(
        "a small file is what was held back last, whatever was spilled before",
        STAGING,
        "        if self._held and not self._spilled and not self.is_open and size < parquet.SMALL_BYTES:\n",
        "        if self._held and not self.is_open and size < parquet.SMALL_BYTES:\n",
        "test_staging.py::test_a_thousand_tables_in_one_checkpoint_need_few_descriptors",
    ),
    unit(
        "staged changes count from the start of their read",
        STAGING,
        "        seq = pc.add(batch.column(first + 1), pa.scalar(seq_base, pa.int64()))\n",
        "        seq = batch.column(first + 1)\n",
        "test_staging.py",
    ),
    unit(
        "a stream that is gone is no news to its receiver",
        RECEIVER,
        "                if exists != 1:\n",
        "                if False:\n",
        "test_channels.py",
    ),
    unit(
        "a rewrite by another user hides his commits that change rows",
        FOREIGN,
        'all(each.operation == "replace"',
        'any(each.operation == "replace"',
        "test_foreign.py",
    ),
    unit(
        "work that goes by way of what a user rolled back counts as made on top of his rollback",
        FOREIGN,
        "while at not in (None, found.main, found.shown.snapshot_id):",
        "while at not in (None, found.main):",
        "test_foreign.py",
    ),
    unit(
        "a person's choice holds for other columns than he saw",
        FOREIGN,
        "chosen=choice if about == [main, schema_id] else None,",
        "chosen=choice if about[:1] == [main] else None,",
        "test_foreign.py",
    ),
    unit(
        "a data file has the bounds of those row groups that have any",
        FILE_METRICS,
        "    if not filled or not all(each.has_min_max for each in filled):\n",
        "    filled = [each for each in filled if each.has_min_max]\n    if not filled:\n",
        "test_file_metrics.py",
    ),
    unit(
        "the upper bound of a long text is cut only",
        FILE_METRICS,
        "    raised = _raised([ord(character) for character in text[:BOUND_LENGTH]], _next_character)\n",
        "    raised = [ord(character) for character in text[:BOUND_LENGTH]]\n",
        "test_file_metrics.py",
    ),
    unit(
        "a table that left the stream is shown while its way back is in flight",
        READER_TABLES,
        "changed.append(StreamedTable(table_id=name, generation=0",
        "str(StreamedTable(table_id=name, generation=0",
        "test_reader_markers.py::test_a_table_that_left_the_stream_is_told_once_and_one_that_came_back_as_it_is_now",
    ),
    unit(
        "catch-up passes main when it only ends its transaction",
        READER_STREAM,
        "until=bound, at_boundary=True",
        "until=None, at_boundary=True",
        "test_reader_markers.py::"
        "test_both_cursors_end_their_transaction_when_the_stream_is_stopped_so_that_a_marker_is_taken",
    ),
    unit(
        "after a restore a publication is made where the store takes none any more",
        BATCHES,
        "if not entry.inside and entry.slot >= publish_from:",
        "if not entry.inside:",
        "test_chain.py::"
        "test_after_a_restore_to_before_what_retention_noted_the_first_cuts_are_applied_and_not_published",
    ),
    unit(
        "a savepoint is cancelled while its slow entry may still come",
        CHECKPOINTING,
        "        if self._ordered is not None and tail >= self._ordered.slot:\n            self._ordered = None\n",
        "        self._ordered = None\n",
        "test_agenda_cancelling.py::"
        "test_what_a_checkpoint_may_have_is_not_cancelled_while_its_slow_entry_may_still_take_its_slot",
    ),
    unit(
        "a pipeline that has ended takes checkpoints for services that come and go",
        LEADER,
        "        if self._rescale and checkpoints.ended is not None:\n",
        "        if False:\n",
        "test_leader_checkpoints.py::"
        "test_after_the_stop_a_new_service_changes_nothing_and_one_that_leaves_is_let_go_without_a_checkpoint",
    ),
    unit(
        "a savepoint that a restore left behind takes another one's place",
        RETENTION,
        "room -= record.kept and record.n in chain and",
        "room -= record.kept and",
        "test_retention.py::test_a_savepoint_within_the_grace_that_is_not_kept_takes_no_other_one_s_place",
    ),
    unit(
        "a table that changes in each generation is read again without a pause",
        HOLDS,
        "        if pause:\n            self._holds[name]",
        "        if False:\n            self._holds[name]",
        "test_holds.py::"
        "test_a_table_that_changes_in_each_generation_is_read_again_at_once_and_then_ever_more_rarely",
    ),
    unit(
        "a table is read though it can't have its mask",
        "services/enumerator/finding.py",
        "    if item.schema is None or item.fault is not None:\n",
        "    if item.schema is None:\n",
        "test_enumerator_tables.py::"
        "test_a_table_that_can_t_have_its_rule_comes_back_when_it_has_another_also_after_a_restore",
    ),
    unit(
        "a quarantine for a rule lasts when the rule was changed",
        "services/enumerator/table_commands.py",
        "    if table.phase == QUARANTINED and table.cause is not None and table.cause.code is Code.RULE:\n",
        "    if False:\n",
        "test_enumerator_tables.py::"
        "test_a_table_that_can_t_have_its_rule_comes_back_when_it_has_another_also_after_a_restore",
    ),
    unit(
        "a column that only the condition needs is not read",
        "common/shape.py",
        "        texts += [] if self.where is None else [self.where.lower()]\n",
        "",
        "test_shape.py::test_a_column_is_left_out_only_if_no_part_of_the_rule_can_mean_it",
    ),
    unit(
        "rows of before a masked column had its name are delivered in clear",
        "common/masking.py",
        "        if not schema.has(name):\n",
        "        if False:\n",
        "test_masking.py::test_rows_of_before_a_column_had_its_name_are_not_delivered_in_clear",
    ),
    unit(
        "a generation takes over what the mode keeps each time that it is shown",
        "spark_writer/apply.py",
        "            if origin is not None and origin.generation != table.generation and table_id in progress.work:\n",
        "            if origin is not None and table_id in progress.work:\n",
        "test_spark_driver.py::test_a_generation_takes_over_what_its_mode_keeps_in_the_publication_that_shows_it_first",
    ),
    unit(
        "the schema of what a table still shows is swept",
        REMOVAL,
        "{name for body in entries for name in _schemas(body)} | self._of_mains()",
        "{name for body in entries for name in _schemas(body)}",
        "test_store_records.py"
        "::test_the_schema_of_what_a_table_still_shows_stays_when_no_entry_names_it_any_more",
    ),
    unit(
        "a generation takes over rows in which a column is not masked as it is now",
        "spark_writer/transform/carrying.py",
        "    if (known.mask, known.mask_key) != (shape.mask, shape.mask_key):\n",
        "    if False:\n",
        "test_carrying.py::test_a_generation_begins_anew_where_the_rows_of_before_do_not_fit",
    ),
    unit(
        "a key that is too large for its earlier type is looked for by what is left of it",
        "spark_writer/transform/carrying.py",
        "            held &= pc.equal(narrow.cast(values.type), values).to_numpy()\n",
        "",
        "test_carrying.py"
        "::test_a_version_goes_on_where_its_row_is_as_it_was_and_begins_where_the_earlier_content_ended",
    ),
    unit(
        "a derived table stays as it is though what it reads has changed",
        "spark_writer/derived.py",
        "            known.reads[each] == content or self._same_rows(each, known.reads[each], content)\n",
        "            True\n",
        "test_derived.py::test_tables_are_computed_in_order_of_dependence_and_only_if_what_they_read_has_changed",
    ),
    unit(
        "a derived table by keys goes on from the content of another query",
        "spark_writer/derived.py",
        "            if known is not None and known.query == table.query:\n",
        "            if known is not None:\n",
        "test_derived.py::test_with_keys_a_table_is_computed_of_what_changed_since_its_content_and_else_of_nothing_known",
    ),
)
