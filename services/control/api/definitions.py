"""Definitions as requests bring them: the content of pipeline.yaml as JSON or YAML, whole or as a merge patch.

What the API shows of a definition has `***` in the place of secrets. A definition that comes back with them keeps the
secrets that it had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from fastapi import Request
from pydantic import ValidationError

from cutline.common.causes import Cause, Code
from cutline.common.config.faults import cause_of
from cutline.common.config.pipeline import FIXED, PipelineConfig, parse, shown
from cutline.common.config.secrets import Secrets
from cutline.common.errors import ConfigError
from cutline.common.threads import Threads
from cutline.services.control.api.named import function_faults, masking_faults, sink_faults, source_faults
from cutline.services.control.api.problems import MOST_FAULTS, FieldProblem, Refused, refused

YAML = ("application/yaml", "application/x-yaml", "text/yaml")
MERGE_PATCH = "application/merge-patch+json"
WHOLE = ("name", "source", "tables", "sink")
_DEEPEST = 100
_PARSING = Threads("yaml", 2)


def media_type(request: Request) -> str:
    """The type of the body, without its parameters; JSON if none is given."""
    return request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()


async def content_of(request: Request, *, patch: bool = False) -> dict[str, Any]:
    """The request's body as a mapping. Raises Refused: 400 for broken syntax, 415 for another type of body."""
    kind, body = media_type(request), await request.body()
    if kind in YAML:
        return await _PARSING.call(_yaml, body)  # a megabyte takes seconds
    if kind != "application/json" and not (patch and kind == MERGE_PATCH):
        other = MERGE_PATCH if patch else YAML[0]
        raise Refused(415, f"the body is {kind}", f"send application/json or {other}")
    try:
        found = json.loads(body, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON ({error})", "correct its syntax") from error
    return _mapping(found)


def _yaml(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            # Aliases of aliases make gigabytes of a few hundred bytes.
            raise Refused(422, "the body has an alias of YAML (*name)", "write its value out in each place")
        parse_faults = _yaml_faults(text)
        found = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise Refused(400, f"the body is not YAML ({str(error).splitlines()[0]})", "correct its syntax") from error
    if parse_faults:
        raise refused(400, ConfigError.several(parse_faults))
    return _mapping(found)


def _yaml_faults(text: str) -> list[Cause]:
    """The faults of YAML's syntax with line and column; those of its content are found later."""
    try:
        parse(text, where="the body")
    except ConfigError as error:
        return [fault for fault in error.faults if fault.code == Code.SYNTAX]
    return []


def _mapping(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise Refused(422, "the body is no mapping", "send the content of pipeline.yaml, with its keys")
    if _depth(found) > _DEEPEST:
        raise Refused(422, f"the body is nested more than {_DEEPEST} levels deep", "send the content of pipeline.yaml")
    try:
        json.dumps(found, ensure_ascii=False, allow_nan=False, default=str).encode()
    except ValueError as error:
        raise Refused(422, f"the body has a value that JSON can't hold ({error})", "correct that value") from error
    return found


def _depth(value: object) -> int:
    """How many levels a value has, without recursion; it stops counting after the deepest allowed one."""
    level: list[object] = [value]
    for depth in range(_DEEPEST + 2):
        if not level:
            return depth
        level = [
            item
            for parent in level
            if isinstance(parent, dict | list)
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return _DEEPEST + 1


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def checked(content: Mapping[str, Any], *, base: Mapping[str, Any] | None = None) -> PipelineConfig:
    """The pipeline that a body describes. Secrets that it shows as `***` are those of `base`. Raises Refused (422) with
    each fault."""
    content = unmasked("", content, base or {})
    try:
        config = PipelineConfig.model_validate(content)
    except ValidationError as error:
        raise _invalid(error) from error
    faults = [
        FieldProblem(field=field, detail=f"{field} is the relative path {path}", remedy="give an absolute path")
        for field, path in (
            ("sink.warehouse", config.sink.warehouse),
            ("source.password_file", config.source.password_file),
            ("masking.key_file", None if config.masking is None else config.masking.key_file),
        )
        if path is not None and "://" not in path and not path.startswith("/")
    ]
    if faults:
        raise Refused(422, faults[0].detail, faults[0].remedy, errors=faults)
    if config.sink.warehouse.startswith("file://"):
        local = config.sink.warehouse.removeprefix("file://")
        config = config.model_copy(update={"sink": config.sink.model_copy(update={"warehouse": local})})
    return config


def allow(config: PipelineConfig, secrets: Secrets, known: Mapping[str, Any] | None) -> None:
    """Raise Refused (422) with each thing that a request's definition may not name (named.py). `known`: the stored
    definition, or None."""
    before = PipelineConfig.from_definition(known) if known else None
    faults = [
        *source_faults(config.source, secrets, None if before is None else before.source),
        *masking_faults(config.masking, secrets, None if before is None else before.masking),
        *function_faults(config.functions, secrets, {} if before is None else before.functions),
        *sink_faults(config.sink, secrets, None if before is None else before.sink),
    ]
    if faults:
        raise Refused(422, faults[0].detail, faults[0].remedy, errors=faults)


def _invalid(error: ValidationError) -> Refused:
    faults = []
    for detail in error.errors()[:MOST_FAULTS]:
        cause = cause_of(detail, PipelineConfig)
        field = ".".join(str(part) for part in detail["loc"]) or None
        remedy = cause.remedy or "correct it"
        faults.append(FieldProblem(field=field, detail=cause.sentence, remedy=remedy, code=cause.code))
    if len(faults) == 1:
        return Refused(422, faults[0].detail, faults[0].remedy, errors=faults)
    more = f"{error.error_count()} faults; `errors` has the first {MOST_FAULTS}"
    found = f"{len(faults)} faults" if error.error_count() == len(faults) else more
    return Refused(422, f"the definition has {found}", "correct each of `errors`", errors=faults)


def merged(base: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396) applied: null removes a key, a mapping is merged, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def unmasked(name: str, new: Any, base: Any) -> Any:
    """`new` with the values of `base` wherever it has what the API shows of them."""
    if isinstance(new, Mapping):
        known = base if isinstance(base, Mapping) else {}
        return {key: unmasked(key, value, known.get(key)) for key, value in new.items()}
    return base if isinstance(new, str) and isinstance(base, str) and new == shown(name, base) else new


def normal(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A stored definition with the defaults of settings that an older Cutline did not know."""
    return PipelineConfig.from_definition(definition).definition()


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two definitions differ, with the values before and after (None: left out), shown without
    secrets."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*before, *after}):
        left, right = before.get(key), after.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found |= differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found[f"{prefix}{key}"] = (shown(key, left), shown(key, right))
    return found


def immutable(key: str) -> bool:
    """Whether a setting, by its dotted key, can't be changed."""
    return any(key == name or key.startswith(f"{name}.") for name in FIXED)


def refuse_immutable(changed: Mapping[str, Any]) -> None:
    """Raise Refused (409) if one of these dotted keys can't be changed."""
    faults = [
        FieldProblem(field=key, detail=f"{key} can't be changed", remedy="make a new pipeline with this value")
        for key in changed
        if immutable(key)
    ]
    if faults:
        names = ", ".join(str(fault.field) for fault in faults)
        raise Refused(409, f"{names} can't be changed", "make a new pipeline with these values", errors=faults)
