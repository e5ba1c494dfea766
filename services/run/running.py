"""How other commands reach a running pipeline: they read its status, request new limits, and pass on choices."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from cutline.common.errors import CutlineError
from cutline.common.mesh.messages import Limits
from cutline.common.mesh.presence import SPARK_WRITER, Registry
from cutline.common.mesh.presence import choice as choice_of
from cutline.common.mesh.redis import connect
from cutline.common.store.lives import Key
from cutline.common.store.store import PipelineStore

ASK_AGAIN_SECONDS = 10.0
THROTTLE_SECONDS = 30.0
CHOICE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


async def status_of(redis_url: str, pipeline: PipelineStore) -> dict[str, dict[str, Any]]:
    """The status parts of `pipeline`, {} if none is published; Unavailable if Redis doesn't answer."""
    if pipeline.definition() is None:
        return {}
    redis = connect(redis_url)
    try:
        return await Registry(redis).status(pipeline.key)
    finally:
        await redis.aclose()


async def throttle(redis_url: str, pipeline: Key, limits: Limits) -> None:
    """Request `limits` from the leader of `pipeline`; return once they apply and a checkpoint has them, so that they
    outlive the leader. CutlineError if that takes too long."""
    redis = connect(redis_url)
    try:
        registry, wanted = Registry(redis), asdict(limits)
        asked_at, deadline = -ASK_AGAIN_SECONDS, time.monotonic() + THROTTLE_SECONDS
        while True:
            leader = (await registry.status(pipeline)).get("enumerator", {})
            if leader.get("limits") == wanted and leader.get("limits_kept"):
                return
            if time.monotonic() > deadline:
                raise CutlineError(
                    f"no checkpoint of {pipeline} has the limits yet, so they may be lost with its leader; see"
                    " `cutline status`, and run this command again"
                )
            if time.monotonic() - asked_at >= ASK_AGAIN_SECONDS:
                await registry.request(pipeline, {"kind": "throttle", "limits": wanted})
                asked_at = time.monotonic()
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await redis.aclose()


async def choose(redis_url: str, pipeline: Key, table: str, choice: str) -> None:
    """Pass on a choice about the commits of others to a lake table, and return when the table keeps it.

    ConfigError if there is nothing to choose, CutlineError if that takes too long.
    """
    redis = connect(redis_url)
    try:
        registry, deadline = Registry(redis), time.monotonic() + CHOICE_SECONDS
        request = choice_of(await registry.status(pipeline), table, choice)
        await registry.request(pipeline, request, to=SPARK_WRITER)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            spark = (await registry.status(pipeline)).get("spark_writer", {})
            held = (spark.get("quarantined") or {}).get(table)
            kept = held is None or (held.get("chosen"), held.get("seen")) == (choice, request["seen"])
            if kept and "error" not in spark:
                return
            if time.monotonic() > deadline:
                raise CutlineError(
                    f"the Spark writer has not taken the choice about {table}; see its log and `cutline status`, and"
                    " choose again"
                )
    finally:
        await redis.aclose()
