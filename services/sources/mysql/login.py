"""The login at a server: what the server may ask for there, and what a client of Cutline never gives away.

A server chooses the method of the login, so a man in the middle chooses it too, and PyMySQL answers each of them:

| method | the server learns | answered |
|---|---|---|
| `mysql_native_password`, `client_ed25519` | a hash for this one login | always |
| `caching_sha2_password`, short form | a hash for this one login | always |
| `caching_sha2_password`, long form | the password, by TLS or encrypted for its own key | by TLS, and on this machine |
| `sha256_password` | the password, by TLS or encrypted for its own key | by TLS that checks the server |
| `mysql_clear_password`, `dialog` (PAM, LDAP) | the password | the same, and `source.cleartext_password` |
| `mysql_old_password`, all others | | never |

The long form is the first login of MySQL's default method after a restart of the server, so `source.tls: required`,
which does not check the server, has to allow it, as MySQL's own client does.

No server gets a file of this machine (LOAD DATA LOCAL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pymysql import _auth, err
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.cursors import Cursor

from cutline.common.config.addresses import barred
from cutline.common.config.source import Address, TlsConfig
from cutline.common.errors import SourceRefused, Unavailable
from cutline.services.sources.mysql import tls

if TYPE_CHECKING:
    _Connection: TypeAlias = Connection[Cursor]
else:
    _Connection = Connection  # which is generic in its stubs alone
_HASHED = frozenset(("mysql_native_password", "client_ed25519", ""))
_SHA2, _SHA256 = "caching_sha2_password", "sha256_password"
_CLEARTEXT = frozenset(("mysql_clear_password", "dialog"))
_LONG_FORM = b"\1\4"


class LoginConnection(_Connection):
    """A connection of PyMySQL that answers a server at the login by this file's table."""

    def __init__(self, *args: Any, config: TlsConfig | None, cleartext_password: bool, **kwargs: Any) -> None:
        """Take PyMySQL's arguments, and the source's settings; the context of TLS must be that of `config`."""
        super().__init__(*args, **kwargs)
        self._address = Address(self.host, self.port)
        self._mode = tls.mode(config, self._address)
        self._verified = self._mode.startswith("verify")
        self._cleartext = cleartext_password

    def _get_server_information(self) -> None:
        """Called once connected, before anything was sent: who answers may be another than the name said before."""
        untyped: Any = self
        if barred(str(untyped._sock.getpeername()[0])):
            raise Unavailable(
                f"{self._address} leads to a link-local address, where no source is", "correct source.host"
            )
        try:
            super()._get_server_information()  # type: ignore[misc]
        except (LookupError, ValueError, TypeError) as error:
            raise Unavailable(f"{self._address} does not answer as MySQL or MariaDB", "correct source.host") from error
        if untyped._auth_plugin_name not in (*_HASHED, _SHA2):
            # PyMySQL's first packet has the password for `sha256_password`; a server that means it asks again
            untyped._auth_plugin_name = "mysql_native_password"

    def _get_auth_plugin_handler(self, plugin_name: bytes | str) -> Any:
        """Called with each method before PyMySQL answers it: None for PyMySQL's own answer."""
        name = plugin_name.decode("latin-1") if isinstance(plugin_name, bytes) else plugin_name
        if name == _SHA2:
            return _Sha2(self)
        if name in _HASHED or (name == _SHA256 and self._verified):
            return None
        if name == _SHA256 or (name in _CLEARTEXT and not self._verified):
            allow = "" if name == _SHA256 else " and source.cleartext_password: true"
            raise self._refusal(
                name, f"set source.tls: verify-identity or verify-ca{allow} if the account needs this method"
            )
        if name not in _CLEARTEXT:
            raise SourceRefused(
                f"{self._address} asked for a login by {name[:64]!r}, which Cutline does not answer",
                "give the account caching_sha2_password (MySQL) or mysql_native_password (MariaDB)",
            )
        if not self._cleartext:
            raise self._refusal(name, "set source.cleartext_password: true if the account needs this method")
        return None

    def _refusal(self, name: str, remedy: str) -> SourceRefused:
        user = self.user.decode(errors="replace") if isinstance(self.user, bytes) else self.user
        return SourceRefused(
            f"{self._address} asked for the password of user {user!r} itself ({name}), and did not get it (source.tls"
            f" is {self._mode})",
            f"see that the server knows this user, or {remedy}",
        )

    def _allow_long_form(self) -> None:
        if self._mode == "disabled" and not self._address.loopback:
            raise self._refusal(_SHA2, "set source.tls: verify-identity, verify-ca or required")

    def _read_query_result(self, unbuffered: bool = False) -> int:
        try:
            found: int = super()._read_query_result(unbuffered=unbuffered)  # type: ignore[misc]
        except RuntimeError as error:  # PyMySQL's, for a LOAD DATA LOCAL that was not allowed
            raise SourceRefused(
                f"{self._address} asked for a file of this machine, and did not get it",
                "no server of a source does so: check source.host, and who sits between",
            ) from error
        return found


class _Sha2:
    """`caching_sha2_password`: PyMySQL's own, with a look at the long form before the password goes out."""

    def __init__(self, conn: LoginConnection) -> None:
        self._conn: Any = conn

    def authenticate(self, packet: Any) -> Any:
        """Answer the server's wish, or its answer to the hash that we sent; return its last packet."""
        conn = self._conn
        if packet.is_auth_switch_request():
            conn.salt = packet.read_all().removesuffix(b"\0")
            conn.write_packet(_auth.scramble_caching_sha2(conn.password, conn.salt))
            packet = conn._read_packet()
            packet.check_error()
            if packet.is_ok_packet():  # an empty password
                return packet
        if packet.get_all_data() == _LONG_FORM:
            conn._allow_long_form()
        if not packet.is_extra_auth_data():
            raise err.OperationalError(CR.CR_AUTH_PLUGIN_ERR, "unexpected packet during authentication")
        return _auth.caching_sha2_password_auth(conn, packet)
