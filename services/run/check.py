"""What must be true before a pipeline may run: all faults in one list, and nothing written before all of it is right.

The order: password, store, warehouse and source are looked at without a write; only if nothing is wrong there, the
folders are made and a probe file is written into each.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutline.common.config.pipeline import PipelineConfig, shown
from cutline.common.errors import ConfigError, Unavailable, redacted
from cutline.common.store.store import Store
from cutline.services.run import lake
from cutline.services.sources.mysql import server as mysql
from cutline.services.sources.mysql.start_stop import Places


def check(
    config: PipelineConfig, *, store_url: str, workdir: Path | None, known_faults: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Raise ConfigError with every fault found; Unavailable if the source doesn't answer and the pipeline ran before.

    `known_faults` are those that the caller found, for the same list.
    Returns the definition to put into the store: the one that is there, which an older Cutline may have written, or
    `config`'s.
    Leaves behind the folders of work, store and warehouse, empty if they are new. Takes a few seconds at most.
    """
    faults = list(known_faults)
    there: Mapping[str, Any] | None = None
    known: Mapping[str, Any] | None = None
    try:
        known = there = Store(store_url).pipeline(config.name).definition()
        if there is not None:  # an older Cutline's lacks the settings that came since: they have their defaults
            known = PipelineConfig.from_definition(there).definition()
    except ConfigError as error:
        faults += error.faults
    if known is not None and (differing := differences(known, config.definition())):
        faults.append(
            f"the pipeline name {config.name!r} is in use in the store {redacted(store_url)} with other content "
            f"({', '.join(differing)}); restore that, or give this pipeline another name"
        )
    try:
        for table, owner in lake.owners(config):
            if owner != config.name and config.select([table]):
                whose = f"the pipeline {owner!r}" if owner else "nobody that Cutline knows"
                faults.append(
                    f"the table {table} in the warehouse {config.sink.warehouse} belongs to {whose}; "
                    "choose another warehouse"
                )
            elif owner == config.name and known is None and not faults:
                faults.append(
                    f"the warehouse {config.sink.warehouse} holds tables of a pipeline {owner!r} that the store "
                    f"{redacted(store_url)} does not know; use the store that belongs to it, or another warehouse"
                )
    except ConfigError as error:
        faults += error.faults if not config.sink.catalog else ()
    try:
        mysql.preflight(config, begun=known is not None)
        if known is None and not faults:
            source = mysql.Source.of(config.source)
            faults += Places(lambda: mysql.connect(source), server_id=config.server_id).faults(config)
    except ConfigError as error:
        faults += error.faults
    except Unavailable as error:
        if known is not None and not faults:
            raise
        faults.append(str(error))
    if faults:
        raise ConfigError(*faults)
    folders = {
        "work folder": workdir,
        "warehouse": None if "://" in config.sink.warehouse else Path(config.sink.warehouse),
    }
    faults = [fault for what, folder in folders.items() if folder is not None and (fault := _unwritable(what, folder))]
    try:
        Store(store_url).prepare()
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError(*faults)
    return there or config.definition()


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys in which two definitions differ, each with both values."""
    found = []
    for key in sorted({*one, *other}):
        left, right = one.get(key), other.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            found += differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key} is {shown(key, left)!r} there and {shown(key, right)!r} here")
    return found


def _unwritable(what: str, folder: Path) -> str | None:
    """Make the folder and write a probe into it; return a sentence if that fails."""
    probe = folder / f".cutline-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return (
            f"the {what} {folder} can't be written ({error.strerror}); "
            "choose another folder, or give this user the right to write there"
        )
    return None
