"""The decoders as they are installed, and the same sources interpreted, for tests that compare the two."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cutline.services.sources.mysql.damage import PartialImage

PACKAGE = "cutline.services.sources.mysql.decode"
MODULES = ("arena", "decimals", "json_text", "row_plan", "values", "result", "row_event")
"""Those that are compiled, in an order in which each imports only those before it."""


@dataclass(frozen=True, kw_only=True)
class Decoders:
    """One way of running: its modules, and the classes that tests use."""

    compiled: bool
    json_text: ModuleType
    values: ModuleType
    ResultDecoder: Any
    EventDecoder: Any
    Place: Any
    TableMap: Any
    PartialImage: type[Exception] = PartialImage

    def __str__(self) -> str:
        return "compiled" if self.compiled else "interpreted"


def _decoders(modules: dict[str, ModuleType]) -> Decoders:
    return Decoders(
        compiled=modules["row_event"].COMPILED,
        json_text=modules["json_text"],
        values=modules["values"],
        ResultDecoder=modules["result"].ResultDecoder,
        EventDecoder=modules["row_event"].EventDecoder,
        Place=modules["row_event"].Place,
        TableMap=modules["row_plan"].TableMap,
    )


def _interpreted(installed: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """The sources run by the interpreter. While they import each other they stand in sys.modules by their names."""
    modules = {}
    try:
        for name, other in installed.items():
            spec = importlib.util.spec_from_file_location(
                other.__name__, Path(other.__file__ or "").parent / f"{name}.py"
            )
            assert spec is not None
            assert spec.loader is not None
            modules[name] = sys.modules[other.__name__] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[name])
    finally:
        sys.modules.update({other.__name__: other for other in installed.values()})
    return modules


_installed = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in MODULES}
INSTALLED = _decoders(_installed)
INTERPRETED = _decoders(_interpreted(_installed))
BOTH = (INTERPRETED, INSTALLED) if INSTALLED.compiled else (INTERPRETED,)
