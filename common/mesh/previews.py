"""Previews in Redis: requests that any Spark writer of the store takes, and their answers (preview.py).

A request waits in the list `cutline:previews` by its id; its body is `cutline:preview:{id}`, the answer
`cutline:preview:{id}:answer`. Bodies and answers lapse by themselves, so that a request that nobody takes in time is
carried out by nobody later, and nothing stays in Redis. Losing one costs whoever asked another try.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

from redis.asyncio import Redis

from cutline.common.causes import Cause
from cutline.common.errors import Unavailable
from cutline.common.mesh.redis import answered
from cutline.common.preview import PreviewAnswer, PreviewRequest

TAKE_SECONDS = 5
"""A request that no Spark writer has taken by then is withdrawn."""
ANSWER_SECONDS = 40
"""The longest wait for the answer to one that was taken."""
MOST_WAITING = 20
_LOOK_SECONDS = 0.1
_LIST = "cutline:previews"
_BODY = "cutline:preview:"
_NEXT = f"""
while true do
  local names = redis.call('LRANGE', KEYS[1], 0, 0)
  if #names == 0 then return nil end
  redis.call('LTRIM', KEYS[1], 1, -1)
  local body = redis.call('GET', '{_BODY}' .. names[1])
  if body then
    redis.call('DEL', '{_BODY}' .. names[1])
    return {{names[1], body}}
  end
end
"""
"""The request that has waited longest; those that have lapsed are passed over."""


class Previews:
    """The requests and answers in Redis. Every method raises Unavailable if Redis doesn't answer."""

    def __init__(self, redis: Redis) -> None:
        """Take a client of `mesh.redis.connect`."""
        self._redis: Any = redis

    async def analysed(
        self, request: PreviewRequest, *, take_seconds: float = TAKE_SECONDS, answer_seconds: float = ANSWER_SECONDS
    ) -> PreviewAnswer:
        """Ask, and return the answer. Unavailable if no Spark writer takes the request, or answers, in that time."""
        name = secrets.token_hex(8)
        body, answer = _keys(name)
        async with answered("ask the Spark writers for a preview"):
            if len(await self._redis.lrange(_LIST, 0, MOST_WAITING)) >= MOST_WAITING:
                raise Unavailable(f"{MOST_WAITING} previews wait for the Spark writers", "try again in some seconds")
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(body, json.dumps(request.to_json()), ex=TAKE_SECONDS + 1)
                pipe.rpush(_LIST, name)
                pipe.expire(_LIST, TAKE_SECONDS + 1)
                await pipe.execute()
            began = time.monotonic()
            taken = False
            while (found := await self._redis.get(answer)) is None:
                waited = time.monotonic() - began
                if not taken and not await self._redis.exists(body):
                    taken = True
                if waited >= (answer_seconds if taken else take_seconds):
                    if taken or not await self._redis.delete(body):
                        raise Unavailable(f"the Spark writer did not answer within {waited:.0f} s", "try again")
                    raise Unavailable(f"no Spark writer was free within {waited:.0f} s", "try again in a minute")
                await asyncio.sleep(_LOOK_SECONDS)
            await self._redis.delete(answer)
        made = json.loads(found)
        if made.get("failed") is not None:
            raise Unavailable(Cause.from_json(made["failed"]))
        return PreviewAnswer.from_json(made)

    async def next(self) -> tuple[str, PreviewRequest] | None:
        """Take the request that has waited longest: its id, and what is asked; None if there is none."""
        async with answered("take a preview"):
            found = await self._redis.eval(_NEXT, 1, _LIST)
        if found is None:
            return None
        name, body = found
        return name.decode(), PreviewRequest.from_json(json.loads(body))

    async def put(self, name: str, answer: PreviewAnswer | Cause) -> None:
        """Answer a request that was taken; a Cause says why it could not be carried out."""
        content = {"failed": answer.to_json()} if isinstance(answer, Cause) else answer.to_json()
        async with answered("answer a preview"):
            await self._redis.set(_keys(name)[1], json.dumps(content), ex=ANSWER_SECONDS)


def _keys(name: str) -> tuple[str, str]:
    return f"{_BODY}{name}", f"{_BODY}{name}:answer"
