"""The versions of a pipeline's definition, in files of the store.

Version 1 is `pipeline.json`, with which a life (lives.py) is defined; the later ones are
`definitions/{version:010d}.json`, each put if absent by a leader that carries out a command. No version is ever changed
or removed. The standing orders (commands.py) say which version is in force.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from cutline.common.errors import ConfigError
from cutline.common.store.envelope import canonical, opened, sealed
from cutline.common.store.lives import DEFINED, Folder

_NUMBERED = re.compile(r"(\d{10})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionVersion:
    """One version: made at `at` (seconds since 1970) for the person `by`, who commanded it (number `command`).

    Version 1 has none of these: the first start of the pipeline made it.
    """

    version: int
    by: str | None = None
    at: float | None = None
    command: int | None = None
    note: str | None = None


class Definitions:
    """The definition of one pipeline. All methods block; they raise Unavailable if the store does not answer."""

    def __init__(self, folder: Folder) -> None:
        """Call `PipelineStore.definitions` instead."""
        self._folder = folder

    def define(self, definition: Mapping[str, Any]) -> bool:
        """Put version 1 if absent; True if it is new, False if the newest version has the same content already.

        Raises ConfigError if the name is in use with another content.
        """
        known = self.get()
        if known is None:
            if self._folder.create(self._path(1), sealed(definition)):
                return True
            known = self.get() or {}
        if known != json.loads(canonical(definition)):
            keys = sorted(key for key in {*known, *definition} if known.get(key) != definition.get(key))
            version = self.newest()
            raise ConfigError(
                f"the name {self._folder.name!r} is in use in this store with another {', '.join(keys)} (version"
                f" {version} of its definition, {self._folder.location(self._path(version))}); apply the change with"
                " `cutline pipeline replace`, or choose another name or another store"
            )
        return False

    def newest(self) -> int:
        """Return the number of the newest version, 0 without a definition."""
        if numbers := self._numbers():
            return numbers[-1]
        return int(self._folder.exists(self._path(1)))

    def get(self, version: int | None = None) -> dict[str, Any] | None:
        """Return the content of a version, of the newest one by default; None if there is none."""
        if version is None:
            version = max(self._numbers(), default=1)
        body = self._get(version)
        return body if body is None or version == 1 else cast(dict[str, Any], body["definition"])

    def put(
        self, version: int, definition: Mapping[str, Any], *, by: str, at: float, command: int, note: str | None = None
    ) -> bool:
        """Put a version after the first if absent, durable on return; False if there is one of this number."""
        body = {
            "version": version,
            "by": by,
            "at": at,
            "command": command,
            "note": note,
            "definition": dict(definition),
        }
        return self._folder.create(self._path(version), sealed(body))

    def about(self, version: int) -> DefinitionVersion | None:
        """Return who made a version, and when; None if there is none."""
        body = self._get(version)
        if body is None or version == 1:
            return None if body is None else DefinitionVersion(version=1)
        return DefinitionVersion(**{name: body[name] for name in ("version", "by", "at", "command", "note")})

    def versions(self) -> list[DefinitionVersion]:
        """Return all versions, oldest first. Reads each of them."""
        found = (self.about(version) for version in (1, *self._numbers()))
        return [version for version in found if version is not None]

    def _numbers(self) -> list[int]:
        names = self._folder.names("definitions")
        return sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))

    def _path(self, version: int) -> str:
        return DEFINED if version == 1 else f"definitions/{version:010d}.json"

    def _get(self, version: int) -> dict[str, Any] | None:
        path = self._path(version)
        data = self._folder.read(path)
        return None if data is None else opened(data, self._folder.location(path))
