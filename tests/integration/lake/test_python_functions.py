"""Python functions that rules call, in their own processes, on a real Spark and a real lake.

The oracle is the same function, called in this process on the rows that the lake was given.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.shape import Function, Shape
from cutline.spark_writer.transform.functions import Functions
from cutline.spark_writer.transform.rule import Rule, RuleFault, rule_of
from tests.support.spark_bench import SparkBench, T, U, order, stock

MODULE = """
import os, time
import pyarrow as pa, pyarrow.compute as pc

def shout(text):
    print("what a function prints is no answer")
    return pc.utf8_upper(text)

def longest(*texts):
    return pc.max_element_wise(*(pc.utf8_length(text) for text in texts)).cast(pa.int64())

def picky(number):
    if 1003 in number.to_pylist():
        raise ValueError("1003 is\\nnot for me")
    return number

def short(text): return text.slice(1)
def listed(text): return text.to_pylist()
def counted(text): return pc.utf8_length(text).cast(pa.string())
def torn(text): return pa.array([b"\\xff" if t == "n1003" else b"x" for t in text.to_pylist()]).view(pa.string())
def forks(text):
    os.fork()
    time.sleep(600)
def many(number):
    if len(number) > 1:
        raise ValueError("too many " * 100_000)
    return number
def large(number): return pc.multiply(number, 1 << 24)
def hangs(text): time.sleep(600)
def dies(text): os._exit(3)
constant = 7
def f(x): return x
"""
MADE = {
    "shout": "string", "longest": "bigint", "picky": "bigint", "short": "string", "listed": "string",
    "counted": "bigint", "large": "int", "torn": "string", "many": "bigint", "forks": "string", "hangs": "string",
    "dies": "string", "constant": "int", "nowhere": "int",
}  # fmt: skip


def function(name: str, kind: str | None = None, module: str = "made_functions") -> Function:
    return Function(name=name, call=f"{module}:{name}", type=kind or MADE[name])


def shape(*select: str, where: str | None = None, **given: Any) -> Shape:
    called = [function(name) for name in MADE if any(f"{name}(" in text for text in (*select, where or ""))]
    return Shape(**{"select": select, "where": where, "functions": tuple(called)} | given)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module, where the processes of functions find it."""
    (tmp_path / "made_functions.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def functions(module: Path) -> Iterator[Functions]:
    made = Functions(seconds=2)
    yield made
    made.close()


@pytest.fixture
def ruled(bench: SparkBench, functions: Functions) -> Callable[[Shape], Rule]:
    return lambda shape: rule_of(bench.session, replace(T, shape=shape), shape, functions)


def rows(count: int) -> pa.Table:
    made = [order(number, f"n{number}", f"{number}.00") for number in range(1000, 1000 + count)]
    return pa.Table.from_pylist(made, schema=T.arrow)


def test_functions_stand_in_columns_conditions_and_each_other(ruled: Callable[[Shape], Rule]) -> None:
    rule = ruled(
        shape(
            "id",
            "shout(note) AS loud",
            "longest(note, shout(concat(note, '!'))) + 1 AS longest",
            "concat(shout(note), '?') AS asked",
            where="shout(note) <> 'N1001' AND id < 1009",
        )
    )
    found = rule.chunk(rows(20)).to_pylist()
    assert found == [
        {"id": n, "loud": f"N{n}", "longest": 7, "asked": f"N{n}?"} for n in range(1000, 1009) if n != 1001
    ]
    assert rule.chunk(rows(0)).num_rows == 0
    assert rule.reads == {"id", "note"}


@pytest.mark.parametrize(
    ("select", "sentence"),
    [
        ("picky(id) AS x", "the row with id 1003: the Python function picky (made_functions:picky): ValueError: 1003"),
        ("picky(id) AS x", "is not for me (made_functions.py, line 14)"),
        ("short(note) AS x", "short (made_functions:short): it returned 8 values for 9 rows"),
        ("listed(note) AS x", "listed (made_functions:listed): it returned list instead of an Arrow array"),
        ("counted(note) AS x", "it returned values of the type string, and its own is int64"),
        ("large(id) AS x", "the row with id 1000: the Python function large (made_functions:large): it returned a"),
        ("torn(note) AS x", "the row with id 1003: the Python function torn (made_functions:torn): it returned a"),
        ("many(id) AS x", "failed on rows: the Python function many (made_functions:many): ValueError: too many"),
        ("forks(note) AS x", "failed: the Python function forks (made_functions:forks): it had not returned"),
        ("dies(note) AS x", "its process ended with the code 3"),
        ("hangs(note) AS x", "failed: the Python function hangs (made_functions:hangs): it had not returned"),
        ("CAST(raise_error(concat('no ', id)) AS INT) AS x", "failed on the row with id 1000"),
    ],
)  # fmt: skip
def test_a_function_that_fails_says_how_and_on_which_row(
    ruled: Callable[[Shape], Rule], select: str, sentence: str
) -> None:
    rule = ruled(shape("id", select))
    with pytest.raises(RuleFault) as fault:
        rule.chunk(rows(9))
    assert sentence in str(fault.value)
    assert ruled(shape("id", "shout(note) AS x")).chunk(rows(2))["x"].to_pylist() == ["N1000", "N1001"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (shape("id", "nowhere(id) AS x"), "AttributeError: module 'made_functions' has no attribute 'nowhere'"),
        (shape("id", "constant(id) AS x"), "TypeError: constant of made_functions is no function"),
        (
            Shape(select=("id", "f(id) AS x"), functions=(Function(name="f", call="none_such:f", type="int"),)),
            "ModuleNotFoundError: No module named 'none_such'",
        ),
        (Shape(select=("id", "f(id) AS x"), functions=(Function(name="f", call="os:f", type="integre"),)), "INTEGRE"),
        (
            Shape(select=("id", "upper(note) AS x"), functions=(Function(name="upper", call="os:f", type="int"),)),
            "function upper of the pipeline is refused by Spark: Spark SQL has a function upper of its own",
        ),
        (shape("id", "shout(text => note) AS x"), "shout takes no arguments by name"),
        (Shape(select=("id", "f(id) IS NULL AS x"), functions=(function("f", "interval year"),)), "functions.f is not"),
        (
            Shape(select=("id", "listed(note) AS x"), functions=(function("listed", "array<int>"),)),
            "is of the type array<int>",
        ),
    ],
)  # fmt: skip
def test_a_function_that_can_not_be_called_is_refused_when_the_rule_is_analysed(
    ruled: Callable[[Shape], Rule], given: Shape, sentence: str
) -> None:
    with pytest.raises(RuleFault) as fault:
        ruled(given)
    assert sentence in str(fault.value)


def test_processes_are_kept_made_anew_for_another_version_and_end_with_their_parent(
    ruled: Callable[[Shape], Rule], functions: Functions, module: Path
) -> None:
    first = ruled(shape("id", "shout(note) AS x"))
    assert first.chunk(rows(1))["x"].to_pylist() == ["N1000"]
    (module / "made_functions.py").write_text(MODULE.replace("utf8_upper", "utf8_reverse"))
    assert first.chunk(rows(1))["x"].to_pylist() == ["N1000"]
    second = ruled(shape("id", "shout(note) AS x", functions=(replace(function("shout"), version=2),)))
    assert second.chunk(rows(1))["x"].to_pylist() == ["0001n"]
    code = (
        "import pyarrow, sys, time\n"
        "from cutline.common.shape import Function\n"
        "from cutline.spark_writer.transform.functions import Functions\n"
        "made = Functions(seconds=600)\n"
        "hangs = Function(name='hangs', call='made_functions:hangs', type='string')\n"
        "made.check(hangs)\n"
        "[(_, process)] = made._idle[hangs.call]\n"
        "print(process._process.pid, flush=True)\n"
        "made.values(hangs, pyarrow.table({'0': ['x']}), pyarrow.string(), 1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{child}")


def test_the_lake_has_what_functions_give_in_snapshot_and_changes_and_a_failing_one_holds_its_table_alone(
    bench: SparkBench, module: Path
) -> None:
    journal = bench.journal
    made = replace(T, shape=shape("id", "shout(note) AS note", "picky(id) AS number", where="longest(note) < 6"))
    for table in (made, U):
        journal.table(table)
    journal.chunk(made, [order(1, "one"), order(2, "two words"), order(3, None)])
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint(kept=True)
    start = bench.apply()
    journal.change(made, ("+U", order(1, "seven words")), ("+U", order(2, "two")), ("+I", order(4, "four")))
    journal.checkpoint(kept=True)
    bench.apply(start)
    assert sorted(tuple(row.values()) for row in bench.rows(T.table_id)[1]) == [(2, "TWO", 2), (4, "FOUR", 4)]
    journal.change(made, ("+I", order(1003, "bad")), ("+I", order(5, "good")))
    journal.checkpoint(kept=True)
    bench.apply(start)
    assert set(start.progress.quarantined) == {T.table_id}
    assert "the row with id 1003" in str(start.progress.quarantined[T.table_id].cause)
