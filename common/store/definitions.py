"""The versions of a pipeline's definition, in files of the store.

Version 1 is `pipeline.json`, with which a life (lives.py) is defined; the later ones are
`definitions/{version:010d}.json`, each put if absent by a leader that carries out a command. No version is ever changed
or removed.

The standing orders (commands.py) say which version is in force, and each version names the one that it changed, its
`base`: these are the pipeline's versions. A file that is not among them is of a command that failed, or of a leader
that was deposed meanwhile: it is no version, and its number is not given again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from cutline.common.errors import ConfigError
from cutline.common.store import bodies
from cutline.common.store.envelope import canonical, sealed
from cutline.common.store.lives import DEFINED, Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionVersion:
    """One version: made at `at` (seconds since 1970) for the person `by`, who commanded it (number `command`), in the
    place of the version `base`.

    Version 1 has none of these: the first start of the pipeline made it.
    """

    version: int
    by: str | None = None
    at: float | None = None
    command: int | None = None
    note: str | None = None
    base: int | None = None


class Definitions:
    """The definition of one pipeline. All methods block; they raise Unavailable if the store does not answer."""

    def __init__(self, folder: Folder) -> None:
        """Call `PipelineStore.definitions` instead."""
        self._folder = folder

    def define(self, definition: Mapping[str, Any], *, in_force: int) -> bool:
        """Put version 1 if absent; True if it is new, False if the version in force has the same content already.

        Raises ConfigError if the name is in use with another content.
        """
        known = self.get(in_force)
        if known is None:
            if self._folder.create(self._path(1), sealed(definition)):
                return True
            known = self.get(in_force) or {}
        if known != json.loads(canonical(definition)):
            keys = sorted(key for key in {*known, *definition} if known.get(key) != definition.get(key))
            raise ConfigError(
                f"the name {self._folder.name!r} is in use in this store with another {', '.join(keys)} (version"
                f" {in_force} of its definition, {self._folder.location(self._path(in_force))})",
                "apply the change with `cutline define --replace` or `cutline pipeline replace`, or choose another"
                " name or another store",
            )
        return False

    def newest(self) -> int:
        """Return the highest number that is taken, 0 without a definition: the next version is above it."""
        return max(self._numbers(), default=int(self._folder.exists(self._path(1))))

    def above(self, version: int) -> list[DefinitionVersion]:
        """Return what was put after a version, in order, whether it came into force or not."""
        found = (self.about(number) for number in self._numbers() if number > version)
        return [version for version in found if version is not None]

    def get(self, version: int) -> dict[str, Any] | None:
        """Return the content of a version, None if there is none."""
        body = self._get(version)
        return body if body is None or version == 1 else cast(dict[str, Any], body["definition"])

    def put(
        self,
        version: int,
        definition: Mapping[str, Any],
        *,
        by: str,
        at: float,
        command: int,
        note: str | None = None,
        base: int | None = None,
    ) -> bool:
        """Put a version after the first, which changes `base` (by default the number before it), if absent; durable on
        return. False if there is one of this number."""
        body = {
            "version": version,
            "by": by,
            "at": at,
            "command": command,
            "note": note,
            "definition": dict(definition),
            **({} if base in (None, version - 1) else {"base": base}),
        }
        return self._folder.create(self._path(version), sealed(body))

    def about(self, version: int) -> DefinitionVersion | None:
        """Return who made a version, and when; None if there is none."""
        body = self._get(version)
        if body is None or version == 1:
            return None if body is None else DefinitionVersion(version=1)
        known = {name: body[name] for name in ("version", "by", "at", "command", "note")}
        return DefinitionVersion(**known, base=body.get("base", version - 1))

    def versions(self, in_force: int) -> list[DefinitionVersion]:
        """Return the version in force and those that it came from, oldest first. Reads each of them."""
        found: list[DefinitionVersion] = []
        version: int | None = in_force
        while version and (about := self.about(version)) is not None:
            found.append(about)
            version = about.base
        return found[::-1]

    def _numbers(self) -> list[int]:
        return bodies.numbers(self._folder, "definitions")

    def _path(self, version: int) -> str:
        return DEFINED if version == 1 else bodies.numbered("definitions", version)

    def _get(self, version: int) -> dict[str, Any] | None:
        return bodies.get(self._folder, self._path(version))
