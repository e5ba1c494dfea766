"""The audit of packages, by the real pip-audit and a made-up advisory service."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import audit
from tools.audit import Distribution, Findings


def advisory(name: str, *fixed: str) -> dict[str, Any]:
    """As OSV writes it."""
    events = [{"introduced": "0"}, *({"fixed": version} for version in fixed)]
    affected = {"package": {"name": name, "ecosystem": "PyPI"}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    return {"id": f"PYSEC-{name}", "aliases": [f"CVE-{name}"], "summary": "It leaks.", "affected": [affected]}


@contextmanager
def osv(advisories: dict[str, dict[str, Any]], status: int = 200) -> Iterator[tuple[str, ...]]:
    """An advisory service with these advisories, by package; gives the options that name it."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
            body = json.dumps({"vulns": [advisories[asked]]} if asked in advisories else {}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield ("osv", "--osv-url", f"http://127.0.0.1:{server.server_port}/v1/query")
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extras need nothing more."""

    def installable(requirements: Iterable[str]) -> dict[str, Distribution]:
        return {canonicalize_name(Requirement(each).name): Distribution("1.0", ()) for each in requirements}

    monkeypatch.setattr(audit, "installable", installable)


@pytest.mark.usefixtures("no_registry")
def test_a_vulnerable_dependency_fails_with_the_version_that_mends_it(capsys: pytest.CaptureFixture[str]) -> None:
    version = audit.installed()["redis"].version
    with osv({"redis": advisory("redis", "1.0", "999.0")}) as service:
        assert audit.main([service]) == 1
    assert capsys.readouterr().out == (
        f"audit: redis {version} has PYSEC-redis: set redis==999.0 in pyproject.toml; or, if it does not touch"
        " Cutline, add the id with the reason to ACCEPTED in tools/audit.py\n"
    )


@pytest.mark.usefixtures("no_registry")
def test_packages_without_advisories_pass_and_those_of_developers_are_not_asked_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with osv({"pytest": advisory("pytest", "999.0")}) as service:
        assert audit.main([service]) == 0
    assert "audit: no known vulnerability in " in capsys.readouterr().out


def test_an_advisory_without_a_fix_says_what_else_to_do() -> None:
    with osv({"redis": advisory("redis")}) as service:
        (found,) = audit.judge({"redis": "8.1.0"}, [service]).vulnerable
    assert found.startswith("redis 8.1.0 has PYSEC-redis: no version mends it: replace the package; or")


@pytest.mark.parametrize("id", ["PYSEC-redis", "CVE-redis"])
def test_an_accepted_advisory_passes_by_each_of_its_ids(id: str) -> None:
    found = {"id": "PYSEC-redis", "aliases": ["CVE-redis"], "fix_versions": []}
    findings = Findings(unjudged={"redis": "8.1.0"})
    audit.add(findings, "osv", {"dependencies": [{"name": "redis", "vulns": [found]}]}, {id: "not called"})
    assert findings == Findings()


def test_without_an_advisory_service_one_line_says_so_and_the_audit_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """One refuses connections, one fails."""
    with osv({}) as gone:
        pass
    with osv({}, status=503) as failing:
        assert audit.main([gone, failing]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("audit: no advisory service judged ")
    assert "Connection refused" in line


def test_a_service_that_knows_no_package_judges_nothing_and_the_next_is_asked() -> None:
    """As a mirror of packages without their advisories answers; pip-audit itself calls that a success."""
    findings = Findings(unjudged={"redis": "8.1.0", "click": "8.4.2"})
    skipped = [{"name": name, "skip_reason": "not found"} for name in findings.unjudged]
    audit.add(findings, "pypi", {"dependencies": skipped})
    assert findings.unjudged == {"redis": "8.1.0", "click": "8.4.2"}
    assert findings.causes == ["pypi: it does not know 2 of 2 packages"]


def test_needed_follows_extras_and_markers_of_requirements() -> None:
    known = {
        "a": Distribution("1", ["B_b[fast]", 'win; sys_platform == "win32"', 'tests; extra == "test"']),
        "b-b": Distribution("2", ['c>=1; extra == "fast"', "a"]),
        "c": Distribution("3", []),
    }
    assert audit.needed(["a==1"], known) == {"a": "1", "b-b": "2", "c": "3"}


def test_extras_of_developers_are_extras() -> None:
    project = tomllib.loads(audit.PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"].keys() > audit.FOR_DEVELOPERS
