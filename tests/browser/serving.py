"""Serves made-up pipelines from a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn

from tests.browser.made_up import Stage
from tests.browser.stage import app
from tests.support.server_process import HOST


@contextlib.contextmanager
def served(stage: Stage) -> Iterator[str]:
    """Serve a stage from a thread; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app(stage), log_level="critical"))
    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True  # streams of events would not end by themselves
            thread.join()
