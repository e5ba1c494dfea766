"""Calls Python functions of rules, each in processes of its own (calling.py).

A process is kept for the next batch. There are as many of one function as threads call it at once, and one that has
failed to answer in time is killed. They end with the Spark writer, since their standard input does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from cutline.common.shape import Function
from cutline.spark_writer.transform.calling import VALUES

CALL_SECONDS = 30.0
"""How long a call may take, unless the environment says otherwise."""
START_SECONDS = 60.0
"""How long a module may take to be imported."""
CORRECT = "correct it and raise its version in functions"
IDLE = 4
"""How many processes of one function are kept while nobody calls it."""


class CallFault(Exception):
    """A function can't be called, or a call of it failed; the text says how, and `remedy` what to do. `of_rows`: a call
    with fewer of the rows may not fail."""

    def __init__(self, text: str, remedy: str = CORRECT, *, of_rows: bool = False) -> None:
        """Take the text."""
        super().__init__(text)
        self.remedy = remedy
        self.of_rows = of_rows


class _Process:
    """One process of one function."""

    def __init__(self, call: str) -> None:
        """Start it, and have it import the function; CallFault if it can't."""
        command = [sys.executable, "-m", "cutline.spark_writer.transform.calling", call]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._within(START_SECONDS, self._answer)
        except BaseException:
            self.end()
            raise

    def call(self, arguments: pa.Table, rows: int, seconds: float) -> pa.ChunkedArray:
        """The values of the function for these arguments; CallFault if there are none within `seconds`."""
        return self._within(seconds, lambda: self._called(arguments, rows))

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # bytes that it had not read
                    pipe.close()

    def _called(self, arguments: pa.Table, rows: int) -> pa.ChunkedArray:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(json.dumps({"rows": rows}).encode() + b"\n")
        with pa.ipc.new_stream(pipe, arguments.schema) as stream:
            stream.write_table(arguments)
        pipe.flush()
        self._answer()
        with pa.ipc.open_stream(self._process.stdout) as stream:
            return stream.read_all()[VALUES]

    def _answer(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        about = json.loads(pipe.readline())
        if "error" in about:
            raise CallFault(about["error"], of_rows=about.get("of_rows", False))

    def _within(self, seconds: float, act: Callable[[], Any]) -> Any:
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            return act()
        except (OSError, ValueError, pa.ArrowException) as error:
            if late.is_set():
                remedy = f"{CORRECT}, or give it more time by CUTLINE_FUNCTION_SECONDS"
                raise CallFault(f"it had not returned after {seconds:g} s", remedy) from error
            raise CallFault(f"its process ended with the code {self._process.wait()}", of_rows=True) from error
        finally:
            timer.cancel()


class Functions:
    """The functions that the rules of this process call. Thread-safe."""

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        """`seconds` is how long a call may take for one batch of rows."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[int, _Process]]] = {}

    def check(self, function: Function) -> None:
        """Raise CallFault if the function is not there."""
        self._keep(function, self._taken(function))

    def values(self, function: Function, arguments: pa.Table, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
        """What the function gives for the columns of `arguments`, of the type `kind`; CallFault if it fails."""
        process = self._taken(function)
        try:
            made = process.call(arguments, rows, self._seconds)
        except BaseException:
            process.end()
            self._end(function.call)  # whoever corrects the function wants it imported anew
            raise
        self._keep(function, process)
        if made.type != kind and not pa.types.is_null(made.type):
            raise CallFault(f"it returned values of the type {made.type}, and its own is {kind}")
        return made.cast(kind)

    def _taken(self, function: Function) -> _Process:
        """A process of this version; those of others are ended, so a raised version has the module imported anew."""
        with self._lock:
            idle = self._idle.setdefault(function.call, [])
            same = [process for version, process in idle if version == function.version]
            others = [process for version, process in idle if version != function.version]
            idle[:] = [(function.version, process) for process in same[1:]]
        for process in others:
            process.end()
        return same[0] if same else _Process(function.call)

    def _keep(self, function: Function, process: _Process) -> None:
        with self._lock:
            idle = self._idle.setdefault(function.call, [])
            if len(idle) < IDLE:
                idle.append((function.version, process))
                return
        process.end()

    def close(self) -> None:
        """End the processes that nobody uses."""
        for call in list(self._idle):
            self._end(call)

    def _end(self, call: str) -> None:
        with self._lock:
            idle = self._idle.pop(call, [])
        for _, process in idle:
            process.end()
