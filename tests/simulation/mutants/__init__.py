"""Patches that break one rule of the algorithms each: (file, old text, new text). A sweep must fail for each, or a unit
test where few schedules meet the rule: else the mutant survives once the seeds draw something else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken rule: what is replaced where (each old text stands once in its file), which seeds may be tried."""

    rule: str
    edits: tuple[tuple[str, str, str], ...]
    seeds: int = 1500
    feature: str = ""  # only the seeds whose worlds have it: a `start` without a snapshot, or a `stop`
    first: int = 1  # later for what few worlds meet, of which one is known
    world: str = "mesh"  # that has this code
    tests: str = ""  # files in tests/unit, as a pattern, or a test of one, to fail in the place of the sweep


CHANDY_LAMPORT = "common/mesh/chandy_lamport.py"
POSITIONS = "common/positions.py"
LEADER = "services/enumerator/leader.py"
CHECKPOINTING = "services/enumerator/checkpointing.py"
ENUMERATOR = "services/enumerator/machine.py"
SPLITS = "services/enumerator/splits.py"
TABLE_COMMANDS = "services/enumerator/table_commands.py"
TABLES = "services/enumerator/tables.py"
CHECKPOINTS = "services/enumerator/checkpoints.py"
SPLITTER = "services/enumerator/splitter.py"
READER = "services/reader/machine.py"
READER_STREAM = "services/reader/stream.py"
UNSAVED = "services/reader/unsaved.py"
READER_TABLES = "services/reader/tables.py"
WATERMARK = "services/sources/mysql/watermark.py"
WRITER = "services/writer/machine.py"
BATCHES = "common/journal/batches.py"
CHAIN = "common/store/chain.py"
PUBLISHING = "common/journal/publishing.py"
STORE = "common/store/store.py"
REMOVAL = "common/store/removal.py"
RETENTION = "common/journal/retention.py"
READS = "tests/simulation/source/reads.py"
PLACES = "tests/simulation/source/places.py"
CURSOR = "tests/simulation/source/cursor.py"
LAKE = "tests/simulation/mesh/lake.py"
READING = "tests/simulation/mesh/reading.py"


def mutant(rule: str, file: str, old: str, new: str, seeds: int = 1500, feature: str = "", first: int = 1) -> Mutant:
    return Mutant(rule, ((file, old, new),), seeds, feature, first)


def unit(rule: str, file: str, old: str, new: str, tests: str) -> Mutant:
    return Mutant(rule, ((file, old, new),), tests=tests)


MUTANTS = (
    mutant(
        "a marker is sent after messages of a later step",
        CHANDY_LAMPORT,
        "        return effects\n\n    def _take",
        "        late = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Marker)]\n"
        '        effects = [e for e in effects if e not in late] + getattr(self, "_late", [])\n'
        "        self._late = late\n        return effects\n\n    def _take",
    ),
    mutant(
        "a marker does not record what is in flight on its channel",
        CHANDY_LAMPORT,
        "            self._open[event.channel].append(event.message)",
        "            pass",
    ),
    mutant(
        "what comes after a channel's marker belongs to the checkpoint, until the last marker has come",
        CHANDY_LAMPORT,
        "after=self._after[event.channel])",
        "after=min(self._after.values()))",
    ),
    mutant(
        "who is refused a slot of the journal goes on",
        LEADER,
        "        if event.nonce == self._wanted:  # it is written",
        "        if True:  # it is written",
    ),
    mutant(
        "a slow write of a checkpoint is taken for the epoch proposed after it",
        LEADER,
        "return self._written(event.slot, now) if event.nonce == self._wanted else []",
        "return self._written(event.slot, now)",
        1500,
    ),
    mutant(
        "a checkpoint in flight outlives its epoch",
        CHECKPOINTING,
        "self.ended, self._last_asked, self.in_flight, self._inside = None, False, None, None",
        "self.ended, self._last_asked, self._inside = None, False, None",
    ),
    mutant(
        "a savepoint that was asked for is forgotten with its epoch",
        CHECKPOINTING,
        "            self.requests.insert(0, self.in_flight[1])",
        "            pass",
        1500,
    ),
    mutant(
        "the rest of a chunk that was cut is not read",
        ENUMERATOR,
        "            self.splits.queue(table.splitter.rest(split, report.cut_at), first=True)\n",
        "",
    ),
    mutant(
        "the channels' states are not restored",
        ENUMERATOR,
        "            machine._at_begin += machine._take_recorded(channel, [decode(header) for header in headers])",
        "            pass",
    ),
    mutant(
        "the orders that follow from a recorded report are not given in the new epoch",
        ENUMERATOR,
        "        return [effect for effect in effects if isinstance(effect, Send)]",
        "        return []",
        first=70,
    ),
    mutant(
        "splits that were out are not queued again by a restore",
        ENUMERATOR,
        "            machine.splits.queue(dataclasses.replace(split, attempt=split.attempt + 1), first=True)",
        "            pass",
    ),
    mutant(
        "reports accepted after a cut are forgotten when its entry is written",
        ENUMERATOR,
        "        splits.accepted = {key: n for key, n in splits.accepted.items() if key not in at_cut.splits.accepted}",
        "        splits.accepted = {}",
    ),
    mutant(
        "a table goes to the stream before its last chunk is reported",
        ENUMERATOR,
        "and done == table.splitter.made:",
        "and done >= table.splitter.made - 1:",
    ),
    mutant(
        "the watermarks of a table's chunks are not folded: its low is the last chunk's",
        ENUMERATOR,
        "            low = report.low if table.low is None else table.low.fold(report.low)",
        "            low = report.low",
    ),
    mutant(
        "the watermarks of a table's chunks are not folded: its high is the first chunk's",
        ENUMERATOR,
        "            high = report.high if table.high is None else table.high.fold(report.high)",
        "            high = report.high if table.high is None else table.high",
    ),
    mutant(
        "chunks of other columns than the table's are accepted",
        ENUMERATOR,
        "if table.schema is None or report.schema.hash != table.schema.hash:",
        "if table.schema is None:",
        first=60,
    ),
    mutant("low watermarks fold as the union", POSITIONS, "str(left & right)", "str(left | right)"),
    mutant(
        "high watermarks fold as the earlier",
        POSITIONS,
        "return self if self.file_position >= other.file_position else other",
        "return self if self.file_position <= other.file_position else other",
    ),
    mutant(
        "binlog files are ordered as text",
        POSITIONS,
        "        return (number, self.offset) < (other_number, other.offset)",
        "        return (self.file, self.offset) < (other.file, other.offset)",
    ),
    unit(
        "the first chunk begins at the smallest key that there was",
        SPLITTER,
        "None if self.made == 1 else self.next_start",
        "self.next_start",
        "test_splitter.py",
    ),
    unit(
        "a walked chunk begins where the one before it began",
        SPLITTER,
        '("walk", end)',
        '("walk", self.next_start)',
        "test_splitter.py::test_sparse_keys_walk_the_index",
    ),
    Mutant(
        "a chunk's end and its report go out in two steps",
        (
            (
                READER,
                "            ends = [Send(receiver=writer, message=end), Send(receiver=ENUMERATOR, message=report)]",
                "            ends = [Send(receiver=writer, message=end)]\n"
                '            self._apart = [*getattr(self, "_apart", []), Send(receiver=ENUMERATOR, message=report)]',
            ),
            (
                READER,
                "            case Ticked():  # a marker may wait since the last fact\n"
                "                return self.stream.ask() if",
                '            case Ticked():\n                apart, self._apart = getattr(self, "_apart", []), []\n'
                "                return apart if",
            ),
        ),
    ),
    mutant(
        "a reader reads on at its bound of rows without a checkpoint",
        UNSAVED,
        "        return self.most_bytes is not None and self.bytes >= self.most_bytes",
        "        return False",
        seeds=100,
    ),
    mutant(
        "a marker is taken to say that its own checkpoint is complete",
        UNSAVED,
        "        self._before, self._since, self._asked = self._since, 0, False",
        "        self._before, self._since, self._asked = 0, 0, False",
        seeds=300,
    ),
    unit(
        "at its bound a reader asks for no checkpoint, and waits an interval for the next marker",
        UNSAVED,
        "0, False\n        return self._asks()",
        "0, False\n        return False",
        "test_reader_*.py",
    ),
    unit(
        "at its bound a reader leaves the transaction unread for whose end a marker waits",
        READER_STREAM,
        "waits = self._marker_waits or not self._outlet.unsaved.full",
        "waits = self.stopped",
        "test_reader_*.py",
    ),
    mutant(
        "a split that is being read is given back",
        READER,
        "                if not any(s.split_id == split_id and s.attempt == attempt for s in self.queue):\n"
        "                    return []",
        "                if False:\n                    return []",
    ),
    mutant(
        "a table joins main though main has passed its low",
        READER_STREAM,
        "            if passed:\n",
        "            if False:\n",
    ),
    mutant(
        "a table is let in while main is being read",
        READER_STREAM,
        "        if main.asked or main.position.inside:\n            return []\n        effects",
        "        if main.position.inside:\n            return []\n        effects",
    ),
    unit(
        "main is held for a catch-up that goes on at another server",
        READER_STREAM,
        "effects += self._give_up_catch_up() + self._meet()",
        "effects += self._meet()",
        "test_reader_*.py",
    ),
    mutant(
        "a round starts from the first table's low, not the lowest",
        READER_STREAM,
        "                low = low.fold(table.low)",
        "                pass",
        2000,
        first=450,
    ),
    mutant(
        "cursors meet at unequal places",
        READER_STREAM,
        "            met = catch_up.position.same_place(main.position)",
        "            met = True",
    ),
    mutant(
        "a cut inside a transaction is not marked so",
        READER_STREAM,
        "            inside=any(c.position.inside for c in self.cursors.values()),",
        "            inside=False,",
    ),
    mutant(
        "each cursor counts its own changes",
        READER_STREAM,
        "        self.seq += read.rows",
        "        self.seq += read.rows if event.cursor == MAIN else 0",
    ),
    mutant(
        "a table is live before main has reached its highest high",
        READER_STREAM,
        "            if not table.high.reached_by(position):\n                return []",
        "            table.high.reached_by(position)",
    ),
    mutant(
        "the count of changes begins anew with an epoch",
        READER_STREAM,
        'self.seq, self.hold_main, self.stopped = head["seq"],',
        "self.seq, self.hold_main, self.stopped = 0,",
    ),
    mutant(
        "a writer stages what came after the marker with the checkpoint",
        WRITER,
        "after) for table_id, generation, after in self.changes if after < checkpoint]",
        "after) for table_id, generation, after in self.changes]",
    ),
    mutant(
        "a chunk that ended after the marker belongs to the checkpoint",
        WRITER,
        "        chunks = tuple(file for after, file in self.ended if after < checkpoint)",
        "        chunks = tuple(file for _, file in self.ended)",
    ),
    mutant(
        "the Spark writer follows slots, not bases",
        CHAIN,
        "        last = begin.base\n",
        "        last = begin.slot - 1 or None\n",
    ),
    mutant(
        "a checkpoint inside a transaction is published",
        BATCHES,
        "        if not entry.inside and entry.slot",
        "        if entry.slot",
    ),
    mutant(
        "a table is shown before it is live",
        PUBLISHING,
        "if at_cut.show and held is None:",
        "if done is not None:",
    ),
    mutant(
        "the chunk of a table without a key is read whatever was inserted meanwhile",
        READING,
        "            rests = not (KINDS[split.table_id].keyless and",
        "            rests = not (False and",
    ),
    Mutant(
        "main moves by the journal as it was when the Spark writer started",
        (
            (
                LAKE,
                "        newest = self.chain(numbers)",
                "        self.seen = self.chain(numbers)\n        newest = self.seen",
            ),
            (LAKE, "chain=self.back_to)", "chain=lambda back: self.seen)"),
        ),
    ),
    mutant(
        "main moves to an older publication",
        PUBLISHING,
        "((own and shown_n <= n) or shown_n not in chain(min(shown_n, n)))",
        "True",
    ),
    mutant(
        "the low of MySQL is all that is flushed",
        READS,
        "return Low(server=source.server, file=source.place[0], offset=4, gtids=str(source.engine.executed))",
        "return Low(server=source.server, file=source.place[0], offset=4,"
        ' gtids=",".join(t.gtid for t in source.log if t.gtid))',
    ),
    unit(
        "a commit that the server has only delayed is taken for lost",
        WATERMARK,
        "return now - self._missing_since < COMMIT_SECONDS",
        "return False",
        "test_watermark.py::test_what_a_server_has_not_committed_is_awaited_for_half_a_minute_and_then_lost",
    ),
    mutant(
        "a checkpoint forgives a loss that the next epoch will meet again",
        LEADER,
        "if now - self.checkpoints.led_since > MENDED_SECONDS:",
        "if True:",
        seeds=60,
        first=9430,
    ),
    mutant("a flushed position is a low at once", READS, "AGE_SECONDS = 4.0", "AGE_SECONDS = 0.0", first=1000),
    mutant(
        "the stream is read past the stop",
        READER_STREAM,
        "            stop = self._asked_stop = self._stop()",
        "            self._asked_stop = self._stop()",
        feature="stop",
    ),
    mutant(
        "the stream says that it is at the stop while main is not",
        READER_STREAM,
        "main.asked or not self.at_stop:",
        "main.asked:",
        feature="stop",
    ),
    mutant(
        "a table whose snapshot ended after the stop is waited for there",
        READER_STREAM,
        "if passed or (table.cursor == MAIN and not table.live):",
        "if passed:",
        feature="stop",
    ),
    mutant(
        "a stream that began after the stop shows its tables",
        READER_STREAM,
        "            return self.begin is not None and beyond(self.begin, place)",
        "            return False",
        feature="stop",
    ),
    mutant(
        "a reader forgets with its epoch that it is at the stop",
        READER_STREAM,
        'self.at_stop, self.ended = head["atStop"], head["ended"]',
        'self.at_stop, self.ended = False, head["ended"]',
        feature="stop",
    ),
    mutant(
        "an enumerator forgets with its epoch that the stream has stopped",
        ENUMERATOR,
        'machine.at_stop = head["atStop"]',
        "machine.at_stop = False",
        feature="stop",
    ),
    mutant(
        "a pipeline ends at its stop with tables on their way",
        TABLES,
        "        return (at_stop or LIVE not in phases) and phases <= {LIVE, *INACTIVE}",
        "        return at_stop or LIVE not in phases",
        feature="stop",
    ),
    unit(
        "a table that comes back is read when the last checkpoint is on its way",
        ENUMERATOR,
        "table.splitter is not None or self.ended:",
        "table.splitter is not None:",
        "test_enumerator_checkpoints.py::test_a_table_that_comes_back_when_all_has_ended_is_not_read_any_more",
    ),
    Mutant(
        "the stream says that it is at the stop when it has no table yet",
        (
            (
                READER_STREAM,
                "main is None or main.asked or not self.at_stop:",
                "(main is not None and (main.asked or not self.at_stop)):",
            ),
        ),
        tests="test_reader_*.py",  # hardly a world meets it
    ),
    unit(
        "a savepoint asked for before the stop is taken for the last checkpoint",
        CHECKPOINTING,
        "        if self.in_flight[1] == THE_STOP:\n",
        "        if self._last_asked:\n",
        "test_leader_checkpoints.py::"
        "test_a_savepoint_that_was_asked_for_before_the_stop_is_not_the_last_checkpoint",
    ),
    mutant(
        "checkpoints go on after the last one",
        CHECKPOINTING,
        "        due = not self.ending and not ended and now",
        "        due = not self.ending and now",
        feature="stop",
    ),
    unit(
        "what a first row event told of the columns is forgotten",
        READER_STREAM,
        "dataclasses.replace(table, looked_at=None, schema=change.new)",
        "dataclasses.replace(table, schema=change.new)",
        "test_reader_cursors.py::test_what_the_first_row_event_tells_of_a_table_stays_over_a_restore",
    ),
    mutant(
        "without a snapshot what came before the start is delivered",
        CURSOR,
        "        return self._covers(route.low, txn)",
        "        return route.looked_at is None and self._covers(route.low, txn)",
        feature="start",
    ),
    mutant(
        "a table that comes later to a pipeline without a snapshot has none either",
        ENUMERATOR,
        "                begins = not (self.tables or self.gone)\n",
        "                begins = True\n",
        feature="start",
    ),
    mutant(
        "the end of MySQL's binlog is all that is flushed",
        PLACES,
        "offset=4, gtids=str(source.engine.executed))\n            skipped",
        "offset=source.place[1], gtids=str(source.engine.executed))\n            skipped",
        feature="start",
    ),
    mutant(
        "the enumerator's part has a table as it was when it was first saved",
        TABLES,
        "        self._unsaved.setdefault(name, self.by_name.get(name))\n        self.by_name[name] = table\n",
        "        self._unsaved |= {} if name in self._values['tables'] else {name: None}\n"
        "        self.by_name[name] = table\n",
    ),
    Mutant(
        "the stream's part has a table as it was when it was first saved",
        (
            (
                READER_TABLES,
                "        self._unsaved[table.table_id] = self._uncut[table.table_id] = None\n",
                "        self._unsaved |= {} if table.table_id in self._values else {table.table_id: None}\n"
                "        self._uncut[table.table_id] = None\n",
            ),
            (
                READER_TABLES,
                "            self._unsaved[table_id] = self._uncut[table_id] = None\n",
                "            self._uncut[table_id] = None\n",
            ),
        ),
        tests="test_reader_*.py",
    ),
    mutant(
        "an entry says of a table what the enumerator knew when the stream first told of it",
        CHECKPOINTS,
        "tables.items() if before.get(name) is not table}",
        "tables.items() if name not in before}",
    ),
    mutant(
        "an entry says of a table what the stream told when the enumerator last changed it",
        CHECKPOINTS,
        "        if changed := changed.union(tables.keys() & touched):\n",
        "        if changed:\n",
    ),
    mutant(
        "the stream tells of a table only once",
        READER_TABLES,
        "            if self._cut.get(name) != streamed:\n",
        "            if name not in self._cut:\n",
    ),
    mutant(
        "the schemas that a part alone names are swept",
        REMOVAL,
        'for file in body["staged"]} | set(body["replaced"])',
        'for file in body["staged"]}',
        first=970,
    ),
    mutant(
        "a record that others build on is removed with what is older",
        REMOVAL,
        "- restorable - _bases(restorable, entries)):",
        "- restorable):",
    ),
    mutant(
        "a part that others build on is removed with its entry",
        REMOVAL,
        "sorted(existing & done - needed)",
        "sorted(existing & done)",
    ),
    unit(
        "what came before the entries that are left is taken for a history that was left",
        CHAIN,
        "            0 < checkpoint <= self.behind or any(",
        "            any(",
        "test_chain.py",
    ),
    mutant(
        "a deposed leader's slow entry takes a slot whose entry was removed",
        STORE,
        "        if won and slot < self.removal.retired()[0]:\n",
        "        if False:\n",
        first=890,
    ),
    unit(
        "a publication of a start far behind stays though retention removed its number",
        STORE,
        "        if won and (\n            record.n < self.removal",
        "        if False and (\n            record.n < self.removal",
        "test_store_retention.py::test_a_publication_that_others_have_passed_long_ago_is_refused",
    ),
)
