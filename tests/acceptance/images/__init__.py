"""Images for a Docker that reaches no registry: stand-ins under the tags that Dockerfile and docker-compose.yml name.

Debian by debootstrap, MySQL and Redis from its unstable suite, the S3 server as tests/support/lake_servers.py has it.
This machine's settings for package registries (those that .ci/bare passes on) go into the stand-in of Debian, nowhere
else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.docker import Docker, DockerFailed
from tests.support.lake_servers import versitygw
from tools.builds import debian
from tools.programs import program

ROOT = Path(__file__).parents[3]
RECIPES = Path(__file__).parent
SID = ("mysql-server-core", "mysql-client-core", "redis-server")
_SETTINGS = re.compile(
    r"PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)|DEFAULT_ARTIFACT_REPOSITORY|(https?|no)_proxy"
    r"|(HTTPS?|NO)_PROXY"
)
_APT = re.compile(r"^\s*Acquire::(https?|Check|Retries|ForceIPv)", re.MULTILINE)


def wanted() -> dict[str, str]:
    """The images that Dockerfile and docker-compose.yml take from a registry: name -> name:tag."""
    compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    named = {service["image"] for service in compose["services"].values() if "build" not in service}
    named |= set(re.findall(r"^FROM (\S+:\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    return {image.partition(":")[0]: image for image in named}


def systems() -> dict[str, Path]:
    """The folders of the systems that the stand-ins are made of, by suite; the first use makes them by debootstrap."""
    return {"bookworm": debian("bookworm", ("ca-certificates",)), "sid": debian("sid", SID)}


def make(docker: Docker) -> None:
    """Make every stand-in, in about two minutes."""
    tags = wanted()
    for suite, system in systems().items():
        imported(docker, f"cutline-standin/{suite}", system)
    with tempfile.TemporaryDirectory(prefix="cutline-standin-") as scratch:
        context = Path(scratch) / "debian"
        shutil.copytree(RECIPES / "debian", context)
        for source in machine_files():
            target = context / "files" / source.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        with (context / "Dockerfile").open("a", encoding="utf-8") as recipe:
            for name, value in os.environ.items():
                if _SETTINGS.fullmatch(name):
                    recipe.write(f'ENV {name}="{value}"\n')
        docker.build(tags["debian"], context)
        for name in ("mysql", "redis"):
            docker.build(tags[name], RECIPES / name)
        context = Path(scratch) / "s3"
        shutil.copytree(RECIPES / "s3", context)
        shutil.copy(versitygw(), context)
        docker.build(tags["versity/versitygw"], context)


def machine_files() -> Iterator[Path]:
    """The files that tell a Debian the way to its package registries."""
    yield from (path for path in [Path("/etc/pip.conf")] if path.exists())
    yield from Path("/usr/local/share/ca-certificates").rglob("*.crt")
    for path in [Path("/etc/apt/apt.conf"), *Path("/etc/apt/apt.conf.d").glob("*")]:
        if path.is_file() and _APT.search(path.read_text(encoding="utf-8", errors="replace")):
            yield path


def imported(docker: Docker, tag: str, folder: Path) -> None:
    """Make an image of a system's files; tests of other servers may use its folder at the same time."""
    excluded = [f"--exclude=./{name}/*" for name in ("dev", "proc", "run", "srv", "sys", "tmp")]
    words = [program("tar"), "--create", "--numeric-owner", *excluded]
    with subprocess.Popen([*words, "-C", str(folder), "."], stdout=subprocess.PIPE) as packed:
        docker("import", "-", tag, stdin=packed.stdout)
    if packed.returncode != 0:
        raise DockerFailed(f"the files of {folder} could not be read for the image {tag}")
