"""The settings of a process, from its environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError


def _env(name: str, default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"name": name, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The settings of a process, from its environment; `cutline run` sets them for the services that it starts."""

    redis_url: str | None = _env(
        "CUTLINE_REDIS_URL",
        None,
        "URL of the mesh's Redis: redis://, rediss:// (TLS), redis+sentinel:// or rediss+sentinel://; unset:"
        " `cutline run` starts its own, a single service refuses to start",
    )
    redis_ca: str | None = _env(
        "CUTLINE_REDIS_CA",
        None,
        "file with the CA certificates that are trusted for rediss:// (PEM); unset: those of this machine",
    )
    redis_cert: str | None = _env(
        "CUTLINE_REDIS_CERT", None, "file with the client certificate for rediss:// (PEM), if Redis requires one"
    )
    redis_key: str | None = _env("CUTLINE_REDIS_KEY", None, "file with the private key of CUTLINE_REDIS_CERT")
    redis_sentinel_password: str | None = _env(
        "CUTLINE_REDIS_SENTINEL_PASSWORD", None, "password of the Sentinels themselves, if they have one"
    )
    store_url: str | None = _env(
        "CUTLINE_STORE_URL",
        None,
        "the store (file://, s3://, gs://, abfss://); unset: `cutline run` uses file://<workdir>/store",
    )
    run: str | None = _env(
        "CUTLINE_RUN", None, "set by `cutline run` for its own services: its last savepoint is their last checkpoint"
    )
    api_token: str | None = _env(
        "CUTLINE_API_TOKEN",
        None,
        "a token with the role admin for /v1 and /metrics; unset: only those of `POST /v1/tokens`, the first of which"
        " the first start prints, and none at all is needed at the loopback address of `cutline run`",
    )
    api_host: str = _env("CUTLINE_API_HOST", "127.0.0.1", "address that the control service listens on")
    api_port: int = _env("CUTLINE_API_PORT", 8642, "port of the control service; 0 takes a free one")
    api_url: str = _env(
        "CUTLINE_API_URL",
        "http://127.0.0.1:8642",
        "address of the control service, for those commands of `cutline` that ask it; `--url` too",
    )
    api_cert: str | None = _env(
        "CUTLINE_API_CERT",
        None,
        "file with the control service's TLS certificate and its chain (PEM), read again when it changes; unset: HTTP",
    )
    api_key: str | None = _env("CUTLINE_API_KEY", None, "file with the certificate's private key (PEM)")
    api_body_bytes: int = _env("CUTLINE_API_BODY_BYTES", 1 << 20, "longest body of a request to the control service")
    api_proxies: str | None = _env(
        "CUTLINE_API_PROXIES",
        None,
        "addresses or networks of proxies, separated by commas, whose X-Forwarded-For names the client; unset: none",
    )
    secrets: str | None = _env(
        "CUTLINE_SECRETS",
        None,
        "what requests to the control service may name as source.password_env, password_file, files of source.tls,"
        " masking.key_env and key_file, separated by commas: the beginning of a variable's name, a pattern of it with"
        " *, or the absolute path of a folder; `-`: nothing; unset: `*_PASSWORD`, `*_MASK_KEY`, and no file."
        " Cutline's own variables are none of them",
    )
    metrics_open: bool = _env("CUTLINE_METRICS_OPEN", False, "whether /metrics needs no token: true or false")
    oidc_issuer: str | None = _env(
        "CUTLINE_OIDC_ISSUER", None, "address of an OIDC issuer whose JWTs the control service accepts; unset: none"
    )
    oidc_audience: str | None = _env("CUTLINE_OIDC_AUDIENCE", None, "audience that a JWT must name, with an issuer")
    oidc_keys_url: str | None = _env(
        "CUTLINE_OIDC_KEYS_URL", None, "address of the issuer's keys (JWKS); unset: from its discovery document"
    )
    oidc_role_claim: str = _env(
        "CUTLINE_OIDC_ROLE_CLAIM", "roles", "claim of a JWT that has the role, or a list of them; dots go into it"
    )
    oidc_roles: str = _env(
        "CUTLINE_OIDC_ROLES",
        "",
        "roles of the claim's values, as in `admin=platform, viewer=everyone`; empty: viewer, operator and admin",
    )
    redis_memory_bytes: int = _env(
        "CUTLINE_REDIS_MEMORY_BYTES",
        512 << 20,
        "memory limit of the Redis that `cutline run` starts (it never evicts keys); also the limit assumed for a "
        "Redis without one",
    )
    readers: int = _env(
        "CUTLINE_READERS",
        1,
        "number of readers that an epoch waits for, 10 s at most; `cutline run` sets it from `workers`",
    )
    writers: int = _env(
        "CUTLINE_WRITERS",
        1,
        "number of writers that an epoch waits for, 10 s at most; `cutline run` sets it from `workers`",
    )
    cache: str | None = _env(
        "CUTLINE_CACHE",
        None,
        "folder for files fetched or made once for all pipelines; unset: `cutline` in XDG_CACHE_HOME or ~/.cache",
    )
    spark_jars: str | None = _env(
        "CUTLINE_SPARK_JARS", None, "folder with Spark's jars; unset: `jars` in CUTLINE_CACHE"
    )
    spark_properties: str | None = _env(
        "CUTLINE_SPARK_PROPERTIES",
        None,
        "Spark properties for all pipelines, as a JSON object; those of a pipeline's sink.spark win",
    )
    functions: str | None = _env(
        "CUTLINE_FUNCTIONS",
        None,
        "modules that requests to the control service may name as functions.<name>.call, patterns with * separated by"
        " commas; unset: `*_functions`",
    )
    function_seconds: int = _env(
        "CUTLINE_FUNCTION_SECONDS",
        30,
        "seconds that a Python function of a rule may take for one batch of rows, before its process is ended",
    )
    log_level: str = _env("CUTLINE_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR")
    log_format: str = _env("CUTLINE_LOG_FORMAT", "text", "text, or json: one JSON object a line (docs/metrics.md)")
    metrics_tables: int = _env(
        "CUTLINE_METRICS_TABLES",
        200,
        'how many tables of a pipeline have metrics of their own, the most active ones; all others are "(others)"',
    )
    webhook_url: str | None = _env(
        "CUTLINE_WEBHOOK_URL", None, "the control service posts alerts there, fired and resolved; unset: nowhere"
    )
    webhook_secret: str | None = _env(
        "CUTLINE_WEBHOOK_SECRET", None, "signs each post to CUTLINE_WEBHOOK_URL by HMAC-SHA256; unset: not signed"
    )
    docs_url: str | None = _env(
        "CUTLINE_DOCS_URL", None, "address of the folder docs/, for the links in alerts; unset: links begin with docs/"
    )
    traces_url: str | None = _env(
        "CUTLINE_TRACES_URL",
        None,
        "OTLP/HTTP address for traces of checkpoints, as in http://collector:4318/v1/traces (needs cutline[otel])",
    )
    lineage_url: str | None = _env(
        "CUTLINE_LINEAGE_URL", None, "OpenLineage address for events of publications, as in http://host:5000/api/v1/lineage"
    )
    lineage_key: str | None = _env(
        "CUTLINE_LINEAGE_KEY", None, "bearer token for CUTLINE_LINEAGE_URL; unset: none is sent"
    )

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Read the process's environment; an empty variable counts as unset; ConfigError names every wrong value."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        faults: list[Cause] = []
        for setting in dataclasses.fields(cls):
            name = setting.metadata["name"]
            text = source.get(name, "")
            if not text:
                continue
            if setting.type == "int":
                if not text.isdecimal():
                    faults.append(Cause(
                        Code.CONFIGURATION, f"{name} must be a whole number, not {text!r}", "correct the environment"
                    ))
                    continue
                values[setting.name] = int(text)
            elif setting.type == "bool":
                if text.lower() not in ("true", "false"):
                    faults.append(Cause(
                        Code.CONFIGURATION, f"{name} must be true or false, not {text!r}", "correct the environment"
                    ))
                    continue
                values[setting.name] = text.lower() == "true"
            else:
                values[setting.name] = text
        if str(values.get("log_level", "INFO")) not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            faults.append(
                Cause(
                    Code.CONFIGURATION,
                    f"CUTLINE_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {values['log_level']!r}",
                    "correct it",
                )
            )
        for first, second in (("api_cert", "api_key"), ("oidc_issuer", "oidc_audience")):
            if (first in values) != (second in values):
                both = " and ".join(f"CUTLINE_{name.upper()}" for name in (first, second))
                faults.append(Cause(Code.CONFIGURATION, f"only one of {both} is set", "set both, or none"))
        if str(values.get("log_format", "text")) not in ("text", "json"):
            faults.append(Cause(
                Code.CONFIGURATION,
                f"CUTLINE_LOG_FORMAT must be text or json, not {values['log_format']!r}",
                "correct it",
            ))
        if faults:
            raise ConfigError.several(faults)
        return cls(**values)

    def spark(self) -> dict[str, Any]:
        """Return the Spark properties for all pipelines; ConfigError if they are no JSON object."""
        try:
            found = json.loads(self.spark_properties or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigError(
                'CUTLINE_SPARK_PROPERTIES must be a JSON object, as in {"spark.driver.memory": "3g"}', "correct it"
            )
        return found

    def need_redis_url(self) -> str:
        """Return the Redis URL; ConfigError if it is not set."""
        if self.redis_url is None:
            raise ConfigError(
                "CUTLINE_REDIS_URL is not set", "set it to the URL of the mesh's Redis, as in redis://host:6379/0"
            )
        return self.redis_url

    def need_store_url(self) -> str:
        """Return the store's URL; ConfigError if it is not set."""
        if self.store_url is None:
            raise ConfigError(
                "CUTLINE_STORE_URL is not set", "set it to the URL of the store, as in file:///var/lib/cutline/store"
            )
        return self.store_url


def cache_folder() -> Path:
    """Return the folder for files fetched or made once for all pipelines; it need not exist yet."""
    chosen = Environment.read().cache
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "cutline").expanduser().absolute()
