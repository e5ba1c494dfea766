"""The `source` section of the pipeline file: the servers, the user, and how the connection to them is protected."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cutline.common.config.faults import Strict, fault
from cutline.common.config.secret_places import absolute, secret_of

TlsMode = Literal["disabled", "required", "verify-ca", "verify-identity"]
CONNECT_TIMEOUT_SECONDS = 10
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9a-fA-F:.%]+)\]|(?P<name>[^\s\[\]:/@]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether packets to it stay on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TlsConfig(Strict):
    """How connections to the source are encrypted, and what is checked of its certificate."""

    mode: TlsMode = Field(
        default="verify-identity",
        description="disabled; required: encrypted, the server is not checked; verify-ca: a CA that is trusted signed"
        " its certificate; verify-identity: and the certificate is for this host. Without `tls`: verify-identity, and"
        " disabled for a server on this machine",
    )
    ca: str | None = Field(
        default=None,
        description="file with the trusted CA certificates (PEM; relative to the pipeline file); null: those of this"
        " machine",
    )
    cert: str | None = Field(
        default=None, description="file with the client certificate, if the account requires one (PEM)"
    )
    key: str | None = Field(default=None, description="file with its private key; null: it is in the file of `cert`")

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.ca is not None and not self.mode.startswith("verify"):
            raise fault(f"has a ca, which mode {self.mode} does not check", "use verify-ca or verify-identity")
        if self.cert is not None and self.mode == "disabled":
            raise fault("has a cert, which mode disabled does not use", "use another mode, or remove it")
        if self.key is not None and self.cert is None:
            raise fault("has a key without a cert", "add cert, the client certificate of that key")
        return self


def _tls(value: object) -> object:
    if value is None or isinstance(value, TlsConfig):
        return value
    mode = value.get("mode", "verify-identity") if isinstance(value, dict) else value
    if mode not in get_args(TlsMode):
        raise fault(f"must be disabled, required, verify-ca or verify-identity, or a mapping with mode, not {mode!r}")
    return value if isinstance(value, dict) else {"mode": value}


def _addresses(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise fault('must be a list of hosts, as in ["db2.example.com:3306", "10.0.0.7"]')
    return tuple(value)


class SourceConfig(Strict):
    """The MySQL or MariaDB server, or several with the same data, and the user to read it as."""

    host: str = Field(min_length=1, description="host name or address of the MySQL or MariaDB server")
    port: int = Field(default=3306, ge=1, le=65535, description="TCP port of the server")
    hosts: Annotated[tuple[str, ...], BeforeValidator(_addresses)] = Field(
        default=(),
        exclude_if=lambda hosts: not hosts,  # so that definitions of before this setting are unchanged
        description="servers with the same data (replicas, a primary) that take over from `host`, in this order, each"
        " as host or host:port; needs GTIDs",
    )
    user: str = Field(min_length=1, description="user with SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    password_env: str | None = Field(
        default=None, description="environment variable that holds the password; a new one needs a restart"
    )
    password_file: str | None = Field(
        default=None,
        description="file whose first line is the password (relative to the pipeline file); read at each connection, so"
        " a new one needs no restart",
    )
    tls: Annotated[TlsConfig | None, BeforeValidator(_tls)] = Field(
        default=None,
        exclude_if=lambda tls: tls is None,
        description="encryption of the connections: a mode (disabled, required, verify-ca, verify-identity) or a"
        " mapping",
    )
    cleartext_password: bool = Field(
        default=False,
        exclude_if=lambda allowed: not allowed,
        description="whether a server that asks for the password itself gets it, as accounts of PAM or LDAP need it"
        " (mysql_clear_password, dialog); only by TLS that checks the server (verify-ca, verify-identity)",
    )
    connect_timeout_seconds: int = Field(
        default=CONNECT_TIMEOUT_SECONDS,
        ge=1,
        le=3600,
        exclude_if=lambda seconds: seconds == CONNECT_TIMEOUT_SECONDS,
        description="how long a connection may take until the server counts as unreachable",
    )
    server_id: int | None = Field(
        default=None,
        ge=1,
        le=2**32 - 2,
        description="replica id of the main binlog connection; the catch-up connection uses the next number; "
        "null: derived from the pipeline's name",
    )
    lost_position: Literal["halt", "read-again"] = Field(
        default="halt",
        exclude_if=lambda value: value == "halt",
        description="when the source no longer has the binlog after the pipeline's position (purged, reset, damaged):"
        " halt until a person acts, or read every table again at once. Another server in its place always halts",
    )

    @field_validator("hosts", mode="after")
    @classmethod
    def _hosts_and_ports(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            found = _ADDRESS.fullmatch(host)
            if found is None or not 1 <= int(found["port"] or 1) <= 65535:
                raise fault(f"has {host!r}, which is not a host or host:port, as in db2.example.com:3306 or [::1]:3306")
        return hosts

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password_env is not None and self.password_file is not None:
            raise fault("has both password_env and password_file", "keep one of them")
        return self

    @model_validator(mode="after")
    def _cleartext_for_the_right_server(self) -> Self:
        if self.cleartext_password and self.tls is not None and not self.tls.mode.startswith("verify"):
            raise fault(
                f"has cleartext_password, and mode {self.tls.mode} of tls does not check who gets the password",
                "set tls: verify-identity or verify-ca, or remove cleartext_password",
            )
        return self

    @property
    def addresses(self) -> tuple[Address, ...]:
        """`host`, then `hosts`, each address once; `hosts` without a port have that of `host`."""
        found = [Address(self.host, self.port)]
        for match in map(_ADDRESS.fullmatch, self.hosts):
            assert match is not None
            found.append(Address(match["ipv6"] or match["name"], int(match["port"] or self.port)))
        return tuple(dict.fromkeys(found))

    def at(self, address: Address) -> SourceConfig:
        """The same with this server alone."""
        return self.model_copy(update={"host": address.host, "port": address.port, "hosts": ()})

    def password(self, environ: Mapping[str, str] | None = None) -> str:
        """Return the password, '' if none is configured; ConfigError if its variable or file is missing.

        Call it where the connection is made and store the password nowhere: it belongs in no log, status or store.
        """
        found = secret_of(
            "source.password", "password", variable=self.password_env, file=self.password_file, environ=environ
        )
        return found or ""

    def absolute(self, folder: Path) -> SourceConfig:
        """The same with absolute paths; relative ones are relative to `folder`."""
        files = {"password_file": absolute(self.password_file, folder)}
        if self.tls is None:
            return self.model_copy(update=files)
        tls = {name: absolute(getattr(self.tls, name), folder) for name in ("ca", "cert", "key")}
        return self.model_copy(update={**files, "tls": self.tls.model_copy(update=tls)})
