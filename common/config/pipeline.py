"""The pipeline file: its keys with types, defaults and meanings, and how it is read.

The file is checked strictly: an unknown key, a wrong type or a repeated key is refused with its line and column, and
one `ConfigError` holds all faults.

A pipeline's *definition* is what the store keeps (`PipelineStore.define`): the file's content with defaults filled in
and paths made absolute, without `workers` (the number of processes is no part of a pipeline). It names where the
password is found, never the password.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from cutline.common.config.faults import fault, location, repeated_keys, sentence
from cutline.common.errors import ConfigError, redacted

SYSTEM_SCHEMAS = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
START_WORDS = ("initial", "snapshot-only", "latest", "earliest")


class _Strict(BaseModel):
    """A part of the pipeline file: no unknown keys, no silent conversions, never changed after it was read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SourceConfig(_Strict):
    """Where the MySQL or MariaDB server is, and as whom it is read."""

    host: str = Field(min_length=1, description="host name or address of the MySQL or MariaDB server")
    port: int = Field(default=3306, ge=1, le=65535, description="TCP port of the server")
    user: str = Field(min_length=1, description="user with SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    password_env: str | None = Field(default=None, description="environment variable that holds the password")
    password_file: str | None = Field(
        default=None, description="file whose first line is the password (relative to the pipeline file)"
    )
    server_id: int | None = Field(
        default=None,
        ge=1,
        le=2**32 - 2,
        description="replica id of the main binlog connection, the next number is the catch-up connection's; "
        "derived from the pipeline's name if null",
    )

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password_env is not None and self.password_file is not None:
            raise fault("has both password_env and password_file; keep one of them")
        return self

    def password(self, environ: Mapping[str, str] | None = None) -> str:
        """Return the password, '' if none is configured; ConfigError if its variable or file is missing.

        Read it where the connection is made and keep it nowhere else: it belongs in no log, status or store.
        """
        if self.password_env is not None:
            value = (os.environ if environ is None else environ).get(self.password_env)
            if value is None:
                raise ConfigError(
                    f"the environment variable {self.password_env}, named by source.password_env, is not set; export it"
                )
            return value
        if self.password_file is not None:
            try:
                text = Path(self.password_file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                raise ConfigError(
                    f"the file {self.password_file}, named by source.password_file, can't be read ({reason}); "
                    "write the password into its first line"
                ) from error
            return text.split("\n", 1)[0].rstrip("\r")
        return ""


class SnapshotConfig(_Strict):
    """How tables are read the first time."""

    chunk_rows: int = Field(default=50_000, ge=1, description="rows that one SELECT of a snapshot aims at")
    chunks: Literal["replay", "exact"] = Field(
        default="replay",
        description="replay: later changes are replayed over chunks; exact: each chunk is as of its own high watermark",
    )
    max_select_seconds: float = Field(
        default=10.0,
        ge=1.0,
        le=3600.0,
        description="seconds after which the SELECT of a chunk is ended, and the rest of the chunk read by another",
    )
    max_rows_per_second: int | None = Field(
        default=None,
        ge=1,
        description="limit on the rows that all readers together SELECT, none if null; `cutline throttle` changes it",
    )
    max_bytes_per_second: int | None = Field(
        default=None, ge=1, description="the same in bytes of decoded rows; `cutline throttle` changes it too"
    )
    max_threads_running: int | None = Field(
        default=None,
        ge=1,
        description="readers take no rows while the server's Threads_running, ours included, is above it;"
        " null: never asked",
    )


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_tuple)]


class TableOptions(_Strict):
    """What is asked for the tables of one glob, beside what holds for all."""

    tables: str = Field(description="glob on db.table; of several entries that match a table the first one counts")
    chunk_rows: int | None = Field(default=None, ge=1, description="rows of a chunk of these tables, instead of all's")
    chunk_by: Names = Field(
        default=(),
        description="NOT NULL columns, at the head of an index, to chunk by instead of the identity; `replay` only",
    )
    identity: Names = Field(
        default=(),
        description="indexed NOT NULL columns that you vouch identify a row, where no declared key does;"
        " rows found twice quarantine the table",
    )

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        if not re.fullmatch(r"[^.!][^.]*\..+", self.tables):
            raise fault(f'has tables {self.tables!r}, which is not a glob on db.table, as in "shop.*"')
        if self.chunk_by and self.identity:
            raise fault("has identity and chunk_by; a vouched identity is what its table is chunked by, so keep one")
        return self


class ValuesConfig(_Strict):
    """What becomes of values that the lake can hold in more than one way, or not at all."""

    tinyint1: Literal["int", "boolean"] = Field(
        default="int", description="TINYINT(1) outside the key as int, or as boolean: every value but 0 is true"
    )
    zero_dates: Literal["quarantine"] | None = Field(
        default=None,
        description="dates that no calendar has (0000-00-00): null shows and counts them as null, "
        "quarantine stops their table",
    )


class CheckpointConfig(_Strict):
    """When checkpoints are taken."""

    interval_seconds: float = Field(
        default=10.0, ge=0.1, le=3600.0, description="seconds from the start of one checkpoint to the next"
    )


class RetentionConfig(_Strict):
    """What is kept to restore to, and for those who read old snapshots of the lake."""

    grace_seconds: float = Field(
        default=3600.0,
        ge=60.0,
        description="how long every publication can be restored to, and its snapshots of the lake be read",
    )
    savepoints: int = Field(default=10, ge=0, description="how many savepoints are kept, the newest ones")
    savepoint_days: float | None = Field(
        default=30.0, gt=0, description="how long a savepoint is kept, in days; null: until newer ones take its place"
    )


Scalar = Annotated[str, BeforeValidator(lambda value: _scalar(value))]


def _scalar(value: object) -> object:
    """Text of a YAML scalar as Spark and Iceberg read it: 4 -> "4", true -> "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


class SinkConfig(_Strict):
    """Where the lake is."""

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


class WorkersConfig(_Strict):
    """How many processes `cutline run` starts. Not part of the pipeline's definition; may differ at each run."""

    readers: int = Field(default=2, ge=1, le=64, description="reader processes that `cutline run` starts")
    writers: int = Field(default=2, ge=1, le=64, description="writer processes that `cutline run` starts")


class Point(_Strict):
    """A place in the binlog that a person named: file and position, or a GTID set, or a time (with its zone)."""

    file: str | None = Field(default=None, description="binlog file name")
    position: int | None = Field(default=None, ge=4, description="offset in the file")
    gtid: str | None = Field(default=None, min_length=1, description="GTID set: all of it is before the place")
    timestamp: datetime | None = Field(default=None, description="what was committed at the source then is after it")

    @field_validator("timestamp", mode="before")
    @classmethod
    def _zoned(cls, value: object) -> object:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise fault("must be a time like 2026-01-31T12:00:00Z") from None
        if isinstance(value, datetime) and value.tzinfo is None:
            raise fault("must say its time zone, as in 2026-01-31T12:00:00Z")
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


class PipelineConfig(_Strict):
    """One pipeline file, checked; the only pydantic object that the services see of it."""

    name: str = Field(description="name of the pipeline: lower case letters, digits, - and _, at most 63")
    source: SourceConfig = Field(description="the server to copy from")
    tables: tuple[str, ...] = Field(description="globs on db.table; a leading ! excludes")
    table_options: Annotated[tuple[TableOptions, ...], BeforeValidator(_tuple)] = Field(
        default=(), description="list of options for some of the tables"
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
        description="columns that change at the source, until the table is read again: evolve: the lake follows and "
        "keeps dropped ones; exact: it drops them too; ignore: it keeps its columns and names; halt: the table stops",
    )
    stop: Annotated[Point | None, BeforeValidator(_stop)] = Field(
        default=None, description="place in the binlog at which the pipeline ends by itself; null: it does not"
    )
    values: ValuesConfig = Field(default_factory=lambda: ValuesConfig())
    unlogged_cascades: Literal["quarantine", "allow"] = Field(
        default="quarantine",
        description="tables that a foreign key changes without the binlog telling: quarantined, or captured "
        "though the lake misses those changes",
    )
    checkpoint: CheckpointConfig = Field(default_factory=lambda: CheckpointConfig())
    retention: RetentionConfig = Field(default_factory=lambda: RetentionConfig())
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
            if not isinstance(pattern, str) or not re.fullmatch(r"!?[^.!][^.]*\..+", pattern):
                raise fault(f'has {pattern!r}, which is not a glob on db.table, as in "shop.*" or "!shop.tmp_*"')
        if not any(not pattern.startswith("!") for pattern in value):
            raise fault("includes nothing; name at least one table without a leading !")
        return tuple(value)

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.stop is not None and self.start == "snapshot-only":
            raise fault("ends after the snapshot by start: snapshot-only, so it can't have a stop too; remove one")
        return self

    @model_validator(mode="after")
    def _chunks_by_identity(self) -> Self:
        if self.snapshot.chunks == "exact" and any(one.chunk_by for one in self.table_options):
            raise fault(
                "has table_options with chunk_by, which can't be with snapshot.chunks: exact (a row whose column"
                " changes would move from chunk to chunk); use replay"
            )
        return self

    def options_of(self, table_id: str) -> TableOptions:
        """What is asked for this table ("db.table"); without anything if nothing is."""
        found = (one for one in self.table_options if select_tables((one.tables,), (table_id,)))
        return next(found, TableOptions(tables="*.*"))

    @property
    def server_id(self) -> int:
        """Replica id of the main binlog connection; the catch-up connection takes the next number."""
        return self.server_id_after(0)

    def server_id_after(self, taken: int) -> int:
        """The same after so many were found to be another client's; the pipeline file's own is the only one."""
        if self.source.server_id is not None:
            return self.source.server_id
        digest = hashlib.sha256(f"{self.name} {taken}".encode() if taken else self.name.encode()).digest()
        return 0x4000_0000 | (int.from_bytes(digest[:4], "big") & 0x3FFF_FFFE)

    def select(self, tables: Iterable[str]) -> tuple[str, ...]:
        """Return those of `tables` ("db.table") that this pipeline captures, sorted; see `select_tables`."""
        return select_tables(self.tables, tables)

    def definition(self) -> dict[str, Any]:
        """Return what the store keeps of this pipeline: plain JSON, no password, no `workers`."""
        return self.model_dump(mode="json", exclude={"workers"})

    @classmethod
    def from_definition(cls, definition: Mapping[str, Any]) -> PipelineConfig:
        """Build the pipeline from `definition()`; ConfigError if an older or newer Cutline wrote it otherwise."""
        try:
            return cls.model_validate(dict(definition))
        except ValidationError as error:
            faults = (f"the store's definition: {sentence(detail, cls)}" for detail in error.errors())
            raise ConfigError(*faults) from error


_SECRET = re.compile(r"(?:secret|passw|token|credential|access-?key)(?!.*_(?:env|file)$)", re.IGNORECASE)


def shown(name: str, value: Any) -> Any:
    """A setting's value as it may be printed: no secret that a catalogue or Spark is given, no URL's password."""
    if isinstance(value, Mapping):
        return {key: shown(key, one) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    return "***" if _SECRET.search(name) else redacted(value) if "://" in value else value


def select_tables(patterns: Iterable[str], tables: Iterable[str]) -> tuple[str, ...]:
    """Return those of `tables` ("db.table") that a glob includes and no `!` glob excludes, sorted.

    An exclusion wins wherever it stands in the list. `*` does not reach over the dot; case matters, as `_` and `%`
    have no meaning. The server's own schemas (mysql, sys, ...) are never captured. May be empty: only the caller
    knows whether that is an error.
    """
    includes: list[list[str]] = []
    excludes: list[list[str]] = []
    for pattern in patterns:
        (excludes if pattern.startswith("!") else includes).append(pattern.removeprefix("!").split(".", 1))

    def named(by: list[list[str]], schema: str, table: str) -> bool:
        return any(fnmatchcase(schema, one[0]) and fnmatchcase(table, one[1]) for one in by)

    chosen = set()
    for name in tables:
        schema, _, table = name.partition(".")
        if (
            schema.lower() not in SYSTEM_SCHEMAS
            and named(includes, schema, table)
            and not named(excludes, schema, table)
        ):
            chosen.add(name)
    return tuple(sorted(chosen))


def load(path: str | Path) -> PipelineConfig:
    """Read and check a pipeline file; ConfigError holds every fault with file, line and column.

    Relative paths in it (warehouse, password_file) are taken from the file's own folder and made absolute.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"the pipeline file {path} can't be read ({reason}); give the path of a YAML file") from error
    return parse(text, where=str(path), folder=path.resolve().parent)


def parse(text: str, *, where: str = "pipeline.yaml", folder: Path | None = None) -> PipelineConfig:
    """Check the text of a pipeline file; `where` names it in faults, its relative paths are taken from `folder`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark is not None else where
        raise ConfigError(f"{place}: this is not YAML ({error.problem}); mend the syntax") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: this is not YAML ({error}); mend the syntax") from error
    if root is None or not isinstance(content, dict):
        raise ConfigError(
            f"{where}: this is not a pipeline; it must be a mapping with the keys name, source, tables and sink"
        )
    faults = list(repeated_keys(root))
    try:
        config = PipelineConfig.model_validate(content)
    except ValidationError as error:
        faults += ((*location(root, detail["loc"]), sentence(detail, PipelineConfig)) for detail in error.errors())
    if faults:
        raise ConfigError(*(f"{where}:{line}:{column}: {sentence}" for line, column, sentence in sorted(faults)))
    return _absolute(config, folder or Path.cwd())


def _absolute(config: PipelineConfig, folder: Path) -> PipelineConfig:
    """Make the file's relative paths absolute, so that every process means the same place."""
    warehouse, password_file = config.sink.warehouse, config.source.password_file
    if warehouse.startswith("file://"):
        warehouse = warehouse.removeprefix("file://")
    if "://" not in warehouse:
        warehouse = os.path.normpath(folder / Path(warehouse).expanduser())
    if password_file is not None:
        password_file = os.path.normpath(folder / Path(password_file).expanduser())
    return config.model_copy(
        update={
            "sink": config.sink.model_copy(update={"warehouse": warehouse}),
            "source": config.source.model_copy(update={"password_file": password_file}),
        }
    )
