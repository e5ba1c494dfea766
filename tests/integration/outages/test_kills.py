"""Kill after kill at random moments: the mesh is on its way again each time, and soon."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.databases import MySQL
from tests.support.mesh import Mesh, ServiceProcess, connection, waited

KILLS = 30
LONG_SECONDS = 20.0
LONGEST_SECONDS = 90.0
DUMPING = """
import asyncio, runpy, signal, sys


class DumpingPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        loop = super().new_event_loop()

        def dump(*_):
            for task in asyncio.all_tasks(loop):
                task.print_stack(file=sys.stderr)

        signal.signal(signal.SIGUSR1, dump)
        return loop


asyncio.set_event_loop_policy(DumpingPolicy())
runpy.run_module("cutline.services.enumerator", run_name="__main__")
"""
"""An enumerator that prints the stacks of its tasks at SIGUSR1."""


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_mesh_recovers_from_kill_after_kill(
    mysql: MySQL, fresh_database: Callable[[MySQL], str], tmp_path: Path
) -> None:
    """A table that changes all the while; thirty times a reader, a writer or an enumerator gets SIGKILL in a random
    phase and another is started. Each time a checkpoint of a later epoch follows. If one takes over 20 s, the stacks of
    the enumerators' tasks are in the failure, or in their logs."""
    seed = int(os.environ.get("CUTLINE_TEST_SEED", random.randrange(1 << 30)))
    luck, name = random.Random(seed), f"{fresh_database(mysql)}.a"
    mysql.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY AUTO_INCREMENT, a INT)")
    mysql.execute(f"INSERT INTO {name} (a) VALUES {', '.join(['(1)'] * 500)}")
    dumped: set[int] = set()
    with Mesh(tmp_path, enumerators=2, programs={"enumerator": ("-c", DUMPING)}) as mesh:
        pipeline = mesh.pipeline("kills", mysql, [name], chunk_rows=20)
        pipeline.until(pipeline.checkpoint, "a first checkpoint")
        for kill in range(KILLS):
            time.sleep(luck.choice((0.0, 0.5, 2.0, 5.0)) * luck.random())
            mysql.execute(f"INSERT INTO {name} (a) VALUES ({kill})")
            role = luck.choice(("reader", "reader", "writer", "enumerator"))
            victim: ServiceProcess = luck.choice(mesh.running(role))
            epochs, slot = len(pipeline.epochs()), pipeline.entries()[-1].slot
            leads = role != "enumerator" or victim is mesh.leader(pipeline)
            began = time.monotonic()
            mesh.kill(victim)
            mesh.start(role)

            def recovered(
                epochs: int = epochs, slot: int = slot, leads: bool = leads, began: float = began, kill: int = kill
            ) -> bool:
                newest = pipeline.checkpoint()
                if newest is not None and newest.slot > slot and (not leads or len(pipeline.epochs()) > epochs):
                    return newest.slot > pipeline.epochs()[-1].slot
                if time.monotonic() - began > LONG_SECONDS and kill not in dumped:
                    dumped.add(kill)
                    for enumerator in mesh.running("enumerator"):
                        os.kill(enumerator.popen.pid, signal.SIGUSR1)
                return False

            goal = f"a checkpoint after kill {kill} of a {role} (CUTLINE_TEST_SEED={seed})"
            waited(recovered, goal, LONGEST_SECONDS, pipeline.progress)
            print(f"{goal}: {time.monotonic() - began:.1f} s")
        end = pipeline.catches_up(name)
        with connection(mysql) as conn, conn.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {name}")
            assert int(cursor.fetchone()[0]) == 500 + KILLS
    assert end.tables[name].show
