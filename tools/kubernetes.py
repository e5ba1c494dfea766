"""Kubernetes' programs from the Go module k8s.io/kubernetes, built once, in some minutes of CPU."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from cutline.common.config.environment import cache_folder
from tools.builds import built_once, go

VERSION = "1.37.1"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")


def kubernetes() -> Path:
    """The folder with the programs; the first use builds them."""
    target = cache_folder() / "-".join([f"kubernetes-v{VERSION}", *PROGRAMS])
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
