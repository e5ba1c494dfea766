"""Whether the source still has what follows a checkpoint: asked before a restore to it changes anything."""

from __future__ import annotations

from contextlib import closing

from cutline.common.config.source import SourceConfig
from cutline.common.errors import CutlineError, SourceLost
from cutline.common.mesh.parts import load_head
from cutline.common.mesh.topology import STREAM_READER
from cutline.common.positions import Position
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.server import identify, verify_position


def place_after(store: PipelineStore, n: int) -> Position | None:
    """Where main reads on after a restore to checkpoint `n`; None if it reads nothing. Blocks. ProtocolError if that
    checkpoint or a part of it is gone."""
    entry = store.entry(n)
    if not isinstance(entry, CheckpointEntry) or (part := entry.parts.get(STREAM_READER)) is None:
        return None
    head = load_head(store, part)
    main = head.get("cursors", {}).get("main")
    if main is None or head["stopped"] or head["atStop"]:
        return None
    return Position.from_json(main["position"])


def verify_reach(source: SourceConfig, place: Position) -> None:
    """Ask each server of the source, on a connection of its own, until one can go on from `place`; blocks. SourceLost
    if none can; Unavailable, SourceRefused or another error if the answer of one is missing."""
    hosts = Hosts(source)
    lost: SourceLost | None = None
    missing: CutlineError | None = None
    for address in source.addresses:
        try:
            with closing(hosts.connect_to(address)) as connection:
                return verify_position(connection, identify(connection), place)
        except SourceLost as error:
            lost = error
        except CutlineError as error:
            missing = error
    if (problem := missing or lost) is not None:
        raise problem
