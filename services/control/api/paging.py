"""Pages of a list: `?limit=&cursor=`, and a header `Link: <...>; rel="next"` while there is more.

A cursor holds the key of the last item of a page, so a page stays right while items come and go.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request, Response

from cutline.services.control.api.problems import Refused

LONGEST = 10_000
T = TypeVar("T")
Key = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The part of a list that a request asks for: `limit` items (None: all) after the item of the key `after`."""

    limit: int | None
    after: Key | None
    _request: Request
    _response: Response

    def take(self, items: Iterable[T], key: Callable[[T], Key], *, newest_first: bool = False) -> list[T]:
        """Return this page of `items`, which are sorted by `key` (descending if `newest_first`), and set the header
        Link."""
        after = self.after
        if after is not None:
            # Keys of one list are of one type; a cursor of another list is refused below.
            try:
                items = [item for item in items if (key(item) < after if newest_first else key(item) > after)]  # type: ignore[operator]
            except TypeError:
                raise foreign() from None
        found = list(items)
        if self.limit is None or len(found) <= self.limit:
            return found
        page = found[: self.limit]
        self.link(key(page[-1]))
        return page

    def link(self, last: Key) -> None:
        """Set the header Link, for the page after the item of the key `last`."""
        cursor = base64.urlsafe_b64encode(json.dumps(last).encode()).decode().rstrip("=")
        url = self._request.url.include_query_params(cursor=cursor)
        self._response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'


def several(text: str, known: Collection[str], noun: str) -> set[str]:
    """The items of a filter, with commas between. Raises Refused (422) for one that is not known."""
    found = set(text.split(","))
    if unknown := found.difference(known):
        raise Refused(422, f"there is no {noun} {min(unknown)!r}", f"use one or more of {', '.join(known)}")
    return found


def foreign() -> Refused:
    """The refusal of a cursor that another list gave, or none."""
    return Refused(422, "the cursor is not one of this list", "take it from the header Link of the page before")


def _page(limit: int | None, cursor: str | None, request: Request, response: Response) -> Page:
    after: Key | None = None
    if cursor is not None:
        try:
            after = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        except (ValueError, RecursionError):
            raise foreign() from None
        if isinstance(after, bool) or not isinstance(after, str | int):
            raise foreign()
    return Page(limit=limit, after=after, _request=request, _response=response)


_CURSOR = Query(max_length=2000, description="the cursor of the last page's header Link")


async def everything(
    request: Request,
    response: Response,
    limit: Annotated[
        int | None, Query(ge=1, le=LONGEST, description="most items of a page; unset: all", examples=[50])
    ] = None,
    cursor: Annotated[str | None, _CURSOR] = None,
) -> Page:
    """A page of a list that comes whole unless the request has a limit."""
    return _page(limit, cursor, request, response)


async def newest(
    request: Request,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=1000, description="most items of a page", examples=[50])] = 100,
    cursor: Annotated[str | None, _CURSOR] = None,
) -> Page:
    """A page of a list that grows without end, newest first."""
    return _page(limit, cursor, request, response)


WholeList = Annotated[Page, Depends(everything)]
Newest = Annotated[Page, Depends(newest)]
