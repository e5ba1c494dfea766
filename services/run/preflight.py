"""The checks before a pipeline may run: all faults in one list, and nothing is written while there are any.

In this order: store, warehouse and source are checked without a write. If they have no fault, the folders are made, and
a probe file is written into each.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from cutline.common.causes import Cause, Code
from cutline.common.commands.kinds import CancelTable, Define
from cutline.common.config.pipeline import FIXED, PipelineConfig, shown
from cutline.common.config.reserved import is_own
from cutline.common.errors import ConfigError, Unavailable, redacted
from cutline.common.store.commands import Command
from cutline.common.store.lives import Life
from cutline.common.store.store import PipelineStore, Store
from cutline.services.run import lake
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.preflight import check_source
from cutline.services.sources.mysql.start_stop import PositionFinder
from cutline.spark_writer.sinks.iceberg import catalogue

_TAKING = {"same": "by `cutline define --replace` ", "stored": "in the file and run it with `--replace` ", "file": ""}
"""How a setting of a pipeline that the store has is changed, by what `check` takes."""
OF_FILES = ("cutline run", "cutline define")
"""Whose changes of a definition are those of a pipeline file."""


def check(
    config: PipelineConfig,
    *,
    store_url: str,
    workdir: Path | None,
    known_faults: Sequence[Cause] = (),
    takes: Literal["same", "stored", "file"] = "same",
) -> Mapping[str, Any]:
    """Raise ConfigError with every fault found; Unavailable if the source doesn't answer and the pipeline ran before.

    `known_faults` are faults that the caller found; they come first in the list.
    Returns the definition that the pipeline is to have. If the store has none, it is that of `config`. Else, where
    they differ otherwise than in the source, `takes` says which: `same` (a difference is a fault), `stored`, `file`; a
    difference that a new pipeline needs is always a fault. The source is that of `config`, except that with `stored` a
    live change of it counts.
    Leaves behind the folders of work, store and warehouse, empty if they are new. Takes a few seconds at most.
    """
    file, sink = config, config.definition()["sink"]
    faults = [*known_faults, *catalogue.faults(sink, store_url)]
    stored: Mapping[str, Any] | None = None
    known: Mapping[str, Any] | None = None
    try:
        store = Store(store_url)
        store.check()
        stored = store.pipeline(config.name).definition()
        if stored is not None:
            known = PipelineConfig.from_definition(stored).definition()
            if takes == "stored" and source_was_changed(store.pipeline(config.name)):
                config = config.model_copy(update={"source": PipelineConfig.from_definition(stored).source})
    except ConfigError as error:
        faults += error.faults
    differing: list[str] = []
    if known is not None:
        differing = differences(known, {**config.definition(), "source": known["source"]})
    impossible = fixed(differing)
    if impossible or (differing and takes == "same"):
        faults.append(_in_use(config.name, store_url, impossible=impossible, differing=differing))
    elif known is not None and stored is not None and takes == "stored":
        config = PipelineConfig.from_definition({**stored, "source": config.definition()["source"]})
        sink = config.definition()["sink"]
    try:
        life = store.pipeline(config.name).life if known is not None else None
        _judge_owners(faults, config, life, store_url, taking=_TAKING[takes])
    except ConfigError as error:
        if not config.sink.catalog and "://" not in config.sink.warehouse:  # else catalogue.faults says what is wrong
            faults += error.faults
    try:
        check_source(config, begun=known is not None, folds_case=catalogue.folds_case(sink))
        if known is None and not faults:
            hosts = Hosts(config.source)
            faults += PositionFinder(hosts.connect, server_id=config.server_id).faults(config)
    except ConfigError as error:
        faults += error.faults
    except Unavailable as error:
        if known is not None and not faults:
            raise
        faults.append(error.cause)
    try:
        catalogue.check_answers(sink)
    except Unavailable as error:
        if known is not None and not faults:
            raise
        faults.append(error.cause)
    if faults:
        raise ConfigError.several(faults)
    _prepare(sink, store, workdir)
    if stored is None or (differing and takes == "file"):
        return file.definition()
    return {**stored, "source": config.definition()["source"]}


def _in_use(name: str, store_url: str, *, impossible: Sequence[str], differing: Sequence[str]) -> Cause:
    """The store has a pipeline of this name whose settings differ; those in `impossible` can't be changed."""
    way = "apply the change by `cutline define --replace` or `cutline pipeline replace`, restore"
    return Cause(
        Code.CONFIGURATION,
        f"the pipeline name {name!r} is in use in the store {redacted(store_url)} with other content"
        f" ({', '.join(impossible or differing)})",
        f"{('restore' if impossible else way)} that content, or give this pipeline another name",
    )


def _judge_owners(
    faults: list[Cause], config: PipelineConfig, life: Life | None, store_url: str, *, taking: str
) -> None:
    """Add a fault for each table of the warehouse that is another's, and for the first one that an earlier pipeline of
    this name left, unless another fault may explain it. Raises ConfigError if the warehouse can't be read."""
    for table, owner, made_by in lake.owners(config):
        if owner != config.name and config.select([table]) and not is_own(table, config.sink.own_namespace):
            relation = f"belongs to the pipeline {owner!r}" if owner else "was not made by Cutline"
            sentence = f"the table {table} in the warehouse {config.sink.warehouse} {relation}"
            faults.append(Cause(Code.CONFIGURATION, sentence, "choose another warehouse"))
        elif owner == config.name and not config.sink.adopt and not faults:
            if life is None:
                faults.append(
                    Cause(
                        Code.CONFIGURATION,
                        f"the warehouse {config.sink.warehouse} has tables of a pipeline {owner!r} that is not in"
                        f" the store {redacted(store_url)}",
                        "use the store that belongs to this warehouse, set `sink: {adopt: true}` to take the"
                        " tables over, or choose another warehouse",
                    )
                )
            elif made_by != life.id:
                faults.append(
                    Cause(
                        Code.CONFIGURATION,
                        f"the warehouse {config.sink.warehouse} has tables of an earlier pipeline {owner!r}",
                        f"set `sink: {{adopt: true}}` {taking}to take them over, or remove them from the lake",
                    )
                )


def _prepare(sink: Mapping[str, Any], store: Store, workdir: Path | None) -> None:
    """Make the folders of work, store and warehouse, and write to them. Raises ConfigError with every fault."""
    faults = [fault] if workdir is not None and (fault := _unwritable("work folder", workdir)) else []
    for write in (partial(catalogue.probe, sink), store.prepare):
        try:
            write()
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError.several(faults)


def source_was_changed(store: PipelineStore) -> bool:
    """Whether a live change, and not a pipeline file, gave the definition in force its source. Blocks."""
    versions = store.versions()
    sources = [(store.definition(each.version) or {}).get("source") for each in versions]
    first = len(sources)
    while first > 1 and sources[first - 2] == sources[-1]:
        first -= 1
    return bool(versions) and versions[first - 1].by not in (None, *OF_FILES)


def live_changes(store: PipelineStore, config: PipelineConfig) -> list[str]:
    """How the definition in force differs from the pipeline file's, as `cutline run` sees it: without the source where
    it takes the file's. [] if the pipeline is not defined yet. Blocks."""
    stored = store.definition()
    if stored is None:
        return []
    known = PipelineConfig.from_definition(stored).definition()
    source = config.definition()["source"] if source_was_changed(store) else known["source"]
    return differences(known, {**config.definition(), "source": source})


def queued_changes(store: PipelineStore) -> list[Command]:
    """The accepted commands that change the definition and are not carried out yet. Blocks."""
    newest = store.commands.newest_outcome()
    waiting = store.commands.list(after=newest.n if newest else 0, limit=1000)
    return [command for command in waiting if isinstance(command.wish, Define | CancelTable)]


def fixed(changes: Sequence[str]) -> list[str]:
    """Those sentences of `differences` that are about settings which only a new pipeline can have otherwise."""
    return [change for change in changes if change.startswith(tuple(f"{name}{end}" for name in FIXED for end in " ."))]


def differences(stored: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys in which two definitions differ, each with both values, stored and new.

    A definition lacks some of the settings that have their default.
    """
    found = []

    def described(key: str, definition: Mapping[str, Any]) -> str:
        return repr(shown(key, definition[key])) if key in definition else "the default"

    for key in sorted({*stored, *new}):
        left, right = stored.get(key), new.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            found += differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key} is {described(key, stored)} there and {described(key, new)} here")
    return found


def _unwritable(role: str, folder: Path) -> Cause | None:
    """Make the folder and write a probe into it; the cause if that fails."""
    probe = folder / f".cutline-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return Cause(
            Code.CONFIGURATION,
            f"the {role} {folder} can't be written ({error.strerror})",
            "choose another folder, or give this user the right to write there",
        )
    return None
