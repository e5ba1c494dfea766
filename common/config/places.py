"""Where in a pipeline file something is that is known by its place in the definition, as `table_options[2].where`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from cutline.common.config.faults import location

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def in_file(file: Path, place: str) -> str:
    """The file, line and column of a place, or of its nearest parent in the file: `shop.yaml:12:5`. The file was read
    well before; if it can't be read any more, its name alone."""
    loc = tuple(int(number) if number else name for number, name in _PART.findall(place))
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return str(file)
    if root is None:
        return str(file)
    line, column = location(root, loc)
    return f"{file}:{line}:{column}"
