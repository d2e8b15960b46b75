"""The sink's halves: a task stages its rows, the driver merges what was staged, after the checkpoint is durable."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructType

from penstock.client.coordinator import Staged
from penstock.client.segments import SegmentClient
from penstock.core.errors import Fenced, RequestError
from penstock.protocol.api.side_outputs import Merged
from penstock.protocol.stored.bulk import decode
from penstock.spark.python_worker import Task
from penstock.spark.sink import writer
from penstock.spark.sink.staging import StagedPort
from penstock.spark.sink.writer import SinkOptions, StagedOutput, StreamSink, in_order, stage
from tests.spark.asking import segment_names
from tests.support.running_worker import RunningWorker

VALUE = StructType().add("value", BinaryType())
TASK = Task(batch=7, partition=3, attempt=41)


@pytest.fixture
def options(worker: RunningWorker) -> SinkOptions:
    address = f"127.0.0.1:{worker.ports['http']}"
    return SinkOptions(pipeline="counts", worker=address, generation=2)


def rows(count: int, **more: list[Any]) -> Any:
    return pa.record_batch({"value": pa.array([b"%d" % n for n in range(count)]), **more})


def stored(worker: RunningWorker, segment: str) -> list[bytes]:
    with SegmentClient(worker.address) as client:
        data = client.read(segment, 0, client.info(segment).length).data
    found = decode(data).values
    assert found is not None
    return found.rows()


# Staging, on an executor.


def test_a_task_stages_its_rows_under_its_own_name(worker: RunningWorker, options: SinkOptions) -> None:
    staged = stage(options, TASK, [rows(10), rows(5)])
    assert staged == StagedOutput(3, (StagedPort("out", "staging/counts/2/7/3-41/out", 15 * 37, 15),))
    assert stored(worker, "staging/counts/2/7/3-41/out") == [b"%d" % n for n in (*range(10), *range(5))]


def test_a_task_without_rows_stages_nothing(worker: RunningWorker, options: SinkOptions) -> None:
    assert stage(options, TASK, []) == stage(options, TASK, [rows(0)]) == StagedOutput(3, ())
    assert segment_names(worker, "staging/") == []


def test_several_ports_are_staged_in_separate_segments(worker: RunningWorker, options: SinkOptions) -> None:
    staged = stage(options, TASK, [rows(4, port=pa.array(["late", None, "late", "out"]))])
    assert [(p.port, p.rows) for p in staged.ports] == [("late", 2), ("out", 2)]
    assert stored(worker, staged.ports[0].segment) == [b"0", b"2"]
    assert stored(worker, staged.ports[1].segment) == [b"1", b"3"]


def test_a_failed_task_leaves_nothing(worker: RunningWorker, options: SinkOptions) -> None:
    def failing() -> Iterator[Any]:
        yield rows(10_000)
        assert segment_names(worker, "staging/") == ["staging/counts/2/7/3-41/out"]
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError):
        stage(options, TASK, failing())
    assert segment_names(worker, "staging/") == []


def test_without_a_generation_the_same_task_of_another_driver_has_another_name(
    worker: RunningWorker, options: SinkOptions
) -> None:
    plain = SinkOptions(pipeline="counts", worker=options.worker)
    staged = [stage(plain, TASK, [rows(1)]) for _ in range(2)]
    names = [s.ports[0].segment for s in staged]
    assert names[0] != names[1]
    assert all(name.startswith("staging/counts/-/7/3-41-") for name in names)
    assert sorted(names) == segment_names(worker, "staging/")


def test_what_a_task_returns_to_the_driver_can_be_pickled() -> None:
    staged = StagedOutput(3, (StagedPort("out", "staging/counts/2/7/3-41/out", 555, 15),))
    assert pickle.loads(pickle.dumps(staged)) == staged


def test_outside_a_streaming_query_writing_is_refused(options: SinkOptions) -> None:
    with pytest.raises(RequestError, match="not a task of a streaming query"):
        StreamSink(options, VALUE).write(iter([rows(1)]))


def test_rows_with_invalid_columns_are_refused_before_anything_runs(options: SinkOptions) -> None:
    with pytest.raises(RequestError, match="`value` is int") as caught:
        StreamSink(options, StructType().add("value", IntegerType()))
    assert "to_json" in caught.value.__notes__[0]


# Merging, on the driver.


class Coordinator:
    """Records its requests."""

    def __init__(self, log: list[Any], refusal: Exception | None = None) -> None:
        self._log = log
        self._refusal = refusal

    def merge(self, name: str, batch: int, staged: list[Staged], *, generation: int | None, manifest: str) -> Merged:
        assert not manifest  # the checkpoint stays on this disk
        self._log.append(("merge", name, batch, staged, generation))
        if self._refusal is not None:
            raise self._refusal
        return Merged(True, batch)


def merging(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, refusal: Exception | None = None) -> list[Any]:
    log: list[Any] = []
    monkeypatch.setattr(writer, "coordinator", lambda _: Coordinator(log, refusal))
    monkeypatch.setattr(writer, "sync_checkpoint", lambda location: log.append(("sync", location)))
    return log


def staged_by(partition: int, *ports: str) -> StagedOutput:
    return StagedOutput(partition, tuple(StagedPort(port, f"s/{partition}/{port}", 10, 1) for port in ports))


def test_the_checkpoint_is_durable_before_the_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = merging(monkeypatch, tmp_path)
    writer = StreamSink(SinkOptions(pipeline="counts", generation=2, checkpoint=str(tmp_path)), VALUE)
    writer.commit([staged_by(0, "out")], 7)
    merged = ("merge", "counts", 7, [Staged("out", "s/0/out", 10, rows=1)], 2)
    assert log == [("sync", str(tmp_path)), merged]


def test_staged_segments_are_merged_in_partition_order() -> None:
    staged = [staged_by(2, "out"), None, staged_by(0, "late", "out"), staged_by(1), staged_by(10, "out")]
    names = [one.segment for one in in_order(staged)]
    assert names == ["s/0/late", "s/0/out", "s/2/out", "s/10/out"]


def test_a_batch_without_rows_is_merged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = merging(monkeypatch, tmp_path)
    StreamSink(SinkOptions(pipeline="counts"), VALUE).commit([None, staged_by(1)], 8)
    assert log[-1] == ("merge", "counts", 8, [], None)


def test_a_refusal_is_reported_with_its_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merging(monkeypatch, tmp_path, Fenced("generation 3 of counts has taken over"))
    writer = StreamSink(SinkOptions(pipeline="counts", generation=2), VALUE)
    with pytest.raises(Fenced, match="generation 3") as caught:
        writer.commit([], 7)
    assert "Another run of the pipeline" in caught.value.__notes__[0]
