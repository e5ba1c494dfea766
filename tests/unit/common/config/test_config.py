"""The pipeline file and the environment: what is accepted, what is refused and how it is said."""

import json
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from cutline.common.config.environment import Environment
from cutline.common.config.globs import select_tables
from cutline.common.config.pipeline import PipelineConfig, Point, WorkersConfig, load, parse, shown
from cutline.common.config.settings import settings
from cutline.common.config.source import Address, SourceConfig, TlsConfig
from cutline.common.config.table_options import TableOptions, partitioned_by, shapes_of, sorted_by
from cutline.common.errors import ConfigError
from cutline.common.mask_key import MaskKey
from cutline.common.shape import Shape
from cutline.services.sources.mysql import tls
from cutline.spark_writer import executor

ROOT = Path(__file__).resolve().parents[4]
GOOD = """\
name: shop
source: {host: 127.0.0.1, port: 3306, user: cdc, password_env: SHOP_PASSWORD}
tables: ["shop.*", "crm.customer", "!shop.tmp_*"]
snapshot: {chunk_rows: 50000, chunks: replay, max_rows_per_second: null}
start: initial
stop: null
checkpoint: {interval_seconds: 10}
sink: {type: iceberg, warehouse: ./lake}
"""
SMALL = "name: shop\nsource: {host: h, user: u}\ntables: [a.b]\nsink: {warehouse: w}\n"


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, where="p.yaml")
    return list(map(str, caught.value.faults))


def test_the_design_s_own_pipeline_file_is_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(GOOD)
    read = load(tmp_path / "pipeline.yaml")
    assert (read.name, read.source.host, read.source.port, read.source.user) == ("shop", "127.0.0.1", 3306, "cdc")
    assert read.tables == ("shop.*", "crm.customer", "!shop.tmp_*")
    assert (read.snapshot.chunk_rows, read.snapshot.chunks, read.snapshot.max_rows_per_second) == (
        50000,
        "replay",
        None,
    )
    assert (read.start, read.stop, read.checkpoint.interval_seconds) == ("initial", None, 10.0)
    assert read.sink.warehouse == str(tmp_path / "lake")


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("chunk_rows", "chunk_row"), "p.yaml:4:12", "unknown key 'snapshot.chunk_row'; did you mean 'chunk_rows'?"),
        (("start:", "strat:"), "p.yaml:5:1", "unknown key 'strat'; did you mean 'start'?"),
        (("warehouse: ./lake", "zzz: 1, warehouse: ./lake"), "p.yaml:8:23", "the keys here are type, warehouse"),
        (("50000", '"50000"'), "p.yaml:4:12", "snapshot.chunk_rows must be a whole number, not '50000'"),
        (("50000", "0"), "p.yaml:4:12", "snapshot.chunk_rows must be greater than or equal to 1, not 0"),
        (("3306", "yes"), "p.yaml:2:27", "source.port must be a whole number, not True"),
        (("127.0.0.1", "127"), "p.yaml:2:10", "source.host must be text, not 127"),
        (("replay", "both"), "p.yaml:4:31", "snapshot.chunks must be 'replay' or 'exact', not 'both'"),
        (("start: initial", "keyless: merge"), "p.yaml:5:1", "keyless must be 'quarantine' or 'append', not 'merge'"),
        (("initial", "now"), "p.yaml:5:1", "start must be initial, snapshot-only, latest, earliest"),
        (("initial", "{file: a}"), "p.yaml:5:1", "start must be {file:, position:}, {gtid:} or {timestamp:}"),
        (("initial", "{timestamp: 2026-01-01 00:00:00}"), "p.yaml:5:9", "start.timestamp must have a time zone"),
        (("initial", "{timestamp: noon}"), "p.yaml:5:9", "start.timestamp must be a time like"),
        (("initial", "{gtid: 3}"), "p.yaml:5:9", "start.gtid must be text"),
        (("name: shop", "name: Shop One"), "p.yaml:1:1", "name must be lower case letters"),
        (('"crm.customer"', '"customer"'), "p.yaml:3:1", "tables has 'customer', which is not a glob on db.table"),
        (('"crm.customer"', "7"), "p.yaml:3:1", "tables has 7"),
        (("iceberg", "delta"), "p.yaml:8:8", "sink.type must be 'iceberg', not 'delta'"),
        (("name: shop", ""), "p.yaml:2:1", "the key 'name' is missing"),
        (("stop: null", "stop: latest"), "p.yaml:6:1", "stop must be {file:, position:}, {gtid:} or {timestamp:}, not"),
        (("stop: null", "stop: {file: a}"), "p.yaml:6:1", "stop must be {file:, position:}, {gtid:} or {timestamp:}"),
        (("stop: null", "stop: {timestamp: 2026-01-01 00:00:00}"), "p.yaml:6:8", "stop.timestamp must have a time"),
        (("initial\nstop: null", "snapshot-only\nstop: {gtid: 0-1-9}"), "p.yaml:1:1", "it can't have a stop too"),
        (("stop: null", "start: latest"), "p.yaml:6:1", "the key 'start' is given twice"),
        (("password_env: S", "password_file: f, password_env: S"), "p.yaml:2:1", "both password_env and password_file"),
    ],
)
def test_a_wrong_file_is_told_with_its_place_and_the_remedy(change: tuple[str, str], place: str, words: str) -> None:
    found = faults(GOOD.replace(*change))
    assert len(found) == 1, found
    assert found[0].startswith(f"{place}: "), found
    assert words in found[0]


def test_all_faults_are_told_at_once_in_the_file_s_order() -> None:
    found = faults("name: X\nsource: {host: 5, usr: a}\ntables: []\nsink: null\nmore: 1\n")
    assert [fault.split(": ")[0] for fault in found] == [
        "p.yaml:1:1",
        "p.yaml:2:1",
        "p.yaml:2:10",
        "p.yaml:2:19",
        "p.yaml:3:1",
        "p.yaml:4:1",
        "p.yaml:5:1",
    ]


@pytest.mark.parametrize("text", ["", "- a\n", "just words", "a: [", "? [a]: 3\n", "name: !!python/none x\n", "\t"])
def test_what_is_no_yaml_mapping_is_refused_in_one_sentence(text: str) -> None:
    assert len(faults(text)) == 1


def test_a_value_where_a_password_was_meant_is_not_repeated() -> None:
    found = faults(GOOD.replace("password_env: SHOP_PASSWORD", "password: hunter2"))
    assert "hunter2" not in " ".join(found)
    found = faults(GOOD.replace("SHOP_PASSWORD", "[hunter2]"))
    assert "hunter2" not in " ".join(found)


def test_a_file_that_is_not_there_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml can't be read \(No such file or directory\)"):
        load(tmp_path / "none.yaml")


def test_globs_choose_by_both_halves_and_exclusions_win_wherever_they_stand() -> None:
    tables = ["shop.a", "shop.tmp_x", "crm.customer", "crm.other", "shop2.a", "SHOP.a", "shop.`a.b`"]
    assert select_tables(["!shop.tmp_*", "shop.*", "crm.customer"], tables) == ("crm.customer", "shop.`a.b`", "shop.a")
    assert select_tables(["shop?.a"], tables) == ("shop2.a",)
    assert select_tables(["shop.[ab]"], tables) == ("shop.a",)
    assert select_tables(["none.*"], tables) == ()


def test_the_server_s_own_schemas_are_never_captured() -> None:
    assert select_tables(["*.*"], ["mysql.user", "sys.x", "information_schema.TABLES", "a.b"]) == ("a.b",)


def test_a_list_of_exclusions_only_is_refused() -> None:
    assert "includes nothing" in faults(SMALL.replace("[a.b]", '["!a.b"]'))[0]


def test_start_takes_a_place_in_the_binlog_in_each_of_its_forms() -> None:
    def start(text: str) -> object:
        return parse(SMALL + f"start: {text}\n").start

    assert start("{file: bin.000007, position: 4}") == Point(file="bin.000007", position=4)
    assert start("{gtid: 0-1-100}") == Point(gtid="0-1-100")
    noon = Point(timestamp=datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert start("{timestamp: 2026-01-31T12:00:00Z}") == noon
    assert start('{timestamp: "2026-01-31T12:00:00Z"}') == noon


def test_a_definition_comes_back_as_the_same_pipeline_without_workers_or_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    read = parse(GOOD + "workers: {readers: 5}\n")
    assert read.source.password() == "hunter2"
    kept = read.definition()
    assert "workers" not in kept
    assert "hunter2" not in str(kept)
    assert "hunter2" not in repr(read)
    assert PipelineConfig.from_definition(kept) == read.model_copy(update={"workers": WorkersConfig()})


def test_a_definition_of_another_version_is_refused_by_the_key_that_differs() -> None:
    kept = parse(SMALL).definition() | {"novelty": 1}
    with pytest.raises(ConfigError, match="the store's definition: unknown key 'novelty'"):
        PipelineConfig.from_definition(kept)


def test_the_password_comes_from_a_variable_or_from_the_first_line_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pass word\r\nsecond\n")
    (tmp_path / "p.yaml").write_text(SMALL.replace("user: u", "user: u, password_file: secret"))
    assert load(tmp_path / "p.yaml").source.password() == "pass word"
    assert parse(SMALL).source.password() == ""
    with pytest.raises(
        ConfigError, match=r"environment variable SHOP_PASSWORD, named by source\.password_env, is not set"
    ):
        parse(GOOD).source.password({})


def test_server_ids_differ_between_pipelines_and_leave_room_for_the_catch_up_connection() -> None:
    ids = {parse(SMALL.replace("shop", f"shop{i}")).server_id for i in range(50)}
    assert len(ids) == 50
    assert all(server_id % 2 == 0 and 0 < server_id < 2**32 - 1 for server_id in ids)
    named = parse(SMALL.replace("user: u", "user: u, server_id: 7"))
    assert named.server_id == named.server_id_after(3) == 7
    assert len({parse(SMALL).server_id_after(taken) for taken in range(5)}) == 5


def test_spark_and_catalogue_properties_pass_through_as_text() -> None:
    read = parse(SMALL.replace("warehouse: w", 'warehouse: w, spark: {spark.master: "local[4]", a.b: 4, c: true}'))
    assert read.sink.spark == {"spark.master": "local[4]", "a.b": "4", "c": "true"}
    assert "sink.spark.a must be text" in faults(SMALL.replace("warehouse: w", "warehouse: w, spark: {a: [1]}"))[0]


def test_a_warehouse_elsewhere_is_left_as_it_is_and_a_file_url_is_a_path() -> None:
    assert parse(SMALL.replace(" w}", ' "s3://b/lake"}')).sink.warehouse == "s3://b/lake"
    assert parse(SMALL.replace(" w}", ' "file:///data/lake"}')).sink.warehouse == "/data/lake"


def test_the_environment_has_defaults_and_tells_all_its_faults() -> None:
    read = Environment.read({"CUTLINE_API_PORT": "", "CUTLINE_STORE_URL": "file:///s"})
    assert (read.redis_url, read.store_url, read.api_port) == (None, "file:///s", 8642)
    with pytest.raises(ConfigError) as caught:
        Environment.read({"CUTLINE_API_PORT": "x", "CUTLINE_LOG_LEVEL": "loud"})
    assert len(caught.value.faults) == 2
    with pytest.raises(ConfigError, match="CUTLINE_REDIS_URL is not set"):
        read.need_redis_url()


def test_every_setting_is_listed_with_type_default_and_meaning() -> None:
    listed = {setting.name: setting for setting in settings()}
    assert all(setting.meaning and setting.type and setting.default for setting in listed.values())
    assert {"CUTLINE_REDIS_URL", "CUTLINE_STORE_URL", "CUTLINE_API_TOKEN"} <= set(listed)
    assert (listed["snapshot.chunk_rows"].type, listed["snapshot.chunk_rows"].default) == ("int", "50000")
    assert listed["source.host"].default == "required"
    keys = {f"{part}.{key}" for part, inner in yaml.safe_load(GOOD).items() if isinstance(inner, dict) for key in inner}
    assert keys <= set(listed)


def test_no_setting_of_the_environment_is_read_anywhere_else() -> None:
    """A name CUTLINE_... in the code is one of the list, so that the table in docs/settings.md is complete."""
    listed = {setting.name for setting in settings()}
    for path in [*ROOT.glob("common/**/*.py"), *ROOT.glob("services/**/*.py"), *ROOT.glob("spark_writer/**/*.py")]:
        for word in textwrap.dedent(path.read_text()).replace('"', " ").replace("`", " ").split():
            name = word.strip("(),.;:=[]{}'")
            if name.startswith("CUTLINE_") and name.isupper():
                assert name in listed, f"{path.relative_to(ROOT)} reads {name}, which is not in the list of settings"


def test_the_command_of_an_executor_is_made_of_what_the_driver_says() -> None:
    environment = {
        "SPARK_DRIVER_URL": "spark://d:1",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": "a",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "p",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_CONF_DIR": "/conf",
        "SPARK_JAVA_OPT_10": "-Dc=3",
        "SPARK_JAVA_OPT_2": "-Db=2 x",
        "SPARK_JAVA_OPT_0": "-Da=1",
    }
    found = executor.command(environment, Path("/java"))
    assert found[:7] == ["/java", "-Da=1", "-Db=2 x", "-Dc=3", "-Xms512m", "-Xmx512m", "-cp"]
    assert found[7].startswith("/conf:")
    assert found[7].endswith("/pyspark/jars/*")
    pairs = dict(zip(found[9::2], found[10::2], strict=True))
    assert (pairs["--driver-url"], pairs["--hostname"], pairs["--podName"]) == ("spark://d:1", "10.0.0.1", "p")
    with pytest.raises(KeyError, match="SPARK_EXECUTOR_MEMORY"):
        executor.command({}, Path("/java"))


def test_the_first_table_options_whose_glob_matches_count() -> None:
    text = """
table_options:
  - {tables: "shop.log_*", identity: [day, number]}
  - {tables: "shop.*", chunk_by: [created], chunk_rows: 7}
"""
    read = parse(SMALL + text)
    again = PipelineConfig.from_definition(json.loads(json.dumps(read.definition())))
    assert again.options_of("shop.log_1").identity == ("day", "number")
    assert (again.options_of("shop.a").chunk_by, again.options_of("shop.a").chunk_rows) == (("created",), 7)
    assert again.options_of("other.a") == TableOptions(tables="*.*")


def test_table_properties_are_text_and_leave_other_definitions_as_they_were() -> None:
    read = parse(SMALL + 'table_options: [{tables: "shop.*", properties: {read.split.target-size: 1000, a: true}}]\n')
    assert read.options_of("shop.a").properties == {"read.split.target-size": "1000", "a": "true"}
    assert PipelineConfig.from_definition(read.definition()) == read
    plain = parse(SMALL + 'table_options: [{tables: "shop.*", chunk_rows: 7}]\n').definition()
    assert plain["table_options"] == [{"tables": "shop.*", "chunk_rows": 7, "chunk_by": [], "identity": []}]
    assert plain["values"] == {"tinyint1": "int", "zero_dates": None}


def test_the_format_version_is_3_or_2_and_leaves_other_definitions_as_they_were() -> None:
    assert parse(SMALL).sink.format_version == 3
    assert "format_version" not in parse(SMALL).definition()["sink"]
    text = SMALL.replace("warehouse: w", "warehouse: w, format_version: 2")
    read = parse(text + 'table_options: [{tables: "shop.*", format_version: 3}, {tables: "crm.*"}]\n')
    assert read.sink.format_version == 2
    assert [read.options_of(name).format_version for name in ("shop.a", "crm.a", "b.a")] == [3, None, None]
    assert PipelineConfig.from_definition(read.definition()) == read


def test_the_namespace_of_cutlines_own_tables_is_a_plain_name_and_leaves_other_definitions_as_they_were() -> None:
    assert parse(SMALL).sink.own_namespace == "_cutline"
    assert "own_namespace" not in parse(SMALL).definition()["sink"]
    read = parse(SMALL.replace("warehouse: w", "warehouse: w, own_namespace: _meta1"))
    assert PipelineConfig.from_definition(read.definition()).sink.own_namespace == "_meta1"
    for name in ("Meta", "a.b", "1a", "", "a-b", "a" * 64, "`"):
        (found,) = faults(SMALL.replace("warehouse: w", f'warehouse: w, own_namespace: "{name}"'))
        assert "sink.own_namespace must be lower case letters, digits and _, not starting with a digit" in found


def test_an_item_of_sort_is_a_column_and_perhaps_a_direction() -> None:
    items = ("day", "day desc", "day asc", "a desc asc", "desc")
    wanted = [("day", False), ("day", True), ("day", False), ("a desc", False), ("desc", False)]
    assert [sorted_by(item) for item in items] == wanted
    read = parse(SMALL + 'table_options: [{tables: "shop.*", sort: [day desc, id]}]\n')
    assert read.options_of("shop.a").sort == ("day desc", "id")
    assert PipelineConfig.from_definition(read.definition()) == read


def test_an_item_of_partition_is_a_column_or_a_transform_of_one() -> None:
    items = ("region", "day(at)", "days( at )", "HOURS(at)", "bucket(16, id)", "truncate(3,a b)", "month(a(b))")
    wanted = [
        ("region", "identity"),
        *[("at", "day")] * 2,
        ("at", "hour"),
        ("id", "bucket[16]"),
        ("a b", "truncate[3]"),
        ("a(b)", "month"),
    ]
    assert [partitioned_by(item) for item in items] == wanted
    read = parse(SMALL + 'table_options: [{tables: "shop.*", partition: [day(at), "bucket(4, id)"]}]\n')
    assert read.options_of("shop.a").partition == ("day(at)", "bucket(4, id)")
    assert PipelineConfig.from_definition(read.definition()) == read


@pytest.mark.parametrize("version", ["1", "4", '"2"'])
def test_another_format_version_is_refused(version: str) -> None:
    (found,) = faults(SMALL.replace("warehouse: w", f"warehouse: w, format_version: {version}"))
    assert "sink.format_version must be 3 or 2, not" in found
    (found,) = faults(f'{SMALL}table_options: [{{tables: "shop.*", format_version: {version}}}]\n')
    assert "format_version must be 3 or 2, not" in found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('[{tables: "shop"}]', "is not a glob"),
        ('[{tables: "shop.*", identity: [a], chunk_by: [b]}]', "keep one"),
        ('[{tables: "shop.*", chunk_bi: [b]}]', "did you mean 'chunk_by'"),
        ('[{tables: "shop.*", chunk_by: [b]}]\nsnapshot: {chunks: exact}', "use replay"),
        ('[{tables: "shop.*", properties: {format-version: 2}}]', "sets 'format-version', which Cutline or Iceberg"),
        ('[{tables: "shop.*", properties: {cutline.pipeline: me}}]', "sets 'cutline.pipeline'"),
        ('[{tables: "shop.*", properties: {gc.enabled: false}}]', "sets 'gc.enabled', .* remove it"),
        ('[{tables: "shop.*", properties: {write.metadata.metrics.column.a: full}}]', "sets 'write.metadata.metrics"),
        ('[{tables: "shop.*", sort: [day, id, day desc]}]', "sorts by 'day', .* name each column once"),
        ('[{tables: "shop.*", sort: [""]}]', "sorts by '', which is empty"),
        ('[{tables: "shop.*", sort: day}]', "sort must be a list"),
        (
            '[{tables: "shop.*", partition: [hourly(day)]}]',
            r"'hourly\(day\)', .* no known transform; write",
        ),
        ('[{tables: "shop.*", partition: ["bucket(0, id)"]}]', "no known transform"),
        ('[{tables: "shop.*", partition: [bucket(id)]}]', "no known transform"),
        ('[{tables: "shop.*", partition: ["day(3, at)"]}]', "no known transform"),
        ('[{tables: "shop.*", partition: [""]}]', "no known transform"),
        ('[{tables: "shop.*", partition: [at, day(at)]}]', "partitions by 'at' twice"),
        ('[{tables: "shop.*", select: [id, " "]}]', "has an empty expression in select or where"),
        ('[{tables: "shop.*", where: ""}]', "has an empty expression in select or where"),
        ('[{tables: "shop.*", select: id}]', "select must be a list"),
        ("[{tables: 'shop.*', where: \"born < DATE ' Today'\"}]", "reads a word as the present time"),
        ("[{tables: 'shop.*', select: [id, \"'${env:HOME}' AS h\"]}]", "would name a setting of Spark's process"),
        ('[{tables: "shop.*", mode: append}]', "has table_options with mode: append"),
        ('[{tables: "shop.*", mode: soft-delete, images: both}]', "has images: both with mode: soft-delete"),
        ('[{tables: "shop.*", mode: history, key: [a]}]\nsnapshot: {chunks: exact}', "has key with mode: history"),
        ('[{tables: "shop.*", key: [a, a]}]', "has 'a' in key, which is empty or there twice"),
        ('[{tables: "shop.*", key: [a]}]', "has table_options with key, .*set snapshot.chunks: exact"),
        ('[{tables: "shop.*", mode: mirrored}]', "mode must be"),
        ("5", "must be a list"),
    ],
)
def test_wrong_table_options_are_refused_with_a_remedy(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(f"{SMALL}table_options: {options}\n")


def test_a_rule_is_kept_as_it_was_written() -> None:
    options = '[{tables: "shop.a", where: "a > 1"}, {tables: "shop.b", select: ["*", a AS b]}]'
    read = parse(f"{SMALL}table_options: {options}\n")
    assert read.options_of("shop.a").shape("") == Shape(select=("*",), where="a > 1")
    assert read.options_of("shop.b").shape("") == Shape(select=("*", "a AS b"))
    assert read.options_of("shop.c").shape("") is None
    logs = '[{tables: "*.*", mode: append, images: both}]'
    modes = parse(f"{SMALL}snapshot: {{chunks: exact}}\ntable_options: {logs}\n")
    assert modes.options_of("shop.a").shape("") == Shape(mode="append", images="both")
    assert PipelineConfig.from_definition(modes.definition()) == modes
    options = [{"tables": "shop.a?"}, {"tables": "shop.a*", "where": "a > 1"}, {"tables": "*.*", "select": ["id"]}]
    entries = [TableOptions.model_validate(each) for each in options]
    assert shapes_of(entries, ["shop.a", "shop.a1", "shop.b"]) == {
        "shop.a": Shape(where="a > 1"), "shop.b": Shape(select=("id",))
    }  # fmt: skip
    assert shapes_of(entries[:1], ["shop.a"]) == {}
    assert PipelineConfig.from_definition(read.definition()) == read


def test_masking_needs_one_place_of_its_key_and_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masked = f'{SMALL}table_options: [{{tables: "shop.a", mask: [email]}}]\n'
    assert faults(masked) == [
        "p.yaml:1:1: the pipeline has table_options with mask, and no masking; name the place of its key:"
        " masking.key_env"
    ]
    for both in ("{}", "{key_env: A, key_file: b}"):
        (found,) = faults(f"{masked}masking: {both}\n")
        assert "masking must have one of key_env and key_file" in found
    read = parse(f"{masked}masking: {{key_env: SHOP_MASK_KEY}}\n")
    assert PipelineConfig.from_definition(read.definition()) == read
    assert read.options_of("shop.a").shape("ab") == Shape(mask=("email",), mask_key="ab")
    monkeypatch.delenv("SHOP_MASK_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"SHOP_MASK_KEY, named by masking\.key_env, is not set; export it"):
        read.mask_key()
    monkeypatch.setenv("SHOP_MASK_KEY", "short")
    with pytest.raises(ConfigError, match="the environment variable SHOP_MASK_KEY: the key of masking has 5 bytes"):
        read.mask_key()
    (tmp_path / "key").write_text("0123456789abcdef\nnot of it\n")
    by_file = parse(f"{masked}masking: {{key_file: key}}\n", folder=tmp_path)
    assert by_file.definition()["masking"]["key_file"] == str(tmp_path / "key")
    assert by_file.mask_key() == MaskKey.of_text("0123456789abcdef")
    assert parse(SMALL).mask_key() is None


def test_what_is_printed_of_a_definition_has_no_secret() -> None:
    definition = {
        "source": {"host": "db", "password_env": "SHOP_PASSWORD"},
        "sink": {
            "catalog": {
                "uri": "jdbc:postgresql://me:hush@db/lake?password=hush",
                "jdbc.password": "hush",
                "adls.auth.shared-key.account.key": "hush",
                "header.authorization": "Bearer hush",
            },
            "spark": {"spark.hadoop.fs.s3a.secret.key": "hush", "spark.master": "local[2]"},
        },
    }
    printed = shown("", definition)
    assert "hush" not in str(printed)
    assert printed["source"] == definition["source"]
    assert printed["sink"]["catalog"]["uri"] == "jdbc:postgresql://***@db/lake?password=***"
    assert printed["sink"]["spark"]["spark.master"] == "local[2]"


# --- the source's connection ------------------------------------------------------------------------------------------


def source(text: str) -> SourceConfig:
    return parse(f"name: shop\nsource: {{host: db, user: u, {text}}}\ntables: [a.b]\nsink: {{warehouse: w}}\n").source


def test_tls_is_a_word_or_a_mapping_whose_files_are_relative_to_the_pipeline_file(tmp_path: Path) -> None:
    word = source("tls: required").tls
    assert word is not None
    assert word.mode == "required"
    text = SMALL.replace("user: u", "user: u, tls: {ca: ca.pem, cert: /etc/c.pem, key: k/key.pem}")
    (tmp_path / "p.yaml").write_text(text)
    config = load(tmp_path / "p.yaml")
    given = config.source.tls
    assert given is not None
    assert (given.mode, given.ca, given.cert, given.key) == (
        "verify-identity", f"{tmp_path}/ca.pem", "/etc/c.pem", f"{tmp_path}/k/key.pem"
    )  # fmt: skip
    assert PipelineConfig.from_definition(config.definition()).source == config.source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls: no", "tls must be disabled, required, verify-ca or verify-identity, or a mapping with mode, not False"),
        ("tls: {mode: strict}", "or a mapping with mode, not 'strict'"),
        ("tls: {mode: required, ca: x}", "tls has a ca, which mode required does not check; use verify-ca"),
        ("tls: {mode: disabled, cert: x}", "tls has a cert, which mode disabled does not use"),
        ("tls: {key: x}", "tls has a key without a cert"),
        ("tls: {cas: x}", r"unknown key 'source\.tls\.cas'; did you mean 'ca'"),
        ("hosts: [a b]", "hosts has 'a b', which is not a host or host:port"),
        ("hosts: ['x:70000']", "hosts has 'x:70000', which is not a host or host:port"),
        ("hosts: x", "hosts must be a list of hosts"),
        ("connect_timeout_seconds: 0", "connect_timeout_seconds must be greater than or equal to 1"),
    ],
)
def test_wrong_settings_of_the_connection_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        source(text)


def test_a_definition_without_these_settings_is_as_before_them() -> None:
    before = {"host", "port", "user", "password_env", "password_file", "server_id"}
    assert parse(SMALL).definition()["source"].keys() == before
    given = source("tls: verify-ca, hosts: [other], connect_timeout_seconds: 3, cleartext_password: true")
    added = {"tls", "hosts", "connect_timeout_seconds", "cleartext_password"}
    assert given.model_dump(mode="json").keys() == before | added


def test_hosts_follow_host_in_their_order_each_address_once() -> None:
    found = source("port: 3307, hosts: ['db:3307', 'other', '[::1]:3308', '10.0.0.7:3306', other]").addresses
    assert [str(address) for address in found] == ["db:3307", "other:3307", "[::1]:3308", "10.0.0.7:3306"]


@pytest.mark.parametrize(
    ("host", "mode"),
    [
        ("127.0.0.1", "disabled"),
        ("127.9.9.9", "disabled"),
        ("::1", "disabled"),
        ("localhost", "disabled"),
        ("10.0.0.7", "verify-identity"),
        ("db.example.com", "verify-identity"),
        ("localhost.example.com", "verify-identity"),
    ],
)
def test_without_a_choice_only_what_stays_on_this_machine_is_not_encrypted(host: str, mode: str) -> None:
    assert tls.mode(None, Address(host, 3306)) == mode
    assert tls.mode(TlsConfig(mode="verify-ca"), Address(host, 3306)) == "verify-ca"
