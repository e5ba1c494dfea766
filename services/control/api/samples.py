"""Examples for the API's description, made of the examples of single fields in the schemas (pure).

A field that may be null and has no example is null, since that is what it mostly is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOMENT = 1795530300.5
_TIMES = ("at", "as_of", "since", "source_time")
_NAMED = {"name": "shop", "host": "db", "user": "cutline", "table": "shop.orders", "tables": "shop.*"}
_PLAIN = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}


def sample(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """Return a value of a JSON schema whose references are names in `schemas`; `name` is that of the field."""
    if "$ref" in schema:
        return sample(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    for key in ("example", "const", "default"):
        if key in schema and (key != "default" or "examples" not in schema):
            return schema[key]
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        if {"type": "null"} in choices and name:
            return None
        return sample(choices[0], schemas, name)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        fields = schema.get("properties") or {}
        return {field: sample(each, schemas, field) for field, each in fields.items()}
    if kind == "array":
        return [sample(schema.get("items") or {}, schemas)]
    if kind == "number" and (name in _TIMES or name.endswith("_at")):
        return MOMENT
    if kind == "string" and name in _NAMED:
        return _NAMED[name]
    return _PLAIN.get(kind or "")
