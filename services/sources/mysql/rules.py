"""What is asked of a Spark about a pipeline's rules and derived tables: the source's schemas, and some masked rows."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from cutline.common.config.globs import select_tables
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.table_options import TableOptions
from cutline.common.errors import ConfigError, SourceLost
from cutline.common.mask_key import MaskKey
from cutline.common.masking import Masks, unfit_mask
from cutline.common.preview import MOST_TABLES, ROWS, AskedQuery, AskedTable, PreviewRequest, Refusal
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.services.sources.mysql.catalogue import TableInfo, list_tables
from cutline.services.sources.mysql.connection import Connection, RowStream, translate_errors
from cutline.services.sources.mysql.decode.result import ResultDecoder
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.keys import select_rows
from cutline.services.sources.mysql.preflight import described
from cutline.services.sources.mysql.server import Server, identify, limit_statements

SECONDS = 5.0
"""How long the SELECT of some rows may take."""
MOST_BYTES = 1 << 20
"""Rows are left out beyond that, since they pass through Redis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesAsked:
    """What is to be asked, None if there is no rule and no derived table.

    `refusals` are those that need no Spark. `ruled` counts the tables with a rule, of which the request has the first
    MOST_TABLES. `key` is the key of masks; `own_key`: one that is made up, since this process has not the pipeline's.
    """

    request: PreviewRequest | None
    refusals: tuple[Refusal, ...] = ()
    ruled: int = 0
    key: MaskKey
    own_key: bool = False

    def schema(self, table: str) -> TableSchema | None:
        """The schema of a table that the request has."""
        asked = self.request.tables if self.request is not None else ()
        return next((each.schema for each in asked if each.schema.table_id == table), None)


def captured(config: PipelineConfig, schema: TableSchema, shape: Shape | None) -> TableSchema:
    """A table's schema as the pipeline captures it, with its rule."""
    booleans, longs = config.values.tinyint1 == "boolean", config.values.bigint_unsigned == "long"
    return replace(schema, booleans=booleans, longs=longs, shape=shape)


def rules_asked(
    config: PipelineConfig, found: Mapping[str, TableInfo | SourceLost], table: str | None = None
) -> RulesAsked:
    """What is to be asked about tables as the source describes them (`described`); about `table` in any case."""
    key, own = _key_of(config)
    shapes = config.shapes(found, key.fingerprint)
    texts = [each.sql.lower() for each in config.derived]
    tables: list[AskedTable] = []
    refusals: list[Refusal] = []
    unknown: list[str] = []
    ruled = 0
    for name, info in found.items():
        shape = shapes.get(name)
        named = any(name.lower() in text or name.partition(".")[2].lower() in text for text in texts)
        if isinstance(info, SourceLost) or info.faults:
            unknown += [name] if named else []
            continue
        ruled += shape is not None
        if not (named or name == table or (shape is not None and ruled <= MOST_TABLES)):
            continue
        schema, place = captured(config, info.schema, shape), place_of(config.table_options, name)
        if (cause := unfit_mask(schema, info.chunk_key)) is not None:
            refusals.append(Refusal(place=f"{place}.mask", table=name, cause=cause))
            unknown.append(name)
        else:
            tables.append(AskedTable(schema=schema, place="" if shape is None else place))
    queries = [
        AskedQuery(name=each.name, sql=each.sql, place=f"derived[{at}]") for at, each in enumerate(config.derived)
    ]
    if not queries and all(each.schema.shape is None and each.schema.table_id != table for each in tables):
        return RulesAsked(request=None, refusals=tuple(refusals), ruled=ruled, key=key, own_key=own)
    request = PreviewRequest(
        tables=tuple(tables),
        derived=tuple(queries),
        unknown=tuple(unknown),
        settings=_of_rules(config.sink.spark),
        table=table,
    )
    return RulesAsked(request=request, refusals=tuple(refusals), ruled=ruled, key=key, own_key=own)


def asked_of(config: PipelineConfig) -> RulesAsked:
    """What is to be asked about the rules of a definition, by the source as it is now."""
    with closing(Hosts(config.source).connect()) as connection:
        selected = config.select(list_tables(connection))
        return rules_asked(config, described(connection, identify(connection), config, selected))


def changes_it(before: PipelineConfig | None, config: PipelineConfig, refusal: Refusal) -> bool:
    """Whether a definition changes what is refused, or makes it: what the pipeline has already hinders no other change.
    """
    if before is None:
        return True
    if refusal.place.startswith("derived"):
        return [each for each in before.derived if each.name == refusal.table] != [
            each for each in config.derived if each.name == refusal.table
        ]
    return before.options_of(refusal.table) != config.options_of(refusal.table)


def sample(conn: Connection, server: Server, schema: TableSchema, key: MaskKey) -> pa.Table:
    """Some rows of a table (ROWS at most, none that MOST_BYTES have no room for), as readers give them: the columns
    that its rule needs, masked by this key. Raises SourceLost, TableLocked and Unavailable."""
    clear = schema.clear
    limit_statements(conn, server, SECONDS)
    decoder = ResultDecoder(clear)
    blocks = RowStream(conn, f"{select_rows(clear, None, None)} LIMIT {ROWS}")
    while not decoder.done:
        with translate_errors(schema.table_id, schema.table_id):
            decoder.feed(next(blocks))
    with translate_errors(schema.table_id, schema.table_id):
        blocks.end()
    if not decoder.rows:
        return schema.arrow.empty_table()
    masked = pa.Table.from_batches([Masks(lambda: key).masked(decoder.take(), schema)])
    rows = masked.num_rows
    while rows and masked.slice(0, rows).nbytes > MOST_BYTES:
        rows -= 1
    return masked.slice(0, rows)


def place_of(entries: Sequence[TableOptions], table: str) -> str:
    """The place in the pipeline file of the options of a table, as `table_options[2]`; "" if none matches."""
    numbers = (at for at, options in enumerate(entries) if select_tables((options.tables,), (table,)))
    at = next(numbers, None)
    return "" if at is None else f"table_options[{at}]"


def _key_of(config: PipelineConfig) -> tuple[MaskKey, bool]:
    """The key of the pipeline's masks; or one that nobody knows, and True, if this process has not the pipeline's."""
    with suppress(ConfigError):
        if (key := config.mask_key()) is not None:
            return key, False
    return MaskKey(secrets.token_bytes(32)), any(options.mask for options in config.table_options)


def _of_rules(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of Spark's settings that may change what an expression means; none that names a catalogue, or a secret."""
    own = {key: value for key, value in settings.items() if key.startswith("spark.sql.")}
    return {key: value for key, value in own.items() if not key.startswith("spark.sql.catalog")}
