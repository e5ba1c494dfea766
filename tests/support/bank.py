"""Two tables whose sum is constant, while transactions move amounts between them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from tests.support.databases import Database
from tests.support.hammer import Hammer
from tests.support.history import History, content, differences, judge
from tests.support.mesh import Pipeline
from tests.support.modelled_lake import Columns

ACCOUNTS = 120
BALANCE = 1000
Fresh = Callable[[Database], str]


class Bank:
    """Two tables whose sum stays, while transactions move amounts between them, insert and remove empty accounts."""

    def __init__(self, server: Database, fresh: Fresh) -> None:
        self.server = server
        server.execute("FLUSH BINARY LOGS")
        self.history = History(server)
        self.schema = fresh(server)
        self.names = (f"{self.schema}.cash", f"{self.schema}.debt")
        self.tables: dict[str, Columns] = {name: (("id", "amount", "note"), ("id",)) for name in self.names}
        rows = ", ".join(f"({number}, {BALANCE}, NULL)" for number in range(ACCOUNTS))
        for name in self.names:
            server.execute(
                f"CREATE TABLE {name} (id INT PRIMARY KEY, amount BIGINT NOT NULL, note VARCHAR(40))",
                f"INSERT INTO {name} VALUES {rows}",
            )
        server.execute("FLUSH BINARY LOGS")
        self.numbers = itertools.count(ACCOUNTS)

    def move(self, cursor: Any, luck: random.Random, number: int) -> None:
        amount = luck.randrange(1, 100)
        for name, sign in zip(self.names, (1, -1), strict=True):
            account = luck.randrange(ACCOUNTS)
            cursor.execute(f"UPDATE {name} SET amount = amount + %s WHERE id = %s", (sign * amount, account))
        if luck.random() < 0.2:
            cursor.execute(f"INSERT INTO {self.names[0]} VALUES (%s, 0, 'empty')", (next(self.numbers),))
            cursor.execute(f"DELETE FROM {self.names[0]} WHERE amount = 0 AND id > %s LIMIT 1", (ACCOUNTS,))

    def moving(self, **keywords: Any) -> Hammer:
        """Three connections that move amounts until the end of the `with`."""
        return Hammer(self.server, self.move, threads=3, pause_seconds=0.02, **keywords)

    def agrees(self, pipeline: Pipeline, end: dict[str, Any]) -> None:
        """Every publication equals the source at its position, the sum is the constant, the end is what is there."""
        found, faults = judge(pipeline, self.history, self.tables)
        assert not faults, "\n".join([pipeline.progress(), *faults[:20]])
        both = [cut for cut in found if cut.tables.keys() == set(self.names)]
        assert len(both) >= 5
        for cut in both:
            total = sum(row["amount"] for name in self.names for row in cut.tables[name].content.values())
            assert total == 2 * ACCOUNTS * BALANCE, f"checkpoint {cut.slot} has {total}"
        last = next(cut for cut in found if cut.slot == end.slot)
        for name in self.names:
            assert differences(last.tables[name].content, content(self.server, name, ["id"])) == []
