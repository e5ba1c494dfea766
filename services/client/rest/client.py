"""The two clients: `Client` waits, `AsyncClient` awaits. Every method is a call of calls.py, with its arguments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Self, TypeVar

import httpx

from cutline.services.client.rest import calls
from cutline.services.client.rest.calls import Call, Page
from cutline.services.client.rest.errors import (
    ApiError,
    ServiceUnavailable,
    Unauthorized,
    Unreachable,
    error_of,
    unreachable,
)
from cutline.services.client.rest.events import EventReader, events_request
from cutline.services.client.rest.methods import Awaits, Each, Method, Waits
from cutline.services.client.rest.models import Event

DEFAULT_URL = "http://127.0.0.1:8642"
TRIES = 3
AGAIN_SECONDS = 0.5
RECONNECT_SECONDS = 2.0
LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""An idle connection is closed here before the service closes it (after 5 s), so no request goes into a closed one."""
T = TypeVar("T")


class _Calls:
    """The methods of both clients."""

    me = Method(calls.me)
    tokens = Method(calls.tokens)
    each_token = Each(calls.tokens)
    make_token = Method(calls.make_token)
    revoke_token = Method(calls.revoke_token)
    audit = Method(calls.audit)
    each_audit_record = Each(calls.audit)

    services = Method(calls.services)
    logs = Method(calls.logs)

    conditions = Method(calls.conditions)
    acknowledge = Method(calls.acknowledge)
    unacknowledge = Method(calls.unacknowledge)

    pipelines = Method(calls.pipelines)
    each_pipeline = Each(calls.pipelines)
    pipeline = Method(calls.pipeline)
    create_pipeline = Method(calls.create_pipeline)
    plan_pipeline = Method(calls.plan_pipeline)
    plan_change = Method(calls.plan_change)
    preview_rules = Method(calls.preview_rules)
    replace_pipeline = Method(calls.replace_pipeline)
    patch_pipeline = Method(calls.patch_pipeline)
    delete_pipeline = Method(calls.delete_pipeline)
    leave_lake = Method(calls.leave_lake)
    versions = Method(calls.versions)
    each_version = Each(calls.versions)
    version = Method(calls.version)
    restore_version = Method(calls.restore_version)

    pause = Method(calls.pause)
    resume = Method(calls.resume)
    stop = Method(calls.stop)
    start = Method(calls.start)
    restore = Method(calls.restore)
    read_again = Method(calls.read_again)
    limits = Method(calls.limits)
    set_limits = Method(calls.set_limits)
    command = Method(calls.command)
    commands = Method(calls.commands)
    each_command = Each(calls.commands)
    cancel_command = Method(calls.cancel_command)
    wait_for_command = Method(calls.wait_for_command)

    checkpoints = Method(calls.checkpoints)
    each_checkpoint = Each(calls.checkpoints)
    checkpoint = Method(calls.checkpoint)
    take_checkpoint = Method(calls.take_checkpoint)
    savepoints = Method(calls.savepoints)
    take_savepoint = Method(calls.take_savepoint)
    delete_savepoint = Method(calls.delete_savepoint)

    tables = Method(calls.tables)
    each_table = Each(calls.tables)
    table = Method(calls.table)
    add_table = Method(calls.add_table)
    remove_table = Method(calls.remove_table)
    order_table = Method(calls.order_table)
    choose_lake = Method(calls.choose_lake)
    schemas = Method(calls.schemas)
    grid = Method(calls.grid)
    splits = Method(calls.splits)

    channels = Method(calls.channels)
    cuts = Method(calls.cuts)
    each_cut = Each(calls.cuts)
    cut = Method(calls.cut)
    cut_at = Method(calls.cut_at)
    cut_with = Method(calls.cut_with)
    events = Method(calls.events)
    each_event = Each(calls.events)

    test_source = Method(calls.test_source)
    source_schemas = Method(calls.source_schemas)
    source_tables = Method(calls.source_tables)
    each_source_table = Each(calls.source_tables)
    operations = Method(calls.operations)
    definition_schema = Method(calls.definition_schema)


class _Settings:
    """What both clients keep of their arguments."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        if token is not None and not (token.isascii() and token.isprintable()):
            raise Unauthorized("the token has a character that no token has", remedy="give it as it was shown")
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def arguments(self, call: Call[Any]) -> dict[str, Any]:
        """The arguments of httpx's `request` for this call."""
        return {
            "method": call.method,
            "url": call.path,
            "params": call.query,
            "json": call.body,
            "headers": call.headers,
            "timeout": self.timeout + call.wait_seconds,
        }


def _may_repeat(call: Call[Any]) -> bool:
    return call.method == "GET" or "Idempotency-Key" in call.headers


class Client(_Calls, Waits):
    """A client of the API of the control service at `url`. Close it, or use it as a context manager.

    A read, or a command, is repeated twice if the service does not answer: a command carries a key by which the service
    knows it again. Raises the errors of errors.py.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        verify: Any = True,
    ) -> None:
        """`timeout` in seconds for each answer; `transport` and `verify` (TLS) are httpx's."""
        self._settings = _Settings(url, token, timeout)
        self._http = httpx.Client(
            base_url=self._settings.url,
            headers=self._settings.headers,
            transport=transport,
            verify=verify,
            limits=LIMITS,
        )

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def send(self, call: Call[T] | Generator[Call[Any], Any, T]) -> T:
        """Send the request, or the requests, of a call, and return its result; for calls without a method."""
        if isinstance(call, Call):
            return self._answer(call)
        answer: Any = None
        while True:
            try:
                step = call.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self._answer(step)

    def _answer(self, call: Call[T]) -> T:
        for again in range(TRIES):
            try:
                response = self._http.request(**self._settings.arguments(call))
                if response.is_success:
                    return call.read(response)
                error: ApiError = error_of(response)
            except httpx.HTTPError as failure:
                error = unreachable(self._settings.url, failure)
            if again == TRIES - 1 or not _may_repeat(call) or not isinstance(error, Unreachable | ServiceUnavailable):
                raise error
            time.sleep(AGAIN_SECONDS * 2**again)
        raise AssertionError("the last try returns or raises")

    def each(self, page: Callable[[str | None], Call[Page[T]]], cursor: str | None = None) -> Iterator[T]:
        """Yield the items of all pages."""
        while True:
            found = self._answer(page(cursor))
            yield from found
            if (cursor := found.cursor) is None:
                return

    def follow(self, pipeline: str, *, after: str | None = None, kind: str | None = None) -> Iterator[Event]:
        """Yield the events of a pipeline as they come, for ever, from the one after `after` (an event's id) on;
        `kind`: only these (commas between).

        A lost connection is made again, and no event is missed meanwhile. Raises what the API refuses.
        """
        reader = EventReader(after, kind)
        while True:
            try:
                with self._http.stream(**events_request(pipeline, reader)) as response:
                    if not response.is_success:
                        response.read()
                        raise error_of(response)
                    for line in response.iter_lines():
                        if (event := reader.take(line)) is not None:
                            yield event
            except (httpx.HTTPError, ServiceUnavailable):
                reader.cut_off()
            time.sleep(RECONNECT_SECONDS)


class AsyncClient(_Calls, Awaits):
    """`Client` for asyncio: the same methods, to be awaited. Close it, or use it as an async context manager."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        verify: Any = True,
    ) -> None:
        """`timeout` in seconds for each answer; `transport` and `verify` (TLS) are httpx's."""
        self._settings = _Settings(url, token, timeout)
        self._http = httpx.AsyncClient(
            base_url=self._settings.url,
            headers=self._settings.headers,
            transport=transport,
            verify=verify,
            limits=LIMITS,
        )

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(self, call: Call[T] | Generator[Call[Any], Any, T]) -> T:
        """Send the request, or the requests, of a call, and return its result; for calls without a method."""
        if isinstance(call, Call):
            return await self._answer(call)
        answer: Any = None
        while True:
            try:
                step = call.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = await self._answer(step)

    async def _answer(self, call: Call[T]) -> T:
        for again in range(TRIES):
            try:
                response = await self._http.request(**self._settings.arguments(call))
                if response.is_success:
                    return call.read(response)
                error: ApiError = error_of(response)
            except httpx.HTTPError as failure:
                error = unreachable(self._settings.url, failure)
            if again == TRIES - 1 or not _may_repeat(call) or not isinstance(error, Unreachable | ServiceUnavailable):
                raise error
            await asyncio.sleep(AGAIN_SECONDS * 2**again)
        raise AssertionError("the last try returns or raises")

    async def each(self, page: Callable[[str | None], Call[Page[T]]], cursor: str | None = None) -> AsyncIterator[T]:
        """Yield the items of all pages."""
        while True:
            found = await self._answer(page(cursor))
            for item in found:
                yield item
            if (cursor := found.cursor) is None:
                return

    async def follow(self, pipeline: str, *, after: str | None = None, kind: str | None = None) -> AsyncIterator[Event]:
        """Yield the events of a pipeline as they come, for ever, from the one after `after` (an event's id) on;
        `kind`: only these (commas between).

        A lost connection is made again, and no event is missed meanwhile. Raises what the API refuses.
        """
        reader = EventReader(after, kind)
        while True:
            try:
                async with self._http.stream(**events_request(pipeline, reader)) as response:
                    if not response.is_success:
                        await response.aread()
                        raise error_of(response)
                    async for line in response.aiter_lines():
                        if (event := reader.take(line)) is not None:
                            yield event
            except (httpx.HTTPError, ServiceUnavailable):
                reader.cut_off()
            await asyncio.sleep(RECONNECT_SECONDS)
