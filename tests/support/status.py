"""A pipeline's status of the parts that Redis has, in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cutline.common.form import read_each, text
from cutline.common.status.pipeline_status import ENUMERATOR, PipelineStatus, TableStatus


def status_of(parts: Mapping[str, Any]) -> PipelineStatus:
    """The status of these parts, by name: plain JSON, or the values that are written. The tables, which Redis has
    apart, stand in the enumerator's part."""
    plain = {name: json.loads(text(part)) for name, part in parts.items()}
    tables = plain.get(ENUMERATOR, {}).pop("tables", {})
    return PipelineStatus.put_together(plain, read_each(TableStatus, tables, {}))
