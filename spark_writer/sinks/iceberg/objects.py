"""Python's way to the objects of the lake, with the rights that Iceberg's own FileIO has.

A catalogue configures Iceberg's FileIO by properties: those of `sink.catalog`, and with a REST catalogue also those
that it lends for one table ("vended"), which end after a while. `grant` notes the properties for everything below a
place, and `file_system` makes pyarrow's file system of them, so that kernels in this process and on Spark's executors
(`grants`) read and write with the same rights as Iceberg does. Where nothing was granted, as for the store's own files,
each library finds its rights in the environment.

Sources: the property names of Iceberg's S3FileIO, GCSFileIO and ADLSFileIO; `storage-credentials` of the REST catalogue
specification.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs

from cutline.common.errors import ConfigError, redacted

SCHEMES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "adls"),
}
"""The schemes of addresses that Cutline knows, and the extra that each needs."""
_RENEW_SECONDS = 600.0
_SECRETS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "gcs.oauth2.token", "adls.sas-token.")
_EXPIRIES = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms.")
_grants: dict[str, dict[str, str]] = {}
_lock = threading.Lock()


def grant(place: str, properties: Mapping[str, str]) -> None:
    """From now on use a FileIO's properties for every file below `place`, in this process."""
    known = {key: value for key, value in properties.items() if key.startswith(("s3.", "client.", "gcs.", "adls."))}
    with _lock:
        _grants[place.rstrip("/") + "/"] = known


def grants() -> dict[str, dict[str, str]]:
    """Return what was granted so far, for `accept` on another machine. It holds secrets: log it nowhere."""
    with _lock:
        return dict(_grants)


def accept(granted: Mapping[str, Mapping[str, str]]) -> None:
    """Take over the grants of another process."""
    with _lock:
        _grants.update({place: dict(properties) for place, properties in granted.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The rights of a table's FileIO: its properties by the place below which they hold. `lent`: by the catalogue."""

    by_place: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    lent: bool = False

    @property
    def expire(self) -> bool:
        """Whether they end within ten minutes, or have ended; loading the table anew then brings others."""
        until = [
            float(value) / 1000
            for properties in self.by_place.values()
            for key, value in properties.items()
            if key.startswith(_EXPIRIES) and value.isdecimal()
        ]
        return bool(until) and min(until) - _RENEW_SECONDS < time.time()


def is_secret(name: str) -> bool:
    """Whether a FileIO's property of this name is a right, or part of one."""
    return name.startswith(_SECRETS)


def granted(path: str) -> dict[str, str]:
    """Return the properties for a path: those of the longest place above it; none if there is none."""
    with _lock:
        places = [place for place in _grants if path.startswith(place)]
        return _grants[max(places, key=len)] if places else {}


def file_system(path: str, properties: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """Return pyarrow's file system for an address, and the path in it.

    `properties` are those of a FileIO; None: those granted for that path. ConfigError for an address of an unknown
    kind, or if the catalogue signs each request, which only Iceberg's own FileIO can have done.
    """
    chosen = granted(path) if properties is None else properties
    address = urlsplit(path)
    kind = SCHEMES.get(address.scheme)
    key = unquote(address.path) if kind == "adls" else path.partition("://")[2]
    if kind == "s3":
        return _s3(frozenset(_s3_options(chosen).items())), key
    if kind == "gcs":
        until = chosen.get("gcs.oauth2.token-expires-at")
        return _gcs(chosen.get("gcs.oauth2.token"), until, chosen.get("gcs.service.host")), key
    if kind == "adls":
        account = address.netloc.partition("@")[2]
        token = chosen.get(f"adls.sas-token.{account}")
        shared = chosen.get("adls.auth.shared-key.account.key")
        return _adls(account.partition(".")[0], shared, token), address.netloc.partition("@")[0] + key
    raise ConfigError(
        f"{redacted(path)} is at a place of an unknown kind",
        "use a folder, or an address that begins with s3://, gs:// or abfss://",
    )


def bucket_of(path: str) -> str:
    """Return the bucket (or container) of a path in one of these file systems."""
    return path.partition("/")[0]


def _s3_options(properties: Mapping[str, str]) -> dict[str, Any]:
    if properties.get("s3.remote-signing-enabled") == "true":
        raise ConfigError(
            "the catalogue signs every request to S3, which Cutline's own readers can't ask for",
            "let it lend credentials instead, or give s3.access-key-id and s3.secret-access-key in sink.catalog",
        )
    names = {
        "s3.access-key-id": "access_key",
        "s3.secret-access-key": "secret_key",
        "s3.session-token": "session_token",
        "client.region": "region",
        "client.assume-role.arn": "role_arn",
        "client.assume-role.external-id": "external_id",
    }
    options: dict[str, Any] = {name: properties[key] for key, name in names.items() if key in properties}
    if "role_arn" in options:  # pyarrow takes either keys or a role
        options = {name: value for name, value in options.items() if not name.endswith(("_key", "_token"))}
    # pyarrow does not read these variables, which the AWS libraries do.
    from_environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint := properties.get("s3.endpoint", from_environment):
        scheme, separator, host = endpoint.rpartition("://")
        options["endpoint_override"] = host.rstrip("/")
        if separator:
            options["scheme"] = scheme
        options["force_virtual_addressing"] = properties.get("s3.path-style-access", "true") != "true"
    return options


@lru_cache(maxsize=256)
def _s3(options: frozenset[tuple[str, Any]]) -> Any:
    return pyarrow.fs.S3FileSystem(connect_timeout=10.0, request_timeout=60.0, **dict(options))


@lru_cache(maxsize=256)
def _gcs(token: str | None, until_ms: str | None, host: str | None) -> Any:
    options: dict[str, Any] = {"endpoint_override": host} if host else {}
    if token is not None:
        until = datetime.fromtimestamp(int(until_ms) / 1000 if until_ms else time.time() + 3600, UTC)
        options |= {"access_token": token, "credential_token_expiration": until}
    return pyarrow.fs.GcsFileSystem(**options)


@lru_cache(maxsize=256)
def _adls(account: str, key: str | None, token: str | None) -> Any:
    return pyarrow.fs.AzureFileSystem(account_name=account, account_key=key, sas_token=token)
