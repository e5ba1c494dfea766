"""Posts alerts to CUTLINE_WEBHOOK_URL: the machine of alerts.py, its clock, its place in Redis, and HTTP.

The state is kept in Redis (`cutline:alerts`) after each change; if Redis is away or full, in memory until it is not.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

import httpx
from redis.asyncio import Redis

from cutline.common.causes import Cause, Code, counted
from cutline.common.config.environment import Environment
from cutline.common.errors import Unavailable, redacted
from cutline.common.mesh.redis import answered
from cutline.common.phases import QUARANTINED
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.web import Barred, checked_peer
from cutline.services.control.alerts import Alerts, Delivery, Judged, Posted, PostFailed, body, cause_of
from cutline.services.control.conditions import CONDITIONS, Labels, Samples
from cutline.services.control.metrics import Facts, Statuses

KEY = "cutline:alerts"
TIMEOUT_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
log = logging.getLogger("cutline.alerts")
_UNKNOWN = Cause(Code.OTHER, "no cause is known")


class Webhook:
    """One control service's posts, while it holds the lease of duties.py."""

    def __init__(self, url: str, redis: Redis, *, secret: str | None = None, docs_url: str | None = None) -> None:
        """Take the receiver's address, a client of `mesh.redis.connect`, and what signs the posts."""
        self._url, self._secret, self._docs_url = url, secret, docs_url
        self._redis = redis
        self._alerts = Alerts()
        self._kept = ""
        self._posting: asyncio.Task[None] | None = None

    @classmethod
    def configured(cls, environment: Environment, redis: Redis) -> Webhook | None:
        """Return the webhook of the settings, None if there is none."""
        if environment.webhook_url is None:
            return None
        return cls(
            environment.webhook_url, redis, secret=environment.webhook_secret, docs_url=environment.docs_url
        )

    async def take_over(self) -> None:
        """Go on with what an earlier holder of the lease has kept. Raises Unavailable."""
        async with answered("read the alerts"):
            kept = await self._redis.get(KEY)
        self._alerts, self._kept = Alerts(kept), ""
        self._posting = asyncio.create_task(self._post_all())

    async def give_up(self) -> None:
        """Stop posting: another control service goes on, or this one ends."""
        if self._posting is not None:
            self._posting.cancel()
            await asyncio.wait([self._posting])
            self._posting = None

    async def look(self, facts: Facts) -> None:
        """Judge the conditions."""
        samples = Samples(
            (sample.name, sample.labels, sample.value)
            for family in Statuses(facts).essential()
            for sample in family.samples
        )
        found = {
            condition: {labels: _cause(condition.name, labels, facts) for labels in condition.found(samples)}
            for condition in CONDITIONS
        }
        blind = facts.redis_away is not None or facts.store_away is not None
        self._alerts.handle(Judged(found=found, blind=blind), time.time())
        await self._keep()

    async def _keep(self) -> None:
        kept = self._alerts.kept
        if kept != self._kept:
            with suppress(Unavailable):  # kept with the next look
                async with answered("keep the alerts"):
                    await self._redis.set(KEY, kept)
                self._kept = kept

    async def _post_all(self) -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
            while True:
                delivery = self._alerts.due(time.time())
                if delivery is None:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                failure = await self._post(client, delivery)
                if failure is None:
                    log.info("alert %s was posted", delivery.id)
                    self._alerts.handle(Posted(delivery=delivery), time.time())
                else:
                    log.warning("alert %s could not be posted to %s: %s", delivery.id, redacted(self._url), failure)
                    self._alerts.handle(PostFailed(delivery=delivery), time.time())
                await self._keep()

    async def _post(self, client: httpx.AsyncClient, delivery: Delivery) -> str | None:
        """Post a delivery; return why the receiver has not taken it."""
        content = json.dumps(body(delivery, docs_url=self._docs_url), ensure_ascii=False).encode()
        headers = {
            "Content-Type": "application/json",
            "X-Cutline-Delivery": quote(delivery.id, safe="/,=()"),
            **signed(content, self._secret, int(time.time())),
        }
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), client.stream(
                "POST", self._url, content=content, headers=headers, extensions={"trace": checked_peer}
            ) as answer:
                return None if answer.is_success else f"it answered {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, Barred, TimeoutError) as error:
            return str(error) or type(error).__name__


def signed(content: bytes, secret: str | None, timestamp: int) -> dict[str, str]:
    """Return the headers that sign a post: HMAC-SHA256 of the timestamp, a full stop and the body."""
    if secret is None:
        return {}
    mac = hmac.new(secret.encode(), f"{timestamp}.".encode() + content, hashlib.sha256)
    return {"X-Cutline-Timestamp": str(timestamp), "X-Cutline-Signature": f"sha256={mac.hexdigest()}"}


def _cause(name: str, labels: Labels, facts: Facts) -> Cause | None:
    if name == "CutlineRedisAway":
        return facts.redis_away
    if name == "CutlineStoreAway":
        return facts.store_away
    known = dict(labels)
    status = facts.statuses.get(known.get("pipeline", ""), PipelineStatus())

    def quarantined() -> Iterator[tuple[str, Cause]]:
        for name, table in sorted(status.tables.items()):
            if table.phase == QUARANTINED and counted(table.cause) == known.get("cause"):
                yield name, table.cause or _UNKNOWN

    return cause_of(name, status, quarantined())
