"""The stream reader beside the driver: its requests to the coordinator, and its answers to Spark."""

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from penstock.client.coordinator import Range
from penstock.core.errors import DataLoss, PipelineError, Unavailable
from penstock.spark.source import stream
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import ControlRows, PlacedRange, SegmentRanges
from penstock.spark.source.schema import COLUMNS
from penstock.spark.source.stream import StreamReader, driver_identity
from tests.spark.scripted_coordinator import ScriptedCoordinator

ALL = ReadAllAvailable()
STARTED = {"generation": 5, "incarnation": 1, "epoch": -1, "segment_port": 1, "tls": False}


def offset(epoch: int, at: int) -> dict[str, Any]:
    return {"epoch": epoch, "incarnation": 1, "segments": {"connector/a/0": at}, "watermark": None}


def cut(body: Any) -> Any:
    """Ten more bytes each time."""
    start = body["start"]
    return {"offset": offset(start["epoch"] + 1, start["segments"]["connector/a/0"] + 10), "blocked": None}


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    answers = {
        "/pipelines/p/start": STARTED,
        "/pipelines/p/attach": {},
        "/pipelines/p/initial": offset(0, 0),
        "/pipelines/p/cut": cut,
        "/pipelines/p/reading": {"segments": {}},
        "/pipelines/p/heartbeat": {},
        "/sources/resolve": lambda body: {"segments": {"connector/a/1": 7, "connector/a/0": 100}},
        "/sources/cut": lambda body: {"segments": {"connector/a/1": 9, "connector/a/0": 100}},
        "/splits": lambda body: {"splits": body["ranges"]},
    }
    with ScriptedCoordinator(answers).run() as running:
        yield running


Make = Callable[..., StreamReader]


@pytest.fixture
def reader(coordinator: ScriptedCoordinator) -> Iterator[Make]:
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        given = {"source": "a", "worker": coordinator.address} | options
        made.append(StreamReader(SourceOptions.for_stream(given), tuple(COLUMNS)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_without_a_pipeline_nothing_is_registered(coordinator: ScriptedCoordinator, reader: Make) -> None:
    anonymous = reader(startingOffsets="1700000000000")
    start = anonymous.initialOffset()
    assert json.dumps(start) == '{"segments": {"connector/a/0": 100, "connector/a/1": 7}}'
    end = anonymous.latestOffset(start, ALL)
    assert json.dumps(end) == '{"segments": {"connector/a/0": 100, "connector/a/1": 9}}'
    assert anonymous.partitions(start, end) == [
        SegmentRanges((PlacedRange(coordinator.address, Range("connector/a/1", 7, 9)),))
    ]
    assert anonymous.partitions(end, end) == []
    assert coordinator.bodies("/sources/resolve")[0]["position"] == {"timestamp_us": 1_700_000_000_000_000}
    assert not [path for path, _ in coordinator.asked if path.startswith("/pipelines")]


def test_without_new_events_the_latest_offset_is_the_start(coordinator: ScriptedCoordinator, reader: Make) -> None:
    start = {"segments": {"connector/a/0": 100, "connector/a/1": 9}}
    assert json.dumps(reader().latestOffset(start, ALL)) == json.dumps(start)


def test_with_a_generation_the_cuts_of_the_coordinator_are_used(coordinator: ScriptedCoordinator, reader: Make) -> None:
    named = reader(pipeline="p", generation="4", input="left")
    named.getDefaultReadLimit()
    end = named.latestOffset(named.initialOffset(), ALL)
    assert json.dumps(end) == json.dumps(offset(1, 10))
    (attached,), (asked,) = coordinator.bodies("/pipelines/p/attach"), coordinator.bodies("/pipelines/p/cut")
    assert attached == {"generation": 4, "input": "left", "load": asked["load"], "sources": ["a"], "upto": None}
    assert asked == {
        "generation": 4,
        "input": "left",
        "load": attached["load"],
        "start": offset(0, 0),
        "upto": None,
        "limits": None,
        "wait_ms": stream.WAIT_MS,
        "state": None,
    }
    assert not coordinator.bodies("/pipelines/p/start")
    assert not coordinator.bodies("/pipelines/p/heartbeat")


def test_without_a_generation_one_is_started_before_the_first_offset(
    coordinator: ScriptedCoordinator, reader: Make
) -> None:
    left, right = reader(pipeline="p", input="left"), reader(pipeline="p", input="right", startingOffsets="latest")
    left.getDefaultReadLimit()
    right.getDefaultReadLimit()
    first, second = coordinator.bodies("/pipelines/p/start")
    assert (first["inputs"], first["outputs"]) == ({"left": {"sources": ["a"], "starting": "earliest"}}, None)
    assert second["inputs"] == {"right": {"sources": ["a"], "starting": "latest"}}
    assert first["request"] == second["request"] == f"{driver_identity()}/p"
    right.latestOffset(right.initialOffset(), ALL)
    assert coordinator.bodies("/pipelines/p/cut")[0]["generation"] == 5


def test_each_load_attaches_with_its_end_before_the_first_offset(
    coordinator: ScriptedCoordinator, reader: Make
) -> None:
    loads = [reader(pipeline="p"), reader(pipeline="p")]
    for load in loads:
        load.prepareForTriggerAvailableNow()
        load.getDefaultReadLimit()
    first, second = coordinator.bodies("/pipelines/p/attach")
    assert first["load"] != second["load"], "a DataFrame that is joined with itself has two loads of one input"
    assert first["upto"] == second["upto"] == {"connector/a/0": 100, "connector/a/1": 7}
    assert not coordinator.bodies("/pipelines/p/cut")


def test_a_generation_started_by_a_reader_is_kept_alive_and_ended(
    coordinator: ScriptedCoordinator, reader: Make
) -> None:
    own = reader(pipeline="p")
    own.getDefaultReadLimit()
    own.stop()
    beats = coordinator.bodies("/pipelines/p/heartbeat")
    alive = {"generation": 5, "stopped": False, "failed": False, "failure": None, "query": None}
    assert beats[0] == alive
    assert beats[-1] == alive | {"stopped": True}


def test_creating_a_reader_sends_no_request_and_it_can_be_pickled_for_executors(
    coordinator: ScriptedCoordinator, reader: Make
) -> None:
    made = reader(pipeline="p")
    pickle.loads(pickle.dumps(made))
    assert not coordinator.asked
    made.getDefaultReadLimit()
    again = pickle.loads(pickle.dumps(made))
    assert vars(again)["_driver"] is None
    assert vars(again)["_options"] == vars(made)["_options"]


@pytest.mark.parametrize(
    ("options", "default", "given", "limits"),
    [
        ({}, ALL, ALL, None),
        ({"maxBytesPerEpoch": "1KiB"}, ReadMaxBytes(1024), ReadMaxBytes(1024), {"bytes": 1024, "rows": None}),
        ({"maxRowsPerEpoch": "9"}, ReadMaxRows(9), ReadMaxRows(9), {"bytes": None, "rows": 9}),
        (
            {"maxBytesPerEpoch": "1KiB", "maxRowsPerEpoch": "9"},
            ReadMaxBytes(1024),
            ReadMaxBytes(1024),
            {"bytes": 1024, "rows": 9},
        ),
        ({"maxRowsPerEpoch": "9"}, ReadMaxRows(9), ALL, {"bytes": None, "rows": None}),
    ],
)
def test_admission_control_passes_the_limits_of_the_load_to_the_coordinator(
    coordinator: ScriptedCoordinator,
    reader: Make,
    options: dict[str, str],
    default: ReadLimit,
    given: ReadLimit,
    limits: Any,
) -> None:
    limited = reader(pipeline="p", generation="1", **options)
    assert limited.getDefaultReadLimit() == default
    limited.latestOffset(offset(0, 0), given)
    assert coordinator.bodies("/pipelines/p/cut")[0]["limits"] == (limits and {**limits, "undelivered_bytes": None})


def test_a_batch_rerun_by_spark_is_reported_to_the_worker(coordinator: ScriptedCoordinator, reader: Make) -> None:
    named = reader(pipeline="p", generation="1")
    named.partitions(offset(3, 30), offset(4, 40))
    named.partitions(offset(3, 30), offset(4, 40))
    assert coordinator.bodies("/pipelines/p/reading") == [
        {"generation": 1, "input": "in", "start": offset(3, 30), "end": offset(4, 40)}
    ]
    end = named.latestOffset(offset(4, 40), ALL)
    named.partitions(offset(4, 40), end)
    assert len(coordinator.bodies("/pipelines/p/reading")) == 1


def test_available_now_ends_at_what_was_stored_at_its_start(coordinator: ScriptedCoordinator, reader: Make) -> None:
    now = reader(pipeline="p", generation="1")
    now.prepareForTriggerAvailableNow()
    coordinator.answers["/pipelines/p/cut"] = lambda body: {"offset": body["start"], "blocked": None}
    assert now.latestOffset(offset(1, 10), ALL) == offset(1, 10)
    (asked,) = coordinator.bodies("/pipelines/p/cut")
    assert (asked["upto"], asked["wait_ms"]) == ({"connector/a/0": 100, "connector/a/1": 7}, 0)


def test_available_now_waits_for_events_that_are_only_blocked(
    coordinator: ScriptedCoordinator, reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WAIT_MS", 1)
    held = iter([True, True, False])
    coordinator.answers["/pipelines/p/cut"] = lambda body: (
        {"offset": body["start"], "blocked": "a sink is slow"} if next(held) else cut(body)
    )
    now = reader(pipeline="p", generation="1")
    now.prepareForTriggerAvailableNow()
    assert now.latestOffset(offset(1, 10), ALL) == offset(2, 20)


def test_available_now_does_not_wait_forever(
    coordinator: ScriptedCoordinator, reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WAIT_MS", 1)
    monkeypatch.setattr(stream, "BLOCKED_SECONDS_MAX", 0.05)
    coordinator.answers["/pipelines/p/cut"] = lambda body: {"offset": body["start"], "blocked": "a sink is slow"}
    now = reader(pipeline="p", generation="1")
    now.prepareForTriggerAvailableNow()
    with pytest.raises(Unavailable, match=r"nothing has moved for 0\.05 s: a sink is slow"):
        now.latestOffset(offset(1, 10), ALL)


def test_the_reported_latest_offset_is_cached(coordinator: ScriptedCoordinator, reader: Make) -> None:
    reporting = reader()
    assert reporting.reportLatestOffset() == reporting.reportLatestOffset()
    assert len(coordinator.bodies("/sources/resolve")) == 1


def test_a_small_epoch_that_was_just_cut_is_planned_without_a_further_request(
    coordinator: ScriptedCoordinator, reader: Make
) -> None:
    named = reader(pipeline="p", generation="1")
    end = named.latestOffset(offset(1, 10), ALL)
    assert named.partitions(offset(1, 10), end) == [
        SegmentRanges((PlacedRange(coordinator.address, Range("connector/a/0", 10, 20)),))
    ]
    assert not coordinator.bodies("/splits")
    named.partitions(offset(0, 0), offset(1, 10))  # Spark found it in its log
    assert len(coordinator.bodies("/splits")) == 1


def test_lost_bytes_are_skipped_only_if_the_load_allows_it(coordinator: ScriptedCoordinator, reader: Make) -> None:
    def splits(body: Any) -> Any:
        if body["skip_lost"]:
            return {"splits": [["connector/a/0", 5, 10]], "lost": [["connector/a/0", 0, 5]]}
        return {"error": "segment 'connector/a/0' starts at 5", "hint": "Read from there.", "kind": "DataLoss"}

    coordinator.answers["/splits"] = splits
    start, end = {"segments": {"connector/a/0": 0}}, {"segments": {"connector/a/0": 10}}
    with pytest.raises(DataLoss, match="starts at 5") as caught:
        reader().partitions(start, end)
    assert caught.value.__notes__ == ["Read from there."]
    partitions = reader(failOnDataLoss="false").partitions(start, end)
    assert partitions == [SegmentRanges((PlacedRange(coordinator.address, Range("connector/a/0", 5, 10)),))]


def test_a_refusal_by_the_coordinator_reaches_spark_with_its_hint(
    coordinator: ScriptedCoordinator, reader: Make
) -> None:
    refusal = {"error": "pipeline 'p' has no checkpoint", "hint": "penstock pipeline reset p", "kind": "PipelineError"}
    coordinator.answers["/pipelines/p/initial"] = refusal
    with pytest.raises(PipelineError, match="no checkpoint") as caught:
        reader(pipeline="p", generation="1").initialOffset()
    assert caught.value.__notes__ == ["penstock pipeline reset p"]


def test_control_rows_have_the_watermarks_of_the_offsets_and_read_nothing(
    coordinator: ScriptedCoordinator, reader: Make
) -> None:
    control = reader(pipeline="p", generation="1", rows="control", buckets="4,2")
    start, end = ({"control": True} | offset(epoch, epoch * 10) for epoch in (1, 2))
    coordinator.answers["/pipelines/p/cut"] = {"offset": offset(2, 20) | {"watermark": 77}, "blocked": None}
    assert json.dumps(control.latestOffset(start, ALL)) == json.dumps(end | {"watermark": 77}), "it says what it is"
    (partition,) = control.partitions(start | {"watermark": 70}, end | {"watermark": 77})
    assert partition == ControlRows(2, 70, 77)
    (batch,) = pickle.loads(pickle.dumps(control)).read(partition)
    assert batch.to_pylist() == [{"bucket": b, "epoch": 2, "before": 70, "watermark": 77} for b in (4, 2)]
    assert not coordinator.bodies("/splits")
