"""The part of Kubernetes' API server that Spark's driver needs to run executors, whose pods are processes here.

There is no Kubernetes on the machines of CI. The driver's client, its requests, the pod template and the executors'
entry point are real; what a cluster adds (images, volumes, addresses, rights) is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import psutil


class Kubernetes:
    """An API server on loopback; each pod is one process, at 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.refused: list[str] = []
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                status, answer = api.handle(self.command, self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def handle(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer one request of the driver's client."""
        found, query = urlparse(path), parse_qs(urlparse(path).query)
        words = found.path.strip("/").split("/")
        kind, name = (words[4] if len(words) > 4 else ""), (words[5] if len(words) > 5 else "")
        with self._lock:
            if kind == "pods" and method == "POST":
                return 201, self._create(body)
            if kind == "pods" and method == "GET" and not name:
                selector = query.get("labelSelector", [""])[0]
                chosen = [pod for pod in self._all() if _selected(pod["metadata"].get("labels", {}), selector)]
                return 200, {
                    "kind": "PodList",
                    "apiVersion": "v1",
                    "metadata": {"resourceVersion": "1"},
                    "items": chosen,
                }
            if kind == "pods" and method == "DELETE":
                for each in [name] if name else list(self.pods):
                    self._end(each)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            if kind == "pods" and name in self.pods:  # a PATCH adds labels, of which nothing depends here
                return 200, self.pods[name]
            if kind == "configmaps" and method in ("POST", "GET"):
                return 201, body
            if kind == "persistentvolumeclaims":
                return 200, {"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "metadata": {}, "items": []}
            if method == "DELETE":
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        self.refused.append(f"{method} {path}")
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}

    def _create(self, pod: dict[str, Any]) -> dict[str, Any]:
        name = pod["metadata"]["name"]
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        pod["metadata"] |= {"uid": name, "creationTimestamp": moment, "resourceVersion": "1"}
        (container,) = (each for each in pod["spec"]["containers"] if each.get("args") == ["executor"])
        fields = {"status.podIP": "127.0.0.1", "metadata.name": name}
        environ = dict(os.environ)
        for each in container["env"]:
            source = each.get("valueFrom", {}).get("fieldRef")
            environ[each["name"]] = fields[source["fieldPath"]] if source else each.get("value") or ""
        words = [sys.executable if word == "python" else word for word in container["command"]]
        home = self._folder / name
        home.mkdir()
        with (home / "log").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [*words, *container["args"]], env=environ, cwd=home, stdout=output, stderr=output
            )
        self.pods[name] = pod
        return self._now(name)

    def _all(self) -> list[dict[str, Any]]:
        return [self._now(name) for name in self.pods]

    def _now(self, name: str) -> dict[str, Any]:
        """The pod with its state, as the process has it."""
        code = self._processes[name].poll()
        phase = "Running" if code is None else "Succeeded" if code == 0 else "Failed"
        state = {"running": {}} if code is None else {"terminated": {"exitCode": abs(code)}}
        container = {"name": "executor", "state": state, "ready": code is None, "restartCount": 0}
        container |= {"image": "cutline", "imageID": "", "containerID": ""}
        self.pods[name]["status"] = {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [container]}
        return self.pods[name]

    def running(self) -> list[str]:
        """The names of the pods whose processes run."""
        with self._lock:
            return [name for name, process in self._processes.items() if process.poll() is None]

    def kill(self, name: str) -> None:
        """Kill a pod's process: its machine is lost."""
        with self._lock:
            self._stop(name)

    def logs(self) -> str:
        """The end of each executor's log."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self._folder.glob("*/log")))

    def _stop(self, name: str) -> None:
        process = self._processes[name]
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.wait(10)

    def _end(self, name: str) -> None:
        if name in self.pods:
            self._stop(name)
            del self.pods[name]

    def close(self) -> None:
        """End all pods and the server."""
        self._server.shutdown()
        self._server.server_close()
        for name in list(self.pods):
            self._end(name)


def _selected(labels: dict[str, str], selector: str) -> bool:
    """Whether a pod's labels meet a selector such as `a=b,c!=d`."""
    pairs = [term.split("!=") if "!=" in term else term.split("=") for term in selector.split(",") if term]
    unwanted = [("!=" in term) for term in selector.split(",") if term]
    return all((labels.get(name) == value) != no for (name, value), no in zip(pairs, unwanted, strict=True))
