"""TLS of the connections to a source: what is checked, and the sentence for each way in which that fails.

`source.tls` chooses. Without it, a server on another machine must show a certificate for its host name from a CA that
this machine trusts (verify-identity), and a connection that stays on this machine is not encrypted.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pymysql
from pymysql.constants import CR

from cutline.common.causes import Cause, Code
from cutline.common.config.source import Address, TlsConfig, TlsMode
from cutline.common.errors import SourceRefused, Unavailable

# Error numbers that PyMySQL does not name, by their names in the servers' own lists.
_MYSQL_SECURE_TRANSPORT_REQUIRED = 3159
_BY_DEFAULT = " (the default for a server on another machine)"

# OpenSSL's results of a certificate's verification, by their names in its x509_vfy.h without X509_V_ERR_.
_CERT_NOT_YET_VALID = 9
_CERT_HAS_EXPIRED = 10
_UNTRUSTED = frozenset((2, 18, 19, 20, 21))  # self-signed, or by an unknown issuer
_OTHER_HOST = frozenset((62, 64))  # HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH


def mode(tls: TlsConfig | None, address: Address) -> TlsMode:
    """What is asked of the connection to a server there."""
    if tls is not None:
        return tls.mode
    return "disabled" if address.loopback else "verify-identity"


def context(tls: TlsConfig | None, address: Address) -> ssl.SSLContext | None:
    """The context of a connection to a server there, None: not encrypted. SourceRefused if a file can't be read.

    Contexts are shared, since a new one costs 35 ms, and made again when one of their files has changed.
    """
    chosen = mode(tls, address)
    if chosen == "disabled":
        return None
    tls = tls or TlsConfig()
    files = ((name, getattr(tls, name)) for name in ("ca", "cert", "key"))
    return _context(chosen, *((path, _stamp(name, path)) for name, path in files))


def _stamp(name: str, path: str | None) -> tuple[int, int, int] | None:
    """What changes when the file at `path` changes."""
    if path is None:
        return None
    try:
        found = Path(path).stat()
    except OSError as error:
        raise SourceRefused(_unreadable(name, path, error.strerror or str(error))) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _unreadable(name: str, path: str, reason: str) -> Cause:
    return Cause(
        Code.REFUSED,
        f"the file {path}, named by source.tls.{name}, can't be used ({reason})",
        "name a PEM file of the right kind",
    )


_File = tuple[str | None, tuple[int, int, int] | None]


@lru_cache(maxsize=64)
def _context(chosen: TlsMode, ca: _File, cert: _File, key: _File) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = chosen == "verify-identity"
    made.verify_mode = ssl.CERT_NONE if chosen == "required" else ssl.CERT_REQUIRED
    # Python 3.13's default would refuse the certificates that MySQL makes for itself
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if made.verify_mode == ssl.CERT_REQUIRED:
        if ca[0] is None:
            made.load_default_certs()
        else:
            with _readable("ca", ca[0]):
                made.load_verify_locations(cafile=ca[0])
    if cert[0] is not None:
        with _readable("cert" if key[0] is None else "cert and source.tls.key", cert[0]):
            made.load_cert_chain(cert[0], keyfile=key[0], password=_no_password)
    return made


def _no_password() -> str:
    raise ValueError("the key is encrypted, and no password can be given")


@contextmanager
def _readable(name: str, path: str) -> Iterator[None]:
    try:
        yield
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)
        raise SourceRefused(_unreadable(name, path, reason)) from error


@contextmanager
def refusals(tls: TlsConfig | None, address: Address) -> Iterator[None]:
    """Turn PyMySQL's errors in the block that TLS is the reason of into SourceRefused; others pass.

    Unavailable for a login that the server cut off after it got our certificate, since most servers give no reason.
    """
    try:
        yield
    except pymysql.MySQLError as error:
        if refusal := _refusal(error, tls, address):
            raise SourceRefused(refusal) from error
        if tls is not None and tls.cert is not None and _cut_off(error):
            raise Unavailable(
                f"{address} ended the connection at the login",
                "is it up, and does the server trust the CA of source.tls.cert?",
            ) from error
        raise


def _cut_off(error: pymysql.MySQLError) -> bool:
    """Whether the server took the connection and ended it, which is not so while it is down."""
    cause = getattr(error, "original_exception", None)
    return error.args[:1] in ((CR.CR_SERVER_GONE_ERROR,), (CR.CR_SERVER_LOST,)) or isinstance(
        cause, (ssl.SSLError, ConnectionResetError, BrokenPipeError)
    )


def _refusal(error: pymysql.MySQLError, tls: TlsConfig | None, address: Address) -> Cause | None:
    chosen = mode(tls, address)
    code = error.args[0] if error.args else None
    cause = getattr(error, "original_exception", None)
    if code == CR.CR_SSL_CONNECTION_ERROR:
        return Cause(
            Code.REFUSED,
            f"{address} offers no TLS, and source.tls is {chosen}{'' if tls else _BY_DEFAULT}",
            "turn TLS on there, or, if the network between is trusted, set source.tls: disabled",
        )
    if chosen == "disabled" and code == _MYSQL_SECURE_TRANSPORT_REQUIRED:
        return Cause(
            Code.REFUSED,
            f"{address} takes encrypted connections only, and source.tls is"
            f" disabled{'' if tls else ' (the default for a server on this machine)'}",
            "set source.tls: required",
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _distrust(cause, chosen, tls, address)
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        own = tls is not None and tls.cert is not None
        remedy = "does the server trust the CA of source.tls.cert?" if own else "it must offer TLS 1.2 or newer"
        return Cause(Code.REFUSED, f"TLS with {address} failed ({cause.reason or cause})", remedy)
    return None


def hint(tls: TlsConfig | None, address: Address) -> str:
    """The end of the remedy for a denied login: servers don't say when the lack of TLS is the reason."""
    if mode(tls, address) == "disabled":
        return ", or set source.tls: required if the account may connect by TLS only"
    if tls is None or tls.cert is None:
        return ", or set source.tls.cert if the account requires a client certificate"
    return ""


def _distrust(error: ssl.SSLCertVerificationError, chosen: TlsMode, tls: TlsConfig | None, address: Address) -> Cause:
    """Why the server's certificate is refused, and the remedy."""
    why = "" if tls else f"; source.tls is {chosen}{_BY_DEFAULT}"
    if error.verify_code == _CERT_HAS_EXPIRED:
        return Cause(Code.REFUSED, f"The certificate of {address} has expired", f"renew it at the server{why}")
    if error.verify_code == _CERT_NOT_YET_VALID:
        return Cause(
            Code.REFUSED,
            f"The certificate of {address} is not valid yet",
            f"set this machine's clock, or renew the certificate{why}",
        )
    if error.verify_code in _OTHER_HOST:
        return Cause(
            Code.REFUSED,
            f"The certificate of {address} is for another host ({error.verify_message})",
            "connect by a name that is in the certificate, or, if that is impossible, set source.tls.mode:"
            f" verify-ca, which does not check the name{why}",
        )
    if error.verify_code in _UNTRUSTED:
        trusted = "this machine's" if tls is None or tls.ca is None else tls.ca
        return Cause(
            Code.REFUSED,
            f"The certificate of {address} is signed by none of the CAs that are trusted, {trusted}"
            f" ({error.verify_message})",
            "name the file of its CA in source.tls.ca, or, if the network between is trusted, set source.tls:"
            f" required, which encrypts without checking the server{why}",
        )
    return Cause(
        Code.REFUSED,
        f"The certificate of {address} is refused ({error.verify_message})",
        f"renew it at the server{why}",
    )
