"""What every service does first."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["services.enumerator", "services.reader", "services.writer", "services.control"])
def test_every_service_takes_all_the_descriptors_that_it_may(module: str) -> None:
    program = f"""
import resource, runpy
from cutline.common import threads
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
def run(work):
    work.close()
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
threads.run = run
runpy.run_module("cutline.{module}", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "(256, 256)\n", ended.stderr
