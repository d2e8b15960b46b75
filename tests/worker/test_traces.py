"""Traces of epochs, as a collector receives them from a real worker. The driver is scripted: there is no Spark."""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from penstock.client.coordinator import CoordinatorClient, InputSpec, SinkSpec, Staged
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.coordinator.spans import Span, SpanContext
from penstock.core.logs import hide_in_logs
from penstock.worker import otlp
from penstock.worker.otlp import OtlpExporter
from penstock.worker.traces import trace_exporter
from tests.application.deployments import connector, deployed, link, pipeline
from tests.connectors.http_server import Answer, Server, serving
from tests.coordinator.scene import stored
from tests.spark.sending import send
from tests.support.collector import Collector, Received, collecting
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess
from tests.worker.test_flow_metrics import metrics

PHASES = ["cut", "spark", "merge", "deliver", "complete"]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Workers that start from now on export to it."""
    with collecting() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield running


class Driver:
    """Runs a pipeline with the output port `out`, as Spark would: cut, stage, merge."""

    def __init__(self, http: str, segments: str, name: str, *sources: str) -> None:
        self._http, self._segments, self._name, self._sources = http, segments, name, sources

    def begin(self) -> None:
        """Start a generation, and get the next cut."""
        with CoordinatorClient(self._http, 20) as client:
            started = client.start(self._name, {"in": InputSpec([*self._sources])}, ["out"])
            self._generation = started.generation
            self._at = client.initial(self._name, self._generation, "in")
            self._cut(client)

    def cut(self) -> None:
        with CoordinatorClient(self._http, 20) as client:
            self._cut(client)

    def _cut(self, client: CoordinatorClient) -> None:
        self._at = client.cut(self._name, self._generation, "in", self._at, wait_ms=5000).offset

    def merge(self, rows: int = 3) -> None:
        epoch = self._at.epoch
        assert epoch is not None
        staged = f"staging/{self._name}/{self._generation}/{epoch}/0-0/out"
        with CoordinatorClient(self._http, 20) as client, SegmentClient(self._segments) as segments:
            with segments.appender(staged, create=True) as appender:
                for number in range(rows):
                    appender.append(stored(1, number + 1, 0)[8:])
            length = segments.info(staged).length
            client.merge(self._name, epoch, [Staged("out", staged, length, rows)], generation=self._generation)


def driver_of(worker: RunningWorker, name: str, *sources: str) -> Driver:
    return Driver(f"127.0.0.1:{worker.ports['http']}", worker.address, name, *sources)


def fill(segments: SegmentClient) -> None:
    """The segment `raw`, with an event."""
    segments.create("raw")
    with segments.appender("raw") as appender:
        appender.append(b"input")


def only(spans: Sequence[Received]) -> Received:
    assert len(spans) == 1, spans
    return spans[0]


def the_epoch(collector: Collector, name: str, number: int = 0) -> Received:
    until(lambda: collector.named("epoch", pipeline=name, epoch=number))
    return only(collector.named("epoch", pipeline=name, epoch=number))


def phases(collector: Collector, epoch: Received) -> dict[str, Received]:
    return {one.name: one for one in collector.spans if one.parent_id == epoch.span_id}


def test_an_epoch_is_a_trace_with_a_span_for_each_phase(
    collector: Collector, worker: RunningWorker, client: CoordinatorClient, tmp_path: Path
) -> None:
    client.bind("counts", {"files": SinkSpec("out", f"file:{tmp_path}/results")})
    send(f"127.0.0.1:{worker.ports['connector']}", "shops", "north", [b"order"] * 20)
    driver = driver_of(worker, "counts", "shops")
    driver.begin()
    driver.merge()
    epoch = the_epoch(collector, "counts")
    until(lambda: collector.named("sink"))
    assert {one.trace_id for one in collector.spans} == {epoch.trace_id}
    assert (epoch.parent_id, epoch.error, epoch.service) == ("", "", "penstock")
    found = phases(collector, epoch)
    assert sorted(found) == sorted(PHASES)
    in_order = [found[name] for name in PHASES]
    assert all(one.start <= one.end <= epoch.end for one in in_order)
    assert all(one.end <= after.start for one, after in pairwise(in_order))
    assert epoch.start <= in_order[0].start
    shown = epoch.attributes
    assert (shown["penstock.rows"], shown["penstock.incarnation"]) == (20, 1)
    assert shown["penstock.generation"] == found["spark"].attributes["penstock.generation"] > 0
    assert shown["penstock.bytes"] > 20 * len(b"order")
    (range_,) = shown["penstock.ranges"]
    assert range_.startswith("connector/shops/")
    assert range_.endswith(f" [0, {shown['penstock.bytes']})")
    assert found["merge"].attributes["penstock.output.rows"] == 3
    sink = only(collector.named("sink"))
    assert sink.parent_id == found["deliver"].span_id
    assert sink.attributes == {
        "penstock.sink": "files",
        "penstock.attempt": 1,
        "penstock.vote": "yes",
        "penstock.decision": "commit",
    }
    until(lambda: metrics(worker)("traces_spans_exported_total") == len(PHASES) + 2)
    assert metrics(worker)("traces_spans_dropped_total") == 0


def test_each_attempt_to_deliver_is_a_span_and_a_failed_one_reports_why(
    collector: Collector, worker: RunningWorker, client: CoordinatorClient, segments: SegmentClient
) -> None:
    fill(segments)
    with serving() as server:
        server.answers = [Answer(503, body=b"later")]
        client.bind("p", {"web": SinkSpec("out", f"http://127.0.0.1:{server.port}/in")})
        driver = driver_of(worker, "p", "segment:raw")
        driver.begin()
        driver.merge()
        epoch = the_epoch(collector, "p")
        until(lambda: len(collector.named("sink", sink="web")) == 2)
    failed, succeeded = sorted(collector.named("sink"), key=lambda one: one.start)
    assert "503" in failed.error
    assert "later" in failed.error
    assert succeeded.error == ""
    assert phases(collector, epoch)["deliver"].attributes == {"penstock.attempts": 2}


def test_an_epoch_links_to_the_upstream_epochs_whose_output_it_holds(
    collector: Collector, worker: RunningWorker, segments: SegmentClient
) -> None:
    segments.create("raw")
    first, second = driver_of(worker, "first", "segment:raw"), driver_of(worker, "second", "pipeline:first/out")
    with segments.appender("raw") as appender:
        appender.append(b"one")
        appender.flush()
        first.begin()
        first.merge()
        appender.append(b"two")
        appender.flush()
        first.cut()
        first.merge()
    second.begin()
    second.merge()
    held = [the_epoch(collector, "first", number) for number in (0, 1)]
    assert sorted(the_epoch(collector, "second").links) == sorted((one.trace_id, one.span_id) for one in held)
    assert held[0].links == []


def test_an_epoch_links_to_the_requests_that_it_holds(collector: Collector, tmp_path: Path) -> None:
    port = free_port()
    web = connector("web", "http-server", config={"port": port}, codec="binary", ack="durable")
    application = deployed(web, connector("out"), pipeline("p"), link("connector/web/out", "pipeline/p/in"))
    with running_worker(tmp_path / "data") as worker:
        with ApplicationClient(f"127.0.0.1:{worker.ports['http']}") as client:
            client.apply(application)
            until(lambda: {one.name: one.state for one in client.status().connectors}["web"] == "connected")
        parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
        for header in (parent, "00-not-a-traceparent"):
            answer = httpx.post(f"http://127.0.0.1:{port}/", content=b"x", headers={"traceparent": header}, timeout=30)
            assert answer.is_success, answer.text
        driver = driver_of(worker, "p", "web")
        driver.begin()
        driver.merge()
        assert the_epoch(collector, "p").links == [("ab" * 16, "cd" * 8)]


@pytest.mark.process
def test_an_epoch_that_a_killed_worker_left_is_completed_in_the_same_trace(
    collector: Collector, server: Server, tmp_path: Path
) -> None:
    server.answers = [Answer(503) for _ in range(10_000)]
    with WorkerProcess(tmp_path / "data") as process:
        http = f"127.0.0.1:{process.http_port}"
        with CoordinatorClient(http, 20) as client, SegmentClient(process.address) as segments:
            fill(segments)
            client.bind("p", {"web": SinkSpec("out", f"http://127.0.0.1:{server.port}/in")})
        driver = Driver(http, process.address, "p", "segment:raw")
        driver.begin()
        driver.merge()
        until(lambda: collector.named("merge") and collector.named("sink"))
        assert not collector.named("epoch")
        process.kill()
        server.answers = []
        process.start()
        epoch = the_epoch(collector, "p")
        assert epoch.attributes["penstock.resumed"]
        until(lambda: any(not one.error for one in collector.named("sink")))
        assert {one.trace_id for one in collector.spans} == {epoch.trace_id}
        assert sorted(phases(collector, epoch)) == sorted(PHASES)


def test_a_run_of_spark_that_was_replaced_is_a_failed_span_of_the_trace(
    collector: Collector, worker: RunningWorker, segments: SegmentClient
) -> None:
    fill(segments)
    driver = driver_of(worker, "p", "segment:raw")
    driver.begin()
    driver.begin()
    driver.merge()
    epoch = the_epoch(collector, "p")
    runs = sorted((one for one in collector.named("spark")), key=lambda one: one.start)
    assert [one.error for one in runs] == ["replaced by generation 2", ""]
    assert {one.parent_id for one in runs} == {epoch.span_id}
    assert epoch.attributes["penstock.generation"] == 2


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


def test_a_reset_pipeline_leaves_failed_epochs_and_new_traces(
    collector: Collector, worker: RunningWorker, client: CoordinatorClient, segments: SegmentClient
) -> None:
    fill(segments)
    driver = driver_of(worker, "p", "segment:raw")
    driver.begin()
    client.reset("p")
    driver.begin()
    driver.merge()
    until(lambda: len(collector.named("epoch")) == 2)
    abandoned, complete = sorted(collector.named("epoch"), key=lambda one: one.start)
    assert (abandoned.error, complete.error) == ("the pipeline was reset or dropped", "")
    assert abandoned.trace_id != complete.trace_id


def test_an_unavailable_collector_delays_nothing_and_its_spans_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with running_worker(tmp_path / "data") as worker, SegmentClient(worker.address) as segments:
        fill(segments)
        driver = driver_of(worker, "p", "segment:raw")
        driver.begin()
        driver.merge()
        until(lambda: (metrics(worker)("traces_spans_dropped_total") or 0) > 0)
        assert metrics(worker)("pipeline_complete", pipeline="p") == 0
        assert metrics(worker)("traces_spans_exported_total") == 0


async def test_spans_beyond_the_queue_are_dropped_and_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "QUEUE_MAX", 10)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    collector.accepts.clear()
    exporter = OtlpExporter()
    for number in range(25):
        at = time.time_ns()
        exporter.export(Span(name="epoch", context=SpanContext(1, number + 1), parent=None, start_ns=at, end_ns=at + 1))
    assert exporter.status().spans_dropped == 15
    assert exporter.status().spans_queued == 10
    logged = [one.getMessage() for one in caplog.records]
    assert logged.count("spans are dropped: 10 of them wait for the collector") == 1
    collector.accepts.set()
    await exporter.stop()
    assert exporter.status().spans_exported == 10
    assert [one.span_id for one in collector.spans] == [f"{number + 1:016x}" for number in range(10)]


class Knows:
    hidden_in_logs: ClassVar = {"hunter2": "${PASSWORD}"}


async def test_the_reason_of_a_failure_has_no_secret_and_is_cut(collector: Collector) -> None:
    holder = Knows()
    hide_in_logs(holder)
    exporter, at = OtlpExporter(), time.time_ns()
    reason = "refused: hunter2 " + "x" * 100_000
    failed = Span(name="sink", context=SpanContext(1, 1), parent=None, start_ns=at, end_ns=at + 1, error=reason)
    exporter.export(failed)
    await exporter.stop()
    (received,) = collector.spans
    assert received.error.startswith("refused: ${PASSWORD} xxx")
    assert len(received.error) < 5000


def test_without_the_extra_the_worker_runs_and_logs_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "penstock.worker.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert trace_exporter({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}) is None
    assert [one.getMessage() for one in caplog.records] == [
        "no traces are exported: opentelemetry is not installed. pip install 'penstock-streams[otel]'"
    ]


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, ""),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, ""),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'; only otlp and none are supported"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "the OTLP protocol is 'grpc'; only http/protobuf is supported",
        ),
    ],
)
def test_there_are_no_traces_unless_the_environment_asks_for_what_is_supported(
    environment: dict[str, str], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert trace_exporter(environment) is None
    logged = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert logged == ([f"no traces are exported: {problem}"] if problem else [])


@pytest.mark.process
def test_a_worker_without_traces_does_not_import_opentelemetry() -> None:
    program = "import sys, penstock.worker.worker; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
