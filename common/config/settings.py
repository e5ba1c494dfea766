"""The list of all settings, of the environment and of the pipeline file, as the table in docs/settings.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from cutline.common.config.environment import Environment
from cutline.common.config.faults import model_of
from cutline.common.config.pipeline import PipelineConfig, Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table of settings."""

    where: Literal["environment", "pipeline.yaml"]
    name: str
    type: str
    default: str
    meaning: str


def settings() -> tuple[Setting, ...]:
    """List every setting: the environment's, then the pipeline file's with dotted names."""
    environment = (
        Setting(
            where="environment",
            name=setting.metadata["name"],
            type={"int": "int", "bool": "true or false"}.get(str(setting.type), "text"),
            default="unset" if setting.default in (None, "") else str(setting.default).lower()
            if setting.type == "bool"
            else str(setting.default),
            meaning=setting.metadata["meaning"],
        )
        for setting in dataclasses.fields(Environment)
    )
    return (*environment, *_yaml_settings(PipelineConfig, ""))


def _yaml_settings(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, info in model.model_fields.items():
        inner = model_of(info.annotation)
        if inner is not None and inner is not Point:
            yield from _yaml_settings(inner, f"{prefix}{name}.")
            continue
        default = info.get_default(call_default_factory=True) if not info.is_required() else None
        shown = (
            "required"
            if info.is_required()
            else "null"
            if default is None
            else "{}"
            if default == {}
            else "[]"
            if default == ()
            else str(default).lower()
            if isinstance(default, bool)
            else str(default)
        )
        yield Setting(
            where="pipeline.yaml",
            name=f"{prefix}{name}",
            type=_type_name(info.annotation),
            default=shown,
            meaning=info.description or "",
        )


def _type_name(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if annotation is Point:
        return "place"
    arguments = get_args(annotation)
    text = str(annotation)
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, arguments))
    if text.startswith("tuple"):
        return "list of text"
    if text.startswith("dict"):
        return "mapping"
    if arguments:
        return " or ".join(map(_type_name, arguments))
    return {"str": "text", "int": "int", "float": "number", "bool": "true or false"}[annotation.__name__]


def settings_table() -> str:
    """Render `settings()` as the Markdown table of docs/settings.md."""
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    rows += [f"| `{row.name}` | {row.type} | `{row.default}` | {row.meaning} |" for row in settings()]
    return "\n".join(rows) + "\n"
