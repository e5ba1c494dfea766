"""The archive of Spark's classes: made once, of one Java and one class path, and never in the way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cutline.common import programs
from cutline.common.programs import Program
from cutline.spark_writer import classes, jars


class Trainer:
    """A stand-in for the process that archives: writes `written`, or nothing."""

    def __init__(self) -> None:
        self.runs = 0
        self.written: bytes | None = b"classes"

    def run(self, command: list[str], **_: Any) -> None:
        self.runs += 1
        if self.written is None:
            raise subprocess.CalledProcessError(1, command)
        Path(command[-1]).write_bytes(self.written)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trainer:
    made = Trainer()
    monkeypatch.setattr(subprocess, "run", made.run)
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    monkeypatch.setattr(programs, "java", lambda: Program(path=home / "bin" / "java", version="17.0.2", where="here"))
    (tmp_path / "one.jar").write_bytes(b"1")
    monkeypatch.setattr(jars, "class_path", lambda target: ([str(tmp_path / "one.jar")], ["extra.jar"]))
    return made


def test_an_archive_is_made_once_and_takes_the_place_of_those_of_other_jars(trainer: Trainer, tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    first = classes.make(folder)
    assert first is not None
    assert (first.read_bytes(), trainer.runs) == (b"classes", 1)
    assert (classes.make(folder), trainer.runs) == (first, 1)
    (folder / "classes-of-mine.jsa").touch()
    os.utime(tmp_path / "one.jar", (1, 1))
    second = classes.make(folder)
    assert second not in {None, first}
    assert sorted(path.name for path in folder.glob("*.jsa")) == sorted(["classes-of-mine.jsa", Path(str(second)).name])


@pytest.mark.parametrize("change", ["of Java", "of a jar"])
def test_an_archive_is_of_one_java_and_one_class_path(trainer: Trainer, tmp_path: Path, change: str) -> None:
    java = programs.java()
    start, extras = classes.class_path(tmp_path)
    assert (start[0], extras) == (str(tmp_path / "one.jar"), ["extra.jar"])
    assert all("/pyspark/jars/" in entry for entry in start[1:])
    assert len(start) > 100
    before = classes.archive(tmp_path, java, start)
    if change == "of Java":
        java = Program(path=java.path, version="17.0.3", where="here")
    else:
        (tmp_path / "one.jar").write_bytes(b"12")
    assert classes.archive(tmp_path, java, start) != before
    assert classes.archive(tmp_path, java, classes.class_path(tmp_path, "mine.jar:other/*")[0]) != before


def test_a_run_that_makes_none_leaves_nothing(trainer: Trainer, tmp_path: Path) -> None:
    trainer.written = None
    assert classes.make(tmp_path / "jars") is None
    assert os.listdir(tmp_path / "jars") == [".lock"]


def test_a_java_without_an_archive_of_its_own_is_not_tried(trainer: Trainer, tmp_path: Path) -> None:
    (tmp_path / "java" / "lib" / "server" / "classes.jsa").unlink()
    assert classes.make(tmp_path / "jars") is None
    assert trainer.runs == 0
