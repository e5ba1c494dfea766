"""A Kubernetes of one node: the control plane of tests/support/control_plane.py with what a node and its network need.

It runs in namespaces of its own (`apart`): of processes, so that all end with the first one; of mounts; and of the
network, where nothing is but loopback and the bridge to the pods. A kubelet with containerd runs the pods; kube-proxy
leads Services to them, CoreDNS knows the Services' names, and kube-router enforces network policies. All are built of
their Go modules, but for containerd, runc and the network's plugins, which are Debian's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.acceptance.docker import DockerFailed, ran
from tests.support.control_plane import SERVICES, ControlPlane
from tests.support.server_process import free_port, tail
from tools.builds import go_program
from tools.kubernetes import kubernetes
from tools.programs import Missing, program, search_path

GATEWAY, SUBNET, BRIDGE = "10.88.77.1", "10.88.77.0/24", "cutline0"
PAUSE = "localhost/cutline-pause:1"
"""The image of the process that holds a pod's network; it must be among the images."""
PLUGINS = Path("/usr/lib/cni")
CGROUPS = Path("/sys/fs/cgroup")
COREDNS = "github.com/coredns/coredns@v1.15.0"
KUBE_ROUTER = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@v2.1.0"
START_SECONDS = 120.0


def apart(module: str, *words: str) -> int:
    """Run a module of ours in namespaces of its own, and return its exit code; call `network` there first."""
    if os.geteuid() != 0:
        raise Missing("a node of Kubernetes needs root")
    for name in ("iptables", "ipset", "runc", f"{PLUGINS}/bridge"):  # kube-proxy, kube-router and containerd run them
        program(name)
    own = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run([program("unshare"), *own, sys.executable, "-m", module, *words], check=False)
    for folder in sorted(CGROUPS.glob("**/kubepods*/**/"), reverse=True):
        folder.rmdir()
    return done.returncode


def network() -> None:
    """Bring loopback up, and the bridge on which pods find this machine's servers at GATEWAY."""
    for words in (
        ("link", "set", "lo", "up"),
        ("link", "add", BRIDGE, "type", "bridge"),
        ("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE),
        ("link", "set", BRIDGE, "up"),
        ("route", "add", "default", "dev", BRIDGE),  # the API server looks for its own address there
    ):
        ran([program("ip"), *words], os.environ)


class Node:
    """The node of a control plane, with its files in `folder`."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder

    def start(self, images: Path) -> None:
        """Start containerd with the images of an archive, then the scheduler and the kubelet; wait for the node, then
        enforce network policies on it.
        """
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "bridge.conflist").write_text(json.dumps(_network()))
        (self.folder / "containerd.toml").write_text(_containerd(self.folder))
        self.begin("containerd", program("containerd"), f"--config={self.folder}/containerd.toml")
        self.until("containerd answers", (self.folder / "containerd.sock").exists)
        self.ctr("images", "import", str(images))
        known = f"--kubeconfig={self.plane.kubeconfig}"
        self._connect(known)
        scheduler = str(kubernetes() / "kube-scheduler")
        self.begin("scheduler", scheduler, known, "--leader-elect=false", f"--secure-port={free_port()}")
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(self.folder)))
        own = (f"--config={self.folder}/kubelet.yaml", f"--root-dir={self.folder}/kubelet", f"--node-ip={GATEWAY}")
        self.begin("kubelet", str(kubernetes() / "kubelet"), known, *own, "--hostname-override=node")
        self.until("the node is ready", self._ready)
        only_policies = ("--run-firewall=true", "--run-router=false", "--run-service-proxy=false")
        own = (f"--service-cluster-ip-range={SERVICES[0]}", "--hostname-override=node", "--health-port=0")
        self.begin("policies", str(go_program(KUBE_ROUTER)), known, *only_policies, *own)

    def _connect(self, known: str) -> None:
        """Start what leads to Services, and what knows their names."""
        (self.folder / "proxy.yaml").write_text(yaml.safe_dump(_proxy(self.plane)))
        self.begin("proxy", str(kubernetes() / "kube-proxy"), f"--config={self.folder}/proxy.yaml")
        (self.folder / "Corefile").write_text(_names(self.plane))
        self.begin("names", str(go_program(COREDNS)), f"-conf={self.folder}/Corefile")

    def ctr(self, *words: str) -> str:
        """Run containerd's client on what the kubelet sees."""
        return ran(
            [program("ctr"), f"--address={self.folder}/containerd.sock", "--namespace=k8s.io", *words], os.environ
        )

    def until(self, goal: str, holds: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
        """Wait until `holds()` is true, and return its value; an error of a connection counts as not yet."""
        ends_at, problem = time.monotonic() + seconds, ""
        while True:
            try:
                if found := holds():
                    return found
            except httpx.HTTPError as error:
                problem = f" ({error})"
            if time.monotonic() > ends_at:
                raise DockerFailed(f"waited {seconds:.0f} s in vain until {goal}{problem}\n{self._story()}")
            time.sleep(0.5)

    def processes(self, pod: dict[str, Any], word: str) -> list[int]:
        """The processes of a pod, by its cgroup, whose command line has this word."""
        uid, found = pod["metadata"]["uid"], []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if uid in (process / "cgroup").read_text() and word in (process / "cmdline").read_text():
                    found.append(int(process.name))
            except OSError:
                continue  # it has just ended
        return found

    def _ready(self) -> bool:
        conditions = [each for node in self.plane.list("/api/v1/nodes") for each in node["status"]["conditions"]]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def begin(self, name: str, *command: str) -> None:
        """Start a process that ends with the namespace."""
        with (self.folder / f"{name}.log").open("wb") as log:
            environment = {**os.environ, "PATH": search_path()}
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _story(self) -> str:
        """What the namespace's pods and the node say, for a message."""
        events = self.plane.list("/api/v1/events")
        warnings = [
            f"{each['involvedObject'].get('name')}: {each['message']}" for each in events if each["type"] != "Normal"
        ]
        logs = [tail(path, 5) for path in sorted(self.folder.glob("pods/cutline_*/*/*.log"))]
        return "\n".join([*warnings[-20:], *logs, tail(self.folder / "kubelet.log", 5)])


def _network() -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": SUBNET, "gateway": GATEWAY}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "cutline", "plugins": [bridge]}


def _proxy(plane: ControlPlane) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": SUBNET,
        "hostnameOverride": "node",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
        "healthzBindAddress": f"127.0.0.1:{free_port()}",
        "metricsBindAddress": f"127.0.0.1:{free_port()}",
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},  # as they are
    }


def _names(plane: ControlPlane) -> str:
    return f"""
.:53 {{
    bind {GATEWAY}
    errors
    kubernetes cluster.local {{
        kubeconfig {plane.kubeconfig}
    }}
}}
"""


def _containerd(folder: Path) -> str:
    # A sandbox's score for the OOM killer is below its parent's by default, which needs CAP_SYS_RESOURCE.
    return f"""
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{folder}/cni"
"""


def _kubelet(folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "podLogsDir": f"{folder}/pods",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [GATEWAY],
        "clusterDomain": "cluster.local",
        "enforceNodeAllocatable": [],
        # The disk of this machine, which may be full of other things, evicts no pod and removes no image.
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "healthzPort": 0,
    }
