"""How long the starts of pipelines took, in a file beside the data."""

from pathlib import Path

from penstock.client.coordinator import CoordinatorClient
from penstock.coordinator.heartbeats import DEFAULT_START_SECONDS
from penstock.protocol.api.pipelines import InputSpec
from penstock.worker.flow import StartTimes
from tests.support.running_worker import running_worker


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    times = StartTimes(tmp_path)
    assert times.seconds("p") == DEFAULT_START_SECONDS
    times.keep("p", 7.25)
    assert StartTimes(tmp_path).seconds("p") == 7.2
    assert StartTimes(tmp_path).seconds("never started") == 7.2, "most of a start is Spark's"


def test_a_file_that_cannot_be_read_or_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "starts.json").write_text('["p"]')
    assert StartTimes(tmp_path).seconds("p") == DEFAULT_START_SECONDS
    times = StartTimes(tmp_path / "nowhere")
    times.keep("p", 3)
    assert times.seconds("p") == 3


def test_the_worker_reports_pipelines_that_are_starting_until_they_ask_for_an_epoch(tmp_path: Path) -> None:
    with (
        running_worker(tmp_path / "data") as worker,
        CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client,
    ):
        client.announce({"p": ["s"]})
        (told,) = client.status().starting
        assert (told.name, told.sources) == ("p", ["s"])
        assert told.ready_in_seconds is not None
        assert 0 < told.ready_in_seconds <= DEFAULT_START_SECONDS
        run = client.start("p", {"in": InputSpec(["s"])}, ["out"])
        assert client.pipelines()[0].state == "STARTING"
        client.cut("p", run.generation, "in", client.initial("p", run.generation, "in"))
        assert client.pipelines()[0].state == "RUNNING"
        assert client.status().starting == []
    assert (tmp_path / "data" / "starts.json").exists()
