"""What `penstock run` reports at its end, and how long a pipeline needs to catch up."""

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.cli.overview import sentences
from penstock.cli.run_summary import Counts, summary
from penstock.client.coordinator import PipelineStatus, SinkStatus
from penstock.dashboard.catch_up import catch_up_text, lag_text
from penstock.dashboard.facts import pipeline_facts
from penstock.protocol.api.status import PipelineRates, RatesStatus, SourceRates, WorkerStatus
from penstock.worker.cluster_status import combined


def pipeline(name: str = "orders", **more: Any) -> PipelineStatus:
    epochs: dict[str, Any] = dict.fromkeys(
        ("incarnation", "generation", "planned", "merged", "delivered", "complete", "proved"), 1
    )
    about: dict[str, Any] = {
        "state": "RUNNING",
        "lag_bytes": 0,
        "undelivered_bytes": 0,
        "watermark": None,
        "blocked": None,
    }
    about |= {"heartbeat_age_seconds": 0.0, "inputs": {"in": ["shops"]}, "outputs": ["out", "err", "late"]}
    return PipelineStatus(name=name, **epochs, **(about | more))


def rates(
    *, read: float = 100_000.0, rows: float = 10.0, arriving: float = 0.0, epoch: float | None = 1.0
) -> RatesStatus:
    reading = PipelineRates(bytes_in_per_second=read, rows_in_per_second=rows, epoch_seconds=epoch)
    sources = {"shops": SourceRates(events_per_second=arriving)}
    return RatesStatus(seconds=10.0, sources=sources, pipelines={"orders": reading}, sinks={})


def status(*pipelines: PipelineStatus, sinks: Any = (), **counts: PipelineRates) -> WorkerStatus:
    known = RatesStatus(seconds=10.0, sources={}, pipelines=counts, sinks={})
    return replace(combined([], WorkerStatus), pipelines=pipelines, sinks=sinks, rates=known)


def sink(lacking: int, reason: str = "") -> SinkStatus:
    about: dict[str, Any] = {"port": "out", "url": "file:x", "guarantee": "exactly-once", "votes": True}
    about |= {"state": "READY", "at": 0, "sent": 0, "parked": 0}
    return SinkStatus(pipeline="orders", sink="files", reason=reason, lacking=lacking, **about)


def test_the_time_to_catch_up_counts_what_arrives_meanwhile() -> None:
    behind = pipeline(lag_bytes=4_000_000)
    assert lag_text(behind, rates()) == "3.8 MiB, 40 s at this rate"
    assert lag_text(behind, rates(arriving=5.0)) == "3.8 MiB, 1 min 20 s at this rate"
    assert catch_up_text(behind, rates(arriving=10.0)) == "input arrives as fast as it is read"


@pytest.mark.parametrize(
    ("lag", "now"),
    [
        (0, rates()),
        (150_000, rates()),
        (60_000, rates(read=10.0)),
        (4_000_000, rates(read=0.0)),
        (4_000_000, rates(epoch=30.0)),
        (4_000_000, rates(epoch=None)),
    ],
    ids=[
        "no lag",
        "less than two seconds",
        "less than an epoch",
        "nothing is read now",
        "less than two epochs",
        "no epoch is complete",
    ],
)
def test_a_pipeline_that_keeps_up_has_no_time_to_catch_up(lag: int, now: RatesStatus) -> None:
    assert catch_up_text(pipeline(lag_bytes=lag), now) == ""


def test_a_pipeline_that_does_not_run_never_catches_up() -> None:
    assert catch_up_text(pipeline(lag_bytes=4_000_000, state="STOPPED"), rates()) == ""


def test_its_page_says_how_long_it_takes() -> None:
    """In `penstock top` and in the dashboard."""
    behind = pipeline(lag_bytes=4_000_000)
    facts = dict(pipeline_facts(behind, replace(status(behind), rates=rates())))
    assert facts["Behind"] == "3.8 MiB to read (40 s at this rate), 0 B to deliver"
    assert dict(pipeline_facts(pipeline(), status()))["Behind"] == "0 B to read, 0 B to deliver"


def test_the_output_of_another_pipeline_arrives_too() -> None:
    reads = pipeline(lag_bytes=4_000_000, inputs={"in": ["pipeline:first/out"]})
    now = replace(rates(), pipelines={**rates().pipelines, "first": PipelineRates(rows_out_per_second=5.0)})
    assert catch_up_text(reads, now) == "1 min 20 s at this rate"


def test_the_status_says_how_long_it_takes() -> None:
    shown = replace(status(pipeline(lag_bytes=4_000_000)), rates=rates())
    assert ("pipeline orders: lag 3.8 MiB, 40 s at this rate", "") in sentences(shown)


def test_the_summary_counts_what_was_done_since_the_start() -> None:
    now = PipelineRates(rows_in=12, rows_out={"out": 4, "out.json": 4, "err": 2, "late": 1})
    lines = summary(["orders"], {"orders": Counts(2, 1, 1, 0)}, status(pipeline(), orders=now), 80.0)
    assert lines == [
        "orders: 10 events in, 3 rows out, 1 dead letter, 1 late",
        "ran for 1 min 20 s; everything is delivered",
    ]


def test_a_worker_that_was_restarted_counts_from_0() -> None:
    now = PipelineRates(rows_in=1, rows_out={"out": 1})
    lines = summary(["orders"], {"orders": Counts(100, 100)}, status(pipeline(), orders=now), 1.0)
    assert lines[0] == "orders: 1 event in, 1 row out, 0 dead letters, 0 late"


def test_the_summary_names_what_is_not_delivered() -> None:
    found = status(pipeline(lag_bytes=2048), sinks=[sink(3, "it votes no")])
    assert summary(["orders"], {}, found, 1.0)[-1] == (
        "ran for 1 s; not delivered: 2.0 KiB that orders has not read; 3 epochs of orders to files (it votes no)"
    )


def test_what_the_worker_does_not_report_does_not_count_as_delivered() -> None:
    assert summary(["orders", "gone"], {}, status(pipeline()), 1.0)[-1] == (
        "ran for 1 s; not known to be delivered: gone, which the worker does not report"
    )


def test_rows_to_spark_s_own_sinks_are_not_counted_and_idle_pipelines_of_others_are_left_out() -> None:
    found = status(pipeline(outputs=[]), pipeline("other"), orders=PipelineRates(rows_in=1))
    assert summary(["orders"], {}, found, 1.0)[:-1] == ["orders: 1 event in, 0 dead letters, 0 late"]
