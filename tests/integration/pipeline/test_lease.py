"""The lease on a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis as Client

from cutline.common.errors import Unavailable
from cutline.common.mesh.lease import Lease, lease_name, owners, renew
from tests.support.redis_servers import Redis

pytestmark = pytest.mark.alone


def leases(redis: Client, *owners: str, ttl_seconds: float = 30.0) -> list[Lease]:
    return [Lease(redis, lease_name("shop"), owner, ttl_seconds) for owner in owners]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_one_of_all_candidates_gets_the_lease(redis: Client) -> None:
    candidates = leases(redis, *(f"enumerator-{i}" for i in range(20)))
    won = await asyncio.gather(*(lease.acquire() for lease in candidates))
    assert sum(won) == 1
    assert await candidates[won.index(True)].acquire()


async def test_the_holder_may_take_it_again_and_nobody_else(redis: Client) -> None:
    mine, other = leases(redis, "a", "b")
    assert await mine.acquire()
    assert await mine.acquire()
    assert not await other.acquire()


async def test_renewing_begins_its_time_again(redis: Client) -> None:
    (mine,) = leases(redis, "a", ttl_seconds=1000)
    assert await mine.acquire()
    await redis.pexpire(mine.name, 500_000)
    assert await mine.acquire()
    assert await redis.pttl(mine.name) > 900_000


async def test_many_leases_are_renewed_at_once_each_as_it_stands(redis: Client) -> None:
    assert await renew(redis, [], "a", 30.0) == []
    names = [lease_name(pipeline) for pipeline in ("mine", "other", "free")]
    assert await Lease(redis, names[0], "a", 5.0).acquire()
    assert await Lease(redis, names[1], "b", 5.0).acquire()
    assert await renew(redis, names, "a", 1000.0) == [True, False, None]
    assert await redis.pttl(names[0]) > 900_000
    assert await redis.pttl(names[1]) <= 5000
    assert await owners(redis, names) == ["a", "b", None]


async def test_a_lease_that_ran_out_is_the_next_ones_and_its_old_holder_can_not_take_or_release_it(
    redis: Client,
) -> None:
    old, new = *leases(redis, "a", ttl_seconds=0.05), *leases(redis, "b")
    assert await old.acquire()
    await until(new.acquire)
    assert not await old.acquire()
    await old.release()
    assert await new.acquire()


async def test_a_released_lease_is_free_at_once(redis: Client) -> None:
    mine, other = leases(redis, "a", "b")
    assert await mine.acquire()
    await mine.release()
    assert await other.acquire()


async def test_a_lease_that_is_given_away_is_the_successors_at_once_and_nobody_elses_to_give(redis: Client) -> None:
    mine, other = leases(redis, "a", "b")
    assert await mine.acquire()
    assert await mine.give("b")
    assert not await mine.give("c")
    assert not await mine.acquire()
    assert await other.acquire()
    assert await redis.pttl(mine.name) > 25_000


async def test_the_owners_of_leases_are_listed_and_those_of_a_role_are_apart(redis: Client) -> None:
    assert await owners(redis, []) == []
    names = [lease_name("shop"), lease_name("shop", "spark_writer"), lease_name("crm", "spark_writer")]
    assert len(set(names)) == 3
    assert await Lease(redis, names[1], "a", 30.0).acquire()
    assert await owners(redis, names) == [None, "a", None]


async def test_a_lease_is_gone_after_redis_was_emptied(server: Redis, redis: Client) -> None:
    mine, other = leases(redis, "a", "b")
    assert await mine.acquire()
    server.flush()
    assert await renew(redis, [mine.name], "a", 30.0) == [None]
    assert await other.acquire()


async def test_a_redis_that_is_down_is_unavailable_and_says_for_what(server: Redis, redis: Client) -> None:
    (mine,) = leases(redis, "a")
    await asyncio.to_thread(server.kill)
    with pytest.raises(Unavailable, match="take the lease cutline:lease:shop"):
        await mine.acquire()
