"""docker-compose.yml, its sample in k8s/compose/ and the Dockerfile agree with the code and with each other."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.config.settings import settings
from cutline.spark_writer import jars
from cutline.spark_writer.sinks.iceberg import catalogue
from tests.acceptance import images
from tests.acceptance.compose import SERVICES
from tests.support.lake_servers import S3

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
CONTAINERS: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OURS = sorted(name for name, service in CONTAINERS.items() if "build" in service)
SAMPLE = load(ROOT / "k8s" / "compose" / "pipeline.yaml")

every_container = pytest.mark.parametrize("name", sorted(CONTAINERS))
each_of_ours = pytest.mark.parametrize("name", OURS)


def words(service: dict[str, Any]) -> str:
    """A command as one text."""
    return " ".join([*service.get("entrypoint", []), *service.get("command", [])])


def environment(service: dict[str, Any]) -> dict[str, str]:
    """Its environment, with the defaults of Compose's variables."""
    given = {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in service.get("environment", {}).items()}
    return given


def test_every_service_of_cutline_has_a_container() -> None:
    modules = {module for service in CONTAINERS.values() for module in re.findall(r"-m (\S+)", words(service))}
    roles = ("services.enumerator", "services.reader", "services.writer", "services.control", "spark_writer")
    assert modules == {f"cutline.{role}" for role in roles}
    assert set(SERVICES) < set(CONTAINERS)
    replicas = {name: service["deploy"]["replicas"] for name, service in CONTAINERS.items() if "deploy" in service}
    assert replicas == {"enumerator": 2, "reader": 2, "writer": 2}
    for name in SERVICES:
        assert environment(CONTAINERS[name])["CUTLINE_READERS"] == str(replicas["reader"])
        assert environment(CONTAINERS[name])["CUTLINE_WRITERS"] == str(replicas["writer"])


@each_of_ours
def test_a_command_is_in_the_image_or_in_the_sample(name: str) -> None:
    command = words(CONTAINERS[name])
    for module in re.findall(r"-m (\S+)", command):
        assert find_spec(module) is not None
    mounted = any(volume.startswith("./k8s/compose:/etc/cutline") for volume in CONTAINERS[name]["volumes"])
    for file in re.findall(r"/etc/cutline/([\w.]+)", command):
        assert mounted
        assert (ROOT / "k8s" / "compose" / file).is_file()


@each_of_ours
def test_the_settings_of_a_container_are_those_of_the_code(name: str) -> None:
    given = environment(CONTAINERS[name])
    assert {key for key in given if key.startswith("CUTLINE_")} <= {setting.name for setting in settings()}
    read = Environment.read(given)
    if name in SERVICES:
        assert read.need_redis_url() == "redis://redis:6379/0"
        assert read.need_store_url().split("/")[2] == SAMPLE.sink.warehouse.split("/")[2] == "lake"


def test_the_control_service_listens_on_the_port_that_is_published_on_loopback_only() -> None:
    read = Environment.read(environment(CONTAINERS["control"]))
    assert CONTAINERS["control"]["ports"] == [f"127.0.0.1:${{CUTLINE_PORT:-8080}}:{read.api_port}"]
    assert read.api_host == "0.0.0.0"
    assert environment(CONTAINERS["cli"])["CUTLINE_API_URL"] == f"http://control:{read.api_port}"
    assert [name for name, service in CONTAINERS.items() if "ports" in service] == ["control"]


@every_container
def test_a_container_has_no_more_rights_than_it_needs_and_bounded_memory(name: str) -> None:
    service = CONTAINERS[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "mem_limit" in service
    assert "privileged" not in service
    if name != "mysql":
        assert service["read_only"] is True
        assert "cap_add" not in service
    if name in OURS:
        assert service["user"] == "10001:10001"
        assert [mount.split(":")[0] for mount in service["tmpfs"]] == ["/tmp"]


@every_container
def test_a_container_waits_for_what_it_needs_and_comes_back(name: str) -> None:
    service = CONTAINERS[name]
    ends = name in ("secrets", "define", "cli")
    assert service.get("restart", "no") == ("no" if ends else "unless-stopped")
    for other, waits in service.get("depends_on", {}).items():
        completes = waits["condition"] == "service_completed_successfully"
        assert completes == (other in ("secrets", "define"))
        if not completes:
            assert "test" in CONTAINERS[other]["healthcheck"]
    if name in OURS:
        assert service.get("healthcheck") == (None if name in SERVICES else {"disable": True})


def test_no_password_is_written_down() -> None:
    for name, service in CONTAINERS.items():
        for key, value in service.get("environment", {}).items():
            drawn = value.startswith(("/run/cutline/", "${"))
            assert drawn or not re.search(r"PASSWORD|SECRET|TOKEN", key), (name, key)
    source = ast.parse((ROOT / "k8s" / "compose" / "passwords.py").read_text(encoding="utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAMES"
    )
    texts = [(ROOT / "docker-compose.yml"), *sorted((ROOT / "k8s" / "compose").iterdir())]
    named = {name for text in texts for name in re.findall(r"/run/cutline/([\w-]+)", text.read_text(encoding="utf-8"))}
    assert named == {*names, "aws"}


def test_the_image_has_what_the_sample_needs() -> None:
    arguments = CONTAINERS["reader"]["build"]["args"]
    assert set(arguments["WITH"].split()) >= catalogue.extras(SAMPLE.definition()["sink"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(arguments["EXTRAS"].split()) <= project["optional-dependencies"].keys()
    assert set(arguments["WITH"].split()) <= set(jars.all_extras())
    assert {f"ARG {name}=" for name in ("EXTRAS", "WITH")} <= set(DOCKERFILE.splitlines())
    assert "ARG VERSION=unreleased" in DOCKERFILE
    assert set(re.findall(r"CUTLINE_[A-Z_]+", DOCKERFILE)) <= {setting.name for setting in settings()}


def test_the_dockerfile_copies_files_that_docker_sees() -> None:
    """.dockerignore leaves out everything but a few names."""
    seen = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in shlex.split(line)[:-1]:
            assert source.split("/")[0] in seen
            assert (ROOT / source).exists()


def test_the_files_that_fetch_spark_s_jars_are_all_that_they_need(tmp_path: Path) -> None:
    """The Dockerfile copies only these into their stage. `-S`: packages are on the path and this checkout is not."""
    stage = DOCKERFILE.split("AS jars")[1].split("\nFROM ")[0]
    for line in re.findall(r"^COPY (.+)$", stage, re.MULTILINE):
        *sources, folder = shlex.split(line)
        target = tmp_path / folder.removeprefix("/fetch/")
        target.mkdir(parents=True, exist_ok=True)
        for source in sources:
            shutil.copy(ROOT / source, target)
    path = [str(tmp_path), sysconfig.get_path("purelib")]
    code = f"import sys; sys.path += {path}; from cutline.spark_writer import classes, jars; jars.wanted()"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_the_image_runs_as_an_ordinary_user_and_says_whether_its_service_works() -> None:
    last = DOCKERFILE.split("\nFROM ")[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", last, re.MULTILINE)
    assert ast.literal_eval(check) == ["python", "-m", "cutline.services.health"]
    assert find_spec("cutline.services.health") is not None


def test_the_acceptance_test_has_a_stand_in_for_every_image_of_a_registry() -> None:
    tags = images.wanted()
    assert {"debian", "mysql", "redis", "versity/versitygw"} == set(tags)
    assert tags["versity/versitygw"].partition(":")[2] == S3.MODULE.partition("@")[2]
    recipes = {path.parent.name for path in images.RECIPES.glob("*/Dockerfile")}
    assert recipes == {"debian", "mysql", "redis", "s3", "pause"}  # the last one is Kubernetes' own
