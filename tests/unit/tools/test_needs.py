"""What targets need beyond `make setup` is got before their work begins, tried again, and named if it can't be had."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from cutline.common.errors import Unavailable
from tests.acceptance.node import PLUGINS
from tools import needs, programs

RECIPES = programs.MAKEFILE.read_text(encoding="utf-8")


def test_each_target_of_the_table_gets_its_needs_before_its_own_work() -> None:
    for target in needs.NEEDS:
        used = re.findall(rf"^[a-z0-9 -]+:.* needs-{target}$|^\t@\$\(PY\) -m tools\.needs {target}$", RECIPES, re.M)
        assert used, target
    assert set(re.findall(r"needs[- ]([a-z-]+)$", RECIPES, re.MULTILINE)) == set(needs.NEEDS)


def test_the_plugins_of_the_network_are_a_row_of_their_own_whatever_brought_containerd() -> None:
    """docker.io brings containerd and runc, and not the plugins."""
    table = programs.table()
    assert table[f"{PLUGINS}/bridge"].packages == ("containernetworking-plugins",)
    assert table["containerd"].packages == ("containerd",)


@pytest.mark.parametrize("error", [programs.Missing("no"), Unavailable("no"), subprocess.TimeoutExpired("x", 1)])
def test_a_need_that_can_not_be_had_at_first_is_tried_again(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    tries, pauses = [], list[float]()

    def make() -> None:
        tries.append(1)
        if len(tries) < needs.TRIES:
            raise error

    needs.get(needs.Need("a thing", "1 MB", make), pauses.append)
    assert (len(tries), pauses) == (3, [5.0, 10.0])
    assert "cutline: a thing: " in capsys.readouterr().err


def test_a_need_that_can_not_be_had_ends_the_target_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make() -> None:
        raise programs.Missing("the registry does not answer")

    monkeypatch.setattr(needs, "PAUSE_SECONDS", 0.0)
    monkeypatch.setitem(needs.NEEDS, "acceptance", (needs.Need("a thing", "1 MB", make),))
    monkeypatch.setattr("sys.argv", ["needs", "acceptance"])
    assert needs.main() == 1
    assert "make acceptance can't begin: the registry does not answer" in capsys.readouterr().err


def test_what_takes_long_says_so_while_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needs, "STILL_SECONDS", 0.05)
    needs.get(needs.Need("a thing", "1 MB", lambda: time.sleep(1.3)))
    shown = capsys.readouterr().err
    assert "getting a thing (once; about 1 MB)" in shown
    assert "a thing: 1 s so far" in shown
