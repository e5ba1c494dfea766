"""Every setting of Cutline in one place: the pipeline file and the environment, with types, defaults and meanings.

The pipeline file is checked strictly: an unknown key, a wrong type or a key given twice is refused with its line and
column, and all faults are told in one `ConfigError`. `settings()` lists what there is; the README's table is tested
against it.

A pipeline's *definition* is what the store keeps (`PipelineStore.define`): the file's content with defaults filled in
and paths made absolute, without `workers` (how many processes run is not part of what a pipeline is). It names where
the password is found, never the password.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from cutline.common.errors import ConfigError, redacted

SYSTEM_SCHEMAS = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
START_WORDS = ("initial", "snapshot-only", "latest", "earliest")


class _Strict(BaseModel):
    """A part of the pipeline file: no unknown keys, no silent conversions, never changed after it was read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _fault(message: str) -> PydanticCustomError:
    return PydanticCustomError("cutline", "{message}", {"message": message})


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
            raise _fault("has both password_env and password_file; keep one of them")
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
            raise _fault(f'has tables {self.tables!r}, which is not a glob on db.table, as in "shop.*"')
        if self.chunk_by and self.identity:
            raise _fault("has identity and chunk_by; a vouched identity is what its table is chunked by, so keep one")
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
                raise _fault("must be a time like 2026-01-31T12:00:00Z") from None
        if isinstance(value, datetime) and value.tzinfo is None:
            raise _fault("must say its time zone, as in 2026-01-31T12:00:00Z")
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = {name for name in ("file", "position", "gtid", "timestamp") if getattr(self, name) is not None}
        if given not in ({"file", "position"}, {"gtid"}, {"timestamp"}):
            raise _fault("must be {file:, position:}, {gtid:} or {timestamp:}")
        return self


def _start(value: object) -> object:
    if isinstance(value, str) and value not in START_WORDS:
        raise _fault(
            f"must be {', '.join(START_WORDS)}, {{file:, position:}}, {{gtid:}} or {{timestamp:}}, not {value!r}"
        )
    if not isinstance(value, str | dict | Point):
        raise _fault(f"must be one of {', '.join(START_WORDS)} or a place in the binlog, not {value!r}")
    return Point.model_validate(value) if isinstance(value, dict) else value


def _stop(value: object) -> object:
    if not isinstance(value, dict | Point | None):
        raise _fault(f"must be {{file:, position:}}, {{gtid:}} or {{timestamp:}}, not {value!r}")
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
            raise _fault(
                f"must be lower case letters, digits, - and _, starting with a letter, at most 63, not {value!r}"
            )
        return value

    @field_validator("tables", mode="before")
    @classmethod
    def _list_of_globs(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            raise _fault('must be a list of globs, as in ["shop.*", "!shop.tmp_*"]')
        for pattern in value:
            if not isinstance(pattern, str) or not re.fullmatch(r"!?[^.!][^.]*\..+", pattern):
                raise _fault(f'has {pattern!r}, which is not a glob on db.table, as in "shop.*" or "!shop.tmp_*"')
        if not any(not pattern.startswith("!") for pattern in value):
            raise _fault("includes nothing; name at least one table without a leading !")
        return tuple(value)

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.stop is not None and self.start == "snapshot-only":
            raise _fault("ends after the snapshot by start: snapshot-only, so it can't have a stop too; remove one")
        return self

    @model_validator(mode="after")
    def _chunks_by_identity(self) -> Self:
        if self.snapshot.chunks == "exact" and any(one.chunk_by for one in self.table_options):
            raise _fault(
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
            faults = (f"the store's definition: {_sentence(detail, detail['loc'])}" for detail in error.errors())
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


# --- reading the file -------------------------------------------------------------------------------------------------


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
    faults = list(_twice(root))
    try:
        config = PipelineConfig.model_validate(content)
    except ValidationError as error:
        faults += ((*_place(root, detail["loc"]), _sentence(detail, detail["loc"])) for detail in error.errors())
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


def _twice(node: yaml.Node) -> Iterator[tuple[int, int, str]]:
    """Yield (line, column, sentence) for each key that a mapping has twice; YAML would silently take the last."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield (
                    key.start_mark.line + 1,
                    key.start_mark.column + 1,
                    f"the key {key.value!r} stands here twice; keep one",
                )
            seen.add(key.value)
            yield from _twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _twice(value)


def _place(root: yaml.Node, loc: tuple[int | str, ...]) -> tuple[int, int]:
    """Return line and column (from 1) of the key or value that `loc` names, or of the nearest part that exists."""
    mark, node = root.start_mark, root
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if pair is None:
                break
            mark, node = pair[0].start_mark, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            mark = node.start_mark
        else:
            break
    return mark.line + 1, mark.column + 1


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "datetime_type": "a time",
}


def _sentence(detail: ErrorDetails, loc: tuple[int | str, ...]) -> str:
    """Say one fault that pydantic found in Cutline's words; the value is shown only where it can't be a secret."""
    name = ".".join(str(part) for part in loc) or "the pipeline"
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(known)}"
        return f"unknown key {name!r}; {hint}"
    if kind == "missing":
        return f"the key {name!r} is missing; add it"
    if kind == "cutline":
        return f"{name} {context.get('message', detail['msg'])}"
    if "password" in name:
        return f"{name} must be text, the name of a variable or a file; correct it"
    if kind in _EXPECTED:
        return f"{name} must be {_EXPECTED[kind]}, not {_shown(detail['input'])}; correct it"
    if kind == "literal_error":
        return f"{name} must be {context.get('expected')}, not {_shown(detail['input'])}; correct it"
    message = detail["msg"].removeprefix("Input should ").removeprefix("Value error, ")
    return f"{name} must {message}, not {_shown(detail['input'])}; correct it"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "null" if value is None else repr(value)


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """Keys that the mapping at `loc` of the pipeline file may have."""
    model: type[BaseModel] = PipelineConfig
    for part in loc:
        if isinstance(part, int):
            continue  # an item of a list, whose model is known already
        inner = _model_of(model.model_fields[str(part)].annotation) if str(part) in model.model_fields else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside a field's type (`Point | None` -> Point), or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_of(arg)) is not None), None)


# --- the environment --------------------------------------------------------------------------------------------------


def _env(name: str, default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"name": name, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The settings of a process, from its environment; `cutline run` sets them for the services that it starts."""

    redis_url: str | None = _env(
        "CUTLINE_REDIS_URL",
        None,
        "the Redis that carries the mesh; unset: `cutline run` starts its own, a service alone refuses",
    )
    store_url: str | None = _env(
        "CUTLINE_STORE_URL", None, "the store (file:// or s3://); unset: `cutline run` uses file://<workdir>/store"
    )
    api_token: str | None = _env(
        "CUTLINE_API_TOKEN", None, "bearer token that /v1 and /metrics ask for; unset: none is asked for"
    )
    api_host: str = _env("CUTLINE_API_HOST", "127.0.0.1", "address that the control service listens on")
    api_port: int = _env("CUTLINE_API_PORT", 8642, "port of the control service; 0 takes a free one")
    redis_memory_bytes: int = _env(
        "CUTLINE_REDIS_MEMORY_BYTES",
        512 << 20,
        "limit of the Redis that `cutline run` starts (it refuses, never evicts); taken for the limit of one that has "
        "none",
    )
    readers: int = _env(
        "CUTLINE_READERS", 1, "readers that an epoch waits for, 10 s at most; `cutline run` sets it from `workers`"
    )
    writers: int = _env(
        "CUTLINE_WRITERS", 1, "writers that an epoch waits for, 10 s at most; `cutline run` sets it from `workers`"
    )
    cache: str | None = _env(
        "CUTLINE_CACHE",
        None,
        "folder of what is fetched or made once for all pipelines; unset: `cutline` in XDG_CACHE_HOME, or ~/.cache",
    )
    spark_jars: str | None = _env(
        "CUTLINE_SPARK_JARS", None, "folder of the jars that Spark starts with; unset: `jars` in CUTLINE_CACHE"
    )
    log_level: str = _env("CUTLINE_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR")

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Read the process's environment; an empty variable counts as unset; ConfigError tells every wrong value."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        faults = []
        for one in dataclasses.fields(cls):
            name = one.metadata["name"]
            text = source.get(name, "")
            if not text:
                continue
            if one.type == "int":
                if not text.isdecimal():
                    faults.append(f"{name} must be a whole number, not {text!r}; correct the environment")
                    continue
                values[one.name] = int(text)
            else:
                values[one.name] = text
        if str(values.get("log_level", "INFO")) not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            faults.append(
                f"CUTLINE_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {values['log_level']!r}; correct it"
            )
        if faults:
            raise ConfigError(*faults)
        return cls(**values)

    def need_redis_url(self) -> str:
        """Return the Redis URL of a service that runs alone; ConfigError if it is not set."""
        if self.redis_url is None:
            raise ConfigError(
                "CUTLINE_REDIS_URL is not set; give it the URL of the mesh's Redis, as in redis://host:6379/0"
            )
        return self.redis_url

    def need_store_url(self) -> str:
        """Return the store's URL of a service that runs alone; ConfigError if it is not set."""
        if self.store_url is None:
            raise ConfigError(
                "CUTLINE_STORE_URL is not set; give it the URL of the store, as in file:///var/lib/cutline/store"
            )
        return self.store_url


def cache_folder() -> Path:
    """Return the folder of what is fetched or made once for all pipelines; it need not exist yet."""
    chosen = Environment.read().cache
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "cutline").expanduser().absolute()


# --- the list of all settings -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the README's table of settings."""

    where: Literal["environment", "pipeline.yaml"]
    name: str
    type: str
    default: str
    meaning: str


def settings() -> tuple[Setting, ...]:
    """List every setting there is: the environment's, then the pipeline file's with dotted names."""
    environment = (
        Setting(
            where="environment",
            name=one.metadata["name"],
            type="int" if one.type == "int" else "text",
            default="unset" if one.default is None else str(one.default),
            meaning=one.metadata["meaning"],
        )
        for one in dataclasses.fields(Environment)
    )
    return (*environment, *_yaml_settings(PipelineConfig, ""))


def _yaml_settings(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, info in model.model_fields.items():
        inner = _model_of(info.annotation)
        if inner is not None and inner is not Point:
            yield from _yaml_settings(inner, f"{prefix}{name}.")
            continue
        default = info.get_default(call_default_factory=True) if not info.is_required() else None
        shown = (
            "required"
            if info.is_required()
            else "null"
            if default is None
            else "{}"
            if default == {}
            else "[]"
            if default == ()
            else str(default)
        )
        yield Setting(
            where="pipeline.yaml",
            name=f"{prefix}{name}",
            type=_type_name(info.annotation),
            default=shown,
            meaning=info.description or "",
        )


def _type_name(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if annotation is Point:
        return "place"
    arguments = get_args(annotation)
    text = str(annotation)
    if get_origin(annotation) is Literal:
        return " or ".join(str(one) for one in arguments)
    if text.startswith("tuple"):
        return "list of text"
    if text.startswith("dict"):
        return "mapping"
    if arguments:
        return " or ".join(_type_name(one) for one in arguments)
    return {"str": "text", "int": "int", "float": "number"}[annotation.__name__]


def settings_table() -> str:
    """Render `settings()` as the Markdown table that the README holds."""
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    rows += [f"| `{one.name}` | {one.type} | `{one.default}` | {one.meaning} |" for one in settings()]
    return "\n".join(rows) + "\n"
