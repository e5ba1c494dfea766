"""One process that fuzzes one target, or tells what comes of given inputs; `__main__.py` starts it.

`python -m tests.fuzz.worker fuzz TARGET MODULES CORPUS [libFuzzer's flags]` runs libFuzzer (by atheris) with the
compiled modules of the folder MODULES, which carry the sanitizers and the counters of coverage.

`python -m tests.fuzz.worker tell MODULES CORPUS` prints a line for each file CORPUS/TARGET/NAME: a hash of its outcome,
and how that begins. MODULES `-` are those that are installed, `interpreted` the same sources without a compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HANG_SECONDS = 5.0
"""No input may take more CPU time. (Real time, which depends on the machine, is libFuzzer's to watch.)"""
_MYSQL = "cutline.services.sources.mysql"
_DECODERS = ("arena", "decimals", "json_text", "row_plan", "values", "result", "row_event")
_COMPILED = (*(f"{_MYSQL}.decode.{name}" for name in _DECODERS), f"{_MYSQL}.binlog.scanner")
"""In an order in which each imports only those before it."""
_INTERPRETED = ("cursor", "progress", "routes", "statements", "replay", "event_bodies", "dump", "xa")


def use(modules: str) -> None:
    """Load the compiled modules from another folder than the import system would."""
    if modules == "-":
        return
    for name in _COMPILED:
        source = ROOT / f"{name.removeprefix('cutline.').replace('.', '/')}.py"
        if modules != "interpreted":
            (source,) = Path(modules).glob(f"{name.replace('.', '/')}.*.so")
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def fuzz(name: str, modules: str, corpus: str, flags: list[str]) -> None:
    """Never returns: libFuzzer ends the process, with 0 if nothing was found."""
    import atheris

    use(modules)
    interpreted = [f"{_MYSQL}.binlog.{name}" for name in _INTERPRETED]
    with atheris.instrument_imports(include=interpreted):
        from tests.fuzz.targets import MAX_BYTES, Finding, targets
    target = targets()[name]
    for number, seed in enumerate(target.seeds if Path(corpus).is_dir() else ()):  # one input is replayed as it is
        (Path(corpus) / f"seed{number}").write_bytes(seed)

    def run_input(data: bytes) -> None:
        begun = time.process_time()
        target.run(data)
        if time.process_time() - begun > HANG_SECONDS:
            raise Finding(f"an input of {len(data)} bytes took {time.process_time() - begun:.1f} s of CPU")

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        luck = random.Random(seed)
        if len(data) < 4 or luck.random() < 0.3:
            made: bytes = atheris.Mutate(data, max_size)
            return made
        for _ in range(luck.choice((1, 1, 2, 4))):
            data = target.mutate(data, luck)
        return data[:max_size]

    atheris.Setup([sys.argv[0], *flags, f"-max_len={MAX_BYTES}", corpus], run_input, custom_mutator=mutate)
    atheris.Fuzz()


def tell(modules: str, corpus: str) -> None:
    """The outcome of each input."""
    use(modules)
    from tests.fuzz.targets import targets

    for name, target in targets().items():
        for path in sorted((Path(corpus) / name).glob("*")):
            outcome = repr(target.run(path.read_bytes(), tell=True))
            hashed = hashlib.sha256(outcome.encode(errors="backslashreplace")).hexdigest()[:16]
            print(f"{name}/{path.name}", hashed, outcome[:300])


if __name__ == "__main__":
    if sys.argv[1] == "fuzz":
        fuzz(*sys.argv[2:5], sys.argv[5:])
    else:
        tell(*sys.argv[2:4])
