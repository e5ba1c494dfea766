"""The event loops of simulated processes: one thread, the world's time, the same order in each run."""

from __future__ import annotations

import asyncio

from tests.simulation.loops import ProcessLoop
from tests.simulation.mesh.schedule import Schedule


def run(schedule: Schedule, until: float) -> None:
    while schedule and schedule.now <= until:
        call, args = schedule.next()
        call(*args)


def test_two_processes_wait_in_the_worlds_time_and_their_turns_alternate() -> None:
    schedule, story = Schedule(), list[tuple[str, float]]()

    async def work(name: str, pause: float) -> None:
        for _ in range(3):
            await asyncio.sleep(pause)
            story.append((name, round(schedule.now, 3)))

    loops = [ProcessLoop(schedule, lambda: 0.0) for _ in range(2)]
    for loop, name, pause in zip(loops, "ab", (1.0, 1.5), strict=True):
        loop.create_task(work(name, pause))
    run(schedule, 10.0)
    assert story == [("a", 1.0), ("b", 1.5), ("a", 2.0), ("b", 3.0), ("a", 3.0), ("b", 4.5)]
    for loop in loops:
        loop.dispose()


def test_a_suspended_process_goes_on_late_and_sees_all_that_came_meanwhile() -> None:
    schedule, story, until = Schedule(), list[float](), [0.0]
    loop = ProcessLoop(schedule, lambda: until[0])

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)
            story.append(round(schedule.now, 3))

    loop.create_task(work())
    schedule.at(1.5, until.__setitem__, 0, 5.0)
    run(schedule, 20.0)
    assert story == [1.0, 5.001, 6.001]
    loop.dispose()


def test_a_process_that_is_gone_does_nothing_any_more_and_its_tasks_are_unwound() -> None:
    schedule, story = Schedule(), list[str]()
    loop = ProcessLoop(schedule, lambda: 0.0)

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(100))
                await asyncio.sleep(2.0)
                story.append("went on")
        finally:
            await asyncio.sleep(0)
            story.append("unwound")

    task = loop.create_task(work())
    schedule.at(1.0, setattr, loop, "ended", True)
    run(schedule, 50.0)
    assert story == []
    loop.dispose()
    assert story == ["unwound"]
    assert task.cancelled()


def test_sets_of_tasks_have_one_order() -> None:
    loop = ProcessLoop(Schedule(), lambda: 0.0)
    tasks = [loop.create_task(asyncio.sleep(1.0)) for _ in range(30)]
    assert list(set(tasks)) == tasks
    loop.dispose()
