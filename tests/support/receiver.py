"""A real HTTP server that keeps what is posted to it, and can refuse or be silent at first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Post:
    """One request: its path, its headers (lower case) and its body."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Takes posts; the first `refuse` of them get 503."""

    def __init__(self, refuse: int = 0) -> None:
        self.refuse = refuse
        self.refused: list[Post] = []
        self.taken: list[Post] = []
        self._arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                post = Post(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(503 if receiver._keep(post) else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def _keep(self, post: Post) -> bool:
        """Keep a post; return whether it is refused."""
        with self._arrived:
            refused = len(self.refused) < self.refuse
            (self.refused if refused else self.taken).append(post)
            self._arrived.notify_all()
            return refused

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def wait(self, reached: Callable[[Receiver], bool], seconds: float = 30.0) -> None:
        """Return once `reached` holds; TimeoutError after `seconds`. It blocks: call it in a thread."""
        until = time.monotonic() + seconds
        with self._arrived:
            while not reached(self):
                if not self._arrived.wait(until - time.monotonic()):
                    raise TimeoutError(f"{len(self.taken)} posts were taken and {len(self.refused)} refused")

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
