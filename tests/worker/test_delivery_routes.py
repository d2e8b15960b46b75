"""Sinks and epochs over HTTP, as the client sees them: a real worker, real sinks."""

import http.client
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient, SinkSpec, SinkStatus
from penstock.client.segments import SegmentClient
from penstock.connectors.file import read_committed_parts
from penstock.core.errors import PipelineError, RequestError
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff
from tests.connectors.http_server import Answer, Server, serving
from tests.delivery.merging import Merging
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import SECONDS_MAX, until


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


def committed(path: Path) -> bytes:
    return b"".join(part.path.read_bytes()[: part.size] for part in read_committed_parts(path))


def the_sink(client: CoordinatorClient) -> SinkStatus:
    (one,) = client.sinks()
    return one


def test_an_epoch_reaches_a_file_that_was_bound_before_the_first_start(
    client: CoordinatorClient, segments: SegmentClient, tmp_path: Path
) -> None:
    client.bind("p", {"results": SinkSpec("out", f"file:{tmp_path}/results")})
    client.bind("p", {"results": SinkSpec("out", f"file:{tmp_path}/results")})
    Merging(client, segments, "p").epoch([b"one", b"two"])
    until(lambda: the_sink(client).sent == 6)  # it is decided; the sink hears of it in a moment
    until(lambda: committed(tmp_path / "results") == b"one\ntwo\n")
    told = the_sink(client)
    assert (told.pipeline, told.sink, told.port, told.guarantee, told.votes) == (
        "p",
        "results",
        "out",
        "exactly-once",
        True,
    )
    assert (told.url, told.parked) == (f"file:{tmp_path}/results", 0)
    until(lambda: the_sink(client).state == "READY")
    assert client.epochs("p") == []


def test_an_epoch_that_a_sink_refuses_is_shown_retried_and_parked(
    client: CoordinatorClient, segments: SegmentClient, server: Server
) -> None:
    server.answers = [Answer(422, body=b"no such column") for _ in range(100)]
    client.bind("p", {"web": SinkSpec("out", f"http://127.0.0.1:{server.port}/in?token=hush")})
    pipeline = Merging(client, segments, "p")
    number = pipeline.epoch([b"bad"])
    until(lambda: the_sink(client).state == "WAITING")
    (epoch,) = client.epochs("p")
    (waiting,) = epoch.waiting
    assert (epoch.epoch, waiting.sink, waiting.port) == (number, "web", "out")
    assert "replied 422 Unprocessable Entity: no such column" in waiting.reason
    assert "hush" not in str(client.status().sinks)
    tried = len(server.posts)
    client.retry("p")
    until(lambda: len(server.posts) > tried)
    client.park("p", number, "web")
    until(lambda: client.epochs("p") == [])
    server.answers = []
    pipeline.epoch([b"good"])
    until(lambda: the_sink(client).sent == 4)
    assert server.posts[-1][2] == b"good\n"
    assert the_sink(client).parked == 1
    assert segments.info("pipeline/p/parked.web").length > 0


def test_a_sink_that_is_unbound_gets_nothing_more_and_blocks_nothing(
    client: CoordinatorClient, segments: SegmentClient
) -> None:
    client.bind("p", {"web": SinkSpec("out", "http://127.0.0.1:1/in")})
    Merging(client, segments, "p").epoch([b"one"])
    until(lambda: len(client.epochs("p")) == 1)
    client.unbind("p", "web")
    assert client.sinks() == []
    assert client.epochs("p") == []


def test_one_place_is_not_bound_under_two_names(client: CoordinatorClient, tmp_path: Path) -> None:
    a, b = (SinkSpec("out", f"file:{tmp_path}/{name}") for name in "ab")
    client.bind("p", {"file": a, "file-2": b})
    with pytest.raises(PipelineError, match="is bound to this URL already, as sink 'file-2'") as caught:
        client.bind("p", {"file": b})  # as a list of URLs from which the first was taken
    assert "penstock sink remove p file-2" in caught.value.hint
    with pytest.raises(PipelineError, match="already, as sink 'file-2'"):
        client.bind("p", {"file": b, "file-2": a})  # the list in another order: each has a history of its own
    assert [one.url for one in client.sinks()] == [a.url, b.url]


def test_bindings_survive_the_worker(tmp_path: Path) -> None:
    with running_worker(tmp_path / "data") as first, CoordinatorClient(f"127.0.0.1:{first.ports['http']}", 5) as client:
        client.bind("p", {"a": SinkSpec("out", f"file:{tmp_path}/a"), "b": SinkSpec("late", "stdout:")})
    with running_worker(tmp_path / "data") as again, CoordinatorClient(f"127.0.0.1:{again.ports['http']}", 5) as client:
        assert [(one.sink, one.port, one.guarantee) for one in client.sinks()] == [
            ("a", "out", "exactly-once"),
            ("b", "late", "at-least-once"),
        ]


def test_all_mistakes_are_reported_and_nothing_is_bound(client: CoordinatorClient) -> None:
    sinks = {
        "good": SinkSpec("out", "stdout:"),
        "bad": SinkSpec("out", "fil:x"),
        "worse": SinkSpec("out", "stdout:?formt=json"),
        "no/name": SinkSpec("out", "stdout:"),
        "place": SinkSpec("o u t", "stdout:"),
    }
    with pytest.raises(RequestError) as caught:
        client.bind("p", sinks)
    for text in (
        'unknown sink type "fil"',
        'unknown option "formt"',
        "'no/name' is not a valid",
        "'o u t' is not a valid",
    ):
        assert text in str(caught.value)
    assert 'Did you mean "file"?' in caught.value.hint
    assert client.sinks() == []


def test_something_missing_is_reported(client: CoordinatorClient, segments: SegmentClient) -> None:
    with pytest.raises(PipelineError, match="nobody"):
        client.epochs("nobody")
    with pytest.raises(PipelineError, match="nobody"):
        client.unbind("nobody", "web")
    with pytest.raises(PipelineError, match="nobody"):
        client.park("nobody", 1)
    Merging(client, segments, "p")
    with pytest.raises(PipelineError):
        client.unbind("p", "web")
    with pytest.raises(PipelineError):
        client.park("p", 1, "web")


@pytest.mark.parametrize(
    ("verb", "body", "said"),
    [
        ("bind", {}, "object missing required field `sinks`"),
        ("bind", {"sinks": {"s": "file:x"}}, "sinks[...]: expected `object`, got `str`"),
        ("bind", {"sinks": {"s": {"url": "file:x"}}}, "sinks[...]: object missing required field `port`"),
        ("bind", {"sinks": {"s": {"url": 5, "port": "out"}}}, "sinks[...].url: expected `str`, got `int`"),
        ("unbind", {}, "object missing required field `sink`"),
        ("park", {"epoch": "5"}, "epoch: expected `int`, got `str`"),
        ("park", {"epoch": -1}, "epoch: expected `int` >= 0"),
    ],
)
def test_a_wrong_body_is_refused(worker: RunningWorker, verb: str, body: object, said: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", worker.ports["http"], timeout=SECONDS_MAX)
    connection.request("POST", f"/pipelines/p/{verb}", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    assert answer.status == 400
    assert said in told["error"]


def test_metrics_report_the_state_of_sinks(
    worker: RunningWorker, client: CoordinatorClient, segments: SegmentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(1000.0, 1000.0))  # it waits for as long as one looks
    client.bind("p", {"web": SinkSpec("out", "http://127.0.0.1:1/in")})
    Merging(client, segments, "p").epoch([b"one"])
    until(lambda: the_sink(client).state == "WAITING")
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.ports['http']}/metrics", timeout=SECONDS_MAX) as answer:
        lines = answer.read().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith(("penstock_sink", "penstock_pipeline_undel")))
    label = '{pipeline="p",sink="web"}'
    assert found[f"penstock_sink_lost{label}"] == "1.0"
    assert found[f"penstock_sink_refused{label}"] == "0.0"
    assert found[f"penstock_sink_sent_bytes_total{label}"] == "0.0"
    assert found[f"penstock_sink_parked_epochs_total{label}"] == "0.0"
    assert float(found[f"penstock_sink_failed_tries{label}"]) >= 1
    assert found['penstock_pipeline_undelivered_epochs{pipeline="p"}'] == "1.0"
