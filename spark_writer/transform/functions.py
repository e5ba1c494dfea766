"""Calls Python functions of rules, each in processes of its own (calling.py).

A process is kept for the next batch. There are as many of one function as threads call it at once, and one that has
failed to answer in time is killed. They end with the Spark writer, since their standard input does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.shape import Function
from cutline.spark_writer.transform.calling import LONGEST, VALUES

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
        self._socket, theirs = socket.socketpair()
        with theirs:  # a session of its own, which ends as a whole
            end = theirs.fileno()
            self._process = subprocess.Popen(command, stdin=end, stdout=end, start_new_session=True)
        self._file = self._socket.makefile("rwb")
        try:
            self._within(START_SECONDS, self._answer)
        except BaseException:
            self.end()
            raise

    def call(self, arguments: pa.Table, rows: int, seconds: float) -> pa.ChunkedArray:
        """The values of the function for these arguments; CallFault if there are none within `seconds`."""
        return self._within(seconds, lambda: self._called(arguments, rows))

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it, and what it started."""
        self._kill()
        self._process.wait()
        with suppress(OSError):  # bytes that it had not read
            self._file.close()
        self._socket.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(OSError):  # so that no read waits for whoever else holds the other end
            self._socket.shutdown(socket.SHUT_RDWR)

    def _called(self, arguments: pa.Table, rows: int) -> pa.ChunkedArray:
        self._file.write(json.dumps({"rows": rows}).encode() + b"\n")
        with pa.ipc.new_stream(self._file, arguments.schema) as stream:
            stream.write_table(arguments)
        self._file.flush()
        self._answer()
        with pa.ipc.open_stream(self._file) as stream:
            return stream.read_all()[VALUES]

    def _answer(self) -> None:
        about = json.loads(self._file.readline())
        if "error" in about:
            raise CallFault(about["error"], of_rows=about.get("of_rows", False))

    def _within(self, seconds: float, act: Callable[[], Any]) -> Any:
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._kill()

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            return act()
        except (OSError, ValueError, pa.ArrowException) as error:
            if late.is_set():
                remedy = f"{CORRECT}, or give it more time by CUTLINE_FUNCTION_SECONDS"
                raise CallFault(f"it had not returned after {seconds:g} s", remedy) from error
            self._kill()
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
        self._closed = False

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
        return _fitting(made, kind)

    def _taken(self, function: Function) -> _Process:
        """A process of this version; those of others are ended, so a raised version has the module imported anew."""
        with self._lock:
            idle = self._idle.setdefault(function.call, [])
            same = [process for version, process in idle if version == function.version and process.lives]
            others = [process for _, process in idle if process not in same]
            idle[:] = [(function.version, process) for process in same[1:]]
        for process in others:
            process.end()
        return same[0] if same else _Process(function.call)

    def _keep(self, function: Function, process: _Process) -> None:
        with self._lock:
            idle = self._idle.setdefault(function.call, [])
            if len(idle) < IDLE and not self._closed:
                idle.append((function.version, process))
                return
        process.end()

    def close(self) -> None:
        """End the processes that nobody uses; the others once nobody does."""
        self._closed = True
        for call in list(self._idle):
            self._end(call)

    def _end(self, call: str) -> None:
        with self._lock:
            idle = self._idle.pop(call, [])
        for _, process in idle:
            process.end()


def _fitting(made: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A function's values as its own type. Integers, texts and binary values may come in a wider or narrower type that
    holds them; CallFault for all else, and for values that no reader of the lake could take."""
    same = made.type == kind or pa.types.is_null(made.type)
    if not same and not any(fits(made.type) and fits(kind) for fits in (pa.types.is_integer, _is_text, _is_binary)):
        raise CallFault(f"it returned values of the type {made.type}, and its own is {kind}")
    try:
        made.validate(full=True)
        made = made.cast(kind)
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            pc.min_max(made).as_py()  # a year that Python has: 1 to 9999
    except (pa.ArrowException, ValueError, OverflowError) as error:
        text = " ".join(str(error).split())[:LONGEST]
        raise CallFault(f"it returned a value that {kind}, its type, can't hold ({text})", of_rows=True) from error
    return made


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))
