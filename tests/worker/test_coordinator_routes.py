"""The coordinator over HTTP, as its client sees it: a real worker, real sockets."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client.coordinator import CoordinatorClient, Cut, InputOffset, InputSpec, Limits, Range, Running, Staged
from penstock.client.segments import SegmentClient
from penstock.client.source import Message, Source
from penstock.core.errors import DataLoss, Fenced, PipelineError, RequestError
from penstock.core.types import NO_EPOCH
from penstock.protocol.connector import stream_id_of
from tests.support.running_worker import RunningWorker, running_worker


@contextmanager
def connected(worker: RunningWorker) -> Iterator[tuple[CoordinatorClient, SegmentClient]]:
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}", 5) as client, SegmentClient(worker.address) as segments:
        yield client, segments


def append(segments: SegmentClient, name: str, *events: bytes) -> int:
    with segments.appender(name, create=True) as appender:
        for event in events:
            appender.append(event)
    return segments.info(name).length


def test_an_epoch_s_life(worker: RunningWorker, client: CoordinatorClient, segments: SegmentClient) -> None:
    end = append(segments, "raw", b"1", b"2")
    run = client.start("p", {"in": InputSpec(["segment:raw"])}, ["out"], Limits(bytes=1000), fresh=True)
    assert run.segment_port == worker.ports["segment"]
    start = client.initial("p", run.generation, "in")
    cut = client.cut("p", run.generation, "in", start, wait_ms=1000)
    assert cut.offset.segments == {"raw": end}
    client.reading("p", run.generation, "in", start, cut.offset)
    assert client.splits([Range("raw", 0, end)], 1).splits == [Range("raw", 0, end)]
    staged = Staged("out", f"staging/p/{run.generation}/0/0-0/out", 0)
    staged = Staged("out", staged.segment, append(segments, staged.segment, b"result"))
    assert client.merge("p", 0, [staged], generation=run.generation).merged
    assert not client.merge("p", 0, [staged], generation=run.generation).merged
    assert [event.data for event in segments.events("pipeline/p/out")] == [b"result"]
    client.complete("p", run.generation, 0)
    client.heartbeat("p", run.generation)
    (status,) = client.pipelines()
    assert (status.name, status.state, status.complete, status.proved, status.lag_bytes) == ("p", "RUNNING", 0, 0, 0)
    assert client.cut("p", run.generation, "in", cut.offset, wait_ms=1).offset == cut.offset
    client.abort("p", 1, generation=run.generation)
    client.heartbeat("p", run.generation, stopped=True)
    assert client.status().pipelines[0].state == "STOPPED"
    client.reset("p")
    client.drop("p")
    assert client.pipelines() == []


def test_the_tasks_of_a_batch_learn_its_epochs_and_watermarks(worker: RunningWorker, client: CoordinatorClient) -> None:
    def sent(after: int | None) -> Iterator[Message]:
        return (Message(number, b"x", number * 1000) for number in range((after or 0) + 1, 3))

    program = Source(f"127.0.0.1:{worker.ports['connector']}", source="s")
    program.stream("a", sent)
    program.run()
    run = client.start("p", {"in": InputSpec(["s"])}, ["out"])
    assert client.running("p", run.generation) == Running(NO_EPOCH, NO_EPOCH, None, None, ["s"])
    start = client.initial("p", run.generation, "in")
    end = client.cut("p", run.generation, "in", start, wait_ms=1000).offset
    assert client.running("p", run.generation) == Running(NO_EPOCH, 0, None, end.watermark, ["s"])
    assert client.running("p") == Running(NO_EPOCH, 0, None, end.watermark, ["s"])
    client.reading("p", run.generation, "in", end, end)
    assert client.running("p") == Running(0, 0, end.watermark, end.watermark, ["s"])
    client.start("p", {"in": InputSpec(["s"])})
    with pytest.raises(Fenced):
        client.running("p", run.generation)
    with pytest.raises(PipelineError, match="pipeline 'nobody' not found"):
        client.running("nobody")


def test_errors_arrive_as_what_they_are(client: CoordinatorClient, segments: SegmentClient) -> None:
    run = client.start("p", {"in": InputSpec(["segment:raw"])})
    client.start("p", {"in": InputSpec(["segment:raw"])})
    with pytest.raises(Fenced, match="was replaced by") as fenced:
        client.heartbeat("p", run.generation)
    assert "Another run of the pipeline" in fenced.value.hint
    with pytest.raises(PipelineError, match="pipeline 'nobody' not found"):
        client.reset("nobody")
    with pytest.raises(RequestError, match="is not a valid source"):
        client.resolve(["connector/s/0"], "latest")
    end = append(segments, "raw", b"1", b"2")
    segments.truncate("raw", 9)
    with pytest.raises(DataLoss):
        client.splits([Range("raw", 0, end)], 1)
    assert client.resolve(["segment:raw"], "earliest") == {"raw": 9}
    assert client.cut_sources(["segment:raw"], {"raw": 9}) == {"raw": 18}


def test_a_worker_that_is_started_again_continues_where_it_was(tmp_path: Path) -> None:
    with running_worker(tmp_path) as first, connected(first) as (client, segments):
        append(segments, "raw", b"1")
        run = client.start("p", {"in": InputSpec(["segment:raw"])}, [])
        start = client.initial("p", run.generation, "in")
        cut = client.cut("p", run.generation, "in", start)
    with running_worker(tmp_path) as second, connected(second) as (client, segments):
        append(segments, "raw", b"2")
        assert client.cut("p", run.generation, "in", start) == cut
        assert client.cut("p", run.generation, "in", cut.offset).offset.epoch == 1


def test_stream_names_are_found_by_their_ids(worker: RunningWorker, client: CoordinatorClient) -> None:
    source = Source(f"127.0.0.1:{worker.ports['connector']}", source="sensors")
    source.stream("kitchen", lambda _: [Message(1, b"warm")])
    source.run()
    assert client.stream_names("sensors", [stream_id_of("kitchen"), 2]) == ["kitchen", ""]
    assert client.stream_names("nobody", [1]) == [""]


def test_a_source_is_acknowledged_when_the_epoch_is_merged_and_not_before(
    worker: RunningWorker, client: CoordinatorClient
) -> None:
    run = client.start("p", {"in": InputSpec(["sensors"])}, ["out"])
    start = client.initial("p", run.generation, "in")
    source = Source(f"127.0.0.1:{worker.ports['connector']}", source="sensors")
    stream = source.stream("kitchen", lambda _: [Message(number, b"warm", 1000 + number) for number in range(1, 11)])
    sending = threading.Thread(target=source.run)
    sending.start()
    cut = client.cut("p", run.generation, "in", start, wait_ms=5000)
    while cut.offset.watermark is None:  # only the mark that the stream has begun
        cut = client.cut("p", run.generation, "in", merged(client, run.generation, cut), wait_ms=5000)
    assert cut.offset.watermark == 1_010_000
    time.sleep(0.05)
    assert stream.acknowledged is None
    assert sending.is_alive()
    merged(client, run.generation, cut)
    while sending.is_alive():
        again = client.cut("p", run.generation, "in", cut.offset, wait_ms=100)
        if again.offset != cut.offset:
            merged(client, run.generation, again)
        cut = again
    assert stream.acknowledged == 10


def merged(client: CoordinatorClient, generation: int, cut: Cut) -> InputOffset:
    assert cut.offset.epoch is not None
    assert client.merge("p", cut.offset.epoch, [], generation=generation).merged
    return cut.offset


def post(worker: RunningWorker, path: str, body: bytes, kind: str = "application/json") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", worker.ports["http"])
    try:
        connection.request("POST", path, body, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/pipelines/p/start", b"", "the body is not JSON"),
        ("/pipelines/p/start", b"[]", "the body is not valid: expected `object`, got `array`"),
        ("/pipelines/p/start", b"{}", "object missing required field `inputs`"),
        (
            "/pipelines/p/start",
            b'{"inputs": {"in": {"sources": ["s"], "starting": "noon"}}}',
            "inputs[...].starting: invalid enum value 'noon'",
        ),
        (
            "/pipelines/p/start",
            b'{"inputs": {}, "limits": {"bytes": 0}, "request": "r"}',
            "limits.bytes: expected `int` >= 1",
        ),
        ("/pipelines/p/start", b'{"inputs": {}, "request": ""}', "the start has no request text"),
        ("/pipelines/p/initial", b'{"generation": "1", "input": "in"}', "generation: expected `int`, got `str`"),
        ("/pipelines/p/initial", b'{"generation": true, "input": "in"}', "generation: expected `int`, got `bool`"),
        (
            "/pipelines/p/cut",
            b'{"generation": 1, "input": "in", "start": {}}',
            "start: object missing required field `segments`",
        ),
        ("/pipelines/p/merge", b'{"generation": null, "batch": -1, "staged": []}', "batch: expected `int` >= 0"),
        ("/pipelines/p/merge", b'{"batch": 1, "staged": [7]}', "staged[0]: expected `object`, got `int`"),
        (
            "/pipelines/p/merge",
            b'{"batch": 9223372036854775808, "staged": []}',
            "batch: expected `int` <= 9223372036854775807",
        ),
        ("/pipelines/p/start", b"[" * 100_000, "expected `object`, got `array`"),
        ("/pipelines/p/start", b'{"inputs": {}, "request": "\\ud800"}', "the body is not JSON"),
        (
            "/pipelines/p/cut",
            b'{"generation":1,"input":"in","start":{"segments":{},"epoch":true,"incarnation":1,"watermark":null}}',
            "start.epoch: expected `int | null`, got `bool`",
        ),
        (
            "/sources/cut",
            b'{"sources": ["s"], "start": {"connector/s/0": 9223372036854775808}}',
            "start[...]: expected `int` <= 9223372036854775807",
        ),
        ("/splits", b'{"ranges": [["a", 5, 1]], "parts": 1}', "ranges[0]: the range ends before it starts"),
        ("/sources/resolve", b'{"sources": [1], "position": "latest"}', "sources[0]: expected `str`, got `int`"),
        ("/pipelines/p/drop", b'{"outputz": true}', "object contains unknown field `outputz`"),
        ("/sources/s/streams", b'{"ids": ["1"]}', "ids[0]: expected `int`, got `str`"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_a_reason(worker: RunningWorker, path: str, body: bytes, why: str) -> None:
    status, answer = post(worker, path, body)
    assert status == 400
    assert why in answer["error"]
    assert answer["kind"] == "RequestError"


def test_what_a_browser_may_send_without_asking_is_refused(worker: RunningWorker) -> None:
    status, answer = post(worker, "/pipelines/p/drop", b"{}", "text/plain")
    assert (status, answer["kind"]) == (400, "RequestError")
    assert "content type" in answer["error"]


def test_metrics_and_status_show_every_pipeline(client: CoordinatorClient, worker: RunningWorker) -> None:
    client.start("p", {"in": InputSpec(["s"])})
    connection = http.client.HTTPConnection("127.0.0.1", worker.ports["http"])
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    assert 'penstock_pipeline_lag_bytes{pipeline="p"} 0.0' in text
    assert 'penstock_pipeline_running{pipeline="p"} 1.0' in text
    status = client.status()
    assert [one.name for one in status.pipelines] == ["p"]
    assert status.blockages == []
