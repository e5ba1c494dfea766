"""A table's rule as Spark understands it: the lake's columns and key, and the values of computed columns.

Catalyst, Spark's own optimizer and generator of code, evaluates expressions in the driver's JVM, batch by batch from
Arrow to Arrow (Expressions.java): so a small batch costs no Spark job. Columns that a rule only chooses or renames do
not go there. A condition is evaluated before the columns, which are not computed for a row that it leaves out.

A rule is of one schema: a DDL that changes the source's columns makes the table's next generation
(services/sources/mysql/binlog/ddl.py), since what the rule makes of old rows may follow from a column's type or name.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import _parse_datatype_json_string

from cutline.common.causes import Code
from cutline.common.ops import Op, is_any
from cutline.common.schema import META_FIELDS, OP, Column, TableSchema
from cutline.common.shape import Function, Shape
from cutline.spark_writer.compiled import one_of
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks import spark_columns
from cutline.spark_writer.sinks.contract import TableFault
from cutline.spark_writer.transform.change_columns import METADATA, named_by, with_metadata, without_stars
from cutline.spark_writer.transform.functions import CallFault, Functions

_SOURCE = Path(__file__).with_name("Expressions.java")
_KEPT = "kept "
"""The condition's name among the expressions: no column's name ends in a space."""
_OUT_OF_MEMORY = re.compile(r"OutOfMemory(Error|Exception)|OutOfDirectMemoryError")
_GONE = (Op.DELETE, Op.BEFORE, Op.TRUNCATE)
"""Operations whose row is not there afterwards, so that nothing is computed for it."""


class RuleFault(TableFault):
    """A table's rule can't be carried out; only that table is concerned.

    `at` is what is to blame in the table's options, as `where` or `select[1]`; "": no one of them.
    """

    code = Code.RULE

    def __init__(self, cause: str, remedy: str = "", *, at: str = "") -> None:
        """Take the sentence and its remedy."""
        super().__init__(cause, remedy)
        self.at = at


class _Catalyst:
    """Expressions that Catalyst evaluates together: their results' names, and the inputs that they need."""

    def __init__(self, chosen: Any, names: Sequence[str]) -> None:
        """Take what `Expressions.choose` of Java gave."""
        self._chosen = chosen
        self.names = list(names)
        self.needed = tuple(str(name) for name in chosen.needed())

    def results(self, rows: pa.Table) -> pa.Table:
        """The results for these rows, by name. An error of py4j's or Spark's where one fails."""
        inputs = rows.select(self.needed)
        with tempfile.TemporaryDirectory(prefix="cutline-rule-") as folder:
            before, after = f"{folder}/before", f"{folder}/after"
            with pa.OSFile(before, "wb") as file, pa.ipc.new_stream(file, inputs.schema) as stream:
                stream.write_table(inputs)
            self._chosen.evaluate(before, after)
            with pa.OSFile(after, "rb") as file:
                return pa.ipc.open_stream(file).read_all().rename_columns(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of a Python function: its arguments (None: it has none), and the type and name of the input that has its
    results."""

    function: Function
    functions: Functions
    arguments: _Catalyst | None
    kind: pa.DataType
    name: str

    def results(self, rows: pa.Table) -> pa.ChunkedArray:
        """What the function gives for these rows; CallFault if it fails."""
        count = rows.num_rows
        arguments = pa.table({}) if self.arguments is None else self.arguments.results(rows)
        if not count:
            return pa.chunked_array([], self.kind)
        try:
            return self.functions.values(self.function, arguments, self.kind, count)
        except CallFault as fault:
            text = f"the Python function {self.function.name} ({self.function.call}): {fault}"
            raise CallFault(text, fault.remedy, of_rows=fault.of_rows) from fault


class Evaluation:
    """Expressions that are evaluated together: `needed` are the columns of the source that they need, and `metadata`
    those of METADATA."""

    def __init__(
        self, results: _Catalyst, calls: Sequence[_Call], source: TableSchema, metadata: Sequence[str]
    ) -> None:
        """`calls` are all that a rule has, each behind those that its arguments need; `metadata` are the inputs that
        are no columns of the source."""
        wanted, own = set(results.needed), []
        for call in reversed(calls):
            if call.name in wanted:
                own.append(call)
                wanted.update(() if call.arguments is None else call.arguments.needed)
        self._results, self._calls, self._source = results, own[::-1], source
        self.names = results.names
        self.needed = tuple(column.name for column in source.columns if column.name in wanted)
        self.metadata = tuple(name for name in metadata if name in wanted)

    def results(self, rows: pa.Table) -> pa.Table:
        """The results for these rows, by name. RuleFault where one fails, with the key of the first row on which it
        does."""
        try:
            return self._evaluated(rows)
        except (Py4JJavaError, PySparkException, CallFault) as error:
            raise self._fault(rows, error) from error

    def _evaluated(self, rows: pa.Table) -> pa.Table:
        rows = with_metadata(rows, self.metadata, self._source.table_id)
        for call in self._calls:
            rows = rows.append_column(call.name, call.results(rows))
        return self._results.results(rows)

    def _fault(self, rows: pa.Table, error: Exception) -> RuleFault:
        about = f"the rule of {self._source.table_id}"
        if _OUT_OF_MEMORY.search(first_line(error)):  # by it alone, it would count as the machine's fault
            return _too_large(about)
        remedy = "correct select or where in table_options"
        if isinstance(error, CallFault):
            remedy = error.remedy
            if not error.of_rows:
                return RuleFault(f"{about} failed: {error}", remedy)
        remedy = f"{remedy}, or correct the row and have the table read again"
        start, end = 0, rows.num_rows
        while end - start > 1:
            middle = (start + end) // 2
            try:
                self._evaluated(rows.slice(start, middle - start))
                start = middle
            except (Py4JJavaError, PySparkException, CallFault) as earlier:
                end, error = middle, earlier
        place = "rows"
        try:
            self._evaluated(rows.slice(start, 1))  # it may take many rows together to fail
        except (Py4JJavaError, PySparkException, CallFault):
            with suppress(KeyError):  # of a table that has no key in the rows
                values = [f"{name} {rows[name][start].as_py()!r}" for name in self._source.key]
                place = f"the row with {', '.join(values)}" if values else place
        return RuleFault(f"{about} failed on {place}: {first_line(error)}", remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a table's rule makes of rows of the source: rows of `target`, the lake's schema.

    `plain` are the columns that the source has too: the names there, by the names in the lake. `computed` are the
    others, and `condition` is the rule's; each is None where there is nothing to evaluate. `some` makes an evaluation
    of some computed ones. `keeps`: the lake's rows are those that readers gave, as they are. `of_change` are the
    columns that follow from METADATA alone.
    """

    target: TableSchema
    plain: dict[str, str]
    computed: Evaluation | None
    condition: Evaluation | None
    some: Callable[[Collection[str]], Evaluation | None]
    keeps: bool
    of_change: frozenset[str] = frozenset()

    @property
    def reads(self) -> set[str]:
        """The columns of the source that are needed."""
        needed = [name for each in (self.computed, self.condition) if each is not None for name in each.needed]
        return {*self.plain.values(), *needed}

    def chunk(self, rows: pa.Table) -> pa.Table:
        """The lake's rows of those that a SELECT gave."""
        if self.condition is not None:
            rows = rows.filter(self.condition.results(rows)[_KEPT])
        return self._in_lake(rows, self.computed and self.computed.results(rows))

    def changes(self, changes: pa.Table) -> pa.Table:
        """The changes of lake rows. One that leaves out its row deletes it, since the row may have been there before;
        without a key it is left out, as such tables have inserts only.
        """
        stays = pc.invert(is_any(changes[OP], *_GONE))
        if self.condition is not None:
            kept = pc.fill_null(scattered(self.condition.results(changes.filter(stays)), stays)[_KEPT], False)
            out, stays = pc.and_(stays, pc.invert(kept)), pc.and_(stays, kept)
            if self.target.key:
                ops = pc.if_else(out, Op.DELETE.value, changes[OP].cast(pa.string()))
                changes = changes.set_column(changes.schema.get_field_index(OP), OP, ops)
            else:
                inside = pc.invert(out)
                changes, stays = changes.filter(inside), stays.filter(inside)
        found = self.computed and scattered(self.computed.results(changes.filter(stays)), stays)
        return self._with_meta(changes, found)

    def images(self, changes: pa.Table) -> pa.Table:
        """The changes of lake rows, as `changes` has them, but each with its own row, also before an update and of a
        deletion. With a condition, each update has the row before it (`Shape.needs_before`): so one that takes a row
        out is a deletion, one that brings a row in an insert, and what happens outside is left out.
        """
        real = pc.invert(is_any(changes[OP], Op.TRUNCATE))
        if self.condition is not None:
            kept = pc.fill_null(scattered(self.condition.results(changes.filter(real)), real)[_KEPT], False)
            ops, stays = _inside(changes[OP], pc.or_(kept, pc.invert(real)))
            changes = changes.set_column(changes.schema.get_field_index(OP), OP, ops).filter(stays)
            real = pc.invert(is_any(changes[OP], Op.TRUNCATE))
        found = self.computed and scattered(self.computed.results(changes.filter(real)), real)
        return self._with_meta(changes, found)

    def _with_meta(self, changes: pa.Table, found: pa.Table | None) -> pa.Table:
        lake, meta = self._in_lake(changes, found), [changes[field.name] for field in META_FIELDS]
        return pa.Table.from_arrays([*lake.columns, *meta], schema=pa.schema([*lake.schema, *META_FIELDS]))

    def _in_lake(self, rows: pa.Table, found: pa.Table | None) -> pa.Table:
        """Put the columns of the source and the computed ones together, in the lake's order and types."""
        columns = [
            (rows[self.plain[field.name]] if found is None or field.name in self.plain else found[field.name]).cast(
                field.type
            )
            for field in self.target.arrow
        ]
        return pa.Table.from_arrays(columns, schema=self.target.arrow)


def scattered(found: pa.Table, where: pa.ChunkedArray) -> pa.Table:
    """Results for the rows at which `where` is true, as a table of all rows; null elsewhere."""
    at = pc.subtract(pc.cumulative_sum(pc.cast(where, pa.int64())), 1)
    return found.take(pc.if_else(where, at, None))


def _inside(ops: pa.ChunkedArray, kept: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """What changes are that a condition may leave out (`kept`), each update right behind the row before it: their
    operations, and which of them stay."""
    named, inside = ops.cast(pa.string()).to_numpy(zero_copy_only=False), kept.to_numpy()
    before = np.flatnonzero(named == Op.BEFORE.value)
    came, went = inside[before + 1] & ~inside[before], inside[before] & ~inside[before + 1]
    named[before[came] + 1], named[before[went]] = Op.INSERT.value, Op.DELETE.value
    return pa.array(named, pa.string()), pa.array(inside)


def plain_rule(source: TableSchema) -> Rule:
    """The rule that leaves rows as readers give them."""
    columns = tuple(_given(source, column) for column in source.columns)
    shown = None if source.shown is None else tuple(_given(source, column) for column in source.shown)
    target = replace(source, shape=None, columns=columns, shown=shown)
    target.__dict__["hash"] = source.hash
    names = {column.name: column.name for column in source.columns}
    return Rule(target=target, plain=names, computed=None, condition=None, some=lambda names: None, keeps=True)


def _too_large(about: str) -> RuleFault:
    return RuleFault(
        f"{about} makes values that are too large for the memory of Spark's JVM",
        "make them smaller, or give it more by spark.driver.memory, then retry the table",
    )


def prepared(session: SparkSession) -> SparkSession:
    """A session, set so that rules can be evaluated in it."""
    # BETWEEN and its like would become two projections, one on the other.
    session.conf.set("spark.sql.alwaysInlineCommonExpr", "true")
    return session


def rule_of(session: SparkSession, source: TableSchema, shape: Shape, functions: Functions) -> Rule:
    """Have Spark analyse the rule of a table with this schema. Raises RuleFault with Spark's own sentence."""
    expressions = _analysed(session, source, shape)
    calls = [_call(expressions, at, source, shape, functions) for at in range(expressions.callCount())]
    size, named = expressions.size(), named_by(shape, source)
    inputs = [_input(expressions, at, source) for at in range(size)]
    filters = shape.where is not None
    target, plain = _target(source, expressions, shape)
    # By this name the journal and the work of the table know both, since one follows from the other.
    target.__dict__["hash"] = source.hash

    def evaluation(results: list[int]) -> Evaluation | None:
        if not results:
            return None
        names = [str(expressions.name(at)) for at in results]
        return Evaluation(_Catalyst(expressions.choose(_java_list(session, results)), names), calls, source, named)

    def some(names: Collection[str]) -> Evaluation | None:
        wanted = [at for at in range(size - filters) if inputs[at] < 0 and str(expressions.name(at)) in names]
        return evaluation(wanted)

    computed = some([column.name for column in target.columns])
    of_change = [each for at in range(size - filters) if inputs[at] < 0 and named and (each := evaluation([at]))]
    condition = evaluation([size - 1] if filters else [])
    if condition is not None and condition.metadata:
        raise RuleFault(
            f"where of {source.table_id} names {condition.metadata[0]}, which is of a change and not of a row",
            "write a condition over columns of the source",
        )
    same = all(name == theirs for name, theirs in plain.items()) and target.arrow.equals(source.arrow, True)
    return Rule(
        target=target,
        plain=plain,
        computed=computed,
        condition=condition,
        some=some,
        keeps=computed is None and condition is None and same,
        of_change=frozenset(name for each in of_change if each.metadata and not each.needed for name in each.names),
    )


def _call(expressions: Any, at: int, source: TableSchema, shape: Shape, functions: Functions) -> _Call:
    """A call of a Python function, which must be there. Raises RuleFault."""
    function = next(each for each in shape.functions if each.name == expressions.callFunction(at))
    try:
        functions.check(function)
    except CallFault as fault:
        raise RuleFault(
            f"the Python function {function.name} ({function.call}) that the rule of {source.table_id} calls can't be"
            f" used by the Spark writer: {fault}",
            "put the module where the Spark writer's Python finds it (PYTHONPATH), or correct functions, then retry"
            " the table",
        ) from fault
    arguments = expressions.callArguments(at)
    try:
        kind = to_arrow_type(_parse_datatype_json_string(expressions.callType(at)), timestamp_utc=True)
    except PySparkException as error:
        sentence = f"the type of functions.{function.name} is not one of Arrow's: {first_line(error)}"
        raise RuleFault(sentence, "choose another type") from error
    return _Call(
        function=function,
        functions=functions,
        arguments=None if arguments is None else _Catalyst(arguments, [str(n) for n in range(arguments.size())]),
        kind=kind,
        name=str(expressions.callName(at)),
    )


def _input(expressions: Any, at: int, source: TableSchema) -> int:
    """Which column of the source a result is as it stands, -1 if it is none."""
    place = int(expressions.input(at))
    return place if place < len(source.columns) else -1


def _analysed(session: SparkSession, source: TableSchema, shape: Shape) -> Any:
    """Spark's analysis (`Expressions` in Java) of a rule over a table's columns; RuleFault if it has none."""
    maker = one_of(session.sparkContext, _SOURCE, "Expressions$Maker")
    named = named_by(shape, source)
    fields = pa.schema([source.field(column) for column in source.columns] + [(name, METADATA[name]) for name in named])
    schema = from_arrow_schema(fields, prefer_timestamp_ntz=True).json()
    types = cast(Any, session)._jvm.java.util.LinkedHashMap()
    for function in shape.functions:
        types.put(function.name, function.type)
        try:
            maker.check(cast(Any, session)._jsparkSession, function.name, function.type)
        except (Py4JJavaError, PySparkException) as error:
            sentence = f"the Python function {function.name} of the pipeline is refused by Spark: {first_line(error)}"
            raise RuleFault(sentence, f"correct functions.{function.name}") from error
    items = without_stars(shape.select, named)
    if shape.where is not None:
        items.append(f"(\n{shape.where}\n) AS `{_KEPT}`")

    def analysed(some: list[str], at: str = "select") -> Any:
        about = "a rule" if len(some) > 1 else repr(shape.where if at == "where" else some[0])
        about = f"{about} in table_options of {source.table_id}"
        try:
            found = maker.make(cast(Any, session)._jsparkSession, schema, _java_list(session, some), types)
        except (Py4JJavaError, PySparkException) as error:
            if _OUT_OF_MEMORY.search(first_line(error)):
                raise _too_large(about) from error
            raise RuleFault(f"{about} is refused by Spark: {first_line(error)}", "correct it", at=at) from error
        if not found.areOfOneRow():
            raise RuleFault(
                f"{about} does not make one row of each row by itself, as an aggregate, a window or a generator",
                "use functions of one row",
                at=at,
            )
        if unsteady := [name for at in range(found.size()) for name in found.unsteady(at)]:
            raise RuleFault(
                f"{about} uses {', '.join(unsteady)}, whose value does not depend on the row alone",
                "use columns and functions of them",
                at=at,
            )
        return found

    try:
        found = analysed(items)
    except RuleFault:
        for number, item in enumerate(items):
            analysed([item], f"select[{number}]" if number < len(shape.select) else "where")  # which of them it is
        raise
    if shape.where is not None and (kind := found.type(found.size() - 1).strip('"')) != "boolean":
        raise RuleFault(f"where of {source.table_id} is of the type {kind}", "make it a condition", at="where")
    return found


def _target(source: TableSchema, expressions: Any, shape: Shape) -> tuple[TableSchema, dict[str, str]]:
    """The lake's schema, and the names of the source's columns by those in the lake."""
    outputs = range(expressions.size() - (shape.where is not None))
    made: list[Column] = []
    plain: dict[str, str] = {}
    last = len(outputs)
    for number, at in enumerate(outputs, start=1):
        name, place = str(expressions.name(at)), _input(expressions, at, source)
        if not name.strip() or name.endswith(" "):
            sentence = f"select of {source.table_id} has a column named {name!r}"
            raise RuleFault(sentence, "give it another name by AS", at="select")
        # Two names of the source itself may differ in a way that only Spark does not see.
        own = place >= 0 and source.columns[place].name == name
        alike = [known.name for known in made if known.name.lower() == name.lower()]
        if any(other == name or not (own and plain.get(other) == other) for other in alike):
            sentence = f"select of {source.table_id} has two columns {name}"
            raise RuleFault(sentence, "give one another name by AS", at="select")
        if place >= 0:
            column, plain[name] = _given(source, source.columns[place]), source.columns[place].name
            last += column.element_id is not None
            element = None if column.element_id is None else last
            made.append(replace(column, name=name, field_id=number, element_id=element))
        else:
            kind = str(expressions.type(at))
            computed = spark_columns.computed(name, number, kind)
            if computed is None:
                sentence = f"the column {name} that select of {source.table_id} computes is of the type {kind}"
                raise RuleFault(sentence, spark_columns.REMEDY, at="select")
            made.append(computed)
    by_source = {theirs: name for name, theirs in reversed(plain.items())}
    if missing := [name for name in source.key if name not in by_source]:
        sentence = f"select of {source.table_id} lacks the column {missing[0]} of its key"
        raise RuleFault(sentence, "add it, under any name", at="select")
    return replace(
        source,
        columns=tuple(made),
        key=tuple(by_source[name] for name in source.key),
        last_field_id=last,
        shown=None,
        shape=None,
    ), plain


def _given(source: TableSchema, column: Column) -> Column:
    """A column, of the source or of those that the lake shows, as readers give it: one that is masked is text."""
    if not any(known.field_id == column.field_id for known in map(source.column, source.masked)):
        return column
    return Column(name=column.name, field_id=column.field_id, mysql_type="longtext", nullable=True, charset="utf8mb4")


def _java_list(session: SparkSession, items: Sequence[Any]) -> Any:
    made = cast(Any, session)._jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made
