"""What OpenLineage 2-0-2 asks of a RunEvent, and of the facets that Cutline sends, as a JSON Schema (2020-12).

Written by the specification: OpenLineage.json, JobTypeJobFacet.json (2-0-3), DatasetVersionDatasetFacet.json (1-0-1).
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs

SPEC = "https://openlineage.io/spec"
TEXT = {"type": "string"}
URI = {"type": "string", "format": "uri"}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _facets(kind: str, **known: dict[str, Any]) -> dict[str, Any]:
    """Facets of this kind; all have the base's fields, and the `known` ones these too."""
    base = {"_producer": URI, "_schemaURL": URI}
    named = {name: _object({**base, **facet}) for name, facet in known.items()}
    deleted = {} if kind == "run" else {"_deleted": {"type": "boolean"}}
    return {"type": "object", "properties": named, "additionalProperties": _object(base, deleted)}


def _named(place: str, url: str) -> dict[str, Any]:
    return {"const": f"{SPEC}/{place}#/$defs/{url}"}


_DATASET_FACETS = _facets(
    "dataset",
    version={
        "_schemaURL": _named("facets/1-0-1/DatasetVersionDatasetFacet.json", "DatasetVersionDatasetFacet"),
        "datasetVersion": TEXT,
    },
)
_JOB_FACETS = _facets(
    "job",
    jobType={
        "_schemaURL": _named("facets/2-0-3/JobTypeJobFacet.json", "JobTypeJobFacet"),
        "processingType": TEXT,
        "integration": TEXT,
        "jobType": TEXT,
    },
)
_DATASETS = {"type": "array", "items": _object({"namespace": TEXT, "name": TEXT}, {"facets": _DATASET_FACETS})}
RUN_EVENT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        {
            "eventTime": {"type": "string", "format": "date-time"},
            "producer": URI,
            "schemaURL": _named("2-0-2/OpenLineage.json", "RunEvent"),
            "run": _object({"runId": {"type": "string", "format": "uuid"}}, {"facets": _facets("run")}),
            "job": _object({"namespace": TEXT, "name": TEXT}, {"facets": _JOB_FACETS}),
        },
        {
            "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
            "inputs": _DATASETS,
            "outputs": _DATASETS,
        },
    ),
}
_VALIDATOR = jsonschema_rs.Draft202012Validator(RUN_EVENT, validate_formats=True)


def faults(event: Any) -> list[str]:
    """What the specification forbids in this event."""
    return [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in _VALIDATOR.iter_errors(event)]
