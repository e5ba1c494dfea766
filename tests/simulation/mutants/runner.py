"""`python -m tests.simulation.mutants.runner`: runs modules in forks of a process that has imported the libraries.

Importing them takes longer than most mutants take to be noticed. Each line on stdin is a JSON list of the file for the
output, the module, and its arguments; each line on stdout is the exit code. Of the product and the simulation only this
package is imported before a fork, so a fork sees their files as they are then.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Sequence

import hypothesis

LIBRARIES = (
    "fsspec",
    "numpy",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pydantic",
    "pymysql",
    "pytest",
    "redis.asyncio",
    "yaml",
)


def run(output: str, module: str, arguments: Sequence[str]) -> int:
    """Run the module as `python -m` does, in this process; return the exit code."""
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Import the libraries, then run what stdin says until it ends."""
    for library in LIBRARIES:
        importlib.import_module(library)
    phases = set(hypothesis.Phase) - {hypothesis.Phase.shrink, hypothesis.Phase.explain}
    hypothesis.settings.register_profile("mutants", phases=phases)  # that a test fails is enough
    hypothesis.settings.load_profile("mutants")
    for line in sys.stdin:
        output, module, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            code = run(output, module, arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
