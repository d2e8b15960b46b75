"""Rows that windows cannot use go to a side port: `late`, or `err` if they have no time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock import windows
from penstock.spark.late_rows import _Judge
from penstock.spark.python_worker import Task
from penstock.spark.side_outputs import Origin
from penstock.windows.engine import Plan
from penstock.windows.operator import Kind, Operator, WindowOperator, written
from penstock.windows.stages import NO_EVENT_TIME, map_rows, unpack
from tests.spark.epochs import SEGMENT, Epoch, running_epoch
from tests.support.running_worker import RunningWorker

PLAN = Plan(
    window=windows.tumbling("10 seconds"),
    keys=(),
    aggregates={"r0": windows.count().aggregate},
    schema=pa.schema([("c0", pa.string()), ("c1", pa.int64()), ("c2", pa.binary())]),
    buckets=2,
    carry=("c0", "c1", "c2"),
)
OUTPUT = pa.schema(
    [
        ("window_start", pa.timestamp("us", "UTC")),
        ("window_end", pa.timestamp("us", "UTC")),
        ("pane", pa.string()),
        ("revision", pa.int32()),
        ("n", pa.int64()),
        ("event_time", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture
def epoch(worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Epoch]:
    """The test is a task of its first epoch."""
    monkeypatch.setattr(Task, "running", classmethod(lambda cls: cls(0, 0, 0)))
    with running_epoch(worker) as running:
        yield running


def operator(epoch: Epoch) -> Operator:
    carried = {"segment": "c0", "offset": "c1", "value": "c2"}
    return WindowOperator(
        name="w", side="001 windows w", plan=PLAN, origin=epoch.origin, carried=carried, output=OUTPUT
    )


def carrying(epoch: Epoch, *numbers: int | None) -> dict[str, Any]:
    """The columns of rows of these events. None: a row that has lost the position of its event."""
    return {
        "c0": pa.array([None if number is None else SEGMENT for number in numbers], pa.string()),
        "c1": pa.array([None if number is None else epoch.offsets[number] for number in numbers], pa.int64()),
        "c2": pa.array([b'{"its": "json"}' if number is None else None for number in numbers], pa.binary()),
    }


def test_late_rows_are_staged_once_per_event_and_panes_continue(epoch: Epoch) -> None:
    numbers = (0, 2, 0, None)
    count = len(numbers)
    late = pa.table(
        carrying(epoch, *numbers)
        | {
            "t": pa.array([1] * count, pa.int64()),
            "watermark": pa.array([90] * count, pa.int64()),
            "behind": pa.array([89] * count, pa.int64()),
        }
    )
    pane = {"window_start": [0], "window_end": [10_000_000], "pane": ["on_time"], "revision": [0], "r0": [3]}
    panes = pa.table(pane, PLAN.pane_schema)
    data = [*written(panes), *written(late)]
    batch = pa.RecordBatch.from_pydict({"kind": [int(Kind.RESULTS), int(Kind.LATE)], "data": data})
    (found,) = [row for one in unpack(operator(epoch), [batch]) for row in one.to_pylist()]
    assert (found["n"], found["pane"]) == (3, "on_time")
    epoch.merge()
    left = epoch.left("late")
    assert [(event.event_id, event.metadata.get("derived")) for event in left] == [(1, None), (3, None), (0, True)]
    assert left[2].payload == b'{"its": "json"}'
    assert {(event.metadata["watermark"], event.metadata["behind_us"]) for event in left} == {(90, 89)}
    assert left[0].metadata["reason"] == "event time is behind the watermark, and its windows are closed"


def test_rows_without_a_time_are_dead_letters_and_the_others_partials(epoch: Epoch) -> None:
    rows = carrying(epoch, 1, 3, 1)
    times = {"t": pa.array([None, 5, None], pa.int64()), "b": pa.array([0, 1, 0], pa.int32())}
    batch = pa.RecordBatch.from_pydict(times | rows)
    (partial,) = [row for one in map_rows(operator(epoch), [batch]) for row in one.to_pylist()]
    assert partial["kind"] == Kind.PARTIALS
    epoch.merge()
    assert [(event.event_id, event.metadata["reason"]) for event in epoch.left()] == [(2, NO_EVENT_TIME)]


def test_watermarked_passes_on_rows_that_are_not_behind_the_watermark(
    epoch: Epoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = _Judge(epoch.origin, "001 watermarked", ("segment", "offset", "value"))
    monkeypatch.setattr(Origin, "watermark_before", lambda self: 30)
    times = pa.array([10, 29, 30, None], pa.timestamp("us", "UTC"))
    columns = [*carrying(epoch, 0, 1, 2, 3).values()]
    found = [one for batch in judge.batches(iter([(times, *columns)] * 2)) for one in batch.to_pylist()]
    assert found == [False, False, True, True] * 2
    epoch.merge()
    late = epoch.left("late")
    assert [(event.event_id, event.metadata["behind_us"]) for event in late] == [(1, 20), (2, 1)]


def test_without_a_watermark_nothing_is_late(epoch: Epoch) -> None:
    judge = _Judge(replace(epoch.origin), "001 watermarked", ("segment", "offset", "value"))
    times = pa.array([10, 29], pa.timestamp("us", "UTC"))
    (found,) = judge.batches(iter([(times, *carrying(epoch, 0, 1).values())]))
    assert found.to_pylist() == [True, True]
    epoch.merge()
    assert epoch.left("late") == []
