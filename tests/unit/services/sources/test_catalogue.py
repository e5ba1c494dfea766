"""What is known to be wrong with a catalogue or a warehouse before Spark starts, and the jars that a sink needs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, Unavailable
from cutline.spark_writer import jars
from cutline.spark_writer.sinks.iceberg import catalogue

POSTGRESQL = {"type": "jdbc", "uri": "jdbc:postgresql://127.0.0.1:5432/lake"}


def sink(warehouse: str, /, **catalog: str) -> dict[str, Any]:
    config = {"name": "shop", "source": {"host": "h", "user": "u"}, "tables": ["a.*"]}
    found: dict[str, Any] = PipelineConfig.model_validate(
        config | {"sink": {"warehouse": warehouse, "catalog": catalog}}
    ).definition()["sink"]
    return found


def test_a_folder_has_a_catalogue_in_sqlite_and_object_storage_needs_another(tmp_path: Path) -> None:
    properties = catalogue.properties(sink(str(tmp_path)))
    assert properties["uri"].startswith(f"jdbc:sqlite:{tmp_path}/catalog.db?")
    assert properties["jdbc.schema-version"] == "V1"
    assert "io-impl" not in properties
    with pytest.raises(ConfigError, match=r"^the warehouse s3://b/lake is not a local folder, so it needs a catalogue"):
        catalogue.properties(sink("s3://b/lake"))
    remote = catalogue.properties(sink("s3://b/lake", **POSTGRESQL))
    assert remote["io-impl"] == "org.apache.iceberg.io.ResolvingFileIO"
    own = catalogue.properties(sink("s3://b/lake", **POSTGRESQL, **{"io-impl": "mine", "warehouse": "prod"}))
    assert (own["io-impl"], own["warehouse"]) == ("mine", "prod")


@pytest.mark.parametrize(
    ("warehouse", "catalog", "wanted"),
    [
        ("/lake", {}, set()),
        ("/lake", POSTGRESQL, {"postgresql"}),
        ("s3://b/lake", POSTGRESQL, {"postgresql", "s3"}),
        ("s3a://b/lake", {"type": "rest", "uri": "http://h"}, {"s3"}),
        ("s3://b/lake", {"type": "glue"}, {"s3"}),
        ("/lake", {"type": "hive", "uri": "thrift://h:9083"}, set()),
    ],
)
def test_a_sink_needs_the_jars_of_its_catalogue_and_storage(
    warehouse: str, catalog: dict[str, str], wanted: set[str]
) -> None:
    found = catalogue.extras(sink(warehouse, **catalog))
    assert found == wanted
    assert {jar.extra for jar in jars.wanted_with(found)} == {None, *wanted}


def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> Path:
    """Pretend that a volume of this kind is mounted at a folder with a space in its name."""
    volume = tmp_path / "a volume"
    volume.mkdir()
    table = tmp_path / "mountinfo"
    point = str(volume).replace(" ", "\\040")
    table.write_text(
        "22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"90 22 0:45 / {point} rw,relatime shared:2 master:7 - {kind} server:/export rw\n"
    )
    monkeypatch.setattr(catalogue, "MOUNTS", table)
    return volume


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "fuse", "fuse.sshfs", "glusterfs"])
def test_sqlite_on_a_network_volume_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    lake = mounted(monkeypatch, tmp_path, kind) / "not yet" / "lake"
    assert [str(fault) for fault in catalogue.faults(sink(str(lake)), f"file://{tmp_path}/store")] == [
        f"the catalogue {lake}/catalog.db would be on a network volume ({kind}), where SQLite can lose commits; name"
        " another catalogue in sink.catalog (PostgreSQL, or an Iceberg REST server), or put the warehouse on a local"
        " disk"
    ]
    assert catalogue.faults(sink(str(lake), **POSTGRESQL), f"file://{tmp_path}/store") == []
    by_uri = {"type": "jdbc", "uri": f"jdbc:sqlite:{lake}/own.db"}
    (fault,) = catalogue.faults(sink("/lake", **by_uri), "file:///store")
    assert "own.db would be on a network volume" in fault.sentence


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "fuse.fuse-overlayfs", "fuseblk", "tmpfs"])
def test_sqlite_on_a_local_disk_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    lake = mounted(monkeypatch, tmp_path, kind) / "lake"
    assert catalogue.faults(sink(str(lake)), f"file://{tmp_path}/store") == []


def test_the_volume_of_this_folder_is_found(tmp_path: Path) -> None:
    found = catalogue.file_system_of(tmp_path / "new" / "lake")
    assert found is not None
    assert found == catalogue.file_system_of(tmp_path)
    assert catalogue.file_system_of(Path("/proc/self/status")) == "proc"


@pytest.mark.parametrize("store", ["file:///var/store", "/var/store"])
def test_a_store_in_a_folder_does_not_serve_a_lake_on_object_storage(store: str) -> None:
    (fault,) = catalogue.faults(sink("s3://b/lake", **POSTGRESQL), store)
    assert str(fault) == (
        f"the store {store} is a folder and the warehouse s3://b/lake is not, so nothing could go on"
        " without this machine; set CUTLINE_STORE_URL to a place on the same object storage"
    )


def test_a_warehouse_without_write_permission_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (fault,) = catalogue.faults(sink(f"{tmp_path}/file/lake"), f"file://{tmp_path}/store")
    assert fault.sentence == f"the warehouse {tmp_path}/file/lake can't be written ({tmp_path}/file is not a folder)"
    with pytest.raises(ConfigError, match=r"lake can't be written \(Not a directory\); choose another folder"):
        catalogue.probe(sink(f"{tmp_path}/file/lake"))
    if os.geteuid() != 0:
        return
    code = (
        "import json, os, sys; from cutline.spark_writer.sinks.iceberg import catalogue;"
        "os.setgid(65534); os.setuid(65534);"
        "print(json.dumps([str(fault) for fault in catalogue.faults(json.loads(sys.argv[1]), 'file:///store')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(sink("/var/cutline-lake"))], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        "the warehouse /var/cutline-lake can't be written (no right to write /var); choose another folder, or give this"
        " user the right to write there"
    ]


@pytest.mark.parametrize(
    ("catalog", "folds"),
    [
        ({}, False),
        (POSTGRESQL, False),
        ({"type": "hive", "uri": "thrift://h:9083"}, True),
        ({"type": "glue"}, True),
        ({"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog"}, True),
        ({"type": "rest", "uri": "http://hive/"}, False),
    ],
)
def test_hive_and_glue_store_names_in_lower_case(catalog: dict[str, str], folds: bool) -> None:
    assert catalogue.folds_case(sink("/lake", **catalog)) is folds


@pytest.mark.parametrize(
    "uri", ["jdbc:postgresql://127.0.0.1:{}/lake", "http://127.0.0.1:{}/iceberg", "thrift://127.0.0.1:{},thrift://h:x"]
)
def test_a_catalogue_server_that_is_away_is_said(uri: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = uri.format(server.getsockname()[1])
        catalogue.check_answers(sink("/lake", uri=address))
    with pytest.raises(
        Unavailable, match=r"^the catalogue .* does not answer \(127\.0\.0\.1:\d+\); s"
    ):
        catalogue.check_answers(sink("/lake", uri=address))


def test_a_catalogue_at_a_host_that_is_no_name_does_not_answer() -> None:
    with pytest.raises(Unavailable, match=r"does not answer \(a\.\.b:5432\)"):
        catalogue.check_answers(sink("/lake", uri="jdbc:postgresql://a..b:5432/lake"))


@pytest.mark.parametrize("uri", ["", "jdbc:sqlite:/lake/catalog.db", "jdbc:h2:mem:x"])
def test_a_catalogue_without_a_server_is_not_asked(uri: str) -> None:
    catalogue.check_answers(sink("/lake", uri=uri))


def test_a_missing_jar_is_named_with_its_remedy(tmp_path: Path) -> None:
    found = jars.missing(tmp_path, {"postgresql"})
    assert str(jars.describe_missing(tmp_path, found[-1:])) == (
        f"the folder {tmp_path} lacks an intact {found[-1].file}; run `cutline setup --with postgresql` to fetch it, or"
        " set CUTLINE_SPARK_JARS to a folder that has it"
    )
