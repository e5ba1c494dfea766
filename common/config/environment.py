"""The settings of a process, from its environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutline.common.errors import ConfigError


def _env(name: str, default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"name": name, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The settings of a process, from its environment; `cutline run` sets them for the services that it starts."""

    redis_url: str | None = _env(
        "CUTLINE_REDIS_URL",
        None,
        "URL of the mesh's Redis; unset: `cutline run` starts its own, a single service refuses to start",
    )
    store_url: str | None = _env(
        "CUTLINE_STORE_URL",
        None,
        "the store (file://, s3://, gs://, abfss://); unset: `cutline run` uses file://<workdir>/store",
    )
    api_token: str | None = _env(
        "CUTLINE_API_TOKEN", None, "bearer token required by /v1 and /metrics; unset: none required"
    )
    api_host: str = _env("CUTLINE_API_HOST", "127.0.0.1", "address that the control service listens on")
    api_port: int = _env("CUTLINE_API_PORT", 8642, "port of the control service; 0 takes a free one")
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
    log_level: str = _env("CUTLINE_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR")

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Read the process's environment; an empty variable counts as unset; ConfigError names every wrong value."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        faults = []
        for setting in dataclasses.fields(cls):
            name = setting.metadata["name"]
            text = source.get(name, "")
            if not text:
                continue
            if setting.type == "int":
                if not text.isdecimal():
                    faults.append(f"{name} must be a whole number, not {text!r}; correct the environment")
                    continue
                values[setting.name] = int(text)
            else:
                values[setting.name] = text
        if str(values.get("log_level", "INFO")) not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            faults.append(
                f"CUTLINE_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {values['log_level']!r}; correct it"
            )
        if faults:
            raise ConfigError(*faults)
        return cls(**values)

    def spark(self) -> dict[str, Any]:
        """Return the Spark properties for all pipelines; ConfigError if they are no JSON object."""
        try:
            found = json.loads(self.spark_properties or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigError(
                'CUTLINE_SPARK_PROPERTIES must be a JSON object, as in {"spark.driver.memory": "3g"}; correct it'
            )
        return found

    def need_redis_url(self) -> str:
        """Return the Redis URL; ConfigError if it is not set."""
        if self.redis_url is None:
            raise ConfigError(
                "CUTLINE_REDIS_URL is not set; set it to the URL of the mesh's Redis, as in redis://host:6379/0"
            )
        return self.redis_url

    def need_store_url(self) -> str:
        """Return the store's URL; ConfigError if it is not set."""
        if self.store_url is None:
            raise ConfigError(
                "CUTLINE_STORE_URL is not set; set it to the URL of the store, as in file:///var/lib/cutline/store"
            )
        return self.store_url


def cache_folder() -> Path:
    """Return the folder for files fetched or made once for all pipelines; it need not exist yet."""
    chosen = Environment.read().cache
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "cutline").expanduser().absolute()
