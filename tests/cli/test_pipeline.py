"""`penstock pipeline`, against a worker in this process."""

import json
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.retention import parse_retention
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.coordinator.machine.retention import Retention
from penstock.core.errors import PipelineError
from tests.running_worker import RunningWorker

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


def test_reset_and_drop_ask_first(pipeline: Run, client: CoordinatorClient) -> None:
    client.start("counts", {"in": InputSpec(["sensors"])}, ["out"])
    for verb in ("reset", "drop"):
        assert pipeline(verb, "counts", answer="n\n").exit_code == 1
    assert client.pipelines()[0].incarnation == 1
    assert "delete its checkpoint" in pipeline("reset", "counts", answer="y\n").output
    assert client.pipelines()[0].incarnation == 2
    assert pipeline("drop", "counts", "--yes", "--outputs").stdout == "dropped counts\n"
    assert client.pipelines() == []


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
