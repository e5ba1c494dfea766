"""A control plane of Kubernetes on loopback: its API server and its controllers, over an etcd, with no node.

So objects are judged by the real schemas, defaults and admission, and Deployments and Jobs get their pods, which no
node runs. The programs come from the Go module k8s.io/kubernetes, and are built once, in some minutes of CPU; etcd is
Debian's.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import tempfile
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cutline.common.config.environment import cache_folder
from tests.manifests import Object
from tests.programs import program
from tests.servers import HOST, LocalServer, Process, built_once, free_port, go

VERSION = "1.37.1"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")


def kubernetes() -> Path:
    """The folder with the programs; the first use builds them."""
    target = cache_folder() / f"kubernetes-v{VERSION}"
    with built_once(target) as building:
        if building is not None:
            with tempfile.TemporaryDirectory(prefix="cutline-go-") as scratch:
                _build(Path(scratch), building)
    return target


def _build(scratch: Path, into: Path) -> None:
    """Kubernetes' own module names its other modules by folders of its repository, so `go install` refuses it: a module
    of ours names their versions."""
    known = json.loads(go("mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}", scratch=scratch))
    staged = re.findall(r"^\s+(k8s\.io/\S+) => \./staging", Path(known["GoMod"]).read_text(), re.MULTILINE)
    version = VERSION.replace("1.", "v0.", 1)
    replaced = "".join(f"replace {name} => {name} {version}\n" for name in staged)
    (scratch / "go.mod").write_text(f"module cutline\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v{VERSION}\n{replaced}")
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS]
    named = f"-s -w -X k8s.io/component-base/version.gitVersion=v{VERSION}"  # Helm asks the server for it
    go("build", "-mod=mod", "-trimpath", f"-ldflags={named}", f"-o={into}/", *packages, scratch=scratch)


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
                f"--service-account-private-key-file={self.folder}/accounts.key",
                "--controllers=*,-nodeipam", f"--secure-port={free_port()}", f"--bind-address={HOST}",
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

    def apply(self, each: Object) -> Object:
        """Apply an object on the server's side, as `kubectl apply --server-side` does; an unknown field is an error."""
        group, _, version = each["apiVersion"].rpartition("/")
        kinds = f"/apis/{group}/{version}" if group else f"/api/{version}"
        with self.client() as client:
            known = client.get(kinds).raise_for_status().json()["resources"]
            (found,) = (kind for kind in known if kind["kind"] == each["kind"] and "/" not in kind["name"])
            place = f"/namespaces/{each['metadata']['namespace']}" if found["namespaced"] else ""
            answer = client.patch(
                f"{kinds}{place}/{found['name']}/{each['metadata']['name']}",
                params={"fieldManager": "test", "fieldValidation": "Strict", "force": "true"},
                content=yaml.safe_dump(each),
                headers={"Content-Type": "application/apply-patch+yaml"},
            )
        assert answer.is_success, f"{each['kind']} {each['metadata']['name']}: {answer.text}"
        applied: Object = answer.json()
        return applied

    def list(self, path: str) -> list[Object]:
        """The objects at a path of the API, as in `/api/v1/namespaces/cutline/pods`."""
        with self.client() as client:
            found: list[Object] = client.get(path).raise_for_status().json()["items"]
        return found

    def _make_folder(self) -> Path:
        folder = super()._make_folder()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
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
            str(kubernetes() / "kube-apiserver"), f"--etcd-servers={clients}", f"--bind-address={HOST}",
            f"--secure-port={self.port}", f"--cert-dir={self.folder}/certificates", "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder}/tokens.csv", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/accounts.key",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def _end(self, first: signal.Signals) -> None:
        super()._end(first)
        while self._others:
            self._others.pop().end(signal.SIGKILL if first == signal.SIGKILL else signal.SIGTERM)
