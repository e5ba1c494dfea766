"""Where a stream begins and ends: starts without a snapshot, and stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import High, Low, Position, Stop
from tests.simulation.source.transactions import (
    KINDS,
    MARIADB,
    MYSQL,
    PLAIN,
    State,
    Txn,
)

if TYPE_CHECKING:
    from tests.simulation.source.server import SimulatedSource



class Places:
    """Where a stream begins and ends: starts without a snapshot, and stops."""

    def __init__(self, source: SimulatedSource) -> None:
        self.source = source
        self.starts: dict[Low, dict[int, Txn]] = {}  # of pipelines without a snapshot: what each leaves out

    def start(self, kind: str) -> tuple[tuple[Low, High], Low]:
        """Where a stream without a snapshot begins: at the end of the binlog (with MySQL: in the file in use, after
        every committed transaction), or between any two transactions; and the low after which the catalogue is read."""
        source = self.source
        at, skipped = len(source.log), source.log
        place = source.end()
        if kind == "latest" and source.flavour == MYSQL:
            place = Position(server=source.server, file=source.place[0], offset=4, gtids=str(source.engine.executed))
            skipped = [t for t in source.log if t.gtid is None or source.engine.executed.contains(t.gtid)]
        elif kind == "place":
            at = source.rng.randrange(source.purged, len(source.log) + 1)
            skipped = source.log[:at]
            here = (skipped[-1].end_file, skipped[-1].end) if skipped else next(iter(source.boundary))
            place = Position(server=source.server, file=here[0], offset=here[1], gtids=self._named(skipped))
        source.count[f"start at {'the end' if kind == 'latest' else 'a place'} of the binlog"] += 1
        low = Low(server=place.server, file=place.file, offset=place.offset, gtids=place.gtids)
        self.starts[low] = {id(txn): txn for txn in skipped}
        seen = len(source.log)
        while seen and not source.log[seen - 1].visible:
            seen -= 1
        looked_at = Low(server=source.server, file=source.place[0], offset=4, gtids=str(source.engine.executed))
        if source.flavour == MARIADB:
            last = source.log[seen - 1] if seen else None
            here = (last.end_file, last.end) if last else next(iter(source.boundary))
            looked_at = Low(server=source.server, file=here[0], offset=here[1])
        return (low, High(server=place.server, file=place.file, offset=place.offset)), looked_at

    def _named(self, log: list[Txn]) -> str:
        """The GTIDs after these transactions."""
        source = self.source
        if source.flavour == MARIADB:
            return next((t.gtid for t in reversed(log) if t.gtid), "") or ""
        return str(GtidSet.parse(",".join(t.gtid for t in log if t.gtid))) if source.flavour == MYSQL else ""

    def since(self, low: Low, position: Position) -> State:
        """The rows of a lake at a position, if it began empty at that start."""
        source = self.source
        skipped = self.starts[low]
        state: State = {table: {} for table in source.tables}
        columns = source.initial_columns
        for txn in source.log[: source.find(position)[0]]:
            old, columns = columns, txn.columns
            if id(txn) in skipped:
                continue
            if txn.kind == "ddl":
                state[txn.table] = source.altered(txn, old[txn.table], state[txn.table])
            for change in source.changes_of(txn):
                rows, width = state[change.table], len(KINDS[change.table].key)
                if change.before is not None:
                    rows.pop(change.before[:width], None)
                if change.after is not None:
                    rows[change.after[:width]] = change.after
        return state

    def some_stop(self, kind: str, ahead: float, now: float) -> Stop:
        """A stop as a person may name it now: about so many seconds ahead."""
        source = self.source
        if kind == "time":
            return Stop(time_us=int((now + ahead) * 1e6))
        if kind == "file":
            file = source.file()
            return Stop(server=source.server, file=file, offset=source.place[1] + int(100 * ahead))
        number = source.transactions + 1 + int(4 * ahead)
        if source.flavour == MARIADB:
            return Stop(gtids=f"0-{source.servers}-{number}")
        prefix = "3e11fa47-71ca-11e1-9e33-c80aa942956" + str(source.servers % 10)
        ahead_of_it = GtidSet.parse(f"{prefix}:{min(number, source.transactions + 1)}-{number}")
        return Stop(gtids=str(source.engine.executed | ahead_of_it))

    def find_stop(self, stop: Stop, now: float) -> Position | None:
        """The place of the stop; None if the source has not passed it yet."""
        source = self.source
        if stop.time_us is not None and now * 1e6 < stop.time_us:
            return None
        gtids: Any = GtidSet.EMPTY if source.flavour == MYSQL else MariaGtid.parse("")
        here = Position(server=source.server, file=next(iter(source.boundary))[0], offset=4)
        for txn in [*source.log, None]:
            if stop.time_us is None and stop.met_by(here):
                return here
            if txn is None or (txn.kind != "rotate" and txn.behind(stop, source.server)):
                return here if stop.time_us is not None else None
            if txn.gtid and source.flavour != PLAIN:
                gtids = gtids.add(txn.gtid)
            place = txn.end_place
            named = str(gtids) if gtids else ""
            here = Position(server=source.server, file=place.file, offset=place.offset, gtids=named)
        return None

    def apart(self, place: Position, other: Position) -> bool:
        """Whether more than the end of a file lies between two places: a stop by time is before or after it, whether or
        not the file had ended when the stop was looked for."""
        source = self.source
        if place.same_place(other) or place.inside or other.inside or not place.server == other.server == source.server:
            return not place.same_place(other)
        first, last = sorted((source.find(place)[0], source.find(other)[0]))
        return any(txn.kind != "rotate" for txn in source.log[first:last])
