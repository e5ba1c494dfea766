"""The pipeline file: its keys with types, defaults and meanings, and how it is read.

The file is checked strictly: an unknown key, a wrong type or a repeated key is refused with its line and column, and
one `ConfigError` holds all faults.

A pipeline's *definition* is its form in the store (`PipelineStore.define`): the file's content with defaults filled in
and paths made absolute, without `workers` (the number of processes is no part of a pipeline). It names where the
password is found, never the password.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from cutline.common.causes import Cause, Code
from cutline.common.config.faults import Strict, cause_of, fault, location, repeated_keys
from cutline.common.config.reserved import NAMESPACE
from cutline.common.config.source import SourceConfig
from cutline.common.errors import ConfigError, redacted
from cutline.common.table_id import spellings, split_names, split_table_id

SYSTEM_SCHEMAS = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
OUR_PROPERTIES = frozenset(
    (
        "current-schema",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "default-partition-spec",
        "default-sort-order",
        "encryption.key-id",
        "format-version",
        "gc.enabled",
        "history.expire.max-ref-age-ms",
        "schema.name-mapping.default",
        "snapshot-count",
        "uuid",
        "write.data.path",
        "write.delete.format.default",
        "write.delete.granularity",
        "write.format.default",
        "write.object-storage.path",
    )
)
"""Properties of a lake table that Iceberg keeps for itself, or without which Cutline can't write or expire files."""
FIXED = (
    "name", "start", "stop", "values", "keyless", "snapshot.chunks",
    "sink.type", "sink.warehouse", "sink.own_namespace",
)  # fmt: skip
"""Settings (with all below them) that a pipeline keeps for life: the rows copied so far depend on them."""
START_WORDS = ("initial", "snapshot-only", "latest", "earliest")


def _glob_problem(pattern: object) -> tuple[str, str] | None:
    """The pattern with the reason why it is not a glob on tables, and what to write; None if it is one."""
    if isinstance(pattern, str):
        exclusion, glob = _halves(pattern)
        with suppress(ValueError):
            names = split_names(glob)
            if len(names) > 2 and all(names):
                written = " or ".join(repr(exclusion + each) for each in spellings(glob))
                return f"{pattern!r}, which is ambiguous since a name in it has a dot", f"write it as {written}"
            if len(names) == 2 and all(names) and not glob.startswith("!"):
                return None
    return (
        f'{pattern!r}, which is not a glob on db.table, as in "shop.*" or "!shop.tmp_*"',
        'a name with a dot, or with "!" at its beginning, is written in backticks, as in "`my.db`.*"',
    )


def _glob(pattern: str) -> str:
    if (problem := _glob_problem(pattern)) is not None:
        raise fault(f"has {problem[0]}", problem[1])
    return pattern


def _carried(glob: object) -> object:
    """A glob of a stored definition, which may be one of the first versions, as this one writes it."""
    if not isinstance(glob, str):
        return glob
    exclusion, tables = _halves(glob)
    with suppress(ValueError):
        if len(written := spellings(tables)) > 1:
            return exclusion + written[0]
    return glob


def _halves(pattern: str) -> tuple[str, str]:
    """The `!` of an exclusion, or nothing, and the glob after it."""
    return ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)


TableGlob = Annotated[str, AfterValidator(_glob)]
"""A glob on tables, or one that excludes (`!`)."""


class SnapshotConfig(Strict):
    """How tables are snapshotted."""

    chunk_rows: int = Field(default=50_000, ge=1, description="target number of rows for one SELECT of a snapshot")
    chunks: Literal["replay", "exact"] = Field(
        default="replay",
        description="replay: later changes are replayed over chunks; exact: each chunk is as of its own high watermark",
    )
    max_select_seconds: float = Field(
        default=10.0,
        ge=1.0,
        le=3600.0,
        description="seconds after which a chunk's SELECT is ended early; another SELECT reads the rest of the chunk",
    )
    max_rows_per_second: int | None = Field(
        default=None,
        ge=1,
        description="limit on the rows that all readers together SELECT, null: none; `cutline throttle` changes it",
    )
    max_bytes_per_second: int | None = Field(
        default=None, ge=1, description="the same in bytes of decoded rows; `cutline throttle` changes it too"
    )
    max_threads_running: int | None = Field(
        default=None,
        ge=1,
        description="readers pause snapshots while the server's Threads_running, theirs included, is above it;"
        " null: no limit",
    )


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_tuple)]


def _scalar(value: object) -> object:
    """A YAML scalar as text that Spark and Iceberg read: 4 -> "4", true -> "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Scalar = Annotated[str, BeforeValidator(_scalar)]


def sorted_by(column: str) -> tuple[str, bool]:
    """Split an item of `sort` into the column's name and whether it is descending: `day desc` -> ("day", True)."""
    if column.endswith(" desc"):
        return column.removesuffix(" desc"), True
    return column.removesuffix(" asc"), False


_TRANSFORM = re.compile(r"(\w+)\(\s*(?:(\d+)\s*,)?\s*(.+?)\s*\)")
_PERIODS = ("year", "month", "day", "hour")


def partitioned_by(item: str) -> tuple[str, str]:
    """Split an item of `partition` into the column's name and Iceberg's transform of its values.

    `bucket(16, id)` -> ("id", "bucket[16]"), `days(at)` -> ("at", "day"), `region` -> ("region", "identity").
    ValueError if there is no such transform.
    """
    found = _TRANSFORM.fullmatch(item.strip())
    if found is None and item.strip() and "(" not in item:
        return item.strip(), "identity"
    name, width, column = found.groups() if found else ("", None, "")
    period = name.lower().removesuffix("s")
    if period in _PERIODS and width is None:
        return column, period
    if name.lower() in ("bucket", "truncate") and width is not None and 0 < int(width) < 2**31:
        return column, f"{name.lower()}[{int(width)}]"
    raise ValueError(item)


class TableOptions(Strict):
    """Options for the tables of one glob, in addition to those for all tables."""

    tables: str = Field(description="glob on db.table; the first entry that matches a table applies")
    chunk_rows: int | None = Field(
        default=None, ge=1, description="rows of a chunk of these tables, instead of snapshot.chunk_rows"
    )
    chunk_by: Names = Field(
        default=(),
        description="NOT NULL columns, the first ones of an index, to chunk by instead of the identity; `replay` only",
    )
    identity: Names = Field(
        default=(),
        description="indexed NOT NULL columns that identify a row by your own guarantee, in a table without a key;"
        " duplicate rows quarantine the table",
    )
    properties: dict[str, Scalar] = Field(
        default_factory=dict,
        exclude_if=lambda properties: not properties,
        description="Iceberg table properties that the lake table is made with; later changes by others stay",
    )
    format_version: Literal[3, 2] | None = Field(
        default=None,
        exclude_if=lambda version: version is None,  # so that definitions of before this setting are unchanged
        description="Iceberg format version of these tables, instead of sink.format_version",
    )
    sort: Names = Field(
        default=(),
        exclude_if=lambda columns: not columns,
        description="columns by which the rows in each data file are sorted; `desc` behind a name turns it round",
    )
    partition: Names = Field(
        default=(),
        exclude_if=lambda columns: not columns,
        description="columns by which the lake table is partitioned, each as it is or in one of Iceberg's transforms:"
        " `region`, `day(created)`, `bucket(16, id)`, `truncate(10, name)`",
    )

    @field_validator("properties", mode="after")
    @classmethod
    def _not_ours(cls, properties: dict[str, str]) -> dict[str, str]:
        for name in properties:
            if name.startswith(("cutline.", "write.metadata.metrics.column.")) or name in OUR_PROPERTIES:
                raise fault(f"sets {name!r}, which Cutline or Iceberg itself sets", "remove it")
        return properties

    @field_validator("sort", mode="after")
    @classmethod
    def _each_once(cls, sort: tuple[str, ...]) -> tuple[str, ...]:
        names = [sorted_by(column)[0] for column in sort]
        for name in names:
            if not name.strip() or names.count(name) > 1:
                raise fault(f"sorts by {name!r}, which is empty or there twice", "name each column once")
        return sort

    @field_validator("partition", mode="after")
    @classmethod
    def _known_transforms(cls, partition: tuple[str, ...]) -> tuple[str, ...]:
        columns = []
        for item in partition:
            try:
                columns.append(partitioned_by(item)[0])
            except ValueError:
                raise fault(
                    f"partitions by {item!r}, which is no known transform",
                    "write a column's name, year(column), month(column), day(column), hour(column), bucket(16,"
                    " column) or truncate(10, column)",
                ) from None
        for name in columns:
            if columns.count(name) > 1:
                raise fault(f"partitions by {name!r} twice", "name each column once")
        return partition

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        if self.tables.startswith("!"):
            raise fault(f'has tables {self.tables!r}, which is not a glob on db.table, as in "shop.*"')
        if (problem := _glob_problem(self.tables)) is not None:
            raise fault(f"has tables {problem[0]}", problem[1])
        if self.chunk_by and self.identity:
            raise fault("has identity and chunk_by", "a table with an identity is chunked by it, so keep one")
        return self


class ValuesConfig(Strict):
    """The form of values that the lake can hold in more than one way, or not at all."""

    tinyint1: Literal["int", "boolean"] = Field(
        default="int", description="TINYINT(1) outside the key as int, or as boolean: every value but 0 is true"
    )
    bigint_unsigned: Literal["decimal", "long"] = Field(
        default="decimal",
        exclude_if=lambda form: form == "decimal",  # so that definitions of before this setting are unchanged
        description="BIGINT UNSIGNED as decimal(20, 0), or as long, which engines read faster: a value of 2^63 or more"
        " then quarantines its table",
    )
    zero_dates: Literal["quarantine"] | None = Field(
        default=None,
        description="dates that exist in no calendar (0000-00-00): null turns them into null and counts them, "
        "quarantine stops their table",
    )


class CheckpointConfig(Strict):
    """When checkpoints are taken."""

    interval_seconds: float = Field(
        default=10.0, ge=0.1, le=3600.0, description="seconds from the start of one checkpoint to the next"
    )
    max_unsaved_bytes: int = Field(
        default=8 << 30,
        ge=1 << 20,
        exclude_if=lambda most: most == 8 << 30,  # so that definitions of before this setting are unchanged
        description="bytes of decoded rows that all readers together send without a complete checkpoint: from half of"
        " it on a checkpoint comes sooner, and at it readers wait for one",
    )


class RetentionConfig(Strict):
    """How long savepoints, publications and old snapshots of the lake are kept."""

    grace_seconds: float = Field(
        default=3600.0,
        ge=60.0,
        description="how long every publication can be restored, and its snapshots of the lake read",
    )
    savepoints: int = Field(default=10, ge=0, description="how many savepoints are kept, the newest ones")
    savepoint_days: float | None = Field(
        default=30.0, gt=0, description="how long a savepoint is kept, in days; null: until newer savepoints replace it"
    )


class SinkConfig(Strict):
    """The lake."""

    type: Literal["iceberg"] = Field(default="iceberg", description="kind of lake")
    warehouse: str = Field(
        min_length=1, description="folder or URL of the lake (a folder is relative to the pipeline file)"
    )
    catalog: dict[str, Scalar] = Field(
        default_factory=dict,
        description="Iceberg catalogue properties, passed through; empty: SQLite in <warehouse>/catalog.db, named lake",
    )
    spark: dict[str, Scalar] = Field(
        default_factory=dict, description="Spark properties, passed through (spark.master, ...)"
    )
    engine: Literal["auto", "spark", "local"] = Field(
        default="auto",
        exclude_if=lambda engine: engine == "auto",  # so that definitions of before this setting are unchanged
        description="who applies changes: Spark's executors, the Spark writer's own process, or as each batch needs",
    )
    format_version: Literal[3, 2] = Field(
        default=3,
        exclude_if=lambda version: version == 3,
        description="Iceberg format version of the lake's tables; 2 for engines that can't read deletion vectors",
    )
    adopt: bool = Field(
        default=False,
        exclude_if=lambda adopt: not adopt,
        description="take over lake tables of another pipeline of this name, which was deleted or is in another store",
    )
    own_namespace: str = Field(
        default=NAMESPACE,
        exclude_if=lambda namespace: namespace == NAMESPACE,
        description="namespace of Cutline's own tables in the lake, publications and cuts",
    )

    @field_validator("own_namespace", mode="after")
    @classmethod
    def _plain_namespace(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", value):
            raise fault(
                f"must be lower case letters, digits and _, not starting with a digit, at most 63, not {value!r}"
            )
        return value


class WorkersConfig(Strict):
    """The number of processes that `cutline run` starts. Not part of the definition; may differ in each run."""

    readers: int = Field(default=2, ge=1, le=64, description="reader processes that `cutline run` starts")
    writers: int = Field(default=2, ge=1, le=64, description="writer processes that `cutline run` starts")


class Point(Strict):
    """A place in the binlog that a user names: file and position, or a GTID set, or a time (with its zone)."""

    file: str | None = Field(default=None, description="binlog file name")
    position: int | None = Field(default=None, ge=4, description="offset in the file")
    gtid: str | None = Field(default=None, min_length=1, description="GTID set: its transactions are before the place")
    timestamp: datetime | None = Field(
        default=None, description="transactions committed at the source at this time or later are after the place"
    )

    @field_validator("timestamp", mode="before")
    @classmethod
    def _zoned(cls, value: object) -> object:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise fault("must be a time like 2026-01-31T12:00:00Z") from None
        if isinstance(value, datetime) and value.tzinfo is None:
            raise fault("must have a time zone, as in 2026-01-31T12:00:00Z")
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = {name for name in ("file", "position", "gtid", "timestamp") if getattr(self, name) is not None}
        if given not in ({"file", "position"}, {"gtid"}, {"timestamp"}):
            raise fault("must be {file:, position:}, {gtid:} or {timestamp:}")
        return self


def _start(value: object) -> object:
    if isinstance(value, str) and value not in START_WORDS:
        raise fault(
            f"must be {', '.join(START_WORDS)}, {{file:, position:}}, {{gtid:}} or {{timestamp:}}, not {value!r}"
        )
    if not isinstance(value, str | dict | Point):
        raise fault(f"must be one of {', '.join(START_WORDS)} or a place in the binlog, not {value!r}")
    return Point.model_validate(value) if isinstance(value, dict) else value


def _stop(value: object) -> object:
    if not isinstance(value, dict | Point | None):
        raise fault(f"must be {{file:, position:}}, {{gtid:}} or {{timestamp:}}, not {value!r}")
    return Point.model_validate(value) if isinstance(value, dict) else value


class PipelineConfig(Strict):
    """A checked pipeline file; the services use no other form of it."""

    name: str = Field(description="name of the pipeline: lower case letters, digits, - and _, at most 63")
    source: SourceConfig = Field(description="the server to copy from")
    tables: tuple[str, ...] = Field(
        description="globs on db.table, a name with a dot in backticks; a leading ! excludes"
    )
    table_options: Annotated[tuple[TableOptions, ...], BeforeValidator(_tuple)] = Field(
        default=(), description="list of options for some tables"
    )
    snapshot: SnapshotConfig = Field(default_factory=lambda: SnapshotConfig())
    keyless: Literal["quarantine", "append"] = Field(
        default="quarantine",
        description="tables without primary or NOT NULL unique key: quarantine, or append (their first UPDATE or "
        "DELETE quarantines them)",
    )
    start: Annotated[Literal["initial", "snapshot-only", "latest", "earliest"] | Point, BeforeValidator(_start)] = (
        Field(
            default="initial",
            description="where to begin: initial, snapshot-only, latest, earliest, or a place in the binlog",
        )
    )
    schema_changes: Literal["evolve", "exact", "ignore", "halt"] = Field(
        default="evolve",
        description="when columns change at the source, until the table's next generation: evolve: the lake follows "
        "and keeps dropped ones; exact: it drops them too; ignore: it keeps its columns and names; halt: table stops",
    )
    stop: Annotated[Point | None, BeforeValidator(_stop)] = Field(
        default=None, description="place in the binlog at which the pipeline ends; null: it runs on"
    )
    values: ValuesConfig = Field(default_factory=lambda: ValuesConfig())
    unlogged_cascades: Literal["quarantine", "allow"] = Field(
        default="quarantine",
        description="tables that foreign keys change without a record in the binlog: quarantine, or allow them, "
        "though the lake misses those changes",
    )
    checkpoint: CheckpointConfig = Field(default_factory=lambda: CheckpointConfig())
    retention: RetentionConfig = Field(default_factory=lambda: RetentionConfig())
    tags: dict[str, Scalar] = Field(
        default_factory=dict,
        exclude_if=lambda tags: not tags,
        description="names and values of your own, by which lists of pipelines can be filtered",
    )
    sink: SinkConfig = Field(description="the lake to copy to")
    workers: WorkersConfig = Field(default_factory=lambda: WorkersConfig())

    @field_validator("name", mode="after")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", value):
            raise fault(
                f"must be lower case letters, digits, - and _, starting with a letter, at most 63, not {value!r}"
            )
        return value

    @field_validator("tables", mode="before")
    @classmethod
    def _list_of_globs(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            raise fault('must be a list of globs, as in ["shop.*", "!shop.tmp_*"]')
        for pattern in value:
            if (problem := _glob_problem(pattern)) is not None:
                raise fault(f"has {problem[0]}", problem[1])
        if not any(not pattern.startswith("!") for pattern in value):
            raise fault("includes nothing", "name at least one table without a leading !")
        return tuple(value)

    @field_validator("tags", mode="after")
    @classmethod
    def _short_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        for name, value in tags.items():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", name) or len(value) > 255:
                raise fault(
                    f"has {name!r}, which is no tag",
                    "a name has up to 63 letters, digits, `.`, `_`, `/` and `-`, a value up to 255 characters",
                )
        return tags

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.stop is not None and self.start == "snapshot-only":
            raise fault("ends after the snapshot by start: snapshot-only, so it can't have a stop too", "remove one")
        return self

    @model_validator(mode="after")
    def _chunks_by_identity(self) -> Self:
        if self.snapshot.chunks == "exact" and any(options.chunk_by for options in self.table_options):
            raise fault(
                "has table_options with chunk_by, which snapshot.chunks: exact does not support (a row whose column"
                " changes would move to another chunk)",
                "use replay",
            )
        return self

    def options_of(self, table_id: str) -> TableOptions:
        """The options of this table ("db.table"); empty ones if no entry matches."""
        return options_of(self.table_options, table_id)

    @property
    def server_id(self) -> int:
        """Replica id of the main binlog connection; the catch-up connection takes the next number."""
        return self.server_id_after(0)

    def server_id_after(self, taken: int) -> int:
        """The id to try after `taken` ids were found in use by other clients; always the same if the file sets one."""
        if self.source.server_id is not None:
            return self.source.server_id
        digest = hashlib.sha256(f"{self.name} {taken}".encode() if taken else self.name.encode()).digest()
        return 0x4000_0000 | (int.from_bytes(digest[:4], "big") & 0x3FFF_FFFE)

    def select(self, tables: Iterable[str]) -> tuple[str, ...]:
        """Return those of `tables` ("db.table") that this pipeline captures, sorted; see `select_tables`."""
        return select_tables(self.tables, tables)

    def definition(self) -> dict[str, Any]:
        """Return the pipeline's form in the store: plain JSON, no password, no `workers`."""
        return self.model_dump(mode="json", exclude={"workers"})

    @classmethod
    def from_definition(cls, definition: Mapping[str, Any]) -> PipelineConfig:
        """Build the pipeline from `definition()`; ConfigError if this version can't read it.

        In a definition of the first versions a glob has no backticks, and its database ends at the first dot.
        """
        carried = dict(definition)
        if isinstance(globs := definition.get("tables"), list | tuple):
            carried["tables"] = [_carried(glob) for glob in globs]
        if isinstance(entries := definition.get("table_options"), list | tuple):
            carried["table_options"] = [
                {**entry, "tables": _carried(entry.get("tables"))} if isinstance(entry, Mapping) else entry
                for entry in entries
            ]
        try:
            return cls.model_validate(carried)
        except ValidationError as error:
            faults = (cause_of(detail, cls).before("the store's definition: ") for detail in error.errors())
            raise ConfigError.several(faults) from error


def options_of(entries: Iterable[TableOptions], table_id: str) -> TableOptions:
    """The first of these entries that matches the table ("db.table"); empty options if none does."""
    found = (options for options in entries if select_tables((options.tables,), (table_id,)))
    return next(found, TableOptions(tables="*.*"))


_SECRET = re.compile(
    r"(?:secret|passw|token|credential|access-?key|shared-key|connection-string|authorization|\.key$)"
    r"(?!.*_(?:env|file)$)",
    re.IGNORECASE,
)


def shown(name: str, value: Any) -> Any:
    """A setting's value, safe to print: without secrets for the catalogue or Spark, and without a URL's password."""
    if isinstance(value, Mapping):
        return {key: shown(key, item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    return "***" if _SECRET.search(name) else redacted(value) if "://" in value else value


def select_tables(patterns: Iterable[str], tables: Iterable[str]) -> tuple[str, ...]:
    """Return those of `tables` (ids) that a glob includes and no `!` glob excludes, sorted.

    The two halves of a glob are compared with the database and the table, so `*` matches dots in a name and never the
    one between the names. An exclusion wins wherever it is in the list. Case matters; `_` and `%` have no special
    meaning. The server's own schemas (mysql, sys, ...) are never captured. The result may be empty: the caller decides
    whether that is an error.
    """
    includes: list[tuple[str, ...]] = []
    excludes: list[tuple[str, ...]] = []
    for pattern in patterns:
        exclusion, glob = _halves(pattern)
        (excludes if exclusion else includes).append(split_names(glob))

    def matches(globs: list[tuple[str, ...]], schema: str, table: str) -> bool:
        return any(fnmatchcase(schema, names[0]) and fnmatchcase(table, names[1]) for names in globs)

    chosen = set()
    for name in tables:
        schema, table = split_table_id(name)
        if (
            schema.lower() not in SYSTEM_SCHEMAS
            and matches(includes, schema, table)
            and not matches(excludes, schema, table)
        ):
            chosen.add(name)
    return tuple(sorted(chosen))


def load(path: str | Path) -> PipelineConfig:
    """Read and check a pipeline file; ConfigError holds every fault with file, line and column.

    Relative paths in it (warehouse, password_file, those of tls) are relative to the file's folder; the result has
    absolute paths.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"the pipeline file {path} can't be read ({reason})", "give the path of a YAML file"
        ) from error
    return parse(text, where=str(path), folder=path.resolve().parent)


def parse(text: str, *, where: str = "pipeline.yaml", folder: Path | None = None) -> PipelineConfig:
    """Check the text of a pipeline file; `where` names it in faults, relative paths are relative to `folder`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark is not None else where
        raise ConfigError(_not_yaml(place, error.problem)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(_not_yaml(where, error)) from error
    if root is None or not isinstance(content, dict):
        raise ConfigError(
            f"{where}: this is not a pipeline", "it must be a mapping with the keys name, source, tables and sink"
        )
    faults = list(repeated_keys(root))
    try:
        config = PipelineConfig.model_validate(content)
    except ValidationError as error:
        faults += ((*location(root, detail["loc"]), cause_of(detail, PipelineConfig)) for detail in error.errors())
    if faults:
        faults.sort(key=lambda found: (found[0], found[1], str(found[2])))
        raise ConfigError.several(cause.before(f"{where}:{line}:{column}: ") for line, column, cause in faults)
    return _absolute(config, folder or Path.cwd())


def _not_yaml(place: str, problem: object) -> Cause:
    return Cause(Code.SYNTAX, f"{place}: this is not YAML ({problem})", "correct the syntax")


def _absolute(config: PipelineConfig, folder: Path) -> PipelineConfig:
    """Make the file's relative paths absolute, so that they are the same in every process."""
    warehouse = config.sink.warehouse
    if warehouse.startswith("file://"):
        warehouse = warehouse.removeprefix("file://")
    if "://" not in warehouse:
        warehouse = os.path.normpath(folder / Path(warehouse).expanduser())
    return config.model_copy(
        update={
            "sink": config.sink.model_copy(update={"warehouse": warehouse}),
            "source": config.source.absolute(folder),
        }
    )
