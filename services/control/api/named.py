"""What a definition in a request may name on this machine and in its network.

A request may be sent by somebody who has a token and not this machine. So passwords, keys and certificates are only
those that CUTLINE_SECRETS allows, or that the stored definition names, for the same server, already; and no address is
a link-local one. Each refusal is one sentence, whether the thing named is missing or forbidden: it tells nothing about
this machine's files, variables or network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus

from cutline.common.config.addresses import barred, hosts_in
from cutline.common.config.masking_config import MaskingConfig
from cutline.common.config.pipeline import SinkConfig
from cutline.common.config.python_functions import FunctionConfig
from cutline.common.config.secrets import Secrets
from cutline.common.config.source import SourceConfig
from cutline.common.errors import Unavailable
from cutline.services.control.api.problems import FieldProblem
from cutline.services.sources.mysql.hosts import Hosts

REMEDY = "name one that CUTLINE_SECRETS of the control service allows and that is there"
_DESTINATION = ("host", "port", "hosts", "tls", "cleartext_password")
_FILES = ("ca", "cert", "key")
_JDBC = re.compile(r"jdbc:(sqlite|postgresql|mysql|mariadb):")
# Parameters of JDBC drivers that load a class, read or write a file, or run a statement of the address's own. MySQL's
# driver also takes them in parentheses before the database, and each with %-escapes.
_ACTS = re.compile(
    r"(?i)[?&;,(]\s*([\w.]*(?:factory|class\w*|callback|interceptors?|plugins?|verifier|transform|provider|handler"
    r"|strategy)|logger\w*|\w*local_?infile\w*"
    r"|autodeserialize|jaas\w*|\w*(?:file|path|dir|cert|key|keystore\w*|truststore\w*)|init\w*|enable_load_extension)\s*="
)
_CLASS = re.compile(r"(?i)(^|[.-])(impl|class|factory|provider|reporter)$")
_TRUSTED = "org.apache.iceberg."
_ENVIRONMENT = "env:"
"""Iceberg reads a property's value from the environment variable behind it."""
_CODE = re.compile(
    r"(?i)spark\.(jars|plugins|files|archives|submit|pyspark|repl|executorEnv|extraListeners|.*\.(extra|default)"
    r"(JavaOptions|ClassPath|LibraryPath))"
)


def source_faults(
    source: SourceConfig, secrets: Secrets, base: SourceConfig | None = None
) -> Iterator[FieldProblem]:
    """The names of a source that a request may not name; `base` is the source of the stored definition."""
    same = base is not None and all(getattr(source, name) == getattr(base, name) for name in _DESTINATION)
    known = base if same else None
    name, file = source.password_env, source.password_file
    if name is not None and (known is None or name != known.password_env) and not secrets.variable(name):
        yield _fault("source.password_env", "variable")
    if file is not None and (known is None or file != known.password_file) and not secrets.file(file):
        yield _fault("source.password_file", "file")
    for key in _FILES:
        path = getattr(source.tls, key, None)
        if path is not None and path != getattr(base and base.tls, key, None) and not secrets.file(path):
            yield _fault(f"source.tls.{key}", "file")
    if any(barred(address.host) for address in source.addresses):
        yield _unreachable("source.host")


def masking_faults(
    masking: MaskingConfig | None, secrets: Secrets, base: MaskingConfig | None = None
) -> Iterator[FieldProblem]:
    """The place of a mask key that a request may not name; `base` is that of the stored definition."""
    if masking is None or masking == base:
        return
    if masking.key_env is not None and not secrets.variable(masking.key_env):
        yield _fault("masking.key_env", "variable")
    if masking.key_file is not None and not secrets.file(masking.key_file):
        yield _fault("masking.key_file", "file")


def function_faults(
    functions: Mapping[str, FunctionConfig], secrets: Secrets, base: Mapping[str, FunctionConfig]
) -> Iterator[FieldProblem]:
    """The modules of Python functions that a request may not name; `base` are those of the stored definition."""
    known = {each.call for each in base.values()}
    for name, each in functions.items():
        if each.call not in known and not secrets.module(each.call.partition(":")[0]):
            yield FieldProblem(
                field=f"functions.{name}",
                detail=f"functions.{name} names no module that requests may use",
                remedy="name one that CUTLINE_FUNCTIONS of the control service allows (unset: *_functions), or define"
                " the pipeline from a file (cutline define)",
            )


def sink_faults(sink: SinkConfig, secrets: Secrets, base: SinkConfig | None = None) -> Iterator[FieldProblem]:
    """The properties of a sink that a request may not give; `base` is the sink of the stored definition."""
    known: Mapping[str, Any] = {} if base is None else base.catalog
    for key, value in sink.catalog.items():
        text, field = str(value), f"sink.catalog.{key}"
        if known.get(key) == value:
            continue
        if text.startswith(_ENVIRONMENT) and not secrets.variable(text.removeprefix(_ENVIRONMENT)):
            yield _fault(field, "variable")
        if text.startswith("jdbc:") and (not _JDBC.match(text) or _ACTS.search(unquote_plus(text))):
            yield FieldProblem(
                field=field,
                detail=f"{field} has a driver or a parameter that a request may not choose",
                remedy="use SQLite, PostgreSQL, MySQL or MariaDB, or define the pipeline from a file (cutline define)",
            )
        if _CLASS.search(key) and not text.startswith(_TRUSTED):
            yield FieldProblem(
                field=field,
                detail=f"{field} names a class that is not Iceberg's own",
                remedy="define the pipeline from a file (cutline define)",
            )
        if any(map(barred, hosts_in(text))):
            yield _unreachable(field)
    if any(map(barred, hosts_in(sink.warehouse))):
        yield _unreachable("sink.warehouse")
    properties = {} if base is None else base.spark
    for key, value in sink.spark.items():
        if _CODE.match(key) and properties.get(key) != value:
            yield FieldProblem(
                field=f"sink.spark.{key}",
                detail=f"sink.spark.{key} can bring code or files of a request into Spark",
                remedy="set it in CUTLINE_SPARK_PROPERTIES, or define the pipeline from a file (cutline define)",
            )


def _fault(field: str, kind: str) -> FieldProblem:
    return FieldProblem(field=field, detail=f"{field} names no {kind} that requests may use", remedy=REMEDY)


def _unreachable(field: str) -> FieldProblem:
    return FieldProblem(
        field=field, detail=f"{field} is an address that requests may not name", remedy="name the server's own address"
    )


def reach(source: SourceConfig) -> None:
    """Connect to a request's source once. Raises Unavailable, in the same words whether nothing listens there, or
    something else does, or nothing answers; and ConfigError as `Hosts.connect`."""
    try:
        Hosts(source).connect().close()
    except Unavailable as error:
        names = ", ".join(map(str, source.addresses))
        raise Unavailable(
            f"{names} did not answer as MySQL or MariaDB", "check source.host, source.port and the way there"
        ) from error
