"""How far one dump has come: the position after the last item taken, and how watermarks compare with it.

1. **A position inside a transaction does not depend on the routes.** `Position.rows` there is (row events of any table
   taken whole << INSIDE_BITS) + row changes taken of the next one, so a resume finds its place even if a table was
   quarantined or added in between, without decoding tables that have no route. It sorts as a count of rows does.
   While nothing of the transaction at hand was delivered, the position is its start and `rows` is 0.
2. **No position is before the one that the read began at**, within one server's history: until a dump has reached that
   place (it may have rows to skip, or a file over 4 GiB to read from its start), the position stays there, even inside
   a transaction. `position` applies this rule, and `checked_position` asserts it.
3. **Between two transactions everything is known**: file and offset after the last one, and the GTIDs of all that were
   taken, or were in the set before. A position whose GTID set is ahead of its file and offset (`start: latest`,
   `start: {gtid:}`) is legal: transactions in the set are skipped.
4. **A low watermark covers whole transactions: those that start before it.**
"""

from __future__ import annotations

from cutline.common.errors import ProtocolError
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import FilePosition, High, Low, Position
from cutline.services.sources.mysql.binlog.scanner import INSIDE_BITS, Scanner
from cutline.services.sources.mysql.decode.row_event import Place
from cutline.services.sources.mysql.server import Server


class Progress:
    """One dump's progress in the binlog of `server`.

    `after` is the position that the read at hand continues from: the caller sets it at each read. `executed` is the
    GTID set of the last position.
    """

    def __init__(self, server: Server, after: Position) -> None:
        self.server, self.after, self.executed = server, after, after.executed
        self.scanner = Scanner(Place(), mariadb=not server.mysql, first_taken=self._first_taken)

    def _first_taken(self, prefix: str, number: int) -> int:
        """The first GTID number from `number` on that was taken before the dump began; 0 if none was."""
        return self.executed.next_from(prefix, number) if isinstance(self.executed, GtidSet) else 0

    def position(self) -> Position:
        """The position after the last item taken; `after` until the dump has reached it."""
        scanner = self.scanner
        if scanner.resume or scanner.pos < max(scanner.discard_to, scanner.floor):
            return self.after
        runs, domains = scanner.gtids.take()
        if runs:
            base = self.executed if isinstance(self.executed, GtidSet) else GtidSet.EMPTY
            taken = ",".join(f"{prefix}:{first}-{last}" for prefix, first, last in runs)
            self.executed = base | GtidSet.parse(taken)
        for domain, server_id, number in domains:
            domains_before = self.executed if isinstance(self.executed, MariaGtid) else MariaGtid.parse("")
            self.executed = domains_before.add(f"{domain}-{server_id}-{number}")
        inside = scanner.tx.open
        return Position(
            server=self.server.identity,
            file=scanner.file,
            offset=scanner.tx.start if inside else scanner.pos,
            gtids="" if self.executed is None else str(self.executed),
            rows=(scanner.ordinal << INSIDE_BITS) + scanner.row_from if inside and scanner.tx.delivered else 0,
        )

    def checked_position(self) -> Position:
        """The position to return. ProtocolError if it is before `after`: a restore from it would repeat changes."""
        position, after = self.position(), self.after
        if after.file and after.server == position.server and not position.not_before(after):
            raise ProtocolError(
                f"The binlog cursor of server {position.server} went back from {after} to {position}",
                "restart the pipeline, and report it with the server's version if it happens again",
            )
        return position

    def passed(self, low: Low) -> bool:
        """Whether none of the transactions that the low covers can still come."""
        scanner = self.scanner
        executed = GtidSet.parse(low.gtids) if ":" in low.gtids else None
        if executed is not None:
            return isinstance(self.executed, GtidSet) and executed <= self.executed
        if low.server != self.server.identity:
            return False
        here = scanner.tx.start if scanner.tx.open else scanner.pos
        return FilePosition(scanner.file, here) >= FilePosition(low.file, low.offset)

    def covered_by(self, low: Low) -> bool:
        """Whether the low covers the transaction at hand. SourceLost if they can't be compared."""
        scanner = self.scanner
        start = FilePosition(scanner.file, scanner.tx.start + 1)
        return low.covers(server=self.server.identity, end=start, gtid=str(scanner.gtids) or None)

    def before(self, high: High) -> bool:
        """Whether the transaction at hand begins before the high, or the high is another server's."""
        here = FilePosition(self.scanner.file, self.scanner.tx.start)
        return high.server != self.server.identity or here < high.file_position
