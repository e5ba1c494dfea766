"""`python -m tests.fuzz` (`make fuzz INPUTS=10000000`): fuzz the decoders; exit 1 and the input's file at a finding.

The compiled modules are built once more with clang: AddressSanitizer and UndefinedBehaviorSanitizer, and the
counters by which libFuzzer (through atheris) sees which inputs reach new code. All memory is malloc's, so that every
object of Python has the sanitizer's guards around it. An input may take 5 s of CPU time, and no allocation may be over
256 MiB. What is fuzzed is told in targets.py; a part of what libFuzzer kept is then given to the interpreted sources,
which must say the same as the compiled ones.

One JSON line a target: inputs, seconds, how many inputs were kept for the coverage they add, and how many of these were
compared. A finding is replayed by `--replay FILE`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from tests.fuzz.worker import ROOT
from tools.programs import Missing, program

SHARES = {"rows": 0.93, "result": 0.05, "table_map": 0.01, "stream": 0.01}
"""Of the inputs; the cheap ones get more: one of `stream` takes the time of twenty of `rows`."""
COMPARED = 1000
ALLOCATION_MIB = 256
_SANITIZERS = "-fsanitize=address,undefined -fno-sanitize=function,vptr -fno-sanitize-recover=undefined"
_COUNTERS = "-fsanitize-coverage=inline-8bit-counters,pc-table"
"""Not libFuzzer's traces of compared values too: they take half of the time, and targets.py knows what is compared."""
BUILT = ROOT / "build" / "fuzz"


def build() -> None:
    """The compiled modules with the sanitizers, into BUILT; only what changed is compiled again."""
    # the flags go with the compiler's name, since CFLAGS would reach the linker, which has no runtime to add
    clang = program("clang")
    compiler = {"CC": f"{clang} -g1 -fno-omit-frame-pointer {_SANITIZERS} {_COUNTERS}", "LDSHARED": f"{clang} -shared"}
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", f"--build-lib={BUILT}", f"--build-temp={BUILT}/objects"],
        cwd=ROOT,
        env=os.environ | compiler,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "are interpreted" in done.stderr:
        raise SystemExit(f"cutline: the modules can't be built with clang: {done.stderr[-2000:]}")


def _worker(*arguments: str, sanitized: bool) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if sanitized:
        runtime = Path(sysconfig.get_paths()["purelib"]) / "asan_with_fuzzer.so"
        environment |= {
            "LD_PRELOAD": str(runtime),
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=1:quarantine_size_mb=16"
            ":malloc_context_size=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.worker", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def fuzz(name: str, inputs: int, seed: int, findings: Path) -> dict[str, object]:
    """One process's share of a target. SystemExit at a finding, with the end of what libFuzzer said."""
    with tempfile.TemporaryDirectory(prefix="cutline-fuzz-") as folder:
        begun = time.monotonic()
        corpus = Path(folder) / name
        corpus.mkdir()
        # slow inputs are mutated less often: without that the few of 64 KiB take two thirds of the time
        flags = [
            f"-runs={inputs}", f"-seed={seed}", "-timeout=300", "-rss_limit_mb=3000", "-print_final_stats=1",
            f"-malloc_limit_mb={ALLOCATION_MIB}", f"-artifact_prefix={findings}/{name}-", "-len_control=0", "-reload=0",
            "-entropic_scale_per_exec_time=1",
        ]  # fmt: skip
        done = _worker("fuzz", name, str(BUILT), str(corpus), *flags, sanitized=True)
        seconds = time.monotonic() - begun
        executed = re.search(r"stat::number_of_executed_units: (\d+)", done.stdout)
        if done.returncode or executed is None:
            raise SystemExit(f"cutline: {name}, seed {seed}: a finding\n{done.stdout[-6000:]}")
        kept = sorted(corpus.iterdir())
        for path in random.Random(seed).sample(kept, max(0, len(kept) - COMPARED)):
            path.unlink()
        compare(folder, findings)
        return {
            "target": name,
            "seed": seed,
            "inputs": int(executed[1]),
            "seconds": round(seconds, 1),
            "kept": len(kept),
            "compared": min(len(kept), COMPARED),
        }


def compare(corpus: str, findings: Path) -> None:
    """SystemExit if the interpreted sources make something else of one of the inputs CORPUS/TARGET/NAME."""
    runs = [_worker("tell", modules, corpus, sanitized=False) for modules in ("-", "interpreted")]
    for run in runs:
        if run.returncode:
            raise SystemExit(f"cutline: a finding\n{run.stdout[-6000:]}")
    for left, right in zip(*(run.stdout.splitlines() for run in runs), strict=True):
        if left != right:
            name = left.split()[0]
            file = findings / f"differs-{name.replace('/', '-')}"
            shutil.copy(Path(corpus) / name, file)
            raise SystemExit(f"cutline: compiled and interpreted differ in {file}:\n{left}\n{right}")


def main() -> None:
    """What the head says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together (default 100,000)")
    parser.add_argument("--target", choices=SHARES, help="only this one")
    parser.add_argument("--seed", type=int, default=1, help="each other one is another run (default 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input of --target and nothing else")
    chosen = parser.parse_args()
    try:
        build()
    except Missing as reason:
        raise SystemExit(f"cutline: {reason}") from None
    findings = BUILT / "findings"
    findings.mkdir(exist_ok=True)
    if chosen.replay:
        done = _worker("fuzz", chosen.target, str(BUILT), str(chosen.replay), sanitized=True)
        print(done.stdout)
        raise SystemExit(done.returncode)
    shares = {chosen.target: 1.0} if chosen.target else SHARES
    work = [
        (name, -(-int(chosen.inputs * share) // chosen.jobs), chosen.seed * chosen.jobs + job)
        for name, share in shares.items()
        for job in range(chosen.jobs)
    ]
    begun, total = time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        running = [pool.submit(fuzz, *arguments, findings) for arguments in work]
        try:
            for ended in concurrent.futures.as_completed(running):
                figures = ended.result()
                total += int(str(figures["inputs"]))
                print(json.dumps(figures), flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    print(json.dumps({"inputs": total, "seconds": round(time.monotonic() - begun, 1), "findings": 0}))


if __name__ == "__main__":
    main()
