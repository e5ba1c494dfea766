"""CUTLINE_SECRETS, CUTLINE_FUNCTIONS: which environment variables, files and Python modules a request may name.

Pipeline files of `cutline run` and `cutline define` may name all: who writes them has the machine's files anyway. A
request comes from afar, and must not learn by it what this machine keeps.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError

BY_DEFAULT = ("*_PASSWORD", "*_MASK_KEY")
MODULES = ("*_functions",)
LONGEST_BYTES = 1 << 16
_SETTINGS = frozenset(setting.metadata["name"] for setting in dataclasses.fields(Environment))
_OWN = "cutline_".upper()
"""How the names of Cutline's variables begin; the chart makes some that are no settings."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What requests may name: environment variables by patterns, the files in folders, Python modules by patterns."""

    patterns: tuple[str, ...] = BY_DEFAULT
    folders: tuple[str, ...] = ()
    modules: tuple[str, ...] = MODULES

    @classmethod
    def parsed(cls, text: str | None, modules: str | None = None) -> Secrets:
        """Read the settings: items between commas. In the first one an absolute path is a folder; all else the
        beginning of a variable's name, or a pattern with `*`; in the second one each is a module, or a pattern. `-`
        alone allows nothing. ConfigError for a relative path."""
        named = [] if modules is None else [each.strip() for each in modules.split(",")]
        allowed = MODULES if modules is None else tuple(each for each in named if each not in ("", "-"))
        if text is None:
            return cls(modules=allowed)
        items = [item.strip() for item in text.split(",") if item.strip() not in ("", "-")]
        for item in items:
            if "/" in item and not item.startswith("/"):
                raise ConfigError(f"CUTLINE_SECRETS has the relative path {item!r}", "write an absolute path")
            if item.startswith("/") and os.path.realpath(item) in ("/", "/proc", "/sys", "/dev"):
                raise ConfigError(f"CUTLINE_SECRETS has {item!r}, below which is far more", "name a folder of secrets")
        return cls(
            patterns=tuple(item if "*" in item else f"{item}*" for item in items if not item.startswith("/")),
            folders=tuple(item for item in items if item.startswith("/")),
            modules=allowed,
        )

    def variable(self, name: str) -> bool:
        """Whether a request may name this environment variable, and it is there. Cutline's own settings are never a
        source's secret."""
        if name in _SETTINGS or name not in os.environ:
            return False
        return any(
            fnmatchcase(name, pattern) and (pattern.startswith(_OWN) or not name.startswith(_OWN))
            for pattern in self.patterns
        )

    def module(self, name: str) -> bool:
        """Whether a request may name this Python module: a `*` of a pattern is none of its dots, since each package on
        the way is imported too."""
        return any(
            fnmatchcase(name, pattern) and name.count(".") == pattern.count(".") for pattern in self.modules
        )

    def file(self, path: str) -> bool:
        """Whether a request may name this file: a small regular one that is there, and inside of a folder also after
        each symbolic link on the way."""
        try:
            found = os.path.realpath(path)
            about = os.stat(found)
        except (OSError, ValueError):  # ValueError: a NUL character
            return False
        if not any(found.startswith(os.path.join(os.path.realpath(folder), "")) for folder in self.folders):
            return False
        return stat.S_ISREG(about.st_mode) and about.st_size <= LONGEST_BYTES and os.access(found, os.R_OK)


