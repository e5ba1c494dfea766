"""JSON that services of two versions read from each other, as during an upgrade (pure): written as it is, read with
tolerance.

Whoever reads

- ignores what it does not know,
- takes the default where something is missing, or has another form than the field,
- leaves out an entry of a list or a mapping that lacks a field without a default, or whose key has another form.

A dataclass is an object by the names of its fields; a NamedTuple is an array, for what a status has many of, whose last
values may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_PLAIN = (str, int, bool)


class OtherForm(ValueError):
    """A value that has another form than its field."""


def text(value: object) -> str:
    """The JSON of a dataclass that consists of dataclasses, NamedTuples, dicts, tuples and plain values."""
    return json.dumps(value, default=_by_name, separators=(",", ":"))


def read(kind: type[T], body: object) -> T:
    """Make a `kind`, a dataclass, of parsed JSON that any version of Cutline wrote. Raises OtherForm if a field without
    a default is missing, or has another form."""
    return cast(T, _reader(cast(Any, kind))(dict(body) if isinstance(body, Mapping) else {}))


def read_each(kind: type[T], body: Mapping[str, object], known: Mapping[str, tuple[object, T]]) -> Mapping[str, T]:
    """Read each value of a mapping as `read` does. `known` has, by key, values that were read before, each after its
    JSON: an equal one is not made again."""
    convert, found = _reader(cast(Any, kind)), {}
    for key, each in body.items():
        before = known.get(key)
        if before is not None and before[0] == each:
            found[key] = before[1]
            continue
        try:
            found[key] = convert(each)
        except OtherForm:
            continue
    return found


def _by_name(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


@cache
def _reader(hint: Any) -> _Reader:
    """The function that makes a value of this type; it raises OtherForm if the JSON has another form."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda body: body
    if origin in (Union, UnionType):
        (some,) = (_reader(each) for each in arguments if each is not NoneType)
        return lambda body: None if body is None else some(body)
    if origin is Literal:
        return lambda body: body if body in arguments else _refuse(body)
    if origin is tuple:
        return _many(arguments[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[0], arguments[1])
    if hasattr(hint, "from_json"):  # it is tolerant itself
        return lambda body: hint.from_json(body) if isinstance(body, dict) else _refuse(body)
    if is_dataclass(hint):
        return _named(cast(type, hint))
    if issubclass(hint, tuple):
        return _array(hint)
    if issubclass(hint, StrEnum):
        return lambda body: hint(body) if body in tuple(hint) else _refuse(body)
    if hint is float:
        return lambda body: body if type(body) in (int, float) else _refuse(body)
    return lambda body: body if type(body) is hint else _refuse(body)


def _refuse(body: object) -> Any:
    raise OtherForm(f"{body!r:.80}")


def _named(kind: type) -> _Reader:
    hints = get_type_hints(kind)
    known = [(field.name, _reader(hints[field.name]), _has_default(field)) for field in fields(kind) if field.init]

    def convert(body: Any) -> Any:
        if not isinstance(body, dict):
            _refuse(body)
        given = {}
        for name, reader, has_default in known:
            if name in body:
                try:
                    given[name] = reader(body[name])
                    continue
                except OtherForm:
                    pass
            if not has_default:
                _refuse(name)
        return kind(**given)

    return convert


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _array(kind: type) -> _Reader:
    readers = [_reader(hint) for hint in get_type_hints(kind).values()]
    least = len(readers) - len(cast(Any, kind)._field_defaults)

    def convert(body: Any) -> Any:
        if type(body) is not list or len(body) < least:
            _refuse(body)
        return kind(*[reader(each) for reader, each in zip(readers, body)])  # noqa: B905

    return convert


def _many(hint: Any) -> _Reader:
    reader = _reader(hint)
    types = list(get_type_hints(hint).values()) if isinstance(hint, type) and issubclass(hint, tuple) else []

    def convert(body: Any) -> tuple[Any, ...]:
        if not isinstance(body, list):
            _refuse(body)
        if types and _are_rows(types, body):
            return tuple(map(partial(tuple.__new__, hint), body))
        found = []
        for each in body:
            try:
                found.append(reader(each))
            except OtherForm:
                continue
        return tuple(found)

    return convert


def _are_rows(types: Sequence[Any], body: list[Any]) -> bool:
    """Whether these are lists of such values, looked at by columns: a part has tens of thousands, and all are right."""
    if not {list}.issuperset(map(type, body)) or not {len(types)}.issuperset(map(len, body)):
        return False
    return all(map(_are, types, zip(*body)))  # noqa: B905


def _are(hint: Any, column: Sequence[Any]) -> bool:
    if hint in _PLAIN or hint is float:
        return ({int, float} if hint is float else {hint}).issuperset(map(type, column))
    if get_origin(hint) is Mapping and get_args(hint)[0] is str and get_args(hint)[1] in _PLAIN:
        values = chain.from_iterable(map(dict.values, column)) if {dict}.issuperset(map(type, column)) else (None,)
        return {get_args(hint)[1]}.issuperset(map(type, values))
    return False


def _mapping(key: type, hint: Any) -> _Reader:
    reader, plain = _reader(hint), {hint} if key is str and hint in _PLAIN else set()

    def convert(body: Any) -> dict[Any, Any]:
        if not isinstance(body, dict):
            _refuse(body)
        if plain.issuperset(map(type, body.values())):
            return cast(dict[Any, Any], body)  # as it is: there may be many
        found = {}
        for name, each in body.items():
            try:
                found[key(name)] = reader(each)
            except ValueError:  # of the key, or OtherForm
                continue
        return found

    return convert
