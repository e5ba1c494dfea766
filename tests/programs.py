"""The programs of others that tests and tools run: found on this machine, or missed with the package that has them.

The table `PROGRAMS` in the Makefile is the only place that says which Debian package has a program; `make` needs it
before there is any Python.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAKEFILE = Path(__file__).resolve().parent.parent / "Makefile"
RELEASES = ("bookworm", "trixie")


class Missing(Exception):
    """This machine lacks a program or a server; the message gives the reason and the remedy."""


class Unpackaged(Missing):
    """No package of this Debian has the program, so that `make setup` can't have installed it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: who needs the program, and the Debian packages that bring it."""

    needed_by: str
    packages: tuple[str, ...]


@cache
def table() -> dict[str, Row]:
    """The table by program."""
    found = re.search(r"^define PROGRAMS\n(.*?)^endef$", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    rows = [line.split() for line in found[1].splitlines()]
    return {name: Row(needed_by, tuple(packages)) for needed_by, name, *packages in rows}


def search_path() -> str:
    """PATH with the folders of system programs, which an ordinary user's PATH lacks."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str) -> str:
    """The full path of a program of the table (another name is a KeyError: add it there); Missing if it isn't here."""
    row = table()[name]
    found = shutil.which(name, path=search_path())
    if found is not None:
        return found
    if not row.packages:
        raise Unpackaged(f"no {name} on this machine, and no Debian package has it: install it by hand")
    if not packaged(name):
        raise Unpackaged(f"no {name} on this machine: the package {row.packages[0]} is in Debian {row.needed_by}")
    raise Missing(
        f"no {name} on this machine: install the Debian package {row.packages[0]} (`make setup` as root does)"
    )


def packaged(name: str) -> bool:
    """False if only another release of Debian has a package with the program."""
    needed_by = table()[name].needed_by
    return needed_by not in RELEASES or needed_by == _release()


def _release() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:  # a system without os-release
        return ""
