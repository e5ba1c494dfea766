"""What must hold for the objects of each rendering of the chart. A check yields each fault, as a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlparse

import yaml

from cutline.common.config.settings import settings
from cutline.common.mesh.host import END_SECONDS
from tools.manifests import Object

SERVICES = ("control", "enumerator", "reader", "spark-writer", "writer")
SOURCE = {"control", "define", "enumerator", "reader"}
"""The components that connect to a source."""
COMPONENT = "app.kubernetes.io/component"
VOLUMES = {"emptyDir", "configMap", "secret"}


@dataclass(frozen=True)
class Pod:
    """The template of a Deployment's, a Job's or Spark's pods."""

    owner: Object
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def component(self) -> str:
        return self.labels[COMPONENT]

    @property
    def container(self) -> Mapping[str, Any]:
        container: Mapping[str, Any] = self.spec["containers"][0]
        return container

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}


class Objects:
    """The objects of one rendering."""

    def __init__(self, found: Iterable[Object]) -> None:
        self.all = list(found)

    def kind(self, kind: str) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in self.all if each["kind"] == kind}

    @cached_property
    def pods(self) -> list[Pod]:
        """All pods, those of Spark's executors too."""
        found = [*self.kind("Deployment").values(), *self.kind("Job").values()]
        pods = [
            Pod(each, each["spec"]["template"]["metadata"]["labels"], each["spec"]["template"]["spec"])
            for each in found
        ]
        for each in self.kind("ConfigMap").values():
            if "executor.yaml" in each["data"]:
                template = yaml.safe_load(each["data"]["executor.yaml"])
                pods.append(Pod(each, template["metadata"]["labels"], template["spec"]))
        return pods

    def pod(self, component: str) -> Pod:
        (found,) = (pod for pod in self.pods if pod.component == component)
        return found

    def selected(self, selector: Mapping[str, Any]) -> list[Pod]:
        return [pod for pod in self.pods if matches(selector, pod.labels)]

    def settings(self) -> dict[str, str]:
        """The settings that all pods have."""
        (found,) = (each["data"] for name, each in self.kind("ConfigMap").items() if name.endswith("-settings"))
        return dict(found)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", ())
    )


def every_service_is_there(found: Objects) -> Iterator[str]:
    components = sorted(pod.component for pod in found.pods if pod.owner["kind"] == "Deployment")
    if [each for each in components if each != "redis"] != list(SERVICES):
        yield f"the Deployments are {components}"
    if found.kind("Deployment")["cutline-enumerator"]["spec"]["replicas"] < 2:
        yield "no enumerator stands by"


def every_container_has_probes_and_limits(found: Objects) -> Iterator[str]:
    for pod in found.pods:
        for container in pod.spec["containers"]:
            if pod.component == "executor":  # Spark sets its resources, and replaces one that has died
                continue
            resources = container["resources"]
            if "memory" not in resources["limits"] or not {"cpu", "memory"} <= resources["requests"].keys():
                yield f"{container['name']} has the resources {resources}"
            probes = {"startupProbe", "readinessProbe", "livenessProbe"} & container.keys()
            if pod.owner["kind"] == "Deployment" and len(probes) != 3:
                yield f"{container['name']} has only the probes {sorted(probes)}"


def no_pod_has_privileges(found: Objects) -> Iterator[str]:
    """The restricted profile of Pod Security Standards, and a read-only root file system."""
    for pod in found.pods:
        context = pod.spec["securityContext"]
        if (
            not context["runAsNonRoot"]
            or context["runAsUser"] == 0
            or context["seccompProfile"]["type"] != "RuntimeDefault"
        ):
            yield f"{pod.component} runs as {context}"
        if pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}:
            yield f"{pod.component} is in a namespace of the host"
        for container in pod.spec["containers"]:
            own = container["securityContext"]
            if (
                own["allowPrivilegeEscalation"]
                or not own["readOnlyRootFilesystem"]
                or own["capabilities"] != {"drop": ["ALL"]}
            ):
                yield f"{container['name']} has the security context {own}"
        token = pod.spec["automountServiceAccountToken"]
        if token != (pod.component == "spark-writer" and bool(found.kind("Role"))):
            yield f"{pod.component} has a token of the API server, or lacks one"


def no_volume_outlives_its_pod(found: Objects) -> Iterator[str]:
    if found.kind("PersistentVolumeClaim") or found.kind("StatefulSet"):
        yield "there are volumes"
    if not found.settings()["CUTLINE_STORE_URL"].startswith(("s3://", "gs://", "abfss://")):
        yield "the store is not on object storage"
    for pod in found.pods:
        mounted = {mount["name"] for mount in pod.container["volumeMounts"]}
        if mounted != {volume["name"] for volume in pod.spec["volumes"]}:
            yield f"{pod.component} mounts {mounted}"
        for volume in pod.spec["volumes"]:
            if not (volume.keys() - {"name"}) <= VOLUMES or volume.get("emptyDir", {"sizeLimit": 1}).keys() != {
                "sizeLimit"
            }:
                yield f"{pod.component} has the volume {volume}"
        if pod.component != "redis" and {"name": "scratch", "mountPath": "/tmp"} not in pod.container["volumeMounts"]:
            yield f"{pod.component} can write nowhere"


def selectors_match(found: Objects) -> Iterator[str]:
    for name, each in found.kind("Deployment").items():
        if [pod.owner["metadata"]["name"] for pod in found.selected(each["spec"]["selector"])] != [name]:
            yield f"the Deployment {name} selects other pods"
    for kind in ("Service", "PodDisruptionBudget"):
        for name, each in found.kind(kind).items():
            selector = each["spec"]["selector"]
            chosen = found.selected(selector if kind != "Service" else {"matchLabels": selector})
            if [pod.owner["metadata"]["name"] for pod in chosen] != [name]:
                yield f"the {kind} {name} selects other pods"
    for name, each in found.kind("NetworkPolicy").items():
        if not found.selected(each["spec"]["podSelector"]):
            yield f"the NetworkPolicy {name} selects no pod"
    for name, each in found.kind("ServiceMonitor").items():
        services = [
            service
            for service in found.kind("Service").values()
            if matches(each["spec"]["selector"], service["metadata"]["labels"])
        ]
        if [service["metadata"]["name"] for service in services] != ["cutline-control"]:
            yield f"the ServiceMonitor {name} selects other Services"
    for pod in found.pods:
        for spread in pod.spec.get("topologySpreadConstraints", ()):
            if not matches(spread["labelSelector"], pod.labels):
                yield f"{pod.component} is spread by labels that it lacks"


def names_lead_to_objects(found: Objects) -> Iterator[str]:
    accounts, own = found.kind("ServiceAccount"), {*found.kind("ConfigMap"), *found.kind("Secret")}
    for pod in found.pods:
        if pod.component != "redis" and pod.spec["serviceAccountName"] not in accounts:
            yield f"{pod.component} has the account {pod.spec['serviceAccountName']}"
        for volume in pod.spec["volumes"]:
            if (name := volume.get("configMap", {}).get("name")) is not None and name not in own:
                yield f"{pod.component} mounts the ConfigMap {name}"
        for each in pod.container.get("envFrom", ()):
            reference = each.get("configMapRef", {"optional": True})
            if not reference.get("optional") and reference["name"] not in own:
                yield f"{pod.component} has the settings {reference['name']}"
        if pod.component == "define" and pod.owner["kind"] == "Job":
            content = found.kind("Secret").get(pod.spec["volumes"][1]["secret"]["secretName"])
            items = pod.spec["volumes"][1]["secret"]["items"]
            if content is not None and items[0]["key"] not in content["stringData"]:
                yield "a Job has no pipeline"
    for binding in found.kind("RoleBinding").values():
        if binding["roleRef"]["name"] not in found.kind("Role") or binding["subjects"][0]["name"] not in accounts:
            yield "a RoleBinding names what is not there"
    for name in [*accounts, *own, *found.kind("Job"), *found.kind("Deployment")]:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            yield f"{name} is no name for an object"


def ports_agree(found: Objects) -> Iterator[str]:
    for name, service in found.kind("Service").items():
        (pod,) = found.selected({"matchLabels": service["spec"]["selector"]})
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in pod.ports:
                yield f"the Service {name} leads to the port {port['targetPort']}"
    for pod in found.pods:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if (request := pod.container.get(kind, {}).get("httpGet")) is not None and request["port"] not in pod.ports:
                yield f"the {kind} of {pod.component} asks the port {request['port']}"
    for name, each in found.kind("ServiceMonitor").items():
        ports = {port["name"] for port in found.kind("Service")["cutline-control"]["spec"]["ports"]}
        if {endpoint["port"] for endpoint in each["spec"]["endpoints"]} - ports:
            yield f"the ServiceMonitor {name} asks another port"
    for each in found.kind("Ingress").values():
        for rule in each["spec"]["rules"]:
            to = rule["http"]["paths"][0]["backend"]["service"]
            if to["port"]["name"] not in {port["name"] for port in found.kind("Service")[to["name"]]["spec"]["ports"]}:
                yield "the Ingress leads to another port"
    if found.pod("control").ports != {"http": int(found.settings()["CUTLINE_API_PORT"])}:
        yield "the control service listens on another port"
    redis = found.kind("Service").get("cutline-redis")
    if redis is not None:
        (url,) = (each["value"] for each in found.pod("reader").container["env"] if each["name"] == "CUTLINE_REDIS_URL")
        if (urlparse(url).hostname, urlparse(url).port) != ("cutline-redis", redis["spec"]["ports"][0]["port"]):
            yield f"Redis is not at {url}"


def settings_and_commands_exist(found: Objects) -> Iterator[str]:
    known = {setting.name for setting in settings()}
    for name in found.settings():
        if name.startswith("CUTLINE_") and name not in known:
            yield f"there is no setting {name}"
    for pod in found.pods:
        for variable in pod.container.get("env", ()):
            if variable["name"].startswith("CUTLINE_") and variable["name"] not in known:
                yield f"{pod.component} has {variable['name']}, which is no setting"
        commands = [pod.container.get("command", [])]
        commands += [
            probe["exec"]["command"]
            for key, probe in pod.container.items()
            if key.endswith("Probe") and "exec" in probe
        ]
        for command in commands:
            if command[:2] == ["python", "-m"] and find_spec(command[2]) is None:
                yield f"{pod.component} starts {command[2]}, which is not there"
        if pod.component in SERVICES and not command_of(pod):
            yield f"{pod.component} starts nothing"
        passwords = any(
            "secretRef" in each and each["secretRef"]["name"] == "source" for each in pod.container.get("envFrom", ())
        )
        if passwords != (pod.component in SOURCE):
            yield f"{pod.component} has the source's password, or lacks it"


def command_of(pod: Pod) -> str:
    """The module that a pod starts, if it is that of its component."""
    words = pod.container.get("command", [])
    wanted = {"spark-writer": "cutline.spark_writer"}.get(pod.component, f"cutline.services.{pod.component}")
    return wanted if words == ["python", "-m", wanted] else ""


def services_have_time_to_end(found: Objects) -> Iterator[str]:
    for pod in found.pods:
        if pod.component in SERVICES and pod.spec["terminationGracePeriodSeconds"] < END_SECONDS + 3:
            yield f"{pod.component} is killed before it has ended"


def scaling_and_budgets_agree(found: Objects) -> Iterator[str]:
    scaled = found.kind("HorizontalPodAutoscaler")
    for name, each in scaled.items():
        target = each["spec"]["scaleTargetRef"]
        if target["name"] != name or "replicas" in found.kind(target["kind"])[name]["spec"]:
            yield f"the HorizontalPodAutoscaler {name} and replicas both set the number of pods"
    for role in ("reader", "writer"):
        name = f"cutline-{role}"
        deployment = found.kind("Deployment")[name]["spec"]
        fewest = scaled[name]["spec"]["minReplicas"] if name in scaled else deployment["replicas"]
        if found.settings()[f"CUTLINE_{role.upper()}S"] != str(fewest):
            yield f"an epoch waits for another number of {role}s than there are"
    for name, each in found.kind("Deployment").items():
        fewest = scaled[name]["spec"]["minReplicas"] if name in scaled else each["spec"]["replicas"]
        if (name in found.kind("PodDisruptionBudget")) != (fewest > 1):
            yield f"{name} has {fewest} pods, and its PodDisruptionBudget does not fit"


def executors_are_as_their_driver_says(found: Objects) -> Iterator[str]:
    executors, writer = [pod for pod in found.pods if pod.component == "executor"], found.pod("spark-writer")
    given = {each["name"]: each.get("value") for each in writer.container["env"]}
    properties = json.loads(given.get("CUTLINE_SPARK_PROPERTIES") or "{}")
    if not executors:
        if "spark.master" in properties:
            yield "Spark asks for executors, and there is no template"
        return
    (executor,) = executors
    if properties["spark.kubernetes.namespace"] != writer.owner["metadata"]["namespace"]:
        yield "executors are in another namespace"
    if properties["spark.kubernetes.container.image"] != writer.container["image"]:
        yield "executors have another image"
    mounts = {mount["name"]: mount["mountPath"] for mount in writer.container["volumeMounts"]}
    if properties["spark.kubernetes.executor.podTemplateFile"] != f"{mounts['executor']}/executor.yaml":
        yield "the template is elsewhere"
    ports = {int(properties["spark.driver.port"]), int(properties["spark.driver.blockManager.port"])}
    if ports != set(writer.ports.values()) or int(properties["spark.blockManager.port"]) not in ports:
        yield f"the ports {ports} are not the driver's"
    if executor.spec["securityContext"] != writer.spec["securityContext"]:
        yield "executors have another security context"
    if executor.container["name"] != properties["spark.kubernetes.executor.podTemplateContainerName"]:
        yield "Spark would add a container"


# ---- who may talk to whom --------------------------------------------------------------------------------------------


def flows(found: Objects) -> set[tuple[str, str, int]]:
    """Each connection between two components of the release that the NetworkPolicies allow, with its port."""
    return {
        (pod.component, other.component, port)
        for pod in found.pods
        for other in found.pods
        for port in {*other.ports.values(), 443, 3306, 6379, 7079}
        if _passes(found, pod, "Egress", other, port) and _passes(found, other, "Ingress", pod, port)
    }


def outside(found: Objects) -> dict[str, set[int]]:
    """The TCP ports outside the release that each component may connect to."""
    return {
        pod.component: {
            port["port"]
            for policy in _policies(found, pod, "Egress")
            for rule in policy["egress"]
            if all("podSelector" not in peer for peer in rule.get("to", ()))
            for port in rule["ports"]
            if port["protocol"] == "TCP"
        }
        for pod in found.pods
    }


def _policies(found: Objects, pod: Pod, direction: str) -> list[Mapping[str, Any]]:
    specs = [each["spec"] for each in found.kind("NetworkPolicy").values()]
    chosen = [spec for spec in specs if direction in spec["policyTypes"] and matches(spec["podSelector"], pod.labels)]
    return [spec for spec in chosen if direction.lower() in spec]


def _passes(found: Objects, pod: Pod, direction: str, other: Pod, port: int) -> bool:
    key = "to" if direction == "Egress" else "from"
    return any(
        ({"protocol": "TCP", "port": port} in rule["ports"])
        and (
            key not in rule
            or any(matches(peer.get("podSelector", {}), other.labels) for peer in rule[key] if "podSelector" in peer)
        )
        for policy in _policies(found, pod, direction)
        for rule in policy[direction.lower()]
    )


def only_what_must_talk_may_talk(found: Objects) -> Iterator[str]:
    if not found.kind("NetworkPolicy"):
        return
    for pod in found.pods:
        denied = [
            each["spec"]
            for each in found.kind("NetworkPolicy").values()
            if matches(each["spec"]["podSelector"], pod.labels)
        ]
        if {way for spec in denied for way in spec["policyTypes"]} != {"Egress", "Ingress"}:
            yield f"nothing denies {pod.component} what it does not need"
    bundled, spark = "cutline-redis" in found.kind("Deployment"), any(pod.component == "executor" for pod in found.pods)
    wanted = {(service, "redis", 6379) for service in SERVICES if bundled}
    if spark:
        pair = ("spark-writer", "executor")
        wanted |= {(each, other, 7079) for each in pair for other in pair}
        wanted |= {(each, "spark-writer", 7078) for each in pair}
    if (allowed := {flow for flow in flows(found) if flow[2] != 443}) != wanted:
        yield f"connections that are allowed and not needed, or needed and not allowed: {sorted(allowed ^ wanted)}"
    for component, ports in outside(found).items():
        if (3306 in ports) != (component in SOURCE):
            yield f"{component} may connect to a source, or may not"
        if component == "redis" and ports:
            yield "Redis may connect to something"
        if component != "redis" and not {53, 443} <= ports:
            yield f"{component} reaches no object storage"


CHECKS: tuple[Callable[[Objects], Iterator[str]], ...] = (
    every_service_is_there,
    every_container_has_probes_and_limits,
    no_pod_has_privileges,
    no_volume_outlives_its_pod,
    selectors_match,
    names_lead_to_objects,
    ports_agree,
    settings_and_commands_exist,
    services_have_time_to_end,
    scaling_and_budgets_agree,
    executors_are_as_their_driver_says,
    only_what_must_talk_may_talk,
)
