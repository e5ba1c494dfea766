"""The faults of a pipeline file as causes with their line and column (from pydantic's errors and YAML's nodes)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ConfigDict
from pydantic_core import ErrorDetails, PydanticCustomError

from cutline.common.causes import Cause, Code


class Strict(BaseModel):
    """A part of the pipeline file: no unknown keys, no silent conversions, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def fault(message: str, remedy: str = "") -> PydanticCustomError:
    """The error that a validator raises; `message` follows the name of the key ("must be ...")."""
    return PydanticCustomError("cutline", "{message}", {"message": message, "remedy": remedy})


def repeated_keys(node: yaml.Node) -> Iterator[tuple[int, int, Cause]]:
    """Yield (line, column, cause) for each key that a mapping has more than once; YAML silently takes the last."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield (
                    key.start_mark.line + 1,
                    key.start_mark.column + 1,
                    Cause(Code.SYNTAX, f"the key {key.value!r} is given twice", "keep one"),
                )
            seen.add(key.value)
            yield from repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from repeated_keys(value)


def location(root: yaml.Node, loc: tuple[int | str, ...]) -> tuple[int, int]:
    """Return line and column (from 1) of the key or value at `loc`, or of its nearest parent in the file."""
    mark, node = root.start_mark, root
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if pair is None:
                break
            mark, node = pair[0].start_mark, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            mark = node.start_mark
        else:
            break
    return mark.line + 1, mark.column + 1


_LONGEST = 200
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "datetime_type": "a time",
}


def cause_of(detail: ErrorDetails, model: type[BaseModel]) -> Cause:
    """The cause for an error of pydantic's validation of `model`; shows the value only where it can't be a secret."""
    loc = detail["loc"]
    name = ".".join(str(part) for part in loc) or "the pipeline"
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(known)}"
        return Cause(Code.CONFIGURATION, f"unknown key {name!r}", hint)
    if kind == "missing":
        return Cause(Code.CONFIGURATION, f"the key {name!r} is missing", "add it")
    if kind == "cutline":
        return Cause(Code.CONFIGURATION, f"{name} {context['message']}", context["remedy"])
    return Cause(Code.CONFIGURATION, f"{name} {_expectation(detail, name)}", "correct it")


def _expectation(detail: ErrorDetails, name: str) -> str:
    """What the value of `name` must be, and is not."""
    kind, context = detail["type"], detail.get("ctx", {})
    if "password" in name:
        return "must be text, the name of a variable or a file"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {_shown(detail['input'])}"
    if kind == "literal_error":
        return f"must be {context.get('expected')}, not {_shown(detail['input'])}"
    if kind == "invalid_key":
        return "must have a string as its key"
    message = detail["msg"].removeprefix("Input should ").removeprefix("Value error, ")
    return f"must {message}, not {_shown(detail['input'])}"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    shown = "null" if value is None else repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys that the mapping at `loc` of a file of this model may have."""
    for part in loc:
        if isinstance(part, int):
            continue  # an item of a list, whose model is known already
        inner = model_of(model.model_fields[str(part)].annotation) if str(part) in model.model_fields else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside a field's type (`Point | None` -> Point), or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := model_of(arg)) is not None), None)
