"""Which errors harm one table alone, and which end a start of the Spark writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.contract import Sink
from cutline.spark_writer.sinks.side_by_side import SideBySide

logger = logging.getLogger("cutline.spark_writer")


class Sparing:
    """Work on several tables of a sink that keeps their errors apart."""

    def __init__(self, sink: Sink, side_by_side: SideBySide, check: Callable[[], None]) -> None:
        """`check` raises Unavailable if the sink does not accept a commit on a table of Cutline's own."""
        self._sink = sink
        self._each = side_by_side.each
        self._check = check

    def each(
        self,
        items: Collection[Any],
        do: Callable[[Any], Any],
        table_of: Callable[[Any], str] = str,
        *,
        undo: Callable[[Any], None] = lambda item: None,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Exception]]]:
        """Call `do` for each table's item, in parallel; return (item, result) of each success, and (item, error) of
        each error that is the table's own.

        An error is a table's own if the sink's `may_be_own` allows it, if it comes again at a second try (after `undo`,
        with the table read anew), and if the sink accepts a commit on Cutline's own table between the two tries. Any
        other error is raised, as by `SideBySide.each`.
        """

        def tried(item: Any) -> Any:
            try:
                return do(item)
            except Exception as error:
                if not self._sink.may_be_own(error):
                    raise
                return error

        def tried_again(item: Any) -> Any:
            try:
                undo(item)
                return do(item)
            except Exception as error:
                if not self._sink.may_be_own(error):
                    raise
                return error

        results = self._each(items, tried)
        failing = [item for item, result in results if isinstance(result, Exception)]
        if not failing:
            return results, []
        self._check()
        for item in failing:
            self._sink.forget(table_of(item))
        good = [(item, result) for item, result in results if not isinstance(result, Exception)]
        results = good + self._each(failing, tried_again)
        failed = [(item, result) for item, result in results if isinstance(result, Exception)]
        for item, _ in failed:
            try:
                undo(item)
            except Exception as error:
                logger.warning("what was begun of %s could not be set back: %s", table_of(item), first_line(error))
            self._sink.forget(table_of(item))
        return [(item, result) for item, result in results if not isinstance(result, Exception)], failed
