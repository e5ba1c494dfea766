"""The reads of the REST API, the typed client and the command line, on a control service beside a real mesh."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import httpx
import pytest
from click.testing import CliRunner, Result

from cutline.common.positions import Position
from cutline.common.store.records import Content, Main, Publication, PublishedTable
from cutline.services.client.rest import AsyncClient, Client, NotFound, Unauthorized, WrongRequest
from cutline.services.client.rest.models import Checkpoint, Event, Grid
from cutline.services.run.cli import main
from cutline.services.run.supervisor import free_port
from tests.support.control_server import is_ready
from tests.support.databases import Database
from tests.support.mesh import Mesh, Pipeline, ServiceProcess, waited

TOKEN = "a token for tests"
Fresh = Callable[[Database], str]


@dataclass(eq=False)
class Control:
    """A mesh with a control service, and a client of it."""

    mesh: Mesh
    pipeline: Pipeline
    table: str
    url: str
    service: ServiceProcess
    client: Client

    def cli(self, *words: str) -> Result:
        """Run a command, which must end with 0."""
        ended = CliRunner().invoke(main, [*words, "--url", self.url, "--token", TOKEN])
        assert ended.exit_code == 0, ended.output
        return ended


@pytest.fixture(scope="module")
def control(
    mariadb: Database, tmp_path_factory: pytest.TempPathFactory, nothing_left_running: None
) -> Iterator[Control]:
    """A table of 6,000 rows in chunks of 100, which is read slowly."""
    mariadb.execute("CREATE DATABASE api_reads")
    mariadb.execute("CREATE TABLE api_reads.t (id INT PRIMARY KEY, a VARCHAR(20))")
    mariadb.execute("INSERT INTO api_reads.t SELECT seq, 'some text' FROM api_reads.seq_1_to_6000")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {"CUTLINE_API_PORT": str(port), "CUTLINE_API_TOKEN": TOKEN}
    folder = tmp_path_factory.mktemp("api_reads")
    with Mesh(folder, readers=2, writers=1, environment=environment) as mesh, Client(url, token=TOKEN) as client:
        service = mesh.start("control")
        waited(lambda: is_ready(url), "the control service", 60, mesh.log_ends)  # its first look is at the snapshot
        slow = {"max_rows_per_second": 200}
        pipeline = mesh.pipeline("shop", mariadb, ["api_reads.t"], chunk_rows=100, snapshot=slow)
        yield Control(mesh, pipeline, "api_reads.t", url, service, client)
    mariadb.execute("DROP DATABASE api_reads")


def test_a_snapshot_under_way_is_shown_with_its_rate_its_chunks_and_its_way_through_the_mesh(control: Control) -> None:
    client, name = control.client, control.table
    table = control.pipeline.until(
        lambda: (found := client.tables("shop", phase="snapshot")) and found[0].rate_rows_per_second and found[0],
        "a rate of the snapshot",
    )
    assert table.rate_rows_per_second is not None
    assert table.rows_done is not None
    assert (table.table, table.current, table.eta_seconds is not None) == (name, True, True)
    assert 0 < table.rate_rows_per_second < 2000


    def in_motion() -> Grid | None:
        found = client.grid("shop", name)
        return found if {run.state for run in found.runs} >= {"done", "reading", "waiting"} else None

    grid = control.pipeline.until(in_motion, "chunks that are read, being read and waiting")
    assert grid is not None
    assert (grid.runs[0].first, grid.runs[-1].last) == (1, grid.total)
    assert [run.first for run in grid.runs[1:]] == [run.last + 1 for run in grid.runs[:-1]]
    assert {run.reader for run in grid.runs if run.state == "reading"} <= {"reader-0", "reader-1"}

    def marked() -> Checkpoint | None:
        found = (
            checkpoint
            for checkpoint in client.checkpoints("shop")
            if checkpoint.staged_rows
            and len(checkpoint.members) == 4
            and all(member.saved_at for member in checkpoint.members)
        )
        return next(found, None)

    checkpoint = control.pipeline.until(marked, "a checkpoint with the marks of all members")
    assert checkpoint is not None
    for member in checkpoint.members:
        assert member.marker_at is not None
        assert member.saved_at is not None
        assert checkpoint.started_at is not None
        assert checkpoint.started_at - 1 < member.marker_at <= member.saved_at <= checkpoint.written_at + 1
    assert [member.member for member in checkpoint.members] == ["enumerator", "reader-0", "reader-1", "writer-0"]
    assert checkpoint.members[0].part_bytes
    assert client.checkpoint("shop", checkpoint.number).tables[0].table == name
    channels = {(channel.sender, channel.receiver): channel for channel in client.channels("shop")}
    assert ("reader-1", "writer-0") in channels
    assert channels["reader-0", "writer-0"].credit_bytes > 0
    assert channels["reader-0", "enumerator"].taken > 0
    done = table.rows_done

    def counted() -> bool:
        status = control.pipeline.status()
        writer = status.writers["writer-0"]
        sent = sum(status.readers[name].rows_total for name in ("reader-0", "reader-1"))
        seen = client.pipeline("shop").rows_sent or 0
        return min(sent, seen) >= done <= writer.rows_total and writer.bytes_total > 0

    control.pipeline.until(counted, "totals of readers and writers that hold these rows")


def test_services_show_what_they_do_and_use_and_their_last_log_lines(control: Control) -> None:
    def complete() -> bool:
        found = control.client.services()
        return len(found) == 5 and all(service.rss_bytes for service in found) and any(s.members for s in found)

    control.pipeline.until(complete, "all services with their memory")
    services = {service.role: service for service in control.client.services()}
    assert services["enumerator"].leads == ["shop"]
    assert services["writer"].members == {"shop": "writer-0"}
    assert services["writer"].epochs == {"shop": control.pipeline.epochs()[-1].slot}
    memory = services["reader"].rss_bytes
    assert memory is not None
    assert 20 << 20 < memory < 2 << 30
    lines = control.pipeline.until(lambda: control.client.logs(services["reader"].incarnation), "lines of a log")
    assert any("joins epoch" in line.text for line in lines)
    with pytest.raises(NotFound, match="no service 'nobody'"):
        control.client.logs("nobody")


def test_what_is_wrong_is_refused_with_cause_and_remedy(control: Control) -> None:
    with pytest.raises(NotFound, match=r"captures no table 'a\.b'; GET"):
        control.client.table("shop", "a.b")
    with pytest.raises(NotFound, match="the store has no pipeline 'nobody'"):
        control.client.tables("nobody")
    with pytest.raises(WrongRequest, match="there is no phase 'dead'"):
        control.client.tables("shop", phase="dead")
    with pytest.raises(NotFound, match="no checkpoint among the newest"):
        control.client.checkpoint("shop", 999_999)
    with pytest.raises(WrongRequest, match="no time with a zone"):
        control.client.cut_at("shop", "yesterday")
    with pytest.raises(WrongRequest, match="not a server UUID"):
        control.client.cut_with("shop", "nonsense:1")
    with Client(control.url, token="wrong") as other, pytest.raises(Unauthorized):
        other.services()


def test_a_stream_of_events_ends_with_the_service_and_goes_on_at_the_next_one_without_a_gap(control: Control) -> None:
    """1. A client follows the events. 2. The service gets SIGTERM, and ends within seconds though the stream is open.
    3. Meanwhile the limit of the snapshot is lifted, so the table goes live. 4. Another service starts: the client has
    every event of the journal since it began, once."""
    events: list[Event] = []
    begun = threading.Event()

    def follow() -> None:
        with Client(control.url, token=TOKEN) as client:
            for event in client.follow("shop", after="0.0"):
                events.append(event)
                begun.set()
                if event.text.startswith(f"{control.table} is live"):
                    return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert begun.wait(20)
    assert control.mesh.leave(control.service) in (0, -signal.SIGTERM)
    limits = {"rows_per_second": None, "bytes_per_second": None}
    control.pipeline.store.commands.add("limits", limits, by="ann", now=time.time())
    control.pipeline.until(lambda: control.pipeline.shows(control.table), "the table to be live")
    control.service = control.mesh.start("control")
    waited(lambda: is_ready(control.url), "the other service", 60, control.mesh.log_ends)
    follower.join(30)
    assert not follower.is_alive()
    listed = control.client.events("shop", limit=1000)[::-1]
    assert [event.id for event in events] == [event.id for event in listed][: len(events)]
    assert events[0].kind == "epoch"


def test_a_changed_table_shows_when_it_last_changed_and_a_wait_ends_with_the_change(control: Control) -> None:
    live = control.pipeline.until(
        lambda: (found := control.client.table("shop", control.table)).phase == "live" and found, "the table to be live"
    )
    answers: list[float | None] = []
    waiting = threading.Thread(
        target=lambda: answers.append(control.client.table("shop", control.table, wait=30).last_change_at)
    )
    waiting.start()
    control.pipeline.server.execute(f"UPDATE {control.table} SET a = 'changed' WHERE id = 1")
    waiting.join(40)
    assert len(answers) == 1
    assert answers[0] is not None
    assert live.last_change_at is None or answers[0] > live.last_change_at
    headers = {"Authorization": f"Bearer {TOKEN}"}
    path = f"{control.url}/v1/pipelines/shop/tables/{control.table}"
    tag = httpx.get(path, headers=headers).headers["ETag"]
    unchanged = httpx.get(path, headers={**headers, "If-None-Match": tag}, params={"wait": "200ms"})
    assert (unchanged.status_code, unchanged.headers["ETag"], unchanged.content) == (304, tag, b"")


def test_a_column_that_is_added_is_in_the_history_of_the_schema(control: Control) -> None:
    control.pipeline.server.execute(f"ALTER TABLE {control.table} ADD COLUMN b INT")
    control.pipeline.server.execute(f"UPDATE {control.table} SET b = 1 WHERE id = 2")
    history = control.pipeline.until(
        lambda: len(found := control.client.schemas("shop", control.table)) > 1 and found, "the new schema"
    )
    names = [[column.name for column in schema.columns or ()] for schema in history]
    assert names[0] == ["id", "a", "b"]
    assert names[-1] == ["id", "a"]
    assert history[0].key == ["id"]
    assert history[0].since_checkpoint > history[-1].since_checkpoint
    assert (history[0].columns or [])[0].lake_type == "int"


def test_cuts_say_what_the_lake_showed_at_a_time_and_which_one_holds_a_gtid(control: Control) -> None:
    server = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

    def publish(n: int, at: float, *, shown: bool) -> None:
        position = Position(server=server, file="binlog.000001", offset=100 * n, gtids=f"{server}:1-{n}")
        older = None if shown else replace(position, offset=4)
        main = Main(content=Content(str(n)), position=older)
        table = PublishedTable(state="live", generation=1, main=main, work=None)
        record = Publication(
            n=n, epoch=1, w=1, kept=False, position=position, source_time=at - 5, published_at=at, tables={"a.b": table}
        )
        assert control.pipeline.store.publish(record)

    for n, at, shown in ((2, 1000.0, True), (3, 1010.0, True), (4, 1020.0, False)):
        publish(n, at, shown=shown)
    client = control.client
    assert [cut.number for cut in client.cuts("shop")] == [4, 3, 2]
    assert [cut.number for cut in client.each_cut("shop", limit=1)] == [4, 3, 2]
    at = client.cut_at("shop", 1012)
    assert at.shown is not None
    assert at.holds is not None
    assert (at.shown.number, at.holds.number) == (3, 4)
    assert client.cut_at("shop", "1970-01-01T00:00:01Z").shown is None
    holds = client.cut_with("shop", f"{server}:3").holds
    assert holds is not None
    assert (holds.number, holds.tables[0].snapshot_id, holds.tables[0].shown) == (3, 3, True)
    assert client.cut_with("shop", f"{server}:9").holds is None
    shown = client.cut("shop", 4).tables[0]
    assert (shown.shown, shown.position and shown.position["offset"]) == (False, 4)
    assert "publication 3 of 1970-01-01 " in control.cli("cuts", "shop", "--at", "1012").output


def test_the_command_line_reads_everything_by_the_api(control: Control) -> None:
    listed = control.cli("table", "list", "shop").output.splitlines()
    assert listed[0].split()[:4] == ["table", "phase", "since", "generation"]
    assert listed[1].split()[:2] == [control.table, "live"]
    assert json.loads(control.cli("table", "show", "shop", control.table, "--json").output)["phase"] == "live"
    assert json.loads(control.cli("pipeline", "list", "--json").output)[0]["name"] == "shop"
    assert "writer-0 of shop" in control.cli("services").output
    assert "reader-0    writer-0" in control.cli("channels", "shop").output
    assert f"{control.table} is live" in control.cli("events", "shop").output
    assert len(json.loads(control.cli("checkpoint", "list", "shop", "--limit", "2", "--json").output)) == 2
    assert control.cli("savepoint", "list", "shop").output == "no savepoint\n"
    assert f"{control.table}: live" in control.cli("status").output
    assert json.loads(control.cli("status", "shop", "--json").output)[0]["tables"][0]["table"] == control.table
    shown = json.loads(control.cli("top", "shop", "--json").output)
    assert set(shown) == {"pipeline", "services", "tables", "channels"}
    address = ["--url", control.url, "--token", TOKEN]
    words = {"_CUTLINE_COMPLETE": "bash_complete", "COMP_CWORD": "4"}
    words |= {"COMP_WORDS": "cutline table show shop api_", "CUTLINE_API_URL": control.url, "CUTLINE_API_TOKEN": TOKEN}
    assert CliRunner().invoke(main, env=words, prog_name="cutline").output == f"plain,{control.table}\n"
    gone = CliRunner().invoke(main, ["table", "list", "nobody", *address])
    assert gone.exit_code == 1
    assert gone.stderr == "cutline: the store has no pipeline 'nobody'; `cutline pipeline list` lists them\n"
    assert CliRunner().invoke(main, ["table", "list", "shop", "--phase", "dead", *address]).exit_code == 2


async def test_the_async_client_reads_the_same(control: Control) -> None:
    async with AsyncClient(control.url, token=TOKEN) as client:
        assert [pipeline.name for pipeline in await client.pipelines()] == ["shop"]
        assert [table.table async for table in client.each_table("shop", limit=1)] == [control.table]
        async for event in client.follow("shop", after="0.0"):
            assert event.kind == "epoch"
            break
