"""The refusals of a source's servers, as causes: each keeps its remedy."""

from __future__ import annotations

import pymysql
import pytest
from pymysql.constants import ER

from cutline.common.causes import Code
from cutline.common.config.source import SourceConfig
from cutline.common.errors import SourceRefused, Unavailable
from cutline.services.sources.mysql import hosts as hosts_file
from cutline.services.sources.mysql.connection import Connection, Source
from cutline.services.sources.mysql.hosts import Hosts


def hosts(monkeypatch: pytest.MonkeyPatch, *others: str, down: tuple[str, ...] = ()) -> Hosts:
    """The connections to a source whose servers refuse the account, but those that are `down`."""

    def connect(source: Source) -> Connection:
        if source.host in down:
            raise Unavailable(f"{source} did not answer", "is the server up?")
        error = SourceRefused(f"{source} was refused", "correct source.user")
        raise error from pymysql.OperationalError(ER.ACCESS_DENIED_ERROR, "denied")

    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    monkeypatch.setattr(hosts_file, "connect", connect)
    about = {"host": "db1", "user": "cdc", "password_env": "SHOP_PASSWORD"}
    return Hosts(SourceConfig.model_validate({**about, **({"hosts": [*others]} if others else {})}))


def test_a_refused_login_says_what_to_do_and_when_another_password_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the second time, when the same password is not tried again."""
    source = hosts(monkeypatch)
    for _ in range(2):
        with pytest.raises(SourceRefused) as caught:
            source.connect()
        cause = caught.value.cause
        assert (cause.code, cause.sentence) == (Code.REFUSED, "cdc@db1:3306 was refused")
        assert cause.remedy.startswith("correct source.user (a new value of SHOP_PASSWORD needs a restart")


def test_where_no_server_can_be_used_the_remedy_of_each_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable) as caught:
        hosts(monkeypatch, "db2", down=("db2",)).connect()
    cause = caught.value.cause
    first = "cdc@db1:3306 was refused; cdc@db2:3306 did not answer"
    assert (cause.code, cause.sentence) == (Code.UNAVAILABLE, f"No server of the source can be used: {first}")
    assert [part in cause.remedy for part in ("correct source.user", "is the server up?")] == [True, True]
    with pytest.raises(SourceRefused, match="No server of the source can be used") as refused:
        hosts(monkeypatch, "db2").connect()
    assert refused.value.cause.code == Code.REFUSED
