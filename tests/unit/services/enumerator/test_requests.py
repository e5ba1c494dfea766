"""The request of a checkpoint is a value, whose form stands in the journal."""

from __future__ import annotations

import pytest

from cutline.services.enumerator.requests import THE_STOP, CommandRequest, Request, request_of


@pytest.mark.parametrize("request_", [THE_STOP, CommandRequest(n=1), CommandRequest(n=1234567890)])
def test_a_request_is_read_from_the_journal_as_it_was_written(request_: Request) -> None:
    assert request_of(request_.text) == request_


@pytest.mark.parametrize("text", [None, "", "command", "command x", "command 7 more", "the stop ", "savepoint-1"])
def test_what_is_no_request_of_ours_is_none(text: str | None) -> None:
    assert request_of(text) is None
