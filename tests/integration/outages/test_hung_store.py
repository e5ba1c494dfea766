"""A store that hangs stops what needs it, which says so; all goes on by itself once the store answers."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from cutline.common.store.store import Store
from tests.support.control_server import ControlServer
from tests.support.databases import Database, MariaDB
from tests.support.lake_servers import S3
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.server_process import HOST
from tests.support.stalling import StallingWire

Fresh = Callable[[Database], str]
PIPELINES = 3
HUNG_SECONDS, AGAIN_SECONDS = 25.0, 30.0
ANSWER_SECONDS = 12.0
"""The service gives the store 8 s; the rest is the load of this machine."""


def awaited(pipeline: Pipeline) -> str:
    """What the services say that they wait for."""
    return "; ".join(str(part.waiting_for or "") for part in pipeline.status().members().values())


def services(mesh: Mesh) -> dict[int, dict[str, Any]]:
    """The services that are present, by their process ids."""
    with mesh.redis.client() as client:
        bodies: list[Any] = [client.get(key) for key in client.scan_iter("cutline:service:*")]
    return {found["pid"]: found for body in bodies if body is not None and (found := json.loads(body))}


@pytest.mark.full
def test_an_object_store_that_hangs_is_named_by_all_who_wait_and_all_go_on_in_their_epochs(
    s3: S3, mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Pipelines run over a store on S3, and a control service. 2. The store takes connections and says nothing: the
    API answers 503 with that cause, each pipeline says that it waits for the store, all services stay present with
    quick event loops, and none has many more threads. 3. The store answers: checkpoints go on, in the same epochs, and
    so does the API."""
    schema, bucket = fresh_database(mariadb), tmp_path.name.replace("_", "-")
    for number in range(PIPELINES):
        mariadb.execute(f"CREATE TABLE {schema}.t{number} (id INT PRIMARY KEY)")
    s3.create(bucket)
    url = f"s3://{bucket}/store"
    with StallingWire(s3.port).open() as wire:
        for name, value in {**s3.environment, "AWS_ENDPOINT_URL": f"http://{HOST}:{wire.port}"}.items():
            monkeypatch.setenv(name, value)
        mesh = Mesh(tmp_path, readers=1, writers=1, environment={"CUTLINE_STORE_URL": url}, forked=False)
        mesh.store = Store(url)
        with mesh, ControlServer(redis_url=mesh.redis.url, store_url=url, api_token="sesame") as control:
            control.start()
            pipelines = [mesh.pipeline(f"shop{n}", mariadb, [f"{schema}.t{n}"]) for n in range(PIPELINES)]
            for number, pipeline in enumerate(pipelines):
                pipeline.until(lambda p=pipeline, n=number: p.shows(f"{schema}.t{n}"), "its table to be shown")
            present = services(mesh).keys()
            threads = {each: psutil.Process(each.popen.pid).num_threads() for each in mesh.services}
            with control.client("sesame") as api:
                assert api.get("/v1/pipelines").status_code == 200
                begun = time.monotonic()
                with wire.stalled():
                    answer = api.get("/v1/pipelines")
                    assert (answer.status_code, "the store has not answered" in answer.text) == (503, True)
                    assert time.monotonic() - begun < ANSWER_SECONDS
                    assert api.get("/healthz").status_code == 200
                    for pipeline in pipelines:
                        shown = functools.partial(awaited, pipeline)  # the journal can't be shown now
                        waited(lambda shown=shown: "the store" in shown(), "it to name the store", 30, shown)
                    assert "cutline_store_up 0.0" in api.get("/metrics").text
                    while time.monotonic() - begun < HUNG_SECONDS:
                        time.sleep(0.1)
                    now = services(mesh)
                    assert now.keys() == present
                    assert max(each.get("loop_lag_seconds") or 0.0 for each in now.values()) < 2.0
                    for each, before in threads.items():
                        assert psutil.Process(each.popen.pid).num_threads() <= before + 8  # those for the store
                answers = time.monotonic()
                for pipeline in pipelines:
                    pipeline.goes_on(1, seconds=AGAIN_SECONDS)
                    assert len(pipeline.epochs()) == 1
                assert api.get("/v1/pipelines").status_code == 200
                print(f"hung for {answers - begun:.0f} s, all went on {time.monotonic() - answers:.1f} s later")
