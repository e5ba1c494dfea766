"""`make acceptance-kubernetes`: the Helm chart on a Kubernetes of one node (node.py), with crashes and an upgrade.

1. Images: two builds of Cutline, on a Docker daemon of our own. All that follows is in namespaces of its own.
2. The node starts, and beside it MySQL, an S3 server and an Iceberg catalogue. The API server finds no fault in the
   manifests for those without Helm. Helm installs the chart into a namespace with the restricted profile; every pod
   becomes ready. Pods find Redis by the name of its Service, and Spark the API server. While chunks of the snapshot
   wait the autoscaler adds readers, and once the table is live takes them back.
3. A pod that is no part of the release, and pods that claim to be, reach what the network policies allow, no more.
4. While rows change: a reader's pod is deleted; two writers' are evicted, of which the budget keeps one; a writer
   hangs, and its liveness probe has it started again. The lake goes on each time.
5. `helm upgrade` to the second build, with a changed pipeline and Spark's executors as pods: all pods are replaced one
   by one. The executors are killed, and others take their places.
6. The changes stop, and the lake is compared with the source. `helm uninstall` leaves no pod.

Exits with 1 if any row differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from pyiceberg.catalog import load_catalog
from rich.console import Console

from tests.acceptance import images
from tests.acceptance.docker import DockerFailed, daemon
from tests.acceptance.measuring import measure
from tests.acceptance.node import GATEWAY, PAUSE, Node, apart, network
from tests.support.control_plane import ControlPlane
from tests.support.databases import CDC_PASSWORD, MySQL
from tests.support.lake_servers import S3, IcebergRest
from tests.support.server_process import ServerFailed
from tools.manifests import CHART, K8S, MANIFESTS, Object, helm, objects
from tools.programs import Missing

ROOT = Path(__file__).parents[2]
FIRST, SECOND = "first", "second"
ROWS = 100_000
TOKEN = "acceptance"
NAMESPACE = "/api/v1/namespaces/cutline"
STEP_SECONDS = 300.0
VISIT = """
import socket, sys, time
ends_at = time.monotonic() + 30  # the policies of a new pod come soon after it
while True:
    found = {}
    for place in sys.argv[2:]:
        host, _, port = place.rpartition(":")
        address = socket.gethostbyname(host)
        try:
            socket.create_connection((address, int(port)), 3).close()
            found[place] = True
        except OSError:
            found[place] = False
    if [place for place in found if found[place]] == sys.argv[1].split():
        break
    if time.monotonic() > ends_at:
        sys.exit(f"reached: {found}")
"""
"""Connects to the places of the arguments, and fails unless those of the first one, and no others, are reached."""
console = Console(highlight=False)


class Release:
    """The chart's release, seen as a user sees it: Helm, Kubernetes' API and Cutline's."""

    def __init__(self, node: Node, values: dict[str, Any]) -> None:
        self.node, self.values = node, values
        self._plane = node.plane
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print progress with the seconds since the start."""
        console.print(f"[{time.monotonic() - self._started:6.1f} s] {text}", markup=False)

    def wait(self, goal: str, holds: Any) -> Any:
        """Wait for a step. A message that it was in vain begins with what Cutline's own API says."""
        try:
            return self.node.until(goal, holds, STEP_SECONDS)
        except DockerFailed as error:
            raise DockerFailed(f"{self._causes()}\n{error}") from error

    def _causes(self) -> str:
        """What the pipeline waits for, and the causes of its tables, by the API."""
        try:
            found, tables = self.get("/v1/pipelines/shop"), self.get("/v1/pipelines/shop/tables")
        except httpx.HTTPError as error:
            return f"Cutline's API does not say why: {error}"
        own = {name: found.get(name) for name in ("halted", "waiting_for", "spark_writer_error") if found[name]}
        return f"the pipeline: {own}; its tables: {[(each['phase'], each.get('cause')) for each in tables]}"

    def apply(self) -> None:
        """Install the release, or upgrade it to these values; wait until every pod is a new one and ready."""
        path = self.node.folder / "values.json"
        path.write_text(json.dumps(self.values))
        helm("upgrade", "--install", "cutline", str(CHART), "--namespace=cutline", f"--values={path}")
        self.wait("every pod is ready", self.ready)

    def ready(self) -> bool:
        """Whether all pods that the Deployments want are there, ready and of the newest template, and no others."""
        for each in self._plane.list("/apis/apps/v1/namespaces/cutline/deployments"):
            status, wanted = each["status"], each["spec"]["replicas"]
            numbers = {status.get(f"{what}eplicas", 0) for what in ("r", "readyR", "updatedR")}
            if numbers != {wanted} or status["observedGeneration"] != each["metadata"]["generation"]:
                return False
        return True

    def pods(self, component: str) -> list[Object]:
        """The running pods of a component."""
        return [
            pod
            for pod in self._plane.list(f"{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component={component}")
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"
        ]

    def get(self, path: str) -> Any:
        """A resource of Cutline's API."""
        return self.request("GET", path, None)

    def request(self, method: str, path: str, body: Any) -> Any:
        """What Cutline's API answers."""
        url, headers = f"http://{self.api}{path}", {"Authorization": f"Bearer {TOKEN}"}
        return httpx.request(method, url, headers=headers, json=body, timeout=10).raise_for_status().json()

    @property
    def api(self) -> str:
        """The address of its Service."""
        return f"{self._plane.get(f'{NAMESPACE}/services/cutline-control')['spec']['clusterIP']}:8642"

    def publication(self) -> int:
        """The newest checkpoint that the lake shows."""
        return int(self.get("/v1/pipelines/shop")["publication"] or 0)

    def goes_on(self, cause: str) -> None:
        """Wait until every pod is ready and two more publications are there."""
        self.wait(f"every pod is ready after {cause}", self.ready)
        before = self.wait("the API names a publication", self.publication)
        self.wait(f"the lake goes on after {cause}", lambda: self.publication() >= before + 2)
        tables = self.get("/v1/pipelines/shop/tables")
        assert [each["phase"] for each in tables] == ["live"], tables
        self.say(f"{cause}: the lake shows checkpoint {self.publication()}")

    def visit(self, component: str | None, reached: list[str], *others: str) -> None:
        """A pod with the labels of a component, or none, reaches these places and not the others."""
        labels = {"app.kubernetes.io/name": "cutline", "app.kubernetes.io/instance": "cutline"}
        labels["app.kubernetes.io/component"] = str(component)
        context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
        name = f"visit-{component or 'stranger'}"
        container = {
            "name": "visit", "image": f"cutline:{FIRST}", "terminationMessagePolicy": "FallbackToLogsOnError",
            "command": ["python", "-c", VISIT, " ".join(reached), *reached, *others],
            "securityContext": {**context, "seccompProfile": {"type": "RuntimeDefault"}},
        }  # fmt: skip
        metadata = {"name": name, "namespace": "cutline", "labels": labels if component else {}}
        spec = {"restartPolicy": "Never", "containers": [container], "automountServiceAccountToken": False}
        self._plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

        def ended() -> Any:
            status = self._plane.get(f"{NAMESPACE}/pods/{name}")["status"]
            return status if status["phase"] in ("Succeeded", "Failed") else None

        status = self.wait(f"the pod {name} has ended", ended)
        with self._plane.client() as client:
            client.delete(f"{NAMESPACE}/pods/{name}").raise_for_status()
        assert status["phase"] == "Succeeded", f"{name}: {status['containerStatuses'][0]['state']}"

    def delete_a_reader(self) -> None:
        """As a person or an autoscaler does: SIGTERM, and a last checkpoint."""
        name, begun = self.pods("reader")[0]["metadata"]["name"], time.monotonic()
        with self._plane.client() as client:
            client.delete(f"{NAMESPACE}/pods/{name}").raise_for_status()
            self.wait("its pod has ended", lambda: client.get(f"{NAMESPACE}/pods/{name}").status_code == 404)
        took = time.monotonic() - begun
        assert took < 25, f"a reader took {took:.0f} s to end"
        self.goes_on("a reader's pod was deleted")

    def evict_the_writers(self) -> None:
        """As a drain of nodes does."""
        answers = []
        with self._plane.client() as client:
            for pod in self.pods("writer"):
                name = {"name": pod["metadata"]["name"], "namespace": "cutline"}
                body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": name}
                answers.append(client.post(f"{NAMESPACE}/pods/{name['name']}/eviction", json=body).status_code)
        assert answers == [201, 429], f"evictions were answered by {answers}"
        self.goes_on("a writer was evicted, and the other kept")

    def hang_a_writer(self) -> None:
        """Its event loop stands still, so its presence lapses."""
        pod = self.pods("writer")[0]
        (process,) = self.node.processes(pod, "cutline.services.writer")
        os.kill(process, signal.SIGSTOP)

        def restarted() -> bool:
            now = [each for each in self.pods("writer") if each["metadata"]["uid"] == pod["metadata"]["uid"]]
            return any(each["status"]["containerStatuses"][0]["restartCount"] > 0 for each in now)

        self.wait("the liveness probe has it started again", restarted)
        self.goes_on("a writer hung, and was started again")

    def see_readers_scaled(self) -> None:
        """While chunks wait the autoscaler adds readers, and takes them back after it; writers it finds enough."""
        waiting = "chunks wait, and the autoscaler has made 4 readers of 2"
        self.wait(waiting, lambda: len(self.pods("reader")) == 4 and self.ready())
        self.say(waiting)
        self.request("PUT", "/v1/pipelines/shop/limits", {"rows_per_second": None, "bytes_per_second": None})
        self.wait("the table is live", lambda: self.get("/v1/pipelines/shop")["tables"].get("live") == 1)
        self.wait("2 readers are left", lambda: len(self.pods("reader")) == 2 and self.ready())
        self.wait("the autoscaler knows the load of readers and writers", self._measured)
        self.goes_on("the table went live, and the autoscaler kept 2 readers")

    def _measured(self) -> bool:
        found = self._plane.list("/apis/autoscaling/v2/namespaces/cutline/horizontalpodautoscalers")
        known = [condition for each in found for condition in each["status"]["conditions"]]
        active = [each["status"] for each in known if each["type"] in ("AbleToScale", "ScalingActive")]
        return active == 4 * ["True"]

    def upgrade(self) -> None:
        """Another build, another definition of the pipeline, and Spark's executors as pods."""
        self.values["image"]["tag"] = SECOND
        self.values["pipelines"]["shop"]["checkpoint"]["interval_seconds"] = 4
        self.values["pipelines"]["shop"]["sink"]["engine"] = "spark"
        self.values["sparkWriter"] |= {
            "executors": {"enabled": True, "instances": 1, "cores": 1, "memory": "512m", "memoryOverhead": "1g"},
            "properties": {"spark.kubernetes.executor.request.cores": "20m"},
        }
        self.apply()
        tags = {each["spec"]["containers"][0]["image"] for each in self.pods("reader")}
        assert tags == {f"cutline:{SECOND}"}, tags
        self.goes_on("everything was upgraded")
        versions = [each["version"] for each in self.get("/v1/pipelines/shop/versions")]
        assert sorted(versions) == [1, 2], versions

    def kill_an_executor(self) -> None:
        """As the loss of its machine does."""
        self.wait("Spark applied a batch", lambda: self.get("/v1/pipelines/shop")["applied_by_spark"])
        before = self.wait("there are executors", lambda: self.pods("executor"))
        for pod in before:
            for process in self.node.processes(pod, "KubernetesExecutorBackend"):
                os.kill(process, signal.SIGKILL)
        killed = {pod["metadata"]["uid"] for pod in before}
        self.wait("others take their places", lambda: [
            pod for pod in self.pods("executor") if pod["metadata"]["uid"] not in killed
        ])  # fmt: skip
        self.goes_on(f"{len(killed)} of Spark's executors were killed")

    def uninstall(self) -> None:
        """Take everything away."""
        helm("uninstall", "cutline", "--namespace=cutline")
        self.wait("no pod is left", lambda: not self._plane.list(f"{NAMESPACE}/pods"))
        self.say("uninstalled; no pod is left")


def values(plane: ControlPlane, mysql: MySQL, s3: S3, catalogue: IcebergRest) -> dict[str, Any]:
    """The values: the chart's own, but for places and for what this machine has."""
    small = {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    large = {"requests": {"cpu": "20m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
    pipeline = {
        "source": {
            "host": GATEWAY, "port": mysql.port, "user": mysql.user, "password_env": "SHOP_PASSWORD", "tls": "required",
        },
        "tables": ["shop.*"],
        "snapshot": {"chunk_rows": 100, "max_rows_per_second": 200},
        "checkpoint": {"interval_seconds": 3},
        "sink": {
            "type": "iceberg", "warehouse": "s3://lake/tables", "format_version": 2,  # PyIceberg reads that
            "catalog": {**catalogue.catalog, "uri": f"http://{GATEWAY}:{catalogue.port}"},
        },
    }  # fmt: skip
    soon = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 5}]}
    behavior = {"scaleUp": soon, "scaleDown": soon}
    scaled = {"enabled": True, "minReplicas": 2, "maxReplicas": 4, "behavior": behavior}
    environment = {"AWS_ENDPOINT_URL": s3.url, "AWS_REGION": s3.region}
    return {
        "image": {"tag": FIRST},
        "store": {"url": "s3://lake/store", "secrets": ["object-storage"], "env": environment},
        "source": {"secrets": ["source"]},
        "redis": {"resources": small},
        "networkPolicy": {
            "source": {"ports": [mysql.port]}, "storage": {"ports": [s3.port, catalogue.port]},
            "apiServer": {"ports": [plane.port]},
        },
        **{name: {"resources": small} for name in ("enumerator", "define")},
        **{name: {"resources": small, "autoscaling": scaled} for name in ("reader", "writer")},
        "sparkWriter": {"resources": large},
        "control": {"resources": small, "token": {"existingSecret": "api-token"}},
        "pipelines": {"shop": pipeline},
    }  # fmt: skip


def prepare(plane: ControlPlane, s3: S3) -> None:
    """Make the namespace and the Secrets that the values name."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cutline", "labels": labels}})
    for each in (each for name in MANIFESTS for each in objects((K8S / name).read_text())):
        if "coreos.com" not in each["apiVersion"]:
            plane.apply(each, dry_run=True)
    for name, content in {
        "source": {"SHOP_PASSWORD": CDC_PASSWORD},
        "object-storage": {"AWS_ACCESS_KEY_ID": s3.key, "AWS_SECRET_ACCESS_KEY": s3.secret},
        "api-token": {"token": TOKEN},
    }.items():
        metadata = {"name": name, "namespace": "cutline"}
        plane.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": content})


class Changes(threading.Thread):
    """Inserts, updates and deletes rows until `ended` is set."""

    def __init__(self, mysql: MySQL) -> None:
        super().__init__()
        self.ended, self.done, self._mysql = threading.Event(), 0, mysql

    def run(self) -> None:
        """Change rows."""
        chosen = random.Random(1)
        with self._mysql.connect() as connection, connection.cursor() as cursor:
            while not self.ended.wait(0.02):
                cursor.execute("INSERT INTO shop.orders (v, note) VALUES (1, 'new')")
                cursor.execute("UPDATE shop.orders SET v = v + 1 WHERE id = %s", (chosen.randrange(1, ROWS),))
                cursor.execute("DELETE FROM shop.orders WHERE id = %s", (chosen.randrange(1, ROWS),))
                self.done += 3


def equal(mysql: MySQL, s3: S3, catalogue: IcebergRest) -> int:
    """The number of rows if the lake has those of the source, each once; else 0."""
    source = {key: rest for key, *rest in mysql.execute("SELECT id, v, note FROM shop.orders")}
    properties = {"uri": f"http://{GATEWAY}:{catalogue.port}", "s3.region": s3.region, **s3.catalog}
    table = load_catalog("lake", **{"type": "rest", **properties}).load_table("shop.orders")
    rows = table.scan(selected_fields=("id", "v", "note")).to_arrow().to_pylist()
    lake = {row["id"]: [row["v"], row["note"]] for row in rows}
    return len(lake) if len(lake) == len(rows) and lake == source else 0


def play(folder: Path) -> int:
    """Steps 2 to 6, in the namespaces."""
    network()
    with ExitStack() as stack:
        plane = ControlPlane()
        plane.host = GATEWAY
        stack.enter_context(plane)
        os.environ |= {"KUBECONFIG": str(plane.kubeconfig), "HELM_CACHE_HOME": str(folder / "helm")}
        node = Node(plane, folder)
        node.start(folder / "images.tar")
        mysql, s3 = MySQL(), S3()
        for server in (mysql, s3):
            server.host = GATEWAY
            stack.enter_context(server)
        s3.create("lake")
        catalogue = IcebergRest("s3://lake/tables", s3.catalog)
        catalogue.host = GATEWAY
        stack.enter_context(catalogue)
        mysql.execute("CREATE DATABASE shop")
        mysql.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, v INT, note VARCHAR(50))")
        with mysql.connect() as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO shop.orders (v, note) VALUES (%s, 'old')", [(n,) for n in range(ROWS)])
        prepare(plane, s3)
        release = Release(node, values(plane, mysql, s3, catalogue))
        release.say("the node is ready, and the servers beside it")
        release.apply()
        release.say("the chart is installed, and every pod is ready")
        measure(node, release.api, TOKEN)
        release.see_readers_scaled()
        source, storage, redis, control = (
            f"{GATEWAY}:{mysql.port}", f"{GATEWAY}:{s3.port}", "cutline-redis:6379", "cutline-control:8642",
        )  # fmt: skip
        release.visit(None, [source, storage, control], redis)
        release.visit("define", [source, storage], redis, control)
        release.visit("executor", [storage], source, redis, control)
        release.say("network policies hold")
        changes = Changes(mysql)
        changes.start()
        try:
            release.delete_a_reader()
            release.evict_the_writers()
            release.hang_a_writer()
            release.upgrade()
            release.kill_an_executor()
        finally:
            changes.ended.set()
            changes.join()
        rows = release.wait("the lake equals the source", lambda: equal(mysql, s3, catalogue))
        release.uninstall()
    print(
        f"acceptance: {rows} rows, {changes.done} changes, a deletion, an eviction, 2 kills, 2 changes of scale, "
        "an upgrade, 0 differences"
    )
    return 0


def main() -> int:
    """Run it all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    inside = parser.parse_args().inside
    try:
        if inside is not None:
            return play(inside)
        with tempfile.TemporaryDirectory(prefix="cutline-node-", dir="/var/tmp") as name:
            folder = Path(name)
            with daemon() as docker:
                images.make(docker)
                docker.build(PAUSE, images.RECIPES / "pause")
                tags = [f"cutline:{tag}" for tag in (FIRST, SECOND)]
                for tag in tags:
                    docker.build(tag, ROOT, EXTRAS="s3", WITH="s3", VERSION=tag)
                docker("save", f"--output={folder}/images.tar", PAUSE, images.wanted()["redis"], *tags)
            return apart("tests.acceptance.kubernetes", f"--inside={folder}")
    except (Missing, DockerFailed, ServerFailed, subprocess.SubprocessError, AssertionError) as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
