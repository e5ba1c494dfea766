"""The ports of production: Spark, threads and clocks of this process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.store.lives import Life
from cutline.common.store.store import PipelineStore, Store
from cutline.spark_writer import session
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.ports import Ports
from cutline.spark_writer.sinks.contract import Sink
from cutline.spark_writer.sinks.iceberg import catalogue
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.owner import Owner
from cutline.spark_writer.sinks.iceberg.purging import purge
from cutline.spark_writer.sinks.iceberg.sink import IcebergSink
from cutline.spark_writer.transform.functions import CALL_SECONDS
from cutline.spark_writer.transform.shaping import Shaping

logger = logging.getLogger("cutline.spark_writer")


class Spark:
    """The Spark of this process, and the lakes that it opens."""

    def __init__(
        self, store: Store, properties: Mapping[str, Any] | None = None, call_seconds: float = CALL_SECONDS
    ) -> None:
        """Start Spark with these `properties` and with those of the pipelines that are defined by now, which win.
        `call_seconds` as `Shaping` has it.

        Raises ConfigError or Unavailable if it can't be started.
        """
        self._store_url = store.url
        self._call_seconds = call_seconds
        self._session = session.start({**(properties or {}), **settings_of(store)})

    def check(self) -> None:
        """See `Engine`."""
        try:
            ended = self._session.sparkContext._jsc.sc().isStopped()
        except Exception as error:
            raise Unavailable(f"Spark's JVM does not answer ({first_line(error)})", "starting again") from error
        if ended:
            raise Unavailable("Spark has stopped", "starting again")

    def open(self, store: PipelineStore, version: int) -> Sink:
        """See `Engine`."""
        lake, config = self._lake(store, version)
        shaping = Shaping(store, lake.jvm.session, self._call_seconds)
        return IcebergSink(store, lake, shaping, engine=config.sink.engine, retention=config.retention)

    def purge(self, store: PipelineStore, version: int) -> int:
        """See `Engine`."""
        return len(purge(self._lake(store, version)[0], store.purges))

    def _lake(self, store: PipelineStore, version: int) -> tuple[Lake, PipelineConfig]:
        definition = store.definition(version)
        if definition is None:
            gone = f"the definition of pipeline {store.name} is gone from the store"
            raise ConfigError(gone, "run `cutline run` again")
        if faults := catalogue.faults(definition["sink"], self._store_url):
            raise ConfigError.several(faults)
        config = PipelineConfig.from_definition(definition)
        own = session.for_pipeline(self._session, definition["sink"])
        owner, sink = owner_of(store.life, config), config.sink
        return Lake(own, owner, config.options_of, sink.format_version, sink.own_namespace), config


def settings_of(store: Store) -> dict[str, str]:
    """Return `sink.spark` of all pipelines together, except those whose definition can't be read."""
    settings: dict[str, str] = {}
    for name in store.pipelines():
        try:
            definition = store.pipeline(name).definition() or {}
        except (ConfigError, ProtocolError) as error:
            logger.error("pipeline %s: %s", name, error)
            continue
        settings |= definition.get("sink", {}).get("spark") or {}
    return settings


def owner_of(life: Life, config: PipelineConfig) -> Owner:
    """A life of a pipeline as its lake knows it."""
    return Owner(name=life.name, id=life.id, adopts=config.sink.adopt)


def start_thread(call: Callable[[], None], name: str) -> threading.Thread:
    """Run a call in a thread of its own, which does not keep the process alive."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    return thread


def ports(
    store: Store, properties: Mapping[str, Any] | None = None, call_seconds: float = CALL_SECONDS
) -> Ports:
    """The ports of this process, for the pipelines of a store; starts Spark. Arguments and errors as `Spark` has."""
    engine = Spark(store, properties, call_seconds)
    return Ports(clock=time, flag=threading.Event, start=start_thread, pool=ThreadPoolExecutor, engine=engine)
