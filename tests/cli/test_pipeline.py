"""`penstock pipeline`, against a worker in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.worker_options import parse_retention
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import SegmentClient
from penstock.coordinator.ledger import stored_state
from penstock.coordinator.machine.state import Retention
from penstock.core.errors import PipelineError, Unavailable
from penstock.protocol.api.pipelines import BucketNumbers
from penstock.store.files import RealFiles
from tests.support.running_worker import RunningWorker, running_worker

Run = Callable[..., Result]


@pytest.fixture
def pipeline(worker: RunningWorker) -> Run:
    def run(*arguments: str, answer: str = "") -> Result:
        address = f"127.0.0.1:{worker.ports['http']}"
        return CliRunner().invoke(app, ["pipeline", *arguments, "--worker", address], input=answer)

    return run


def test_list_shows_what_each_pipeline_does(pipeline: Run, client: CoordinatorClient) -> None:
    assert pipeline("list").output == "no pipelines\n"
    client.start("counts", {"in": InputSpec(["sensors"])}, ["out"])
    text = pipeline("list").output
    assert "counts" in text
    assert "STARTING" in text, "it has not asked for an epoch yet"
    (told,) = json.loads(pipeline("list", "--json").output)
    assert (told["name"], told["generation"], told["inputs"]) == ("counts", 1, {"in": ["sensors"]})


def stopped(client: CoordinatorClient) -> None:
    """A pipeline that was started once."""
    started = client.start("counts", {"in": InputSpec(["segment:sensors"])}, ["out"])
    client.heartbeat("counts", started.generation, stopped=True)


def test_a_running_pipeline_is_not_reset(pipeline: Run, client: CoordinatorClient) -> None:
    started = client.start("counts", {"in": InputSpec(["sensors"])}, ["out"])
    result = pipeline("reset", "counts", "--yes")
    assert str(result.exception) == "counts is starting"
    assert isinstance(result.exception, PipelineError)
    assert "Stop it first" in result.exception.hint
    client.heartbeat("counts", started.generation, failed=True)
    assert client.pipelines()[0].state == "FAILING", "it is known at once"
    assert pipeline("reset", "counts", "--yes").exit_code == 0


def test_reset_reports_how_much_input_is_left_and_needs_consent_if_some_is_gone(
    pipeline: Run, client: CoordinatorClient, segments: SegmentClient
) -> None:
    segments.create("sensors")
    with segments.appender("sensors") as appender:
        for _ in range(4):
            appender.append(b"x" * 504)
            appender.flush()
    stopped(client)
    info = segments.info("sensors")
    assert "2.0 KiB of 2.0 KiB of its input is still stored" in pipeline("reset", "counts", answer="n\n").output
    segments.truncate("sensors", info.length // 2)
    result = pipeline("reset", "counts", "--yes")
    assert result.output.endswith("\n1.0 KiB of 2.0 KiB of its input is still stored\n")
    assert "retention has removed 1.0 KiB of its input" in str(result.exception)
    assert client.pipelines()[0].incarnation == 1
    result = pipeline("reset", "counts", "--yes", "--accept-partial")
    assert result.exit_code == 0
    assert client.pipelines()[0].incarnation == 2


def test_reset_and_drop_ask_first(pipeline: Run, client: CoordinatorClient) -> None:
    stopped(client)
    for verb in ("reset", "drop"):
        assert pipeline(verb, "counts", answer="n\n").exit_code == 1
    assert client.pipelines()[0].incarnation == 1
    result = pipeline("reset", "counts", answer="y\n")
    assert result.output.endswith(
        "counts is reset: its next start renames the old checkpoint and starts from scratch\n"
    )
    assert client.pipelines()[0].incarnation == 2
    assert pipeline("drop", "counts", "--yes", "--outputs").stdout == "dropped counts\n"
    assert client.pipelines() == []


def test_fork_reports_where_the_new_one_starts_and_what_it_does_not_have(
    pipeline: Run, client: CoordinatorClient, segments: SegmentClient
) -> None:
    segments.create("sensors")
    with segments.appender("sensors") as appender:
        appender.append(b"x" * 500)
    started = client.start("counts", {"in": InputSpec(["segment:sensors"])}, ["out"])
    refused = pipeline("fork", "counts", "again")
    assert str(refused.exception) == "pipeline 'counts' has not committed an epoch"
    cut = client.cut("counts", started.generation, "in", client.initial("counts", started.generation, "in"))
    client.merge("counts", 0, [], generation=started.generation)
    windows = [BucketNumbers(bucket=0, open_windows=3, keys=3, state_bytes=9, late_kept=0, late_dropped=0, waiting=3)]
    client.report_windows("counts", "hourly", 0, windows, generation=started.generation)
    said = pipeline("fork", "counts", "again").stdout
    assert said.splitlines() == [
        "again starts where counts is: after epoch 0",
        "counts has 3 windows open: in again they contain only events from here on",
        "counts is running, and keeps running: both process new events",
        "acknowledgements and retention wait for again from now on: start it, or penstock pipeline drop again",
    ]
    told = json.loads(pipeline("fork", "counts", "other", "--json").stdout)
    assert told == {"pipeline": "other", "forked_from": "counts", "epoch": 0}
    forked = client.start("again", {"in": InputSpec(["segment:sensors"])}, ["out"])
    assert client.initial("again", forked.generation, "in").segments == cut.offset.segments
    assert "exists already" in str(pipeline("fork", "counts", "again").exception)
    assert "not found" in str(pipeline("fork", "nobody", "third").exception)


def test_a_pipeline_that_is_not_there_is_an_error_with_a_hint(pipeline: Run) -> None:
    for verb in ("reset", "drop"):
        result = pipeline(verb, "nobody", "--yes")
        assert isinstance(result.exception, PipelineError)
        assert "penstock pipeline list" in result.exception.hint


def test_retention_is_written_as_people_do() -> None:
    assert parse_retention("complete") == Retention("complete")
    assert parse_retention("Keep") == Retention("keep")
    assert parse_retention("7d") == Retention("time", 7 * 86_400 * 1_000_000)
    assert parse_retention("90 m") == Retention("time", 90 * 60 * 1_000_000)
    assert parse_retention("10GiB") == Retention("size", 10 << 30)
    with pytest.raises(typer.BadParameter, match="write complete, keep, a time like 7d"):
        parse_retention("long")


@pytest.mark.process
def test_data_that_no_worker_serves_gets_one_for_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C in `penstock run`, which ends its own worker."""
    monkeypatch.chdir(tmp_path)
    with (
        running_worker(Path("penstock-data")) as running,
        CoordinatorClient(f"127.0.0.1:{running.ports['http']}") as at,
    ):
        stopped(at)
    result = CliRunner().invoke(app, ["pipeline", "reset", "counts", "--yes"])
    assert result.exit_code == 0, result.exception
    assert "no worker runs on penstock-data: one is started for this command" in result.stderr
    assert "counts is reset" in result.stdout
    files = RealFiles(Path("penstock-data/journal"), create=False)
    assert stored_state(files).retention == Retention("keep"), "a worker with the default might remove something"
    files.close()
    with (
        running_worker(Path("penstock-data")) as running,
        CoordinatorClient(f"127.0.0.1:{running.ports['http']}") as at,
    ):
        assert at.pipelines()[0].incarnation == 2


@pytest.mark.parametrize("verb", [("reset", "p"), ("drop", "p"), ("fork", "p", "q")])
def test_a_directory_that_is_not_a_worker_s_stays_as_it_is(verb: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(app, ["pipeline", *verb, "--yes", "--data", str(tmp_path)])
    assert isinstance(result.exception, Unavailable)
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
