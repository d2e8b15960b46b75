"""`penstock sink`, `penstock epoch`, and sinks in `penstock status`, against a worker in this process."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import pipeline_sinks
from penstock.cli.app import app
from penstock.cli.pipeline_sinks import wait_for_delivery
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import SegmentClient
from penstock.connectors.file import read_committed_parts
from penstock.core.errors import PipelineError, RequestError
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff
from tests.connectors.http_server import Answer, Server, serving
from tests.delivery.merging import Merging
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

Run = Callable[..., Result]

NOWHERE = "http://127.0.0.1:1/in"


@pytest.fixture
def merging(worker: RunningWorker, client: CoordinatorClient) -> Iterator[Merging]:
    with SegmentClient(worker.address) as segments:
        yield Merging(client, segments, "orders")


@pytest.fixture
def penstock(worker: RunningWorker) -> Run:
    def run(*arguments: str, answer: str = "") -> Result:
        address = f"127.0.0.1:{worker.ports['http']}"
        return CliRunner().invoke(app, [*arguments, "--worker", address], input=answer)

    return run


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is not tried again by itself: a sink that WAITS shows it for as long as one looks."""
    monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(1000.0, 1000.0))


def test_a_sink_is_added_listed_and_removed(penstock: Run, client: CoordinatorClient, tmp_path: Path) -> None:
    assert penstock("sink", "list").output == "no sinks\n"
    url = f"file:{tmp_path}/results"
    said = penstock("sink", "add", "orders", url).output
    assert f"orders/out goes to {url} (exactly-once) as file\n" in said
    assert "orders has not run yet" in said
    added = json.loads(
        penstock("sink", "add", "orders", "stdout:", "--name", "console", "--port", "late", "--json").stdout
    )
    assert (added["sink"], added["guarantee"], added["pipeline_has_run"]) == ("console", "at-least-once", False)
    told = json.loads(penstock("sink", "list", "--json").output)
    assert [(one["sink"], one["port"], one["guarantee"]) for one in told] == [
        ("console", "late", "at-least-once"),
        ("file", "out", "exactly-once"),
    ]
    assert "exactly-once" in penstock("sink", "list").output
    assert penstock("sink", "remove", "orders", "file", answer="n\n").exit_code == 1
    assert penstock("sink", "remove", "orders", "file", answer="y\n").output.endswith("removed file from orders\n")
    assert [one.sink for one in client.sinks()] == ["console"]


def test_a_name_is_the_kind_and_the_same_sink_keeps_it(penstock: Run, client: CoordinatorClient) -> None:
    for url in (f"{NOWHERE}?token=one", f"{NOWHERE}/2", f"{NOWHERE}?token=one"):
        assert penstock("sink", "add", "orders", url).exit_code == 0
    assert [one.sink for one in client.sinks()] == ["http", "http-2"]


@pytest.mark.parametrize(
    ("url", "hint"), [("fil:x", 'Did you mean "file"?'), ("file:x?formt=raw", 'Did you mean "format"?')]
)
def test_a_mistake_in_a_url_is_reported(penstock: Run, client: CoordinatorClient, url: str, hint: str) -> None:
    result = penstock("sink", "add", "orders", url)
    assert isinstance(result.exception, RequestError)
    assert hint in result.exception.hint
    assert client.sinks() == []


def test_a_sink_that_is_not_there_cannot_be_removed(penstock: Run) -> None:
    result = penstock("sink", "remove", "orders", "file", "--yes")
    assert isinstance(result.exception, PipelineError)
    assert "penstock sink list" in result.exception.hint


SCHEMA = {"out": [("shop", "string"), ("orders", "bigint"), ("total", "decimal(10,2)")]}


def started(client: CoordinatorClient, pipeline: str = "orders") -> None:
    """As a driver starts it, which knows the columns of its rows."""
    generation = client.start(pipeline, {"in": InputSpec(["shops"])}, ["out"]).generation
    client.describe(pipeline, generation, SCHEMA)


def is_committed(client: CoordinatorClient) -> bool:
    """Also at the sink, which hears of the decision after it stands."""
    return all(one.lacking == 0 and one.state == "READY" for one in client.sinks())


def test_the_ddl_of_a_sink_fits_the_pipeline_s_rows_and_the_table_as_it_is_now(
    penstock: Run, client: CoordinatorClient, tmp_path: Path
) -> None:
    path = tmp_path / "shops.db"
    penstock("sink", "add", "orders", f"sqlite:{path}?table=shops&format=json&upsert=shop", "--name", "db")
    early = penstock("sink", "ddl", "db")
    assert isinstance(early.exception, RequestError)
    assert "the columns of pipeline 'orders' are not known: it has not started yet" in str(early.exception)
    started(client)
    create = penstock("sink", "ddl", "db").output
    assert create == (
        'CREATE TABLE "shops" (\n  "shop" TEXT,\n  "orders" INTEGER,\n  "total" NUMERIC,\n  PRIMARY KEY ("shop")\n);\n'
    )
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE shops (shop TEXT PRIMARY KEY, orders INTEGER)")
    assert penstock("sink", "ddl", "orders/db").output == 'ALTER TABLE "shops" ADD COLUMN "total" NUMERIC;\n'
    database.execute("ALTER TABLE shops ADD COLUMN total NUMERIC")
    database.close()
    assert penstock("sink", "ddl", "db").output == "-- table shops fits the rows of orders/out: nothing to do\n"


def test_a_column_that_a_sink_refused_for_is_found_when_it_is_tried_again(
    penstock: Run, client: CoordinatorClient, merging: Merging, tmp_path: Path
) -> None:
    path = tmp_path / "shops.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("CREATE TABLE shops (shop TEXT)")
    penstock("sink", "add", "orders", f"sqlite:{path}?table=shops&format=json", "--name", "db")
    merging.epoch([b'{"shop": "north", "orders": 2}'])
    until(lambda: "no column for its field 'orders'" in client.sinks()[0].reason)
    database.execute("ALTER TABLE shops ADD COLUMN orders INTEGER")
    penstock("epoch", "retry", "orders")
    until(lambda: is_committed(client))
    assert database.execute("SELECT * FROM shops").fetchall() == [("north", 2)]
    database.close()


def test_a_sink_with_create_creates_its_table_from_the_schema_of_the_driver(
    penstock: Run, client: CoordinatorClient, merging: Merging, tmp_path: Path
) -> None:
    path = tmp_path / "shops.db"
    penstock("sink", "add", "orders", f"sqlite:{path}?table=shops&format=json&create=true")
    client.describe("orders", merging.generation, SCHEMA)
    merging.epoch([b'{"shop": "north", "orders": 2, "total": 5.5}'])
    until(lambda: is_committed(client))
    database = sqlite3.connect(path)
    assert database.execute("SELECT * FROM shops").fetchall() == [("north", 2, 5.5)]
    database.close()


def test_a_ddl_that_is_impossible_is_reported_with_a_hint(
    penstock: Run, client: CoordinatorClient, tmp_path: Path
) -> None:
    penstock("sink", "add", "orders", f"file:{tmp_path}/results")
    penstock("sink", "add", "orders", f"sqlite:{tmp_path}/a.db?table=t&format=json", "--name", "db")
    penstock("sink", "add", "others", f"sqlite:{tmp_path}/a.db?table=u&format=json", "--name", "db")
    penstock("sink", "add", "orders", "postgresql://me@127.0.0.1:1/shop?table=t&format=raw", "--name", "pg")
    for name, said, hint in [
        ("orders/file", "orders/file is a file sink: it has no table", "penstock sink list"),
        ("none", "sink 'none' not found", "penstock sink list"),
        ("db", "2 sinks are called 'db'", "orders/db, others/db"),
        ("pg", "orders/pg: the database failed: connection failed", "penstock sink list"),
    ]:
        result = penstock("sink", "ddl", name)
        assert isinstance(result.exception, RequestError)
        assert said in str(result.exception)
        assert hint in result.exception.hint
    client.start("others", {"in": InputSpec(["shops"])}, ["out"])
    result = penstock("sink", "ddl", "others/db")
    assert isinstance(result.exception, RequestError)
    assert "its rows have a `value` of their own" in str(result.exception)


def test_types_are_shown_with_guarantee_and_options() -> None:
    text = CliRunner().invoke(app, ["sink", "types"]).output
    for part in (
        "connector://HOST:PORT",
        "exactly-once",
        "idempotent",
        "at-least-once",
        "rotate_bytes=size",
        "required",
    ):
        assert part in text


@pytest.mark.usefixtures("patience")
def test_status_shows_sinks_and_why_one_is_not_ready(
    penstock: Run, client: CoordinatorClient, merging: Merging
) -> None:
    penstock("sink", "add", "orders", NOWHERE)
    merging.epoch([b"one"])
    until(lambda: client.sinks()[0].state == "WAITING")
    text = penstock("status").output
    for part in ("SINK", NOWHERE, "WAITING", "1 epoch", "refused"):
        assert part in text
    assert "! pipeline orders is blocked by sink http (1 epoch waits): http://127.0.0.1:1/in" in text
    assert "at-least-once" in penstock("status", "--all").output


@pytest.mark.usefixtures("patience")
def test_all_that_waits_for_a_sink_is_shown_before_it_is_removed(
    penstock: Run, client: CoordinatorClient, merging: Merging
) -> None:
    penstock("sink", "add", "orders", NOWHERE)
    for value in (b"one", b"two", b"three"):
        last = merging.epoch([value])
    until(lambda: client.sinks()[0].state == "WAITING")
    said = penstock("sink", "remove", "orders", "http", answer="n\n").output
    assert "3 epochs that wait for it never reach it" in said
    refused = penstock("epoch", "park", "orders", str(last), "--sink", "http", "--yes").exception
    assert isinstance(refused, PipelineError)
    assert "waits for the epochs before it" in str(refused)


@pytest.mark.usefixtures("patience")
def test_epochs_are_listed_with_what_they_wait_for(penstock: Run, client: CoordinatorClient, merging: Merging) -> None:
    assert penstock("epoch", "list").output == "everything is delivered\n"
    penstock("sink", "add", "orders", NOWHERE)
    number = merging.epoch([b"one"])
    until(lambda: client.sinks()[0].state == "WAITING")
    text = penstock("epoch", "list").output
    assert "orders" in text
    assert "http: http://127.0.0.1:1/in cannot be reached" in text
    (told,) = json.loads(penstock("epoch", "list", "orders", "--json").output)
    assert (told["pipeline"], told["epoch"], told["waiting"][0]["sink"]) == ("orders", number, "http")
    assert isinstance(penstock("epoch", "list", "nobody").exception, PipelineError)


@pytest.mark.usefixtures("patience")
def test_retry_tries_at_once(penstock: Run, client: CoordinatorClient, merging: Merging, server: Server) -> None:
    server.answers = [Answer(503) for _ in range(100)]
    penstock("sink", "add", "orders", f"http://127.0.0.1:{server.port}/in")
    merging.epoch([b"one"])
    until(lambda: client.sinks()[0].state == "WAITING")
    server.answers = []
    before = len(server.posts)
    assert penstock("epoch", "retry", "orders").exit_code == 0
    until(lambda: len(server.posts) > before)
    assert isinstance(penstock("epoch", "park", "orders", "1").exception, PipelineError)


@pytest.mark.usefixtures("patience")
def test_parking_reports_that_it_is_final_how_much_and_where_it_is(
    penstock: Run, client: CoordinatorClient, merging: Merging
) -> None:
    penstock("sink", "add", "orders", NOWHERE)
    number = merging.epoch([b"one"])
    until(lambda: client.sinks()[0].state == "WAITING")
    for wrong in (("99", "--sink", "http"), (str(number), "--sink", "file"), (str(number),)):
        result = penstock("epoch", "park", "orders", *wrong, "--yes")
        assert isinstance(result.exception, PipelineError)
        assert result.exception.hint
    asked = penstock("epoch", "park", "orders", str(number), "--sink", "http", answer="n\n")
    assert asked.exit_code == 1
    assert f"Park epoch {number} of orders (39 B in all ports)? This is final: http will never get it." in asked.output
    assert len(client.epochs("orders")) == 1
    said = penstock("epoch", "park", "orders", str(number), "--sink", "http", answer="y\n").output
    assert "pipeline:orders/parked.http" in said
    until(lambda: client.epochs("orders") == [])
    assert client.sinks()[0].parked == 1


def test_a_run_waits_for_delivery_and_reports_what_is_left(
    worker: RunningWorker, penstock: Run, merging: Merging, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    server.answers = [Answer(503) for _ in range(3)]
    penstock("sink", "add", "orders", f"http://127.0.0.1:{server.port}/in")
    merging.epoch([b"one"])
    wait_for_delivery(f"127.0.0.1:{worker.ports['http']}", ["orders"], said.append)
    assert server.posts[-1][2] == b"one\n"
    assert said == []
    monkeypatch.setattr(pipeline_sinks, "_DELIVERY_SECONDS_MAX", 0.3)
    penstock("sink", "add", "orders", NOWHERE)
    merging.epoch([b"two"])
    wait_for_delivery(f"127.0.0.1:{worker.ports['http']}", ["orders"], said.append)
    assert said == ["orders: 1 epochs are not delivered yet; see penstock epoch list orders"]


class TestRewind:
    """A file sink that was replaced by an older copy, against a worker that still has the output."""

    @pytest.fixture
    def restored(
        self,
        penstock: Run,
        merging: Merging,
        client: CoordinatorClient,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Path:
        """The place of the sink."""
        monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(0.01, 0.05))
        place, older = tmp_path / "results", tmp_path / "older"
        url = f"file:{place}"
        penstock("sink", "add", "orders", "null:", "--name", "other")
        penstock("sink", "add", "orders", url, "--name", "files")
        merging.epoch([b"a", b"b"])
        until(lambda: committed(place) == b"a\nb\n")
        shutil.copytree(place, older)
        merging.epoch([b"c"])
        until(lambda: committed(place) == b"a\nb\nc\n")
        # The worker closes the sink, as a stop would: it has another place for a moment.
        penstock("sink", "add", "orders", f"file:{tmp_path}/elsewhere", "--name", "files")
        until(lambda: (tmp_path / "elsewhere" / "state").exists())
        shutil.rmtree(place)
        shutil.copytree(older, place)
        penstock("sink", "add", "orders", url, "--name", "files")
        until(lambda: [one.state for one in client.sinks() if one.sink == "files"] == ["DIVERGED"])
        return place

    def test_the_status_and_the_command_name_what_was_found_and_what_to_do(
        self, penstock: Run, merging: Merging, restored: Path
    ) -> None:
        sentence = (
            "sink files of pipeline orders is older than the worker's data: "
            "the sink has epoch 0 (transaction orders:0:1, 2 bytes), "
            "the ledger has epoch 1 (transaction orders:1:2, 3 bytes)"
        )
        shown = " ".join(penstock("status").output.split())
        assert sentence in shown
        assert "penstock sink rewind files --pipeline orders --accept-gap" in shown
        assert "DIVERGED" in shown
        done = penstock("sink", "rewind", "files", "--pipeline", "orders")
        assert done.output.endswith(f"\n{sentence}\ndelivering 1 epoch again\n")
        merging.epoch([b"d"])
        until(lambda: committed(restored) == b"a\nb\nc\nd\n")
        refused = penstock("sink", "rewind", "files", "--pipeline", "orders")
        assert isinstance(refused.exception, PipelineError)
        assert str(refused.exception).endswith("there is nothing to rewind")

    def test_a_sink_that_does_not_vote_has_nothing_to_compare(self, penstock: Run, restored: Path) -> None:
        refused = penstock("sink", "rewind", "other")
        assert isinstance(refused.exception, PipelineError)
        assert "does not vote" in str(refused.exception)


def committed(place: Path) -> bytes:
    if not (place / "state").exists():
        return b""
    return b"".join(part.path.read_bytes()[: part.size] for part in read_committed_parts(place))
