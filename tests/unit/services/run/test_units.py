"""The systemd units that `cutline up --systemd` prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cutline.services.run.children import MODULES, Counts, command_of
from cutline.services.run.cli import main
from cutline.services.run.units import TARGET, units
from tools.programs import program

SETUP = [sys.executable, "-m", "cutline.services.run.cli", "setup"]
COMMANDS = {**{role: command_of(role) for role in MODULES}, "setup": SETUP}


def made(*, homes: bool = False, **counts: int) -> dict[str, str]:
    return units(Counts(**counts), command_of=COMMANDS, homes=homes)


def test_there_is_a_target_and_a_template_for_each_role_and_the_target_wants_so_many_of_each() -> None:
    found = made(readers=3, spark_writers=2)
    assert set(found) == {TARGET, *(f"cutline-{role}@.service" for role in MODULES)}
    wanted = re.findall(r"^Wants=cutline-(.*)@(\d+)\.service$", found[TARGET], re.MULTILINE)
    assert [(role, [int(n) for each, n in wanted if each == role]) for role in MODULES] == [
        ("enumerator", [0, 1]),
        ("reader", [0, 1, 2]),
        ("writer", [0, 1]),
        ("spark-writer", [0, 1]),
        ("control", [0]),
    ]


@pytest.mark.parametrize("role", MODULES)
def test_a_service_is_started_again_ends_with_the_target_and_may_write_little(role: str) -> None:
    unit = made(readers=3)[f"cutline-{role}@.service"]
    assert f"ExecStart={' '.join(command_of(role))}\n" in unit
    lines = unit.splitlines()
    for line in (
        "PartOf=cutline.target",
        "EnvironmentFile=/etc/cutline/cutline.env",
        "Environment=CUTLINE_READERS=3 CUTLINE_WRITERS=2",
        "Restart=always",
        "RestartPreventExitStatus=2",
        "User=cutline",
        "StateDirectory=cutline",
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "SystemCallFilter=@system-service",
    ):
        assert line in lines
    assert ("ExecStartPre=" in unit) == (role == "spark-writer")
    assert "--embedded" not in unit


def test_a_python_in_a_home_folder_can_be_read_there() -> None:
    assert "ProtectHome=yes\n" in made()["cutline-reader@.service"]
    assert "ProtectHome=read-only\n" in made(homes=True)["cutline-reader@.service"]


def test_what_systemd_would_expand_in_a_path_is_escaped() -> None:
    odd = {**COMMANDS, "reader": ["/opt/my %i $x/python", "-m", "cutline.services.reader"]}
    unit = units(Counts(), command_of=odd, homes=False)["cutline-reader@.service"]
    assert 'ExecStart="/opt/my %%i $$x/python" -m cutline.services.reader\n' in unit


def test_the_command_prints_them_or_writes_them_into_a_folder(tmp_path: Path) -> None:
    printed = CliRunner().invoke(main, ["up", "--systemd", "--readers", "4"])
    assert printed.exit_code == 0
    assert re.findall(r"^# ---- (.*)$", printed.stdout, re.MULTILINE) == list(made())
    assert "Wants=cutline-reader@3.service" in printed.stdout
    written = CliRunner().invoke(main, ["up", "--systemd", "--to", str(tmp_path / "units")])
    assert written.stdout.split() == [str(tmp_path / "units" / name) for name in made()]
    assert (tmp_path / "units" / TARGET).read_text() == made()[TARGET]


def test_a_folder_without_units_is_wrong_usage_and_one_that_can_not_be_written_a_fault(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["up", "--to", str(tmp_path)]).exit_code == 2
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(main, ["up", "--systemd", "--to", str(tmp_path / "file" / "units")])
    assert (refused.exit_code, "can't be written" in refused.stderr) == (2, True)


@pytest.mark.full
def test_systemd_finds_no_fault_in_them(tmp_path: Path) -> None:
    for name, text in made().items():
        (tmp_path / name.replace("@.", "@0.")).write_text(text)
    paths = sorted(map(str, tmp_path.glob("cutline-*")))
    command = [program("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
