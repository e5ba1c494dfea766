"""The Iceberg catalogue and the warehouse that a pipeline's `sink` names: its properties, the jars that it needs, and
what is known to be wrong with it before Spark starts.

Nothing here writes, except `probe`. Every function takes `sink` as a pipeline's definition has it.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs

from cutline.common.causes import Cause, Code
from cutline.common.config.addresses import barred
from cutline.common.errors import ConfigError, Unavailable, redacted
from cutline.spark_writer.sinks.iceberg.durable import local_path
from cutline.spark_writer.sinks.iceberg.objects import SCHEMES, bucket_of, file_system
from cutline.spark_writer.sinks.side_by_side import SIDE_BY_SIDE

ANSWER_SECONDS = 10.0
CONNECTIONS = SIDE_BY_SIDE + 4
"""The most connections to a catalogue's database: for these tables, the upkeep and `_cutline.publications`."""
MOUNTS = Path("/proc/self/mountinfo")
_SQLITE = "jdbc:sqlite:"
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "http": 80, "https": 443, "thrift": 9083}
_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\w*|afs|ceph|coda|ncpfs|lustre|gpfs|beegfs\w*|glusterfs|gfs2?|ocfs2|orangefs|pvfs2|davfs\d?|9p"
    r"|fuse(\..+)?)(?<!overlayfs)"
)
"""File systems of Linux that are, or (FUSE) may be, on other machines, where SQLite's locks and shared memory fail. An
overlay by FUSE is the root of a container, so a local disk.
"""
_FOLDING = re.compile(r"\b(hive|glue)\b|Hive|Glue")


def properties(sink: Mapping[str, Any]) -> dict[str, str]:
    """Return Iceberg's properties of the catalogue: SQLite in the warehouse, unless `sink.catalog` names another.

    ConfigError if the warehouse is on object storage and there is no `sink.catalog`.
    """
    given: Mapping[str, str] = sink.get("catalog") or {}
    warehouse = str(sink["warehouse"])
    # We refresh our table handles ourselves; a cached table would hide another process's commits.
    chosen = {"warehouse": warehouse, "cache-enabled": "false"}
    if not given:
        chosen |= {
            "type": "jdbc",
            "uri": f"{_SQLITE}{default_file(sink)}?busy_timeout=30000&journal_mode=WAL&synchronous=NORMAL",
        }
    if {**chosen, **given}.get("type") == "jdbc":
        chosen["jdbc.schema-version"] = "V1"  # the first one with views
        # Who finds all connections in use waits a second. They are opened as they are needed.
        chosen["clients"] = str(CONNECTIONS)
    if local_path(warehouse) is None:
        chosen["io-impl"] = "org.apache.iceberg.io.ResolvingFileIO"
    return chosen | dict(given)


def default_file(sink: Mapping[str, Any]) -> Path:
    """Return the SQLite file of the default catalogue. ConfigError if the warehouse is not a folder."""
    folder = local_path(str(sink["warehouse"]))
    if folder is None:
        raise ConfigError(
            f"the warehouse {redacted(sink['warehouse'])} is not a local folder, so it needs a catalogue",
            "name one in sink.catalog",
        )
    return Path(folder) / "catalog.db"


def sqlite_file(sink: Mapping[str, Any]) -> Path | None:
    """Return the SQLite file of the catalogue; None if it is of another kind. ConfigError as `properties`."""
    path = sqlite_path(properties(sink).get("uri", ""))
    return None if path is None else Path(path)


def sqlite_path(uri: str) -> str | None:
    """Return the path of the SQLite file in a catalogue's address; None if it is no such address."""
    return uri.removeprefix(_SQLITE).split("?")[0] if uri.startswith(_SQLITE) else None


def extras(sink: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the optional jars (`extra` in jars.toml) that the catalogue and the warehouse need."""
    given: Mapping[str, str] = sink.get("catalog") or {}
    kind = SCHEMES.get(urlsplit(str(sink["warehouse"])).scheme)
    found = set() if kind is None else {kind}
    if given.get("uri", "").startswith("jdbc:postgresql:"):
        found.add("postgresql")
    if given.get("type") == "glue" or any(".aws." in given.get(key, "") for key in ("catalog-impl", "io-impl")):
        found.add("s3")
    return frozenset(found)


def folds_case(sink: Mapping[str, Any]) -> bool:
    """Whether the catalogue is of a kind that stores names in lower case."""
    given: Mapping[str, str] = sink.get("catalog") or {}
    return any(_FOLDING.search(given.get(key, "")) for key in ("type", "catalog-impl"))


def faults(sink: Mapping[str, Any], store_url: str) -> list[Cause]:
    """Return what is known to be wrong with a sink. Takes seconds at most."""
    warehouse = str(sink["warehouse"])
    folder = local_path(warehouse)
    try:
        found = [*_on_network(sqlite_file(sink))]
    except ConfigError as error:
        return list(error.faults)
    if folder is None and local_path(store_url) is not None:
        found.append(
            Cause(
                Code.CONFIGURATION,
                f"the store {redacted(store_url)} is a folder and the warehouse {redacted(warehouse)} is not, so"
                " nothing could go on without this machine",
                "set CUTLINE_STORE_URL to a place on the same object storage",
            )
        )
    if folder is not None:
        found += _unwritable(Path(folder))
    elif not found:
        try:
            found += _bucket_faults(sink)
        except ConfigError as error:
            found += error.faults
        except Unavailable:  # nobody knows yet; the Spark writer tries again
            pass
    return found


def check_answers(sink: Mapping[str, Any]) -> None:
    """Raise Unavailable if the catalogue is a server and does not accept a connection."""
    uri = (sink.get("catalog") or {}).get("uri", "")
    refusals = []
    for host, port in _addresses(uri):
        try:
            with socket.create_connection((host, port), ANSWER_SECONDS) as wire:
                if not barred(str(wire.getpeername()[0])):
                    return
            refusals.append(f"{host}:{port}")
        except (OSError, UnicodeError):  # or no name that can be asked for: why, is for nobody who may only name it
            refusals.append(f"{host}:{port}")
    if refusals:
        raise Unavailable(
            f"the catalogue {redacted(uri)} does not answer ({'; '.join(refusals)})",
            "start it, or correct sink.catalog.uri",
        )


def _addresses(uri: str) -> Iterator[tuple[str, int]]:
    """Yield host and port of each server that a catalogue's address names."""
    for part in uri.removeprefix("jdbc:").split(","):  # thrift://a:9083,thrift://b:9083
        address = urlsplit(part if "://" in part else f"//{part}")
        scheme = address.scheme or urlsplit(uri.removeprefix("jdbc:")).scheme
        with suppress(ValueError):  # no port: nothing that could be connected to
            if address.hostname and scheme in _PORTS:
                yield address.hostname, address.port or _PORTS[scheme]


def _on_network(file: Path | None) -> Iterator[Cause]:
    if file is not None and (kind := network_volume_of(file)) is not None:
        yield Cause(
            Code.CONFIGURATION,
            f"the catalogue {file} would be on a network volume ({kind}), where SQLite can lose commits",
            "name another catalogue in sink.catalog (PostgreSQL, or an Iceberg REST server), or put the warehouse on"
            " a local disk",
        )


def network_volume_of(path: Path) -> str | None:
    """Return the type of the file system that a path is on if other machines may change its files; None if not."""
    kind = file_system_of(path)
    return kind if kind is not None and _NETWORK.fullmatch(kind) else None


def file_system_of(path: Path) -> str | None:
    """Return the type of the file system that a path is on, or will be on once it is made; None if unknown."""
    with suppress(OSError):
        path = path.resolve()
        kinds: dict[Path, str] = {}
        for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])
            kinds[Path(point)] = after.split()[0]  # a later mount hides an earlier one
        return next((kinds[parent] for parent in (path, *path.parents) if parent in kinds), None)
    return None


def _unwritable(folder: Path) -> Iterator[Cause]:
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        reason = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"no right to write {existing}"
    else:
        return
    yield Cause(
        Code.CONFIGURATION,
        f"the warehouse {folder} can't be written ({reason})",
        "choose another folder, or give this user the right to write there",
    )


def _vended(sink: Mapping[str, Any]) -> bool:
    """Whether the right to read and write the warehouse comes from the catalogue, table by table."""
    return (sink.get("catalog") or {}).get("type") == "rest"


def _bucket_faults(sink: Mapping[str, Any]) -> Iterator[Cause]:
    warehouse = str(sink["warehouse"])
    if _vended(sink):
        return
    files, path = file_system(warehouse, properties(sink))
    bucket = bucket_of(path)
    try:
        missing = files.get_file_info(bucket).type == pyarrow.fs.FileType.NotFound
    except OSError as error:
        raise Unavailable(f"the warehouse {warehouse} does not answer: {error}") from error
    if missing:
        yield Cause(
            Code.CONFIGURATION,
            f"the bucket {bucket} of the warehouse {warehouse} does not exist",
            "create it, or correct sink.warehouse",
        )


def probe(sink: Mapping[str, Any]) -> None:
    """Write a file into the warehouse and remove it again; ConfigError if that fails.

    Not if the catalogue lends the right to write, since it lends it for a table only.
    """
    warehouse = str(sink["warehouse"])
    folder = local_path(warehouse)
    name = f".cutline-{uuid.uuid4().hex}"
    try:
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).touch()
            (Path(folder) / name).unlink()
        elif not _vended(sink):
            files, path = file_system(f"{warehouse.rstrip('/')}/{name}", properties(sink))
            files.open_output_stream(path).close()
            files.delete_file(path)
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise ConfigError(
            f"the warehouse {folder or redacted(warehouse)} can't be written ({reason})",
            f"choose another {('folder' if folder else 'place')}, or give this user the right to write there",
        ) from error
