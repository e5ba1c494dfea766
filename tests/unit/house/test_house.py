"""The rules of the house, as a test: how long code may be, what it may be called, and what prose may name.

`EXCEPTED` has what a rule does not fit, `LEFT` what is still to be mended, each with the reason. They only become
shorter: an entry that no longer breaks its rule fails. test_folder_map.py has one more rule, that each file says what
it is for; test_imports.py and test_purity.py have the rules of imports.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("common", "services", "spark_writer")
CODE = (*PRODUCT, "tools", "tests")
DASHBOARD = ROOT / "services" / "control" / "static" / "app"
FUNCTION_LINES = 70
CLASS_ATTRIBUTES = 25
FILE_LINES = 600
LINE_CHARACTERS = 120
FORBIDDEN = {"said", "told", "there", "one", "of"}
FORBIDDEN_PARTS = {"util", "utils", "helper", "helpers", "manager"}
DEFAULT_EXECUTOR = ("to_thread(", "run_in_executor(None")
SIMULATED = (
    "tests/simulation/", "tests/support/ports.py", "tests/unit/simulation/test_simulated_loops.py",
    "tests/unit/services/enumerator/test_enumerator_driver.py", "tests/unit/services/reader/test_reader_driver.py",
    "tests/unit/services/writer/test_writer_driver.py",
)  # fmt: skip
"""Here time is simulated: a sleep ends when the schedule says so."""
FOREIGN = {
    "_t_del", "_t_ghc", "_t_gho", "_t_new", "_t_old", "enforce_gtid_consistency", "enum_field_types", "getSubject",
    "referential_constraints", "Log_event_type", "max_connect_errors",
    "OTEL_EXPORTER_OTLP_HEADERS", "RewriteDataFilesSparkAction", "RowDelta", "toBranch",
}  # fmt: skip
"""Names in prose that are of other software."""
EXAMPLES = {"rules.js", "shop.yaml", "test.yaml"}
"""Files in prose that are a reader's own, or served under another name."""

SWITCH = "switch code: a call for each case would cost what the compiled decoders win"
TABLE = "a table of settings: one line each"
VIEW = "an answer of the API, flat by its contract"
PACE = "sleeps as a source, a person or a slow call does; asserts nothing by it"
STAGE = "a made-up service, whose answers stand in one place"
STORY = "one story of a whole pipeline, whose steps are numbered"

EXCEPTED: dict[str, dict[str, str]] = {
    "function": {
        "services/sources/mysql/binlog/scanner.py: Scanner._event": SWITCH,
        "services/sources/mysql/decode/json_text.py: _put_value": SWITCH,
        "services/sources/mysql/decode/row_event.py: EventDecoder._image": SWITCH,
        "services/sources/mysql/decode/row_plan.py: _event_kind": SWITCH,
        "services/sources/mysql/decode/values.py: _render": SWITCH,
        "services/sources/mysql/decode/values.py: store": SWITCH,
        "tests/browser/made_up.py: Stage.__init__": STAGE,
        "tests/browser/stage.py: app": STAGE,
        "tests/browser/test_dashboard_live.py: "
        "test_a_pipeline_is_made_goes_live_is_paused_gets_a_table_and_has_one_retried": STORY,
        "tests/integration/end_to_end/test_dotted_names.py: "
        "test_tables_whose_names_are_the_same_with_a_dot_between_stay_apart": STORY,
        "tests/integration/pipeline/test_pipeline.py: "
        "test_a_table_that_cant_be_copied_is_quarantined_and_the_others_go_on": STORY,
    },
    "class": {
        "common/config/environment.py: Environment": TABLE,
        "services/client/rest/models.py: Pipeline": VIEW,
        "services/client/rest/models.py: Table": VIEW,
        "services/control/api/models.py: PipelineView": VIEW,
        "services/control/api/models.py: TableView": VIEW,
        "services/sources/mysql/binlog/scanner.py: Scanner": SWITCH,
    },
    "file": {
        "services/sources/mysql/binlog/scanner.py": SWITCH,
        "services/sources/mysql/decode/row_event.py": SWITCH,
        "services/sources/mysql/decode/row_plan.py": SWITCH,
        "services/sources/mysql/decode/values.py": SWITCH,
    },
    "twins": {},
    "name": {},
    "executor": {},
    "sleep": {
        "tests/integration/lake/test_replicas.py: changed": PACE,
        "tests/integration/lake/test_side_by_side.py: measured": PACE,
        "tests/integration/outages/test_leaderless.py: rests": PACE,
        "tests/integration/outages/test_locks.py: oldest": PACE,
        "tests/integration/pipeline/test_enumerator_driver.py: slow": PACE,
        "tests/integration/source/test_binlog.py: "
        "test_a_reader_whose_host_vanished_holds_up_no_other_with_its_server_id": PACE,
        "tests/unit/common/mesh/test_loop.py: test_the_longest_hold_of_the_event_loop_is_told_for_a_while": PACE,
        "tests/unit/tools/test_needs.py: test_what_takes_long_says_so_while_it_goes_on": PACE,
        "tests/unit/services/reader/test_pace.py: run": PACE,
        "tests/unit/spark_writer/test_spark_driver.py: "
        "test_a_store_that_can_not_be_listed_ends_nothing_and_counts_as_not_served": PACE,
        "tests/unit/services/control/test_store_calls.py: look": PACE,
    },
    "reference": {},
    "line": {},
}
"""For each rule what it does not fit, by name, and why."""

SPLIT = "to be split by subject"
STATE = "to be split along its two subjects, as its file"
CLOCK = "waits a time to show that nothing happens: to be a clock that the test moves"
WRAP = "markup in a template, which Biome does not wrap"

LEFT: dict[str, dict[str, str]] = {
    "function": {},
    "class": {},
    "file": {
    },
    "twins": {},
    "name": {},
    "executor": {},
    "sleep": {
        "tests/integration/lake/test_sharing_out.py: "
        "test_a_leader_that_sits_in_a_time_out_while_redis_is_emptied_keeps_its_pipelines": CLOCK,
        "tests/integration/lake/test_sharing_out.py: "
        "test_a_status_is_written_when_it_changes_and_when_redis_was_emptied": CLOCK,
        "tests/integration/lake/test_sharing_out.py: "
        "test_in_a_full_redis_a_pipeline_that_can_not_be_handed_over_stays_where_it_is": CLOCK,
        "tests/integration/lake/test_sharing_out.py: "
        "test_in_a_full_redis_leaders_keep_their_leases_and_take_others_once_it_has_room": CLOCK,
        "tests/integration/lake/test_sharing_out.py: "
        "test_leaders_go_on_while_redis_is_down_and_begin_nothing_new": CLOCK,
        "tests/integration/lake/test_sharing_out.py: "
        "test_one_alone_leads_all_and_who_joins_takes_its_share_when_a_batch_is_published": CLOCK,
        "tests/integration/lake/test_sharing_out.py: "
        "test_one_that_is_missing_among_the_services_hands_nothing_over": CLOCK,
        "tests/integration/lake/test_sharing_out.py: "
        "test_one_whose_spark_does_not_run_yet_is_present_and_has_no_share": CLOCK,
        "tests/integration/lake/test_sharing_out.py: test_what_is_not_cutlines_in_redis_ends_nothing": CLOCK,
        "tests/integration/pipeline/test_enumerator_driver.py: "
        "test_an_epoch_is_announced_when_its_streams_are_there_and_not_by_who_lost_the_lease": CLOCK,
    },
    "reference": {},
    "line": {
        "services/control/static/app/api.js": WRAP,
        "services/control/static/app/early.js": WRAP,
        "services/control/static/app/format.js": WRAP,
        "services/control/static/app/icons.js": WRAP,
        "services/control/static/app/main.js": WRAP,
        "services/control/static/app/operations.js": WRAP,
        "services/control/static/app/parts/basics.js": WRAP,
        "services/control/static/app/parts/chart.js": WRAP,
        "services/control/static/app/parts/dialog.js": WRAP,
        "services/control/static/app/parts/fields.js": WRAP,
        "services/control/static/app/parts/grid.js": WRAP,
        "services/control/static/app/parts/mesh.js": WRAP,
        "services/control/static/app/parts/operate.js": WRAP,
        "services/control/static/app/parts/plan.js": WRAP,
        "services/control/static/app/parts/schemaform.js": WRAP,
        "services/control/static/app/parts/timeline.js": WRAP,
        "services/control/static/app/parts/virtual.js": WRAP,
        "services/control/static/app/samples.js": WRAP,
        "services/control/static/app/shapes.js": WRAP,
        "services/control/static/app/views/access.js": WRAP,
        "services/control/static/app/views/activity.js": WRAP,
        "services/control/static/app/views/checkpoints.js": WRAP,
        "services/control/static/app/views/cuts.js": WRAP,
        "services/control/static/app/views/definition.js": WRAP,
        "services/control/static/app/views/login.js": WRAP,
        "services/control/static/app/views/overview.js": WRAP,
        "services/control/static/app/views/picture.js": WRAP,
        "services/control/static/app/views/pipeline.js": WRAP,
        "services/control/static/app/views/services.js": WRAP,
        "services/control/static/app/views/table.js": WRAP,
        "services/control/static/app/views/tables.js": WRAP,
    },
}
"""For each rule what is still to be mended, by name, and how."""


@cache
def files() -> tuple[Path, ...]:
    """Every Python file of the product, the tools and the tests."""
    return tuple(path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def where(path: Path) -> str:
    return str(path.relative_to(ROOT))


def compare(rule: str, found: Iterator[str] | set[str]) -> None:
    """Fail for what breaks the rule and stands in no list, and for entries of the lists that break it no more."""
    broken, known = set(found), {*EXCEPTED[rule], *LEFT[rule]}
    assert sorted(broken - known) == [], f"these break the rule `{rule}`"
    assert sorted(known - broken) == [], f"these keep the rule `{rule}` now: remove them from EXCEPTED or LEFT"


def defined(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Every function and class of a file, with its name in it, such as `Leader.handle`."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Any]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield f"{prefix}{child.name}", child
                yield from inside(child, f"{prefix}{child.name}.")
            else:
                yield from inside(child, prefix)

    return inside(tree_of(path), "")


def attributes(node: ast.ClassDef) -> set[str]:
    """The fields that a class declares, and the attributes that its methods set."""
    declared = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    fields = {target.id for target in declared if isinstance(target, ast.Name)}
    return fields | {
        child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
        if isinstance(child.value, ast.Name) and child.value.id == "self"
    }


def test_a_function_fits_on_a_screen() -> None:
    compare("function", {
        f"{where(path)}: {name}"
        for path in files()
        for name, node in defined(path)
        if not isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES
    })  # fmt: skip


def test_a_class_has_few_attributes() -> None:
    compare("class", {
        f"{where(path)}: {name}"
        for path in files()
        for name, node in defined(path)
        if isinstance(node, ast.ClassDef) and len(attributes(node)) > CLASS_ATTRIBUTES
    })  # fmt: skip


def test_a_file_is_short() -> None:
    compare("file", {where(path) for path in files() if len(text_of(path).splitlines()) > FILE_LINES})


def test_no_two_modules_of_a_service_have_the_same_name() -> None:
    """Whoever reads an import or a traceback knows which of them it is."""
    services = [folder for folder in (ROOT / "services").iterdir() if (folder / "__init__.py").exists()]
    twins: set[str] = set()
    for service in [*services, ROOT / "common", ROOT / "spark_writer"]:
        names = Counter(path.stem for path in service.rglob("*.py") if not path.stem.startswith("__"))
        twins |= {f"{where(service)}: {name}" for name, times in names.items() if times > 1}
    compare("twins", twins)


def names(path: Path) -> Iterator[str]:
    """Every name that a file gives to something."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def words(name: str) -> set[str]:
    return set(re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_"))


def test_a_name_says_what_it_names() -> None:
    bad = {
        f"{where(path)}: {name}"
        for path in files()
        for name in (path.stem, *names(path))
        if name.strip("_") in FORBIDDEN or words(name) & FORBIDDEN_PARTS
    }
    compare("name", bad)


def test_blocking_calls_have_threads_of_their_own() -> None:
    """The default executor is shared by all, so that one server which hangs would hold up everybody."""
    product = (path for path in files() if where(path).startswith(PRODUCT))
    compare("executor", {where(path) for path in product if any(call in text_of(path) for call in DEFAULT_EXECUTOR)})


def bare_sleeps(path: Path) -> Iterator[str]:
    """The functions of a test file that sleep outside of a loop which looks for a condition."""

    def inside(node: ast.AST, function: str, loop: bool) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield from inside(child, name, False)
                case ast.While() | ast.For() | ast.AsyncFor() | ast.comprehension():
                    yield from inside(child, function, True)
                case ast.Call(func=called, args=[seconds, *_]) if (
                    not loop and ast.unparse(called) in ("time.sleep", "asyncio.sleep") and ast.unparse(seconds) != "0"
                ):
                    yield function
                case _:
                    yield from inside(child, function, loop)

    return inside(tree_of(path), "", False)


def test_a_test_waits_for_a_condition_and_never_for_a_time() -> None:
    compare("sleep", {
        f"{where(path)}: {function}"
        for path in files()
        if where(path).startswith("tests/") and not where(path).startswith(SIMULATED)
        for function in bare_sleeps(path)
    })  # fmt: skip


@cache
def code_and_prose() -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """Every word of the code, and every text of prose: pages, docstrings and comments."""
    known = {path.stem for path in files()}
    prose: list[tuple[str, str]] = []
    for path in files():
        docstrings = set()
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                    docstrings.add((constant.lineno, constant.col_offset))
                    prose.append((where(path), text))
        for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline):
            if token.type == tokenize.COMMENT:
                prose.append((where(path), token.string))
            elif token.start not in docstrings:
                known.update(re.findall(r"\w+", token.string))
    for path in others():
        known.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        prose.append((where(page), re.sub(r"^ *```.*?^ *```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)))
    return frozenset(known), tuple(prose)


def others() -> list[Path]:
    """Files of code that are not in Python."""
    suffixes = {".java", ".js", ".pxd", ".toml", ".tpl", ".yaml", ".yml", ".json", ".xml"}
    inside = [path for top in (*CODE, "k8s") for path in (ROOT / top).rglob("*") if path.suffix in suffixes]
    top = [path for path in ROOT.iterdir() if path.is_file() and path.suffix not in (".md", ".xz")]
    return [*inside, *top, *(ROOT / ".ci").iterdir()]


def test_prose_names_what_the_code_has() -> None:
    """In back-ticks, names with a `_` or inner capitals. `checkpoint_N` is any checkpoint, `_to_iceberg` an ending."""
    known, prose = code_and_prose()
    dead = set()
    for place, text in prose:
        for quoted in re.findall(r"`([A-Za-z_][\w.]*)`", text):
            for name in quoted.split("."):
                if not re.search(r"[a-z][A-Z]|_", name.strip("_")) or name in known or name in FOREIGN:
                    continue
                if re.sub(r"_[Nw]$", "", name) not in known and not any(map(partial(part_of, name), known)):
                    dead.add(f"{place}: {name}")
    compare("reference", dead)


def part_of(name: str, whole: str) -> bool:
    """True if the name is an ending, `_to_iceberg`, or a beginning, `K_BIN_`, of another."""
    return (name.startswith("_") and whole.endswith(name)) or (name.endswith("_") and whole.startswith(name))


@cache
def file_names() -> frozenset[str]:
    tops = (*CODE, "k8s", "docs")
    inside = {path.name for top in tops for path in (ROOT / top).rglob("*")}
    return frozenset(inside | {path.name for path in ROOT.iterdir()})


def test_prose_names_files_that_exist() -> None:
    """By path from the top folder, or by name alone."""
    dead = []
    for place, text in code_and_prose()[1]:
        for name in re.findall(r"(?<![\w/*{<.-])([\w/-]+\.(?:py|js|md|java|toml|yaml))(?!\w)", text):
            last, whole = name.rpartition("/")[2], name.split("/")[0] in CODE
            if last not in EXAMPLES and not ((ROOT / name).exists() if whole else last in file_names()):
                dead.append(f"{place}: {name}")
    assert dead == []


def modules_of_the_dashboard() -> dict[str, str]:
    """The dashboard's own modules of JavaScript, by their paths."""
    return {where(path): text_of(path) for path in sorted(DASHBOARD.rglob("*.js"))}


def test_a_line_of_the_dashboard_is_short() -> None:
    """ruff checks the lines of Python."""
    texts = modules_of_the_dashboard()
    compare("line", {name for name, text in texts.items() if max(map(len, text.splitlines())) > LINE_CHARACTERS})


def test_the_dashboard_has_no_dead_code() -> None:
    """What a module exports another one names, and what it imports it uses."""
    texts = modules_of_the_dashboard()
    dead = []
    for name, text in texts.items():
        others = "\n".join(other for place, other in texts.items() if place != name)
        for exported in re.findall(r"^export (?:async )?(?:const|function\*?|class|let) (\w+)", text, re.MULTILINE):
            dead += [f"{name} exports {exported}"] if not re.search(rf"\b{exported}\b", others) else []
        for imported in re.findall(r"^import \{([^}]*)\} from", text, re.MULTILINE):
            own = [each.strip().rpartition(" as ")[2] for each in imported.split(",") if each.strip()]
            dead += [f"{name} imports {each}" for each in own if len(re.findall(rf"\b{re.escape(each)}\b", text)) < 2]
    assert dead == []
