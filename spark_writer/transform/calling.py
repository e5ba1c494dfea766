"""A process in which a Python function of rules runs: `python -m cutline.spark_writer.transform.calling module:name`.

It gets batches from the Spark writer on its standard input and answers on its standard output (functions.py): each
message is a line of JSON, then a stream of Arrow. So a function that never returns, or that ends its process, harms
only its own call.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

import pyarrow as pa

VALUES = "values"
"""The one column of an answer."""
LONGEST = 500
"""How many characters of an error's text are passed on."""


def found(call: str) -> Any:
    """The function of "module:function"; ImportError, AttributeError or TypeError if there is none."""
    module, _, name = call.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{name} of {module} is no function")
    return function


class Misfit(Exception):
    """What a function returned is no column of values for its rows."""


def sentence(error: BaseException) -> str:
    """An error in one line, with its place in the function."""
    text = " ".join(str(error)[: 4 * LONGEST].split())[:LONGEST]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"


def answer(out: BinaryIO, about: dict[str, Any], values: pa.Table | None = None) -> None:
    """Write a message."""
    out.write(json.dumps(about).encode() + b"\n")
    if values is not None:
        with pa.ipc.new_stream(out, values.schema) as stream:
            stream.write_table(values)
    out.flush()


def result_of(function: Any, arguments: list[pa.ChunkedArray], rows: int) -> pa.Table:
    """Call a function. Misfit unless it gives an Arrow array with a value for each row."""
    made = function(*(column.combine_chunks() for column in arguments))
    if not isinstance(made, pa.Array | pa.ChunkedArray):
        raise Misfit(f"it returned {type(made).__name__} instead of an Arrow array")
    if len(made) != rows:
        raise Misfit(f"it returned {len(made)} values for {rows} rows")
    return pa.table({VALUES: made})


def end_with(parent: int) -> None:
    """End this process once its parent has ended, also while a function does not return."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(call: str) -> None:
    """Serve until the Spark writer closes the standard input."""
    threading.Thread(target=end_with, args=(os.getppid(),), name="end", daemon=True).start()
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        function = found(call)
    except BaseException as error:
        answer(out, {"error": sentence(error)})
        return
    answer(out, {})
    for line in source:
        with pa.ipc.open_stream(source) as stream:
            rows = stream.read_all()
        try:
            values = result_of(function, rows.columns, json.loads(line)["rows"])
        except Misfit as misfit:
            answer(out, {"error": str(misfit)})
        except Exception as error:
            answer(out, {"error": sentence(error), "of_rows": True})
        else:
            answer(out, {}, values)


if __name__ == "__main__":
    main(sys.argv[1])
