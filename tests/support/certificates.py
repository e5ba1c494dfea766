"""Certificate authorities and certificates for tests: real ones, made anew in milliseconds."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """A CA. `issue` writes a certificate and its key as two PEM files into `folder`, `ca` is its own certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Cutline's tests: {name}")])
        made = self._signed(self._builder(self._name, self._key, -DAY, 30 * DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        ))  # fmt: skip
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *hosts: str,
        begins: timedelta = -DAY,
        ends: timedelta = 30 * DAY,
        password: bytes | None = None,
    ) -> tuple[Path, Path]:
        """A certificate for these host names and addresses, as (certificate, key); times are from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general(host) for host in hosts]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file)])
        builder = self._builder(subject, key, begins, ends)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        cert, secret = self.folder / f"{file}-cert.pem", self.folder / f"{file}-key.pem"
        cert.write_bytes(self._signed(builder).public_bytes(serialization.Encoding.PEM))
        sealed = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        secret.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
        )
        return cert, secret

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begins: timedelta, ends: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        return builder.sign(self._key, hashes.SHA256())


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
