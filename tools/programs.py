"""Finds the installed programs that tests and tools run; an error for a missing one names its Debian package.

The Debian package of each program stands only in the table `PROGRAMS` of the Makefile, because `make` needs it before
any Python is installed.
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
    """No package of this Debian release has the program, so `make setup` could not install it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the target or release that needs the program, and the Debian packages that have it."""

    needed_by: str
    packages: tuple[str, ...]


@cache
def table() -> dict[str, Row]:
    """The table, by the program's name."""
    found = re.search(r"^define PROGRAMS\n(.*?)^endef$", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    rows = [line.split() for line in found[1].splitlines()]
    return {name: Row(needed_by, tuple(packages)) for needed_by, name, *packages in rows}


def search_path() -> str:
    """PATH with the folders of system programs, which an ordinary user's PATH lacks."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str) -> str:
    """The full path of a program of the table; Missing if it is not installed, KeyError if the table lacks it."""
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
    """Whether this release of Debian has a package with the program, as far as the table says."""
    needed_by = table()[name].needed_by
    return needed_by not in RELEASES or needed_by == _release()


def _release() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:  # a system without os-release
        return ""
