"""The lease on a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis as Client

from cutline.common.errors import Unavailable
from cutline.common.mesh.lease import Lease, lease_name
from tests.servers import Redis

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
    assert await candidates[won.index(True)].renew()


async def test_the_holder_may_take_it_again_and_renew_it_and_nobody_else(redis: Client) -> None:
    mine, other = leases(redis, "a", "b")
    assert await mine.acquire()
    assert await mine.acquire()
    assert await mine.renew()
    assert not await other.acquire()
    assert not await other.renew()


async def test_renewing_begins_its_time_again(redis: Client) -> None:
    (mine,) = leases(redis, "a", ttl_seconds=1000)
    assert await mine.acquire()
    await redis.pexpire(mine.name, 500_000)
    assert await mine.renew()
    assert await redis.pttl(mine.name) > 900_000


async def test_a_lease_that_ran_out_is_the_next_ones_and_its_old_holder_can_not_renew_or_release_it(
    redis: Client,
) -> None:
    old, new = *leases(redis, "a", ttl_seconds=0.05), *leases(redis, "b")
    assert await old.acquire()
    await until(new.acquire)
    assert not await old.renew()
    await old.release()
    assert await new.renew()


async def test_a_released_lease_is_free_at_once(redis: Client) -> None:
    mine, other = leases(redis, "a", "b")
    assert await mine.acquire()
    await mine.release()
    assert await other.acquire()


async def test_a_lease_is_gone_after_redis_was_emptied(server: Redis, redis: Client) -> None:
    mine, other = leases(redis, "a", "b")
    assert await mine.acquire()
    server.flush()
    assert not await mine.renew()
    assert await other.acquire()


async def test_a_redis_that_is_down_is_unavailable_and_says_for_what(server: Redis, redis: Client) -> None:
    (mine,) = leases(redis, "a")
    await asyncio.to_thread(server.kill)
    with pytest.raises(Unavailable, match="take the lease cutline:lease:shop"):
        await mine.acquire()
