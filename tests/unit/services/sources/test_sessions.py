"""Every session at a source is made by one function, which sets and verifies what reading relies on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cutline.services.sources.mysql import session

ROOT = Path(__file__).resolve().parents[4]
MAKES = "services/sources/mysql/connection.py"
LOGIN = "cutline.services.sources.mysql.login.LoginConnection"
USES = "services/sources/mysql/hosts.py"
PRODUCT = sorted(path for folder in ("common", "services", "spark_writer") for path in (ROOT / folder).rglob("*.py"))


def opened(tree: ast.AST) -> list[tuple[int, str]]:
    """Each place where the code could open or reopen a connection of PyMySQL's, by line."""
    classes = {"pymysql.connections.Connection", "pymysql.connect", "pymysql.Connection", "pymysql.Connect", LOGIN}
    names = {
        (alias.asname or alias.name): f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if names.get(called, called) in classes or called.endswith((".ping", "conn.connect", "connection.connect")):
                found.append((node.lineno, called))
    return found


def test_no_session_is_made_elsewhere() -> None:
    elsewhere = {
        str(path.relative_to(ROOT)): places
        for path in PRODUCT
        if path != ROOT / MAKES and (places := opened(ast.parse(path.read_text())))
    }
    assert not elsewhere
    assert [called for _, called in opened(ast.parse((ROOT / MAKES).read_text()))] == [
        "LoginConnection",
        "connection.connect",
    ]


def test_only_the_choice_of_the_server_opens_connections() -> None:
    """Hosts.connect is what all questions, cursors, chunks, the doctor and the API use."""
    users = [
        str(path.relative_to(ROOT))
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.module == "cutline.services.sources.mysql.connection"
        and "connect" in {alias.name for alias in node.names}
    ]
    assert users == [USES]


@pytest.mark.parametrize(
    "code",
    [
        "import pymysql\npymysql.connect(host='h')",
        "from pymysql import connect as c\nc()",
        "from pymysql.connections import Connection\nConnection()",
        "conn.ping(reconnect=True)",
        "self.conn.connect()",
    ],
)
def test_the_scan_sees_each_way_to_open_a_connection(code: str) -> None:
    assert opened(ast.parse(code))


def answer(**changes: str) -> dict[str, str]:
    """What a MySQL server answers to `question`, with changes."""
    settings = (*session.SETTINGS, *session._ISOLATION, *session._NAMES)
    return {each.shown: each.expected for each in settings if not each.only.startswith("M")} | changes


def test_a_session_as_it_was_set_is_taken_and_every_other_is_named() -> None:
    assert not list(session.forced(answer()))
    for name in answer():
        assert list(session.forced(answer(**{name: "7"}))), name
    assert list(session.forced({})), "an answer without a value is none"
    assert not list(session.forced(answer(autocommit="ON", transaction_read_only="ON")))
    (fault,) = session.forced(answer(autocommit="0"))
    assert fault == "autocommit = '0' (Cutline set '1')"
