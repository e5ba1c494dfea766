"""Spark's own resolver fetches the jars from a Maven repository (here on loopback), whole or not at all."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutline.common import programs
from cutline.common.errors import ConfigError, Unavailable
from cutline.spark_writer import classes, jars
from tools.programs import program

POM = (
    "<project><modelVersion>4.0.0</modelVersion>"
    "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></project>"
)


class Repository:
    """A Maven repository of two small jars, with checksums, and an ivysettings.xml that names it alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wanted = tuple(self._put(f"org.cutline:{name}:1.0", name.encode() * 50_000) for name in ("one", "two"))
        handler = functools.partial(_Quiet, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.settings = folder / "ivysettings.xml"
        self.settings.write_text(
            '<ivysettings><settings defaultResolver="only"/><resolvers><ibiblio name="only" m2compatible="true" '
            f'root="http://127.0.0.1:{self.server.server_port}/"/></resolvers></ivysettings>'
        )

    def path(self, jar: jars.Jar) -> Path:
        group, artifact, version = jar.coordinates.split(":")
        return self.folder / group.replace(".", "/") / artifact / version / jar.file

    def _put(self, coordinates: str, content: bytes) -> jars.Jar:
        jar = jars.Jar(coordinates=coordinates, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        path = self.path(jar)
        path.parent.mkdir(parents=True)
        for file, data in ((path, content), (path.with_suffix(".pom"), POM.format(*coordinates.split(":")).encode())):
            file.write_bytes(data)
            Path(f"{file}.sha1").write_text(hashlib.sha1(data).hexdigest())
        return jar

    def fetch(self, folder: Path, settings: Path | None = None) -> list[str]:
        chosen = {"spark.jars.ivySettings": str(settings or self.settings), "spark.master": "local[1]"}
        return [jar.file for jar in jars.fetch(folder, settings=chosen)]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    made = Repository(tmp_path / "repository")
    monkeypatch.setattr(jars, "wanted", lambda: made.wanted)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_missing_or_damaged_jars_are_fetched_and_the_others_are_left(repository: Repository, tmp_path: Path) -> None:
    """1. Both come. 2. Nothing is fetched again. 3. A half-fetched jar and a left-over folder: that jar comes again,
    the user's own jar stays, and Spark gets both of ours and the user's, not an older one of ours."""
    folder = tmp_path / "jars"
    assert repository.fetch(folder) == ["one-1.0.jar", "two-1.0.jar"]
    repository.server.shutdown()  # nobody answers any more
    assert repository.fetch(folder) == []
    threading.Thread(target=repository.server.serve_forever).start()
    (folder / "two-1.0.jar").write_bytes(b"tw")
    (folder / "mine.jar").touch()
    (folder / "one-0.9.jar").touch()
    (folder / ".fetch-left" / "jars").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"lacks an intact two-1\.0\.jar; run `cutline setup`"):
        jars.class_path(folder)
    before = (folder / "one-1.0.jar").stat()
    assert repository.fetch(folder) == ["two-1.0.jar"]
    assert (folder / "one-1.0.jar").stat() == before
    assert sorted(os.listdir(folder)) == [".lock", "mine.jar", "one-0.9.jar", "one-1.0.jar", "two-1.0.jar"]
    assert jars.class_path(folder) == ([str(folder / name) for name in ("one-1.0.jar", "two-1.0.jar", "mine.jar")], [])


def test_a_jar_of_another_content_is_refused(repository: Repository, tmp_path: Path) -> None:
    path = repository.path(repository.wanted[0])
    path.write_bytes(b"other")
    Path(f"{path}.sha1").write_text(hashlib.sha1(b"other").hexdigest())
    with pytest.raises(Unavailable, match=r"org\.cutline:one:1\.0 was fetched but is not the file"):
        repository.fetch(tmp_path / "jars")
    assert os.listdir(tmp_path / "jars") == [".lock"]


def test_a_repository_that_lacks_a_jar_or_does_not_answer_is_one_sentence(
    repository: Repository, tmp_path: Path
) -> None:
    shutil.rmtree(repository.path(repository.wanted[1]).parent)
    with pytest.raises(Unavailable, match=r"fetched \(unresolved dependency: org\.cutline#two;1\.0") as lacking:
        repository.fetch(tmp_path / "jars")
    assert "\n" not in str(lacking.value)
    assert "by hand" in str(lacking.value)
    nobody = tmp_path / "nobody.xml"
    nobody.write_text(repository.settings.read_text().replace(str(repository.server.server_port), "9"))
    with pytest.raises(Unavailable, match=r"could not be fetched \(.*--repository") as silent:
        repository.fetch(tmp_path / "jars", nobody)
    assert "\n" not in str(silent.value)


@pytest.mark.parametrize("content", [None, "<ivysettings><settings"])
def test_wrong_settings_of_the_resolver_are_one_sentence(
    content: str | None, repository: Repository, tmp_path: Path
) -> None:
    settings = tmp_path / "wrong.xml"
    if content is not None:
        settings.write_text(content)
    with pytest.raises(Unavailable, match=r"could not be fetched \(.*wrong\.xml.*\)") as caught:
        repository.fetch(tmp_path / "jars", settings)
    assert "\n" not in str(caught.value)


def test_a_silent_server_is_given_up(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "SILENT_SECONDS", 6.0)
    repository.server.shutdown()
    with pytest.raises(Unavailable, match="nothing arrived for 6 s"):
        repository.fetch(tmp_path / "jars")
    threading.Thread(target=repository.server.serve_forever).start()
    assert os.listdir(tmp_path / "jars") == [".lock"]


def test_a_folder_that_can_not_be_written_is_one_sentence(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/jars can't be written \(Not a directory\).*CUTLINE_CACHE"):
        repository.fetch(tmp_path / "file" / "jars")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("filled", ["before", "while they come"])
def test_a_disk_that_is_too_small_is_one_sentence(
    filled: str, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(
        [program("mount"), "-t", "tmpfs", "-o", "size=8m" if filled == "before" else "size=300k", "small", str(small)],
        check=True,
    )
    try:
        if filled == "while they come":
            monkeypatch.setattr(jars, "_SPARE_BYTES", -(1 << 20))
        with pytest.raises(
            ConfigError, match=r"disk of .*small is too full .* MiB free, .* MiB needed|No space left"
        ) as it:
            repository.fetch(small)
        assert "CUTLINE_CACHE" in str(it.value)
        assert "\n" not in str(it.value)
        assert os.listdir(small) == [".lock"]
    finally:
        subprocess.run([program("umount"), str(small)], check=True)


def test_two_simultaneous_fetches_fetch_once(repository: Repository, tmp_path: Path) -> None:
    got: list[list[str]] = []
    threads = [threading.Thread(target=lambda: got.append(repository.fetch(tmp_path / "jars"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, got)) == [0, 2]


def test_setup_says_where_the_jars_and_the_archive_of_spark_s_classes_are() -> None:
    """The real ones, which the machine has: `cutline setup` checks them."""
    done = subprocess.run(
        [sys.executable, "-m", "cutline.services.run.cli", "setup"], capture_output=True, text=True, check=True
    )
    folder = jars.folder()
    archive = classes.archive(folder, programs.java(), classes.class_path(folder)[0])
    assert done.stdout == f"Spark's jars are in {folder}\nSpark starts with {archive}, in half the time\n"
    assert done.stderr == ""


def test_spark_s_jvm_has_mapped_the_archive(spark: Any) -> None:
    """Java refuses one of other jars without a word, and then maps nothing."""
    folder = jars.folder()
    archive = classes.archive(folder, programs.java(), classes.class_path(folder)[0])
    assert str(archive) in Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
