"""Known vulnerabilities of the packages that Cutline brings: `python -m tools.audit`, which is `make audit`.

Judged is what a user installs: the dependencies of pyproject.toml and its extras for users, each with all that it
pulls in. pip-audit asks the advisory services. Where none answers (a machine that reaches package registries alone),
one line says so and the exit code is 0, since no code of this tree is at fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

FOR_DEVELOPERS = frozenset({"dev", "wheels", "full", "fuzz", "js", "peers"})
"""Extras that no user installs."""

ACCEPTED: Mapping[str, str] = {}
"""Advisories that do not touch Cutline: id (of any kind that pip-audit prints), and the reason."""

SERVICES: Sequence[Sequence[str]] = (("pypi",), ("osv",))
"""In the order in which they are asked: values of pip-audit's `--vulnerability-service`, each with its options."""

SOCKET_SECONDS, SERVICE_SECONDS = 5, 20
"""A service is given up after this long without an answer, or after this long in all."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A version of a package, and its requirements as its metadata writes them."""

    version: str
    requires: Sequence[str]


@dataclass(slots=True)
class Findings:
    """`vulnerable`: a sentence for each advisory that holds. `unjudged`: packages no service knew, `causes`: why."""

    vulnerable: list[str] = field(default_factory=list)
    unjudged: dict[str, str] = field(default_factory=dict)
    causes: list[str] = field(default_factory=list)


def needed(roots: Iterable[str], known: Mapping[str, Distribution]) -> dict[str, str]:
    """Versions of the packages that the requirements `roots` bring on this machine; `known` by canonical name."""
    found: dict[str, str] = {}
    visited: set[tuple[str, str]] = set()
    left = [Requirement(root) for root in roots]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in visited:
                continue
            visited.add((name, extra))
            found[name] = known[name].version
            wants = map(Requirement, known[name].requires)
            left += [want for want in wants if want.marker is None or want.marker.evaluate({"extra": extra})]
    return found


def installed() -> dict[str, Distribution]:
    """The packages of this virtual environment."""
    return {
        canonicalize_name(found.metadata["Name"]): Distribution(found.version, found.requires or ())
        for found in metadata.distributions()
    }


def installable(requirements: Iterable[str]) -> dict[str, Distribution]:
    """What pip would add to this virtual environment for the requirements; it installs nothing."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    command = (*pip, "install", "--dry-run", "--quiet", "--report", "-", *requirements)
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = [item["metadata"] for item in report["install"]]
    return {
        canonicalize_name(item["name"]): Distribution(item["version"], item.get("requires_dist", ())) for item in found
    }


def judge(versions: Mapping[str, str], services: Sequence[Sequence[str]] = SERVICES) -> Findings:
    """Ask the services about packages, each about those that the earlier ones did not know."""
    findings = Findings(unjudged=dict(versions))
    for service in services:
        if findings.unjudged:
            try:
                answer = ask(service, findings.unjudged)
            except OSError as error:
                findings.causes.append(f"{service[0]}: {error}")
            else:
                add(findings, service[0], answer)
    return findings


def ask(service: Sequence[str], versions: Mapping[str, str]) -> Any:
    """pip-audit's JSON; `OSError` if the service gives none."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as requirements:
        requirements.writelines(f"{name}=={version}\n" for name, version in versions.items())
        requirements.flush()
        command = (
            *(sys.executable, "-m", "pip_audit", "--requirement", requirements.name, "--no-deps", "--disable-pip"),
            *("--format", "json", "--progress-spinner", "off", "--timeout", str(SOCKET_SECONDS)),
            *("--vulnerability-service", *service),
        )
        try:
            ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SERVICE_SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no answer in {SERVICE_SECONDS} s") from None
    if ended.returncode not in (0, 1):  # 1: a vulnerability, or no answer
        raise RuntimeError(f"pip-audit ended with {ended.returncode}: {ended.stderr.strip()}")
    try:
        return json.loads(ended.stdout)
    except json.JSONDecodeError:
        last = (ended.stderr.strip() or "no answer").splitlines()[-1]
        raise ConnectionError(last.rpartition("Caused by ")[2]) from None


def add(findings: Findings, service: str, answer: Any, accepted: Mapping[str, str] = ACCEPTED) -> None:
    """Take pip-audit's answer. A mirror of packages without advisories also answers, and judges nothing."""
    skipped = 0
    for package in answer["dependencies"]:
        name = package["name"]
        if "skip_reason" in package:
            skipped += 1
            continue
        version = findings.unjudged.pop(name)
        for found in package["vulns"]:
            if not accepted.keys() & {found["id"], *found["aliases"]}:
                findings.vulnerable.append(sentence(name, version, found["id"], found["fix_versions"]))
    if skipped:
        findings.causes.append(f"{service}: it does not know {skipped} of {len(answer['dependencies'])} packages")


def sentence(name: str, version: str, advisory: str, fixes: Sequence[str]) -> str:
    """What is vulnerable, the version that mends it, and what to do."""
    newer = [fix for fix in sorted(fixes, key=Version) if Version(fix) > Version(version)]
    remedy = f"set {name}=={newer[0]} in pyproject.toml" if newer else "no version mends it: replace the package"
    accept = "or, if it does not touch Cutline, add the id with the reason to ACCEPTED in tools/audit.py"
    return f"{name} {version} has {advisory}: {remedy}; {accept}"


def main(services: Sequence[Sequence[str]] = SERVICES) -> int:
    """Print what was found; 1 if a package is vulnerable."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    here = installed()
    versions = needed(project["dependencies"], here)
    findings = judge(versions, services)
    if len(findings.unjudged) < len(versions):  # without a service, to resolve the extras is time lost
        extras = [
            requirement
            for name, requirements in project["optional-dependencies"].items()
            if name not in FOR_DEVELOPERS
            for requirement in requirements
        ]
        more = needed(extras, here | installable(extras))
        of_extras = judge({name: version for name, version in more.items() if name not in versions}, services)
        versions |= more
        findings.vulnerable += of_extras.vulnerable
        findings.unjudged |= of_extras.unjudged
        findings.causes += of_extras.causes
    for vulnerable in findings.vulnerable:
        print(f"audit: {vulnerable}")
    if findings.unjudged:
        causes = "; ".join(dict.fromkeys(findings.causes))
        print(f"audit: no advisory service judged {len(findings.unjudged)} of {len(versions)} packages ({causes})")
    elif not findings.vulnerable:
        print(f"audit: no known vulnerability in {len(versions)} packages")
    return 1 if findings.vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
