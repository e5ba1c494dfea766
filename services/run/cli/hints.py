"""What the API advises, in the words of the command line: a call that it names becomes a command (pure)."""

from __future__ import annotations

import re

_OF_PIPELINE = r"(?:/v1/pipelines/([\w-]+)|\.\.\.)"
_END = r"(?![/\w])"
_CALLS = tuple(
    (re.compile(pattern), command)
    for pattern, command in (
        (rf"GET /v1/pipelines{_END}", "cutline pipeline list"),
        (rf"PUT {_OF_PIPELINE}{_END}", "cutline pipeline replace {}"),
        (rf"GET {_OF_PIPELINE}/versions{_END}", "cutline pipeline versions {}"),
        (rf"GET {_OF_PIPELINE}/tables{_END}", "cutline table list {}"),
        (rf"GET {_OF_PIPELINE}/checkpoints{_END}", "cutline checkpoint list {}"),
        (rf"GET {_OF_PIPELINE}/savepoints{_END}", "cutline savepoint list {}"),
        (rf"GET {_OF_PIPELINE}/cuts{_END}", "cutline cuts {}"),
        (rf"GET {_OF_PIPELINE}/conditions{_END}", "cutline conditions {}"),
        (rf"GET {_OF_PIPELINE}/commands{_END}", "cutline command list {}"),
        (rf"GET {_OF_PIPELINE}/commands/(\d+)(?:\?wait=\w+)?", "cutline command wait {} {}"),
        (rf"GET /v1/services{_END}", "cutline services"),
        (rf"GET /v1/conditions{_END}", "cutline conditions"),
        (rf"GET /v1/tokens{_END}", "cutline token list"),
        (rf"POST /v1/tokens{_END}", "cutline token create"),
        (r"GET /openapi\.json lists the paths", "check the address in --url or CUTLINE_API_URL"),
        (r"GET /openapi\.json describes it", "`cutline schema` describes a definition"),
    )
)


def in_commands(sentence: str) -> str:
    """The sentence with the calls of the API that it names replaced by commands of `cutline`."""
    for pattern, command in _CALLS:
        sentence = pattern.sub(lambda found, command=command: _typed(command, found), sentence)  # type: ignore[misc]
    return sentence


def _typed(command: str, found: re.Match[str]) -> str:
    text = command.format(*(group or "PIPELINE" for group in found.groups()))
    return f"`{text}`" if text.startswith("cutline ") else text
