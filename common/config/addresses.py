"""Addresses that Cutline never calls for a user: those of one link, where the metadata of cloud machines is found."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import unquote

# Metadata services that are not at a link-local address: of AWS by IPv6, of Alibaba, of Oracle.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")))
_HOSTS = re.compile(r"//([^/?#\s]+)")
_PARAMETERS = re.compile(r"(?i)(?<![a-z])(?:pg)?host\s*=\s*([^(),;&\s]+)")
"""Of JDBC addresses: PGHOST of PostgreSQL's driver, `(host=...)` of MySQL's."""


def barred(host: str) -> bool:
    """Whether a host is a link-local address or one of a cloud's metadata; False for a name: look where it leads, once
    connected. Also numbers in the forms that the C library takes, as 0xa9fea9fe."""
    found = _address(host.strip("[]").partition("%")[0])
    if found is None:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return any(each.is_link_local or each in _METADATA for each in (found, mapped) if each is not None)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    parts = host.rstrip(".").split(".")
    if not 1 <= len(parts) <= 4 or not all(re.fullmatch(r"0[xX][0-9a-fA-F]*|[0-9]+", part) for part in parts):
        return None
    try:
        *heads, last = (int(part, 16 if part[:2] in ("0x", "0X") else 8 if part[0] == "0" else 10) for part in parts)
        value = last + sum(head << (8 * (3 - at)) for at, head in enumerate(heads))
        return ipaddress.IPv4Address(value)
    except ValueError:
        return None


def hosts_in(text: str) -> Iterator[str]:
    """Yield the hosts of the addresses in a text, as in `jdbc:postgresql://a:5432,b/lake`."""
    text = unquote(text)
    yield from _PARAMETERS.findall(text)
    for authority in _HOSTS.findall(text):
        for part in authority.rpartition("@")[2].split(","):
            yield part[: part.find("]") + 1] if part.startswith("[") else part.partition(":")[0]
