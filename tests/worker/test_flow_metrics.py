"""What flows through a real worker, in /status and /metrics: rates, rows, how long epochs take, latency."""

import urllib.request
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.connect import get_json
from penstock.client.coordinator import CoordinatorClient, InputSpec, SinkSpec, Staged
from penstock.client.segments import SegmentClient
from tests.coordinator.scene import stored
from tests.spark.sending import send
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX, until

ROWS_OUT = 3


def metrics(worker: RunningWorker) -> Callable[..., float | None]:
    """The value of a sample by its name and labels; None if there is none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.ports['http']}/metrics", timeout=SECONDS_MAX) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    samples = [sample for family in families for sample in family.samples]

    def value(name: str, **labels: str) -> float | None:
        return next((s.value for s in samples if s.name == f"penstock_{name}" and s.labels == labels), None)

    return value


def run_epoch(client: CoordinatorClient, segments: SegmentClient) -> None:
    """Of pipeline `counts` on source `shops`, as Spark would: cut, staged, merged."""
    generation = client.start("counts", {"in": InputSpec(["shops"])}, ["out"]).generation
    client.cut("counts", generation, "in", client.initial("counts", generation, "in"), wait_ms=5000)
    staged = f"staging/counts/{generation}/0/0-0/out"
    with segments.appender(staged, create=True) as appender:
        for number in range(ROWS_OUT):
            appender.append(stored(1, number + 1, 0)[8:])
    length = segments.info(staged).length
    client.merge("counts", 0, [Staged("out", staged, length, ROWS_OUT)], generation=generation)


def test_an_epoch_shows_in_rates_and_metrics(
    worker: RunningWorker, client: CoordinatorClient, segments: SegmentClient, tmp_path: Path
) -> None:
    client.bind("counts", {"files": SinkSpec("out", f"file:{tmp_path}/results")})
    send(f"127.0.0.1:{worker.ports['connector']}", "shops", "north", [b"order"] * 20)
    run_epoch(client, segments)
    until(lambda: metrics(worker)("pipeline_epoch_duration_seconds_count", pipeline="counts") == 1)
    value = metrics(worker)
    assert value("source_events_total", source="shops") == 20
    assert value("pipeline_rows_in_total", pipeline="counts") == 20
    assert value("pipeline_rows_out_total", pipeline="counts", port="out") == ROWS_OUT
    assert value("sink_rows_total", pipeline="counts", sink="files") == ROWS_OUT
    assert value("sink_epochs_total", pipeline="counts", sink="files") == 1
    for stage in ("process", "deliver"):
        assert value("pipeline_epoch_stage_duration_seconds_count", pipeline="counts", stage=stage) == 1
    latency = value("pipeline_end_to_end_latency_seconds_sum", pipeline="counts")
    duration = value("pipeline_epoch_duration_seconds_sum", pipeline="counts")
    assert latency is not None
    assert duration is not None
    assert latency >= duration > 0
    assert value("pipeline_end_to_end_latency_seconds_bucket", pipeline="counts", le="+Inf") == 1

    rates = get_json(f"127.0.0.1:{worker.ports['http']}", "/status")["rates"]
    assert rates["seconds"] > 0
    assert rates["sources"]["shops"]["events_per_second"] > 0
    assert rates["sources"]["shops"]["bytes_per_second"] > 0
    assert rates["pipelines"]["counts"]["rows_in_per_second"] > 0
    assert rates["pipelines"]["counts"]["rows_out_per_second"] > 0
    assert abs(rates["pipelines"]["counts"]["latency_seconds"] - latency) < 0.001
    assert rates["sinks"]["counts"]["files"]["rows_per_second"] > 0


def test_a_task_that_does_not_count_its_rows_is_still_merged(
    client: CoordinatorClient, segments: SegmentClient
) -> None:
    segments.create("raw")
    generation = client.start("plain", {"in": InputSpec(["segment:raw"])}, ["out"]).generation
    staged = f"staging/plain/{generation}/0/0-0/out"
    with segments.appender(staged, create=True) as appender:
        appender.append(stored(1, 1, 0)[8:])
    length = segments.info(staged).length
    assert client.merge("plain", 0, [Staged("out", staged, length)], generation=generation).merged
