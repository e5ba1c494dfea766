"""Where the secrets of a pipeline file are: each in an environment variable or in a file, never in it itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cutline.common.errors import ConfigError

_LONGEST_BYTES = 1 << 16  # of a secret's file: /dev/zero has no end


def secret_of(
    setting: str, what: str, *, variable: str | None, file: str | None, environ: Mapping[str, str] | None = None
) -> str | None:
    """The secret, None if neither a variable nor a file is named; ConfigError if the one that is named is missing.

    `setting` is how the names of both settings begin, `what` names the secret. Call it where the secret is used and
    store it nowhere: it belongs in no log, status or store.
    """
    if variable is not None:
        value = (os.environ if environ is None else environ).get(variable)
        if value is None:
            raise ConfigError(
                f"the environment variable {variable}, named by {setting}_env, is not set", "export it"
            )
        return value
    if file is None:
        return None
    try:
        with open(file, "rb") as opened:
            text = opened.read(_LONGEST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"the file {file}, named by {setting}_file, can't be read ({reason})",
            f"write the {what} into its first line",
        ) from error
    return text.split("\n", 1)[0].rstrip("\r")


def absolute(path: str | None, folder: Path) -> str | None:
    """The path of a pipeline file in `folder` as an absolute one."""
    return None if path is None else os.path.normpath(folder / Path(path).expanduser())
