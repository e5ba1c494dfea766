"""A journal with changes of every kind, for tests of the Spark writer."""

from __future__ import annotations

import random

from tests.support.spark_bench import Journal, T, U, order


def busy_history(journal: Journal, seed: int, checkpoints: int = 6) -> None:
    """Write a random history of two tables: chunks, then changes, several a key; some cuts are `inside`, some kept."""
    draw = random.Random(seed)
    journal.table(T, phase="snapshot")
    journal.table(U, phase="snapshot")
    journal.chunk(T, [order(number) for number in range(20)])
    journal.checkpoint()
    journal.chunk(T, [order(number) for number in range(20, 30)])
    journal.chunk(U, [{"place": f"p{at}", "item": at, "amount": at} for at in range(10)])
    journal.table(T)
    journal.table(U)
    journal.checkpoint()
    for at in range(checkpoints):
        for _ in range(draw.randrange(3)):
            row = order(draw.randrange(35), f"n{draw.randrange(99)}", draw.choice([None, "2.25", "-7.00"]))
            again = {**row, "note": None}
            journal.change(T, ("+U", row), (draw.choice(["+U", "-D"]), again))
            stock = {"place": f"p{draw.randrange(12)}", "item": draw.randrange(12), "amount": draw.randrange(99)}
            journal.change(U, (draw.choice(["+I", "-D"]), stock))
        last = at == checkpoints - 1
        journal.checkpoint(inside=not last and draw.random() < 0.3, kept=draw.random() < 0.4)
