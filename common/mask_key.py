"""The secret by which columns are masked (pure)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from cutline.common.errors import ConfigError

SHORTEST_BYTES = 16
_LONGEST_BYTES = 64
_HASH_BYTES = 16
HASH_CHARACTERS = 2 * _HASH_BYTES


@dataclass(frozen=True, slots=True)
class MaskKey:
    """The secret by which columns are masked."""

    secret: bytes = field(repr=False)

    @classmethod
    def of_text(cls, text: str) -> MaskKey:
        """The key of a secret's text. ConfigError if it is too short to keep out who tries all keys, or too long."""
        secret = text.encode()
        if not SHORTEST_BYTES <= len(secret) <= _LONGEST_BYTES:
            raise ConfigError(
                f"the key of masking has {len(secret)} bytes",
                f"make one of {SHORTEST_BYTES} to {_LONGEST_BYTES}, as `openssl rand -hex 32` prints it",
            )
        return cls(secret)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that tell this key from others and say nothing about it."""
        return hashlib.blake2b(b"fingerprint", key=self.secret, digest_size=8, person=b"cutline mask key").hexdigest()

    def hashes(self, texts: Iterable[bytes]) -> str:
        """The hash of each text, HASH_CHARACTERS long, one behind the other."""
        copy = hashlib.blake2b(key=self.secret, digest_size=_HASH_BYTES).copy
        digests = []
        for text in texts:
            made = copy()
            made.update(text)
            digests.append(made.digest())
        return b"".join(digests).hex()
