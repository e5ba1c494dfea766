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
from contextlib import suppress
from urllib.parse import quote

import httpx
from redis.asyncio import Redis

from cutline.common.config.environment import Environment
from cutline.common.errors import Unavailable, redacted
from cutline.common.mesh.redis import answered
from cutline.common.web import Barred, checked_peer
from cutline.services.control.alerts import Alerts, Delivery, Judged, Posted, PostFailed, body
from cutline.services.control.metrics import Facts
from cutline.services.control.standing import Standing

KEY = "cutline:alerts"
TIMEOUT_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
log = logging.getLogger("cutline.alerts")


class Webhook:
    """One control service's posts, while it holds the lease of duties.py."""

    def __init__(
        self, url: str, redis: Redis, standing: Standing, *, secret: str | None = None, docs_url: str | None = None
    ) -> None:
        """Take the receiver's address, a client of `mesh.redis.connect`, what judges, and what signs the posts."""
        self._standing = standing
        self._url, self._secret, self._docs_url = url, secret, docs_url
        self._redis = redis
        self._alerts = Alerts()
        self._kept = ""
        self._posting: asyncio.Task[None] | None = None

    @classmethod
    def configured(cls, environment: Environment, redis: Redis, standing: Standing) -> Webhook | None:
        """Return the webhook of the settings, None if there is none."""
        if environment.webhook_url is None:
            return None
        return cls(
            environment.webhook_url,
            redis,
            standing,
            secret=environment.webhook_secret,
            docs_url=environment.docs_url,
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
        held = await self._standing.look(facts)
        found = tuple(each.finding for each in held)
        known = frozenset(each.finding.id for each in held if each.acknowledged is not None)
        self._alerts.handle(Judged(found=found, acknowledged=known, blind=facts.blind), time.time())
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
