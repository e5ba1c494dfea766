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
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from cutline.common.causes import Cause, Code
from cutline.common.config.derived_tables import DerivedConfig, name_problem
from cutline.common.config.faults import Strict, cause_of, fault, location, repeated_keys
from cutline.common.config.globs import glob_problem, select_tables
from cutline.common.config.masking_config import MaskingConfig
from cutline.common.config.python_functions import Functions, functions_of
from cutline.common.config.reserved import NAMESPACE
from cutline.common.config.source import SourceConfig
from cutline.common.config.table_options import (
    Scalar,
    TableOptions,
    as_tuple,
    options_of,
    shapes_of,
)
from cutline.common.errors import ConfigError, redacted
from cutline.common.mask_key import MaskKey
from cutline.common.shape import Function, Shape

FIXED = (
    "name", "start", "stop", "values", "keyless", "snapshot.chunks",
    "sink.type", "sink.warehouse", "sink.own_namespace",
)  # fmt: skip
"""Settings (with all below them) that a pipeline keeps for life: the rows copied so far depend on them."""
START_WORDS = ("initial", "snapshot-only", "latest", "earliest")


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
    table_options: Annotated[tuple[TableOptions, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="list of options for some tables"
    )
    masking: MaskingConfig | None = Field(
        default=None,
        exclude_if=lambda masking: masking is None,  # so that definitions of before this setting are unchanged
        description="where the key is by which `mask` of table_options masks columns",
    )
    functions: Functions = Field(
        default_factory=dict,
        exclude_if=lambda functions: not functions,  # so that definitions of before this setting are unchanged
        description="functions in Python that rules (`select`, `where`) may call, by the names that they call them by",
    )
    derived: Annotated[tuple[DerivedConfig, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        exclude_if=lambda derived: not derived,  # so that definitions of before this setting are unchanged
        description="list of derived tables, each a query over tables of this pipeline",
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
            if (problem := glob_problem(pattern)) is not None:
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

    @model_validator(mode="after")
    def _masked_by_a_key(self) -> Self:
        if self.masking is None and any(options.mask for options in self.table_options):
            raise fault("has table_options with mask, and no masking", "name the place of its key: masking.key_env")
        return self

    @model_validator(mode="after")
    def _changes_past_their_chunks(self) -> Self:
        modes = {options.mode for options in self.table_options if options.mode in ("append", "history")}
        if self.snapshot.chunks != "exact" and modes:
            raise fault(
                f"has table_options with mode: {min(modes)}, in which a change that is replayed over a chunk would"
                " stand beside the row that has it already",
                "set snapshot.chunks: exact",
            )
        if self.snapshot.chunks != "exact" and any(options.key for options in self.table_options):
            raise fault(
                "has table_options with key, of which a change that is replayed over a chunk does not say whose it was",
                "set snapshot.chunks: exact",
            )
        return self

    @model_validator(mode="after")
    def _derived_names(self) -> Self:
        if (problem := name_problem(self.derived, self.tables, self.sink.own_namespace)) is not None:
            raise fault(*problem)
        return self

    def mask_key(self) -> MaskKey | None:
        """The key by which columns are masked, None if none are; ConfigError if it is not there, or unfit."""
        return None if self.masking is None else self.masking.key()

    def options_of(self, table_id: str) -> TableOptions:
        """The options of this table ("db.table"); empty ones if no entry matches."""
        return options_of(self.table_options, table_id)

    @property
    def python_functions(self) -> tuple[Function, ...]:
        """The Python functions that rules may call."""
        return functions_of(self.functions)

    def shapes(self, tables: Iterable[str], mask_key: str | None) -> dict[str, Shape]:
        """The rules of those of these tables that have one; `mask_key` is the fingerprint of the key."""
        return shapes_of(self.table_options, tables, mask_key, self.python_functions)

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
        """Build the pipeline from `definition()`; ConfigError if this version can't read it."""
        try:
            return cls.model_validate(dict(definition))
        except ValidationError as error:
            faults = (cause_of(detail, cls).before("the store's definition: ") for detail in error.errors())
            raise ConfigError.several(faults) from error


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
    return config.model_copy(
        update={
            "sink": config.sink.model_copy(update={"warehouse": absolute_warehouse(config.sink.warehouse, folder)}),
            "source": config.source.absolute(folder),
            "masking": None if config.masking is None else config.masking.absolute(folder),
        }
    )


def absolute_warehouse(warehouse: str, folder: Path) -> str:
    """The warehouse of a pipeline file in `folder`: a URL as it is, a relative folder made absolute."""
    warehouse = warehouse.removeprefix("file://")
    return warehouse if "://" in warehouse else os.path.normpath(folder / Path(warehouse).expanduser())
