"""A control plane of Kubernetes at `host`, by default on loopback: its API server and its controllers, over an etcd.

So objects are judged by the real schemas, defaults and admission, and Deployments and Jobs get their pods, which no
node runs (but that of tests/acceptance/node.py). tools/kubernetes.py builds the programs; etcd is Debian's.
"""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.certificates import Authority
from tests.support.server_process import HOST, LocalServer, Process, free_port
from tools.kubernetes import kubernetes
from tools.manifests import Object
from tools.programs import program

SERVICES = ("10.96.0.0/16", "10.96.0.1")
"""The addresses of Services, and that of the API server among them."""


class ControlPlane(LocalServer):
    """The API server, with its etcd and its controllers; the user of `token` may do everything."""

    name = "kube-apiserver"

    def __init__(self) -> None:
        super().__init__()
        self.token = secrets.token_hex(16)
        self._others: list[Process] = []

    def __enter__(self) -> Self:
        """Start all, and write `kubeconfig` for clients."""
        try:
            self.start()
            assert self.folder is not None
            self._run("controllers", [
                str(kubernetes() / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig}",
                "--leader-elect=false", "--use-service-account-credentials",
                f"--service-account-private-key-file={self.folder}/accounts.key", "--controllers=*,-nodeipam",
                "--horizontal-pod-autoscaler-sync-period=2s",
                f"--root-ca-file={self.folder}/ca.pem", f"--secure-port={free_port()}", f"--bind-address={HOST}",
            ])  # fmt: skip
        except BaseException:
            self.close()
            raise
        return self

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """A file by which clients find the server."""
        assert self.folder is not None
        path = self.folder / "kubeconfig"
        known = {"server": self.url, "insecure-skip-tls-verify": True}
        content: dict[str, Any] = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": known}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(content))
        return path

    def client(self) -> httpx.Client:
        """A client of the API, with all rights."""
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, verify=False, timeout=30
        )

    def apply(self, each: Object, *, dry_run: bool = False) -> Object:
        """Apply an object on the server's side, as `kubectl apply --server-side` does; an unknown field is an error,
        and so is a warning. A dry run changes nothing.
        """
        group, _, version = each["apiVersion"].rpartition("/")
        kinds = f"/apis/{group}/{version}" if group else f"/api/{version}"
        with self.client() as client:
            known = client.get(kinds).raise_for_status().json()["resources"]
            (found,) = (kind for kind in known if kind["kind"] == each["kind"] and "/" not in kind["name"])
            place = f"/namespaces/{each['metadata']['namespace']}" if found["namespaced"] else ""
            answer = client.patch(
                f"{kinds}{place}/{found['name']}/{each['metadata']['name']}",
                params={
                    **{"fieldManager": "test", "fieldValidation": "Strict", "force": "true"},
                    **({"dryRun": "All"} if dry_run else {}),
                },
                content=yaml.safe_dump(each),
                headers={"Content-Type": "application/apply-patch+yaml"},
            )
        warned = answer.headers.get("warning", "")
        problem = warned if answer.is_success else answer.text
        assert not problem, f"{each['kind']} {each['metadata']['name']}: {problem}"
        applied: Object = answer.json()
        return applied

    def get(self, path: str) -> Any:
        """What is at a path of the API."""
        with self.client() as client:
            return client.get(path).raise_for_status().json()

    def list(self, path: str) -> list[Object]:
        """The objects at a path of the API, as in `/api/v1/namespaces/cutline/pods`."""
        found: list[Object] = self.get(path)["items"]
        return found

    def _make_folder(self) -> Path:
        folder = super()._make_folder()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        authority = Authority(folder)
        authority.issue("server", self.host, SERVICES[1], "kubernetes.default.svc")
        authority.issue("passing-on")
        (folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        return folder

    def _run(self, name: str, command: list[str]) -> None:
        assert self.folder is not None
        self._others.append(Process(command, self.folder / f"{name}.log", self.folder))

    def _command(self) -> list[str]:
        assert self.folder is not None
        clients, peers = (f"http://{HOST}:{free_port()}" for _ in range(2))
        self._run("etcd", [
            program("etcd"), f"--data-dir={self.folder}/etcd", f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
        ])  # fmt: skip
        return [
            str(kubernetes() / "kube-apiserver"), f"--etcd-servers={clients}", f"--bind-address={self.host}",
            f"--secure-port={self.port}", f"--tls-cert-file={self.folder}/server-cert.pem",
            f"--tls-private-key-file={self.folder}/server-key.pem",
            *(["--endpoint-reconciler-type=none"] if self.host == HOST else []),  # no Service leads to loopback
            f"--service-cluster-ip-range={SERVICES[0]}", "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder}/tokens.csv", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/accounts.key",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            "--watch-cache-sizes=pods#0",  # with it, and Debian's etcd, Spark's watch of its pods is refused
            # For APIs that other servers have, such as that of metrics:
            f"--requestheader-client-ca-file={self.folder}/ca.pem", "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.folder}/passing-on-cert.pem",
            f"--proxy-client-key-file={self.folder}/passing-on-key.pem",
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def _end(self, first: signal.Signals) -> None:
        super()._end(signal.SIGKILL)  # it keeps nothing, and would wait a minute for those who watch
        while self._others:
            self._others.pop().end(signal.SIGKILL if first == signal.SIGKILL else signal.SIGTERM)
