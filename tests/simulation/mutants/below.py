"""Patches below the machines: of the cursor and its scanner, the store, the staged files, the channels. Each breaks one
rule; a world of bytes (stream, store, channels) must notice it."""

from __future__ import annotations

from tests.simulation.mutants import READER_STREAM, STORE, Mutant, unit

CURSOR = "services/sources/mysql/binlog/cursor.py"
PROGRESS = "services/sources/mysql/binlog/progress.py"
ROUTES = "services/sources/mysql/binlog/routes.py"
SCANNER = "services/sources/mysql/binlog/scanner.py"
XA = "services/sources/mysql/binlog/xa.py"
BACKENDS = "common/store/backends.py"
STAGING_FILE = "common/store/staging_file.py"
CHANNELS = "common/mesh/channels.py"
RECEIVER = "common/mesh/receiver.py"
SENDER = "common/mesh/sender.py"


def stream(rule: str, file: str, old: str, new: str, seeds: int = 600) -> Mutant:
    return Mutant(rule, ((file, old, new),), seeds, world="stream")


def store(rule: str, file: str, old: str, new: str, seeds: int = 300) -> Mutant:
    return Mutant(rule, ((file, old, new),), seeds, world="store")


def channel(rule: str, file: str, old: str, new: str, seeds: int = 300) -> Mutant:
    return Mutant(rule, ((file, old, new),), seeds, world="channels")


BELOW = (
    stream(
        "a cursor that is to skip rows again says that it stands before the transaction",
        PROGRESS,
        "if scanner.resume or scanner.pos < max(scanner.discard_to, scanner.floor):",
        "if scanner.pos < max(scanner.discard_to, scanner.floor):",
    ),
    stream(
        "a cursor to whom a file is sent again says where it stands in it",
        PROGRESS,
        "if scanner.resume or scanner.pos < max(scanner.discard_to, scanner.floor):",
        "if scanner.resume:",
    ),
    stream(
        "the start of a transaction is reached inside of it",
        CURSOR,
        "if until is not None and not after.inside and _reaches(after, until):",
        "if until is not None and _reaches(after, until):",
    ),
    stream(
        "what the position has taken already is taken again where the server sends it",
        SCANNER,
        "            self.tx.skipped = self.gtids._free_to == number\n",
        "            self.tx.skipped = False\n",
    ),
    stream(
        "a row event of which a part was taken begins anew after a reconnect",
        SCANNER,
        "                first = self.row_from = self.resume & ((1 << _INSIDE) - 1)\n",
        "                first = self.row_from = 0\n",
    ),
    stream(
        "row events of tables that nobody asked for are not counted inside a transaction",
        SCANNER,
        "            if table.make_decoder is None:\n                return self.pass_over()\n",
        "            if table.make_decoder is None:\n                return _GO\n",
    ),
    stream(
        "a position inside a transaction is where its next event begins",
        PROGRESS,
        "            offset=scanner.tx.start if inside else scanner.pos,\n",
        "            offset=scanner.pos,\n",
    ),
    stream(
        "what a low covers is delivered",
        ROUTES,
        "        guarded = route.looked_at is not None or not self._progress.passed(route.low)\n",
        "        guarded = False\n",
    ),
    stream(
        "a heartbeat's place is gone on from at once, while the server passes over what we have",
        CURSOR,
        "        if offset <= scanner.pos or self._idle_at == (file, offset):\n",
        "        if True:\n",
    ),
    stream(
        "the end of a torn file commits the transaction in it",
        CURSOR,
        "            if scanner.tx.open or (scanner.resume and FilePosition(name, 0) > FilePosition(after.file, 0)):\n",
        "            if False:\n",
    ),
    stream(
        "rows that were given out are not undone by a rollback",
        ROUTES,
        "        if not (scanner.tx.delivered or scanner.resume):\n            return\n",
        "        return\n",
    ),
    stream(
        "a prepared transaction that is too large to hold is given out as far as it was held",
        XA,
        "            self.events = None\n",
        "            pass\n",
    ),
    stream(
        "the rows of an XA transaction are looked for in the first file alone",
        XA,
        "                if at is not None:\n                    break\n",
        "                break\n",
    ),
    unit(
        "rows of several transactions make the place inside of one large",
        READER_STREAM,
        "if here.same_transaction(before) else 0)",
        "if True else 0)",
        "test_reader_markers.py::test_rows_inside_are_those_of_one_transaction",
    ),
    stream(
        "a marker is taken inside of any transaction",
        READER_STREAM,
        "        return not cursor.position.inside or cursor.rows_inside >= self.inside_rows\n",
        "        return True\n",
    ),
    store(
        "a file has its name before it is durable",
        BACKENDS,
        "        os.fsync(file.fileno())\n",
        "",
    ),
    store(
        "a name is told before it is durable",
        BACKENDS,
        "                _sync_folder(os.path.dirname(location))\n                self._unsynced.discard(location)\n"
        "                return won\n",
        "                return won\n",
    ),
    store(
        "a name that was taken is taken for a link of ours",
        BACKENDS,
        "            won = os.stat(temporary).st_nlink > 1\n",
        "            won = True\n",
    ),
    store(
        "an object that is there is taken for ours",
        BACKENDS,
        "                return self.read(path) == data\n",
        "                return True\n",
    ),
    store(
        "an object whose answer was lost is taken for ours, whatever stands there",
        BACKENDS,
        "                    return found == data\n",
        "                    return True\n",
        900,
    ),
    store(
        "a claim that another has got is ours",
        STORE,
        '            if self._put(bodies.numbered("spark", w), {"nonce": nonce, "w": w}):\n',
        '            if self._put(bodies.numbered("spark", w), {"nonce": nonce, "w": w}) or w > 1:\n',
    ),
    store(
        "a full disk is no answer that can be waited for",
        BACKENDS,
        '        raise Unavailable(f"the store does not answer at',
        '        raise ProtocolError(f"the store does not answer at',
    ),
    store(
        "the hash of a staged file lacks its last bytes",
        STAGING_FILE,
        "        self._digest.update(data)\n        written",
        "        self._digest.update(data[:-1])\n        written",
    ),
    channel(
        "a sender sends whatever its credit is",
        SENDER,
        "                    if behind and behind + entry.size > self.credit_bytes:\n",
        "                    if False:\n",
    ),
    channel(
        "a message that is there already, of our own repetition, is a second sender's",
        CHANNELS,
        "            if not repeated:\n",
        "            if True:\n",
    ),
    channel(
        "a full Redis ends the channel",
        CHANNELS,
        "        elif isinstance(answer, (OutOfMemoryError, ReadOnlyError)) or",
        "        elif isinstance(answer, ReadOnlyError) or",
    ),
    channel(
        "a gap in a channel is read over",
        RECEIVER,
        '    if entry_id != b"%d-0" % number:\n',
        "    if False:\n",
    ),
    channel(
        "a repetition after a lost answer is taken for a first try",
        CHANNELS,
        "            repeated = True\n",
        "            pass\n",
    ),
    channel(
        "the fragments of a message are one message each",
        RECEIVER,
        "        if at < inlet.parts_expected:\n            return None, size\n",
        "",
    ),
)
