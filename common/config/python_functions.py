"""The `functions` section of the pipeline file: functions in Python that rules call as they call Spark's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.functional_validators import AfterValidator

from cutline.common.config.faults import Strict, fault
from cutline.common.shape import Function

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_CALL = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def _plain_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise fault(f"has a function {name!r}", "name it by lower case letters, digits and _, at most 63")
    return name


def _place(call: str) -> str:
    if not _CALL.fullmatch(call):
        raise fault(f"must be a module and a function in it, as in shop_functions:normal_phone, not {call!r}")
    return call


def _some_type(kind: str) -> str:
    if not kind.strip():
        raise fault("is empty", "write a type of Spark SQL, as in string, bigint or decimal(10, 2)")
    return kind.strip()


class FunctionConfig(Strict):
    """A function of a Python module: it gets an Arrow array an argument, and returns one with a value for each row."""

    call: Annotated[str, AfterValidator(_place)] = Field(
        description="where it is, as module:function; the Spark writer must be able to import the module"
    )
    type: Annotated[str, AfterValidator(_some_type)] = Field(
        description="the type of its values in Spark SQL: string, bigint, decimal(10, 2), timestamp"
    )
    version: int = Field(
        default=1,
        ge=1,
        exclude_if=lambda version: version == 1,
        description="raise it when the function's code changes, and the tables whose rules call it are read again",
    )


Functions = dict[Annotated[str, AfterValidator(_plain_name)], FunctionConfig]


def functions_of(sections: Mapping[str, FunctionConfig]) -> tuple[Function, ...]:
    """The functions as a table's shape has them, by name."""
    return tuple(
        Function(name=name, call=each.call, type=each.type, version=each.version)
        for name, each in sorted(sections.items())
    )
