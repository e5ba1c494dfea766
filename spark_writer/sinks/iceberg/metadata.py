"""A table's metadata as Python reads it: the facts of Iceberg's TableMetadata that rules ask for, read in one call.

The methods have the names of Iceberg's, so whoever reads metadata need not care where a fact comes from. Whatever is
not among the facts, such as an old snapshot, is asked of the JVM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Ref:
    """A branch or a tag."""

    def __init__(self, snapshot_id: int, branch: bool) -> None:
        self._snapshot_id, self._branch = snapshot_id, branch

    def snapshotId(self) -> int:
        """The snapshot that it names."""
        return self._snapshot_id

    def isBranch(self) -> bool:
        """Whether it is a branch."""
        return self._branch

    def isTag(self) -> bool:
        """Whether it is a tag."""
        return not self._branch


class Head:
    """The snapshot at the head of a branch."""

    def __init__(self, snapshot_id: int, facts: Mapping[str, Any]) -> None:
        self._snapshot_id, self._facts = snapshot_id, facts

    def snapshotId(self) -> int:
        """Its id."""
        return self._snapshot_id

    def parentId(self) -> int | None:
        """The snapshot before it."""
        found: int | None = self._facts["parent-id"]
        return found

    def schemaId(self) -> int:
        """The columns that it was made with."""
        return int(self._facts["schema-id"])

    def timestampMillis(self) -> int:
        """When it was made."""
        return int(self._facts["timestamp-ms"])

    def operation(self) -> str:
        """Iceberg's operation."""
        return str(self._facts["operation"])

    def summary(self) -> dict[str, str]:
        """Its summary."""
        found: dict[str, str] = self._facts["summary"]
        return found


class Metadata:
    """One state of a table's metadata. Its facts stay; the rest must be asked for before the table is read again."""

    def __init__(self, calls: Any, facts: str) -> None:
        """Take a table's `TableCalls`, and what its last reading has returned."""
        self._calls = calls
        self._facts: dict[str, Any] = json.loads(facts)
        self._java: Any = None

    @property
    def java(self) -> Any:
        """Iceberg's own object."""
        if self._java is None:
            self._java = self._calls.metadata(self._facts["reading"])
        return self._java

    def __getattr__(self, name: str) -> Any:
        return getattr(self.java, name)

    def uuid(self) -> str:
        """The table's id in Iceberg."""
        return str(self._facts["uuid"])

    def location(self) -> str:
        """The table's folder."""
        return str(self._facts["location"])

    def metadataFileLocation(self) -> str:
        """The file of this metadata."""
        return str(self._facts["file"])

    def formatVersion(self) -> int:
        """The table's format version."""
        return int(self._facts["format-version"])

    def lastColumnId(self) -> int:
        """The greatest field id in use."""
        return int(self._facts["last-column-id"])

    def currentSchemaId(self) -> int:
        """The columns that readers get."""
        return int(self._facts["schema-id"])

    def defaultSpecId(self) -> int:
        """The partition spec of new files."""
        return int(self._facts["spec-id"])

    def defaultSortOrderId(self) -> int:
        """The sort order of new files."""
        return int(self._facts["sort-order-id"])

    def spec_count(self) -> int:
        """How many partition specs the table has, or had."""
        return int(self._facts["specs"])

    def previous_file_count(self) -> int:
        """How many earlier metadata files it lists."""
        return int(self._facts["previous-files"])

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        found: dict[str, str] = self._facts["properties"]
        return found

    def property(self, name: str, default: str | None) -> Any:
        """One of the properties."""
        return self.properties().get(name, default)

    def refs(self) -> dict[str, Ref]:
        """All branches and tags."""
        return {name: Ref(*described) for name, described in self._facts["refs"].items()}

    def ref(self, name: str) -> Ref | None:
        """A branch or tag."""
        described = self._facts["refs"].get(name)
        return None if described is None else Ref(*described)

    def snapshot(self, snapshot_id: int) -> Any:
        """A snapshot, None if it has expired."""
        head = self._facts["heads"].get(str(snapshot_id))
        return self.java.snapshot(snapshot_id) if head is None else Head(snapshot_id, head)
