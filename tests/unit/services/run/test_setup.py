"""The package without a C compiler: it is built all the same, says so, and its readers do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_without_a_c_compiler_the_decoders_are_interpreted_and_build_and_reader_say_so(tmp_path: Path) -> None:
    """1. The package is built where no compiler is. 2. A reader of that build starts, and stops for want of a Redis."""
    for folder in ("services", "common"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if (
        ROOT / "build" / "cython"
    ).is_dir():  # the C files of the checkout's own build, which Cython need not make again
        shutil.copytree(ROOT / "build" / "cython", tmp_path / "build" / "cython")
    for file in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tmp_path)
    environment = os.environ | {"CC": "no-such-compiler", "PYTHONPATH": str(tmp_path / "build" / "names")}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    built = python("setup.py", "build_ext", "--inplace")
    assert built.returncode == 0, built.stderr
    assert "cutline.services.sources.mysql.decode.arena can't be compiled" in built.stderr
    assert "all decoders are interpreted" in built.stderr
    assert not list(tmp_path.rglob("*.so"))
    reader = python("-m", "cutline.services.reader")
    assert reader.returncode == 2
    assert "the decoders are interpreted" in reader.stderr
    assert "CUTLINE_REDIS_URL" in reader.stderr
