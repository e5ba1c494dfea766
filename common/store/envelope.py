"""The envelope of a JSON file in the store: `{"format":3,"sha256":"...","body":{...}}` (pure).

The hash covers the number of the format and the bytes of the body as written in the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from cutline.common.errors import ConfigError, ProtocolError
from cutline.common.store.records import FORMAT

_HEAD = re.compile(rb'\{"format":(\d+),"sha256":"([0-9a-f]{64})","body":')


def sealed(body: Mapping[str, Any]) -> bytes:
    """The bytes of a file with this body."""
    raw = canonical(body)
    head = b'{"format":%d,"sha256":"%s","body":' % (FORMAT, _digest(raw))
    return head + raw + b"}\n"


def opened(data: bytes, location: str) -> dict[str, Any]:
    """The body of a file's bytes. Raises ProtocolError if they are corrupt, ConfigError for another format."""
    head = _HEAD.match(data)
    if head is None:
        raise ProtocolError(f"{location} is not an envelope of Cutline", "remove it or restore it from a backup")
    if int(head[1]) > FORMAT:
        raise ConfigError(
            f"{location} was written by a newer Cutline (format {int(head[1])}, this one reads {FORMAT})",
            "use that version",
        )
    if int(head[1]) < FORMAT:
        raise ConfigError(
            f"{location} was written by an older Cutline (format {int(head[1])}, this one reads {FORMAT})",
            "use that version, or give the pipeline another name and sink to copy the tables again",
        )
    raw = data[head.end() : -2]
    if data[-2:] != b"}\n" or _digest(raw) != head[2]:
        raise ProtocolError(f"{location} is corrupt (its sha256 is wrong)", "restore it from a backup")
    return cast(dict[str, Any], json.loads(raw))


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(b"%d%s" % (FORMAT, body)).hexdigest().encode()


def canonical(body: Mapping[str, Any]) -> bytes:
    """The body as JSON, encoded table by table and staged file by file, since json.dumps holds the interpreter lock and
    the event loop must answer in time."""
    parts = [
        b"%s:%s"
        % (_dumps(key), b"{%s}" % b",".join(b"%s:%s" % (_dumps(name), _dumps(table)) for name, table in value.items()))
        if key in ("tables", "metrics") and isinstance(value, Mapping)
        else b"%s:%s" % (_dumps(key), _dumps(value))
        for key, value in body.items()
    ]
    return b"{%s}" % b",".join(parts)


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
