"""How a call of calls.py becomes a method of both clients: of `Client` it returns the answer, of `AsyncClient` an
awaitable of it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

from cutline.services.client.rest.calls import Call, Flow, Page

P = ParamSpec("P")
T = TypeVar("T")


class Waits:
    """A client whose methods return answers."""


class Awaits:
    """A client whose methods return awaitables of answers."""


class Method(Generic[P, T]):
    """A call as a method."""

    def __init__(self, make: Callable[P, Call[T]] | Callable[P, Flow[T]]) -> None:
        """Take a function of calls.py."""
        self._make: Callable[..., Any] = make

    @overload
    def __get__(self, client: Waits, owner: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaits, owner: object = None) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: object = None) -> Any:
        """Return the method of this client; of the class, the function that makes its request."""
        if client is None:
            return self._make

        @functools.wraps(self._make)
        def method(*arguments: Any, **named: Any) -> Any:
            return client.send(self._make(*arguments, **named))

        return method


class Each(Generic[P, T]):
    """A call of a list as an iterator over the items of all pages, which are asked for as they are needed."""

    def __init__(self, make: Callable[P, Call[Page[T]]]) -> None:
        """Take a function of calls.py."""
        self._make: Callable[..., Any] = make

    @overload
    def __get__(self, client: Waits, owner: object = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Awaits, owner: object = None) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: object = None) -> Any:
        """Return the method of this client; of the class, the function that makes a page's request."""
        if client is None:
            return self._make

        @functools.wraps(self._make)
        def method(*arguments: Any, **named: Any) -> Any:
            first = named.pop("cursor", None)
            return client.each(lambda cursor: self._make(*arguments, cursor=cursor, **named), first)

        return method
